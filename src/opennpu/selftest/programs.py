"""Register programs by hand, independent of the compiler: for tests, and for boards.

Addresses are offsets in one flat memory: CODE, features at X, weights at W, operands per channel
at OPERANDS, a second cube at EW, the result at Y.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from opennpu.hw import layout
from opennpu.hw.regs import Register
from opennpu.hw.rk3588 import chip, cna, core, dpu, dpu_rdma, global_, ppu, ppu_rdma
from opennpu.hw.rk3588.common import ConvMode, Precision

Array = npt.NDArray[Any]

CODE, X, W, OPERANDS, Y, EW = 0x1000, 0x10000, 0x40000, 0x80000, 0x90000, 0xD0000
MEMORY_BYTES = 0x110000
POISON = 0xEE
CONV_ALONE = global_.OPERATION_ENABLE(cna_op_en=1, core_op_en=1, dpu_op_en=1).word
FLYING = global_.OPERATION_ENABLE(dpu_op_en=1, dpu_rdma_op_en=1).word
CONV = CONV_ALONE | FLYING
POOL = global_.OPERATION_ENABLE(ppu_op_en=1, ppu_rdma_op_en=1).word
PING_PONG = dict(pointer_pp_en=1, executer_pp_en=1, pointer_pp_mode=1)
OUT_OF = {
    Precision.INT8: Precision.INT32,
    Precision.INT4: Precision.INT16,
    Precision.INT16: Precision.INT32,
    Precision.FP16: Precision.FP32,
    Precision.BF16: Precision.FP32,
    Precision.TF32: Precision.FP32,
}


class Memory(Protocol):
    """Flat memory that programs work in."""

    memory: Array  # uint8

    def put(self, at: int, data: Array) -> None:
        """Write there."""


_BLEND = dict(m_weight=1, b_weight=1, n_weight=1, e_weight=1)
_DPU_IDLE: tuple[Register, ...] = (
    dpu.OFFSET_PEND(),
    dpu.BS_ALU_CFG(),
    dpu.BS_MUL_CFG(),
    dpu.BS_RELUX_CMP_VALUE(),
    dpu.BS_OW_OP(),
    dpu.BN_ALU_CFG(),
    dpu.BN_MUL_CFG(),
    dpu.BN_RELUX_CMP_VALUE(),
    dpu.EW_CVT_OFFSET_VALUE(),
    dpu.EW_CVT_SCALE_VALUE(ew_op_cvt_scale=1),
    dpu.EW_RELUX_CMP_VALUE(),
    dpu.OUT_CVT_OFFSET(),
    dpu.OUT_CVT_SHIFT(),
    dpu.UNDOC_40C4(),
    dpu_rdma.RDMA_SRC_BASE_ADDR(),
    dpu_rdma.RDMA_BRDMA_CFG(),
    dpu_rdma.RDMA_BS_BASE_ADDR(),
    dpu_rdma.RDMA_NRDMA_CFG(),
    dpu_rdma.RDMA_BN_BASE_ADDR(),
    dpu_rdma.RDMA_EW_BASE_ADDR(),
    dpu_rdma.RDMA_EW_SURF_STRIDE(),
    dpu_rdma.RDMA_SRC_DMA_CFG(),
    dpu_rdma.RDMA_SURF_NOTCH(),
    dpu_rdma.RDMA_PAD_CFG(),
    dpu_rdma.RDMA_WEIGHT(**_BLEND),
    dpu_rdma.RDMA_EW_SURF_NOTCH(),
)
_CONV_IDLE: tuple[Register, ...] = (
    cna.CVT_CON1(cvt_scale0=1),
    cna.CVT_CON2(cvt_scale1=1),
    cna.CVT_CON3(cvt_scale2=1),
    cna.CVT_CON4(cvt_scale3=1),
    cna.CVT_CON5(),
    cna.FC_CON0(),
    cna.FC_CON1(),
    cna.FC_CON2(),
    cna.DMA_CON0(data_burst_len=15, weight_burst_len=15),
    cna.DCOMP_CTRL(),
    cna.DCOMP_REGNUM(),
    *(getattr(cna, f"DCOMP_AMOUNT{i}")() for i in range(16)),
    core.UNDOC_3030(),
)
_POOL_IDLE: tuple[Register, ...] = (
    ppu.POOLING_PADDING_CFG(),
    ppu.PADDING_VALUE_1_CFG(),
    ppu.PADDING_VALUE_2_CFG(),
    ppu.RECIP_KERNEL_WIDTH(),
    ppu.RECIP_KERNEL_HEIGHT(),
    ppu.MISC_CTRL(burst_len=3),
)


def _whole(body: Sequence[Register], *idle: Register) -> list[Register]:
    """``body`` and those of ``idle`` that it leaves out: registers outlive the job before."""
    there = {r.address for r in body}
    return [*body, *(r for r in idle if r.address not in there)]


def replace(body: Sequence[Register], *new: Register) -> list[Register]:
    """``body`` with the registers of ``new`` in place of those of the same address."""
    by_address = {r.address: r for r in new}
    out = [by_address.pop(r.address, r) for r in body]
    return [*out, *by_address.values()]


@dataclass(frozen=True)
class Conv:
    """A convolution: geometry, types; operands go to X, W, OPERANDS, the result to Y."""

    p: Precision
    h: int
    w: int
    ic: int
    oc: int
    k: tuple[int, int] = (1, 1)
    stride: tuple[int, int] = (1, 1)
    pad: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    out: Precision | None = None
    depthwise: bool = False
    tail_pad: tuple[int, int] | None = None

    @property
    def out_type(self) -> Precision:
        return OUT_OF[self.p] if self.out is None else self.out

    @property
    def out_size(self) -> tuple[int, int]:
        after = self.pad if self.tail_pad is None else self.tail_pad
        size = (self.h, self.w)
        oh, ow = (
            (size[a] + self.pad[a] + after[a] - (self.k[a] - 1) * self.dilation[a] - 1)
            // self.stride[a]
            + 1
            for a in (0, 1)
        )
        return oh, ow

    @property
    def lanes(self) -> int:
        return (chip.DEPTHWISE_GROUP if self.depthwise else chip.KERNEL_GROUP)[self.p]

    @property
    def surfaces(self) -> int:
        return self.lanes * chip.ELEMENT_BITS[self.out_type] // 128

    def body(self, *new: Register) -> list[Register]:
        """Register writes without the tail."""
        p, (oh, ow) = self.p, self.out_size
        bits = chip.ELEMENT_BITS[p]
        mode = ConvMode.DEPTHWISE if self.depthwise else ConvMode.DIRECT
        kernels = 1 if self.depthwise else self.oc
        per = self.k[0] * self.k[1] * self.ic * bits // 8
        entries = -(-self.w * self.ic * bits // 512) + self.w
        dpu_type = Precision.FP32 if p is Precision.TF32 else p
        channels = layout.align(self.ic if self.depthwise else self.oc, self.lanes)
        n = self.surfaces
        narrow = self.out_type is Precision.FP16
        body = replace(
            [
                dpu.S_POINTER(**PING_PONG),
                dpu_rdma.RDMA_S_POINTER(**PING_PONG),
                cna.CONV_CON1(conv_mode=mode, in_precision=p, proc_precision=p),
                cna.CONV_CON2(feature_grains=min(self.h + 1, 1023)),
                cna.CONV_CON3(
                    conv_x_stride=self.stride[1],
                    conv_y_stride=self.stride[0],
                    atrous_x_dilation=self.dilation[1],
                    atrous_y_dilation=self.dilation[0],
                ),
                cna.DATA_SIZE0(datain_width=self.w, datain_height=self.h),
                cna.DATA_SIZE1(datain_channel=self.ic, datain_channel_real=self.ic),
                cna.DATA_SIZE2(dataout_width=ow),
                cna.DATA_SIZE3(dataout_atomics=ow * oh),
                cna.WEIGHT_SIZE0(weight_bytes=per * kernels),
                cna.WEIGHT_SIZE1(weight_bytes_per_kernel=per),
                cna.WEIGHT_SIZE2(
                    weight_width=self.k[1], weight_height=self.k[0], weight_kernels=kernels
                ),
                cna.CBUF_CON0(data_bank=6, weight_bank=6),
                cna.CBUF_CON1(data_entries=entries),
                cna.CVT_CON0(cvt_bypass=1, cvt_type=1, data_sign=1),
                cna.PAD_CON0(pad_left=self.pad[1], pad_top=self.pad[0]),
                cna.PAD_CON1(),
                cna.FEATURE_DATA_ADDR(feature_base_addr=X),
                cna.DMA_CON1(line_stride=4 * self.w),
                cna.DMA_CON2(surf_stride=self.w * (self.h - 4)),
                cna.FC_DATA_SIZE0(dma_height=self.h, dma_width=self.w),
                cna.FC_DATA_SIZE1(dma_channel=self.ic),
                cna.DCOMP_ADDR0(decompress_addr0=W),
                core.MISC_CFG(qd_en=1, dw_en=int(self.depthwise), proc_precision=p),
                core.DATAOUT_SIZE_0(dataout_width=ow, dataout_height=oh),
                core.DATAOUT_SIZE_1(dataout_channel=channels),
                core.CLIP_TRUNCATE(),
                dpu.FEATURE_MODE_CFG(output_mode=2, conv_mode=mode, burst_len=15),
                dpu.DATA_FORMAT(
                    proc_precision=dpu_type, in_precision=dpu_type, out_precision=self.out_type
                ),
                dpu.DST_BASE_ADDR(dst_base_addr=Y),
                dpu.DST_SURF_STRIDE(dst_surf_stride=oh * ow),
                dpu.DATA_CUBE_WIDTH(width=ow),
                dpu.DATA_CUBE_HEIGHT(height=oh),
                dpu.DATA_CUBE_NOTCH_ADDR(),
                dpu.DATA_CUBE_CHANNEL(channel=channels, orig_channel=channels),
                dpu.BS_CFG(bs_bypass=1),
                dpu.BS_OW_CFG(od_bypass=1, size_e_0=n - 1, size_e_1=n - 1, size_e_2=n - 1),
                dpu.WDMA_SIZE_0(channel_wdma=channels),
                dpu.WDMA_SIZE_1(width_wdma=ow, height_wdma=oh),
                dpu.BN_CFG(bn_bypass=1),
                dpu.EW_CFG(ew_bypass=1),
                dpu.OUT_CVT_SCALE(out_cvt_scale=1, fp32tofp16_en=int(narrow)),
                dpu.SURFACE_ADD(surf_add=n * oh * ow),
                dpu_rdma.RDMA_DATA_CUBE_WIDTH(width=ow),
                dpu_rdma.RDMA_DATA_CUBE_HEIGHT(height=oh),
                dpu_rdma.RDMA_DATA_CUBE_CHANNEL(channel=channels),
                dpu_rdma.RDMA_ERDMA_CFG(erdma_disable=1),
                dpu_rdma.RDMA_FEATURE_MODE_CFG(
                    conv_mode=mode, mrdma_disable=1, burst_len=15, proc_precision=p, in_precision=p
                ),
            ],
            *new,
        )
        return _whole(body, *_CONV_IDLE, *_DPU_IDLE)

    def load(self, bench: Memory, x: Array, w: Array) -> None:
        """x [H, W, IC]; w [OC, KH, KW, IC], depthwise [C, KH, KW]."""
        bench.put(X, layout.pack_cube(x[None], self.p))
        if self.depthwise:
            bench.put(W, layout.pack_depthwise_weights(w, self.p, self.ic))
        else:
            bench.put(W, layout.pack_weights(w, self.p, self.ic))

    def result(self, bench: Memory, p: Precision | None = None) -> Array:
        """[OH, OW, OC] from Y."""
        oh, ow = self.out_size
        c = self.ic if self.depthwise else self.oc
        room = layout.align(c, self.lanes)
        cube: Array = layout.unpack_cube(bench.memory[Y:], (1, oh, ow, c), p or self.out_type, room)
        return cube.reshape(cube.shape[1:])


def reference(conv: Conv, x: Array, w: Array, pad_value: Array | float = 0.0) -> Array:
    """Direct or depthwise convolution in float64: [OH, OW, OC]."""
    oh, ow = conv.out_size
    kh, kw = conv.k
    reach_h = (oh - 1) * conv.stride[0] + (kh - 1) * conv.dilation[0] + 1
    reach_w = (ow - 1) * conv.stride[1] + (kw - 1) * conv.dilation[1] + 1
    top, left = conv.pad
    padded = np.empty((max(reach_h, top + conv.h), max(reach_w, left + conv.w), conv.ic))
    padded[...] = pad_value
    padded[top : top + conv.h, left : left + conv.w] = x
    out = np.zeros((oh, ow, conv.ic if conv.depthwise else conv.oc))
    for y in range(oh):
        for z in range(ow):
            for ky in range(kh):
                for kx in range(kw):
                    pixel = padded[
                        y * conv.stride[0] + ky * conv.dilation[0],
                        z * conv.stride[1] + kx * conv.dilation[1],
                    ]
                    tap = w.astype(np.float64)[:, ky, kx]
                    out[y, z] += pixel * tap if conv.depthwise else tap @ pixel
    return out


def flying(
    p: Precision, atoms: int, *new: Register, surfaces: int = 1, out: Precision | None = None
) -> list[Register]:
    """Memory to memory through the DPU: ``surfaces`` surfaces of ``atoms`` pixels."""
    channels = surfaces * chip.elements_per_atom(p)
    out = p if out is None else out
    f = p is Precision.FP16
    n = chip.elements_per_atom(p) * chip.ELEMENT_BITS[out] // 128
    body = replace(
        [
            dpu.S_POINTER(**PING_PONG),
            dpu_rdma.RDMA_S_POINTER(**PING_PONG),
            dpu.FEATURE_MODE_CFG(flying_mode=1, output_mode=2, burst_len=15),
            dpu.DATA_FORMAT(proc_precision=p, in_precision=p, out_precision=out),
            dpu.DST_BASE_ADDR(dst_base_addr=Y),
            dpu.DST_SURF_STRIDE(dst_surf_stride=atoms),
            dpu.DATA_CUBE_WIDTH(width=atoms),
            dpu.DATA_CUBE_HEIGHT(height=1),
            dpu.DATA_CUBE_NOTCH_ADDR(),
            dpu.DATA_CUBE_CHANNEL(channel=channels, orig_channel=channels),
            dpu.BS_CFG(bs_bypass=1),
            dpu.BS_OW_CFG(od_bypass=1, size_e_0=n - 1, size_e_1=n - 1, size_e_2=n - 1),
            dpu.WDMA_SIZE_0(channel_wdma=channels),
            dpu.WDMA_SIZE_1(width_wdma=atoms, height_wdma=1),
            dpu.BN_CFG(bn_bypass=1),
            dpu.EW_CFG(ew_bypass=1),
            dpu.OUT_CVT_OFFSET(),
            dpu.OUT_CVT_SCALE(out_cvt_scale=1, fp32tofp16_en=int(out is Precision.FP16)),
            dpu.OUT_CVT_SHIFT(),
            dpu.SURFACE_ADD(surf_add=n * atoms),
            dpu_rdma.RDMA_DATA_CUBE_WIDTH(width=atoms),
            dpu_rdma.RDMA_DATA_CUBE_HEIGHT(height=1),
            dpu_rdma.RDMA_DATA_CUBE_CHANNEL(channel=channels),
            dpu_rdma.RDMA_SRC_BASE_ADDR(src_base_addr=X),
            dpu_rdma.RDMA_ERDMA_CFG(erdma_disable=1),
            dpu_rdma.RDMA_EW_BASE_ADDR(ew_base_addr=EW),
            dpu_rdma.RDMA_EW_SURF_STRIDE(ew_surf_stride=atoms),
            dpu_rdma.RDMA_FEATURE_MODE_CFG(
                flying_mode=1, mrdma_fp16tofp32_en=int(f), proc_precision=p, in_precision=p
            ),
        ],
        *new,
    )
    return _whole(body, *_DPU_IDLE)


def pool(
    p: Precision,
    size: tuple[int, int],
    out: tuple[int, int],
    *new: Register,
    surfaces: int = 1,
) -> list[Register]:
    """Cube at X to Y; pass POOLING_KERNEL_CFG and the rest in ``new``."""
    channels = surfaces * chip.elements_per_atom(p)
    body = replace(
        [
            ppu.S_POINTER(**PING_PONG),
            ppu_rdma.RDMA_S_POINTER(**PING_PONG),
            ppu.DATA_CUBE_IN_WIDTH(cube_in_width=size[1]),
            ppu.DATA_CUBE_IN_HEIGHT(cube_in_height=size[0]),
            ppu.DATA_CUBE_IN_CHANNEL(cube_in_channel=channels),
            ppu.DATA_CUBE_OUT_WIDTH(cube_out_width=out[1]),
            ppu.DATA_CUBE_OUT_HEIGHT(cube_out_height=out[0]),
            ppu.DATA_CUBE_OUT_CHANNEL(cube_out_channel=channels),
            ppu.OPERATION_MODE_CFG(flying_mode=1),
            ppu.DST_BASE_ADDR(dst_base_addr=Y),
            ppu.DST_SURF_STRIDE(dst_surf_stride=out[0] * out[1]),
            ppu.DATA_FORMAT(proc_precision=p, index_add=out[0] * out[1]),
            ppu_rdma.RDMA_CUBE_IN_WIDTH(cube_in_width=size[1]),
            ppu_rdma.RDMA_CUBE_IN_HEIGHT(cube_in_height=size[0]),
            ppu_rdma.RDMA_CUBE_IN_CHANNEL(cube_in_channel=channels),
            ppu_rdma.RDMA_SRC_BASE_ADDR(src_base_addr=X),
            ppu_rdma.RDMA_SRC_LINE_STRIDE(src_line_stride=size[1]),
            ppu_rdma.RDMA_SRC_SURF_STRIDE(src_surf_stride=size[0] * size[1]),
            ppu_rdma.RDMA_DATA_FORMAT(in_precision=1 if p is Precision.INT8 else 2),
        ],
        *new,
    )
    return _whole(body, *_POOL_IDLE)
