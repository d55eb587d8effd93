"""Broken models: a right result or a refusal.  Scripts of this folder run them by the 10,000."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import opennpu
from fuzz import importer
from fuzz.importer import Base, Mutant
from fuzz.run import attempt
from nets import small_cnn
from opennpu.errors import ModelError

FLOAT = TensorProto.FLOAT


def tensor(name: str, *shape: int) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, FLOAT, shape)


def one(
    node: onnx.NodeProto,
    x: tuple[int, ...],
    y: tuple[int, ...] | None,
    opset: int = 17,
    **constants: np.ndarray,
) -> onnx.ModelProto:
    """x → node → y, which the file says to have the shape ``y``."""
    graph = helper.make_graph(
        [node],
        "g",
        [tensor("x", *x)],
        [helper.make_tensor_value_info("y", FLOAT, y)],
        [numpy_helper.from_array(a, k) for k, a in constants.items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    made.ir_version = 8
    return made


def test_mutants_of_a_network_run_right_or_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    base = Base("small CNN", small_cnn(), {})
    monkeypatch.setattr(importer, "bases", lambda: {"node": [base], "piece": [], "small": []})
    outcomes = {importer.attempt(seed) for seed in range(60)}
    assert {problem for _, problem in outcomes} == {""}
    assert len({outcome for outcome, _ in outcomes}) >= 3


@pytest.mark.parametrize("precision", ["fp16", "int8"])
@pytest.mark.parametrize("target", ["rknpu", "rocket"])
def test_random_models_agree_with_onnxruntime(precision: str, target: str) -> None:
    first = {"fp16": 0, "int8": 100}[precision] + {"rknpu": 0, "rocket": 200}[target]
    assert [p for s in range(first, first + 12) if (p := attempt(s, precision, target))] == []


# -- what the scripts found --------------------------------------------------------------------


def agrees(model: onnx.ModelProto) -> None:
    made = Mutant("", (), model.SerializeToString(), {}, "fp16", "rknpu")
    assert importer.check(made) in ("agrees on the NPU", "agrees on the host")


@pytest.mark.parametrize("said", [None, (1, 4, 8, 8), (4, 2), (1, 4, 8, 8, 1)], ids=str)
def test_shapes_that_the_file_says_are_not_believed(said: tuple[int, ...] | None) -> None:
    node = helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[2, 2])
    agrees(one(node, (1, 4, 8, 8), said))
    program = opennpu.compile(one(node, (1, 4, 8, 8), said))
    assert program.outputs[0].shape == (1, 4, 7, 7)


def test_shapes_between_nodes_are_not_believed_either() -> None:
    model = one(helper.make_node("Relu", ["h"], ["y"]), (1, 4, 8, 8), None)
    model.graph.node.insert(0, helper.make_node("GlobalAveragePool", ["x"], ["h"]))
    model.graph.value_info.append(tensor("h", 1, 4, 8, 8))
    agrees(model)


def test_squeeze_with_axes_out_of_order() -> None:
    """onnx's own inference gives [1, 4, 1] before opset 13."""
    node = helper.make_node("Squeeze", ["x"], ["y"], axes=[2, 0, 3])
    agrees(one(node, (1, 4, 1, 1), None, opset=11))


def test_a_reshape_that_does_nothing_by_a_computed_shape_before_a_host_node() -> None:
    shape = helper.make_node("Shape", ["x"], ["s"])
    same = helper.make_node("Reshape", ["x", "s"], ["h"])
    model = one(helper.make_node("CumSum", ["h", "axis"], ["y"]), (2, 3), None, axis=np.array(0))
    model.graph.node.insert(0, same)
    model.graph.node.insert(0, shape)
    agrees(model)


