"""The look-up program: any scalar function of one tensor, by the two tables of the DPU.

A flying task whose BN stage turns x into a table index and whose EW stage looks it up; register
values and the place of the table words (in the list that uses them, after the pointers) are
those of the program that boards run (rockchip-npu-notes, board notes A.11).

fp16: 1024 equal steps over [low, high], straight lines between them, constant outside.  The
result is a 16-bit code times a power of two: an absolute precision of 2**-15 of the largest
result.  A code of 0 leaves as 2**17, so codes avoid it.  int8: one entry per input code, exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from opennpu.hw.regs import Register
from opennpu.hw.rk3588 import chip, cna, dpu, dpu_rdma
from opennpu.hw.rk3588.common import Algo, Precision
from opennpu.ir.graph import Value
from opennpu.ops import _flying
from opennpu.ops._conv import float_bits
from opennpu.ops.base import Operand, Site
from opennpu.program import At, Emitted, Ref, Task

Array = npt.NDArray[Any]
Function = Callable[[Array], Array]
"""float64 -> float64, element by element."""

SELECT = 5  # log2 of the index units between entries, in every stream that boards ran
STEP = 1 << SELECT
REACH = STEP * (chip.LUT_ENTRIES - 1)  # LE holds indices -REACH..0, LO 0..REACH
CODE_LOW, CODE_HIGH = np.iinfo(np.int16).min, np.iinfo(np.int16).max
CODE_BITS = 15
INT8_SHIFT = 6  # int8 codes stand in the table times 2**6, plus 1: none is 0
MAX_GAIN = 32768.0  # index units per unit of x: fp16's largest number stays an int32
POINTERS = 2  # words before the tables: S_POINTER of DPU and DPU_RDMA


@dataclass(frozen=True, slots=True)
class Curve:
    """A function as the fp16 tables hold it.

    Attributes:
        f: the function.
        low, high: of x; beyond them the curve keeps its last value.
        sign: of the results: 1 none is negative, -1 none is positive, 0 that of x against the
            middle of [low, high].  Codes of a curve that crosses 0 elsewhere would pass 0.
    """

    f: Function
    low: float
    high: float
    sign: int


@dataclass(frozen=True, slots=True)
class Table:
    """Both tables, and the registers that belong to them."""

    le: Array  # int16 [513]
    lo: Array
    gain: np.float16 = np.float16(0)  # of BN, index units per unit of x
    shift: np.float32 = np.float32(0)  # of BN, in index units
    offset: int = 0  # added to codes
    exponent: int = 0  # result = code * 2**-exponent

    @property
    def data(self) -> bytes:
        """LE, then LO."""
        return np.stack([self.le, self.lo]).astype("<i2").tobytes()

    def evaluate(self, x: Array) -> Array:
        """What a board makes of fp16 numbers, NaNs aside."""
        wide = x.astype(np.float32) * np.float32(self.gain) + self.shift
        index = np.clip(np.rint(wide.astype(np.float64)), -REACH, REACH)
        entries = np.concatenate([self.le, self.lo]).astype(np.int64)
        lo = index >= 0
        at = np.where(lo, index, index + REACH).astype(np.int64)
        entry = np.minimum(at // STEP, chip.LUT_ENTRIES - 2)
        first = entry + np.where(lo, chip.LUT_ENTRIES, 0)
        left, right = entries[first], entries[first + 1]
        code = left + ((right - left) * (at - entry * STEP) >> SELECT) + self.offset
        with np.errstate(over="ignore"):
            return np.asarray((code * 2.0**-self.exponent).astype(np.float16))


def fp16_table(curve: Curve) -> Table:
    """Entries and registers of a curve."""
    half, middle = (curve.high - curve.low) / 2, (curve.high + curve.low) / 2
    gain = np.float16(min(REACH / half, MAX_GAIN))
    shift = np.float32(-middle * float(gain)) if middle else np.float32(-0.0)
    index = np.arange(-REACH, REACH + 1, STEP)
    x = np.clip((index - float(shift)) / float(gain), curve.low, curve.high)
    with np.errstate(all="ignore"):
        y = curve.f(x.astype(np.float64))
    if not np.isfinite(y).all():
        raise AssertionError(f"the curve is not finite between {curve.low} and {curve.high}")
    top = float(np.abs(y).max())
    exponent = int(np.clip(CODE_BITS - np.ceil(np.log2(top)) if top else CODE_BITS, 0, 30))
    codes = np.rint(y * 2.0**exponent)
    middle_at = REACH // STEP
    le, lo = codes[: middle_at + 1], codes[middle_at:]
    offset = 0
    if curve.sign > 0:
        offset = 1
        le, lo = (np.clip(c - offset, 0, CODE_HIGH) for c in (le, lo))
    elif curve.sign < 0:
        le, lo = (np.clip(c, CODE_LOW, -1) for c in (le, lo))
    else:
        le, lo = np.clip(le, CODE_LOW, -1), np.clip(lo, 1, CODE_HIGH)
    return Table(le.astype(np.int16), lo.astype(np.int16), gain, shift, offset, exponent)


def int8_table(x: Operand, y: Operand, f: Function) -> Table:
    """One entry per code of ``x``: quantize(f(dequantize(code)))."""
    codes = np.arange(-128, 128)
    real = ((codes - x.zero_point).astype(np.float32) * np.float32(x.scale)).astype(np.float64)
    with np.errstate(all="ignore"):
        out = np.nan_to_num(f(real), nan=0.0).astype(np.float32)
        q = y.quant.quantize(out).astype(np.int16)
    entries = (q << INT8_SHIFT) + 1
    # index = code * STEP: LE ends, and LO starts, at code 0
    le = np.full(chip.LUT_ENTRIES, entries[0], np.int16)
    lo = np.full(chip.LUT_ENTRIES, entries[-1], np.int16)
    le[-129:-1], le[-1] = entries[:128], entries[128]
    lo[:128] = entries[128:]
    return Table(le, lo)


def int8_curve(site: Site, f: Function) -> tuple[float, Table]:
    """(reach, table): indices -REACH..REACH stand for numbers up to ``reach``.

    Beyond it the output's code does not change any more.
    """
    y = site.output

    def code(x: Array) -> Array:
        with np.errstate(all="ignore"):
            real = np.nan_to_num(f(x.astype(np.float64)), nan=0.0) / y.scale + y.zero_point
        return np.clip(real, -128, 127)

    far = np.geomspace(1, 1e4, 200)
    for reach in 2.0 ** np.arange(-4, 13, 0.5):
        if all(np.ptp(np.rint(code(side * reach * far))) == 0 for side in (-1, 1)):
            break
    else:
        raise site.refuse(f"changes its codes past {reach:g}, its table reaches no further")
    x = np.arange(-REACH, REACH + 1, STEP) * (reach / REACH)
    entries = np.rint(code(x) * 2**INT8_SHIFT).astype(np.int16)
    middle = REACH // STEP
    return float(reach), Table(entries[: middle + 1], entries[middle:])


# -- words -----------------------------------------------------------------------------------


def registers(p: Precision, table: Table) -> tuple[Register, ...]:
    """EW looks up, the output converter scales; in fp16 BN makes the index."""
    look = dpu.EW_CFG(ew_op_cvt_bypass=1, ew_relu_bypass=1)
    if p is Precision.INT8:
        return (
            look,
            dpu.OUT_CVT_OFFSET(),
            dpu.OUT_CVT_SCALE(out_cvt_scale=1),
            dpu.OUT_CVT_SHIFT(out_cvt_shift=INT8_SHIFT),
        )
    return (
        dpu.BN_CFG(bn_alu_algo=Algo.ADD, bn_relu_bypass=1),
        dpu.BN_ALU_CFG(bn_alu_operand=float_bits(float(table.shift))),
        dpu.BN_MUL_CFG(bn_mul_operand=int(table.gain.view(np.uint16))),
        look,
        dpu.OUT_CVT_OFFSET(out_cvt_offset=table.offset),
        dpu.OUT_CVT_SCALE(out_cvt_scale=1, fp32tofp16_en=1),
        dpu.OUT_CVT_SHIFT(minus_exp=table.exponent, cvt_type=1),
    )


def tasks(site: Site, table: Table, x: Operand, y: Operand) -> Iterator[Task]:
    """y = table(x), atoms in order."""
    for task in _flying.tasks(site, stages(site, table), _flying.flat_pieces(x, None, y), y):
        yield look_up(task, table)


def stages(site: Site, table: Table) -> _flying.Stages:
    """Of a look-up on its own; in int8 BN makes the index of the code."""
    index: tuple[Register, ...] = ()
    if site.precision is Precision.INT8:
        index = (
            dpu.BN_CFG(bn_alu_bypass=1, bn_relu_bypass=1),
            dpu.BN_MUL_CFG(bn_mul_operand=STEP),
        )
    return _flying.Stages((*index, *registers(site.precision, table)))


def look_up(task: Task, table: Table) -> Task:
    """The task with the registers of the table unit, and with the tables it needs."""
    unit: tuple[Register, ...] = (
        dpu.LUT_CFG(lut_lo_le_mux=2, lut_oflow_priority=1, lut_hybrid_priority=1),
        dpu.LUT_INFO(lut_le_index_select=SELECT, lut_lo_index_select=SELECT),
        dpu.LUT_LE_START(lut_le_start=-REACH),
        dpu.LUT_LE_END(),
        dpu.LUT_LO_START(),
        dpu.LUT_LO_END(lut_lo_end=REACH),
        dpu.LUT_LE_SLOPE_SCALE(),
        dpu.LUT_LE_SLOPE_SHIFT(),
        dpu.LUT_LO_SLOPE_SCALE(),
        dpu.LUT_LO_SLOPE_SHIFT(),
    )
    return replace(task, writes=(*task.writes, *unit), tables=table.data)


# -- a whole list ----------------------------------------------------------------------------


def load_tables(tasks: Sequence[Task]) -> list[Task]:
    """The list with the table words in it: in each task whose tables are not those before it.

    A list that no single start takes may be cut anywhere, and another program may run between:
    there every task loads its own.  The program controller may fetch a task's words while the
    task before it runs, so two tasks with different tables have a copy of one atom between them.
    """
    always = len(tasks) >= chip.TASKS_PER_START // 2  # the copies come on top
    out: list[Task] = []
    there, last = b"", b""  # in the tables; used by the task before
    for task in tasks:
        if task.tables and (always or task.tables != there):
            if last not in (b"", task.tables):
                out.append(_copy_atom(task))
            words = _upload(task.tables)
            writes = (*task.writes[:POINTERS], *words, *task.writes[POINTERS:])
            out.append(replace(task, writes=writes))
            there = task.tables
        else:
            out.append(task)
        last = task.tables
    return out


def _upload(data: bytes) -> Iterator[Emitted]:
    """The words that fill both tables."""
    for number, entries in enumerate(np.frombuffer(data, "<i2").reshape(2, -1)):
        yield dpu.LUT_ACCESS_CFG(lut_access_type=1, lut_table_id=number)
        for entry in entries:
            yield dpu.LUT_ACCESS_DATA(lut_access_data=int(entry))


def _copy_atom(task: Task) -> Task:
    """One atom of its input to where its output will be."""
    at: dict[type[Register], Ref] = {w.register: w.ref for w in task.writes if isinstance(w, At)}
    out = at[dpu.DST_BASE_ADDR]
    source = at.get(dpu_rdma.RDMA_SRC_BASE_ADDR) or at[cna.FEATURE_DATA_ADDR]
    piece = _flying.Piece(source, None, out, 1, 1, 1, 1)
    nothing = Operand(Value("", ()), Precision.FP16)
    body = _flying.words(Precision.FP16, _flying.Stages(), piece, nothing)
    return replace(task, writes=tuple(body), units=_flying.START, tables=b"")


def loads_itself(tasks: Sequence[Task]) -> list[Task]:
    """Tasks of one node out of a list of `load_tables`, such that they can run without it."""
    for task in tasks:
        if task.tables:
            words = tuple(_upload(task.tables))
            if task.writes[POINTERS : POINTERS + len(words)] != words:
                return load_tables(tasks)
            break
    return list(tasks)
