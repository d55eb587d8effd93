"""The DPU's write DMA beyond plain cubes: transposes, padding lanes, refusals."""

from __future__ import annotations

import numpy as np
import pytest
from emu_programs import CONV, FLYING, Bench, Conv, X, Y, flying, reference, replace

from opennpu.errors import ViolationError
from opennpu.hw import layout
from opennpu.hw.regs import Register
from opennpu.hw.rk3588 import core, dpu, dpu_rdma
from opennpu.hw.rk3588.common import Precision

P = Precision


# -- TP_EN (peer notes 2.5) ----------------------------------------------------------------------


def spatial(rows: int, cols: int, surfaces: int, *new: Register) -> list[Register]:
    """A flying 16-bit copy that exchanges rows and columns."""
    return flying(
        P.INT16,
        cols,
        dpu.FEATURE_MODE_CFG(flying_mode=1, output_mode=2, burst_len=15, tp_en=1),
        dpu.DATA_CUBE_HEIGHT(height=rows),
        dpu_rdma.RDMA_DATA_CUBE_HEIGHT(height=rows),
        dpu.WDMA_SIZE_1(width_wdma=rows, height_wdma=cols),
        dpu.DST_SURF_STRIDE(dst_surf_stride=rows * cols),
        dpu.SURFACE_ADD(surf_add=rows * cols),
        *new,
        surfaces=surfaces,
    )


@pytest.mark.parametrize(("rows", "cols"), [(96, 8), (8, 96), (3, 5), (1, 7)])
def test_tp_en_exchanges_rows_and_columns(rows: int, cols: int) -> None:
    x = np.random.default_rng(0).integers(-999, 999, (rows, cols, 16)).astype(np.int16)
    bench = Bench()
    bench.put(X, layout.pack_cube(x[None], P.INT16))
    assert bench.run((spatial(rows, cols, 2), FLYING)).completed
    got = layout.unpack_cube(bench.memory[Y:], (1, cols, rows, 16), P.INT16)[0]
    np.testing.assert_array_equal(got, x.transpose(1, 0, 2))


@pytest.mark.parametrize(
    "change",
    [dpu.WDMA_SIZE_1(width_wdma=8, height_wdma=4), dpu.WDMA_SIZE_0(channel_wdma=8, tp_precision=1)],
)
def test_other_uses_of_tp_en_are_refused(change: Register) -> None:
    with pytest.raises(ViolationError, match="dpu.not_modelled"):
        Bench().run((spatial(4, 8, 1, change), FLYING))


# -- TP_ORG_EN behind a convolution (board notes A.4) --------------------------------------------


