"""Where the time goes: each layer's time, work, traffic, and what bounds it.

On a board the layers are timed one by one, each as a job of its own.  Elsewhere their time is
*predicted* by the cycle model of `opennpu.emu.timing` from what each task computes and moves,
the same numbers that the compiler chose the tiles with.  Nodes in onnxruntime are measured on
the computer that this runs on.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import numpy as np

from opennpu.device import host, open_device
from opennpu.device.base import Device, DeviceInfo, closing
from opennpu.emu import timing
from opennpu.emu.timing import Rates
from opennpu.hw.rk3588.chip import MACS_PER_CYCLE
from opennpu.hw.rk3588.common import Precision
from opennpu.program import (
    Array,
    HostSegment,
    NpuSegment,
    PlacedTask,
    Program,
    ValueInfo,
)
from opennpu.runtime.session import InferenceSession
from opennpu.tools import page
from opennpu.tools.data import random_feeds
from opennpu.tools.layers import layers, one_job_each

Bound = Literal["MAC", "DMA", "dispatch", "host"]
BOUNDS: Sequence[Bound] = ("MAC", "DMA", "dispatch", "host")
RUNS = 5
"""Runs of which the median counts, on a board and in onnxruntime."""


@dataclass(frozen=True, slots=True)
class LayerTime:
    """One layer on the NPU, or one segment in onnxruntime."""

    name: str
    op: str
    segment: str
    precision: str
    seconds: float
    measured: bool  # False: predicted
    bound: Bound  # the largest part of the predicted time
    tasks: int = 0
    macs: int = 0  # that the model asks for
    read_bytes: int = 0
    write_bytes: int = 0
    mac_s: float = 0.0  # predicted parts: the MAC array, traffic, starts
    dma_s: float = 0.0
    dispatch_s: float = 0.0
    utilisation: float | None = None  # MACs a cycle over the array's peak; None without MACs

    @property
    def where(self) -> str:
        """NPU or CPU."""
        return "CPU" if self.bound == "host" else "NPU"


@dataclass(frozen=True, slots=True)
class Span:
    """Something that takes time in an inference."""

    name: str
    lane: Literal["NPU", "host"]
    kind: Literal["layer", "submit", "pack", "unpack", "onnxruntime"]
    seconds: float
    measured: bool


@dataclass(frozen=True)
class Profile:
    """One inference."""

    model: str
    device: str
    conditions: Mapping[str, str]
    rates: Rates
    layers: tuple[LayerTime, ...]  # in the order they run
    spans: tuple[Span, ...]
    whole_s: float | None = None  # a board: one run as it is, measured

    def total(self, *kinds: str) -> float:
        """Seconds of all spans of these kinds."""
        return sum(s.seconds for s in self.spans if s.kind in kinds)

    @property
    def totals(self) -> dict[str, float]:
        """Seconds by kind, and their sum."""
        return {
            "NPU layers": self.total("layer"),
            "submits": self.total("submit"),
            "host packs inputs": self.total("pack"),
            "host unpacks outputs": self.total("unpack"),
            "onnxruntime": self.total("onnxruntime"),
            "end to end": sum(s.seconds for s in self.spans),
        }

    def word(self, kinds: Sequence[str]) -> str:
        """How the numbers of these kinds of spans came to be."""
        found = {s.measured for s in self.spans if s.kind in kinds}
        return {frozenset({True}): "measured", frozenset({False}): "predicted"}.get(
            frozenset(found), "predicted and measured" if found else "none"
        )

    @property
    def utilisation(self) -> float | None:
        """Of all NPU layers, weighted by their time."""
        npu = [x for x in self.layers if x.where == "NPU"]
        seconds = sum(x.seconds for x in npu)
        used = sum((x.utilisation or 0.0) * x.seconds for x in npu)
        return used / seconds if seconds else None

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "model": self.model,
            "device": self.device,
            "conditions": dict(self.conditions),
            "rates": asdict(self.rates),
            "layers": [
                {**asdict(x), "where": x.where, "time_is": _word(x.measured)} for x in self.layers
            ],
            "totals_s": self.totals,
            "totals_are": {k: self.word(v) for k, v in KINDS.items()},
            "utilisation": self.utilisation,
            "whole_run_measured_s": self.whole_s,
        }

    def to_trace(self) -> dict[str, Any]:
        """Chrome's trace event format, which Perfetto reads too."""
        lanes = {"NPU": 1, "host": 2}
        events: list[dict[str, Any]] = [
            {"name": "process_name", "ph": "M", "pid": 1, "args": {"name": self.model or "model"}}
        ]
        events += [
            {"name": "thread_name", "ph": "M", "pid": 1, "tid": t, "args": {"name": lane}}
            for lane, t in lanes.items()
        ]
        details = {x.name: x for x in self.layers}
        for start, s in self.placed():
            args: dict[str, Any] = {"time": _word(s.measured)}
            if s.kind == "layer":
                args |= {
                    k: v for k, v in asdict(details[s.name]).items() if k not in ("name", "seconds")
                }
            events.append(
                {
                    "name": s.name,
                    "cat": s.kind,
                    "ph": "X",
                    "ts": 1e6 * start,
                    "dur": 1e6 * s.seconds,
                    "pid": 1,
                    "tid": lanes[s.lane],
                    "args": args,
                }
            )
        return {
            "traceEvents": events,
            "displayTimeUnit": "ms",
            "otherData": {"device": self.device, **self.conditions},
        }

    def placed(self) -> list[tuple[float, Span]]:
        """Spans with their start: one after the other, as a session runs them."""
        at, out = 0.0, []
        for s in self.spans:
            out.append((at, s))
            at += s.seconds
        return out

    def to_html(self) -> str:
        """A page of its own."""
        return _html(self)


