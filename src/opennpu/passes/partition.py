"""Graph → segments: which nodes run on the NPU, in which order, and why the others do not.

Each node is offered to its operator.  What it refuses, and what no operator knows, stays in
onnxruntime with the reason.  Then nodes are gathered into segments, each as large as its
dependencies allow.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from opennpu.errors import UnsupportedError
from opennpu.hw.rk3588.chip import IOVA_BYTES, TASKS_PER_START
from opennpu.hw.rk3588.common import Precision
from opennpu.ir.graph import OPAQUE, Graph, Node, Value, node_reads
from opennpu.ops.base import OPS, Array, Op, Operand, Site, Target, same_cube
from opennpu.passes import timed
from opennpu.program import View

FLOATS = ("float32", "float16")


@dataclass(frozen=True)
class NpuUnit:
    """A node of the model that the NPU runs: one site, or several where it was rewritten."""

    node: Node
    sites: tuple[Site, ...]  # with views, without addresses
    rewritten: bool = False

    @property
    def reads(self) -> dict[str, View]:
        """Values from outside, with the view they must have."""
        inside = {s.output.value.name for s in self.sites}
        return {
            o.value.name: o.view
            for s in self.sites
            for o in (*s.inputs, s.residual)
            if o and o.view is not None and o.value.name not in inside
        }

    @property
    def macs(self) -> bool:
        """Does it use the MAC array?"""
        return any(op_of(s.node).macs for s in self.sites)


@dataclass(frozen=True)
class HostUnit:
    """A node of the model that stays in onnxruntime."""

    node: Node
    reason: str


Unit = NpuUnit | HostUnit


@dataclass(frozen=True)
class Part:
    """Units that run in one go, all on one side."""

    units: tuple[Unit, ...]
    npu: bool


@dataclass
class Placement:
    """What `place` found: a unit per node, views of what the NPU writes, expanded values."""

    units: list[Unit] = field(default_factory=list)
    views: dict[str, View] = field(default_factory=dict)
    values: dict[str, Value] = field(default_factory=dict)
    constants: dict[str, Array] = field(default_factory=dict)
    times: dict[str, timed.Times] = field(default_factory=dict)  # of nodes placed by them


def op_of(node: Node) -> type[Op]:
    """The operator of a node that is known to have one."""
    return OPS[node.op]


def precision_of(
    node: Node, values: Mapping[str, Value], constants: Mapping[str, Array]
) -> Precision:
    """INT8 if all its activations are quantized, FP16 if none is; else refuse."""
    names = [v for v in (*node_reads(node), *node.outputs) if v and v not in constants]
    quants = [values[v].quant for v in names]
    for v in names:
        if values[v].dtype not in FLOATS:
            raise UnsupportedError(
                node.name,
                f"{node.op} works on {v} of type {values[v].dtype}, the NPU takes float tensors",
                "It stays in onnxruntime",
            )
        if not values[v].shape or 0 in values[v].shape:
            raise UnsupportedError(
                node.name,
                f"{node.op} works on {v} of shape {list(values[v].shape)}, the NPU takes cubes",
                "It stays in onnxruntime",
            )
    if all(q is None for q in quants):
        return Precision.FP16
    if any(q is None or q.axis is not None for q in quants):
        raise UnsupportedError(
            node.name,
            f"{node.op} mixes {sum(q is not None for q in quants)} int8 and "
            f"{sum(q is None for q in quants)} float tensors",
            "Quantize all of its inputs and outputs, or none",
        )
    return Precision.INT8


def make_site(node: Node, placement: Placement, target: Target) -> Site:
    """The site of a node, with the views that its producers chose."""
    values, constants = placement.values, placement.constants
    precision = precision_of(node, values, constants)

    def operand(name: str) -> Operand | None:
        if not name:
            return None
        if name in constants:
            return Operand(values[name], precision, const=constants[name])
        return Operand(values[name], precision, placement.views.get(name))

    residual = next((e.value for e in node.epilogue if e.kind == "add"), "")
    return Site(
        node,
        tuple(operand(i) for i in node.inputs),
        Operand(values[node.outputs[0]], precision),
        precision,
        target,
        operand(residual),
    )


def try_place(node: Node, placement: Placement, target: Target) -> Site:
    """The site with all views set.  Raises UnsupportedError."""
    op = OPS.get(node.op) if node.domain in ("", "ai.onnx", "opennpu") else None
    if op is None:
        raise UnsupportedError(
            node.name, f"no NPU operator is called {node.op}", "It stays in onnxruntime"
        )
    if len([o for o in node.outputs if o]) != 1:
        raise UnsupportedError(
            node.name,
            f"{node.op} has {len(node.outputs)} outputs, the NPU writes 1",
            "It stays in onnxruntime",
        )
    site = make_site(node, placement, target)
    if site.precision not in op.precisions:
        raise site.refuse(f"has no {site.precision.name.lower()} program")
    views, out = op.views(site)
    inputs = tuple(
        replace(o, view=v) if o and o.const is None else o
        for o, v in zip(site.inputs, views, strict=True)
    )
    residual = replace(site.residual, view=out) if site.residual else None
    site = site.with_(inputs=inputs, output=replace(site.output, view=out), residual=residual)
    if out.nhwc[0] > TASKS_PER_START and not op.aliases:
        raise site.refuse(
            f"works on {out.nhwc[0]} images, a task each: one start takes {TASKS_PER_START}"
        )
    op.check(site)
    if op.aliases:
        first = site.x
        if first.value.name not in placement.views:
            raise site.refuse("only renames what the host holds", "It stays in onnxruntime")
    return site


def place(graph: Graph, target: Target, exclude: Mapping[str, str] | None = None) -> Placement:
    """Offer every node to its operator.  ``exclude``: node name → reason to keep it on the host."""
    p = Placement(values=dict(graph.values), constants=dict(graph.constants))
    for node in graph.nodes:
        if exclude and node.name in exclude:
            p.units.append(HostUnit(node, exclude[node.name]))
            continue
        try:
            p.units.append(_place_node(node, p, target))
        except UnsupportedError as e:
            p.units.append(HostUnit(node, f"{e.what}"))
    return p


def _check_sizes(node: Node, p: Placement) -> None:
    """Refuse, before anything counts tiles, what cannot lie in NPU memory together."""
    names = dict.fromkeys((*node_reads(node), *(o for o in node.outputs if o)))
    values = [p.values[n] for n in names if n in p.values and n not in p.constants]
    nbytes = sum(math.prod(v.shape) * (1 if v.quant else 2) for v in values)
    if nbytes > IOVA_BYTES:
        raise UnsupportedError(
            node.name,
            f"{node.op} works on {nbytes} bytes at once, the NPU reaches {IOVA_BYTES}",
            "It stays in onnxruntime",
        )


def _place_node(node: Node, p: Placement, target: Target) -> NpuUnit:
    _check_sizes(node, p)
    op = OPS.get(node.op)
    if op and any(p.values[v].dtype == OPAQUE for v in (*node_reads(node), node.outputs[0]) if v):
        precision_of(node, p.values, p.constants)  # refuses them: expansions look at shapes
    expansion = op.expand(node, p.values, p.constants) if op else None
    if expansion is None:
        try:
            site = try_place(node, p, target)
        except UnsupportedError:
            precision_of(node, p.values, p.constants)  # what no rewriting changes
            expansion = op.alternative(node, p.values, p.constants) if op else None
            if expansion is None:
                raise
        else:
            assert site.output.view is not None
            p.views[node.outputs[0]] = site.output.view
            return NpuUnit(node, (site,))
    trial = Placement(
        views=dict(p.views),
        values={**p.values, **expansion.values},
        constants={**p.constants, **expansion.constants},
    )
    for name, const in expansion.constants.items():
        trial.values.setdefault(name, Value(name, const.shape, const.dtype.name))
    sites: list[Site] = []
    for piece in expansion.nodes:
        sites += _place_node(piece, trial, target).sites
    _check_inside(node, sites)
    p.views, p.values, p.constants = trial.views, trial.values, trial.constants
    return NpuUnit(node, tuple(sites), rewritten=True)


def _check_inside(node: Node, sites: Sequence[Site]) -> None:
    """Refuse a rewriting whose nodes hand a tensor on under two layouts: nobody converts it."""
    written = {s.output.value.name: s.output for s in sites}
    for s in sites:
        for o in (*s.inputs, s.residual):
            maker = written.get(o.value.name) if o and o.view is not None else None
            if o is None or o.view is None or maker is None or maker.view is None:
                continue
            if not same_cube(o.shape, maker.view, o.view):
                raise UnsupportedError(
                    node.name,
                    f"{node.op} would write {o.value.name} as a cube of {list(maker.nhwc)} and "
                    f"read it as one of {list(o.nhwc)}",
                    "It stays in onnxruntime",
                )


def schedule(graph: Graph, placement: Placement) -> list[Part]:
    """Units in segments: alternately all NPU units and all host units that are ready."""
    available = {*graph.inputs, *placement.constants, ""}
    rest: Sequence[Unit] = placement.units
    parts: list[Part] = []
    while rest:
        before = len(rest)
        for npu in (True, False):
            taken: list[Unit] = []
            written: dict[str, View | None] = {}
            for unit in rest:
                if isinstance(unit, NpuUnit) is npu and _ready(unit, available, written, placement):
                    taken.append(unit)
                    for o in unit.node.outputs:
                        written[o] = placement.views.get(o)
                    if isinstance(unit, NpuUnit):
                        for s in unit.sites:
                            written[s.output.value.name] = s.output.view
            if taken:
                parts.append(Part(tuple(taken), npu))
                available |= written.keys()
                gone = {id(u) for u in taken}
                rest = [u for u in rest if id(u) not in gone]
        if len(rest) == before:
            raise AssertionError(f"{rest[0].node.name} waits for a value that nobody writes")
    return parts


def _ready(
    unit: Unit, available: set[str], written: Mapping[str, View | None], placement: Placement
) -> bool:
    if isinstance(unit, HostUnit):
        return all(v in available or v in written for v in node_reads(unit.node))
    for name, view in unit.reads.items():
        if name in available:
            continue
        there = written.get(name)
        if there is None or not same_cube(placement.values[name].shape, there, view):
            return False
    return True


def partition(graph: Graph, target: Target, *, force: bool = False) -> tuple[Placement, list[Part]]:
    """Place and schedule; then, unless forced, send NPU segments without any MAC to the host.

    A segment that only adds or pools costs a round trip through host memory for work that
    the CPU does in passing.  Models without any MAC on the NPU are left as they are.
    """
    placement = place(graph, target)
    read = {v for u in placement.units if isinstance(u, NpuUnit) for v in u.reads}
    times = {
        u.node.name: t
        for u in placement.units
        if isinstance(u, NpuUnit)
        if (t := timed.predict(u.node.op, u.sites, bool(read & set(u.node.outputs)))) is not None
    }
    slow = {name: t.sentence for name, t in times.items() if t.host < t.npu and not force}
    if slow:
        reasons = {u.node.name: u.reason for u in placement.units if isinstance(u, HostUnit)}
        placement = place(graph, target, {**reasons, **slow})
    parts = schedule(graph, placement)
    macs = any(isinstance(u, NpuUnit) and u.macs for p in parts for u in p.units)
    busy = macs and not force
    idle = {
        u.node.name: f"{u.node.op} would be alone on the NPU between two host nodes"
        for p in parts
        if p.npu and busy
        for u in p.units
        if not any(isinstance(v, NpuUnit) and v.macs for v in p.units)
    }
    if idle:
        reasons = {u.node.name: u.reason for u in placement.units if isinstance(u, HostUnit)}
        placement = place(graph, target, {**reasons, **idle})
        parts = schedule(graph, placement)
    placement.times = times
    return placement, parts
