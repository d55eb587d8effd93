"""Sums and roundings, against integers and fractions."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opennpu.emu import numerics


def fp32_of(value: Fraction) -> np.float32:
    """The fp32 nearest to ``value``, ties to even; by integer arithmetic."""
    if value == 0:
        return np.float32(0)
    sign, size = (-1 if value < 0 else 1), abs(value)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    if size < Fraction(2) ** exponent:
        exponent -= 1
    quantum = Fraction(2) ** (max(exponent, -126) - 23)
    steps, rest = divmod(size, quantum)
    steps = int(steps)
    if rest * 2 > quantum or (rest * 2 == quantum and steps % 2):
        steps += 1
    return np.float32(sign * float(steps * quantum))


def group(x: list[float], w: list[float], *, half: bool = True) -> np.float32:
    results = [
        numerics.exact_group(
            *(numerics.rows_of(np.array([v], np.float64), spanned) for v in (x, w)), half=half
        )
        for spanned in (False, True)
    ]
    np.testing.assert_array_equal(*results)
    return results[0][0, 0]


@pytest.mark.parametrize(
    ("x", "w", "bits"),
    [
        # 2**30 - 2**30 + 2**-24: sequential fp32 loses the small term
        ([2.0**15, 2.0**-24, -(2.0**15)], [2.0**15, 1, 2.0**15], 0x33800000),
        # 2**24 + 1: a tie, to even
        ([4096, 1], [4096, 1], 0x4B800000),
        # 2**24 + 3: a tie, to even above
        ([4096, 3], [4096, 1], 0x4B800002),
        # 2**24 + 1 + 2**-24: above the tie
        ([4096, 1, 2.0**-12], [4096, 1, 2.0**-12], 0x4B800001),
        # 2**24 + 1 + 2**-48: above the tie by less than float64 can hold
        ([4096, 1, 2.0**-24], [4096, 1, 2.0**-24], 0x4B800001),
        # 2**24 + 1 - 2**-48: below it
        ([4096, 1, -(2.0**-24)], [4096, 1, 2.0**-24], 0x4B800000),
        # -(2**24 + 3 + 2**-48)
        ([-4096, -3, -(2.0**-24)], [4096, 1, 2.0**-24], 0xCB800002),
        # the smallest product of subnormals is a normal fp32
        ([2.0**-24], [2.0**-24], 0x27800000),
        ([0.0, -1.0], [5.0, 0.0], 0x00000000),
    ],
)
def test_a_group_is_summed_exactly_and_rounded_once(
    x: list[float], w: list[float], bits: int
) -> None:
    for half in (True, False):
        assert group(x, w, half=half).view(np.uint32) == bits


halves = st.integers(0, 0xFFFF).map(lambda b: float(np.uint16(b).view(np.float16)))
finite = halves.filter(np.isfinite)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(finite, finite), min_size=1, max_size=32))
def test_group_equals_fractions(pairs: list[tuple[float, float]]) -> None:
    x, w = [p[0] for p in pairs], [p[1] for p in pairs]
    want = fp32_of(sum((Fraction(a) * Fraction(b) for a, b in pairs), Fraction(0)))
    assert group(x, w) == want
    assert group(x, w, half=False) == want


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_cancelling_groups_equal_fractions(data: st.DataObject) -> None:
    """x·w - x·w + tiny: every sum lands in the exact path."""
    pairs = data.draw(st.lists(st.tuples(finite, finite), min_size=1, max_size=10))
    tiny = data.draw(st.tuples(finite, finite))
    x = [p[0] for p in pairs] + [-p[0] for p in pairs] + [tiny[0]]
    w = [p[1] for p in pairs] * 2 + [tiny[1]]
    assert group(x, w) == fp32_of(Fraction(tiny[0]) * Fraction(tiny[1]))


def test_matrix_equals_row_by_row_exact_sums() -> None:
    rng = np.random.default_rng(1)
    x = (rng.standard_normal((50, 32)) * 4.0 ** rng.integers(-8, 6, (50, 32))).astype(np.float16)
    w = (rng.standard_normal((32, 40)) * 4.0 ** rng.integers(-8, 6, (32, 40))).astype(np.float16)
    a, b = x.astype(np.float64), w.astype(np.float64)
    want = numerics.exact_sums((a[:, :, None] * b[None]).transpose(0, 2, 1).reshape(-1, 32))
    for spanned in (False, True):
        rows = numerics.rows_of(a, spanned), numerics.rows_of(b.T, spanned)
        got = numerics.exact_group(*rows, half=True)
        np.testing.assert_array_equal(got.reshape(-1), want)


def test_infinities_and_nan_pass_through_a_group() -> None:
    inf, nan = float("inf"), float("nan")
    assert group([inf, 1], [1, 1]) == inf
    assert group([1, inf], [1, -2]) == -inf
    assert np.isnan(group([inf, -inf], [1, 1]))
    assert np.isnan(group([nan, 1], [0, 1]))
    assert np.isnan(group([inf, 1], [0, 1]))


wide_floats = st.tuples(st.integers(-(2**11), 2**11), st.integers(-60, 60))


@given(st.lists(st.tuples(wide_floats, wide_floats), min_size=1, max_size=8))
def test_spans_never_claim_too_much(pairs: list[tuple[tuple[int, int], tuple[int, int]]]) -> None:
    """Below EXACT every sum of any of the products, in any order, is one of float64."""
    x, w = (np.array([[m * 2.0**e for m, e in side]]) for side in zip(*pairs, strict=True))
    (a,), (b,) = (numerics.rows_of(v, True).spans for v in (x, w))
    products = [Fraction(p) * Fraction(q) for p, q in zip(x[0], w[0], strict=True)]
    if a * b < numerics.EXACT and any(products):
        quantum = min(
            Fraction(1, p.denominator) * (p.numerator & -p.numerator) for p in products if p
        )
        assert sum(map(abs, products)) / quantum < 2**53


def test_spans_of_common_data_are_small() -> None:
    """bf16 and fp16 noise is summed without a check; what float64 cannot hold is not."""
    rng = np.random.default_rng(4)
    noise = rng.standard_normal((64, 32)).astype(np.float32)
    bf16 = (noise.view(np.uint32) & 0xFFFF0000).view(np.float32).astype(np.float64)
    fp16 = noise.astype(np.float16).astype(np.float64)
    for values in (bf16, fp16):
        spans = numerics.rows_of(values, True).spans
        assert spans is not None and spans.max() ** 2 < numerics.EXACT
    edge = numerics.rows_of(np.array([[1.0, 2.0**-70], [0, 0]]), True).spans
    assert edge is not None and edge[0] == np.inf and edge[1] == 0
    infinite = numerics.rows_of(np.array([[np.inf, 1.0]]), True).spans
    assert infinite is not None and infinite[0] == np.inf


@pytest.mark.parametrize("shift", [1, 2, 7, 31, 47, 63])
@given(v=st.integers(-(2**47), 2**47))
def test_shift_right_rounds_as_integers_do(shift: int, v: int) -> None:
    floor, rest, half = v >> shift, v & (1 << shift) - 1, 1 << shift - 1
    even = floor + (rest > half or (rest == half and floor % 2 == 1))
    away = floor + (rest > half or (rest == half and v > 0))
    array = np.array([float(v)])
    assert numerics.shift_right(array, shift, "even")[0] == even
    assert numerics.shift_right(array, shift, "away")[0] == away


@pytest.mark.parametrize(
    ("code", "value"),
    [(0x7800, 0.5), (0x7C00, 1.0), (0x7400, 0.25), (0x6C00, 0.0625), (0, 0.0), (0x17800, -0.5)],
)
def test_fp17_codes(code: int, value: float) -> None:
    assert numerics.fp17(code) == value


@given(st.integers(-(2**40), 2**40))
def test_wrap32_is_twos_complement(v: int) -> None:
    want = (v + 2**31) % 2**32 - 2**31
    assert numerics.wrap32(np.array([float(v)]))[0] == want


@given(st.binary(min_size=4, max_size=64).filter(lambda b: len(b) % 4 == 0))
def test_tf32_drops_thirteen_bits(raw: bytes) -> None:
    from opennpu.hw.rk3588.common import Precision

    got = numerics.elements(np.frombuffer(raw, np.uint8), Precision.TF32)
    want = np.frombuffer(raw, np.uint32) & np.uint32(0xFFFFE000)
    np.testing.assert_array_equal(got.view(np.uint32), want)
