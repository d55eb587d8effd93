"""Run a program: load its buffers once, then pack, submit, wait and unpack for every call.

The interface is onnxruntime's where the two overlap: ``run``, ``get_inputs``, ``get_outputs``.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Self

import numpy as np

from opennpu.device import open_device
from opennpu.device.base import Buffer, Bytes, Device, Job, JobTask, Kind, closed
from opennpu.emu import timing
from opennpu.errors import (
    DeviceError,
    DeviceFault,
    DeviceTimeout,
    InputError,
    NPUError,
    ProgramError,
)
from opennpu.hw import layout
from opennpu.hw.regcmd import WORD_BYTES
from opennpu.hw.rk3588 import chip
from opennpu.hw.rk3588.common import Precision
from opennpu.hw.rk3588.pc import DPU_DONE
from opennpu.program import (
    Array,
    HostSegment,
    NpuSegment,
    PlacedTask,
    Program,
    Tensor,
    ValueInfo,
    bind,
    check_program,
    load,
)

FP16_MAX = float(np.finfo(np.float16).max)
_log = logging.getLogger("opennpu")
ORT_TYPES = {"float32": "float", "float64": "double"}  # the others have NumPy's names


@dataclass(frozen=True, slots=True)
class NodeArg:
    """An input or output, as onnxruntime describes one."""

    name: str
    shape: list[int]
    type: str  # "tensor(float)"


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """What one segment did in one run."""

    name: str
    kind: str  # "npu" or "host"
    seconds: float  # on the NPU: predicted unless ``measured``; on the host: wall time
    measured: bool
    tasks: int = 0
    jobs: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    host_nodes: int = 0
    violations: tuple[str, ...] = ()
    nonfinite: tuple[str, ...] = ()
    retried: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RunInfo:
    """What one run did: sums over its segments."""

    segments: tuple[SegmentInfo, ...] = field(repr=False)
    tasks: int = 0
    jobs: int = 0
    bytes_moved: int = 0  # read and written by the NPU
    npu_s: float = 0.0
    measured: bool = False  # ``npu_s`` comes from a board, not from the cycle model
    host_s: float = 0.0  # wall time in onnxruntime
    host_nodes: int = 0
    violations: tuple[str, ...] = ()
    nonfinite: tuple[str, ...] = ()  # values of NPU segments that hold infinities or NaNs
    retried: tuple[str, ...] = ()  # what went wrong before a second try succeeded

    @property
    def predicted_s(self) -> float | None:
        """Time on the NPU by the cycle model; None if it was measured."""
        return None if self.measured else self.npu_s

    @property
    def measured_s(self) -> float | None:
        """Time on the NPU as measured on a board; None if it was predicted."""
        return self.npu_s if self.measured else None


def _count_nonfinite(name: str, a: Array) -> str:
    """A sentence about the elements that are no numbers; "" without any."""
    count = int(a.size - np.isfinite(a).sum()) if a.dtype.kind == "f" else 0
    return f"{name}: {count} of {a.size} elements are infinite or NaN" if count else ""


def _sum_up(segments: Sequence[SegmentInfo]) -> RunInfo:
    npu = [s for s in segments if s.kind == "npu"]
    return RunInfo(
        tuple(segments),
        tasks=sum(s.tasks for s in npu),
        jobs=sum(s.jobs for s in npu),
        bytes_moved=sum(s.bytes_read + s.bytes_written for s in npu),
        npu_s=sum(s.seconds for s in npu),
        measured=bool(npu) and all(s.measured for s in npu),
        host_s=sum(s.seconds for s in segments if s.kind == "host"),
        host_nodes=sum(s.host_nodes for s in segments),
        violations=tuple(v for s in npu for v in s.violations),
        nonfinite=tuple(v for s in npu for v in s.nonfinite),
        retried=tuple(v for s in npu for v in s.retried),
    )


@dataclass(frozen=True, slots=True)
class _Npu:
    """A segment in device memory."""

    segment: NpuSegment
    arena: Buffer
    jobs: tuple[tuple[Job, tuple[PlacedTask, ...]], ...]


@dataclass(frozen=True, slots=True)
class _Host:
    """A segment in onnxruntime."""

    segment: HostSegment
    session: Any


@dataclass(slots=True)
class _Stream:
    """All of a program on one core, with an arena of its own."""

    device: Device
    core: int | None  # None: the driver chooses
    parts: list[_Npu | _Host] = field(default_factory=list)


class _Streams:
    """Streams that callers take and give back."""

    def __init__(self) -> None:
        self.all: list[_Stream] = []
        self.open = True
        self._free: list[_Stream] = []
        self._changed = threading.Condition()

    def add(self, stream: _Stream) -> None:
        self.all.append(stream)
        self._free.append(stream)

    @contextmanager
    def one(self) -> Iterator[_Stream]:
        """A stream that nobody else has; waits for one."""
        with self._changed:
            while self.open and not self._free:
                self._changed.wait()
            if not self.open:
                raise closed("session")
            stream = self._free.pop(0)
        try:
            yield stream
        finally:
            with self._changed:
                self._free.append(stream)
                self._changed.notify_all()

    def drain(self) -> None:
        """Let nobody take one any more, and wait until all are back."""
        with self._changed:
            self.open = False
            self._changed.notify_all()
            while len(self._free) < len(self.all):
                self._changed.wait()


class InferenceSession:
    """A program on a device.  A context manager; all of it may be called from several threads.

    program: a Program, or the path of a .npu file.
    device: a Device of yours, which stays open; a name for `open_device`; None to find a
        board, else the emulator.
    timeout_s: limit of one job on the device.
    streams: how many runs may be under way at a time, each on a core of its own, at most as many
        as the device has cores.  Constants are shared, arenas are not.  A driver that gives an
        open file one core (mainline Linux) is opened once per stream: name it then.
    retries: how often a segment whose job hung or faulted is run again.  `RunInfo.retried` says so.
    Raises ProgramError, InputError, DeviceError.
    """

    last: RunInfo | None = None
    """What the latest run did; with several streams, of whichever ended last."""

    def __init__(
        self,
        program: Program | str | os.PathLike[str],
        device: Device | str | None = None,
        *,
        timeout_s: float = 6.0,
        streams: int = 1,
        retries: int = 1,
    ) -> None:
        self.program = program if isinstance(program, Program) else load(program)
        check_program(self.program)
        self.retries = retries
        self._buffers: list[Buffer] = []
        self._consts: dict[tuple[int, bytes], Buffer] = {}
        self._streams = _Streams()
        self._closing = threading.Lock()
        self._executor: ThreadPoolExecutor | None = None
        hosts = {
            i: _host(s) for i, s in enumerate(self.program.segments) if isinstance(s, HostSegment)
        }
        named = device is None or isinstance(device, str)
        self._owned: list[Device] = []
        self.device: Device = self._opened(device) if named else device  # type: ignore[assignment, arg-type]
        try:
            for s in self._spread(streams, named):
                self._load(s, hosts, timeout_s)
                self._streams.add(s)
        except BaseException:
            with suppress(DeviceError):  # the first error is the one to tell
                self.close()
            raise

    def _opened(self, name: str | None) -> Device:
        device = open_device(name)
        self._owned.append(device)
        return device

    def _spread(self, streams: int, named: bool) -> Iterator[_Stream]:
        """Streams without their buffers, over cores or over open files."""
        info = self.device.info
        if streams == 1:
            yield _Stream(self.device, None)
            return
        one_core = info.cores == 1
        most = chip.CORES if one_core and named else info.cores
        if not 1 <= streams <= most:
            raise InputError(
                "streams",
                f"{streams} were asked for, {info.name} runs 1 to {most}",
                "Name the device instead of passing it open"
                if one_core and not named
                else "Ask for one per core at most",
            )
        again = f"{info.name}:{info.path}" if info.path else info.name
        for i in range(streams):
            if one_core:
                yield _Stream(self.device if i == 0 else self._opened(again), None)
            else:
                yield _Stream(self.device, i)

    def get_inputs(self) -> list[NodeArg]:
        """Inputs in order."""
        return [_node_arg(v) for v in self.program.inputs]

    def get_outputs(self) -> list[NodeArg]:
        """Outputs in order."""
        return [_node_arg(v) for v in self.program.outputs]

    def run(
        self,
        output_names: Sequence[str] | None,
        feeds: Mapping[str, Array] | Sequence[Array],
    ) -> list[Array]:
        """Outputs for ``feeds``: by input name, or in the order of the inputs.

        output_names: which outputs, in which order; None for all.
        Raises InputError, DeviceError, ViolationError.
        """
        values = _checked(self.program.inputs, feeds)
        given = {id(v) for v in values.values()}
        known = [v.name for v in self.program.outputs]
        names = known if output_names is None else list(output_names)
        for name in names:
            if name not in known:
                raise InputError(
                    str(name),
                    f"the program has no such output, it has {len(known)}",
                    f"Ask for {_listed(known)}",
                )
        with self._streams.one() as stream:
            done = []
            for part in stream.parts:
                if isinstance(part, _Npu):
                    done.append(self._run_npu(stream.device, part, values))
                else:
                    done.append(self._run_host(part, values))
            self.last = _sum_up(done)
        return [np.array(values[n]) if id(values[n]) in given else values[n] for n in names]

    def run_async(
        self,
        output_names: Sequence[str] | None,
        feeds: Mapping[str, Array] | Sequence[Array],
    ) -> Future[list[Array]]:
        """As `run`, in the background: as many at a time as the session has streams.

        `close` waits for what was begun.  Raises DeviceError if the session is closed; all
        other errors are the future's.
        """
        with self._closing:
            if not self._streams.open:
                raise closed("session")
            if self._executor is None:
                self._executor = ThreadPoolExecutor(len(self._streams.all), "opennpu-session")
            return self._executor.submit(self.run, output_names, feeds)

    def run_batch(
        self,
        output_names: Sequence[str] | None,
        feeds: Mapping[str, Array] | Sequence[Array],
    ) -> list[Array]:
        """As `run`, for several times the batch that the program was compiled for.

        The first axis of every input is cut into pieces of the compiled size, which run on all
        streams; outputs are joined again.  The bytes are those of single runs.
        Raises InputError, DeviceError, ViolationError.
        """
        parts = _split(self.program.inputs, feeds)
        futures = [self.run_async(output_names, part) for part in parts]
        wait(futures)
        results = [f.result() for f in futures]
        return [np.concatenate(column) for column in zip(*results, strict=True)]

    def close(self) -> None:
        """Finish what is under way, free all device memory, close devices opened here."""
        with self._closing:
            if self._executor is not None:
                self._executor.shutdown()
            self._streams.drain()
            for stream in self._streams.all:
                stream.parts.clear()
            first: DeviceError | None = None
            while self._buffers:
                try:
                    self._buffers.pop().free()
                except DeviceError as e:  # the others must be freed all the same
                    first = first or e
            while self._owned:
                self._owned.pop().close()
            if first:
                raise first

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # -- loading -----------------------------------------------------------------------------

    def _alloc(self, device: Device, nbytes: int, kind: Kind) -> Buffer:
        buffer = device.alloc(max(1, nbytes), kind)
        self._buffers.append(buffer)
        return buffer

    def _load(self, stream: _Stream, hosts: Mapping[int, Any], timeout_s: float) -> None:
        segments, device = self.program.segments, stream.device
        npu = [s for s in segments if isinstance(s, NpuSegment)]
        arena = self._alloc(device, max(s.arena_bytes for s in npu), "arena") if npu else None
        for i, s in enumerate(segments):
            if isinstance(s, HostSegment):
                stream.parts.append(_Host(s, hosts[i]))
                continue
            assert arena is not None
            const = self._const(device, s.const)
            code = self._alloc(device, len(s.code), "code")
            homes = {"code": code, "const": const, "arena": arena}
            _fill(code, bind(s, {k: b.iova for k, b in homes.items()}))
            jobs = self._jobs(s, stream, (code, const), arena, timeout_s)
            stream.parts.append(_Npu(s, arena, tuple(jobs)))

    def _const(self, device: Device, data: bytes) -> Buffer:
        """Constants lie in the memory of a device once."""
        key = (id(device), data)
        if key not in self._consts:
            self._consts[key] = self._alloc(device, len(data), "const")
            _fill(self._consts[key], data)
        return self._consts[key]

    def _jobs(
        self,
        s: NpuSegment,
        stream: _Stream,
        reads: tuple[Buffer, Buffer],
        arena: Buffer,
        timeout_s: float,
    ) -> list[tuple[Job, tuple[PlacedTask, ...]]]:
        """The segment's tasks in as few submits as the device allows."""
        info, code = stream.device.info, reads[0]
        jobs = []
        for k in range(0, len(s.tasks), info.tasks_per_job):
            placed = s.tasks[k : k + info.tasks_per_job]
            for t in placed:
                if not info.ppu and not t.int_mask & DPU_DONE:
                    raise ProgramError(
                        t.node,
                        f"its task ends with interrupt bits {t.int_mask:#x}, {info.name} "
                        f"({info.abi}) waits for {DPU_DONE:#x} only",
                        "Compile with target='rocket'",
                    )
            tasks = tuple(
                JobTask(code.iova + t.word * WORD_BYTES, t.words, t.units, t.int_mask, t.node)
                for t in placed
            )
            jobs.append((Job(tasks, reads, (arena,), stream.core, timeout_s), placed))
        return jobs

    # -- running -----------------------------------------------------------------------------

    def _run_npu(self, device: Device, part: _Npu, values: dict[str, Array]) -> SegmentInfo:
        """Run a segment; again from its inputs if a job of it hung or faulted.

        Jobs overwrite what they read, so the whole segment is the smallest thing to repeat.
        """
        failures: list[str] = []
        while True:
            try:
                info = self._try_npu(device, part, values)
            except (DeviceTimeout, DeviceFault) as e:
                if len(failures) == self.retries:
                    if not failures:
                        raise
                    what = f"{e.what} (tried {len(failures) + 1} times)"
                    raise type(e)(e.where, what, e.remedy) from e
                failures.append(str(e))
                _log.warning("%s Trying again.", e)
            else:
                return replace(info, retried=tuple(failures))

    def _try_npu(self, device: Device, part: _Npu, values: dict[str, Array]) -> SegmentInfo:
        s = part.segment
        packed = [(t.ref.offset, _pack(t, values[t.name])) for t in s.inputs]
        with part.arena.cpu() as mem:
            for offset, data in packed:
                mem[offset : offset + data.size] = data
        read = written = 0
        seconds, measured = 0.0, bool(part.jobs)
        violations: list[str] = []
        for job, placed in part.jobs:
            result = device.wait(device.submit(job))
            costs = [t.cost for t in placed]
            read += result.bytes_read or sum(c.read_bytes for c in costs)
            written += result.bytes_written or sum(c.write_bytes for c in costs)
            seconds += result.seconds or timing.job_seconds(
                ((c.mac_cycles, c.read_bytes + c.write_bytes) for c in costs),
                chained=device.info.chained,
            )
            measured &= result.measured
            violations += result.violations
        with part.arena.cpu() as mem:
            for t in s.outputs:
                values[t.name] = _unpack(t, mem[t.ref.offset : t.ref.offset + t.nbytes])
        nonfinite = [n for t in s.outputs if (n := _count_nonfinite(t.name, values[t.name]))]
        return SegmentInfo(
            s.name,
            "npu",
            seconds,
            measured,
            tasks=len(s.tasks),
            jobs=len(part.jobs),
            bytes_read=read,
            bytes_written=written,
            violations=tuple(violations),
            nonfinite=tuple(nonfinite),
        )

    def _run_host(self, part: _Host, values: dict[str, Array]) -> SegmentInfo:
        s = part.segment
        began = time.perf_counter()
        try:
            results = part.session.run(list(s.outputs), {n: values[n] for n in s.inputs})
        except Exception as e:  # onnxruntime's own exceptions have no common base
            raise _ort_error(s, "run", e) from e
        values.update(zip(s.outputs, results, strict=True))
        seconds = time.perf_counter() - began
        return SegmentInfo(s.name, "host", seconds, True, host_nodes=len(s.nodes))


