"""DPU: bias, scale, element-wise and look-up stages, output converter, write DMA (NVDLA: SDP).

Registers 0x4000..0x4fff of a core's window.  Names as in the TRM and in Mesa.
"""

from __future__ import annotations

from opennpu.hw.regs import Block, Register, bits
from opennpu.hw.rk3588.common import (
    COPIES,
    NOTES,
    OPENNPU,
    SILICON,
    STREAMS,
    TRM,
    TRM_NVDLA,
    TRM_RV1106,
    VENDOR,
    Algo,
    ConvMode,
    Precision,
)
from opennpu.hw.rk3588.groups import OperationEnable, Pointer, Status

DPU = Block("DPU", base=0x4000, target=0x1001)


class S_STATUS(Status, block=DPU, offset=0x000, access="RO", shadowed=False):
    """State of the two register groups."""


class S_POINTER(Pointer, block=DPU, offset=0x004, shadowed=False):
    """Which register group is written and which one runs (ping-pong).

    0xE: both flip by themselves.  0x30: both back to group 0.
    """


class OPERATION_ENABLE(OperationEnable, block=DPU, offset=0x008):
    """Arm the unit with the written group.  This and all higher offsets exist once per group."""


class FEATURE_MODE_CFG(Register, block=DPU, offset=0x00C):
    """Where data comes from and goes to."""

    flying_mode: int = bits(
        0, default=0, source=NOTES, doc="0 = input from CORE; 1 = from memory, through DPU_RDMA"
    )
    output_mode: int = bits(
        2, 1, default=0, source=VENDOR, doc="bit 1: to memory; bit 0: to the PPU (never seen)"
    )
    conv_mode: ConvMode = bits(4, 3, default=0, source=SILICON, doc="as in the CNA")
    burst_len: int = bits(
        8, 5, default=0, source=TRM, doc="AXI burst of the output: 3, 7, 15 = 4, 8, 16 beats"
    )
    surf_len: int = bits(24, 9, default=0, source=TRM, doc="with nonalign: 8-byte units to store")
    nonalign: int = bits(
        25, default=0, source=TRM, doc="1 = packed output, pixels not 16 bytes apart"
    )
    rgp_type: int = bits(
        29, 26, default=0, source=TRM, doc="regroup unit: 0 128, 1 4, 2 8, 3 16, 4 32, 5 64 bits"
    )
    tp_en: int = bits(30, default=0, source=COPIES, doc="1 = exchange columns and rows on output")
    comb_use: int = bits(31, default=0, source=TRM, doc="copy of bit 0 of comb_use in DPU_RDMA")


class DATA_FORMAT(Register, block=DPU, offset=0x010):
    """Element types, and shifts of negative values."""

    proc_precision: Precision = bits(
        2, 0, default=0, source=NOTES, doc="element type inside the pipeline"
    )
    mc_surf_out: int = bits(3, default=0, source=TRM, doc="1 = two or four surfaces in series")
    bs_mul_shift_value_neg: int = bits(
        9, 4, default=0, source=NOTES, doc="right shift of negative BS products"
    )
    bn_mul_shift_value_neg: int = bits(
        15, 10, default=0, source=TRM, doc="right shift of negative BN products"
    )
    ew_truncate_neg: int = bits(
        25, 16, default=0, source=TRM, doc="right shift of negative EW results"
    )
    in_precision: Precision = bits(
        28, 26, default=0, source=NOTES, doc="element type that comes in"
    )
    out_precision: Precision = bits(
        31, 29, default=0, source=NOTES, doc="element type that goes out"
    )


class OFFSET_PEND(Register, block=DPU, offset=0x014):
    """Padding channels."""

    offset_pend: int = bits(
        15, 0, default=0, source=TRM, doc="value for channels past orig_channel"
    )


class DST_BASE_ADDR(Register, block=DPU, offset=0x020):
    """Where the output goes.  The TRM has bits 31:4 only."""

    dst_base_addr: int = bits(
        31, 0, unit="bytes", source=VENDOR, doc="IOVA of the first atom, 16-byte aligned"
    )


