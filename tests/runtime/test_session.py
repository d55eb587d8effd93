"""InferenceSession: what goes in, what comes out, and what is refused."""

from __future__ import annotations

import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from copyprogram import Payload, copy_program, copy_task, sample
from opennpu.device.base import DeviceInfo
from opennpu.device.emulator import EmulatorDevice
from opennpu.device.null import NullDevice
from opennpu.device.record import RecordDevice
from opennpu.errors import DeviceError, DeviceTimeout, InputError, ProgramError, ViolationError
from opennpu.hw import layout
from opennpu.hw.rk3588 import chip
from opennpu.hw.rk3588.common import Precision
from opennpu.program import (
    HostSegment,
    NpuSegment,
    PlacedTask,
    Program,
    Ref,
    Tensor,
    ValueInfo,
    View,
    link,
)
from opennpu.runtime.session import InferenceSession, NodeArg


@pytest.fixture
def session() -> Any:
    with InferenceSession(copy_program(), "emulator") as s:
        yield s


def test_feeds_by_name_and_by_order_give_the_same(session: InferenceSession) -> None:
    x = sample()
    (a,) = session.run(None, {"x": x})
    (b,) = session.run(["y"], [x])
    assert np.array_equal(a, b) and np.array_equal(a, x) and a.dtype == np.float32
    assert session.get_inputs() == [NodeArg("x", [1, 8, 2, 2], "tensor(float)")]
    assert [o.name for o in session.get_outputs()] == ["y"]


def test_results_are_not_overwritten_by_the_next_run(session: InferenceSession) -> None:
    (a,) = session.run(None, [sample(1)])
    session.run(None, [sample(2)])
    assert np.array_equal(a, sample(1))


@pytest.mark.parametrize(
    ("feeds", "names", "sentence"),
    [
        ({}, None, "x: is missing: 0 of 1 inputs were passed. Pass 'x'."),
        ([], None, "run: 0 arrays were passed, the program takes 1. Pass 'x', in this order."),
        (
            {"x": sample(), "z": sample()},
            None,
            "z: the program has no such input, it has 1. Pass 'x'.",
        ),
        (
            [sample()[0]],
            None,
            "x: shape is [8, 2, 2], the program takes [1, 8, 2, 2]. "
            "Reshape or resize the data, or compile the model for this shape.",
        ),
        (
            [sample().astype(np.float64)],
            None,
            "x: dtype is float64, the program takes float32. Pass x.astype('float32').",
        ),
        ([[[1.0], [2.0, 3.0]]], None, None),
        ([sample()], ["q"], "q: the program has no such output, it has 1. Ask for 'y'."),
        (
            [np.full((1, 8, 2, 2), -70000, np.float32)],
            None,
            "x: holds -70000, fp16 ends at 65504. "
            "Scale the data down, or leave this part of the model to the CPU.",
        ),
    ],
)
def test_wrong_inputs_are_answered_in_one_sentence(
    session: InferenceSession, feeds: Any, names: Any, sentence: str | None
) -> None:
    with pytest.raises(InputError) as caught:
        session.run(names, feeds)
    assert str(caught.value) == sentence or (sentence is None and "no array" in str(caught.value))


def test_infinities_and_nan_pass_in_fp16() -> None:
    with InferenceSession(copy_program(1), "emulator") as session:
        x = np.zeros((1, 8, 2, 2), np.float32)
        x[0, :3, 0, 0] = np.inf, -np.inf, 65504
        (y,) = session.run(None, [x])
        assert np.array_equal(x, y)


def test_int8_values_are_quantized_as_quantizelinear_does() -> None:
    program = copy_program(0, precision=Precision.INT8, scale=0.5, zero_point=-3)
    with InferenceSession(program, "emulator") as session:
        x = np.linspace(-80, 80, 64, dtype=np.float32).reshape(1, 16, 2, 2)
        (y,) = session.run(None, [x])
        codes = np.clip(np.rint(x / np.float32(0.5)) - 3, -128, 127)
        assert np.array_equal(y, (codes + 3) * np.float32(0.5))
        with pytest.raises(InputError, match="holds NaN, which int8 cannot say"):
            session.run(None, [x * np.float32("nan")])


