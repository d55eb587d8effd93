"""The look-up tables: over every fp16 number, over every int8 code, and loaded when needed."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from opennpu.compile import lower
from opennpu.hw import regcmd
from opennpu.hw.rk3588 import chip, dpu
from opennpu.ir.graph import Graph, Node, Quant, Value
from opennpu.ops import OPS, Target, _table
from opennpu.passes.partition import NpuUnit, place
from opennpu.program import NpuSegment, Program, Task, ValueInfo
from opennpu.runtime.session import InferenceSession

Array = npt.NDArray[Any]
ALL = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
FINITE = ALL[np.isfinite(ALL)].astype(np.float32)
CODES = np.arange(-128, 128)

# operator, attributes, error allowed: of the result from 1 up, of 1 below
FP16: tuple[tuple[str, dict[str, Any], float], ...] = (
    ("Sigmoid", {}, 5e-4),
    ("Tanh", {}, 5e-4),
    ("Erf", {}, 5e-4),
    ("Silu", {}, 8e-4),
    ("Silu", {"alpha": 1.702}, 8e-4),
    ("Gelu", {}, 8e-4),
    ("Gelu", {"approximate": "tanh"}, 8e-4),
    ("Softplus", {}, 8e-4),
    ("Mish", {}, 8e-4),
    ("Elu", {}, 8e-4),
    ("Elu", {"alpha": -0.5}, 8e-4),
    ("Selu", {}, 8e-4),
    ("Celu", {"alpha": 3.0}, 8e-4 * 2),
    ("HardSigmoid", {}, 8e-4),
    ("HardSwish", {}, 8e-4),
    ("LeakyRelu", {"alpha": 0.1}, 8e-4),
    ("Abs", {}, 0.0),
    ("Neg", {}, 0.0),
    ("Exp", {}, 5e-3),
)
INT8 = (
    *("Sigmoid", "Tanh", "Erf", "Silu", "Gelu", "Softplus", "Mish", "Elu", "Selu", "Celu"),
    *("HardSigmoid", "HardSwish", "LeakyRelu", "Abs", "Neg", "Exp", "Softsign"),
)


def compiled(nodes: list[Node], shape: tuple[int, ...], quants: dict[str, Quant]) -> NpuSegment:
    """A chain of nodes of one shape, from x to y."""
    names = ["x", *(o for n in nodes for o in n.outputs)]
    values = {n: Value(n, shape, quant=quants.get(n)) for n in names}
    placement = place(Graph("g", tuple(nodes), values, {}, ("x",), ("y",)), Target())
    units = [u for u in placement.units if isinstance(u, NpuUnit)]
    assert len(units) == len(nodes), placement.units
    return lower("npu0", units, {"y"}, placement)[0]


def run(segment: NpuSegment, x: Array) -> Array:
    """On the emulator."""
    info = ValueInfo("x", x.shape, "float32"), ValueInfo("y", x.shape, "float32")
    program = Program(info[:1], info[1:], (segment,), {})
    with InferenceSession(program, device="emulator") as session:
        (y,) = session.run(None, {"x": x})
    return y


@pytest.mark.parametrize(("op", "attrs", "bound"), FP16)
def test_error_is_bounded_over_all_of_fp16(op: str, attrs: dict[str, Any], bound: float) -> None:
    node = Node("n", op, ("x",), ("y",), attrs)
    x = FINITE.reshape(1, 8, 1, -1)
    got = run(compiled([node], x.shape, {}), x)
    with np.errstate(over="ignore"):
        want = OPS[op].reference(node, x)
        top = want > np.finfo(np.float16).max * (1 - bound)
    error = np.abs(got[~top] - want[~top]) / np.maximum(1, np.abs(want[~top]))
    assert error.max() <= bound
    assert (got[top] >= np.float32(np.finfo(np.float16).max) * (1 - 2 * bound)).all()


@pytest.mark.parametrize("op", INT8)
@pytest.mark.parametrize(("scale", "zero"), [(0.05, 0), (0.013, -70), (0.4, 127)])
def test_every_int8_code_is_exact(op: str, scale: float, zero: int) -> None:
    node = Node("n", op, ("x",), ("y",))
    quant_x = Quant(np.float32(scale).reshape(()), np.int32(zero).reshape(()))
    quant_y = Quant(np.float32(0.021).reshape(()), np.int32(-9).reshape(()))
    x = ((CODES - zero).astype(np.float32) * np.float32(scale)).reshape(1, 16, 4, 4)
    got = run(compiled([node], x.shape, {"x": quant_x, "y": quant_y}), x)
    with np.errstate(over="ignore"):
        codes = quant_y.quantize(OPS[op].reference(node, x))
    np.testing.assert_array_equal(got, (codes.astype(np.float32) + 9) * np.float32(0.021))


def uploads(segment: NpuSegment) -> list[int]:
    """Table words per task."""
    code = np.frombuffer(segment.code, "<u8")
    address = dpu.LUT_ACCESS_DATA.address
    counts = []
    for task in segment.tasks:
        words = code[task.word : task.word + task.words]
        counts.append(sum(int(w) & 0xFFFF == address & 0xFFFF for w in words))
    return counts


ENTRIES = 2 * chip.LUT_ENTRIES


def test_tables_are_loaded_once_per_change_and_never_right_behind_their_users() -> None:
    ops = ["Tanh", "Tanh", "Sigmoid", "Neg", "Tanh"]
    names = ["x", *"abcd", "y"]
    nodes = [Node(op + o, op, (i,), (o,)) for op, i, o in zip(ops, names, names[1:], strict=False)]
    segment = compiled(nodes, (1, 16, 4, 4), {})
    # a copy of one atom stands before Sigmoid: Tanh may still run when its words are fetched
    assert uploads(segment) == [ENTRIES, 0, 0, ENTRIES, 0, ENTRIES]
    assert [t.node for t in segment.tasks] == [
        *("Tanha", "Tanhb", "Sigmoidc", "Sigmoidc", "Negd", "Tanhy"),
    ]


def test_a_list_that_is_cut_loads_its_tables_in_every_task() -> None:
    task = Task("n", (), 0, 0, tables=bytes(ENTRIES * 2))
    some = _table.load_tables([task] * 100)
    many = _table.load_tables([task] * chip.TASKS_PER_START)
    assert [len(t.writes) > 0 for t in some].count(True) == 1
    assert sum(len(t.writes) >= ENTRIES for t in many) == chip.TASKS_PER_START


def test_the_words_of_a_table_are_the_port_s_words() -> None:
    table = _table.fp16_table(_table.Curve(np.tanh, -5.5, 5.5, 0))
    words = list(_table._upload(table.data))
    assert [type(w) for w in words[:2]] == [dpu.LUT_ACCESS_CFG, dpu.LUT_ACCESS_DATA]
    entries = [w.lut_access_data for w in words if isinstance(w, dpu.LUT_ACCESS_DATA)]
    assert entries == [*table.le, *table.lo]
    assert 0 not in np.array(entries) + table.offset
    assert regcmd.WORD_BYTES * len(words) == 8 * (ENTRIES + 2)
