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
from ctypes import POINTER, Structure, c_char, c_int, c_size_t, c_uint32, c_uint64
from typing import TYPE_CHECKING, Any

import numpy as np

from opennpu.device.base import Bytes
from opennpu.device.fakefence import (
    USER_START,
    Call,
    Caller,
    DmaBuf,
    Fence,
    OpenFile,
    fail,
    sleep_ns,
)
from opennpu.device.iova import IovaAllocator
from opennpu.device.kernel import (
    DRM_IOCTL_GEM_CLOSE,
    DRM_IOCTL_VERSION,
    DRM_MAGIC,
    IOC_READ,
    IOC_WRITE,
    DrmGemClose,
    DrmVersion,
    iowr,
)
from opennpu.emu.memory import AddressSpace
from opennpu.hw.layout import align
from opennpu.hw.rk3588 import chip

if TYPE_CHECKING:
    from opennpu.device.fakekernel import FakeKernel

ARRAY_BYTES = 64 << 20  # longest array that a call takes; Linux gives up at some size, too

CAP_PRIME, CAP_TIMESTAMP_MONOTONIC, CAP_SYNCOBJ, CAP_SYNCOBJ_TIMELINE = 0x5, 0x6, 0x13, 0x14
CAPABILITIES = {
    CAP_PRIME: 3,  # import and export
    CAP_TIMESTAMP_MONOTONIC: 1,
    CAP_SYNCOBJ: 0,
    CAP_SYNCOBJ_TIMELINE: 0,
}
"""DRM_IOCTL_GET_CAP of a driver without displays."""


# -- what every DRM driver has, beside what our own runtime calls ----------------------------


class DrmUnique(Structure):
    """struct drm_unique, <drm/drm.h>."""

    _fields_ = [("unique_len", c_size_t), ("unique", POINTER(c_char))]


class DrmGemFlink(Structure):
    """struct drm_gem_flink, <drm/drm.h>."""

    _fields_ = [("handle", c_uint32), ("name", c_uint32)]


class DrmGemOpen(Structure):
    """struct drm_gem_open, <drm/drm.h>."""

    _fields_ = [("name", c_uint32), ("handle", c_uint32), ("size", c_uint64)]


class DrmGetCap(Structure):
    """struct drm_get_cap, <drm/drm.h>."""

    _fields_ = [("capability", c_uint64), ("value", c_uint64)]


class DrmPrime(Structure):
    """struct drm_prime_handle, <drm/drm.h>."""

    _fields_ = [("handle", c_uint32), ("flags", c_uint32), ("fd", c_int)]


GET_UNIQUE = iowr(0x01, DrmUnique)
GEM_FLINK = iowr(0x0A, DrmGemFlink)
GEM_OPEN = iowr(0x0B, DrmGemOpen)
GET_CAP = iowr(0x0C, DrmGetCap)
PRIME_HANDLE_TO_FD = iowr(0x2D, DrmPrime)
PRIME_FD_TO_HANDLE = iowr(0x2E, DrmPrime)


# -- who calls -------------------------------------------------------------------------------


class OwnProcess:
    """This process: only the null page is known to be bad."""

    def __init__(self, kernel: FakeKernel) -> None:
        self._kernel = kernel

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

    def install(self, file: OpenFile, flags: int) -> int:
        return self._kernel.install(file)

    def file(self, fd: int) -> OpenFile | None:
        return self._kernel.file(fd)


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
        self,
        owner: FakeFile,
        memory: FakeMemory,
        iova: int,
        offset: int,
        flags: int,
        domain: int,
    ) -> None:
        self.owner, self.handle = owner, 0  # the file that made it, and its first handle
        self.memory, self.iova, self.flags = memory, iova, flags
        self.domain = domain  # the IOMMU's, of those that the driver has
        self.offset = offset  # to mmap it
        self.obj_addr = 0
        self.fence: Fence | None = None  # of the last job that writes it
        self.users = 0  # handles, dma-bufs, and jobs that list it
        self.handles = 0
        self.name = 0  # of GEM_FLINK
        self.shared: DmaBuf | None = None
        self.seen_by: list[FakeFile] = []  # whose jobs see it

    @property
    def data(self) -> Bytes:
        return self.memory.data

    @property
    def busy(self) -> bool:
        """Written by a job that has not run yet."""
        return self.fence is not None and not self.fence.done


