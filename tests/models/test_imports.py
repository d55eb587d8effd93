"""Real models: folding and fusion keep their meaning, and leave no more nodes than they must.

A model that cannot be fetched is skipped, unless OPENNPU_REQUIRE_MODELS is set, as CI does.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import pytest
from test_real_models import model_file, page, pixels

from evaluate import by_pieces, evaluate, run_onnx
from examples.mobilenet.export import mobilenet_v2
from opennpu.frontends.onnx import load_model
from opennpu.ir.verify import verify
from opennpu.passes import run_passes

pytestmark = pytest.mark.models


@dataclass(frozen=True)
class Case:
    name: str
    shape: tuple[int, ...]
    nodes: tuple[int, int, int]  # in the file, after folding, after all passes
    ops: dict[str, int]  # of the last, the most frequent
    own_names: bool = True  # do all nodes after folding have the user's names?


CASES = [
    Case(
        "mobilenet-v2",
        (1, 3, 224, 224),
        (152, 152, 65),
        {"Conv": 52, "Add": 10, "GlobalAveragePool": 1, "Flatten": 1, "Gemm": 1},
    ),
    Case("ppocr-cls", (1, 3, 48, 192), (566, 233, 110), {"Conv": 53, "HardSwish": 18}),
    Case("ppocr-det", (1, 3, 320, 320), (672, 330, 152), {"Conv": 76, "HardSwish": 24}),
    Case(
        "ddddocr-det",
        (1, 3, 416, 416),
        (279, 272, 198),
        {"Conv": 83, "Silu": 74, "Concat": 17},
        own_names=False,  # onnxruntime makes a SpaceToDepth of its slices
    ),
]


@pytest.mark.parametrize("case", CASES, ids=[c.name for c in CASES])
def test_folded_fused_and_in_pieces_it_is_the_same_model(case: Case) -> None:
    path = model_file(case.name)
    source = mobilenet_v2() if case.name == "mobilenet-v2" else onnx.load(str(path))
    (x,) = source.graph.input
    dims = x.type.tensor_type.shape.dim
    fix = {
        f"{x.name}:{i}": n
        for i, (n, d) in enumerate(zip(case.shape, dims, strict=True))
        if d.dim_value < 1
    }
    imported = load_model(source, fix_dims=fix)
    graph = run_passes(imported.graph)
    verify(graph, "passes")

    assert (len(source.graph.node), len(imported.graph.nodes), len(graph.nodes)) == case.nodes
    counts = Counter(n.op for n in graph.nodes)
    assert dict(counts.most_common(len(case.ops))) == case.ops
    if case.own_names:
        assert {n.name for n in imported.graph.nodes} <= {n.name for n in source.graph.node}
    sources = {s for n in graph.nodes for s in n.sources}
    assert sources == {n.name for n in imported.model.graph.node}

    feeds: dict[str, Any] = {x.name: pixels(page(), case.shape[3], case.shape[2])}
    want = run_onnx(source, feeds)
    folded = run_onnx(imported.model, feeds)
    pieces = by_pieces(imported, graph, feeds)
    fused = evaluate(imported, graph, feeds)
    for a, b, c, d in zip(want, folded, pieces, fused, strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(c, b)
        np.testing.assert_allclose(d, a, atol=1e-4 * np.abs(a).max())
