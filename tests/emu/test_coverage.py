"""The coverage table cannot claim what no test ran (docs/make_coverage.py)."""

from __future__ import annotations

from emu_programs import Conv

from docs.make_coverage import complaints
from opennpu.emu.registers import Group
from opennpu.emu.violations import RULES
from opennpu.hw.rk3588.common import Precision
from tests.emu.modes import MODES
from tests.emu.recorder import Recorder, modes, switches


def full() -> Recorder:
    """As if one test had done everything."""
    r = Recorder()
    r.ran["all"] = {(m.unit, m.name, t) for m in MODES for t in m.types}
    r.broken["all"] = {(rule, how) for rule in RULES for how in ("strict", "hardware")}
    r.switched["all"] = {(name, str(v)) for name, _, readings in switches() for v in readings}
    return r


def test_every_row_needs_a_test() -> None:
    assert not list(complaints(full()))
    for m in MODES:
        for t in m.types:
            r = full()
            r.ran["all"].remove((m.unit, m.name, t))
            (told,) = complaints(r)
            assert told.startswith(f"{m.unit}, {m.name}, {t}: no test ran it")


def test_tests_of_rules_are_no_tests_of_modes() -> None:
    r = full()
    r.ran["tests/emu/test_rules.py::test_x"] = r.ran.pop("all")
    assert len(list(complaints(r))) == sum(len(m.types) for m in MODES)


def test_every_mode_that_ran_needs_a_row() -> None:
    r = full()
    r.ran["one"] = {("CNA", "cooking", "int8")}
    assert list(complaints(r)) == [
        "CNA, cooking, int8: a test ran it. Give it a row in tests/emu/modes.py"
    ]


def test_every_rule_and_every_switch_needs_a_test() -> None:
    r = full()
    r.broken["all"].remove(("cbuf.banks", "hardware"))
    r.switched["all"].remove(("int8_pad", "low_byte"))
    assert [t.partition(":")[0] for t in complaints(r)] == ["cbuf.banks", "Policy.int8_pad"]


def test_modes_are_read_from_the_registers() -> None:
    conv = Conv(Precision.INT8, 4, 4, 32, 32, (3, 3), pad=(1, 1), out=Precision.INT8)
    groups = {name: Group() for name in ("CNA", "CORE", "DPU", "DPU_RDMA")}
    for register in conv.body():
        groups[register.block.name].words[register.address] = register.word
    assert set(modes(groups)) == {
        ("CNA", "direct convolution", "int8"),
        ("CNA", "kernel above 1x1", "int8"),
        ("CNA", "padding with 0", "int8"),
        ("CNA", "cube, four lines at a time", "int8"),
        ("CORE", "exact integer sums", "int8"),
        ("DPU", "output types, from CORE", "int8 to int8"),
        ("DPU", "write: cube", "int8"),
    }
