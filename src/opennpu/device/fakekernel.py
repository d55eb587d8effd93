"""A kernel that is not there: both drivers' ioctls, as far as a device can see them.

Real device code runs on it, with every structure, number and errno; the emulator executes the
jobs.  Sources of the rules: rockchip-npu-notes (rocket, by interface version), Linux rocket,
vendor rknpu 0.9.8.  `inject` makes any call fail.
"""

from __future__ import annotations

import ctypes
import errno
import fnmatch
import itertools
import os
import time
from collections.abc import Callable, Sequence
from ctypes import Structure, c_uint32
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from opennpu.device import rknpu, rocket
from opennpu.device.base import Bytes
from opennpu.device.kernel import (
    DRM_COMMAND_BASE,
    DRM_IOCTL_GEM_CLOSE,
    DRM_IOCTL_VERSION,
    iow,
)
from opennpu.emu.machine import Machine, RunResult
from opennpu.emu.memory import AddressSpace
from opennpu.emu.timing import SAFE
from opennpu.hw.layout import align
from opennpu.hw.regcmd import TAIL_WORDS
from opennpu.hw.rk3588 import chip, pc

ACCEL_NODE, RENDER_NODE = "/dev/accel/accel0", "/dev/dri/renderD129"
DPU_DONE = pc.INTERRUPT_MASK(dpu_0=1, dpu_1=1).word
USER_START = 4096  # no process has memory below
S = TypeVar("S", bound=Structure)


def _fail(number: int) -> OSError:
    return OSError(number, os.strerror(number))


def _user_bytes(address: int, nbytes: int) -> bytes:
    """copy_from_user: only the null page is known to be bad."""
    if address < USER_START:
        raise _fail(errno.EFAULT)
    return ctypes.string_at(address, nbytes)


def _user(address: int, kind: type[S]) -> S:
    return kind.from_buffer_copy(_user_bytes(address, ctypes.sizeof(kind)))


@dataclass(eq=False)
class FakeBo:
    """A buffer object."""

    handle: int
    data: Bytes
    iova: int
    offset: int  # to mmap it
    flags: int = 0
    obj_addr: int = 0
    busy: bool = False  # written by a job that has not run yet


class FakeMapping:
    """A mapping of a buffer object."""

    def __init__(self, kernel: FakeKernel, bo: FakeBo, nbytes: int) -> None:
        self.view: Bytes = bo.data[:nbytes]
        self._kernel: FakeKernel | None = kernel
        kernel.mappings += 1

    def close(self) -> None:
        if self._kernel is not None:
            self._kernel.mappings -= 1
            self._kernel = None
        self.view = np.zeros(0, np.uint8)


class FakeFile:
    """An open DRM node: its buffer objects and its address space."""

    name = ""
    version = (0, 0, 0)

    def __init__(self, kernel: FakeKernel) -> None:
        self.kernel = kernel
        self.space = AddressSpace()
        self.bos: dict[int, FakeBo] = {}
        self.handles = itertools.count(1)
        self.room = chip.IOVA_BYTES  # addresses are never given out twice
        self.calls: dict[int, Callable[[Any], None]] = {
            DRM_IOCTL_VERSION: self._version,
            DRM_IOCTL_GEM_CLOSE: self._gem_close,
        }

    def _version(self, a: Any) -> None:
        a.version_major, a.version_minor, a.version_patchlevel = self.version
        name = self.name.encode()
        if a.name_len:
            ctypes.memmove(a.name, name, min(len(name), a.name_len))
        a.name_len, a.date_len, a.desc_len = len(name), 0, 0

    def _gem_close(self, a: Any) -> None:
        if a.handle not in self.bos:
            raise _fail(errno.EINVAL)
        bo = self.bos.pop(a.handle)
        self.space.unmap(bo.iova)

    def new_bo(self, nbytes: int, flags: int = 0) -> FakeBo:
        size = align(nbytes, chip.PAGE_BYTES)
        if size > self.room:
            raise _fail(errno.ENOSPC)
        iova, handle = self.place(size), next(self.handles)
        self.room -= size
        data = np.zeros(size, np.uint8)
        bo = FakeBo(handle, data, iova, self.kernel.new_offset(data.size), flags)
        self.space.map(iova, data)
        self.bos[handle] = bo
        return bo

    def place(self, nbytes: int) -> int:
        """The IOVA of the next buffer object."""
        raise NotImplementedError

    def close(self) -> None:
        self.bos.clear()


