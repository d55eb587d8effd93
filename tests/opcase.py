"""One operator sample as an ONNX model too, and what operators refuse."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from opennpu.errors import UnsupportedError
from opennpu.ops import Target
from opennpu.passes.partition import NpuUnit, Placement, make_site, place
from opennpu.selftest.operators import RKNPU, OperatorCase, operator_cases

INPUTS = {
    "Reshape": ("shape",),
    "Slice": ("starts", "ends", "axes", "steps"),
    "Pad": ("pads", "value"),
    "Resize": ("roi", "scales", "sizes"),
    "Upsample": ("scales",),
    "Tile": ("repeats",),
    "Expand": ("shape",),
    "ReduceSum": ("axes",),
    "CumSum": ("axis",),
}
"""What samples have as attributes and ONNX as inputs."""


class Case(OperatorCase):
    """A sample with random data.  The same seed gives the same numbers."""

    def check(self, target: Target = RKNPU) -> None:
        """Raise what the operator refuses."""
        placement = Placement(values=dict(self.graph.values), constants=dict(self.graph.constants))
        expansion = self.op.expand(self.node, placement.values, placement.constants)
        if expansion is not None:
            unit = place(self.graph, target).units[0]
            if not isinstance(unit, NpuUnit):
                raise UnsupportedError("case", unit.reason, "It stays in onnxruntime")
            return
        site = make_site(self.node, placement, target)
        views, out = self.op.views(site)
        inputs = tuple(
            replace(o, view=v) if o and o.const is None else o
            for o, v in zip(site.inputs, views, strict=True)
        )
        self.op.check(site.with_(inputs=inputs, output=replace(site.output, view=out)))

    def model(self) -> onnx.ModelProto:
        """The node as an ONNX model of its own (float)."""
        attrs = {k: list(v) if isinstance(v, tuple) else v for k, v in self.sample.attrs.items()}
        names, extra = list(self.node.inputs), []
        for promise in ("low", "high"):  # ours: of the numbers that go in
            attrs.pop(promise, None)
        if self.node_op == "Pow":
            exponent = np.array(attrs.pop("exponent"), np.float32)
            extra.append(numpy_helper.from_array(exponent, "exponent"))
            names.append("exponent")
        for name in INPUTS.get(self.node_op, ()):
            given = attrs.pop(name, None)
            names.append("" if given is None else name)
            if given is not None:
                kind = np.float32 if name in ("value", "scales") else np.int64
                extra.append(numpy_helper.from_array(np.array(given, kind), name))
        nodes = [helper.make_node(self.node_op, names, ["y"], "case", **attrs)]
        if self.node_op == "MatMul" and len(names) == 3:  # our MatMul may carry a bias
            nodes = [
                helper.make_node("MatMul", names[:2], ["product"], "case"),
                helper.make_node("Add", ["product", names[2]], ["y"], "bias"),
            ]
        if self.node_op == "Silu":  # ONNX has it as Swish from opset 24 on
            nodes = [
                helper.make_node("Sigmoid", names, ["gate"], "gate"),
                helper.make_node("Mul", [*names, "gate"], ["y"], "case"),
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
        newer = {
            "Gelu": 20,
            "Mish": 18,
            "RMSNormalization": 23,
            "GroupNormalization": 21,
            "Attention": 23,
        }.get(self.node_op, 17)
        return helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", 6 if {"min", "max"} & attrs.keys() else newer)],
            ir_version=9,
        )


def all_cases() -> list[Any]:
    """(operator, sample, precision) of everything registered, with a readable id."""
    import pytest

    return [pytest.param(*rest, id=name) for name, *rest in operator_cases()]
