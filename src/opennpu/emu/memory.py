"""IOVA space: what one core sees through its IOMMU.  Maps, faults, and counts bytes by stream.

Reads and writes go through three shapes: a run of bytes, a gather and a scatter of 16-byte
atoms with affine strides.  When one mapping holds the whole range the gather is a strided view
of the caller's buffer, without a copy.
"""

from __future__ import annotations

import bisect
import math
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from opennpu.errors import NPUError
from opennpu.hw.rk3588.chip import ATOM_BYTES, IOVA_BYTES

Array = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]

RUN_ATOMS = 1 << 16  # looked up at a time where no single mapping holds all

STREAMS = ("regcmd", "feature", "weight", "bias", "ew", "main", "pool", "output")
"""Names under which bytes are counted."""


class MemoryFault(NPUError):
    """An access outside every mapping, or against its permissions.

    Attributes:
        iova: first byte address that failed.
        write: True for a write.
        unit: the unit that asked.
    """

    def __init__(self, iova: int, write: bool, unit: str) -> None:
        self.iova, self.write, self.unit = iova, write, unit
        super().__init__(f"{unit}: {'write to' if write else 'read from'} unmapped IOVA {iova:#x}")

    def __reduce__(self) -> tuple[type, tuple[int, bool, str]]:
        return type(self), (self.iova, self.write, self.unit)


class _Mapping:
    __slots__ = ("data", "end", "read", "start", "write")

    def __init__(self, start: int, data: Bytes, read: bool, write: bool) -> None:
        self.start, self.end, self.data = start, start + data.size, data
        self.read, self.write = read, write