class FakeMapping:
    """A mapping of a buffer object."""

    def __init__(self, kernel: FakeKernel, view: Bytes) -> None:
        self.view = view
        self._kernel: FakeKernel | None = kernel
        kernel.mappings += 1

    def close(self) -> None:
        if self._kernel is not None:
            self._kernel.mappings -= 1
            self._kernel = None
        self.view = np.zeros(0, np.uint8)


# -- files -----------------------------------------------------------------------------------


class Aperture:
    """IOVAs for buffer objects.  A stale address should hit nothing, so none is given out twice
    before all others were; an empty aperture begins anew."""

    def __init__(self) -> None:
        self._allocator = IovaAllocator()
        self._fresh = self._used = 0

    def alloc(self, nbytes: int) -> int:
        """A range, from 0 upwards.  ENOSPC."""
        at = self._allocator.alloc(nbytes, self._fresh)
        if at is None:
            at = self._allocator.alloc(nbytes)
        if at is None:
            raise fail(errno.ENOSPC)
        self._fresh = max(self._fresh, at + nbytes)
        self._used += 1
        return at

    def free(self, at: int) -> None:
        self._allocator.free(at)
        self._used -= 1
        if self._used == 0:
            self._fresh = 0


class FakeFile(OpenFile):
    """An open DRM node: its handles, and what its jobs see.

    Attributes:
        primary: a card node; only that gives names to buffer objects.
    """

    name = ""
    description = ""
    version = (0, 0, 0)
    primary = False
    sees_imports = False  # whether its jobs see what others made

    def __init__(self, kernel: FakeKernel) -> None:
        self.kernel = kernel
        self.bos: dict[int, FakeBo] = {}  # by handle
        self.handles = itertools.count(1)
        self.apertures = {0: Aperture()}  # by domain
        self.mapped: list[FakeBo] = []  # all that the NPU sees
        self.is_open = True
        self._spaces: dict[int, AddressSpace] = {}
        self.calls = {
            DRM_IOCTL_VERSION: Call(DrmVersion, self._version),
            GET_UNIQUE: Call(DrmUnique, self._unique),
            DRM_IOCTL_GEM_CLOSE: Call(DrmGemClose, self._gem_close),
            GEM_FLINK: Call(DrmGemFlink, self._flink),
            GEM_OPEN: Call(DrmGemOpen, self._gem_open),
            GET_CAP: Call(DrmGetCap, self._get_cap),
            PRIME_HANDLE_TO_FD: Call(DrmPrime, self._export),
            PRIME_FD_TO_HANDLE: Call(DrmPrime, self._import),
        }

    # -- ioctls ------------------------------------------------------------------------------

    def raw_ioctl(self, request: int, argument: bytes, caller: Caller) -> tuple[int, bytes]:
        if request >> 8 & 0xFF != ord(DRM_MAGIC):
            return errno.ENOTTY, b""
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
        """Each string is copied as far as there is room, and its length is told."""
        a.version_major, a.version_minor, a.version_patchlevel = self.version
        for field, text in (("name", self.name), ("date", "0"), ("desc", self.description)):
            room = getattr(a, f"{field}_len")
            where = ctypes.cast(getattr(a, field), ctypes.c_void_p).value or 0
            if room and where:
                caller.write(where, text.encode()[:room])
            setattr(a, f"{field}_len", len(text))

    def _unique(self, a: Any, caller: Caller) -> None:
        a.unique_len = 0  # nobody asked for an interface version

    def _get_cap(self, a: Any, caller: Caller) -> None:
        if a.capability not in CAPABILITIES:
            raise fail(errno.EOPNOTSUPP)  # those of displays
        a.value = CAPABILITIES[a.capability]

    def _gem_close(self, a: Any, caller: Caller) -> None:
        self.close_handle(a.handle)

    # -- sharing -----------------------------------------------------------------------------

    def _flink(self, a: Any, caller: Caller) -> None:
        if not self.primary:
            raise fail(errno.EACCES)
        with self.kernel.lock:
            bo = self.find(a.handle, errno.ENOENT)
            bo.name = bo.name or next(self.kernel.names)
            self.kernel.named[bo.name] = bo
        a.name = bo.name

    def _gem_open(self, a: Any, caller: Caller) -> None:
        if not self.primary:
            raise fail(errno.EACCES)
        with self.kernel.lock:
            bo = self.kernel.named.get(a.name)
            if bo is None:
                raise fail(errno.ENOENT)
            a.handle, a.size = self.new_handle(bo), bo.data.size

    def _export(self, a: Any, caller: Caller) -> None:
        if a.flags & ~(os.O_CLOEXEC | os.O_RDWR):
            raise fail(errno.EINVAL)
        with self.kernel.lock:
            bo = self.find(a.handle, errno.ENOENT)
            bo.shared = bo.shared or DmaBuf(bo)
        a.fd = caller.install(bo.shared, a.flags)

    def _import(self, a: Any, caller: Caller) -> None:
        shared = caller.file(a.fd)
        if not isinstance(shared, DmaBuf) or shared.bo.owner.name != self.name:
            raise fail(errno.EINVAL)
        with self.kernel.lock:
            known = (h for h, bo in self.bos.items() if bo is shared.bo)
            a.handle = next(known, 0) or self.new_handle(shared.bo)

    # -- buffer objects ----------------------------------------------------------------------

    def new_bo(self, nbytes: int, flags: int = 0, domain: int = 0) -> tuple[int, FakeBo]:
        """(handle, object).  ENOSPC, ENOMEM."""
        size = align(nbytes, chip.PAGE_BYTES)
        with self.kernel.lock:
            at = self.apertures[domain].alloc(size)
            try:
                memory = self.kernel.new_memory(size)
            except (MemoryError, OSError, ValueError):
                self.apertures[domain].free(at)
                raise fail(errno.ENOMEM) from None
            offset = self.kernel.new_offset(size)
            bo = FakeBo(self, memory, self.place(at, size), offset, flags, domain)
            self._see(bo)
            bo.handle = self.new_handle(bo)
        return bo.handle, bo

    def place(self, at: int, nbytes: int) -> int:
        """The IOVA of a range that starts ``at`` in a space that is filled from 0 upwards."""
        return at

    def new_handle(self, bo: FakeBo) -> int:
        handle = next(self.handles)
        self.bos[handle] = bo
        bo.users += 1
        bo.handles += 1
        if self.sees_imports:
            self._see(bo)
        return handle

    def close_handle(self, handle: int) -> None:
        """EINVAL."""
        with self.kernel.lock:
            bo = self.bos.pop(handle, None)
            if bo is None:
                raise fail(errno.EINVAL)
            bo.handles -= 1
            if bo.handles == 0:
                self.kernel.named.pop(bo.name, None)
                bo.name = 0
            bo.owner.drop(bo)

    def drop(self, bo: FakeBo) -> None:
        """A handle, a dma-buf or a job lets go of ``bo``, which we made; the last one frees it."""
        with self.kernel.lock:
            bo.users -= 1
            if bo.users:
                return
            for file in bo.seen_by:
                file.mapped.remove(bo)
                file._spaces.pop(bo.domain, None)
            self.apertures[bo.domain].free(
                self.place(bo.iova, bo.data.size)
            )  # `place` is its own inverse
            bo.memory.close()

    def _see(self, bo: FakeBo) -> None:
        if self not in bo.seen_by:
            bo.seen_by.append(self)
            self.mapped.append(bo)
            self._spaces.pop(bo.domain, None)

    def space(self, domain: int) -> AddressSpace:
        """What the NPU sees now.  A new object after every change, so that a job may keep it."""
        with self.kernel.lock:
            if domain not in self._spaces:
                space = self._spaces[domain] = self.kernel.new_space()
                for bo in self.mapped:
                    if bo.domain == domain:
                        space.map(bo.iova, bo.data)
            return self._spaces[domain]

    def find(self, handle: int, number: int) -> FakeBo:
        """A buffer object, or errno ``number``."""
        bo = self.bos.get(handle)
        if bo is None:
            raise fail(number)
        return bo

    def lookup(self, nbytes: int, offset: int) -> tuple[FakeBo, int]:
        with self.kernel.lock:
            for bo in self.bos.values():
                if bo.offset == offset and 0 < nbytes <= bo.data.size:
                    return bo, 0
        raise fail(errno.EINVAL)

    def size(self) -> int:
        return 0

    def close(self) -> None:
        self.is_open = False
        for handle in list(self.bos):
            self.close_handle(handle)
