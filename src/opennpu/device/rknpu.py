"""The vendor kernel driver (rknpu 0.9.x), and our `rkopnu`, which has the same interface.

Structures and behaviour: public facts about the vendor rknpu driver 0.9.8.
"""

from __future__ import annotations

import ctypes
import errno
import itertools
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import contextmanager, suppress
from ctypes import Structure, c_int32, c_int64, c_uint32, c_uint64

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
from opennpu.device.kernel import (
    DRM_COMMAND_BASE,
    Kernel,
    LinuxKernel,
    Mapping,
    failed,
    find_node,
    ioctl,
    iowr,
    open_node,
)
from opennpu.errors import DeviceError, DeviceFault, DeviceNotFound, DeviceTimeout
from opennpu.hw.layout import align
from opennpu.hw.regcmd import TAIL_WORDS
from opennpu.hw.rk3588 import chip, pc

DRIVER = "rknpu"


class Action(Structure):
    """struct rknpu_action."""

    _fields_ = [("flags", c_uint32), ("value", c_uint32)]


class MemCreate(Structure):
    """struct rknpu_mem_create, 0.9.x."""

    _fields_ = [
        ("handle", c_uint32),
        ("flags", c_uint32),
        ("size", c_uint64),
        ("obj_addr", c_uint64),
        ("dma_addr", c_uint64),
        ("sram_size", c_uint64),
        ("iommu_domain_id", c_int32),
        ("core_mask", c_uint32),
    ]


class MemCreateOld(Structure):
    """The same before IOMMU domains (Linux 5.10 drivers): 8 bytes shorter."""

    _fields_ = [
        ("handle", c_uint32),
        ("flags", c_uint32),
        ("size", c_uint64),
        ("obj_addr", c_uint64),
        ("dma_addr", c_uint64),
        ("sram_size", c_uint64),
    ]


class MemMap(Structure):
    """struct rknpu_mem_map."""

    _fields_ = [("handle", c_uint32), ("reserved", c_uint32), ("offset", c_uint64)]


class MemDestroy(Structure):
    """struct rknpu_mem_destroy."""

    _fields_ = [("handle", c_uint32), ("reserved", c_uint32), ("obj_addr", c_uint64)]


class MemSync(Structure):
    """struct rknpu_mem_sync."""

    _fields_ = [
        ("flags", c_uint32),
        ("reserved", c_uint32),
        ("obj_addr", c_uint64),
        ("offset", c_uint64),
        ("size", c_uint64),
    ]


class SubcoreTask(Structure):
    """struct rknpu_subcore_task: which part of the task list a core runs."""

    _fields_ = [("task_start", c_uint32), ("task_number", c_uint32)]


SUBCORES = 5


class Submit(Structure):
    """struct rknpu_submit."""

    _fields_ = [
        ("flags", c_uint32),
        ("timeout", c_uint32),  # ms
        ("task_start", c_uint32),
        ("task_number", c_uint32),
        ("task_counter", c_uint32),
        ("priority", c_int32),
        ("task_obj_addr", c_uint64),
        ("iommu_domain_id", c_uint32),
        ("reserved", c_uint32),
        ("task_base_addr", c_uint64),
        ("hw_elapse_time", c_int64),  # ns
        ("core_mask", c_uint32),
        ("fence_fd", c_int32),
        ("subcore_task", SubcoreTask * SUBCORES),
    ]


class RknpuTask(Structure):
    """struct rknpu_task, in the task BO."""

    _pack_ = 1
    _fields_ = [
        ("flags", c_uint32),
        ("op_idx", c_uint32),
        ("enable_mask", c_uint32),
        ("int_mask", c_uint32),
        ("int_clear", c_uint32),
        ("int_status", c_uint32),
        ("regcfg_amount", c_uint32),  # words without the tail
        ("regcfg_offset", c_uint32),
        ("regcmd_addr", c_uint64),
    ]


