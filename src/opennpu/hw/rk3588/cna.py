"""CNA: feature and weight fetch, the 384 KiB CBUF, and the sequencer that feeds CORE.

Registers 0x1000..0x1fff of a core's window.  Names as in the TRM and in Mesa.
"""

from __future__ import annotations

from opennpu.hw.regs import Block, Register, Trust, bits
from opennpu.hw.rk3588.common import (
    NOTES,
    OPEN_MATMUL,
    SILICON,
    TRM,
    TRM_RV1106,
    VENDOR,
    ConvMode,
    Precision,
)
from opennpu.hw.rk3588.groups import OperationEnable, Pointer, Status

CNA = Block("CNA", base=0x1000, target=0x0201)


class S_STATUS(Status, block=CNA, offset=0x000, access="RO", shadowed=False):
    """State of the two register groups."""


class S_POINTER(Pointer, block=CNA, offset=0x004, shadowed=False):
    """Which register group is written and which one runs (ping-pong).

    0xE: both flip by themselves.  0x30: both back to group 0.

    The kernel writes 0xE + (core << 28) before each start; a command list that writes this
    register without the core in bits 31:28 hangs a board (rockchip-npu-notes).
    """


class OPERATION_ENABLE(OperationEnable, block=CNA, offset=0x008):
    """Arm the unit with the written group.  This and all higher offsets exist once per group."""


class CONV_CON1(Register, block=CNA, offset=0x00C):
    """Mode and element types of the convolution, and how features are read."""

    conv_mode: ConvMode = bits(
        3, 0, default=0, source=SILICON, doc="direct or depthwise; 1 and 2 are reserved"
    )
    in_precision: Precision = bits(
        6, 4, default=0, source=NOTES, doc="element type in memory; codes 4 and 5 are reserved here"
    )
    proc_precision: Precision = bits(
        9,
        7,
        default=0,
        source=NOTES,
        doc="element type in the MAC array; equals in_precision in every stream",
    )
    argb_in: int = bits(
        15,
        12,
        default=0,
        source=TRM,
        doc="packed input: 8, 9, 10, 11 = 1, 2, 3, 4 interleaved channels; 0 = off",
    )
    deconv: int = bits(
        16,
        default=0,
        source=NOTES,
        doc="1 = transposed convolution: zeros between the input pixels",
    )
    group_line_off: int = bits(
        29, default=0, source=NOTES, doc="0 = lines are fetched in groups of four; 1 = one by one"
    )
    nonalign_dma: int = bits(
        30, default=0, source=TRM, doc="1 = pixels are not 16 bytes apart; needed with argb_in"
    )


class CONV_CON2(Register, block=CNA, offset=0x010):
    """Scheduling.

    Vendor lists for several cores hold a split code in bits 30:28, reserved here: 1, 2 rows over
    2, 3 cores; 4, 5 kernels over 2, 3 cores.
    """

    cmd_fifo_srst: int = bits(0, default=0, source=TRM, doc="debug: reset the command FIFO")
    csc_do_en: int = bits(1, default=0, source=TRM, doc="debug: 1 = no features to CORE")
    csc_wo_en: int = bits(2, default=0, source=TRM, doc="debug: 1 = no weights to CORE")
    feature_grains: int = bits(
        13,
        4,
        unit="rows",
        source=TRM,
        doc="rows to collect before computing; at least stride_y + kernel_h",
    )
    kernel_group: int = bits(
        23,
        16,
        bias=1,
        unit="groups",
        default=1,
        source=TRM,
        doc="kernel groups (32 kernels int8, 16 for 16-bit types); every stream leaves 1",
    )


