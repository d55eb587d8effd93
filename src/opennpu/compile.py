"""Model → program.  Read this file first: the pipeline is `STAGES`, in order.

import → fuse → quantize → partition → lower → (verify)
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from opennpu import memory, ops
from opennpu.errors import FieldRangeError, ModelError, UnsupportedError
from opennpu.hw.layout import align, cube_bytes
from opennpu.hw.rk3588.chip import IOVA_BYTES
from opennpu.hw.rk3588.common import Precision
from opennpu.ir.graph import Array, Graph, Node, node_reads
from opennpu.ops._table import load_tables
from opennpu.ops.base import Operand, Site, Target, same_cube
from opennpu.passes import partition
from opennpu.passes.activations import fuse_activations
from opennpu.passes.partition import HostUnit, NpuUnit, Part, Placement
from opennpu.passes.residual import fuse_residuals
from opennpu.program import (
    DTYPES,
    HostSegment,
    NpuSegment,
    Program,
    Ref,
    Segment,
    Task,
    Tensor,
    ValueInfo,
    View,
    link,
)

if TYPE_CHECKING:
    import onnx

    from opennpu.frontends.onnx import Imported

PrecisionName = Literal["fp16", "int8"]
PlacementName = Literal["auto", "npu"]
TARGETS = {
    "rknpu": Target("rknpu"),
    "rocket": Target("rocket", ppu=False),
}
Progress = Callable[[str, float], None]
"""Called with a stage's name and how much of the whole is done, 0 to 1."""


@dataclass(frozen=True)
class Options:
    """What the user asked for; goes into the program's meta."""

    precision: PrecisionName = "fp16"
    target: str = "rknpu"
    fix_dims: Mapping[str, int] = field(default_factory=dict)
    calibration_method: str = "mse"
    placement: PlacementName = "auto"


def compile(
    model: str | Path | bytes | onnx.ModelProto,
    *,
    precision: PrecisionName = "fp16",
    calibration: Iterable[Mapping[str, Array]] | None = None,
    calibration_method: str = "mse",
    target: str = "rknpu",
    placement: PlacementName = "auto",
    fix_dims: Mapping[str, int] | None = None,
    sample: Mapping[str, Array] | None = None,
    progress: Progress | None = None,
) -> Program:
    """Compile an ONNX or TFLite model.

    model: path, bytes or ModelProto.  TFLite is known by its suffix or its first bytes.
    precision: "fp16", or "int8" from ``calibration`` data.  A model that already carries
        QuantizeLinear/DequantizeLinear pairs is int8 where they say so, whatever this says.
    calibration: feeds as `InferenceSession.run` takes them.
    target: "rknpu" (vendor kernel driver) or "rocket" (stock mainline: no pooling unit).
    placement: "auto": what gains from it runs on the NPU; "npu": all that can.
    fix_dims: sizes of symbolic dimensions, by name.
    sample: one set of feeds to store with what onnxruntime makes of them: `Program.samples`
        has "input/NAME" and "output/NAME", so that a program can be checked anywhere.
    Raises ModelError, UnsupportedError.
    """
    return compile_state(
        model,
        precision=precision,
        calibration=calibration,
        calibration_method=calibration_method,
        target=target,
        placement=placement,
        fix_dims=fix_dims,
        sample=sample,
        progress=progress,
    ).program


