"""ONNX model → graph, and graph nodes → ONNX models for the host.

Constants are folded by onnxruntime, which is told not to fuse: the nodes that remain are the
user's, under the user's names, and `opennpu.passes` fuses them in all kinds of models alike.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper, shape_inference

from opennpu.errors import ModelError
from opennpu.frontends import qlinear
from opennpu.ir.graph import OPAQUE, Array, Graph, Node, Value
from opennpu.program import DTYPES

BROKEN = (ValueError, TypeError, KeyError, IndexError, OverflowError)
"""What protobuf and onnx raise, when they come to it, on fields that a parser let through."""

FLOAT_TYPES = frozenset((TensorProto.FLOAT, TensorProto.FLOAT16))
POOLS = ("MaxPool", "AveragePool", "LpPool")
RENAMES = ("Flatten", "Squeeze", "Unsqueeze")
OLDEST_OPSET = 7  # that onnxruntime promises to run; onnx's converter gets older Adds wrong
SOFTMAX_OF_ONE_AXIS = 13  # opset; before, an axis and all behind it were one
MODEL_BYTES = 2**31 - 1  # most that a protobuf message may have
FUSIONS = (
    *("ConvAddFusion", "ConvBNFusion", "ConvMulFusion", "MatMulAddFusion", "Pad_Fusion"),
    *("MatMul_BatchNormalization_Fusion", "GemmSumFusion", "GemmTransposeFusion", "FuseReluClip"),
)
"""Of onnxruntime's basic optimizations, those whose work is ours (and does not keep names)."""
PAIR_MOVES = (
    *("QDQPropagationTransformer", "DoubleQDQPairsRemover", "EnsureUniqueDQForNodeUnit"),
    *("WeightBiasQuantization", "ClipQuantRewrite", "ReluQuantRewrite", "TransposeOptimizer"),
)
"""Those that move quantization pairs about, or make new ones."""


@dataclass(frozen=True)
class Imported:
    """The graph, and the folded ONNX model that it was read from."""

    graph: Graph
    model: onnx.ModelProto
    notes: Mapping[str, Any] = field(default_factory=dict)  # plain data for the program's meta


def load_model(
    source: str | Path | bytes | onnx.ModelProto, *, fix_dims: Mapping[str, int] | None = None
) -> Imported:
    """Read, check, fix dimensions, fold.

    fix_dims: sizes of open dimensions, by symbolic name or as "input:axis".
    Raises ModelError.
    """
    where, model = _parse(source)
    try:
        return _import(where, model, dict(fix_dims or {}))
    except BROKEN as e:
        raise ModelError(where, f"it is broken: {_first_line(e)}", "Export it again") from None


def _import(where: str, model: onnx.ModelProto, fix_dims: dict[str, int]) -> Imported:
    _check_text(where, model)
    _check_opset(where, model)
    _name_nodes(model)
    _drop_default_inputs(model)
    _sort_axes(model)
    for value in model.graph.input:
        kind = value.type.tensor_type
        if value.type.HasField("tensor_type") and not kind.HasField("shape"):
            raise ModelError(where, f"input {value.name} has no shape", "Export it with one")
    tensors = [o.type.tensor_type for o in model.graph.output if o.type.HasField("tensor_type")]
    shapeless = [t for t in tensors if not t.HasField("shape")]
    for t in shapeless:  # onnxruntime infers them, the checker wants to see one
        t.shape.SetInParent()
    try:
        onnx.checker.check_model(model)
    except Exception as e:  # the checker raises several types of its own and of C++
        raise ModelError(where, _first_line(e), "Export the model again") from None
    for t in shapeless:
        t.ClearField("shape")
    _check_tensors(where, model.graph.input, "input")
    _fix_dims(where, model, fix_dims)
    _drop_empty_windows(model)
    _write_out(model)
    qlinear.expand(model, _opset(model))
    said = _forget_shapes(model)
    model = _fold(where, model, said)
    _merge_dequantizers(model)
    _name_nodes(model)
    _check_tensors(where, model.graph.output, "output")
    return Imported(_graph(where, model), model)


def _first_line(e: BaseException) -> str:
    text = " ".join(str(e).split("\n\n")[0].split())
    return (text[:300] or type(e).__name__).rstrip(".")


