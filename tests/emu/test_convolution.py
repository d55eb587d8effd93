"""CNA and CORE: geometry, addresses, padding, types, group order, CBUF rules."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from emu_programs import CONV, OPERANDS, Bench, Conv, W, X, Y, reference, replace
from hypothesis import given, settings
from hypothesis import strategies as st

from opennpu.emu.numerics import Policy
from opennpu.errors import ViolationError
from opennpu.hw import layout
from opennpu.hw.rk3588 import cna, core, dpu, dpu_rdma
from opennpu.hw.rk3588.common import Algo, Precision

P = Precision
RANGES = {P.INT8: 128, P.INT4: 8, P.INT16: 300, P.FP16: 20, P.BF16: 20, P.TF32: 20}
NUMPY = {
    P.INT8: np.int8,
    P.INT4: np.int8,
    P.INT16: np.int16,
    P.FP16: np.float16,
    P.BF16: ml_dtypes.bfloat16,
    P.TF32: np.float32,
}


def operands(conv: Conv, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Small integers: any summation order is exact."""
    rng, r = np.random.default_rng(seed), RANGES[conv.p]
    shape = (conv.ic, *conv.k) if conv.depthwise else (conv.oc, *conv.k, conv.ic)
    x = rng.integers(-r, r, (conv.h, conv.w, conv.ic))
    w = rng.integers(-r, r, shape)
    return x.astype(NUMPY[conv.p]), w.astype(NUMPY[conv.p])


def run(conv: Conv, bench: Bench | None = None, *new: object, seed: int = 0) -> np.ndarray:
    bench = bench or Bench()
    x, w = operands(conv, seed)
    conv.load(bench, x, w)
    r = bench.run((conv.body(*new), CONV))
    assert r.completed
    return conv.result(bench)


def expected(conv: Conv, pad: object = 0.0, seed: int = 0) -> np.ndarray:
    x, w = operands(conv, seed)
    y = reference(conv, x, w, pad)
    if conv.out_type is P.INT16:
        y = np.clip(y, -32768, 32767)
    return y


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([P.INT8, P.FP16, P.INT16, P.INT4, P.BF16, P.TF32]),
    st.integers(1, 9),
    st.integers(1, 9),
    st.integers(1, 3),
    st.integers(1, 2),
    st.tuples(st.integers(1, 3), st.integers(1, 3)),
    st.tuples(st.integers(1, 3), st.integers(1, 3)),
    st.tuples(st.integers(0, 2), st.integers(0, 2)),
    st.tuples(st.integers(1, 2), st.integers(1, 2)),
)
def test_direct_equals_the_definition(
    p: Precision,
    h: int,
    w: int,
    atoms: int,
    groups: int,
    k: tuple[int, int],
    stride: tuple[int, int],
    pad: tuple[int, int],
    dilation: tuple[int, int],
) -> None:
    lanes = 128 // {P.INT4: 4, P.INT8: 8, P.TF32: 32}.get(p, 16)
    kernels = {P.INT8: 32, P.INT4: 64}.get(p, 16) * groups
    conv = Conv(p, h, w, atoms * lanes, kernels, k, stride, pad, dilation)
    if min(conv.out_size) < 1:
        return
    np.testing.assert_array_equal(run(conv), expected(conv))