def _fill(buffer: Buffer, data: bytes | Bytes) -> None:
    with buffer.cpu() as mem:
        mem[: len(data)] = np.frombuffer(data, np.uint8) if isinstance(data, bytes) else data


# -- arrays ↔ device memory ------------------------------------------------------------------


def _pack(t: Tensor, x: Array) -> Bytes:
    """A logical array as the bytes of its cube.  Raises InputError for what cannot be said."""
    if x.shape != t.shape:
        raise InputError(
            t.name,
            f"shape is {_dims(x.shape)}, the compiled program takes {_dims(t.shape)}",
            "Compile the model again for this shape",
        )
    cube = x.transpose(t.view.perm).reshape(t.view.nhwc)
    if t.precision is Precision.INT8 and t.scale:
        cube = _quantize(t, cube)
    elif t.precision is Precision.FP16 and x.dtype != np.float16:
        _check_fp16(t, cube)
    pack = layout.pack_weights if t.weights else layout.pack_cube
    return pack(cube, t.precision, t.channels)


def _quantize(t: Tensor, x: Array) -> Array:
    """Real numbers → int8 codes, ties to even, saturating as QuantizeLinear does."""
    if np.isnan(x).any():
        raise InputError(t.name, "holds NaN, which int8 cannot say", "Clean the data first")
    codes = np.rint(x / np.float32(t.scale)) + t.zero_point
    return np.asarray(np.clip(codes, -128, 127), np.int8)


