"""HardSigmoid: clip(alpha x + beta, 0, 1), as a Mul and an Add."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from opennpu.hw.rk3588.common import Precision
from opennpu.ir.graph import Epilogue, Node, Value
from opennpu.ops.base import Expansion, Op, Sample

Array = npt.NDArray[Any]


def _numbers(node: Node) -> tuple[float, float]:
    return float(node.attrs.get("alpha", 0.2)), float(node.attrs.get("beta", 0.5))


class HardSigmoid(Op):
    precisions = (Precision.FP16,)
    samples = (Sample(((1, 16, 6, 7),), {"alpha": 0.2, "beta": 0.5}, precisions=(Precision.FP16,)),)

    @staticmethod
    def reference(node: Node, *inputs: Array) -> Array:
        """x: any shape -> clip(alpha x + beta, 0, 1), float32."""
        alpha, beta = _numbers(node)
        y = np.clip(alpha * inputs[0].astype(np.float32) + beta, 0, 1)
        return np.asarray(y, np.float32)

    @staticmethod
    def expand(
        node: Node, values: Mapping[str, Value], consts: Mapping[str, Array]
    ) -> Expansion | None:
        alpha, beta = _numbers(node)
        x, y = node.inputs[0], node.outputs[0]
        scaled, a, b = f"{y}/scaled", f"{node.name}/alpha", f"{node.name}/beta"
        nodes = (
            Node(node.name, "Mul", (x, a), (scaled,)),
            Node(node.name, "Add", (scaled, b), (y,), {}, (Epilogue("clip", 0.0, 1.0),)),
        )
        constants = {a: np.array([alpha], np.float32), b: np.array([beta], np.float32)}
        return Expansion(nodes, {scaled: Value(scaled, values[x].shape)}, constants)
