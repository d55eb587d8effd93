"""Address spaces: mapping, faults, and that both gather paths read the same."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opennpu.emu.memory import AddressSpace, MemoryFault


def space_of(size: int, at: int = 0x1000) -> tuple[AddressSpace, np.ndarray]:
    data = np.arange(size, dtype=np.int64).astype(np.uint8)
    space = AddressSpace()
    space.map(at, data)
    return space, data


def test_views_are_live_both_ways() -> None:
    space, data = space_of(64)
    view = space.read(0x1010, 4)
    data[16] = 99
    assert view[0] == 99
    space.write(0x1010, b"\x07")
    assert data[16] == 7


def test_unmap_and_permissions_fault_with_their_address() -> None:
    space, _ = space_of(64)
    space.map(0x2000, np.zeros(16, np.uint8), write=False)
    space.map(0x3000, np.zeros(16, np.uint8), read=False)
    for action, iova, write in (
        (lambda: space.read(0x103F, 2), 0x1040, False),
        (lambda: space.write(0x2000, b"x"), 0x2000, True),
        (lambda: space.read(0x3000, 1), 0x3000, False),
        (lambda: space.gather(0x1030, (2,), (16,), "feature", "CNA"), 0x1040, False),
        (lambda: space.gather(0x1031, (1,), (16,), "feature", "CNA"), 0x1040, False),
    ):
        with pytest.raises(MemoryFault) as e:
            action()
        assert (e.value.iova, e.value.write) == (iova, write)
    space.unmap(0x1000)
    with pytest.raises(MemoryFault):
        space.read(0x1000, 1)


def test_a_write_that_faults_changes_nothing() -> None:
    space, data = space_of(64)
    before = data.copy()
    with pytest.raises(MemoryFault):
        space.write(0x1030, bytes(32))
    with pytest.raises(MemoryFault):
        space.scatter(0x1000, (8,), (16,), np.zeros((8, 16), np.uint8), "output", "DPU")
    np.testing.assert_array_equal(data, before)


def test_mappings_do_not_overlap_or_leave_the_space() -> None:
    space, _ = space_of(64)
    for at in (0x1000, 0x103F, 0xFF8):
        with pytest.raises(ValueError, match="overlaps"):
            space.map(at, np.zeros(16, np.uint8))
    with pytest.raises(ValueError, match="4 GiB"):
        space.map((1 << 32) - 8, np.zeros(16, np.uint8))


def test_bytes_are_counted_by_stream() -> None:
    space, _ = space_of(256)
    space.gather(0x1000, (2, 3), (64, 16), "feature", "CNA")
    space.read(0x1000, 10, "weight")
    space.scatter(0x1000, (2,), (16,), np.zeros((2, 16), np.uint8), "output", "DPU")
    assert space.bytes_read == {"feature": 96, "weight": 10}
    assert space.bytes_written == {"output": 32}


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(-8, 8)), min_size=1, max_size=3))
def test_split_mappings_read_like_one(dims: list[tuple[int, int]]) -> None:
    counts = tuple(n for n, _ in dims)
    strides = tuple(16 * s for _, s in dims)
    data = np.random.default_rng(0).integers(0, 256, 4096).astype(np.uint8)
    one, many = AddressSpace(), AddressSpace()
    one.map(0x1000, data)
    for at in range(0, 4096, 64):
        many.map(0x1000 + at, data[at : at + 64])
    middle = 0x1800
    np.testing.assert_array_equal(
        one.gather(middle, counts, strides, "feature", "CNA"),
        many.gather(middle, counts, strides, "feature", "CNA"),
    )
    new = np.random.default_rng(1).integers(0, 256, (*counts, 16)).astype(np.uint8)
    if len(
        {sum(i * s for i, s in zip(at, strides, strict=True)) for at in np.ndindex(*counts)}
    ) == int(np.prod(counts)):
        copy = data.copy()
        other = AddressSpace()
        other.map(0x1000, copy)
        other.scatter(middle, counts, strides, new, "output", "DPU")
        many.scatter(middle, counts, strides, new, "output", "DPU")
        np.testing.assert_array_equal(copy, data)


def test_addresses_wrap_at_four_gibibytes() -> None:
    space = AddressSpace()
    space.map(0, np.full(16, 1, np.uint8))
    space.map((1 << 32) - 16, np.full(16, 2, np.uint8))
    got = space.gather((1 << 32) - 16, (2,), (16,), "feature", "CNA")
    assert got[:, 0].tolist() == [2, 1]
