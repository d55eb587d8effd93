"""Models with quantization pairs: the graph means exactly what onnxruntime computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import QuantType
from test_quantize import FEEDS, qdq_model

from evaluate import by_pieces, evaluate, run_onnx
from nets import model
from opennpu.frontends.onnx import load_model
from opennpu.ir.graph import Graph
from opennpu.passes import run_passes

node = helper.make_node
INT8, UINT8 = QuantType.QInt8, QuantType.QUInt8
KINDS = [(INT8, INT8), (UINT8, INT8), (UINT8, UINT8)]


def ops(graph: Graph) -> list[str]:
    return [n.op for n in graph.nodes]


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize(("activations", "weights"), KINDS)
def test_what_the_quantizer_of_onnxruntime_makes(
    tmp_path: Path, per_channel: bool, activations: Any, weights: Any
) -> None:
    m = qdq_model(
        tmp_path, per_channel=per_channel, activation_type=activations, weight_type=weights
    )
    imported = load_model(m)
    graph = run_passes(imported.graph)
    for feeds in FEEDS:
        want = run_onnx(m, feeds)
        for got in (evaluate(imported, graph, feeds), by_pieces(imported, graph, feeds)):
            np.testing.assert_array_equal(got[0], want[0])
    codes = [
        graph.constants[n.inputs[1]].dtype
        for n in graph.nodes
        if n.op in ("Conv", "Gemm")
        if n.inputs[1] in graph.constants
    ]
    if weights is INT8:
        assert codes == ["int8"] * 5 and "DequantizeLinear" not in ops(graph)
        assert graph.values["x"].quant is not None


def pairs(
    nodes: list[onnx.NodeProto], constants: dict[str, Any], outputs: tuple[str, ...] = ("y",)
) -> onnx.ModelProto:
    """A net of x: [1, 2, 3, 3] with int8 pairs; scale ``s`` and zero point ``z``."""
    step = {"s": np.float32(0.1), "z": np.int8(5)}
    shape = (1, 2, 3, 3)
    return model(nodes, {"x": shape}, {o: shape for o in outputs}, {**step, **constants}, opset=21)


def pair(x: str, y: str) -> list[onnx.NodeProto]:
    return [
        node("QuantizeLinear", [x, "s", "z"], [f"{y}/q"], f"{y}/q"),
        node("DequantizeLinear", [f"{y}/q", "s", "z"], [y], f"{y}/dq"),
    ]


def check(m: onnx.ModelProto) -> Graph:
    imported = load_model(m)
    graph = run_passes(imported.graph)
    feeds = {"x": np.random.default_rng(0).normal(size=(1, 2, 3, 3)).astype(np.float32) * 5}
    for got in (evaluate(imported, graph, feeds), by_pieces(imported, graph, feeds)):
        for a, b in zip(got, run_onnx(m, feeds), strict=True):
            np.testing.assert_allclose(a, b, atol=1e-6)
    return graph


def test_relu_between_convolution_and_pair_is_its_epilogue() -> None:
    w = {"w": np.ones((2, 2, 1, 1), np.float32)}
    graph = check(
        pairs([node("Conv", ["x", "w"], ["a"]), node("Relu", ["a"], ["b"]), *pair("b", "y")], w)
    )
    (conv,) = graph.nodes
    assert conv.epilogue[0].kind == "relu" and graph.values["y"].quant is not None


def test_an_input_that_others_read_unrounded_keeps_its_pair_as_a_node() -> None:
    graph = check(pairs([*pair("x", "a"), node("Add", ["x", "a"], ["y"])], {}))
    assert ops(graph) == ["QuantizeDequantize", "Add"] and graph.values["x"].quant is None


def test_an_output_of_the_model_before_its_pair_stays_unrounded() -> None:
    graph = check(pairs([node("Relu", ["x"], ["y"]), *pair("y", "t")], {}, ("y", "t")))
    assert ops(graph) == ["Relu", "QuantizeDequantize"]


def test_other_widths_stay_on_the_host() -> None:
    wide = {"s": np.float32(0.1), "z": np.int16(5)}
    graph = check(pairs([node("Relu", ["x"], ["a"]), *pair("a", "y")], wide))
    assert ops(graph) == ["Relu", "QuantizeLinear", "DequantizeLinear"]


def test_four_bit_weights_stay_on_the_host() -> None:
    m = pairs([node("DequantizeLinear", ["w", "s"], ["f"]), node("Conv", ["x", "f"], ["y"])], {})
    codes = helper.make_tensor("w", TensorProto.INT4, (2, 2, 1, 1), [1, -2, 3, -8])
    m.graph.initializer.append(codes)
    assert ops(check(m)) == ["DequantizeLinear", "Conv"]


def test_unsigned_weights_without_zero_point_need_nine_bits() -> None:
    w = {"w": np.uint8([0, 1, 2, 255]).reshape(2, 2, 1, 1)}
    graph = check(
        pairs([node("DequantizeLinear", ["w", "s"], ["f"]), node("Conv", ["x", "f"], ["y"])], w)
    )
    assert ops(graph) == ["Conv"]
    codes = graph.constants[graph.nodes[0].inputs[1]]
    assert (codes.dtype, codes.reshape(-1).tolist()) == (np.int16, [0, 1, 2, 255])


def test_unsigned_weights_around_128_are_symmetric() -> None:
    w = {"w": np.uint8([0, 128, 129, 255]).reshape(2, 2, 1, 1), "m": np.uint8(128)}
    graph = check(
        pairs(
            [node("DequantizeLinear", ["w", "s", "m"], ["f"]), node("Conv", ["x", "f"], ["y"])], w
        )
    )
    assert ops(graph) == ["Conv"]
    assert graph.constants[graph.nodes[0].inputs[1]].reshape(-1).tolist() == [-128, 0, 1, 127]


def test_a_weight_that_is_quantized_by_the_model_itself() -> None:
    w = {"w": np.random.default_rng(1).normal(size=(2, 2, 1, 1)).astype(np.float32)}
    w["k"], w["n"] = np.float32([0.01, 0.02]), np.int8([0, 0])
    nodes = [
        node("QuantizeLinear", ["w", "k", "n"], ["q"], axis=0),
        node("DequantizeLinear", ["q", "k", "n"], ["f"], axis=0),
        node("Conv", ["x", "f"], ["y"]),
    ]
    graph = check(pairs(nodes, w))
    assert ops(graph) == ["Conv"]
    quant = graph.values[graph.nodes[0].inputs[1]].quant
    assert quant is not None and quant.axis == 0


def test_scales_that_do_not_fit_are_left_to_onnxruntime() -> None:
    for scale in (np.float32(0), np.float32(-1), np.float32(np.nan)):
        m = pairs([node("Relu", ["x"], ["a"]), *pair("a", "y")], {"s": scale})
        graph = run_passes(load_model(m).graph)
        assert ops(graph) == ["Relu", "QuantizeLinear", "DequantizeLinear"]
    assert numpy_helper.to_array(m.graph.initializer[0]).shape == ()
