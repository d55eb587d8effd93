"""DepthToSpace and SpaceToDepth: blocks of channels are blocks of pixels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from opennpu.hw.rk3588 import chip
from opennpu.hw.rk3588.common import Precision
from opennpu.ir.graph import Node, Quant, Value
from opennpu.ops import _flying, _move
from opennpu.ops.base import Expansion, Op, Sample, Site, image_view
from opennpu.program import Task, View

Array = npt.NDArray[Any]


class DepthToSpace(Op):
    """Blocks of whole atoms are copied; others are first put so by a convolution of 1x1."""

    samples = (
        Sample(((1, 64, 3, 4),), {"blocksize": 2}),
        Sample(((2, 36, 3, 5),), {"blocksize": 3, "mode": "CRD"}),
        Sample(((1, 12, 6, 5),), {"blocksize": 2, "mode": "CRD"}),
        Sample(((1, 20, 4, 4),), {"blocksize": 2, "mode": "DCR"}),
    )

    @staticmethod
    def reference(node: Node, *inputs: Array) -> Array:
        """x: [N, B B C, H, W] -> [N, C, H B, W B]."""
        x, b = inputs[0], int(node.attrs["blocksize"])
        n, c, h, w = x.shape
        if node.attrs.get("mode", "DCR") == "DCR":
            split = x.reshape(n, b, b, c // b**2, h, w).transpose(0, 3, 4, 1, 5, 2)
        else:
            split = x.reshape(n, c // b**2, b, b, h, w).transpose(0, 1, 4, 2, 5, 3)
        return np.ascontiguousarray(split.reshape(n, c // b**2, h * b, w * b))

    @staticmethod
    def check(site: Site) -> None:
        _move.check_moves(site, site.x, site.output)
        if site.node.attrs.get("mode", "DCR") != "DCR":
            raise site.refuse("has mode CRD, a copy moves blocks of 1 or more whole channel atoms")
        _move.need_whole_atoms(
            site, "moves blocks of", site.x.shape[1] // int(site.node.attrs["blocksize"]) ** 2
        )

    @staticmethod
    def views(site: Site) -> tuple[tuple[View | None, ...], View]:
        return (image_view(site.x.shape),), image_view(site.output.shape)

    @classmethod
    def alternative(
        cls, node: Node, values: Mapping[str, Value], consts: Mapping[str, Array]
    ) -> Expansion | None:
        """A convolution sorts the channels into blocks of whole atoms."""
        x, y, b = values[node.inputs[0]], values[node.outputs[0]], int(node.attrs["blocksize"])
        if node.epilogue or len(x.shape) != 4 or "sorted" in node.attrs:
            return None
        c = y.shape[1]
        room = _room(c, x)
        crd = node.attrs.get("mode", "DCR") == "CRD"
        pick = [
            -1 if k >= c else (k * b * b + block if crd else block * c + k)
            for block in range(b * b)
            for k in range(room)
        ]
        name = f"{y.name}/blocks"
        first = _move.selection(node.with_(name=f"{node.name}/blocks"), x, y, pick, output=name)
        blocks = replace(x, name=name, shape=(x.shape[0], len(pick), *x.shape[2:]))
        last = node.with_(inputs=(name,), attrs={"blocksize": b, "sorted": 1})
        return Expansion((*first.nodes, last), {**first.values, name: blocks}, first.constants)

    @classmethod
    def tasks(cls, site: Site) -> Iterator[Task]:
        x, y, b = site.x, site.output, int(site.node.attrs["blocksize"])
        n, h, w, c = x.nhwc
        channels, c2 = c // b**2, chip.elements_per_atom(y.precision)
        used = -(-y.nhwc[3] // c2)
        walks = (
            _move.Walk(n, x.surfaces * x.plane_atoms, y.surfaces * y.plane_atoms),
            _move.Walk(used, x.plane_atoms, y.plane_atoms),
            _move.Walk(h, w, b * y.nhwc[2]),
            _move.Walk(w, 1, b),
        )
        copies = [
            _move.Copy(x.at(0, (i * b + j) * channels), y.at(0, 0, i, j), walks)
            for i in range(b)
            for j in range(b)
        ]
        yield from _move.tasks(site, copies, _flying.copy(site, x, y), y)
        yield from _move.fill_rest(site, y)


def _room(channels: int, x: Value) -> int:
    """Channels of whole atoms in the type that ``x`` will have."""
    c2 = chip.elements_per_atom(Precision.FP16 if x.quant is None else Precision.INT8)
    return -(-channels // c2) * c2


class SpaceToDepth(Op):
    """A convolution whose kernel and stride are the block: each filter picks one pixel of it."""

    samples = (
        Sample(((1, 3, 8, 6),), {"blocksize": 2}),
        Sample(((2, 16, 6, 9),), {"blocksize": 3}),
    )

    @staticmethod
    def reference(node: Node, *inputs: Array) -> Array:
        """x: [N, C, H B, W B] -> [N, B B C, H, W]."""
        x, b = inputs[0], int(node.attrs["blocksize"])
        n, c, h, w = x.shape
        order = (0, 3, 5, 1, 2, 4)
        if node.attrs.get("mode", "DCR") == "CRD":
            order = (0, 1, 3, 5, 2, 4)
        split = x.reshape(n, c, h // b, b, w // b, b).transpose(order)
        return np.ascontiguousarray(split.reshape(n, c * b * b, h // b, w // b))

    @staticmethod
    def expand(
        node: Node, values: Mapping[str, Value], consts: Mapping[str, Array]
    ) -> Expansion | None:
        """One Conv."""
        x, b = values[node.inputs[0]], int(node.attrs["blocksize"])
        if len(x.shape) != 4:
            return None
        c, name = x.shape[1], f"{node.outputs[0]}/select"
        w: Array = np.zeros((b, b, c, c, b, b), np.float32)
        for i in range(b):
            for j in range(b):
                w[i, j, :, :, i, j] = np.eye(c)
        if node.attrs.get("mode", "DCR") == "CRD":
            w = w.transpose(2, 0, 1, 3, 4, 5)
        w = np.ascontiguousarray(w).reshape(b * b * c, c, b, b)
        made = {}
        if x.quant is not None:
            w = w.astype(np.int8)
            one = Quant(np.ones((), np.float32), np.zeros((), np.int32))
            made[name] = Value(name, w.shape, "int8", one)
        attrs = {
            "kernel_shape": (b, b),
            "strides": (b, b),
            "pads": (0, 0, 0, 0),
            "dilations": (1, 1),
            "group": 1,
        }
        conv = node.with_(op="Conv", inputs=(x.name, name), attrs=attrs)
        return Expansion((conv,), made, {name: w})

    @staticmethod
    def check(site: Site) -> None:
        raise site.refuse(f"works on {len(site.x.shape)} axes, the NPU on 4")

    @staticmethod
    def views(site: Site) -> tuple[tuple[View | None, ...], View]:
        return (image_view(site.x.shape),), image_view(site.output.shape)
