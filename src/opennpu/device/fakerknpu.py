"""The vendor driver's ioctls, 0.9.8; sources: as `opennpu.device.rknpu`."""

from __future__ import annotations

import ctypes
import errno
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from opennpu.device import rknpu
from opennpu.device.fakecores import Start, Work
from opennpu.device.fakedrm import FakeBo, FakeFile
from opennpu.device.fakefence import OPEN_SYNC, Call, Caller, SyncFile, fail
from opennpu.emu.timing import SAFE
from opennpu.hw.regcmd import TAIL_WORDS
from opennpu.hw.rk3588 import chip

if TYPE_CHECKING:
    from opennpu.device.fakekernel import FakeKernel

DRIVER_VERSION = 908  # 0.9.8
ACTIONS = {
    rknpu.ACTION_HW_VERSION: chip.HW_VERSION,
    rknpu.ACTION_DRV_VERSION: DRIVER_VERSION,
    2: round(SAFE.clock_hz),  # frequency
    6: 0,  # reset
    13: 0,  # clear the traffic counters
    18: 1,  # IOMMU is on
    19: 0,  # niceness
    20: 0,  # power on
    21: 0,  # power off
    22: 0,  # SRAM, all
    23: 0,  # SRAM, free
}
GET_DOMAIN, SET_DOMAIN = 24, 25
DOMAINS = 16
CORE_SETS = {0: (0,), 1: (0,), 2: (1,), 4: (2,), 3: (0, 1), 7: (0, 1, 2)}
THREE_CORE_SLOT = 2  # three-core jobs are read from subcore_task[2..4]
KERNEL_POINTERS = 0xFFFF_0000_0000_0000
JOB_NONBLOCK, JOB_FENCE_IN, JOB_FENCE_OUT = 0x2, 0x8, 0x10
TASK_BYTES = ctypes.sizeof(rknpu.RknpuTask)


