"""Attention (ONNX opset 23): product with the keys, Softmax, product with the values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from opennpu.errors import UnsupportedError
from opennpu.hw.rk3588.common import Precision
from opennpu.ir.graph import Node, Value
from opennpu.ops.base import Expansion, Op, Sample, apply_epilogue
from opennpu.ops.reduce import Draft
from opennpu.ops.softmax import BOUND

Array = npt.NDArray[Any]
FP16 = (Precision.FP16,)
MASKED = -30000.0  # added to a score: e**x of it is 0, and the sum still is a fp16 number


def refusal(node: Node, what: str) -> UnsupportedError:
    return UnsupportedError(node.name, f"Attention {what}", "It stays in onnxruntime")


def head_size(node: Node, q: tuple[int, ...]) -> int:
    """Elements of one query."""
    return q[-1] if len(q) == 4 else q[-1] // int(node.attrs["q_num_heads"])


def scale_of(node: Node, q: tuple[int, ...]) -> float:
    return float(node.attrs.get("scale") or 1 / math.sqrt(head_size(node, q)))


def mask_of(node: Node, mask: Array | None, queries: int, keys: int) -> Array | None:
    """What is added to the scores, float; booleans say which keys take part."""
    total = None
    if mask is not None:
        added = np.where(mask, 0.0, MASKED) if mask.dtype == np.bool_ else mask.astype(np.float64)
        total = np.maximum(added, MASKED)
    if node.attrs.get("is_causal"):
        causal = np.where(np.tri(queries, keys, dtype=np.bool_), 0.0, MASKED)
        total = causal if total is None else np.maximum(total + causal, MASKED)
    return None if total is None else total.astype(np.float32)


class Attention(Op):
    precisions = FP16
    samples = (
        Sample(((2, 3, 10, 32), (2, 3, 12, 32), (2, 3, 12, 16)), precisions=FP16, bound=BOUND),
        Sample(((1, 2, 9, 40),) * 3, {"is_causal": 1}, precisions=FP16, bound=BOUND),
        Sample(((1, 2, 17, 24),) * 3, {"scale": 0.5}, ((17, 17),), precisions=FP16, bound=BOUND),
        Sample(((1, 2, 9, 40),) * 3, {"softcap": 30.0}, ok=False, precisions=FP16),
    )

    @staticmethod
    def reference(node: Node, *inputs: Array) -> Array:
        """q: [B, H, M, D], k: [B, H, N, D], v: [B, H, N, E] -> [B, H, M, E], float32."""
        q, k, v = (i.astype(np.float64) for i in inputs[:3])
        scores = q @ k.swapaxes(-1, -2) * scale_of(node, q.shape)
        mask = mask_of(node, inputs[3] if len(inputs) > 3 else None, *scores.shape[-2:])
        scores = scores if mask is None else scores + mask
        e = np.exp(scores - scores.max(-1, keepdims=True))
        y = e / e.sum(-1, keepdims=True) @ v
        return apply_epilogue(node, y.astype(np.float32))

    @staticmethod
    def expand(
        node: Node, values: Mapping[str, Value], consts: Mapping[str, Array]
    ) -> Expansion | None:
        a = node.attrs
        if a.get("softcap") or a.get("qk_matmul_output_mode"):
            raise refusal(node, f"has softcap {a.get('softcap', 0):g}, the NPU takes 0")
        if any(node.inputs[4:]) or len([o for o in node.outputs if o]) != 1:
            raise refusal(node, f"has {len(node.inputs)} inputs, the NPU keeps no keys: at most 4")
        mask = None
        if len(node.inputs) > 3 and node.inputs[3]:
            mask = consts.get(node.inputs[3])
            if mask is None:
                raise refusal(node, "has a computed mask, input 3 must be a constant")
        names = list(node.inputs[:3])
        draft = Draft(node, values)
        heads = [int(a.get(n, 0)) for n in ("q_num_heads", "kv_num_heads", "kv_num_heads")]
        scale = scale_of(node, values[names[0]].shape)
        for i, (name, count) in enumerate(zip(names, heads, strict=True)):
            shape = values[name].shape
            if len(shape) == 3:  # [B, M, H·D]
                b, m, wide = shape
                split = (b, m, count, wide // count)
                name = draft.add("Reshape", (name,), split, shape=split)
                turned = (b, count, m, wide // count)
                name = draft.add("Transpose", (name,), turned, perm=(0, 2, 1, 3))
            names[i] = name
        q, k, v = (draft.shape(n) for n in names)
        if q[1] != k[1]:
            raise refusal(
                node, f"has {q[1]} heads of queries and {k[1]} of keys, the NPU pairs them"
            )
        factor = draft.constant(np.array([scale], np.float32))
        scores = (*q[:3], k[2])
        name = draft.add("MatMul", (names[0], names[1]), scores, transB=1)
        name = draft.add("Mul", (name, factor), scores)
        added = mask_of(node, mask, *scores[-2:])
        if added is not None:
            blind = int((added <= MASKED).all(-1).sum())
            if blind:
                raise refusal(node, f"hides all {k[2]} keys from {blind} queries, Softmax needs 1")
            name = draft.add("Add", (name, draft.constant(added)), scores)
        name = draft.add("Softmax", (name,), scores, axis=-1)
        out = (*q[:3], v[3])
        name = draft.add("MatMul", (name, names[2]), out)
        y = values[node.outputs[0]].shape
        if len(y) == 3:
            name = draft.add("Transpose", (name,), (q[0], q[2], q[1], v[3]), perm=(0, 2, 1, 3))
            draft.add("Reshape", (name,), y, shape=y)
        return draft.done()
