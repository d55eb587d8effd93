"""The machine: program controllers, register groups, interrupts, three cores.

`Machine` is driven either by MMIO, as both kernel drivers do it (register notes A.8), or by `run`,
which is one such start.  A start executes at once, in the write of PC OPERATION_ENABLE.
"""

from __future__ import annotations

import contextlib
import functools
from collections import Counter
from dataclasses import dataclass, replace

import numpy as np

from opennpu.emu import lut, timing, units
from opennpu.emu.context import Context, OnChip
from opennpu.emu.memory import AddressSpace, MemoryFault
from opennpu.emu.numerics import Policy
from opennpu.emu.registers import (
    CORE_SHIFT,
    POINTER_OFFSET,
    STATUS_OFFSET,
    RegisterFile,
    Unit,
    decode,
)
from opennpu.emu.violations import Hang, Violation
from opennpu.errors import ViolationError
from opennpu.hw import regcmd
from opennpu.hw.regs import REGISTERS, Register
from opennpu.hw.rk3588 import cna, core, dpu, dpu_rdma, global_, pc, ppu, ppu_rdma

WINDOW_BITS = 12  # of a unit's register window
PC_WINDOW = pc.PC.base >> WINDOW_BITS
GLOBAL_WINDOW = global_.GLOBAL.base >> WINDOW_BITS
ALL_INTERRUPTS = pc.INTERRUPT_MASK.reset
TASKS = pc.TASK_CON.fields["task_number"].max
START_ORDER = (
    ("CNA", "cna_op_en"),
    ("CORE", "core_op_en"),
    ("DPU", "dpu_op_en"),
    ("DPU_RDMA", "dpu_rdma_op_en"),
    ("PPU", "ppu_op_en"),
    ("PPU_RDMA", "ppu_rdma_op_en"),
)
TARGETS = {
    b.base >> WINDOW_BITS: b.target
    for b in (pc.PC, cna.CNA, core.CORE, dpu.DPU, dpu_rdma.DPU_RDMA, ppu.PPU, ppu_rdma.PPU_RDMA)
}
IGNORED_TARGETS = (0, 1)  # padding words; register notes A.2 EMU 1
OP_ENABLE_OFFSET = cna.OPERATION_ENABLE.offset
DONE = {  # interrupt fields that a finished unit raises, per group
    "CNA": (
        ("cna_feature_0", "cna_weight_0", "cna_csc_0"),
        ("cna_feature_1", "cna_weight_1", "cna_csc_1"),
    ),
    "CORE": (("core_0",), ("core_1",)),
    "DPU": (("dpu_0",), ("dpu_1",)),
    "PPU": (("ppu_0",), ("ppu_1",)),
}
FETCH_ALIGN = pc.BASE_ADDRESS.fields["pc_source_addr"].scale


@dataclass(frozen=True, slots=True)
class TaskRecord:
    """What one task did.  ``cycles`` is predicted (`opennpu.emu.timing`)."""

    units: tuple[str, ...]
    cycles: int
    macs: int
    mac_cycles: int
    bytes_read: dict[str, int]
    bytes_written: dict[str, int]


@dataclass(frozen=True, slots=True)
class RunResult:
    """What one start did.

    Attributes:
        completed: the list ended and a masked interrupt bit is up.
        interrupt_raw: latched events of all tasks.
        interrupt_status: those that the mask lets through.
        tasks_done: what TASK_STATUS counts.
        cycles: predicted NPU cycles.
        violations: rules broken (hardware mode; strict mode raises).
        fault: the access that stopped the run.
        tasks: one record per task that ran to its end.
        warnings: suspicious, but right.
    """

    completed: bool
    interrupt_raw: int
    interrupt_status: int
    tasks_done: int
    cycles: int
    violations: tuple[Violation, ...]
    fault: MemoryFault | None
    tasks: tuple[TaskRecord, ...]
    warnings: tuple[Violation, ...] = ()


DEFAULT_POLICY = Policy()
IDLE = RunResult(False, 0, 0, 0, 0, (), None, ())


