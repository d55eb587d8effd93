"""Traces: every job of a program, with all that is needed to run it again.

A trace is a zip archive, to be read with any tool:

    trace.json      {"format": "opennpu-trace", "version": 1, "chip": "rk3588"}
    job000000.json  abi, file, core, starts, buffers, written, completed, notes
    blobs/SHA256    bytes, without the zeros at their end; each content once

``starts`` are the kicks of the core (`opennpu.device.fakecores.Start`).  ``buffers`` are those
that the NPU touched, as they were before it did: handle, iova, nbytes, blob.  ``written`` are the
ranges that it wrote, as they were when the job had ended: iova, nbytes, blob.

`load` also reads RKG1 captures (jobNNN.rkg, with jobNNN.out.rkg beside it if that is there).
"""

from __future__ import annotations

import hashlib
import json
import struct
import threading
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opennpu.device.base import Bytes
from opennpu.device.fakecores import Start, Work
from opennpu.device.serve import Observer
from opennpu.emu.memory import AddressSpace, Array
from opennpu.errors import InputError, ViolationError
from opennpu.hw.regcmd import WORD_BYTES, disassemble
from opennpu.hw.regcmd import Start as StartWord
from opennpu.hw.rk3588 import chip
from opennpu.hw.rk3588.pc import DPU_DONE, PPU_DONE

FORMAT, VERSION = "opennpu-trace", 1
RKG_MAGIC, RKG_VERSION, RKG_CHAINED, RKG_OUT = 0x31474B52, 1, 1, 2
DATE = (1980, 1, 1, 0, 0, 0)  # zip's first; the same jobs give the same bytes
PATIENCE_S = 10.0  # for a job that is under way when the trace is closed


@dataclass(frozen=True, slots=True)
class Image:
    """Memory: ``data`` at ``iova``, and zeros up to ``nbytes``."""

    iova: int
    nbytes: int
    data: bytes
    handle: int = 0


@dataclass(frozen=True, slots=True)
class TracedJob:
    """A job as it ran."""

    name: str
    abi: str
    core: int
    starts: tuple[Start, ...]
    buffers: tuple[Image, ...]  # before
    written: tuple[Image, ...]  # after; empty where nobody knows
    completed: bool = True
    notes: tuple[str, ...] = ()

    def read(self, iova: int, nbytes: int) -> bytes | None:
        """Memory before the job; None outside one buffer."""
        for b in self.buffers:
            at = iova - b.iova
            if at >= 0 and at + nbytes <= b.nbytes:
                return b.data[at : at + nbytes].ljust(nbytes, b"\0")
        return None


# -- recording -------------------------------------------------------------------------------


class WatchedSpace(AddressSpace):
    """Tells of the first touch of each mapping, and notes the ranges that are written."""

    def __init__(self) -> None:
        super().__init__()
        self.mapped: dict[int, Bytes] = {}
        self.watch(lambda iova: None)

    def watch(self, first_touch: Callable[[int], None]) -> None:
        """Begin anew; ``first_touch`` gets the IOVA of a mapping before it is used."""
        self._first_touch = first_touch
        self._touched: set[int] = set()
        self._after: dict[int, tuple[Bytes, list[tuple[int, int]]]] = {}
        self._copies = AddressSpace()

    def map(self, iova: int, data: Bytes, *, read: bool = True, write: bool = True) -> None:
        super().map(iova, data, read=read, write=write)
        self.mapped[iova] = data

    def _touch(self, first: int, end: int) -> None:
        for start, data in self.mapped.items():
            if start < end and first < start + data.size and start not in self._touched:
                self._touched.add(start)
                self._first_touch(start)

    def read(self, iova: int, nbytes: int, stream: str = "main", unit: str = "") -> Bytes:
        self._touch(iova, iova + nbytes)
        return super().read(iova, nbytes, stream, unit)

    def write(self, iova: int, data: bytes | Bytes, stream: str = "output", unit: str = "") -> None:
        n = len(data)
        self._touch(iova, iova + n)
        self._copy(iova, iova + n)
        self._copies.write(iova, data, stream, unit)
        super().write(iova, data, stream, unit)

    def gather(
        self,
        iova: int,
        counts: tuple[int, ...],
        strides: tuple[int, ...],
        stream: str,
        unit: str,
    ) -> Bytes:
        self._touch(*_reach(iova, counts, strides))
        return super().gather(iova, counts, strides, stream, unit)

    def scatter(
        self,
        iova: int,
        counts: tuple[int, ...],
        strides: tuple[int, ...],
        data: Array,
        stream: str,
        unit: str,
    ) -> None:
        reach = _reach(iova, counts, strides)
        self._touch(*reach)
        self._copy(*reach)
        self._copies.scatter(iova, counts, strides, data, stream, unit)
        super().scatter(iova, counts, strides, data, stream, unit)

    def _copy(self, first: int, end: int) -> None:
        """Have copies of the mappings that are to be written, for the same writes: a program that
        polls its output may go on, and change it, before anybody can look at the original."""
        for start, data in self.mapped.items():
            low, high = max(first - start, 0), min(end - start, data.size)
            if low < high:
                if start not in self._after:
                    self._after[start] = (data.copy(), [])
                    self._copies.map(start, self._after[start][0])
                self._after[start][1].append((low, high))

    def written(self) -> Iterator[tuple[int, bytes]]:
        """What was written: ranges of one mapping each, later writes over earlier ones."""
        for start, (memory, ranges) in sorted(self._after.items()):
            for low, high in _merged(ranges):
                yield start + low, memory[low:high].tobytes()


