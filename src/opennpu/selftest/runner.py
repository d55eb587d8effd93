"""Run the self-test and gather one report."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any, Literal

from opennpu.device import host, open_device
from opennpu.device.base import Device, DeviceInfo
from opennpu.emu.machine import Machine
from opennpu.errors import InputError, NPUError, UnsupportedError
from opennpu.hw.regs import REGISTERS
from opennpu.hw.rk3588 import dpu_rdma
from opennpu.hw.rk3588.common import Precision
from opennpu.ops import Target
from opennpu.selftest.bench import DeviceBench, Hung, MachineBench
from opennpu.selftest.cases import CASES, Case, Check, on_core
from opennpu.selftest.operators import OperatorCase, operator_cases
from opennpu.selftest.programs import CONV, FLYING, Conv, flying
from opennpu.selftest.questions import QUESTIONS, Question

Status = Literal["passed", "failed", "skipped"]
Progress = Callable[[str, float], None]
NO_PPU = "needs the PPU, whose interrupt this driver masks"
NO_CHAIN = "needs several tasks in one start, this driver starts each by itself"


@dataclass(frozen=True, slots=True)
class Outcome:
    """One test."""

    name: str
    source: str  # of the claim
    status: Status
    problem: str = ""  # why it failed or was skipped
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Answer:
    """What the device says to an open question."""

    switch: str  # of `opennpu.emu.numerics.Policy`
    question: str
    emulator: str  # the reading that the emulator takes
    device: tuple[str, ...]  # readings that give the device's bytes; none: all are wrong
    problem: str = ""  # why it was not asked, or failed


@dataclass(slots=True)
class Report:
    """All that the self-test found.  ``fields``: see `evidence`."""

    opennpu: str
    date: str
    device: dict[str, Any]
    host: dict[str, str]
    tests: list[Outcome] = field(default_factory=list)
    questions: list[Answer] = field(default_factory=list)
    fields: dict[str, dict[str, Any]] = field(default_factory=dict)

    def count(self, status: Status) -> int:
        return sum(t.status == status for t in self.tests)

    def to_json(self) -> dict[str, Any]:
        """Plain data, counts first."""
        counts = {s: self.count(s) for s in ("passed", "failed", "skipped")}
        return {**counts, **asdict(self)}


def selftest(
    device: str | Device | None = None,
    *,
    only: str = "",
    faults: bool = False,
    fields: bool = False,
    progress: Progress = lambda name, done: None,
) -> Report:
    """Run the tests whose names contain ``only``.

    device: name or open device; None: the board, if there is one, else the emulator.
    faults: also run programs that hang or fault, and see that the next job is right.
    fields: work out, on the emulator, which register fields each passed test depends on.
    Raises DeviceNotFound, DeviceError, InputError; what goes wrong in tests is in the report.
    """
    opened = open_device(device) if device is None or isinstance(device, str) else device
    try:
        info = opened.info
        report = Report(
            version("opennpu"),
            datetime.now(UTC).isoformat(timespec="seconds"),
            asdict(info),
            host.describe(),
        )
        todo = [t for t in _tests(opened, faults) if only in t[0]]
        asked = [q for q in QUESTIONS if only in f"question: {q.switch}"]
        if not todo and not asked:
            raise InputError("selftest", f"{only!r} is in none of the names", "See --list")
        total = len(todo) + len(asked)
        for i, (name, source, run) in enumerate(todo):
            progress(name, i / total)
            report.tests.append(_outcome(name, source, run))
        for i, q in enumerate(asked, len(todo)):
            progress(q.switch, i / total)
            report.questions.append(_ask(opened, q))
    finally:
        if opened is not device:
            opened.close()
    if fields:
        passed = {t.name for t in report.tests if t.status == "passed"}
        report.fields = evidence([c for c in CASES if c.name in passed], progress)
    return report


def names(faults: bool = True) -> list[str]:
    """Of all tests and questions."""
    tests = [name for name, _, _ in _tests(None, faults)]
    return tests + [f"question: {q.switch}" for q in QUESTIONS]


# -- tests ---------------------------------------------------------------------------------------


class _Skip(Exception):
    """Not on this device."""


Test = tuple[str, str, Callable[[], str]]


def _tests(device: Device | None, faults: bool) -> Iterator[Test]:
    """(name, source, run), which returns the problem; None: only the names are wanted."""
    for case in CASES:
        yield case.name, case.source, _later(_run_case, case, device)
    for name, op, sample, precision in operator_cases():
        if op.aliases or not sample.ok:
            continue

        def run(op: Any = op, sample: Any = sample, precision: Any = precision) -> str:
            opened = _given(device)
            target = Target(opened.info.name, ppu=opened.info.ppu)
            try:
                return OperatorCase(op, sample, precision).problem(opened, target)
            except UnsupportedError as e:  # the emulator's target takes it, this one does not
                raise _Skip(str(e)) from None

        yield f"operator: {name}", "docs/reference/operators.md", run
    if faults:
        for name, source, break_it in FAULTS:
            yield name, source, _later(_after_fault, break_it, device)


def _later(
    run: Callable[[Any, Device], str], what: Any, device: Device | None
) -> Callable[[], str]:
    return lambda: run(what, _given(device))


def _given(device: Device | None) -> Device:
    assert device is not None
    return device


def _run_case(case: Case, device: Device) -> str:
    missing = lacks(case, device.info)
    if missing:
        raise _Skip(missing)
    return problem(case.run(DeviceBench(device)))


def lacks(case: Case, info: DeviceInfo) -> str:
    """Why a device cannot run a case; "" if it can."""
    if case.ppu and not info.ppu:
        return NO_PPU
    if case.chained and not info.chained:
        return NO_CHAIN
    if case.cores > info.cores:
        return f"needs {case.cores} cores, an open file of this driver has {info.cores}"
    return ""


def problem(checks: list[Check]) -> str:
    """The first difference."""
    return next((c.problem for c in checks if c.problem), "")


def _outcome(name: str, source: str, run: Callable[[], str]) -> Outcome:
    started = time.perf_counter()
    try:
        found = run()
        status: Status = "failed" if found else "passed"
    except _Skip as e:
        status, found = "skipped", str(e)
    except NPUError as e:
        status, found = "failed", str(e)
    except Exception as e:  # a board can surprise: the other tests go on
        status, found = "failed", f"{type(e).__name__}: {e}"
    return Outcome(name, source, status, found, time.perf_counter() - started)


def _ask(device: Device, q: Question) -> Answer:
    default = str(q.readings[0])
    if q.ppu and not device.info.ppu:
        return Answer(q.switch, q.text, default, (), NO_PPU)
    try:
        seen = q.observe(DeviceBench(device))
    except NPUError as e:
        return Answer(q.switch, q.text, default, (), str(e))
    return Answer(q.switch, q.text, default, tuple(str(r) for r in q.answers(seen)))


# -- faults --------------------------------------------------------------------------------------

NOWHERE = 0x8000_0000  # both drivers hand out addresses from an end of the 4 GiB


def _hang(bench: DeviceBench) -> None:
    """DPU_RDMA waits for a main stream that nobody feeds (board notes A.10)."""
    conv = Conv(Precision.INT8, 4, 4, 32, 32)
    bench.start((conv.body(dpu_rdma.RDMA_FEATURE_MODE_CFG()), CONV))


def _unmapped(bench: DeviceBench) -> None:
    """The source lies in no buffer."""
    source = dpu_rdma.RDMA_SRC_BASE_ADDR(src_base_addr=NOWHERE)
    bench.start((flying(Precision.FP16, 4, source), FLYING))


FAULTS = (
    ("fault: a job that hangs", "board notes A.10", _hang),
    ("fault: an address without memory", "register notes G", _unmapped),
)


def _after_fault(break_it: Callable[[DeviceBench], None], device: Device) -> str:
    """The broken job is reported, and the next one is right."""
    try:
        break_it(DeviceBench(device))
    except NPUError:
        return problem(on_core(0, DeviceBench(device)))
    return "the device says that the job is done"


# -- what a pass says about fields ---------------------------------------------------------------


ENOUGH = 2  # cases per field


def evidence(
    cases: Sequence[Case], progress: Progress = lambda name, done: None
) -> dict[str, dict[str, Any]]:
    """Register fields that the cases depend on: "CNA.CONV_CON1.conv_mode" -> trust and cases.

    A case depends on a field if inverting its lowest or highest bit makes the case give other
    bytes on the emulator, or hang.  So if the case passes on a board, the board reads the field
    as the emulator does.  At most `ENOUGH` cases are named for a field, small ones first.
    """
    benches = []
    for case in cases:
        bench = MachineBench()
        started = time.perf_counter()
        case.run(bench)
        benches.append((time.perf_counter() - started, case, bench.writes))
    benches.sort(key=lambda b: b[0])
    found: dict[str, list[str]] = defaultdict(list)
    for i, (_, case, writes) in enumerate(benches):
        progress(f"fields of {case.name}", i / len(benches))
        last = {type(w): k for k, w in enumerate(writes)}
        for register, k in last.items():
            for name, f in register.fields.items():
                key = f"{register.block.name}.{register.__name__}.{name}"
                if len(found[key]) < ENOUGH and any(_fails(case, k, b) for b in {f.low, f.high}):
                    found[key].append(case.name)
    return {
        name: {"trust": _trust(name), "cases": found[name]} for name in sorted(found) if found[name]
    }


def _fails(case: Case, write: int, bit: int) -> bool:
    bench = MachineBench(Machine(strict=False), flip=(write, bit))
    try:
        return bool(problem(case.run(bench)))
    except Hung:
        return True
    except (NPUError, ValueError):  # the emulator does not know what a board does
        return False


def _trust(name: str) -> str:
    block, register, field_name = name.split(".")
    for r in REGISTERS.values():
        if (r.block.name, r.__name__) == (block, register):
            return str(r.fields[field_name].trust.value)
    raise KeyError(name)
