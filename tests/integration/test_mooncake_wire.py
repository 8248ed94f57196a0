# SPDX-License-Identifier: Apache-2.0
"""The agent as the target of engines that have Mooncake linked in, over TCP."""

import ctypes
import hashlib
import os
import random
import re
import socket
import struct
import subprocess

import dray
import mooncake_rig as rig
import pytest
from dray import errors
from harness import LIMIT, MIB, noise, until
from mooncake_rig import Initiator, Owner, counter, data, ended, exactly, head, read, segment, write

LOOPBACK = "127.0.0.1"


@pytest.fixture
def target(new_agent):
    """An agent with the listeners; keyword arguments are settings."""
    def make(**more):
        return new_agent("target", settings=rig.settings(LOOPBACK, **more))

    return make


# --- without Mooncake -----------------------------------------------------------------------------

def test_off_by_default(agent):
    """Without mooncake.listen there is no listener, and an export with an address is refused."""
    assert "Mooncake" not in agent.ctl("status")
    with agent.client() as client, pytest.raises(errors.Unsupported, match="mooncake.listen"):
        client.region(dray.Memory(4096)).export(mooncake=1 << 40)


def test_descriptor(target):
    """Only exports with an address are buffers, at these addresses, and until their tokens are revoked."""
    agent = target()
    name, port = segment(agent)
    assert rig.ask(agent)["buffers"] == []
    with Owner(agent, MIB) as owner, agent.client() as other:
        other.region(dray.Memory(MIB)).export()
        second = owner.region.export(4096, 8192, mooncake=1 << 40, access="r")
        shown = rig.ask(agent)
        assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{6}", shown.pop("timestamp"))
        assert shown == {"name": name, "protocol": "tcp", "tcp_data_port": port, "tcp_proto_version": 2,
                         "buffers": [{"addr": owner.address, "length": MIB, "name": name}, {"addr": 1 << 40, "length": 8192, "name": name}]}
        assert counter(agent, "buffers") == 2
        owner.region.revoke(second)
        assert [b["addr"] for b in rig.ask(agent)["buffers"]] == [owner.address]
        text = agent.ctl("status")
        assert f"segment {name}: 1 buffers, 0 connections" in text
    until(lambda: not rig.ask(agent)["buffers"], "the end of the buffers")


def test_other_handshakes(target):
    """A probe succeeds; RDMA and notifications are declined in words that Mooncake understands, whatever they say."""
    agent = target()
    assert rig.ask(agent, rig.PROBE) == {"status": "success"}
    for body in b'{"name":"a","notify_msg":"b"}', b"[1]", b"", b"\xff" * 100:
        assert rig.ask(agent, rig.NOTIFY, body) == {"name": "", "notify_msg": ""}
        answer = rig.ask(agent, 0, body)
        assert answer["qp_num"] == [] and "TCP" in answer["reply_msg"]
        assert rig.ask(agent, rig.METADATA, body)["buffers"] == []


@pytest.mark.parametrize("version", [1, 2])
def test_read_and_write(target, version):
    """Any range of a buffer is read and written, many requests go over one connection, and neighbours are not touched."""
    agent = target()
    content = noise(MIB, 3)
    with Owner(agent, MIB, content) as owner, data(agent) as sock:
        for offset, n in (0, 1), (1, 4095), (4096, 65536), (MIB - 1, 1), (0, MIB):
            assert read(sock, owner.address + offset, n, version) == content[offset:offset + n]
        now = bytearray(content)
        for i, (offset, n) in enumerate([(0, 1), (MIB - 7, 7), (5000, 70001), (0, MIB)]):
            new = noise(n, i)
            write(sock, owner.address + offset, new, version)
            now[offset:offset + n] = new
            if version == 1:  # without an answer; what is read over the same connection comes after it
                read(sock, owner.address, 1, version)
            assert owner.view == now
        assert counter(agent, "received_bytes_total") == 1 + 7 + 70001 + MIB
        assert counter(agent, "connections") == 1
    rig.connections(agent, 0)


def test_pipelined(target):
    """Requests that follow each other without a wait, of both versions, are answered in their order."""
    agent = target()
    with Owner(agent, MIB, noise(MIB, 4)) as owner, data(agent) as sock:
        ops = [(rig.READ | (rig.V2 if i % 2 else 0), random.Random(i).randrange(MIB - 100), i + 1) for i in range(100)]
        sock.sendall(b"".join(head(op, owner.address + offset, n, b"\xaa" * 7) for op, offset, n in ops))
        for op, offset, n in ops:
            if op & rig.V2:
                assert rig.status(sock) == rig.OK
            assert exactly(sock, n) == owner.view[offset:offset + n]


