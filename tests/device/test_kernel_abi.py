"""Structures and ioctl numbers as published, and devices when the kernel says no."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable
from ctypes import Structure
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from copyprogram import Payload, copy_program, sample
from opennpu.device import fakerknpu, kernel, list_devices, open_device, rknpu, rocket
from opennpu.device.fakekernel import ACCEL_NODE, RENDER_NODE, FakeKernel
from opennpu.device.rknpu import RknpuDevice
from opennpu.device.rocket import RocketDevice
from opennpu.errors import DeviceError, DeviceFault, DeviceNotFound, DeviceTimeout, NPUError
from opennpu.program import NpuSegment
from opennpu.runtime.session import InferenceSession


@pytest.mark.parametrize(
    ("number", "published"),
    [
        (kernel.DRM_IOCTL_VERSION, 0xC0406400),
        (kernel.DRM_IOCTL_GEM_CLOSE, 0x40086409),
        (rocket.CREATE_BO, 0xC0186440),
        (rocket.SUBMIT, 0x40186441),
        (rocket.PREP_BO, 0x40106442),
        (rocket.FINI_BO, 0x40086443),
        (rknpu.ACTION, 0xC0086440),
        (rknpu.SUBMIT, 0xC0686441),
        (rknpu.MEM_CREATE, 0xC0306442),
        (rknpu.MEM_CREATE_OLD, 0xC0286442),
        (rknpu.MEM_MAP, 0xC0106443),
        (rknpu.MEM_DESTROY, 0xC0106444),
        (rknpu.MEM_SYNC, 0xC0206445),
    ],
)
def test_ioctl_numbers_are_the_published_ones(number: int, published: int) -> None:
    assert hex(number) == hex(published)


@pytest.mark.parametrize(
    ("struct", "nbytes", "offsets"),
    [
        (rknpu.Submit, 104, {"task_obj_addr": 24, "task_base_addr": 40, "hw_elapse_time": 48}),
        (rknpu.Submit, 104, {"core_mask": 56, "fence_fd": 60, "subcore_task": 64}),
        (rknpu.RknpuTask, 40, {"int_mask": 12, "regcfg_amount": 24, "regcmd_addr": 32}),
        (rknpu.MemCreate, 48, {"obj_addr": 16, "dma_addr": 24, "core_mask": 44}),
        (rknpu.MemCreateOld, 40, {"dma_addr": 24}),
        (rknpu.MemSync, 32, {"obj_addr": 8, "offset": 16, "size": 24}),
        (rocket.CreateBo, 24, {"handle": 4, "dma_address": 8, "offset": 16}),
        (rocket.Submit, 24, {"job_count": 8, "job_struct_size": 12, "reserved": 16}),
        (rocket.PrepBo, 16, {"timeout_ns": 8}),
        (rocket.RocketJob, 40, {"task_count": 24, "out_bo_handle_count": 36}),
        (rocket.RocketJobFlags, 48, {"flags": 40}),
        (rocket.RocketTask, 8, {"regcmd_count": 4}),
    ],
)
def test_structures_have_the_published_layout(
    struct: type[Structure], nbytes: int, offsets: dict[str, int]
) -> None:
    assert ctypes.sizeof(struct) == nbytes
    assert {n: getattr(struct, n).offset for n in offsets} == offsets


# -- every call fails once -------------------------------------------------------------------

OPENERS: dict[str, tuple[Callable[[], FakeKernel], str]] = {
    "rknpu": (FakeKernel, "rknpu"),
    "rocket-0.0": (FakeKernel, "rocket"),
    "rocket-1.5": (lambda: FakeKernel(rocket=(1, 5)), "rocket"),
}
ERRNOS = (errno.EINVAL, errno.ENOMEM, errno.EIO, errno.ENODEV, errno.ETIMEDOUT, errno.EINTR)


def use(fake: FakeKernel, name: str) -> None:
    """Everything that a user does: open, load, run, free, close."""
    device = open_device(name, kernel=fake)
    try:
        with InferenceSession(copy_program(), device) as session:
            x = sample()
            (y,) = session.run(None, [x])
            assert np.array_equal(x, y)
    finally:
        device.close()


@pytest.mark.parametrize("number", ERRNOS, ids=errno.errorcode.get)
@pytest.mark.parametrize("opener", OPENERS)
def test_any_failing_call_is_one_sentence_and_leaks_nothing(opener: str, number: int) -> None:
    make, name = OPENERS[opener]
    trial = make()
    use(trial, name)
    for nth, request in enumerate(trial.log):
        fake = make()
        fake.inject(request, number, skip=trial.log[:nth].count(request))
        try:
            use(fake, name)
        except DeviceError as e:
            assert str(e).endswith(".") and "\n" not in str(e)
        assert fake.leaks() == (0, 0, 0), f"call {nth}, {request:#x}"
        use(fake, name)  # and afterwards all is well


@pytest.mark.parametrize("opener", OPENERS)
def test_a_session_survives_a_failing_run(opener: str) -> None:
    make, name = OPENERS[opener]
    fake = make()
    device = open_device(name, kernel=fake)
    x = sample()
    with InferenceSession(copy_program(), device) as session:
        session.run(None, [x])
        before = len(fake.log)
        session.run(None, [x])
        calls = fake.log[before:]
        for nth, request in enumerate(calls):
            fake.inject(request, errno.EIO, skip=calls[:nth].count(request))
            with pytest.raises(DeviceError, match="EIO"):
                session.run(None, [x])
            (y,) = session.run(None, [x])
            assert np.array_equal(x, y)
    device.close()
    assert fake.leaks() == (0, 0, 0)


def test_signals_do_not_fail_calls_that_may_be_repeated() -> None:
    for make, name in OPENERS.values():
        fake = make()
        for request in set(fake.log) | {rocket.PREP_BO, rknpu.MEM_SYNC, rocket.SUBMIT}:
            fake.inject(request, errno.EINTR, times=3)
        use(fake, name)


def test_a_vendor_submit_is_never_repeated() -> None:
    fake = FakeKernel()
    fake.inject(rknpu.SUBMIT, errno.EINTR)
    with pytest.raises(DeviceError, match="EINTR"):
        use(fake, "rknpu")
    assert fake.log.count(rknpu.SUBMIT) == 1  # nor by the session: it may still run


# -- rknpu -----------------------------------------------------------------------------------


def test_an_old_vendor_driver_takes_the_shorter_structure() -> None:
    fake = FakeKernel(old_mem_create=True)
    use(fake, "rknpu")
    assert fake.log.count(rknpu.MEM_CREATE) == 1  # tried once, then remembered
    assert fake.log.count(rknpu.MEM_CREATE_OLD) >= 3


def test_a_vendor_timeout_names_the_node_that_did_not_end() -> None:
    fake = FakeKernel()
    device = RknpuDevice(kernel=fake)
    payload = Payload(device, steps=3)
    with payload.code.cpu() as mem:
        middle = payload.tasks[1].regcmd_iova - payload.code.iova
        mem[middle : middle + 8 * payload.tasks[1].words] = 0
    with pytest.raises(DeviceTimeout, match=r"copy[12]: its job stopped after [12] of 3 tasks"):
        device.wait(device.submit(payload.job()))
    device.close()


def test_the_vendor_task_list_says_what_the_driver_reads() -> None:
    fake = FakeKernel()
    device = RknpuDevice(kernel=fake)
    payload = Payload(device, steps=2)
    payload.fill(0)
    device.wait(device.submit(payload.job(core=2)))
    file = next(iter(fake.files.values()))
    (bo,) = [b for b in file.bos.values() if b.flags & rknpu.MEM_KERNEL_MAPPING]
    assert bo.flags == 0x40B
    raw = bo.data[:80].tobytes()
    first, second = (rknpu.RknpuTask.from_buffer_copy(raw, at) for at in (0, 40))
    assert (first.enable_mask, first.int_mask, first.int_clear) == (0x18, 0x300, 0x1FFFF)
    assert first.regcfg_amount == payload.tasks[0].words - 4
    assert second.regcmd_addr == payload.tasks[1].regcmd_iova
    assert second.int_status & 0x300 and not first.int_status  # written back for the last task
    device.close()


def test_other_chips_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(fakerknpu.ACTIONS, rknpu.ACTION_HW_VERSION, 0x1234)
    fake = FakeKernel(rocket=None)
    with pytest.raises(DeviceNotFound, match=r"0x1234, an RK3588 has 0x46495245"):
        RknpuDevice(kernel=fake)
    device = open_device(kernel=fake)
    assert device.info.name == "emulator" and "0x1234" in device.info.reason
    device.close()
    assert fake.leaks() == (0, 0, 0)


# -- rocket ----------------------------------------------------------------------------------


@pytest.mark.parametrize("interface", [(0, 0), (1, 1), (1, 5)])
def test_a_killed_job_is_noticed_although_the_driver_reports_success(
    interface: tuple[int, int],
) -> None:
    fake = FakeKernel(rocket=interface)
    device = RocketDevice(kernel=fake)
    payload = Payload(device, steps=3)
    want = payload.fill(0)
    device.wait(device.submit(payload.job()))
    assert np.array_equal(payload.result(), want)
    with payload.code.cpu() as mem:
        middle = payload.tasks[1].regcmd_iova - payload.code.iova
        kept = mem[middle : middle + 8 * payload.tasks[1].words].copy()
        mem[middle : middle + kept.size] = 0
    with pytest.raises(DeviceFault, match=r"copy2: the driver reports success .* of 3 tasks"):
        device.wait(device.submit(payload.job()))
    with payload.code.cpu() as mem:
        mem[middle : middle + kept.size] = kept
    device.wait(device.submit(payload.job()))
    device.close()


def test_a_job_that_stock_linux_drops_is_noticed() -> None:
    fake = FakeKernel()
    device = RocketDevice(kernel=fake)
    payload = Payload(device)
    job = payload.job()
    freed = device.alloc(4096)
    handle = freed.handle
    freed.free()
    payload.code.handle = handle  # type: ignore[attr-defined]
    with pytest.raises(DeviceFault, match="dropped or killed"):
        device.wait(device.submit(job))
    device.close()


def test_a_job_that_outlasts_its_time_can_still_be_waited_for() -> None:
    fake = FakeKernel()
    device = RocketDevice(kernel=fake)
    payload = Payload(device)
    want = payload.fill(4)
    fake.hold = True
    ticket = device.submit(payload.job())
    for limit_s in (0.0, 0.02):
        with pytest.raises(DeviceTimeout, match=f"copy1: its job is still running after {limit_s}"):
            device.wait(ticket, limit_s)
    fake.release()
    assert device.wait(ticket).tasks_done == 2
    assert np.array_equal(payload.result(), want)
    device.close()


def test_pooling_tasks_are_kept_off_stock_rocket() -> None:
    program = copy_program()
    (segment,) = program.segments
    assert isinstance(segment, NpuSegment)
    tasks = tuple(replace(t, int_mask=0xC00) for t in segment.tasks)
    program = replace(program, segments=(replace(segment, tasks=tasks),))
    device = RocketDevice(kernel=FakeKernel())
    with pytest.raises(
        NPUError, match=r"copy0: .* 0xc00, rocket \(rocket 0\.0\) .*target='rocket'"
    ):
        InferenceSession(program, device)
    device.close()


# -- finding devices -------------------------------------------------------------------------


def test_a_board_is_found_by_its_driver() -> None:
    for fake, name, path in (
        (FakeKernel(), "rknpu", RENDER_NODE),
        (FakeKernel(rknpu=False), "rocket", ACCEL_NODE),
        (FakeKernel(rknpu=False, rocket=None), "emulator", ""),
    ):
        device = open_device(kernel=fake)
        assert (device.info.name, device.info.path) == (name, path) and device.info.reason
        device.close()
        assert fake.leaks() == (0, 0, 0)


def test_an_explicit_path_must_belong_to_the_driver() -> None:
    fake = FakeKernel()
    with pytest.raises(DeviceNotFound, match="its driver is 'rocket', not 'rknpu'"):
        open_device(f"rknpu:{ACCEL_NODE}", kernel=fake)
    with pytest.raises(DeviceNotFound, match="no such node"):
        open_device("rocket:/dev/accel/accel7", kernel=fake)
    device = open_device(f"rocket:{ACCEL_NODE}", kernel=fake)
    assert device.info.path == ACCEL_NODE
    device.close()
    assert fake.leaks() == (0, 0, 0)


@pytest.mark.parametrize("name", ["", "gpu", "rknpu:", "null:x", "emulator:fast"])
def test_unknown_names_are_answered_with_the_known_ones(name: str) -> None:
    with pytest.raises(DeviceNotFound, match="Use one of emulator, emulator:hardware, null"):
        open_device(name)


@pytest.mark.parametrize("name", ["rknpu", "rocket"])
def test_a_missing_board_is_a_sentence(name: str) -> None:
    with pytest.raises(DeviceNotFound, match=f"{name}: no node under /dev/.* device='emulator'"):
        open_device(name, kernel=FakeKernel(rknpu=False, rocket=None))


def test_list_devices_names_boards_first() -> None:
    names = [d.name for d in list_devices(FakeKernel())]
    assert names == ["rknpu", "rocket", "emulator", "emulator:hardware", "null"]


def test_a_node_without_permission_is_told() -> None:
    class Locked(FakeKernel):
        def open(self, path: str) -> int:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

    with pytest.raises(DeviceError, match=r"EACCES.*Add your user to the group"):
        open_device(f"rocket:{ACCEL_NODE}", kernel=Locked())
    device = open_device(kernel=Locked())
    assert device.info.name == "emulator" and "EACCES" in device.info.reason
    device.close()


# -- the real kernel, as far as every machine has one ----------------------------------------


def test_the_real_kernel_answers_no_npu_here_with_errno() -> None:
    linux = kernel.LinuxKernel()
    fd = linux.open("/dev/null")
    with pytest.raises(OSError) as caught:
        linux.ioctl(fd, kernel.DRM_IOCTL_VERSION, kernel.DrmVersion())
    assert caught.value.errno == errno.ENOTTY
    linux.close(fd)
    with pytest.raises(FileNotFoundError):
        linux.open("/dev/accel/no-such-node")
    assert linux.glob("/dev/nul?") == ["/dev/null"]


def test_the_real_kernel_maps_memory(tmp_path: Any) -> None:
    linux = kernel.LinuxKernel()
    path = tmp_path / "memory"
    path.write_bytes(bytes(8192))
    fd = linux.open(str(path))
    mapping = linux.mmap(fd, 4096, 4096)
    mapping.view[:3] = (1, 2, 3)
    mapping.close()
    mapping.close()
    linux.close(fd)
    assert path.read_bytes()[4096:4099] == b"\x01\x02\x03"
