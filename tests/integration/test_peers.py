# SPDX-License-Identifier: Apache-2.0
"""The peer listener and unauthenticated connections; two agents that connect to each other."""

import contextlib
import errno
import os
import random
import secrets
import socket
import ssl

import dray
import pytest
from conftest import PAIR_SETTINGS
from wire import codec as s
from harness import (LIMIT, MIB, STREAMS, Actor, Side, concerns, expect, noise, nothing_leaked, parse_segment,
                     until)


@pytest.fixture
def listening(standing_pair):
    """An agent with a listener, the host from which unauthenticated connections come, and the segment."""
    a, b = standing_pair.up()
    with b.client() as client:
        segment = client.segment
    with nothing_leaked(b, streams=STREAMS):
        yield b, a.host, segment
        assert b.running, f"the agent died:\n{b.tail()}"
        b.check_log()
    with Side(a, MIB) as here, Side(b, MIB, noise(MIB)) as there:
        here.client.read(here.region, here.reach(there), [(0, 0, MIB)]).result(LIMIT)


def closed(sock):
    """Waits until the agent closes the connection."""
    try:
        while sock.recv(65536):
            pass
    except (ConnectionResetError, BrokenPipeError):
        pass
    sock.close()
    return True


def client_hello():
    """The first flight of a real TLS 1.3 client (without a pre-shared key)."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing)
    with contextlib.suppress(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()


def stream_hello(**fields):
    """The greeting of a data stream, with an invalid mac."""
    fields = {"magic": s.PEER_MAGIC_STREAM, "major": 1, "class_": 0, "stream_id": 1, "agent_id": bytes(16), "incarnation": 1,
              "to_agent_id": bytes(16), "to_incarnation": 1, "mac": bytes(32), **fields}
    return s.PEER_STREAM_HELLO.pack(*s.PeerStreamHello(**fields))


@contextlib.contextmanager
def hung_up_on():
    """Allows the agent to close before all is sent; shutdown() of a socket that was reset fails with ENOTCONN."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ECONNRESET, errno.EPIPE, errno.ENOTCONN):
            raise


GARBAGE = {
    "noise": lambda: random.Random(1).randbytes(4096),
    "zeros": lambda: bytes(4096),
    "http": lambda: b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "ssh": lambda: b"SSH-2.0-OpenSSH_9.2\r\n",
    "tls record of noise": lambda: b"\x16\x03\x01\x02\x00" + random.Random(2).randbytes(512),
    "tls record too long": lambda: b"\x16\x03\x01\xff\xff" + bytes(70000),
    "tls alert": lambda: b"\x15\x03\x03\x00\x02\x02\x28",
    "tls without a key": client_hello,
    "hello in the clear": lambda: s.peer_pack_hello(1, major_min=1, major_max=1, agent_id=os.urandom(16)),
    "stream without a peer": lambda: stream_hello(),
    "stream of noise": lambda: s.PEER_MAGIC_STREAM.to_bytes(4, "little") + random.Random(3).randbytes(4096),
    "stream of another version": lambda: stream_hello(major=9),
}


@pytest.mark.parametrize("name", GARBAGE)
@pytest.mark.parametrize("whole", [True, False], ids=["whole", "byte by byte"])
def test_garbage(listening, name, whole):
    agent, host, segment = listening
    sock = host.connect(segment)
    data = GARBAGE[name]()
    with hung_up_on():
        if whole:
            sock.sendall(data)
        else:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for byte in data[:300]:
                sock.send(bytes([byte]))
            sock.shutdown(socket.SHUT_WR)
    assert closed(sock)


def test_half_a_handshake(listening):
    """The agent closes connections that begin a handshake and then wait."""
    agent, host, segment = listening
    socks = []
    for data in (b"", b"\x16", b"D", s.PEER_MAGIC_STREAM.to_bytes(4, "little"), stream_hello()[:-1], client_hello()[:100]):
        socks.append(host.connect(segment))
        socks[-1].sendall(data)
    for sock in socks:
        assert closed(sock)


