"""Conformance: every limit of the references, kept and crossed by one.

Within the limit a program completes without a word.  Crossed, strict mode names the rule, and
hardware mode does what boards did: it hangs, writes garbage, leaves surfaces unwritten, reads
the wrong place, or wraps the value in silence.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from emu_programs import CONV, EW, FLYING, POOL, Bench, Conv, W, X, Y, flying, pool

from opennpu.emu.violations import RULES
from opennpu.errors import ViolationError
from opennpu.hw import layout, regcmd
from opennpu.hw.regs import Register
from opennpu.hw.rk3588 import chip, cna, core, dpu, dpu_rdma, ppu, ppu_rdma
from opennpu.hw.rk3588.common import Algo, Precision

P = Precision
HANG, GARBAGE, LITERAL = "hang", "garbage", "literal"
Body = list[Register]


@dataclass(frozen=True)
class Limit:
    """A program at its limit, the same one step beyond, and what happens then."""

    name: str
    within: Body
    beyond: Body
    rule: str
    effect: str
    start: int = CONV
    source: str = ""


def channels(n: int) -> Body:
    """CORE, DPU, WDMA and DPU_RDMA of ``n`` output channels."""
    return [
        core.DATAOUT_SIZE_1(dataout_channel=n),
        dpu.DATA_CUBE_CHANNEL(channel=n, orig_channel=n),
        dpu.WDMA_SIZE_0(channel_wdma=n),
        dpu_rdma.RDMA_DATA_CUBE_CHANNEL(channel=n),
    ]


def size_e(n: int) -> Register:
    return dpu.BS_OW_CFG(od_bypass=1, size_e_0=n, size_e_1=n, size_e_2=n)


INT8 = Conv(P.INT8, 8, 8, 64, 32)
FP16 = Conv(P.FP16, 8, 8, 64, 32)
TALL = Conv(P.INT8, 144, 1, 32 * 21, 32)  # fills 97.5 % of three banks; board notes A.6
WIDE = Conv(P.INT8, 8, 32, 1024, 32, (3, 3))  # rows of one bank
HEAVY = Conv(P.FP16, 2, 2, 1024, 16)  # 16 kernels of 2 KiB: one bank
DEEP = Conv(P.FP16, 2, 2, 2048, 16)
DEPTHWISE = Conv(P.INT8, 4, 4, 64, 1, (3, 3), out=P.INT8, depthwise=True)
WIDE_DEPTHWISE = Conv(P.INT8, 4, 4, 80, 1, (3, 3), out=P.INT8, depthwise=True)
STREAM = dpu_rdma.RDMA_ERDMA_CFG(erdma_data_size=2, erdma_data_mode=1)
ADD = dpu.EW_CFG(
    ew_op_src=1,
    ew_lut_bypass=1,
    ew_relu_bypass=1,
    ew_data_mode=1,
    edata_size=2,
    ew_alu_algo=Algo.ADD,
)
WINDOW = [
    ppu.OPERATION_MODE_CFG(pooling_method=1, flying_mode=1),
    ppu.POOLING_KERNEL_CFG(
        kernel_width=2, kernel_height=2, kernel_stride_width=2, kernel_stride_height=2
    ),
]


def flies(*new: Register) -> Body:
    return flying(P.FP16, 4, ADD, STREAM, *new)


def mode(**changes: int) -> Register:
    usual = dict(flying_mode=1, mrdma_fp16tofp32_en=1, proc_precision=2, in_precision=2)
    return dpu_rdma.RDMA_FEATURE_MODE_CFG(**{**usual, **changes})


def pools(*new: Register) -> Body:
    return pool(P.FP16, (4, 4), (2, 2), *WINDOW, *new)


CHANNELS_48 = Conv(P.INT8, 4, 4, 32, 48)
INT4_80 = Conv(P.INT4, 4, 4, 32, 80)

LIMITS = [
    # -- CBUF: register notes B.6, board notes A.6
    Limit(
        "12 banks",
        INT8.body(cna.CBUF_CON0(data_bank=6, weight_bank=6)),
        INT8.body(cna.CBUF_CON0(data_bank=7, weight_bank=6)),
        "cbuf.banks",
        GARBAGE,
    ),
    Limit(
        "one weight bank at least",
        INT8.body(cna.CBUF_CON0(data_bank=11, weight_bank=1)),
        INT8.body(cna.CBUF_CON0(data_bank=11, weight_bank=0)),
        "cbuf.banks",
        GARBAGE,
    ),
    Limit(
        "entries of a row",
        INT8.body(cna.CBUF_CON1(data_entries=8)),
        INT8.body(cna.CBUF_CON1(data_entries=7)),
        "cna.entries",
        GARBAGE,
    ),
    Limit(
        "rows under the kernel fit the data banks",
        WIDE.body(cna.CBUF_CON0(data_bank=3, weight_bank=9), cna.CBUF_CON1(data_entries=512)),
        WIDE.body(cna.CBUF_CON0(data_bank=2, weight_bank=9), cna.CBUF_CON1(data_entries=512)),
        "cbuf.rows",
        GARBAGE,
    ),
    Limit(
        "a kernel group fits the weight banks",
        HEAVY.body(cna.CBUF_CON0(data_bank=11, weight_bank=1)),
        DEEP.body(cna.CBUF_CON0(data_bank=11, weight_bank=1)),
        "cbuf.kernel_group",
        GARBAGE,
    ),
    Limit(
        "a slack bank for int8 of width 1",
        TALL.body(cna.CBUF_CON0(data_bank=4, weight_bank=4)),
        TALL.body(cna.CBUF_CON0(data_bank=3, weight_bank=4)),
        "cbuf.int8_slack",
        GARBAGE,
    ),
    Limit(
        "FC_DATA_BANK is 0",
        INT8.body(),
        INT8.body(cna.CBUF_CON0(data_bank=6, weight_bank=6, fc_data_bank=1)),
        "cbuf.fc_data_bank",
        GARBAGE,
    ),
    Limit(
        "reuse ends with the job",
        INT8.body(),
        INT8.body(cna.CBUF_CON0(data_bank=6, weight_bank=6, weight_reuse=1)),
        "cbuf.reuse",
        LITERAL,
    ),
    # -- CNA
    Limit(
        "kernels of at least one row",
        INT8.body(),
        INT8.body(cna.WEIGHT_SIZE2(weight_width=1, weight_height=0, weight_kernels=32)),
        "cna.empty",
        HANG,
    ),
    Limit(
        "weight bytes match the geometry",
        INT8.body(),
        INT8.body(cna.WEIGHT_SIZE0(weight_bytes=64 * 32 + 1)),
        "cna.weight_size",
        LITERAL,
    ),
    Limit(
        "one output size in CNA and CORE",
        INT8.body(),
        INT8.body(core.DATAOUT_SIZE_0(dataout_width=8, dataout_height=9)),
        "cna.geometry",
        HANG,
    ),
    # -- kernel groups: board notes A.4
    Limit(
        "int8 outputs in whole groups of 32",
        Conv(P.INT8, 4, 4, 32, 32, out=P.INT8).body(),
        Conv(P.INT8, 4, 4, 32, 48, out=P.INT8).body(*channels(48)),
        "core.partial_group",
        HANG,
    ),
    Limit(
        "depthwise int8 in whole groups of 64",
        DEPTHWISE.body(),
        WIDE_DEPTHWISE.body(*channels(80)),
        "core.partial_group",
        HANG,
    ),
    Limit(
        "raw int8 in whole groups of 32",
        Conv(P.INT8, 4, 4, 32, 64).body(),
        CHANNELS_48.body(),
        "core.partial_group_raw",
        GARBAGE,
    ),
    Limit(
        "int4 in whole groups of 64",
        Conv(P.INT4, 4, 4, 32, 64).body(),
        INT4_80.body(),
        "core.partial_group_raw",
        GARBAGE,
    ),
    Limit(
        "fp16 channels in steps of 16",
        Conv(P.FP16, 4, 4, 32, 17).body(),
        Conv(P.FP16, 4, 4, 32, 17).body(*channels(24)),
        "core.channels",
        GARBAGE,
    ),
    Limit(
        "channels hold all kernels",
        FP16.body(),
        FP16.body(*channels(16)),
        "core.kernels",
        LITERAL,
    ),
    Limit(
        "depthwise everywhere or nowhere",
        INT8.body(),
        INT8.body(core.MISC_CFG(qd_en=1, dw_en=1)),
        "core.conv_mode",
        GARBAGE,
    ),
    # -- write DMA: board notes A.4
    Limit("SIZE_E not above its law", FP16.body(), FP16.body(size_e(4)), "dpu.size_e_large", HANG),
    Limit(
        "SIZE_E not below its law", FP16.body(), FP16.body(size_e(2)), "dpu.size_e_small", LITERAL
    ),
    Limit(
        "write DMA and cube of one size",
        INT8.body(),
        INT8.body(dpu.WDMA_SIZE_1(width_wdma=8, height_wdma=9)),
        "dpu.geometry",
        HANG,
    ),
    # -- output converter: reference README
    Limit(
        "OUT_CVT_SHIFT below 64",
        INT8.body(dpu.OUT_CVT_SHIFT(out_cvt_shift=63)),
        INT8.body(dpu.OUT_CVT_SHIFT(out_cvt_shift=64)),
        "dpu.out_shift",
        GARBAGE,
    ),
    Limit(
        "fp32 is narrowed where fp16 leaves",
        Conv(P.FP16, 4, 4, 32, 16, out=P.FP16).body(),
        Conv(P.FP16, 4, 4, 32, 16, out=P.FP16).body(dpu.OUT_CVT_SCALE(out_cvt_scale=1)),
        "dpu.out_narrow",
        GARBAGE,
    ),
    Limit(
        "integers have no multiplier per channel in BN",
        INT8.body(dpu.BN_CFG(bn_alu_bypass=1, bn_relu_bypass=1), dpu.BN_MUL_CFG(bn_mul_operand=1)),
        INT8.body(
            dpu.BN_CFG(bn_alu_bypass=1, bn_relu_bypass=1),
            dpu.BN_MUL_CFG(bn_mul_src=1),
            dpu_rdma.RDMA_NRDMA_CFG(nrdma_data_use=4),
            dpu_rdma.RDMA_BN_BASE_ADDR(bn_base_addr=EW),
        ),
        "dpu.bn_mul_per_channel",
        HANG,
    ),
    # -- element-wise: board notes A.10
    Limit(
        "ORIG_CHANNEL equals CHANNEL with two operands",
        flies(),
        flies(dpu.DATA_CUBE_CHANNEL(channel=8, orig_channel=7)),
        "dpu.orig_channel",
        LITERAL,
        FLYING,
    ),
    Limit(
        "COMB_USE without bit 0",
        flies(mode(comb_use=4)),
        flies(mode(comb_use=5)),
        "dpu_rdma.comb_use",
        HANG,
        FLYING,
    ),
    Limit(
        "float sums through the converter",
        flies(),
        flies(
            dpu.EW_CFG(
                ew_op_src=1,
                ew_lut_bypass=1,
                ew_relu_bypass=1,
                ew_data_mode=1,
                edata_size=2,
                ew_alu_algo=Algo.ADD,
                ew_op_cvt_bypass=1,
            )
        ),
        "ew.converter",
        GARBAGE,
        FLYING,
    ),
    Limit(
        "one operand width",
        flies(),
        flies(dpu_rdma.RDMA_ERDMA_CFG(erdma_data_size=3, erdma_data_mode=1)),
        "ew.operand_size",
        GARBAGE,
        FLYING,
    ),
    Limit(
        "an enabled stream for the operand",
        flies(),
        flies(dpu_rdma.RDMA_ERDMA_CFG(erdma_disable=1)),
        "dpu.missing_operand",
        HANG,
        FLYING,
    ),
    Limit(
        "DPU_RDMA is fed or its MRDMA off",
        INT8.body(),
        INT8.body(dpu_rdma.RDMA_FEATURE_MODE_CFG()),
        "dpu_rdma.mrdma_trap",
        HANG,
    ),
    # -- pooling: board notes A.12
    Limit(
        "windows inside the cube",
        pools(),
        pools(ppu.DATA_CUBE_OUT_WIDTH(cube_out_width=3)),
        "ppu.window",
        LITERAL,
        POOL,
    ),
    Limit(
        "PPU and PPU_RDMA of one size",
        pools(),
        pools(ppu_rdma.RDMA_CUBE_IN_WIDTH(cube_in_width=5)),
        "ppu.geometry",
        HANG,
        POOL,
    ),
    Limit(
        "16-bit reads for fp16",
        pools(),
        pools(ppu_rdma.RDMA_DATA_FORMAT(in_precision=1)),
        "ppu.precision",
        GARBAGE,
        POOL,
    ),
]


def loaded(strict: bool) -> Bench:
    bench = Bench.of(strict=strict)
    bench.put(X, np.ones(0x30000, np.uint8))
    bench.put(W, np.ones(0x40000, np.uint8))
    bench.memory[Y:] = 0xEE
    return bench


def start(bench: Bench, body: Iterable[Register], units: int) -> Any:
    return bench.run((body, units), mask=0xC00 if units == POOL else 0x300)


@pytest.mark.parametrize("limit", LIMITS, ids=lambda x: x.name.replace(" ", "-"))
def test_limit_kept_and_crossed(limit: Limit) -> None:
    fine = loaded(True)
    r = start(fine, limit.within, limit.start)
    assert r.completed
    assert not r.violations
    with pytest.raises(ViolationError) as e:
        start(loaded(True), limit.beyond, limit.start)
    assert f"[{limit.rule}]" in str(e.value)
    bench = loaded(False)
    r = start(bench, limit.beyond, limit.start)
    assert limit.rule in [v.rule for v in r.violations]
    assert r.completed == (limit.effect != HANG)
    assert RULES[limit.rule].effect.value == limit.effect
    written = bench.memory[Y : Y + 0x10000] != 0xEE
    if limit.effect == GARBAGE:
        assert (bench.memory[Y : Y + 0x10000][written] == 0xA5).all()
        assert written.any()
    if limit.effect == HANG and not limit.rule.startswith(("dpu.size_e", "core.partial")):
        assert not written.any()


# -- fields that wrap in silence (board notes A.0) -----------------------------------------------


def raw(register: type[Register], word: int) -> Register:
    """``word`` as a list would write it, value bits outside the fields and all."""
    return register.decode(word)


def outcome(bench: Bench, body: Iterable[Register], units: int = CONV) -> Any:
    r = start(bench, body, units)
    assert r.completed
    return r


@pytest.mark.parametrize(
    ("word", "same"),
    [
        (2500 << 16 | 1, 452 << 16 | 1),  # published: width 2500 acts as 452
        (2049 << 16 | 1, 1 << 16 | 1),
    ],
)
def test_a_width_above_11_bits_wraps(word: int, same: int) -> None:
    assert raw(cna.DATA_SIZE0, word).datain_width == same >> 16
    wide = same >> 16
    conv = Conv(P.INT8, 1, wide, 16, 32)
    memory = np.zeros(0x200000, np.uint8)
    outs = []
    for w in (word, same):
        bench = Bench(memory=memory)
        bench.put(X, np.arange(0x8000, dtype=np.uint16).astype(np.uint8))
        bench.put(W, np.ones(0x200, np.uint8))
        memory[Y:] = 0
        r = outcome(bench, conv.body(raw(cna.DATA_SIZE0, w)))
        assert [v.rule for v in r.warnings] == ["pc.reserved_bits"] * (w != same)
        outs.append(memory[Y:].copy())
    np.testing.assert_array_equal(outs[0], outs[1])


@pytest.mark.parametrize(("pad", "acts_as"), [(15, 15), (16, 0), (17, 1)])
def test_convolution_pads_have_4_bits(pad: int, acts_as: int) -> None:
    left = raw(cna.PAD_CON0, pad << 4)
    assert left.pad_left == acts_as
    conv = Conv(P.INT8, 3, 3, 16, 32, (1, 3), pad=(0, acts_as), tail_pad=(0, 1))
    results = []
    for register in (left, cna.PAD_CON0(pad_left=acts_as)):
        bench = loaded(True)
        r = outcome(bench, conv.body(register))
        assert [v.rule for v in r.warnings] == ["pc.reserved_bits"] * (register.word > 0xFF)
        results.append(bench.memory[Y:].copy())
    np.testing.assert_array_equal(*results)


@pytest.mark.parametrize(
    ("register", "field", "most"),
    [
        (cna.DATA_SIZE0, "datain_width", chip.MAX_INPUT_WIDTH_PX),
        (cna.DATA_SIZE0, "datain_height", 2047),
        (cna.CONV_CON2, "feature_grains", chip.MAX_INPUT_HEIGHT_PX + 1),
        (cna.CONV_CON3, "conv_x_stride", chip.MAX_CONV_STRIDE_PX),
        (cna.PAD_CON0, "pad_left", chip.MAX_CONV_PAD_PX),
        (cna.WEIGHT_SIZE1, "weight_bytes_per_kernel", (1 << 19) - 1),
        (cna.WEIGHT_SIZE2, "weight_height", chip.MAX_KERNEL_PX),
        (cna.WEIGHT_SIZE2, "weight_kernels", (1 << 14) - 1),
        (dpu.DATA_CUBE_WIDTH, "width", 8192),
        (dpu.DATA_CUBE_CHANNEL, "channel", 8192),
        (dpu_rdma.RDMA_DATA_CUBE_HEIGHT, "height", 8192),
        (ppu.DATA_CUBE_IN_WIDTH, "cube_in_width", 8192),
        (ppu.POOLING_KERNEL_CFG, "kernel_width", chip.MAX_POOL_PX),
        (ppu.POOLING_KERNEL_CFG, "kernel_stride_height", chip.MAX_POOL_PX),
        (ppu.POOLING_PADDING_CFG, "pad_left", chip.MAX_POOL_PAD_PX),
        (dpu.BS_OW_CFG, "size_e_2", chip.MAX_SURFACES_PER_GROUP - 1),
    ],
)
def test_values_above_their_field_wrap(register: type[Register], field: str, most: int) -> None:
    """The largest value is the published limit; one more acts as the smallest."""
    f = register.fields[field]
    assert f.max == most
    raw_most = (most - f.bias) // f.scale
    assert getattr(register.decode(raw_most << f.low), field) == most
    above = register.decode((raw_most + 1) << f.low & 0xFFFF_FFFF)
    assert getattr(above, field) == f.min


def test_reserved_bits_are_named_and_change_nothing() -> None:
    clean, odd = loaded(True), loaded(True)
    outcome(clean, INT8.body())
    word = next(r for r in INT8.body() if isinstance(r, cna.CONV_CON2)).word | 5 << 28
    r = outcome(odd, INT8.body(raw(cna.CONV_CON2, word)))
    assert [(v.rule, v.unit) for v in r.warnings] == [("pc.reserved_bits", "CNA")]
    np.testing.assert_array_equal(clean.memory[Y:], odd.memory[Y:])


def test_1022_rows_are_the_most_and_one_more_starves_the_sequencer() -> None:
    """FEATURE_GRAINS = rows + 1 has 10 bits: 1023 rows wrap it to 0."""
    for rows in (1022, 1023):
        conv = Conv(P.INT8, rows, 2, 16, 32)
        grains = raw(cna.CONV_CON2, (rows + 1) << 4)
        memory = np.zeros(0x200000, np.uint8)
        r = outcome(Bench(memory=memory), conv.body(grains))
        rules = ["pc.reserved_bits", "cna.grains"] if rows == 1023 else []
        assert [v.rule for v in r.warnings] == rules


# -- other limits --------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [2, 3, 4, 5, 6, 7, 8])
def test_deconv_steps_that_do_not_act_convolve_forward(step: int) -> None:
    """Board notes A.13: only 2, 4 and 8 act."""
    conv = Conv(P.FP16, 3, 3, 16, 16)
    bench = loaded(True)
    x = np.arange(3 * 3 * 16).reshape(3, 3, 16).astype(np.float16)
    w = np.eye(16, dtype=np.float16).reshape(16, 1, 1, 16)
    conv.load(bench, x, w)
    body = conv.body(
        cna.CONV_CON1(in_precision=P.FP16, proc_precision=P.FP16, deconv=1),
        cna.CONV_CON3(conv_x_stride=1, conv_y_stride=1, deconv_x_stride=step, deconv_y_stride=step),
    )
    outcome(bench, body)
    got = conv.result(bench)
    if step in chip.DECONV_STRIDES_PX:
        up = np.zeros((3, 3, 16))
        up[::step, ::step] = x[: -(-3 // step), : -(-3 // step)]
        np.testing.assert_array_equal(got, up)
    else:
        np.testing.assert_array_equal(got, x)


def test_deconv_by_2_with_a_pad_of_12_is_refused() -> None:
    conv = Conv(P.FP16, 3, 3, 16, 16)
    pads = {11: True, 12: False}
    for pad, fine in pads.items():
        body = conv.body(
            cna.CONV_CON1(in_precision=P.FP16, proc_precision=P.FP16, deconv=1),
            cna.CONV_CON3(conv_x_stride=1, conv_y_stride=1, deconv_x_stride=2, deconv_y_stride=2),
            cna.PAD_CON0(pad_left=pad, pad_top=pad),
        )
        if fine:
            outcome(loaded(True), body)
        else:
            with pytest.raises(ViolationError, match="cna.deconv"):
                loaded(True).run((body, CONV))


def test_int4_sums_beyond_668_products_saturate() -> None:
    """49 * K must stay within int16 (board notes A.5); beyond, silicon saturates."""
    for k, peak in ((640, 49 * 640), (704, 32767)):
        conv = Conv(P.INT4, 1, 1, k, 64)
        bench = loaded(True)
        x, w = np.full((1, 1, k), 7, np.int8), np.full((64, 1, 1, k), 7, np.int8)
        conv.load(bench, x, w)
        outcome(bench, conv.body())
        assert (conv.result(bench) == peak).all()


@pytest.mark.parametrize("pixels", [12, 11, 8])
def test_below_12_pixels_upper_operand_surfaces_are_misplaced(pixels: int) -> None:
    """Producers write strides of max(pixels, 12): right from 12 on, literal below (A.10)."""
    conv = Conv(P.FP16, pixels, 1, 32, 32, out=P.FP16)
    bench = loaded(True)
    conv.load(bench, np.zeros((pixels, 1, 32), np.float16), np.zeros((32, 1, 1, 32), np.float16))
    other = np.arange(pixels * 32).reshape(pixels, 1, 32).astype(np.float16)
    bench.put(EW, np.zeros(0x1000, np.uint8))
    bench.put(EW, layout.pack_cube(other[None], P.FP16))
    stride = max(pixels, 12)
    body = conv.body(
        ADD,
        STREAM,
        dpu_rdma.RDMA_SRC_BASE_ADDR(src_base_addr=EW),
        dpu_rdma.RDMA_EW_BASE_ADDR(ew_base_addr=EW + pixels * 16),
        dpu_rdma.RDMA_SURF_NOTCH(surf_notch_addr=stride),
        dpu_rdma.RDMA_EW_SURF_STRIDE(ew_surf_stride=stride),
        dpu_rdma.RDMA_EW_SURF_NOTCH(ew_surf_notch=stride),
        dpu_rdma.RDMA_FEATURE_MODE_CFG(comb_use=5, burst_len=15, proc_precision=2, in_precision=2),
    )
    outcome(bench, body)
    got = conv.result(bench)
    surfaces = [
        (got[..., 8 * s : 8 * s + 8] == other[..., 8 * s : 8 * s + 8]).all() for s in range(4)
    ]
    assert surfaces == ([True] * 4 if pixels == 12 else [True, True, False, False])


def test_long_lines_of_table_look_ups_warn() -> None:
    table = [
        dpu.EW_CFG(ew_op_bypass=1, ew_op_cvt_bypass=1, ew_relu_bypass=1),
        dpu.LUT_CFG(lut_lo_le_mux=2),
        dpu.LUT_LE_START(lut_le_start=-16384),
        dpu.LUT_LO_END(lut_lo_end=16384),
    ]
    memory = np.zeros(0x200000, np.uint8)
    for atoms, rules in ((4096, []), (4097, ["lut.long_line"])):
        r = outcome(Bench(memory=memory), flying(P.FP16, atoms, *table), FLYING)
        assert [v.rule for v in r.warnings] == rules


def test_a_pool_started_as_a_convolution_writes_nothing() -> None:
    """Board notes A.0: 0x1D on a pool program."""
    bench = loaded(False)
    r = bench.run((pools(), CONV), mask=0xC00)
    assert not r.completed
    assert (bench.memory[Y:] == 0xEE).all()


def test_a_hung_task_keeps_what_came_before_it() -> None:
    """Tasks before the hang are written, it and those after it are not; the core stays stuck."""
    bench = loaded(False)
    trap = INT8.body(dpu_rdma.RDMA_FEATURE_MODE_CFG(), dpu.DST_BASE_ADDR(dst_base_addr=Y + 0x4000))
    after = INT8.body(dpu.DST_BASE_ADDR(dst_base_addr=Y + 0x8000))
    r = bench.run((INT8.body(), CONV), (trap, CONV), (after, CONV))
    assert not r.completed
    assert r.tasks_done == 1
    assert (bench.memory[Y : Y + 0x2000] != 0xEE).any()
    assert (bench.memory[Y + 0x4000 : Y + 0xC000] == 0xEE).all()
    again = bench.run((INT8.body(), CONV))
    assert [v.rule for v in again.violations] == ["pc.wedged"]


LOST = 0x4000_0000  # nothing is mapped there
BIAS = [
    dpu.BS_CFG(bs_alu_src=1, bs_alu_algo=Algo.ADD, bs_mul_bypass=1, bs_relu_bypass=1),
    dpu_rdma.RDMA_BRDMA_CFG(brdma_data_use=1),
    dpu_rdma.RDMA_BS_BASE_ADDR(bs_base_addr=LOST),
]
SCALE = [
    dpu.BN_CFG(bn_alu_bypass=1, bn_relu_bypass=1),
    dpu.BN_MUL_CFG(bn_mul_src=1),
    dpu_rdma.RDMA_NRDMA_CFG(nrdma_data_use=4),
    dpu_rdma.RDMA_BN_BASE_ADDR(bn_base_addr=LOST),
]


@pytest.mark.parametrize(
    ("body", "units", "unit", "write"),
    [
        (INT8.body(cna.FEATURE_DATA_ADDR(feature_base_addr=LOST)), CONV, "CNA", False),
        (INT8.body(cna.DCOMP_ADDR0(decompress_addr0=LOST)), CONV, "CNA", False),
        (INT8.body(*BIAS), CONV, "DPU_RDMA", False),
        (flying(P.FP16, 4, *SCALE), FLYING, "DPU_RDMA", False),
        (flies(dpu_rdma.RDMA_SRC_BASE_ADDR(src_base_addr=LOST)), FLYING, "DPU_RDMA", False),
        (flies(dpu_rdma.RDMA_EW_BASE_ADDR(ew_base_addr=LOST)), FLYING, "DPU_RDMA", False),
        (pools(ppu_rdma.RDMA_SRC_BASE_ADDR(src_base_addr=LOST)), POOL, "PPU_RDMA", False),
        (INT8.body(dpu.DST_BASE_ADDR(dst_base_addr=LOST)), CONV, "DPU", True),
        (flies(dpu.DST_BASE_ADDR(dst_base_addr=LOST)), FLYING, "DPU", True),
        (pools(ppu.DST_BASE_ADDR(dst_base_addr=LOST)), POOL, "PPU", True),
    ],
)
@pytest.mark.parametrize("strict", [True, False])
def test_each_stream_that_leaves_its_memory_raises_a_dma_error(
    body: Body, units: int, unit: str, write: bool, strict: bool
) -> None:
    """Bit 12 reads, bit 13 writes, at once and whatever else the task had to do (A.0)."""
    bench = loaded(strict)
    r = bench.run((body, units), mask=0x1FFFF)
    assert r.fault is not None
    assert (r.fault.unit, r.fault.iova, r.fault.write) == (unit, LOST, write)
    assert r.interrupt_raw == (0x2000 if write else 0x1000)
    assert r.tasks_done == 0
    assert bench.machine.irq(0)
    assert (bench.memory[Y:] == 0xEE).all()


def test_a_table_has_513_entries() -> None:
    """One more write changes neither table; the next LUT_ACCESS_CFG starts afresh."""
    bench = loaded(True)
    write = bench.machine.write_register
    for table in range(2):
        cfg = dpu.LUT_ACCESS_CFG(lut_access_type=1, lut_table_id=table)
        write(0, dpu.LUT_ACCESS_CFG.address, cfg.word)
        for i in range(514):
            write(0, dpu.LUT_ACCESS_DATA.address, 1000 * table + i)
    for table in range(2):
        for at, want in ((0, 1000 * table), (512, 1000 * table + 512)):
            cfg = dpu.LUT_ACCESS_CFG(lut_table_id=table, lut_addr=at)
            write(0, dpu.LUT_ACCESS_CFG.address, cfg.word)
            assert bench.machine.read_register(0, dpu.LUT_ACCESS_DATA.address) == want


@pytest.mark.parametrize("low", [8, 15])
def test_a_list_starts_at_16_bytes(low: int) -> None:
    """BASE_ADDRESS drops bits 3:0 (register notes A.3)."""
    outs = []
    for extra in (0, low):
        bench = loaded(True)
        ((at, words),) = bench.place((INT8.body(), CONV))
        assert bench.machine.run(0, bench.space, at + extra, words).completed
        outs.append(bench.memory[Y:].copy())
    np.testing.assert_array_equal(*outs)


@pytest.mark.parametrize(("m", "k", "banks"), [(384, 384, 9), (234, 768, 11)])
def test_one_row_more_than_the_data_banks_hold_is_streamed(m: int, k: int, banks: int) -> None:
    """Peer notes 2.6: matrices of fp16 that filled 9 and 11 banks on a board."""
    row = 2 * k
    assert -(-m * row // chip.CBUF_BANK_BYTES) == banks
    most = banks * chip.CBUF_BANK_BYTES // row
    for rows, rules in ((most, []), (most + 1, ["cbuf.tile"])):
        conv = Conv(P.FP16, rows, 1, k, 16)
        bench = Bench(memory=np.zeros(0x200000, np.uint8))
        bench.put(0x100000, np.zeros(0x80000, np.uint8))
        body = conv.body(
            cna.CBUF_CON0(data_bank=banks, weight_bank=12 - banks),
            cna.CBUF_CON1(data_entries=row // chip.CBUF_ENTRY_BYTES),
            cna.CONV_CON2(feature_grains=8),
            cna.FEATURE_DATA_ADDR(feature_base_addr=0x100000),
        )
        r = bench.run((body, CONV))
        assert r.completed
        assert [v.rule for v in r.warnings] == rules


def test_task_number_has_12_bits() -> None:
    """4095 tasks are the most of one start; the word of 4096 says 0 and PP_EN."""
    con = regcmd.REGISTERS[0x0030]
    assert con.fields["task_number"].max == chip.TASKS_PER_START
    assert con.decode(4096).task_number == 0


def test_each_effect_is_seen() -> None:
    assert {x.effect for x in LIMITS} == {HANG, GARBAGE, LITERAL}
