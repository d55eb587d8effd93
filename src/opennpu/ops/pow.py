"""Pow with a constant exponent: products in fp16, a table in int8."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy.typing as npt

from opennpu.errors import UnsupportedError
from opennpu.hw.rk3588.common import Precision
from opennpu.ir.graph import Node, Value
from opennpu.ops._table import Function
from opennpu.ops._unary import Build, _Unary, evaluate, quantized
from opennpu.ops.base import Expansion, Sample, Site

Array = npt.NDArray[Any]
FP16 = (Precision.FP16,)
MOST = 8  # largest exponent that is written out as products
OTHERS = {-1.0: "Reciprocal", 0.5: "Sqrt"}


def _refuse(node: Node, what: str) -> UnsupportedError:
    return UnsupportedError(node.name, f"Pow {what}", "It stays in onnxruntime")


class Pow(_Unary):
    samples = (
        Sample(((1, 16, 6, 7),), {"exponent": 2.0}),
        Sample(((2, 13, 5),), {"exponent": 3.0}, bound=3e-3),
        Sample(((3, 24),), {"exponent": 7.0}, bound=6e-3, span=(-1.2, 1.2)),
        Sample(((3, 24),), {"exponent": -1.0}, bound=4e-3, span=(0.5, 3.0)),
        Sample(((3, 24),), {"exponent": 1.7}, precisions=(Precision.INT8,), span=(0.0, 3.0)),
        Sample(((3, 24),), {"exponent": 1.7}, ok=False, precisions=FP16, span=(0.0, 3.0)),
    )

    @staticmethod
    def reference(node: Node, *inputs: Array) -> Array:
        """x: any shape, exponent: one number -> x ** exponent, float32."""
        exponent = (
            float(node.attrs["exponent"]) if len(inputs) < 2 else float(inputs[1].reshape(()))
        )
        return evaluate(lambda x: x**exponent, node, inputs[0])

    @classmethod
    def function(cls, node: Node) -> Function:
        exponent = float(node.attrs["exponent"])
        return lambda x: x**exponent

    @staticmethod
    def expand(
        node: Node, values: Mapping[str, Value], consts: Mapping[str, Array]
    ) -> Expansion | None:
        if "exponent" not in node.attrs:
            exponents = consts.get(node.inputs[1])
            if exponents is None or exponents.size != 1:
                count = "computed exponents" if exponents is None else f"{exponents.size} exponents"
                raise _refuse(node, f"has {count}, the NPU takes 1 constant one")
            attrs = {"exponent": float(exponents.reshape(()))}
            return Expansion((node.with_(inputs=node.inputs[:1], attrs=attrs),))
        if quantized(node, values):
            return None
        build, x, e = Build(node, values), node.inputs[0], float(node.attrs["exponent"])
        if e in OTHERS:
            build.add(OTHERS[e], x)
            return build.done()
        if e not in range(1, MOST + 1):
            raise _refuse(
                node,
                f"has exponent {e:g}, in fp16 the NPU takes 1 to {MOST}, -1 and 0.5: no table "
                "reaches over the powers of all numbers",
            )
        power, have = x, 1
        if e == 1:
            build.add("Mul", x, build.constant(1.0))
        for bit in f"{int(e):b}"[1:]:
            power, have = build.add("Mul", power, power), have * 2
            if bit == "1":
                power, have = build.add("Mul", power, x), have + 1
        return build.done()

    @classmethod
    def check_fp16(cls, site: Site) -> None:
        raise AssertionError("fp16 powers are expanded")
