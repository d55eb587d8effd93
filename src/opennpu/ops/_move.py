"""Moving pixels: rectangles of atoms from one cube into another, by flying copies on the DPU.

A copy walks over images, surfaces, rows and columns with a step of its own in the source and in
the target.  Three of these walks fit one task: columns (neighbours on both sides), lines (up to
8,191 atoms of gap) and surfaces (any distance, none too).  What is left is several tasks.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from opennpu.hw.rk3588 import chip, dpu, dpu_rdma
from opennpu.hw.rk3588.common import Precision
from opennpu.ir.graph import Node, Quant, Value
from opennpu.ops import _flying
from opennpu.ops.base import Expansion, Operand, Site
from opennpu.program import Ref, Task, View

Array = npt.NDArray[Any]

MAX_GAP = min(
    dpu.DATA_CUBE_NOTCH_ADDR.fields["notch_addr_0"].max,
    dpu_rdma.RDMA_SRC_DMA_CFG.fields["line_notch_addr"].max,
)
MAX_FILL_ATOMS = 4096  # of one task that fills: so much constant data is read for it


@dataclass(frozen=True, slots=True)
class Walk:
    """``count`` steps, in atoms of the source and of the target."""

    count: int
    source: int
    target: int


@dataclass(frozen=True, slots=True)
class Copy:
    """One copy: from where, to where, and the walks over it, the innermost last."""

    source: Ref
    target: Ref
    walks: tuple[Walk, ...]


def merged(walks: Sequence[Walk]) -> list[Walk]:
    """The same walks, where one continues another as one.  The innermost stays last."""
    out: list[Walk] = []
    for w in reversed([w for w in walks if w.count > 1]):
        last = out[-1] if out else None
        if last and (w.source, w.target) == (last.source * last.count, last.target * last.count):
            out[-1] = Walk(last.count * w.count, last.source, last.target)
        else:
            out.append(w)
    return out[::-1]


def pieces(copy: Copy) -> Iterator[_flying.Piece]:
    """The tasks of a copy."""
    walks = merged(copy.walks)
    cols = Walk(1, 1, 1)
    if walks and (walks[-1].source, walks[-1].target) == (1, 1):
        cols = walks.pop()
    if cols.count > chip.MAX_CUBE_PX:  # whole lines of a size that runs, and a rest
        line = _flying.LINE_ATOMS
        whole, rest = divmod(cols.count, line)
        if rest:
            skip = whole * line * chip.ATOM_BYTES
            tail = (*walks, Walk(rest, 1, 1))
            yield from pieces(Copy(copy.source + skip, copy.target + skip, tail))
        cols, walks = Walk(line, 1, 1), [*walks, Walk(whole, line, line)]
    fits = [
        w
        for w in walks
        if cols.count <= w.source <= cols.count + MAX_GAP
        and cols.count <= w.target <= cols.count + MAX_GAP
    ]
    lines = max(fits, key=lambda w: w.count, default=Walk(1, cols.count, cols.count))
    rest_walks = list(walks)
    if fits:
        rest_walks.remove(lines)
    surfaces = max(rest_walks, key=lambda w: w.count, default=Walk(1, 0, 0))
    if rest_walks:
        rest_walks.remove(surfaces)
    # one surface after the other is written in ascending order only
    for at in itertools.product(*(range(w.count) for w in rest_walks)):
        source = sum(i * w.source for i, w in zip(at, rest_walks, strict=True))
        target = sum(i * w.target for i, w in zip(at, rest_walks, strict=True))
        for y in range(0, lines.count, chip.MAX_CUBE_PX):
            for s in range(0, surfaces.count, _MOST_SURFACES):
                yield _flying.Piece(
                    copy.source
                    + (source + y * lines.source + s * surfaces.source) * chip.ATOM_BYTES,
                    None,
                    copy.target
                    + (target + y * lines.target + s * surfaces.target) * chip.ATOM_BYTES,
                    cols.count,
                    min(chip.MAX_CUBE_PX, lines.count - y),
                    min(_MOST_SURFACES, surfaces.count - s),
                    surfaces.target,
                    in_plane_atoms=surfaces.source,
                    in_line_atoms=lines.source,
                    out_line_atoms=lines.target,
                )


_MOST_SURFACES = chip.MAX_CUBE_PX // chip.elements_per_atom(Precision.INT8)


# -- cubes and axes --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Axis:
    """Where an axis of a tensor lies in its cube: 0 image, 1 row, 2 column, 3 channel; and the
    step of one of its elements there."""

    place: int
    step: int


def axes(shape: tuple[int, ...], view: View) -> tuple[Axis, ...] | None:
    """Every axis of a tensor in its cube; None if one lies across two of the cube's."""
    groups = _groups(shape, view)
    if groups is None:
        return None
    found: dict[int, Axis] = {}
    for place, group in enumerate(groups):
        step = 1
        for axis in reversed(group):
            found[axis] = Axis(place, step)
            step *= shape[axis]
    return tuple(found[i] for i in range(len(shape)))