class AddressSpace:
    """One IOVA space of 4 GiB.

    Attributes:
        bytes_read: bytes by stream name.
        bytes_written: bytes by stream name.
    """

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._maps: list[_Mapping] = []
        self.bytes_read: Counter[str] = Counter()
        self.bytes_written: Counter[str] = Counter()

    def map(self, iova: int, data: Bytes, *, read: bool = True, write: bool = True) -> None:
        """Show ``data`` (flat uint8, not copied) at ``iova``.  Any byte address and size."""
        if data.dtype != np.uint8 or data.ndim != 1 or not data.flags.c_contiguous:
            raise ValueError("map takes a contiguous one-dimensional uint8 array")
        new = _Mapping(iova, data, read, write and data.flags.writeable)
        if not 0 <= iova <= new.end <= IOVA_BYTES:
            raise ValueError(f"{iova:#x}..{new.end:#x} is outside the 4 GiB IOVA space")
        if not data.size:
            return
        at = bisect.bisect_right(self._starts, iova)
        before, after = self._maps[at - 1 : at], self._maps[at : at + 1]
        if (before and before[0].end > iova) or (after and after[0].start < new.end):
            raise ValueError(f"{iova:#x}..{new.end:#x} overlaps another mapping")
        self._starts.insert(at, iova)
        self._maps.insert(at, new)

    def unmap(self, iova: int) -> None:
        """Remove the mapping that starts at ``iova``."""
        at = bisect.bisect_left(self._starts, iova)
        if at == len(self._starts) or self._starts[at] != iova:
            raise ValueError(f"no mapping starts at {iova:#x}")
        del self._starts[at], self._maps[at]

    # -- runs of bytes -----------------------------------------------------------------------

    def read(self, iova: int, nbytes: int, stream: str = "main", unit: str = "") -> Bytes:
        """``nbytes`` bytes from ``iova``: a read-only view where one mapping holds them all."""
        m = self._holding(iova, iova + nbytes, False)
        if m is not None:
            out = m.data[iova - m.start : iova - m.start + nbytes].view()
            out.flags.writeable = False
        else:
            out = np.empty(nbytes, np.uint8)
            for at, part, view in self._pieces(iova, nbytes, False, unit or stream):
                out[at : at + part] = view
        self.bytes_read[stream] += nbytes
        return out

    def write(self, iova: int, data: bytes | Bytes, stream: str = "output", unit: str = "") -> None:
        """Write ``data`` at ``iova``."""
        src = np.frombuffer(data, np.uint8) if isinstance(data, bytes) else data
        pieces = list(self._pieces(iova, src.size, True, unit or stream))
        for at, part, view in pieces:
            view[:] = src[at : at + part]
        self.bytes_written[stream] += src.size

    # -- atoms -------------------------------------------------------------------------------

    def gather(
        self,
        iova: int,
        counts: tuple[int, ...],
        strides: tuple[int, ...],
        stream: str,
        unit: str,
    ) -> Bytes:
        """Atoms at ``iova + sum(i * stride)``: uint8 [*counts, 16], maybe a view of the mapping.

        ``strides`` are in bytes and may be negative; addresses wrap at 4 GiB.
        """
        shape = (*counts, ATOM_BYTES)
        if 0 in counts:
            return np.empty(shape, np.uint8)
        low, high = _reach(counts, strides)
        m = self._holding(iova + low, iova + high, False)
        if m is not None:
            start = m.data[iova - m.start :]
            out: Bytes = np.lib.stride_tricks.as_strided(
                start, shape, (*strides, 1), writeable=False
            )
        else:
            flat = np.empty((math.prod(counts), ATOM_BYTES), np.uint8)
            for part in _address_runs(iova, counts, strides):
                for where, index, m in self._scattered(part.addresses, False, unit):
                    flat[part.first + where] = m.data[index]
            out = flat.reshape(shape)
        self.bytes_read[stream] += out.size
        return out

    def scatter(
        self,
        iova: int,
        counts: tuple[int, ...],
        strides: tuple[int, ...],
        data: Array,
        stream: str,
        unit: str,
    ) -> None:
        """Write the atoms of ``data``, uint8 [*counts, 16].  Nothing is written if one faults."""
        shape = (*counts, ATOM_BYTES)
        if 0 in counts:
            return
        low, high = _reach(counts, strides)
        m = self._holding(iova + low, iova + high, True)
        if m is not None:
            start = m.data[iova - m.start :]
            np.lib.stride_tricks.as_strided(start, shape, (*strides, 1))[...] = data
        else:
            src = np.ascontiguousarray(data).reshape(-1, ATOM_BYTES)
            for part in _address_runs(iova, counts, strides):
                for _ in self._scattered(part.addresses, True, unit):
                    pass
            for part in _address_runs(iova, counts, strides):
                for where, index, m in self._scattered(part.addresses, True, unit):
                    m.data[index] = src[part.first + where]
        self.bytes_written[stream] += ATOM_BYTES * math.prod(counts)

    # -- look-up -----------------------------------------------------------------------------

    def _at(self, iova: int) -> _Mapping | None:
        at = bisect.bisect_right(self._starts, iova) - 1
        if at >= 0 and iova < self._maps[at].end:
            return self._maps[at]
        return None

    def _holding(self, start: int, end: int, write: bool) -> _Mapping | None:
        """The mapping that holds all of [start, end) with the permission, if one does."""
        m = self._at(start)
        if m is None or end > m.end or not (m.write if write else m.read):
            return None
        return m

    def _pieces(
        self, iova: int, nbytes: int, write: bool, unit: str
    ) -> Iterator[tuple[int, int, Bytes]]:
        """(offset, bytes, view) of each mapping under a run."""
        at = 0
        while at < nbytes:
            address = (iova + at) % IOVA_BYTES
            m = self._at(address)
            if m is None or not (m.write if write else m.read):
                raise MemoryFault(address, write, unit)
            part = min(nbytes - at, m.end - address)
            yield at, part, m.data[address - m.start : address - m.start + part]
            at += part

    def _scattered(
        self, atoms: npt.NDArray[np.int64], write: bool, unit: str
    ) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], _Mapping]]:
        """(which atoms, byte indices, mapping) by mapping.  Atoms that straddle two fault."""
        todo = np.arange(atoms.size)
        while todo.size:
            first = int(atoms[todo[0]])
            m = self._at(first)
            if m is None or not (m.write if write else m.read):
                raise MemoryFault(first, write, unit)
            if first + ATOM_BYTES > m.end:
                raise MemoryFault(m.end % IOVA_BYTES, write, unit)
            inside = (atoms[todo] >= m.start) & (atoms[todo] <= m.end - ATOM_BYTES)
            mine = todo[inside]
            yield mine, (atoms[mine] - m.start)[:, None] + np.arange(ATOM_BYTES), m
            todo = todo[~inside]


def _reach(counts: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, int]:
    """(lowest, highest + 1) byte offset of an atom grid."""
    ends = [(n - 1) * s for n, s in zip(counts, strides, strict=True)]
    return sum(min(0, e) for e in ends), sum(max(0, e) for e in ends) + ATOM_BYTES


class _Run(NamedTuple):
    first: int  # number of its first atom
    addresses: npt.NDArray[np.int64]


def _address_runs(iova: int, counts: tuple[int, ...], strides: tuple[int, ...]) -> Iterator[_Run]:
    """Addresses of all atoms in order, wrapped at 4 GiB, in runs of bounded length."""
    total = math.prod(counts)
    for first in range(0, total, RUN_ATOMS):
        index = np.arange(first, min(first + RUN_ATOMS, total), dtype=np.int64)
        address = np.full(index.size, iova, np.int64)
        for n, s in zip(reversed(counts), reversed(strides), strict=True):
            index, at = np.divmod(index, n)
            address += at * s
        yield _Run(first, address % IOVA_BYTES)
