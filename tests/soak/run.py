"""Many inferences: nothing may leak, and every result must be right.

    python -m tests.soak.run [COUNT]        (100,000 by default; from the repository)

Devices: null, the emulator, and both kernel drivers over the stand-in kernel, where every ioctl
fails now and then.  Exit code 1 if memory or open files grow, or a result is wrong.
"""

from __future__ import annotations

import argparse
import errno
import gc
import itertools
import os
import resource
import sys
import time
from typing import Any

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))

from copyprogram import copy_program, sample
from opennpu import InferenceSession
from opennpu.device import open_device
from opennpu.device.fakekernel import FakeKernel
from opennpu.errors import DeviceError

WARM = 500
GROWTH_KIB = 2048
"""Of resident memory: less than 21 bytes a run at 100,000."""
FAULT_EVERY = 97


def resident_kib() -> int:
    """Resident memory now, not its peak."""
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * resource.getpagesize() // 1024


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def soak(name: str, count: int) -> str:
    """Run; what is wrong, or ""."""
    kind, _, faulty = name.partition(" ")
    fake = FakeKernel() if kind in ("rknpu", "rocket") else None
    device: Any = open_device(kind, **({"kernel": fake} if fake else {}))
    inputs = [sample(i) for i in range(4)]
    failed = 0
    with InferenceSession(copy_program(), device) as session:
        session.run(None, [inputs[0]])
        requests = itertools.cycle(sorted(set(fake.log))) if fake else None
        before = (0, 0)
        for i in range(WARM + count):
            if i == WARM:
                gc.collect()
                before = (resident_kib(), open_files())
            if fake is not None:
                fake.log.clear()
                if faulty and i % FAULT_EVERY == 0 and requests is not None:
                    fake.inject(next(requests), errno.EIO)
            x = inputs[i % 4]
            try:
                (y,) = session.run(None, [x])
            except DeviceError:
                if not faulty:
                    raise
                failed += 1
                continue
            if kind != "null" and not np.array_equal(x, y):
                return f"run {i} gives a wrong result"
        gc.collect()
        grown, files = resident_kib() - before[0], open_files() - before[1]
    device.close()
    if fake is not None and fake.leaks() != (0, 0, 0):
        return f"the kernel keeps {fake.leaks()} files, buffers and mappings"
    if grown > GROWTH_KIB or files:
        return f"memory grows by {grown} KiB (at most {GROWTH_KIB}), open files by {files}"
    if bool(faulty) != bool(failed):
        return f"{failed} runs failed"
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("count", nargs="?", type=int, default=100_000)
    count = parser.parse_args().count
    bad = 0
    for name in ("null", "emulator", "rknpu with faults", "rocket with faults"):
        began = time.perf_counter()
        problem = soak(name, count)
        bad += bool(problem)
        seconds = time.perf_counter() - began
        print(f"{name}: {count} runs in {seconds:.0f} s: {problem or 'nothing leaks'}", flush=True)
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
