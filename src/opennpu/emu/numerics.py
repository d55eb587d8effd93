"""Arithmetic of the units: exact sums, roundings, saturation; and one switch per open question.

Integers travel as float64 that hold integers below 2**53, floats as float32.  Both are exact
where silicon is: see each function.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import ml_dtypes
import numpy as np
import numpy.typing as npt

from opennpu.hw.rk3588.common import Precision

Array = npt.NDArray[Any]
F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]

INT32_MIN, INT32_MAX = -(2.0**31), 2.0**31 - 1


@dataclass(frozen=True)
class Policy:
    """Every semantic that sources leave open, with its readings.  Defaults: reference/README.md."""

    fp16_accumulate: Literal["group32", "blas"] = "group32"
    """How float products are summed.

    group32: each channel group (32; tf32 16) of one tap is summed exactly and rounded once to
    fp32, groups are added in order in fp32.  MEASURED for fp16 1x1 (board notes A.7, 130 M
    elements); GUESSED for bf16, tf32 and several taps.  blas: fp32 matrix product, any order.
    """

    group_order: Literal["memory", "tap_major"] = "memory"
    """Order of the groups.  memory: channel group, ky, kx, as the weights lie.  tap_major: ky,
    kx, channel group.  GUESSED (board notes A.7: unmeasured for kernels above 1x1)."""

    int_accumulator: Literal["saturate", "wrap"] = "saturate"
    """What leaves CORE past 32 bits.  int16 saturates: MEASURED (A.7); int8 is unmeasured."""

    clip_truncate: Literal["first", "last"] = "first"
    """Where CLIP_TRUNCATE shifts: before bias and CPEND, or after CPEND.  GUESSED (README).

    Mesa's words, which boards run, are TFLite's result with ``last`` only (tests/teflon)."""

    int8_pad: Literal["lanes", "low_byte"] = "lanes"
    """PAD_CON1 for int8.  lanes: in each 64 channels the odd ones of the first 32 read byte 1,
    all others byte 0.  MEASURED (A.8: the low byte alone fails 227 of 4,096 silicon bytes)."""

    group_rows: Literal["width", "stride"] = "width"
    """Rows inside a group of four lines.  width: W atoms apart.  stride: a quarter of LINE_STRIDE.
    GUESSED: all producers write LINE_STRIDE = 4 * W (register notes B.5, I-1)."""

    padded_channels: Literal["counted", "masked"] = "counted"
    """Channels past DATAIN_CHANNEL_REAL.  counted: they take part in products and sums of inputs.
    masked: they are 0.  GUESSED: weights of producers cancel them (register notes B.4, I-7)."""

    bn_order: Literal["mul_alu", "alu_mul"] = "mul_alu"
    """Order inside BN.  mul_alu: the multiplier comes first, the addend is in its output domain.
    MEASURED for the flying LUT program (A.11); field order and NVDLA say alu_mul."""

    out_cvt_offset: Literal["after", "before"] = "after"
    """OUT_CVT_OFFSET on integers.  after: added to the rounded value, MEASURED on RK3588 (A.9).
    before: shifted up and added before rounding, RV1106 (register notes C.6)."""

    out_cvt_add_first: Literal["ignored", "honoured"] = "ignored"
    """CVT_TYPE = 1 in the integer output converter with OFFSET != 0.  Unmeasured (A.9)."""

    stage_rounding: Literal["even", "away"] = "even"
    """Rounding of the right shifts in BS, BN and EW.  even: MEASURED for BS (A.9)."""

    ew_divide: Literal["exact"] = "exact"
    """exact: the correctly rounded quotient.  Silicon is up to 0.35 % off (A.10), how is open."""

    lut_interpolation: Literal["floor", "rounded", "nearest"] = "floor"
    """floor: A.11, reproduces board numbers.  rounded: NVDLA.  nearest: register notes I-9."""

    lut_zero_code: Literal["spike", "zero"] = "spike"
    """A code of 0 after the offset decodes as 2**17.  MEASURED numbers, our rule (A.11)."""

    average_ties: Literal["odd_toward_zero", "even", "away"] = "odd_toward_zero"
    """Exact halves in integer average pooling with exact reciprocals.  A.12: half away, but an
    odd quotient goes toward zero."""

    average_float: Literal["once", "twice"] = "once"
    """fp16 average.  once: sum * rw * rh, one rounding (A.12).  twice: fp17 after each (NVDLA)."""

    pool_padding: Literal["ignored", "compared"] = "ignored"
    """Padding elements of max and min pooling.  ignored: NVDLA.  compared: PADDING_VALUE takes
    part, which streams set to the smallest value.  Open (register notes D.3, I-12)."""

    requant_block: Literal[8, 4] = 8
    """Channels per block of per-channel operands.  8: RK3588 (A.9).  4: RV1106."""

    task_dma_base: Literal["ignored", "added"] = "ignored"
    """PC TASK_DMA_BASE_ADDR.  ignored: MEASURED don't-care (A.0).  added: TRM."""

    poison: int = 0xA5
    """Byte that stands for what a board writes as garbage."""

    strict: bool = True
    """False: reproduce what silicon does with broken programs.  Ands with `Machine(strict=)`."""

    max_macs: int = 1 << 38
    """MACs that one start may ask for: a bound, so that no program hangs the emulator."""

    max_bytes: int = 1 << 33
    """Bytes that one start may move."""

    max_task_bytes: int = 1 << 30
    """Bytes that one unit may move for one task: bounds the emulator's memory."""

    max_words: int = 1 << 23
    """Command words that one start may fetch."""


