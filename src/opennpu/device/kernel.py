"""The operating system, as far as a device needs it: open, ioctl, mmap.

It is passed in, so that a `FakeKernel` can stand here.  DRM ioctl numbers are computed from
their structures as <asm-generic/ioctl.h> does; the tests compare them with the published ones.
"""

from __future__ import annotations

import ctypes
import errno
import glob
import mmap
import os
from collections.abc import Sequence
from contextlib import suppress
from ctypes import POINTER, Structure, c_char, c_int, c_size_t, c_uint32
from typing import NamedTuple, Protocol

import numpy as np

from opennpu.device.base import Bytes
from opennpu.errors import DeviceError, DeviceNotFound

IOC_WRITE, IOC_READ = 1, 2
DRM_MAGIC = "d"
DRM_COMMAND_BASE = 0x40


def ioc(direction: int, magic: str, number: int, size: int) -> int:
    """_IOC of <asm-generic/ioctl.h>: direction 31:30, size 29:16, magic 15:8, number 7:0."""
    return direction << 30 | size << 16 | ord(magic) << 8 | number


def iow(number: int, struct: type[Structure]) -> int:
    """DRM_IOW: the kernel reads ``struct``."""
    return ioc(IOC_WRITE, DRM_MAGIC, number, ctypes.sizeof(struct))


def iowr(number: int, struct: type[Structure]) -> int:
    """DRM_IOWR: the kernel reads and writes ``struct``."""
    return ioc(IOC_READ | IOC_WRITE, DRM_MAGIC, number, ctypes.sizeof(struct))


class Mapping(Protocol):
    """Device memory in our address space."""

    view: Bytes

    def close(self) -> None:
        """Unmap.  ``view`` must not be used afterwards."""


class Kernel(Protocol):
    """System calls.  All raise OSError with an errno."""

    def glob(self, pattern: str) -> Sequence[str]: ...

    def open(self, path: str) -> int: ...

    def close(self, fd: int) -> None: ...

    def ioctl(self, fd: int, request: int, argument: Structure) -> None: ...

    def mmap(self, fd: int, nbytes: int, offset: int) -> Mapping: ...


class LinuxMapping:
    """An mmap of a device node."""

    def __init__(self, fd: int, nbytes: int, offset: int) -> None:
        self._mmap = mmap.mmap(
            fd, nbytes, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE, offset=offset
        )
        self.view: Bytes = np.frombuffer(self._mmap, np.uint8)

    def close(self) -> None:
        self.view = np.zeros(0, np.uint8)
        with suppress(BufferError):  # a user still holds a view; the memory goes when that does
            self._mmap.close()


class LinuxKernel:
    """The real one."""

    def __init__(self) -> None:
        # Not fcntl.ioctl: that loses what the kernel wrote when the call fails, and the vendor
        # driver reports the task counter of a failed job in that way.
        self._ioctl = ctypes.CDLL(None, use_errno=True).ioctl

    def glob(self, pattern: str) -> Sequence[str]:
        return sorted(glob.glob(pattern))

    def open(self, path: str) -> int:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)

    def close(self, fd: int) -> None:
        os.close(fd)

    def ioctl(self, fd: int, request: int, argument: Structure) -> None:
        if self._ioctl(fd, ctypes.c_ulong(request), ctypes.byref(argument)) < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))

    def mmap(self, fd: int, nbytes: int, offset: int) -> LinuxMapping:
        return LinuxMapping(fd, nbytes, offset)


def ioctl(kernel: Kernel, fd: int, request: int, argument: Structure) -> None:
    """`Kernel.ioctl`, again after a signal, as libdrm does.  For calls that may be repeated."""
    while True:
        try:
            return kernel.ioctl(fd, request, argument)
        except OSError as e:
            if e.errno not in (errno.EINTR, errno.EAGAIN):
                raise


# -- what every DRM driver has ---------------------------------------------------------------


class DrmVersion(Structure):
    """struct drm_version, <drm/drm.h>."""

    _fields_ = [
        ("version_major", c_int),
        ("version_minor", c_int),
        ("version_patchlevel", c_int),
        ("name_len", c_size_t),
        ("name", POINTER(c_char)),
        ("date_len", c_size_t),
        ("date", POINTER(c_char)),
        ("desc_len", c_size_t),
        ("desc", POINTER(c_char)),
    ]


