"""ONNX files in: what is read, what is refused, and that host parts are the user's own nodes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper

import opennpu
from nets import model, random_feeds, small_cnn
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
