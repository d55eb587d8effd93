"""Operators that the CPU may well do faster: both times, predicted before any of them is placed.

The NPU's time is that of its tasks in the cycle model.  The host's is an estimate: arithmetic on
one A76 core, the values out of their cubes and into new ones, and the submit that the cut costs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from opennpu.emu import timing
from opennpu.hw.layout import align
from opennpu.ops.base import OPS, Operand, Site
from opennpu.program import Ref

requires = "sites with views"

HOST_CYCLES = {  # an element; guesses from vector code: e**x about 3, a pass over memory about 1
    "Softmax": 6.0,
    "LayerNormalization": 4.0,
    "RMSNormalization": 3.0,
    "SimplifiedLayerNormalization": 3.0,
    "InstanceNormalization": 4.0,
    "GroupNormalization": 4.0,
}
"""Operators whose place is decided by time."""
HOST_CLOCK_HZ = 2.2e9  # A76 of the RK3588, most boards
HOST_COPY_BYTES_PER_SECOND = 13.4e9  # board notes A.16: memcpy of one A76
CUBE_BYTES, HOST_BYTES = 2, 4  # of an element: fp16 on the NPU, float32 on the host


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds, predicted."""

    npu: float
    host: float

    @property
    def sentence(self) -> str:
        return f"predicted {self.npu * 1e6:.0f} us on the NPU, {self.host * 1e6:.0f} us on the host"


def predict(op: str, sites: Sequence[Site], returns: bool) -> Times | None:
    """Both times of a node that becomes these sites, if its operator is one of those.

    ``returns``: the NPU reads the result, so that the host's way is there and back.
    """
    if op not in HOST_CYCLES:
        return None
    npu = sum(npu_seconds(s) for s in sites if not OPS[s.node.op].aliases)
    return Times(npu, host_seconds(op, math.prod(sites[0].x.shape), returns))


def npu_seconds(site: Site) -> float:
    """Its tasks, chained into the segment they are part of."""

    def roomy(o: Operand | None) -> Operand | None:
        return replace(o, channels=align(o.nhwc[3], 64)) if o and o.view is not None else o

    there = site.with_(
        inputs=tuple(roomy(o) for o in site.inputs),
        output=replace(site.output, channels=align(site.output.nhwc[3], 16)),
        place=lambda _: Ref("const"),
    )
    rates = timing.SAFE
    return sum(
        rates.kick_chained_s
        + timing.task_seconds(t.cost.mac_cycles, t.cost.read_bytes + t.cost.write_bytes, rates)
        for t in OPS[site.node.op].tasks(there)
    )


def host_seconds(op: str, elements: int, returns: bool) -> float:
    """One core of the host; the way there and back, where the result would not stay there."""
    work = elements * HOST_CYCLES[op] / HOST_CLOCK_HZ
    moved = 2 * elements * (CUBE_BYTES + HOST_BYTES)
    return work + (moved / HOST_COPY_BYTES_PER_SECOND + timing.SUBMIT_S if returns else 0)