class RknpuFile(FakeFile):
    """IOVA from the top downwards and different in all files, whole task lists per start."""

    name = "rknpu"
    description = "RKNPU driver"
    version = (0, 9, 8)
    sees_imports = True

    def __init__(self, kernel: FakeKernel) -> None:
        super().__init__(kernel)
        self.apertures = kernel.domains
        old = kernel.old_mem_create
        create = rknpu.MEM_CREATE_OLD if old else rknpu.MEM_CREATE
        self.calls |= {
            rknpu.ACTION: Call(rknpu.Action, self._action),
            rknpu.SUBMIT: Call(rknpu.Submit, self._submit),
            create: Call(rknpu.MemCreateOld if old else rknpu.MemCreate, self._create),
            rknpu.MEM_MAP: Call(rknpu.MemMap, self._map),
            rknpu.MEM_DESTROY: Call(rknpu.MemDestroy, self._gem_close),
            rknpu.MEM_SYNC: Call(rknpu.MemSync, self._sync),
        }

    def place(self, at: int, nbytes: int) -> int:
        return chip.IOVA_BYTES - at - nbytes

    def _action(self, a: Any, caller: Caller) -> None:
        if a.flags == GET_DOMAIN:
            a.value = self.kernel.domain
        elif a.flags == SET_DOMAIN:
            self.kernel.domain = self._domain(a.value)
        elif a.flags in ACTIONS:
            a.value = ACTIONS[a.flags]
        else:
            raise fail(errno.EINVAL)

    def _domain(self, number: int) -> int:
        """Each has 4 GiB of its own, for the whole driver.  EINVAL."""
        if not 0 <= number < DOMAINS:
            raise fail(errno.EINVAL)
        return number

    def _create(self, a: Any, caller: Caller) -> None:
        bo = self.bos.get(a.handle)
        if bo is None:  # else it was imported, and this is the way to learn its address
            if a.size == 0:
                raise fail(errno.EINVAL)
            if a.size > chip.IOVA_BYTES:
                raise fail(errno.ENOMEM)
            domain = self._domain(getattr(a, "iommu_domain_id", 0))  # older ones have only one
            a.handle, bo = self.new_bo(a.size, a.flags, domain)
            bo.obj_addr = KERNEL_POINTERS + bo.offset
        a.size, a.dma_addr = bo.data.size, bo.iova
        a.obj_addr, a.sram_size = bo.obj_addr, 0

    def _map(self, a: Any, caller: Caller) -> None:
        a.offset = self.find(a.handle, errno.EINVAL).offset

    def _object(self, obj_addr: int) -> FakeBo:
        """The object at a kernel pointer; a real driver crashes where this one refuses."""
        for bo in list(self.bos.values()):
            if bo.obj_addr == obj_addr:
                return bo
        raise fail(errno.EINVAL)

    def _sync(self, a: Any, caller: Caller) -> None:
        bo = self._object(a.obj_addr)
        if not bo.flags & rknpu.MEM_CACHEABLE or a.offset + a.size > bo.data.size:
            raise fail(errno.EINVAL)

    # -- jobs --------------------------------------------------------------------------------

    def _submit(self, a: Any, caller: Caller) -> None:
        if a.task_number == 0 or a.core_mask > 7 or not a.flags & rknpu.JOB_PC:
            raise fail(errno.EINVAL)
        if a.flags & JOB_FENCE_IN:
            self._wait_for(a.fence_fd, a.timeout, caller)
            a.fence_fd = -1
        domain = self.kernel.domain = self._domain(a.iommu_domain_id)
        bo = self._object(a.task_obj_addr)
        if not bo.flags & rknpu.MEM_KERNEL_MAPPING:
            raise fail(errno.EINVAL)
        if a.core_mask not in CORE_SETS:  # 5 and 6: never committed
            raise fail(errno.ETIMEDOUT)
        cores = CORE_SETS[a.core_mask] if a.core_mask else (self.kernel.cores.idlest(),)
        works = []
        for core in cores:
            slot = core + THREE_CORE_SLOT if len(cores) == 3 else core
            share = a.subcore_task[slot]
            starts = self._starts(bo, share.task_start, share.task_number, a.flags)
            work = Work(self, starts, a.timeout * 1e-3, domain=domain, holds=(bo,))
            works.append((share, work))
        for core, (_, work) in zip(cores, works, strict=True):
            self.kernel.cores.push(core, work)
        if a.flags & JOB_FENCE_OUT:
            a.fence_fd = caller.install(SyncFile([w.fence for _, w in works]), OPEN_SYNC)
        if a.flags & JOB_NONBLOCK:
            return
        for share, work in works:
            while not work.fence.done:
                caller.wait(work.fence, None)
            late = work.cycles / SAFE.clock_hz > a.timeout * 1e-3
            if late or not work.completed:
                a.task_counter = sum(r.tasks_done for r in work.results)
                raise fail(errno.ETIMEDOUT)
            self._write_back(bo, share.task_start, work)
        a.task_counter = a.task_number
        cycles = max(work.cycles for _, work in works)
        a.hw_elapse_time = round(cycles / SAFE.clock_hz * 1e9)

    def _wait_for(self, fd: int, timeout_ms: int, caller: Caller) -> None:
        """Until a sync file is signalled.  EBADF, EINVAL, ETIMEDOUT, EINTR."""
        file = caller.file(fd)
        if not isinstance(file, SyncFile):
            raise fail(errno.EINVAL)
        until_ns = time.monotonic_ns() + timeout_ms * 1_000_000
        while not file.poll_fence.done:
            # As in a wait for a job: the emulator may take its time, a hung job may not.
            in_time = not any(f.stuck for f in file.fences)
            if not in_time and time.monotonic_ns() >= until_ns:
                raise fail(errno.ETIMEDOUT)
            caller.wait(file.poll_fence, None if in_time else until_ns)

    def _starts(self, bo: FakeBo, start: int, count: int, flags: int) -> list[Start]:
        """A core's share of the task list, in chunks of one start each."""
        if (start + count) * TASK_BYTES > bo.data.size:
            raise fail(errno.EINVAL)  # a real driver reads what lies behind
        starts = []
        for at in range(start, start + count, chip.TASKS_PER_START):
            n = min(start + count - at, chip.TASKS_PER_START)
            first, last = self._task(bo, at), self._task(bo, at + n - 1)
            words = (first.regcfg_amount + TAIL_WORDS) & 0xFFFF_FFFF
            ping_pong = bool(flags & rknpu.JOB_PINGPONG)
            iova = first.regcmd_addr & 0xFFFF_FFFF  # the register has 32 bits
            starts.append(Start(iova, words, n, last.int_mask, ping_pong))
        return starts

    def _write_back(self, bo: FakeBo, start: int, work: Work) -> None:
        """int_status of the last task of each start."""
        at = start
        for one, result in zip(work.starts, work.results, strict=True):
            at += one.tasks
            last = self._task(bo, at - 1)
            last.int_status = result.interrupt_status
            where = slice((at - 1) * TASK_BYTES, at * TASK_BYTES)
            bo.data[where] = np.frombuffer(bytes(last), np.uint8)

    def _task(self, bo: FakeBo, index: int) -> rknpu.RknpuTask:
        where = slice(index * TASK_BYTES, (index + 1) * TASK_BYTES)
        return rknpu.RknpuTask.from_buffer_copy(bo.data[where].tobytes())


class RknpuCardFile(RknpuFile):
    """The same on a card node."""

    primary = True
