"""What Add and Mul share: two tensors of one shape, or a tensor and a constant, on the DPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from opennpu.hw.rk3588.common import Precision
from opennpu.ops import _conv, _flying
from opennpu.ops.base import Op, Operand, Site, clip_range, image_view
from opennpu.program import Task, View

Array = npt.NDArray[Any]


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


class _Binary(Op):
    """An operator of two operands; subclasses say which in ``kind``."""

    kind: ClassVar[str]

    @classmethod
    def _sides(cls, site: Site) -> tuple[Operand, Operand | None, Array | None]:
        """(tensor, other tensor or None, constant or None)."""
        a, b = site.inputs[0], site.inputs[1]
        assert a is not None and b is not None
        if a.const is not None:
            a, b = b, a
        return a, None if b.const is not None else b, b.const

    @classmethod
    def check(cls, site: Site) -> None:
        a, b, const = cls._sides(site)
        if a.const is not None:
            raise site.refuse("has two constant operands")
        low, high = clip_range(site.node)
        if low not in (0.0, -np.inf) or (low == -np.inf and high != np.inf) or high <= low:
            raise site.refuse(f"clips to [{low:g}, {high:g}], its last stage clamps from 0 up only")
        if b is not None:
            if a.shape != b.shape:
                raise site.refuse(f"broadcasts {list(b.shape)} to {list(a.shape)}")
            _flying.binary(site, cls.kind, a, b, site.output, low, high)
            return
        assert const is not None and a.view is not None
        if channel_vector(const, a.shape, a.view) is None or a.shape != site.output.shape:
            raise site.refuse(f"by a constant of shape {list(const.shape)} on {list(a.shape)}")
        _conv.check_fp16(site, "a constant", const)
        if site.precision is Precision.INT8:
            raise site.refuse("with a constant operand in int8 has no program yet")

    @classmethod
    def views(cls, site: Site) -> tuple[tuple[View | None, ...], View]:
        given = next((i.view for i in site.inputs if i and i.view is not None), None)
        first = next(i for i in site.inputs if i and i.const is None)
        view = given or image_view(first.shape)
        if first.shape != site.output.shape:
            raise site.refuse(f"broadcasts {list(first.shape)} to {list(site.output.shape)}")
        return tuple(None if i is None or i.const is not None else view for i in site.inputs), view

    @classmethod
    def input_rooms(cls, site: Site, room: int) -> tuple[int, ...]:
        return tuple(room for _ in site.inputs)

    @classmethod
    def tasks(cls, site: Site) -> Iterator[Task]:
        a, b, const = cls._sides(site)
        y = site.output
        low, high = clip_range(site.node)
        if b is not None:
            stages = _flying.binary(site, cls.kind, a, b, y, low, high)
            return _flying.tasks(site, stages, _flying.flat_pieces(a, b, y), y)
        assert const is not None and a.view is not None
        vector = channel_vector(const, a.shape, a.view)
        assert vector is not None
        add, mul = np.zeros_like(vector), np.ones_like(vector)
        add, mul = (vector, mul) if cls.kind == "Add" else (add, vector)
        stages = _flying.affine(site, y, mul, add, low, high)
        return _flying.tasks(site, stages, _flying.surface_pieces(a, y), y)
