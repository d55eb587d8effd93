"""TFLite model → ONNX model with QuantizeLinear/DequantizeLinear pairs, for the ONNX importer.

What stays on the host runs in onnxruntime, so ONNX is the form that all importers meet in.
Nodes are called OPERATOR_INDEX:TENSOR after what they stand for, values after their tensors.

Layout: images are NHWC in TFLite and NCHW in ONNX.  A tensor has one ONNX value for each of the
two that somebody needs, and operators that do not care take the one that is there.  So only
inputs, outputs and reshapes see a Transpose.

Numbers: a quantized tensor is written as float, through a pair.  TFLite's own int8 kernels
round twice (the sum by a 31-bit multiplier, then by a shift), or round averages away from zero; one
rounding of the exact value differs from that by 1 at most.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper, shape_inference

from opennpu.errors import ModelError, UnsupportedError
from opennpu.frontends import onnx as onnx_importer
from opennpu.frontends.tflite_file import BROKEN, File, Operator, Subgraph, Tensor, read_file
from opennpu.ir.graph import Array

OPSET = 20  # the first with Gelu
OWN, NCHW = "own", "NCHW"  # layouts of a value: TFLite's, and that of ONNX images
TO_NCHW, TO_NHWC = (0, 3, 1, 2), (0, 2, 3, 1)
CODES = ("int8", "uint8")  # types of quantized activations
ACTIVATIONS = ("NONE", "RELU", "RELU_N1_TO_1", "RELU6", "TANH")
SAME, VALID = 0, 1  # Padding of schema.fbs


def load_model(
    source: str | Path | bytes, *, fix_dims: Mapping[str, int] | None = None
) -> onnx_importer.Imported:
    """Read, convert, import.  Open sizes are what the file says, as in TFLite itself.

    The notes have "quantization": for each input and output in codes its scale and zero point.
    Raises ModelError, UnsupportedError.
    """
    converter = _Converter(read_file(source))
    imported = onnx_importer.load_model(converter.model(), fix_dims=fix_dims)
    return replace(imported, notes={"quantization": converter.quantization})


def initial_state(source: str | Path | bytes) -> dict[str, Array]:
    """First values of a model's variables, by the names of the inputs that they become.

    A model that keeps state between runs (VAR_HANDLE, READ_VARIABLE, ASSIGN_VARIABLE) has an
    input NAME and an output NAME/next for each variable: the second is what to pass to the first
    next time.  CALL_ONCE names the subgraph that assigns what to begin with.
    Raises ModelError, UnsupportedError.
    """
    file = read_file(source)
    state: dict[str, Array] = {}
    for call in file.subgraphs[0].operators:
        if call.name != "CALL_ONCE":
            continue
        number = int((call.options or {}).get("InitSubgraphIndex", 0))
        where = f"{file.where}: operator {call.index} CALL_ONCE"
        if not 0 < number < len(file.subgraphs):
            raise ModelError(
                where, f"it calls subgraph {number}, of {len(file.subgraphs)}", "Convert it again"
            )
        begin = file.subgraphs[number]
        names: dict[int, str] = {}
        for op in begin.operators:
            data = begin.tensors[op.inputs[1]].data if len(op.inputs) == 2 else None
            if op.name == "VAR_HANDLE" and op.outputs:
                names[op.outputs[0]] = _shared_name(op, begin.tensors[op.outputs[0]])
            elif op.name == "ASSIGN_VARIABLE" and op.inputs[0] in names and data is not None:
                state[names[op.inputs[0]]] = data
            else:
                raise UnsupportedError(
                    where,
                    f"its operator {op.index} is {op.name}, assignments of constants are known",
                    "Convert it with constant first values",
                )
    return state


def _shared_name(op: Operator, handle: Tensor) -> str:
    raw = (op.options or {}).get("SharedName")
    return str(raw.decode()) if raw else handle.name


class _Converter:
    def __init__(self, file: File) -> None:
        self.where = file.where
        self.graph: Subgraph = file.subgraphs[0]
        self.tensors = self.graph.tensors
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: dict[str, onnx.TensorProto] = {}
        self.values: dict[tuple[int, str], str] = {}  # (tensor, layout) → ONNX value
        self.constants = {t.index: t.data for t in self.tensors if t.data is not None}
        self.taken: set[str] = set()
        self.public: set[str] = set()  # names of inputs and outputs
        self.shapes: dict[str, tuple[Tensor, tuple[int, ...]]] = {}  # what the file promises
        self.handles: dict[int, str] = {}  # resource tensor → variable
        self.variables: dict[str, int] = {}  # variable → tensor that holds it at this point
        self.started: dict[str, int] = {}  # variable → tensor of its first reading
        self.quantization: dict[str, list[float]] = {}  # of inputs and outputs
        self.op = Operator(-1, "model", (), ())
        self.name = ""  # of the operator's nodes

    # -- the whole

    def model(self) -> onnx.ModelProto:
        names = self.public_names()
        inputs = [self.input(i, names[i]) for i in self.graph.inputs]
        for op in self.graph.operators:
            self.op = op
            first = self.tensors[op.outputs[0]].name if op.outputs else ""
            self.name = f"{op.name}_{op.index}:{first.split(';')[0]}"
            self.operator(op)
        self.name = "model"
        outputs = [self.output(i, names[i]) for i in dict.fromkeys(self.graph.outputs)]
        for variable, state in self.variables.items():
            if variable in self.started:
                tensor = self.tensors[self.started[variable]]
                inputs.append(self.info(variable, tensor))
                outputs.append(self.output(state, f"{variable}/next"))
        graph = helper.make_graph(
            self.nodes, Path(self.where).stem, inputs, outputs, list(self.initializers.values())
        )
        model = helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10
        )
        self.check_shapes(model)
        return model

    def public_names(self) -> dict[int, str]:
        """Names of inputs and outputs: those of their tensors."""
        names: dict[int, str] = {}
        for i in (*self.graph.inputs, *self.graph.outputs):
            if i not in names:
                names[i] = self.fresh(self.tensors[i].name)
        self.public.update(names.values())
        both = set(self.graph.inputs) & set(self.graph.outputs)
        if both:
            raise ModelError(
                self.where,
                f"tensor {min(both)} {names[min(both)]} is both an input and an output",
                "Export it with an operator between them",
            )
        return names

    def fresh(self, name: str) -> str:
        """A value name that nobody has."""
        unique, k = name, 1
        while unique in self.taken:
            unique, k = f"{name}/{k}", k + 1
        self.taken.add(unique)
        return unique

    def info(self, name: str, t: Tensor) -> onnx.ValueInfoProto:
        """An input or output."""
        if t.scale is not None and self.coded(t):
            self.quantization[name] = [float(t.scale.scale[0]), int(t.scale.zero[0])]
        return helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(t.dtype), t.shape
        )

    def input(self, i: int, name: str) -> onnx.ValueInfoProto:
        t = self.tensors[i]
        self.name = f"input:{t.name}"
        value = name
        if self.coded(t):  # a float tensor in codes of its own, like any other
            value = self.node("DequantizeLinear", [name, *self.parameters(t)])
        self.write(i, value)
        return self.info(name, t)

    def output(self, i: int, name: str) -> onnx.ValueInfoProto:
        t = self.tensors[i]
        self.name = f"output:{t.name}"
        value = self.read(i)
        written = {o: n for n in self.nodes for o in n.output}
        if self.coded(t):
            self.node("QuantizeLinear", [value, *self.parameters(t)], out=name)
        elif value in written and i not in self.constants and value not in self.public:
            self.rename(value, name)
        else:
            self.node("Identity", [value], out=name)
        return self.info(name, t)

    def rename(self, old: str, new: str) -> None:
        for n in self.nodes:
            for names in (n.input, n.output):
                for k, name in enumerate(names):
                    if name == old:
                        names[k] = new
        for key, name in self.values.items():
            if name == old:
                self.values[key] = new
        if old in self.shapes:
            self.shapes[new] = self.shapes.pop(old)

    def check_shapes(self, model: onnx.ModelProto) -> None:
        """Sizes in the file are those that its operators make.  Raises ModelError."""
        bare = onnx.ModelProto()
        bare.CopyFrom(model)
        for o in bare.graph.output:  # or inference only says that they differ
            o.type.tensor_type.ClearField("shape")
        try:
            inferred = shape_inference.infer_shapes(bare, strict_mode=True, data_prop=True)
        except Exception as e:  # the importer's own inference gives the same sentence
            line = " ".join(str(e).split())[:300]
            raise ModelError(
                self.where, f"its shapes do not fit: {line.rstrip('.')}", "Convert it again"
            ) from None
        for info in (*inferred.graph.value_info, *inferred.graph.output):
            if info.name not in self.shapes or not info.type.tensor_type.HasField("shape"):
                continue
            t, said = self.shapes[info.name]
            dims = info.type.tensor_type.shape.dim
            found = tuple(d.dim_value if d.HasField("dim_value") else None for d in dims)
            fits = len(found) == len(said) and all(
                f in (None, s) for f, s in zip(found, said, strict=True)
            )
            if not fits:
                raise ModelError(
                    self.where,
                    f"tensor {t.index} {t.name} has the shape {list(said)}, its operator makes "
                    f"{list(found)}",
                    "Convert it again",
                )

    # -- values

    def refuse(
        self, what: str, remedy: str = "Convert it without that operator"
    ) -> UnsupportedError:
        return UnsupportedError(f"{self.where}: operator {self.op.index}", what, remedy)

    def broken(self, what: str) -> ModelError:
        where = f"{self.where}: operator {self.op.index} {self.op.name}"
        return ModelError(where, what, "Convert it again")

    @staticmethod
    def coded(t: Tensor) -> bool:
        """Is it a quantized activation?"""
        return t.scale is not None and t.scale.axis is None and t.dtype.name in CODES

    def operand(self, k: int) -> Tensor:
        """Input k of the operator.  Raises ModelError if it is absent."""
        if not self.has(k):
            raise self.broken(f"it has {len(self.op.inputs)} inputs, number {k} is missing")
        return self.tensors[self.op.inputs[k]]

    def has(self, k: int) -> bool:
        return k < len(self.op.inputs) and self.op.inputs[k] >= 0

    def result(self, k: int = 0) -> Tensor:
        if k >= len(self.op.outputs):
            raise self.broken(f"it has {len(self.op.outputs)} outputs, number {k} is missing")
        return self.tensors[self.op.outputs[k]]

    def raw(self, k: int, what: str) -> Array:
        """Numbers of input k, which must be a constant."""
        t = self.operand(k)
        if t.index not in self.constants:
            raise self.refuse(
                f"{self.op.name} ({self.result().name}) computes its {what} in {t.name}, it must "
                "be constant",
                "Convert it with fixed shapes",
            )
        return self.constants[t.index]

    def real(self, t: Tensor) -> Array:
        """What the numbers of a constant stand for, float32."""
        codes, s = self.constants[t.index], t.scale
        if s is None:
            return codes.astype(np.float32) if codes.dtype.kind == "f" else codes
        shape = [-1 if i == s.axis else 1 for i in range(codes.ndim)]
        offset = codes.astype(np.int64) - s.zero.reshape(shape)
        return np.asarray(offset * s.scale.reshape(shape).astype(np.float64)).astype(np.float32)

    def add_constant(self, name: str, a: Array) -> str:
        unique = self.fresh(name)
        self.initializers[unique] = numpy_helper.from_array(np.array(a, order="C"), unique)
        return unique

    def ints(self, *numbers: int) -> str:
        return self.add_constant(f"{self.name}/numbers", np.array(numbers, np.int64))

    def scalar(self, number: float) -> str:
        return self.add_constant(f"{self.name}/number", np.array(number, np.float32))

    def parameters(self, t: Tensor) -> list[str]:
        """Scale and zero point of a quantized activation, as ONNX scalars."""
        s = t.scale
        assert s is not None
        scale = self.add_constant(f"{t.name}/scale", s.scale.reshape(()))
        return [scale, self.add_constant(f"{t.name}/zero", s.zero.reshape(()).astype(t.dtype))]

    def node(
        self,
        kind: str,
        inputs: Sequence[str],
        suffix: str = "",
        out: str = "",
        **attributes: Any,
    ) -> str:
        """Add a node of one output; returns the output."""
        return self.nodes_of(kind, inputs, [out], suffix, **attributes)[0]

    def nodes_of(
        self, kind: str, inputs: Sequence[str], outs: Sequence[str], suffix: str = "", **attrs: Any
    ) -> list[str]:
        base = f"{self.name}/{suffix}" if suffix else self.name
        outputs = [o or self.fresh(f"{base}/{kind}") for o in outs]
        self.nodes.append(helper.make_node(kind, list(inputs), outputs, base, **attrs))
        return outputs

    def pair(self, value: str, t: Tensor) -> str:
        """A value rounded to the codes of a tensor, if that has any."""
        if not self.coded(t):
            return value
        parameters = self.parameters(t)
        codes = self.node("QuantizeLinear", [value, *parameters], "quantize")
        return self.node("DequantizeLinear", [codes, *parameters], "dequantize")

    def write(self, i: int, value: str, layout: str = OWN) -> None:
        """Tensor i is ``value``, once that is rounded."""
        t = self.tensors[i]
        if i in self.constants or any((i, at) in self.values for at in (OWN, NCHW)):
            raise self.broken(f"it writes tensor {i} {t.name}, which has its value already")
        self.keep(t, layout, self.pair(value, t))

    def keep(self, t: Tensor, layout: str, value: str) -> None:
        self.values[t.index, layout] = value
        self.shapes[value] = (t, tuple(t.shape[a] for a in TO_NCHW) if layout == NCHW else t.shape)

    def read(self, i: int, layout: str = OWN) -> str:
        """The ONNX value of tensor i in a layout, made if it is not there."""
        t = self.tensors[i]
        if (i, layout) in self.values:
            return self.values[i, layout]
        if i in self.constants:
            return self.read_constant(t, layout)
        other = OWN if layout == NCHW else NCHW
        if (i, other) not in self.values:
            raise self.broken(f"it reads tensor {i} {t.name}, which nothing wrote before")
        perm = TO_NCHW if layout == NCHW else TO_NHWC
        if len(t.shape) != 4:
            raise self.broken(f"tensor {i} {t.name} has {len(t.shape)} axes, an image has 4")
        base = self.name
        self.name = f"{base}/{layout} of {t.name}" if layout == NCHW else f"{base}/NHWC of {t.name}"
        value = self.node("Transpose", [self.values[i, other]], perm=perm)
        value = self.pair(value, t)
        self.name = base
        self.keep(t, layout, value)
        return value

    def read_constant(self, t: Tensor, layout: str) -> str:
        """A constant as a value; in NCHW with axes of 1 in front, if it has fewer than 4."""
        a = self.constants[t.index] if self.coded(t) else self.real(t)
        if layout == NCHW:
            a = a.reshape((1,) * (4 - a.ndim) + a.shape).transpose(TO_NCHW)
        if self.coded(t):
            codes = self.add_constant(f"{t.name}/codes", a)
            value = self.fresh(t.name)
            inputs = [codes, *self.parameters(t)]
            node = helper.make_node("DequantizeLinear", inputs, [value], f"{value}/real")
            self.nodes.append(node)
        else:
            value = self.add_constant(t.name, a)
        self.values[t.index, layout] = value
        return value

    def layout(self, *tensors: Tensor) -> str:
        """The layout for an operator that takes either: NCHW where an operand has it."""
        given = [t for t in tensors if t.index not in self.constants]
        image = all(len(t.shape) == 4 for t in given)
        return NCHW if image and any((t.index, NCHW) in self.values for t in given) else OWN

    @staticmethod
    def axis(axis: int, t: Tensor, layout: str) -> int:
        """An axis of a tensor, where it is in a layout."""
        axis = axis % max(1, len(t.shape))
        return TO_NCHW.index(axis) if layout == NCHW else axis

    def option(self, name: str, default: Any = None) -> Any:
        """A field of the operator's options.  Raises ModelError without one."""
        options = self.op.options
        if options is None or name not in options:
            if default is not None:
                return default
            raise self.broken(f"its options ({self.op.options_name or 'none'}) have no {name}")
        return options[name]

    def activate(self, value: str, t: Tensor) -> str:
        """The fused activation, unless rounding to the codes of the result does it as well."""
        number = int(self.option("FusedActivationFunction", 0))
        if not 0 <= number < len(ACTIVATIONS):
            raise self.refuse(f"{self.op.name} ({t.name}) has the fused activation {number}")
        kind = ACTIVATIONS[number]
        low, high = {"RELU": (0, math.inf), "RELU_N1_TO_1": (-1, 1), "RELU6": (0, 6)}.get(
            kind, (-math.inf, math.inf)
        )
        if self.coded(t) and kind != "TANH":
            assert t.scale is not None
            ends = np.iinfo(t.dtype)
            s, z = float(t.scale.scale[0]), int(t.scale.zero[0])
            low = low if np.rint(low / s) + z > ends.min else -math.inf
            high = high if np.rint(high / s) + z < ends.max else math.inf
        if kind == "TANH":
            return self.node("Tanh", [value], "activation")
        if (low, high) == (-math.inf, math.inf):
            return value
        if (low, high) == (0, math.inf):
            return self.node("Relu", [value], "activation")
        limits = ["" if math.isinf(x) else self.scalar(x) for x in (low, high)]
        return self.node("Clip", [value, *limits], "activation")

    def finish(self, value: str, layout: str = OWN) -> None:
        """The only result of the operator, through its fused activation."""
        t = self.result()
        self.write(t.index, self.activate(value, t), layout)

    def operator(self, op: Operator) -> None:
        convert = OPERATORS.get(op.name)
        if convert is None:
            outputs = ", ".join(self.tensors[i].name for i in op.outputs) or "nothing"
            raise self.refuse(f"{op.name}, which writes {outputs}, is not known to opennpu")
        try:
            convert(self)
        except BROKEN as e:
            line = " ".join(str(e).split())[:200] or type(e).__name__
            raise self.broken(f"its operands do not fit: {line.rstrip('.')}") from None
        for i in op.outputs:
            self.check_result(self.tensors[i])

    def check_result(self, y: Tensor) -> None:
        """Results have one scale, and where TFLite only moves codes it is that of the operands."""
        s = y.scale
        if s is None or y.index in self.constants:
            return
        if y.dtype == np.int16:
            raise self.refuse(
                f"{self.op.name} writes {y.name} in codes of 16 bits, those of 8 bits are known",
                "Convert the model to int8 or float",
            )
        if s.axis is not None:
            raise self.refuse(
                f"{self.op.name} writes {y.name} with {s.scale.size} scales, activations have 1"
            )
        for i in self.op.inputs if self.op.name in MOVES else ():
            x = self.tensors[i]
            if i < 0 or x.scale is None or not self.coded(x) or not self.coded(y):
                continue
            if s.zero != x.scale.zero or not np.isclose(s.scale, x.scale.scale, 1e-5, 0):
                given, wanted = ([float(t.scale[0]), int(t.zero[0])] for t in (x.scale, s))
                raise self.broken(
                    f"it moves codes from {x.name} to {y.name}, whose scales and zero points are "
                    f"{given} and {wanted}"
                )


