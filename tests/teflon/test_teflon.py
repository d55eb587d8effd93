"""Mesa's rocket driver as Debian ships it, through `opennpu emulate`: a small part of run.py."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.teflon.run import TOOLS, default_root, make_root

REPOSITORY = Path(__file__).parents[2]
IN_CI = os.environ.get("CI") == "true"
MODELS = 22  # of the small suite
SPANNED = ("padding", "carry", "weights", "truncation", "sum")  # each has a model


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    """Of the small suite.  Elsewhere than in CI nothing is installed for it."""
    missing = [t for t in TOOLS if shutil.which(t) is None]
    if missing and not IN_CI:
        pytest.skip(f"needs {', '.join(missing)}: run tests/teflon/rootfs.sh as root")
    why = make_root(default_root())
    if why:
        (pytest.fail if IN_CI else pytest.skip)(why)
    done = subprocess.run(
        [sys.executable, "-m", "tests.teflon.run", "--small", "--json"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    return dict(json.loads(done.stdout))


def test_every_operator_ran_on_the_npu(report: dict[str, Any]) -> None:
    """Convolutions become jobs of their own, sums are fused into them."""
    assert report["models"] == MODELS
    assert report["fewest_jobs"] >= 1
    assert report["jobs"] == len(report["nodes"]) >= report["operators"]


def test_bytes_are_those_of_the_plain_model_of_mesas_words(report: dict[str, Any]) -> None:
    assert not report["wrong_words"]
    assert not [n["where"] for n in report["nodes"] if n["model_differs"]]


def test_what_mesa_does_right_is_within_one_count_of_tflite(report: dict[str, Any]) -> None:
    clean = [n for n in report["nodes"] if not n["reasons"]]
    assert len(clean) >= MODELS
    assert not [n["where"] for n in clean if n["worst"] > 1]


@pytest.mark.parametrize("reason", SPANNED)
def test_each_reason_shows(report: dict[str, Any], reason: str) -> None:
    """A convolution with that reason alone, if any, is off by more than a rounding."""
    alone = [n for n in report["nodes"] if n["reasons"] == [reason]]
    assert alone
    assert max(n["worst"] for n in alone) > 1


def test_clip_truncate_after_cpend_would_be_tflites(report: dict[str, Any]) -> None:
    """The evidence for reading ``last`` of the switch clip_truncate: half the resolution is lost,
    and no more."""
    alone = [n for n in report["nodes"] if n["reasons"] == ["truncation"]]
    assert alone
    assert all(n["truncated_last"] <= 2 < n["worst"] for n in alone)


def test_every_word_has_a_name(report: dict[str, Any]) -> None:
    assert report["words"] > 100 * report["tasks"]
    assert report["unnamed"] == 0


def test_no_rule_is_broken(report: dict[str, Any]) -> None:
    """Boards run these words: a rule against them is wrong."""
    assert not report["notes"]
    assert not report["strict"]


def test_nothing_else_failed(report: dict[str, Any]) -> None:
    assert not report["failures"]
