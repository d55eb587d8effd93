"""Programs of our own in C, as strangers' programs: through the library, on the emulator."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from emu.emu_programs import CONV, Conv
from opennpu import cli
from opennpu.device.fakekernel import FakeKernel
from opennpu.device.rknpu import RknpuDevice
from opennpu.device.rocket import RocketDevice
from opennpu.hw import regcmd
from opennpu.hw.rk3588 import cna, dpu
from opennpu.hw.rk3588.common import Precision
from opennpu.tools.replay import replay
from opennpu.tools.trace import load

HERE = Path(__file__).parent
CC, ARM_CC = shutil.which("cc"), "aarch64-linux-gnu-gcc"
PRODUCT = Conv(Precision.INT8, h=4, w=1, ic=64, oc=32)  # as npu.h has it
TOP = 1 << 32

pytestmark = pytest.mark.skipif(CC is None, reason="no C compiler")


def product_words(x: int, w: int, y: int) -> bytes:
    """The matrix product of npu.h as command words."""
    body = PRODUCT.body(
        cna.FEATURE_DATA_ADDR(feature_base_addr=x),
        cna.DCOMP_ADDR0(decompress_addr0=w),
        dpu.DST_BASE_ADDR(dst_base_addr=y),
    )
    return regcmd.assemble([*body, *regcmd.tail(CONV)])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compiled programs, and command words for them."""
    path = tmp_path_factory.mktemp("emulate")
    assert CC is not None
    for source in HERE.glob("*.c"):
        command = [CC, "-O1", "-Wall", "-Wextra", "-Werror", "-pthread"]
        subprocess.run([*command, "-o", path / source.stem, source], check=True)
    (path / "rocket.bin").write_bytes(product_words(0x1000, 0x2000, 0x3000))
    (path / "vendor.bin").write_bytes(product_words(TOP - 0x2000, TOP - 0x3000, TOP - 0x4000))
    return path


Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def run(folder: Path) -> Run:
    """opennpu emulate [OPTIONS] -- PROGRAM ARGUMENTS, from the folder of the programs."""

    def emulate(*command: object, options: tuple[object, ...] = (), timeout: float = 60) -> object:
        words = [sys.executable, "-m", "opennpu.cli", "emulate", *options, "--", *command]
        return subprocess.run(
            list(map(str, words)),
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    return emulate  # type: ignore[return-value]


def passed(done: subprocess.CompletedProcess[str]) -> bool:
    print(done.stdout, done.stderr)
    return done.returncode == 0


# -- what programs do ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("threads", "processes", "jobs"), [(1, 1, 3), (4, 1, 5), (1, 4, 5), (3, 3, 4)]
)
def test_threads_and_processes_compute_side_by_side(
    run: Run, threads: int, processes: int, jobs: int
) -> None:
    done = run("./rocket_jobs", "rocket.bin", threads, processes, jobs)
    assert passed(done) and done.stderr == ""


@pytest.mark.parametrize("interface", ["0.0", "1.5"])
def test_rocket_gives_the_errno_of_its_interface(run: Run, interface: str) -> None:
    options = ("--abi", "rocket", "--rocket-interface", interface)
    assert passed(run("./rocket_errors", "rocket.bin", interface[2:], options=options))


def test_deadlines_are_absolute_and_waits_can_be_interrupted(run: Run) -> None:
    done = run("./rocket_deadlines")
    assert passed(done) and "1 of 1 jobs did not end" in done.stderr


def test_a_node_is_a_file_like_others(run: Run) -> None:
    assert passed(run("./files", "rocket.bin"))


def test_an_npu_is_found_and_mapped_as_on_a_board(run: Run) -> None:
    done = run("./nodes")
    assert passed(done) and done.stderr == ""


def test_buffers_are_shared_between_files_and_processes(run: Run) -> None:
    done = run("./sharing", "vendor.bin")
    assert passed(done) and "1 of 2 jobs did not end" in done.stderr


def test_the_vendor_abi(run: Run) -> None:
    done = run("./vendor", "vendor.bin", options=("--abi", "rknpu"))
    assert passed(done) and "jobs did not end" in done.stderr


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("node", ["/dev/accel/accel0", "/dev/dri/renderD129"])
def test_garbage_harms_nobody(run: Run, node: str, seed: int) -> None:
    script = f"./garbage {node} {seed} 1500 && ./rocket_jobs rocket.bin 1 1 1"
    done = run("sh", "-c", script, options=("--rocket-interface", "1.5"))
    assert passed(done) and "Traceback" not in done.stderr


def test_a_program_that_is_killed_amid_its_jobs_leaves_the_npu_to_others(run: Run) -> None:
    began = time.monotonic()
    done = run("sh", "-c", "./killed; test $? = 137 && ./rocket_jobs rocket.bin 3 1 2")
    assert passed(done)
    assert time.monotonic() - began < 5  # its queue went with it


