"""A sample of the official ONNX tests; `python -m tests.onnx_suite.run` runs them all."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from tests.onnx_suite.cases import SuiteCase
from tests.onnx_suite.run import chosen, part_a, part_b, run_forced, worse_a, worse_b

SHARD = "7/40"


@pytest.fixture(scope="module")
def cases() -> Iterator[list[SuiteCase]]:
    with np.errstate(all="ignore"):
        yield [c for c in chosen(SHARD, "") if c.kind != "light"]


@pytest.mark.filterwarnings("ignore")
def test_what_onnxruntime_passes_passes_under_default_placement(cases: list[SuiteCase]) -> None:
    assert worse_a(part_a(cases)) == []


@pytest.mark.filterwarnings("ignore")
def test_forced_onto_the_emulator_every_case_keeps_its_bound(cases: list[SuiteCase]) -> None:
    results = part_b(cases)
    assert worse_b(results) == []
    assert sum(what == "forced" for what, _ in results.values()) > 10


@pytest.mark.filterwarnings("ignore")
def test_a_wrong_result_fails(cases: list[SuiteCase]) -> None:
    case = next(c for c in cases if run_forced(c)[0] == "forced")
    sets = tuple(
        (i, [np.asarray(o) + np.asarray(1, o.dtype) for o in want]) for i, want in case.sets
    )
    wrong = SuiteCase(case.kind, case.name, case.model, sets, case.rtol, case.atol)
    assert run_forced(wrong)[0] == "failed"
