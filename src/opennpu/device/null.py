"""A device that takes everything and runs nothing: for timing the host side, and for tests."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from opennpu.device.base import (
    Bytes,
    DeviceInfo,
    Job,
    JobResult,
    Kind,
    Ticket,
    check_job,
    closed,
    freed,
)
from opennpu.device.iova import IovaAllocator
from opennpu.errors import DeviceError
from opennpu.hw.rk3588 import chip


class NullBuffer:
    """Plain host memory with a made-up address."""

    def __init__(self, device: NullDevice, nbytes: int, iova: int) -> None:
        self.nbytes, self.iova = nbytes, iova
        self._device: NullDevice | None = device
        self._data = np.zeros(nbytes, np.uint8)

    @contextmanager
    def cpu(self) -> Iterator[Bytes]:
        if self._device is None:
            raise freed("null")
        yield self._data

    def free(self) -> None:
        if self._device is not None:
            self._device._iovas.free(self.iova)
            self._device._buffers.discard(self)
            self._device = None
            self._data = np.zeros(0, np.uint8)


class NullDevice:
    """Jobs end at once; outputs stay as they are."""

    def __init__(self) -> None:
        self.info = DeviceInfo("null", driver="none", abi="null")
        self._iovas = IovaAllocator()
        self._buffers: set[NullBuffer] = set()
        self._numbers = itertools.count()
        self._open = True

    def alloc(self, nbytes: int, kind: Kind = "io") -> NullBuffer:
        if not self._open:
            raise closed("null")
        iova = self._iovas.alloc(nbytes) if nbytes > 0 else None
        if iova is None:
            raise DeviceError(
                "null",
                f"no room for {nbytes} bytes in {chip.IOVA_BYTES} bytes of NPU address space",
                "Ask for at least 1 byte, and free what you no longer need",
            )
        buffer = NullBuffer(self, nbytes, iova)
        self._buffers.add(buffer)
        return buffer

    def submit(self, job: Job) -> Ticket:
        if not self._open:
            raise closed("null")
        check_job(self.info, job)
        return Ticket(next(self._numbers), job)

    def wait(self, ticket: Ticket, timeout_s: float | None = None) -> JobResult:
        return JobResult(len(ticket.job.tasks), 0.0, False)

    def close(self) -> None:
        self._open = False
        for buffer in tuple(self._buffers):
            buffer.free()
