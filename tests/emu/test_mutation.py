"""The mutation check on a sample, and that it can fail.  All of it: tests/emu/mutation.py."""

from __future__ import annotations

import zlib
from typing import Any

import mutation
import pytest
from mutation import CRUCIAL, Bit, Stream, committed, faults, listed, rows, survivors, where
from mutation_reasons import KINDS, REASONS
from mutation_streams import own_streams
from rkg import JOBS

from opennpu.emu.machine import Machine
from opennpu.hw.rk3588 import dpu, dpu_rdma

ONE_IN = 8  # of the bits that are not crucial


def sampled(bit: Bit) -> bool:
    """All bits of addresses, sizes, strides and precisions; a fixed choice of the others."""
    return bool(CRUCIAL.search(bit.field[0])) or zlib.crc32(str(bit).encode()) % ONE_IN == 0


@pytest.mark.skipif(not JOBS, reason="OPENNPU_GOLDEN is not set")
def test_any_flipped_bit_of_a_golden_stream_is_noticed_or_listed() -> None:
    found = {bit: places for bit, places in where(mutation.streams()).items() if sampled(bit)}
    left = {str(bit) for bit in survivors(found, quick=True)}
    assert left == {str(bit) for bit in found} & listed(committed())


def test_listed_survivors_have_reasons_and_none_is_an_address_size_stride_or_precision() -> None:
    assert faults(committed(), committed()) == []


def copy() -> Stream:
    """A DPU copy of ours: it needs no captures."""
    (capture,) = [c for name, c in own_streams() if name == "int8 copy without ping-pong"]
    return Stream.of("copy", False, capture)


def bits_of(register: type[Any]) -> list[Bit]:
    found = {b: p for b, p in where([copy()], golden=False).items() if b.register is register}
    assert found
    return survivors(found)


def test_any_bit_of_a_register_that_the_machine_ignores_survives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert bits_of(dpu.DST_BASE_ADDR) == []
    honest = Machine._write

    def deaf(self: Machine, c: Any, offset: int, value: int) -> None:
        if offset != dpu.DST_BASE_ADDR.address:
            honest(self, c, offset, value)

    monkeypatch.setattr(Machine, "_write", deaf)
    left = rows(bits_of(dpu.DST_BASE_ADDR))
    assert left == [("DPU.DST_BASE_ADDR", "dst_base_addr", "31:0", "?", "?")]
    assert "DPU.DST_BASE_ADDR.dst_base_addr 31:0 survives: every address" in faults(left, left)[0]


def test_any_survivor_without_a_reason_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    left = [b for b in bits_of(dpu_rdma.RDMA_FEATURE_MODE_CFG) if b.field[0] == "burst_len"]
    ((_, _, shown, reason, _),) = rows(left)
    assert shown == "3:0"
    assert reason.startswith(KINDS)
    key = "DPU_RDMA.RDMA_FEATURE_MODE_CFG.burst_len"
    monkeypatch.delitem(REASONS, key)
    assert f"{key} 3:0 survives without a reason" in faults(rows(left), rows(left))


def test_a_difference_from_the_file_is_reported() -> None:
    expected = committed()
    assert any("run says otherwise" in said for said in faults(expected[1:], expected))
    assert any("run says otherwise" in said for said in faults(expected, expected[1:]))


def test_bits_are_listed_as_they_are_printed() -> None:
    assert listed([("DPU.X", "y", "5 2:1", "", "")]) == {f"DPU.X.y bit {n}" for n in (5, 2, 1)}