def _groups(shape: tuple[int, ...], view: View) -> list[list[int]] | None:
    """The axes that make up each side of the cube."""
    left = list(view.perm)
    groups: list[list[int]] = []
    for place, size in enumerate(view.nhwc):
        group: list[int] = []
        count = 1
        while left and count < size and shape[left[0]] * count <= size:
            count *= shape[left[0]]
            group.append(left.pop(0))
        if count != size:
            return None
        if not group and size == 1 and left and shape[left[0]] == 1 and len(left) > 3 - place:
            group.append(left.pop(0))
        groups.append(group)
    groups[3] += left  # axes of length 1
    if any(shape[i] != 1 for i in left):
        return None
    return groups


def resized(shape: tuple[int, ...], view: View, new: tuple[int, ...]) -> View | None:
    """The view of a tensor with the same axes but other lengths."""
    groups = _groups(shape, view)
    if groups is None:
        return None
    n, h, w, c = (math.prod(new[i] for i in g) for g in groups)
    order = tuple(i for g in groups for i in g)
    return View(order, (n, h, w, c))


def steps(o: Operand, axis: Axis) -> int:
    """Atoms from one element along an axis to the next; of channels: from surface to surface."""
    _, _, w, _ = o.nhwc
    pixel = (o.surfaces * o.plane_atoms, w, 1, o.plane_atoms)[axis.place]
    return pixel * (axis.step if axis.place != 3 else 1)


@dataclass(frozen=True, slots=True)
class Range:
    """Along one axis: ``count`` elements from ``source`` on by ``source_step`` (0: one element
    again and again) to ``target`` on by ``target_step``."""

    axis: int
    count: int
    source: int = 0
    target: int = 0
    source_step: int = 1
    target_step: int = 1


