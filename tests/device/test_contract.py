"""One contract for every device: null, emulator, and the real back ends over a fake kernel."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from copyprogram import Payload, copy_program, sample
from opennpu.device import open_device
from opennpu.device.base import Device, Job
from opennpu.device.emulator import EmulatorDevice
from opennpu.device.fakekernel import FakeKernel
from opennpu.device.null import NullDevice
from opennpu.device.record import RecordDevice
from opennpu.device.rknpu import RknpuDevice
from opennpu.device.rocket import RocketDevice
from opennpu.errors import DeviceError, DeviceFault, DeviceTimeout
from opennpu.runtime.session import InferenceSession

MAKERS: dict[str, Callable[[], Device]] = {
    "null": NullDevice,
    "emulator": EmulatorDevice,
    "emulator:hardware": lambda: EmulatorDevice(strict=False),
    "recorded": lambda: RecordDevice(EmulatorDevice()),
    "rknpu": lambda: RknpuDevice(kernel=FakeKernel()),
    "rocket-0.0": lambda: RocketDevice(kernel=FakeKernel(rocket=(0, 0))),
    "rocket-1.1": lambda: RocketDevice(kernel=FakeKernel(rocket=(1, 1))),
    "rocket-1.5": lambda: RocketDevice(kernel=FakeKernel(rocket=(1, 5))),
}
RUNNING = [n for n in MAKERS if n != "null"]


@pytest.fixture(params=MAKERS)
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    device = MAKERS[request.param]()
    yield device
    device.close()


@pytest.fixture(params=RUNNING)
def running(request: pytest.FixtureRequest) -> Iterator[Device]:
    device = MAKERS[request.param]()
    yield device
    device.close()


def kernel_of(device: Device) -> FakeKernel | None:
    kernel = getattr(device, "kernel", None)
    assert kernel is None or isinstance(kernel, FakeKernel)
    return kernel


def test_buffers_are_page_aligned_zeroed_and_apart(device: Device) -> None:
    buffers = [device.alloc(n) for n in (1, 4095, 4096, 4097, 100_000)]
    for b, n in zip(buffers, (1, 4095, 4096, 4097, 100_000), strict=True):
        assert b.nbytes == n and b.iova % 4096 == 0 and b.iova + n <= 1 << 32
        with b.cpu() as mem:
            assert mem.shape == (n,) and mem.dtype == np.uint8 and not mem.any()
    spans = sorted((b.iova, b.iova + b.nbytes) for b in buffers)
    assert all(end <= start for (_, end), (start, _) in pairwise(spans))


def test_memory_keeps_what_the_cpu_wrote(device: Device) -> None:
    a, b = device.alloc(5000), device.alloc(5000)
    with a.cpu() as mem:
        mem[:] = 7
    with b.cpu() as mem:
        mem[:] = 9
    with a.cpu() as mem:
        assert (mem == 7).all()


@pytest.mark.parametrize("nbytes", [0, -1, 1 << 33])
def test_impossible_sizes_are_refused_in_a_sentence(device: Device, nbytes: int) -> None:
    with pytest.raises(DeviceError, match=r"bytes.*\. .*\.$"):
        device.alloc(nbytes)


def test_freeing_twice_is_safe_and_using_after_is_refused(device: Device) -> None:
    buffer = device.alloc(64)
    buffer.free()
    buffer.free()
    with pytest.raises(DeviceError, match="this buffer was freed"), buffer.cpu():
        pass
    device.alloc(64)


def test_close_frees_everything_and_may_be_repeated(device: Device) -> None:
    payload = Payload(device)
    device.wait(device.submit(payload.job()))
    device.close()
    device.close()
    for b in payload.buffers:
        with pytest.raises(DeviceError, match="freed"), b.cpu():
            pass
    with pytest.raises(DeviceError, match="closed"):
        device.alloc(64)
    with pytest.raises(DeviceError, match=r"closed|freed"):
        device.submit(payload.job())
    kernel = kernel_of(device)
    assert kernel is None or kernel.leaks() == (0, 0, 0)


def test_a_job_runs_its_tasks_in_order(running: Device) -> None:
    payload = Payload(running, steps=5)
    want = payload.fill(1)
    result = running.wait(running.submit(payload.job()))
    assert result.tasks_done == 5 and result.seconds > 0
    assert np.array_equal(payload.result(), want)


def test_jobs_can_be_waited_for_in_any_order(running: Device) -> None:
    payloads = [Payload(running) for _ in range(4)]
    wants = [p.fill(i) for i, p in enumerate(payloads)]
    tickets = [running.submit(p.job()) for p in payloads]
    assert len({t.number for t in tickets}) == 4
    for t in reversed(tickets):
        assert running.wait(t).tasks_done == 2
    for p, want in zip(payloads, wants, strict=True):
        assert np.array_equal(p.result(), want)


def test_the_same_job_can_be_submitted_again_before_it_is_waited_for(running: Device) -> None:
    payload = Payload(running)
    want = payload.fill(3)
    first, second = running.submit(payload.job()), running.submit(payload.job())
    assert running.wait(second).tasks_done == running.wait(first).tasks_done == 2
    assert running.wait(first).tasks_done == 2  # waiting again tells the same
    assert np.array_equal(payload.result(), want)


def test_a_job_on_a_given_core_runs_there(running: Device) -> None:
    payload = Payload(running)
    for core in range(running.info.cores):
        want = payload.fill(core)
        running.wait(running.submit(payload.job(core=core)))
        assert np.array_equal(payload.result(), want)


def test_malformed_jobs_are_refused_before_they_reach_the_driver(device: Device) -> None:
    payload = Payload(device)
    job = payload.job()
    bad = {
        "0 tasks": replace(job, tasks=()),
        f"{device.info.tasks_per_job + 1} tasks": replace(
            job, tasks=[payload.tasks[0]] * (device.info.tasks_per_job + 1)
        ),
        "3 words": replace(job, tasks=[replace(payload.tasks[0], words=3)]),
        f"core {device.info.cores}": replace(job, core=device.info.cores),
        "as read and as written": replace(job, reads=payload.buffers, writes=payload.buffers),
    }
    for what, broken in bad.items():
        with pytest.raises(DeviceError, match=what):
            device.submit(broken)
    device.wait(device.submit(job))


def test_an_unmapped_address_fails_the_job_and_not_the_device(running: Device) -> None:
    good, bad = Payload(running), Payload(running)
    bad.arena.free()
    job = Job(bad.tasks, (bad.code,), ())
    with pytest.raises((DeviceFault, DeviceTimeout), match=r"copy\d"):
        running.wait(running.submit(job))
    want = good.fill(2)
    running.wait(running.submit(good.job()))
    assert np.array_equal(good.result(), want)


def test_a_job_that_never_raises_its_interrupt_fails(running: Device) -> None:
    """Words without a start: on silicon nothing would ever happen."""
    payload = Payload(running)
    with payload.code.cpu() as mem:
        mem[:] = 0
    with pytest.raises(Exception) as caught:
        running.wait(running.submit(payload.job()))
    assert "copy" in str(caught.value) and str(caught.value).endswith(".")


def test_threads_may_share_a_device(running: Device) -> None:
    payloads = [Payload(running) for _ in range(4)]
    wants = [p.fill(i) for i, p in enumerate(payloads)]
    errors: list[BaseException] = []

    def work(p: Payload) -> None:
        try:
            for _ in range(3):
                running.wait(running.submit(p.job()))
        except BaseException as e:
            errors.append(e)

    threads = [threading.Thread(target=work, args=(p,)) for p in payloads]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors
    for p, want in zip(payloads, wants, strict=True):
        assert np.array_equal(p.result(), want)


def test_a_session_gives_the_same_bytes_on_every_device(running: Device) -> None:
    x = sample()
    with InferenceSession(copy_program(), running) as session:
        (y,) = session.run(None, [x])
        assert np.array_equal(y, x)
        assert session.last is not None and session.last.tasks == 2
        assert session.last.measured == running.info.measured
    running.alloc(64)  # the session leaves a device that it was given open


def test_a_session_frees_its_buffers(device: Device) -> None:
    kernel = kernel_of(device)
    session = InferenceSession(copy_program(), device)
    session.close()
    session.close()
    if kernel is not None:
        assert kernel.leaks()[1:] == (0, 0)


def test_the_recorder_shows_bound_words() -> None:
    device = RecordDevice(EmulatorDevice())
    with InferenceSession(copy_program(3), device) as session:
        session.run(None, [sample()])
    (job,) = device.jobs
    assert [node for node, _ in job] == ["copy0", "copy1", "copy2"]
    assert "dpu.DST_BASE_ADDR(dst_base_addr=" in str([w for _, w in job])
    assert "dst_base_addr=0)" not in str([w for _, w in job])
    assert device.results[0].tasks_done == 3
    device.close()


def test_open_device_takes_what_the_contract_tests() -> None:
    for name in ("null", "emulator", "emulator:hardware"):
        device = open_device(name)
        assert device.info.name == name
        device.close()
