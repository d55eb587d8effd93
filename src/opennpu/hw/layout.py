"""Memory layouts: feature cubes and weights, one pack and one unpack each.

Feature cube: NC1HWC2, C2 = one 16-byte atom.  Weights: kernel group, channel group, row, column,
kernel, channel.  int4 packs two elements in a byte, the even index in the low nibble (weights and
features alike, so no sum can tell).  Sources: Mesa rocket, rockchip-npu-notes, vendor captures.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from opennpu.hw.rk3588 import chip
from opennpu.hw.rk3588.common import Precision

Array = npt.NDArray[Any]

NUMPY_DTYPE: dict[Precision, np.dtype[Any]] = {
    Precision.INT8: np.dtype(np.int8),
    Precision.INT16: np.dtype(np.int16),
    Precision.FP16: np.dtype(np.float16),
    Precision.BF16: np.dtype(ml_dtypes.bfloat16),
    Precision.INT32: np.dtype(np.int32),
    Precision.FP32: np.dtype(np.float32),
    Precision.TF32: np.dtype(np.float32),
    Precision.INT4: np.dtype(np.int8),  # one element a byte on the host, packed in memory
}


def align(value: int, step: int) -> int:
    """``value`` rounded up to a multiple of ``step``."""
    return -(-value // step) * step


def _nibbles(x: Array) -> Array:
    """Pairs along the last axis -> bytes."""
    assert not x.size or (x.min() >= -8 and x.max() <= 7), "int4 holds -8..7"
    return (x[..., 0::2].view(np.uint8) & 15) | x[..., 1::2].view(np.uint8) << 4


def _unnibbles(x: Array) -> Array:
    """Bytes -> two elements each, low nibble first."""
    both = np.stack([x << 4, x], axis=-1).reshape(*x.shape[:-1], -1)
    return both.view(np.int8) >> 4


def _bytes(x: Array, precision: Precision) -> Array:
    """The bytes of ``x`` in order, flat uint8."""
    x = np.ascontiguousarray(x.astype(NUMPY_DTYPE[precision], copy=False))
    if precision is Precision.INT4:
        return np.asarray(_nibbles(x).reshape(-1))
    return x.reshape(-1).view(np.uint8)


def _elements(data: Array, count: int, precision: Precision) -> Array:
    """The first ``count`` elements of flat uint8 ``data``, in order."""
    raw = np.ascontiguousarray(data[: count * chip.ELEMENT_BITS[precision] // 8])
    return _unnibbles(raw) if precision is Precision.INT4 else raw.view(NUMPY_DTYPE[precision])


def _room(elements: int, room: int | None, precision: Precision) -> int:
    """Channels that memory holds for ``elements``: whole atoms, at least ``room``."""
    return align(max(elements, room or elements), chip.elements_per_atom(precision))


def _padded(x: Array, axis: int, length: int, precision: Precision) -> Array:
    """``x`` in the precision's dtype, zeros behind it on one axis."""
    x = x.astype(NUMPY_DTYPE[precision], copy=False)
    if x.shape[axis] == length:
        return x
    shape = list(x.shape)
    shape[axis] = length
    full = np.zeros(shape, x.dtype)
    full[(slice(None),) * (axis % x.ndim) + (slice(x.shape[axis]),)] = x
    return full


def _groups(total: int, group: int) -> list[tuple[int, int, int]]:
    """Split ``total`` into whole groups and a rest: (start, number of groups, group size)."""
    whole, rest = divmod(total, group)
    return [(0, whole, group)] * (whole > 0) + [(whole * group, 1, rest)] * (rest > 0)


