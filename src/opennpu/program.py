"""A compiled program: register commands, relocations, buffers, host segments; the .npu file.

Addresses are symbolic until load, so a program has the same bytes on every run and machine.

The .npu file, little endian:

    offset  bytes
    0       8     magic 89 4E 50 55 0D 0A 1A 0A: shows text-mode damage, as PNG's does
    8       2     format major: a newer one is refused
    10      2     format minor: a newer one is read, unknown header keys are ignored
    12      4     bytes of the JSON header
    16      8     bytes of the file
    24      32    SHA-256 of everything else in the file
    56            JSON header, ASCII, sorted keys
                  blobs, each at a multiple of 4 KiB, so that they can be mapped

Equal blobs are stored once, whoever refers to them: segments, variants (other core counts,
other input shapes) and samples.  This version writes one variant and runs the one-core one.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import stat
import struct
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt

from opennpu.errors import ProgramError
from opennpu.hw.layout import NUMPY_DTYPE, align, cube_bytes
from opennpu.hw.regcmd import (
    TAIL_WORDS,
    TASK_ALIGN_BYTES,
    WORD_BYTES,
    Write,
    decode,
    encode,
    tail,
)
from opennpu.hw.regs import Register
from opennpu.hw.rk3588 import chip, pc
from opennpu.hw.rk3588.common import Precision

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Ref:
    """An address nobody knows yet: ``offset`` bytes into the buffer called ``buffer``."""

    buffer: str
    offset: int = 0

    def __add__(self, nbytes: int) -> Ref:
        return Ref(self.buffer, self.offset + nbytes)


@dataclass(frozen=True, slots=True)
class At:
    """Write the IOVA of ``ref`` to an address register: the only way in for addresses."""

    register: type[Register]
    ref: Ref


Emitted = Write | At


@dataclass(frozen=True, slots=True)
class Cost:
    """What one task moves and computes, counted from its registers by the operator."""

    macs: int = 0  # multiply-accumulates that the model asks for
    mac_cycles: int = 0  # array cycles, padding included
    read_bytes: int = 0  # features, weights, operands
    write_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Task:
    """One program-controller kick: the body without its tail."""

    node: str  # the user's name of the node that it computes
    writes: tuple[Emitted, ...]
    units: int  # word of GLOBAL.OPERATION_ENABLE: which units start
    int_mask: int  # interrupt bits that say that it is done
    cost: Cost = Cost()
    tables: bytes = b""  # entries of LE and LO, int16, that it looks up; "" for none


@dataclass(frozen=True, slots=True)
class Reloc:
    """Add the IOVA of ``buffer`` + ``addend`` to the value of command word ``word``."""

    word: int  # index of the 64-bit word in the segment's code
    buffer: str
    addend: int


@dataclass(frozen=True, slots=True)
class PlacedTask:
    """A task at its place in a segment's code, tail included."""

    node: str
    word: int  # index of its first word in the code
    words: int  # length with tail; body = words - 4
    units: int
    int_mask: int
    cost: Cost = Cost()


@dataclass(frozen=True, slots=True)
class View:
    """How a logical array maps to a cube: transpose by ``perm``, then reshape to [N, H, W, C]."""

    perm: tuple[int, ...]
    nhwc: tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class Tensor:
    """An input or output of an NPU segment, in device memory."""

    name: str
    shape: tuple[int, ...]  # logical
    precision: Precision  # element type in memory
    view: View
    ref: Ref
    channels: int  # channels with room in memory
    scale: float = 0.0  # int8: real = (q - zero_point) * scale; 0: no quantization
    zero_point: int = 0
    weights: bool = False  # packed as weights: a dynamic right operand of MatMul
    dtype: str = "float32"  # what the model calls it; what users pass and get

    @property
    def nbytes(self) -> int:
        """Bytes in device memory."""
        return cube_bytes(self.view.nhwc, self.precision, self.channels)


@dataclass(frozen=True, slots=True)
class ValueInfo:
    """An input or output of the whole program, as users see it."""

    name: str
    shape: tuple[int, ...]
    dtype: str  # NumPy name


@dataclass(frozen=True, slots=True)
class NpuSegment:
    """A list of tasks that run without the host.  Buffers: "code", "const", "arena"."""

    name: str
    code: bytes  # with zeros where relocations go
    tasks: tuple[PlacedTask, ...]
    relocs: tuple[Reloc, ...]
    const: bytes  # weights, biases, per-channel operands
    arena_bytes: int
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]


