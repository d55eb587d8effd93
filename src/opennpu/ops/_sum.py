"""Sums too long for one task: parts of the input channels, added up by the DPU.

16 kernels must lie in the CBUF at once.  Where they do not, the input channels are cut into equal
parts of whole channel groups; each part is a convolution of its own whose result is rounded to
fp16; EW adds the parts in the order of the channels and rounds each sum to fp16 once.  Sums in
fp32 between tasks have no form that boards ran (board notes A.10: fp16 partials only).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy.typing as npt

from opennpu.hw.layout import align
from opennpu.hw.rk3588 import chip
from opennpu.hw.rk3588.common import Precision
from opennpu.ir.graph import Node, Value
from opennpu.ops.base import Expansion, Operand

Array = npt.NDArray[Any]

FIRST_CHANNEL = "first_channel"
"""Attribute of the nodes made here: input channels that come before their part."""
KERNEL_BANKS = 8  # that one kernel group may fill; the rest is for data
ELEMENT_BYTES = 2


def part_of(x: Operand, node: Node, channels: int) -> Operand:
    """The channels of ``x`` that a node reads: all, or a part."""
    if FIRST_CHANNEL not in node.attrs:
        return x
    assert x.view is not None
    view = replace(x.view, nhwc=(*x.view.nhwc[:3], channels))
    room = max(x.channels, x.nhwc[3])
    return replace(x, view=view, channels=room, ref=x.at(0, node.attrs[FIRST_CHANNEL]))


def split(
    node: Node, values: Mapping[str, Value], consts: Mapping[str, Array], channel_axis: int
) -> Expansion | None:
    """The node in parts, each with a share of the weights along ``channel_axis``; None if short."""
    x, y = values[node.inputs[0]], values[node.outputs[0]]
    w = consts.get(node.inputs[1])
    if w is None or x.quant is not None or FIRST_CHANNEL in node.attrs:
        return None
    if any(e.kind == "call" for e in node.epilogue):
        return None  # of the sum of all parts, which no single task has
    total = w.shape[channel_axis]
    taps = math.prod(w.shape[2:])
    most = (
        KERNEL_BANKS * chip.CBUF_BANK_BYTES // (chip.KERNEL_GROUP[Precision.FP16] * ELEMENT_BYTES)
    )
    group = chip.CHANNEL_GROUP[Precision.FP16]
    if total * taps <= most or group * taps > most:
        return None
    size = align(-(-total // -(-total * taps // most)), group)
    size = size if size * taps <= most else most // taps // group * group
    nodes: list[Node] = []
    fresh: dict[str, Value] = {}
    constants: dict[str, Array] = {}
    before = ""
    for k, first in enumerate(range(0, total, size)):
        last = first + size >= total
        weights, part, so_far = (f"{y.name}/{what}{k}" for what in ("weights", "part", "sum"))
        index = [slice(None)] * w.ndim
        index[channel_axis] = slice(first, first + size)
        constants[weights] = w[tuple(index)]
        fresh[weights] = Value(weights, constants[weights].shape, w.dtype.name)
        fresh[part] = replace(y, name=part)
        bias = node.inputs[2:] if k == 0 else ()
        nodes.append(
            node.with_(
                inputs=(node.inputs[0], weights, *bias),
                outputs=(part,),
                attrs={**node.attrs, FIRST_CHANNEL: first},
                epilogue=(),
            )
        )
        if before:
            out = y.name if last else so_far
            if not last:
                fresh[out] = replace(y, name=out)
            epilogue = node.epilogue if last else ()
            nodes.append(Node(node.name, "Add", (before, part), (out,), {}, epilogue))
            before = out
        else:
            before = part
    return Expansion(tuple(nodes), fresh, constants)