class DST_SURF_STRIDE(Register, block=DPU, offset=0x024):
    """Surface pitch of the output (the register holds bytes)."""

    dst_surf_stride: int = bits(
        31, 4, unit="atoms", source=VENDOR, doc="surface to surface in a kernel group"
    )


class DATA_CUBE_WIDTH(Register, block=DPU, offset=0x030):
    """Width of the cube."""

    width: int = bits(12, 0, bias=1, unit="px", source=NOTES, doc="columns")


class DATA_CUBE_HEIGHT(Register, block=DPU, offset=0x034):
    """Height of the cube."""

    height: int = bits(12, 0, bias=1, unit="px", source=NOTES, doc="rows")
    minmax_ctl: int = bits(
        24, 22, default=0, source=TRM, doc="bit 0: on; bit 1: which; bit 2: probability only"
    )


class DATA_CUBE_NOTCH_ADDR(Register, block=DPU, offset=0x038):
    """Gap after each output line."""

    notch_addr_0: int = bits(
        12,
        0,
        unit="atoms",
        default=0,
        source=NOTES,
        doc="from the end of a line to the start of the next; set both",
    )
    notch_addr_1: int = bits(
        28,
        16,
        unit="atoms",
        default=0,
        source=NOTES,
        doc="the same for the second stream; set both",
    )


class DATA_CUBE_CHANNEL(Register, block=DPU, offset=0x03C):
    """Channels of the cube."""

    channel: int = bits(12, 0, bias=1, unit="channels", source=NOTES, doc="channels, rounded up")
    orig_channel: int = bits(
        28,
        16,
        bias=1,
        unit="channels",
        source=NOTES,
        doc="channels before rounding; in flying mode it must equal channel",
    )


class BS_CFG(Register, block=DPU, offset=0x040):
    """BS stage (bias): ALU, CPEND, MUL, ReLU, in this order."""

    bs_bypass: int = bits(0, default=0, source=NOTES, doc="1 = stage off")
    bs_alu_bypass: int = bits(1, default=0, source=NOTES, doc="1 = no ALU")
    bs_mul_bypass: int = bits(4, default=0, source=NOTES, doc="1 = no MUL")
    bs_mul_prelu: int = bits(
        5, default=0, source=TRM_RV1106, doc="1 = multiply negative values only"
    )
    bs_relu_bypass: int = bits(6, default=0, source=OPENNPU, doc="1 = no ReLU")
    bs_relux_en: int = bits(7, default=0, source=TRM, doc="1 = also clamp at the ReLUX ceiling")
    bs_alu_src: int = bits(8, default=0, source=SILICON, doc="ALU operand: 0 register, 1 BRDMA")
    bs_alu_algo: Algo = bits(
        19, 16, default=0, source=SILICON, doc="streams use ADD; MINUS is in the TRM"
    )


class BS_ALU_CFG(Register, block=DPU, offset=0x044):
    """BS: constant for the ALU."""

    bs_alu_operand: int = bits(31, 0, default=0, source=TRM, doc="int32, or the bits of an fp32")


class BS_MUL_CFG(Register, block=DPU, offset=0x048):
    """BS: constant and shift for the MUL."""

    bs_mul_src: int = bits(0, default=0, source=NOTES, doc="MUL operand: 0 register, 1 BRDMA")
    bs_truncate_src: int = bits(1, default=0, source=TRM, doc="shift: 0 register, 1 BRDMA")
    bs_mul_shift_value: int = bits(
        13, 8, default=0, source=NOTES, doc="right shift of products that are not negative"
    )
    bs_mul_operand: int = bits(31, 16, default=0, source=TRM, doc="the bits of an int16 or fp16")


class BS_RELUX_CMP_VALUE(Register, block=DPU, offset=0x04C):
    """BS: ReLUX ceiling."""

    bs_relux_cmp_dat: int = bits(
        31, 0, default=0, source=TRM, doc="ceiling: int32, or the bits of an fp32"
    )