# -- operators -------------------------------------------------------------------------------

Convert = Callable[[_Converter], None]
OPERATORS: dict[str, Convert] = {}


def _op(*names: str) -> Callable[[Convert], Convert]:
    def register(convert: Convert) -> Convert:
        OPERATORS.update(dict.fromkeys(names, convert))
        return convert

    return register


UNARY = {
    **{"RELU": "Relu", "TANH": "Tanh", "LOGISTIC": "Sigmoid", "HARD_SWISH": "HardSwish"},
    **{"ELU": "Elu", "EXP": "Exp", "LOG": "Log", "SQRT": "Sqrt", "ABS": "Abs", "NEG": "Neg"},
    **{"FLOOR": "Floor", "CEIL": "Ceil", "ROUND": "Round", "SIN": "Sin", "COS": "Cos"},
    **{"SIGN": "Sign", "LOGICAL_NOT": "Not"},
}
BINARY = {
    **{"ADD": "Add", "SUB": "Sub", "MUL": "Mul", "DIV": "Div", "POW": "Pow"},
    **{"MINIMUM": "Min", "MAXIMUM": "Max", "EQUAL": "Equal", "GREATER": "Greater", "LESS": "Less"},
    **{"GREATER_EQUAL": "GreaterOrEqual", "LESS_EQUAL": "LessOrEqual"},
    **{"LOGICAL_AND": "And", "LOGICAL_OR": "Or"},
}
REDUCE = {
    **{"MEAN": "ReduceMean", "SUM": "ReduceSum", "REDUCE_MAX": "ReduceMax"},
    **{"REDUCE_MIN": "ReduceMin", "REDUCE_PROD": "ReduceProd"},
}
MOVES = frozenset(
    (
        *("RESHAPE", "SQUEEZE", "EXPAND_DIMS", "TRANSPOSE", "PACK", "UNPACK", "SPLIT", "SPLIT_V"),
        *("SLICE", "STRIDED_SLICE", "PAD", "MIRROR_PAD", "GATHER", "GATHER_ND", "TILE"),
        *("BROADCAST_TO", "DEPTH_TO_SPACE", "SPACE_TO_DEPTH", "RESIZE_BILINEAR", "MAX_POOL_2D"),
        *("RESIZE_NEAREST_NEIGHBOR", "AVERAGE_POOL_2D"),
    )
)
"""Operators whose results have the codes of their operands: TFLite never looks at both scales."""

