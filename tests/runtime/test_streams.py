"""Sessions with several streams: in the background, in batches, over cores and files; retries."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from copyprogram import copy_program, sample
from opennpu.device.base import Job, JobResult, Ticket
from opennpu.device.emulator import EmulatorDevice
from opennpu.device.fakekernel import FakeKernel
from opennpu.device.null import NullDevice
from opennpu.device.rknpu import RknpuDevice
from opennpu.device.rocket import RocketDevice
from opennpu.emu.memory import AddressSpace
from opennpu.errors import DeviceError, DeviceFault, DeviceTimeout, InputError, ViolationError
from opennpu.program import ValueInfo
from opennpu.runtime.session import InferenceSession, _split


class Moody(EmulatorDevice):
    """Raises what it is told to before it runs a job; keeps the cores that were asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.moods: list[Exception] = []
        self.cores: list[int | None] = []

    def submit(self, job: Job) -> Ticket:
        self.cores.append(job.core)
        return super().submit(job)

    def wait(self, ticket: Ticket, timeout_s: float | None = None) -> JobResult:
        if self.moods:
            super().wait(ticket, timeout_s)
            raise self.moods.pop(0)
        return super().wait(ticket, timeout_s)


HANG = DeviceTimeout("copy1", "the job hangs after 1 of 2 tasks", "Check it")
FAULT = DeviceFault("copy0", "DMA fault in task 1 of 2", "Check it")


# -- several at a time ---------------------------------------------------------------------------


def test_streams_take_a_core_each_and_share_constants() -> None:
    device = Moody()
    program = copy_program(const=b"\1" * 64)
    before = len(device._buffers)
    with InferenceSession(program, device, streams=3) as session:
        assert len(device._buffers) - before == 1 + 3 * 2  # const; code and arena per stream
        futures = [session.run_async(None, [sample(i)]) for i in range(12)]
        for i, f in enumerate(futures):
            np.testing.assert_array_equal(f.result()[0], sample(i))
    assert set(device.cores) <= {0, 1, 2}
    assert len(device._buffers) == before
    device.close()


def test_one_stream_lets_the_driver_choose() -> None:
    device = Moody()
    with InferenceSession(copy_program(), device) as session:
        session.run(None, [sample()])
    assert device.cores == [None]
    device.close()


@pytest.mark.parametrize(
    ("make", "streams", "sentence"),
    [
        (EmulatorDevice, 4, "streams: 4 were asked for, emulator runs 1 to 3. "),
        (NullDevice, 0, "streams: 0 were asked for, null runs 1 to 3. "),
        (lambda: RocketDevice(kernel=FakeKernel()), 2, "rocket runs 1 to 1. Name the device"),
    ],
)
def test_more_streams_than_cores_are_refused(
    make: Callable[[], Any], streams: int, sentence: str
) -> None:
    device = make()
    with pytest.raises(InputError) as e:
        InferenceSession(copy_program(), device, streams=streams)
    assert sentence in str(e.value)
    device.close()


def test_on_mainline_each_stream_opens_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeKernel()

    def opened(name: str) -> RocketDevice:
        assert name.startswith("rocket")
        return RocketDevice(name.partition(":")[2] or None, kernel=fake)

    monkeypatch.setattr("opennpu.runtime.session.open_device", opened)
    with InferenceSession(copy_program(), "rocket", streams=3) as session:
        assert fake.leaks()[0] == 3
        results = session.run_batch(None, [np.concatenate([sample(i) for i in range(6)])])
    np.testing.assert_array_equal(results[0], np.concatenate([sample(i) for i in range(6)]))
    assert fake.leaks() == (0, 0, 0)


def test_a_batch_has_the_bytes_of_single_runs() -> None:
    x = np.concatenate([sample(i) for i in range(7)])
    with InferenceSession(copy_program(), "emulator", streams=3) as session:
        (y,) = session.run_batch(["y"], {"x": x})
        singles = [session.run(None, [x[i : i + 1]])[0] for i in range(7)]
    assert y.tobytes() == np.concatenate(singles).tobytes()


@pytest.mark.parametrize("shape", [(0, 8, 2, 2), (3, 8, 2, 3), (8, 2, 2)])
def test_a_batch_of_another_shape_is_refused(shape: tuple[int, ...]) -> None:
    with InferenceSession(copy_program(), "null") as session, pytest.raises(InputError) as e:
        session.run_batch(None, [np.zeros(shape, np.float32)])
    want = f"x: shape is {list(shape)}, a batch for this program has a multiple of 1 in front of "
    assert str(e.value).startswith(want + "[8, 2, 2]. ")


