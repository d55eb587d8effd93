"""Random small ONNX models, grown node by node: each is run by onnxruntime as it is added.

A node that onnxruntime refuses is thrown away, so that every model is one that users could have.
Beside the exact value of each tensor two rounded ones grow, as fp16 and as int8 would see it:
they say how far a right answer may be off.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

Array = npt.NDArray[Any]
NEWEST_OPSET = 26  # that this onnxruntime runs
TABLES = ("Sigmoid", "Tanh", "Erf", "Elu", "Selu", "Celu", "Softplus", "Mish", "Gelu")
TABLE_CODE = 2.0**-15  # what fp16 tables count in; their results are never 0
ODD = ("a/b:0", "é ✓", "x y", "v/codes", "n0/weights", "n1/bias", "y/constant", "0", "-", "'\"\\")


@dataclass
class Tensor:
    """A value: exact, and as fp16 and int8 see it."""

    exact: Array
    half: Array
    byte: Array

    @property
    def shape(self) -> tuple[int, ...]:
        return self.exact.shape

    @property
    def floats(self) -> bool:
        return self.exact.dtype.kind == "f"


@dataclass
class Made:
    """A model with data and what must come out."""

    model: onnx.ModelProto
    feeds: dict[str, Array]
    tensors: dict[str, Tensor] = field(repr=False)
    outputs: list[str] = field(default_factory=list)


def to_half(a: Array) -> Array:
    with np.errstate(all="ignore"):
        return a.astype(np.float16).astype(a.dtype) if a.dtype.kind == "f" else a


def to_byte(a: Array) -> Array:
    """Rounded to 255 steps over its range."""
    if a.dtype.kind != "f" or not a.size or not np.isfinite(a).all():
        return a
    wide = a.astype(np.float64)
    step = max(wide.max(), 0.0) - min(wide.min(), 0.0)
    step = step / 255 or 1.0
    return np.asarray(np.rint(wide / step) * step).astype(a.dtype)


def session(model: onnx.ModelProto) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    data = model.SerializeToString()
    return ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])


def info(name: str, a: Array, shape: Sequence[Any] | None = None) -> onnx.ValueInfoProto:
    kind = helper.np_dtype_to_tensor_dtype(a.dtype)
    return helper.make_tensor_value_info(name, kind, a.shape if shape is None else shape)


class Builder:
    """A model under construction."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.opset = int(self.rng.integers(7, NEWEST_OPSET + 1))
        self.dtype = np.dtype(self.pick("f4", "f4", "f4", "f4", "f4", "f4", "f2", "f8"))
        self.odd = self.chance(0.15)
        self.tensors: dict[str, Tensor] = {}
        self.constants: dict[str, Array] = {}
        self.inputs: list[str] = []
        self.nodes: list[onnx.NodeProto] = []
        self.last: list[str] = []

    # -- dice ----------------------------------------------------------------------------

    def pick(self, *options: Any) -> Any:
        return options[int(self.rng.integers(len(options)))]

    def chance(self, p: float) -> bool:
        return bool(self.rng.random() < p)

    def int(self, low: int, high: int) -> int:
        """Both ends included."""
        return int(self.rng.integers(low, high + 1))

    def normal(self, shape: Sequence[int], scale: float = 1.0) -> Array:
        return np.asarray(self.rng.normal(size=tuple(shape)) * scale).astype(self.dtype)

    # -- values --------------------------------------------------------------------------

    def fresh(self) -> str:
        taken = {*self.tensors, *self.constants}
        if self.odd and self.chance(0.5):
            name = str(self.pick(*ODD))
            if name not in taken:
                return name
        k = len(taken)
        while f"t{k}" in taken:
            k += 1
        return f"t{k}"

    def const(self, a: Array) -> str:
        name = self.fresh()
        self.constants[name] = a = np.asarray(a)
        self.tensors[name] = Tensor(a, to_half(a), to_byte(a))
        return name

    def ints(self, *values: int) -> str:
        return self.const(np.array(values, np.int64))

    def input(self, shape: Sequence[int], dtype: Any = None) -> str:
        name = self.fresh()
        kind = np.dtype(dtype or self.dtype)
        a = self.normal(shape) if kind.kind == "f" else self.rng.integers(0, 2, tuple(shape))
        a = a.astype(kind)
        self.tensors[name] = Tensor(a, to_half(a), to_byte(a))
        self.inputs.append(name)
        self.last.append(name)
        return name

    def some(self, ok: Callable[[Tensor], bool] = lambda t: True) -> str | None:
        """A float tensor of the model that fits, mostly a recent one."""
        fits = [n for n in self.last if self.tensors[n].floats and ok(self.tensors[n])]
        fits = [n for n in fits if self.tensors[n].exact.dtype == self.dtype]
        if not fits:
            return None
        return fits[-1] if self.chance(0.6) else str(self.pick(*fits))

    def of_rank(self, *ranks: int) -> str | None:
        return self.some(lambda t: len(t.shape) in ranks and t.exact.size > 0)

    def shape(self, name: str) -> tuple[int, ...]:
        return self.tensors[name].shape

    # -- nodes ---------------------------------------------------------------------------

    def add(self, op: str, inputs: Sequence[str], outputs: int = 1, **attrs: Any) -> list[str]:
        """A node, unless onnxruntime cannot run it or its numbers run away."""
        names = [self.fresh()]
        while len(names) < outputs:
            k = 0
            while f"{names[0]}.{k}" in {*self.tensors, *names}:
                k += 1
            names.append(f"{names[0]}.{k}")
        label = self.pick("", f"n{len(self.nodes)}", f"n{len(self.nodes)}", "same")
        node = helper.make_node(op, list(inputs), names, label, **attrs)
        results = self._run(node)
        if results is None:
            return []
        self.nodes.append(node)
        for name, tensor in zip(names, results, strict=True):
            self.tensors[name] = tensor
            self.last.append(name)
        return names

    def _run(self, node: onnx.NodeProto) -> list[Tensor] | None:
        reads = [i for i in dict.fromkeys(node.input) if i]
        if (
            math.prod(max(1, max(b.shape, default=1)) for b in (self.tensors[i] for i in reads))
            > 4e6
        ):
            return None  # what broadcasts to gigabytes
        graph = helper.make_graph(
            [node],
            "one",
            [info(i, self.tensors[i].exact) for i in reads if i not in self.constants],
            [onnx.ValueInfoProto(name=o) for o in node.output],
            [numpy_helper.from_array(self.constants[i], i) for i in reads if i in self.constants],
        )
        try:
            one = session(self._model(graph))
            names = [i for i in reads if i not in self.constants]
            exact = one.run(None, {i: self.tensors[i].exact for i in names})
            if not all(isinstance(a, np.ndarray) for a in exact):
                return None
            if any(a.dtype.kind == "f" and not _sane(a) for a in exact):
                return None
            half = one.run(None, {i: self.tensors[i].half for i in names})
            byte = one.run(None, {i: self.tensors[i].byte for i in names})
        except Exception:
            return None
        if node.op_type in TABLES:
            half = [h + np.asarray(TABLE_CODE, h.dtype) for h in half]
        return [
            Tensor(e, to_half(h), to_byte(b)) for e, h, b in zip(exact, half, byte, strict=True)
        ]

    def _model(self, graph: onnx.GraphProto, **more: Any) -> onnx.ModelProto:
        ir_version = int(self.rng.integers(4, 10)) if more.pop("final", False) else 9
        opsets = [helper.make_opsetid("", self.opset)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=ir_version, **more)

    def finish(self) -> Made:
        """Choose outputs; make it a model."""
        written = [o for n in self.nodes for o in n.output]
        read = {i for n in self.nodes for i in n.input}
        ends = [o for o in written if o not in read] or written[-1:]
        outputs = [str(self.pick(*ends))] if ends else []
        outputs += [o for o in ends if self.chance(0.5)]
        outputs += [o for o in written if self.chance(0.08)]
        if self.inputs and (not outputs or self.chance(0.04)):
            outputs.append(str(self.pick(*self.inputs)))
        if self.constants and self.chance(0.04):
            outputs.append(str(self.pick(*self.constants)))
        outputs = list(dict.fromkeys(outputs))
        declared = list(self.inputs)
        if self.chance(0.08):
            declared += list(self.constants)  # as IR 3 did
        infos = []
        for o in outputs:
            a = self.tensors[o].exact
            infos.append(info(o, a) if self.chance(0.8) else onnx.ValueInfoProto(name=o))
            if not infos[-1].HasField("type"):
                infos[-1].CopyFrom(info(o, a))
                infos[-1].type.tensor_type.ClearField("shape")
        graph = helper.make_graph(
            self.nodes,
            self.pick("net", "net", ""),
            [info(i, self.tensors[i].exact) for i in declared],
            infos,
            [numpy_helper.from_array(a, n) for n, a in self.constants.items()],
        )
        graph.name = graph.name or "g"
        feeds = {i: self.tensors[i].exact for i in self.inputs}
        return Made(self._model(graph, final=True), feeds, self.tensors, outputs)