@dataclass(frozen=True, slots=True)
class HostSegment:
    """A part of the model that stays in onnxruntime, as an ONNX model of its own."""

    name: str
    onnx: bytes
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[tuple[str, str], ...] = ()  # (node name, reason why it is not on the NPU)


Segment = NpuSegment | HostSegment


@dataclass(frozen=True)
class Program:
    """What `opennpu.compile` returns and a .npu file holds."""

    inputs: tuple[ValueInfo, ...]
    outputs: tuple[ValueInfo, ...]
    segments: tuple[Segment, ...]  # run in order; values are passed by name
    meta: dict[str, Any] = field(default_factory=dict)  # JSON: model, options, report
    samples: dict[str, Array] = field(default_factory=dict)  # sample inputs and golden outputs

    def to_bytes(self) -> bytes:
        """The .npu file.  The same program gives the same bytes on every run and machine."""
        check_program(self)
        return _to_bytes(self)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the .npu file, whole or not at all.  Raises ProgramError."""
        data, target = self.to_bytes(), Path(path)
        temporary = None
        try:
            with tempfile.NamedTemporaryFile(
                dir=target.parent, prefix=f".{target.name}.", delete=False
            ) as file:
                temporary = file.name
                os.fchmod(file.fileno(), 0o666 & ~_umask())
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, target)
            temporary = None
        except OSError as e:
            raise ProgramError(
                str(path),
                f"cannot write {len(data)} bytes here: {e.strerror}",
                "Choose another place, or make room and give yourself the right to write",
            ) from e
        finally:
            if temporary:
                Path(temporary).unlink(missing_ok=True)


def _umask() -> int:
    """The process's umask; there is no call that only reads it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


# -- assembly --------------------------------------------------------------------------------


class Linked(NamedTuple):
    """What `link` returns: the parts of an `NpuSegment`."""

    code: bytes
    tasks: tuple[PlacedTask, ...]
    relocs: tuple[Reloc, ...]


def address_field(register: type[Register]) -> str | None:
    """Name of the field that holds an IOVA; None where the register holds something else."""
    if register is pc.TASK_DMA_BASE_ADDR:  # an offset added to addresses
        return None
    for name, f in register.fields.items():
        base = name.endswith("base_addr") or name in ("decompress_addr0", "pc_source_addr")
        if base and f.unit == "bytes":
            return name
    return None


def link(tasks: Iterable[Task]) -> Linked:
    """Assemble tasks back to back, each at a multiple of 64 bytes and linked to the next.

    Every address, the links included, stays zero in the code and becomes a relocation.  The
    list may be longer than one start takes: the device's TASK_NUMBER ends a start, not a link.
    """
    todo = list(tasks)
    lengths = [len(t.writes) + TAIL_WORDS for t in todo]
    step = TASK_ALIGN_BYTES // WORD_BYTES
    starts = [0]
    for n in lengths:
        starts.append(starts[-1] + align(n, step))
    code = np.zeros(starts.pop(), "<u8")
    placed: list[PlacedTask] = []
    relocs: list[Reloc] = []
    for i, task in enumerate(todo):
        at = starts[i]
        for k, emitted in enumerate(task.writes):
            if isinstance(emitted, At):
                if address_field(emitted.register) is None:
                    raise ProgramError(
                        task.node,
                        f"word {k} relocates {emitted.register.__name__}, "
                        "which is not an address register",
                        "Use At with address registers only",
                    )
                relocs.append(Reloc(at + k, emitted.ref.buffer, emitted.ref.offset))
                code[at + k] = encode(emitted.register.decode(0))
            else:
                code[at + k] = encode(emitted)
        last = i + 1 == len(todo)
        end = tail(task.units) if last else tail(task.units, 0, lengths[i + 1])
        if not last:
            link_word = at + len(task.writes)
            relocs.append(Reloc(link_word, "code", starts[i + 1] * WORD_BYTES))
        code[at + len(task.writes) : at + lengths[i]] = [encode(w) for w in end]
        placed.append(PlacedTask(task.node, at, lengths[i], task.units, task.int_mask, task.cost))
    return Linked(code.tobytes(), tuple(placed), tuple(relocs))


