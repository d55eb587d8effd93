"""Any ioctl with any bytes: an errno of the table, nothing leaks, and the next job still works.

The table is docs/how-to/run-a-foreign-program.md ("Errors"), written down here once more, with
structures as offsets: nothing of it comes from the code under test.
"""

from __future__ import annotations

import os
import random
import struct
import threading
from dataclasses import dataclass, field
from errno import (
    E2BIG,
    EACCES,
    EBADF,
    EBUSY,
    EFAULT,
    EINVAL,
    ENOENT,
    ENOMEM,
    ENOSPC,
    ENOTTY,
    EOPNOTSUPP,
    ETIMEDOUT,
)

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opennpu.device import canary
from opennpu.device.fakedrm import FakeMapping
from opennpu.device.fakefence import Fence, OpenFile
from opennpu.device.fakekernel import ACCEL_NODE, RENDER_NODE, FakeKernel
from opennpu.emu.machine import Machine
from opennpu.emu.numerics import Policy

TIGHT = Policy(max_macs=1 << 22, max_bytes=1 << 22, max_task_bytes=1 << 21, max_words=1 << 12)
BASE, MEMORY_BYTES = 0x10000, 8192
WRITE, READ = 1, 2  # directions of an ioctl number
VERSION, UNIQUE, CLOSE, FLINK, OPEN, CAP, EXPORT, IMPORT = 0, 1, 9, 0xA, 0xB, 0xC, 0x2D, 0x2E
ROCKET = {"create": 0x40, "submit": 0x41, "prep": 0x42, "fini": 0x43, "preps": 0x44, "finis": 0x45}
RKNPU = {"action": 0x40, "submit": 0x41, "create": 0x42, "map": 0x43, "destroy": 0x44, "sync": 0x45}
DIRECTIONS = {CLOSE: WRITE, **dict.fromkeys((0x41, 0x42, 0x43, 0x44, 0x45), WRITE)}  # of rocket
INTERFACES = [(0, 0), (1, 1), (1, 5), "rknpu"]


@dataclass
class Process:
    """A caller with 8 KiB of memory: whatever is outside is EFAULT."""

    memory: bytearray = field(default_factory=lambda: bytearray(MEMORY_BYTES))
    files: dict[int, OpenFile] = field(default_factory=dict)

    def read(self, address: int, nbytes: int) -> bytes:
        at = address - BASE
        if at < 0 or at + nbytes > MEMORY_BYTES:
            raise OSError(EFAULT, "")
        return bytes(self.memory[at : at + nbytes])

    def write(self, address: int, data: bytes) -> None:
        self.read(address, len(data))
        self.memory[address - BASE :][: len(data)] = data

    def wait(self, fence: Fence, until_ns: int | None) -> None:
        raise AssertionError("nothing is left to wait for: jobs end within their submit")

    def install(self, file: OpenFile, flags: int) -> int:
        file.opened()
        fd = 10 + len(self.files)
        self.files[fd] = file
        return fd

    def file(self, fd: int) -> OpenFile | None:
        if fd not in self.files:
            raise OSError(EBADF, "")
        return self.files[fd]

    def can_read(self, address: int, nbytes: int) -> bool:
        return BASE <= address <= address + nbytes <= BASE + MEMORY_BYTES


@dataclass
class Known:
    """What the test knows about an open file."""

    interface: tuple[int, int] | str
    handles: set[int] = field(default_factory=set)
    objects: list[int] = field(default_factory=list)  # rknpu's kernel pointers
    taken: int = 0  # bytes of IOVA


def u32(raw: bytes, at: int) -> int:
    return int(struct.unpack_from("<I", raw, at)[0])


def u64(raw: bytes, at: int) -> int:
    return int(struct.unpack_from("<Q", raw, at)[0])


ANY = frozenset({0, EINVAL, EFAULT, ENOMEM, ENOENT, ENOSPC, E2BIG, ETIMEDOUT, EBUSY, EBADF})


def allowed(k: Known, number: int, raw: bytes, process: Process) -> set[int]:
    """Errnos that the table gives for a call with the structure ``raw``, zeros behind it."""
    raw = raw.ljust(256, b"\0")
    if number == VERSION:
        rooms = [(u64(raw, 16 + 16 * i), u64(raw, 24 + 16 * i)) for i in range(3)]
        return {0} if not any(n and p for n, p in rooms) else {0, EFAULT}
    if number == UNIQUE:
        return {0}
    if number == CLOSE:
        return {0} if u32(raw, 0) in k.handles else {EINVAL}
    if number in (FLINK, OPEN):
        return {EACCES}
    if number == CAP:
        return {0} if u64(raw, 0) in (0x5, 0x6, 0x13, 0x14) else {EOPNOTSUPP}
    if number == EXPORT:
        if u32(raw, 4) & ~(os.O_CLOEXEC | os.O_RDWR):
            return {EINVAL}
        return {0} if u32(raw, 0) in k.handles else {ENOENT}
    if number == IMPORT:
        known = struct.unpack_from("<i", raw, 8)[0] in process.files
        return {0, EINVAL} if known else {EBADF}
    return (_rknpu if k.interface == "rknpu" else _rocket)(k, number, raw, process)


