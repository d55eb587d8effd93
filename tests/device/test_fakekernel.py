"""The fake kernel answers as the real ones do: errno by errno, version by version."""

from __future__ import annotations

import ctypes
import errno
import time
from collections.abc import Iterator
from ctypes import Structure, c_uint32
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from opennpu.device import canary, rknpu, rocket
from opennpu.device.fakedrm import OwnProcess
from opennpu.device.fakekernel import ACCEL_NODE, RENDER_NODE, FakeKernel
from opennpu.device.fakerocket import (
    FINI_BO_RANGES,
    PREP_BO_RANGES,
    BoRange,
    FiniBoRanges,
    PrepBoRanges,
    RocketFile,
)
from opennpu.device.kernel import DRM_IOCTL_GEM_CLOSE, DrmGemClose, drm_version, ioc


def refused(kernel: FakeKernel, fd: int, request: int, argument: Structure) -> int:
    """The errno of a call; 0 if it passes."""
    try:
        kernel.ioctl(fd, request, argument)
    except OSError as e:
        return e.errno or 0
    return 0


class Rocket:
    """A raw rocket file with a copy job."""

    def __init__(self, interface: tuple[int, int], kernel: FakeKernel | None = None) -> None:
        self.kernel = kernel or FakeKernel(rocket=interface)
        self.fd = self.kernel.open(ACCEL_NODE)
        self.code, self.data = self.create(8192), self.create(4096)
        words = canary.copy_task(self.data.dma_address, self.data.dma_address + 64)
        self.count = len(words) // 8
        memory = self.kernel.mmap(self.fd, 8192, self.code.offset)
        memory.view[: len(words)] = np.frombuffer(words, np.uint8)
        self.memory = self.kernel.mmap(self.fd, 4096, self.data.offset)
        self.memory.view[:16] = np.arange(1, 17) % 4 * 16

    def create(self, size: int) -> rocket.CreateBo:
        bo = rocket.CreateBo(size=size)
        self.kernel.ioctl(self.fd, rocket.CREATE_BO, bo)
        return bo

    def submit(self, **changes: Any) -> int:
        """Submit the copy with ``changes`` to task, job or submit; the errno."""
        task = rocket.RocketTask(self.code.dma_address, self.count)
        reads = (c_uint32 * 1)(changes.pop("read", self.code.handle))
        writes = (c_uint32 * 1)(changes.pop("write", self.data.handle))
        task.regcmd_count = changes.pop("regcmd_count", self.count)
        tail = changes.pop("tail", 0)

        class Long(Structure):
            _fields_ = [*rocket.RocketJobFlags._fields_, ("tail", ctypes.c_uint64)]

        job = Long(
            tasks=ctypes.addressof(task),
            in_bo_handles=ctypes.addressof(reads),
            out_bo_handles=ctypes.addressof(writes),
            task_count=1,
            task_struct_size=8,
            in_bo_handle_count=1,
            out_bo_handle_count=1,
            tail=tail,
        )
        size = 56 if tail else 48 if "flags" in changes else 40
        argument = rocket.Submit(ctypes.addressof(job), 1, size, 0)
        for name, value in changes.items():
            setattr(job if hasattr(job, name) and name != "reserved" else argument, name, value)
        return refused(self.kernel, self.fd, rocket.SUBMIT, argument)

    @property
    def ran(self) -> bool:
        """Whether the copy has been made; then clears it."""
        done = bool(self.memory.view[64:80].any())
        self.memory.view[64:80] = 0
        return done


@pytest.fixture(params=[(0, 0), (1, 1), (1, 5)], ids=str)
def accel(request: pytest.FixtureRequest) -> Iterator[Rocket]:
    yield Rocket(request.param)


def test_rocket_runs_a_job_and_says_its_interface(accel: Rocket) -> None:
    version = drm_version(accel.kernel, accel.fd)
    assert version.name == "rocket" and version[1:3] == accel.kernel.rocket
    assert accel.submit() == 0 and accel.ran
    if accel.kernel.rocket != (0, 0):
        assert accel.submit(flags=1) == 0 and accel.ran


@pytest.mark.parametrize(
    ("changes", "since_1_1"),
    [
        ({"task_count": 0}, errno.EINVAL),
        ({"regcmd_count": 0}, errno.EINVAL),
        ({"task_struct_size": 4}, errno.EINVAL),
        ({"tasks": 0}, errno.EFAULT),
        ({"in_bo_handles": 8}, errno.EFAULT),
        ({"read": 99}, errno.ENOENT),
        ({"write": 99}, errno.ENOENT),
    ],
    ids=str,
)
def test_stock_swallows_what_later_interfaces_refuse(
    accel: Rocket, changes: dict[str, int], since_1_1: int
) -> None:
    stock = accel.kernel.rocket == (0, 0)
    assert accel.submit(**changes) == (0 if stock else since_1_1)
    assert not accel.ran


