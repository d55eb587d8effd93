"""y = x * scale + shift by constants, per tensor or per channel: made part of a neighbour.

BatchNormalization, and Mul, Add, Sub and Div by a constant, are all of this kind.  In order of
preference they go into the weights and bias of the convolution or matrix product before them,
into those of the ones after them, or, chained, into one depthwise convolution of 1x1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass

import numpy as np

from opennpu.ir.graph import Array, Graph, Node, Quant, Value

requires = "Conv with explicit attributes; Gemm without any where its weights are constant"
ensures = "no BatchNormalization, and no Mul or Add by a constant, that a neighbour can absorb"

WEIGHTED = ("Conv", "ConvTranspose", "Gemm", "MatMul")
ELEMENTWISE = ("Add", "Sub", "Mul", "Div")
FLOATS = ("float32", "float16")
FP16_MAX = float(np.finfo(np.float16).max)
MOST_CHANNELS = 1 << 16  # that become weights: the rest stays as it is
MAX_FORWARD = 16.0
"""Scales folded forward stay within this factor: fp16 weights have no bits to spare below 1e-4."""


@dataclass(frozen=True, slots=True)
class Affine:
    """x * scale + shift along ``axis``; both are [C], or [] without an axis.  float64."""

    node: Node
    x: str
    scale: Array
    shift: Array
    axis: int | None

    def along(self, channels: int) -> tuple[Array, Array]:
        """(scale, shift), both [channels]."""
        return np.broadcast_to(self.scale, channels), np.broadcast_to(self.shift, channels)


def affine_of(graph: Graph, node: Node) -> Affine | None:
    """What ``node`` does to its one variable input, if it is that simple."""
    if node.domain or len([o for o in node.outputs if o]) != 1:
        return None
    if graph.values[node.outputs[0]].dtype not in FLOATS:
        return None
    if node.op == "BatchNormalization":
        return _batch_normalization(graph, node)
    if node.op in ELEMENTWISE and len(node.inputs) == 2 and not node.attrs:
        return _elementwise(graph, node)
    return None


def _batch_normalization(graph: Graph, node: Node) -> Affine | None:
    parameters = [graph.constants.get(i) for i in node.inputs[1:5]]
    training = node.attrs.get("training_mode", 0) or not node.attrs.get("spatial", 1)
    if training or len(graph.values[node.inputs[0]].shape) < 2:
        return None
    wide = [p.astype(np.float64) for p in parameters if p is not None]
    if len(wide) != 4:
        return None
    gamma, beta, mean, variance = wide
    scale = gamma / np.sqrt(variance + node.attrs.get("epsilon", 1e-5))
    return _finite(Affine(node, node.inputs[0], scale, beta - mean * scale, 1))


def _elementwise(graph: Graph, node: Node) -> Affine | None:
    a, b = node.inputs
    if (a in graph.constants) == (b in graph.constants):
        return None
    first = a in graph.constants
    name, const = (b, graph.constants[a]) if first else (a, graph.constants[b])
    shape = graph.values[name].shape
    if graph.values[node.outputs[0]].shape != shape or const.ndim > len(shape):
        return None
    full = (1,) * (len(shape) - const.ndim) + const.shape
    long = [i for i, n in enumerate(full) if n != 1]
    if len(long) > 1:
        return None
    c = const.astype(np.float64).reshape(-1 if long else ())
    one, zero = np.ones_like(c), np.zeros_like(c)
    axis = long[0] if long else None
    if node.op == "Add":
        made = Affine(node, name, one, c, axis)
    elif node.op == "Mul":
        made = Affine(node, name, c, zero, axis)
    elif node.op == "Sub":
        made = Affine(node, name, -one, c, axis) if first else Affine(node, name, one, -c, axis)
    elif first or not c.all():
        return None  # a constant divided by a tensor; a tensor by 0
    else:
        made = Affine(node, name, 1 / c, zero, axis)
    return _finite(made)


def _finite(a: Affine) -> Affine | None:
    return a if np.isfinite(a.scale).all() and np.isfinite(a.shift).all() else None


def fold_affines(graph: Graph) -> Graph:
    """Each affine node into the node before it, the nodes after it, or its chain."""
    steps = (_into_producer, _into_consumers, _into_convolution)
    with np.errstate(all="ignore"):  # what is not finite is not folded
        while (changed := next(filter(None, (_sweep(graph, s) for s in steps)), None)) is not None:
            graph = changed
    return graph


class _Draft:
    """A graph under change."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.nodes = {n.name: n for n in graph.nodes}
        self.values, self.constants = dict(graph.values), dict(graph.constants)
        self.producers, self.consumers = graph.producer(), graph.consumers()
        self.touched: set[str] = set()  # nodes that this sweep has changed, by name

    def sole_reader(self, value: str) -> Node | None:
        """The only node that reads it, if there is one and nobody outside does."""
        readers = self.consumers.get(value, [])
        return readers[0] if len(readers) == 1 and value not in self.graph.outputs else None

    def exact(self, value: str) -> bool:
        """Is it never rounded to int8?"""
        return self.values[value].quant is None

    def constant(self, name: str, a: Array, quant: Quant | None = None) -> str:
        """A new constant, under ``name`` or the next free one."""
        free, k = name, 1
        while free in self.values:
            free, k = f"{name}.{k}", k + 1
        self.constants[free] = a
        self.values[free] = Value(free, a.shape, a.dtype.name, quant)
        return free

    def put(self, node: Node, instead_of: Node, gone: Node | None = None) -> None:
        """Set ``node`` at the place of a node of the same name; ``gone`` is part of it now."""
        self.nodes[instead_of.name] = node
        self.touched.add(instead_of.name)
        if gone is not None:
            self.nodes.pop(gone.name, None)
            self.touched.add(gone.name)


