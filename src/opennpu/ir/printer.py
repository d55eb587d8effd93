"""A graph as text, one node a line."""

from __future__ import annotations

from opennpu.ir.graph import Epilogue, Graph, Node, Value


def show(graph: Graph) -> str:
    """Readable, complete but for the numbers of constants."""
    lines = [f"graph {graph.name}({', '.join(map(_value, _of(graph, graph.inputs)))})"]
    lines += [f"  {_node(graph, n)}" for n in graph.nodes]
    return "\n".join([*lines, f"  return {', '.join(graph.outputs)}"])


def _of(graph: Graph, names: tuple[str, ...]) -> list[Value]:
    return [graph.values[n] for n in names]


def _value(v: Value) -> str:
    quant = ""
    if v.quant is not None and v.quant.axis is None:
        quant = f" int8({float(v.quant.scale):.6g}, {int(v.quant.zero_point)})"
    return f"{v.name}: {v.dtype}{list(v.shape)}{quant}"


def _epilogue(e: Epilogue) -> str:
    if e.kind == "add":
        return f" + {e.value}"
    if e.kind == "call":
        return f" {e.op}" + "".join(f" {k}={v}" for k, v in sorted(e.attrs.items()))
    return " relu" if e.kind == "relu" else f" clip({e.low:g}, {e.high:g})"


def _node(graph: Graph, n: Node) -> str:
    outs = ", ".join(_value(graph.values[o]) for o in n.outputs if o)
    attrs = "".join(f" {k}={v}" for k, v in sorted(n.attrs.items()))
    tail = "".join(map(_epilogue, n.epilogue))
    return f"{outs} = {n.op}({', '.join(n.inputs)}){tail}{attrs}  # {n.name}"