def _created(k: Known, size: int) -> set[int]:
    if size == 0:
        return {EINVAL}
    return {0} if k.taken + size < 1 << 31 else {0, ENOSPC, ENOMEM}


def _rocket(k: Known, number: int, raw: bytes, process: Process) -> set[int]:
    stock = k.interface == (0, 0)
    if number == ROCKET["create"]:
        return _created(k, u32(raw, 0))
    if number == ROCKET["prep"]:
        if u32(raw, 4):
            return {EINVAL}
        return {0} if u32(raw, 0) in k.handles else {ENOENT}
    if number == ROCKET["fini"]:
        return {0, EINVAL, ENOENT}  # the table is silent
    if number == ROCKET["submit"]:
        jobs, count, size = u64(raw, 0), u32(raw, 8), u32(raw, 12)
        if u64(raw, 16) or size < 40:
            return {EINVAL}
        if count == 0:
            return {0}
        if count * size > 64 << 20:
            return {ENOMEM}
        if not process.can_read(jobs, count * size):
            return {EFAULT}
        return {0} if stock else {0, EINVAL, EFAULT, ENOENT, E2BIG, ENOMEM}
    if number in (ROCKET["preps"], ROCKET["finis"]) and k.interface == (1, 5):
        reserved = u64(raw, 24 if number == ROCKET["preps"] else 16)
        if reserved or u32(raw, 4) > 1024:
            return {EINVAL}
        if u32(raw, 0) not in k.handles:
            return {ENOENT}
        count, at = u32(raw, 4), u64(raw, 8)
        return {EFAULT} if count and not process.can_read(at, 16 * count) else {0, EINVAL}
    return {EINVAL}


def _rknpu(k: Known, number: int, raw: bytes, process: Process) -> set[int]:
    if number == RKNPU["action"]:
        if u32(raw, 0) == 25:
            return {0} if u32(raw, 4) < 16 else {EINVAL}
        return {0, EINVAL}
    if number == RKNPU["create"]:
        if u32(raw, 0) in k.handles:
            return {0}
        if struct.unpack_from("<i", raw, 40)[0] not in range(16):
            return {EINVAL, ENOMEM} if u64(raw, 8) > 1 << 32 else {EINVAL}
        return _created(k, u64(raw, 8))
    if number in (RKNPU["map"], RKNPU["destroy"]):
        return {0} if u32(raw, 0) in k.handles else {EINVAL}
    if number == RKNPU["sync"]:
        return {0, EINVAL} if u64(raw, 8) in k.objects else {EINVAL}
    if number == RKNPU["submit"]:
        flags, tasks, mask, task_object = u32(raw, 0), u32(raw, 12), u32(raw, 56), u64(raw, 24)
        if tasks == 0 or mask > 7 or not flags & 1:
            return {EINVAL}
        fences = {EBADF, EINVAL, ETIMEDOUT} if flags & 0x18 else set()
        if task_object not in k.objects:
            return {EINVAL, *fences}
        return {0, EINVAL, ETIMEDOUT, *fences}
    return {EINVAL}


def value(rng: random.Random, k: Known, width: int) -> int:
    """A number that means something, or nothing."""
    pool = (0, 1, 2, 3, 8, 15, 16, 40, 48, 64, 4096, 1 << 31, -1, -4096, 7, 5)
    ours = (*sorted(k.handles), *k.objects, BASE, BASE + 64, BASE + MEMORY_BYTES - 8)
    found = rng.choice(
        (rng.choice(pool), rng.choice(ours), rng.getrandbits(rng.choice((4, 16, 64))))
    )
    return found & (1 << 8 * width) - 1


def fill(rng: random.Random, k: Known, process: Process) -> None:
    for at in range(0, 512, 4):
        struct.pack_into("<I", process.memory, at, value(rng, k, 4))
    for at in range(0, 512, 8):
        if rng.random() < 0.5:
            struct.pack_into("<Q", process.memory, at, value(rng, k, 8))
    if rng.random() < 0.5 and k.handles and k.interface != "rknpu":  # a job that is nearly sound
        struct.pack_into("<II", process.memory, 0x200, rng.choice((4096, 0, 8192)), 64)
        struct.pack_into("<I", process.memory, 0x300, rng.choice(sorted(k.handles)))
        job = (BASE + 0x200, BASE + 0x300, 0, 1, 8, 1, 0)
        struct.pack_into("<3Q4I", process.memory, 0, *job)


