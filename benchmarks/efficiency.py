"""Bytes and jobs of compiled programs, counted from their tasks, against what must be moved.

    python -m benchmarks.efficiency [--json]

least: per NPU layer after fusion its weights, input, residual and output, each once.
Exit code 1 if a program moves more than 1.2 times that, or needs more than one job a segment.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from benchmarks.common import Array
from examples.mobilenet.export import mobilenet_v2
from examples.mobilenet.images import photograph, preprocess
from opennpu.compile import State, compile_state
from opennpu.hw.rk3588 import chip
from opennpu.ops.base import Operand, Site
from opennpu.passes.partition import NpuUnit
from opennpu.program import NpuSegment, Task

BOUND = 1.2
LIGHT = Path(onnx.__file__).parent / "backend/test/data/light"


@dataclass(frozen=True)
class Layer:
    """One NPU layer."""

    name: str
    op: str
    tasks: int
    moved_bytes: int
    least_bytes: int

    @property
    def ratio(self) -> float:
        return self.moved_bytes / self.least_bytes


@dataclass(frozen=True)
class Count:
    """One program."""

    model: str
    segments: int
    tasks: int
    rknpu_jobs: int  # a start runs a whole list
    rocket_starts: int  # stock: one start per task, one job per segment
    moved_bytes: int
    least_bytes: int

    @property
    def ratio(self) -> float:
        return self.moved_bytes / self.least_bytes

    @property
    def good(self) -> bool:
        return self.ratio <= BOUND and self.rknpu_jobs == self.segments


def cube_bytes(o: Operand) -> int:
    """Of a cube in memory, channels padded to atoms."""
    return o.nhwc[0] * o.surfaces * o.nhwc[1] * o.nhwc[2] * chip.ATOM_BYTES


def least(site: Site) -> int:
    """Bytes that a layer must move: all operands once, the result once."""
    moved = cube_bytes(site.output)
    for o in (*site.inputs, site.residual):
        if o is not None and o.const is not None:
            moved += o.const.size * chip.ELEMENT_BITS[site.precision] // 8
        elif o is not None and o.view is not None:
            moved += cube_bytes(o)
    return moved


def layers(state: State) -> Iterator[Layer]:
    """Of all NPU segments.  Layers that are only another view of their input have no tasks."""
    tasks: dict[str, list[Task]] = defaultdict(list)
    for s in _npu(state):
        for t in s.tasks:
            tasks[t.node].append(t)  # type: ignore[arg-type]
    for u in state.placement.units:
        if isinstance(u, NpuUnit) and u.node.name in tasks:
            of = tasks[u.node.name]
            moved = sum(t.cost.read_bytes + t.cost.write_bytes for t in of)
            need = sum(map(least, u.sites))
            yield Layer(u.node.name, u.node.op, len(of), moved, need)


def _npu(state: State) -> list[NpuSegment]:
    return [s for s in state.program.segments if isinstance(s, NpuSegment)]


def count(model: str, state: State) -> Count:
    segments, found = _npu(state), list(layers(state))
    tasks = sum(len(s.tasks) for s in segments)
    return Count(
        model,
        len(segments),
        tasks,
        sum(-(-len(s.tasks) // chip.TASKS_PER_START) for s in segments),
        tasks,
        sum(x.moved_bytes for x in found),
        sum(x.least_bytes for x in found),
    )


def models() -> Iterator[tuple[str, State]]:
    """What is counted.  The weights of the light ResNet-50 are constants: only sizes matter."""
    x = preprocess(photograph("chelsea"))
    resnet = LIGHT / "light_resnet50.onnx"
    for name, model in (("MobileNetV2", mobilenet_v2()), ("ResNet-50", onnx.load(resnet))):
        given = {i.name: i for i in model.graph.input}
        given = {
            k: v for k, v in given.items() if k not in {i.name for i in model.graph.initializer}
        }
        (feed,) = given
        for precision in ("fp16", "int8"):
            data: dict[str, Array] = {feed: x}
            more: dict[str, Any] = {} if precision == "fp16" else {"calibration": [data]}
            yield f"{name} {precision}", compile_state(model, precision=precision, **more)  # type: ignore[arg-type]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--layers", action="store_true", help="print each layer too")
    args = parser.parse_args()
    counts, worst = [], {}
    for name, state in models():
        counts.append(count(name, state))
        worst[name] = list(layers(state))
    if args.json:
        print(
            json.dumps([{**asdict(c), "ratio": c.ratio, "good": c.good} for c in counts], indent=2)
        )
    else:
        for c in counts:
            print(
                f"{c.model}: {c.moved_bytes:,} bytes, {c.ratio:.3f} x of the least (at most "
                f"{BOUND:g}); {c.tasks} tasks, {c.rknpu_jobs} jobs on rknpu, "
                f"{c.rocket_starts} starts on rocket {'ok' if c.good else 'OVER'}"
            )
            if args.layers:
                for x in sorted(worst[c.model], key=lambda x: -x.ratio):
                    print(
                        f"    {x.name}: {x.tasks} tasks, {x.moved_bytes:,} bytes, {x.ratio:.3f} x"
                    )
    assert all(np.isfinite(c.ratio) for c in counts)
    return 0 if all(c.good for c in counts) else 1


if __name__ == "__main__":
    sys.exit(main())
