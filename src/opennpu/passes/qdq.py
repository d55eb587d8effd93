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

WEIGHTED = ("Conv", "ConvTranspose", "Gemm", "MatMul")


def _params(node: Node, constants: dict[str, Array]) -> tuple[Quant, bool] | None:
    """(quantization in int8 codes, were they unsigned), if the parameters are constant 8-bit."""
    scale = constants.get(node.inputs[1])
    zero = constants.get(node.inputs[2]) if len(node.inputs) > 2 and node.inputs[2] else None
    if scale is None or not _sound(scale) or node.attrs.get("block_size", 0):
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


def _sound(scale: Array) -> bool:
    """Is it what a scale can be?"""
    return scale.dtype == np.float32 and bool((np.isfinite(scale) & (scale > 0)).all())


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
            if out not in graph.outputs and _constant(
                dq, values, constants, consumers.get(out, [])
            ):
                _absorb(nodes, dq, consumers.get(out, []))
            continue
        q = producers.get(dq.inputs[0])
        params = _params(dq, constants)
        if params and params[0].axis is None and (q is None or q.op != "QuantizeLinear"):
            # codes from outside: the host turns them into numbers, packing makes them codes again
            values[out] = replace(values[out], quant=params[0])
            continue
        if q is None or q.op != "QuantizeLinear" or params is None or params[0].axis is not None:
            continue
        if q.inputs[1:] != dq.inputs[1:] and not _same(q, dq, constants):
            continue
        if len(consumers.get(dq.inputs[0], [])) != 1 or dq.inputs[0] in graph.outputs:
            continue
        values[out] = replace(values[out], quant=params[0])
        maker = producers.get(q.inputs[0])
        if maker is None and q.inputs[0] in graph.inputs and _alone(graph, q.inputs[0], consumers):
            _round_input(nodes, q, dq)
            values[q.inputs[0]] = replace(values[q.inputs[0]], quant=params[0])
            continue
        alone = _alone(graph, q.inputs[0], consumers)
        if maker is None or maker.name not in nodes or not alone:
            # a pair on the host rounds the float tensor; packing it to int8 is then exact.
            # So does one behind another pair, which its maker took already
            nodes[q.name] = Node(
                q.name, "QuantizeDequantize", (q.inputs[0],), (out,), {}, (), (q.name, dq.name)
            )
            del nodes[dq.name]
            continue
        current = nodes[maker.name]
        outputs = tuple(out if o == q.inputs[0] else o for o in current.outputs)
        nodes[maker.name] = current.with_(
            outputs=outputs, sources=(*current.sources, q.name, dq.name)
        )
        del nodes[q.name], nodes[dq.name]
    _leaving(graph, values, constants, consumers)
    kept = tuple(nodes[name] for name in order if name in nodes)
    return graph.with_(nodes=_sorted(graph, kept, constants), values=values, constants=constants)


def _leaving(
    graph: Graph,
    values: dict[str, Value],
    constants: dict[str, Array],
    consumers: dict[str, list[Node]],
) -> None:
    """Codes for the outside: what only a QuantizeLinear reads is as good in its codes."""
    for q in graph.nodes:
        if q.op != "QuantizeLinear" or q.inputs[0] in (*constants, *graph.inputs):
            continue
        readers = consumers.get(q.outputs[0], [])
        params = _params(q, constants)
        if (
            params is None
            or params[0].axis is not None
            or not _alone(graph, q.inputs[0], consumers)
        ):
            continue
        if any(r.op == "DequantizeLinear" for r in readers):
            continue
        x = values[q.inputs[0]]
        values[x.name] = replace(x, quant=params[0])


def _alone(graph: Graph, value: str, consumers: dict[str, list[Node]]) -> bool:
    """Has it one reader only?"""
    return len(consumers.get(value, [])) == 1 and value not in graph.outputs


