"""The device protocol: allocate, submit, wait.  Every back end is held to one contract suite."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from opennpu.errors import DeviceError
from opennpu.hw.regcmd import TAIL_WORDS
from opennpu.hw.rk3588.chip import TASKS_PER_START

Bytes = npt.NDArray[np.uint8]
Kind = Literal["code", "const", "arena", "io"]


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """What runs here, and what it can do."""

    name: str  # "emulator", "rknpu", "rocket", "null"
    chip: str = "rk3588"
    driver: str = ""  # kernel driver and its version
    path: str = ""  # device node
    cores: int = 3
    chained: bool = True  # one start runs a whole task list (vendor); False: one start per task
    ppu: bool = True  # tasks may end in the PPU (stock rocket unmasks only the DPU interrupt)
    abi: str = ""
    measured: bool = False  # times come from a board, not from the cycle model
    tasks_per_job: int = TASKS_PER_START
    reason: str = ""  # why `open_device` chose this one


class Buffer(Protocol):
    """Memory that both sides see."""

    nbytes: int
    iova: int

    def cpu(self) -> AbstractContextManager[Bytes]:
        """Context manager: a uint8 view, synchronised for the CPU on entry, the device on exit."""

    def free(self) -> None:
        """Give the memory back.  Safe to call twice."""


@dataclass(frozen=True, slots=True)
class JobTask:
    """One task of a job, with addresses resolved."""

    regcmd_iova: int
    words: int  # with its 4-word tail
    units: int  # start word
    int_mask: int
    node: str = ""


@dataclass(frozen=True, slots=True)
class Job:
    """One submit: tasks in order on one core, each linked to the next by its tail."""

    tasks: Sequence[JobTask]
    reads: Sequence[Buffer] = ()
    writes: Sequence[Buffer] = ()  # a buffer that is read and written belongs here only
    core: int | None = None  # None: the driver chooses
    timeout_s: float = 6.0


@dataclass(frozen=True, slots=True)
class Ticket:
    """A submitted job."""

    number: int
    job: Job
    state: dict[str, Any] = field(default_factory=dict, compare=False)


@dataclass(frozen=True, slots=True)
class JobResult:
    """How a job ended well; failures raise DeviceFault or DeviceTimeout."""

    tasks_done: int
    seconds: float
    measured: bool  # False: ``seconds`` is predicted by the cycle model
    bytes_read: int = 0
    bytes_written: int = 0
    violations: tuple[str, ...] = ()


class Device(Protocol):
    """Ten functions are too many."""

    info: DeviceInfo

    def alloc(self, nbytes: int, kind: Kind = "io") -> Buffer: ...

    def submit(self, job: Job) -> Ticket: ...

    def wait(self, ticket: Ticket, timeout_s: float | None = None) -> JobResult: ...

    def close(self) -> None: ...


def check_job(info: DeviceInfo, job: Job) -> None:
    """Raise DeviceError for a job that no device of this kind can take."""
    n = len(job.tasks)
    if not 1 <= n <= info.tasks_per_job:
        raise DeviceError(
            info.name,
            f"the job has {n} tasks, one submit takes 1 to {info.tasks_per_job}",
            "Split it into several jobs",
        )
    for t in job.tasks:
        if t.words < TAIL_WORDS:
            raise DeviceError(
                t.node or info.name,
                f"its task has {t.words} words, the tail alone has {TAIL_WORDS}",
                "Give the length with the tail",
            )
    if job.core is not None and not 0 <= job.core < info.cores:
        raise DeviceError(
            info.name,
            f"the job asks for core {job.core}, there are {info.cores}",
            "Count cores from 0, or pass None",
        )
    for b in job.reads:
        if any(b is w for w in job.writes):
            raise DeviceError(
                info.name,
                f"the buffer at {b.iova:#x} is listed as read and as written",
                "List it under writes only",
            )


def freed(name: str) -> DeviceError:
    """The error for using a buffer after `Buffer.free` or `Device.close`."""
    return DeviceError(name, "this buffer was freed", "Use it before free() and close()")


def closed(name: str) -> DeviceError:
    """The error for using a device after `Device.close`."""
    return DeviceError(name, "this device is closed", "Open it again")


@contextmanager
def closing(device: Device) -> Iterator[Device]:
    """``with closing(open_device()) as device:``"""
    try:
        yield device
    finally:
        device.close()
