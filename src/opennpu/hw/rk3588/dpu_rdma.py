"""DPU_RDMA: the operand streams of the DPU: main (M), bias (B), norm (N), element-wise (E).

Registers 0x5000..0x5fff of a core's window.  Names as in the TRM and in Mesa.
"""

from __future__ import annotations

from opennpu.hw.regs import Block, Register, bits
from opennpu.hw.rk3588.common import COPIES, NOTES, OPEN_FP16, SILICON, TRM, ConvMode, Precision
from opennpu.hw.rk3588.groups import OperationEnable, Pointer, Status

DPU_RDMA = Block("DPU_RDMA", base=0x5000, target=0x2001)


class RDMA_S_STATUS(Status, block=DPU_RDMA, offset=0x000, access="RO", shadowed=False):
    """State of the two register groups."""


class RDMA_S_POINTER(Pointer, block=DPU_RDMA, offset=0x004, shadowed=False):
    """Which register group is written and which one runs (ping-pong).

    0xE: both flip by themselves.  0x30: both back to group 0.
    """


class RDMA_OPERATION_ENABLE(OperationEnable, block=DPU_RDMA, offset=0x008):
    """Arm the unit with the written group.  This and all higher offsets exist once per group."""


class RDMA_DATA_CUBE_WIDTH(Register, block=DPU_RDMA, offset=0x00C):
    """Width of the cube."""

    width: int = bits(12, 0, bias=1, unit="px", source=NOTES, doc="columns")


class RDMA_DATA_CUBE_HEIGHT(Register, block=DPU_RDMA, offset=0x010):
    """Height of the cube."""

    height: int = bits(12, 0, bias=1, unit="px", source=NOTES, doc="rows")
    ew_line_notch_addr: int = bits(
        28,
        16,
        unit="atoms",
        default=0,
        source=TRM,
        doc="EW operand: from the end of a line to the start of the next",
    )


class RDMA_DATA_CUBE_CHANNEL(Register, block=DPU_RDMA, offset=0x014):
    """Channels of the cube."""

    channel: int = bits(12, 0, bias=1, unit="channels", source=NOTES, doc="channels, rounded up")


class RDMA_SRC_BASE_ADDR(Register, block=DPU_RDMA, offset=0x018):
    """MRDMA: where the main operand lies."""

    src_base_addr: int = bits(
        31, 0, unit="bytes", default=0, source=NOTES, doc="IOVA of the main operand"
    )


class RDMA_BRDMA_CFG(Register, block=DPU_RDMA, offset=0x01C):
    """BRDMA: what the BS stage gets per channel.

    1: int32 each.  7: per 8 channels 64 bytes, int32[8], int16[8], int16[8].
    """

    brdma_data_use: int = bits(
        4,
        1,
        default=0,
        source=NOTES,
        doc="bit 0 ALU, 1 CPEND, 2 MUL, 3 shift; 1 and 7 ran on boards",
    )


class RDMA_BS_BASE_ADDR(Register, block=DPU_RDMA, offset=0x020):
    """BRDMA: where it lies."""

    bs_base_addr: int = bits(
        31, 0, unit="bytes", default=0, source=NOTES, doc="IOVA of the BS operands"
    )


class RDMA_NRDMA_CFG(Register, block=DPU_RDMA, offset=0x028):
    """NRDMA: what the BN stage gets per channel."""

    nrdma_data_use: int = bits(
        4, 1, default=0, source=TRM, doc="bit 0 ALU, 2 MUL, 3 shift; bit 1 must be 0"
    )


class RDMA_BN_BASE_ADDR(Register, block=DPU_RDMA, offset=0x02C):
    """NRDMA: where it lies."""

    bn_base_addr: int = bits(
        31, 0, unit="bytes", default=0, source=TRM, doc="IOVA of the BN operands"
    )


class RDMA_ERDMA_CFG(Register, block=DPU_RDMA, offset=0x034):
    """ERDMA: what the EW stage gets."""

    erdma_disable: int = bits(0, default=0, source=NOTES, doc="1 = no EW operand")
    ov4k_bypass: int = bits(1, default=0, source=TRM, doc="0 = split bursts at 4 KiB")
    erdma_data_size: int = bits(3, 2, default=0, source=NOTES, doc="0 4, 1 8, 2 16, 3 32 bits")
    erdma_nonalign: int = bits(28, default=0, source=TRM, doc="1 = packed operand")
    erdma_surf_mode: int = bits(29, default=0, source=TRM, doc="1 = two surfaces in series")
    erdma_data_mode: int = bits(
        31, 30, default=0, source=NOTES, doc="0 one per channel, 1 one per pixel (2 hung an RV1106)"
    )


