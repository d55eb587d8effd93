"""TFLite files in: as TFLite's own reference kernels compute them, or refused by name.

int8 results may be 1 off.  The reference kernels multiply a sum by a 31-bit number and shift it,
and round in both steps; averages they round away from zero.  The NPU and onnxruntime round the
product once.  Where a result lies near the middle of two codes, the two ways part.
"""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import opennpu
from nets import cosine
from opennpu.errors import ModelError, NPUError, UnsupportedError
from opennpu.frontends import tflite, tflite_file
from tflite_nets import B, C, Layer, Model, N, W, X, bottleneck, build, run_tflite

IMAGE = X((1, 9, 7, 16))
SAME, VALID = 0, 1
ONE = {"strideH": 1, "strideW": 1}
TWO = {"strideH": 2, "strideW": 2}
RELU, RELU_N1, RELU6 = 1, 2, 3


def window(height: int, width: int, **more: Any) -> dict[str, Any]:
    return {"filterHeight": height, "filterWidth": width, **more}


LAYERS = [
    Layer("CONV_2D", (IMAGE, W((24, 3, 3, 16)), B(24)), ((1, 5, 4, 24),), TWO),
    Layer(
        "CONV_2D",
        (IMAGE, W((24, 3, 3, 16)), B(24)),
        ((1, 7, 5, 24),),
        {**ONE, "padding": VALID, "fusedActivationFunction": RELU},
    ),
    Layer(
        "CONV_2D",
        (IMAGE, W((5, 1, 1, 16)), B(5)),
        ((1, 9, 7, 5),),
        {**ONE, "fusedActivationFunction": RELU6},
    ),
    Layer(
        "CONV_2D",
        (X((1, 9, 7, 3)), W((8, 3, 3, 3)), B(8)),
        ((1, 9, 7, 8),),
        {**ONE, "dilationHFactor": 2, "dilationWFactor": 2, "fusedActivationFunction": RELU_N1},
    ),
    Layer(
        "DEPTHWISE_CONV_2D",
        (IMAGE, W((1, 3, 3, 16), 3), B(16)),
        ((1, 5, 4, 16),),
        {**TWO, "depthMultiplier": 1, "fusedActivationFunction": RELU6},
    ),
    Layer(
        "DEPTHWISE_CONV_2D",
        (X((1, 9, 7, 4)), W((1, 3, 3, 8), 3), B(8)),
        ((1, 9, 7, 8),),
        {**ONE, "depthMultiplier": 2},
    ),
    Layer(
        "TRANSPOSE_CONV",
        (N([1, 18, 14, 8]), W((8, 3, 3, 16)), IMAGE),
        ((1, 18, 14, 8),),
        {**TWO},
    ),
    Layer(
        "TRANSPOSE_CONV",
        (N([1, 18, 14, 8]), W((8, 2, 2, 16)), IMAGE, B(8)),
        ((1, 18, 14, 8),),
        {**TWO, "padding": VALID},
    ),
    Layer("FULLY_CONNECTED", (X((3, 40)), W((10, 40), None), B(10)), ((3, 10),)),
    Layer(
        "FULLY_CONNECTED",
        (X((1, 2, 2, 16)), W((10, 64), None), B(10)),
        ((1, 10),),
        {"fusedActivationFunction": RELU},
    ),
    Layer(
        "FULLY_CONNECTED", (X((2, 3, 16)), W((8, 16), None)), ((2, 3, 8),), {"keepNumDims": True}
    ),
    Layer("ADD", (IMAGE, X((1, 9, 7, 16), -2, 3)), ((1, 9, 7, 16),)),
    Layer("ADD", (IMAGE, C((16,))), ((1, 9, 7, 16),), {"fusedActivationFunction": RELU}),
    Layer("SUB", (IMAGE, X((1, 9, 7, 16), -2, 3)), ((1, 9, 7, 16),)),
    Layer("MUL", (IMAGE, X((1, 1, 1, 16), 0, 1)), ((1, 9, 7, 16),)),
    Layer("MUL", (X((2, 12)), C((1, 12))), ((2, 12),)),
    Layer("AVERAGE_POOL_2D", (IMAGE,), ((1, 5, 4, 16),), window(3, 3, **TWO), same=True),
    Layer("AVERAGE_POOL_2D", (IMAGE,), ((1, 1, 1, 16),), window(9, 7, **ONE, padding=1), same=True),
    Layer("MAX_POOL_2D", (IMAGE,), ((1, 4, 3, 16),), window(3, 3, **TWO, padding=1), same=True),
    Layer("MAX_POOL_2D", (IMAGE,), ((1, 5, 4, 16),), window(2, 2, **TWO), same=True),
    Layer("MEAN", (IMAGE, N([1, 2])), ((1, 16),)),
    Layer("MEAN", (IMAGE, N([1, 2])), ((1, 1, 1, 16),), {"keepDims": True}),
    Layer("MEAN", (IMAGE, N([-1])), ((1, 9, 7),)),
    # the reference kernel is up to 188 codes off the exact sum here, the other one is not
    Layer("SUM", (IMAGE, N([2])), ((1, 9, 16),), reference=False),
    Layer("REDUCE_MAX", (IMAGE, N([3])), ((1, 9, 7, 1),), {"keepDims": True}, same=True),
    Layer("SOFTMAX", (X((2, 20), -4, 4),), ((2, 20),), {"beta": 1.0}, scale=(1 / 256, -128)),
    Layer(
        "SOFTMAX", (X((1, 3, 3, 8), -4, 4),), ((1, 3, 3, 8),), {"beta": 0.5}, scale=(1 / 256, -128)
    ),
    Layer("LOGISTIC", (X((1, 5, 5, 8), -6, 6),), ((1, 5, 5, 8),), scale=(1 / 256, -128)),
    Layer("TANH", (X((1, 5, 5, 8), -3, 3),), ((1, 5, 5, 8),), scale=(1 / 128, 0)),
    Layer("RELU", (IMAGE,), ((1, 9, 7, 16),)),
    Layer("RELU6", (X((1, 9, 7, 16), -8, 9),), ((1, 9, 7, 16),)),
    Layer("HARD_SWISH", (X((1, 9, 7, 16), -5, 5),), ((1, 9, 7, 16),)),
    Layer("LEAKY_RELU", (IMAGE,), ((1, 9, 7, 16),), {"alpha": 0.2}),
    Layer("PRELU", (IMAGE, C((1, 1, 16))), ((1, 9, 7, 16),)),
    Layer("ELU", (IMAGE,), ((1, 9, 7, 16),), reference=False),  # there is no reference kernel
    Layer("RESHAPE", (IMAGE, N([1, 63, 16])), ((1, 63, 16),), same=True),
    Layer("SQUEEZE", (X((1, 1, 1, 16)),), ((1, 16),), {"squeezeDims": [1, 2]}, same=True),
    Layer("EXPAND_DIMS", (X((3, 16)), N(1)), ((3, 1, 16),), same=True),
    Layer("PAD", (IMAGE, N([[0, 0], [1, 2], [0, 1], [0, 0]])), ((1, 12, 8, 16),), same=True),
    Layer("PAD", (IMAGE, N([[0, 0], [0, 0], [0, 0], [0, 8]])), ((1, 9, 7, 24),), same=True),
    Layer(
        "MIRROR_PAD",
        (IMAGE, N([[0, 0], [1, 2], [0, 1], [0, 0]])),
        ((1, 12, 8, 16),),
        {"mode": 0},
        same=True,
    ),
    Layer("CONCATENATION", (IMAGE, X((1, 9, 7, 8))), ((1, 9, 7, 24),), {"axis": 3}, same=True),
    Layer("CONCATENATION", (X((2, 5)), X((3, 5))), ((5, 5),), {"axis": 0}, same=True),
    Layer("PACK", (X((2, 5)), X((2, 5))), ((2, 2, 5),), {"axis": 1, "valuesCount": 2}, same=True),
    Layer("UNPACK", (X((2, 5)),), ((5,), (5,)), {"axis": 0, "num": 2}, same=True),
    Layer("SPLIT", (N(3), IMAGE), ((1, 9, 7, 8), (1, 9, 7, 8)), {"numSplits": 2}, same=True),
    Layer(
        "SPLIT_V",
        (IMAGE, N([4, -1]), N(1)),
        ((1, 4, 7, 16), (1, 5, 7, 16)),
        {"numSplits": 2},
        same=True,
    ),
    Layer(
        "STRIDED_SLICE",
        (IMAGE, N([0, 1, 0, 0]), N([1, 8, 7, 12]), N([1, 2, 1, 1])),
        ((1, 4, 7, 12),),
        {"endMask": 4},
        same=True,
    ),
    Layer(
        "STRIDED_SLICE",
        (IMAGE, N([0, -2, 6]), N([1, -1, 0]), N([1, 1, -2])),
        ((1, 3, 16),),
        {"shrinkAxisMask": 2},
        same=True,
    ),
    Layer("SLICE", (IMAGE, N([0, 2, 1, 0]), N([1, 5, -1, 8])), ((1, 5, 6, 8),), same=True),
    Layer("TRANSPOSE", (IMAGE, N([0, 3, 1, 2])), ((1, 16, 9, 7),), same=True),
    Layer("GATHER", (IMAGE, N([3, 0, 5])), ((1, 9, 3, 16),), {"axis": 2}, same=True),
    Layer("RESIZE_BILINEAR", (IMAGE, N([18, 10])), ((1, 18, 10, 16),), same=True),
    Layer(
        "RESIZE_BILINEAR",
        (IMAGE, N([18, 14])),
        ((1, 18, 14, 16),),
        {"halfPixelCenters": True},
        same=True,
    ),
    Layer(
        "RESIZE_BILINEAR",
        (IMAGE, N([17, 13])),
        ((1, 17, 13, 16),),
        {"alignCorners": True},
        same=True,
    ),
    Layer("RESIZE_NEAREST_NEIGHBOR", (IMAGE, N([20, 10])), ((1, 20, 10, 16),), same=True),
    Layer(
        "RESIZE_NEAREST_NEIGHBOR",
        (IMAGE, N([5, 21])),
        ((1, 5, 21, 16),),
        {"halfPixelCenters": True},
        same=True,
    ),
    Layer(
        "RESIZE_NEAREST_NEIGHBOR",
        (IMAGE, N([18, 13])),
        ((1, 18, 13, 16),),
        {"alignCorners": True},
        same=True,
    ),
    Layer("DEPTH_TO_SPACE", (IMAGE,), ((1, 18, 14, 4),), {"blockSize": 2}, same=True),
    Layer("SPACE_TO_DEPTH", (X((1, 8, 6, 4)),), ((1, 4, 3, 16),), {"blockSize": 2}, same=True),
    Layer("MAXIMUM", (IMAGE, X((1, 9, 7, 16))), ((1, 9, 7, 16),), same=True),
    Layer("L2_NORMALIZATION", (X((2, 12)),), ((2, 12),), scale=(1 / 128, 0)),
    Layer("BATCH_MATMUL", (X((2, 5, 8)), X((2, 6, 8))), ((2, 5, 6),), {"adjY": True}),
]
FLOAT_ONLY = [
    Layer("DIV", (IMAGE, X((1, 9, 7, 16), 1, 3)), ((1, 9, 7, 16),)),
    Layer("GELU", (X((1, 5, 5, 8), -3, 3),), ((1, 5, 5, 8),), {"approximate": True}),
    Layer("EXP", (X((1, 12)),), ((1, 12),)),
    Layer("LOG", (X((1, 12), 0.5, 4),), ((1, 12),)),
    Layer("SQRT", (X((1, 12), 0.5, 4),), ((1, 12),)),
    Layer("RSQRT", (X((1, 12), 0.5, 4),), ((1, 12),)),
    Layer("SQUARED_DIFFERENCE", (X((1, 9, 7, 16)), X((1, 9, 7, 16))), ((1, 9, 7, 16),)),
    Layer("SUM", (IMAGE, N([1, 2])), ((1, 16),)),
    Layer("TILE", (X((2, 5)), N([1, 3])), ((2, 15),)),
]
UNSIGNED = [la for la in LAYERS if la.op in ("CONV_2D", "DEPTHWISE_CONV_2D", "ADD", "MAX_POOL_2D")]


