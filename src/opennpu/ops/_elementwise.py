"""What Add, Sub, Mul, Div, Min and Max share: two operands, on the DPU.

An operand is a tensor of the result's shape (EW reads it element by element), a tensor or a
constant that varies along the channels only (a stream per channel), or any other constant, which
is written out as a tensor.  int8 with a constant of one element is a table look-up.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from opennpu.hw.layout import pack_cube
from opennpu.hw.rk3588 import chip
from opennpu.hw.rk3588.common import Precision
from opennpu.ops import _conv, _flying, _table
from opennpu.ops.base import Op, Operand, Site, clip_range, image_view
from opennpu.program import Task, View

Array = npt.NDArray[Any]

FUNCTIONS: dict[str, Any] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": np.divide,
    "Min": np.minimum,
    "Max": np.maximum,
}
COMMUTES = ("Add", "Mul", "Min", "Max")


def channel_vector(const: Array, shape: tuple[int, ...], view: View) -> Array | None:
    """A constant that varies along the cube's channels only, as [C]; else None."""
    if const.ndim > len(shape):
        return None
    padded = const.reshape((1,) * (len(shape) - const.ndim) + const.shape)
    full = np.broadcast_to(padded, shape) if padded.size == 1 else padded
    axis = view.perm[-1]
    if any(full.shape[i] != 1 for i in range(len(shape)) if i != axis) and const.size != 1:
        return None
    if shape[axis] != view.nhwc[3]:
        return None
    flat = const.reshape(-1)
    return np.broadcast_to(flat, (shape[axis],)).astype(np.float64)


def channel_view(small: tuple[int, ...], shape: tuple[int, ...], view: View) -> View | None:
    """The view of a tensor that varies along images and channels of ``shape`` only; else None."""
    missing = len(shape) - len(small)
    padded = (1,) * missing + small
    n, _, _, c = view.nhwc
    first, last = view.perm[0], view.perm[-1]
    if missing < 0 or shape[last] != c or padded[last] != c or first == last:
        return None
    batch = first if n > 1 and shape[first] == n else None
    if any(size != 1 for i, size in enumerate(padded) if i not in (last, batch)):
        return None
    images = padded[batch] if batch is not None else 1
    if images not in (1, n):
        return None
    perm = tuple(i - missing for i in view.perm if i >= missing)
    return View(perm, (images, 1, 1, c))


