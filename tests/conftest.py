"""Shared by all tests: the trust of the register description, printed after every run."""

from __future__ import annotations

import pytest

from opennpu.hw.export import trust_counts


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    counts = trust_counts()
    told = ", ".join(f"{n} {trust.value}" for trust, n in counts.items())
    terminalreporter.write_line(f"register fields: {sum(counts.values())} = {told}")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write tests/golden anew")
