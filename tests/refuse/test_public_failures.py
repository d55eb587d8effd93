"""What users of other stacks reported as failing: it works here, or is refused by name.

Each test names the report: RT2 airockchip/rknn-toolkit2, OT2 rockchip-linux/rknn-toolkit2, MZ
airockchip/rknn_model_zoo.  Models are rebuilt from the text of the report.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
import pytest
from onnx import helper

import opennpu
from nets import model, small_cnn
from opennpu import InferenceSession
from opennpu.errors import DeviceTimeout, ModelError, UnsupportedError

Array = npt.NDArray[Any]
node = helper.make_node
RNG = np.random.default_rng(0)


def floats(*shape: int) -> Array:
    return RNG.normal(size=shape).astype(np.float32)


def weights(*shape: int) -> Array:
    return (floats(*shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)


def reference(m: onnx.ModelProto, feeds: Mapping[str, Array]) -> list[Array]:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    run = ort.InferenceSession(m.SerializeToString(), options, ["CPUExecutionProvider"])
    return list(run.run(None, dict(feeds)))


def works(
    m: onnx.ModelProto, feeds: Mapping[str, Array], *, npu: Sequence[str] = (), tasks: int = 0
) -> None:
    """Agrees with onnxruntime; ``npu``: operators that must not stay on the host."""
    program = opennpu.compile(m)
    on_npu = {n["op"] for n in program.meta["nodes"] if n["where"].startswith("NPU")}
    assert set(npu) <= on_npu, program.meta["nodes"]
    with InferenceSession(program, "emulator") as session:
        got = session.run(None, dict(feeds))
        assert session.last is not None and session.last.tasks >= tasks
    for a, b in zip(got, reference(m, feeds), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        if b.dtype.kind == "f":
            np.testing.assert_allclose(a, b, atol=5e-3 * max(1.0, float(np.abs(b).max())))
        else:
            np.testing.assert_array_equal(a, b)


def single(
    op: str,
    x: tuple[int, ...],
    constants: Mapping[str, Array] | None = None,
    opset: int = 17,
    outputs: int = 1,
    **attrs: Any,
) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """One node of ``x`` and constants, and data for it."""
    names = [f"y{i}" for i in range(outputs)]
    n = node(op, ["x", *(constants or {})], names, op, **attrs)
    made = model([n], {"x": x}, dict.fromkeys(names), constants, opset)
    return made, {"x": np.abs(floats(*x)) + 0.1}


# -- A: fields that overflow -------------------------------------------------------------------


def test_a_stride_of_50_and_a_long_kernel_in_one_dimension() -> None:
    """RT2#315: REGTASK 0x1014 "limit 0x7, value 0x32" is a line in a log, the board is wrong."""
    m, feeds = single("Conv", (1, 1, 600), {"w": weights(8, 1, 31)}, strides=[50])
    works(m, feeds, npu=["Conv"])


def test_a_kernel_that_the_hardware_does_not_hold_stays_on_the_host_with_both_numbers() -> None:
    m, feeds = single("Conv", (1, 1, 600), {"w": weights(8, 1, 251)}, strides=[50])
    (placed,) = opennpu.compile(m).meta["nodes"]
    assert "kernel height is 251 px, the CNA takes at most 31" in placed["reason"]
    works(m, feeds)


@pytest.mark.parametrize("width", [2048, 8400, 9000])
def test_outputs_wider_than_the_fields(width: int) -> None:
    """laitathei/YOLOv8-ONNX-RKNN#1: 0x1028 limit 0x7ff value 0x20d0, 0x4030 limit 0x1fff."""
    m, feeds = single("Conv", (1, 16, 1, width), {"w": weights(16, 16, 1, 1)})
    works(m, feeds, npu=["Conv"], tasks=2)


@pytest.mark.parametrize("batch", [2, 3])
def test_a_batch_whose_line_gap_overflows(batch: int) -> None:
    """MZ#307, RT2#419: 0x5048[31:19] limit 0x1fff value 0x200c, from batch 2 on."""
    n = node("Add", ["x", "z"], ["y"], "add")
    shape = (batch, 16, 1, 8204)
    m = model([n], {"x": shape, "z": shape}, {"y": None})
    works(m, {"x": floats(*shape), "z": floats(*shape)}, npu=["Add"])


