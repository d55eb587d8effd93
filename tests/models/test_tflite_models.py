"""Real TFLite networks from the package registry, against TFLite's reference kernels.

MediaPipe's face models (fp16 weights, one of them sparse), and int8 wake words that keep state.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_real_models import npu_share

import opennpu
from examples.mobilenet.images import photograph
from examples.models.fetch import FetchError, fetch_all
from nets import cosine
from opennpu.frontends.tflite import initial_state
from opennpu.frontends.tflite_file import read_file
from tflite_nets import alone, interpreter, run_tflite

pytestmark = pytest.mark.models


def files(name: str) -> dict[str, Path]:
    try:
        return {p.stem: p for p in fetch_all(name)}
    except FetchError as e:
        if os.environ.get("OPENNPU_REQUIRE_MODELS"):
            raise
        pytest.skip(str(e))


FACES = [
    *("face_detection_back", "face_detection_front", "face_detection_full_range"),
    *("face_detection_full_range_sparse", "face_detection_short_range", "face_landmark"),
    "iris_landmark",
]


@pytest.mark.parametrize("name", FACES)
def test_a_face_model_answers_as_in_tflite(name: str) -> None:
    path = files("face")[name]
    program = opennpu.compile(path)
    (x,) = program.inputs
    image = photograph("astronaut").convert("RGB").resize((x.shape[2], x.shape[1]))
    feeds = {x.name: np.asarray(image, np.float32)[None] / 127.5 - 1}
    want = run_tflite(path.read_bytes(), feeds)
    with opennpu.InferenceSession(program, "emulator") as session:
        results = session.run(None, feeds)
        assert session.last is not None and not session.last.violations
    share = npu_share(program)
    print(f"{name}: {100 * share:.1f} % of the MACs on the NPU")
    assert share >= 0.95
    for v, got in zip(program.outputs, results, strict=True):
        assert (got.shape, got.dtype) == (want[v.name].shape, want[v.name].dtype)
        print(f"{name}: {v.name} cosine {cosine(got, want[v.name]):.6f}")
        assert cosine(got, want[v.name]) >= 0.9999


def assigned(path: Path) -> dict[str, int]:
    """Variable → tensor that is stored in it last."""
    graph = read_file(path).subgraphs[0]
    handles: dict[int, str] = {}
    last: dict[str, int] = {}
    for op in graph.operators:
        if op.name == "VAR_HANDLE":
            assert op.options is not None
            handles[op.outputs[0]] = op.options["SharedName"].decode()
        if op.name == "ASSIGN_VARIABLE":
            last[handles[op.inputs[0]]] = op.inputs[1]
    return last


def sounds(shape: Sequence[int], count: int) -> list[Any]:
    rng = np.random.default_rng(0)
    return [np.clip(rng.normal(0, 60, shape), -128, 127).astype(np.int8) for _ in range(count)]


WAKE_WORDS = ["alexa", "hey_jarvis", "hey_mycroft", "okay_nabu"]
STATE = ("CALL_ONCE", "VAR_HANDLE", "READ_VARIABLE", "ASSIGN_VARIABLE")


@pytest.mark.parametrize("name", WAKE_WORDS)
def test_a_wake_word_hears_and_remembers_as_in_tflite(name: str) -> None:
    """Step by step, both from TFLite's state, so that errors do not add up over time."""
    path = files("wakeword")[name]
    program = opennpu.compile(path)
    state = initial_state(path)
    audio = next(v for v in program.inputs if v.name not in state)
    share = npu_share(program)
    assert share >= 0.95
    lite = interpreter(path.read_bytes(), experimental_preserve_all_tensors=True)
    answer = lite.get_output_details()[0]
    last = assigned(path)
    worst = 0
    with opennpu.InferenceSession(program, "emulator") as session:
        for x in sounds(audio.shape, 6):
            lite.set_tensor(lite.get_input_details()[0]["index"], x)
            lite.invoke()
            want = {f"{v}/next": lite.get_tensor(i) for v, i in last.items()}
            want[answer["name"]] = lite.get_tensor(answer["index"])
            results = session.run(None, {audio.name: x, **state})
            for v, got in zip(program.outputs, results, strict=True):
                a = want[v.name]
                assert (got.shape, got.dtype) == (a.shape, a.dtype)
                off = int(np.abs(got.astype(int) - a).max())
                worst = max(worst, off)
                if v.name == answer["name"]:
                    assert off <= 1
                else:
                    assert cosine(got + 128.0, a + 128.0) >= 0.999
            state = {v: want[f"{v}/next"] for v in last}
    assert all(len(np.unique(a)) > 4 for a in state.values()), "the state says nothing"
    print(f"{name}: {100 * share:.1f} % of the MACs on the NPU, {worst} codes off at most")


@pytest.mark.parametrize("name", WAKE_WORDS)
def test_each_layer_of_a_wake_word_is_within_one_count_of_tflite(name: str) -> None:
    """Each operator in a file of its own, fed with what TFLite has there in the fourth step."""
    path = files("wakeword")[name]
    model, graph = path.read_bytes(), read_file(path).subgraphs[0]
    lite = interpreter(model, experimental_preserve_all_tensors=True)
    for x in sounds(lite.get_input_details()[0]["shape"], 4):
        lite.set_tensor(lite.get_input_details()[0]["index"], x)
        lite.invoke()
    equal = count = 0
    for op in graph.operators:
        if op.name in STATE:
            continue
        program = opennpu.compile(alone(model, op.index))
        reads = dict.fromkeys(i for i in op.inputs if i >= 0 and graph.tensors[i].data is None)
        feeds = {v.name: lite.get_tensor(i) for v, i in zip(program.inputs, reads, strict=True)}
        with opennpu.InferenceSession(program, "emulator") as session:
            results = session.run(None, feeds)
        for got, i in zip(results, op.outputs, strict=True):
            want = lite.get_tensor(i)
            off = np.abs(got.astype(int) - want)
            assert off.max() <= 1, (op.index, op.name, int(off.max()))
            equal, count = equal + int((off == 0).sum()), count + off.size
    print(f"{name}: {equal} of {count} numbers equal, the others 1 off")
