"""Join what one task can do: biases and activations into the node before them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from opennpu.ir.graph import Array, Epilogue, Graph, Node, Quant, Value
from opennpu.ops._conv import MAX_KERNEL
from opennpu.ops.base import MAX_SHIFT
from opennpu.passes.simplify import same_quant

requires = "Conv and pools with explicit attributes"
ensures = "Gemm is x·w + b; constant biases and simple clips are part of the node before them"

TAKES_BIAS = ("MatMul",)
TAKES_CLIP = ("Conv", "Gemm", "MatMul", "Add", "Mul")


def name_sums(graph: Graph) -> Graph:
    """Sum of two tensors is Add."""
    nodes = tuple(
        n.with_(op="Add") if n.op == "Sum" and len(n.inputs) == 2 and not n.domain else n
        for n in graph.nodes
    )
    return graph.with_(nodes=nodes)


def normalise_gemm(graph: Graph) -> Graph:
    """Gemm with constant weights: alpha, beta and transB folded into the constants."""
    values, constants = dict(graph.values), dict(graph.constants)
    nodes = []
    for n in graph.nodes:
        a = n.attrs
        trivial = a.get("alpha", 1.0) == 1.0 and a.get("beta", 1.0) == 1.0
        if n.op != "Gemm" or (trivial and not a.get("transB") and not a.get("transA")):
            nodes.append(n)
            continue
        w = constants.get(n.inputs[1])
        bias = constants.get(n.inputs[2]) if len(n.inputs) > 2 and n.inputs[2] else None
        computed_bias = len(n.inputs) > 2 and n.inputs[2] and bias is None
        quantized = w is not None and values[n.inputs[1]].quant is not None
        scaled_codes = quantized and a.get("alpha", 1.0) <= 0.0
        if w is None or computed_bias or a.get("transA") or scaled_codes:
            nodes.append(n)
            continue
        w = w.T if a.get("transB") else w
        if not quantized:
            with np.errstate(all="ignore"):  # as the node itself would
                w = w * np.asarray(a.get("alpha", 1.0), w.dtype)
        old = values[n.inputs[1]]
        quant = old.quant
        if quant is not None:  # alpha goes into the scales of the codes
            alpha = np.float32(a.get("alpha", 1.0))
            axis = quant.axis
            if axis is not None and a.get("transB"):
                axis = 1 - axis
            quant = Quant(np.asarray(quant.scale * alpha), quant.zero_point, axis)
        inputs = [n.inputs[0], _constant(values, constants, f"{n.name}/weights", w, quant)]
        if bias is not None:
            scaled = bias * np.asarray(a.get("beta", 1.0), bias.dtype)
            inputs.append(_constant(values, constants, f"{n.name}/bias", scaled, None))
        nodes.append(n.with_(inputs=tuple(inputs), attrs={}))
    return graph.with_(nodes=tuple(nodes), values=values, constants=constants)


def _constant(
    values: dict[str, Value], constants: dict[str, Array], name: str, a: Array, quant: Quant | None
) -> str:
    constants[name] = a
    values[name] = Value(name, a.shape, a.dtype.name, quant)
    return name


def _rewrite(graph: Graph, step: Callable[[Graph, Node, Node], Node | None]) -> Graph:
    """Merge neighbours while ``step(graph, first, second)`` returns what stands for both."""
    changed = True
    while changed:
        changed = False
        producers, consumers = graph.producer(), graph.consumers()
        gone: set[int] = set()
        swap: dict[int, Node] = {}
        for second in graph.nodes:
            for name in second.inputs:
                first = producers.get(name)
                if first is None or id(first) in swap or id(first) in gone or id(second) in swap:
                    continue
                if name in graph.outputs or len(consumers.get(name, ())) != 1:
                    continue
                if len(first.outputs) != 1 or second.inputs.count(name) != 1:
                    continue
                merged = step(graph, first, second)
                if merged is not None:
                    swap[id(first)] = merged
                    gone.add(id(second))
                    break
        if swap:
            changed = True
            nodes = tuple(swap.get(id(n), n) for n in graph.nodes if id(n) not in gone)
            graph = graph.with_(nodes=nodes)
    return graph


def fuse_bias(graph: Graph) -> Graph:
    """MatMul → Add(constant row): MatMul with a third input."""

    def step(graph: Graph, first: Node, second: Node) -> Node | None:
        if first.op not in TAKES_BIAS or second.op != "Add" or len(first.inputs) != 2:
            return None
        if first.inputs[1] not in graph.constants or first.epilogue:
            return None
        other = next((i for i in second.inputs if i not in first.outputs), "")
        bias = graph.constants.get(other)
        columns = graph.values[first.outputs[0]].shape[-1:]
        if bias is None or not columns or bias.size != columns[0] or bias.shape[-1:] != columns:
            return None
        return _joined(first, second).with_(inputs=(*first.inputs, other))

    return _rewrite(graph, step)


def fuse_flatten(graph: Graph) -> Graph:
    """Flatten or Reshape of an image → Gemm, MatMul by a matrix: one node that takes the image."""

    def step(graph: Graph, first: Node, second: Node) -> Node | None:
        if first.op not in ("Flatten", "Reshape") or second.op not in ("Gemm", "MatMul"):
            return None
        if first.domain or second.domain or second.attrs or first.epilogue:
            return None
        x, w = graph.values[first.inputs[0]], graph.constants.get(second.inputs[1])
        flat = graph.values[first.outputs[0]].shape
        if w is None or w.ndim != 2 or len(x.shape) != 4 or second.inputs[0] not in first.outputs:
            return None
        if flat != (x.shape[0], w.shape[0]) or not 1 < max(x.shape[2:]) <= MAX_KERNEL:
            return None
        if not same_quant(x.quant, graph.values[first.outputs[0]].quant):
            return None
        merged = _joined(first, second)
        return merged.with_(
            name=second.name,
            op=second.op,
            inputs=(first.inputs[0], *second.inputs[1:]),
            attrs={"image": 1},
            epilogue=second.epilogue,
        )

    return _rewrite(graph, step)


def fuse_groups(graph: Graph) -> Graph:
    """Reshape to [N, groups, …] → InstanceNormalization → Reshape back: GroupNormalization."""
    values, constants = dict(graph.values), dict(graph.constants)
    producers, consumers = graph.producer(), graph.consumers()
    gone: set[int] = set()
    swap: dict[int, Node] = {}
    for n in graph.nodes:
        first = producers.get(n.inputs[0]) if n.op == "InstanceNormalization" else None
        readers = consumers.get(n.outputs[0], ()) if n.outputs else ()
        if first is None or len(readers) != 1 or {*n.outputs, *first.outputs} & {*graph.outputs}:
            continue
        (last,) = readers
        if {first.op, last.op} != {"Reshape"} or len(consumers[first.outputs[0]]) != 1:
            continue
        shape, inner = values[first.inputs[0]].shape, values[first.outputs[0]].shape
        known = [constants.get(i) for i in n.inputs[1:3]]
        if shape != values[last.outputs[0]].shape or len(shape) < 3:
            continue
        if any(a is None for a in known) or values[n.inputs[0]].quant is not None:
            continue
        if len(inner) < 3 or inner[0] != shape[0] or shape[1] % inner[1]:
            continue
        parameters = [
            _constant(values, constants, f"{n.name}/{what}", a.repeat(shape[1] // inner[1]), None)
            for what, a in zip(("scale", "bias"), known, strict=True)
            if a is not None
        ]
        swap[id(n)] = n.with_(
            op="GroupNormalization",
            inputs=(first.inputs[0], *parameters),
            outputs=last.outputs,
            attrs={**n.attrs, "num_groups": inner[1]},
            epilogue=last.epilogue,
            sources=(*first.sources, *n.sources, *last.sources),
        )
        gone |= {id(first), id(last)}
    nodes = tuple(swap.get(id(n), n) for n in graph.nodes if id(n) not in gone)
    return graph.with_(nodes=nodes, values=values, constants=constants)


def fuse_clips(graph: Graph) -> Graph:
    """Conv, Gemm, MatMul, Add, Mul → Relu or Clip from a finite lower bound."""

    def step(graph: Graph, first: Node, second: Node) -> Node | None:
        epilogue = clip_of(graph, second)
        if epilogue is None or first.op not in TAKES_CLIP or first.domain:
            return None
        if first.op in ("Add", "Mul") and epilogue.low != 0.0:
            return None
        return _joined(first, second).with_(epilogue=(*first.epilogue, epilogue, *second.epilogue))

    return _rewrite(graph, step)


def clip_of(graph: Graph, node: Node) -> Epilogue | None:
    """A Relu, or a Clip with constant bounds that BS can do, as an epilogue."""
    if node.op == "Relu":
        return Epilogue("relu")
    if node.op != "Clip":
        return None
    bounds = [node.attrs.get("min"), node.attrs.get("max")]
    for i in (1, 2):
        if i < len(node.inputs) and node.inputs[i]:
            const = graph.constants.get(node.inputs[i])
            if const is None or const.size != 1:
                return None
            bounds[i - 1] = float(const.reshape(()))
    low, high = (
        float(d if b is None else b) for b, d in zip(bounds, (-np.inf, np.inf), strict=True)
    )
    if not -MAX_SHIFT <= low < high:
        return None
    return Epilogue("clip", low, high)


def _joined(first: Node, second: Node) -> Node:
    return first.with_(outputs=second.outputs, sources=(*first.sources, *second.sources))