def _round_input(nodes: dict[str, Node], q: Node, dq: Node) -> None:
    """A pair behind an input: its readers read the input, which is packed to these codes.

    On the host they take the pair along.
    """
    x, y = q.inputs[0], dq.outputs[0]
    for name, n in nodes.items():
        if y in n.inputs:
            inputs = tuple(x if i == y else i for i in n.inputs)
            nodes[name] = n.with_(inputs=inputs, sources=(q.name, dq.name, *n.sources))
    del nodes[q.name], nodes[dq.name]


def _same(q: Node, dq: Node, constants: dict[str, Array]) -> bool:
    return len(q.inputs) == len(dq.inputs) and all(
        a in constants and b in constants and np.array_equal(constants[a], constants[b])
        for a, b in zip(q.inputs[1:], dq.inputs[1:], strict=True)
    )


def _constant(
    dq: Node, values: dict[str, Value], constants: dict[str, Array], users: list[Node]
) -> bool:
    """Make the output of a DequantizeLinear of a constant a constant itself.

    Symmetric 8-bit weights stay codes; anything else becomes what the node computes.
    """
    codes, out = constants[dq.inputs[0]], dq.outputs[0]
    scale = constants.get(dq.inputs[1])
    zero: Array | None = np.zeros((), codes.dtype)
    if len(dq.inputs) > 2 and dq.inputs[2]:
        zero = constants.get(dq.inputs[2])
    if codes.dtype not in (np.int8, np.uint8, np.int32) or dq.attrs.get("block_size", 0):
        return False
    if scale is None or not _sound(scale) or zero is None:
        return False
    axis = int(dq.attrs.get("axis", 1)) % max(1, codes.ndim) if scale.size > 1 else None
    if scale.size != (1 if axis is None else codes.shape[axis]) or zero.size not in (1, scale.size):
        return False
    if codes.dtype != np.int32 and all(_is_weight(out, u) for u in users):
        # the NPU has no zero point of weights: codes less theirs may need nine bits (ops.conv)
        along = [-1 if i == axis else 1 for i in range(codes.ndim)]
        rest = codes.astype(np.int16) - zero.astype(np.int16).reshape(
            along if zero.size > 1 else ()
        )
        kind = np.int8 if -128 <= rest.min(initial=0) <= rest.max(initial=0) <= 127 else np.int16
        step = scale.reshape(()) if axis is None else scale
        constants[out] = rest.astype(kind)
        quant = Quant(step, np.zeros(step.shape, np.int32), axis)
        values[out] = Value(out, codes.shape, constants[out].dtype.name, quant)
        return True
    shape = [-1 if i == axis else 1 for i in range(codes.ndim)]
    offset = codes.astype(np.int32) - zero.astype(np.int32).reshape(shape if zero.size > 1 else ())
    with np.errstate(over="ignore"):  # as the node itself would
        real = offset.astype(np.float32) * scale.reshape(shape if axis is not None else ())
    if not np.isfinite(real).all():
        return False
    constants[out] = real.astype(np.float32)
    values[out] = Value(out, codes.shape, "float32")
    return True


def _is_weight(name: str, user: Node) -> bool:
    return user.op in WEIGHTED and list(user.inputs).index(name) == 1


def _absorb(nodes: dict[str, Node], dq: Node, users: list[Node]) -> None:
    """The readers of a constant take its DequantizeLinear along, should they stay on the host."""
    for u in users:
        if u.name in nodes:
            nodes[u.name] = nodes[u.name].with_(sources=(*nodes[u.name].sources, dq.name))
    del nodes[dq.name]


def _sorted(graph: Graph, nodes: tuple[Node, ...], constants: dict[str, Array]) -> tuple[Node, ...]:
    """Topological order again: nodes that took over a pair write later values."""
    known = {*graph.inputs, *constants, ""}
    done: list[Node] = []
    waiting = list(nodes)
    while waiting:
        later = []
        for n in waiting:
            if all(i in known for i in n.inputs):
                done.append(n)
                known.update(n.outputs)
            else:
                later.append(n)
        if len(later) == len(waiting):
            raise AssertionError(f"{later[0].name} waits for a value that nobody writes")
        waiting = later
    return tuple(done)
