"""CumSum: a product with a triangle of ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from opennpu.hw.rk3588.common import Precision
from opennpu.ir.graph import Node, Value
from opennpu.ops import _move
from opennpu.ops.base import Expansion, Op, Sample, Site, image_view
from opennpu.program import View

Array = npt.NDArray[Any]


def triangle(n: int, node: Node) -> Array:
    """[n, n]: which elements (rows) each sum (columns) takes."""
    exclusive = bool(node.attrs.get("exclusive", 0))
    ones = np.triu(np.ones((n, n), np.float32), 1 if exclusive else 0)
    return ones[::-1, ::-1].copy() if node.attrs.get("reverse", 0) else ones


class CumSum(Op):
    precisions = (Precision.FP16,)
    samples = (
        Sample(((4, 20),), {"axis": 1}, precisions=(Precision.FP16,)),
        Sample(((2, 5, 33),), {"axis": -1, "reverse": 1}, precisions=(Precision.FP16,)),
        Sample(((1, 12, 4, 5),), {"axis": 1, "exclusive": 1}, precisions=(Precision.FP16,)),
        Sample(((1, 8, 4, 5),), {"axis": 2}, ok=False, precisions=(Precision.FP16,)),
    )

    @staticmethod
    def reference(node: Node, *inputs: Array) -> Array:
        """x -> running sums along ``axis``."""
        axis = int(node.attrs["axis"])
        moved = np.moveaxis(inputs[0].astype(np.float64), axis, -1)
        y = moved @ triangle(moved.shape[-1], node)
        return np.ascontiguousarray(np.moveaxis(y, -1, axis)).astype(np.float32)

    @staticmethod
    def expand(
        node: Node, values: Mapping[str, Value], consts: Mapping[str, Array]
    ) -> Expansion | None:
        """MatMul along the last axis, Conv of 1x1 along the channels of an image."""
        x, name = values[node.inputs[0]], f"{node.outputs[0]}/triangle"
        given, rank = _move.parameter(node, consts, "axis", 1), len(x.shape)
        if not given or rank < 2 or x.quant is not None:
            return None
        axis = given[0] % rank
        ones = triangle(x.shape[axis], node)
        if axis == rank - 1 and rank < 4:
            matmul = node.with_(op="MatMul", inputs=(x.name, name), attrs={})
            return Expansion((matmul,), {}, {name: ones})
        if not _move.image_axis(x.shape, axis):
            return None
        sides = rank - 2
        attrs = {
            "kernel_shape": (1,) * sides,
            "strides": (1,) * sides,
            "pads": (0,) * (2 * sides),
            "dilations": (1,) * sides,
            "group": 1,
        }
        conv = node.with_(op="Conv", inputs=(x.name, name), attrs=attrs)
        w = np.ascontiguousarray(ones.T).reshape(*ones.shape, *(1 for _ in range(sides)))
        return Expansion((conv,), {}, {name: w})

    @staticmethod
    def check(site: Site) -> None:
        raise site.refuse(
            f"sums along {site.node.attrs.get('axis', 'a computed axis')} of {len(site.x.shape)} "
            "axes, the NPU sums along the last of 2 or 3, or channels"
        )

    @staticmethod
    def views(site: Site) -> tuple[tuple[View | None, ...], View]:
        view = image_view(site.x.shape)
        return (view, *(None for _ in site.inputs[1:])), view
