"""PC: the program controller. It fetches register commands, starts the units and counts tasks.

Registers 0x0000..0x0fff of a core's window.  Names as in the TRM and in Mesa.
"""

from __future__ import annotations

from opennpu.hw.regs import Block, Register, bits
from opennpu.hw.rk3588.common import DRIVERS, MMIO, NOTES, TRM, VENDOR

PC = Block("PC", base=0x0000, target=0x0101)


class VERSION(Register, block=PC, offset=0x000, access="RO", reset=0x46495245, shadowed=False):
    """Identification word; not in the TRM."""

    version: int = bits(31, 0, default=0, source=MMIO, doc="0x46495245 on RK3588")


class VERSION_NUM(Register, block=PC, offset=0x004, access="RO", shadowed=False):
    """Revision; drivers print version + version_num = 1179210309.  Not in the TRM."""

    version_num: int = bits(
        31, 0, default=0, source=MMIO, doc="0 on RK3588; drivers use the low 16 bits"
    )


class OPERATION_ENABLE(Register, block=PC, offset=0x008, shadowed=False):
    """Start fetching.

    Writing 0 afterwards does not stop a running list: the vendor driver does it at once.  In a
    command list this offset with target 0x0081 is the start word (`regcmd.Start`).
    """

    op_en: int = bits(0, default=0, source=DRIVERS, doc="1 = fetch tasks from BASE_ADDRESS")


class BASE_ADDRESS(Register, block=PC, offset=0x010, shadowed=False):
    """Where the next task lies.

    The CPU writes it for the first task, each task's tail for the one after it.
    """

    pc_sel: int = bits(
        0,
        default=0,
        source=TRM,
        doc="0 = fetch commands by DMA; 1 = registers are written by the CPU",
    )
    pc_source_addr: int = bits(
        31, 4, scale=16, unit="bytes", source=NOTES, doc="IOVA of the command list"
    )


class REGISTER_AMOUNTS(Register, block=PC, offset=0x014, shadowed=False):
    """How much to fetch for the next task.  Vendor lists hold cores - 1 in bits 31:16."""

    pc_data_amount: int = bits(
        15, 0, default=0, source=VENDOR, doc="A fetches 2*(A+1) words; see regcmd.fetch_amount"
    )


class INTERRUPT_MASK(Register, block=PC, offset=0x020, reset=0x1FFFF, shadowed=False):
    """Events that may raise the line, after the last task.  The TRM has 17 bits and names 14."""

    cna_feature_0: int = bits(0, default=0, source=TRM, doc="CNA finished fetching features")
    cna_feature_1: int = bits(1, default=0, source=TRM, doc="CNA finished fetching features")
    cna_weight_0: int = bits(2, default=0, source=TRM, doc="CNA finished fetching weights")
    cna_weight_1: int = bits(3, default=0, source=TRM, doc="CNA finished fetching weights")
    cna_csc_0: int = bits(4, default=0, source=TRM, doc="CNA sequence controller finished")
    cna_csc_1: int = bits(5, default=0, source=TRM, doc="CNA sequence controller finished")
    core_0: int = bits(6, default=0, source=TRM, doc="CORE finished")
    core_1: int = bits(7, default=0, source=TRM, doc="CORE finished")
    dpu_0: int = bits(8, default=0, source=DRIVERS, doc="DPU finished: its output is in memory")
    dpu_1: int = bits(9, default=0, source=DRIVERS, doc="DPU finished: its output is in memory")
    ppu_0: int = bits(10, default=0, source=DRIVERS, doc="PPU finished: its output is in memory")
    ppu_1: int = bits(11, default=0, source=DRIVERS, doc="PPU finished: its output is in memory")
    dma_read_error: int = bits(12, default=0, source=TRM, doc="a bus read failed")
    dma_write_error: int = bits(13, default=0, source=TRM, doc="a bus write failed")


class INTERRUPT_CLEAR(Register, block=PC, offset=0x024, access="W1C", shadowed=False):
    """Write 1 to drop a raw event.  Drivers write 0x1ffff."""

    cna_feature_0: int = bits(0, default=0, source=TRM, doc="CNA finished fetching features")
    cna_feature_1: int = bits(1, default=0, source=TRM, doc="CNA finished fetching features")
    cna_weight_0: int = bits(2, default=0, source=TRM, doc="CNA finished fetching weights")
    cna_weight_1: int = bits(3, default=0, source=TRM, doc="CNA finished fetching weights")
    cna_csc_0: int = bits(4, default=0, source=TRM, doc="CNA sequence controller finished")
    cna_csc_1: int = bits(5, default=0, source=TRM, doc="CNA sequence controller finished")
    core_0: int = bits(6, default=0, source=TRM, doc="CORE finished")
    core_1: int = bits(7, default=0, source=TRM, doc="CORE finished")
    dpu_0: int = bits(8, default=0, source=TRM, doc="DPU finished: its output is in memory")
    dpu_1: int = bits(9, default=0, source=TRM, doc="DPU finished: its output is in memory")
    ppu_0: int = bits(10, default=0, source=TRM, doc="PPU finished: its output is in memory")
    ppu_1: int = bits(11, default=0, source=TRM, doc="PPU finished: its output is in memory")
    dma_read_error: int = bits(12, default=0, source=TRM, doc="a bus read failed")
    dma_write_error: int = bits(13, default=0, source=TRM, doc="a bus write failed")


