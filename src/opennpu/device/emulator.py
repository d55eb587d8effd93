"""The register-accurate emulator as a device: what you get where there is no board."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import contextmanager

import numpy as np

from opennpu.device.base import (
    Bytes,
    DeviceInfo,
    Job,
    JobResult,
    Kind,
    Ticket,
    check_job,
    closed,
    freed,
)
from opennpu.device.iova import IovaAllocator
from opennpu.emu.machine import Machine
from opennpu.emu.memory import AddressSpace
from opennpu.emu.numerics import Policy
from opennpu.emu.timing import SAFE, SUBMIT_S
from opennpu.errors import DeviceError, DeviceFault, DeviceTimeout, ViolationError
from opennpu.hw.layout import align
from opennpu.hw.rk3588 import chip

FIRST_IOVA = 1 << 20  # below it nothing is mapped: an address nobody wrote faults


class EmulatorBuffer:
    """Host memory that is mapped in the emulated IOVA space."""

    def __init__(self, device: EmulatorDevice, nbytes: int, kind: Kind, iova: int) -> None:
        self.nbytes, self.iova = nbytes, iova
        self._device: EmulatorDevice | None = device
        self._data = np.zeros(align(nbytes, chip.PAGE_BYTES), np.uint8)
        fixed = device.strict and kind in ("code", "const")  # a board would let the NPU write
        device.space.map(iova, self._data, write=not fixed)

    @contextmanager
    def cpu(self) -> Iterator[Bytes]:
        if self._device is None:
            raise freed("emulator")
        yield self._data[: self.nbytes]

    def free(self) -> None:
        if self._device is not None:
            self._device._release(self)
            self._device = None
            self._data = np.zeros(0, np.uint8)


class EmulatorDevice:
    """Three emulated cores behind the device protocol.

    strict: name what silicon would corrupt or hang on (ViolationError); False: do as silicon
        does, and report violations in the result.
    machine: an `opennpu.emu.machine.Machine` of your own; ``strict`` and ``policy`` are then
        ignored.
    policy: how fp16 sums are rounded; see `opennpu.emu.numerics`.
    """

    def __init__(
        self,
        *,
        strict: bool = True,
        policy: Policy | None = None,
        machine: Machine | None = None,
    ) -> None:
        self.machine = machine or Machine(
            cores=chip.CORES, strict=strict, policy=policy or Policy()
        )
        self.strict = self.machine.strict
        self.space = AddressSpace()
        self.info = DeviceInfo(
            "emulator" if self.strict else "emulator:hardware",
            cores=chip.CORES,
            driver="opennpu.emu",
            abi="emulator",
        )
        self._iovas = IovaAllocator(FIRST_IOVA, gap_bytes=chip.PAGE_BYTES)
        self._buffers: set[EmulatorBuffer] = set()
        self._numbers = itertools.count()
        self._worker: ThreadPoolExecutor | None = ThreadPoolExecutor(1, "opennpu-emulator")

    def alloc(self, nbytes: int, kind: Kind = "io") -> EmulatorBuffer:
        if self._worker is None:
            raise closed(self.info.name)
        iova = self._iovas.alloc(nbytes) if nbytes > 0 else None
        if iova is None:
            raise DeviceError(
                self.info.name,
                f"no room for {nbytes} bytes in {chip.IOVA_BYTES} bytes of NPU address space",
                "Ask for at least 1 byte, and free what you no longer need",
            )
        buffer = EmulatorBuffer(self, nbytes, kind, iova)
        self._buffers.add(buffer)
        return buffer

    def _release(self, buffer: EmulatorBuffer) -> None:
        self.space.unmap(buffer.iova)
        self._iovas.free(buffer.iova)
        self._buffers.discard(buffer)

    def submit(self, job: Job) -> Ticket:
        if self._worker is None:
            raise closed(self.info.name)
        check_job(self.info, job)
        future = self._worker.submit(self._run, job)
        return Ticket(next(self._numbers), job, {"future": future})

    def wait(self, ticket: Ticket, timeout_s: float | None = None) -> JobResult:
        """``timeout_s`` is wall time; the job's own time-out is in predicted device time."""
        future: Future[JobResult] = ticket.state["future"]
        try:
            return future.result(timeout_s)
        except FutureTimeout:
            raise DeviceTimeout(
                ticket.job.tasks[0].node or self.info.name,
                f"the emulator is still at its job after {timeout_s} s",
                "Wait longer: emulation is far slower than a board",
            ) from None

    def close(self) -> None:
        if self._worker is not None:
            self._worker.shutdown(wait=True, cancel_futures=True)
            self._worker = None
            for buffer in tuple(self._buffers):
                buffer.free()

    def _run(self, job: Job) -> JobResult:
        """Execute in the worker thread."""
        core, first, n = job.core or 0, job.tasks[0], len(job.tasks)
        before = self._traffic()
        try:
            result = self.machine.run(
                core,
                self.space,
                first.regcmd_iova,
                first.words,
                task_number=n,
                int_mask=job.tasks[-1].int_mask,
                ping_pong=True,
            )
        except ViolationError as e:
            raise ViolationError(_place(e.where, job), e.what, e.remedy) from e
        if not result.completed:
            self.machine.reset(core)  # as the drivers do; the next job starts afresh
        read, written = (a - b for a, b in zip(self._traffic(), before, strict=True))
        node = job.tasks[min(result.tasks_done, n - 1)].node or self.info.name
        if result.fault is not None:
            raise DeviceFault(
                node,
                f"DMA fault in task {result.tasks_done + 1} of {n}: {result.fault}",
                "List every buffer that the program reaches, and keep it allocated",
            )
        if not result.completed:
            raise DeviceTimeout(
                node,
                f"the job hangs after {result.tasks_done} of {n} tasks: interrupt bits are "
                f"{result.interrupt_raw:#x}, it waits for {job.tasks[-1].int_mask:#x}",
                "; ".join(v.message for v in result.violations[-1:]).rstrip(".")
                or "Give the job the interrupt mask of the unit that ends it",
            )
        seconds = SUBMIT_S + result.cycles / SAFE.clock_hz
        if seconds > job.timeout_s:
            raise DeviceTimeout(
                node,
                f"the job takes {seconds:.3f} s on a board, its time-out is {job.timeout_s} s",
                "Give it more time, or split it",
            )
        violations = tuple(v.message for v in result.violations)
        return JobResult(result.tasks_done, seconds, False, read, written, violations)

    def _traffic(self) -> tuple[int, int]:
        return sum(self.space.bytes_read.values()), sum(self.space.bytes_written.values())


def _place(where: str, job: Job) -> str:
    """The user's node before the machine's "core 0 task 3"."""
    number = where.rpartition(" task ")[2]
    if number.isdecimal() and int(number) < len(job.tasks) and job.tasks[int(number)].node:
        return f"{job.tasks[int(number)].node} ({where})"
    return where
