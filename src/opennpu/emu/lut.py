"""LUT: two tables of 513 signed 16-bit entries in the EW stage (board notes A.11).

The input is an integer index; entries are 2**INDEX_SELECT apart; between entries linear,
outside a slope.  The model reproduces the error figures of about twenty board runs.
"""

from __future__ import annotations

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


def look_up(ctx: Context, g: Group, index: Array) -> Array:
    """Integer indices (float64) -> integer codes (float64)."""
    cfg, info = g.get(dpu.LUT_CFG), g.get(dpu.LUT_INFO)
    le_start, le_end = g.get(dpu.LUT_LE_START).lut_le_start, g.get(dpu.LUT_LE_END).lut_le_end
    lo_start, lo_end = g.get(dpu.LUT_LO_START).lut_lo_start, g.get(dpu.LUT_LO_END).lut_lo_end
    ctx.require(
        cfg.lut_lo_le_mux == MUX and not cfg.lut_expand_en and not cfg.lut_road_sel,
        "lut.mode",
        UNIT,
        f"has LUT_CFG {cfg.word:#x}",
    )
    ctx.require(
        le_start <= le_end == lo_start <= lo_end,
        "lut.mode",
        UNIT,
        f"has tables {le_start}..{le_end} and {lo_start}..{lo_end} that do not adjoin",
    )
    width = g.get(dpu.DATA_CUBE_WIDTH).width
    if width > chip.MAX_LUT_LINE_ATOMS:
        ctx.report("lut.long_line", UNIT, f"looks up lines of {width} atoms")
    le_scale, le_shift = g.get(dpu.LUT_LE_SLOPE_SCALE), g.get(dpu.LUT_LE_SLOPE_SHIFT)
    lo_scale, lo_shift = g.get(dpu.LUT_LO_SLOPE_SCALE), g.get(dpu.LUT_LO_SLOPE_SHIFT)
    tables = ctx.chip.tables.astype(np.float64)
    out = np.where(
        index < lo_start,
        _inside(ctx, tables[LE], index - le_start, info.lut_le_index_select),
        _inside(ctx, tables[LO], index - lo_start, info.lut_lo_index_select),
    )
    below, above = index < le_start, index > lo_end
    if below.any():
        end = _inside(ctx, tables[LE], np.zeros(1), info.lut_le_index_select)[0]
        out[below] = _outside(
            end,
            index[below] - le_start,
            le_scale.lut_le_slope_uflow_scale,
            le_shift.lut_le_slope_uflow_shift,
        )
    if above.any():
        span = np.full(1, float(lo_end - lo_start))
        end = _inside(ctx, tables[LO], span, info.lut_lo_index_select)[0]
        out[above] = _outside(
            end,
            index[above] - lo_end,
            lo_scale.lut_lo_slope_oflow_scale,
            lo_shift.lut_lo_slope_oflow_shift,
        )
    return out


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