ACTION = iowr(DRM_COMMAND_BASE + 0, Action)
SUBMIT = iowr(DRM_COMMAND_BASE + 1, Submit)
MEM_CREATE = iowr(DRM_COMMAND_BASE + 2, MemCreate)
MEM_CREATE_OLD = iowr(DRM_COMMAND_BASE + 2, MemCreateOld)
MEM_MAP = iowr(DRM_COMMAND_BASE + 3, MemMap)
MEM_DESTROY = iowr(DRM_COMMAND_BASE + 4, MemDestroy)
MEM_SYNC = iowr(DRM_COMMAND_BASE + 5, MemSync)

ACTION_HW_VERSION, ACTION_DRV_VERSION = 0, 1
MEM_NON_CONTIGUOUS, MEM_CACHEABLE, MEM_KERNEL_MAPPING = 0x1, 0x2, 0x8
MEM_IOVA_ALIGNMENT = 0x400
DATA_FLAGS = MEM_NON_CONTIGUOUS | MEM_CACHEABLE | MEM_IOVA_ALIGNMENT
TASK_FLAGS = DATA_FLAGS | MEM_KERNEL_MAPPING  # the driver reads the task list itself
SYNC_TO_DEVICE, SYNC_FROM_DEVICE = 1, 2
JOB_PC, JOB_PINGPONG = 0x1, 0x4
AUTO_CORE = 0
INT_CLEAR_ALL = pc.INTERRUPT_MASK.reset
NO_FENCE = -1
TASK_BYTES = ctypes.sizeof(RknpuTask)


class RknpuBuffer:
    """A GEM object of the vendor driver, mapped here and in the NPU's address space."""

    def __init__(self, device: RknpuDevice, nbytes: int, flags: int) -> None:
        self.nbytes = nbytes
        self._device: RknpuDevice | None = None
        created = device._create(align(nbytes, chip.PAGE_BYTES), flags)
        self.iova, self.handle = int(created.dma_addr), int(created.handle)
        self.obj_addr = int(created.obj_addr)
        try:
            if self.iova + nbytes > chip.IOVA_BYTES:
                raise DeviceError(
                    device.info.name,
                    f"the driver placed {nbytes} bytes at {self.iova:#x}, "
                    f"the NPU reaches {chip.IOVA_BYTES:#x}",
                    "Enable the NPU's IOMMU in the device tree",
                )
            place = MemMap(handle=self.handle)
            device._call("MEM_MAP", MEM_MAP, place)
            self._mapping: Mapping = device._mmap(nbytes, int(place.offset))
        except DeviceError:
            with suppress(DeviceError):  # the first error is the one to tell
                device._destroy(self)
            raise
        self._device = device

    @contextmanager
    def cpu(self) -> Iterator[Bytes]:
        self._sync(SYNC_FROM_DEVICE)
        try:
            yield self._mapping.view[: self.nbytes]
        finally:
            self._sync(SYNC_TO_DEVICE)

    def _sync(self, direction: int) -> None:
        if self._device is None:
            raise freed(DRIVER)
        argument = MemSync(flags=direction, obj_addr=self.obj_addr, size=self.nbytes)
        self._device._call("MEM_SYNC", MEM_SYNC, argument)

    def free(self) -> None:
        if self._device is not None:
            device, self._device = self._device, None
            self._mapping.close()
            device._buffers.discard(self)
            device._destroy(self)


