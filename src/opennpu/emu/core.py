"""CORE: the MAC array and its accumulator.

Integers are exact.  Floats follow the group rule (board notes A.7): the products of one channel
group and tap are summed exactly, rounded once to fp32, and added in order in fp32.  Depthwise
floats are added in tap order in fp32 (GUESSED, reference/README.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from opennpu.emu import cna, numerics
from opennpu.emu.context import Context
from opennpu.emu.numerics import Rows
from opennpu.emu.registers import Group
from opennpu.hw.rk3588 import chip, core
from opennpu.hw.rk3588.common import Precision

Array = npt.NDArray[Any]

UNIT = "CORE"
CHUNK = 1 << 16  # accumulators worked on at a time: keeps temporaries in the cache
GATED = ((1 << 11, range(8)), (1 << 23, range(8, 16)))  # MAC_GATING bit: lanes that it clocks; A.7
GATE_ALL = 1 << 24  # cleared, the job never completes; A.7
PROOF_PIXELS = 8  # below it checking every sum is cheaper than the proof that none needs it


@dataclass(frozen=True, slots=True)
class Cube:
    """What flows through the DPU: pixels in rows, channels in columns.

    Attributes:
        values: [pixels, channels]; integers as float64, floats as float32.
        integer: which of the two.
        lanes: channels that arrive together: a kernel group, or an atom in flying mode.
        real: channels that hold a kernel; the rest, up to the aligned count, leave as 0.
        sums: plain sums of the inputs for CPEND, [pixels, 1 or channels], computed on demand.
        narrow: floats that were not widened to fp32: raw fp16 (flying only).
        clip: CLIP_TRUNCATE (shift, round_type) for the DPU: policy ``clip_truncate`` = last.
    """

    values: Array
    integer: bool
    lanes: int
    real: int
    sums: Callable[[], Array] | None = None
    narrow: bool = False
    clip: tuple[int, int] = (0, 0)


def execute(ctx: Context, g: Group, geo: cna.Geometry, features: Array, weights: Array) -> Cube:
    """Convolve.

    Arguments:
        features: raw atoms, see `cna.fetch_features`.
        weights: raw bytes, see `cna.fetch_weights`.
    """
    misc = g.get(core.MISC_CFG)
    channels = g.get(core.DATAOUT_SIZE_1).dataout_channel
    clip = g.get(core.CLIP_TRUNCATE)
    integer = geo.precision not in numerics.FLOATS
    dtype = np.float64 if geo.precision is Precision.INT16 else np.float32
    x = cna.lay_out(ctx, geo, features, dtype)
    if ctx.policy.padded_channels == "masked" and geo.padded > 0:
        x[:, :, geo.channels - geo.padded :] = 0
    w = cna.unpack_weights(geo, weights)
    if geo.depthwise:
        acc = _depthwise(geo, x, w.astype(dtype))
    elif integer:
        acc = _direct_int(geo, x, w)
    elif ctx.policy.fp16_accumulate == "blas":
        acc = _direct_blas(geo, x, w)
    else:
        acc = _direct_float(ctx, geo, x, w)
    real = min(acc.shape[1], channels)
    if integer:
        acc = acc.astype(np.float64, copy=False)
        if ctx.policy.clip_truncate == "first" and clip.clip_truncate:
            acc = truncate(acc, clip.clip_truncate, clip.round_type)
        if ctx.policy.int_accumulator == "saturate":
            acc = numerics.saturate(acc)
        else:
            acc = numerics.wrap32(acc)
    if channels != acc.shape[1]:  # lanes between the kernels and the aligned count: README, tails
        full = np.zeros((geo.pixels, channels), acc.dtype)
        full[:, :real] = acc[:, :real]
        acc = full
    lanes = (chip.DEPTHWISE_GROUP if geo.depthwise else chip.KERNEL_GROUP)[geo.precision]
    sums = None
    if misc.qd_en and integer:  # floats ignore CPEND: board notes A.8

        def sums() -> Array:
            return input_sums(geo, x, channels)

    for lane in gated_lanes(g):  # "that half writes a constant": which is not known
        acc[:, lane :: chip.KERNEL_GROUP[Precision.FP16]] = ctx.policy.poison
    last = integer and ctx.policy.clip_truncate == "last"
    late = (clip.clip_truncate, clip.round_type) if last else (0, 0)
    return Cube(acc, integer, lanes, real, sums, clip=late)


def gated_lanes(g: Group) -> list[int]:
    """Lanes, of 16, that MAC_GATING leaves without a clock."""
    word = g.get(core.MAC_GATING).word
    return [n for bit, lanes in GATED for n in lanes if not word & bit]


def check_gating(ctx: Context, g: Group) -> None:
    """MAC_GATING: bits 11, 23 and 24 act, no other does (board notes A.7)."""
    word = g.get(core.MAC_GATING).word
    ctx.require(bool(word & GATE_ALL), "core.mac_gating_off", UNIT, f"has MAC_GATING {word:#x}")
    off = gated_lanes(g)
    ctx.require(
        not off, "core.mac_gating", UNIT, f"has MAC_GATING {word:#x}: {len(off)} lanes stand still"
    )


def truncate(acc: Array, shift: int, round_up: int) -> Array:
    """CLIP_TRUNCATE: round_type 0 ties to even, 1 ties up (TRM)."""
    scaled = acc * 2.0**-shift
    out: Array = np.floor(scaled + 0.5) if round_up else np.rint(scaled)
    return out


def _taps(geo: cna.Geometry) -> Iterator[tuple[int, int, int]]:
    """(tap, first row, first column) in memory order."""
    for ky in range(geo.kernel[0]):
        for kx in range(geo.kernel[1]):
            yield ky * geo.kernel[1] + kx, ky * geo.dilation[0], kx * geo.dilation[1]


def _under_tap(x: Array, geo: cna.Geometry, y0: int, x0: int, rows: slice) -> Array:
    """The pixels that one tap meets for the output rows ``rows``: [rows, columns, ...]."""
    sy, sx = geo.stride
    first = y0 + rows.start * sy
    last = y0 + (rows.stop - 1) * sy + 1
    return x[first:last:sy, x0 : x0 + (geo.out[1] - 1) * sx + 1 : sx]


def _row_chunks(geo: cna.Geometry, channels: int) -> Iterator[slice]:
    step = max(1, CHUNK // (geo.out[1] * channels))
    for at in range(0, geo.out[0], step):
        yield slice(at, min(at + step, geo.out[0]))


def input_sums(geo: cna.Geometry, x: Array, channels: int) -> Array:
    """Σx under the kernel for every pixel, padding included (board notes A.8).

    Direct: one sum over all channels, [pixels, 1].  Depthwise: per channel.
    """
    rows = slice(0, geo.out[0])
    wide = x.astype(np.float64) if geo.depthwise else x.sum(axis=2, keepdims=True, dtype=np.float64)
    out = np.zeros((*geo.out, wide.shape[2]))
    for _, y0, x0 in _taps(geo):
        out += _under_tap(wide, geo, y0, x0, rows)
    flat: Array = out.reshape(geo.pixels, -1)
    if geo.depthwise and flat.shape[1] < channels:
        flat = np.pad(flat, ((0, 0), (0, channels - flat.shape[1])))
    return flat[:, :channels]


def _peak(a: Array) -> float:
    return float(np.abs(a).max(initial=0))


def _direct_int(geo: cna.Geometry, x: Array, w: Array) -> Array:
    """[pixels, kernels] exact sums.

    Products go through a float matrix product in runs short enough that no partial sum can
    leave the integers that the float type holds (2**24 or 2**53).
    """
    dtype = x.dtype
    exact = 2.0**24 if dtype == np.float32 else 2.0**53
    peak = max(_peak(x), 1.0) * max(float(w.max(initial=0)), -float(w.min(initial=0)), 1.0)
    most = max(1, int(exact // peak))
    out = np.zeros((geo.pixels, geo.kernels), dtype)
    wide: Array | None = None  # float64 accumulator, once the float type is full
    used = 0
    rows = slice(0, geo.out[0])
    for tap, y0, x0 in _taps(geo):
        seen = _under_tap(x, geo, y0, x0, rows).reshape(geo.pixels, geo.channels)
        for c in range(0, geo.channels, most):
            n = min(most, geo.channels - c)
            if used + n > most and used:
                wide = out.astype(np.float64) if wide is None else wide + out
                out[...] = 0
                used = 0
            part = seen[:, c : c + n] @ w[tap, :, c : c + n].astype(dtype).T
            out = part if not used else np.add(out, part, out=out)
            used += n
    return out if wide is None else wide + out


def _direct_blas(geo: cna.Geometry, x: Array, w: Array) -> Array:
    """[pixels, kernels] fp32 in whatever order the matrix library takes: a fast policy."""
    out = np.zeros((geo.pixels, geo.kernels), np.float32)
    rows = slice(0, geo.out[0])
    for tap, y0, x0 in _taps(geo):
        seen = _under_tap(x, geo, y0, x0, rows).reshape(geo.pixels, geo.channels)
        out += seen @ w[tap].astype(np.float32).T
    return out


def _direct_float(ctx: Context, geo: cna.Geometry, x: Array, w: Array) -> Array:
    """[pixels, kernels] fp32 by the group rule (board notes A.7)."""
    width = chip.CHANNEL_GROUP[geo.precision]
    half = geo.precision is Precision.FP16
    spanned = geo.pixels >= PROOF_PIXELS
    groups = [
        numerics.rows_of(np.ascontiguousarray(x[:, :, c : c + width], np.float64), spanned)
        for c in range(0, geo.channels, width)
    ]
    order = [(c, t) for c in range(len(groups)) for t in _taps(geo)]
    if ctx.policy.group_order == "tap_major":
        order = [(c, t) for t in _taps(geo) for c in range(len(groups))]
    out = np.zeros((geo.pixels, geo.kernels), np.float32)
    for c, (tap, y0, x0) in order:
        kernels = w[tap, :, c * width : (c + 1) * width].astype(np.float64)
        weights = numerics.rows_of(kernels, spanned)
        for rows in _row_chunks(geo, geo.kernels):
            first, last = rows.start * geo.out[1], rows.stop * geo.out[1]
            pixels = _rows_under_tap(groups[c], geo, y0, x0, rows)
            numerics.add_exact_groups(out[first:last], pixels, weights, half=half)
    return out


def _rows_under_tap(x: Rows, geo: cna.Geometry, y0: int, x0: int, rows: slice) -> Rows:
    """`_under_tap` of a channel group, one row a pixel."""
    values, *known = (None if a is None else _under_tap(a, geo, y0, x0, rows) for a in x)
    assert values is not None
    norms, spans = (None if a is None else a.reshape(-1) for a in known)
    assert norms is not None
    return Rows(values.reshape(norms.size, -1), norms, spans)


def _depthwise(geo: cna.Geometry, x: Array, w: Array) -> Array:
    """[pixels, channels]: one filter per channel; every sum is in tap order.

    Integers stay exact: 961 taps of int8 are below 2**24.  Products of fp16 are exact in fp32.
    """
    out = np.empty((*geo.out, geo.channels), x.dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        for rows in _row_chunks(geo, geo.channels):
            acc = out[rows]
            acc[...] = 0
            product = np.empty_like(acc)
            for tap, y0, x0 in _taps(geo):
                acc += np.multiply(_under_tap(x, geo, y0, x0, rows), w[tap], out=product)
    return out.reshape(geo.pixels, geo.channels)