class CONV_CON3(Register, block=CNA, offset=0x014):
    """Steps and dilation."""

    conv_x_stride: int = bits(2, 0, unit="px", source=NOTES, doc="horizontal step, 1..7")
    conv_y_stride: int = bits(5, 3, unit="px", source=NOTES, doc="vertical step, 1..7")
    deconv_x_stride: int = bits(
        10,
        8,
        bias=1,
        unit="px",
        default=1,
        source=NOTES,
        doc="horizontal step of a transposed convolution; only 1, 2, 4, 8 act",
    )
    deconv_y_stride: int = bits(
        13,
        11,
        bias=1,
        unit="px",
        default=1,
        source=NOTES,
        doc="vertical step of a transposed convolution; only 1, 2, 4, 8 act",
    )
    atrous_x_dilation: int = bits(
        20,
        16,
        bias=1,
        unit="px",
        default=1,
        source=TRM_RV1106,
        doc="horizontal distance of the taps; 1 = dense",
    )
    atrous_y_dilation: int = bits(
        25,
        21,
        bias=1,
        unit="px",
        default=1,
        source=TRM_RV1106,
        doc="vertical distance of the taps; 1 = dense",
    )
    nn_mode: int = bits(
        30,
        28,
        default=0,
        source=TRM,
        doc="MAC shape over cores: 0 one core, 1 64x32, 2 96x32, 4 32x64, 5 32x96",
    )


class DATA_SIZE0(Register, block=CNA, offset=0x020):
    """Input size of this task."""

    datain_height: int = bits(10, 0, unit="px", source=NOTES, doc="input rows of this task")
    datain_width: int = bits(
        26,
        16,
        unit="px",
        source=NOTES,
        doc="input columns of this task; a larger value wraps in silence",
    )


class DATA_SIZE1(Register, block=CNA, offset=0x024):
    """Input channels."""

    datain_channel: int = bits(
        15,
        0,
        unit="channels",
        source=VENDOR,
        doc="channels, rounded up to whole atoms (16 int8, 8 for 16-bit types)",
    )
    datain_channel_real: int = bits(
        29,
        16,
        bias=1,
        unit="channels",
        source=VENDOR,
        trust=Trust.GUESSED,
        doc="channels before rounding; vendor lists hold it modulo 64, Mesa in full",
    )


class DATA_SIZE2(Register, block=CNA, offset=0x028):
    """Output width."""

    dataout_width: int = bits(10, 0, unit="px", source=NOTES, doc="output columns of this task")


class DATA_SIZE3(Register, block=CNA, offset=0x02C):
    """Output pixel count."""

    dataout_atomics: int = bits(
        21, 0, unit="px", source=VENDOR, doc="output columns * rows of this task"
    )
    surf_mode: int = bits(
        23, 22, default=0, source=TRM, doc="surfaces in series: 0 and 1 one, 2 two, 3 four"
    )


class WEIGHT_SIZE0(Register, block=CNA, offset=0x030):
    """Bytes of all weights of this task."""

    weight_bytes: int = bits(
        31,
        0,
        unit="bytes",
        source=VENDOR,
        doc="all weights: kernels * bytes per kernel (depthwise: kh*kw*channels*size)",
    )


class WEIGHT_SIZE1(Register, block=CNA, offset=0x034):
    """Bytes of one kernel."""

    weight_bytes_per_kernel: int = bits(
        18, 0, unit="bytes", source=VENDOR, doc="kh * kw * channels * element size"
    )


class WEIGHT_SIZE2(Register, block=CNA, offset=0x038):
    """Shape of the weights."""

    weight_kernels: int = bits(13, 0, unit="kernels", source=VENDOR, doc="kernels; 1 for depthwise")
    weight_height: int = bits(20, 16, unit="px", source=VENDOR, doc="kernel rows, 1..31")
    weight_width: int = bits(28, 24, unit="px", source=VENDOR, doc="kernel columns, 1..31")


class CBUF_CON0(Register, block=CNA, offset=0x040):
    """Split of the 12 CBUF banks, and what to keep from the task before.

    The TRM text describes 8 banks and count - 1; every stream holds plain counts.
    """

    data_bank: int = bits(
        3, 0, unit="banks", source=VENDOR, doc="banks for features, from bank 0 up"
    )
    weight_bank: int = bits(
        7, 4, unit="banks", source=VENDOR, doc="banks for weights, from the top down"
    )
    fc_data_bank: int = bits(
        10, 8, default=0, source=NOTES, doc="must be 0: anything else spoils most outputs"
    )
    data_reuse: int = bits(
        12, default=0, source=NOTES, doc="1 = the features are in the CBUF already"
    )
    weight_reuse: int = bits(
        13, default=0, source=NOTES, doc="1 = the weights are in the CBUF already"
    )


class CBUF_CON1(Register, block=CNA, offset=0x044):
    """Size of an input row in the CBUF.  The TRM has 13 bits, Mesa 14."""

    data_entries: int = bits(
        13, 0, unit="entries", source=NOTES, doc="64-byte entries that one input row takes"
    )


