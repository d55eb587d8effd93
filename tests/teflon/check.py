"""Compares what Teflon's jobs wrote with the plain model of Mesa's words, and with TFLite."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from opennpu.hw.regcmd import Raw, Write
from opennpu.hw.regs import Register
from opennpu.hw.rk3588 import cna, core, dpu, dpu_rdma
from opennpu.tools.replay import replay, tasks_of
from opennpu.tools.trace import TracedJob
from tests.teflon import kernels, mesa
from tests.teflon.flatmodel import Conv, Net, Quantized
from tests.teflon.suite import KNOWN

Array = npt.NDArray[Any]
ATOM = mesa.ATOM
CLOSE = 1e-3

# Why a convolution of Mesa is not TFLite's within 1 count, and where that is known from.
REASONS = {
    "padding": "PAD_CON1 holds another byte for odd channels than for even ones (board notes A.8)",
    "padding of a sum": "PAD_CON1 of a convolution near a sum is -128, -1 (Mesa rkt_regcmd.c)",
    "carry": "the factor's carry is lost: half of it, or its negative (board notes A.9)",
    "weights": "Mesa packs weights in other widths than the NPU reads (register notes E.2)",
    "truncation": "CLIP_TRUNCATE is 1 and shifts before CPEND (emulator.md, switch clip_truncate)",
    "sum": "the operand's scale is none of Mesa's literals (register notes F.5)",
    "sum's surfaces": "fewer than 12 pixels, or width 3: operands are not where Mesa points (C.9)",
}


@dataclass
class Node:
    """One operation of Mesa: a convolution, with the addition that is fused into it."""

    where: str
    reasons: tuple[str, ...]
    elements: int = 0
    model_differs: int = 0  # bytes that are not the plain model's
    tflite_differs: int = 0  # bytes that are not TFLite's
    worst: int = 0  # counts off TFLite
    truncated_last: int = 0  # the same for the plain model with CLIP_TRUNCATE after CPEND


@dataclass
class Report:
    """What the suite found."""

    models: int = 0
    operators: int = 0  # of the files
    nodes: list[Node] = field(default_factory=list)
    jobs: int = 0
    tasks: int = 0
    words: int = 0
    unnamed: int = 0  # words that no register class names
    fewest_jobs: int = 0  # of a model and an input
    whole: dict[str, int] = field(default_factory=dict)  # model without reasons: counts off TFLite
    wrong_words: list[str] = field(default_factory=list)  # that differ from `mesa.predicted`
    notes: Counter[str] = field(default_factory=Counter)  # rules broken in hardware mode
    strict: Counter[str] = field(default_factory=Counter)  # and in strict mode
    strict_says: dict[str, str] = field(default_factory=dict)

    def failures(self) -> Iterator[str]:
        """Sentences; none when all is as it must be."""
        yield from self.wrong_words
        for n in self.nodes:
            if n.model_differs:
                yield (
                    f"{n.where}: {n.model_differs} of {n.elements} bytes are not those of the "
                    f"plain model of Mesa's words"
                )
            if not n.reasons and n.worst > 1:
                yield f"{n.where}: {n.worst} counts off TFLite without a reason for it"
        if self.unnamed:
            yield f"{self.unnamed} of {self.words} words have no name"
        if not self.fewest_jobs:
            yield "a model ran without a job"

    def lines(self) -> Iterator[str]:
        nodes = self.nodes
        clean = [n for n in nodes if not n.reasons]
        yield (
            f"{self.models} models, {self.operators} operators in {len(nodes)} convolutions of "
            f"Mesa's, {self.jobs} jobs, {self.tasks} tasks"
        )
        yield f"{self.words} register words, {self.words - self.unnamed} of them named"
        yield (
            f"{sum(not n.model_differs for n in nodes)} of {len(nodes)} convolutions equal the "
            f"plain model of Mesa's words, {sum(n.elements for n in nodes)} bytes"
        )
        yield (
            f"{sum(n.worst <= 1 for n in clean)} of {len(clean)} that need no excuse are within "
            f"1 count of TFLite, {sum(n.worst == 0 for n in clean)} of them equal"
        )
        yield (
            f"{sum(n <= 1 for n in self.whole.values())} of {len(self.whole)} models of such "
            f"convolutions only are within 1 count from end to end, the others within "
            f"{max(self.whole.values(), default=0)}"
        )
        for name, text in REASONS.items():
            those = [n for n in nodes if name in n.reasons]
            worst = max((n.worst for n in those), default=0)
            off = sum(n.worst > 1 for n in those)
            yield f"  {len(those)} convolutions, {off} off by more than 1, at most {worst}: {text}"
        truncated = [n.truncated_last for n in nodes if n.reasons == ("truncation",)]
        if truncated:
            yield (
                f"  with CLIP_TRUNCATE after CPEND the {len(truncated)} truncated ones are at most "
                f"{max(truncated)} off"
            )
        for rule, n in self.notes.most_common():
            yield f"hardware mode says {n} times: {self.strict_says[rule]}"
        for rule, n in self.strict.most_common():
            yield f"strict mode refuses {n} jobs: {self.strict_says[rule]}"


class Registers:
    """The last write of each register of a task."""

    def __init__(self, writes: Sequence[Write]) -> None:
        self._all = {type(w): w for w in writes if isinstance(w, Register)}

    def __call__(self, kind: type[Any]) -> Any:
        return self._all[kind]


@dataclass
class Operation:
    """The jobs and tasks of one convolution."""

    jobs: list[TracedJob]
    tasks: list[Registers]

    def read(self, iova: int, nbytes: int) -> bytes:
        """Memory before the first job."""
        data = self.jobs[0].read(iova, nbytes)
        assert data is not None, f"{nbytes} bytes at {iova:#x} are in no buffer of the job"
        return data

    def output(self, shape: tuple[int, int, int]) -> Array:
        """[OH, OW, C] int8, of what the jobs wrote."""
        rows, cols, channels = shape
        first = self.tasks[0]
        base, surf = (
            first(dpu.DST_BASE_ADDR).dst_base_addr,
            first(dpu.DST_SURF_STRIDE).dst_surf_stride,
        )
        groups = -(-channels // ATOM)
        memory = np.zeros(groups * surf * ATOM, np.int8)
        seen = np.zeros(memory.size, bool)
        for job in self.jobs:
            for image in job.written:
                data = np.frombuffer(image.data.ljust(image.nbytes, b"\0"), np.int8)
                at = image.iova - base
                low, high = max(at, 0), min(at + data.size, memory.size)
                if low < high:
                    memory[low:high] = data[low - at : high - at]
                    seen[low:high] = True
        cube = memory.reshape(groups, surf * ATOM)[:, : rows * cols * ATOM]
        assert seen.reshape(groups, -1)[:, : rows * cols * ATOM].all(), "output is not whole"
        atoms = cube.reshape(groups, rows, cols, ATOM).transpose(1, 2, 0, 3)
        return atoms.reshape(rows, cols, groups * ATOM)[..., :channels].copy()


def check(nets: Sequence[Net], folder: Path, jobs: Sequence[TracedJob]) -> Report:
    """``folder`` has the models' inputs and outputs, ``jobs`` ran them in the order of names."""
    report = Report(len(nets), sum(n.nodes for n in nets), jobs=len(jobs))
    for job in jobs:
        for start in job.starts:
            for _, _, writes in tasks_of(job, start):
                report.tasks += 1
                report.words += len(writes)
                report.unnamed += sum(isinstance(w, Raw) for w in writes)
        for note in job.notes:
            _count(report, report.notes, note)
    at = 0
    fewest = len(jobs)
    for net in sorted(nets, key=lambda n: f"{n.name}.tflite"):  # as guest.py does
        first = len(report.nodes)
        cpu, npu = (np.load(folder / f"{net.name}.{kind}.npy") for kind in ("cpu", "npu"))
        assert cpu.shape == npu.shape and len(npu) == len(net.x), net.name
        for sample, x in enumerate(net.x):
            begin = at
            operations = []
            for i, conv in enumerate(net.convs):
                operation, at = _take(net, i, conv, jobs, at)
                operations.append(operation)
            fewest = min(fewest, at - begin)
            _reference(net, x, cpu[sample])
            last = _check_net(report, net, sample, x, operations)
            assert (last == npu[sample]).all(), f"{net.name}: Teflon returns what no job wrote"
            if sample == 0:
                for c in replay(jobs[begin:at], "emulator"):
                    if c.first.startswith("refused: "):
                        _count(report, report.strict, c.first.removeprefix("refused: "))
                    else:
                        assert c.equal, str(c)
        if not any(n.reasons for n in report.nodes[first:]):
            report.whole[net.name] = int(np.abs(cpu.astype(int) - npu).max())
    assert at == len(jobs), f"{len(jobs) - at} jobs belong to no model"
    report.fewest_jobs = fewest
    return report


