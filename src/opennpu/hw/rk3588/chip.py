"""RK3588 chip limits: one named number each, with its source and trust.

Trust as in `opennpu.hw.regs`: M measured on a board, D documented, G guessed.  What a field can
hold is not repeated here: ask the field (``dpu.DATA_CUBE_WIDTH.fields["width"].max``).
"""

from __future__ import annotations

from opennpu.hw.rk3588.common import Precision

# The chip.
CORES = 3  # D: TRM, Linux rk3588-base.dtsi
CORE_BASES = (0xFDAB_0000, 0xFDAC_0000, 0xFDAD_0000)  # M: Linux rk3588-base.dtsi
CORE_WINDOW_BYTES = 0x1_0000  # D: TRM address map
HW_VERSION = 1179210309  # M: VERSION + VERSION_NUM as both drivers print it
IOVA_BYTES = 1 << 32  # D: Linux rocket; every address register has 32 bits
PAGE_BYTES = 4096  # D: Linux rockchip-iommu
CLOCK_BOOT_HZ = 200e6  # M: rockchip-npu-notes
CLOCK_HZ = 600e6  # M: rockchip-npu-notes, the highest that was validated (0.80 V)
HANG_TIMEOUT_S = 0.5  # D: Linux rocket resets a core after this; the vendor waits for its caller
INTERRUPTS_ALL = 0x1_FFFF  # D: TRM, 17 events; both drivers clear them all

# Commands.
TASKS_PER_START = 4095  # M: PC_TASK_CON.TASK_NUMBER has 12 bits; vendor driver splits there
S_POINTER_CORE_SHIFT = 28  # M: CNA and CORE S_POINTER hold the core there (rockchip-npu-notes)

# Memory layout.
ATOM_BYTES = 16  # M: unit of feature addressing; TRM, Mesa
LINES_PER_GROUP = 4  # M: fetched together unless GROUP_LINE_OFF; vendor captures, 683 rows
MIN_ROWS = 4  # M: of convolution inputs that rockchip-npu-notes ran; fewer need a negative stride
WEIGHT_ALIGN_BYTES = 16  # D: DCOMP_ADDR0 in the TRM
BIAS_ALIGN_CHANNELS = 32  # D: the DPU reads whole kernel groups of per-channel operands (Mesa)

# CBUF.
CBUF_BANKS = 12  # M: per core; TRM (384 KiB), Mesa, vendor captures
CBUF_BANK_BYTES = 32 * 1024  # M: the same
CBUF_ENTRY_BYTES = 64  # M: unit of CBUF_CON1.DATA_ENTRIES; rockchip-npu-notes, Mesa
CBUF_ENTRIES_PER_BANK = CBUF_BANK_BYTES // CBUF_ENTRY_BYTES
MAX_DATA_BANKS = 11  # M: one bank is left for weights in every stream
INT8_SLACK_BANKS = 1  # M: int8 columns one pixel wide corrupt the last rows of a full last bank

# The array.
KERNEL_GROUP = {  # M: output channels computed at once; TRM, Mesa, rockchip-npu-notes
    Precision.INT8: 32,
    Precision.INT4: 64,
    Precision.INT16: 16,
    Precision.FP16: 16,
    Precision.BF16: 16,
    Precision.TF32: 16,
}
CHANNEL_GROUP = {  # M: input channels taken at once; the same
    Precision.INT8: 32,
    Precision.INT4: 32,
    Precision.INT16: 32,
    Precision.FP16: 32,
    Precision.BF16: 32,
    Precision.TF32: 16,
}
DEPTHWISE_GROUP = {  # M for int8 (silicon capture) and fp16 (rockchip-npu-notes), else G
    Precision.INT8: 64,
    Precision.FP16: 32,
    Precision.BF16: 32,
    Precision.INT16: 32,
}
MACS_PER_CYCLE = {  # D: per core; TRM
    Precision.INT4: 2048,
    Precision.INT8: 1024,
    Precision.INT16: 512,
    Precision.FP16: 512,
    Precision.BF16: 512,
    Precision.TF32: 256,
}
ACCUMULATES_TO = {  # M: what leaves CORE unless the DPU narrows it; rockchip-npu-notes
    Precision.INT8: Precision.INT32,
    Precision.INT4: Precision.INT16,  # saturates
    Precision.INT16: Precision.INT32,  # saturates
    Precision.FP16: Precision.FP32,
    Precision.BF16: Precision.FP32,
    Precision.TF32: Precision.FP32,
}
MAX_K_ONE_PASS = 10_240  # M: longest fp16 sum that ran in one task (rockchip-npu-notes)
MAX_K_INT8_EXACT = 131_072  # D: beyond, int8 sums may pass 32 bits (NVDLA); unmeasured
MAX_K_INT4 = 668  # M: 49 * K must stay within int16 (rockchip-npu-notes)
MAX_K_TF32 = 3072  # M: rknpu2_matmul_open; 3072 < K < 4096 failed with more than 4 rows

# Convolution.
MAX_INPUT_WIDTH_PX = 2047  # M: 11 bits, wider wraps in silence (rockchip-npu-notes)
MAX_INPUT_HEIGHT_PX = 1022  # M: FEATURE_GRAINS = rows + 1 has 10 bits (rockchip-npu-notes)
MAX_KERNEL_PX = 31  # M: open-rknpu ran every odd size up to this on an RV1106; 5 bits
MAX_CONV_STRIDE_PX = 7  # D: 3 bits; boards ran 1 to 4
MAX_CONV_PAD_PX = 15  # M: 4 bits, more wraps in silence (rockchip-npu-notes)
DECONV_STRIDES_PX = (2, 4, 8)  # M: others act as 1 (rockchip-npu-notes)
MAX_SURFACES_PER_GROUP = 8  # M: SIZE_E has 3 bits (rockchip-npu-notes)

# DPU and PPU.
MAX_CUBE_PX = 8191  # M: width, height and channels of DPU, PPU and their RDMA; one less than fits
MAX_LINE_ATOMS = 8175  # M: longest element-wise line that ran (allbilly/rk3588)
LUT_ENTRIES = 513  # M: per table (allbilly/rk3588, rockchip-npu-notes)
MAX_LUT_LINE_ATOMS = 4096  # M: lines of 8191 atoms corrupt about 54 elements (rockchip-npu-notes)
MIN_RESIDUAL_PX = 12  # M: below, a residual's upper surfaces are mis-strided (rockchip-npu-notes)
MAX_POOL_PX = 16  # M: window and step; 4 bits (rockchip-npu-notes)
MAX_POOL_PAD_PX = 7  # M: 3 bits (rockchip-npu-notes)

ELEMENT_BITS = {
    Precision.INT4: 4,
    Precision.INT8: 8,
    Precision.INT16: 16,
    Precision.FP16: 16,
    Precision.BF16: 16,
    Precision.INT32: 32,
    Precision.FP32: 32,
    Precision.TF32: 32,
}


def elements_per_atom(precision: Precision) -> int:
    """C2 of a feature cube: 16 int8, 8 for 16-bit types, 4 for 32-bit types, 32 int4."""
    return ATOM_BYTES * 8 // ELEMENT_BITS[precision]