class RDMA_EW_BASE_ADDR(Register, block=DPU_RDMA, offset=0x038):
    """ERDMA: where it lies."""

    ew_base_addr: int = bits(
        31, 0, unit="bytes", default=0, source=NOTES, doc="IOVA of the EW operand"
    )


class RDMA_EW_SURF_STRIDE(Register, block=DPU_RDMA, offset=0x040):
    """ERDMA: surface pitch (the register holds bytes)."""

    ew_surf_stride: int = bits(
        31,
        4,
        unit="atoms",
        default=0,
        source=NOTES,
        doc="surface pitch; 1 for one operand per channel",
    )


class RDMA_FEATURE_MODE_CFG(Register, block=DPU_RDMA, offset=0x044):
    """Streams and their element types."""

    flying_mode: int = bits(
        0, default=0, source=NOTES, doc="1 = main operand from memory; as in the DPU"
    )
    conv_mode: ConvMode = bits(2, 1, default=0, source=SILICON, doc="as in the CNA")
    mrdma_fp16tofp32_en: int = bits(3, default=0, source=OPEN_FP16, doc="1 = widen fp16 to fp32")
    mrdma_disable: int = bits(
        4, default=0, source=NOTES, doc="1 = no main operand; a started but unfed stream hangs"
    )
    proc_precision: Precision = bits(
        7, 5, default=0, source=NOTES, doc="element type inside the pipeline"
    )
    comb_use: int = bits(
        10,
        8,
        default=0,
        source=NOTES,
        doc="bit 0: MRDMA and ERDMA share one source; bits 1, 2: who gets it",
    )
    burst_len: int = bits(14, 11, default=0, source=TRM, doc="AXI burst: 3, 7, 15 = 4, 8, 16 beats")
    in_precision: Precision = bits(17, 15, default=0, source=NOTES, doc="element type in memory")


class RDMA_SRC_DMA_CFG(Register, block=DPU_RDMA, offset=0x048):
    """MRDMA: gap after each line, and un-pooling."""

    kernel_width: int = bits(
        2, 0, bias=1, unit="px", default=1, source=TRM, doc="un-pooling window, columns"
    )
    kernel_height: int = bits(
        5, 3, bias=1, unit="px", default=1, source=TRM, doc="un-pooling window, rows"
    )
    kernel_stride_width: int = bits(
        8, 6, bias=1, unit="px", default=1, source=TRM, doc="un-pooling step, columns"
    )
    kernel_stride_height: int = bits(
        11, 9, bias=1, unit="px", default=1, source=TRM, doc="un-pooling step, rows"
    )
    unpooling_en: int = bits(12, default=0, source=TRM, doc="1 = un-pooling")
    pooling_method: int = bits(13, default=0, source=TRM, doc="un-pooling: 0 average, 1 min or max")
    line_notch_addr: int = bits(
        31,
        19,
        unit="atoms",
        default=0,
        source=COPIES,
        doc="from the end of a line to the start of the next",
    )


class RDMA_SURF_NOTCH(Register, block=DPU_RDMA, offset=0x04C):
    """MRDMA: gap after each surface (the register holds bytes)."""

    surf_notch_addr: int = bits(
        31,
        4,
        signed=True,
        unit="atoms",
        default=0,
        source=NOTES,
        doc="from the end of a surface to the start of the next to read",
    )


class RDMA_PAD_CFG(Register, block=DPU_RDMA, offset=0x064):
    """Un-pooling: padding."""

    pad_left: int = bits(
        2, 0, unit="px", default=0, source=TRM, doc="un-pooling: columns at the left"
    )
    pad_top: int = bits(6, 4, unit="px", default=0, source=TRM, doc="un-pooling: rows above")
    pad_value: int = bits(31, 16, default=0, source=TRM, doc="un-pooling: value of the padding")


class RDMA_WEIGHT(Register, block=DPU_RDMA, offset=0x068):
    """Shares of the four streams in the bus; every stream writes 1, 1, 1, 1."""

    m_weight: int = bits(7, 0, default=0, source=TRM, doc="MRDMA")
    b_weight: int = bits(15, 8, default=0, source=TRM, doc="BRDMA")
    n_weight: int = bits(23, 16, default=0, source=TRM, doc="NRDMA")
    e_weight: int = bits(31, 24, default=0, source=TRM, doc="ERDMA")


class RDMA_EW_SURF_NOTCH(Register, block=DPU_RDMA, offset=0x06C):
    """ERDMA: gap after each surface (the register holds bytes)."""

    ew_surf_notch: int = bits(
        31,
        4,
        signed=True,
        unit="atoms",
        default=0,
        source=NOTES,
        doc="from the end of a surface to the start of the next to read",
    )
