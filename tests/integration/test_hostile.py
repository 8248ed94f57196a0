# SPDX-License-Identifier: Apache-2.0
"""What a hostile or careless client does to itself, and not to the agent or to clients of other uids."""

import contextlib
import ctypes
import fcntl
import mmap
import os
import pathlib
import select
import signal
import socket
import struct
import threading
import time

import dray
import pytest
from wire import codec as s
from harness import LIMIT, MIB, Raw, nothing_leaked, until, wait_for_release

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.mmap.restype = ctypes.c_void_p
LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
OTHER = 54321  # another uid than that of the agent and of the tests
OVERFLOW = int(pathlib.Path("/proc/sys/kernel/overflowuid").read_text())
# An agent that stands still fails a test after these seconds.
ALIVE = 5

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can connect with another uid")


@contextlib.contextmanager
def uid(number):
    """The kernel reports this uid for connections that this thread makes in the block."""
    # the call of the C library would change all threads, and wait for one that the kernel holds up
    before = os.geteuid()
    assert LIBC.syscall(117, -1, number, -1) == 0  # setresuid(2)
    try:
        yield
    finally:
        assert LIBC.syscall(117, -1, before, -1) == 0


class Blockers:
    """Sockets whose last close() waits: SO_LINGER, and unsent data to an end that does not read."""

    def __init__(self, n):
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            listener.bind(("127.0.0.1", 0))
            listener.listen(n)
            self.ends, self.fds = [], []
            for _ in range(n):
                sock = socket.create_connection(listener.getsockname())
                self.ends.append(listener.accept()[0])
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 60))
                sock.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    while True:
                        sock.send(bytes(MIB))
                self.fds.append(sock)

    def filenos(self):
        return [sock.fileno() for sock in self.fds]

    def hand_over(self):
        """Closes the own descriptors. Those that were passed must be open still, or this waits."""
        for sock in self.fds:
            sock.close()
        self.fds = []

    def release(self):
        """The other ends reset their connections, so that close() has nothing to wait for."""
        for end in self.ends:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            end.close()
        self.ends = []
        for sock in self.fds:
            sock.close()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.release()


