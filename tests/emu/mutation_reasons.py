"""Why some bits of the golden streams can change without anyone noticing.

Field or register -> (reason, source).  A reason opens with its kind: "don't-care" (silicon, or
what the emulator accepts, does not read it), "timing only", or "not exercised" (no stream and no
document says what it does).
"""

from __future__ import annotations

KINDS = ("don't-care: ", "timing only: ", "not exercised: ")

BURST = ("timing only: beats of a bus burst", "register notes H; TRM")
SPLIT = ("timing only: whether bus bursts are split at 4 KiB", "TRM")
SHARE = ("timing only: share of the bus among the streams of DPU_RDMA", "TRM")
READ_ONLY = ("don't-care: read-only", "TRM S_POINTER")
MODE = (
    "not exercised: both modes pick the same group while tasks run one after the other",
    "register notes A.6",
)
ABOVE_19 = (
    "don't-care: an int8 pad has 19 bits (streams write 0x7FF80 for -128), an fp16 pad 16",
    "board notes A.12; register notes D.3",
)

REASONS: dict[str, tuple[str, str]] = {
    "CNA.DATA_SIZE3.surf_mode": ("don't-care: 0 and 1 both say one surface", "TRM"),
    "CNA.DMA_CON0.data_burst_len": BURST,
    "CNA.DMA_CON0.weight_burst_len": BURST,
    "CNA.DMA_CON0.ov4k_bypass": SPLIT,
    "CNA.CVT_CON5.per_channel_cvt_en": (
        "don't-care: an int8 atom has 16 lanes; 31:16 are for int4, which the converter refuses",
        "TRM; register notes B.8",
    ),
    "CORE.MISC_CFG.soft_gating": ("timing only: clock gating of the accumulator", "TRM"),
    "CORE.UNDOC_3030": ("don't-care: has no effect on a board", "board notes A.7"),
    "DPU.S_POINTER.pointer_pp_mode": MODE,
    "DPU.S_POINTER.executer": READ_ONLY,
    "DPU.FEATURE_MODE_CFG.burst_len": BURST,
    "DPU.FEATURE_MODE_CFG.comb_use": (
        "not exercised: copy of a bit of DPU_RDMA, but boards run golden ew_mul with the two apart",
        "TRM; golden ew_mul",
    ),
    "DPU.LUT_CFG.lut_cal_sel": (
        "don't-care: acts on joined tables, and LUT_EXPAND_EN is refused",
        "TRM",
    ),
    "DPU.UNDOC_40C4": (
        "not exercised: streams write 0 and no document names it",
        "register notes A.3, I-16",
    ),
    "DPU_RDMA.RDMA_S_POINTER.pointer_pp_mode": MODE,
    "DPU_RDMA.RDMA_S_POINTER.executer": READ_ONLY,
    "DPU_RDMA.RDMA_ERDMA_CFG.ov4k_bypass": SPLIT,
    "DPU_RDMA.RDMA_FEATURE_MODE_CFG.burst_len": BURST,
    "DPU_RDMA.RDMA_WEIGHT": SHARE,
    "PPU.S_POINTER.pointer_pp_mode": MODE,
    "PPU.S_POINTER.executer": READ_ONLY,
    "PPU.PADDING_VALUE_1_CFG.pad_value_0": ABOVE_19,
    "PPU.PADDING_VALUE_2_CFG.pad_value_1": ABOVE_19,
    "PPU.MISC_CTRL.burst_len": BURST,
    "PPU_RDMA.RDMA_S_POINTER.pointer_pp_mode": MODE,
    "PPU_RDMA.RDMA_S_POINTER.executer": READ_ONLY,
}
