"""Lifetimes → offsets: where each value lies in a segment's arena."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from opennpu.hw.layout import align

ALIGN_BYTES = 64


@dataclass(frozen=True, slots=True)
class Lifetime:
    """A block of ``nbytes`` in use from step ``birth`` to step ``death``, both included."""

    name: str
    nbytes: int
    birth: int
    death: int


def plan(blocks: Sequence[Lifetime]) -> tuple[dict[str, int], int]:
    """(offset of each block, arena bytes): first fit, largest blocks first.

    Blocks whose lifetimes overlap never share a byte.
    """
    offsets: dict[str, int] = {}
    placed: list[tuple[int, Lifetime]] = []
    total = 0
    for block in sorted(blocks, key=lambda b: (-b.nbytes, b.birth, b.name)):
        taken = sorted(
            (at, at + align(other.nbytes, ALIGN_BYTES))
            for at, other in placed
            if other.birth <= block.death and block.birth <= other.death
        )
        at = 0
        for start, end in taken:
            if start - at >= block.nbytes:
                break
            at = max(at, end)
        offsets[block.name] = at
        placed.append((at, block))
        total = max(total, at + align(block.nbytes, ALIGN_BYTES))
    return offsets, total