def _sweep(graph: Graph, step: Callable[[_Draft, Affine], None]) -> Graph | None:
    """The graph after one attempt at every affine node; None if nothing changed."""
    draft = _Draft(graph)
    for node in graph.nodes:
        affine = affine_of(graph, node)
        if affine is not None and node.name not in draft.touched and not node.epilogue:
            step(draft, affine)
    if not draft.touched:
        return None
    nodes = tuple(draft.nodes.values())
    return graph.with_(nodes=nodes, values=draft.values, constants=draft.constants)


# -- into the node before --------------------------------------------------------------------


def _into_producer(draft: _Draft, a: Affine) -> None:
    p = draft.producers.get(a.x)
    if p is None or p.name in draft.touched or p.epilogue or not _weighted(draft, p):
        return
    if draft.sole_reader(a.x) is None or not draft.exact(a.x):
        return
    shape = draft.values[a.x].shape
    channel = 1 if p.op in ("Conv", "ConvTranspose") else len(shape) - 1
    if a.axis not in (None, channel):
        return
    scale, shift = a.along(shape[channel])
    weights = _scaled_outputs(draft, p, scale)
    if weights is None:
        return
    inputs = [p.inputs[0], weights]
    old = _bias(draft, p)
    if old is not None or shift.any():
        bias = (0 if old is None else old) * scale + shift
        kind = draft.values[a.node.outputs[0]].dtype
        inputs.append(draft.constant(f"{p.name}/bias", bias.astype(kind)))
    merged = p.with_(
        inputs=tuple(inputs), outputs=a.node.outputs, sources=(*p.sources, *a.node.sources)
    )
    draft.put(merged, p, a.node)


def _weighted(draft: _Draft, n: Node) -> bool:
    """Has it constant weights, and a constant bias or none?"""
    if n.op not in WEIGHTED or n.domain or len(n.inputs) < 2 or n.inputs[1] not in draft.constants:
        return False
    if n.op in ("Gemm", "MatMul") and (n.attrs or draft.constants[n.inputs[1]].ndim != 2):
        return False
    weights = draft.values[n.inputs[1]]
    if weights.dtype not in FLOATS and weights.quant is None:
        return False
    return len(n.inputs) < 3 or not n.inputs[2] or n.inputs[2] in draft.constants


def _bias(draft: _Draft, n: Node) -> Array | None:
    if len(n.inputs) < 3 or not n.inputs[2]:
        return None
    return draft.constants[n.inputs[2]].astype(np.float64)