VALUE_ONE = encode(pc.BASE_ADDRESS.decode(1)) - encode(pc.BASE_ADDRESS.decode(0))
"""What a command word grows by when its value grows by one."""


def bind(segment: NpuSegment, iovas: Mapping[str, int]) -> npt.NDArray[np.uint8]:
    """The segment's code with every address in place.  ``iovas``: of each of `BUFFERS`."""
    code = np.frombuffer(segment.code, "<u8").copy()
    words = np.array([r.word for r in segment.relocs], np.int64)
    addresses = np.array([iovas[r.buffer] + r.addend for r in segment.relocs], np.uint64)
    code[words] += addresses * np.uint64(VALUE_ONE)
    return code.view(np.uint8)


# -- what every program obeys ----------------------------------------------------------------

BUFFERS = ("code", "const", "arena")


def check_program(program: Program, where: str = "program") -> None:
    """Raise ProgramError unless the program can be loaded and every access stays in its buffers."""
    shapes: dict[str, tuple[int, ...] | None] = {}
    for v in program.inputs:
        shapes[v.name] = v.shape
    for segment in program.segments:
        at = f"{where}: segment {segment.name}"
        reads: dict[str, tuple[int, ...] | None]
        writes: dict[str, tuple[int, ...] | None]
        if isinstance(segment, NpuSegment):
            _check_tasks(segment, at)
            _check_relocs(segment, at)
            for t in (*segment.inputs, *segment.outputs):
                _check_tensor(t, segment, at)
            reads = {t.name: t.shape for t in segment.inputs}
            writes = {t.name: t.shape for t in segment.outputs}
        else:
            reads = dict.fromkeys(segment.inputs)
            writes = dict.fromkeys(segment.outputs)
        for name, shape in reads.items():
            if name not in shapes:
                _broken(at, f"it reads {name!r}, which nothing before it writes")
            known = shapes[name]
            if None not in (shape, known) and shape != known:
                _broken(at, f"it reads {name!r} as {shape}, which is {known}")
        shapes.update(writes)
    for v in program.outputs:
        if v.name not in shapes:
            _broken(where, f"nothing writes its output {v.name!r}")
        known = shapes[v.name]
        if known is not None and known != v.shape:
            _broken(where, f"its output {v.name!r} is {known}, declared as {v.shape}")


MOST_WORDS = 2 * (pc.REGISTER_AMOUNTS.fields["pc_data_amount"].max + 1)
"""Words of the longest task: what PC_DATA_AMOUNT can ask for."""


def _check_tasks(segment: NpuSegment, at: str) -> None:
    words = len(segment.code) // WORD_BYTES
    if len(segment.code) % WORD_BYTES or words * WORD_BYTES > chip.IOVA_BYTES:
        _broken(at, f"its code is {len(segment.code)} bytes, not whole words below 4 GiB")
    code = np.frombuffer(segment.code, "<u8")
    links = {r.word: r for r in segment.relocs if r.buffer == "code"}
    end = 0
    for i, t in enumerate(segment.tasks):
        if not (end <= t.word and TAIL_WORDS <= t.words <= words - t.word):
            _broken(at, f"task {i} ({t.node}) is words {t.word} to {t.word + t.words} of {words}")
        if t.word * WORD_BYTES % TASK_ALIGN_BYTES:
            _broken(at, f"task {i} ({t.node}) starts at byte {t.word * WORD_BYTES}, not of 64")
        if t.words > MOST_WORDS:
            _broken(at, f"task {i} ({t.node}) has {t.words} words, one fetch takes {MOST_WORDS}")
        end = t.word + t.words
    for i, t in enumerate(segment.tasks):
        end = t.word + t.words
        follower = segment.tasks[i + 1 : i + 2]
        following = follower[0].words if follower else 0
        want = [encode(w) for w in tail(t.units, 0, following)]
        if code[end - TAIL_WORDS : end].tolist() != want:
            _broken(at, f"task {i} ({t.node}) has a tail that does not fit it and the next task")
        hop = links.pop(end - TAIL_WORDS, None)
        if follower and (hop is None or hop.addend != follower[0].word * WORD_BYTES):
            _broken(at, f"task {i} ({t.node}) is not linked to task {i + 1}")
        if not follower and hop is not None:
            _broken(at, f"task {i} ({t.node}) is the last and has a link")
    if links:
        _broken(at, f"word {min(links)} is relocated into the code and is no link")


