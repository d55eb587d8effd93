"""How long compiling takes: MobileNetV2-224, in inferences of onnxruntime here.

    python -m benchmarks.compile [--json]

Calibration runs the float model on the user's data, so its time grows with the data: int8 is
timed with one photograph.  Exit code 1 if a bound fails.
"""

from __future__ import annotations

import sys

import opennpu
from benchmarks.common import Row, median_s, report, setup

BOUND = 500.0


def main() -> int:
    model, x, onnxruntime_s = setup()
    fp16_s = median_s(lambda: opennpu.compile(model), 3)
    int8_s = median_s(
        lambda: opennpu.compile(model, precision="int8", calibration=[{"image": x}]), 3
    )
    rows = [
        Row("fp16: compile / onnxruntime", fp16_s / onnxruntime_s, "x", BOUND),
        Row("int8, 1 photograph: compile / onnxruntime", int8_s / onnxruntime_s, "x", BOUND),
    ]
    return report(rows, onnxruntime_s)


if __name__ == "__main__":
    sys.exit(main())