def compile_state(
    model: Any,
    *,
    precision: PrecisionName = "fp16",
    calibration: Iterable[Mapping[str, Array]] | None = None,
    calibration_method: str = "mse",
    target: str = "rknpu",
    placement: PlacementName = "auto",
    fix_dims: Mapping[str, int] | None = None,
    sample: Mapping[str, Array] | None = None,
    progress: Progress | None = None,
    keep_values: bool = False,
) -> State:
    """`compile`, with everything that its stages made.

    keep_values: every value between nodes keeps its own place in memory and leaves its segment.
        The words stay the same; only addresses differ.
    """
    if target not in TARGETS:
        raise ModelError(
            "compile",
            f"target is {target!r}, of {len(TARGETS)} known ones",
            f"Use one of {sorted(TARGETS)}",
        )
    if precision not in ("fp16", "int8"):
        raise ModelError(
            "compile", f"precision is {precision!r}, of 2 known ones", "Use 'fp16' or 'int8'"
        )
    if placement not in ("auto", "npu"):
        raise ModelError(
            "compile", f"placement is {placement!r}, of 2 known ones", "Use 'auto' or 'npu'"
        )
    options = Options(precision, target, dict(fix_dims or {}), calibration_method, placement)
    state = State(model, options, calibration, sample, keep_values)
    for i, (name, stage) in enumerate(STAGES):
        if progress:
            progress(name, i / len(STAGES))
        stage(state)
    if progress:
        progress("done", 1.0)
    return state


class State:
    """What the stages hand on."""

    imported: Imported
    graph: Graph
    placement: Placement
    parts: list[Part]
    program: Program

    def __init__(
        self,
        model: Any,
        options: Options,
        calibration: Any = None,
        sample: Any = None,
        keep_values: bool = False,
    ) -> None:
        self.model, self.options = model, options
        self.calibration, self.sample, self.keep_values = calibration, sample, keep_values
        self.tasks: dict[str, list[Task]] = {}  # by node, as lowered


def stage_import(state: State) -> None:
    """Parse, fix dimensions, fold constants."""
    try:
        from opennpu.frontends import onnx, tflite, tflite_file
    except ModuleNotFoundError as e:
        raise ModelError(
            "compile",
            f"the package {e.name} is missing, and compiling needs it",
            "Install it with pip install 'opennpu[onnx]'",
        ) from None

    load_model = tflite.load_model if tflite_file.is_tflite(state.model) else onnx.load_model
    state.imported = load_model(state.model, fix_dims=state.options.fix_dims)
    state.graph = state.imported.graph


def stage_fuse(state: State) -> None:
    """Join what one task can do."""
    from opennpu.passes import run_passes

    state.graph = run_passes(state.graph)


def stage_quantize(state: State) -> None:
    """int8 from calibration data."""
    if state.options.precision != "int8":
        return
    from opennpu.frontends.calibration import calibrate
    from opennpu.passes.quantize import quantize

    if any(v.quant is not None for v in state.graph.values.values()):
        return  # the model brings its own
    if state.calibration is None:
        raise ModelError(
            "compile",
            "precision is 'int8' and there is no calibration data: 0 samples, at least 1 is needed",
            "Pass calibration=[{input: array}, …], or a model with QuantizeLinear nodes",
        )
    method = state.options.calibration_method
    seen = calibrate(state.imported, state.graph, state.calibration, method)
    state.graph = quantize(state.graph, seen)


def stage_partition(state: State) -> None:
    """NPU or host, node by node."""
    target = TARGETS[state.options.target]
    own_codes = any(n.op_type == "DequantizeLinear" for n in state.imported.model.graph.node)
    joined = fuse_residuals(state.graph, target)
    state.graph = fuse_activations(joined, target, keep_codes=own_codes)
    force = state.options.placement == "npu"
    state.placement, state.parts = partition.partition(state.graph, target, force=force)


