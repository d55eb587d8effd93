"""Relu and Clip as tasks of their own, where they could not join the node before them.

int8 with bounds that BS cannot clamp to is a table look-up.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from opennpu.errors import UnsupportedError
from opennpu.hw.rk3588.common import Precision
from opennpu.ir.graph import Epilogue, Node
from opennpu.ops import _conv, _flying, _table
from opennpu.ops.base import MAX_SHIFT, Op, Sample, Site, apply_epilogue, clip_range, image_view
from opennpu.program import Task, View

Array = npt.NDArray[Any]


def bounds(site: Site) -> tuple[float, float]:
    """(low, high) of the node, its epilogue included."""
    node = site.node
    own = Epilogue("relu")
    if node.op == "Clip":
        low, high = (site.const(i) for i in (1, 2))
        for bound in (low, high):
            if bound is not None and bound.size != 1:
                raise site.refuse(f"has a bound of {bound.size} elements, not of 1")
        attrs = node.attrs  # opset 6 has the bounds there
        own = Epilogue(
            "clip",
            float(attrs.get("min", -np.inf)) if low is None else float(low.reshape(())),
            float(attrs.get("max", np.inf)) if high is None else float(high.reshape(())),
        )
    return clip_range(node.with_(epilogue=(own, *node.epilogue)))


def _above_only(site: Site, low: float, high: float) -> bool:
    """fp16, and no lower bound."""
    return site.precision is Precision.FP16 and low == -np.inf and high != np.inf


def _by_table(site: Site, low: float, high: float) -> bool:
    """int8, and the bounds are not those of BS."""
    if site.precision is not Precision.INT8:
        return False
    try:
        _conv.check_clip(site, low, high, site.output)
    except UnsupportedError:
        return True
    return False


class Clip(Op):
    names = ("Clip", "Relu")
    samples = (
        Sample(((1, 16, 6, 7),), op="Relu"),
        Sample(((2, 20, 5, 3),), op="Relu"),
        Sample(((1, 16, 6, 7),), {"min": -0.5, "max": 0.5}),
        Sample(((2, 13, 5),), {"max": 0.25}),
        Sample(((2, 13, 5),), {"max": 5000.0}, ok=False, precisions=(Precision.FP16,)),
    )

    @staticmethod
    def reference(node: Node, *inputs: Array) -> Array:
        """x, and for Clip its scalar bounds -> clip(x), float32."""
        x = inputs[0].astype(np.float32)
        if node.op == "Relu":
            return apply_epilogue(node, np.maximum(x, 0))
        low = inputs[1] if len(inputs) > 1 else node.attrs.get("min", -np.inf)
        high = inputs[2] if len(inputs) > 2 else node.attrs.get("max", np.inf)
        return apply_epilogue(node, np.clip(x, low, high))

    @staticmethod
    def check(site: Site) -> None:
        for i in (1, 2):
            if i < len(site.inputs) and site.inputs[i] is not None and site.const(i) is None:
                raise site.refuse("has computed bounds, the NPU takes constant ones")
        low, high = bounds(site)
        if _above_only(site, low, high):
            if not abs(high) <= MAX_SHIFT:
                raise site.refuse(
                    f"clips at {high:g} from above, in fp32 the shift there and back keeps fp16 "
                    f"whole up to {MAX_SHIFT:g}"
                )
        elif not _by_table(site, low, high):
            _conv.check_clip(site, low, high, site.output)
            _flying.unary(site, site.x, site.output, low, high)

    @staticmethod
    def views(site: Site) -> tuple[tuple[View | None, ...], View]:
        view = site.x.view or image_view(site.x.shape)
        return (view, *(None for _ in site.inputs[1:])), view

    @classmethod
    def input_rooms(cls, site: Site, room: int) -> tuple[int, ...]:
        return (room, *(0 for _ in site.inputs[1:]))

    @classmethod
    def tasks(cls, site: Site) -> Iterator[Task]:
        low, high = bounds(site)
        if _by_table(site, low, high):
            table = _table.int8_table(site.x, site.output, lambda x: np.clip(x, low, high))
            return _table.tasks(site, table, site.x, site.output)
        if _above_only(site, low, high):
            stages = _flying.below(high)
        else:
            stages = _flying.unary(site, site.x, site.output, low, high)
        pieces = _flying.flat_pieces(site.x, None, site.output)
        return _flying.tasks(site, stages, pieces, site.output)
