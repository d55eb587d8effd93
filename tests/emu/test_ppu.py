"""PPU: maxima, minima and averages, with paddings and reciprocals."""

from __future__ import annotations

import numpy as np
import pytest
from emu_programs import POOL, Bench, X, Y, pool
from hypothesis import given, settings
from hypothesis import strategies as st

from opennpu.emu.numerics import Policy
from opennpu.errors import ViolationError
from opennpu.hw import layout
from opennpu.hw.rk3588 import ppu, ppu_rdma
from opennpu.hw.rk3588.common import PoolingMethod, Precision

P, M = Precision, PoolingMethod


def run(
    p: Precision,
    x: np.ndarray,
    method: PoolingMethod,
    k: tuple[int, int],
    stride: tuple[int, int] = (1, 1),
    pads: tuple[int, int, int, int] = (0, 0, 0, 0),
    *new: object,
    bench: Bench | None = None,
) -> np.ndarray:
    """x [H, W, C]; pads top, left, bottom, right."""
    bench = bench or Bench()
    h, w, c = x.shape
    oh = (h + pads[0] + pads[2] - k[0]) // stride[0] + 1
    ow = (w + pads[1] + pads[3] - k[1]) // stride[1] + 1
    bench.put(X, layout.pack_cube(x[None], p))
    recip = [0x10000 // n if p is P.INT8 else _fp17(n) for n in k]
    body = pool(
        p,
        (h, w),
        (oh, ow),
        ppu.OPERATION_MODE_CFG(pooling_method=method, flying_mode=1),
        ppu.POOLING_KERNEL_CFG(
            kernel_width=k[1],
            kernel_height=k[0],
            kernel_stride_width=stride[1],
            kernel_stride_height=stride[0],
        ),
        ppu.RECIP_KERNEL_WIDTH(recip_kernel_width=recip[1]),
        ppu.RECIP_KERNEL_HEIGHT(recip_kernel_height=recip[0]),
        ppu.POOLING_PADDING_CFG(
            pad_top=pads[0], pad_left=pads[1], pad_bottom=pads[2], pad_right=pads[3]
        ),
        *new,
        surfaces=layout.cube_surfaces(c, p),
    )
    assert bench.run((body, POOL), mask=0xC00).completed
    return layout.unpack_cube(bench.memory[Y:], (1, oh, ow, c), p)[0]


def _fp17(k: int) -> int:
    return 0x7C00 if k == 1 else int(np.float16(65536 / k).view(np.uint16))


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from([P.INT8, P.FP16]),
    st.sampled_from([M.MAX, M.MIN, M.AVERAGE]),
    st.tuples(st.integers(3, 8), st.integers(3, 8)),
    st.tuples(st.integers(1, 3), st.integers(1, 3)),
    st.tuples(st.integers(1, 3), st.integers(1, 3)),
    st.tuples(*[st.integers(0, 1)] * 4),
)
def test_pooling_equals_the_definition(
    p: Precision,
    method: PoolingMethod,
    size: tuple[int, int],
    k: tuple[int, int],
    stride: tuple[int, int],
    pads: tuple[int, int, int, int],
) -> None:
    x = np.random.default_rng(2).integers(-128, 128, (*size, 24))
    x = x.astype(np.int8 if p is P.INT8 else np.float16)
    got = run(p, x, method, k, stride, pads)
    fill = {M.MAX: -np.inf, M.MIN: np.inf, M.AVERAGE: 0.0}[method]
    padded = np.pad(
        x.astype(np.float64),
        ((pads[0], pads[2]), (pads[1], pads[3]), (0, 0)),
        constant_values=fill,
    )
    view = np.lib.stride_tricks.sliding_window_view(padded, k, axis=(0, 1))
    view = view[:: stride[0], :: stride[1]]
    what = {M.MAX: np.max, M.MIN: np.min, M.AVERAGE: np.mean}[method]
    want = what(view, axis=(-2, -1))
    if method is not M.AVERAGE:
        if p is P.INT8:
            want = np.clip(want, -128, 127)
        np.testing.assert_array_equal(got, want)
    else:
        bound = 0.51 if p is P.INT8 else 0.002 * 128
        assert np.abs(got - want).max() <= bound


