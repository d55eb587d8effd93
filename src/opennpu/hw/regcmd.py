"""A register command: one 64-bit word that writes one register.

    63      48 47              16 15       0
    [ target ] [      value     ] [ offset ]      little endian in memory

The last four words of a task are its tail: the address and the fetch amount of the next
task, a marker, and the word that starts the units.  Sources: TRM chapter 36, Mesa
rkt_regcmd.c, rockchip-npu-notes (board sweeps).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from opennpu.hw import rk3588 as _rk3588
from opennpu.hw.regs import REGISTERS, Register, Trust
from opennpu.hw.rk3588 import global_, pc

WORD_BYTES = 8
TAIL_WORDS = 4
TASK_ALIGN_BYTES = 64  # customary (Mesa and vendor); BASE_ADDRESS needs 16

TARGET_NONE = 0x0000
TARGET_MARKER = 0x0041  # must precede the start word (TRM); payload ignored
TARGET_START = 0x0081  # broadcast: value is GLOBAL.OPERATION_ENABLE, offset 0x0008

UNITS = _rk3588.UNITS
"""Namespace in which a printed register evaluates: ``eval(repr(w), {**UNITS, "Raw": Raw, …})``."""


@dataclass(frozen=True, slots=True)
class Raw:
    """A word we cannot name: no such register, or one written through an odd target."""

    bits: int

    def __repr__(self) -> str:
        return f"Raw({self.bits:#018x})"


@dataclass(frozen=True, slots=True)
class Marker:
    """The word that must precede `Start`."""

    @property
    def bits(self) -> int:
        return TARGET_MARKER << 48


@dataclass(frozen=True, slots=True)
class Start:
    """Start the units that ``enable`` names: the last word of a task."""

    enable: global_.OPERATION_ENABLE

    @property
    def bits(self) -> int:
        return TARGET_START << 48 | self.enable.word << 16 | pc.OPERATION_ENABLE.address


@dataclass(frozen=True, slots=True)
class Nop:
    """A zero word: padding, or the link slot of a task that has no successor."""

    @property
    def bits(self) -> int:
        return 0


Write = Register | Raw | Marker | Start | Nop
EVAL_NAMES = {**UNITS, "Raw": Raw, "Marker": Marker, "Start": Start, "Nop": Nop}


def encode(write: Write) -> int:
    """One write as a 64-bit word."""
    if isinstance(write, Register):
        return write.block.target << 48 | write.word << 16 | write.address
    return write.bits


def decode(bits: int) -> Write:
    """Inverse of `encode`, for any 64 bits."""
    target, word, address = bits >> 48, bits >> 16 & 0xFFFF_FFFF, bits & 0xFFFF
    if bits == 0:
        return Nop()
    if bits == Marker().bits:
        return Marker()
    if target == TARGET_START and address == pc.OPERATION_ENABLE.address:
        return Start(global_.OPERATION_ENABLE.decode(word))
    reg = REGISTERS.get(address)
    if reg and reg.block.target == target and reg is not global_.OPERATION_ENABLE:
        return reg.decode(word)
    return Raw(bits)


def assemble(writes: Iterable[Write]) -> bytes:
    """Writes -> the bytes the program controller fetches, little endian."""
    words = [encode(w) for w in writes]
    return struct.pack(f"<{len(words)}Q", *words)


def disassemble(code: bytes) -> Iterator[Write]:
    """The inverse, for any whole words.  ``repr`` of each item is Python that builds it again."""
    for (word,) in struct.iter_unpack("<Q", code):
        yield decode(word)


def listing(code: bytes) -> Iterator[str]:
    """The disassembly as lines of Python; a comment names fields whose meaning is a guess."""
    for write in disassemble(code):
        guesses = []
        if isinstance(write, Register):
            guesses = [
                name
                for name, f in write.fields.items()
                if f.trust is Trust.GUESSED and getattr(write, name) != (f.default or 0)
            ]
        yield f"{write!r}  # guessed: {', '.join(guesses)}" if guesses else repr(write)


def fetch_amount(words: int) -> int:
    """PC_DATA_AMOUNT for a task of ``words`` words, its tail included: ceil(words/2) - 1."""
    return (words + 1) // 2 - 1


def tail(units: int, next_iova: int = 0, next_words: int = 0) -> Sequence[Write]:
    """The last four words of a task.

    ``units``: word of GLOBAL.OPERATION_ENABLE.  ``next_iova``, ``next_words``: where the next
    task lies and how long it is with its tail; 0 ends the list.
    """
    link: Write = pc.BASE_ADDRESS(pc_source_addr=next_iova) if next_words else Nop()
    amount = fetch_amount(next_words) if next_words else 0
    return (
        link,
        pc.REGISTER_AMOUNTS(pc_data_amount=amount),
        Marker(),
        Start(global_.OPERATION_ENABLE.decode(units)),
    )
