"""BatchNormalization that could not join a convolution: a Mul and an Add per channel."""

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
EPSILON = 1e-5  # ONNX default


class BatchNormalization(Op):
    precisions = (Precision.FP16,)
    samples = (
        Sample(
            ((2, 12, 5, 4),),
            {"epsilon": 10.0},  # the random variances may be negative
            ((12,), (12,), (12,), (12,)),
            precisions=(Precision.FP16,),
        ),
    )

    @staticmethod
    def reference(node: Node, *inputs: Array) -> Array:
        """x: [N, C, …], scale, bias, mean, variance: [C] -> like x, float32."""
        x, scale, bias, mean, variance = (i.astype(np.float32) for i in inputs)
        shape = (-1, *[1] * (x.ndim - 2))
        gain = scale / np.sqrt(variance + np.float32(node.attrs.get("epsilon", EPSILON)))
        y = (x - mean.reshape(shape)) * gain.reshape(shape) + bias.reshape(shape)
        return apply_epilogue(node, y)

    @staticmethod
    def expand(
        node: Node, values: Mapping[str, Value], consts: Mapping[str, Array]
    ) -> Expansion | None:
        params = [consts.get(i) for i in node.inputs[1:]]
        known = [p.astype(np.float64) for p in params if p is not None]
        if len(known) != 4 or len(node.outputs) > 1:
            raise UnsupportedError(
                node.name,
                f"BatchNormalization has {4 - len(known)} computed parameters and "
                f"{len(node.outputs)} outputs, the NPU takes constants and writes 1",
                "It stays in onnxruntime",
            )
        scale, bias, mean, variance = known
        epsilon = float(node.attrs.get("epsilon", EPSILON))
        if not (variance + epsilon > 0).all():
            raise UnsupportedError(
                node.name,
                f"BatchNormalization has variance {variance.min():g}, it must exceed {-epsilon:g}",
                "It stays in onnxruntime",
            )
        x, y = node.inputs[0], node.outputs[0]
        gain = scale / np.sqrt(variance + epsilon)
        shape = (-1, *[1] * (len(values[x].shape) - 2))
        gained, a, b = f"{y}/gained", f"{node.name}/gain", f"{node.name}/shift"
        nodes = (
            Node(node.name, "Mul", (x, a), (gained,)),
            Node(node.name, "Add", (gained, b), (y,), {}, node.epilogue),
        )
        constants = {
            a: gain.reshape(shape).astype(np.float32),
            b: (bias - mean * gain).reshape(shape).astype(np.float32),
        }
        return Expansion(nodes, {gained: Value(gained, values[x].shape)}, constants)
