"""A new operator in about fifteen lines, by each route, end to end."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import opennpu
from opennpu.ir.graph import Node, Value
from opennpu.ops import OPS, Expansion, Op, Site
from opennpu.ops import _flying as flying
from opennpu.ops.base import Array, View, image_view
from opennpu.program import Task


class Twice(Op):
    """Composite: y = (x + x) + x, said in terms of Add."""

    names = ("Thrice",)

    @staticmethod
    def expand(node: Node, values: Mapping[str, Value], consts: Mapping[str, Array]) -> Expansion:
        x, y = node.inputs[0], node.outputs[0]
        double = f"{y}/double"
        return Expansion(
            (Node(node.name, "Add", (x, x), (double,)), Node(node.name, "Add", (double, x), (y,))),
            {double: Value(double, values[x].shape)},
        )


class Square(Op):
    """Native: y = x * x, in register commands."""

    @staticmethod
    def check(site: Site) -> None:
        if site.x.shape != site.output.shape:
            raise site.refuse(f"maps {list(site.x.shape)} to {list(site.output.shape)}")

    @staticmethod
    def views(site: Site) -> tuple[tuple[View | None, ...], View]:
        view = site.x.view or image_view(site.x.shape)
        return (view,), view

    @classmethod
    def tasks(cls, site: Site) -> Iterator[Task]:
        stages = flying.binary(site, "Mul", site.x, site.x, site.output, -np.inf, np.inf)
        pieces = flying.flat_pieces(site.x, site.x, site.output)
        return flying.tasks(site, stages, pieces, site.output)


def model(op: str) -> onnx.ModelProto:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 16, 5, 5])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 16, 5, 5])
    node = helper.make_node(op, ["x"], ["y"], "mine", domain="opennpu")
    graph = helper.make_graph([node], "g", [x], [y])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("opennpu", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


@pytest.mark.parametrize(
    ("op", "meaning"), [("Thrice", lambda x: 3 * x), ("Square", lambda x: x * x)]
)
def test_fifteen_lines_make_an_operator(op: str, meaning: Any) -> None:
    assert op in OPS
    program = opennpu.compile(model(op))
    assert [n["where"][:3] for n in program.meta["nodes"]] == ["NPU"]
    x = np.random.default_rng(0).normal(size=(1, 16, 5, 5)).astype(np.float16).astype(np.float32)
    with opennpu.InferenceSession(program, device="emulator") as session:
        (y,) = session.run(None, {"x": x})
    np.testing.assert_allclose(y, meaning(x), rtol=2e-3, atol=1e-3)


def test_what_an_operator_does_not_know_stays_out() -> None:
    with pytest.raises(opennpu.errors.NPUError) as e:
        opennpu.compile(model("Nonsense"))
    assert "Nonsense" in str(e.value) and "mine" in str(e.value)


PLUGIN = """
import numpy as np
from opennpu.ops import Expansion, Op


class Quadruple(Op):
    @staticmethod
    def expand(node, values, consts):
        (x,), (y,) = node.inputs, node.outputs
        return Expansion((node.with_(op="Mul", domain="", inputs=(x, f"{y}/four")),), {},
                         {f"{y}/four": np.array([4.0], np.float32)})
"""


def test_another_distribution_adds_an_operator(tmp_path: Path) -> None:
    (tmp_path / "plugin.py").write_text(PLUGIN)
    info = tmp_path / "plugin-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plugin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[opennpu.ops]\nplugin = plugin\n")
    onnx.save(model("Quadruple"), str(tmp_path / "m.onnx"))
    code = "import opennpu; print(opennpu.compile('m.onnx').meta['nodes'][0]['where'])"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == "NPU after rewrite", done.stderr