def run(model: Any, feeds: dict[str, Any]) -> tuple[opennpu.Program, dict[str, Any]]:
    program = opennpu.compile(model)
    with opennpu.InferenceSession(program, "emulator") as session:
        results = session.run(None, feeds)
        assert session.last is not None and not session.last.violations
    return program, dict(zip([v.name for v in program.outputs], results, strict=True))


def compare(layer: Layer, dtype: str) -> None:
    made = build(layer, dtype)
    want = run_tflite(made.model, made.feeds, layer.reference)
    _, got = run(made.model, made.feeds)
    assert got.keys() == want.keys()
    for name, a in want.items():
        assert (got[name].shape, got[name].dtype) == (a.shape, a.dtype)
        if dtype == "float32":
            assert cosine(got[name], a) >= 0.9999
        else:
            assert len(np.unique(a)) > 4, "the layer says nothing: its results are all alike"
            assert np.abs(got[name].astype(int) - a).max() <= 1


@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_an_int8_layer_is_within_one_count_of_tflite(layer: Layer) -> None:
    compare(layer, "int8")


@pytest.mark.parametrize("layer", UNSIGNED, ids=str)
def test_a_uint8_layer_is_within_one_count_of_tflite(layer: Layer) -> None:
    compare(layer, "uint8")