def test_submit_errors_of_every_interface(accel: Rocket) -> None:
    assert accel.submit(job_struct_size=39) == errno.EINVAL
    assert accel.submit(reserved=1) == errno.EINVAL
    assert accel.submit(jobs=0) == errno.EFAULT
    assert accel.submit(job_count=0) == 0
    assert not accel.ran


def test_later_interfaces_refuse_what_they_do_not_know(accel: Rocket) -> None:
    if accel.kernel.rocket == (0, 0):
        return
    assert accel.submit(flags=8) == errno.EINVAL
    assert accel.submit(tail=1) == errno.E2BIG
    assert not accel.ran


def test_a_buffer_in_both_lists_stops_the_job_in_silence(accel: Rocket) -> None:
    assert accel.submit(read=accel.data.handle) == 0
    assert not accel.ran


def test_prep_bo_knows_an_absolute_deadline(accel: Rocket) -> None:
    def prep(**fields: int) -> int:
        argument = rocket.PrepBo(handle=accel.data.handle)
        for name, value in fields.items():
            setattr(argument, name, value)
        return refused(accel.kernel, accel.fd, rocket.PREP_BO, argument)

    assert prep() == 0
    assert prep(reserved=1) == errno.EINVAL
    assert prep(handle=99) == errno.ENOENT
    accel.kernel.hold = True
    assert accel.submit() == 0
    assert prep() == errno.EBUSY
    assert prep(timeout_ns=time.monotonic_ns() - 1) == errno.EBUSY
    assert prep(timeout_ns=time.monotonic_ns() + 10_000_000) == errno.ETIMEDOUT
    accel.kernel.release()
    assert prep() == 0 and accel.ran


def test_ranged_syncs_exist_since_1_5_and_check_their_ranges(accel: Rocket) -> None:
    def sync(*spans: tuple[int, int], **fields: int) -> set[int]:
        ranges = (BoRange * max(1, len(spans)))(*(BoRange(*s) for s in spans))
        common = {"handle": accel.data.handle, "count": len(spans)}
        common |= {"ranges": ctypes.addressof(ranges)} | fields
        return {
            refused(accel.kernel, accel.fd, PREP_BO_RANGES, PrepBoRanges(**common)),
            refused(accel.kernel, accel.fd, FINI_BO_RANGES, FiniBoRanges(**common)),
        }

    if accel.kernel.rocket != (1, 5):
        assert sync((0, 64)) == {errno.EINVAL}
        return
    assert sync((0, 64), (64, 64), (4095, 1)) == sync() == {0}
    for bad in (((0, 0),), ((64, 64), (0, 64)), ((0, 65), (64, 1)), ((4000, 97),)):
        assert sync(*bad) == {errno.EINVAL}
    assert sync((0, 64), count=1025) == {errno.EINVAL}
    assert sync((0, 64), reserved=1) == {errno.EINVAL}
    assert sync((0, 64), ranges=8) == {errno.EFAULT}
    assert sync((0, 64), handle=99) == {errno.ENOENT}


def test_rocket_buffers(accel: Rocket) -> None:
    assert accel.code.dma_address == 0 and accel.data.dma_address == 8192
    assert refused(accel.kernel, accel.fd, rocket.CREATE_BO, rocket.CreateBo()) == errno.EINVAL
    assert refused(accel.kernel, accel.fd, rocket.FINI_BO, rocket.FiniBo(handle=99)) == 0
    close = DrmGemClose(handle=accel.code.handle)
    assert refused(accel.kernel, accel.fd, DRM_IOCTL_GEM_CLOSE, close) == 0
    assert refused(accel.kernel, accel.fd, DRM_IOCTL_GEM_CLOSE, close) == errno.EINVAL
    assert refused(accel.kernel, accel.fd, rknpu.MEM_SYNC, rknpu.MemSync()) == errno.EINVAL
    assert refused(accel.kernel, 5, rocket.FINI_BO, rocket.FiniBo()) == errno.EBADF


