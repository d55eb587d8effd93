"""Blocks of real networks with gates, which stay on the NPU in one segment."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
import pytest
from onnx import helper

import opennpu
from nets import model

Array = npt.NDArray[Any]
node = helper.make_node
SHAPE = (1, 16, 14, 14)


def squeeze_excite(gate: str, act: str) -> onnx.ModelProto:
    """Conv, activation, depthwise, gate per channel from the mean, Conv: EfficientNet's block."""
    rng = np.random.default_rng(3)
    c: dict[str, Array] = {"three": np.float32(3), "zero": np.float32(0), "six": np.float32(6)}

    def w(*shape: int) -> str:
        name = f"w{len(c)}"
        c[name] = (rng.normal(size=shape) * np.sqrt(2 / np.prod(shape[1:]))).astype(np.float32)
        return name

    nodes = [node("Conv", ["x", w(40, 16, 1, 1)], ["a"], "expand")]
    if act == "SiLU":
        nodes += [node("Sigmoid", ["a"], ["s"], "s"), node("Mul", ["a", "s"], ["b"], "act")]
    else:
        nodes += [
            node("Add", ["a", "three"], ["a3"], "plus"),
            node("Clip", ["a3", "zero", "six"], ["r"], "relu6"),
            node("Div", ["r", "six"], ["r6"], "sixth"),
            node("Mul", ["a", "r6"], ["b"], "act"),
        ]
    nodes += [
        node("Conv", ["b", w(40, 1, 3, 3)], ["d"], "dw", group=40, pads=[1] * 4),
        node("GlobalAveragePool", ["d"], ["m"], "squeeze"),
        node("Conv", ["m", w(8, 40, 1, 1)], ["f"], "reduce"),
        node("Relu", ["f"], ["g"], "relu"),
        node("Conv", ["g", w(40, 8, 1, 1)], ["h"], "excite"),
        node(gate, ["h"], ["i"], "gate"),
        node("Mul", ["d", "i"], ["j"], "scale"),
        node("Conv", ["j", w(16, 40, 1, 1)], ["k"], "project"),
        node("Add", ["k", "x"], ["y"], "join"),
    ]
    return model(nodes, {"x": SHAPE}, {"y": SHAPE}, {k: np.asarray(v) for k, v in c.items()})


def numbers(seed: int) -> Array:
    return np.random.default_rng(seed).normal(size=SHAPE).astype(np.float32)


@pytest.mark.parametrize("precision", ["fp16", "int8"])
@pytest.mark.parametrize(("gate", "act"), [("Sigmoid", "SiLU"), ("HardSigmoid", "HardSwish")])
def test_a_gated_block_is_one_segment(gate: str, act: str, precision: Any) -> None:
    m = squeeze_excite(gate, act)
    data = [{"x": numbers(s)} for s in range(8)] if precision == "int8" else None
    program = opennpu.compile(m, precision=precision, calibration=data)
    assert [n["reason"] for n in program.meta["nodes"] if n["where"] == "CPU"] == []
    assert len(program.segments) == 1
    x = numbers(99)
    (want,) = ort.InferenceSession(m.SerializeToString()).run(None, {"x": x})
    with opennpu.InferenceSession(program, device="emulator") as session:
        (got,) = session.run(None, {"x": x})
    cosine = float((got * want).sum() / np.sqrt((got**2).sum() * (want**2).sum()))
    assert cosine > (0.99999 if precision == "fp16" else 0.998)
