"""Break model files in every way, compile them, and compare what runs with onnxruntime.

    python -m fuzz.importer 0:20000          (in tests/)
    python -m fuzz.importer 4711             one seed: the model, what was done to it, the outcome

Models to start from: the node tests of the ``onnx`` package and its small models, pieces of real
models (those that tests/models fetch), and random ones (`fuzz.models`).  What must hold for each
mutant: it compiles, runs on the strict emulator and agrees with onnxruntime; or it is refused by
an NPUError, and onnxruntime or onnx's checker refuse it, too, or the refusal is one of
`DOCUMENTED`.  No other exception, no crash, no warning, no hang.
"""

from __future__ import annotations

import argparse
import collections
import mmap
import os
import random
import resource
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import AttributeProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

import opennpu
from fuzz import models
from opennpu import InferenceSession
from opennpu.errors import NPUError
from opennpu.frontends.onnx import load_model

Array = npt.NDArray[Any]

SECONDS, DEAD_SECONDS = 60, 120  # after the first Python gives up, after the second the process
MEMORY_BYTES = 3 << 30
LARGEST_ELEMENTS = 1 << 20  # of an input
MOST_MACS = 50_000_000  # that the emulator is asked for
PIECE_BYTES = 200_000
FP16_BOUND, INT8_BOUND = 5e-3, 0.05  # of the largest |value|
FP16_MAX = 65504.0
UNSTABLE = ("RandomNormal", "RandomUniform", "Multinomial", "Bernoulli", "Dropout")

DOCUMENTED = {
    "programs take tensors": "sequences and optionals are no program's inputs or outputs",
    "programs take numbers of 8 to 64 bits": "nor strings and sub-byte or 16-bit brain floats",
    "the shape of this output depends on the data": "programs have static shapes",
    "has no shape": "the same for inputs",
    "has the open size": "the same; 0 counts as open, as old exporters write it",
    "lie in another file": "bytes have no folder",
    "knows those up to": "an opset newer than onnx itself",
    "onnx and onnxruntime disagree on the size": "of a pooled output",
    "is not UTF-8": "names are text",
    "codec can't decode": "attributes, too",
    "that are infinite or NaN. Leave that sample out": "calibration data must be numbers",
    "0 outputs": "a model without outputs computes nothing",
}
"""What a mutant may be refused for although onnxruntime runs it, and why."""


@dataclass(frozen=True)
class Base:
    """A sound model, and data for it where it came with some."""

    name: str
    model: ModelProto
    feeds: Mapping[str, Array]


# -- models to start from ---------------------------------------------------------------------


