"""The self-test: passes on the emulator, and fails where a device computes something else."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from opennpu import cli
from opennpu.device import host
from opennpu.device.emulator import EmulatorDevice
from opennpu.device.fakekernel import FakeKernel
from opennpu.device.rocket import RocketDevice
from opennpu.emu.machine import Machine
from opennpu.emu.numerics import Policy
from opennpu.errors import DeviceNotFound, InputError
from opennpu.hw.rk3588 import cna
from opennpu.selftest import selftest
from opennpu.selftest.bench import Hung, MachineBench
from opennpu.selftest.cases import CASES, Case, Check
from opennpu.selftest.questions import QUESTIONS, Question
from opennpu.selftest.runner import evidence, names, problem


def test_everything_passes_on_the_emulator() -> None:
    report = selftest("emulator", faults=True)
    assert [t for t in report.tests if t.status != "passed"] == []
    assert len(report.tests) > 140
    assert [q.device for q in report.questions] == [(q.emulator,) for q in report.questions]
    assert report.host["kernel"]


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_a_case_fails_on_other_data(case: Case) -> None:
    """Each compares something: with the output moved, or its first word changed, it fails."""
    bench = MachineBench()
    case.run(bench)
    targets = [k for k, w in enumerate(bench.writes) if type(w).__name__ == "DST_BASE_ADDR"]
    assert targets
    moved = MachineBench(Machine(strict=False), flip=(targets[-1], 13))
    try:
        assert problem(case.run(moved))
    except Hung:
        pytest.fail("it hangs")


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda q: q.switch)
def test_a_question_tells_its_readings_apart(question: Question) -> None:
    seen = [question.expected(r) for r in question.readings]
    assert len(set(seen)) == len(seen) > 1
    assert question.answers(seen[1]) == (question.readings[1],)
    assert question.answers(b"other") == ()


def test_a_device_with_another_reading_is_found_out() -> None:
    """A board that rounds averages another way fails the case and answers the question."""
    device = EmulatorDevice(policy=Policy(average_ties="even"))
    report = selftest(device, only="average")
    failed = [t for t in report.tests if t.status == "failed"]
    assert [t.name for t in failed] == ["pool: int8 average, ties"]
    assert "values differ, first at [0]: 0 instead of 1" in failed[0].problem
    (ties,) = [q for q in report.questions if q.switch == "average_ties"]
    assert (ties.device, ties.emulator) == (("even",), "odd_toward_zero")
    device.close()


def test_what_a_driver_cannot_do_is_skipped() -> None:
    device = RocketDevice(kernel=FakeKernel(Machine(cores=3)))
    report = selftest(device, only=": ")
    skipped = {t.name.partition(":")[0] for t in report.tests if t.status == "skipped"}
    assert skipped == {"pool", "list", "operator", "core"}
    assert [t for t in report.tests if t.status == "failed"] == []
    assert "the PPU, whose interrupt this driver masks" in str(report.tests)
    device.close()


def test_fields_that_a_pass_confirms() -> None:
    (case,) = [c for c in CASES if c.name == "conv: int8, stride 2"]
    found = evidence([case])
    assert found["CNA.CONV_CON3.conv_x_stride"]["cases"] == [case.name]
    assert "CNA.DMA_CON0.data_burst_len" not in found  # timing only
    assert {e["trust"] for e in found.values()} <= {"measured", "documented", "guessed"}
    stride = cna.CONV_CON3.fields["conv_x_stride"]
    assert found["CNA.CONV_CON3.conv_x_stride"]["trust"] == stride.trust.value


def test_a_difference_is_told_with_both_values() -> None:
    same = Check("x", np.float32([1, np.nan]), np.float32([1, np.nan]))
    assert not same.problem
    wrong = Check("sums", np.array([[1, 2], [3, 4]]), np.array([[1, 2], [5, 4]]))
    assert wrong.problem == "sums: 1 of 4 values differ, first at [1, 0]: 3 instead of 5"


def test_unknown_names_are_refused() -> None:
    with pytest.raises(InputError, match=r"selftest: 'bogus' is in none of the names. See --list"):
        selftest("emulator", only="bogus")
    with pytest.raises(DeviceNotFound):
        selftest("toaster")


@pytest.fixture
def board(tmp_path: Path) -> Path:
    for path, text in {
        "proc/device-tree/model": "Radxa ROCK 5B\0",
        "sys/class/devfreq/fdab0000.npu/cur_freq": "1000000000\n",
        "sys/class/devfreq/fdab0000.npu/governor": "performance\n",
        "sys/class/devfreq/dmc/cur_freq": "2112000000\n",
        "sys/class/devfreq/fb000000.gpu/cur_freq": "1\n",
        "sys/kernel/debug/clk/scmi_clk_npu/clk_rate": "1000000000\n",
        "sys/class/thermal/thermal_zone6/type": "npu-thermal\n",
        "sys/class/thermal/thermal_zone6/temp": "41615\n",
    }.items():
        place = tmp_path / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    return tmp_path


def test_board_kernel_and_clocks_are_described(board: Path) -> None:
    found = host.describe(board)
    assert found.pop("kernel")
    assert found.pop("machine")
    assert found == {
        "board": "Radxa ROCK 5B",
        "ddr clock": "2112000000 Hz",
        "npu clock": "1000000000 Hz",
        "npu governor": "performance",
        "npu temperature": "41615 m°C",
        "scmi_clk_npu": "1000000000 Hz",
    }


# -- command line --------------------------------------------------------------------------------


def run(*args: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli.app, ["selftest", *args])
    return result.exit_code, result.output


def test_json_has_counts_and_the_file_is_the_same(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    code, output = run("--device", "emulator", "--only", "copy", "--json", "--report", str(file))
    data = json.loads(output)
    assert code == 0
    assert (data["passed"], data["failed"], data["skipped"]) == (3, 0, 0)
    assert data["tests"][0]["name"] == "copy: int8"
    assert json.loads(file.read_text()) == data


def test_exit_code_1_with_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(device: str | None, **options: Callable[..., None]) -> EmulatorDevice:
        return EmulatorDevice(policy=Policy(average_ties="away"))

    monkeypatch.setattr("opennpu.selftest.runner.open_device", broken)
    code, output = run("--only", "average, ties")
    assert code == 1
    assert "0 passed, 1 failed, 0 skipped" in output


def test_list_names_everything() -> None:
    code, output = run("--list")
    assert code == 0
    assert output.split("\n")[:-1] == names()