def stage_lower(state: State) -> None:
    """Segments → tasks → words."""
    graph, placement = state.graph, state.placement
    needed = (_all_values if state.keep_values else _needed_outside)(graph, state.parts)
    segments: list[Segment] = []
    nodes: list[dict[str, Any]] = []
    for k, part in enumerate(state.parts):
        if part.npu:
            units = [u for u in part.units if isinstance(u, NpuUnit)]
            segment, tasks = lower(f"npu{k}", units, needed[k], placement)
            segments.append(segment)
            state.tasks |= tasks
            nodes += _npu_report(units, tasks)
        else:
            host = [u for u in part.units if isinstance(u, HostUnit)]
            segments.append(_host_segment(f"host{k}", host, needed[k], state))
            nodes += [_host_report(u, state) for u in host]
    for entry in nodes:
        if entry["name"] in placement.times:
            times = placement.times[entry["name"]]
            entry["predicted"] = {"npu_s": times.npu, "host_s": times.host}
    order = {n.name: i for i, n in enumerate(graph.nodes)}
    nodes.sort(key=lambda n: order[n["name"]])
    options = state.options
    meta = {
        "model": graph.name,
        "options": {
            "precision": options.precision,
            "target": options.target,
            "fix_dims": dict(options.fix_dims),
            "calibration_method": options.calibration_method if options.precision == "int8" else "",
        },
        "nodes": nodes,
        **state.imported.notes,
    }
    state.program = Program(
        _infos(graph, graph.inputs),
        _infos(graph, graph.outputs),
        tuple(segments),
        meta,
        _golden(state),
    )


STAGES: Sequence[tuple[str, Callable[[State], None]]] = (
    ("import", stage_import),
    ("fuse", stage_fuse),
    ("quantize", stage_quantize),
    ("partition", stage_partition),
    ("lower", stage_lower),
)


def _golden(state: State) -> dict[str, Array]:
    """The user's sample and what onnxruntime makes of it."""
    if state.sample is None:
        return {}
    from opennpu.frontends.calibration import run_float

    outputs = run_float(state.imported, state.sample, list(state.graph.outputs))
    golden = {f"input/{n}": np.asarray(state.sample[n]) for n in state.graph.inputs}
    return {**golden, **{f"output/{n}": a for n, a in outputs.items()}}


def _infos(graph: Graph, names: Sequence[str]) -> tuple[ValueInfo, ...]:
    return tuple(ValueInfo(n, graph.values[n].shape, graph.values[n].dtype) for n in names)


def _all_values(graph: Graph, parts: Sequence[Part]) -> list[set[str]]:
    """Per part: all tensors that its nodes write, and what a later part reads."""
    tensors = {n for n, v in graph.values.items() if v.dtype in DTYPES and 0 not in v.shape}
    return [
        needed | {o for u in part.units for o in u.node.outputs if o in tensors}
        for part, needed in zip(parts, _needed_outside(graph, parts), strict=True)
    ]


def _needed_outside(graph: Graph, parts: Sequence[Part]) -> list[set[str]]:
    """Per part: values that it writes and that a later part, or the user, reads."""
    reads: list[set[str]] = []
    for part in parts:
        names: set[str] = set()
        for u in part.units:
            names |= set(u.reads) if isinstance(u, NpuUnit) else set(node_reads(u.node))
        reads.append(names)
    needed = []
    for k, part in enumerate(parts):
        later = set(graph.outputs).union(*reads[k + 1 :])
        needed.append({o for u in part.units for o in u.node.outputs if o} & later)
    return needed


def _host_segment(
    name: str, units: Sequence[HostUnit], needed: set[str], state: State
) -> HostSegment:
    from opennpu.frontends.onnx import extract_host

    written = {o for u in units for o in u.node.outputs}
    constants = state.graph.constants
    inputs = dict.fromkeys(
        v for u in units for v in node_reads(u.node) if v not in written and v not in constants
    )
    outputs = [o for u in units for o in u.node.outputs if o in needed]
    sources = [s for u in units for s in u.node.sources]
    onnx_bytes = extract_host(state.imported, sources, list(inputs), outputs)
    reasons = tuple((u.node.name, u.reason) for u in units)
    return HostSegment(name, onnx_bytes, tuple(inputs), tuple(outputs), reasons)


def _host_report(unit: HostUnit, state: State) -> dict[str, Any]:
    node = unit.node
    return {
        "name": node.name,
        "op": node.op,
        "where": "CPU",
        "reason": unit.reason,
        "macs": count_macs(node, state.graph),
    }


