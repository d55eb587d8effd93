"""What to compute: values, nodes and the graph that joins them.

Shapes are static and logical (as the model says them, NCHW for images).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
OPAQUE = "<opaque>"
"""dtype of values that are no dense tensor of static shape: sequences, optionals, unknown."""


@dataclass(frozen=True, slots=True)
class Quant:
    """real = (q - zero_point) * scale, q int8.  Per-tensor, or per-channel along ``axis``."""

    scale: Array  # float32, [] or [C]
    zero_point: Array  # int32, [] or [C]
    axis: int | None = None

    def quantize(self, x: Array) -> Array:
        """float array -> int8, rounding ties to even, saturating."""
        shape = [1] * x.ndim
        if self.axis is not None:
            shape[self.axis] = -1
        s, z = self.scale.reshape(shape), self.zero_point.reshape(shape)
        return np.asarray(np.clip(np.rint(x / s) + z, -128, 127).astype(np.int8))


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor of the graph.  ``dtype`` is the model's (NumPy name)."""

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    quant: Quant | None = None  # activations that are int8 on the NPU


@dataclass(frozen=True, slots=True)
class Node:
    """One operation on named values; the name "" is an absent optional input."""

    name: str  # the user's name
    op: str  # an ONNX op type, or a name of ours for a fused pattern
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    epilogue: tuple[Epilogue, ...] = ()  # applied to the result, in order
    sources: tuple[str, ...] = ()  # names of the model's nodes that this one stands for
    domain: str = ""

    def with_(self, **changes: Any) -> Node:
        """A copy with some fields replaced."""
        return replace(self, **changes)


@dataclass(frozen=True, slots=True)
class Epilogue:
    """What happens to a result before it is written.

    kind "relu" | "clip" (low, high) | "add" (``value``: name of the residual operand) | "call"
    (``op``, ``attrs``: an operator of one tensor).
    """

    kind: str
    low: float = 0.0
    high: float = float("inf")
    value: str = ""
    op: str = ""
    attrs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Graph:
    """Nodes in topological order; every non-constant value is written once."""

    name: str
    nodes: tuple[Node, ...]
    values: Mapping[str, Value]
    constants: Mapping[str, Array]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    def producer(self) -> dict[str, Node]:
        """Value name -> the node that writes it."""
        return {o: n for n in self.nodes for o in n.outputs if o}

    def consumers(self) -> dict[str, list[Node]]:
        """Value name -> the nodes that read it, in order (epilogue operands included)."""
        users: dict[str, list[Node]] = {}
        for n in self.nodes:
            for v in node_reads(n):
                users.setdefault(v, []).append(n)
        return users

    def with_(self, **changes: Any) -> Graph:
        """A copy with some fields replaced."""
        return replace(self, **changes)


def node_reads(node: Node) -> Iterator[str]:
    """Names of all values that a node reads, its epilogue's operands included."""
    yield from (i for i in node.inputs if i)
    yield from (e.value for e in node.epilogue if e.value)
