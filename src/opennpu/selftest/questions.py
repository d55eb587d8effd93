"""Open questions about the hardware, put to a device.

Each program gives other bytes under each reading that `opennpu.emu.numerics.Policy` knows, so a
board's bytes say which reading is right, or that none is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, get_args, get_type_hints

import numpy as np

from opennpu.emu.machine import Machine
from opennpu.emu.numerics import Policy
from opennpu.hw import layout
from opennpu.hw.rk3588 import cna, core, dpu, dpu_rdma
from opennpu.hw.rk3588.common import Algo, PoolingMethod, Precision
from opennpu.selftest.bench import Bench, MachineBench
from opennpu.selftest.cases import (
    load_tables,
    pool_program,
    table_look_up,
)
from opennpu.selftest.programs import (
    CONV,
    FLYING,
    OPERANDS,
    POOL,
    Array,
    Conv,
    X,
    Y,
    flying,
)

P = Precision
OUTPUT_BYTES = 0x1000
"""What of the result is looked at."""


@dataclass(frozen=True, slots=True)
class Question:
    """One question.

    Attributes:
        switch: the field of `Policy` whose values are the readings.
        text: in words.
        run: runs the program; its output lies at Y.
        ppu: as `opennpu.selftest.cases.Case`.
    """

    switch: str
    text: str
    run: Callable[[Bench], None]
    ppu: bool = False

    @property
    def readings(self) -> tuple[str | int, ...]:
        """The reading that the emulator takes by default is the first."""
        default = getattr(Policy(), self.switch)
        others = get_args(get_type_hints(Policy)[self.switch])
        return (default, *(r for r in others if r != default))

    def observe(self, bench: Bench) -> bytes:
        """What the program leaves."""
        bench.put(Y, np.zeros(OUTPUT_BYTES, np.uint8))
        self.run(bench)
        return bench.memory[Y : Y + OUTPUT_BYTES].tobytes()

    def expected(self, reading: str | int) -> bytes:
        """What it leaves if that reading is right, says the emulator."""
        change: dict[str, Any] = {self.switch: reading}
        policy = replace(Policy(), **change)
        return self.observe(MachineBench(Machine(policy=policy)))

    def answers(self, seen: bytes) -> tuple[str | int, ...]:
        """Readings under which the program leaves those bytes; none if all are wrong."""
        return tuple(r for r in self.readings if self.expected(r) == seen)


def _group_order(bench: Bench) -> None:
    conv = Conv(P.FP16, 5, 5, 64, 16, (3, 3))
    rng = np.random.default_rng(0)
    x, w = (rng.normal(size=s).astype(np.float16) for s in ((5, 5, 64), (16, 3, 3, 64)))
    conv.load(bench, x, w)
    bench.start((conv.body(), CONV))


def _ramp(bench: Bench, conv: Conv, values: Array, weight: int = 1) -> None:
    """Pixel i holds values[i] in channel 0; each kernel multiplies it by ``weight``."""
    x = np.zeros((conv.h, conv.w, conv.ic), np.int8)
    x[0, : values.size, 0] = values
    w = np.zeros((conv.oc, 1, 1, conv.ic), np.int8)
    w[..., 0] = weight
    conv.load(bench, x, w)


def _clip_truncate(bench: Bench) -> None:
    conv = Conv(P.INT8, 1, 32, 32, 32)
    _ramp(bench, conv, np.arange(-16, 16), 3)
    bias = np.arange(32, dtype="<i4")
    bench.put(OPERANDS, bias)
    body = conv.body(
        core.CLIP_TRUNCATE(clip_truncate=3),
        dpu.BS_CFG(bs_alu_src=1, bs_alu_algo=Algo.ADD, bs_mul_bypass=1, bs_relu_bypass=1),
        dpu_rdma.RDMA_BRDMA_CFG(brdma_data_use=1),
        dpu_rdma.RDMA_BS_BASE_ADDR(bs_base_addr=OPERANDS),
    )
    bench.start((body, CONV))


def _int8_pad(bench: Bench) -> None:
    conv = Conv(P.INT8, 2, 2, 64, 64, (1, 3), pad=(0, 1))
    w = np.zeros((64, 1, 3, 64), np.int8)
    w[:, 0, 0] = np.eye(64)  # the left tap picks one channel per kernel
    conv.load(bench, np.zeros((2, 2, 64), np.int8), w)
    bench.start((conv.body(cna.PAD_CON1(pad_value=0x2211_0907)), CONV))


def _bn_order(bench: Bench) -> None:
    bench.put(X, np.arange(8).astype(np.float16))
    body = flying(
        P.FP16,
        1,
        dpu.BN_CFG(bn_alu_algo=Algo.ADD, bn_relu_bypass=1),
        dpu.BN_ALU_CFG(bn_alu_operand=int(np.float32(3).view(np.uint32))),
        dpu.BN_MUL_CFG(bn_mul_operand=int(np.float16(5).view(np.uint16))),
    )
    bench.start((body, FLYING))


def _out_cvt(bench: Bench, **shift: int) -> None:
    conv = Conv(P.INT8, 1, 32, 32, 32, out=P.INT8)
    _ramp(bench, conv, np.arange(-16, 16))
    body = conv.body(
        dpu.OUT_CVT_OFFSET(out_cvt_offset=3),
        dpu.OUT_CVT_SHIFT.decode(dpu.OUT_CVT_SHIFT(out_cvt_shift=2, **shift).word),
    )
    bench.start((body, CONV))


def _out_cvt_offset(bench: Bench) -> None:
    _out_cvt(bench)


def _out_cvt_add_first(bench: Bench) -> None:
    _out_cvt(bench, cvt_type=1)


def _stage_rounding(bench: Bench) -> None:
    bench.put(X, np.arange(-16, 16).astype("<i4"))
    body = flying(
        P.INT32,
        8,
        dpu.BS_CFG(bs_alu_bypass=1, bs_relu_bypass=1),
        dpu.BS_MUL_CFG(bs_mul_operand=1, bs_mul_shift_value=2),
        dpu.DATA_FORMAT(
            proc_precision=P.INT32,
            in_precision=P.INT32,
            out_precision=P.INT32,
            bs_mul_shift_value_neg=2,
        ),
    )
    bench.start((body, FLYING))


def _interpolation(bench: Bench) -> None:
    step = np.where(np.arange(513) < 2, 0, 50)
    bench.start((load_tables(step, step), FLYING))
    x = (np.arange(128) / 1024).astype(np.float16)
    bench.put(X, x)
    bench.start((flying(P.FP16, x.size // 8, *table_look_up()), FLYING))


def _zero_code(bench: Bench) -> None:
    none = np.zeros(513, int)
    bench.start((load_tables(none, none), FLYING))
    bench.put(X, np.ones(8, np.float16))
    bench.start((flying(P.FP16, 1, *table_look_up(0)), FLYING))


def _average_ties(bench: Bench) -> None:
    sums = np.arange(-126, 130, 4)  # halves of both signs
    x = np.zeros((2, 2 * sums.size, 16), np.int8)
    for i, s in enumerate(sums):
        block = np.full(4, s // 4)
        block[: s % 4] += 1
        x[:, 2 * i : 2 * i + 2, 0] = block.reshape(2, 2)
    size = (2, 2 * sums.size)
    body, _ = pool_program(P.INT8, size, 16, PoolingMethod.AVERAGE, (2, 2), stride=2)
    bench.put(X, layout.pack_cube(x[None], P.INT8))
    bench.start((body, POOL))


def _average_float(bench: Bench) -> None:
    x = np.random.default_rng(1).normal(size=(9, 9, 8)).astype(np.float16)
    body, _ = pool_program(P.FP16, (9, 9), 8, PoolingMethod.AVERAGE, (3, 3))
    bench.put(X, layout.pack_cube(x[None], P.FP16))
    bench.start((body, POOL))


def _requant_block(bench: Bench) -> None:
    conv = Conv(P.INT8, 1, 32, 32, 32, out=P.INT8)
    _ramp(bench, conv, np.arange(-16, 16))
    a, b, m = np.arange(32) * 3, np.zeros(32), np.arange(1, 33)
    bench.put(OPERANDS, layout.pack_requant(a, b, m))
    body = conv.body(
        dpu.BS_CFG(bs_alu_src=1, bs_alu_algo=Algo.ADD, bs_relu_bypass=1),
        dpu.BS_MUL_CFG(bs_mul_src=1, bs_mul_shift_value=3),
        dpu.DATA_FORMAT(
            proc_precision=P.INT8,
            in_precision=P.INT8,
            out_precision=P.INT8,
            bs_mul_shift_value_neg=3,
        ),
        dpu_rdma.RDMA_BRDMA_CFG(brdma_data_use=7),
        dpu_rdma.RDMA_BS_BASE_ADDR(bs_base_addr=OPERANDS),
    )
    bench.start((body, CONV))


QUESTIONS = (
    Question(
        "group_order", "In which order does CORE add fp16 groups of a 3x3 kernel?", _group_order
    ),
    Question("int8_pad", "Which byte of PAD_CON1 pads which int8 lane?", _int8_pad),
    Question("clip_truncate", "Does CLIP_TRUNCATE shift before the bias is added?", _clip_truncate),
    Question("bn_order", "Does BN multiply before it adds?", _bn_order),
    Question(
        "stage_rounding", "Do ties of BS shifts go to even or away from zero?", _stage_rounding
    ),
    Question(
        "requant_block", "How many channels has a block of per-channel operands?", _requant_block
    ),
    Question("out_cvt_offset", "Is OUT_CVT_OFFSET added after rounding?", _out_cvt_offset),
    Question(
        "out_cvt_add_first", "Does CVT_TYPE = 1 add OUT_CVT_OFFSET first?", _out_cvt_add_first
    ),
    Question("lut_interpolation", "How does a table interpolate?", _interpolation),
    Question("lut_zero_code", "How does a table's code 0 leave?", _zero_code),
    Question("average_ties", "Where do exact halves of int8 averages go?", _average_ties, ppu=True),
    Question(
        "average_float", "Is an fp16 average rounded once or twice?", _average_float, ppu=True
    ),
)
"""Every switch of `Policy` that some program can tell apart."""