def count_macs(node: Node, graph: Graph) -> int:
    """Multiply-accumulates of a convolution or matrix product; 0 for other operators."""
    shapes = [graph.values[i].shape for i in node.inputs if i]
    out = int(np.prod(graph.values[node.outputs[0]].shape)) if node.outputs else 0
    if node.op == "Conv":
        return out * int(np.prod(shapes[1][1:]))
    if node.op == "ConvTranspose":
        return int(np.prod(shapes[0])) * int(np.prod(shapes[1][1:]))
    if node.op in ("Gemm", "MatMul") and shapes[0]:
        if node.attrs.get("image"):
            return out * int(np.prod(shapes[0][1:]))
        return out * shapes[0][0 if node.attrs.get("transA") else -1]
    return 0


def _npu_report(units: Sequence[NpuUnit], tasks: Mapping[str, list[Task]]) -> list[dict[str, Any]]:
    report = []
    for u in units:
        mine = tasks.get(u.node.name, [])
        report.append(
            {
                "name": u.node.name,
                "op": u.node.op,
                "where": "NPU after rewrite" if u.rewritten else "NPU",
                "reason": "",
                "precision": u.sites[0].precision.name.lower(),
                "tasks": len(mine),
                "macs": sum(t.cost.macs for t in mine),
                "bytes": sum(t.cost.read_bytes + t.cost.write_bytes for t in mine),
            }
        )
    return report


# -- lowering one segment --------------------------------------------------------------------


