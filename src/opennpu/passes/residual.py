"""Join Add to the convolution before it, where one task can do both.

Runs after quantization: whether a residual fits depends on the tiles of the convolution.
"""

from __future__ import annotations

from collections.abc import Mapping

from opennpu.errors import UnsupportedError
from opennpu.ir.graph import Epilogue, Graph, Node, node_reads
from opennpu.ops.base import Target
from opennpu.passes.partition import Placement, try_place

requires = "Conv nodes with explicit attributes"
ensures = "an Add whose operand only it reads, from a Conv of one tile, is that Conv's epilogue"


def fuse_residuals(graph: Graph, target: Target) -> Graph:
    """Conv → Add(x, residual) becomes Conv with an "add" epilogue."""
    while True:
        fused = _fuse_one(graph, target)
        if fused is None:
            return graph
        graph = fused


def _fuse_one(graph: Graph, target: Target) -> Graph | None:
    producers, consumers = graph.producer(), graph.consumers()
    position = {n.name: i for i, n in enumerate(graph.nodes)}
    for add in graph.nodes:
        if add.op != "Add" or len(add.inputs) != 2:
            continue
        for this, other in (add.inputs, add.inputs[::-1]):
            conv = producers.get(this)
            if not _candidate(graph, conv, this, other, consumers):
                continue
            assert conv is not None
            maker = producers.get(other)
            if maker is not None and position[maker.name] > position[conv.name]:
                continue  # the residual would not be there yet
            node = conv.with_(
                outputs=add.outputs,
                epilogue=(Epilogue("add", value=other), *add.epilogue),
                sources=(*conv.sources, *add.sources),
            )
            placement = Placement(values=dict(graph.values), constants=dict(graph.constants))
            try:
                try_place(node, placement, target)
            except UnsupportedError:
                continue
            nodes = [node if n is conv else n for n in graph.nodes if n is not add]
            values = {k: v for k, v in graph.values.items() if k != this}
            return graph.with_(nodes=tuple(nodes), values=values)
    return None


def _candidate(
    graph: Graph, conv: Node | None, this: str, other: str, consumers: Mapping[str, list[Node]]
) -> bool:
    return (
        conv is not None
        and conv.op == "Conv"
        and not conv.epilogue
        and this not in graph.outputs
        and this != other
        and len(consumers[this]) == 1
        and other not in graph.constants
        and other not in node_reads(conv)
        and graph.values[this].shape == graph.values[other].shape
    )
