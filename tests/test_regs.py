"""The register description: total, lossless, printable, in range, and where others say it is."""

from __future__ import annotations

import csv
import enum
import itertools
import pickle
import re
import types
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opennpu.errors import FieldRangeError, NPUError
from opennpu.hw import export
from opennpu.hw.regcmd import (
    EVAL_NAMES,
    TAIL_WORDS,
    WORD_BYTES,
    Marker,
    Nop,
    Raw,
    Start,
    Write,
    assemble,
    decode,
    disassemble,
    encode,
    fetch_amount,
    listing,
    tail,
)
from opennpu.hw.regs import REGISTERS, Block, Field, Register, Trust, bits
from opennpu.hw.rk3588 import UNITS, cna, core, dpu, dpu_rdma, global_, pc, ppu
from opennpu.hw.rk3588.common import NOTES, Algo, Precision

FP16 = Precision.FP16
ROOT = Path(__file__).parents[1]
ALL = list(REGISTERS.values())
FIELDS = [(reg, name, f) for reg in ALL for name, f in reg.fields.items()]

registers = st.sampled_from(ALL)
words32 = st.integers(0, 2**32 - 1)
fields = st.sampled_from(FIELDS)


def evaluate(line: str) -> Write:
    write: Write = eval(line, dict(EVAL_NAMES))
    return write


# Decoding is total and lossless, and what it prints is source.


@given(registers, words32)
def test_any_word_survives_decoding(reg: type[Register], word: int) -> None:
    value = reg.decode(word)
    assert value.word == word
    held = {n: getattr(value, n) for n in reg.fields}
    assert reg(unknown=value.unknown, **held) == value
    assert value.unknown == word & ~reg.known


@given(registers, words32)
def test_printed_register_builds_the_same_word(reg: type[Register], word: int) -> None:
    code = assemble([reg.decode(word)])
    (write,) = disassemble(code)
    assert assemble([evaluate(repr(write))]) == code


