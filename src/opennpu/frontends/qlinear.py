"""QLinear operators as the float operator between DequantizeLinear and QuantizeLinear.

That is their definition, and `passes.qdq` makes int8 nodes of it.  Only nodes whose scales and
zero points are constants change; onnxruntime runs the others as they are.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import helper, numpy_helper

PER_AXIS_OPSET = 13  # the first whose DequantizeLinear has an axis
MICROSOFT = "com.microsoft"
BINARY = {"QLinearAdd": "Add", "QLinearMul": "Mul"}
FLOAT = {
    ("", "QLinearConv"): "Conv",
    ("", "QLinearMatMul"): "MatMul",
    (MICROSOFT, "QLinearAdd"): "Add",
    (MICROSOFT, "QLinearMul"): "Mul",
    (MICROSOFT, "QLinearGlobalAveragePool"): "GlobalAveragePool",
}


def expand(model: onnx.ModelProto, opset: int) -> None:
    """All such nodes of the model, in place."""
    constants = {i.name: i for i in model.graph.initializer}
    for n in model.graph.node:
        if n.op_type == "Constant" and n.attribute and n.attribute[0].name == "value":
            constants[n.output[0]] = n.attribute[0].t
    nodes: list[onnx.NodeProto] = []
    for n in model.graph.node:
        domain = "" if n.domain == "ai.onnx" else n.domain
        made = _expanded(n, FLOAT.get((domain, n.op_type), ""), constants, opset, model)
        nodes += [n] if made is None else made
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def _expanded(
    n: onnx.NodeProto,
    op: str,
    constants: Mapping[str, onnx.TensorProto],
    opset: int,
    model: onnx.ModelProto,
) -> list[onnx.NodeProto] | None:
    """The nodes that stand for one; None if it stays."""
    inputs = list(n.input)
    if not op or "" in inputs:
        return None
    attributes = list(n.attribute)
    if op == "GlobalAveragePool":
        if any(a.name == "channels_last" and a.i for a in attributes) or len(inputs) != 5:
            return None
        operands, result, attributes = [inputs[:3]], inputs[3:5], []
    else:
        if len(inputs) not in (8, 9):
            return None
        operands, result = [inputs[:3], inputs[3:6]], inputs[6:8]
    parameters = [p for o in operands for p in o[1:]] + result
    if any(p not in constants for p in parameters):
        return None
    if any(constants[p].data_type != onnx.TensorProto.FLOAT for p in parameters[::2]):
        return None
    axes: list[int | None] = [None] * len(operands)
    for k, (_, scale, _) in enumerate(operands):
        if int(np.prod(constants[scale].dims)) > 1:
            if op != "Conv" or k != 1 or opset < PER_AXIS_OPSET:
                return None
            if int(np.prod(constants[operands[1][2]].dims)) == 1:
                return None  # one zero point for many scales: DequantizeLinear wants as many
            axes[k] = 0
    made, reals = [], []
    for k, ((codes, scale, zero), axis) in enumerate(zip(operands, axes, strict=True)):
        real = f"{n.output[0]}/{k}/{codes}"
        vectors = (_shaped(p, axis, constants, model) for p in (scale, zero))
        made.append(_dequantizer(n, [codes, *vectors], real, axis))
        reals.append(real)
    if len(inputs) == 9:  # an int32 bias in steps of the product of both scales
        x, w = (numpy_helper.to_array(constants[o[1]]) for o in operands)
        step = (x.reshape(-1)[0] * w.reshape(-1)).astype(np.float32)
        name, real = f"{n.output[0]}/bias_scale", f"{n.output[0]}/{inputs[8]}"
        scale = step if step.size > 1 else step.reshape(())
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(scale), name))
        made.append(_dequantizer(n, [inputs[8], name], real, 0 if step.size > 1 else None))
        reals.append(real)
    y = f"{n.output[0]}/real"
    node = helper.make_node(op, reals, [y], n.name)
    node.attribute.extend(attributes)
    made.append(node)
    scale, zero = (_shaped(p, None, constants, model) for p in result)
    made.append(
        helper.make_node("QuantizeLinear", [y, scale, zero], [n.output[0]], f"{n.name}/quantize")
    )
    return made


def _dequantizer(
    n: onnx.NodeProto, inputs: list[str], output: str, axis: int | None
) -> onnx.NodeProto:
    made = helper.make_node("DequantizeLinear", inputs, [output], f"{n.name}/{output}")
    if axis is not None:
        made.attribute.append(helper.make_attribute("axis", axis))
    return made


def _shaped(
    name: str,
    axis: int | None,
    constants: Mapping[str, onnx.TensorProto],
    model: onnx.ModelProto,
) -> str:
    """A parameter as a scalar, or as a vector along an axis: [1] is both to onnxruntime."""
    a = numpy_helper.to_array(constants[name])
    if axis is not None or a.ndim == 0:
        return name
    scalar = f"{name}/scalar"
    if all(i.name != scalar for i in model.graph.initializer):
        model.graph.initializer.append(numpy_helper.from_array(a.reshape(()), scalar))
    return scalar