class _Binary(Op):
    """An operator of two operands; subclasses say which in ``kind``."""

    kind: ClassVar[str]

    @classmethod
    def _sides(cls, site: Site) -> tuple[Operand, Operand, bool]:
        """(tensor of the result's shape, the other operand, are they in the other order)."""
        if len(site.inputs) != 2:
            raise site.refuse(f"has {len(site.inputs)} operands, the NPU takes 2")
        a, b = site.inputs
        assert a is not None and b is not None
        if a.const is not None and b.const is not None:
            raise site.refuse("has 2 constant operands and none that is computed")
        swapped = a.const is not None or (b.const is None and a.shape != site.output.shape)
        if swapped:
            a, b = b, a
        if a.shape != site.output.shape:
            raise site.refuse(
                f"broadcasts {list(a.shape)} and {list(b.shape)} to {list(site.output.shape)}: "
                "neither has the shape of the result"
            )
        return a, b, swapped

    @classmethod
    def check(cls, site: Site) -> None:
        a, b, swapped = cls._sides(site)
        low, high = clip_range(site.node)
        if low not in (0.0, -np.inf) or (low == -np.inf and high != np.inf) or high <= low:
            raise site.refuse(f"clips to [{low:g}, {high:g}], its last stage clamps from 0 up only")
        if cls.kind in ("Min", "Max") and low == 0.0:
            raise site.refuse(f"clips to [{low:g}, {high:g}] behind its comparison")
        int8 = site.precision is Precision.INT8
        if b.const is not None:
            if not int8:
                _conv.check_fp16(site, "a constant", b.const)
            elif b.const.size != 1:
                raise site.refuse(f"has {b.const.size} constants, in int8 the NPU takes 1")
        elif int8 and cls.kind != "Div":
            _flying.binary(site, cls.kind, a, b, site.output, low, high, swapped)
        if cls.kind != "Div" or (b.const is not None and (int8 or not swapped)):
            return
        if int8:
            raise site.refuse("has 2 computed operands, in int8 the NPU divides by 1 constant")
        if swapped and b.const is None and b.shape != a.shape:
            raise site.refuse(f"divides {list(b.shape)} by {list(a.shape)}, the divisor is larger")
        lanes = chip.elements_per_atom(site.precision)
        if site.output.nhwc[3] % lanes:
            raise site.refuse(
                f"has {site.output.nhwc[3]} channels, {lanes} share an atom: lanes without a "
                "channel would be 0 / 0"
            )

    @classmethod
    def views(cls, site: Site) -> tuple[tuple[View | None, ...], View]:
        a, b, swapped = cls._sides(site)
        view = a.view or (b.view if b.shape == a.shape else None) or image_view(a.shape)
        other: View | None = view
        if b.const is not None:
            other = None
        elif b.shape != a.shape:
            other = channel_view(b.shape, a.shape, view)
            if other is None:
                raise site.refuse(
                    f"broadcasts {list(b.shape)} to {list(a.shape)}, a stream of operands varies "
                    "along images and channels only"
                )
        return ((other, view) if swapped else (view, other)), view

    @classmethod
    def input_rooms(cls, site: Site, room: int) -> tuple[int, ...]:
        return tuple(room for _ in site.inputs)

    @classmethod
    def tasks(cls, site: Site) -> Iterator[Task]:
        a, b, swapped = cls._sides(site)
        y = site.output
        low, high = clip_range(site.node)
        if b.const is None and b.shape == a.shape:
            if swapped:
                a, b = b, a
            stages = _flying.binary(site, cls.kind, a, b, y, low, high)
            return _flying.tasks(site, stages, _flying.flat_pieces(a, b, y), y)
        if b.const is None:
            return cls._per_channel(site, a, b, swapped)
        const = b.const.astype(np.float64)
        if site.precision is Precision.INT8:
            c, f = float(const.reshape(())), FUNCTIONS[cls.kind]

            def function(x: Array) -> Array:
                return np.asarray(np.clip(f(c, x) if swapped else f(x, c), low, high))

            return _table.tasks(site, _table.int8_table(a, y, function), a, y)
        assert a.view is not None
        vector = channel_vector(b.const, a.shape, a.view)
        if vector is None or cls.kind == "Div":
            return cls._tensor(site, a, const, swapped)
        if cls.kind in ("Min", "Max"):
            full = np.zeros(y.surfaces * chip.elements_per_atom(y.precision), "<f2")
            full[: vector.size] = vector
            there = replace(
                b, ref=site.place(full.view(np.uint8)), view=View((0,), (1, 1, 1, vector.size))
            )
            return cls._per_channel(site, a, replace(there, const=None), swapped)
        one, zero = np.ones_like(vector), np.zeros_like(vector)
        if cls.kind == "Mul":
            stages = _flying.affine(site, y, vector, zero, low, high)
        elif cls.kind == "Add":
            stages = _flying.affine(site, y, one, vector, low, high)
        else:
            stages = _flying.affine(site, y, one, -vector, low, high, negate=swapped)
        return _flying.tasks(site, stages, _flying.surface_pieces(a, y), y)

    @classmethod
    def _per_channel(cls, site: Site, a: Operand, b: Operand, swapped: bool) -> Iterator[Task]:
        """``b`` has one atom per image and surface."""
        y = site.output
        low, high = clip_range(site.node)
        stages = _flying.binary(site, cls.kind, a, b, y, low, high, swapped, per_channel=True)
        pieces = _flying.surface_pieces(a, y, b)
        return _flying.tasks(site, stages, pieces, y)

    @classmethod
    def _tensor(cls, site: Site, a: Operand, const: Array, swapped: bool) -> Iterator[Task]:
        """The constant as a cube in memory, beside the weights."""
        y = site.output
        assert a.view is not None
        full = np.broadcast_to(const, a.shape).transpose(a.view.perm).reshape(a.nhwc)
        room = y.surfaces * chip.elements_per_atom(y.precision)
        cube = pack_cube(full.astype(np.float16), site.precision, room)
        b = replace(a, ref=site.place(cube), channels=room, pitch_atoms=0)
        if swapped:
            a, b = b, a
        stages = _flying.binary(site, cls.kind, a, b, y, *clip_range(site.node))
        return _flying.tasks(site, stages, _flying.flat_pieces(a, b, y), y)
