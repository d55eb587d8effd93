"""PPU_RDMA: reads the cube that the PPU pools (register notes D.4; strides in atoms here)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from opennpu.emu.context import Context
from opennpu.emu.registers import Group
from opennpu.hw.rk3588 import chip, ppu_rdma

UNIT = "PPU_RDMA"
ATOM = chip.ATOM_BYTES


def size(g: Group) -> tuple[int, int, int]:
    """(rows, columns, channels) of the cube."""
    return (
        g.get(ppu_rdma.RDMA_CUBE_IN_HEIGHT).cube_in_height,
        g.get(ppu_rdma.RDMA_CUBE_IN_WIDTH).cube_in_width,
        g.get(ppu_rdma.RDMA_CUBE_IN_CHANNEL).cube_in_channel,
    )


def source_format(g: Group) -> int:
    """RDMA_DATA_FORMAT: 1 8 bit, 2 16 bit."""
    return g.get(ppu_rdma.RDMA_DATA_FORMAT).in_precision


def fetch(ctx: Context, g: Group, lanes: int) -> npt.NDArray[Any]:
    """uint8 [surface, row, column, 16]."""
    rows, cols, channels = size(g)
    surfaces = -(-channels // lanes)
    ctx.charge(UNIT, 0, surfaces * rows * cols)
    out: npt.NDArray[np.uint8] = ctx.space.gather(
        g.get(ppu_rdma.RDMA_SRC_BASE_ADDR).src_base_addr + ctx.dma_base,
        (surfaces, rows, cols),
        (
            g.get(ppu_rdma.RDMA_SRC_SURF_STRIDE).src_surf_stride * ATOM,
            g.get(ppu_rdma.RDMA_SRC_LINE_STRIDE).src_line_stride * ATOM,
            ATOM,
        ),
        "pool",
        UNIT,
    )
    return out