@cache
def bases() -> dict[str, list[Base]]:
    """By source.  Takes half a minute: onnx computes the data of its tests."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = {"node": list(_node_tests()), "small": list(_small_models())}
    found["piece"] = list(_pieces())
    return found


def _node_tests() -> Iterator[Base]:
    from onnx.backend.test.loader import load_model_tests

    for case in load_model_tests(kind="node"):
        if case.model is None or case.model.ByteSize() > 100_000 or not case.data_sets:
            continue
        names = [i.name for i in case.model.graph.input]
        values = zip(names, case.data_sets[0][0], strict=False)
        feeds = {n: v for n, v in values if isinstance(v, np.ndarray)}
        yield Base(case.name, case.model, feeds)


def _small_models() -> Iterator[Base]:
    folder = Path(onnx.__file__).parent / "backend" / "test" / "data"
    for kind in ("simple", "pytorch-operator", "pytorch-converted"):
        for path in sorted((folder / kind).glob("*/model.onnx")):
            if path.stat().st_size > 500_000:
                continue
            model = onnx.load(str(path))
            feeds = {}
            constants = {i.name for i in model.graph.initializer}
            wanted = [i.name for i in model.graph.input if i.name not in constants]
            for name, file in zip(
                wanted, sorted(path.parent.glob("test_data_set_0/input_*.pb")), strict=False
            ):
                tensor = TensorProto()
                try:
                    tensor.ParseFromString(file.read_bytes())
                    feeds[name] = numpy_helper.to_array(tensor)
                except Exception:  # a sequence
                    continue
            yield Base(path.parent.name, model, feeds)


def _pieces() -> Iterator[Base]:
    """Runs of nodes of real models at a small size."""
    sys.path.append(str(Path(__file__).parents[2]))
    from examples.models.fetch import FetchError, fetch

    rng = random.Random(0)
    for name, shape in (
        ("ppocr-cls", (1, 3, 48, 64)),
        ("ppocr-det", (1, 3, 64, 64)),
        ("ddddocr-det", (1, 3, 416, 416)),
    ):
        try:
            model = onnx.load(str(fetch(name)))
        except FetchError:
            continue
        (x,) = model.graph.input
        dims = x.type.tensor_type.shape.dim
        fix = {
            f"{x.name}:{i}": n
            for i, (n, d) in enumerate(zip(shape, dims, strict=True))
            if d.dim_value < 1
        }
        folded = load_model(model, fix_dims=fix).model
        for i in range(150):
            piece = _piece(folded, rng.randrange(len(folded.graph.node)), rng.randint(1, 7))
            if piece is not None:
                yield Base(f"{name} {i}", piece, {})


def _piece(model: ModelProto, first: int, count: int) -> ModelProto | None:
    """``count`` nodes from ``first`` on, if they are small."""
    g = model.graph
    nodes = list(g.node)[first : first + count]
    constants = {i.name: i for i in g.initializer}
    infos = {i.name: i for i in (*g.value_info, *g.input, *g.output)}
    written = {o for n in nodes for o in n.output if o}
    read = dict.fromkeys(i for n in nodes for i in n.input if i)
    outputs = [o for o in written if o not in read] or list(written)
    inputs = [i for i in read if i not in written and i not in constants]
    kept = [constants[i] for i in read if i in constants]
    if any(i not in infos for i in (*inputs, *outputs)):
        return None
    sizes = [
        np.prod([d.dim_value for d in infos[i].type.tensor_type.shape.dim])
        for i in (*inputs, *outputs)
    ]
    if max(sizes, default=0) > 1 << 17 or sum(i.ByteSize() for i in kept) > PIECE_BYTES:
        return None
    graph = helper.make_graph(
        nodes, "piece", [infos[i] for i in inputs], [infos[o] for o in sorted(outputs)], kept
    )
    made = helper.make_model(graph, opset_imports=model.opset_import)
    made.ir_version = min(made.ir_version, 10)
    return made


# -- mutations --------------------------------------------------------------------------------

INTS = (0, 1, -1, 2, 3, 4, 7, 8, 16, 63, 64, 255, 1000, 65536, 2**31 - 1, 2**31, -(2**31))
BIG = (2**62, 2**63 - 1, -(2**63))
FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-8, 1e-45, 6.1e-5, 65504.0, 7e4, 1e30, 3.4e38)
NO_NUMBERS = (float("inf"), float("-inf"), float("nan"))
TYPES = tuple(TensorProto.DataType.values())
TEXTS = ("", "SAME_UPPER", "VALID", "NOTSET", "linear", "nearest", "reflect", "edge", "é\n")
KNOWN = tuple({s.name for s in onnx.defs.get_all_schemas()})
ATTRIBUTES = (
    *("axis", "axes", "pads", "strides", "dilations", "group", "kernel_shape", "auto_pad"),
    *("ceil_mode", "transA", "alpha", "perm", "to", "mode", "keepdims", "count_include_pad"),
)


def _size(rng: random.Random, now: int) -> int:
    return rng.choice((now + 1, now - 1, now * 2, now // 2, *INTS, *(BIG if now else ())))


def _node(model: ModelProto, rng: random.Random) -> NodeProto | None:
    """A node, also one of a subgraph."""
    nodes = list(model.graph.node)
    for n in list(nodes):
        nodes += [m for a in n.attribute if a.HasField("g") for m in a.g.node]
    return rng.choice(nodes) if nodes else None


def _tensors(model: ModelProto) -> list[TensorProto]:
    found = list(model.graph.initializer)
    found += [a.t for n in model.graph.node for a in n.attribute if a.HasField("t")]
    return found


def _names(model: ModelProto) -> list[str]:
    g = model.graph
    found = [n for m in g.node for n in (*m.input, *m.output)]
    found += [i.name for i in (*g.input, *g.output, *g.initializer)]
    return found or [""]


def change_attribute(model: ModelProto, rng: random.Random) -> None:
    node = _node(model, rng)
    if node is None or not node.attribute:
        return
    a = rng.choice(list(node.attribute))
    if a.type == AttributeProto.INT:
        a.i = max(min(_size(rng, a.i), 2**63 - 1), -(2**63))
    elif a.type == AttributeProto.FLOAT:
        a.f = rng.choice((*FLOATS, *NO_NUMBERS, -a.f))
    elif a.type == AttributeProto.STRING:
        a.s = rng.choice((*TEXTS, "\udc80")).encode(errors="surrogateescape")
    elif a.type == AttributeProto.INTS:
        values = list(a.ints)
        at = rng.randrange(len(values) + 1)
        what = rng.randrange(4)
        if what == 0 or not values:
            values.insert(at, rng.choice(INTS))
        elif what == 1:
            del values[at - 1]
        elif what == 2:
            rng.shuffle(values)
        else:
            values[at - 1] = max(min(_size(rng, values[at - 1]), 2**63 - 1), -(2**63))
        del a.ints[:]
        a.ints.extend(values)
    elif a.type == AttributeProto.FLOATS and a.floats:
        a.floats[rng.randrange(len(a.floats))] = rng.choice((*FLOATS, *NO_NUMBERS))


def change_attribute_type(model: ModelProto, rng: random.Random) -> None:
    node = _node(model, rng)
    if node is not None and node.attribute:
        a = rng.choice(list(node.attribute))
        a.type = rng.choice(AttributeProto.AttributeType.values())


def add_attribute(model: ModelProto, rng: random.Random) -> None:
    node = _node(model, rng)
    if node is None:
        return
    name = rng.choice(ATTRIBUTES)
    values = (rng.choice(INTS), [rng.choice(INTS[:8]) for _ in range(rng.randrange(5) + 1)])
    value = rng.choice((*values, rng.choice(FLOATS), rng.choice(TEXTS[1:])))
    node.attribute.append(helper.make_attribute(name, value))


def drop_attribute(model: ModelProto, rng: random.Random) -> None:
    node = _node(model, rng)
    if node is not None and node.attribute:
        del node.attribute[rng.randrange(len(node.attribute))]


def change_shape(model: ModelProto, rng: random.Random) -> None:
    g = model.graph
    infos = [*g.input, *g.input, *g.output, *g.value_info]
    if not infos:
        return
    shape = rng.choice(infos).type.tensor_type.shape
    what = rng.randrange(6)
    if what == 0 or not shape.dim:
        shape.dim.add().dim_value = rng.choice((1, 2, 3))
    elif what == 1:
        del shape.dim[rng.randrange(len(shape.dim))]
    elif what == 2:
        shape.dim[rng.randrange(len(shape.dim))].dim_param = rng.choice(("N", "M", "é"))
    else:
        dim = shape.dim[rng.randrange(len(shape.dim))]
        dim.dim_value = max(min(_size(rng, dim.dim_value), 2**63 - 1), -(2**63))


def change_type(model: ModelProto, rng: random.Random) -> None:
    g = model.graph
    infos = [*g.input, *g.output, *g.value_info]
    if infos:
        rng.choice(infos).type.tensor_type.elem_type = rng.choice(TYPES)


def drop_info(model: ModelProto, rng: random.Random) -> None:
    infos = rng.choice([model.graph.value_info, model.graph.input, model.graph.output])
    if infos:
        i = rng.randrange(len(infos))
        if rng.random() < 0.5:
            del infos[i]
        else:
            infos[i].ClearField("type")


def change_constant(model: ModelProto, rng: random.Random) -> None:
    """Numbers that are none, huge, tiny; all of one value."""
    tensors = _tensors(model)
    if not tensors:
        return
    t = rng.choice(tensors)
    try:
        a = numpy_helper.to_array(t).copy()
    except Exception:
        return
    if not a.size or a.dtype.kind not in "fiu":
        return
    options = (*FLOATS, *NO_NUMBERS) if a.dtype.kind == "f" else (*INTS, *BIG)
    value = rng.choice(options)
    with np.errstate(all="ignore"):
        new = np.asarray(value).astype(a.dtype)
        if rng.random() < 0.3:
            a[...] = new
        elif rng.random() < 0.3 and a.dtype.kind == "f":
            a = (a * rng.choice((1e4, 1e-4, -1.0, 1e8))).astype(a.dtype)
        else:
            a.reshape(-1)[rng.randrange(a.size)] = new
    name = t.name
    t.CopyFrom(numpy_helper.from_array(a, name))


def change_tensor(model: ModelProto, rng: random.Random) -> None:
    """Type, dimensions or bytes that do not fit the others."""
    tensors = _tensors(model)
    if not tensors:
        return
    t = rng.choice(tensors)
    what = rng.randrange(5)
    if what == 0:
        t.data_type = rng.choice(TYPES)
    elif what == 1 and t.dims:
        at = rng.randrange(len(t.dims))
        t.dims[at] = max(min(_size(rng, t.dims[at]), 2**63 - 1), -(2**63))
    elif what == 2:
        t.dims.append(rng.choice((0, 1, 2)))
    elif what == 3 and t.dims:
        del t.dims[rng.randrange(len(t.dims))]
    elif t.raw_data:
        t.raw_data = t.raw_data[: rng.randrange(len(t.raw_data) + 1)]


def drop_node(model: ModelProto, rng: random.Random) -> None:
    if model.graph.node:
        del model.graph.node[rng.randrange(len(model.graph.node))]


def repeat_node(model: ModelProto, rng: random.Random) -> None:
    """Again: as it was, behind its own output, or under another name."""
    if not model.graph.node:
        return
    old = rng.choice(list(model.graph.node))
    new = NodeProto()
    new.CopyFrom(old)
    if rng.random() < 0.7 and new.output and new.input:
        for i in range(len(new.output)):
            new.output[i] += "+"
        if rng.random() < 0.6:
            new.input[0] = old.output[0]
        if rng.random() < 0.8 and model.graph.output:
            info = model.graph.output.add()
            info.CopyFrom(model.graph.output[0])
            info.name = new.output[0]
            if rng.random() < 0.7:
                info.type.tensor_type.ClearField("shape")
    model.graph.node.append(new)


def swap_nodes(model: ModelProto, rng: random.Random) -> None:
    nodes = list(model.graph.node)
    rng.shuffle(nodes)
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def change_operator(model: ModelProto, rng: random.Random) -> None:
    node = _node(model, rng)
    if node is None:
        return
    pool = (*("Relu", "Add", "Mul", "Conv", "MaxPool", "MatMul", "Gemm", "Identity", "Clip"), "Foo")
    node.op_type = rng.choice(pool if rng.random() < 0.6 else KNOWN)


def change_domain(model: ModelProto, rng: random.Random) -> None:
    node = _node(model, rng)
    if node is not None:
        node.domain = rng.choice(("ai.onnx", "com.microsoft", "ai.onnx.ml", "nowhere"))


def rename(model: ModelProto, rng: random.Random) -> None:
    node = _node(model, rng)
    if node is None:
        return
    names = rng.choice([node.input, node.output])
    if names:
        new = rng.choice((*_names(model), "", "a/b:0", "é ✓", "\n"))
        names[rng.randrange(len(names))] = new


def rename_everywhere(model: ModelProto, rng: random.Random) -> None:
    old, new = rng.choice(_names(model)), rng.choice(("a/b:0", "é ✓", "x y", "0", "-", "'\"\\"))
    g = model.graph
    for n in g.node:
        for names in (n.input, n.output):
            for i, name in enumerate(names):
                if name == old:
                    names[i] = new
    for item in (*g.input, *g.output, *g.initializer, *g.value_info):
        if item.name == old:
            item.name = new


def change_inputs(model: ModelProto, rng: random.Random) -> None:
    node = _node(model, rng)
    if node is None:
        return
    inputs = list(node.input)
    what = rng.randrange(4)
    if what == 0:
        inputs.append(rng.choice(_names(model)))
    elif what == 1 and inputs:
        del inputs[rng.randrange(len(inputs))]
    elif what == 2:
        rng.shuffle(inputs)
    elif inputs:
        inputs[rng.randrange(len(inputs))] = rng.choice(inputs)
    del node.input[:]
    node.input.extend(inputs)


def change_outputs(model: ModelProto, rng: random.Random) -> None:
    """Another tensor is an output, or one of them twice, or an input, or a constant."""
    outputs = model.graph.output
    if not outputs:
        return
    what = rng.randrange(3)
    if what == 0:
        del outputs[rng.randrange(len(outputs))]
    elif what == 1:
        outputs.add().CopyFrom(rng.choice(list(outputs)))
    else:
        info = outputs.add()
        info.name = rng.choice(_names(model))
        info.type.tensor_type.elem_type = outputs[0].type.tensor_type.elem_type


def constant_input(model: ModelProto, rng: random.Random) -> None:
    """An input becomes a constant, or a constant an input."""
    g = model.graph
    if g.initializer and rng.random() < 0.6:
        i = rng.choice(list(g.initializer))
        if i.data_type in (TensorProto.FLOAT, TensorProto.INT64):
            g.input.append(helper.make_tensor_value_info(i.name, i.data_type, i.dims))
            if rng.random() < 0.7:
                g.initializer.remove(i)
        return
    if g.input:
        info = rng.choice(list(g.input))
        dims = [d.dim_value for d in info.type.tensor_type.shape.dim]
        if info.type.tensor_type.elem_type == TensorProto.FLOAT and 0 <= np.prod(dims) < 1e5:
            data = np.random.default_rng(rng.randrange(99)).normal(size=dims)
            g.initializer.append(numpy_helper.from_array(data.astype(np.float32), info.name))
            if rng.random() < 0.7:
                g.input.remove(info)


def change_version(model: ModelProto, rng: random.Random) -> None:
    what = rng.randrange(3)
    if what == 0 and model.opset_import:
        rng.choice(list(model.opset_import)).version = rng.choice((*range(1, 27), 0, -1, 99))
    elif what == 1:
        model.ir_version = rng.choice((0, 1, 2, 3, 4, 7, 8, 10, 13, 99, -1))
    else:
        domain = rng.choice(("", "ai.onnx", "ai.onnx.ml", "com.microsoft"))
        model.opset_import.append(helper.make_opsetid(domain, rng.choice((1, 7, 13, 21))))


MUTATIONS: tuple[tuple[Callable[[ModelProto, random.Random], None], int], ...] = (
    (change_attribute, 22),
    (change_attribute_type, 2),
    (add_attribute, 6),
    (drop_attribute, 4),
    (change_shape, 12),
    (change_type, 6),
    (drop_info, 3),
    (change_constant, 14),
    (change_tensor, 6),
    (drop_node, 3),
    (repeat_node, 8),
    (swap_nodes, 1),
    (change_operator, 8),
    (change_domain, 1),
    (rename, 5),
    (rename_everywhere, 3),
    (change_inputs, 8),
    (change_outputs, 5),
    (constant_input, 5),
    (change_version, 6),
)


@dataclass(frozen=True)
class Mutant:
    """What a seed makes."""

    base: str
    done: tuple[str, ...]
    data: bytes
    feeds: Mapping[str, Array]  # of the base: not what it takes
    precision: str
    target: str


def make(seed: int) -> Mutant:
    rng = random.Random(seed)
    kind = rng.choice(("node",) * 4 + ("random",) * 3 + ("piece",) * 2 + ("small",))
    if kind == "random" or not bases()[kind]:
        made = models.make(rng.randrange(1 << 30))
        base = Base("random", made.model, made.feeds)
    else:
        base = rng.choice(bases()[kind])
    model = ModelProto()
    model.CopyFrom(base.model)
    funcs, weights = zip(*MUTATIONS, strict=True)
    names = []
    if rng.random() < 0.9:
        for mutate in rng.choices(funcs, weights, k=1 + min(3, int(rng.expovariate(1.5)))):
            mutate(model, rng)
            names.append(mutate.__name__)
    data = bytearray(model.SerializeToString())
    if not names:
        names.append("bytes")
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(data) or 1)
            what = rng.randrange(4)
            if what == 0:
                del data[at : at + rng.randint(1, 4)]
            elif what == 1:
                data[at:at] = data[at : at + rng.randint(1, 16)]
            elif data:
                data[at] = data[at] ^ 1 << rng.randrange(8) if what == 2 else rng.randrange(256)
    precision = "int8" if rng.random() < 0.15 else "fp16"
    target = rng.choice(("rknpu", "rocket"))
    return Mutant(base.name, tuple(names), bytes(data), base.feeds, precision, target)


# -- data for it ------------------------------------------------------------------------------


def feeds_of(
    model: ModelProto, given: Mapping[str, Array]
) -> tuple[dict[str, Array], dict[str, int]]:
    """(data for every input, sizes of open dimensions).  ValueError where there is none."""
    rng = np.random.default_rng(0)
    constants = {i.name for i in model.graph.initializer}
    feeds, fix = {}, {}
    for info in model.graph.input:
        if info.name in constants or info.name in feeds:
            continue
        t = info.type.tensor_type
        known = given.get(info.name)
        dtype = helper.tensor_dtype_to_np_dtype(t.elem_type)  # KeyError: no such type
        if dtype.kind not in "fiub":
            raise ValueError(dtype)
        shape = []
        for axis, d in enumerate(t.shape.dim):
            size = d.dim_value
            if size < 1 and not (d.HasField("dim_value") and size == 0):
                size = 2
                if known is not None and len(known.shape) == len(t.shape.dim):
                    size = max(1, known.shape[axis])
                size = fix.get(d.dim_param, size) if d.dim_param else size
                fix[d.dim_param or f"{info.name}:{axis}"] = size
            shape.append(size)
        if np.prod([float(n) for n in shape]) > LARGEST_ELEMENTS:
            raise ValueError(shape)
        if known is not None and known.shape == tuple(shape) and known.dtype == dtype:
            feeds[info.name] = known
        elif dtype.kind == "f":
            feeds[info.name] = np.asarray(rng.normal(size=shape)).astype(dtype)
        else:
            feeds[info.name] = rng.integers(0, 2, shape).astype(dtype)
    return feeds, fix


def rounded(
    model: ModelProto, feeds: Mapping[str, Array], rounding: Callable[[Array], Array]
) -> dict[str, Array]:
    """All tensors, node by node in onnxruntime, each rounded as it is written."""
    g = model.graph
    known = {i.name: rounding(numpy_helper.to_array(i)) for i in g.initializer}
    known |= {k: rounding(v) for k, v in feeds.items()}
    for n in g.node:
        reads = dict.fromkeys(i for i in n.input if i)
        captured = [
            i for a in n.attribute if a.HasField("g") for m in a.g.node for i in m.input if i
        ]
        reads |= dict.fromkeys(i for i in captured if i in known)
        outputs = [o for o in n.output if o]
        graph = helper.make_graph(
            [n],
            "one",
            [models.info(i, known[i]) for i in reads],
            [onnx.ValueInfoProto(name=o) for o in outputs],
        )
        one = helper.make_model(graph, opset_imports=model.opset_import, functions=model.functions)
        one.ir_version = model.ir_version
        got = models.session(one).run(outputs, {i: known[i] for i in reads})
        known |= {o: rounding(v) for o, v in zip(outputs, got, strict=True)}
    return known


# -- what must hold ---------------------------------------------------------------------------


class Wrong(AssertionError):
    """opennpu did what it must not."""


def reference(data: bytes, feeds: Mapping[str, Array]) -> list[Array] | str:
    """What onnxruntime gives, or why it refuses."""
    try:
        model = onnx.load_model_from_string(data)
        run = models.session(model)
        return list(run.run(None, dict(feeds)))
    except Exception as e:
        return str(e).split("\n")[0][:200] or type(e).__name__


def check(mutant: Mutant, stage: Callable[[bytes], None] = lambda s: None) -> str:
    """The outcome in a word; raises `Wrong`, or whatever opennpu raises."""
    stage(b"r")
    model = ModelProto()
    feeds: dict[str, Array] = {}
    fix: dict[str, int] = {}
    want: list[Array] | str
    try:
        model.ParseFromString(mutant.data)
        feeds, fix = feeds_of(model, mutant.feeds)
        want = reference(mutant.data, feeds)
    except Exception as e:
        want = f"{type(e).__name__}: {e}"
    stage(b"c")
    more: dict[str, Any] = {"precision": mutant.precision, "target": mutant.target}
    if mutant.precision == "int8":
        more |= {"calibration": [feeds], "calibration_method": "minmax"}
    try:
        program = opennpu.compile(mutant.data, fix_dims=fix, **more)
    except NPUError as e:
        return _refused(mutant, model, str(e), want)
    if isinstance(want, str):
        return "compiled, reference refuses"
    if sum(n["macs"] for n in program.meta["nodes"]) > MOST_MACS:
        return "compiled, too large to run"
    stage(b"e")
    rounding = models.to_half if mutant.precision == "fp16" else models.to_byte
    names = [o.name for o in model.graph.output]
    try:
        with InferenceSession(program, device="emulator") as run:
            got = run.run(None, feeds)
    except NPUError as e:
        if "is beyond fp16" in str(e) or _overflows(model, feeds):
            return "overflow is reported"
        if "bfc_arena" in str(e):
            return "out of memory on the host"
        raise
    stage(b"r")
    problems = _compare(names, got, want, mutant.precision, None, None)
    if problems:
        again = reference(mutant.data, feeds)
        assert not isinstance(again, str)
        if any(n.op_type in UNSTABLE for n in model.graph.node) or not all(
            a is None or np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
            for a, b in zip(want, again, strict=True)
        ):
            return "random"
        try:
            track = rounded(model, feeds, rounding)
            exact = rounded(model, feeds, lambda a: a)
        except Exception as e:
            raise Wrong(f"{problems} (and no bound: {type(e).__name__} {e})") from None
        problems = _compare(names, got, want, mutant.precision, track, exact)
    if problems:
        placed = [f"{n['op']}:{n['where']}" for n in program.meta["nodes"]]
        raise Wrong(f"{problems}; {placed}")
    on_npu = any(n["where"].startswith("NPU") for n in program.meta["nodes"])
    return "agrees on the NPU" if on_npu else "agrees on the host"


def _refused(mutant: Mutant, model: ModelProto, said: str, want: list[Array] | str) -> str:
    if not said.endswith("."):
        raise Wrong(f"a refusal that is no sentence: {said}")
    if isinstance(want, str):
        return "both refuse"
    if any(text in said for text in DOCUMENTED):
        return "refused as documented"
    try:
        onnx.checker.check_model(model)
        onnx.shape_inference.infer_shapes(model, strict_mode=True)
    except Exception:
        return "the checker refuses"
    raise Wrong(f"onnxruntime runs it, refused: {said}")


def _overflows(model: ModelProto, feeds: Mapping[str, Array]) -> bool:
    """Does a tensor leave fp16?"""
    try:
        track = rounded(model, feeds, lambda a: a)
    except Exception:
        return False
    return any(
        a.dtype.kind == "f" and a.size and not np.abs(a).max() <= FP16_MAX for a in track.values()
    )


def _compare(
    names: Sequence[str],
    got: Sequence[Array],
    want: Sequence[Array],
    precision: str,
    track: Mapping[str, Array] | None,
    exact: Mapping[str, Array] | None,
) -> str:
    """What differs, "" if nothing.  ``track`` and ``exact``: what rounding does to each tensor."""
    if len(got) != len(want):
        return f"{len(got)} outputs instead of {len(want)}"
    for name, a, b in zip(names, got, want, strict=True):
        if b is None:  # an optional output without a writer
            continue
        if (a.shape, a.dtype) != (b.shape, b.dtype):
            return f"{name}: {a.dtype}{list(a.shape)} instead of {b.dtype}{list(b.shape)}"
        if np.array_equal(a, b, equal_nan=b.dtype.kind == "f"):
            continue
        allowed = 0.0
        if track is not None and exact is not None and name in track:
            with np.errstate(all="ignore"):
                apart = np.abs(track[name].astype(np.float64) - exact[name].astype(np.float64))
            if not np.isfinite(apart).all():
                continue  # rounding alone makes it infinite or NaN
            allowed = float(apart.max(initial=0))
            if b.dtype.kind != "f" and allowed:
                continue
        if b.dtype.kind != "f":
            return f"{name}: {a.reshape(-1)[:4]} instead of {b.reshape(-1)[:4]}"
        finite = np.isfinite(b)
        if not np.array_equal(a[~finite], b[~finite], equal_nan=True):
            return f"{name}: other infinities or NaNs"
        with np.errstate(all="ignore"):
            x, y = a[finite].astype(np.float64), b[finite].astype(np.float64)
        scale = float(np.abs(y).max(initial=0))
        share, factor = (FP16_BOUND, 8) if precision == "fp16" else (INT8_BOUND, 8)
        bound = share * scale + factor * allowed + (1e-6 if precision == "fp16" else 0.01)
        error = float(np.abs(x - y).max(initial=0))
        if not error <= bound:
            return f"{name}: off by {error:.3g} of {scale:.3g}, {bound:.3g} allowed"
    return ""


def attempt(seed: int, stage: Callable[[bytes], None] = lambda s: None) -> tuple[str, str]:
    """(outcome, what is wrong or "")."""
    try:
        mutant = make(seed)
    except MemoryError:  # a random model may grow large
        return "too large", ""
    try:
        return check(mutant, stage), ""
    except Exception as e:
        where = traceback.extract_tb(e.__traceback__)[-1]
        said = " ".join(str(e).split())[:500]
        return "wrong", (
            f"{seed} [{mutant.base}: {' '.join(mutant.done)}; {mutant.precision}] "
            f"{type(e).__name__}: {said} ({where.filename.rsplit('/', 2)[-1]}:{where.lineno})"
        )


# -- the script -------------------------------------------------------------------------------


def _alarm(number: int, frame: Any) -> None:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # C++ that does not end is killed
    signal.alarm(DEAD_SECONDS - SECONDS)
    raise TimeoutError(f"longer than {SECONDS} s")


def _work(first: int, last: int, at: mmap.mmap, tell: int) -> None:
    """Try the seeds; ``at`` says where it is, in case that it is killed."""
    warnings.simplefilter("error")
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)  # what onnxruntime says about its fall-backs
    os.dup2(null, 2)  # what C++ says when it aborts

    def stage(letter: bytes) -> None:
        at[8:9] = letter

    counts: collections.Counter[str] = collections.Counter()
    for seed in range(first, last):
        at[:8] = seed.to_bytes(8, "little")
        signal.signal(signal.SIGALRM, _alarm)
        signal.alarm(SECONDS)
        outcome, problem = attempt(seed, stage)
        signal.alarm(0)
        counts[outcome] += 1
        if problem:
            os.write(tell, f"{problem}\n".encode(errors="replace"))
    os.write(tell, f"= {dict(counts)!r}\n".encode())


def run(first: int, last: int, chunk: int = 500) -> int:
    """Try seeds in processes of ``chunk``; prints what is wrong.  Returns how many."""
    bases()  # before the fork
    started = time.perf_counter()
    counts: collections.Counter[str] = collections.Counter()
    wrong, at = 0, mmap.mmap(-1, 16)
    todo = [(a, min(a + chunk, last)) for a in range(first, last, chunk)][::-1]
    while todo:
        a, b = todo.pop()
        told = os.memfd_create("told")
        pid = os.fork()
        if not pid:
            try:
                _work(a, b, at, told)
            except BaseException:
                os.write(told, traceback.format_exc().encode())
                os._exit(1)
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        os.lseek(told, 0, os.SEEK_SET)
        with os.fdopen(told) as lines:
            for line in lines:
                if line.startswith("= "):
                    counts.update(eval(line[2:]))
                else:
                    wrong += 1
                    print(line, end="", flush=True)
        if status:
            seed = int.from_bytes(at[:8], "little")
            if at[8:9] == b"r":
                counts["the reference crashes"] += 1
            else:
                wrong += 1
                print(f"{seed} ended the process with status {status}", flush=True)
            todo.append((seed + 1, b))
        rate = (b - first) / (time.perf_counter() - started)
        shown = ", ".join(f"{n} {k}" for k, n in counts.most_common())
        print(f"{b}: {rate:.1f}/s, {wrong} wrong; {shown}", file=sys.stderr, flush=True)
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("seeds", help="FIRST:LAST, or one seed to look at")
    args = parser.parse_args()
    first, colon, last = args.seeds.partition(":")
    if colon:
        return bool(run(int(first), int(last)))
    mutant = make(int(first))
    print(f"{mutant.base}: {', '.join(mutant.done)}; {mutant.precision}, {mutant.target}")
    try:
        model = onnx.load_model_from_string(mutant.data)
        print(onnx.printer.to_text(model)[:5000])
        print("onnxruntime:", str(reference(mutant.data, feeds_of(model, mutant.feeds)[0]))[:500])
    except Exception as e:
        print(e)
    warnings.simplefilter("error")
    print(check(mutant))
    return 0


if __name__ == "__main__":
    sys.exit(main())
