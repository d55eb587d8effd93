"""Fusion keeps the meaning: whatever the graph, the fused one computes the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from evaluate import by_pieces, evaluate, run_onnx
from nets import model, random_feeds, small_cnn
from opennpu.frontends.onnx import Imported, load_model
from opennpu.ir.graph import Epilogue, Graph, Node, Quant, Value
from opennpu.ir.verify import verify
from opennpu.passes import run_passes
from opennpu.passes.affine import as_convolutions, fold_affines

Array = npt.NDArray[Any]
node = helper.make_node


def fused(m: onnx.ModelProto) -> tuple[Imported, Graph]:
    imported = load_model(m)
    return imported, run_passes(imported.graph)


def assert_same(got: list[Array], want: list[Array]) -> None:
    for a, b in zip(got, want, strict=True):
        scale = max(1.0, float(np.abs(b).max(initial=0)))
        np.testing.assert_allclose(a / scale, b / scale, atol=2e-5)


# -- any net ---------------------------------------------------------------------------------

CHANNELS = 4


class Grower:
    """A random net of [1, 4, H, W] tensors."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, Array] = {}
        self.sizes = {"x": 9}  # value -> H = W

    def const(self, *shape: int, low: float = -2, high: float = 2) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = self.rng.uniform(low, high, shape).astype(np.float32)
        return name

    def add(self, op: str, *inputs: str, size: int, **attrs: Any) -> None:
        out = f"v{len(self.nodes)}"
        self.nodes.append(node(op, list(inputs), [out], f"n{len(self.nodes)}", **attrs))
        self.sizes[out] = size

    def grow(self, kind: str, recent: bool) -> None:
        names = list(self.sizes)
        x = names[-1] if recent else str(self.rng.choice(names))
        size, rng = self.sizes[x], self.rng
        if kind in ("Mul", "Add", "Sub", "Div"):
            shape = [(), (1,), (CHANNELS, 1, 1), (1, CHANNELS, 1, 1), (1, 1, 1)][rng.integers(5)]
            c = self.const(*shape, low=0.2) if rng.random() < 0.9 else self.const(*shape)
            pair = (x, c) if kind == "Div" or rng.random() < 0.6 else (c, x)
            self.add(kind, *pair, size=size)
        elif kind == "BatchNormalization":
            parts = [self.const(CHANNELS) for _ in range(3)]
            self.add(kind, x, *parts, self.const(CHANNELS, low=0.1), size=size)
        elif kind in ("Relu", "Identity", "Sigmoid", "Dropout"):
            self.add(kind, x, size=size)
        elif kind == "Clip":
            low, high = self.const(low=-1, high=0), self.const(low=0, high=3)
            self.add(kind, x, low, high, size=size)
        elif kind == "Conv" and size >= 3:
            k = int(rng.choice([1, 3]))
            pad = int(rng.integers(0, 2)) if k == 3 else 0
            group = int(rng.choice([1, 2, 4]))
            w = self.const(CHANNELS, CHANNELS // group, k, k, low=-1, high=1)
            bias = [self.const(CHANNELS)] if rng.random() < 0.5 else []
            attrs = {"pads": [pad] * 4, "group": group}
            self.add(kind, x, w, *bias, size=size + 2 * pad - k + 1, **attrs)
        elif kind == "ConvTranspose" and size <= 9:
            group = int(rng.choice([1, 2]))
            w = self.const(CHANNELS, CHANNELS // group, 2, 2, low=-1, high=1)
            self.add(kind, x, w, size=size + 1, group=group)
        elif kind == "Pad" and size <= 12:
            before, after = (int(i) for i in rng.integers(0, 2, 2))
            pads = np.array([0, 0, before, before, 0, 0, after, after])
            name = f"c{len(self.constants)}"
            self.constants[name] = pads
            self.add(kind, x, name, size=size + before + after)
        elif kind in ("MaxPool", "AveragePool") and size >= 3:
            pad = int(rng.integers(0, 2))
            count = {"count_include_pad": int(rng.integers(2))} if kind == "AveragePool" else {}
            size = size + 2 * pad - 2
            self.add(kind, x, size=size, kernel_shape=[3, 3], pads=[pad] * 4, **count)
        elif kind == "Join":
            same = [n for n in names if self.sizes[n] == size]
            self.add("Add", x, str(rng.choice(same)), size=size)

    def model(self) -> onnx.ModelProto:
        last = list(self.sizes)[-1]
        outs: dict[str, Any] = {last: (1, CHANNELS, self.sizes[last], self.sizes[last])}
        if self.rng.random() < 0.3:  # an intermediate value that somebody wants to see
            name = str(self.rng.choice(list(self.sizes)[1:]))
            outs[name] = (1, CHANNELS, self.sizes[name], self.sizes[name])
        return model(self.nodes, {"x": (1, CHANNELS, 9, 9)}, outs, self.constants)


KINDS = (
    *("Mul", "Add", "Sub", "Div", "BatchNormalization", "Relu", "Clip", "Identity", "Sigmoid"),
    *("Conv", "Conv", "ConvTranspose", "Pad", "MaxPool", "AveragePool", "Join", "Dropout"),
)


@given(
    st.lists(st.tuples(st.sampled_from(KINDS), st.booleans()), min_size=2, max_size=14),
    st.integers(0, 2**32 - 1),
)
@settings(deadline=None, max_examples=150)
def test_any_net_means_the_same_after_all_passes(steps: list[tuple[str, bool]], seed: int) -> None:
    grower = Grower(seed)
    for kind, recent in steps:
        grower.grow(kind, recent)
    if not grower.nodes:
        return
    m = grower.model()
    onnx.checker.check_model(m, full_check=True)
    imported, graph = fused(m)
    feeds = random_feeds(m)
    want = run_onnx(m, feeds)
    assert_same(run_onnx(imported.model, feeds), want)
    assert_same(evaluate(imported, graph, feeds), want)
    assert_same(by_pieces(imported, graph, feeds), want)
    assert len(graph.nodes) <= len(imported.graph.nodes)


# -- what becomes of what --------------------------------------------------------------------


def one(
    nodes: list[onnx.NodeProto], constants: dict[str, Array], shape: tuple[int, ...] = (1, 4, 6, 6)
) -> list[Node]:
    """Nodes after all passes, of a net from x to y; checked for meaning."""
    m = model(nodes, {"x": shape}, {"y": None}, constants)
    m = onnx.shape_inference.infer_shapes(m)
    imported, graph = fused(m)
    feeds = random_feeds(m)
    want = run_onnx(m, feeds)
    assert_same(evaluate(imported, graph, feeds), want)
    assert_same(by_pieces(imported, graph, feeds), want)
    return list(graph.nodes)


def weights(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


NORM = {k: np.abs(weights(4, seed=i)) + 0.5 for i, k in enumerate("gbmv")}


def norm(x: str, y: str) -> onnx.NodeProto:
    return node("BatchNormalization", [x, *"gbmv"], [y], "norm")


def test_conv_norm_and_relu6_are_one_node_under_the_convs_name() -> None:
    graph = fused(small_cnn())[1]
    stem = graph.nodes[0]
    assert (stem.name, stem.op, stem.outputs) == ("stem", "Conv", ("d",))
    assert stem.sources == ("stem", "bn", "relu6")
    assert stem.epilogue == (Epilogue("clip", 0.0, 6.0),)


def test_a_norm_on_its_own_is_a_depthwise_convolution() -> None:
    (n,) = one([norm("x", "y")], NORM)
    assert (n.name, n.op, n.attrs["group"], n.sources) == ("norm", "Conv", 4, ("norm",))


def test_scales_before_a_padded_convolution_go_into_it_and_shifts_do_not() -> None:
    conv = node("Conv", ["s", "w"], ["y"], "conv", pads=[1] * 4)
    c = {"w": weights(4, 4, 3, 3), "k": np.float32([6.0])}
    assert [n.op for n in one([node("Div", ["x", "k"], ["s"]), conv], c)] == ["Conv"]
    assert [n.op for n in one([node("Add", ["x", "k"], ["s"]), conv], c)] == ["Add", "Conv"]


def test_an_image_scaled_by_255_stays_scaled() -> None:
    """In the weights, 1/255 would push fp16 below its normal numbers."""
    c = {"w": weights(4, 4, 1, 1), "k": np.float32([255.0])}
    nodes = [node("Div", ["x", "k"], ["s"]), node("Conv", ["s", "w"], ["y"])]
    assert [n.op for n in one(nodes, c)] == ["Div", "Conv"]


def test_a_scale_that_somebody_else_reads_stays() -> None:
    c = {"w": weights(4, 4, 1, 1), "k": np.float32([2.0])}
    nodes = [
        node("Mul", ["x", "k"], ["s"]),
        node("Conv", ["s", "w"], ["t"]),
        node("Add", ["s", "t"], ["y"]),
    ]
    assert [n.op for n in one(nodes, c)] == ["Mul", "Conv", "Add"]


def test_matmul_and_gemm_take_scale_and_bias() -> None:
    c = {"w": weights(6, 5), "b": weights(5), "s": weights(5, seed=1)}
    nodes = [
        node("MatMul", ["x", "w"], ["a"], "fc"),
        node("Add", ["a", "b"], ["c"]),
        node("Mul", ["c", "s"], ["d"]),
        node("Relu", ["d"], ["y"]),
    ]
    (n,) = one(nodes, c, (2, 3, 6))
    assert (n.name, n.op, len(n.inputs), n.epilogue) == ("fc", "MatMul", 3, (Epilogue("relu"),))
    gemm = node("Gemm", ["x", "w", "b"], ["a"], "fc", alpha=0.5, beta=2.0, transB=1)
    c["w"] = weights(5, 6)
    (n,) = one([gemm, node("Div", ["a", "s"], ["y"])], c, (3, 6))
    assert (n.name, n.op, n.attrs) == ("fc", "Gemm", {})


def test_padding_joins_convolutions_and_pools_that_pad_alike() -> None:
    c: dict[str, Array] = {"p": np.array([0, 0, 1, 0, 0, 0, 1, 1]), "w": weights(4, 4, 3, 3)}
    pad = node("Pad", ["x", "p"], ["s"])
    (n,) = one([pad, node("Conv", ["s", "w"], ["y"], "conv", pads=[1] * 4)], c)
    assert (n.name, n.attrs["pads"]) == ("conv", (2, 1, 2, 2))


@pytest.mark.parametrize(
    ("pool", "attrs", "before", "ops"),
    [
        ("AveragePool", {}, (), ["AveragePool"]),
        ("AveragePool", {"pads": [1] * 4}, (), ["Pad", "AveragePool"]),
        ("AveragePool", {"pads": [1] * 4, "count_include_pad": 1}, (), ["AveragePool"]),
        ("MaxPool", {}, (), ["Pad", "MaxPool"]),
        ("MaxPool", {}, ("Relu",), ["Relu", "MaxPool"]),
        ("MaxPool", {"ceil_mode": 1, "strides": [2, 2]}, ("Relu",), ["Relu", "Pad", "MaxPool"]),
    ],
)
def test_padding_joins_pools_where_it_means_the_same(
    pool: str, attrs: dict[str, Any], before: tuple[str, ...], ops: list[str]
) -> None:
    c: dict[str, Array] = {"p": np.array([0, 0, 1, 1, 0, 0, 1, 1])}
    nodes = [node(op, ["x"], ["r"]) for op in before]
    nodes.append(node("Pad", ["r" if before else "x", "p"], ["s"]))
    nodes.append(node(pool, ["s"], ["y"], kernel_shape=[3, 3], **attrs))
    assert [n.op for n in one(nodes, c)] == ops


def test_what_a_reader_wants_to_see_is_still_written() -> None:
    c = {**NORM, "w": weights(4, 4, 1, 1)}
    m = model(
        [node("Conv", ["x", "w"], ["a"], "conv"), norm("a", "y"), node("Identity", ["y"], ["z"])],
        {"x": (1, 4, 5, 5)},
        {"a": (1, 4, 5, 5), "y": (1, 4, 5, 5), "z": (1, 4, 5, 5)},
        c,
    )
    imported, graph = fused(m)
    assert set(graph.outputs) == {"a", "y", "z"}
    verify(graph, "passes")
    feeds = random_feeds(m)
    assert_same(evaluate(imported, graph, feeds), run_onnx(m, feeds))


# -- int8 ------------------------------------------------------------------------------------


def int8_graph(gain: Array) -> Graph:
    """Conv of int8 codes → Mul by a constant, all activations quantized but the one between."""
    step = Quant(np.float32(0.05).reshape(()), np.int32(3).reshape(()))
    scales = np.float32([0.01, 0.02, 0.03, 0.04])
    attrs = {"kernel_shape": (1, 1), "strides": (1, 1), "pads": (0,) * 4, "dilations": (1, 1)}
    shape = (1, 4, 3, 3)
    return Graph(
        "g",
        (
            Node("conv", "Conv", ("x", "w"), ("a",), {**attrs, "group": 1}, (), ("conv",)),
            Node("mul", "Mul", ("a", "k"), ("y",), {}, (), ("mul",)),
        ),
        {
            "x": Value("x", shape, quant=step),
            "a": Value("a", shape),
            "y": Value("y", shape, quant=step),
            "w": Value("w", (4, 4, 1, 1), "int8", Quant(scales, np.zeros(4, np.int32), 0)),
            "k": Value("k", gain.shape),
        },
        {"w": np.arange(-8, 8, dtype=np.int8).reshape(4, 4, 1, 1), "k": gain},
        ("x",),
        ("y",),
    )


def real(graph: Graph, n: Node) -> Array:
    q = graph.values[n.inputs[1]].quant
    assert q is not None
    return np.asarray(graph.constants[n.inputs[1]] * q.scale.reshape(-1, 1, 1, 1))


@pytest.mark.parametrize("gain", [np.float32(-3.0), np.float32([[[1]], [[-2]], [[3]], [[0.5]]])])
def test_scaling_int8_weights_changes_their_scales_only(gain: Any) -> None:
    before = int8_graph(np.asarray(gain))
    (n,) = fold_affines(before).nodes
    after = fold_affines(before)
    codes = after.constants[n.inputs[1]]
    assert codes.dtype == np.int8 and (np.abs(codes) == np.abs(before.constants["w"])).all()
    want = real(before, before.nodes[0]) * np.asarray(gain).reshape(-1, 1, 1, 1)
    np.testing.assert_allclose(real(after, n), want, rtol=1e-6)


def test_a_scale_of_zero_is_not_folded_into_int8_weights() -> None:
    assert [n.op for n in fold_affines(int8_graph(np.float32([0.0]))).nodes] == ["Conv", "Mul"]


def test_a_product_that_is_rounded_is_kept_and_is_an_exact_convolution() -> None:
    graph = int8_graph(np.float32([[[1]], [[-2]], [[3]], [[0]]]))
    rounded = graph.values["a"].__class__("a", (1, 4, 3, 3), quant=graph.values["x"].quant)
    graph = graph.with_(values={**graph.values, "a": rounded})
    conv, mul = fold_affines(graph).nodes
    assert (conv.op, mul.op, mul.attrs["group"]) == ("Conv", "Conv", 4)
    np.testing.assert_allclose(real(fold_affines(graph), mul).reshape(-1), [1, -2, 3, 0], rtol=1e-6)


def test_convolutions_for_int8_keep_their_epilogue() -> None:
    graph = Graph(
        "g",
        (Node("n", "Add", ("x", "k"), ("y",), {}, (Epilogue("relu"),), ("n", "relu")),),
        {k: Value(k, (1, 4, 2, 2)) for k in "xy"} | {"k": Value("k", ())},
        {"k": np.asarray(np.float32(2))},
        ("x",),
        ("y",),
    )
    (n,) = as_convolutions(graph, {"n"}).nodes
    assert (n.op, n.epilogue, n.sources) == ("Conv", (Epilogue("relu"),), ("n", "relu"))


def sources(graph: Graph) -> Iterator[str]:
    for n in graph.nodes:
        yield from n.sources


def test_every_node_of_the_model_has_a_place() -> None:
    imported, graph = fused(small_cnn())
    assert set(sources(graph)) == {n.name for n in imported.model.graph.node}
