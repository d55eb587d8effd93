"""Debian's arm64 Mesa Teflon, untouched, on the emulator: the whole suite.

    python -m tests.teflon.run [--seed N]... [--root FOLDER] [--keep FOLDER] [--small] [--json]

Makes models, runs them in an arm64 root on TFLite's reference kernels and through Teflon and
`opennpu emulate`, and compares: docs/explanation/emulator.md says what.  Exit code 1 if anything
is not as it must be, 2 if the root cannot be made.
"""

from __future__ import annotations

import argparse
import dataclasses
import gzip
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.teflon.check import Report

HERE = Path(__file__).parent
CLI = "from opennpu.cli import main; main()"
CC = "aarch64-linux-gnu-gcc"
TOOLS = ("mmdebstrap", "qemu-aarch64", CC)
DELEGATE = "usr/lib/teflon/libteflon.so"
CHANGES = "usr/share/doc/mesa-teflon-delegate/changelog.Debian.gz"
PACKAGES = "usr/lib/python3/dist-packages"
SCHEMA = "ai_edge_litert/schema_py_generated.py"  # its package loads arm64 code, this does not
PATIENCE_S = 1200  # for one process in the root; timeout(1) ends it and what it started


def default_root() -> Path:
    """$OPENNPU_TEFLON_ROOT, or a folder of the cache."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(os.environ.get("OPENNPU_TEFLON_ROOT") or Path(home) / "opennpu" / "teflon-root")


def make_root(root: Path) -> str:
    """Make root and tools unless they are there; "" or why that cannot be."""
    env = {**os.environ, "PYTHON": sys.executable}
    command = ["sh", str(HERE / "rootfs.sh"), str(root)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if not done.returncode:
        return ""
    lines = done.stderr.strip().splitlines() or ["it says nothing"]
    lines = [s for s in lines if "E: " in s and "mmdebstrap failed" not in s] or lines
    return f"{root}: the arm64 root cannot be made ({lines[-1].rstrip('.')}). Run {command[1]}"


def mesa_version(root: Path) -> str:
    with gzip.open(root / CHANGES, "rt") as f:
        return f.readline().partition("(")[2].partition(")")[0]


def in_guest(root: Path, *arguments: str | Path, trace: Path | None = None) -> None:
    """guest.py in the root; with ``trace`` on the emulator.  Raises RuntimeError."""
    command = ["qemu-aarch64", "-L", str(root), str(root / "usr/bin/python3.13")]
    command += [str(HERE / "guest.py"), *map(str, arguments)]
    if trace is not None:
        emulate = [sys.executable, "-c", CLI, "emulate", "--abi", "rocket", "--cc", CC]
        command = [*emulate, "--trace", str(trace), "--", *command]
    env = {**os.environ, "PYTHONPYCACHEPREFIX": str(root / "var/cache/pyc")}
    env.pop("PYTHONDONTWRITEBYTECODE", None)  # without byte code numpy takes 20 s to load
    done = subprocess.run(
        ["timeout", "--kill-after=10", str(PATIENCE_S), *command],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        last = (done.stdout.splitlines() or ["none"])[-1]
        raise RuntimeError(
            f"{' '.join(command)}: exit code {done.returncode}; the last model that ran is "
            f"{last}\n{done.stderr}"
        )


def load_schema(root: Path) -> None:
    """The schema of .tflite files becomes the module ``tflite_schema``."""
    sys.path.append(str(root / PACKAGES))  # last: for flatbuffers, where this Python lacks it
    spec = importlib.util.spec_from_file_location("tflite_schema", root / PACKAGES / SCHEMA)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)


def run(root: Path, folder: Path, seeds: list[int], small: bool) -> Report:
    """``folder`` keeps models, outputs and the trace."""
    load_schema(root)
    import numpy as np

    from opennpu.tools.trace import load
    from tests.teflon.check import check
    from tests.teflon.flatmodel import build
    from tests.teflon.suite import models

    nets = [
        dataclasses.replace(net, name=f"{seed:05}-{net.name}")
        for seed in seeds
        for net in models(seed, small=small)
    ]
    folder.mkdir(parents=True, exist_ok=True)
    for net in nets:
        (folder / f"{net.name}.tflite").write_bytes(build(net))
        np.save(folder / f"{net.name}.npy", net.x)
    in_guest(root, folder, "cpu")
    in_guest(root, folder, "npu", root / DELEGATE, trace=folder / "jobs.trace")
    return check(nets, folder, load(folder / "jobs.trace"))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, action="append", help="of the models; repeatable")
    parser.add_argument("--root", type=Path, default=default_root(), help="the arm64 root")
    parser.add_argument("--keep", type=Path, help="new folder for models, outputs and the trace")
    parser.add_argument("--small", action="store_true", help="what pytest runs")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    given = parser.parse_args()
    why = make_root(given.root)
    if given.keep and given.keep.exists() and any(given.keep.iterdir()):
        why = f"{given.keep} holds files, the models need a folder of their own. Name another"
    if why:
        print(f"{why}.", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="opennpu-teflon-") as temporary:
        folder = given.keep or Path(temporary)
        report = run(given.root, folder, given.seed or [1], given.small)
    failures = list(report.failures())
    if given.json:
        print(json.dumps({**dataclasses.asdict(report), "failures": failures}))
    else:
        print(f"Mesa {mesa_version(given.root)}")
        print("\n".join(report.lines()))
    for sentence in failures:
        print(f"FAILED {sentence}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