def _check_relocs(segment: NpuSegment, at: str) -> None:
    code = np.frombuffer(segment.code, "<u8").tolist()
    sizes = {
        "code": len(segment.code),
        "const": len(segment.const),
        "arena": segment.arena_bytes,
    }
    if not 0 <= segment.arena_bytes <= chip.IOVA_BYTES:
        _broken(at, f"its arena is {segment.arena_bytes} bytes, an NPU sees {chip.IOVA_BYTES}")
    seen: set[int] = set()
    fields: dict[int, tuple[type[Register], str] | None] = {}
    for r in segment.relocs:
        if not 0 <= r.word < len(code):
            _broken(at, f"a relocation names word {r.word} of {len(code)}")
        if r.word in seen:
            _broken(at, f"word {r.word} has two relocations")
        seen.add(r.word)
        if r.buffer not in sizes:
            _broken(at, f"word {r.word} points into {r.buffer!r}, of {BUFFERS}")
        if not 0 <= r.addend <= sizes[r.buffer]:
            _broken(
                at,
                f"word {r.word} points to byte {r.addend} of {r.buffer}, "
                f"which has {sizes[r.buffer]}",
            )
        bits = code[r.word]
        if bits not in fields:
            fields[bits] = _empty_address(bits)
        found = fields[bits]
        if found is None:
            _broken(at, f"word {r.word} is relocated and is {decode(bits)!r}, no empty address")
        reg, name = found
        if r.addend % reg.fields[name].scale:
            _broken(
                at,
                f"word {r.word} points to byte {r.addend}, "
                f"{reg.__name__} takes multiples of {reg.fields[name].scale}",
            )
        if (reg is pc.BASE_ADDRESS) != (r.buffer == "code"):
            _broken(at, f"word {r.word} points {reg.__name__} into {r.buffer}")


def _empty_address(bits: int) -> tuple[type[Register], str] | None:
    """The address register that a command word writes zero to, and its field."""
    written = decode(bits)
    if not isinstance(written, Register) or written.word:
        return None
    name = address_field(type(written))
    return (type(written), name) if name else None


def _check_tensor(t: Tensor, segment: NpuSegment, at: str) -> None:
    at = f"{at}: value {t.name}"
    if sorted(t.view.perm) != list(range(len(t.shape))) or min(t.shape, default=1) < 0:
        _broken(at, f"its shape {t.shape} cannot be permuted by {t.view.perm}")
    if math.prod(t.shape) != math.prod(t.view.nhwc) or min(t.view.nhwc) < 0:
        _broken(at, f"its shape {t.shape} does not fit the cube {t.view.nhwc}")
    if t.channels < t.view.nhwc[3]:
        _broken(at, f"it has room for {t.channels} channels of {t.view.nhwc[3]}")
    if t.ref.buffer != "arena" or t.ref.offset < 0:
        _broken(at, f"it is at {t.ref.buffer}+{t.ref.offset}, not in the arena")
    if t.ref.offset + t.nbytes > segment.arena_bytes:
        _broken(
            at,
            f"it takes {t.nbytes} bytes from {t.ref.offset}, the arena has {segment.arena_bytes}",
        )
    if not (math.isfinite(t.scale) and t.scale >= 0 and -128 <= t.zero_point <= 127):
        _broken(at, f"its quantization is scale {t.scale}, zero point {t.zero_point}")
    if t.dtype not in DTYPES:
        _broken(at, f"its dtype is {t.dtype!r}, of {len(DTYPES)} known ones")


def _broken(where: str, what: str) -> NoReturn:
    raise ProgramError(where, what, "Compile the model again")


# -- the .npu file ---------------------------------------------------------------------------

MAGIC = b"\x89NPU\r\n\x1a\n"
FORMAT = (1, 0)
"""Version that this code writes; it reads every minor of the same major."""

_PREAMBLE = struct.Struct("<8sHHIQ32s")
_DIGEST_AT = _PREAMBLE.size - hashlib.sha256().digest_size
DTYPES = frozenset(
    {
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "bfloat16", "float32", "float64"),
    }
)
"""dtypes of values and samples, by NumPy name."""


