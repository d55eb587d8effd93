"""Softmax and normalisations: their range, and where they run."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
import pytest
from onnx.helper import make_node as node

import opennpu
from nets import model
from opennpu import InferenceSession
from opennpu.passes import timed
from opennpu.program import Program
from opennpu.tools.check import check_model

Array = npt.NDArray[Any]


def both(m: onnx.ModelProto, x: Array, program: Program | None = None) -> tuple[Array, Array]:
    """(emulator, onnxruntime), everything on the NPU."""
    (want,) = ort.InferenceSession(m.SerializeToString()).run(None, {"x": x})
    with InferenceSession(program or opennpu.compile(m, placement="npu"), "emulator") as session:
        (got,) = session.run(None, {"x": x})
    return got, want


@pytest.mark.parametrize("epsilon", [1e-5, 1e-6])
def test_a_layer_normalization_takes_rows_of_any_size(epsilon: float) -> None:
    """Deviations from 1e-4 to 2000, a row of zeros, one far from zero, one with an outlier."""
    rng = np.random.default_rng(0)
    t, c = 24, 384
    x = rng.normal(size=(1, t, c)) * np.logspace(-4, 3.3, t)[None, :, None]
    x[0, 3], x[0, 10, 5] = 0, 3000
    x[0, 11] += 50
    x = x.astype(np.float16).astype(np.float32)
    constants = {n: rng.normal(size=c).astype(np.float32) for n in "gb"}
    norm = node("LayerNormalization", ["x", "g", "b"], ["y"], "norm", axis=-1, epsilon=epsilon)
    got, want = both(model([norm], {"x": x.shape}, {"y": x.shape}, constants), x)
    assert np.abs(got - want).max() < 2e-3 * np.abs(want).max()


@pytest.mark.parametrize("shift", [-5000.0, 0.0, 5000.0])
def test_a_softmax_takes_scores_of_any_size(shift: float) -> None:
    rng = np.random.default_rng(1)
    x = (rng.normal(size=(1, 9, 77)) * 20 + shift).astype(np.float16).astype(np.float32)
    softmax = node("Softmax", ["x"], ["y"], "softmax", axis=-1)
    got, want = both(model([softmax], {"x": x.shape}, {"y": x.shape}), x)
    assert np.abs(got - want).max() < 5e-3


@pytest.mark.parametrize(
    ("shape", "axis", "where"),
    [
        ((2, 6, 3, 4), {}, "CPU"),
        ((2, 6, 3, 4), {"axis": 1}, "CPU"),
        ((2, 6, 1, 1), {}, "NPU"),
        ((2, 3, 40), {"axis": 2}, "NPU"),
    ],
)
def test_an_old_softmax_is_over_all_axes_behind_its_own(
    shape: tuple[int, ...], axis: dict[str, int], where: str
) -> None:
    m = model([node("Softmax", ["x"], ["y"], "s", **axis)], {"x": shape}, {"y": shape}, opset=11)
    program = opennpu.compile(m, placement="npu")
    assert program.meta["nodes"][0]["where"] == where
    x = np.random.default_rng(2).normal(size=shape).astype(np.float32)
    got, want = both(m, x, program)
    assert np.abs(got - want).max() < 5e-3


def test_masked_scores_weigh_nothing_however_many() -> None:
    rng = np.random.default_rng(6)
    x = rng.normal(size=(4, 1001)).astype(np.float16).astype(np.float32)
    x[0, 3:], x[1, 2:], x[2, :1000], x[3, 5::2] = -np.inf, -30000, -65504, -np.inf
    softmax = node("Softmax", ["x"], ["y"], "softmax", axis=-1)
    got, want = both(model([softmax], {"x": x.shape}, {"y": x.shape}), x)
    assert np.abs(got - want).max() < 2e-3
    assert not got[want == 0].any()


def between(rows: int, channels: int) -> onnx.ModelProto:
    """A Softmax between two products."""
    rng = np.random.default_rng(3)
    w = (rng.normal(size=(channels, channels)) / 8).astype(np.float32)
    nodes = [
        node("MatMul", ["x", "w"], ["a"], "first"),
        node("Softmax", ["a"], ["b"], "softmax", axis=-1),
        node("MatMul", ["b", "w"], ["y"], "last"),
    ]
    return model(nodes, {"x": (rows, channels)}, {"y": (rows, channels)}, {"w": w})


def test_the_faster_side_gets_a_softmax_and_both_times_are_told() -> None:
    seen = set()
    for rows in (16, 3000):
        (entry,) = [
            n for n in opennpu.compile(between(rows, 64)).meta["nodes"] if n["op"] == "Softmax"
        ]
        times = entry["predicted"]
        assert (entry["where"] == "NPU") == (times["npu_s"] <= times["host_s"])
        (told,) = [r for r in check_model(between(rows, 64)) if r.op == "Softmax"]
        assert (told.npu_s, told.host_s) == (times["npu_s"], times["host_s"])
        if entry["where"] == "CPU":
            assert told.reason == timed.Times(times["npu_s"], times["host_s"]).sentence
        seen.add(entry["where"])
    assert seen == {"NPU", "CPU"}


def test_a_forced_softmax_runs_on_the_npu() -> None:
    program = opennpu.compile(between(3000, 64), placement="npu")
    assert [n["where"] for n in program.meta["nodes"]] == ["NPU"] * 3


def test_a_last_softmax_stays_on_the_host() -> None:
    m = between(16, 64)
    del m.graph.node[2]
    m.graph.output[0].name = "b"
    assert [n["where"] for n in opennpu.compile(m).meta["nodes"]] == ["NPU", "CPU"]


def test_attention_with_heads_in_its_channels() -> None:
    b, t, heads, size = 2, 19, 3, 16
    c = heads * size
    rng = np.random.default_rng(4)
    weights = {f"w{n}": (rng.normal(size=(c, c)) / 7).astype(np.float32) for n in "qkvo"}
    nodes = [node("MatMul", ["x", f"w{n}"], [n], f"{n} projection") for n in "qkv"]
    attrs = {"q_num_heads": heads, "kv_num_heads": heads, "is_causal": 1}
    nodes += [
        node("Attention", ["q", "k", "v"], ["a"], "attention", **attrs),
        node("MatMul", ["a", "wo"], ["y"], "output"),
    ]
    m = model(nodes, {"x": (b, t, c)}, {"y": (b, t, c)}, weights, opset=23)
    program = opennpu.compile(m)
    assert len(program.segments) == 1
    got, want = both(m, rng.normal(size=(b, t, c)).astype(np.float32), program)
    assert np.abs(got - want).max() < 5e-3 * np.abs(want).max()


@pytest.mark.parametrize("groups", [0, 4])
def test_images_of_any_size_are_normalised_where_it_is_faster(groups: int) -> None:
    """Deviations from 1e-3 to 1000, some channels far from zero; groups as exporters write them."""
    rng = np.random.default_rng(5)
    n, c = 8, 16
    x = rng.normal(size=(n, c, 12, 12)) * np.logspace(-3, 3, n)[:, None, None, None]
    x[5, 4:8] += 100
    x = x.astype(np.float16).astype(np.float32)
    constants = {k: rng.normal(size=groups or c).astype(np.float32) for k in "gb"}
    nodes = [node("InstanceNormalization", ["x", "g", "b"], ["y"], "norm")]
    if groups:
        shapes = {"split": np.array([0, groups, -1]), "join": np.array(x.shape)}
        constants = {**constants, **shapes}
        nodes = [
            node("Reshape", ["x", "split"], ["a"], "groups"),
            node("InstanceNormalization", ["a", "g", "b"], ["c"], "norm"),
            node("Reshape", ["c", "join"], ["y"], "channels"),
        ]
    m = model(nodes, {"x": x.shape}, {"y": x.shape}, constants)
    (entry,) = opennpu.compile(m, placement="npu").meta["nodes"]
    assert (entry["name"], entry["where"]) == ("norm", "NPU after rewrite")
    got, want = both(m, x)
    assert np.abs(got - want).max() < 4e-3 * np.abs(want).max()
    (entry,) = opennpu.compile(m).meta["nodes"]
    assert entry["where"] == "CPU" and entry["predicted"]["host_s"] < entry["predicted"]["npu_s"]
    got, want = both(m, x, opennpu.compile(m))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