def test_our_own_runtime_is_such_a_program(run: Run) -> None:
    script = """
import sys
sys.path.insert(0, sys.argv[1])
import numpy as np
import opennpu
from copyprogram import copy_program, sample
from opennpu.device import list_devices, open_device
print([d.path for d in list_devices() if d.measured])
for name in ("rocket", "rknpu"):
    device = open_device(name)
    with opennpu.InferenceSession(copy_program(), device) as session:
        assert np.array_equal(session.run(None, [sample()])[0], sample())
    device.close()
"""
    done = run(sys.executable, "-c", script, HERE.parent)
    assert passed(done)
    assert done.stdout == "['/dev/dri/renderD129', '/dev/accel/accel0']\n"


@pytest.mark.skipif(
    not shutil.which("qemu-aarch64") or not shutil.which(ARM_CC), reason="no arm64 tools"
)
def test_arm64_programs_run_under_qemu_user(run: Run, folder: Path) -> None:
    root = Path("/usr/aarch64-linux-gnu")
    for name in ("rocket_jobs", "rocket_deadlines", "nodes", "sharing", "vendor"):
        program = folder / f"{name}.arm64"
        subprocess.run([ARM_CC, "-pthread", "-o", program, HERE / f"{name}.c"], check=True)
    qemu = f"qemu-aarch64 -L {root} ./"
    script = (
        f"{qemu}sharing.arm64 vendor.bin && {qemu}rocket_jobs.arm64 rocket.bin 2 2 2 && "
        f"{qemu}rocket_deadlines.arm64 && {qemu}nodes.arm64 && {qemu}vendor.arm64 vendor.bin"
    )
    assert passed(run("sh", "-c", script, options=("--cc", ARM_CC)))


# -- the command -----------------------------------------------------------------------------


@pytest.mark.parametrize(("script", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137)])
def test_the_exit_code_is_the_programs(run: Run, script: str, code: int) -> None:
    assert run("sh", "-c", script).returncode == code


def test_arguments_and_streams_are_passed_on_untouched(run: Run) -> None:
    done = run("sh", "-c", 'echo "$@"; echo oops >&2', "x", "--trace", "-h", "", "a b")
    assert done.stdout == "--trace -h  a b\n"
    assert "oops" in done.stderr and "did not look for a node" in done.stderr