@pytest.mark.parametrize("layer", [*LAYERS, *FLOAT_ONLY], ids=str)
def test_a_float_layer_is_what_tflite_computes(layer: Layer) -> None:
    compare(layer, "float32")


def placed(program: opennpu.Program) -> dict[str, str]:
    """Node → where it runs."""
    return {n["name"]: n["where"] for n in program.meta["nodes"]}


# -- whole networks --------------------------------------------------------------------------


def test_an_int8_network_runs_on_the_npu_and_answers_as_tflite_does() -> None:
    made = bottleneck()
    want = run_tflite(made.model, made.feeds)
    program, got = run(made.model, made.feeds)
    where = placed(program)
    for name in ("CONV_2D_0:stem", "DEPTHWISE_CONV_2D_1:depthwise", "FULLY_CONNECTED_5:logits"):
        assert where[name].startswith("NPU"), where
    kinds = {n["name"]: n.get("precision") for n in program.meta["nodes"]}
    assert kinds["CONV_2D_0:stem"] == "int8"
    assert len(np.unique(want["logits"])) > 4
    assert np.abs(got["logits"].astype(int) - want["logits"]).max() <= 1
    assert np.abs(got["scores"].astype(int) - want["scores"]).max() <= 1


def test_inputs_and_outputs_keep_names_layout_and_type() -> None:
    program = opennpu.compile(bottleneck().model)
    assert [(v.name, v.shape, v.dtype) for v in program.inputs] == [
        ("image", (1, 32, 32, 3), "int8")
    ]
    assert [(v.name, v.shape, v.dtype) for v in program.outputs] == [
        ("logits", (1, 10), "int8"),
        ("scores", (1, 10), "int8"),
    ]


