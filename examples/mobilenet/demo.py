"""The main job: MobileNetV2 on nine photographs, fp16 and int8, against onnxruntime.

    python -m examples.mobilenet.demo [--device emulator]

Exit code 0 only if fp16 agrees on all nine photographs with a logit cosine of at least 0.9999,
and int8 on every photograph where the float model is decided, with a cosine of at least 0.93 on
each and 0.965 on average.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import onnxruntime as ort
from rich.console import Console
from rich.progress import track
from rich.table import Table

import opennpu
from examples.mobilenet.export import mobilenet_v2
from examples.mobilenet.images import calibration_feeds, photographs, preprocess
from examples.mobilenet.labels import labels
from examples.models.fetch import FetchError

Array = npt.NDArray[Any]

DECIDED = 0.15  # lead of the float model's first probability over the second
FP16_COSINE = 0.9999
INT8_COSINE_EACH, INT8_COSINE_MEAN = 0.93, 0.965

console = Console(width=110, soft_wrap=True)


@dataclass(frozen=True)
class Result:
    """One precision on all photographs."""

    top1: dict[str, bool]  # the same first class as onnxruntime?
    cosine: dict[str, float]  # of the 1,000 logits


def cosine(a: Array, b: Array) -> float:
    """Cosine of the angle between two vectors."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def probabilities(logits: Array) -> Array:
    """Softmax."""
    e = np.exp(logits.astype(np.float64) - logits.max())
    return np.asarray(e / e.sum())


def is_decided(logits: Array) -> bool:
    """Does the first class lead the second by DECIDED?"""
    second, first = np.sort(probabilities(logits))[-2:]
    return bool(first - second >= DECIDED)


def run(
    precision: Literal["fp16", "int8"],
    model: Any,
    feeds: dict[str, Array],
    want: dict[str, Array],
    device: str | None,
) -> Result:
    """Compile, run and print one precision."""
    names = labels()
    calibration = calibration_feeds() if precision == "int8" else None
    started = time.perf_counter()
    program = opennpu.compile(model, precision=precision, calibration=calibration)
    compiled_s = time.perf_counter() - started
    on_npu = sum(n["where"].startswith("NPU") for n in program.meta["nodes"])
    table = Table("photograph", "top 5", "top-1", "cosine", title=f"MobileNetV2 {precision}")
    top1, cosines = {}, {}
    with opennpu.InferenceSession(program, device) as session:
        for name, x in track(
            feeds.items(),
            f"{precision} on {session.device.info.name}",
            console=Console(stderr=True),
            transient=True,
        ):
            (logits,) = session.run(None, {"image": x})
            got = logits[0]
            best = np.argsort(-got)[:5]
            top1[name] = int(best[0]) == int(want[name].argmax())
            cosines[name] = cosine(got, want[name])
            p = probabilities(got)
            shown = ", ".join(f"{names[i]} {p[i]:.2f}" for i in best)
            table.add_row(name, shown, "same" if top1[name] else "other", f"{cosines[name]:.6f}")
        last, info = session.last, session.device.info
    assert last is not None
    console.print(table)
    kind = "measured" if last.measured else "predicted"
    console.print(
        f"{precision}: compiled in {compiled_s:.1f} s; {on_npu} of {len(program.meta['nodes'])} "
        f"nodes on the NPU; {last.tasks} tasks, {last.bytes_moved:,} bytes moved, "
        f"{1000 * last.npu_s:.2f} ms per image on one core ({kind}); device: {info.name}\n"
    )
    return Result(top1, cosines)


def main() -> int:
    """Run the demo; the exit code says whether all bounds hold."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--device", default="emulator", help="as in opennpu run --device")
    args = parser.parse_args()
    try:
        model = mobilenet_v2()
        feeds = {name: preprocess(image) for name, image in photographs()}
        reference = ort.InferenceSession(model.SerializeToString())
        want = {n: reference.run(None, {"image": x})[0][0] for n, x in feeds.items()}
        fp16 = run("fp16", model, feeds, want, args.device)
        int8 = run("int8", model, feeds, want, args.device)
    except (FetchError, opennpu.NPUError) as e:
        console.print(str(e), markup=False)
        return 2
    decided = [n for n in feeds if is_decided(want[n])]
    right16, right8 = sum(fp16.top1.values()), sum(int8.top1[n] for n in decided)
    low16, low8 = min(fp16.cosine.values()), min(int8.cosine.values())
    print(
        f"demo: fp16 {right16}/{len(feeds)} top-1, min logit cosine {low16:.6f}; "
        f"int8 {right8}/{len(decided)} top-1 of decided, min logit cosine {low8:.6f}"
    )
    good = (
        right16 == len(feeds)
        and low16 >= FP16_COSINE
        and right8 == len(decided)
        and low8 >= INT8_COSINE_EACH
        and float(np.mean(list(int8.cosine.values()))) >= INT8_COSINE_MEAN
    )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
