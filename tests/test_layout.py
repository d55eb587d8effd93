"""Memory layouts: lossless, and every element where the formula says it is."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opennpu.hw import layout
from opennpu.hw.rk3588 import chip
from opennpu.hw.rk3588.common import Precision

Array = npt.NDArray[Any]

MAC_TYPES = sorted(chip.KERNEL_GROUP)
CUBE_TYPES = sorted(Precision)
small = st.integers(1, 5)


def numbers(shape: tuple[int, ...], precision: Precision, seed: int = 0) -> Array:
    """Random bits of the type (int4: -8..7; floats: any but NaN, which compares unequal)."""
    rng = np.random.default_rng(seed)
    if precision is Precision.INT4:
        return rng.integers(-8, 8, shape, np.int8)
    dtype = layout.NUMPY_DTYPE[precision]
    x = rng.integers(0, 256, (*shape, dtype.itemsize), np.uint8).view(dtype)[..., 0]
    with np.errstate(invalid="ignore"):
        return np.where(x == x, x, dtype.type(0))


def counting(shape: tuple[int, ...]) -> Array:
    """1, 2, 3, … as int16: every element is told from every other and from padding."""
    return np.arange(1, math.prod(shape) + 1, dtype=np.int16).reshape(shape)


# Lossless.


@given(st.sampled_from(CUBE_TYPES), st.tuples(small, small, small, st.integers(1, 70)), st.data())
def test_cube_comes_back(
    precision: Precision, shape: tuple[int, int, int, int], data: st.DataObject
) -> None:
    room = data.draw(st.none() | st.integers(shape[3], 100))
    x = numbers(shape, precision)
    packed = layout.pack_cube(x, precision, room)
    assert packed.dtype == np.uint8 and packed.ndim == 1
    assert packed.size == layout.cube_bytes(shape, precision, room or shape[3])
    back = layout.unpack_cube(packed, shape, precision, room)
    assert back.dtype == x.dtype and back.shape == x.shape
    assert (back == x).all()


@given(
    st.sampled_from(MAC_TYPES),
    st.tuples(st.integers(1, 140), small, small, st.integers(1, 100)),
    st.data(),
)
def test_weights_come_back(
    precision: Precision, shape: tuple[int, int, int, int], data: st.DataObject
) -> None:
    room = data.draw(st.none() | st.integers(shape[3], 130))
    w = numbers(shape, precision)
    packed = layout.pack_weights(w, precision, room)
    c2 = chip.elements_per_atom(precision)
    oc, kh, kw, ic = shape
    assert packed.size == oc * kh * kw * layout.align(room or ic, c2) // c2 * chip.ATOM_BYTES
    assert (layout.unpack_weights(packed, shape, precision, room) == w).all()


@given(
    st.sampled_from(sorted(chip.DEPTHWISE_GROUP)),
    st.tuples(st.integers(1, 200), small, small),
    st.data(),
)
def test_depthwise_weights_come_back(
    precision: Precision, shape: tuple[int, int, int], data: st.DataObject
) -> None:
    room = data.draw(st.none() | st.integers(shape[0], 220))
    w = numbers(shape, precision)
    packed = layout.pack_depthwise_weights(w, precision, room)
    assert (layout.unpack_depthwise_weights(packed, shape, precision, room) == w).all()


@given(st.sampled_from(MAC_TYPES), st.binary(min_size=16 * 33, max_size=16 * 33))
def test_any_memory_is_some_weights(precision: Precision, memory: bytes) -> None:
    """The other direction of the bijection: no byte of a packed buffer is without meaning."""
    data = np.frombuffer(memory, np.uint8)
    shape = (33, 1, 1, chip.elements_per_atom(precision))
    back = layout.pack_weights(layout.unpack_weights(data, shape, precision), precision)
    assert (back == data).all()


def test_lanes_beyond_the_channels_are_zero() -> None:
    packed = layout.pack_cube(np.full((1, 1, 2, 3), 7, np.int8), Precision.INT8, 17)
    assert packed.reshape(2, 2, 16).tolist() == [
        [[7, 7, 7] + [0] * 13] * 2,
        [[0] * 16] * 2,
    ]


# Every element is where the formula says.


@given(st.sampled_from([Precision.INT16, Precision.FP16]), small, small, st.integers(1, 40))
def test_cube_formula(precision: Precision, h: int, w: int, c: int) -> None:
    """off = ((c div C2)*SP + y*W + x)*16 + (c mod C2)*size, SP = W*H atoms."""
    x = counting((1, h, w, c))
    packed = layout.pack_cube(x, precision).view(layout.NUMPY_DTYPE[precision])
    c2 = chip.elements_per_atom(precision)
    for y, px, ch in np.ndindex(h, w, c):
        at = ((ch // c2) * w * h + y * w + px) * c2 + ch % c2
        assert packed[at] == x[0, y, px, ch]


@pytest.mark.parametrize("channels", [32, 64, 96])
def test_matrix_weights_formula_of_vendor_lists(channels: int) -> None:
    """fp16: k/16*16*C + c/32*32*16 + k%16*32 + c%32; int8 with groups of 32 kernels."""
    for precision, kg in ((Precision.FP16, 16), (Precision.INT8, 32)):
        kernels = 2 * kg
        w = counting((kernels, 1, 1, channels)) % 101
        packed = layout.pack_weights(w, precision).view(layout.NUMPY_DTYPE[precision])
        for k, c in np.ndindex(kernels, channels):
            at = k // kg * kg * channels + c // 32 * 32 * kg + k % kg * 32 + c % 32
            assert packed[at] == w[k, 0, 0, c]


@settings(deadline=None)
@given(
    st.sampled_from([Precision.INT16, Precision.INT8, Precision.TF32]),
    st.tuples(st.integers(1, 70), st.integers(1, 3), st.integers(1, 3), st.integers(1, 70)),
)
def test_weights_formula_with_tails(precision: Precision, shape: tuple[int, int, int, int]) -> None:
    """[OC/KG][IC/CG][KH][KW][KG][CG]; the last groups are as small as what remains."""
    oc, kh, kw, ic = shape
    kg, cg = chip.KERNEL_GROUP[precision], chip.CHANNEL_GROUP[precision]
    room = layout.align(ic, chip.elements_per_atom(precision))
    w = (np.arange(oc * kh * kw * ic) % 127 + 1).reshape(shape)
    packed = layout.pack_weights(w, precision).view(layout.NUMPY_DTYPE[precision])
    rng = np.random.default_rng(oc * ic)
    for _ in range(50):
        o, y, x, i = (int(rng.integers(n)) for n in shape)
        kernels = min(kg, oc - o // kg * kg)  # in this kernel group
        channels = min(cg, room - i // cg * cg)  # in this channel group
        at = o // kg * kg * kh * kw * room  # whole kernel groups before
        at += i // cg * cg * kh * kw * kernels  # whole channel groups before
        at += ((y * kw + x) * kernels + o % kg) * channels + i % cg
        assert packed[at] == w[o, y, x, i]


def test_taps_are_row_major_outside_the_kernels() -> None:
    w = counting((2, 2, 3, 8))
    packed = layout.pack_weights(w, Precision.INT16).view(np.int16).reshape(2, 3, 2, 8)
    assert (packed == w.transpose(1, 2, 0, 3)).all()


@pytest.mark.parametrize(
    ("precision", "group"), [(Precision.INT8, 64), (Precision.FP16, 32), (Precision.INT16, 32)]
)
def test_depthwise_formula(precision: Precision, group: int) -> None:
    """[C/G][KH][KW][G]; the last group holds the remaining channels in whole atoms."""
    c, kh, kw = group + group // 2, 3, 2
    w = counting((c, kh, kw)) % 127
    packed = layout.pack_depthwise_weights(w, precision).view(layout.NUMPY_DTYPE[precision])
    for ch, y, x in np.ndindex(c, kh, kw):
        wide = min(group, c - ch // group * group)
        at = ch // group * group * kh * kw + (y * kw + x) * wide + ch % group
        assert packed[at] == w[ch, y, x]


def test_depthwise_channels_are_padded_to_an_atom() -> None:
    packed = layout.pack_depthwise_weights(np.ones((3, 1, 1), np.int8), Precision.INT8)
    assert packed.tolist() == [1, 1, 1] + [0] * 13
    packed = layout.pack_depthwise_weights(np.ones((3, 1, 1), np.int8), Precision.INT8, 64)
    assert packed.size == 64


def test_channel_slices_of_depthwise_weights_are_contiguous() -> None:
    """Vendor lists run 32-channel tiles at offset channel*kh*kw*2 of one fp16 buffer."""
    w = numbers((96, 3, 3), Precision.INT16)
    whole = layout.pack_depthwise_weights(w, Precision.INT16)
    at = 32 * 3 * 3 * 2
    assert (whole[at : 2 * at] == layout.pack_depthwise_weights(w[32:64], Precision.INT16)).all()


# Nibbles.


def test_int4_low_nibble_holds_the_even_element() -> None:
    x = np.zeros((1, 1, 1, 32), np.int8)
    x[0, 0, 0, :4] = [1, -2, 7, -8]
    packed = layout.pack_cube(x, Precision.INT4)
    assert packed.tolist() == [0xE1, 0x87] + [0] * 14
    w = np.zeros((1, 1, 1, 32), np.int8)
    w[0, 0, 0, :4] = [1, -2, 7, -8]
    assert layout.pack_weights(w, Precision.INT4).tolist() == packed.tolist()


@given(st.binary(min_size=32, max_size=32))
def test_int4_every_byte_is_two_elements(memory: bytes) -> None:
    data = np.frombuffer(memory, np.uint8)
    x = layout.unpack_cube(data, (1, 1, 2, 32), Precision.INT4)
    assert x.min() >= -8 and x.max() <= 7
    assert (layout.pack_cube(x, Precision.INT4) == data).all()


def test_int4_never_wraps_in_silence() -> None:
    with pytest.raises(AssertionError, match=r"int4 holds -8\.\.7"):
        layout.pack_cube(np.full((1, 1, 1, 32), 8, np.int8), Precision.INT4)


# Requantization operands.


def test_requant_block_is_64_bytes_per_8_channels() -> None:
    bias = np.arange(16) - 70000
    weight = np.arange(16) - 8
    multiplier = np.arange(16) + 16384
    blocks = layout.pack_requant(bias, weight, multiplier).reshape(2, 64)
    for i, block in enumerate(blocks):
        s = slice(8 * i, 8 * i + 8)
        assert (block[:32].view("<i4") == bias[s]).all()
        assert (block[32:48].view("<i2") == weight[s]).all()
        assert (block[48:].view("<i2") == multiplier[s]).all()


# Cost: models have tens of MB of weights.


@pytest.mark.parametrize("precision", [Precision.INT8, Precision.FP16, Precision.INT4])
def test_five_million_weights_pack_in_no_time(precision: Precision) -> None:
    w = numbers((2304, 1, 1, 2304), Precision.INT4).astype(layout.NUMPY_DTYPE[precision])
    start = time.process_time()
    packed = layout.pack_weights(w, precision)
    layout.unpack_weights(packed, (2304, 1, 1, 2304), precision)
    assert time.process_time() - start < 0.5  # about 10 ms here; per-block loops took longer