class BS_OW_CFG(Register, block=DPU, offset=0x050):
    """CPEND (weight zero point), and the shape of a kernel group in memory.

    size_e + 1 = kernels per group * output bytes / 16; too large hangs, too small loses
    surfaces.
    """

    ow_src: int = bits(0, default=0, source=NOTES, doc="CPEND factor: 0 BS_OW_OP, 1 BRDMA")
    od_bypass: int = bits(1, default=0, source=SILICON, doc="1 = no CPEND")
    size_e_0: int = bits(
        4, 2, default=0, source=NOTES, doc="surfaces per kernel group, less one: first line"
    )
    size_e_1: int = bits(7, 5, default=0, source=NOTES, doc="the same for the lines between")
    size_e_2: int = bits(10, 8, default=0, source=NOTES, doc="the same for the last line")
    tp_org_en: int = bits(
        27, default=0, source=NOTES, doc="1 = exchange 8 pixels with 8 channels on output"
    )
    rgp_cnter: int = bits(
        31, 28, default=0, source=TRM, doc="keep 0 all, 1 one of 2, 2 one of 4, 3 one of 8 elements"
    )


class BS_OW_OP(Register, block=DPU, offset=0x054):
    """CPEND: constant."""

    ow_op: int = bits(
        15,
        0,
        signed=True,
        default=0,
        source=SILICON,
        doc="CPEND factor of the input sum: minus the zero point of the weights",
    )


class WDMA_SIZE_0(Register, block=DPU, offset=0x058):
    """Write DMA: channels."""

    channel_wdma: int = bits(
        12, 0, bias=1, unit="channels", source=VENDOR, doc="channels to write, rounded up"
    )
    size_c_wdma: int = bits(
        26,
        16,
        default=0,
        source=COPIES,
        doc="second size of a transposing write: groups of 8 elements, less one",
    )
    tp_precision: int = bits(
        27, default=0, source=NOTES, doc="transposed elements: 0 8 bits, 1 16 bits"
    )


class WDMA_SIZE_1(Register, block=DPU, offset=0x05C):
    """Write DMA: size."""

    width_wdma: int = bits(12, 0, bias=1, unit="px", source=VENDOR, doc="columns to write")
    height_wdma: int = bits(28, 16, bias=1, unit="px", source=VENDOR, doc="rows to write")


class BN_CFG(Register, block=DPU, offset=0x060):
    """BN stage (batch norm): ALU, MUL, ReLU, in this order."""

    bn_bypass: int = bits(0, default=0, source=NOTES, doc="1 = stage off")
    bn_alu_bypass: int = bits(1, default=0, source=NOTES, doc="1 = no ALU")
    bn_mul_bypass: int = bits(4, default=0, source=NOTES, doc="1 = no MUL")
    bn_mul_prelu: int = bits(
        5, default=0, source=TRM_RV1106, doc="1 = multiply negative values only"
    )
    bn_relu_bypass: int = bits(6, default=0, source=NOTES, doc="1 = no ReLU")
    bn_relux_en: int = bits(7, default=0, source=TRM, doc="1 = also clamp at the ReLUX ceiling")
    bn_alu_src: int = bits(8, default=0, source=TRM, doc="ALU operand: 0 register, 1 NRDMA")
    bn_alu_algo: Algo = bits(
        19, 16, default=0, source=NOTES, doc="streams use ADD; MINUS is in the TRM"
    )


class BN_ALU_CFG(Register, block=DPU, offset=0x064):
    """BN: constant for the ALU."""

    bn_alu_operand: int = bits(
        31,
        0,
        default=0,
        source=NOTES,
        doc="int32, or the bits of an fp32; added after MUL when it feeds the LUT",
    )


class BN_MUL_CFG(Register, block=DPU, offset=0x068):
    """BN: constant and shift for the MUL."""

    bn_mul_src: int = bits(
        0,
        default=0,
        source=TRM_RV1106,
        doc="MUL operand: 0 register, 1 NRDMA (int8 with 1 hung a board)",
    )
    bn_truncate_src: int = bits(1, default=0, source=TRM, doc="shift: 0 register, 1 NRDMA")
    bn_mul_shift_value: int = bits(
        13, 8, default=0, source=TRM, doc="right shift of products that are not negative"
    )
    bn_mul_operand: int = bits(31, 16, default=0, source=NOTES, doc="the bits of an int16 or fp16")


