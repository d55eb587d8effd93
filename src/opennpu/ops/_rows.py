"""Programs over rows of channels: sums over a row, and what they make of each of its elements.

Each function is one or several tasks on cubes of one height and width.  A sum over channels is a
product with ones, which leaves it in every channel that the next step needs, so that nothing is
ever broadcast (board notes A.12: the PPU does not reduce channels).  Nothing is written in place
(board notes A.10).
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from opennpu.hw.layout import align
from opennpu.hw.rk3588 import chip
from opennpu.hw.rk3588.common import Precision
from opennpu.ops import _conv, _flying, _table
from opennpu.ops.base import Operand, Site, image_view, matrix_view
from opennpu.program import Ref, Task, View

Array = npt.NDArray[Any]
P = Precision.FP16
LANES = chip.elements_per_atom(P)
MOST = float(np.finfo(np.float16).max)
LEAST = -MOST  # stands for minus infinity


def row_view(site: Site, axis: int) -> View:
    """A view whose channels are ``axis``: the producer's if it is such a one."""
    shape, given = site.x.shape, site.x.view
    if given is not None and given.perm[-1] == axis and given.nhwc[3] == shape[axis]:
        return given
    if axis == len(shape) - 1:
        return matrix_view(shape)
    if axis == 1 and len(shape) in (3, 4):
        return image_view(shape)
    raise site.refuse(
        f"works along axis {axis} of {len(shape)}, the NPU along the last one, or along axis 1 "
        "of an image"
    )