def four(*values: int) -> np.ndarray:
    x = np.zeros((2, 2, 16), np.int8)
    x[:, :, 0] = np.reshape(values, (2, 2))
    return x


@pytest.mark.parametrize(
    ("values", "odd", "even", "away"),
    [
        ((1, 1, 0, 0), 1, 0, 1),  # 0.5: quotient 0 is even, away from zero
        ((2, 2, 1, 1), 1, 2, 2),  # 1.5: quotient 1 is odd, toward zero
        ((3, 3, 2, 2), 3, 2, 3),  # 2.5
        ((-1, -1, 0, 0), -1, 0, -1),
        ((-2, -2, -1, -1), -1, -2, -2),
        ((1, 0, 0, 0), 0, 0, 0),  # 0.25
        ((1, 1, 1, 0), 1, 1, 1),  # 0.75
        ((127, 127, 127, 127), 127, 127, 127),
        ((-128, -128, -128, -128), -128, -128, -128),
    ],
)
def test_int8_average_ties(values: tuple[int, ...], odd: int, even: int, away: int) -> None:
    for ties, want in (("odd_toward_zero", odd), ("even", even), ("away", away)):
        bench = Bench.of(Policy(average_ties=ties))  # type: ignore[arg-type]
        assert run(P.INT8, four(*values), M.AVERAGE, (2, 2), bench=bench)[0, 0, 0] == want


def test_inexact_reciprocal_takes_ties_toward_zero() -> None:
    x = np.zeros((1, 6, 16), np.int8)
    x[0, :, 0] = [9, 0, 0, 0, 0, 0]  # 9/6 = 1.5; 0x10000 // 6 is short
    assert run(P.INT8, x, M.AVERAGE, (1, 6))[0, 0, 0] == 1


def test_averages_count_padding_with_its_value() -> None:
    x = np.full((2, 2, 8), 4, np.float16)
    got = run(P.FP16, x, M.AVERAGE, (2, 2), (2, 2), (1, 1, 1, 1))
    assert (got == 1).all()
    value = ppu.PADDING_VALUE_1_CFG(pad_value_0=int(np.float16(8).view(np.uint16)))
    got = run(P.FP16, x, M.AVERAGE, (2, 2), (2, 2), (1, 1, 1, 1), value)
    assert (got == 7).all()


def test_nan_wins_a_maximum() -> None:
    x = np.zeros((1, 2, 8), np.float16)
    x[0, 1, 0] = np.nan
    assert np.isnan(run(P.FP16, x, M.MAX, (1, 2))[0, 0, 0])


@pytest.mark.parametrize(
    ("register", "rule"),
    [
        (ppu.OPERATION_MODE_CFG(pooling_method=1), "ppu.source"),
        (ppu.OPERATION_MODE_CFG(pooling_method=1, flying_mode=1, index_en=1), "ppu.index"),
        (ppu.OPERATION_MODE_CFG(pooling_method=3, flying_mode=1), "ppu.method"),
        (ppu.DATA_FORMAT(proc_precision=1), "ppu.type"),
        (ppu_rdma.RDMA_DATA_FORMAT(in_precision=3), "ppu.precision"),
        (ppu_rdma.RDMA_CUBE_IN_WIDTH(cube_in_width=3), "ppu.geometry"),
        (ppu.DATA_CUBE_OUT_WIDTH(cube_out_width=9), "ppu.window"),
        (ppu.DATA_CUBE_OUT_CHANNEL(cube_out_channel=16), "ppu.channels"),
    ],
)
def test_each_broken_rule_has_its_name(register: object, rule: str) -> None:
    with pytest.raises(ViolationError) as e:
        run(P.FP16, np.zeros((2, 2, 8), np.float16), M.MAX, (2, 2), (1, 1), (0, 0, 0, 0), register)
    assert f"[{rule}]" in e.value.what
