"""Slice and Split: a part of a cube, copied by the DPU, or channels picked by a convolution."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from opennpu.ir.graph import Node, Value
from opennpu.ops import _flying, _move
from opennpu.ops.base import Expansion, Op, Sample, Site, image_view
from opennpu.program import Task, View

Array = npt.NDArray[Any]


def cuts(
    node: Node, shape: tuple[int, ...], consts: Mapping[str, Array]
) -> dict[int, tuple[int, int, int]] | None:
    """(start, count, step) of every axis that is cut; None where an input computes them."""
    starts = _move.parameter(node, consts, "starts", 1)
    ends = _move.parameter(node, consts, "ends", 2)
    axes = _move.parameter(node, consts, "axes", 3)
    steps = _move.parameter(node, consts, "steps", 4)
    if starts is None or ends is None or axes is None or steps is None:
        return None
    found = {}
    for k, (start, end) in enumerate(zip(starts, ends, strict=True)):
        axis = (axes[k] if axes else k) % len(shape)
        step = steps[k] if steps else 1
        whole = range(shape[axis])[slice(start, end, step)]
        found[axis] = (whole.start, len(whole), step)
    return found


class Slice(Op):
    samples = (
        Sample(((1, 16, 9, 11),), {"starts": (2, 1), "ends": (8, 10), "axes": (2, 3)}),
        Sample(((2, 32, 5, 6),), {"starts": (16,), "ends": (32,), "axes": (1,)}),
        Sample(((2, 19, 5, 6),), {"starts": (3,), "ends": (14,), "axes": (1,)}),
        Sample(((3, 20, 4, 5),), {"starts": (1,), "ends": (3,), "axes": (0,)}),
        Sample(((1, 24, 40),), {"starts": (-9,), "ends": (1000,), "axes": (2,)}),
        Sample(
            ((1, 16, 9, 11),),
            {"starts": (0, 1), "ends": (9, 11), "axes": (2, 3), "steps": (2, 3)},
        ),
        Sample(((1, 8, 3, 4, 5),), {"starts": (1,), "ends": (3,), "axes": (2,)}),
        Sample(
            ((1, 8, 6, 5),),
            {"starts": (-1,), "ends": (-7,), "axes": (2,), "steps": (-1,)},
            ok=False,
        ),
    )

    @staticmethod
    def reference(node: Node, *inputs: Array) -> Array:
        """x -> x[starts:ends:steps] along ``axes``."""
        x = inputs[0]
        index = [slice(None)] * x.ndim
        a = node.attrs
        steps = a.get("steps", (1,) * len(a["starts"]))
        for axis, start, end, step in zip(a["axes"], a["starts"], a["ends"], steps, strict=True):
            index[axis] = slice(start, end if end >= -x.shape[axis] else None, step)
        return np.ascontiguousarray(x[tuple(index)])

    @staticmethod
    def check(site: Site) -> None:
        found = cuts(site.node, site.x.shape, _move.constants_of(site))
        if found is None:
            raise site.refuse("has computed bounds, 0 of its inputs but the first may vary")
        _move.check_moves(site, site.x, site.output)
        placed = _move.need_axes(site, site.x)
        for axis, (start, _, step) in found.items():
            if step < 1:
                raise site.refuse(f"walks backwards by {step}, a copy steps forward by 1 or more")
            if placed[axis].place != 3 or site.x.shape[axis] == site.output.shape[axis]:
                continue
            if step != 1:
                raise site.refuse(f"takes every {step}th channel, a copy moves whole atoms")
            _move.need_whole_atoms(site, "begins after", start * placed[axis].step)
            inner = site.x.nhwc[3] // (site.x.shape[axis] * placed[axis].step)
            if inner != 1:
                raise site.refuse(f"cuts {inner} runs of channels, a copy moves 1")

    @staticmethod
    def views(site: Site) -> tuple[tuple[View | None, ...], View]:
        view = site.x.view or image_view(site.x.shape)
        out = _move.need_view(site, site.x, view, site.output.shape)
        return (view, *(None for _ in site.inputs[1:])), out

    @classmethod
    def input_rooms(cls, site: Site, room: int) -> tuple[int, ...]:
        return (room + cls._first_channel(site), *(0 for _ in site.inputs[1:]))

    @staticmethod
    def _first_channel(site: Site) -> int:
        found = cuts(site.node, site.x.shape, _move.constants_of(site))
        placed = _move.need_axes(site, site.x)
        assert found is not None
        return sum(c[0] * placed[a].step for a, c in found.items() if placed[a].place == 3)

    @classmethod
    def alternative(
        cls, node: Node, values: Mapping[str, Value], consts: Mapping[str, Array]
    ) -> Expansion | None:
        """Any channels by a convolution of 1x1, where nothing else is cut."""
        x, y = values[node.inputs[0]], values[node.outputs[0]]
        found = cuts(node, x.shape, consts)
        if found is None or node.epilogue or len(x.shape) not in (3, 4):
            return None
        channels = found.pop(1, (0, x.shape[1], 1))
        if any(c != (0, x.shape[a], 1) for a, c in found.items()):
            return None
        start, count, step = channels
        return _move.selection(node, x, y, [start + i * step for i in range(count)])

    @classmethod
    def tasks(cls, site: Site) -> Iterator[Task]:
        x, y = site.x, site.output
        found = cuts(site.node, x.shape, _move.constants_of(site))
        assert found is not None
        ranges = [_move.Range(a, n, start, 0, step) for a, (start, n, step) in found.items()]
        yield from _move.tasks(site, [_move.region(x, y, ranges)], _flying.copy(site, x, y), y)


class Split(Op):
    @staticmethod
    def reference(node: Node, *inputs: Array) -> Array:
        """x -> its first part along ``axis``; the other parts are Slices too."""
        return np.ascontiguousarray(np.split(inputs[0], len(node.outputs), node.attrs["axis"])[0])

    @staticmethod
    def expand(
        node: Node, values: Mapping[str, Value], consts: Mapping[str, Array]
    ) -> Expansion | None:
        """A Slice for each part that has a reader."""
        x = values[node.inputs[0]]
        axis = int(node.attrs.get("axis", 0)) % max(1, len(x.shape))
        pieces, at = [], 0
        for k, out in enumerate(node.outputs):
            if not out:
                return None
            size = values[out].shape[axis] if axis < len(values[out].shape) else 0
            part = node.with_(
                name=f"{node.name}/{k}",
                op="Slice",
                inputs=(x.name,),
                outputs=(out,),
                attrs={"starts": (at,), "ends": (at + size,), "axes": (axis,)},
            )
            pieces.append(part)
            at += size
        return Expansion(tuple(pieces))
