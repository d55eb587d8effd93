"""docs/reference/coverage.md: what the emulator models, how sure that is, and the tests of it.

    python -m docs.make_coverage            runs tests/emu and writes the page into this checkout
    python -m docs.make_coverage --check    fails if the page there is not what would be written

The modes, their types and their trust are those of tests/emu/modes.py.  The tests are not claimed:
a plugin notes what the emulator ran in each (tests/emu/recorder.py).  Both fail for a mode, a rule
or a switch that no test ran, and for a mode that ran and has no row.
"""

from __future__ import annotations

import io
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from opennpu.emu.violations import RULES, Effect
from tests.emu.modes import MODES, Mode, Trust
from tests.emu.recorder import Recorder, switches

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "reference" / "coverage.md"
SHOWN = 2  # tests per row
RULE_TESTS = "tests/emu/test_rules.py"
Noted = Mapping[str, Set[tuple[str, ...]]]

EFFECTS = {
    Effect.HANG: "hang",
    Effect.GARBAGE: "garbage: poison",
    Effect.LITERAL: "literal: wrong data, computed",
    Effect.UNKNOWN: "unknown: hangs",
    Effect.WARNING: "warning: right, and listed",
}

HEAD = """\
# What the emulator covers

Made by `python -m docs.make_coverage`, which runs `tests/emu` and notes what the emulator ran in
each test; tests that draw their programs at random do not count. Modes, types and trust are those
of [modes.py](../../tests/emu/modes.py):

| trust | means |
|---|---|
| measured | bytes or numbers of a board agree with the model |
| board-run | programs with it pass on a board |
| documented | a manual, or a sibling of the chip, says so |
| guessed | nothing contradicts it |

[Sources](../explanation/sources.md) names the notes.
"""


def run() -> Recorder:
    """All tests of the emulator, with the recorder."""
    recorder = Recorder()
    told = io.StringIO()
    with redirect_stdout(told):
        code = pytest.main(["-q", "-p", "no:cacheprovider", str(ROOT / "tests/emu")], [recorder])
    if code:
        sys.exit(f"{told.getvalue()}\ndocs.make_coverage needs passing tests")
    return recorder


# -- who ran what ----------------------------------------------------------------------------------


def short(test: str) -> str:
    """``tests/emu/test_x.py::test_y[z]`` -> ``test_x.py::test_y``."""
    return test.removeprefix("tests/emu/").partition("[")[0]


class Finder:
    """The tests that show a thing best: those that broke no rule, then those that did least.

    Attributes:
        by_key: (broke a rule, things it did, test) for each thing.
    """

    def __init__(self, noted: Noted, recorder: Recorder) -> None:
        self.by_key: dict[tuple[str, ...], list[tuple[bool, int, str]]] = defaultdict(list)
        for test, keys in noted.items():
            broke = bool(recorder.broken[test])
            for key in keys:
                self.by_key[key].append((broke, len(keys), test))

    def tests(self, key: tuple[str, ...]) -> tuple[str, ...]:
        """A few, best first."""
        names = dict.fromkeys(short(t) for *_, t in sorted(self.by_key.get(key, ())))
        return tuple(names)[:SHOWN]

    def cover(self, mode: Mode) -> dict[str, list[str]]:
        """A test for each type of a mode: as few as it takes, with the mode in their names."""
        ranks: dict[str, dict[str, tuple[bool, int]]] = defaultdict(dict)
        for kind in mode.types:
            for broke, did, test in self.by_key[mode.unit, mode.name, kind]:
                if not test.startswith(RULE_TESTS):  # those look at the effect, not at the values
                    known = ranks[short(test)].get(kind, (True, did))
                    ranks[short(test)][kind] = min(known, (broke, did))
        words = re.findall("[a-z]{4,}", mode.name.lower())
        left, out = set(mode.types), {}
        while left:
            best = min(
                ranks,
                key=lambda t: (
                    max((broke for k, (broke, _) in ranks[t].items() if k in left), default=True),
                    -len(left & ranks[t].keys()),
                    -sum(word in t for word in words),
                    sum(did for _, did in ranks[t].values()) / len(ranks[t]),
                    t,
                ),
            )
            kinds = [k for k in mode.types if k in left & ranks[best].keys()]
            if not kinds:
                break
            out[best] = kinds
            left -= set(kinds)
        return out


