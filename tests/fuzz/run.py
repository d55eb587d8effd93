"""Compile random models, run them on the strict emulator, compare with onnxruntime.

    python -m fuzz.run 0:1000 --target rocket --precision int8      (in tests/)

A model that onnxruntime runs must compile, run and agree; anything else is printed with its seed.
"""

from __future__ import annotations

import argparse
import sys
import traceback
from typing import Any

import numpy as np
import onnx

import opennpu
from fuzz.models import Made, make, session
from opennpu import InferenceSession
from opennpu.errors import NPUError

FP16_BOUND = 5e-3  # of the largest |value|
INT8_BOUND = 0.03


def check(made: Made, precision: str = "fp16", target: str = "rknpu") -> str:
    """What is wrong with it; "" if nothing."""
    want = session(_renamed(made.model)).run(made.outputs, made.feeds)
    more: dict[str, Any] = {}
    if precision == "int8":
        more = {"calibration": [made.feeds], "calibration_method": "minmax"}
    program = opennpu.compile(made.model, precision=precision, target=target, **more)
    with InferenceSession(program, device="emulator") as run:
        got = run.run(made.outputs, made.feeds)
    for name, a, b in zip(made.outputs, got, want, strict=True):
        problem = differs(made, name, a, b, precision)
        if problem:
            on_npu = [n["name"] for n in program.meta["nodes"] if n["where"] != "CPU"]
            return f"{name}: {problem}; on the NPU: {on_npu}"
    return ""


def _renamed(model: onnx.ModelProto) -> onnx.ModelProto:
    """With a name of its own for every node, which onnxruntime insists on."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for i, n in enumerate(copy.graph.node):
        n.name = f"node {i}"
    return copy


def differs(made: Made, name: str, got: Any, want: Any, precision: str) -> str:
    """How two arrays differ beyond what rounding explains."""
    if (got.shape, got.dtype) != (want.shape, want.dtype):
        return f"{got.dtype}{list(got.shape)} instead of {want.dtype}{list(want.shape)}"
    if want.dtype.kind != "f" or not want.size:
        exact = made.tensors[name]
        rounded = exact.half if precision == "fp16" else exact.byte
        same = np.array_equal(got, want) or not np.array_equal(rounded, exact.exact)
        same |= precision == "int8"  # an index of the largest, say
        return "" if same or _near(got, want) else f"{got.reshape(-1)[:4]} {want.reshape(-1)[:4]}"
    finite = np.isfinite(want)
    if not np.array_equal(got[~finite], want[~finite], equal_nan=True):
        return "other infinities or NaNs"
    if not finite.any():
        return ""
    a, b = got[finite].astype(np.float64), want[finite].astype(np.float64)
    tensor = made.tensors[name]
    rounded = tensor.half if precision == "fp16" else tensor.byte
    expected = np.abs(rounded.astype(np.float64) - tensor.exact.astype(np.float64))[finite].max()
    scale = np.abs(b).max()
    bound = (
        (FP16_BOUND * scale + 8 * expected)
        if precision == "fp16"
        else (INT8_BOUND * scale + 6 * expected)
    )
    error = np.abs(a - b).max()
    return (
        ""
        if error <= bound + (1e-6 if precision == "fp16" else 0.01)
        else f"off by {error:.3g}, {bound:.3g} allowed of {scale:.3g}"
    )


def _reference_fails(made: Made) -> bool:
    """Does onnxruntime plan memory by a shape that it then does not compute (ceil mode)?"""
    try:
        session(_renamed(made.model)).run(made.outputs, made.feeds)
    except Exception:
        return True
    return False


def _near(got: Any, want: Any) -> bool:
    """Integers from rounded floats."""
    if got.dtype.kind not in "iu":
        return got.dtype.kind == "b"
    return bool(np.abs(got.astype(np.int64) - want.astype(np.int64)).max(initial=0) <= 1)


REFUSALS = (
    "onnx and onnxruntime disagree on the size",
    "the shape of this output depends on the data: ?",  # onnx infers no rank
)
"""What a model that onnxruntime runs may be refused for."""


def attempt(seed: int, precision: str, target: str, steps: int | None = None) -> str:
    """`check`, exceptions included."""
    made = make(seed, steps)
    try:
        return check(made, precision, target)
    except Exception as e:
        if isinstance(e, NPUError) and any(r in str(e) for r in REFUSALS):
            return ""
        if "onnxruntime_inference" in traceback.format_exc() and _reference_fails(made):
            return ""
        last = traceback.extract_tb(e.__traceback__)[-1]
        return f"{type(e).__name__}: {e} ({last.filename.rsplit('/', 2)[-1]}:{last.lineno})"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seeds", help="FIRST:LAST, or one seed to look at")
    parser.add_argument("--precision", default="fp16", choices=("fp16", "int8"))
    parser.add_argument("--target", default="rknpu", choices=("rknpu", "rocket"))
    args = parser.parse_args()
    first, _, last = args.seeds.partition(":")
    bad = 0
    for seed in range(int(first), int(last or int(first) + 1)):
        problem = attempt(seed, args.precision, args.target)
        if not problem:
            continue
        bad += 1
        steps = next(
            (k for k in range(1, 10) if attempt(seed, args.precision, args.target, k)), None
        )
        small = attempt(seed, args.precision, args.target, steps)
        ops = " ".join(n.op_type for n in make(seed, steps).model.graph.node)
        print(f"{seed} [{steps}: {ops}] {small or problem}", flush=True)
    print(f"{bad} of {args.seeds} wrong")
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
