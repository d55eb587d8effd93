"""Functions that exporters write out in several nodes become one node again.

A part of the graph that computes a function of one tensor, element by element and with constants
of one element only, is recognised by its numbers, in whatever order the exporter wrote it: its
values at many points are those of SiLU, GELU (either form), HardSwish, HardSigmoid, Mish, Softplus,
Softsign or LeakyRelu.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from opennpu.ir.graph import Array, Graph, Node, node_reads
from opennpu.ops.base import OPS

requires = "constants folded"
ensures = "no activation that one operator computes is left in pieces"

PIECES = (
    *("Add", "Sub", "Mul", "Div", "Min", "Max", "Pow", "Neg", "Abs", "Exp", "Log", "Relu", "Clip"),
    *("Tanh", "Erf", "Sigmoid", "HardSigmoid", "Softplus", "Reciprocal"),
)
FLOATS = ("float32", "float16")
MOST_NODES = 10
POINTS = np.concatenate([np.linspace(-12, 12, 481), [-40.0, -20.0, 20.0, 40.0]])
TOLERANCE = 2e-5  # of the value, from 1 up; constants of models have 5 digits or more
ONE = int(np.flatnonzero(np.isclose(POINTS, 1.0))[0])
MINUS_ONE = int(np.flatnonzero(np.isclose(POINTS, -1.0))[0])


def name_functions(graph: Graph) -> Graph:
    """Each such part becomes one node, named after its last."""
    changed = True
    while changed:
        changed = False
        producers, consumers = graph.producer(), graph.consumers()
        gone: set[str] = set()
        swap: dict[str, Node] = {}
        for last in reversed(graph.nodes):
            if last.op not in PIECES or last.name in gone or last.domain:
                continue
            if graph.values[last.outputs[0]].dtype not in FLOATS:
                continue
            found = _recognise(graph, last, producers, consumers)
            if found is None or any(n.name in gone or n.name in swap for n in found[1]):
                continue
            node, parts = found
            gone |= {n.name for n in parts}
            swap[last.name] = node
        if swap:
            changed = True
            nodes = [
                swap.get(n.name, n) for n in graph.nodes if n.name not in gone or n.name in swap
            ]
            inner = {o for n in graph.nodes if n.name in gone for o in n.outputs}
            kept = {o for n in nodes for o in n.outputs}
            values = {k: v for k, v in graph.values.items() if k not in inner - kept}
            graph = graph.with_(nodes=tuple(nodes), values=values)
    return graph


def _recognise(
    graph: Graph, last: Node, producers: Mapping[str, Node], consumers: Mapping[str, list[Node]]
) -> tuple[Node, list[Node]] | None:
    """(the node that stands for all, all), for the nearest tensor that all depends on."""
    for x, parts in _cones(graph, last, producers, consumers):
        y = _evaluate(graph, x, parts)
        if y is None:
            continue
        named = _name(y)
        if named is None:
            continue
        op, attrs = named
        sources = tuple(s for n in parts for s in n.sources)
        return Node(last.name, op, (x,), last.outputs, attrs, (), sources), parts
    return None


def _cones(
    graph: Graph, last: Node, producers: Mapping[str, Node], consumers: Mapping[str, list[Node]]
) -> Iterator[tuple[str, list[Node]]]:
    """(tensor, the nodes between it and ``last`` in order): all that depend on one tensor only.

    Grown backwards, always by the latest node: the tensor that is left alone, again and again,
    is the one that everything passes through.
    """
    order = {n.name: i for i, n in enumerate(graph.nodes)}
    parts = {last.name: last}
    shape = graph.values[last.outputs[0]].shape
    while len(parts) < MOST_NODES:
        names = {v for n in parts.values() for v in node_reads(n)}
        inside = {o for n in parts.values() for o in n.outputs}
        constants = [v for v in names if v in graph.constants]
        if any(graph.constants[c].size != 1 for c in constants):
            return
        leaves = names - inside - set(constants)
        if len(leaves) == 1 and len(parts) > 1:
            (x,) = leaves
            if graph.values[x].shape == shape and _closed(graph, parts, last, consumers):
                yield x, sorted(parts.values(), key=lambda n: order[n.name])
        makers = [producers[v] for v in leaves if v in producers]
        makers = [n for n in makers if n.op in PIECES and not n.domain and not n.epilogue]
        if not makers:
            return
        latest = max(makers, key=lambda n: order[n.name])
        if graph.values[latest.outputs[0]].quant is not None:
            return
        parts[latest.name] = latest


def _closed(
    graph: Graph, parts: Mapping[str, Node], last: Node, consumers: Mapping[str, list[Node]]
) -> bool:
    """Does nobody outside read what lies inside?"""
    for n in parts.values():
        if n is last:
            continue
        for o in n.outputs:
            if o in graph.outputs or any(c.name not in parts for c in consumers.get(o, [])):
                return False
    return True


def _evaluate(graph: Graph, x: str, parts: list[Node]) -> Array | None:
    """Values of the last node at POINTS."""
    known: dict[str, Array] = {x: POINTS.astype(np.float32)}
    for n in parts:
        if "" in n.inputs:
            return None
        inputs = [
            graph.constants[i].reshape(-1) if i in graph.constants else known[i] for i in n.inputs
        ]
        with np.errstate(all="ignore"):
            y = OPS[n.op].reference(n, *inputs)
        if y.shape != POINTS.shape:
            return None
        known[n.outputs[0]] = y
    return known[parts[-1].outputs[0]]


def _same(y: Array, op: str, attrs: Mapping[str, object]) -> bool:
    node = Node("", op, ("x",), ("y",), dict(attrs))
    want = OPS[op].reference(node, POINTS.astype(np.float32))
    return bool((np.abs(y - want) <= TOLERANCE * np.maximum(1, np.abs(want))).all())


def _name(y: Array) -> tuple[str, dict[str, object]] | None:
    """(operator, attributes) whose values these are."""
    if not np.isfinite(y).all():
        return None
    fixed: tuple[tuple[str, dict[str, object]], ...] = (
        ("Silu", {}),
        ("Gelu", {}),
        ("Gelu", {"approximate": "tanh"}),
        ("HardSwish", {}),
        ("HardSigmoid", {"alpha": 1 / 6, "beta": 0.5}),
        ("Mish", {}),
        ("Softplus", {}),
        ("Softsign", {}),
    )
    for op, attrs in fixed:
        if _same(y, op, attrs):
            return op, attrs
    guesses: list[tuple[str, float]] = []
    gate, slope = float(y[ONE]), -float(y[MINUS_ONE])
    if 0.5 < gate < 1:
        guesses.append(("Silu", float(np.log(gate / (1 - gate)))))
    if abs(slope) > TOLERANCE and abs(slope - 1) > TOLERANCE:
        guesses.append(("LeakyRelu", slope))
    for op, alpha in guesses:
        rounded: dict[str, object] = {"alpha": float(np.round(alpha, 4))}
        if _same(y, op, rounded):
            return op, rounded
    return None