CLIPS = {"RELU6": (0.0, 6.0), "RELU_N1_TO_1": (-1.0, 1.0), "RELU_0_TO_1": (0.0, 1.0)}


def _one(c: _Converter) -> tuple[str, str]:
    """The value of the only operand, and its layout."""
    x = c.operand(0)
    layout = c.layout(x)
    return c.read(x.index, layout), layout


@_op(*UNARY)
def _unary(c: _Converter) -> None:
    value, layout = _one(c)
    c.write(c.result().index, c.node(UNARY[c.op.name], [value]), layout)


@_op("GELU")
def _gelu(c: _Converter) -> None:
    value, layout = _one(c)
    how = "tanh" if c.option("Approximate", False) else "none"
    c.write(c.result().index, c.node("Gelu", [value], approximate=how), layout)


@_op("RSQRT")
def _rsqrt(c: _Converter) -> None:
    value, layout = _one(c)
    root = c.node("Sqrt", [value], "root")
    c.write(c.result().index, c.node("Reciprocal", [root]), layout)


@_op("SQUARE")
def _square(c: _Converter) -> None:
    value, layout = _one(c)
    c.write(c.result().index, c.node("Mul", [value, value]), layout)


@_op(*CLIPS)
def _clip(c: _Converter) -> None:
    value, layout = _one(c)
    limits = [c.scalar(x) for x in CLIPS[c.op.name]]
    c.write(c.result().index, c.node("Clip", [value, *limits]), layout)