REFUSED = {
    "a bias of another size": (
        one(
            helper.make_node("Conv", ["x", "w", "b"], ["y"]),
            (1, 3, 4, 4),
            None,
            w=np.ones((8, 3, 1, 1), np.float32),
            b=np.ones((4, 1), np.float32),
        ),
        r"Conv_0: Conv has a bias of shape \[4, 1\] for 8 filters\. Export the model again\.",
    ),
    "normalization by the wrong numbers": (
        one(
            helper.make_node("BatchNormalization", ["x", "a", "a", "a", "b"], ["y"]),
            (1, 3, 4, 4),
            None,
            11,
            a=np.ones(3, np.float32),
            b=np.ones(4, np.float32),
        ),
        r"BatchNormalization_0: BatchNormalization has b of shape \[4\] for 3 channels\. .*",
    ),
    "a permutation of other axes": (
        one(helper.make_node("Transpose", ["x"], ["y"], perm=[1, 0]), (2, 3, 4), None),
        r"Transpose_0: Transpose has perm=\[1, 0\] for 3 axes\. .*|.*[Pp]erm.*",
    ),
    "a reshape that loses elements": (
        one(
            helper.make_node("Reshape", ["x", "s"], ["y"]),
            (1, 2),
            None,
            s=np.array([1, 1, 4, 2]),
        ),
        r"Reshape_0: Reshape turns \[1, 2\] into \[1, 1, 4, 2\]: 2 elements into 8\. .*",
    ),
    "a kernel wider than the image": (
        one(
            helper.make_node("Conv", ["x", "w"], ["y"], dilations=[64, 1], pads=[1, 1, 1, 1]),
            (1, 3, 2, 2),
            None,
            w=np.ones((8, 3, 3, 3), np.float32),
        ),
        r"y: this value would have the size \[1, 8, -124, 2\]\. .*",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_the_reason(name: str) -> None:
    model, sentence = REFUSED[name]
    with pytest.raises(ModelError, match=f"^(?:{sentence})$"):
        opennpu.compile(model)


def test_calibration_data_without_an_input() -> None:
    model = one(helper.make_node("Relu", ["x"], ["y"]), (1, 4), None)
    with pytest.raises(opennpu.NPUError, match="it lacks x, one of 1 inputs"):
        opennpu.compile(model, precision="int8", calibration=[{}])


def test_an_axis_of_any_length_is_refused_in_no_time() -> None:
    node = helper.make_node("Conv", ["x", "w"], ["y"])
    w = np.ones((8, 8, 1), np.float32)
    program = opennpu.compile(one(node, (2**40, 8, 336), None, w=w))
    (placed,) = program.meta["nodes"]
    assert placed["where"] == "CPU" and "the NPU reaches 4294967296" in placed["reason"]


def test_lines_wider_than_the_dpu_skips_stay_on_the_host() -> None:
    node = helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1], group=8)
    program = opennpu.compile(
        one(node, (1, 8, 4, 65536), None, w=np.ones((8, 1, 3, 3), np.float32))
    )
    (placed,) = program.meta["nodes"]
    assert placed["where"] == "CPU"
    assert "the DPU skips at most 8191 px a line" in placed["reason"]


def test_a_divisor_without_a_reciprocal_stays_on_the_host() -> None:
    model = one(helper.make_node("Div", ["x", "d"], ["y"]), (1, 4), None, d=np.float32([1e-40]))
    (placed,) = opennpu.compile(model).meta["nodes"]
    assert "float32 holds no reciprocal" in placed["reason"]


@pytest.mark.parametrize("tiny", [0.0, 1e-45, 1e-40])
def test_int8_weights_too_small_for_a_scale_are_zeros(tiny: float) -> None:
    w = np.full((8, 8, 1, 1), tiny, np.float32)
    w[4:] = 0.5
    model = one(helper.make_node("Conv", ["x", "w"], ["y"]), (1, 8, 4, 4), None, w=w)
    x = np.ones((1, 8, 4, 4), np.float32)
    program = opennpu.compile(
        model, precision="int8", calibration=[{"x": x}], calibration_method="minmax"
    )
    with opennpu.InferenceSession(program, "emulator") as session:
        (y,) = session.run(None, {"x": x})
    assert not y[:, :4].any() and np.allclose(y[:, 4:], 4, atol=0.05)


def test_channels_beyond_number_are_not_made_weights() -> None:
    node = helper.make_node("Mul", ["x", "s"], ["y"])
    model = one(node, (1, 2**31, 1, 1), None, s=np.float32([2.0]).reshape(()))
    (placed,) = opennpu.compile(model).meta["nodes"]
    assert placed["op"] == "Mul"


def test_a_batch_of_more_tasks_than_a_start_takes_stays_on_the_host() -> None:
    model = one(helper.make_node("Relu", ["x"], ["y"]), (5000, 8, 1, 1), None)
    (placed,) = opennpu.compile(model).meta["nodes"]
    assert placed["reason"] == "Relu works on 5000 images, a task each: one start takes 4095"


def test_a_constant_that_is_an_output_still_counts_for_shapes() -> None:
    """onnx's inference gives [0, 8, 84]: it does not look at the axis."""
    slice_ = helper.make_node("Slice", ["x", "first", "last", "axis"], ["y"])
    constants = {"first": np.array([4]), "last": np.array([8]), "axis": np.array([1])}
    model = one(slice_, (1, 8, 84), None, **constants)
    model.graph.output.append(helper.make_tensor_value_info("axis", TensorProto.INT64, [1]))
    agrees(model)
    assert opennpu.compile(model).outputs[0].shape == (1, 4, 84)


def test_a_clip_by_a_tensor_is_left_to_onnxruntime() -> None:
    node = helper.make_node("Clip", ["x", "low"], ["y"])
    model = one(node, (1, 10), None, low=np.zeros((1, 10), np.float32))
    (placed,) = opennpu.compile(model).meta["nodes"]
    assert placed["reason"] == "Clip has a bound of 10 elements, not of 1"