def _parse(source: str | Path | bytes | onnx.ModelProto) -> tuple[str, onnx.ModelProto]:
    if isinstance(source, onnx.ModelProto):
        copy = onnx.ModelProto()
        copy.CopyFrom(source)
        where = copy.graph.name or "model"
        _check_inline(where, copy)
        return where, copy
    where = "model" if isinstance(source, bytes) else str(source)
    try:
        data = source if isinstance(source, bytes) else Path(source).read_bytes()
    except OSError as e:
        raise ModelError(where, e.strerror or str(e), "Give the path of an ONNX file") from None
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except Exception:  # protobuf's own error type differs between its back ends
        raise ModelError(
            where,
            f"{len(data)} bytes are not an ONNX model: the file is cut off or of another kind",
            "Export or copy it again",
        ) from None
    if not model.graph.node and not model.graph.output:
        raise ModelError(
            where,
            f"{len(data)} bytes hold a model of 0 nodes and 0 outputs, at least 1 output is needed",
            "Give an ONNX file",
        )
    if isinstance(source, bytes):
        _check_inline(where, model)
    else:
        try:
            onnx.load_external_data_for_model(model, str(Path(source).parent))
        except Exception as e:
            raise ModelError(
                where,
                f"its external data cannot be read: {_first_line(e)}",
                "Keep both files together",
            ) from None
    if model.ByteSize() > MODEL_BYTES:
        raise ModelError(
            where,
            f"it has {model.ByteSize()} bytes with its weights, onnx takes {MODEL_BYTES} at most",
            "Split the model, or store its weights in a smaller type",
        )
    return where, model


def _check_inline(where: str, model: onnx.ModelProto) -> None:
    """A model that is not a file has no folder in which its weights could lie."""
    outside = [i for i in model.graph.initializer if i.data_location == TensorProto.EXTERNAL]
    if outside:
        raise ModelError(
            where,
            f"{len(outside)} of its {len(model.graph.initializer)} constants, {outside[0].name} "
            "first, lie in another file",
            "Pass the path of the model, or load the external data into it",
        )


def _check_text(where: str, message: Any) -> None:
    """Names are UTF-8: protobuf hands out other bytes as they are, and fails on them later."""
    for kind, value in message.ListFields():
        if kind.type == kind.TYPE_MESSAGE:
            for item in [value] if hasattr(value, "ListFields") else value:
                _check_text(where, item)
        elif kind.type == kind.TYPE_STRING:
            for text in [value] if isinstance(value, str | bytes) else value:
                if isinstance(text, bytes):
                    shown = f"{kind.name} {text[:40]!r}"
                    raise ModelError(where, f"its {shown} is not UTF-8", "Export or copy it again")


def _opset(model: onnx.ModelProto) -> int:
    """Version of ONNX's own operators."""
    return max((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), default=1)


def _check_opset(where: str, model: onnx.ModelProto) -> None:
    opset, newest = _opset(model), onnx.defs.onnx_opset_version()
    if opset > newest:
        raise ModelError(
            where,
            f"its opset is {opset}, onnx {onnx.__version__} knows those up to {newest}",
            "Update onnx and onnxruntime, or export with an older opset",
        )


def _check_tensors(where: str, infos: Iterable[onnx.ValueInfoProto], kind: str) -> None:
    """Inputs and outputs of a program are tensors of numbers, and outputs have static shapes."""
    for info in infos:
        if not info.type.HasField("tensor_type"):
            what = info.type.WhichOneof("value") or "value without a type"
            raise ModelError(
                info.name,
                f"this {kind} of {where} is a {what.removesuffix('_type')}, programs take tensors",
                "Cut the model where it is a tensor",
            )
        tensor = info.type.tensor_type
        if _numbers(tensor.elem_type) is None:
            name = TensorProto.DataType.Name(tensor.elem_type)
            raise ModelError(
                info.name,
                f"this {kind} of {where} is of type {name}, programs take numbers of 8 to 64 bits",
                "Cut the model where it is a tensor of numbers",
            )
        if kind == "output" and _value(info).dtype == OPAQUE:
            dims = [d.dim_value if d.HasField("dim_value") else "?" for d in tensor.shape.dim]
            raise ModelError(
                info.name,
                f"the shape of this output depends on the data: {', '.join(map(str, dims)) or '?'}",
                "Cut the model before the node that makes it so (NonZero, NonMaxSuppression, …)",
            )


def _numbers(elem_type: int) -> str | None:
    """NumPy name of an element type that programs can take, else None."""
    try:
        name = helper.tensor_dtype_to_np_dtype(elem_type).name
    except (KeyError, TypeError):
        return None
    return name if name in DTYPES else None


def _compute_constant_outputs(model: onnx.ModelProto) -> None:
    """An output that folding made a constant is written by a node of its own again."""
    outputs = {o.name: o for o in model.graph.output}
    for constant in model.graph.initializer:
        if constant.name in outputs:
            shape = outputs[constant.name].type.tensor_type.shape
            shape.SetInParent()
            del shape.dim[:]
            for size in constant.dims:
                shape.dim.add().dim_value = size
            name, constant.name = constant.name, f"{constant.name}/constant"
            _rename(model.graph.node, {name: constant.name})
            model.graph.node.append(helper.make_node("Identity", [constant.name], [name]))


def _rename(nodes: Iterable[onnx.NodeProto], names: Mapping[str, str]) -> None:
    """Change what nodes read, those of their subgraphs included."""
    for n in nodes:
        for i, name in enumerate(n.input):
            n.input[i] = names.get(name, name)
        for g in _subgraphs(n):
            inside = {i.name for i in (*g.input, *g.initializer)}
            inside |= {o for m in g.node for o in m.output}
            _rename(g.node, {k: v for k, v in names.items() if k not in inside})


