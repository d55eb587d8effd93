"""InstanceNormalization and GroupNormalization of images: means by pools, scales by tables.

As in layernorm.py the scale is found in steps, each a coarse 1/sqrt of what the last one left, and
epsilon shrinks and grows with what it is added to.  Means of groups are 1x1 convolutions of the
channels' means.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from opennpu.errors import UnsupportedError
from opennpu.hw.rk3588.common import Precision
from opennpu.ir.graph import Node, Value
from opennpu.ops import _table
from opennpu.ops._unary import _Unary, evaluate
from opennpu.ops.base import Expansion, Op, Sample, Site, apply_epilogue
from opennpu.ops.layernorm import COARSE, EPSILON, FINE, LEAST_EPSILON, SCALE, coarse_steps
from opennpu.ops.reduce import Draft

Array = npt.NDArray[Any]
FP16 = (Precision.FP16,)
BOUND = 4e-3


class InverseRoot(_Unary):
    """1/sqrt(x) between ``low`` and ``high``; a step of the expansions below."""

    precisions = FP16

    @staticmethod
    def reference(node: Node, *inputs: Array) -> Array:
        """x: any shape -> 1/sqrt(x), float32."""
        return evaluate(InverseRoot.function(node), node, inputs[0])

    @classmethod
    def function(cls, node: Node) -> _table.Function:
        return lambda x: 1 / np.sqrt(np.clip(x, node.attrs["low"], node.attrs["high"]))

    @classmethod
    def curve(cls, site: Site) -> _table.Curve:
        a = site.node.attrs
        return _table.Curve(cls.function(site.node), a["low"], a["high"], 1)


def refusal(node: Node, what: str) -> UnsupportedError:
    return UnsupportedError(node.name, f"{node.op} {what}", "It stays in onnxruntime")


def normalised(x: Array, groups: int, epsilon: float) -> Array:
    """[N, C, …] less its groups' means, over their deviations, in float64."""
    wide = x.astype(np.float64).reshape(x.shape[0], groups, -1)
    wide = wide - wide.mean(-1, keepdims=True)
    wide = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + epsilon)
    return np.asarray(wide.reshape(x.shape))


class _GroupNorm(Op):
    precisions = FP16

    @classmethod
    def groups(cls, node: Node, channels: int) -> int:
        raise NotImplementedError

    @classmethod
    def evaluate(cls, node: Node, *inputs: Array) -> Array:
        """Reference of either."""
        x, scale, bias = inputs
        groups, rest = cls.groups(node, x.shape[1]), (1,) * (x.ndim - 2)
        y = normalised(x, groups, float(node.attrs.get("epsilon", EPSILON)))
        y = y * scale.reshape(-1, *rest) + bias.reshape(-1, *rest)
        return apply_epilogue(node, y.astype(np.float32))

    @classmethod
    def expand(
        cls, node: Node, values: Mapping[str, Value], consts: Mapping[str, Array]
    ) -> Expansion | None:
        shape = values[node.inputs[0]].shape
        parameters = [consts.get(i) for i in node.inputs[1:3]]
        scale, bias = (*parameters, None, None)[:2]
        if len(shape) != 4:
            raise refusal(node, f"works on {len(shape)} axes, the NPU pools images: 4")
        if scale is None or bias is None:
            raise refusal(node, f"has {sum(p is None for p in parameters)} computed parameters")
        n, c, _, _ = shape
        groups = cls.groups(node, c)
        if c % groups or scale.size != c or bias.size != c:
            raise refusal(node, f"has {groups} groups and {scale.size} parameters for {c} channels")
        epsilon = float(node.attrs.get("epsilon", EPSILON))
        if not LEAST_EPSILON <= epsilon <= 1:
            raise refusal(node, f"has epsilon {epsilon:g}, the NPU takes {LEAST_EPSILON:g} to 1")
        draft, small = Draft(node, values), (n, c, 1, 1)

        def mean(name: str) -> str:
            """Of each pixel's group, in each of its channels."""
            name = draft.add("GlobalAveragePool", (name,), small)
            if groups == c:
                return name
            size = c // groups
            same = np.kron(np.eye(groups), np.ones((size, size))) / size
            weights = draft.constant(same.reshape(c, c, 1, 1).astype(np.float32))
            attrs = {
                "kernel_shape": (1, 1),
                "strides": (1, 1),
                "pads": (0, 0, 0, 0),
                "dilations": (1, 1),
                "group": 1,
            }
            return draft.add("Conv", (name, weights), small, **attrs)

        x = draft.add("Sub", (node.inputs[0], mean(node.inputs[0])), shape)
        x = draft.add("Mul", (x, draft.constant(np.array([SCALE], np.float32))), shape)
        x = draft.add("Sub", (x, mean(x)), shape)  # fp16 left 2**-11 of the mean
        # epsilon as a number whose square it is, so that it scales with x
        start = np.full((1, c, 1, 1), SCALE * np.sqrt(epsilon), np.float32)
        root = draft.constant(start)
        for low, high in (*[COARSE] * coarse_steps(epsilon), FINE):
            square = mean(draft.add("Mul", (x, x), shape))
            if root in draft.constants:
                more = draft.constant(start**2)
            else:
                more = draft.add("Mul", (root, root), small)
            square = draft.add("Add", (square, more), small)
            factor = draft.add("InverseRoot", (square,), small, low=low, high=high)
            x = draft.add("Mul", (x, factor), shape)
            if (low, high) != FINE:
                root = draft.add("Mul", (factor, root), small)
        gain = draft.constant(scale.reshape(1, c, 1, 1).astype(np.float32))
        shift = draft.constant(bias.reshape(1, c, 1, 1).astype(np.float32))
        x = draft.add("Mul", (x, gain), shape)
        draft.add("Add", (x, shift), shape)
        return draft.done()


def _sample(shape: tuple[int, ...], *, ok: bool = True, **attrs: Any) -> Sample:
    return Sample((shape,), attrs, ((shape[1],),) * 2, ok=ok, precisions=FP16, bound=BOUND)


class InstanceNormalization(_GroupNorm):
    samples = (
        _sample((2, 20, 6, 7)),
        _sample((1, 16, 24, 24), epsilon=1e-3),
        _sample((1, 16, 24), ok=False),
    )

    @classmethod
    def groups(cls, node: Node, channels: int) -> int:
        return channels

    @staticmethod
    def reference(node: Node, *inputs: Array) -> Array:
        """x: [N, C, H, W], scale, bias: [C] -> each channel normalised, float32."""
        return InstanceNormalization.evaluate(node, *inputs)


class GroupNormalization(_GroupNorm):
    """With a scale and a bias for each channel: what exporters write around InstanceNormalization.

    onnxruntime takes an ONNX node of that name to pieces before this sees it.
    """

    samples = (
        _sample((2, 24, 6, 7), num_groups=4),
        _sample((1, 32, 5, 5), num_groups=1),
    )

    @classmethod
    def groups(cls, node: Node, channels: int) -> int:
        return int(node.attrs["num_groups"])

    @staticmethod
    def reference(node: Node, *inputs: Array) -> Array:
        """x: [N, C, H, W], scale, bias: [C] -> each group of channels normalised, float32."""
        return GroupNormalization.evaluate(node, *inputs)
