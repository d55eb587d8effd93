"""Quantized TFLite models, written with the schema that the ai-edge-litert package ships.

`tests.teflon.run` loads the schema from the arm64 root, as the module ``tflite_schema``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import flatbuffers
import numpy as np
import numpy.typing as npt
import tflite_schema as schema

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Quantized:
    """real = (q - zero) * scale, q uint8."""

    scale: float
    zero: int


@dataclass(frozen=True)
class Conv:
    """One convolution with its numbers."""

    w: Array  # [OC, K, K, IC], depthwise [C, K, K]; uint8
    bias: Array  # [OC] int32
    weights: Quantized
    output: Quantized
    stride: int = 1
    same: bool = True
    depthwise: bool = False

    @property
    def kernel(self) -> int:
        return int(self.w.shape[1])

    @property
    def out_channels(self) -> int:
        return int(self.w.shape[0])

    def pads(self, size: int) -> tuple[int, int]:
        """(before, after) on both axes, as TFLite pads."""
        total = max(0, (self.out_size(size) - 1) * self.stride + self.kernel - size)
        return (total // 2, total - total // 2) if self.same else (0, 0)

    def out_size(self, size: int) -> int:
        return -(-(size if self.same else size - self.kernel + 1) // self.stride)


@dataclass(frozen=True)
class Net:
    """Convolutions in a row; ``add``: the input of convolution ``residual`` is added at the end."""

    name: str
    size: int
    channels: int
    input: Quantized
    convs: tuple[Conv, ...]
    residual: int | None = None
    add: Quantized = Quantized(1.0, 128)
    x: Array = field(default_factory=lambda: np.zeros(0, np.uint8))  # [samples, H, W, C]

    @property
    def nodes(self) -> int:
        """Operators of the file."""
        return len(self.convs) + (self.residual is not None)

    def tensor(self, i: int) -> Quantized:
        """Quantization of the input of convolution i."""
        return self.convs[i - 1].output if i else self.input


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
        q: Quantized,
        data: Array | None = None,
    ) -> int:
        t = schema.TensorT()
        t.name, t.shape, t.type = name, list(shape), kind
        t.quantization = schema.QuantizationParametersT()
        t.quantization.scale, t.quantization.zeroPoint = [q.scale], [q.zero]
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


def build(net: Net) -> bytes:
    """The .tflite file."""
    b = _Builder()
    builtin, options = schema.BuiltinOperator, schema.BuiltinOptions
    conv, dw, add = (b.code(c) for c in (builtin.CONV_2D, builtin.DEPTHWISE_CONV_2D, builtin.ADD))
    uint8, int32 = schema.TensorType.UINT8, schema.TensorType.INT32
    size, channels = net.size, net.channels
    tensors = [b.tensor("in", (1, size, size, channels), uint8, net.input)]
    b.graph.inputs = [tensors[0]]
    for i, layer in enumerate(net.convs):
        q, out = net.tensor(i), layer.out_channels
        w = layer.w.transpose(1, 2, 0)[np.newaxis] if layer.depthwise else layer.w
        wt = b.tensor(f"w{i}", w.shape, uint8, layer.weights, w)
        scale = Quantized(float(np.float32(q.scale) * np.float32(layer.weights.scale)), 0)
        bt = b.tensor(f"b{i}", (out,), int32, scale, layer.bias)
        size = layer.out_size(size)
        y = b.tensor(f"y{i}", (1, size, size, out), uint8, layer.output)
        opts = schema.DepthwiseConv2DOptionsT() if layer.depthwise else schema.Conv2DOptionsT()
        if layer.depthwise:
            opts.depthMultiplier = 1
        opts.padding = schema.Padding.SAME if layer.same else schema.Padding.VALID
        opts.strideW = opts.strideH = layer.stride
        opts.dilationWFactor = opts.dilationHFactor = 1
        kind = options.DepthwiseConv2DOptions if layer.depthwise else options.Conv2DOptions
        b.operator(dw if layer.depthwise else conv, [tensors[-1], wt, bt], [y], kind, opts)
        tensors.append(y)
        channels = out
    if net.residual is not None:
        y = b.tensor("sum", (1, size, size, channels), uint8, net.add)
        both = [tensors[-1], tensors[net.residual]]
        b.operator(add, both, [y], options.AddOptions, schema.AddOptionsT())
        tensors.append(y)
    b.graph.outputs = [tensors[-1]]
    b.model.subgraphs = [b.graph]
    fb = flatbuffers.Builder(1024)
    fb.Finish(b.model.Pack(fb), b"TFL3")
    return bytes(fb.Output())
