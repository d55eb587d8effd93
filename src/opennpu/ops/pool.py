"""MaxPool, AveragePool and GlobalAveragePool.  Run on the PPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from opennpu.hw.rk3588.common import PoolingMethod, Precision
from opennpu.ir.graph import Node, Value
from opennpu.ops import _pool
from opennpu.ops.base import Expansion, Op, Sample, Site, image_view
from opennpu.program import Task, View

Array = npt.NDArray[Any]


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
    units, int_mask = _pool.START, _pool.PPU_DONE

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


class GlobalAveragePool(_Pool):
    samples = (
        Sample(((1, 32, 7, 7),)),
        Sample(((2, 12, 3, 5),)),
        Sample(((1, 16, 37, 37),), ok=False),
    )

    @staticmethod
    def reference(node: Node, *inputs: Array) -> Array:
        """x: [N, C, H, W] -> [N, C, 1, 1], float32."""
        return np.asarray(inputs[0].astype(np.float32).mean((2, 3), keepdims=True))

    @staticmethod
    def expand(
        node: Node, values: Mapping[str, Value], consts: Mapping[str, Array]
    ) -> Expansion | None:
        """Larger images: means of equal parts, then the mean of those."""
        x = values[node.inputs[0]]
        if len(x.shape) != 4 or max(x.shape[2:]) <= _pool.MAX_WINDOW or x.quant is not None:
            return None
        down, across = (split_mean(size, _pool.MAX_WINDOW) for size in x.shape[2:])
        if down is None or across is None:
            return None
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
