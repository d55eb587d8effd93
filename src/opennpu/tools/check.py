"""What would run where, and why: the table behind ``opennpu check``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from opennpu.compile import Progress, compile_state
from opennpu.passes.partition import HostUnit

if TYPE_CHECKING:
    import onnx

Where = Literal["NPU", "NPU after rewrite", "CPU", "impossible"]


@dataclass(frozen=True, slots=True)
class NodeReport:
    """One node of the fused graph."""

    name: str
    op: str
    where: Where
    reason: str  # with the limit's number; empty on the NPU
    tasks: int = 0
    macs: int = 0
    npu_s: float | None = None  # predicted, of nodes that are placed by time
    host_s: float | None = None


def check_model(
    model: str | Path | bytes | onnx.ModelProto,
    target: str = "rknpu",
    fix_dims: Mapping[str, int] | None = None,
    progress: Progress | None = None,
) -> list[NodeReport]:
    """Every node of the model: where it runs, in model order.  Raises ModelError."""
    from opennpu.frontends.onnx import host_can_run

    state = compile_state(model, target=target, fix_dims=fix_dims, progress=progress)
    reports = []
    reasons = {u.node.name: u for u in state.placement.units if isinstance(u, HostUnit)}
    for entry in state.program.meta["nodes"]:
        where: Where = entry["where"]
        reason = entry["reason"]
        unit = reasons.get(entry["name"])
        if unit is not None and not host_can_run(state.imported, unit.node):
            where = "impossible"
            reason = f"{reason}, and onnxruntime has no kernel for it"
        reports.append(
            NodeReport(
                entry["name"],
                entry["op"],
                where,
                reason,
                entry.get("tasks", 0),
                entry.get("macs", 0),
                *(entry.get("predicted", {}).get(side) for side in ("npu_s", "host_s")),
            )
        )
    return reports