class BN_RELUX_CMP_VALUE(Register, block=DPU, offset=0x06C):
    """BN: ReLUX ceiling."""

    bn_relux_cmp_dat: int = bits(
        31, 0, default=0, source=TRM, doc="ceiling: int32, or the bits of an fp32"
    )


class EW_CFG(Register, block=DPU, offset=0x070):
    """EW stage: element-wise ALU, MUL or LUT, then ReLU."""

    ew_bypass: int = bits(0, default=0, source=NOTES, doc="1 = stage off")
    ew_op_bypass: int = bits(
        1, default=0, source=NOTES, doc="1 = neither ALU nor MUL; the LUT may still run"
    )
    ew_op_type: int = bits(2, default=0, source=NOTES, doc="0 ALU, 1 MUL")
    ew_mul_prelu: int = bits(5, default=0, source=TRM, doc="1 = multiply negative values only")
    ew_op_src: int = bits(
        6, default=0, source=NOTES, doc="operand: 0 EW_OP_VALUE registers, 1 ERDMA"
    )
    ew_lut_bypass: int = bits(7, default=0, source=NOTES, doc="1 = no LUT")
    ew_op_cvt_bypass: int = bits(8, default=0, source=NOTES, doc="1 = the operand is not converted")
    ew_relu_bypass: int = bits(9, default=0, source=NOTES, doc="1 = no ReLU")
    ew_relux_en: int = bits(10, default=0, source=TRM, doc="1 = also clamp at the ReLUX ceiling")
    ew_alu_algo: Algo = bits(
        19, 16, default=0, source=NOTES, doc="MAX, MIN, ADD, DIV and MINUS ran on boards"
    )
    ew_binary_en: int = bits(20, default=0, source=TRM, doc="min/max: 1 = binary result")
    ew_equal_en: int = bits(
        21, default=0, source=NOTES, doc="min/max: 1 = equality counts; integer max and min need it"
    )
    edata_size: int = bits(
        23, 22, default=0, source=NOTES, doc="operand width: 0 4, 1 8, 2 16, 3 32 bits"
    )
    ew_data_mode: int = bits(
        29, 28, default=0, source=NOTES, doc="operand: 0 one per channel, 1 one per pixel"
    )
    ew_cvt_round: int = bits(
        30, default=0, source=TRM, doc="operand converter: 0 ties to even, 1 ties away"
    )
    ew_cvt_type: int = bits(
        31, default=0, source=TRM, doc="operand converter: 0 multiply first, 1 add first"
    )


class EW_CVT_OFFSET_VALUE(Register, block=DPU, offset=0x074):
    """EW: operand converter, offset."""

    ew_op_cvt_offset: int = bits(31, 0, signed=True, default=0, source=TRM, doc="number to add")


class EW_CVT_SCALE_VALUE(Register, block=DPU, offset=0x078):
    """EW: operand converter, scale and shift; shift of the result."""

    ew_op_cvt_scale: int = bits(
        15, 0, signed=True, default=0, source=TRM, doc="number to multiply by"
    )
    ew_op_cvt_shift: int = bits(21, 16, default=0, source=TRM, doc="right shift of the operand")
    ew_truncate: int = bits(
        31, 22, default=0, source=TRM, doc="right shift of EW results that are not negative"
    )


class EW_RELUX_CMP_VALUE(Register, block=DPU, offset=0x07C):
    """EW: ReLUX ceiling."""

    ew_relux_cmp_dat: int = bits(
        31, 0, default=0, source=TRM, doc="ceiling: int32, or the bits of an fp32"
    )


class OUT_CVT_OFFSET(Register, block=DPU, offset=0x080):
    """Output converter: offset."""

    out_cvt_offset: int = bits(
        31, 0, signed=True, default=0, source=NOTES, doc="added after the shift, in output units"
    )


