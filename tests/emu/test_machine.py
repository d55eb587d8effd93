"""Program controller, register groups, interrupts, and what keeps a core from finishing."""

from __future__ import annotations

import numpy as np
import pytest
from emu_programs import (
    CODE,
    CONV,
    FLYING,
    PING_PONG,
    POOL,
    Bench,
    Conv,
    X,
    Y,
    flying,
    pool,
    reference,
    replace,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from opennpu.emu.machine import Machine
from opennpu.emu.memory import AddressSpace
from opennpu.emu.numerics import Policy
from opennpu.emu.violations import RULES
from opennpu.errors import ViolationError
from opennpu.hw import regcmd
from opennpu.hw.regs import REGISTERS, Register
from opennpu.hw.rk3588 import cna, core, ddma, dpu, dpu_rdma, pc, ppu
from opennpu.hw.rk3588.common import Precision

P = Precision


def copy(n: int, src: int = X, dst: int = Y, *new: Register) -> list[Register]:
    """A flying int8 copy of ``n`` atoms."""
    return flying(
        P.INT8,
        n,
        dpu_rdma.RDMA_SRC_BASE_ADDR(src_base_addr=src),
        dpu.DST_BASE_ADDR(dst_base_addr=dst),
        *new,
    )


def delta(src: int, dst: int) -> list[Register]:
    """Only pointers and addresses: everything else comes from the register group."""
    return [
        dpu.S_POINTER(**PING_PONG),
        dpu_rdma.RDMA_S_POINTER(**PING_PONG),
        dpu_rdma.RDMA_SRC_BASE_ADDR(src_base_addr=src),
        dpu.DST_BASE_ADDR(dst_base_addr=dst),
    ]


def filled(strict: bool = True) -> Bench:
    bench = Bench.of(strict=strict)
    bench.put(X, np.arange(1, 4097).astype(np.int64).astype(np.uint8) | 1)
    return bench


def atoms_written(bench: Bench, dst: int) -> int:
    return int((bench.memory[dst : dst + 0x1000].reshape(-1, 16) != 0).all(1).sum())


# -- register groups (board notes A.0) -----------------------------------------------------------


def test_a_delta_task_inherits_the_group_two_tasks_back() -> None:
    """F S D D: the first D copies as many atoms as F, the second as many as S."""
    bench = filled()
    dst = [Y + 0x1000 * i for i in range(4)]
    r = bench.run(
        (copy(7, X, dst[0]), FLYING),
        (copy(3, X, dst[1]), FLYING),
        (delta(X, dst[2]), FLYING),
        (delta(X, dst[3]), FLYING),
    )
    assert r.completed
    assert r.tasks_done == 4
    assert [atoms_written(bench, d) for d in dst] == [7, 3, 7, 3]


def test_without_ping_pong_a_delta_task_follows_the_task_before() -> None:
    bench = filled()
    off = dict(pointer_pp_clear=1, executer_pp_clear=1)
    still = (dpu.S_POINTER(**off), dpu_rdma.RDMA_S_POINTER(**off))
    dst = [Y + 0x1000 * i for i in range(3)]
    r = bench.run(
        (copy(7, X, dst[0], *still), FLYING),
        (copy(3, X, dst[1], *still), FLYING),
        (replace(delta(X, dst[2]), *still), FLYING),
    )
    assert r.completed
    assert [atoms_written(bench, d) for d in dst] == [7, 3, 3]


def test_groups_persist_over_jobs_until_reset() -> None:
    bench = filled()
    dst = [Y + 0x1000 * i for i in range(3)]
    bench.run((copy(7, X, dst[0]), FLYING), (copy(3, X, dst[1]), FLYING))
    assert bench.run((delta(X, dst[2]), FLYING)).completed
    assert atoms_written(bench, dst[2]) == 7
    bench.machine.reset(0)
    with pytest.raises(ViolationError):
        bench.run((delta(X, dst[2]), FLYING))


def test_units_that_do_not_start_keep_their_groups() -> None:
    """A conv chain with a flying task in between: CNA alternates on its own."""
    conv = Conv(P.INT8, 2, 2, 16, 32)
    bench = Bench()
    x = np.ones((2, 2, 16), np.int8)
    w = np.ones((32, 1, 1, 16), np.int8)
    conv.load(bench, x, w)
    r = bench.run((conv.body(), CONV), (copy(1, X, Y + 0x8000), FLYING), (conv.body(), CONV))
    assert r.completed
    np.testing.assert_array_equal(conv.result(bench), reference(conv, x, w))
    cna_groups = [r.interrupt_raw >> b & 1 for b in (0, 1)]
    assert cna_groups == [1, 1]


# -- interrupts ----------------------------------------------------------------------------------


def test_interrupt_bits_alternate_with_the_group() -> None:
    bench = filled()
    assert bench.run((copy(1), FLYING)).interrupt_raw == 0x100
    assert bench.run((copy(1), FLYING)).interrupt_raw == 0x200
    both = bench.run((copy(1), FLYING), (copy(1), FLYING))
    assert both.interrupt_raw == 0x300


def test_each_unit_raises_its_own_bits() -> None:
    conv = Conv(P.INT8, 2, 2, 16, 32)
    bench = Bench()
    r = bench.run((conv.body(), CONV))
    assert r.interrupt_raw == 0b01_01_01_01_01
    window = (
        ppu.POOLING_KERNEL_CFG(
            kernel_width=1, kernel_height=1, kernel_stride_width=1, kernel_stride_height=1
        ),
        ppu.OPERATION_MODE_CFG(pooling_method=1, flying_mode=1),
    )
    r = bench.run((pool(P.INT8, (2, 2), (2, 2), *window), POOL), mask=0xC00)
    assert r.interrupt_raw == 0x400
    assert r.completed


def test_a_mask_that_never_matches_does_not_complete() -> None:
    bench = filled(strict=False)
    r = bench.run((copy(1), FLYING), mask=0xC00)
    assert not r.completed
    assert r.interrupt_raw == 0x100
    assert r.interrupt_status == 0
    assert [v.rule for v in r.violations] == ["pc.no_interrupt"]
    with pytest.raises(ViolationError, match="pc.no_interrupt"):
        filled().run((copy(1), FLYING), mask=0xC00)


def test_mmio_start_is_what_both_drivers_do() -> None:
    """Steps of register notes A.8; the line rises, clearing drops it."""
    bench = filled()
    m = bench.machine
    bench.run((copy(5), FLYING))  # puts the code in place
    bench.memory[Y : Y + 0x100] = 0
    m.attach(1, bench.space)
    code_words = len(copy(5)) + regcmd.TAIL_WORDS
    pointer = 0xE | 1 << 28
    for offset, value in (
        (pc.BASE_ADDRESS.address, 1),
        (cna.S_POINTER.address, pointer),
        (core.S_POINTER.address, pointer),
        (pc.BASE_ADDRESS.address, CODE),
        (pc.REGISTER_AMOUNTS.address, (code_words + 1) // 2 - 1),
        (pc.INTERRUPT_MASK.address, 0x300),
        (pc.INTERRUPT_CLEAR.address, 0x300),
        (pc.TASK_CON.address, 0x7001),
        (pc.TASK_DMA_BASE_ADDR.address, 0),
        (pc.OPERATION_ENABLE.address, 1),
        (pc.OPERATION_ENABLE.address, 0),
    ):
        m.write_register(1, offset, value)
    assert m.irq(1)
    assert m.read_register(1, pc.INTERRUPT_RAW_STATUS.address) == 0x100
    assert m.read_register(1, pc.INTERRUPT_STATUS.address) == 0x100
    assert m.read_register(1, pc.TASK_STATUS.address) & 0xFFF == 1
    m.write_register(1, pc.INTERRUPT_CLEAR.address, 0x1FFFF)
    assert not m.irq(1)
    assert atoms_written(bench, Y) == 5
    assert m.last_result(1).completed


def test_identification_and_pointer_read_back() -> None:
    m = Machine()
    version = m.read_register(0, pc.VERSION.address)
    assert version == 0x46495245
    assert version + m.read_register(0, pc.VERSION_NUM.address) == 1179210309
    m.write_register(0, cna.S_POINTER.address, 0x1E)
    assert m.read_register(0, cna.S_POINTER.address) == 0xE  # clear bits clear themselves
    assert m.read_register(0, pc.INTERRUPT_MASK.address) == 0x1FFFF
    assert m.read_register(0, core.MAC_GATING.address) == 0x07800800


def test_slave_mode_starts_units_without_a_list() -> None:
    bench = filled()
    m = bench.machine
    m.attach(0, bench.space)
    for r in copy(4):
        m.write_register(0, r.address, r.word)
    m.write_register(0, 0xF008, FLYING)
    assert atoms_written(bench, Y) == 4
    assert m.last_result(0).completed


# -- lists ---------------------------------------------------------------------------------------


def test_task_number_is_the_true_stop() -> None:
    bench = filled()
    r = bench.run((copy(1), FLYING), (copy(1, X, Y + 0x1000), FLYING), task_number=1)
    assert r.completed
    assert r.tasks_done == 1
    assert atoms_written(bench, Y + 0x1000) == 0


def test_a_list_that_ends_early_is_a_violation_and_stays_silent_on_silicon() -> None:
    r = filled(strict=False).run((copy(1), FLYING), task_number=2)
    assert not r.completed
    assert r.tasks_done == 1
    assert [v.rule for v in r.violations] == ["pc.list_ended"]
    with pytest.raises(ViolationError, match="TASK_NUMBER is 2"):
        filled().run((copy(1), FLYING), task_number=2)


@pytest.mark.parametrize(
    ("core_number", "word", "hangs"),
    [
        (0, 0xE, False),
        (1, 0xE, True),
        (0, 0x1000_0030, True),
        (1, 0x1000_0030, False),
        (1, 0x30, True),
    ],
)
def test_cna_pointer_needs_the_core_bits(core_number: int, word: int, hangs: bool) -> None:
    body = [cna.S_POINTER.decode(word), *copy(1)]
    r = filled(strict=False).run((body, FLYING), core=core_number)
    assert r.completed != hangs
    assert [v.rule for v in r.violations] == ["pointer.core_bits"] * hangs
    if hangs:
        with pytest.raises(ViolationError, match="pointer.core_bits"):
            filled().run((body, FLYING), core=core_number)


def test_a_wedged_core_needs_a_reset_and_the_others_go_on() -> None:
    bench = filled(strict=False)
    assert not bench.run((copy(1), FLYING), task_number=2).completed
    again = bench.run((copy(1), FLYING))
    assert [v.rule for v in again.violations] == ["pc.wedged"]
    assert bench.run((copy(1), FLYING), core=1).completed
    bench.machine.reset(0)
    assert bench.run((copy(1), FLYING)).completed


def test_strict_errors_leave_a_usable_core() -> None:
    bench = filled()
    with pytest.raises(ViolationError):
        bench.run((copy(1), FLYING), task_number=2)
    assert bench.run((copy(1), FLYING)).completed


@pytest.mark.parametrize(
    ("body", "start"),
    [
        (copy(1), 0x08),  # flying DPU without its read DMA
        (copy(1), 0x10),
        (copy(1), 0x1D),  # CORE runs, nobody takes its output
        (Conv(P.INT8, 2, 2, 16, 32).body(), 0x05),
        (Conv(P.INT8, 2, 2, 16, 32).body(), 0x18),  # DPU waits for CORE
        (copy(1), 0x20),
    ],
)
def test_a_unit_without_its_partner_never_finishes(body: list[Register], start: int) -> None:
    r = filled(strict=False).run((body, start))
    assert not r.completed
    assert r.violations[0].rule in ("start.incomplete", "dpu_rdma.comb_use")
    with pytest.raises(ViolationError):
        filled().run((body, start))


def test_plain_convolution_may_leave_dpu_rdma_out() -> None:
    conv = Conv(P.INT8, 2, 2, 16, 32)
    bench = Bench()
    x, w = np.ones((2, 2, 16), np.int8), np.ones((32, 1, 1, 16), np.int8)
    conv.load(bench, x, w)
    trap = conv.body(dpu_rdma.RDMA_FEATURE_MODE_CFG())  # harmless: the unit is not started
    assert bench.run((trap, 0x0D)).completed
    np.testing.assert_array_equal(conv.result(bench), reference(conv, x, w))


def test_list_fetch_fault_is_a_read_error() -> None:
    bench = filled()
    r = bench.machine.run(0, bench.space, 0x5000_0000, 10)
    assert r.fault is not None
    assert r.fault.unit == "PC"
    assert not r.completed
    assert r.interrupt_raw == 0x1000


def test_odd_words_warn() -> None:
    wrong_target = regcmd.Raw(0x0801 << 48 | dpu.OFFSET_PEND.address)
    unknown = regcmd.Raw(0x1001 << 48 | 0x4FFC)
    bench = filled()
    r = bench.run(([*copy(1), wrong_target, unknown], FLYING))  # type: ignore[list-item]
    assert r.completed
    assert [v.rule for v in r.warnings] == ["pc.target", "pc.unknown_register"]


def test_records_count_bytes_and_cycles() -> None:
    conv = Conv(P.FP16, 4, 4, 32, 16)
    bench = Bench()
    r = bench.run((conv.body(), CONV))
    (task,) = r.tasks
    assert task.units == ("CNA", "CORE", "DPU", "DPU_RDMA")
    assert task.macs == 16 * 32 * 16
    assert task.mac_cycles == 16
    assert task.bytes_read["feature"] == 16 * 64
    assert task.bytes_read["weight"] == 16 * 64
    assert task.bytes_written == {"output": 16 * 16 * 4}
    assert r.cycles == task.cycles > task.mac_cycles


def test_every_reported_rule_is_in_the_table_and_every_rule_has_a_remedy() -> None:
    for name, rule in RULES.items():
        assert "." in name
        assert rule.remedy
        assert rule.source
        assert not rule.remedy.endswith(".")


# -- any bytes -----------------------------------------------------------------------------------

SMALL = Policy(max_macs=1 << 20, max_bytes=1 << 20, max_task_bytes=1 << 18, max_words=1 << 12)
ALL_REGISTERS = [r for a, r in REGISTERS.items() if cna.CNA.base <= a < ddma.DDMA.base]
words = st.one_of(
    st.integers(0, 2**64 - 1),
    st.builds(
        lambda r, v: r.block.target << 48 | v << 16 | r.address,
        st.sampled_from(ALL_REGISTERS),
        st.one_of(st.integers(0, 2**32 - 1), st.integers(0, 255)),
    ),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(words, max_size=30), st.sampled_from([CONV, 0x0D, FLYING, POOL, 0x7F]), st.data())
def test_any_list_ends_and_stays_inside_its_memory(
    soup: list[int], start: int, data: st.DataObject
) -> None:
    """Random words mixed into a valid program, in hardware mode: no crash, no endless run."""
    base = data.draw(
        st.sampled_from(
            [
                [],
                Conv(P.INT8, 5, 5, 32, 32, (3, 3)).body(),
                Conv(P.FP16, 5, 5, 32, 16).body(),
                Conv(P.FP16, 4, 4, 32, 1, (3, 3), depthwise=True).body(),
                copy(4),
                pool(P.FP16, (4, 4), (2, 2)),
            ]
        )
    )
    code = [regcmd.encode(r) for r in base] + soup
    code += [regcmd.encode(w) for w in regcmd.tail(start)]
    whole = np.full(0x22000, 0x5A, np.uint8)
    memory = whole[0x1000:0x21000]
    memory[:] = 0
    space = AddressSpace()
    space.map(0, memory)
    memory[CODE : CODE + 8 * len(code)] = np.array(code, np.uint64).view(np.uint8)
    m = Machine(cores=1, policy=SMALL, strict=False)
    for _ in range(2):
        r = m.run(0, space, CODE, len(code), task_number=data.draw(st.integers(1, 3)))
        assert r.completed or r.violations or r.fault
    assert (whole[:0x1000] == 0x5A).all()
    assert (whole[0x21000:] == 0x5A).all()


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=400), st.integers(0, 4095))
def test_any_bytes_as_a_list(raw: bytes, number: int) -> None:
    memory = np.zeros(0x8000, np.uint8)
    memory[CODE : CODE + len(raw)] = np.frombuffer(raw, np.uint8)
    space = AddressSpace()
    space.map(0, memory)
    m = Machine(cores=1, policy=SMALL, strict=False)
    r = m.run(0, space, CODE, len(raw) // 8 + 1, task_number=number)
    assert not r.completed or number