def test_a_dynamic_right_operand_is_packed_as_weights() -> None:
    w = Tensor(
        "w",
        (64, 32),
        Precision.FP16,
        View((1, 0), (32, 1, 1, 64)),
        Ref("arena"),
        64,
        weights=True,
    )
    segment = NpuSegment("npu0", *link([]), b"", 4096, (w,), ())
    info = ValueInfo("w", (64, 32), "float32")
    device = EmulatorDevice()
    with InferenceSession(Program((info,), (info,), (segment,)), device) as session:
        x = np.arange(2048, dtype=np.float32).reshape(64, 32)
        (y,) = session.run(None, [x])
        assert np.array_equal(x, y) and y is not x  # an input that is also an output
        (arena,) = [b for b in device._buffers if b.nbytes == 4096]
        with arena.cpu() as mem:
            want = layout.pack_weights(x.T.reshape(32, 1, 1, 64), Precision.FP16, 64)
            assert np.array_equal(mem, want)
    device.close()


def test_long_segments_are_split_into_several_jobs() -> None:
    class Short(EmulatorDevice):
        def __init__(self) -> None:
            super().__init__()
            self.info: DeviceInfo = replace(self.info, tasks_per_job=3)

    device = RecordDevice(Short())
    with InferenceSession(copy_program(8), device) as session:
        (y,) = session.run(None, [sample()])
        assert np.array_equal(y, sample())
        assert session.last is not None and (session.last.tasks, session.last.jobs) == (8, 3)
    assert [len(j.job.tasks) for j in device.jobs] == [3, 3, 2]
    device.close()


def test_a_start_takes_4095_tasks_and_a_session_any_number() -> None:
    """One task more than TASK_NUMBER holds, on a device that runs nothing."""
    n = chip.TASKS_PER_START + 1
    task = copy_task(Ref("arena"), Ref("arena", 64))
    segment = NpuSegment("npu0", *link([task] * n), b"", 4096, (), ())
    with InferenceSession(Program((), (), (segment,)), NullDevice()) as session:
        session.run(None, [])
        assert session.last is not None and session.last.jobs == 2


def test_last_says_what_the_run_did(session: InferenceSession) -> None:
    session.run(None, [sample()])
    last = session.last
    assert last is not None and (last.tasks, last.jobs, last.host_nodes) == (2, 1, 0)
    assert last.bytes_moved >= 4 * 64  # two copies of 64 bytes, and the command words
    assert last.predicted_s is not None and 0 < last.predicted_s < 1e-3
    assert last.measured_s is None and last.violations == ()
    (segment,) = last.segments
    assert (segment.name, segment.kind, segment.tasks) == ("npu0", "npu", 2)


def test_predictions_come_from_the_cycle_model_where_nothing_runs() -> None:
    with InferenceSession(copy_program(), "null") as session:
        session.run(None, [sample()])
        assert session.last is not None and session.last.predicted_s
        assert session.last.bytes_moved == 4 * 64


def test_sessions_open_files_and_devices_by_name(tmp_path: Path) -> None:
    copy_program().save(tmp_path / "a.npu")
    for source in (tmp_path / "a.npu", str(tmp_path / "a.npu")):
        with InferenceSession(source, "emulator:hardware") as session:
            assert session.device.info.name == "emulator:hardware"
            assert np.array_equal(session.run(None, [sample()])[0], sample())
        with pytest.raises(DeviceError, match="closed"):
            session.run(None, [sample()])
        with pytest.raises(DeviceError, match="closed"):
            session.device.alloc(64)


def test_threads_may_share_a_session(session: InferenceSession) -> None:
    wrong: list[int] = []

    def work(seed: int) -> None:
        for _ in range(3):
            if not np.array_equal(session.run(None, [sample(seed)])[0], sample(seed)):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_equal_constants_share_a_buffer() -> None:
    program = copy_program(1, b"\1" * 5000)
    (segment,) = program.segments
    device = RecordDevice(NullDevice())
    doubled = replace(program, segments=(segment, replace(segment, name="npu1")))
    with InferenceSession(doubled, device) as session:
        session.run(None, [sample()])
    assert device.jobs[0].job.reads[1] is device.jobs[1].job.reads[1]
    assert device.jobs[0].job.writes[0] is device.jobs[1].job.writes[0]  # and the arena


# -- failures on the device ------------------------------------------------------------------