def _unshadow(graph: onnx.GraphProto, taken: set[str]) -> None:
    """Names that subgraphs write again are changed there: onnxruntime's casts repeat them."""
    taken = taken | {o for n in graph.node for o in n.output}
    for n in graph.node:
        for k, g in enumerate(_subgraphs(n)):
            again = {o: f"{n.name}/{k}/{o}" for m in g.node for o in m.output if o in taken}
            _rename(g.node, again)
            for m in g.node:
                for i, o in enumerate(m.output):
                    m.output[i] = again.get(o, o)
            for info in (*g.output, *g.value_info):
                info.name = again.get(info.name, info.name)
            _unshadow(g, taken)


def _name_nodes(model: onnx.ModelProto) -> None:
    """Every node gets a name of its own; the user's names stay."""
    seen: set[str] = set()
    for i, node in enumerate(model.graph.node):
        name = node.name or f"{node.op_type}_{i}"
        unique, k = name, 1
        while unique in seen:
            unique, k = f"{name}_{k}", k + 1
        seen.add(unique)
        node.name = unique


WRITTEN_OUT: Mapping[str, Sequence[tuple[str, Mapping[str, Any]]]] = {
    "HardSwish": (("HardSigmoid", {"alpha": 1 / 6, "beta": 0.5}),),
    "Mish": (("Softplus", {}), ("Tanh", {})),
    "Swish": (("Sigmoid", {}),),
}
"""Products of x with these functions of it, which onnxruntime has no kernels of."""


def _write_out(model: onnx.ModelProto) -> None:
    """What onnxruntime would, under names of its own: here the last node keeps the user's name."""
    taken = {v for n in model.graph.node for v in (*n.input, *n.output)}
    nodes: list[onnx.NodeProto] = []
    for n in model.graph.node:
        steps = () if n.domain not in ("", "ai.onnx") else WRITTEN_OUT.get(n.op_type, ())
        if not steps or _attribute(n, "alpha", 1.0) != 1.0 or len(n.output) != 1:
            nodes.append(n)
            continue
        at = n.input[0]
        for op, attributes in steps:
            out = f"{n.output[0]}/{op}"
            while out in taken:
                out += "_"
            taken.add(out)
            nodes.append(helper.make_node(op, [at], [out], f"{n.name}/{op}", **attributes))
            at = out
        nodes.append(helper.make_node("Mul", [n.input[0], at], list(n.output), n.name))
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def _sort_axes(model: onnx.ModelProto) -> None:
    """Axes of Squeeze in order: onnx infers a wrong shape from others before opset 13."""
    for n in model.graph.node:
        axes = next((a for a in n.attribute if a.name == "axes"), None)
        if n.op_type == "Squeeze" and axes is not None:
            axes.ints[:] = sorted(axes.ints)


def _drop_default_inputs(model: onnx.ModelProto) -> None:
    """Inputs with an initializer are constants: what IR 3 demanded, and later IRs call defaults."""
    constants = {i.name for i in model.graph.initializer}
    inputs = [i for i in model.graph.input if i.name not in constants]
    del model.graph.input[:]
    model.graph.input.extend(inputs)
    model.ir_version = max(model.ir_version, 4)


def _fix_dims(where: str, model: onnx.ModelProto, fix: dict[str, int]) -> None:
    used: set[str] = set()
    known: set[str] = set()
    for value in model.graph.input:
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if dim.HasField("dim_value") and dim.dim_value > 0:
                continue
            names = [n for n in (f"{value.name}:{axis}", dim.dim_param) if n]
            name = next((n for n in names if n in fix), None)
            if name is None and dim.HasField("dim_value") and dim.dim_value == 0:
                continue  # an empty tensor, unless the user knows better
            known.update(names)
            if name is None:
                label = dim.dim_param or f"{value.name}:{axis}"
                raise ModelError(
                    value.name,
                    f"axis {axis} has the open size {dim.dim_param or '?'!r}, "
                    "a program needs a number",
                    f"Fix it with fix_dims={{{label!r}: 1}} or --fix-dim {label}=1",
                )
            if int(fix[name]) < 1:
                raise ModelError(
                    value.name,
                    f"axis {axis} is fixed to {fix[name]}, the least is 1",
                    "Give a size",
                )
            used.add(name)
            dim.dim_value = int(fix[name])
    for name in fix:
        if name not in used:
            raise ModelError(
                where,
                f"has no open dimension {name!r}, of {len(known)} open ones",
                f"Use one of {sorted(known)}" if known else "Drop fix_dims",
            )


