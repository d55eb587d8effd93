"""A plain model of the words that Mesa's rocket driver writes for one quantized convolution.

Facts: Mesa rocket rkt_ml.c and rkt_regcmd.c (MIT), in our words.  Bytes are unsigned in TFLite;
Mesa moves everything by 128 and lets the DPU add (128 - zw) · Σx.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from tflite import Layer

Array = npt.NDArray[Any]


def requantization(layer: Layer) -> tuple[int, int, bool]:
    """(scale, shift, was a carry lost?) of the output converter."""
    c = layer.conv
    ratio = np.float32(layer.input.scale) * np.float32(c.weights.scale) / np.float32(c.output.scale)
    word = int(np.float32(ratio).view(np.uint32))
    scale = ((word >> 9) & 0x7FFF) + 1
    if scale < 1 << 14:
        scale |= 1 << 14
    return scale, 141 - (word >> 23 & 0xFF), (word >> 9) & 0x3FFF == 0x3FFF


def pad_bytes(layer: Layer) -> tuple[int, int]:
    """Padding of even and of (in the first half of 64 channels) odd channels, in x - 128."""
    zero, k = layer.input.zero, layer.conv.kernel
    word = (zero - 128) & 0xFFFF_FFFF
    if k >= 3 and zero == 0:
        word = 0xFFFF_8080
    if layer.conv.depthwise and zero == 0x8B:
        word = 0x0B0B
    low, high = word & 0xFF, word >> 8 & 0xFF
    return low - 256 * (low > 127), high - 256 * (high > 127)


def is_padded(layer: Layer, size: int) -> bool:
    """Does any output pixel reach over the border?"""
    return layer.conv.same and _total_pad(layer, size) > 0


def _total_pad(layer: Layer, size: int) -> int:
    c = layer.conv
    out = -(-size // c.stride)
    return max(0, (out - 1) * c.stride + c.kernel - size)


def run(layer: Layer, x: Array) -> Array:
    """x: [H, W, C] uint8 -> [OH, OW, OC] uint8."""
    c = layer.conv
    zx, zw, zy = layer.input.zero, c.weights.zero, c.output.zero
    size, channels, k = x.shape[0], x.shape[2], c.kernel
    total = _total_pad(layer, size) if c.same else 0
    before, after = total // 2, total - total // 2
    even, odd = pad_bytes(layer)
    lane = np.arange(channels) % 64
    pad = np.where((lane < 32) & (lane % 2 == 1), odd, even)
    padded = np.empty((size + total, size + total, channels), np.int64)
    padded[:] = pad
    padded[before : size + before, before : size + before] = x.astype(np.int64) - 128
    assert after >= before
    win = np.lib.stride_tricks.sliding_window_view(padded, (k, k), axis=(0, 1))
    win = win[:: c.stride, :: c.stride]  # [OH, OW, C, K, K]
    w = layer.w.astype(np.int64)
    if c.depthwise:
        products = np.einsum("hwckl,ckl->hwc", win, w - 128)
        sums = win.sum((-2, -1))
        fold = (w - zw).sum((1, 2))
    else:
        products = np.einsum("hwckl,oklc->hwo", win, w - 128)
        sums = win.sum((2, 3, 4))[..., None]
        fold = (w - zw).sum((1, 2, 3))
    acc = products + (128 - zw) * sums + layer.bias - fold * (zx - 128)
    scale, shift, _ = requantization(layer)
    t = acc * scale
    half = 1 << (shift - 1)
    rounded = (t + half - 1 + ((t >> shift) & 1)) >> shift  # ties to even
    return (np.clip(rounded + zy - 128, -128, 127) + 128).astype(np.uint8)