KINDS = {
    "NPU layers": ("layer",),
    "submits": ("submit",),
    "host packs inputs": ("pack",),
    "host unpacks outputs": ("unpack",),
    "onnxruntime": ("onnxruntime",),
    "end to end": ("layer", "submit", "pack", "unpack", "onnxruntime"),
}


def _word(measured: bool) -> str:
    return "measured" if measured else "predicted"


def rates_of(program: Program) -> Rates:
    """What the cycle model takes for the program's driver."""
    options = program.meta.get("options", {})
    return timing.ROCKET if options.get("target") == "rocket" else timing.SAFE


def conditions(info: DeviceInfo, rates: Rates) -> dict[str, str]:
    """What a number depends on: the board as found, or the parameters of the prediction."""
    found = {"device": info.name}
    if info.driver:
        found["driver"] = info.driver
    found.update(host.describe())
    if not info.measured:
        found["predicted for"] = (
            f"{rates.clock_hz / 1e6:g} MHz, {rates.core_bytes_per_second / 1e9:g} GB/s, one core"
        )
    return found


def profile(
    program: Program,
    device: str | Device | None = None,
    *,
    feeds: Mapping[str, Array] | None = None,
    rates: Rates | None = None,
    runs: int = RUNS,
) -> Profile:
    """One inference, layer by layer.

    device: as `open_device` takes it.  A board measures; elsewhere a model runs only if it has
        nodes in onnxruntime, whose inputs come from there.
    feeds: default: the program's stored sample, else random numbers.
    rates: of the cycle model; default: by the program's target.
    Raises what `InferenceSession` raises.
    """
    if device is None or isinstance(device, str):
        with closing(open_device(device)) as opened:
            return profile(program, opened, feeds=feeds, rates=rates, runs=runs)
    rates = rates or rates_of(program)
    feeds = feeds if feeds is not None else sample_of(program)
    info = device.info
    found = _Made(program, rates)
    whole = None
    if info.measured:
        whole = _measure(program, device, feeds, runs, found)
    elif any(isinstance(s, HostSegment) for s in program.segments):
        found.host_s.update(_host_times(program, device, feeds, runs))
    found.build(chained=info.chained and program_chained(program))
    return Profile(
        str(program.meta.get("model", "")),
        info.name,
        conditions(info, rates),
        rates,
        tuple(found.layers),
        tuple(found.spans),
        whole,
    )


def program_chained(program: Program) -> bool:
    """Does the driver that the program is for run a list of tasks in one start?"""
    return bool(program.meta.get("options", {}).get("target") != "rocket")


def sample_of(program: Program) -> dict[str, Array]:
    """The stored sample, else random numbers."""
    if program.samples:
        return {v.name: program.samples[f"input/{v.name}"] for v in program.inputs}
    return random_feeds(program.inputs)