def test_images_change_their_layout_at_the_ends_only() -> None:
    nodes = tflite.load_model(bottleneck().model).model.graph.node
    turned = [n.name for n in nodes if n.op_type == "Transpose"]
    assert len(turned) == 1 and "image" in turned[0], turned


def test_an_activation_that_the_codes_imply_is_no_node() -> None:
    kinds = [n.op_type for n in tflite.load_model(bottleneck().model).model.graph.node]
    assert not {"Relu", "Clip"}.intersection(kinds)


def test_a_file_is_known_by_suffix_or_first_bytes(tmp_path: Path) -> None:
    made = bottleneck()
    for name in ("m.tflite", "model.bin"):
        path = tmp_path / name
        path.write_bytes(made.model)
        for source in (path, str(path), made.model):
            assert tflite_file.is_tflite(source)
        assert opennpu.compile(path).outputs == opennpu.compile(made.model).outputs
    (tmp_path / "m.tflite").write_bytes(b"something else")
    with pytest.raises(ModelError, match="bytes 4 to 7"):
        opennpu.compile(tmp_path / "m.tflite")
    with pytest.raises(ModelError, match="No such file"):
        opennpu.compile(tmp_path / "none.tflite")


def zeros(m: Model, dtype: str, scale: float | None = None) -> int:
    """A bias of nothing for 8 filters: TFLite's convolution demands one."""
    return m.tensor("bias", (8,), dtype, np.zeros(8), scale)


