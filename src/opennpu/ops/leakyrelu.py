"""LeakyRelu, PRelu, Abs, Neg: a straight line on either side of 0.  One task.

fp16: BN multiplies, with PRELU set the negative numbers only.  int8: a table, which is why the
slope must be one number there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from opennpu.hw.rk3588 import dpu
from opennpu.hw.rk3588.common import Precision
from opennpu.ir.graph import Node
from opennpu.ops import _conv, _flying
from opennpu.ops._elementwise import channel_vector
from opennpu.ops._table import Function
from opennpu.ops._unary import _Unary, evaluate
from opennpu.ops.base import Sample, Site, apply_epilogue, clip_range
from opennpu.program import Task

Array = npt.NDArray[Any]
FP16 = (Precision.FP16,)


def _slope(site: Site) -> Array:
    """Of negative numbers: one, or one per channel."""
    node = site.node
    if node.op != "PRelu":
        return np.asarray(_fixed(node))
    slope = site.const(1)
    if slope is None:
        raise site.refuse("has 1 computed slope, the NPU takes constant ones")
    assert site.x.view is not None
    vector = channel_vector(slope, site.x.shape, site.x.view)
    if vector is None:
        raise site.refuse(f"has slopes of shape {list(slope.shape)} on {list(site.x.shape)}")
    return vector if slope.size > 1 else np.asarray(float(slope.reshape(())))


def _fixed(node: Node) -> float:
    if node.op == "LeakyRelu":
        return float(node.attrs.get("alpha", 0.01))
    return -1.0


class LeakyRelu(_Unary):
    names = ("LeakyRelu", "PRelu", "Abs", "Neg")
    samples = (
        Sample(((1, 16, 6, 7),), {"alpha": 0.1}, op="LeakyRelu"),
        Sample(((2, 13, 5),), {"alpha": -1.5}, op="LeakyRelu"),
        Sample(((1, 24, 6, 7),), consts=((24, 1, 1),), op="PRelu", precisions=FP16),
        Sample(((2, 13, 3, 3),), consts=((1,),), op="PRelu"),
        Sample(((1, 16, 6, 7),), op="Abs"),
        Sample(((3, 21),), op="Neg"),
        Sample(((1, 8, 4, 4),), consts=((8, 4, 4),), ok=False, op="PRelu"),
        Sample(
            ((1, 24, 6, 7),),
            consts=((24, 1, 1),),
            ok=False,
            op="PRelu",
            precisions=(Precision.INT8,),
        ),
    )

    @staticmethod
    def reference(node: Node, *inputs: Array) -> Array:
        """x, and for PRelu its slopes -> x, negative numbers times the slope; |x|; -x."""
        if node.op == "PRelu":
            x, slope = (i.astype(np.float32) for i in inputs)
            return apply_epilogue(node, np.where(x < 0, slope * x, x))
        return evaluate(LeakyRelu.function(node), node, inputs[0])

    @classmethod
    def function(cls, node: Node) -> Function:
        if node.op == "Neg":
            return np.negative
        slope = _fixed(node)
        return lambda x: np.where(x < 0, slope * x, x)

    @classmethod
    def check(cls, site: Site) -> None:
        slope = _slope(site)
        if site.node.epilogue and site.precision is Precision.FP16:
            low, high = clip_range(site.node)
            raise site.refuse(f"clips to [{low:g}, {high:g}] behind its slope")
        if slope.ndim and site.precision is Precision.INT8:
            raise site.refuse(f"has {slope.size} slopes, in int8 the NPU takes 1")
        _conv.check_fp16(site, "slopes", slope)
        super().check(site)

    @classmethod
    def check_fp16(cls, site: Site) -> None:
        """Nothing is left."""

    @classmethod
    def tasks(cls, site: Site) -> Iterator[Task]:
        if site.node.op == "PRelu" and site.precision is Precision.INT8:
            node = site.node.with_(op="LeakyRelu", attrs={"alpha": float(_slope(site))})
            site = replace(site, node=node, inputs=site.inputs[:1])
        return super().tasks(site)

    @classmethod
    def fp16_tasks(cls, site: Site) -> Iterator[Task]:
        slope, y = _slope(site), site.output
        negative = site.node.op != "Neg"
        cfg = dpu.BN_CFG(bn_alu_bypass=1, bn_mul_prelu=negative, bn_relu_bypass=1)
        if slope.ndim:
            full = np.zeros(y.surfaces * 8, "<f2")
            full[: slope.size] = slope
            stages = _flying.Stages(
                (cfg, dpu.BN_MUL_CFG(bn_mul_src=1)),
                bn_operands=site.place(full.view(np.uint8)),
                bn_use=_flying.USE_MUL,
            )
            return _flying.tasks(site, stages, _flying.surface_pieces(site.x, y), y)
        factor = int(np.float16(slope).view(np.uint16))
        stages = _flying.Stages((cfg, dpu.BN_MUL_CFG(bn_mul_operand=factor)))
        return _flying.tasks(site, stages, _flying.flat_pieces(site.x, None, y), y)
