"""The smallest real program: flying tasks that copy fp16 atoms, by hand."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from opennpu.device import canary
from opennpu.device.base import Buffer, Device, Job, JobTask
from opennpu.hw.regcmd import WORD_BYTES, disassemble
from opennpu.hw.regs import Register
from opennpu.hw.rk3588 import dpu, dpu_rdma
from opennpu.hw.rk3588.common import Precision
from opennpu.program import (
    At,
    Cost,
    Emitted,
    NpuSegment,
    Program,
    Ref,
    Task,
    Tensor,
    ValueInfo,
    View,
    bind,
    link,
)

DPU_DONE = 0x300
Array = npt.NDArray[Any]


def copy_task(src: Ref, dst: Ref, atoms: int = 4, node: str = "copy") -> Task:
    """Copy ``atoms`` 16-byte atoms."""
    body = list(disassemble(canary.copy_task(0, 0, atoms)))[:-4]
    moved: dict[type[Register], Ref] = {
        dpu.DST_BASE_ADDR: dst,
        dpu_rdma.RDMA_SRC_BASE_ADDR: src,
    }
    writes: list[Emitted] = [
        At(type(w), moved[type(w)]) if isinstance(w, Register) and type(w) in moved else w
        for w in body
    ]
    cost = Cost(read_bytes=16 * atoms, write_bytes=16 * atoms)
    return Task(node, tuple(writes), canary.UNITS, DPU_DONE, cost)


def copy_program(
    steps: int = 2,
    const: bytes = b"",
    *,
    precision: Precision = Precision.FP16,
    scale: float = 0.0,
    zero_point: int = 0,
) -> Program:
    """x [1, C, 2, 2] → y, through ``steps`` copies; C = one atom."""
    lanes = {Precision.FP16: 8, Precision.INT8: 16}[precision]
    refs = [Ref("arena", 64 * i) for i in range(steps + 1)]
    tasks = [copy_task(a, b, node=f"copy{i}") for i, (a, b) in enumerate(pairwise(refs))]
    shape = (1, lanes, 2, 2)

    def tensor(name: str, ref: Ref) -> Tensor:
        view = View((0, 2, 3, 1), (1, 2, 2, lanes))
        return Tensor(name, shape, precision, view, ref, lanes, scale=scale, zero_point=zero_point)

    segment = NpuSegment(
        "npu0",
        *link(tasks),
        const,
        64 * (steps + 1),
        (tensor("x", refs[0]),),
        (tensor("y", refs[-1]),),
    )
    return Program(
        (ValueInfo("x", shape, "float32"),), (ValueInfo("y", shape, "float32"),), (segment,)
    )


def sample(seed: int = 0, lanes: int = 8) -> Array:
    """An input of `copy_program` that fp16 holds exactly."""
    rng = np.random.default_rng(seed)
    return rng.integers(-2000, 2000, (1, lanes, 2, 2)).astype(np.float32)


class Payload:
    """A job on a device: `copy_program` with its buffers, below the session."""

    def __init__(self, device: Device, steps: int = 2) -> None:
        segment = copy_program(steps).segments[0]
        assert isinstance(segment, NpuSegment)
        self.code = device.alloc(len(segment.code), "code")
        self.arena = device.alloc(segment.arena_bytes, "arena")
        self.steps = steps
        iovas = {"code": self.code.iova, "const": 0, "arena": self.arena.iova}
        with self.code.cpu() as mem:
            mem[:] = bind(segment, iovas)
        self.tasks: Sequence[JobTask] = [
            JobTask(self.code.iova + t.word * WORD_BYTES, t.words, t.units, t.int_mask, t.node)
            for t in segment.tasks
        ]

    def job(self, **options: Any) -> Job:
        return Job(self.tasks, (self.code,), (self.arena,), **options)

    @property
    def buffers(self) -> tuple[Buffer, Buffer]:
        return self.code, self.arena

    def fill(self, seed: int) -> Array:
        """Put an input where the first task reads, and zeros elsewhere."""
        data = np.random.default_rng(seed).integers(-2000, 2000, 32).astype(np.float16)
        with self.arena.cpu() as mem:
            mem[:] = 0
            mem[:64] = data.view(np.uint8)
        return data

    def result(self) -> Array:
        """What the last task wrote."""
        with self.arena.cpu() as mem:
            return np.array(mem[-64:]).view(np.float16)
