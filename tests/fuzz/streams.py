"""Break command lists in every way, run them in both modes, and see what the emulator does.

    python -m fuzz.streams 0:1000000 [--jobs 2]      (in tests/)
    python -m fuzz.streams 4711                      one seed: what was done to which list

A seed always makes the same list out of one of our streams or, with OPENNPU_GOLDEN, out of a
golden one.  What must hold, whatever the list:

* strict mode ends or raises ViolationError, hardware mode ends; nothing else comes out;
* both within seconds and within 512 MiB;
* nothing outside the job's buffers is touched, nor a read-only one written (`fuzz.arena`);
* what strict mode accepts has the same bytes, faults and events in hardware mode, without a
  violation; what it refuses breaks a rule in hardware mode, too, or faults there;
* after a reset both machines run a good job as ever.
"""

from __future__ import annotations

import argparse
import collections
import mmap
import os
import random
import resource
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fuzz.arena import READ, WRITE, Arena
from opennpu.emu.machine import Machine, RunResult
from opennpu.emu.memory import AddressSpace
from opennpu.emu.numerics import Policy
from opennpu.errors import ViolationError
from opennpu.hw import regcmd
from opennpu.hw.regs import REGISTERS, Register
from opennpu.hw.rk3588 import global_, pc
from opennpu.hw.rk3588.common import Precision

sys.path.insert(0, str(Path(__file__).parents[1] / "emu"))

from emu_programs import CODE, CONV, EW, FLYING, OPERANDS, Bench, Conv, W, X, Y, flying, pool
from mutation_streams import own_streams
from rkg import CHAINED, JOBS, Buffer, Capture, load, start_mask

Bytes = npt.NDArray[np.uint8]
Words = list[int]

TIGHT = Policy(max_macs=1 << 24, max_bytes=1 << 24, max_task_bytes=1 << 23, max_words=1 << 14)
SECONDS = 5.0  # for one seed, on a busy computer
QUICK_MACS = 1 << 21  # a stream with more is no base: it would be most of the work
MEMORY_BYTES = 512 << 20
OUTPUT_ROLE = 3
REGIONS = ((CODE, X), (X, W), (W, OPERANDS), (OPERANDS, Y), (Y, EW), (EW, 0x110000))
EVENTS = (0x300, 0x300, 0x300, 0xC00, 0xF00, 0, 1, 0xFFFFFFFF)
DECODERS = {r.address: r for r in REGISTERS.values()}
ADDRESSES = sorted(REGISTERS)


class Start(NamedTuple):
    """Arguments of `Machine.run`."""

    iova: int
    words: int
    task_number: int = 1
    int_mask: int = 0x300
    same_job: bool = False
    ping_pong: bool = False


@dataclass
class Region:
    """A buffer: its bytes before each run, and whether jobs may write it."""

    iova: int
    data: Bytes
    image: Bytes
    writable: bool


@dataclass
class Stream:
    """A good job in an arena of its own."""

    name: str
    starts: list[Start]
    lists: list[tuple[int, int]]  # IOVA and words of each task
    regions: list[Region]
    arena: Arena
    space: AddressSpace = field(default_factory=AddressSpace)

    @classmethod
    def of(cls, name: str, capture: Capture, writable: Callable[[Buffer], bool]) -> Stream:
        arena = Arena()
        regions = []
        for b in capture.buffers:
            data = arena.put(b.iova, b.data.size)
            data[:] = b.data
            regions.append(Region(b.iova, data, b.data.copy(), writable(b)))
        masks = [start_mask(capture, i) for i in range(len(capture.tasks))]
        if capture.flags & CHAINED:
            starts = [Start(*capture.tasks[0], len(capture.tasks), masks[0])]
        else:
            starts = [
                Start(*t, 1, m, i > 0)
                for i, (t, m) in enumerate(zip(capture.tasks, masks, strict=True))
            ]
        stream = cls(name, starts, list(capture.tasks), regions, arena)
        for r in regions:
            stream.space.map(r.iova, r.data, write=r.writable)
            if not r.writable:
                arena.protect(r.iova, r.data.size, READ)
        return stream

    def words(self, at: int, count: int) -> Words:
        """Command words in the image."""
        r = self.region(at)
        first = at - r.iova
        found: Words = r.image[first : first + 8 * count].view("<u8").tolist()
        return found

    def region(self, iova: int) -> Region:
        return next(r for r in self.regions if r.iova <= iova < r.iova + r.data.size)

    def load(self, lists: Iterable[tuple[int, Words]]) -> None:
        """Memory as at the beginning, with ``lists`` (IOVA, words) in it."""
        for r in self.regions:
            if r.writable:
                r.data[:] = r.image
        for iova, words in lists:
            r = self.region(iova)
            self.arena.protect(r.iova, r.data.size, READ | WRITE)
            r.data[:] = r.image
            raw = np.array(words, np.uint64).view(np.uint8)[: r.iova + r.data.size - iova]
            r.data[iova - r.iova :][: raw.size] = raw
            if not r.writable:
                self.arena.protect(r.iova, r.data.size, READ)

    def written(self) -> bytes:
        """What is in the writable buffers."""
        return b"".join(r.data.tobytes() for r in self.regions if r.writable)


