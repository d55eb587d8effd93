"""Where accuracy is lost: the compiled model against the float model, layer by layer.

Every value that a layer of the compiled model writes is compared with the value of that name in
the float model, run by onnxruntime.  Twice: as the model runs, with all errors before it
(*accumulated*), and with the layer alone, fed with the float model's values (its *own* error).
The register words are those of the ordinary program; only addresses differ, since no value may
lie where another one was.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from opennpu.compile import Progress, State, compile_state
from opennpu.device import open_device
from opennpu.device.base import Device, closing
from opennpu.errors import InputError, ModelError
from opennpu.frontends.calibration import run_float
from opennpu.hw.rk3588.common import Precision
from opennpu.ops._table import loads_itself
from opennpu.ops.base import same_cube
from opennpu.passes.partition import NpuUnit
from opennpu.program import (
    DTYPES,
    Array,
    NpuSegment,
    Program,
    Tensor,
    ValueInfo,
    link,
)
from opennpu.runtime.session import FP16_MAX, InferenceSession
from opennpu.tools import page
from opennpu.tools.data import Feeds

if TYPE_CHECKING:
    import onnx

MIN_COSINE = 0.99
Source = Callable[[Sequence[ValueInfo]], Iterable[Feeds]]
"""Samples for a model with these inputs."""


@dataclass(frozen=True, slots=True)
class Error:
    """Ours against float, over all samples.  None where there is nothing to compare."""

    cosine: float | None  # the least of all samples
    snr_db: float | None  # None also without any error
    max_error: float
    nonfinite: int = 0  # elements of ours that are no numbers where float has one


@dataclass(frozen=True, slots=True)
class Layer:
    """One value that a layer of the fused model writes."""

    name: str  # the user's name of the node
    op: str
    where: str  # "NPU", "NPU after rewrite", "CPU"
    precision: str  # of the NPU; "float" in onnxruntime
    value: str
    stands_for: tuple[str, ...]  # nodes of the model that were fused into this one
    accumulated: Error
    own: Error | None  # None: not an NPU task, or its input is unknown to the float model
    elements: int  # of all samples
    low_codes: int = 0  # int8 elements at -128
    high_codes: int = 0  # int8 elements at 127
    clipped: int = 0  # of both, those whose float value lies beyond what int8 can say
    infinite: int = 0  # where the float value is a number
    nan: int = 0  # the same
    note: str = ""

    def bad(self, min_cosine: float) -> bool:
        """Is its cosine too small, or does it hold what is no number?"""
        cosine = self.accumulated.cosine
        return bool(self.infinite or self.nan) or (cosine is not None and cosine < min_cosine)

    def own_bad(self, min_cosine: float) -> bool:
        """The same of the layer alone."""
        if self.own is None:
            return False
        cosine = self.own.cosine
        return bool(self.own.nonfinite) or (cosine is not None and cosine < min_cosine)


@dataclass(frozen=True)
class Report:
    """All layers in the model's order."""

    model: str
    precision: str  # of the NPU's layers
    device: str
    samples: int
    min_cosine: float
    layers: tuple[Layer, ...]

    @property
    def first_bad(self) -> Layer | None:
        """The first layer whose cosine is below ``min_cosine``, or that makes infinities or NaN."""
        return next((x for x in self.layers if x.bad(self.min_cosine)), None)

    @property
    def sentence(self) -> str:
        """What was found, in words."""
        bad, limit = self.first_bad, f"{self.min_cosine:g}"
        if bad is None:
            least = min(
                (x.accumulated.cosine for x in self.layers if x.accumulated.cosine is not None),
                default=1.0,
            )
            return f"No layer is below cosine {limit}; the least is {least:.6f}."
        why = []
        if bad.infinite or bad.nan:
            why.append(f"{bad.infinite} infinities and {bad.nan} NaN of {bad.elements} elements")
        cosine = bad.accumulated.cosine
        if cosine is not None and cosine < self.min_cosine:
            why.append(f"cosine {cosine:.6f} is below {limit}")
        own = ""
        if bad.own and bad.own.nonfinite:
            own = f"; {bad.own.nonfinite} with float inputs"
        elif bad.own and bad.own.cosine is not None:
            own = f"; {bad.own.cosine:.6f} with float inputs"
        return f"First bad layer: {bad.name} ({bad.op}, {bad.where}): {' and '.join(why)}{own}."

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        bad = self.first_bad
        data = asdict(self)
        for entry, layer in zip(data["layers"], self.layers, strict=True):
            entry["bad"] = layer.bad(self.min_cosine)
        return {**data, "first_bad": bad.name if bad else None, "sentence": self.sentence}

    def to_html(self) -> str:
        """A page of its own."""
        return _html(self)


