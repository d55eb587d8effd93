"""ReduceMean, ReduceSum and ReduceMax: pools over pixels, products with ones over channels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from opennpu.errors import UnsupportedError
from opennpu.hw.rk3588.common import Precision
from opennpu.ir.graph import Node, Quant, Value
from opennpu.ops import _pool
from opennpu.ops.base import Expansion, Op, Sample, apply_epilogue
from opennpu.ops.pool import equal_weights

Array = npt.NDArray[Any]
FP16 = (Precision.FP16,)


def axes_of(node: Node, rank: int, consts: Mapping[str, Array]) -> tuple[int, ...] | None:
    """Axes that go, ascending; None if they are computed."""
    axes = node.attrs.get("axes")
    if len(node.inputs) > 1 and node.inputs[1]:
        given = consts.get(node.inputs[1])
        if given is None:
            return None
        axes = [int(a) for a in given.reshape(-1)]
    if not axes:
        return () if node.attrs.get("noop_with_empty_axes") else tuple(range(rank))
    return tuple(sorted({int(a) % rank for a in axes}))


class Draft:
    """Nodes that stand for one node, each reading the one before."""

    def __init__(self, node: Node, values: Mapping[str, Value]) -> None:
        self.node, self.values = node, values
        self.nodes: list[Node] = []
        self.fresh: dict[str, Value] = {}
        self.constants: dict[str, Array] = {}

    @property
    def out(self) -> Value:
        return self.values[self.node.outputs[0]]

    def constant(self, a: Array, quant: Quant | None = None) -> str:
        name = f"{self.node.outputs[0]}/constant{len(self.constants)}"
        self.constants[name] = a
        self.fresh[name] = Value(name, a.shape, a.dtype.name, quant)
        return name

    def add(self, op: str, inputs: tuple[str, ...], result: tuple[int, ...], **attrs: Any) -> str:
        """A node; its result has the shape ``result`` and the quantization of the whole."""
        name = f"{self.node.outputs[0]}/step{len(self.nodes)}"
        self.nodes.append(Node(self.node.name, op, inputs, (name,), attrs))
        self.fresh[name] = replace(self.out, name=name, shape=result)
        return name

    def shape(self, name: str) -> tuple[int, ...]:
        return (self.fresh.get(name) or self.values[name]).shape

    def done(self) -> Expansion:
        """The last node writes the result, with the epilogue."""
        *head, last = self.nodes
        self.fresh.pop(last.outputs[0])
        last = last.with_(outputs=self.node.outputs, epilogue=self.node.epilogue)
        return Expansion((*head, last), self.fresh, self.constants)


def max_windows(size: int) -> list[tuple[int, int]]:
    """(window, padding after) of each pass that ends with one pixel; a window is also the step."""
    passes = []
    while size > _pool.MAX_WINDOW:
        k = min(
            range(_pool.MAX_WINDOW, 1, -1),
            key=lambda k: (-size % k > _pool.MAX_PAD, -(-size // k)),
        )
        passes.append((k, -size % k))
        size = -(-size // k)
    return [*passes, (size, 0)]


def global_max(draft: Draft, name: str) -> str:
    """[N, C, H, W] -> [N, C, 1, 1].  The PPU keeps int8 codes; another scale comes afterwards."""
    n, c, h, w = draft.shape(name)
    x = draft.values[draft.node.inputs[0]]
    down, across = max_windows(h), max_windows(w)
    for i in range(max(len(down), len(across))):
        (kh, bottom), (kw, right) = (p[i] if i < len(p) else (1, 0) for p in (down, across))
        h, w = -(-h // kh), -(-w // kw)
        attrs = {"kernel_shape": (kh, kw), "strides": (kh, kw), "pads": (0, 0, bottom, right)}
        name = draft.add("MaxPool", (name,), (n, c, h, w), **attrs)
        draft.fresh[name] = replace(draft.fresh[name], quant=x.quant)
    if x.quant is not None:
        name = draft.add("Clip", (name,), (n, c, 1, 1))
    return name


class _Reduce(Op):
    """One axis, or all pixels of an image, at a time."""

    @classmethod
    def expand(
        cls, node: Node, values: Mapping[str, Value], consts: Mapping[str, Array]
    ) -> Expansion | None:
        x, y = values[node.inputs[0]], values[node.outputs[0]]
        rank = len(x.shape)
        axes = axes_of(node, rank, consts)
        if axes is None or not axes:
            raise refusal(node, "has computed axes or none, the NPU takes 1 constant list of them")
        draft, name = Draft(node, values), node.inputs[0]
        left = list(axes)
        pixels = list(range(2, rank))
        if rank == 4 and left == [1, 2]:  # channels last
            n, h, w, c = x.shape
            name = draft.add("Transpose", (name,), (n, c, h, w), perm=(0, 3, 1, 2))
            name = cls.over_pixels(draft, name)
            name = draft.add("Transpose", (name,), (n, 1, 1, c), perm=(0, 2, 3, 1))
            left = []
        elif rank == 4 and set(pixels) <= set(left):
            name = cls.over_pixels(draft, name)
            left = [a for a in left if a not in pixels]
        for axis in reversed(left):
            if x.quant is not None and draft.nodes:
                raise refusal(
                    node, f"reduces {len(axes)} axes in int8, the NPU reduces 1 at a time"
                )
            name = cls.over_axis(draft, name, axis)
        if draft.shape(name) != y.shape:
            draft.add("Reshape", (name,), y.shape, shape=y.shape)
        return draft.done()

    @classmethod
    def over_pixels(cls, draft: Draft, name: str) -> str:
        """[N, C, H, W] -> [N, C, 1, 1]."""
        raise NotImplementedError

    @classmethod
    def over_axis(cls, draft: Draft, name: str, axis: int) -> str:
        """One axis, which stays with length 1."""
        raise NotImplementedError


def refusal(node: Node, what: str) -> UnsupportedError:
    return UnsupportedError(node.name, f"{node.op} {what}", "It stays in onnxruntime")


class _Linear(_Reduce):
    """Sums with one weight for all summands."""

    @classmethod
    def weight(cls, count: int) -> float:
        raise NotImplementedError

    @classmethod
    def over_axis(cls, draft: Draft, name: str, axis: int) -> str:
        shape = draft.shape(name)
        rank, count = len(shape), shape[axis]
        out = (*shape[:axis], 1, *shape[axis + 1 :])
        x = draft.values[draft.node.inputs[0]]

        def weights(*of: int) -> str:
            return draft.constant(*equal_weights(of, cls.weight(count), x))

        if rank == 4 and axis == 1:
            attrs = {
                "kernel_shape": (1, 1),
                "strides": (1, 1),
                "pads": (0, 0, 0, 0),
                "dilations": (1, 1),
                "group": 1,
            }
            return draft.add("Conv", (name, weights(1, count, 1, 1)), out, **attrs)
        if axis == rank - 1 and rank > 1:
            return draft.add("MatMul", (name, weights(count, 1)), out)
        if axis == rank - 2:
            return draft.add("MatMul", (weights(1, count), name), out)
        raise refusal(
            draft.node, f"reduces axis {axis} of {rank}, the NPU reduces pixels and the last 2"
        )


class ReduceMean(_Linear):
    samples = (
        Sample(((2, 20, 7, 5),), {"axes": (2, 3), "keepdims": 1}),
        Sample(((1, 24, 37, 19),), {"axes": (2, 3), "keepdims": 0}, precisions=FP16),
        Sample(((1, 24, 5, 6),), {"axes": (1,), "keepdims": 1}),
        Sample(((2, 9, 40),), {"axes": (-1,), "keepdims": 1}),
        Sample(((2, 9, 40),), {"axes": (1,), "keepdims": 0}, precisions=FP16),
        Sample(((2, 3, 9, 40),), {"axes": (1, 2, 3), "keepdims": 0}, precisions=FP16),
        Sample(((2, 3, 4, 9, 40),), {"axes": (1,), "keepdims": 0}, ok=False),
    )

    @staticmethod
    def reference(node: Node, *inputs: Array) -> Array:
        """x: any shape -> means over ``axes``, float32."""
        keep = bool(node.attrs.get("keepdims", 1))
        y = inputs[0].astype(np.float32).mean(node.attrs["axes"], keepdims=keep)
        return apply_epilogue(node, np.asarray(y))

    @classmethod
    def weight(cls, count: int) -> float:
        return 1 / count

    @classmethod
    def over_pixels(cls, draft: Draft, name: str) -> str:
        n, c, _, _ = draft.shape(name)
        return draft.add("GlobalAveragePool", (name,), (n, c, 1, 1))


class ReduceSum(_Linear):
    precisions = FP16
    samples = (
        Sample(((2, 20, 7, 5),), {"axes": (2, 3), "keepdims": 1}, precisions=FP16),
        Sample(((1, 24, 5, 6),), {"axes": (1,), "keepdims": 0}, precisions=FP16),
        Sample(((2, 9, 40),), {"axes": (2,), "keepdims": 1}, precisions=FP16),
        Sample(((2, 3, 4, 9, 40),), {"axes": (1,), "keepdims": 0}, ok=False, precisions=FP16),
    )

    @staticmethod
    def reference(node: Node, *inputs: Array) -> Array:
        """x: any shape -> sums over ``axes``, float32."""
        keep = bool(node.attrs.get("keepdims", 1))
        y = inputs[0].astype(np.float32).sum(node.attrs["axes"], keepdims=keep)
        return apply_epilogue(node, np.asarray(y))

    @classmethod
    def weight(cls, count: int) -> float:
        return 1.0

    @classmethod
    def over_pixels(cls, draft: Draft, name: str) -> str:
        n, c, h, w = draft.shape(name)
        mean = draft.add("GlobalAveragePool", (name,), (n, c, 1, 1))
        count = draft.constant(np.array([h * w], np.float32))
        return draft.add("Mul", (mean, count), (n, c, 1, 1))


class ReduceMax(_Reduce):
    samples = (
        Sample(((2, 20, 7, 5),), {"axes": (2, 3), "keepdims": 1}),
        Sample(((1, 16, 37, 21),), {"axes": (2, 3), "keepdims": 0}),
        Sample(((2, 9, 40),), {"axes": (-1,), "keepdims": 1}, ok=False),
    )

    @staticmethod
    def reference(node: Node, *inputs: Array) -> Array:
        """x: any shape -> the largest over ``axes``, float32."""
        keep = bool(node.attrs.get("keepdims", 1))
        return np.asarray(inputs[0].astype(np.float32).max(node.attrs["axes"], keepdims=keep))

    @classmethod
    def over_pixels(cls, draft: Draft, name: str) -> str:
        return global_max(draft, name)

    @classmethod
    def over_axis(cls, draft: Draft, name: str, axis: int) -> str:
        raise refusal(
            draft.node,
            f"reduces axis {axis}, the PPU finds the largest over all pixels, axes 2 and 3",
        )
