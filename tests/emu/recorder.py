"""What the emulator ran in each test: a pytest plugin that `docs.make_coverage` loads.

A mode counts as run when a start went through all its units without breaking a rule; which modes
those were is read from the registers of the units that ran, here and not in the emulator.  Tests
that draw their programs at random do not count.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any, get_args, get_type_hints

import numpy as np
import numpy.typing as npt
import pytest

from opennpu.emu import lut, units
from opennpu.emu.context import Context
from opennpu.emu.machine import Machine
from opennpu.emu.numerics import Policy
from opennpu.emu.registers import Group
from opennpu.hw.regs import Register
from opennpu.hw.rk3588 import chip, cna, core, dpu, dpu_rdma, ppu, ppu_rdma
from opennpu.hw.rk3588.common import Algo, ConvMode, PoolingMethod, Precision

Seen = tuple[str, str, str]
"""Unit, mode, element type."""

ANY = "any"  # of modes that know no element type
FLOATS = (Precision.FP16, Precision.BF16, Precision.TF32, Precision.FP32)


def _name(p: int) -> str:
    return Precision(p).name.lower()


# -- from the registers ----------------------------------------------------------------------------


def modes(groups: dict[str, Group]) -> Iterator[Seen]:
    """The modes that the groups of one start ran."""
    if "CNA" in groups:
        yield from _cna(groups["CNA"])
        yield from _core(groups["CNA"], groups["CORE"], groups["DPU"])
    if "DPU" in groups:
        yield from _dpu(groups["DPU"], "CORE" in groups)
    if "DPU_RDMA" in groups:
        yield from _dpu_rdma(groups["DPU_RDMA"])
    if "PPU" in groups:
        yield from _ppu(groups["PPU"])
    if "PPU_RDMA" in groups:
        yield from _ppu_rdma(groups["PPU_RDMA"], groups["PPU"])


def _cna(g: Group) -> Iterator[Seen]:
    con1, con3, size = g.get(cna.CONV_CON1), g.get(cna.CONV_CON3), g.get(cna.DATA_SIZE0)
    kernel, pad, banks = g.get(cna.WEIGHT_SIZE2), g.get(cna.PAD_CON0), g.get(cna.CBUF_CON0)
    channels = g.get(cna.DATA_SIZE1).datain_channel
    p = con1.proc_precision
    depthwise = con1.conv_mode == ConvMode.DEPTHWISE

    def mode(name: str) -> Seen:
        return "CNA", name, _name(p)

    yield mode("depthwise convolution" if depthwise else "direct convolution")
    if kernel.weight_width * kernel.weight_height > 1:
        yield mode("kernel above 1x1")
        if (con3.atrous_x_dilation, con3.atrous_y_dilation) != (1, 1):
            yield mode("dilation")
    if (con3.conv_x_stride, con3.conv_y_stride) != (1, 1):
        yield mode("stride above 1")
    if pad.pad_left or pad.pad_top:
        yield mode("padding with PAD_CON1" if g.get(cna.PAD_CON1).word else "padding with 0")
    if con1.deconv and {con3.deconv_x_stride, con3.deconv_y_stride} & set(chip.DECONV_STRIDES_PX):
        yield mode("DECONV: zeros between pixels")
    if con1.argb_in:
        yield mode(f"packed input of {con1.argb_in - 7}")
    elif con1.group_line_off:
        flat = size.datain_width == 1 and not g.get(cna.DMA_CON2).surf_stride
        yield mode("row-major matrix" if flat else "cube, line by line")
    else:
        yield mode("cube, four lines at a time")
        if size.datain_height < chip.LINES_PER_GROUP:
            yield mode("cube of fewer than 4 rows")
    if not g.get(cna.CVT_CON0).cvt_bypass and g.get(cna.CVT_CON5).per_channel_cvt_en:
        yield mode("input converter")
    if channels % chip.CHANNEL_GROUP[p] and not depthwise:
        yield mode("part of a channel group")
    control = g.get(cna.DCOMP_CTRL)
    if control.decomp_control and not control.wt_dec_bypass:
        yield mode("compressed weights")
    if banks.data_reuse:
        yield mode("DATA_REUSE")
    if banks.weight_reuse:
        yield mode("WEIGHT_REUSE")
    row = g.get(cna.CBUF_CON1).data_entries * chip.CBUF_ENTRY_BYTES
    if size.datain_height * row > banks.data_bank * chip.CBUF_BANK_BYTES:
        yield mode("tile streamed through its banks")
    if g.get(cna.WEIGHT_SIZE0).weight_bytes > banks.weight_bank * chip.CBUF_BANK_BYTES:
        yield mode("weights streamed through their banks")


def _core(c: Group, m: Group, d: Group) -> Iterator[Seen]:
    p = m.get(core.MISC_CFG).proc_precision

    def mode(name: str) -> Seen:
        return "CORE", name, _name(p)

    depthwise = bool(m.get(core.MISC_CFG).dw_en)
    exact = "exact integer sums" if p not in FLOATS else "sums by the group rule"
    yield mode(("depthwise " if depthwise else "") + (exact if not depthwise else "sums"))
    adds = not d.get(dpu.BS_OW_CFG).od_bypass and m.get(core.MISC_CFG).qd_en
    if adds and (d.get(dpu.BS_OW_OP).ow_op or d.get(dpu.BS_OW_CFG).ow_src):
        yield mode("sums of inputs for CPEND" if p not in FLOATS else "CPEND is ignored")
    if m.get(core.CLIP_TRUNCATE).clip_truncate:
        yield mode("CLIP_TRUNCATE")
    if not depthwise and c.get(cna.WEIGHT_SIZE2).weight_kernels % chip.KERNEL_GROUP[p]:
        yield mode("part of a kernel group")


STAGES: dict[str, tuple[type[Register], type[Register]]] = {
    "BS": (dpu.BS_CFG, dpu.BS_MUL_CFG),
    "BN": (dpu.BN_CFG, dpu.BN_MUL_CFG),
}


def _dpu(g: Group, convolves: bool) -> Iterator[Seen]:
    fmt, way = g.get(dpu.DATA_FORMAT), g.get(dpu.FEATURE_MODE_CFG)
    p, out = fmt.proc_precision, fmt.out_precision
    integer = p not in FLOATS

    def mode(name: str, of: int = p) -> Seen:
        return "DPU", name, _name(of)

    origin = "from CORE" if convolves else "from memory"
    yield "DPU", f"output types, {origin}", f"{_name(p)} to {_name(out)}"
    for stage, (cfg_of, mul_of) in STAGES.items():
        cfg, mul, low = g.get(cfg_of), g.get(mul_of), stage.lower()

        def bit(name: str, cfg: Register = cfg, low: str = low) -> int:
            return int(getattr(cfg, f"{low}_{name}"))

        if bit("bypass"):
            continue
        if not bit("alu_bypass"):
            yield mode(f"{stage} ALU, {'per channel' if bit('alu_src') else 'register'}")
            yield mode(f"ALU {Algo(bit('alu_algo')).name}")
        if not bit("mul_bypass"):
            per_channel = getattr(mul, f"{low}_mul_src")
            yield mode(f"{stage} MUL, {'per channel' if per_channel else 'register'}")
            down = getattr(fmt, f"{low}_mul_shift_value_neg")
            if integer and (down or getattr(mul, f"{low}_mul_shift_value")):
                yield mode(f"{stage} MUL, shift by sign")
            if bit("mul_prelu"):
                yield mode(f"{stage} PReLU")
        if not bit("relu_bypass"):
            yield mode(f"{stage} ReLU")
        if bit("relux_en"):
            yield mode(f"{stage} ReLUX")
    ow = g.get(dpu.BS_OW_CFG)
    if convolves and integer and not ow.od_bypass and (ow.ow_src or g.get(dpu.BS_OW_OP).ow_op):
        yield mode(f"CPEND, {'per channel' if ow.ow_src else 'register'}")
    yield from _ew(g, convolves)
    code = not g.get(dpu.EW_CFG).ew_bypass and not g.get(dpu.EW_CFG).ew_lut_bypass
    scale, shift = g.get(dpu.OUT_CVT_SCALE), g.get(dpu.OUT_CVT_SHIFT)
    if scale.out_cvt_scale != 1 and not code:
        yield mode("OUT_CVT scale")
    if shift.out_cvt_shift and integer:
        yield mode(f"OUT_CVT shift, ties {'away' if shift.cvt_round else 'to even'}")
    if g.get(dpu.OUT_CVT_OFFSET).out_cvt_offset and not code:
        yield mode("OUT_CVT offset")
    if shift.minus_exp:
        yield mode("MINUS_EXP is ignored" if integer else "MINUS_EXP")
    if scale.fp32tofp16_en and out is Precision.FP16 and not integer:
        yield mode("FP32TOFP16")
    yield from _writer(g, convolves)
    if way.output_mode & 1:
        yield mode(f"to the PPU{' and to memory' * (way.output_mode == 3)}", out)


def _ew(g: Group, convolves: bool) -> Iterator[Seen]:
    cfg, p = g.get(dpu.EW_CFG), g.get(dpu.DATA_FORMAT).proc_precision
    scale = g.get(dpu.EW_CVT_SCALE_VALUE)

    def mode(name: str) -> Seen:
        return "DPU", name, _name(p)

    if cfg.ew_bypass:
        return
    if not cfg.ew_lut_bypass:
        yield mode("EW table")
    elif not cfg.ew_op_bypass:
        operation = "PReLU" if cfg.ew_mul_prelu else "MUL" if cfg.ew_op_type else None
        yield mode(f"EW {operation or Algo(cfg.ew_alu_algo).name}")
        one = cfg.ew_alu_algo >= Algo.ABS and not cfg.ew_op_type
        if not one:
            where = ("per channel", "per pixel")[cfg.ew_data_mode] if cfg.ew_op_src else "register"
            behind = " behind a convolution" if convolves else ""
            yield mode(f"EW operand {where}{behind}")
            if cfg.ew_op_src and not cfg.ew_op_cvt_bypass and p not in FLOATS:
                ties = " to even, ".join(("ties",)) + (" away" if cfg.ew_cvt_round else " to even")
                order = "adds first" if cfg.ew_cvt_type else "multiplies first"
                yield mode(f"EW operand converter, {order}")
                if scale.ew_op_cvt_shift:
                    yield mode(f"EW operand converter, {ties}")
    if not cfg.ew_relu_bypass:
        yield mode("EW ReLU")
    if cfg.ew_relux_en:
        yield mode("EW ReLUX")


def _writer(g: Group, convolves: bool) -> Iterator[Seen]:
    way, ow = g.get(dpu.FEATURE_MODE_CFG), g.get(dpu.BS_OW_CFG)
    out = g.get(dpu.DATA_FORMAT).out_precision
    notch = g.get(dpu.DATA_CUBE_NOTCH_ADDR).notch_addr_0

    def mode(name: str) -> Seen:
        return "DPU", f"write: {name}", _name(out)

    if not way.output_mode & 2:
        return
    if ow.tp_org_en:
        yield mode(f"TP_ORG_EN, {'accumulators' if convolves else 'atoms'}")
    elif way.tp_en:
        blocks = g.get(dpu.WDMA_SIZE_0).tp_precision
        yield mode("TP_EN, 8x8 blocks" if blocks else "TP_EN, rows and columns")
    elif notch:
        flat = g.get(dpu.DST_SURF_STRIDE).dst_surf_stride == 1
        yield mode("row-major matrix" if flat else "lines with a gap")
    else:
        yield mode("cube")
    if g.get(dpu.OFFSET_PEND).offset_pend:
        yield mode("OFFSET_PEND in padding lanes")


def _dpu_rdma(g: Group) -> Iterator[Seen]:
    way = g.get(dpu_rdma.RDMA_FEATURE_MODE_CFG)
    p = way.proc_precision

    def mode(name: str, of: int = p) -> Seen:
        return "DPU_RDMA", name, _name(of)

    if way.flying_mode:
        line = g.get(dpu_rdma.RDMA_SRC_DMA_CFG).line_notch_addr
        surf = g.get(dpu_rdma.RDMA_SURF_NOTCH).surf_notch_addr
        part = "row-major matrix" if surf < 0 else "part of a cube" if line or surf else "cube"
        yield mode(f"main stream, {part}", way.in_precision)
        if way.in_precision is Precision.FP16:
            wide = "widened to fp32" if way.mrdma_fp16tofp32_en else "as it is"
            yield mode(f"main stream, {wide}", way.in_precision)
    use = g.get(dpu_rdma.RDMA_BRDMA_CFG).brdma_data_use
    if use:
        yield mode(f"BRDMA {_parts(use)}")
    use = g.get(dpu_rdma.RDMA_NRDMA_CFG).nrdma_data_use
    if use:
        yield mode(f"NRDMA {_parts(use)}")
    erdma = g.get(dpu_rdma.RDMA_ERDMA_CFG)
    if not erdma.erdma_disable:
        kind = ("per channel", "per pixel")[erdma.erdma_data_mode]
        both = " with MRDMA, alternate surfaces" if way.comb_use == 5 else ""
        yield mode(f"ERDMA {kind}{both}")


def _parts(use: int) -> str:
    return " + ".join(n for bit, n in ((1, "ALU"), (2, "CPEND"), (4, "MUL")) if use & bit)


def _ppu(g: Group) -> Iterator[Seen]:
    way, p = g.get(ppu.OPERATION_MODE_CFG), g.get(ppu.DATA_FORMAT).proc_precision
    pad = g.get(ppu.POOLING_PADDING_CFG)
    method = PoolingMethod(way.pooling_method).name.lower()

    def mode(name: str) -> Seen:
        return "PPU", name, _name(p)

    yield mode(f"{method}, {'from memory' if way.flying_mode else 'from the DPU'}")
    if pad.word:
        value = g.get(ppu.PADDING_VALUE_1_CFG).pad_value_0 and method == "average"
        yield mode(f"{method}, {'padding value' if value else 'padding'}")
    if way.notch_addr:
        yield mode("lines with a gap")


def _ppu_rdma(g: Group, pools: Group) -> Iterator[Seen]:
    wide = g.get(ppu_rdma.RDMA_CUBE_IN_WIDTH).cube_in_width
    high = g.get(ppu_rdma.RDMA_CUBE_IN_HEIGHT).cube_in_height
    line = g.get(ppu_rdma.RDMA_SRC_LINE_STRIDE).src_line_stride
    surf = g.get(ppu_rdma.RDMA_SRC_SURF_STRIDE).src_surf_stride
    whole = line == wide and surf == wide * high
    p = pools.get(ppu.DATA_FORMAT).proc_precision
    yield "PPU_RDMA", "cube" if whole else "part of a cube", _name(p)


def table_modes(g: Group, index: npt.NDArray[Any], codes: npt.NDArray[Any]) -> Iterator[Seen]:
    """Where the indices of one look-up lie."""
    p = g.get(dpu.DATA_FORMAT).proc_precision
    cfg = g.get(dpu.LUT_CFG)
    le = g.get(dpu.LUT_LE_START).lut_le_start, g.get(dpu.LUT_LE_END).lut_le_end
    lo = g.get(dpu.LUT_LO_START).lut_lo_start, g.get(dpu.LUT_LO_END).lut_lo_end

    def hit(ends: tuple[int, int]) -> npt.NDArray[Any]:
        return (index > ends[0]) & (index < ends[1])

    def winner(low: int) -> str:
        return "LO" if low else "LE"

    both, none = hit(le) & hit(lo), ~hit(le) & ~hit(lo)
    under, over = (index < min(le[0], lo[0])), (index > max(le[1], lo[1]))
    found = {
        "LE": hit(le) & ~hit(lo),
        "LO": hit(lo) & ~hit(le),
        f"both hit: {winner(cfg.lut_hybrid_priority)}": both,
        f"in the gap: {winner(cfg.lut_hybrid_priority)}": none & (index > le[1]) & (index < lo[0]),
        f"below both: {winner(cfg.lut_uflow_priority)} and its slope": under,
        f"above both: {winner(cfg.lut_oflow_priority)} and its slope": over,
    }
    for name, where in found.items():
        if where.any():
            yield "LUT", name, _name(p)
    offset = g.get(dpu.OUT_CVT_OFFSET).out_cvt_offset
    if p in FLOATS and (codes + offset == 0).any():
        yield "LUT", "code 0 leaves as 2^17", _name(p)


def list_modes(core_number: int, ctx: Context, words: list[int]) -> Iterator[Seen]:
    """What the words of one task do."""
    yield "PC", "chained tasks" if ctx.task else "first task of a list", ANY
    written = {w & 0xFFFF for w in words if w >> 48 not in (0, 1)}
    geometry = {cna.DATA_SIZE0.address, dpu.DATA_CUBE_WIDTH.address}
    starts = any(w >> 48 == 0x81 for w in words)
    if ctx.task and starts and not geometry & written and dpu.DST_BASE_ADDR.address in written:
        yield "PC", "delta task: geometry of the group", ANY
    entries = sum(w & 0xFFFF == dpu.LUT_ACCESS_DATA.address for w in words)
    if entries > 1:  # one is the zero pair of streams without tables
        yield "PC", "tables written by a list", ANY
    if core_number:
        yield "PC", "another core", ANY
    if any(w & 0xFFFF == dpu.S_POINTER.address and w >> 16 & 0x30 for w in words):
        yield "PC", "pointers cleared, no ping-pong", ANY


def switches() -> Iterator[tuple[str, Any, tuple[Any, ...]]]:
    """Name, default and readings of each open question in `opennpu.emu.numerics.Policy`."""
    hints = get_type_hints(Policy)
    for f in dataclasses.fields(Policy):
        if readings := get_args(hints[f.name]):
            yield f.name, f.default, readings


# -- the plugin ------------------------------------------------------------------------------------


class Recorder:
    """Wraps the emulator while the tests run.

    Attributes:
        ran: modes by test, parameters and all.
        broken: (rule, "strict" or "hardware") by test.
        switched: (switch of the policy, reading that is not the default) by test.
    """

    def __init__(self) -> None:
        self.ran: dict[str, set[Seen]] = defaultdict(set)
        self.broken: dict[str, set[tuple[str, str]]] = defaultdict(set)
        self.switched: dict[str, set[tuple[str, str]]] = defaultdict(set)
        self.now: str | None = None

    def note(self, *seen: Seen) -> None:
        if self.now is not None:
            self.ran[self.now].update(seen)

    def switch(self, policy: Policy) -> None:
        if self.now is not None:
            self.switched[self.now].update(
                (name, str(getattr(policy, name)))
                for name, default, _ in switches()
                if getattr(policy, name) != default
            )

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        drawn = getattr(getattr(item, "obj", None), "is_hypothesis_test", False)
        self.now = None if drawn or "test_any_" in item.name else item.nodeid
        try:
            return (yield)
        finally:
            self.now = None

    def pytest_sessionstart(self) -> None:
        run, look_up, report = units.execute, lut.look_up, Context.report
        interpret, by_hand, start = Machine._interpret, Machine._start_by_hand, Machine._start

        def execute(ctx: Context, groups: dict[str, Group]) -> None:
            before = len(ctx.violations)
            run(ctx, groups)
            if len(ctx.violations) == before:
                self.note(*modes(groups))
                self.switch(ctx.policy)

        def looked_up(ctx: Context, g: Group, index: npt.NDArray[Any]) -> npt.NDArray[Any]:
            codes = look_up(ctx, g, index)
            self.note(*table_modes(g, np.asarray(index), codes))
            return codes

        def reported(ctx: Context, rule: str, unit: str, what: str) -> None:
            if self.now is not None:
                self.broken[self.now].add((rule, "strict" if ctx.strict else "hardware"))
            report(ctx, rule, unit, what)

        def interpreted(machine: Machine, c: Any, ctx: Context, words: list[int]) -> Any:
            started = interpret(machine, c, ctx, words)
            self.note(*list_modes(c.number, ctx, words))
            return started

        def started_by_hand(machine: Machine, c: Any, value: int) -> None:
            by_hand(machine, c, value)
            if c.result.completed:
                self.note(("PC", "started by hand through GLOBAL", ANY))

        def started(machine: Machine, c: Any) -> None:
            start(machine, c)
            if c.result.fault is not None:
                way = "write" if c.result.fault.write else "read"
                self.note(("PC", f"interrupt of a DMA {way} error", ANY))

        patches: list[tuple[Any, str, Callable[..., Any]]] = [
            (units, "execute", execute),
            (lut, "look_up", looked_up),
            (Context, "report", reported),
            (Machine, "_interpret", interpreted),
            (Machine, "_start_by_hand", started_by_hand),
            (Machine, "_start", started),
        ]
        for owner, name, new in patches:
            setattr(owner, name, new)
