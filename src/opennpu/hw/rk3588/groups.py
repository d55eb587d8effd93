"""What every shadowed unit has at the same three offsets: two groups and their pointers."""

from __future__ import annotations

from opennpu.hw.regs import Register, bits
from opennpu.hw.rk3588.common import NOTES, TRM


class Status(Register):
    """State of the two register groups."""

    status_0: int = bits(1, 0, default=0, source=TRM, doc="group 0: 0 idle, 1 runs, 2 waits")
    status_1: int = bits(17, 16, default=0, source=TRM, doc="group 1: 0 idle, 1 runs, 2 waits")


class Pointer(Register):
    """Which register group is written and which one runs (ping-pong)."""

    pointer: int = bits(0, default=0, source=TRM, doc="group that register writes land in")
    pointer_pp_en: int = bits(1, default=0, source=NOTES, doc="1 = the write group flips by itself")
    executer_pp_en: int = bits(
        2, default=0, source=NOTES, doc="1 = the executing group flips after each task"
    )
    pointer_pp_mode: int = bits(
        3, default=0, source=TRM, doc="1 = flip at each op-enable; 0 = follow execution"
    )
    pointer_pp_clear: int = bits(
        4, default=0, source=NOTES, doc="write 1: write group back to 0 (reads 0)"
    )
    executer_pp_clear: int = bits(
        5, default=0, source=NOTES, doc="write 1: executing group back to 0 (reads 0)"
    )
    executer: int = bits(16, default=0, source=TRM, doc="group that runs now or next; read only")


class OperationEnable(Register):
    """Arm the unit with the written group."""

    op_en: int = bits(0, default=0, source=TRM, doc="1 = arm; normally done by the start word")
