"""CNA beyond plain cubes: packed pixels, the input converter, compressed weights, MAC gating."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from dcomp_encoder import compress
from emu_programs import CONV, Bench, Conv, W, X, reference
from hypothesis import given, settings
from hypothesis import strategies as st

from opennpu.emu import dcomp
from opennpu.errors import ViolationError
from opennpu.hw import layout
from opennpu.hw.regs import Register
from opennpu.hw.rk3588 import chip, cna, core
from opennpu.hw.rk3588.common import Precision

P = Precision
NUMPY = {P.INT8: np.int8, P.INT16: np.int16, P.FP16: np.float16, P.BF16: ml_dtypes.bfloat16}


# -- packed input (register notes B.5) -----------------------------------------------------------


def packed_body(conv: Conv, channels: int, line_px: int, *new: Register) -> list[Register]:
    return conv.body(
        cna.CONV_CON1(
            in_precision=conv.p,
            proc_precision=conv.p,
            argb_in=7 + channels,
            group_line_off=1,
            nonalign_dma=1,
        ),
        cna.DMA_CON1(line_stride=line_px),
        cna.DMA_CON2(surf_stride=line_px * (conv.h - 1)),
        *new,
    )


@pytest.mark.parametrize("p", [P.INT8, P.INT16, P.FP16, P.BF16])
@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_packed_pixels_lie_side_by_side(p: Precision, channels: int) -> None:
    """NHWC in memory, LINE_STRIDE in pixels, other lanes zero."""
    lanes = chip.elements_per_atom(p)
    conv = Conv(p, 5, 6, lanes, 32, (3, 3), pad=(1, 1))
    line = 16  # pixels: whole atoms for every type and channel count
    rng = np.random.default_rng(channels)
    x = rng.integers(-9, 9, (5, 6, channels)).astype(NUMPY[p])
    w = rng.integers(-9, 9, (32, 3, 3, lanes)).astype(NUMPY[p])
    bench = Bench()
    rows = np.zeros((5, line, channels), NUMPY[p])
    rows[:, :6] = x
    bench.put(X, rows)
    bench.put(W, layout.pack_weights(w, p, lanes))
    r = bench.run((packed_body(conv, channels, line), CONV))
    assert r.completed
    assert not r.warnings
    assert r.tasks[0].bytes_read["feature"] == x.nbytes
    wide = np.zeros((5, 6, lanes))
    wide[..., :channels] = x
    np.testing.assert_array_equal(conv.result(bench), reference(conv, wide, w))


def test_packed_rows_that_start_inside_an_atom_warn() -> None:
    conv = Conv(P.INT8, 4, 6, 16, 32)
    r = Bench().run((packed_body(conv, 3, 6), CONV))
    assert [v.rule for v in r.warnings] == ["cna.packed_rows"]


@pytest.mark.parametrize(
    "con1",
    [
        dict(argb_in=9),
        dict(argb_in=12, nonalign_dma=1, group_line_off=1),
        dict(argb_in=9, nonalign_dma=1),
        dict(nonalign_dma=1, group_line_off=1),
    ],
)
def test_half_a_packed_mode_is_refused(con1: dict[str, int]) -> None:
    conv = Conv(P.INT8, 4, 16, 16, 32)
    body = conv.body(cna.CONV_CON1(in_precision=P.INT8, proc_precision=P.INT8, **con1))
    with pytest.raises(ViolationError, match="cna.packed_input"):
        Bench().run((body, CONV))


# -- input converter (register notes B.8) --------------------------------------------------------


def converter(
    scale: tuple[int, ...],
    offset: tuple[int, ...],
    shift: tuple[int, ...],
    lanes: int,
    **con0: int,
) -> list[Register]:
    words = [
        r(**{f"cvt_scale{i}": scale[i], f"cvt_offset{i}": offset[i]})
        for i, r in enumerate((cna.CVT_CON1, cna.CVT_CON2, cna.CVT_CON3, cna.CVT_CON4))
    ]
    shifts = {f"cvt_truncate_{i}": n for i, n in enumerate(shift)}
    return [*words, cna.CVT_CON0(**shifts, **con0), cna.CVT_CON5(per_channel_cvt_en=lanes)]


def identity(conv: Conv, x: np.ndarray, *new: Register) -> np.ndarray:
    """What CORE sees of the first atom of channels: a 1x1 convolution with an identity."""
    w = np.zeros((conv.oc, 1, 1, conv.ic), np.int8)
    np.fill_diagonal(w[:, 0, 0, :], 1)
    bench = Bench()
    conv.load(bench, x, w)
    assert bench.run((conv.body(*new), CONV)).completed
    return conv.result(bench)


def test_mesa_uint8_pixels_become_signed() -> None:
    """Scale 16384, shift 14, offset -128, unsigned: y = x - 128 for all 256 bytes."""
    conv = Conv(P.INT8, 4, 4, 16, 32)
    x = np.arange(256, dtype=np.uint8).reshape(4, 4, 16)
    new = converter((16384,) * 4, (-128,) * 4, (14,) * 4, 0xFFFF)
    got = identity(conv, x.view(np.int8), *new)[..., :16]
    np.testing.assert_array_equal(got, x.astype(int) - 128)


@settings(max_examples=40, deadline=None)
@given(
    st.tuples(*[st.integers(-(2**15), 2**15 - 1)] * 4),
    st.tuples(*[st.integers(-300, 300)] * 4),
    st.tuples(*[st.integers(0, 20)] * 4),
    st.integers(0, 0xFFFF),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_converter_equals_integer_arithmetic(
    scale: tuple[int, ...],
    offset: tuple[int, ...],
    shift: tuple[int, ...],
    lanes: int,
    add_first: bool,
    ties_up: bool,
    signed: bool,
) -> None:
    x = np.random.default_rng(1).integers(-128, 128, (2, 3, 16)).astype(np.int8)
    con0 = dict(cvt_type=int(add_first), round_type=int(ties_up), data_sign=int(signed))
    new = converter(scale, offset, shift, lanes, **con0)
    got = identity(Conv(P.INT8, 2, 3, 16, 32), x, *new)
    for at, v in np.ndenumerate(x):
        c = at[2]
        want = int(v)
        if lanes >> c & 1:
            n = c % 4
            t = want if signed else want & 0xFF
            t = (t + offset[n] if add_first else t) * scale[n]
            floor, rest = t >> shift[n], t & (1 << shift[n]) - 1
            half = 1 << shift[n] >> 1
            if shift[n] and (rest > half or (rest == half and (ties_up or floor & 1))):
                floor += 1
            want = min(max(floor if add_first else floor + offset[n], -128), 127)
        assert got[at] == want


def test_converted_packed_pixels_leave_the_other_lanes_alone() -> None:
    """One channel of uint8, as Mesa reads a grey image: lanes 1..15 stay 0, padding is added."""
    conv = Conv(P.INT8, 3, 16, 16, 32, (3, 3), pad=(1, 1))
    x = np.random.default_rng(0).integers(0, 256, (3, 16, 1)).astype(np.uint8)
    w = np.random.default_rng(1).integers(-9, 9, (32, 3, 3, 16)).astype(np.int8)
    bench = Bench()
    bench.put(X, x)
    bench.put(W, layout.pack_weights(w, P.INT8, 16))
    zero = int.from_bytes(bytes([0x8B] * 4), "little", signed=True)
    new = [
        *converter((16384,) * 4, (-128,) * 4, (14,) * 4, 0xFFFF),
        cna.PAD_CON1(pad_value=zero),
    ]
    assert bench.run((packed_body(conv, 1, 16, *new), CONV)).completed
    wide = np.zeros((3, 16, 16))
    wide[..., 0] = x[..., 0].astype(int) - 128
    want = reference(conv, wide, w, 0x8B - 256)
    np.testing.assert_array_equal(conv.result(bench), want)


def test_floats_are_not_converted() -> None:
    with pytest.raises(ViolationError, match="cna.converter"):
        Bench().run((Conv(P.FP16, 2, 2, 16, 16).body(cna.CVT_CON0()), CONV))


# -- compressed weights (register notes B.11) ----------------------------------------------------


def compressed_body(conv: Conv, amounts: list[int], *new: Register) -> list[Register]:
    lanes = [r(**{f"dcomp_amount{i}": amounts[i]}) for i, r in enumerate(dcomp.AMOUNTS)]
    return conv.body(
        cna.DCOMP_CTRL(decomp_control=1),
        cna.DCOMP_REGNUM(dcomp_regnum=0x5555_5555),
        *lanes,
        *new,
    )


@pytest.mark.parametrize("spread", [0, 1, 3, 20, 127])
def test_compressed_weights_give_the_same_result(spread: int) -> None:
    conv = Conv(P.INT8, 3, 3, 64, 64)
    rng = np.random.default_rng(spread)
    x = rng.integers(-128, 128, (3, 3, 64)).astype(np.int8)
    w = np.clip(rng.normal(0, spread or 0.01, (64, 1, 1, 64)), -128, 127).astype(np.int8)
    bench = Bench()
    conv.load(bench, x, w)
    plain = bench.memory[W : W + 64 * 64].copy()
    stream, amounts = compress(plain)
    bench.put(W, np.zeros(0x8000, np.uint8))
    bench.put(W, stream)
    r = bench.run((compressed_body(conv, amounts), CONV))
    assert r.completed
    assert r.tasks[0].bytes_read["weight"] == 16 * sum(a + 1 for a in amounts)
    np.testing.assert_array_equal(conv.result(bench), reference(conv, x, w))
    if spread == 1:
        assert stream.size < 0.65 * plain.size


@settings(max_examples=30, deadline=None)
@given(st.binary(min_size=16, max_size=64), st.permutations(range(8)), st.integers(0, 255))
def test_any_bytes_survive_any_header(seed: bytes, widths: list[int], base: int) -> None:
    """The encoder may choose any base and any order of widths; the decoder follows."""
    rng = np.random.default_rng(list(seed))
    w = rng.integers(0, 256, 1024).astype(np.uint8)
    stream, amounts = compress(w, base, widths)
    bench = Bench()
    conv = Conv(P.INT8, 1, 1, 32, 32)
    x = np.ones((1, 1, 32), np.int8)
    bench.put(X, layout.pack_cube(x[None], P.INT8))
    bench.put(W, stream)
    assert bench.run((compressed_body(conv, amounts), CONV)).completed
    want = w.view(np.int8).reshape(32, 32).astype(int).sum(1)
    np.testing.assert_array_equal(conv.result(bench)[0, 0], want)


def test_each_lane_holds_its_words_of_every_block() -> None:
    lanes = dcomp.lane_bytes(2048)
    assert sorted(lanes.reshape(-1).tolist()) == list(range(2048))
    assert lanes[0, :8].tolist() == [0, 1, 2, 3, 64, 65, 66, 67]
    assert lanes[9, :4].tolist() == [36, 37, 38, 39]
    assert lanes[0, 32] == 512
    assert lanes[0, 64] == 1024


def test_a_lane_that_is_too_short_is_garbage() -> None:
    conv = Conv(P.INT8, 1, 1, 64, 64)
    w = np.random.default_rng(0).integers(0, 256, 4096).astype(np.uint8)
    stream, amounts = compress(w)
    short = [amounts[0], *(a for a in amounts[1:])]
    short[15] = 7
    for strict in (True, False):
        bench = Bench.of(strict=strict)
        bench.put(W, stream)
        if strict:
            with pytest.raises(ViolationError, match="cna.decompression_short"):
                bench.run((compressed_body(conv, short), CONV))
        else:
            r = bench.run((compressed_body(conv, short), CONV))
            assert r.completed
            assert (conv.result(bench).view(np.uint8) == 0xA5).all()


@pytest.mark.parametrize(
    "change",
    [
        cna.DCOMP_REGNUM(dcomp_regnum=0x1111_1111),
        cna.DCOMP_CTRL(decomp_control=2),
        cna.DCOMP_ADDR0(decompress_addr0=W + 16),
        cna.DCOMP_AMOUNT3(dcomp_amount3=6),
    ],
)
def test_other_compressed_formats_are_refused(change: Register) -> None:
    conv = Conv(P.INT8, 1, 1, 32, 32)
    stream, amounts = compress(np.zeros(1024, np.uint8))
    bench = Bench()
    bench.put(W, stream)
    with pytest.raises(ViolationError, match=r"\[cna.decompression\]"):
        bench.run((compressed_body(conv, amounts, change), CONV))


def test_the_bypass_bit_reads_plain_weights() -> None:
    conv = Conv(P.INT8, 1, 1, 32, 32)
    bench = Bench()
    x, w = np.ones((1, 1, 32), np.int8), np.full((32, 1, 1, 32), 3, np.int8)
    conv.load(bench, x, w)
    body = conv.body(cna.DCOMP_CTRL(decomp_control=1, wt_dec_bypass=1))
    assert bench.run((body, CONV)).completed
    assert (conv.result(bench) == 96).all()


# -- padding of 16-bit types ---------------------------------------------------------------------


@pytest.mark.parametrize(("p", "value"), [(P.INT16, -5), (P.BF16, 2.5), (P.FP16, -1.5)])
def test_sixteen_bit_types_pad_with_the_low_half(p: Precision, value: float) -> None:
    conv = Conv(p, 2, 3, 8, 16, (3, 3), pad=(1, 1))
    rng = np.random.default_rng(0)
    x = rng.integers(-9, 9, (2, 3, 8)).astype(NUMPY[p])
    w = rng.integers(-9, 9, (16, 3, 3, 8)).astype(NUMPY[p])
    bench = Bench()
    conv.load(bench, x, w)
    word = int(np.array([value]).astype(NUMPY[p]).view(np.uint16)[0])
    assert bench.run((conv.body(cna.PAD_CON1(pad_value=word)), CONV)).completed
    np.testing.assert_array_equal(conv.result(bench), reference(conv, x, w, value))


# -- MAC gating (board notes A.7) ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "gated"),
    [
        (0x0780_0800, ()),
        (0x0100_0800, range(8, 16)),
        (0x0180_0000, range(8)),
        (0x0100_0000, range(16)),
        (0xFFFF_FFFF, ()),
        (0x0180_0800, ()),  # bits 25 and 26 have no effect
    ],
)
def test_mac_gating_stops_halves_of_the_lanes(word: int, gated: range) -> None:
    conv = Conv(P.FP16, 2, 2, 16, 32)
    bench = Bench.of(strict=False)
    x, w = np.ones((2, 2, 16), np.float16), np.ones((32, 1, 1, 16), np.float16)
    conv.load(bench, x, w)
    r = bench.run((conv.body(core.MAC_GATING.decode(word)), CONV))
    assert r.completed
    assert [v.rule for v in r.violations] == ["core.mac_gating"] * bool(gated)
    result = conv.result(bench)
    for lane in range(32):
        same = (result[..., lane] == 16).all()
        assert same != (lane % 16 in gated)


@pytest.mark.parametrize("word", [0, 0x0680_0800])
def test_without_bit_24_the_job_never_completes(word: int) -> None:
    conv = Conv(P.FP16, 2, 2, 16, 16)
    r = Bench.of(strict=False).run((conv.body(core.MAC_GATING.decode(word)), CONV))
    assert not r.completed
    assert [v.rule for v in r.violations] == ["core.mac_gating_off"]
