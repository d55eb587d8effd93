"""A short soak; `python -m tests.soak.run` is the long one."""

from __future__ import annotations

import pytest

from soak.run import soak


@pytest.mark.parametrize("name", ["null", "emulator", "rknpu with faults", "rocket with faults"])
def test_a_thousand_runs_leak_nothing(name: str) -> None:
    assert soak(name, 1000) == ""