class _Blobs:
    """Blobs in order of first use; equal ones once."""

    def __init__(self) -> None:
        self.data: list[bytes] = []
        self.seen: dict[bytes, int] = {}

    def add(self, data: bytes) -> int:
        key = hashlib.sha256(data).digest()
        if key not in self.seen:
            self.seen[key] = len(self.data)
            self.data.append(data)
        return self.seen[key]


def _to_bytes(program: Program) -> bytes:
    blobs = _Blobs()
    header = {
        "inputs": [asdict(v) for v in program.inputs],
        "outputs": [asdict(v) for v in program.outputs],
        "variants": [
            {"cores": 1, "shapes": {}, "segments": [_dump(s, blobs) for s in program.segments]}
        ],
        "meta": program.meta,
        "samples": {k: _dump_array(a, blobs) for k, a in sorted(program.samples.items())},
        "blobs": [],
    }
    sizes = [len(b) for b in blobs.data]
    try:
        text = _json(header, sizes, 0)
        while len(text) != len(text := _json(header, sizes, _PREAMBLE.size + len(text))):
            pass  # longer offsets make a longer header; it settles within a few rounds
    except (TypeError, ValueError) as e:
        raise ProgramError("program", f"its meta is not JSON: {e}", "Keep plain data in it") from e
    out = bytearray(_PREAMBLE.size) + text
    for data in blobs.data:
        out += bytes(align(len(out), chip.PAGE_BYTES) - len(out))
        out += data
    _PREAMBLE.pack_into(out, 0, MAGIC, *FORMAT, len(text), len(out), bytes(32))
    out[_DIGEST_AT : _PREAMBLE.size] = _digest(out)
    return bytes(out)


def _digest(file: bytes | bytearray) -> bytes:
    """SHA-256 of the file without its own place."""
    view = memoryview(file)
    sha = hashlib.sha256(view[:_DIGEST_AT])
    sha.update(view[_PREAMBLE.size :])
    return sha.digest()


def _json(header: dict[str, Any], sizes: Sequence[int], start: int) -> bytes:
    table, at = [], start
    for n in sizes:
        at = align(at, chip.PAGE_BYTES)
        table.append([at, n])
        at += n
    header["blobs"] = table
    text = json.dumps(header, sort_keys=True, allow_nan=False, separators=(",", ":"))
    return text.encode("ascii")


def _dump_array(a: Array, blobs: _Blobs) -> dict[str, Any]:
    if a.dtype.name not in DTYPES:
        raise ProgramError(
            "program", f"a sample is {a.dtype}, of {len(DTYPES)} known dtypes", "Convert it"
        )
    little = np.ascontiguousarray(a.astype(a.dtype.newbyteorder("<"), copy=False))
    return {"dtype": a.dtype.name, "shape": list(a.shape), "blob": blobs.add(little.tobytes())}


def _dump(s: Segment, blobs: _Blobs) -> dict[str, Any]:
    if isinstance(s, HostSegment):
        return {
            "kind": "host",
            "name": s.name,
            "onnx": blobs.add(s.onnx),
            "inputs": list(s.inputs),
            "outputs": list(s.outputs),
            "nodes": [list(n) for n in s.nodes],
        }
    nodes = list(dict.fromkeys(t.node for t in s.tasks))
    index = {n: i for i, n in enumerate(nodes)}
    return {
        "kind": "npu",
        "name": s.name,
        "code": blobs.add(s.code),
        "const": blobs.add(s.const),
        "arena_bytes": s.arena_bytes,
        "nodes": nodes,
        "tasks": [
            [
                *(index[t.node], t.word, t.words, t.units, t.int_mask),
                *(t.cost.macs, t.cost.mac_cycles, t.cost.read_bytes, t.cost.write_bytes),
            ]
            for t in s.tasks
        ],
        "relocs": [[r.word, BUFFERS.index(r.buffer), r.addend] for r in s.relocs],
        "inputs": [_dump_tensor(t) for t in s.inputs],
        "outputs": [_dump_tensor(t) for t in s.outputs],
    }


def _dump_tensor(t: Tensor) -> dict[str, Any]:
    return {
        "name": t.name,
        "shape": list(t.shape),
        "precision": t.precision.name.lower(),
        "perm": list(t.view.perm),
        "nhwc": list(t.view.nhwc),
        "offset": t.ref.offset,
        "channels": t.channels,
        "scale": t.scale,
        "zero_point": t.zero_point,
        "weights": t.weights,
        "dtype": t.dtype,
    }