@_op("LEAKY_RELU")
def _leaky(c: _Converter) -> None:
    value, layout = _one(c)
    alpha = float(c.option("Alpha"))
    c.write(c.result().index, c.node("LeakyRelu", [value], alpha=alpha), layout)


@_op("PRELU")
def _prelu(c: _Converter) -> None:
    x, slope = c.operand(0), c.operand(1)
    layout = c.layout(x)
    slopes = c.real(slope) if slope.index in c.constants else None
    if slopes is None:
        raise c.refuse(f"PRELU ({c.result().name}) has computed slopes, they must be constant")
    rank = len(x.shape)
    slopes = slopes.reshape((1,) * (rank - slopes.ndim) + slopes.shape)
    if layout == NCHW:
        slopes = slopes.transpose(TO_NCHW)
    name = c.add_constant(slope.name, slopes[0] if rank > 1 else slopes)
    value = c.node("PRelu", [c.read(x.index, layout), name])
    c.write(c.result().index, value, layout)


def _broadcast(c: _Converter, *operands: Tensor) -> tuple[list[str], str]:
    """Values of operands that broadcast, in one layout that all computed ones have."""
    computed = [t for t in operands if t.index not in c.constants]
    image = all(len(t.shape) <= 4 for t in operands)
    layout = c.layout(*computed) if image else OWN
    return [c.read(t.index, layout) for t in operands], layout


@_op(*BINARY)
def _binary(c: _Converter) -> None:
    values, layout = _broadcast(c, c.operand(0), c.operand(1))
    c.finish(c.node(BINARY[c.op.name], values), layout)


@_op("SQUARED_DIFFERENCE")
def _squared_difference(c: _Converter) -> None:
    values, layout = _broadcast(c, c.operand(0), c.operand(1))
    difference = c.node("Sub", values, "difference")
    c.write(c.result().index, c.node("Mul", [difference, difference]), layout)


@_op("SELECT", "SELECT_V2")
def _select(c: _Converter) -> None:
    values, layout = _broadcast(c, c.operand(0), c.operand(1), c.operand(2))
    c.write(c.result().index, c.node("Where", values), layout)


# -- convolutions


def _image(c: _Converter, k: int = 0) -> Tensor:
    t = c.operand(k)
    if len(t.shape) != 4:
        raise c.broken(f"{t.name} has {len(t.shape)} axes, an image has 4")
    return t


