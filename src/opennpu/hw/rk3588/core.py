"""CORE: the MAC array and its accumulator.

Registers 0x3000..0x3fff of a core's window.  Names as in the TRM and in Mesa.
"""

from __future__ import annotations

from opennpu.hw.regs import Block, Register, bits
from opennpu.hw.rk3588.common import NOTES, SILICON, STREAMS, TRM, VENDOR, Precision
from opennpu.hw.rk3588.groups import OperationEnable, Pointer, Status

CORE = Block("CORE", base=0x3000, target=0x0801)


class S_STATUS(Status, block=CORE, offset=0x000, access="RO", shadowed=False):
    """State of the two register groups."""


class S_POINTER(Pointer, block=CORE, offset=0x004, shadowed=False):
    """Which register group is written and which one runs (ping-pong).

    0xE: both flip by themselves.  0x30: both back to group 0.

    The kernel writes 0xE + (core << 28) before each start; a command list that writes this
    register without the core in bits 31:28 hangs a board (rockchip-npu-notes).
    """


class OPERATION_ENABLE(OperationEnable, block=CORE, offset=0x008):
    """Arm the unit with the written group.  This and all higher offsets exist once per group."""


class MAC_GATING(Register, block=CORE, offset=0x00C, reset=0x7800800):
    """Clock gating of the MAC array."""

    slcg_op_en: int = bits(
        26,
        0,
        default=0x0780_0800,
        source=NOTES,
        doc="leave at reset: without bit 24 no task ends; bits 11 and 23 clock lanes 0-7, 8-15",
    )


class MISC_CFG(Register, block=CORE, offset=0x010):
    """Mode of the accumulator."""

    qd_en: int = bits(
        0, default=0, source=SILICON, doc="1 = also sum the inputs, which CPEND of the DPU needs"
    )
    dw_en: int = bits(1, default=0, source=SILICON, doc="1 = depthwise")
    proc_precision: Precision = bits(
        10,
        8,
        default=0,
        source=NOTES,
        doc="element type in the MAC array; codes 4 and 5 are reserved here",
    )
    soft_gating: int = bits(19, 14, default=0, source=TRM, doc="clock gating of the accumulator")


class DATAOUT_SIZE_0(Register, block=CORE, offset=0x014):
    """Output size."""

    dataout_width: int = bits(15, 0, bias=1, unit="px", source=VENDOR, doc="output columns")
    dataout_height: int = bits(31, 16, bias=1, unit="px", source=VENDOR, doc="output rows")


class DATAOUT_SIZE_1(Register, block=CORE, offset=0x018):
    """Output channels."""

    dataout_channel: int = bits(
        15,
        0,
        bias=1,
        unit="channels",
        source=VENDOR,
        doc="output channels, rounded up to whole kernel groups",
    )


class CLIP_TRUNCATE(Register, block=CORE, offset=0x01C):
    """Shift of the accumulator."""

    clip_truncate: int = bits(
        4, 0, default=0, source=TRM, doc="right shift of the accumulator before the DPU"
    )
    round_type: int = bits(6, default=0, source=TRM, doc="0 = ties to even; 1 = ties up")


class UNDOC_3030(Register, block=CORE, offset=0x030):
    """In no manual.  Mesa and vendor lists write 0 in every convolution."""

    value: int = bits(
        31,
        0,
        default=0,
        source=STREAMS,
        doc="unknown; always 0, other values changed nothing on a board",
    )
