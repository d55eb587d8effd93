"""HardSigmoid: clip(alpha x + beta, 0, 1), and HardSwish: x times that.  One task each.

fp16: BS adds, multiplies and clamps; EW multiplies by x.  int8: a table.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from opennpu.hw.rk3588 import dpu
from opennpu.hw.rk3588.common import Algo, Precision
from opennpu.ir.graph import Node
from opennpu.ops import _flying
from opennpu.ops._conv import EDATA_SIZE, FP16_MAX, PER_PIXEL, float_bits
from opennpu.ops._table import Function
from opennpu.ops._unary import _Unary, evaluate
from opennpu.ops.base import Sample, Site, clip_range
from opennpu.program import Task

Array = npt.NDArray[Any]
MIN_SLOPE = float(np.finfo(np.float16).tiny)  # below, fp16 has fewer bits
BOUND = 7e-4  # alpha is rounded to fp16, and the result


def _numbers(node: Node) -> tuple[float, float]:
    if node.op == "HardSwish":
        return 1 / 6, 0.5
    return float(node.attrs.get("alpha", 0.2)), float(node.attrs.get("beta", 0.5))


class HardSigmoid(_Unary):
    names = ("HardSigmoid", "HardSwish")
    samples = (
        Sample(((1, 16, 6, 7),), {"alpha": 0.2, "beta": 0.5}, bound=BOUND),
        Sample(((2, 13, 5, 5),), {"alpha": -0.3, "beta": 0.25}, bound=BOUND),
        Sample(((1, 16, 6, 7),), op="HardSwish", bound=BOUND),
        Sample(((1, 4, 1, 9000),), op="HardSwish", bound=BOUND),
        Sample(((2, 21, 7),), op="HardSwish", bound=BOUND),
        Sample(
            ((1, 8, 4, 4),), {"alpha": 1e-6, "beta": 0.5}, ok=False, precisions=(Precision.FP16,)
        ),
    )

    @staticmethod
    def reference(node: Node, *inputs: Array) -> Array:
        """x: any shape -> clip(alpha x + beta, 0, 1), or x times that, float32."""
        return evaluate(HardSigmoid.function(node), node, inputs[0])

    @classmethod
    def function(cls, node: Node) -> Function:
        alpha, beta = _numbers(node)
        if node.op == "HardSwish":
            return lambda x: x * np.clip(alpha * x + beta, 0, 1)
        return lambda x: np.clip(alpha * x + beta, 0, 1)

    @classmethod
    def check_fp16(cls, site: Site) -> None:
        alpha, beta = _numbers(site.node)
        if not MIN_SLOPE <= abs(alpha) <= FP16_MAX or not abs(beta / alpha) <= FP16_MAX:
            raise site.refuse(
                f"has slope {alpha:g} and shift {beta:g}, fp16 takes slopes from {MIN_SLOPE:g} "
                f"to {FP16_MAX:g} and shifts up to that times the slope"
            )
        if site.node.epilogue:
            low, high = clip_range(site.node)
            raise site.refuse(f"clips once more, to [{low:g}, {high:g}]")

    @classmethod
    def fp16_tasks(cls, site: Site) -> Iterator[Task]:
        alpha, beta = _numbers(site.node)
        gate = (
            dpu.BS_CFG(bs_relux_en=1, bs_alu_algo=Algo.ADD),
            dpu.BS_ALU_CFG(bs_alu_operand=float_bits(beta / alpha)),
            dpu.BS_MUL_CFG(bs_mul_operand=int(np.float16(alpha).view(np.uint16))),
            dpu.BS_RELUX_CMP_VALUE(bs_relux_cmp_dat=float_bits(1.0)),
        )
        if site.node.op == "HardSigmoid":
            pieces = _flying.flat_pieces(site.x, None, site.output)
            return _flying.tasks(site, _flying.Stages(gate), pieces, site.output)
        times_x = dpu.EW_CFG(
            ew_op_type=1,
            ew_op_src=1,
            ew_lut_bypass=1,
            ew_op_cvt_bypass=1,
            ew_relu_bypass=1,
            edata_size=EDATA_SIZE[site.precision],
            ew_data_mode=PER_PIXEL,
        )
        pieces = _flying.flat_pieces(site.x, site.x, site.output)
        return _flying.tasks(site, _flying.Stages((*gate, times_x)), pieces, site.output)
