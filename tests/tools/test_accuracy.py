"""`opennpu accuracy`: the numbers are right, and a broken layer is the one that is named."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from pages import host_cnn, read_page
from typer.testing import CliRunner

import opennpu
from examples.mobilenet.export import mobilenet_v2
from examples.mobilenet.images import calibration_feeds, photograph, preprocess
from examples.models.fetch import FetchError
from nets import cosine, model, random_feeds, small_cnn
from opennpu.cli import app
from opennpu.compile import STAGES, Options, State, compile_state
from opennpu.errors import InputError, NPUError
from opennpu.ir.graph import Quant
from opennpu.program import NpuSegment, ValueInfo
from opennpu.tools.accuracy import Layer, Report, accuracy, compare
from opennpu.tools.data import Feeds, load_folder
from opennpu.tools.data import random_feeds as random_data


def noise(count: int) -> Callable[[Sequence[ValueInfo]], list[Feeds]]:
    return lambda inputs: [random_data(inputs, seed) for seed in range(count)]


def calibration() -> list[dict[str, Any]]:
    return [random_feeds(small_cnn(), seed) for seed in range(4)]


def by_name(report: Report) -> dict[str, Layer]:
    return {x.name: x for x in report.layers}


def by_value(report: Report) -> dict[str, Layer]:
    return {x.value: x for x in report.layers}


def deep_cnn(gain: float = 1.0) -> onnx.ModelProto:
    """Four convolutions with a Relu each; ``gain`` multiplies the weights of the second."""
    rng = np.random.default_rng(3)
    nodes, constants, last = [], {}, "x"
    for i in range(4):
        w = rng.normal(size=(16, 16, 3, 3)).astype(np.float32) / 12
        constants[f"w{i}"] = w * np.float32(gain if i == 1 else 1.0)
        nodes.append(helper.make_node("Conv", [last, f"w{i}"], [f"c{i}"], f"conv{i}", pads=[1] * 4))
        nodes.append(helper.make_node("Relu", [f"c{i}"], [f"r{i}"], f"relu{i}"))
        last = f"r{i}"
    return model(nodes, {"x": (1, 16, 12, 12)}, {last: (1, 16, 12, 12)}, constants)


def broken(net: onnx.ModelProto, breaking: Callable[[State], None], stage: str) -> State:
    """Compiled to int8 with every value kept; ``breaking`` is called after that stage."""
    data = [random_feeds(net, seed) for seed in range(4)]
    state = State(net, Options("int8"), data, None, keep_values=True)
    for name, step in STAGES:
        step(state)
        if name == stage:
            breaking(state)
    return state


# -- the numbers -----------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["fp16", "int8"])
def test_keeping_all_values_changes_no_word(precision: Any) -> None:
    options = {"precision": precision, "calibration": calibration()}
    kept = compile_state(small_cnn(), keep_values=True, **options).program
    plain = opennpu.compile(small_cnn(), **options)
    codes = [[s.code for s in p.segments if isinstance(s, NpuSegment)] for p in (kept, plain)]
    assert codes[0] == codes[1]


def test_the_last_layer_is_what_the_program_gives() -> None:
    """The report's cosine of an output equals that of an ordinary run against onnxruntime."""
    import onnxruntime as ort

    options: dict[str, Any] = {"precision": "int8", "calibration": calibration()}
    report = accuracy(host_cnn(), noise(1), device="emulator", **options)
    feeds = random_data([ValueInfo("x", (1, 3, 16, 16), "float32")], 0)
    with opennpu.InferenceSession(opennpu.compile(host_cnn(), **options), "emulator") as session:
        (ours,) = session.run(None, feeds)
    (want,) = ort.InferenceSession(host_cnn().SerializeToString()).run(None, feeds)
    last = by_value(report)["y"]
    pair = want.astype(np.float64), ours.astype(np.float64)
    assert last.name == "top" and last.where == "CPU" and last.own is None
    assert last.accumulated.cosine == pytest.approx(cosine(*pair), abs=1e-7)
    assert last.accumulated.max_error == pytest.approx(float(np.abs(want - ours).max()), rel=1e-5)


def test_a_good_model_has_no_bad_layer_and_says_what_was_fused() -> None:
    report = accuracy(small_cnn(), noise(2), device="emulator")
    layers = by_name(report)
    assert report.first_bad is None and "No layer is below cosine 0.99" in report.sentence
    assert layers["stem"].stands_for == ("stem", "bn", "relu6")
    assert layers["stem"].elements == 2 * 16 * 8 * 8
    assert layers["flat"].own is None and layers["flat"].note
    for x in report.layers:
        assert x.accumulated.cosine is not None and x.accumulated.cosine > 0.9999
    first = layers["stem"]  # nothing before it: both errors are the same
    assert first.own == first.accumulated