class HeldInode:
    """A memfd with a hole at its end, whose inode this process locks: write() waits for a page that never comes."""

    def __init__(self):
        self.fd = os.memfd_create("held", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.fd, 2 * MIB)
        os.pwrite(self.fd, bytes(MIB), 0)
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        self.uffd = LIBC.syscall(323, os.O_CLOEXEC | os.O_NONBLOCK)
        assert self.uffd >= 0, "userfaultfd is for root here"
        fcntl.ioctl(self.uffd, 0xc018aa3f, bytearray(struct.pack("=QQQ", 0xaa, 0, 0)))  # UFFDIO_API
        self.page = LIBC.mmap(None, 4096, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
        fcntl.ioctl(self.uffd, 0xc020aa00, bytearray(struct.pack("=QQQQ", self.page, 4096, 1, 0)))  # UFFDIO_REGISTER, missing
        self.writer = threading.Thread(target=LIBC.pwrite, daemon=True, args=(
            self.fd, ctypes.c_void_p(self.page), ctypes.c_size_t(4096), ctypes.c_long(0)))
        self.writer.start()
        select.select([self.uffd], [], [], LIMIT)  # the fault is reported: the lock is held

    def release(self):
        """The page comes, and write() returns."""
        if self.uffd >= 0:
            fcntl.ioctl(self.uffd, 0xc020aa04, bytearray(struct.pack("=QQQq", self.page, 4096, 0, 0)))  # UFFDIO_ZEROPAGE
            self.writer.join(LIMIT)
            os.close(self.uffd)
            self.uffd = -1
            LIBC.munmap(ctypes.c_void_p(self.page), 4096)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.release()
        os.close(self.fd)


def serves(agent):
    """The control thread and the workers answer a client of our own uid."""
    with agent.client(timeout=ALIVE) as client, dray.Memory(MIB) as memory:
        region = client.region(memory)
        remote = client.import_token(region.export())
        client.read(region, remote, [(0, MIB // 2, 4096)]).result(ALIVE)
        region.remove()


def send_all(sock, packet, fds):
    """Sends until the agent does not read any more. Returns the number of messages."""
    sock.setblocking(False)
    n = 0
    for fd in fds:
        try:
            socket.send_fds(sock, [packet], [fd], socket.MSG_NOSIGNAL)
        except (BlockingIOError, BrokenPipeError, ConnectionResetError):
            break
        n += 1
    return n


def descriptors(agent):
    return sum(agent.resources().fds.values())


@as_root
@pytest.mark.parametrize("when", ["denied", "no HELLO", "session"])
def test_close_that_waits(new_agent, when):
    """Messages with descriptors whose close waits are still unread when the connection is closed."""
    agent = new_agent(settings={"data.mode": "0666", **({"data.allow_uids": "0"} if when == "denied" else {})})
    with Blockers(60) as blockers, uid(OTHER):
        raw = Raw(agent, hello=when == "session")
        if when == "session":
            # the session ends by the first message; the others are in the socket
            agent.signal(signal.SIGSTOP)
            raw.send(b"?" * 64)
        else:
            agent.signal(signal.SIGSTOP)
            raw.send(s.pack_hello(1, major_min=1, major_max=1) if when == "denied" else s.pack_env_get(1, profiles=""))
        for fd in blockers.filenos():
            raw.send(s.pack_env_get(9, profiles=""), [fd])
        blockers.hand_over()
        agent.signal(signal.SIGCONT)
        until(lambda: ("closing: " if when == "session" else "refused a client") in agent.text(), "the end of the connection")
        with uid(0):
            for _ in range(5):
                serves(agent)
        raw.close()


@as_root
def test_descriptors_are_bounded(new_agent):
    """At the limit the agent reads nothing more from the uid, serves others, and goes on when there is room."""
    agent = new_agent(settings={"data.mode": "0666", "limits.fds_per_owner": 40})
    serves(agent)  # some descriptors are opened for the first client
    before = descriptors(agent)
    with Blockers(1) as blocker, uid(OTHER):
        raw, later = Raw(agent), Raw(agent)
        first, second = os.pipe()
        agent.signal(signal.SIGSTOP)
        raw.send(s.pack_env_get(7, profiles=""), blocker.filenos())
        blocker.hand_over()
        agent.signal(signal.SIGCONT)
        assert raw.error(7) == "fd_count"
        sent = 0
        for n in range(100):
            sent += send_all(raw.sock, s.pack_env_get(8 + n, profiles=""), [first] * 10)
        # a connection that sends HELLO, and one whose HELLO has a descriptor
        waiting = Raw(agent, hello=False)
        waiting.send(s.pack_hello(1, major_min=1, major_max=1))
        with uid(0):
            serves(agent)
            assert descriptors(agent) < before + 40 + 24  # and those of the connections themselves
        blocker.release()
        raw.sock.settimeout(LIMIT)
        for _ in range(sent):
            assert raw.error() in ("fd_count", "duplicate_id", "busy")
        assert waiting.receive()[0].type == s.MSG_HELLO_REPLY
        assert later.ask(s.pack_env_get, profiles="") is not None
        for sock in (raw, later, waiting):
            sock.close()
        os.close(first)
        os.close(second)
        with uid(0):
            until(lambda: descriptors(agent) <= before, "the end of the connections")


@pytest.mark.parametrize("when", ["first", "session"])
@pytest.mark.parametrize("message", ["empty", "none taken", "transfer", "too many"])
def test_descriptors_of_refused_messages(agent, when, message):
    packet = {"empty": b"", "none taken": s.pack_env_get(5, profiles=""), "too many": s.pack_region_add(5, access=3, extents=[(1, 0, 0, 0, 1)]),
              "transfer": s.pack_transfer_cancel(5, request=9)}[message]
    ends = os.pipe()
    fds = list(ends) * (126 if message == "too many" else 20)
    with nothing_leaked(agent):
        for _ in range(20):
            with Raw(agent, hello=when == "session") as raw:
                raw.send(packet, fds)
                if message == "empty" or when == "first":
                    raw.ended()
                else:
                    assert raw.error(5) in ("fd_count", "fd_limit")
    for fd in ends:
        os.close(fd)


def test_descriptors_that_do_not_fit(new_agent):
    """The agent has no room for all descriptors of a message: the kernel drops some (MSG_CTRUNC)."""
    agent = new_agent(wrap=["prlimit", "--nofile=128:128"], settings={"limits.fds_per_owner": 1000})
    ends = os.pipe()
    with Raw(agent) as keeper, nothing_leaked(agent):
        with Raw(agent) as raw:
            for n in range(5, 15):
                raw.send(s.pack_region_add(n, access=3, extents=[(1, 0, 0, 0, 1)]), list(ends) * 100)
                assert raw.error(n) == "fd_limit"
        with Raw(agent, hello=False) as raw:
            raw.send(s.pack_hello(1, major_min=1, major_max=1, flags=1), list(ends) * 100)
            assert raw.error(1) in ("fd_limit", "fd_count")
        keeper.ask(s.pack_env_get, profiles="")
    for fd in ends:
        os.close(fd)


def test_a_uid_does_not_take_all_places_before_hello(new_agent):
    agent = new_agent(settings={"limits.strangers": 4, "data.mode": "0666"})
    if os.geteuid():
        pytest.skip("only root can connect with another uid")
    with contextlib.ExitStack() as stack:
        mine = stack.enter_context(Raw(agent, hello=False))
        with uid(OTHER):
            for _ in range(20):
                stack.enter_context(Raw(agent, hello=False))
        serves(agent)
        assert mine.ask(s.pack_hello, major_min=1, major_max=1)


@as_root
@pytest.mark.parametrize("end", ["answer", "removed with its session"])
def test_region_whose_file_is_held(new_agent, end):
    """REGION_ADD looks for holes in a file whose inode the client locks."""
    agent = new_agent(settings={"data.mode": "0666"})
    serves(agent)
    with HeldInode() as held, nothing_leaked(agent):
        with uid(OTHER):
            raw = Raw(agent)
        request = raw.request(s.pack_region_add, [held.fd], access=3, extents=[(1, 0, 0, 0, MIB)])
        for _ in range(5):
            serves(agent)
        with uid(OTHER), Raw(agent) as other:  # another session of the uid that holds the lock
            other.ask(s.pack_env_get, profiles="")
        if end == "answer":
            held.release()
            header, message, _ = raw.receive()
            assert header.request_id == request and message.length == MIB
            raw.close()
        else:
            raw.close()
            until(lambda: "closing: the client closed" in agent.text(), "the end of the session")
            serves(agent)
            held.release()


@as_root
def test_overflow_uid(new_agent):
    """Users of other user namespaces have one uid here: they are let in only if the configuration names it."""
    agent = new_agent(settings={"data.mode": "0666"})
    with uid(OVERFLOW), Raw(agent, hello=False) as raw:
        assert raw.error(raw.request(s.pack_hello, major_min=1, major_max=1)) == "denied"
    assert f"uid {OVERFLOW}" in agent.text() and "data.allow_uids" in agent.text()
    agent = new_agent(settings={"data.mode": "0666", "data.allow_uids": f"0,{OVERFLOW}"})
    with uid(OVERFLOW), Raw(agent) as raw:
        raw.ask(s.pack_env_get, profiles="")
    serves(agent)


@as_root
def test_log_lines_are_bounded(new_agent):
    """A uid that connects, is refused or closes again and again fills no log, and hides no line about others."""
    agent = new_agent(settings={"data.mode": "0666", "limits.log_lines_per_owner": 5})
    began = time.monotonic()
    for _ in range(200):
        with uid(OTHER), Raw(agent) as raw:
            raw.send(b"?" * 64)
            raw.ended()
    with agent.client(name="honest"):
        until(lambda: "opened by honest" in agent.text(), "the line about another uid")
    lines = agent.text().count(" session: ")
    seconds = time.monotonic() - began + 1
    assert lines < 13 * (seconds + 1), f"{lines} lines in {seconds:.1f} s"


def sparse_memfd(size):
    """A sealed memfd of that size, of which the first page alone is populated."""
    fd = os.memfd_create("sparse", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    os.pwrite(fd, bytes(4096), 0)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    return fd


def test_address_space(new_agent):
    """Sparse memfds of many TiB use up addresses and nothing else. The owner's share ends that before the agent has none."""
    agent = new_agent()
    serves(agent)
    wait_for_release(agent, "mapped_bytes")  # four files take the whole share
    with nothing_leaked(agent):
        with Raw(agent) as raw:
            answers = []
            for _ in range(20):
                fd = sparse_memfd(8 << 40)
                request = raw.request(s.pack_region_add, [fd], access=s.ACCESS_READ, extents=[(s.KIND_MEMFD, 0, 0, 0, 4096)])
                os.close(fd)
                header, message, _ = raw.receive()
                assert header.request_id == request
                answers.append(message)
            refused = [m for m in answers if isinstance(m, s.Error)]
            assert refused and all(m.code == s.E_QUOTA and "limits.mapped_bytes" in m.message for m in refused), refused
            assert len(answers) - len(refused) == 4  # 32 of 64 TiB
        serves(agent)


def test_mappings(new_agent):
    """One page of each of many files."""
    agent = new_agent(settings={"limits.mappings": 64, "limits.regions_per_session": 100000, "limits.extents_per_session": 100000})
    serves(agent)
    wait_for_release(agent, "mappings")
    with nothing_leaked(agent):
        with Raw(agent) as raw:
            fds = [sparse_memfd(4096) for _ in range(50)]
            extents = [(s.KIND_MEMFD, i, 0, 0, 4096) for i in range(50)]
            assert raw.error(raw.request(s.pack_region_add, fds, access=s.ACCESS_READ, extents=extents)) == "quota"
            wait_for_release(agent, "mappings")
            assert raw.ask(s.pack_region_add, fds[:32], access=s.ACCESS_READ, extents=extents[:32]).length == 32 * 4096
            assert raw.error(raw.request(s.pack_region_add, fds[32:33], access=s.ACCESS_READ, extents=extents[:1])) == "quota"
            for fd in fds:
                os.close(fd)
        wait_for_release(agent, "mappings")
        serves(agent)


def test_too_many_descriptors_in_flight(new_agent):
    """The kernel counts descriptors in flight for each user: while another client of the agent's user has too many, replies with descriptors wait."""
    agent = new_agent(wrap=["prlimit", "--nofile=256:256"], settings={"agent.workers": 1})
    ends = list(os.pipe())
    with Raw(agent) as raw, Raw(agent) as other, contextlib.ExitStack() as stack:
        here, there = (stack.enter_context(sock) for sock in socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        for _ in range(10):
            socket.send_fds(here, [b"."], ends * 50)
        requests = [raw.request(s.pack_ring_open, sq_entries=16, arena_bytes=4096), raw.request(s.pack_env_get, profiles="")]
        # the worker has tried to answer when it answers a later request of another session
        other.ask(s.pack_env_get, profiles="")
        assert not select.select([raw.sock], [], [], 0)[0], "an answer before there is room"
        there.close()
        for request in requests:
            header, _, fds = raw.receive()
            assert header.request_id == request
            for fd in fds:
                os.close(fd)
        raw.ask(s.pack_env_get, profiles="")
    for fd in ends:
        os.close(fd)


@as_root
@pytest.mark.parametrize("state", ["authenticating", "ready"])
def test_descriptors_to_the_control_socket(new_agent, state):
    """Descriptors whose close waits, sent by a client of the control socket, which passes none."""
    agent = new_agent(settings={"control.mode": "0666"})
    serves(agent)
    threads = agent.resources().threads
    assert agent.ctl("sessions", "--json") == {"sessions": []}
    until(lambda: agent.resources().threads == threads, "the end of the threads of drayctl's owner")
    with nothing_leaked(agent), Blockers(20) as blockers, socket.socket(socket.AF_UNIX) as sock:
        with uid(OTHER):
            sock.connect(str(agent.control))
        sock.settimeout(LIMIT)
        if state == "ready":
            sock.sendall(b"\0AUTH EXTERNAL " + str(OTHER).encode().hex().encode() + b"\r\nBEGIN\r\n")
            assert sock.recv(4096).startswith(b"OK ")
        agent.signal(signal.SIGSTOP)
        for i, fd in enumerate(blockers.filenos()):
            socket.send_fds(sock, [b"l\1\0\1" if i else b"\0"], [fd])
        blockers.hand_over()
        agent.signal(signal.SIGCONT)
        for _ in range(5):
            serves(agent)
            assert agent.ctl("sessions", "--json") == {"sessions": []}
