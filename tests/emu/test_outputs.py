"""DPU and PPU: output types, stages, tables, transposes, pooling of what the DPU puts out."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from emu_programs import (
    CONV,
    EW,
    FLYING,
    OPERANDS,
    POOL,
    Bench,
    Conv,
    X,
    Y,
    flying,
    pool,
    reference,
)
from test_dpu import load_tables

from opennpu.emu.numerics import Policy
from opennpu.errors import ViolationError
from opennpu.hw import layout
from opennpu.hw.regs import Register
from opennpu.hw.rk3588 import chip, dpu, dpu_rdma, ppu, ppu_rdma
from opennpu.hw.rk3588.common import Algo, PoolingMethod, Precision

P, M = Precision, PoolingMethod
Array = np.ndarray[Any, Any]
NUMPY = {
    P.INT8: np.int8,
    P.INT16: np.int16,
    P.INT32: np.int32,
    P.FP16: np.float16,
    P.BF16: ml_dtypes.bfloat16,
    P.FP32: np.float32,
}


def fly(
    p: Precision,
    values: Any,
    *new: Register,
    out: Precision | None = None,
    bench: Bench | None = None,
    second: Any = None,
) -> Array:
    """One line of pixels through the DPU; ``second``: an operand per pixel."""
    bench = bench or Bench()
    x = np.asarray(values, NUMPY[p])
    lanes = chip.elements_per_atom(p)
    room = layout.align(x.size, lanes)
    bench.put(X, np.pad(x, (0, room - x.size)))
    if second is not None:
        bench.put(EW, np.asarray(second, NUMPY[p]))
    r = bench.run((flying(p, room // lanes, *new, out=out), FLYING))
    assert r.completed
    shape = (1, 1, room // lanes, lanes)
    return layout.unpack_cube(bench.memory[Y:], shape, out or p).reshape(-1)[: x.size]


# -- element types that leave (board notes A.1, A.9) -----------------------------------------------

FROM_CORE = [
    *[(P.INT8, out) for out in (P.INT8, P.INT16, P.INT32, P.FP16, P.FP32)],
    *[(P.INT16, out) for out in (P.INT8, P.INT16, P.INT32, P.FP16, P.FP32)],
    (P.INT4, P.INT16),
    *[(P.FP16, out) for out in (P.INT8, P.INT16, P.INT32, P.FP16, P.FP32)],
    (P.BF16, P.FP32),
    (P.TF32, P.FP32),
]


@pytest.mark.parametrize(("p", "out"), FROM_CORE, ids=lambda p: p.name)
def test_what_core_computes_leaves_saturated_or_rounded(p: Precision, out: Precision) -> None:
    """Sums up to some 10**5: past int8 and int16, past the integers that fp16 holds."""
    ic = 128
    conv = Conv(p, 3, 3, ic, 2 * chip.KERNEL_GROUP[p], out=out)
    top = 8 if p is P.INT4 else 60
    rng = np.random.default_rng(0)
    x = rng.integers(0, top, (3, 3, ic)).astype(layout.NUMPY_DTYPE[p])
    w = (
        rng.integers(-top, top, (conv.oc, 1, 1, ic))
        // (1 + np.arange(conv.oc) % 5)[:, None, None, None]
    )
    w = w.astype(layout.NUMPY_DTYPE[p])
    bench = Bench()
    conv.load(bench, x, w)
    assert bench.run((conv.body(), CONV)).completed
    want = reference(conv, x, w)
    dtype = np.dtype(NUMPY[out])
    if dtype.kind == "i":
        info = np.iinfo(dtype)
        assert (np.abs(want) > 127).any()
        want = np.clip(want, info.min, info.max)
    np.testing.assert_array_equal(conv.result(bench), want.astype(dtype))


@pytest.mark.parametrize(
    ("p", "out"),
    [
        (P.INT8, P.INT16),
        (P.INT8, P.INT32),
        (P.INT8, P.FP16),
        (P.INT8, P.FP32),
        (P.INT16, P.INT32),
        (P.INT16, P.FP32),
        (P.INT32, P.FP32),
        (P.FP16, P.FP32),
        (P.BF16, P.FP32),
        (P.FP32, P.FP32),
    ],
    ids=lambda p: p.name,
)
def test_what_memory_holds_leaves_wider(p: Precision, out: Precision) -> None:
    raw = np.random.default_rng(0).integers(0, 256, 512).astype(np.uint8)
    x = raw.view(NUMPY[p])
    x = x[np.isfinite(x.astype(np.float64))]
    np.testing.assert_array_equal(fly(p, x, out=out), x.astype(np.float64).astype(NUMPY[out]))


def test_floats_leave_as_integers_rounded_to_even_and_clipped() -> None:
    """NaN counts as 0: GUESSED."""
    x = [0.5, 1.5, -0.5, -2.5, 40000, -40000, np.inf, -np.inf, np.nan]
    want = [0, 2, 0, -2, 32767, -32768, 32767, -32768, 0]
    assert fly(P.FP16, x, out=P.INT16).tolist() == want
    top = [0, 2, 0, -2, 40000, -40000, 2**31 - 1, -(2**31), 0]
    assert fly(P.FP16, x, out=P.INT32).tolist() == top


def test_nan_and_infinity_stay_in_float_outputs() -> None:
    for out in (P.FP16, P.FP32):
        got = fly(P.FP16, [np.nan, np.inf, -np.inf, -0.0, 2.0**-24], out=out)
        assert np.isnan(got[0])
        assert got[1:].tolist() == [np.inf, -np.inf, 0, 2.0**-24]
        assert np.signbit(got[3])


@pytest.mark.parametrize(
    ("p", "out"),
    [(P.INT4, P.INT8), (P.BF16, P.FP16), (P.BF16, P.INT16), (P.TF32, P.FP16)],
    ids=lambda p: p.name,
)
def test_int4_bf16_and_tf32_have_one_output_type(p: Precision, out: Precision) -> None:
    conv = Conv(p, 2, 2, 32, chip.KERNEL_GROUP[p], out=out)
    with pytest.raises(ViolationError, match="dpu.precision"):
        Bench().run((conv.body(), CONV))


def test_add_first_in_the_integer_converter_is_a_switch() -> None:
    """CVT_TYPE 1 with an offset: unmeasured (board notes A.9).  5 * 2 + 3 or (5 + 3) * 2."""
    new = (
        dpu.OUT_CVT_SCALE(out_cvt_scale=2),
        dpu.OUT_CVT_OFFSET(out_cvt_offset=3),
        dpu.OUT_CVT_SHIFT(cvt_type=1),
    )
    for reading, want in (("ignored", 13), ("honoured", 16)):
        bench = Bench.of(Policy(out_cvt_add_first=reading))  # type: ignore[arg-type]
        assert fly(P.INT8, [5], *new, bench=bench)[0] == want


@pytest.mark.parametrize("minus_exp", [0, 1, 15])
def test_minus_exp_divides_floats_and_leaves_integers_alone(minus_exp: int) -> None:
    new = dpu.OUT_CVT_SHIFT(minus_exp=minus_exp)
    assert fly(P.FP16, [3, -4], new, out=P.FP32).tolist() == [
        3 * 2.0**-minus_exp,
        -4 * 2.0**-minus_exp,
    ]
    assert fly(P.INT8, [3, -4], new).tolist() == [3, -4]


# -- stages --------------------------------------------------------------------------------------

HALF = int(np.float16(0.5).view(np.uint16))
THREE = int(np.float32(3).view(np.uint32))
VALUES = [-4.0, -0.5, 0.25, 2.5, 7.0]


@pytest.mark.parametrize(
    ("algo", "want"),
    [
        (Algo.MAX, lambda x: np.maximum(x, 3)),
        (Algo.MIN, lambda x: np.minimum(x, 3)),
        (Algo.ADD, lambda x: x + 3),
        (Algo.MINUS, lambda x: x - 3),
        (Algo.DIV, lambda x: x / np.float32(3)),
        (Algo.ABS, np.abs),
        (Algo.NEG, np.negative),
        (Algo.FLOOR, np.floor),
        (Algo.CEIL, np.ceil),
    ],
)
@pytest.mark.parametrize("stage", ["BS", "BN", "EW"])
def test_every_operation_in_every_stage(stage: str, algo: Algo, want: Any) -> None:
    off = dict(mul_bypass=1, relu_bypass=1)
    if stage == "EW":
        new = [dpu.EW_CFG(ew_lut_bypass=1, ew_relu_bypass=1, ew_alu_algo=algo)]
        new += [getattr(dpu, f"EW_OP_VALUE_{i}")(**{f"ew_operand_{i}": THREE}) for i in range(8)]
    else:
        low = stage.lower()
        cfg = {f"{low}_{k}": v for k, v in off.items()} | {f"{low}_alu_algo": algo}
        new = [
            getattr(dpu, f"{stage}_CFG")(**cfg),
            getattr(dpu, f"{stage}_ALU_CFG")(**{f"{low}_alu_operand": THREE}),
        ]
    got = fly(P.FP16, VALUES, *new, out=P.FP32)
    np.testing.assert_array_equal(got, want(np.array(VALUES, np.float32)))


@pytest.mark.parametrize(
    "p", [P.INT8, P.INT16, P.INT32, P.FP16, P.BF16, P.FP32], ids=lambda p: p.name
)
@pytest.mark.parametrize("stage", ["BS", "BN"])
def test_stage_adds_multiplies_and_clips(stage: str, p: Precision) -> None:
    """Minus 3, times 2 with PReLU, then at most 6: BN multiplies first (board notes A.11)."""
    low, integer = stage.lower(), p in (P.INT8, P.INT16, P.INT32)
    out = p if p in (P.INT32, P.FP32) else (P.INT32 if integer else P.FP32)
    word = (lambda v: v & 0xFFFFFFFF) if integer else (lambda v: int(np.float32(v).view(np.uint32)))
    two = 2 if integer else int(np.float16(2).view(np.uint16))
    new = [
        getattr(dpu, f"{stage}_CFG")(
            **{
                f"{low}_alu_algo": Algo.MINUS,
                f"{low}_mul_prelu": 1,
                f"{low}_relu_bypass": 1,
                f"{low}_relux_en": 1,
            }
        ),
        getattr(dpu, f"{stage}_ALU_CFG")(**{f"{low}_alu_operand": word(3)}),
        getattr(dpu, f"{stage}_MUL_CFG")(**{f"{low}_mul_operand": two}),
        getattr(dpu, f"{stage}_RELUX_CMP_VALUE")(**{f"{low}_relux_cmp_dat": word(6)}),
    ]
    x = np.array([-9, -1, 0, 2, 4, 50])
    if stage == "BS":
        want = np.where(x - 3 < 0, (x - 3) * 2, x - 3)
    else:
        want = np.where(x < 0, x * 2, x) - 3
    np.testing.assert_array_equal(fly(p, x, *new, out=out), np.minimum(want, 6))


@pytest.mark.parametrize(("add_first", "want"), [(0, [5, -3, 3.5]), (1, [8, -8, 5])])
def test_float_converter_scales_and_offsets(add_first: int, want: list[float]) -> None:
    """1, -3 and 0.25: times 2 plus 3; or plus 3 times 2, as behind a table (board notes A.9)."""
    new = (
        dpu.OUT_CVT_SCALE(out_cvt_scale=2),
        dpu.OUT_CVT_OFFSET(out_cvt_offset=3),
        dpu.OUT_CVT_SHIFT(cvt_type=add_first),
    )
    x = [1, -3, 0.25] if not add_first else [1, -7, -0.5]
    assert fly(P.FP16, x, *new, out=P.FP32).tolist() == want


@pytest.mark.parametrize(
    "p", [P.INT8, P.INT16, P.INT32, P.FP16, P.BF16, P.FP32], ids=lambda p: p.name
)
@pytest.mark.parametrize("stage", ["BS", "BN"])
def test_relu_of_a_stage(stage: str, p: Precision) -> None:
    out = P.FP32 if p is P.BF16 else p
    low = stage.lower()
    cfg = getattr(dpu, f"{stage}_CFG")(**{f"{low}_alu_bypass": 1, f"{low}_mul_bypass": 1})
    assert fly(p, [-100, -1, 0, 1, 100], cfg, out=out).tolist() == [0, 0, 0, 1, 100]


def test_per_channel_factor_and_addend_of_bs() -> None:
    """fp32 addends, then fp16 factors, in blocks of 8 (BRDMA_DATA_USE 5); factors alone (4)."""
    add, mul = np.arange(8) * 10.0, np.arange(8) / 2 + 1
    x = np.arange(16)
    for use, raw in (
        (5, add.astype("<f4").tobytes() + mul.astype("<f2").tobytes()),
        (4, mul.astype("<f2").tobytes()),
    ):
        bench = Bench()
        bench.put(OPERANDS, raw)
        got = fly(
            P.FP16,
            x,
            dpu.BS_CFG(
                bs_alu_src=1, bs_alu_algo=Algo.ADD, bs_alu_bypass=int(use == 4), bs_relu_bypass=1
            ),
            dpu.BS_MUL_CFG(bs_mul_src=1),
            dpu_rdma.RDMA_BRDMA_CFG(brdma_data_use=use),
            dpu_rdma.RDMA_BS_BASE_ADDR(bs_base_addr=OPERANDS),
            bench=bench,
        )
        np.testing.assert_array_equal(got, (x + np.tile(add, 2) * (use == 5)) * np.tile(mul, 2))


INTEGERS = [P.INT8, P.INT16, P.INT32]
WHOLE_OPERATIONS = {
    Algo.MAX: lambda x: np.maximum(x, 3),
    Algo.MIN: lambda x: np.minimum(x, 3),
    Algo.ADD: lambda x: x + 3,
    Algo.MINUS: lambda x: x - 3,
    Algo.ABS: np.abs,
    Algo.NEG: np.negative,
}


@pytest.mark.parametrize("algo", WHOLE_OPERATIONS, ids=lambda a: a.name)
@pytest.mark.parametrize("p", INTEGERS, ids=lambda p: p.name)
@pytest.mark.parametrize("stage", ["BS", "BN", "EW"])
def test_integer_operations_saturate_in_every_stage(stage: str, p: Precision, algo: Algo) -> None:
    low = stage.lower()
    if stage == "EW":
        new = [dpu.EW_CFG(ew_lut_bypass=1, ew_relu_bypass=1, ew_alu_algo=algo, ew_equal_en=1)]
        new += [getattr(dpu, f"EW_OP_VALUE_{i}")(**{f"ew_operand_{i}": 3}) for i in range(8)]
    else:
        off = {f"{low}_mul_bypass": 1, f"{low}_relu_bypass": 1, f"{low}_alu_algo": algo}
        new = [
            getattr(dpu, f"{stage}_CFG")(**off),
            getattr(dpu, f"{stage}_ALU_CFG")(**{f"{low}_alu_operand": 3}),
        ]
    info = np.iinfo(NUMPY[p])
    x = np.array([info.min, -4, 0, 3, 5, info.max], np.int64)
    want = np.clip(WHOLE_OPERATIONS[algo](x), info.min, info.max)
    np.testing.assert_array_equal(fly(p, x, *new), want)


@pytest.mark.parametrize(
    ("p", "out"),
    [*[(p, p) for p in INTEGERS], (P.FP16, P.FP16), (P.BF16, P.FP32), (P.FP32, P.FP32)],
    ids=lambda p: p.name,
)
def test_ew_relu_and_relux(p: Precision, out: Precision) -> None:
    six = 6 if p in INTEGERS else int(np.float32(6).view(np.uint32))
    new = (
        dpu.EW_CFG(ew_op_bypass=1, ew_lut_bypass=1, ew_relux_en=1),
        dpu.EW_RELUX_CMP_VALUE(ew_relux_cmp_dat=six),
    )
    assert fly(p, [-3, 0, 5, 6, 9], *new, out=out).tolist() == [0, 0, 5, 6, 6]


@pytest.mark.parametrize("away", [0, 1])
@pytest.mark.parametrize("p", INTEGERS, ids=lambda p: p.name)
def test_integer_converter_scales_shifts_and_offsets(p: Precision, away: int) -> None:
    """x * -3 / 4 + 7: -0.75, -1.5, -2.25, 1.5, 4.5, and past the type."""
    info = np.iinfo(NUMPY[p])
    x = [1, 2, 3, -2, -6, info.max]
    new = (
        dpu.OUT_CVT_SCALE(out_cvt_scale=-3),
        dpu.OUT_CVT_SHIFT(out_cvt_shift=2, cvt_round=away),
        dpu.OUT_CVT_OFFSET(out_cvt_offset=7),
    )
    ties = [-2, 2, 5] if away else [-2, 2, 4]
    far = round(info.max * -3 / 4)
    want = [-1 + 7, ties[0] + 7, -2 + 7, ties[1] + 7, ties[2] + 7, max(far + 7, info.min)]
    assert fly(p, x, *new).tolist() == want


@pytest.mark.parametrize("reading", ["even", "away"])
def test_stage_rounding_is_a_switch(reading: Any) -> None:
    new = (
        dpu.BN_CFG(bn_alu_bypass=1, bn_relu_bypass=1),
        dpu.BN_MUL_CFG(bn_mul_operand=1, bn_mul_shift_value=1),
        dpu.DATA_FORMAT(
            proc_precision=P.INT8,
            in_precision=P.INT8,
            out_precision=P.INT8,
            bn_mul_shift_value_neg=1,
        ),
    )
    got = fly(P.INT8, [1, 3, -1, -3], *new, bench=Bench.of(Policy(stage_rounding=reading)))
    assert got.tolist() == {"even": [0, 2, 0, -2], "away": [1, 2, -1, -2]}[reading]


def test_a_multiplier_without_shift_saturates() -> None:
    """Board notes A.9: s = 0 saturates the product."""
    new = (dpu.BS_CFG(bs_alu_bypass=1, bs_relu_bypass=1), dpu.BS_MUL_CFG(bs_mul_operand=0x7FFF))
    assert fly(P.INT32, [2**20, -(2**20)], *new).tolist() == [2**31 - 1, -(2**31)]


def test_per_channel_multiplier_and_addend_of_bn() -> None:
    """fp32 addends and fp16 factors in blocks of 8 (NRDMA_DATA_USE 5)."""
    add, mul = np.arange(8) * 10.0, np.arange(8) / 2 + 1
    bench = Bench()
    bench.put(OPERANDS, add.astype("<f4").tobytes() + mul.astype("<f2").tobytes())
    got = fly(
        P.FP16,
        np.arange(16),
        dpu.BN_CFG(bn_alu_src=1, bn_alu_algo=Algo.ADD, bn_relu_bypass=1),
        dpu.BN_MUL_CFG(bn_mul_src=1),
        dpu_rdma.RDMA_NRDMA_CFG(nrdma_data_use=5),
        dpu_rdma.RDMA_BN_BASE_ADDR(bn_base_addr=OPERANDS),
        bench=bench,
    )
    np.testing.assert_array_equal(got, np.arange(16) * np.tile(mul, 2) + np.tile(add, 2))


@pytest.mark.parametrize("p", [P.INT8, P.INT16, P.FP16], ids=lambda p: p.name)
def test_per_channel_addend_of_bn(p: Precision) -> None:
    """NRDMA_DATA_USE 1: int32 or fp32, packed."""
    lanes = chip.elements_per_atom(p)
    add = np.arange(lanes) * 3 - 20
    bench = Bench()
    bench.put(OPERANDS, add.astype("<f4" if p is P.FP16 else "<i4"))
    x = np.arange(2 * lanes)
    got = fly(
        p,
        x,
        dpu.BN_CFG(bn_alu_src=1, bn_alu_algo=Algo.ADD, bn_mul_bypass=1, bn_relu_bypass=1),
        dpu_rdma.RDMA_NRDMA_CFG(nrdma_data_use=1),
        dpu_rdma.RDMA_BN_BASE_ADDR(bn_base_addr=OPERANDS),
        bench=bench,
    )
    np.testing.assert_array_equal(got, x + np.tile(add, 2))


# -- second operands -----------------------------------------------------------------------------

OPERAND = dict(ew_op_src=1, ew_lut_bypass=1, ew_relu_bypass=1, ew_data_mode=1)
CODE_OF = {1: 1, 2: 2, 4: 3}  # bytes -> EDATA_SIZE, ERDMA_DATA_SIZE


@pytest.mark.parametrize(
    ("p", "out"),
    [
        (P.INT8, P.INT8),
        (P.INT16, P.INT16),
        (P.INT32, P.INT32),
        (P.FP16, P.FP16),
        (P.BF16, P.FP32),
        (P.FP32, P.FP32),
    ],
    ids=lambda p: p.name,
)
@pytest.mark.parametrize("name", ["MAX", "MIN", "ADD", "MINUS", "MUL", "PRELU"])
def test_operations_on_two_cubes(p: Precision, out: Precision, name: str) -> None:
    size, integer = np.dtype(NUMPY[p]).itemsize, p in (P.INT8, P.INT16, P.INT32)
    factor = name in ("MUL", "PRELU")
    cfg = dpu.EW_CFG(
        edata_size=CODE_OF[size],
        ew_op_type=int(factor),
        ew_mul_prelu=int(name == "PRELU"),
        ew_alu_algo=Algo.MAX if factor else Algo[name],
        ew_equal_en=int(integer),
        ew_op_cvt_bypass=int(integer or factor or size == 4),
        **OPERAND,
    )
    a, b = np.random.default_rng(0).integers(-90, 90, (2, 48))
    stream = dpu_rdma.RDMA_ERDMA_CFG(erdma_data_size=CODE_OF[size], erdma_data_mode=1)
    got = fly(p, a, cfg, stream, out=out, second=b)
    want = {
        "MAX": np.maximum(a, b),
        "MIN": np.minimum(a, b),
        "ADD": a + b,
        "MINUS": a - b,
        "MUL": a * b,
        "PRELU": np.where(a < 0, a * b, a),
    }[name]
    if integer:
        info = np.iinfo(NUMPY[out])
        want = np.clip(want, info.min, info.max)
    np.testing.assert_array_equal(got, want.astype(NUMPY[out]))


@pytest.mark.parametrize("p", INTEGERS, ids=lambda p: p.name)
def test_integer_operand_per_channel(p: Precision) -> None:
    lanes, code = chip.elements_per_atom(p), CODE_OF[np.dtype(NUMPY[p]).itemsize]
    e, x = np.arange(lanes) * 3 - 20, np.arange(2 * lanes)
    got = fly(
        p,
        x,
        dpu.EW_CFG(
            edata_size=code,
            ew_alu_algo=Algo.ADD,
            ew_op_cvt_bypass=1,
            **{**OPERAND, "ew_data_mode": 0},
        ),
        dpu_rdma.RDMA_ERDMA_CFG(erdma_data_size=code, erdma_data_mode=0),
        dpu_rdma.RDMA_EW_SURF_STRIDE(ew_surf_stride=1),
        second=e,
    )
    np.testing.assert_array_equal(got, x + np.tile(e, 2))


@pytest.mark.parametrize(("p", "out"), [(P.INT8, P.INT8), (P.FP16, P.FP16)], ids=lambda p: p.name)
def test_operand_per_channel_behind_a_convolution(p: Precision, out: Precision) -> None:
    """ERDMA_DATA_MODE 0, EW_SURF_STRIDE 1 (register notes C.9)."""
    conv = Conv(p, 3, 3, 64, 2 * chip.KERNEL_GROUP[p], out=out)
    rng = np.random.default_rng(0)
    dtype = layout.NUMPY_DTYPE[p]
    x = rng.integers(-1, 2, (3, 3, 64)).astype(dtype)
    w = rng.integers(-1, 2, (conv.oc, 1, 1, 64)).astype(dtype)
    e = rng.integers(-50, 50, conv.oc).astype(dtype)
    bench = Bench()
    conv.load(bench, x, w)
    bench.put(EW, e)
    code = CODE_OF[e.itemsize]
    body = conv.body(
        dpu.EW_CFG(
            edata_size=code,
            ew_alu_algo=Algo.ADD,
            ew_op_cvt_bypass=int(p is P.INT8),
            **{**OPERAND, "ew_data_mode": 0},
        ),
        dpu_rdma.RDMA_ERDMA_CFG(erdma_data_size=code, erdma_data_mode=0),
        dpu_rdma.RDMA_EW_BASE_ADDR(ew_base_addr=EW),
        dpu_rdma.RDMA_EW_SURF_STRIDE(ew_surf_stride=1),
    )
    assert bench.run((body, CONV)).completed
    want = reference(conv, x, w) + e
    np.testing.assert_array_equal(
        conv.result(bench), np.clip(want, -128, 127) if p is P.INT8 else want
    )


def test_fused_int8_add_as_mesa_programs_it() -> None:
    """Convolution plus a residual: ((e + 3) * 5) >> 1 added, then scale and shift (register notes
    C.5, C.9; F.5)."""
    pixels = 16
    conv = Conv(P.INT8, pixels, 1, 32, 32, out=P.INT8)
    rng = np.random.default_rng(0)
    x = rng.integers(-5, 5, (pixels, 1, 32)).astype(np.int8)
    w = rng.integers(-5, 5, (32, 1, 1, 32)).astype(np.int8)
    residual = rng.integers(-128, 128, (pixels, 1, 32)).astype(np.int8)
    bench = Bench()
    conv.load(bench, x, w)
    bench.put(EW, layout.pack_cube(residual[None], P.INT8))
    body = conv.body(
        dpu.EW_CFG(edata_size=1, ew_alu_algo=Algo.ADD, ew_cvt_type=1, **OPERAND),
        dpu.EW_CVT_OFFSET_VALUE(ew_op_cvt_offset=3),
        dpu.EW_CVT_SCALE_VALUE(ew_op_cvt_scale=5, ew_op_cvt_shift=1),
        dpu.OUT_CVT_SCALE(out_cvt_scale=3),
        dpu.OUT_CVT_SHIFT(out_cvt_shift=4),
        dpu.OUT_CVT_OFFSET(out_cvt_offset=-7),
        dpu_rdma.RDMA_ERDMA_CFG(erdma_data_size=1, erdma_data_mode=1),
        dpu_rdma.RDMA_SRC_BASE_ADDR(src_base_addr=EW),
        dpu_rdma.RDMA_EW_BASE_ADDR(ew_base_addr=EW + pixels * 16),
        dpu_rdma.RDMA_SURF_NOTCH(surf_notch_addr=pixels),
        dpu_rdma.RDMA_EW_SURF_STRIDE(ew_surf_stride=pixels),
        dpu_rdma.RDMA_EW_SURF_NOTCH(ew_surf_notch=pixels),
        dpu_rdma.RDMA_FEATURE_MODE_CFG(comb_use=5, burst_len=15),
    )
    assert bench.run((body, CONV)).completed
    e = np.rint((residual.astype(np.float64) + 3) * 5 / 2)
    want = np.rint((reference(conv, x, w) + e) * 3 / 16) - 7
    np.testing.assert_array_equal(conv.result(bench), np.clip(want, -128, 127))


def test_int32_sums_with_the_words_of_a_board_run_chain() -> None:
    """Register notes C.1, C.5, C.9: (4<<29)|(4<<26)|4, 0x10C203C0, 0x4000000C, 0x27881."""
    a, b = np.random.default_rng(0).integers(-(2**31), 2**31, (2, 64))
    got = fly(
        P.INT32,
        a,
        dpu.DATA_FORMAT.decode(4 << 29 | 4 << 26 | 4),
        dpu.EW_CFG.decode(0x10C203C0),
        dpu_rdma.RDMA_ERDMA_CFG.decode(0x4000000C),
        dpu_rdma.RDMA_FEATURE_MODE_CFG.decode(0x27881),
        second=b,
    )
    np.testing.assert_array_equal(got, np.clip(a + b, -(2**31), 2**31 - 1))
    assert (np.abs(a + b) > 2**31).any()


@pytest.mark.parametrize("away", [0, 1])
def test_operand_converter_rounds_ties_as_told(away: int) -> None:
    cfg = dpu.EW_CFG(edata_size=1, ew_alu_algo=Algo.ADD, ew_cvt_round=away, **OPERAND)
    stream = dpu_rdma.RDMA_ERDMA_CFG(erdma_data_size=1, erdma_data_mode=1)
    half = dpu.EW_CVT_SCALE_VALUE(ew_op_cvt_scale=1, ew_op_cvt_shift=1)
    got = fly(P.INT8, [0] * 4, cfg, stream, half, second=[1, 3, -1, -3])
    assert got.tolist() == ([1, 2, -1, -2] if away else [0, 2, 0, -2])


# -- tables: which one answers (register notes C.7) ------------------------------------------------


def table_program(
    le: tuple[int, int], lo: tuple[int, int], select: tuple[int, int], priority: str, *new: Register
) -> list[Register]:
    """fp16 x is looked up at the index x; codes leave as they are."""
    one = int(np.float16(1).view(np.uint16))
    first = {k: int(k in priority) for k in "uoh"}  # 1: LO wins
    return [
        dpu.BN_CFG(bn_alu_bypass=1, bn_relu_bypass=1),
        dpu.BN_MUL_CFG(bn_mul_operand=one),
        dpu.EW_CFG(ew_op_bypass=1, ew_op_cvt_bypass=1, ew_relu_bypass=1),
        dpu.LUT_CFG(
            lut_lo_le_mux=2,
            lut_uflow_priority=first["u"],
            lut_oflow_priority=first["o"],
            lut_hybrid_priority=first["h"],
        ),
        dpu.LUT_INFO(lut_le_index_select=select[0], lut_lo_index_select=select[1]),
        dpu.LUT_LE_START(lut_le_start=le[0]),
        dpu.LUT_LE_END(lut_le_end=le[1]),
        dpu.LUT_LO_START(lut_lo_start=lo[0]),
        dpu.LUT_LO_END(lut_lo_end=lo[1]),
        *new,
    ]


@pytest.mark.parametrize("priority", ["", "u", "o", "h", "uoh"])
def test_priorities_choose_where_both_tables_or_none_are_hit(priority: str) -> None:
    """LE 0..1024 holds 1000, LO 768..1280 holds 2000; then LO 1100..1612 leaves a gap."""
    bench = Bench()
    load_tables(bench, np.full(513, 1000), np.full(513, 2000))
    wins = {k: 2000 if k in priority else 1000 for k in "uoh"}
    overlap = table_program((0, 1024), (768, 1280), (1, 0), priority)
    got = fly(P.FP16, [-5, 500, 900, 1100, 2000], *overlap, bench=bench)
    assert got.tolist() == [wins["u"], 1000, wins["h"], 2000, wins["o"]]
    gap = table_program((0, 1024), (1100, 1612), (1, 0), priority)
    got = fly(P.FP16, [500, 1060, 1500], *gap, bench=bench)
    assert got.tolist() == [1000, wins["h"], 2000]


@pytest.mark.parametrize(
    ("priority", "x", "want"),
    [
        ("", -12, 1000 - 9),  # LE below its start: -12 * 3 >> 2
        ("u", -12, 2000 - (100 + 12) // 4),  # LO below its start: -112 >> 2
        ("o", 700, 2000 + 88 * 5 // 8),  # LO past its end 612
        ("", 700, 1000 + (700 - 512) * 7 // 2),  # LE past its end 512
    ],
)
def test_each_end_has_its_slope(priority: str, x: int, want: int) -> None:
    bench = Bench()
    load_tables(bench, np.full(513, 1000), np.full(513, 2000))
    slopes = [
        dpu.LUT_LE_SLOPE_SCALE(lut_le_slope_uflow_scale=3, lut_le_slope_oflow_scale=7),
        dpu.LUT_LE_SLOPE_SHIFT(lut_le_slope_uflow_shift=2, lut_le_slope_oflow_shift=1),
        dpu.LUT_LO_SLOPE_SCALE(lut_lo_slope_uflow_scale=1, lut_lo_slope_oflow_scale=5),
        dpu.LUT_LO_SLOPE_SHIFT(lut_lo_slope_uflow_shift=2, lut_lo_slope_oflow_shift=3),
    ]
    program = table_program((0, 512), (100, 612), (0, 0), priority, *slopes)
    assert fly(P.FP16, [x], *program, bench=bench, out=P.FP32)[0] == want


@pytest.mark.parametrize(
    ("reading", "want"),
    [("floor", [10, 11, 12]), ("rounded", [10, 12, 12]), ("nearest", [10, 13, 13])],
)
def test_interpolation_is_a_switch(reading: Any, want: list[int]) -> None:
    """Entries 10, 13, ... four index units apart: at 0, 2 and 3 between lie 10, 11.5 and 12.25."""
    bench = Bench.of(Policy(lut_interpolation=reading))
    rising = 10 + 3 * np.arange(513)
    load_tables(bench, rising, rising)
    program = table_program((-2048, 0), (0, 2048), (2, 2), "oh")
    got = fly(P.FP16, [0, 2, 3], *program, bench=bench)
    assert got.tolist() == want


def test_integers_are_looked_up_and_scaled_back() -> None:
    """BN leads int8 to the index, the code is Q15, the converter makes int8 of it (C.7)."""
    bench = Bench()
    lo = np.minimum(np.arange(513) ** 2 // 8, 32767)
    load_tables(bench, -lo[::-1], lo)
    x = np.arange(-128, 128)
    got = fly(
        P.INT8,
        x,
        dpu.BN_CFG(bn_alu_bypass=1, bn_relu_bypass=1),
        dpu.BN_MUL_CFG(bn_mul_operand=127),
        dpu.EW_CFG(ew_op_bypass=1, ew_op_cvt_bypass=1, ew_relu_bypass=1),
        dpu.LUT_CFG.decode(0x68),
        dpu.LUT_INFO(lut_le_index_select=5, lut_lo_index_select=5),
        dpu.LUT_LE_START(lut_le_start=-16384),
        dpu.LUT_LO_END(lut_lo_end=16384),
        dpu.OUT_CVT_SCALE(out_cvt_scale=127),
        dpu.OUT_CVT_SHIFT(out_cvt_shift=15),
        bench=bench,
    )
    at = np.arange(513) * 32
    index = x * 127
    exact = np.where(index < 0, np.interp(index, at - 16384, -lo[::-1]), np.interp(index, at, lo))
    want = np.clip(np.rint(np.floor(exact) * 127 / 2**15), -128, 127)
    np.testing.assert_array_equal(got, want)


# -- transposing writers ---------------------------------------------------------------------------


@pytest.mark.parametrize("channels", [8, 24])
def test_tp_en_exchanges_8_pixels_with_8_channels(channels: int) -> None:
    """Register notes C.8: WIDTH 7, WDMA rows C/8 - 1, NOTCH 7, strides of 1 and 8 atoms."""
    x = np.arange(8 * channels).astype(np.int16).reshape(1, 8, channels)
    bench = Bench()
    bench.put(X, layout.pack_cube(x[None], P.INT16))
    body = flying(
        P.INT16,
        8,
        dpu.FEATURE_MODE_CFG.decode(0x4000_01E5),
        dpu.DATA_CUBE_NOTCH_ADDR.decode(0x0007_0007),
        dpu.WDMA_SIZE_0(channel_wdma=channels, tp_precision=1),
        dpu.WDMA_SIZE_1(width_wdma=1, height_wdma=channels // 8),
        dpu.DST_SURF_STRIDE.decode(0x10),
        dpu.SURFACE_ADD.decode(0x80),
        dpu_rdma.RDMA_FEATURE_MODE_CFG.decode(0xF821),
        surfaces=channels // 8,
    )
    assert bench.run((body, FLYING)).completed
    got = bench.memory[Y:].view(np.int16)[: x.size].reshape(channels, 8)
    np.testing.assert_array_equal(got, x[0].T)


# -- parts of cubes --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("p", "out"),
    [(P.INT8, P.INT8), (P.INT8, P.INT32), (P.INT4, P.INT16), (P.FP16, P.FP16), (P.FP16, P.FP32)],
    ids=lambda p: p.name,
)
def test_a_tile_is_written_into_a_wider_cube(p: Precision, out: Precision) -> None:
    """Columns 2 to 5 of 9: NOTCH is what lies between the lines (register notes C.8)."""
    conv = Conv(p, 3, 4, 32, 2 * chip.KERNEL_GROUP[p], out=out)
    rng = np.random.default_rng(0)
    dtype = layout.NUMPY_DTYPE[p]
    x = rng.integers(-2, 2, (3, 4, 32)).astype(dtype)
    w = rng.integers(-2, 2, (conv.oc, 1, 1, 32)).astype(dtype)
    bench = Bench()
    conv.load(bench, x, w)
    bench.memory[Y:EW] = 0
    body = conv.body(
        dpu.DST_BASE_ADDR(dst_base_addr=Y + 2 * 16),
        dpu.DATA_CUBE_NOTCH_ADDR(notch_addr_0=5, notch_addr_1=5),
        dpu.DST_SURF_STRIDE(dst_surf_stride=3 * 9),
        dpu.SURFACE_ADD(surf_add=conv.surfaces * 3 * 9),
    )
    assert bench.run((body, CONV)).completed
    wide = layout.unpack_cube(bench.memory[Y:], (1, 3, 9, conv.oc), out, conv.oc)[0]
    np.testing.assert_array_equal(wide[:, 2:6], reference(conv, x, w))
    assert not wide[:, :2].any()
    assert not wide[:, 6:].any()


@pytest.mark.parametrize("p", [P.INT8, P.INT16, P.INT32, P.FP16, P.FP32], ids=lambda p: p.name)
def test_part_of_a_cube_flies(p: Precision) -> None:
    """Rows 1 to 3, columns 2 to 6, of 5 x 8 px; then row-major (peer notes 2.5)."""
    lanes = chip.elements_per_atom(p)
    x = np.random.default_rng(0).integers(-99, 99, (5, 8, 2 * lanes)).astype(NUMPY[p])
    bench = Bench()
    bench.put(X, layout.pack_cube(x[None], p))
    rows, cols = 3, 5
    body = flying(
        p,
        cols,
        dpu.DATA_CUBE_HEIGHT(height=rows),
        dpu.WDMA_SIZE_1(width_wdma=cols, height_wdma=rows),
        dpu.DST_SURF_STRIDE(dst_surf_stride=rows * cols),
        dpu.SURFACE_ADD(surf_add=rows * cols),
        dpu_rdma.RDMA_DATA_CUBE_HEIGHT(height=rows),
        dpu_rdma.RDMA_SRC_BASE_ADDR(src_base_addr=X + (8 + 2) * 16),
        dpu_rdma.RDMA_SRC_DMA_CFG(line_notch_addr=8 - cols),
        dpu_rdma.RDMA_SURF_NOTCH(surf_notch_addr=40 - (rows - 1) * 8 - cols),
        surfaces=2,
    )
    assert bench.run((body, FLYING)).completed
    got = layout.unpack_cube(bench.memory[Y:], (1, rows, cols, 2 * lanes), p)[0]
    np.testing.assert_array_equal(got, x[1:4, 2:7])


@pytest.mark.parametrize("p", [P.INT8, P.INT16, P.INT32, P.FP16, P.FP32], ids=lambda p: p.name)
def test_a_row_major_matrix_flies_in_and_out(p: Precision) -> None:
    """In: SURF_NOTCH goes back to the first row.  Out: NOTCH and strides of one atom."""
    lanes = chip.elements_per_atom(p)
    rows, cols = 5, 3 * lanes
    x = np.random.default_rng(0).integers(-99, 99, (rows, cols)).astype(NUMPY[p])
    bench = Bench()
    bench.put(X, x)
    body = flying(
        p,
        1,
        dpu.DATA_CUBE_HEIGHT(height=rows),
        dpu.WDMA_SIZE_1(width_wdma=1, height_wdma=rows),
        dpu.DATA_CUBE_NOTCH_ADDR(notch_addr_0=2, notch_addr_1=2),
        dpu.DST_SURF_STRIDE(dst_surf_stride=1),
        dpu.SURFACE_ADD(surf_add=1),
        dpu_rdma.RDMA_DATA_CUBE_HEIGHT(height=rows),
        dpu_rdma.RDMA_SRC_DMA_CFG(line_notch_addr=2),
        dpu_rdma.RDMA_SURF_NOTCH(surf_notch_addr=-(rows - 1) * 3),
        surfaces=3,
    )
    assert bench.run((body, FLYING)).completed
    np.testing.assert_array_equal(bench.memory[Y:].view(NUMPY[p])[: x.size].reshape(x.shape), x)


# -- DPU to PPU on the fly (register notes D.2) ----------------------------------------------------

TO_PPU = 0x20  # start bit


def pools_directly(
    p: Precision, size: tuple[int, int], method: PoolingMethod, surfaces: int, flying_dpu: bool
) -> list[Register]:
    """2x2 px, step 2, of what the DPU puts out; to EW."""
    out = (-(-size[0] // 2), size[1] // 2)
    recip = 0x8000 if p is P.INT8 else 0x7800  # of 2
    body = pool(
        p,
        size,
        out,
        ppu.OPERATION_MODE_CFG(pooling_method=method),
        ppu.POOLING_KERNEL_CFG(
            kernel_width=2, kernel_height=2, kernel_stride_width=2, kernel_stride_height=2
        ),
        ppu.RECIP_KERNEL_WIDTH(recip_kernel_width=recip),
        ppu.RECIP_KERNEL_HEIGHT(recip_kernel_height=recip),
        ppu.DST_BASE_ADDR(dst_base_addr=EW),
        ppu.DATA_FORMAT(proc_precision=p, index_add=out[0] * out[1], dpu_flyin=int(flying_dpu)),
        surfaces=surfaces,
    )
    return [r for r in body if r.block is ppu.PPU]


@pytest.mark.parametrize("output_mode", [1, 3])
@pytest.mark.parametrize("method", [M.MAX, M.MIN, M.AVERAGE], ids=lambda m: m.name)
@pytest.mark.parametrize("p", [P.INT8, P.FP16], ids=lambda p: p.name)
def test_a_convolution_is_pooled_on_the_fly(
    p: Precision, method: PoolingMethod, output_mode: int
) -> None:
    conv = Conv(p, 6, 4, 32, 2 * chip.KERNEL_GROUP[p], out=p)
    rng = np.random.default_rng(0)
    dtype = layout.NUMPY_DTYPE[p]
    x = rng.integers(-2, 3, (6, 4, 32)).astype(dtype)
    w = rng.integers(-2, 3, (conv.oc, 1, 1, 32)).astype(dtype)
    bench = Bench()
    conv.load(bench, x, w)
    bench.memory[Y:EW] = 0xEE
    surfaces = layout.cube_surfaces(conv.oc, p)
    body = [
        *conv.body(dpu.FEATURE_MODE_CFG(output_mode=output_mode, burst_len=15)),
        *pools_directly(p, (6, 4), method, surfaces, False),
    ]
    r = bench.run((body, CONV | TO_PPU), mask=0xC00)
    assert r.completed
    assert r.interrupt_raw & 0xF00 == 0x500  # DPU and PPU, group 0
    acc = reference(conv, x, w)
    acc = np.clip(acc, -128, 127) if p is P.INT8 else acc
    windows = acc.reshape(3, 2, 2, 2, conv.oc).transpose(0, 2, 4, 1, 3).reshape(3, 2, conv.oc, 4)
    want = {M.MAX: windows.max(-1), M.MIN: windows.min(-1), M.AVERAGE: windows.mean(-1)}[method]
    if p is P.INT8 and method is M.AVERAGE:  # ties: board notes A.12
        tie = np.abs(want) % 1 == 0.5
        away = np.trunc(want + np.copysign(0.5, want))
        want = np.where(tie & (np.trunc(want) % 2 != 0), np.trunc(want), away)
    got = layout.unpack_cube(bench.memory[EW:], (1, 3, 2, conv.oc), p)[0]
    np.testing.assert_array_equal(got, want)
    if output_mode == 3:
        np.testing.assert_array_equal(conv.result(bench), acc)
    else:
        assert (bench.memory[Y:EW] == 0xEE).all()


@pytest.mark.parametrize("p", [P.INT8, P.FP16], ids=lambda p: p.name)
def test_memory_through_the_dpu_is_pooled_on_the_fly(p: Precision) -> None:
    """DPU_FLYIN: that DPU itself reads memory."""
    lanes = chip.elements_per_atom(p)
    x = np.random.default_rng(0).integers(-99, 99, (4, 6, 2 * lanes)).astype(layout.NUMPY_DTYPE[p])
    bench = Bench()
    bench.put(X, layout.pack_cube(x[None], p))
    body = [
        *flying(
            p,
            6,
            dpu.FEATURE_MODE_CFG(flying_mode=1, output_mode=1),
            dpu.DATA_CUBE_HEIGHT(height=4),
            dpu.WDMA_SIZE_1(width_wdma=6, height_wdma=4),
            dpu_rdma.RDMA_DATA_CUBE_HEIGHT(height=4),
            surfaces=2,
        ),
        *pools_directly(p, (4, 6), M.MAX, 2, True),
    ]
    assert bench.run((body, FLYING | TO_PPU), mask=0xC00).completed
    got = layout.unpack_cube(bench.memory[EW:], (1, 2, 3, 2 * lanes), p)[0]
    np.testing.assert_array_equal(got, x.reshape(2, 2, 3, 2, -1).max((1, 3)))


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (ppu.OPERATION_MODE_CFG(pooling_method=1, flying_mode=1), "ppu.source"),
        (ppu.DATA_FORMAT(proc_precision=2, index_add=6), "ppu.source"),
        (ppu.DATA_FORMAT(proc_precision=0, index_add=6, dpu_flyin=1), "ppu.precision"),
        (ppu.DATA_CUBE_IN_WIDTH(cube_in_width=8), "ppu.geometry"),
        (dpu.FEATURE_MODE_CFG(flying_mode=1, output_mode=2), "start.incomplete"),
        (dpu.FEATURE_MODE_CFG(flying_mode=1, output_mode=3, tp_en=1), "dpu.not_modelled"),
    ],
)
def test_dpu_and_ppu_must_agree(change: Register, rule: str) -> None:
    body = [
        *flying(P.FP16, 4, dpu.FEATURE_MODE_CFG(flying_mode=1, output_mode=1)),
        *pools_directly(P.FP16, (1, 4), M.MAX, 1, True),
        ppu.POOLING_KERNEL_CFG(
            kernel_width=2, kernel_height=1, kernel_stride_width=2, kernel_stride_height=1
        ),
        ppu.DATA_CUBE_OUT_HEIGHT(cube_out_height=1),
        change,
    ]
    with pytest.raises(ViolationError) as e:
        Bench().run((body, FLYING | TO_PPU), mask=0xC00)
    assert f"[{rule}]" in e.value.what


# -- PPU from memory: strides, gaps, padding -------------------------------------------------------


@pytest.mark.parametrize("p", [P.INT8, P.FP16], ids=lambda p: p.name)
@pytest.mark.parametrize("method", [M.MAX, M.MIN, M.AVERAGE], ids=lambda m: m.name)
@pytest.mark.parametrize("pads", [(0, 0, 0, 0), (1, 1, 0, 1)])
def test_pooling_from_memory(
    p: Precision, method: PoolingMethod, pads: tuple[int, int, int, int]
) -> None:
    """2x2 px, steps 2 and 1, pads top, left, bottom, right; multiples of 4 have whole means."""
    top, left, bottom, right = pads
    h, w = 5 - top, 6
    x = np.random.default_rng(0).integers(-31, 31, (h, w, 16)) * 4
    bench = Bench()
    bench.put(X, layout.pack_cube(x[None].astype(NUMPY[p]), p))
    out = (h + top + bottom - 2) // 2 + 1, w + left + right - 1
    recip = 0x8000 if p is P.INT8 else 0x7800
    body = pool(
        p,
        (h, w),
        out,
        ppu.OPERATION_MODE_CFG(pooling_method=method, flying_mode=1),
        ppu.POOLING_KERNEL_CFG(
            kernel_width=2, kernel_height=2, kernel_stride_width=1, kernel_stride_height=2
        ),
        ppu.POOLING_PADDING_CFG(pad_top=top, pad_left=left, pad_bottom=bottom, pad_right=right),
        ppu.RECIP_KERNEL_WIDTH(recip_kernel_width=recip),
        ppu.RECIP_KERNEL_HEIGHT(recip_kernel_height=recip),
        surfaces=layout.cube_surfaces(16, p),
    )
    assert bench.run((body, POOL), mask=0xC00).completed
    fill = {M.MAX: -1e9, M.MIN: 1e9, M.AVERAGE: 0}[method]
    padded = np.pad(x.astype(float), ((top, bottom), (left, right), (0, 0)), constant_values=fill)
    windows = np.lib.stride_tricks.sliding_window_view(padded, (2, 2), axis=(0, 1))[::2]
    want = {M.MAX: np.max, M.MIN: np.min, M.AVERAGE: np.mean}[method](windows, axis=(-2, -1))
    got = layout.unpack_cube(bench.memory[Y:], (1, *out, 16), p)[0]
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("p", [P.INT8, P.FP16], ids=lambda p: p.name)
def test_part_of_a_cube_is_pooled_into_part_of_another(p: Precision) -> None:
    """PPU_RDMA line and surface strides, PPU NOTCH and surface stride."""
    lanes = chip.elements_per_atom(p)
    whole = np.random.default_rng(0).integers(-99, 99, (2, 6, 9, lanes)).astype(NUMPY[p])
    bench = Bench()
    bench.put(X, whole)
    body = pool(
        p,
        (4, 6),
        (2, 3),
        ppu.OPERATION_MODE_CFG(pooling_method=1, flying_mode=1, notch_addr=2),
        ppu.POOLING_KERNEL_CFG(
            kernel_width=2, kernel_height=2, kernel_stride_width=2, kernel_stride_height=2
        ),
        ppu.DST_SURF_STRIDE(dst_surf_stride=20),
        ppu.DATA_FORMAT(proc_precision=p, index_add=20),
        ppu_rdma.RDMA_SRC_BASE_ADDR(src_base_addr=X + (9 + 2) * 16),
        ppu_rdma.RDMA_SRC_LINE_STRIDE(src_line_stride=9),
        ppu_rdma.RDMA_SRC_SURF_STRIDE(src_surf_stride=54),
        surfaces=2,
    )
    assert bench.run((body, POOL), mask=0xC00).completed
    want = whole[:, 1:5, 2:8].reshape(2, 2, 2, 3, 2, lanes).max((2, 4))
    out = bench.memory[Y:].view(NUMPY[p]).reshape(-1, lanes)
    for s in range(2):
        for y in range(2):
            at = s * 20 + y * 5
            np.testing.assert_array_equal(out[at : at + 3], want[s, y])
            assert not out[at + 3 : at + 5].any()


@pytest.mark.parametrize(("reading", "want"), [("ignored", -5), ("compared", 3)])
@pytest.mark.parametrize("p", [P.INT8, P.FP16], ids=lambda p: p.name)
def test_padding_of_a_maximum_is_a_switch(p: Precision, reading: Any, want: int) -> None:
    """All pixels are -5, PADDING_VALUE is 3."""
    bench = Bench.of(Policy(pool_padding=reading))
    lanes = chip.elements_per_atom(p)
    bench.put(X, np.full((2, 2, lanes), -5, NUMPY[p]))
    three = 3 if p is P.INT8 else int(np.float16(3).view(np.uint16))
    body = pool(
        p,
        (2, 2),
        (1, 1),
        ppu.OPERATION_MODE_CFG(pooling_method=1, flying_mode=1),
        ppu.POOLING_KERNEL_CFG(
            kernel_width=2, kernel_height=2, kernel_stride_width=2, kernel_stride_height=2
        ),
        ppu.POOLING_PADDING_CFG(pad_top=1, pad_left=1),
        ppu.PADDING_VALUE_1_CFG(pad_value_0=three),
    )
    assert bench.run((body, POOL), mask=0xC00).completed
    assert (bench.memory[Y:].view(NUMPY[p])[:lanes] == want).all()


def test_int8_averages_count_the_padding_value() -> None:
    """PADDING_VALUE 0x7ff80 is -128; four outputs of three padding elements and one of 4."""
    x = np.full((2, 2, 16), 4, np.int8)
    bench = Bench()
    bench.put(X, layout.pack_cube(x[None], P.INT8))
    body = pool(
        P.INT8,
        (2, 2),
        (2, 2),
        ppu.OPERATION_MODE_CFG(pooling_method=0, flying_mode=1),
        ppu.POOLING_KERNEL_CFG(
            kernel_width=2, kernel_height=2, kernel_stride_width=2, kernel_stride_height=2
        ),
        ppu.POOLING_PADDING_CFG(pad_top=1, pad_left=1, pad_bottom=1, pad_right=1),
        ppu.RECIP_KERNEL_WIDTH(recip_kernel_width=0x8000),
        ppu.RECIP_KERNEL_HEIGHT(recip_kernel_height=0x8000),
        ppu.PADDING_VALUE_1_CFG(pad_value_0=0x7FF80),
    )
    assert bench.run((body, POOL), mask=0xC00).completed
    got = layout.unpack_cube(bench.memory[Y:], (1, 2, 2, 16), P.INT8)
    assert (got == (3 * -128 + 4) // 4).all()


def test_the_float_average_rounds_once_or_after_each_factor() -> None:
    """Three ones and two zeros over 5: 3 * fp17(1/5); twice rounds 3/5 to eleven bits first."""
    x = np.zeros((1, 5, 8), np.float16)
    x[0, :3] = 1
    x[0, 0, 0] = 2049 / 2048 * 1024  # a sum that eleven bits do not hold
    fifth = int(np.float16(65536 / 5).view(np.uint16))
    value = (1 + (fifth & 1023) / 1024) * 2.0 ** ((fifth >> 10) - 31)
    results = []
    for reading in ("once", "twice"):
        bench = Bench.of(Policy(average_float=reading))  # type: ignore[arg-type]
        bench.put(X, layout.pack_cube(x[None], P.FP16))
        body = pool(
            P.FP16,
            (1, 5),
            (1, 1),
            ppu.OPERATION_MODE_CFG(pooling_method=0, flying_mode=1),
            ppu.POOLING_KERNEL_CFG(
                kernel_width=5, kernel_height=1, kernel_stride_width=1, kernel_stride_height=1
            ),
            ppu.RECIP_KERNEL_WIDTH(recip_kernel_width=fifth),
            ppu.RECIP_KERNEL_HEIGHT(recip_kernel_height=fifth),
        )
        assert bench.run((body, POOL), mask=0xC00).completed
        results.append(float(bench.memory[Y:].view(np.float16)[0]))
    total = float(x[0, :, 0].astype(np.float64).sum())
    assert results[0] == float(np.float16(total * value * value))

    def eleven_bits(v: float) -> float:
        mantissa, exponent = np.frexp(v)
        return float(np.ldexp(np.rint(mantissa * 2048), exponent - 11))

    assert results[1] == float(np.float16(eleven_bits(eleven_bits(total * value) * value)))