def cube_surfaces(channels: int, precision: Precision) -> int:
    """Number of 16-byte channel surfaces of a cube of ``channels`` channels."""
    return -(-channels // chip.elements_per_atom(precision))


def cube_bytes(shape: tuple[int, int, int, int], precision: Precision, channels: int) -> int:
    """Bytes of a cube for [N, H, W, C] with room for ``channels`` >= C channels per pixel."""
    n, h, w, _ = shape
    return n * cube_surfaces(channels, precision) * h * w * chip.ATOM_BYTES


def pack_cube(x: Array, precision: Precision, channels: int | None = None) -> Array:
    """[N, H, W, C] -> flat uint8 of [N, C1, H, W, C2]; lanes beyond C are zero.

    ``channels``: room for this many channels (default: C, rounded up to whole atoms).
    """
    n, h, w, c = x.shape
    c2 = chip.elements_per_atom(precision)
    full = _padded(x, 3, _room(c, channels, precision), precision)
    return _bytes(full.reshape(n, h, w, -1, c2).transpose(0, 3, 1, 2, 4), precision)


def unpack_cube(
    data: Array, shape: tuple[int, int, int, int], precision: Precision, channels: int | None = None
) -> Array:
    """Inverse of `pack_cube`: flat uint8 -> [N, H, W, C]."""
    n, h, w, c = shape
    room = _room(c, channels, precision)
    c2 = chip.elements_per_atom(precision)
    x = _elements(data, n * h * w * room, precision).reshape(n, room // c2, h, w, c2)
    return np.ascontiguousarray(x.transpose(0, 2, 3, 1, 4).reshape(n, h, w, room)[..., :c])


def pack_weights(w: Array, precision: Precision, channels: int | None = None) -> Array:
    """[OC, KH, KW, IC] -> flat uint8 of (OC/KG, IC/CG, KH, KW, KG, CG).

    ``channels``: IC as the CNA is told it (a multiple of the atom; default IC rounded up).
    Tails are not padded: the last channel group is as wide as the remaining channels, the last
    kernel group holds the remaining kernels (Mesa rocket, vendor captures); callers pad OC where
    the hardware needs whole groups.
    """
    oc, kh, kw, ic = w.shape
    room = _room(ic, channels, precision)
    full = _padded(w, 3, room, precision)
    parts = [np.zeros(0, np.uint8)]
    for k, groups, kg in _groups(oc, chip.KERNEL_GROUP[precision]):
        kernels = full[k : k + groups * kg].reshape(groups, kg, kh, kw, room)
        blocks = [
            _bytes(
                kernels[..., c : c + n * cg]
                .reshape(groups, kg, kh, kw, n, cg)
                .transpose(0, 4, 2, 3, 1, 5),
                precision,
            ).reshape(groups, -1)
            for c, n, cg in _groups(room, chip.CHANNEL_GROUP[precision])
        ]
        parts.append(np.concatenate(blocks, axis=1).reshape(-1))
    return np.concatenate(parts)


def unpack_weights(
    data: Array, shape: tuple[int, int, int, int], precision: Precision, channels: int | None = None
) -> Array:
    """Inverse of `pack_weights`: flat uint8 -> [OC, KH, KW, IC]."""
    oc, kh, kw, ic = shape
    room = _room(ic, channels, precision)
    taps = kh * kw
    flat = _elements(data, oc * taps * room, precision)
    w = np.empty((oc, kh, kw, room), NUMPY_DTYPE[precision])
    for k, groups, kg in _groups(oc, chip.KERNEL_GROUP[precision]):
        kernels = flat[k * taps * room : (k + groups * kg) * taps * room].reshape(groups, -1)
        for c, n, cg in _groups(room, chip.CHANNEL_GROUP[precision]):
            block = kernels[:, c * kg * taps : (c + n * cg) * kg * taps]
            block = block.reshape(groups, n, kh, kw, kg, cg).transpose(0, 4, 2, 3, 1, 5)
            w[k : k + groups * kg, ..., c : c + n * cg] = block.reshape(-1, kh, kw, n * cg)
    return np.ascontiguousarray(w[..., :ic])


def pack_depthwise_weights(w: Array, precision: Precision, channels: int | None = None) -> Array:
    """[C, KH, KW] -> flat uint8 of (C/G, KH, KW, G); G = 64 int8, 32 for 16-bit types.

    The last group is as wide as the remaining channels (whole atoms).
    """
    c, kh, kw = w.shape
    full = _padded(w, 0, _room(c, channels, precision), precision)
    parts = [np.zeros(0, np.uint8)]
    for start, groups, g in _groups(len(full), chip.DEPTHWISE_GROUP[precision]):
        block = full[start : start + groups * g].reshape(groups, g, kh, kw)
        parts.append(_bytes(block.transpose(0, 2, 3, 1), precision))
    return np.concatenate(parts)


def unpack_depthwise_weights(
    data: Array, shape: tuple[int, int, int], precision: Precision, channels: int | None = None
) -> Array:
    """Inverse of `pack_depthwise_weights`: flat uint8 -> [C, KH, KW]."""
    c, kh, kw = shape
    room = _room(c, channels, precision)
    flat = _elements(data, room * kh * kw, precision)
    parts = [
        flat[start * kh * kw : (start + groups * g) * kh * kw]
        .reshape(groups, kh, kw, g)
        .transpose(0, 3, 1, 2)
        .reshape(-1, kh, kw)
        for start, groups, g in _groups(room, chip.DEPTHWISE_GROUP[precision])
    ]
    return np.concatenate(parts)[:c]


def pack_requant(bias: Array, offset_weight: Array, multiplier: Array) -> Array:
    """Per-channel operands of BRDMA_DATA_USE = 7: per 8 channels int32[8], int16[8], int16[8].

    Arguments are [C] with C a multiple of 8.  Source: rockchip-npu-notes (board sweeps).
    """
    blocks = [
        bias.astype("<i4").reshape(-1, 8).view(np.uint8),
        offset_weight.astype("<i2").reshape(-1, 8).view(np.uint8),
        multiplier.astype("<i2").reshape(-1, 8).view(np.uint8),
    ]
    return np.concatenate(blocks, axis=1).reshape(-1)
