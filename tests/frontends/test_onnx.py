"""ONNX files in: what is read, what is refused, and that host parts are the user's own nodes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper

import opennpu
from evaluate import run_onnx
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


def runs_as_onnxruntime(m: onnx.ModelProto, want: onnx.ModelProto | None = None) -> None:
    feeds = random_feeds(m)
    expected = run_onnx(want or m, feeds)
    with opennpu.InferenceSession(opennpu.compile(m), "emulator") as session:
        for a, b in zip(session.run(None, feeds), expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-2, atol=2e-2)


def test_outputs_that_are_constants_are_still_outputs() -> None:
    nodes = [
        helper.make_node("Neg", ["k"], ["y"], "neg"),
        helper.make_node("Add", ["x", "y"], ["z"], "add"),
    ]
    m = model(nodes, {"x": (1, 4)}, {"y": (4,), "z": (1, 4)}, {"k": np.ones(4, np.float32)})
    runs_as_onnxruntime(m)


def test_functions_of_the_model_are_inlined() -> None:
    double = helper.make_function(
        "acme", "Double", ["a"], ["b"], [helper.make_node("Add", ["a", "a"], ["b"])],
        [helper.make_opsetid("", 17)],
    )  # fmt: skip
    nodes = [
        helper.make_node("Double", ["x"], ["d"], "double", domain="acme"),
        helper.make_node("Relu", ["d"], ["y"], "relu"),
    ]
    m = model(nodes, {"x": (1, 4, 2, 2)}, {"y": (1, 4, 2, 2)})
    m.opset_import.append(helper.make_opsetid("acme", 1))
    m.functions.append(double)
    assert [n.op for n in run_passes(load_model(m).graph).nodes] == ["Add"]
    runs_as_onnxruntime(m)


def test_operators_of_onnxruntime_run_on_the_host() -> None:
    nodes = [
        helper.make_node("FusedMatMul", ["x", "x"], ["p"], "mm", domain="com.microsoft", transB=1),
        helper.make_node("Relu", ["p"], ["y"], "relu"),
    ]
    m = model(nodes, {"x": (3, 3)}, {"y": (3, 3)})
    m.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    graph = load_model(m).graph
    assert graph.values["p"].shape == (3, 3)
    runs_as_onnxruntime(m)


def test_shapes_in_a_quantized_model_are_folded_and_its_pairs_stay() -> None:
    pair = [("QuantizeLinear", "x", "q"), ("DequantizeLinear", "q", "f")]
    nodes = [helper.make_node(op, [x, "s", "z"], [y], op) for op, x, y in pair]
    nodes += [
        helper.make_node("Shape", ["f"], ["n"], "shape", start=0, end=1),
        helper.make_node("Concat", ["n", "rest"], ["to"], "concat", axis=0),
        helper.make_node("Reshape", ["f", "to"], ["y"], "reshape"),
    ]
    constants = {"s": np.float32(0.1), "z": np.uint8(3), "rest": np.int64([-1])}
    m = model(nodes, {"x": ("batch", 2, 3)}, {"y": None}, constants)
    graph = load_model(onnx.shape_inference.infer_shapes(m), fix_dims={"batch": 4}).graph
    assert [n.op for n in graph.nodes] == ["QuantizeLinear", "DequantizeLinear", "Reshape"]
    assert graph.values["y"].shape == (4, 6)


def test_fixed_dimensions_fold_what_was_computed_from_them() -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["n"], "shape"),
        helper.make_node("Gather", ["n", "zero"], ["b"], "gather", axis=0),
        helper.make_node("Unsqueeze", ["b", "axes"], ["c"], "unsqueeze"),
        helper.make_node("Concat", ["c", "rest"], ["to"], "concat", axis=0),
        helper.make_node("Reshape", ["x", "to"], ["y"], "reshape"),
    ]
    constants = {"zero": np.int64(0), "axes": np.int64([0]), "rest": np.int64([-1])}
    m = model(nodes, {"x": ("batch", 2, 3)}, {"y": ("batch", "rest")}, constants)
    graph = load_model(m, fix_dims={"batch": 4}).graph
    (only,) = graph.nodes
    assert (only.name, only.attrs["shape"]) == ("reshape", (4, 6))


def test_nodes_without_names_or_with_the_same_get_their_own() -> None:
    nodes = [helper.make_node("Neg", ["x"], ["a"]), helper.make_node("Neg", ["a"], ["b"], "n")]
    nodes += [helper.make_node("Neg", ["b"], ["c"], "n"), helper.make_node("Neg", ["c"], ["y"])]
    m = model(nodes, {"x": (1, 4)}, {"y": (1, 4)})
    assert [n.name for n in load_model(m).graph.nodes] == ["Neg_0", "n", "n_1", "Neg_3"]


def test_padding_wider_than_the_hardware_pads_stays_a_pad() -> None:
    pads = np.array([0, 0, 18, 18, 0, 0, 18, 18], np.int64)
    weights = np.random.default_rng(0).normal(size=(8, 4, 20, 20)).astype(np.float32)
    nodes = [
        helper.make_node("Pad", ["x", "pads"], ["p"], "pad"),
        helper.make_node("Conv", ["p", "w"], ["y"], "conv"),
    ]
    constants = {"pads": pads, "w": weights}
    m = model(nodes, {"x": (1, 4, 24, 24)}, {"y": (1, 8, 41, 41)}, constants)
    where = {n["name"]: n["where"] for n in opennpu.compile(m).meta["nodes"]}
    assert where == {"pad": "NPU", "conv": "NPU"}