class CVT_CON0(Register, block=CNA, offset=0x04C):
    """Input converter: y = (x*scale >> truncate) + offset, or add first."""

    cvt_bypass: int = bits(0, default=0, source=TRM, doc="1 = converter off")
    cvt_type: int = bits(
        1, default=0, source=TRM, doc="0 = multiply, then add; 1 = add, then multiply"
    )
    round_type: int = bits(2, default=0, source=TRM, doc="0 = ties to even; 1 = ties up")
    data_sign: int = bits(3, default=0, source=TRM, doc="1 = the input is signed")
    cvt_truncate_0: int = bits(9, 4, default=0, source=TRM, doc="right shift of channel lane 0")
    cvt_truncate_1: int = bits(15, 10, default=0, source=TRM, doc="right shift of channel lane 1")
    cvt_truncate_2: int = bits(21, 16, default=0, source=TRM, doc="right shift of channel lane 2")
    cvt_truncate_3: int = bits(27, 22, default=0, source=TRM, doc="right shift of channel lane 3")


class CVT_CON1(Register, block=CNA, offset=0x050):
    """Input converter, channel lane 0."""

    cvt_offset0: int = bits(15, 0, signed=True, default=0, source=TRM, doc="number to add")
    cvt_scale0: int = bits(31, 16, signed=True, default=0, source=TRM, doc="number to multiply by")


class CVT_CON2(Register, block=CNA, offset=0x054):
    """Input converter, channel lane 1."""

    cvt_offset1: int = bits(15, 0, signed=True, default=0, source=TRM, doc="number to add")
    cvt_scale1: int = bits(31, 16, signed=True, default=0, source=TRM, doc="number to multiply by")


class CVT_CON3(Register, block=CNA, offset=0x058):
    """Input converter, channel lane 2."""

    cvt_offset2: int = bits(15, 0, signed=True, default=0, source=TRM, doc="number to add")
    cvt_scale2: int = bits(31, 16, signed=True, default=0, source=TRM, doc="number to multiply by")


class CVT_CON4(Register, block=CNA, offset=0x05C):
    """Input converter, channel lane 3."""

    cvt_offset3: int = bits(15, 0, signed=True, default=0, source=TRM, doc="number to add")
    cvt_scale3: int = bits(31, 16, signed=True, default=0, source=TRM, doc="number to multiply by")


class FC_CON0(Register, block=CNA, offset=0x060):
    """Zero skipping for fully connected layers.  No open stream uses it."""

    fc_skip_en: int = bits(
        0, default=0, source=TRM, doc="1 = weights of skipped inputs are not fetched"
    )
    fc_skip_data: int = bits(31, 16, default=0, source=TRM, doc="input value to skip, normally 0")


class FC_CON1(Register, block=CNA, offset=0x064):
    """Zero skipping: features."""

    data_offset: int = bits(
        16, 0, default=0, source=TRM, doc="offset of the features in zero-skip mode"
    )


class PAD_CON0(Register, block=CNA, offset=0x068):
    """Padding before the image."""

    pad_top: int = bits(
        3,
        0,
        unit="px",
        default=0,
        source=NOTES,
        doc="rows above; those below follow from the output size",
    )
    pad_left: int = bits(
        7,
        4,
        unit="px",
        default=0,
        source=NOTES,
        doc="columns at the left; those at the right follow from the output size",
    )


class FEATURE_DATA_ADDR(Register, block=CNA, offset=0x070):
    """Where the input lies."""

    feature_base_addr: int = bits(
        31, 0, unit="bytes", source=VENDOR, doc="IOVA of the first atom, 16-byte aligned"
    )


class FC_CON2(Register, block=CNA, offset=0x074):
    """Zero skipping: weights."""

    weight_offset: int = bits(
        16, 0, default=0, source=TRM, doc="offset of the weights in zero-skip mode"
    )


class DMA_CON0(Register, block=CNA, offset=0x078):
    """Read bursts."""

    data_burst_len: int = bits(
        3, 0, default=0, source=TRM, doc="AXI burst of features: 3, 7, 15 = 4, 8, 16 beats"
    )
    weight_burst_len: int = bits(
        19, 16, default=0, source=TRM, doc="AXI burst of weights: 3, 7, 15 = 4, 8, 16 beats"
    )
    ov4k_bypass: int = bits(31, default=0, source=TRM, doc="0 = split bursts at 4 KiB")


