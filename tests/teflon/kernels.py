"""TFLite's reference kernels for uint8, in NumPy.

They are needed node by node: the input of a later node is what the NPU wrote, and TFLite has no
answer to that.  The suite demands that they equal TFLite, byte for byte, on every whole model.
Facts: tensorflow/lite/kernels/internal/reference/{conv,depthwiseconv_uint8,add}.h (Apache-2.0).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.teflon.flatmodel import Conv, Quantized

Array = npt.NDArray[Any]


def windows(x: Array, conv: Conv, pad: Array | int) -> Array:
    """x: [H, W, C] -> [OH, OW, C, K, K]; ``pad`` (per channel) lies around it."""
    before, after = conv.pads(x.shape[0])
    around = ((before, after), (before, after), (0, 0))
    padded = np.pad(x, around)
    inside = np.pad(np.ones(x.shape, bool), around)
    padded = np.where(inside, padded, pad)
    win = np.lib.stride_tricks.sliding_window_view(padded, (conv.kernel,) * 2, axis=(0, 1))
    return win[:: conv.stride, :: conv.stride]


def products(win: Array, w: Array, depthwise: bool) -> Array:
    """Σ x·w, exact: [OH, OW, OC].  Every sum stays below 2^53."""
    oh, ow = win.shape[:2]
    if depthwise:
        return np.einsum("hwckl,ckl->hwc", win, w)
    flat = win.transpose(0, 1, 3, 4, 2).reshape(oh * ow, -1).astype(np.float64)
    out = flat @ w.reshape(w.shape[0], -1).T.astype(np.float64)
    return out.astype(np.int64).reshape(oh, ow, -1)


def accumulate(x: Array, q: Quantized, conv: Conv) -> Array:
    """Σ (x - zx)(w - zw) + bias."""
    win = windows(x.astype(np.int64) - q.zero, conv, 0)
    w = conv.w.astype(np.int64) - conv.weights.zero
    return products(win, w, conv.depthwise) + conv.bias


def convolution(x: Array, q: Quantized, conv: Conv) -> Array:
    """x: [H, W, C] uint8 -> [OH, OW, OC] uint8."""
    scale = float(np.float32(q.scale) * np.float32(conv.weights.scale))
    factor, shift = _multiplier(scale / float(np.float32(conv.output.scale)))
    return _bytes(_times(accumulate(x, q, conv), factor, shift) + conv.output.zero)


def addition(a: Array, qa: Quantized, b: Array, qb: Quantized, out: Quantized) -> Array:
    """The sum of two tensors, each requantized with 20 more bits."""
    sa, sb, so = (float(np.float32(q.scale)) for q in (qa, qb, out))
    twice = 2 * max(sa, sb)
    total = 0
    for x, q, s in ((a, qa, sa), (b, qb, sb)):
        raised = (x.astype(np.int64) - q.zero) << 20
        total = total + _times(raised, *_multiplier(s / twice))
    return _bytes(_times(total, *_multiplier(twice / ((1 << 20) * so))) + out.zero)


def _bytes(y: Array) -> Array:
    return np.clip(y, 0, 255).astype(np.uint8)


def _multiplier(real: float) -> tuple[int, int]:
    """real = factor * 2^(shift - 31)."""
    fraction, shift = math.frexp(real)
    factor = math.floor(fraction * (1 << 31) + 0.5)
    return (factor // 2, shift + 1) if factor == 1 << 31 else (factor, shift)


def _times(x: Array, factor: int, shift: int) -> Array:
    """MultiplyByQuantizedMultiplier with its two roundings."""
    left, right = max(shift, 0), max(-shift, 0)
    ab = (x << left) * factor
    nudge = np.where(ab >= 0, 1 << 30, 1 - (1 << 30))
    high = np.where(ab + nudge >= 0, (ab + nudge) >> 31, -(-(ab + nudge) >> 31))
    mask = (1 << right) - 1
    threshold = (mask >> 1) + (high < 0)
    return (high >> right) + ((high & mask) > threshold)