def load(source: str | os.PathLike[str] | bytes) -> Program:
    """Read a .npu file, by path or from its bytes.

    Raises ProgramError if it is missing, damaged, newer than this code, or points outside
    itself.
    """
    if isinstance(source, bytes):
        return _parse(source, "program")
    where = os.fspath(source)
    try:
        with open(where, "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise ProgramError(
                    where, "it is not a regular file", "Give the path of a .npu file"
                )
            data = file.read()
    except (OSError, ValueError) as e:
        why = e.strerror if isinstance(e, OSError) else str(e)
        raise ProgramError(where, f"cannot read it: {why}", "Check the path") from e
    return _parse(data, where)


def _parse(data: bytes, where: str) -> Program:
    again = "Copy the file again, or compile the model again"
    if len(data) < _PREAMBLE.size or not data.startswith(MAGIC):
        raise ProgramError(
            where,
            f"its {len(data)} bytes do not start like a .npu file ({data[:8].hex(' ') or 'empty'}, "
            f"not {MAGIC.hex(' ')})",
            "Give a file that opennpu compile wrote",
        )
    _, major, minor, header_bytes, file_bytes, digest = _PREAMBLE.unpack_from(data)
    if major != FORMAT[0]:
        raise ProgramError(
            where,
            f"its format is version {major}.{minor}, this OpenNPU reads {FORMAT[0]}.x",
            "Update OpenNPU, or compile the model with this version",
        )
    if len(data) != file_bytes or header_bytes > len(data) - _PREAMBLE.size:
        raise ProgramError(
            where,
            f"it has {len(data)} bytes and says {file_bytes}, {header_bytes} of them header",
            again,
        )
    if _digest(data) != digest:
        raise ProgramError(where, "its SHA-256 does not match its contents", again)
    try:
        text = data[_PREAMBLE.size : _PREAMBLE.size + header_bytes].decode("ascii")
        raw = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as e:
        raise ProgramError(where, f"its header is not JSON: {e}", again) from e
    reader = _Reader(data, where, _PREAMBLE.size + header_bytes)
    program = reader.program(_Item(raw, where, "header"))
    check_program(program, where)
    return program


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


@dataclass(frozen=True, slots=True)
class _Item:
    """A piece of a JSON header that knows its place, and checks what it is asked for."""

    value: Any
    where: str
    path: str

    def bad(self, want: str) -> NoReturn:
        shown = repr(self.value)
        shown = shown if len(shown) <= 40 else f"{shown[:40]}…"
        _broken(self.where, f"{self.path} is {shown}, not {want}")

    def __getitem__(self, key: str) -> _Item:
        if not isinstance(self.value, dict) or key not in self.value:
            self.bad(f"an object with {key!r}")
        return _Item(self.value[key], self.where, f"{self.path}.{key}")

    def __iter__(self) -> Iterator[_Item]:
        if not isinstance(self.value, list):
            self.bad("a list")
        for i, v in enumerate(self.value):
            yield _Item(v, self.where, f"{self.path}[{i}]")

    def integer(self, low: int = 0, high: int = 1 << 62) -> int:
        if type(self.value) is not int or not low <= self.value <= high:
            self.bad(f"an integer of {low} to {high}")
        return int(self.value)

    def integers(self, count: int | None = None) -> tuple[int, ...]:
        values = tuple(i.integer() for i in self)
        if count is not None and len(values) != count:
            self.bad(f"a list of {count} integers")
        return values

    def number(self) -> float:
        if type(self.value) in (int, float) and abs(self.value) <= sys.float_info.max:
            return float(self.value)
        self.bad("a finite number")

    def text(self) -> str:
        if not isinstance(self.value, str):
            self.bad("text")
        return str(self.value)

    def flag(self) -> bool:
        if not isinstance(self.value, bool):
            self.bad("true or false")
        return bool(self.value)

    def table(self) -> dict[str, Any]:
        if not isinstance(self.value, dict):
            self.bad("an object")
        return dict(self.value)

    def one_of(self, names: Iterable[str]) -> str:
        known = sorted(names)
        if self.value not in known:
            self.bad(f"one of {', '.join(known)}")
        return str(self.value)


