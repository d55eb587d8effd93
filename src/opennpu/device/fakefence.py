"""What tells when a job has ended: fences inside, files for programs.

Rules: public facts about dma-buf and sync_file, <linux/dma-buf.h> and <linux/sync_file.h>.
"""

from __future__ import annotations

import ctypes
import errno
import os
import threading
import time
from collections.abc import Callable, Sequence
from ctypes import Structure
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from opennpu.device.kernel import IOC_READ, IOC_WRITE, ioc

if TYPE_CHECKING:
    from opennpu.device.fakedrm import FakeBo

IN_PROGRESS = 1 << 63  # a fence's end, while nobody knows
LONGEST_NS = 10**12  # sleep at a time
USER_START = 4096  # no process has memory below
OPEN_SYNC = os.O_CLOEXEC | os.O_RDWR  # of sync files


def fail(number: int) -> OSError:
    return OSError(number, os.strerror(number))


class Fence:
    """Tells when a job has ended.

    Attributes:
        done: it has.
        stuck: it hangs, and will be ended by the watchdog.
        failed: it hung, and was ended by the watchdog.
        end_ns: CLOCK_MONOTONIC at which it ends on a board, by the cycle model.
    """

    def __init__(self) -> None:
        self.done = self.stuck = self.failed = False
        self.end_ns = IN_PROGRESS
        self._lock = threading.Lock()
        self._watchers: list[Callable[[], object]] = []

    def hang(self) -> None:
        self.stuck = True
        self._tell()

    def signal(self, end_ns: int = 0, failed: bool = False) -> None:
        self.end_ns, self.failed, self.done = end_ns, failed, True
        self._tell()

    def watch(self, watcher: Callable[[], object]) -> None:
        """Call ``watcher`` at every change, and once now if the job has ended."""
        with self._lock:
            self._watchers.append(watcher)
        if self.done:
            watcher()

    def unwatch(self, watcher: Callable[[], object]) -> None:
        with self._lock:
            self._watchers.remove(watcher)

    def _tell(self) -> None:
        with self._lock:
            watchers = list(self._watchers)
        for watcher in watchers:
            watcher()


# -- who calls -------------------------------------------------------------------------------


class Caller(Protocol):
    """The process behind an ioctl: memory, files, patience.  All raise OSError."""

    def read(self, address: int, nbytes: int) -> bytes:
        """copy_from_user.  EFAULT."""

    def write(self, address: int, data: bytes) -> None:
        """copy_to_user.  EFAULT."""

    def wait(self, fence: Fence, until_ns: int | None) -> None:
        """Sleep until the fence changes, until CLOCK_MONOTONIC is ``until_ns``, or less.  EINTR."""

    def install(self, file: OpenFile, flags: int) -> int:
        """A new file descriptor of the process, for ``file``; flags of open(2)."""

    def file(self, fd: int) -> OpenFile | None:
        """What a file descriptor of the process stands for; None: nothing of ours.  EBADF."""


def sleep_ns(until_ns: int | None) -> int:
    """How long to sleep for a deadline: not for ever, as no system call likes the numbers."""
    if until_ns is None:
        return LONGEST_NS
    return max(0, min(until_ns - time.monotonic_ns(), LONGEST_NS))


# -- files -----------------------------------------------------------------------------------


class Call(NamedTuple):
    """An ioctl of a driver."""

    struct: type[Structure]
    run: Callable[[Any, Caller], None]


class OpenFile:
    """What a file descriptor stands for."""

    calls: dict[int, Call]

    def raw_ioctl(self, request: int, argument: bytes, caller: Caller) -> tuple[int, bytes]:
        """(errno, what is copied back) of an ioctl with any number and any bytes."""
        call = self.calls.get(request)
        if call is None:
            return errno.ENOTTY, b""
        struct = call.struct.from_buffer_copy(argument)
        try:
            call.run(struct, caller)
        except OSError as e:
            return e.errno or errno.EIO, b""
        return 0, bytes(struct) if request >> 30 & IOC_READ else b""

    def lookup(self, nbytes: int, offset: int) -> tuple[FakeBo, int]:
        """(buffer object, offset in it) to be mapped.  EINVAL, ENODEV."""
        raise fail(errno.ENODEV)

    def size(self) -> int:
        """What lseek finds at the end.  ESPIPE."""
        raise fail(errno.ESPIPE)

    @property
    def poll_fence(self) -> Fence | None:
        """Fence that makes the file readable."""
        return None

    def opened(self) -> None:
        """One more file descriptor, in the sense of open(2), stands for it."""

    def close(self) -> None:
        """One less."""


class DmaBufSync(Structure):
    """struct dma_buf_sync."""

    _fields_ = [("flags", ctypes.c_uint64)]


class DmaBufExport(Structure):
    """struct dma_buf_export_sync_file."""

    _fields_ = [("flags", ctypes.c_uint32), ("fd", ctypes.c_int32)]