def test_a_program_is_ended_by_the_signal_that_ends_us(folder: Path) -> None:
    command = [sys.executable, "-m", "opennpu.cli", "emulate", "--", "sh", "-c"]
    process = subprocess.Popen(
        [*command, "trap 'exit 5' TERM; echo up; while :; do sleep 0.05; done"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None and process.stdout.readline() == "up\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == 5
    process.stdout.close()


@pytest.mark.parametrize(
    ("options", "command", "sentence"),
    [
        (("--abi", "rknn"), "true", "--abi: 'rknn' is none of the 2 drivers. Use rocket or rknpu."),
        (("--rocket-interface", "2"), "true", "'2' is none of the 5 interfaces. Use one of 0.0"),
        ((), "./no-such-program", "./no-such-program: cannot be run (No such file or directory)."),
        (("--cc", "no-such-cc"), "true", "no C compiler is here (looked for no-such-cc). Install"),
        (("--trace", "/no/such/dir/t"), "true", "/no/such/dir/t: No such file or directory."),
    ],
)
def test_what_cannot_be_done_is_one_sentence(
    run: Run, options: tuple[str, ...], command: str, sentence: str
) -> None:
    done = run(command, options=options)
    assert done.returncode == 2 and sentence in done.stderr and "Traceback" not in done.stderr


def test_a_library_that_does_not_compile_says_why(run: Run, folder: Path) -> None:
    bad = folder / "badcc"
    bad.write_text("#!/bin/sh\necho 'fatal error: dirent.h is not here' >&2\nexit 1\n")
    bad.chmod(0o755)
    done = run("true", options=("--cc", bad))
    assert done.returncode == 2
    assert "cannot compile opennpu_shim.c: fatal error: dirent.h is not here" in done.stderr


def test_strict_names_the_rule_and_says_so_in_the_exit_code(run: Run, folder: Path) -> None:
    words = bytearray((folder / "rocket.bin").read_bytes())
    code = [w for w in regcmd.disassemble(bytes(words))]
    at = next(i for i, w in enumerate(code) if isinstance(w, cna.CBUF_CON0))
    bad = regcmd.assemble([cna.CBUF_CON0(data_bank=6, weight_bank=6, fc_data_bank=1)])
    words[8 * at : 8 * at + 8] = bad
    (folder / "bad.bin").write_bytes(words)
    for option in ("--strict", "--hardware"):
        done = run("sh", "-c", "./rocket_jobs bad.bin 1 1 1; true", options=(option,))
        assert "cbuf.fc_data_bank" in done.stderr
        assert done.returncode == (2 if option == "--strict" else 0)


# -- traces ----------------------------------------------------------------------------------


def opennpu(*args: object) -> subprocess.CompletedProcess[str]:
    """The command, in this process."""
    words = ["opennpu", *map(str, args)]
    out, err = io.StringIO(), io.StringIO()
    code: object = 0
    with redirect_stdout(out), redirect_stderr(err), pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", words)
        try:
            cli.main()
        except SystemExit as e:
            code = e.code or 0
    assert isinstance(code, int)
    return subprocess.CompletedProcess(words, code, out.getvalue(), err.getvalue())


@pytest.fixture(scope="module")
def trace(run: Run, folder: Path) -> Path:
    path = folder / "jobs.trace"
    assert passed(run("./rocket_jobs", "rocket.bin", 2, 1, 3, options=("--trace", path)))
    return path


def test_a_trace_is_replayed_on_any_device_and_compared(trace: Path) -> None:
    for device in ("emulator", "emulator:hardware"):
        done = opennpu("replay", trace, "--device", device)
        assert passed(done) and "6 of 6 jobs are equal." in done.stdout
    kernel = FakeKernel()
    for board in (RocketDevice(kernel=kernel), RknpuDevice(kernel=kernel)):
        board.alloc(123 << 12)  # recorded addresses are taken: words must be moved
        assert all(c.equal and c.nbytes == 512 for c in replay(load(trace), board))
        board.close()


def test_a_replay_on_a_driver_is_itself_a_program_to_emulate(trace: Path, run: Run) -> None:
    command = ("-m", "opennpu.cli", "replay", trace, "--device", "rknpu")
    done = run(sys.executable, *command)
    assert passed(done) and "6 of 6 jobs are equal." in done.stdout


def test_a_replay_finds_one_wrong_byte(trace: Path, folder: Path) -> None:
    job = load(trace)[2]
    image = job.written[0]
    changed = folder / "changed.trace"
    with zipfile.ZipFile(trace) as old, zipfile.ZipFile(changed, "w") as new:
        data = bytearray(image.data)
        data[5] ^= 1
        names = [hashlib.sha256(d).hexdigest() for d in (image.data, bytes(data))]
        for n in old.namelist():
            new.writestr(n, old.read(n).replace(*[n.encode() for n in names]))
        new.writestr(f"blobs/{names[1]}", bytes(data))
    done = opennpu("replay", changed)
    assert done.returncode == 1
    assert "job000002: 1 of 512 bytes differ, first at 0x3005: 0x" in done.stdout
    assert "5 of 6 jobs are equal." in done.stdout
    report = json.loads(opennpu("replay", changed, "--json").stdout)
    assert report["equal"] == 5 and report["jobs"][2]["differing"] == 1


def test_a_trace_is_printed_as_python_that_builds_the_same_words(trace: Path, folder: Path) -> None:
    done = opennpu("disasm", trace)
    lines = done.stdout.splitlines()
    assert sum(line.startswith("# start 0 task 0: ") for line in lines) == 6
    assert "# job000000: rocket 0.0, core 0, completed" in lines
    assert any("feature_base_addr=4096)  # buffer 2 + 0x0" in line for line in lines)
    start = next(i for i, line in enumerate(lines) if line.startswith("# start"))
    words = (folder / "rocket.bin").read_bytes()
    body = lines[start + 1 : start + 1 + len(words) // 8]
    assert regcmd.assemble([eval(line, dict(regcmd.EVAL_NAMES)) for line in body]) == words
    assert list(json.loads(opennpu("disasm", trace, "--json").stdout)) == [
        f"job{i:06}" for i in range(6)
    ]


def test_a_vendor_trace_has_the_jobs_of_all_cores(run: Run, folder: Path) -> None:
    path = folder / "vendor.trace"
    assert passed(run("./vendor", "vendor.bin", options=("--trace", path)))
    done = opennpu("replay", path)
    assert passed(done) and "it does not end, as before" in done.stdout


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04", b"1GKR", b"RKG1" + bytes(40), b"RKG1"])
def test_broken_traces_are_a_sentence(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "x.trace"
    path.write_bytes(data)
    done = opennpu("replay", path)
    assert done.returncode == 2 and "is neither a trace nor an RKG1 capture" in done.stderr
    assert "Traceback" not in done.stderr


def test_golden_captures_are_read_too() -> None:
    folder = os.environ.get("OPENNPU_GOLDEN")
    if not folder:
        pytest.skip("OPENNPU_GOLDEN is not set")
    capture = Path(folder, "chained_fp16_tiled", "job000.rkg")
    done = opennpu("replay", capture, "--device", "emulator")
    assert passed(done) and "job000: 294912 bytes equal" in done.stdout
    assert "# start 0 task 7" in opennpu("disasm", capture).stdout
