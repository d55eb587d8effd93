"""`opennpu profile` and `opennpu bench`: sums, labels, traces and pages."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from pages import host_cnn, read_page
from typer.testing import CliRunner

import opennpu
from nets import random_feeds, small_cnn
from opennpu.cli import app
from opennpu.device.fakekernel import FakeKernel
from opennpu.device.rknpu import RknpuDevice
from opennpu.emu import timing
from opennpu.errors import NPUError
from opennpu.program import NpuSegment, Program
from opennpu.tools.bench import bench
from opennpu.tools.layers import layers, one_job_each
from opennpu.tools.profile import Profile, profile


def compiled(precision: Any = "fp16", target: str = "rknpu") -> Program:
    data = [random_feeds(small_cnn(), seed) for seed in range(2)]
    return opennpu.compile(host_cnn(), precision=precision, calibration=data, target=target)


@pytest.fixture(scope="module")
def program() -> Program:
    return compiled()


@pytest.fixture(scope="module")
def predicted(program: Program) -> Profile:
    return profile(program, "emulator")


# -- taking a program apart ------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["fp16", "int8"])
@pytest.mark.parametrize("target", ["rknpu", "rocket"])
def test_a_job_for_each_layer_gives_the_same_bytes(precision: str, target: str) -> None:
    whole = compiled(precision, target)
    apart = one_job_each(whole)
    assert len(apart.segments) > len(whole.segments)
    feeds = random_feeds(small_cnn())
    results = []
    for p in (whole, apart):
        with opennpu.InferenceSession(p, "emulator") as session:
            results.append(session.run(None, feeds)[0])
    assert results[0].tobytes() == results[1].tobytes()


def test_layers_keep_their_words_but_for_the_last_link(program: Program) -> None:
    pieces = [s for s in one_job_each(program).segments if isinstance(s, NpuSegment)]
    whole = [s for s in program.segments if isinstance(s, NpuSegment)]
    parts = [(s, x) for s in whole for x in layers(s)]
    assert len(parts) == len(pieces)
    for (s, layer), piece in zip(parts, pieces, strict=True):
        code, mine = np.frombuffer(s.code, "<u8"), np.frombuffer(piece.code, "<u8")
        for there, here in zip(layer.tasks, piece.tasks, strict=True):
            body = slice(there.word, there.word + there.words - 4)
            assert (code[body] == mine[here.word : here.word + here.words - 4]).all()


# -- predictions -----------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["fp16", "int8"])
def test_layers_and_submits_are_the_emulators_time(precision: str) -> None:
    """Compiler and emulator count the same cycles and bytes: there is one cycle model."""
    p = compiled(precision)
    found = profile(p, "emulator")
    with opennpu.InferenceSession(p, "emulator") as session:
        session.run(None, random_feeds(small_cnn()))
        assert session.last is not None
        npu_s = session.last.npu_s
    assert found.total("layer", "submit") == pytest.approx(npu_s, rel=0.01)


def test_the_parts_of_a_layer_are_its_time_and_the_largest_its_bound(predicted: Profile) -> None:
    npu = [x for x in predicted.layers if x.where == "NPU"]
    assert [x.name for x in predicted.layers] == ["stem", "dw", "pw", "gap", "fc", "top"]
    for x in npu:
        parts = {"MAC": x.mac_s, "DMA": x.dma_s, "dispatch": x.dispatch_s}
        assert x.seconds == pytest.approx(sum(parts.values()))
        assert parts[x.bound] == max(parts.values())
        assert x.utilisation is None or 0 < x.utilisation < 1
        assert not x.measured
    assert npu[0].macs == 8 * 8 * 16 * 3 * 9
    host = predicted.layers[-1]
    assert host.where == "CPU" and host.measured and host.seconds > 0


def test_totals_are_the_sum_of_what_is_shown(predicted: Profile) -> None:
    totals = predicted.totals
    whole = totals.pop("end to end")
    assert whole == pytest.approx(sum(totals.values()))
    assert totals["host packs inputs"] > 0 and totals["submits"] > 0
    assert predicted.word(["layer"]) == "predicted"
    assert predicted.word(["onnxruntime"]) == "measured"


def test_a_slower_clock_takes_longer_and_rocket_pays_for_each_start(program: Program) -> None:
    fast, slow = (
        profile(program, "emulator", rates=timing.at_clock(timing.SAFE, hz)).total("layer")
        for hz in (1e9, 200e6)
    )
    starts = len(program.segments[0].tasks) * timing.KICK_CHAINED_S  # type: ignore[union-attr]
    assert slow - starts == pytest.approx(5 * (fast - starts))
    rocket = profile(compiled(target="rocket"), "emulator")
    for x in rocket.layers:
        if x.where == "NPU":
            assert x.dispatch_s == pytest.approx(x.tasks * timing.KICK_GAPPED_S)
    assert rocket.total("submit") == pytest.approx(
        sum(isinstance(s, NpuSegment) for s in compiled(target="rocket").segments)
        * (timing.SUBMIT_S + timing.ATTACH_S)
    )


def test_host_time_counts_pages_and_bytes() -> None:
    rates = replace(
        timing.SAFE, pack_bytes_per_second=1e9, unpack_bytes_per_second=5e8, sync_page_s=1e-6
    )
    assert timing.host_seconds(1000, 500, 4097, rates) == pytest.approx(1e-6 + 1e-6 + 2e-6)


# -- a board ---------------------------------------------------------------------------------


def test_a_board_is_measured_layer_by_layer(program: Program) -> None:
    device = RknpuDevice(kernel=FakeKernel())
    try:
        found = profile(program, device, runs=2)
        times = bench(program, device, runs=2)
    finally:
        device.close()
    npu = [x for x in found.layers if x.where == "NPU"]
    assert [x.name for x in npu] == ["stem", "dw", "pw", "gap", "fc"]
    assert all(x.measured and x.seconds > 0 for x in found.layers)
    assert found.word(["layer"]) == "measured" and found.whole_s
    assert not [s for s in found.spans if s.kind == "submit"]
    assert "predicted for" not in found.conditions and found.conditions["device"] == "rknpu"
    assert {x.time_is for x in times.latencies} == {"measured"}


# -- reports ---------------------------------------------------------------------------------


def test_trace_is_valid_and_its_spans_follow_one_another(predicted: Profile) -> None:
    trace = json.loads(json.dumps(predicted.to_trace(), allow_nan=False))
    spans = [e for e in trace["traceEvents"] if e["ph"] == "X"]
    names = {
        e["tid"]: e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "thread_name"
    }
    assert {e["ph"] for e in trace["traceEvents"]} == {"X", "M"}
    assert set(names.values()) == {"NPU", "host"}
    assert [e["name"] for e in spans if names[e["tid"]] == "NPU"] == [
        "stem",
        "dw",
        "pw",
        "gap",
        "fc",
    ]
    end = 0.0
    for e in spans:
        assert e["ts"] == pytest.approx(end) and e["dur"] > 0
        assert e["args"]["time"] in ("predicted", "measured") and e["cat"]
        end = e["ts"] + e["dur"]
    assert end == pytest.approx(1e6 * predicted.totals["end to end"])


def test_page_needs_nothing_from_outside_and_says_predicted(predicted: Profile) -> None:
    text = predicted.to_html()
    page = read_page(text)
    assert page.tags.count("svg") == 3 and "circle" in page.tags
    assert "Roofline (predicted" in page.text and "NPU layers: 0.0" in page.text
    for name in ("stem", "top"):
        assert name in page.text


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("profile")
    onnx.save(host_cnn(), str(path / "net.onnx"))
    compiled().save(path / "net.npu")
    return path


def call(*args: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, [*map(str, args)])
    if isinstance(done.exception, NPUError):
        return 2, str(done.exception)
    return done.exit_code, done.output


@pytest.mark.parametrize("file", ["net.onnx", "net.npu"])
def test_profile_takes_models_and_programs(folder: Path, file: str, tmp_path: Path) -> None:
    code, text = call(
        *("profile", folder / file, "--device", "emulator", "--html", tmp_path / "p.html"),
        *("--trace", tmp_path / "t.json"),
    )
    assert code == 0, text
    assert text.count("predicted") > 5 and "NPU layers: " in text and "end to end: " in text
    read_page((tmp_path / "p.html").read_text())
    assert json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    code, text = call("profile", folder / file, "--device", "emulator", "--json")
    data = json.loads(text)
    assert code == 0 and data["layers"][0]["name"] == "stem"
    assert data["layers"][0]["time_is"] == "predicted"
    assert data["totals_are"]["onnxruntime"] == "measured"


def test_every_latency_has_its_conditions(folder: Path) -> None:
    code, text = call("bench", folder / "net.npu", "-n", 2, "--device", "emulator")
    assert code == 0, text
    lines = text.splitlines()
    assert [line.partition(":")[0] for line in lines] == [
        *("end to end", "NPU", "onnxruntime", "wall time of this emulation")
    ]
    assert "predicted; emulator, 1000 MHz, 10 GB/s" in lines[1]
    for line in lines[2:]:
        assert "measured; device emulator, driver opennpu.emu, kernel " in line
    code, text = call(
        *("bench", folder / "net.npu", "-n", 2, "--device", "emulator", "--json"),
        *("--clock", 600),
    )
    data = json.loads(text)
    assert all(x["conditions"] for x in data["latencies"])
    assert "600 MHz, 6 GB/s" in data["latencies"][1]["conditions"]
    npu = data["latencies"][0]
    assert npu["min_s"] <= npu["median_s"] <= npu["max_s"]


REFUSED = [
    (("bench", "net.npu", "-n", "0"), "-n: 0 runs were asked for, at least 1 is needed"),
    (("bench", "net.onnx"), "net.onnx: "),
    (("bench", "net.npu", "--clock", "0"), "--clock: 0 is not more than 0"),
    (("profile", "net.npu", "--bandwidth", "-3"), "--bandwidth: -3 is not more than 0"),
    (("profile", "net.npu", "--device", "gpu"), "'gpu' is none of the"),
    (("profile", "net.onnx", "--precision", "int8"), "0 samples, at least 1 is needed"),
]


@pytest.mark.parametrize(("args", "part"), REFUSED, ids=[" ".join(a) for a, _ in REFUSED])
def test_refusal_is_a_sentence(folder: Path, args: tuple[str, ...], part: str) -> None:
    code, text = call(args[0], folder / args[1], *args[2:])
    assert code == 2 and part in text and text.rstrip().endswith(".")


def test_largest_hold_out_error_stays_within_its_bound(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from benchmarks import calibrate

    monkeypatch.setattr("sys.argv", ["calibrate"])
    assert calibrate.main() == 0
    assert "largest hold-out error: " in capsys.readouterr().out
    slow = replace(calibrate.SAFE_600, bytes_per_second=1e9)
    monkeypatch.setattr(calibrate, "SAFE_600", slow)
    assert calibrate.main() == 1