def _count(report: Report, counter: Counter[str], sentence: str) -> None:
    rule = sentence.rpartition("[")[2].partition("]")[0]
    counter[rule] += 1
    report.strict_says.setdefault(rule, sentence)


def _take(
    net: Net, i: int, conv: Conv, jobs: Sequence[TracedJob], at: int
) -> tuple[Operation, int]:
    """The jobs from ``at`` on that make up convolution i, recognized by their shapes."""
    size = net.size
    for before in net.convs[:i]:
        size = before.out_size(size)
    rows, found = 0, Operation([], [])
    while rows < conv.out_size(size):
        assert at < len(jobs), f"{net.name}: convolution {i} has no job, TFLite ran it on the CPU"
        job = jobs[at]
        at += 1
        found.jobs.append(job)
        for start in job.starts:
            for _, _, writes in tasks_of(job, start):
                task = Registers(writes)
                found.tasks.append(task)
                rows += task(dpu.DATA_CUBE_HEIGHT).height
                have = (
                    task(cna.DATA_SIZE1).datain_channel_real,
                    task(dpu.DATA_CUBE_CHANNEL).orig_channel,
                    task(cna.WEIGHT_SIZE2).weight_width,
                    task(cna.CONV_CON3).conv_x_stride,
                    bool(task(core.MISC_CFG).dw_en),
                )
                channels = conv.out_channels if conv.depthwise else conv.w.shape[3]
                want = (channels, conv.out_channels, conv.kernel, conv.stride, conv.depthwise)
                assert have == want, f"{net.name}: {job.name} is {have}, convolution {i} is {want}"
    return found, at