class RknpuDevice:
    """A board with the vendor driver.

    path: a DRM node; None searches /dev/dri.
    Raises DeviceNotFound, DeviceError.
    """

    def __init__(self, path: str | None = None, *, kernel: Kernel | None = None) -> None:
        self.kernel = kernel or LinuxKernel()
        path = path or find_node(self.kernel, DRIVER)
        self.info = DeviceInfo(DRIVER, path=path, measured=True)
        self._fd, _ = open_node(self.kernel, path, DRIVER)
        self._is_open = True
        self._old_create = False
        self._buffers: set[RknpuBuffer] = set()
        self._task_lists: list[RknpuBuffer] = []  # free ones
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._workers: dict[int | None, ThreadPoolExecutor] = {}
        try:
            self.info = self._identify(path)
        except BaseException:
            self.close()
            raise

    def _identify(self, path: str) -> DeviceInfo:
        hw, drv = self._action(ACTION_HW_VERSION), self._action(ACTION_DRV_VERSION)
        if hw != chip.HW_VERSION:
            raise DeviceNotFound(
                path,
                f"its NPU has version {hw:#x}, an RK3588 has {chip.HW_VERSION:#x}",
                "Use a board with an RK3588",
            )
        version = f"{drv // 10000}.{drv // 100 % 100}.{drv % 100}"
        return DeviceInfo(
            DRIVER,
            driver=f"{DRIVER} {version}",
            path=path,
            cores=chip.CORES,
            abi="vendor",
            measured=True,
        )

    def alloc(self, nbytes: int, kind: Kind = "io") -> RknpuBuffer:
        if not self._is_open:
            raise closed(DRIVER)
        if nbytes < 1:
            raise DeviceError(DRIVER, f"{nbytes} bytes were asked for", "Ask for at least 1 byte")
        return self._alloc(nbytes, DATA_FLAGS)

    def submit(self, job: Job) -> Ticket:
        if not self._is_open:
            raise closed(DRIVER)
        check_job(self.info, job)
        tasks = self._task_list(job)
        with self._lock:
            worker = self._workers.get(job.core)
            if worker is None:  # one thread per core keeps each core's jobs in order
                worker = self._workers[job.core] = ThreadPoolExecutor(1, "opennpu-rknpu")
        return Ticket(next(self._numbers), job, {"future": worker.submit(self._run, job, tasks)})

    def wait(self, ticket: Ticket, timeout_s: float | None = None) -> JobResult:
        """The driver ends the job at its own time-out; ``timeout_s`` only ends the waiting."""
        future: Future[JobResult] = ticket.state["future"]
        try:
            return future.result(timeout_s)
        except FutureTimeout:
            raise DeviceTimeout(
                ticket.job.tasks[0].node or DRIVER,
                f"its job is still running after {timeout_s} s",
                "Wait longer, or give the job a shorter time-out",
            ) from None

    def close(self) -> None:
        if not self._is_open:
            return
        for worker in self._workers.values():
            worker.shutdown(wait=True, cancel_futures=True)
        for buffer in tuple(self._buffers):
            with suppress(DeviceError):  # closing the node frees what is left
                buffer.free()
        self._is_open = False
        self.kernel.close(self._fd)

    # -- jobs --------------------------------------------------------------------------------

    def _task_list(self, job: Job) -> RknpuBuffer:
        """A task BO that holds the job's tasks: one that is free, or a new one."""
        need = len(job.tasks) * TASK_BYTES
        with self._lock:
            fits = [b for b in self._task_lists if b.nbytes >= need]
            if fits:
                self._task_lists.remove(fits[0])
        buffer = fits[0] if fits else self._alloc(align(need, chip.PAGE_BYTES), TASK_FLAGS)
        array = (RknpuTask * len(job.tasks))()
        for entry, t in zip(array, job.tasks, strict=True):
            entry.enable_mask = t.units
            entry.int_mask = t.int_mask
            entry.int_clear = INT_CLEAR_ALL
            entry.regcfg_amount = t.words - TAIL_WORDS
            entry.regcmd_addr = t.regcmd_iova
        try:
            with buffer.cpu() as mem:
                mem[:need] = np.frombuffer(bytes(array), np.uint8)
        except BaseException:
            self._give_back(buffer)
            raise
        return buffer

    def _give_back(self, tasks: RknpuBuffer) -> None:
        with self._lock:
            self._task_lists.append(tasks)

    def _run(self, job: Job, tasks: RknpuBuffer) -> JobResult:
        """Submit and block, in a worker thread: not every driver is built with fences."""
        n = len(job.tasks)
        argument = Submit(
            flags=JOB_PC | JOB_PINGPONG,
            timeout=max(1, round(job.timeout_s * 1000)),
            task_number=n,
            task_obj_addr=tasks.obj_addr,
            core_mask=AUTO_CORE if job.core is None else CORE_MASKS[job.core],
            fence_fd=NO_FENCE,
        )
        # A job on one core is read from the slot of that core; which one the driver picks by
        # itself is not known before.
        for core in range(chip.CORES):
            if job.core in (None, core):
                argument.subcore_task[core].task_number = n
        began = time.monotonic()
        try:
            self.kernel.ioctl(self._fd, SUBMIT, argument)  # never repeated: it may have run
        except OSError as e:
            raise self._failure(job, int(argument.task_counter), e) from e
        finally:
            self._give_back(tasks)
        done = int(argument.task_counter)
        if done != n:
            raise DeviceFault(
                _node(job, done),
                f"the driver reports success after {done} of {n} tasks",
                "Check dmesg for what the driver says",
            )
        ns = int(argument.hw_elapse_time)
        return JobResult(done, ns * 1e-9 if ns > 0 else time.monotonic() - began, True)

    def _failure(self, job: Job, done: int, error: OSError) -> DeviceError:
        if error.errno == errno.ETIMEDOUT:
            return DeviceTimeout(
                _node(job, done),
                f"its job stopped after {done} of {len(job.tasks)} tasks and was ended by the "
                f"driver after {job.timeout_s} s or more",
                "Check dmesg for DMA faults; the strict emulator names programs that hang",
            )
        return failed(_node(job, done), "SUBMIT", error)  # whether it runs is not known

    # -- system calls ------------------------------------------------------------------------

    def _alloc(self, nbytes: int, flags: int) -> RknpuBuffer:
        buffer = RknpuBuffer(self, nbytes, flags)
        self._buffers.add(buffer)
        return buffer

    def _create(self, nbytes: int, flags: int) -> MemCreate | MemCreateOld:
        """MEM_CREATE, with the shorter structure where the driver knows only that."""
        refusal: OSError | None = None
        if not self._old_create:
            new = MemCreate(flags=flags, size=nbytes)
            try:
                ioctl(self.kernel, self._fd, MEM_CREATE, new)
                return new
            except OSError as e:
                if e.errno not in (errno.ENOTTY, errno.EINVAL):
                    raise failed(self.info.name, f"MEM_CREATE of {nbytes} bytes", e) from e
                refusal = e
        old = MemCreateOld(flags=flags, size=nbytes)
        try:
            ioctl(self.kernel, self._fd, MEM_CREATE_OLD, old)
        except OSError as e:
            first = refusal or e
            raise failed(self.info.name, f"MEM_CREATE of {nbytes} bytes", first) from e
        self._old_create = True
        return old

    def _destroy(self, buffer: RknpuBuffer) -> None:
        argument = MemDestroy(handle=buffer.handle, obj_addr=buffer.obj_addr)
        self._call("MEM_DESTROY", MEM_DESTROY, argument)

    def _mmap(self, nbytes: int, offset: int) -> Mapping:
        try:
            return self.kernel.mmap(self._fd, align(nbytes, chip.PAGE_BYTES), offset)
        except OSError as e:
            raise failed(self.info.name, f"mmap of {nbytes} bytes", e) from e

    def _action(self, action: int) -> int:
        argument = Action(flags=action)
        self._call("ACTION", ACTION, argument)
        return int(argument.value)

    def _call(self, name: str, request: int, argument: Structure) -> None:
        try:
            ioctl(self.kernel, self._fd, request, argument)
        except OSError as e:
            raise failed(self.info.name, name, e) from e


CORE_MASKS = (1, 2, 4)


def _node(job: Job, done: int) -> str:
    """The name of the node whose task did not end."""
    return job.tasks[min(done, len(job.tasks) - 1)].node or DRIVER
