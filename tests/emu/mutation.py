"""Flip every bit that the golden streams write: something must notice.

    OPENNPU_GOLDEN=… python tests/emu/mutation.py [--write]

A bit counts as noticed when, in one of the golden streams or of our own (`own_streams`), the
result changes, a rule is broken, a warning is given, or the job no longer ends.  The others are
survivors: tests/data/mutation_survivors.csv lists them by field, each with a reason.  The script
exits with 1 when its survivors differ from that file, have no reason, or are crucial.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import re
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from mutation_reasons import KINDS, REASONS
from mutation_streams import own_streams
from rkg import JOBS, Capture, load, replay

from opennpu.emu.machine import Machine
from opennpu.emu.numerics import Policy
from opennpu.errors import ViolationError
from opennpu.hw.regs import REGISTERS, Field, Register
from opennpu.hw.rk3588 import global_

Words = npt.NDArray[np.uint64]
Progress = Callable[[str], None]
SURVIVORS = Path(__file__).parents[1] / "data" / "mutation_survivors.csv"
COLUMNS = ("register", "field", "bits", "reason", "source")
START = 0x0081
CRUCIAL = re.compile(
    "addr|width|height|(?<!per_)channel|kernels|stride|size|precision|entries|bytes|notch"
    "|atomics|amount|surf_(?!mode)|surface|pad_(left|top|right|bottom)|dilation|_offset|bank"
)
"""Names of addresses, sizes, strides and precisions: none of them may survive."""
BOUNDED = Policy(max_macs=1 << 26, max_bytes=1 << 26, max_task_bytes=1 << 25, max_words=1 << 16)


class Bit(NamedTuple):
    """One bit of a register that streams write."""

    address: int
    bit: int

    @property
    def register(self) -> type[Register]:
        return REGISTERS[self.address]

    @property
    def field(self) -> tuple[str, Field]:
        return next((n, f) for n, f in self.register.fields.items() if f.mask >> self.bit & 1)

    def __str__(self) -> str:
        r = self.register
        return f"{r.block.name}.{r.__name__}.{self.field[0]} bit {self.bit - self.field[1].low}"


@dataclass
class Stream:
    """A job that runs again and again, each time with one word changed."""

    name: str
    golden: bool
    capture: Capture
    seconds: float = 0.0
    baseline: tuple[str, ...] = ()
    _image: list[npt.NDArray[np.uint8]] = field(default_factory=list)

    @property
    def short_golden(self) -> bool:
        """A golden stream that costs little to ask."""
        return self.golden and len(self.capture.tasks) == 1

    @classmethod
    def of(cls, name: str, golden: bool, capture: Capture) -> Stream:
        stream = cls(name, golden, capture)
        stream._image = [b.data.copy() for b in capture.buffers]
        stream.baseline = stream.run(None, 0)
        started = time.perf_counter()
        assert stream.run(None, 0) == stream.baseline
        stream.seconds = time.perf_counter() - started
        assert stream.baseline[0] == "done", (name, stream.baseline)
        return stream

    def words(self, iova: int, count: int) -> Words:
        """The command words at ``iova``, as a view."""
        for b in self.capture.buffers:
            if b.iova <= iova < b.iova + b.data.size:
                at = iova - b.iova
                return b.data[at : at + 8 * count].view("<u8")
        raise AssertionError("command list outside the buffers")

    def bits(self) -> Iterator[tuple[Bit, int]]:
        """Every bit of every field, and the IOVA of the word that holds it: its task's last."""
        for iova, count in self.capture.tasks:
            last: dict[int, int] = {}
            for i, word in enumerate(self.words(iova, count).tolist()):
                address = word & 0xFFFF
                if word >> 48 == START:
                    address = global_.OPERATION_ENABLE.address
                register = REGISTERS.get(address)
                if register and word >> 48 in (START, register.block.target):
                    last[address] = iova + 8 * i
            for address, at in last.items():
                for f in REGISTERS[address].fields.values():
                    for bit in range(f.low, f.high + 1):
                        yield Bit(address, bit), at

    def run(self, iova: int | None, flip: int) -> tuple[str, ...]:
        """Run with bit ``flip`` of the word at ``iova`` inverted: what there is to notice."""
        for b, image in zip(self.capture.buffers, self._image, strict=True):
            b.data[:] = image
        if iova is not None:
            self.words(iova, 1)[0] ^= np.uint64(1 << 16 + flip)
        machine = Machine(cores=1, policy=BOUNDED)
        try:
            results = replay(self.capture, machine)
        except ViolationError as e:
            return ("refused", str(e))
        if iova is not None:
            self.words(iova, 1)[0] ^= np.uint64(1 << 16 + flip)
        sums = hashlib.sha256(machine._cores[0].chip.tables.tobytes())
        for b in self.capture.buffers:
            sums.update(b.data)
        done = all(r.completed for r in results)
        warned = [v.rule for r in results for v in r.warnings]
        events = [f"{r.interrupt_raw:x} {r.tasks_done}" for r in results]
        return ("done" if done else "hangs", *warned, *events, sums.hexdigest())


