"""ONNX files in: what is read, what is refused, and that host parts are the user's own nodes."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

import opennpu
from nets import model, random_feeds, small_cnn
from opennpu.errors import ModelError
from opennpu.frontends.onnx import extract_host, host_can_run, load_model
from opennpu.ir.printer import show
from opennpu.ir.verify import verify
from opennpu.passes import run_passes


def test_a_model_reads_the_same_from_path_bytes_and_proto(tmp_path: Path) -> None:
    m = small_cnn()
    path = tmp_path / "m.onnx"
    onnx.save(m, str(path))
    texts = {show(load_model(s).graph) for s in (m, path, str(path), m.SerializeToString())}
    assert len(texts) == 1
    verify(load_model(m).graph, "import")


def test_every_node_alone_on_the_host_gives_the_whole_model() -> None:
    m = small_cnn()
    imported = load_model(m)
    graph = run_passes(imported.graph)
    values = dict(random_feeds(m))
    for node in graph.nodes:
        reads = [i for i in node.inputs if i and i not in graph.constants]
        reads += [e.value for e in node.epilogue if e.value]
        data = extract_host(imported, node.sources, reads, list(node.outputs))
        session = ort.InferenceSession(data)
        values.update(
            zip(node.outputs, session.run(None, {r: values[r] for r in reads}), strict=True)
        )
    (want,) = ort.InferenceSession(m.SerializeToString()).run(None, random_feeds(m))
    np.testing.assert_allclose(values[graph.outputs[0]], want, rtol=1e-4, atol=1e-5)


def test_open_dimension_is_named_with_its_remedy() -> None:
    m = small_cnn(batch="batch")
    with pytest.raises(ModelError) as e:
        opennpu.compile(m)
    assert str(e.value) == (
        "x: axis 0 has the open size 'batch', a program needs a number. "
        "Fix it with fix_dims={'batch': 1} or --fix-dim batch=1."
    )
    assert opennpu.compile(m, fix_dims={"batch": 2}).inputs[0].shape == (2, 3, 16, 16)
    assert opennpu.compile(m, fix_dims={"x:0": 1}).inputs[0].shape == (1, 3, 16, 16)


def test_a_dimension_that_is_not_open_cannot_be_fixed() -> None:
    with pytest.raises(ModelError, match="has no open dimension 'width', of 0 open ones"):
        opennpu.compile(small_cnn(), fix_dims={"width": 3})


@pytest.mark.parametrize(
    ("data", "part"),
    [
        (b"", "0 bytes hold a model of 0 nodes"),
        (b"not an onnx file at all, but text\n" * 9, "bytes"),
        (random.Random(0).randbytes(5000), "5000 bytes"),
    ],
)
def test_other_bytes_are_refused(data: bytes, part: str, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(data)
    with pytest.raises(ModelError) as e:
        opennpu.compile(path)
    assert str(e.value).startswith(f"{path}: ") and part in str(e.value)


@given(st.integers(0, 10_000))
@settings(deadline=None, max_examples=60)
def test_a_file_cut_anywhere_is_refused_or_complete(cut: int) -> None:
    data = small_cnn().SerializeToString()
    try:
        load_model(data[: cut % len(data)])
    except ModelError as e:
        assert str(e).endswith(".")


@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=4))
@settings(deadline=None, max_examples=60)
def test_flipped_bytes_are_refused_or_compile(flips: list[tuple[int, int]]) -> None:
    data = bytearray(small_cnn().SerializeToString())
    for at, value in flips:
        data[at % len(data)] = value
    try:
        opennpu.compile(bytes(data))
    except opennpu.NPUError as e:
        assert str(e).endswith(".")


def test_missing_file_and_folder(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.onnx", tmp_path):
        with pytest.raises(ModelError) as e:
            opennpu.compile(path)
        assert str(e.value).startswith(str(path))


def test_unknown_operator_of_onnx_itself() -> None:
    m = model([helper.make_node("Frobnicate", ["x"], ["y"], "frob")], {"x": (1, 4)}, {"y": (1, 4)})
    with pytest.raises(ModelError, match="Frobnicate"):
        opennpu.compile(m)


def test_nobody_writes_an_input() -> None:
    m = model([helper.make_node("Relu", ["ghost"], ["y"], "r")], {"x": (1, 4)}, {"y": (1, 4)})
    with pytest.raises(ModelError, match="ghost"):
        opennpu.compile(m)


def test_a_cycle_is_refused() -> None:
    nodes = [
        helper.make_node("Relu", ["b"], ["a"], "r1"),
        helper.make_node("Relu", ["a"], ["b"], "r2"),
    ]
    with pytest.raises(ModelError):
        opennpu.compile(model(nodes, {"x": (1, 4)}, {"b": (1, 4)}))


def test_initializers_that_are_inputs_too_are_constants() -> None:
    m = small_cnn()
    m.ir_version = 3
    for i in list(m.graph.initializer):
        m.graph.input.add().CopyFrom(
            helper.make_tensor_value_info(i.name, i.data_type, list(i.dims))
        )
    program = opennpu.compile(m)
    assert [v.name for v in program.inputs] == ["x"]


def test_control_flow_stays_on_the_host_and_runs() -> None:
    branch = [
        helper.make_graph(
            [helper.make_node("Mul" if t else "Add", ["h", "h"], ["out"], f"op{t}")],
            f"branch{t}",
            [],
            [helper.make_tensor_value_info("out", TensorProto.FLOAT, [1, 8, 4, 4])],
        )
        for t in (0, 1)
    ]
    weights = np.random.default_rng(0).normal(size=(8, 8, 1, 1)).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["h"], "conv"),
        helper.make_node("ReduceSum", ["h"], ["s"], "sum", keepdims=0),
        helper.make_node("Greater", ["s", "zero"], ["c"], "cmp"),
        helper.make_node("If", ["c"], ["y"], "if", then_branch=branch[1], else_branch=branch[0]),
    ]
    m = model(
        nodes,
        {"x": (1, 8, 4, 4)},
        {"y": (1, 8, 4, 4)},
        {"w": weights, "zero": np.zeros((), np.float32)},
    )
    program = opennpu.compile(m)
    where = {n["name"]: n["where"] for n in program.meta["nodes"]}
    assert where["conv"] == "NPU" and where["if"] == "CPU"
    feeds = random_feeds(m)
    (want,) = ort.InferenceSession(m.SerializeToString()).run(None, feeds)
    with opennpu.InferenceSession(program, "emulator") as session:
        (got,) = session.run(None, feeds)
    np.testing.assert_allclose(got, want, rtol=2e-2, atol=2e-2)


def test_host_can_run_tells_known_from_unknown() -> None:
    m = small_cnn()
    imported = load_model(m)
    assert all(host_can_run(imported, n) for n in imported.graph.nodes)