class INTERRUPT_STATUS(Register, block=PC, offset=0x028, access="RO", shadowed=False):
    """Raw events that pass the mask."""

    cna_feature_0: int = bits(0, default=0, source=TRM, doc="CNA finished fetching features")
    cna_feature_1: int = bits(1, default=0, source=TRM, doc="CNA finished fetching features")
    cna_weight_0: int = bits(2, default=0, source=TRM, doc="CNA finished fetching weights")
    cna_weight_1: int = bits(3, default=0, source=TRM, doc="CNA finished fetching weights")
    cna_csc_0: int = bits(4, default=0, source=TRM, doc="CNA sequence controller finished")
    cna_csc_1: int = bits(5, default=0, source=TRM, doc="CNA sequence controller finished")
    core_0: int = bits(6, default=0, source=TRM, doc="CORE finished")
    core_1: int = bits(7, default=0, source=TRM, doc="CORE finished")
    dpu_0: int = bits(8, default=0, source=DRIVERS, doc="DPU finished: its output is in memory")
    dpu_1: int = bits(9, default=0, source=DRIVERS, doc="DPU finished: its output is in memory")
    ppu_0: int = bits(10, default=0, source=DRIVERS, doc="PPU finished: its output is in memory")
    ppu_1: int = bits(11, default=0, source=DRIVERS, doc="PPU finished: its output is in memory")
    dma_read_error: int = bits(12, default=0, source=TRM, doc="a bus read failed")
    dma_write_error: int = bits(13, default=0, source=TRM, doc="a bus write failed")


class INTERRUPT_RAW_STATUS(Register, block=PC, offset=0x02C, access="RO", shadowed=False):
    """Events, whatever the mask."""

    cna_feature_0: int = bits(0, default=0, source=TRM, doc="CNA finished fetching features")
    cna_feature_1: int = bits(1, default=0, source=TRM, doc="CNA finished fetching features")
    cna_weight_0: int = bits(2, default=0, source=TRM, doc="CNA finished fetching weights")
    cna_weight_1: int = bits(3, default=0, source=TRM, doc="CNA finished fetching weights")
    cna_csc_0: int = bits(4, default=0, source=TRM, doc="CNA sequence controller finished")
    cna_csc_1: int = bits(5, default=0, source=TRM, doc="CNA sequence controller finished")
    core_0: int = bits(6, default=0, source=TRM, doc="CORE finished")
    core_1: int = bits(7, default=0, source=TRM, doc="CORE finished")
    dpu_0: int = bits(8, default=0, source=DRIVERS, doc="DPU finished: its output is in memory")
    dpu_1: int = bits(9, default=0, source=DRIVERS, doc="DPU finished: its output is in memory")
    ppu_0: int = bits(10, default=0, source=TRM, doc="PPU finished: its output is in memory")
    ppu_1: int = bits(11, default=0, source=TRM, doc="PPU finished: its output is in memory")
    dma_read_error: int = bits(12, default=0, source=TRM, doc="a bus read failed")
    dma_write_error: int = bits(13, default=0, source=TRM, doc="a bus write failed")


class TASK_CON(Register, block=PC, offset=0x030, shadowed=False):
    """Task list control.  Drivers also set bit 14, of unknown meaning: 0x7001 starts one task."""

    task_number: int = bits(
        11,
        0,
        unit="tasks",
        source=NOTES,
        doc="tasks to run before the completion interrupt, at most 4095",
    )
    task_pp_en: int = bits(
        12,
        default=0,
        source=TRM,
        doc="1 = fetch the next task into the other group while this one runs",
    )
    task_count_clear: int = bits(
        13, default=0, source=TRM, doc="write 1: zero the task counter (reads 0)"
    )


class TASK_DMA_BASE_ADDR(Register, block=PC, offset=0x034, shadowed=False):
    """Base of all addresses.  Drivers write 0; other values changed nothing in one board test."""

    dma_base_addr: int = bits(
        31,
        4,
        scale=16,
        unit="bytes",
        default=0,
        source=TRM,
        doc="added to every address the units use",
    )


class TASK_STATUS(Register, block=PC, offset=0x03C, access="RO", shadowed=False):
    """Progress of the list.  Low bits read 0 under mainline Linux (rockchip-npu-notes)."""

    task_status: int = bits(
        27,
        0,
        default=0,
        source=TRM,
        doc="11:0 tasks done; the bits above flag the first and the last task",
    )


DPU_DONE = INTERRUPT_MASK(dpu_0=1, dpu_1=1).word
"""Interrupts that end a task of the DPU, whichever group it ran in."""

PPU_DONE = INTERRUPT_MASK(ppu_0=1, ppu_1=1).word
"""The same for the PPU."""