# -- streams to start from -------------------------------------------------------------------


def _all_types() -> Iterable[tuple[str, Capture]]:
    """A small convolution of each type, direct and depthwise; copies and pools."""
    rng = np.random.default_rng(0)
    cases: list[tuple[str, list[Register], int]] = []
    for p in (Precision.INT4, Precision.INT8, Precision.INT16, Precision.FP16, Precision.BF16):
        body = Conv(p, 4, 5, 64, 64, (3, 2), (2, 1), (1, 1)).body()
        cases.append((f"direct {p.name}", body, CONV))
    cases.append(("direct TF32", Conv(Precision.TF32, 3, 3, 16, 16).body(), CONV))
    for p in (Precision.INT8, Precision.FP16):
        dw = Conv(p, 6, 5, 64, 64, (3, 3), pad=(1, 1), depthwise=True, out=p)
        cases.append((f"depthwise {p.name}", dw.body(), CONV))
    for p in (Precision.INT8, Precision.INT16, Precision.FP16, Precision.FP32, Precision.INT32):
        cases.append((f"copy {p.name}", flying(p, 7, surfaces=2), FLYING))
    cases.append(("pool INT8", pool(Precision.INT8, (4, 4), (4, 4), surfaces=2), 0x60))
    for name, body, units in cases:
        bench = Bench()
        halves = rng.normal(0, 2, 0x80000).astype(np.float16)
        raw = halves if "FP16" in name else rng.integers(0, 256, 0x100000).astype(np.uint8)
        bench.put(X, raw.view(np.uint8)[: Y - X])
        bench.put(EW, raw.view(np.uint8)[: 0x110000 - EW])
        placed = bench.place((body, units))
        yield name, Capture(placed, [Buffer(0, OUTPUT_ROLE, 0, bench.memory)], CHAINED)


def _apart(capture: Capture) -> Capture:
    """A flat memory cut into buffers; the first page is left out."""
    (flat,) = capture.buffers
    parts = [Buffer(0, OUTPUT_ROLE if a == Y else 0, a, flat.data[a:b].copy()) for a, b in REGIONS]
    return Capture(capture.tasks, parts, capture.flags)


def _run_all(machine: Machine, stream: Stream, starts: list[Start]) -> list[RunResult]:
    out = []
    for s in starts:
        out.append(
            machine.run(
                0,
                stream.space,
                s.iova,
                s.words,
                task_number=s.task_number,
                int_mask=s.int_mask,
                same_job=s.same_job,
                ping_pong=s.ping_pong,
            )
        )
    return out


@cache
def bases(golden: bool) -> tuple[Stream, ...]:
    """Streams that run within the bounds, quickly."""
    found: list[tuple[str, Capture]] = []
    if golden:
        found = [(f"{p.parent.name}/{p.stem}", load(p)) for p in JOBS]
    else:
        found = [(n, _apart(c)) for n, c in (*own_streams(), *_all_types())]
    kept = []
    for name, capture in found:
        before = [b.data.copy() for b in capture.buffers]
        if golden:  # which buffers are written is not in the file
            space = AddressSpace()
            for b in capture.buffers:
                space.map(b.iova, b.data)
            trial = Stream.of(name, capture, lambda b: True)
            _run_all(Machine(cores=1), trial, trial.starts)
            changed = {
                b.iova
                for b, old in zip(capture.buffers, before, strict=True)
                if (trial.region(b.iova).data != old).any()
            }
            stream = Stream.of(name, capture, lambda b, c=changed: b.iova in c)  # type: ignore[misc]
        else:
            stream = Stream.of(name, capture, lambda b: b.role == OUTPUT_ROLE)
        machine = Machine(cores=1, policy=TIGHT)
        stream.load([])
        try:
            done = _run_all(machine, stream, stream.starts)
        except ViolationError as e:
            if "work.too_much" not in str(e):
                raise
            continue
        assert all(r.completed for r in done), (name, done)
        if sum(t.macs for r in done for t in r.tasks) <= QUICK_MACS:
            kept.append(stream)
    return tuple(kept)


