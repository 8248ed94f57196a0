# SPDX-License-Identifier: Apache-2.0
"""Start, drain, end, and exhausted resources of the machine."""

import contextlib
import os
import pathlib
import select
import signal
import socket
import sys

import dray
import pytest
import wire
from wire import codec as s
from harness import DRAYD, LIMIT, MIB, Side, concerns, expect, noise, nothing_leaked, sanitized, until


def fails(agent, *words):
    """Checks that the agent does not start and logs the words; returns the log."""
    agent.start(ready=False)
    assert agent.wait() not in (0, -signal.SIGABRT, -signal.SIGSEGV)
    agent.check_log()
    text = agent.text()
    for word in words:
        assert word in text, f"{word!r} is not in:\n{text}"
    agent.kill()
    agent.process = None
    return text


# --- start ------------------------------------------------------------------------------------------

def test_start_and_stop(new_agent):
    agent = new_agent(listen=["127.0.0.1", "::1"])
    assert any("READY=1" in text for text in agent.notified)
    assert agent.socket.is_socket() and agent.control.is_socket()
    agent.stop()
    assert any("STOPPING=1" in text for text in agent.notified)
    assert not agent.socket.exists() and not agent.control.exists(), "the sockets were not removed"


def test_identity_after_restarts(new_agent):
    """After a restart the id is the same and the incarnation is larger."""
    agent = new_agent()
    seen = []
    for _ in range(3):
        with agent.wire() as client:
            seen.append((client.agent_id, client.hello.incarnation))
        agent.restart()
    assert len({agent_id for agent_id, _ in seen}) == 1
    assert [i for _, i in seen] == sorted({i for _, i in seen})


def test_state_directory_locked(new_agent):
    agent = new_agent()
    second = new_agent("second", start=False)
    second.state_dir = agent.state_dir
    text = fails(second, str(agent.state_dir))
    assert str(agent.pid) in text, "the message does not name the process that holds it"
    with agent.client():
        pass


def test_socket_in_use(new_agent):
    """An agent replaces the socket of a dead agent, but not that of a live one."""
    agent = new_agent()
    second = new_agent("second", start=False)
    second.socket = agent.socket
    fails(second, str(agent.socket))
    with agent.client():
        pass
    agent.kill()
    assert agent.socket.exists()
    agent.start()


def test_socket_path_is_another_file(new_agent):
    """The agent does not remove another kind of file at the path of its socket."""
    agent = new_agent(start=False)
    agent.socket.write_text("precious")
    fails(agent, str(agent.socket))
    assert agent.socket.read_text() == "precious"


ACTIVATE = """
import os, sys
names, fds, argv = sys.argv[1], sys.argv[2].split(","), sys.argv[3:]
fds = [os.dup(int(fd)) for fd in fds]
fds = [os.dup2(fd, 50 + i) for i, fd in enumerate(fds)]
for i, fd in enumerate(fds): os.dup2(fd, 3 + i, inheritable=True)
os.closerange(3 + len(fds), 60)
os.environ.update(LISTEN_FDS=str(len(fds)), LISTEN_FDNAMES=names, LISTEN_PID=str(os.getpid()))
os.execvp(argv[0], argv)
"""


def test_socket_activation(lab, new_agent):
    """systemd passes the sockets by name; messages that were sent before the agent's start are answered."""
    directory = lab.directory("activated")
    data = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    data.bind(str(directory / "dray.sock"))
    control = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    control.bind(str(directory / "control.sock"))
    peer = lab.hosts[0].socket()
    peer.bind(("127.0.0.1", 0))
    sockets = [data, control, peer]
    for sock in sockets:
        sock.listen()
    early = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    early.connect(str(directory / "dray.sock"))
    early.send(s.pack_hello(1, major_min=1, major_max=1))
    fds = [sock.fileno() for sock in sockets]
    agent = new_agent(directory=directory, listen=[], pass_fds=fds,
                      wrap=[sys.executable, "-c", ACTIVATE, "data:control:peer", ",".join(map(str, fds))])
    early.settimeout(LIMIT)
    header, message = s.unpack(early.recv(65536))
    assert header.type == s.MSG_HELLO_REPLY
    assert message.segment == "127.0.0.1:%d" % peer.getsockname()[1]
    early.close()
    other = new_agent("other")
    with Side(other, MIB) as here, Side(agent, MIB, noise(MIB)) as there:
        here.client.read(here.region, here.reach(there), [(0, 0, MIB)]).result(LIMIT)
        assert here.view == there.view
    agent.stop()
    assert agent.socket.exists(), "the socket belongs to systemd"
    for sock in sockets:
        sock.close()


