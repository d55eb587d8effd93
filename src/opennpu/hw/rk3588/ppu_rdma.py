"""PPU_RDMA: the read DMA of the pooling unit.

Registers 0x7000..0x7fff of a core's window.  Names as in the TRM and in Mesa.
"""

from __future__ import annotations

from opennpu.hw.regs import Block, Register, bits
from opennpu.hw.rk3588.common import NOTES, OPEN_FP16, STREAMS, TRM
from opennpu.hw.rk3588.groups import OperationEnable, Status

PPU_RDMA = Block("PPU_RDMA", base=0x7000, target=0x8001)


class RDMA_S_STATUS(Status, block=PPU_RDMA, offset=0x000, access="RO", shadowed=False):
    """State of the two register groups."""


class RDMA_S_POINTER(Register, block=PPU_RDMA, offset=0x004, shadowed=False):
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


class RDMA_OPERATION_ENABLE(OperationEnable, block=PPU_RDMA, offset=0x008):
    """Arm the unit with the written group.  This and all higher offsets exist once per group."""


class RDMA_CUBE_IN_WIDTH(Register, block=PPU_RDMA, offset=0x00C):
    """Width of the cube."""

    cube_in_width: int = bits(12, 0, bias=1, unit="px", source=OPEN_FP16, doc="columns")


class RDMA_CUBE_IN_HEIGHT(Register, block=PPU_RDMA, offset=0x010):
    """Height of the cube."""

    cube_in_height: int = bits(12, 0, bias=1, unit="px", source=OPEN_FP16, doc="rows")


class RDMA_CUBE_IN_CHANNEL(Register, block=PPU_RDMA, offset=0x014):
    """Channels of the cube."""

    cube_in_channel: int = bits(12, 0, bias=1, unit="channels", source=OPEN_FP16, doc="channels")


class RDMA_SRC_BASE_ADDR(Register, block=PPU_RDMA, offset=0x01C):
    """Where the input lies."""

    src_base_addr: int = bits(31, 0, unit="bytes", source=NOTES, doc="IOVA of the first input atom")


class RDMA_SRC_LINE_STRIDE(Register, block=PPU_RDMA, offset=0x024):
    """Line pitch of the input (the register holds bytes)."""

    src_line_stride: int = bits(31, 4, unit="atoms", source=NOTES, doc="line pitch")


class RDMA_SRC_SURF_STRIDE(Register, block=PPU_RDMA, offset=0x028):
    """Surface pitch of the input (the register holds bytes)."""

    src_surf_stride: int = bits(31, 4, unit="atoms", source=NOTES, doc="surface pitch")


class RDMA_DATA_FORMAT(Register, block=PPU_RDMA, offset=0x030):
    """Element width in memory."""

    in_precision: int = bits(
        1, 0, default=0, source=NOTES, doc="element width: 0 4, 1 8, 2 16, 3 32 bits"
    )


class UNDOC_7038(Register, block=PPU_RDMA, offset=0x038):
    """In no manual.  The NVDLA slot is the pooling window of the RDMA; not an enable bit."""

    value: int = bits(
        31, 0, default=0, source=STREAMS, doc="unknown; one script writes 1, vendor lists never do"
    )
