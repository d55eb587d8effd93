"""The pooling program: memory → PPU → memory.  MaxPool, AveragePool and global pools share it.

Register values: rockchip-npu-notes (board sweeps), NVDLA PDP.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from opennpu.hw.rk3588 import chip, global_, ppu, ppu_rdma
from opennpu.hw.rk3588.common import PoolingMethod, Precision
from opennpu.hw.rk3588.pc import PPU_DONE
from opennpu.ops.base import Operand, Site
from opennpu.program import At, Cost, Emitted, Task

START = global_.OPERATION_ENABLE(ppu_op_en=1, ppu_rdma_op_en=1).word
MAX_WINDOW = ppu.POOLING_KERNEL_CFG.fields["kernel_width"].max
MAX_STRIDE = ppu.POOLING_KERNEL_CFG.fields["kernel_stride_width"].max
MAX_PAD = ppu.POOLING_PADDING_CFG.fields["pad_left"].max
MAX_SIZE = ppu.DATA_CUBE_IN_WIDTH.fields["cube_in_width"].max - 1  # 8191: wraps beyond on silicon


@dataclass(frozen=True, slots=True)
class Pool:
    """One pass.  Pairs are (vertical, horizontal); pads are top, left, bottom, right."""

    x: Operand
    y: Operand
    method: PoolingMethod
    kernel: tuple[int, int]
    stride: tuple[int, int]
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)


def check(
    site: Site, kernel: tuple[int, ...], stride: tuple[int, ...], pads: tuple[int, ...]
) -> None:
    """Refuse windows, strides and paddings that the PPU has no bits for."""
    if not site.target.ppu:
        raise site.refuse(
            "ends in the PPU, and stock rocket waits for the DPU interrupt only",
            "Use the vendor driver or a rocket with PPU_DONE, or leave it to onnxruntime",
        )
    for what, values, limit in (
        ("window", kernel, MAX_WINDOW),
        ("stride", stride, MAX_STRIDE),
        ("padding", pads, MAX_PAD),
    ):
        if what == "padding" and min(values) < 0:
            raise site.refuse(f"crops by pads {list(values)}, the least pad is 0")
        if max(values) > limit:
            raise site.refuse(f"{what} is {max(values)} px, the PPU takes at most {limit}")
    _, h, w, _ = site.x.nhwc
    if max(h, w) > MAX_SIZE:
        raise site.refuse(f"input is {h}x{w} px, the PPU takes at most {MAX_SIZE} a side")


def reciprocal(k: int, precision: Precision) -> int:
    """Register code of 1/k: Q16 for integers, fp17 (bias 31, 10-bit mantissa) for fp16."""
    if precision is Precision.INT8:
        return 0x10000 // k
    if k == 1:
        return 0x7C00
    return int(np.float16(65536 / k).view(np.uint16))


def pad_code(method: PoolingMethod, precision: Precision) -> int:
    """PADDING_VALUE_1: what a padding element counts as."""
    if method is not PoolingMethod.MAX:
        return 0
    return 0x7FF80 if precision is Precision.INT8 else 0xFC00  # -128; -infinity


def task(site: Site, pool: Pool) -> Iterator[Task]:
    """One task per image and run of surfaces."""
    x, y, p = pool.x, pool.y, site.precision
    c2 = chip.elements_per_atom(p)
    most = ppu.DATA_CUBE_IN_CHANNEL.fields["cube_in_channel"].max // c2
    for n in range(y.nhwc[0]):
        for s in range(0, y.surfaces, most):
            count = min(most, y.surfaces - s)
            yield Task(
                site.node.name,
                tuple(words(pool, p, n, s * c2, count * c2)),
                START,
                PPU_DONE,
                Cost(
                    macs=0,
                    mac_cycles=x.plane_atoms * count,
                    read_bytes=x.plane_atoms * count * chip.ATOM_BYTES,
                    write_bytes=y.plane_atoms * count * chip.ATOM_BYTES,
                ),
            )


def words(pool: Pool, p: Precision, n: int, channel: int, channels: int) -> Iterator[Emitted]:
    """Register writes of one pooling task."""
    x, y = pool.x, pool.y
    _, ih, iw, _ = x.nhwc
    _, oh, ow, _ = y.nhwc
    pointer = dict(pointer_pp_en=1, executer_pp_en=1, pointer_pp_mode=1)
    (kh, kw), (sh, sw) = pool.kernel, pool.stride
    top, left, bottom, right = pool.pads
    average = pool.method is PoolingMethod.AVERAGE
    yield ppu.S_POINTER(**pointer)
    yield ppu_rdma.RDMA_S_POINTER(**pointer)
    yield ppu.DATA_CUBE_IN_WIDTH(cube_in_width=iw)
    yield ppu.DATA_CUBE_IN_HEIGHT(cube_in_height=ih)
    yield ppu.DATA_CUBE_IN_CHANNEL(cube_in_channel=channels)
    yield ppu.DATA_CUBE_OUT_WIDTH(cube_out_width=ow)
    yield ppu.DATA_CUBE_OUT_HEIGHT(cube_out_height=oh)
    yield ppu.DATA_CUBE_OUT_CHANNEL(cube_out_channel=channels)
    yield ppu.OPERATION_MODE_CFG(pooling_method=pool.method, flying_mode=1)
    yield ppu.POOLING_KERNEL_CFG(
        kernel_width=kw, kernel_height=kh, kernel_stride_width=sw, kernel_stride_height=sh
    )
    yield ppu.RECIP_KERNEL_WIDTH(recip_kernel_width=reciprocal(kw, p) if average else 0)
    yield ppu.RECIP_KERNEL_HEIGHT(recip_kernel_height=reciprocal(kh, p) if average else 0)
    yield ppu.POOLING_PADDING_CFG(pad_left=left, pad_top=top, pad_right=right, pad_bottom=bottom)
    yield ppu.PADDING_VALUE_1_CFG(pad_value_0=pad_code(pool.method, p))
    yield ppu.PADDING_VALUE_2_CFG()
    yield At(ppu.DST_BASE_ADDR, y.at(n, channel))
    yield ppu.DST_SURF_STRIDE(dst_surf_stride=y.plane_atoms)
    yield ppu.DATA_FORMAT(proc_precision=p, index_add=y.plane_atoms)
    yield ppu.MISC_CTRL(burst_len=3)
    yield ppu_rdma.RDMA_CUBE_IN_WIDTH(cube_in_width=iw)
    yield ppu_rdma.RDMA_CUBE_IN_HEIGHT(cube_in_height=ih)
    yield ppu_rdma.RDMA_CUBE_IN_CHANNEL(cube_in_channel=channels)
    yield At(ppu_rdma.RDMA_SRC_BASE_ADDR, x.at(n, channel))
    yield ppu_rdma.RDMA_SRC_LINE_STRIDE(src_line_stride=iw)
    yield ppu_rdma.RDMA_SRC_SURF_STRIDE(src_surf_stride=x.plane_atoms)
    yield ppu_rdma.RDMA_DATA_FORMAT(in_precision=1 if p is Precision.INT8 else 2)
