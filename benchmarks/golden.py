"""How fast the register-accurate emulator is: all golden captures, against a matrix product here.

    OPENNPU_GOLDEN=… python -m benchmarks.golden [--json]

Both are timed in turn, in one process, with as many BLAS threads as NumPy takes by default.
Exit code 1 if the bound fails or a byte is wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from opennpu.tools.replay import replay
from opennpu.tools.trace import TracedJob, load

SIZE = 1024  # of the square float32 matrices
ROUNDS = 7
BOUND = 100.0


def captures() -> list[TracedJob]:
    """The jobs, read from disk, each with the bytes that it must write."""
    folder = Path(os.environ["OPENNPU_GOLDEN"])
    paths = sorted(p for p in folder.glob("*/job*.rkg") if ".out." not in p.name)
    return [replace(j, name=f"{p.parent.name}/{j.name}") for p in paths for j in load(p)]


def seconds(step: Callable[[], Any]) -> float:
    started = time.perf_counter()
    step()
    return time.perf_counter() - started


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true")
    as_json = parser.parse_args().json
    if not os.environ.get("OPENNPU_GOLDEN"):
        print("skipped: OPENNPU_GOLDEN is not set to a folder of captures")
        return 0
    jobs = captures()
    if not jobs:
        parser.error(f"no job*.rkg below OPENNPU_GOLDEN={os.environ['OPENNPU_GOLDEN']}")
    wrong = [c.job for c in replay(jobs, "emulator") if not c.equal]
    rng = np.random.default_rng(0)
    a, b = rng.random((2, SIZE, SIZE), np.float32)
    a @ b  # wakes the threads
    suite, matmul = [], []
    for _ in range(ROUNDS):
        suite.append(seconds(lambda: list(replay(jobs, "emulator"))))
        matmul.append(seconds(lambda: a @ b))
    suite_s, matmul_s = statistics.median(suite), statistics.median(matmul)
    ratio, cpus = suite_s / matmul_s, len(os.sched_getaffinity(0))
    if as_json:
        data = {"jobs": len(jobs), "wrong": wrong, "suite_s": suite_s, "matmul_s": matmul_s}
        print(json.dumps({**data, "cpus": cpus, "ratio": ratio, "bound": BOUND}, indent=2))
    else:
        print(
            f"{len(jobs)} golden jobs {1000 * suite_s:.1f} ms, float32 matmul of {SIZE} on "
            f"{cpus} CPUs {1000 * matmul_s:.1f} ms: {ratio:.2f} x (at most {BOUND:g})"
        )
        for name in wrong:
            print(f"{name}: writes other bytes than the capture says")
    return 0 if ratio <= BOUND and not wrong else 1


if __name__ == "__main__":
    sys.exit(main())
