"""What a call through ``opennpu emulate`` costs: one atom copied, against a bare ping-pong.

    python -m benchmarks.emulate_roundtrip [--json]

Exit code 1 if the bound fails.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from opennpu.device import canary
from opennpu.tools.emulate import compiler

SOURCE = Path(__file__).with_suffix(".c")
DATA, OUT = 0x1000, 0x2000  # where the program's buffers are
ROUNDS = 1000
BOUND = 40.0


def measure() -> tuple[float, float]:
    """Median seconds of (a ping-pong, a submit and its wait)."""
    with tempfile.TemporaryDirectory() as folder:
        program, words = Path(folder, "roundtrip"), Path(folder, "words")
        subprocess.run([compiler(), "-O2", "-o", program, SOURCE], check=True)
        words.write_bytes(canary.copy_task(DATA, OUT))
        command = [sys.executable, "-m", "opennpu.cli", "emulate", "--", program, words]
        done = subprocess.run(
            [*map(str, command), str(ROUNDS)], capture_output=True, text=True, check=True
        )
    bare, whole = map(int, done.stdout.split())
    return bare * 1e-9, whole * 1e-9


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", action="store_true")
    as_json = parser.parse_args().json
    bare_s, whole_s = measure()
    ratio = whole_s / bare_s
    if as_json:
        print(json.dumps({"ping_pong_s": bare_s, "round_trip_s": whole_s, "ratio": ratio}))
    else:
        print(
            f"one-atom copy {1e6 * whole_s:.0f} us, socket ping-pong {1e6 * bare_s:.1f} us: "
            f"{ratio:.1f} x (at most {BOUND:g})"
        )
    return 0 if ratio <= BOUND else 1


if __name__ == "__main__":
    sys.exit(main())
