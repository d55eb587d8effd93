"""Streams that exercise what the golden ones leave at its default, for the mutation check."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
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
    replace,
)
from rkg import CHAINED, Buffer, Capture

from opennpu.emu.dcomp import AMOUNTS
from opennpu.hw.regs import Register
from opennpu.hw.rk3588 import cna, core, dpu, dpu_rdma, ppu
from opennpu.hw.rk3588.common import Algo, Precision

P = Precision
Tasks = list[tuple[list[Register], int]]
STREAM = dict(erdma_data_mode=1)
ALU = dict(ew_op_src=1, ew_lut_bypass=1, ew_relu_bypass=1, ew_data_mode=1)


def own_streams() -> Iterator[tuple[str, Capture]]:
    """(name, job): each in a memory of its own, random operands."""
    for name, tasks, weights in _all():
        bench = Bench()
        rng = np.random.default_rng(len(name))
        operands = _operands(name, rng)
        bench.put(X, operands[:0x40000])
        bench.put(W, operands[:0x40000] if weights is None else weights)
        bench.put(OPERANDS, operands[:0x4000])
        bench.put(EW, operands[0x10000:0x20000])
        placed = bench.place(*tasks)
        yield name, Capture(placed, [Buffer(0, 3, 0, bench.memory)], CHAINED)


def _operands(name: str, rng: np.random.Generator) -> np.ndarray:
    """Bytes of the element type that the name opens with; any byte will do for integers."""
    if name.startswith(("fp16", "tf32")):
        real = rng.normal(0, 2, 0x20000)
        return real.astype(np.float32 if name.startswith("tf32") else np.float16).view(np.uint8)
    return rng.integers(0, 256, 0x40000).astype(np.uint8)


def _all() -> Iterable[tuple[str, Tasks, np.ndarray | None]]:
    yield "converter int8", [(_converter(), CONV)], None
    yield "converter int8, ties up", [(_converter(round_type=1, cvt_type=1), CONV)], None
    yield "packed int8", [(_packed(), CONV)], None
    yield from _compressed()
    yield "fp16 weights in 10 banks", [(_ten_banks(), CONV)], None
    yield "fp16 deconv", [(_deconv(), CONV)], None
    yield (
        "grouped rows int8",
        [(Conv(P.INT8, 9, 5, 32, 64, (3, 2), (2, 1), (1, 1)).body(), CONV)],
        None,
    )
    yield "int8 truncated", [(_truncated(), CONV)], None
    yield "int8 through one bank", [(_streamed(), CONV)], None
    yield "tf32 padded", [(_padded(), CONV)], None
    yield "int8 requantized", [(_requantized(), CONV)], None
    yield "fp16 bias and prelu", [(_stages(), FLYING)], None
    yield "fp16 clipped", [(_clipped(), FLYING)], None
    yield "int8 products", [(_int_products(0), FLYING)], None
    yield "int8 products of negatives", [(_int_products(1), FLYING)], None
    yield "int16 maxima", [(_int_maxima(), FLYING)], None
    yield "fp16 constant", [(_constant(), FLYING)], None
    yield "fp16 per channel", [(_per_channel(), FLYING)], None
    yield "int16 transposed", [(_transposed(), FLYING)], None
    yield "fp16 table", [(_table(), FLYING)], None
    yield "int16 table", [(_int_table(), FLYING)], None
    yield "int16 table, LO below LE", [(_swapped_table(), FLYING)], None
    yield (
        "int8 BS ceiling",
        [(_ceilings(dpu.BS_RELUX_CMP_VALUE(bs_relux_cmp_dat=40)), FLYING)],
        None,
    )
    yield (
        "int8 BN ceiling",
        [(_ceilings(dpu.BN_RELUX_CMP_VALUE(bn_relux_cmp_dat=40)), FLYING)],
        None,
    )
    yield "fp16 notches", [(_notches(), FLYING)], None
    yield "int8 averages", [(_averages(P.INT8), POOL)], None
    yield "fp16 averages", [(_averages(P.FP16), POOL)], None
    yield "int8 pools in a chain", _pools(), None
    yield "int8 copies in a chain", _copies(), None
    yield "int8 copy without ping-pong", [(_one_group(flying(P.INT8, 5)), FLYING)], None
    yield "int8 pool without ping-pong", [(_one_group(_averages(P.INT8)), POOL)], None
    yield "int8 conv in a chain", _convolutions(), None


def _converter(**con0: int) -> list[Register]:
    return Conv(P.INT8, 4, 5, 16, 32).body(
        cna.CVT_CON0(
            **{
                **dict(cvt_type=0, data_sign=1, round_type=0),
                **dict(cvt_truncate_0=3, cvt_truncate_1=5, cvt_truncate_2=7, cvt_truncate_3=2),
                **con0,
            }
        ),
        cna.CVT_CON1(cvt_scale0=5, cvt_offset0=-9),
        cna.CVT_CON2(cvt_scale1=-13, cvt_offset1=77),
        cna.CVT_CON3(cvt_scale2=99, cvt_offset2=-3),
        cna.CVT_CON4(cvt_scale3=2, cvt_offset3=1),
        cna.CVT_CON5(per_channel_cvt_en=0xF7FF),
    )


def _packed() -> list[Register]:
    return Conv(P.INT8, 4, 16, 16, 32, (3, 3), pad=(1, 1)).body(
        cna.CONV_CON1(argb_in=10, group_line_off=1, nonalign_dma=1),
        cna.DMA_CON1(line_stride=32),
        cna.PAD_CON1(pad_value=0x01020304),
    )


def _compressed() -> Iterator[tuple[str, Tasks, np.ndarray]]:
    """As long lanes as can be, so that each bit of the amounts moves the lanes behind it."""
    rng = np.random.default_rng(0)
    conv = Conv(P.INT8, 2, 2, 64, 64)
    w = rng.integers(0, 256, 64 * 64).astype(np.uint8)
    stream, amounts = compress(w)
    lanes = [r(**{f"dcomp_amount{i}": amounts[i]}) for i, r in enumerate(AMOUNTS)]
    body = conv.body(
        cna.DCOMP_CTRL(decomp_control=1), cna.DCOMP_REGNUM(dcomp_regnum=0x5555_5555), *lanes
    )
    yield "compressed int8", [(body, CONV)], stream


def _ten_banks() -> list[Register]:
    return Conv(P.FP16, 1, 1, 9216, 16).body(cna.CBUF_CON0(data_bank=2, weight_bank=10))


def _deconv() -> list[Register]:
    return Conv(P.FP16, 5, 5, 16, 16, (3, 3), pad=(1, 1), tail_pad=(5, 5)).body(
        cna.CONV_CON1(in_precision=P.FP16, proc_precision=P.FP16, deconv=1),
        cna.CONV_CON3(conv_x_stride=1, conv_y_stride=1, deconv_x_stride=2, deconv_y_stride=2),
    )


def _truncated() -> list[Register]:
    return Conv(P.INT8, 4, 4, 32, 32).body(core.CLIP_TRUNCATE(clip_truncate=1))


def _padded() -> list[Register]:
    conv = Conv(P.TF32, 3, 3, 16, 16, (3, 3), pad=(1, 1))
    return conv.body(cna.PAD_CON1(pad_value=f32(1.5)))


def _streamed() -> list[Register]:
    """A tile that its bank does not hold, with as many grains as it does: 8 rows of 4 KiB."""
    return Conv(P.INT8, 12, 32, 64, 32).body(
        cna.CBUF_CON0(data_bank=1, weight_bank=11), cna.CONV_CON2(feature_grains=8)
    )


def _requantized() -> list[Register]:
    conv = Conv(P.INT8, 5, 5, 64, 64, (3, 3), pad=(1, 1), out=P.INT8)
    n = conv.surfaces - 1
    return conv.body(
        cna.PAD_CON1(pad_value=0x0505),
        dpu.BS_CFG(bs_alu_src=1, bs_alu_algo=Algo.ADD, bs_relu_bypass=1),
        dpu.BS_MUL_CFG(bs_mul_src=1, bs_mul_shift_value=25),
        dpu.DATA_FORMAT(bs_mul_shift_value_neg=24),
        dpu.BS_OW_CFG(ow_src=1, size_e_0=n, size_e_1=n, size_e_2=n),
        dpu.OUT_CVT_SHIFT(out_cvt_shift=6),
        dpu.OUT_CVT_OFFSET(out_cvt_offset=-3),
        dpu_rdma.RDMA_BRDMA_CFG(brdma_data_use=7),
        dpu_rdma.RDMA_BS_BASE_ADDR(bs_base_addr=OPERANDS),
    )


def f32(value: float) -> int:
    return int(np.float32(value).view(np.uint32))


def f16(value: float) -> int:
    return int(np.float16(value).view(np.uint16))


def _stages() -> list[Register]:
    return flying(
        P.FP16,
        12,
        dpu.BS_CFG(bs_alu_algo=Algo.ADD, bs_mul_prelu=1, bs_relu_bypass=1),
        dpu.BS_ALU_CFG(bs_alu_operand=f32(0.37)),
        dpu.BS_MUL_CFG(bs_mul_operand=f16(0.21)),
        dpu.BN_CFG(bn_alu_src=1, bn_alu_algo=Algo.ADD, bn_relu_bypass=1),
        dpu.BN_MUL_CFG(bn_mul_operand=f16(1.7)),
        dpu_rdma.RDMA_NRDMA_CFG(nrdma_data_use=1),
        dpu_rdma.RDMA_BN_BASE_ADDR(bn_base_addr=OPERANDS),
        surfaces=2,
    )


def _clipped() -> list[Register]:
    """All three ceilings, each lower than the one before."""
    return flying(
        P.FP16,
        64,
        dpu.BS_CFG(bs_alu_bypass=1, bs_mul_bypass=1, bs_relu_bypass=1, bs_relux_en=1),
        dpu.BS_RELUX_CMP_VALUE(bs_relux_cmp_dat=f32(1.2345)),
        dpu.BN_CFG(bn_mul_bypass=1, bn_alu_algo=Algo.ADD, bn_relux_en=1, bn_relu_bypass=1),
        dpu.BN_ALU_CFG(bn_alu_operand=f32(-0.6789)),
        dpu.BN_RELUX_CMP_VALUE(bn_relux_cmp_dat=f32(0.4321)),
        dpu.EW_CFG(ew_lut_bypass=1, ew_relux_en=1, ew_alu_algo=Algo.ADD),
        *constants(0.1234),
        dpu.EW_RELUX_CMP_VALUE(ew_relux_cmp_dat=f32(0.3210)),
        dpu.DATA_FORMAT(proc_precision=P.FP16, in_precision=P.FP16, out_precision=P.FP32),
        dpu.OUT_CVT_SCALE(out_cvt_scale=1),
        out=P.FP32,
    )


def constants(value: float) -> list[Register]:
    return [getattr(dpu, f"EW_OP_VALUE_{i}")(**{f"ew_operand_{i}": f32(value)}) for i in range(8)]


def _constant() -> list[Register]:
    return flying(P.FP16, 16, dpu.EW_CFG(ew_lut_bypass=1, ew_alu_algo=Algo.MAX), *constants(0.777))


def _int_products(prelu: int) -> list[Register]:
    """EW: operand converted, then product shifted by its sign; output with ties away from zero."""
    return flying(
        P.INT8,
        24,
        dpu.DATA_FORMAT(ew_truncate_neg=3),
        dpu.EW_CFG(
            ew_op_type=1, edata_size=1, ew_mul_prelu=prelu, ew_cvt_type=1, ew_cvt_round=1, **ALU
        ),
        dpu.EW_CVT_OFFSET_VALUE(ew_op_cvt_offset=-5),
        dpu.EW_CVT_SCALE_VALUE(ew_op_cvt_scale=3, ew_op_cvt_shift=1, ew_truncate=2),
        dpu.OUT_CVT_SHIFT(out_cvt_shift=3, cvt_round=1),
        dpu_rdma.RDMA_ERDMA_CFG(erdma_data_size=1, **STREAM),
        surfaces=2,
    )


def _int_maxima() -> list[Register]:
    return flying(
        P.INT16,
        24,
        dpu.EW_CFG(ew_alu_algo=Algo.MAX, edata_size=2, ew_equal_en=1, ew_op_cvt_bypass=1, **ALU),
        dpu_rdma.RDMA_ERDMA_CFG(erdma_data_size=2, **STREAM),
    )


def _per_channel() -> list[Register]:
    return flying(
        P.FP16,
        6,
        dpu.EW_CFG(
            edata_size=2, ew_op_src=1, ew_lut_bypass=1, ew_relu_bypass=1, ew_alu_algo=Algo.ADD
        ),
        dpu.EW_CVT_SCALE_VALUE(ew_op_cvt_scale=1),
        dpu_rdma.RDMA_ERDMA_CFG(erdma_data_size=2),
        dpu_rdma.RDMA_EW_SURF_STRIDE(ew_surf_stride=1),
        surfaces=3,
    )


def _transposed() -> list[Register]:
    rows, cols = 16, 24
    return flying(
        P.INT16,
        1,
        dpu.BS_OW_CFG(od_bypass=1, size_e_0=7, size_e_1=7, size_e_2=7, tp_org_en=1),
        dpu.DATA_CUBE_HEIGHT(height=rows),
        dpu.DATA_CUBE_NOTCH_ADDR(notch_addr_0=cols - 1, notch_addr_1=cols - 1),
        dpu.WDMA_SIZE_0(channel_wdma=cols, size_c_wdma=cols // 8 - 1, tp_precision=1),
        dpu.WDMA_SIZE_1(width_wdma=1, height_wdma=rows // 8),
        dpu.DST_SURF_STRIDE(dst_surf_stride=1),
        dpu.SURFACE_ADD(surf_add=8),
        dpu_rdma.RDMA_DATA_CUBE_HEIGHT(height=rows),
        dpu_rdma.RDMA_SRC_DMA_CFG(line_notch_addr=cols // 8 - 1),
        dpu_rdma.RDMA_SURF_NOTCH(surf_notch_addr=-(rows - 1) * cols // 8),
        surfaces=cols // 8,
    )


def _table() -> list[Register]:
    """Indices below, in and above both tables; slopes on both sides."""
    rng = np.random.default_rng(0)
    writes: list[Register] = []
    for table in range(2):
        writes.append(dpu.LUT_ACCESS_CFG(lut_access_type=1, lut_table_id=table))
        entries = np.sort(rng.integers(-32768, 32767, 513))
        writes += [dpu.LUT_ACCESS_DATA.decode(int(v) & 0xFFFF) for v in entries]
    return [
        *writes,
        *flying(
            P.FP16,
            64,
            dpu.BN_CFG(bn_alu_algo=Algo.ADD, bn_relu_bypass=1),
            dpu.BN_ALU_CFG(bn_alu_operand=f32(123)),
            dpu.BN_MUL_CFG(bn_mul_operand=f16(6000)),
            dpu.EW_CFG(ew_op_cvt_bypass=1, ew_relu_bypass=1),
            dpu.LUT_CFG(lut_lo_le_mux=2, lut_oflow_priority=1, lut_hybrid_priority=1),
            dpu.LUT_INFO(lut_le_index_select=4, lut_lo_index_select=4),
            dpu.LUT_LE_START(lut_le_start=-8192),
            dpu.LUT_LE_END(),
            dpu.LUT_LO_START(),
            dpu.LUT_LO_END(lut_lo_end=8192),
            dpu.LUT_LE_SLOPE_SCALE(lut_le_slope_uflow_scale=21845),
            dpu.LUT_LE_SLOPE_SHIFT(lut_le_slope_uflow_shift=14),
            dpu.LUT_LO_SLOPE_SCALE(lut_lo_slope_oflow_scale=-21845),
            dpu.LUT_LO_SLOPE_SHIFT(lut_lo_slope_oflow_shift=14),
            dpu.OUT_CVT_OFFSET(out_cvt_offset=3),
            dpu.OUT_CVT_SCALE(out_cvt_scale=3, fp32tofp16_en=1),
            dpu.OUT_CVT_SHIFT(minus_exp=15, cvt_type=1),
        ),
    ]


ENTRIES = np.random.default_rng(1).integers(-9000, 9000, (2, 513))


def _int_tables(*new: Register) -> list[Register]:
    """Random tables, every code seen; slopes that no end cuts off."""
    writes: list[Register] = []
    for table in range(2):
        writes.append(dpu.LUT_ACCESS_CFG(lut_access_type=1, lut_table_id=table))
        writes += [dpu.LUT_ACCESS_DATA.decode(int(v) & 0xFFFF) for v in ENTRIES[table]]
    body = flying(
        P.INT16,
        256,
        dpu.EW_CFG(ew_op_cvt_bypass=1, ew_relu_bypass=1),
        dpu.LUT_INFO(lut_le_index_select=4, lut_lo_index_select=4),
        *new,
    )
    return [*writes, *body]


def _int_table() -> list[Register]:
    """LE below 0 and LO above, as every stream has them."""
    return _int_tables(
        dpu.LUT_CFG(lut_lo_le_mux=2, lut_oflow_priority=1, lut_hybrid_priority=1),
        dpu.LUT_LE_START(lut_le_start=-8192),
        dpu.LUT_LE_END(),
        dpu.LUT_LO_START(),
        dpu.LUT_LO_END(lut_lo_end=8192),
        dpu.LUT_LE_SLOPE_SCALE(lut_le_slope_uflow_scale=13107),
        dpu.LUT_LE_SLOPE_SHIFT(lut_le_slope_uflow_shift=15),
        dpu.LUT_LO_SLOPE_SCALE(lut_lo_slope_oflow_scale=-13107),
        dpu.LUT_LO_SLOPE_SHIFT(lut_lo_slope_oflow_shift=15),
    )


def _swapped_table() -> list[Register]:
    """LO below and LE above, overlapping: the slopes and priorities that `_int_table` rests."""
    return _int_tables(
        dpu.LUT_CFG(lut_lo_le_mux=2, lut_uflow_priority=1),
        dpu.LUT_LO_START(lut_lo_start=-8192),
        dpu.LUT_LO_END(),
        dpu.LUT_LE_START(lut_le_start=-1024),
        dpu.LUT_LE_END(lut_le_end=7168),
        dpu.LUT_LO_SLOPE_SCALE(lut_lo_slope_uflow_scale=13107),
        dpu.LUT_LO_SLOPE_SHIFT(lut_lo_slope_uflow_shift=15),
        dpu.LUT_LE_SLOPE_SCALE(lut_le_slope_oflow_scale=-13107),
        dpu.LUT_LE_SLOPE_SHIFT(lut_le_slope_oflow_shift=15),
    )


def _ceilings(ceiling: Register) -> list[Register]:
    """Constants and a ceiling in the integer pipeline, where each bit of them counts."""
    bs = isinstance(ceiling, dpu.BS_RELUX_CMP_VALUE)
    return flying(
        P.INT8,
        64,
        dpu.BS_CFG(bs_alu_algo=Algo.ADD, bs_mul_bypass=1, bs_relu_bypass=1, bs_relux_en=int(bs)),
        dpu.BS_ALU_CFG(bs_alu_operand=9),
        dpu.BN_CFG(
            bn_alu_algo=Algo.ADD, bn_mul_bypass=1, bn_relu_bypass=1, bn_relux_en=int(not bs)
        ),
        dpu.BN_ALU_CFG(bn_alu_operand=-3 & 0xFFFF_FFFF),
        ceiling,
        out=P.INT32,
    )


def _one_group(body: list[Register]) -> list[Register]:
    """``body`` with ping-pong off: the pointer bit says which group is written."""
    pointers = [r for r in body if type(r).__name__.endswith("S_POINTER")]
    return replace(body, *(type(r)() for r in pointers))


def _notches() -> list[Register]:
    """A sub-rectangle of both operands, into a wider cube."""
    rows, cols = 4, 5
    return flying(
        P.FP16,
        cols,
        dpu.EW_CFG(edata_size=2, ew_alu_algo=Algo.ADD, **ALU),
        dpu.EW_CVT_SCALE_VALUE(ew_op_cvt_scale=1),
        dpu.DATA_CUBE_HEIGHT(height=rows),
        dpu.DATA_CUBE_NOTCH_ADDR(notch_addr_0=3, notch_addr_1=3),
        dpu.WDMA_SIZE_1(width_wdma=cols, height_wdma=rows),
        dpu.DST_SURF_STRIDE(dst_surf_stride=40),
        dpu.SURFACE_ADD(surf_add=40),
        dpu_rdma.RDMA_DATA_CUBE_HEIGHT(height=rows, ew_line_notch_addr=2),
        dpu_rdma.RDMA_SRC_DMA_CFG(line_notch_addr=4),
        dpu_rdma.RDMA_SURF_NOTCH(surf_notch_addr=20),
        dpu_rdma.RDMA_ERDMA_CFG(erdma_data_size=2, **STREAM),
        dpu_rdma.RDMA_EW_SURF_STRIDE(ew_surf_stride=50),
        dpu_rdma.RDMA_EW_SURF_NOTCH(ew_surf_notch=3),
        surfaces=3,
    )


def _averages(p: Precision) -> list[Register]:
    pad = 0x12345 if p is P.INT8 else f16(1.7)
    recip = 0x5555 if p is P.INT8 else 0x7555
    return pool(
        p,
        (5, 6),
        (3, 3),
        ppu.OPERATION_MODE_CFG(pooling_method=0, flying_mode=1),
        ppu.POOLING_KERNEL_CFG(
            kernel_width=3, kernel_height=3, kernel_stride_width=2, kernel_stride_height=2
        ),
        ppu.POOLING_PADDING_CFG(pad_left=1, pad_top=1, pad_bottom=1),
        ppu.RECIP_KERNEL_WIDTH(recip_kernel_width=recip),
        ppu.RECIP_KERNEL_HEIGHT(recip_kernel_height=recip),
        ppu.PADDING_VALUE_1_CFG(pad_value_0=pad),
        surfaces=3,
    )


def _pools() -> Tasks:
    """Max pools whose second half writes pointers and addresses only."""
    one = _averages(P.INT8)
    two = replace(one, ppu.DST_BASE_ADDR(dst_base_addr=Y + 0x4000), ppu.PADDING_VALUE_1_CFG())
    pointers = [r for r in one if type(r).__name__.endswith("S_POINTER")]
    more = [([*pointers, ppu.DST_BASE_ADDR(dst_base_addr=Y + 0x4000 * i)], POOL) for i in (2, 3)]
    return [(one, POOL), (two, POOL), *more]


def _copies() -> Tasks:
    """Two full copies of different length, then deltas: the pointers decide what they do."""
    tasks: Tasks = []
    for i, atoms in enumerate((7, 3)):
        tasks.append(
            (flying(P.INT8, atoms, dpu.DST_BASE_ADDR(dst_base_addr=Y + 0x4000 * i)), FLYING)
        )
    for i in (2, 3, 4):
        body: list[Register] = [
            dpu.S_POINTER(**PING_PONG),
            dpu_rdma.RDMA_S_POINTER(**PING_PONG),
            dpu.DST_BASE_ADDR(dst_base_addr=Y + 0x4000 * i),
        ]
        tasks.append((body, FLYING))
    return tasks


def _convolutions() -> Tasks:
    """The second takes its weights from the CBUF."""
    conv = Conv(P.INT8, 8, 4, 64, 64)
    reuse = conv.body(
        cna.CBUF_CON0(data_bank=6, weight_bank=6, weight_reuse=1, data_reuse=1),
        dpu.DST_BASE_ADDR(dst_base_addr=Y + 0x8000),
        dpu.OUT_CVT_SCALE(out_cvt_scale=2),
    )
    return [(conv.body(), CONV), (reuse, CONV)]
