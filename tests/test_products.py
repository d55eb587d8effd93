"""Products beyond one constant matrix, and sums beyond one task, in whole models."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx.helper import make_node as node

import opennpu
from nets import model
from opcase import Case
from opennpu import InferenceSession
from opennpu.hw.rk3588.common import Precision
from opennpu.ops import Sample, Target
from opennpu.ops.matmul import MatMul
from opennpu.ops.pool import AveragePool, GlobalAveragePool
from opennpu.passes.partition import NpuUnit, place
from opennpu.program import Program, ValueInfo

Array = npt.NDArray[Any]
SIZES = st.sampled_from([1, 2, 7, 8, 15, 16, 17, 31, 32, 33, 40, 64, 65, 100, 130])
BOUND = 2e-3
ROCKET = Target("rocket", ppu=False)


def floats(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float16).astype(np.float32)


def error(m: onnx.ModelProto, program: Program, x: Array) -> float:
    """Largest difference to onnxruntime, relative to its largest result."""
    (want,) = ort.InferenceSession(m.SerializeToString()).run(None, {"x": x})
    with InferenceSession(program, "emulator") as session:
        (got,) = session.run(None, {"x": x})
    return float(np.abs(got - want).max() / np.abs(want).max())


@settings(max_examples=25, deadline=None)
@given(
    m=SIZES,
    k=SIZES,
    n=SIZES,
    batch=st.lists(st.integers(1, 3), max_size=2),
    form=st.sampled_from(["computed", "shared", "transposed", "constant", "constant left"]),
)
def test_a_product_has_any_size(m: int, k: int, n: int, batch: list[int], form: str) -> None:
    left, right = (*batch, m, k), (*batch, k, n)
    sample = {
        "computed": Sample((left, right)),
        "shared": Sample((left, (k, n))),
        "transposed": Sample(((m, k), (n, k)), {"transB": 1}, op="Gemm"),
        "constant": Sample((left,), consts=(right,)),
        "constant left": Sample((left, right)),
    }[form]
    case = Case(MatMul, sample, Precision.FP16)
    if form == "constant left":
        case.graph = case.graph.with_(constants={"x0": case.feeds.pop("x0")}, inputs=("x1",))
    assert not case.problem("emulator")


def attention(b: int, t: int, heads: int, size: int) -> onnx.ModelProto:
    """Projections, heads side by side in the channels, both products; Relu for Softmax."""
    c = heads * size
    weights = {f"w{n}": floats(c, c, seed=i) / np.float32(c**0.5) for i, n in enumerate("qkvo")}
    shapes = {"split": np.array([b, t, heads, size]), "join": np.array([b, t, c])}
    nodes = []
    for n, perm in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])):
        nodes += [
            node("MatMul", ["x", f"w{n}"], [f"{n}0"], f"{n} projection"),
            node("Reshape", [f"{n}0", "split"], [f"{n}1"], f"{n} split"),
            node("Transpose", [f"{n}1"], [f"{n}2"], f"{n} turn", perm=perm),
        ]
    nodes += [
        node("MatMul", ["q2", "k2"], ["s"], "scores"),
        node("Relu", ["s"], ["p"], "relu"),
        node("MatMul", ["p", "v2"], ["o"], "sum"),
        node("Transpose", ["o"], ["o1"], "turn", perm=[0, 2, 1, 3]),
        node("Reshape", ["o1", "join"], ["o2"], "join"),
        node("MatMul", ["o2", "wo"], ["y"], "output"),
    ]
    return model(nodes, {"x": (b, t, c)}, {"y": (b, t, c)}, {**weights, **shapes})


@pytest.mark.parametrize(
    ("b", "t", "heads", "size"), [(1, 20, 2, 32), (2, 17, 3, 16), (1, 33, 1, 48)]
)
def test_heads_never_leave_the_npu(b: int, t: int, heads: int, size: int) -> None:
    m = attention(b, t, heads, size)
    program = opennpu.compile(m)
    assert len(program.segments) == 1
    assert error(m, program, floats(b, t, heads * size)) < BOUND


def test_odd_heads_are_correct_too() -> None:
    """20 channels a head: heads do not begin with an atom, so the host moves them."""
    m = attention(1, 9, 3, 20)
    assert error(m, opennpu.compile(m), floats(1, 9, 60)) < BOUND


def test_a_product_that_needs_too_many_tasks_stays_on_the_host() -> None:
    case = Case(MatMul, Sample(((1500, 4, 8), (1500, 8, 4))), Precision.FP16)
    (unit,) = place(case.graph, Target()).units
    assert "needs more than 4095 tasks" in getattr(unit, "reason", "")


# -- images ----------------------------------------------------------------------------------


def classifier(c: int, h: int, w: int, *more: onnx.NodeProto) -> onnx.ModelProto:
    """Conv, Flatten, Gemm."""
    constants = {
        "k": floats(c, 8, 1, 1) / 3,
        "w": floats(20, c * h * w, seed=1) / np.float32((c * h * w) ** 0.5),
        "b": floats(20, seed=2),
    }
    nodes = [
        node("Conv", ["x", "k"], ["a"], "conv"),
        node("Flatten", ["a"], ["f"], "flatten"),
        node("Gemm", ["f", "w", "b"], ["y"], "fc", transB=1),
        *more,
    ]
    return model(nodes, {"x": (2, 8, h, w)}, {"y": (2, 20)}, constants)


@pytest.mark.parametrize(("c", "h", "w", "tasks"), [(16, 7, 7, 2), (20, 5, 6, 2), (256, 7, 7, 6)])
def test_flatten_and_gemm_are_a_convolution_over_the_image(
    c: int, h: int, w: int, tasks: int
) -> None:
    m = classifier(c, h, w)
    program = opennpu.compile(m)
    (_, fc) = program.meta["nodes"]
    assert (fc["name"], fc["where"], fc["tasks"]) == ("fc", "NPU after rewrite", tasks)
    assert fc["macs"] == 2 * 20 * c * h * w
    assert error(m, program, floats(2, 8, h, w)) < BOUND


def test_flatten_and_gemm_in_int8() -> None:
    m, x = classifier(16, 7, 7), floats(2, 8, 7, 7)
    program = opennpu.compile(
        m, precision="int8", calibration=[{"x": x}], calibration_method="minmax"
    )
    assert program.meta["nodes"][1]["where"] == "NPU after rewrite"
    assert error(m, program, x) < 0.02


def test_a_flattened_image_with_another_reader_is_flattened() -> None:
    m = classifier(16, 3, 3, node("Relu", ["f"], ["z"], "relu"))
    m.graph.output.append(onnx.helper.make_tensor_value_info("z", 1, [2, 144]))
    names = [n["name"] for n in opennpu.compile(m).meta["nodes"]]
    assert names == ["conv", "flatten", "fc", "relu"]


# -- long sums -------------------------------------------------------------------------------


def test_parts_of_a_sum_are_rounded_to_fp16_and_added_in_order() -> None:
    """Whole numbers past 2048, which fp16 rounds: the order of the parts shows."""
    k = 12000
    case = Case(MatMul, Sample(((2, k),), consts=((k, 3),)), Precision.FP16)
    rng = np.random.default_rng(5)
    x = rng.integers(0, 4, (2, k)).astype(np.float32)
    w = rng.integers(-3, 4, (k, 3)).astype(np.float32)
    w[0] = 2001.0
    case.feeds, case.consts = {"x0": x}, {"c0": w}
    case.graph = case.graph.with_(constants={"c0": w})
    unit = place(case.graph, Target()).units[0]
    assert isinstance(unit, NpuUnit)
    sizes = [s.inputs[1].shape[0] for s in unit.sites if s.node.op == "MatMul" and s.inputs[1]]
    assert sum(sizes) == k and len(sizes) > 1
    total, at = np.zeros((2, 3), np.float16), 0
    for size in sizes:
        part = (x[:, at : at + size] @ w[at : at + size]).astype(np.float16)
        total, at = (total.astype(np.float32) + part).astype(np.float16), at + size
    assert (total != (x @ w).astype(np.float16)).any()
    with InferenceSession(case.program(), "emulator") as session:
        (got,) = session.run(None, {"x0": x})
    np.testing.assert_array_equal(got, total)


def test_a_long_sum_of_int8_is_refused() -> None:
    sample = Sample(((1, 12000),), consts=((12000, 16),))
    case = Case(MatMul, sample, Precision.INT8)
    (unit,) = place(case.graph, Target()).units
    assert "the CBUF has 393216" in getattr(unit, "reason", "")


# -- pools without the PPU -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sample", "precision"),
    [(s, p) for s in GlobalAveragePool.samples if s.ok for p in s.precisions],
)
def test_stock_rocket_takes_means_by_convolution(sample: Sample, precision: Precision) -> None:
    check_without_ppu(Case(GlobalAveragePool, sample, precision))


def test_stock_rocket_takes_window_means_by_convolution() -> None:
    check_without_ppu(Case(AveragePool, AveragePool.samples[1], Precision.FP16))


def check_without_ppu(case: Case) -> None:
    (unit,) = place(case.graph, ROCKET).units
    assert isinstance(unit, NpuUnit), unit.reason
    assert {s.node.op for s in unit.sites} == {"Conv"}
    infos = tuple(ValueInfo(n, a.shape, "float32") for n, a in case.feeds.items())
    program = Program(
        infos, (ValueInfo("y", case.want.shape, "float32"),), (case.segment(ROCKET),), {}
    )
    with InferenceSession(program, "emulator") as session:
        (got,) = session.run(None, case.feeds)
    quant = case.graph.values["y"].quant
    bound = 1.01 * float(quant.scale) if quant else BOUND * float(np.abs(case.want).max())
    assert np.abs(got - case.want).max() <= bound
