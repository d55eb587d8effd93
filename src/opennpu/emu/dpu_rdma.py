"""DPU_RDMA: the four operand streams of the DPU.

MRDMA main data in flying mode, BRDMA and NRDMA per-channel operands of BS and BN, ERDMA the
second operand of EW.  A pointer walk (peer notes 2.5): + one atom after each pixel,
+ LINE_NOTCH after each line but the last, + SURF_NOTCH after each surface.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from opennpu.emu import numerics
from opennpu.emu.context import Context
from opennpu.emu.core import Cube
from opennpu.emu.registers import Group
from opennpu.hw.rk3588 import chip, dpu_rdma
from opennpu.hw.rk3588.common import Precision

Array = npt.NDArray[Any]

UNIT = "DPU_RDMA"
ATOM = chip.ATOM_BYTES
USE_ALU, USE_CPEND, USE_MUL, USE_SHIFT = 1, 2, 4, 8  # bits of data_use; register notes C.4
PER_CHANNEL, PER_PIXEL = 0, 1  # ERDMA_DATA_MODE
TWO_OPERAND = 5  # COMB_USE of a convolution with an element-wise operand; board notes A.10
FLYING_TYPES = (
    Precision.INT4,
    Precision.INT8,
    Precision.INT16,
    Precision.INT32,
    Precision.FP16,
    Precision.BF16,
    Precision.FP32,
)
UNPOOLING = (
    "kernel_width",
    "kernel_height",
    "kernel_stride_width",
    "kernel_stride_height",
    "pooling_method",
)
SIZE_BYTES = {1: 1, 2: 2, 3: 4}  # ERDMA_DATA_SIZE, EDATA_SIZE


@dataclass(frozen=True, slots=True)
class ChannelOperands:
    """Per-channel operands, each [channels] or None when the stream does not hold it."""

    alu: Array | None = None
    cpend: Array | None = None
    mul: Array | None = None


def check(ctx: Context, g: Group, flying: bool) -> None:
    """Rules that hold whenever DPU_RDMA is started."""
    mode, dma = g.get(dpu_rdma.RDMA_FEATURE_MODE_CFG), g.get(dpu_rdma.RDMA_SRC_DMA_CFG)
    ctx.require(not dma.unpooling_en, "dpu_rdma.unpooling", UNIT, "has UNPOOLING_EN set")
    ctx.idle(UNIT, dma, "UNPOOLING_EN", *UNPOOLING)
    ctx.idle(UNIT, g.get(dpu_rdma.RDMA_PAD_CFG), "UNPOOLING_EN", "pad_left", "pad_top", "pad_value")
    ctx.require(
        bool(mode.flying_mode) == flying,
        "start.incomplete",
        UNIT,
        f"has flying_mode {mode.flying_mode}, the DPU has {int(flying)}",
    )
    if flying:
        ctx.require(
            not mode.mrdma_disable, "dpu.missing_operand", UNIT, "flies with MRDMA disabled"
        )
        ctx.require(
            not mode.comb_use & 1, "dpu_rdma.comb_use", UNIT, f"has COMB_USE {mode.comb_use}"
        )
        ctx.require(
            mode.comb_use in (0, 4),
            "dpu_rdma.streams",
            UNIT,
            f"flies with COMB_USE {mode.comb_use}",
        )
    else:
        ctx.require(
            bool(mode.mrdma_disable) or mode.comb_use != 0,
            "dpu_rdma.mrdma_trap",
            UNIT,
            "waits for main data that nothing feeds (MRDMA_DISABLE 0, FLYING_MODE 0)",
        )


def main_stream(ctx: Context, g: Group) -> Cube:
    """MRDMA in flying mode: the cube from memory."""
    mode = g.get(dpu_rdma.RDMA_FEATURE_MODE_CFG)
    p = mode.in_precision
    ctx.require(
        p in FLYING_TYPES,
        "dpu.precision",
        UNIT,
        f"reads precision {int(p)}",
    )
    lanes = chip.elements_per_atom(p)
    channels = g.get(dpu_rdma.RDMA_DATA_CUBE_CHANNEL).channel
    base = g.get(dpu_rdma.RDMA_SRC_BASE_ADDR).src_base_addr + ctx.dma_base
    atoms = _main_atoms(ctx, g, base, -(-channels // lanes), "main")
    values = numerics.elements(atoms, p)
    integer = p not in numerics.FLOATS
    wide = _to_pixels(values, np.float64 if integer else np.float32)
    return Cube(
        wide,
        integer,
        lanes,
        wide.shape[1],
        narrow=p is Precision.FP16 and not mode.mrdma_fp16tofp32_en,
    )


def crop(cube: Cube, channels: int) -> Cube:
    """The first ``channels`` channels: a last atom that is not filled."""
    return dataclasses.replace(cube, values=cube.values[:, :channels], real=channels)


def _to_pixels(x: Array, dtype: npt.DTypeLike) -> Array:
    """[surface, row, column, lane] -> [pixel, channel]."""
    s, h, w, lanes = x.shape
    out = np.empty((h, w, s, lanes), dtype)
    out[...] = x.transpose(1, 2, 0, 3)
    return out.reshape(h * w, s * lanes)


def _size(g: Group) -> tuple[int, int]:
    """(rows, columns) of the cube."""
    return (
        g.get(dpu_rdma.RDMA_DATA_CUBE_HEIGHT).height,
        g.get(dpu_rdma.RDMA_DATA_CUBE_WIDTH).width,
    )


def _main_atoms(ctx: Context, g: Group, base: int, surfaces: int, stream: str) -> Array:
    rows, cols = _size(g)
    line = cols + g.get(dpu_rdma.RDMA_SRC_DMA_CFG).line_notch_addr
    pitch = (rows - 1) * line + cols + g.get(dpu_rdma.RDMA_SURF_NOTCH).surf_notch_addr
    ctx.charge(UNIT, 0, surfaces * rows * cols)
    return ctx.space.gather(
        base, (surfaces, rows, cols), (pitch * ATOM, line * ATOM, ATOM), stream, UNIT
    )


def _ew_atoms(ctx: Context, g: Group, base: int, surfaces: int) -> Array:
    rows, cols = _size(g)
    line = cols + g.get(dpu_rdma.RDMA_DATA_CUBE_HEIGHT).ew_line_notch_addr
    pitch = (
        g.get(dpu_rdma.RDMA_EW_SURF_STRIDE).ew_surf_stride
        + g.get(dpu_rdma.RDMA_EW_SURF_NOTCH).ew_surf_notch
    )
    ctx.charge(UNIT, 0, surfaces * rows * cols)
    return ctx.space.gather(
        base, (surfaces, rows, cols), (pitch * ATOM, line * ATOM, ATOM), "ew", UNIT
    )


def bs_operands(ctx: Context, g: Group, channels: int, integer: bool) -> ChannelOperands:
    """BRDMA: what BRDMA_DATA_USE says."""
    use = g.get(dpu_rdma.RDMA_BRDMA_CFG).brdma_data_use
    base = g.get(dpu_rdma.RDMA_BS_BASE_ADDR).bs_base_addr
    return _channel_operands(ctx, "BS", use, base, channels, integer)


def bn_operands(ctx: Context, g: Group, channels: int, integer: bool) -> ChannelOperands:
    """NRDMA: what NRDMA_DATA_USE says."""
    use = g.get(dpu_rdma.RDMA_NRDMA_CFG).nrdma_data_use
    base = g.get(dpu_rdma.RDMA_BN_BASE_ADDR).bn_base_addr
    return _channel_operands(ctx, "BN", use, base, channels, integer)


def _channel_operands(
    ctx: Context, stream: str, use: int, base: int, channels: int, integer: bool
) -> ChannelOperands:
    """Blocks of 8 channels: ALU 4 bytes each, then CPEND 2, then MUL 2 (board notes A.9).

    A stream of one kind is packed.  7 = 64 bytes per 8 channels and 1 = packed int32 are
    MEASURED, 4 = packed fp16 is board-run (register notes C.9); other mixes leave their parts
    out of the block, as on the RV1106 (C.4): GUESSED.  Shifts in a stream are refused.
    """
    ctx.require(
        not use & USE_SHIFT and not (stream == "BN" and use & USE_CPEND),
        "dpu_rdma.operands",
        UNIT,
        f"has data_use {use} for {stream}",
    )
    if not use:
        return ChannelOperands()
    block = ctx.policy.requant_block
    widths = [(USE_ALU, 4), (USE_CPEND, 2), (USE_MUL, 2)]
    per = sum(n for bit, n in widths if use & bit)
    whole = -(-channels // block) * block if use & (use - 1) else channels
    raw = ctx.space.read(base + ctx.dma_base, whole * per, "bias", UNIT)
    step = block if use & (use - 1) else whole
    blocks = raw.reshape(-1, step * per)
    types: dict[int, npt.DTypeLike] = {
        USE_ALU: "<i4" if integer else "<f4",
        USE_CPEND: "<i2",
        USE_MUL: "<i2" if integer else "<f2",
    }
    found: dict[int, Array] = {}
    at = 0
    for bit, n in widths:
        if use & bit:
            part = np.ascontiguousarray(blocks[:, at : at + n * step]).view(types[bit])
            wide = part.reshape(-1)[:channels].astype(np.float64 if integer else np.float32)
            found[bit] = wide
            at += n * step
    return ChannelOperands(found.get(USE_ALU), found.get(USE_CPEND), found.get(USE_MUL))


def check_precision(ctx: Context, g: Group, proc: Precision, incoming: Precision | None) -> None:
    """IN_PRECISION and PROC_PRECISION of DPU_RDMA, where it feeds main data or EW."""
    mode = g.get(dpu_rdma.RDMA_FEATURE_MODE_CFG)
    ctx.require(
        mode.proc_precision == proc and incoming in (None, mode.in_precision),
        "dpu_rdma.precision",
        UNIT,
        f"has precisions in {int(mode.in_precision)}, proc {int(mode.proc_precision)}, the DPU "
        f"has proc {int(proc)}",
    )


def operand_mode(g: Group) -> int:
    """ERDMA_DATA_MODE."""
    return g.get(dpu_rdma.RDMA_ERDMA_CFG).erdma_data_mode


def ew_operand(
    ctx: Context, g: Group, flying: bool, channels: int, proc: Precision
) -> tuple[Array, int]:
    """ERDMA: the EW operand as [pixels or 1, channels], raw element values; and its bytes each."""
    cfg, mode = g.get(dpu_rdma.RDMA_ERDMA_CFG), g.get(dpu_rdma.RDMA_FEATURE_MODE_CFG)
    ctx.require(not cfg.erdma_disable, "dpu.missing_operand", UNIT, "has ERDMA disabled")
    size = SIZE_BYTES.get(cfg.erdma_data_size, 0)
    ctx.require(
        size > 0 and not cfg.erdma_nonalign and not cfg.erdma_surf_mode,
        "dpu_rdma.streams",
        UNIT,
        f"has ERDMA_DATA_SIZE {cfg.erdma_data_size}, NONALIGN {cfg.erdma_nonalign}, "
        f"SURF_MODE {cfg.erdma_surf_mode}",
    )
    dtype = _operand_type(ctx, size, proc)
    base = g.get(dpu_rdma.RDMA_EW_BASE_ADDR).ew_base_addr + ctx.dma_base
    if cfg.erdma_data_mode == PER_CHANNEL:
        pitch = g.get(dpu_rdma.RDMA_EW_SURF_STRIDE).ew_surf_stride
        ctx.require(
            pitch == 1, "dpu_rdma.streams", UNIT, f"reads operands per channel {pitch} atoms apart"
        )
        raw = ctx.space.read(base, channels * dtype.itemsize, "ew", UNIT)
        return np.ascontiguousarray(raw).view(dtype).reshape(1, -1), size
    ctx.require(
        cfg.erdma_data_mode == PER_PIXEL,
        "dpu_rdma.streams",
        UNIT,
        f"has ERDMA_DATA_MODE {cfg.erdma_data_mode}",
    )
    surfaces = -(-channels * dtype.itemsize // ATOM)  # of garbage where it is not ``size``
    if flying:
        atoms = _ew_atoms(ctx, g, base, surfaces)
    else:
        ctx.require(
            mode.comb_use == TWO_OPERAND and not mode.mrdma_disable,
            "dpu_rdma.streams",
            UNIT,
            f"feeds a convolution with COMB_USE {mode.comb_use}, "
            f"MRDMA_DISABLE {mode.mrdma_disable}",
        )
        # even surfaces come from MRDMA, odd ones from ERDMA: board notes A.10
        main = g.get(dpu_rdma.RDMA_SRC_BASE_ADDR).src_base_addr + ctx.dma_base
        even = _main_atoms(ctx, g, main, -(-surfaces // 2), "ew")
        atoms = np.empty((surfaces, *even.shape[1:]), np.uint8)
        atoms[0::2] = even
        if surfaces > 1:
            atoms[1::2] = _ew_atoms(ctx, g, base, surfaces // 2)
    values: Array = atoms.view(dtype)
    wide = np.float32 if values.dtype.kind == "f" else np.float64
    return _to_pixels(values, wide)[:, :channels], size


def _operand_type(ctx: Context, size: int, proc: Precision) -> np.dtype[Any]:
    if proc not in numerics.FLOATS:
        return np.dtype(f"<i{size}")
    if size == 4:
        return np.dtype("<f4")
    ctx.require(
        size == 2, "ew.operand_size", UNIT, f"reads {size} byte operands in {proc.name} mode"
    )
    return numerics.STORAGE[Precision.BF16 if proc is Precision.BF16 else Precision.FP16]