def test_relu_at_its_lower_code_is_not_clipped() -> None:
    report = accuracy(
        small_cnn(), noise(2), device="emulator", precision="int8", calibration=calibration()
    )
    dw = by_name(report)["dw"]
    assert dw.low_codes > 0.2 * dw.elements
    assert dw.clipped < 0.01 * dw.elements


# -- broken layers ---------------------------------------------------------------------------


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_a_wrong_scale_is_found_at_its_layer(victim: int) -> None:
    """The range of one activation is 50 times too small: everything above it is clipped."""

    def shrink(state: State) -> None:
        old = state.graph.values[f"r{victim}"]
        assert old.quant is not None
        quant = Quant(np.asarray(old.quant.scale / np.float32(50)), old.quant.zero_point)
        values = {**state.graph.values, old.name: replace(old, quant=quant)}
        state.graph = state.graph.with_(values=values)

    report = compare(broken(deep_cnn(), shrink, "quantize"), noise(2), device="emulator")
    bad = report.first_bad
    assert bad is not None and bad.name == f"conv{victim}"
    assert f"First bad layer: conv{victim} (Conv, NPU): cosine 0." in report.sentence
    assert bad.clipped > 0.2 * bad.elements and bad.own_bad(report.min_cosine)
    for x in report.layers[victim + 2 :]:  # the next one reads the clipped codes
        assert not x.own_bad(report.min_cosine), "alone, layers behind it are fine"


def test_wrong_weights_are_found_at_their_layer() -> None:
    def flip(state: State) -> None:
        name = next(n for n in state.graph.nodes if n.name == "conv2").inputs[1]
        constants = {**state.graph.constants, name: -state.graph.constants[name][::-1]}
        state.graph = state.graph.with_(constants=constants)

    report = compare(broken(deep_cnn(), flip, "quantize"), noise(1), device="emulator")
    assert report.first_bad is not None and report.first_bad.name == "conv2"
    assert [x.name for x in report.layers if x.own_bad(0.99)] == ["conv2"]


def test_overflow_of_fp16_is_found_at_its_layer() -> None:
    report = accuracy(deep_cnn(1e5), noise(1), device="emulator")
    bad = report.first_bad
    assert bad is not None and bad.name == "conv1" and bad.infinite > 0
    assert f"{bad.infinite} infinities and 0 NaN of {bad.elements} elements" in report.sentence
    assert bad.own is not None and bad.own_bad(0.99), "alone it overflows as well"
    assert f"; {bad.own.nonfinite} with float inputs." in report.sentence
    assert by_name(report)["conv0"].infinite == 0
    assert "beyond fp16" in by_name(report)["conv2"].note
    json.dumps(report.to_json(), allow_nan=False)