class OUT_CVT_SCALE(Register, block=DPU, offset=0x084):
    """Output converter: scale."""

    out_cvt_scale: int = bits(
        15, 0, signed=True, default=0, source=NOTES, doc="number to multiply by"
    )
    fp32tofp16_en: int = bits(
        16, default=0, source=NOTES, doc="1 = narrow fp32 to fp16, ties to even"
    )


class OUT_CVT_SHIFT(Register, block=DPU, offset=0x088):
    """Output converter: shift, rounding and order."""

    out_cvt_shift: int = bits(
        11, 0, default=0, source=NOTES, doc="right shift; streams stay below 64"
    )
    minus_exp: int = bits(19, 12, default=0, source=NOTES, doc="float results: divide by 2**n")
    cvt_round: int = bits(
        30, default=0, source=NOTES, doc="0 = ties to even; 1 = ties away from zero"
    )
    cvt_type: int = bits(31, default=0, source=TRM, doc="0 = multiply first; 1 = add first")


class EW_OP_VALUE_0(Register, block=DPU, offset=0x090):
    """EW: constant operand of lane 0."""

    ew_operand_0: int = bits(31, 0, default=0, source=TRM, doc="operand when ew_op_src is 0")


class EW_OP_VALUE_1(Register, block=DPU, offset=0x094):
    """EW: constant operand of lane 1."""

    ew_operand_1: int = bits(31, 0, default=0, source=TRM, doc="operand when ew_op_src is 0")


class EW_OP_VALUE_2(Register, block=DPU, offset=0x098):
    """EW: constant operand of lane 2."""

    ew_operand_2: int = bits(31, 0, default=0, source=TRM, doc="operand when ew_op_src is 0")


class EW_OP_VALUE_3(Register, block=DPU, offset=0x09C):
    """EW: constant operand of lane 3."""

    ew_operand_3: int = bits(31, 0, default=0, source=TRM, doc="operand when ew_op_src is 0")


class EW_OP_VALUE_4(Register, block=DPU, offset=0x0A0):
    """EW: constant operand of lane 4."""

    ew_operand_4: int = bits(31, 0, default=0, source=TRM, doc="operand when ew_op_src is 0")


class EW_OP_VALUE_5(Register, block=DPU, offset=0x0A4):
    """EW: constant operand of lane 5."""

    ew_operand_5: int = bits(31, 0, default=0, source=TRM, doc="operand when ew_op_src is 0")


class EW_OP_VALUE_6(Register, block=DPU, offset=0x0A8):
    """EW: constant operand of lane 6."""

    ew_operand_6: int = bits(31, 0, default=0, source=TRM, doc="operand when ew_op_src is 0")


class EW_OP_VALUE_7(Register, block=DPU, offset=0x0AC):
    """EW: constant operand of lane 7."""

    ew_operand_7: int = bits(31, 0, default=0, source=TRM, doc="operand when ew_op_src is 0")


class SURFACE_ADD(Register, block=DPU, offset=0x0C0):
    """Pitch of kernel groups in the output (the register holds bytes)."""

    surf_add: int = bits(
        31,
        4,
        unit="atoms",
        source=NOTES,
        doc="from one kernel group to the next: (size_e + 1) * dst_surf_stride",
    )


class UNDOC_40C4(Register, block=DPU, offset=0x0C4):
    """In no manual.  Mesa and vendor lists write 0."""

    value: int = bits(31, 0, default=0, source=STREAMS, doc="unknown; always 0")


class LUT_ACCESS_CFG(Register, block=DPU, offset=0x100):
    """LUT: choose table and entry."""

    lut_addr: int = bits(
        9, 0, default=0, source=TRM, doc="first entry, 0..512; counts up with each access"
    )
    lut_table_id: int = bits(16, default=0, source=NOTES, doc="0 LE, 1 LO")
    lut_access_type: int = bits(17, default=0, source=NOTES, doc="0 read, 1 write")


class LUT_ACCESS_DATA(Register, block=DPU, offset=0x104):
    """LUT: the chosen entry; the next access takes the next one."""

    lut_access_data: int = bits(15, 0, signed=True, default=0, source=NOTES, doc="one entry")


