"""Every mode of every unit that the emulator models, its element types, and how sure we are.

The rows of docs/reference/coverage.md, by hand; the tests in it are found by `recorder`.  Trust is
of the mode with that type, not of the register fields: ``MEASURED`` says that bytes or numbers of a
board agree with the model, ``RUN`` that streams with it pass on a board, ``DOCUMENTED`` that a
manual or a sibling chip says so, ``GUESSED`` that nothing contradicts it.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Trust(enum.Enum):
    """How sure a mode is."""

    MEASURED = "measured"
    RUN = "board-run"
    DOCUMENTED = "documented"
    GUESSED = "guessed"


@dataclass(frozen=True, slots=True)
class Mode:
    """One mode with the element types of one trust."""

    unit: str
    name: str
    types: tuple[str, ...]
    trust: Trust
    source: str


M, R, D, G = Trust.MEASURED, Trust.RUN, Trust.DOCUMENTED, Trust.GUESSED
ALL = "int4 int8 int16 fp16 bf16 tf32"
FLYING = "int8 int16 int32 fp16 bf16 fp32"


def _modes(unit: str, *rows: tuple[str, str, Trust, str]) -> list[Mode]:
    """Types are apart by commas, or by spaces where they are single words."""
    return [
        Mode(unit, name, tuple(types.split("," if " to " in types else " ")), trust, source)
        for name, types, trust, source in rows
    ]


MODES: tuple[Mode, ...] = (
    *_modes(
        "PC",
        ("first task of a list", "any", M, "board notes A.0"),
        ("chained tasks", "any", M, "board notes A.0: fp16 and int8 chains are exact"),
        ("delta task: geometry of the group", "any", M, "board notes A.0: two tasks back"),
        ("pointers cleared, no ping-pong", "any", M, "board notes A.0"),
        ("tables written by a list", "any", R, "register notes C.7"),
        ("another core", "any", M, "board notes A.0, A.16"),
        ("started by hand through GLOBAL", "any", D, "TRM"),
        ("interrupt of a DMA read error", "any", D, "TRM; register notes A.7"),
        ("interrupt of a DMA write error", "any", D, "TRM; register notes A.7"),
    ),
    *_modes(
        "CNA",
        ("direct convolution", ALL, M, "board notes A.1, A.2"),
        ("depthwise convolution", "int8", M, "board notes A.8: 4,096 bytes of silicon"),
        ("depthwise convolution", "fp16", M, "board notes A.8"),
        ("depthwise convolution", "int16 bf16", G, "as fp16"),
        ("kernel above 1x1", "int8 fp16", M, "board notes A.8, B.1"),
        ("kernel above 1x1", "int4 int16 bf16 tf32", G, "as fp16 and int8"),
        ("stride above 1", "int8 fp16", R, "board notes B.1; register notes F"),
        ("stride above 1", "int4 int16 bf16 tf32", G, "as fp16 and int8"),
        ("dilation", "fp16", R, "board notes B.1"),
        ("dilation", "int8", D, "register notes B.2: RV1106"),
        ("dilation", "int4 int16 bf16 tf32", G, "as fp16"),
        ("padding with 0", "int8 fp16", M, "board notes A.8"),
        ("padding with 0", "int4 int16 bf16 tf32", G, "as fp16 and int8"),
        ("padding with PAD_CON1", "int8", M, "board notes A.8: 227 of 4,096 bytes depend on it"),
        ("padding with PAD_CON1", "fp16", D, "register notes B.9"),
        ("padding with PAD_CON1", "int16 bf16 tf32", G, "as fp16; tf32: the whole word"),
        ("cube, four lines at a time", ALL, M, "board notes A.3; register notes B.5"),
        ("cube of fewer than 4 rows", "int8 fp16", R, "board notes A.3; reference/README.md"),
        ("cube of fewer than 4 rows", "int4 int16 bf16 tf32", G, "as fp16 and int8"),
        ("cube, line by line", "fp16", R, "register notes B.5; peer notes 2.5"),
        ("cube, line by line", "int4 int8 int16 bf16 tf32", G, "as fp16"),
        ("row-major matrix", "fp16", M, "board notes A.2"),
        ("row-major matrix", "int8", R, "board notes A.2"),
        ("row-major matrix", "int4 int16 bf16 tf32", G, "as fp16"),
        ("part of a channel group", "int8 fp16", R, "register notes E.2"),
        ("part of a channel group", "int16 bf16 tf32", G, "as fp16"),
        ("packed input of 1", "int8 fp16", R, "register notes B.5"),
        ("packed input of 1", "int16 bf16", G, "as fp16"),
        ("packed input of 2", "int8 int16 fp16 bf16", D, "register notes B.5"),
        ("packed input of 3", "int8 int16 fp16 bf16", D, "register notes B.5"),
        ("packed input of 4", "int8 int16 fp16 bf16", D, "register notes B.5"),
        ("input converter", "int8", R, "register notes B.8: Mesa"),
        ("input converter", "int16", D, "TRM; register notes B.8"),
        ("DECONV: zeros between pixels", "fp16", M, "board notes A.13"),
        ("DECONV: zeros between pixels", "int4 int8 int16 bf16 tf32", G, "as fp16"),
        ("compressed weights", "int8", G, "register notes B.11: one project decoded it"),
        ("DATA_REUSE", "fp16", M, "board notes A.6"),
        ("DATA_REUSE", "int4 int8 int16 bf16 tf32", G, "as fp16"),
        ("WEIGHT_REUSE", "int8 fp16", R, "register notes B.6; peer notes 2.6"),
        ("WEIGHT_REUSE", "int4 int16 bf16 tf32", G, "as fp16 and int8"),
        ("tile streamed through its banks", "int8 fp16", D, "reference/README.md"),
        ("weights streamed through their banks", "fp16", R, "register notes B.6: vendor captures"),
        ("weights streamed through their banks", "int8", G, "as fp16"),
    ),
    *_modes(
        "CORE",
        ("exact integer sums", "int4 int8 int16", M, "board notes A.1, A.7"),
        ("sums by the group rule", "fp16", M, "board notes A.7: 1x1; several taps are a guess"),
        ("sums by the group rule", "bf16 tf32", G, "board notes A.7: as fp16, tf32 by 16"),
        ("depthwise sums", "int8", M, "board notes A.8"),
        ("depthwise sums", "fp16 int16 bf16", G, "reference/README.md: in tap order"),
        ("sums of inputs for CPEND", "int8", M, "board notes A.8"),
        ("sums of inputs for CPEND", "int4 int16", G, "as int8"),
        ("CPEND is ignored", "fp16", M, "board notes A.8"),
        ("CPEND is ignored", "bf16 tf32", G, "as fp16"),
        ("CLIP_TRUNCATE", "int8", D, "TRM; register notes C.3"),
        ("CLIP_TRUNCATE", "int4 int16", G, "as int8"),
        ("part of a kernel group", "fp16", R, "register notes E.2"),
        (
            "part of a kernel group",
            "int8",
            R,
            "register notes E.2, F.4: Mesa, whole groups of channels",
        ),
    ),
    *_modes(
        "DPU",
        (
            "output types, from CORE",
            "int8 to int8,int8 to int32,int8 to fp16,int8 to fp32,int16 to int32,int4 to int16,"
            "fp16 to fp16,fp16 to fp32,bf16 to fp32,fp32 to fp32",
            M,
            "board notes A.1, A.9; a tf32 convolution is fp32 here",
        ),
        ("output types, from CORE", "fp16 to int16,int16 to int16", R, "register notes C.1"),
        (
            "output types, from CORE",
            "int8 to int16,int16 to int8,int16 to fp16,int16 to fp32,fp16 to int8,fp16 to int32",
            G,
            "board notes A.9, the same converter",
        ),
        (
            "output types, from memory",
            "int8 to int8,int16 to int16,int32 to int32,fp16 to fp16",
            M,
            "board notes A.10",
        ),
        (
            "output types, from memory",
            "int8 to int16,int8 to int32,int8 to fp16,int8 to fp32,int16 to int32,int16 to fp32,"
            "int32 to fp32,int4 to int16,fp16 to int16,fp16 to int32,fp16 to fp32,bf16 to fp32,"
            "fp32 to fp32",
            G,
            "board notes A.9, the same converter",
        ),
        ("BS ALU, register", "fp16", R, "register notes C.2"),
        ("BS ALU, register", "int8 int16 int32 bf16 fp32", D, "TRM"),
        ("BS ALU, per channel", "int8", M, "board notes A.8"),
        ("BS ALU, per channel", "fp16", R, "register notes C.2"),
        ("BS ALU, per channel", "int4 int16 bf16 fp32", G, "as int8 and fp16"),
        ("BS MUL, register", "fp16", R, "register notes C.2"),
        ("BS MUL, register", "int8 int16 int32 bf16 fp32", D, "TRM"),
        ("BS MUL, per channel", "int8", M, "board notes A.9"),
        ("BS MUL, per channel", "fp16", D, "TRM; register notes C.4"),
        ("BS MUL, shift by sign", "int8", M, "board notes A.9"),
        ("BS MUL, shift by sign", "int32", G, "as int8"),
        ("BS PReLU", "fp16 int8", D, "register notes C.2: NVDLA, RV1106"),
        ("BS PReLU", "int16 int32 bf16 fp32", G, "as int8 and fp16"),
        ("BS ReLU", "fp16", R, "board notes A.10"),
        ("BS ReLU", "int8", D, "register notes C.2: RV1106"),
        ("BS ReLU", "int4 int16 int32 bf16 fp32", G, "as int8 and fp16"),
        ("BS ReLUX", FLYING, D, "TRM"),
        ("CPEND, register", "int8", M, "board notes A.8"),
        ("CPEND, register", "int4 int16", G, "as int8"),
        ("CPEND, per channel", "int8", M, "board notes A.9"),
        ("BN ALU, register", "fp16", M, "board notes A.11: after the multiplier"),
        ("BN ALU, register", "int8 int16 int32 bf16 fp32", G, "as fp16"),
        ("BN ALU, per channel", "fp16 int8 int16", D, "TRM"),
        ("BN MUL, register", "fp16", M, "board notes A.11"),
        ("BN MUL, register", "int8", D, "register notes C.7: RV1106"),
        ("BN MUL, register", "int16 int32 bf16 fp32", G, "as fp16"),
        ("BN MUL, per channel", "fp16", R, "register notes C.9"),
        ("BN MUL, shift by sign", "int8", D, "TRM"),
        ("BN PReLU", "fp16 int8", D, "register notes C.2: NVDLA, RV1106"),
        ("BN PReLU", "int16 int32 bf16 fp32", G, "as int8 and fp16"),
        ("BN ReLU", FLYING, D, "TRM"),
        ("BN ReLUX", FLYING, D, "TRM"),
        ("ALU ADD", "int8 fp16", M, "board notes A.8, A.11"),
        ("ALU ADD", "int4 int16 int32 bf16 fp32", G, "as int8 and fp16"),
        ("ALU MINUS", FLYING, D, "TRM; register notes C.2"),
        *(
            (f"ALU {name}", "int8 int16 int32 fp16", D, "TRM")
            for name in ("MAX", "MIN", "ABS", "NEG")
        ),
        *((f"ALU {name}", "fp16", D, "TRM") for name in ("DIV", "FLOOR", "CEIL")),
        *(
            (f"EW {name}", "int8 int16 int32 fp16", M, "board notes A.10")
            for name in ("ADD", "MINUS", "MAX", "MIN", "MUL")
        ),
        *(
            (f"EW {name}", "bf16 fp32", G, "as fp16")
            for name in ("ADD", "MINUS", "MAX", "MIN", "MUL")
        ),
        ("EW DIV", "fp16", G, "board notes A.10: silicon is up to 0.35 % off"),
        ("EW PReLU", "int8 fp16", D, "board notes A.11: max(x, a x); TRM"),
        ("EW PReLU", "int16 int32 bf16 fp32", G, "as int8 and fp16"),
        *((f"EW {name}", "int8 int16 int32 fp16", D, "TRM") for name in ("ABS", "NEG")),
        *((f"EW {name}", "fp16", D, "TRM") for name in ("FLOOR", "CEIL")),
        ("EW ReLU", FLYING, D, "TRM"),
        ("EW ReLUX", FLYING, D, "TRM"),
        ("EW operand register", "int8 int16 int32 fp16", D, "TRM; one value in all lanes"),
        ("EW operand per pixel", "int8 int16 int32 fp16", M, "board notes A.10"),
        ("EW operand per pixel", "bf16 fp32", G, "as fp16"),
        ("EW operand per channel", "int8 int16 int32 fp16", D, "register notes C.9"),
        ("EW operand per pixel behind a convolution", "fp16", M, "board notes A.10"),
        ("EW operand per pixel behind a convolution", "int8", R, "register notes C.9: Mesa"),
        ("EW operand per pixel behind a convolution", "int16 bf16 fp32", G, "as fp16"),
        ("EW operand per channel behind a convolution", "fp16 int8", D, "register notes C.9"),
        ("EW operand converter, adds first", "int8", R, "register notes C.5: Mesa"),
        ("EW operand converter, multiplies first", "int8", D, "TRM"),
        ("EW operand converter, ties to even", "int8", D, "TRM"),
        ("EW operand converter, ties away", "int8", D, "TRM"),
        ("EW table", "fp16", M, "board notes A.11"),
        ("EW table", "int8", D, "register notes C.7: RV1106"),
        ("OUT_CVT scale", "int8", M, "board notes A.9"),
        ("OUT_CVT scale", "int4 int16 int32", G, "as int8"),
        ("OUT_CVT scale", "fp16", D, "TRM; board notes A.9"),
        ("OUT_CVT shift, ties to even", "int8", M, "board notes A.9"),
        ("OUT_CVT shift, ties to even", "int16 int32", G, "as int8"),
        ("OUT_CVT shift, ties away", "int8", M, "board notes A.9"),
        ("OUT_CVT shift, ties away", "int16 int32", G, "as int8"),
        ("OUT_CVT offset", "int8", M, "board notes A.9"),
        ("OUT_CVT offset", "int16 int32", G, "as int8"),
        ("OUT_CVT offset", "fp16", D, "TRM; board notes A.9"),
        ("MINUS_EXP", "fp16", M, "board notes A.11"),
        ("MINUS_EXP is ignored", "int8", M, "board notes A.9"),
        ("FP32TOFP16", "fp16", M, "board notes A.7: to nearest even, past 65504 infinite"),
        ("write: cube", "int8 int16 int32 fp16 fp32", M, "board notes A.4"),
        ("write: row-major matrix", "int32 fp16 fp32", M, "board notes A.2"),
        ("write: row-major matrix", "int8 int16", G, "as fp16"),
        ("write: lines with a gap", "int8 int16 int32 fp16 fp32", D, "register notes C.8"),
        ("write: OFFSET_PEND in padding lanes", "int8 fp16", D, "TRM"),
        ("write: TP_ORG_EN, atoms", "int16", R, "peer notes 2.5: vendor captures, both ways"),
        ("write: TP_ORG_EN, accumulators", "int32", M, "board notes A.4; strides are a guess"),
        ("write: TP_EN, rows and columns", "int16", R, "peer notes 2.5: one capture"),
        ("write: TP_EN, 8x8 blocks", "int16", G, "register notes C.8: one capture"),
        ("to the PPU", "int8 fp16", D, "TRM; register notes D.2"),
        ("to the PPU and to memory", "int8 fp16", D, "TRM; register notes C.1"),
    ),
    *_modes(
        "LUT",
        ("LE", "fp16", M, "board notes A.11"),
        ("LO", "fp16", M, "board notes A.11"),
        ("LE", "int8", D, "register notes C.7: RV1106"),
        ("LO", "int8", D, "register notes C.7: RV1106"),
        ("below both: LE and its slope", "fp16", M, "board notes A.11"),
        ("above both: LO and its slope", "fp16", M, "board notes A.11"),
        ("below both: LO and its slope", "fp16", D, "register notes C.7: NVDLA"),
        ("above both: LE and its slope", "fp16", D, "register notes C.7: NVDLA"),
        *(
            (f"{where}: {who}", "fp16", D, "register notes C.7: NVDLA")
            for where in ("both hit", "in the gap")
            for who in ("LE", "LO")
        ),
        ("code 0 leaves as 2^17", "fp16", M, "board notes A.11: five published spikes"),
    ),
    *_modes(
        "DPU_RDMA",
        ("main stream, cube", "int8 int16 int32 fp16", M, "board notes A.10"),
        ("main stream, cube", "int4 bf16 fp32", G, "as fp16"),
        ("main stream, part of a cube", "int16", R, "peer notes 2.5: vendor captures"),
        ("main stream, part of a cube", "int8 int32 fp16 fp32", G, "as int16"),
        ("main stream, row-major matrix", "int16", R, "peer notes 2.5: vendor captures"),
        ("main stream, row-major matrix", "int8 int32 fp16 fp32", G, "as int16"),
        ("main stream, widened to fp32", "fp16", M, "board notes A.10"),
        ("main stream, as it is", "fp16", R, "register notes C.5: divide"),
        ("BRDMA ALU", "int8", M, "board notes A.8"),
        ("BRDMA ALU", "fp16", R, "register notes C.2"),
        ("BRDMA ALU", "int4 int16 bf16 tf32", G, "as int8 and fp16"),
        ("BRDMA ALU + CPEND + MUL", "int8", M, "board notes A.9"),
        *(
            (f"BRDMA {parts}", "int8", G, "register notes C.4: parts left out, as on the RV1106")
            for parts in ("CPEND", "MUL", "ALU + CPEND", "ALU + MUL", "CPEND + MUL")
        ),
        *((f"BRDMA {parts}", "fp16", G, "as int8") for parts in ("MUL", "ALU + MUL")),
        ("NRDMA MUL", "fp16", R, "register notes C.9"),
        ("NRDMA ALU", "fp16 int8 int16", D, "TRM"),
        ("NRDMA ALU + MUL", "fp16", G, "as BRDMA"),
        ("ERDMA per pixel", "int8 int16 int32 fp16", M, "board notes A.10"),
        ("ERDMA per pixel", "bf16 fp32", G, "as fp16"),
        ("ERDMA per channel", "int8 int16 int32 fp16", D, "register notes C.9"),
        ("ERDMA per pixel with MRDMA, alternate surfaces", "fp16", M, "board notes A.10"),
        ("ERDMA per pixel with MRDMA, alternate surfaces", "int8", R, "register notes C.9: Mesa"),
        (
            "ERDMA per pixel with MRDMA, alternate surfaces",
            "int16 bf16 fp32",
            G,
            "as fp16",
        ),
    ),
    *_modes(
        "PPU",
        ("max, from memory", "int8 fp16", M, "board notes A.12"),
        ("average, from memory", "int8 fp16", M, "board notes A.12"),
        ("min, from memory", "int8 fp16", M, "board notes A.12"),
        *(
            (f"{method}, from the DPU", "int8 fp16", D, "TRM; register notes D.2")
            for method in ("max", "average", "min")
        ),
        ("max, padding", "int8 fp16", D, "register notes D.3: NVDLA"),
        ("min, padding", "int8 fp16", D, "register notes D.3: NVDLA"),
        ("average, padding", "int8 fp16", M, "board notes A.12"),
        ("average, padding value", "int8 fp16", D, "register notes D.3"),
        ("lines with a gap", "int8 fp16", D, "TRM; register notes D.4"),
    ),
    *_modes(
        "PPU_RDMA",
        ("cube", "int8 fp16", M, "board notes A.12"),
        ("part of a cube", "int8 fp16", D, "register notes D.4"),
    ),
)
"""In the order of the page.  A mode and type may appear once."""
