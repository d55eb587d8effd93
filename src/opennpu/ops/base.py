"""What an operator has to say about itself.

Two routes lead to a new operator (docs/how-to/add-an-operator.md):

* composite: `expand` rewrites a node into nodes of existing operators; no register knowledge;
* native: `check`, `views`, `tile`, `emit`, `cost` speak registers.

Being a class in a module of this package is the registration; other distributions use the
entry-point group ``opennpu.ops``.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from opennpu.errors import UnsupportedError
from opennpu.hw.layout import align, cube_surfaces
from opennpu.hw.rk3588 import chip
from opennpu.hw.rk3588.common import Precision
from opennpu.hw.rk3588.pc import DPU_DONE
from opennpu.ir.graph import Node, Quant, Value
from opennpu.program import Cost, Emitted, Ref, Task, View

Array = npt.NDArray[Any]
MAX_SHIFT = 1024.0
"""Largest lower bound, up or down, of a clip: the DPU subtracts it in fp32 and adds it again."""
OPS: dict[str, type[Op]] = {}
"""Every operator by each name under which graphs know it."""


@dataclass(frozen=True, slots=True)
class Target:
    """What the program will run on, as far as operators care."""

    name: str = "rknpu"
    ppu: bool = True  # False on stock rocket: it unmasks only the DPU interrupt


@dataclass(frozen=True, slots=True)
class Operand:
    """A value as an operator sees it.  ``view`` and ``ref`` are set once it has its place."""

    value: Value
    precision: Precision
    view: View | None = None
    channels: int = 0  # channels with room in memory
    ref: Ref = field(default_factory=lambda: Ref("arena"))
    const: Array | None = None  # set for constants: then view and ref mean nothing
    pitch_atoms: int = 0  # between surfaces, where the cube is a part of a larger one

    @property
    def shape(self) -> tuple[int, ...]:
        return self.value.shape

    @property
    def nhwc(self) -> tuple[int, int, int, int]:
        """Shape of the cube."""
        if self.view is None:
            raise AssertionError(f"{self.value.name} has no view yet")
        return self.view.nhwc

    @property
    def surfaces(self) -> int:
        """Channel surfaces in memory, per image."""
        return cube_surfaces(max(self.channels, self.nhwc[3]), self.precision)

    @property
    def plane_atoms(self) -> int:
        """Atoms from one surface to the next."""
        return self.pitch_atoms or self.nhwc[1] * self.nhwc[2]

    def at(self, n: int = 0, channel: int = 0, y: int = 0, x: int = 0) -> Ref:
        """Address of the atom that holds an element."""
        surface = n * self.surfaces + channel // chip.elements_per_atom(self.precision)
        atom = surface * self.plane_atoms + y * self.nhwc[2] + x
        return self.ref + atom * chip.ATOM_BYTES

    @property
    def quant(self) -> Quant:
        """Its int8 quantization; only operators in int8 mode ask."""
        if self.value.quant is None:
            raise AssertionError(f"{self.value.name} is not quantized")
        return self.value.quant

    @property
    def scale(self) -> float:
        return float(self.quant.scale)

    @property
    def zero_point(self) -> int:
        return int(self.quant.zero_point)


def _no_const(_: Array) -> Ref:
    raise AssertionError("constants are placed at emission only")


@dataclass(frozen=True, slots=True)
class Site:
    """One node and everything around it that its operator may look at."""

    node: Node
    inputs: tuple[Operand | None, ...]
    output: Operand
    precision: Precision  # INT8 or FP16: the type of all its activations
    target: Target = Target()
    residual: Operand | None = None  # operand of an "add" epilogue
    place: Callable[[Array], Ref] = _no_const  # bytes -> address in the constant buffer
    scratch: Ref = field(default_factory=lambda: Ref("arena"))  # `Op.scratch` bytes of its own

    @property
    def x(self) -> Operand:
        """The first input."""
        first = self.inputs[0]
        if first is None:
            raise AssertionError(f"{self.node.name} has no first input")
        return first

    def const(self, index: int) -> Array | None:
        """Input ``index`` if it is a constant, else None."""
        operand = self.inputs[index] if index < len(self.inputs) else None
        return operand.const if operand else None

    def refuse(self, what: str, remedy: str = "It stays in onnxruntime") -> UnsupportedError:
        """An error that names this node."""
        return UnsupportedError(self.node.name, f"{self.node.op} {what}", remedy)

    def with_(self, **changes: Any) -> Site:
        return replace(self, **changes)


@dataclass(frozen=True, slots=True)
class Sample:
    """A case every operator brings with it.  ``ok=False``: `check` must refuse it.

    ``shapes``: of the dynamic inputs.  ``consts``: shapes of constant inputs that follow them.
    ``bound``: largest allowed |error| relative to the largest |reference| in fp16.
    """

    shapes: tuple[tuple[int, ...], ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    consts: tuple[tuple[int, ...], ...] = ()
    ok: bool = True
    precisions: tuple[Precision, ...] = (Precision.FP16, Precision.INT8)
    bound: float = 2e-3
    op: str = ""  # which of the operator's names; default the first
    span: tuple[float, float] | None = None  # of the numbers that go in; default around 0


class Op:
    """One operator.  Subclass it in a file of its own; that is all the registration there is."""

    names: ClassVar[tuple[str, ...]] = ()  # op types; default: the class name
    samples: ClassVar[Sequence[Sample]] = ()
    precisions: ClassVar[tuple[Precision, ...]] = (Precision.FP16, Precision.INT8)
    macs: ClassVar[bool] = False  # does it use the MAC array?
    aliases: ClassVar[bool] = False  # the output is the first input under another view: no task

    def __init_subclass__(cls) -> None:
        if inspect.isabstract(cls) or cls.__name__.startswith("_"):
            return
        for name in cls.names or (cls.__name__,):
            OPS[name] = cls

    # -- meaning -------------------------------------------------------------------------
    @staticmethod
    def reference(node: Node, *inputs: Array) -> Array:
        """What the node computes, in NumPy float32; shapes in the docstring."""
        raise NotImplementedError

    # -- composite route -----------------------------------------------------------------
    @staticmethod
    def expand(
        node: Node, values: Mapping[str, Value], consts: Mapping[str, Array]
    ) -> Expansion | None:
        """The same in terms of other operators, or None for a native operator."""
        return None

    @classmethod
    def alternative(
        cls, node: Node, values: Mapping[str, Value], consts: Mapping[str, Array]
    ) -> Expansion | None:
        """As `expand`, asked only where the native route refuses the node."""
        return None

    # -- native route --------------------------------------------------------------------
    @staticmethod
    def check(site: Site) -> None:
        """Raise UnsupportedError, with both numbers and a remedy, if the NPU cannot run it."""
        raise NotImplementedError

    @staticmethod
    def views(site: Site) -> tuple[tuple[View | None, ...], View]:
        """Views that the dynamic inputs must have (None: a constant), and the output's.

        ``site.inputs[i].view`` is what the producer already chose, or None.
        """
        raise NotImplementedError

    @classmethod
    def room(cls, site: Site) -> int:
        """Channels for which the output needs room; by default whole atoms."""
        return align(site.output.nhwc[3], chip.elements_per_atom(site.output.precision))

    @classmethod
    def input_rooms(cls, site: Site, room: int) -> tuple[int, ...]:
        """Channels with room that each input must have, when the output has ``room``.

        Whole atoms by default; operators that walk all surfaces of their output ask for as many.
        """
        return tuple(0 for _ in site.inputs)

    @classmethod
    def scratch(cls, site: Site) -> int:
        """Bytes that its tasks need beside inputs and output; ``site.output.channels`` is set."""
        return 0

    @classmethod
    def tasks(cls, site: Site) -> Iterator[Task]:
        """The tasks that compute the node: `tile`, then `emit` and `cost` for each tile."""
        for tile in cls.tile(site):
            yield Task(
                site.node.name,
                tuple(cls.emit(site, tile)),
                cls.units,
                cls.int_mask,
                cls.cost(site, tile),
            )

    units: ClassVar[int] = 0x18  # start word: DPU and DPU_RDMA
    int_mask: ClassVar[int] = DPU_DONE

    @staticmethod
    def tile(site: Site) -> Sequence[Any]:
        """Pieces, each of which fits the hardware; one task each."""
        return (None,)

    @staticmethod
    def emit(site: Site, tile: Any) -> Iterator[Emitted]:
        """The register writes of one tile, without the tail."""
        raise NotImplementedError

    @staticmethod
    def cost(site: Site, tile: Any) -> Cost:
        """What one tile computes and moves."""
        return Cost()


@dataclass(frozen=True)
class Expansion:
    """Nodes that stand for one node; new values and constants that they need."""

    nodes: tuple[Node, ...]
    values: Mapping[str, Value] = field(default_factory=dict)
    constants: Mapping[str, Array] = field(default_factory=dict)


def clip_range(node: Node) -> tuple[float, float]:
    """The relu and clip epilogues of a node as one clip to (low, high)."""
    low, high = -np.inf, np.inf
    for e in node.epilogue:
        if e.kind in ("add", "call"):
            low, high = -np.inf, np.inf
            continue
        lo, hi = (0.0, np.inf) if e.kind == "relu" else (e.low, e.high)
        low, high = float(np.clip(low, lo, hi)), float(np.clip(high, lo, hi))
    return low, high


def apply_epilogue(node: Node, y: Array, residual: Array | None = None) -> Array:
    """Reference of a node's epilogue, in float32."""
    for e in node.epilogue:
        if e.kind == "add":
            assert residual is not None
            y = y + residual
        elif e.kind == "call":
            y = OPS[e.op].reference(Node(node.name, e.op, ("",), ("",), e.attrs), y)
        else:
            y = np.maximum(y, 0) if e.kind == "relu" else np.clip(y, e.low, e.high)
    return y