def test_activation_with_an_unknown_name(lab, new_agent):
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.bind(str(lab.directory("strange") / "x"))
    sock.listen()
    agent = new_agent(start=False, pass_fds=[sock.fileno()],
                      wrap=[sys.executable, "-c", ACTIVATE, "teapot", str(sock.fileno())])
    agent.start(ready=False)
    if agent.wait_notify("READY=1"):
        assert "teapot" in agent.text(), "no log line about an unknown socket"
    else:
        assert agent.wait() != 0 and "teapot" in agent.text()
        agent.process = None
    sock.close()


def test_watchdog(new_agent):
    agent = new_agent(env={"WATCHDOG_USEC": "400000"})
    for _ in range(3):
        assert agent.wait_notify("WATCHDOG=1")
    with agent.client():
        pass


# --- drain -------------------------------------------------------------------------------------------

def waiting_transfer(here, remote, **how):
    """Starts a transfer that ends only when its wait word is set, and waits until the agent has accepted it."""
    transfer = here.client.read(here.region, remote, [(4096, 0, 4096)], wait_word=(here.region, 0, 1), deadline=LIMIT, **how)
    # sent in the same way after it: when this transfer has ended, the agent has accepted the other one
    here.client.read(here.region, remote, [(0, 0, 1)], **how).result(LIMIT)
    return transfer


@pytest.mark.parametrize("via", ["inline", "ring"])
def test_drain_finishes_work(new_agent, via):
    """In a drain, transfers in flight finish, new work is refused, clients are notified, and the exit status is 0."""
    agent = new_agent(settings={"agent.drain_timeout": "20s"})
    here, there = Side(agent, MIB, wire=True), Side(agent, MIB, noise(MIB))
    remote, words = here.reach(there), here.memory.words()
    token = there.export()
    transfer = waiting_transfer(here, remote, via=via)
    agent.signal(signal.SIGTERM)
    event = here.client.next_event(s.Draining, LIMIT)
    assert 0 < event.deadline_ms <= 20000
    for refused in (here.client.read(here.region, remote, [(0, 0, 1)]).result, lambda: here.client.import_token(token),
                    here.export, lambda: here.client.region(here.memory), lambda: here.client.pool(4096)):
        expect("draining", refused)
    if via == "ring":
        expect("draining", here.client.read(here.region, remote, [(0, 0, 1)], via="ring").result, LIMIT)
    with contextlib.suppress(OSError):
        expect("draining", agent.wire, timeout=5)
    assert agent.running and not transfer.done()
    words[0] = 1
    transfer.result(LIMIT)
    assert here.view[4096:8192] == there.view[:4096]
    assert agent.wait() == 0
    words.release()
    for side in (here, there):
        side.close()


def test_drain_deadline(new_agent):
    """At the drain's limit the remaining transfers end with deadline, before the agent exits."""
    agent = new_agent(settings={"agent.drain_timeout": "300ms"})
    here, there = Side(agent, MIB, wire=True), Side(agent, MIB, noise(MIB))
    transfers = [waiting_transfer(here, here.reach(there), via=via) for via in ("inline", "ring")]
    agent.signal(signal.SIGTERM)
    for transfer in transfers:
        expect("deadline", transfer.result, LIMIT)
    assert agent.wait() == 0
    for side in (here, there):
        side.close()


def test_second_sigterm(new_agent):
    agent = new_agent(settings={"agent.drain_timeout": "1h"})
    here, there = Side(agent, MIB), Side(agent, MIB, noise(MIB))
    transfer = waiting_transfer(here, here.reach(there))
    agent.signal(signal.SIGTERM)
    assert here.client.next_event(dray.Draining, LIMIT)
    assert agent.running
    agent.signal(signal.SIGTERM)
    assert agent.wait() in (0, 1)  # 1: work was interrupted
    agent.check_log()
    agent.process = None
    assert transfer.exception(LIMIT).name in ("session_closed", "agent_restarted", "deadline", "draining", "cancelled")
    for side in (here, there):
        side.close()


def test_drain_with_peers(new_pair):
    """Transfers between two agents finish while one of them drains."""
    a, b = new_pair()
    size = 32 * MIB
    here, there = Side(a, size), Side(b, size, noise(MIB) * 32)
    remote = here.reach(there)
    transfers = [here.client.read(here.region, remote, [(0, 0, size)]) for _ in range(4)]
    transfers[0].result(LIMIT)
    b.signal(signal.SIGTERM)
    ended = {t.exception(LIMIT).name if t.exception(LIMIT) else "ok" for t in transfers}
    assert ended <= {"ok", "peer_lost", "draining"}, ended
    assert here.view == there.view
    assert b.wait() == 0
    for side in (here, there):
        side.close()