def accuracy(
    model: str | Path | bytes | onnx.ModelProto,
    source: Source,
    *,
    device: str | Device | None = None,
    min_cosine: float = MIN_COSINE,
    progress: Progress | None = None,
    **options: Any,
) -> Report:
    """Compile ``model`` with ``options`` of `opennpu.compile` and compare all its layers.

    source: makes samples, given the inputs.  Raises what `opennpu.compile` and `run` raise.
    """
    state = compile_state(model, keep_values=True, **options)
    return compare(state, source, device=device, min_cosine=min_cosine, progress=progress)


def compare(
    state: State,
    source: Source,
    *,
    device: str | Device | None = None,
    min_cosine: float = MIN_COSINE,
    progress: Progress | None = None,
) -> Report:
    """`accuracy` of a model that was compiled with ``keep_values``."""
    if not -1 <= min_cosine <= 1:
        raise InputError("--min-cosine", f"{min_cosine:g} is not in -1 to 1", "Give 0.99 or so")
    if not state.program.outputs:
        raise ModelError(
            state.graph.name or "model",
            "it has 0 outputs, there is nothing to compare",
            "Name the results as outputs of the graph",
        )
    if device is None or isinstance(device, str):
        with closing(open_device(device)) as opened:
            return _compare(state, source, opened, min_cosine, progress)
    return _compare(state, source, device, min_cosine, progress)


def _compare(
    state: State, source: Source, device: Device, min_cosine: float, progress: Progress | None
) -> Report:
    samples = list(source(state.program.inputs))
    if not samples:
        raise InputError("accuracy", "there are 0 samples, at least 1 is needed", "Give data")
    watched = _Watched(state)
    pieces = _pieces(state, watched.in_float)
    everything = replace(state.program, outputs=tuple(watched.infos))
    sums = {v.name: _Sums(watched.tensors.get(v.name)) for v in watched.infos}
    alone = {name: _Sums(None) for name in pieces.outputs}
    wanted = sorted(watched.in_float & ({v.name for v in watched.infos} | set(pieces.feeds)))
    with (
        InferenceSession(everything, device) as whole,
        InferenceSession(pieces.program, device) as apart,
    ):
        for k, feeds in enumerate(samples):
            if progress:
                progress(f"sample {k + 1} of {len(samples)}", k / len(samples))
            names = [n for n in wanted if n not in feeds]
            want = {**feeds, **run_float(state.imported, feeds, names)}
            for v, ours in zip(watched.infos, whole.run(None, feeds), strict=True):
                sums[v.name].add(ours, want.get(v.name))
            for name, ours in zip(pieces.outputs, apart.run(None, pieces.fed(want)), strict=True):
                alone[name].add(ours, want.get(name))
    layers = [
        _layer(state, info.name, sums, alone, pieces.notes.get(info.name, ""))
        for info in watched.infos
    ]
    return Report(
        state.graph.name,
        " and ".join(sorted({x.precision for x in layers if x.where != "CPU"})),
        device.info.name,
        len(samples),
        min_cosine,
        tuple(layers),
    )


class _Watched:
    """Values to compare, in the model's order."""

    def __init__(self, state: State) -> None:
        graph = state.graph
        segments = state.program.segments
        self.tensors = {t.name: t for s in segments if isinstance(s, NpuSegment) for t in s.outputs}
        written = {*self.tensors}.union(
            *(s.outputs for s in segments if not isinstance(s, NpuSegment))
        )
        self.infos = [
            ValueInfo(o, graph.values[o].shape, graph.values[o].dtype)
            for n in graph.nodes
            for o in n.outputs
            if o in written and graph.values[o].dtype in DTYPES
        ]
        model = state.imported.model.graph
        self.in_float = {o for n in model.node for o in n.output if o}
        self.in_float |= {i.name for i in model.input}


# -- each layer alone ------------------------------------------------------------------------


@dataclass(frozen=True)
class _Pieces:
    """A program with a segment per NPU layer; each reads values of the float model."""

    program: Program
    outputs: tuple[str, ...]  # names of the values that it writes
    feeds: Mapping[str, str]  # name of a value -> precision that it is packed to
    reads: Mapping[str, tuple[str, ...]]  # by output: the values that its layer reads
    notes: dict[str, str]  # by output: why it is not among them, or what is odd about it

    def fed(self, want: Mapping[str, Array]) -> Feeds:
        """Its inputs from values of the float model, as far as their type can say them."""
        feeds = {}
        for v in self.program.inputs:
            x = want[v.name.removeprefix(FED)]
            kind = self.feeds[v.name.removeprefix(FED)]
            if x.dtype.kind == "f" and kind == "int8":
                x = np.nan_to_num(x)
            elif x.dtype.kind == "f":  # infinities stay
                most = np.abs(x[np.isfinite(x)]).max(initial=0)
                if most > FP16_MAX:
                    self._beyond(v.name.removeprefix(FED), float(most))
                    x = np.where(np.isfinite(x), np.clip(x, -FP16_MAX, FP16_MAX), x)
            feeds[v.name] = x.astype(v.dtype, copy=False)
        return feeds

    def _beyond(self, name: str, most: float) -> None:
        for out, reads in self.reads.items():
            if name in reads:
                self.notes[out] = f"its input {name} holds {most:g}, beyond fp16 ({FP16_MAX:g})"


