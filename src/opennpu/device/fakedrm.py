"""What both fake drivers share: files, buffer objects, fences, and DRM's way to take an ioctl.

Rules: public facts about drm_ioctl() and GEM.  An ioctl is known by its number; a structure that
is shorter than the driver's is filled up with zeros, a longer one is cut; the result is
copied back even where the call fails.
"""

from __future__ import annotations

import ctypes
import errno
import itertools
import os
import threading
import time
from collections.abc import Callable, Sequence
from ctypes import Structure
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from opennpu.device.base import Bytes
from opennpu.device.iova import IovaAllocator
from opennpu.device.kernel import (
    DRM_IOCTL_GEM_CLOSE,
    DRM_IOCTL_VERSION,
    IOC_READ,
    IOC_WRITE,
    DrmGemClose,
    DrmVersion,
)
from opennpu.emu.memory import AddressSpace
from opennpu.hw.layout import align
from opennpu.hw.rk3588 import chip

if TYPE_CHECKING:
    from opennpu.device.fakekernel import FakeKernel

USER_START = 4096  # no process has memory below
ARRAY_BYTES = 64 << 20  # longest array that a call takes; Linux gives up at some size, too
IN_PROGRESS = 1 << 63  # a fence's end, while nobody knows
LONGEST_NS = 10**12  # sleep at a time


def fail(number: int) -> OSError:
    return OSError(number, os.strerror(number))


# -- who calls -------------------------------------------------------------------------------


class Fence:
    """Tells when a job has ended.

    Attributes:
        done: it has.
        stuck: it hangs, and will be ended by the watchdog.
        end_ns: CLOCK_MONOTONIC at which it ends on a board, by the cycle model.
    """

    def __init__(self) -> None:
        self.done = self.stuck = False
        self.end_ns = IN_PROGRESS
        self._lock = threading.Lock()
        self._watchers: list[Callable[[], object]] = []

    def hang(self) -> None:
        self.stuck = True
        self._tell()

    def signal(self, end_ns: int = 0) -> None:
        self.end_ns, self.done = end_ns, True
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


class Caller(Protocol):
    """The process behind an ioctl: its memory, and its patience.  All raise OSError."""

    def read(self, address: int, nbytes: int) -> bytes:
        """copy_from_user.  EFAULT."""

    def write(self, address: int, data: bytes) -> None:
        """copy_to_user.  EFAULT."""

    def wait(self, fence: Fence, until_ns: int | None) -> None:
        """Sleep until the fence changes, until CLOCK_MONOTONIC is ``until_ns``, or less.  EINTR."""


class OwnProcess:
    """This process: only the null page is known to be bad."""

    def read(self, address: int, nbytes: int) -> bytes:
        if address < USER_START:
            raise fail(errno.EFAULT)
        return ctypes.string_at(address, nbytes)

    def write(self, address: int, data: bytes) -> None:
        if address < USER_START:
            raise fail(errno.EFAULT)
        ctypes.memmove(address, data, len(data))

    def wait(self, fence: Fence, until_ns: int | None) -> None:
        event = threading.Event()
        fence.watch(event.set)
        event.wait(sleep_ns(until_ns) * 1e-9)
        fence.unwatch(event.set)


def sleep_ns(until_ns: int | None) -> int:
    """How long to sleep for a deadline: not for ever, as no system call likes the numbers."""
    if until_ns is None:
        return LONGEST_NS
    return max(0, min(until_ns - time.monotonic_ns(), LONGEST_NS))


def user_array(caller: Caller, address: int, count: int, stride: int) -> list[bytes]:
    """``count`` structures of ``stride`` bytes."""
    if count * stride > ARRAY_BYTES:
        raise fail(errno.ENOMEM)
    raw = caller.read(address, count * stride) if count else b""
    return [raw[i * stride : (i + 1) * stride] for i in range(count)]


# -- buffer objects --------------------------------------------------------------------------


class FakeMemory:
    """The pages of a buffer object.  ``fd``: for others to map; -1 where they cannot."""

    def __init__(self, data: Bytes, fd: int = -1) -> None:
        self.data, self.fd = data, fd

    def image(self) -> bytes:
        """What is in it, without the zeros at its end."""
        return self.data.tobytes().rstrip(b"\0")

    def close(self) -> None:
        self.data = np.zeros(0, np.uint8)


class FakeBo:
    """A buffer object."""

    def __init__(
        self, handle: int, memory: FakeMemory, iova: int, offset: int, flags: int = 0
    ) -> None:
        self.handle, self.memory, self.iova, self.flags = handle, memory, iova, flags
        self.offset = offset  # to mmap it
        self.obj_addr = 0
        self.fence: Fence | None = None  # of the last job that writes it
        self.users = 1  # its handle, and jobs that list it

    @property
    def data(self) -> Bytes:
        return self.memory.data

    @property
    def busy(self) -> bool:
        """Written by a job that has not run yet."""
        return self.fence is not None and not self.fence.done


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