def _reach(iova: int, counts: Sequence[int], strides: Sequence[int]) -> tuple[int, int]:
    """(first byte, behind the last) of an atom grid."""
    if 0 in counts:
        return iova, iova
    ends = [(n - 1) * s for n, s in zip(counts, strides, strict=True)]
    low, high = sum(min(0, e) for e in ends), sum(max(0, e) for e in ends)
    return iova + low, iova + high + chip.ATOM_BYTES


def _merged(ranges: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Disjoint ranges in order."""
    first = end = -1
    for a, b in sorted(ranges):
        if a > end:
            if end > first:
                yield first, end
            first, end = a, b
        end = max(end, b)
    if end > first:
        yield first, end


class Tracer(Observer):
    """Writes a trace.  Jobs run one after the other meanwhile, so that their images are theirs."""

    def __init__(self, path: Path) -> None:
        self.jobs = 0
        self._zip: zipfile.ZipFile | None = zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED)
        self._blobs: set[str] = set()
        self._lock = threading.Lock()  # from before a job until after it
        self._buffers: list[dict[str, Any]] = []
        header = {"format": FORMAT, "version": VERSION, "chip": "rk3588"}
        self._write("trace.json", json.dumps(header).encode())

    def before(self, core: int, work: Work) -> None:
        self._lock.acquire()
        self._buffers = []
        space = work.space
        assert isinstance(space, WatchedSpace)
        seen = [bo for bo in [*work.file.mapped, *work.holds] if bo.domain == work.domain]
        memories = {bo.iova: bo for bo in seen}

        def first_touch(iova: int) -> None:
            bo = memories.get(iova)
            if bo is not None:
                at = {"handle": bo.handle, "iova": iova, "nbytes": bo.data.size}
                self._buffers.append({**at, "blob": self._blob(bo.memory.image())})

        space.watch(first_touch)

    def after(self, core: int, work: Work, violation: ViolationError | None) -> None:
        space = work.space
        assert isinstance(space, WatchedSpace)
        written = []
        for iova, data in space.written():
            blob = self._blob(data.rstrip(b"\0"))
            written.append({"iova": iova, "nbytes": len(data), "blob": blob})
        notes = [str(violation)] if violation else []
        for r in work.results:
            notes += [str(r.fault)] if r.fault else []
            notes += [v.message for v in r.violations]
        job = {
            "abi": f"{work.file.name} {work.file.version[0]}.{work.file.version[1]}",
            "file": id(work.file) & 0xFFFF_FFFF,
            "core": core,
            "starts": [s._asdict() for s in work.starts],
            "buffers": self._buffers,
            "written": written,
            "completed": work.completed,
            "notes": notes,
        }
        self._write(f"job{self.jobs:06}.json", json.dumps(job, indent=1).encode())
        self.jobs += 1
        self._lock.release()

    def close(self) -> None:
        """End the archive.  A job that is under way is waited for, and left out if it is long."""
        self._lock.acquire(timeout=PATIENCE_S)
        if self._zip is not None:
            archive, self._zip = self._zip, None
            archive.close()

    def _blob(self, data: bytes) -> str:
        name = hashlib.sha256(data).hexdigest()
        if name not in self._blobs:
            self._blobs.add(name)
            self._write(f"blobs/{name}", data)
        return name

    def _write(self, name: str, data: bytes) -> None:
        if self._zip is not None:
            self._zip.writestr(zipfile.ZipInfo(name, DATE), data, zipfile.ZIP_DEFLATED, 1)


# -- reading ---------------------------------------------------------------------------------


def load(path: Path) -> list[TracedJob]:
    """The jobs of a trace or of an RKG1 capture.  Raises InputError."""
    raw = path.read_bytes()
    try:
        if raw[:4] == RKG_MAGIC.to_bytes(4, "little"):
            return [_rkg(path, raw)]
        return list(_jobs(path))
    except (zipfile.BadZipFile, KeyError, TypeError, ValueError, struct.error, EOFError) as e:
        raise InputError(
            str(path),
            f"is neither a trace nor an RKG1 capture ({type(e).__name__}: {e})",
            "Record one with opennpu emulate --trace",
        ) from None


def is_trace(path: Path) -> bool:
    """Whether `load` is the one to read this file."""
    with path.open("rb") as f:
        return f.read(4) in (RKG_MAGIC.to_bytes(4, "little"), b"PK\x03\x04")


def _jobs(path: Path) -> Iterator[TracedJob]:
    with zipfile.ZipFile(path) as archive:
        header = json.loads(archive.read("trace.json"))
        if header["format"] != FORMAT:
            raise ValueError(f"format {header['format']!r}")
        if header["version"] > VERSION:
            raise InputError(
                str(path),
                f"has version {header['version']}, this installation reads up to {VERSION}",
                "Install a newer opennpu",
            )

        def image(entry: dict[str, Any]) -> Image:
            data, name = archive.read(f"blobs/{entry['blob']}"), entry["blob"]
            iova, nbytes = int(entry["iova"]), int(entry["nbytes"])
            if hashlib.sha256(data).hexdigest() != name:
                raise ValueError(f"blob {name} is damaged")
            if not 0 <= iova <= iova + nbytes <= chip.IOVA_BYTES or len(data) > nbytes:
                raise ValueError(f"{nbytes} bytes at {iova:#x}")
            return Image(iova, nbytes, data, int(entry.get("handle", 0)))

        for name in sorted(n for n in archive.namelist() if n.startswith("job")):
            job = json.loads(archive.read(name))
            yield TracedJob(
                name.removesuffix(".json"),
                str(job["abi"]),
                int(job["core"]),
                tuple(Start(**s) for s in job["starts"]),
                tuple(map(image, job["buffers"])),
                tuple(map(image, job["written"])),
                bool(job["completed"]),
                tuple(map(str, job["notes"])),
            )


def _rkg(path: Path, raw: bytes) -> TracedJob:
    tasks, buffers, flags = _rkg_parts(raw)
    job = TracedJob(path.stem, "rocket", 0, (), tuple(b for b, _ in buffers), ())
    starts = [Start(a, n, 1, _done_mask(job, a, n), True) for a, n in tasks]
    if flags & RKG_CHAINED:
        starts = [starts[0]._replace(tasks=len(starts))]
    out = path.with_suffix(".out.rkg")
    written: list[Image] = []
    if out.exists():
        written = [b for b, role in _rkg_parts(out.read_bytes())[1] if role & RKG_OUT]
    return TracedJob(job.name, job.abi, 0, tuple(starts), job.buffers, tuple(written))


def _rkg_parts(raw: bytes) -> tuple[list[tuple[int, int]], list[tuple[Image, int]], int]:
    """(tasks, (buffer, role), flags) of an RKG1 file."""
    magic, version, n_tasks, n_buffers, flags, *_ = struct.unpack_from("<8I", raw)
    if (magic, version) != (RKG_MAGIC, RKG_VERSION) or not n_tasks:
        raise ValueError(f"RKG version {version} with {n_tasks} tasks")
    tasks = [struct.unpack_from("<2I", raw, 32 + 8 * i) for i in range(n_tasks)]
    at, buffers = 32 + 8 * n_tasks, []
    for _ in range(n_buffers):
        handle, role, iova, size, stored = struct.unpack_from("<IIQQQ", raw, at)
        data = raw[at + 32 : at + 32 + stored]
        if len(data) < stored or stored > size or not 0 <= iova <= iova + size <= chip.IOVA_BYTES:
            raise ValueError(f"buffer {handle}: {len(data)} of {stored} bytes, size {size}")
        buffers.append((Image(iova, size, data, handle), role))
        at += 32 + stored
    return [(a, n) for a, n in tasks], buffers, flags


def _done_mask(job: TracedJob, iova: int, words: int) -> int:
    """Interrupts that end a task: the PPU's for a pooling task, else the DPU's."""
    code = job.read(iova, words * WORD_BYTES) or b""
    enables = [w.enable for w in disassemble(code) if isinstance(w, StartWord)]
    return PPU_DONE if enables and enables[-1].ppu_op_en else DPU_DONE
