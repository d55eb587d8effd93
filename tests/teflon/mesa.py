"""What the words compute that Mesa's rocket driver writes, in NumPy and without `opennpu.emu`.

Two halves.  `predicted` says what Mesa writes for a convolution, from the numbers of the model;
the suite demands that the trace has just that.  `run` says what these words compute.

Facts: Mesa rkt_ml.c, rkt_coefs.c, rkt_task.c and rkt_regcmd.c (MIT), in our words; board notes
A.8 (pad lanes, CPEND) and A.9 (output converter); register notes C.3, C.5, C.9, E.2.
Bytes are unsigned in TFLite; Mesa moves them by 128 and lets CPEND add (128 - zw) * sum of x.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.teflon.flatmodel import Conv, Quantized
from tests.teflon.kernels import products, windows

Array = npt.NDArray[Any]

ATOM = 16  # channels; also bytes
GROUP = 32  # channels or kernels of a weight block
DEPTHWISE_GROUP = 64
MIN_STRIDE = 12  # atoms: Mesa's smallest EW_SURF_STRIDE

# Two of the weight scales, as float bits, for which Mesa sets CLIP_TRUNCATE to 1 (register notes
# F.5: there are 15).
TRUNCATED = (0x3C0060DE, 0x3D1748E6)


@dataclass(frozen=True)
class Addition:
    """The fused operand: ((e + offset) * scale) >> shift is added before the output converter."""

    offset: int
    scale: int
    shift: int


@dataclass(frozen=True)
class Words:
    """What the registers of a convolution say about its arithmetic."""

    scale: int  # output converter
    shift: int
    offset: int
    ow_op: int
    pad: int  # PAD_CON1, 32 bits
    truncate: int
    add: Addition | None = None

    @property
    def pad_bytes(self) -> tuple[int, int]:
        """(byte 0, byte 1), signed: the odd ones of the first 32 of 64 channels take byte 1."""
        low, high = self.pad & 0xFF, self.pad >> 8 & 0xFF
        return low - 256 * (low > 127), high - 256 * (high > 127)


def _bits(x: float | np.floating[Any]) -> int:
    return int(np.float32(x).view(np.uint32))


def _round(t: Array, shift: int) -> Array:
    """t / 2^shift, ties to even."""
    if shift <= 0:
        return t << -shift
    return (t + (1 << (shift - 1)) - 1 + ((t >> shift) & 1)) >> shift


def ratio(q: Quantized, conv: Conv) -> np.float32:
    """Input scale * weight scale / output scale, in fp32."""
    product = np.float32(q.scale) * np.float32(conv.weights.scale)
    return np.float32(product / np.float32(conv.output.scale))


def loses_carry(q: Quantized, conv: Conv) -> bool:
    """15 bits of exponent and mantissa are all ones: + 1 overflows or clears them."""
    return _bits(ratio(q, conv)) >> 9 & 0x3FFF == 0x3FFF


def predicted(q: Quantized, conv: Conv, in_add: bool, last: bool) -> Words:
    """What Mesa writes.

    in_add: it makes an operand of an addition.  last: it does the addition; the numbers of that
    are literals of Mesa, and only the trace knows them: they are left out here.
    """
    word = _bits(ratio(q, conv))
    scale = (word >> 9 & 0x7FFF) + 1
    scale |= (scale < 1 << 14) << 14
    scale -= (scale & 0x8000) << 1  # the register is signed
    truncate = int(_bits(conv.weights.scale) in TRUNCATED)
    shift = 141 - (word >> 23) - truncate
    pad = 0xFFFF_8080 if conv.kernel >= 3 and q.zero == 0 else q.zero - 128 & 0xFFFF_FFFF
    if in_add or last:
        pad = 0xFFFF_FF80
    if conv.depthwise and q.zero == 0x8B:
        pad = 0x0B0B
    ow_op = 128 - conv.weights.zero
    return Words(
        (scale & 0xFFFF) - ((scale & 0x8000) << 1),
        shift,
        conv.output.zero - 128,
        ow_op,
        pad,
        truncate,
    )


def packed_weights(conv: Conv) -> bytes:
    """The bytes of Mesa's weight buffer."""
    depthwise, real_out = conv.depthwise, conv.out_channels
    real = real_out if depthwise else conv.w.shape[3]
    channels, kernels = max(real, ATOM), 1 if depthwise else real_out + real_out % 2
    group = DEPTHWISE_GROUP if depthwise else GROUP
    width = min(channels, group)
    zero = conv.weights.zero - 128 & 0xFF
    w = (conv.w[np.newaxis].transpose(0, 2, 3, 1) if depthwise else conv.w) + np.uint8(128)
    out = bytearray()
    for oc in range(0, kernels, GROUP):
        for ic in range(0, channels, group):
            for y, x in np.ndindex(conv.kernel, conv.kernel):
                for o in range(oc, min(oc + GROUP, kernels)):
                    for i in range(ic, ic + width):
                        if not depthwise and o >= real_out:
                            out.append(0)
                        elif i < real:
                            out.append(int(w[o, y, x, i]))
                        elif i - ic < ATOM or real % GROUP > ATOM:
                            out.append(zero)
    return bytes(out)


