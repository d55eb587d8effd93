"""How long one inference takes, and under which conditions."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from opennpu.device import open_device
from opennpu.device.base import Device, closing
from opennpu.emu.timing import Rates
from opennpu.errors import InputError
from opennpu.program import Array, Program
from opennpu.runtime.session import InferenceSession
from opennpu.tools.profile import conditions, profile, rates_of, sample_of


@dataclass(frozen=True)
class Latency:
    """Least, median and largest of some runs."""

    what: str
    time_is: str  # "measured", "predicted", "predicted and measured"
    min_s: float
    median_s: float
    max_s: float
    runs: int
    conditions: str

    def __str__(self) -> str:
        low, mid, high = (f"{1e3 * x:.3f}" for x in (self.min_s, self.median_s, self.max_s))
        spread = f"{mid} ms" if self.runs == 1 else f"{low} / {mid} / {high} ms"
        return f"{self.what}: {spread} ({self.time_is}; {self.conditions})"


@dataclass(frozen=True)
class Bench:
    """All latencies of one program on one device."""

    device: str
    conditions: Mapping[str, str]
    latencies: tuple[Latency, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "device": self.device,
            "conditions": dict(self.conditions),
            "latencies": [asdict(x) for x in self.latencies],
        }


def bench(
    program: Program,
    device: str | Device | None = None,
    *,
    runs: int = 10,
    feeds: Mapping[str, Array] | None = None,
    rates: Rates | None = None,
) -> Bench:
    """Run a program ``runs`` times after a warm-up.

    On a board all times are measured.  Elsewhere the NPU's time is predicted, and the wall time
    says only how long this computer needs to emulate.
    """
    if runs < 1:
        raise InputError("-n", f"{runs} runs were asked for, at least 1 is needed", "Give 10")
    if device is None or isinstance(device, str):
        with closing(open_device(device)) as opened:
            return bench(program, opened, runs=runs, feeds=feeds, rates=rates)
    rates = rates or rates_of(program)
    feeds = feeds if feeds is not None else sample_of(program)
    info = device.info
    found = conditions(info, rates)
    wall, npu, host = [], [], []
    with InferenceSession(program, device) as session:
        session.run(None, feeds)
        for _ in range(runs):
            began = time.perf_counter()
            session.run(None, feeds)
            wall.append(time.perf_counter() - began)
            assert session.last is not None
            npu.append(session.last.npu_s)
            host.append(session.last.host_s)
    facts = ", ".join(f"{k} {v}" for k, v in found.items() if k != "predicted for")
    model = f"{info.name}, {found.get('predicted for', '')}"

    def row(what: str, time_is: str, times: list[float], given: str) -> Latency:
        return Latency(
            what, time_is, min(times), statistics.median(times), max(times), len(times), given
        )

    rows = []
    if info.measured:
        rows.append(row("end to end", "measured", wall, facts))
        rows.append(row("NPU", "measured", npu, facts))
    else:
        p = profile(program, device, feeds=feeds, rates=rates, runs=1)
        rest = p.totals["end to end"] - p.totals["onnxruntime"]
        whole = "predicted and measured" if any(host) else "predicted"
        given = f"{model}; onnxruntime on {facts}" if any(host) else model
        rows.append(row("end to end", whole, sorted({rest + h for h in host}), given))
        rows.append(row("NPU", "predicted", [p.totals["NPU layers"] + p.totals["submits"]], model))
    if any(host):
        rows.append(row("onnxruntime", "measured", host, facts))
    if not info.measured:
        rows.append(row("wall time of this emulation", "measured", wall, facts))
    return Bench(info.name, found, tuple(rows))