FED, MADE = "float/", "own/"


def _pieces(state: State, in_float: set[str]) -> _Pieces:
    inputs: dict[str, ValueInfo] = {}
    feeds: dict[str, str] = {}
    notes: dict[str, str] = {}
    reads: dict[str, tuple[str, ...]] = {}
    segments: list[NpuSegment] = []
    outputs: list[ValueInfo] = []
    by_name = {s.name: s for s in state.program.segments}
    for k, part in enumerate(state.parts):
        home = by_name.get(f"npu{k}")
        if not isinstance(home, NpuSegment):
            continue
        for unit in part.units:
            if not isinstance(unit, NpuUnit):
                continue
            out = unit.node.outputs[0]
            tasks = state.tasks.get(unit.node.name, [])
            mine = _inputs(unit, home)
            unknown = [t.name for t in mine if t.name not in in_float]
            target = next((t for t in home.outputs if t.name == out), None)
            if not tasks or target is None:
                notes[out] = "only renames its input"
            elif unknown:
                notes[out] = f"the float model has no value {unknown[0]} to feed it with"
            else:
                reads[out] = tuple(t.name for t in mine)
                for t in mine:
                    inputs[t.name] = ValueInfo(FED + t.name, t.shape, t.dtype)
                    feeds[t.name] = t.precision.name.lower()
                outputs.append(ValueInfo(MADE + out, target.shape, target.dtype))
                segments.append(
                    NpuSegment(
                        f"{home.name}/{unit.node.name}",
                        *link(loads_itself(tasks)),
                        home.const,
                        home.arena_bytes,
                        tuple(replace(t, name=FED + t.name) for t in mine),
                        (replace(target, name=MADE + out),),
                    )
                )
    program = Program(tuple(inputs.values()), tuple(outputs), tuple(segments))
    return _Pieces(program, tuple(v.name.removeprefix(MADE) for v in outputs), feeds, reads, notes)


def _inputs(unit: NpuUnit, home: NpuSegment) -> list[Tensor]:
    """Where the values are that a layer reads from outside: one tensor per value and view."""
    inside = {s.output.value.name for s in unit.sites}
    there = (*home.inputs, *home.outputs)
    found: list[Tensor] = []
    for site in unit.sites:
        for o in (*site.inputs, site.residual):
            if o is None or o.view is None or o.value.name in inside:
                continue
            for t in there:
                if t.name == o.value.name and same_cube(t.shape, t.view, o.view):
                    if t not in found:
                        found.append(t)
                    break
    return found


# -- numbers ---------------------------------------------------------------------------------


class _Sums:
    """Errors of one value over samples."""

    def __init__(self, tensor: Tensor | None) -> None:
        self.tensor = tensor
        self.cosine: float | None = None
        self.signal = self.noise = self.max_error = 0.0
        self.compared = self.elements = 0
        self.low = self.high = self.clipped = self.infinite = self.nan = 0

    def add(self, ours: Array, want: Array | None) -> None:
        """One sample.  Elements that are no numbers in float do not count."""
        self.elements += ours.size
        t = self.tensor
        y = ours.astype(np.float64).reshape(-1)
        coded = t is not None and t.precision is Precision.INT8 and t.scale
        if coded:
            assert t is not None
            codes = np.rint(y / t.scale) + t.zero_point
            low, high = codes <= -128, codes >= 127
            self.low += int(low.sum())
            self.high += int(high.sum())
        if want is None or want.dtype.kind not in "fiub" or want.size != ours.size:
            self.infinite += int(np.isinf(y).sum())
            self.nan += int(np.isnan(y).sum())
            return
        x = want.astype(np.float64).reshape(-1)
        number = np.isfinite(x)
        self.infinite += int((np.isinf(y) & number).sum())
        self.nan += int((np.isnan(y) & number).sum())
        if coded:
            assert t is not None
            reach = [(c - t.zero_point) * t.scale for c in (-128.5, 127.5)]
            self.clipped += int(((low & (x < reach[0])) | (high & (x > reach[1]))).sum())
        both = number & np.isfinite(y)
        if not both.any():
            return
        x, y = x[both], y[both]
        error = y - x
        self.compared += x.size
        self.signal += float(x @ x)
        self.noise += float(error @ error)
        self.max_error = max(self.max_error, float(np.abs(error).max()))
        norm = float(np.linalg.norm(x) * np.linalg.norm(y))
        cosine = min(1.0, float(x @ y) / norm) if norm else float(np.array_equal(x, y))
        self.cosine = cosine if self.cosine is None else min(self.cosine, cosine)

    @property
    def error(self) -> Error:
        """Over all samples so far."""
        snr = 10 * np.log10(self.signal / self.noise) if self.signal and self.noise else None
        decibels = None if snr is None else float(snr)
        return Error(self.cosine, decibels, self.max_error, self.infinite + self.nan)