@dataclass
class _Made:
    """Layers and spans of a program, with what was measured of them so far."""

    program: Program
    rates: Rates
    layers: list[LayerTime] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    npu_s: dict[str, float] = field(default_factory=dict)  # measured, by segment/layer
    host_s: dict[str, float] = field(default_factory=dict)  # measured, by segment

    def build(self, chained: bool) -> None:
        nodes = {n["name"]: n for n in self.program.meta.get("nodes", [])}
        for s in self.program.segments:
            if isinstance(s, HostSegment):
                self._host(s, nodes)
            else:
                self._npu(s, nodes, chained)

    def _host(self, s: HostSegment, nodes: Mapping[str, Mapping[str, Any]]) -> None:
        names = [name for name, _ in s.nodes]
        label = names[0] if len(names) == 1 else f"{s.name}: {', '.join(names)}"
        seconds = self.host_s[s.name]
        op = nodes.get(label, {}).get("op", f"{len(names)} nodes")
        self.layers.append(LayerTime(label, op, s.name, "float", seconds, True, "host"))
        self.spans.append(Span(label, "host", "onnxruntime", seconds, True))

    def _npu(self, s: NpuSegment, nodes: Mapping[str, Mapping[str, Any]], chained: bool) -> None:
        r = self.rates
        packed = sum(t.nbytes for t in s.inputs)
        synced = 2 * s.arena_bytes  # the CPU's view of a buffer syncs it on entry and on exit
        pack_s = timing.host_seconds(packed, 0, synced, r)
        self.spans.append(Span(f"pack for {s.name}", "host", "pack", pack_s, False))
        if not self.npu_s:  # a measured layer is a job of its own, its submit included
            submit = r.submit_s + r.attach_s
            self.spans.append(Span(f"submit {s.name}", "host", "submit", submit, False))
        for part in layers(s):
            entry = nodes.get(part.node, {})
            layer = self._layer(s, part.node, part.tasks, entry, chained)
            self.layers.append(layer)
            self.spans.append(Span(layer.name, "NPU", "layer", layer.seconds, layer.measured))
        unpacked = sum(t.nbytes for t in s.outputs)
        unpack_s = timing.host_seconds(0, unpacked, synced, r)
        self.spans.append(Span(f"unpack after {s.name}", "host", "unpack", unpack_s, False))

    def _layer(
        self,
        s: NpuSegment,
        node: str,
        tasks: Sequence[PlacedTask],
        entry: Mapping[str, Any],
        chained: bool,
    ) -> LayerTime:
        r = self.rates
        costs = [t.cost for t in tasks]
        moved = sum(c.read_bytes + c.write_bytes for c in costs)
        mac_s = timing.task_seconds(sum(c.mac_cycles for c in costs), 0, r)
        dma_s = timing.task_seconds(0, moved, r)
        dispatch_s = len(tasks) * (r.kick_chained_s if chained else r.kick_gapped_s)
        parts: list[tuple[float, Bound]] = [
            (mac_s, "MAC"),
            (dma_s, "DMA"),
            (dispatch_s, "dispatch"),
        ]
        measured = self.npu_s.get(f"{s.name}/{node}")
        seconds = mac_s + dma_s + dispatch_s if measured is None else measured
        macs = sum(c.macs for c in costs)
        precision = str(entry.get("precision", "fp16"))
        return LayerTime(
            node,
            str(entry.get("op", "")),
            s.name,
            precision,
            seconds,
            measured is not None,
            max(parts)[1],
            len(tasks),
            macs,
            sum(c.read_bytes for c in costs),
            sum(c.write_bytes for c in costs),
            mac_s,
            dma_s,
            dispatch_s,
            macs / (seconds * r.clock_hz * peak_macs(precision)) if macs and seconds else None,
        )


def peak_macs(precision: str) -> int:
    """MACs a cycle of one core."""
    return {p.name.lower(): n for p, n in MACS_PER_CYCLE.items()}.get(
        precision, MACS_PER_CYCLE[Precision.FP16]
    )


def _measure(
    program: Program, device: Device, feeds: Mapping[str, Array], runs: int, found: _Made
) -> float:
    """On a board: medians of each layer as its own job; seconds of a run as it is."""
    seen: dict[str, list[float]] = {}
    with InferenceSession(one_job_each(program), device) as session:
        session.run(None, feeds)  # the first run is slower: caches, clocks
        for _ in range(runs):
            session.run(None, feeds)
            assert session.last is not None
            for x in session.last.segments:
                seen.setdefault(x.name, []).append(x.seconds)
    for s in program.segments:
        if isinstance(s, HostSegment):
            found.host_s[s.name] = statistics.median(seen.pop(s.name))
    found.npu_s.update({name: statistics.median(x) for name, x in seen.items()})
    whole = []
    with InferenceSession(program, device) as session:
        session.run(None, feeds)
        for _ in range(runs):
            began = time.perf_counter()
            session.run(None, feeds)
            whole.append(time.perf_counter() - began)
    return statistics.median(whole)


