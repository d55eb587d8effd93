"""TFLite models for tests, written with the schema that the ai-edge-litert package ships.

A layer is one operator with its operands; `build` writes it as float or as int8 with the scales
that its float results ask for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import flatbuffers
import numpy as np
import numpy.typing as npt
import pytest

reason = "TFLite itself, which the results are compared with: pip install ai-edge-litert"
schema: Any = pytest.importorskip("ai_edge_litert.schema_py_generated", reason=reason)
lite: Any = pytest.importorskip("ai_edge_litert.interpreter", reason=reason)

Array = npt.NDArray[Any]
TYPES = {
    "float32": schema.TensorType.FLOAT32,
    "float16": schema.TensorType.FLOAT16,
    "int8": schema.TensorType.INT8,
    "uint8": schema.TensorType.UINT8,
    "int16": schema.TensorType.INT16,
    "int32": schema.TensorType.INT32,
    "int64": schema.TensorType.INT64,
    "bool": schema.TensorType.BOOL,
}
OPTIONS = {  # where the name is not made from the operator's
    "CONV_2D": "Conv2DOptions",
    "DEPTHWISE_CONV_2D": "DepthwiseConv2DOptions",
    "AVERAGE_POOL_2D": "Pool2DOptions",
    "MAX_POOL_2D": "Pool2DOptions",
    "MEAN": "ReducerOptions",
    "SUM": "ReducerOptions",
    "REDUCE_MAX": "ReducerOptions",
    "REDUCE_MIN": "ReducerOptions",
    "SUB": "SubOptions",
    "L2_NORMALIZATION": "L2NormOptions",
    "BATCH_MATMUL": "BatchMatMulOptions",
}


class Model:
    """A file in the making.  Tensors are numbers, as in the file."""

    def __init__(self) -> None:
        self.model = schema.ModelT()
        self.model.version, self.model.description = 3, "opennpu test"
        self.model.buffers, self.model.operatorCodes = [schema.BufferT()], []
        self.graph = schema.SubGraphT()
        self.graph.tensors, self.graph.operators, self.graph.name = [], [], "main"
        self.graph.inputs, self.graph.outputs = [], []
        self.model.subgraphs = [self.graph]

    def tensor(
        self,
        name: str,
        shape: Sequence[int],
        dtype: str = "float32",
        data: Array | None = None,
        scale: float | Sequence[float] | None = None,
        zero: int = 0,
        axis: int = 0,
    ) -> int:
        t = schema.TensorT()
        t.name, t.shape, t.type, t.buffer = name, list(shape), TYPES[dtype], 0
        if scale is not None:
            q = t.quantization = schema.QuantizationParametersT()
            q.scale = [float(s) for s in np.atleast_1d(scale)]
            q.zeroPoint, q.quantizedDimension = [zero] * len(q.scale), axis
        if data is not None:
            b = schema.BufferT()
            b.data = np.frombuffer(np.ascontiguousarray(data, dtype).tobytes(), np.uint8)
            self.model.buffers.append(b)
            t.buffer = len(self.model.buffers) - 1
        self.graph.tensors.append(t)
        return len(self.graph.tensors) - 1

    def op(self, name: str, inputs: Sequence[int], outputs: Sequence[int], **options: Any) -> None:
        """options: fields as in schema.fbs, ``strideH=2``."""
        code = schema.OperatorCodeT()
        code.builtinCode = getattr(schema.BuiltinOperator, name)
        code.deprecatedBuiltinCode = min(127, code.builtinCode)
        camel = "".join(part.capitalize() for part in name.split("_"))
        kind = OPTIONS.get(name, f"{camel}Options")
        op = self._operator(code, inputs, outputs)
        if hasattr(schema, f"{kind}T"):
            op.builtinOptionsType = getattr(schema.BuiltinOptions, kind)
            op.builtinOptions = getattr(schema, f"{kind}T")()
            for field_name, value in options.items():
                assert hasattr(op.builtinOptions, field_name), (kind, field_name)
                setattr(op.builtinOptions, field_name, value)

    def custom(
        self, name: str, inputs: Sequence[int], outputs: Sequence[int], options: bytes
    ) -> None:
        """An operator that TFLite itself does not have."""
        code = schema.OperatorCodeT()
        code.builtinCode = code.deprecatedBuiltinCode = schema.BuiltinOperator.CUSTOM
        code.customCode = name
        self._operator(code, inputs, outputs).customOptions = list(options)

    def _operator(self, code: Any, inputs: Sequence[int], outputs: Sequence[int]) -> Any:
        code.version = 1
        self.model.operatorCodes.append(code)
        op = schema.OperatorT()
        op.opcodeIndex = len(self.model.operatorCodes) - 1
        op.inputs, op.outputs = list(inputs), list(outputs)
        self.graph.operators.append(op)
        return op

    def build(self, inputs: Sequence[int], outputs: Sequence[int]) -> bytes:
        self.graph.inputs, self.graph.outputs = list(inputs), list(outputs)
        builder = flatbuffers.Builder(1024)
        builder.Finish(self.model.Pack(builder), b"TFL3")
        return bytes(builder.Output())


def interpreter(model: bytes, reference: bool = True, **options: Any) -> Any:
    """TFLite on its reference kernels, or on those that it takes without XNNPACK."""
    kind = lite.OpResolverType.BUILTIN_REF
    if not reference:
        kind = lite.OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
    made = lite.Interpreter(model_content=model, experimental_op_resolver_type=kind, **options)
    made.allocate_tensors()
    return made


def run_tflite(
    model: bytes, feeds: Mapping[str, Array], reference: bool = True
) -> dict[str, Array]:
    """What TFLite makes of it."""
    made = interpreter(model, reference)
    for d in made.get_input_details():
        made.set_tensor(d["index"], feeds[d["name"]])
    made.invoke()
    return {d["name"]: made.get_tensor(d["index"]) for d in made.get_output_details()}


def alone(model: bytes, k: int) -> bytes:
    """A file of operator k of the first subgraph only, from its own tensors to its own."""
    m = schema.ModelT.InitFromPackedBuf(model)
    graph = m.subgraphs[0]
    op = graph.operators[k]
    m.subgraphs, graph.operators = [graph], [op]
    data = [m.buffers[t.buffer].data for t in graph.tensors]
    graph.inputs = [i for i in dict.fromkeys(op.inputs) if i >= 0 and data[i] is None]
    graph.outputs = list(op.outputs)
    m.signatureDefs = None
    builder = flatbuffers.Builder(1024)
    builder.Finish(m.Pack(builder), b"TFL3")
    return bytes(builder.Output())


# -- layers ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class X:
    """An input; with ``low`` and ``high`` its numbers are between them."""

    shape: tuple[int, ...]
    low: float = -1.0
    high: float = 1.0


@dataclass(frozen=True)
class C:
    """A constant of the kind of an activation."""

    shape: tuple[int, ...]
    low: float = -1.0
    high: float = 1.0


@dataclass(frozen=True)
class W:
    """Filters, with a scale for each index of ``axis``."""

    shape: tuple[int, ...]
    axis: int | None = 0


@dataclass(frozen=True)
class B:
    """A bias."""

    count: int


@dataclass(frozen=True)
class N:
    """Numbers that are what they say: axes, sizes, paddings."""

    numbers: Any


Operand = X | C | W | B | N


@dataclass(frozen=True)
class Layer:
    """An operator, its operands, its results' shapes."""

    op: str
    operands: tuple[Operand, ...]
    outputs: tuple[tuple[int, ...], ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    same: bool = False  # TFLite wants the results in the codes of the input
    scale: tuple[float, int] | None = None  # TFLite wants this scale and zero point
    reference: bool = True  # does TFLite have a sound reference kernel?

    def __str__(self) -> str:
        shown = [f"{k}{v}" for k, v in self.options.items() if v]
        first = next(o.shape for o in self.operands if isinstance(o, X))
        return "-".join([self.op, "x".join(map(str, first)), *shown])


@dataclass(frozen=True)
class Built:
    """A file, and an input for it."""

    model: bytes
    feeds: dict[str, Array]


def codes(a: Array, scale: Any, zero: int, dtype: str = "int8") -> Array:
    ends = np.iinfo(dtype)
    return np.clip(np.rint(a / scale) + zero, ends.min, ends.max).astype(dtype)


def _range(low: float, high: float, dtype: str) -> tuple[float, int]:
    """Scale and zero point of codes over a range that holds 0; int16 is symmetric in TFLite."""
    if dtype == "int16":
        return float(np.float32(max(-low, high, 1e-3) / 32767)), 0
    low, high = min(low, 0.0), max(high, low + 1e-3, 1e-3)
    scale = float(np.float32((high - low) / 255))
    return scale, int(np.rint(np.iinfo(dtype).min - low / scale))


def build(layer: Layer, dtype: str = "float32", seed: int = 0) -> Built:
    """The layer alone in a file: float32, or codes of the same numbers."""
    rng = np.random.default_rng(seed)
    reals = [_numbers(o, rng) for o in layer.operands]
    m, names, feeds, wanted = Model(), [], {}, []
    ranges = [
        _range(o.low, o.high, dtype) if dtype != "float32" and isinstance(o, X | C) else (0.0, 0)
        for o in layer.operands
    ]
    results = layer.scale
    if layer.same:
        results = next(r for r, o in zip(ranges, layer.operands, strict=True) if isinstance(o, X))
    if results is None and dtype != "float32":
        plain = build(layer, "float32", seed)
        said = run_tflite(plain.model, plain.feeds, layer.reference).values()
        low, high = min(float(a.min()) for a in said), max(float(a.max()) for a in said)
        results = _range(low, high, dtype)
    step: Array = np.ones(1)
    for k, (o, real, (scale, zero)) in enumerate(zip(layer.operands, reals, ranges, strict=True)):
        if isinstance(o, N):
            names.append(m.tensor(f"n{k}", real.shape, "int32", real))
        elif isinstance(o, X | C):
            data = real if dtype == "float32" else codes(real, scale, zero, dtype)
            given = {} if dtype == "float32" else {"scale": scale, "zero": zero}
            constant = data if isinstance(o, C) else None
            names.append(m.tensor(f"x{k}", o.shape, dtype, constant, **given))
            if isinstance(o, X):
                feeds[f"x{k}"] = data
                wanted.append(names[-1])
        elif dtype == "float32":
            names.append(m.tensor(f"w{k}", real.shape, dtype, real))
        elif isinstance(o, W):
            others = tuple(i for i in range(real.ndim) if i != o.axis)
            axis = None if dtype == "uint8" else o.axis
            most = np.abs(real).max(None if axis is None else others, keepdims=True)
            step = (most / 127).astype(np.float32)
            zero, kind = (128, "uint8") if dtype == "uint8" else (0, "int8")
            data = codes(real, step, zero, kind)
            given = {"scale": step.reshape(-1), "zero": zero, "axis": axis or 0}
            names.append(m.tensor(f"w{k}", real.shape, kind, data, **given))
        else:
            first = next(r for r, p in zip(ranges, layer.operands, strict=True) if isinstance(p, X))
            unit = np.float32(first[0]) * step.reshape(-1)
            kind = "int64" if dtype == "int16" else "int32"
            names.append(m.tensor(f"b{k}", real.shape, kind, np.rint(real / unit), unit))
    given = (
        {} if dtype == "float32" or results is None else {"scale": results[0], "zero": results[1]}
    )
    outputs = [m.tensor(f"y{k}", s, dtype, None, **given) for k, s in enumerate(layer.outputs)]
    m.op(layer.op, names, outputs, **layer.options)
    return Built(m.build(wanted, outputs), feeds)


def _numbers(o: Operand, rng: np.random.Generator) -> Array:
    if isinstance(o, N):
        return np.asarray(o.numbers, np.int32)
    if isinstance(o, B):
        return rng.uniform(-0.5, 0.5, o.count).astype(np.float32)
    if isinstance(o, W):
        width = np.sqrt(np.prod(o.shape) / max(o.shape[0], o.shape[-1]))
        return (rng.normal(0, 1, o.shape) / width).astype(np.float32)
    return rng.uniform(o.low, o.high, o.shape).astype(np.float32)


# -- a small network -------------------------------------------------------------------------


def bottleneck(seed: int = 0) -> Built:
    """int8: conv, depthwise, conv, residual, mean, matrix, softmax; all scales by hand."""
    rng = np.random.default_rng(seed)
    m = Model()
    image = m.tensor("image", (1, 32, 32, 3), "int8", None, 1 / 128, 0)

    def conv(
        name: str,
        x: int,
        from_: float,
        w: Array,
        out: tuple[int, ...],
        step: float,
        zero: int,
        depthwise: bool = False,
        **options: Any,
    ) -> int:
        axis = 3 if depthwise else 0
        most = np.abs(w).max(tuple(i for i in range(w.ndim) if i != axis), keepdims=True)
        scale = (most / 127).astype(np.float32)
        wt = m.tensor(f"{name}/w", w.shape, "int8", codes(w, scale, 0), scale.reshape(-1), 0, axis)
        bias = rng.integers(-2000, 2000, w.shape[axis])
        unit = np.float32(from_) * scale.reshape(-1)
        bt = m.tensor(f"{name}/b", bias.shape, "int32", bias, unit)
        y = m.tensor(name, out, "int8", None, step, zero)
        kind = {2: "FULLY_CONNECTED", 4: "CONV_2D"}[w.ndim]
        m.op("DEPTHWISE_CONV_2D" if depthwise else kind, [x, wt, bt], [y], **options)
        return y

    def filters(*shape: int) -> Array:
        return rng.normal(0, 1, shape) * np.sqrt(2 / np.prod(shape[1:]))

    six = 6 / 255
    one = {"strideH": 1, "strideW": 1}
    stem = conv(
        "stem",
        image,
        1 / 128,
        filters(16, 3, 3, 3),
        (1, 16, 16, 16),
        six,
        -128,
        strideH=2,
        strideW=2,
        fusedActivationFunction=3,
    )
    dw = conv(
        "depthwise",
        stem,
        six,
        rng.normal(0, 0.4, (1, 3, 3, 16)),
        (1, 16, 16, 16),
        six,
        -128,
        depthwise=True,
        fusedActivationFunction=3,
        depthMultiplier=1,
        **one,
    )
    project = conv("project", dw, six, filters(16, 1, 1, 16), (1, 16, 16, 16), 0.05, 5, **one)
    joined = m.tensor("joined", (1, 16, 16, 16), "int8", None, 0.05, -20)
    m.op("ADD", [project, stem], [joined])
    mean = m.tensor("mean", (1, 16), "int8", None, 0.02, -50)
    m.op("MEAN", [joined, m.tensor("axes", (2,), "int32", np.array([1, 2]))], [mean])
    logits = conv("logits", mean, 0.02, filters(10, 16), (1, 10), 0.05, 3)
    scores = m.tensor("scores", (1, 10), "int8", None, 1 / 256, -128)
    m.op("SOFTMAX", [logits], [scores], beta=1.0)
    data = rng.integers(-128, 128, (1, 32, 32, 3)).astype(np.int8)
    return Built(m.build([image], [logits, scores]), {"image": data})