def _sane(a: Array) -> bool:
    return bool(np.isfinite(a).all() and np.abs(a).max(initial=0) < 2000)


# -- operators -------------------------------------------------------------------------------


def _window(b: Builder, rank: int, sizes: Sequence[int], pooling: bool) -> dict[str, Any]:
    """Attributes of a window that fits, some left to their defaults."""
    kernel = [min(b.pick(1, 1, 2, 3, 3, 5, 7), s) for s in sizes]
    if b.chance(0.05):
        kernel = [min(b.int(8, 40), s) for s in sizes]
    attrs: dict[str, Any] = {"kernel_shape": kernel}
    if b.chance(0.6):
        attrs["strides"] = [b.pick(1, 1, 2, 2, 3, 4, 8, 9) for _ in range(rank)]
    if b.chance(0.15) and not (pooling and b.opset < 10):
        attrs["dilations"] = [b.pick(1, 2, 3) for _ in range(rank)]
    how = b.pick("none", "pads", "pads", "asymmetric", "SAME_UPPER", "SAME_LOWER", "VALID")
    if how == "pads":
        attrs["pads"] = [k // 2 for k in kernel] * 2
    elif how == "asymmetric":
        most = [max(0, k - 1) for k in kernel] if pooling else [k + 1 for k in kernel]
        attrs["pads"] = [b.int(0, m) for m in (*most, *most)]
    elif how != "none":
        attrs["auto_pad"] = how
    return attrs


def conv(b: Builder) -> None:
    x = b.of_rank(3, 4, 4, 5)
    if x is None:
        return
    shape = b.shape(x)
    rank, channels = len(shape) - 2, shape[1]
    attrs = _window(b, rank, shape[2:], False)
    groups = [g for g in range(1, channels + 1) if channels % g == 0]
    group = b.pick(1, 1, 1, channels, channels, *groups)
    per = b.pick(1, 1, 2, 3) if group == channels else b.pick(1, 2, 5, 8)
    out = group * per if group > 1 else b.pick(1, 3, 8, 16, 17, 32, 40)
    fan = channels // group * int(np.prod(attrs["kernel_shape"]))
    w = b.normal((out, channels // group, *attrs["kernel_shape"]), 1 / np.sqrt(fan))
    if group > 1 or b.chance(0.5):
        attrs["group"] = group
    if b.chance(0.3):
        del attrs["kernel_shape"]
    inputs = [x, b.const(w)]
    if b.chance(0.6):
        inputs.append(b.const(b.normal((out,))) if b.chance(0.9) else "")
    b.add("Conv", inputs, **attrs)


def conv_transpose(b: Builder) -> None:
    x = b.of_rank(3, 4)
    if x is None:
        return
    shape, k = b.shape(x), b.int(1, 4)
    out = b.pick(1, 4, 8)
    w = b.normal((shape[1], out, *[k] * (len(shape) - 2)), 1 / np.sqrt(shape[1] * k))
    attrs: dict[str, Any] = {"strides": [b.int(1, 3)] * (len(shape) - 2)}
    inputs = [x, b.const(w)] + ([b.const(b.normal((out,)))] if b.chance(0.5) else [])
    b.add("ConvTranspose", inputs, **attrs)


def gemm(b: Builder) -> None:
    x = b.of_rank(2)
    if x is None:
        return
    rows, k = b.shape(x)
    attrs: dict[str, Any] = {}
    if b.chance(0.2):
        attrs["transA"] = 1
        rows, k = k, rows
    columns = b.pick(1, 3, rows, 10, 16, 33)
    w = b.normal((k, columns), 1 / np.sqrt(k))
    if b.chance(0.5):
        attrs["transB"] = 1
        w = np.ascontiguousarray(w.T)
    for name in ("alpha", "beta"):
        if b.chance(0.3):
            attrs[name] = b.pick(0.5, -1.0, 2.0, 0.0, 1.0)
    inputs = [x, b.const(w)]
    if b.chance(0.7) or b.opset < 11:
        c = b.pick((columns,), (1,), (), (rows, 1), (1, columns), (rows, columns), (1, 1))
        inputs.append(b.const(b.normal(c)))
    if b.chance(0.15):  # computed weights
        other = b.some(lambda t: len(t.shape) == 2)
        inputs[1] = other or inputs[1]
    b.add("Gemm", inputs, **attrs)


def matmul(b: Builder) -> None:
    x = b.of_rank(1, 2, 3, 3, 4)
    if x is None:
        return
    shape = b.shape(x)
    kind = b.pick("right", "right", "right", "left", "batched", "vector", "both")
    if kind == "left" and len(shape) >= 2:
        m = b.int(1, 20)
        b.add("MatMul", [b.const(b.normal((m, shape[-2]), 1 / np.sqrt(shape[-2]))), x])
        return
    if kind == "both" and len(shape) >= 2:
        b.add("MatMul", [x, *b.add("Transpose", [x], perm=_swapped(len(shape)))][:2])
        return
    k = shape[-1]
    w = {"vector": (k,), "batched": (*shape[:-2], k, 6)}.get(kind, (k, b.pick(1, 8, 17, 32)))
    out = b.add("MatMul", [x, b.const(b.normal(w, 1 / np.sqrt(k)))])
    if out and b.chance(0.5):
        last = b.shape(out[0])[-1:]
        bias = b.const(b.normal(b.pick(last, last, (1, *last), ())))
        b.add("Add", [out[0], bias] if b.chance(0.5) else [bias, out[0]])


def _swapped(rank: int) -> list[int]:
    return [*range(rank - 2), rank - 1, rank - 2]


def elementwise(b: Builder) -> None:
    x = b.some()
    if x is None:
        return
    op = b.pick("Add", "Add", "Mul", "Mul", "Sub", "Div")
    shape = b.shape(x)
    kind = b.pick(
        "same", "same", "scalar", "channel", "element", "last", "broadcast", "self", "one"
    )
    other: str | None = None
    if kind == "same":
        other = b.some(lambda t: t.shape == shape)
    elif kind == "self":
        other = x
    elif kind == "broadcast":
        other = b.some(lambda t: _broadcasts(t.shape, shape))
    if other is None:
        forms: dict[str, tuple[int, ...]] = {
            "scalar": (),
            "one": (1,),
            "element": shape,
            "last": shape[-1:],
            "channel": tuple(n if i == 1 else 1 for i, n in enumerate(shape))[int(b.chance(0.5)) :],
        }
        wider = tuple(b.pick(1, n) for n in shape)
        form = forms.get(kind, wider)
        if b.chance(0.1):
            form = (b.pick(1, 2), *form)
        c = b.normal(form)
        if op == "Div" or b.chance(0.3):
            c = np.asarray(np.abs(c) + 0.5).astype(b.dtype)
        other = b.const(c)
    sides = [x, other] if b.chance(0.7) else [other, x]
    if op == "Div" and np.abs(b.tensors[sides[1]].exact).min(initial=1) < 0.1:
        return
    b.add(op, sides)


def _broadcasts(a: tuple[int, ...], c: tuple[int, ...]) -> bool:
    try:
        return np.broadcast_shapes(a, c) != a or a != c
    except ValueError:
        return False


def clip(b: Builder) -> None:
    x = b.some()
    if x is None:
        return
    low, high = b.pick(
        (0.0, 6.0), (0.0, 1.0), (-1.0, 1.0), (-1.5, -0.5), (0.25, 0.5), (None, 0.5), (-0.5, None),
        (0.0, None), (None, None), (0.0, 0.0), (0.5, -0.5), (-3e38, 0.5), (-70000.0, 70000.0),
        (-1000.0, 1.0), (0.0, 70000.0),
    )  # fmt: skip
    if b.dtype == np.float16:
        low, high = (None if v is None else float(np.clip(v, -6e4, 6e4)) for v in (low, high))
    if b.opset < 11:
        given = {"min": low, "max": high}
        b.add("Clip", [x], **{k: v for k, v in given.items() if v is not None})
        return
    ends = ["" if v is None else b.const(np.array(v, b.dtype)) for v in (low, high)]
    while ends and not ends[-1] and b.chance(0.5):
        ends.pop()
    b.add("Clip", [x, *ends])


def activation(b: Builder) -> None:
    x = b.some()
    if x is None:
        return
    op = b.pick("Relu", "Relu", "Relu", "Sigmoid", "LeakyRelu", "HardSigmoid", "HardSwish", "Tanh")
    op = b.pick(op, op, op, "Elu", "Erf", "Exp", "Abs", "Neg", "Sqrt", "PRelu")
    attrs: dict[str, Any] = {}
    if op in ("LeakyRelu", "HardSigmoid") and b.chance(0.6):
        attrs["alpha"] = b.pick(0.1, 0.3, 1 / 6)
    inputs = [x]
    if op == "PRelu":
        inputs.append(b.const(b.normal((1,))))
    b.add(op, inputs, **attrs)


def pool(b: Builder) -> None:
    x = b.of_rank(3, 4, 4, 5)
    if x is None:
        return
    op = b.pick("MaxPool", "MaxPool", "AveragePool", "AveragePool", "GlobalAveragePool", "GMP")
    if op.startswith("G"):
        b.add("GlobalMaxPool" if op == "GMP" else op, [x])
        return
    sizes = b.shape(x)[2:]
    attrs = _window(b, len(sizes), sizes, True)
    if op == "AveragePool" and b.opset < 19:
        attrs.pop("dilations", None)
    if op == "AveragePool" and b.chance(0.5):
        attrs["count_include_pad"] = b.pick(0, 1)
    if b.chance(0.3) and b.opset >= 10:
        attrs["ceil_mode"] = 1
    outputs = 2 if op == "MaxPool" and b.opset >= 8 and b.chance(0.08) else 1
    b.add(op, [x], outputs, **attrs)


def batchnorm(b: Builder) -> None:
    x = b.of_rank(2, 3, 4)
    if x is None:
        return
    c = (b.shape(x)[1],)
    variance = np.asarray(np.abs(b.normal(c)) + 0.3).astype(b.dtype)
    params = [b.const(a) for a in (b.normal(c), b.normal(c), b.normal(c), variance)]
    b.add("BatchNormalization", [x, *params], **({"epsilon": 1e-3} if b.chance(0.5) else {}))


def concat(b: Builder) -> None:
    x = b.of_rank(1, 2, 3, 4)
    if x is None:
        return
    shape = b.shape(x)
    axis = b.pick(1 if len(shape) > 1 else 0, b.int(0, len(shape) - 1))

    def fits(t: Tensor) -> bool:
        return len(t.shape) == len(shape) and all(
            i == axis or a == c for i, (a, c) in enumerate(zip(t.shape, shape, strict=True))
        )

    names = [x]
    while b.chance(0.7) and len(names) < 4:
        other = b.some(fits)
        if b.chance(0.2) or other is None:
            other = b.const(b.normal(shape))
        names.append(other)
    b.add("Concat", names, axis=axis if b.opset < 11 or b.chance(0.7) else axis - len(shape))


def split(b: Builder) -> None:
    x = b.some(lambda t: len(t.shape) > 1 and max(t.shape) > 1)
    if x is None:
        return
    shape = b.shape(x)
    axis = b.pick(*[i for i, n in enumerate(shape) if n > 1])
    first = b.int(1, shape[axis] - 1)
    sizes = [first, shape[axis] - first]
    if b.opset < 13:
        b.add("Split", [x], 2, axis=axis, split=sizes)
    else:
        b.add("Split", [x, b.ints(*sizes)], 2, axis=axis)


def slicing(b: Builder) -> None:
    x = b.some(lambda t: len(t.shape) > 0)
    if x is None:
        return
    shape = b.shape(x)
    axis = b.int(0, len(shape) - 1)
    start = b.int(0, max(0, shape[axis] - 1))
    end = b.pick(shape[axis], 2**31 - 1, -1, start + 1)
    if b.opset < 10:
        b.add("Slice", [x], axes=[axis], starts=[start], ends=[end])
        return
    inputs = [x, b.ints(start), b.ints(end), b.ints(axis)]
    if b.chance(0.4):
        inputs.append(b.ints(b.pick(1, 2)))
    b.add("Slice", inputs)


def padding(b: Builder) -> None:
    x = b.of_rank(2, 3, 4, 4)
    if x is None:
        return
    rank = len(b.shape(x))
    pads = [0] * (2 * rank)
    for i in range(rank):
        if i >= 2 or b.chance(0.1):
            pads[i], pads[rank + i] = b.int(0, 3), b.int(0, 3)
    if b.chance(0.1):
        pads[-1] = -1
    mode = b.pick("constant", "constant", "constant", "reflect", "edge")
    fill = b.pick(0.0, 0.0, 0.0, 1.0, -np.inf if b.chance(0.2) else -5.0)
    if b.opset < 11:
        b.add("Pad", [x], mode=mode, pads=pads, **({"value": fill} if fill else {}))
        return
    inputs = [x, b.ints(*pads)]
    if mode == "constant" and (fill or b.chance(0.3)):
        inputs.append(b.const(np.array(fill, b.dtype)))
    b.add("Pad", inputs, mode=mode)


def reshape(b: Builder) -> None:
    x = b.some(lambda t: t.exact.size > 0)
    if x is None:
        return
    shape, rank = b.shape(x), len(b.shape(x))
    op = b.pick("Reshape", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Transpose")
    if op == "Reshape":
        rest, parts = b.tensors[x].exact.size, []
        for _ in range(b.int(0, 3)):
            parts.append(b.pick(*[d for d in range(1, rest + 1) if rest % d == 0]))
            rest //= parts[-1]
        new = b.pick(
            [*parts, rest],
            [*parts, -1],
            [*shape[:1], -1],
            [0, -1],
            [*shape[:2], -1],
            [*shape[:1], -1, *shape[-1:]],
        )
        b.add("Reshape", [x, b.ints(*new)])
    elif op == "Flatten":
        b.add("Flatten", [x], **({"axis": b.int(0, rank)} if b.chance(0.4) else {}))
    elif op == "Transpose":
        perm = [int(i) for i in b.rng.permutation(rank)]
        b.add("Transpose", [x], **({"perm": perm} if perm and b.chance(0.8) else {}))
    else:
        ones = [i for i, n in enumerate(shape) if n == 1]
        axes = ones if op == "Squeeze" else [b.int(0, rank)]
        if b.opset < 13:
            b.add(op, [x], **({"axes": axes} if axes else {}))
        else:
            b.add(op, [x, b.ints(*axes)] if axes else [x])


def nothing(b: Builder) -> None:
    x = b.some()
    if x is None:
        return
    op = b.pick("Identity", "Dropout", "Cast", "Identity")
    if op == "Cast":
        kind = b.pick(b.dtype, np.dtype("f4"), np.dtype("f2"), np.dtype("f8"), np.dtype("i4"))
        out = b.add("Cast", [x], to=helper.np_dtype_to_tensor_dtype(kind))
        if out and kind.kind == "f" and b.chance(0.7):
            b.add("Cast", out, to=helper.np_dtype_to_tensor_dtype(b.dtype))
    else:
        b.add(op, [x])


def shapes(b: Builder) -> None:
    """Shape arithmetic, as exporters write it."""
    x = b.of_rank(2, 3, 4)
    if x is None:
        return
    shape = b.add("Shape", [x])
    if not shape:
        return
    dim = b.add("Gather", [shape[0], b.ints(0)], axis=0)
    if dim:
        new = b.add("Concat", [dim[0], b.ints(-1)], axis=0)
        if new:
            b.add("Reshape", [x, new[0]])


def gather(b: Builder) -> None:
    x = b.some(lambda t: len(t.shape) > 0 and t.exact.size > 0)
    if x is None:
        return
    axis = b.int(0, len(b.shape(x)) - 1)
    index = np.array(b.pick(0, [0], [0, 0], [[0]]), np.int64)
    b.add("Gather", [x, b.const(index)], axis=axis)


def reduce(b: Builder) -> None:
    x = b.some(lambda t: len(t.shape) > 0)
    if x is None:
        return
    rank = len(b.shape(x))
    axes = b.pick([rank - 1], [*range(2, rank)] or [0], [0], [-1])
    keep = b.pick(0, 1)
    op = b.pick("ReduceMean", "ReduceMean", "ReduceMax")
    if b.opset < 18:
        b.add(op, [x], axes=axes, keepdims=keep)
    else:
        b.add(op, [x, b.ints(*axes)], keepdims=keep)


def softmax(b: Builder) -> None:
    x = b.some(lambda t: len(t.shape) > 0)
    if x is not None:
        b.add(b.pick("Softmax", "Softmax", "LogSoftmax"), [x], axis=len(b.shape(x)) - 1)


def resize(b: Builder) -> None:
    x = b.of_rank(4)
    if x is None or b.tensors[x].exact.size > 5000:
        return
    scales = b.const(np.array([1, 1, 2, 2], np.float32))
    if b.opset < 9:
        b.add("Upsample", [x], scales=[1.0, 1.0, 2.0, 2.0], mode="nearest")
    elif b.opset == 9:
        b.add("Upsample", [x, scales], mode="nearest")
    elif b.opset == 10:
        b.add("Resize", [x, scales], mode="nearest")
    else:
        b.add("Resize", [x, b.const(np.zeros(0, np.float32)), scales], mode="nearest")


def residual(b: Builder) -> None:
    """Conv, perhaps an activation, and a join with its own input."""
    x = b.of_rank(3, 4, 4)
    if x is None:
        return
    shape = b.shape(x)
    rank, c, k = len(shape) - 2, shape[1], b.pick(1, 3)
    y = x
    for _ in range(b.int(1, 2)):
        w = b.const(b.normal((c, c, *[k] * rank), 1 / np.sqrt(c * k**rank)))
        made = b.add("Conv", [y, w], pads=[k // 2] * (2 * rank))
        if not made:
            return
        y = made[0]
        if b.chance(0.4):
            y = (b.add("Relu", [y]) or [y])[0]
    sides = [x, y] if b.chance(0.5) else [y, x]
    made = b.add(b.pick("Add", "Add", "Add", "Sum", "Sub", "Mul"), sides)
    if made and b.chance(0.6):
        b.add("Relu", made)


def chain(b: Builder) -> None:
    """Affine steps, which the passes fold."""
    x = b.of_rank(2, 3, 4)
    for _ in range(b.int(1, 3)):
        if x is None:
            return
        shape = b.shape(x)
        form = b.pick((), (1,), tuple(n if i == 1 else 1 for i, n in enumerate(shape)))
        c = b.const(np.asarray(np.abs(b.normal(form)) + 0.4).astype(b.dtype))
        op = b.pick("Mul", "Add", "Sub", "Div")
        made = b.add(op, [c, x] if op != "Div" and b.chance(0.3) else [x, c])
        x = made[0] if made else None


def constant(b: Builder) -> None:
    """A Constant node, and one that adds it."""
    x = b.some()
    if x is None:
        return
    a = b.normal(b.shape(x)[-1:])
    made = b.add("Constant", [], value=numpy_helper.from_array(a))
    if made:
        b.add("Add", [x, made[0]])


def choice(b: Builder) -> None:
    """A Where by a bool input, or an If that captures tensors from outside."""
    x = b.some(lambda t: t.exact.size > 0)
    if x is None:
        return
    if b.chance(0.5) and b.opset >= 9:
        flag = b.input(b.shape(x), np.bool_)
        b.add("Where", [flag, x, b.const(b.normal(()))])
        return
    if b.opset < 11:
        return
    kind = helper.np_dtype_to_tensor_dtype(b.dtype)
    arms = [
        helper.make_graph(
            [helper.make_node(op, [x], [f"arm{op}{len(b.nodes)}"])],
            op,
            [],
            [helper.make_tensor_value_info(f"arm{op}{len(b.nodes)}", kind, b.shape(x))],
        )
        for op in ("Relu", "Neg")
    ]
    flag = b.const(np.array(b.chance(0.5))) if b.chance(0.4) else b.input((), np.bool_)
    _captured_if(b, flag, x, arms)


def _captured_if(b: Builder, flag: str, x: str, arms: list[onnx.GraphProto]) -> None:
    name = b.fresh()
    node = helper.make_node("If", [flag], [name], "", then_branch=arms[0], else_branch=arms[1])
    t, yes = b.tensors[x], bool(b.tensors[flag].exact)

    def arm(a: Array) -> Array:
        return np.asarray(np.maximum(a, 0) if yes else -a).astype(a.dtype)

    b.nodes.append(node)
    b.tensors[name] = Tensor(arm(t.exact), arm(t.half), arm(t.byte))
    b.last.append(name)


STEPS: tuple[tuple[Callable[[Builder], None], int], ...] = (
    (conv, 10), (conv_transpose, 1), (gemm, 4), (matmul, 5), (elementwise, 9), (clip, 4),
    (activation, 5), (pool, 5), (batchnorm, 3), (concat, 3), (split, 1), (slicing, 1),
    (padding, 3), (reshape, 6), (nothing, 3), (shapes, 1), (gather, 1), (reduce, 2), (softmax, 1),
    (resize, 1), (residual, 4), (chain, 4), (constant, 1), (choice, 1),
)  # fmt: skip


def first_shape(b: Builder) -> tuple[int, ...]:
    """Shape of an input: mostly an image; also rows, sequences, odd ones, large ones."""
    if b.chance(0.08):
        return tuple(
            b.pick(
                (1, 3, 64, 48),
                (1, 40, 30, 40),
                (2, 64, 28, 28),
                (1, 600, 3, 4),
                (1, 8, 2, 2500),
                (1, 4, 1, 9000),
                (1, 4, 9000, 1),
                (1, 16, 1300),
                (1, 2000),
                (1100, 16),
                (1, 9000),
                (1, 1, 8, 1200),
            )
        )
    n, c = b.pick(1, 1, 1, 2, 3), b.pick(1, 3, 4, 8, 16, 17, 24, 32)
    side = [b.pick(1, 2, 3, 5, 7, 8, 12, 16, 21) for _ in range(2)]
    return tuple(
        b.pick(
            *[(n, c, *side)] * 6,
            *[(n, c, side[0] * side[1])] * 2,
            *[(side[0], c)] * 2,
            (n, side[0], side[1] * 2),
            (n, 2, side[0], c),
            (c,),
            (),
            (n, c, 2, *side),
            (n, c, 1, 300),
            (n, c, 700, 1),
        )
    )


def make(seed: int, steps: int | None = None) -> Made:
    """The model of a seed; fewer ``steps`` give a beginning of it."""
    b = Builder(seed)
    limit = b.int(1, 9)
    shape = first_shape(b)
    b.input(shape)
    if b.chance(0.25):
        b.input(shape if b.chance(0.6) else first_shape(b))
    moves = [m for m, weight in STEPS for _ in range(weight)]
    for _ in range(limit if steps is None else min(steps, limit)):
        b.pick(*moves)(b)
    if b.chance(0.03):
        b.input((2, 2), np.int64)  # nobody reads it
    made = b.finish()
    if not made.outputs:
        made = make(seed + 1_000_000, steps)
    return made


__all__ = ["Made", "Tensor", "TensorProto", "make", "session"]
