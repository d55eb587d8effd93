"""PPU: average, max and min pooling (board notes A.12, register notes D).

The cube comes from memory or straight from the DPU (FLYING_MODE 0: TRM, register notes D.2).

Max and min ignore padding elements (NVDLA; reference/README.md).  Averages add PADDING_VALUE
for each padding element and always divide by the whole window.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from opennpu.emu import numerics, ppu_rdma
from opennpu.emu.context import Context
from opennpu.emu.registers import Group
from opennpu.hw.rk3588 import chip, ppu
from opennpu.hw.rk3588.common import PoolingMethod, Precision

Array = npt.NDArray[Any]

UNIT = "PPU"
ATOM = chip.ATOM_BYTES
PAD_BITS = 19  # width in which an int8 padding value is signed: streams write 0x7FF80 for -128
SOURCE_FORMATS = {Precision.INT8: (1, 2), Precision.FP16: (2,)}  # RDMA in_precision; A.12
ROW_ELEMENTS = 1 << 18  # output elements worked on at a time


@dataclass(frozen=True, slots=True)
class FromDpu:
    """What the DPU hands over: [pixels, channels] in its output type."""

    values: Array
    size: tuple[int, int]  # rows, columns
    precision: Precision
    flying: bool  # that DPU itself reads memory


def execute(ctx: Context, g: Group, source: Group | FromDpu) -> None:
    """Pool one cube.  ``source``: the registers of PPU_RDMA, or the DPU's output."""
    mode, fmt = g.get(ppu.OPERATION_MODE_CFG), g.get(ppu.DATA_FORMAT)
    p = fmt.proc_precision
    direct = isinstance(source, FromDpu)
    ctx.require(
        bool(mode.flying_mode) != direct
        and bool(fmt.dpu_flyin) == (isinstance(source, FromDpu) and source.flying),
        "ppu.source",
        UNIT,
        f"has FLYING_MODE {mode.flying_mode}, DPU_FLYIN {fmt.dpu_flyin} and is fed by the "
        f"{'DPU' if direct else 'PPU_RDMA'}",
    )
    ctx.require(not mode.index_en, "ppu.index", UNIT, "has INDEX_EN set")
    surf = g.get(ppu.DST_SURF_STRIDE).dst_surf_stride
    ctx.require(
        fmt.index_add == surf,
        "ppu.index_add",
        UNIT,
        f"has INDEX_ADD {fmt.index_add}, DST_SURF_STRIDE {surf}",
    )
    misc = g.get(ppu.MISC_CTRL)
    ctx.require(
        not misc.nonalign and not misc.mc_surf_out and not mode.use_cnt,
        "ppu.not_modelled",
        UNIT,
        f"has NONALIGN {misc.nonalign}, MC_SURF_OUT {misc.mc_surf_out}, USE_CNT {mode.use_cnt}",
    )
    ctx.idle(UNIT, misc, "NONALIGN", "surf_len")
    ctx.require(p in SOURCE_FORMATS, "ppu.type", UNIT, f"has precision {int(p)}")
    ctx.require(
        mode.pooling_method in (PoolingMethod.AVERAGE, PoolingMethod.MAX, PoolingMethod.MIN),
        "ppu.method",
        UNIT,
        f"has POOLING_METHOD {int(mode.pooling_method)}",
    )
    if isinstance(source, FromDpu):
        ctx.require(
            source.precision is p,
            "ppu.precision",
            UNIT,
            f"pools {p.name}, the DPU puts out {source.precision.name}",
        )
        comes = (*source.size, source.values.shape[1])
    else:
        form = ppu_rdma.source_format(source)
        ctx.require(
            form in SOURCE_FORMATS[p],
            "ppu.precision",
            UNIT,
            f"pools {p.name} with RDMA_DATA_FORMAT {form}",
        )
        comes = ppu_rdma.size(source)
    have = (
        g.get(ppu.DATA_CUBE_IN_HEIGHT).cube_in_height,
        g.get(ppu.DATA_CUBE_IN_WIDTH).cube_in_width,
        g.get(ppu.DATA_CUBE_IN_CHANNEL).cube_in_channel,
    )
    out_channels = g.get(ppu.DATA_CUBE_OUT_CHANNEL).cube_out_channel
    ctx.require(
        comes == have,
        "ppu.geometry",
        UNIT,
        f"takes rows, columns, channels {have}, the {'DPU' if direct else 'PPU_RDMA'} gives "
        f"{comes}",
    )
    ctx.require(
        have[2] == out_channels,
        "ppu.channels",
        UNIT,
        f"has {have[2]} channels in and {out_channels} out",
    )
    lanes = chip.elements_per_atom(p)
    if isinstance(source, FromDpu):
        _pool(ctx, g, _surfaces(source, numerics.STORAGE[p], lanes), p)
    else:
        _pool(ctx, g, numerics.elements(ppu_rdma.fetch(ctx, source, lanes), p), p)


