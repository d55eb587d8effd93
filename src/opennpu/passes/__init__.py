"""Graph → graph.  `PASSES` is the order; each pass says what it requires and ensures."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from opennpu.ir.graph import Graph
from opennpu.ir.verify import verify
from opennpu.passes import affine, fuse, patterns, qdq, simplify

PASSES: Sequence[Callable[[Graph], Graph]] = (
    simplify.drop_unused,
    qdq.import_pairs,
    simplify.drop_noops,
    simplify.fold_pads,
    fuse.name_sums,
    patterns.name_functions,
    fuse.fuse_groups,
    fuse.normalise_gemm,
    fuse.fuse_bias,
    affine.fold_affines,
    fuse.fuse_clips,
    fuse.fuse_flatten,
    simplify.drop_unused,
)


def run_passes(graph: Graph) -> Graph:
    """All passes in order, the graph verified after each."""
    for step in PASSES:
        graph = step(graph)
        verify(graph, step.__name__)
    return graph
