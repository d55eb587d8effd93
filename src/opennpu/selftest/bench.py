"""Where programs of `opennpu.selftest.programs` run: a device, or a bare emulated core."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import numpy as np

from opennpu.device.base import Device, Job, JobTask
from opennpu.emu.machine import Machine
from opennpu.emu.memory import AddressSpace
from opennpu.hw import regcmd
from opennpu.hw.regs import Register
from opennpu.hw.rk3588.pc import DPU_DONE, PPU_DONE
from opennpu.program import At, Cost, Emitted, NpuSegment, Ref, Task, address_field, bind, link
from opennpu.selftest.programs import CODE, CONV, EW, MEMORY_BYTES, POISON, POOL, Array, X, Y

Tasks = tuple[Iterable[Register], int]  # register writes without the tail; start word


class Bench(Protocol):
    """Flat memory and a way to run tasks in it."""

    memory: Array  # uint8

    def put(self, at: int, data: Array) -> None:
        """Write there."""

    def start(self, *tasks: Tasks, core: int | None = None) -> None:
        """Run the tasks as one job, in order, on one core.  Raises NPUError."""


class Hung(Exception):
    """The emulated job did not end."""


def _fresh() -> Array:
    """Memory whose output region holds nothing that a program would write."""
    memory = np.zeros(MEMORY_BYTES, np.uint8)
    memory[Y:EW] = POISON
    return memory


def _mask(units: int) -> int:
    return PPU_DONE if units == POOL else DPU_DONE


class DeviceBench:
    """Every start is a job: memory goes to a buffer of the device and comes back.

    Addresses in the programs are offsets; they are moved to where the buffers lie.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self.memory = _fresh()

    def put(self, at: int, data: Array) -> None:
        raw = np.ascontiguousarray(data).view(np.uint8).reshape(-1)
        self.memory[at : at + raw.size] = raw

    def start(self, *tasks: Tasks, core: int | None = None) -> None:
        placed = [
            Task(f"task {i}", tuple(map(_relocatable, body)), units, _mask(units), Cost())
            for i, (body, units) in enumerate(tasks)
        ]
        linked = link(placed)
        segment = NpuSegment("selftest", *linked, b"", MEMORY_BYTES, (), ())
        code = self.device.alloc(len(segment.code), "code")
        data = self.device.alloc(MEMORY_BYTES, "arena")
        try:
            with code.cpu() as mem:
                mem[:] = bind(segment, {"code": code.iova, "const": 0, "arena": data.iova})
            with data.cpu() as mem:
                mem[:] = self.memory
            todo = [
                JobTask(code.iova + t.word * regcmd.WORD_BYTES, t.words, t.units, t.int_mask)
                for t in segment.tasks
            ]
            self.device.wait(self.device.submit(Job(todo, (code,), (data,), core)))
            with data.cpu() as mem:
                self.memory[:] = mem
        finally:
            code.free()
            data.free()


def _relocatable(write: Register) -> Emitted:
    """Addresses behind the flat memory are absolute: for programs that are meant to fault."""
    name = address_field(type(write))
    if name is None or getattr(write, name) >= MEMORY_BYTES:
        return write
    return At(type(write), Ref("arena", getattr(write, name)))


class MachineBench:
    """A bare emulated core, which can be told to invert one bit of the words that it runs.

    machine: fresh by default, strict as `Machine` is.
    flip: (index of the register write, counted over all starts; bit), or None.
    writes: of all starts, as they would be without the flip.
    """

    def __init__(self, machine: Machine | None = None, flip: tuple[int, int] | None = None) -> None:
        self.machine, self.flip = machine or Machine(), flip
        self.memory = _fresh()
        self.writes: list[Register] = []
        self._space = AddressSpace()
        self._space.map(0, self.memory)

    def put(self, at: int, data: Array) -> None:
        raw = np.ascontiguousarray(data).view(np.uint8).reshape(-1)
        self.memory[at : at + raw.size] = raw

    def start(self, *tasks: Tasks, core: int | None = None) -> None:
        bodies = [(self._flipped(list(body)), units) for body, units in tasks]
        sizes = [len(body) + regcmd.TAIL_WORDS for body, _ in bodies]
        starts = [CODE]
        for n in sizes:
            starts.append(starts[-1] + (n + n % 2) * regcmd.WORD_BYTES)
        if starts[-1] > X:
            raise ValueError(f"{starts[-1] - CODE} bytes of code, there is room for {X - CODE}")
        for i, (body, units) in enumerate(bodies):
            more = i + 1 < len(bodies)
            tail = regcmd.tail(units, starts[i + 1] if more else 0, sizes[i + 1] if more else 0)
            self.put(starts[i], np.frombuffer(regcmd.assemble([*body, *tail]), np.uint8))
        last = bodies[-1][1] if bodies else CONV
        result = self.machine.run(
            core or 0,
            self._space,
            CODE,
            sizes[0],
            task_number=len(bodies),
            int_mask=_mask(last),
        )
        if not result.completed:
            raise Hung

    def _flipped(self, body: list[Register]) -> list[Register]:
        first = len(self.writes)
        self.writes += body
        if self.flip is not None and first <= self.flip[0] < len(self.writes):
            k = self.flip[0] - first
            body[k] = type(body[k]).decode(body[k].word ^ 1 << self.flip[1])
        return body