class Vendor:
    """A raw rknpu file with a copy job."""

    def __init__(self) -> None:
        self.kernel = FakeKernel()
        self.fd = self.kernel.open(RENDER_NODE)
        self.code, self.data = self.create(0x403), self.create(0x403)
        self.list = self.create(0x40B)
        self.memory = self.map(self.data)
        self.memory[:16] = np.arange(1, 17) % 4 * 16
        words = canary.copy_task(self.data.dma_addr, self.data.dma_addr + 64)
        self.map(self.code)[: len(words)] = np.frombuffer(words, np.uint8)
        task = rknpu.RknpuTask(
            int_mask=0x300, regcfg_amount=len(words) // 8 - 4, regcmd_addr=self.code.dma_addr
        )
        self.map(self.list)[:40] = np.frombuffer(bytes(task), np.uint8)

    def create(self, flags: int, size: int = 4096) -> rknpu.MemCreate:
        bo = rknpu.MemCreate(flags=flags, size=size)
        self.kernel.ioctl(self.fd, rknpu.MEM_CREATE, bo)
        return bo

    def map(self, bo: rknpu.MemCreate) -> Any:
        place = rknpu.MemMap(handle=bo.handle)
        self.kernel.ioctl(self.fd, rknpu.MEM_MAP, place)
        return self.kernel.mmap(self.fd, bo.size, place.offset).view

    def submit(self, slots: tuple[int, ...] = (0,), **changes: int) -> tuple[int, rknpu.Submit]:
        fields = dict(flags=5, timeout=1000, task_number=1, core_mask=1, fence_fd=-1)
        argument = rknpu.Submit(**{**fields, "task_obj_addr": self.list.obj_addr, **changes})
        for s in slots:
            argument.subcore_task[s].task_number = 1
        return refused(self.kernel, self.fd, rknpu.SUBMIT, argument), argument

    @property
    def ran(self) -> bool:
        done = bool(self.memory[64:80].any())
        self.memory[64:80] = 0
        return done


@pytest.mark.parametrize(
    ("mask", "slots"), [(0, (0,)), (1, (0,)), (2, (1,)), (4, (2,)), (3, (0, 1)), (7, (2, 3, 4))]
)
def test_a_vendor_core_set_reads_its_own_slots(mask: int, slots: tuple[int, ...]) -> None:
    vendor = Vendor()
    number, argument = vendor.submit(slots, core_mask=mask)
    assert number == 0 and argument.task_counter == 1 and argument.hw_elapse_time > 0
    assert vendor.ran


def test_vendor_submit_errors() -> None:
    vendor = Vendor()
    assert vendor.submit(task_number=0)[0] == errno.EINVAL
    assert vendor.submit(core_mask=8)[0] == errno.EINVAL
    assert vendor.submit(core_mask=5)[0] == errno.ETIMEDOUT
    assert vendor.submit(task_obj_addr=1)[0] == errno.EINVAL
    assert vendor.submit(task_obj_addr=vendor.data.obj_addr)[0] == errno.EINVAL
    assert not vendor.ran
    vendor.map(vendor.code)[:] = 0
    number, argument = vendor.submit()
    assert number == errno.ETIMEDOUT and argument.task_counter in (0, 1)


def test_vendor_memory() -> None:
    vendor = Vendor()
    again = rknpu.MemCreate(handle=vendor.data.handle)
    vendor.kernel.ioctl(vendor.fd, rknpu.MEM_CREATE, again)
    assert again.dma_addr == vendor.data.dma_addr and again.size == 4096
    assert vendor.code.dma_addr == 0xFFFF_F000  # top down

    def sync(bo: rknpu.MemCreate, size: int = 4096, offset: int = 0) -> int:
        argument = rknpu.MemSync(1, 0, bo.obj_addr, offset, size)
        return refused(vendor.kernel, vendor.fd, rknpu.MEM_SYNC, argument)

    assert sync(vendor.data) == 0
    assert sync(vendor.data, 4096, 1) == errno.EINVAL
    assert sync(vendor.create(0x401)) == errno.EINVAL  # not cacheable
    for request, argument in (
        (rknpu.MEM_CREATE, rknpu.MemCreate()),
        (rknpu.MEM_MAP, rknpu.MemMap(handle=99)),
        (rknpu.MEM_DESTROY, rknpu.MemDestroy(handle=99)),
        (rknpu.ACTION, rknpu.Action(flags=99)),
    ):
        assert refused(vendor.kernel, vendor.fd, request, argument) == errno.EINVAL
    versions = {}
    for action in (0, 1, 18):
        argument = rknpu.Action(flags=action)
        vendor.kernel.ioctl(vendor.fd, rknpu.ACTION, argument)
        versions[action] = argument.value
    assert versions == {0: 1179210309, 1: 908, 18: 1}


# -- DRM's part, and threads -----------------------------------------------------------------


