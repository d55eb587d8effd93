"""PPU: the pooling unit (NVDLA: PDP).

Registers 0x6000..0x6fff of a core's window.  Names as in the TRM and in Mesa.
"""

from __future__ import annotations

from opennpu.hw.regs import Block, Register, Trust, bits
from opennpu.hw.rk3588.common import NOTES, TRM, PoolingMethod, Precision
from opennpu.hw.rk3588.groups import OperationEnable, Status

PPU = Block("PPU", base=0x6000, target=0x4001)


class S_STATUS(Status, block=PPU, offset=0x000, access="RO", shadowed=False):
    """State of the two register groups."""


class S_POINTER(Register, block=PPU, offset=0x004, shadowed=False):
    """Which register group is written and which one runs (ping-pong).

    0xE: both flip by themselves.  0x30: both back to group 0.
    """

    pointer: int = bits(0, default=0, source=TRM, doc="group that register writes land in")
    pointer_pp_en: int = bits(1, default=0, source=TRM, doc="1 = the write group flips by itself")
    executer_pp_en: int = bits(
        2, default=0, source=TRM, doc="1 = the executing group flips after each task"
    )
    pointer_pp_mode: int = bits(
        3, default=0, source=TRM, doc="1 = flip at each op-enable; 0 = follow execution"
    )
    pointer_pp_clear: int = bits(
        4, default=0, source=TRM, doc="write 1: write group back to 0 (reads 0)"
    )
    executer_pp_clear: int = bits(
        5, default=0, source=TRM, doc="write 1: executing group back to 0 (reads 0)"
    )
    executer: int = bits(16, default=0, source=TRM, doc="group that runs now or next; read only")


class OPERATION_ENABLE(OperationEnable, block=PPU, offset=0x008):
    """Arm the unit with the written group.  This and all higher offsets exist once per group."""


class DATA_CUBE_IN_WIDTH(Register, block=PPU, offset=0x00C):
    """Input width."""

    cube_in_width: int = bits(12, 0, bias=1, unit="px", source=NOTES, doc="columns")


class DATA_CUBE_IN_HEIGHT(Register, block=PPU, offset=0x010):
    """Input height."""

    cube_in_height: int = bits(12, 0, bias=1, unit="px", source=NOTES, doc="rows")


class DATA_CUBE_IN_CHANNEL(Register, block=PPU, offset=0x014):
    """Input channels."""

    cube_in_channel: int = bits(12, 0, bias=1, unit="channels", source=NOTES, doc="channels")


class DATA_CUBE_OUT_WIDTH(Register, block=PPU, offset=0x018):
    """Output width."""

    cube_out_width: int = bits(12, 0, bias=1, unit="px", source=NOTES, doc="columns")


class DATA_CUBE_OUT_HEIGHT(Register, block=PPU, offset=0x01C):
    """Output height."""

    cube_out_height: int = bits(12, 0, bias=1, unit="px", source=NOTES, doc="rows")


class DATA_CUBE_OUT_CHANNEL(Register, block=PPU, offset=0x020):
    """Output channels."""

    cube_out_channel: int = bits(12, 0, bias=1, unit="channels", source=NOTES, doc="channels")


class OPERATION_MODE_CFG(Register, block=PPU, offset=0x024):
    """What to pool, and from where."""

    pooling_method: PoolingMethod = bits(1, 0, default=0, source=NOTES, doc="average, max or min")
    flying_mode: int = bits(
        4, default=0, source=NOTES, doc="0 = input from the DPU; 1 = from memory, through PPU_RDMA"
    )
    use_cnt: int = bits(
        7, 5, default=0, source=TRM, trust=Trust.GUESSED, doc="unknown: the TRM gives the name only"
    )
    notch_addr: int = bits(
        28,
        16,
        unit="atoms",
        default=0,
        source=TRM,
        doc="from the end of an output line to the start of the next",
    )
    index_en: int = bits(
        30, default=0, source=TRM, doc="1 = also write the position of each winner"
    )