Places = dict[Bit, list[tuple[Stream, int]]]


def streams() -> list[Stream]:
    """Golden ones and ours, the quick ones first."""
    found = [Stream.of(f"{p.parent.name}/{p.stem}", True, load(p)) for p in JOBS]
    found += [Stream.of(name, False, capture) for name, capture in own_streams()]
    return sorted(found, key=lambda s: s.seconds)


def where(all_streams: list[Stream], golden: bool = True) -> Places:
    """For each bit that a golden stream writes: the streams and words that hold it.

    ``golden`` False: each bit that any stream writes.
    """
    found: Places = defaultdict(list)
    wanted = set()
    for s in all_streams:
        for bit, iova in s.bits():
            found[bit].append((s, iova))
            if s.golden or not golden:
                wanted.add(bit)
    return {bit: places for bit, places in sorted(found.items()) if bit in wanted}


def notices(bit: Bit, places: list[tuple[Stream, int]]) -> Stream | None:
    """The first stream that notices the flip."""
    for stream, iova in places:
        if stream.run(iova, bit.bit) != stream.baseline:
            return stream
    return None


def survivors(found: Places, quick: bool = False, progress: Progress = lambda _: None) -> list[Bit]:
    """All bits that nothing notices.

    Golden streams of one task are asked first, to count what they notice; ``quick``: first the
    stream that noticed the bit before.
    """
    left, by_kind = [], Counter[str]()
    last: Stream | None = None
    for bit, places in found.items():
        order = sorted(places, key=lambda p: p[0] is not last if quick else not p[0].short_golden)
        last = notices(bit, order)
        by_kind["nobody" if last is None else "golden" if last.golden else "our own"] += 1
        if last is None:
            left.append(bit)
    progress(f"{len(found)} bits: " + ", ".join(f"{n} by {k}" for k, n in by_kind.items()))
    return left


def rows(left: list[Bit]) -> list[tuple[str, ...]]:
    """Survivors by field, with their reasons, as in the file."""
    by_field: dict[tuple[str, str], list[int]] = defaultdict(list)
    for bit in left:
        name, f = bit.field
        r = bit.register
        by_field[f"{r.block.name}.{r.__name__}", name].append(bit.bit - f.low)
    out = []
    for (register, name), bits in by_field.items():
        reason = next(
            (v for k, v in REASONS.items() if k in (f"{register}.{name}", register)), None
        )
        shown = _ranges(bits)
        out.append((register, name, shown, *(reason or ("?", "?"))))
    return out


def listed(found: list[tuple[str, ...]]) -> set[str]:
    """Each bit of such rows, as `Bit` prints it."""
    out = set()
    for register, name, shown, *_ in found:
        for part in shown.split():
            high, _, low = part.partition(":")
            out |= {f"{register}.{name} bit {n}" for n in range(int(low or high), int(high) + 1)}
    return out


def _ranges(bits: list[int]) -> str:
    """[0, 1, 2, 5] -> "5 2:0": as registers are written, high first."""
    parts: list[list[int]] = []
    for b in sorted(bits):
        if parts and parts[-1][-1] == b - 1:
            parts[-1].append(b)
        else:
            parts.append([b])
    return " ".join(f"{p[-1]}:{p[0]}" if len(p) > 1 else str(p[0]) for p in reversed(parts))


def committed() -> list[tuple[str, ...]]:
    """The rows of the file."""
    with SURVIVORS.open(newline="") as f:
        return [tuple(r[c] for c in COLUMNS) for r in csv.DictReader(f)]


def faults(found: list[tuple[str, ...]], expected: list[tuple[str, ...]]) -> list[str]:
    """What is wrong with the survivors ``found``, a sentence each."""
    said = []
    for register, name, shown, reason, _ in found:
        if CRUCIAL.search(name):
            said.append(
                f"{register}.{name} {shown} survives: every address, size, stride and "
                "precision must be noticed"
            )
        if not reason.startswith(KINDS):
            said.append(f"{register}.{name} {shown} survives without a reason")
    used = {f"{r}.{n}" for r, n, *_ in found} | {r for r, *_ in found}
    said += [f"{key} has a reason and no survivor" for key in REASONS if key not in used]
    for row in sorted(set(found) ^ set(expected)):
        said.append(
            f"{'.'.join(row[:2])} {row[2]} {'is not' if row in found else 'is'} in "
            f"{SURVIVORS.name}, the run says otherwise"
        )
    return said


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", action="store_true", help="write the list of survivors")
    write = parser.parse_args().write
    if not JOBS:
        parser.error("OPENNPU_GOLDEN is not set to a folder of captures")
    started = time.perf_counter()
    found = rows(survivors(where(streams()), progress=print))
    if write:
        with SURVIVORS.open("w", newline="") as f:
            csv.writer(f, lineterminator="\n").writerows([COLUMNS, *found])
    said = faults(found, committed())
    print(*said, sep="\n", end="\n" if said else "")
    print(f"{len(found)} fields with survivors, {time.perf_counter() - started:.0f} s")
    return 1 if said else 0


if __name__ == "__main__":
    sys.exit(main())
