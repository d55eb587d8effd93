"""DPU: BS, BN and EW stages, output converter, write DMA.

Two pipelines, chosen by PROC_PRECISION: integers (exact here, saturated to 32 bits after each
stage) and floats (fp32, rounded after each operation; reference/README.md, GUESSED).  Order of
the stages and of ALU, CPEND, MUL in BS: register notes C.1, board notes A.9.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from opennpu.emu import core, dpu_rdma, lut, numerics
from opennpu.emu.context import Context
from opennpu.emu.core import Cube
from opennpu.emu.dpu_rdma import ChannelOperands
from opennpu.emu.registers import Group
from opennpu.hw.rk3588 import chip, dpu
from opennpu.hw.rk3588.common import Algo, ConvMode, Precision

Array = npt.NDArray[Any]

UNIT = "DPU"
ATOM = chip.ATOM_BYTES
TO_PPU, TO_MEMORY = 1, 2  # bits of OUTPUT_MODE
MAX_SURFACES = 8  # of a kernel group: SIZE_E has 3 bits
MAX_SHIFT = 63
ACCUMULATORS = 4  # that TP_ORG_EN takes at once behind a convolution
TRANSPOSE = 8  # pixels and channels of a block that TP_ORG_EN transposes
OUTPUTS = (
    Precision.INT8,
    Precision.INT16,
    Precision.FP16,
    Precision.INT32,
    Precision.FP32,
)
ONLY_OUTPUT = {  # of pipelines that have one; board notes A.1
    Precision.INT4: Precision.INT16,
    Precision.BF16: Precision.FP32,
    Precision.FP32: Precision.FP32,
}


@dataclass(frozen=True, slots=True)
class Stage:
    """BS or BN: one shape, two sets of registers."""

    name: str
    bypass: int
    alu_bypass: int
    mul_bypass: int
    prelu: int
    relu_bypass: int
    relux: int
    alu_src: int
    algo: int
    alu_word: int
    mul_src: int
    mul_word: int
    shift: int
    shift_negative: int
    shift_src: int
    relux_word: int
    alu_first: bool


def bs_stage(g: Group) -> Stage:
    """The BS registers."""
    c, m, f = g.get(dpu.BS_CFG), g.get(dpu.BS_MUL_CFG), g.get(dpu.DATA_FORMAT)
    return Stage(
        "BS",
        c.bs_bypass,
        c.bs_alu_bypass,
        c.bs_mul_bypass,
        c.bs_mul_prelu,
        c.bs_relu_bypass,
        c.bs_relux_en,
        c.bs_alu_src,
        c.bs_alu_algo,
        g.get(dpu.BS_ALU_CFG).bs_alu_operand,
        m.bs_mul_src,
        m.bs_mul_operand,
        m.bs_mul_shift_value,
        f.bs_mul_shift_value_neg,
        m.bs_truncate_src,
        g.get(dpu.BS_RELUX_CMP_VALUE).bs_relux_cmp_dat,
        True,
    )


def bn_stage(g: Group, alu_first: bool) -> Stage:
    """The BN registers."""
    c, m, f = g.get(dpu.BN_CFG), g.get(dpu.BN_MUL_CFG), g.get(dpu.DATA_FORMAT)
    return Stage(
        "BN",
        c.bn_bypass,
        c.bn_alu_bypass,
        c.bn_mul_bypass,
        c.bn_mul_prelu,
        c.bn_relu_bypass,
        c.bn_relux_en,
        c.bn_alu_src,
        c.bn_alu_algo,
        g.get(dpu.BN_ALU_CFG).bn_alu_operand,
        m.bn_mul_src,
        m.bn_mul_operand,
        m.bn_mul_shift_value,
        f.bn_mul_shift_value_neg,
        m.bn_truncate_src,
        g.get(dpu.BN_RELUX_CMP_VALUE).bn_relux_cmp_dat,
        alu_first,
    )


# -- the unit --------------------------------------------------------------------------------


def size(g: Group) -> tuple[int, int]:
    """(rows, columns) of the cube."""
    return g.get(dpu.DATA_CUBE_HEIGHT).height, g.get(dpu.DATA_CUBE_WIDTH).width


def feeds_ppu(g: Group) -> bool:
    """Does the output go on to the PPU?"""
    return bool(g.get(dpu.FEATURE_MODE_CFG).output_mode & TO_PPU)


def output_type(g: Group) -> Precision:
    """Element type of what leaves."""
    return g.get(dpu.DATA_FORMAT).out_precision


def execute(ctx: Context, g: Group, rdma: Group | None, cube: Cube, depthwise: bool) -> Array:
    """Run the stages on ``cube`` and write the result to memory, where OUTPUT_MODE says so.

    Returns what the PPU gets: [pixels, channels] of the output type.
    """
    mode, fmt = g.get(dpu.FEATURE_MODE_CFG), g.get(dpu.DATA_FORMAT)
    flying = bool(mode.flying_mode)
    _check_modes(ctx, g, depthwise)
    proc = fmt.proc_precision
    if Precision.TF32 in (proc, fmt.in_precision, fmt.out_precision):
        ctx.report("dpu.tf32", UNIT, "has precision 7")
    ctx.require(
        fmt.out_precision in OUTPUTS
        and fmt.in_precision == proc
        and proc in numerics.STORAGE
        and (proc not in numerics.FLOATS) == cube.integer
        and ONLY_OUTPUT.get(proc, fmt.out_precision) == fmt.out_precision,
        "dpu.precision",
        UNIT,
        f"has precisions in {int(fmt.in_precision)}, proc {int(proc)}, out "
        f"{int(fmt.out_precision)} for {'integers' if cube.integer else 'floats'}",
    )
    bs_ops = bn_ops = ChannelOperands()
    channels = cube.values.shape[1]
    if rdma is not None:
        bs_ops = dpu_rdma.bs_operands(ctx, rdma, channels, cube.integer)
        bn_ops = dpu_rdma.bn_operands(ctx, rdma, channels, cube.integer)
    v = cube.values
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        v = _stage(ctx, bs_stage(g), v, cube, bs_ops, g)
        bn = bn_stage(g, ctx.policy.bn_order == "alu_mul")
        if cube.integer and not bn.bypass and not bn.mul_bypass and bn.mul_src:
            ctx.report("dpu.bn_mul_per_channel", UNIT, "multiplies integers per channel in BN")
        v = _stage(ctx, bn, v, cube, bn_ops, None)
        v, code = _element_wise(ctx, g, rdma, v, cube, flying)
        out = _convert(ctx, g, v, cube, code)
    if flying:
        _check_orig_channel(ctx, g, cube, out)
    real = cube.real if flying else min(cube.real, g.get(dpu.DATA_CUBE_CHANNEL).orig_channel)
    if real < out.shape[1]:
        _pend(g, out[:, real:])
    if ctx.garbage:
        out.view(np.uint8)[...] = ctx.policy.poison
    if mode.output_mode & TO_MEMORY:
        _write(ctx, g, cube, out)
    return out


def _check_modes(ctx: Context, g: Group, depthwise: bool) -> None:
    mode, fmt = g.get(dpu.FEATURE_MODE_CFG), g.get(dpu.DATA_FORMAT)
    height, ow = g.get(dpu.DATA_CUBE_HEIGHT), g.get(dpu.BS_OW_CFG)
    ctx.require(mode.output_mode != 0, "dpu.output_mode", UNIT, "has OUTPUT_MODE 0")
    transposes = mode.tp_en or ow.tp_org_en
    ctx.require(
        not (transposes and mode.output_mode != TO_MEMORY) and not (mode.tp_en and ow.tp_org_en),
        "dpu.not_modelled",
        UNIT,
        f"has TP_EN {mode.tp_en}, TP_ORG_EN {ow.tp_org_en} with OUTPUT_MODE {mode.output_mode}",
    )
    unusual = {
        "NONALIGN": mode.nonalign,
        "RGP_TYPE": mode.rgp_type,
        "MC_SURF_OUT": fmt.mc_surf_out,
        "MINMAX_CTL": height.minmax_ctl,
        "RGP_CNTER": ow.rgp_cnter,
    }
    for name, value in unusual.items():
        ctx.require(not value, "dpu.not_modelled", UNIT, f"has {name} {value}")
    ctx.idle(UNIT, mode, "NONALIGN", "surf_len")
    ctx.require(
        mode.conv_mode == (ConvMode.DEPTHWISE if depthwise else ConvMode.DIRECT),
        "core.conv_mode",
        UNIT,
        f"has conv_mode {int(mode.conv_mode)} for a {'depthwise' if depthwise else 'direct'} task",
    )
    count = g.get(dpu.DATA_CUBE_CHANNEL)
    ctx.require(
        count.orig_channel <= count.channel,
        "dpu.orig_channel_large",
        UNIT,
        f"has ORIG_CHANNEL {count.orig_channel}, CHANNEL {count.channel}",
    )
    pend = g.get(dpu.OFFSET_PEND).offset_pend
    wide = fmt.out_precision in (Precision.INT32, Precision.FP32)
    ctx.require(
        not (pend and wide), "dpu.offset_pend", UNIT, f"has OFFSET_PEND {pend} for 32-bit outputs"
    )


# -- BS and BN -------------------------------------------------------------------------------


def _stage(
    ctx: Context, s: Stage, v: Array, cube: Cube, ops: ChannelOperands, cpend: Group | None
) -> Array:
    """ALU, CPEND, MUL, ReLU; BN takes its multiplier first (policy ``bn_order``)."""
    active = not s.bypass
    if active and not s.alu_bypass and s.alu_first:
        v = _alu(ctx, s, v, cube, ops)
    if cpend is not None and cube.sums is not None:
        v = _cpend(ctx, cpend, v, cube, ops)
    if cpend is not None and cube.clip[0]:
        v = core.truncate(v, *cube.clip)
    if not active:
        return v
    if not s.mul_bypass:
        v = _mul(ctx, s, v, cube, ops)
    if not s.alu_bypass and not s.alu_first:
        v = _alu(ctx, s, v, cube, ops)
    if cube.integer:
        v = numerics.saturate(v)
    return _relu(v, not s.relu_bypass, s.relux, s.relux_word, cube.integer)


def _alu(ctx: Context, s: Stage, v: Array, cube: Cube, ops: ChannelOperands) -> Array:
    if s.alu_src:
        if ops.alu is None:
            ctx.report("dpu.missing_operand", UNIT, f"{s.name} ALU reads a stream that is off")
            return v
        operand = ops.alu
    elif cube.integer:
        operand = np.asarray(float(numerics.signed(s.alu_word, 32)))
    else:
        operand = np.asarray(numerics.float32_of_bits(s.alu_word))
    return apply(ctx, s.algo, v, operand, s.name, cube.integer)


def apply(ctx: Context, algo: int, v: Array, operand: Array, name: str, integer: bool) -> Array:
    """One ALU operation.  ``minus`` is main minus operand (peer notes 2.7)."""
    match algo:
        case Algo.MAX:
            return np.maximum(v, operand)
        case Algo.MIN:
            return np.minimum(v, operand)
        case Algo.ADD:
            return np.add(v, operand)
        case Algo.MINUS:
            return np.subtract(v, operand)
        case Algo.ABS:
            return np.abs(v)
        case Algo.NEG:
            return np.negative(v)
        case Algo.FLOOR if not integer:
            return np.floor(v)
        case Algo.CEIL if not integer:
            return np.ceil(v)
        case Algo.DIV if not integer:
            return np.divide(v, operand)
    ctx.report("dpu.algo", UNIT, f"{name} has ALU operation {int(algo)}")
    return v


def _cpend(ctx: Context, g: Group, v: Array, cube: Cube, ops: ChannelOperands) -> Array:
    """acc + OW * Σx, on whenever OD_BYPASS is 0 and CORE sums (board notes A.8, A.9)."""
    cfg = g.get(dpu.BS_OW_CFG)
    if cfg.od_bypass or cube.sums is None:
        return v
    weight: Array
    if cfg.ow_src:
        if ops.cpend is None:
            ctx.report("dpu.missing_operand", UNIT, "CPEND reads a stream that is off")
            return v
        weight = ops.cpend
    else:
        weight = np.asarray(float(g.get(dpu.BS_OW_OP).ow_op))
    if not weight.any():
        return v
    out: Array = v + weight * cube.sums()
    return out


def _mul(ctx: Context, s: Stage, v: Array, cube: Cube, ops: ChannelOperands) -> Array:
    if s.mul_src:
        if ops.mul is None:
            ctx.report("dpu.missing_operand", UNIT, f"{s.name} MUL reads a stream that is off")
            return v
        operand = ops.mul
    elif cube.integer:
        operand = np.asarray(float(numerics.signed(s.mul_word, 16)))
    else:
        operand = np.asarray(numerics.float16_of_bits(s.mul_word))
    ctx.require(
        not s.shift_src, "dpu_rdma.operands", UNIT, f"{s.name} takes its shift from a stream"
    )
    if not cube.integer:
        ctx.require(
            not s.shift and not s.shift_negative,
            "dpu.not_modelled",
            UNIT,
            f"{s.name} shifts a float by {s.shift}",
        )
        product = v * operand
    else:
        product = _shift(ctx, numerics.saturate(v) * operand, s.shift, s.shift_negative)
    # PReLU: positive values pass without multiplier and shift (register notes C.2)
    return np.where(v < 0, product, v) if s.prelu else product


def _shift(ctx: Context, v: Array, positive: int, negative: int) -> Array:
    """Right shift by sign of the product (board notes A.9), then saturate."""
    rounding = ctx.policy.stage_rounding
    if positive == negative:
        return numerics.saturate(numerics.shift_right(v, positive, rounding))
    down = numerics.shift_right(v, negative, rounding)
    up = numerics.shift_right(v, positive, rounding)
    return numerics.saturate(np.where(v < 0, down, up))


def _relu(v: Array, relu: bool, relux: int, word: int, integer: bool) -> Array:
    """max(v, 0), then min(v, limit); NaN stays (reference/README.md)."""
    if relu:
        v = np.where(v < 0, v.dtype.type(0), v) if not integer else np.maximum(v, 0.0, out=v)
    if relux:
        limit = numerics.signed(word, 32) if integer else numerics.float32_of_bits(word)
        v = np.minimum(v, v.dtype.type(limit))
    return v


# -- EW --------------------------------------------------------------------------------------


def _element_wise(
    ctx: Context, g: Group, rdma: Group | None, v: Array, cube: Cube, flying: bool
) -> tuple[Array, bool]:
    """EW: table, or operation with a second operand; then ReLU.

    Returns the values, and whether they are codes of the table.
    """
    cfg = g.get(dpu.EW_CFG)
    if cfg.ew_bypass:
        return v, False
    code = False
    if not cfg.ew_lut_bypass:
        index = v if cube.integer else numerics.float_to_int(v)
        v = lut.look_up(ctx, g, index)
        code = True
    elif not cfg.ew_op_bypass:
        operand = _ew_operand(ctx, g, rdma, v, cube, flying)
        v = _ew_operation(ctx, g, v, operand, cube)
    relu = not cfg.ew_relu_bypass
    word = g.get(dpu.EW_RELUX_CMP_VALUE).ew_relux_cmp_dat
    return _relu(v, relu, cfg.ew_relux_en, word, cube.integer or code), code


def _ew_operand(
    ctx: Context, g: Group, rdma: Group | None, v: Array, cube: Cube, flying: bool
) -> Array:
    """The second operand, converted: [pixels or 1, channels] or a scalar."""
    cfg, proc = g.get(dpu.EW_CFG), g.get(dpu.DATA_FORMAT).proc_precision
    if cfg.ew_alu_algo >= Algo.ABS and not cfg.ew_op_type:
        return np.zeros((), v.dtype)
    if not cfg.ew_op_src:
        words = {g.words.get(r.address, 0) for r in EW_OP_VALUES}
        ctx.require(
            len(words) == 1, "ew.register_operand", UNIT, f"has {len(words)} different constants"
        )
        word = words.pop()
        if cube.integer:
            return np.asarray(float(numerics.signed(word, 32)))
        return np.asarray(numerics.float32_of_bits(word))
    if rdma is None:
        ctx.report("dpu.missing_operand", UNIT, "EW reads a stream and DPU_RDMA is not started")
        return np.zeros((), v.dtype)
    e, nbytes = dpu_rdma.ew_operand(ctx, rdma, flying, v.shape[1], proc)
    if not flying:
        dpu_rdma.check_precision(ctx, rdma, proc, None)
    source = dpu_rdma.operand_mode(rdma)
    ctx.require(
        cfg.ew_data_mode == source,
        "ew.operand_mode",
        UNIT,
        f"has EW_DATA_MODE {cfg.ew_data_mode}, the stream has mode {source}",
    )
    ctx.require(
        dpu_rdma.SIZE_BYTES.get(cfg.edata_size) == nbytes,
        "ew.operand_size",
        UNIT,
        f"has EDATA_SIZE {cfg.edata_size}, the stream has {nbytes} byte elements",
    )
    scale, offset = g.get(dpu.EW_CVT_SCALE_VALUE), g.get(dpu.EW_CVT_OFFSET_VALUE).ew_op_cvt_offset
    if cube.integer:
        wide = e.astype(np.float64)
        return wide if cfg.ew_op_cvt_bypass else _ew_convert(g, wide)
    # ALU operands pass the converter, factors and divisors do not: board notes A.10
    direct = bool(cfg.ew_op_type) or cfg.ew_alu_algo == Algo.DIV
    if nbytes == 2:
        ctx.require(
            bool(cfg.ew_op_cvt_bypass) == direct,
            "ew.converter",
            UNIT,
            f"has EW_OP_CVT_BYPASS {cfg.ew_op_cvt_bypass} for a float "
            f"{'factor' if direct else 'ALU operand'}",
        )
    if not cfg.ew_op_cvt_bypass:
        ctx.require(
            scale.ew_op_cvt_scale in (0, 1) and not scale.ew_op_cvt_shift and not offset,
            "dpu.not_modelled",
            UNIT,
            f"scales a float operand by {scale.ew_op_cvt_scale} >> {scale.ew_op_cvt_shift}, "
            f"offset {offset}",
        )
    return e.astype(np.float32)


EW_OP_VALUES = (
    dpu.EW_OP_VALUE_0,
    dpu.EW_OP_VALUE_1,
    dpu.EW_OP_VALUE_2,
    dpu.EW_OP_VALUE_3,
    dpu.EW_OP_VALUE_4,
    dpu.EW_OP_VALUE_5,
    dpu.EW_OP_VALUE_6,
    dpu.EW_OP_VALUE_7,
)


def _ew_convert(g: Group, e: Array) -> Array:
    """Integer operand converter: cvt_type 1 adds first, 0 multiplies first (register notes C.5)."""
    cfg, scale = g.get(dpu.EW_CFG), g.get(dpu.EW_CVT_SCALE_VALUE)
    offset = float(g.get(dpu.EW_CVT_OFFSET_VALUE).ew_op_cvt_offset)
    rounding = "away" if cfg.ew_cvt_round else "even"
    factor, shift = float(scale.ew_op_cvt_scale), scale.ew_op_cvt_shift
    if cfg.ew_cvt_type:
        return numerics.saturate(numerics.shift_right((e + offset) * factor, shift, rounding))
    return numerics.saturate(numerics.shift_right(e * factor, shift, rounding) + offset)


def _ew_operation(ctx: Context, g: Group, v: Array, e: Array, cube: Cube) -> Array:
    cfg, scale = g.get(dpu.EW_CFG), g.get(dpu.EW_CVT_SCALE_VALUE)
    ctx.require(not cfg.ew_binary_en, "ew.minmax_mode", UNIT, "has EW_BINARY_EN set")
    ctx.require(
        not cube.narrow or (cfg.ew_alu_algo == Algo.DIV and not cfg.ew_op_type),
        "dpu.out_narrow",
        UNIT,
        "works on fp16 that MRDMA did not widen",
    )
    if not cfg.ew_op_type:
        ctx.require(
            not cube.integer or cfg.ew_alu_algo > Algo.MIN or bool(cfg.ew_equal_en),
            "ew.equal",
            UNIT,
            "compares integers with EW_EQUAL_EN 0",
        )
        v = apply(ctx, cfg.ew_alu_algo, v, e, "EW", cube.integer)
        return numerics.saturate(v) if cube.integer else v
    if not cube.integer:
        product = v * e
    else:
        peak = float(np.abs(e).max(initial=0))
        ctx.require(
            peak <= 1 << 15,
            "dpu.not_modelled",
            UNIT,
            f"multiplies by {peak:.0f}, factors have 16 bits",
        )
        negative = g.get(dpu.DATA_FORMAT).ew_truncate_neg
        if not cfg.ew_mul_prelu:
            negative = scale.ew_truncate
        product = _shift(ctx, numerics.saturate(v) * e, scale.ew_truncate, negative)
    return np.where(v < 0, product, v) if cfg.ew_mul_prelu else product


def _check_orig_channel(ctx: Context, g: Group, cube: Cube, out: Array) -> None:
    """Two streams in flying mode: else only lane 0 of each atom is right (board notes A.10)."""
    cfg, count = g.get(dpu.EW_CFG), g.get(dpu.DATA_CUBE_CHANNEL)
    alone = cfg.ew_bypass or not cfg.ew_lut_bypass or cfg.ew_op_bypass or not cfg.ew_op_src
    alone = alone or (cfg.ew_alu_algo >= Algo.ABS and not cfg.ew_op_type)
    if alone or count.orig_channel == count.channel:
        return
    ctx.report(
        "dpu.orig_channel",
        UNIT,
        f"has ORIG_CHANNEL {count.orig_channel}, CHANNEL {count.channel} with two operands",
    )
    lanes = np.arange(out.shape[1]) % cube.lanes
    raw = out.view(np.uint8).reshape(*out.shape, out.itemsize)
    raw[:, lanes > 0] = ctx.policy.poison


# -- output converter ------------------------------------------------------------------------


def _convert(ctx: Context, g: Group, v: Array, cube: Cube, code: bool) -> Array:
    """Stage values -> [pixels, channels] of the output type (board notes A.9)."""
    out = g.get(dpu.DATA_FORMAT).out_precision
    if cube.integer:
        v = _convert_int(ctx, g, v)
    else:
        v = _convert_float(ctx, g, v, cube, code)
        if out not in numerics.FLOATS:
            v = numerics.float_to_int(v)
    dtype = numerics.STORAGE[out]
    if dtype.kind == "i":
        v = numerics.saturate(v, dtype.itemsize * 8)
    return v.astype(dtype)


def _convert_int(ctx: Context, g: Group, v: Array) -> Array:
    """round(v * SCALE >> SHIFT) + OFFSET, saturated to 32 bits.  MINUS_EXP is ignored."""
    offset = float(g.get(dpu.OUT_CVT_OFFSET).out_cvt_offset)
    scale = float(g.get(dpu.OUT_CVT_SCALE).out_cvt_scale)
    cfg = g.get(dpu.OUT_CVT_SHIFT)
    shift = cfg.out_cvt_shift
    if shift > MAX_SHIFT:
        ctx.report("dpu.out_shift", UNIT, f"shifts by {shift}, {MAX_SHIFT} is the most")
        shift &= MAX_SHIFT
    rounding = "away" if cfg.cvt_round else "even"
    if cfg.cvt_type and offset and ctx.policy.out_cvt_add_first == "honoured":
        v, offset = v + offset, 0.0
    before = ctx.policy.out_cvt_offset == "before"
    if before:
        v = v * scale + offset * 2.0**shift
    elif scale != 1:
        v = v * scale
    v = numerics.shift_right(v, shift, rounding)
    if offset and not before:
        v = v + offset
    return numerics.saturate(v)


def _convert_float(ctx: Context, g: Group, v: Array, cube: Cube, code: bool) -> Array:
    """(v + OFFSET) * SCALE * 2**-MINUS_EXP in fp32 (A.9), then the width of the output."""
    out = g.get(dpu.DATA_FORMAT).out_precision
    offset = float(g.get(dpu.OUT_CVT_OFFSET).out_cvt_offset)
    scale, cfg = g.get(dpu.OUT_CVT_SCALE), g.get(dpu.OUT_CVT_SHIFT)
    if cfg.out_cvt_shift:
        ctx.report("dpu.out_shift", UNIT, f"shifts a float by {cfg.out_cvt_shift}")
    factor, exponent = np.float32(scale.out_cvt_scale), np.float32(2.0**-cfg.minus_exp)
    if code:
        v = _decode_code(ctx, v, offset, factor, bool(cfg.cvt_type))
    elif cfg.cvt_type:
        v = (v + np.float32(offset)) * factor if (offset or factor != 1) else v
    elif offset or factor != 1:
        v = v * factor + np.float32(offset)
    if cfg.minus_exp:
        v = v * exponent
    widened = not cube.narrow
    narrows = bool(scale.fp32tofp16_en)
    wrong = narrows != widened if out is Precision.FP16 else narrows and out is Precision.FP32
    if wrong:
        ctx.report(
            "dpu.out_narrow",
            UNIT,
            f"has FP32TOFP16_EN {int(narrows)} for {'fp32' if widened else 'fp16'} values and "
            f"{out.name} output",
        )
    return v


def _decode_code(
    ctx: Context, q: Array, offset: float, factor: np.float32, add_first: bool
) -> Array:
    """Table codes as floats; a code of 0 decodes as 2**17 (board notes A.11)."""
    whole = q + offset if add_first else q * float(factor) + offset
    v = whole.astype(np.float32)
    if ctx.policy.lut_zero_code == "spike":
        v[whole == 0] = lut.ZERO_CODE
    return v * factor if add_first else v


# -- write DMA -------------------------------------------------------------------------------


def _write(ctx: Context, g: Group, cube: Cube, out: Array) -> None:
    """Scatter by the SIZE_E law (board notes A.4, register notes C.8).

    address = DST + 16 * (group * SURFACE_ADD + s * DST_SURF_STRIDE + y * (W + NOTCH) + x)
    """
    rows, cols = size(g)
    ow, notch = g.get(dpu.BS_OW_CFG), g.get(dpu.DATA_CUBE_NOTCH_ADDR)
    surf = g.get(dpu.DST_SURF_STRIDE).dst_surf_stride
    step = g.get(dpu.SURFACE_ADD).surf_add
    base = g.get(dpu.DST_BASE_ADDR).dst_base_addr
    ctx.require(
        ow.size_e_0 == ow.size_e_1 == ow.size_e_2,
        "dpu.not_modelled",
        UNIT,
        f"has SIZE_E {ow.size_e_0}, {ow.size_e_1}, {ow.size_e_2}",
    )
    ctx.require(
        notch.notch_addr_0 == notch.notch_addr_1,
        "dpu.not_modelled",
        UNIT,
        f"has NOTCH {notch.notch_addr_0} and {notch.notch_addr_1}",
    )
    if base % ATOM:
        ctx.report("dpu.unaligned", UNIT, f"writes to {base:#x}")
    channels = out.shape[1]
    flying = bool(g.get(dpu.FEATURE_MODE_CFG).flying_mode)
    if ow.tp_org_en:
        _write_transposed(ctx, g, cube, out)
        return
    if g.get(dpu.FEATURE_MODE_CFG).tp_en:
        if g.get(dpu.WDMA_SIZE_0).tp_precision:
            _write_blocks(ctx, g, out)
            return
        out = _swap_axes(ctx, g, out)
        rows, cols = cols, rows
    per_group, rest = divmod(cube.lanes * out.itemsize, ATOM)
    ctx.require(
        rest == 0 and per_group > 0,
        "dpu.not_modelled",
        UNIT,
        f"writes {cube.lanes * out.itemsize} bytes a group and pixel, not whole atoms",
    )
    groups = -(-channels // cube.lanes)
    missing = groups * cube.lanes - channels
    if missing:
        out = np.pad(out, ((0, 0), (0, missing)))
        if ctx.garbage:
            out.view(np.uint8)[...] = ctx.policy.poison
    view = out.view(np.uint8).reshape(rows, cols, groups, per_group, ATOM)
    atoms = view.transpose(2, 3, 0, 1, 4)
    programmed = ow.size_e_2 + 1
    if groups > 1 and step != programmed * surf:
        ctx.report(
            "dpu.surface_add",
            UNIT,
            f"has SURFACE_ADD {step} atoms, {programmed} surfaces of {surf} follow each other",
        )
    # board notes A.4: partial groups of int8 outputs hang; a partial atom in flying mode is padded
    partial = missing > 0 and not flying and not ctx.garbage
    written = channels // cube.lanes if partial else groups
    # the field cannot say it: surfaces past SIZE_E stay unwritten, by the law of board notes A.4
    narrow = per_group > MAX_SURFACES
    hang = programmed > per_group
    if narrow:
        ctx.report(
            "dpu.size_e_field",
            UNIT,
            f"writes {per_group} surfaces a group, SIZE_E counts to {MAX_SURFACES}",
        )
    elif programmed != per_group and ctx.strict:
        _report_size_e(ctx, programmed, per_group)
    surfaces = min(programmed, per_group)
    if hang:
        written = min(written, 1)
    ctx.charge(UNIT, 0, written * surfaces * rows * cols)
    ctx.space.scatter(
        base + ctx.dma_base,
        (written, surfaces, rows, cols),
        (step * ATOM, surf * ATOM, (cols + notch.notch_addr_0) * ATOM, ATOM),
        atoms[:written, :surfaces],
        "output",
        UNIT,
    )
    if programmed != per_group and not narrow and not ctx.strict:
        _report_size_e(ctx, programmed, per_group)
    if partial:
        ctx.report(
            "core.partial_group",
            UNIT,
            f"ends with {channels % cube.lanes} of {cube.lanes} channels in the last group",
        )


def _pend(g: Group, lanes: Array) -> None:
    """Lanes without a kernel leave as OFFSET_PEND, its low bits for 8-bit outputs (TRM)."""
    pend = g.get(dpu.OFFSET_PEND).offset_pend
    if not pend:
        lanes[...] = 0
        return
    raw = np.array([pend], "<u2").view(np.uint8)[: lanes.itemsize]
    lanes[...] = np.ascontiguousarray(raw).view(lanes.dtype)[0]


def _swap_axes(ctx: Context, g: Group, out: Array) -> Array:
    """TP_EN, other than above: rows become columns (peer notes 2.5: one capture).

    The write DMA has the new size.
    """
    rows, cols = size(g)
    wdma, flying = g.get(dpu.WDMA_SIZE_1), g.get(dpu.FEATURE_MODE_CFG).flying_mode
    ctx.require(
        bool(flying) and out.itemsize == 2 and (wdma.height_wdma, wdma.width_wdma) == (cols, rows),
        "dpu.not_modelled",
        UNIT,
        f"exchanges rows and columns of {rows}x{cols} px, {out.itemsize} bytes each, into "
        f"{wdma.height_wdma}x{wdma.width_wdma} px",
    )
    swapped = out.reshape(rows, cols, -1).transpose(1, 0, 2)
    return np.ascontiguousarray(swapped).reshape(out.shape)


def _write_blocks(ctx: Context, g: Group, out: Array) -> None:
    """TP_EN with 16-bit elements: 8 pixels by 8 channels change places in each surface.

    One capture (register notes C.8): a line of 8 pixels, a write DMA of one column and a row per
    surface.  Channel r of surface s becomes an atom at (s * SURFACE_ADD + r * DST_SURF_STRIDE).
    GUESSED: the write DMA may step by its own lines, so both steps must be the same.
    """
    rows, cols = size(g)
    wdma, pixels, channels = g.get(dpu.WDMA_SIZE_1), *out.shape
    line = 1 + g.get(dpu.DATA_CUBE_NOTCH_ADDR).notch_addr_0
    step = g.get(dpu.SURFACE_ADD).surf_add
    ctx.require(
        bool(g.get(dpu.FEATURE_MODE_CFG).flying_mode)
        and out.itemsize == 2
        and (rows, cols, pixels) == (1, TRANSPOSE, TRANSPOSE)
        and channels % TRANSPOSE == 0
        and (wdma.height_wdma, wdma.width_wdma) == (channels // TRANSPOSE, 1)
        and line == step,
        "dpu.not_modelled",
        UNIT,
        f"exchanges pixels and channels of {rows}x{cols} px of {channels} channels, "
        f"{out.itemsize} bytes each, into {wdma.height_wdma}x{wdma.width_wdma} atoms, "
        f"{step} and {line} atoms apart",
    )
    blocks = out.reshape(TRANSPOSE, channels // TRANSPOSE, TRANSPOSE).transpose(1, 2, 0)
    _scatter_lanes(ctx, g, blocks[:, :, None, None, :], line)


def _write_transposed(ctx: Context, g: Group, cube: Cube, out: Array) -> None:
    """TP_ORG_EN: vectors of L lanes, one after the other, become one run of elements per lane.

    Lane r of a group goes to group * SURFACE_ADD + r * DST_SURF_STRIDE, eight vectors to an atom
    of 16-bit elements.  In flying mode a vector is an atom: 8 channels of a pixel.  That explains
    the vendor's layout conversions in both directions (peer notes 2.5).  Behind a convolution
    vectors are 4 accumulators, a pixel's four vectors of a kernel group in a row, each value cut
    to its low 16 bits: slot(m, n) of board notes A.4 with strides of 2M and M/2 atoms (GUESSED).
    """
    if g.get(dpu.FEATURE_MODE_CFG).flying_mode:
        _transpose_atoms(ctx, g, cube, out)
    else:
        _transpose_accumulators(ctx, g, cube, out)


def _transpose_atoms(ctx: Context, g: Group, cube: Cube, out: Array) -> None:
    wdma = g.get(dpu.WDMA_SIZE_1)
    rows, cols = wdma.height_wdma, wdma.width_wdma
    pixels, channels = out.shape
    usual = (
        out.itemsize == 2
        and cube.lanes == TRANSPOSE
        and pixels == rows * cols * TRANSPOSE
        and channels % TRANSPOSE == 0
    )
    size_c = g.get(dpu.WDMA_SIZE_0).size_c_wdma + 1
    ctx.require(
        size_c * TRANSPOSE == channels,
        "dpu.geometry",
        UNIT,
        f"transposes {channels} channels with SIZE_C_WDMA {size_c - 1}",
    )
    _check_transpose(ctx, g, out, usual)
    blocks = out.reshape(rows, cols, TRANSPOSE, channels // TRANSPOSE, TRANSPOSE)
    line = cols + g.get(dpu.DATA_CUBE_NOTCH_ADDR).notch_addr_0
    _scatter_lanes(ctx, g, blocks.transpose(3, 4, 0, 1, 2), line)


def _transpose_accumulators(ctx: Context, g: Group, cube: Cube, out: Array) -> None:
    pixels, channels = out.shape
    usual = (
        cube.integer
        and out.itemsize == 4
        and g.get(dpu.DATA_FORMAT).proc_precision is Precision.INT16
        and channels % cube.lanes == 0
        and pixels * cube.lanes // ACCUMULATORS % TRANSPOSE == 0
    )
    _check_transpose(ctx, g, out, usual)
    groups = channels // cube.lanes
    cut = out.astype("<i2")  # keeps the low 16 bits
    vectors = cut.reshape(pixels, groups, cube.lanes // ACCUMULATORS, ACCUMULATORS)
    lanes = vectors.transpose(1, 3, 0, 2).reshape(groups, ACCUMULATORS, 1, -1, TRANSPOSE)
    _scatter_lanes(ctx, g, lanes, 0)
    if groups == 1:
        ctx.report("dpu.transposed_group", UNIT, f"transposes {channels} channels, one group")


def _check_transpose(ctx: Context, g: Group, out: Array, usual: bool) -> None:
    size_e = g.get(dpu.BS_OW_CFG).size_e_2
    wdma = g.get(dpu.WDMA_SIZE_1)
    ctx.require(
        usual and g.get(dpu.WDMA_SIZE_0).tp_precision == 1 and size_e == TRANSPOSE - 1,
        "dpu.not_modelled",
        UNIT,
        f"transposes {out.shape[0]} px of {out.shape[1]} channels, {out.itemsize} bytes each, into "
        f"{wdma.height_wdma}x{wdma.width_wdma} atoms, SIZE_E {size_e}",
    )


def _scatter_lanes(ctx: Context, g: Group, elements: Array, line: int) -> None:
    """Write 16-bit elements [group, lane, row, atom, 8]; ``line``: atoms from row to row."""
    groups, lanes, rows, cols, _ = elements.shape
    surf = g.get(dpu.DST_SURF_STRIDE).dst_surf_stride
    step = g.get(dpu.SURFACE_ADD).surf_add
    ctx.charge(UNIT, 0, groups * lanes * rows * cols)
    ctx.space.scatter(
        g.get(dpu.DST_BASE_ADDR).dst_base_addr + ctx.dma_base,
        (groups, lanes, rows, cols),
        (step * ATOM, surf * ATOM, line * ATOM, ATOM),
        np.ascontiguousarray(elements).view(np.uint8),
        "output",
        UNIT,
    )


def _report_size_e(ctx: Context, programmed: int, law: int) -> None:
    rule = "dpu.size_e_large" if programmed > law else "dpu.size_e_small"
    ctx.report(rule, UNIT, f"writes {programmed} surfaces a group, its group has {law}")
