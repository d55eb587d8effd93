"""ConvTranspose: zeros between the pixels, then a convolution with the kernel turned round."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from opennpu.hw.rk3588 import chip
from opennpu.ir.graph import Node, Quant, Value
from opennpu.ops import _flying, _move
from opennpu.ops.base import Expansion, Op, Sample, Site, apply_epilogue, image_view
from opennpu.ops.conv import Conv
from opennpu.program import Task, View

Array = npt.NDArray[Any]


def window(
    node: Node, x: tuple[int, ...], w: tuple[int, ...], y: tuple[int, ...]
) -> tuple[list[int], list[int], list[int], list[int]]:
    """(strides, dilations, border before, border after): what the convolution must see.

    ONNX: out = stride * (in - 1) + output_padding + span - pads; a given size sets the pads.
    """
    rank, a = len(w) - 2, node.attrs
    strides = [int(s) for s in a.get("strides", (1,) * rank)]
    dilations = [int(d) for d in a.get("dilations", (1,) * rank)]
    extra = [int(p) for p in a.get("output_padding", (0,) * rank)]
    spans = [(k - 1) * d + 1 for k, d in zip(w[2:], dilations, strict=True)]
    auto = a.get("auto_pad", "NOTSET")
    before, after = [], []
    for i in range(rank):
        total = strides[i] * (x[2 + i] - 1) + extra[i] + spans[i] - y[2 + i]
        if "output_shape" in a or auto in ("SAME_UPPER", "SAME_LOWER"):
            total = max(total, 0)
            first = total // 2 if auto == "SAME_UPPER" else total - total // 2
        else:
            first = int(a["pads"][i]) if "pads" in a and auto == "NOTSET" else 0
        before.append(spans[i] - 1 - first)
        size = strides[i] * (x[2 + i] - 1) + 1
        after.append(y[2 + i] - 1 + spans[i] - size - before[i])
    return strides, dilations, before, after


def turned(w: Array, group: int) -> Array:
    """[IC, OC/g, …] as the weights [OC, IC/g, …] of the convolution that does the same."""
    ic, per = w.shape[:2]
    split = w.reshape(group, ic // group, per, *w.shape[2:]).swapaxes(1, 2)
    flat = split.reshape(group * per, ic // group, *w.shape[2:])
    return np.ascontiguousarray(np.flip(flat, tuple(range(2, w.ndim))))


class Dilate(Op):
    """x with ``strides`` - 1 zeros between its pixels, and borders of zeros."""

    @staticmethod
    def reference(node: Node, *inputs: Array) -> Array:
        """x: [N, C, …] -> zeros, with x at every ``strides``th pixel behind ``before``."""
        x, a = inputs[0], node.attrs
        y = np.zeros(a["shape"], x.dtype)
        index = [slice(None)] * 2
        for n, s, b in zip(x.shape[2:], a["strides"], a["before"], strict=True):
            index.append(slice(b, b + (n - 1) * s + 1, s))
        y[tuple(index)] = x
        return y

    @staticmethod
    def check(site: Site) -> None:
        _move.check_moves(site, site.x, site.output)
        _move.need_axes(site, site.x)

    @staticmethod
    def views(site: Site) -> tuple[tuple[View | None, ...], View]:
        view = image_view(site.x.shape)
        return (view,), _move.need_view(site, site.x, view, site.output.shape)

    @classmethod
    def input_rooms(cls, site: Site, room: int) -> tuple[int, ...]:
        return (room,)

    @classmethod
    def tasks(cls, site: Site) -> Iterator[Task]:
        x, y, a = site.x, site.output, site.node.attrs
        whole = [_move.Range(i, n) for i, n in enumerate(y.shape)]
        yield from _move.fill(site, y, 0.0, whole)
        ranges = [
            _move.Range(2 + i, n, 0, a["before"][i], 1, a["strides"][i])
            for i, n in enumerate(x.shape[2:])
        ]
        yield from _move.tasks(site, [_move.region(x, y, ranges)], _flying.copy(site, x, y), y)


class ConvTranspose(Op):
    macs = True

    @staticmethod
    def reference(node: Node, *inputs: Array) -> Array:
        """x: [N, C, H, W], w: [C, OC/g, KH, KW], bias: [OC] -> [N, OC, OH, OW], float32."""
        x, w = inputs[0].astype(np.float32), inputs[1].astype(np.float32)
        group = int(node.attrs.get("group", 1))
        shape = output_shape(node, x.shape, w.shape)
        strides, dilations, before, after = window(node, x.shape, w.shape, shape)
        cuts = [(max(0, -b), max(0, -e)) for b, e in zip(before, after, strict=True)]
        before, after = [max(0, b) for b in before], [max(0, e) for e in after]
        sizes = [
            (n - 1) * s + 1 + b + e
            for n, s, b, e in zip(x.shape[2:], strides, before, after, strict=True)
        ]
        wide = node.with_(
            attrs={"shape": (*x.shape[:2], *sizes), "strides": strides, "before": before}
        )
        rank = w.ndim - 2
        attrs = {
            "kernel_shape": w.shape[2:],
            "strides": (1,) * rank,
            "pads": (0,) * (2 * rank),
            "dilations": dilations,
            "group": group,
        }
        conv = node.with_(attrs=attrs, epilogue=())
        bias = inputs[2:3]
        y = Conv.reference(conv, Dilate.reference(wide, x), turned(w, group), *bias)
        inside = (slice(b, n - e) for n, (b, e) in zip(y.shape[2:], cuts, strict=True))
        return apply_epilogue(node, y[(slice(None), slice(None), *inside)])

    @staticmethod
    def expand(
        node: Node, values: Mapping[str, Value], consts: Mapping[str, Array]
    ) -> Expansion | None:
        """Dilate, then Conv.  Borders are the convolution's pads where it can pad so far."""
        x, y = values[node.inputs[0]], values[node.outputs[0]]
        w = consts.get(node.inputs[1])
        if w is None or w.ndim not in (3, 4) or len(x.shape) != w.ndim:
            return None
        group = int(node.attrs.get("group", 1))
        strides, dilations, before, after = window(node, x.shape, w.shape, y.shape)
        if min(*before, *after) < 0 or w.shape[0] != x.shape[1]:
            return None
        by_conv = max(before) <= chip.MAX_CONV_PAD_PX
        weights = f"{y.name}/turned"
        made: dict[str, Value] = {}
        old = values[node.inputs[1]].quant
        if old is not None:
            step = old.scale
            if old.axis == 1:
                step = np.tile(step, group)
            elif old.axis is not None:
                return None
            quant = Quant(step, np.zeros(step.shape, np.int32), None if old.axis is None else 0)
            made[weights] = Value(weights, turned(w, group).shape, "int8", quant)
        conv = node.with_(
            op="Conv",
            inputs=(x.name, weights, *node.inputs[2:]),
            attrs={
                "kernel_shape": w.shape[2:],
                "strides": (1,) * len(strides),
                "pads": (*before, *after) if by_conv else (0,) * (2 * len(strides)),
                "dilations": tuple(dilations),
                "group": group,
            },
        )
        if max(strides) == 1 and by_conv:
            return Expansion((conv,), made, {weights: turned(w, group)})
        wide = f"{y.name}/dilated"
        edge = [0] * len(strides) if by_conv else before
        total = edge if by_conv else [b + e for b, e in zip(before, after, strict=True)]
        sizes = [(n - 1) * s + 1 + t for n, s, t in zip(x.shape[2:], strides, total, strict=True)]
        made[wide] = replace(x, name=wide, shape=(*x.shape[:2], *sizes))
        dilate = Node(
            f"{node.name}/dilated",
            "Dilate",
            (x.name,),
            (wide,),
            {"strides": tuple(strides), "before": tuple(edge)},
        )
        conv = conv.with_(inputs=(wide, *conv.inputs[1:]))
        return Expansion((dilate, conv), made, {weights: turned(w, group)})

    @staticmethod
    def check(site: Site) -> None:
        w = site.const(1)
        if w is None:
            raise site.refuse("has computed weights, the NPU takes constant ones")
        rank = len(site.x.shape) - 2
        if rank not in (1, 2):
            raise site.refuse(f"is {rank}-D, the NPU convolves 1-D and 2-D")
        *_, before, after = window(site.node, site.x.shape, w.shape, site.output.shape)
        least = min(*before, *after)
        if least < 0:
            raise site.refuse(
                f"cuts {-least} px more from a side than its kernel reaches, 0 is most"
            )
        raise site.refuse(f"has int8 weights with {w.shape[0]} scales, one per input channel")

    @staticmethod
    def views(site: Site) -> tuple[tuple[View | None, ...], View]:
        views = (image_view(site.x.shape), *(None for _ in site.inputs[1:]))
        return views, image_view(site.output.shape)