def _check_fp16(t: Tensor, x: Array) -> None:
    """Infinities and NaN may pass; a finite number must not become one."""
    big = (x > FP16_MAX) | (x < -FP16_MAX)
    if big.any():
        worst = x[big & np.isfinite(x)]
        if worst.size:
            raise InputError(
                t.name,
                f"holds {worst[np.argmax(np.abs(worst))]:g}, fp16 ends at {FP16_MAX:g}",
                "Scale the data down, or leave this part of the model to the CPU",
            )


def _unpack(t: Tensor, data: Bytes) -> Array:
    """The bytes of a cube as a logical array of the model's dtype, in memory of its own."""
    x = layout.unpack_cube(np.array(data), t.view.nhwc, t.precision, t.channels)
    if t.precision is Precision.INT8 and t.scale:
        x = (x.astype(np.float32) - np.float32(t.zero_point)) * np.float32(t.scale)
    permuted = tuple(t.shape[p] for p in t.view.perm)
    x = x.reshape(permuted).transpose(np.argsort(t.view.perm))
    return np.ascontiguousarray(x.astype(t.dtype, copy=False))


# -- what users pass -------------------------------------------------------------------------


def _split(
    inputs: Sequence[ValueInfo], feeds: Mapping[str, Array] | Sequence[Array]
) -> list[dict[str, Array]]:
    """Feeds of several times the compiled batch, cut along the first axis.  Raises InputError."""
    counts: dict[str, int] = {}
    named = _named(inputs, feeds)
    for v in inputs:
        a = named[v.name]
        size = v.shape[0] if v.shape else 0
        times, rest = divmod(a.shape[0] if a.ndim else 0, size) if size else (0, 1)
        if rest or not times or a.shape[1:] != tuple(v.shape[1:]):
            raise InputError(
                v.name,
                f"shape is {_dims(a.shape)}, a batch for this program has a multiple of {size} "
                f"in front of {_dims(v.shape[1:])}",
                "Fill the last piece up, or compile for this size",
            )
        counts[v.name] = times
    if len(set(counts.values())) != 1:
        said = ", ".join(f"{n}: {k}" for n, k in counts.items())
        raise InputError(
            "run_batch",
            f"inputs hold different numbers of batches ({said})",
            "Pass as many of each",
        )
    (times,) = set(counts.values())
    cut = {v.name: np.split(named[v.name], times) for v in inputs}
    return [{name: pieces[i] for name, pieces in cut.items()} for i in range(times)]