def _forget_shapes(model: onnx.ModelProto) -> dict[str, onnx.TypeProto]:
    """Take away what the file says about values that nodes write: inference finds it anew.

    onnxruntime warns and goes on where a file is wrong about them, so nobody notices.  Returns
    what is static of it, by name, for values that no inference knows.
    """
    said: dict[str, onnx.TypeProto] = {}
    for value in (*model.graph.value_info, *model.graph.output):
        kept = onnx.TypeProto()
        kept.CopyFrom(value.type)
        tensor = kept.tensor_type
        static = tensor.HasField("shape") and all(
            d.HasField("dim_value") and d.dim_value >= 0 for d in tensor.shape.dim
        )
        if static or not kept.HasField("tensor_type"):
            said[value.name] = kept
    del model.graph.value_info[:]
    for value in model.graph.output:
        if value.type.HasField("tensor_type"):
            value.type.tensor_type.ClearField("shape")
    return said


def _infer(where: str, model: onnx.ModelProto, said: Mapping[str, onnx.TypeProto]) -> None:
    """Shapes of all values in place, by onnx, onnxruntime, and where both know none, the file."""
    for last in (False, True):
        try:
            model.CopyFrom(shape_inference.infer_shapes(model, data_prop=True))
        except Exception as e:
            raise ModelError(
                where, f"its shapes do not fit: {_first_line(e)}", "Export it again"
            ) from None
        _ask_onnxruntime(model)
        if last:
            return
        infos = {i.name: i for i in (*model.graph.value_info, *model.graph.output)}
        known = {n for n, i in infos.items() if _value(i).dtype != OPAQUE}
        written = {o for n in model.graph.node for o in n.output if o}
        missing = [n for n in said if n in written and n not in known]
        for name in missing:
            info = infos.get(name)
            if info is None:
                info = model.graph.value_info.add()
                info.name = name
            info.type.CopyFrom(said[name])
        if not missing:
            return


def _drop_empty_windows(model: onnx.ModelProto) -> None:
    """Pools in ceil mode whose last window would begin behind the image lose that window.

    onnxruntime leaves it out, onnx's shape inference does not; floor mode says it to both.
    Raises ModelError where nothing says the same to both.
    """
    pools = []
    for n in model.graph.node:
        if n.op_type not in POOLS:
            continue
        ceil, dilations = _attribute(n, "ceil_mode", 0), _attribute(n, "dilations", [1])
        same = _attribute(n, "auto_pad", b"NOTSET").startswith(b"SAME")
        if same and (ceil or max(dilations, default=1) > 1):
            raise ModelError(
                n.name,
                f"{n.op_type} has auto_pad SAME with ceil_mode={ceil} and dilations {dilations}: "
                "onnx and onnxruntime disagree on the size",
                "Export it with the pads spelled out",
            )
        if ceil:
            pools.append(n)
    while pools:
        bare = onnx.ModelProto()
        bare.CopyFrom(model)
        del bare.graph.value_info[:]
        for o in bare.graph.output:
            o.type.tensor_type.ClearField("shape")
        try:
            bare = shape_inference.infer_shapes(bare, data_prop=True)
        except Exception:  # `_fold` says what is wrong
            return
        infos = (*bare.graph.value_info, *bare.graph.output, *bare.graph.input)
        shapes = {i.name: _value(i).shape for i in infos}
        late = next(
            (n for n in pools if _without_empty_window(n, shapes.get(n.input[0], ()))), None
        )
        if late is None:
            return
        pools.remove(late)  # shapes behind it are others now


def _attribute(n: onnx.NodeProto, name: str, default: Any) -> Any:
    return next((helper.get_attribute_value(a) for a in n.attribute if a.name == name), default)


def _set_attributes(n: onnx.NodeProto, **changes: Any) -> None:
    """Change attributes of a node; those that it has not stay away where they say nothing."""
    kept = [a for a in n.attribute if a.name not in changes]
    there = {a.name for a in n.attribute}
    del n.attribute[:]
    n.attribute.extend(kept)
    n.attribute.extend(
        helper.make_attribute(k, v) for k, v in changes.items() if k in there or np.any(v)
    )


def _without_empty_window(n: onnx.NodeProto, shape: tuple[int, ...]) -> bool:
    """Put a pool of that kind into floor mode; False if it is of another.  Raises ModelError."""
    kernel = _attribute(n, "kernel_shape", [])
    rank = len(kernel)
    if len(shape) != rank + 2:
        return False
    strides, dilations = (_attribute(n, a, [1] * rank) for a in ("strides", "dilations"))
    pads = list(_attribute(n, "pads", [0] * 2 * rank))
    empty: list[tuple[int, int]] = []  # axes that lose a window, with the rest
    full: list[tuple[int, int]] = []  # axes that keep an incomplete one
    for i, (size, k, step) in enumerate(zip(shape[2:], kernel, strides, strict=True)):
        steps, rest = divmod(size + pads[i] + pads[rank + i] - (k - 1) * dilations[i] - 1, step)
        if rest:
            late = (steps + 1) * step >= size + pads[i]
            (empty if late else full).append((i, rest))
    if not empty:
        return False
    if full:  # ceil mode stays: less padding on the axes that lose a window
        for i, rest in empty:
            pads[rank + i] -= rest
        if min(pads) < 0:
            raise ModelError(
                n.name,
                f"in ceil mode its last window begins behind the image of {list(shape[2:])} on "
                f"{len(empty)} of {rank} axes: onnx and onnxruntime disagree on the size",
                "Export it with ceil_mode=0 and the pads spelled out",
            )
    _set_attributes(n, pads=pads, ceil_mode=int(bool(full)))
    return True


