"""LayerNormalization and RMSNormalization over channels.

A table of 1/sqrt reaches over a thousandfold range only, and fp16 squares over a little more, so
the scale is found in steps: each measures the mean square of what the last one left, and multiplies
by a coarse 1/sqrt of it; the last, near 1, is exact to a fp16 rounding.  Epsilon travels along as
one more channel whose square is its share of the sum.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from opennpu.hw.layout import align
from opennpu.hw.rk3588 import chip
from opennpu.hw.rk3588.common import Precision
from opennpu.ir.graph import Node
from opennpu.ops import _conv, _rows, _table
from opennpu.ops.base import Op, Operand, Sample, Site, apply_epilogue
from opennpu.program import Task, View

Array = npt.NDArray[Any]
FP16 = (Precision.FP16,)
EPSILON = 1e-5  # ONNX default
LEAST_EPSILON = 9e-13  # float32 has 1e-12 a little smaller
SCALE = 1 / 64  # of x: squares of 16,000 and of 0.01 still are fp16 numbers
COARSE = (1 / 64, 16.0)  # mean squares that a coarse step brings near 1
FINE = (0.5, 2.0)
MAX_CHANNELS = 2048  # of a sum by ones: its weights are channels x channels
BOUND = 4e-3


class _Norm(Op):
    precisions = FP16
    centered = True

    @classmethod
    def evaluate(cls, node: Node, x: Array) -> Array:
        """Before scale and bias, in float64."""
        axes = tuple(range(int(node.attrs.get("axis", -1)) % x.ndim, x.ndim))
        wide = x.astype(np.float64)
        if cls.centered:
            wide = wide - wide.mean(axes, keepdims=True)
        epsilon = float(node.attrs.get("epsilon", EPSILON))
        return np.asarray(wide / np.sqrt((wide**2).mean(axes, keepdims=True) + epsilon))

    @classmethod
    def check(cls, site: Site) -> None:
        c, rank = site.x.shape[-1], len(site.x.shape)
        axis = int(site.node.attrs.get("axis", -1)) % rank
        if axis != rank - 1:
            raise site.refuse(
                f"normalises axes {axis} to {rank - 1} together, the NPU the last one"
            )
        if site.node.epilogue:
            raise site.refuse("has a fused activation, its last stage adds the bias")
        for i, operand in enumerate(site.inputs[1:3], 1):
            if operand is None:
                continue
            if operand.const is None:
                raise site.refuse(f"has a computed input {i}, the NPU takes constants")
            if operand.const.size not in (1, c) or operand.const.shape[-1:] not in ((1,), (c,)):
                raise site.refuse(
                    f"has an input of shape {list(operand.const.shape)} for {c} channels"
                )
            _conv.check_fp16(site, "a constant", operand.const)
        if c > MAX_CHANNELS:
            raise site.refuse(f"adds up {c} channels, at most {MAX_CHANNELS} have room for weights")
        epsilon = float(site.node.attrs.get("epsilon", EPSILON))
        if not LEAST_EPSILON <= epsilon <= 1:
            raise site.refuse(f"has epsilon {epsilon:g}, the NPU takes {LEAST_EPSILON:g} to 1")

    @staticmethod
    def views(site: Site) -> tuple[tuple[View | None, ...], View]:
        view = _rows.row_view(site, len(site.x.shape) - 1)
        return (view, *(None for _ in site.inputs[1:])), view

    @classmethod
    def input_rooms(cls, site: Site, room: int) -> tuple[int, ...]:
        return tuple(0 for _ in site.inputs)

    @classmethod
    def rows(cls, site: Site) -> _rows.Rows:
        wide = max(
            align(site.output.nhwc[3] + 1, chip.KERNEL_GROUP[Precision.FP16]), site.output.channels
        )
        return _rows.Rows.of(site, (wide, wide, wide))

    @classmethod
    def scratch(cls, site: Site) -> int:
        return cls.rows(site).nbytes

    @classmethod
    def tasks(cls, site: Site) -> Iterator[Task]:
        rows = cls.rows(site)
        for x, y in zip(_rows.images(site.x), _rows.images(site.output), strict=True):
            yield from cls.image(site, rows, x, y)

    @classmethod
    def image(cls, site: Site, rows: _rows.Rows, x: Operand, y: Operand) -> Iterator[Task]:
        """One image."""
        c = y.nhwc[3]
        epsilon = float(site.node.attrs.get("epsilon", EPSILON))
        first = np.zeros((c + 1, c))
        first[:c] = SCALE * (np.eye(c) - (1 / c if cls.centered else 0))
        more = np.zeros(c + 1)
        more[c] = SCALE * math.sqrt(c * epsilon)
        now, one, two = rows.cubes
        if cls.centered:  # twice: fp16 weights leave 2**-11 of the mean
            again = np.eye(c + 1)
            again[:c, :c] -= 1 / c
            yield from rows.product(x, one, first, more)
            yield from rows.product(one, now, again)
        else:
            yield from rows.product(x, now, first, more)
        mean = np.full((now.channels, c + 1), 1 / c)
        for low, high in (*[COARSE] * coarse_steps(epsilon), FINE):
            curve = _table.Curve(lambda v: 1 / np.sqrt(v), low, high, 1)
            yield from rows.pair("Mul", now, now, one)
            yield from rows.product(one, two, mean)
            yield from rows.curve(two, one, _table.fp16_table(curve))
            yield from rows.pair("Mul", now, one, two)
            now, two = two, now
        scale = np.broadcast_to(np.asarray(site.const(1), np.float64).reshape(-1), (c,))
        bias = site.const(2)
        target = y if bias is None else one
        yield from rows.affine(now, target, scale, np.zeros(c))
        if bias is not None:
            add = np.broadcast_to(bias.astype(np.float64).reshape(-1), (c,))
            yield from rows.affine(one, y, np.ones(c), add)


def coarse_steps(epsilon: float) -> int:
    """Steps that bring every mean square, the least and the largest, near 1."""
    low, high = (math.log2(v) for v in COARSE)
    least = math.log2(epsilon * SCALE**2)
    most = math.log2(float(np.finfo(np.float16).max))
    return 1 + max(math.ceil((low - least) / -low), math.ceil((most - high) / high))


class LayerNormalization(_Norm):
    samples = (
        Sample(((2, 9, 40),), {"axis": -1}, ((40,), (40,)), precisions=FP16, bound=BOUND),
        Sample(((1, 17, 197),), {"axis": 2}, ((197,),), precisions=FP16, bound=BOUND),
        Sample(((5, 64),), {"epsilon": 1e-12}, ((64,), (64,)), precisions=FP16, bound=BOUND),
        Sample(((2, 3, 9, 40),), {"axis": 2}, ((9, 40),), ok=False, precisions=FP16),
    )

    @staticmethod
    def reference(node: Node, *inputs: Array) -> Array:
        """x: […, C], scale, bias: [C] -> (x - mean) / deviation * scale + bias, float32."""
        y = LayerNormalization.evaluate(node, inputs[0]) * inputs[1]
        y = y + inputs[2] if len(inputs) > 2 else y
        return apply_epilogue(node, y.astype(np.float32))


class RMSNormalization(_Norm):
    names = ("RMSNormalization", "SimplifiedLayerNormalization")
    centered = False
    samples = (
        Sample(((2, 9, 40),), {"axis": -1}, ((40,),), precisions=FP16, bound=BOUND),
        Sample(((7, 130),), {"epsilon": 1e-6}, ((130,),), precisions=FP16, bound=BOUND),
    )

    @staticmethod
    def reference(node: Node, *inputs: Array) -> Array:
        """x: […, C], scale: [C] -> x / root of the mean square * scale, float32."""
        y = RMSNormalization.evaluate(node, inputs[0]) * inputs[1]
        return apply_epilogue(node, y.astype(np.float32))