# -- element types ---------------------------------------------------------------------------

STORAGE: dict[Precision, np.dtype[Any]] = {
    Precision.INT8: np.dtype(np.int8),
    Precision.INT16: np.dtype("<i2"),
    Precision.FP16: np.dtype("<f2"),
    Precision.BF16: np.dtype(ml_dtypes.bfloat16),
    Precision.INT32: np.dtype("<i4"),
    Precision.FP32: np.dtype("<f4"),
    Precision.TF32: np.dtype("<f4"),
    Precision.INT4: np.dtype(np.uint8),  # two a byte
}
FLOATS = frozenset({Precision.FP16, Precision.BF16, Precision.TF32, Precision.FP32})


def elements(raw: Array, precision: Precision) -> Array:
    """Bytes [..., n] -> elements [..., n / size]; int4 low nibble first, tf32 truncated."""
    if precision is Precision.INT4:
        both = np.stack([raw & 15, raw >> 4], axis=-1).reshape(*raw.shape[:-1], -1)
        return (both.astype(np.int8) ^ 8) - 8
    out: Array = raw.view(STORAGE[precision])
    if precision is Precision.TF32:  # the MAC drops 13 mantissa bits; board notes A.2
        bits = np.ascontiguousarray(out).view(np.uint32) & np.uint32(0xFFFFE000)
        return bits.view(np.float32)
    return out


def fp17(code: int) -> float:
    """Value of a 1-6-10 float with bias 31: the PPU's reciprocals (register notes D.3)."""
    sign, exponent, mantissa = code >> 16 & 1, code >> 10 & 63, code & 1023
    value = mantissa / 1024 * 2.0**-30
    if exponent:
        value = (1 + mantissa / 1024) * 2.0 ** (exponent - 31)
    return -value if sign else value


def float32_of_bits(word: int) -> np.float32:
    """The fp32 whose bits are ``word``."""
    return np.uint32(word & 0xFFFF_FFFF).view(np.float32)


def float16_of_bits(word: int) -> np.float32:
    """The fp16 whose bits are the low half of ``word``, widened."""
    return np.float32(np.uint16(word & 0xFFFF).view(np.float16))


def signed(value: int, width: int) -> int:
    """The low ``width`` bits as two's complement."""
    value &= (1 << width) - 1
    return value - (1 << width) if value >> (width - 1) else value


# -- integers in float64 ---------------------------------------------------------------------


def round_half_away(v: F64) -> F64:
    """To the nearest integer, ties away from zero.  Exact while v has at most 52 bits."""
    out: F64 = np.trunc(v + np.copysign(0.5, v))
    return out


