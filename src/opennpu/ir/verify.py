"""What every graph obeys, whoever made it."""

from __future__ import annotations

from opennpu.ir.graph import Graph, node_reads


def verify(graph: Graph, after: str) -> None:
    """Raise AssertionError, naming the step that made it, if the graph is not well formed."""
    known = {*graph.inputs, *graph.constants}
    for v in known:
        if v not in graph.values:
            raise AssertionError(f"after {after}: {v} has no shape")
    for v, a in graph.constants.items():
        said = graph.values[v].shape
        if said != a.shape:
            raise AssertionError(
                f"after {after}: {v} is {list(a.shape)}, its value says {list(said)}"
            )
    names: set[str] = set()
    for node in graph.nodes:
        if node.name in names:
            raise AssertionError(f"after {after}: two nodes are called {node.name}")
        names.add(node.name)
        for v in node_reads(node):
            if v not in known:
                raise AssertionError(f"after {after}: {node.name} reads {v} before it is written")
        for o in node.outputs:
            if o and o in known:
                raise AssertionError(f"after {after}: {node.name} writes {o} again")
            if o and o not in graph.values:
                raise AssertionError(f"after {after}: {o} has no shape")
            known.add(o)
    for o in graph.outputs:
        if o not in known:
            raise AssertionError(f"after {after}: nobody writes the output {o}")
