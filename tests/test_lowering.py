"""Whole graphs of several nodes, lowered and run: memory plan, views, residuals, segments."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opennpu import InferenceSession
from opennpu.compile import lower
from opennpu.ir.graph import Epilogue, Graph, Node, Quant, Value, node_reads
from opennpu.memory import Lifetime, plan
from opennpu.ops import OPS, Target
from opennpu.passes.partition import NpuUnit, partition
from opennpu.passes.residual import fuse_residuals
from opennpu.program import Program, ValueInfo

Array = npt.NDArray[Any]
TARGET = Target()


def conv_attrs(k: int, pad: int = 0, stride: int = 1, group: int = 1) -> dict[str, Any]:
    return {
        "kernel_shape": (k, k),
        "strides": (stride, stride),
        "pads": (pad,) * 4,
        "dilations": (1, 1),
        "group": group,
    }


class Net:
    """A small graph under construction, evaluated by the operators' references as it grows."""

    def __init__(self, shape: tuple[int, ...], seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        self.results: dict[str, Array] = {"x": self.half(self.rng.normal(size=shape))}
        self.values = {"x": Value("x", shape)}
        self.constants: dict[str, Array] = {}
        self.nodes: list[Node] = []

    @staticmethod
    def half(a: Array) -> Array:
        return a.astype(np.float16).astype(np.float32)

    def const(self, *shape: int) -> str:
        name = f"c{len(self.constants)}"
        fan = max(1, int(np.prod(shape[1:])))
        self.constants[name] = self.half(self.rng.normal(size=shape) / np.sqrt(fan))
        self.values[name] = Value(name, shape)
        return name

    def add(self, op: str, *inputs: str, epilogue: tuple[Epilogue, ...] = (), **attrs: Any) -> str:
        out = f"v{len(self.nodes)}"
        node = Node(
            f"n{len(self.nodes)}", op, inputs, (out,), attrs, epilogue, (f"n{len(self.nodes)}",)
        )
        arrays = [self.results[i] if i in self.results else self.constants[i] for i in inputs]
        y = OPS[op].reference(node, *arrays)
        self.results[out] = y
        self.values[out] = Value(out, y.shape)
        self.nodes.append(node)
        return out

    def graph(self, *outputs: str) -> Graph:
        return Graph("net", tuple(self.nodes), self.values, self.constants, ("x",), outputs)


def compiled(graph: Graph) -> Program:
    """A graph that the NPU runs whole."""
    placement, parts = partition(graph, TARGET)
    assert [p.npu for p in parts] == [True], [u for p in parts for u in p.units]
    units = [u for u in parts[0].units if isinstance(u, NpuUnit)]
    segment, _ = lower("npu0", units, set(graph.outputs), placement)
    x = graph.values["x"]
    outs = tuple(ValueInfo(o, graph.values[o].shape, "float32") for o in graph.outputs)
    return Program((ValueInfo("x", x.shape, "float32"),), outs, (segment,), {})


def run(graph: Graph, x: Array) -> list[Array]:
    with InferenceSession(compiled(graph), device="emulator") as session:
        return list(session.run(None, {"x": x}))


def inverted_residual(hw: int = 14) -> tuple[Net, str]:
    net = Net((1, 24, hw, hw))
    relu6 = (Epilogue("clip", 0.0, 6.0),)
    y = net.add(
        "Conv", "x", net.const(144, 24, 1, 1), net.const(144), epilogue=relu6, **conv_attrs(1)
    )
    y = net.add(
        "Conv",
        y,
        net.const(144, 1, 3, 3),
        net.const(144),
        epilogue=relu6,
        **conv_attrs(3, 1, 1, 144),
    )
    y = net.add("Conv", y, net.const(24, 144, 1, 1), net.const(24), **conv_attrs(1))
    return net, net.add("Add", y, "x", epilogue=(Epilogue("relu"),))


def close(got: Array, want: Array, bound: float = 4e-3) -> None:
    assert np.abs(got - want).max() <= bound * np.abs(want).max()


def test_inverted_residual_block() -> None:
    net, y = inverted_residual()
    (got,) = run(net.graph(y), net.results["x"])
    close(got, net.results[y])


def test_residual_joins_a_convolution_of_one_tile_and_changes_nothing_but_rounding() -> None:
    net, y = inverted_residual()
    fused = fuse_residuals(net.graph(y), TARGET)
    assert [n.op for n in fused.nodes] == ["Conv", "Conv", "Conv"]
    assert [e.kind for e in fused.nodes[-1].epilogue] == ["add", "relu"]
    (got,) = run(fused, net.results["x"])
    close(got, net.results[y])


def test_residual_of_a_tiled_or_tiny_convolution_stays_an_add() -> None:
    for hw in (3, 150):
        net, y = inverted_residual(hw)
        fused = fuse_residuals(net.graph(y), TARGET)
        assert [n.op for n in fused.nodes][-1] == "Add"


def quantized(graph: Graph, results: dict[str, Array]) -> Graph:
    """int8 by the true ranges of one input; weights per output channel."""
    values, constants = dict(graph.values), dict(graph.constants)
    for n in graph.nodes:
        for v in (*node_reads(n), *n.outputs):
            if v in results:
                low, high = min(0.0, results[v].min()), max(0.0, results[v].max())
                scale = np.float32((high - low) / 255)
                zero = np.int32(np.rint(-128 - low / scale))
                values[v] = replace(values[v], quant=Quant(scale, zero))
        if n.op == "Conv":
            w = constants[n.inputs[1]]
            scale = (np.abs(w).max((1, 2, 3)) / 127).astype(np.float32)
            q = Quant(scale, np.zeros(len(scale), np.int32), 0)
            constants[n.inputs[1]] = q.quantize(w)
            values[n.inputs[1]] = Value(n.inputs[1], w.shape, "int8", q)
    return graph.with_(values=values, constants=constants)


@pytest.mark.parametrize("fuse", [False, True])
def test_int8_block_follows_the_float_one(fuse: bool) -> None:
    net, y = inverted_residual()
    graph = quantized(net.graph(y), net.results)
    if fuse:
        graph = fuse_residuals(graph, TARGET)
        assert len(graph.nodes) == 3
    (got,) = run(graph, net.results["x"])
    want = net.results[y]
    cosine = float((got * want).sum() / np.linalg.norm(got) / np.linalg.norm(want))
    assert cosine > 0.998


def test_classifier_head_pools_flattens_and_multiplies() -> None:
    net = Net((2, 40, 9, 9))
    y = net.add("Conv", "x", net.const(64, 40, 3, 3), net.const(64), **conv_attrs(3))
    y = net.add("GlobalAveragePool", y)
    y = net.add("Reshape", y, shape=(2, 64))
    y = net.add("Gemm", y, net.const(64, 10), net.const(10))
    (got,) = run(net.graph(y), net.results["x"])
    close(got, net.results[y])


def test_several_outputs_and_a_value_used_twice() -> None:
    net = Net((1, 16, 8, 8))
    a = net.add("Conv", "x", net.const(16, 16, 3, 3), **conv_attrs(3, 1))
    b = net.add("Mul", a, "x")
    c = net.add("Concat", a, b, "x", axis=1)
    d = net.add("Transpose", c, perm=(0, 2, 3, 1))
    for got, v in zip(run(net.graph(a, b, c, d), net.results["x"]), (a, b, c, d), strict=True):
        close(got, net.results[v])


def test_large_global_pool_is_rewritten_into_passes() -> None:
    net = Net((1, 16, 40, 32))
    y = net.add("GlobalAveragePool", "x")
    (got,) = run(net.graph(y), net.results["x"])
    close(got, net.results[y], 2e-2)


blocks = st.lists(
    st.tuples(st.integers(1, 500), st.integers(0, 12), st.integers(0, 6)), max_size=30
)


@given(blocks)
@settings(deadline=None)
def test_blocks_that_live_together_share_no_byte(case: list[tuple[int, int, int]]) -> None:
    lifetimes = [Lifetime(f"b{i}", n, at, at + more) for i, (n, at, more) in enumerate(case)]
    offsets, total = plan(lifetimes)
    for a in lifetimes:
        assert offsets[a.name] + a.nbytes <= total
        for b in lifetimes:
            if a is not b and a.birth <= b.death and b.birth <= a.death:
                first, second = sorted((a, b), key=lambda x: offsets[x.name])
                assert offsets[first.name] + first.nbytes <= offsets[second.name]


def one_conv(bias: float, scale: float, high: float = np.inf) -> Graph:
    """A 1x1 int8 convolution with these numbers."""
    net = Net((1, 16, 4, 4))
    clip = (Epilogue("clip", 0.0, high),) if np.isfinite(high) else ()
    y = net.add("Conv", "x", net.const(32, 16, 1, 1), net.const(32), epilogue=clip, **conv_attrs(1))
    graph = quantized(net.graph(y), net.results)
    graph.constants["c1"][:] = bias  # type: ignore[index]
    values = dict(graph.values)
    q = values[y].quant
    assert q is not None
    values[y] = replace(values[y], quant=Quant(np.float32(scale), q.zero_point))
    return graph.with_(values=values)


@pytest.mark.parametrize(
    ("bias", "scale", "says"),
    [
        (0.0, 1e-7, "the multiplier takes at most"),
        (1e12, 0.05, "int32 holds at most 2147483647"),
        (np.nan, 0.05, "int32 holds at most 2147483647"),
    ],
)
def test_int8_numbers_out_of_range_leave_the_node_on_the_host(
    bias: float, scale: float, says: str
) -> None:
    placement, parts = partition(one_conv(bias, scale), TARGET)
    assert [p.npu for p in parts] == [False]
    assert says in getattr(placement.units[0], "reason", "")


def test_a_clip_far_beyond_the_codes_is_saturation() -> None:
    graph = one_conv(0.0, 0.05, high=1e9)
    net = Net((1, 16, 4, 4))
    (got,) = run(graph, net.results["x"])
    assert np.isfinite(got).all() and got.min() >= 0