def _over_outputs(n: Node, v: Array, shape: tuple[int, ...]) -> Array:
    """[OC] -> what broadcasts against weights of this shape."""
    if n.op == "Conv":
        return v.reshape(-1, *(1 for _ in shape[1:]))
    if n.op == "ConvTranspose":  # [IC, OC / group, ...]
        group = int(n.attrs.get("group", 1))
        per_row = v.reshape(group, shape[1]).repeat(shape[0] // group, 0)
        return per_row.reshape(*shape[:2], *(1 for _ in shape[2:]))
    return v


def _over_inputs(n: Node, v: Array, shape: tuple[int, ...]) -> Array:
    """[IC] -> what broadcasts against weights of this shape."""
    if n.op == "Conv":  # [OC, IC / group, ...]
        group = shape[0] * v.size // (shape[0] * shape[1])
        per_row = v.reshape(group, shape[1]).repeat(shape[0] // group, 0)
        return per_row.reshape(*shape[:2], *(1 for _ in shape[2:]))
    return v.reshape(-1, *(1 for _ in shape[1:]))


def _scaled_outputs(draft: _Draft, n: Node, scale: Array) -> str | None:
    """The weights of ``n`` times a factor per output; None if the result is not sound."""
    w, value = draft.constants[n.inputs[1]], draft.values[n.inputs[1]]
    name = f"{n.name}/weights"
    if value.quant is None:
        scaled = w.astype(np.float64) * _over_outputs(n, scale, w.shape)
        return draft.constant(name, scaled.astype(w.dtype)) if _fits(scaled) else None
    axis = 0 if n.op == "Conv" else 1
    unusual = value.quant.zero_point.any() or value.quant.axis not in (None, axis)
    if unusual or n.op == "ConvTranspose" or not scale.all() or w.min() == -128:
        return None
    codes = w * _over_outputs(n, np.sign(scale).astype(np.int8), w.shape)
    step = (value.quant.scale.astype(np.float64) * np.abs(scale)).astype(np.float32)
    return draft.constant(name, codes, Quant(step, np.zeros(step.shape, np.int32), axis))


def _fits(weights: Array) -> bool:
    return bool(np.isfinite(weights).all() and np.abs(weights).max(initial=0) <= FP16_MAX)


# -- into the nodes after --------------------------------------------------------------------


def _into_consumers(draft: _Draft, a: Affine) -> None:
    y = a.node.outputs[0]
    readers = draft.consumers.get(y, [])
    if not readers or y in draft.graph.outputs or not draft.exact(y):
        return
    sizes = np.abs(a.scale[a.scale != 0])
    if sizes.size and not 1 / MAX_FORWARD <= sizes.min() <= sizes.max() <= MAX_FORWARD:
        return
    merged = [None if r.name in draft.touched else _absorbed(draft, a, r) for r in readers]
    if None in merged:
        return
    for reader, node in zip(readers, merged, strict=True):
        assert node is not None
        draft.put(node, reader, a.node)


def _absorbed(draft: _Draft, a: Affine, n: Node) -> Node | None:
    """``n`` reading the input of ``a``, or None."""
    y = a.node.outputs[0]
    if not _weighted(draft, n) or n.inputs[0] != y or y in (*n.inputs[1:], *_operands(n)):
        return None
    w = draft.constants[n.inputs[1]]
    shape = draft.values[y].shape
    channel = 1 if n.op in ("Conv", "ConvTranspose") else len(shape) - 1
    if draft.values[n.inputs[1]].quant is not None or a.axis not in (None, channel):
        return None
    padded = n.op == "ConvTranspose" or (n.op == "Conv" and any(n.attrs.get("pads", (1,))))
    if a.shift.any() and padded:
        return None  # the padding is not shifted
    scale, shift = (_over_inputs(n, v, w.shape) for v in a.along(shape[channel]))
    wide = w.astype(np.float64)
    if not _fits(wide * scale):
        return None
    inputs = [
        a.x,
        draft.constant(f"{n.name}/weights", (wide * scale).astype(w.dtype)),
        *n.inputs[2:],
    ]
    if a.shift.any():
        moved = wide * shift
        moved = moved.sum(tuple(range(1, w.ndim)) if n.op == "Conv" else 0)
        old = _bias(draft, n)
        bias = moved if old is None else old + moved
        inputs[2:] = [draft.constant(f"{n.name}/bias", bias.astype(w.dtype))]
    return n.with_(inputs=tuple(inputs), sources=(*a.node.sources, *n.sources))


def _operands(n: Node) -> list[str]:
    return [e.value for e in n.epilogue if e.value]


# -- a chain into one convolution ------------------------------------------------------------


def _into_convolution(draft: _Draft, a: Affine) -> None:
    """Two or more in a row, a BatchNormalization, or anything in int8: one task instead."""
    chain = _chain(draft, a)
    single = len(chain) == 1 and a.node.op != "BatchNormalization"
    if not single or not draft.exact(a.x):
        _convolve(draft, chain)


def as_convolutions(graph: Graph, names: Collection[str]) -> Graph:
    """Affine nodes with these names as depthwise convolutions of 1x1, which int8 has.

    Their epilogues stay.
    """
    draft = _Draft(graph)
    with np.errstate(all="ignore"):
        for node in graph.nodes:
            affine = affine_of(graph, node) if node.name in names else None
            if affine is not None:
                _convolve(draft, [affine])
    nodes = tuple(draft.nodes.values())
    return graph.with_(nodes=nodes, values=draft.values, constants=draft.constants)


def _chain(draft: _Draft, a: Affine) -> list[Affine]:
    """``a``, and what alone reads it, as long as that is affine along the same axis."""
    chain, axis = [a], a.axis
    while not chain[-1].node.epilogue:
        y = chain[-1].node.outputs[0]
        reader = draft.sole_reader(y)
        more = affine_of(draft.graph, reader) if reader and draft.exact(y) else None
        if more is None or more.node.name in draft.touched:
            break
        if None not in (axis, more.axis) and axis != more.axis:
            break
        axis = more.axis if axis is None else axis
        chain.append(more)
    return chain


def _convolve(draft: _Draft, chain: list[Affine]) -> None:
    """Set one convolution at the place of a chain, if its shape is an image's or a row's."""
    x = draft.values[chain[0].x]
    scale, shift, axis = chain[0].scale, chain[0].shift, chain[0].axis
    for link in chain[1:]:
        scale, shift = scale * link.scale, shift * link.scale + link.shift
        axis = link.axis if axis is None else axis
    if axis not in (None, 1) or len(x.shape) not in (3, 4) or math.prod(x.shape) == 0:
        return
    channels, rank = x.shape[1], len(x.shape) - 2
    if channels > MOST_CHANNELS:
        return
    scale, shift = np.broadcast_to(scale, channels), np.broadcast_to(shift, channels)
    if not _fits(scale) or not np.isfinite(shift).all():
        return
    last = chain[-1].node
    w, quant = scale.reshape(-1, 1, *(1 for _ in range(rank))), None
    if x.quant is not None:  # one weight a channel: int8 loses nothing
        step = (np.abs(scale) / 127).astype(np.float32)
        sign = np.sign(w) * (step > 0).reshape(w.shape)  # a step of 0 is too small for float32
        step = np.where(step > 0, step, np.float32(1))
        quant = Quant(step, np.zeros(step.shape, np.int32), 0)
        codes = sign.astype(np.int8) * np.int8(127)
        weights = draft.constant(f"{last.name}/weights", codes, quant)
    else:
        weights = draft.constant(f"{last.name}/weights", w.astype(x.dtype))
    inputs = [x.name, weights]
    if shift.any():
        inputs.append(draft.constant(f"{last.name}/bias", shift.astype(x.dtype)))
    attrs = {
        "kernel_shape": (1,) * rank,
        "strides": (1,) * rank,
        "pads": (0,) * (2 * rank),
        "dilations": (1,) * rank,
        "group": channels,
    }
    sources = tuple(s for link in chain for s in link.node.sources)
    for link in chain[:-1]:
        draft.nodes.pop(link.node.name)
        draft.touched.add(link.node.name)
    conv = Node(last.name, "Conv", tuple(inputs), last.outputs, attrs, last.epilogue, sources)
    draft.put(conv, last)
