"""Pad: the cube is copied into a larger one, the border filled by the DPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from opennpu.hw.rk3588 import chip
from opennpu.ir.graph import Node, Value
from opennpu.ops import _conv, _flying, _move
from opennpu.ops.base import Expansion, Op, Sample, Site, image_view
from opennpu.program import Task, View

Array = npt.NDArray[Any]

MODES = ("constant", "edge", "reflect", "wrap")


def amounts(
    node: Node, shape: tuple[int, ...], consts: Mapping[str, Array]
) -> list[tuple[int, int]] | None:
    """(before, after) of every axis; None where an input computes them."""
    pads = _move.parameter(node, consts, "pads", 1)
    named = _move.parameter(node, consts, "axes", 3)
    if not pads or named is None:
        return None
    axes = [a % len(shape) for a in named] or list(range(len(shape)))
    found = [(0, 0)] * len(shape)
    for k, axis in enumerate(axes):
        found[axis] = (pads[k], pads[len(axes) + k])
    return found


def filler(node: Node, consts: Mapping[str, Array]) -> float | None:
    """The number that a constant Pad writes; None where an input computes it."""
    if len(node.inputs) > 2 and node.inputs[2]:
        const = consts.get(node.inputs[2])
        return None if const is None or const.size != 1 else float(const.item())
    return float(node.attrs.get("value", 0.0))


def border(mode: str, k: int, size: int) -> int:
    """Which element of an axis of ``size`` stands at ``k``, outside of it."""
    if mode == "edge":
        return min(max(k, 0), size - 1)
    if mode == "wrap":
        return k % size
    period = max(1, 2 * (size - 1))
    k %= period
    return min(k, period - k)


class Pad(Op):
    samples = (
        Sample(((1, 16, 5, 6),), {"pads": (0, 0, 1, 2, 0, 0, 3, 0), "value": 1.5}),
        Sample(((2, 20, 5, 6),), {"pads": (0, 0, 1, 1, 0, 0, 1, 1), "mode": "reflect"}),
        Sample(((1, 16, 4, 4),), {"pads": (0, 0, 2, 0, 0, 0, 0, 3), "mode": "edge"}),
        Sample(((1, 16, 4, 4),), {"pads": (1, 16, 0, 0, 1, 32, 0, 0), "value": -2.0}),
        Sample(((2, 5, 4, 4),), {"pads": (0, 3, 0, 0, 0, 2, 0, 0), "value": 0.5}),
        Sample(((1, 24, 30),), {"pads": (0, 0, 7, 0, 0, 8)}),
        Sample(((1, 16, 3, 4, 5),), {"pads": (0, 0, 1, 0, 0, 0, 0, 2, 0, 0)}),
        Sample(((1, 16, 8, 8),), {"pads": (0, 0, -1, 0, 0, 0, 0, -2)}, ok=False),
    )

    @staticmethod
    def reference(node: Node, *inputs: Array) -> Array:
        """x -> x with ``pads`` elements before and after every axis, by ``mode``."""
        a, x = node.attrs, inputs[0]
        if min(a["pads"]) < 0:
            return x
        pairs = list(zip(a["pads"][: x.ndim], a["pads"][x.ndim :], strict=True))
        mode = a.get("mode", "constant")
        if mode == "constant":
            value = a.get("value", 0.0)
            return np.pad(x, pairs, constant_values=value).astype(np.float32)
        return np.asarray(np.pad(x, pairs, mode))

    @staticmethod
    def check(site: Site) -> None:
        consts = _move.constants_of(site)
        pads, value = amounts(site.node, site.x.shape, consts), filler(site.node, consts)
        mode = str(site.node.attrs.get("mode", "constant"))
        if pads is None or value is None:
            raise site.refuse("has computed pads or a computed value, 0 of them may vary")
        if mode not in MODES:
            raise site.refuse(f"has mode {mode!r}, of {len(MODES)} known ones")
        least = min(n for pair in pads for n in pair)
        if least < 0:
            raise site.refuse(f"crops by pads down to {least}, the least pad is 0 elements")
        _move.check_moves(site, site.x, site.output)
        if mode == "constant":
            _conv.check_fp16(site, "a filler", np.asarray(value))
        for axis, (placed, (before, after)) in enumerate(
            zip(_move.need_axes(site, site.x), pads, strict=True)
        ):
            size = site.x.shape[axis]
            if mode == "reflect" and max(before, after) >= max(2, size) and max(before, after):
                raise site.refuse(f"reflects {max(before, after)} of {size} elements")
            if placed.place == 3 and (before or after):
                if mode != "constant":
                    raise site.refuse(f"in mode {mode} adds {before + after} channels")
                if placed.step * size != site.x.nhwc[3]:
                    raise site.refuse(f"pads a part of {site.x.nhwc[3]} channels")
                _move.need_whole_atoms(site, "begins after", before * placed.step)
                if after:
                    _move.need_whole_atoms(site, "goes on after", size * placed.step)

    @staticmethod
    def views(site: Site) -> tuple[tuple[View | None, ...], View]:
        view = site.x.view or image_view(site.x.shape)
        out = _move.need_view(site, site.x, view, site.output.shape)
        return (view, *(None for _ in site.inputs[1:])), out

    @classmethod
    def input_rooms(cls, site: Site, room: int) -> tuple[int, ...]:
        grown = site.output.nhwc[3] != site.x.nhwc[3]
        return (0 if grown else room, *(0 for _ in site.inputs[1:]))

    @classmethod
    def alternative(
        cls, node: Node, values: Mapping[str, Value], consts: Mapping[str, Array]
    ) -> Expansion | None:
        """Any number of channels by a convolution of 1x1 whose bias is the filler."""
        x, y = values[node.inputs[0]], values[node.outputs[0]]
        pads, value = amounts(node, x.shape, consts), filler(node, consts)
        if pads is None or value is None or node.epilogue or len(x.shape) not in (3, 4):
            return None
        if node.attrs.get("mode", "constant") != "constant" or not np.isfinite(value):
            return None
        if any(p != (0, 0) for i, p in enumerate(pads) if i != 1) or min(pads[1]) < 0:
            return None
        before, after = pads[1]
        pick = [-1] * before + list(range(x.shape[1])) + [-1] * after
        return _move.selection(node, x, y, pick, value)

    @classmethod
    def tasks(cls, site: Site) -> Iterator[Task]:
        x, y = site.x, site.output
        consts = _move.constants_of(site)
        pads, value = amounts(site.node, x.shape, consts), filler(site.node, consts)
        assert pads is not None and value is not None
        mode = str(site.node.attrs.get("mode", "constant"))
        placed = _move.need_axes(site, x)
        inside = [_move.Range(i, n, 0, pads[i][0]) for i, n in enumerate(x.shape)]
        same, c2 = _flying.copy(site, y, y), chip.elements_per_atom(y.precision)
        grown = y.nhwc[3] != x.nhwc[3]
        count = -(-x.nhwc[3] // c2) if grown else None
        yield from _move.tasks(
            site, [_move.region(x, y, inside, count)], _flying.copy(site, x, y), y
        )
        # axis by axis: what an earlier axis has written is border of the later ones too
        done = list(inside)
        for axis, (before, after) in enumerate(pads):
            size = x.shape[axis]
            runs = [(0, before), (before + size, after)]
            for start, n in runs:
                if not n:
                    continue
                if mode == "constant":
                    part = [*done[:axis], _move.Range(axis, n, 0, start), *done[axis + 1 :]]
                    surfaces = count
                    if placed[axis].place == 3:
                        first = start * placed[axis].step // c2
                        last = -(-(start + n) * placed[axis].step // c2)
                        surfaces = last - first
                    yield from _move.fill(site, y, value, part, surfaces)
                    continue
                for k in range(start, start + n):
                    source = before + border(mode, k - before, size)
                    part = [_move.Range(r.axis, r.count, r.target, r.target, 1, 1) for r in done]
                    part[axis] = _move.Range(axis, 1, source, k)
                    yield from _move.tasks(site, [_move.region(y, y, part)], same, y)
            if placed[axis].place == 3 and grown:
                count = -(-y.nhwc[3] // c2)
            done[axis] = _move.Range(axis, y.shape[axis])
        if grown:
            yield from _move.fill_rest(site, y)
