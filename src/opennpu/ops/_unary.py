"""What functions of one tensor share: their meaning, their int8 table, their fp16 curve."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from opennpu.hw.rk3588.common import Precision
from opennpu.ir.graph import Epilogue, Node, Value
from opennpu.ops import _table
from opennpu.ops.base import Expansion, Op, Site, apply_epilogue, clip_range, image_view
from opennpu.program import Task, View

Array = npt.NDArray[Any]
Function = _table.Function


def erf(x: Array) -> Array:
    """The error function."""
    return np.asarray(np.vectorize(math.erf, otypes=[np.float64])(x))


def sigmoid(x: Array) -> Array:
    """1 / (1 + e**-x), without overflow."""
    return np.exp(-np.logaddexp(0, -x))


class _Unary(Op):
    """An operator of one tensor; subclasses give `function`, and `curve` where fp16 takes one task.

    int8 is one table look-up whatever the function is.
    """

    @classmethod
    def function(cls, node: Node) -> Function:
        """What the node computes, in float64."""
        raise NotImplementedError

    @classmethod
    def curve(cls, site: Site) -> _table.Curve:
        """The same as fp16 tables hold it.  Raises UnsupportedError."""
        raise NotImplementedError

    @classmethod
    def own_function(cls, node: Node) -> Function:
        """`function`, and the node's epilogue."""
        f, (low, high) = cls.function(node), clip_range(node)
        return lambda x: np.clip(f(x), low, high)

    @classmethod
    def check(cls, site: Site) -> None:
        if any(e.kind == "add" for e in site.node.epilogue):
            raise site.refuse("has 1 tensor to add, a table looks up 1 tensor")
        if any(i is not None and i.const is None for i in site.inputs[1:]):
            raise site.refuse(f"has {len(site.inputs)} computed inputs, the NPU takes 1")
        if site.x.shape != site.output.shape:
            raise site.refuse(f"turns {list(site.x.shape)} into {list(site.output.shape)}")
        if site.precision is Precision.FP16:
            cls.check_fp16(site)

    @classmethod
    def check_fp16(cls, site: Site) -> None:
        """Refuse what has no fp16 program."""
        _table.fp16_table(cls.curve(site))

    @staticmethod
    def views(site: Site) -> tuple[tuple[View | None, ...], View]:
        if site.x.const is not None:
            raise site.refuse("has 0 computed inputs, the NPU takes 1")
        view = site.x.view or image_view(site.x.shape)
        return (view, *(None for _ in site.inputs[1:])), view

    @classmethod
    def input_rooms(cls, site: Site, room: int) -> tuple[int, ...]:
        return (room, *(0 for _ in site.inputs[1:]))

    @classmethod
    def tasks(cls, site: Site) -> Iterator[Task]:
        if site.precision is Precision.INT8:
            f = cls.own_function(site.node)
            return _table.tasks(
                site, _table.int8_table(site.x, site.output, f), site.x, site.output
            )
        return cls.fp16_tasks(site)

    @classmethod
    def fp16_tasks(cls, site: Site) -> Iterator[Task]:
        """By default one look-up."""
        return _table.tasks(site, _table.fp16_table(cls.curve(site)), site.x, site.output)


def evaluate(f: Function, node: Node, x: Array) -> Array:
    """Reference of a function of one tensor."""
    with np.errstate(all="ignore"):
        return np.asarray(apply_epilogue(node, f(x.astype(np.float64))), np.float32)


def quantized(node: Node, values: Mapping[str, Value]) -> bool:
    """Is the node's tensor int8?"""
    return values[node.inputs[0]].quant is not None or values[node.outputs[0]].quant is not None


class Build:
    """Nodes of an expansion, one after the other; their names derive from the node's result."""

    def __init__(self, node: Node, values: Mapping[str, Value]) -> None:
        self.node, self.shape = node, values[node.outputs[0]].shape
        self.nodes: list[Node] = []
        self.values: dict[str, Value] = {}
        self.constants: dict[str, Array] = {}

    def constant(self, number: float) -> str:
        """A constant of one element."""
        name = f"{self.node.outputs[0]}/c{len(self.constants)}"
        self.constants[name] = np.full(1, number, np.float32)
        return name

    def add(self, op: str, *inputs: str, epilogue: tuple[Epilogue, ...] = (), **attrs: Any) -> str:
        """A node; returns the name of its result."""
        name = f"{self.node.outputs[0]}/{len(self.nodes)}"
        self.values[name] = Value(name, self.shape)
        self.nodes.append(Node(self.node.name, op, inputs, (name,), attrs, epilogue))
        return name

    def done(self) -> Expansion:
        """The last node writes what the original wrote, with its epilogue."""
        last = self.nodes.pop()
        del self.values[last.outputs[0]]
        epilogue = (*last.epilogue, *self.node.epilogue)
        self.nodes.append(last.with_(outputs=self.node.outputs, epilogue=epilogue))
        return Expansion(tuple(self.nodes), self.values, self.constants)
