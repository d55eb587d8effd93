"""Concat along channels: each operand is copied to its surfaces.  Runs on the DPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from opennpu.hw.layout import align
from opennpu.hw.rk3588 import chip
from opennpu.ir.graph import Node
from opennpu.ops import _flying
from opennpu.ops.base import Op, Operand, Sample, Site, image_view
from opennpu.program import Task, View

Array = npt.NDArray[Any]


def axis_of(site: Site) -> int:
    return int(site.node.attrs.get("axis", 1)) % len(site.output.shape)


class Concat(Op):
    samples = (
        Sample(((1, 16, 5, 5), (1, 32, 5, 5)), {"axis": 1}),
        Sample(((2, 16, 3, 4), (2, 16, 3, 4), (2, 16, 3, 4)), {"axis": 1}),
        Sample(((1, 3, 5, 5), (1, 16, 5, 5)), {"axis": 1}, ok=False),
        Sample(((1, 16, 5, 5), (1, 16, 5, 5)), {"axis": 2}, ok=False),
    )

    @staticmethod
    def reference(node: Node, *inputs: Array) -> Array:
        """tensors of one shape but for ``axis`` -> their concatenation."""
        return np.concatenate(inputs, node.attrs["axis"])

    @staticmethod
    def check(site: Site) -> None:
        if site.node.epilogue:
            raise site.refuse("has a fused activation, it only copies")
        axis, c2 = axis_of(site), chip.elements_per_atom(site.precision)
        assert site.output.view is not None
        if site.output.view.perm[-1] != axis or site.output.shape[axis] != site.output.nhwc[3]:
            raise site.refuse(f"joins axis {axis}, the NPU joins channels")
        for operand in site.inputs:
            if operand is None or operand.const is not None:
                raise site.refuse("has a constant operand")
        for operand in site.inputs[:-1]:
            assert operand is not None
            if operand.shape[axis] % c2:
                raise site.refuse(
                    f"joins {operand.shape[axis]} channels, operands before the last must have "
                    f"a multiple of {c2}"
                )
        for operand in site.inputs:
            assert operand is not None
            if operand.value.quant is not None:
                _flying.unary(site, operand, site.output, -np.inf, np.inf)

    @staticmethod
    def views(site: Site) -> tuple[tuple[View | None, ...], View]:
        given = next((i.view for i in site.inputs if i and i.view is not None), None)
        out = image_view(site.output.shape)
        if given is not None:
            axis = axis_of(site)
            channels = site.output.shape[axis] if given.perm[-1] == axis else given.nhwc[3]
            out = View(given.perm, (*given.nhwc[:3], channels))
            if int(np.prod(out.nhwc)) != int(np.prod(site.output.shape)):
                raise site.refuse(f"joins axis {axis}, the NPU joins channels")
        views = tuple(
            View(out.perm, (*out.nhwc[:3], i.shape[out.perm[-1]])) if i else None
            for i in site.inputs
        )
        return views, out

    @classmethod
    def input_rooms(cls, site: Site, room: int) -> tuple[int, ...]:
        c2 = chip.elements_per_atom(site.precision)
        sizes = [align(i.nhwc[3], c2) if i else 0 for i in site.inputs]
        sizes[-1] += max(0, room - align(site.output.nhwc[3], c2))
        return tuple(sizes)

    @classmethod
    def tasks(cls, site: Site) -> Iterator[Task]:
        y, channel = site.output, 0
        c2 = chip.elements_per_atom(site.precision)
        for k, x in enumerate(site.inputs):
            assert x is not None
            last = k == len(site.inputs) - 1
            room = y.channels - channel if last else align(x.nhwc[3], c2)
            stages = _flying.copy(site, x, y)
            for n in range(y.nhwc[0]):
                source = single(x, n, 0, room)
                target = single(y, n, channel, room)
                pieces = _flying.flat_pieces(source, None, target)
                yield from _flying.tasks(site, stages, pieces, y)
            channel += x.nhwc[3]


def single(o: Operand, n: int, channel: int, room: int) -> Operand:
    """Image ``n`` of an operand from ``channel`` on, ``room`` channels of it."""
    assert o.view is not None
    view = replace(o.view, nhwc=(1, *o.nhwc[1:3], room))
    return replace(o, view=view, channels=room, ref=o.at(n, channel))