def test_rows_that_no_bank_holds_are_tiled() -> None:
    """RT2#13: "DatainEntries overflow, need to tiling more … limitation: 2048"."""
    m, feeds = single("Conv", (1, 512, 4, 160), {"w": weights(16, 512, 3, 3)}, pads=[1] * 4)
    works(m, feeds, npu=["Conv"], tasks=2)


def test_a_large_transpose_is_no_error() -> None:
    """RT2#490, RT2#88: "height·width = 655360, no larger than 8192"."""
    m, feeds = single("Transpose", (1, 655_360, 4), perm=[0, 2, 1])
    works(m, feeds)


def test_a_global_pool_over_more_than_128_pixels() -> None:
    """OT2#10."""
    m, feeds = single("GlobalAveragePool", (1, 8, 130, 140))
    works(m, feeds, npu=["GlobalAveragePool"])


# -- A: operators that others refuse, or convert and refuse later ------------------------------

OPERATORS: dict[str, tuple[onnx.ModelProto, dict[str, Array]]] = {
    "RT2#93, OT2#306: GatherND": single("GatherND", (2, 3, 4), {"i": np.array([[0, 1], [1, 2]])}),
    "OT2#300: ReduceL2": single("ReduceL2", (2, 8, 5), axes=[1]),
    "OT2#10: Sqrt": single("Sqrt", (1, 8, 4, 4)),
    "OT2#10: ScatterND": single(
        "ScatterND", (4, 4), {"i": np.array([[1], [3]]), "u": floats(2, 4)}
    ),
    "OT2#253: ReduceSumSquare": single("ReduceSumSquare", (2, 8, 5), axes=[1]),
    "OT2#205: ReduceProd": single("ReduceProd", (2, 8, 5), axes=[1]),
    "OT2#334: CumSum": single("CumSum", (2, 8), {"axis": np.array(1)}),
    "RT2#434: Gather": single("Gather", (6, 8), {"i": np.array([0, 5, 2])}),
    "OT2#145: LayerNormalization": single(
        "LayerNormalization", (2, 8, 16), {"scale": floats(16), "bias": floats(16)}
    ),
    "RT2#486: Atan": single("Atan", (1, 8, 4, 4)),
    "RT2#81: LSTM": single(
        "LSTM",
        (5, 1, 8),
        {"w": weights(1, 64, 8), "r": weights(1, 64, 16)},
        hidden_size=16,
        outputs=3,
    ),
    "OT2#380: GRU": single(
        "GRU",
        (5, 1, 8),
        {"w": weights(1, 48, 8), "r": weights(1, 48, 16)},
        hidden_size=16,
        outputs=2,
    ),
    "RT2#387: Einsum": single("Einsum", (2, 3, 4), {"w": floats(4, 5)}, equation="bij,jk->bik"),
}


@pytest.mark.parametrize("report", OPERATORS)
def test_operators_run(report: str) -> None:
    works(*OPERATORS[report])


def test_a_product_of_a_tensor_with_itself() -> None:
    """RT2#395: rknn.build segfaults."""
    m = model([node("MatMul", ["x", "x"], ["y"], "square")], {"x": (16, 16)}, {"y": None})
    works(m, {"x": floats(16, 16)})


def test_an_operator_that_nobody_knows_is_named_before_anything_runs() -> None:
    """immich#17098: unsupported operators show at the user's board."""
    n = node("Frobnicate", ["x"], ["y"], "block3.act", domain="com.example")
    m = model([n], {"x": (1, 8)}, {"y": (1, 8)})
    m.opset_import.append(helper.make_opsetid("com.example", 1))
    sentence = (
        r"^block3\.act: operator Frobnicate of domain 'com\.example' is known neither to opennpu "
        r"nor to onnxruntime .*\. Register it as an operator .*, or export without it\.$"
    )
    with pytest.raises(ModelError, match=sentence):
        opennpu.compile(m)


@pytest.mark.parametrize("opset", [7, 12, 15, 19, 21, 23])
def test_no_wall_between_opset_7_and_the_newest(opset: int) -> None:
    """RT2#539, RT2#157, OT2#41: "≤ 12", "≤ 15", "21 != 19"."""
    nodes = [node("Conv", ["x", "w"], ["h"], "conv"), node("Relu", ["h"], ["y"], "relu")]
    m = model(nodes, {"x": (1, 4, 5, 5)}, {"y": None}, {"w": weights(8, 4, 3, 3)}, opset)
    works(m, {"x": floats(1, 4, 5, 5)}, npu=["Conv"])


