"""Codes and sources that several units share."""

from __future__ import annotations

import enum

from opennpu.hw.regs import Source, Trust

# Where facts come from, and how sure that makes us.  No text or code of these is copied here.
TRM = Source("RK3588 TRM v1.0 part 1, chapter 36; Mesa rocket registers.xml", Trust.DOCUMENTED)
TRM_RV1106 = Source("RK3588 TRM chapter 36; open-rknpu (RV1106 board)", Trust.DOCUMENTED)
TRM_NVDLA = Source("RK3588 TRM chapter 36; NVDLA SDP", Trust.DOCUMENTED)
COPIES = Source("vendor captures: layout copies (rknpu-reverse-engineering)", Trust.DOCUMENTED)
DRIVERS = Source("Linux drivers/accel/rocket; vendor rknpu driver 0.9.8", Trust.MEASURED)
NOTES = Source("rockchip-npu-notes (board sweeps)", Trust.MEASURED)
VENDOR = Source("vendor captures: 683 convolution task rows", Trust.MEASURED)
SILICON = Source("Mesa int8 depthwise capture: 4,096 bytes from a board", Trust.MEASURED)
OPEN_FP16 = Source("allbilly/rk3588 (fp16 streams that pass on a board)", Trust.MEASURED)
OPEN_MATMUL = Source("rknpu2_matmul_open (a format that one project decoded)", Trust.GUESSED)
OPENNPU = Source("OpenNPU, first generation (streams that pass on a board)", Trust.MEASURED)
MMIO = Source("opennpu_rk3588 (register reads on a board); boot logs", Trust.MEASURED)
STREAMS = Source("vendor and open command streams; in no manual", Trust.GUESSED)


class Precision(enum.IntEnum):
    """Element types.  CNA and CORE take 0-3, 6, 7; the DPU writes 0, 1, 2, 3, 4, 5."""

    INT8 = 0
    INT16 = 1
    FP16 = 2
    BF16 = 3
    INT32 = 4
    FP32 = 5
    INT4 = 6
    TF32 = 7


class ConvMode(enum.IntEnum):
    """How CNA, CORE and DPU walk channels and kernels."""

    DIRECT = 0
    DEPTHWISE = 3


class Algo(enum.IntEnum):
    """ALU operation of the DPU stages."""

    MAX = 0
    MIN = 1
    ADD = 2
    DIV = 3
    MINUS = 4
    ABS = 5
    NEG = 6
    FLOOR = 7
    CEIL = 8


class PoolingMethod(enum.IntEnum):
    """What the PPU does with the pixels of a window."""

    AVERAGE = 0
    MAX = 1
    MIN = 2
