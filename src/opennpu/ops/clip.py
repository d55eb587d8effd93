"""Relu and Clip as tasks of their own, where they could not join the node before them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from opennpu.hw.rk3588.common import Precision
from opennpu.ir.graph import Epilogue, Node
from opennpu.ops import _conv, _flying
from opennpu.ops.base import Op, Sample, Site, apply_epilogue, clip_range, image_view
from opennpu.program import Task, View

Array = npt.NDArray[Any]


def bounds(site: Site) -> tuple[float, float]:
    """(low, high) of the node, its epilogue included."""
    node = site.node
    own = Epilogue("relu")
    if node.op == "Clip":
        low, high = (site.const(i) for i in (1, 2))
        attrs = node.attrs  # opset 6 has the bounds there
        own = Epilogue(
            "clip",
            float(attrs.get("min", -np.inf)) if low is None else float(low.reshape(())),
            float(attrs.get("max", np.inf)) if high is None else float(high.reshape(())),
        )
    return clip_range(node.with_(epilogue=(own, *node.epilogue)))


class Clip(Op):
    names = ("Clip", "Relu")
    samples = (
        Sample(((1, 16, 6, 7),), op="Relu"),
        Sample(((2, 20, 5, 3),), op="Relu"),
        Sample(((1, 16, 6, 7),), {"min": -0.5, "max": 0.5}, precisions=(Precision.FP16,)),
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
        stages = _flying.unary(site, site.x, site.output, *bounds(site))
        pieces = _flying.flat_pieces(site.x, None, site.output)
        return _flying.tasks(site, stages, pieces, site.output)