@pytest.mark.parametrize("k", [(1, 1), (3, 3), (5, 3)])
@pytest.mark.parametrize("stride", [(1, 1), (2, 2)])
@pytest.mark.parametrize("ic", [32, 64, 96])
def test_depthwise_fp16_equals_the_definition(
    k: tuple[int, int], stride: tuple[int, int], ic: int
) -> None:
    conv = Conv(P.FP16, 9, 7, ic, 1, k, stride, (k[0] // 2, k[1] // 2), depthwise=True)
    np.testing.assert_array_equal(run(conv), expected(conv))


@pytest.mark.parametrize("kernels", [1, 5, 17, 33])
def test_fp16_kernel_count_is_free(kernels: int) -> None:
    conv = Conv(P.FP16, 3, 4, 40, kernels)
    bench = Bench()
    bench.memory[Y:] = 0xEE
    np.testing.assert_array_equal(run(conv, bench), expected(conv))
    room = layout.align(kernels, 16)
    lanes = layout.unpack_cube(bench.memory[Y:], (1, 3, 4, room), P.FP32, room)
    assert not lanes[..., kernels:].any()


# -- addresses (board notes A.3) -----------------------------------------------------------------


@pytest.mark.parametrize("h", [1, 2, 3, 5, 6])
def test_signed_surface_stride_reads_any_height_and_a_clamped_one_does_not(h: int) -> None:
    conv = Conv(P.FP16, h, 1, 64, 16)
    np.testing.assert_array_equal(run(conv), expected(conv))
    if h < 4:
        clamped = run(conv, None, cna.DMA_CON2(surf_stride=0))
        assert (clamped != expected(conv)).any()


def test_narrow_tile_is_fetched_line_by_line() -> None:
    whole = Conv(P.INT8, 6, 9, 32, 32)
    x, w = operands(whole)
    bench = Bench()
    whole.load(bench, x, w)
    tile = Conv(P.INT8, 6, 4, 32, 32)
    body = tile.body(
        cna.CONV_CON1(in_precision=P.INT8, proc_precision=P.INT8, group_line_off=1),
        cna.FEATURE_DATA_ADDR(feature_base_addr=X + 2 * 16),
        cna.DMA_CON1(line_stride=9),
        cna.DMA_CON2(surf_stride=6 * 9 - 4),
    )
    assert bench.run((body, CONV)).completed
    np.testing.assert_array_equal(tile.result(bench), reference(tile, x[:, 2:6], w))


def test_row_major_operands_need_no_packing() -> None:
    m, k, n = 12, 64, 32
    rng = np.random.default_rng(3)
    a = rng.integers(-9, 9, (m, k)).astype(np.float16)
    b = rng.integers(-9, 9, (n, 1, 1, k)).astype(np.float16)
    conv = Conv(P.FP16, m, 1, k, n)
    bench = Bench()
    bench.put(X, a)
    bench.put(W, layout.pack_weights(b, P.FP16, k))
    notch = n // 4 - 1
    body = conv.body(
        cna.CONV_CON1(in_precision=P.FP16, proc_precision=P.FP16, group_line_off=1),
        cna.DMA_CON1(line_stride=k // 8),
        cna.DMA_CON2(surf_stride=0),
        dpu.DST_SURF_STRIDE(dst_surf_stride=1),
        dpu.DATA_CUBE_NOTCH_ADDR(notch_addr_0=notch, notch_addr_1=notch),
        dpu.SURFACE_ADD(surf_add=4),
    )
    assert bench.run((body, CONV)).completed
    got = bench.memory[Y : Y + 4 * m * n].view(np.float32).reshape(m, n)
    np.testing.assert_array_equal(got, a.astype(np.float64) @ b[:, 0, 0].T.astype(np.float64))


def test_line_stride_counts_groups_of_four_lines() -> None:
    conv = Conv(P.INT8, 6, 2, 16, 32)
    x, w = operands(conv)
    bench = Bench()
    conv.load(bench, x, w)
    cube = layout.pack_cube(x[None], P.INT8).reshape(6, 2 * 16)
    bench.put(X, cube[:4].copy())
    bench.put(X + 100 * 16, cube[4:].copy())
    r = bench.run((conv.body(cna.DMA_CON1(line_stride=100)), CONV))
    assert [v.rule for v in r.warnings] == ["cna.line_stride"]
    np.testing.assert_array_equal(conv.result(bench), expected(conv))


# -- padding (board notes A.8) -------------------------------------------------------------------


def test_int8_pad_lanes_read_byte_1_in_odd_channels_of_the_first_32() -> None:
    conv = Conv(P.INT8, 2, 2, 128, 32, (3, 3), pad=(1, 1))
    word = int.from_bytes(bytes([0xF0, 0x07, 0x55, 0x66]), "little", signed=True)
    lanes = np.array([7.0 if c % 64 < 32 and c % 2 else -16.0 for c in range(128)])
    np.testing.assert_array_equal(
        run(conv, None, cna.PAD_CON0(pad_left=1, pad_top=1), cna.PAD_CON1(pad_value=word)),
        expected(conv, lanes),
    )
    low = Bench.of(Policy(int8_pad="low_byte"))
    np.testing.assert_array_equal(
        run(conv, low, cna.PAD_CON1(pad_value=word)), expected(conv, -16.0)
    )


def test_fp16_pads_with_the_low_half() -> None:
    conv = Conv(P.FP16, 2, 3, 16, 16, (3, 3), pad=(1, 1))
    word = int(np.float16(2.5).view(np.uint16)) | 0x7000_0000
    np.testing.assert_array_equal(
        run(conv, None, cna.PAD_CON1(pad_value=word)), expected(conv, 2.5)
    )


# -- CORE ----------------------------------------------------------------------------------------


def tap_program(kernel: tuple[int, int], ic: int, policy: Policy, values: dict) -> float:
    """One output pixel, all weights 1, features given as {(tap row, tap column, channel): x}."""
    conv = Conv(P.FP16, *kernel, ic, 1, kernel)
    x, w = np.zeros((*kernel, ic), np.float16), np.ones((1, *kernel, ic), np.float16)
    for at, v in values.items():
        x[at] = v[0]
        w[(0, *at)] = v[1]
    bench = Bench.of(policy)
    conv.load(bench, x, w)
    assert bench.run((conv.body(), CONV)).completed
    return float(conv.result(bench)[0, 0, 0])


BIG, TINY = (2.0**15, 2.0**15), (2.0**-12, 2.0**-12)
MINUS = (-(2.0**15), 2.0**15)


def test_groups_are_added_in_channel_order() -> None:
    one = Policy()
    assert (
        tap_program((1, 1), 96, one, {(0, 0, 0): BIG, (0, 0, 1): TINY, (0, 0, 2): MINUS})
        == 2.0**-24
    )
    assert tap_program((1, 1), 96, one, {(0, 0, 0): BIG, (0, 0, 32): TINY, (0, 0, 64): MINUS}) == 0
    assert (
        tap_program((1, 1), 96, one, {(0, 0, 0): BIG, (0, 0, 32): MINUS, (0, 0, 64): TINY})
        == 2.0**-24
    )


def test_taps_come_before_the_next_channel_group() -> None:
    """Channel group 0, both taps, then group 1: BIG, TINY, MINUS loses TINY; tap-major keeps it."""
    values = {(0, 0, 0): BIG, (0, 1, 0): TINY, (0, 0, 32): MINUS}
    assert tap_program((1, 2), 64, Policy(), values) == 0
    assert tap_program((1, 2), 64, Policy(group_order="tap_major"), values) == 2.0**-24


def test_a_partial_channel_group_is_one_group() -> None:
    values = {(0, 0, 32): BIG, (0, 0, 39): TINY, (0, 0, 33): MINUS}
    assert tap_program((1, 1), 40, Policy(), values) == 2.0**-24


def test_depthwise_floats_are_added_in_tap_order() -> None:
    def result(order: list[tuple[float, float]]) -> float:
        conv = Conv(P.FP16, 1, 3, 32, 1, (1, 3), depthwise=True)
        x, w = np.zeros((1, 3, 32), np.float16), np.zeros((32, 1, 3), np.float16)
        for i, (a, b) in enumerate(order):
            x[0, i, 0], w[0, 0, i] = a, b
        bench = Bench()
        conv.load(bench, x, w)
        body = conv.body(
            dpu.DATA_FORMAT(proc_precision=P.FP16, in_precision=P.FP16, out_precision=P.FP16),
            dpu.BS_OW_CFG(od_bypass=1, size_e_0=3, size_e_1=3, size_e_2=3),
            dpu.OUT_CVT_SCALE(out_cvt_scale=1, fp32tofp16_en=1),
            dpu.SURFACE_ADD(surf_add=4),
        )
        assert bench.run((body, CONV)).completed
        return float(conv.result(bench, P.FP16)[0, 0, 0])

    assert result([BIG, MINUS, TINY]) == 2.0**-24
    assert result([BIG, TINY, MINUS]) == 0


def test_integer_sums_stay_exact_and_saturate_at_32_bits() -> None:
    conv = Conv(P.INT16, 1, 1, 64, 16)
    bench = Bench()
    x, w = np.full((1, 1, 64), 32767, np.int16), np.full((16, 1, 1, 64), 32767, np.int16)
    w[1] = -32768
    conv.load(bench, x, w)
    assert bench.run((conv.body(), CONV)).completed
    assert conv.result(bench)[0, 0, :2].tolist() == [2**31 - 1, -(2**31)]
    wrap = Bench.of(Policy(int_accumulator="wrap"))
    conv.load(wrap, x, w)
    assert wrap.run((conv.body(), CONV)).completed
    want = (64 * 32767**2 + 2**31) % 2**32 - 2**31
    assert conv.result(wrap)[0, 0, 0] == want


def test_int8_sums_above_24_bits_are_exact() -> None:
    conv = Conv(P.INT8, 1, 1, 4096, 32)
    bench = Bench()
    x, w = np.full((1, 1, 4096), -128, np.int8), np.full((32, 1, 1, 4096), -128, np.int8)
    w[0, 0, 0, -1] = -127
    conv.load(bench, x, w)
    assert bench.run((conv.body(), CONV)).completed
    assert conv.result(bench)[0, 0, :2].tolist() == [4096 * 16384 - 128, 4096 * 16384]


@pytest.mark.parametrize(("round_up", "want"), [(0, [2, 0, 2, -2, 0]), (1, [2, 1, 2, -1, 0])])
def test_clip_truncate_rounds_ties_to_even_or_up(round_up: int, want: list[int]) -> None:
    conv = Conv(P.INT8, 1, 1, 16, 32)
    bench = Bench()
    x, w = np.zeros((1, 1, 16), np.int8), np.zeros((32, 1, 1, 16), np.int8)
    x[0, 0, 0] = 1
    w[:5, 0, 0, 0] = [6, 2, 9, -6, -2]  # >> 2: 1.5, 0.5, 2.25, -1.5, -0.5
    conv.load(bench, x, w)
    body = conv.body(core.CLIP_TRUNCATE(clip_truncate=2, round_type=round_up))
    assert bench.run((body, CONV)).completed
    assert conv.result(bench)[0, 0, :5].tolist() == want


# -- int8 outputs --------------------------------------------------------------------------------


def requantized(conv: Conv, *new: object) -> list:
    return conv.body(
        dpu.BS_CFG(bs_alu_src=1, bs_alu_algo=Algo.ADD, bs_relu_bypass=1),
        dpu.BS_MUL_CFG(bs_mul_src=1, bs_mul_shift_value=12),
        dpu.DATA_FORMAT(
            proc_precision=P.INT8,
            in_precision=P.INT8,
            out_precision=P.INT8,
            bs_mul_shift_value_neg=12,
        ),
        dpu.OUT_CVT_OFFSET(out_cvt_offset=-3),
        dpu_rdma.RDMA_BRDMA_CFG(brdma_data_use=7),
        dpu_rdma.RDMA_BS_BASE_ADDR(bs_base_addr=OPERANDS),
        *new,
    )


@pytest.mark.parametrize("depthwise", [False, True])
def test_requantization_block_and_cpend(depthwise: bool) -> None:
    """sat8(RNE((acc + A + B·Σx) · C >> s) + offset), padding counted in Σx (A.8, A.9)."""
    c = 64
    conv = Conv(P.INT8, 5, 5, c, c, (3, 3), pad=(1, 1), out=P.INT8, depthwise=depthwise)
    x, w = operands(conv)
    rng = np.random.default_rng(5)
    a, b = rng.integers(-5000, 5000, c), rng.integers(-9, 9, c)
    m = rng.integers(1, 30 if depthwise else 3, c)
    bench = Bench()
    conv.load(bench, x, w)
    bench.put(OPERANDS, layout.pack_requant(a, b, m))
    n = conv.surfaces - 1
    zero = int.from_bytes(bytes([5] * 4), "little")
    body = requantized(
        conv,
        dpu.BS_OW_CFG(ow_src=1, size_e_0=n, size_e_1=n, size_e_2=n),
        cna.PAD_CON1(pad_value=zero),
    )
    assert bench.run((body, CONV)).completed
    acc = reference(conv, x, w, 5.0)
    ones = np.ones_like(w)
    sums = reference(conv, x, ones, 5.0)
    want = np.clip(np.rint((acc + a + b * sums) * m / 4096) - 3, -128, 127)
    np.testing.assert_array_equal(conv.result(bench), want)


@pytest.mark.parametrize("oc", [16, 48])
def test_partial_int8_output_group_hangs_after_the_whole_groups(oc: int) -> None:
    conv = Conv(P.INT8, 2, 2, 16, oc, out=P.INT8)
    x, w = operands(conv)
    body = replace(
        conv.body(),
        core.DATAOUT_SIZE_1(dataout_channel=oc),
        dpu.DATA_CUBE_CHANNEL(channel=oc, orig_channel=oc),
        dpu.WDMA_SIZE_0(channel_wdma=oc),
        dpu_rdma.RDMA_DATA_CUBE_CHANNEL(channel=oc),
    )
    bench = Bench.of(strict=False)
    conv.load(bench, x, w)
    bench.memory[Y:] = 0xEE
    r = bench.run((body, CONV))
    assert not r.completed
    assert [v.rule for v in r.violations] == ["core.partial_group"]
    written = oc // 32 * 32 * 4
    assert (bench.memory[Y + written : Y + written + 64] == 0xEE).all()
    if written:
        want = np.clip(reference(conv, x, w)[:, :, :32], -128, 127)
        got = layout.unpack_cube(bench.memory[Y:], (1, 2, 2, 32), P.INT8, 32)[0]
        np.testing.assert_array_equal(got, want)
    with pytest.raises(ViolationError, match=r"core 0 task 0: .*\[core.partial_group\]\. Pad"):
        Bench().run((body, CONV))


def test_size_e_too_small_leaves_surfaces_unwritten_and_too_large_hangs() -> None:
    conv = Conv(P.FP16, 2, 2, 16, 32)
    for size_e, rule in ((1, "dpu.size_e_small"), (7, "dpu.size_e_large")):
        body = conv.body(
            dpu.BS_OW_CFG(od_bypass=1, size_e_0=size_e, size_e_1=size_e, size_e_2=size_e)
        )
        bench = Bench.of(strict=False)
        conv.load(bench, *operands(conv))
        bench.memory[Y:] = 0xEE
        r = bench.run((body, CONV))
        assert [v.rule for v in r.violations] == [rule]
        assert r.completed == (size_e == 1)
        surfaces = bench.memory[Y : Y + 8 * 64].reshape(8, 64)
        written = [not (s == 0xEE).all() for s in surfaces]
        want = [True, True, False, False] * 2 if size_e == 1 else [True] * 4 + [False] * 4
        assert written == want
        with pytest.raises(ViolationError, match=rule):
            Bench().run((body, CONV))


# -- CBUF ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("register", "rule"),
    [
        (cna.CBUF_CON0(data_bank=7, weight_bank=6), "cbuf.banks"),
        (cna.CBUF_CON0(data_bank=12, weight_bank=0), "cbuf.banks"),
        (cna.CBUF_CON0(data_bank=6, weight_bank=6, fc_data_bank=1), "cbuf.fc_data_bank"),
        (cna.CBUF_CON1(data_entries=1), "cna.entries"),
        (cna.CBUF_CON0(data_bank=6, weight_bank=6, data_reuse=1), "cbuf.reuse"),
        (cna.WEIGHT_SIZE0(weight_bytes=64), "cna.weight_size"),
        (core.DATAOUT_SIZE_0(dataout_width=1, dataout_height=1), "cna.geometry"),
        (dpu.WDMA_SIZE_1(width_wdma=1, height_wdma=1), "dpu.geometry"),
        (dpu.WDMA_SIZE_0(channel_wdma=16), "core.channels"),
        (core.MISC_CFG(dw_en=1, proc_precision=P.INT8), "core.conv_mode"),
        (core.MISC_CFG(proc_precision=P.FP16), "cna.precision"),
        (core.MAC_GATING(slcg_op_en=0), "core.mac_gating_off"),
        (core.MAC_GATING.decode(0x0700_0800), "core.mac_gating"),
        (core.MISC_CFG(proc_precision=P.FP32), "core.precision"),
        (cna.DCOMP_CTRL(decomp_control=1), "cna.decompression"),
        (cna.FC_CON0(fc_skip_en=1), "cna.zero_skip"),
        (dpu.OFFSET_PEND(offset_pend=1), "dpu.offset_pend"),
        (dpu_rdma.RDMA_FEATURE_MODE_CFG(), "dpu_rdma.mrdma_trap"),
        (dpu.FEATURE_MODE_CFG(output_mode=0), "dpu.output_mode"),
        (dpu.FEATURE_MODE_CFG(output_mode=3), "start.incomplete"),
    ],
)
def test_each_broken_rule_has_its_name(register: object, rule: str) -> None:
    conv = Conv(P.INT8, 8, 8, 64, 32)
    bench = Bench()
    conv.load(bench, *operands(conv))
    with pytest.raises(ViolationError) as e:
        bench.run((conv.body(register), CONV))
    assert f"[{rule}]" in e.value.what
    assert e.value.where == "core 0 task 0"


def test_rows_under_the_kernel_must_fit_and_a_long_tile_may_stream() -> None:
    conv = Conv(P.INT8, 40, 32, 64, 32, (3, 3))
    bench = Bench()
    conv.load(bench, *operands(conv))
    grains = cna.CONV_CON2(feature_grains=8)  # rows that the bank holds
    narrow = conv.body(cna.CBUF_CON0(data_bank=1, weight_bank=11), grains)
    streams = bench.run((narrow, CONV))
    assert [v.rule for v in streams.warnings] == ["cbuf.tile"]
    np.testing.assert_array_equal(conv.result(bench), expected(conv))
    wide = conv.body(cna.CBUF_CON1(data_entries=512))  # a row per bank, three rows needed
    with pytest.raises(ViolationError, match=r"needs 3 rows of 32768 bytes, has room for 65536"):
        bench.run((replace(wide, cna.CBUF_CON0(data_bank=2, weight_bank=10)), CONV))


@pytest.mark.parametrize(("m", "k"), [(144, 7), (144, 21), (192, 5), (192, 37), (240, 17)])
def test_int8_at_width_1_needs_a_slack_bank(m: int, k: int) -> None:
    """Shapes that failed on a board (board notes A.6: M and K/32)."""
    conv = Conv(P.INT8, m, 1, 32 * k, 32)
    banks = -(-m * 32 * k // 32768)
    bench = Bench()
    tight = cna.CBUF_CON0(data_bank=banks, weight_bank=4)
    with pytest.raises(ViolationError, match="cbuf.int8_slack"):
        bench.run((conv.body(tight), CONV))
    slack = cna.CBUF_CON0(data_bank=banks + 1, weight_bank=4)
    assert bench.run((conv.body(slack), CONV)).completed


def test_reuse_bits_keep_what_the_task_before_fetched() -> None:
    conv = Conv(P.INT8, 8, 8, 64, 32)
    x, w = operands(conv)
    reuse = conv.body(
        cna.CBUF_CON0(data_bank=6, weight_bank=6, data_reuse=1, weight_reuse=1),
        dpu.DST_BASE_ADDR(dst_base_addr=Y + 0x8000),
    )
    bench = Bench()
    conv.load(bench, x, w)
    r = bench.run((conv.body(), CONV), (reuse, CONV))
    assert r.completed
    assert "feature" not in r.tasks[1].bytes_read
    np.testing.assert_array_equal(bench.memory[Y : Y + 0x2000], bench.memory[Y + 0x8000 :][:0x2000])
    with pytest.raises(ViolationError, match="cbuf.reuse"):  # another start: no longer valid
        bench.run((reuse, CONV))


def test_stale_reuse_computes_with_old_content_in_hardware_mode() -> None:
    conv = Conv(P.INT8, 8, 8, 64, 32)
    bench = Bench.of(strict=False)
    conv.load(bench, *operands(conv, 1))
    first = bench.run((conv.body(), CONV))
    old = conv.result(bench)
    bench.put(X, np.zeros(8 * 8 * 64, np.uint8))
    reuse = conv.body(cna.CBUF_CON0(data_bank=6, weight_bank=6, data_reuse=1))
    r = bench.run((reuse, CONV))
    assert first.completed
    assert r.completed
    assert [v.rule for v in r.violations] == ["cbuf.reuse"]
    np.testing.assert_array_equal(conv.result(bench), old)


# -- transposed convolution (board notes A.13) ---------------------------------------------------


@pytest.mark.parametrize("s", [2, 4])
def test_deconv_dilates_the_input(s: int) -> None:
    size, k = 3, 3
    high = (size - 1) * s + 1
    forward = Conv(P.FP16, high, high, 16, 16, (k, k), pad=(1, 1))
    small = Conv(P.FP16, size, size, 16, 16, (k, k), pad=(1, 1))
    x, w = operands(small)
    dilated = np.zeros((high, high, 16), np.float16)
    dilated[::s, ::s] = x
    bench = Bench()
    small.load(bench, x, w)
    body = replace(
        forward.body(),
        *[r for r in small.body() if r.block is cna.CNA and r.address in SIZES],
        cna.CONV_CON1(in_precision=P.FP16, proc_precision=P.FP16, deconv=1),
        cna.CONV_CON3(conv_x_stride=1, conv_y_stride=1, deconv_x_stride=s, deconv_y_stride=s),
    )
    assert bench.run((body, CONV)).completed
    np.testing.assert_array_equal(forward.result(bench), reference(forward, dilated, w))


SIZES = {
    r.address
    for r in (
        cna.DATA_SIZE0,
        cna.CBUF_CON1,
        cna.DMA_CON1,
        cna.DMA_CON2,
        cna.FC_DATA_SIZE0,
    )
}


def test_faults_name_the_unit_and_raise_the_read_error() -> None:
    conv = Conv(P.INT8, 8, 8, 64, 32)
    bench = Bench()
    r = bench.run((conv.body(cna.FEATURE_DATA_ADDR(feature_base_addr=0x4000_0000)), CONV))
    assert not r.completed
    assert r.fault is not None
    assert (r.fault.unit, r.fault.iova, r.fault.write) == ("CNA", 0x4000_0000, False)
    assert r.interrupt_raw & 0x1000
    bench.machine.reset(0)
    r = bench.run((conv.body(dpu.DST_BASE_ADDR(dst_base_addr=0x4000_0000)), CONV))
    assert r.fault is not None
    assert (r.fault.unit, r.fault.write) == ("DPU", True)
    assert r.interrupt_raw & 0x2000
