"""Models whose tensors are cut, joined, padded and resized: the NPU against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import opennpu
from evaluate import run_onnx
from nets import model

Array = npt.NDArray[Any]
node = helper.make_node


def weights(*shape: int) -> Array:
    rng = np.random.default_rng(sum(shape))
    return (rng.normal(size=shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)


def compare(m: onnx.ModelProto, feeds: dict[str, Array], host: tuple[str, ...] = ()) -> None:
    """All nodes but those of ``host`` on the NPU; every output within fp16's reach."""
    program = opennpu.compile(m, placement="npu")
    where = {n["name"]: n["where"] for n in program.meta["nodes"]}
    assert {n for n, w in where.items() if w == "CPU"} == set(host)
    with opennpu.InferenceSession(program, "emulator") as session:
        got = session.run(None, feeds)
    for a, b in zip(got, run_onnx(m, feeds), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        if b.dtype.kind != "f":
            assert np.abs(a.astype(int) - b.astype(int)).max() <= 1
        else:
            np.testing.assert_allclose(a, b, atol=4e-3 * np.abs(b).max())


def image(*shape: int) -> dict[str, Array]:
    rng = np.random.default_rng(1)
    return {"x": rng.normal(size=shape).astype(np.float16).astype(np.float32)}


@pytest.mark.parametrize(
    ("axis", "sizes"), [(1, (16, 24)), (1, (5, 35)), (2, (3, 6)), (-1, (2, 5))]
)
def test_parts_of_a_split_are_convolved_and_joined_again(axis: int, sizes: tuple[int, ...]) -> None:
    shape = [1, 8, 9, 7]
    shape[axis] = sum(sizes)
    constants: dict[str, Any] = {"sizes": np.array(sizes, np.int64)}
    nodes = [node("Split", ["x", "sizes"], ["a", "b"], "split", axis=axis)]
    for part, size in zip("ab", sizes, strict=True):
        c = size if axis == 1 else shape[1]
        constants[f"w{part}"] = weights(16, c, 1, 1)
        nodes.append(node("Conv", [part, f"w{part}"], [f"{part}2"], f"conv_{part}"))
    nodes.append(node("Concat", ["a2", "b2"], ["y"], "join", axis=axis if axis != 1 else 1))
    out = [1, 16, *shape[2:]] if axis != 1 else [1, 32, *shape[2:]]
    compare(model(nodes, {"x": tuple(shape)}, {"y": tuple(out)}, constants), image(*shape))


def test_a_decoder_of_resize_concat_and_transposed_convolution() -> None:
    constants = {
        "w1": weights(24, 16, 3, 3),
        "w2": weights(40, 12, 2, 2),
        "s": np.array([1, 1, 2, 2], np.float32),
    }
    nodes = [
        node("Conv", ["x", "w1"], ["a"], "down", strides=[2, 2], pads=[1, 1, 1, 1]),
        node("Relu", ["a"], ["b"], "relu"),
        node("Resize", ["b", "", "s"], ["c"], "up", mode="nearest"),
        node("Concat", ["c", "x"], ["d"], "join", axis=1),
        node("ConvTranspose", ["d", "w2"], ["y"], "larger", strides=[2, 2]),
    ]
    m = model(nodes, {"x": (1, 16, 8, 6)}, {"y": (1, 12, 16, 12)}, constants)
    compare(m, image(1, 16, 8, 6))


def test_pixel_shuffle_of_three_channels() -> None:
    nodes = [
        node("Conv", ["x", "w"], ["a"], "conv", pads=[1, 1, 1, 1]),
        node("DepthToSpace", ["a"], ["y"], "shuffle", blocksize=2, mode="CRD"),
    ]
    m = model(nodes, {"x": (1, 8, 5, 6)}, {"y": (1, 3, 10, 12)}, {"w": weights(12, 8, 3, 3)})
    compare(m, image(1, 8, 5, 6))


def test_an_empty_tensor_is_left_to_the_host() -> None:
    nodes = [node("Concat", ["x", "e"], ["y"], "join", axis=1)]
    m = model(nodes, {"x": (1, 8, 2, 2), "e": (1, 0, 2, 2)}, {"y": (1, 8, 2, 2)})
    feeds = {**image(1, 8, 2, 2), "e": np.zeros((1, 0, 2, 2), np.float32)}
    compare(m, feeds, host=("join",))


# -- QLinear ---------------------------------------------------------------------------------


def qlinear(kind: type, zero: int, code_range: tuple[int, int], channels: int) -> onnx.ModelProto:
    """x → QLinearConv → QLinearAdd → y, all in codes."""
    rng = np.random.default_rng(0)
    codes = rng.integers(*code_range, (channels, channels, 3, 3)).astype(kind)
    constants = {
        "sx": np.float32(0.02),
        "zx": np.asarray(3, kind),
        "w": codes,
        "sw": np.float32(0.004),
        "zw": np.asarray(zero, kind),
        "sy": np.float32(0.05),
        "zy": np.asarray(5, kind),
        "b": rng.integers(-500, 500, channels).astype(np.int32),
    }
    element = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    shape = [1, channels, 6, 5]
    graph = helper.make_graph(
        [
            node(
                "QLinearConv",
                ["x", "sx", "zx", "w", "sw", "zw", "sy", "zy", "b"],
                ["a"],
                "conv",
                pads=[1, 1, 1, 1],
            ),
            node(
                "QLinearAdd",
                ["a", "sy", "zy", "x", "sx", "zx", "sy", "zy"],
                ["y"],
                "add",
                domain="com.microsoft",
            ),
        ],
        "codes",
        [helper.make_tensor_value_info("x", element, shape)],
        [helper.make_tensor_value_info("y", element, shape)],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


@pytest.mark.parametrize(
    ("kind", "zero", "code_range"),
    [
        (np.int8, 0, (-127, 128)),
        (np.uint8, 128, (1, 256)),
        (np.uint8, 120, (0, 246)),
        (np.uint8, 77, (0, 256)),
    ],
)
def test_qlinear_nodes_run_in_int8_whatever_the_zero_point_of_their_weights(
    kind: type, zero: int, code_range: tuple[int, int]
) -> None:
    m = qlinear(kind, zero, code_range, 16)
    program = opennpu.compile(m, placement="npu")
    where = {n["name"]: n for n in program.meta["nodes"]}
    for name in ("conv", "add"):
        assert where[name]["where"].startswith("NPU") and where[name]["precision"] == "int8"
    x = np.random.default_rng(2).integers(0, 127, (1, 16, 6, 5)).astype(kind)
    compare(m, {"x": x}, host=tuple(n for n, d in where.items() if d["where"] == "CPU"))


def test_weights_of_nine_bits_that_two_parts_do_not_hold_stay_on_the_host() -> None:
    m = qlinear(np.uint8, 0, (255, 256), 16)
    program = opennpu.compile(m, placement="npu")
    reason = next(n["reason"] for n in program.meta["nodes"] if n["name"] == "conv")
    assert reason == "Conv has int16 weights between int8 tensors"


def test_a_qlinear_sum_of_a_tensor_and_itself() -> None:
    m = qlinear(np.int8, 0, (-127, 128), 16)
    m.graph.node[1].input[3] = "a"
    m.graph.node[1].input[4], m.graph.node[1].input[5] = "sy", "zy"
    x = np.random.default_rng(2).integers(-50, 50, (1, 16, 6, 5)).astype(np.int8)
    program = opennpu.compile(m, placement="npu")
    compare(
        m, {"x": x}, host=tuple(n["name"] for n in program.meta["nodes"] if n["where"] == "CPU")
    )


def test_computed_parameters_stay_a_qlinear_node() -> None:
    m = qlinear(np.int8, 0, (-127, 128), 16)
    scale = next(i for i in m.graph.initializer if i.name == "sw")
    m.graph.initializer.remove(scale)
    m.graph.input.append(helper.make_tensor_value_info("sw", TensorProto.FLOAT, []))
    nodes = {n["name"]: n["op"] for n in opennpu.compile(m).meta["nodes"]}
    assert nodes["conv"] == "QLinearConv"