class _Core:
    """One core: registers, on-chip memories, and where its controller stands."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.space: AddressSpace | None = None
        self.reset()

    def reset(self) -> None:
        """Power-on state; the address space stays attached."""
        self.file = RegisterFile()
        self.chip = OnChip()
        self.port = lut.Port(self.chip.tables)
        self.raw = 0
        self.tasks_done = 0
        self.wedged = False
        self.line = False
        self.result = IDLE

    def word(self, register: type[Register]) -> int:
        """A PC register as raw word."""
        return self.file.plain.words.get(register.address, register.reset)


class Machine:
    """The NPU.

    Attributes:
        strict: a broken rule raises ViolationError; otherwise silicon's effect is reproduced.
        policy: every uncertain semantic.
        rates: parameters of the cycle model.
    """

    def __init__(
        self,
        *,
        cores: int = 3,
        policy: Policy = DEFAULT_POLICY,
        strict: bool = True,
        clock_hz: float = 1e9,
    ) -> None:
        self.policy = policy
        self.strict = strict and policy.strict
        self.rates = replace(timing.SAFE, clock_hz=clock_hz)
        self._cores = [_Core(i) for i in range(cores)]

    # -- MMIO --------------------------------------------------------------------------------

    def attach(self, core: int, space: AddressSpace | None) -> None:
        """Give a core its address space, as the IOMMU would; None detaches."""
        self._cores[core].space = space

    def reset(self, core: int) -> None:
        """Both resets of the core: registers, pointers, tables and CBUF are lost."""
        self._cores[core].reset()

    def irq(self, core: int) -> bool:
        """Level of the core's interrupt line."""
        c = self._cores[core]
        return c.line and bool(c.raw & c.word(pc.INTERRUPT_MASK))

    def last_result(self, core: int) -> RunResult:
        """What the last start of the core did."""
        return self._cores[core].result

    def read_register(self, core: int, offset: int) -> int:
        """AHB read of the word at ``offset`` in the core's window."""
        c = self._cores[core]
        if offset == pc.VERSION.address:
            return pc.VERSION.reset
        if offset == pc.INTERRUPT_RAW_STATUS.address:
            return c.raw
        if offset == pc.INTERRUPT_STATUS.address:
            return c.raw & c.word(pc.INTERRUPT_MASK)
        if offset == pc.TASK_STATUS.address:
            return c.tasks_done & TASKS
        if offset == dpu.LUT_ACCESS_DATA.address:
            return c.port.read()
        unit = c.file.by_window.get(offset >> WINDOW_BITS)
        if unit is None:
            known = REGISTERS.get(offset)
            return c.file.plain.words.get(offset, known.reset if known else 0)
        if offset - unit.block.base == STATUS_OFFSET:
            return 0  # both groups idle: a start runs to its end inside the write
        if offset - unit.block.base == POINTER_OFFSET:
            return unit.read_pointer()
        known = REGISTERS.get(offset)
        return unit.filling.words.get(offset, known.reset if known else 0)

    def write_register(self, core: int, offset: int, value: int) -> None:
        """AHB write of ``value``.  Writing 1 to PC OPERATION_ENABLE runs the list."""
        c = self._cores[core]
        value &= 0xFFFF_FFFF
        if offset == pc.INTERRUPT_CLEAR.address:
            c.raw &= ~value
            return
        if offset == pc.OPERATION_ENABLE.address:
            c.file.plain.words[offset] = value
            if value & 1 and not c.word(pc.BASE_ADDRESS) & 1:
                self._start(c)
            return
        if offset == pc.TASK_CON.address and decode(pc.TASK_CON, value).task_count_clear:
            c.tasks_done = 0
        if offset == global_.OPERATION_ENABLE.address:
            self._start_by_hand(c, value)
            return
        self._write(c, offset, value)

    def _write(self, c: _Core, offset: int, value: int) -> None:
        """One register write, from the bus or from a list."""
        unit = c.file.by_window.get(offset >> WINDOW_BITS)
        if unit is None:
            c.file.plain.words[offset] = value
        elif offset - unit.block.base == POINTER_OFFSET:
            unit.write_pointer(value, c.number)
        elif offset == dpu.LUT_ACCESS_DATA.address:
            c.port.write(value)
        else:
            if offset == dpu.LUT_ACCESS_CFG.address:
                c.port.configure(value)
            unit.filling.words[offset] = value

    # -- one start ---------------------------------------------------------------------------

    def run(
        self,
        core: int,
        space: AddressSpace,
        regcmd_iova: int,
        words: int,
        *,
        task_number: int = 1,
        int_mask: int = pc.DPU_DONE,
        ping_pong: bool = False,
        same_job: bool = False,
    ) -> RunResult:
        """Program the PC as the kernel drivers do (register notes A.8) and run until it stops.

        Arguments:
            regcmd_iova: first command word; bits 3:0 are dropped, as by the register.
            words: length of the first task, tail included.
            task_number: tasks to run; each but the last links to its successor.
            int_mask: events that mean "done".
            same_job: the core's last start was of the same job: what it left in the CBUF may be
                reused (board notes A.6; mainline Linux starts each task of a job).
        """
        c = self._cores[core]
        if not same_job:
            c.chip.features.valid = c.chip.weights.valid = False
        c.space = space
        pointer = PING_PONG | core << CORE_SHIFT
        write = self.write_register
        write(core, pc.BASE_ADDRESS.address, SLAVE_MODE)
        write(core, cna.S_POINTER.address, pointer)
        write(core, core_pointer(), pointer)
        address = pc.BASE_ADDRESS(pc_source_addr=regcmd_iova // FETCH_ALIGN * FETCH_ALIGN)
        write(core, pc.BASE_ADDRESS.address, address.word)  # the register has no low bits
        write(core, pc.REGISTER_AMOUNTS.address, regcmd.fetch_amount(words))
        write(core, pc.INTERRUPT_MASK.address, int_mask)
        write(core, pc.INTERRUPT_CLEAR.address, ALL_INTERRUPTS)
        write(core, pc.TASK_CON.address, _task_con(task_number, ping_pong))
        write(core, pc.TASK_DMA_BASE_ADDR.address, 0)
        write(core, pc.OPERATION_ENABLE.address, 1)
        write(core, pc.OPERATION_ENABLE.address, 0)
        return c.result

    def _context(self, c: _Core) -> Context:
        ctx = Context(c.space or AddressSpace(), self.policy, c.chip, c.number, self.strict)
        if self.policy.task_dma_base == "added":
            ctx.dma_base = c.word(pc.TASK_DMA_BASE_ADDR) & ~0xF
        return ctx

    def _start(self, c: _Core) -> None:
        """Fetch and run tasks until TASK_NUMBER, a hang or a fault."""
        ctx = self._context(c)
        done: list[TaskRecord] = []
        fault: MemoryFault | None = None
        c.line = False
        ended = False
        try:
            if c.wedged:
                ctx.report("pc.wedged", "PC", "is stuck in an earlier job")
            for unit in c.file.units.values():
                if unit.wrong_core:
                    ctx.report("pointer.core_bits", unit.block.name, "has another core's pointer")
            self._run_list(c, ctx, done)
            ended = True
        except Hang:
            c.wedged = True
        except MemoryFault as f:
            fault = f
            c.wedged = True
            field = {"dma_write_error": 1} if f.write else {"dma_read_error": 1}
            c.raw |= pc.INTERRUPT_RAW_STATUS(**field).word
            c.line = True  # at once: register notes A.7 EMU 5
        except ViolationError:
            c.reset()  # as the driver does after a time-out; the next run starts afresh
            raise
        status = c.raw & c.word(pc.INTERRUPT_MASK)
        if ended:
            c.line = True
            if not status:
                with contextlib.suppress(Hang):
                    ctx.report(
                        "pc.no_interrupt",
                        "PC",
                        f"ends with events {c.raw:#x}, mask {c.word(pc.INTERRUPT_MASK):#x}",
                    )
        c.result = RunResult(
            completed=ended and status != 0,
            interrupt_raw=c.raw,
            interrupt_status=status,
            tasks_done=c.tasks_done,
            cycles=sum(t.cycles for t in done),
            violations=tuple(ctx.violations),
            fault=fault,
            tasks=tuple(done),
            warnings=tuple(ctx.warnings),
        )

    def _run_list(self, c: _Core, ctx: Context, done: list[TaskRecord]) -> None:
        number = decode(pc.TASK_CON, c.word(pc.TASK_CON)).task_number
        ctx.require(number > 0, "pc.task_number", "PC", "has TASK_NUMBER 0")
        words_left = self.policy.max_words
        address = c.word(pc.BASE_ADDRESS)
        amount = c.word(pc.REGISTER_AMOUNTS)
        for task in range(number):
            ctx.task, ctx.garbage = task, False
            words = 2 * (decode(pc.REGISTER_AMOUNTS, amount).pc_data_amount + 1)
            words_left -= words
            ctx.require(
                words_left >= 0,
                "pc.too_long",
                "PC",
                f"fetches more than {self.policy.max_words} words",
            )
            base = decode(pc.BASE_ADDRESS, address).pc_source_addr
            raw = ctx.space.read(base, words * regcmd.WORD_BYTES, "regcmd", "PC")
            c.file.plain.words[pc.BASE_ADDRESS.address] = 0  # no link: the list ends here
            before = (Counter(ctx.space.bytes_read), Counter(ctx.space.bytes_written))
            started = self._interpret(c, ctx, raw.view("<u8").tolist())
            if not started:
                ctx.report("pc.no_start", "PC", f"finds no start word in {words} words")
            done.append(self._record(ctx, started, before))
            c.tasks_done += 1
            address = c.word(pc.BASE_ADDRESS)
            amount = c.word(pc.REGISTER_AMOUNTS)
            if task + 1 < number and (not address & ~0xF or address & 1):
                ctx.report(
                    "pc.list_ended", "PC", f"has no link after task {task}, TASK_NUMBER is {number}"
                )

    def _interpret(self, c: _Core, ctx: Context, words: list[int]) -> tuple[str, ...]:
        """Apply the words of one task.  Returns the units that ran."""
        started: list[str] = []
        by_window, lut_data = c.file.by_window, dpu.LUT_ACCESS_DATA.address
        for word in words:
            target = word >> 48
            if target in IGNORED_TARGETS or target == regcmd.TARGET_MARKER:
                continue
            offset, value = word & 0xFFFF, word >> 16 & 0xFFFF_FFFF
            if target == regcmd.TARGET_START:
                started += self._launch(c, ctx, value)
                continue
            if offset == lut_data:
                c.port.write(value)
                continue
            window = offset >> WINDOW_BITS
            expected = TARGETS.get(window)
            if expected is None:
                ctx.report("pc.window", "PC", f"writes {value:#x} to {offset:#06x}")
                continue
            if target != expected:
                ctx.report("pc.target", "PC", f"writes {offset:#06x} through target {target:#06x}")
            known = REGISTERS.get(offset)
            if known is None:
                ctx.report("pc.unknown_register", "PC", f"writes {value:#x} to {offset:#06x}")
            elif value & ~known.known and offset not in CORE_POINTERS:
                ctx.report(
                    "pc.reserved_bits",
                    known.block.name,
                    f"writes {value:#x} to {known.__name__}, which holds {known.known:#010x}",
                )
            unit = by_window.get(window)
            if unit is None:
                if offset in LIST_PC_REGISTERS:
                    c.file.plain.words[offset] = value
                continue
            if offset - unit.block.base == OP_ENABLE_OFFSET and value & 1:
                started += self._launch_units(c, ctx, [unit])
                continue
            self._write(c, offset, value)
            if unit.wrong_core:
                ctx.report(
                    "pointer.core_bits",
                    unit.block.name,
                    f"has S_POINTER {value:#x} on core {c.number}",
                )
        return tuple(started)

    def _launch(self, c: _Core, ctx: Context, value: int) -> list[str]:
        """The start word: run the units that it names."""
        enable = decode(global_.OPERATION_ENABLE, value)
        return self._launch_units(
            c, ctx, [c.file.units[name] for name, bit in START_ORDER if getattr(enable, bit)]
        )

    def _launch_units(self, c: _Core, ctx: Context, todo: list[Unit]) -> list[str]:
        groups: units.Groups = {}
        for unit in todo:
            armed = unit.arm()
            if armed != unit.run_group:
                ctx.report(
                    "pointer.out_of_step",
                    unit.block.name,
                    f"has group {armed} armed and waits for group {unit.run_group}",
                )
            groups[unit.block.name] = unit.groups[armed]
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # they are data here
            units.execute(ctx, groups)
        events: list[str] = []
        for unit in todo:
            fields = DONE.get(unit.block.name)
            if fields:
                events += fields[unit.run_group]
            unit.finish()
        c.raw |= _raw(tuple(events))
        return [u.block.name for u in todo]

    def _start_by_hand(self, c: _Core, value: int) -> None:
        """GLOBAL OPERATION_ENABLE over AHB: slave mode, registers were written one by one."""
        ctx = self._context(c)
        done: list[TaskRecord] = []
        before = (Counter(ctx.space.bytes_read), Counter(ctx.space.bytes_written))
        fault: MemoryFault | None = None
        ended = False
        try:
            started = self._launch(c, ctx, value)
            done.append(self._record(ctx, tuple(started), before))
            ended = True
        except Hang:
            c.wedged = True
        except MemoryFault as f:
            fault, c.wedged = f, True
            field = {"dma_write_error": 1} if f.write else {"dma_read_error": 1}
            c.raw |= pc.INTERRUPT_RAW_STATUS(**field).word
        except ViolationError:
            c.reset()
            raise
        c.line = ended or fault is not None
        status = c.raw & c.word(pc.INTERRUPT_MASK)
        c.result = RunResult(
            ended and status != 0,
            c.raw,
            status,
            c.tasks_done,
            sum(t.cycles for t in done),
            tuple(ctx.violations),
            fault,
            tuple(done),
            tuple(ctx.warnings),
        )

    def _record(
        self, ctx: Context, started: tuple[str, ...], before: tuple[Counter[str], Counter[str]]
    ) -> TaskRecord:
        read = Counter(ctx.space.bytes_read)
        written = Counter(ctx.space.bytes_written)
        read.subtract(before[0])
        written.subtract(before[1])
        moved = read.total() + written.total() - read["regcmd"]
        record = TaskRecord(
            started,
            timing.task_cycles(ctx.mac_cycles, moved, self.rates),
            ctx.macs,
            ctx.mac_cycles,
            {k: n for k, n in read.items() if n},
            {k: n for k, n in written.items() if n},
        )
        ctx.macs = ctx.mac_cycles = 0
        return record


LIST_PC_REGISTERS = frozenset({pc.BASE_ADDRESS.address, pc.REGISTER_AMOUNTS.address})
"""PC registers that a list may write; others over a list have no known effect."""


CORE_POINTERS = frozenset({cna.S_POINTER.address, core.S_POINTER.address})
"""Registers whose bits 31:28 carry the core, although none of them has a name."""


PING_PONG = cna.S_POINTER(pointer_pp_en=1, executer_pp_en=1, pointer_pp_mode=1).word
SLAVE_MODE = pc.BASE_ADDRESS(pc_sel=1, pc_source_addr=0).word


@functools.lru_cache(maxsize=64)
def _task_con(tasks: int, ping_pong: bool) -> int:
    return pc.TASK_CON(task_number=tasks, task_pp_en=int(ping_pong), task_count_clear=1).word


@functools.lru_cache(maxsize=64)
def _raw(events: tuple[str, ...]) -> int:
    """Bits of INTERRUPT_RAW_STATUS by name."""
    return pc.INTERRUPT_RAW_STATUS(**dict.fromkeys(events, 1)).word


def core_pointer() -> int:
    """Offset of CORE S_POINTER."""
    return core.S_POINTER.address