def test_resume_with_peers(new_pair):
    """A drain ends a peer's remotes; after a resume both sides can import again."""
    a, b = new_pair()
    with Side(a, MIB) as here, Side(b, MIB, noise(MIB)) as there:
        remote = here.reach(there)
        here.client.read(here.region, remote, [(0, 0, 1)]).result(LIMIT)
        assert b.ctl("drain", "--wait", "--stay") == "drained\n"
        assert concerns(here.client.next_event(dray.RemoteLost, LIMIT), remote)
        assert b.ctl("resume") == "running\n"
        here.client.read(here.region, here.reach(there), [(0, 0, MIB)]).result(LIMIT)
        assert here.view == there.view
        there.client.write(there.region, there.reach(here), [(0, 0, 1)]).result(LIMIT)


def test_drain_idle_with_clients(new_agent):
    """Clients that stay connected do not delay the end of an idle agent."""
    agent = new_agent(settings={"agent.drain_timeout": "1h"})
    clients = [agent.client() for _ in range(5)]
    agent.signal(signal.SIGTERM)
    assert agent.wait() == 0
    for client in clients:
        client.close()


# --- exhausted resources -------------------------------------------------------------------------------

def test_state_directory_full(lab, new_agent):
    """On a full file system (ENOSPC) the agent does not start, and names the reason."""
    mount = lab.directory("tiny")
    script = f"mount -t tmpfs -o size=8k,nr_inodes=20 none {mount} && head -c 8192 /dev/zero >{mount}/full; exec \"$@\""
    agent = new_agent(start=False, wrap=["unshare", *(["--user", "--map-root-user"] if os.geteuid() and not lab.namespaces else []),
                                         "--mount", "sh", "-c", script, "sh"])
    agent.state_dir = mount / "state"
    try:
        agent.host.run("unshare", "--mount", "mount", "-t", "tmpfs", "none", mount)
    except OSError as e:
        agent.process = None
        pytest.skip(f"file systems cannot be mounted here: {e}")
    fails(agent, str(mount), "no space")


def test_state_directory_not_ours(lab, new_agent):
    if os.geteuid() == 0 and not lab.userns:
        agent = new_agent(start=False)
        agent.state_dir = pathlib.Path("/proc/1/state")
        fails(agent, "/proc/1/state")
    else:
        agent = new_agent(start=False)
        agent.state_dir = pathlib.Path("/usr/state")
        fails(agent, "/usr/state")


def cpu_seconds(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_out_of_descriptors(new_agent):
    """At EMFILE sessions are refused or wait, and requests with descriptors get a typed error; later all works again."""
    limit = 64
    agent = new_agent(wrap=["prlimit", f"--nofile={limit}:{limit}"])
    with Side(agent, MIB, wire=True) as here, Side(agent, MIB, noise(MIB)) as there:
        remote = here.reach(there)
        before = agent.resources()
        socks, typed = [], set()
        for _ in range(limit + 10):
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            sock.connect(str(agent.socket))
            sock.send(s.pack_hello(1, major_min=1, major_max=1), socket.MSG_NOSIGNAL)
            socks.append(sock)
        until(lambda: sum(agent.resources().fds.values()) >= limit - 8, "the shortage")
        # requests that need no descriptor are served
        here.client.read(here.region, remote, [(0, 0, MIB)]).result(LIMIT)
        assert here.view == there.view
        for n in (1, 20, 200):
            fds = [os.dup(here.memory.fd) for _ in range(n)]
            pending = here.client.request(s.pack_region_add, wait=False, fds=fds, access=3,
                                          extents=[(1, i, 0, i * 4096, 4096) for i in range(n)])
            error = pending.exception(LIMIT)
            for fd in fds:
                os.close(fd)
            if error:
                typed.add(error.name)
        assert typed and typed <= {"fd_limit", "no_fds"}, typed
        began = cpu_seconds(agent.pid)
        select.select([], [], [], 0.5)
        assert cpu_seconds(agent.pid) - began < 0.25, "the agent spins while it has no descriptor"
        for sock in socks:
            sock.settimeout(0)
            with contextlib.suppress(OSError):
                while packet := sock.recv(65536):
                    header, message = s.unpack(packet)
                    if header.type == s.MSG_ERROR:
                        assert s.error_name(message.code) in ("no_fds", "fd_limit", "quota")
            sock.close()
        until(lambda: agent.resources().fds["socket"] <= before.fds["socket"], "the end of the shortage")
        with agent.client() as client, dray.Memory(4096) as memory:
            client.region(memory).remove()


class Cgroup:
    """A memory cgroup for the test, version 1 or 2."""

    def __init__(self, limit):
        self.path = None
        base = pathlib.Path("/sys/fs/cgroup")
        reasons = []
        for parent, file in ((base / "memory", "memory.limit_in_bytes"), (base, "memory.max"), (base / "unified", "memory.max")):
            path = parent / f"dray-{os.getpid()}"
            try:
                if not (parent / "cgroup.procs").exists():
                    raise OSError(f"no cgroups in {parent}")
                if file == "memory.max" and "memory" not in (parent / "cgroup.subtree_control").read_text():
                    (parent / "cgroup.subtree_control").write_text("+memory")
                path.mkdir()
                self.path, self.file = path, file
                (path / file).write_text(str(limit))
                for swap in ("memory.memsw.limit_in_bytes", "memory.swap.max"):
                    with contextlib.suppress(OSError):
                        (path / swap).write_text(str(limit) if swap.endswith("bytes") else "0")
                return
            except OSError as e:
                reasons.append(str(e))
                self.close()
        pytest.skip(f"memory cgroups cannot be made here: {'; '.join(reasons)}")

    @property
    def kills(self):
        text = (self.path / ("memory.oom_control" if self.file.endswith("bytes") else "memory.events")).read_text()
        return sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("oom_kill "))

    def close(self):
        if self.path:
            def gone():
                with contextlib.suppress(OSError):
                    self.path.rmdir()
                return not self.path.exists()
            until(gone, "the cgroup's end")
            self.path = None


