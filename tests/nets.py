"""Small ONNX models for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = npt.NDArray[Any]
Shape = Sequence[int | str]


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Shape],
    outputs: Mapping[str, Shape | None],
    constants: Mapping[str, Array] | None = None,
    opset: int = 17,
) -> onnx.ModelProto:
    """A float model of these nodes."""
    graph = helper.make_graph(
        list(nodes),
        "net",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, list(s)) for n, s in inputs.items()],
        [
            helper.make_tensor_value_info(n, TensorProto.FLOAT, None if s is None else list(s))
            for n, s in outputs.items()
        ],
        [numpy_helper.from_array(a, n) for n, a in (constants or {}).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def small_cnn(batch: int | str = 1, seed: int = 0) -> onnx.ModelProto:
    """Conv-BN-Relu6, a residual depthwise block, pool, softmax: [N, 3, 16, 16] → [N, 10]."""
    rng = np.random.default_rng(seed)
    c: dict[str, Array] = {}

    def w(name: str, *shape: int) -> str:
        scale = 1 / np.sqrt(max(1, np.prod(shape[1:])))
        c[name] = (rng.normal(size=shape) * scale).astype(np.float32)
        return name

    c["low"], c["high"] = np.float32(0).reshape(()), np.float32(6).reshape(())
    w("gamma", 16), w("beta", 16), w("mean", 16)
    c["var"] = np.abs(rng.normal(size=16)).astype(np.float32) + 0.5
    n = helper.make_node
    nodes = [
        n("Conv", ["x", w("w0", 16, 3, 3, 3)], ["a"], "stem", pads=[1] * 4, strides=[2, 2]),
        n("BatchNormalization", ["a", "gamma", "beta", "mean", "var"], ["b"], "bn"),
        n("Clip", ["b", "low", "high"], ["d"], "relu6"),
        n("Conv", ["d", w("w1", 16, 1, 3, 3), w("b1", 16)], ["e"], "dw", pads=[1] * 4, group=16),
        n("Relu", ["e"], ["f"], "relu"),
        n("Conv", ["f", w("w2", 16, 16, 1, 1)], ["g"], "pw"),
        n("Add", ["d", "g"], ["h"], "join"),
        n("GlobalAveragePool", ["h"], ["p"], "gap"),
        n("Flatten", ["p"], ["q"], "flat"),
        n("Gemm", ["q", w("w3", 10, 16), w("b3", 10)], ["r"], "fc", transB=1, alpha=0.5),
        n("Softmax", ["r"], ["y"], "softmax"),
    ]
    return model(nodes, {"x": (batch, 3, 16, 16)}, {"y": (batch, 10)}, c)


def random_feeds(m: onnx.ModelProto, seed: int = 1) -> dict[str, Array]:
    """Normal data for every input of a model without open dimensions."""
    rng = np.random.default_rng(seed)
    return {
        i.name: rng.normal(size=[d.dim_value for d in i.type.tensor_type.shape.dim]).astype(
            np.float32
        )
        for i in m.graph.input
    }


def cosine(a: Array, b: Array) -> float:
    """Cosine of two arrays."""
    return float((a * b).sum() / np.linalg.norm(a) / np.linalg.norm(b))
