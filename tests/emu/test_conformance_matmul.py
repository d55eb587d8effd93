"""Conformance: the first open matmul program for this NPU, rebuilt from its documented words.

Peer notes 6.2 list its 108 words and the shapes that their author ran on a board (6.4), with
integers, so that every sum is exact.  Peer notes 2.5 tell where its stride formula is wrong.
"""

from __future__ import annotations

import numpy as np
import pytest
from emu_programs import CODE, Machine

from opennpu.emu.machine import RunResult
from opennpu.emu.memory import AddressSpace
from opennpu.hw import layout, regcmd
from opennpu.hw.regcmd import Marker, Nop, Start, Write
from opennpu.hw.regs import Register
from opennpu.hw.rk3588 import chip, cna, core, dpu, global_, pc
from opennpu.hw.rk3588.common import Precision

P = Precision
WORDS, BODY = 108, 104
OUT_BYTES = {P.FP16: 2, P.FP32: 4, P.INT32: 4}
SURFACES = {P.FP16: 2, P.FP32: 4, P.INT32: 8}  # of 16 or 32 kernels
X_AT = 0x10_0000


def stride(m: int) -> int:
    """SURF_STRIDE that any M needs; equal to the original's formula for M = 1 and M % 4 == 0."""
    return m - 4


def program(
    p: Precision, m: int, k: int, n: int, out: Precision, x: int, w: int, y: int, surf: int
) -> list[Write]:
    """The 108 words, in their order (peer notes 6.2)."""
    size = chip.ELEMENT_BITS[p] // 8
    banks = -(-m * k * size // chip.CBUF_BANK_BYTES)
    one = {"cvt_scale": 1}
    size_e = SURFACES[out] - 1
    off = dict(bs_alu_bypass=1, bs_mul_bypass=1, bs_relu_bypass=1)
    zero_lut = [
        dpu.LUT_ACCESS_CFG,
        dpu.LUT_ACCESS_DATA,
        dpu.LUT_CFG,
        dpu.LUT_INFO,
        dpu.LUT_LE_START,
        dpu.LUT_LE_END,
        dpu.LUT_LO_START,
        dpu.LUT_LO_END,
        dpu.LUT_LE_SLOPE_SCALE,
        dpu.LUT_LE_SLOPE_SHIFT,
        dpu.LUT_LO_SLOPE_SCALE,
        dpu.LUT_LO_SLOPE_SHIFT,
    ]
    return [
        dpu.S_POINTER(pointer_pp_en=1, executer_pp_en=1, pointer_pp_mode=1),
        cna.CONV_CON1(in_precision=p, proc_precision=p),
        cna.CONV_CON2(feature_grains=m + 1),
        cna.CONV_CON3(conv_x_stride=1, conv_y_stride=1),
        cna.DATA_SIZE0(datain_width=1, datain_height=m),
        cna.DATA_SIZE1(datain_channel=k, datain_channel_real=k),
        cna.DATA_SIZE2(dataout_width=1),
        cna.DATA_SIZE3(dataout_atomics=m),
        cna.WEIGHT_SIZE0(weight_bytes=n * k * size),
        cna.WEIGHT_SIZE1(weight_bytes_per_kernel=k * size),
        cna.WEIGHT_SIZE2(weight_width=1, weight_height=1, weight_kernels=n),
        cna.CBUF_CON0(data_bank=banks, weight_bank=12 - banks),
        cna.CBUF_CON1(data_entries=-(-k * size // chip.CBUF_ENTRY_BYTES)),
        cna.CVT_CON0(cvt_bypass=1, cvt_type=1, data_sign=1),
        cna.CVT_CON1(cvt_scale0=one["cvt_scale"]),
        cna.CVT_CON2(cvt_scale1=1),
        cna.CVT_CON3(cvt_scale2=1),
        cna.CVT_CON4(cvt_scale3=1),
        cna.FC_CON0(),
        cna.FC_CON1(),
        cna.PAD_CON0(),
        cna.FEATURE_DATA_ADDR(feature_base_addr=x),
        cna.FC_CON2(),
        cna.DMA_CON0(data_burst_len=15, weight_burst_len=15),
        cna.DMA_CON1(line_stride=4),
        cna.DMA_CON2(surf_stride=surf),
        cna.FC_DATA_SIZE0(dma_width=1, dma_height=m),
        cna.FC_DATA_SIZE1(dma_channel=k),
        cna.DCOMP_CTRL(),
        cna.DCOMP_REGNUM(),
        cna.DCOMP_ADDR0(decompress_addr0=w),
        *(getattr(cna, f"DCOMP_AMOUNT{i}")() for i in range(16)),
        cna.CVT_CON5(),
        cna.PAD_CON1(),
        core.MISC_CFG(proc_precision=p, qd_en=int(p is P.FP16)),
        core.DATAOUT_SIZE_0(dataout_height=m, dataout_width=1),
        core.DATAOUT_SIZE_1(dataout_channel=n),
        core.CLIP_TRUNCATE(),
        core.UNDOC_3030(),
        dpu.FEATURE_MODE_CFG(output_mode=2, burst_len=15),
        dpu.DATA_FORMAT(proc_precision=p, in_precision=p, out_precision=out),
        dpu.OFFSET_PEND(),
        dpu.DST_BASE_ADDR(dst_base_addr=y),
        dpu.DST_SURF_STRIDE(dst_surf_stride=m),
        dpu.DATA_CUBE_WIDTH(width=1),
        dpu.DATA_CUBE_HEIGHT(height=m),
        dpu.DATA_CUBE_NOTCH_ADDR(),
        dpu.DATA_CUBE_CHANNEL(channel=n, orig_channel=n),
        dpu.BS_CFG(bs_bypass=1, **off),
        dpu.BS_ALU_CFG(),
        dpu.BS_MUL_CFG(),
        dpu.BS_RELUX_CMP_VALUE(),
        dpu.BS_OW_CFG(od_bypass=1, size_e_0=size_e, size_e_1=size_e, size_e_2=size_e),
        dpu.BS_OW_OP(),
        dpu.WDMA_SIZE_0(channel_wdma=n),
        dpu.WDMA_SIZE_1(width_wdma=1, height_wdma=m),
        dpu.BN_CFG(bn_bypass=1, bn_alu_bypass=1, bn_mul_bypass=1, bn_relu_bypass=1),
        dpu.BN_ALU_CFG(),
        dpu.BN_MUL_CFG(),
        dpu.BN_RELUX_CMP_VALUE(),
        dpu.EW_CFG(
            ew_bypass=1, ew_op_bypass=1, ew_lut_bypass=1, ew_op_cvt_bypass=1, ew_relu_bypass=1
        ),
        dpu.EW_CVT_OFFSET_VALUE(),
        dpu.EW_CVT_SCALE_VALUE(ew_op_cvt_scale=1),
        dpu.EW_RELUX_CMP_VALUE(),
        dpu.OUT_CVT_OFFSET(),
        dpu.OUT_CVT_SCALE(out_cvt_scale=1, fp32tofp16_en=int(out is P.FP16)),
        dpu.OUT_CVT_SHIFT(),
        *(getattr(dpu, f"EW_OP_VALUE_{i}")() for i in range(8)),
        dpu.SURFACE_ADD(surf_add=m * SURFACES[out]),
        dpu.UNDOC_40C4(),
        *(r() for r in zero_lut),
        Nop(),
        pc.REGISTER_AMOUNTS(),
        Marker(),
        Start(global_.OPERATION_ENABLE(cna_op_en=1, core_op_en=1, dpu_op_en=1)),
    ]


def multiply(
    p: Precision,
    a: np.ndarray,
    b: np.ndarray,
    out: Precision,
    surf: int | None = None,
    strict: bool = True,
    room: int = 0,
) -> tuple[np.ndarray, RunResult]:
    """a [M, K] times b [N, K] transposed, through the program.  ``room``: bytes after a's cube."""
    (m, k), n = a.shape, b.shape[0]
    space, machine = AddressSpace(), Machine(cores=1, strict=strict)
    x = layout.pack_cube(a.reshape(1, m, 1, k), p)
    x = np.concatenate([x, np.zeros(room, np.uint8)])
    w = layout.pack_weights(b.reshape(n, 1, 1, k), p, k)
    y = np.full(m * n * OUT_BYTES[out], 0xEE, np.uint8)
    at_w = X_AT + layout.align(x.size, 0x1000)
    at_y = at_w + layout.align(w.size, 0x1000)
    words = program(p, m, k, n, out, X_AT, at_w, at_y, stride(m) if surf is None else surf)
    assert len(words) == WORDS
    code = np.frombuffer(regcmd.assemble(words), np.uint8).copy()
    for at, data in ((CODE, code), (X_AT, x), (at_w, w), (at_y, y)):
        space.map(at, data)
    result = machine.run(0, space, CODE, BODY + regcmd.TAIL_WORDS)
    return layout.unpack_cube(y, (1, m, 1, n), out, n).reshape(m, n), result


def operands(p: Precision, m: int, k: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    """The author's: integers 0 to 9 as fp16; int8 that are never 0."""
    rng = np.random.default_rng(m * n + k)
    if p is P.FP16:
        return rng.integers(0, 10, (m, k)).astype("<f2"), rng.integers(0, 10, (n, k)).astype("<f2")
    a, b = (rng.integers(1, 256, s).astype(np.uint8).view(np.int8) for s in ((m, k), (n, k)))
    return a, b


def product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Exact: all sums are below 2**53."""
    return a.astype(np.float64) @ b.T.astype(np.float64)


SHAPES = {
    (P.FP16, P.FP32): [
        (1, 32, 16),
        (1, 64, 64),
        (1, 1024, 1024),
        (1, 4096, 4096),
        (4, 32, 16),
        (4, 64, 16),  # of their fixed table 4x36x16: K padded to 64 with zeros
        (384, 384, 4096),
    ],
    (P.INT8, P.INT32): [
        (1, 32, 32),
        (1, 64, 64),
        (1, 1024, 1024),
        (1, 4096, 4096),
        (544, 544, 4096),
    ],
    (P.FP16, P.FP16): [(1, 32, 16), (1, 768, 768), (1, 768, 2048), (1, 8192, 8192)],
}
"""The published list."""


@pytest.mark.parametrize(
    ("p", "out", "shape"),
    [(p, out, s) for (p, out), shapes in SHAPES.items() for s in shapes],
    ids=lambda v: "x".join(map(str, v)) if isinstance(v, tuple) else v.name,
)
def test_published_shapes_are_exact(
    p: Precision, out: Precision, shape: tuple[int, int, int]
) -> None:
    """``==`` to the plain product, converted with overflow to infinity for fp16."""
    a, b = operands(p, *shape)
    if shape == (4, 64, 16):
        a[:, 36:], b[:, 36:] = 0, 0
    got, result = multiply(p, a, b, out)
    assert result.completed
    assert not result.violations
    assert not result.warnings
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(got, product(a, b).astype(got.dtype))


def test_sums_above_65504_leave_as_infinity() -> None:
    """Peer notes 6.4: 1 x 8192 x 8192 overflows everywhere, and equals the C conversion."""
    a, b = np.full((1, 8192), 9, "<f2"), np.full((16, 8192), 9, "<f2")
    got, _ = multiply(P.FP16, a, b, P.FP16)
    assert np.isinf(got).all()


@pytest.mark.parametrize("m", range(1, 10))
@pytest.mark.parametrize("p", [P.FP16, P.INT8])
def test_signed_stride_is_exact_for_any_m(p: Precision, m: int) -> None:
    a, b = operands(p, m, 96, 32)
    got, result = multiply(p, a, b, P.FP32 if p is P.FP16 else P.INT32)
    assert result.completed
    np.testing.assert_array_equal(got, product(a, b))


def formula(m: int) -> int:
    """The original's integer arithmetic (peer notes 2.5)."""
    s = 4 * (m // 4 - 1)
    return s + 1 if s < 0 else s


@pytest.mark.parametrize("m", range(1, 10))
@pytest.mark.parametrize("surf", ["original", "clamped"])
def test_other_strides_read_other_surfaces(m: int, surf: str) -> None:
    """Row m of surface s comes from atom s * pitch + m, pitch = 4 + SURF_STRIDE, not M."""
    value = formula(m) if surf == "original" else max(0, formula(m))
    k, n = 64, 16
    a, b = operands(P.FP16, m, k, n)
    got, result = multiply(P.FP16, a, b, P.FP32, value, room=4 * k * 16)
    assert result.completed
    atoms = np.zeros((4 * k, 8), np.float16)
    atoms[: m * k // 8] = a.reshape(m, k // 8, 8).transpose(1, 0, 2).reshape(-1, 8)
    pitch = 4 + value
    seen = np.stack([atoms[s * pitch : s * pitch + m] for s in range(k // 8)], axis=1)
    np.testing.assert_array_equal(got, product(seen.reshape(m, k), b))
    right = value == m - 4
    assert (got == product(a, b)).all() == right
    assert right == (m % 4 == 0 or (m == 1 and surf == "original"))


def test_clamped_stride_at_m_1_looks_like_the_published_garbage() -> None:
    """Board notes A.3: cosine 0.01 to 0.06 at M = 1, on data of both signs."""
    rng = np.random.default_rng(0)
    k, n = 4096, 512
    a = rng.normal(size=(1, k)).astype(np.float16)
    b = rng.normal(size=(n, k)).astype(np.float16)
    want = product(a, b)[0]
    cosines = []
    for surf in (-3, 0):
        got, _ = multiply(P.FP16, a, b, P.FP32, surf, room=4 * k * 2)
        cosines.append(got[0] @ want / np.linalg.norm(got[0]) / np.linalg.norm(want))
    assert cosines[0] > 0.999999
    assert abs(cosines[1]) < 0.15  # of 512 surfaces 128 are the caller's, shuffled, the rest 0


def test_the_program_names_every_register_it_writes() -> None:
    words = program(P.FP16, 4, 64, 16, P.FP32, 0x1000, 0x2000, 0x3000, 0)
    code = regcmd.assemble(words)
    back = list(regcmd.disassemble(code))
    assert back == words
    assert sum(isinstance(w, Register) for w in back) == BODY + 1