# -- rocket ----------------------------------------------------------------------------------

JOB_FLAGS = 0x7  # BATCHED, NO_DPU_DONE, PPU_DONE: since 1.1
MAX_RANGES = 1024
RANGES_SINCE = (1, 5)


class BoRange(Structure):
    """struct drm_rocket_bo_range, interface 1.5."""

    _fields_ = [("offset", ctypes.c_uint64), ("size", ctypes.c_uint64)]


class PrepBoRanges(Structure):
    """struct drm_rocket_prep_bo_ranges, interface 1.5."""

    _fields_ = [
        ("handle", c_uint32),
        ("count", c_uint32),
        ("ranges", ctypes.c_uint64),
        ("timeout_ns", ctypes.c_int64),
        ("reserved", ctypes.c_uint64),
    ]


class FiniBoRanges(Structure):
    """struct drm_rocket_fini_bo_ranges, interface 1.5."""

    _fields_ = [
        ("handle", c_uint32),
        ("count", c_uint32),
        ("ranges", ctypes.c_uint64),
        ("reserved", ctypes.c_uint64),
    ]


PREP_BO_RANGES = iow(DRM_COMMAND_BASE + 4, PrepBoRanges)
FINI_BO_RANGES = iow(DRM_COMMAND_BASE + 5, FiniBoRanges)


@dataclass
class _Queued:
    """A job that waits for `FakeKernel.release`."""

    file: RocketFile
    tasks: list[rocket.RocketTask]
    batched: bool
    writes: list[FakeBo] = field(default_factory=list)


