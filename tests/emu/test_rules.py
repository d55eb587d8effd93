"""Every rule of `opennpu.emu.violations`: a program that breaks it, in both modes.

Strict mode names the rule.  Hardware mode does what the table says of it: a hang before or after
a part of the output, poison, or data that is worked out here.  A rule without a program fails.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from dcomp_encoder import compress
from emu_programs import (
    CONV,
    EW,
    FLYING,
    OPERANDS,
    PING_PONG,
    POOL,
    Bench,
    Conv,
    W,
    X,
    Y,
    flying,
    pool,
)

from opennpu.emu import dcomp
from opennpu.emu.machine import RunResult
from opennpu.emu.numerics import Policy
from opennpu.emu.violations import RULES, Effect
from opennpu.errors import ViolationError
from opennpu.hw import regcmd
from opennpu.hw.regs import Register
from opennpu.hw.rk3588 import cna, core, dpu, dpu_rdma, ppu, ppu_rdma
from opennpu.hw.rk3588.common import Algo, Precision

P = Precision
Body = list[Register]
Array = np.ndarray[Any, Any]
END = Y + 0x10000
POISON, UNTOUCHED = 0xA5, 0xEE
DPU_ALONE = 0x08
UNTIL = {CONV: 0x300, FLYING: 0x300, POOL: 0xC00, DPU_ALONE: 0x300}  # interrupt masks


@dataclass(frozen=True)
class Breach:
    """A program that breaks one rule.

    Attributes:
        body: one task; or ``run`` starts what it takes.
        wrote: a hang comes after something was written; how many bytes.
        value: what a LITERAL effect leaves at Y.
    """

    body: Body | None = None
    start: int = CONV
    run: Callable[[Bench], RunResult] | None = None
    policy: Policy = Policy()
    wrote: int = 0
    value: Callable[[], Array] | None = None

    def __call__(self, bench: Bench) -> RunResult:
        if self.run is not None:
            return self.run(bench)
        assert self.body is not None
        return bench.run((self.body, self.start), mask=UNTIL[self.start])


INT8 = Conv(P.INT8, 8, 8, 64, 32)  # of ones: every output is 64
FP16 = Conv(P.FP16, 8, 8, 64, 32)
REQUANT = Conv(P.INT8, 4, 4, 32, 48, out=P.INT8)
DEPTHWISE = Conv(P.INT8, 4, 4, 64, 1, (3, 3), out=P.INT16, depthwise=True)
INT16 = Conv(P.INT16, 8, 1, 32, 16)
DEEP = Conv(P.FP16, 2, 2, 2048, 16)
WIDE = Conv(P.INT8, 8, 32, 1024, 32, (3, 3))  # rows of one bank
TALL = Conv(P.INT8, 144, 1, 32 * 21, 32)  # fills 97.5 % of three banks; board notes A.6
STREAM = dpu_rdma.RDMA_ERDMA_CFG(erdma_data_size=2, erdma_data_mode=1)
OPERAND = dict(ew_op_src=1, ew_lut_bypass=1, ew_relu_bypass=1, ew_data_mode=1)
ADD = dpu.EW_CFG(edata_size=2, ew_alu_algo=Algo.ADD, **OPERAND)
TABLE = dpu.EW_CFG(ew_op_bypass=1, ew_op_cvt_bypass=1, ew_relu_bypass=1)
KERNEL_2 = ppu.POOLING_KERNEL_CFG(
    kernel_width=2, kernel_height=2, kernel_stride_width=2, kernel_stride_height=2
)
MAX = ppu.OPERATION_MODE_CFG(pooling_method=1, flying_mode=1)
BS = dict(bs_alu_bypass=1, bs_mul_bypass=1, bs_relu_bypass=1)


def flies(*new: Register) -> Body:
    return flying(P.FP16, 4, ADD, STREAM, *new)


def copies(*new: Register) -> Body:
    return flying(P.FP16, 4, *new)


def pools(*new: Register) -> Body:
    return pool(P.FP16, (4, 4), (2, 2), MAX, KERNEL_2, *new)


def mode(**changes: int) -> Register:
    usual = dict(flying_mode=1, mrdma_fp16tofp32_en=1, proc_precision=2, in_precision=2)
    return dpu_rdma.RDMA_FEATURE_MODE_CFG(**{**usual, **changes})


def channels(n: int) -> Body:
    """CORE, DPU, WDMA and DPU_RDMA of ``n`` output channels."""
    return [
        core.DATAOUT_SIZE_1(dataout_channel=n),
        dpu.DATA_CUBE_CHANNEL(channel=n, orig_channel=n),
        dpu.WDMA_SIZE_0(channel_wdma=n),
        dpu_rdma.RDMA_DATA_CUBE_CHANNEL(channel=n),
    ]


def size_e(n: int, **more: int) -> Register:
    return dpu.BS_OW_CFG(od_bypass=1, size_e_0=n, size_e_1=n, size_e_2=n, **more)


def con1(p: Precision, **more: int) -> Register:
    return cna.CONV_CON1(in_precision=p, proc_precision=p, **more)


# -- starts that are not one plain task ------------------------------------------------------------


def list_ended(bench: Bench) -> RunResult:
    return bench.run((copies(), FLYING), task_number=2)


def no_tasks(bench: Bench) -> RunResult:
    return bench.run((copies(), FLYING), task_number=0)


def wedged(bench: Bench) -> RunResult:
    """A fault leaves the core stuck in both modes."""
    lost = copies(dpu.DST_BASE_ADDR(dst_base_addr=0x4000_0000))
    assert bench.run((lost, FLYING)).fault is not None
    return bench.run((copies(), FLYING))


def no_start(bench: Bench) -> RunResult:
    """A second task whose start word is missing."""
    (first, words), (second, more) = bench.place((copies(), FLYING), (copies(), FLYING))
    bench.put(second + (more - 1) * regcmd.WORD_BYTES, np.zeros(8, np.uint8))
    return bench.machine.run(0, bench.space, first, words, task_number=2)


def raw(*words: int) -> Callable[[Bench], RunResult]:
    """A copy, and words that no register class writes."""
    odd = [regcmd.Raw(w) for w in words]
    return lambda bench: bench.run(([*copies(), *odd], FLYING))  # type: ignore[list-item]


def other_core(bench: Bench) -> RunResult:
    return bench.run((INT8.body(cna.S_POINTER(**PING_PONG)), CONV), core=1)


def out_of_step(bench: Bench) -> RunResult:
    half = dpu.S_POINTER(pointer_pp_en=1, pointer_pp_mode=1)
    return bench.run((copies(half), FLYING), (copies(half), FLYING))


def compressed(extra: int) -> Callable[[Bench], RunResult]:
    """One lane has ``extra`` blocks more than it needs, or fewer."""

    def run(bench: Bench) -> RunResult:
        conv = Conv(P.INT8, 1, 1, 64, 64)
        stream, amounts = compress(np.random.default_rng(0).integers(0, 256, 4096).astype(np.uint8))
        amounts[15] = 7 if extra < 0 else amounts[15] + extra
        bench.put(W, stream)
        lanes = [r(**{f"dcomp_amount{i}": amounts[i]}) for i, r in enumerate(dcomp.AMOUNTS)]
        control = [
            cna.DCOMP_CTRL(decomp_control=1),
            cna.DCOMP_REGNUM(dcomp_regnum=0x5555_5555),
        ]
        return bench.run((conv.body(*control, *lanes), CONV))

    return run


def real_channels(bench: Bench) -> RunResult:
    """12 real of 16 channels; the weights of the other four differ."""
    conv = Conv(P.INT8, 2, 2, 16, 32)
    bench.put(W, np.arange(512, dtype=np.uint16).astype(np.uint8))
    body = conv.body(cna.DATA_SIZE1(datain_channel=16, datain_channel_real=12))
    return bench.run((body, CONV))


# -- what literal effects leave --------------------------------------------------------------------


def all_64() -> Array:
    return np.full(8 * 8 * 32, 64, "<i4").view(np.uint8)


def first_half() -> Array:
    """Two of four surfaces of both kernel groups; ones of fp16 bits 0x0101 are about 1.5e-5."""
    one = np.uint16(0x0101).view(np.float16).astype(np.float64)
    atom = np.full(4, 64 * one * one, np.float32).view(np.uint8)
    out = np.full((2, 4, 64, 16), UNTOUCHED, np.uint8)
    out[:, :2] = atom
    return out


def sixteen_channels() -> Array:
    return first_half()[0, :1].repeat(4, axis=0)


def gated() -> Array:
    """Lanes 8 to 15 of each 16 stand still; they are told apart by their poison."""
    lanes = np.full((8, 8, 32), 64.0)
    lanes[..., [n for n in range(32) if n % 16 >= 8]] = POISON
    return lanes.astype("<i4").reshape(64, 8, 4).transpose(1, 0, 2).copy().view(np.uint8)


def lane_0() -> Array:
    """Twice the operand in lane 0 of each atom."""
    out = np.full((4, 8), POISON * 0x0101, "<u2")
    out[:, 0] = np.array(0x0101, np.uint16) + 0x0101  # a subnormal: its double has twice its bits
    return out.view(np.uint8)


def lower_surfaces() -> Array:
    """Depthwise 3x3 of ones: 9; of 16 surfaces of four int32 the first eight are written."""
    out = np.full((16, 4, 4), UNTOUCHED * 0x01010101, "<u4")
    out[:8] = 9
    return out.view(np.uint8)


def third_column() -> Array:
    """Maxima of 2x2 px; the third column lies outside the cube."""
    out = np.full((2, 3, 8), 0x0101, "<u2")
    out[:, 2] = np.array(-np.inf, np.float16).view(np.uint16)
    return out.view(np.uint8)


def reused(bench: Bench) -> RunResult:
    """Weights of ones stay; memory has twos, and it is another start."""
    assert bench.run((INT8.body(), CONV)).completed
    bench.memory[Y:END] = UNTOUCHED
    bench.put(W, np.full(64 * 32, 2, np.uint8))
    keep = INT8.body(cna.CBUF_CON0(data_bank=6, weight_bank=6, weight_reuse=1))
    return bench.run((keep, CONV))


BREACHES: dict[str, Breach] = {
    # -- program controller
    "pc.list_ended": Breach(run=list_ended, wrote=64),
    "pc.task_number": Breach(run=no_tasks),
    "pc.too_long": Breach(copies(), FLYING, policy=Policy(max_words=8)),
    "pc.wedged": Breach(run=wedged),
    "pc.no_start": Breach(run=no_start),
    "pc.target": Breach(run=raw(0x0801 << 48 | dpu.OFFSET_PEND.address)),
    "pc.unknown_register": Breach(run=raw(0x1001 << 48 | 0x4FFC)),
    "pc.reserved_bits": Breach(run=raw(0x1001 << 48 | 1 << 63 - 16 | dpu.OFFSET_PEND.address)),
    "pc.window": Breach(run=raw(0x0401 << 48 | 0x8028)),
    "pc.no_interrupt": Breach(
        run=lambda bench: bench.run((copies(), FLYING), mask=0xC00), wrote=64
    ),
    "pointer.core_bits": Breach(run=other_core),
    "pointer.out_of_step": Breach(run=out_of_step, wrote=64),
    "start.incomplete": Breach(copies(), DPU_ALONE),
    "work.too_much": Breach(INT8.body(), policy=Policy(max_macs=1000)),
    "fields.idle": Breach(INT8.body(cna.FC_CON1(data_offset=1))),
    # -- CNA
    "cna.geometry": Breach(INT8.body(core.DATAOUT_SIZE_0(dataout_width=8, dataout_height=9))),
    "cna.empty": Breach(
        INT8.body(cna.WEIGHT_SIZE2(weight_width=1, weight_height=0, weight_kernels=32))
    ),
    "cna.dma_size": Breach(INT8.body(cna.FC_DATA_SIZE0(dma_height=8, dma_width=4))),
    "cna.precision": Breach(INT8.body(core.MISC_CFG(proc_precision=P.FP16))),
    "cna.channels": Breach(
        INT8.body(
            cna.DATA_SIZE1(datain_channel=24, datain_channel_real=24),
            cna.FC_DATA_SIZE1(dma_channel=24),
        )
    ),
    "cna.channel_real": Breach(run=real_channels),
    "cna.weight_size": Breach(INT8.body(cna.WEIGHT_SIZE0(weight_bytes=64)), value=all_64),
    "cna.line_stride": Breach(INT8.body(cna.DMA_CON1(line_stride=40))),
    "cna.entries": Breach(INT8.body(cna.CBUF_CON1(data_entries=7))),
    "cna.entries_tight": Breach(Conv(P.INT8, 8, 8, 48, 32).body(cna.CBUF_CON1(data_entries=6))),
    "cna.grains": Breach(Conv(P.INT8, 8, 8, 64, 32, (3, 3)).body(cna.CONV_CON2(feature_grains=2))),
    "cna.converter": Breach(FP16.body(cna.CVT_CON0())),
    "cna.packed_input": Breach(INT8.body(con1(P.INT8, argb_in=9))),
    "cna.packed_rows": Breach(
        Conv(P.INT8, 4, 6, 16, 32).body(
            con1(P.INT8, argb_in=10, group_line_off=1, nonalign_dma=1),
            cna.DMA_CON1(line_stride=6),
            cna.DMA_CON2(surf_stride=18),
        )
    ),
    "cna.zero_skip": Breach(INT8.body(cna.FC_CON0(fc_skip_en=1))),
    "cna.decompression": Breach(INT8.body(cna.DCOMP_CTRL(decomp_control=2))),
    "cna.decompression_short": Breach(run=compressed(-1)),
    "cna.decompression_long": Breach(run=compressed(4)),
    "cna.padding_value": Breach(
        Conv(P.INT4, 4, 4, 32, 64, (3, 3), pad=(1, 1)).body(cna.PAD_CON1(pad_value=1))
    ),
    "cna.deconv": Breach(
        INT8.body(
            con1(P.INT8, deconv=1),
            cna.CONV_CON3(conv_x_stride=1, conv_y_stride=1, deconv_x_stride=2, deconv_y_stride=2),
            cna.PAD_CON0(pad_left=12, pad_top=12),
        )
    ),
    "cna.debug": Breach(INT8.body(cna.CONV_CON2(feature_grains=9, csc_do_en=1))),
    "cna.kernel_group": Breach(INT8.body(cna.CONV_CON2(feature_grains=9, kernel_group=2))),
    "cna.nn_mode": Breach(INT8.body(cna.CONV_CON3(conv_x_stride=1, conv_y_stride=1, nn_mode=1))),
    "cna.surf_mode": Breach(INT8.body(cna.DATA_SIZE3(dataout_atomics=64, surf_mode=2))),
    # -- CBUF
    "cbuf.banks": Breach(INT8.body(cna.CBUF_CON0(data_bank=7, weight_bank=6))),
    "cbuf.rows": Breach(
        WIDE.body(cna.CBUF_CON0(data_bank=2, weight_bank=9), cna.CBUF_CON1(data_entries=512))
    ),
    "cbuf.tile": Breach(
        Conv(P.INT8, 40, 32, 64, 32).body(
            cna.CBUF_CON0(data_bank=1, weight_bank=11), cna.CONV_CON2(feature_grains=8)
        )
    ),
    "cbuf.kernel_group": Breach(DEEP.body(cna.CBUF_CON0(data_bank=11, weight_bank=1))),
    "cbuf.fc_data_bank": Breach(
        INT8.body(cna.CBUF_CON0(data_bank=6, weight_bank=6, fc_data_bank=1))
    ),
    "cbuf.int8_slack": Breach(TALL.body(cna.CBUF_CON0(data_bank=3, weight_bank=4))),
    "cbuf.reuse": Breach(run=reused, value=all_64),
    # -- CORE
    "core.mac_gating": Breach(INT8.body(core.MAC_GATING.decode(0x0700_0800)), value=gated),
    "core.mac_gating_off": Breach(INT8.body(core.MAC_GATING.decode(0x0680_0800))),
    "core.precision": Breach(INT8.body(core.MISC_CFG(proc_precision=P.FP32))),
    "core.conv_mode": Breach(INT8.body(core.MISC_CFG(qd_en=1, dw_en=1))),
    "core.channels": Breach(Conv(P.FP16, 4, 4, 32, 17).body(*channels(24))),
    "core.kernels": Breach(FP16.body(*channels(16)), value=sixteen_channels),
    "core.partial_group": Breach(REQUANT.body(*channels(48)), wrote=512),
    "core.partial_group_raw": Breach(Conv(P.INT8, 4, 4, 32, 48).body()),
    "core.clip_float": Breach(FP16.body(core.CLIP_TRUNCATE(clip_truncate=1))),
    # -- DPU
    "dpu.tf32": Breach(
        Conv(P.TF32, 2, 2, 16, 16).body(
            dpu.DATA_FORMAT(proc_precision=7, in_precision=7, out_precision=5)
        )
    ),
    "dpu.precision": Breach(
        copies(dpu.DATA_FORMAT(proc_precision=2, in_precision=2, out_precision=3)), FLYING
    ),
    "dpu.size_e_small": Breach(FP16.body(size_e(1)), value=first_half),
    "dpu.size_e_large": Breach(FP16.body(size_e(7)), wrote=4 * 64 * 16),
    "dpu.size_e_field": Breach(
        DEPTHWISE.body(
            dpu.DATA_FORMAT(proc_precision=0, in_precision=0, out_precision=4),
            dpu.SURFACE_ADD(surf_add=16 * 4),
        ),
        value=lower_surfaces,
    ),
    "dpu.surface_add": Breach(FP16.body(dpu.SURFACE_ADD(surf_add=300))),
    "dpu.geometry": Breach(INT8.body(dpu.WDMA_SIZE_1(width_wdma=8, height_wdma=9))),
    "dpu.output_mode": Breach(copies(dpu.FEATURE_MODE_CFG(flying_mode=1, output_mode=0)), FLYING),
    "dpu.not_modelled": Breach(
        copies(dpu.FEATURE_MODE_CFG(flying_mode=1, output_mode=2, rgp_type=1)), FLYING
    ),
    "dpu.offset_pend": Breach(INT8.body(dpu.OFFSET_PEND(offset_pend=1))),
    "dpu.transposed_group": Breach(
        INT16.body(
            size_e(7, tp_org_en=1),
            dpu.WDMA_SIZE_0(channel_wdma=16, tp_precision=1),
            dpu.DST_SURF_STRIDE(dst_surf_stride=16),
            dpu.SURFACE_ADD(surf_add=4),
        ),
        wrote=8 * 16 * 2,
    ),
    "dpu.algo": Breach(
        INT8.body(dpu.BS_CFG(bs_alu_algo=Algo.FLOOR, bs_mul_bypass=1, bs_relu_bypass=1))
    ),
    "dpu.bn_mul_per_channel": Breach(
        INT8.body(
            dpu.BN_CFG(bn_alu_bypass=1, bn_relu_bypass=1),
            dpu.BN_MUL_CFG(bn_mul_src=1),
            dpu_rdma.RDMA_NRDMA_CFG(nrdma_data_use=4),
            dpu_rdma.RDMA_BN_BASE_ADDR(bn_base_addr=EW),
        )
    ),
    "dpu.missing_operand": Breach(
        INT8.body(dpu.BS_CFG(**{**BS, "bs_alu_bypass": 0}, bs_alu_src=1, bs_alu_algo=Algo.ADD))
    ),
    "dpu.out_narrow": Breach(
        Conv(P.FP16, 4, 4, 32, 16, out=P.FP16).body(dpu.OUT_CVT_SCALE(out_cvt_scale=1))
    ),
    "dpu.out_shift": Breach(INT8.body(dpu.OUT_CVT_SHIFT(out_cvt_shift=64))),
    "dpu.orig_channel": Breach(
        flies(dpu.DATA_CUBE_CHANNEL(channel=8, orig_channel=7)), FLYING, value=lane_0
    ),
    "dpu.orig_channel_large": Breach(INT8.body(dpu.DATA_CUBE_CHANNEL(channel=32, orig_channel=33))),
    "dpu.unaligned": Breach(INT8.body(dpu.DST_BASE_ADDR(dst_base_addr=Y + 8))),
    "ew.converter": Breach(
        flies(dpu.EW_CFG(edata_size=2, ew_alu_algo=Algo.ADD, ew_op_cvt_bypass=1, **OPERAND)),
        FLYING,
    ),
    "ew.operand_size": Breach(
        flies(dpu_rdma.RDMA_ERDMA_CFG(erdma_data_size=3, erdma_data_mode=1)), FLYING
    ),
    "ew.operand_mode": Breach(
        flies(dpu.EW_CFG(edata_size=2, ew_alu_algo=Algo.ADD, **{**OPERAND, "ew_data_mode": 0})),
        FLYING,
    ),
    "ew.equal": Breach(
        flying(
            P.INT8,
            4,
            dpu.EW_CFG(edata_size=1, ew_alu_algo=Algo.MAX, ew_op_cvt_bypass=1, **OPERAND),
            dpu_rdma.RDMA_ERDMA_CFG(erdma_data_size=1, erdma_data_mode=1),
        ),
        FLYING,
    ),
    "ew.register_operand": Breach(
        copies(
            dpu.EW_CFG(ew_lut_bypass=1, ew_relu_bypass=1, ew_alu_algo=Algo.MAX),
            dpu.EW_OP_VALUE_0(ew_operand_0=1),
            dpu.EW_OP_VALUE_1(ew_operand_1=2),
        ),
        FLYING,
    ),
    "ew.minmax_mode": Breach(
        flies(dpu.EW_CFG(edata_size=2, ew_alu_algo=Algo.MAX, ew_binary_en=1, **OPERAND)), FLYING
    ),
    "lut.mode": Breach(copies(TABLE, dpu.LUT_CFG(lut_lo_le_mux=1)), FLYING),
    "lut.long_line": Breach(
        flying(P.FP16, 4097, TABLE, dpu.LUT_CFG.decode(0x68), dpu.DST_BASE_ADDR(dst_base_addr=Y)),
        FLYING,
    ),
    # -- DPU_RDMA
    "dpu_rdma.mrdma_trap": Breach(INT8.body(dpu_rdma.RDMA_FEATURE_MODE_CFG())),
    "dpu_rdma.comb_use": Breach(flies(mode(comb_use=5)), FLYING),
    "dpu_rdma.streams": Breach(flies(mode(comb_use=2)), FLYING),
    "dpu_rdma.operands": Breach(copies(dpu_rdma.RDMA_BRDMA_CFG(brdma_data_use=8)), FLYING),
    "dpu_rdma.precision": Breach(copies(mode(proc_precision=0)), FLYING),
    "dpu_rdma.unpooling": Breach(copies(dpu_rdma.RDMA_SRC_DMA_CFG(unpooling_en=1)), FLYING),
    # -- PPU
    "ppu.geometry": Breach(pools(ppu_rdma.RDMA_CUBE_IN_WIDTH(cube_in_width=5)), POOL),
    "ppu.window": Breach(
        pools(
            ppu.DATA_CUBE_OUT_WIDTH(cube_out_width=3),
            ppu.DST_SURF_STRIDE(dst_surf_stride=6),
            ppu.DATA_FORMAT(proc_precision=2, index_add=6),
        ),
        POOL,
        value=third_column,
    ),
    "ppu.output_size": Breach(pools(ppu.DATA_CUBE_OUT_WIDTH(cube_out_width=1)), POOL),
    "ppu.index_add": Breach(pools(ppu.DATA_FORMAT(proc_precision=2, index_add=5)), POOL),
    "ppu.precision": Breach(pools(ppu_rdma.RDMA_DATA_FORMAT(in_precision=1)), POOL),
    "ppu.type": Breach(pools(ppu.DATA_FORMAT(proc_precision=1, index_add=4)), POOL),
    "ppu.method": Breach(pools(ppu.OPERATION_MODE_CFG(pooling_method=3, flying_mode=1)), POOL),
    "ppu.source": Breach(pools(ppu.OPERATION_MODE_CFG(pooling_method=1)), POOL),
    "ppu.index": Breach(
        pools(ppu.OPERATION_MODE_CFG(pooling_method=1, flying_mode=1, index_en=1)), POOL
    ),
    "ppu.channels": Breach(pools(ppu.DATA_CUBE_OUT_CHANNEL(cube_out_channel=16)), POOL),
    "ppu.not_modelled": Breach(pools(ppu.MISC_CTRL(burst_len=3, nonalign=1)), POOL),
}


def loaded(strict: bool, policy: Policy) -> Bench:
    """Ones wherever a program reads, and a pattern where it writes."""
    bench = Bench.of(policy, strict)
    for at, size in ((X, 0x30000), (W, 0x40000), (OPERANDS, 0x1000), (EW, 0x10000)):
        bench.put(at, np.ones(size, np.uint8))
    bench.memory[Y:END] = UNTOUCHED
    return bench


def test_every_rule_has_a_program() -> None:
    assert sorted(BREACHES) == sorted(RULES)


@pytest.mark.parametrize("rule", BREACHES)
def test_strict_mode_names_the_rule(rule: str) -> None:
    breach = BREACHES[rule]
    bench = loaded(True, breach.policy)
    if RULES[rule].effect is Effect.WARNING:
        r = breach(bench)
        assert r.completed
        assert not r.violations
        assert {v.rule for v in r.warnings} == {rule}
        return
    with pytest.raises(ViolationError) as e:
        breach(bench)
    assert f"[{rule}]" in e.value.what
    assert e.value.remedy == RULES[rule].remedy


@pytest.mark.parametrize("rule", BREACHES)
def test_hardware_mode_has_the_effect(rule: str) -> None:
    breach, effect = BREACHES[rule], RULES[rule].effect
    bench = loaded(False, breach.policy)
    r = breach(bench)
    out = bench.memory[Y:END]
    written = int((out != UNTOUCHED).sum())
    if effect is Effect.WARNING:
        strict = loaded(True, breach.policy)
        breach(strict)
        assert r.completed
        assert not r.violations
        assert written > 0
        np.testing.assert_array_equal(out, strict.memory[Y:END])
        return
    assert {v.rule for v in r.violations} == {rule}
    assert r.completed == (effect not in (Effect.HANG, Effect.UNKNOWN))
    if not r.completed:
        assert written == breach.wrote
    elif effect is Effect.GARBAGE:
        assert written > 0
        assert (out[out != UNTOUCHED] == POISON).all()
    else:
        assert effect is Effect.LITERAL
        assert breach.value is not None
        value = breach.value().reshape(-1)
        np.testing.assert_array_equal(out[: value.size], value)
        assert (out[value.size :] == UNTOUCHED).all()