def region(x: Operand, y: Operand, ranges: Sequence[Range], surfaces: int | None = None) -> Copy:
    """A copy of the part of ``x`` that ``ranges`` name; of other axes, all.

    Ranges of channels start at whole atoms on both sides.  ``surfaces``: how many; by default
    all that ``y`` has room for from there on, as readers want no lane left unwritten.
    """
    by_axis = {r.axis: r for r in ranges}
    source, target, used = 0, 0, 0
    walks: list[Walk] = []
    c2 = chip.elements_per_atom(y.precision)
    for i, (ax, ay) in enumerate(zip(_axes_of(x), _axes_of(y), strict=True)):
        r = by_axis.get(i, Range(i, x.shape[i]))
        sx, sy = steps(x, ax), steps(y, ay)
        if ay.place == 3:
            first, onto = r.source * ax.step, r.target * ay.step
            assert first % c2 == onto % c2 == 0
            source, target = source + first // c2 * sx, target + onto // c2 * sy
            used = max(used, onto // c2)
            continue
        source, target = source + r.source * sx, target + r.target * sy
        walks.append(Walk(r.count, sx * r.source_step, sy * r.target_step))
    count = y.surfaces - used if surfaces is None else surfaces
    walks.append(Walk(count, x.plane_atoms, y.plane_atoms))
    order = tuple(sorted(walks, key=lambda w: -w.target))
    return Copy(x.ref + source * chip.ATOM_BYTES, y.ref + target * chip.ATOM_BYTES, order)


def _axes_of(o: Operand) -> tuple[Axis, ...]:
    assert o.view is not None
    found = axes(o.shape, o.view)
    assert found is not None
    return found


def tasks(site: Site, copies: Sequence[Copy], stages: _flying.Stages, y: Operand) -> Iterator[Task]:
    """The tasks of all copies."""
    for copy in copies:
        yield from _flying.tasks(site, stages, list(pieces(copy)), y)


def fill(
    site: Site, y: Operand, value: float, ranges: Sequence[Range], surfaces: int | None = None
) -> Iterator[Task]:
    """Write a constant, in real numbers, over a part of ``y``, in all its surfaces."""
    if y.precision is Precision.FP16:
        atom = np.full(8, value, "<f2").view(np.uint8)
    else:
        atom = y.quant.quantize(np.full(16, value, np.float32)).view(np.uint8)
    copy = region(
        y,
        y,
        [replace(r, source=r.target, source_step=r.target_step) for r in ranges],
        surfaces,
    )
    yield from _strips(site, y, copy, atom)


def _strips(site: Site, y: Operand, copy: Copy, atom: Array) -> Iterator[Task]:
    """Tasks that write one atom all over the target of a copy: they read a strip of it."""
    stages = _flying.copy(site, y, y)
    for piece in pieces(copy):
        most = max(1, MAX_FILL_ATOMS // piece.width)
        for done in range(0, piece.height, most):
            height = min(most, piece.height - done)
            part = replace(
                piece,
                main=site.place(np.tile(atom, piece.width * height)),
                out=piece.out + done * max(piece.out_line_atoms, piece.width) * chip.ATOM_BYTES,
                height=height,
                in_line_atoms=piece.width,
                in_plane_atoms=0,
            )
            yield from _flying.tasks(site, stages, [part], y)


def fill_rest(site: Site, y: Operand) -> Iterator[Task]:
    """Zeros in the surfaces behind the last channel: readers multiply them by zero."""
    c2 = chip.elements_per_atom(y.precision)
    used = -(-y.nhwc[3] // c2)
    if used == y.surfaces:
        return
    zero = np.zeros(chip.ATOM_BYTES, np.uint8)
    n, plane = y.nhwc[0], y.plane_atoms
    walks = (
        Walk(n, y.surfaces * plane, y.surfaces * plane),
        Walk(y.surfaces - used, plane, plane),
        Walk(plane, 1, 1),
    )
    start = y.ref + used * plane * chip.ATOM_BYTES
    yield from _strips(site, y, Copy(start, start, walks), zero)


# -- what operators that move pixels share ---------------------------------------------------


def check_moves(site: Site, x: Operand, y: Operand) -> None:
    """Refuse activations, and quantizations that no multiplier joins."""
    if site.node.epilogue:
        raise site.refuse("has a fused activation, it only copies")
    if x.value.quant is not None:
        _flying.copy(site, x, y)


def need_axes(site: Site, o: Operand) -> tuple[Axis, ...]:
    """The axes of an operand in its cube, or a refusal."""
    assert o.view is not None
    found = axes(o.shape, o.view)
    if found is None:
        raise site.refuse(
            f"works on {list(o.shape)} in a cube of {list(o.view.nhwc)}: an axis lies across two"
        )
    return found


def need_view(site: Site, x: Operand, view: View, shape: tuple[int, ...]) -> View:
    """The view of the output, axis for axis that of the input, or a refusal."""
    out = resized(x.shape, view, shape)
    if out is None:
        raise site.refuse(
            f"works on {list(x.shape)} in a cube of {list(view.nhwc)}: an axis lies across two"
        )
    return out


def need_whole_atoms(site: Site, what: str, *channels: int) -> None:
    """Refuse a channel range that begins or ends inside an atom."""
    c2 = chip.elements_per_atom(site.precision)
    for c in channels:
        if c % c2:
            raise site.refuse(f"{what} {c} channels, a copy moves multiples of {c2}")


def image_axis(shape: tuple[int, ...], axis: int) -> bool:
    """Is it the channel axis of an image?"""
    return len(shape) in (3, 4) and axis == 1


def selection(
    node: Node,
    x: Value,
    y: Value,
    pick: Sequence[int],
    bias: float = 0.0,
    *,
    name: str = "",
    output: str = "",
) -> Expansion:
    """y[:, i] = x[:, pick[i]], or ``bias`` where pick[i] is -1: a convolution of 1x1.

    In fp16 a number times one plus zeros is exact; in int8 so is a code times one.
    """
    rank = len(x.shape) - 2
    picked = np.asarray(pick)
    w = np.zeros((len(picked), x.shape[1], *(1 for _ in range(rank))), np.float32)
    rows = np.flatnonzero(picked >= 0)
    w[rows, picked[rows]] = 1
    output = output or node.outputs[0]
    weights, values = f"{output}/select{name}", {}
    constants: dict[str, Array] = {weights: w}
    if x.quant is not None:
        constants[weights] = w.astype(np.int8)
        one = Quant(np.ones((), np.float32), np.zeros((), np.int32))
        values[weights] = Value(weights, w.shape, "int8", one)
    inputs = [x.name, weights]
    if bias:
        constants[f"{output}/fill"] = np.where(picked < 0, bias, 0).astype(np.float32)
        inputs.append(f"{output}/fill")
    attrs = {
        "kernel_shape": (1,) * rank,
        "strides": (1,) * rank,
        "pads": (0,) * (2 * rank),
        "dilations": (1,) * rank,
        "group": 1,
    }
    conv = node.with_(op="Conv", domain="", inputs=tuple(inputs), outputs=(output,), attrs=attrs)
    return Expansion((conv,), values, constants)


def parameter(
    node: Node, consts: Mapping[str, Array], name: str, index: int
) -> tuple[int, ...] | None:
    """Whole numbers that an operator takes as an attribute or, in later opsets, as an input."""
    if name in node.attrs:
        given = node.attrs[name]
        return tuple(int(v) for v in (given if isinstance(given, tuple | list) else (given,)))
    if index < len(node.inputs) and node.inputs[index]:
        const = consts.get(node.inputs[index])
        return None if const is None else tuple(int(v) for v in const.reshape(-1))
    return ()


def constants_of(site: Site) -> dict[str, Array]:
    """The constant inputs of a node by name."""
    return {o.value.name: o.const for o in site.inputs if o is not None and o.const is not None}
