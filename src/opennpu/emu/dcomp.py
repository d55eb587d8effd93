"""DCOMP: the decompressor of 8-bit weights (register notes B.11; one project decoded it: GUESSED).

Sixteen lane streams follow each other, each padded to 64 bytes.  A lane: a header of 16 bytes,
then, least significant bit first, one symbol per weight byte:

    prefix code    index 0..7; the header gives each index a magnitude width of 0..7 bits
    sign bit       always
    width - 1      low bits of the magnitude, where the width is above 1

    magnitude = 0 for width 0, else 2**(width-1) + low bits
    byte      = base + magnitude, or base - magnitude - 1 with the sign set, modulo 256
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from opennpu.emu.context import Context
from opennpu.emu.registers import Group
from opennpu.hw.rk3588 import chip, cna
from opennpu.hw.rk3588.common import Precision

Array = npt.NDArray[Any]

UNIT = "CNA"
LANES = 16
LOSSLESS = 1  # DCOMP_CTRL
SIXTEEN_LANES = 0x5555_5555  # DCOMP_REGNUM
HEADER_BYTES = chip.ATOM_BYTES
LANE_ALIGN_BYTES = 64
LEAST_BLOCKS = 8  # of 16 bytes, per lane
BLOCK_BYTES = 1024  # 32 kernels of 32 channels
PREFIXES = ((0, 2), (1, 2), (7, 3), (3, 3), (6, 3), (10, 4), (18, 5), (2, 5))
"""(bits, length) of prefix index 0..7, first bit lowest.  They are complete: any bits decode."""

LONGEST_PREFIX = 5
AMOUNTS = tuple(getattr(cna, f"DCOMP_AMOUNT{i}") for i in range(LANES))


def lane_bytes(count: int) -> Array:
    """[16, count / 16]: which bytes of ``count`` weight bytes each lane holds, in its order.

    Lane 8p + q holds, of every block of 1024 bytes, for half 0..1 and group 0..7 the bytes
    half * 512 + (2 * group + p) * 32 + 4 * q + 0..3.
    """
    block, half, group, part = np.ix_(
        np.arange(count // BLOCK_BYTES), np.arange(2), np.arange(8), np.arange(4)
    )
    lanes = []
    for p in range(2):
        for q in range(8):
            at = block * BLOCK_BYTES + half * 512 + (2 * group + p) * 32 + 4 * q + part
            lanes.append(at.reshape(-1))
    return np.stack(lanes)


def fetch(ctx: Context, g: Group, base: int, count: int, precision: Precision) -> Array:
    """Read and decompress ``count`` weight bytes from the lanes at ``base``."""
    control = g.get(cna.DCOMP_CTRL).decomp_control
    lanes = g.get(cna.DCOMP_REGNUM).dcomp_regnum
    blocks = [_amount(g, i) + 1 for i in range(LANES)]
    ctx.require(
        control == LOSSLESS
        and lanes == SIXTEEN_LANES
        and precision is Precision.INT8
        and count % BLOCK_BYTES == 0
        and base % LANE_ALIGN_BYTES == 0
        and min(blocks) >= LEAST_BLOCKS,
        "cna.decompression",
        UNIT,
        f"decompresses {count} bytes of {precision.name} from {base:#x} with DCOMP_CTRL "
        f"{control}, DCOMP_REGNUM {lanes:#x}, lanes of {min(blocks)} blocks and more",
    )
    ctx.charge(UNIT, 0, sum(blocks) * chip.ATOM_BYTES)  # a word of work per bit and more
    out = np.empty(count, np.uint8)
    at = base
    for lane, (n, where) in enumerate(zip(blocks, lane_bytes(count), strict=True)):
        raw = ctx.space.read(at, n * chip.ATOM_BYTES, "weight", UNIT)
        out[where] = _lane(ctx, lane, raw, where.size)
        at += -(-raw.size // LANE_ALIGN_BYTES) * LANE_ALIGN_BYTES
    return out


def _amount(g: Group, lane: int) -> int:
    return int(getattr(g.get(AMOUNTS[lane]), f"dcomp_amount{lane}"))


def _lane(ctx: Context, lane: int, raw: Array, symbols: int) -> Array:
    """Decode ``symbols`` bytes of one lane."""
    nibbles = np.stack([raw[4:8] & 15, raw[4:8] >> 4], axis=-1).reshape(-1)
    ctx.require(
        raw[0] == 0 and sorted(nibbles.tolist()) == list(range(8)),
        "cna.decompression",
        UNIT,
        f"finds widths {nibbles.tolist()} in the header of lane {lane}",
    )
    bits = np.unpackbits(raw[HEADER_BYTES:], bitorder="little").astype(np.int32)
    ahead = _windows(bits)
    prefix, width = _PREFIX_INDEX[ahead & 31], nibbles.astype(np.int32)[_PREFIX_INDEX[ahead & 31]]
    length = _PREFIX_LENGTH[prefix] + 1 + np.maximum(width - 1, 0)
    steps = (np.arange(bits.size) + length).tolist()
    starts, at = [], 0
    for _ in range(symbols):
        if at >= bits.size:
            break
        starts.append(at)
        at = steps[at]
    needed = max(LEAST_BLOCKS, -(-(HEADER_BYTES * 8 + at) // (8 * chip.ATOM_BYTES)))
    if needed * chip.ATOM_BYTES < raw.size:
        blocks = raw.size // chip.ATOM_BYTES
        ctx.report(
            "cna.decompression_long", UNIT, f"reads {blocks} blocks of lane {lane}, it has {needed}"
        )
    short = len(starts) < symbols or at > bits.size
    if short:
        ctx.report(
            "cna.decompression_short",
            UNIT,
            f"reads {symbols} weights from lane {lane}, its {raw.size} bytes hold fewer",
        )
    found = np.full(symbols, ctx.policy.poison, np.int32)
    s = np.array(starts, np.int64)
    tail = ahead[s] >> _PREFIX_LENGTH[prefix[s]]
    w = width[s]
    top = np.where(w > 0, 1 << np.maximum(w - 1, 0), 0)
    magnitude = top + (tail >> 1 & np.maximum(top - 1, 0))
    value = int(raw[1]) + np.where(tail & 1, -magnitude - 1, magnitude)
    found[: s.size] = value
    return (found & 0xFF).astype(np.uint8)


def _windows(bits: Array) -> Array:
    """The 16 bits from each position on, first bit lowest, zeros past the end."""
    padded = np.concatenate([bits, np.zeros(16, np.int32)])
    out = np.zeros(bits.size, np.int32)
    for n in range(16):
        out |= padded[n : n + bits.size] << n
    return out


def _prefix_index() -> Array:
    table = np.zeros(1 << LONGEST_PREFIX, np.int64)
    for at in range(table.size):
        (table[at],) = [i for i, (v, n) in enumerate(PREFIXES) if at & (1 << n) - 1 == v]
    return table


_PREFIX_INDEX = _prefix_index()
_PREFIX_LENGTH = np.array([n for _, n in PREFIXES], np.int32)
