"""Join an activation to the convolution or matrix product before it, where one task can do both.

Runs after quantization: in int8 any function can join, in fp16 few.
"""

from __future__ import annotations

from opennpu.errors import UnsupportedError
from opennpu.ir.graph import Epilogue, Graph, Node
from opennpu.ops._unary import _Unary
from opennpu.ops.base import OPS, Target
from opennpu.passes.partition import Placement, try_place

requires = "Conv nodes with explicit attributes"
ensures = "a function of what only it reads of a Conv or MatMul is that node's epilogue"

WEIGHTED = ("Conv", "MatMul", "Gemm")


def fuse_activations(graph: Graph, target: Target, *, keep_codes: bool = False) -> Graph:
    """Conv → f becomes Conv with a "call" epilogue.

    keep_codes: not where the model itself says how the sum is rounded to int8.
    """
    producers, consumers = graph.producer(), graph.consumers()
    placement = Placement(values=dict(graph.values), constants=dict(graph.constants))
    swap: dict[str, Node] = {}
    gone: set[str] = set()
    for f in graph.nodes:
        op = OPS.get(f.op)
        first = producers.get(f.inputs[0]) if f.inputs else None
        if op is None or not issubclass(op, _Unary) or first is None or not _plain(f):
            continue
        if not _weighted(graph, first) or len(first.outputs) != 1:
            continue
        between = first.outputs[0]
        if len(consumers[between]) != 1 or between in graph.outputs:
            continue
        if keep_codes and graph.values[between].quant is not None:
            continue
        node = first.with_(
            outputs=f.outputs,
            epilogue=(Epilogue("call", op=f.op, attrs=f.attrs),),
            sources=(*first.sources, *f.sources),
        )
        try:
            try_place(node, placement, target)
        except UnsupportedError:
            continue
        swap[first.name] = node
        gone.add(f.name)
    nodes = tuple(swap.get(n.name, n) for n in graph.nodes if n.name not in gone)
    inner = {o for n in graph.nodes if n.name in swap for o in n.outputs}
    values = {k: v for k, v in graph.values.items() if k not in inner}
    return graph.with_(nodes=nodes, values=values)


def _plain(f: Node) -> bool:
    """A function of one tensor and nothing else."""
    return not f.domain and not f.epilogue and len(f.inputs) == 1 and len(f.outputs) == 1


def _weighted(graph: Graph, first: Node) -> bool:
    """A sum with constant weights, and nothing behind it yet."""
    if first.op not in WEIGHTED or first.epilogue or first.domain:
        return False
    weights = graph.constants.get(first.inputs[1])
    if weights is None or first.inputs[0] in graph.constants:
        return False
    return first.op == "Conv" or (weights.ndim == 2 and not any(first.attrs.values()))
