"""Softmax over channels: largest, difference, table of e**x, sum by ones, quotient."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from opennpu.hw.layout import align
from opennpu.hw.rk3588 import chip
from opennpu.hw.rk3588.common import Precision
from opennpu.ir.graph import Node
from opennpu.ops import _rows, _table
from opennpu.ops.base import Op, Operand, Sample, Site
from opennpu.program import Task, View

Array = npt.NDArray[Any]
FP16 = (Precision.FP16,)
DEEPEST = -16.0  # e**x is less than half a step of the table from there on
MAX_CHANNELS = 2048  # of a sum by ones: its weights are channels x channels
BOUND = 5e-3  # 0.35 % of the division (board notes A.10), 2**-10 of the table


def axis_of(node: Node, rank: int) -> int:
    return int(node.attrs.get("axis", -1)) % rank


class Softmax(Op):
    precisions = FP16
    samples = (
        Sample(((2, 9, 40),), {"axis": -1}, precisions=FP16, bound=BOUND),
        Sample(((1, 3, 7, 257),), {"axis": 3}, precisions=FP16, bound=BOUND),
        Sample(((2, 21, 5, 6),), {"axis": 1}, precisions=FP16, bound=BOUND),
        Sample(((4, 3),), {"axis": 1}, precisions=FP16, bound=BOUND),
        Sample(((3, 4, 5, 6),), {"axis": 2}, ok=False, precisions=FP16),
    )

    @staticmethod
    def reference(node: Node, *inputs: Array) -> Array:
        """x: any shape -> e**x over its sum along ``axis``, float32."""
        axis = int(node.attrs.get("axis", -1))
        x = inputs[0].astype(np.float64)
        e = np.exp(x - x.max(axis, keepdims=True))
        return np.asarray(e / e.sum(axis, keepdims=True), np.float32)

    @staticmethod
    def check(site: Site) -> None:
        c = site.x.nhwc[3]
        if site.node.epilogue:
            raise site.refuse("has a fused activation, its last stage divides")
        if site.node.attrs.get("coerced"):
            raise site.refuse(
                f"is of an opset before 13 and takes axes {site.node.attrs['axis']} to "
                f"{len(site.x.shape) - 1} together, the NPU takes 1"
            )
        if c > MAX_CHANNELS:
            raise site.refuse(f"adds up {c} channels, at most {MAX_CHANNELS} have room for weights")

    @staticmethod
    def views(site: Site) -> tuple[tuple[View | None, ...], View]:
        view = _rows.row_view(site, axis_of(site.node, len(site.x.shape)))
        return (view,), view

    @classmethod
    def room(cls, site: Site) -> int:
        return align(site.output.nhwc[3], chip.KERNEL_GROUP[Precision.FP16])

    @classmethod
    def input_rooms(cls, site: Site, room: int) -> tuple[int, ...]:
        return (room,)

    @classmethod
    def rows(cls, site: Site) -> _rows.Rows:
        wide = site.output.channels
        return _rows.Rows.of(site, (wide, wide, wide, max(_rows.ROTATIONS, wide)))

    @classmethod
    def scratch(cls, site: Site) -> int:
        return cls.rows(site).nbytes

    @classmethod
    def tasks(cls, site: Site) -> Iterator[Task]:
        rows = cls.rows(site)
        for x, y in zip(_rows.images(site.x), _rows.images(site.output), strict=True):
            yield from cls.image(rows, x, y)

    @staticmethod
    def image(rows: _rows.Rows, x: Operand, y: Operand) -> Iterator[Task]:
        """One image."""
        base, one, two, wide = rows.cubes
        count, room = y.nhwc[3], y.channels
        yield from rows.finite(x, count, one, base)
        top = yield from rows.largest(base, count, one, two, wide)
        minus = np.zeros((room, _rows.LANES))
        minus[:, 0] = -1
        yield from rows.product(top, wide, minus)
        less, powers = (two, one) if top.ref == one.ref else (one, two)
        yield from rows.pair("Add", base, wide, less)
        table = _table.fp16_table(_table.Curve(np.exp, DEEPEST, 0.0, 1))
        yield from rows.curve(less, powers, table)
        # codes of a table start at 1: what it calls its least is 0, however many there are
        least = np.full(room, -float(table.evaluate(np.full(1, -np.inf, np.float16))[0]))
        yield from rows.affine(powers, less, np.ones(room), least)
        yield from rows.product(less, wide, np.ones((room, count)))  # no lane may divide by 0
        yield from rows.pair("Div", less, wide, y)