def _surfaces(source: FromDpu, dtype: np.dtype[Any], lanes: int) -> Array:
    """The DPU's output as [surface, row, column, lane]."""
    rows, cols = source.size
    channels = source.values.shape[1]
    surfaces = -(-channels // lanes)
    out = np.zeros((rows * cols, surfaces * lanes), dtype)
    if source.values.dtype == dtype:  # else ppu.precision: all of the output is poison
        out[:, :channels] = source.values
    return out.reshape(rows, cols, surfaces, lanes).transpose(2, 0, 1, 3)


def _pool(ctx: Context, g: Group, x: Array, p: Precision) -> None:
    """x: [surface, row, column, lane]."""
    mode, k, pad = (
        g.get(ppu.OPERATION_MODE_CFG),
        g.get(ppu.POOLING_KERNEL_CFG),
        g.get(ppu.POOLING_PADDING_CFG),
    )
    rows = g.get(ppu.DATA_CUBE_OUT_HEIGHT).cube_out_height
    cols = g.get(ppu.DATA_CUBE_OUT_WIDTH).cube_out_width
    surfaces, height, width, lanes = x.shape
    need_h = (rows - 1) * k.kernel_stride_height + k.kernel_height
    need_w = (cols - 1) * k.kernel_stride_width + k.kernel_width
    ctx.require(
        need_h <= height + pad.pad_top + pad.pad_bottom
        and need_w <= width + pad.pad_left + pad.pad_right,
        "ppu.window",
        UNIT,
        f"reaches {need_h}x{need_w} px, cube and padding are "
        f"{height + pad.pad_top + pad.pad_bottom}x{width + pad.pad_left + pad.pad_right}",
    )
    full = (
        (height + pad.pad_top + pad.pad_bottom - k.kernel_height) // k.kernel_stride_height + 1,
        (width + pad.pad_left + pad.pad_right - k.kernel_width) // k.kernel_stride_width + 1,
    )
    ctx.require(
        (rows, cols) == full,
        "ppu.output_size",
        UNIT,
        f"has {rows}x{cols} outputs, its window and pads give {full[0]}x{full[1]}",
    )
    taps = k.kernel_height * k.kernel_width
    ctx.charge(UNIT, surfaces * rows * cols * taps, surfaces * rows * cols)
    ctx.charge(UNIT, 0, surfaces * need_h * need_w)
    ctx.mac_cycles += surfaces * max(rows * cols, height * width)
    method = mode.pooling_method
    dtype: npt.DTypeLike = np.float32 if method != PoolingMethod.AVERAGE else np.float64
    fill = _fill(ctx, g, p, method)
    out = np.empty((surfaces, rows, cols, lanes), numerics.STORAGE[p])
    top, left = pad.pad_top, pad.pad_left
    use_h, use_w = max(0, min(height, need_h - top)), max(0, min(width, need_w - left))
    step = max(1, ROW_ELEMENTS // max(1, need_h * need_w * lanes))
    for s in range(0, surfaces, step):
        part = x[s : s + step]
        padded = np.full((part.shape[0], need_h, need_w, lanes), fill, dtype)
        padded[:, top : top + use_h, left : left + use_w] = part[:, :use_h, :use_w]
        acc: Array | None = None
        for ky in range(k.kernel_height):
            for kx in range(k.kernel_width):
                seen = padded[
                    :,
                    ky : ky + (rows - 1) * k.kernel_stride_height + 1 : k.kernel_stride_height,
                    kx : kx + (cols - 1) * k.kernel_stride_width + 1 : k.kernel_stride_width,
                ]
                if acc is None:
                    acc = seen.copy()
                elif method == PoolingMethod.MAX:
                    np.maximum(acc, seen, out=acc)
                elif method == PoolingMethod.MIN:
                    np.minimum(acc, seen, out=acc)
                else:
                    acc += seen
        assert acc is not None
        if method == PoolingMethod.AVERAGE:
            acc = _average(ctx, g, acc, p)
        elif p is Precision.INT8:
            np.clip(acc, -128, 127, out=acc)
        with np.errstate(over="ignore"):
            out[s : s + step] = acc.astype(out.dtype)
    if ctx.garbage:
        out.view(np.uint8)[...] = ctx.policy.poison
    surf = g.get(ppu.DST_SURF_STRIDE).dst_surf_stride * ATOM
    line = (cols + mode.notch_addr) * ATOM
    ctx.space.scatter(
        g.get(ppu.DST_BASE_ADDR).dst_base_addr + ctx.dma_base,
        (surfaces, rows, cols),
        (surf, line, ATOM),
        out.view(np.uint8),
        "output",
        UNIT,
    )


def _fill(ctx: Context, g: Group, p: Precision, method: int) -> float:
    """What a padding element counts as."""
    if method != PoolingMethod.AVERAGE and ctx.policy.pool_padding == "ignored":
        return -np.inf if method == PoolingMethod.MAX else np.inf
    word = g.get(ppu.PADDING_VALUE_1_CFG).pad_value_0
    if p is Precision.FP16:
        return float(numerics.float16_of_bits(word))
    return float(numerics.signed(word, PAD_BITS))


def _average(ctx: Context, g: Group, total: Array, p: Precision) -> Array:
    """Window sums -> means by the two reciprocals."""
    rw, rh = (
        g.get(ppu.RECIP_KERNEL_WIDTH).recip_kernel_width,
        g.get(ppu.RECIP_KERNEL_HEIGHT).recip_kernel_height,
    )
    if p is Precision.FP16:
        with np.errstate(over="ignore", invalid="ignore"):
            if ctx.policy.average_float == "twice":
                once = _round_fp17(total * numerics.fp17(rw))
                return _round_fp17(once * numerics.fp17(rh))
            return total * (numerics.fp17(rw) * numerics.fp17(rh))
    exact = total * (float(rw) * float(rh))  # below 2**53: 16 bits of sum, 34 of reciprocals
    v = exact * 2.0**-32
    if ctx.policy.average_ties == "even":
        out = np.rint(v)
    else:
        out = numerics.round_half_away(v)
        if ctx.policy.average_ties == "odd_toward_zero":  # board notes A.12
            quotient = np.trunc(v)
            tie = (np.abs(v - quotient) == 0.5) & (quotient % 2 != 0)
            out = np.where(tie, quotient, out)
    return np.clip(out, -128, 127)


def _round_fp17(v: Array) -> Array:
    """To 11 significant bits, ties to even (the exponent range of fp17 is not limited here)."""
    mantissa, exponent = np.frexp(v)
    out: Array = np.ldexp(np.rint(np.ldexp(mantissa, 11)), exponent - 11)
    return out