class DMA_CON1(Register, block=CNA, offset=0x07C):
    """Line pitch of the input."""

    line_stride: int = bits(
        27,
        0,
        unit="atoms",
        source=VENDOR,
        doc="pitch of a line group: 4 lines, or 1 with group_line_off; packed input: pixels",
    )


class DMA_CON2(Register, block=CNA, offset=0x080):
    """Surface pitch of the input.

    Atom address: base + s*(G*W + surf_stride) + (y div G)*line_stride + (y mod G)*W + x with G =
    4, or 1 with group_line_off (all 683 vendor rows agree).
    """

    surf_stride: int = bits(
        27,
        0,
        signed=True,
        unit="atoms",
        source=VENDOR,
        doc="surface pitch minus the atoms of a line group; negative below 4 rows",
    )


class FC_DATA_SIZE0(Register, block=CNA, offset=0x084):
    """Input size as the DMA sees it: equal to DATA_SIZE0 outside zero skipping."""

    dma_height: int = bits(10, 0, unit="px", source=VENDOR, doc="rows to fetch")
    dma_width: int = bits(29, 16, unit="px", source=VENDOR, doc="columns to fetch")


class FC_DATA_SIZE1(Register, block=CNA, offset=0x088):
    """Input channels as the DMA sees them."""

    dma_channel: int = bits(15, 0, unit="channels", source=VENDOR, doc="channels to fetch")


class CLK_GATE(Register, block=CNA, offset=0x090):
    """Clock gating.  No effect on results (rockchip-npu-notes)."""

    cna_feature_disable_clkgate: int = bits(
        0, default=0, source=TRM, doc="1 = never gate the feature fetch"
    )
    cna_weight_disable_clkgate: int = bits(
        1, default=0, source=TRM, doc="1 = never gate the weight fetch"
    )
    csc_disable_clkgate: int = bits(
        2, default=0, source=TRM, doc="1 = never gate the sequence controller"
    )
    cbuf_cs_disable_clkgate: int = bits(4, default=0, source=TRM, doc="1 = never gate the CBUF")


class DCOMP_CTRL(Register, block=CNA, offset=0x100):
    """Weight decompressor."""

    decomp_control: int = bits(
        2, 0, default=0, source=OPEN_MATMUL, doc="0 = plain weights; 1 = lossless compression"
    )
    wt_dec_bypass: int = bits(3, default=0, source=TRM, doc="1 = skip the decompressor")


class DCOMP_REGNUM(Register, block=CNA, offset=0x104):
    """Lanes of the decompressor."""

    dcomp_regnum: int = bits(
        31,
        0,
        default=0,
        source=OPEN_MATMUL,
        doc="0 = plain weights; 0x55555555 = sixteen compressed lanes",
    )


class DCOMP_ADDR0(Register, block=CNA, offset=0x110):
    """Where the weights lie, compressed or not.  The TRM has bits 31:4 only."""

    decompress_addr0: int = bits(
        31,
        0,
        unit="bytes",
        source=VENDOR,
        doc="IOVA of the weights, 16-byte aligned (64 if compressed)",
    )


class DCOMP_AMOUNT0(Register, block=CNA, offset=0x140):
    """Compressed bytes of lane 0."""

    dcomp_amount0: int = bits(
        31, 0, default=0, source=OPEN_MATMUL, doc="16-byte blocks - 1; 0 for plain weights"
    )


class DCOMP_AMOUNT1(Register, block=CNA, offset=0x144):
    """Compressed bytes of lane 1."""

    dcomp_amount1: int = bits(
        31, 0, default=0, source=OPEN_MATMUL, doc="16-byte blocks - 1; 0 for plain weights"
    )


class DCOMP_AMOUNT2(Register, block=CNA, offset=0x148):
    """Compressed bytes of lane 2."""

    dcomp_amount2: int = bits(
        31, 0, default=0, source=OPEN_MATMUL, doc="16-byte blocks - 1; 0 for plain weights"
    )


