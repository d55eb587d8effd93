"""Words of Mesa's rocket driver that no other producer writes (rkt_task.c).

Whole networks of them are compared in tests/teflon.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from emu_programs import CONV, Bench, Conv, W, X, Y, reference

from opennpu.errors import ViolationError
from opennpu.hw import layout
from opennpu.hw.regs import Register
from opennpu.hw.rk3588 import cna, core, dpu, dpu_rdma
from opennpu.hw.rk3588.common import Precision

Array = npt.NDArray[Any]
INT8 = Precision.INT8


def test_the_kernels_need_not_fill_the_last_group_of_channels() -> None:
    """48 kernels in 64 channels; the other lanes are written as zeros."""
    conv = Conv(INT8, 3, 4, 32, 48, (3, 3), pad=(1, 1), out=INT8)
    rng = np.random.default_rng(0)
    x, w = rng.integers(-5, 5, (3, 4, 32)), rng.integers(-5, 5, (48, 3, 3, 32))
    bench = Bench()
    bench.memory[Y:] = 0xEE
    conv.load(bench, x.astype(np.int8), w.astype(np.int8))
    body = conv.body(
        core.DATAOUT_SIZE_1(dataout_channel=64),
        dpu.DATA_CUBE_CHANNEL(channel=64, orig_channel=48),
        dpu.WDMA_SIZE_0(channel_wdma=64),
        dpu_rdma.RDMA_DATA_CUBE_CHANNEL(channel=64),
    )
    r = bench.run((body, CONV))
    assert r.completed
    got = layout.unpack_cube(bench.memory[Y:], (1, 3, 4, 64), INT8, 64)[0]
    np.testing.assert_array_equal(got[..., :48], np.clip(reference(conv, x, w), -128, 127))
    assert not got[..., 48:].any()


def wider(conv: Conv, fetched: int, *new: Register) -> list[Register]:
    """``conv`` computes on its width; the DMA fetches ``fetched`` columns of it."""
    return conv.body(
        cna.FC_DATA_SIZE0(dma_width=fetched, dma_height=conv.h),
        cna.DMA_CON1(line_stride=4 * fetched),
        cna.DMA_CON2(surf_stride=fetched * (conv.h - 4)),
        cna.DATA_SIZE2(dataout_width=fetched),
        cna.DATA_SIZE3(dataout_atomics=fetched * conv.h),
        core.DATAOUT_SIZE_0(dataout_width=fetched, dataout_height=conv.h),
        dpu.DATA_CUBE_WIDTH(width=fetched),
        dpu.WDMA_SIZE_1(width_wdma=fetched, height_wdma=conv.h),
        dpu.DST_SURF_STRIDE(dst_surf_stride=fetched * conv.h),
        dpu.SURFACE_ADD(surf_add=8 * fetched * conv.h),
        dpu_rdma.RDMA_DATA_CUBE_WIDTH(width=fetched),
        *new,
    )


def test_a_cube_may_be_narrower_in_memory_where_the_kernel_does_not_reach_further() -> None:
    """8 columns of 16: addresses follow DMA_WIDTH (register notes B.5)."""
    rng = np.random.default_rng(1)
    x = rng.integers(-128, 128, (8, 8, 32)).astype(np.int8)
    w = rng.integers(-128, 128, (32, 1, 1, 32)).astype(np.int8)
    narrow = Conv(INT8, 8, 8, 32, 32)
    bench = Bench()
    narrow.load(bench, x, w)
    assert bench.run((wider(Conv(INT8, 8, 16, 32, 32), 8), CONV)).completed
    np.testing.assert_array_equal(narrow.result(bench), reference(narrow, x, w))


@pytest.mark.parametrize("fetched", [7, 8, 17])
def test_a_kernel_that_reaches_columns_nobody_fetched_is_refused(fetched: int) -> None:
    conv = Conv(INT8, 8, 16, 32, 32, (3, 3), pad=(1, 1))
    with pytest.raises(ViolationError, match=rf"fetches 8x{fetched}x32, computes 8x16x32"):
        Bench().run((wider(conv, fetched), CONV))


@pytest.mark.parametrize("fetched", [1, 10, 15, 16])
def test_packed_rows_are_fetched_to_the_end_of_their_atom(fetched: int) -> None:
    conv = Conv(INT8, 4, 16, 16, 32, (1, 3))
    rng = np.random.default_rng(2)
    x = rng.integers(-128, 128, (4, 16, 1)).astype(np.int8)
    w = rng.integers(-128, 128, (32, 1, 3, 16)).astype(np.int8)
    bench = Bench()
    bench.put(X, x)
    bench.put(W, layout.pack_weights(w, INT8, 16))
    body = conv.body(
        cna.CONV_CON1(argb_in=8, nonalign_dma=1, group_line_off=1),
        cna.DMA_CON1(line_stride=16),
        cna.FC_DATA_SIZE0(dma_width=fetched, dma_height=4),
    )
    assert bench.run((body, CONV)).completed
    wide = np.zeros((4, 16, 16))
    wide[..., :1] = x
    np.testing.assert_array_equal(conv.result(bench), reference(conv, wide, w))


def test_packed_rows_of_another_atom_are_refused() -> None:
    conv = Conv(INT8, 4, 32, 16, 32)
    body = conv.body(
        cna.CONV_CON1(argb_in=8, nonalign_dma=1, group_line_off=1),
        cna.DMA_CON1(line_stride=32),
        cna.FC_DATA_SIZE0(dma_width=16, dma_height=4),
    )
    with pytest.raises(ViolationError, match=r"cna\.dma_size"):
        Bench().run((body, CONV))
