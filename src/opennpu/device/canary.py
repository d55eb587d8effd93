"""A task that proves that a job ran: it copies one atom, and nothing else can.

The stock mainline driver reports success for jobs that it dropped, and for jobs that its
watchdog killed.  Tasks of a job run in order on one core, so a copied nonce
shows that every task before the copy was started and that the last one has ended.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from opennpu.hw.layout import NUMPY_DTYPE
from opennpu.hw.regcmd import Write, assemble, tail
from opennpu.hw.rk3588 import chip, dpu, dpu_rdma, global_
from opennpu.hw.rk3588.common import Precision

UNITS = global_.OPERATION_ENABLE(dpu_op_en=1, dpu_rdma_op_en=1).word
LANES = chip.elements_per_atom(Precision.FP16)
LANE_VALUES = 2048  # fp16 holds every integer up to this, so that the copy is exact


def copy_task(src_iova: int, dst_iova: int, atoms: int = 1) -> bytes:
    """A whole task, tail included, that copies fp16 atoms (EW bypassed)."""
    return assemble([*_body(src_iova, dst_iova, atoms), *tail(UNITS)])


def _body(src_iova: int, dst_iova: int, atoms: int) -> Iterator[Write]:
    pointer = dict(pointer_pp_en=1, executer_pp_en=1, pointer_pp_mode=1)
    p = Precision.FP16
    yield dpu.S_POINTER(**pointer)
    yield dpu_rdma.RDMA_S_POINTER(**pointer)
    yield dpu.FEATURE_MODE_CFG(flying_mode=1, output_mode=2, burst_len=15)
    yield dpu.DATA_FORMAT(proc_precision=p, in_precision=p, out_precision=p)
    yield dpu.OFFSET_PEND()
    yield dpu.DST_BASE_ADDR(dst_base_addr=dst_iova)
    yield dpu.DST_SURF_STRIDE(dst_surf_stride=atoms)
    yield dpu.DATA_CUBE_WIDTH(width=atoms)
    yield dpu.DATA_CUBE_HEIGHT(height=1)
    yield dpu.DATA_CUBE_NOTCH_ADDR()
    yield dpu.DATA_CUBE_CHANNEL(channel=LANES, orig_channel=LANES)
    yield dpu.BS_CFG(bs_bypass=1, bs_alu_bypass=1, bs_mul_bypass=1, bs_relu_bypass=1)
    yield dpu.BS_OW_CFG(od_bypass=1)
    yield dpu.BS_OW_OP()
    yield dpu.WDMA_SIZE_0(channel_wdma=LANES)
    yield dpu.WDMA_SIZE_1(width_wdma=atoms, height_wdma=1)
    yield dpu.BN_CFG(bn_bypass=1, bn_alu_bypass=1, bn_mul_bypass=1, bn_relu_bypass=1)
    yield dpu.EW_CFG(
        ew_bypass=1, ew_op_bypass=1, ew_lut_bypass=1, ew_op_cvt_bypass=1, ew_relu_bypass=1
    )
    yield dpu.OUT_CVT_OFFSET()
    yield dpu.OUT_CVT_SCALE(out_cvt_scale=1, fp32tofp16_en=1)
    yield dpu.OUT_CVT_SHIFT()
    yield dpu.SURFACE_ADD(surf_add=atoms)
    yield dpu_rdma.RDMA_DATA_CUBE_WIDTH(width=atoms)
    yield dpu_rdma.RDMA_DATA_CUBE_HEIGHT(height=1)
    yield dpu_rdma.RDMA_DATA_CUBE_CHANNEL(channel=LANES)
    yield dpu_rdma.RDMA_SRC_BASE_ADDR(src_base_addr=src_iova)
    yield dpu_rdma.RDMA_BRDMA_CFG()
    yield dpu_rdma.RDMA_NRDMA_CFG()
    yield dpu_rdma.RDMA_ERDMA_CFG(erdma_disable=1)
    yield dpu_rdma.RDMA_FEATURE_MODE_CFG(
        flying_mode=1, mrdma_fp16tofp32_en=1, proc_precision=p, in_precision=p, burst_len=15
    )
    yield dpu_rdma.RDMA_SRC_DMA_CFG()
    yield dpu_rdma.RDMA_SURF_NOTCH()
    yield dpu_rdma.RDMA_PAD_CFG()
    yield dpu_rdma.RDMA_WEIGHT(m_weight=1, b_weight=1, n_weight=1, e_weight=1)


def nonce(number: int) -> bytes:
    """One atom of fp16 integers, different for every job number and never zero."""
    lanes = [number // (LANE_VALUES - 1) ** i % (LANE_VALUES - 1) + 1 for i in range(LANES)]
    return np.array(lanes, NUMPY_DTYPE[Precision.FP16]).tobytes()
