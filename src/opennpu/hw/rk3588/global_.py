"""GLOBAL: one register, the start broadcast that ends every task.

Registers 0xf000..0xffff of a core's window.  Names as in the TRM and in Mesa.
"""

from __future__ import annotations

from opennpu.hw.regs import Block, Register, bits
from opennpu.hw.rk3588.common import NOTES

GLOBAL = Block("GLOBAL", base=0xF000, target=0x0081)


class OPERATION_ENABLE(Register, block=GLOBAL, offset=0x008, shadowed=False):
    """Start several units at once.  The start word of a task carries these bits."""

    cna_op_en: int = bits(
        0, default=0, source=NOTES, doc="start CNA; neither needed nor enough on a board"
    )
    core_op_en: int = bits(2, default=0, source=NOTES, doc="start CORE")
    dpu_op_en: int = bits(3, default=0, source=NOTES, doc="start DPU")
    dpu_rdma_op_en: int = bits(4, default=0, source=NOTES, doc="start DPU_RDMA")
    ppu_op_en: int = bits(5, default=0, source=NOTES, doc="start PPU")
    ppu_rdma_op_en: int = bits(6, default=0, source=NOTES, doc="start PPU_RDMA")
