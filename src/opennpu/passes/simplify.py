"""Nodes that do nothing, and padding that the node after it can do by itself."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from opennpu.hw.rk3588 import chip
from opennpu.ir.graph import OPAQUE, Graph, Node, Quant, node_reads

requires = "explicit windows of convolutions and pools"
ensures = "no node only renames a tensor; a constant Pad that Conv or a pool can do is its pads"

RENAMES = ("Identity", "Cast", "Reshape", "Flatten", "Squeeze", "Unsqueeze")
POOLS = ("MaxPool", "AveragePool")


def same_quant(a: Quant | None, b: Quant | None) -> bool:
    """Do both stand for the same codes?"""
    if a is None or b is None:
        return a is b
    equal = np.array_equal(a.scale, b.scale) and np.array_equal(a.zero_point, b.zero_point)
    return equal and a.axis == b.axis


def drop_noops(graph: Graph) -> Graph:
    """Identity, Dropout, and Cast, Reshape, Transpose, Pad that change nothing, go.

    Their readers take over their sources: on the host they are computed still.
    """
    gone: dict[str, Node] = {}  # by what they write
    nodes = []
    consumers = graph.consumers()
    for n in graph.nodes:
        for v in dict.fromkeys(node_reads(n)):
            if v in gone:
                n = _reading(n, v, gone[v].inputs[0], gone[v].sources)
        unread = not any(consumers.get(o) or o in graph.outputs for o in n.outputs[1:])
        if unread and n.outputs[0] not in graph.outputs and _does_nothing(graph, n):
            gone[n.outputs[0]] = n
        else:
            nodes.append(n)
    return graph.with_(nodes=tuple(nodes))


def _reading(n: Node, old: str, new: str, sources: tuple[str, ...]) -> Node:
    """``n`` with another input, and the nodes that stood between."""
    return n.with_(
        inputs=tuple(new if i == old else i for i in n.inputs),
        epilogue=tuple(replace(e, value=new) if e.value == old else e for e in n.epilogue),
        sources=(*sources, *n.sources),
    )


def _does_nothing(graph: Graph, n: Node) -> bool:
    if n.domain or n.epilogue or not n.inputs or n.inputs[0] in graph.constants:
        return False
    x, y = graph.values[n.inputs[0]], graph.values[n.outputs[0]]
    if x.dtype == OPAQUE or (x.shape, x.dtype) != (y.shape, y.dtype):
        return False
    if not same_quant(x.quant, y.quant):
        return False
    if any(i and i not in graph.constants for i in n.inputs[1:]):
        return False  # a computed shape: a reader on the host would need it
    if n.op == "Dropout":
        if len(n.inputs) < 3 or not n.inputs[2]:
            return True
        training = graph.constants.get(n.inputs[2])
        return training is not None and not training.any()
    if n.op == "Transpose":
        perm = n.attrs.get("perm", tuple(range(len(x.shape)))[::-1])
        return tuple(perm) == tuple(range(len(x.shape)))
    if n.op == "Pad":
        return not any(padding(graph, n) or (1,))
    return n.op in RENAMES


def drop_unused(graph: Graph) -> Graph:
    """Nodes whose results nobody reads go, constants that no node reads any more, their values."""
    wanted = set(graph.outputs)
    kept = []
    for n in reversed(graph.nodes):
        if wanted.intersection(n.outputs):
            kept.append(n)
            wanted.update(node_reads(n))
    nodes = tuple(reversed(kept))
    used = {v for n in nodes for v in (*node_reads(n), *n.outputs)}
    used |= {*graph.inputs, *graph.outputs}
    return graph.with_(
        nodes=nodes,
        values={k: v for k, v in graph.values.items() if k in used},
        constants={k: a for k, a in graph.constants.items() if k in used},
    )


# -- padding ---------------------------------------------------------------------------------


def padding(graph: Graph, n: Node) -> tuple[int, ...] | None:
    """Elements that a Pad node adds: before every axis, then after; None if not constant."""
    rank = len(graph.values[n.inputs[0]].shape)
    if "pads" in n.attrs:  # opset < 11
        return tuple(int(p) for p in n.attrs["pads"])
    given = graph.constants.get(n.inputs[1]) if len(n.inputs) > 1 else None
    axes = np.arange(rank)
    if len(n.inputs) > 3 and n.inputs[3]:
        named = graph.constants.get(n.inputs[3])
        if named is None:
            return None
        axes = named.reshape(-1) % max(1, rank)
    if given is None or given.size != 2 * axes.size:
        return None
    full = np.zeros((2, rank), np.int64)
    full[:, axes] = given.reshape(2, -1)
    return tuple(int(p) for p in full.reshape(-1))


def _filler(graph: Graph, n: Node) -> float | None:
    """What a Pad node fills in, if it is a constant."""
    if n.attrs.get("mode", "constant") != "constant":
        return None
    if len(n.inputs) < 3 or not n.inputs[2]:
        return float(n.attrs.get("value", 0.0))
    value = graph.constants.get(n.inputs[2])
    return None if value is None or value.size != 1 else float(value.item())


def fold_pads(graph: Graph) -> Graph:
    """Pad by constants → Conv or pool, all readers alike: their own pads grow."""
    producers, consumers = graph.producer(), graph.consumers()
    nodes = {n.name: n for n in graph.nodes}
    for pad in graph.nodes:
        if pad.op != "Pad" or pad.domain or pad.outputs[0] in graph.outputs:
            continue
        x, y = graph.values[pad.inputs[0]], graph.values[pad.outputs[0]]
        pads, filler, rank = padding(graph, pad), _filler(graph, pad), len(x.shape)
        if pads is None or filler is None or rank < 3 or not same_quant(x.quant, y.quant):
            continue
        outer = (*pads[:2], *pads[rank : rank + 2])
        if any(outer) or min(pads) < 0:
            continue
        spatial = (*pads[2:rank], *pads[rank + 2 :])
        positive = filler == 0 and _not_negative(graph, producers.get(x.name))
        readers = [nodes[r.name] for r in consumers.get(y.name, [])]
        merged = [_padded(r, pad, spatial, filler, positive) for r in readers]
        if not merged or None in merged:
            continue
        nodes.update({m.name: m for m in merged if m is not None})
        del nodes[pad.name]
    return graph.with_(nodes=tuple(nodes.values()))


def _padded(
    n: Node, pad: Node, spatial: tuple[int, ...], filler: float, positive: bool
) -> Node | None:
    """``n`` doing the padding by itself; None where that is something else."""
    y, own = pad.outputs[0], n.attrs.get("pads")
    if n.op not in ("Conv", *POOLS) or n.domain or own is None or len(own) != len(spatial):
        return None
    if min(own) < 0:
        return None
    if list(node_reads(n)).count(y) != 1 or n.inputs[0] != y or n.attrs.get("ceil_mode", 0):
        return None
    attrs = dict(n.attrs)
    if n.op == "MaxPool":
        lowest = filler <= np.finfo(np.float32).min
        if not (lowest or positive) or len([o for o in n.outputs if o]) != 1:
            return None
    elif filler != 0:
        return None
    elif n.op == "AveragePool":
        if any(own) and not attrs.get("count_include_pad", 0):
            return None
        attrs["count_include_pad"] = 1
    attrs["pads"] = tuple(a + b for a, b in zip(own, spatial, strict=True))
    kernel, dilations = n.attrs["kernel_shape"], n.attrs["dilations"]
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    if any(p >= s for p, s in zip(attrs["pads"], (*spans, *spans), strict=True)):
        return None
    most = chip.MAX_CONV_PAD_PX if n.op == "Conv" else chip.MAX_POOL_PAD_PX
    half = len(spatial) // 2
    limited = attrs["pads"][:half] if n.op == "Conv" else attrs["pads"]  # CNA: top and left only
    if max(limited) > most:  # padded by hand it fits, padded by itself it would not
        return None
    return _reading(n, y, pad.inputs[0], pad.sources).with_(attrs=attrs)


def _not_negative(graph: Graph, producer: Node | None) -> bool:
    if producer is None or producer.domain:
        return False
    if producer.epilogue:
        last = producer.epilogue[-1]
        return last.kind == "relu" or (last.kind == "clip" and last.low >= 0)
    if producer.op == "Clip":
        low = graph.constants.get(producer.inputs[1]) if len(producer.inputs) > 1 else None
        return bool(producer.attrs.get("min", -1.0 if low is None else low.min()) >= 0)
    return producer.op in ("Relu", "Sigmoid", "HardSigmoid")
