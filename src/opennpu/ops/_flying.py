"""The flying program: memory → DPU → memory, without the MAC array.

Element-wise tasks treat cubes as a flat run of atoms; per-channel tasks walk surfaces.
Register values: streams that pass on a board (allbilly/rk3588, rockchip-npu-notes).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from opennpu.hw.regs import Register
from opennpu.hw.rk3588 import chip, dpu, dpu_rdma, global_
from opennpu.hw.rk3588.common import Algo, Precision
from opennpu.hw.rk3588.pc import DPU_DONE
from opennpu.ops._conv import (
    EDATA_SIZE,
    FRACTION_BITS,
    PER_PIXEL,
    fixed_point,
    float_bits,
    out_cvt,
)
from opennpu.ops.base import Operand, Site
from opennpu.program import At, Cost, Emitted, Ref, Task

Array = npt.NDArray[Any]

START = global_.OPERATION_ENABLE(dpu_op_en=1, dpu_rdma_op_en=1).word
LINE_ATOMS = 4096  # of a flat run; boards ran up to 8175 in one line
USE_ALU, USE_MUL = 1, 4  # operands in a per-channel stream
BS_OPERAND_BYTES, BN_OPERAND_BYTES = 4, 2  # per channel: an fp32 summand, an fp16 factor
MAX_LINES = dpu.DATA_CUBE_HEIGHT.fields["height"].max
PER_CHANNEL = 0  # EW and ERDMA data modes: an operand for every channel
ALGOS = {
    "Add": Algo.ADD,
    "Sub": Algo.MINUS,
    "Div": Algo.DIV,
    "Min": Algo.MIN,
    "Max": Algo.MAX,
    "Mul": Algo.MAX,  # of no meaning there
}
MINUS_ONE = int(np.float16(-1).view(np.uint16))


@dataclass(frozen=True, slots=True)
class Stages:
    """What the DPU stages do, as the registers that are not their bypass values."""

    registers: tuple[Register, ...] = ()
    bs_operands: Ref | None = None  # per channel, through BRDMA
    bs_use: int = 0
    bn_operands: Ref | None = None  # per channel, through NRDMA
    bn_use: int = 0
    mul_shift: int = 0  # of BS, for DATA_FORMAT
    other_mode: int = PER_PIXEL  # of the piece's second operand, where EW reads it
    other_factors: bool = False  # BN reads it instead: fp16 factors per channel
    narrow: bool = False  # EW works on fp16: division

    def get(self, default: Register) -> Register:
        for r in self.registers:
            if type(r) is type(default):
                return r
        return default


@dataclass(frozen=True, slots=True)
class Piece:
    """One task: a cube of width x height pixels and some surfaces, at the same place everywhere."""

    main: Ref
    other: Ref | None
    out: Ref
    width: int
    height: int
    surfaces: int
    plane_atoms: int  # distance between surfaces
    channel: int = 0  # first channel, for per-channel operands
    in_plane_atoms: int | None = None  # of ``main``, where it is not ``plane_atoms``
    in_line_atoms: int = 0  # from one read line to the next, where it is not ``width``
    out_line_atoms: int = 0  # from one written line to the next, where it is not ``width``


def flat_pieces(a: Operand, b: Operand | None, y: Operand) -> list[Piece]:
    """Atoms of whole images in order; all operands have at least the output's surfaces."""
    images, per_image = y.nhwc[0], y.surfaces * y.plane_atoms
    if all(o.surfaces == y.surfaces for o in (a, b) if o):
        images, per_image = 1, images * per_image
    pieces = []
    for n in range(images):
        for done, width, height in _runs(per_image):
            skip = done * chip.ATOM_BYTES
            pieces.append(
                Piece(
                    a.at(n) + skip,
                    b.at(n) + skip if b else None,
                    y.at(n) + skip,
                    width,
                    height,
                    1,
                    width * height,
                )
            )
    return pieces