SYNC_RW, SYNC_END = 3, 4
DMA_BUF_SYNC = ioc(IOC_WRITE, "b", 0, ctypes.sizeof(DmaBufSync))
DMA_BUF_SET_NAME = [ioc(IOC_WRITE, "b", 1, nbytes) for nbytes in (4, 8)]  # older, newer
DMA_BUF_EXPORT = ioc(IOC_READ | IOC_WRITE, "b", 2, ctypes.sizeof(DmaBufExport))


class DmaBuf(OpenFile):
    """A buffer object that any process may map or import.  Keeps it alive."""

    def __init__(self, bo: FakeBo) -> None:
        self.bo, self._files = bo, 0
        bo.users += 1
        self.calls = {
            DMA_BUF_SYNC: Call(DmaBufSync, self._sync),
            DMA_BUF_EXPORT: Call(DmaBufExport, self._export),
            **{r: Call(Structure, lambda a, caller: None) for r in DMA_BUF_SET_NAME},
        }

    def lookup(self, nbytes: int, offset: int) -> tuple[FakeBo, int]:
        if nbytes <= 0 or offset + nbytes > self.bo.data.size:
            raise fail(errno.EINVAL)
        return self.bo, offset

    def size(self) -> int:
        return self.bo.data.size

    def opened(self) -> None:
        self._files += 1

    def close(self) -> None:
        self._files -= 1
        if self._files == 0:
            self.bo.shared = None
            self.bo.owner.drop(self.bo)

    def _sync(self, a: Any, caller: Caller) -> None:
        if a.flags & ~(SYNC_RW | SYNC_END) or not a.flags & SYNC_RW:
            raise fail(errno.EINVAL)
        if not a.flags & SYNC_END:
            while self.bo.fence is not None and not self.bo.fence.done:
                caller.wait(self.bo.fence, None)

    def _export(self, a: Any, caller: Caller) -> None:
        if a.flags & ~SYNC_RW or not a.flags & SYNC_RW:
            raise fail(errno.EINVAL)
        a.fd = caller.install(SyncFile([self.bo.fence] if self.bo.fence else []), OPEN_SYNC)


class SyncMerge(Structure):
    """struct sync_merge_data."""

    _fields_ = [
        ("name", ctypes.c_char * 32),
        ("fd2", ctypes.c_int32),
        ("fence", ctypes.c_int32),
        ("flags", ctypes.c_uint32),
        ("pad", ctypes.c_uint32),
    ]


class SyncFileInfo(Structure):
    """struct sync_file_info."""

    _fields_ = [
        ("name", ctypes.c_char * 32),
        ("status", ctypes.c_int32),
        ("flags", ctypes.c_uint32),
        ("num_fences", ctypes.c_uint32),
        ("pad", ctypes.c_uint32),
        ("sync_fence_info", ctypes.c_uint64),
    ]


class SyncFenceInfo(Structure):
    """struct sync_fence_info."""

    _fields_ = [
        ("obj_name", ctypes.c_char * 32),
        ("driver_name", ctypes.c_char * 32),
        ("status", ctypes.c_int32),
        ("flags", ctypes.c_uint32),
        ("timestamp_ns", ctypes.c_uint64),
    ]


SYNC_MERGE = ioc(IOC_READ | IOC_WRITE, ">", 3, ctypes.sizeof(SyncMerge))
SYNC_INFO = ioc(IOC_READ | IOC_WRITE, ">", 4, ctypes.sizeof(SyncFileInfo))


class SyncFile(OpenFile):
    """Readable when all its fences have ended."""

    def __init__(self, fences: Sequence[Fence]) -> None:
        self.fences = fences
        self._all = Fence()
        for f in fences:
            f.watch(self._changed)
        if not fences:
            self._all.signal()
        self.calls = {
            SYNC_MERGE: Call(SyncMerge, self._merge),
            SYNC_INFO: Call(SyncFileInfo, self._info),
        }

    def _changed(self) -> None:
        if not self._all.done and all(f.done for f in self.fences):
            self._all.signal(max(f.end_ns for f in self.fences), any(f.failed for f in self.fences))

    @property
    def poll_fence(self) -> Fence:
        return self._all

    def _merge(self, a: Any, caller: Caller) -> None:
        if a.flags or a.pad:
            raise fail(errno.EINVAL)
        other = caller.file(a.fd2)
        if not isinstance(other, SyncFile):
            raise fail(errno.ENOENT)
        a.fence = caller.install(SyncFile([*self.fences, *other.fences]), OPEN_SYNC)

    def _info(self, a: Any, caller: Caller) -> None:
        if a.flags or a.pad:
            raise fail(errno.EINVAL)
        a.name, a.status = b"opennpu", _status(self._all)
        if a.num_fences:
            if a.num_fences < len(self.fences):
                raise fail(errno.EINVAL)
            infos = [
                SyncFenceInfo(b"npu", b"opennpu", _status(f), 0, f.end_ns if f.done else 0)
                for f in self.fences
            ]
            caller.write(a.sync_fence_info, b"".join(map(bytes, infos)))
        a.num_fences = len(self.fences)


def _status(fence: Fence) -> int:
    if fence.failed:
        return -errno.ETIMEDOUT
    return int(fence.done)