def test_float_in_and_out_around_an_int8_network() -> None:
    """QUANTIZE and DEQUANTIZE at the ends, as converters write them by default."""
    m, rng = Model(), np.random.default_rng(0)
    x = m.tensor("x", (1, 8, 8, 16))
    q = m.tensor("q", (1, 8, 8, 16), "int8", None, 1 / 128, 0)
    m.op("QUANTIZE", [x], [q])
    w = rng.integers(-127, 128, (8, 3, 3, 16))
    wt = m.tensor("w", w.shape, "int8", w, [0.002] * 8)
    c = m.tensor("c", (1, 8, 8, 8), "int8", None, 0.05, 3)
    m.op("CONV_2D", [q, wt, zeros(m, "int32", 0.002 / 128)], [c], strideH=1, strideW=1)
    again = m.tensor("again", (1, 8, 8, 8), "int8", None, 0.08, -7)
    m.op("QUANTIZE", [c], [again])
    y = m.tensor("y", (1, 8, 8, 8))
    m.op("DEQUANTIZE", [again], [y])
    model = m.build([x], [y])
    feeds = {"x": rng.uniform(-1, 1, (1, 8, 8, 16)).astype(np.float32)}
    program, got = run(model, feeds)
    assert placed(program)["CONV_2D_1:c"] == "NPU"
    want = run_tflite(model, feeds)
    assert got["y"].dtype == np.float32
    assert np.abs(got["y"] - want["y"]).max() <= 0.08 * 1.001


def test_weights_stored_as_fp16_or_int8_in_a_float_network_become_float() -> None:
    rng = np.random.default_rng(0)
    feeds = {"x": rng.uniform(-1, 1, (1, 8, 8, 16)).astype(np.float32)}
    w = rng.uniform(-1, 1, (8, 1, 1, 16)).astype(np.float16)
    m = Model()
    x = m.tensor("x", (1, 8, 8, 16))
    half, full = m.tensor("half", w.shape, "float16", w), m.tensor("full", w.shape)
    m.op("DEQUANTIZE", [half], [full])
    y = m.tensor("y", (1, 8, 8, 8))
    m.op("CONV_2D", [x, full, zeros(m, "float32")], [y], strideH=1, strideW=1)
    model = m.build([x], [y])
    program, got = run(model, feeds)
    assert placed(program)["CONV_2D_1:y"] == "NPU"
    assert cosine(got["y"], run_tflite(model, feeds)["y"]) >= 0.9999

    m = Model()
    x = m.tensor("x", (1, 8, 8, 16))
    small = np.rint(w * 127).astype(np.int8)
    wt = m.tensor("w", w.shape, "int8", small, [1 / 127] * 8)
    y = m.tensor("y", (1, 8, 8, 8))
    m.op("CONV_2D", [x, wt], [y], strideH=1, strideW=1)
    program, got = run(m.build([x], [y]), feeds)
    assert placed(program)["CONV_2D_0:y"] == "NPU"
    want = feeds["x"] @ (small.reshape(8, 16).T / 127)  # TFLite would round x to int8 as well
    assert cosine(got["y"], want) >= 0.9999


def test_the_transposed_convolution_of_mediapipe_is_that_of_tflite_with_a_bias() -> None:
    layer = Layer(
        "TRANSPOSE_CONV",
        (N([1, 18, 14, 8]), W((8, 2, 2, 16)), IMAGE, B(8)),
        ((1, 18, 14, 8),),
        TWO,
    )
    made = build(layer)
    want = run_tflite(made.model, made.feeds)
    weights, bias = (
        t.data for t in tflite_file.read_file(made.model).subgraphs[0].tensors if t.name[0] in "wb"
    )
    m = Model()
    x = m.tensor("x2", IMAGE.shape)
    w = m.tensor("w", weights.shape, "float32", weights)
    b = m.tensor("b", bias.shape, "float32", bias)
    y = m.tensor("y0", (1, 18, 14, 8))
    m.custom("Convolution2DTransposeBias", [x, w, b], [y], struct.pack("<3i", 1, 2, 2))
    _, got = run(m.build([x], [y]), made.feeds)
    assert cosine(got["y0"], want["y0"]) >= 0.9999


