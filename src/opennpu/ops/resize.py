"""Resize and Upsample: nearest by copies, linear as a transposed convolution of each channel."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from opennpu.hw.layout import cube_bytes
from opennpu.ir.graph import Node, Quant, Value
from opennpu.ops import _flying, _move
from opennpu.ops.base import Expansion, Op, Operand, Sample, Site, image_view
from opennpu.program import Task, View

Array = npt.NDArray[Any]

MAX_RUNS = 64  # copies along one axis; more are faster on the host


def scales_of(
    node: Node, x: tuple[int, ...], y: tuple[int, ...], consts: Mapping[str, Array]
) -> list[float] | None:
    """The scale of each axis as coordinates use it; None where an input computes it."""
    given = node.attrs.get("scales")
    at = 2 if node.op == "Resize" and len(node.inputs) > 2 else 1
    if given is None and len(node.inputs) > at and node.inputs[at]:
        const = consts.get(node.inputs[at])
        if const is None:
            return None
        given = [float(v) for v in const.reshape(-1)]
    if "axes" in node.attrs and given:
        full = [1.0] * len(x)
        for axis, scale in zip(node.attrs["axes"], given, strict=True):
            full[axis % len(x)] = scale
        given = full
    if given:
        return [float(v) for v in given]
    if len(node.inputs) > 3 and node.inputs[3] and node.inputs[3] not in consts:
        return None
    if node.attrs.get("keep_aspect_ratio_policy", "stretch") != "stretch":
        return None
    return [b / a for a, b in zip(x, y, strict=True)]


def coordinate(mode: str, k: Array, n: int, out: int, scale: float) -> Array | None:
    """Where output ``k`` lies in the input; None for a mode that copies cannot do."""
    if mode == "asymmetric":
        return np.asarray(k / scale)
    if mode == "align_corners":
        return k * 0.0 if out == 1 else k * ((n - 1) / (out - 1))
    if mode == "half_pixel" or (mode == "pytorch_half_pixel" and out > 1):
        return (k + 0.5) / scale - 0.5
    if mode == "pytorch_half_pixel":
        return k * 0.0
    return None


def mode_of(node: Node, consts: Mapping[str, Array]) -> str:
    """Coordinate mode; Upsample and the first Resize knew one only."""
    old = node.op == "Upsample" or len(node.inputs) == 2
    default = "asymmetric" if old and "scales" not in node.attrs else "half_pixel"
    if node.op == "Upsample":
        default = "asymmetric"
    return str(node.attrs.get("coordinate_transformation_mode", default))


def nearest(node: Node, mode: str, n: int, out: int, scale: float) -> Array | None:
    """[out] source index of each output along an axis."""
    at = coordinate(mode, np.arange(out, dtype=np.float64), n, out, scale)
    if at is None:
        return None
    old = node.op == "Upsample" or (len(node.inputs) == 2 and "scales" not in node.attrs)
    rule = str(node.attrs.get("nearest_mode", "floor" if old else "round_prefer_floor"))
    if rule == "floor":
        index = np.floor(at)
    elif rule == "ceil":
        index = np.ceil(at)
    elif rule == "round_prefer_ceil":
        index = np.floor(at + 0.5)
    else:
        index = np.ceil(at - 0.5)
    return np.clip(index, 0, n - 1).astype(np.int64)


def runs(axis: int, index: Array) -> list[_move.Range]:
    """An index along an axis as few ranges of even steps."""
    best: list[_move.Range] | None = None
    out = len(index)
    for period in range(1, min(out, MAX_RUNS) + 1):
        found = []
        for phase in range(period):
            part = index[phase::period]
            step = np.diff(part)
            if len(step) and (step != step[0]).any():
                break
            first = int(step[0]) if len(step) else 1
            found.append(_move.Range(axis, len(part), int(part[0]), phase, first, period))
        else:
            best = found
            break
    if best is not None:
        return best
    starts = [0, *(np.flatnonzero(np.diff(index, 2)) + 2), out]  # pieces of one step each
    return [
        _move.Range(axis, b - a, int(index[a]), int(a), int(index[a + 1] - index[a]))
        if b - a > 1
        else _move.Range(axis, 1, int(index[a]), int(a))
        for a, b in itertools.pairwise(starts)
        if b > a
    ]


class Resize(Op):
    names = ("Resize", "Upsample")
    samples = (
        Sample(((1, 16, 4, 5),), {"scales": (1, 1, 2, 2), "mode": "nearest"}, op="Resize"),
        Sample(
            ((2, 20, 3, 5),),
            {
                "scales": (1, 1, 3, 2),
                "mode": "nearest",
                "coordinate_transformation_mode": "asymmetric",
                "nearest_mode": "floor",
            },
            op="Resize",
        ),
        Sample(
            ((1, 16, 6, 8),),
            {
                "sizes": (1, 16, 9, 4),
                "mode": "nearest",
                "coordinate_transformation_mode": "asymmetric",
                "nearest_mode": "floor",
            },
            op="Resize",
        ),
        Sample(((1, 24, 7),), {"scales": (1, 1, 4), "mode": "nearest"}, op="Resize"),
        Sample(((1, 32, 4, 5),), {"scales": (1, 1, 2, 2), "mode": "linear"}, op="Resize"),
        Sample(((1, 20, 3, 4),), {"scales": (1, 1, 3, 4), "mode": "linear"}, op="Resize"),
        Sample(
            ((1, 16, 4, 5),),
            {
                "scales": (1, 1, 2, 2),
                "mode": "linear",
                "coordinate_transformation_mode": "asymmetric",
            },
            op="Resize",
        ),
        Sample(
            ((1, 16, 4, 5),),
            {
                "sizes": (1, 16, 7, 13),
                "mode": "linear",
                "coordinate_transformation_mode": "align_corners",
            },
            op="Resize",
        ),
        Sample(((1, 16, 4, 5),), {"scales": (1, 1, 2, 2), "mode": "cubic"}, ok=False, op="Resize"),
        Sample(((1, 16, 4, 5),), {"sizes": (1, 16, 7, 7), "mode": "linear"}, ok=False, op="Resize"),
    )

    @staticmethod
    def reference(node: Node, *inputs: Array) -> Array:
        """x -> x at other sizes: nearest or linear."""
        x = inputs[0]
        sizes = node.attrs.get("sizes")
        if sizes is None:
            sizes = [math.floor(n * s) for n, s in zip(x.shape, node.attrs["scales"], strict=True)]
        scales = node.attrs.get("scales") or [b / a for a, b in zip(x.shape, sizes, strict=True)]
        mode = mode_of(node, {})
        y = x.astype(np.float64)
        for axis, (n, out, scale) in enumerate(zip(x.shape, sizes, scales, strict=True)):
            if n == out and scale == 1:
                continue
            if node.attrs.get("mode") == "nearest":
                index = nearest(node, mode, n, out, scale)
                assert index is not None
                y = np.take(y, index, axis)
                continue
            at = coordinate(mode, np.arange(out, dtype=np.float64), n, out, scale)
            assert at is not None
            at = np.clip(at, 0, n - 1)
            low = np.floor(at).astype(np.int64)
            high = np.minimum(low + 1, n - 1)
            shape = [-1 if i == axis else 1 for i in range(y.ndim)]
            part = (at - low).reshape(shape)
            y = np.take(y, low, axis) * (1 - part) + np.take(y, high, axis) * part
        return y.astype(np.float32)

    @classmethod
    def plan(cls, site: Site) -> list[tuple[int, list[_move.Range]]]:
        """The axes that change, each with its copies.  Refuses what copies cannot do."""
        node, x, y = site.node, site.x.shape, site.output.shape
        consts = _move.constants_of(site)
        given = scales_of(node, x, y, consts)
        if given is None:
            raise site.refuse(
                "has computed or fitted sizes, 0 of its inputs but the first may vary"
            )
        kind, mode = str(node.attrs.get("mode", "nearest")), mode_of(node, consts)
        if kind != "nearest":
            raise site.refuse(
                f"in mode {kind!r}, {mode!r} goes from {list(x)} to {list(y)}: the NPU does linear "
                "by whole factors on rows and columns"
            )
        steps = []
        for axis, (n, out, scale) in enumerate(zip(x, y, given, strict=True)):
            if n == out and scale == 1:
                continue
            index = nearest(node, mode, n, out, scale)
            if index is None:
                raise site.refuse(f"has coordinates {mode!r}, of 4 known ones")
            found = runs(axis, index)
            if len(found) > MAX_RUNS:
                raise site.refuse(
                    f"needs {len(found)} copies along axis {axis}, at most {MAX_RUNS} are worth it"
                )
            steps.append((axis, found))
        return steps

    @classmethod
    def check(cls, site: Site) -> None:
        _move.check_moves(site, site.x, site.output)
        placed = _move.need_axes(site, site.x)
        for axis, _ in cls.plan(site):
            if placed[axis].place == 3:
                raise site.refuse(f"resizes axis {axis}, which are channels")

    @staticmethod
    def views(site: Site) -> tuple[tuple[View | None, ...], View]:
        view = site.x.view or image_view(site.x.shape)
        out = _move.need_view(site, site.x, view, site.output.shape)
        return (view, *(None for _ in site.inputs[1:])), out

    @classmethod
    def input_rooms(cls, site: Site, room: int) -> tuple[int, ...]:
        return (room, *(0 for _ in site.inputs[1:]))

    @classmethod
    def between(cls, site: Site) -> list[Operand]:
        """The cubes between the axes: all but the last axis is written to scratch memory."""
        x, y = site.x, site.output
        cubes: list[Operand] = []
        shape = list(x.shape)
        for axis, _ in cls.plan(site)[:-1]:
            shape[axis] = y.shape[axis]
            assert x.view is not None
            view = _move.need_view(site, x, x.view, tuple(shape))
            value = replace(x.value, shape=tuple(shape))
            ref = site.scratch
            for o in cubes:
                ref = ref + cube_bytes(o.nhwc, o.precision, o.channels)
            cubes.append(Operand(value, x.precision, view, y.channels, ref))
        return cubes

    @classmethod
    def scratch(cls, site: Site) -> int:
        return sum(cube_bytes(o.nhwc, o.precision, o.channels) for o in cls.between(site))

    @classmethod
    def alternative(
        cls, node: Node, values: Mapping[str, Value], consts: Mapping[str, Array]
    ) -> Expansion | None:
        """Linear by whole factors: edges are repeated, then every channel is convolved."""
        x, y = values[node.inputs[0]], values[node.outputs[0]]
        given = scales_of(node, x.shape, y.shape, consts)
        if node.attrs.get("mode") != "linear" or given is None or len(x.shape) not in (3, 4):
            return None
        if x.shape[:2] != y.shape[:2] or node.epilogue or node.attrs.get("antialias"):
            return None
        mode = mode_of(node, consts)
        sides = list(zip(x.shape[2:], y.shape[2:], given[2:], strict=True))
        found = [_linear(mode, *side) for side in sides]
        if any(f is None for f in found):
            return None
        taps = [f for f in found if f is not None]
        kernel = taps[0].weights
        for t in taps[1:]:
            kernel = kernel[..., None] * t.weights
        channels, rank = x.shape[1], len(taps)
        w = np.broadcast_to(kernel, (channels, 1, *kernel.shape))
        edge, weights = f"{y.name}/edges", f"{y.name}/taps"
        pads = (0, 0, *(t.edge[0] for t in taps), 0, 0, *(t.edge[1] for t in taps))
        sizes = [n + sum(t.edge) for n, t in zip(x.shape[2:], taps, strict=True)]
        shape = (*x.shape[:2], *sizes)
        made = {edge: replace(x, name=edge, shape=shape)}
        constants: dict[str, Array] = {weights: w.astype(np.float32)}
        if x.quant is not None:
            step = np.float32(kernel.max() / 127)
            exact = 1 / math.prod(2 * t.stride for t in taps)  # every tap is a multiple of this
            if kernel.max() / exact <= 127:
                step = np.float32(exact)
            codes = np.rint(w / step).astype(np.int8)
            constants[weights] = codes
            one = Quant(np.asarray(step, np.float32), np.zeros((), np.int32))
            made[weights] = Value(weights, codes.shape, "int8", one)
        nodes = []
        if any(pads):
            pad = {"pads": pads, "mode": "edge"}
            nodes.append(Node(f"{node.name}/edges", "Pad", (x.name,), (edge,), pad))
        attrs = {
            "strides": tuple(t.stride for t in taps),
            "group": channels,
            "pads": (*(t.before for t in taps), *(t.after for t in taps)),
            "dilations": (1,) * rank,
        }
        source = edge if nodes else x.name
        nodes.append(
            node.with_(op="ConvTranspose", inputs=(source, weights), attrs=attrs, domain="")
        )
        return Expansion(tuple(nodes), made, constants)

    @classmethod
    def tasks(cls, site: Site) -> Iterator[Task]:
        y, plan = site.output, cls.plan(site)
        source = site.x
        targets: Sequence[Operand] = (*cls.between(site), y)
        stages = _flying.copy(site, site.x, y)
        if not plan:
            yield from _move.tasks(site, [_move.region(site.x, y, [])], stages, y)
        for (_, found), target in zip(plan, targets, strict=bool(plan)):
            copies = [_move.region(source, target, [r]) for r in found]
            last = target is y
            same = _flying.copy(site, source, source)
            yield from _move.tasks(site, copies, stages if last else same, target)
            source = target


@dataclass(frozen=True)
class _Taps:
    """Linear interpolation along an axis as a transposed convolution."""

    weights: Array
    stride: int
    edge: tuple[int, int]  # pixels repeated before and after
    before: int  # pads of the transposed convolution
    after: int


def _linear(mode: str, n: int, out: int, scale: float) -> _Taps | None:
    """The triangle of a whole factor; edges are repeated by one pixel where it reaches out."""
    if n == out and scale == 1:
        return _Taps(np.ones(1), 1, (0, 0), 0, 0)
    if mode == "align_corners" and n > 1 and (out - 1) % (n - 1) == 0:
        s = (out - 1) // (n - 1)
        triangle = 1 - np.abs(np.arange(2 * s - 1) - (s - 1)) / s
        return _Taps(triangle, s, (0, 0), s - 1, s - 1)
    s = round(scale)
    if s != scale or out != n * s or s < 1:
        return None
    if mode == "asymmetric":
        triangle = 1 - np.abs(np.arange(2 * s - 1) - (s - 1)) / s
        return _Taps(triangle, s, (0, 1), s - 1, s)
    if mode not in ("half_pixel", "pytorch_half_pixel") or out == 1:
        return None
    k = 2 * s - s % 2
    triangle = 1 - np.abs(np.arange(k) - (k - 1) / 2) / s
    crop = s + (k - s) // 2
    return _Taps(triangle, s, (1, 1), crop, crop)