# -- files -----------------------------------------------------------------------------------


class Call(NamedTuple):
    """An ioctl of a driver."""

    struct: type[Structure]
    run: Callable[[Any, Caller], None]


class FakeFile:
    """An open DRM node: its buffer objects and its address space."""

    name = ""
    version = (0, 0, 0)

    def __init__(self, kernel: FakeKernel) -> None:
        self.kernel = kernel
        self.bos: dict[int, FakeBo] = {}
        self.handles = itertools.count(1)
        self.iovas = IovaAllocator()
        self.fresh = 0  # below it, addresses have been given out before
        self.mapped: list[FakeBo] = []  # all that the NPU sees
        self.is_open = True
        self._space: AddressSpace | None = None
        self.calls: dict[int, Call] = {
            DRM_IOCTL_VERSION: Call(DrmVersion, self._version),
            DRM_IOCTL_GEM_CLOSE: Call(DrmGemClose, self._gem_close),
        }

    # -- ioctls ------------------------------------------------------------------------------

    def raw_ioctl(self, request: int, argument: bytes, caller: Caller) -> tuple[int, bytes]:
        """(errno, what is copied back) of an ioctl with any number and any bytes."""
        number = request & 0xFF
        known = [r for r in self.calls if r & 0xFF == number]
        if not known:
            return errno.EINVAL, b""
        exact = request if request in known else known[0]
        call = self.calls[exact]
        directions, size = (request & exact) >> 30, request >> 16 & 0x3FFF
        data = argument[:size] if directions & IOC_WRITE else b""
        struct = call.struct.from_buffer_copy(data.ljust(ctypes.sizeof(call.struct), b"\0"))
        try:
            self.kernel.call(self, exact, struct, caller)
            result = 0
        except OSError as e:
            result = e.errno or errno.EIO
        back = bytes(struct) if directions & IOC_READ else b""
        return result, back.ljust(size, b"\0")[:size] if back else b""

    def _version(self, a: Any, caller: Caller) -> None:
        a.version_major, a.version_minor, a.version_patchlevel = self.version
        name = self.name.encode()
        if a.name_len and a.name:
            where = ctypes.cast(a.name, ctypes.c_void_p).value or 0
            caller.write(where, name[: a.name_len])
        a.name_len, a.date_len, a.desc_len = len(name), 0, 0

    def _gem_close(self, a: Any, caller: Caller) -> None:
        with self.kernel.lock:
            bo = self.bos.pop(a.handle, None)
        if bo is None:
            raise fail(errno.EINVAL)
        self.drop(bo)

    # -- buffer objects ----------------------------------------------------------------------

    def new_bo(self, nbytes: int, flags: int = 0) -> FakeBo:
        size = align(nbytes, chip.PAGE_BYTES)
        with self.kernel.lock:
            at = self.iovas.alloc(size, self.fresh)
            if at is None:
                at = self.iovas.alloc(size)  # only now: a stale address should hit nothing
            if at is None:
                raise fail(errno.ENOSPC)
            self.fresh = max(self.fresh, at + size)
            try:
                memory = self.kernel.new_memory(size)
            except (MemoryError, OSError, ValueError):
                self.iovas.free(at)
                raise fail(errno.ENOMEM) from None
            offset = self.kernel.new_offset(size)
            bo = FakeBo(next(self.handles), memory, self.place(at, size), offset, flags)
            self.bos[bo.handle] = bo
            self.mapped.append(bo)
            self._space = None
        return bo

    def place(self, at: int, nbytes: int) -> int:
        """The IOVA of a range that starts ``at`` in a space that is filled from 0 upwards."""
        return at

    def drop(self, bo: FakeBo) -> None:
        """Its handle or a job lets go of ``bo``; the last one frees it."""
        with self.kernel.lock:
            bo.users -= 1
            if bo.users:
                return
            if bo in self.mapped:
                self.mapped.remove(bo)
                self.iovas.free(self.place(bo.iova, bo.data.size))  # `place` is its own inverse
                self._space = None
            bo.memory.close()

    @property
    def space(self) -> AddressSpace:
        """What the NPU sees now.  A new object after every change, so that a job may keep it."""
        with self.kernel.lock:
            if self._space is None:
                self._space = self.kernel.new_space()
                for bo in self.mapped:
                    self._space.map(bo.iova, bo.data)
            return self._space

    def find(self, handle: int, number: int) -> FakeBo:
        """A buffer object, or errno ``number``."""
        bo = self.bos.get(handle)
        if bo is None:
            raise fail(number)
        return bo

    def close(self) -> None:
        self.is_open = False
        with self.kernel.lock:
            bos: Sequence[FakeBo] = list(self.bos.values())
            self.bos.clear()
        for bo in bos:
            self.drop(bo)