class RocketFile(FakeFile):
    """Mainline: IOVA from 0 upwards, one task per start unless batched."""

    name = "rocket"

    def __init__(self, kernel: FakeKernel) -> None:
        super().__init__(kernel)
        assert kernel.rocket is not None
        self.version = (*kernel.rocket, 0)
        self.stock = kernel.rocket < rocket.BATCHED_SINCE
        self.top = 0
        self.calls |= {
            rocket.CREATE_BO: self._create,
            rocket.SUBMIT: self._submit,
            rocket.PREP_BO: self._prep,
            rocket.FINI_BO: lambda a: None,
        }
        if kernel.rocket >= RANGES_SINCE:
            self.calls |= {
                PREP_BO_RANGES: self._prep_ranges,
                FINI_BO_RANGES: self._fini_ranges,
            }

    def place(self, nbytes: int) -> int:
        at = self.top
        self.top += nbytes
        return at

    def _create(self, a: Any) -> None:
        if a.size == 0:
            raise _fail(errno.EINVAL)
        bo = self.new_bo(a.size)
        a.handle, a.dma_address, a.offset = bo.handle, bo.iova, bo.offset

    def _find(self, handle: int) -> FakeBo:
        if handle not in self.bos:
            raise _fail(errno.ENOENT)
        return self.bos[handle]

    def _prep(self, a: Any) -> None:
        if a.reserved:
            raise _fail(errno.EINVAL)
        self._wait(self._find(a.handle), a.timeout_ns)

    def _wait(self, bo: FakeBo, deadline_ns: int) -> None:
        if not bo.busy:
            return
        left_s = deadline_ns * 1e-9 - time.monotonic()
        if left_s <= 0:
            raise _fail(errno.EBUSY)
        time.sleep(left_s)
        if bo.busy:
            raise _fail(errno.ETIMEDOUT)

    def _ranges(self, a: Any) -> FakeBo:
        if a.reserved or not 1 <= a.count <= MAX_RANGES:
            raise _fail(errno.EINVAL)
        bo = self._find(a.handle)
        raw = _user_bytes(a.ranges, a.count * ctypes.sizeof(BoRange))
        end = 0
        for r in (BoRange * a.count).from_buffer_copy(raw):
            if r.size == 0 or r.offset < end or r.offset + r.size > bo.data.size:
                raise _fail(errno.EINVAL)
            end = r.offset + r.size
        return bo

    def _prep_ranges(self, a: Any) -> None:
        self._wait(self._ranges(a), a.timeout_ns)

    def _fini_ranges(self, a: Any) -> None:
        self._ranges(a)

    def _submit(self, a: Any) -> None:
        known = ctypes.sizeof(rocket.RocketJob if self.stock else rocket.RocketJobFlags)
        if a.reserved or a.job_struct_size < ctypes.sizeof(rocket.RocketJob):
            raise _fail(errno.EINVAL)
        raw = _user_bytes(a.jobs, a.job_count * a.job_struct_size) if a.job_count else b""
        for i in range(a.job_count):
            one = raw[i * a.job_struct_size : (i + 1) * a.job_struct_size]
            if not self.stock and any(one[known:]):
                raise _fail(errno.E2BIG)
            job = rocket.RocketJobFlags.from_buffer_copy(
                one[:known].ljust(ctypes.sizeof(rocket.RocketJobFlags), b"\0")
            )
            try:
                queued = self._job(job)
            except OSError:
                if self.stock:
                    continue  # stock Linux drops the job and tells nobody
                raise
            if queued is not None:
                self.kernel.start(queued)

    def _job(self, job: rocket.RocketJobFlags) -> _Queued | None:
        if job.flags & ~JOB_FLAGS or job.reserved:
            raise _fail(errno.EINVAL)
        size = ctypes.sizeof(rocket.RocketTask)
        if job.task_count == 0 or job.task_struct_size < size:
            raise _fail(errno.EINVAL)
        raw = _user_bytes(job.tasks, job.task_count * job.task_struct_size)
        tasks = [
            rocket.RocketTask.from_buffer_copy(raw, i * job.task_struct_size)
            for i in range(job.task_count)
        ]
        if any(t.regcmd_count == 0 for t in tasks):
            raise _fail(errno.EINVAL)
        reads = self._bos(job.in_bo_handles, job.in_bo_handle_count)
        writes = self._bos(job.out_bo_handles, job.out_bo_handle_count)
        if {b.handle for b in reads} & {b.handle for b in writes}:
            return None  # success is signalled, nothing runs
        batched = bool(job.flags & rocket.JOB_BATCHED)
        return _Queued(self, tasks, batched, writes)

    def _bos(self, address: int, count: int) -> list[FakeBo]:
        if not count:
            return []
        raw = _user_bytes(address, count * ctypes.sizeof(c_uint32))
        return [self._find(h) for h in (c_uint32 * count).from_buffer_copy(raw)]

    def execute(self, job: _Queued) -> None:
        """Run a job.  A hang or a fault ends it; the fence is signalled as success."""
        starts = [(job.tasks[0], len(job.tasks))] if job.batched else [(t, 1) for t in job.tasks]
        for task, count in starts:
            result = self.kernel.run(
                0, self.space, task.regcmd, task.regcmd_count, count, DPU_DONE, True
            )
            if not result.completed:
                break  # the watchdog kills the job after 500 ms


# -- rknpu -----------------------------------------------------------------------------------

DRIVER_VERSION = 908  # 0.9.8
ACTIONS = {
    rknpu.ACTION_HW_VERSION: chip.HW_VERSION,
    rknpu.ACTION_DRV_VERSION: DRIVER_VERSION,
    6: 0,  # reset
    18: 1,  # IOMMU is on
    24: 0,  # current IOMMU domain
}
CORE_SETS = {0: (0,), 1: (0,), 2: (1,), 4: (2,), 3: (0, 1), 7: (0, 1, 2)}
THREE_CORE_SLOT = 2  # three-core jobs are read from subcore_task[2..4]
KERNEL_POINTERS = 0xFFFF_0000_0000_0000