class POOLING_KERNEL_CFG(Register, block=PPU, offset=0x034):
    """Window size and step."""

    kernel_width: int = bits(3, 0, bias=1, unit="px", source=NOTES, doc="window columns")
    kernel_height: int = bits(11, 8, bias=1, unit="px", source=NOTES, doc="window rows")
    kernel_stride_width: int = bits(19, 16, bias=1, unit="px", source=NOTES, doc="horizontal step")
    kernel_stride_height: int = bits(23, 20, bias=1, unit="px", source=NOTES, doc="vertical step")


class RECIP_KERNEL_WIDTH(Register, block=PPU, offset=0x038):
    """Average pooling: divisor of the columns."""

    recip_kernel_width: int = bits(
        16,
        0,
        default=0,
        source=NOTES,
        doc="1/columns: 0x10000/k for integers, fp17 (1-6-10, bias 31) for fp16",
    )


class RECIP_KERNEL_HEIGHT(Register, block=PPU, offset=0x03C):
    """Average pooling: divisor of the rows."""

    recip_kernel_height: int = bits(
        16,
        0,
        default=0,
        source=NOTES,
        doc="1/rows: 0x10000/k for integers, fp17 (1-6-10, bias 31) for fp16",
    )


class POOLING_PADDING_CFG(Register, block=PPU, offset=0x040):
    """Padding around the image."""

    pad_left: int = bits(2, 0, unit="px", default=0, source=NOTES, doc="columns at the left")
    pad_top: int = bits(6, 4, unit="px", default=0, source=NOTES, doc="rows above")
    pad_right: int = bits(10, 8, unit="px", default=0, source=NOTES, doc="columns at the right")
    pad_bottom: int = bits(14, 12, unit="px", default=0, source=NOTES, doc="rows below")


class PADDING_VALUE_1_CFG(Register, block=PPU, offset=0x044):
    """Value of one padding element, low part."""

    pad_value_0: int = bits(
        31,
        0,
        default=0,
        source=NOTES,
        doc="bits 31:0; max pooling: 0x7ff80 for int8, 0xfc00 for fp16",
    )


class PADDING_VALUE_2_CFG(Register, block=PPU, offset=0x048):
    """Value of one padding element, high part."""

    pad_value_1: int = bits(2, 0, default=0, source=TRM, doc="bits 34:32")


class DST_BASE_ADDR(Register, block=PPU, offset=0x070):
    """Where the output goes."""

    dst_base_addr: int = bits(
        31, 4, scale=16, unit="bytes", source=NOTES, doc="IOVA of the first output atom"
    )


class DST_SURF_STRIDE(Register, block=PPU, offset=0x07C):
    """Surface pitch of the output (the register holds bytes)."""

    dst_surf_stride: int = bits(31, 4, unit="atoms", source=NOTES, doc="surface pitch")


class DATA_FORMAT(Register, block=PPU, offset=0x084):
    """Element type, and the pitch once more."""

    proc_precision: Precision = bits(2, 0, default=0, source=NOTES, doc="element type")
    dpu_flyin: int = bits(
        3, default=0, source=TRM, doc="1 = input from a DPU that itself reads memory"
    )
    index_add: int = bits(
        31,
        4,
        unit="atoms",
        default=0,
        source=TRM,
        doc="the surface pitch again; with index_en, from data to positions",
    )


class MISC_CTRL(Register, block=PPU, offset=0x0DC):
    """Write DMA.  Every stream writes 3."""

    burst_len: int = bits(
        3, 0, default=0, source=TRM, doc="AXI burst of the output: 3, 7, 15 = 4, 8, 16 beats"
    )
    nonalign: int = bits(7, default=0, source=TRM, doc="1 = packed output")
    mc_surf_out: int = bits(8, default=0, source=TRM, doc="1 = several surfaces in series")
    surf_len: int = bits(31, 16, default=0, source=TRM, doc="with nonalign: length of a surface")
