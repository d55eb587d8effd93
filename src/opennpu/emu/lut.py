"""LUT: two tables of 513 signed 16-bit entries in the EW stage (board notes A.11).

The input is an integer index; entries are 2**INDEX_SELECT apart; between entries linear,
outside a slope.  The model reproduces the error figures of about twenty board runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from opennpu.emu.context import LUT_ENTRIES, Context
from opennpu.emu.registers import Group
from opennpu.hw.rk3588 import chip, dpu

Array = npt.NDArray[Any]

UNIT = "LUT"
LE, LO = 0, 1
MUX = 2  # LUT_LO_LE_MUX of every stream seen
ZERO_CODE = 2.0**17  # what the int to float stage makes of 0; board notes A.11
INT16_MAX = 32767


class Port:
    """LUT_ACCESS_CFG and LUT_ACCESS_DATA: an auto-incrementing window on the tables.

    The zero pair that streams write is a read access: it changes nothing (register notes A.3).
    """

    def __init__(self, tables: Array) -> None:
        self.tables = tables
        self.table = self.at = 0
        self.writing = False

    def configure(self, word: int) -> None:
        """LUT_ACCESS_CFG."""
        cfg = dpu.LUT_ACCESS_CFG.decode(word)
        self.table, self.at, self.writing = (
            cfg.lut_table_id,
            cfg.lut_addr,
            bool(cfg.lut_access_type),
        )

    def write(self, word: int) -> None:
        """LUT_ACCESS_DATA; beyond the last entry nothing happens."""
        if self.writing and self.at < LUT_ENTRIES:
            self.tables[self.table, self.at] = (word & 0xFFFF ^ 0x8000) - 0x8000
        self.at += 1

    def read(self) -> int:
        """LUT_ACCESS_DATA read back over AHB."""
        value = int(self.tables[self.table, min(self.at, LUT_ENTRIES - 1)]) & 0xFFFF
        self.at += 1
        return value


@dataclass(frozen=True, slots=True)
class Table:
    """One table as the registers say it, and where an index lies in it."""

    value: Array  # for every index, as if this table had been chosen
    under: Array  # at or before its start
    over: Array  # at its last entry, past it, or past its end

    @property
    def hit(self) -> Array:
        """Between its ends."""
        return ~(self.under | self.over)


def look_up(ctx: Context, g: Group, index: Array) -> Array:
    """Integer indices (float64) -> integer codes (float64).

    Which table answers (NVDLA, register notes C.7): the one that is hit; where both are missed on
    the same side UFLOW or OFLOW priority decides, where both are hit or missed on different sides
    HYBRID priority.  With 0x68 and tables that adjoin at 0, as in every stream, that is LE below
    0 and LO from 0 on (board notes A.11).
    """
    cfg, info = g.get(dpu.LUT_CFG), g.get(dpu.LUT_INFO)
    ctx.require(
        cfg.lut_lo_le_mux == MUX and not cfg.lut_expand_en and not cfg.lut_road_sel,
        "lut.mode",
        UNIT,
        f"has LUT_CFG {cfg.word:#x}",
    )
    width = g.get(dpu.DATA_CUBE_WIDTH).width
    if width > chip.MAX_LUT_LINE_ATOMS:
        ctx.report("lut.long_line", UNIT, f"looks up lines of {width} atoms")
    le_scale, le_shift = g.get(dpu.LUT_LE_SLOPE_SCALE), g.get(dpu.LUT_LE_SLOPE_SHIFT)
    lo_scale, lo_shift = g.get(dpu.LUT_LO_SLOPE_SCALE), g.get(dpu.LUT_LO_SLOPE_SHIFT)
    le = _table(
        ctx,
        LE,
        index,
        (g.get(dpu.LUT_LE_START).lut_le_start, g.get(dpu.LUT_LE_END).lut_le_end),
        info.lut_le_index_select,
        (le_scale.lut_le_slope_uflow_scale, le_shift.lut_le_slope_uflow_shift),
        (le_scale.lut_le_slope_oflow_scale, le_shift.lut_le_slope_oflow_shift),
    )
    lo = _table(
        ctx,
        LO,
        index,
        (g.get(dpu.LUT_LO_START).lut_lo_start, g.get(dpu.LUT_LO_END).lut_lo_end),
        info.lut_lo_index_select,
        (lo_scale.lut_lo_slope_uflow_scale, lo_shift.lut_lo_slope_uflow_shift),
        (lo_scale.lut_lo_slope_oflow_scale, lo_shift.lut_lo_slope_oflow_shift),
    )
    choose_lo = np.where(lo.hit & ~le.hit, True, bool(cfg.lut_hybrid_priority))
    choose_lo = np.where(le.hit & ~lo.hit, False, choose_lo)
    choose_lo = np.where(le.under & lo.under, bool(cfg.lut_uflow_priority), choose_lo)
    choose_lo = np.where(le.over & lo.over, bool(cfg.lut_oflow_priority), choose_lo)
    return np.where(choose_lo, lo.value, le.value)


def _table(
    ctx: Context,
    number: int,
    index: Array,
    ends: tuple[int, int],
    select: int,
    down: tuple[int, int],
    up: tuple[int, int],
) -> Table:
    """Look all indices up in one table.  ``down``, ``up``: (scale, shift) of the slopes outside."""
    entries = ctx.chip.tables[number].astype(np.float64)
    start, end = ends
    ctx.require(
        start <= end, "lut.mode", UNIT, f"has table {number} from {start} to {end}, its end first"
    )
    over = (index > end) | (index - start >= (LUT_ENTRIES - 1) << select)
    under = (index <= start) & ~over
    value = _inside(ctx, entries, index - start, select)
    if under.any():
        value[under] = _outside(entries[0], index[under] - start, *down)
    past = over & (index > end)  # the last entry itself needs no slope
    if past.any():
        last = _inside(ctx, entries, np.full(1, float(end - start)), select)[0]
        value[past] = _outside(last, index[past] - end, *up)
    return Table(value, under, over)


def _inside(ctx: Context, table: Array, at: Array, select: int) -> Array:
    """Interpolate at ``at`` index units past the first entry; ends hold."""
    at = np.clip(at, 0, (LUT_ENTRIES - 1) * 2.0**select)
    entry = np.minimum(np.floor(at * 2.0**-select), LUT_ENTRIES - 2).astype(np.int64)
    fraction = at * 2.0**-select - entry
    low, high = table[entry], table[entry + 1]
    exact = low + (high - low) * fraction
    if ctx.policy.lut_interpolation == "nearest":
        return np.where(fraction < 0.5, low, high)
    if ctx.policy.lut_interpolation == "rounded":
        return np.floor(exact + 0.5)
    return np.floor(exact)


def _outside(end: float, distance: Array, scale: int, shift: int) -> Array:
    """Extrapolate: floored; an end of a non-negative curve does not cross zero (A.11)."""
    out = end + np.floor(distance * scale * 2.0**-shift)
    if end >= 0:
        out = np.maximum(out, 0)
    return np.clip(out, -INT16_MAX - 1, INT16_MAX)