class _Reader:
    """A checked header → Program.  No count or length is believed before it is compared."""

    def __init__(self, data: bytes, where: str, blobs_from: int) -> None:
        self.data, self.where, self.blobs_from = data, where, blobs_from
        self.blobs: list[tuple[int, int]] = []
        self.cache: dict[int, bytes] = {}

    def program(self, h: _Item) -> Program:
        for item in h["blobs"]:
            at, n = item.integers(2)
            if at % chip.PAGE_BYTES or at < self.blobs_from or at + n > len(self.data):
                item.bad(f"a place of {self.blobs_from} to {len(self.data)} at a multiple of 4096")
            self.blobs.append((at, n))
        variants = list(h["variants"])
        mine = next((v for v in variants if v["cores"].integer(1, chip.CORES) == 1), None)
        if mine is None:
            h["variants"].bad("a list with a variant for one core")
        return Program(
            tuple(self.info(v) for v in h["inputs"]),
            tuple(self.info(v) for v in h["outputs"]),
            tuple(self.segment(s) for s in mine["segments"]),
            h["meta"].table(),
            {
                name: self.array(_Item(v, self.where, f"header.samples.{name}"))
                for name, v in h["samples"].table().items()
            },
        )

    def blob(self, item: _Item) -> bytes:
        i = item.integer(0, len(self.blobs) - 1)
        if i not in self.cache:
            at, n = self.blobs[i]
            self.cache[i] = self.data[at : at + n]
        return self.cache[i]

    def info(self, item: _Item) -> ValueInfo:
        return ValueInfo(
            item["name"].text(), item["shape"].integers(), item["dtype"].one_of(DTYPES)
        )

    def array(self, item: _Item) -> Array:
        dtype = np.dtype(item["dtype"].one_of(DTYPES)).newbyteorder("<")
        shape, data = item["shape"].integers(), self.blob(item["blob"])
        if len(shape) > 32 or math.prod(shape) * dtype.itemsize != len(data):
            item["shape"].bad(f"the shape of {len(data)} bytes of {dtype.name}")
        flat = np.frombuffer(data, dtype)
        return flat.astype(dtype.newbyteorder("="), copy=False).reshape(shape)

    def segment(self, s: _Item) -> Segment:
        if s["kind"].one_of(("npu", "host")) == "host":
            nodes = []
            for n in s["nodes"]:
                pair = tuple(x.text() for x in n)
                if len(pair) != 2:
                    n.bad("a name and a reason")
                nodes.append((pair[0], pair[1]))
            return HostSegment(
                s["name"].text(),
                self.blob(s["onnx"]),
                tuple(x.text() for x in s["inputs"]),
                tuple(x.text() for x in s["outputs"]),
                tuple(nodes),
            )
        names = [n.text() for n in s["nodes"]]
        tasks = []
        for t in s["tasks"]:
            node, word, words, units, mask, *cost = t.integers(9)
            if node >= len(names) or units >= 1 << 32 or mask >= 1 << 32:
                t.bad(f"a task of {len(names)} nodes with 32-bit words")
            tasks.append(PlacedTask(names[node], word, words, units, mask, Cost(*cost)))
        relocs = []
        for r in s["relocs"]:
            word, buffer, addend = r.integers(3)
            if buffer >= len(BUFFERS):
                r.bad(f"a relocation into one of {len(BUFFERS)} buffers")
            relocs.append(Reloc(word, BUFFERS[buffer], addend))
        return NpuSegment(
            s["name"].text(),
            self.blob(s["code"]),
            tuple(tasks),
            tuple(relocs),
            self.blob(s["const"]),
            s["arena_bytes"].integer(0, chip.IOVA_BYTES),
            tuple(self.tensor(t) for t in s["inputs"]),
            tuple(self.tensor(t) for t in s["outputs"]),
        )

    def tensor(self, t: _Item) -> Tensor:
        names = {p.name.lower(): p for p in NUMPY_DTYPE}
        n, h, w, c = t["nhwc"].integers(4)
        return Tensor(
            t["name"].text(),
            t["shape"].integers(),
            names[t["precision"].one_of(names)],
            View(t["perm"].integers(), (n, h, w, c)),
            Ref("arena", t["offset"].integer()),
            t["channels"].integer(),
            scale=t["scale"].number(),
            zero_point=t["zero_point"].integer(-128, 127),
            weights=t["weights"].flag(),
            dtype=t["dtype"].one_of(DTYPES),
        )