def test_refused_requests(target):
    """A request that is not within one buffer, or not allowed, is refused with a status if the peer knows it, and closes its connection alone."""
    agent = target()
    with Owner(agent, 16 * 4096, bytes(16 * 4096)) as owner, data(agent) as good:
        base, size = owner.address, 16 * 4096
        owner.region.revoke(owner.token)
        owner.region.export(0, 4096, mooncake=base)
        owner.region.export(4096, 4096, mooncake=base + 4096)  # adjacent: not one buffer
        owner.region.export(8192, 4096, mooncake=base + 8192, access="r")
        owner.region.export(12288, 4096, mooncake=base + 12288, access="w")
        write(good, base, b"a")
        bad = [(rig.READ, base - 1, 2), (rig.READ, base, 4097), (rig.READ, base + 4095, 2), (rig.READ, base, 0), (rig.READ, base, (1 << 64) - 1),
               (rig.READ, (1 << 64) - 1, 4096), (rig.READ, 0, 1), (rig.WRITE, base + size, 1), (rig.WRITE, base + 8192, 1), (rig.READ, base + 12288, 1)]
        for op, address, n in bad:
            for version in 0, rig.V2:
                with data(agent) as sock:
                    sock.sendall(head(op | version, address, n))
                    if version:
                        assert rig.status(sock) == rig.REFUSED
                    assert ended(sock), (op, address, n)
        for op in 2, 3, 0x7F, 0xFF, 0x82:
            with data(agent) as sock:
                sock.sendall(head(op, base, 1))
                assert ended(sock), op
        assert counter(agent, "requests_refused_total") == 2 * len(bad) + 5
        assert owner.view == b"a" + bytes(size - 1)
        assert read(good, base, 1) == b"a"


def test_export_rules(target):
    """Exports that Mooncake's engines could not use, or that would be ambiguous, are refused with the reason."""
    agent = target(mooncake__buffers=6)
    with Owner(agent, MIB) as owner:
        base, export = owner.address, owner.region.export
        for how in {"ttl": 1.0}, {"single_use": True}, {"audience": bytes(range(16))}:
            with pytest.raises(errors.Invalid, match="no identity"):
                export(mooncake=1 << 40, **how)
        for address in 0, 1 << 63, (1 << 62) - 1:
            with pytest.raises(errors.Invalid):
                export(mooncake=address)
        for address in base, base - 1, base + MIB - 1, base - MIB + 1:
            with pytest.raises(errors.Invalid, match="overlap"):
                export(mooncake=address)
        export(mooncake=base + MIB)
        export(mooncake=base - MIB)
        with pytest.raises(errors.Quota, match="mooncake.buffers"):
            export(mooncake=1 << 40)
        assert counter(agent, "buffers") == 3


def test_buffers_of_owners(new_agent):
    """An owner has at most half of the buffers that others leave, so that one cannot take all."""
    agent = new_agent("target", settings=rig.settings(LOOPBACK, mooncake__buffers=8), start=False)
    agent.settings["data.tenants"] = f"other:{agent.directory}/other.sock"
    agent.start()
    with agent.client() as one, dray.Client(agent.directory / "other.sock", timeout=LIMIT) as two:
        first, second = one.region(dray.Memory(4096)), two.region(dray.Memory(4096))

        def export(region, n):
            return region.export(mooncake=n << 20)

        tokens = [export(first, n) for n in range(1, 5)]
        with pytest.raises(errors.Quota, match="mooncake.buffers"):
            export(first, 9)
        more = [export(second, n) for n in range(10, 12)]
        with pytest.raises(errors.Quota, match="this owner"):
            export(second, 9)
        first.revoke(tokens.pop())
        with pytest.raises(errors.Quota):  # 2 of the others': 3 of 6
            export(first, 9)
        first.revoke(tokens.pop())
        more.append(export(second, 12))
        with pytest.raises(errors.Quota):
            export(second, 13)
        first.remove()
        more.append(export(second, 13))
        assert len(rig.ask(agent)["buffers"]) == len(more) == 4


