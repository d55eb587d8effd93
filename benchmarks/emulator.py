"""How slow exact emulation is: MobileNetV2-224 on one photograph, against onnxruntime here.

    python -m benchmarks.emulator [--json]

Exit code 1 if a bound fails.
"""

from __future__ import annotations

import sys
from itertools import islice
from typing import Literal

import opennpu
from benchmarks.common import Row, median_s, peak_rss_gib, report, setup
from examples.mobilenet.images import calibration_feeds

BOUNDS: dict[Literal["fp16", "int8"], float] = {"fp16": 300, "int8": 100}
RSS_GIB = 2.0
CALIBRATION = 4  # photographs; the time of one inference does not depend on them


def main() -> int:
    model, x, onnxruntime_s = setup()
    rows = []
    for precision, bound in BOUNDS.items():
        calibration = islice(calibration_feeds(), CALIBRATION) if precision == "int8" else None
        program = opennpu.compile(model, precision=precision, calibration=calibration)
        with opennpu.InferenceSession(program, "emulator") as session:
            seconds = median_s(lambda s=session: s.run(None, {"image": x}), 3)  # type: ignore[misc]
        ratio = seconds / onnxruntime_s
        rows.append(Row(f"{precision}, exact: emulator / onnxruntime", ratio, "x", bound))
    rows.append(Row("peak resident memory", peak_rss_gib(), "GiB", RSS_GIB))
    return report(rows, onnxruntime_s)


if __name__ == "__main__":
    sys.exit(main())