def _merge_dequantizers(model: onnx.ModelProto) -> None:
    """Of several DequantizeLinear of the same tensor, all but the first go."""
    first: dict[tuple[str, ...], str] = {}
    rename: dict[str, str] = {}
    outputs = {o.name for o in model.graph.output}
    kept = []
    for node in model.graph.node:
        _rename([node], rename)
        if node.op_type == "DequantizeLinear" and node.output[0] not in outputs:
            key = (*node.input, str(sorted(a.SerializeToString() for a in node.attribute)))
            if key in first:
                rename[node.output[0]] = first[key]
                continue
            first[key] = node.output[0]
        kept.append(node)
    if rename:
        del model.graph.node[:]
        model.graph.node.extend(kept)


def _fold(
    where: str, model: onnx.ModelProto, said: Mapping[str, onnx.TypeProto]
) -> onnx.ModelProto:
    """Constants folded and shapes inferred, ``said`` where nobody infers them.

    Models with operators that onnxruntime does not know are folded by onnxscript, which skips
    them; it would fold the weights of quantized models too, so those stay as they are.
    """
    quantized = any(n.op_type in ("QuantizeLinear", "DequantizeLinear") for n in model.graph.node)
    foreign = any(n.domain not in ("", "ai.onnx") for n in model.graph.node)
    try:
        model = _ort_fold(where, model, quantized)
    except ModelError:
        if not foreign:
            raise
        model = model if quantized else _onnxscript_fold(model)
    _compute_constant_outputs(model)  # inference takes no values from constants that are outputs
    _infer(where, model, said)
    inputs = {i.name: i for i in model.graph.input}
    for o in model.graph.output:
        if o.name in inputs:  # an output that is an input: inference looks at nodes only
            o.type.CopyFrom(inputs[o.name].type)
    return model


def _ask_onnxruntime(model: onnx.ModelProto) -> None:
    """Add shapes that onnx does not infer, such as those behind onnxruntime's own operators."""
    import onnxruntime as ort

    infos = (*model.graph.value_info, *model.graph.input, *model.graph.output)
    known = {
        i.name
        for i in infos
        if not i.type.HasField("tensor_type") or i.type.tensor_type.HasField("shape")
    }
    unknown = [o for n in model.graph.node for o in n.output if o and o not in known]
    if not unknown:
        return
    asking = onnx.ModelProto()
    asking.CopyFrom(model)
    outputs = {o.name: o for o in model.graph.output}
    for name in unknown:
        if name not in outputs:
            asking.graph.output.add().name = name
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        session = ort.InferenceSession(
            asking.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
    except Exception:  # it does not know the operator either: the value stays opaque
        return
    for o in session.get_outputs():
        kind = o.type.removeprefix("tensor(").removesuffix(")")
        kind = {"float": "float32", "double": "float64"}.get(kind, kind)
        static = o.shape and all(type(d) is int for d in o.shape)  # [] may mean unknown
        if o.name in unknown and kind in DTYPES and static:
            elem_type = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
            info = helper.make_tensor_value_info(o.name, elem_type, o.shape)
            if o.name in outputs:
                outputs[o.name].type.CopyFrom(info.type)
            else:
                model.graph.value_info.append(info)


def _onnxscript_fold(model: onnx.ModelProto) -> onnx.ModelProto:
    from onnxscript import optimizer

    folded = optimizer.optimize(model)
    return folded if isinstance(folded, onnx.ModelProto) else model


def _ort_fold(where: str, model: onnx.ModelProto, quantized: bool) -> onnx.ModelProto:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "folded.onnx")
        options.optimized_model_filepath = path
        try:
            ort.InferenceSession(
                model.SerializeToString(),
                options,
                providers=["CPUExecutionProvider"],
                disabled_optimizers=[*FUSIONS, *(PAIR_MOVES if quantized else ())],
            )
        except Exception as e:
            opset = _opset(model)
            remedy = "Export the model again"
            if opset < OLDEST_OPSET:
                remedy += f" with opset {OLDEST_OPSET} or newer, this has {opset}"
            raise ModelError(where, f"onnxruntime refuses it: {_first_line(e)}", remedy) from None
        folded = onnx.load(path)
    _unshadow(folded.graph, {i.name for i in (*folded.graph.input, *folded.graph.initializer)})
    _cast_constants(folded)
    # onnxruntime imports every domain it knows; keep those that nodes use
    used = {n.domain for n in folded.graph.node} | {""}
    opsets = [o for o in folded.opset_import if o.domain in used]
    del folded.opset_import[:]
    folded.opset_import.extend(opsets)
    return folded


