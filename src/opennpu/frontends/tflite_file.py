"""The .tflite file: a flatbuffer, read into plain tensors and operators, and checked.

The `tflite` package has the accessors that flatc makes from TensorFlow's schema.  They trust
every offset, so whatever they trip over is said to be a broken file.
"""

from __future__ import annotations

import inspect
import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from opennpu.errors import ModelError
from opennpu.ir.graph import Array

MAGIC = b"TFL3"
MAGIC_AT = 4  # behind the offset of the root table
BROKEN = (
    *(struct.error, IndexError, ValueError, TypeError, KeyError, OverflowError),
    *(UnicodeDecodeError, AttributeError, MemoryError),
)
"""What flatbuffers and NumPy raise on offsets, lengths and text that no file should have."""

RESOURCE, INT4 = 13, 17  # numbers of schema.fbs, TensorType
DTYPES: Mapping[int, Any] = {
    0: np.float32,
    1: np.float16,
    2: np.int32,
    3: np.uint8,
    4: np.int64,
    6: np.bool_,
    7: np.int16,
    9: np.int8,
    10: np.float64,
    12: np.uint64,
    RESOURCE: np.int32,
    15: np.uint32,
    16: np.uint16,
    INT4: np.int8,
    18: ml_dtypes.bfloat16,
}
"""TensorType of schema.fbs → NumPy.  Strings, complex numbers and variants are not here."""

SCALED = ("int8", "uint8", "int16", "int32", "int64")
MAX_ELEMENTS = 2**32  # of a tensor: no device and no protobuf holds more
CUSTOM = 32  # BuiltinOperator of operators with a name of their own