class DCOMP_AMOUNT3(Register, block=CNA, offset=0x14C):
    """Compressed bytes of lane 3."""

    dcomp_amount3: int = bits(
        31, 0, default=0, source=OPEN_MATMUL, doc="16-byte blocks - 1; 0 for plain weights"
    )


class DCOMP_AMOUNT4(Register, block=CNA, offset=0x150):
    """Compressed bytes of lane 4."""

    dcomp_amount4: int = bits(
        31, 0, default=0, source=OPEN_MATMUL, doc="16-byte blocks - 1; 0 for plain weights"
    )


class DCOMP_AMOUNT5(Register, block=CNA, offset=0x154):
    """Compressed bytes of lane 5."""

    dcomp_amount5: int = bits(
        31, 0, default=0, source=OPEN_MATMUL, doc="16-byte blocks - 1; 0 for plain weights"
    )


class DCOMP_AMOUNT6(Register, block=CNA, offset=0x158):
    """Compressed bytes of lane 6."""

    dcomp_amount6: int = bits(
        31, 0, default=0, source=OPEN_MATMUL, doc="16-byte blocks - 1; 0 for plain weights"
    )


class DCOMP_AMOUNT7(Register, block=CNA, offset=0x15C):
    """Compressed bytes of lane 7."""

    dcomp_amount7: int = bits(
        31, 0, default=0, source=OPEN_MATMUL, doc="16-byte blocks - 1; 0 for plain weights"
    )


class DCOMP_AMOUNT8(Register, block=CNA, offset=0x160):
    """Compressed bytes of lane 8."""

    dcomp_amount8: int = bits(
        31, 0, default=0, source=OPEN_MATMUL, doc="16-byte blocks - 1; 0 for plain weights"
    )


class DCOMP_AMOUNT9(Register, block=CNA, offset=0x164):
    """Compressed bytes of lane 9."""

    dcomp_amount9: int = bits(
        31, 0, default=0, source=OPEN_MATMUL, doc="16-byte blocks - 1; 0 for plain weights"
    )


class DCOMP_AMOUNT10(Register, block=CNA, offset=0x168):
    """Compressed bytes of lane 10."""

    dcomp_amount10: int = bits(
        31, 0, default=0, source=OPEN_MATMUL, doc="16-byte blocks - 1; 0 for plain weights"
    )


class DCOMP_AMOUNT11(Register, block=CNA, offset=0x16C):
    """Compressed bytes of lane 11."""

    dcomp_amount11: int = bits(
        31, 0, default=0, source=OPEN_MATMUL, doc="16-byte blocks - 1; 0 for plain weights"
    )


class DCOMP_AMOUNT12(Register, block=CNA, offset=0x170):
    """Compressed bytes of lane 12."""

    dcomp_amount12: int = bits(
        31, 0, default=0, source=OPEN_MATMUL, doc="16-byte blocks - 1; 0 for plain weights"
    )


class DCOMP_AMOUNT13(Register, block=CNA, offset=0x174):
    """Compressed bytes of lane 13."""

    dcomp_amount13: int = bits(
        31, 0, default=0, source=OPEN_MATMUL, doc="16-byte blocks - 1; 0 for plain weights"
    )


class DCOMP_AMOUNT14(Register, block=CNA, offset=0x178):
    """Compressed bytes of lane 14."""

    dcomp_amount14: int = bits(
        31, 0, default=0, source=OPEN_MATMUL, doc="16-byte blocks - 1; 0 for plain weights"
    )


class DCOMP_AMOUNT15(Register, block=CNA, offset=0x17C):
    """Compressed bytes of lane 15."""

    dcomp_amount15: int = bits(
        31, 0, default=0, source=OPEN_MATMUL, doc="16-byte blocks - 1; 0 for plain weights"
    )


class CVT_CON5(Register, block=CNA, offset=0x180):
    """Lanes that the input converter touches."""

    per_channel_cvt_en: int = bits(
        31, 0, default=0, source=TRM, doc="one bit per channel lane of an atom"
    )


class PAD_CON1(Register, block=CNA, offset=0x184):
    """Value of the padding.  Write an int8 zero point into all four bytes."""

    pad_value: int = bits(
        31,
        0,
        signed=True,
        default=0,
        source=SILICON,
        doc="int8: odd channels of the first 32 of each 64 read byte 1, others byte 0; "
        "16-bit types: the low half",
    )