def _cast_constants(model: onnx.ModelProto) -> None:
    """Casts of float constants are done: onnxruntime adds them to fp16 models after it folded."""
    constants = {i.name: i for i in model.graph.initializer}
    outputs = {o.name for o in model.graph.output}
    kept = []
    for n in model.graph.node:
        constant = constants.get(n.input[0]) if n.op_type == "Cast" and not n.domain else None
        kinds = (_attribute(n, "to", 0), constant.data_type if constant else 0)
        if constant is None or n.output[0] in outputs or not FLOAT_TYPES.issuperset(kinds):
            kept.append(n)
            continue
        with np.errstate(over="ignore"):  # as the node itself would
            a = numpy_helper.to_array(constant).astype(helper.tensor_dtype_to_np_dtype(kinds[0]))
        model.graph.initializer.append(numpy_helper.from_array(a, n.output[0]))
    del model.graph.node[:]
    model.graph.node.extend(kept)


# -- ONNX graph → ir.Graph -------------------------------------------------------------------


def _graph(where: str, model: onnx.ModelProto) -> Graph:
    g = model.graph
    constants: dict[str, Array] = {i.name: numpy_helper.to_array(i) for i in g.initializer}
    values: dict[str, Value] = {}
    for info in (*g.value_info, *g.input, *g.output):
        _check_positive(info)
        values[info.name] = _value(info)
    nodes: list[Node] = []
    outputs = tuple(o.name for o in g.output)
    for n in g.node:
        constant = _constant(n)
        if constant is not None and n.output[0] not in outputs:
            constants[n.output[0]] = constant
    for name, a in constants.items():
        values[name] = Value(name, a.shape, _dtype_name(a.dtype))
    for n in g.node:
        if len(n.output) == 1 and n.output[0] in constants:
            continue
        nodes.append(_node(n, values, constants))
        if n.op_type == "Softmax" and not n.domain and _opset(model) < SOFTMAX_OF_ONE_AXIS:
            nodes[-1] = _coerced(nodes[-1], values[n.input[0]])
        for o in n.output:
            values.setdefault(o, Value(o, (), OPAQUE))
    inputs = tuple(i.name for i in g.input if i.name not in constants)
    missing = [(n.name, i) for n in nodes for i in n.inputs if i and i not in values]
    if missing:
        node, name = missing[0]
        raise ModelError(node, f"reads {name}, which nothing writes", "Export the model again")
    return Graph(g.name or where, tuple(nodes), values, constants, inputs, outputs)


def _constant(n: onnx.NodeProto) -> Array | None:
    """What a Constant node holds, if it is a dense tensor of numbers."""
    if n.op_type != "Constant" or n.domain not in ("", "ai.onnx"):
        return None
    a = n.attribute[0]
    if a.name == "value":
        return np.asarray(numpy_helper.to_array(a.t))
    kinds = {"value_float": "f4", "value_floats": "f4", "value_int": "i8", "value_ints": "i8"}
    kind = kinds.get(a.name)
    return None if kind is None else np.asarray(helper.get_attribute_value(a), kind)


def _dtype_name(dtype: np.dtype[Any]) -> str:
    return dtype.name


def _check_positive(info: onnx.ValueInfoProto) -> None:
    """Windows larger than what they slide over infer to negative sizes."""
    shape = [d.dim_value for d in info.type.tensor_type.shape.dim if d.HasField("dim_value")]
    if min(shape, default=0) < 0:
        raise ModelError(
            info.name, f"this value would have the size {shape}", "Export the model again"
        )


def _value(info: onnx.ValueInfoProto) -> Value:
    if not info.type.HasField("tensor_type"):
        return Value(info.name, (), OPAQUE)
    tensor = info.type.tensor_type
    dims = [d.dim_value if d.HasField("dim_value") else -1 for d in tensor.shape.dim]
    try:
        dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type).name
    except (KeyError, TypeError):
        return Value(info.name, (), OPAQUE)
    if not tensor.HasField("shape") or -1 in dims:
        return Value(info.name, (), OPAQUE)
    return Value(info.name, tuple(dims), dtype)


