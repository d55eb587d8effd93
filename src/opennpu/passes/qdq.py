"""QuantizeLinear → DequantizeLinear pairs become a property of the value between them.

A weight behind DequantizeLinear becomes int8 codes with their scales, a bias behind one a float
constant.  uint8 codes are moved by 128 into int8.  Pairs that the NPU has no type for stay
nodes, and so does a pair whose float tensor others read too.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from opennpu.ir.graph import Array, Graph, Node, Quant, Value

requires = "constants folded, one DequantizeLinear per quantized tensor"
ensures = "no pair is left around an operator that the NPU could run in int8"

WEIGHTED = ("Conv", "Gemm", "MatMul")


def _params(node: Node, constants: dict[str, Array]) -> tuple[Quant, bool] | None:
    """(quantization in int8 codes, were they unsigned), if the parameters are constant 8-bit."""
    scale = constants.get(node.inputs[1])
    zero = constants.get(node.inputs[2]) if len(node.inputs) > 2 and node.inputs[2] else None
    if scale is None or scale.dtype != np.float32 or node.attrs.get("block_size", 0):
        return None
    if zero is None:
        if len(node.inputs) > 2 and node.inputs[2]:
            return None
        kind = np.dtype(np.uint8) if node.op == "QuantizeLinear" else None
        if kind is None:
            return None
        zero = np.zeros(scale.shape, np.uint8)
    if zero.dtype not in (np.uint8, np.int8):
        return None
    unsigned = zero.dtype == np.uint8
    codes = zero.astype(np.int32) - (128 if unsigned else 0)
    axis = int(node.attrs.get("axis", 1)) if scale.size > 1 else None
    if axis is None:
        scale, codes = scale.reshape(()), codes.reshape(())
    return Quant(scale, codes, axis), unsigned


def import_pairs(graph: Graph) -> Graph:
    """All pairs of the graph."""
    if not any(n.op == "DequantizeLinear" for n in graph.nodes):
        return graph
    values, constants = dict(graph.values), dict(graph.constants)
    producers, consumers = graph.producer(), graph.consumers()
    nodes = {n.name: n for n in graph.nodes}
    order = [n.name for n in graph.nodes]
    for dq in graph.nodes:
        if dq.op != "DequantizeLinear":
            continue
        out = dq.outputs[0]
        if dq.inputs[0] in constants:
            if _constant(dq, values, constants, consumers.get(out, [])):
                _absorb(nodes, dq, consumers.get(out, []))
            continue
        q = producers.get(dq.inputs[0])
        params = _params(dq, constants)
        if q is None or q.op != "QuantizeLinear" or params is None or params[0].axis is not None:
            continue
        if q.inputs[1:] != dq.inputs[1:] and not _same(q, dq, constants):
            continue
        if len(consumers.get(dq.inputs[0], [])) != 1 or dq.inputs[0] in graph.outputs:
            continue
        values[out] = replace(values[out], quant=params[0])
        maker = producers.get(q.inputs[0])
        alone = len(consumers.get(q.inputs[0], [])) == 1 and q.inputs[0] not in graph.outputs
        if maker is None or not alone or len(maker.outputs) != 1:
            # a pair on the host rounds the float tensor; packing it to int8 is then exact
            nodes[q.name] = Node(
                q.name, "QuantizeDequantize", (q.inputs[0],), (out,), {}, (), (q.name, dq.name)
            )
            del nodes[dq.name]
            continue
        current = nodes[maker.name]
        nodes[maker.name] = current.with_(
            outputs=(out,), sources=(*current.sources, q.name, dq.name)
        )
        del nodes[q.name], nodes[dq.name]
    kept = tuple(nodes[name] for name in order if name in nodes)
    return graph.with_(nodes=_sorted(graph, kept, constants), values=values, constants=constants)


def _same(q: Node, dq: Node, constants: dict[str, Array]) -> bool:
    return len(q.inputs) == len(dq.inputs) and all(
        a in constants and b in constants and np.array_equal(constants[a], constants[b])
        for a, b in zip(q.inputs[1:], dq.inputs[1:], strict=True)
    )


def _constant(
    dq: Node, values: dict[str, Value], constants: dict[str, Array], users: list[Node]
) -> bool:
    """Make the output of a DequantizeLinear of a constant a constant itself."""
    codes, out = constants[dq.inputs[0]], dq.outputs[0]
    scale = constants.get(dq.inputs[1])
    if scale is None or dq.attrs.get("block_size", 0):
        return False
    if codes.dtype in (np.int8, np.uint8) and all(
        u.op in WEIGHTED and out in u.inputs[1:2] for u in users
    ):
        params = _params(dq, constants)
        if params is None and len(dq.inputs) < 3:  # no zero point: symmetric
            axis = int(dq.attrs.get("axis", 1)) if scale.size > 1 else None
            params = Quant(scale, np.zeros(scale.shape, np.int32), axis), codes.dtype == np.uint8
        if params is None or np.any(params[0].zero_point):
            return False
        moved = codes.astype(np.int16) - (128 if params[1] else 0)
        constants[out] = moved.astype(np.int8)
        values[out] = Value(out, codes.shape, "int8", params[0])
        return True
    if codes.dtype == np.int32:
        axis = int(dq.attrs.get("axis", 0))
        shape = [1] * codes.ndim
        if scale.size > 1:
            shape[axis] = -1
        constants[out] = (codes * scale.reshape(shape if scale.size > 1 else ())).astype(np.float32)
        values[out] = Value(out, codes.shape, "float32")
        return True
    return False


def _absorb(nodes: dict[str, Node], dq: Node, users: list[Node]) -> None:
    """The readers of a constant take its DequantizeLinear along, should they stay on the host."""
    for u in users:
        if u.name in nodes:
            nodes[u.name] = nodes[u.name].with_(sources=(*nodes[u.name].sources, dq.name))
    del nodes[dq.name]


def _sorted(graph: Graph, nodes: tuple[Node, ...], constants: dict[str, Array]) -> tuple[Node, ...]:
    """Topological order again: nodes that took over a pair write later values."""
    known = {*graph.inputs, *constants, ""}
    rest, done = list(nodes), []
    while rest:
        ready = [n for n in rest if all(i in known for i in n.inputs)]
        if not ready:
            raise AssertionError(f"{rest[0].name} waits for a value that nobody writes")
        first = ready[0]
        rest.remove(first)
        done.append(first)
        known.update(first.outputs)
    return tuple(done)
