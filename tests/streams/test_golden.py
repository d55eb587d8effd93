"""External captures run on the emulator and give the expected bytes.

Set OPENNPU_GOLDEN to a folder of RKG1 captures (none are committed).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from emu.rkg import GOLDEN, JOBS, load, replay
from opennpu.emu.machine import Machine

pytestmark = pytest.mark.skipif(not GOLDEN, reason="OPENNPU_GOLDEN is not set")


@pytest.mark.parametrize("path", JOBS, ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_capture_gives_the_expected_bytes(path: Path) -> None:
    capture, expected = load(path), load(path.with_suffix(".out.rkg"))
    results = replay(capture, Machine(cores=1))
    for r in results:
        assert r.completed and not r.violations and not r.warnings and r.fault is None
    have: dict[int, Any] = {b.handle: b.data for b in capture.buffers}
    assert expected.buffers
    for want in expected.buffers:
        wrong = np.flatnonzero(have[want.handle][: want.data.size] != want.data)
        assert not wrong.size, f"{wrong.size} bytes differ, first at {wrong[0]:#x}"
