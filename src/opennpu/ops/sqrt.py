"""Sqrt, Log, Reciprocal, Softsign.

Reciprocal and Softsign divide in EW.  Sqrt and Log have no fp16 program over all numbers: near 0
no table of equal steps follows them.  Where the node promises a range of x (attributes ``low`` and
``high``) the error over it decides.  int8: one look-up, exact.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from opennpu.hw.rk3588.common import Precision
from opennpu.ir.graph import Node, Value
from opennpu.ops import _table
from opennpu.ops._table import Curve, Function
from opennpu.ops._unary import Build, _Unary, evaluate, quantized
from opennpu.ops.base import Expansion, Sample, Site

Array = npt.NDArray[Any]
FP16, INT8 = (Precision.FP16,), (Precision.INT8,)
FUNCTIONS: dict[str, Function] = {
    "Sqrt": np.sqrt,
    "Log": np.log,
    "Reciprocal": np.reciprocal,
    "Softsign": lambda x: x / (1 + np.abs(x)),
}
BOUND = 4e-3  # boards divide to 0.35 % (board notes A.10)
TABLE_BOUND = 4e-3  # of the largest result
SMALLEST, LARGEST = 2.0**-24, 65504.0  # of fp16


class Sqrt(_Unary):
    names = tuple(FUNCTIONS)
    samples = (
        Sample(((1, 16, 6, 7),), op="Sqrt", span=(0.0, 9.0), precisions=INT8),
        Sample(
            ((2, 13, 5),), {"low": 0.25, "high": 64.0}, op="Sqrt", span=(0.3, 60.0), bound=BOUND
        ),
        Sample(((3, 21),), op="Log", span=(0.01, 9.0), precisions=INT8),
        Sample(((3, 21),), {"low": 1.0, "high": 32.0}, op="Log", span=(1.5, 30.0), bound=BOUND),
        Sample(((1, 16, 6, 7),), op="Reciprocal", span=(0.5, 4.0), bound=BOUND),
        Sample(((2, 24, 5),), op="Softsign", bound=BOUND),
        Sample(((1, 16, 6, 7),), ok=False, op="Sqrt", span=(0.0, 9.0), precisions=FP16),
        Sample(((1, 16, 6, 7),), ok=False, op="Log", span=(0.1, 9.0), precisions=FP16),
        Sample(((1, 13, 6, 7),), ok=False, op="Reciprocal", span=(0.1, 9.0), precisions=FP16),
    )

    @staticmethod
    def reference(node: Node, *inputs: Array) -> Array:
        """x: any shape -> sqrt(x), log(x), 1 / x or x / (1 + |x|), float32."""
        return evaluate(FUNCTIONS[node.op], node, inputs[0])

    @classmethod
    def function(cls, node: Node) -> Function:
        return FUNCTIONS[node.op]

    @staticmethod
    def expand(
        node: Node, values: Mapping[str, Value], consts: Mapping[str, Array]
    ) -> Expansion | None:
        if quantized(node, values) or node.op in ("Sqrt", "Log"):
            return None
        build, x = Build(node, values), node.inputs[0]
        if node.op == "Reciprocal":
            build.add("Div", build.constant(1.0), x)
        else:
            size = build.add("Abs", x)
            build.add("Div", x, build.add("Add", size, build.constant(1.0)))
        return build.done()

    @classmethod
    def curve(cls, site: Site) -> Curve:
        node, f = site.node, cls.function(site.node)
        low, high = (float(node.attrs.get(k, d)) for k, d in (("low", SMALLEST), ("high", LARGEST)))
        if not SMALLEST <= low < high <= LARGEST:
            raise site.refuse(f"takes {low:g} to {high:g}, fp16 has {SMALLEST:g} to {LARGEST:g}")
        ends = f(np.array([low, high]))
        if ends[0] < 0 < ends[1]:
            raise site.refuse(
                f"runs from {ends[0]:g} to {ends[1]:g}: a table must not hold the code of 0 between"
            )
        curve = Curve(f, low, high, 1 if ends[1] > 0 else -1)
        numbers = np.arange(1, 1 << 15, dtype=np.uint16).view(np.float16)
        numbers = numbers[(numbers >= low) & (numbers <= high)]
        want = f(numbers.astype(np.float64))
        error = np.abs(_table.fp16_table(curve).evaluate(numbers).astype(np.float64) - want)
        worst, most = float(error.max()), TABLE_BOUND * float(np.abs(want).max())
        if worst > most:
            raise site.refuse(
                f"of {low:g} to {high:g} by table would be off by {worst:.2g}, at most {most:.2g} "
                "is allowed",
                "It stays in onnxruntime; in int8 it is exact",
            )
        return curve