def transposing(conv: Conv, *new: Register) -> list[Register]:
    m = conv.h
    return conv.body(
        dpu.BS_OW_CFG(od_bypass=1, size_e_0=7, size_e_1=7, size_e_2=7, tp_org_en=1),
        dpu.WDMA_SIZE_0(channel_wdma=conv.oc, tp_precision=1),
        dpu.DST_SURF_STRIDE(dst_surf_stride=2 * m),
        dpu.SURFACE_ADD(surf_add=m // 2),
        *new,
    )


@pytest.mark.parametrize("m", [4, 8, 20])
def test_transposed_writer_behind_an_int16_convolution(m: int) -> None:
    """slot(m, n) = 4m + na%4 + na/4 * 4M + n%4 * 16M, na = n/4; the low 16 bits, wrapped."""
    conv = Conv(P.INT16, m, 1, 32, 32)
    rng = np.random.default_rng(m)
    x = rng.integers(-300, 300, (m, 1, 32)).astype(np.int16)
    w = rng.integers(-300, 300, (32, 1, 1, 32)).astype(np.int16)
    bench = Bench()
    conv.load(bench, x, w)
    bench.memory[Y:] = 0xEE
    assert bench.run((transposing(conv), CONV)).completed
    want = reference(conv, x, w).reshape(m, 32).astype(np.int64)
    slots = bench.memory[Y:].view(np.int16)
    used = np.zeros(slots.size, bool)
    for i in range(m):
        for n in range(32):
            na = n // 4
            slot = 4 * i + na % 4 + na // 4 * 4 * m + n % 4 * 16 * m
            assert slots[slot] == np.int16(np.int64(want[i, n]) << 48 >> 48)
            used[slot] = True
    assert (slots[~used].view(np.uint16) == 0xEEEE).all()
    assert (np.abs(want) > 32767).any()


def test_sixteen_transposed_kernels_hang_after_a_full_write() -> None:
    conv = Conv(P.INT16, 8, 1, 32, 16)
    x, w = np.ones((8, 1, 32), np.int16), np.ones((16, 1, 1, 32), np.int16)
    bench = Bench.of(strict=False)
    conv.load(bench, x, w)
    r = bench.run((transposing(conv), CONV))
    assert not r.completed
    assert [v.rule for v in r.violations] == ["dpu.transposed_group"]
    assert (bench.memory[Y:].view(np.int16)[: 4 * 8] == 32).all()


@pytest.mark.parametrize("p", [P.FP16, P.INT8])
def test_only_int16_convolutions_transpose(p: Precision) -> None:
    conv = Conv(p, 8, 1, 32, 32)
    with pytest.raises(ViolationError, match="dpu.not_modelled"):
        Bench().run((transposing(conv), CONV))


# -- OFFSET_PEND and ORIG_CHANNEL (register notes C.8) -------------------------------------------


def test_lanes_without_a_kernel_leave_as_offset_pend() -> None:
    conv = Conv(P.FP16, 2, 3, 16, 5, out=P.FP16)
    x, w = np.ones((2, 3, 16), np.float16), np.ones((5, 1, 1, 16), np.float16)
    for pend in (0, int(np.float16(-2).view(np.uint16))):
        bench = Bench()
        conv.load(bench, x, w)
        body = conv.body(dpu.OFFSET_PEND(offset_pend=pend))
        assert bench.run((body, CONV)).completed
        lanes = layout.unpack_cube(bench.memory[Y:], (1, 2, 3, 16), P.FP16)[0]
        assert (lanes[..., :5] == 16).all()
        assert (lanes[..., 5:] == (-2 if pend else 0)).all()


def test_channels_past_orig_channel_leave_as_offset_pend_too() -> None:
    conv = Conv(P.INT8, 2, 2, 16, 32, out=P.INT8)
    x, w = np.ones((2, 2, 16), np.int8), np.ones((32, 1, 1, 16), np.int8)
    bench = Bench()
    conv.load(bench, x, w)
    body = conv.body(
        dpu.DATA_CUBE_CHANNEL(channel=32, orig_channel=20), dpu.OFFSET_PEND(offset_pend=0x1203)
    )
    assert bench.run((body, CONV)).completed
    lanes = layout.unpack_cube(bench.memory[Y:], (1, 2, 2, 32), P.INT8)[0]
    assert (lanes[..., :20] == 16).all()
    assert (lanes[..., 20:] == 3).all()


def test_offset_pend_of_32_bit_outputs_is_open() -> None:
    with pytest.raises(ViolationError, match="dpu.offset_pend"):
        Bench().run((Conv(P.INT8, 2, 2, 16, 32).body(dpu.OFFSET_PEND(offset_pend=1)), CONV))


# -- what stays refused --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        dpu.FEATURE_MODE_CFG(flying_mode=1, output_mode=2, nonalign=1),
        dpu.FEATURE_MODE_CFG(flying_mode=1, output_mode=2, rgp_type=1),
        dpu.DATA_CUBE_HEIGHT(height=1, minmax_ctl=1),
        dpu.BS_OW_CFG(od_bypass=1, rgp_cnter=1),
        dpu.BS_OW_CFG(od_bypass=1, size_e_0=1),
        dpu.DATA_CUBE_NOTCH_ADDR(notch_addr_0=1),
        dpu.DATA_FORMAT(proc_precision=2, in_precision=2, out_precision=2, mc_surf_out=1),
    ],
)
def test_modes_that_nobody_decoded_are_refused(change: Register) -> None:
    with pytest.raises(ViolationError, match="dpu.not_modelled"):
        Bench().run((flying(P.FP16, 4, change), FLYING))


def test_output_to_nowhere_is_refused() -> None:
    body = flying(P.FP16, 4, dpu.FEATURE_MODE_CFG(flying_mode=1, output_mode=0))
    with pytest.raises(ViolationError, match="dpu.output_mode"):
        Bench().run((body, FLYING))


@pytest.mark.parametrize("mode", [1, 3])
def test_output_to_a_ppu_that_is_not_started_waits_for_ever(mode: int) -> None:
    body = flying(P.FP16, 4, dpu.FEATURE_MODE_CFG(flying_mode=1, output_mode=mode))
    bench = Bench.of(strict=False)
    bench.memory[Y:] = 0xEE
    r = bench.run((body, FLYING))
    assert [v.rule for v in r.violations] == ["start.incomplete"]
    assert not r.completed
    assert (bench.memory[Y:] == 0xEE).all()


def test_unpooling_is_refused() -> None:
    body = flying(P.FP16, 4, dpu_rdma.RDMA_SRC_DMA_CFG(unpooling_en=1))
    with pytest.raises(ViolationError, match="dpu_rdma.unpooling"):
        Bench().run((body, FLYING))


def test_precision_7_in_the_dpu_writes_nothing() -> None:
    conv = Conv(P.TF32, 2, 2, 16, 16)
    x, w = np.ones((2, 2, 16), np.float32), np.ones((16, 1, 1, 16), np.float32)
    bench = Bench.of(strict=False)
    conv.load(bench, x, w)
    bench.memory[Y:] = 0xEE
    fmt = dpu.DATA_FORMAT(proc_precision=7, in_precision=7, out_precision=5)
    r = bench.run((conv.body(fmt), CONV))
    assert not r.completed
    assert [v.rule for v in r.violations] == ["dpu.tf32"]
    assert (bench.memory[Y:] == 0xEE).all()


@pytest.mark.parametrize("code", [4, 5])
def test_codes_4_and_5_in_core_compute_garbage(code: int) -> None:
    conv = Conv(P.FP16, 2, 2, 16, 16)
    bench = Bench.of(strict=False)
    body = replace(conv.body(), core.MISC_CFG(qd_en=1, proc_precision=code))
    r = bench.run((body, CONV))
    assert r.completed
    assert [v.rule for v in r.violations] == ["core.precision"]
    assert (bench.memory[Y : Y + 256] == 0xA5).all()
