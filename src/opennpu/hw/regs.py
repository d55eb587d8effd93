"""The language in which registers are described.

A register is a class; a field is an annotated attribute.  From one such class come the
encoder, the decoder, the disassembler, the emulator's register file, the C header of the
kernel module and the reference page in the docs.  Nothing else writes down a bit position.
"""

from __future__ import annotations

import enum
import keyword
import typing
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self, dataclass_transform

from opennpu.errors import FieldRangeError

WORD_MASK = 0xFFFF_FFFF


class Trust(enum.Enum):
    """How we know what a field means.  Shown in the docs and by the disassembler."""

    MEASURED = "measured"  # a test on a board pins it down
    DOCUMENTED = "documented"  # a public manual or driver says so
    GUESSED = "guessed"  # fits what we have seen; no test yet


@dataclass(frozen=True, slots=True)
class Source:
    """A public origin of facts, and the trust that it earns unless a field says otherwise."""

    text: str
    trust: Trust


@dataclass(frozen=True, slots=True)
class Block:
    """One hardware unit: where its registers sit, and its id in a regcmd word."""

    name: str
    base: int
    target: int
    size: int = 0x1000

    @property
    def module(self) -> str:
        """Name of the Python module that describes this unit."""
        name = self.name.lower()
        return f"{name}_" if keyword.iskeyword(name) else name


@dataclass(frozen=True, slots=True)
class Field:
    """One bit range of a register, and how to read the number in it."""

    high: int
    low: int
    bias: int = 0  # the bits hold ``value - bias``; 1 for every "size minus one" field
    scale: int = 1  # the bits hold ``value / scale``; 16 for 16-byte aligned addresses
    signed: bool = False  # two's complement
    unit: str = ""
    default: int | None = None  # None: the caller must say it (mypy checks that)
    trust: Trust = Trust.GUESSED
    source: str = ""
    doc: str = ""

    @property
    def width(self) -> int:
        """Number of bits."""
        return self.high - self.low + 1

    @property
    def mask(self) -> int:
        """The bits of this field, in place."""
        return ((1 << self.width) - 1) << self.low

    @property
    def min(self) -> int:
        """Smallest value a caller may give, in the field's unit."""
        raw = -(1 << (self.width - 1)) if self.signed else 0
        return raw * self.scale + self.bias

    @property
    def max(self) -> int:
        """Largest value a caller may give, in the field's unit."""
        raw = (1 << (self.width - self.signed)) - 1
        return raw * self.scale + self.bias

    def pack(self, value: int, where: str) -> int:
        """``value`` as bits in place.  Raises FieldRangeError with the legal range."""
        value = int(value)
        raw, rest = divmod(value - self.bias, self.scale)
        if rest or not self.min <= value <= self.max:
            step = f" in steps of {self.scale}" if self.scale > 1 else ""
            at = f"bits {self.high}:{self.low}" if self.width > 1 else f"bit {self.low}"
            holds = "hold" if self.width > 1 else "holds"
            raise FieldRangeError(
                f"{where}={value}: {at} {holds} {self.min}..{self.max} {self.unit}".rstrip() + step
            )
        return raw << self.low & self.mask

    def unpack(self, word: int) -> int:
        """The value in ``word``, in the field's unit."""
        raw = (word & self.mask) >> self.low
        if self.signed and raw >> (self.width - 1):
            raw -= 1 << self.width
        return raw * self.scale + self.bias


def bits(
    high: int, low: int | None = None, *, source: Source, trust: Trust | None = None, **kw: Any
) -> Any:
    """Declare a field: ``bits(26, 16, …)`` or a single ``bits(7, …)``.  Keywords: see `Field`."""
    low = high if low is None else low
    return Field(high, low, trust=trust or source.trust, source=source.text, **kw)


REGISTERS: dict[int, type[Register]] = {}
"""Every described register by its offset inside a core's 64 KiB window."""


class _Plan(NamedTuple):
    """One field, worked out once: encoding and decoding are the inner loop of everything."""

    name: str
    default: int | None
    codes: dict[int, int]  # members of the field's enum by value; empty for plain integers
    low: int
    mask: int  # of the field, shifted down to bit 0
    sign: int  # weight of the sign bit, 0 if unsigned
    bias: int
    scale: int
    min: int
    max: int