def test_an_opset_of_the_future_is_refused_with_both_numbers() -> None:
    newest = onnx.defs.onnx_opset_version()
    m, _ = single("Relu", (1, 4), opset=newest + 1)
    sentence = rf"net: its opset is {newest + 1}, onnx .* knows those up to {newest}\. Update .*"
    with pytest.raises(ModelError, match=sentence):
        opennpu.compile(m)


# -- B: open sizes and batches ------------------------------------------------------------------


def test_an_open_size_is_asked_for_by_name() -> None:
    """OT2#42, RT2#458: dynamic exports fail late, or take the largest shape only."""
    m = model([node("Relu", ["x"], ["y"])], {"x": ("batch", 4)}, {"y": None})
    sentence = r"^x: axis 0 has the open size 'batch', .*fix_dims=\{'batch': 1\}.*\.$"
    with pytest.raises(ModelError, match=sentence):
        opennpu.compile(m)
    assert opennpu.compile(m, fix_dims={"batch": 3}).inputs[0].shape == (3, 4)


@pytest.mark.parametrize("batch", [2, 3, 8])
def test_a_batch_gives_the_bytes_of_its_samples(batch: int) -> None:
    """RT2#278, RT2#245, MZ#157: batch 8 wrong; only the second of three wrong."""
    x = floats(batch, 3, 16, 16)
    with InferenceSession(opennpu.compile(small_cnn()), "emulator") as session:
        singly = np.concatenate([session.run(None, {"x": x[i : i + 1]})[0] for i in range(batch)])
    with InferenceSession(opennpu.compile(small_cnn(batch)), "emulator") as session:
        (together,) = session.run(None, {"x": x})
    np.testing.assert_array_equal(together, singly)


# -- C: numbers ---------------------------------------------------------------------------------


def test_fp16_overflow_on_the_npu_is_reported() -> None:
    """OT2#346, RT2#252, RT2#504: infinities on the board, none in the simulator, nobody says so."""
    m, _ = single("Conv", (1, 8, 2, 2), {"w": np.full((8, 8, 1, 1), 300, np.float32)})
    with InferenceSession(opennpu.compile(m), "emulator") as session:
        (y,) = session.run(None, {"x": np.full((1, 8, 2, 2), 100, np.float32)})
        assert np.isposinf(y).all()
        assert session.last is not None
        assert session.last.nonfinite == ("y0: 32 of 32 elements are infinite or NaN",)
        session.run(None, {"x": np.ones((1, 8, 2, 2), np.float32)})
        assert session.last.nonfinite == ()


def test_large_values_pass_a_layer_normalization() -> None:
    """RT2#149: LayerNorm loses precision: its sum of squares leaves fp16."""
    constants = {"scale": np.ones(64, np.float32), "bias": np.zeros(64, np.float32)}
    m, _ = single("LayerNormalization", (1, 4, 64), constants)
    works(m, {"x": floats(1, 4, 64) * 3000})


def test_boxes_and_scores_in_one_tensor_keep_the_scores() -> None:
    """RT2#10, MZ#111: 0..640 and 0..1 share one int8 scale, all scores are 0."""
    nodes = [
        node("Sigmoid", ["s"], ["scores"], "scores"),
        node("Concat", ["b", "scores"], ["y"], "head", axis=1),
    ]
    m = model(nodes, {"b": (1, 4, 1, 20), "s": (1, 2, 1, 20)}, {"y": None})
    feeds = {"b": np.abs(floats(1, 4, 1, 20)) * 200, "s": floats(1, 2, 1, 20)}
    program = opennpu.compile(m, precision="int8", calibration=[feeds], calibration_method="minmax")
    with InferenceSession(program, "emulator") as session:
        (y,) = session.run(None, feeds)
    (want,) = reference(m, feeds)
    step = want.max() / 255
    on_host = next(n for n in program.meta["nodes"] if n["name"] == "head")
    if on_host["where"] == "CPU":  # else the user asked for int8, and the step says it all
        step = 1 / 255
    assert np.abs(y[:, 4:] - want[:, 4:]).max() <= 2 * step


# -- E: hangs -----------------------------------------------------------------------------------