def damaged(task: int) -> Program:
    """A program whose task ``task`` writes no start word: caught by no check of the file."""
    program = copy_program(3)
    (segment,) = program.segments
    assert isinstance(segment, NpuSegment)
    placed: list[PlacedTask] = list(segment.tasks)
    code = bytearray(segment.code)
    at = placed[task].word * 8
    code[at + 2 * 8 : at + 3 * 8] = bytes(8)  # FEATURE_MODE_CFG: no longer flying
    return replace(program, segments=(replace(segment, code=bytes(code)),))


def test_a_violation_names_the_users_node() -> None:
    with InferenceSession(damaged(1), "emulator") as session:
        with pytest.raises(ViolationError, match=r"^copy1 \(core 0 task 1\): "):
            session.run(None, [sample()])
        with pytest.raises(ViolationError, match=r"^copy1"):  # and again: nothing is stuck
            session.run(None, [sample()])


def test_a_hang_is_a_timeout_in_hardware_mode() -> None:
    with (
        InferenceSession(damaged(0), "emulator:hardware") as session,
        pytest.raises(DeviceTimeout, match=r"^copy0: the job hangs after 0 of 3 tasks"),
    ):
        session.run(None, [sample()])


def test_a_job_that_would_take_too_long_on_a_board_times_out() -> None:
    device = EmulatorDevice()
    payload = Payload(device)
    with pytest.raises(DeviceTimeout, match="on a board, its time-out is 1e-06 s"):
        device.wait(device.submit(payload.job(timeout_s=1e-6)))
    device.close()


# -- host segments ---------------------------------------------------------------------------


def host_program(op: str = "Neg", graph_type: str = "float32") -> Program:
    """x → NPU copy → y → onnxruntime ``op`` → z → NPU copy → w; outputs y, z, w and x."""
    onnx = pytest.importorskip("onnx")
    helper = onnx.helper
    (segment,) = copy_program(1).segments
    assert isinstance(segment, NpuSegment)
    shape = [1, 8, 2, 2]
    kind = onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        [helper.make_node(op, ["y"], ["z"], name="n")],
        "g",
        [helper.make_tensor_value_info("y", kind, shape)],
        [helper.make_tensor_value_info("z", kind, shape)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 9
    host = HostSegment(
        "host1", model.SerializeToString(), ("y",), ("z",), (("n", "no such operator"),)
    )
    later = replace(
        segment,
        name="npu2",
        inputs=(replace(segment.inputs[0], name="z"),),
        outputs=(replace(segment.outputs[0], name="w"),),
    )
    info = ValueInfo("x", (1, 8, 2, 2), "float32")
    outputs = tuple(replace(info, name=n) for n in ("y", "z", "w", "x"))
    return Program((info,), outputs, (segment, host, later))


def test_values_pass_between_npu_and_host() -> None:
    pytest.importorskip("onnxruntime")
    with InferenceSession(host_program(), "emulator") as session:
        x = sample()
        y, z, w, same = session.run(None, [x])
        assert np.array_equal(y, x) and np.array_equal(z, -x) and np.array_equal(w, -x)
        assert np.array_equal(same, x) and same is not x
        assert np.array_equal(session.run(["w"], [x])[0], -x)
        last = session.last
        assert last is not None and last.host_nodes == 1 and last.host_s > 0
        assert [s.kind for s in last.segments] == ["npu", "host", "npu"]


def test_host_results_beyond_fp16_are_refused_and_named() -> None:
    pytest.importorskip("onnxruntime")
    with InferenceSession(host_program("Exp"), "emulator") as session:
        x = np.full((1, 8, 2, 2), 12, np.float32)
        with pytest.raises(InputError, match=r"^z: holds 162755, fp16 ends at 65504"):
            session.run(None, [x])


def test_without_onnxruntime_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    program = host_program()
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ProgramError, match=r"segment host1: 1 of .* pip install 'opennpu\[onnx\]'"):
        InferenceSession(program, "emulator")


def test_a_broken_host_segment_is_a_sentence() -> None:
    pytest.importorskip("onnxruntime")
    program = host_program()
    host = program.segments[1]
    assert isinstance(host, HostSegment)
    broken = replace(host, onnx=b"\xff\xff")
    with pytest.raises(ProgramError, match="segment host1: onnxruntime cannot load it"):
        InferenceSession(
            replace(program, segments=(program.segments[0], broken, program.segments[2])),
            "emulator",
        )
