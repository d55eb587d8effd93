"""An activation in the task of the convolution before it (epilogue "call").

fp16: functions that one look-up computes, HardSigmoid and LeakyRelu, in the stages behind the
bias.  int8: any function of one tensor; BS scales sums to table indices, so that nothing is rounded
to int8 between the two.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from opennpu.hw.regs import Register
from opennpu.hw.rk3588 import dpu
from opennpu.hw.rk3588.common import Algo, Precision
from opennpu.ir.graph import Node
from opennpu.ops import _conv, _table
from opennpu.ops._conv import float_bits
from opennpu.ops._unary import _Unary
from opennpu.ops.base import OPS, Site
from opennpu.program import Task

FP16_LOOK_UPS = ("Sigmoid", "Tanh", "Erf")
FP16_SLOPES = ("LeakyRelu", "HardSigmoid")


def call_of(node: Node) -> Node | None:
    """The function in the node's epilogue, as a node of its own."""
    calls = [e for e in node.epilogue if e.kind == "call"]
    return (
        Node(node.name, calls[0].op, node.outputs, node.outputs, calls[0].attrs) if calls else None
    )


def behind(site: Site) -> tuple[_conv.Behind | None, _table.Table | None]:
    """What the stages behind the bias do for the epilogue's function.  Raises UnsupportedError."""
    call = call_of(site.node)
    if call is None:
        return None, None
    if len(site.node.epilogue) != 1:
        raise site.refuse(f"does {len(site.node.epilogue)} things behind its sum, 1 fits a table")
    op = OPS[call.op]
    if not issubclass(op, _Unary):
        raise AssertionError(f"{call.op} is no function of one tensor")
    if site.precision is Precision.INT8:
        reach, table = _table.int8_curve(site, op.function(call))
        return _conv.Behind(_table.registers(site.precision, table), reach / _table.REACH), table
    if call.op in FP16_LOOK_UPS:
        table = _table.fp16_table(op.curve(site.with_(node=call)))
        return _conv.Behind(_table.registers(site.precision, table)), table
    if call.op not in FP16_SLOPES:
        raise site.refuse(f"with {call.op} takes 2 tasks")
    return _conv.Behind(tuple(_slope(site, call))), None


def _slope(site: Site, call: Node) -> Iterator[Register]:
    """BN multiplies negative numbers, or multiplies, adds and clamps."""
    hard = call.op == "HardSigmoid"
    alpha = float(call.attrs.get("alpha", 0.2 if hard else 0.01))
    if not np.finfo(np.float16).tiny <= abs(alpha) <= _conv.FP16_MAX:
        raise site.refuse(f"has slope {alpha:g}, fp16 holds at most {_conv.FP16_MAX:g}")
    yield dpu.BN_MUL_CFG(bn_mul_operand=int(np.float16(alpha).view(np.uint16)))
    if not hard:
        yield dpu.BN_CFG(bn_alu_bypass=1, bn_mul_prelu=1, bn_relu_bypass=1)
        return
    yield dpu.BN_CFG(bn_relux_en=1, bn_alu_algo=Algo.ADD)
    yield dpu.BN_ALU_CFG(bn_alu_operand=float_bits(float(call.attrs.get("beta", 0.5))))
    yield dpu.BN_RELUX_CMP_VALUE(bn_relux_cmp_dat=float_bits(1.0))


def tasks(conv: _conv.Convolution) -> Iterator[Task]:
    """Tasks of a convolution, with the table of its epilogue's function."""
    _, table = behind(conv.site)
    for task in _conv.tasks(conv):
        yield _table.look_up(task, table) if table else task
