"""A machine with one flat memory, and the register programs of `opennpu.selftest.programs`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from opennpu.emu.machine import Machine, RunResult
from opennpu.emu.memory import AddressSpace
from opennpu.emu.numerics import Policy
from opennpu.hw import regcmd
from opennpu.hw.regs import Register
from opennpu.selftest.programs import (
    CODE,
    CONV,
    EW,
    FLYING,
    MEMORY_BYTES,
    OPERANDS,
    OUT_OF,
    PING_PONG,
    POOL,
    Conv,
    W,
    X,
    Y,
    flying,
    pool,
    reference,
    replace,
)

__all__ = [
    "CODE",
    "CONV",
    "EW",
    "FLYING",
    "OPERANDS",
    "OUT_OF",
    "PING_PONG",
    "POOL",
    "Bench",
    "Conv",
    "Machine",
    "W",
    "X",
    "Y",
    "flying",
    "pool",
    "reference",
    "replace",
]

Array = npt.NDArray[Any]


@dataclass
class Bench:
    """One machine, one flat memory."""

    machine: Machine = field(default_factory=lambda: Machine(cores=2))
    memory: Array = field(default_factory=lambda: np.zeros(MEMORY_BYTES, np.uint8))
    space: AddressSpace = field(default_factory=AddressSpace)

    def __post_init__(self) -> None:
        self.space.map(0, self.memory)

    @classmethod
    def of(cls, policy: Policy | None = None, strict: bool = True) -> Bench:
        return cls(Machine(cores=2, policy=policy or Policy(), strict=strict))

    def put(self, iova: int, data: Array | bytes) -> None:
        raw = np.frombuffer(data, np.uint8) if isinstance(data, bytes) else data.view(np.uint8)
        self.memory[iova : iova + raw.size] = raw.reshape(-1)

    def place(self, *tasks: tuple[Iterable[Register], int]) -> list[tuple[int, int]]:
        """Write the tasks (body, start units), each linked to the next: (IOVA, words) of each."""
        bodies = [(list(body), units) for body, units in tasks]
        sizes = [len(b) + regcmd.TAIL_WORDS for b, _ in bodies]
        starts = [CODE]
        for n in sizes:
            starts.append(starts[-1] + (n + n % 2) * regcmd.WORD_BYTES)
        for i, (body, units) in enumerate(bodies):
            more = i + 1 < len(bodies)
            tail = regcmd.tail(units, starts[i + 1] if more else 0, sizes[i + 1] if more else 0)
            self.put(starts[i], regcmd.assemble([*body, *tail]))
        return list(zip(starts, sizes, strict=False))

    def run(
        self,
        *tasks: tuple[Iterable[Register], int],
        core: int = 0,
        mask: int = 0x300,
        task_number: int | None = None,
    ) -> RunResult:
        """Chain the tasks (body, start units) and start them."""
        placed = self.place(*tasks)
        return self.machine.run(
            core,
            self.space,
            *placed[0],
            task_number=len(placed) if task_number is None else task_number,
            int_mask=mask,
        )