def _node(n: onnx.NodeProto, values: Mapping[str, Value], constants: Mapping[str, Array]) -> Node:
    attrs: dict[str, Any] = {}
    inputs = list(n.input)
    for a in n.attribute:
        if a.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS):
            graphs = [a.g] if a.type == onnx.AttributeProto.GRAPH else list(a.graphs)
            inputs += [v for v in _captured(graphs) if v not in inputs]
            attrs[a.name] = OPAQUE
            continue
        v = helper.get_attribute_value(a)
        attrs[a.name] = (
            tuple(v) if isinstance(v, list) else v.decode() if isinstance(v, bytes) else v
        )
    op = n.op_type
    if op == "Conv" or op in POOLS:
        _explicit_window(op, attrs, inputs, n.output, values)
        _check_window(n.name, op, attrs, inputs, values)
    if op == "Reshape":
        _check_reshape(n.name, values.get(inputs[0]), values.get(n.output[0]))
    if op == "Transpose":
        _check_permutation(n.name, attrs, values.get(inputs[0]))
    if op == "BatchNormalization":
        _check_normalization(n.name, inputs, values)
    if op == "Reshape" or op in RENAMES:
        attrs = {**attrs, "shape": values[n.output[0]].shape} if n.output[0] in values else attrs
    domain = "" if n.domain == "ai.onnx" else n.domain
    return Node(n.name, op, tuple(inputs), tuple(n.output), attrs, (), (n.name,), domain)


def _coerced(node: Node, x: Value) -> Node:
    """Softmax of old: over its axis, by default 1, and all behind it together."""
    axis = int(node.attrs.get("axis", 1)) % max(1, len(x.shape))
    alone = all(size == 1 for size in x.shape[axis + 1 :])
    return node.with_(attrs={**node.attrs, "axis": axis, **({} if alone else {"coerced": 1})})


def _subgraphs(n: onnx.NodeProto) -> list[onnx.GraphProto]:
    return [s for a in n.attribute for s in ([a.g] if a.HasField("g") else list(a.graphs))]


def _captured(graphs: Iterable[onnx.GraphProto]) -> list[str]:
    """Values of the outside that subgraphs read."""
    names: list[str] = []
    for g in graphs:
        inside = {i.name for i in (*g.input, *g.initializer)}
        inside |= {o for n in g.node for o in n.output}
        for n in g.node:
            names += [v for v in (*n.input, *_captured(_subgraphs(n))) if v and v not in inside]
        names += [o.name for o in g.output if o.name not in inside]
    return list(dict.fromkeys(names))


def _explicit_window(
    op: str,
    attrs: dict[str, Any],
    inputs: Sequence[str],
    outputs: Sequence[str],
    values: Mapping[str, Value],
) -> None:
    """kernel_shape, strides, dilations and pads spelled out; auto_pad resolved."""
    if op == "Conv":
        w = values.get(inputs[1])
        if w is None or len(w.shape) < 3:
            return
        attrs.setdefault("kernel_shape", w.shape[2:])
        attrs.setdefault("group", 1)
    kernel = attrs["kernel_shape"]
    rank = len(kernel)
    strides = attrs.setdefault("strides", (1,) * rank)
    dilations = attrs.setdefault("dilations", (1,) * rank)
    auto = attrs.pop("auto_pad", "NOTSET")
    if auto == "VALID":
        attrs["pads"] = (0,) * (2 * rank)
    x, y = values.get(inputs[0]), values.get(outputs[0])
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        if x is None or y is None or len(x.shape) != rank + 2 or len(y.shape) != rank + 2:
            return
        before, after = [], []
        for i in range(rank):
            span = (kernel[i] - 1) * dilations[i] + 1
            # negative where steps leave a rest: onnxruntime then crops, by a rule of its own
            total = (y.shape[2 + i] - 1) * strides[i] + span - x.shape[2 + i]
            small, large = total // 2, total - total // 2
            before.append(small if auto == "SAME_UPPER" else large)
            after.append(large if auto == "SAME_UPPER" else small)
        attrs["pads"] = (*before, *after)
    else:
        attrs.setdefault("pads", (0,) * (2 * rank))


def _check_window(
    name: str, op: str, attrs: Mapping[str, Any], inputs: Sequence[str], values: Mapping[str, Value]
) -> None:
    """Sizes are positive and agree: onnxruntime looks at them when it runs, we do before."""
    remedy = "Export the model again"
    for key in ("kernel_shape", "strides", "dilations"):
        if len(attrs[key]) != len(attrs["kernel_shape"]) or min(attrs[key], default=1) < 1:
            raise ModelError(name, f"{op} has {key}={list(attrs[key])}", remedy)
    if op == "Conv":
        x, w, group = values.get(inputs[0]), values[inputs[1]], int(attrs["group"])
        if group < 1 or w.shape[0] % group:
            raise ModelError(name, f"{op} has {w.shape[0]} filters in {group} groups", remedy)
        if x is not None and len(x.shape) > 1 and x.shape[1] != w.shape[1] * group:
            raise ModelError(
                name,
                f"{op} reads {x.shape[1]} channels, its filters take {w.shape[1]} in each of "
                f"{group} groups",
                remedy,
            )
        bias = values.get(inputs[2]) if len(inputs) > 2 else None
        if bias is not None and bias.dtype != OPAQUE and bias.shape != w.shape[:1]:
            raise ModelError(
                name,
                f"{op} has a bias of shape {list(bias.shape)} for {w.shape[0]} filters",
                remedy,
            )