def _reference(net: Net, x: Array, want: Array) -> None:
    """Our TFLite kernels are TFLite's."""
    tensors = [x]
    for i, conv in enumerate(net.convs):
        tensors.append(kernels.convolution(tensors[-1], net.tensor(i), conv))
    y = tensors[-1]
    if net.residual is not None:
        a, b = net.tensor(len(net.convs)), net.tensor(net.residual)
        y = kernels.addition(y, a, tensors[net.residual], b, net.add)
    assert (y == want).all(), f"{net.name}: kernels.py is not TFLite"


def _words(task: Registers) -> mesa.Words:
    cvt, shift = task(dpu.OUT_CVT_SCALE), task(dpu.OUT_CVT_SHIFT)
    add = None
    if not task(dpu.EW_CFG).ew_bypass:
        scale = task(dpu.EW_CVT_SCALE_VALUE)
        offset = task(dpu.EW_CVT_OFFSET_VALUE).ew_op_cvt_offset
        add = mesa.Addition(offset, scale.ew_op_cvt_scale, scale.ew_op_cvt_shift)
    return mesa.Words(
        cvt.out_cvt_scale,
        shift.out_cvt_shift,
        task(dpu.OUT_CVT_OFFSET).out_cvt_offset,
        task(dpu.BS_OW_OP).ow_op,
        task(cna.PAD_CON1).word,
        task(core.CLIP_TRUNCATE).clip_truncate,
        add,
    )