def test_stream_for_a_known_peer(listening, standing_pair):
    """A data stream in the name of a connected peer, without its key, is refused."""
    agent, host, segment = listening
    a, b = standing_pair.up()
    with Side(a, MIB, wire=True) as here, Side(b, MIB, wire=True) as there:
        here.reach(there)
        sock = host.connect(segment)
        sock.sendall(stream_hello(agent_id=here.client.agent_id, incarnation=here.client.hello.incarnation,
                                  to_agent_id=there.client.agent_id, to_incarnation=there.client.hello.incarnation,
                                  stream_id=1 << 40, mac=os.urandom(32)))
        assert closed(sock)


@pytest.mark.parametrize("theirs", ["another", "none"])
def test_wrong_key(lab, new_agent, theirs):
    """With different keys, imports in both directions fail. The clients are not told why; both agents warn once and list the other as denied."""
    one = new_agent("one", key=lab.key, settings=PAIR_SETTINGS)
    key = lab.write("key", secrets.token_hex(32), 0o600) if theirs == "another" else None
    two = new_agent("two", key=key, settings=PAIR_SETTINGS)
    with Side(one, MIB) as here, Side(two, MIB) as there:
        for near, far in ((here, there), (there, here), (here, there)):
            expect("peer_unreachable", near.client.import_token, far.export(), timeout=3)
        assert one.running and two.running
    for agent, other in ((one, two), (two, one)):
        rows = sorted(agent.ctl("peers", "--json")["peers"], key=lambda p: not p["initiator"])
        assert [(p["state"], p["initiator"]) for p in rows] == [("denied", True), ("denied", False)], rows
        assert [p["segment"] for p in rows] == [other.listen[0], other.listen[0].split(":")[0]]
        assert all("peer.key_file" in p["reason"] for p in rows)
        warnings = [line for line in agent.text().splitlines() if "peer.key_file" in line and " warning " in line]
        assert len(warnings) == 2 and other.listen[0] in warnings[0] + warnings[1], agent.text()
    two.stop()
    two.key = lab.key
    two.start()
    with Side(one, MIB) as here, Side(two, MIB) as there:
        here.reach(there)
        there.reach(here)
        for agent in (one, two):
            assert [p["state"] for p in agent.ctl("peers", "--json")["peers"]] == ["ready"]


def test_denied_addresses_are_bounded(lab, new_agent):
    """A host with many addresses cannot fill the agent's memory: the list keeps the last 64 addresses."""
    agent = new_agent("one", key=lab.key)
    hosts = [f"127.0.1.{i}" for i in range(1, 80)]
    for address in hosts:
        sock = agent.host.socket()
        sock.bind((address, 0))
        sock.connect(parse_segment(agent.listen[0]))
        sock.sendall(client_hello())
        assert closed(sock)
    assert [p["segment"] for p in agent.ctl("peers", "--json")["peers"]] == hosts[-64:]


def test_too_many_strangers(listening):
    """Silent unauthenticated connections are limited, and closed in time; after that a real peer can connect."""
    agent, host, segment = listening
    base = sum(agent.resources().fds.values())
    socks = []
    for _ in range(300):
        with contextlib.suppress(OSError):
            socks.append(host.connect(segment))
    until(lambda: sum(agent.resources().fds.values()) <= base + 64 + 8, "the end of the unauthenticated connections")
    for sock in socks:
        assert closed(sock)


FLOOD = """
import select, socket, errno
host, port = args["host"], args["port"]
family = socket.AF_INET6 if ":" in host else socket.AF_INET
left, live, done = args["count"], {}, 0
poll = select.epoll()
payload = bytes.fromhex(args["payload"])
while left or live:
    while left and len(live) < 500:
        s = socket.socket(family); s.setblocking(False)
        e = s.connect_ex((host, port))
        if e not in (0, errno.EINPROGRESS):
            s.close()
            if e not in (errno.EADDRNOTAVAIL, errno.EAGAIN): left -= 1
            break
        live[s.fileno()] = s; left -= 1
        poll.register(s, select.EPOLLIN | select.EPOLLOUT | select.EPOLLET)
    ready = poll.poll(0.05)
    if not ready:  # the agent accepts no more connections: close the older half
        for fd in list(live)[:len(live) // 2 + 1]: live.pop(fd).close()
    for fd, events in ready:
        s = live.get(fd)
        if s is None: continue
        try:
            if events & select.EPOLLOUT and payload: s.send(payload)
            gone = events & (select.EPOLLHUP | select.EPOLLERR) or (events & select.EPOLLIN and not s.recv(65536))
        except BlockingIOError: gone = False
        except OSError: gone = True
        if gone: s.close(); del live[fd]; done += 1
    if not left: break
tell(done)
"""