def argument(rng: random.Random, k: Known, number: int) -> bytes:
    raw = b"".join(struct.pack("<I", value(rng, k, 4)) for _ in range(rng.choice((1, 2, 4, 8, 30))))
    for at in range(0, len(raw) - 7, 8):
        if rng.random() < 0.5:
            raw = raw[:at] + struct.pack("<Q", value(rng, k, 8)) + raw[at + 8 :]
    if k.interface == "rknpu":
        if number == RKNPU["create"] and rng.random() < 0.6:
            size = rng.choice((1, 4096, 65536, 1 << 20))
            raw = struct.pack("<IIQQQQiI", 0, rng.choice((0, 3, 0x40B)), size, 0, 0, 0, 0, 0)
        if number == RKNPU["submit"] and k.objects and rng.random() < 0.7:
            n = rng.choice((1, 2, 1 << 12, 1 << 30))
            raw = struct.pack(
                "<6IQIIQqIi10I",
                *(rng.choice((1, 5, 7, 9, 17)), rng.choice((0, 100, 6000)), 0, n, 0, 0),
                *(rng.choice(k.objects), rng.choice((0, 0, 16)), 0, 0, 0),
                *(rng.choice((0, 1, 2, 3, 5, 7)), -1, *([0, n] * 5)),
            )
    else:
        if number == ROCKET["create"] and rng.random() < 0.6:
            raw = struct.pack("<IIQQ", rng.choice((1, 4096, 65536, 1 << 20)), 0, 0, 0)
        if number == ROCKET["submit"] and rng.random() < 0.6:
            raw = struct.pack("<QIIQ", BASE, rng.choice((1, 2)), rng.choice((40, 48, 56)), 0)
    return raw


def learn(k: Known, number: int, raw: bytes, back: bytes, process: Process) -> None:
    """What a call that passed has changed."""
    raw, back = raw.ljust(256, b"\0"), back.ljust(256, b"\0")
    vendor = k.interface == "rknpu"
    if number == CLOSE or (vendor and number == RKNPU["destroy"]):
        k.handles.discard(u32(raw, 0))
    if not vendor and number == ROCKET["create"]:
        k.handles.add(u32(back, 4))
        k.taken += u32(raw, 0) + 4096
    if vendor and number == RKNPU["create"]:
        k.handles.add(u32(back, 0))
        k.objects.append(u64(back, 16))
        k.taken += u64(raw, 8) + 4096
    if number == IMPORT:
        k.handles.add(u32(back, 0))


def new_kernel(interface: tuple[int, int] | str, threaded: bool = False) -> FakeKernel:
    machine = Machine(cores=3, policy=TIGHT, strict=False)
    version = None if interface == "rknpu" else interface
    assert not isinstance(version, str)
    return FakeKernel(machine, rocket=version, rknpu=interface == "rknpu", threaded=threaded)


def call(
    rng: random.Random, kernel: FakeKernel, fd: int, k: Known, process: Process
) -> tuple[str, int, set[int]]:
    """One random ioctl: (what, errno, errnos of the table)."""
    fill(rng, k, process)
    numbers = (*range(0x40, 0x46), *range(0x40, 0x46), VERSION, UNIQUE, CLOSE, CAP, EXPORT, IMPORT)
    number = rng.choice((*numbers, FLINK, OPEN, rng.randrange(256)))
    raw = argument(rng, k, number)
    size = min(len(raw), 0x3FFF) if rng.random() < 0.8 else rng.choice((0, 4, 8, 200, 0x3FFF))
    directions = 3 if rng.random() < 0.8 else rng.randrange(4)
    kind = "d" if rng.random() < 0.95 else chr(rng.randrange(256))
    request = directions << 30 | size << 16 | ord(kind) << 8 | number
    file = kernel.file(fd)
    taken = raw[:size].ljust(size, b"\0") if directions & WRITE else b""
    expected = {ENOTTY} if kind != "d" else allowed(k, number, taken, process)
    error, back = file.raw_ioctl(request, raw[:size].ljust(size, b"\0"), process)
    assert len(back) in (0, size)
    if not error and kind == "d":
        if len(back) < 24 and number in (0x40, 0x42):  # too short to tell the handle: ask
            whole = set(file.bos)  # type: ignore[attr-defined]
            k.taken += (1 << 32) * bool(whole - k.handles)
            k.handles |= whole
            k.objects = [b.obj_addr for b in file.bos.values()]  # type: ignore[attr-defined]
        else:
            learn(k, number, taken, back, process)
    return f"{number:#x} {directions} {raw[:size].hex()}", error, expected


