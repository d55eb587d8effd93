"""Facts about the computer: board, kernel, clocks.  What cannot be read is left out."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/")
NPU_MARKS = ("npu", "rknn")


def describe(root: Path = ROOT) -> dict[str, str]:
    """Name -> value with unit, for reports.  ``root``: of the file system, for tests."""
    found = {"kernel": platform.release(), "machine": platform.machine()}
    board = _read(root / "proc/device-tree/model")
    if board:
        found["board"] = board
    found.update(clocks(root))
    return found


def clocks(root: Path = ROOT) -> dict[str, str]:
    """Clocks of NPU and DDR, governors, NPU temperature and voltage."""
    found: dict[str, str] = {}
    for folder in _entries(root / "sys/class/devfreq"):
        kind = "ddr" if folder.name == "dmc" else "npu" if _is_npu(folder.name) else ""
        if kind:
            for file, what, unit in (
                ("cur_freq", "clock", " Hz"),
                ("governor", "governor", ""),
                ("max_freq", "largest clock", " Hz"),
            ):
                _keep(found, f"{kind} {what}", folder / file, unit)
    for clock in _entries(root / "sys/kernel/debug/clk"):
        if _is_npu(clock.name):
            _keep(found, f"{clock.name}", clock / "clk_rate", " Hz")
    for file, unit in (("freq", " Hz"), ("volt", " uV"), ("power", "")):
        _keep(found, f"rknpu {file}", root / "sys/kernel/debug/rknpu" / file, unit)
    for zone in _entries(root / "sys/class/thermal"):
        if _is_npu(_read(zone / "type")):
            _keep(found, "npu temperature", zone / "temp", " m°C")
    return found


def _is_npu(name: str) -> bool:
    return any(mark in name for mark in NPU_MARKS)


def _entries(folder: Path) -> Iterator[Path]:
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return
    yield from (folder / n for n in names)


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip("\0\n ")
    except OSError:
        return ""


def _keep(found: dict[str, str], name: str, path: Path, unit: str) -> None:
    value = _read(path)
    if value:
        found[name] = value + unit
