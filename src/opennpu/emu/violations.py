"""Every rule a program can break, in one table, and what happens to it on silicon.

A rule has a stable id ``unit.subject``.  In strict mode a broken rule raises
`opennpu.errors.ViolationError`; in hardware mode the emulator reproduces the effect: a hang
(no interrupt, watchdog), garbage, or nothing.  Warnings never raise.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Effect(enum.Enum):
    """What silicon does with a program that breaks the rule."""

    HANG = "hang"  # the job never completes
    GARBAGE = "garbage"  # it completes with data that means nothing: the emulator writes poison
    LITERAL = "literal"  # it completes with wrong data, which the emulator computes
    UNKNOWN = "unknown"  # the emulator does not model it: it refuses in both modes
    WARNING = "warning"  # it may be slow, wasteful or fragile; results are right


@dataclass(frozen=True, slots=True)
class Rule:
    """One line of the table."""

    effect: Effect
    remedy: str
    source: str


@dataclass(frozen=True, slots=True)
class Violation:
    """A rule that a program broke."""

    rule: str
    unit: str
    message: str  # where: what, with both numbers. What to do.


class Hang(Exception):
    """A unit waits for ever.  Internal: the machine turns it into an incomplete run."""


H, G, L, U, W = Effect.HANG, Effect.GARBAGE, Effect.LITERAL, Effect.UNKNOWN, Effect.WARNING

RULES: dict[str, Rule] = {
    # -- program controller ------------------------------------------------------------------
    "pc.list_ended": Rule(
        H,
        "Link every task but the last with BASE_ADDRESS and REGISTER_AMOUNTS, or lower TASK_NUMBER",
        "board notes A.0; reference/README.md",
    ),
    "pc.task_number": Rule(H, "Start at least one task", "TRM TASK_CON"),
    "pc.too_long": Rule(H, "Fetch fewer words; raise Policy.max_words if it is meant", "limit"),
    "pc.wedged": Rule(H, "Reset the core, as both drivers do after a time-out", "board notes A.0"),
    "pc.no_start": Rule(W, "End the task with the marker and the start word", "register notes A.3"),
    "pc.target": Rule(W, "Write each register through its own target", "register notes A.2 EMU 1"),
    "pc.unknown_register": Rule(W, "Write only registers that exist", "register notes A.1"),
    "pc.reserved_bits": Rule(
        W, "Keep each value inside its field: silicon drops the other bits", "board notes A.0"
    ),
    "pc.window": Rule(
        U, "Leave the DMA tuning blocks alone: access hard-locks boards", "register notes A.1"
    ),
    "pc.no_interrupt": Rule(
        H,
        "Choose the mask of the unit that ends the list: 0x300 DPU, 0xC00 PPU",
        "register notes A.7",
    ),
    "pointer.core_bits": Rule(
        H,
        "Put the core number in bits 31:28, or leave CNA and CORE S_POINTER to the kernel",
        "board notes A.0, 24 of 24 runs",
    ),
    "pointer.out_of_step": Rule(
        H,
        "Enable both ping-pong bits or neither, and clear both pointers together",
        "TRM S_POINTER",
    ),
    "start.incomplete": Rule(
        H,
        "Start CNA, CORE and DPU together, DPU with DPU_RDMA, PPU with PPU_RDMA or a feeding DPU",
        "TRM; board notes A.0",
    ),
    "work.too_much": Rule(
        H, "Make the task smaller; raise Policy.max_macs or max_bytes if it is meant", "limit"
    ),
    "fields.idle": Rule(W, "Write the default while the mode that reads it is off", "TRM"),
    # -- CNA ---------------------------------------------------------------------------------
    "cna.geometry": Rule(
        H, "Program one output size in CNA, CORE and DPU", "register notes B.3, 683 of 683 rows"
    ),
    "cna.empty": Rule(H, "Program sizes, strides and kernels of at least one", "TRM"),
    "cna.dma_size": Rule(
        U, "Make FC_DATA_SIZE0/1 equal to DATA_SIZE0/1", "register notes B.5; B.3, 683 of 683 rows"
    ),
    "cna.precision": Rule(
        U,
        "Use one of int4, int8, int16, fp16, bf16, tf32, alike in CNA and CORE",
        "board notes A.1",
    ),
    "cna.channels": Rule(U, "Give DATAIN_CHANNEL in whole 16-byte atoms", "register notes B.4"),
    "cna.channel_real": Rule(
        W,
        "Program DATAIN_CHANNEL_REAL in full or modulo 64, and equal weights for the rest",
        "register notes B.4, I-7: whether silicon counts padded channels is open",
    ),
    "cna.weight_size": Rule(
        L,
        "WEIGHT_SIZE1 is kh*kw*channels*bytes; WEIGHT_SIZE0 is that times the kernels",
        "register notes B.3",
    ),
    "cna.line_stride": Rule(
        W, "With grouped lines program LINE_STRIDE = 4 * width", "register notes B.5 EMU 8"
    ),
    "cna.entries": Rule(
        G, "Program DATA_ENTRIES = ceil(width * channels * bytes / 64)", "register notes B.6"
    ),
    "cna.entries_tight": Rule(W, "Use the refined rule of board notes A.2", "board notes A.2"),
    "cna.grains": Rule(
        W,
        "Program FEATURE_GRAINS of at least the kernel rows, at most those that the banks hold",
        "register notes B.7 EMU 10",
    ),
    "cna.converter": Rule(
        U, "Convert int8 and int16 only, else bypass the converter", "register notes B.8"
    ),
    "cna.packed_input": Rule(
        U,
        "Program ARGB_IN 8 to 11 with NONALIGN_DMA, GROUP_LINE_OFF and one atom of channels",
        "register notes B.5",
    ),
    "cna.packed_rows": Rule(
        W, "Pad packed rows so that each starts at 16 bytes", "register notes B.5"
    ),
    "cna.zero_skip": Rule(U, "Leave FC_CON0.FC_SKIP_EN at 0", "register notes B.11"),
    "cna.decompression": Rule(
        U,
        "Write DCOMP_CTRL = 0 and raw weights, or the sixteen-lane format of int8",
        "register notes B.11; board notes A.14",
    ),
    "cna.decompression_short": Rule(
        G, "Give DCOMP_AMOUNT the 16-byte blocks of each lane, less one", "register notes B.11"
    ),
    "cna.decompression_long": Rule(
        W, "Give DCOMP_AMOUNT the 16-byte blocks of each lane, less one", "register notes B.11"
    ),
    "cna.padding_value": Rule(U, "Pad this element type with 0", "board notes F, last line"),
    "cna.deconv": Rule(
        U, "Lower the transposed convolution to a dilated input", "board notes A.13"
    ),
    "cna.debug": Rule(U, "Leave CSC_DO_EN, CSC_WO_EN and CMD_FIFO_SRST at 0", "TRM CONV_CON2"),
    "cna.kernel_group": Rule(U, "Leave KERNEL_GROUP at 1", "register notes B.2: always so"),
    "cna.nn_mode": Rule(U, "Leave NN_MODE at 0", "register notes I-15: no stream sets it"),
    "cna.surf_mode": Rule(
        U, "Leave DATA_SIZE3.SURF_MODE at 0 or 1, one surface", "TRM; no stream uses more"
    ),
    "cbuf.banks": Rule(
        G, "Give data and weights at least one bank each and 12 together", "register notes B.6"
    ),
    "cbuf.rows": Rule(
        G, "Give the features more banks, or tile: the kernel's rows must fit", "register notes B.6"
    ),
    "cbuf.tile": Rule(W, "Tile so that the whole tile fits its banks", "reference/README.md"),
    "cbuf.kernel_group": Rule(
        G, "Give the weights more banks: one kernel group must fit", "peer notes 2.6"
    ),
    "cbuf.fc_data_bank": Rule(
        G, "Write FC_DATA_BANK = 0: 1..7 corrupt 64 to 75 % of a convolution", "board notes A.6"
    ),
    "cbuf.int8_slack": Rule(
        G, "Give int8 features of width 1 one bank more than they fill", "board notes A.6"
    ),
    "cbuf.reuse": Rule(
        L,
        "Set a reuse bit only if the task before, in the same job and core, fetched the same",
        "board notes A.6",
    ),
    # -- CORE --------------------------------------------------------------------------------
    "core.mac_gating": Rule(
        L, "Leave bits 11 and 23 of MAC_GATING set: each clocks 8 of 16 lanes", "board notes A.7"
    ),
    "core.mac_gating_off": Rule(H, "Leave bit 24 of MAC_GATING set", "board notes A.7"),
    "core.precision": Rule(
        G, "Program one of int4, int8, int16, fp16, bf16, tf32 in CORE", "board notes A.1"
    ),
    "core.conv_mode": Rule(
        G,
        "Program depthwise in CNA, CORE, DPU and DPU_RDMA, or in none",
        "board notes A.8: plausible scrambled output",
    ),
    "core.channels": Rule(
        G,
        "Program the channel count, rounded up, alike in CORE, DPU and WDMA",
        "register notes B.3",
    ),
    "core.kernels": Rule(
        L, "CORE channels must hold all kernels; depthwise has one kernel", "board notes A.8"
    ),
    "core.partial_group": Rule(
        H,
        "Pad to whole kernel groups: 32 for int8 outputs, 64 int8 and 32 fp16 depthwise",
        "board notes A.4: hang, partial group unwritten",
    ),
    "core.partial_group_raw": Rule(
        G, "Pad to whole kernel groups: 32 for int8, 64 for int4", "board notes A.4: silent garbage"
    ),
    "core.clip_float": Rule(U, "Leave CLIP_TRUNCATE at 0 in float modes", "TRM"),
    # -- DPU ---------------------------------------------------------------------------------
    "dpu.tf32": Rule(
        H,
        "Program precision 5 in the DPU behind a tf32 convolution",
        "board notes A.1: nothing is written",
    ),
    "dpu.precision": Rule(U, "Use a precision triple of board notes A.1", "board notes A.1"),
    "dpu.size_e_small": Rule(
        L,
        "Program SIZE_E + 1 = kernel group * output bytes / 16",
        "board notes A.4: surfaces above SIZE_E are never written",
    ),
    "dpu.size_e_large": Rule(
        H,
        "Program SIZE_E + 1 = kernel group * output bytes / 16",
        "board notes A.4: first atoms written, then a hang",
    ),
    "dpu.size_e_field": Rule(
        L,
        "Choose an output type whose kernel group fits 8 surfaces",
        "board notes A.4: depthwise int8 to int32 needs 16",
    ),
    "dpu.surface_add": Rule(
        W, "Program SURFACE_ADD = (SIZE_E + 1) * DST_SURF_STRIDE", "board notes A.4"
    ),
    "dpu.geometry": Rule(H, "Program one size in DPU, WDMA and DPU_RDMA", "board notes A.5"),
    "dpu.output_mode": Rule(
        U, "Send the output to memory (bit 1 of OUTPUT_MODE), the PPU (bit 0) or both", "TRM"
    ),
    "dpu.not_modelled": Rule(U, "Use the bypass value of this field", "register notes C.8"),
    "dpu.offset_pend": Rule(U, "Leave OFFSET_PEND at 0 for 32-bit outputs", "register notes C.8"),
    "dpu.transposed_group": Rule(
        H, "Transpose at least two kernel groups", "board notes A.4: N = 16 hangs after writing"
    ),
    "dpu.algo": Rule(U, "Use an operation that this stage has", "TRM"),
    "dpu.bn_mul_per_channel": Rule(
        H, "Use the BS multiplier for per-channel scales", "board notes A.9: it hung"
    ),
    "dpu.missing_operand": Rule(
        H, "Start DPU_RDMA and enable the stream that the stage reads", "board notes A.10"
    ),
    "dpu.out_narrow": Rule(
        G, "Set FP32TOFP16_EN exactly when fp32 values leave as fp16", "peer notes 2.7"
    ),
    "dpu.out_shift": Rule(
        G, "Keep OUT_CVT_SHIFT below 64; floats take MINUS_EXP", "reference/README.md"
    ),
    "dpu.orig_channel": Rule(
        L,
        "Program ORIG_CHANNEL = CHANNEL: else only lane 0 of each atom is right",
        "board notes A.10",
    ),
    "dpu.orig_channel_large": Rule(
        W, "Program ORIG_CHANNEL of at most CHANNEL", "TRM: channels before rounding"
    ),
    "dpu.unaligned": Rule(W, "Align DST_BASE_ADDR to 16 bytes", "register notes E.5"),
    "ew.converter": Rule(
        G,
        "Float ALU operations need the operand converter live, multiply and divide bypassed",
        "board notes A.10",
    ),
    "ew.operand_size": Rule(
        G, "Program EDATA_SIZE, ERDMA_DATA_SIZE and the precision alike", "board notes A.10"
    ),
    "ew.operand_mode": Rule(
        G, "Program EW_DATA_MODE and ERDMA_DATA_MODE alike", "board notes A.10: partial bundles"
    ),
    "ew.equal": Rule(U, "Set EW_EQUAL_EN for max and min of integers", "board notes A.10"),
    "ew.register_operand": Rule(
        U, "Write the same constant to all eight EW_OP_VALUE registers", "hw: lane order unknown"
    ),
    "ew.minmax_mode": Rule(U, "Leave EW_BINARY_EN at 0", "TRM; no stream uses it"),
    "lut.mode": Rule(
        U, "Program LUT_LO_LE_MUX 2, and tables that end after they start", "board notes A.11"
    ),
    "lut.long_line": Rule(
        W,
        "Keep lines of table look-ups within 4096 atoms: 8191 corrupt about 54 elements",
        "board notes A.11, quirk 3",
    ),
    # -- DPU_RDMA ----------------------------------------------------------------------------
    "dpu_rdma.mrdma_trap": Rule(
        H,
        "Set MRDMA_DISABLE in DPU_RDMA.FEATURE_MODE_CFG, or do not start DPU_RDMA",
        "board notes A.10: hang, output untouched",
    ),
    "dpu_rdma.comb_use": Rule(
        H, "Clear bit 0 of COMB_USE in flying mode: 1 and 5 never complete", "board notes A.10"
    ),
    "dpu_rdma.streams": Rule(
        U, "Use COMB_USE 5 for a two-operand convolution, 0 or 4 in flying mode", "board notes A.10"
    ),
    "dpu_rdma.operands": Rule(
        U, "Leave shifts out of the stream, and CPEND out of the BN stream", "board notes A.9"
    ),
    "dpu_rdma.precision": Rule(
        G,
        "Program in and proc precision alike in DPU and DPU_RDMA",
        "board notes A.10: partial bundles compute garbage",
    ),
    "dpu_rdma.unpooling": Rule(U, "Leave UNPOOLING_EN at 0", "no stream uses it"),
    # -- PPU ---------------------------------------------------------------------------------
    "ppu.geometry": Rule(H, "Program one input size in PPU and PPU_RDMA", "register notes D.5"),
    "ppu.window": Rule(
        L, "Windows must end inside the cube and its padding", "NVDLA PDP, register notes D"
    ),
    "ppu.output_size": Rule(
        W, "Pad no more than the output needs: out = (in + pads - window) div step + 1", "NVDLA PDP"
    ),
    "ppu.index_add": Rule(
        W, "Program INDEX_ADD equal to DST_SURF_STRIDE without INDEX_EN", "register notes D.4"
    ),
    "ppu.precision": Rule(G, "RDMA_DATA_FORMAT is 1 for int8, 2 for fp16", "board notes A.12"),
    "ppu.type": Rule(U, "Pool int8 or fp16", "board notes A.12"),
    "ppu.method": Rule(U, "Use average, max or min", "TRM"),
    "ppu.source": Rule(
        H,
        "Set FLYING_MODE exactly when PPU_RDMA feeds the PPU, DPU_FLYIN as the DPU's FLYING_MODE",
        "register notes D.2",
    ),
    "ppu.index": Rule(U, "Leave INDEX_EN at 0", "TRM; no stream uses it"),
    "ppu.channels": Rule(
        U, "Use whole 16-byte atoms of channels, alike in and out", "board notes A.12"
    ),
    "ppu.not_modelled": Rule(U, "Use the usual value of this field", "register notes D"),
}
"""Rule id -> effect, remedy, source.  Ids are stable: tests and users match them."""
