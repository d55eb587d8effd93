"""MatMul and Gemm with a constant right operand, as a 1x1 convolution over rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from opennpu.hw.layout import align
from opennpu.ir.graph import Node
from opennpu.ops import _conv
from opennpu.ops.base import Op, Sample, Site, apply_epilogue, clip_range, matrix_view
from opennpu.ops.conv import weight_scale
from opennpu.program import Task, View

Array = npt.NDArray[Any]


def convolution(site: Site) -> _conv.Convolution:
    """[…, M, K] x [K, N]: rows are pixels, K are channels."""
    w, bias = site.const(1), site.const(2)
    assert w is not None
    return _conv.Convolution(
        site=site,
        x=site.x,
        y=site.output,
        window=_conv.Window(),
        weights=np.ascontiguousarray(w.T)[:, None, None, :],
        bias=None if bias is None else np.broadcast_to(bias.reshape(-1), (w.shape[1],)),
        weight_scale=weight_scale(site, 1, w.shape[1]),
        depthwise=False,
        epilogue=_conv.Epilogue(*clip_range(site.node)),
    )


class MatMul(Op):
    names = ("MatMul", "Gemm")
    macs = True
    samples = (
        Sample(((4, 64),), consts=((64, 32),)),
        Sample(((1, 1280),), {}, ((1280, 1000), (1000,)), op="Gemm"),
        Sample(((2, 7, 96),), consts=((96, 40), (40,))),
        Sample(((1, 5, 33),), consts=((33, 17),)),
        Sample(((1, 1500, 64),), consts=((64, 64),)),
    )

    @staticmethod
    def reference(node: Node, *inputs: Array) -> Array:
        """x: […, M, K], w: [K, N], bias: [N] -> […, M, N], float32."""
        y = inputs[0].astype(np.float32) @ inputs[1].astype(np.float32)
        if len(inputs) > 2 and inputs[2] is not None:
            y = y + inputs[2]
        return apply_epilogue(node, y).astype(np.float32)

    @staticmethod
    def check(site: Site) -> None:
        w, bias = site.const(1), site.const(2)
        for name in ("transA", "transB", "alpha", "beta"):
            value = site.node.attrs.get(name, 1.0 if name in ("alpha", "beta") else 0)
            if value not in (0, 1.0) or (name.startswith("trans") and value):
                raise site.refuse(f"has {name}={value} with operands that cannot absorb it")
        if w is None:
            raise site.refuse("has a computed right operand, weights are packed at compile time")
        if w.ndim != 2:
            raise site.refuse(f"has a {w.ndim}-D right operand, the NPU multiplies by a 2-D one")
        if len(site.inputs) > 2 and site.inputs[2] is not None:
            if bias is None:
                raise site.refuse("has a computed bias, the NPU takes a constant one")
            if bias.size != 1 and (bias.size, bias.shape[-1]) != (w.shape[1], w.shape[1]):
                raise site.refuse(f"adds a {list(bias.shape)} bias to {w.shape[1]} columns")
        if len(site.x.shape) < 2:
            raise site.refuse("has a 1-D left operand, the NPU takes rows")
        low, high = clip_range(site.node)
        _conv.check_clip(site, low, high, site.output)
        _conv.check(convolution(site))

    @staticmethod
    def views(site: Site) -> tuple[tuple[View | None, ...], View]:
        k, rest = site.x.shape[-1], tuple(None for _ in site.inputs[1:])
        view = site.x.view
        if view is None or view.perm[-1] != len(site.x.shape) - 1 or view.nhwc[3] != k:
            view = matrix_view(site.x.shape)
        out = replace(view, nhwc=(*view.nhwc[:3], site.output.shape[-1]))
        return (view, *rest), out

    @classmethod
    def room(cls, site: Site) -> int:
        return align(site.output.nhwc[3], _conv.kernel_step(site.precision, False))

    @classmethod
    def tasks(cls, site: Site) -> Iterator[Task]:
        return _conv.tasks(convolution(site))
