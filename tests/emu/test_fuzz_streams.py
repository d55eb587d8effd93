"""Any command list: no exception, no stray access, no hang; strict and hardware mode agree.

Seeds of `fuzz.streams` whose outcome is checked there; a script runs a million of them.  What it
found is below, as the registers that did it.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuzz.streams import Case, Rig, Stream, Words, bases, make, shown
from opennpu.hw.regs import Register
from opennpu.hw.rk3588 import cna, core, dpu, dpu_rdma


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield Rig()


@given(seed=st.integers(min_value=0, max_value=1 << 40))
@settings(deadline=None, max_examples=200)
def test_any_broken_stream_is_run_or_refused(rig: Rig, seed: int) -> None:
    case = make(seed)
    assert rig.check(case) in ("done", "refused", "faults"), shown(case)


@given(words=st.lists(st.integers(0, (1 << 64) - 1), min_size=1, max_size=40))
@settings(deadline=None, max_examples=100)
def test_any_words_are_run_or_refused(rig: Rig, words: Words) -> None:
    stream = bases(False)[0]
    (start,) = stream.starts
    lists = [(start.iova, words)]
    rig.check(Case(stream, lists, [start._replace(words=len(words))], [], []))


def named(name: str) -> Stream:
    return next(s for s in bases(False) if s.name == name)


def with_registers(stream: Stream, *new: Register) -> Case:
    """The stream with these registers; those that it does not write come first."""
    lists = [(a, stream.words(a, n)) for a, n in stream.lists]
    for r in new:
        word = type(r).block.target << 48 | r.word << 16 | r.address
        for _, words in lists:
            places = [i for i, w in enumerate(words) if w & 0xFFFF == r.address]
            for i in places:
                words[i] = word
            if not places:
                words.insert(0, word)
    starts = [s._replace(words=len(w)) for s, (_, w) in zip(stream.starts, lists[:1], strict=False)]
    return Case(stream, lists, starts, [], [])


FOUND = {
    "no data bank at width 1": (
        "direct INT8",
        (
            cna.DATA_SIZE0(datain_width=1, datain_height=4),
            cna.FC_DATA_SIZE0(dma_width=1, dma_height=4),
            cna.DATA_SIZE2(dataout_width=1),
            cna.DATA_SIZE3(dataout_atomics=3),
            core.DATAOUT_SIZE_0(dataout_width=1, dataout_height=3),
            dpu.DATA_CUBE_WIDTH(width=1),
            dpu.DATA_CUBE_HEIGHT(height=3),
            dpu.WDMA_SIZE_1(width_wdma=1, height_wdma=3),
            dpu_rdma.RDMA_DATA_CUBE_WIDTH(width=1),
            dpu_rdma.RDMA_DATA_CUBE_HEIGHT(height=3),
            cna.CBUF_CON0(data_bank=0, weight_bank=6),
        ),
    ),
    "sums of more channels than CORE passes on": (
        "depthwise INT8",
        (
            core.DATAOUT_SIZE_1(dataout_channel=3),
            dpu.DATA_CUBE_CHANNEL(channel=3, orig_channel=3),
            dpu.WDMA_SIZE_0(channel_wdma=3),
            dpu_rdma.RDMA_DATA_CUBE_CHANNEL(channel=3),
            dpu.BS_OW_CFG(size_e_0=3, size_e_1=3, size_e_2=3),
            dpu.BS_OW_OP(ow_op=5),
        ),
    ),
    "float operands of one byte": (
        "fp16 notches",
        (dpu_rdma.RDMA_ERDMA_CFG(erdma_data_mode=1, erdma_data_size=1),),
    ),
}


@pytest.mark.parametrize("found", FOUND)
def test_found_by_the_script(rig: Rig, found: str) -> None:
    name, registers = FOUND[found]
    assert rig.check(with_registers(named(name), *registers)) == "refused"