def test_inputs_with_different_numbers_of_batches_are_refused() -> None:
    inputs = (ValueInfo("a", (1, 2), "float32"), ValueInfo("b", (2, 3), "float32"))
    feeds = {"a": np.zeros((3, 2), np.float32), "b": np.zeros((4, 3), np.float32)}
    with pytest.raises(InputError) as e:
        _split(inputs, feeds)
    assert str(e.value) == (
        "run_batch: inputs hold different numbers of batches (a: 3, b: 2). Pass as many of each."
    )
    feeds["b"] = np.arange(18, dtype=np.float32).reshape(6, 3)
    pieces = _split(inputs, feeds)
    assert [p["a"].shape for p in pieces] == [(1, 2)] * 3
    np.testing.assert_array_equal(pieces[1]["b"], feeds["b"][2:4])


def test_errors_of_background_runs_are_the_futures() -> None:
    with InferenceSession(copy_program(), "emulator") as session:
        future = session.run_async(None, [np.zeros((2, 2), np.float32)])
        with pytest.raises(InputError, match="shape is"):
            future.result()


def test_closing_waits_for_what_was_begun() -> None:
    session = InferenceSession(copy_program(), "emulator", streams=2)
    futures = [session.run_async(None, [sample(i)]) for i in range(8)]
    session.close()
    for i, f in enumerate(futures):
        np.testing.assert_array_equal(f.result()[0], sample(i))
    with pytest.raises(DeviceError, match="session: this device is closed"):
        session.run_async(None, [sample()])
    with pytest.raises(DeviceError, match="session: this device is closed"):
        session.run(None, [sample()])


def test_callers_that_wait_for_a_stream_are_told_when_it_is_closed() -> None:
    session = InferenceSession(copy_program(), "null")
    errors: list[Exception] = []

    def ask() -> None:
        try:
            session.run(None, [sample()])
        except DeviceError as e:
            errors.append(e)

    with session._streams.one():
        waiting = threading.Thread(target=ask)
        waiting.start()
        closing = threading.Thread(target=session.close)
        closing.start()
        deadline = time.monotonic() + 5
        while session._streams.open and time.monotonic() < deadline:
            time.sleep(0.001)
        waiting.join(5)
    closing.join(5)
    assert not waiting.is_alive() and not closing.is_alive()
    assert len(errors) == 1


# -- jobs that fail ------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [HANG, FAULT])
def test_a_failed_job_is_run_again_and_reported(error: Exception) -> None:
    device = Moody()
    device.moods = [error]
    with InferenceSession(copy_program(), device) as session:
        (y,) = session.run(None, [sample()])
        np.testing.assert_array_equal(y, sample())
        assert session.last is not None
        assert session.last.retried == (str(error),)
        session.run(None, [sample()])
        assert session.last.retried == ()
    device.close()


def test_a_job_that_fails_twice_names_the_layer_and_the_next_run_works() -> None:
    device = Moody()
    device.moods = [HANG, HANG]
    with InferenceSession(copy_program(), device) as session:
        with pytest.raises(DeviceTimeout) as e:
            session.run(None, [sample()])
        assert str(e.value) == "copy1: the job hangs after 1 of 2 tasks (tried 2 times). Check it."
        (y,) = session.run(None, [sample()])
        np.testing.assert_array_equal(y, sample())
    device.close()


def test_without_retries_the_first_error_counts() -> None:
    device = Moody()
    device.moods = [FAULT]
    exact = r"DMA fault in task 1 of 2\. Check it\.$"
    with (
        InferenceSession(copy_program(), device, retries=0) as session,
        pytest.raises(DeviceFault, match=exact),
    ):
        session.run(None, [sample()])
    device.close()


def test_broken_rules_and_unknown_ends_are_not_tried_again() -> None:
    for error in (ViolationError("a", "b", "c"), DeviceError("a", "b", "c")):
        device = Moody()
        device.moods = [error, error]
        with InferenceSession(copy_program(), device) as session, pytest.raises(type(error)):
            session.run(None, [sample()])
        assert len(device.moods) == 1
        device.close()


@pytest.mark.parametrize("make", [RknpuDevice, RocketDevice])
def test_a_job_that_the_driver_drops_runs_again(make: Any) -> None:
    """A job that faults: the vendor's driver says so, mainline reports success."""
    fake = FakeKernel()
    device = make(kernel=fake)
    with InferenceSession(copy_program(), device) as session:
        session.run(None, [sample(1)])
        machine, run = fake.machine, fake.machine.run

        def lose(core: int, space: AddressSpace, *args: Any, **options: Any) -> Any:
            machine.run = run  # type: ignore[method-assign]
            return run(core, AddressSpace(), *args, **options)  # nothing is mapped: it faults

        machine.run = lose  # type: ignore[method-assign]
        (y,) = session.run(None, [sample(2)])
        np.testing.assert_array_equal(y, sample(2))
        assert session.last is not None
        (first,) = session.last.retried
        assert first.startswith("copy")
    device.close()
