"""The words of every operator sample, kept as text: a refactor proves itself by changing none.

`pytest --update-golden` writes tests/golden anew; a commit titled [same-words] changes no file
there.  Per sample: tasks, and a digest of code, constants and relocations; per operator and
precision the first sample's first task in full, but for the entries of its tables.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from opcase import Case, all_cases
from opennpu.hw.regcmd import WORD_BYTES, listing
from opennpu.ops import Op
from opennpu.program import NpuSegment

GOLDEN = Path(__file__).parent / "golden"
CASES = [c for c in all_cases() if c.values[1].ok and not c.values[0].aliases]


def digest(segment: NpuSegment) -> str:
    """Of everything that reaches the device."""
    h = hashlib.sha256(segment.code)
    h.update(segment.const)
    h.update(repr((segment.relocs, segment.arena_bytes)).encode())
    return h.hexdigest()[:16]


def text_of(op: type[Op]) -> str:
    """All samples of one operator."""
    lines = []
    seen = set()
    for param in CASES:
        which, sample, precision = param.values
        if which is not op:
            continue
        segment = Case(op, sample, precision).segment()
        lines.append(f"{param.id}: {len(segment.tasks)} tasks, {digest(segment)}")
        if precision not in seen:
            seen.add(precision)
            first = segment.tasks[0]
            code = segment.code[first.word * WORD_BYTES : (first.word + first.words) * WORD_BYTES]
            lines += [f"    {line}" for line in listing(code) if "LUT_ACCESS_DATA" not in line]
    return "\n".join(lines) + "\n"


def operators() -> list[type[Op]]:
    return list(dict.fromkeys(c.values[0] for c in CASES))


@pytest.mark.parametrize("op", operators(), ids=lambda op: op.__name__)
def test_words_are_those_of_the_golden_file(op: type[Op], request: pytest.FixtureRequest) -> None:
    path, text = GOLDEN / f"{op.__name__}.txt", text_of(op)
    if request.config.getoption("--update-golden"):
        GOLDEN.mkdir(exist_ok=True)
        path.write_text(text)
    assert path.read_text() == text, "run pytest --update-golden and explain the change"


def test_no_golden_file_is_left_over() -> None:
    assert {p.stem for p in GOLDEN.glob("*.txt")} == {op.__name__ for op in operators()}
