"""Models that must be refused, each with its sentence: where, what, what to do."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

import opennpu
from nets import model, random_feeds, small_cnn
from opennpu.errors import InputError, ModelError, NPUError
from opennpu.frontends.onnx import load_model

Array = npt.NDArray[Any]
node = helper.make_node
SMALL = small_cnn().SerializeToString()


def refusal(call: Callable[[], object], kind: type[NPUError] = ModelError) -> str:
    with pytest.raises(kind) as caught:
        call()
    return str(caught.value)


# -- files -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (
            b"",
            "0 bytes hold a model of 0 nodes and 0 outputs, at least 1 output is needed. "
            "Give an ONNX file.",
        ),
        (
            SMALL[:1000],
            "1000 bytes are not an ONNX model: the file is cut off or of another kind. "
            "Export or copy it again.",
        ),
        (
            b"a text file\n" * 20,
            "240 bytes are not an ONNX model: the file is cut off or of another kind. "
            "Export or copy it again.",
        ),
        (
            random.Random(0).randbytes(5000),
            "5000 bytes are not an ONNX model: the file is cut off or of another kind. "
            "Export or copy it again.",
        ),
    ],
    ids=["empty", "truncated", "text", "random"],
)
def test_bytes_of_another_kind(data: bytes, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(data)
    assert refusal(lambda: opennpu.compile(path)) == f"{path}: {sentence}"
    assert refusal(lambda: opennpu.compile(data)) == f"model: {sentence}"


def test_no_such_file_and_a_folder(tmp_path: Path) -> None:
    absent = tmp_path / "absent.onnx"
    remedy = "Give the path of an ONNX file."
    assert refusal(lambda: load_model(absent)) == f"{absent}: No such file or directory. {remedy}"
    assert refusal(lambda: load_model(tmp_path)) == f"{tmp_path}: Is a directory. {remedy}"


def external(folder: Path) -> Path:
    path = folder / "m.onnx"
    onnx.save(small_cnn(), str(path), save_as_external_data=True, size_threshold=64)
    return path


def test_weights_in_another_file_that_is_not_there(tmp_path: Path) -> None:
    path = external(tmp_path)
    assert load_model(path).graph.constants["w2"].shape == (16, 16, 1, 1)
    data = next(p for p in tmp_path.iterdir() if p != path)
    data.unlink()
    said = refusal(lambda: load_model(path))
    assert said.startswith(f"{path}: its external data cannot be read: ")
    assert said.endswith(". Keep both files together.")


def test_weights_in_a_file_that_bytes_cannot_name(tmp_path: Path) -> None:
    data = external(tmp_path).read_bytes()
    said = refusal(lambda: load_model(data))
    assert re.fullmatch(
        r"model: \d+ of its \d+ constants, \w+ first, lie in another file\. "
        r"Pass the path of the model, or load the external data into it\.",
        said,
    )


@given(st.integers(0, len(SMALL) - 1))
@settings(deadline=None, max_examples=60)
def test_a_file_cut_anywhere_is_refused_or_complete(cut: int) -> None:
    try:
        load_model(SMALL[:cut])
    except ModelError as e:
        assert str(e).endswith(".")


@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=4))
@settings(deadline=None, max_examples=60)
def test_flipped_bytes_are_refused_or_compile(flips: list[tuple[int, int]]) -> None:
    data = bytearray(SMALL)
    for at, value in flips:
        data[at % len(data)] = value
    try:
        opennpu.compile(bytes(data))
    except NPUError as e:
        assert str(e).endswith(".")


def test_names_that_are_no_text() -> None:
    data = SMALL.replace(b"softmax", b"soft\xffax")
    assert refusal(lambda: load_model(data)) == (
        "model: its name b'soft\\xffax' is not UTF-8. Export or copy it again."
    )


# -- graphs ----------------------------------------------------------------------------------


def typed(nodes: list[onnx.NodeProto], inputs: Any, outputs: Any, opset: int = 17) -> Any:
    graph = helper.make_graph(nodes, "net", inputs, outputs)
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("acme", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def tensor(name: str, shape: Any, kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def sequence(name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_sequence_value_info(name, TensorProto.FLOAT, [4])


X, Y = [tensor("x", [1, 4])], [tensor("y", [1, 4])]
GRAPHS: dict[str, tuple[onnx.ModelProto, str]] = {
    "unknown operator": (
        typed([node("Foo", ["x"], ["y"], "foo", domain="acme")], X, Y),
        "foo: operator Foo of domain 'acme' is known neither to opennpu nor to onnxruntime (*). "
        "Register it as an operator (docs/how-to/add-an-operator.md), or export without it.",
    ),
    "unknown operator among others": (
        typed(
            [
                node("Sin", ["x"], ["a"], "sin"),
                node("Foo", ["a"], ["b"], "foo", domain="acme"),
                node("Cos", ["b"], ["y"], "cos"),
            ],
            X,
            Y,
        ),
        "foo: operator Foo of domain 'acme' is known neither to opennpu nor to onnxruntime (*). "
        "Register it as an operator (docs/how-to/add-an-operator.md), or export without it.",
    ),
    "unknown operator of ONNX itself": (
        typed([node("Frobnicate", ["x"], ["y"], "f")], X, Y),
        "net: No Op registered for Frobnicate with domain_version of 17*. Export the model again.",
    ),
    "cycle": (
        typed([node("Relu", ["y"], ["a"], "r"), node("Relu", ["a"], ["y"], "s")], X, Y),
        "net: Nodes in a graph must be topologically sorted, however input 'y' of node: "
        "name: r OpType: Relu is not output of any previous nodes. Export the model again.",
    ),
    "missing constant": (
        typed([node("Add", ["x", "w"], ["y"], "add")], X, Y),
        "net: Nodes in a graph must be topologically sorted, however input 'w' of node: "
        "name: add OpType: Add is not output of any previous nodes. Export the model again.",
    ),
    "shapes that do not fit": (
        typed([node("MatMul", ["x", "x"], ["y"], "mm")], X, Y),
        "net: onnxruntime refuses it: *mm* Incompatible dimensions*. Export the model again.",
    ),
    "convolution in 0 groups": (
        model(
            [node("Conv", ["x", "w"], ["y"], "conv", group=0)],
            {"x": (1, 4, 5, 5)},
            {"y": (1, 4, 5, 5)},
            {"w": np.ones((4, 4, 1, 1), np.float32)},
        ),
        "conv: Conv has 4 filters in 0 groups. Export the model again.",
    ),
    "opset that onnxruntime has forgotten": (
        typed([node("Add", ["x", "x"], ["y"], "add", broadcast=0)], X, Y, 6),
        "net: onnxruntime refuses it: *implementation for Add(6) node with name 'add'. "
        "Export the model again with opset 7 or newer, this has 6.",
    ),
    "opset of the future": (
        typed([node("Relu", ["x"], ["y"], "r")], X, Y, 999),
        f"net: its opset is 999, onnx {onnx.__version__} knows those up to "
        f"{onnx.defs.onnx_opset_version()}. "
        "Update onnx and onnxruntime, or export with an older opset.",
    ),
    "input without a shape": (
        typed([node("Relu", ["x"], ["y"], "r")], [tensor("x", None)], Y),
        "net: input x has no shape. Export it with one.",
    ),
    "input of strings": (
        typed(
            [node("Identity", ["x"], ["y"], "i")],
            [tensor("x", [1], TensorProto.STRING)],
            [tensor("y", [1], TensorProto.STRING)],
        ),
        "x: this input of net is of type STRING, programs take numbers of 8 to 64 bits. "
        "Cut the model where it is a tensor of numbers.",
    ),
    "output that is a sequence": (
        typed([node("SequenceConstruct", ["x"], ["y"], "s")], X, [sequence("y")]),
        "y: this output of net is a sequence, programs take tensors. "
        "Cut the model where it is a tensor.",
    ),
    "output whose size depends on the data": (
        typed(
            [node("NonZero", ["x"], ["y"], "nz")],
            X,
            [tensor("y", [2, None], TensorProto.INT64)],
        ),
        "y: the shape of this output depends on the data: 2, ?. "
        "Cut the model before the node that makes it so (NonZero, NonMaxSuppression, …).",
    ),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_graphs(name: str) -> None:
    m, sentence = GRAPHS[name]
    pattern = re.escape(sentence).replace(r"\*", ".*")
    assert re.fullmatch(pattern, refusal(lambda: opennpu.compile(m)))


# -- dimensions ------------------------------------------------------------------------------


def open_cnn() -> onnx.ModelProto:
    m = small_cnn(batch="batch")
    m.graph.input[0].type.tensor_type.shape.dim[3].ClearField("dim_value")
    return m


@pytest.mark.parametrize(
    ("fix", "sentence"),
    [
        (
            {},
            "x: axis 0 has the open size 'batch', a program needs a number. "
            "Fix it with fix_dims={'batch': 1} or --fix-dim batch=1.",
        ),
        (
            {"batch": 1},
            "x: axis 3 has the open size '?', a program needs a number. "
            "Fix it with fix_dims={'x:3': 1} or --fix-dim x:3=1.",
        ),
        (
            {"batch": 0, "x:3": 16},
            "x: axis 0 is fixed to 0, the least is 1. Give a size.",
        ),
        (
            {"batch": 1, "x:3": 16, "width": 3},
            "net: has no open dimension 'width', of 3 open ones. "
            "Use one of ['batch', 'x:0', 'x:3'].",
        ),
    ],
)
def test_open_dimensions(fix: dict[str, int], sentence: str) -> None:
    assert refusal(lambda: opennpu.compile(open_cnn(), fix_dims=fix)) == sentence


def test_open_dimensions_are_fixed_by_name_or_place() -> None:
    for fix in ({"batch": 2, "x:3": 16}, {"x:0": 2, "x:3": 16}):
        assert opennpu.compile(open_cnn(), fix_dims=fix).inputs[0].shape == (2, 3, 16, 16)


# -- calibration -----------------------------------------------------------------------------


def quantize(data: Any, **options: Any) -> Any:
    return opennpu.compile(small_cnn(), precision="int8", calibration=data, **options)


def test_calibration_without_samples() -> None:
    assert refusal(lambda: quantize(None)).startswith(
        "compile: precision is 'int8' and there is no"
    )
    assert refusal(lambda: quantize([])) == (
        "calibration: there are 0 samples, at least 1 is needed. "
        "Pass calibration=[{input: array}, …]."
    )


def test_calibration_by_an_unknown_method() -> None:
    said = refusal(lambda: quantize([random_feeds(small_cnn())], calibration_method="magic"))
    assert said == (
        "calibration: method is 'magic', of 4. "
        "Use one of ['entropy', 'minmax', 'mse', 'percentile']."
    )


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_calibration_with_numbers_that_are_none(bad: float) -> None:
    samples = [random_feeds(small_cnn(), seed) for seed in range(2)]
    samples[1]["x"][0, 0, :2, 0] = bad
    assert refusal(lambda: quantize(samples), InputError) == (
        "x: calibration sample 1 has 2 of 768 elements that are infinite or NaN. "
        "Leave that sample out."
    )


@pytest.mark.parametrize(
    "sample",
    [
        {},
        {"x": np.zeros((1, 3, 8, 8), np.float32)},
        {"x": np.zeros((1, 3, 16, 16), np.float64)},
        {"y": np.zeros((1, 3, 16, 16), np.float32)},
        {"x": "a string"},
        [np.zeros((1, 3, 16, 16), np.float32)],
    ],
)
def test_calibration_with_samples_that_do_not_fit(sample: Any) -> None:
    said = refusal(lambda: quantize([sample]), InputError)
    assert said.startswith("compile: a sample does not fit the model: ")
    assert said.endswith(". Pass what run() takes.")


def test_a_model_is_not_changed_by_refusing_or_reading_it() -> None:
    m = open_cnn()
    before = m.SerializeToString(deterministic=True)
    refusal(lambda: load_model(m))
    load_model(m, fix_dims={"batch": 1, "x:3": 16})
    assert m.SerializeToString(deterministic=True) == before
