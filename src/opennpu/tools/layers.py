"""A compiled program taken apart by layers, with its words as they are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np

from opennpu.hw.regcmd import TAIL_WORDS, WORD_BYTES, encode, tail
from opennpu.program import HostSegment, NpuSegment, PlacedTask, Program, Segment


@dataclass(frozen=True, slots=True)
class Layer:
    """Neighbouring tasks of one node."""

    node: str
    tasks: tuple[PlacedTask, ...]


def layers(segment: NpuSegment) -> list[Layer]:
    """The layers of a segment, in the order they run."""
    return [Layer(node, tuple(g)) for node, g in groupby(segment.tasks, lambda t: t.node)]


def one_job_each(program: Program) -> Program:
    """The program with a segment, and so a job, for each layer: to time them one by one.

    A segment's inputs arrive before its first layer and its outputs leave after its last; in
    between everything stays in the arena.  Only the link to the next layer is cut.
    """
    return replace(program, segments=tuple(p for s in program.segments for p in _apart(s)))


def _apart(segment: Segment) -> Iterator[Segment]:
    if isinstance(segment, HostSegment) or not segment.tasks:
        yield segment
        return
    parts = layers(segment)
    for i, layer in enumerate(parts):
        yield replace(
            _cut(segment, layer),
            inputs=segment.inputs if i == 0 else (),
            outputs=segment.outputs if i + 1 == len(parts) else (),
        )


def _cut(segment: NpuSegment, layer: Layer) -> NpuSegment:
    first, last = layer.tasks[0], layer.tasks[-1]
    begin, end = first.word, last.word + last.words
    code = np.frombuffer(segment.code, "<u8")[begin:end].copy()
    code[-TAIL_WORDS:] = [encode(w) for w in tail(last.units)]
    moved = begin * WORD_BYTES
    relocs = tuple(
        replace(r, word=r.word - begin, addend=r.addend - (moved if r.buffer == "code" else 0))
        for r in segment.relocs
        if begin <= r.word < end and r.word != end - TAIL_WORDS
    )
    tasks = tuple(replace(t, word=t.word - begin) for t in layer.tasks)
    name = f"{segment.name}/{layer.node}"
    return replace(segment, name=name, code=code.tobytes(), tasks=tasks, relocs=relocs)
