"""What the benchmarks share: the model, a photograph, onnxruntime's time, bounds."""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from examples.mobilenet.export import mobilenet_v2
from examples.mobilenet.images import photograph, preprocess

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Row:
    """One measurement against its bound."""

    name: str
    value: float
    unit: str
    bound: float

    @property
    def good(self) -> bool:
        return self.value <= self.bound


def median_s(step: Callable[[], Any], runs: int) -> float:
    """Median wall time of ``step`` after one warm-up."""
    step()
    times = []
    for _ in range(runs):
        started = time.perf_counter()
        step()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def setup() -> tuple[Any, Array, float]:
    """(MobileNetV2, one photograph, seconds of one onnxruntime inference of it)."""
    model = mobilenet_v2()
    x = preprocess(photograph("chelsea"))
    session = ort.InferenceSession(model.SerializeToString())
    return model, x, median_s(lambda: session.run(None, {"image": x}), 15)


def peak_rss_gib() -> float:
    """Largest resident size of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def report(rows: list[Row], onnxruntime_s: float) -> int:
    """Print all rows; exit code 1 if one is over its bound."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", action="store_true")
    if parser.parse_args().json:
        data = {"onnxruntime_ms": 1000 * onnxruntime_s, "rows": [asdict(r) for r in rows]}
        print(json.dumps(data, indent=2))
    else:
        print(f"onnxruntime CPU, one inference: {1000 * onnxruntime_s:.1f} ms")
        for r in rows:
            verdict = "ok" if r.good else "OVER"
            print(f"{r.name}: {r.value:.4g} {r.unit} (at most {r.bound:g}) {verdict}")
    assert all(np.isfinite(r.value) for r in rows)
    return 0 if all(r.good for r in rows) else 1
