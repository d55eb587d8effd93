"""An activation behind a convolution runs in its task, and computes the same."""

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
from opennpu.compile import State, compile_state
from opennpu.ops import OPS

Array = npt.NDArray[Any]
node = helper.make_node
SHAPE = (1, 16, 9, 7)
ACTIVATIONS: dict[str, dict[str, Any]] = {
    "Sigmoid": {},
    "Tanh": {},
    "Erf": {},
    "LeakyRelu": {"alpha": 0.1},
    "HardSigmoid": {"alpha": 0.2, "beta": 0.5},
    "HardSwish": {},
    "Softplus": {},
    "Elu": {"alpha": 1.0},
    "Selu": {},
}
ONE_TASK = ("Sigmoid", "Tanh", "Erf", "LeakyRelu", "HardSigmoid")


def net(op: str, weighted: str = "Conv", seen: bool = False) -> onnx.ModelProto:
    """Conv or MatMul, then the activation; ``seen``: the sum is an output too."""
    rng = np.random.default_rng(1)
    if weighted == "Conv":
        c = {"w": rng.normal(size=(24, 16, 3, 3)) / 6, "b": rng.normal(size=24)}
        nodes = [node("Conv", ["x", "w", "b"], ["s"], "conv", pads=[1] * 4)]
        shape: tuple[int, ...] = SHAPE
    else:
        c = {"w": rng.normal(size=(40, 24)) / 3}
        nodes = [node("MatMul", ["x", "w"], ["s"], "conv")]
        shape = (5, 40)
    if op == "Silu":
        nodes += [node("Sigmoid", ["s"], ["g"], "gate"), node("Mul", ["s", "g"], ["y"], "act")]
    else:
        nodes.append(node(op, ["s"], ["y"], "act", **ACTIVATIONS[op]))
    constants = {k: v.astype(np.float16).astype(np.float32) for k, v in c.items()}
    return model(nodes, {"x": shape}, dict.fromkeys(("y", *["s"][: int(seen)]), None), constants)


def numbers(m: onnx.ModelProto, seed: int = 0) -> Array:
    shape = [d.dim_value for d in m.graph.input[0].type.tensor_type.shape.dim]
    return np.random.default_rng(seed).normal(size=shape).astype(np.float16).astype(np.float32)


def tasks(state: State) -> int:
    return sum(n.get("tasks", 0) for n in state.program.meta["nodes"])


def run(state: State, x: Array) -> Array:
    with opennpu.InferenceSession(state.program, device="emulator") as session:
        return np.asarray(session.run(["y"], {"x": x})[0])


@pytest.mark.parametrize("weighted", ["Conv", "MatMul"])
@pytest.mark.parametrize("op", ACTIVATIONS)
def test_fp16_keeps_its_bound(op: str, weighted: str) -> None:
    m = net(op, weighted)
    x = numbers(m)
    state = compile_state(m)
    assert (tasks(state) == 1) == (op in ONE_TASK)
    (want,) = ort.InferenceSession(m.SerializeToString()).run(None, {"x": x})
    np.testing.assert_allclose(run(state, x), want, atol=1e-3 * np.abs(want).max())


@pytest.mark.parametrize("weighted", ["Conv", "MatMul"])
@pytest.mark.parametrize("op", ["Silu", *ACTIVATIONS])
def test_int8_rounds_once(op: str, weighted: str) -> None:
    m = net(op, weighted)
    state = compile_state(m, precision="int8", calibration=[{"x": numbers(m, s)} for s in range(4)])
    assert tasks(state) == 1
    graph = state.graph
    (only,) = graph.nodes
    x, quant, out = numbers(m), graph.values["x"].quant, graph.values["y"].quant
    assert quant is not None and out is not None
    x = ((quant.quantize(x) - quant.zero_point) * quant.scale).astype(np.float32)
    consts = [graph.constants[i] for i in only.inputs[1:]]
    scale = graph.values[only.inputs[1]].quant
    assert scale is not None
    steps = [-1 if i == scale.axis else 1 for i in range(consts[0].ndim)]
    weights = consts[0].astype(np.float32) * scale.scale.reshape(steps)
    want = out.quantize(OPS[only.op].reference(only, x, weights, *consts[1:]))
    got = out.quantize(run(state, x))
    assert np.abs(got.astype(int) - want).max() <= 1


def test_a_sum_that_others_read_keeps_its_node() -> None:
    assert tasks(compile_state(net("Sigmoid", seen=True))) == 2


def test_codes_that_the_model_asks_for_are_kept() -> None:
    m = net("Sigmoid")
    conv, act = m.graph.node
    conv.output[0] = "raw"
    pair = [
        node("QuantizeLinear", ["raw", "step", "zero"], ["codes"], "q"),
        node("DequantizeLinear", ["codes", "step", "zero"], ["s"], "dq"),
    ]
    ends = [
        node("QuantizeLinear", ["in", "step", "zero"], ["in codes"], "q in"),
        node("DequantizeLinear", ["in codes", "step", "zero"], ["x"], "dq in"),
        node("QuantizeLinear", ["out", "fine", "zero"], ["out codes"], "q out"),
        node("DequantizeLinear", ["out codes", "fine", "zero"], ["y"], "dq out"),
    ]
    weights = [
        node("DequantizeLinear", ["w codes", "step", "zero"], ["w"], "dq w"),
    ]
    act.output[0] = "out"
    kept = {i.name: onnx.numpy_helper.to_array(i) for i in m.graph.initializer}
    step = np.float32(0.05)
    kept["w codes"] = np.clip(np.rint(kept.pop("w") / step), -127, 127).astype(np.int8)
    kept |= {"step": step, "fine": np.float32(1 / 255), "zero": np.int8(0)}
    nodes = [*ends[:2], *weights, conv, *pair, act, *ends[2:]]
    m = model(nodes, {"in": SHAPE}, {"y": None}, {k: np.asarray(v) for k, v in kept.items()})
    state = compile_state(m)
    assert [n.op for n in state.graph.nodes if n.op in ("Conv", "Sigmoid")] == ["Conv", "Sigmoid"]
    x = numbers(m)
    (want,) = ort.InferenceSession(m.SerializeToString()).run(None, {"in": x})
    with opennpu.InferenceSession(state.program, device="emulator") as session:
        (got,) = session.run(None, {"in": x})
    # a code of the sum may fall on the other side of a half
    assert (np.abs(got - want) <= 0.05 / 4 + 1.01 / 255).all()
    codes = np.arange(-128, 128, dtype=np.float32)
    possible = np.clip(np.rint(255 / (1 + np.exp(-codes * step))), -128, 127)
    assert set(np.rint(got * 255).reshape(-1)) <= set(possible)