# -- views -----------------------------------------------------------------------------------


def image_view(shape: tuple[int, ...]) -> View:
    """[C], [N, C], [N, C, L], [N, C, H, W] or [N, C, D…]: channel second; length lies on H."""
    rank = len(shape)
    if rank < 2:
        return matrix_view(shape)
    if rank == 2:
        return View((0, 1), (shape[0], 1, 1, shape[1]))
    perm = (0, *range(2, rank), 1)
    if rank == 3:
        return View(perm, (shape[0], shape[2], 1, shape[1]))
    h, w = shape[2], int(np.prod(shape[3:]))
    return View(perm, (shape[0], h, w, shape[1]))


def matrix_view(shape: tuple[int, ...]) -> View:
    """[…, M, K]: channel last; rows lie on H, all leading axes folded into them."""
    rows = int(np.prod(shape[:-1])) if len(shape) > 1 else 1
    return View(tuple(range(len(shape))), (1, rows, 1, shape[-1] if shape else 1))


def _order(shape: tuple[int, ...], view: View) -> tuple[tuple[int, int], ...]:
    """Axes longer than 1 with their step in the cube's linear [N, H, W, C] order."""
    step, steps = 1, {}
    for axis in reversed(view.perm):
        if shape[axis] > 1:
            steps[axis] = step
        step *= shape[axis]
    return tuple(sorted(steps.items()))