def test_drm_fills_up_short_structures_and_cuts_long_ones(accel: Rocket) -> None:
    file = accel.kernel.file(accel.fd)
    caller = OwnProcess(accel.kernel)

    def call(number: int, size: int, data: bytes, direction: int = 3) -> tuple[int, bytes]:
        return file.raw_ioctl(ioc(direction, "d", number, size), data, caller)

    size = (5000).to_bytes(4, "little")
    number, back = call(0x40, 4, size)
    assert number == 0 and back == size
    number, back = call(0x40, 40, size.ljust(40, b"\xff"))
    assert number == 0 and len(back) == 40
    assert back[4:8] != b"\xff" * 4 and back[24:] == bytes(16)  # the kernel's buffer is zeroed
    assert call(0x40, 24, size.ljust(24, b"\0"), direction=2) == (
        errno.EINVAL,
        bytes(24),
    )  # not read
    assert call(0x7E, 8, bytes(8)) == (errno.EINVAL, b"")
    assert call(0x41, 24, bytes(24)) == (errno.EINVAL, b"")  # job_struct_size 0; nothing is read


def test_flags_for_the_ppu_exist_since_1_3() -> None:
    for interface, number in (((1, 1), errno.EINVAL), ((1, 3), 0)):
        accel = Rocket(interface)
        assert accel.submit(flags=4) == number
        assert accel.ran == (number == 0)
    assert accel.submit(flags=6) == 0  # waits for the PPU only: the watchdog ends it
    file = accel.kernel.file(accel.fd)
    assert isinstance(file, RocketFile) and file.last is not None and not file.last.completed


def test_freed_addresses_are_given_out_again_but_not_before_they_have_to_be() -> None:
    accel = Rocket((0, 0))
    big = [accel.create((1 << 30) - 4096) for _ in range(3)]
    kept = [b.dma_address for b in big]
    assert kept == sorted(kept)
    for b in big[:2]:
        accel.kernel.ioctl(accel.fd, DRM_IOCTL_GEM_CLOSE, DrmGemClose(handle=b.handle))
    assert accel.create(4096).dma_address > kept[2]
    assert accel.create((1 << 30) + 8192).dma_address == kept[0]
    assert refused(accel.kernel, accel.fd, rocket.CREATE_BO, rocket.CreateBo(size=3 << 30)) == 28


def test_a_buffer_lives_as_long_as_a_job_that_lists_it() -> None:
    accel = Rocket((0, 0))
    accel.kernel.hold = True
    assert accel.submit() == 0
    for bo in (accel.code, accel.data):
        close = DrmGemClose(handle=bo.handle)
        assert refused(accel.kernel, accel.fd, DRM_IOCTL_GEM_CLOSE, close) == 0
    accel.kernel.release()
    assert accel.ran
    assert not accel.kernel.file(accel.fd).mapped


def test_threads_run_jobs_of_files_side_by_side() -> None:
    kernel = FakeKernel(threaded=True)
    files = [Rocket((0, 0), kernel) for _ in range(6)]
    for _ in range(3):
        for f in files:
            assert f.submit() == 0
        for f in files:
            prep = rocket.PrepBo(handle=f.data.handle, timeout_ns=(1 << 63) - 1)
            assert refused(kernel, f.fd, rocket.PREP_BO, prep) == 0 and f.ran
    for f in files:
        kernel.close(f.fd)
    assert kernel.leaks()[:2] == (0, 0)


def test_a_job_that_hangs_is_ended_by_the_watchdog() -> None:
    accel = Rocket((0, 0), FakeKernel(threaded=True))
    accel.kernel.mmap(accel.fd, 8192, accel.code.offset).view[:] = 0
    began = time.monotonic()
    assert accel.submit() == 0

    def prep(timeout_ns: int) -> int:
        argument = rocket.PrepBo(handle=accel.data.handle, timeout_ns=timeout_ns)
        return refused(accel.kernel, accel.fd, rocket.PREP_BO, argument)

    assert prep(0) == errno.EBUSY
    assert prep(time.monotonic_ns() + 50_000_000) == errno.ETIMEDOUT
    assert 0.05 <= time.monotonic() - began < 0.4
    assert prep((1 << 63) - 1) == 0 and not accel.ran
    assert 0.5 <= time.monotonic() - began < 2


def test_a_deadline_is_one_of_the_boards_time(monkeypatch: pytest.MonkeyPatch) -> None:
    accel = Rocket((0, 0), FakeKernel(threaded=True))
    run = accel.kernel.machine.run

    def slow(*args: Any, **options: Any) -> Any:
        time.sleep(0.1)  # as an emulator is; on a board it would be `board` cycles
        return replace(run(*args, **options), cycles=board)

    def prep(timeout_ns: int) -> int:
        argument = rocket.PrepBo(handle=accel.data.handle, timeout_ns=timeout_ns)
        return refused(accel.kernel, accel.fd, rocket.PREP_BO, argument)

    monkeypatch.setattr(accel.kernel.machine, "run", slow)
    for cycles, number in ((1_000, 0), (10**9, errno.ETIMEDOUT)):
        board = cycles
        assert accel.submit() == 0
        assert prep(time.monotonic_ns() + 20_000_000) == number
        assert accel.ran and prep(0) == 0