def output_shape(node: Node, x: tuple[int, ...], w: tuple[int, ...]) -> tuple[int, ...]:
    """Of a node with explicit pads."""
    rank, a = len(w) - 2, node.attrs
    pads, extra = a.get("pads", (0,) * 2 * rank), a.get("output_padding", (0,) * rank)
    sizes = []
    for i in range(rank):
        span = (w[2 + i] - 1) * a.get("dilations", (1,) * rank)[i] + 1
        step = a.get("strides", (1,) * rank)[i]
        sizes.append(step * (x[2 + i] - 1) + extra[i] + span - pads[i] - pads[rank + i])
    return (x[0], w[1] * int(a.get("group", 1)), *sizes)


def _sample(
    x: tuple[int, ...], w: tuple[int, ...], *, bias: bool = True, ok: bool = True, **attrs: Any
) -> Sample:
    full = {"strides": (1,) * (len(w) - 2), "group": 1, **attrs}
    outputs = w[1] * int(full["group"])
    return Sample((x,), full, (w, (outputs,)) if bias else (w,), ok=ok)


ConvTranspose.samples = (
    _sample((1, 16, 5, 6), (16, 24, 2, 2), strides=(2, 2)),
    _sample((1, 20, 4, 5), (20, 9, 3, 3), strides=(2, 2), pads=(1, 1, 1, 1), bias=False),
    _sample((2, 16, 4, 4), (16, 16, 4, 4), strides=(2, 2), pads=(1, 1, 1, 1)),
    _sample((1, 16, 4, 3), (16, 8, 3, 3), strides=(3, 2), pads=(0, 1, 1, 0), output_padding=(1, 1)),
    _sample((1, 32, 5, 5), (32, 1, 4, 4), strides=(2, 2), pads=(1, 1, 1, 1), group=32),
    _sample((1, 16, 5, 5), (16, 4, 3, 3), group=4, dilations=(2, 1)),
    _sample((1, 12, 9), (12, 8, 5), strides=(4,)),
    _sample((1, 8, 2, 2), (8, 8, 18, 18), strides=(8, 8)),
    _sample((1, 8, 9, 9), (8, 8, 2, 2), ok=False, strides=(2, 2), pads=(3, 0, 0, 0)),
)