def copies(interface: tuple[int, int] | str, kernel: FakeKernel) -> bool:
    """A good job on a new file of the kernel."""
    process, k = Process(), Known(interface)
    fd = kernel.open(RENDER_NODE if interface == "rknpu" else ACCEL_NODE)
    file = kernel.file(fd)
    mapped: list[FakeMapping] = []

    def ioctl(number: int, raw: bytes, directions: int = 3) -> bytes:
        error, back = file.raw_ioctl(
            directions << 30 | len(raw) << 16 | 0x6400 | number, raw, process
        )
        assert error == 0, (hex(number), error)
        return back

    def create() -> tuple[int, int, int, np.ndarray]:
        """Handle, IOVA, kernel pointer, bytes."""
        if k.interface == "rknpu":
            ask = struct.pack("<IIQQQQiI", 0, 0x40B, 4096, 0, 0, 0, 0, 0)
            back = ioctl(RKNPU["create"], ask)
            where = u64(ioctl(RKNPU["map"], struct.pack("<IIQ", u32(back, 0), 0, 0)), 8)
            found = (u32(back, 0), u64(back, 24), u64(back, 16))
        else:
            back = ioctl(ROCKET["create"], struct.pack("<IIQQ", 4096, 0, 0, 0))
            where = u64(back, 16)
            found = (u32(back, 4), u64(back, 8), 0)
        mapped.append(kernel.mmap(fd, 4096, where))
        return (*found, mapped[-1].view)

    (code, at, _, words), (data, iova, _, view) = create(), create()
    task = canary.copy_task(iova, iova + 64)
    words[: len(task)] = np.frombuffer(task, np.uint8)
    view[:16] = np.arange(16, 32)
    if k.interface == "rknpu":
        _, _, pointer, tasks = create()
        one = struct.pack("<7IIQ", 0, 0, 0x18, 0x300, 0x1FFFF, 0, len(task) // 8 - 4, 0, at)
        tasks[: len(one)] = np.frombuffer(one, np.uint8)
        ask = struct.pack(
            "<6IQIIQqIi10I", 5, 6000, 0, 1, 0, 0, pointer, 0, 0, 0, 0, 1, -1, *([0, 1] * 5)
        )
        ioctl(RKNPU["submit"], ask)
    else:
        struct.pack_into("<II", process.memory, 0x200, at, len(task) // 8)
        struct.pack_into("<II", process.memory, 0x300, code, data)
        job = (BASE + 0x200, BASE + 0x300, BASE + 0x304, 1, 8, 1, 1)
        struct.pack_into("<3Q4I", process.memory, 0, *job)
        ioctl(ROCKET["submit"], struct.pack("<QIIQ", BASE, 1, 40, 0), WRITE)
    ran = view[64:80].tolist() == view[:16].tolist()
    for m in mapped:
        m.close()
    kernel.close(fd)
    return ran


@pytest.mark.parametrize("interface", INTERFACES, ids=str)
@given(seed=st.integers(0, 1 << 40))
@settings(deadline=None, max_examples=25)
def test_any_ioctl_has_an_errno_of_the_table(interface: tuple[int, int] | str, seed: int) -> None:
    rng = random.Random(seed)
    kernel, process = new_kernel(interface), Process()
    fd = kernel.open(RENDER_NODE if interface == "rknpu" else ACCEL_NODE)
    k = Known(interface)
    for _ in range(60):
        what, error, expected = call(rng, kernel, fd, k, process)
        assert error in expected, (what, error, expected)
    kernel.close(fd)
    for file in process.files.values():
        file.close()
    assert copies(interface, kernel)
    assert kernel.leaks() == (0, 0, 0)


@pytest.mark.parametrize("interface", INTERFACES, ids=str)
def test_any_ioctl_from_three_threads_at_once(interface: tuple[int, int] | str) -> None:
    """Errnos are not exact here: threads close each other's handles."""
    kernel = new_kernel(interface)
    fd = kernel.open(RENDER_NODE if interface == "rknpu" else ACCEL_NODE)
    problems: list[str] = []
    everything = ANY | {ENOTTY, EACCES, EOPNOTSUPP}

    def work(seed: int) -> None:
        rng, process, k = random.Random(seed), Process(), Known(interface)
        try:
            for _ in range(150):
                what, error, _ = call(rng, kernel, fd, k, process)
                if error not in everything:
                    problems.append(f"{what}: {error}")
            for file in process.files.values():
                file.close()
        except Exception as e:
            problems.append(repr(e))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert not any(t.is_alive() for t in threads)
    assert problems == []
    kernel.close(fd)
    assert copies(interface, kernel)