def surface_pieces(x: Operand, y: Operand, other: Operand | None = None) -> list[Piece]:
    """Surfaces of every image, so that operands can differ by channel.

    ``other``: a cube with one pixel per image, or one for all images.

    As many whole ones as a cube may have channels; one by one where a plane must be cut.
    """
    n, h, w, _ = y.nhwc
    c2 = chip.elements_per_atom(y.precision)
    runs, most = [(0, w, h)], chip.MAX_CUBE_PX // c2
    if max(w, h) > chip.MAX_CUBE_PX:
        runs, most = list(_runs(h * w)), 1
    return [
        Piece(
            x.at(i, s * c2) + skip * chip.ATOM_BYTES,
            other.at(i if other.nhwc[0] > 1 else 0, s * c2) if other else None,
            y.at(i, s * c2) + skip * chip.ATOM_BYTES,
            width,
            height,
            min(most, y.surfaces - s),
            y.plane_atoms,
            s * c2,
        )
        for i in range(n)
        for s in range(0, y.surfaces, most)
        for skip, width, height in runs
    ]


def _runs(atoms: int) -> Iterator[tuple[int, int, int]]:
    """A flat run of atoms as cubes of one surface: (atoms before it, width, height)."""
    done = 0
    while done < atoms:
        width = min(LINE_ATOMS, atoms - done)
        height = min((atoms - done) // width, MAX_LINES)
        yield done, width, height
        done += width * height


def tasks(site: Site, stages: Stages, pieces: list[Piece], y: Operand) -> Iterator[Task]:
    """One task per piece."""
    for piece in pieces:
        atoms = piece.width * piece.height * piece.surfaces
        reads = atoms * (2 if piece.other else 1) * chip.ATOM_BYTES
        yield Task(
            site.node.name,
            tuple(words(site.precision, stages, piece, y)),
            START,
            DPU_DONE,
            Cost(read_bytes=reads, write_bytes=atoms * chip.ATOM_BYTES),
        )


def words(p: Precision, stages: Stages, piece: Piece, y: Operand) -> Iterator[Emitted]:
    """Register writes of one flying task."""
    pointer = dict(pointer_pp_en=1, executer_pp_en=1, pointer_pp_mode=1)
    channels = piece.surfaces * chip.elements_per_atom(p)
    float_mode = p is Precision.FP16
    get = stages.get
    yield dpu.S_POINTER(**pointer)
    yield dpu_rdma.RDMA_S_POINTER(**pointer)
    yield dpu.FEATURE_MODE_CFG(flying_mode=1, output_mode=2, burst_len=15)
    yield dpu.DATA_FORMAT(
        proc_precision=p, in_precision=p, out_precision=p, bs_mul_shift_value_neg=stages.mul_shift
    )
    yield dpu.OFFSET_PEND()
    yield At(dpu.DST_BASE_ADDR, piece.out)
    yield dpu.DST_SURF_STRIDE(dst_surf_stride=piece.plane_atoms)
    yield dpu.DATA_CUBE_WIDTH(width=piece.width)
    yield dpu.DATA_CUBE_HEIGHT(height=piece.height)
    gap = max(0, piece.out_line_atoms - piece.width)
    yield dpu.DATA_CUBE_NOTCH_ADDR(notch_addr_0=gap, notch_addr_1=gap)
    yield dpu.DATA_CUBE_CHANNEL(channel=channels, orig_channel=channels)
    yield get(dpu.BS_CFG(bs_bypass=1, bs_alu_bypass=1, bs_mul_bypass=1, bs_relu_bypass=1))
    yield get(dpu.BS_ALU_CFG())
    yield get(dpu.BS_MUL_CFG())
    yield get(dpu.BS_RELUX_CMP_VALUE())
    yield dpu.BS_OW_CFG(od_bypass=1)
    yield dpu.BS_OW_OP()
    yield dpu.WDMA_SIZE_0(channel_wdma=channels)
    yield dpu.WDMA_SIZE_1(width_wdma=piece.width, height_wdma=piece.height)
    yield get(dpu.BN_CFG(bn_bypass=1, bn_alu_bypass=1, bn_mul_bypass=1, bn_relu_bypass=1))
    yield get(dpu.BN_ALU_CFG())
    yield get(dpu.BN_MUL_CFG())
    yield get(dpu.BN_RELUX_CMP_VALUE())
    yield get(
        dpu.EW_CFG(
            ew_bypass=1, ew_op_bypass=1, ew_lut_bypass=1, ew_op_cvt_bypass=1, ew_relu_bypass=1
        )
    )
    yield get(dpu.EW_CVT_OFFSET_VALUE())
    yield get(dpu.EW_CVT_SCALE_VALUE(ew_op_cvt_scale=1))
    yield get(dpu.EW_RELUX_CMP_VALUE())
    for default in out_cvt(float_mode, y):
        yield get(default) if isinstance(default, Register) else default
    yield dpu.SURFACE_ADD(surf_add=piece.plane_atoms)
    yield dpu.UNDOC_40C4()
    yield dpu_rdma.RDMA_DATA_CUBE_WIDTH(width=piece.width)
    yield dpu_rdma.RDMA_DATA_CUBE_HEIGHT(height=piece.height)
    yield dpu_rdma.RDMA_DATA_CUBE_CHANNEL(channel=channels)
    yield At(dpu_rdma.RDMA_SRC_BASE_ADDR, piece.main)
    yield dpu_rdma.RDMA_BRDMA_CFG(brdma_data_use=stages.bs_use)
    if stages.bs_operands:
        yield At(dpu_rdma.RDMA_BS_BASE_ADDR, stages.bs_operands + piece.channel * BS_OPERAND_BYTES)
    else:
        yield dpu_rdma.RDMA_BS_BASE_ADDR()
    yield dpu_rdma.RDMA_NRDMA_CFG(nrdma_data_use=stages.bn_use)
    factors = piece.other if stages.other_factors else None
    if factors:
        yield At(dpu_rdma.RDMA_BN_BASE_ADDR, factors)
    elif stages.bn_operands:
        yield At(dpu_rdma.RDMA_BN_BASE_ADDR, stages.bn_operands + piece.channel * BN_OPERAND_BYTES)
    else:
        yield dpu_rdma.RDMA_BN_BASE_ADDR()
    if piece.other and not factors:
        mode, step = stages.other_mode, piece.plane_atoms
        yield dpu_rdma.RDMA_ERDMA_CFG(erdma_data_mode=mode, erdma_data_size=EDATA_SIZE[p])
        yield At(dpu_rdma.RDMA_EW_BASE_ADDR, piece.other)
        yield dpu_rdma.RDMA_EW_SURF_STRIDE(ew_surf_stride=step if mode == PER_PIXEL else 1)
    else:
        yield dpu_rdma.RDMA_ERDMA_CFG(erdma_disable=1)
        yield dpu_rdma.RDMA_EW_BASE_ADDR()
        yield dpu_rdma.RDMA_EW_SURF_STRIDE()
    yield dpu_rdma.RDMA_FEATURE_MODE_CFG(
        flying_mode=1,
        mrdma_fp16tofp32_en=float_mode and not stages.narrow,
        proc_precision=p,
        burst_len=15,
        in_precision=p,
    )
    line = max(piece.in_line_atoms, piece.width)
    yield dpu_rdma.RDMA_SRC_DMA_CFG(line_notch_addr=line - piece.width)
    walked = (piece.height - 1) * line + piece.width  # when a surface has been read
    skip = 0 if piece.in_plane_atoms is None else piece.in_plane_atoms - walked
    yield dpu_rdma.RDMA_SURF_NOTCH(surf_notch_addr=skip)
    yield dpu_rdma.RDMA_PAD_CFG()
    yield dpu_rdma.RDMA_WEIGHT(m_weight=1, b_weight=1, n_weight=1, e_weight=1)
    yield dpu_rdma.RDMA_EW_SURF_NOTCH()


# -- stages ----------------------------------------------------------------------------------


def _relu(low: float, high: float, step: float) -> tuple[bool, int]:
    """(ReLU wanted, EW_RELUX bits or 0); ``step``: one unit of the pipeline, 0 for floats."""
    if low == -math.inf:
        return False, 0
    if high == math.inf:
        return True, 0
    if not step:
        return True, float_bits(high)
    cap = max(1, round(high / step))
    return True, cap if cap < 1 << 31 else 0  # the pipeline saturates below it


def binary(
    site: Site,
    kind: str,
    a: Operand,
    b: Operand,
    y: Operand,
    low: float,
    high: float,
    swapped: bool = False,
    per_channel: bool = False,
) -> Stages:
    """Stages for a + b, a - b, a * b, a / b, min and max of two cubes.

    swapped: b - a instead.  per_channel: ``b`` has one pixel.
    """
    float_mode = site.precision is Precision.FP16
    mul, mode = kind == "Mul", PER_CHANNEL if per_channel else PER_PIXEL
    step = 0.0 if float_mode else y.scale / (1 << FRACTION_BITS)
    if mul and not float_mode:
        step = a.scale * b.scale
    relu, relux = _relu(low, high, step)
    if float_mode and mul and per_channel:
        return Stages(
            (
                dpu.BN_CFG(bn_alu_bypass=1, bn_relu_bypass=not relu, bn_relux_en=bool(relux)),
                dpu.BN_MUL_CFG(bn_mul_src=1),
                dpu.BN_RELUX_CMP_VALUE(bn_relux_cmp_dat=relux),
            ),
            bn_use=USE_MUL,
            other_factors=True,
        )
    negate = swapped and kind == "Sub"
    ew = dpu.EW_CFG(
        ew_op_type=mul,
        ew_op_src=1,
        ew_lut_bypass=1,
        ew_op_cvt_bypass=float_mode and kind in ("Mul", "Div"),
        ew_relu_bypass=not relu,
        ew_relux_en=bool(relux),
        ew_alu_algo=ALGOS[kind] if (float_mode and not negate) or kind != "Sub" else Algo.ADD,
        ew_equal_en=not float_mode and kind in ("Min", "Max"),
        edata_size=EDATA_SIZE[site.precision],
        ew_data_mode=mode,
        ew_cvt_type=0 if float_mode else 1,  # int8 operands: subtract the zero point, then scale
    )
    cap = dpu.EW_RELUX_CMP_VALUE(ew_relux_cmp_dat=relux)
    if float_mode and kind == "Div":
        return Stages((ew, cap, dpu.OUT_CVT_SCALE(out_cvt_scale=1)), other_mode=mode, narrow=True)
    if float_mode and negate:
        minus = (
            dpu.BS_CFG(bs_alu_bypass=1, bs_relu_bypass=1),
            dpu.BS_MUL_CFG(bs_mul_operand=MINUS_ONE),
        )
        return Stages((*minus, ew, cap), other_mode=mode)
    if float_mode:
        return Stages((ew, cap), other_mode=mode)
    less_zero = dpu.BS_ALU_CFG(bs_alu_operand=-a.zero_point & 0xFFFF_FFFF)
    if mul:
        scale, shift = fixed_point(site, a.scale * b.scale / y.scale, "an output scale ratio of")
        return Stages(
            (
                dpu.BS_CFG(bs_mul_bypass=1, bs_relu_bypass=1, bs_alu_algo=Algo.ADD),
                less_zero,
                ew,
                cap,
                dpu.EW_CVT_OFFSET_VALUE(ew_op_cvt_offset=-b.zero_point),
                dpu.OUT_CVT_SCALE(out_cvt_scale=scale),
                dpu.OUT_CVT_SHIFT(out_cvt_shift=shift),
            ),
            other_mode=mode,
        )
    ka, sa = fixed_point(site, a.scale / y.scale * 2**FRACTION_BITS, "a scale ratio of")
    kb, sb = fixed_point(site, b.scale / y.scale * 2**FRACTION_BITS, "a scale ratio of")
    if kind == "Sub":
        ka, kb = (-ka, kb) if swapped else (ka, -kb)
    return Stages(
        (
            dpu.BS_CFG(bs_relu_bypass=1, bs_alu_algo=Algo.ADD),
            less_zero,
            dpu.BS_MUL_CFG(bs_mul_shift_value=sa, bs_mul_operand=ka & 0xFFFF),
            ew,
            cap,
            dpu.EW_CVT_OFFSET_VALUE(ew_op_cvt_offset=-b.zero_point),
            dpu.EW_CVT_SCALE_VALUE(ew_op_cvt_scale=kb, ew_op_cvt_shift=sb),
        ),
        mul_shift=sa,
        other_mode=mode,
    )


def unary(site: Site, x: Operand, y: Operand, low: float, high: float) -> Stages:
    """Stages for clip(x, low, high), also between two int8 quantizations."""
    if site.precision is Precision.FP16:
        shifted = low not in (0.0, -math.inf)
        relu = low != -math.inf
        registers: list[Register] = []
        cap = high - low if shifted else high
        if relu:
            registers += [
                dpu.BS_CFG(
                    bs_alu_bypass=not shifted,
                    bs_mul_bypass=1,
                    bs_relux_en=high != math.inf,
                    bs_alu_algo=Algo.ADD if shifted else Algo.MAX,
                ),
                dpu.BS_ALU_CFG(bs_alu_operand=float_bits(-low) if shifted else 0),
                dpu.BS_RELUX_CMP_VALUE(bs_relux_cmp_dat=float_bits(cap) if high != math.inf else 0),
            ]
        if shifted:
            registers += [
                dpu.BN_CFG(bn_mul_bypass=1, bn_relu_bypass=1, bn_alu_algo=Algo.ADD),
                dpu.BN_ALU_CFG(bn_alu_operand=float_bits(low)),
            ]
        return Stages(tuple(registers))
    step = y.scale / (1 << FRACTION_BITS)
    k, s = fixed_point(site, x.scale / step, "a scale ratio of")
    codes_low = (-128 - y.zero_point) * y.scale
    codes_high = (127 - y.zero_point) * y.scale
    needed = low > codes_low + y.scale / 2 or high < codes_high - y.scale / 2
    relu, relux = _relu(low, high, step) if needed else (False, 0)
    return Stages(
        (
            dpu.BS_CFG(bs_relu_bypass=not relu, bs_relux_en=bool(relux), bs_alu_algo=Algo.ADD),
            dpu.BS_ALU_CFG(bs_alu_operand=-x.zero_point & 0xFFFF_FFFF),
            dpu.BS_MUL_CFG(bs_mul_shift_value=s, bs_mul_operand=k),
            dpu.BS_RELUX_CMP_VALUE(bs_relux_cmp_dat=relux),
        ),
        mul_shift=s,
    )


def below(high: float) -> Stages:
    """Stages for min(x, high) of fp16: high - relu(high - x), in fp32."""
    return Stages(
        (
            dpu.BS_CFG(bs_alu_algo=Algo.ADD),
            dpu.BS_ALU_CFG(bs_alu_operand=float_bits(-high)),
            dpu.BS_MUL_CFG(bs_mul_operand=MINUS_ONE),
            dpu.BN_CFG(bn_relu_bypass=1, bn_alu_algo=Algo.ADD),
            dpu.BN_ALU_CFG(bn_alu_operand=float_bits(high)),
            dpu.BN_MUL_CFG(bn_mul_operand=MINUS_ONE),
        )
    )


def copy(site: Site, x: Operand, y: Operand) -> Stages:
    """Stages that move codes unchanged, or from one int8 quantization to another."""
    if site.precision is Precision.INT8:
        if (x.scale, x.zero_point) != (y.scale, y.zero_point):
            return unary(site, x, y, -math.inf, math.inf)
        return Stages(
            (dpu.OUT_CVT_OFFSET(), dpu.OUT_CVT_SCALE(out_cvt_scale=1), dpu.OUT_CVT_SHIFT())
        )
    return Stages()


def affine(
    site: Site,
    y: Operand,
    mul: Array,
    add: Array,
    low: float,
    high: float,
    negate: bool = False,
) -> Stages:
    """Stages for clip(x * mul + add): ``mul`` and ``add`` are [C] real numbers.

    fp16: the sum is exact in fp32, ``mul`` is rounded to fp16.  Of the two, one must be trivial.
    negate: minus that, before the clip; ``mul`` is trivial.
    """
    room = y.surfaces * chip.elements_per_atom(site.precision)
    c = y.nhwc[3]
    full_mul, full_add = np.zeros(room), np.zeros(room)
    full_mul[:c], full_add[:c] = mul, add
    if site.precision is Precision.FP16:
        relu, relux = _relu(low, high, 0.0)
        if np.all(mul == 1):
            return Stages(
                (
                    dpu.BS_CFG(
                        bs_mul_bypass=not negate,
                        bs_alu_src=1,
                        bs_alu_algo=Algo.ADD,
                        bs_relu_bypass=not relu,
                        bs_relux_en=bool(relux),
                    ),
                    dpu.BS_MUL_CFG(bs_mul_operand=MINUS_ONE if negate else 0),
                    dpu.BS_RELUX_CMP_VALUE(bs_relux_cmp_dat=relux),
                ),
                bs_operands=site.place(full_add.astype("<f4").view(np.uint8)),
                bs_use=USE_ALU,
            )
        return Stages(
            (
                dpu.BN_CFG(bn_alu_bypass=1, bn_relu_bypass=not relu, bn_relux_en=bool(relux)),
                dpu.BN_MUL_CFG(bn_mul_src=1),
                dpu.BN_RELUX_CMP_VALUE(bn_relux_cmp_dat=relux),
            ),
            bn_operands=site.place(full_mul.astype("<f2").view(np.uint8)),
            bn_use=USE_MUL,
        )
    raise site.refuse("with a per-channel constant in int8 is not programmed yet")
