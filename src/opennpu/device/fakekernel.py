"""A kernel that is not there: both drivers' ioctls, as far as a device can see them.

Real device code runs on it, with every structure, number and errno; the emulator executes the
jobs.  `inject` makes any call fail.  `opennpu.device.serve` puts it behind other programs.
"""

from __future__ import annotations

import errno
import fnmatch
import itertools
import os
import threading
from collections.abc import Callable, Sequence
from ctypes import Structure
from dataclasses import dataclass

import numpy as np

from opennpu.device.fakecores import Cores, Work
from opennpu.device.fakedrm import Aperture, FakeBo, FakeFile, FakeMapping, FakeMemory, OwnProcess
from opennpu.device.fakefence import Caller, OpenFile, fail
from opennpu.device.fakerknpu import DOMAINS, RknpuFile
from opennpu.device.fakerocket import RocketFile
from opennpu.emu.machine import Machine, RunResult
from opennpu.emu.memory import AddressSpace
from opennpu.hw.rk3588 import chip

ACCEL_NODE, RENDER_NODE = "/dev/accel/accel0", "/dev/dri/renderD129"
FIRST_OFFSET = 1 << 32  # of the files' mmap range


@dataclass
class _Fault:
    request: int
    errno: int
    times: int
    skip: int


class FakeKernel:
    """A `Kernel` with an NPU in it.

    machine: executes the jobs; None makes one that behaves as silicon does.
    rocket: interface version of /dev/accel/accel0; None leaves the node out.
    rknpu: whether /dev/dri/renderD129 is there.
    old_mem_create: the vendor driver knows the 40-byte MEM_CREATE only.
    threaded: submits return at once; see `Cores`.
    """

    def __init__(
        self,
        machine: Machine | None = None,
        *,
        rocket: tuple[int, int] | None = (0, 0),
        rknpu: bool = True,
        old_mem_create: bool = False,
        threaded: bool = False,
    ) -> None:
        self.machine = machine or Machine(cores=chip.CORES, strict=False)
        self.rocket, self.old_mem_create = rocket, old_mem_create
        self.nodes: dict[str, Callable[[FakeKernel], FakeFile]] = {}
        if rknpu:
            self.nodes[RENDER_NODE] = RknpuFile
        if rocket is not None:
            self.nodes[ACCEL_NODE] = RocketFile
        self.lock = threading.RLock()
        self.cores = Cores(self, chip.CORES, threaded)
        self.files: dict[int, OpenFile] = {}
        self.names = itertools.count(1)  # of GEM_FLINK
        self.named: dict[int, FakeBo] = {}
        self.domains = {i: Aperture() for i in range(DOMAINS)}  # of the vendor driver's files
        self.domain = 0  # its current one
        self.mappings = 0
        self.log: list[int] = []  # requests, in order
        self._faults: list[_Fault] = []
        self._fds = itertools.count(1000)
        self._offset = FIRST_OFFSET

    # -- what tests do with it ---------------------------------------------------------------

    def inject(self, request: int, number: int, *, times: int = 1, skip: int = 0) -> None:
        """Let ``times`` calls of an ioctl fail with errno ``number``, after ``skip`` good ones."""
        self._faults.append(_Fault(request, number, times, skip))

    @property
    def hold(self) -> bool:
        """Whether jobs are kept back until `release`."""
        return self.cores.hold

    @hold.setter
    def hold(self, value: bool) -> None:
        self.cores.hold = value

    def release(self) -> None:
        """Run what was submitted while ``hold`` was set."""
        self.cores.release()

    def leaks(self) -> tuple[int, int, int]:
        """(open files, buffer objects, mappings): all zero when everything was given back."""
        bos = sum(len(f.bos) for f in self.files.values() if isinstance(f, FakeFile))
        return len(self.files), bos, self.mappings

    # -- system calls ------------------------------------------------------------------------

    def glob(self, pattern: str) -> Sequence[str]:
        return sorted(fnmatch.filter(self.nodes, pattern))

    def open(self, path: str) -> int:
        if path not in self.nodes:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return self.install(self.nodes[path](self))

    def install(self, file: OpenFile) -> int:
        """A new file descriptor for ``file``."""
        file.opened()
        fd = next(self._fds)
        self.files[fd] = file
        return fd

    def close(self, fd: int) -> None:
        self.file(fd)
        self.files.pop(fd).close()

    def ioctl(self, fd: int, request: int, argument: Structure) -> None:
        self.log.append(request)
        file = self.file(fd)
        assert isinstance(file, FakeFile)
        self.call(file, request, argument, OwnProcess(self))

    def mmap(self, fd: int, nbytes: int, offset: int) -> FakeMapping:
        bo, at = self.file(fd).lookup(nbytes, offset)
        return FakeMapping(self, bo.data[at : at + nbytes])

    # -- below them --------------------------------------------------------------------------

    def file(self, fd: int) -> OpenFile:
        if fd not in self.files:
            raise fail(errno.EBADF)
        return self.files[fd]

    def call(self, file: FakeFile, request: int, argument: Structure, caller: Caller) -> None:
        """An ioctl of ``caller`` with its structure."""
        for f in self._faults:
            if f.request == request and f.times:
                if f.skip:
                    f.skip -= 1
                    continue
                f.times -= 1
                raise fail(f.errno)
        if request not in file.calls:
            raise fail(errno.EINVAL)
        file.calls[request].run(argument, caller)

    def new_memory(self, nbytes: int) -> FakeMemory:
        """The pages of a buffer object."""
        return FakeMemory(np.zeros(nbytes, np.uint8))

    def new_space(self) -> AddressSpace:
        """An empty IOVA space."""
        return AddressSpace()

    def new_offset(self, nbytes: int) -> int:
        """A place in the files' mmap range."""
        at, self._offset = self._offset, self._offset + nbytes
        return at

    def run(self, core: int, work: Work) -> list[RunResult]:
        """The starts of ``work``, up to one that does not complete: its core is reset."""
        results: list[RunResult] = []
        for s in work.starts:
            result = self.machine.run(
                core,
                work.space,
                s.regcmd_iova,
                s.words,
                task_number=s.tasks,
                int_mask=s.int_mask,
                ping_pong=s.ping_pong,
                same_job=bool(results),
            )
            results.append(result)
            if not result.completed:
                self.machine.reset(core)  # as both drivers do
                break
        return results
