"""MatMul and Gemm as 1x1 convolutions over rows: constant, batched and computed operands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from opennpu.hw.layout import align
from opennpu.hw.rk3588.common import Precision
from opennpu.ir.graph import Node, Quant, Value
from opennpu.ops import _conv, _fused, _product, _sum
from opennpu.ops.base import Expansion, Op, Sample, Site, apply_epilogue, clip_range, matrix_view
from opennpu.ops.conv import weight_scale
from opennpu.program import Ref, Task, View

Array = npt.NDArray[Any]
FP16 = (Precision.FP16,)
IMAGE = "image"
"""Attribute of a Gemm or MatMul that flattens its left operand, [N, C, H, W]."""


def convolution(site: Site) -> _conv.Convolution:
    """[…, M, K] x [K, N]: rows are pixels, K are channels."""
    w, bias = site.const(1), site.const(2)
    assert w is not None
    return _conv.Convolution(
        site=site,
        x=_sum.part_of(site.x, site.node, w.shape[0]),
        y=site.output,
        window=_conv.Window(),
        weights=np.ascontiguousarray(w.T)[:, None, None, :],
        bias=None if bias is None else np.broadcast_to(bias.reshape(-1), (w.shape[1],)),
        weight_scale=weight_scale(site, 1, w.shape[1]),
        depthwise=False,
        epilogue=_conv.Epilogue(*clip_range(site.node)),
        behind=_fused.behind(site)[0],
    )


def simple(site: Site) -> bool:
    """One constant matrix on the right of rows: a plain convolution.  Else batch by batch."""
    w = site.const(1)
    return w is not None and w.ndim == 2 and site.x.const is None and not any(_turned(site))


def _turned(site: Site) -> tuple[bool, bool]:
    """transA and transB."""
    a = site.node.attrs
    return bool(a.get("transA", 0)), bool(a.get("transB", 0))


def product(site: Site) -> _product.Product:
    """The general form."""
    bias = site.const(2)
    n = site.output.shape[-1]
    row = None if bias is None else np.broadcast_to(bias.reshape(-1), (n,))
    return _product.Product(site, row, *_turned(site))


class MatMul(Op):
    names = ("MatMul", "Gemm")
    macs = True
    samples = (
        Sample(((4, 64),), consts=((64, 32),)),
        Sample(((1, 1280),), {}, ((1280, 1000), (1000,)), op="Gemm"),
        Sample(((2, 7, 96),), consts=((96, 40), (40,))),
        Sample(((1, 5, 33),), consts=((33, 17),)),
        Sample(((1, 1500, 64),), consts=((64, 64),)),
        Sample(((3, 12000),), {}, ((12000, 100), (100,)), op="Gemm", precisions=FP16),
        Sample(((2, 3, 20, 64), (2, 3, 64, 27)), precisions=FP16),
        Sample(((5, 33), (33, 17)), precisions=FP16),
        Sample(((1, 100), (100, 40)), precisions=FP16),
        Sample(((3, 70, 140), (140, 70)), precisions=FP16),  # one right operand for all batches
        Sample(((2, 6, 40),), consts=((2, 40, 24),), precisions=FP16),
        Sample(((9, 72), (50, 72)), {"transB": 1}, op="Gemm", precisions=FP16),
        Sample(((4, 64), (64, 48)), ok=False, precisions=(Precision.INT8,)),
    )

    @staticmethod
    def reference(node: Node, *inputs: Array) -> Array:
        """x: […, M, K], w: […, K, N], bias: [N] -> […, M, N], float32."""
        x, w = (i.astype(np.float32) for i in inputs[:2])
        if node.attrs.get("transA"):
            x = x.swapaxes(-1, -2)
        if node.attrs.get("transB"):
            w = w.swapaxes(-1, -2)
        y = x @ w
        if len(inputs) > 2 and inputs[2] is not None:
            y = y + inputs[2]
        return apply_epilogue(node, y).astype(np.float32)

    @classmethod
    def expand(
        cls, node: Node, values: Mapping[str, Value], consts: Mapping[str, Array]
    ) -> Expansion | None:
        """An image to be flattened (`passes.fuse`): a convolution over all of it."""
        if IMAGE not in node.attrs:
            return None
        x, w, y = (values[v] for v in (*node.inputs[:2], node.outputs[0]))
        n, c, h, wide = x.shape
        out, weights = f"{y.name}/pixel", f"{y.name}/kernels"
        kernels = consts[node.inputs[1]].T.reshape(-1, c, h, wide)
        quant = w.quant if w.quant is None or w.quant.axis is None else replace(w.quant, axis=0)
        attrs = {
            "kernel_shape": (h, wide),
            "strides": (1, 1),
            "pads": (0, 0, 0, 0),
            "dilations": (1, 1),
            "group": 1,
        }
        conv = node.with_(
            op="Conv", inputs=(x.name, weights, *node.inputs[2:]), outputs=(out,), attrs=attrs
        )
        flat = Node(node.name, "Reshape", (out,), (y.name,), {"shape": y.shape})
        fresh = {
            out: replace(y, name=out, shape=(n, len(kernels), 1, 1)),
            weights: Value(weights, kernels.shape, kernels.dtype.name, quant),
        }
        return Expansion((conv, flat), fresh, {weights: kernels})

    @classmethod
    def alternative(
        cls, node: Node, values: Mapping[str, Value], consts: Mapping[str, Array]
    ) -> Expansion | None:
        """Parts of the sum, added up; weights of nine bits in two parts (`ops.conv`)."""
        w = consts.get(node.inputs[1])
        if w is None or w.ndim != 2 or node.inputs[0] in consts or any(node.attrs.values()):
            return None
        parts = _conv.two_parts(w)
        if parts is not None:
            return _twice(node, values, parts)
        return _sum.split(node, values, consts, 0)

    @staticmethod
    def check(site: Site) -> None:
        bias, n = site.const(2), site.output.shape[-1]
        for name in ("alpha", "beta"):
            value = site.node.attrs.get(name, 1.0)
            if value != 1.0:
                raise site.refuse(f"has {name}={value:g} with operands that cannot absorb it")
        if len(site.inputs) > 2 and site.inputs[2] is not None:
            if bias is None:
                raise site.refuse("has a computed bias, the NPU takes a constant one")
            if bias.size != 1 and (bias.size, bias.shape[-1]) != (n, n):
                raise site.refuse(f"adds a {list(bias.shape)} bias to {n} columns")
        low, high = clip_range(site.node)
        _conv.check_clip(site, low, high, site.output)
        if simple(site):
            _conv.check(convolution(site))
            return
        for operand in site.inputs[:2]:
            if operand is not None and operand.const is not None:
                _conv.check_fp16(site, "a constant operand", operand.const)
        if site.precision is not Precision.FP16:
            raise site.refuse(
                "multiplies two computed int8 tensors, or a batch of them: the NPU subtracts a "
                "zero point from 1 constant matrix only"
            )
        trial = site.with_(place=lambda _: Ref("const"))
        for count, _ in enumerate(product(trial).steps(), 1):
            if count > _conv.MAX_TASKS:
                raise site.refuse(
                    f"needs more than {_conv.MAX_TASKS} tasks, one start takes at most "
                    f"{_conv.MAX_TASKS}"
                )

    @staticmethod
    def views(site: Site) -> tuple[tuple[View | None, ...], View]:
        rest = tuple(None for _ in site.inputs[2:])
        right = site.inputs[1]
        assert right is not None
        if len(site.x.shape) < 2 or len(right.shape) < 2:
            raise site.refuse(
                f"multiplies {len(site.x.shape)}-D by {len(right.shape)}-D, the NPU takes rows: "
                "2-D and up"
            )
        turned_x, turned_w = _turned(site)
        if simple(site):
            k, view = site.x.shape[-1], site.x.view
            if view is None or view.perm[-1] != len(site.x.shape) - 1 or view.nhwc[3] != k:
                view = matrix_view(site.x.shape)
            out = replace(view, nhwc=(*view.nhwc[:3], site.output.shape[-1]))
            return (view, None, *rest), out
        x = _product.input_view(site.x, turned_x)
        w = _product.input_view(right, not turned_w, either=True)
        return (x, w, *rest), _product.output_view(site.output.shape, (x, w))

    @classmethod
    def room(cls, site: Site) -> int:
        return align(site.output.nhwc[3], _conv.kernel_step(site.precision, False))

    @classmethod
    def scratch(cls, site: Site) -> int:
        return 0 if simple(site) else product(site).regions()[-1]

    @classmethod
    def tasks(cls, site: Site) -> Iterator[Task]:
        if simple(site):
            return _fused.tasks(convolution(site))
        return product(site).tasks()


def _twice(node: Node, values: Mapping[str, Value], parts: tuple[Array, Array]) -> Expansion:
    """x beside itself, by a product with two unit matrices, times both parts of the weights."""
    x, w = values[node.inputs[0]], values[node.inputs[1]]
    twice, weights = f"{node.outputs[0]}/twice", f"{node.outputs[0]}/parts"
    k, one = x.shape[-1], Quant(np.ones((), np.float32), np.zeros((), np.int32))
    unit, both = np.tile(np.eye(k, dtype=np.int8), (1, 2)), np.concatenate(parts)
    first = Node(f"{node.name}/twice", "MatMul", (x.name, f"{twice}/unit"), (twice,))
    last = node.with_(inputs=(twice, weights, *node.inputs[2:]))
    made = {
        twice: replace(x, name=twice, shape=(*x.shape[:-1], 2 * k)),
        weights: replace(w, name=weights, shape=both.shape, dtype="int8"),
        f"{twice}/unit": Value(f"{twice}/unit", unit.shape, "int8", one),
    }
    return Expansion((first, last), made, {weights: both, f"{twice}/unit": unit})
