"""A graph back to one ONNX model, for onnxruntime to say what it means.

Written from the meaning of `ir.graph` alone: epilogues become nodes, int8 codes become floats,
a Quant of an activation becomes a QuantizeLinear and DequantizeLinear pair.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
from onnx import helper, numpy_helper

from opennpu.frontends.onnx import Imported, extract_host
from opennpu.ir.graph import Graph, Node, Quant, node_reads

Array = npt.NDArray[Any]
OURS = {
    **{op: ("shape",) for op in ("Reshape", "Flatten", "Squeeze", "Unsqueeze")},
    "AveragePool": ("dilations",),  # ONNX knows it from opset 19 on
}
"""Attributes that the importer adds."""


def run_onnx(model: onnx.ModelProto | bytes, feeds: Mapping[str, Array]) -> list[Array]:
    """All outputs of a model, computed without any optimization."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    data = model if isinstance(model, bytes) else model.SerializeToString()
    session = ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    return list(session.run(None, dict(feeds)))


def evaluate(imported: Imported, graph: Graph, feeds: Mapping[str, Array]) -> list[Array]:
    """The outputs of ``graph``, which passes made of ``imported``."""
    return run_onnx(to_onnx(imported, graph), feeds)


def by_pieces(imported: Imported, graph: Graph, feeds: Mapping[str, Array]) -> list[Array]:
    """The outputs, each node of ``graph`` computed by the model's own nodes that it stands for."""
    values = dict(feeds)
    for n in graph.nodes:
        reads = [v for v in dict.fromkeys(node_reads(n)) if v not in graph.constants]
        writes = [o for o in n.outputs if o]
        piece = extract_host(imported, n.sources, reads, writes)
        results = run_onnx(piece, {r: values[r] for r in reads})
        values.update(zip(writes, results, strict=True))
    return [values[o] for o in graph.outputs]


def to_onnx(imported: Imported, graph: Graph) -> onnx.ModelProto:
    constants = dict(_dequantized(graph))
    nodes: list[onnx.NodeProto] = []
    rounded = {}  # inputs are packed to their codes
    for i in graph.inputs:
        quant = graph.values[i].quant
        if quant is not None:
            nodes += _pair(i, f"{i}/rounded", quant, constants)
            rounded[i] = f"{i}/rounded"
    for n in graph.nodes:
        nodes += _nodes(imported, graph, _renamed(n, rounded), constants)
    infos = {i.name: i for i in (*imported.model.graph.input, *imported.model.graph.output)}
    proto = helper.make_graph(
        nodes,
        graph.name,
        [infos[i] for i in graph.inputs],
        [infos[o] for o in graph.outputs],
        [numpy_helper.from_array(np.asarray(a), k) for k, a in constants.items()],
    )
    opsets = list(imported.model.opset_import)
    return helper.make_model(proto, opset_imports=opsets, ir_version=imported.model.ir_version)


def _renamed(n: Node, names: Mapping[str, str]) -> Node:
    epilogue = tuple(replace(e, value=names.get(e.value, e.value)) for e in n.epilogue)
    return n.with_(inputs=tuple(names.get(i, i) for i in n.inputs), epilogue=epilogue)


def _dequantized(graph: Graph) -> Iterator[tuple[str, Array]]:
    for name, a in graph.constants.items():
        q = graph.values[name].quant
        if q is None:
            yield name, a
            continue
        shape = [1] * a.ndim
        if q.axis is not None:
            shape[q.axis] = -1
        zero = q.zero_point.reshape(shape)
        yield name, ((a.astype(np.int32) - zero) * q.scale.reshape(shape)).astype(np.float32)


def _nodes(
    imported: Imported, graph: Graph, n: Node, constants: dict[str, Array]
) -> Iterator[onnx.NodeProto]:
    originals = {m.name: m for m in imported.model.graph.node}
    if any(a == "<opaque>" for a in n.attrs.values()):  # control flow: as it was
        yield originals[n.sources[-1]]
        return
    out = n.outputs[0]
    quant = graph.values[out].quant if out else None
    steps = len(n.epilogue) + (quant is not None)
    name = f"{out}/raw" if steps else out
    attrs = {k: v for k, v in n.attrs.items() if k not in OURS.get(n.op, ())}
    inputs = list(n.inputs)
    if n.op == "QuantizeDequantize":
        yield helper.make_node("Identity", inputs, [name])
    elif n.op == "MatMul" and len(inputs) == 3:
        yield helper.make_node("MatMul", inputs[:2], [f"{out}/product"])
        yield helper.make_node("Add", [f"{out}/product", inputs[2]], [name])
    elif n.op == "HardSwish":  # older opsets lack it
        gate = f"{out}/gate"
        yield helper.make_node("HardSigmoid", inputs, [gate], alpha=1 / 6, beta=0.5)
        yield helper.make_node("Mul", [inputs[0], gate], [name])
    elif n.op == "Silu" and set(attrs) <= {"alpha"} and attrs.get("alpha", 1.0) == 1.0:
        gate = f"{out}/gate"
        yield helper.make_node("Sigmoid", inputs, [gate])
        yield helper.make_node("Mul", [inputs[0], gate], [name])
    else:
        yield helper.make_node(n.op, inputs, [name, *n.outputs[1:]], domain=n.domain, **attrs)
    for i, e in enumerate(n.epilogue):
        steps -= 1
        after = f"{out}/epilogue{i}" if steps else out
        if e.kind == "add":
            yield helper.make_node("Add", [name, e.value], [after])
        elif e.kind == "relu":
            yield helper.make_node("Relu", [name], [after])
        else:
            for bound, op in ((e.low, "Max"), (e.high, "Min")):
                key = f"{after}/{op}"
                constants[key] = np.float32(bound).astype(graph.values[out].dtype)
                yield helper.make_node(op, [name, key], [name := f"{key}/done"])
            yield helper.make_node("Identity", [name], [after])
        name = after
    if quant is not None:
        yield from _pair(name, out, quant, constants)


def _pair(x: str, y: str, quant: Quant, constants: dict[str, Array]) -> Iterator[onnx.NodeProto]:
    scale, zero = f"{y}/scale", f"{y}/zero"
    constants[scale] = np.asarray(quant.scale, np.float32)
    constants[zero] = np.asarray(quant.zero_point).astype(np.int8)
    yield helper.make_node("QuantizeLinear", [x, scale, zero], [f"{y}/codes"])
    yield helper.make_node("DequantizeLinear", [f"{y}/codes", scale, zero], [y])
