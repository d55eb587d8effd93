"""Samples of the operators as programs: with numbers in, numbers out, and a bound."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from opennpu.compile import lower
from opennpu.device.base import Device
from opennpu.errors import UnsupportedError
from opennpu.hw.rk3588.common import Precision
from opennpu.ir.graph import Graph, Node, Quant, Value
from opennpu.ops import OPS, Op, Sample, Site, Target
from opennpu.passes.partition import NpuUnit, Placement, make_site, place
from opennpu.program import NpuSegment, Program, ValueInfo
from opennpu.runtime.session import InferenceSession

Array = npt.NDArray[Any]
RKNPU = Target()
INT8_COUNTS = 1.01
"""Of the output's scale: one count, and float rounding."""


class OperatorCase:
    """A sample with random data.  The same seed gives the same numbers."""

    def __init__(self, op: type[Op], sample: Sample, precision: Precision, seed: int = 0) -> None:
        self.op, self.sample, self.precision = op, sample, precision
        rng = np.random.default_rng(seed)
        self.node_op = sample.op or (op.names or (op.__name__,))[0]
        half = np.float16

        def numbers(shape: tuple[int, ...]) -> Array:
            return rng.normal(size=shape) if not sample.span else rng.uniform(*sample.span, shape)

        self.feeds = {
            f"x{i}": numbers(s).astype(half).astype(np.float32) for i, s in enumerate(sample.shapes)
        }
        self.consts = {
            f"c{i}": (rng.normal(size=s) / np.sqrt(max(1, math.prod(s[1:]))))
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
            scale = np.asarray(max(high - low, 1e-6) / 255, np.float32)
            zero = np.asarray(np.clip(np.rint(-128 - low / scale), -128, 127), np.int32)
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
            axis = 1 if self.op.__name__ in ("MatMul", "ConvTranspose") else 0
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

    def site(self, target: Target = RKNPU) -> Site:
        """The node before it has views."""
        values, constants = dict(self.graph.values), dict(self.graph.constants)
        return make_site(self.node, Placement(values=values, constants=constants), target)

    def segment(self, target: Target = RKNPU) -> NpuSegment:
        """The compiled node.  Raises UnsupportedError."""
        placement = place(self.graph, target)
        (unit,) = placement.units
        if not isinstance(unit, NpuUnit):
            raise UnsupportedError("case", unit.reason, "Choose another target")
        return lower("npu0", [unit], {"y"}, placement)[0]

    def program(self, target: Target = RKNPU) -> Program:
        """The compiled node as a whole program.  Raises UnsupportedError."""
        infos = tuple(ValueInfo(n, a.shape, "float32") for n, a in self.feeds.items())
        return Program(
            infos, (ValueInfo("y", self.want.shape, "float32"),), (self.segment(target),), {}
        )

    def problem(self, device: str | Device, target: Target = RKNPU) -> str:
        """Run it and say how it differs from the reference beyond the sample's bound."""
        with InferenceSession(self.program(target), device=device) as session:
            (got,) = session.run(None, self.feeds)
        bound, want = self.sample.bound * float(np.abs(self.want).max()), self.want
        if self.precision is not Precision.FP16:
            quant = self.graph.values["y"].quant
            assert quant is not None
            bound = INT8_COUNTS * float(quant.scale)
            low, high = ((q - int(quant.zero_point)) * float(quant.scale) for q in (-128, 127))
            want = np.clip(want, low, high)
        error = float(np.abs(got - want).max())
        return "" if error <= bound else f"is off by {error:g}, at most {bound:g} is allowed"


def operator_cases() -> Iterator[tuple[str, type[Op], Sample, Precision]]:
    """(name, operator, sample, precision) of everything registered."""
    for op in {op.__name__: op for op in OPS.values()}.values():
        for i, sample in enumerate(op.samples):
            for p in sample.precisions:
                yield f"{op.__name__}-{i}-{p.name.lower()}", op, sample, p
