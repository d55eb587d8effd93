"""Products of matrices of which the right one is computed, or differs from batch to batch.

CORE takes its kernels from memory in weight layout, so a computed right operand is laid out anew
by DPU copies.  An atom holds eight neighbouring elements of the sum in both layouts, so that only
atoms move, by pitches that boards ran: rows one pixel wide with a gap (row-major writers, board
notes A.2) and planes at a pitch of their own.  Where the operand lies the other way round, the MAC
array transposes it: identity times the operand as kernels, which is exact.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from opennpu.hw.layout import align, pack_cube, pack_weights
from opennpu.hw.rk3588 import chip, dpu
from opennpu.hw.rk3588.common import Precision
from opennpu.hw.rk3588.pc import DPU_DONE
from opennpu.ops import _conv, _flying
from opennpu.ops.base import Operand, Site, clip_range
from opennpu.program import Cost, Ref, Task, View

Array = npt.NDArray[Any]

P = Precision.FP16
LANES = chip.elements_per_atom(P)
GROUP, DEPTH = chip.KERNEL_GROUP[P], chip.CHANNEL_GROUP[P]
DEPTH_ATOMS = DEPTH // LANES
TURNED_COLUMNS = 64  # of an operand that is transposed at once: the side of the identity
ELEMENT_BYTES = 2


@dataclass(frozen=True, slots=True)
class Matrix:
    """Part of a cube: rows are neighbouring pixels, columns are channels from a whole atom on."""

    ref: Ref  # of the first atom
    rows: int
    columns: int
    pitch_atoms: int  # from one surface to the next
    channel: int = 0  # of the first column, in the cube

    def column(self, first: int, count: int) -> Matrix:
        """``count`` columns from ``first`` on, a multiple of the atom."""
        skip = first // LANES * self.pitch_atoms * chip.ATOM_BYTES
        return replace(self, ref=self.ref + skip, columns=count)

    def cube(self, name: str, like: Operand, room: int) -> Operand:
        """It as the operand of a convolution."""
        shape = (self.rows, self.columns)
        return Operand(
            replace(like.value, name=name, shape=shape, quant=None),
            P,
            View((0, 1), (1, self.rows, 1, self.columns)),
            room,
            self.ref,
            None,
            self.pitch_atoms,
        )


def batch_of(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """Batch axes of a product, by ONNX's rules of broadcasting."""
    return np.broadcast_shapes(*(s[:-2] for s in shapes))


def _steps(shape: tuple[int, ...], view: View) -> list[int]:
    """Elements between neighbours along each axis, in the cube's [N, H, W, C] order."""
    steps, step = [0] * len(shape), 1
    for axis in reversed(view.perm):
        steps[axis] = step
        step *= shape[axis]
    return steps


def readable(shape: tuple[int, ...], view: View, turned: bool = False) -> bool:
    """Are its matrices rows of pixels and columns of channels?  ``turned``: the other way round."""
    rank = len(shape)
    row, column = (rank - 1, rank - 2) if turned else (rank - 2, rank - 1)
    if rank < 2 or math.prod(shape) != math.prod(view.nhwc):
        return False
    steps, (_, h, w, c) = _steps(shape, view), view.nhwc
    pixels = h * w
    if shape[column] > 1 and steps[column] != 1:
        return False
    if shape[row] > 1 and steps[row] != c:
        return False
    if shape[column] > c or shape[row] > pixels:
        return False
    for axis in range(rank):
        if axis in (row, column) or shape[axis] == 1:
            continue
        step, last = steps[axis], steps[axis] * (shape[axis] - 1)
        if step < c:  # neighbours lie in other channels of the same pixel
            if step % LANES or last + shape[column] > c:
                return False
        elif step < c * pixels:
            if step % c or last // c + shape[row] > pixels:
                return False
        elif step % (c * pixels):
            return False
    return True


def row_view(shape: tuple[int, ...], turned: bool = False) -> View:
    """The view under which batches follow each other as rows."""
    rank = len(shape)
    perm = (*range(rank - 2), *((rank - 1, rank - 2) if turned else (rank - 2, rank - 1)))
    rows = math.prod(shape[a] for a in perm[:-1])
    return View(perm, (1, rows, 1, shape[perm[-1]]))


def input_view(o: Operand, turned: bool, *, either: bool = False) -> View | None:
    """Its producer's view if that will do, else rows; None for constants.

    ``turned``: columns come before rows in its shape; ``either``: the NPU can transpose it.
    """
    if o.const is not None:
        return None
    if o.view is not None and readable(o.shape, o.view, turned):
        return o.view
    if either and o.view is not None and readable(o.shape, o.view, not turned):
        return o.view
    return row_view(o.shape, turned)


