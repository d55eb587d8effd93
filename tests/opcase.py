"""One operator sample as a graph, as an ONNX model, and as a compiled segment."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from opennpu.compile import lower
from opennpu.hw.rk3588.common import Precision
from opennpu.ir.graph import Graph, Node, Quant, Value
from opennpu.ops import OPS, Op, Sample, Site, Target
from opennpu.passes.partition import NpuUnit, Placement, make_site, place
from opennpu.program import NpuSegment, Program, ValueInfo

Array = npt.NDArray[Any]
RKNPU = Target()


class Case:
    """A sample with random data.  The same seed gives the same numbers."""

    def __init__(self, op: type[Op], sample: Sample, precision: Precision, seed: int = 0) -> None:
        self.op, self.sample, self.precision = op, sample, precision
        rng = np.random.default_rng(seed)
        self.node_op = sample.op or (op.names or (op.__name__,))[0]
        half = np.float16
        self.feeds = {
            f"x{i}": rng.normal(size=s).astype(half).astype(np.float32)
            for i, s in enumerate(sample.shapes)
        }
        self.consts = {
            f"c{i}": (rng.normal(size=s) / np.sqrt(max(1, np.prod(s[1:]))))
            .astype(half)
            .astype(np.float32)
            for i, s in enumerate(sample.consts)
        }
        names = (*self.feeds, *self.consts)
        self.node = Node("case", self.node_op, names, ("y",), dict(sample.attrs), sources=("case",))
        arrays = [*self.feeds.values(), *self.consts.values()]
        self.want = op.reference(self.node, *arrays)
        values = {n: Value(n, a.shape) for n, a in {**self.feeds, **self.consts}.items()}
        values["y"] = Value("y", self.want.shape)
        self.graph = Graph("case", (self.node,), values, self.consts, tuple(self.feeds), ("y",))
        if precision is Precision.INT8:
            self._quantize()

    def _quantize(self) -> None:
        """int8 codes for data and weights; ``want`` is recomputed from the dequantized numbers."""
        values, consts = dict(self.graph.values), dict(self.graph.constants)
        ranges = {**self.feeds, "y": self.want}
        if self.op.__name__ in (
            "MaxPool",
            "AveragePool",
            "GlobalAveragePool",
            "Reshape",
            "Transpose",
        ):
            ranges["y"] = self.feeds["x0"]
        for name, a in ranges.items():
            low, high = min(0.0, float(a.min())), max(0.0, float(a.max()))
            scale = np.float32(max(high - low, 1e-6) / 255)
            zero = np.int32(np.clip(np.rint(-128 - low / scale), -128, 127))
            values[name] = replace(values[name], quant=Quant(scale, zero))
        dequantized = {}
        for name, x in self.feeds.items():
            q = values[name].quant
            assert q is not None
            dequantized[name] = (
                (q.quantize(x).astype(np.float32) - q.zero_point) * q.scale
            ).astype(np.float32)
        weights = dict(self.consts)
        if "c0" in consts and self.op.macs:
            w = consts["c0"]
            axis = 1 if self.op.__name__ == "MatMul" else 0
            other = tuple(i for i in range(w.ndim) if i != axis)
            scale = (np.abs(w).max(other) / 127).astype(np.float32)
            q = Quant(scale, np.zeros(scale.shape, np.int32), axis)
            codes = q.quantize(w)
            consts["c0"] = codes
            values["c0"] = Value("c0", w.shape, "int8", q)
            shape = [-1 if i == axis else 1 for i in range(w.ndim)]
            weights["c0"] = codes.astype(np.float32) * scale.reshape(shape)
        self.feeds = dequantized
        self.want = self.op.reference(self.node, *dequantized.values(), *weights.values())
        self.weights = weights
        self.graph = self.graph.with_(values=values, constants=consts)

    def check(self, target: Target = RKNPU) -> None:
        """Raise what the operator refuses."""
        placement = Placement(values=dict(self.graph.values), constants=dict(self.graph.constants))
        expansion = self.op.expand(self.node, placement.values, placement.constants)
        if expansion is not None:
            unit = place(self.graph, target).units[0]
            assert isinstance(unit, NpuUnit), unit.reason
            return
        site = make_site(self.node, placement, target)
        views, out = self.op.views(site)
        inputs = tuple(
            replace(o, view=v) if o and o.const is None else o
            for o, v in zip(site.inputs, views, strict=True)
        )
        self.op.check(site.with_(inputs=inputs, output=replace(site.output, view=out)))

    def site(self, target: Target = RKNPU) -> Site:
        """The node before it has views."""
        values, constants = dict(self.graph.values), dict(self.graph.constants)
        return make_site(self.node, Placement(values=values, constants=constants), target)

    def segment(self, target: Target = RKNPU) -> NpuSegment:
        """The compiled node."""
        placement = place(self.graph, target)
        (unit,) = placement.units
        assert isinstance(unit, NpuUnit), unit.reason
        return lower("npu0", [unit], {"y"}, placement)[0]

    def program(self) -> Program:
        """The compiled node as a whole program."""
        infos = tuple(ValueInfo(n, a.shape, "float32") for n, a in self.feeds.items())
        return Program(infos, (ValueInfo("y", self.want.shape, "float32"),), (self.segment(),), {})

    def model(self) -> onnx.ModelProto:
        """The node as an ONNX model of its own (float)."""
        attrs = {k: list(v) if isinstance(v, tuple) else v for k, v in self.sample.attrs.items()}
        names, extra = list(self.node.inputs), []
        if self.node_op == "Reshape":
            extra.append(numpy_helper.from_array(np.array(attrs.pop("shape"), np.int64), "shape"))
            names.append("shape")
        nodes = [helper.make_node(self.node_op, names, ["y"], "case", **attrs)]
        if self.node_op == "MatMul" and len(names) == 3:  # our MatMul may carry a bias
            nodes = [
                helper.make_node("MatMul", names[:2], ["product"], "case"),
                helper.make_node("Add", ["product", names[2]], ["y"], "bias"),
            ]
        graph = helper.make_graph(
            nodes,
            "case",
            [
                helper.make_tensor_value_info(n, TensorProto.FLOAT, a.shape)
                for n, a in self.feeds.items()
            ],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, self.want.shape)],
            [numpy_helper.from_array(a, n) for n, a in self.consts.items()] + extra,
        )
        return helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", 6 if "min" in attrs else 17)],
            ir_version=9,
        )


def all_cases() -> list[Any]:
    """(operator, sample, precision) of everything registered, with a readable id."""
    import pytest

    unique = {op.__name__: op for op in OPS.values()}
    return [
        pytest.param(op, s, p, id=f"{op.__name__}-{i}-{p.name.lower()}")
        for op in unique.values()
        for i, s in enumerate(op.samples)
        for p in s.precisions
    ]