def _same(c: _Converter) -> bool:
    """SAME padding, or VALID?"""
    if c.option("Padding") not in (SAME, VALID):
        raise c.broken(f"its padding is {c.option('Padding')}, 0 (SAME) and 1 (VALID) are known")
    return bool(c.option("Padding") == SAME)


def _window(
    c: _Converter, sizes: Sequence[int], kernel: Sequence[int], dilations: Sequence[int]
) -> dict[str, Any]:
    """Attributes of a window: strides and pads, as TFLite pads."""
    strides = [int(c.option("StrideH")), int(c.option("StrideW"))]
    if min(*strides, *dilations, *kernel) < 1:
        raise c.broken(f"it has kernel {list(kernel)}, strides {strides}, dilations {dilations}")
    before, after = [0, 0], [0, 0]
    if _same(c):
        for i in range(2):
            span = (kernel[i] - 1) * dilations[i] + 1
            out = -(-sizes[i] // strides[i])
            total = max(0, (out - 1) * strides[i] + span - sizes[i])
            before[i], after[i] = total // 2, total - total // 2
    return {"strides": strides, "pads": [*before, *after]}


def _weights(
    c: _Converter, axes: Sequence[int], filters: int, quantized: bool
) -> tuple[str, Array]:
    """The filters (input 1) with their axes in ONNX's order: (value, their scales)."""
    t = c.operand(1)
    if t.index not in c.constants:
        raise c.refuse(f"{c.op.name} ({c.result().name}) has computed weights in {t.name}")
    if len(t.shape) != len(axes):
        raise c.broken(f"its filters {t.name} have the shape {list(t.shape)}")
    s = t.scale
    if not quantized or s is None or t.dtype.name not in CODES:
        return c.add_constant(t.name, c.real(t).transpose(axes)), np.ones(1, np.float32)
    codes = c.add_constant(f"{t.name}/codes", c.constants[t.index].transpose(axes))
    size = s.scale.size
    attributes: dict[str, Any] = {}
    zero = s.zero.astype(t.dtype)
    if s.axis is None:
        parameters = [s.scale.reshape(()), zero.reshape(())]
    else:
        parameters = [s.scale, zero]
        attributes = {"axis": list(axes).index(s.axis)}
        if size != filters:
            raise c.broken(f"its {filters} filters {t.name} have {size} scales")
    names = [
        c.add_constant(f"{t.name}/{n}", a)
        for n, a in zip(("scale", "zero"), parameters, strict=True)
    ]
    value = c.node("DequantizeLinear", [codes, *names], "weights", **attributes)
    return value, s.scale


def _bias(
    c: _Converter, k: int, x: Tensor, scales: Array, filters: int, quantized: bool
) -> list[str]:
    """The bias, in real numbers: TFLite adds its codes to the sums, whatever its own scale says."""
    if not c.has(k):
        return []
    t = c.operand(k)
    if t.index not in c.constants:
        raise c.refuse(f"{c.op.name} ({c.result().name}) has a computed bias in {t.name}")
    if math.prod(t.shape) != filters:
        raise c.broken(f"its bias {t.name} has the shape {list(t.shape)} for {filters} filters")
    if not quantized or c.constants[t.index].dtype.kind == "f":
        return [c.add_constant(t.name, c.real(t).reshape(-1))]
    assert x.scale is not None
    step = x.scale.scale.astype(np.float64) * scales
    real = c.constants[t.index].reshape(-1) * step
    return [c.add_constant(t.name, real.astype(np.float32))]


@_op("CONV_2D", "DEPTHWISE_CONV_2D")
def _conv(c: _Converter) -> None:
    x, w, y = _image(c), _image(c, 1), c.result()
    depthwise = c.op.name == "DEPTHWISE_CONV_2D"
    channels, filters = x.shape[3], w.shape[3] if depthwise else w.shape[0]
    dilations = [int(c.option(f"Dilation{s}Factor", 1)) for s in "HW"]
    window = _window(c, x.shape[1:3], w.shape[1:3], dilations)
    if depthwise:
        group, axes = channels, (3, 0, 1, 2)
    else:
        group, axes = channels // max(1, w.shape[3]), (0, 3, 1, 2)
    if group < 1 or filters % group or (not depthwise and group * w.shape[3] != channels):
        raise c.broken(
            f"its filters {w.name} of shape {list(w.shape)} do not fit {channels} channels"
        )
    quantized = c.coded(x)
    value = c.read(x.index, NCHW)
    weights, scales = _weights(c, axes, filters, quantized)
    bias = _bias(c, 2, x, scales, filters, quantized)
    value = c.node(
        "Conv",
        [value, weights, *bias],
        kernel_shape=w.shape[1:3],
        dilations=dilations,
        group=group,
        **window,
    )
    c.write(y.index, c.activate(value, y), NCHW)


def _transposed(c: _Converter, x: Tensor, bias_at: int, strides: Sequence[int], same: bool) -> None:
    """Convolution turned round; pads are those that the forward one would have."""
    w, y = _image(c, 1), c.result()
    if len(y.shape) != 4 or len(x.shape) != 4 or w.shape[3] != x.shape[3]:
        raise c.broken(f"its filters {list(w.shape)} do not fit {list(x.shape)}")
    before, after, extra = [0, 0], [0, 0], [0, 0]
    for i in range(2):
        full = (x.shape[1 + i] - 1) * strides[i] + w.shape[1 + i]
        total = max(0, full - y.shape[1 + i]) if same else 0
        before[i], after[i] = total // 2, total - total // 2
        extra[i] = y.shape[1 + i] - (full - total)
    if min(strides) < 1 or any(not 0 <= e < s for e, s in zip(extra, strides, strict=True)):
        raise c.refuse(
            f"{c.op.name} ({y.name}) makes {list(y.shape[1:3])} of {list(x.shape[1:3])} with "
            f"strides {list(strides)}, which no padding does"
        )
    quantized = c.coded(x)
    value = c.read(x.index, NCHW)
    weights, scales = _weights(c, (3, 0, 1, 2), w.shape[0], quantized)
    bias = _bias(c, bias_at, x, scales, w.shape[0], quantized)
    value = c.node(
        "ConvTranspose",
        [value, weights, *bias],
        kernel_shape=w.shape[1:3],
        strides=list(strides),
        pads=[*before, *after],
        output_padding=extra,
    )
    c.finish(value, NCHW)


@_op("TRANSPOSE_CONV")
def _transpose_conv(c: _Converter) -> None:
    strides = [int(c.option("StrideH")), int(c.option("StrideW"))]
    _transposed(c, c.operand(2), 3, strides, _same(c))


@_op("Convolution2DTransposeBias")
def _mediapipe_transpose_conv(c: _Converter) -> None:
    """MediaPipe's own: its options are three int32, padding (1: SAME), stride width and height."""
    if len(c.op.custom) != 12:
        raise c.broken(f"its options have {len(c.op.custom)} bytes, three int32 take 12")
    padding, width, height = (int(n) for n in np.frombuffer(c.op.custom, "<i4"))
    _transposed(c, c.operand(0), 2, [height, width], padding == 1)


@_op("FULLY_CONNECTED")
def _fully_connected(c: _Converter) -> None:
    x, w, y = c.operand(0), c.operand(1), c.result()
    if len(w.shape) != 2 or int(c.option("WeightsFormat", 0)) != 0:
        raise c.refuse(
            f"FULLY_CONNECTED ({y.name}) has weights of shape {list(w.shape)}, shuffled "
            "or not a matrix"
        )
    filters, width = w.shape
    quantized = c.coded(x)
    value = c.read(x.index)
    rows = math.prod(x.shape) // max(1, width)
    if rows * width != math.prod(x.shape):
        raise c.broken(f"{x.name} of shape {list(x.shape)} is no matrix of {width} columns")
    if len(x.shape) != 2 or x.shape[1] != width:
        flat = c.node("Reshape", [value, c.ints(rows, width)], "flat")
        name, c.name = c.name, f"{c.name}/flat"
        value, c.name = c.pair(flat, x), name
    weights, scales = _weights(c, (0, 1), filters, quantized)
    bias = _bias(c, 2, x, scales, filters, quantized)
    value = c.activate(c.node("Gemm", [value, weights, *bias], transB=1), y)
    if y.shape != (rows, filters):
        name, c.name = c.name, f"{c.name}/rows"
        value, c.name = c.pair(value, y), name
        value = c.node("Reshape", [value, c.ints(*y.shape)], "shape")
    c.write(y.index, value)


@_op("BATCH_MATMUL")
def _batch_matmul(c: _Converter) -> None:
    values = []
    for k, option in enumerate(("AdjX", "AdjY")):
        t = c.operand(k)
        value = c.read(t.index)
        if c.option(option, False):
            perm = [*range(len(t.shape))]
            perm[-2:] = perm[-1], perm[-2]
            value = c.node("Transpose", [value], f"turned {k}", perm=perm)
            name, c.name = c.name, f"{c.name}/turned {k}"
            value, c.name = c.pair(value, t) if t.index not in c.constants else value, name
        values.append(value)
    c.write(c.result().index, c.node("MatMul", values))


# -- pools and reductions


@_op("AVERAGE_POOL_2D", "MAX_POOL_2D")
def _pool(c: _Converter) -> None:
    x = _image(c)
    kernel = [int(c.option("FilterHeight")), int(c.option("FilterWidth"))]
    window = _window(c, x.shape[1:3], kernel, [1, 1])
    value = c.read(x.index, NCHW)
    whole = tuple(kernel) == x.shape[1:3] and not any(window["pads"])
    if c.op.name == "MAX_POOL_2D":
        value = c.node("MaxPool", [value], kernel_shape=kernel, **window)
    elif whole:  # one window whatever the strides
        value = c.node("GlobalAveragePool", [value])
    else:
        value = c.node("AveragePool", [value], kernel_shape=kernel, **window)
    c.finish(value, NCHW)


@_op(*REDUCE)
def _reduce(c: _Converter) -> None:
    x, y = c.operand(0), c.result()
    rank = len(x.shape)
    axes = sorted({int(a) % max(1, rank) for a in c.raw(1, "axes").reshape(-1)})
    keep = bool(c.option("KeepDims", False))
    if c.op.name == "MEAN" and rank == 4 and axes == [1, 2]:
        value = c.node("GlobalAveragePool", [c.read(x.index, NCHW)])
        if keep:
            c.write(y.index, value, NCHW)
            return
        name, c.name = c.name, f"{c.name}/pool"
        value, c.name = c.pair(value, y), name
        c.write(y.index, c.node("Reshape", [value, c.ints(*y.shape)], "shape"))
        return
    layout = c.layout(x) if keep else OWN
    inputs = [c.read(x.index, layout), c.ints(*(c.axis(a, x, layout) for a in axes))]
    if not axes:
        c.write(y.index, c.node("Identity", inputs[:1]), layout)
        return
    c.write(y.index, c.node(REDUCE[c.op.name], inputs, keepdims=int(keep)), layout)


@_op("ARG_MAX", "ARG_MIN")
def _arg(c: _Converter) -> None:
    x, y = c.operand(0), c.result()
    axis = int(c.raw(1, "axis").reshape(()))
    kind = "ArgMax" if c.op.name == "ARG_MAX" else "ArgMin"
    value = c.node(kind, [c.read(x.index)], axis=axis, keepdims=0)
    if y.dtype != np.int64:
        value = c.node("Cast", [value], "cast", to=helper.np_dtype_to_tensor_dtype(y.dtype))
    c.write(y.index, value)


@_op("SOFTMAX", "LOG_SOFTMAX")
def _softmax(c: _Converter) -> None:
    x = c.operand(0)
    value, layout = _one(c)
    beta = float(c.option("Beta", 1.0)) if c.op.name == "SOFTMAX" else 1.0
    if beta != 1.0:
        value = c.node("Mul", [value, c.scalar(beta)], "beta")
    kind = "Softmax" if c.op.name == "SOFTMAX" else "LogSoftmax"
    c.write(c.result().index, c.node(kind, [value], axis=c.axis(-1, x, layout)), layout)


@_op("L2_NORMALIZATION")
def _l2(c: _Converter) -> None:
    x = c.operand(0)
    value, layout = _one(c)
    c.finish(c.node("LpNormalization", [value], axis=c.axis(-1, x, layout), p=2), layout)


# -- moving


@_op("RESHAPE", "SQUEEZE", "EXPAND_DIMS")
def _reshape(c: _Converter) -> None:
    x, y = c.operand(0), c.result()
    if math.prod(x.shape) != math.prod(y.shape):
        raise c.broken(f"it turns {list(x.shape)} into {list(y.shape)}")
    c.write(
        y.index, c.node("Reshape", [c.read(x.index), c.ints(*y.shape)], allowzero=int(0 in y.shape))
    )


@_op("TRANSPOSE")
def _transpose(c: _Converter) -> None:
    x, y = c.operand(0), c.result()
    perm = [int(p) for p in c.raw(1, "permutation").reshape(-1)]
    if sorted(perm) != list(range(len(x.shape))):
        raise c.broken(f"it permutes {len(x.shape)} axes by {perm}")
    layout = c.layout(x)
    if layout == NCHW:  # one Transpose for both
        perm = [TO_NCHW.index(p) for p in perm]
    c.write(y.index, c.node("Transpose", [c.read(x.index, layout)], perm=perm))


@_op("CONCATENATION")
def _concat(c: _Converter) -> None:
    tensors = [c.operand(k) for k in range(len(c.op.inputs))]
    y = c.result()
    images = all(len(t.shape) == 4 for t in tensors)
    layout = c.layout(*tensors) if images else OWN
    values = [c.read(t.index, layout) for t in tensors]
    c.finish(c.node("Concat", values, axis=c.axis(int(c.option("Axis")), y, layout)), layout)


@_op("PACK")
def _pack(c: _Converter) -> None:
    y = c.result()
    axis = int(c.option("Axis")) % max(1, len(y.shape))
    at = c.ints(axis)
    values = [
        c.node("Unsqueeze", [c.read(c.operand(k).index), at], f"row {k}")
        for k in range(len(c.op.inputs))
    ]
    c.write(y.index, c.node("Concat", values, axis=axis))


def _split_into(
    c: _Converter, x: Tensor, axis: int, sizes: Sequence[int], rows: bool = False
) -> None:
    layout = OWN if rows else c.layout(x)
    where = c.axis(axis, x, layout)
    if len(sizes) != len(c.op.outputs) or sum(sizes) != x.shape[axis % max(1, len(x.shape))]:
        raise c.broken(
            f"it cuts {list(x.shape)} into {list(sizes)} for {len(c.op.outputs)} outputs"
        )
    values = c.nodes_of(
        "Split", [c.read(x.index, layout), c.ints(*sizes)], [""] * len(sizes), axis=where
    )
    base = c.name
    for k, (i, value) in enumerate(zip(c.op.outputs, values, strict=True)):
        c.name = f"{base}/part {k}"
        if rows:
            value = c.node("Reshape", [value, c.ints(*c.tensors[i].shape)])
        c.write(i, value, layout)
    c.name = base


@_op("SPLIT")
def _split(c: _Converter) -> None:
    x, axis = c.operand(1), int(c.raw(0, "axis").reshape(()))
    parts = max(1, len(c.op.outputs))
    _split_into(c, x, axis, [x.shape[axis] // parts] * parts)


@_op("SPLIT_V")
def _split_v(c: _Converter) -> None:
    x, axis = c.operand(0), int(c.raw(2, "axis").reshape(()))
    sizes = [int(s) for s in c.raw(1, "sizes").reshape(-1)]
    if sizes.count(-1) == 1:
        sizes[sizes.index(-1)] = x.shape[axis] - sum(s for s in sizes if s >= 0)
    _split_into(c, x, axis, sizes)


@_op("UNPACK")
def _unpack(c: _Converter) -> None:
    x, axis = c.operand(0), int(c.option("Axis", 0))
    _split_into(c, x, axis, [1] * x.shape[axis], rows=True)


def _sliced(
    c: _Converter, x: Tensor, begin: Sequence[int], end: Sequence[int], step: Sequence[int]
) -> tuple[str, str]:
    layout = c.layout(x)
    axes = [c.axis(a, x, layout) for a in range(len(begin))]
    lists = [c.ints(*numbers) for numbers in (begin, end, axes, step)]
    return c.node("Slice", [c.read(x.index, layout), *lists]), layout


@_op("SLICE")
def _slice(c: _Converter) -> None:
    x, y = c.operand(0), c.result()
    begin = [int(n) for n in c.raw(1, "begin").reshape(-1)]
    sizes = [int(n) for n in c.raw(2, "size").reshape(-1)]
    if not len(begin) == len(sizes) == len(x.shape):
        raise c.broken(f"it slices {list(x.shape)} from {begin} by {sizes}")
    end = [d if s == -1 else b + s for b, s, d in zip(begin, sizes, x.shape, strict=True)]
    if any(not 0 <= b <= e <= d for b, e, d in zip(begin, end, x.shape, strict=True)):
        raise c.broken(f"it slices {list(x.shape)} from {begin} to {end}")
    value, layout = _sliced(c, x, begin, end, [1] * len(begin))
    c.write(y.index, value, layout)


@_op("STRIDED_SLICE")
def _strided_slice(c: _Converter) -> None:
    x, y = c.operand(0), c.result()
    begin, end, step = (
        [int(n) for n in c.raw(k, what).reshape(-1)]
        for k, what in ((1, "begin"), (2, "end"), (3, "strides"))
    )
    for mask in ("EllipsisMask", "NewAxisMask"):
        if c.option(mask, 0):
            raise c.refuse(f"STRIDED_SLICE ({y.name}) has {mask} {c.option(mask)}, 0 is known")
    if not len(begin) == len(end) == len(step) <= len(x.shape) or 0 in step:
        raise c.broken(f"it slices {list(x.shape)} from {begin} to {end} by {step}")
    masks = {m: int(c.option(f"{m}Mask", 0)) for m in ("Begin", "End", "ShrinkAxis")}
    most = 2**31
    for i, (size, by) in enumerate(zip(x.shape, step, strict=False)):
        if masks["ShrinkAxis"] >> i & 1:
            at = begin[i] + size if begin[i] < 0 else begin[i]
            if not 0 <= at < size:
                raise c.broken(f"it takes index {begin[i]} of an axis of {size}")
            begin[i], end[i], step[i] = at, at + 1, 1
            continue
        if masks["Begin"] >> i & 1:
            begin[i] = 0 if by > 0 else most
        if masks["End"] >> i & 1:
            end[i] = most if by > 0 else -most
    value, layout = _sliced(c, x, begin, end, step)
    if masks["ShrinkAxis"]:
        if layout == NCHW:
            value = c.node("Transpose", [value], "NHWC", perm=TO_NHWC)
        value, layout = c.node("Reshape", [value, c.ints(*y.shape)], "shape"), OWN
    c.write(y.index, value, layout)


@_op("PAD", "PADV2", "MIRROR_PAD")
def _pad(c: _Converter) -> None:
    x, y = c.operand(0), c.result()
    pads = c.raw(1, "paddings").reshape(-1, 2)
    if len(pads) != len(x.shape) or pads.min(initial=0) < 0:
        raise c.broken(f"it pads {list(x.shape)} by {pads.tolist()}")
    layout = c.layout(x)
    order = [int(a) for a in (TO_NCHW if layout == NCHW else range(len(pads)))]
    inputs = [c.read(x.index, layout), c.ints(*(int(p) for p in pads[order].T.reshape(-1)))]
    mode = "constant"
    if c.op.name == "MIRROR_PAD":
        if c.option("Mode") != 0:
            raise c.refuse(f"MIRROR_PAD ({y.name}) repeats the edge (mode SYMMETRIC), ONNX cannot")
        mode = "reflect"
    elif c.op.name == "PADV2":
        c.raw(2, "value")
        inputs.append(c.add_constant(f"{c.name}/value", c.real(c.operand(2)).reshape(())))
    c.write(y.index, c.node("Pad", inputs, mode=mode), layout)


@_op("GATHER")
def _gather(c: _Converter) -> None:
    x, at, y = c.operand(0), c.operand(1), c.result()
    if c.option("BatchDims", 0):
        raise c.refuse(f"GATHER ({y.name}) has {c.option('BatchDims')} batch axes, 0 is known")
    axis = int(c.option("Axis", 0)) % max(1, len(x.shape))
    c.write(y.index, c.node("Gather", [c.read(x.index), c.read(at.index)], axis=axis))


@_op("GATHER_ND")
def _gather_nd(c: _Converter) -> None:
    at = c.read(c.operand(1).index)
    at = c.node("Cast", [at], "indices", to=TensorProto.INT64)
    c.write(c.result().index, c.node("GatherND", [c.read(c.operand(0).index), at]))


@_op("TILE")
def _tile(c: _Converter) -> None:
    repeats = c.ints(*(int(n) for n in c.raw(1, "repeats").reshape(-1)))
    c.write(c.result().index, c.node("Tile", [c.read(c.operand(0).index), repeats]))


@_op("BROADCAST_TO")
def _broadcast_to(c: _Converter) -> None:
    y = c.result()
    c.write(y.index, c.node("Expand", [c.read(c.operand(0).index), c.ints(*y.shape)]))


@_op("SHAPE")
def _shape(c: _Converter) -> None:
    """Shapes are static: a constant."""
    y = c.result()
    c.constants[y.index] = np.array(c.operand(0).shape, y.dtype)


@_op("CAST")
def _cast(c: _Converter) -> None:
    y = c.result()
    kind = helper.np_dtype_to_tensor_dtype(y.dtype)
    value, layout = _one(c)
    c.write(y.index, c.node("Cast", [value], to=kind), layout)


@_op("RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR")
def _resize(c: _Converter) -> None:
    x, y = _image(c), c.result()
    height, width = (int(n) for n in c.raw(1, "size").reshape(-1))
    corners, half = bool(c.option("AlignCorners", False)), bool(c.option("HalfPixelCenters", False))
    linear = c.op.name == "RESIZE_BILINEAR"
    if corners:
        where, rounding = "align_corners", "round_prefer_ceil"
    elif half:
        where, rounding = "half_pixel", "round_prefer_ceil"  # nearest: floor((x + 0.5) * scale)
    else:
        where, rounding = "asymmetric", "floor"
    sizes = c.ints(x.shape[0], x.shape[3], height, width)
    attributes: dict[str, Any] = {} if linear else {"nearest_mode": rounding}
    value = c.node(
        "Resize",
        [c.read(x.index, NCHW), "", "", sizes],
        mode="linear" if linear else "nearest",
        coordinate_transformation_mode=where,
        **attributes,
    )
    c.write(y.index, value, NCHW)


@_op("DEPTH_TO_SPACE", "SPACE_TO_DEPTH")
def _depth_space(c: _Converter) -> None:
    value = c.read(_image(c).index, NCHW)
    kind = "DepthToSpace" if c.op.name == "DEPTH_TO_SPACE" else "SpaceToDepth"
    c.write(c.result().index, c.node(kind, [value], blocksize=int(c.option("BlockSize"))), NCHW)


# -- types


@_op("QUANTIZE")
def _quantize(c: _Converter) -> None:
    value, layout = _one(c)
    y = c.result()
    if not c.coded(y):
        raise c.refuse(f"QUANTIZE ({y.name}) writes {y.dtype.name} without one scale")
    c.write(y.index, c.node("Identity", [value]), layout)


@_op("DEQUANTIZE", "DENSIFY")
def _dequantize(c: _Converter) -> None:
    x, y = c.operand(0), c.result()
    if x.index in c.constants:
        c.constants[y.index] = c.real(x) if c.op.name == "DEQUANTIZE" else c.constants[x.index]
        return
    if c.op.name == "DENSIFY" or not (c.coded(x) or x.dtype.kind == "f"):
        raise c.refuse(f"{c.op.name} ({y.name}) reads {x.name} of type {x.dtype.name}")
    value, layout = _one(c)
    if x.dtype == np.float16:
        value = c.node("Cast", [value], to=TensorProto.FLOAT)
    c.keep(y, layout, value)


# -- variables: state becomes an input and an output


@_op("CALL_ONCE")
def _call_once(c: _Converter) -> None:
    """First values of variables, which the caller of the program gives: `initial_state`."""


@_op("VAR_HANDLE")
def _var_handle(c: _Converter) -> None:
    c.handles[c.result().index] = _shared_name(c.op, c.result())


def _variable(c: _Converter) -> str:
    i = c.operand(0).index
    if i not in c.handles:
        raise c.broken(f"its variable, tensor {i}, has no VAR_HANDLE before it")
    return c.handles[i]


@_op("READ_VARIABLE")
def _read_variable(c: _Converter) -> None:
    variable, y = _variable(c), c.result()
    state = c.variables.get(variable)
    if state is None:
        name = c.fresh(variable)
        if name != variable:
            raise c.broken(f"its variable {variable} has the name of another value")
        c.started[variable] = c.variables[variable] = y.index
        value = name
        if c.coded(y):
            value = c.node("DequantizeLinear", [name, *c.parameters(y)], "state")
        c.write(y.index, value)
        return
    c.write(y.index, c.node("Identity", [c.read(state)]))


@_op("ASSIGN_VARIABLE")
def _assign_variable(c: _Converter) -> None:
    c.variables[_variable(c)] = c.operand(1).index