def output_view(shape: tuple[int, ...], inputs: Sequence[View | None]) -> View:
    """Batches as rows; side by side in the channels where an input has its batches so."""
    row, column = len(shape) - 2, len(shape) - 1
    for view in inputs:
        if view is None or len(view.perm) != len(shape) or shape[-1] % GROUP:
            continue
        at = view.perm.index(row)
        after = [a for a in view.perm[at + 1 :] if a != column]
        if view.perm[-1] == column and math.prod(shape[a] for a in after) > 1:
            images = math.prod(shape[a] for a in view.perm[:at])
            channels = math.prod(shape[a] for a in after) * shape[column]
            return View(view.perm, (images, shape[row], 1, channels))
    return row_view(shape)


def matrices(o: Operand, batch: tuple[int, ...], turned: bool = False) -> list[Matrix]:
    """One matrix per batch element, in order; ``o`` has been placed."""
    assert o.view is not None
    shape, (_, h, w, c) = o.shape, o.view.nhwc
    rank, steps = len(shape), _steps(shape, o.view)
    rows, columns = (shape[-1], shape[-2]) if turned else (shape[-2], shape[-1])
    found = []
    for index in np.ndindex(*batch):
        mine = index[len(batch) - (rank - 2) :]
        at = sum(0 if shape[a] == 1 else i * steps[a] for a, i in enumerate(mine))
        image, rest = divmod(at, h * w * c)
        pixel, channel = divmod(rest, c)
        ref = o.at(image, channel, pixel // w, pixel % w)
        found.append(Matrix(ref, rows, columns, o.plane_atoms, channel))
    return found


def constant_matrices(a: Array, batch: tuple[int, ...]) -> list[Array]:
    """[rows, columns] of a constant, per batch element."""
    full = np.broadcast_to(a, (*batch, *a.shape[-2:]))
    return [full[index] for index in np.ndindex(*batch)]


# -- laying out kernels ----------------------------------------------------------------------


def kernel_atoms(columns: int, kernels: int) -> int:
    """Atoms of ``kernels`` kernels of ``columns`` weights, in weight layout."""
    return align(columns, LANES) // LANES * kernels


def spare_atoms(columns: int, kernels: int) -> int:
    """Atoms that `lay_out` needs beside the result."""
    wide = columns > DEPTH and kernels > GROUP
    return kernel_atoms(columns, kernels) if wide else 0


@dataclass(frozen=True, slots=True)
class Move:
    """One DPU copy."""

    piece: _flying.Piece
    stages: _flying.Stages = _flying.Stages()


@dataclass(frozen=True, slots=True)
class Multiply:
    """One tile of a convolution whose kernels lie at ``weights``."""

    conv: _conv.Convolution
    weights: Ref
    tile: _conv.Tile
    asked: bool = True  # by the model; a transposition is not


Step = Move | Multiply


def _spans(total: int, most: int) -> Iterator[tuple[int, int]]:
    for first in range(0, total, most):
        yield first, min(most, total - first)


def lay_out(site: Site, m: Matrix, kernels: int, target: Ref, spare: Ref) -> Iterator[Move]:
    """Rows of ``m`` become kernels at ``target``, in weight layout; missing ones are zero.

    Weight layout: per 16 kernels, per 32 channels (the last group as wide as it is): 16 rows of
    that many channels.  Rows of one channel group are gathered at ``spare`` first where there is
    more than one group each way, then blocks of 16 rows move to their place.
    """
    atom = chip.ATOM_BYTES
    total = align(m.columns, LANES) // LANES  # atoms of a row
    whole, rest = divmod(total, DEPTH_ATOMS)
    groups = kernels // GROUP
    direct = not spare_atoms(m.columns, kernels)
    base = target if direct else spare
    widths = [DEPTH_ATOMS] * whole + ([rest] if rest else [])
    # rows that are not there, first: later tasks may not read what nobody wrote
    missing = kernels - m.rows
    if missing:
        zeros = site.place(np.zeros(missing * DEPTH_ATOMS * atom, np.uint8))
        for g, width in enumerate(widths):
            there = base + (g * DEPTH_ATOMS * kernels + m.rows * width) * atom
            for done, across in _spans(missing * width, _flying.LINE_ATOMS):
                skip = done * atom
                piece = _flying.Piece(zeros + skip, None, there + skip, across, 1, 1, across)
                yield Move(piece)
    for g, width in enumerate(widths):
        last = g == len(widths) - 1
        stages = _mask(site, width, m.columns - g * DEPTH) if last else _flying.Stages()
        for first, rows in _spans(m.rows, chip.MAX_CUBE_PX):
            source = m.ref + (g * DEPTH_ATOMS * m.pitch_atoms + first) * atom
            there = base + (g * DEPTH_ATOMS * kernels + first * width) * atom
            piece = _flying.Piece(
                source,
                None,
                there,
                1,
                rows,
                width,
                1,
                in_plane_atoms=m.pitch_atoms,
                out_line_atoms=width,
            )
            yield Move(piece, stages)
    if direct:
        return
    line = total * GROUP  # atoms of 16 kernels
    most = groups if line - rest * GROUP <= _conv.MAX_NOTCH else 1
    block = DEPTH_ATOMS * GROUP
    planes = chip.MAX_CUBE_PX // LANES
    for first, lines in _spans(groups, most):
        for g, count in _spans(whole, planes):
            piece = _flying.Piece(
                spare + (g * kernels * DEPTH_ATOMS + first * block) * atom,
                None,
                target + (first * line + g * block) * atom,
                block,
                lines,
                count,
                block,
                in_plane_atoms=kernels * DEPTH_ATOMS,
                out_line_atoms=line,
            )
            yield Move(piece)
        if rest:
            tail = rest * GROUP
            piece = _flying.Piece(
                spare + (whole * kernels * DEPTH_ATOMS + first * tail) * atom,
                None,
                target + (first * line + whole * block) * atom,
                tail,
                lines,
                1,
                tail,
                out_line_atoms=line,
            )
            yield Move(piece)


def _mask(site: Site, width: int, columns: int) -> _flying.Stages:
    """Factors 1, and 0 for lanes past the last column: they may hold anything finite."""
    lanes = width * LANES
    if columns == lanes:
        return _flying.Stages()
    factors = np.zeros(align(lanes, chip.BIAS_ALIGN_CHANNELS), "<f2")
    factors[:columns] = 1
    return _flying.Stages(
        (
            dpu.BN_CFG(bn_alu_bypass=1, bn_relu_bypass=1),
            dpu.BN_MUL_CFG(bn_mul_src=1),
        ),
        bn_operands=site.place(factors.view(np.uint8)),
        bn_use=4,
    )


# -- products --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Product:
    """x · w + bias, batch by batch.

    ``turned_x``: x is stored [K, M]; ``turned_w``: w is stored [N, K].
    """

    site: Site
    bias: Array | None
    turned_x: bool = False
    turned_w: bool = False

    @property
    def batch(self) -> tuple[int, ...]:
        return self.site.output.shape[:-2]

    @property
    def k(self) -> int:
        return self.site.x.shape[-2 if self.turned_x else -1]

    @property
    def n(self) -> int:
        return self.site.output.shape[-1]

    @property
    def right(self) -> Operand:
        right = self.site.inputs[1]
        assert right is not None
        return right

    @property
    def kernels(self) -> int:
        """Most kernels that one of its convolutions may have."""
        return align(max(self.n, self.site.output.channels), GROUP)

    @property
    def transposes(self) -> bool:
        """Does the right operand have the sum along its pixels?"""
        right = self.right
        if right.const is not None:
            return False
        assert right.view is not None
        return not readable(right.shape, right.view, not self.turned_w)

    def regions(self) -> tuple[int, int, int, int, int]:
        """Bytes: start of kernels, spare, turned cube, kernels of the transposition; the end."""
        if self.right.const is not None:
            return 0, 0, 0, 0, 0
        deep = align(self.k, GROUP)
        columns = min(self.n, TURNED_COLUMNS)
        sizes = [kernel_atoms(self.k, self.kernels), spare_atoms(self.k, self.kernels), 0, 0]
        if self.transposes:
            sizes[1] = max(sizes[1], spare_atoms(columns, deep))
            sizes[2] = self.n * deep // LANES
            sizes[3] = kernel_atoms(columns, deep)
        ends, at = [], 0
        for size in sizes:
            at += align(size, 4) * chip.ATOM_BYTES
            ends.append(at)
        return 0, ends[0], ends[1], ends[2], ends[3]

    def steps(self) -> Iterator[Step]:
        """Everything in order."""
        site = self.site
        outs = matrices(site.output, self.batch)
        wide = site.output.nhwc[3]
        epilogue = _conv.Epilogue(*clip_range(site.node))
        known: tuple[Matrix, int] | None = None
        weights = site.scratch
        for left, right, out in zip(self._lefts(), self._rights(), outs, strict=True):
            last = out.channel + self.n == wide
            room = max(site.output.channels - out.channel, self.n) if last else self.n
            y = out.cube("product", site.output, room)
            conv = self._convolution(left, y, self.bias, epilogue)
            if not isinstance(right, Matrix):
                weights = self._packed(right, conv)
            elif known != (right, conv.out_channels):
                known = right, conv.out_channels
                yield from self._kernels(right, conv.out_channels)
            for tile in _conv.tiles(conv):
                yield Multiply(conv, weights, tile)

    def _convolution(
        self, x: Operand, y: Operand, bias: Array | None, epilogue: _conv.Epilogue
    ) -> _conv.Convolution:
        return _conv.Convolution(
            site=self.site,
            x=x,
            y=y,
            window=_conv.Window(),
            weights=np.zeros((0, 1, 1, x.shape[-1]), np.float16),  # they are in memory
            bias=bias,
            weight_scale=None,
            depthwise=False,
            epilogue=epilogue,
        )

    def _lefts(self) -> list[Operand]:
        x, room = self.site.x, align(self.k, LANES)
        if x.const is None:
            mine = matrices(x, self.batch, self.turned_x)
        else:
            mine = [
                self._cube(a.T if self.turned_x else a)
                for a in constant_matrices(x.const, self.batch)
            ]
        return [m.cube("left", x, room) for m in mine]

    def _cube(self, rows: Array) -> Matrix:
        """A constant left operand."""
        ref = self.site.place(pack_cube(rows[None, :, None, :].astype(np.float16), P))
        return Matrix(ref, rows.shape[0], rows.shape[1], rows.shape[0])

    def _rights(self) -> Sequence[Matrix | Array]:
        right = self.right
        if right.const is not None:
            return constant_matrices(right.const, self.batch)
        return matrices(right, self.batch, self.turned_w if self.transposes else not self.turned_w)

    def _packed(self, w: Array, conv: _conv.Convolution) -> Ref:
        """A constant right operand, as kernels in the constant buffer."""
        full = np.zeros((conv.out_channels, 1, 1, self.k), np.float16)
        full[: self.n, 0, 0] = w if self.turned_w else w.T
        return self.site.place(pack_weights(full, P, conv.in_channels))

    def _kernels(self, right: Matrix, kernels: int) -> Iterator[Step]:
        """Bring the right operand to the start of the scratch memory."""
        site = self.site
        start, spare, turned, small, _ = (site.scratch + at for at in self.regions())
        if not self.transposes:
            yield from lay_out(site, right, kernels, start, spare)
            return
        deep = align(self.k, GROUP)
        for first in range(0, self.n, TURNED_COLUMNS):
            columns = min(TURNED_COLUMNS, self.n - first)
            yield from lay_out(site, right.column(first, columns), deep, small, spare)
            unit = self._cube(np.eye(columns))
            y = Matrix(turned + first * chip.ATOM_BYTES, columns, self.k, self.n)
            conv = self._convolution(
                unit.cube("unit", site.output, align(columns, LANES)),
                y.cube("turned", site.output, deep),
                None,
                _conv.Epilogue(),
            )
            for tile in _conv.tiles(conv):
                yield Multiply(conv, small, tile, asked=False)
        yield from lay_out(site, Matrix(turned, self.n, self.k, self.n), kernels, start, spare)

    def tasks(self) -> Iterator[Task]:
        """Its steps as tasks."""
        for step in self.steps():
            if isinstance(step, Move):
                yield _move(self.site, step)
            else:
                consts = _conv.place(step.conv, step.weights)
                cost = _conv.cost(step.conv, consts, step.tile)
                yield Task(
                    self.site.node.name,
                    tuple(_conv.words(step.conv, consts, step.tile)),
                    _conv.START,
                    DPU_DONE,
                    cost if step.asked else replace(cost, macs=0),
                )


def _move(site: Site, move: Move) -> Task:
    piece = move.piece
    nbytes = piece.width * piece.height * piece.surfaces * chip.ATOM_BYTES
    return Task(
        site.node.name,
        tuple(_flying.words(P, move.stages, piece, site.output)),
        _flying.START,
        DPU_DONE,
        Cost(read_bytes=nbytes, write_bytes=nbytes),
    )
