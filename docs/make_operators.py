"""docs/reference/operators.md, made from the operators, their samples, and small models.

    python -m docs.make_operators            writes it into this checkout
    python -m docs.make_operators --check    fails if the file there is not what would be written

Units and tasks are those of compiled programs, reasons are the compiler's sentences: of the
tables nothing is typed by hand but the questions.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from opennpu.errors import UnsupportedError
from opennpu.hw.regs import Register
from opennpu.hw.rk3588 import chip, cna, dpu, global_, ppu
from opennpu.hw.rk3588.common import Precision
from opennpu.ops import OPS, Op
from opennpu.passes import PASSES
from opennpu.tools.check import check_model
from tests.opcase import Case

Array = npt.NDArray[Any]
PAGE = Path(__file__).parent / "reference" / "operators.md"
SHOWN = (Precision.FP16, Precision.INT8)


# -- operators -------------------------------------------------------------------------------


def operators() -> list[type[Op]]:
    """Each once, by name; those of other distributions are left out."""
    ours = {op for op in OPS.values() if op.__module__.startswith("opennpu.ops.")}
    return sorted(ours, key=lambda op: op.__name__)


def route(op: type[Op]) -> str:
    """How it is implemented."""
    ways = []
    if op.aliases:
        ways.append("view")
    elif op.check is not Op.check:
        ways.append("native")
    if op.expand is not Op.expand:
        ways.append("composite")
    return ", ".join(ways)


def units(op: type[Op]) -> str:
    """Units that the tasks of its accepted samples start."""
    if op.aliases:
        return "none"
    names: dict[str, None] = {}
    for sample in op.samples:
        if not sample.ok:
            continue
        for task in Case(op, sample, sample.precisions[0]).segment().tasks:
            start = global_.OPERATION_ENABLE.decode(task.units)
            on = [f for f in start.fields if getattr(start, f)]
            names |= dict.fromkeys(f.removesuffix("_op_en").upper() for f in on)
    return " ".join(names)


def samples(op: type[Op], precision: Precision) -> str:
    """How many samples of a precision the tests run."""
    if precision not in op.precisions:
        return "no"
    mine = [s for s in op.samples if precision in s.precisions]
    return f"{sum(s.ok for s in mine)} + {sum(not s.ok for s in mine)}"


def bound(op: type[Op]) -> str:
    """The largest error that its fp16 samples allow, of the largest result."""
    mine = [s.bound for s in op.samples if s.ok and Precision.FP16 in s.precisions]
    return f"{max(mine):.1g}" if mine else ""


def first_paragraph(thing: object) -> str:
    """Of a docstring, as Markdown."""
    text = (inspect.getdoc(thing) or "").split("\n\n")[0]
    return " ".join(text.replace("``", "`").split())


def operator_rows() -> Iterator[Sequence[str]]:
    counted = [p.name.lower() for p in SHOWN]
    yield "file", "ONNX operators", "route", "units", *counted, "fp16 error", "meaning"
    for op in operators():
        path = Path(inspect.getfile(op)).name
        names = ", ".join(f"`{n}`" for n in op.names or (op.__name__,))
        counts = [samples(op, p) for p in SHOWN]
        link = f"[{path}](../../src/opennpu/ops/{path})"
        meaning = first_paragraph(op.reference)
        yield link, names, route(op), units(op), *counts, bound(op), meaning


def refusals() -> Iterator[Sequence[str]]:
    """The sentence for each sample that must be refused."""
    yield "operator", "shapes", "reason"
    for op in operators():
        for sample in op.samples:
            if sample.ok:
                continue
            try:
                Case(op, sample, sample.precisions[0]).check()
            except UnsupportedError as e:
                shapes = " ".join(str(list(s)) for s in (*sample.shapes, *sample.consts))
                yield op.__name__, shapes, e.what


# -- limits ----------------------------------------------------------------------------------


def limit(register: type[Register], name: str) -> tuple[str, str]:
    """(largest value, register and field)."""
    f = register.fields[name]
    return f"{f.max:,} {f.unit}".rstrip(), f"{register.block.name} `{register.__name__}.{name}`"


def limit_rows() -> Iterator[Sequence[str]]:
    yield "what", "most", "held by", "beyond it"
    yield "kernel of Conv, a side", *limit(cna.WEIGHT_SIZE2, "weight_width"), "onnxruntime"
    yield "padding of Conv", *limit(cna.PAD_CON0, "pad_left"), "onnxruntime"
    yield "dilation of Conv", *limit(cna.CONV_CON3, "atrous_x_dilation"), "onnxruntime"
    yield (
        "stride of Conv",
        *limit(cna.CONV_CON3, "conv_x_stride"),
        "tiles of one output row or column",
    )
    yield "input width of Conv", *limit(cna.DATA_SIZE0, "datain_width"), "column tiles"
    yield "bytes of one kernel", *limit(cna.WEIGHT_SIZE1, "weight_bytes_per_kernel"), "onnxruntime"
    cbuf = f"{chip.CBUF_BANKS * chip.CBUF_BANK_BYTES:,} bytes"
    yield "one output pixel and one kernel group", cbuf, "CBUF", "sums in parts³"
    yield "output channels of a task", *limit(dpu.DATA_CUBE_CHANNEL, "channel"), "channel tiles"
    yield "window of a pool, a side", *limit(ppu.POOLING_KERNEL_CFG, "kernel_width"), "onnxruntime¹"
    stride = limit(ppu.POOLING_KERNEL_CFG, "kernel_stride_width")
    yield "stride of a pool", *stride, "onnxruntime"
    yield "padding of a pool", *limit(ppu.POOLING_PADDING_CFG, "pad_left"), "onnxruntime"
    size = ppu.DATA_CUBE_IN_WIDTH.fields["cube_in_width"].max - 1
    yield "input side of a pool", f"{size:,} px", "PPU `DATA_CUBE_IN_WIDTH`", "onnxruntime"
    yield (
        "tasks of one start",
        f"{chip.TASKS_PER_START:,}",
        "PC `TASK_CON.task_number`",
        "more jobs²",
    )


# -- questions -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Question:
    """A node on its own: what the compiler does with it."""

    what: str
    op: str
    shapes: Sequence[Sequence[int]]
    consts: Sequence[Sequence[int]] = ()
    attrs: Mapping[str, Any] = field(default_factory=dict)
    target: str = "rknpu"


IMAGE = (1, 16, 8, 8)
QUESTIONS = (
    Question("Conv, stride 8", "Conv", ((1, 8, 64, 64),), ((16, 8, 3, 3),), {"strides": [8, 8]}),
    Question("Conv, 2,100 px wide", "Conv", ((1, 8, 2, 2100),), ((16, 8, 1, 1),)),
    Question(
        "Conv, 4 groups of 8 channels", "Conv", ((1, 32, 8, 8),), ((32, 8, 3, 3),), {"group": 4}
    ),
    Question("Conv, 33x33 kernel", "Conv", ((1, 8, 64, 64),), ((8, 8, 33, 33),)),
    Question("Conv, 3-D", "Conv", ((1, 8, 4, 8, 8),), ((8, 8, 3, 3, 3),)),
    Question("Conv, computed weights", "Conv", (IMAGE, (16, 16, 1, 1))),
    Question("ConvTranspose", "ConvTranspose", (IMAGE,), ((16, 16, 2, 2),), {"strides": [2, 2]}),
    Question("MatMul, two computed operands", "MatMul", ((4, 32), (32, 32))),
    Question("MatMul, 3-D constant", "MatMul", ((2, 4, 32),), ((2, 32, 32),)),
    Question("Add, two tensors of one shape", "Add", (IMAGE, IMAGE)),
    Question("Add, one broadcast along channels", "Add", (IMAGE, (1, 16, 1, 1))),
    Question("Add, one broadcast along pixels", "Add", (IMAGE, (1, 1, 8, 8))),
    Question("Mul by a constant per channel", "Mul", (IMAGE,), ((16, 1, 1),)),
    Question("Mul by a constant per pixel", "Mul", (IMAGE,), ((1, 1, 8, 8),)),
    Question("Sub of two tensors", "Sub", (IMAGE, IMAGE)),
    Question("Clip from below and above", "Clip", (IMAGE,), ((), ())),
    Question("Div of two tensors", "Div", (IMAGE, IMAGE)),
    Question("Div, 12 channels", "Div", ((1, 12, 8, 8), (1, 12, 8, 8))),
    Question("Sigmoid", "Sigmoid", (IMAGE,)),
    Question("HardSwish", "HardSwish", (IMAGE,)),
    Question("Softplus", "Softplus", (IMAGE,)),
    Question("Exp", "Exp", (IMAGE,)),
    Question("Sqrt", "Sqrt", (IMAGE,)),
    Question("Softmax", "Softmax", (IMAGE,), (), {"axis": 1}),
    Question("MaxPool 3x3", "MaxPool", (IMAGE,), (), {"kernel_shape": [3, 3]}),
    Question(
        "MaxPool 3x3, target rocket", "MaxPool", (IMAGE,), (), {"kernel_shape": [3, 3]}, "rocket"
    ),
    Question("MaxPool 17x17", "MaxPool", ((1, 16, 20, 20),), (), {"kernel_shape": [17, 17]}),
    Question(
        "AveragePool, padded",
        "AveragePool",
        (IMAGE,),
        (),
        {"kernel_shape": [3, 3], "pads": [1] * 4},
    ),
    Question("GlobalAveragePool of 56x56", "GlobalAveragePool", ((1, 16, 56, 56),)),
    Question("GlobalAveragePool of 37x37", "GlobalAveragePool", ((1, 16, 37, 37),)),
    Question(
        "Concat of channels 16 + 24", "Concat", ((1, 16, 8, 8), (1, 24, 8, 8)), (), {"axis": 1}
    ),
    Question("Concat of channels 3 + 16", "Concat", ((1, 3, 8, 8), IMAGE), (), {"axis": 1}),
    Question("Concat of rows", "Concat", (IMAGE, IMAGE), (), {"axis": 2}),
    Question("LayerNormalization", "LayerNormalization", ((4, 32),), ((32,), (32,))),
)


def model(q: Question) -> onnx.ModelProto:
    """Its inputs go through a Relu each, so that views do not come from the host."""
    xs = [f"x{i}" for i in range(len(q.shapes))]
    nodes = [helper.make_node("Relu", [x], [f"{x}/relu"], f"relu{i}") for i, x in enumerate(xs)]
    rng = np.random.default_rng(0)
    arrays = [np.asarray(rng.uniform(0.1, 1, s), np.float32) for s in q.consts]
    if q.op == "Clip":
        arrays = [np.array(-1, np.float32), np.array(1, np.float32)]
    consts = [numpy_helper.from_array(np.asarray(a), f"c{i}") for i, a in enumerate(arrays)]
    reads = [*(f"{x}/relu" for x in xs), *(c.name for c in consts)]
    nodes.append(helper.make_node(q.op, reads, ["y"], "node", **q.attrs))
    inputs = [
        helper.make_tensor_value_info(x, TensorProto.FLOAT, s)
        for x, s in zip(xs, q.shapes, strict=True)
    ]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    graph = helper.make_graph(nodes, "question", inputs, outputs, consts)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def answer_rows() -> Iterator[Sequence[str]]:
    yield "node", "where", "tasks", "reason"
    for q in QUESTIONS:
        inferred = onnx.shape_inference.infer_shapes(model(q))
        node = next(r for r in check_model(inferred, q.target) if r.name == "node")
        yield q.what, node.where, str(node.tasks), node.reason


# -- the page --------------------------------------------------------------------------------


def table(rows: Iterable[Sequence[str]]) -> list[str]:
    """Markdown; the first row is the head."""
    head, *body = rows
    lines = (head, ("---",) * len(head), *body)
    return ["| " + " | ".join(c.replace("|", "\\|") for c in row) + " |" for row in lines]


def pass_rows() -> Iterator[Sequence[str]]:
    yield "pass", "what it does"
    for p in PASSES:
        module = p.__module__.removeprefix("opennpu.passes.")
        yield f"`{module}.{p.__name__}`", first_paragraph(p)


INTRO = """\
# Operators

