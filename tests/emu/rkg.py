"""Reader of RKG1 register captures, and their replay on the emulator.

Set OPENNPU_GOLDEN to a folder of such captures (none are committed).
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from opennpu.emu.machine import Machine, RunResult
from opennpu.emu.memory import AddressSpace

GOLDEN = os.environ.get("OPENNPU_GOLDEN", "")
JOBS = sorted(p for p in Path(GOLDEN).glob("*/job*.rkg") if ".out." not in p.name) if GOLDEN else []

MAGIC = 0x31474B52
CHAINED = 1
POOL_UNITS = 0x60


@dataclass
class Buffer:
    handle: int
    role: int
    iova: int
    data: npt.NDArray[np.uint8]


@dataclass
class Capture:
    tasks: list[tuple[int, int]]
    buffers: list[Buffer]
    flags: int


def load(path: Path) -> Capture:
    """Read one RKG1 file."""
    raw = path.read_bytes()
    magic, version, n_tasks, n_buffers, flags, *_ = struct.unpack_from("<8I", raw)
    assert (magic, version) == (MAGIC, 1)
    tasks = [struct.unpack_from("<2I", raw, 32 + 8 * i) for i in range(n_tasks)]
    at, buffers = 32 + 8 * n_tasks, []
    for _ in range(n_buffers):
        handle, role, iova, size, stored = struct.unpack_from("<IIQQQ", raw, at)
        data = np.zeros(size, np.uint8)
        data[:stored] = np.frombuffer(raw, np.uint8, stored, at + 32)
        buffers.append(Buffer(handle, role, iova, data))
        at += 32 + stored
    return Capture([(a, n) for a, n in tasks], buffers, flags)


def start_mask(capture: Capture, task: int) -> int:
    """Interrupts to wait for: the PPU's for a pooling task, else the DPU's."""
    iova, words = capture.tasks[task]
    for b in capture.buffers:
        if b.iova <= iova < b.iova + b.data.size:
            code = b.data[iova - b.iova :][: 8 * words].view("<u8").tolist()
            starts = [w >> 16 & 0xFFFF_FFFF for w in code if w >> 48 == 0x81]
            return 0xC00 if starts[-1] & POOL_UNITS else 0x300
    raise AssertionError("command list outside the buffers")


def replay(capture: Capture, machine: Machine) -> list[RunResult]:
    """Submit as rocket does: one start per task, or one for a chained job."""
    space = AddressSpace()
    for b in capture.buffers:
        space.map(b.iova, b.data)
    if capture.flags & CHAINED:
        (iova, words), mask = capture.tasks[0], start_mask(capture, 0)
        return [machine.run(0, space, iova, words, task_number=len(capture.tasks), int_mask=mask)]
    return [
        machine.run(0, space, iova, words, int_mask=start_mask(capture, i))
        for i, (iova, words) in enumerate(capture.tasks)
    ]