@pytest.mark.parametrize("payload", [b"", b"\x16\x03\x01\x02\x00\x01", b"GET / HTTP/1.0\r\n\r\n"], ids=["silent", "tls", "http"])
def test_ten_thousand_connections(listening, payload):
    """The agent's descriptors stay bounded, and a real peer and its clients are served."""
    agent, host, segment = listening
    address, port = parse_segment(segment)
    base = sum(agent.resources().fds.values())
    with Actor(FLOOD, host.prefix, host=address, port=port, count=10000, payload=payload.hex()) as actor:
        worst = 0

        def over():
            nonlocal worst
            worst = max(worst, sum(agent.resources().fds.values()))
            import select
            return select.select([actor.process.stdout], [], [], 0)[0]

        with Side(agent, MIB) as here, Side(agent, MIB, noise(MIB)) as there:
            here.client.read(here.region, here.reach(there), [(0, 0, MIB)]).result(LIMIT)
            until(over, "the end of the flood", 60)
        actor.hear()
        assert worst <= base + 64 + 30, f"{worst - base} descriptors of unauthenticated connections"


# --- two agents --------------------------------------------------------------------------------------

@pytest.mark.parametrize("family", [4, 6])
def test_simultaneous_connects(new_pair, family):
    """Both agents connect at the same time, with requests waiting on both sides: one connection stays, and serves all requests."""
    a, b = new_pair(family)
    with Side(a, MIB, noise(MIB, 1), wire=True) as here, Side(b, MIB, noise(MIB, 2), wire=True) as there:
        tokens = there.export(), here.export()
        pending = [side.client.import_token(token, timeout=LIMIT, wait=False)
                   for _ in range(10) for side, token in zip((here, there), tokens)]
        remotes = [p.result(LIMIT) for p in pending]
        transfers = [r.client.read((here if r.client is here.client else there).region, r, [(i * 512, i * 512, 256)])
                     for i, r in enumerate(remotes)]
        for transfer in transfers:
            transfer.result(LIMIT)
        if family == 6:
            assert here.client.hello.segment.startswith("[fd77") or not a.host.real
        for i, r in enumerate(remotes):
            assert here.view[i * 512:i * 512 + 256] == there.view[i * 512:i * 512 + 256]


def test_repeated_simultaneous_connects(new_pair):
    """Five times, one agent restarts and both connect at the same time."""
    a, b = new_pair()
    agents = [a, b]
    sides = [Side(agent, MIB, noise(MIB), wire=True) for agent in agents]
    for n in range(5):
        here, there = sides
        pending = [here.client.import_token(there.export(), timeout=LIMIT, wait=False),
                   there.client.import_token(here.export(), timeout=LIMIT, wait=False)]
        one, two = [p.result(LIMIT) for p in pending]
        here.client.read(here.region, one, [(0, 0, 1000)]).result(LIMIT)
        there.client.read(there.region, two, [(0, 0, 1000)]).result(LIMIT)
        again = n % 2 == 0
        agents[again].restart()
        sides[again].close()
        sides[again] = Side(agents[again], MIB, noise(MIB), wire=True)
    for side in sides:
        side.close()