<!-- Made by `python -m docs.make_operators` from src/opennpu/ops/; edit that. -->

Columns fp16 and int8: samples that must run + samples that must be refused, which
`tests/test_ops.py` checks. Column fp16 error: the most that any of them may be off, as a part of
the largest result; int8 is at most one count off. Functions of one tensor keep their error over all
numbers of fp16, as a part of the result or, below 1, of 1 (`tests/test_tables.py`). A view is the
same bytes under other axes and starts no task. What is not here, and what an operator refuses, runs
in onnxruntime; `opennpu check MODEL` says so node by node.
"""


def page() -> str:
    """The whole file."""
    lines = [INTRO, *table(operator_rows())]
    lines += ["", "## Limits", "", *table(limit_rows()), ""]
    lines.append(
        "¹ Means become a chain of AveragePool where both sides are products of windows that fit "
        "(GlobalAveragePool, fp16), else depthwise convolutions with equal weights; so they do on "
        "stock `rocket`."
    )
    lines += [
        "",
        "² A single Conv or MatMul that needs more tasks than that is left to onnxruntime.",
        "",
        "³ fp16: the input channels are cut into parts; each part's sum is rounded to fp16, and "
        "the parts are added in order, each sum rounded once. int8 is left to onnxruntime.",
    ]
    lines += ["", "## What the compiler says", ""]
    lines += ["Each node alone in an fp16 model, behind a Relu per input.", ""]
    lines += table(answer_rows())
    lines += ["", "## Samples that must be refused", "", *table(refusals())]
    lines += ["", "## Before any operator is asked", ""]
    lines += [
        "Passes over the graph, in order. They need no register.",
        "",
        *table(pass_rows()),
        "",
    ]
    return "\n".join(lines)


def main() -> int:
    text = page()
    if "--check" in sys.argv[1:]:
        if PAGE.is_file() and PAGE.read_text(encoding="utf-8") == text:
            return 0
        print(f"{PAGE}: not current. Run python -m docs.make_operators.", file=sys.stderr)
        return 1
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
