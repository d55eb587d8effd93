"""SiLU, GELU, Softplus, Mish, Elu, Selu, Celu: functions that end in 0 and in a straight line.

fp16: f(x) = slope * max(x, 0) + rest(x), where the rest is small and ends in 0 on both sides: a
table holds it over the whole range of fp16.  Two tasks: the look-up, then the sum, whose ramp is
the ReLU of BS.  int8: one look-up.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from opennpu.errors import UnsupportedError
from opennpu.hw.rk3588 import dpu
from opennpu.hw.rk3588.common import Algo, Precision
from opennpu.ir.graph import Node, Value
from opennpu.ops import _flying
from opennpu.ops._conv import EDATA_SIZE, PER_PIXEL
from opennpu.ops._table import Curve, Function
from opennpu.ops._unary import Build, _Unary, erf, evaluate, quantized, sigmoid
from opennpu.ops.base import Expansion, Op, Sample, Site, image_view
from opennpu.program import Task, View

Array = npt.NDArray[Any]
BOUND = 8e-4  # of the largest result; half of it is the rounding to fp16
SELU_ALPHA, SELU_GAMMA = 1.67326319217681884765625, 1.05070102214813232421875  # ONNX defaults
MIN_REACH, MAX_REACH = 1.0, 1000.0
MAX_DEPTH = 16.0  # of the left end: the table's steps are parts of it, whatever x is


@dataclass(frozen=True, slots=True)
class Ramp:
    """A function that becomes 0, or a constant, on the left and slope * x on the right."""

    f: Function
    slope: float
    reach: float  # |x| from which on it is its ends, to 2**-15
    sign: int  # of f(x) - slope * max(x, 0)

    def rest(self, x: Array) -> Array:
        """What the table holds."""
        return np.asarray(self.f(x) - self.slope * np.maximum(x, 0))


def _gelu(x: Array) -> Array:
    return np.asarray(x * 0.5 * (1 + erf(x / np.sqrt(2))))


def _gelu_tanh(x: Array) -> Array:
    return np.asarray(0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))))


def _softplus(x: Array) -> Array:
    return np.asarray(np.logaddexp(0, x))


def _mish(x: Array) -> Array:
    return np.asarray(x * np.tanh(_softplus(x)))


def ramp_of(node: Node) -> Ramp:
    """The function of a node."""
    a = node.attrs
    alpha = float(a.get("alpha", SELU_ALPHA if node.op == "Selu" else 1.0))
    if node.op in ("Silu", "Swish"):
        return Ramp(lambda x: x * sigmoid(alpha * x), 1.0, 14 / alpha if alpha > 0 else -1, -1)
    if node.op == "Gelu":
        tanh = a.get("approximate", "none") in ("tanh", b"tanh")
        return Ramp(_gelu_tanh if tanh else _gelu, 1.0, 5.0, -1)
    if node.op == "Softplus":
        return Ramp(_softplus, 1.0, 11.0, 1)
    if node.op == "Mish":
        return Ramp(_mish, 1.0, 14.0, -1)
    sign = -1 if alpha >= 0 else 1
    if node.op == "Celu":

        def celu(x: Array) -> Array:
            return np.maximum(x, 0) + alpha * np.expm1(np.minimum(x, 0) / alpha)

        return Ramp(celu, 1.0, 11 * alpha, sign)
    gamma = float(a.get("gamma", SELU_GAMMA)) if node.op == "Selu" else 1.0

    def elu(x: Array) -> Array:
        return np.asarray(gamma * np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0))))

    return Ramp(elu, gamma, 11.0, sign if gamma > 0 else -sign)


class Silu(_Unary):
    names = ("Silu", "Swish", "Gelu", "Softplus", "Mish", "Elu", "Selu", "Celu")
    samples = (
        Sample(((1, 16, 6, 7),), op="Silu", bound=BOUND),
        Sample(((2, 13, 9, 5),), op="Silu", bound=BOUND),
        Sample(((3, 50, 24),), op="Gelu", bound=BOUND),
        Sample(((5, 40),), {"approximate": "tanh"}, op="Gelu", bound=BOUND),
        Sample(((1, 8, 5),), op="Softplus", bound=BOUND),
        Sample(((1, 20, 12, 12),), op="Mish", bound=BOUND),
        Sample(((1, 16, 6, 7),), {"alpha": 0.5}, op="Elu", bound=BOUND),
        Sample(((2, 3, 4, 3, 2),), op="Selu", bound=BOUND),
        Sample(((1, 16, 6, 7),), {"alpha": 2.0}, op="Celu", bound=BOUND),
        Sample(
            ((1, 16, 6, 7),), {"alpha": 65504.0}, ok=False, op="Elu", precisions=(Precision.FP16,)
        ),
        Sample(
            ((1, 16, 6, 7),), {"alpha": 200.0}, ok=False, op="Celu", precisions=(Precision.FP16,)
        ),
    )

    @staticmethod
    def reference(node: Node, *inputs: Array) -> Array:
        """x: any shape -> the function of that name, float32."""
        return evaluate(Silu.function(node), node, inputs[0])

    @classmethod
    def function(cls, node: Node) -> Function:
        return ramp_of(node).f

    @staticmethod
    def expand(
        node: Node, values: Mapping[str, Value], consts: Mapping[str, Array]
    ) -> Expansion | None:
        if quantized(node, values):
            return None
        ramp, x = ramp_of(node), node.inputs[0]
        if not MIN_REACH / 16 <= ramp.reach <= MAX_REACH or not 0 < ramp.slope < MAX_REACH:
            raise UnsupportedError(
                node.name,
                f"{node.op} is curved up to |x| = {ramp.reach:g} and has slope {ramp.slope:g}, "
                f"its table reaches {MAX_REACH:g}",
                "It stays in onnxruntime",
            )
        with np.errstate(all="ignore"):
            depth = float(np.abs(ramp.f(np.array([-MAX_REACH]))).max())
        if not depth <= MAX_DEPTH:
            raise UnsupportedError(
                node.name,
                f"{node.op} falls to {depth:g} on the left, its table is exact enough to "
                f"{MAX_DEPTH:g}",
                "It stays in onnxruntime",
            )
        build = Build(node, values)
        rest = build.add("RampRest", x, of=node.op, **dict(node.attrs))
        build.add("RampSum", x, rest, slope=ramp.slope)
        return build.done()


class RampRest(_Unary):
    """What remains of a function without its ramp; a step of the expansions above."""

    precisions = (Precision.FP16,)

    @staticmethod
    def reference(node: Node, *inputs: Array) -> Array:
        """x: any shape -> f(x) - slope max(x, 0), float32."""
        return evaluate(RampRest.function(node), node, inputs[0])

    @classmethod
    def function(cls, node: Node) -> Function:
        return _whole(node).rest

    @classmethod
    def curve(cls, site: Site) -> Curve:
        ramp = _whole(site.node)
        reach = max(ramp.reach, MIN_REACH)
        return Curve(ramp.rest, -reach, reach, ramp.sign)


def _whole(node: Node) -> Ramp:
    return ramp_of(node.with_(op=str(node.attrs["of"])))


class RampSum(Op):
    """slope max(a, 0) + b; the other step."""

    precisions = (Precision.FP16,)

    @staticmethod
    def reference(node: Node, *inputs: Array) -> Array:
        """a, b: any shape -> slope max(a, 0) + b, float32."""
        return np.asarray(float(node.attrs["slope"]) * np.maximum(inputs[0], 0) + inputs[1])

    @staticmethod
    def check(site: Site) -> None:
        a, b = site.inputs
        assert a is not None and b is not None
        if a.shape != b.shape:
            raise site.refuse(f"adds {list(b.shape)} to {list(a.shape)}")

    @staticmethod
    def views(site: Site) -> tuple[tuple[View | None, ...], View]:
        view = site.x.view or image_view(site.x.shape)
        return (view, view), view

    @classmethod
    def input_rooms(cls, site: Site, room: int) -> tuple[int, ...]:
        return room, room

    @classmethod
    def tasks(cls, site: Site) -> Iterator[Task]:
        a, b = site.inputs
        assert a is not None and b is not None
        slope = float(site.node.attrs["slope"])
        stages = _flying.Stages(
            (
                dpu.BS_CFG(bs_alu_bypass=1, bs_mul_bypass=slope == 1.0),
                dpu.BS_MUL_CFG(bs_mul_operand=int(np.float16(slope).view(np.uint16))),
                dpu.EW_CFG(
                    ew_op_src=1,
                    ew_lut_bypass=1,
                    ew_relu_bypass=1,
                    ew_alu_algo=Algo.ADD,
                    edata_size=EDATA_SIZE[site.precision],
                    ew_data_mode=PER_PIXEL,
                ),
            )
        )
        return _flying.tasks(site, stages, _flying.flat_pieces(a, b, site.output), site.output)