@dataclass(frozen=True, slots=True)
class Scale:
    """real = (code - zero) * scale, for all of a tensor, or for each index of ``axis``."""

    scale: Array  # float32 [1] or [C]
    zero: Array  # int64, like ``scale``
    axis: int | None = None


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of a subgraph; ``data`` if it is a constant."""

    index: int
    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    data: Array | None = None
    scale: Scale | None = None

    @property
    def quantized(self) -> bool:
        """Do its numbers stand for others?"""
        return self.scale is not None


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator of a subgraph.  Absent optional inputs are -1."""

    index: int
    name: str  # as in schema.fbs, or the name of a custom operator
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    options: Mapping[str, Any] | None = field(default=None, repr=False)
    options_name: str = ""
    custom: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class Subgraph:
    """Operators in the order in which they run."""

    tensors: tuple[Tensor, ...]
    operators: tuple[Operator, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class File:
    """All subgraphs; the first is the model."""

    where: str
    subgraphs: tuple[Subgraph, ...]


def is_tflite(source: object) -> bool:
    """Does it call itself TFLite, by its suffix or by its first bytes?"""
    if isinstance(source, bytes):
        return source[MAGIC_AT : MAGIC_AT + len(MAGIC)] == MAGIC
    if not isinstance(source, str | Path):
        return False
    if Path(source).suffix.lower() == ".tflite":
        return True
    try:
        with open(source, "rb") as file:
            return is_tflite(file.read(MAGIC_AT + len(MAGIC)))
    except OSError:
        return False  # whoever opens it next says why


def read_file(source: str | Path | bytes) -> File:
    """Read and check.  Raises ModelError."""
    where = "model" if isinstance(source, bytes) else str(source)
    try:
        data = source if isinstance(source, bytes) else Path(source).read_bytes()
    except OSError as e:
        raise ModelError(where, e.strerror or str(e), "Give the path of a TFLite file") from None
    if data[MAGIC_AT : MAGIC_AT + len(MAGIC)] != MAGIC:
        raise ModelError(
            where,
            f"its bytes 4 to 7 are {data[MAGIC_AT : MAGIC_AT + len(MAGIC)]!r}, those of a TFLite "
            f"file are {MAGIC!r}",
            "Give a TFLite file, or copy it again",
        )
    try:
        import tflite
    except ModuleNotFoundError as e:
        raise ModelError(
            where,
            f"the package {e.name} is missing, and reading TFLite needs it",
            "Install it with pip install 'opennpu[tflite]'",
        ) from None
    try:
        return _Reader(where, data, tflite).file()
    except BROKEN as e:
        reason = " ".join(str(e).split())[:200] or type(e).__name__
        raise ModelError(
            where,
            f"{len(data)} bytes are no whole TFLite model: {reason.rstrip('.')}",
            "Export or copy it again",
        ) from None


class _Reader:
    def __init__(self, where: str, data: bytes, schema: Any) -> None:
        self.where, self.data, self.schema = where, data, schema
        self.model = schema.Model.GetRootAs(data, 0)
        self.option_names = {
            number: name for name, number in vars(schema.BuiltinOptions).items() if name[0] != "_"
        }

    def broken(self, what: str) -> ModelError:
        return ModelError(self.where, what, "Export or copy it again")

    def count(self, length: int, what: str) -> range:
        """Indices of a vector, which cannot have more elements than the file has bytes."""
        if not 0 <= length <= len(self.data):
            raise self.broken(f"it has {length} {what} in {len(self.data)} bytes")
        return range(length)

    def file(self) -> File:
        count = self.count(self.model.SubgraphsLength(), "subgraphs")
        if not count:
            raise self.broken("it has 0 subgraphs, at least 1 is needed")
        if self.model.Version() != 3:
            raise ModelError(
                self.where,
                f"its schema has version {self.model.Version()}, version 3 is known",
                "Convert it with a newer TensorFlow",
            )
        return File(self.where, tuple(self.subgraph(self.model.Subgraphs(i)) for i in count))

    def subgraph(self, g: Any) -> Subgraph:
        tensors = [self.tensor(i, g.Tensors(i)) for i in self.count(g.TensorsLength(), "tensors")]
        operators = [
            self.operator(i, g.Operators(i), tensors)
            for i in self.count(g.OperatorsLength(), "operators")
        ]
        inputs = self.indices("input", g.InputsAsNumpy(), len(tensors), 0)
        outputs = self.indices("output", g.OutputsAsNumpy(), len(tensors), 0)
        return Subgraph(tuple(tensors), tuple(operators), inputs, outputs)

    def indices(self, where: str, given: Any, tensors: int, least: int) -> tuple[int, ...]:
        found = tuple(int(i) for i in np.atleast_1d(given)) if np.ndim(given) else ()
        for i in found:
            if not least <= i < tensors:
                raise self.broken(f"{where} is tensor {i}, there are {tensors}")
        return found

    # -- tensors

    def tensor(self, index: int, t: Any) -> Tensor:
        raw = t.Name()
        name = raw.decode() if raw else f"tensor {index}"
        if t.Type() not in DTYPES:
            raise ModelError(
                f"{self.where}: tensor {index} {name}",
                f"its type is number {t.Type()} of the schema, {len(DTYPES)} types of numbers are "
                "known",
                "Cut the model where tensors hold numbers",
            )
        dtype = np.dtype(DTYPES[t.Type()])
        shape = () if t.ShapeIsNone() else tuple(int(d) for d in t.ShapeAsNumpy())
        if min(shape, default=1) < 0 or math.prod(shape) > MAX_ELEMENTS:
            raise self.broken(f"tensor {index} {name} has the shape {list(shape)}")
        data = self.constant(index, name, t, shape, dtype)
        return Tensor(index, name, shape, dtype, data, self.scale(index, name, t, shape, dtype))

    def constant(
        self, index: int, name: str, t: Any, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> Array | None:
        number, buffers = t.Buffer(), self.model.BuffersLength()
        if number >= max(1, buffers):
            raise self.broken(f"tensor {index} {name} lies in buffer {number}, of {buffers}")
        if number == 0 or t.Type() == RESOURCE:
            return None
        buffer = self.model.Buffers(number)
        if buffer.Offset() > 1:  # behind the flatbuffer, in files above 2 GB
            raw = np.frombuffer(self.data, np.uint8, buffer.Size(), buffer.Offset())
        elif buffer.DataIsNone() or buffer.DataLength() == 0:
            return None if 0 not in shape else np.zeros(shape, dtype)
        else:
            raw = buffer.DataAsNumpy()
        if t.Sparsity() is not None:
            return _dense(t.Sparsity(), raw.view(dtype), shape)
        count = math.prod(shape)
        want = -(-count // 2) if t.Type() == INT4 else count * dtype.itemsize
        if raw.nbytes != want:
            raise self.broken(
                f"tensor {index} {name} of shape {list(shape)} has {raw.nbytes} bytes, "
                f"{dtype.name} takes {want}"
            )
        if t.Type() == INT4:  # the low half first
            halves = np.stack([raw << 4, raw & 0xF0], -1).reshape(-1)[:count]
            return np.asarray(halves.view(np.int8) >> 4).reshape(shape)
        return np.asarray(raw.view(dtype).reshape(shape))

    def scale(
        self, index: int, name: str, t: Any, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> Scale | None:
        q = t.Quantization()
        if q is None or q.ScaleLength() == 0 or dtype.name not in SCALED:
            return None
        scale = np.asarray(q.ScaleAsNumpy(), np.float32)
        zero = np.zeros(scale.shape, np.int64)
        if q.ZeroPointLength():
            zero = np.broadcast_to(np.asarray(q.ZeroPointAsNumpy(), np.int64), scale.shape)
        where = f"tensor {index} {name}"
        wrong = scale[~(np.isfinite(scale) & (scale > 0))]
        if wrong.size:
            raise self.broken(f"{where} has the scale {wrong[0]}, scales are above 0")
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
        if zero.min() < low or zero.max() > high:
            raise self.broken(
                f"{where} has the zero point {zero.flat[np.abs(zero).argmax()]}, {dtype.name} "
                f"reaches from {low} to {high}"
            )
        if scale.size == 1:
            return Scale(scale, zero)
        axis = q.QuantizedDimension()
        if not 0 <= axis < len(shape) or shape[axis] != scale.size:
            raise self.broken(f"{where} of shape {list(shape)} has {scale.size} scales on {axis}")
        return Scale(scale, zero, axis)

    # -- operators

    def operator(self, index: int, o: Any, tensors: Sequence[Tensor]) -> Operator:
        codes = self.model.OperatorCodesLength()
        if o.OpcodeIndex() >= codes:
            raise self.broken(f"operator {index} has the code {o.OpcodeIndex()}, there are {codes}")
        code = self.model.OperatorCodes(o.OpcodeIndex())
        # files from before 2020 have the number in the old one-byte field only
        number = max(code.BuiltinCode(), code.DeprecatedBuiltinCode())
        if number == CUSTOM:
            custom = code.CustomCode()
            name = custom.decode() if custom else "custom operator without a name"
        else:
            name = self.schema.BUILTIN_OPCODE2NAME.get(number, f"builtin operator {number}")
        where = f"an operand of operator {index} {name}"
        inputs = self.indices(where, o.InputsAsNumpy(), len(tensors), -1)
        outputs = self.indices(where, o.OutputsAsNumpy(), len(tensors), 0)
        options, kind = None, self.option_names.get(o.BuiltinOptionsType(), "")
        table = o.BuiltinOptions()
        if kind not in ("", "NONE") and table is not None:
            accessor = getattr(self.schema, kind)()
            accessor.Init(table.Bytes, table.Pos)
            options = dict(_fields(accessor))
        raw = b"" if o.CustomOptionsIsNone() else bytes(o.CustomOptionsAsNumpy())
        return Operator(index, name, inputs, outputs, options, kind, raw)


def _fields(table: Any) -> Iterator[tuple[str, Any]]:
    """Name and value of every field; vectors of numbers as lists."""
    methods = {n: m for n, m in vars(type(table)).items() if inspect.isfunction(m)}
    for name, method in methods.items():
        if f"{name}AsNumpy" in methods:
            numbers = getattr(table, f"{name}AsNumpy")()
            yield name, numbers.tolist() if isinstance(numbers, np.ndarray) else []
        elif method.__code__.co_argcount == 1 and not name.endswith(
            ("AsNumpy", "Length", "IsNone")
        ):
            yield name, method(table)


def _dense(sparsity: Any, values: Array, shape: tuple[int, ...]) -> Array:
    """All elements of a tensor that stores its non-zero blocks only.

    Levels of the tree are the dimensions in ``TraversalOrder``, those of the blocks last; each
    is dense, or lists its indices by segments (compressed sparse rows).
    """
    rank = len(shape)
    order = [int(d) for d in sparsity.TraversalOrderAsNumpy()]
    blocks = [] if sparsity.BlockMapIsNone() else [int(d) for d in sparsity.BlockMapAsNumpy()]
    if (
        sorted(order) != list(range(rank + len(blocks)))
        or len(order) != sparsity.DimMetadataLength()
    ):
        raise ValueError(f"a sparse tensor of shape {list(shape)} has the levels {order}")
    positions = np.zeros((1, rank + len(blocks)), np.int64)  # by level dimension
    parents = np.zeros(1, np.int64)
    sizes = np.zeros(rank + len(blocks), np.int64)
    for level, dim in enumerate(order):
        meta = sparsity.DimMetadata(level)
        if meta.Format() == 0:
            size = meta.DenseSize()
            if not 0 < size <= math.prod(shape) // max(1, len(positions)):
                raise ValueError(f"level {level} of a sparse tensor has the size {size}")
            index = np.tile(np.arange(size), len(positions))
            positions = np.repeat(positions, size, 0)
            parents = np.repeat(parents, size) * size + index
            sizes[dim] = size
        else:
            starts = _numbers(meta.ArraySegmentsType(), meta.ArraySegments())
            indices = _numbers(meta.ArrayIndicesType(), meta.ArrayIndices())
            counts = starts[parents + 1] - starts[parents]
            if counts.min(initial=0) < 0 or starts[-1] > indices.size:
                raise ValueError(f"level {level} of a sparse tensor has segments that go backwards")
            first = np.repeat(starts[parents] - (np.cumsum(counts) - counts), counts)
            parents = first + np.arange(counts.sum())
            positions = np.repeat(positions, counts, 0)
            index = indices[parents]
        positions[:, dim] = index
    if positions.shape[0] != values.size:
        raise ValueError(f"a sparse tensor has {values.size} values, {len(positions)} positions")
    where = positions[:, :rank].copy()
    for k, dim in enumerate(blocks):
        where[:, dim] = where[:, dim] * sizes[rank + k] + positions[:, rank + k]
    dense = np.zeros(shape, values.dtype)
    dense[tuple(where.T)] = values
    return dense


def _numbers(kind: int, table: Any) -> Array:
    """Segments or indices of a sparse level: int32, uint16 or uint8 (schema.fbs: 1, 2, 3)."""
    import tflite

    vector = {1: tflite.Int32Vector, 2: tflite.Uint16Vector, 3: tflite.Uint8Vector}[kind]()
    vector.Init(table.Bytes, table.Pos)
    return np.asarray(vector.ValuesAsNumpy(), np.int64)