def _check_net(
    report: Report, net: Net, sample: int, x: Array, operations: Sequence[Operation]
) -> Array:
    """Node by node, on the input that the NPU had; the last output, uint8."""
    size, tensors = net.size, [x]
    for i, (conv, op) in enumerate(zip(net.convs, operations, strict=True)):
        q, last = net.tensor(i), i == len(net.convs) - 1 and net.residual is not None
        in_add = net.residual is not None and i == net.residual - 1
        where = f"{net.name} sample {sample} convolution {i}"
        words = _words(op.tasks[0])
        for task in op.tasks[1:]:
            assert _words(task) == words, f"{where}: its tasks differ"
        want = mesa.predicted(q, conv, in_add, last)
        if last:
            want = _with_addition(want, words, net)
        if words != want:
            report.wrong_words.append(f"{where}: Mesa writes {words}, {want} was predicted")
        data = mesa.packed_weights(conv)
        weights = op.tasks[0](cna.DCOMP_ADDR0).decompress_addr0
        bias = op.tasks[0](dpu_rdma.RDMA_BS_BASE_ADDR).bs_base_addr
        biases = mesa.biases(q, conv, words.truncate)
        assert op.read(weights, len(data)) == data, f"{where}: its weights are not as predicted"
        assert op.read(bias, 4 * biases.size) == biases.astype("<i4").tobytes(), where
        wide = np.full((size, size, -(-x.shape[2] // ATOM) * ATOM), q.zero - 128, np.int8)
        if x.shape[2] > 1:  # a single channel is read as bytes, and converted
            address = op.tasks[0](cna.FEATURE_DATA_ADDR).feature_base_addr
            raw = np.frombuffer(op.read(address, wide.size), np.int8)
            wide = raw.reshape(-1, size, size, ATOM).transpose(1, 2, 0, 3).reshape(wide.shape)
            signed = (x + np.uint8(128)).view(np.int8)
            assert (wide[..., : x.shape[2]] == signed).all(), f"{where}: another input"
        else:
            wide[..., 0] = (x[..., 0] + np.uint8(128)).view(np.int8)
        out = conv.out_size(size)
        shape = (out, out, conv.out_channels)
        y = op.output(shape)
        e = _operand(op, shape, size) if last else None
        weights_read = mesa.read_weights(conv, data)
        plain = mesa.run(words, conv, biases, wide, weights_read, e)
        other = mesa.run(words, conv, biases, wide, weights_read, e, truncate_last=True)
        tflite = kernels.convolution(x, q, conv)
        if last:
            a, b = conv.output, net.tensor(net.residual or 0)
            tflite = kernels.addition(tflite, a, tensors[net.residual or 0], b, net.add)
        x = y.view(np.uint8) + np.uint8(128)
        off = _counts_off(y, tflite)
        report.nodes.append(
            Node(
                where,
                tuple(_reasons(net, conv, q, words, size, in_add, last)),
                y.size,
                model_differs=int((y != plain).sum()),
                tflite_differs=int((off > 0).sum()),
                worst=int(off.max()),
                truncated_last=int(_counts_off(other, tflite).max()),
            )
        )
        tensors.append(x)
        size = out
    return x


def _counts_off(y: Array, tflite: Array) -> Array:
    """y: int8, moved by 128; tflite: uint8."""
    return np.abs(y.astype(int) + 128 - tflite)


def _with_addition(want: mesa.Words, have: mesa.Words, net: Net) -> mesa.Words:
    """``want`` with the literals of the trace, which must be those of `suite.KNOWN` if it knows."""
    b = net.tensor(net.residual or 0)
    assert have.add is not None, f"{net.name}: the sum is not on the NPU"
    factor, shift = have.add.scale, have.add.shift
    scale, out_shift, offset = have.scale, have.shift, have.offset
    for known, numbers in KNOWN.items():
        if abs(b.scale - known) < 1e-5:
            factor, shift, scale, out_shift, zero = numbers
            offset = want.offset if zero is None else zero - 128
    add = mesa.Addition(128 - b.zero, factor, shift)
    return mesa.Words(scale, out_shift, offset, want.ow_op, want.pad, want.truncate, add)


def _operand(op: Operation, shape: tuple[int, int, int], size: int) -> Array:
    """[OH, OW, OC] int8: the residual as the two streams read it."""
    assert len(op.tasks) == 1, "sums in slices are not in this model"
    rows, cols, channels = shape
    task = op.tasks[0]
    base = task(dpu_rdma.RDMA_SRC_BASE_ADDR).src_base_addr
    surfaces = []
    for _, at in mesa.operand_atoms(rows, cols, size, -(-channels // ATOM)):
        raw = np.frombuffer(op.read(base + at * ATOM, rows * cols * ATOM), np.int8)
        surfaces.append(raw.reshape(rows, cols, ATOM))
    return np.concatenate(surfaces, axis=2)[..., :channels]


def _sum_fits(net: Net, conv: Conv, q: Quantized, words: mesa.Words) -> bool:
    """Are Mesa's literals those of this sum, to a thousandth?"""
    assert words.add is not None and net.residual is not None
    unit = q.scale * conv.weights.scale  # of the accumulator
    operand = math.ldexp(words.add.scale, -words.add.shift) * unit / net.tensor(net.residual).scale
    out = math.ldexp(words.scale, -words.shift) * net.add.scale / unit
    exact = words.offset == net.add.zero - 128
    return exact and abs(operand - 1) < CLOSE and abs(out - 1) < CLOSE


def _reasons(
    net: Net, conv: Conv, q: Quantized, words: mesa.Words, size: int, in_add: bool, last: bool
) -> Iterator[str]:
    low, high = words.pad_bytes
    if conv.pads(size) != (0, 0) and (low, high) != (q.zero - 128,) * 2:
        yield "padding of a sum" if in_add or last else "padding"
    if mesa.loses_carry(q, conv) and not last:
        yield "carry"
    if words.truncate:
        yield "truncation"
    if not mesa.packs_straight(conv):
        yield "weights"
    if last:
        out = conv.out_size(size)
        if not _sum_fits(net, conv, q, words):
            yield "sum"
        if out * out < mesa.MIN_STRIDE or size == 3:
            yield "sum's surfaces"