class Pool:
    """The constant buffer of a segment: equal bytes are stored once."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.seen: dict[bytes, int] = {}

    def place(self, data: Array) -> Ref:
        """Bytes → their address, 64-byte aligned."""
        raw = np.ascontiguousarray(data).tobytes()
        key = hashlib.sha256(raw).digest()
        if key not in self.seen:
            self.data += bytes(align(len(self.data), memory.ALIGN_BYTES) - len(self.data))
            self.seen[key] = len(self.data)
            self.data += raw
        return Ref("const", self.seen[key])


@dataclass
class Slot:
    """A value in the arena, under one view."""

    operand: Operand
    root: str  # name of the block that holds it
    channels: int = 0


def lower(
    name: str, units: Sequence[NpuUnit], needed: set[str], placement: Placement
) -> tuple[NpuSegment, dict[str, list[Task]]]:
    """Tasks, constants and arena of one NPU segment."""
    sites = [(u, s) for u in units for s in u.sites]
    slots: dict[str, Slot] = {}
    birth: dict[str, int] = {}
    death: dict[str, int] = {}
    inputs: list[str] = []

    def key_of(o: Operand, step: int) -> str:
        """Slot of a value under a view; made on first sight, as an input of the segment."""
        assert o.view is not None
        views = [k for k in slots if k.split("\0")[0] == o.value.name]
        for k in views:
            there = slots[k].operand.view
            assert there is not None
            if same_cube(o.shape, there, o.view):
                return k
        key = o.value.name if not views else f"{o.value.name}\0{len(views)}"
        slots[key] = Slot(o, key)
        birth[key], death[key] = -1, step
        inputs.append(key)
        return key

    bound: list[tuple[NpuUnit, Site, tuple[str | None, ...], str]] = []
    for step, (unit, site) in enumerate(sites):
        keys = tuple(
            key_of(o, step) if o and o.view is not None else None
            for o in (*site.inputs, site.residual)
        )
        out = site.output.value.name
        alias = ops.OPS[site.node.op].aliases
        root = slots[keys[0]].root if alias and keys[0] else out
        slots[out] = Slot(site.output, root)
        for k in keys:
            if k:
                death[slots[k].root] = step
        if not alias:
            birth[out] = step
        death[root] = step
        bound.append((unit, site, keys, out))

    rooms = _rooms(bound, slots)
    outputs = [o for o in dict.fromkeys(out for *_, out in bound) if o in needed]
    for o in outputs:
        death[slots[o].root] = len(sites)
    blocks = []
    for root, born in birth.items():
        holder = slots[root].operand
        size = cube_bytes(holder.nhwc, holder.precision, rooms[root])
        blocks.append(memory.Lifetime(root, size, born, death[root]))
    for step, (_, site, _, out) in enumerate(bound):
        there = replace(site.output, channels=rooms[slots[out].root])
        if size := ops.OPS[site.node.op].scratch(site.with_(output=there)):
            blocks.append(memory.Lifetime(f"{out}\0scratch", size, step, step))
    offsets, arena_bytes = memory.plan(blocks)
    if arena_bytes > IOVA_BYTES:
        raise UnsupportedError(
            sites[0][0].node.name,
            f"the tensors from here on take {arena_bytes} bytes at once, the NPU reaches "
            f"{IOVA_BYTES}",
            "Make the inputs smaller, or split the model",
        )

    def placed(key: str, o: Operand) -> Operand:
        root = slots[key].root
        return replace(o, ref=Ref("arena", offsets[root]), channels=rooms[root])

    pool = Pool()
    by_node: dict[str, list[Task]] = {}
    tasks: list[Task] = []
    for unit, site, keys, out in bound:
        op = ops.OPS[site.node.op]
        if op.aliases:
            continue
        operands = tuple(
            placed(k, o) if k and o else o
            for k, o in zip(keys, (*site.inputs, site.residual), strict=True)
        )
        full = site.with_(
            inputs=operands[:-1],
            residual=operands[-1],
            output=placed(out, site.output),
            place=pool.place,
            scratch=Ref("arena", offsets.get(f"{out}\0scratch", 0)),
        )
        try:
            made = [replace(t, node=unit.node.name) for t in op.tasks(full)]
        except FieldRangeError as e:
            raise UnsupportedError(
                unit.node.name,
                f"a number of its program does not fit its register: {e}",
                "Make the node smaller or split it, and report this: it should have been tiled",
            ) from None
        tasks += made
    tasks = load_tables(tasks)
    for task in tasks:
        by_node.setdefault(task.node, []).append(task)
    code, placed_tasks, relocs = link(tasks)
    segment = NpuSegment(
        name,
        code,
        tuple(placed_tasks),
        tuple(relocs),
        bytes(pool.data),
        arena_bytes,
        tuple(_tensor(k, slots[k].operand, placed) for k in inputs),
        tuple(_tensor(k, slots[k].operand, placed) for k in outputs),
    )
    return segment, by_node


def _rooms(
    bound: Sequence[tuple[NpuUnit, Site, tuple[str | None, ...], str]], slots: Mapping[str, Slot]
) -> dict[str, int]:
    """Channels with room, per block: what its writer fills and what its readers expect."""
    rooms: dict[str, int] = dict.fromkeys((s.root for s in slots.values()), 0)
    for slot in slots.values():
        o = slot.operand
        c2 = 128 // {Precision.INT8: 8, Precision.FP16: 16}[o.precision]
        rooms[slot.root] = max(rooms[slot.root], align(o.nhwc[3], c2))
    for _, site, keys, out in reversed(bound):
        op = ops.OPS[site.node.op]
        root = slots[out].root
        rooms[root] = max(rooms[root], op.room(site))
        wants = (*op.input_rooms(site, rooms[root]), rooms[root] if site.residual else 0)
        for key, want in zip(keys, wants, strict=True):
            if key:
                rooms[slots[key].root] = max(rooms[slots[key].root], want)
    return rooms


def _tensor(key: str, o: Operand, placed: Callable[[str, Operand], Operand]) -> Tensor:
    there = placed(key, o)
    assert there.view is not None
    quant = o.value.quant
    return Tensor(
        o.value.name,
        o.shape,
        o.precision,
        View(there.view.perm, there.view.nhwc),
        there.ref,
        there.channels,
        scale=float(quant.scale) if quant else 0.0,
        zero_point=int(quant.zero_point) if quant else 0,
        dtype=o.value.dtype,
    )
