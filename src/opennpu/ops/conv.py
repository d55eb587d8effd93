"""Conv: 1-D and 2-D convolution, dense, depthwise or grouped.  Runs on CNA, CORE and DPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from opennpu.hw.layout import align
from opennpu.hw.rk3588.common import Precision
from opennpu.ir.graph import Node, Value
from opennpu.ops import _conv, _fused, _move, _sum
from opennpu.ops.base import Expansion, Op, Sample, Site, apply_epilogue, clip_range, image_view
from opennpu.program import Task, View

Array = npt.NDArray[Any]


def window(site: Site) -> _conv.Window:
    """Kernel, strides, pads and dilations; a 1-D convolution walks down H."""
    a = site.node.attrs
    rank = len(a["kernel_shape"])

    def pair(values: Any) -> tuple[int, int]:
        v = [int(i) for i in values]
        return (v[0], v[1]) if rank == 2 else (v[0], 1)

    top_left = [int(p) for p in a["pads"][:rank]]
    pad = (top_left[0], top_left[1]) if rank == 2 else (top_left[0], 0)
    return _conv.Window(pair(a["kernel_shape"]), pair(a["strides"]), pad, pair(a["dilations"]))


def is_depthwise(node: Node, weights: Array) -> bool:
    """One filter per channel: the hardware's depthwise mode."""
    group = int(node.attrs["group"])
    return group > 1 and weights.shape[0] == group and weights.shape[1] == 1


def dense(weights: Array, group: int) -> Array:
    """[OC, IC/g, …] grouped weights as [OC, IC, …], zero outside each group's block."""
    if group == 1:
        return weights
    oc, per = weights.shape[:2]
    full = np.zeros((oc, per * group, *weights.shape[2:]), weights.dtype)
    step = oc // group
    for g in range(group):
        full[g * step : (g + 1) * step, g * per : (g + 1) * per] = weights[
            g * step : (g + 1) * step
        ]
    return full


def weight_scale(site: Site, index: int, channels: int) -> Array | None:
    """[OC] scales of int8 weights."""
    if site.precision is not Precision.INT8:
        return None
    operand = site.inputs[index]
    assert operand is not None
    if operand.value.quant is None:
        raise site.refuse(f"has {operand.value.dtype} weights between int8 tensors")
    return np.broadcast_to(operand.quant.scale.reshape(-1), (channels,)).astype(np.float32)


def convolution(site: Site) -> _conv.Convolution:
    """The node as a convolution of cubes."""
    w, bias = site.const(1), site.const(2)
    assert w is not None
    if w.ndim == 3:
        w = w[..., None]
    depthwise = is_depthwise(site.node, w)
    full = w[:, 0] if depthwise else dense(w, int(site.node.attrs["group"]))
    packed = full if depthwise else full.transpose(0, 2, 3, 1)
    return _conv.Convolution(
        site=site,
        x=_sum.part_of(site.x, site.node, w.shape[1]),
        y=site.output,
        window=window(site),
        weights=packed,
        bias=bias,
        weight_scale=weight_scale(site, 1, w.shape[0]),
        depthwise=depthwise,
        epilogue=_conv.Epilogue(*clip_range(site.node)),
        behind=_fused.behind(site)[0],
    )


class Conv(Op):
    macs = True

    @staticmethod
    def reference(node: Node, *inputs: Array) -> Array:
        """x: [N, C, H, W], w: [OC, C/g, KH, KW], bias: [OC] -> [N, OC, OH, OW], float32."""
        x, w = inputs[0].astype(np.float32), inputs[1].astype(np.float32)
        bias = inputs[2] if len(inputs) > 2 and inputs[2] is not None else None
        a, one = node.attrs, x.ndim == 3
        if one:
            x, w = x[..., None], w[..., None]

        def extend(v: Sequence[int], fill: int) -> list[int]:
            return [*v, fill] if one else list(v)

        kernel, strides = extend(a["kernel_shape"], 1), extend(a["strides"], 1)
        dilations = extend(a["dilations"], 1)
        half = len(a["pads"]) // 2
        before, after = extend(a["pads"][:half], 0), extend(a["pads"][half:], 0)
        x = np.pad(x, ((0, 0), (0, 0), (before[0], after[0]), (before[1], after[1])))
        spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
        win = sliding_window_view(x, spans, axis=(2, 3))
        win = win[:, :, :: strides[0], :: strides[1], :: dilations[0], :: dilations[1]]
        y = np.einsum("nchwkl,ockl->nohw", win, dense(w, int(a["group"])), optimize=True)
        if bias is not None:
            y = y + bias.reshape(1, -1, 1, 1)
        return apply_epilogue(node, y[..., 0] if one else y).astype(np.float32)

    @classmethod
    def alternative(
        cls, node: Node, values: Mapping[str, Value], consts: Mapping[str, Array]
    ) -> Expansion | None:
        """Parts of the input channels, added up; weights of nine bits in two parts."""
        if int(node.attrs["group"]) != 1 or any(e.kind == "add" for e in node.epilogue):
            return None
        w = consts.get(node.inputs[1])
        parts = None if w is None else _conv.two_parts(w)
        if parts is not None:
            return _twice(node, values, parts)
        return _sum.split(node, values, consts, 1)

    @staticmethod
    def check(site: Site) -> None:
        w = site.const(1)
        if w is None:
            raise site.refuse("has computed weights, the NPU takes constant ones")
        if len(site.inputs) > 2 and site.inputs[2] is not None and site.const(2) is None:
            raise site.refuse("has a computed bias, the NPU takes a constant one")
        if w.ndim not in (3, 4):
            raise site.refuse(f"is {w.ndim - 2}-D, the NPU convolves 1-D and 2-D")
        if min(site.node.attrs["pads"]) < 0:
            raise site.refuse(f"crops by pads {list(site.node.attrs['pads'])}, the least pad is 0")
        low, high = clip_range(site.node)
        conv = convolution(site)
        if site.residual:
            _conv.check_residual(conv)
        else:
            _conv.check_clip(site, low, high, site.output)
        _conv.check(conv)

    @staticmethod
    def views(site: Site) -> tuple[tuple[View | None, ...], View]:
        views = (image_view(site.x.shape), *(None for _ in site.inputs[1:]))
        return views, image_view(site.output.shape)

    @classmethod
    def input_rooms(cls, site: Site, room: int) -> tuple[int, ...]:
        w = site.const(1)
        assert w is not None
        if not is_depthwise(site.node, w):
            return tuple(0 for _ in site.inputs)
        return (max(room, cls.room(site)), *(0 for _ in site.inputs[1:]))

    @classmethod
    def room(cls, site: Site) -> int:
        w = site.const(1)
        assert w is not None
        step = _conv.kernel_step(site.precision, is_depthwise(site.node, w))
        return align(site.output.nhwc[3], step)

    @classmethod
    def tasks(cls, site: Site) -> Iterator[Task]:
        return _fused.tasks(convolution(site))