def test_latency_class_is_served_during_bulk(pair):
    """A small latency transfer ends while bulk transfers fill every bulk stream."""
    a, b = pair
    size = 64 * MIB
    with Side(a, size, wire=True) as here, Side(b, size, noise(MIB) * 64) as there:
        remote = here.reach(there)
        bulk = [here.client.read(here.region, remote, [(4096, 4096, size - 4096)]) for _ in range(20)]
        until(lambda: here.view[4096 + 7] or here.view[size // 2] or here.client.process(), "the first bulk byte")
        for i in range(20):
            here.client.read(here.region, remote, [(i, i, 64)], klass="latency").result(LIMIT)
        assert not bulk[-1].done(), "bulk was faster than twenty latency round trips"
        for transfer in bulk:
            transfer.cancel(wait=False).exception(LIMIT)


def test_both_families_at_once(lab, new_agent):
    """An agent listens on both address families; the token names the advertised address."""
    host = lab.hosts[1]
    b = new_agent("b", 1, key=lab.key, listen=[host.v4, host.v6])
    a = new_agent("a", 0, key=lab.key, listen=[lab.hosts[0].v6])
    with Side(a, MIB) as here, Side(b, MIB, noise(MIB)) as there:
        here.client.read(here.region, here.reach(there), [(0, 0, MIB)]).result(LIMIT)
        there.client.write(there.region, there.reach(here), [(0, 0, MIB)]).result(LIMIT)
        assert here.view == there.view


def test_advertise(lab, new_agent):
    agent = new_agent(settings={"peer.advertise": "kv-0.example.internal:7411"})
    with agent.client() as client:
        assert client.segment == "kv-0.example.internal:7411"
    none = new_agent("none", listen=["none"])
    with none.client() as client, Side(none, MIB) as here:
        assert client.segment == ""
        here.client.write(here.region, here.reach(here), [(0, 4096, 4096)]).result(LIMIT)  # local work needs no segment


def test_beyond_loopback_without_a_key(lab, new_agent):
    """An agent without a key that listens beyond loopback does not start, and names both solutions; with allow_insecure it starts."""
    agent = new_agent("open", start=False, listen=["0.0.0.0"])
    agent.start(ready=False)
    assert agent.wait() != 0
    assert "key_file" in agent.text() and "allow_insecure" in agent.text()
    agent.process = None
    a = new_agent("a", 0, listen=[lab.hosts[0].v4], args=["--allow-insecure"])
    b = new_agent("b", 1, listen=[lab.hosts[1].v4], args=["--allow-insecure"])
    with Side(a, MIB) as here, Side(b, MIB, noise(MIB)) as there:
        here.client.read(here.region, here.reach(there), [(0, 0, MIB)]).result(LIMIT)
        assert here.view == there.view


@pytest.mark.parametrize("text, mode, word", [
    ("short", 0o600, "16"), ("x" * 200, 0o600, "64"), ("ab" * 32, 0o644, "mode"), ("", 0o600, "16"), (None, 0, "no such file")])
def test_bad_key_files(lab, new_agent, text, mode, word):
    path = lab.write("key", text, mode) if text is not None else lab.tmp / "absent"
    agent = new_agent("keyless", start=False, key=path)
    agent.start(ready=False)
    assert agent.wait() != 0
    assert str(path) in agent.text() and word in agent.text().lower().replace("there is no such file", "no such file")
    agent.process = None


def test_orderly_end_of_a_peer(new_pair):
    """When a peer ends by SIGTERM, the other agent loses its remotes and continues."""
    a, b = new_pair()
    with Side(a, MIB) as here, Side(b, MIB, noise(MIB)) as there:
        remote = here.reach(there)
        here.client.read(here.region, remote, [(0, 0, 1)]).result(LIMIT)
        b.stop()
        assert concerns(here.client.next_event(dray.RemoteLost, LIMIT), remote)
        expect({"peer_lost", "draining"}, lambda: here.client.read(here.region, remote, [(0, 0, 1)]).result(LIMIT))


def test_no_warning_without_rdma_devices(new_pair):
    """Two agents without RDMA devices use TCP as a matter of course."""
    a, b = new_pair()
    with Side(a, MIB) as here, Side(b, MIB, noise(MIB)) as there:
        remote = here.reach(there)
        for _ in range(20):
            here.client.read(here.region, remote, [(0, 0, MIB)]).result(LIMIT)
    assert "next transport" not in a.text() + b.text()
