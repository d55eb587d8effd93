"""What calibration sees does not depend on how it looks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

from nets import model, random_feeds, small_cnn
from opennpu.frontends import calibration
from opennpu.frontends.calibration import calibrate
from opennpu.frontends.onnx import load_model
from opennpu.passes import run_passes
from opennpu.passes.quantize import METHODS, quantize

FEEDS = [random_feeds(small_cnn(), seed) for seed in range(3)]


@pytest.mark.parametrize("method", sorted(METHODS))
def test_a_model_watched_in_parts_has_the_same_statistics(method: str, monkeypatch: Any) -> None:
    imported = load_model(small_cnn())
    graph = run_passes(imported.graph)
    whole = calibrate(imported, graph, FEEDS, method)
    monkeypatch.setattr(calibration, "WATCH_BYTES", 3000)
    parts = calibrate(imported, graph, FEEDS, method)
    assert whole.ranges == parts.ranges
    assert whole.means.keys() == parts.means.keys()
    assert all(np.array_equal(whole.means[k], parts.means[k]) for k in whole.means)


@pytest.mark.parametrize("method", sorted(METHODS))
def test_ranges_hold_zero_and_lie_within_the_extremes(method: str) -> None:
    imported = load_model(small_cnn())
    graph = run_passes(imported.graph)
    extremes = calibrate(imported, graph, FEEDS, "minmax").ranges
    for name, (low, high) in calibrate(imported, graph, FEEDS, method).ranges.items():
        assert extremes[name][0] <= low <= 0 <= high <= extremes[name][1]
    assert extremes["d"][1] <= 6  # behind a Clip


def test_a_value_that_overflows_stays_float() -> None:
    m = model(
        [
            helper.make_node("Exp", ["x"], ["e"], "exp"),
            helper.make_node("Relu", ["e"], ["r"], "relu"),
            helper.make_node("Conv", ["x", "w"], ["c"], "conv"),
        ],
        {"x": (1, 1, 2, 2)},
        {"r": (1, 1, 2, 2), "c": (1, 1, 2, 2)},
        {"w": np.ones((1, 1, 1, 1), np.float32)},
    )
    imported = load_model(m)
    graph = run_passes(imported.graph)
    seen = calibrate(imported, graph, [{"x": np.full((1, 1, 2, 2), 1000, np.float32)}])
    assert "e" not in seen.ranges and "c" in seen.ranges
    values = quantize(graph, seen).values
    assert values["r"].quant is None and values["c"].quant is not None


def test_sums_with_constants_are_int8_too() -> None:
    """int8 has no Add by a constant, but a depthwise convolution of 1x1 is the same."""
    m = model(
        [
            helper.make_node("Conv", ["x", "w"], ["c"], "conv"),
            helper.make_node("Sigmoid", ["c"], ["s"], "sigmoid"),
            helper.make_node("Add", ["c", "k"], ["a"], "add"),
            helper.make_node("Clip", ["a", "low", "high"], ["y"], "clip"),
        ],
        {"x": (1, 2, 2, 2)},
        {"s": (1, 2, 2, 2), "y": (1, 2, 2, 2)},
        {
            "w": np.ones((2, 2, 1, 1), np.float32),
            "k": np.float32([[[3]], [[-1]]]),
            "low": np.float32(0),
            "high": np.float32(6),
        },
    )
    imported = load_model(m)
    graph = run_passes(imported.graph)
    seen = calibrate(imported, graph, [random_feeds(m)])
    add = next(n for n in quantize(graph, seen).nodes if n.name == "add")
    assert (add.op, add.attrs["group"], len(add.epilogue)) == ("Conv", 2, 1)
