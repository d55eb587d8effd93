"""A fake kernel for other processes: what the library of ``opennpu emulate`` talks to.

native/shim/opennpu_shim.c forwards each call on a device node over a Unix socket, one connection
per call at a time; the argument's structure comes along, and what it points to is asked for.
Buffer objects are memfds that both sides map.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import select
import selectors
import socket
import struct
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from opennpu.device.fakecores import Work
from opennpu.device.fakedrm import FakeMemory
from opennpu.device.fakefence import Fence, OpenFile, fail, sleep_ns
from opennpu.device.fakekernel import ACCEL_NODE, RENDER_NODE, FakeKernel
from opennpu.device.fakerknpu import RknpuCardFile
from opennpu.emu.machine import Machine, RunResult
from opennpu.emu.memory import AddressSpace
from opennpu.errors import ViolationError

CARD_NODE = "/dev/dri/card1"
NUMBERS = {ACCEL_NODE: (261, 0), RENDER_NODE: (226, 129), CARD_NODE: (226, 1)}
"""Major and minor numbers of the nodes."""

OPEN, STAT, IOCTL, MMAP, CANCEL, DATA, DONE, PASS, READ, WRITE, INSTALL, WHO, SEEK = range(1, 14)
MESSAGE = struct.Struct("<IiQQQQ")  # op, error, file, request, address, size; payload follows
CHUNK = 64 << 10  # bytes of a payload
PROOF_BYTES = 8  # of an argument; enough to show that its address is one of the process
SWITCH_S = 0.0005  # how long a thread keeps the interpreter while others wait
PEER = struct.Struct("3i")  # struct ucred: pid, uid, gid


class Message(NamedTuple):
    op: int
    error: int = 0
    file: int = 0
    request: int = 0
    address: int = 0
    size: int = 0


class Gone(Exception):
    """The program closed the connection, or died."""


class SharedMemory(FakeMemory):
    """A sealed memfd: nobody can make it smaller under us."""

    def __init__(self, nbytes: int) -> None:
        fd = os.memfd_create("opennpu-bo", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(fd, nbytes)
            seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
            data = np.frombuffer(mmap.mmap(fd, nbytes), np.uint8)
        except BaseException:
            os.close(fd)
            raise
        super().__init__(data, fd)

    def image(self) -> bytes:
        """As `FakeMemory.image`, but pages that nobody touched are not read."""
        parts, at, end = [], 0, self.data.size
        while at < end:
            try:
                first = os.lseek(self.fd, at, os.SEEK_DATA)
            except OSError:  # ENXIO: only a hole is left
                break
            last = os.lseek(self.fd, first, os.SEEK_HOLE)
            parts += [bytes(first - at), self.data[first:last].tobytes()]
            at = last
        return b"".join(parts).rstrip(b"\0")

    def close(self) -> None:
        super().close()
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class Observer:
    """Sees every job, before and after; does nothing."""

    def before(self, core: int, work: Work) -> None:
        """A core begins with a job."""

    def after(self, core: int, work: Work, violation: ViolationError | None) -> None:
        """It has ended, or the strict machine refused it."""


class ServedKernel(FakeKernel):
    """A fake kernel with memory to share, and threads of its own."""

    def __init__(
        self,
        machine: Machine,
        *,
        rocket: tuple[int, int] | None,
        rknpu: bool,
        observers: Sequence[Observer] = (),
        space: Callable[[], AddressSpace] = AddressSpace,
    ) -> None:
        super().__init__(machine, rocket=rocket, rknpu=rknpu, threaded=True)
        if rknpu:
            self.nodes[CARD_NODE] = RknpuCardFile
        self.observers, self._new_space = observers, space

    def new_space(self) -> AddressSpace:
        return self._new_space()

    def new_memory(self, nbytes: int) -> FakeMemory:
        return SharedMemory(nbytes)

    def run(self, core: int, work: Work) -> list[RunResult]:
        violation = None
        for o in self.observers:
            o.before(core, work)
        try:
            work.results = super().run(core, work)
        except ViolationError as e:
            violation = e
        except Exception:  # ours to mend; the program sees a job that hangs
            traceback.print_exc()
            self.machine.reset(core)
        for o in self.observers:
            o.after(core, work, violation)
        return work.results


class Connection:
    """One call at a time of some thread of some process; a `Caller`."""

    def __init__(self, server: Server, conn: socket.socket, pid: int) -> None:
        self.server, self.conn, self.pid = server, conn, pid
        self._direct: bool | None = None  # whether its memory can be read without asking
        self._changed = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._poll = select.poll()
        self._poll.register(conn, select.POLLIN)
        self._poll.register(self._changed, select.POLLIN)
        self._buffer = bytearray(MESSAGE.size + CHUNK)
        self._payload = memoryview(self._buffer)[MESSAGE.size :]
        self._cancelled = False

    def serve(self) -> None:
        """Thread of the connection."""
        try:
            while True:
                self._answer(self._receive())
        except (Gone, OSError):
            pass
        finally:
            self.conn.close()
            os.close(self._changed)

    def _answer(self, m: Message) -> None:
        self._cancelled = False
        try:
            if m.op in (OPEN, STAT):
                self._node(m)
            elif m.op == IOCTL:
                self._ioctl(m)
            elif m.op == MMAP:
                self._mmap(m)
            elif m.op == SEEK:
                self._send(Message(DONE, request=self.server.kernel.file(m.file).size()))
        except Gone:
            raise
        except OSError as e:
            self._send(Message(DONE, e.errno or errno.EIO))
        except Exception:
            traceback.print_exc()
            self._send(Message(DONE, errno.EIO))

    def _node(self, m: Message) -> None:
        path = bytes(self._payload[: self._size]).decode("utf-8", "replace")
        if path not in self.server.kernel.nodes:
            self._send(Message(PASS))
            return
        major, minor = NUMBERS[path]
        if m.op == STAT:
            self._send(Message(DONE, request=major << 32 | minor))
            return
        file = self.server.kernel.nodes[path](self.server.kernel)
        with self.server.install(file, m.request, NUMBERS[path]) as end:
            self._send(Message(DONE), fds=[end.fileno()])

    def _ioctl(self, m: Message) -> None:
        if self._size != m.size:  # the argument is not there
            raise fail(errno.EFAULT)
        argument = bytes(self._payload[: self._size])
        if self._direct is None and len(argument.strip(b"\0")) >= PROOF_BYTES:
            self._direct = self._has(m.address, argument)
        file = self.server.kernel.file(m.file)
        number, result = file.raw_ioctl(m.request, argument, self)
        self._send(Message(DONE, number, size=len(result)))
        if result:
            self.conn.send(result)

    def _mmap(self, m: Message) -> None:
        """``address``: PROT_*, as the mapping is shared."""
        kernel, flags = self.server.kernel, self.server.flags.get(m.file, 0)
        accesses = flags & os.O_ACCMODE
        if accesses == os.O_WRONLY or (accesses == os.O_RDONLY and m.address & mmap.PROT_WRITE):
            raise fail(errno.EACCES)
        with kernel.lock:
            bo, at = kernel.file(m.file).lookup(m.size, m.request)
            self._send(Message(DONE, request=at), fds=[bo.memory.fd])

    # -- what a driver asks of its caller ----------------------------------------------------

    def _has(self, address: int, content: bytes) -> bool:
        """Whether we may read the process's memory, and find ``content`` there.

        Not in a process of qemu-user, which has addresses of its own.
        """
        return _peek(self.pid, address, len(content)) == content

    def read(self, address: int, nbytes: int) -> bytes:
        if self._direct:
            data = _peek(self.pid, address, nbytes)
            if len(data) == nbytes:
                return data
        parts = []
        for at in range(0, nbytes, CHUNK):
            n = min(CHUNK, nbytes - at)
            self._send(Message(READ, address=(address + at) % (1 << 64), size=n))
            if self._data().error or self._size != n:
                raise fail(errno.EFAULT)
            parts.append(bytes(self._payload[:n]))
        return b"".join(parts)

    def write(self, address: int, data: bytes) -> None:
        for at in range(0, len(data), CHUNK):
            part = data[at : at + CHUNK]
            self._send(Message(WRITE, address=(address + at) % (1 << 64), size=len(part)))
            self.conn.send(part)
            if self._data().error:
                raise fail(errno.EFAULT)

    def wait(self, fence: Fence, until_ns: int | None) -> None:
        fence.watch(self._wake)
        try:
            ready = [] if self._cancelled else self._poll.poll(sleep_ns(until_ns) / 1e6)
        finally:
            fence.unwatch(self._wake)
        for fd, _ in ready:
            if fd == self._changed:
                os.eventfd_read(fd)
            elif self._receive().op == CANCEL:
                self._cancelled = True
        if self._cancelled and not fence.done:
            raise fail(errno.EINTR)

    def install(self, file: OpenFile, flags: int) -> int:
        with self.server.install(file, flags) as end:
            self._send(Message(INSTALL, request=flags), fds=[end.fileno()])
        reply = self._data()
        if reply.error:
            raise fail(reply.error)
        return reply.request

    def file(self, fd: int) -> OpenFile | None:
        self._send(Message(WHO, request=fd & 0xFFFF_FFFF))
        reply = self._data()
        if reply.error:
            raise fail(reply.error)
        return self.server.kernel.file(reply.file) if reply.file else None

    def _wake(self) -> None:
        os.eventfd_write(self._changed, 1)

    # -- messages ----------------------------------------------------------------------------

    def _data(self) -> Message:
        while (m := self._receive()).op == CANCEL:
            self._cancelled = True
        return m

    def _receive(self) -> Message:
        n = self.conn.recv_into(self._buffer)
        if n < MESSAGE.size:
            raise Gone
        self._size = n - MESSAGE.size
        return Message(*MESSAGE.unpack_from(self._buffer))

    def _send(self, m: Message, fds: Sequence[int] = ()) -> None:
        if fds:
            rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))
            self.conn.sendmsg([MESSAGE.pack(*m)], [rights])
        else:
            self.conn.send(MESSAGE.pack(*m))


class _Iovec(ctypes.Structure):
    """struct iovec."""

    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]


_READV = ctypes.CDLL(None).process_vm_readv
_READV.restype = ctypes.c_ssize_t
_ONE, _NO_FLAGS = ctypes.c_ulong(1), ctypes.c_ulong(0)


def _peek(pid: int, address: int, nbytes: int) -> bytes:
    """Memory of another process, as far as it is readable."""
    data = ctypes.create_string_buffer(nbytes)
    spans = (_Iovec * 2)(_Iovec(ctypes.addressof(data), nbytes), _Iovec(address, nbytes))
    here = ctypes.addressof(spans)
    there = here + ctypes.sizeof(_Iovec)
    done = _READV(pid, ctypes.c_void_p(here), _ONE, ctypes.c_void_p(there), _ONE, _NO_FLAGS)
    return data.raw[: max(0, done)]


class Server:
    """Listens on an abstract Unix socket; only this user may connect.

    Attributes:
        name: of the socket, without the zero before it.
        connections: made so far.
    """

    def __init__(self, kernel: ServedKernel) -> None:
        self.kernel = kernel
        self.name = f"opennpu-{os.getpid()}-{os.urandom(6).hex()}"
        self.connections = 0
        self.flags: dict[int, int] = {}  # with which files were opened
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind("\0" + self.name)
        self._listener.listen(128)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        sys.setswitchinterval(SWITCH_S)
        threading.Thread(target=self._loop, daemon=True).start()

    def install(
        self, file: OpenFile, flags: int, device: tuple[int, int] = (0, 0)
    ) -> socket.socket:
        """A file descriptor for the program: when all copies are closed, so is ``file``.

        flags: of open(2).
        device: numbers of the node; zeros for what is none.

        Its name tells the program's library which file and which device it stands for.
        """
        fd = self.kernel.install(file)
        self.flags[fd] = flags
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        theirs.bind(f"\0{self.name}/{fd}/{device[0]}/{device[1]}")
        theirs.setblocking(not flags & os.O_NONBLOCK)
        fence = file.poll_fence
        if fence is not None:
            fence.watch(lambda: _tell(ours, fence))
        self._selector.register(ours, selectors.EVENT_READ, fd)
        return theirs

    def _loop(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._listener:
                    self._accept()
                else:
                    assert isinstance(key.fileobj, socket.socket)
                    self._hang_up(key.fileobj, key.data)

    def _accept(self) -> None:
        conn, _ = self._listener.accept()
        pid, uid, _ = PEER.unpack(conn.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER.size))
        if uid not in (os.getuid(), 0):
            conn.close()
            return
        self.connections += 1
        threading.Thread(target=Connection(self, conn, pid).serve, daemon=True).start()

    def _hang_up(self, ours: socket.socket, fd: int) -> None:
        """The last copy of a file descriptor is closed."""
        try:
            if ours.recv(1):
                return  # somebody writes to the node
        except OSError:
            pass
        self._selector.unregister(ours)
        ours.close()
        self.flags.pop(fd)
        self.kernel.close(fd)


def _tell(end: socket.socket, fence: Fence) -> None:
    """Make the other end readable."""
    if fence.done:
        with contextlib.suppress(OSError):  # it is closed
            end.send(b"1")