def _host_times(
    program: Program, device: Device, feeds: Mapping[str, Array], runs: int
) -> dict[str, float]:
    """Seconds of each host segment, on the values that it gets in one run on ``device``."""
    hosts = [s for s in program.segments if isinstance(s, HostSegment)]
    known = {
        t.name: ValueInfo(t.name, t.shape, t.dtype)
        for s in program.segments
        if isinstance(s, NpuSegment)
        for t in s.outputs
    }
    needed = [n for n in dict.fromkeys(i for s in hosts for i in s.inputs) if n not in feeds]
    shown = tuple(known.get(n, ValueInfo(n, (), "float32")) for n in needed)
    values = dict(feeds)
    with InferenceSession(replace(program, outputs=shown), device) as session:
        values.update(zip(needed, session.run(None, feeds), strict=True))
        assert session.last is not None
        seconds = {x.name: x.seconds for x in session.last.segments if x.kind == "host"}
    for s in hosts:
        given = {n: values[n] for n in s.inputs}
        if not all(isinstance(a, np.ndarray) for a in given.values()):
            continue  # a sequence or an optional: one run has to do
        infos = tuple(ValueInfo(n, a.shape, a.dtype.name) for n, a in given.items())
        taken = []
        with InferenceSession(Program(infos, (), (s,)), device) as session:
            for _ in range(runs + 1):
                session.run(None, given)
                assert session.last is not None
                taken.append(session.last.host_s)
        seconds[s.name] = statistics.median(taken[1:])
    return seconds


# -- text and page ---------------------------------------------------------------------------

COLUMNS = (
    *("layer", "operator", "type", "time us", "time is", "bound", "tasks"),
    *("MACs", "read", "written", "used"),
)


def row(x: LayerTime) -> list[str]:
    """The cells of a layer, as `COLUMNS` names them."""
    npu = x.where == "NPU"
    return [
        x.name,
        x.op,
        x.precision,
        f"{1e6 * x.seconds:.1f}",
        _word(x.measured),
        x.bound,
        str(x.tasks) if npu else "-",
        f"{x.macs:,}" if npu else "-",
        f"{x.read_bytes:,}" if npu else "-",
        f"{x.write_bytes:,}" if npu else "-",
        "-" if x.utilisation is None else f"{100 * x.utilisation:.1f} %",
    ]


def total_lines(p: Profile) -> list[str]:
    """The totals as sentences."""
    lines = [
        f"{name}: {1e3 * seconds:.3f} ms ({p.word(KINDS[name])})"
        for name, seconds in p.totals.items()
        if seconds
    ]
    if p.whole_s is not None:
        lines.append(f"one run as it is: {1e3 * p.whole_s:.3f} ms (measured)")
    if p.utilisation is not None:
        lines.append(f"array used: {100 * p.utilisation:.1f} % of its peak in the NPU layers' time")
    return lines


def _html(p: Profile) -> str:
    kinds = ("layer", "submit", "pack", "unpack", "onnxruntime")
    spans = [
        page.Span(
            s.lane,
            f"{s.name} ({_word(s.measured)})",
            1e3 * at,
            1e3 * s.seconds,
            kinds.index(s.kind),
        )
        for at, s in p.placed()
    ]
    npu = [x for x in p.layers if x.where == "NPU"]
    measured = any(x.measured for x in npu)
    precisions = sorted({x.precision for x in npu})
    widest = max(precisions, key=peak_macs, default="fp16")
    chart = [
        page.Bar(
            x.name,
            ((x.seconds, 3),)
            if x.where == "CPU"
            else ((x.seconds, BOUNDS.index(x.bound)),)
            if x.measured
            else ((x.mac_s, 0), (x.dma_s, 1), (x.dispatch_s, 2)),
            f"{1e6 * x.seconds:.1f} us, {x.bound}",
        )
        for x in p.layers
    ]
    points = [
        page.Point(
            x.name,
            x.macs / max(1, x.read_bytes + x.write_bytes),
            x.macs / x.seconds if x.seconds else 0.0,
            precisions.index(x.precision),
        )
        for x in npu
    ]
    word = _word(measured)
    return page.page(
        f"Profile of {p.model or 'the program'}",
        [
            page.facts(dict(p.conditions)),
            *[page.paragraph(line) for line in total_lines(p)],
            page.heading(f"Timeline of one inference (NPU: {word})"),
            page.timeline("timeline", spans, kinds, "ms"),
            page.heading(f"Time by layer ({word})"),
            page.paragraph(
                "By what bounds each layer."
                if measured
                else "Array cycles, traffic and starts add up; the longest part is the bound.",
                "note",
            ),
            page.bars("time by layer", chart, BOUNDS),
            page.heading(
                f"Roofline ({word}; {widest} peak of one core at {p.rates.clock_hz / 1e6:g} MHz)"
            ),
            page.roofline(
                "roofline",
                points,
                precisions,
                p.rates.clock_hz * peak_macs(widest),
                p.rates.core_bytes_per_second,
            ),
            page.heading("Layers in the order they run"),
            page.table(COLUMNS, [row(x) for x in p.layers], set(COLUMNS[3:4] + COLUMNS[6:])),
        ],
    )


def dumps(p: Profile) -> str:
    """The profile as JSON text."""
    return json.dumps(p.to_json(), indent=2, allow_nan=False)