def _plan(name: str, f: Field, kind: type[int]) -> _Plan:
    codes: dict[int, int] = {}
    if issubclass(kind, enum.IntEnum):
        codes = {int(member): member for member in kind}
    sign = 1 << (f.width - 1) if f.signed else 0
    return _Plan(
        name, f.default, codes, f.low, f.mask >> f.low, sign, f.bias, f.scale, f.min, f.max
    )


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(bits,))
class Register:
    """Base class of all registers.  Instances are values: immutable, comparable, printable."""

    block: ClassVar[Block]
    offset: ClassVar[int]  # inside the block
    address: ClassVar[int]  # inside a core's window: what a regcmd carries
    access: ClassVar[str]  # RW, RO, W1C
    reset: ClassVar[int]
    shadowed: ClassVar[bool]  # one copy per ping-pong group
    fields: ClassVar[dict[str, Field]]
    known: ClassVar[int]  # mask of all described bits
    _plans: ClassVar[tuple[_Plan, ...]]

    def __init_subclass__(
        cls,
        *,
        block: Block | None = None,
        offset: int = 0,
        access: str = "RW",
        reset: int = 0,
        shadowed: bool = True,
    ) -> None:
        """``block`` None: a template, whose fields the registers derived from it have."""
        if block is None:
            return
        cls.block, cls.offset, cls.address = block, offset, block.base + offset
        cls.access, cls.reset, cls.shadowed = access, reset, shadowed
        own = [vars(base) for base in reversed(cls.__mro__)]
        cls.fields = {k: v for d in own for k, v in d.items() if isinstance(v, Field)}
        hints = typing.get_type_hints(cls)
        cls._plans = tuple(_plan(n, f, hints[n]) for n, f in cls.fields.items())
        cls.known = 0
        for name, f in cls.fields.items():
            if cls.known & f.mask:
                raise TypeError(f"{cls._where()}.{name} overlaps another field")
            cls.known |= f.mask
        if REGISTERS.setdefault(cls.address, cls) is not cls:
            raise TypeError(f"two registers at {cls.address:#x}")

    word: ClassVar[int]  # on an instance: the 32 bits the hardware sees
    unknown: ClassVar[int] = 0  # on an instance: bits set outside every known field

    def __init__(self, *, unknown: int = 0, **values: int) -> None:
        free = WORD_MASK & ~self.known
        if unknown & ~free:
            raise FieldRangeError(
                f"{self._where()}.unknown={unknown:#x}: only bits of {free:#010x} have no name"
            )
        word, held = unknown, self.__dict__
        for p in self._plans:
            value = values.pop(p.name, p.default)
            if value is None:
                raise TypeError(f"{type(self).__name__} needs {p.name}=")
            value = int(value)
            raw, rest = divmod(value - p.bias, p.scale)
            if rest or not p.min <= value <= p.max:
                self.fields[p.name].pack(value, f"{self._where()}.{p.name}")  # raises
            word |= (raw & p.mask) << p.low
            held[p.name] = p.codes.get(value, value)
        if values:
            raise TypeError(f"{type(self).__name__} has no field {', '.join(values)}")
        held["word"], held["unknown"] = word, unknown

    @classmethod
    def _where(cls) -> str:
        return f"{cls.block.name}.{cls.__name__}"

    @classmethod
    def decode(cls, word: int) -> Self:
        """Inverse of `word`, for any 32 bits whatever: what we cannot name lands in ``unknown``.

        Codes without a name in the field's enum stay plain integers.
        """
        self = cls.__new__(cls)
        held = self.__dict__
        for p in cls._plans:
            raw = word >> p.low & p.mask
            value = ((raw ^ p.sign) - p.sign) * p.scale + p.bias
            held[p.name] = p.codes.get(value, value)
        held["word"], held["unknown"] = word & WORD_MASK, word & ~cls.known & WORD_MASK
        return self

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} is a value; make a new one")

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.word == getattr(other, "word", None)

    def __hash__(self) -> int:
        return hash((type(self), self.word))

    def __repr__(self) -> str:
        shown = [
            f"{p.name}={value}"
            for p in self._plans
            if (value := int(self.__dict__[p.name])) != p.default
        ]
        shown += [f"unknown={self.unknown:#x}"] * bool(self.unknown)
        return f"{self.block.module}.{type(self).__name__}({', '.join(shown)})"