# -- mutations -------------------------------------------------------------------------------


EDGES = (0, 1, 2, 3, 7, 15, 16, 31, 32, -1, -2)


def _edge(rng: random.Random, now: int, width: int) -> int:
    """A value of ``width`` bits that programs trip over."""
    top = (1 << width) - 1
    near = (now + 1, now - 1, now * 2, now >> 1, -now)
    far = (top >> 1, (top >> 1) + 1, 1 << width // 2, rng.getrandbits(width))
    return top & rng.choice((*EDGES, *near, *far))


def _of_register(words: Words, rng: random.Random) -> int | None:
    """Place of a word that writes a known register."""
    for _ in range(8):
        at = rng.randrange(len(words))
        if words[at] & 0xFFFF in DECODERS:
            return at
    return None


def flip_any(words: Words, rng: random.Random, stream: Stream) -> None:
    words[rng.randrange(len(words))] ^= 1 << rng.randrange(64)


def flip_value(words: Words, rng: random.Random, stream: Stream) -> None:
    words[rng.randrange(len(words))] ^= 1 << 16 + rng.randrange(32)


def set_field(words: Words, rng: random.Random, stream: Stream) -> None:
    at = _of_register(words, rng)
    if at is None:
        return
    f = rng.choice(list(DECODERS[words[at] & 0xFFFF].fields.values()))
    width = f.high - f.low + 1
    now = words[at] >> 16 + f.low & (1 << width) - 1
    words[at] &= ~(((1 << width) - 1) << 16 + f.low)
    words[at] |= _edge(rng, now, width) << 16 + f.low


def set_value(words: Words, rng: random.Random, stream: Stream) -> None:
    at = rng.randrange(len(words))
    now = words[at] >> 16 & 0xFFFFFFFF
    words[at] = words[at] & ~(0xFFFFFFFF << 16) | _edge(rng, now, 32) << 16


def set_address(words: Words, rng: random.Random, stream: Stream) -> None:
    """An address near a buffer's ends."""
    places = [
        i
        for i, w in enumerate(words)
        if any("addr" in n for n in getattr(DECODERS.get(w & 0xFFFF), "fields", ()))
    ]
    if not places:
        return
    r = rng.choice(stream.regions)
    near = rng.choice((r.iova, r.iova + r.data.size, 1 << 32)) + rng.choice(
        (0, -16, 16, -32, -8, 8, -1, 1, -64, -4096, 4096, rng.randrange(-(1 << 16), 1 << 16))
    )
    at = rng.choice(places)
    words[at] = words[at] & ~(0xFFFFFFFF << 16) | (near & 0xFFFFFFFF) << 16


def swap(words: Words, rng: random.Random, stream: Stream) -> None:
    a, b = rng.randrange(len(words)), rng.randrange(len(words))
    words[a], words[b] = words[b], words[a]


def swap_values(words: Words, rng: random.Random, stream: Stream) -> None:
    a, b = rng.randrange(len(words)), rng.randrange(len(words))
    mask = 0xFFFFFFFF << 16
    words[a], words[b] = (
        words[a] & ~mask | words[b] & mask,
        words[b] & ~mask | words[a] & mask,
    )


def repeat(words: Words, rng: random.Random, stream: Stream) -> None:
    words.insert(rng.randrange(len(words) + 1), rng.choice(words))


def drop(words: Words, rng: random.Random, stream: Stream) -> None:
    if len(words) > 1:
        del words[rng.randrange(len(words))]


def blank(words: Words, rng: random.Random, stream: Stream) -> None:
    words[rng.randrange(len(words))] = 0


def any_word(words: Words, rng: random.Random, stream: Stream) -> None:
    words[rng.randrange(len(words))] = rng.getrandbits(64)


def any_register(words: Words, rng: random.Random, stream: Stream) -> None:
    """A register that the list may not write at all."""
    r = DECODERS[rng.choice(ADDRESSES)]
    value = rng.getrandbits(32) if rng.random() < 0.3 else _edge(rng, r.reset, 32) & r.known
    word = r.block.target << 48 | value << 16 | r.address
    words.insert(rng.randrange(len(words) + 1), word)


def splice(words: Words, rng: random.Random, stream: Stream) -> None:
    """A run of words of another stream."""
    other = rng.choice(bases(False))
    theirs = other.words(*rng.choice(other.lists))
    first = rng.randrange(len(theirs))
    part = theirs[first : first + rng.randrange(1, 60)]
    at = rng.randrange(len(words) + 1)
    if rng.random() < 0.5:
        words[at : at + len(part)] = part
    else:
        words[at:at] = part


def link(words: Words, rng: random.Random, stream: Stream) -> None:
    """Go on at a list, in data, past the end, or anywhere."""
    r = rng.choice(stream.regions)
    to = rng.choice(
        [a for a, _ in stream.lists]
        + [r.iova, r.iova + r.data.size - 16, r.iova + r.data.size, r.iova + 8, 0, 1]
        + [rng.getrandbits(32)]
    )
    at = rng.randrange(len(words) + 1)
    new = [pc.BASE_ADDRESS, pc.REGISTER_AMOUNTS]
    values = [to, _edge(rng, len(words) // 2, rng.choice((6, 8, 16, 32)))]
    words[at:at] = [
        r.block.target << 48 | v << 16 | r.address for r, v in zip(new, values, strict=True)
    ]


def start_units(words: Words, rng: random.Random, stream: Stream) -> None:
    value = rng.choice((0x1D, 0x0D, 0x18, 0x60, 0x7D, 0x78, 0, 1, rng.getrandbits(32)))
    word = regcmd.TARGET_START << 48 | value << 16 | global_.OPERATION_ENABLE.offset
    words.insert(rng.randrange(len(words) + 1), word)


def shuffle_tail(words: Words, rng: random.Random, stream: Stream) -> None:
    first = rng.randrange(len(words))
    tail = words[first:]
    rng.shuffle(tail)
    words[first:] = tail


MUTATIONS: tuple[tuple[Callable[[Words, random.Random, Stream], None], int], ...] = (
    (set_field, 40),
    (flip_value, 12),
    (flip_any, 6),
    (set_value, 5),
    (set_address, 8),
    (swap, 4),
    (swap_values, 4),
    (repeat, 3),
    (drop, 4),
    (blank, 2),
    (any_word, 2),
    (any_register, 6),
    (splice, 4),
    (link, 3),
    (start_units, 3),
    (shuffle_tail, 1),
)


class Case(NamedTuple):
    """What a seed makes."""

    stream: Stream
    lists: list[tuple[int, Words]]
    starts: list[Start]
    bus: list[tuple[int, int]]  # writes of registers over the bus, in place of starts
    done: list[str]  # names of mutations


def make(seed: int) -> Case:
    """The broken job of a seed."""
    rng = random.Random(seed)
    golden = seed % 4 == 0 and bool(JOBS)
    stream = rng.choice(bases(golden))
    lists = [(a, stream.words(a, n)) for a, n in stream.lists]
    funcs, weights = zip(*MUTATIONS, strict=True)
    names = []
    for mutate in rng.choices(funcs, weights, k=min(12, 1 + int(rng.expovariate(0.6)))):
        mutate(rng.choice(lists)[1], rng, stream)
        names.append(mutate.__name__)
    lengths = {a: len(w) for a, w in lists}
    starts = []
    for s in stream.starts:
        start = s._replace(words=max(1, lengths[s.iova] if rng.random() < 0.8 else s.words))
        if rng.random() < 0.1:
            names.append("start")
            start = _any_start(start, stream, rng)
        starts.append(start)
    bus: list[tuple[int, int]] = []
    if rng.random() < 0.05:
        names.append("bus")
        bus = _over_the_bus(lists[0][1], rng)
    lists.reverse()  # where one has grown into the next, the earlier one is whole
    return Case(stream, lists, starts, bus, names)


def _any_start(start: Start, stream: Stream, rng: random.Random) -> Start:
    """Any arguments that the drivers' structures hold."""
    iova, words, tasks, mask = start.iova, start.words, start.task_number, start.int_mask
    what = rng.randrange(5)
    if what == 0:
        r = rng.choice(stream.regions)
        ends = (r.iova, r.iova + r.data.size - 8, rng.getrandbits(32), 0, 0xFFFFFFFF)
        iova = rng.choice((iova + 8, iova + 16, *ends))
    elif what == 1:
        words = rng.choice((1, 2, 3, 5, words * 2, 1 << 14, 1 << 16, rng.getrandbits(32)))
    elif what == 2:
        tasks = rng.choice((0, 1, 2, 3, 4095, rng.randrange(4096)))
    elif what == 3:
        mask = rng.choice(EVENTS)
    return Start(iova, words, tasks, mask, rng.random() < 0.5, rng.random() < 0.5)


def _over_the_bus(words: Words, rng: random.Random) -> list[tuple[int, int]]:
    """The list as register writes, some of them anywhere; then starts."""
    writes = [(w & 0xFFFF, w >> 16 & 0xFFFFFFFF) for w in words]
    for _ in range(rng.randrange(4)):
        offset = rng.choice((rng.choice(ADDRESSES), rng.getrandbits(16), rng.getrandbits(32)))
        at = rng.randrange(len(writes) + 1)
        writes.insert(at, (offset, rng.getrandbits(rng.choice((1, 8, 32, 64)))))
    units = rng.choice((0x1D, 0x18, 0x60, rng.getrandbits(8)))
    writes.append((global_.OPERATION_ENABLE.address, units))
    return [*writes, (pc.OPERATION_ENABLE.address, 1), (pc.INTERRUPT_CLEAR.address, 0xFFFFFFFF)]


# -- what must hold --------------------------------------------------------------------------


class Broken(AssertionError):
    """The emulator did what it must not."""


class Rig:
    """Both machines, and a good job to try them with."""

    def __init__(self) -> None:
        self.strict = Machine(cores=1, policy=TIGHT)
        self.hardware = Machine(cores=1, policy=TIGHT, strict=False)
        bench = Bench()
        bench.put(X, np.arange(64, dtype=np.uint8))
        tasks = bench.place((flying(Precision.INT8, 4), FLYING))
        small = [Buffer(0, 0, CODE, bench.memory[CODE : CODE + 4096].copy())]
        small.append(Buffer(0, 0, X, bench.memory[X : X + 4096].copy()))
        small.append(Buffer(0, OUTPUT_ROLE, Y, np.zeros(4096, np.uint8)))
        self.good = Stream.of("good", Capture(tasks, small, CHAINED), lambda b: b.iova == Y)

    def check(self, case: Case) -> str:
        """What became of it, in a word; raises `Broken`."""
        told, rule = self._strict(case)
        bytes_strict = case.stream.written()
        case.stream.load(case.lists)
        results = self._go(self.hardware, case)
        if told is None:
            broken = [v.rule for r in results if r for v in r.violations]
            if not broken and not any(r and r.fault for r in results):
                raise Broken(f"strict mode refuses by {rule}, hardware mode minds nothing")
            outcome = "refused"
        else:
            for a, b in zip(told, results, strict=True):
                if repr(a) != repr(b):
                    raise Broken(f"strict mode gives {a}, hardware mode {b}")
            if bytes_strict != case.stream.written():
                raise Broken("strict and hardware mode write different bytes")
            outcome = "done" if all(r is None or r.completed for r in told) else "faults"
        for machine in (self.strict, self.hardware):
            machine.reset(0)
            self.good.load([])
            (r,) = _run_all(machine, self.good, self.good.starts)
            out = self.good.regions[2].data
            if not r.completed or not np.array_equal(out[:64], np.arange(64)) or out[64:].any():
                raise Broken(f"after a reset a good job gives {r}")
        return outcome

    def _strict(self, case: Case) -> tuple[list[RunResult | None] | None, str]:
        case.stream.load(case.lists)
        try:
            return self._go(self.strict, case), ""
        except ViolationError as e:
            return None, str(e)

    def _go(self, machine: Machine, case: Case) -> list[RunResult | None]:
        machine.reset(0)
        if not case.bus:
            return [*_run_all(machine, case.stream, case.starts)]
        machine.attach(0, case.stream.space)
        out = []
        for offset, value in case.bus:
            machine.write_register(0, offset, value)
            machine.read_register(0, offset)
            if offset in (pc.OPERATION_ENABLE.address, global_.OPERATION_ENABLE.address):
                out.append(machine.last_result(0))
        machine.irq(0)
        return [*out]


def shown(case: Case) -> str:
    """The words that are not as they were, and what it is started with."""
    lines = [f"{case.stream.name}: {', '.join(case.done)}; starts {case.starts}"]
    for iova, words in reversed(case.lists):
        old = case.stream.words(iova, dict(case.stream.lists)[iova])
        for i, word in enumerate(words):
            if i >= len(old) or word != old[i]:
                lines.append(f"  {iova:#x} word {i}: {word:#018x}")
    if case.bus:
        lines.append("  over the bus: " + ", ".join(f"{o:#x} {v:#x}" for o, v in case.bus))
    return "\n".join(lines)


def attempt(rig: Rig, seed: int) -> tuple[str, str]:
    """(outcome, what is wrong or "")."""
    case = make(seed)
    try:
        return rig.check(case), ""
    except Exception as e:
        where = traceback.extract_tb(e.__traceback__)[-1]
        rig.strict.reset(0)
        rig.hardware.reset(0)
        return "wrong", (
            f"{seed} [{case.stream.name}: {' '.join(case.done)}] {type(e).__name__}: {e} "
            f"({where.filename.rsplit('/', 2)[-1]}:{where.lineno})\n{shown(case)}"
        )


# -- the script ------------------------------------------------------------------------------


def _alarm(number: int, frame: Any) -> None:
    raise TimeoutError(f"longer than {SECONDS} s")


def _work(first: int, last: int, at: mmap.mmap, tell: int) -> None:
    """Try the seeds; ``at`` says where it is, in case that it is killed."""
    warnings.simplefilter("error")
    rig = Rig()
    data = int(Path("/proc/self/statm").read_text().split()[5]) * mmap.PAGESIZE
    resource.setrlimit(resource.RLIMIT_DATA, (data + MEMORY_BYTES,) * 2)
    signal.signal(signal.SIGALRM, _alarm)
    counts: collections.Counter[str] = collections.Counter()
    worst = (0.0, first)
    for seed in range(first, last):
        at[:8] = seed.to_bytes(8, "little")
        signal.setitimer(signal.ITIMER_REAL, SECONDS)
        started = time.perf_counter()
        outcome, problem = attempt(rig, seed)
        signal.setitimer(signal.ITIMER_REAL, 0)
        worst = max(worst, (time.perf_counter() - started, seed))
        counts[outcome] += 1
        if problem:
            os.write(tell, f"{problem}\n".encode())
    os.write(tell, f"= {dict(counts)!r} {worst[0]:.2f} {worst[1]}\n".encode())


def run(first: int, last: int, chunk: int = 20000, jobs: int = 1) -> int:
    """Try seeds in processes of ``chunk`` seeds; prints what is wrong.  Returns how many."""
    bases(False), bases(bool(JOBS))  # before the fork
    started = time.perf_counter()
    todo = [(a, min(a + chunk, last)) for a in range(first, last, chunk)][::-1]
    running: dict[int, tuple[int, int, mmap.mmap, int]] = {}
    counts: collections.Counter[str] = collections.Counter()
    worst, wrong, tried = (0.0, first), 0, 0
    while todo or running:
        while todo and len(running) < jobs:
            a, b = todo.pop()
            at = mmap.mmap(-1, 8)
            told = os.memfd_create("told")
            pid = os.fork()
            if not pid:
                try:
                    _work(a, b, at, told)
                except BaseException:
                    traceback.print_exc()
                    os._exit(1)
                os._exit(0)
            running[pid] = (a, b, at, told)
        pid, status = os.wait()
        a, b, at, told = running.pop(pid)
        os.lseek(told, 0, os.SEEK_SET)
        with os.fdopen(told) as lines:
            for line in lines:
                if line.startswith("= "):
                    shown, took, seed = line[2:].rsplit(" ", 2)
                    counts.update(eval(shown))
                    worst = max(worst, (float(took), int(seed)))
                else:
                    wrong += line[0].isdigit()
                    print(line, end="", flush=True)
        tried += b - a
        if status:
            wrong += 1
            seed = int.from_bytes(at[:8], "little")
            print(f"{seed} ended the process with status {status}", flush=True)
            todo.append((seed + 1, b))
            tried -= b - seed - 1
        rate = tried / (time.perf_counter() - started)
        print(
            f"{tried} streams, {rate:.0f}/s, {wrong} wrong, {dict(counts)}, longest "
            f"{worst[0]:.2f} s (seed {worst[1]})",
            file=sys.stderr,
            flush=True,
        )
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("seeds", help="FIRST:LAST, or one seed to look at")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    args = parser.parse_args()
    first, colon, last = args.seeds.partition(":")
    if colon:
        return bool(run(int(first), int(last), jobs=args.jobs))
    case = make(int(first))
    print(shown(case))
    print(Rig().check(case))
    return 0


if __name__ == "__main__":
    sys.exit(main())
