"""A device that writes down what it is asked to do, and passes it on.

The recording shows the command words as the NPU will read them: addresses in place.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from opennpu.device.base import Buffer, Device, DeviceInfo, Job, JobResult, Kind, Ticket
from opennpu.hw.regcmd import WORD_BYTES, Write, disassemble


@dataclass(frozen=True, slots=True)
class RecordedJob:
    """A submitted job with the words of its tasks."""

    job: Job
    code: tuple[bytes, ...]  # of each task, tail included

    def __iter__(self) -> Iterator[tuple[str, list[Write]]]:
        """(node, register writes) of each task."""
        for task, words in zip(self.job.tasks, self.code, strict=True):
            yield task.node, list(disassemble(words))


class RecordDevice:
    """Wraps a device.  ``jobs`` and ``results`` grow with every submit and wait."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.info: DeviceInfo = device.info
        self.jobs: list[RecordedJob] = []
        self.results: list[JobResult] = []

    def alloc(self, nbytes: int, kind: Kind = "io") -> Buffer:
        return self.device.alloc(nbytes, kind)

    def submit(self, job: Job) -> Ticket:
        code = tuple(self._read(t.regcmd_iova, t.words * WORD_BYTES, job) for t in job.tasks)
        self.jobs.append(RecordedJob(job, code))
        return self.device.submit(job)

    def wait(self, ticket: Ticket, timeout_s: float | None = None) -> JobResult:
        result = self.device.wait(ticket, timeout_s)
        self.results.append(result)
        return result

    def close(self) -> None:
        self.device.close()

    def _read(self, iova: int, nbytes: int, job: Job) -> bytes:
        """Memory of the NPU; empty where the job names no buffer for it."""
        for b in (*job.reads, *job.writes):
            if b.iova <= iova and iova + nbytes <= b.iova + b.nbytes:
                with b.cpu() as mem:
                    return np.array(mem[iova - b.iova : iova - b.iova + nbytes]).tobytes()
        return b""