def _twice(node: Node, values: Mapping[str, Value], parts: tuple[Array, Array]) -> Expansion | None:
    """Weights of nine bits, as uint8 ones less their zero point: x twice, times two parts."""
    x = values[node.inputs[0]]
    if len(x.shape) not in (3, 4):
        return None
    twice, weights = f"{node.outputs[0]}/twice", f"{node.outputs[0]}/parts"
    both = np.concatenate(parts, 1)
    double = replace(x, name=twice, shape=(x.shape[0], both.shape[1], *x.shape[2:]))
    first = _move.selection(
        node.with_(name=f"{node.name}/twice", epilogue=()),
        x,
        double,
        [*range(x.shape[1])] * 2,
        output=twice,
    )
    last = node.with_(inputs=(twice, weights, *node.inputs[2:]))
    w = replace(values[node.inputs[1]], name=weights, shape=both.shape, dtype="int8")
    return Expansion(
        (*first.nodes, last),
        {**first.values, twice: double, weights: w},
        {**first.constants, weights: both},
    )


def _conv_sample(
    x: tuple[int, ...], w: tuple[int, ...], *, ok: bool = True, bias: bool = True, **attrs: Any
) -> Sample:
    rank = len(w) - 2
    full = {
        "kernel_shape": w[2:],
        "strides": (1,) * rank,
        "pads": (0,) * (2 * rank),
        "dilations": (1,) * rank,
        "group": 1,
        **attrs,
    }
    return Sample((x,), full, (w, (w[0],)) if bias else (w,), ok=ok)


Conv.samples = (
    _conv_sample((1, 32, 8, 8), (32, 32, 1, 1)),
    _conv_sample((1, 3, 17, 13), (16, 3, 3, 3), strides=(2, 2), pads=(1, 1, 1, 1)),
    _conv_sample((1, 20, 9, 11), (40, 20, 3, 3), pads=(0, 1, 2, 0), bias=False),
    _conv_sample((2, 16, 6, 5), (24, 16, 2, 3), dilations=(2, 1)),
    _conv_sample((1, 32, 14, 14), (32, 1, 3, 3), group=32, pads=(1, 1, 1, 1)),
    _conv_sample((1, 70, 11, 9), (70, 1, 5, 5), group=70, strides=(2, 2), pads=(2, 2, 2, 2)),
    _conv_sample((1, 32, 7, 7), (64, 8, 3, 3), group=4, pads=(1, 1, 1, 1)),
    _conv_sample((1, 8, 3, 3), (16, 8, 3, 3), pads=(1, 1, 1, 1)),
    _conv_sample((1, 8, 1, 1), (1, 8, 1, 1)),
    _conv_sample((1, 16, 40), (32, 16, 3), pads=(1, 1)),
    _conv_sample((1, 64, 120, 120), (64, 64, 3, 3), pads=(1, 1, 1, 1)),  # several row tiles
    _conv_sample((1, 8, 2, 2100), (16, 8, 1, 1)),  # wider than 2047: column tiles
    replace(  # 16 kernels do not fit into the CBUF: parts of the channels
        _conv_sample((1, 520, 6, 5), (20, 520, 5, 5)), precisions=(Precision.FP16,)
    ),
    _conv_sample((1, 4, 300), (8, 4, 60), strides=(50,), ok=False),  # kernel over 31
    _conv_sample((1, 4, 300), (8, 4, 20), strides=(50,)),  # stride over 7
    _conv_sample((1, 8, 40, 40), (8, 8, 3, 3), pads=(16, 16, 16, 16), ok=False),
)