def test_pieces(new_agent):
    """Over RDMA each contiguous piece of a range is a buffer of its own, and counts as one; over TCP a range is one."""
    agent = new_agent("rdma", settings=rig.settings(LOOPBACK, mooncake__buffers=8, mooncake__protocol="rdma"))
    beside = new_agent("tcp", settings=rig.settings(LOOPBACK, mooncake__buffers=1))
    memory = dray.Memory(16 * 4096)
    pieces = [(memory, i * 8192, 4096) for i in range(5)]
    with agent.client() as client, beside.client() as other:
        region = client.region(pieces)
        token = region.export(0, 3 * 4096, mooncake=1 << 40)
        with pytest.raises(errors.Quota, match="3 of them by this owner, and this range is 5"):
            region.export(mooncake=2 << 40)
        region.export(100, 4096, mooncake=3 << 40)  # of two
        region.revoke(token)
        with pytest.raises(errors.Quota, match="this range is 5"):
            region.export(mooncake=2 << 40)
        region.export(4096, 2 * 4096, mooncake=2 << 40)
        other.region(pieces).export(mooncake=1 << 40)


def test_names(new_agent, lab):
    """The segment has the name of mooncake.advertise, or the listener's address; IPv6 in brackets. Data connections have their own address."""
    host = lab.hosts[0]
    wild = new_agent("wild", settings={"mooncake.listen": "0.0.0.0:0", "mooncake.allow": "127.0.0.1", "mooncake.advertise": "engine-a.example:15000"})
    handshake = int(re.findall(r"mooncake: handshake on 0\.0\.0\.0:(\d+)", wild.text())[-1])
    with host.connect(f"{LOOPBACK}:{handshake}") as sock:
        sock.sendall(rig.frame(rig.METADATA))
        n, _ = struct.unpack("<QB", exactly(sock, 9))
        assert b'"name":"engine-a.example:15000"' in exactly(sock, n - 1)
    six = new_agent("six", settings={"mooncake.listen": "[::1]:0", "mooncake.allow": "::1/128"})
    with Owner(six, 4096, b"6") as owner, data(six) as sock:
        assert rig.ask(six)["name"].startswith("[::1]:") and read(sock, owner.address, 1) == b"6"
    two = new_agent("two", settings={**rig.settings(LOOPBACK), "mooncake.data_listen": "127.0.0.3:0"})
    with Owner(two, 4096, b"2") as owner, host.connect(f"127.0.0.3:{segment(two)[1]}") as sock:
        assert read(sock, owner.address, 1) == b"2"


@pytest.mark.parametrize("settings, error", [
    ({"mooncake.listen": "0.0.0.0:0"}, "set mooncake.advertise"),
    ({"mooncake.listen": "host:1"}, "not an address and port"),
    ({"mooncake.data_listen": "10.0.0.1"}, "not an address and port"),
    ({"mooncake.listen": "127.0.0.1:0", "mooncake.advertise": "0.0.0.0:5"}, "that other hosts can use"),
    ({"mooncake.allow": "10.0.0.0/33"}, "a number up to 32"),
    ({"mooncake.allow": "10.0.0.1/8"}, "bits behind its prefix"),
    ({"mooncake.allow": "engine-a"}, "not an address or network"),
])
def test_wrong_settings(new_agent, settings, error):
    """An agent whose settings for Mooncake make no sense does not start, and says which and why."""
    rig.assert_refused(new_agent, settings, error)


# --- the end of rights ----------------------------------------------------------------------------

