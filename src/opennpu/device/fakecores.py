"""The cores behind a fake kernel: queues, fences, the watchdog, and time as a board has it."""

from __future__ import annotations

import threading
import time
import traceback
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from opennpu.device.fakedrm import FakeBo, FakeFile
from opennpu.device.fakefence import Fence
from opennpu.emu.machine import RunResult
from opennpu.emu.memory import AddressSpace
from opennpu.emu.timing import SAFE

if TYPE_CHECKING:
    from opennpu.device.fakekernel import FakeKernel


class Start(NamedTuple):
    """One start of a core, as `opennpu.emu.machine.Machine.run` takes it."""

    regcmd_iova: int
    words: int
    tasks: int
    int_mask: int
    ping_pong: bool


@dataclass(eq=False)
class Work:
    """What one core does for one job."""

    file: FakeFile
    starts: Sequence[Start]
    watchdog_s: float  # a hung job is ended after this
    writes: Sequence[FakeBo] = ()
    holds: Sequence[FakeBo] = ()  # kept alive until it ends: every buffer that the job lists
    domain: int = 0  # of the IOMMU
    fence: Fence = field(default_factory=Fence)
    results: list[RunResult] = field(default_factory=list)  # of its starts, up to a bad one
    space: AddressSpace = field(default_factory=AddressSpace)  # what it sees, once it runs

    @property
    def completed(self) -> bool:
        return len(self.results) == len(self.starts) and all(r.completed for r in self.results)

    @property
    def cycles(self) -> int:
        return sum(r.cycles for r in self.results)


class Cores:
    """Runs work core by core, in order.

    threaded: each core has a thread, `push` returns at once, and hung jobs wait for the watchdog.
        Else `push` runs the work, and hung jobs end at once.
    hold: nothing new is started; see `release`.
    """

    def __init__(self, kernel: FakeKernel, count: int, threaded: bool) -> None:
        self.kernel, self.threaded = kernel, threaded
        self.hold = False
        self._queues: list[deque[Work]] = [deque() for _ in range(count)]
        self._running: list[Work | None] = [None] * count
        self._free_ns = [0] * count  # when the core has ended its last job, on a board
        self._lock = threading.Lock()
        self._changed = [threading.Condition(self._lock) for _ in range(count)]
        self._threads: list[threading.Thread | None] = [None] * count

    def idlest(self) -> int:
        """The core with the least to do; the first of several."""
        with self._lock:
            load = [
                len(q) + (w is not None) for q, w in zip(self._queues, self._running, strict=True)
            ]
        return load.index(min(load))

    def push(self, core: int, work: Work) -> None:
        """Queue work; its fence is signalled when it has ended."""
        for bo in work.holds:
            bo.users += 1
        for bo in work.writes:
            bo.fence = work.fence
        if not self.threaded and not self.hold:
            self._run(core, work)
            return
        with self._lock:
            self._queues[core].append(work)
            if self.threaded:
                self._wake(core)

    def release(self) -> None:
        """End `hold`: what was pushed meanwhile is started."""
        with self._lock:
            self.hold = False
            for changed in self._changed:
                changed.notify()
        if not self.threaded:
            for core, queue in enumerate(self._queues):
                while queue:
                    self._run(core, queue.popleft())

    def _wake(self, core: int) -> None:
        if self._threads[core] is None:
            thread = threading.Thread(target=self._work, args=(core,), daemon=True)
            self._threads[core] = thread
            thread.start()
        self._changed[core].notify()

    def _work(self, core: int) -> None:
        """Thread of a core."""
        queue, changed = self._queues[core], self._changed[core]
        while True:
            with changed:
                self._running[core] = None
                while self.hold or not queue:
                    changed.wait()
                work = self._running[core] = queue.popleft()
            try:
                self._run(core, work)
            except Exception:  # ours to mend; the others' jobs go on
                traceback.print_exc()
                work.fence.signal(failed=True)

    def _run(self, core: int, work: Work) -> None:
        """All starts of ``work``, up to one that does not complete."""
        begin_ns = max(time.monotonic_ns(), self._free_ns[core])
        if work.file.is_open:  # else nobody is left to see what it does
            work.space = work.file.space(work.domain)
            work.results = self.kernel.run(core, work)
        end_ns = begin_ns + round(work.cycles / SAFE.clock_hz * 1e9)
        if work.file.is_open and not work.completed:
            end_ns = begin_ns + round(work.watchdog_s * 1e9)
            if self.threaded:
                self._hang(work, end_ns)
        self._free_ns[core] = end_ns
        for bo in work.holds:
            bo.owner.drop(bo)
        work.fence.signal(end_ns, failed=not work.completed)

    def _hang(self, work: Work, end_ns: int) -> None:
        """The core is busy with a job that does not end, until the watchdog or the file's end."""
        work.fence.hang()
        while work.file.is_open and (left_ns := end_ns - time.monotonic_ns()) > 0:
            time.sleep(min(left_ns * 1e-9, 0.05))