@given(st.binary().map(lambda b: b[: len(b) // WORD_BYTES * WORD_BYTES]))
def test_any_bytes_survive_disassembly(code: bytes) -> None:
    writes = list(disassemble(code))
    assert assemble(writes) == code
    assert assemble([evaluate(repr(w)) for w in writes]) == code


@given(st.sampled_from([0x0041, 0x0081, 0x0101, 0x0201, 0x1001]), words32, st.integers(0, 0x10000))
def test_special_words_survive_too(target: int, value: int, offset: int) -> None:
    bits64 = target << 48 | value << 16 | offset & 0xFFFF
    write = decode(bits64)
    assert encode(write) == bits64
    assert encode(evaluate(repr(write))) == bits64


@given(st.lists(st.tuples(registers, words32), max_size=5))
def test_listing_marks_guesses_and_is_still_source(cases: list[tuple[type[Register], int]]) -> None:
    code = assemble([reg.decode(word) for reg, word in cases])
    assert assemble([evaluate(line) for line in listing(code)]) == code


def test_listing_says_which_fields_are_guesses() -> None:
    code = assemble([ppu.OPERATION_MODE_CFG.decode(0x31), cna.PAD_CON0(pad_top=1)])
    assert list(listing(code)) == [
        "ppu.OPERATION_MODE_CFG(pooling_method=1, flying_mode=1, use_cnt=1)  # guessed: use_cnt",
        "cna.PAD_CON0(pad_top=1)",
    ]


def test_word_through_an_odd_target_is_raw() -> None:
    write = decode(0x0801_0000_0001_1010)  # CORE's target, CNA's offset
    assert write == Raw(0x0801_0000_0001_1010)
    assert repr(write) == "Raw(0x0801000000011010)"


def test_half_a_word_is_refused() -> None:
    with pytest.raises(Exception, match="multiple of 8"):
        list(disassemble(b"\0" * 12))


# Values.


@given(fields, st.data())
def test_every_legal_value_comes_back(
    case: tuple[type[Register], str, Field], data: st.DataObject
) -> None:
    reg, name, f = case
    steps = (f.max - f.min) // f.scale
    value = f.min + f.scale * data.draw(st.integers(0, steps))
    assert f.unpack(f.pack(value, name)) == value
    assert f.pack(value, name) & ~f.mask == 0
    others = {n: o.min for n, o in reg.fields.items() if n != name}
    assert getattr(reg(**others, **{name: value}), name) == value


def sample_register(**fields: Any) -> Any:
    """A register that exists for one test only."""
    body = {"__annotations__": dict.fromkeys(fields, int), **fields}
    block = Block("TEST", base=0x1_0000, target=0xFFFF)
    try:
        return types.new_class(
            "R", (Register,), {"block": block, "offset": 0}, lambda ns: ns.update(body)
        )
    finally:
        REGISTERS.pop(block.base, None)


@pytest.mark.parametrize(
    ("kw", "value", "message"),
    [
        ({}, 256, "TEST.R.n=256: bits 11:4 hold 0..255"),
        ({}, -1, "TEST.R.n=-1: bits 11:4 hold 0..255"),
        ({"bias": 1, "unit": "px"}, 0, "TEST.R.n=0: bits 11:4 hold 1..256 px"),
        ({"bias": 1, "unit": "px"}, 257, "TEST.R.n=257: bits 11:4 hold 1..256 px"),
        ({"signed": True}, 128, "TEST.R.n=128: bits 11:4 hold -128..127"),
        ({"signed": True, "unit": "atoms"}, -129, "TEST.R.n=-129: bits 11:4 hold -128..127 atoms"),
        (
            {"scale": 16, "unit": "bytes"},
            4096,
            "TEST.R.n=4096: bits 11:4 hold 0..4080 bytes in steps of 16",
        ),
        (
            {"scale": 16, "unit": "bytes"},
            24,
            "TEST.R.n=24: bits 11:4 hold 0..4080 bytes in steps of 16",
        ),
    ],
)
def test_value_out_of_range_is_refused_with_the_legal_range(
    kw: dict[str, Any], value: int, message: str
) -> None:
    with pytest.raises(FieldRangeError) as e:
        sample_register(n=bits(11, 4, source=NOTES, **kw))(n=value)
    assert str(e.value) == message


def test_real_registers_say_it_too() -> None:
    with pytest.raises(FieldRangeError) as e:
        ppu.POOLING_KERNEL_CFG(
            kernel_width=17, kernel_height=3, kernel_stride_width=1, kernel_stride_height=1
        )
    assert str(e.value) == "PPU.POOLING_KERNEL_CFG.kernel_width=17: bits 3:0 hold 1..16 px"
    with pytest.raises(FieldRangeError) as e:
        cna.DMA_CON2(surf_stride=1 << 27)
    assert str(e.value) == (
        "CNA.DMA_CON2.surf_stride=134217728: bits 27:0 hold -134217728..134217727 atoms"
    )
    with pytest.raises(FieldRangeError) as e:
        pc.BASE_ADDRESS(pc_source_addr=0x1008)
    assert str(e.value) == (
        "PC.BASE_ADDRESS.pc_source_addr=4104: bits 31:4 hold 0..4294967280 bytes in steps of 16"
    )
    with pytest.raises(FieldRangeError) as e:
        core.MISC_CFG(qd_en=2)
    assert str(e.value) == "CORE.MISC_CFG.qd_en=2: bit 0 holds 0..1"


def test_range_error_is_caught_as_value_error_and_as_ours() -> None:
    for kind in (ValueError, NPUError):
        with pytest.raises(kind):
            cna.PAD_CON0(pad_top=16)


def test_unknown_may_not_touch_known_bits() -> None:
    assert cna.S_POINTER(pointer_pp_en=1, **{"unknown": 2 << 28}).word == 0x2000_0002
    with pytest.raises(FieldRangeError, match="unknown=0x3"):
        cna.S_POINTER(**{"unknown": 3})


def test_field_without_default_must_be_said() -> None:
    with pytest.raises(TypeError, match="DATA_SIZE0 needs datain_height="):
        cna.DATA_SIZE0(datain_width=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="has no field typo"):
        cna.PAD_CON0(typo=1)  # type: ignore[call-arg]


def test_named_codes_decode_as_enums_and_others_stay_numbers() -> None:
    assert cna.CONV_CON1.decode(2 << 4).in_precision is Precision.FP16
    code = dpu.EW_CFG.decode(15 << 16).ew_alu_algo
    assert code == 15 and not isinstance(code, enum.Enum)
    assert dpu.EW_CFG(ew_alu_algo=Algo.ADD).word == 2 << 16


def test_registers_are_values() -> None:
    a, b = cna.PAD_CON0(pad_top=1), cna.PAD_CON0(pad_top=1)
    assert a == b and hash(a) == hash(b) and a != cna.PAD_CON0(pad_top=2)
    assert a != core.CLIP_TRUNCATE(clip_truncate=1)
    assert pickle.loads(pickle.dumps(a)) == a
    with pytest.raises(AttributeError, match="is a value"):
        a.pad_top = 2  # type: ignore[misc]


# The description itself.


def test_fields_do_not_overlap() -> None:
    for reg in ALL:
        for (a, f), (b, g) in itertools.combinations(reg.fields.items(), 2):
            assert not f.mask & g.mask, f"{reg.__name__}: {a} and {b}"
    with pytest.raises(TypeError, match=r"TEST\.R\.b overlaps another field"):
        sample_register(a=bits(3, 0, source=NOTES), b=bits(3, source=NOTES))


def test_every_field_has_width_meaning_and_source() -> None:
    for reg, name, f in FIELDS:
        where = f"{reg.block.name}.{reg.__name__}.{name}"
        assert 0 <= f.low <= f.high <= 31, where
        assert f.doc and f.source, where
        assert ".md" not in f.source and ".json" not in f.source, f"{where}: not a public source"
        if f.default is not None:
            assert f.min <= f.default <= f.max, where
            f.pack(f.default, where)


def test_geometry_and_addresses_have_no_default() -> None:
    """What an emitter may leave out is an operand stream that is off, or a gap of nothing."""
    may = {"src_base_addr", "bs_base_addr", "bn_base_addr", "ew_base_addr", "dma_base_addr"}
    for reg, name, f in FIELDS:
        if f.unit == "bytes" and f.default is not None:
            assert name in may, f"{reg.__name__}.{name}"


def test_where_the_registers_are_agrees_with_mesa_and_the_manual() -> None:
    """data/registers.csv: as in Mesa's registers.xml, Linux and the TRM, and three more offsets."""
    with (ROOT / "tests/data/registers.csv").open() as file:
        rows = list(csv.DictReader(file))
    want = {
        (
            r["unit"],
            r["register"],
            int(r["offset"], 16),
            r["field"].lower(),
            int(r["msb"]),
            int(r["lsb"]),
        )
        for r in rows
    }
    got = {
        (reg.block.name, reg.__name__, reg.address, name, f.high, f.low) for reg, name, f in FIELDS
    }
    assert got == want
    assert (len(ALL), len(FIELDS)) == (202, 515)


def test_units_are_where_the_manual_says() -> None:
    windows = {b.name: (b.base, b.target) for b in {r.block for r in ALL}}
    assert windows == {
        "PC": (0x0000, 0x0101),
        "CNA": (0x1000, 0x0201),
        "CORE": (0x3000, 0x0801),
        "DPU": (0x4000, 0x1001),
        "DPU_RDMA": (0x5000, 0x2001),
        "PPU": (0x6000, 0x4001),
        "PPU_RDMA": (0x7000, 0x8001),
        "DDMA": (0x8000, 0x0401),
        "SDMA": (0x9000, 0x0401),
        "GLOBAL": (0xF000, 0x0081),
    }
    for reg in ALL:
        assert 0 <= reg.offset < reg.block.size and reg.offset % 4 == 0
        assert getattr(UNITS[reg.block.module], reg.__name__) is reg


def test_reset_values() -> None:
    resets = {f"{r.block.name}.{r.__name__}": r.reset for r in ALL if r.reset}
    assert resets == {
        "PC.VERSION": 0x4649_5245,
        "PC.INTERRUPT_MASK": 0x1_FFFF,
        "CORE.MAC_GATING": 0x0780_0800,
    }
    assert core.MAC_GATING().word == core.MAC_GATING.reset  # anything else stops the array


@pytest.mark.parametrize(
    ("write", "word"),
    [  # words that vendor or Mesa lists hold, or that ran on a board
        (cna.CONV_CON1(in_precision=FP16, proc_precision=FP16), 0x120),
        (cna.DATA_SIZE1(datain_channel=64, datain_channel_real=64), 0x003F_0040),
        (cna.DMA_CON2(surf_stride=-3), 0x0FFF_FFFD),
        (cna.CONV_CON3(conv_x_stride=1, conv_y_stride=1), 9),
        (cna.CONV_CON2(feature_grains=65), 0x410),
        (cna.CVT_CON0(cvt_bypass=1, cvt_type=1, data_sign=1), 0xB),
        (core.DATAOUT_SIZE_0(dataout_width=1, dataout_height=64), 63 << 16),
        (dpu.DATA_FORMAT(proc_precision=FP16, in_precision=FP16, out_precision=FP16), 0x4800_0002),
        (
            dpu.DATA_FORMAT(proc_precision=FP16, in_precision=FP16, out_precision=Precision.FP32),
            0xA800_0002,
        ),
        (dpu.DST_SURF_STRIDE(dst_surf_stride=64), 64 << 4),
        (dpu.FEATURE_MODE_CFG(flying_mode=1, output_mode=2, burst_len=15), 0x1E5),
        (dpu.BS_CFG(bs_bypass=1, bs_alu_bypass=1, bs_mul_bypass=1, bs_relu_bypass=1), 0x53),
        (
            dpu.BS_CFG(bs_mul_bypass=1, bs_relu_bypass=1, bs_alu_src=1, bs_alu_algo=Algo.ADD),
            0x20150,
        ),
        (dpu.BS_OW_CFG(od_bypass=1, size_e_0=7, size_e_1=7, size_e_2=7), 0x7FE),
        (
            dpu.EW_CFG(
                ew_op_src=1,
                ew_lut_bypass=1,
                ew_relu_bypass=1,
                ew_alu_algo=Algo.ADD,
                edata_size=2,
                ew_data_mode=1,
            ),
            0x1082_02C0,
        ),
        (dpu.OUT_CVT_SCALE(out_cvt_scale=1, fp32tofp16_en=1), 0x10001),
        (dpu.OUT_CVT_SHIFT(minus_exp=15, cvt_type=1), 1 << 31 | 15 << 12),
        (dpu.LUT_INFO(lut_le_index_select=5, lut_lo_index_select=5), 0x50500),
        (dpu.LUT_LE_START(lut_le_start=-16384), 0xFFFF_C000),
        (dpu_rdma.RDMA_ERDMA_CFG(erdma_data_mode=1, erdma_data_size=2), 0x4000_0008),
        (
            dpu_rdma.RDMA_FEATURE_MODE_CFG(mrdma_fp16tofp32_en=1, mrdma_disable=1, burst_len=15),
            0x7818,
        ),
        (ppu.RECIP_KERNEL_WIDTH(recip_kernel_width=0x7800), 0x7800),
        (
            ppu.POOLING_KERNEL_CFG(
                kernel_width=2, kernel_height=2, kernel_stride_width=2, kernel_stride_height=2
            ),
            0x0011_0101,
        ),
    ],
    ids=lambda v: type(v).__name__ if isinstance(v, Register) else hex(v),
)
def test_known_words(write: Register, word: int) -> None:
    assert write.word == word


# Commands and the tail.


def test_command_word() -> None:
    assert encode(cna.PAD_CON0(pad_top=1, pad_left=2)) == 0x0201_0000_0021_1068
    assert assemble([pc.BASE_ADDRESS(pc_source_addr=0x1000)]).hex() == "1000001000000101"
    assert encode(Marker()) == 0x0041 << 48
    assert encode(Nop()) == 0
    assert encode(Start(global_.OPERATION_ENABLE(dpu_op_en=1, dpu_rdma_op_en=1))) == (
        0x0081_0000_0018_0008
    )


@pytest.mark.parametrize(
    ("body", "amount"), [(108, 55), (13, 8), (12, 7), (17, 10), (69, 36), (126, 64), (122, 62)]
)
def test_fetch_amount_as_in_vendor_lists(body: int, amount: int) -> None:
    assert fetch_amount(body + TAIL_WORDS) == amount


@given(st.integers(1, 100_000))
def test_fetch_amount_covers_the_task_and_agrees_with_both_drivers(words: int) -> None:
    amount = fetch_amount(words)
    assert words <= 2 * (amount + 1) <= words + 1
    assert amount == (words + 1) // 2 - 1  # Linux rocket, from the whole task
    if words >= TAIL_WORDS:
        assert amount == (words - TAIL_WORDS + 4 + 2 - 1) // 2 - 1  # vendor rknpu, from the body


def test_tail_of_a_chained_task() -> None:
    link, amount, marker, start = tail(0x1D, next_iova=0x1_0400, next_words=126)
    assert encode(link) == 0x0101_0001_0400_0010
    assert encode(amount) == 0x0101_0000_003E_0014
    assert encode(marker) == 0x0041_0000_0000_0000
    assert encode(start) == 0x0081_0000_001D_0008


def test_tail_of_the_last_task() -> None:
    assert [encode(w) for w in tail(0x60)] == [
        0,
        0x0101_0000_0000_0014,
        0x0041_0000_0000_0000,
        0x0081_0000_0060_0008,
    ]


@given(st.lists(st.integers(5, 200), min_size=1, max_size=8))
def test_a_chain_leads_from_task_to_task(lengths: list[int]) -> None:
    """Follow the links as the program controller does: it must see every task, each in full."""
    starts = list(
        itertools.accumulate((n * WORD_BYTES + 63 & ~63 for n in lengths), initial=0x1000)
    )
    memory = bytearray(starts[-1])
    for i, n in enumerate(lengths):
        more = i + 1 < len(lengths)
        end = tail(0x1D, starts[i + 1], lengths[i + 1]) if more else tail(0x1D)
        body = [cna.PAD_CON0()] * (n - TAIL_WORDS)
        memory[starts[i] : starts[i] + n * WORD_BYTES] = assemble([*body, *end])

    at, amount, seen = starts[0], fetch_amount(lengths[0]), []
    while at:
        fetched = memory[at : at + 2 * (amount + 1) * WORD_BYTES]
        writes = list(disassemble(bytes(fetched)))
        assert any(isinstance(w, Start) for w in writes)
        seen.append(at)
        links = [w for w in writes if isinstance(w, pc.BASE_ADDRESS)]
        (amount,) = [w.pc_data_amount for w in writes if isinstance(w, pc.REGISTER_AMOUNTS)]
        at = links[0].pc_source_addr if links else 0
    assert seen == starts[:-1]


# Exports.


def test_exports_are_current() -> None:
    assert not export.stale(ROOT), "run python -m opennpu.hw.export"


def test_check_fails_on_a_stale_export(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert export.main(["--check", "--root", str(tmp_path)]) == 1
    assert "rkopnu_regs.h: stale" in capsys.readouterr().out
    assert export.main(["--root", str(tmp_path)]) == 0
    assert export.main(["--check", "--root", str(tmp_path)]) == 0
    (tmp_path / export.HEADER).write_text("edited")
    assert export.main(["--check", "--root", str(tmp_path)]) == 1


def test_xml_export_says_the_same() -> None:
    ns = "{http://nouveau.freedesktop.org/}"
    got = set()
    for domain in ET.fromstring(export.rules_ng()).iter(f"{ns}domain"):
        for reg in domain.iter(f"{ns}reg32"):
            for f in reg.iter(f"{ns}bitfield"):
                high, low = f.get("high", f.get("pos")), f.get("low", f.get("pos"))
                at = (domain.get("name"), reg.get("name"), int(str(reg.get("offset")), 16))
                got.add((*at, f.get("name"), int(str(high)), int(str(low))))
    assert got == {
        (r.block.name, r.__name__, r.address, n.upper(), f.high, f.low) for r, n, f in FIELDS
    }


def test_header_and_pages_name_every_field() -> None:
    header = export.c_header()
    pages = "".join(export.exports().values())
    for reg, name, f in FIELDS:
        mask = f"GENMASK({f.high}, {f.low})" if f.high > f.low else f"BIT({f.low})"
        define = f"#define RKOPNU_{reg.block.name}_{reg.__name__}__{name.upper()} {mask}\n"
        assert define in header
        assert f"`{name}`" in pages
    assert header.startswith("/* SPDX-License-Identifier: GPL-2.0 */\n")
    names = re.findall(r"#define (\w+)", header)
    assert len(names) == len(set(names))


def test_trust_is_counted() -> None:
    counts = export.trust_counts()
    assert sum(counts.values()) == len(FIELDS)
    assert all(counts[t] for t in Trust)