def complaints(recorder: Recorder) -> Iterator[str]:
    """What is missing."""
    rows = Counter((m.unit, m.name, t) for m in MODES for t in m.types)
    ran = {key for keys in recorder.ran.values() for key in keys}
    for row in rows:
        if rows[row] > 1:
            yield f"{', '.join(row)}: has {rows[row]} rows in tests/emu/modes.py. Leave one"
    # a mode that only tests of rules ran has no values that anything looked at
    ran_for_values = {
        key
        for test, keys in recorder.ran.items()
        for key in keys
        if not test.startswith(RULE_TESTS)
    }
    for row in sorted(rows.keys() - ran_for_values):
        yield f"{', '.join(row)}: no test ran it. Write one, or take it out of tests/emu/modes.py"
    for key in sorted(ran - rows.keys()):
        yield f"{', '.join(key)}: a test ran it. Give it a row in tests/emu/modes.py"
    broken = {key for keys in recorder.broken.values() for key in keys}
    for rule in RULES:
        for how in ("strict", "hardware"):
            if (rule, how) not in broken:
                yield f"{rule}: no test breaks it in {how} mode. Add it to {RULE_TESTS}"
    switched = {key for keys in recorder.switched.values() for key in keys}
    for name, default, readings in switches():
        for reading in readings:
            if reading != default and (name, str(reading)) not in switched:
                yield f"Policy.{name}: no test runs with {reading!r}. Write one"


# -- the page --------------------------------------------------------------------------------------


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def code(names: Iterable[str]) -> str:
    return ", ".join(f"`{n}`" for n in names)


def mode_rows(unit: str, finder: Finder) -> Iterator[Sequence[str]]:
    for mode in (m for m in MODES if m.unit == unit):
        for test, kinds in finder.cover(mode).items():
            yield mode.name, ", ".join(kinds), mode.trust.value, mode.source, code([test])


def counts(modes: Iterable[Mode]) -> str:
    total = Counter[Trust]()
    for m in modes:
        total[m.trust] += len(m.types)
    return ", ".join(f"{total[t]} {t.value}" for t in Trust)


def effect_counts() -> str:
    total = Counter(rule.effect for rule in RULES.values())
    return ", ".join(f"{total[e]} {e.value}" for e in Effect)


def rule_rows(finder: Finder) -> Iterator[Sequence[str]]:
    for name, rule in RULES.items():
        tests = {*finder.tests((name, "strict")), *finder.tests((name, "hardware"))}
        yield f"`{name}`", EFFECTS[rule.effect], rule.source, code(sorted(tests)[:SHOWN])


def switch_rows(finder: Finder) -> Iterator[Sequence[str]]:
    for name, default, readings in switches():
        others = [r for r in readings if r != default]
        tests = {t for r in others for t in finder.tests((name, str(r)))}
        yield f"`{name}`", f"`{default}`", code(map(str, others)) or "none", code(sorted(tests))


def page(recorder: Recorder) -> str:
    ran, broken = Finder(recorder.ran, recorder), Finder(recorder.broken, recorder)
    units = list(dict.fromkeys(m.unit for m in MODES))
    every = sum(len(m.types) for m in MODES)
    parts = [HEAD, f"\nModes with their types: {every} = {counts(MODES)}.\n"]
    for unit in units:
        mine = [m for m in MODES if m.unit == unit]
        parts.append(f"\n## {unit}\n\n{counts(mine)}.\n\n")
        parts.append(table(("mode", "types", "trust", "source", "test"), mode_rows(unit, ran)))
    parts.append(
        "\n## Rules\n\nEach is broken in strict mode, which names it, and in hardware mode, which"
        f" has the effect.\n\n{len(RULES)} = {effect_counts()}.\n\n"
    )
    parts.append(table(("rule", "hardware mode", "source", "tests"), rule_rows(broken)))
    parts.append(
        "\n## Switches\n\nReadings of open questions; all other tests run with the default.\n\n"
    )
    parts.append(
        table(
            ("switch", "default", "other readings", "tests"),
            switch_rows(Finder(recorder.switched, recorder)),
        )
    )
    return "".join(parts)


def main(arguments: Sequence[str]) -> int:
    recorder = run()
    missing = list(complaints(recorder))
    if missing:
        print("\n".join(missing), file=sys.stderr)
        return 1
    text = page(recorder)
    if "--check" not in arguments:
        PAGE.write_text(text, encoding="utf-8")
    elif not PAGE.exists() or PAGE.read_text(encoding="utf-8") != text:
        print(f"{PAGE}: not what docs.make_coverage writes. Run it", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
