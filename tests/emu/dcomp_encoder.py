"""Encoder of the compressed weight format (register notes B.11): in tests only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

CODES = [(0, 2), (1, 2), (7, 3), (3, 3), (6, 3), (10, 4), (18, 5), (2, 5)]
LANE_ALIGN_BYTES, BLOCK, LEAST_BLOCKS = 64, 16, 8


def compress(
    weights: npt.NDArray[np.uint8], base: int | None = None, widths: Sequence[int] | None = None
) -> tuple[npt.NDArray[np.uint8], list[int]]:
    """(lane streams, DCOMP_AMOUNT of each lane) of whole 1024-byte blocks.

    ``widths``: magnitude width of prefix index 0..7; by default frequent widths get short codes.
    """
    lanes: list[list[int]] = [[] for _ in range(16)]
    for block in weights.reshape(-1, 1024).tolist():
        for half in range(2):
            for group in range(8):
                for p in range(2):
                    for q in range(8):
                        at = half * 512 + (2 * group + p) * 32 + 4 * q
                        lanes[8 * p + q] += block[at : at + 4]
    parts, amounts = [], []
    for values in lanes:
        stream = _lane(values, base, widths)
        stream += bytes(max(0, LEAST_BLOCKS * BLOCK - len(stream)))
        stream += bytes(-len(stream) % BLOCK)
        amounts.append(len(stream) // BLOCK - 1)
        parts.append(stream + bytes(-len(stream) % LANE_ALIGN_BYTES))
    return np.frombuffer(b"".join(parts), np.uint8), amounts


def _lane(values: list[int], base: int | None, widths: Sequence[int] | None) -> bytes:
    base = Counter(values).most_common(1)[0][0] if base is None else base
    symbols = [_symbol(v, base) for v in values]
    if widths is None:
        count = Counter(width for width, _, _ in symbols)
        widths = sorted(range(8), key=lambda w: -count[w])
    bits: list[int] = []
    for width, sign, low in symbols:
        code, length = CODES[list(widths).index(width)]
        _put(bits, code, length)
        _put(bits, sign, 1)
        _put(bits, low, max(width - 1, 0))
    header = bytearray(16)
    header[1] = base
    for i, w in enumerate(widths):
        header[4 + i // 2] |= w << 4 * (i % 2)
    return bytes(header) + np.packbits(np.array(bits, np.uint8), bitorder="little").tobytes()


def _symbol(value: int, base: int) -> tuple[int, int, int]:
    """(width, sign, low bits) with base + mag or base - mag - 1 = value, modulo 256."""
    up = (value - base) % 256
    sign, magnitude = (0, up) if up < 128 else (1, 255 - up)
    width = magnitude.bit_length()
    return width, sign, magnitude - (1 << width - 1 if width else 0)


def _put(bits: list[int], value: int, length: int) -> None:
    bits += [value >> n & 1 for n in range(length)]