@dataclass(frozen=True)
class Rows:
    """The site of a row-wise operator, and cubes of its own in scratch memory."""

    site: Site
    cubes: tuple[Operand, ...]

    @staticmethod
    def of(site: Site, channels: Sequence[int]) -> Rows:
        """With a cube for each number of channels."""
        plain = site.with_(node=site.node.with_(epilogue=()), residual=None)
        cubes, at = [], site.scratch
        for k, c in enumerate(channels):
            cube = _cube(site, f"{site.node.name}/cube{k}", c, at)
            cubes.append(cube)
            at += _bytes(cube)
        return Rows(plain, tuple(cubes))

    @property
    def nbytes(self) -> int:
        return sum(_bytes(c) for c in self.cubes)

    def product(
        self, x: Operand, y: Operand, weights: Array, bias: Array | None = None
    ) -> Iterator[Task]:
        """y = x · weights.T + bias; ``weights``: [channels of y, channels of x]."""
        used = replace(x, view=_with_channels(x, weights.shape[1]))
        full = np.zeros((y.channels, 1, 1, weights.shape[1]), np.float16)
        full[: len(weights), 0, 0] = weights
        conv = _conv.Convolution(
            site=self.site,
            x=used,
            y=replace(y, view=_with_channels(y, y.channels)),
            window=_conv.Window(),
            weights=full,
            bias=None if bias is None else np.pad(bias, (0, y.channels - len(bias))),
            weight_scale=None,
            depthwise=False,
        )
        # the model asks for none of these products
        return (replace(t, cost=replace(t.cost, macs=0)) for t in _conv.tasks(conv))

    def pair(self, kind: str, a: Operand, b: Operand, y: Operand) -> Iterator[Task]:
        """y = a + b, a * b, a / b, element by element over all the room of ``y``."""
        stages = _flying.binary(self.site, kind, a, b, y, -np.inf, np.inf)
        return _flying.tasks(self.site, stages, _flying.flat_pieces(a, b, y), y)

    def bounded(self, kind: str, x: Operand, y: Operand, bounds: Array) -> Iterator[Task]:
        """y = the larger, or smaller, of x and a number per channel (``kind`` "Max" or "Min")."""
        full = np.zeros(y.surfaces * LANES, "<f2")
        full[: len(bounds)] = bounds
        ref = self.site.place(full.view(np.uint8))
        view = View((0,), (1, 1, 1, len(full)))
        there = replace(y, ref=ref, view=view, channels=len(full))
        stages = _flying.binary(self.site, kind, x, there, y, -np.inf, np.inf, per_channel=True)
        return _flying.tasks(self.site, stages, _flying.surface_pieces(x, y, there), y)

    def curve(self, x: Operand, y: Operand, table: _table.Table) -> Iterator[Task]:
        """y = table(x)."""
        return _table.tasks(self.site, table, x, y)

    def affine(self, x: Operand, y: Operand, mul: Array, add: Array) -> Iterator[Task]:
        """y = x * mul or x + add, per channel; one of the two must be trivial."""
        there = replace(y, view=_with_channels(y, len(mul)))
        stages = _flying.affine(self.site, there, mul, add, -np.inf, np.inf)
        return _flying.tasks(self.site, stages, _flying.surface_pieces(x, y), y)

    def largest(
        self, x: Operand, count: int, one: Operand, two: Operand, turned: Operand
    ) -> Generator[Task, None, Operand]:
        """A surface all of whose lanes are the largest of the first ``count`` channels.

        Lanes past the last channel must not win, and infinities meet zeros: `finite` before.
        A tree of EW maxima over halves of the surfaces, then over all rotations of the lanes of the
        last surface.  ``one``, ``two``: as large as ``x``; ``turned``: `ROTATIONS` channels.
        """
        x = yield from self._fold(x, -(-count // LANES), one, two)
        lane = np.arange(ROTATIONS)
        rotate = np.zeros((ROTATIONS, LANES))
        rotate[lane, (lane + lane // LANES) % LANES] = 1
        yield from self.product(x, turned, rotate)
        result = yield from self._fold(turned, ROTATIONS // LANES, one, two)
        return result

    def finite(self, x: Operand, count: int, spare: Operand, y: Operand) -> Iterator[Task]:
        """y = x, but `LEAST` for less, and for lanes past the first ``count`` channels."""
        room = y.surfaces * LANES
        if count < room:
            top = np.full(room, LEAST)
            top[:count] = MOST
            yield from self.bounded("Min", x, spare, top)
            x = spare
        yield from self.bounded("Max", x, y, np.full(room, LEAST))

    def _fold(
        self, x: Operand, surfaces: int, one: Operand, two: Operand
    ) -> Generator[Task, None, Operand]:
        """Halves against each other until one surface is left; the middle one may count twice."""
        while surfaces > 1:
            half = -(-surfaces // 2)
            target = two if x.ref == one.ref else one
            a, b = surface(x, 0, half), surface(x, surfaces - half, half)
            yield from self.pair("Max", a, b, surface(target, 0, half))
            x, surfaces = target, half
        return surface(x, 0, 1)


ROTATIONS = LANES * LANES
"""Channels of a pixel's eight lanes in all eight rotations."""


def images(o: Operand) -> list[Operand]:
    """Each image of a placed operand as a cube of its own."""
    assert o.view is not None
    view = replace(o.view, nhwc=(1, *o.nhwc[1:]))
    return [replace(o, view=view, ref=o.at(n)) for n in range(o.nhwc[0])]


def surface(o: Operand, first: int, count: int) -> Operand:
    """``count`` surfaces of a cube of one image, from ``first`` on."""
    assert o.view is not None
    view = replace(o.view, nhwc=(1, *o.nhwc[1:3], count * LANES))
    return replace(o, view=view, channels=count * LANES, ref=o.at(0, first * LANES))


def _cube(site: Site, name: str, channels: int, at: Ref) -> Operand:
    y = site.output
    assert y.view is not None
    room = align(channels, chip.KERNEL_GROUP[P])
    value = replace(y.value, name=name, quant=None)
    view = replace(y.view, nhwc=(1, *y.nhwc[1:3], room))
    return Operand(value, P, view, room, at)


def _with_channels(o: Operand, channels: int) -> View:
    assert o.view is not None
    return replace(o.view, nhwc=(*o.nhwc[:3], channels))


def _bytes(o: Operand) -> int:
    return o.surfaces * o.plane_atoms * chip.ATOM_BYTES
