"""The public surface is what docs/reference/api.md lists, no more and no less."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import opennpu
from opennpu import errors

API = Path(__file__).parents[1] / "docs" / "reference" / "api.md"


def documented() -> list[str]:
    """Names in the headings of api.md: ``## `compile` `` or ``### `opennpu.compile(…)` ``."""
    text = API.read_text(encoding="utf-8")
    return re.findall(r"^#+ `(?:opennpu\.)?(\w+)[`(]", text, re.MULTILINE)


def test_all_is_what_the_docs_list() -> None:
    if not API.is_file():
        pytest.skip("docs/reference/api.md is not written yet")
    assert sorted(opennpu.__all__) == sorted(documented())


def test_all_names_exist_and_have_docstrings() -> None:
    assert len(opennpu.__all__) == len(set(opennpu.__all__))
    for name in opennpu.__all__:
        if not name.startswith("__"):
            assert inspect.getdoc(getattr(opennpu, name)), name


def test_the_five_ways_in_are_public() -> None:
    assert {"compile", "load", "open_device", "Program", "InferenceSession"} <= set(opennpu.__all__)


def test_every_error_is_public_and_in_the_tree() -> None:
    ours = {
        n
        for n, e in vars(errors).items()
        if inspect.isclass(e) and issubclass(e, errors.NPUError) and not n.startswith("_")
    }
    assert ours <= set(opennpu.__all__)
    drawn = set(re.findall(r"\b[A-Z]\w*(?:Error|Fault|Timeout|NotFound)\b", str(errors.__doc__)))
    assert ours == drawn - {"ValueError"}