def under_way(agent, owner, sock, op):
    """Begins a request of which about a half is done."""
    n = len(owner.view)
    if op == rig.WRITE:
        sock.sendall(head(rig.WRITE | rig.V2, owner.address, n) + b"\x55" * (n // 2))
        until(lambda: owner.view[n // 2 - 1] == 0x55, "the first half")
    else:
        sock.sendall(head(rig.READ | rig.V2, owner.address, n))
        assert rig.status(sock) == rig.OK and len(exactly(sock, 1000)) == 1000


def rest_of_read(sock):
    n = 0
    while part := exactly(sock, MIB):
        n += len(part)
    return n


@pytest.mark.parametrize("op", [rig.WRITE, rig.READ])
@pytest.mark.parametrize("how", ["remove", "revoke", "close", "kill", "drain"])
def test_rights_end(target, how, op):
    """When a buffer ends in the middle of a request, its connection is closed, and not a byte of the memory is touched afterwards."""
    agent = target()
    size = 64 * MIB
    with Owner(agent, size, bytes(size)) as owner, Owner(agent, 4096, b"z") as other, data(agent) as sock, data(agent) as beside:
        assert read(beside, other.address, 1) == b"z"
        under_way(agent, owner, sock, op)
        if how == "remove":
            owner.region.remove()
        elif how == "revoke":
            owner.region.revoke(owner.token)
        elif how == "close":
            owner.client.close()
        elif how == "kill":
            agent.ctl("close", str(agent.ctl("sessions", "--json")["sessions"][0]["session"]))
        else:
            agent.ctl("drain", "--stay")
        if op == rig.WRITE:
            assert ended(sock)
            before = hashlib.sha256(owner.view).digest()
            with pytest.raises(OSError):  # the rest goes nowhere
                while True:
                    sock.sendall(b"\xee" * MIB)
            assert hashlib.sha256(owner.view).digest() == before
        else:
            assert rest_of_read(sock) < size - 1000
        if how == "drain":
            assert ended(beside)
            assert rig.refused(agent, segment(agent)[0])
            agent.ctl("resume")
            assert [b["addr"] for b in rig.ask(agent)["buffers"]] == [owner.address, other.address]
        else:
            assert read(beside, other.address, 1) == b"z"
            rig.connections(agent, 1)
        assert counter(agent, "requests_broken_total") == 1


def test_address_again(target):
    """An address can be exported again at once, and requests then reach the new memory."""
    agent = target()
    with Owner(agent, 4096, b"old") as owner, data(agent) as sock:
        assert read(sock, owner.address, 3) == b"old"
        for i in range(50):
            owner.region.revoke(owner.token)
            owner.view[:3] = b"%03d" % i
            owner.token = owner.region.export(mooncake=owner.address)
            assert read(sock, owner.address, 3) == b"%03d" % i


# --- strangers ------------------------------------------------------------------------------------

def test_allow(lab, new_agent):
    """A peer that mooncake.allow does not have is closed unread at both ports; a reload takes effect at once, also on open connections."""
    file = lab.write("drayd.conf", 'mooncake: { allow = ["127.0.0.2", "10.0.0.0/8"]; };\n')
    agent = new_agent("target", settings={"mooncake.listen": f"{LOOPBACK}:0"}, args=["--config", file])
    name, port = segment(agent)
    both = name, f"{LOOPBACK}:{port}"
    with Owner(agent, 4096, b"q") as owner, agent.host.socket() as inside:
        assert all(rig.refused(agent, endpoint) for endpoint in both)
        assert counter(agent, "connections_refused_total") == 2
        assert "mooncake.allow does not have the address" in agent.text()
        assert counter(agent, "handshakes_total") == counter(agent, "handshakes_refused_total") == 0
        assert not any(rig.refused(agent, endpoint, "127.0.0.2", limit=0.2) for endpoint in both)
        inside.bind(("127.0.0.2", 0))
        inside.connect((LOOPBACK, port))
        assert read(inside, owner.address, 1) == b"q"
        file.write_text('mooncake: { allow = ["127.0.0.1"]; };\n')
        agent.ctl("reload")
        assert ended(inside)
        assert all(rig.refused(agent, endpoint, "127.0.0.2") for endpoint in both)
        assert len(rig.ask(agent)["buffers"]) == 1
        file.write_text('mooncake: { allow = ["127.0.0.1/8"]; };\n')
        done = agent.ctl("reload", check=False)
        assert done.returncode and "bits behind its prefix" in done.stderr


def test_nobody(target):
    """With an empty list nobody may connect, and the agent says so."""
    agent = target(allow="")
    assert "no peer may connect" in agent.text()
    name, port = segment(agent)
    assert rig.refused(agent, name) and rig.refused(agent, f"{LOOPBACK}:{port}")


def test_hostile_handshakes(target):
    """Whatever bytes come to the handshake, that connection alone ends, within its time."""
    agent = target(mooncake__stall_timeout="300ms")
    handshake = segment(agent)[0]
    for content in (b"\0" * 9, b"\xff" * 9, struct.pack("<QB", (1 << 20) + 1, 1), struct.pack("<QB", 2, 4) + b"{", struct.pack("<QB", 2, 0xFE) + b"{",
                    b"GET / HTTP/1.1\r\n\r\n", b'{"local_nic_path":"a"}'):
        with agent.host.connect(handshake) as sock:
            sock.sendall(content)
            assert ended(sock), content
    refused = counter(agent, "handshakes_refused_total")
    assert refused == 7
    for content in b"", b"\1", struct.pack("<QB", 100, 1), struct.pack("<QB", 1 << 20, 1) + b"x" * 1000:
        with agent.host.connect(handshake) as sock:
            sock.sendall(content)
            assert ended(sock), content  # by time
    assert counter(agent, "handshakes_refused_total") == refused + 4
    with agent.host.connect(handshake) as sock:  # a peer that keeps the connection after the answer
        sock.sendall(rig.frame(rig.PROBE) + b"more")
        n, _ = struct.unpack("<QB", exactly(sock, 9))
        exactly(sock, n - 1)
        assert ended(sock)
        until(lambda: not re.search(rf":{sock.getsockname()[1]}\b", agent.host.run("ss", "-tn", "state", "established")), "the agent's end")
    assert rig.ask(agent, rig.PROBE) == {"status": "success"}


def test_longest_handshake(target):
    """A request of a megabyte is accepted, one byte more is not."""
    agent = target()
    assert rig.ask(agent, rig.METADATA, b"x" * ((1 << 20) - 1))["buffers"] == []


def test_many_handshakes(target):
    """Handshakes that say nothing keep neither those of other addresses from theirs, nor those of the same one once their time is over."""
    agent = target(mooncake__stall_timeout="1s")
    silent = [agent.host.connect(segment(agent)[0]) for _ in range(16)]
    try:
        assert all(rig.refused(agent, segment(agent)[0]) for _ in range(8))
        assert counter(agent, "connections_refused_total") == 8
        for _ in range(20):
            assert rig.ask(agent, rig.PROBE, bind="127.0.0.2") == {"status": "success"}
        until(lambda: counter(agent, "handshakes_refused_total") == 16, "the end of the others")
        assert rig.ask(agent, rig.PROBE) == {"status": "success"}
    finally:
        for sock in silent:
            sock.close()


def test_stalls(target):
    """Data connections that stop in a head, stop writing or do not read end in time; one before its first request, or between requests, does not."""
    agent = target(mooncake__stall_timeout="500ms")
    size = 32 * MIB
    with Owner(agent, size, b"q" * size) as owner, data(agent) as idle, data(agent) as unused:
        assert read(idle, owner.address, 1) == b"q"
        for content in b"\1" * 23, head(rig.WRITE, owner.address, 100) + b"w" * 99, head(rig.WRITE | rig.V2, owner.address, 100):
            with data(agent) as sock:
                sock.sendall(content)
                assert ended(sock), content
        with data(agent) as slow:
            slow.sendall(head(rig.READ, owner.address, size))
            rig.connections(agent, 2)  # although nothing was read
        assert read(idle, owner.address, 1) == b"w" and read(unused, owner.address, 1) == b"w"
        assert owner.view[:100] == b"w" * 99 + b"q"


def test_slow_writer(target):
    """Bytes that come too slowly for an event of the socket are progress all the same."""
    agent = target(mooncake__stall_timeout="1s")
    content = noise(192 << 10)
    with Owner(agent, MIB) as owner, data(agent) as sock:
        sock.sendall(head(rig.WRITE | rig.V2, owner.address, len(content)))
        for at in range(0, len(content), 64 << 10):
            until(lambda: counter(agent, "received_bytes_total") == at, "the bytes so far")
            sock.sendall(content[at:at + (64 << 10)])
        assert rig.status(sock) == rig.OK and bytes(owner.view[:len(content)]) == content
        assert read(sock, owner.address, 100) == content[:100]


@pytest.mark.parametrize("after", ["read", "read in pieces", "write of a byte", "last bytes late", "head and payload apart", "next head with the payload", "large write",
                                   "refused", "end"])
def test_after_small_writes(target, after):
    """After small writes in a row a head alone does not wake the agent (test_mooncake_mark.c): whatever comes next is served all the same."""
    agent = target()
    content = noise(MIB)
    with Owner(agent, MIB, content) as owner, data(agent) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def begin(length, at=8192):
            sock.sendall(head(rig.WRITE | rig.V2, owner.address + at, length))

        # all at once, so that nothing but the case below comes between the last one and the next request
        sock.sendall(b"".join(head(rig.WRITE | rig.V2, owner.address + i * 100, 100) + content[i:i + 100] for i in range(40)))
        assert all(rig.status(sock) == rig.OK for _ in range(40))
        if after == "read":
            assert all(read(sock, owner.address + 8192, 100) == content[8192:8292] for _ in range(3))
        elif after == "read in pieces":
            for byte in head(rig.READ | rig.V2, owner.address + 8192, 100):
                sock.sendall(bytes([byte]))
            assert rig.status(sock) == rig.OK and exactly(sock, 100) == content[8192:8292]
        elif after == "write of a byte":
            write(sock, owner.address + 8192, b"q")
            assert owner.view[8192:8193] == b"q"
        elif after == "last bytes late":
            begin(1000)
            sock.sendall(content[:990])
            until(lambda: counter(agent, "received_bytes_total") == 40 * 100 + 990, "all but the last bytes")
            sock.sendall(content[990:1000])
            assert rig.status(sock) == rig.OK and owner.view[8192:9192] == content[:1000]
        elif after == "head and payload apart":
            begin(1000)
            with data(agent) as other:
                assert read(other, owner.address + MIB - 1, 1) == content[-1:]
            sock.sendall(content[:1000])
            assert rig.status(sock) == rig.OK and owner.view[8192:9192] == content[:1000]
        elif after == "next head with the payload":
            ahead = head(rig.READ | rig.V2, owner.address + 8192, 100)
            for n in 1, 23, 24:
                begin(100)
                sock.sendall(content[n:n + 100] + ahead[:n])
                assert rig.status(sock) == rig.OK
                sock.sendall(ahead[n:])
                assert rig.status(sock) == rig.OK and exactly(sock, 100) == content[n:n + 100]
        elif after == "large write":
            write(sock, owner.address, content[::-1])
            assert owner.view == content[::-1]
        elif after == "refused":
            sock.sendall(head(rig.READ | rig.V2, owner.address - 1, 100))
            assert rig.status(sock) == rig.REFUSED and ended(sock)
        else:
            begin(1000)
            sock.shutdown(socket.SHUT_WR)
            assert ended(sock)
            rig.connections(agent, 0)
            assert counter(agent, "requests_broken_total") == 1
        if after != "large write":
            assert all(owner.view[i * 100:i * 100 + 100] == content[i:i + 100] for i in range(40))


def test_answers_that_nobody_reads(target):
    """What is left of an answer when its connection ends is not kept by the kernel for a peer that does not read."""
    agent = target(mooncake__stall_timeout="500ms")
    name, port = segment(agent)

    def kept():
        """Of the agent's ends of data connections that are closed, those with unsent bytes."""
        lines = [line.split() for line in open(f"/proc/{agent.pid}/net/tcp").readlines()[1:]]
        return [w for w in lines if int(w[1].split(":")[1], 16) == port and w[3] != "0A" and int(w[4].split(":")[0], 16)]

    with Owner(agent, MIB) as owner, agent.host.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect((LOOPBACK, port))
        sock.sendall(head(rig.READ, owner.address, MIB))
        sock.shutdown(socket.SHUT_WR)
        until(kept, "the answer")
        until(lambda: not kept(), "its end")


def test_idle(target):
    """A connection without requests ends after mooncake.idle_timeout."""
    agent = target(mooncake__idle_timeout="300ms")
    with Owner(agent, 4096, b"q") as owner, data(agent) as sock, data(agent) as unused:
        assert read(sock, owner.address, 1) == b"q"
        assert ended(sock) and ended(unused)
    assert counter(agent, "requests_broken_total") == 0


def test_too_many_connections(target):
    """More data connections than allowed are closed at once, and there is room again when others have ended; an address has half at most."""
    agent = target(mooncake__connections=6)
    with Owner(agent, 4096, b"q") as owner:
        some = [data(agent) for _ in range(3)]
        assert all(read(sock, owner.address, 1) == b"q" for sock in some)
        assert rig.refused(agent, f"{LOOPBACK}:{segment(agent)[1]}")
        others = [data(agent, bind=f"127.0.0.{n}") for n in (2, 3, 4)]
        assert all(read(sock, owner.address, 1) == b"q" for sock in others)
        assert rig.refused(agent, f"{LOOPBACK}:{segment(agent)[1]}", "127.0.0.5")
        for sock in others:
            sock.close()
        rig.connections(agent, 3)
        some.pop().close()
        rig.connections(agent, 2)
        some.append(data(agent))
        assert all(read(sock, owner.address, 1) == b"q" for sock in some)
        for sock in some:
            sock.close()
    assert counter(agent, "connections_refused_total") == 2


def test_connections_of_descriptors(new_agent):
    """Data connections take no more than an eighth of the agent's descriptors, so that clients and peers have theirs."""
    agent = new_agent("target", settings=rig.settings(LOOPBACK, mooncake__connections=4096), wrap=["prlimit", "--nofile=256:256"])
    assert "mooncake.connections" in agent.text()
    with Owner(agent, 4096, b"q") as owner:
        some = []
        for n in range(2, 34):
            some.append(data(agent, bind=f"127.0.0.{n}"))
            assert read(some[-1], owner.address, 1) == b"q"
        assert rig.refused(agent, f"{LOOPBACK}:{segment(agent)[1]}", "127.0.0.50")
        for sock in some:
            sock.close()


def test_shorter_times(lab, new_agent):
    """A reload with shorter times ends connections that are open already."""
    file = lab.write("drayd.conf", 'mooncake: { stall_timeout = "5min"; };\n')
    agent = new_agent("target", settings={"mooncake.listen": f"{LOOPBACK}:0", "mooncake.allow": LOOPBACK}, args=["--config", file])
    with Owner(agent, 4096, b"q") as owner, data(agent) as idle, data(agent) as stalled, agent.host.connect(segment(agent)[0]) as silent:
        assert read(idle, owner.address, 1) == b"q"
        stalled.sendall(b"1")
        rig.connections(agent, 2)
        file.write_text('mooncake: { stall_timeout = "100ms"; idle_timeout = "100ms"; };\n')
        agent.ctl("reload")
        assert ended(idle) and ended(stalled) and ended(silent)


def test_descriptor_is_current(target):
    """The answer to a handshake is made anew when the buffers have changed, and only then."""
    agent = target()
    with Owner(agent, 8192) as owner:
        one = rig.ask(agent)
        assert rig.ask(agent) == one and [b["length"] for b in one["buffers"]] == [8192]
        token = owner.region.export(0, 4096, mooncake=1 << 40)
        two = rig.ask(agent)
        assert [b["length"] for b in two["buffers"]] == [8192, 4096] and two["timestamp"] != one["timestamp"]
        owner.region.revoke(token)
        assert [b["length"] for b in rig.ask(agent)["buffers"]] == [8192]
        owner.region.remove()
        assert rig.ask(agent)["buffers"] == []


def test_hostile_data(target):
    """Random bytes on data connections, while others work: the agent serves on, and no byte outside of the buffers changes."""
    agent = target()
    rng = random.Random(5)
    with Owner(agent, MIB, b"k" * MIB) as owner, data(agent) as good:
        owner.region.revoke(owner.token)
        owner.token = owner.region.export(4096, 8192, mooncake=owner.address + 4096)
        for i in range(200):
            with data(agent) as sock:
                address = owner.address + rng.choice([0, 4096, 4096, 8192, 12287, 12288])
                content = rng.choice([rng.randbytes(rng.randrange(1, 200)), head(rng.randrange(256), address, rng.randrange(1, 9000)) + rng.randbytes(50)])
                try:
                    sock.sendall(content)
                    if rng.random() < 0.5:
                        sock.shutdown(socket.SHUT_WR)
                        exactly(sock, 100)
                except OSError:
                    pass  # refused before all was sent
            if i % 50 == 0:
                assert len(read(good, owner.address + 4096, 100)) == 100
        rig.connections(agent, 1)
        assert owner.view[:4096] == b"k" * 4096 and owner.view[12288:] == b"k" * (MIB - 12288)


def test_dead_owner_fault(target):
    """A page that the owner takes away in the middle ends its session, not the agent."""
    agent = target()
    with Owner(agent, 64 * 4096, b"p" * 64 * 4096) as owner, data(agent) as sock:
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.fallocate(owner.memory.fd, 3, ctypes.c_long(32 * 4096), ctypes.c_long(4096)) == 0
        sock.sendall(head(rig.READ, owner.address, 64 * 4096))
        got = exactly(sock, 64 * 4096)
        # where the kernel does not let the agent guard the memory, the hole is filled again
        assert len(got) <= 32 * 4096 and got == b"p" * len(got) or len(got) == 64 * 4096
        if len(got) < 64 * 4096:
            until(lambda: not rig.ask(agent)["buffers"], "the end of the buffer")
            assert counter(agent, "requests_broken_total") == 1


# --- Mooncake itself ------------------------------------------------------------------------------

SIZES = [1, 7, 4096, 65536, 65537, MIB + 1, 16 * MIB]


@pytest.fixture(params=["2", "1"], ids=["version 2", "version 1"])
def protocol(request):
    return request.param


@pytest.mark.parametrize("pool", [False, True], ids=["connect each time", "pool"])
def test_mooncake(target, protocol, pool):
    """Mooncake's engine writes and reads the agent's buffer: single and scattered pieces of many sizes, equal by their digests."""
    agent = target()
    size = 32 * MIB
    env = {"MC_TCP_PROTO": protocol, **({"MC_TCP_ENABLE_CONNECTION_POOL": "1"} if pool else {})}
    with Owner(agent, size, bytes(size)) as owner, Initiator(agent, size, **env) as engine:
        target_name, base = engine.target, owner.address
        for i, n in enumerate(SIZES):
            content = noise(n, 10 + i)
            offset = (i * 12345) % (size - n)
            if n <= MIB + 1:
                engine("fill", 0, content.hex())
            else:
                engine("repeat", 0, 0xA0 + i, n)
                content = bytes([0xA0 + i]) * n
            assert engine("write_one", target_name, base + offset, 0, n) == 0
            until(lambda: owner.view[offset:offset + n] == content, "the bytes")  # version 1 has no answer to a write
            assert engine("read_one", target_name, base + offset, size // 2, n) == 0
            assert engine("digest", size // 2, n) == hashlib.sha256(content).hexdigest()
        rng = random.Random(6)
        pieces, theirs, ours = [], 0, size
        for _ in range(300):
            n = rng.choice([64, 4096, 20000, 65536])
            ours -= n + 100
            pieces.append((theirs, ours - 0, n))
            theirs += n
        content = noise(theirs, 77)[:theirs]
        for at in range(0, theirs, MIB):
            engine("fill", at, content[at:at + MIB].hex())
        assert engine("write", target_name, base, pieces) == 0
        for mine, at, n in pieces:
            until(lambda: owner.view[at:at + n] == content[mine:mine + n], "a piece")
        engine("repeat", 0, 0, theirs)
        assert engine("read", target_name, base, pieces) == 0
        assert engine("digest", 0, theirs) == hashlib.sha256(content).hexdigest()
    assert counter(agent, "requests_refused_total") == 0


@pytest.mark.parametrize("pool", ["0", "1"], ids=["connect each time", "pool"])
def test_mooncake_pauses(target, pool):
    """Connections that Mooncake has opened for one call serve a later one, also those that had no part of the first."""
    agent = target(mooncake__stall_timeout="1s")  # on a busy machine Mooncake itself pauses for some tenths of that
    with Owner(agent, 100 * 4096, bytes(100 * 4096)) as owner, Initiator(agent, 100 * 4096, MC_TCP_ENABLE_CONNECTION_POOL=pool) as engine:
        for count in 2, 8, 100:
            for op in "write", "read":
                assert engine(op, engine.target, owner.address, [(i * 4096, i * 4096, 4096) for i in range(count)]) == 0
                with data(agent) as sock:
                    sock.sendall(b"\1")
                    assert ended(sock)  # after as long as connections without progress last


def test_mooncake_killed(target):
    """Mooncake is killed in the middle of a transfer: the agent notices at once, and the owner's memory can be given back."""
    agent = target()
    size = 256 * MIB
    with Owner(agent, size, bytes(size)) as owner, Initiator(agent, size) as engine:
        engine("repeat", 0, 0x77, size)
        engine.tell("write", engine.target, owner.address, [(0, 0, size)])
        until(lambda: owner.view[4 * MIB] == 0x77, "some bytes")
        engine.process.kill()
        rig.connections(agent, 0)
        owner.region.remove()
    assert counter(agent, "buffers") == 0


def test_mooncake_owner_gone(target):
    """The owner removes its region in the middle of a transfer: Mooncake's call fails, and no byte is written afterwards."""
    agent = target()
    size = 256 * MIB
    with Owner(agent, size, bytes(size)) as owner, Initiator(agent, size) as engine:
        engine("repeat", 0, 0x77, size)
        engine.tell("write", engine.target, owner.address, [(0, 0, size)])
        until(lambda: owner.view[MIB] == 0x77, "some bytes")
        owner.region.remove()
        before = hashlib.sha256(owner.view).digest()
        assert engine.hear() != 0 or owner.view[size - 1] == 0x77
        assert hashlib.sha256(owner.view).digest() == before
        assert engine("write_one", engine.target, owner.address, 0, 100) != 0


def test_mooncake_refused(target):
    """Mooncake's engine at an address that is not allowed gets an error, and nothing of the buffers."""
    agent = target(allow="10.99.0.0/16")
    with Owner(agent, MIB, bytes(MIB)) as owner, Initiator(agent, MIB) as engine:
        assert engine("write_one", engine.target, owner.address, 0, 100) != 0
        assert owner.view == bytes(MIB)


def test_mooncake_bench(target):
    """Mooncake's own benchmark writes and reads, with a buffer of the agent as its target."""
    python = rig.mooncake_python()
    bench = next(python.parents[1].glob("lib/python*/site-packages/mooncake/transfer_engine_bench"))
    agent = target()
    with Owner(agent, 64 * MIB, bytes(64 * MIB)) as owner:
        for operation in "write", "read":
            done = subprocess.run(
                agent.host.command(bench, "--mode=initiator", "--metadata_server=P2PHANDSHAKE", "--protocol=tcp",
                                   f"--local_server_name={LOOPBACK}", f"--segment_id={segment(agent)[0]}", f"--operation={operation}", "--duration=1",
                                   "--threads=2", "--batch_size=8", "--block_size=65536", "--buffer_size=33554432"),
                env={**os.environ, "LD_LIBRARY_PATH": str(bench.parent)}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=4 * LIMIT)
            assert done.returncode == 0, done.stdout
        assert counter(agent, "received_bytes_total") > MIB and counter(agent, "sent_bytes_total") > MIB
        assert counter(agent, "requests_refused_total") == 0
        assert owner.address
