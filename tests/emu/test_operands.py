"""Operand streams of the DPU: accumulation, per-channel operands, element types in flying mode."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from emu_programs import CONV, EW, FLYING, OPERANDS, Bench, Conv, X, Y, flying, reference

from opennpu.errors import ViolationError
from opennpu.hw import layout
from opennpu.hw.regs import Register
from opennpu.hw.rk3588 import chip, dpu, dpu_rdma
from opennpu.hw.rk3588.common import Algo, Precision

P = Precision
SIZE = {2: 2, 4: 3}  # bytes -> EDATA_SIZE, ERDMA_DATA_SIZE
ALU = dict(ew_op_src=1, ew_lut_bypass=1, ew_relu_bypass=1, ew_data_mode=1)


# -- K accumulation: partial sums come back through ERDMA (board notes A.10) ---------------------


def accumulating(conv: Conv, partial: int, *new: Register) -> list[Register]:
    """The convolution plus the cube at ``partial``: even surfaces by MRDMA, odd by ERDMA."""
    pixels = conv.out_size[0] * conv.out_size[1]
    size = chip.ELEMENT_BITS[conv.out_type] // 8
    bypass = int(conv.out_type is not P.FP16)
    proc = P.FP32 if conv.p is P.TF32 else conv.p
    return conv.body(
        dpu.EW_CFG(edata_size=SIZE[size], ew_alu_algo=Algo.ADD, ew_op_cvt_bypass=bypass, **ALU),
        dpu_rdma.RDMA_ERDMA_CFG(erdma_data_size=SIZE[size], erdma_data_mode=1),
        dpu_rdma.RDMA_SRC_BASE_ADDR(src_base_addr=partial),
        dpu_rdma.RDMA_EW_BASE_ADDR(ew_base_addr=partial + pixels * 16),
        dpu_rdma.RDMA_SURF_NOTCH(surf_notch_addr=pixels),
        dpu_rdma.RDMA_EW_SURF_STRIDE(ew_surf_stride=pixels),
        dpu_rdma.RDMA_EW_SURF_NOTCH(ew_surf_notch=pixels),
        dpu_rdma.RDMA_FEATURE_MODE_CFG(
            comb_use=5, burst_len=15, proc_precision=proc, in_precision=conv.out_type
        ),
        *new,
    )


@pytest.mark.parametrize(
    ("p", "out", "n"),
    [
        (P.FP16, P.FP16, 32),
        (P.FP16, P.FP32, 32),
        (P.BF16, P.FP32, 16),
        (P.TF32, P.FP32, 16),
        (P.INT8, P.INT32, 64),
        (P.INT16, P.INT32, 32),
    ],
)
def test_two_halves_of_k_sum_to_the_whole(p: Precision, out: Precision, n: int) -> None:
    """Task 1 computes K/2 products, task 2 the rest plus task 1's output, from memory (RAW)."""
    m, k = 12, 64
    whole = Conv(p, m, 1, k, n, out=out)
    half = Conv(p, m, 1, k // 2, n, out=out)
    rng = np.random.default_rng(0)
    dtype = layout.NUMPY_DTYPE[p]
    x = rng.integers(-20, 20, (m, 1, k)).astype(dtype)
    w = rng.integers(-20, 20, (n, 1, 1, k)).astype(dtype)
    bench = Bench()
    first = half.body(dpu.DST_BASE_ADDR(dst_base_addr=EW))
    half.load(bench, x[..., : k // 2], w[..., : k // 2])
    assert bench.run((first, CONV)).completed
    half.load(bench, x[..., k // 2 :], w[..., k // 2 :])
    assert bench.run((accumulating(half, EW), CONV)).completed
    want = reference(whole, x, w)
    if out is P.FP16:  # each partial sum is narrowed
        part = reference(half, x[..., : k // 2], w[..., : k // 2]).astype(np.float16)
        want = (reference(half, x[..., k // 2 :], w[..., k // 2 :]) + part).astype(np.float16)
    np.testing.assert_array_equal(whole.result(bench), want)


def test_integer_accumulation_saturates() -> None:
    conv = Conv(P.INT8, 4, 1, 32, 32)
    bench = Bench()
    x, w = np.full((4, 1, 32), 127, np.int8), np.full((32, 1, 1, 32), 127, np.int8)
    conv.load(bench, x, w)
    bench.put(EW, np.full(4 * 32, 2**31 - 10, np.int32))
    assert bench.run((accumulating(conv, EW), CONV)).completed
    assert (conv.result(bench) == 2**31 - 1).all()


def test_a_partial_bundle_is_refused() -> None:
    """fp16-sized operands behind an int8 convolution: silicon adds bit patterns (A.10)."""
    conv = Conv(P.INT8, 4, 1, 32, 32)
    cfg = dpu.EW_CFG(edata_size=2, ew_alu_algo=Algo.ADD, **ALU)
    with pytest.raises(ViolationError, match="ew.operand_size"):
        Bench().run((accumulating(conv, EW, cfg), CONV))


# -- per-channel operands (board notes A.9, register notes C.4) ----------------------------------


@pytest.mark.parametrize("use", [1, 2, 3, 4, 5, 6, 7])
def test_bs_stream_mixes_leave_parts_out_of_the_block(use: int) -> None:
    """Blocks of 8 channels: int32[8], int16[8] for CPEND, int16[8] for MUL, as data_use says."""
    n = 64
    conv = Conv(P.INT8, 3, 3, 32, n)
    rng = np.random.default_rng(use)
    x = rng.integers(-9, 9, (3, 3, 32)).astype(np.int8)
    w = rng.integers(-9, 9, (n, 1, 1, 32)).astype(np.int8)
    a, b, c = rng.integers(-999, 999, n), rng.integers(-9, 9, n), rng.integers(-9, 9, n)
    parts = [
        v
        for bit, v in ((1, a.astype("<i4")), (2, b.astype("<i2")), (4, c.astype("<i2")))
        if use & bit
    ]
    blocks = [v.reshape(-1, 8 if len(parts) > 1 else n).view(np.uint8) for v in parts]
    bench = Bench()
    conv.load(bench, x, w)
    bench.put(OPERANDS, np.ascontiguousarray(np.concatenate(blocks, axis=1)))
    size_e = conv.surfaces - 1
    body = conv.body(
        dpu.BS_CFG(
            bs_alu_src=1,
            bs_alu_algo=Algo.ADD,
            bs_alu_bypass=int(not use & 1),
            bs_mul_bypass=int(not use & 4),
            bs_relu_bypass=1,
        ),
        dpu.BS_MUL_CFG(bs_mul_src=1),
        dpu.BS_OW_CFG(
            ow_src=1, od_bypass=int(not use & 2), size_e_0=size_e, size_e_1=size_e, size_e_2=size_e
        ),
        dpu_rdma.RDMA_BRDMA_CFG(brdma_data_use=use),
        dpu_rdma.RDMA_BS_BASE_ADDR(bs_base_addr=OPERANDS),
    )
    assert bench.run((body, CONV)).completed
    want = reference(conv, x, w)
    if use & 1:
        want += a
    if use & 2:
        want += b * x.astype(float).sum(2, keepdims=True)
    if use & 4:
        want *= c
    np.testing.assert_array_equal(conv.result(bench), want)


@pytest.mark.parametrize(
    "change",
    [
        dpu_rdma.RDMA_BRDMA_CFG(brdma_data_use=8),
        dpu_rdma.RDMA_BRDMA_CFG(brdma_data_use=15),
        dpu_rdma.RDMA_NRDMA_CFG(nrdma_data_use=2),
        dpu_rdma.RDMA_NRDMA_CFG(nrdma_data_use=12),
    ],
)
def test_shifts_in_a_stream_are_refused(change: Register) -> None:
    with pytest.raises(ViolationError, match="dpu_rdma.operands"):
        Bench().run((flying(P.FP16, 4, change), FLYING))


@pytest.mark.parametrize("algo", [Algo.ADD, Algo.MAX, Algo.MINUS])
def test_ew_operand_per_channel(algo: Algo) -> None:
    """ERDMA_DATA_MODE 0: one element per channel for all pixels."""
    surfaces, atoms = 3, 5
    channels = 8 * surfaces
    x = np.random.default_rng(0).integers(-99, 99, (1, 1, atoms, channels)).astype(np.float16)
    e = np.arange(channels).astype(np.float16)
    bench = Bench()
    bench.put(X, layout.pack_cube(x, P.FP16))
    bench.put(EW, e)
    cfg = dict(edata_size=2, ew_op_src=1, ew_lut_bypass=1, ew_relu_bypass=1, ew_alu_algo=algo)

    def body(pitch: int) -> list[Register]:
        return flying(
            P.FP16,
            atoms,
            dpu.EW_CFG(**cfg),
            dpu_rdma.RDMA_ERDMA_CFG(erdma_data_size=2, erdma_data_mode=0),
            dpu_rdma.RDMA_EW_SURF_STRIDE(ew_surf_stride=pitch),
            surfaces=surfaces,
        )

    assert bench.run((body(1), FLYING)).completed
    got = layout.unpack_cube(bench.memory[Y:], (1, 1, atoms, channels), P.FP16)
    want = {Algo.ADD: x + e, Algo.MAX: np.maximum(x, e), Algo.MINUS: x - e}[algo]
    np.testing.assert_array_equal(got, want)
    with pytest.raises(ViolationError, match="dpu_rdma.streams"):
        bench.run((body(atoms), FLYING))


# -- element types in flying mode ----------------------------------------------------------------


def test_bf16_flies_to_fp32() -> None:
    x = np.random.default_rng(0).normal(0, 1e30, 64).astype(ml_dtypes.bfloat16)
    bench = Bench()
    bench.put(X, x)
    assert bench.run((flying(P.BF16, 8, out=P.FP32), FLYING)).completed
    got = layout.unpack_cube(bench.memory[Y:], (1, 1, 8, 8), P.FP32).reshape(-1)
    np.testing.assert_array_equal(got, x.astype(np.float32))


def test_int4_flies_to_int16() -> None:
    x = np.random.default_rng(0).integers(-8, 8, (1, 1, 6, 64)).astype(np.int8)
    bench = Bench()
    bench.put(X, layout.pack_cube(x, P.INT4))
    cvt = dpu.OUT_CVT_SCALE(out_cvt_scale=-300)
    assert bench.run((flying(P.INT4, 6, cvt, surfaces=2, out=P.INT16), FLYING)).completed
    got = layout.unpack_cube(bench.memory[Y:], (1, 1, 6, 64), P.INT16)
    np.testing.assert_array_equal(got, x.astype(int) * -300)


def test_tf32_does_not_fly() -> None:
    with pytest.raises(ViolationError, match="dpu.precision"):
        Bench().run((flying(P.TF32, 4, out=P.FP32), FLYING))


@pytest.mark.parametrize("p", [P.BF16, P.INT4])
def test_outputs_have_no_bf16_and_no_int4(p: Precision) -> None:
    with pytest.raises(ViolationError, match="dpu.precision"):
        Bench().run((flying(p, 4), FLYING))