class RknpuFile(FakeFile):
    """Vendor: IOVA from the top downwards, whole task lists per start, blocking submit."""

    name = "rknpu"
    version = (0, 9, 8)

    def __init__(self, kernel: FakeKernel) -> None:
        super().__init__(kernel)
        self.bottom = chip.IOVA_BYTES
        create = rknpu.MEM_CREATE_OLD if kernel.old_mem_create else rknpu.MEM_CREATE
        self.calls |= {
            rknpu.ACTION: self._action,
            rknpu.SUBMIT: self._submit,
            create: self._create,
            rknpu.MEM_MAP: self._map,
            rknpu.MEM_DESTROY: self._destroy,
            rknpu.MEM_SYNC: self._sync,
        }

    def place(self, nbytes: int) -> int:
        self.bottom -= nbytes
        return self.bottom

    def _action(self, a: Any) -> None:
        if a.flags not in ACTIONS:
            raise _fail(errno.EINVAL)
        a.value = ACTIONS[a.flags]

    def _create(self, a: Any) -> None:
        bo = self.bos.get(a.handle) if a.handle else None
        if bo is None:
            if a.size == 0:
                raise _fail(errno.EINVAL)
            bo = self.new_bo(a.size, a.flags)
            bo.obj_addr = KERNEL_POINTERS + bo.offset
        a.handle, a.size, a.dma_addr = bo.handle, bo.data.size, bo.iova
        a.obj_addr, a.sram_size = bo.obj_addr, 0

    def _map(self, a: Any) -> None:
        if a.handle not in self.bos:
            raise _fail(errno.EINVAL)
        a.offset = self.bos[a.handle].offset

    def _destroy(self, a: Any) -> None:
        self._gem_close(a)

    def _object(self, obj_addr: int) -> FakeBo:
        """The object at a kernel pointer; a real driver crashes where this one refuses."""
        for bo in self.bos.values():
            if bo.obj_addr == obj_addr:
                return bo
        raise _fail(errno.EINVAL)

    def _sync(self, a: Any) -> None:
        bo = self._object(a.obj_addr)
        if not bo.flags & rknpu.MEM_CACHEABLE or a.offset + a.size > bo.data.size:
            raise _fail(errno.EINVAL)

    def _submit(self, a: Any) -> None:
        if a.task_number == 0 or a.core_mask > 7 or not a.flags & rknpu.JOB_PC:
            raise _fail(errno.EINVAL)
        bo = self._object(a.task_obj_addr)
        if not bo.flags & rknpu.MEM_KERNEL_MAPPING:
            raise _fail(errno.EINVAL)
        if a.core_mask not in CORE_SETS:  # 5 and 6: never committed
            raise _fail(errno.ETIMEDOUT)
        cores = CORE_SETS[a.core_mask]
        cycles = done = 0
        for core in cores:
            slot = core + THREE_CORE_SLOT if len(cores) == 3 else core
            share = a.subcore_task[slot]
            ran, used, whole = self._list(core, bo, share.task_start, share.task_number, a.flags)
            done, cycles = done + ran, max(cycles, used)
            if not whole:
                a.task_counter = ran
                raise _fail(errno.ETIMEDOUT)
        a.task_counter = a.task_number
        a.hw_elapse_time = round(cycles / SAFE.clock_hz * 1e9)

    def _list(
        self, core: int, bo: FakeBo, start: int, count: int, flags: int
    ) -> tuple[int, int, bool]:
        """(tasks done, cycles, all done) of a core's share, in chunks of one start each."""
        size = ctypes.sizeof(rknpu.RknpuTask)
        if (start + count) * size > bo.data.size:
            raise _fail(errno.EINVAL)  # a real driver reads what lies behind
        done = cycles = 0
        while done < count:
            n = min(count - done, chip.TASKS_PER_START)
            first = self._task(bo, start + done)
            last = self._task(bo, start + done + n - 1)
            result = self.kernel.run(
                core,
                self.space,
                first.regcmd_addr,
                first.regcfg_amount + TAIL_WORDS,
                n,
                last.int_mask,
                bool(flags & rknpu.JOB_PINGPONG),
            )
            cycles += result.cycles
            if not result.completed:
                return done + result.tasks_done, cycles, False
            last.int_status = result.interrupt_status
            at = (start + done + n - 1) * size
            bo.data[at : at + size] = np.frombuffer(bytes(last), np.uint8)
            done += n
        return done, cycles, True

    def _task(self, bo: FakeBo, index: int) -> rknpu.RknpuTask:
        size = ctypes.sizeof(rknpu.RknpuTask)
        return rknpu.RknpuTask.from_buffer_copy(
            bo.data[index * size : (index + 1) * size].tobytes()
        )


# -- the kernel ------------------------------------------------------------------------------


@dataclass
class _Fault:
    request: int
    errno: int
    times: int
    skip: int


