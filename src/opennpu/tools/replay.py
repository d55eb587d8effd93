"""Run traced jobs again, on any device, and compare byte for byte; print them as Python."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from opennpu.device import open_device
from opennpu.device.base import Buffer, Bytes, Device, Job, JobTask
from opennpu.device.fakecores import Start
from opennpu.emu.machine import Machine
from opennpu.emu.memory import AddressSpace
from opennpu.errors import DeviceError, InputError, ViolationError
from opennpu.hw.layout import align
from opennpu.hw.regcmd import WORD_BYTES, Write, assemble, disassemble, listing
from opennpu.hw.regcmd import Start as StartWord
from opennpu.hw.regs import Register
from opennpu.hw.rk3588 import chip, pc
from opennpu.hw.rk3588.pc import DPU_DONE, PPU_DONE
from opennpu.program import address_field
from opennpu.tools.trace import Image, TracedJob

MACHINES = ("emulator", "emulator:hardware")


@dataclass(frozen=True, slots=True)
class Comparison:
    """A job, then and now."""

    job: str
    nbytes: int  # compared
    differing: int
    first: str  # difference, with both values; or why it could not run
    completed: bool

    @property
    def equal(self) -> bool:
        return not self.differing and not self.first

    def __str__(self) -> str:
        if self.equal:
            end = "" if self.completed else "; it does not end, as before"
            return f"{self.job}: {self.nbytes} bytes equal{end}"
        if self.differing:
            return f"{self.job}: {self.differing} of {self.nbytes} bytes differ, {self.first}"
        return f"{self.job}: {self.first}"


def replay(
    jobs: Sequence[TracedJob], device: str | Device = "emulator:hardware"
) -> Iterator[Comparison]:
    """Run each job from its recorded memory.

    The emulator sees the recorded addresses.  On other devices buffers lie elsewhere: the address
    registers in the command lists are moved along.
    """
    if isinstance(device, str) and device in MACHINES:
        machine = Machine(cores=chip.CORES, strict=device == "emulator")
        for job in jobs:
            yield _on_machine(job, machine)
        return
    opened = open_device(device) if isinstance(device, str) else device
    try:
        for job in jobs:
            yield _on_device(job, opened)
    finally:
        if opened is not device:
            opened.close()


# -- on the emulator -------------------------------------------------------------------------


def _on_machine(job: TracedJob, machine: Machine) -> Comparison:
    space, memory = AddressSpace(), dict[int, Bytes]()
    for b in job.buffers:
        memory[b.iova] = _bytes(b)
        try:
            space.map(b.iova, memory[b.iova])
        except ValueError as e:
            raise InputError(
                job.name, f"its buffers cannot be mapped: {e}", "Record it again"
            ) from e
    completed = True
    core = min(job.core, chip.CORES - 1)
    for i, s in enumerate(job.starts):
        try:
            result = machine.run(
                core,
                space,
                s.regcmd_iova,
                s.words,
                task_number=s.tasks,
                int_mask=s.int_mask,
                ping_pong=s.ping_pong,
                same_job=i > 0,
            )
        except ViolationError as e:
            return Comparison(job.name, 0, 0, f"refused: {e}", False)
        if not result.completed:
            machine.reset(core)
            completed = False
            break
    return _compare(job, memory, completed)


def _bytes(image: Image) -> Bytes:
    data = np.zeros(image.nbytes, np.uint8)
    data[: len(image.data)] = np.frombuffer(image.data, np.uint8)
    return data


def _compare(job: TracedJob, memory: dict[int, Bytes], completed: bool) -> Comparison:
    """``memory``: by recorded IOVA."""
    nbytes, differing, first = 0, 0, ""
    for want in job.written:
        for iova, have in memory.items():
            at = want.iova - iova
            if at >= 0 and at + want.nbytes <= have.size:
                break
        else:
            raise InputError(
                job.name, f"it writes {want.iova:#x}, no buffer of it is there", "Record it again"
            )
        old, new = _bytes(want), have[at : at + want.nbytes]
        wrong = np.flatnonzero(old != new)
        nbytes, differing = nbytes + new.size, differing + wrong.size
        if wrong.size and not first:
            k = int(wrong[0])
            first = f"first at {want.iova + k:#x}: {old[k]:#04x} recorded, {new[k]:#04x} now"
    if completed != job.completed and not differing:
        now = "ends" if completed else "does not end"
        first = f"it {now}, the recorded one {'did' if job.completed else 'did not'}"
    return Comparison(job.name, nbytes, differing, first, completed)


# -- on a device -----------------------------------------------------------------------------


def _on_device(job: TracedJob, device: Device) -> Comparison:
    allocated: list[tuple[Image, Buffer]] = []
    memory: dict[int, Bytes] = {}
    completed = True
    try:
        for b in job.buffers:
            buffer = device.alloc(b.nbytes)
            allocated.append((b, buffer))
            memory[b.iova] = _bytes(b)
        moved = [(b, buffer.iova) for b, buffer in allocated]
        todo = [_move(job, s, moved, memory) for s in job.starts]
        for b, buffer in allocated:
            with buffer.cpu() as mem:
                mem[:] = memory[b.iova]
        buffers = [buffer for _, buffer in allocated]
        for tasks in todo:
            try:
                device.wait(device.submit(Job(tasks, writes=buffers)))
            except ViolationError as e:
                return Comparison(job.name, 0, 0, f"refused: {e}", False)
            except DeviceError as e:
                if job.completed:
                    return Comparison(job.name, 0, 0, f"failed: {e}", False)
                completed = False
                break
        for b, buffer in allocated:
            with buffer.cpu() as mem:
                memory[b.iova] = np.array(mem)
    finally:
        for _, buffer in allocated:
            buffer.free()
    return _compare(job, memory, completed)


def _move(
    job: TracedJob,
    start: Start,
    moved: Sequence[tuple[Image, int]],
    memory: dict[int, Bytes],
) -> list[JobTask]:
    """The tasks of a start on the device; addresses in their words, in ``memory``, are new."""
    tasks = []
    for at, words, writes in tasks_of(job, start):
        new = [_moved(w, moved) for w in writes]
        for iova, data in memory.items():
            if iova <= at < iova + data.size:
                code = np.frombuffer(assemble(new), np.uint8)
                data[at - iova : at - iova + code.size] = code
        units = [w.enable for w in writes if isinstance(w, StartWord)]
        mask = PPU_DONE if units and units[-1].ppu_op_en else DPU_DONE
        word = units[-1].word if units else 0
        tasks.append(JobTask(_new(at, moved), words, word, mask, job.name))
    if len(tasks) < start.tasks:
        raise InputError(
            job.name,
            f"{len(tasks)} of {start.tasks} tasks of a list are in its buffers",
            "Replay it on the emulator",
        )
    return [*tasks[:-1], replace(tasks[-1], int_mask=start.int_mask)]


def _new(iova: int, moved: Sequence[tuple[Image, int]]) -> int:
    for b, base in moved:
        if b.iova <= iova < b.iova + b.nbytes:
            return iova - b.iova + base
    return iova  # of a stream that is off


def _moved(write: Write, moved: Sequence[tuple[Image, int]]) -> Write:
    if not isinstance(write, Register):
        return write
    name = address_field(type(write))
    if name is None:
        return write
    old = getattr(write, name)
    return type(write).decode(write.word + _new(old, moved) - old)


# -- printing --------------------------------------------------------------------------------


def tasks_of(job: TracedJob, start: Start) -> Iterator[tuple[int, int, list[Write]]]:
    """(iova, words, writes) of the tasks of a start, followed as the PC does; may end early."""
    at, words = start.regcmd_iova, start.words
    for _ in range(start.tasks):
        code = job.read(at, words * WORD_BYTES)
        if code is None:
            return
        writes = list(disassemble(code))
        yield at, words, writes
        links = [w for w in writes if isinstance(w, pc.BASE_ADDRESS)]
        amounts = [w for w in writes if isinstance(w, pc.REGISTER_AMOUNTS)]
        if not links or not amounts:
            return
        at, words = links[-1].pc_source_addr, align(2 * (amounts[-1].pc_data_amount + 1), 2)


def lines(job: TracedJob) -> Iterator[str]:
    """The job as Python; comments name buffers."""
    end = "completed" if job.completed else "did not complete"
    yield f"# {job.name}: {job.abi}, core {job.core}, {end}"
    for note in job.notes:
        yield f"# {note}"
    for b in job.buffers:
        yield f"# buffer {b.handle}: {b.nbytes} bytes at {b.iova:#x}"
    for i, start in enumerate(job.starts):
        seen = 0
        for at, words, writes in tasks_of(job, start):
            yield f"# start {i} task {seen}: {words} words at {at:#x}"
            for line, write in zip(listing(assemble(writes)), writes, strict=True):
                yield line + _where(job, write)
            seen += 1
        if seen < start.tasks:
            yield f"# start {i}: {start.tasks - seen} more tasks lie in no buffer"


def _where(job: TracedJob, write: Write) -> str:
    name = address_field(type(write)) if isinstance(write, Register) else None
    if name is None:
        return ""
    iova = getattr(write, name)
    for b in job.buffers:
        if b.iova <= iova < b.iova + b.nbytes:
            return f"  # buffer {b.handle} + {iova - b.iova:#x}"
    return ""