def _named(
    inputs: Sequence[ValueInfo], feeds: Mapping[str, Array] | Sequence[Array]
) -> dict[str, Array]:
    """Feeds as arrays by input name, whatever their shapes.  Raises InputError."""
    names = [v.name for v in inputs]
    if not isinstance(feeds, Mapping):
        if len(feeds) != len(names):
            raise InputError(
                "run",
                f"{len(feeds)} arrays were passed, the program takes {len(names)}",
                f"Pass {_listed(names)}, in this order",
            )
        feeds = dict(zip(names, feeds, strict=True))
    for name in feeds:
        if name not in names:
            raise InputError(
                str(name),
                f"the program has no such input, it has {len(names)}",
                f"Pass {_listed(names)}",
            )
    for name in names:
        if name not in feeds:
            raise InputError(
                name,
                f"is missing: {len(feeds)} of {len(names)} inputs were passed",
                f"Pass {_listed(names)}",
            )
    return {name: _array(name, feeds[name]) for name in names}


def _checked(
    inputs: Sequence[ValueInfo], feeds: Mapping[str, Array] | Sequence[Array]
) -> dict[str, Array]:
    """Feeds by name, each of the declared shape and dtype.  Raises InputError."""
    values = _named(inputs, feeds)
    for v in inputs:
        x = values[v.name]
        if x.dtype != np.dtype(v.dtype):
            raise InputError(
                v.name,
                f"dtype is {x.dtype}, the program takes {v.dtype}",
                f"Pass x.astype({v.dtype!r})",
            )
        if x.shape != v.shape:
            raise InputError(
                v.name,
                f"shape is {_dims(x.shape)}, the program takes {_dims(v.shape)}",
                "Reshape or resize the data, or compile the model for this shape",
            )
    return values


