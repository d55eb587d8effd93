"""Run the float model on calibration data and choose a range for each activation."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import onnx

from opennpu.errors import InputError, ModelError
from opennpu.frontends.onnx import Imported
from opennpu.ir.graph import Array, Graph, node_reads
from opennpu.passes.quantize import BINS, METHODS, Statistics

WATCH_BYTES = 1 << 28
"""Most that intermediate values of one run may take; a larger model runs several times."""


def _observed(graph: Graph) -> list[str]:
    """Float activations that calibration watches."""
    names = {v for n in graph.nodes for v in (*node_reads(n), *n.outputs) if v}
    return sorted(
        v for v in names if v not in graph.constants and graph.values[v].dtype == "float32"
    )


def calibrate(
    imported: Imported,
    graph: Graph,
    data: Iterable[Mapping[str, Array]],
    method: str = "mse",
) -> Statistics:
    """Run the float model on ``data``: a range and the channel means of each activation.

    method: "minmax", "percentile" (99.99 % of the elements), "mse" (least squared error of
        the rounded values), "entropy" (least Kullback-Leibler divergence).
    Outputs of the model keep their extremes: to clip the largest logit is to lose the answer.
    Two passes: extremes and means first, then histograms of 2048 bins.
    A value that becomes infinite or NaN has no range: the operators around it stay float.
    Raises ModelError, InputError.
    """
    if method not in METHODS:
        raise ModelError(
            "calibration",
            f"method is {method!r}, of {len(METHODS)}",
            f"Use one of {sorted(METHODS)}",
        )
    samples = list(data)
    if not samples:
        raise ModelError(
            "calibration",
            "there are 0 samples, at least 1 is needed",
            "Pass calibration=[{input: array}, …]",
        )
    for k, feeds in enumerate(samples):
        _check_finite(k, feeds)
    names = [v for v in _observed(graph) if v not in graph.inputs]
    watches = [_Watch(imported, group) for group in _groups(graph, names)]
    low: dict[str, float] = {}
    high: dict[str, float] = {}
    sums: dict[str, Array] = {}
    wild: set[str] = set()
    for feeds in samples:
        for name, a in _run_all(watches, feeds):
            if not np.isfinite(a).all():
                wild.add(name)
                continue
            if a.ndim > 1:
                axis = 1 if a.ndim > 2 else a.ndim - 1
                others = tuple(i for i in range(a.ndim) if i != axis)
                sums[name] = sums.get(name, np.zeros(a.shape[axis])) + a.mean(others, np.float64)
            low[name] = min(low.get(name, 0.0), float(a.min()))
            high[name] = max(high.get(name, 0.0), float(a.max()))
    for name in wild:
        low.pop(name, None)
    means = {n: total / len(samples) for n, total in sums.items()}
    if method == "minmax":
        return Statistics({n: (low[n], high[n]) for n in low}, means)
    counts = {n: np.zeros(BINS, np.int64) for n in low}
    for feeds in samples:
        for name, a in _run_all(watches, feeds):
            if name in low and high[name] > low[name]:
                counts[name] += np.histogram(a, BINS, (low[name], high[name]))[0]
    choose = METHODS[method]
    ranges = {
        n: choose(counts[n], low[n], high[n])
        if high[n] > low[n] and n not in graph.outputs
        else (low[n], high[n])
        for n in low
    }
    return Statistics(ranges, means)


def run_float(imported: Imported, feeds: Mapping[str, Array], names: list[str]) -> dict[str, Array]:
    """Values called ``names`` in the float model.  Raises InputError."""
    values = dict(_Watch(imported, names).run(feeds))
    return {n: np.asarray(values[n]) for n in names}


def _check_finite(k: int, feeds: Mapping[str, Array]) -> None:
    for name, a in feeds.items() if isinstance(feeds, Mapping) else ():
        a = np.asarray(a)
        bad = a.size - int(np.isfinite(a).sum()) if a.dtype.kind == "f" else 0
        if bad:
            raise InputError(
                name,
                f"calibration sample {k} has {bad} of {a.size} elements that are infinite or NaN",
                "Leave that sample out",
            )


def _groups(graph: Graph, names: list[str]) -> Iterator[list[str]]:
    """Names in runs of no more than WATCH_BYTES together; at least one run."""
    group: list[str] = []
    nbytes = 0
    for name in names:
        value = graph.values[name]
        size = math.prod(value.shape) * np.dtype(value.dtype).itemsize
        if group and nbytes + size > WATCH_BYTES:
            yield group
            group, nbytes = [], 0
        group.append(name)
        nbytes += size
    yield group


def _run_all(watches: list[_Watch], feeds: Mapping[str, Array]) -> Iterator[tuple[str, Array]]:
    """(name, value) of every input and every watched value that has elements."""
    for k, watch in enumerate(watches):
        for name, a in watch.run(feeds):
            if np.size(a) and (k == 0 or name not in watch.inputs):
                yield name, np.asarray(a)


class _Watch:
    """The float model with its intermediate values as outputs."""

    def __init__(self, imported: Imported, names: list[str]) -> None:
        import onnxruntime as ort

        model = onnx.ModelProto()
        model.CopyFrom(imported.model)
        there = {o.name for o in model.graph.output}
        for name in names:
            if name not in there:
                model.graph.output.add().name = name
        options = ort.SessionOptions()
        options.log_severity_level = 4
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        self.names = names
        self.inputs = imported.graph.inputs
        try:
            self.session = ort.InferenceSession(
                model.SerializeToString(), options, providers=["CPUExecutionProvider"]
            )
        except Exception as e:
            text = " ".join(str(e).split())[:300].rstrip(".")
            raise ModelError(
                "compile",
                f"onnxruntime cannot run the model on samples: {text}",
                "Compile with precision='fp16', or without the operator that it does not know",
            ) from None

    def run(self, feeds: Mapping[str, Array]) -> Iterable[tuple[str, Array]]:
        """(name, value) of every input and intermediate value of one sample."""
        try:
            given = dict(feeds)
            missing = [n for n in self.inputs if n not in given]
            if missing:
                raise ValueError(f"it lacks {missing[0]}, one of {len(self.inputs)} inputs")
            # onnxruntime takes no names at all for all names
            results = self.session.run(self.names, given) if self.names else []
        except Exception as e:
            text = " ".join(str(e).split())[:300].rstrip(".")
            raise InputError(
                "compile", f"a sample does not fit the model: {text}", "Pass what run() takes"
            ) from None
        yield from ((n, feeds[n]) for n in self.inputs)
        yield from zip(self.names, results, strict=True)
