"""The command line: what it prints, what it refuses, and that it never leaves half a file."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper
from PIL import Image

from nets import model, random_feeds, small_cnn


def opennpu(*args: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run the command as a user does."""
    command = [sys.executable, "-W", "error", "-m", "opennpu.cli", *map(str, args)]
    return subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, its program, data, and an image."""
    path = tmp_path_factory.mktemp("cli")
    onnx.save(small_cnn(), str(path / "net.onnx"))
    onnx.save(small_cnn(batch="batch"), str(path / "open.onnx"))
    bad = model(
        [helper.make_node("Foo", ["x"], ["y"], "foo", domain="bar")], {"x": (1,)}, {"y": (1,)}
    )
    bad.opset_import.append(helper.make_opsetid("bar", 1))
    onnx.save(bad, str(path / "unknown.onnx"))
    (path / "cut.onnx").write_bytes(small_cnn().SerializeToString()[:777])
    np.save(path / "x.npy", random_feeds(small_cnn())["x"])
    np.save(path / "double.npy", random_feeds(small_cnn())["x"].astype(np.float64))
    np.save(path / "small.npy", np.zeros((1, 3, 8, 8), np.float32))
    Image.new("RGB", (40, 30), (200, 10, 60)).save(path / "red.png")
    (path / "text.png").write_text("no image")
    done = opennpu("compile", "net.onnx", "-o", "net.npu", cwd=path)
    assert done.returncode == 0, done.stderr
    data = (path / "net.npu").read_bytes()
    (path / "cut.npu").write_bytes(data[:-100])
    (path / "flipped.npu").write_bytes(data[:5000] + bytes([data[5000] ^ 1]) + data[5001:])
    return path


def test_check_lists_every_node_with_a_reason(folder: Path) -> None:
    done = opennpu("check", "net.onnx", "--json", cwd=folder)
    nodes = {n["name"]: n for n in json.loads(done.stdout)}
    assert done.returncode == 0
    assert nodes["stem"]["where"] == "NPU" and nodes["stem"]["macs"] == 8 * 8 * 16 * 3 * 9
    assert nodes["softmax"]["where"] == "CPU" and nodes["softmax"]["reason"]
    assert "of the MACs on the NPU." in opennpu("check", "net.onnx", cwd=folder).stdout


def test_run_prints_and_writes_outputs(folder: Path, tmp_path: Path) -> None:
    args = ("run", folder / "net.npu", "--input", f"x={folder / 'x.npy'}", "--device", "emulator")
    done = opennpu(*args, "--output-dir", tmp_path, "--json", cwd=folder)
    report = json.loads(done.stdout)
    assert report["device"] == "emulator" and report["npu_s_is"] == "predicted"
    y = np.load(tmp_path / "y.npy")
    assert y.shape == (1, 10) and abs(y.sum() - 1) < 1e-3


def test_a_stored_sample_checks_the_program_anywhere(folder: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "s.npz", x=np.load(folder / "x.npy"))
    out = tmp_path / "s.npu"
    done = opennpu("compile", "net.onnx", "-o", out, "--sample", tmp_path / "s.npz", cwd=folder)
    assert done.returncode == 0, done.stderr
    done = opennpu("run", out, "--sample", "--device", "emulator", "--json", cwd=folder)
    assert json.loads(done.stdout)["outputs"][0]["cosine"] > 0.9999


def test_run_takes_an_image(folder: Path) -> None:
    done = opennpu("run", "net.npu", "--input", "red.png", "--mean", "0.5", cwd=folder)
    assert done.returncode == 0 and "(predicted)" in done.stdout


def test_disasm_is_python_with_symbolic_addresses(folder: Path) -> None:
    text = opennpu("disasm", "net.npu", cwd=folder).stdout
    assert "cna.CONV_CON1(" in text and "# task stem" in text and "+ &const[0x" in text
    assert "Raw(" not in text


def test_inspect_and_devices(folder: Path) -> None:
    data = json.loads(opennpu("inspect", "net.npu", "--json", cwd=folder).stdout)
    assert data["inputs"] == [{"name": "x", "shape": [1, 3, 16, 16], "dtype": "float32"}]
    names = [d["name"] for d in json.loads(opennpu("devices", "--json", cwd=folder).stdout)]
    assert "emulator" in names


REFUSED = [
    (("compile", "absent.onnx", "-o", "o.npu"), "absent.onnx: No such file or directory."),
    (("compile", "cut.onnx", "-o", "o.npu"), "cut.onnx: "),
    (("compile", "x.npy", "-o", "o.npu"), "x.npy: "),
    (("compile", "open.onnx", "-o", "o.npu"), "x: axis 0 has the open size 'batch'"),
    (("compile", "unknown.onnx", "-o", "o.npu"), "foo: operator Foo of domain 'bar'"),
    (("compile", "net.onnx", "-o", "o.npu", "--precision", "int5"), "precision is 'int5'"),
    (("compile", "net.onnx", "-o", "o.npu", "--target", "tpu"), "target is 'tpu'"),
    (("compile", "net.onnx", "-o", "o.npu", "--precision", "int8"), "0 samples"),
    (("compile", "net.onnx", "-o", "o.npu", "--fix-dim", "batch"), "'batch' is not NAME=SIZE"),
    (("compile", "net.onnx", "-o", "no/such/o.npu"), "no/such"),
    (("run", "absent.npu"), "absent.npu: "),
    (("run", "net.onnx"), "net.onnx: "),
    (("run", "cut.npu"), "cut.npu: "),
    (("run", "flipped.npu"), "flipped.npu: "),
    (("run", "net.npu"), "x: "),
    (("run", "net.npu", "--sample"), "holds 0 samples"),
    (("run", "net.npu", "--input", "z=x.npy"), "z: the program has 1 inputs"),
    (("run", "net.npu", "--input", "x=small.npy"), "[1, 3, 8, 8]"),
    (("run", "net.npu", "--input", "x=double.npy"), "float64"),
    (("run", "net.npu", "--input", "x=text.png"), "text.png: is neither .npy nor an image"),
    (("run", "net.npu", "--input", "x=absent.npy"), "absent.npy: No such file"),
    (("run", "net.npu", "--input", "x=x.npy", "--device", "gpu"), "gpu"),
    (("disasm", "cut.npu"), "cut.npu: "),
    (("inspect", "x.npy"), "x.npy: "),
]


@pytest.mark.parametrize(("args", "part"), REFUSED, ids=[" ".join(a) for a, _ in REFUSED])
def test_refusal_is_one_sentence_and_exit_code_2(
    folder: Path, args: tuple[str, ...], part: str
) -> None:
    before = sorted(p.name for p in folder.iterdir())
    done = opennpu(*args, cwd=folder)
    assert done.returncode == 2, done.stdout + done.stderr
    assert part in done.stderr and done.stderr.rstrip().endswith(".")
    assert "Traceback" not in done.stderr and done.stdout == ""
    assert sorted(p.name for p in folder.iterdir()) == before