def _array(name: str, value: Any) -> Array:
    try:
        return np.asarray(value)
    except ValueError as e:
        raise InputError(name, f"is no array: {e}", "Pass a NumPy array") from e


def _dims(shape: Sequence[int]) -> str:
    return str(list(shape))


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names)) or "none"


def _node_arg(v: ValueInfo) -> NodeArg:
    return NodeArg(v.name, list(v.shape), f"tensor({ORT_TYPES.get(v.dtype, v.dtype)})")


# -- onnxruntime -----------------------------------------------------------------------------


def _host(s: HostSegment) -> Any:
    """An onnxruntime session for a host segment.  Raises ProgramError."""
    try:
        import onnxruntime as ort
    except ImportError as e:
        n = max(1, len(s.nodes))
        raise ProgramError(
            f"segment {s.name}",
            f"{n} of the model's nodes run in onnxruntime, which is not installed",
            "Install it: pip install 'opennpu[onnx]'",
        ) from e
    options = ort.SessionOptions()
    options.log_severity_level = 3  # errors only
    try:
        return ort.InferenceSession(s.onnx, options, providers=["CPUExecutionProvider"])
    except Exception as e:
        raise _ort_error(s, "load", e) from e


def _ort_error(s: HostSegment, verb: str, e: Exception) -> NPUError:
    first = str(e).strip().splitlines()[0:1]
    return ProgramError(
        f"segment {s.name}",
        f"onnxruntime cannot {verb} it: {first[0] if first else type(e).__name__}",
        "Check that the model runs in onnxruntime, then compile it again",
    )
