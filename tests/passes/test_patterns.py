"""Activations that exporters write out become one node; anything else stays as it is."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper

import opennpu
from nets import model
from opennpu.frontends.onnx import load_model
from opennpu.passes import run_passes

node = helper.make_node
SHAPE = (1, 16, 5, 6)
CONSTANTS = {
    "half": 0.5,
    "one": 1.0,
    "two": 2.0,
    "three": 3.0,
    "six": 6.0,
    "zero": 0.0,
    "sixth": 1 / 6,
    "root2": np.sqrt(2),
    "over": 1 / np.sqrt(2),
    "quick": 1.702,
    "cubic": 0.044715,
    "inner": np.sqrt(2 / np.pi),
    "tenth": 0.1,
    "nearly": 1.41,
}
Step = tuple[str, str, str]
"""Operator, inputs, output."""

PATTERNS: dict[str, tuple[str, dict[str, Any], tuple[Step, ...]]] = {
    "SiLU": ("Silu", {}, (("Sigmoid", "x", "a"), ("Mul", "x a", "y"))),
    "SiLU, swapped": ("Silu", {}, (("Sigmoid", "x", "a"), ("Mul", "a x", "y"))),
    "SiLU by division": (
        "Silu",
        {},
        (("Neg", "x", "a"), ("Exp", "a", "b"), ("Add", "b one", "c"), ("Div", "x c", "y")),
    ),
    "quick GELU": (
        "Silu",
        {"alpha": 1.702},
        (("Mul", "x quick", "a"), ("Sigmoid", "a", "b"), ("Mul", "x b", "y")),
    ),
    "GELU, PyTorch's order": (
        "Gelu",
        {},
        (
            ("Div", "x root2", "a"),
            ("Erf", "a", "b"),
            ("Add", "b one", "c"),
            ("Mul", "x c", "d"),
            ("Mul", "d half", "y"),
        ),
    ),
    "GELU, half first": (
        "Gelu",
        {},
        (
            ("Mul", "x half", "h"),
            ("Mul", "x over", "a"),
            ("Erf", "a", "b"),
            ("Add", "one b", "c"),
            ("Mul", "h c", "y"),
        ),
    ),
    "GELU by tanh": (
        "Gelu",
        {"approximate": "tanh"},
        (
            ("Pow", "x three", "a"),
            ("Mul", "a cubic", "b"),
            ("Add", "x b", "c"),
            ("Mul", "c inner", "d"),
            ("Tanh", "d", "e"),
            ("Add", "e one", "f"),
            ("Mul", "x half", "g"),
            ("Mul", "g f", "y"),
        ),
    ),
    "HardSwish by ReLU6": (
        "HardSwish",
        {},
        (
            ("Add", "x three", "a"),
            ("Clip", "a zero six", "b"),
            ("Mul", "x b", "c"),
            ("Div", "c six", "y"),
        ),
    ),
    "HardSwish, gate first": (
        "HardSwish",
        {},
        (
            ("Add", "x three", "a"),
            ("Clip", "a zero six", "b"),
            ("Mul", "b sixth", "c"),
            ("Mul", "c x", "y"),
        ),
    ),
    "HardSigmoid by ReLU6": (
        "HardSigmoid",
        {"alpha": 1 / 6, "beta": 0.5},
        (("Add", "x three", "a"), ("Clip", "a zero six", "b"), ("Div", "b six", "y")),
    ),
    "Mish": ("Mish", {}, (("Softplus", "x", "a"), ("Tanh", "a", "b"), ("Mul", "x b", "y"))),
    "Softplus": ("Softplus", {}, (("Exp", "x", "a"), ("Add", "a one", "b"), ("Log", "b", "y"))),
    "Softsign": ("Softsign", {}, (("Abs", "x", "a"), ("Add", "a one", "b"), ("Div", "x b", "y"))),
    "LeakyRelu": ("LeakyRelu", {"alpha": 0.1}, (("Mul", "x tenth", "a"), ("Max", "x a", "y"))),
}
OTHERS: dict[str, tuple[Step, ...]] = {
    "another root": (
        ("Div", "x nearly", "a"),
        ("Erf", "a", "b"),
        ("Add", "b one", "c"),
        ("Mul", "x c", "d"),
        ("Mul", "d half", "y"),
    ),
    "half is missing": (
        ("Div", "x root2", "a"),
        ("Erf", "a", "b"),
        ("Add", "b one", "c"),
        ("Mul", "x c", "y"),
    ),
    "two tensors": (
        ("Sigmoid", "x", "a"),
        ("Abs", "x", "z"),
        ("Exp", "z", "w"),
        ("Mul", "w a", "y"),
    ),
}


def written_out(steps: tuple[Step, ...], extra: tuple[str, ...] = ()) -> onnx.ModelProto:
    """A model of these steps; node names are those of their results."""
    nodes = [node(op, i.split(), [o], f"/act/{o}") for op, i, o in steps]
    constants = {k: np.asarray(v, np.float32) for k, v in CONSTANTS.items()}
    return model(nodes, {"x": SHAPE}, dict.fromkeys(("y", *extra), None), constants)


@pytest.mark.parametrize("name", PATTERNS)
def test_an_activation_in_pieces_is_one_node_named_after_its_last(name: str) -> None:
    op, attrs, steps = PATTERNS[name]
    graph = run_passes(load_model(written_out(steps)).graph)
    (only,) = graph.nodes
    assert (only.op, only.name, dict(only.attrs)) == (op, "/act/y", pytest.approx(attrs))
    assert set(only.sources) == {f"/act/{o}" for *_, o in steps}


@pytest.mark.parametrize("name", PATTERNS)
def test_the_one_node_computes_what_onnxruntime_does(name: str) -> None:
    m = written_out(PATTERNS[name][2])
    x = np.random.default_rng(0).normal(size=SHAPE).astype(np.float16).astype(np.float32) * 3
    (want,) = ort.InferenceSession(m.SerializeToString()).run(None, {"x": x})
    program = opennpu.compile(m)
    assert program.meta["nodes"][0]["where"] != "CPU"
    with opennpu.InferenceSession(program, device="emulator") as session:
        (got,) = session.run(None, {"x": x})
    np.testing.assert_allclose(got, want, atol=4e-3 * np.abs(want).max())


@pytest.mark.parametrize("name", OTHERS)
def test_other_functions_stay_in_pieces(name: str) -> None:
    graph = run_passes(load_model(written_out(OTHERS[name])).graph)
    assert not {n.op for n in graph.nodes} & {"Silu", "Gelu", "HardSwish"}


def test_a_gate_that_others_read_stays() -> None:
    graph = run_passes(load_model(written_out(PATTERNS["SiLU"][2], ("a",))).graph)
    assert {n.op for n in graph.nodes} == {"Sigmoid", "Mul"}


@pytest.mark.parametrize(("op", "opset"), [("HardSwish", 17), ("Mish", 18), ("Swish", 24)])
def test_what_onnxruntime_writes_out_keeps_the_user_s_name(op: str, opset: int) -> None:
    m = model([node(op, ["x"], ["y"], "/act/y")], {"x": SHAPE}, {"y": None}, opset=opset)
    (only,) = run_passes(load_model(m).graph).nodes
    assert (only.op, only.name) == ("Silu" if op == "Swish" else op, "/act/y")
