"""Sub: the difference of two tensors, or of a tensor and a constant.  On the DPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from opennpu.hw.rk3588.common import Precision
from opennpu.ir.graph import Node
from opennpu.ops._elementwise import _Binary
from opennpu.ops.base import Sample, apply_epilogue

Array = npt.NDArray[Any]
FP16 = (Precision.FP16,)


class Sub(_Binary):
    kind = "Sub"
    samples = (
        Sample(((1, 16, 6, 7), (1, 16, 6, 7))),
        Sample(((2, 13, 5), (2, 13, 1))),
        Sample(((2, 13, 1, 1), (2, 13, 3, 3))),
        Sample(((1, 24, 5, 5),), consts=((24, 1, 1),), precisions=FP16),
        Sample(((2, 3, 4, 5, 6),), consts=((1,),)),
        Sample(((1, 8, 4, 4),), consts=((4, 4),), precisions=FP16),
        Sample(((1, 8, 4, 4), (1, 8, 4, 1)), ok=False),
    )

    @staticmethod
    def reference(node: Node, *inputs: Array) -> Array:
        """a, b: any shape -> a - b, float32."""
        return apply_epilogue(node, inputs[0].astype(np.float32) - inputs[1].astype(np.float32))
