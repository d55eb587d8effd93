"""CNA and CORE: every mode with every element type it has, against plain NumPy."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from emu_programs import CONV, OPERANDS, Bench, Conv, W, X, Y, reference, replace

from opennpu.emu.numerics import Policy
from opennpu.errors import ViolationError
from opennpu.hw import layout
from opennpu.hw.regs import Register
from opennpu.hw.rk3588 import chip, cna, core, dpu, dpu_rdma
from opennpu.hw.rk3588.common import Algo, Precision

P = Precision
TYPES = (P.INT4, P.INT8, P.INT16, P.FP16, P.BF16, P.TF32)
NUMPY = {
    P.INT4: np.int8,
    P.INT8: np.int8,
    P.INT16: np.int16,
    P.FP16: np.float16,
    P.BF16: ml_dtypes.bfloat16,
    P.TF32: np.float32,
}
Array = np.ndarray[Any, Any]


def operands(conv: Conv, seed: int = 0) -> tuple[Array, Array]:
    """Integers from -7 to 7: exact in every type and order, and int4 sums stay in 16 bits."""
    rng = np.random.default_rng(seed)
    shape = (conv.ic, *conv.k) if conv.depthwise else (conv.oc, *conv.k, conv.ic)
    x = rng.integers(-7, 8, (conv.h, conv.w, conv.ic))
    return x.astype(NUMPY[conv.p]), rng.integers(-7, 8, shape).astype(NUMPY[conv.p])


def run(conv: Conv, *new: Register, bench: Bench | None = None) -> Array:
    bench = bench or Bench()
    conv.load(bench, *operands(conv))
    r = bench.run((conv.body(*new), CONV))
    assert r.completed
    assert not r.warnings
    return conv.result(bench)


def atoms(p: Precision, n: int) -> int:
    """Channels of ``n`` 16-byte atoms."""
    return n * chip.elements_per_atom(p)


def typed(p: Precision, h: int, w: int, **more: Any) -> Conv:
    """Channels in two groups, the second not full; two kernel groups."""
    ic = chip.CHANNEL_GROUP[p] + atoms(p, 1)
    return Conv(p, h, w, ic, 2 * chip.KERNEL_GROUP[p], **more)


# -- geometry ------------------------------------------------------------------------------------

GEOMETRIES: dict[str, dict[str, Any]] = {
    "plain": {},
    "kernel of 3 by 2": dict(k=(3, 2)),
    "strides 2 and 3": dict(k=(3, 3), stride=(2, 3)),
    "dilations 2 and 3": dict(k=(2, 2), dilation=(2, 3)),
    "zero padding": dict(k=(3, 3), pad=(2, 1)),
}


@pytest.mark.parametrize("name", GEOMETRIES)
@pytest.mark.parametrize("p", TYPES, ids=lambda p: p.name)
def test_direct_convolution(p: Precision, name: str) -> None:
    conv = typed(p, 6, 7, **GEOMETRIES[name])
    np.testing.assert_array_equal(run(conv), reference(conv, *operands(conv)))


@pytest.mark.parametrize("h", [1, 2, 3])
@pytest.mark.parametrize("p", TYPES, ids=lambda p: p.name)
def test_fewer_rows_than_a_group_of_lines(p: Precision, h: int) -> None:
    """SURF_STRIDE = W * (H - 4) is negative (board notes A.3)."""
    conv = typed(p, h, 3)
    np.testing.assert_array_equal(run(conv), reference(conv, *operands(conv)))


@pytest.mark.parametrize("p", TYPES, ids=lambda p: p.name)
def test_a_tile_is_read_line_by_line(p: Precision) -> None:
    """Columns 2 to 5 of 9: LINE_STRIDE is the stored width, SURF_STRIDE what lies between."""
    whole = typed(p, 5, 9)
    x, w = operands(whole)
    bench = Bench()
    whole.load(bench, x, w)
    tile = typed(p, 5, 4)
    body = tile.body(
        cna.CONV_CON1(in_precision=p, proc_precision=p, group_line_off=1),
        cna.FEATURE_DATA_ADDR(feature_base_addr=X + 2 * 16),
        cna.DMA_CON1(line_stride=9),
        cna.DMA_CON2(surf_stride=5 * 9 - 4),
    )
    assert bench.run((body, CONV)).completed
    np.testing.assert_array_equal(tile.result(bench), reference(tile, x[:, 2:6], w))


@pytest.mark.parametrize("p", TYPES, ids=lambda p: p.name)
def test_row_major_in_and_out(p: Precision) -> None:
    """A[M, K] and C[M, N] as a C program has them (board notes A.2, register notes C.8)."""
    m, k = 5, 64
    conv = Conv(p, m, 1, k, 2 * chip.KERNEL_GROUP[p])
    x, w = operands(conv)
    bench = Bench()
    per_atom = chip.elements_per_atom(p)
    rows = x.reshape(m, k)
    if p is P.INT4:  # low nibble first
        rows = (rows[:, 0::2] & 15 | rows[:, 1::2] << 4).astype(np.uint8)
    bench.put(X, np.ascontiguousarray(rows))
    bench.put(W, layout.pack_weights(w, p, k))
    out_lanes = chip.elements_per_atom(conv.out_type)
    notch = conv.oc // out_lanes - 1
    body = conv.body(
        cna.CONV_CON1(in_precision=p, proc_precision=p, group_line_off=1),
        cna.DMA_CON1(line_stride=k // per_atom),
        cna.DMA_CON2(surf_stride=0),
        dpu.DST_SURF_STRIDE(dst_surf_stride=1),
        dpu.DATA_CUBE_NOTCH_ADDR(notch_addr_0=notch, notch_addr_1=notch),
        dpu.SURFACE_ADD(surf_add=conv.surfaces),
    )
    assert bench.run((body, CONV)).completed
    dtype = layout.NUMPY_DTYPE[conv.out_type]
    got = bench.memory[Y:].view(dtype)[: m * conv.oc].reshape(m, conv.oc)
    np.testing.assert_array_equal(got, reference(conv, x, w).reshape(m, conv.oc))


@pytest.mark.parametrize("p", TYPES, ids=lambda p: p.name)
def test_deconv_inserts_zeros(p: Precision) -> None:
    """DECONV by 2 down and 4 across, then an ordinary 3x3 (board notes A.13)."""
    small = typed(p, 3, 3, k=(3, 3), pad=(1, 1))
    x, w = operands(small)
    dilated = np.zeros((5, 9, small.ic), x.dtype)
    dilated[::2, ::4] = x
    forward = typed(p, 5, 9, k=(3, 3), pad=(1, 1))
    bench = Bench()
    small.load(bench, x, w)
    size_of = (cna.DATA_SIZE0, cna.CBUF_CON1, cna.DMA_CON1, cna.DMA_CON2, cna.FC_DATA_SIZE0)
    body = replace(
        forward.body(),
        *[r for r in small.body() if isinstance(r, size_of)],
        cna.CONV_CON1(in_precision=p, proc_precision=p, deconv=1),
        cna.CONV_CON3(conv_x_stride=1, conv_y_stride=1, deconv_x_stride=4, deconv_y_stride=2),
    )
    assert bench.run((body, CONV)).completed
    np.testing.assert_array_equal(forward.result(bench), reference(forward, dilated, w))


def test_tf32_pads_with_the_whole_word() -> None:
    """2.5 and bits that the MAC drops."""
    conv = typed(P.TF32, 3, 3, k=(3, 3), pad=(1, 1))
    word = int(np.float32(2.5).view(np.uint32)) | 0x1FFF
    got = run(conv, cna.PAD_CON1(pad_value=word))
    np.testing.assert_array_equal(got, reference(conv, *operands(conv), 2.5))


def test_int4_pads_with_zero_only() -> None:
    conv = typed(P.INT4, 3, 3, k=(3, 3), pad=(1, 1))
    with pytest.raises(ViolationError, match="cna.padding_value"):
        run(conv, cna.PAD_CON1(pad_value=0x11111111))


def test_surf_mode_1_is_one_surface_as_well() -> None:
    conv = typed(P.FP16, 4, 4)
    got = run(conv, cna.DATA_SIZE3(dataout_atomics=16, surf_mode=1))
    np.testing.assert_array_equal(got, reference(conv, *operands(conv)))


def test_int16_input_is_converted() -> None:
    """((x + 3) * 5) >> 1 in lanes 0 and 2, ties to even; the others pass (register notes B.8)."""
    conv = Conv(P.INT16, 2, 2, 8, 16)
    x = np.arange(-16, 16).reshape(2, 2, 8).astype(np.int16)
    eye = np.eye(16, 8, dtype=np.int16).reshape(16, 1, 1, 8)
    bench = Bench()
    conv.load(bench, x, eye)
    constants = [
        r(**{f"cvt_scale{i}": 5, f"cvt_offset{i}": 3})
        for i, r in enumerate((cna.CVT_CON1, cna.CVT_CON2, cna.CVT_CON3, cna.CVT_CON4))
    ]
    shifts = {f"cvt_truncate_{i}": 1 for i in range(4)}
    body = conv.body(
        *constants,
        cna.CVT_CON0(cvt_type=1, data_sign=1, **shifts),
        cna.CVT_CON5(per_channel_cvt_en=0b101),
    )
    assert bench.run((body, CONV)).completed
    want = x.astype(np.float64)
    want[..., [0, 2]] = np.rint((want[..., [0, 2]] + 3) * 5 / 2)
    np.testing.assert_array_equal(conv.result(bench)[..., :8], want)


@pytest.mark.parametrize("p", TYPES, ids=lambda p: p.name)
def test_bias_per_channel_and_relu(p: Precision) -> None:
    """BRDMA_DATA_USE 1: int32, or fp32 behind floats (register notes C.2)."""
    conv = typed(p, 3, 3)
    integer = p in (P.INT4, P.INT8, P.INT16)
    bias = np.random.default_rng(1).integers(-999, 999, conv.oc)
    bench = Bench()
    bench.put(OPERANDS, bias.astype("<i4" if integer else "<f4"))
    got = run(
        conv,
        dpu.BS_CFG(bs_alu_src=1, bs_alu_algo=Algo.ADD, bs_mul_bypass=1),
        dpu_rdma.RDMA_BRDMA_CFG(brdma_data_use=1),
        dpu_rdma.RDMA_BS_BASE_ADDR(bs_base_addr=OPERANDS),
        bench=bench,
    )
    np.testing.assert_array_equal(got, np.maximum(reference(conv, *operands(conv)) + bias, 0))


# -- depthwise -----------------------------------------------------------------------------------


@pytest.mark.parametrize("stride", [(1, 1), (2, 2)])
@pytest.mark.parametrize(
    ("p", "out"),
    [(P.INT8, P.INT16), (P.INT16, P.INT32), (P.FP16, P.FP32), (P.BF16, P.FP32)],
    ids=lambda p: p.name,
)
def test_depthwise_convolution(p: Precision, out: Precision, stride: tuple[int, int]) -> None:
    lanes = chip.DEPTHWISE_GROUP[p]
    conv = Conv(p, 5, 6, 2 * lanes, 1, (3, 3), stride, (1, 1), out=out, depthwise=True)
    np.testing.assert_array_equal(run(conv), reference(conv, *operands(conv)))


@pytest.mark.parametrize("p", [P.INT4, P.TF32], ids=lambda p: p.name)
def test_depthwise_has_no_int4_and_no_tf32(p: Precision) -> None:
    conv = typed(p, 4, 4)
    body = conv.body(cna.CONV_CON1(conv_mode=3, in_precision=p, proc_precision=p))
    with pytest.raises(ViolationError, match=r"in depthwise mode \[cna.precision\]"):
        Bench().run((body, CONV))


# -- sums of inputs, truncation ------------------------------------------------------------------


def cpend(conv: Conv, factor: int) -> list[Register]:
    n = conv.surfaces - 1
    return [dpu.BS_OW_CFG(size_e_0=n, size_e_1=n, size_e_2=n), dpu.BS_OW_OP(ow_op=factor)]


@pytest.mark.parametrize("p", [P.INT4, P.INT8, P.INT16], ids=lambda p: p.name)
def test_cpend_adds_the_sum_of_inputs(p: Precision) -> None:
    conv = typed(p, 4, 4, k=(3, 3), pad=(1, 1))
    x, w = operands(conv)
    sums = reference(conv, x, np.ones_like(w))
    np.testing.assert_array_equal(run(conv, *cpend(conv, -5)), reference(conv, x, w) - 5 * sums)


@pytest.mark.parametrize("p", [P.FP16, P.BF16, P.TF32], ids=lambda p: p.name)
def test_floats_ignore_cpend(p: Precision) -> None:
    """Board notes A.8: QD_EN 1, OD_BYPASS 0, OW_OP 128, and the result is exact."""
    conv = typed(p, 4, 4)
    np.testing.assert_array_equal(run(conv, *cpend(conv, 128)), reference(conv, *operands(conv)))


@pytest.mark.parametrize("place", ["first", "last"])
@pytest.mark.parametrize("p", [P.INT4, P.INT8, P.INT16], ids=lambda p: p.name)
def test_clip_truncate_shifts_before_or_after_cpend(p: Precision, place: Any) -> None:
    conv = typed(p, 4, 4)
    x, w = operands(conv)
    acc, sums = reference(conv, x, w), reference(conv, x, np.ones_like(w))
    new = [*cpend(conv, 3), core.CLIP_TRUNCATE(clip_truncate=2)]
    got = run(conv, *new, bench=Bench.of(Policy(clip_truncate=place)))
    want = {"first": np.rint(acc / 4) + 3 * sums, "last": np.rint((acc + 3 * sums) / 4)}
    np.testing.assert_array_equal(got, want[place])
    assert (want["first"] != want["last"]).any()


# -- float sums ----------------------------------------------------------------------------------


def test_blas_policy_differs_in_the_last_bits_only() -> None:
    conv = Conv(P.FP16, 4, 4, 256, 16)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4, 4, 256)).astype(np.float16)
    w = rng.normal(size=(16, 1, 1, 256)).astype(np.float16)
    bench = Bench.of(Policy(fp16_accumulate="blas"))
    conv.load(bench, x, w)
    assert bench.run((conv.body(), CONV)).completed
    np.testing.assert_allclose(conv.result(bench), reference(conv, x, w), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("p", "big"), [(P.BF16, 3e38), (P.TF32, 2.0**127)], ids=["BF16", "TF32"])
def test_sums_past_fp32_are_infinite(p: Precision, big: float) -> None:
    conv = typed(p, 1, 1)
    x, w = np.zeros((1, 1, conv.ic)), np.zeros((conv.oc, 1, 1, conv.ic))
    x[0, 0, :2] = big
    w[0, 0, 0, 0], w[1, 0, 0, :2], w[2, 0, 0, :2] = 4, 1, (1, -1)
    bench = Bench()
    conv.load(bench, x.astype(NUMPY[p]), w.astype(NUMPY[p]))
    assert bench.run((conv.body(), CONV)).completed
    assert conv.result(bench)[0, 0, :3].tolist() == [np.inf, np.inf, 0]


def test_tf32_drops_thirteen_bits_of_both_operands() -> None:
    """1 + 2**-10 stays, 1 + 2**-11 and 1 + 2**-10 - 2**-23 become 1 and 1 (truncated)."""
    conv = typed(P.TF32, 1, 1)
    x, w = np.zeros((1, 1, conv.ic), np.float32), np.zeros((conv.oc, 1, 1, conv.ic), np.float32)
    values = np.array([1 + 2.0**-10, 1 + 2.0**-11, 1 + 2.0**-10 - 2.0**-23], np.float32)
    x[0, 0, 0] = 1
    w[:3, 0, 0, 0] = values
    bench = Bench()
    conv.load(bench, x, w)
    assert bench.run((conv.body(), CONV)).completed
    assert conv.result(bench)[0, 0, :3].tolist() == [1 + 2.0**-10, 1, 1]


# -- CBUF ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("p", TYPES, ids=lambda p: p.name)
def test_features_and_weights_stay_in_the_cbuf(p: Precision) -> None:
    """Task 2 keeps the weights, task 3 keeps the features of task 2."""
    conv = typed(p, 4, 4)
    x, w = operands(conv)
    other_x, other_w = operands(conv, seed=1)
    bench = Bench()
    conv.load(bench, x, w)
    bench.put(X + 0x8000, layout.pack_cube(other_x[None], p))
    bench.put(W + 0x8000, layout.pack_weights(other_w, p, conv.ic))
    banks = dict(data_bank=6, weight_bank=6)
    second = conv.body(
        cna.CBUF_CON0(weight_reuse=1, **banks),
        cna.FEATURE_DATA_ADDR(feature_base_addr=X + 0x8000),
        dpu.DST_BASE_ADDR(dst_base_addr=Y + 0x8000),
    )
    third = conv.body(
        cna.CBUF_CON0(data_reuse=1, **banks),
        cna.FEATURE_DATA_ADDR(feature_base_addr=X + 0x8000),
        cna.DCOMP_ADDR0(decompress_addr0=W + 0x8000),
        dpu.DST_BASE_ADDR(dst_base_addr=Y + 0x10000),
    )
    r = bench.run((conv.body(), CONV), (second, CONV), (third, CONV))
    assert r.completed
    fetched = [sorted({"feature", "weight"} & t.bytes_read.keys()) for t in r.tasks]
    assert fetched == [["feature", "weight"], ["feature"], ["weight"]]
    size = (1, 4, 4, conv.oc)
    for at, pair in ((0x8000, (other_x, w)), (0x10000, (other_x, other_w))):
        got = layout.unpack_cube(bench.memory[Y + at :], size, conv.out_type, conv.oc)[0]
        np.testing.assert_array_equal(got, reference(conv, *pair))


def test_each_core_has_its_own_cbuf() -> None:
    """Core 1 never fetched what core 0 holds, so its reuse reads nothing of it."""
    conv = typed(P.FP16, 4, 4)
    bench = Bench.of(strict=False)
    conv.load(bench, *operands(conv))
    reuse = conv.body(cna.CBUF_CON0(data_bank=6, weight_bank=6, weight_reuse=1))
    for core_number, rules in ((0, []), (1, ["cbuf.reuse"])):
        assert bench.run((conv.body(), CONV), core=0).completed
        start = bench.place((reuse, CONV))[0]
        r = bench.machine.run(core_number, bench.space, *start, same_job=True)
        assert [v.rule for v in r.violations] == rules


@pytest.mark.parametrize("p", [P.INT8, P.FP16], ids=lambda p: p.name)
def test_weights_and_tiles_larger_than_their_banks_are_streamed(p: Precision) -> None:
    """Register notes B.6: one kernel group must fit, and the rows under the kernel."""
    size = chip.ELEMENT_BITS[p] // 8
    conv = Conv(p, 8, 16, 1024 // size, 4 * chip.KERNEL_GROUP[p], (3, 3))
    x, w = operands(conv)
    bench = Bench(memory=np.zeros(0x300000, np.uint8))
    at_w, at_y = 0x100000, 0x280000
    bench.put(X, layout.pack_cube(x[None], p))
    bench.put(at_w, layout.pack_weights(w, p, conv.ic))
    assert w.nbytes > 10 * 32768 > x.nbytes // 2
    body = conv.body(
        cna.CBUF_CON0(data_bank=2, weight_bank=10),
        cna.CBUF_CON1(data_entries=256),
        cna.CONV_CON2(feature_grains=4),
        cna.DCOMP_ADDR0(decompress_addr0=at_w),
        dpu.DST_BASE_ADDR(dst_base_addr=at_y),
    )
    r = bench.run((body, CONV))
    assert r.completed
    assert [v.rule for v in r.warnings] == ["cbuf.tile"]
    got = layout.unpack_cube(bench.memory[at_y:], (1, *conv.out_size, conv.oc), conv.out_type)
    np.testing.assert_array_equal(got[0], reference(conv, x, w))


# -- switches ------------------------------------------------------------------------------------


def test_task_dma_base_is_ignored_unless_the_policy_adds_it() -> None:
    conv = typed(P.FP16, 2, 2)
    x, w = operands(conv)
    for reading, shift in (("ignored", 0), ("added", 0x800)):
        bench = Bench.of(Policy(task_dma_base=reading))  # type: ignore[arg-type]
        conv.load(bench, x, w)
        bench.put(X + shift, layout.pack_cube(x[None], P.FP16))
        bench.put(W + shift, layout.pack_weights(w, P.FP16, conv.ic))
        (at, words) = bench.place((conv.body(), CONV))[0]
        write = bench.machine.write_register
        bench.machine.attach(0, bench.space)
        both = 0xE
        for offset, value in (
            (0x1004, both),
            (0x3004, both),
            (0x0010, at),
            (0x0014, (words + 1) // 2 - 1),
            (0x0020, 0x300),
            (0x0030, 0x7001),
            (0x0034, 0x800),
            (0x0008, 1),
        ):
            write(0, offset, value)
        assert bench.machine.last_result(0).completed
        got = layout.unpack_cube(bench.memory[Y + shift :], (1, 2, 2, conv.oc), P.FP32, conv.oc)
        np.testing.assert_array_equal(got[0], reference(conv, x, w))


@pytest.mark.parametrize(("reading", "pitch"), [("width", 2), ("stride", 5)])
def test_rows_of_a_group_are_a_switch(reading: Any, pitch: int) -> None:
    """LINE_STRIDE 20 atoms, W 2: where do rows 1 to 3 of each group lie?"""
    conv = Conv(P.FP16, 6, 2, 8, 16)
    x, w = operands(conv)
    bench = Bench.of(Policy(group_rows=reading))
    conv.load(bench, x, w)
    bench.put(X, np.zeros(0x1000, np.uint8))
    for y in range(6):
        bench.put(X + (y // 4 * 20 + y % 4 * pitch) * 16, x[y])
    r = bench.run((conv.body(cna.DMA_CON1(line_stride=20)), CONV))
    assert [v.rule for v in r.warnings] == ["cna.line_stride"]
    np.testing.assert_array_equal(conv.result(bench), reference(conv, x, w))


@pytest.mark.parametrize("reading", ["counted", "masked"])
@pytest.mark.parametrize("real", [76, 12])
def test_channels_past_the_real_ones_are_a_switch(reading: Any, real: int) -> None:
    """76 of 80 channels, in full or modulo 64; equal weights for the other four."""
    conv = Conv(P.INT8, 2, 2, 80, 32)
    x, w = operands(conv)
    w[..., 76:] = 3
    bench = Bench.of(Policy(padded_channels=reading))
    conv.load(bench, x, w)
    body = conv.body(cna.DATA_SIZE1(datain_channel=80, datain_channel_real=real), *cpend(conv, 2))
    r = bench.run((body, CONV))
    assert r.completed
    assert not r.warnings
    if reading == "masked":
        x[..., 76:] = 0
    want = reference(conv, x, w) + 2 * reference(conv, x, np.ones_like(w))
    np.testing.assert_array_equal(conv.result(bench), want)


@pytest.mark.parametrize("block", [8, 4])
def test_requantization_blocks_hold_8_or_4_channels(block: Any) -> None:
    """Board notes A.9 (RK3588), register notes C.4 (RV1106)."""
    conv = Conv(P.INT8, 2, 2, 32, 32)
    x, w = operands(conv)
    a, c = np.arange(32) * 100 - 999, np.arange(32) + 1
    raw = b"".join(
        a[i : i + block].astype("<i4").tobytes() + c[i : i + block].astype("<i2").tobytes()
        for i in range(0, 32, block)
    )
    bench = Bench.of(Policy(requant_block=block))
    conv.load(bench, x, w)
    bench.put(OPERANDS, raw)
    body = conv.body(
        dpu.BS_CFG(bs_alu_src=1, bs_alu_algo=Algo.ADD, bs_relu_bypass=1),
        dpu.BS_MUL_CFG(bs_mul_src=1),
        dpu_rdma.RDMA_BRDMA_CFG(brdma_data_use=5),
        dpu_rdma.RDMA_BS_BASE_ADDR(bs_base_addr=OPERANDS),
    )
    assert bench.run((body, CONV)).completed
    np.testing.assert_array_equal(conv.result(bench), (reference(conv, x, w) + a) * c)


def test_the_start_word_works_at_either_offset() -> None:
    """0x0008 in most streams, 0xF008 in one (register notes A.2)."""
    conv = typed(P.FP16, 2, 2)
    for offset in (0x0008, 0xF008):
        bench = Bench()
        conv.load(bench, *operands(conv))
        (at, words) = bench.place((conv.body(), CONV))[0]
        bench.put(at + 8 * (words - 1), np.array([0x0081 << 48 | CONV << 16 | offset], "<u8"))
        assert bench.machine.run(0, bench.space, at, words).completed
        np.testing.assert_array_equal(conv.result(bench), reference(conv, *operands(conv)))