def _check_reshape(name: str, x: Value | None, y: Value | None) -> None:
    if x is None or y is None or OPAQUE in (x.dtype, y.dtype):
        return
    before, after = math.prod(x.shape), math.prod(y.shape)
    if before != after:
        raise ModelError(
            name,
            f"Reshape turns {list(x.shape)} into {list(y.shape)}: {before} elements into {after}",
            "Export the model again",
        )


def _check_permutation(name: str, attrs: Mapping[str, Any], x: Value | None) -> None:
    perm = attrs.get("perm")
    if perm is None or x is None or x.dtype == OPAQUE:
        return
    if sorted(perm) != list(range(len(x.shape))):
        raise ModelError(
            name,
            f"Transpose has perm={list(perm)} for {len(x.shape)} axes",
            "Export the model again",
        )


def _check_normalization(name: str, inputs: Sequence[str], values: Mapping[str, Value]) -> None:
    """One number a channel in each operand: onnxruntime looks at them when it runs."""
    x = values.get(inputs[0])
    if x is None or x.dtype == OPAQUE or len(x.shape) < 2:
        return
    for operand in inputs[1:]:
        value = values.get(operand)
        if value is not None and value.dtype != OPAQUE and value.shape != (x.shape[1],):
            raise ModelError(
                name,
                f"BatchNormalization has {operand} of shape {list(value.shape)} for "
                f"{x.shape[1]} channels",
                "Export the model again",
            )


# -- host segments ---------------------------------------------------------------------------


def extract_host(
    imported: Imported, node_sources: Sequence[str], inputs: Sequence[str], outputs: Sequence[str]
) -> bytes:
    """A model of exactly these nodes.  Raises ModelError if onnxruntime cannot run it."""
    model = _submodel(imported, node_sources, inputs, outputs)
    _try_host(model, imported)
    return bytes(model.SerializeToString(deterministic=True))


def _outputs(node: onnx.NodeProto) -> list[str]:
    return [o for o in node.output if o]


def host_can_run(imported: Imported, node: Node) -> bool:
    """Has onnxruntime a kernel for this node?"""
    constants = imported.graph.constants
    inputs = [i for i in node.inputs if i and i not in constants]
    try:
        extract_host(imported, node.sources, inputs, [o for o in node.outputs if o])
    except ModelError:
        return False
    return True


def _submodel(
    imported: Imported, node_sources: Sequence[str], inputs: Sequence[str], outputs: Sequence[str]
) -> onnx.ModelProto:
    g, wanted = imported.model.graph, set(node_sources)
    # Constant nodes are constants of our graph: they go wherever they are read
    constant_nodes = {
        n.output[0]: n for n in g.node if n.output and n.output[0] in imported.graph.constants
    }
    nodes = [n for n in g.node if n.name in wanted]
    read = set()
    for n in nodes:
        read |= {*n.input, *_captured(_subgraphs(n))}
    written = {o for n in nodes for o in n.output}
    extra = [constant_nodes[v] for v in constant_nodes if v in read and v not in written]
    infos = {i.name: i for i in (*g.value_info, *g.input, *g.output)}

    def info(name: str) -> onnx.ValueInfoProto:
        known: onnx.ValueInfoProto | None = infos.get(name)
        if known is not None:
            return known
        value = imported.graph.values.get(name)
        kind = TensorProto.FLOAT
        if value is not None and value.dtype != OPAQUE:
            kind = helper.np_dtype_to_tensor_dtype(np.dtype(value.dtype))
        return helper.make_tensor_value_info(name, kind, None)

    graph = helper.make_graph(
        [*extra, *nodes],
        g.name or "host",
        [info(i) for i in inputs],
        [info(o) for o in outputs],
        [i for i in g.initializer if i.name in read or i.name in outputs],
    )
    model = helper.make_model(
        graph,
        opset_imports=list(imported.model.opset_import),
        functions=list(imported.model.functions),
        ir_version=imported.model.ir_version,
    )
    return model


def _try_host(model: onnx.ModelProto, imported: Imported) -> None:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    data = model.SerializeToString()
    try:
        ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        return
    except Exception as e:
        reason = _first_line(e)
    nodes = [n for n in model.graph.node if n.output[0] not in imported.graph.constants]
    for node in nodes if len(nodes) > 1 else ():  # name the first node that alone fails
        reads = dict.fromkeys([*node.input, *_captured(_subgraphs(node))])
        inputs = [i for i in reads if i and i not in imported.graph.constants]
        _try_host(_submodel(imported, [node.name], inputs, _outputs(node)), imported)
    node = nodes[-1]
    raise ModelError(
        node.name,
        f"operator {node.op_type} of domain {node.domain or 'ai.onnx'!r} is known neither to "
        f"opennpu nor to onnxruntime ({reason})",
        "Register it as an operator (docs/how-to/add-an-operator.md), or export without it",
    )
