"""Tile and Expand: a cube copied again and again beside itself, by the DPU."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from opennpu.hw.rk3588 import chip
from opennpu.hw.rk3588.common import Precision
from opennpu.ir.graph import Node
from opennpu.ops import _flying, _move
from opennpu.ops.base import Op, Sample, Site, image_view
from opennpu.program import Task, View

Array = npt.NDArray[Any]


class _Repeat(Op):
    """Shapes say all: an axis of the output is a multiple of the input's."""

    @staticmethod
    def check(site: Site) -> None:
        _move.check_moves(site, site.x, site.output)
        if any(o is not None and o.const is None for o in site.inputs[1:]):
            raise site.refuse(f"has {len(site.inputs) - 1} computed sizes, 0 may vary")
        placed = _move.need_axes(site, site.x)
        for ax, size, new in zip(placed, site.x.shape, site.output.shape, strict=True):
            if ax.place == 3 and size != new:
                if ax.step * size != site.x.nhwc[3]:
                    raise site.refuse(f"repeats a part of {site.x.nhwc[3]} channels")
                _move.need_whole_atoms(site, "repeats", size * ax.step)

    @staticmethod
    def views(site: Site) -> tuple[tuple[View | None, ...], View]:
        if len(site.x.shape) != len(site.output.shape):
            raise site.refuse(
                f"makes {len(site.output.shape)} axes of {len(site.x.shape)}, a copy keeps them"
            )
        view = site.x.view or image_view(site.x.shape)
        out = _move.need_view(site, site.x, view, site.output.shape)
        return (view, *(None for _ in site.inputs[1:])), out

    @classmethod
    def input_rooms(cls, site: Site, room: int) -> tuple[int, ...]:
        grown = site.output.nhwc[3] != site.x.nhwc[3]
        return (0 if grown else room, *(0 for _ in site.inputs[1:]))

    @classmethod
    def tasks(cls, site: Site) -> Iterator[Task]:
        x, y = site.x, site.output
        placed = _move.need_axes(site, x)
        grown = y.nhwc[3] != x.nhwc[3]
        count = -(-x.nhwc[3] // chip.elements_per_atom(y.precision)) if grown else None
        first = [_move.Range(i, n) for i, n in enumerate(x.shape)]
        again = []
        for i, (size, new) in enumerate(zip(x.shape, y.shape, strict=True)):
            if size == 1 and new > 1 and placed[i].place != 3:
                first[i] = _move.Range(i, new, 0, 0, source_step=0)
                again.append([0])
            else:
                again.append(list(range(0, new, size)))
        copies = []
        for corner in itertools.product(*again):
            ranges = [
                _move.Range(r.axis, r.count, 0, at, r.source_step)
                for r, at in zip(first, corner, strict=True)
            ]
            copies.append(_move.region(x, y, ranges, count))
        yield from _move.tasks(site, copies, _flying.copy(site, x, y), y)
        if grown:
            yield from _move.fill_rest(site, y)


class Tile(_Repeat):
    samples = (
        Sample(((1, 16, 3, 4),), {"repeats": (1, 1, 2, 3)}),
        Sample(((2, 32, 3, 4),), {"repeats": (2, 2, 1, 1)}),
        Sample(((1, 20, 7),), {"repeats": (3, 1, 2)}, precisions=(Precision.FP16,)),
        Sample(((1, 5, 3, 4),), {"repeats": (1, 2, 1, 1)}, ok=False),
    )

    @staticmethod
    def reference(node: Node, *inputs: Array) -> Array:
        """x -> x, ``repeats`` times along each axis."""
        return np.tile(inputs[0], node.attrs["repeats"])


class Expand(_Repeat):
    samples = (
        Sample(((1, 16, 1, 4),), {"shape": (1, 16, 5, 4)}),
        Sample(((1, 20, 3, 1),), {"shape": (3, 20, 3, 6)}),
        Sample(((2, 1, 3, 4),), {"shape": (2, 8, 3, 4)}, ok=False),
    )

    @staticmethod
    def reference(node: Node, *inputs: Array) -> Array:
        """x -> x, its axes of length 1 repeated up to ``shape``."""
        return np.ascontiguousarray(np.broadcast_to(inputs[0], node.attrs["shape"]))