def same_cube(shape: tuple[int, ...], a: View, b: View) -> bool:
    """Do both views lay ``shape`` out in the same bytes?  (How H·W splits does not matter.)"""
    n_a, h_a, w_a, c_a = a.nhwc
    n_b, h_b, w_b, c_b = b.nhwc
    same = (n_a, h_a * w_a, c_a) == (n_b, h_b * w_b, c_b)
    return same and _order(shape, a) == _order(shape, b)


def _factors(
    a: tuple[int, ...], b: tuple[int, ...]
) -> tuple[list[list[int]], list[list[int]]] | None:
    """Common refinement of two shapes of one size: per axis, the indices of its factors."""
    count = 0
    of_a: list[list[int]] = [[] for _ in a]
    of_b: list[list[int]] = [[] for _ in b]
    i = j = 0
    rest_a = rest_b = 1
    while True:
        while rest_a == 1 and i < len(a):
            rest_a, i = a[i], i + 1
        while rest_b == 1 and j < len(b):
            rest_b, j = b[j], j + 1
        if rest_a == 1 and rest_b == 1:
            return of_a, of_b
        size = min(rest_a, rest_b)
        if rest_a % size or rest_b % size:
            return None
        of_a[i - 1].append(count)
        of_b[j - 1].append(count)
        count += 1
        rest_a, rest_b = rest_a // size, rest_b // size


def reshaped_view(old: tuple[int, ...], view: View, new: tuple[int, ...]) -> View | None:
    """The view under which ``reshape(x, new)`` has the bytes of ``x``; None if there is none."""
    refined = _factors(old, new) if math.prod(old) == math.prod(new) else None
    if refined is None:
        return None
    of_old, of_new = refined
    order = [f for axis in view.perm for f in of_old[axis]]
    place = {f: k for k, f in enumerate(order)}
    spans = []
    for axis, fs in enumerate(of_new):
        at = [place[f] for f in fs]
        if at and at != list(range(at[0], at[0] + len(at))):
            return None
        spans.append((at[0] if at else -1, axis))
    # axes of length 1 may stand anywhere: keep them first
    return View(tuple(axis for _, axis in sorted(spans)), view.nhwc)
