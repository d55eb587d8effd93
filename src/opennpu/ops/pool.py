"""MaxPool, AveragePool and GlobalAveragePool.  Run on the PPU."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from opennpu.errors import UnsupportedError
from opennpu.hw.rk3588.common import PoolingMethod, Precision
from opennpu.hw.rk3588.pc import PPU_DONE
from opennpu.ir.graph import Node, Quant, Value
from opennpu.ops import _conv, _pool
from opennpu.ops.base import Expansion, Op, Sample, Site, image_view
from opennpu.program import Task, View

Array = npt.NDArray[Any]
FP16 = (Precision.FP16,)


@dataclass(frozen=True, slots=True)
class Geometry:
    """(vertical, horizontal) pairs; pads are top, left, bottom, right."""

    kernel: tuple[int, int]
    stride: tuple[int, int]
    pads: tuple[int, int, int, int]


def geometry(site: Site) -> Geometry:
    """The node's window, with the padding that the output size implies (ceil mode)."""
    _, ih, iw, _ = site.x.nhwc
    _, oh, ow, _ = site.output.nhwc
    a = site.node.attrs
    if site.node.op == "GlobalAveragePool":
        return Geometry((ih, iw), (ih, iw), (0, 0, 0, 0))
    rank = len(a["kernel_shape"])
    if rank not in (1, 2):
        raise site.refuse(f"is {rank}-D, the PPU pools 1-D and 2-D")
    if any(int(d) != 1 for d in a.get("dilations", ())):
        raise site.refuse(f"has dilations {list(a['dilations'])}, the PPU has none")

    def two(v: Sequence[int], fill: int) -> tuple[int, int]:
        return (int(v[0]), int(v[1])) if rank == 2 else (int(v[0]), fill)

    kernel, stride = two(a["kernel_shape"], 1), two(a["strides"], 1)
    top, left = two(a["pads"][:rank], 0)
    bottom = max(0, (oh - 1) * stride[0] + kernel[0] - ih - top)
    right = max(0, (ow - 1) * stride[1] + kernel[1] - iw - left)
    return Geometry(kernel, stride, (top, left, bottom, right))


def split_mean(size: int, limit: int) -> list[int] | None:
    """``size`` as a product of windows of at most ``limit``; None if it has a larger prime."""
    factors: list[int] = []
    while size > limit:
        best = next((k for k in range(limit, 1, -1) if size % k == 0), None)
        if best is None:
            return None
        factors.append(best)
        size //= best
    return [*factors, size]


class _Pool(Op):
    units, int_mask = _pool.START, PPU_DONE

    @staticmethod
    def views(site: Site) -> tuple[tuple[View | None, ...], View]:
        return (image_view(site.x.shape),), image_view(site.output.shape)

    @classmethod
    def input_rooms(cls, site: Site, room: int) -> tuple[int, ...]:
        return (room,)

    @classmethod
    def method(cls, node: Node) -> PoolingMethod:
        return PoolingMethod.MAX if node.op == "MaxPool" else PoolingMethod.AVERAGE

    @classmethod
    def check(cls, site: Site) -> None:
        if site.node.epilogue:
            raise site.refuse("has a fused activation, the PPU has none")
        if len(site.node.outputs) > 1 and site.node.outputs[1]:
            raise site.refuse("also asks for indices")
        g = geometry(site)
        _pool.check(site, g.kernel, g.stride, g.pads)
        if site.precision is Precision.INT8 and site.x.value.quant is not None:
            x, y = site.x, site.output
            if (x.scale, x.zero_point) != (y.scale, y.zero_point):
                raise site.refuse(
                    f"changes the int8 scale from {x.scale:g} to {y.scale:g}, the PPU keeps codes"
                )

    @classmethod
    def tasks(cls, site: Site) -> Iterator[Task]:
        g = geometry(site)
        pool = _pool.Pool(site.x, site.output, cls.method(site.node), g.kernel, g.stride, g.pads)
        return _pool.task(site, pool)


def windows(node: Node, x: Array, fill: float) -> Array:
    """[N, C, OH, OW, KH, KW] windows of a padded image."""
    a = node.attrs
    (kh, kw), (sh, sw) = a["kernel_shape"], a["strides"]
    top, left, bottom, right = a["pads"]
    x = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)), constant_values=fill)
    return sliding_window_view(x, (kh, kw), axis=(2, 3))[:, :, ::sh, ::sw]