def test_a_job_that_hangs_is_named_and_the_next_one_works(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """OT2#320 and 15 more: "failed to submit! … run task counter: 0, int status: 0"."""
    x = floats(1, 3, 16, 16)
    with InferenceSession(opennpu.compile(small_cnn()), "emulator:hardware") as session:
        (want,) = session.run(None, {"x": x})
        device: Any = session.device
        run, core = device.machine.run, device.machine._cores[0]

        def hangs(*args: Any, **more: Any) -> Any:
            core.wedged = True  # as after a job that never ended
            return run(*args, **more)

        with monkeypatch.context() as patch:
            patch.setattr(device.machine, "run", hangs)
            with pytest.raises(DeviceTimeout, match=r"^stem: .*\.$"):
                session.run(None, {"x": x})
        (again,) = session.run(None, {"x": x})
    np.testing.assert_array_equal(again, want)


def test_thirty_models_at_once() -> None:
    """RT2#384: one core at 100 %, then the board freezes."""
    programs = [opennpu.compile(small_cnn(seed=i)) for i in range(30)]
    sessions = [InferenceSession(p, "emulator") for p in programs]
    x = floats(1, 3, 16, 16)
    for i, session in enumerate(sessions):
        (y,) = session.run(None, {"x": x})
        np.testing.assert_allclose(y, reference(small_cnn(seed=i), {"x": x})[0], atol=5e-3)
    for session in sessions:
        session.close()


# -- size, time, order --------------------------------------------------------------------------


def test_a_node_of_more_than_4_gib_stays_on_the_host() -> None:
    """LLM#335, llama.cpp#722: 32-bit NPU addresses, found out by "Bad address"."""
    shape = (1, 8, 16384, 16384)
    (placed,) = opennpu.compile(
        model([node("Relu", ["x"], ["y"])], {"x": shape}, {"y": shape})
    ).meta["nodes"]
    assert placed["where"] == "CPU"
    assert placed["reason"] == "Relu works on 8589934592 bytes at once, the NPU reaches 4294967296"


def test_a_program_of_more_than_4_gib_is_refused_with_both_numbers() -> None:
    shape = (1, 8, 8660, 8660)  # 1.2 GB each, four of them alive
    nodes = [
        node("Add", ["x", "z"], ["a"], "a"),
        node("Add", ["a", "x"], ["b"], "b"),
        node("Add", ["b", "a"], ["c"], "c"),
        node("Add", ["c", "b"], ["d"], "d"),
        node("Add", ["d", "x"], ["y"], "y"),
    ]
    m = model(nodes, {"x": shape, "z": shape}, {"y": shape, "a": shape})
    sentence = (
        r"^a: the tensors from here on take \d+ bytes at once, the NPU reaches 4294967296\. "
        r"Make the inputs smaller, or split the model\.$"
    )
    with pytest.raises(UnsupportedError, match=sentence):
        opennpu.compile(m)


def _calls(layers: int) -> int:
    """Python calls of a compilation of a chain."""
    nodes, constants = [], {}
    for i in range(layers):
        constants[f"w{i}"] = weights(8, 8, 1, 1)
        nodes.append(node("Conv", [f"t{i}", f"w{i}"], [f"h{i}"], f"conv{i}"))
        nodes.append(node("Relu", [f"h{i}"], [f"t{i + 1}"], f"relu{i}"))
    m = model(nodes, {"t0": (1, 8, 4, 4)}, {f"t{layers}": None}, constants)
    count = 0

    def profile(frame: Any, event: str, arg: Any) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(profile)
    try:
        opennpu.compile(m)
    finally:
        sys.setprofile(None)
    return count


def test_twice_the_nodes_are_twice_the_work() -> None:
    _calls(2)  # imports
    few, many = _calls(30), _calls(60)
    assert many <= 2.2 * few, (few, many)


def test_the_same_bytes_whatever_the_order_of_hashes(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(small_cnn(), str(path))
    script = (
        "import sys, opennpu\n"
        "p = opennpu.compile(sys.argv[1], target='rocket')\n"
        "p.save(sys.argv[2])\n"
    )
    sums = set()
    for seed in ("0", "1", "4711"):
        out = tmp_path / f"{seed}.npu"
        subprocess.run(
            [sys.executable, "-c", script, str(path), str(out)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
        )
        sums.add(hashlib.sha256(out.read_bytes()).hexdigest())
    assert len(sums) == 1
