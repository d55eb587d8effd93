"""Conformance: task sequences shaped like the vendor compiler's, rebuilt from decoded captures.

Peer notes 2.1, 2.5 to 2.8 and 2.10 decode them; board notes A.0 has the delta lists.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from emu_programs import (
    CONV,
    EW,
    FLYING,
    PING_PONG,
    Bench,
    Conv,
    W,
    X,
    Y,
    flying,
    reference,
    replace,
)

from opennpu.emu.machine import Machine
from opennpu.hw import layout
from opennpu.hw.regs import Register
from opennpu.hw.rk3588 import cna, core, dpu, dpu_rdma
from opennpu.hw.rk3588.common import Algo, Precision
from opennpu.selftest.bench import MachineBench
from opennpu.selftest.cases import rectangle
from opennpu.selftest.programs import CONV_ALONE

P = Precision


# -- layout conversions --------------------------------------------------------------------------


def test_sub_rectangle_copy() -> None:
    """LINE_NOTCH = pitch - W, SURF_NOTCH = -(H-1) * pitch + offset (peer notes 2.5)."""
    (check,) = rectangle(MachineBench())
    assert check.want.size == 4 * 5 * 3 * 8
    np.testing.assert_array_equal(check.got, check.want)


def test_identity_convolution_writes_row_major() -> None:
    """64 kernels of one 1.0 each; DST_SURF_STRIDE 1, NOTCH = pitch - 1, SURFACE_ADD 2."""
    pixels, channels, pitch = 20, 64, 64
    conv = Conv(P.FP16, pixels, 1, channels, channels, out=P.FP16)
    x = np.random.default_rng(0).normal(size=(pixels, 1, channels)).astype(np.float16)
    eye = np.eye(channels, dtype=np.float16).reshape(channels, 1, 1, channels)
    bench = Bench()
    conv.load(bench, x, eye)
    body = conv.body(
        cna.CBUF_CON0(data_bank=11, weight_bank=1),
        dpu.DST_SURF_STRIDE(dst_surf_stride=1),
        dpu.DATA_CUBE_NOTCH_ADDR(notch_addr_0=pitch - 1, notch_addr_1=pitch - 1),
        dpu.SURFACE_ADD(surf_add=2),
    )
    assert bench.run((body, CONV_ALONE)).completed
    rows = bench.memory[Y:].view(np.float16)[: pixels * pitch * 8].reshape(pixels, pitch * 8)
    np.testing.assert_array_equal(rows[:, :channels], x[:, 0])


def test_matrix_goes_through_the_whole_chain_in_one_start() -> None:
    """Row-major -> cube (TP_ORG_EN), W and H exchanged (TP_EN), ReLU, identity -> row-major."""
    rows, cols = 16, 24  # becomes a cube of 16 channels, 1 x 24 px
    a = np.random.default_rng(0).normal(size=(rows, cols)).astype(np.float16)
    bench = Bench()
    bench.put(X, a)
    cube, turned, relued, out = Y, Y + 0x1000, Y + 0x2000, Y + 0x3000
    to_cube = flying(
        P.INT16,
        1,
        dpu.BS_OW_CFG(od_bypass=1, size_e_0=7, size_e_1=7, size_e_2=7, tp_org_en=1),
        dpu.DST_BASE_ADDR(dst_base_addr=cube),
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
    turn = flying(
        P.INT16,
        cols,
        dpu.FEATURE_MODE_CFG(flying_mode=1, output_mode=2, burst_len=15, tp_en=1),
        dpu.DST_BASE_ADDR(dst_base_addr=turned),
        dpu.WDMA_SIZE_1(width_wdma=1, height_wdma=cols),
        dpu_rdma.RDMA_SRC_BASE_ADDR(src_base_addr=cube),
        dpu_rdma.RDMA_SRC_DMA_CFG(),
        dpu_rdma.RDMA_SURF_NOTCH(),
        surfaces=rows // 8,
    )
    relu = flying(
        P.FP16,
        cols,
        dpu.BS_CFG(bs_alu_bypass=1, bs_mul_bypass=1),
        dpu.DST_BASE_ADDR(dst_base_addr=relued),
        dpu_rdma.RDMA_SRC_BASE_ADDR(src_base_addr=turned),
        dpu_rdma.RDMA_SRC_DMA_CFG(),
        dpu_rdma.RDMA_SURF_NOTCH(),
        surfaces=rows // 8,
    )
    back = Conv(P.FP16, cols, 1, rows, rows, out=P.FP16)
    eye = np.eye(rows, dtype=np.float16).reshape(rows, 1, 1, rows)
    bench.put(W, layout.pack_weights(eye, P.FP16, rows))
    pitch = rows // 8
    identity = back.body(
        cna.FEATURE_DATA_ADDR(feature_base_addr=relued),
        dpu.DST_BASE_ADDR(dst_base_addr=out),
        dpu.DST_SURF_STRIDE(dst_surf_stride=1),
        dpu.DATA_CUBE_NOTCH_ADDR(notch_addr_0=pitch - 1, notch_addr_1=pitch - 1),
        dpu.SURFACE_ADD(surf_add=2),
    )
    r = bench.run((to_cube, FLYING), (turn, FLYING), (relu, FLYING), (identity, CONV_ALONE))
    assert r.completed
    assert r.tasks_done == 4
    got = bench.memory[out:].view(np.float16)[: rows * cols].reshape(cols, rows)
    np.testing.assert_array_equal(got, np.maximum(a, 0).T)


# -- element-wise words (peer notes 2.7) ---------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "scale", "mode", "op"),
    [
        (0x108202C0, 0x10001, 0x17849, np.add),
        (0x108402C0, 0x10001, 0x17849, np.subtract),
        (0x108003C4, 0x10001, 0x17849, np.multiply),
        (0x108303C0, 0x00001, 0x17841, np.divide),
        (0x108002C0, 0x10001, 0x17849, np.maximum),
        (0x108102C0, 0x10001, 0x17849, np.minimum),
    ],
)
def test_element_wise_words_of_the_captures(word: int, scale: int, mode: int, op: np.ufunc) -> None:
    """W = 768, H = 1, C = 64, as captured."""
    width, channels = 768, 64
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 1, 1, width, channels)).astype(np.float16)
    memory = np.zeros(0x200000, np.uint8)
    bench = Bench(memory=memory)
    second, out = 0x80000, 0x100000
    bench.put(X, layout.pack_cube(a, P.FP16))
    bench.put(second, layout.pack_cube(b, P.FP16))
    body = flying(
        P.FP16,
        width,
        dpu.DST_BASE_ADDR(dst_base_addr=out),
        dpu.EW_CFG.decode(word),
        dpu.OUT_CVT_SCALE.decode(scale),
        dpu_rdma.RDMA_FEATURE_MODE_CFG.decode(mode),
        dpu_rdma.RDMA_ERDMA_CFG.decode(0x40000008),
        dpu_rdma.RDMA_EW_BASE_ADDR(ew_base_addr=second),
        dpu_rdma.RDMA_EW_SURF_STRIDE.decode(0x3000),
        surfaces=channels // 8,
    )
    r = bench.run((body, FLYING))
    assert r.completed
    assert not r.warnings
    got = layout.unpack_cube(memory[out:], a.shape, P.FP16)
    want = op(a.astype(np.float32), b.astype(np.float32)).astype(np.float16)
    np.testing.assert_array_equal(got, want)


# -- tables (peer notes 2.8) ---------------------------------------------------------------------

REACH, GAIN = 3.02, 5424.0  # of the vendor's tanh: 16384 / 3.02, as fp16


def tanh_tables() -> tuple[np.ndarray, np.ndarray]:
    """(LE, LO) in units of 2**-15, as the captured ones within half a unit."""
    step = np.arange(513) * REACH / 512
    up = np.rint(32767 * np.tanh(step)).astype(int)
    return -up[::-1], up


def load_tables(*still: Register) -> list[Register]:
    """1,026 entries through the port, in a task that copies one atom onto itself."""
    writes: list[Register] = []
    for table, entries in enumerate(tanh_tables()):
        writes.append(dpu.LUT_ACCESS_CFG(lut_access_type=1, lut_table_id=table))
        writes += [dpu.LUT_ACCESS_DATA.decode(int(v) & 0xFFFF) for v in entries]
    return [
        *flying(P.FP16, 1, dpu.DST_BASE_ADDR(dst_base_addr=X), *still),
        *writes,
        dpu.LUT_ACCESS_CFG(),
        dpu.LUT_ACCESS_DATA(),
    ]


def test_tanh_is_loaded_and_applied() -> None:
    """Pointers cleared, no ping-pong; the words of the capture; the published error bound."""
    off = dict(pointer_pp_clear=1, executer_pp_clear=1)
    still = (dpu.S_POINTER(**off), dpu_rdma.RDMA_S_POINTER(**off))
    x = np.concatenate([np.linspace(-4, 4, 1024), np.zeros(8)]).astype(np.float16)
    bench = Bench()
    bench.put(X, x)
    atoms = x.size // 8
    gain = int(np.float16(GAIN).view(np.uint16))
    apply = flying(
        P.FP16,
        atoms,
        *still,
        dpu.BN_CFG.decode(0x20040),
        dpu.BN_ALU_CFG(bn_alu_operand=0x8000_0000),
        dpu.BN_MUL_CFG(bn_mul_operand=gain),
        dpu.EW_CFG.decode(0x302),
        dpu.LUT_CFG.decode(0x68),
        dpu.LUT_INFO.decode(0x50500),
        dpu.LUT_LE_START(lut_le_start=-16384),
        dpu.LUT_LE_END(),
        dpu.LUT_LO_START(),
        dpu.LUT_LO_END(lut_lo_end=16384),
        dpu.OUT_CVT_OFFSET(out_cvt_offset=1),
        dpu.OUT_CVT_SHIFT(minus_exp=15),
    )
    assert bench.run((load_tables(*still), FLYING)).completed
    assert bench.run((apply, FLYING)).completed
    got = bench.memory[Y:].view(np.float16)[: x.size].astype(np.float64)
    error = np.abs(got - np.tanh(x.astype(np.float64)))
    assert error.max() < 4.9e-3  # saturation at 3.02; 4.8e-3 in the notes
    assert error[np.abs(x) < 2.9].max() < 1e-3


# -- delta lists (board notes A.0) ---------------------------------------------------------------


def matmul(m: int, *new: Register) -> tuple[Conv, list[Register]]:
    conv = Conv(P.FP16, m, 1, 64, 16)
    return conv, conv.body(
        dpu_rdma.RDMA_FEATURE_MODE_CFG(
            mrdma_disable=1, burst_len=15, proc_precision=2, in_precision=2
        ),
        *new,
    )


def addresses(x: int, w: int, y: int) -> list[Register]:
    return [
        cna.FEATURE_DATA_ADDR(feature_base_addr=x),
        cna.DCOMP_ADDR0(decompress_addr0=w),
        dpu.DST_BASE_ADDR(dst_base_addr=y),
    ]


def nine_words(x: int, w: int, y: int) -> list[Register]:
    """Two pointers and three addresses: with the tail of four, nine words."""
    pointers = [dpu.S_POINTER(**PING_PONG), dpu_rdma.RDMA_S_POINTER(**PING_PONG)]
    return [*pointers, *addresses(x, w, y)]


F, S, D = "F", "S", "D"
SIZES = {F: 8, S: 4}


@pytest.mark.parametrize(
    ("kinds", "rows"),
    [
        ([F, F, D, D, D, D], [8, 8, 8, 8, 8, 8]),
        ([F, S, D], [8, 4, 8]),
        ([S, F, D], [4, 8, 4]),  # takes S's geometry
        ([F, S, D, D, D], [8, 4, 8, 4, 8]),
    ],
)
def test_delta_tasks_inherit_from_two_tasks_back(kinds: list[str], rows: list[int]) -> None:
    """Every task has its own operands; the 9-word ones compute as many rows as their group says."""
    bench = Bench()
    tasks, wants, outs = [], [], []
    for i, (kind, m) in enumerate(zip(kinds, rows, strict=True)):
        conv, body = matmul(m)
        rng = np.random.default_rng(i)
        x = rng.integers(-9, 9, (m, 1, 64)).astype(np.float16)
        w = rng.integers(-9, 9, (16, 1, 1, 64)).astype(np.float16)
        where = X + 0x1000 * i, W + 0x1000 * i, Y + 0x1000 * i
        bench.put(where[0], layout.pack_cube(x[None], P.FP16))
        bench.put(where[1], layout.pack_weights(w, P.FP16, 64))
        task = nine_words(*where) if kind == D else replace(body, *addresses(*where))
        if kind == D:
            assert len(task) + 4 == 9
        tasks.append((task, CONV))
        wants.append(reference(conv, x, w))
        outs.append((conv, where[2]))
    bench.memory[Y:] = 0xEE
    r = bench.run(*tasks)
    assert r.completed
    for (conv, at), want in zip(outs, wants, strict=True):
        cube = bench.memory[at : at + 0x1000]
        got = layout.unpack_cube(cube, (1, conv.h, 1, 16), P.FP32, 16)[0]
        np.testing.assert_array_equal(got, want)
        assert (cube[conv.h * 64 :] == 0xEE).all()


def test_with_cleared_pointers_a_delta_task_follows_the_task_before() -> None:
    """0x30 in all four pointers, CNA's and CORE's with the core (0 here)."""
    off = dict(pointer_pp_clear=1, executer_pp_clear=1)
    still: list[Register] = [
        cna.S_POINTER(**off),
        core.S_POINTER(**off),
        dpu.S_POINTER(**off),
        dpu_rdma.RDMA_S_POINTER(**off),
    ]
    bench = Bench()
    big, body_f = matmul(8, *still)
    small, body_s = matmul(4, *still)
    x = np.ones((8, 1, 64), np.float16)
    w = np.ones((16, 1, 1, 64), np.float16)
    big.load(bench, x, w)
    out = [Y + 0x1000 * i for i in range(3)]
    delta = replace([*still], *addresses(X, W, out[2]))
    bench.memory[Y:] = 0xEE
    r = bench.run(
        (replace(body_f, *addresses(X, W, out[0])), CONV),
        (replace(body_s, *addresses(X, W, out[1])), CONV),
        (delta, CONV),
    )
    assert r.completed
    written = [
        int((bench.memory[a : a + 0x1000].reshape(-1, 16) != 0xEE).any(1).sum()) for a in out
    ]
    assert written == [8 * 4, 4 * 4, 4 * 4]
    assert small.h == 4


# -- K = 3072 in one pass, tiles with reuse deltas (peer notes 2.6) ------------------------------


@pytest.mark.parametrize("tiles", [[20, 20, 20, 9], [11, 11, 11, 11, 10], [20, 11]])
def test_one_pass_over_k_3072_with_weight_reuse(tiles: list[int]) -> None:
    """Column tiles of a wide, flat feature map; the weights stay in the CBUF from task 2 on.

    Two full lists, then lists of what changes; a narrower tail tile is full again, because its
    group still has the old width.
    """
    k, n, width = 3072, 16, sum(tiles)
    rng = np.random.default_rng(0)
    x = rng.integers(-9, 9, (1, width, k)).astype(np.float16)
    w = rng.integers(-9, 9, (n, 1, 1, k)).astype(np.float16)
    memory = np.zeros(0x200000, np.uint8)
    bench = Bench(memory=memory)
    at_x, at_w, at_y = 0x20000, 0x120000, 0x180000
    bench.put(at_x, layout.pack_cube(x[None], P.FP16))
    bench.put(at_w, layout.pack_weights(w, P.FP16, k))
    tasks: list[tuple[list[Register], int]] = []
    first = 0
    for i, wide in enumerate(tiles):
        conv = Conv(P.FP16, 1, wide, k, n)
        changes: list[Register] = [
            cna.CBUF_CON0(data_bank=4, weight_bank=8, weight_reuse=int(i > 0)),
            *addresses(at_x + first * 16, at_w, at_y + first * 16),
            cna.FC_DATA_SIZE0(dma_height=1, dma_width=wide),
            cna.FC_DATA_SIZE1(dma_channel=k),
            dpu.WDMA_SIZE_0(channel_wdma=n),
            dpu.WDMA_SIZE_1(width_wdma=wide, height_wdma=1),
        ]
        full = conv.body(
            cna.CONV_CON1(in_precision=P.FP16, proc_precision=P.FP16, group_line_off=1),
            cna.CBUF_CON1(data_entries=wide * k // 32),
            cna.DMA_CON1(line_stride=width),
            cna.DMA_CON2(surf_stride=width - wide),
            dpu.DST_SURF_STRIDE(dst_surf_stride=width),
            dpu.SURFACE_ADD(surf_add=4 * width),
            *changes,
        )
        repeats = i >= 2 and wide == tiles[i - 2]
        pointers = [dpu.S_POINTER(**PING_PONG), dpu_rdma.RDMA_S_POINTER(**PING_PONG)]
        tasks.append(([*pointers, *changes] if repeats else full, CONV))
        first += wide
    r = bench.run(*tasks)
    assert r.completed
    assert not r.warnings
    assert ["weight" in t.bytes_read for t in r.tasks] == [True] + [False] * (len(tiles) - 1)
    got = layout.unpack_cube(memory[at_y:], (1, 1, width, n), P.FP32, n)[0]
    np.testing.assert_array_equal(got, reference(Conv(P.FP16, 1, width, k, n), x, w))


# -- one operation on 1, 2 and 3 cores (peer notes 2.10) -----------------------------------------


@pytest.mark.parametrize("split", [[64], [32, 32], [24, 24, 16]])
def test_channel_split_add_gives_the_same_bytes(split: list[int]) -> None:
    """The captured splits of C = 64: each core adds its channels."""
    atoms, channels = 12, 64
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 1, 1, atoms, channels)).astype(np.float16)
    bench = Bench(Machine(cores=3))
    bench.put(X, layout.pack_cube(a, P.FP16))
    bench.put(EW, layout.pack_cube(b, P.FP16))
    first = 0
    for number, count in enumerate(split):
        skip = first // 8 * atoms * 16
        body = flying(
            P.FP16,
            atoms,
            dpu.EW_CFG(
                ew_op_src=1,
                ew_lut_bypass=1,
                ew_relu_bypass=1,
                ew_data_mode=1,
                edata_size=2,
                ew_alu_algo=Algo.ADD,
            ),
            dpu.DST_BASE_ADDR(dst_base_addr=Y + skip),
            dpu_rdma.RDMA_SRC_BASE_ADDR(src_base_addr=X + skip),
            dpu_rdma.RDMA_EW_BASE_ADDR(ew_base_addr=EW + skip),
            dpu_rdma.RDMA_ERDMA_CFG(erdma_data_size=2, erdma_data_mode=1),
            surfaces=count // 8,
        )
        assert bench.run((body, FLYING), core=number).completed
        first += count
    got = layout.unpack_cube(bench.memory[Y:], a.shape, P.FP16)
    want = (a.astype(np.float32) + b.astype(np.float32)).astype(np.float16)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("p", [P.FP16, P.INT8])
@pytest.mark.parametrize("cores", [1, 2, 3])
@pytest.mark.parametrize("by", ["kernels", "rows"])
def test_split_convolution_gives_the_same_bytes(p: Precision, cores: int, by: str) -> None:
    """Kernels in whole groups, or rows: every core writes its part of one cube."""
    h, wide, k = 9, 5, 64
    lanes = {P.FP16: 16, P.INT8: 32}[p]
    whole = Conv(p, h, wide, k, 3 * lanes)
    rng = np.random.default_rng(0)
    x = rng.normal(0, 9, (h, wide, k)).astype(layout.NUMPY_DTYPE[p])
    w = rng.normal(0, 9, (whole.oc, 1, 1, k)).astype(layout.NUMPY_DTYPE[p])
    bench = Bench(Machine(cores=3))
    whole.load(bench, x, w)
    assert bench.run((whole.body(), CONV)).completed
    want = bench.memory[Y : Y + 0x8000].copy()
    bench.memory[Y : Y + 0x8000] = 0
    total = 3 if by == "kernels" else h
    cuts = [total * i // cores for i in range(cores + 1)]
    for number, (a, b) in enumerate(pairwise(cuts)):
        if by == "kernels":
            part = Conv(p, h, wide, k, (b - a) * lanes)
            skip = a * whole.surfaces * h * wide * 16
            kernel_bytes = k * x.itemsize
            where = X, W + a * lanes * kernel_bytes, Y + skip
        else:
            part = Conv(p, b - a, wide, k, whole.oc)
            where = X + a * wide * 16, W, Y + a * wide * 16
        body = part.body(
            cna.DMA_CON2(surf_stride=wide * (h - 4)),
            dpu.DST_SURF_STRIDE(dst_surf_stride=h * wide),
            dpu.SURFACE_ADD(surf_add=whole.surfaces * h * wide),
            *addresses(*where),
        )
        assert bench.run((body, CONV), core=number).completed
    np.testing.assert_array_equal(bench.memory[Y : Y + 0x8000], want)
    assert want.any()