def _layer(
    state: State, value: str, sums: Mapping[str, _Sums], alone: Mapping[str, _Sums], note: str
) -> Layer:
    node = state.graph.producer()[value]
    entry = next(n for n in state.program.meta["nodes"] if n["name"] == node.name)
    s = sums[value]
    if not s.compared and not note:
        note = "the float model has no value of this name: a fusion made it"
    return Layer(
        node.name,
        node.op,
        entry["where"],
        entry.get("precision", "float"),
        value,
        node.sources,
        s.error,
        alone[value].error if value in alone and alone[value].compared else None,
        s.elements,
        s.low,
        s.high,
        s.clipped,
        s.infinite,
        s.nan,
        note,
    )


# -- the page --------------------------------------------------------------------------------

COLUMNS = (
    *("layer", "operator", "where", "type", "cosine", "SNR dB", "max error"),
    *("own cosine", "own SNR dB", "clipped", "inf", "NaN"),
)


def row(layer: Layer) -> list[str]:
    """The cells of a layer, as `COLUMNS` names them."""

    def number(x: float | None, form: str) -> str:
        return "-" if x is None else format(x, form)

    own = layer.own
    coded = layer.precision == "int8"
    return [
        layer.name,
        layer.op,
        layer.where,
        layer.precision,
        number(layer.accumulated.cosine, ".6f"),
        number(layer.accumulated.snr_db, ".1f"),
        number(layer.accumulated.max_error, ".4g"),
        number(own.cosine if own else None, ".6f"),
        number(own.snr_db if own else None, ".1f"),
        f"{100 * layer.clipped / max(1, layer.elements):.2f} %" if coded else "-",
        str(layer.infinite),
        str(layer.nan),
    ]


def fused(layer: Layer) -> str:
    """Nodes of the model that became this layer: only the last one's value exists on the NPU."""
    return " + ".join(layer.stands_for) if len(layer.stands_for) > 1 else ""


def _html(report: Report) -> str:
    bad = {i for i, x in enumerate(report.layers) if x.bad(report.min_cosine)}
    chart = [
        page.Bar(
            x.name,
            ((max(0.0, x.accumulated.snr_db), 0),) if x.accumulated.snr_db is not None else (),
            "no error"
            if x.accumulated.snr_db is None
            else f"{x.accumulated.snr_db:.1f} dB"
            + (f", own {x.own.snr_db:.1f}" if x.own and x.own.snr_db is not None else ""),
            i in bad,
        )
        for i, x in enumerate(report.layers)
    ]
    return page.page(
        f"Accuracy of {report.model or 'the model'}",
        [
            page.paragraph(report.sentence, "bad" if bad else ""),
            page.facts(
                {
                    "precision": report.precision,
                    "device": report.device,
                    "samples": str(report.samples),
                    "least cosine allowed": f"{report.min_cosine:g}",
                    "layers below it": f"{len(bad)} of {len(report.layers)}",
                }
            ),
            page.heading("Signal to noise by layer (more is better)"),
            page.bars("signal to noise by layer", chart),
            page.heading("Layers in the model's order"),
            page.paragraph(
                "Cosine, SNR and error against the float model in onnxruntime, with all errors "
                "of the layers before. Own: the layer alone, fed with the float model's values. "
                "Clipped: int8 elements at -128 or 127 whose float value lies beyond.",
                "note",
            ),
            page.table(
                (*COLUMNS, "stands for; notes"),
                [[*row(x), "; ".join(filter(None, (fused(x), x.note)))] for x in report.layers],
                set(COLUMNS[4:]),
                bad,
            ),
        ],
    )


def dumps(report: Report) -> str:
    """The report as JSON text."""
    return json.dumps(report.to_json(), indent=2, allow_nan=False)
