"""Add: the sum of two tensors of one shape, or of a tensor and a constant.  Runs on the DPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from opennpu.hw.rk3588.common import Precision
from opennpu.ir.graph import Node
from opennpu.ops._elementwise import _Binary
from opennpu.ops.base import Sample, apply_epilogue

Array = npt.NDArray[Any]


class Add(_Binary):
    kind = "Add"
    samples = (
        Sample(((1, 16, 6, 7), (1, 16, 6, 7))),
        Sample(((2, 13, 3, 3), (2, 13, 3, 3))),
        Sample(((1, 24, 56, 56), (1, 24, 56, 56))),
        Sample(((1, 24, 5, 5),), consts=((1, 24, 1, 1),), precisions=(Precision.FP16,)),
        Sample(((1, 4, 1, 9000), (1, 4, 1, 9000))),
        Sample(((1, 24, 5, 5), (1, 24, 1, 1))),
        Sample(((2, 13, 1, 1), (2, 13, 5, 5))),
        Sample(((3, 7, 40),), consts=((7, 40),), precisions=(Precision.FP16,)),
        Sample(((1, 16, 6, 7),), consts=((1,),)),
        Sample(((1, 8, 4, 4), (1, 8, 4, 1)), ok=False),
    )

    @staticmethod
    def reference(node: Node, *inputs: Array) -> Array:
        """a, b: any shape -> a + b, float32."""
        return apply_epilogue(node, inputs[0].astype(np.float32) + inputs[1].astype(np.float32))
