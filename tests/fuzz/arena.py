"""Memory of a job with nothing around it: a stray access of the emulator is a SIGSEGV.

The layout in this process mirrors the IOVA space: 4 GiB of address space are reserved below and
above it, and only pages of buffers can be touched.  Read-only buffers are read-only to the CPU.
"""

from __future__ import annotations

import ctypes
import mmap
from typing import Any

import numpy as np
import numpy.typing as npt

from opennpu.hw.rk3588.chip import IOVA_BYTES

Bytes = npt.NDArray[np.uint8]
NONE, READ, WRITE = 0, 1, 2
PRIVATE_ANONYMOUS_NORESERVE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000
MAP_FAILED = ctypes.c_void_p(-1).value

_libc: Any = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


class Arena:
    """An IOVA space of inaccessible pages, into which buffers are put.  Never given back."""

    def __init__(self) -> None:
        flags = PRIVATE_ANONYMOUS_NORESERVE
        start = _libc.mmap(None, 3 * IOVA_BYTES, NONE, flags, -1, 0)
        if start == MAP_FAILED:
            raise OSError(ctypes.get_errno(), "no address space to reserve")
        self.zero = start + IOVA_BYTES  # where IOVA 0 lies

    def put(self, iova: int, nbytes: int) -> Bytes:
        """A buffer of zeros at ``iova``, readable and writable.  Guards are exact to the page."""
        array = (ctypes.c_uint8 * nbytes).from_address(self.zero + iova)
        self.protect(iova, nbytes, READ | WRITE)
        return np.frombuffer(array, np.uint8)

    def protect(self, iova: int, nbytes: int, access: int) -> None:
        """What the CPU may do with the pages of a buffer."""
        first = iova // mmap.PAGESIZE * mmap.PAGESIZE
        if _libc.mprotect(self.zero + first, iova + nbytes - first, access):
            raise OSError(ctypes.get_errno(), "mprotect")