def test_memory_cgroup(new_agent):
    """An agent limited to 128 MiB serves regions of 1 GiB, because their pages are charged to the clients."""
    group = Cgroup(128 * MIB)
    agent = new_agent(start=False, wrap=["sh", "-c", f"echo $$ >{group.path}/cgroup.procs && exec \"$@\"", "sh"])
    try:
        agent.start()
        size = 1024 * MIB
        with Side(agent, size) as here, Side(agent, size) as there:
            for at in range(0, size, 16 * MIB):
                there.view[at:at + 4096] = noise(4096, at)
            remote = here.reach(there)
            here.client.read(here.region, remote, [(at, at, MIB) for at in range(0, size, 16 * MIB)]).result(LIMIT)
            assert all(here.view[at:at + 4096] == there.view[at:at + 4096] for at in range(0, size, 16 * MIB))
            # pages in holes would be charged to the agent
            fd = os.memfd_create("holes", os.MFD_ALLOW_SEALING)
            os.ftruncate(fd, size)
            import fcntl
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
            with agent.wire() as client:
                expect("region_not_resident", client.region, [(fd, 0, size)])
            os.close(fd)
            here.client.pool(4 * MIB).memory.close()
        assert agent.running and group.kills == 0
        agent.stop()
    finally:
        agent.kill()
        group.close()


def test_pool_beyond_memory(new_agent):
    """A pool larger than the agent's memory limit gets a typed error, and the agent survives."""
    group = Cgroup(128 * MIB)
    agent = new_agent(start=False, wrap=["sh", "-c", f"echo $$ >{group.path}/cgroup.procs && exec \"$@\"", "sh"])
    try:
        agent.start()
        with agent.wire() as client:
            try:
                client.pool(256 * MIB)
            except wire.Error as e:
                assert e.name in ("no_memory", "quota")
        assert agent.running and group.kills == 0, agent.tail()
        agent.stop()
    finally:
        agent.kill()
        group.close()


# --- leaks ----------------------------------------------------------------------------------------------

def test_sessions_come_and_go(new_agent):
    """After hundreds of sessions with all kinds of objects, no descriptor, thread, mapping or memory is leaked."""
    agent = new_agent()

    def round_trip(n):
        for i in range(n):
            with Side(agent, 65536, wire=True, notifications=True, group=f"g{i % 3}") as here, \
                    Side(agent, 65536, noise(65536)) as there:
                remote = here.reach(there)
                back = there.reach(here)
                here.client.open_ring(16, 65536)
                here.client.read(here.region, remote, [(0, 0, 60000)], via="ring").result(LIMIT)
                there.client.write(there.region, back, [(0, 0, 60000)], notify=(1, b"x")).result(LIMIT)
                here.client.pool(65536)
                here.client.read(here.region, remote, [(0, 0, 1)], wait_word=(here.region, 0, 0xdead))

    round_trip(20)
    before = agent.rss_anon()
    with nothing_leaked(agent):
        round_trip(150)
    if not sanitized(DRAYD):
        assert agent.rss_anon() < before + MIB, f"{(agent.rss_anon() - before) >> 10} KiB more after 150 rounds"


def test_idle_uses_no_cpu(new_pair):
    """Idle agents with sessions, rings and a peer use no CPU."""
    a, b = new_pair(peer__heartbeat="1s", peer__heartbeat_limit="5s")
    with Side(a, MIB, wire=True) as here, Side(b, MIB, noise(MIB)) as there:
        here.client.read(here.region, here.reach(there), [(0, 0, MIB)], via="ring").result(LIMIT)
        began = [cpu_seconds(agent.pid) for agent in (a, b)]
        select.select([], [], [], 1.0)
        for agent, old in zip((a, b), began):
            assert cpu_seconds(agent.pid) - old <= 0.05, f"{agent.name} is busy while idle"
