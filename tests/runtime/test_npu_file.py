"""The .npu file: what goes in comes out, in the same bytes, or it is refused in a sentence."""

from __future__ import annotations

import os
import stat
import struct
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import opennpu
from copyprogram import copy_program, copy_task
from opennpu.errors import ProgramError
from opennpu.hw.rk3588.common import Precision
from opennpu.program import (
    DTYPES,
    Cost,
    HostSegment,
    NpuSegment,
    Program,
    Ref,
    Tensor,
    ValueInfo,
    View,
    link,
    load,
)

names = st.text(min_size=1, max_size=12)
sizes = st.integers(0, 1 << 40)


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Programs of every shape that the rules allow."""
    x, y, mid = draw(st.lists(names, min_size=3, max_size=3, unique=True))
    dims = draw(st.permutations((1, 8, 2, 2)))
    perm = tuple(draw(st.permutations(range(4))))
    nhwc = (1, 2, 2, 8)
    segments: list[Any] = []
    source = x
    for k in range(draw(st.integers(0, 3))):
        target = f"{mid}{k}"
        if draw(st.booleans()):
            onnx, reason = draw(st.binary(max_size=64)), draw(names)
            segments.append(HostSegment(f"h{k}", onnx, (source,), (target,), ((target, reason),)))
        else:
            atoms = draw(st.integers(1, 40))
            chain = [
                replace(
                    copy_task(Ref("arena"), Ref("arena", 64 * i), atoms, draw(names)),
                    cost=Cost(*(draw(sizes) for _ in range(4))),
                )
                for i in range(draw(st.integers(0, 4)))
            ]
            const = draw(st.sampled_from([b"", b"\1" * 100, bytes(5000)]))
            tensors = [
                Tensor(
                    name,
                    tuple(dims),
                    draw(st.sampled_from([Precision.FP16, Precision.INT8])),
                    View(perm, nhwc),
                    Ref("arena", draw(st.integers(0, 4)) * 16),
                    draw(st.integers(8, 16)),
                    scale=draw(st.floats(0, 10, width=32)),
                    zero_point=draw(st.integers(-128, 127)),
                )
                for name in (source, target)
            ]
            arena = draw(st.integers(4096, 1 << 32))
            segments.append(
                NpuSegment(f"n{k}", *link(chain), const, arena, (tensors[0],), (tensors[1],))
            )
        source = target
    infos = ValueInfo(x, tuple(dims), "float32"), ValueInfo(source, tuple(dims), "float32")
    meta = draw(
        st.dictionaries(names, st.none() | st.booleans() | st.integers() | st.text(max_size=5))
    )
    dtype = draw(st.sampled_from(sorted(DTYPES)))
    samples = {y: np.arange(6).reshape(2, 3).astype(dtype)} if draw(st.booleans()) else {}
    return Program((infos[0],), (infos[1],), tuple(segments), meta, samples)


def plain(p: Program) -> Any:
    samples = {k: (a.dtype, a.shape, a.tobytes()) for k, a in p.samples.items()}
    return p.inputs, p.outputs, p.segments, p.meta, samples


@given(programs())
@settings(max_examples=60, deadline=None)
def test_a_program_comes_back_as_it_was(program: Program) -> None:
    data = program.to_bytes()
    back = load(data)
    assert plain(back) == plain(program)
    assert back.to_bytes() == data


def test_equal_programs_have_equal_bytes_and_a_fixed_start() -> None:
    first, second = (copy_program(3, b"\5" * 300).to_bytes() for _ in range(2))
    assert first == second
    assert first[:16] == b"\x89NPU\r\n\x1a\n" + struct.pack("<HHI", 1, 0, first.find(b"}\0") - 55)


def test_blobs_are_page_aligned_and_stored_once() -> None:
    program = copy_program(1, bytes(range(256)) * 64)
    (segment,) = program.segments
    assert isinstance(segment, NpuSegment)
    twin = replace(segment, name="again", inputs=segment.inputs)
    data = replace(program, segments=(segment, twin)).to_bytes()
    one = program.to_bytes()
    assert len(data) - len(one) < 4096
    assert one.find(segment.const) % 4096 == 0 and one.count(segment.const) == 1


@pytest.fixture(scope="module")
def file() -> bytes:
    program = copy_program(2, b"const" * 20)
    samples = {"x": np.ones((1, 8, 2, 2), np.float32), "b": np.ones(3, ml_dtypes.bfloat16)}
    return replace(program, samples=samples, meta={"model": "a"}).to_bytes()


def same_or_refused(data: bytes, whole: bytes) -> None:
    try:
        program = load(data)
    except ProgramError as e:
        assert str(e).startswith("program") and str(e).endswith(".")
    else:
        assert program.to_bytes() == whole


@pytest.mark.parametrize("flip", [0x01, 0x80, 0xFF])
def test_any_flipped_byte_is_refused(file: bytes, flip: int) -> None:
    interesting = {*range(0, 4096, 3), *range(4096, len(file), 61)}
    for at in sorted(interesting):
        data = bytearray(file)
        data[at] ^= flip
        with pytest.raises(ProgramError):
            load(bytes(data))


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_damage_is_refused(data: st.DataObject) -> None:
    whole = copy_program(1).to_bytes()
    cut = data.draw(st.integers(0, len(whole) - 1))
    same_or_refused(whole[:cut], whole)
    same_or_refused(whole[:cut] + data.draw(st.binary(max_size=20)) + whole[cut:], whole)
    same_or_refused(data.draw(st.binary(max_size=200)), whole)


def test_other_versions(file: bytes) -> None:
    newer = bytearray(file)
    struct.pack_into("<H", newer, 8, 2)
    with pytest.raises(ProgramError, match=r"version 2\.0, this OpenNPU reads 1\.x\. Update"):
        load(bytes(newer))


def test_paths_that_hold_no_program(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"\x08\x08\x12\x07pytorch")
    for path, what in (
        (tmp_path / "missing.npu", "cannot read it: No such file"),
        (tmp_path, "Is a directory"),
        (Path("/dev/zero"), "not a regular file"),
        (tmp_path / "model.onnx", r"do not start like a \.npu file"),
        ("nul\0byte", "cannot read it"),
    ):
        with pytest.raises(ProgramError, match=what):
            load(path)


def test_saving_replaces_the_file_at_once(tmp_path: Path, file: bytes) -> None:
    path = tmp_path / "a.npu"
    program = load(file)
    program.save(path)
    program.save(str(path))
    assert path.read_bytes() == file
    assert plain(load(path)) == plain(load(str(path))) == plain(program)
    assert os.listdir(tmp_path) == ["a.npu"]
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~mask


def test_a_failed_save_leaves_what_was_there(tmp_path: Path, file: bytes) -> None:
    program = load(file)
    with pytest.raises(ProgramError, match=r"cannot write \d+ bytes here: No such file"):
        program.save(tmp_path / "no" / "such.npu")
    path = tmp_path / "a.npu"
    path.mkdir()
    (path / "kept").touch()
    with pytest.raises(ProgramError, match="cannot write"):
        program.save(path)
    assert os.listdir(tmp_path) == ["a.npu"] and os.listdir(path) == ["kept"]


def test_meta_must_be_plain_data() -> None:
    for meta in ({"a": object()}, {"a": float("nan")}):
        with pytest.raises(ProgramError, match="its meta is not JSON"):
            replace(copy_program(), meta=meta).to_bytes()


def test_loading_and_running_needs_no_onnx(file: bytes, tmp_path: Path) -> None:
    import subprocess

    (tmp_path / "a.npu").write_bytes(file)
    code = (
        "import sys; sys.modules['onnx'] = sys.modules['onnxruntime'] = None\n"
        "import numpy as np, opennpu\n"
        "with opennpu.InferenceSession(sys.argv[1], 'emulator') as s:\n"
        "    x = np.ones((1, 8, 2, 2), np.float32)\n"
        "    assert (s.run(None, [x])[0] == x).all()\n"
    )
    source = str(Path(opennpu.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "a.npu")],
        env={**os.environ, "PYTHONPATH": source},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