class FakeKernel:
    """A `Kernel` with an NPU in it.

    machine: executes the jobs; None makes one that behaves as silicon does.
    rocket: interface version of /dev/accel/accel0; None leaves the node out.
    rknpu: whether /dev/dri/renderD129 is there.
    old_mem_create: the vendor driver knows the 40-byte MEM_CREATE only.
    """

    def __init__(
        self,
        machine: Machine | None = None,
        *,
        rocket: tuple[int, int] | None = (0, 0),
        rknpu: bool = True,
        old_mem_create: bool = False,
    ) -> None:
        self.machine = machine or Machine(cores=chip.CORES, strict=False)
        self.rocket, self.old_mem_create = rocket, old_mem_create
        self.nodes: dict[str, Callable[[FakeKernel], FakeFile]] = {}
        if rknpu:
            self.nodes[RENDER_NODE] = RknpuFile
        if rocket is not None:
            self.nodes[ACCEL_NODE] = RocketFile
        self.files: dict[int, FakeFile] = {}
        self.mappings = 0
        self.hold = False
        self.log: list[int] = []  # requests, in order
        self._queue: list[_Queued] = []
        self._faults: list[_Fault] = []
        self._fds = itertools.count(1000)
        self._offset = 1 << 32

    # -- what tests do with it ---------------------------------------------------------------

    def inject(self, request: int, number: int, *, times: int = 1, skip: int = 0) -> None:
        """Let ``times`` calls of an ioctl fail with errno ``number``, after ``skip`` good ones."""
        self._faults.append(_Fault(request, number, times, skip))

    def release(self) -> None:
        """Run what was submitted while ``hold`` was set."""
        self.hold = False
        while self._queue:
            self._execute(self._queue.pop(0))

    def leaks(self) -> tuple[int, int, int]:
        """(open files, buffer objects, mappings): all zero when everything was given back."""
        return len(self.files), sum(len(f.bos) for f in self.files.values()), self.mappings

    # -- system calls ------------------------------------------------------------------------

    def glob(self, pattern: str) -> Sequence[str]:
        return sorted(fnmatch.filter(self.nodes, pattern))

    def open(self, path: str) -> int:
        if path not in self.nodes:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        fd = next(self._fds)
        self.files[fd] = self.nodes[path](self)
        return fd

    def close(self, fd: int) -> None:
        if fd not in self.files:
            raise _fail(errno.EBADF)
        self.files.pop(fd).close()

    def ioctl(self, fd: int, request: int, argument: Structure) -> None:
        if fd not in self.files:
            raise _fail(errno.EBADF)
        self.log.append(request)
        for f in self._faults:
            if f.request == request and f.times:
                if f.skip:
                    f.skip -= 1
                    continue
                f.times -= 1
                raise _fail(f.errno)
        call = self.files[fd].calls.get(request)
        if call is None:
            raise _fail(errno.ENOTTY)
        call(argument)

    def mmap(self, fd: int, nbytes: int, offset: int) -> FakeMapping:
        if fd not in self.files:
            raise _fail(errno.EBADF)
        for bo in self.files[fd].bos.values():
            if bo.offset == offset and 0 < nbytes <= bo.data.size:
                return FakeMapping(self, bo, nbytes)
        raise _fail(errno.EINVAL)

    # -- jobs --------------------------------------------------------------------------------

    def new_offset(self, nbytes: int) -> int:
        """A place in the files' mmap range."""
        at, self._offset = self._offset, self._offset + nbytes
        return at

    def start(self, job: _Queued) -> None:
        """Run a rocket job, or keep it while ``hold`` is set."""
        for bo in job.writes:
            bo.busy = True
        if self.hold:
            self._queue.append(job)
        else:
            self._execute(job)

    def run(
        self,
        core: int,
        space: AddressSpace,
        iova: int,
        words: int,
        tasks: int,
        int_mask: int,
        ping_pong: bool,
    ) -> RunResult:
        """One start.  A core that hangs or faults is reset, as both drivers do."""
        result = self.machine.run(
            core, space, iova, words, task_number=tasks, int_mask=int_mask, ping_pong=ping_pong
        )
        if not result.completed:
            self.machine.reset(core)
        return result

    def _execute(self, job: _Queued) -> None:
        job.file.execute(job)
        for bo in job.writes:
            bo.busy = False