def shift_right(v: F64, shift: int, rounding: str) -> F64:
    """round(v / 2**shift); ``rounding`` is even or away.  v: integers of at most 52 bits."""
    if shift == 0:
        return v
    scaled = v * 2.0**-shift
    out: F64 = np.rint(scaled, out=scaled) if rounding == "even" else round_half_away(scaled)
    return out


def saturate(v: F64, bits: int = 32) -> F64:
    """Clip integers to ``bits`` bits, two's complement, in place."""
    out: F64 = np.clip(v, -(2.0 ** (bits - 1)), 2.0 ** (bits - 1) - 1, out=v)
    return out


def wrap32(v: F64) -> F64:
    """The low 32 bits, two's complement."""
    out: F64 = v - np.floor((v + 2.0**31) / 2.0**32) * 2.0**32
    return out


def float_to_int(v: Array) -> F64:
    """Round to integer, ties to even, clip to int32; NaN counts as 0 (GUESSED)."""
    wide = np.rint(v.astype(np.float64))
    return saturate(np.nan_to_num(wide, nan=0.0, posinf=INT32_MAX, neginf=INT32_MIN))


# -- the float group rule --------------------------------------------------------------------

U64 = 2.0**-53
HALF_SCALE = 2.0**24  # every finite fp16 is a multiple of 2**-24
LIMB = 1 << 20  # splits fp16 * 2**24, below 2**40, in two


EXACT = 2.0**53 * (1 - 2.0**-40)  # what float64 holds, less the rounding of norms


def spans(a: F64, norms: F64) -> F64:
    """Of each row: ``norms`` over the largest power of two that divides all its elements.

    Where the product of two rows' spans is below `EXACT`, a float64 sum of their products is
    exact, whatever its order: all partial sums are multiples of one power of two, and
    none is greater than the product of the norms.  Infinite where that is not known.
    """
    top = float(np.abs(a).max(initial=0))
    if not math.isfinite(top):
        return np.full(norms.shape, np.inf)
    scale = 2.0 ** (61 - math.frexp(top)[1])
    scaled = a * scale
    whole = scaled.astype(np.int64)
    union = np.bitwise_or.reduce(whole, axis=-1)  # signs do not move the lowest bit
    step = np.maximum(union & -union, 1).astype(np.float64)
    lost = (whole != scaled).any(axis=-1)
    out: F64 = np.where(lost, np.inf, norms * scale / step)
    return out


BLOCK = (32, 256)
"""Rows and columns of the sums worked on at a time.  Temporaries stay in the cache, and 32 * 256
* 32 products are few enough that OpenBLAS does not wake its threads, which costs more than it
gives where cores are busy (MobileNetV2: 0.55 s instead of 2.6 s on two loaded cores)."""


class Rows(NamedTuple):
    """One operand of a product, row by row: [rows, k]."""

    values: F64
    norms: F64
    spans: F64 | None = None  # None: nobody looked; checking every sum is cheaper for few rows

    def part(self, at: int, n: int) -> Rows:
        spans = None if self.spans is None else self.spans[at : at + n]
        return Rows(self.values[at : at + n], self.norms[at : at + n], spans)


def rows_of(values: F64, spanned: bool) -> Rows:
    """Rows over the last axis, with what is to be known of them."""
    with np.errstate(over="ignore", invalid="ignore"):
        norms: F64 = np.sqrt(np.einsum("...c,...c->...", values, values))
    return Rows(values, norms, spans(values, norms) if spanned else None)


