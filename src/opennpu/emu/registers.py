"""Register file of one core: raw words per address and ping-pong group, decoded when read.

Six units have two shadow groups each; the rest has one copy.  Sources: register notes A.6 (EMU 4),
board notes A.0 (persistence over tasks and jobs, groups inherit two tasks back).
"""

from __future__ import annotations

import functools
from typing import TypeVar

from opennpu.hw.regs import Block, Register
from opennpu.hw.rk3588 import cna, core, dpu, dpu_rdma, ppu, ppu_rdma

R = TypeVar("R", bound=Register)

POINTER_OFFSET = cna.S_POINTER.offset
STATUS_OFFSET = cna.S_STATUS.offset

BLOCKS: tuple[Block, ...] = (
    cna.CNA,
    core.CORE,
    dpu.DPU,
    dpu_rdma.DPU_RDMA,
    ppu.PPU,
    ppu_rdma.PPU_RDMA,
)
"""The units that have ping-pong groups, in the order of the start word."""


@functools.lru_cache(maxsize=1 << 15)
def _decode(cls: type[Register], word: int) -> Register:
    return cls.decode(word)


def decode(cls: type[R], word: int) -> R:
    """``cls.decode(word)``, remembered: programs write the same words again and again."""
    return _decode(cls, word)  # type: ignore[return-value, arg-type]


class Group:
    """One register group of one unit."""

    __slots__ = ("words",)

    def __init__(self) -> None:
        self.words: dict[int, int] = {}

    def get(self, cls: type[R]) -> R:
        """The register, decoded."""
        return _decode(cls, self.words.get(cls.address, cls.reset))  # type: ignore[return-value, arg-type]


class Unit:
    """Two groups and the pointers that choose between them."""

    def __init__(self, block: Block) -> None:
        self.block = block
        self.groups = (Group(), Group())
        self.write_group = 0
        self.run_group = 0
        self.pointer_word = 0  # S_POINTER as last written, without its self-clearing bits
        self.wrong_core = False

    def write_pointer(self, word: int, core_number: int) -> None:
        """A write of S_POINTER.

        The pointer bit is taken only with ping-pong off: lists open every task with 0xE and
        the groups still alternate (board notes A.0).  The high nibble must carry the core for
        CNA and CORE.
        """
        p = decode(cna.S_POINTER, word)
        if not p.pointer_pp_en:
            self.write_group = p.pointer
        if p.pointer_pp_clear:
            self.write_group = 0
        if p.executer_pp_clear:
            self.run_group = 0
        self.pointer_word = word
        if self.block in (cna.CNA, core.CORE):
            self.wrong_core = word >> CORE_SHIFT != core_number

    def read_pointer(self) -> int:
        """S_POINTER as software reads it: clear bits are 0, pointer and executer are live."""
        p = decode(cna.S_POINTER, self.pointer_word)
        return cna.S_POINTER(
            pointer=self.write_group,
            pointer_pp_en=p.pointer_pp_en,
            executer_pp_en=p.executer_pp_en,
            pointer_pp_mode=p.pointer_pp_mode,
            executer=self.run_group,
        ).word

    @property
    def filling(self) -> Group:
        """The group that register writes land in."""
        return self.groups[self.write_group]

    def arm(self) -> int:
        """Op-enable: the filled group goes to the executer.  Returns its number."""
        armed = self.write_group
        if decode(cna.S_POINTER, self.pointer_word).pointer_pp_en:
            self.write_group ^= 1  # mode 0 picks the group that does not run: the same here
        return armed

    def finish(self) -> None:
        """The unit has finished its running group."""
        if decode(cna.S_POINTER, self.pointer_word).executer_pp_en:
            self.run_group ^= 1


CORE_SHIFT = 28  # of the core number in CNA and CORE S_POINTER; register notes A.6


class RegisterFile:
    """All registers of one core."""

    def __init__(self) -> None:
        self.units = {b.name: Unit(b) for b in BLOCKS}
        self.by_window = {b.base >> 12: self.units[b.name] for b in BLOCKS}
        self.plain = Group()
        """Registers that have one copy: PC and GLOBAL."""
