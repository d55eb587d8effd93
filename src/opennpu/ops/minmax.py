"""Min and Max of two tensors, or of a tensor and a constant.  On the DPU.  More are a chain."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from opennpu.hw.rk3588.common import Precision
from opennpu.ir.graph import Node, Value
from opennpu.ops._elementwise import _Binary
from opennpu.ops.base import Expansion, Sample, apply_epilogue

Array = npt.NDArray[Any]
FP16 = (Precision.FP16,)
SAMPLES = (
    Sample(((1, 16, 6, 7), (1, 16, 6, 7))),
    Sample(((2, 13, 5), (2, 13, 1))),
    Sample(((1, 24, 5, 5),), consts=((24, 1, 1),), precisions=FP16),
    Sample(((3, 21),), consts=((1,),)),
    Sample(((1, 8, 4), (1, 8, 4), (1, 8, 4)), precisions=FP16),
    Sample(((1, 8, 4, 4), (1, 8, 4, 1)), ok=False),
)


def _chain(node: Node, values: Mapping[str, Value]) -> Expansion | None:
    """One node per operand after the first."""
    if len(node.inputs) <= 2:
        return None
    quants = [values[i].quant for i in (*node.inputs, *node.outputs)]
    if any(q is not None for q in quants):
        return None  # the results between have no quantization
    nodes, made = [], {}
    left, shape = node.inputs[0], values[node.inputs[0]].shape
    for k, right in enumerate(node.inputs[1:]):
        last = k == len(node.inputs) - 2
        out = node.outputs[0] if last else f"{node.outputs[0]}/{k}"
        shape = np.broadcast_shapes(shape, values[right].shape)
        if not last:
            made[out] = Value(out, shape)
        epilogue = node.epilogue if last else ()
        nodes.append(Node(node.name, node.op, (left, right), (out,), {}, epilogue))
        left = out
    return Expansion(tuple(nodes), made)


class Max(_Binary):
    kind = "Max"
    samples = SAMPLES

    @staticmethod
    def reference(node: Node, *inputs: Array) -> Array:
        """a, b, …: any shape -> the largest, float32."""
        return apply_epilogue(node, np.maximum.reduce(np.broadcast_arrays(*inputs)))

    @staticmethod
    def expand(
        node: Node, values: Mapping[str, Value], consts: Mapping[str, Array]
    ) -> Expansion | None:
        return _chain(node, values)


class Min(_Binary):
    kind = "Min"
    samples = SAMPLES

    @staticmethod
    def reference(node: Node, *inputs: Array) -> Array:
        """a, b, …: any shape -> the smallest, float32."""
        return apply_epilogue(node, np.minimum.reduce(np.broadcast_arrays(*inputs)))

    @staticmethod
    def expand(
        node: Node, values: Mapping[str, Value], consts: Mapping[str, Array]
    ) -> Expansion | None:
        return _chain(node, values)