def add_exact_groups(out: F32, x: Rows, w: Rows, *, half: bool) -> None:
    """out += exact_group(x, w), in fp32, in blocks."""
    high, wide = BLOCK
    high = max(high, high * wide // max(1, min(wide, out.shape[1])))
    for p in range(0, out.shape[0], high):
        rows = x.part(p, high)
        for o in range(0, out.shape[1], wide):
            sums = exact_group(rows, w.part(o, wide), half=half)
            with np.errstate(over="ignore", invalid="ignore"):
                out[p : p + high, o : o + wide] += sums


def exact_group(x: Rows, w: Rows, *, half: bool) -> F32:
    """[P, k] x [O, k] -> fp32 [P, O]: each sum exact, then one rounding to nearest even.

    The product of two elements of at most 24 bits is exact in float64.  Where the rows' spans
    show that their sum is, too, there is nothing to do.  Else a float64 matrix product errs by at
    most k * 2**-53 * |x||w|, so where both ends of that interval round to the same fp32 the
    result is right; the few others are summed exactly.

    half: elements are fp16 (a faster exact path).
    """
    with np.errstate(over="ignore", invalid="ignore"):
        s: F64 = x.values @ w.values.T
        if x.spans is None or w.spans is None:
            return _checked(s, x, w, half)
        out = _single(s)
        (open_rows,) = np.nonzero(~(x.spans * w.spans.max() < EXACT))
        if open_rows.size:
            few = Rows(x.values[open_rows], x.norms[open_rows], x.spans[open_rows])
            out[open_rows] = _checked(s[open_rows], few, w, half)
    return out


def _checked(s: F64, x: Rows, w: Rows, half: bool) -> F32:
    """`exact_group` from the float64 product ``s``, of which each sum is looked at."""
    with np.errstate(over="ignore", invalid="ignore"):
        e = np.multiply.outer(x.norms * (2.02 * (x.values.shape[1] + 1) * U64), w.norms)
        low = _single(s - e)
        high = _single(np.add(s, e, out=e))
        doubtful = low != high
        if not doubtful.any():
            return low
        out = _single(s)
        out = np.where(doubtful, out, low)
        doubtful &= np.isfinite(s)
        if x.spans is not None and w.spans is not None:
            doubtful &= ~(np.multiply.outer(x.spans, w.spans) < EXACT)
    rows, cols = np.nonzero(doubtful)
    for at in range(0, rows.size, 1 << 15):
        r, c = rows[at : at + (1 << 15)], cols[at : at + (1 << 15)]
        a, b = x.values[r], w.values[c]
        out[r, c] = exact_half_sums(a, b) if half else exact_sums(a * b)
    return out


def _single(v: F64) -> F32:
    return v.astype(np.float32)


def exact_half_sums(x: F64, w: F64) -> F32:
    """Row sums of x * w, both [N, k] of finite fp16 values, k <= 2**20: exact, rounded once.

    Both operands times 2**24 are integers below 2**40; in limbs of 20 bits every partial sum
    fits int64, and the two halves of the total meet in a two-sum rounded to odd.
    """
    xi, wi = (x * HALF_SCALE).astype(np.int64), (w * HALF_SCALE).astype(np.int64)
    xh, wh = xi >> 20, wi >> 20
    xl, wl = xi & (LIMB - 1), wi & (LIMB - 1)
    top = np.einsum("nk,nk->n", xh, wh)
    mid = np.einsum("nk,nk->n", xh, wl) + np.einsum("nk,nk->n", xl, wh)
    low = np.einsum("nk,nk->n", xl, wl)
    mid += low >> 20
    low &= LIMB - 1
    top += mid >> 20
    mid &= LIMB - 1
    rest = (mid << 20) | low  # 0 .. 2**40 - 1
    total = round_to_odd_sum(top * 2.0**40, rest.astype(np.float64)) * 2.0**-48
    return total.astype(np.float32)


def exact_sums(p: F64) -> F32:
    """Row sums of [N, k] float64, exact, rounded once to fp32.  Slow: a Python loop."""
    high = np.array([math.fsum(r) for r in p.tolist()])
    rest = np.array([math.fsum([*r, -h]) for r, h in zip(p.tolist(), high.tolist(), strict=True)])
    with np.errstate(over="ignore"):
        return _odd(high, rest).astype(np.float32)


def round_to_odd_sum(a: F64, b: F64) -> F64:
    """a + b rounded to odd: a later rounding to 51 bits or fewer is as if there had been one."""
    s = a + b
    z = s - a
    return _odd(s, (a - (s - z)) + (b - z))


def _odd(s: F64, rest: F64) -> F64:
    """s, or where rest != 0 and s is even its neighbour on the side of rest."""
    bits = s.view(np.int64)
    step = np.where((rest > 0) == (s > 0), 1, -1)
    move = (rest != 0) & (bits & 1 == 0)
    return (bits + np.where(move, step, 0)).view(np.float64)
