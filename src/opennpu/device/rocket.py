"""The mainline kernel driver (rocket, Linux 6.18 and later) on /dev/accel/accel*.

Structures and behaviour: public facts about Linux rocket and rockchip-npu-notes.  DRM_VERSION
tells the interface: 0.0 is stock Linux, which starts one task at a time, waits for the DPU
only, and reports success for jobs that it dropped or killed; out-of-tree drivers chain the
tasks of a job from 1.1 on and wait for the PPU from 1.3 on.
"""

from __future__ import annotations

import ctypes
import errno
import itertools
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from ctypes import Structure, c_int64, c_uint32, c_uint64

import numpy as np

from opennpu.device import canary
from opennpu.device.base import (
    Buffer,
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
from opennpu.device.kernel import (
    DRM_COMMAND_BASE,
    DRM_IOCTL_GEM_CLOSE,
    DrmGemClose,
    Kernel,
    LinuxKernel,
    Mapping,
    Version,
    failed,
    find_node,
    ioctl,
    iow,
    iowr,
    open_node,
)
from opennpu.errors import DeviceError, DeviceFault, DeviceTimeout
from opennpu.hw.layout import align
from opennpu.hw.regcmd import TASK_ALIGN_BYTES, WORD_BYTES, assemble, tail
from opennpu.hw.rk3588 import chip

DRIVER = "rocket"


class CreateBo(Structure):
    """struct drm_rocket_create_bo."""

    _fields_ = [
        ("size", c_uint32),
        ("handle", c_uint32),
        ("dma_address", c_uint64),
        ("offset", c_uint64),
    ]


class Submit(Structure):
    """struct drm_rocket_submit."""

    _fields_ = [
        ("jobs", c_uint64),
        ("job_count", c_uint32),
        ("job_struct_size", c_uint32),
        ("reserved", c_uint64),
    ]


class PrepBo(Structure):
    """struct drm_rocket_prep_bo."""

    _fields_ = [("handle", c_uint32), ("reserved", c_uint32), ("timeout_ns", c_int64)]


class FiniBo(Structure):
    """struct drm_rocket_fini_bo."""

    _fields_ = [("handle", c_uint32), ("reserved", c_uint32)]


class RocketTask(Structure):
    """struct drm_rocket_task."""

    _fields_ = [("regcmd", c_uint32), ("regcmd_count", c_uint32)]


class RocketJob(Structure):
    """struct drm_rocket_job, interface 0.0."""

    _fields_ = [
        ("tasks", c_uint64),
        ("in_bo_handles", c_uint64),
        ("out_bo_handles", c_uint64),
        ("task_count", c_uint32),
        ("task_struct_size", c_uint32),
        ("in_bo_handle_count", c_uint32),
        ("out_bo_handle_count", c_uint32),
    ]


class RocketJobFlags(Structure):
    """The same with flags, interface 1.1."""

    _fields_ = [*RocketJob._fields_, ("flags", c_uint32), ("reserved", c_uint32)]


CREATE_BO = iowr(DRM_COMMAND_BASE + 0, CreateBo)
SUBMIT = iow(DRM_COMMAND_BASE + 1, Submit)
PREP_BO = iow(DRM_COMMAND_BASE + 2, PrepBo)
FINI_BO = iow(DRM_COMMAND_BASE + 3, FiniBo)

BATCHED_SINCE, PPU_SINCE = (1, 1), (1, 3)
JOB_BATCHED = 1
MAX_BO_BYTES = (1 << 32) - chip.PAGE_BYTES  # CREATE_BO has 32 bits for the size
CPU_TIMEOUT_S = 60.0  # for `Buffer.cpu`, which waits for the jobs that use the buffer
CORES_PER_FILE = 1  # one scheduler entity per open file: its jobs run one after the other


class RocketBuffer:
    """A GEM object of the rocket driver, mapped here and in the NPU's address space."""

    def __init__(self, device: RocketDevice, nbytes: int) -> None:
        self.nbytes = nbytes
        self._device: RocketDevice | None = None
        created = CreateBo(size=align(nbytes, chip.PAGE_BYTES))
        device._call(f"CREATE_BO of {nbytes} bytes", CREATE_BO, created)
        self.iova, self.handle = int(created.dma_address), int(created.handle)
        try:
            self._mapping: Mapping = device._mmap(nbytes, int(created.offset))
        except DeviceError:
            with suppress(DeviceError):  # the first error is the one to tell
                device._gem_close(self)
            raise
        self._device = device

    @contextmanager
    def cpu(self) -> Iterator[Bytes]:
        if self._device is None:
            raise freed(DRIVER)
        self._device._prep(self, time.monotonic(), CPU_TIMEOUT_S, DRIVER)
        try:
            yield self._mapping.view[: self.nbytes]
        finally:
            self._device._call("FINI_BO", FINI_BO, FiniBo(handle=self.handle))

    def free(self) -> None:
        if self._device is not None:
            device, self._device = self._device, None
            self._mapping.close()
            device._buffers.discard(self)
            device._gem_close(self)


class Canary:
    """A page with the words of a copy task, the atom that it reads and the one that it writes."""

    def __init__(self, device: RocketDevice) -> None:
        self.buffer = device._alloc(chip.PAGE_BYTES)
        self.ticket: Ticket | None = None  # the job that it guards at present
        length = len(canary.copy_task(0, 0))
        self.words = length // WORD_BYTES
        self._src = align(length, TASK_ALIGN_BYTES)
        self._dst = self._src + TASK_ALIGN_BYTES
        code = canary.copy_task(self.buffer.iova + self._src, self.buffer.iova + self._dst)
        with self.buffer.cpu() as mem:
            mem[:length] = np.frombuffer(code, np.uint8)

    def arm(self, number: int) -> bytes:
        """Put a new nonce where the copy reads, and zeros where it writes."""
        nonce = canary.nonce(number)
        with self.buffer.cpu() as mem:
            mem[self._src : self._src + len(nonce)] = np.frombuffer(nonce, np.uint8)
            mem[self._dst : self._dst + len(nonce)] = 0
        return nonce

    def read(self) -> bytes:
        """What the copy wrote."""
        with self.buffer.cpu() as mem:
            return mem[self._dst : self._dst + chip.ATOM_BYTES].tobytes()


class RocketDevice:
    """A board with the mainline driver.

    Every job gets one more task, the canary, and is only believed when that has run.
    path: an accel node; None searches /dev/accel.
    Raises DeviceNotFound, DeviceError.
    """

    def __init__(self, path: str | None = None, *, kernel: Kernel | None = None) -> None:
        self.kernel = kernel or LinuxKernel()
        path = path or find_node(self.kernel, DRIVER)
        self._fd, version = open_node(self.kernel, path, DRIVER)
        self._is_open = True
        self.info = _info(path, version)
        self._buffers: set[RocketBuffer] = set()
        self._canaries: dict[int, Canary] = {}  # by address of the job's last task
        self._lock = threading.RLock()
        self._numbers = itertools.count()

    def alloc(self, nbytes: int, kind: Kind = "io") -> RocketBuffer:
        if not self._is_open:
            raise closed(DRIVER)
        if not 1 <= nbytes <= MAX_BO_BYTES:
            raise DeviceError(
                DRIVER,
                f"{nbytes} bytes were asked for, one buffer holds 1 to {MAX_BO_BYTES}",
                "Split the buffer",
            )
        return self._alloc(nbytes)

    def submit(self, job: Job) -> Ticket:
        if not self._is_open:
            raise closed(DRIVER)
        check_job(self.info, job)
        with self._lock:
            number = next(self._numbers)
            guard = self._canary(job)
            nonce = guard.arm(number)
            if self.info.chained:
                self._link(job, guard)
            state = {"canary": guard, "nonce": nonce, "began": time.monotonic()}
            self._submit(job, guard)
            guard.ticket = Ticket(number, job, state)
            return guard.ticket

    def _canary(self, job: Job) -> Canary:
        """The canary of the job's last task, free for use: an earlier run is waited for."""
        last = job.tasks[-1].regcmd_iova
        if last not in self._canaries:
            self._canaries[last] = Canary(self)
        guard = self._canaries[last]
        if guard.ticket is not None:
            with suppress(DeviceFault):  # told to whoever waits for that job
                self._finish(guard.ticket, time.monotonic(), job.timeout_s)
        return guard

    def _link(self, job: Job, guard: Canary) -> None:
        """Make the last task lead on to the canary, in the code that the NPU reads."""
        last = job.tasks[-1]
        home = [b for b in self._buffers if 0 <= last.regcmd_iova - b.iova < b.nbytes]
        at = last.regcmd_iova - home[0].iova if home else 0
        end = at + last.words * WORD_BYTES
        if not home or end > home[0].nbytes:
            raise DeviceError(
                last.node or DRIVER,
                f"its {last.words} words at {last.regcmd_iova:#x} are in no buffer",
                "Allocate the code on this device",
            )
        links = assemble(tail(last.units, guard.buffer.iova, guard.words))
        with home[0].cpu() as mem:
            mem[end - len(links) : end] = np.frombuffer(links, np.uint8)

    def _submit(self, job: Job, guard: Canary) -> None:
        tasks = (RocketTask * (len(job.tasks) + 1))()
        for entry, t in zip(tasks, job.tasks, strict=False):
            entry.regcmd, entry.regcmd_count = t.regcmd_iova, t.words
        tasks[len(job.tasks)].regcmd = guard.buffer.iova
        tasks[len(job.tasks)].regcmd_count = guard.words
        reads = _handles(job.reads)
        writes = _handles([*job.writes, guard.buffer])
        kind = RocketJobFlags if self.info.chained else RocketJob
        entry = kind(
            tasks=ctypes.addressof(tasks),
            in_bo_handles=ctypes.addressof(reads) if len(reads) else 0,
            out_bo_handles=ctypes.addressof(writes),
            task_count=len(tasks),
            task_struct_size=ctypes.sizeof(RocketTask),
            in_bo_handle_count=len(reads),
            out_bo_handle_count=len(writes),
        )
        if isinstance(entry, RocketJobFlags):
            entry.flags = JOB_BATCHED
        argument = Submit(
            jobs=ctypes.addressof(entry), job_count=1, job_struct_size=ctypes.sizeof(kind)
        )
        self._call("SUBMIT", SUBMIT, argument)

    def wait(self, ticket: Ticket, timeout_s: float | None = None) -> JobResult:
        limit_s = ticket.job.timeout_s if timeout_s is None else timeout_s
        return self._finish(ticket, ticket.state["began"], limit_s)

    def _finish(self, ticket: Ticket, since_s: float, limit_s: float) -> JobResult:
        """Wait until ``since_s`` + ``limit_s``, once; later calls tell the same again."""
        state, job = ticket.state, ticket.job
        node = job.tasks[-1].node or DRIVER
        guard: Canary = state["canary"]
        if "ended" not in state:
            try:
                self._prep(guard.buffer, since_s, limit_s, node)
            except DeviceTimeout:
                if "ended" not in state:  # else it was a later run of the same job
                    raise
        with self._lock:
            if "ended" not in state:
                state["ended"] = self._verdict(ticket, node)
                guard.ticket = None
        ended: JobResult | DeviceError = state["ended"]
        if isinstance(ended, DeviceError):
            raise ended
        return ended

    def _verdict(self, ticket: Ticket, node: str) -> JobResult | DeviceError:
        """What the canary says about a job that the driver calls done."""
        seconds, n = time.monotonic() - ticket.state["began"], len(ticket.job.tasks)
        guard: Canary = ticket.state["canary"]
        if guard.read() == ticket.state["nonce"]:
            return JobResult(n, seconds, True)
        return DeviceFault(
            node,
            f"the driver reports success after {seconds:.3f} s, but the last of {n} tasks "
            "did not end: the job was dropped or killed",
            "Check dmesg; the strict emulator names programs that hang",
        )

    def close(self) -> None:
        if not self._is_open:
            return
        for buffer in tuple(self._buffers):
            with suppress(DeviceError):  # closing the node frees what is left
                buffer.free()
        self._is_open = False
        self.kernel.close(self._fd)

    # -- system calls ------------------------------------------------------------------------

    def _alloc(self, nbytes: int) -> RocketBuffer:
        buffer = RocketBuffer(self, nbytes)
        self._buffers.add(buffer)
        return buffer

    def _prep(self, buffer: RocketBuffer, since_s: float, limit_s: float, node: str) -> None:
        """Wait until no job writes ``buffer``; the driver takes an absolute CLOCK_MONOTONIC."""
        deadline_ns = max(0, int((since_s + limit_s) * 1e9))
        try:
            argument = PrepBo(handle=buffer.handle, timeout_ns=deadline_ns)
            ioctl(self.kernel, self._fd, PREP_BO, argument)
        except OSError as e:
            if e.errno not in (errno.ETIMEDOUT, errno.EBUSY):
                raise failed(self.info.name, "PREP_BO", e) from e
            raise DeviceTimeout(
                node,
                f"its job is still running after {limit_s} s",
                "Give it more time; the strict emulator names programs that hang",
            ) from e

    def _gem_close(self, buffer: RocketBuffer) -> None:
        self._call("GEM_CLOSE", DRM_IOCTL_GEM_CLOSE, DrmGemClose(handle=buffer.handle))

    def _mmap(self, nbytes: int, offset: int) -> Mapping:
        try:
            return self.kernel.mmap(self._fd, align(nbytes, chip.PAGE_BYTES), offset)
        except OSError as e:
            raise failed(self.info.name, f"mmap of {nbytes} bytes", e) from e

    def _call(self, name: str, request: int, argument: Structure) -> None:
        try:
            ioctl(self.kernel, self._fd, request, argument)
        except OSError as e:
            raise failed(self.info.name, name, e) from e


def _info(path: str, version: Version) -> DeviceInfo:
    interface = version[1:3]
    return DeviceInfo(
        DRIVER,
        driver=f"{DRIVER} {version.major}.{version.minor}.{version.patch}",
        path=path,
        cores=CORES_PER_FILE,
        chained=interface >= BATCHED_SINCE,
        ppu=interface >= PPU_SINCE,
        abi=f"rocket {version.major}.{version.minor}",
        measured=True,
        tasks_per_job=chip.TASKS_PER_START - 1,  # room for the canary
    )


def _handles(buffers: Sequence[Buffer]) -> ctypes.Array[c_uint32]:
    """GEM handles, each once."""
    handles = list(dict.fromkeys(b.handle for b in buffers if isinstance(b, RocketBuffer)))
    if len(handles) < len(set(map(id, buffers))):
        raise DeviceError(
            DRIVER,
            f"{len(buffers) - len(handles)} of {len(buffers)} buffers are of another device",
            "Allocate buffers on the device that runs the job",
        )
    return (c_uint32 * len(handles))(*handles)
