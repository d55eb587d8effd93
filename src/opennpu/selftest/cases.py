"""Programs with known results: each is one claim about the hardware, with where it comes from.

Expected values are computed here in plain NumPy, or derived by hand; nothing of the emulator or of
the compiler takes part.  Sums are exact in every order unless a case is about the order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from opennpu.hw import layout
from opennpu.hw.regs import Register
from opennpu.hw.rk3588 import chip, cna, dpu, dpu_rdma, ppu
from opennpu.hw.rk3588.common import Algo, PoolingMethod, Precision
from opennpu.selftest.bench import Bench
from opennpu.selftest.programs import (
    CONV,
    CONV_ALONE,
    EW,
    FLYING,
    OPERANDS,
    PING_PONG,
    POISON,
    POOL,
    Array,
    Conv,
    W,
    X,
    Y,
    flying,
    pool,
    reference,
    replace,
)

P, M = Precision, PoolingMethod
EW_STREAM: dict[str, Any] = dict(ew_op_src=1, ew_lut_bypass=1, ew_relu_bypass=1, ew_data_mode=1)


class Check(NamedTuple):
    """Something that must be equal, element for element, NaNs included."""

    what: str
    got: Array
    want: Array

    @property
    def problem(self) -> str:
        """What differs first, with both values; "" if nothing does."""
        want = self.want.astype(self.got.dtype)
        equal = self.got == want
        if self.got.dtype.kind == "f":
            equal |= np.isnan(self.got) & np.isnan(want)
        wrong = np.flatnonzero(~equal)
        if not wrong.size:
            return ""
        at = tuple(int(i) for i in np.unravel_index(wrong[0], self.got.shape))
        return (
            f"{self.what}: {wrong.size} of {self.got.size} values differ, first at {list(at)}: "
            f"{self.got[at]} instead of {want[at]}"
        )


@dataclass(frozen=True, slots=True)
class Case:
    """A claim.

    Attributes:
        name: "group: subject".
        source: who saw it, on what; see docs/explanation/sources.md.
        run: starts programs and says what must be equal.
        ppu: tasks end in the PPU, whose interrupt stock rocket masks.
        chained: one start must run several tasks.
        cores: that a job can be sent to.
    """

    name: str
    source: str
    run: Callable[[Bench], list[Check]]
    ppu: bool = False
    chained: bool = False
    cores: int = 1


def _random(p: Precision, shape: tuple[int, ...], seed: int, peak: int = 7) -> Array:
    """Small integers, of the element type."""
    numbers = np.random.default_rng(seed).integers(-peak, peak + 1, shape)
    return numbers.astype(ml_dtypes.bfloat16 if p is P.BF16 else layout.NUMPY_DTYPE[p])


# -- copies and layouts --------------------------------------------------------------------------


def copies(p: Precision, bench: Bench) -> list[Check]:
    """Every bit pattern of the element type goes through unchanged, NaNs left out."""
    x = np.arange(1 << 16, dtype=np.uint32)
    raw = x.astype(np.uint16) if p is not P.INT8 else x.astype(np.uint8)
    values = raw.view(layout.NUMPY_DTYPE[p]).copy()
    if p is P.FP16:
        values[np.isnan(values)] = 0
    atoms = values.nbytes // chip.ATOM_BYTES
    wide = 4096
    rows = atoms // wide
    size = dict(height=rows)
    bench.put(X, values)
    body = flying(
        p,
        wide,
        dpu.DATA_CUBE_HEIGHT(**size),
        dpu.WDMA_SIZE_1(width_wdma=wide, height_wdma=rows),
        dpu.DST_SURF_STRIDE(dst_surf_stride=atoms),
        dpu.SURFACE_ADD(surf_add=atoms),
        dpu_rdma.RDMA_DATA_CUBE_HEIGHT(**size),
    )
    bench.start((body, FLYING))
    got = bench.memory[Y : Y + values.nbytes].view(values.dtype)
    return [Check("copied values", got, values)]


def rectangle(bench: Bench) -> list[Check]:
    """A part of each plane: LINE_NOTCH and SURF_NOTCH skip the rest."""
    pitch, high, rows, cols, surfaces = 9, 7, 4, 5, 3
    x = np.arange(surfaces * high * pitch * 8).astype(np.int16).reshape(surfaces, high, pitch, 8)
    bench.put(X, x)
    body = flying(
        P.INT16,
        cols,
        dpu.DATA_CUBE_HEIGHT(height=rows),
        dpu.WDMA_SIZE_1(width_wdma=cols, height_wdma=rows),
        dpu.DST_SURF_STRIDE(dst_surf_stride=rows * cols),
        dpu.SURFACE_ADD(surf_add=rows * cols),
        dpu_rdma.RDMA_DATA_CUBE_HEIGHT(height=rows),
        dpu_rdma.RDMA_SRC_BASE_ADDR(src_base_addr=X + (2 * pitch + 3) * 16),
        dpu_rdma.RDMA_SRC_DMA_CFG(line_notch_addr=pitch - cols),
        dpu_rdma.RDMA_SURF_NOTCH(surf_notch_addr=high * pitch - (rows - 1) * pitch - cols),
        surfaces=surfaces,
    )
    bench.start((body, FLYING))
    want = x[:, 2 : 2 + rows, 3 : 3 + cols]
    got = bench.memory[Y : Y + want.size * 2].view(np.int16).reshape(want.shape)
    return [Check("rectangle", got, want)]


def row_major(bench: Bench) -> list[Check]:
    """An identity convolution whose writer turns a cube into rows of channels."""
    pixels, channels = 20, 64
    conv = Conv(P.FP16, pixels, 1, channels, channels, out=P.FP16)
    x = _random(P.FP16, (pixels, 1, channels), 1, 2000)
    conv.load(bench, x, np.eye(channels, dtype=np.float16).reshape(channels, 1, 1, channels))
    pitch = channels
    body = conv.body(
        cna.CBUF_CON0(data_bank=11, weight_bank=1),
        dpu.DST_SURF_STRIDE(dst_surf_stride=1),
        dpu.DATA_CUBE_NOTCH_ADDR(notch_addr_0=pitch - 1, notch_addr_1=pitch - 1),
        dpu.SURFACE_ADD(surf_add=2),
    )
    bench.start((body, CONV_ALONE))
    rows = bench.memory[Y : Y + pixels * pitch * 16].view(np.float16).reshape(pixels, -1)
    return [Check("rows", rows[:, :channels], x[:, 0])]


def to_cube(bench: Bench) -> list[Check]:
    """TP_ORG_EN: a row-major matrix becomes a cube whose channels are its rows."""
    rows, cols = 16, 24
    a = np.arange(rows * cols, dtype=np.int16).reshape(rows, cols)
    bench.put(X, a)
    body = flying(
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
    bench.start((body, FLYING))
    cube = layout.unpack_cube(bench.memory[Y:], (1, 1, cols, rows), P.INT16)
    return [Check("cube", cube.reshape(cols, rows), a.T)]


# -- convolutions --------------------------------------------------------------------------------


def convolution(conv: Conv, pad_value: int, bench: Bench) -> list[Check]:
    """Raw sums, small integers: exact."""
    c = conv.ic
    x = _random(conv.p, (conv.h, conv.w, c), 2)
    shape = (c, *conv.k) if conv.depthwise else (conv.oc, *conv.k, c)
    w = _random(conv.p, shape, 3)
    conv.load(bench, x, w)
    word = int(np.float16(pad_value).view(np.uint16)) if conv.p is P.FP16 else pad_value
    if conv.p is P.INT8:
        word = int.from_bytes(bytes([pad_value & 0xFF] * 4), "little")
    bench.start((conv.body(cna.PAD_CON1(pad_value=word)), CONV))
    return [Check("sums", conv.result(bench), reference(conv, x, w, pad_value))]


def matmul(p: Precision, m: int, k: int, n: int, bench: Bench) -> list[Check]:
    """M rows as an image one pixel wide, any M: SURF_STRIDE = M - 4, signed."""
    conv = Conv(p, m, 1, k, n)
    return convolution(conv, 0, bench)


GROUP_TOP, GROUP_LOW = 2.0**15, 2.0**-24  # as operands: products 2**30 and 2**-48

GROUP_VECTORS: dict[str, tuple[dict[int, tuple[float, float]], int, int]] = {
    # channel: (x, w); channels in all; fp32 bits, derived by hand
    "largest subnormal squared": ({0: (1023 * GROUP_LOW,) * 2}, 32, 98 << 23 | 0x7F8010),
    "cancels inside a group": (
        {0: (GROUP_TOP,) * 2, 7: (GROUP_LOW,) * 2, 31: (-GROUP_TOP, GROUP_TOP)},
        32,
        79 << 23,
    ),
    "is lost across groups": (
        {0: (GROUP_TOP,) * 2, 32: (GROUP_LOW,) * 2, 64: (-GROUP_TOP, GROUP_TOP)},
        96,
        0,
    ),
    "groups are added in order": (
        {0: (GROUP_TOP,) * 2, 32: (-GROUP_TOP, GROUP_TOP), 64: (GROUP_LOW,) * 2},
        96,
        79 << 23,
    ),
    "a tie goes to even": ({0: (4096, 4096), 1: (1, 3)}, 32, (127 + 24) << 23 | 2),
    "one rounding per group": (
        {0: (4096, 4096), 1: (1, 1), 2: (GROUP_LOW, 1)},
        32,
        (127 + 24) << 23 | 1,
    ),
    "a group has 32 channels": (
        {0: (4096, 4096), 32: (1, 1), 33: (1, 1)},
        64,
        (127 + 24) << 23 | 1,
    ),
}


def group_rule(
    vectors: dict[int, tuple[float, float]], k: int, bits: int, bench: Bench
) -> list[Check]:
    """fp16 sums: exact in a group of 32 channels, one rounding, groups added in fp32."""
    conv = Conv(P.FP16, 1, 1, k, 16)
    x, w = np.zeros((1, 1, k), np.float16), np.zeros((16, 1, 1, k), np.float16)
    for channel, (a, b) in vectors.items():
        x[0, 0, channel], w[5, 0, 0, channel] = a, b
    conv.load(bench, x, w)
    bench.start((conv.body(), CONV))
    return [Check("bits", conv.result(bench)[0, 0].view(np.uint32)[5:6], np.array([bits]))]


def requantized(depthwise: bool, bench: Bench) -> list[Check]:
    """int8 out: sat8(rne((acc + A + B * sum(x)) * C >> s) + offset), constants per channel."""
    c, shift, offset, zero = 64, 12, -3, 5
    conv = Conv(P.INT8, 5, 5, c, c, (3, 3), pad=(1, 1), out=P.INT8, depthwise=depthwise)
    rng = np.random.default_rng(5)
    x = _random(P.INT8, (5, 5, c), 6, 127)
    w = _random(P.INT8, (c, 3, 3) if depthwise else (c, 3, 3, c), 7, 127)
    a, b = rng.integers(-5000, 5000, c), rng.integers(-9, 9, c)
    m = rng.integers(1, 30 if depthwise else 3, c)
    conv.load(bench, x, w)
    bench.put(OPERANDS, layout.pack_requant(a, b, m))
    n = conv.surfaces - 1
    body = conv.body(
        dpu.BS_CFG(bs_alu_src=1, bs_alu_algo=Algo.ADD, bs_relu_bypass=1),
        dpu.BS_MUL_CFG(bs_mul_src=1, bs_mul_shift_value=shift),
        dpu.DATA_FORMAT(
            proc_precision=P.INT8,
            in_precision=P.INT8,
            out_precision=P.INT8,
            bs_mul_shift_value_neg=shift,
        ),
        dpu.OUT_CVT_OFFSET(out_cvt_offset=offset),
        dpu_rdma.RDMA_BRDMA_CFG(brdma_data_use=7),
        dpu_rdma.RDMA_BS_BASE_ADDR(bs_base_addr=OPERANDS),
        dpu.BS_OW_CFG(ow_src=1, size_e_0=n, size_e_1=n, size_e_2=n),
        cna.PAD_CON1(pad_value=int.from_bytes(bytes([zero] * 4), "little")),
    )
    bench.start((body, CONV))
    acc = reference(conv, x, w, zero)
    sums = reference(conv, x, np.ones_like(w), zero)
    scaled = np.rint((acc + a + b * sums) * m / (1 << shift)) + offset
    return [Check("outputs", conv.result(bench), np.clip(scaled, -128, 127))]


def accumulated(p: Precision, n: int, bench: Bench) -> list[Check]:
    """K in two halves: the second task adds what the first wrote, read by MRDMA and ERDMA."""
    m, k = 12, 64
    whole, half = Conv(p, m, 1, k, n), Conv(p, m, 1, k // 2, n)
    x, w = _random(p, (m, 1, k), 8, 20), _random(p, (n, 1, 1, k), 9, 20)
    half.load(bench, x[..., : k // 2], w[..., : k // 2])
    bench.start((half.body(dpu.DST_BASE_ADDR(dst_base_addr=EW)), CONV))
    half.load(bench, x[..., k // 2 :], w[..., k // 2 :])
    body = half.body(
        dpu.EW_CFG(edata_size=3, ew_alu_algo=Algo.ADD, ew_op_cvt_bypass=1, **EW_STREAM),
        dpu_rdma.RDMA_ERDMA_CFG(erdma_data_size=3, erdma_data_mode=1),
        dpu_rdma.RDMA_SRC_BASE_ADDR(src_base_addr=EW),
        dpu_rdma.RDMA_EW_BASE_ADDR(ew_base_addr=EW + m * chip.ATOM_BYTES),
        dpu_rdma.RDMA_SURF_NOTCH(surf_notch_addr=m),
        dpu_rdma.RDMA_EW_SURF_STRIDE(ew_surf_stride=m),
        dpu_rdma.RDMA_EW_SURF_NOTCH(ew_surf_notch=m),
        dpu_rdma.RDMA_FEATURE_MODE_CFG(
            comb_use=5, burst_len=15, proc_precision=p, in_precision=half.out_type
        ),
    )
    bench.start((body, CONV))
    return [Check("sums", whole.result(bench), reference(whole, x, w))]


def upsampled(step: int, bench: Bench) -> list[Check]:
    """DECONV: zeros between the pixels, then the kernel."""
    conv = Conv(P.FP16, 3, 3, 16, 16)
    x = _random(P.FP16, (3, 3, 16), 10)
    conv.load(bench, x, np.eye(16, dtype=np.float16).reshape(16, 1, 1, 16))
    body = conv.body(
        cna.CONV_CON1(in_precision=P.FP16, proc_precision=P.FP16, deconv=1),
        cna.CONV_CON3(conv_x_stride=1, conv_y_stride=1, deconv_x_stride=step, deconv_y_stride=step),
    )
    bench.start((body, CONV))
    want = np.zeros((3, 3, 16))
    want[::step, ::step] = x[: -(-3 // step), : -(-3 // step)]
    return [Check("pixels", conv.result(bench), want)]


# -- DPU -----------------------------------------------------------------------------------------


def _fly(
    p: Precision, x: Array, bench: Bench, *new: Register, out: Precision | None = None
) -> Array:
    """Whole atoms through the DPU."""
    bench.put(X, x)
    lanes = chip.elements_per_atom(p)
    bench.start((flying(p, x.size // lanes, *new, out=out), FLYING))
    dtype = layout.NUMPY_DTYPE[out or p]
    return bench.memory[Y : Y + x.size * np.dtype(dtype).itemsize].view(dtype)


def out_shift(away: int, bench: Bench) -> list[Check]:
    """OUT_CVT_SHIFT: round(v >> 2) + offset; ties to even, or away from zero with CVT_ROUND."""
    conv = Conv(P.INT8, 1, 32, 32, 32, out=P.INT8)
    x = np.zeros((1, 32, 32), np.int8)
    values = np.arange(-16, 16)
    x[0, :, 0] = values
    w = np.zeros((32, 1, 1, 32), np.int8)
    w[:, 0, 0, 0] = 1
    conv.load(bench, x, w)
    body = conv.body(
        dpu.OUT_CVT_OFFSET(out_cvt_offset=3),
        dpu.OUT_CVT_SHIFT(out_cvt_shift=2, cvt_round=away),
    )
    bench.start((body, CONV))
    q = values / 4
    rounded = np.trunc(q + np.copysign(0.5, q)) if away else np.rint(q)
    want = np.broadcast_to((rounded + 3)[None, :, None], (1, 32, 32))
    return [Check("shifted values", conv.result(bench), want)]


def saturates(bench: Bench) -> list[Check]:
    """int8 outputs stop at -128 and 127."""
    conv = Conv(P.INT8, 1, 8, 32, 32, out=P.INT8)
    x = np.zeros((1, 8, 32), np.int8)
    x[0, :, 0] = [127, -128, 1, -1, 64, -64, 43, -43]
    w = np.full((32, 1, 1, 32), 3, np.int8)
    conv.load(bench, x, w)
    bench.start((conv.body(), CONV))
    want = np.clip(x[0, :, 0].astype(int) * 3, -128, 127)
    return [Check("outputs", conv.result(bench), np.broadcast_to(want[None, :, None], (1, 8, 32)))]


def narrows(bench: Bench) -> list[Check]:
    """fp32 to fp16: ties to even, subnormals kept, overflow to infinity."""
    conv = Conv(P.FP16, 1, 8, 32, 32, out=P.FP16)
    low = 2.0**-24  # the smallest subnormal
    large = np.array([1, 1 + 2.0**-10, 65504, 65504, -65504, low, 3 * low, 2.0**-15], np.float16)
    small = np.array([0.5, 0.5, 16384, 15360, -16384, 512 * low, 512 * low, 0.5], np.float16)
    x = np.zeros((1, 8, 32), np.float16)
    x[0, :, 0], x[0, :, 1] = large, small
    w = np.zeros((32, 1, 1, 32), np.float16)
    w[:, 0, 0, 0], w[:, 0, 0, 1] = 1, 2.0**-10
    conv.load(bench, x, w)
    bench.start((conv.body(), CONV))
    with np.errstate(over="ignore"):
        exact = (large.astype(np.float64) + small.astype(np.float64) / 1024).astype(np.float16)
    return [Check("outputs", conv.result(bench), np.broadcast_to(exact[None, :, None], (1, 8, 32)))]


def clamps(bench: Bench) -> list[Check]:
    """BS ReLUX: max(0, x) clamped from above."""
    x = np.array([-3, -0.5, 0, 0.5, 1.5, 6, 6.5, 100], np.float16)
    six = int(np.float32(6).view(np.uint32))
    got = _fly(
        P.FP16,
        x,
        bench,
        dpu.BS_CFG(bs_alu_bypass=1, bs_mul_bypass=1, bs_relux_en=1),
        dpu.BS_RELUX_CMP_VALUE(bs_relux_cmp_dat=six),
    )
    return [Check("clamped values", got, np.clip(x, 0, 6))]


def per_channel(bench: Bench) -> list[Check]:
    """BS adds an fp32 per channel, BN multiplies by an fp16 per channel."""
    bias, scale = np.arange(16, dtype=np.float32), np.arange(1, 17).astype(np.float16)
    bench.put(OPERANDS, bias)
    bench.put(OPERANDS + 0x100, scale)
    x = np.ones((2, 2, 8), np.float16)
    bench.put(X, x)
    body = flying(
        P.FP16,
        2,
        dpu.BS_CFG(bs_alu_src=1, bs_alu_algo=Algo.ADD, bs_mul_bypass=1, bs_relu_bypass=1),
        dpu.BN_CFG(bn_alu_bypass=1, bn_relu_bypass=1),
        dpu.BN_MUL_CFG(bn_mul_src=1),
        dpu_rdma.RDMA_BRDMA_CFG(brdma_data_use=1),
        dpu_rdma.RDMA_BS_BASE_ADDR(bs_base_addr=OPERANDS),
        dpu_rdma.RDMA_NRDMA_CFG(nrdma_data_use=4),
        dpu_rdma.RDMA_BN_BASE_ADDR(bn_base_addr=OPERANDS + 0x100),
        surfaces=2,
    )
    bench.start((body, FLYING))
    got = bench.memory[Y : Y + x.nbytes].view(np.float16).reshape(x.shape)
    want = ((1 + bias) * scale.astype(np.float32)).reshape(2, 1, 8)
    return [Check("values", got, np.broadcast_to(want, x.shape))]


def two_cubes(algo: Algo, fn: np.ufunc, bench: Bench) -> list[Check]:
    """fp16 ALU operations of EW on two cubes in memory."""
    a, b = (_random(P.FP16, (64,), seed, 900) for seed in (11, 12))
    bench.put(EW, b)
    got = _fly(
        P.FP16,
        a,
        bench,
        dpu.EW_CFG(edata_size=2, ew_alu_algo=algo, **EW_STREAM),
        dpu_rdma.RDMA_ERDMA_CFG(erdma_data_size=2, erdma_data_mode=1),
    )
    return [Check("values", got, fn(a, b))]


def product_of_cubes(bench: Bench) -> list[Check]:
    """fp16 multiplication in EW: the factor passes by the operand converter."""
    a, b = _random(P.FP16, (64,), 13, 60), _random(P.FP16, (64,), 14, 30)
    bench.put(EW, b)
    got = _fly(
        P.FP16,
        a,
        bench,
        dpu.EW_CFG(**EW_STREAM, edata_size=2, ew_op_type=1, ew_op_cvt_bypass=1),
        dpu_rdma.RDMA_ERDMA_CFG(erdma_data_size=2, erdma_data_mode=1),
    )
    return [Check("products", got, a * b)]


def integer_sum(bench: Bench) -> list[Check]:
    """int8 addition in EW, saturated."""
    a, b = _random(P.INT8, (128,), 15, 127), _random(P.INT8, (128,), 16, 127)
    bench.put(EW, b)
    got = _fly(
        P.INT8,
        a,
        bench,
        dpu.EW_CFG(edata_size=1, ew_alu_algo=Algo.ADD, ew_op_cvt_bypass=1, **EW_STREAM),
        dpu_rdma.RDMA_ERDMA_CFG(erdma_data_size=1, erdma_data_mode=1),
    )
    return [Check("sums", got, np.clip(a.astype(int) + b, -128, 127))]


def residual(bench: Bench) -> list[Check]:
    """A convolution adds a cube: even surfaces come by MRDMA, odd ones by ERDMA."""
    pixels = 12
    conv = Conv(P.FP16, pixels, 1, 32, 32, out=P.FP16)
    x, w = _random(P.FP16, (pixels, 1, 32), 17), _random(P.FP16, (32, 1, 1, 32), 18, 3)
    other = _random(P.FP16, (pixels, 1, 32), 19, 90)
    conv.load(bench, x, w)
    bench.put(EW, layout.pack_cube(other[None], P.FP16))
    body = conv.body(
        dpu.EW_CFG(edata_size=2, ew_alu_algo=Algo.ADD, **EW_STREAM),
        dpu_rdma.RDMA_ERDMA_CFG(erdma_data_size=2, erdma_data_mode=1),
        dpu_rdma.RDMA_SRC_BASE_ADDR(src_base_addr=EW),
        dpu_rdma.RDMA_EW_BASE_ADDR(ew_base_addr=EW + pixels * chip.ATOM_BYTES),
        dpu_rdma.RDMA_SURF_NOTCH(surf_notch_addr=pixels),
        dpu_rdma.RDMA_EW_SURF_STRIDE(ew_surf_stride=pixels),
        dpu_rdma.RDMA_EW_SURF_NOTCH(ew_surf_notch=pixels),
        dpu_rdma.RDMA_FEATURE_MODE_CFG(
            comb_use=5, burst_len=15, proc_precision=P.FP16, in_precision=P.FP16
        ),
    )
    bench.start((body, CONV))
    return [Check("sums", conv.result(bench), reference(conv, x, w) + other)]


# -- tables --------------------------------------------------------------------------------------

STEP = 32  # index units per table entry


def load_tables(le: Array, lo: Array, *still: Register) -> list[Register]:
    """2 x 513 entries through the port, in a task that copies one atom onto itself."""
    writes: list[Register] = []
    for table, entries in enumerate((le, lo)):
        writes.append(dpu.LUT_ACCESS_CFG(lut_access_type=1, lut_table_id=table))
        writes += [dpu.LUT_ACCESS_DATA.decode(int(v) & 0xFFFF) for v in entries]
    end = [dpu.LUT_ACCESS_CFG(), dpu.LUT_ACCESS_DATA()]
    return [*flying(P.FP16, 1, dpu.DST_BASE_ADDR(dst_base_addr=X), *still), *writes, *end]


def table_look_up(offset: int = 1, minus_exp: int = 15) -> list[Register]:
    """Index = 1024 x; both tables reach 16 units of x; result = code * 2**-minus_exp."""
    return [
        dpu.BN_CFG(bn_alu_algo=Algo.ADD, bn_relu_bypass=1),
        dpu.BN_ALU_CFG(bn_alu_operand=0x8000_0000),
        dpu.BN_MUL_CFG(bn_mul_operand=int(np.float16(1024).view(np.uint16))),
        dpu.EW_CFG(ew_op_cvt_bypass=1, ew_relu_bypass=1),
        dpu.LUT_CFG(lut_lo_le_mux=2, lut_oflow_priority=1, lut_hybrid_priority=1),
        dpu.LUT_INFO(lut_le_index_select=5, lut_lo_index_select=5),
        dpu.LUT_LE_START(lut_le_start=-16384),
        dpu.LUT_LE_END(),
        dpu.LUT_LO_START(),
        dpu.LUT_LO_END(lut_lo_end=16384),
        dpu.OUT_CVT_OFFSET(out_cvt_offset=offset),
        dpu.OUT_CVT_SHIFT(minus_exp=minus_exp, cvt_type=1),
    ]


def table(bench: Bench) -> list[Check]:
    """A straight line over both tables: each entry exact, linear between."""
    le = np.arange(0, 16385, STEP)
    bench.start((load_tables(le, np.minimum(le + 16384, 32767)), FLYING))
    x = np.array([-16, -15.5, -3 / 1024, 0, 1 / 1024, 3.25, 15, 15.5], np.float16)
    got = _fly(P.FP16, x, bench, *table_look_up())
    index = np.rint(x.astype(np.float64) * 1024)
    want = (np.minimum(index + 16384, 32767) + 1) / 32768
    return [Check("values", got, want.astype(np.float16))]


def zero_code(minus_exp: int, spike: float, bench: Bench) -> list[Check]:
    """A code of 0 leaves as 2**17, which is why tables are shifted by 1."""
    none = np.zeros(513, int)
    bench.start((load_tables(none, none), FLYING))
    x = np.ones(8, np.float16)
    zero = _fly(P.FP16, x, bench, *table_look_up(0, minus_exp)).copy()
    one = _fly(P.FP16, x, bench, *table_look_up(1, minus_exp))
    return [
        Check("code 0", zero, np.full(8, spike)),
        Check("code 1", one, np.full(8, 2.0**-minus_exp)),
    ]


# -- pooling -------------------------------------------------------------------------------------


def _fp17(k: int) -> int:
    """1 / k as the PPU takes it for fp16."""
    return 0x7C00 if k == 1 else int(np.float16(65536 / k).view(np.uint16))


def pool_program(
    p: Precision,
    size: tuple[int, int],
    channels: int,
    method: PoolingMethod,
    k: tuple[int, int],
    pad: int = 0,
    stride: int = 1,
) -> tuple[list[Register], tuple[int, int]]:
    """(register writes, (rows, columns) of the result); the same padding on all sides."""
    out = ((size[0] + 2 * pad - k[0]) // stride + 1, (size[1] + 2 * pad - k[1]) // stride + 1)
    recip = [0x10000 // n if p is P.INT8 else _fp17(n) for n in k]
    body = pool(
        p,
        size,
        out,
        ppu.OPERATION_MODE_CFG(pooling_method=method, flying_mode=1),
        ppu.POOLING_KERNEL_CFG(
            kernel_width=k[1],
            kernel_height=k[0],
            kernel_stride_width=stride,
            kernel_stride_height=stride,
        ),
        ppu.RECIP_KERNEL_WIDTH(recip_kernel_width=recip[1]),
        ppu.RECIP_KERNEL_HEIGHT(recip_kernel_height=recip[0]),
        ppu.POOLING_PADDING_CFG(pad_top=pad, pad_left=pad, pad_bottom=pad, pad_right=pad),
        surfaces=layout.cube_surfaces(channels, p),
    )
    return body, out


def pooled(p: Precision, method: PoolingMethod, pad: int, bench: Bench) -> list[Check]:
    """Largest or smallest of 3x3 px, padding never wins; or means of 2x2 without ties."""
    size, channels = (8, 9), 24
    x = _random(p, (*size, channels), 20, 100)
    average = method is M.AVERAGE
    if average:
        x = (x // 4 * 4).astype(x.dtype)
    k = (2, 2) if average else (3, 3)
    body, out = pool_program(p, size, channels, method, k, pad)
    bench.put(X, layout.pack_cube(x[None], p))
    bench.start((body, POOL))
    got = layout.unpack_cube(bench.memory[Y:], (1, *out, channels), p)[0]
    fill = {M.MAX: -np.inf, M.MIN: np.inf, M.AVERAGE: 0.0}[method]
    padded = np.pad(x.astype(np.float64), ((pad,) * 2, (pad,) * 2, (0, 0)), constant_values=fill)
    view = np.lib.stride_tricks.sliding_window_view(padded, k, axis=(0, 1))
    if average:
        return [Check("means", got, view.mean((-2, -1)))]
    return [Check("results", got, view.max((-2, -1)) if method is M.MAX else view.min((-2, -1)))]


def average_ties(bench: Bench) -> list[Check]:
    """Exact halves: away from zero, but from an odd quotient toward it."""
    sums = np.array([2, 6, 10, -2, -6, -10, 1, 3, -1, -3, 508, -512])  # of 4 pixels
    halves = np.array([1, 1, 3, -1, -1, -3, 0, 1, 0, -1, 127, -128])
    x = np.zeros((2, 2 * sums.size, 16), np.int8)
    for i, s in enumerate(sums):
        block = np.full(4, s // 4)
        block[: s % 4] += 1
        x[:, 2 * i : 2 * i + 2, 0] = block.reshape(2, 2)
    body, out = pool_program(P.INT8, x.shape[:2], 16, M.AVERAGE, (2, 2), stride=2)
    bench.put(X, layout.pack_cube(x[None], P.INT8))
    bench.start((body, POOL))
    got = layout.unpack_cube(bench.memory[Y:], (1, *out, 16), P.INT8)[0]
    return [Check("means", got[0, :, 0], halves)]


# -- task lists ----------------------------------------------------------------------------------


def _addresses(i: int) -> list[Register]:
    return [
        cna.FEATURE_DATA_ADDR(feature_base_addr=X + 0x1000 * i),
        cna.DCOMP_ADDR0(decompress_addr0=W + 0x1000 * i),
        dpu.DST_BASE_ADDR(dst_base_addr=Y + 0x1000 * i),
    ]


def chain(kinds: str, bench: Bench) -> list[Check]:
    """F and S write all registers (8 and 4 rows), D only pointers and addresses.

    With ping-pong a task finds the registers of the task before the last one.
    """
    rows = {"F": 8, "S": 4}
    tasks: list[tuple[list[Register], int]] = []
    wants: list[tuple[int, Array]] = []
    heights: list[int] = []
    for i, kind in enumerate(kinds):
        m = rows.get(kind) or heights[i - 2]
        heights.append(m)
        conv = Conv(P.FP16, m, 1, 64, 16)
        x, w = _random(P.FP16, (m, 1, 64), 30 + i), _random(P.FP16, (16, 1, 1, 64), 60 + i)
        bench.put(X + 0x1000 * i, layout.pack_cube(x[None], P.FP16))
        bench.put(W + 0x1000 * i, layout.pack_weights(w, P.FP16, 64))
        pointers = [dpu.S_POINTER(**PING_PONG), dpu_rdma.RDMA_S_POINTER(**PING_PONG)]
        full = replace(conv.body(), *_addresses(i))
        tasks.append(([*pointers, *_addresses(i)] if kind == "D" else full, CONV))
        wants.append((m, reference(conv, x, w)))
    bench.start(*tasks)
    checks = []
    for i, (m, want) in enumerate(wants):
        cube = bench.memory[Y + 0x1000 * i :][:0x1000]
        got = layout.unpack_cube(cube, (1, m, 1, 16), P.FP32, 16)[0]
        checks.append(Check(f"task {i}", got, want))
        rest = cube[m * 64 :]
        checks.append(Check(f"bytes behind task {i}", rest, np.full(rest.size, POISON)))
    return checks


def reused(bench: Bench) -> list[Check]:
    """WEIGHT_REUSE: the second task of a job computes with weights that the first one fetched."""
    conv = Conv(P.FP16, 4, 1, 64, 16)
    x, w = _random(P.FP16, (4, 1, 64), 40), _random(P.FP16, (16, 1, 1, 64), 41)
    other = _random(P.FP16, (4, 1, 64), 42)
    conv.load(bench, x, w)
    bench.put(X + 0x1000, layout.pack_cube(other[None], P.FP16))
    second = conv.body(
        cna.CBUF_CON0(data_bank=6, weight_bank=6, weight_reuse=1),
        cna.FEATURE_DATA_ADDR(feature_base_addr=X + 0x1000),
        dpu.DST_BASE_ADDR(dst_base_addr=Y + 0x800),
    )
    bench.start((conv.body(), CONV), (second, CONV))
    first = conv.result(bench).copy()
    behind = layout.unpack_cube(bench.memory[Y + 0x800 :], (1, 4, 1, 16), P.FP32, 16)[0]
    return [
        Check("first task", first, reference(conv, x, w)),
        Check("second task", behind, reference(conv, other, w)),
    ]


def many_tasks(count: int, bench: Bench) -> list[Check]:
    """A long list, one atom copied on from task to task."""
    x = np.arange(8, dtype=np.int16) + 100
    bench.put(X, x)
    tasks = []
    for i in range(count):
        at = X if i == 0 else Y + 16 * (i - 1)
        body = flying(
            P.INT16,
            1,
            dpu.DST_BASE_ADDR(dst_base_addr=Y + 16 * i),
            dpu_rdma.RDMA_SRC_BASE_ADDR(src_base_addr=at),
        )
        tasks.append((body, FLYING))
    bench.start(*tasks)
    got = bench.memory[Y : Y + 16 * count].view(np.int16).reshape(count, 8)
    return [Check("copies", got, np.broadcast_to(x, (count, 8)))]


def on_core(number: int, bench: Bench) -> list[Check]:
    """A convolution asked for on one core."""
    conv = Conv(P.INT8, 4, 4, 32, 32)
    x, w = _random(P.INT8, (4, 4, 32), 50 + number), _random(P.INT8, (32, 1, 1, 32), 53)
    conv.load(bench, x, w)
    bench.start((conv.body(), CONV), core=number)
    return [Check("sums", conv.result(bench), reference(conv, x, w))]


# -- the list ------------------------------------------------------------------------------------


def _cases() -> Iterator[Case]:
    for p in (P.INT8, P.INT16, P.FP16):
        yield Case(f"copy: {p.name.lower()}", "peer notes 2.5", partial(copies, p))
    yield Case("layout: rectangle", "peer notes 2.5", rectangle)
    yield Case("layout: row-major rows", "peer notes 2.5", row_major)
    yield Case("layout: row-major to cube", "peer notes 2.5", to_cube)
    for p, n in (
        (P.INT4, 64),
        (P.INT8, 32),
        (P.INT16, 16),
        (P.FP16, 16),
        (P.BF16, 16),
        (P.TF32, 16),
    ):
        yield Case(
            f"matmul: {p.name.lower()}, M 4, K 128, N {2 * n}",
            "board notes A.1",
            partial(matmul, p, 4, 128, 2 * n),
        )
    for m in range(1, 10):
        yield Case(f"matmul: fp16, M {m}", "board notes A.3", partial(matmul, P.FP16, m, 96, 32))
    yield Case("matmul: fp16, K 4096", "peer notes 6.4", partial(matmul, P.FP16, 1, 4096, 32))
    for name, source, conv, pad in (
        (
            "conv: int8, 3x3, padded",
            "board notes A.8",
            Conv(P.INT8, 6, 7, 32, 64, (3, 3), pad=(1, 1)),
            3,
        ),
        (
            "conv: fp16, 3x3, padded",
            "board notes A.2",
            Conv(P.FP16, 6, 7, 32, 32, (3, 3), pad=(1, 1)),
            2,
        ),
        (
            "conv: int8, stride 2",
            "board notes A.2",
            Conv(P.INT8, 9, 9, 16, 32, (3, 3), stride=(2, 2)),
            0,
        ),
        ("conv: fp16, 1x5", "board notes A.2", Conv(P.FP16, 4, 12, 16, 16, (1, 5)), 0),
        (
            "conv: int8, dilated",
            "register notes B.2",
            Conv(P.INT8, 9, 9, 16, 32, (3, 3), dilation=(2, 2)),
            0,
        ),
        (
            "conv: fp16, depthwise",
            "board notes A.8",
            Conv(P.FP16, 6, 6, 64, 64, (3, 3), depthwise=True),
            0,
        ),
    ):
        yield Case(name, source, partial(convolution, conv, pad))
    yield Case("conv: int8 to int8", "board notes A.9", partial(requantized, False))
    yield Case("conv: int8 to int8, depthwise", "board notes A.8, A.9", partial(requantized, True))
    for name, (vectors, k, bits) in GROUP_VECTORS.items():
        yield Case(f"fp16 sums: {name}", "board notes A.7", partial(group_rule, vectors, k, bits))
    yield Case("conv: K in two halves, int8", "board notes A.10", partial(accumulated, P.INT8, 64))
    yield Case("conv: K in two halves, fp16", "board notes A.10", partial(accumulated, P.FP16, 32))
    yield Case("conv: residual", "board notes A.10", residual)
    for step in (2, 4):
        yield Case(
            f"conv: zeros between pixels, step {step}", "board notes A.13", partial(upsampled, step)
        )
    yield Case("dpu: shift, ties to even", "board notes A.9", partial(out_shift, 0))
    yield Case("dpu: shift, ties away", "register notes C.6", partial(out_shift, 1))
    yield Case("dpu: int8 saturates", "board notes A.9", saturates)
    yield Case("dpu: fp32 to fp16", "board notes A.1", narrows)
    yield Case("dpu: clamp", "register notes C.3", clamps)
    yield Case("dpu: operands per channel", "register notes C.9", per_channel)
    for algo, fn in ((Algo.ADD, np.add), (Algo.MAX, np.maximum), (Algo.MIN, np.minimum)):
        yield Case(
            f"dpu: {algo.name.lower()} of two cubes",
            "board notes A.10",
            partial(two_cubes, algo, fn),
        )
    yield Case("dpu: product of two cubes", "board notes A.10", product_of_cubes)
    yield Case("dpu: int8 sum of two cubes", "board notes A.10", integer_sum)
    yield Case("table: a straight line", "board notes A.11", table)
    for exp, spike in ((15, 4.0), (10, 128.0)):
        yield Case(
            f"table: code 0, exponent {exp}", "board notes A.11", partial(zero_code, exp, spike)
        )
    for p in (P.INT8, P.FP16):
        for method in (M.MAX, M.MIN, M.AVERAGE):
            yield Case(
                f"pool: {p.name.lower()} {method.name.lower()}",
                "board notes A.12",
                partial(pooled, p, method, 0 if method is M.AVERAGE else 1),
                ppu=True,
            )
    yield Case("pool: int8 average, ties", "board notes A.12", average_ties, ppu=True)
    for kinds in ("FFDD", "FSD", "SFD", "FSDDD"):
        yield Case(f"list: {kinds}", "board notes A.0", partial(chain, kinds), chained=True)
    yield Case("list: weights stay", "board notes A.6", reused, chained=True)
    yield Case("list: 64 tasks", "board notes A.0", partial(many_tasks, 64))
    for number in range(chip.CORES):
        yield Case(f"core: {number}", "board notes A.0", partial(on_core, number), cores=number + 1)


CASES: tuple[Case, ...] = tuple(_cases())
