"""Concat along any axis: each operand is copied to its place.  Runs on the DPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from opennpu.hw.layout import align
from opennpu.hw.rk3588 import chip
from opennpu.ir.graph import Node, Value
from opennpu.ops import _flying, _move
from opennpu.ops.base import Expansion, Op, Sample, Site, image_view
from opennpu.program import Task, View

Array = npt.NDArray[Any]


def axis_of(site: Site) -> int:
    return int(site.node.attrs.get("axis", 1)) % len(site.output.shape)


class Concat(Op):
    samples = (
        Sample(((1, 16, 5, 5), (1, 32, 5, 5)), {"axis": 1}),
        Sample(((2, 16, 3, 4), (2, 16, 3, 4), (2, 16, 3, 4)), {"axis": 1}),
        Sample(((1, 3, 5, 5), (1, 16, 5, 5)), {"axis": 1}),
        Sample(((2, 5, 4, 4), (2, 12, 4, 4), (2, 7, 4, 4)), {"axis": 1}),
        Sample(((1, 16, 5, 5), (1, 16, 3, 5)), {"axis": 2}),
        Sample(((2, 20, 5, 5), (2, 20, 5, 2)), {"axis": -1}),
        Sample(((1, 8, 4, 4), (3, 8, 4, 4)), {"axis": 0}),
        Sample(((1, 8, 2, 4, 4), (1, 8, 3, 4, 4)), {"axis": 2}),
        Sample(((1, 4, 3, 4, 4), (1, 8, 3, 4, 4)), {"axis": 1}, ok=False),
    )

    @staticmethod
    def reference(node: Node, *inputs: Array) -> Array:
        """tensors of one shape but for ``axis`` -> their concatenation."""
        return np.concatenate(inputs, node.attrs["axis"])

    @staticmethod
    def check(site: Site) -> None:
        axis = axis_of(site)
        for operand in site.inputs:
            if operand is None or operand.const is not None:
                raise site.refuse("has a constant operand")
            _move.check_moves(site, operand, site.output)
        placed = _move.need_axes(site, site.output)[axis]
        if placed.place != 3:
            return
        c2 = chip.elements_per_atom(site.precision)
        if site.output.shape[axis] * placed.step != site.output.nhwc[3]:
            raise site.refuse(f"joins axis {axis}, a part of {site.output.nhwc[3]} channels")
        for operand in site.inputs[:-1]:
            assert operand is not None
            if operand.nhwc[3] % c2:
                raise site.refuse(
                    f"joins {operand.nhwc[3]} channels, operands before the last must have "
                    f"a multiple of {c2}"
                )

    @staticmethod
    def views(site: Site) -> tuple[tuple[View | None, ...], View]:
        given = next((i for i in site.inputs if i and i.view is not None), None)
        out = image_view(site.output.shape)
        if given is not None and given.view is not None:
            out = _move.need_view(site, given, given.view, site.output.shape)
        views: list[View | None] = []
        for i in site.inputs:
            if i is None or i.const is not None:
                views.append(None)
            else:
                views.append(_move.need_view(site, site.output, out, i.shape))
        return tuple(views), out

    @classmethod
    def input_rooms(cls, site: Site, room: int) -> tuple[int, ...]:
        if _move.need_axes(site, site.output)[axis_of(site)].place != 3:
            return tuple(room for _ in site.inputs)
        c2 = chip.elements_per_atom(site.precision)
        sizes = [align(i.nhwc[3], c2) if i else 0 for i in site.inputs]
        sizes[-1] += max(0, room - align(site.output.nhwc[3], c2))
        return tuple(sizes)

    @classmethod
    def alternative(
        cls, node: Node, values: Mapping[str, Value], consts: Mapping[str, Array]
    ) -> Expansion | None:
        """Any channels: each operand into its own channels by a convolution of 1x1, then sums."""
        y = values[node.outputs[0]]
        axis = int(node.attrs.get("axis", 1)) % max(1, len(y.shape))
        if node.epilogue or not _move.image_axis(y.shape, axis) or len(node.inputs) < 2:
            return None
        if any(i in consts for i in node.inputs):
            return None
        nodes: list[Node] = []
        made: dict[str, Value] = {}
        constants: dict[str, Array] = {}
        total, at = "", 0
        for k, name in enumerate(node.inputs):
            x, part = values[name], f"{y.name}/{k}"
            pick = [-1] * y.shape[1]
            pick[at : at + x.shape[1]] = range(x.shape[1])
            at += x.shape[1]
            moved = _move.selection(node.with_(name=f"{node.name}/{k}"), x, y, pick, output=part)
            nodes += moved.nodes
            made |= {**moved.values, part: Value(part, y.shape, y.dtype, y.quant)}
            constants |= moved.constants
            if total:
                last = k == len(node.inputs) - 1
                both = y.name if last else f"{part}/sum"
                nodes.append(
                    node.with_(
                        name=f"{node.name}/{k}/sum",
                        op="Add",
                        inputs=(total, part),
                        outputs=(both,),
                        attrs={},
                    )
                )
                if not last:
                    made[both] = Value(both, y.shape, y.dtype, y.quant)
                total = both
            else:
                total = part
        return Expansion(tuple(nodes), made, constants)

    @classmethod
    def tasks(cls, site: Site) -> Iterator[Task]:
        y, axis, at = site.output, axis_of(site), 0
        c2 = chip.elements_per_atom(site.precision)
        channels = _move.need_axes(site, y)[axis].place == 3
        for k, x in enumerate(site.inputs):
            assert x is not None
            last = k == len(site.inputs) - 1
            count = -(-x.nhwc[3] // c2) if channels and not last else None
            copy = _move.region(x, y, [_move.Range(axis, x.shape[axis], 0, at)], count)
            yield from _move.tasks(site, [copy], _flying.copy(site, x, y), y)
            at += x.shape[axis]
