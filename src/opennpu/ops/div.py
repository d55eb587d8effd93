"""Div by a constant: a Mul by its reciprocal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from opennpu.errors import UnsupportedError
from opennpu.hw.rk3588.common import Precision
from opennpu.ir.graph import Node, Value
from opennpu.ops.base import Expansion, Op, Sample, apply_epilogue

Array = npt.NDArray[Any]


class Div(Op):
    precisions = (Precision.FP16,)
    samples = (
        Sample(((1, 16, 6, 7),), consts=((1,),), precisions=(Precision.FP16,)),
        Sample(((1, 16, 6, 7), (1, 16, 6, 7)), ok=False, precisions=(Precision.FP16,)),
    )

    @staticmethod
    def reference(node: Node, *inputs: Array) -> Array:
        """a, b: any shape -> a / b, float32."""
        return apply_epilogue(node, inputs[0].astype(np.float32) / inputs[1].astype(np.float32))

    @staticmethod
    def expand(
        node: Node, values: Mapping[str, Value], consts: Mapping[str, Array]
    ) -> Expansion | None:
        divisor = consts.get(node.inputs[1])
        if divisor is None or not np.all(divisor):
            raise UnsupportedError(
                node.name,
                "Div has a computed divisor or a divisor of 0, the NPU multiplies by constants",
                "It stays in onnxruntime",
            )
        name = f"{node.name}/reciprocal"
        inverse = (1 / divisor.astype(np.float64)).astype(np.float32)
        mul = node.with_(op="Mul", inputs=(node.inputs[0], name))
        return Expansion((mul,), {}, {name: inverse})