class LUT_CFG(Register, block=DPU, offset=0x108):
    """LUT: which table answers.  Every stream writes 0x68."""

    lut_road_sel: int = bits(0, default=0, source=TRM, doc="path 0 or 1")
    lut_expand_en: int = bits(1, default=0, source=TRM, doc="1 = both tables are one")
    lut_lo_le_mux: int = bits(
        3, 2, default=0, source=TRM, doc="how the tables pair; every stream says 2"
    )
    lut_uflow_priority: int = bits(
        4, default=0, source=TRM, doc="who answers when both underflow: 0 LE, 1 LO"
    )
    lut_oflow_priority: int = bits(
        5, default=0, source=TRM, doc="who answers when both overflow: 0 LE, 1 LO"
    )
    lut_hybrid_priority: int = bits(
        6, default=0, source=TRM, doc="who answers when both hit: 0 LE, 1 LO"
    )
    lut_cal_sel: int = bits(7, default=0, source=TRM, doc="arithmetic of the joined table")


class LUT_INFO(Register, block=DPU, offset=0x10C):
    """LUT: step between entries."""

    lut_le_index_select: int = bits(
        15, 8, default=0, source=NOTES, doc="LE: right shift from input to index; 5 = a step of 32"
    )
    lut_lo_index_select: int = bits(
        23, 16, default=0, source=NOTES, doc="LO: right shift from input to index; 5 = a step of 32"
    )


class LUT_LE_START(Register, block=DPU, offset=0x110):
    """LUT: LE range, lower end."""

    lut_le_start: int = bits(
        31, 0, signed=True, default=0, source=NOTES, doc="input of the first LE entry"
    )


class LUT_LE_END(Register, block=DPU, offset=0x114):
    """LUT: LE range, upper end."""

    lut_le_end: int = bits(
        31, 0, signed=True, default=0, source=TRM, doc="input of the last LE entry"
    )


class LUT_LO_START(Register, block=DPU, offset=0x118):
    """LUT: LO range, lower end."""

    lut_lo_start: int = bits(
        31, 0, signed=True, default=0, source=TRM, doc="input of the first LO entry"
    )


class LUT_LO_END(Register, block=DPU, offset=0x11C):
    """LUT: LO range, upper end."""

    lut_lo_end: int = bits(
        31, 0, signed=True, default=0, source=NOTES, doc="input of the last LO entry"
    )


class LUT_LE_SLOPE_SCALE(Register, block=DPU, offset=0x120):
    """LUT: slopes outside LE."""

    lut_le_slope_uflow_scale: int = bits(
        15, 0, signed=True, default=0, source=TRM_NVDLA, doc="slope below the table"
    )
    lut_le_slope_oflow_scale: int = bits(
        31, 16, signed=True, default=0, source=TRM_NVDLA, doc="slope above the table"
    )


class LUT_LE_SLOPE_SHIFT(Register, block=DPU, offset=0x124):
    """LUT: shifts of the slopes outside LE."""

    lut_le_slope_uflow_shift: int = bits(
        4, 0, default=0, source=TRM_NVDLA, doc="right shift of the slope below"
    )
    lut_le_slope_oflow_shift: int = bits(
        9, 5, default=0, source=TRM_NVDLA, doc="right shift of the slope above"
    )


class LUT_LO_SLOPE_SCALE(Register, block=DPU, offset=0x128):
    """LUT: slopes outside LO."""

    lut_lo_slope_uflow_scale: int = bits(
        15, 0, signed=True, default=0, source=TRM_NVDLA, doc="slope below the table"
    )
    lut_lo_slope_oflow_scale: int = bits(
        31, 16, signed=True, default=0, source=TRM_NVDLA, doc="slope above the table"
    )


class LUT_LO_SLOPE_SHIFT(Register, block=DPU, offset=0x12C):
    """LUT: shifts of the slopes outside LO."""

    lut_lo_slope_uflow_shift: int = bits(
        4, 0, default=0, source=TRM_NVDLA, doc="right shift of the slope below"
    )
    lut_lo_slope_oflow_shift: int = bits(
        9, 5, default=0, source=TRM_NVDLA, doc="right shift of the slope above"
    )
