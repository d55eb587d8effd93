"""DPU: stages, converters, element-wise operands, tables."""

from __future__ import annotations

import numpy as np
import pytest
from emu_programs import CONV, EW, FLYING, OPERANDS, Bench, Conv, X, Y, flying, reference
from hypothesis import given, settings
from hypothesis import strategies as st

from opennpu.emu.numerics import Policy
from opennpu.errors import ViolationError
from opennpu.hw import layout
from opennpu.hw.regs import Register
from opennpu.hw.rk3588 import dpu, dpu_rdma
from opennpu.hw.rk3588.common import Algo, Precision

P = Precision
DTYPE = {P.INT8: np.int8, P.INT16: np.int16, P.INT32: np.int32, P.FP16: np.float16}
BS_OFF = dict(bs_alu_bypass=1, bs_mul_bypass=1, bs_relu_bypass=1)
BN_OFF = dict(bn_alu_bypass=1, bn_mul_bypass=1, bn_relu_bypass=1)


def fly(
    p: Precision,
    values: object,
    *new: Register,
    out: Precision | None = None,
    bench: Bench | None = None,
    surfaces: int = 1,
) -> np.ndarray:
    """Run ``values`` (whole atoms) through the DPU."""
    bench = bench or Bench()
    x = np.asarray(values, DTYPE[p])
    lanes = 16 // x.itemsize
    room = layout.align(x.size, lanes * surfaces)
    bench.put(X, np.pad(x, (0, room - x.size)))
    r = bench.run((flying(p, room // lanes // surfaces, *new, surfaces=surfaces, out=out), FLYING))
    assert r.completed
    dtype = DTYPE.get(out or p, np.float32)
    if (out or p) is P.FP32:
        dtype = np.float32
    return bench.memory[Y:].view(dtype)[: x.size].copy()


# -- output converter (board notes A.9) ----------------------------------------------------------

TIES = [1, 2, 3, 5, 6, 7, -1, -2, -3, -5, -6, -7]


@pytest.mark.parametrize(
    ("round_away", "want"),
    [
        (0, [0, 0, 1, 1, 2, 2, 0, 0, -1, -1, -2, -2]),
        (1, [0, 1, 1, 1, 2, 2, 0, -1, -1, -1, -2, -2]),
    ],
)
def test_out_cvt_rounds_ties_to_even_unless_cvt_round(round_away: int, want: list[int]) -> None:
    shift = dpu.OUT_CVT_SHIFT(out_cvt_shift=2, cvt_round=round_away)
    assert fly(P.INT8, TIES, shift).tolist() == want


def test_out_cvt_offset_comes_after_the_shift_and_before_saturation() -> None:
    new = (dpu.OUT_CVT_SHIFT(out_cvt_shift=1), dpu.OUT_CVT_OFFSET(out_cvt_offset=100))
    assert fly(P.INT8, [1, 3, 100, -128], *new).tolist() == [100, 102, 127, 36]
    # before the rounding both parts would round together: 1/2 + 100 = 100.5 -> 100, the same;
    # an odd offset in units of the last place tells them apart
    odd = (dpu.OUT_CVT_SHIFT(out_cvt_shift=1), dpu.OUT_CVT_OFFSET(out_cvt_offset=1))
    assert fly(P.INT8, [1, 3], *odd).tolist() == [1, 3]
    before = Bench.of(Policy(out_cvt_offset="before"))
    assert fly(P.INT8, [1, 3], *odd, bench=before).tolist() == [2, 2]


def test_out_cvt_scale_is_signed() -> None:
    new = (dpu.OUT_CVT_SCALE(out_cvt_scale=-32768), dpu.OUT_CVT_SHIFT(out_cvt_shift=15))
    assert fly(P.INT8, [1, -5, 127, -128], *new).tolist() == [-1, 5, -127, 127]


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=4),
    st.integers(-(2**15), 2**15 - 1),
    st.integers(0, 63),
    st.integers(-300, 300),
    st.booleans(),
)
def test_out_cvt_equals_integer_arithmetic(
    values: list[int], scale: int, shift: int, offset: int, away: bool
) -> None:
    got = fly(
        P.INT32,
        values,
        dpu.OUT_CVT_SCALE(out_cvt_scale=scale),
        dpu.OUT_CVT_SHIFT(out_cvt_shift=shift, cvt_round=int(away)),
        dpu.OUT_CVT_OFFSET(out_cvt_offset=offset),
    )
    for v, have in zip(values, got.tolist(), strict=True):
        t = v * scale
        floor, rest = t >> shift, t & (1 << shift) - 1
        half = 1 << shift >> 1
        if shift and (rest > half or (rest == half and (t > 0 if away else floor & 1))):
            floor += 1
        assert have == min(max(floor + offset, -(2**31)), 2**31 - 1)


def test_fp16_narrowing_is_nearest_even_and_overflows_to_infinity() -> None:
    conv = Conv(P.FP16, 1, 1, 16, 16, out=P.FP16)
    x, w = np.zeros((1, 1, 16), np.float16), np.zeros((16, 1, 1, 16), np.float16)
    x[0, 0, :2] = 1024, 1
    w[:4, 0, 0, 0] = 2, 2, 64, 63.9375
    w[:4, 0, 0, 1] = 1, 3, 0, 0
    bench = Bench()
    conv.load(bench, x, w)
    assert bench.run((conv.body(), CONV)).completed
    assert conv.result(bench)[0, 0, :4].tolist() == [2048, 2052, np.inf, 65472]


@pytest.mark.parametrize("p", [P.INT8, P.INT16, P.INT32, P.FP16])
def test_flying_copy_moves_every_bit(p: Precision) -> None:
    x = np.random.default_rng(0).integers(0, 256, 256).astype(np.uint8).view(DTYPE[p])
    if p is P.FP16:
        x = x[np.isfinite(x)]
    np.testing.assert_array_equal(fly(p, x), x)


def test_unwidened_fp16_needs_no_narrowing_and_a_mix_is_a_violation() -> None:
    plain = dpu_rdma.RDMA_FEATURE_MODE_CFG(flying_mode=1, proc_precision=2, in_precision=2)
    x = [1.5, -2, 65504]
    copy = fly(P.FP16, x, plain, dpu.OUT_CVT_SCALE(out_cvt_scale=1))
    assert copy.tolist() == x
    with pytest.raises(ViolationError, match="dpu.out_narrow"):
        fly(P.FP16, x, plain)


# -- BS and BN -----------------------------------------------------------------------------------


def test_bs_relu_and_relux() -> None:
    cfg = dpu.BS_CFG(bs_alu_bypass=1, bs_mul_bypass=1, bs_relux_en=1)
    limit = dpu.BS_RELUX_CMP_VALUE(bs_relux_cmp_dat=int(np.float32(6).view(np.uint32)))
    got = fly(P.FP16, [-1, 0, 3, 6.5, np.nan], cfg, limit)
    assert got[:4].tolist() == [0, 0, 3, 6]
    assert np.isnan(got[4])
    integer = dpu.BS_RELUX_CMP_VALUE(bs_relux_cmp_dat=6)
    assert fly(P.INT8, [-1, 0, 3, 7], cfg, integer).tolist() == [0, 0, 3, 6]


def test_bs_adds_then_multiplies_and_bn_multiplies_then_adds() -> None:
    two, three = int(np.float16(2).view(np.uint16)), int(np.float32(3).view(np.uint32))
    bs = (
        dpu.BS_CFG(bs_alu_algo=Algo.ADD, bs_relu_bypass=1),
        dpu.BS_ALU_CFG(bs_alu_operand=three),
        dpu.BS_MUL_CFG(bs_mul_operand=two),
    )
    bn = (
        dpu.BN_CFG(bn_alu_algo=Algo.ADD, bn_relu_bypass=1),
        dpu.BN_ALU_CFG(bn_alu_operand=three),
        dpu.BN_MUL_CFG(bn_mul_operand=two),
    )
    assert fly(P.FP16, [1, 2], *bs).tolist() == [8, 10]
    assert fly(P.FP16, [1, 2], *bn).tolist() == [5, 7]
    assert fly(P.FP16, [1, 2], *bn, bench=Bench.of(Policy(bn_order="alu_mul"))).tolist() == [8, 10]


def test_prelu_multiplies_negative_values_only() -> None:
    half = int(np.float16(0.5).view(np.uint16))
    new = (
        dpu.BS_CFG(bs_alu_bypass=1, bs_mul_prelu=1, bs_relu_bypass=1),
        dpu.BS_MUL_CFG(bs_mul_operand=half),
    )
    assert fly(P.FP16, [-4, 4, -1], *new).tolist() == [-2, 4, -0.5]


def test_integer_multiply_shifts_by_sign_and_saturates() -> None:
    new = (
        dpu.BS_CFG(bs_alu_bypass=1, bs_relu_bypass=1),
        dpu.BS_MUL_CFG(bs_mul_operand=3, bs_mul_shift_value=1),
        dpu.DATA_FORMAT(
            proc_precision=P.INT32,
            in_precision=P.INT32,
            out_precision=P.INT32,
            bs_mul_shift_value_neg=2,
        ),
    )
    got = fly(P.INT32, [1, 3, -2, -6, 2**31 - 1], *new)
    assert got.tolist() == [2, 4, -2, -4, 2**31 - 1]  # 1.5, 4.5; -1.5, -4.5


def test_per_channel_operands_of_bs_and_bn() -> None:
    bench = Bench()
    bias = np.arange(16, dtype=np.float32)
    scale = np.arange(1, 17).astype(np.float16)
    bench.put(OPERANDS, bias)
    bench.put(OPERANDS + 0x100, scale)
    got = fly(
        P.FP16,
        np.ones(32),
        dpu.BS_CFG(bs_alu_src=1, bs_alu_algo=Algo.ADD, bs_mul_bypass=1, bs_relu_bypass=1),
        dpu.BN_CFG(bn_alu_bypass=1, bn_relu_bypass=1),
        dpu.BN_MUL_CFG(bn_mul_src=1),
        dpu_rdma.RDMA_BRDMA_CFG(brdma_data_use=1),
        dpu_rdma.RDMA_BS_BASE_ADDR(bs_base_addr=OPERANDS),
        dpu_rdma.RDMA_NRDMA_CFG(nrdma_data_use=4),
        dpu_rdma.RDMA_BN_BASE_ADDR(bn_base_addr=OPERANDS + 0x100),
        bench=bench,
        surfaces=2,
    )
    want = ((1 + bias) * scale.astype(np.float32)).reshape(2, 1, 8)
    np.testing.assert_array_equal(got.reshape(2, 2, 8), np.broadcast_to(want, (2, 2, 8)))


def test_integer_bn_multiplier_per_channel_hangs() -> None:
    new = (
        dpu.BN_CFG(bn_alu_bypass=1, bn_relu_bypass=1),
        dpu.BN_MUL_CFG(bn_mul_src=1),
        dpu_rdma.RDMA_NRDMA_CFG(nrdma_data_use=4),
        dpu_rdma.RDMA_BN_BASE_ADDR(bn_base_addr=OPERANDS),
    )
    with pytest.raises(ViolationError, match="dpu.bn_mul_per_channel"):
        fly(P.INT8, [1], *new)


# -- element-wise (board notes A.10) -------------------------------------------------------------

ALU = dict(ew_op_src=1, ew_lut_bypass=1, ew_relu_bypass=1, ew_data_mode=1, ew_cvt_type=0)
STREAM = dict(erdma_data_mode=1)


def two_operands(p: Precision, a: object, b: object, cfg: Register, *new: Register) -> np.ndarray:
    bench = Bench()
    b = np.asarray(b, DTYPE[p])
    bench.put(EW, b)
    size = {1: 1, 2: 2, 4: 3}[b.itemsize]
    return fly(
        p, a, cfg, dpu_rdma.RDMA_ERDMA_CFG(erdma_data_size=size, **STREAM), *new, bench=bench
    )


@pytest.mark.parametrize(
    ("algo", "want"),
    [
        (Algo.ADD, [4, 2.5, -1]),
        (Algo.MINUS, [-2, 1.5, -5]),
        (Algo.MAX, [3, 2, 2]),
        (Algo.MIN, [1, 0.5, -3]),
    ],
)
def test_fp16_alu_on_two_cubes(algo: Algo, want: list[float]) -> None:
    cfg = dpu.EW_CFG(edata_size=2, ew_alu_algo=algo, **ALU)
    assert two_operands(P.FP16, [1, 2, -3], [3, 0.5, 2], cfg).tolist() == want
    bypassed = dpu.EW_CFG(edata_size=2, ew_alu_algo=algo, ew_op_cvt_bypass=1, **ALU)
    with pytest.raises(ViolationError, match=r"ew\.converter"):
        two_operands(P.FP16, [1], [3], bypassed)


def test_fp16_multiply_takes_its_factor_past_the_converter() -> None:
    cfg = dpu.EW_CFG(edata_size=2, ew_op_type=1, ew_op_cvt_bypass=1, **ALU)
    assert two_operands(P.FP16, [1, 2, -3], [3, 0.5, 2], cfg).tolist() == [3, 1, -6]
    with pytest.raises(ViolationError, match=r"ew\.converter"):
        two_operands(P.FP16, [1], [3], dpu.EW_CFG(edata_size=2, ew_op_type=1, **ALU))


def test_fp16_divide_runs_on_the_unwidened_path() -> None:
    cfg = dpu.EW_CFG(edata_size=2, ew_alu_algo=Algo.DIV, ew_op_cvt_bypass=1, **ALU)
    got = two_operands(
        P.FP16,
        [1, 2, -3],
        [3, 0.5, 2],
        cfg,
        dpu_rdma.RDMA_FEATURE_MODE_CFG(flying_mode=1, proc_precision=2, in_precision=2),
        dpu.OUT_CVT_SCALE(out_cvt_scale=1),
    )
    np.testing.assert_array_equal(got, np.float16([1 / 3, 4, -1.5]))


@pytest.mark.parametrize("p", [P.INT8, P.INT16, P.INT32])
def test_integer_alu_saturates(p: Precision) -> None:
    top = np.iinfo(DTYPE[p]).max
    size = {P.INT8: 1, P.INT16: 2, P.INT32: 3}[p]
    common = dict(edata_size=size, ew_op_cvt_bypass=1, **ALU)
    add = dpu.EW_CFG(ew_alu_algo=Algo.ADD, **common)
    assert two_operands(p, [top, -top - 1, 3], [1, -1, 4], add).tolist() == [top, -top - 1, 7]
    biggest = dpu.EW_CFG(ew_alu_algo=Algo.MAX, ew_equal_en=1, **common)
    assert two_operands(p, [top, -5], [1, 2], biggest).tolist() == [top, 2]
    mul = dpu.EW_CFG(ew_op_type=1, **common)
    assert two_operands(p, [top, 3], [2, -4], mul).tolist() == [top, -12]


def test_integer_operand_converter_adds_first_or_scales_first() -> None:
    # (3+1)*3/2 = 6, (-2+1)*3/2 = -1.5 -> -2; 3*3/2 = 4.5 -> 4, +1; -2*3/2 = -3, +1
    for first, want in ((1, [10 + 6, 10 - 2]), (0, [10 + 5, 10 - 2])):
        alu = ALU | {"ew_cvt_type": first}
        cfg = dpu.EW_CFG(edata_size=1, ew_alu_algo=Algo.ADD, **alu)
        got = two_operands(
            P.INT8,
            [10, 10],
            [3, -2],
            cfg,
            dpu.EW_CVT_OFFSET_VALUE(ew_op_cvt_offset=1),
            dpu.EW_CVT_SCALE_VALUE(ew_op_cvt_scale=3, ew_op_cvt_shift=1),
        )
        assert got.tolist() == want


def test_operand_sizes_must_agree_and_flying_needs_orig_channel() -> None:
    cfg = dpu.EW_CFG(edata_size=3, ew_alu_algo=Algo.ADD, **ALU)
    with pytest.raises(ViolationError, match="ew.operand_size"):
        two_operands(P.FP16, [1], [1], cfg)
    cfg = dpu.EW_CFG(edata_size=2, ew_alu_algo=Algo.ADD, **ALU)
    with pytest.raises(ViolationError, match="dpu.orig_channel"):
        two_operands(P.FP16, [1], [1], cfg, dpu.DATA_CUBE_CHANNEL(channel=8, orig_channel=1))
    for comb in (1, 5):
        mode = dpu_rdma.RDMA_FEATURE_MODE_CFG(
            flying_mode=1, mrdma_fp16tofp32_en=1, proc_precision=2, in_precision=2, comb_use=comb
        )
        with pytest.raises(ViolationError, match="dpu_rdma.comb_use"):
            two_operands(P.FP16, [1], [1], cfg, mode)


@pytest.mark.parametrize("pixels", [4, 12, 20])
def test_two_operand_convolution_reads_alternate_surfaces(pixels: int) -> None:
    """board notes A.10: even surfaces by MRDMA, odd by ERDMA, both skip the other's."""
    conv = Conv(P.FP16, pixels, 1, 32, 32, out=P.FP16)
    rng = np.random.default_rng(0)
    x = rng.integers(-5, 5, (pixels, 1, 32)).astype(np.float16)
    w = rng.integers(-2, 2, (32, 1, 1, 32)).astype(np.float16)
    other = rng.integers(-9, 9, (pixels, 1, 32)).astype(np.float16)
    bench = Bench()
    conv.load(bench, x, w)
    bench.put(EW, layout.pack_cube(other[None], P.FP16))
    body = conv.body(
        dpu.EW_CFG(edata_size=2, ew_alu_algo=Algo.ADD, **ALU),
        dpu_rdma.RDMA_ERDMA_CFG(erdma_data_size=2, **STREAM),
        dpu_rdma.RDMA_SRC_BASE_ADDR(src_base_addr=EW),
        dpu_rdma.RDMA_EW_BASE_ADDR(ew_base_addr=EW + pixels * 16),
        dpu_rdma.RDMA_SURF_NOTCH(surf_notch_addr=pixels),
        dpu_rdma.RDMA_EW_SURF_STRIDE(ew_surf_stride=pixels),
        dpu_rdma.RDMA_EW_SURF_NOTCH(ew_surf_notch=pixels),
        dpu_rdma.RDMA_FEATURE_MODE_CFG(comb_use=5, burst_len=15, proc_precision=2, in_precision=2),
    )
    assert bench.run((body, CONV)).completed
    np.testing.assert_array_equal(conv.result(bench), reference(conv, x, w) + other)


def test_register_operand() -> None:
    word = int(np.float32(1.5).view(np.uint32))
    values = [getattr(dpu, f"EW_OP_VALUE_{i}")(**{f"ew_operand_{i}": word}) for i in range(8)]
    cfg = dpu.EW_CFG(ew_lut_bypass=1, ew_relu_bypass=1, ew_alu_algo=Algo.MAX)
    assert fly(P.FP16, [1, 2], cfg, *values).tolist() == [1.5, 2]
    with pytest.raises(ViolationError, match="ew.register_operand"):
        fly(P.FP16, [1, 2], cfg, values[0])


def test_mrdma_walks_lines_and_surfaces_with_notches() -> None:
    """Row-major fp16 matrix read as W=1, H=rows, C=columns (peer notes 2.5)."""
    rows, cols = 5, 24
    x = np.arange(rows * cols).astype(np.float16).reshape(rows, cols)
    bench = Bench()
    bench.put(X, x)
    body = flying(
        P.FP16,
        1,
        dpu.DATA_CUBE_HEIGHT(height=rows),
        dpu.WDMA_SIZE_1(width_wdma=1, height_wdma=rows),
        dpu.DST_SURF_STRIDE(dst_surf_stride=rows),
        dpu.SURFACE_ADD(surf_add=rows),
        dpu_rdma.RDMA_DATA_CUBE_HEIGHT(height=rows),
        dpu_rdma.RDMA_SRC_DMA_CFG(line_notch_addr=cols // 8 - 1),
        dpu_rdma.RDMA_SURF_NOTCH(surf_notch_addr=-(rows - 1) * cols // 8),
        surfaces=cols // 8,
    )
    assert bench.run((body, FLYING)).completed
    got = layout.unpack_cube(bench.memory[Y:], (1, rows, 1, cols), P.FP16)
    np.testing.assert_array_equal(got.reshape(rows, cols), x)


@pytest.mark.parametrize(("rows", "cols"), [(8, 8), (16, 24), (24, 8)])
def test_tp_org_en_turns_a_row_major_matrix_into_a_cube_and_back(rows: int, cols: int) -> None:
    """peer notes 2.5: [R][L] -> cube with C=R, W=L, and the way back."""
    x = np.arange(rows * cols).astype(np.int16).reshape(rows, cols)
    bench = Bench()
    bench.put(X, x)
    writer = dpu.BS_OW_CFG(od_bypass=1, size_e_0=7, size_e_1=7, size_e_2=7, tp_org_en=1)
    to_cube = flying(
        P.INT16,
        1,
        writer,
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
    assert bench.run((to_cube, FLYING)).completed
    cube = layout.unpack_cube(bench.memory[Y:], (1, 1, cols, rows), P.INT16)
    np.testing.assert_array_equal(cube.reshape(cols, rows).T, x)
    back = flying(
        P.INT16,
        cols,
        writer,
        dpu.DST_BASE_ADDR(dst_base_addr=EW),
        dpu.WDMA_SIZE_0(channel_wdma=rows, size_c_wdma=rows // 8 - 1, tp_precision=1),
        dpu.WDMA_SIZE_1(width_wdma=cols // 8, height_wdma=1),
        dpu.DST_SURF_STRIDE(dst_surf_stride=cols // 8),
        dpu.SURFACE_ADD(surf_add=cols),
        dpu_rdma.RDMA_SRC_BASE_ADDR(src_base_addr=Y),
        surfaces=rows // 8,
    )
    assert bench.run((back, FLYING)).completed
    np.testing.assert_array_equal(bench.memory[EW:].view(np.int16)[: x.size], x.reshape(-1))


# -- tables (board notes A.11) -------------------------------------------------------------------


def table_program(offset: int = 0, minus_exp: int = 15, **slopes: int) -> list[Register]:
    return [
        dpu.BN_CFG(bn_alu_algo=Algo.ADD, bn_relu_bypass=1),
        dpu.BN_ALU_CFG(bn_alu_operand=0x8000_0000),
        dpu.BN_MUL_CFG(bn_mul_operand=int(np.float16(1024).view(np.uint16))),
        dpu.EW_CFG(ew_op_cvt_bypass=1, ew_relu_bypass=1),
        dpu.LUT_CFG(lut_lo_le_mux=2, lut_oflow_priority=1, lut_hybrid_priority=1),
        dpu.LUT_INFO(lut_le_index_select=5, lut_lo_index_select=5),
        dpu.LUT_LE_START(lut_le_start=-16384),
        dpu.LUT_LO_END(lut_lo_end=16384),
        dpu.LUT_LE_SLOPE_SCALE(lut_le_slope_uflow_scale=slopes.get("scale", 0)),
        dpu.LUT_LE_SLOPE_SHIFT(lut_le_slope_uflow_shift=slopes.get("shift", 0)),
        dpu.OUT_CVT_OFFSET(out_cvt_offset=offset),
        dpu.OUT_CVT_SHIFT(minus_exp=minus_exp, cvt_type=1),
    ]


def load_tables(bench: Bench, le: np.ndarray, lo: np.ndarray) -> None:
    write = bench.machine.write_register
    for table, entries in enumerate((le, lo)):
        write(
            0,
            dpu.LUT_ACCESS_CFG.address,
            dpu.LUT_ACCESS_CFG(lut_access_type=1, lut_table_id=table).word,
        )
        for v in entries.tolist():
            write(0, dpu.LUT_ACCESS_DATA.address, v & 0xFFFF)


def curve(bench: Bench) -> None:
    """q = index, shifted up by 16384: LE 0..16384, LO 16384..32767."""
    le = np.arange(0, 16385, 32)
    load_tables(bench, le, np.minimum(le + 16384, 32767))


def test_table_interpolates_linearly_and_floors() -> None:
    bench = Bench()
    curve(bench)
    x = np.float16([-16, -15.5, -3 / 1024, 0, 1 / 1024, 3.25, 15])
    got = fly(P.FP16, x, *table_program(offset=1), bench=bench)
    want = (np.rint(x.astype(float) * 1024) + 16384 + 1) / 32768
    want = np.minimum(want, 1)
    np.testing.assert_array_equal(got, want.astype(np.float16))


def test_table_extrapolates_with_its_slope_and_not_below_zero() -> None:
    bench = Bench()
    le = np.arange(0, 16385, 32) // 2 + 100
    load_tables(bench, le, np.full(513, 8292))
    new = table_program(offset=1, scale=1, shift=5)
    got = fly(P.FP16, [-16, -17, -19, -32], *new, bench=bench)
    codes = [100, 100 - 32, 100 - 96, 0]
    np.testing.assert_array_equal(got, (np.array(codes) + 1).astype(np.float16) / 32768)


@pytest.mark.parametrize(("minus_exp", "spike"), [(15, 4), (14, 8), (13, 16), (11, 64), (10, 128)])
def test_a_zero_code_decodes_as_two_to_the_17(minus_exp: int, spike: float) -> None:
    bench = Bench()
    load_tables(bench, np.zeros(513, int), np.zeros(513, int))
    assert fly(P.FP16, [1], *table_program(0, minus_exp), bench=bench)[0] == spike
    assert fly(P.FP16, [1], *table_program(1, minus_exp), bench=bench)[0] == 2.0**-minus_exp
    zero = Bench.of(Policy(lut_zero_code="zero"))
    assert fly(P.FP16, [1], *table_program(0, minus_exp), bench=zero)[0] == 0


def test_zero_pair_on_the_table_port_changes_nothing() -> None:
    """Streams zero all LUT registers: that is a read access (register notes A.3)."""
    bench = Bench()
    curve(bench)
    before = bench.machine._cores[0].chip.tables.copy()
    zeros = [dpu.LUT_ACCESS_CFG(), dpu.LUT_ACCESS_DATA()]
    fly(P.FP16, [1], *zeros, bench=bench)
    np.testing.assert_array_equal(bench.machine._cores[0].chip.tables, before)
