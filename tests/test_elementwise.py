"""Two operands: what the samples of the operators cannot say."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from opennpu.compile import lower
from opennpu.ir.graph import Epilogue, Graph, Node, Quant, Value
from opennpu.ops import OPS, Target
from opennpu.passes.partition import NpuUnit, place
from opennpu.program import Program, ValueInfo
from opennpu.runtime.session import InferenceSession

Array = npt.NDArray[Any]
SHAPE = (1, 16, 3, 5)


def run(
    node: Node, feeds: dict[str, Array], consts: dict[str, Array], quant: Quant | None
) -> Array:
    """One node on the emulator; everything in one quantization, or none."""
    values = {n: Value(n, a.shape, quant=quant) for n, a in feeds.items()}
    values |= {n: Value(n, a.shape) for n, a in consts.items()}
    values["y"] = Value("y", SHAPE, quant=quant)
    placement = place(Graph("g", (node,), values, consts, tuple(feeds), ("y",)), Target())
    (unit,) = placement.units
    assert isinstance(unit, NpuUnit), unit.reason
    segment = lower("npu0", [unit], {"y"}, placement)[0]
    infos = tuple(ValueInfo(n, a.shape, "float32") for n, a in feeds.items())
    program = Program(infos, (ValueInfo("y", SHAPE, "float32"),), (segment,), {})
    with InferenceSession(program, device="emulator") as session:
        (y,) = session.run(None, feeds)
    return y


def numbers(seed: int, shape: tuple[int, ...] = SHAPE) -> Array:
    x = np.random.default_rng(seed).uniform(0.5, 2, shape)
    return x.astype(np.float16).astype(np.float32)


@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div", "Min", "Max"])
@pytest.mark.parametrize("const", [(), (16, 1, 1), (3, 5)])
@pytest.mark.parametrize("first", [False, True])
def test_a_constant_stands_on_either_side(op: str, const: tuple[int, ...], first: bool) -> None:
    names = ("c", "x") if first else ("x", "c")
    feeds, consts = {"x": numbers(0)}, {"c": numbers(1, const)}
    node = Node("n", op, names, ("y",))
    want = OPS[op].reference(node, *({**feeds, **consts}[n] for n in names))
    np.testing.assert_allclose(run(node, feeds, consts, None), want, rtol=1e-3)


@pytest.mark.parametrize("op", ["Add", "Sub", "Min", "Max"])
def test_int8_clamps_from_above_past_all_codes_change_nothing(op: str) -> None:
    quant = Quant(np.float32(1e-3).reshape(()), np.int32(-128).reshape(()))
    feeds = {n: quant.scale * np.arange(240, dtype=np.float32).reshape(SHAPE) for n in "ab"}
    plain = Node("n", op, ("a", "b"), ("y",))
    if op in ("Add", "Sub"):
        plain = plain.with_(epilogue=(Epilogue("clip", 0.0, 1e9),))
    want = np.clip(OPS[op].reference(plain, *feeds.values()), 0, 255 * quant.scale)
    got = run(plain, feeds, {}, quant)
    np.testing.assert_allclose(got, want, atol=1.01 * float(quant.scale))


def test_infinity_passes_through_neg() -> None:
    x = np.full(SHAPE, np.inf, np.float32)
    assert np.isneginf(run(Node("n", "Neg", ("x",), ("y",)), {"x": x}, {}, None)).all()
