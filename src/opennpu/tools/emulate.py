"""Run other people's programs: a library that shows them device nodes, and the emulator behind.

The library is compiled at first use, and kept in the user's cache folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from opennpu.device.fakecores import Work
from opennpu.device.serve import NUMBERS, Observer, ServedKernel, Server
from opennpu.emu.machine import Machine
from opennpu.emu.memory import AddressSpace
from opennpu.errors import DeviceError, InputError, ViolationError
from opennpu.hw.rk3588 import chip
from opennpu.tools.fakeroot import fake_root
from opennpu.tools.trace import Tracer, WatchedSpace

SOURCE = "opennpu_shim.c"
COMPILERS = ("cc", "gcc", "clang")
FLAGS = ("-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-fno-delete-null-pointer-checks")
NO_FORTIFY = ("-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=0")  # it would define open() inline
INTERFACES = ("0.0", "1.1", "1.3", "1.4", "1.5")
ABIS = ("rocket", "rknpu")
BROKEN_RULE = 2  # exit code in strict mode of a program that is itself content


def source() -> Path:
    """The library's C file: in the package, or in the repository beside it."""
    package = Path(__file__).parents[1]
    places = (package / "native" / SOURCE, package.parents[1] / "native" / "shim" / SOURCE)
    for place in places:
        if place.exists():
            return place
    raise DeviceError("opennpu emulate", f"{SOURCE} is missing", "Install opennpu again")


def compiler(cc: str | None = None) -> str:
    """A C compiler: ``cc``, $CC, or one of the usual names."""
    names = [cc] if cc else [os.environ.get("CC", ""), *COMPILERS]
    for name in names:
        if name and shutil.which(name):
            return name
    raise DeviceError(
        "opennpu emulate",
        f"no C compiler is here (looked for {', '.join(n for n in names if n)})",
        "Install one (apt install gcc), or name it with --cc",
    )


def cache_folder() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(home) / "opennpu"


def build_shim(cc: str | None = None) -> tuple[Path, str]:
    """(the library, the machine that it is for), compiled if it is not in the cache."""
    code, cc = source().read_bytes(), compiler(cc)
    command = [cc, *FLAGS, *NO_FORTIFY]
    asked = subprocess.run([cc, "-dumpmachine"], capture_output=True, text=True, check=False)
    target = asked.stdout.strip() or platform.machine()
    key = hashlib.sha256(code + " ".join([*command, target]).encode()).hexdigest()[:16]
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        folder = Path(tempfile.mkdtemp(prefix="opennpu-"))
    library = folder / f"shim-{target}-{key}.so"
    if not library.exists():
        half = folder / f"{library.name}.{os.getpid()}"
        done = subprocess.run(
            [*command, "-x", "c", "-", "-o", str(half), "-pthread", "-ldl"],
            input=code,
            capture_output=True,
            check=False,
        )
        if done.returncode:
            lines = done.stderr.decode(errors="replace").strip().splitlines()
            raise DeviceError(
                "opennpu emulate",
                f"{cc} cannot compile {SOURCE}: {lines[0] if lines else 'it says nothing'}",
                "Install the C library's headers (apt install libc6-dev)",
            )
        os.replace(half, library)
    return library, target.partition("-")[0]


@dataclass
class Report(Observer):
    """What happened, for the end."""

    jobs: int = 0
    hung: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    broken: Counter[str] = field(default_factory=Counter)  # sentences about rules
    _seen: set[str] = field(default_factory=set)

    def after(self, core: int, work: Work, violation: ViolationError | None) -> None:
        self.jobs += 1
        self.hung += not work.completed
        if violation is not None:
            self._break(str(violation))
        for result in work.results:
            if result.fault is not None:
                self.faults[str(result.fault)] += 1
            for v in result.violations:
                self._break(v.message)

    def _break(self, sentence: str) -> None:
        """Count by rule; keep the first sentence of each."""
        rule = sentence.rpartition("[")[2].partition("]")[0]
        first = next((s for s in self.broken if f"[{rule}]" in s), sentence)
        self.broken[first] += 1

    def lines(self) -> Iterator[str]:
        if self.hung:
            yield f"{self.hung} of {self.jobs} jobs did not end"
        for sentence, n in (self.faults + self.broken).items():
            yield f"{n} times: {sentence}" if n > 1 else sentence


def interface(text: str) -> tuple[int, int]:
    """A rocket interface version."""
    if text not in INTERFACES:
        raise InputError(
            "--rocket-interface",
            f"{text!r} is none of the {len(INTERFACES)} interfaces",
            f"Use one of {', '.join(INTERFACES)}; stock Linux is 0.0",
        )
    major, _, minor = text.partition(".")
    return int(major), int(minor)


def emulate(
    command: Sequence[str],
    *,
    abi: str | None = None,
    rocket_interface: str = "0.0",
    strict: bool = False,
    trace: Path | None = None,
    cc: str | None = None,
) -> int:
    """Run a program with NPU nodes in its /dev; its exit code, 128 + n after signal n.

    abi: "rocket" or "rknpu"; None shows both drivers' nodes.
    strict: jobs that silicon corrupts or hangs on are refused and named.
    trace: record every job there; see `opennpu.tools.trace`.
    cc: C compiler for the library; a cross compiler for programs under qemu-user.
    """
    if abi not in (None, *ABIS):
        raise InputError(
            "--abi", f"{abi!r} is none of the {len(ABIS)} drivers", "Use rocket or rknpu"
        )
    version = interface(rocket_interface)
    library, target = build_shim(cc)
    report = Report()
    tracer = Tracer(trace) if trace else None
    kernel = ServedKernel(
        Machine(cores=chip.CORES, strict=strict),
        rocket=version if abi != "rknpu" else None,
        rknpu=abi != "rocket",
        observers=(report, *([tracer] if tracer else [])),
        space=WatchedSpace if tracer else AddressSpace,
    )
    server = Server(kernel)
    with fake_root({n: number for n, number in NUMBERS.items() if n in kernel.nodes}) as root:
        env = {**os.environ, "OPENNPU_EMULATE": server.name, "OPENNPU_EMULATE_ROOT": str(root)}
        if target == platform.machine():
            others = os.environ.get("LD_PRELOAD", "")
            env["LD_PRELOAD"] = f"{library}:{others}" if others else str(library)
        else:
            env["QEMU_SET_ENV"] = f"LD_PRELOAD={library}"
        try:
            code = _run(command, env)
        finally:
            if tracer is not None:
                tracer.close()
    for line in report.lines():
        print(f"opennpu emulate: {line.rstrip('.')}.", file=sys.stderr)
    if not server.connections:
        print(
            f"opennpu emulate: {command[0]} did not look for a node. "
            "Programs that are linked statically or run as another user are out of reach.",
            file=sys.stderr,
        )
    return BROKEN_RULE if strict and report.broken and not code else code


def _run(command: Sequence[str], env: dict[str, str]) -> int:
    """Run and wait.  Signals that end us are passed on; a keyboard sends to both anyway."""
    try:
        process = subprocess.Popen(command, env=env)
    except OSError as e:
        raise InputError(command[0], f"cannot be run ({e.strerror})", "Check the path") from None
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # each buffer object takes one
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, hard), hard))
    kept = {s: signal.signal(s, lambda n, _: process.send_signal(n)) for s in PASSED_ON}
    kept[signal.SIGINT] = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        code = process.wait()
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)
    return 128 - code if code < 0 else code


PASSED_ON = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
