"""Reshape, Transpose and their relatives: the same bytes under another view.  No task at all."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from opennpu.ir.graph import Node
from opennpu.ops.base import Op, Sample, Site, image_view, reshaped_view
from opennpu.program import View

Array = npt.NDArray[Any]


def transposed_view(view: View, perm: tuple[int, ...]) -> View:
    """The view of ``transpose(x, perm)`` over the bytes of ``x``."""
    place = {axis: k for k, axis in enumerate(perm)}
    return View(tuple(place[axis] for axis in view.perm), view.nhwc)


class _Alias(Op):
    aliases = True

    @classmethod
    def input_rooms(cls, site: Site, room: int) -> tuple[int, ...]:
        return (room, *(0 for _ in site.inputs[1:]))

    @staticmethod
    def check(site: Site) -> None:
        x, y = site.x.value.quant, site.output.value.quant
        if x is not None and y is not None and (x.scale, x.zero_point) != (y.scale, y.zero_point):
            raise site.refuse(f"changes the int8 scale from {x.scale:g} to {y.scale:g}")


class Reshape(_Alias):
    names = ("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Cast")
    samples = (
        Sample(((1, 32, 4, 4),), {"shape": (1, 32, 16)}, op="Reshape"),
        Sample(((1, 32, 4, 4),), {"to": 1}, op="Cast"),  # fp16 models have them between floats
    )

    @staticmethod
    def reference(node: Node, *inputs: Array) -> Array:
        """x -> x with the shape in ``attrs["shape"]``, if there is one."""
        return inputs[0].reshape(node.attrs.get("shape", inputs[0].shape))

    @staticmethod
    def views(site: Site) -> tuple[tuple[View | None, ...], View]:
        view = site.x.view or image_view(site.x.shape)
        out = reshaped_view(site.x.shape, view, site.output.shape)
        if out is None:
            raise site.refuse(
                f"from {list(site.x.shape)} to {list(site.output.shape)} moves bytes between "
                "channels and pixels"
            )
        return (view, *(None for _ in site.inputs[1:])), out


class Transpose(_Alias):
    samples = (Sample(((1, 32, 4, 5),), {"perm": (0, 2, 3, 1)}),)

    @staticmethod
    def reference(node: Node, *inputs: Array) -> Array:
        """x -> x with its axes in the order of ``attrs["perm"]``."""
        return np.transpose(inputs[0], node.attrs["perm"])

    @staticmethod
    def views(site: Site) -> tuple[tuple[View | None, ...], View]:
        rank = len(site.x.shape)
        perm = tuple(int(p) for p in site.node.attrs.get("perm", range(rank)[::-1]))
        view = site.x.view or image_view(site.x.shape)
        return (view,), transposed_view(view, perm)