class DrmGemClose(Structure):
    """struct drm_gem_close, <drm/drm.h>."""

    _fields_ = [("handle", c_uint32), ("pad", c_uint32)]


DRM_IOCTL_VERSION = iowr(0x00, DrmVersion)
DRM_IOCTL_GEM_CLOSE = iow(0x09, DrmGemClose)
NAME_BYTES = 64


class Version(NamedTuple):
    """What a DRM driver says about itself."""

    name: str
    major: int
    minor: int
    patch: int


def drm_version(kernel: Kernel, fd: int) -> Version:
    """DRM_IOCTL_VERSION.  Raises OSError where ``fd`` is no DRM node."""
    text = (c_char * NAME_BYTES)()
    argument = DrmVersion(name_len=NAME_BYTES, name=ctypes.cast(text, POINTER(c_char)))
    ioctl(kernel, fd, DRM_IOCTL_VERSION, argument)
    name = text.raw[: min(argument.name_len, NAME_BYTES)].rstrip(b"\0")
    return Version(
        name.decode("ascii", "replace"),
        argument.version_major,
        argument.version_minor,
        argument.version_patchlevel,
    )


# -- finding and opening nodes ---------------------------------------------------------------

NODES = {"rknpu": ("/dev/dri/renderD*", "/dev/dri/card*"), "rocket": ("/dev/accel/accel*",)}
"""Where the nodes of a driver are, in the order in which they are tried."""

REMEDIES = {
    errno.EACCES: "Add your user to the group that owns the node (render or video)",
    errno.EPERM: "Add your user to the group that owns the node (render or video)",
    errno.ENOMEM: "Free memory, or run a smaller program",
    errno.ENOSPC: "Free what you no longer need: NPU address space is full",
    errno.EMFILE: "Raise the limit of open files (ulimit -n)",
    errno.ENOTTY: "Check that the driver's version is one we know",
    errno.EINVAL: "Check that the driver's version is one we know",
    errno.ENODEV: "Check dmesg, and reload the driver",
}


def failed(where: str, call: str, error: OSError) -> DeviceError:
    """A system call's failure as a sentence."""
    number = error.errno or 0
    name = errno.errorcode.get(number, "unknown")
    return DeviceError(
        where,
        f"{call} fails with errno {number} ({name}, {os.strerror(number)})",
        REMEDIES.get(number, "Check dmesg for what the driver says"),
    )


def open_node(kernel: Kernel, path: str, driver: str) -> tuple[int, Version]:
    """Open a node and see that it is ``driver``'s.  Raises DeviceNotFound, DeviceError."""
    try:
        fd = kernel.open(path)
    except FileNotFoundError as e:
        raise DeviceNotFound(path, "there is no such node", f"Load the {driver} driver") from e
    except OSError as e:
        raise failed(path, "open", e) from e
    try:
        version = drm_version(kernel, fd)
    except OSError as e:
        kernel.close(fd)
        raise failed(path, "DRM_IOCTL_VERSION", e) from e
    if version.name != driver:
        kernel.close(fd)
        raise DeviceNotFound(
            path,
            f"its driver is {version.name!r}, not {driver!r}",
            "Give the path of the NPU's node, or none to search for it",
        )
    return fd, version


def find_nodes(kernel: Kernel, driver: str) -> tuple[list[str], list[str]]:
    """(paths of a driver's nodes, why each of the others was left out)."""
    found: list[str] = []
    refused: list[str] = []
    for pattern in NODES[driver]:
        for path in kernel.glob(pattern):
            try:
                fd, _ = open_node(kernel, path, driver)
            except DeviceError as e:
                refused.append(f"{path}: {e.what}")
            else:
                kernel.close(fd)
                found.append(path)
    return found, refused


def find_node(kernel: Kernel, driver: str) -> str:
    """The first node of a driver.  Raises DeviceNotFound."""
    found, refused = find_nodes(kernel, driver)
    if not found:
        looked = " and ".join(NODES[driver])
        why = f" ({'; '.join(refused)})" if refused else ""
        raise DeviceNotFound(
            driver,
            f"no node under {looked} belongs to it{why}",
            f"Load the {driver} driver, or use device='emulator'",
        )
    return found[0]