def test_uint8_weights_off_the_middle_are_right_wherever_they_run() -> None:
    rng = np.random.default_rng(0)
    m = Model()
    x = m.tensor("x", (1, 8, 8, 16), "uint8", None, 1 / 128, 120)
    w = rng.integers(0, 256, (8, 1, 1, 16))
    wt = m.tensor("w", w.shape, "uint8", w, 0.01, 97)
    y = m.tensor("y", (1, 8, 8, 8), "uint8", None, 0.05, 110)
    m.op("CONV_2D", [x, wt, zeros(m, "int32", 0.01 / 128)], [y], strideH=1, strideW=1)
    model = m.build([x], [y])
    feeds = {"x": rng.integers(0, 256, (1, 8, 8, 16)).astype(np.uint8)}
    _, got = run(model, feeds)
    want = run_tflite(model, feeds)["y"].astype(int)
    assert len(np.unique(want)) > 4
    assert np.abs(got["y"].astype(int) - want).max() <= 1


def command(*args: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-W", "error", "-m", "opennpu.cli", *map(str, args)]
    return subprocess.run(line, cwd=cwd, capture_output=True, text=True, timeout=120, check=False)


def test_the_command_checks_compiles_and_runs_tflite_files(tmp_path: Path) -> None:
    layer = Layer("CONV_2D", (X((1, 9, 7, 3)), W((8, 3, 3, 3)), B(8)), ((1, 9, 7, 8),), ONE)
    made = build(layer)
    (tmp_path / "m.tflite").write_bytes(made.model)
    Image.new("RGB", (40, 30), (255, 128, 0)).save(tmp_path / "orange.png")
    done = command("check", "m.tflite", "--json", cwd=tmp_path)
    assert {n["name"]: n["where"] for n in json.loads(done.stdout)}["CONV_2D_0:y0"] == "NPU"
    assert command("compile", "m.tflite", "-o", "m.npu", cwd=tmp_path).returncode == 0
    done = command("run", "m.npu", "-i", "orange.png", "--output-dir", ".", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    pixels = np.broadcast_to(np.array([255, 128, 0], np.float32) / 255, (1, 9, 7, 3))
    want = run_tflite(made.model, {"x0": pixels})["y0"]
    assert cosine(np.load(tmp_path / "y0.npy"), want) >= 0.9999

    (tmp_path / "codes.tflite").write_bytes(build(layer, "int8").model)
    assert command("compile", "codes.tflite", "-o", "codes.npu", cwd=tmp_path).returncode == 0
    done = command("run", "codes.npu", "-i", "orange.png", cwd=tmp_path)
    assert done.returncode == 2 and "x0: takes int8 codes" in done.stderr


# -- refused ---------------------------------------------------------------------------------


def one(op: str, **options: Any) -> bytes:
    """A file of one operator on a float image."""
    m = Model()
    x, y = m.tensor("in", (1, 4, 4, 8)), m.tensor("out", (1, 4, 4, 8))
    m.op(op, [x], [y], **options)
    return m.build([x], [y])


def test_an_unknown_operator_is_refused_by_name_and_index() -> None:
    m = Model()
    x, y, z = (m.tensor(n, (1, 4, 4, 8)) for n in ("in", "between", "out"))
    m.op("RELU", [x], [y])
    m.op("COMPLEX_ABS", [y], [z])
    with pytest.raises(UnsupportedError, match="operator 1: COMPLEX_ABS, which writes out, is not"):
        opennpu.compile(m.build([x], [z]))


def test_shapes_that_the_operators_do_not_make_are_refused_with_both() -> None:
    m = Model()
    x, y = m.tensor("in", (1, 4, 4, 8)), m.tensor("out", (1, 4, 5, 8))
    m.op("RELU", [x], [y])
    with pytest.raises(
        ModelError, match=r"tensor 1 out has the shape \[1, 4, 5, 8\].* \[1, 4, 4, 8\]"
    ):
        opennpu.compile(m.build([x], [y]))


def test_operators_in_a_wrong_order_are_refused_by_name() -> None:
    m = Model()
    x, y, z = (m.tensor(n, (1, 4, 4, 8)) for n in ("in", "between", "out"))
    m.op("RELU", [y], [z])
    m.op("RELU", [x], [y])
    with pytest.raises(
        ModelError, match="operator 0 RELU: it reads tensor 1 between, which nothing"
    ):
        opennpu.compile(m.build([x], [z]))


def test_codes_of_16_bits_are_refused_by_the_name_of_the_tensor() -> None:
    layer = next(la for la in LAYERS if la.op == "CONV_2D")
    with pytest.raises(UnsupportedError, match="CONV_2D writes y0 in codes of 16 bits, those of 8"):
        opennpu.compile(build(layer, "int16").model)


def test_codes_that_move_between_scales_are_refused_with_both() -> None:
    m = Model()
    x = m.tensor("in", (1, 4, 4, 8), "int8", None, 0.5, 3)
    y = m.tensor("out", (1, 128), "int8", None, 0.25, 3)
    m.op("RESHAPE", [x], [y])
    with pytest.raises(ModelError, match=r"from in to out, .* are \[0.5, 3\] and \[0.25, 3\]"):
        opennpu.compile(m.build([x], [y]))


def test_an_unknown_padding_is_refused_by_its_number() -> None:
    with pytest.raises(ModelError, match="operator 0 MAX_POOL_2D: its padding is 2, 0 .SAME. and"):
        opennpu.compile(one("MAX_POOL_2D", **window(1, 1, **ONE, padding=2)))


def test_missing_options_are_refused_by_name() -> None:
    m = Model()
    x, y = m.tensor("in", (1, 4, 4, 8)), m.tensor("out", (1, 4, 4, 8))
    w = m.tensor("w", (8, 1, 1, 8), "float32", np.ones((8, 1, 1, 8)))
    m.op("CONV_2D", [x, w], [y])
    m.graph.operators[0].builtinOptionsType = 0
    m.graph.operators[0].builtinOptions = None
    with pytest.raises(ModelError, match="operator 0 CONV_2D: its options .NONE. have no Stride"):
        opennpu.compile(m.build([x], [y]))


def test_a_bad_scale_is_refused_by_the_name_of_its_tensor() -> None:
    m = Model()
    x = m.tensor("in", (1, 4, 4, 8), "int8", None, -0.5, 0)
    y = m.tensor("out", (1, 4, 4, 8), "int8", None, 0.5, 0)
    m.op("RELU", [x], [y])
    with pytest.raises(ModelError, match="tensor 0 in has the scale -0.5"):
        opennpu.compile(m.build([x], [y]))


def test_a_constant_of_wrong_size_is_refused_with_both_numbers() -> None:
    m = Model()
    x, y = m.tensor("in", (1, 4, 4, 8)), m.tensor("out", (1, 4, 4, 8))
    w = m.tensor("w", (8, 1, 1, 8), "float32", np.ones((8, 1, 1, 7)))
    m.op("CONV_2D", [x, w], [y], strideH=1, strideW=1)
    with pytest.raises(
        ModelError, match=r"tensor 2 w of shape .* has 224 bytes, float32 takes 256"
    ):
        opennpu.compile(m.build([x], [y]))


def test_without_the_schema_package_the_sentence_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "tflite", None)
    with pytest.raises(ModelError, match=r"pip install 'opennpu\[tflite\]'"):
        opennpu.compile(one("RELU"))


# -- broken files ----------------------------------------------------------------------------


def test_every_cut_is_an_error() -> None:
    data = bottleneck().model
    for end in [*range(0, 64, 3), *range(64, len(data), len(data) // 60)]:
        with pytest.raises(NPUError):
            tflite_file.read_file(data[:end])


def test_a_root_behind_the_end_is_an_error() -> None:
    data = bottleneck().model
    for offset in (len(data), 2**31 - 1, 2**32 - 1):
        with pytest.raises(ModelError, match="no whole TFLite model"):
            opennpu.compile(struct.pack("<I", offset) + data[4:])


@pytest.mark.parametrize("seed", range(4))
def test_mutated_files_compile_or_raise_our_errors(seed: int) -> None:
    """50 files each, with one to four bytes changed outside of the weights."""
    rng = np.random.default_rng(seed)
    original = bottleneck().model
    refused = 0
    for _ in range(50):
        data = bytearray(original)
        for _ in range(rng.integers(1, 5)):
            data[rng.integers(8, len(data))] = rng.integers(0, 256)
        try:
            opennpu.compile(bytes(data))
        except NPUError:
            refused += 1
    assert refused > 5
