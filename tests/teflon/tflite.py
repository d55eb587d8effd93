"""Quantized TFLite models, written with the schema that the ai-edge-litert package ships."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import flatbuffers
import numpy as np
import numpy.typing as npt
from ai_edge_litert import schema_py_generated as schema

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Quantized:
    """real = (q - zero) * scale, q uint8."""

    scale: float
    zero: int


@dataclass(frozen=True)
class Conv:
    """One convolution; depthwise when ``depthwise``.  Weights are random uint8."""

    kernel: int
    out_channels: int
    stride: int = 1
    same: bool = True
    depthwise: bool = False
    weights: Quantized = Quantized(0.02, 120)
    output: Quantized = Quantized(0.4, 128)


@dataclass(frozen=True)
class Net:
    """Convolutions in a row; ``residual`` adds the input of the last one to its output."""

    name: str
    size: int
    channels: int
    input: Quantized
    layers: tuple[Conv, ...]
    residual: bool = False
    seed: int = 0


@dataclass
class Layer:
    """What a layer computes with, for a model of its arithmetic."""

    conv: Conv
    input: Quantized
    w: Array  # [OC, K, K, IC] or depthwise [C, K, K], uint8
    bias: Array  # [OC] int32


class _Builder:
    def __init__(self) -> None:
        self.model = schema.ModelT()
        self.model.version = 3
        self.model.description = "opennpu test"
        self.model.buffers = [schema.BufferT()]
        self.model.operatorCodes = []
        self.graph = schema.SubGraphT()
        self.graph.tensors, self.graph.operators, self.graph.name = [], [], "main"

    def code(self, builtin: int) -> int:
        c = schema.OperatorCodeT()
        c.builtinCode, c.deprecatedBuiltinCode, c.version = builtin, builtin, 1
        self.model.operatorCodes.append(c)
        return len(self.model.operatorCodes) - 1

    def tensor(
        self,
        name: str,
        shape: tuple[int, ...],
        kind: int,
        scale: float,
        zero: int,
        data: Array | None = None,
    ) -> int:
        t = schema.TensorT()
        t.name, t.shape, t.type = name, list(shape), kind
        t.quantization = schema.QuantizationParametersT()
        t.quantization.scale, t.quantization.zeroPoint = [scale], [zero]
        t.buffer = 0
        if data is not None:
            b = schema.BufferT()
            b.data = np.frombuffer(data.tobytes(), np.uint8)
            self.model.buffers.append(b)
            t.buffer = len(self.model.buffers) - 1
        self.graph.tensors.append(t)
        return len(self.graph.tensors) - 1

    def operator(
        self, code: int, inputs: list[int], outputs: list[int], kind: int, options: Any
    ) -> None:
        op = schema.OperatorT()
        op.opcodeIndex, op.inputs, op.outputs = code, inputs, outputs
        op.builtinOptionsType, op.builtinOptions = kind, options
        self.graph.operators.append(op)


def build(net: Net) -> tuple[bytes, list[Layer]]:
    """(file, the layers with their numbers)."""
    rng = np.random.default_rng(net.seed)
    b = _Builder()
    builtin, options = schema.BuiltinOperator, schema.BuiltinOptions
    conv, dw, add = (b.code(c) for c in (builtin.CONV_2D, builtin.DEPTHWISE_CONV_2D, builtin.ADD))
    uint8, int32 = schema.TensorType.UINT8, schema.TensorType.INT32
    size, channels, q = net.size, net.channels, net.input
    x = b.tensor("in", (1, size, size, channels), uint8, q.scale, q.zero)
    b.graph.inputs = [x]
    layers: list[Layer] = []
    before = x
    for i, layer in enumerate(net.layers):
        k, out = layer.kernel, channels if layer.depthwise else layer.out_channels
        shape = (1, k, k, out) if layer.depthwise else (out, k, k, channels)
        w = rng.integers(0, 256, shape, dtype=np.uint8)
        bias = rng.integers(-500, 500, out).astype(np.int32)
        wt = b.tensor(f"w{i}", shape, uint8, layer.weights.scale, layer.weights.zero, w)
        bt = b.tensor(f"b{i}", (out,), int32, q.scale * layer.weights.scale, 0, bias)
        span = size if layer.same else size - k + 1
        size = -(-span // layer.stride)
        y = b.tensor(f"y{i}", (1, size, size, out), uint8, layer.output.scale, layer.output.zero)
        opts = schema.DepthwiseConv2DOptionsT() if layer.depthwise else schema.Conv2DOptionsT()
        if layer.depthwise:
            opts.depthMultiplier = 1
        opts.padding = schema.Padding.SAME if layer.same else schema.Padding.VALID
        opts.strideW = opts.strideH = layer.stride
        opts.dilationWFactor = opts.dilationHFactor = 1
        kind = options.DepthwiseConv2DOptions if layer.depthwise else options.Conv2DOptions
        b.operator(dw if layer.depthwise else conv, [x, wt, bt], [y], kind, opts)
        layers.append(Layer(layer, q, w[0].transpose(2, 0, 1) if layer.depthwise else w, bias))
        before, x, q, channels = x, y, layer.output, out
    if net.residual:
        y = b.tensor("sum", (1, size, size, channels), uint8, q.scale * 1.5, q.zero)
        opts = schema.AddOptionsT()
        b.operator(add, [x, before], [y], options.AddOptions, opts)
        x = y
    b.graph.outputs = [x]
    b.model.subgraphs = [b.graph]
    fb = flatbuffers.Builder(1024)
    fb.Finish(b.model.Pack(fb), b"TFL3")
    return bytes(fb.Output()), layers
