"""Program files that are whole, and say something impossible: each must fail with its sentence.

The SHA-256 is put right after every change, so that nothing but the check itself can refuse.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from copyprogram import copy_program, copy_task
from opennpu.errors import ProgramError
from opennpu.hw.rk3588 import dpu, pc
from opennpu.program import At, NpuSegment, Program, Ref, Task, link, load

PREAMBLE = struct.Struct("<8sHHIQ32s")
WHOLE = replace(copy_program(3), samples={"x": np.ones(4, np.float32)}).to_bytes()


def header_of(file: bytes) -> dict[str, Any]:
    n = PREAMBLE.unpack_from(file)[3]
    header: dict[str, Any] = json.loads(file[PREAMBLE.size : PREAMBLE.size + n])
    return header


def with_header(text: bytes, file: bytes = WHOLE, minor: int = 0) -> bytes:
    """The file with another header of at most 4 KiB, and a digest that fits."""
    magic, major, _, _, _, _ = PREAMBLE.unpack_from(file)
    start = min(at for at, _ in header_of(file)["blobs"])
    body = text.ljust(start - PREAMBLE.size, b"\0") + file[start:]
    head = PREAMBLE.pack(magic, major, minor, len(text), PREAMBLE.size + len(body), bytes(32))
    digest = hashlib.sha256(head[:24] + body).digest()
    return head[:24] + digest + body


def changed(change: Callable[[dict[str, Any]], None], minor: int = 0) -> bytes:
    header = header_of(WHOLE)
    change(header)
    return with_header(json.dumps(header).encode(), minor=minor)


def npu(header: dict[str, Any]) -> Any:
    return header["variants"][0]["segments"][0]


def put(*path: Any) -> Callable[[dict[str, Any]], None]:
    """Set the value at a path: put("blobs", 0, [1, 2])."""

    def change(header: dict[str, Any]) -> None:
        at: Any = header
        for key in path[:-2]:
            at = at[key]
        at[path[-2]] = path[-1]

    return change


SEGMENT = ("variants", 0, "segments", 0)
INPUT = (*SEGMENT, "inputs", 0)

REFUSED: list[tuple[Callable[[dict[str, Any]], None], str]] = [
    (put("blobs", 0, [1 << 40, 8]), "header.blobs[0] is [1099511627776, 8], not a place of"),
    (put("blobs", 0, [4096, 1 << 40]), "header.blobs[0] is [4096, 1099511627776], not a place of"),
    (put("blobs", 0, [4097, 8]), "header.blobs[0] is [4097, 8], not a place of"),
    (put("blobs", 0, [0, 8]), "header.blobs[0] is [0, 8], not a place of"),
    (put("blobs", 0, [-4096, 8]), "header.blobs[0][0] is -4096, not an integer of 0 to"),
    (put("blobs", 7), "header.blobs is 7, not a list"),
    (put("meta", []), "header.meta is [], not an object"),
    (put("variants", []), "header.variants is [], not a list with a variant for one core"),
    (put("variants", 0, "cores", 2), "not a list with a variant for one core"),
    (put("inputs", 0, "dtype", "float31"), "header.inputs[0].dtype is 'float31', not one of"),
    (
        put("inputs", 0, "shape", [1, 8, 2, 3]),
        "it reads 'x' as (1, 8, 2, 2), which is (1, 8, 2, 3)",
    ),
    (put("outputs", 0, "name", "q"), "nothing writes its output 'q'"),
    (put("outputs", 0, "shape", [64]), "its output 'y' is (1, 8, 2, 2), declared as (64,)"),
    (put("samples", "x", "shape", [1 << 40, 1 << 20]), "not the shape of 16 bytes of float32"),
    (put("samples", "x", "dtype", "object"), "header.samples.x.dtype is 'object', not one of"),
    (put("samples", "x", "blob", 99), "header.samples.x.blob is 99, not an integer of 0 to 2"),
    (put(*SEGMENT, "kind", "fpga"), "segments[0].kind is 'fpga', not one of host, npu"),
    (put(*SEGMENT, "arena_bytes", 1 << 60), "segments[0].arena_bytes is 1152921504606846976, not"),
    (put(*SEGMENT, "arena_bytes", 64), " points to byte 128 of arena, which has 64"),
    (put(*SEGMENT, "code", 1), "task 0 (copy0) is words 0 to"),
    (put(*SEGMENT, "tasks", 1, [1, 8, 38, 24, 768, 0, 0, 0, 0]), "task 1 (copy1) is words 8 to"),
    (put(*SEGMENT, "tasks", 1, 0, 99), "not a task of 3 nodes with 32-bit words"),
    (put(*SEGMENT, "tasks", 1, 2, 1 << 40), "task 1 (copy1) is words 40 to"),
    (put(*SEGMENT, "tasks", 1, 2, 3), "task 1 (copy1) is words 40 to 43 of"),
    (put(*SEGMENT, "tasks", 1, 3, 13), "task 1 (copy1) has a tail that does not fit it"),
    (put(*SEGMENT, "tasks", 1, 1, 41), "task 1 (copy1) starts at byte 328, not of 64"),
    (put(*SEGMENT, "relocs", 0, [1 << 40, 2, 0]), "a relocation names word 1099511627776 of"),
    (put(*SEGMENT, "relocs", 0, [0, 2, 0]), "word 0 is relocated and is dpu.S_POINTER("),
    (put(*SEGMENT, "relocs", 0, 2, 1 << 30), "points to byte 1073741824 of arena, which has 256"),
    (put(*SEGMENT, "relocs", 0, 1, 5), "not a relocation into one of 3 buffers"),
    (put(*SEGMENT, "relocs", 0, 1, 0), "is relocated into the code and is no link"),
    (lambda h: npu(h)["relocs"].append(npu(h)["relocs"][0]), "has two relocations"),
    (lambda h: npu(h).update(relocs=[]), "task 0 (copy0) is not linked to task 1"),
    (put(*INPUT, "offset", 250), "it takes 64 bytes from 250, the arena has 256"),
    (put(*INPUT, "channels", 1 << 50), "the arena has 256"),
    (put(*INPUT, "channels", 4), "it has room for 4 channels of 8"),
    (put(*INPUT, "perm", [0, 1, 1, 3]), "cannot be permuted by (0, 1, 1, 3)"),
    (put(*INPUT, "nhwc", [1, 2, 2, 9]), "does not fit the cube (1, 2, 2, 9)"),
    (put(*INPUT, "scale", 1 << 2000), "inputs[0].scale is"),
    (put(*INPUT, "scale", -1.5), "its quantization is scale -1.5, zero point 0"),
    (put(*INPUT, "zero_point", 300), "zero_point is 300, not an integer of -128 to 127"),
    (put(*INPUT, "weights", 1), "weights is 1, not true or false"),
    (put(*INPUT, "name", "other"), "it reads 'other', which nothing before it writes"),
    (put(*INPUT, "precision", "fp12"), "precision is 'fp12', not one of"),
]


@pytest.mark.parametrize(("change", "sentence"), REFUSED, ids=[s[:40] for _, s in REFUSED])
def test_impossible_headers(change: Callable[[dict[str, Any]], None], sentence: str) -> None:
    with pytest.raises(ProgramError) as caught:
        load(changed(change))
    message = str(caught.value)
    assert sentence in message
    assert message.startswith("program") and message.endswith("Compile the model again.")
    assert "\n" not in message and len(message) < 400


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[" * 3000,
        b"\xff\xfe",
        b'{"blobs":[],"meta":NaN}',
        b'{"a":' + b"9" * 4000 + b"}",
        b"[]",
        b"null",
        b"{}",
    ],
)
def test_headers_that_are_no_header(text: bytes) -> None:
    with pytest.raises(ProgramError, match=r"^program"):
        load(with_header(text[:4000]))


def test_a_newer_minor_is_read_and_what_it_adds_is_ignored() -> None:
    def add(header: dict[str, Any]) -> None:
        header["future"] = {"x": 1}
        header["variants"].insert(0, {"cores": 3, "shapes": {"n": 4}, "other": []})
        npu(dict(header, variants=header["variants"][1:]))["prefetch"] = True

    program = load(changed(add, minor=9))
    assert program.segments == copy_program(3).segments


LEAVES: list[Any] = [None, True, -1, 0, 7, 1 << 70, 1.5, "", "x", [], {}, [[]], [1, 2, 3]]


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_no_value_anywhere_in_the_header_gets_past_the_checks(data: st.DataObject) -> None:
    """Either refused, or a program that obeys every rule and saves again."""
    header = header_of(WHOLE)
    at: Any = header
    while True:
        keys = list(at) if isinstance(at, dict) else list(range(len(at)))
        key = data.draw(st.sampled_from(keys))
        if isinstance(at[key], (dict, list)) and at[key] and data.draw(st.integers(0, 5)):
            at = at[key]
        else:
            at[key] = data.draw(st.sampled_from(LEAVES))
            break
    try:
        program = load(with_header(json.dumps(header).encode()))
    except ProgramError as e:
        assert str(e).endswith(".")
    else:
        load(program.to_bytes())


# -- programs that were never a file ---------------------------------------------------------


def refuse(program: Program, sentence: str) -> None:
    with pytest.raises(ProgramError, match=sentence):
        program.to_bytes()


def test_only_address_registers_can_be_relocated() -> None:
    for register in (dpu.DATA_CUBE_WIDTH, pc.TASK_DMA_BASE_ADDR, dpu.DST_SURF_STRIDE):
        task = Task("conv1", (At(register, Ref("arena")),), 0x18, 0x300)
        with pytest.raises(
            ProgramError,
            match=f"conv1: word 0 relocates {register.__name__}, which is not an address register",
        ):
            link([task])


def test_code_is_reached_by_links_only() -> None:
    (segment,) = copy_program(1).segments
    assert isinstance(segment, NpuSegment)
    relocs = (replace(segment.relocs[0], buffer="code"), *segment.relocs[1:])
    refuse(
        replace(copy_program(1), segments=(replace(segment, relocs=relocs),)),
        "is relocated into the code and is no link",
    )


def test_addresses_in_the_code_start_as_zero() -> None:
    (segment,) = copy_program(1).segments
    assert isinstance(segment, NpuSegment)
    code = bytearray(segment.code)
    code[segment.relocs[0].word * 8 + 2] = 16
    refuse(
        replace(copy_program(1), segments=(replace(segment, code=bytes(code)),)),
        r"is relocated and is .*ADDR\(.*=16\), no empty address",
    )


def test_the_last_task_leads_nowhere() -> None:
    (segment,) = copy_program(2).segments
    assert isinstance(segment, NpuSegment)
    refuse(
        replace(copy_program(2), segments=(replace(segment, tasks=segment.tasks[:1]),)),
        "has a tail that does not fit",
    )


def test_linked_tasks_are_aligned_and_chained() -> None:
    tasks = [copy_task(Ref("arena"), Ref("arena", 64), node=f"n{i}") for i in range(3)]
    code, placed, relocs = link(tasks)
    assert [t.word * 8 % 64 for t in placed] == [0, 0, 0]
    assert len(code) == -(-placed[-1].words // 8) * 64 + placed[-1].word * 8
    links = {r.word: r.addend for r in relocs if r.buffer == "code"}
    assert links == {a.word + a.words - 4: b.word * 8 for a, b in pairwise(placed)}
    assert link([]) == (b"", (), ())
