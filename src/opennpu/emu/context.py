"""What a unit may touch while it runs one task: memory, policy, on-chip state, the rules."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from opennpu.emu.memory import AddressSpace
from opennpu.emu.numerics import Policy
from opennpu.emu.violations import RULES, Effect, Hang, Violation
from opennpu.errors import ViolationError
from opennpu.hw.regs import Register
from opennpu.hw.rk3588 import chip

Array = npt.NDArray[Any]


@dataclass
class CbufImage:
    """What one region of the CBUF holds: a tag to compare, and the bytes themselves."""

    tag: tuple[Any, ...] = ()
    data: Array = field(default_factory=lambda: np.zeros(0, np.uint8))
    valid: bool = False  # fetched by the previous convolution of this job
    whole: bool = True  # all of it was in its banks at the end


@dataclass
class OnChip:
    """Memories of one core that outlive a task: CBUF contents and look-up tables."""

    features: CbufImage = field(default_factory=CbufImage)
    weights: CbufImage = field(default_factory=CbufImage)
    tables: Array = field(default_factory=lambda: np.zeros((2, LUT_ENTRIES), np.int16))


LUT_ENTRIES = 513  # per table; board notes A.11


class Context:
    """One task on one core."""

    def __init__(
        self, space: AddressSpace, policy: Policy, chip_state: OnChip, core: int, strict: bool
    ) -> None:
        self.space, self.policy, self.chip = space, policy, chip_state
        self.core, self.strict = core, strict
        self.task = 0
        self.dma_base = 0  # PC TASK_DMA_BASE_ADDR, where the policy adds it
        self.violations: list[Violation] = []
        self.warnings: list[Violation] = []
        self.macs_left = policy.max_macs
        self.bytes_left = policy.max_bytes
        self.macs = 0
        self.mac_cycles = 0
        self.garbage = False
        """This task's output means nothing: writers put poison instead."""

    def report(self, rule: str, unit: str, what: str) -> None:
        """A rule is broken.

        Strict: raises ViolationError, except for warnings.  Hardware mode: raises Hang where
        silicon hangs or where the emulator has no model, else returns (see `Effect`).
        """
        entry = RULES[rule]
        where = f"core {self.core} task {self.task}"
        what = f"{unit} {what} [{rule}]"
        v = Violation(rule, unit, f"{where}: {what}. {entry.remedy}.")
        if entry.effect is Effect.WARNING:
            self.warnings.append(v)
            return
        self.violations.append(v)
        if self.strict:
            raise ViolationError(where, what, entry.remedy)
        if entry.effect in (Effect.HANG, Effect.UNKNOWN):
            raise Hang(rule)
        self.garbage |= entry.effect is Effect.GARBAGE

    def require(self, ok: bool, rule: str, unit: str, what: str) -> None:
        """Report ``rule`` unless ``ok``."""
        if not ok:
            self.report(rule, unit, what)

    def idle(self, unit: str, register: Register, mode: str, *names: str) -> None:
        """Warn about fields of ``register`` that act in ``mode`` only, which is off."""
        for name in names:
            value = getattr(register, name)
            if value != register.fields[name].default:
                what = f"{type(register).__name__}.{name.upper()}"
                self.report("fields.idle", unit, f"has {what} {value} without {mode}")

    def charge(self, unit: str, macs: int, atoms: int) -> None:
        """Account for work before it is done; a run has a budget, so no program hangs us."""
        nbytes = atoms * chip.ATOM_BYTES
        self.macs_left -= macs
        self.bytes_left -= nbytes
        if self.macs_left < 0:
            self.report(
                "work.too_much",
                unit,
                f"wants {macs} MACs, the run has {self.macs_left + macs} "
                f"of {self.policy.max_macs} left",
            )
        if nbytes > self.policy.max_task_bytes:
            self.report(
                "work.too_much",
                unit,
                f"moves {nbytes} bytes at once, the limit is {self.policy.max_task_bytes}",
            )
        if self.bytes_left < 0:
            self.report(
                "work.too_much",
                unit,
                f"moves {nbytes} bytes, the run has {self.bytes_left + nbytes} of "
                f"{self.policy.max_bytes} left",
            )