def read_weights(conv: Conv, data: bytes) -> Array:
    """How the NPU reads them: [kernels, K, K, channels], depthwise [channels, K, K]; int8."""
    k = conv.kernel
    real = conv.out_channels if conv.depthwise else conv.w.shape[3]
    channels = -(-real // ATOM) * ATOM
    kernels = 1 if conv.depthwise else conv.out_channels + conv.out_channels % 2
    group = DEPTHWISE_GROUP if conv.depthwise else GROUP
    raw = np.frombuffer(data, np.int8)
    raw = np.pad(raw, (0, max(0, kernels * k * k * channels - raw.size)))
    w = np.empty((kernels, k, k, channels), np.int8)
    at = 0
    for oc in range(0, kernels, GROUP):
        for ic in range(0, channels, group):
            block = w[oc : oc + GROUP, :, :, ic : ic + group]
            n = block.size
            o, _, _, i = block.shape
            block[...] = raw[at : at + n].reshape(k, k, o, i).transpose(2, 0, 1, 3)
            at += n
    return w[0].transpose(2, 0, 1) if conv.depthwise else w


def packs_straight(conv: Conv) -> bool:
    """Does the NPU find the weights where Mesa puts them, and zero points in the other lanes?"""
    w = read_weights(conv, packed_weights(conv))[: conv.out_channels]
    want = (conv.w + np.uint8(128)).view(np.int8)
    if conv.depthwise:
        return bool((w == want).all())
    rest = w[..., want.shape[3] :]
    zero = (rest.astype(np.int64) + 128 == conv.weights.zero).all()
    return bool((w[..., : want.shape[3]] == want).all() and zero)


def biases(q: Quantized, conv: Conv, truncate: int) -> Array:
    """Mesa's bias buffer: the zero point of the input is in it; divided as C divides."""
    fold = (conv.w.astype(np.int64) - conv.weights.zero).reshape(conv.out_channels, -1).sum(1)
    whole = conv.bias - fold * (q.zero - 128)
    return np.sign(whole) * (np.abs(whole) >> truncate)


def run(
    words: Words,
    conv: Conv,
    bias: Array,
    x: Array,
    w: Array,
    e: Array | None = None,
    *,
    truncate_last: bool = False,
) -> Array:
    """x: [H, W, C of whole atoms] int8, e: [OH, OW, OC] int8 operand -> [OH, OW, OC] int8.

    w: from `read_weights`.  CLIP_TRUNCATE shifts before CPEND (reference/README.md);
    truncate_last: after it, the reading that Mesa's numbers are right for.
    """
    even, odd = words.pad_bytes
    lane = np.arange(x.shape[2]) % DEPTHWISE_GROUP
    win = windows(x.astype(np.int64), conv, np.where((lane < GROUP) & (lane % 2 == 1), odd, even))
    n = conv.out_channels
    acc = products(win, w.astype(np.int64), conv.depthwise)[..., :n]
    sums = win.sum((-2, -1))[..., :n] if conv.depthwise else win.sum((2, 3, 4))[..., np.newaxis]
    if truncate_last:
        acc = _round(acc + words.ow_op * sums, words.truncate) + bias
    else:
        acc = _round(acc, words.truncate) + words.ow_op * sums + bias
    if words.add is not None:
        assert e is not None
        a = words.add
        acc = acc + _round((e.astype(np.int64) + a.offset) * a.scale, a.shift)
    out = _round(np.clip(acc, -(1 << 31), (1 << 31) - 1) * words.scale, words.shift) + words.offset
    return np.clip(out, -128, 127).astype(np.int8)


def operand_atoms(rows: int, cols: int, size: int, surfaces: int) -> Iterator[tuple[int, int]]:
    """(surface, atom offset of its first pixel from the tensor) of the fused operand.

    MRDMA brings the even surfaces, ERDMA the odd ones; both skip EW_SURF_STRIDE and a notch.
    Mesa means two surfaces of W * H; 12 is the least it programs, and width 3 gets a notch of 15.
    """
    stride = max(rows * cols, MIN_STRIDE)
    notch = 15 if size == 3 else stride
    for s in range(surfaces):
        step = (stride if s % 2 else rows * cols) + notch
        yield s, s // 2 * step + (rows * cols if s % 2 else 0)
