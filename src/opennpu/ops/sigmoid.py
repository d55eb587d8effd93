"""Sigmoid, Tanh, Erf: functions that end in constants.  One table look-up."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from opennpu.ir.graph import Node
from opennpu.ops._table import Curve, Function
from opennpu.ops._unary import _Unary, erf, evaluate, sigmoid
from opennpu.ops.base import Sample, Site

Array = npt.NDArray[Any]
CURVES = {
    "Sigmoid": Curve(sigmoid, -11.0, 11.0, 1),
    "Tanh": Curve(np.tanh, -5.5, 5.5, 0),
    "Erf": Curve(erf, -3.5, 3.5, 0),
}
BOUND = 5e-4  # of all fp16 numbers, against a result of 1; half of it is the rounding to fp16


class Sigmoid(_Unary):
    names = tuple(CURVES)
    samples = (
        Sample(((1, 16, 6, 7),), op="Sigmoid", bound=BOUND),
        Sample(((2, 13, 5),), op="Sigmoid", bound=BOUND),
        Sample(((3, 21),), op="Tanh", bound=BOUND),
        Sample(((1, 16, 80, 80),), op="Tanh", bound=BOUND),
        Sample(((2, 3, 4, 3, 2),), op="Erf", bound=BOUND),
        Sample(((7, 40),), op="Erf", bound=BOUND),
    )

    @staticmethod
    def reference(node: Node, *inputs: Array) -> Array:
        """x: any shape -> sigmoid(x), tanh(x) or erf(x), float32."""
        return evaluate(Sigmoid.function(node), node, inputs[0])

    @classmethod
    def function(cls, node: Node) -> Function:
        return CURVES[node.op].f

    @classmethod
    def curve(cls, site: Site) -> Curve:
        return CURVES[site.node.op]