def test_a_layer_of_several_tables_runs_alone() -> None:
    """A layer whose tables an earlier layer loaded must not depend on it."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], "conv"),
        helper.make_node("Sigmoid", ["a"], ["b"], "first"),
        helper.make_node("Conv", ["b", "w"], ["c"], "between"),
        helper.make_node("Sigmoid", ["c"], ["y"], "second"),
    ]
    w = np.random.default_rng(0).normal(size=(8, 8, 1, 1)).astype(np.float32)
    net = model(nodes, {"x": (1, 8, 6, 6)}, {"y": (1, 8, 6, 6)}, {"w": w})
    report = accuracy(net, noise(1), device="emulator")
    assert report.first_bad is None
    for x in report.layers:
        assert x.own is None or (x.own.cosine or 0) > 0.999


# -- what users see --------------------------------------------------------------------------


def test_page_needs_nothing_from_outside_and_marks_the_bad_layer() -> None:
    text = accuracy(deep_cnn(1e5), noise(1), device="emulator").to_html()
    page = read_page(text)
    assert "svg" in page.tags and "First bad layer: conv1" in page.text
    assert text.count('<tr class="bad">') >= 1


def test_names_are_escaped() -> None:
    net = deep_cnn()
    net.graph.name = "<b>&net"
    for n in net.graph.node:
        n.name = f"<i>{n.name}</i>&"
    page = read_page(accuracy(net, noise(1), device="emulator").to_html())
    assert "<i>conv0</i>&" in page.text and "i" not in page.tags


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    onnx.save(small_cnn(), str(tmp_path / "net.onnx"))
    onnx.save(deep_cnn(1e5), str(tmp_path / "big.onnx"))
    silent = model([helper.make_node("Relu", ["x"], ["y"], "relu")], {"x": (1, 4)}, {})
    onnx.save(silent, str(tmp_path / "silent.onnx"))
    for kind, arrays in {
        "good": {"x": random_feeds(small_cnn())["x"]},
        "name": {"z": random_feeds(small_cnn())["x"]},
        "less": {},
        "shape": {"x": np.zeros((1, 3, 8, 8), np.float32)},
        "dtype": {"x": np.zeros((1, 3, 16, 16), np.float64)},
    }.items():
        (tmp_path / kind).mkdir()
        np.savez(tmp_path / kind / "0.npz", **arrays)  # type: ignore[arg-type]
    (tmp_path / "empty").mkdir()
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "0.npz").write_text("no arrays")
    (tmp_path / "npy").mkdir()
    np.save(tmp_path / "npy" / "0.npy", random_feeds(small_cnn())["x"])
    return tmp_path


def call(*args: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, [*map(str, args)])
    if isinstance(done.exception, NPUError):
        return 2, str(done.exception)
    return done.exit_code, done.output


def test_command_line(folder: Path) -> None:
    html = folder / "report.html"
    code, text = call(
        *("accuracy", folder / "net.onnx", "--data", folder / "good", "--device", "emulator"),
        *("--html", html),
    )
    assert code == 0, text
    assert "own cosine" in text and "No layer is below cosine 0.99" in text
    read_page(html.read_text())
    code, text = call(
        *("accuracy", folder / "net.onnx", "--random", 2, "--device", "emulator", "--json"),
        *("--min-cosine", 1),
    )
    data = json.loads(text)
    assert code == 1 and data["first_bad"] == "stem" and data["samples"] == 2
    code, text = call(*("accuracy", folder / "big.onnx", "--random", 1, "--device", "emulator"))
    assert code == 1 and "First bad layer: conv1" in text


def test_npy_files_do_for_one_input(folder: Path) -> None:
    (sample,) = load_folder(folder / "npy", [ValueInfo("x", (1, 3, 16, 16), "float32")])
    assert sample["x"].shape == (1, 3, 16, 16)
    two = [ValueInfo(n, (1, 3, 16, 16), "float32") for n in "xy"]
    with pytest.raises(InputError, match="holds 1 array, the model has 2 inputs"):
        load_folder(folder / "npy", two)


REFUSED = [
    (("--data", "absent"), "absent: there is no such folder. Give a folder of .npz files"),
    (("--data", "empty"), "holds 0 .npz and 0 .npy files, at least 1 is needed"),
    (("--data", "text"), "0.npz: is no .npz file"),
    (("--data", "name"), "0.npz: holds an array 'z', the model's 1 inputs are ['x']"),
    (("--data", "less"), "0.npz: lacks 'x': it holds 0 of 1 inputs"),
    (("--data", "shape"), "'x' is float32[1, 3, 8, 8], the model takes float32[1, 3, 16, 16]"),
    (("--data", "dtype"), "'x' is float64[1, 3, 16, 16], the model takes float32"),
    ((), "0 of --data and --random were given, it takes 1"),
    (("--data", "good", "--random", "1"), "2 of --data and --random were given, it takes 1"),
    (("--random", "0"), "--random: 0 samples, at least 1 is needed"),
    (("--random", "1", "--min-cosine", "7"), "--min-cosine: 7 is not in -1 to 1"),
    (("--random", "1", "--precision", "int8"), "0 samples, at least 1 is needed"),
    (("--random", "1", "--device", "gpu"), "'gpu' is none of the"),
]


@pytest.mark.parametrize(("args", "part"), REFUSED, ids=[" ".join(a) for a, _ in REFUSED])
def test_refusal_is_a_sentence(folder: Path, args: tuple[str, ...], part: str) -> None:
    paths = [folder / a if (folder / a).is_dir() or a == "absent" else a for a in args]
    code, text = call("accuracy", folder / "net.onnx", *paths)
    assert code == 2 and part in text and text.rstrip().endswith(".")


def test_a_model_without_outputs_is_refused(folder: Path) -> None:
    code, text = call("accuracy", folder / "silent.onnx", "--random", 1)
    assert code == 2 and "0 outputs" in text and text.rstrip().endswith(".")


@pytest.mark.models
def test_mobilenet() -> None:
    try:
        net = mobilenet_v2()
        feeds = {"image": preprocess(photograph("chelsea"))}
        data = [f for f, _ in zip(calibration_feeds(), range(4), strict=False)]
    except FetchError as e:
        if os.environ.get("OPENNPU_REQUIRE_MODELS"):
            raise
        pytest.skip(str(e))
    report = accuracy(net, lambda _: [feeds], device="emulator", precision="int8", calibration=data)
    assert len(report.layers) == 56 and report.first_bad is None
    own = [x.own.cosine for x in report.layers if x.own and x.own.cosine is not None]
    assert len(own) >= 55 and min(own) > 0.998
