"""Div: by a constant, a Mul by its reciprocal; by a tensor, EW divides (fp16)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from opennpu.errors import UnsupportedError
from opennpu.hw.rk3588.common import Precision
from opennpu.ir.graph import Node, Value
from opennpu.ops._elementwise import _Binary
from opennpu.ops.base import Expansion, Sample, apply_epilogue

Array = npt.NDArray[Any]
FP16 = (Precision.FP16,)
BOUND = 4e-3  # of a division: boards are up to 0.35 % off (board notes A.10)


class Div(_Binary):
    kind = "Div"
    samples = (
        Sample(((1, 16, 6, 7),), consts=((1,),)),
        Sample(((1, 16, 6, 7), (1, 16, 6, 7)), precisions=FP16, bound=BOUND),
        Sample(((2, 24, 5), (2, 24, 1)), precisions=FP16, bound=BOUND),
        Sample(((1, 13, 6, 7), (1, 13, 6, 7)), ok=False, precisions=FP16),
        Sample(((1, 16, 6, 7), (1, 16, 6, 7)), ok=False, precisions=(Precision.INT8,)),
    )

    @staticmethod
    def reference(node: Node, *inputs: Array) -> Array:
        """a, b: any shape -> a / b, float32."""
        with np.errstate(all="ignore"):
            quotient = inputs[0].astype(np.float32) / inputs[1].astype(np.float32)
        return apply_epilogue(node, quotient)

    @staticmethod
    def expand(
        node: Node, values: Mapping[str, Value], consts: Mapping[str, Array]
    ) -> Expansion | None:
        divisor = consts.get(node.inputs[1])
        if divisor is None:
            return None
        with np.errstate(all="ignore"):
            inverse = (1 / divisor.astype(np.float64)).astype(np.float32)
        if not np.isfinite(inverse).all():
            raise UnsupportedError(
                node.name,
                f"Div has a divisor of {np.abs(divisor).min():g}, float32 holds no reciprocal",
                "It stays in onnxruntime",
            )
        if values[node.outputs[0]].quant is not None:
            return None  # its table divides
        name = f"{node.name}/reciprocal"
        mul = node.with_(op="Mul", inputs=(node.inputs[0], name))
        return Expansion((mul,), {}, {name: inverse})
