"""The mainline driver's ioctls, by interface version; sources: as `opennpu.device.rocket`.

A deadline is CLOCK_MONOTONIC of the board: a wait for a job that the emulator is at goes on
until that has ended, and then the cycle model says whether it ended in time.
"""

from __future__ import annotations

import ctypes
import errno
import time
from ctypes import Structure, c_uint32
from typing import TYPE_CHECKING, Any

from opennpu.device import rocket
from opennpu.device.fakecores import Start, Work
from opennpu.device.fakedrm import FakeBo, FakeFile, user_array
from opennpu.device.fakefence import Call, Caller, fail
from opennpu.device.kernel import DRM_COMMAND_BASE, iow
from opennpu.hw.rk3588.pc import DPU_DONE, PPU_DONE

if TYPE_CHECKING:
    from opennpu.device.fakekernel import FakeKernel

JOB_BATCHED, JOB_NO_DPU_DONE, JOB_PPU_DONE = 1, 2, 4
MAX_RANGES = 1024
RANGES_SINCE = (1, 5)
WATCHDOG_S = 0.5


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


class RocketFile(FakeFile):
    """IOVA from 0 upwards, one task per start unless batched, one core at a time."""

    name = "rocket"
    description = "rocket DRM"

    def __init__(self, kernel: FakeKernel) -> None:
        super().__init__(kernel)
        assert kernel.rocket is not None
        self.version = (*kernel.rocket, 0)
        self.stock = kernel.rocket < rocket.BATCHED_SINCE
        self.job_flags = 0 if self.stock else JOB_BATCHED
        if kernel.rocket >= rocket.PPU_SINCE:
            self.job_flags |= JOB_NO_DPU_DONE | JOB_PPU_DONE
        self.core = 0
        self.last: Work | None = None
        self.calls |= {
            rocket.CREATE_BO: Call(rocket.CreateBo, self._create),
            rocket.SUBMIT: Call(rocket.Submit, self._submit),
            rocket.PREP_BO: Call(rocket.PrepBo, self._prep),
            rocket.FINI_BO: Call(rocket.FiniBo, lambda a, caller: None),
        }
        if kernel.rocket >= RANGES_SINCE:
            self.calls |= {
                PREP_BO_RANGES: Call(PrepBoRanges, self._prep_ranges),
                FINI_BO_RANGES: Call(FiniBoRanges, self._fini_ranges),
            }

    def _create(self, a: Any, caller: Caller) -> None:
        if a.size == 0:
            raise fail(errno.EINVAL)
        a.handle, bo = self.new_bo(a.size)
        a.dma_address, a.offset = bo.iova, bo.offset

    # -- waiting -----------------------------------------------------------------------------

    def _prep(self, a: Any, caller: Caller) -> None:
        if a.reserved:
            raise fail(errno.EINVAL)
        self._wait(self.find(a.handle, errno.ENOENT), a.timeout_ns, caller)

    def _wait(self, bo: FakeBo, deadline_ns: int, caller: Caller) -> None:
        fence = bo.fence
        if fence is None or fence.done:
            return
        if deadline_ns <= time.monotonic_ns():
            raise fail(errno.EBUSY)
        while not fence.done:
            in_time = not (fence.stuck or self.kernel.hold)  # the emulator is at it, or will be
            if not in_time and time.monotonic_ns() >= deadline_ns:
                raise fail(errno.ETIMEDOUT)
            caller.wait(fence, None if in_time else deadline_ns)
        if fence.end_ns > deadline_ns:
            raise fail(errno.ETIMEDOUT)

    def _ranges(self, a: Any, caller: Caller) -> FakeBo:
        """The object, once its ranges are found sound; without ranges it is the whole of it."""
        if a.reserved or a.count > MAX_RANGES:
            raise fail(errno.EINVAL)
        bo = self.find(a.handle, errno.ENOENT)
        end = 0
        for raw in user_array(caller, a.ranges, a.count, ctypes.sizeof(BoRange)):
            r = BoRange.from_buffer_copy(raw)
            if r.size == 0 or r.offset < end or r.offset + r.size > bo.data.size:
                raise fail(errno.EINVAL)
            end = r.offset + r.size
        return bo

    def _prep_ranges(self, a: Any, caller: Caller) -> None:
        self._wait(self._ranges(a, caller), a.timeout_ns, caller)

    def _fini_ranges(self, a: Any, caller: Caller) -> None:
        self._ranges(a, caller)

    # -- jobs --------------------------------------------------------------------------------

    def _submit(self, a: Any, caller: Caller) -> None:
        if a.reserved or a.job_struct_size < ctypes.sizeof(rocket.RocketJob):
            raise fail(errno.EINVAL)
        for raw in user_array(caller, a.jobs, a.job_count, a.job_struct_size):
            try:
                work = self._job(raw, caller)
            except OSError:
                if not self.stock:
                    raise
                continue  # stock Linux drops the job and tells nobody
            if work is not None:
                self._push(work)

    def _push(self, work: Work) -> None:
        """To the core that the file's unfinished jobs are on, else to the idlest."""
        cores = self.kernel.cores
        if self.last is None or self.last.fence.done:
            self.core = cores.idlest()
        self.last = work
        cores.push(self.core, work)

    def _job(self, raw: bytes, caller: Caller) -> Work | None:
        known = ctypes.sizeof(rocket.RocketJob if self.stock else rocket.RocketJobFlags)
        self._no_tail(raw[known:])
        size = ctypes.sizeof(rocket.RocketJobFlags)
        job = rocket.RocketJobFlags.from_buffer_copy(raw[:known].ljust(size, b"\0"))
        if job.flags & ~self.job_flags or job.reserved:
            raise fail(errno.EINVAL)
        size = ctypes.sizeof(rocket.RocketTask)
        if job.task_count == 0 or job.task_struct_size < size:
            raise fail(errno.EINVAL)
        tasks = []
        for one in user_array(caller, job.tasks, job.task_count, job.task_struct_size):
            self._no_tail(one[size:])
            tasks.append(rocket.RocketTask.from_buffer_copy(one))
        if any(t.regcmd_count == 0 for t in tasks):
            raise fail(errno.EINVAL)
        reads = self._bos(job.in_bo_handles, job.in_bo_handle_count, caller)
        writes = self._bos(job.out_bo_handles, job.out_bo_handle_count, caller)
        if set(reads) & set(writes):
            return None  # success is signalled, nothing runs
        mask = 0 if job.flags & JOB_NO_DPU_DONE else DPU_DONE
        mask |= PPU_DONE if job.flags & JOB_PPU_DONE else 0
        if job.flags & JOB_BATCHED:
            starts = [Start(tasks[0].regcmd, tasks[0].regcmd_count, len(tasks), mask, True)]
        else:
            starts = [Start(t.regcmd, t.regcmd_count, 1, mask, True) for t in tasks]
        return Work(self, starts, WATCHDOG_S, writes, [*reads, *writes])

    def _no_tail(self, unknown: bytes) -> None:
        """Bytes behind what the interface knows must be zero; stock Linux does not look."""
        if not self.stock and any(unknown):
            raise fail(errno.E2BIG)

    def _bos(self, address: int, count: int, caller: Caller) -> list[FakeBo]:
        handles = user_array(caller, address, count, ctypes.sizeof(c_uint32))
        return [self.find(c_uint32.from_buffer_copy(h).value, errno.ENOENT) for h in handles]
