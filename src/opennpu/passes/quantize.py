"""int8: ranges from histograms, codes and scales of weights, types of activations.

The histograms come from `opennpu.frontends.calibration`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from opennpu.ir.graph import Array, Graph, Node, Quant, Value, node_reads
from opennpu.passes import affine

requires = "fused float graph"
ensures = "float activations around int8 operators carry a Quant; their weights are int8 codes"

BINS = 2048
PERCENTILE = 99.99
WEIGHT_AXIS = {"Conv": 0, "Gemm": 1, "MatMul": 1}
SAME_CODES = (
    *("MaxPool", "AveragePool", "GlobalAveragePool"),
    *("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Identity"),
)
ELEMENTWISE = ("Add", "Sub", "Mul", "Div", "Min", "Max")
BY_TABLE = (
    *("Sigmoid", "Tanh", "Erf", "HardSigmoid", "HardSwish", "Silu", "Swish", "Gelu", "Mish"),
    *("Softplus", "Softsign", "Elu", "Selu", "Celu", "LeakyRelu", "PRelu", "Abs", "Neg"),
)
INT8_OPS = (*WEIGHT_AXIS, *SAME_CODES, *ELEMENTWISE, *BY_TABLE, "Relu", "Clip", "Concat")

Range = tuple[float, float]


# -- ranges from histograms ------------------------------------------------------------------


def percentile_range(counts: Array, low: float, high: float) -> Range:
    """The smallest range that leaves out (100 - PERCENTILE) % of the elements on either side."""
    edges = np.linspace(low, high, BINS + 1)
    share = np.cumsum(counts) / max(1, counts.sum())
    cut = (100 - PERCENTILE) / 100
    first = int(np.searchsorted(share, cut, side="right"))
    last = int(np.searchsorted(share, 1 - cut))
    return min(0.0, float(edges[first])), max(0.0, float(edges[min(last + 1, BINS)]))


def _shrunk(low: float, high: float) -> Iterable[Range]:
    """Candidate ranges: both ends drawn in, together and apart."""
    steps = np.linspace(0.3, 1.0, 36)
    for f in steps:
        yield low * f, high * f
    if low < 0:
        for f in steps:
            yield low * f, high
            yield low, high * f


def mse_range(counts: Array, low: float, high: float) -> Range:
    """The range with the least mean squared error of rounding and clipping."""
    edges = np.linspace(low, high, BINS + 1)
    centres = (edges[:-1] + edges[1:]) / 2
    best, least = (low, high), np.inf
    for a, b in _shrunk(low, high):
        scale = (b - a) / 255
        if scale <= 0:
            continue
        zero = np.rint(-128 - a / scale)
        back = (np.clip(np.rint(centres / scale) + zero, -128, 127) - zero) * scale
        error = float((counts * (back - centres) ** 2).sum())
        if error < least:
            best, least = (a, b), error
    return best


def entropy_range(counts: Array, low: float, high: float) -> Range:
    """The range whose 256-level distribution diverges least from the original (KL)."""
    edges = np.linspace(low, high, BINS + 1)
    centres = (edges[:-1] + edges[1:]) / 2
    p = counts / max(1, counts.sum())
    best, least = (low, high), np.inf
    for a, b in _shrunk(low, high):
        scale = (b - a) / 255
        if scale <= 0:
            continue
        level = np.clip(np.rint((centres - a) / scale), 0, 255).astype(int)
        mass = np.bincount(level, p, 256)
        width = np.bincount(level, p > 0, 256)
        q = np.where(p > 0, (mass / np.maximum(width, 1))[level], 0)
        seen = p > 0
        kl = float((p[seen] * np.log(p[seen] / np.maximum(q[seen], 1e-30))).sum())
        outside = float(p[(centres < a) | (centres > b)].sum())
        if kl + outside < least:
            best, least = (a, b), kl + outside
    return best


METHODS: dict[str, Callable[[Array, float, float], Range]] = {
    "minmax": lambda counts, low, high: (low, high),
    "percentile": percentile_range,
    "mse": mse_range,
    "entropy": entropy_range,
}


# -- the graph -------------------------------------------------------------------------------


def activation_quant(low: float, high: float) -> Quant:
    """Asymmetric int8 over a range that holds 0; 0 itself is a code."""
    low, high = min(0.0, low), max(0.0, high)
    if high - low < 1e-12:
        high = low + 1.0
    scale = np.float32((high - low) / 255)
    zero = np.int32(np.clip(np.rint(-128 - low / scale), -128, 127))
    return Quant(np.asarray(scale), np.asarray(zero))


def weight_quant(w: Array, axis: int) -> tuple[Array, Quant]:
    """Symmetric int8 per output channel: (codes, quantization)."""
    other = tuple(i for i in range(w.ndim) if i != axis)
    scale = (np.abs(w).max(other) / 127).astype(np.float32)
    scale = np.where(scale > 0, scale, np.float32(1))  # 0, or too small for float32
    quant = Quant(scale, np.zeros(scale.shape, np.int32), axis)
    return quant.quantize(w), quant


@dataclass(frozen=True)
class Statistics:
    """What calibration saw of each activation."""

    ranges: Mapping[str, Range]
    means: Mapping[str, Array]  # per channel: axis 1 of images, the last of matrices


def quantize(graph: Graph, seen: Statistics) -> Graph:
    """Give int8 types to every operator that has an int8 program."""
    graph = affine.as_convolutions(
        graph, {n.name for n in graph.nodes if set(_activations(n, graph)) <= seen.ranges.keys()}
    )
    values, constants = dict(graph.values), dict(graph.constants)
    groups = _same_codes(graph)
    spans: dict[str, Range] = {}
    for name, (low, high) in seen.ranges.items():
        root = groups.get(name, name)
        a, b = spans.get(root, (0.0, 0.0))
        spans[root] = (min(a, low), max(b, high))
    nodes = []
    for n in graph.nodes:
        activations = _activations(n, graph)
        if not _wants_int8(n, graph, activations, spans, groups):
            nodes.append(n)
            continue
        for v in activations:
            root = groups.get(v, v)
            values[v] = replace(values[v], quant=activation_quant(*spans[root]))
        mean = seen.means.get(n.inputs[0])
        nodes.append(_quantize_weights(n, values, constants, mean))
    return graph.with_(nodes=tuple(nodes), values=values, constants=constants)


def _activations(n: Node, graph: Graph) -> list[str]:
    """What it reads and writes but for constants."""
    return [v for v in (*node_reads(n), *n.outputs) if v and v not in graph.constants]


def _wants_int8(
    n: Node,
    graph: Graph,
    activations: list[str],
    spans: Mapping[str, Any],
    groups: Mapping[str, str],
) -> bool:
    if n.op not in INT8_OPS or n.domain:
        return False
    if n.op in WEIGHT_AXIS:
        weights = graph.constants.get(n.inputs[1])
        if weights is None or not np.isfinite(weights).all():
            return False
        if n.op != "Conv" and weights.ndim != 2:
            return False
    constants = [graph.constants[i] for i in n.inputs if i in graph.constants]
    if n.op in (*ELEMENTWISE, "PRelu") and any(c.size != 1 for c in constants):
        return False
    if n.op in ELEMENTWISE and (len(n.inputs) != 2 or (n.op == "Div" and not constants)):
        return False
    return all(groups.get(v, v) in spans for v in activations)


def _same_codes(graph: Graph) -> dict[str, str]:
    """Value → representative of all that must share its quantization."""
    root: dict[str, str] = {}

    def find(v: str) -> str:
        while root.get(v, v) != v:
            v = root[v]
        return v

    for n in graph.nodes:
        if n.op in SAME_CODES and not n.epilogue:
            a, b = find(n.inputs[0]), find(n.outputs[0])
            root.setdefault(a, a)
            root[b] = a
    return {v: find(v) for v in root}


def _quantize_weights(
    n: Node, values: dict[str, Any], constants: dict[str, Array], mean: Array | None
) -> Node:
    """Weights of ``n`` as int8 constants of their own (others may share the float ones).

    The bias takes up what rounding the weights does to the mean of the output.
    """
    if n.op not in WEIGHT_AXIS or values[n.inputs[1]].quant is not None:
        return n
    name = f"{n.name}/codes"
    codes, quant = weight_quant(constants[n.inputs[1]], WEIGHT_AXIS[n.op])
    constants[name] = codes
    values[name] = replace(
        values[n.inputs[1]], name=name, shape=codes.shape, dtype="int8", quant=quant
    )
    inputs = [n.inputs[0], name, *n.inputs[2:]]
    shift = None if mean is None else rounding_shift(n, constants[n.inputs[1]], codes, quant, mean)
    if shift is not None:
        old = constants.get(inputs[2]) if len(inputs) > 2 and inputs[2] else np.zeros(1)
        row = old is not None and (old.size, old.shape[-1:]) == (shift.size, shift.shape)
        if old is not None and (old.size == 1 or row):
            bias = f"{n.name}/bias of codes"
            constants[bias] = (old.reshape(-1) - shift).astype(np.float32)
            values[bias] = Value(bias, constants[bias].shape)
            inputs[2:3] = [bias]
    return n.with_(inputs=tuple(inputs))


def rounding_shift(n: Node, w: Array, codes: Array, quant: Quant, mean: Array) -> Array | None:
    """[OC]: by how much rounding the weights moves the mean output, given the mean input."""
    axis = WEIGHT_AXIS[n.op]
    scale = quant.scale.reshape([-1 if i == axis else 1 for i in range(w.ndim)])
    error = codes * scale.astype(np.float64) - w
    if n.op != "Conv":
        return mean @ error if mean.size == error.shape[0] else None
    error = error.reshape(*error.shape[:2], -1).sum(-1)  # [OC, IC / group]
    group = int(n.attrs["group"])
    if mean.size != group * error.shape[1]:
        return None
    per = mean.reshape(group, -1).repeat(error.shape[0] // group, 0)  # [OC, IC / group]
    return np.asarray((error * per).sum(1))