def _attrs(k: int, s: int, p: int = 0, **more: Any) -> dict[str, Any]:
    return {"kernel_shape": (k, k), "strides": (s, s), "pads": (p,) * 4, **more}


class MaxPool(_Pool):
    samples = (
        Sample(((1, 16, 8, 8),), _attrs(2, 2)),
        Sample(((2, 20, 7, 9),), _attrs(3, 2, 1)),
        Sample(((1, 16, 13, 13),), _attrs(13, 1, 6)),
        Sample(((1, 16, 20, 20),), _attrs(17, 1), ok=False),
    )

    @staticmethod
    def reference(node: Node, *inputs: Array) -> Array:
        """x: [N, C, H, W] -> [N, C, OH, OW], float32."""
        return np.asarray(windows(node, inputs[0].astype(np.float32), -np.inf).max((-2, -1)))


class AveragePool(_Pool):
    samples = (
        Sample(((1, 16, 8, 8),), _attrs(2, 2)),
        Sample(((1, 24, 9, 9),), _attrs(3, 3)),
        Sample(((1, 8, 9, 9),), _attrs(3, 1, 1, count_include_pad=1), precisions=(Precision.FP16,)),
        Sample(((1, 8, 19, 20),), _attrs(19, 1)),  # beyond the PPU: a convolution
        Sample(((1, 8, 9, 9),), _attrs(3, 1, 1), ok=False),
    )

    @staticmethod
    def reference(node: Node, *inputs: Array) -> Array:
        """x: [N, C, H, W] -> [N, C, OH, OW], float32; padding counts as zeros."""
        return np.asarray(windows(node, inputs[0].astype(np.float32), 0.0).mean((-2, -1)))

    @classmethod
    def check(cls, site: Site) -> None:
        super().check(site)
        g = geometry(site)
        if any(g.pads):
            if not site.node.attrs.get("count_include_pad", 0):
                raise site.refuse(
                    f"pads {max(g.pads)} px and leaves them out of the mean, the PPU counts them in"
                )
            if site.precision is Precision.INT8 and site.x.zero_point:
                raise site.refuse(f"pads with zero point {site.x.zero_point}, the PPU pads with 0")

    @classmethod
    def alternative(
        cls, node: Node, values: Mapping[str, Value], consts: Mapping[str, Array]
    ) -> Expansion | None:
        """A depthwise convolution: larger windows, another int8 scale, no PPU."""
        a, x = node.attrs, values[node.inputs[0]]
        counted = not any(a["pads"]) or bool(a.get("count_include_pad", 0))
        if len(x.shape) != 4 or not counted or a.get("ceil_mode") or "dilations" in a:
            return None
        step = Equal(tuple(a["kernel_shape"]), tuple(a["strides"]), tuple(a["pads"]))
        return equal_convolutions(node, values, (step,), 1 / math.prod(step.kernel))


