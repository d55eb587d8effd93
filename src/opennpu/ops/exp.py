"""Exp.  fp16: e**(x/4) from a table, squared twice, which reaches over all of fp16 with a relative
error; one look-up where the node promises that no x exceeds 0 (attribute ``high``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from opennpu.hw.rk3588.common import Precision
from opennpu.ir.graph import Node, Value
from opennpu.ops._table import Curve, Function
from opennpu.ops._unary import Build, _Unary, evaluate, quantized
from opennpu.ops.base import Expansion, Sample, Site

Array = npt.NDArray[Any]
LEAST = -10.4  # e**x is half of the smallest code here
BOUND = 5e-3  # of the result from 1 up, of 1 below


class Exp(_Unary):
    samples = (
        Sample(((1, 16, 6, 7),), bound=BOUND),
        Sample(((2, 13, 5),), bound=BOUND),
        Sample(((3, 40),), {"high": 0.0}, span=(-12.0, 0.0), bound=6e-4),
    )

    @staticmethod
    def reference(node: Node, *inputs: Array) -> Array:
        """x: any shape -> e**x, float32."""
        return evaluate(np.exp, node, inputs[0])

    @classmethod
    def function(cls, node: Node) -> Function:
        return np.exp

    @staticmethod
    def expand(
        node: Node, values: Mapping[str, Value], consts: Mapping[str, Array]
    ) -> Expansion | None:
        if quantized(node, values) or node.attrs.get("high", np.inf) <= 0:
            return None
        build = Build(node, values)
        fourth = build.add("ExpOfQuarter", node.inputs[0])
        square = build.add("Mul", fourth, fourth)
        build.add("Mul", square, square)
        return build.done()

    @classmethod
    def curve(cls, site: Site) -> Curve:
        return Curve(np.exp, LEAST, 0.0, 1)


class ExpOfQuarter(_Unary):
    """e**(x/4), up to where its fourth power overflows fp16; a step of the expansion above."""

    precisions = (Precision.FP16,)

    @staticmethod
    def reference(node: Node, *inputs: Array) -> Array:
        """x: any shape -> e**(x/4), float32."""
        return evaluate(ExpOfQuarter.function(node), node, inputs[0])

    @classmethod
    def function(cls, node: Node) -> Function:
        return lambda x: np.exp(x / 4)

    @classmethod
    def curve(cls, site: Site) -> Curve:
        return Curve(cls.function(site.node), -17.4, 4 * np.log(16.0), 1)