class GlobalAveragePool(_Pool):
    samples = (
        Sample(((1, 32, 7, 7),)),
        Sample(((2, 12, 3, 5),)),
        Sample(((1, 16, 37, 41),), precisions=FP16),
        Sample(((2, 20, 29, 17),)),
        Sample(((1, 16, 37, 37),), ok=False, precisions=(Precision.INT8,)),
    )

    @staticmethod
    def reference(node: Node, *inputs: Array) -> Array:
        """x: [N, C, H, W] -> [N, C, 1, 1], float32."""
        return np.asarray(inputs[0].astype(np.float32).mean((2, 3), keepdims=True))

    @classmethod
    def expand(
        cls, node: Node, values: Mapping[str, Value], consts: Mapping[str, Array]
    ) -> Expansion | None:
        """Larger images: means of equal parts, then the mean of those."""
        x = values[node.inputs[0]]
        if len(x.shape) != 4 or max(x.shape[2:]) <= _pool.MAX_WINDOW or x.quant is not None:
            return None
        down, across = (split_mean(size, _pool.MAX_WINDOW) for size in x.shape[2:])
        if down is None or across is None:
            return cls.alternative(node, values, consts)
        steps = list(zip_longest(down, across, fillvalue=1))
        nodes: list[Node] = []
        fresh: dict[str, Value] = {}
        name, shape = x.name, list(x.shape)
        for i, (kh, kw) in enumerate(steps):
            out = node.outputs[0] if i == len(steps) - 1 else f"{node.outputs[0]}/mean{i}"
            shape = [*shape[:2], shape[2] // kh, shape[3] // kw]
            attrs = {"kernel_shape": (kh, kw), "strides": (kh, kw), "pads": (0, 0, 0, 0)}
            nodes.append(Node(node.name, "AveragePool", (name,), (out,), attrs))
            fresh[out] = replace(values[node.outputs[0]], name=out, shape=tuple(shape))
            name = out
        return Expansion(tuple(nodes), fresh)

    @classmethod
    def alternative(
        cls, node: Node, values: Mapping[str, Value], consts: Mapping[str, Array]
    ) -> Expansion | None:
        """Depthwise convolutions, the first over windows that may reach beyond the image."""
        x = values[node.inputs[0]]
        if len(x.shape) != 4:
            return None
        (h, w), steps = x.shape[2:], list[Equal]()
        while not steps or (h, w) != (1, 1):
            rows, columns = (-(-size // _conv.MAX_KERNEL) for size in (h, w))
            kernel = -(-h // rows), -(-w // columns)
            rows, columns = -(-h // kernel[0]), -(-w // kernel[1])
            pads = (0, 0, rows * kernel[0] - h, columns * kernel[1] - w)
            steps.append(Equal(kernel, kernel, pads))
            h, w = rows, columns
        if len(steps) > 1 and x.quant is not None:
            raise UnsupportedError(
                node.name,
                f"GlobalAveragePool of {x.shape[2]}x{x.shape[3]} px in int8: the PPU takes "
                f"{_pool.MAX_WINDOW} px a side, a convolution {_conv.MAX_KERNEL}",
                "It stays in onnxruntime",
            )
        return equal_convolutions(node, values, tuple(steps), 1 / math.prod(x.shape[2:]))


@dataclass(frozen=True, slots=True)
class Equal:
    """A depthwise convolution all of whose weights are the same."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    pads: tuple[int, ...]  # top, left, bottom, right


def equal_convolutions(
    node: Node, values: Mapping[str, Value], steps: Sequence[Equal], weight: float
) -> Expansion:
    """The steps one after the other.  ``weight``: product of a weight of each.

    All but the last take means over their windows, so that fp16 holds what lies between.
    """
    x, y = values[node.inputs[0]], values[node.outputs[0]]
    nodes: list[Node] = []
    fresh: dict[str, Value] = {}
    constants: dict[str, Array] = {}
    name, shape = x.name, x.shape
    for step in steps:
        last = step is steps[-1]
        share = weight if last else 1 / math.prod(step.kernel)
        weight /= share
        top, left, bottom, right = step.pads
        (kh, kw), (sh, sw) = step.kernel, step.stride
        rows = (shape[2] + top + bottom - kh) // sh + 1
        columns = (shape[3] + left + right - kw) // sw + 1
        shape = (*shape[:2], rows, columns)
        weights, out = f"{y.name}/weights{len(nodes)}", y.name
        if not last:
            out = f"{y.name}/means{len(nodes)}"
            fresh[out] = replace(y, name=out, shape=shape)
        of = (shape[1], 1, *step.kernel)
        constants[weights], quant = equal_weights(of, share, x)
        fresh[weights] = Value(weights, of, constants[weights].dtype.name, quant)
        attrs = {
            "kernel_shape": step.kernel,
            "strides": step.stride,
            "pads": step.pads,
            "dilations": (1, 1),
            "group": shape[1],
        }
        epilogue = node.epilogue if last else ()
        nodes.append(Node(node.name, "Conv", (name, weights), (out,), attrs, epilogue))
        name = out
    return Expansion(tuple(nodes), fresh, constants)


def equal_weights(shape: tuple[int, ...], weight: float, like: Value) -> tuple[Array, Quant | None]:
    """Weights that are all the same: one step of int8 holds them exactly."""
    if like.quant is None:
        return np.full(shape, weight, np.float32), None
    scale = np.asarray(weight / 127, np.float32)
    return np.full(shape, 127, np.int8), Quant(scale, np.asarray(0, np.int32))
