# SPDX-License-Identifier: Apache-2.0
"""The agent as the initiator towards engines that have Mooncake linked in, over TCP: mooncake://HOST:PORT as a remote."""

import contextlib
import json
import os
import random
import re
import resource
import signal
import struct
import subprocess
import threading
from types import SimpleNamespace

import dray
import mooncake_rig as rig
import pytest
from dray import errors
from harness import LIMIT, MIB, noise, until
from mooncake_rig import DEVICE, LOOPBACK, Engine, Fake, Local, Owner, counter, digest, exactly, mooncake_python, segment

MOONCAKE = 5  # of DRAY_TRANSPORT_*


@pytest.fixture
def importer(new_agent):
    """An agent that may import; keyword arguments are settings."""
    def make(allow="127.0.0.0/8", name="importer", env=None, **more):
        settings = {"mooncake.import": "true", "mooncake.allow": allow, **{k.replace("__", "."): v for k, v in more.items()}}
        return new_agent(name, settings=settings, env=env)

    return make


@contextlib.contextmanager
def limited(agent, n):
    """The agent opens no descriptor from number n on."""
    soft, hard = resource.prlimit(agent.process.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(agent.process.pid, resource.RLIMIT_NOFILE, (n, hard))
    try:
        yield
    finally:
        resource.prlimit(agent.process.pid, resource.RLIMIT_NOFILE, (soft, hard))


# --- without Mooncake -----------------------------------------------------------------------------

def test_off_by_default(agent):
    """Without mooncake.import nothing is connected to, and the error says what to set."""
    with Fake(agent) as engine, agent.client() as client:
        with pytest.raises(errors.Unsupported, match="set mooncake.import and mooncake.allow"):
            client.import_token(f"mooncake://{engine.endpoint}")
        assert not engine.asked


@pytest.mark.parametrize("version", [1, 2])
def test_read_and_write(importer, version):
    """Any range is written and read, at the engine's addresses, in both versions of the protocol; neighbours are not touched."""
    agent = importer()
    content = noise(MIB, 3)
    with Fake(agent, MIB, version) as engine, Local(agent, engine.endpoint, MIB, content) as local:
        now = bytearray(MIB)
        for i, (offset, n) in enumerate([(0, 1), (MIB - 7, 7), (5000, 70001), (0, 4096), (4097, 3), (0, MIB)]):
            assert local.write([(offset, engine.base + offset, n)]).result() is not None
            now[offset:offset + n] = content[offset:offset + n]
            assert digest(engine.memory) == digest(now), i
        engine.memory[:] = new = noise(MIB, 4)
        for offset, n in (0, 1), (1, 4095), (4096, 65536), (MIB - 1, 1), (0, MIB):
            local.view[:] = bytes(MIB)
            local.read([(offset, engine.base + offset, n)]).result()
            assert local.view[offset:offset + n] == new[offset:offset + n]
            assert not any(local.view[:offset]) and not any(local.view[offset + n:])
        assert counter(agent, "written_bytes_total") == sum((1, 7, 70001, 4096, 3, MIB))
        assert counter(agent, "read_bytes_total") == sum((1, 4095, 65536, 1, MIB))


@pytest.mark.parametrize("version", [1, 2])
def test_scattered(importer, version):
    """Hundreds of pieces, of all sizes and in any order, and of both priority classes, arrive."""
    agent = importer()
    rng = random.Random(5)
    size = 4 * MIB
    pages = list(range(0, size, 16384))
    with Fake(agent, size, version) as engine, Local(agent, engine.endpoint, size, noise(size, 6)) as local:
        rng.shuffle(pages)
        ops = [(at, engine.base + page, rng.choice((1, 700, 4096, 16384))) for at, page in zip(range(0, size, 16384), pages, strict=True)]
        for klass in "bulk", "latency":
            engine.memory[:] = bytes(size)
            local.write(ops, klass=klass).result()
            for at, address, n in ops:
                assert engine.memory[address - engine.base:][:n] == local.view[at:at + n]
        engine.memory[:] = noise(size, 7)
        local.read(ops).result()
        for at, address, n in ops:
            assert local.view[at:at + n] == engine.memory[address - engine.base:][:n]


def test_buffers(importer):
    """No request crosses the end of a buffer, also where the next one joins it; what lies outside of all of them is refused here."""
    agent = importer()
    base, page = 1 << 40, 4096
    buffers = [(base + 8 * page, 4 * page), (base, page), (base + page, page), (base + 2 * page, 3 * page), (base + page, page // 2)]
    with Fake(agent, 16 * page, 2, buffers) as engine, Local(agent, engine.endpoint, 16 * page, noise(16 * page, 8)) as local:
        assert local.remote.length == base + 12 * page
        local.write([(0, base, 5 * page)]).result()
        assert engine.memory[:5 * page] == local.view[:5 * page]
        assert [(a - base, n) for _, a, n in sorted(engine.requests)] == [(0, page), (page, page), (2 * page, 3 * page)]
        del engine.requests[:]
        for op in (0, base + 5 * page, 1), (0, base + 5 * page - 1, 2), (0, base + 7 * page, 2 * page), (0, 0, 1), (0, base + 12 * page, 1), \
                (0, (1 << 64) - 1, 1), (0, base - 1, 2):
            with pytest.raises(errors.Range):
                local.write([op]).result()
        assert not engine.requests


def test_many_small_buffers(importer):
    """A slice that goes to more buffers than it may have requests is cut into several."""
    agent = importer()
    base, n = 1 << 40, 4096
    with Fake(agent, 64 * n, 2, [(base + 64 * i, 64) for i in range(n)]) as engine, Local(agent, engine.endpoint, 64 * n, noise(64 * n, 9)) as local:
        local.write([(0, base, 64 * n)]).result()
        assert digest(engine.memory) == digest(local.view) and len(engine.requests) == n


def test_refused(importer):
    """What the engine refuses ends with `revoked`, and no other client of the agent feels it."""
    agent = importer(agent__workers=1)
    with Fake(agent, MIB) as engine, Local(agent, engine.endpoint, MIB, noise(MIB, 10)) as local, Local(agent, engine.endpoint, MIB) as other:
        engine.buffers = [(engine.base, MIB // 2)]
        other.view[:] = local.view
        for start in local.write, local.read:
            with pytest.raises(errors.Revoked):
                start([(0, engine.base + MIB // 2, 4096)]).result()
        mixed = [(start, at, start([(at, engine.base + at, 4096)])) for at in range(0, MIB, 4096) for start in (local.write, other.write)
                 if at < MIB // 2 or start == local.write]
        for start, at, transfer in mixed:
            if start == other.write:
                transfer.result()
            elif at < MIB // 2:
                # the reset of the connection may overtake the answers to what was sent before
                with contextlib.suppress(errors.PeerLost):
                    transfer.result()
            else:
                with pytest.raises((errors.Revoked, errors.PeerLost)):
                    transfer.result()
        assert digest(engine.memory[:MIB // 2]) == digest(local.view[:MIB // 2])
        assert counter(agent, "calls_refused_total") >= 3
        local.remote.release()
        local.remote = local.client.import_token(f"mooncake://{engine.endpoint}")
        assert local.remote.length == engine.base + MIB // 2


def test_shared(importer):
    """Remotes of one engine share its connections, and each import asks the engine anew. With the last remote they are closed."""
    agent = importer(agent__workers=1)
    with Fake(agent, MIB) as engine, Local(agent, engine.endpoint, MIB, noise(MIB, 1)) as one, Local(agent, engine.endpoint, MIB, noise(MIB, 2)) as two:
        assert engine.asked == 2 and counter(agent, "engines") == 1 and counter(agent, "imports_total") == 2
        for local in one, two:
            local.write([(0, engine.base, MIB)]).result()
            assert digest(engine.memory) == digest(local.view)
        assert 1 <= counter(agent, "streams") <= 4
        shown = agent.ctl("peers", "--json")["peers"]
        assert [(p["segment"], p["state"], p["imports"], p["transport"], p["sent_bytes"]) for p in shown] == [
            (engine.endpoint, "ready", 2, "mooncake", 2 * MIB)]
        one.remote.release()
        two.write([(0, engine.base, 4096)]).result()
        two.remote.release()
        until(lambda: not counter(agent, "engines") and not counter(agent, "streams"), "the end of the engine")
        assert not agent.ctl("peers", "--json")["peers"]
        assert history(agent, engine.endpoint) == [("", "ready"), ("ready", "closed")]


def history(agent, endpoint):
    return [(e["old"], e["new"]) for e in agent.ctl("events", "--json")["events"] if (e["kind"], e["subject"]) == ("peer", endpoint)]


def test_between_agents(importer, new_agent):
    """An agent is an engine for another one, with a client's memory at the address of its owner."""
    target = new_agent("target", settings=rig.settings(LOOPBACK))
    agent = importer()
    size = 16 * MIB
    with Owner(target, size, noise(size, 1)) as owner, Local(agent, segment(target)[0], size) as local:
        local.read([(0, owner.address, size)]).result()
        assert digest(local.view) == digest(owner.view)
        local.view[:] = noise(size, 2)
        done = local.write([(at, owner.address + at, 65536) for at in range(0, size, 65536)]).result()
        assert digest(local.view) == digest(owner.view) and done.transport == MOONCAKE


def test_notifications(importer):
    """The engine takes no notifications of dray, and the error says so before a byte moves."""
    agent = importer()
    with Fake(agent) as engine, Local(agent, engine.endpoint, 4096) as local:
        with pytest.raises(errors.Unsupported):
            local.write([(0, engine.base, 8)], notify=(1, b"x")).result()
        with pytest.raises(errors.Unsupported, match="take no notifications"):
            local.remote.notify(1, b"x")
        assert not engine.requests


# --- the end of engines and transfers -------------------------------------------------------------

def stuck(engine, release):
    """From now on the engine begins each request and then waits for the event."""
    serve = engine.serve

    def wait(sock, op, address, n):
        if op & 0x7F == rig.WRITE:
            exactly(sock, min(n, 1000))
        else:
            sock.sendall(struct.pack("<Q", rig.OK) + bytes(min(n, 1000) - 1))
        release.wait(LIMIT)
        raise OSError

    engine.serve = wait
    return serve


@pytest.mark.parametrize("klass", ["bulk", "latency"])
@pytest.mark.parametrize("direction", ["write", "read"])
def test_deadline(importer, direction, klass):
    """A transfer to an engine that has stopped in the middle of a request ends with its deadline, and its memory is not touched any more."""
    agent = importer()
    release = threading.Event()
    with Fake(agent, 32 * MIB) as engine, Local(agent, engine.endpoint, 32 * MIB, noise(MIB, 1)) as local:
        stuck(engine, release)
        transfer = local.client.transfer(direction, local.region, local.remote, [(0, engine.base, 32 * MIB)], deadline=0.5, klass=klass)
        until(lambda: engine.requests, "a request")
        with pytest.raises((errors.Deadline, errors.Unconfirmed)):  # the latter where the agent's answer comes later than libdray waits
            transfer.result(LIMIT)
        until(lambda: not agent.ctl("transfers", "--json")["transfers"], "no transfers")
        local.view[:] = bytes(32 * MIB)
        release.set()
        engine.serve = engine.serve_request
        local.client.transfer(direction, local.region, local.remote, [(0, engine.base, 4096)], klass=klass).result(LIMIT)
        assert not any(local.view[4096:MIB])


@pytest.mark.parametrize("direction", ["write", "read"])
@pytest.mark.parametrize("how", ["cancel", "release", "remove", "close", "drain"])
def test_ends(importer, direction, how):
    """A cancel, the end of the remote, region or session, and a drain end a transfer whose engine has stopped, within seconds."""
    agent = importer()
    release = threading.Event()
    with Fake(agent, 8 * MIB) as engine, Local(agent, engine.endpoint, 8 * MIB, noise(MIB, 1)) as local, \
            Local(agent, engine.endpoint, 4096) as beside:
        stuck(engine, release)
        transfer = local.client.transfer(direction, local.region, local.remote, [(0, engine.base, 8 * MIB)])
        until(lambda: engine.requests, "a request")
        if how == "cancel":
            transfer.cancel()
            with pytest.raises(errors.Cancelled):
                transfer.result(LIMIT)
        elif how == "release":
            local.remote.release()
            with pytest.raises(errors.Cancelled):
                transfer.result(LIMIT)
        elif how == "remove":
            local.region.remove()
            with pytest.raises(errors.Error):
                transfer.result(LIMIT)
        elif how == "close":
            local.client.close()
            until(lambda: len(agent.ctl("sessions", "--json")["sessions"]) == 1, "the end of the session")
        else:
            agent.settings["agent.drain_timeout"] = "1s"
            agent.ctl("drain", "--stay")
            with pytest.raises(errors.Error):
                beside.write([(0, engine.base, 1)]).result(LIMIT)
            transfer.cancel()
            with pytest.raises(errors.Cancelled):
                transfer.result(LIMIT)
        release.set()
        engine.serve = engine.serve_request
        if how != "drain":
            beside.write([(0, engine.base, 1)]).result(LIMIT)
        until(lambda: not agent.ctl("transfers", "--json")["transfers"], "no transfers")


@pytest.mark.parametrize("direction", ["write", "read"])
def test_engine_ends(importer, direction):
    """The engine closes everything in the middle of requests: transfers end with peer_lost, and the remote is lost."""
    agent = importer(peer__connect_timeout="500ms")
    with Fake(agent, 8 * MIB) as engine, Local(agent, engine.endpoint, 8 * MIB, noise(MIB, 1)) as local:
        release = threading.Event()
        stuck(engine, release)
        transfer = local.client.transfer(direction, local.region, local.remote, [(0, engine.base, 8 * MIB)], deadline=LIMIT)
        until(lambda: engine.requests, "a request")
        engine.close()
        release.set()
        with pytest.raises(errors.PeerLost):
            transfer.result(LIMIT)
        if direction == "write":
            with pytest.raises((errors.PeerLost, errors.Deadline)):
                local.write([(0, engine.base, 4096)], deadline=5.0).result(LIMIT)
        until(lambda: not counter(agent, "engines"), "the end of the engine")
        assert history(agent, engine.endpoint) == [("", "ready"), ("ready", "lost"), ("lost", "closed")]
        with pytest.raises(errors.PeerUnreachable):
            local.client.import_token(f"mooncake://{engine.endpoint}")


def test_no_descriptors(importer):
    """The agent has no free descriptor: transfers and imports end with that, and the engine and its remote stay."""
    agent = importer(peer__connect_timeout="200ms")
    with Fake(agent, MIB) as engine, Local(agent, engine.endpoint, MIB, noise(MIB, 2)) as local:
        with limited(agent, 3):
            for start in local.write, local.read:
                with pytest.raises(errors.NoFds, match="NOFILE"):
                    start([(0, engine.base, 4096)], deadline=LIMIT).result(LIMIT)
            with pytest.raises(errors.NoFds):
                local.client.import_token(f"mooncake://{engine.endpoint}")
        assert not engine.requests
        local.write([(0, engine.base, 4096)]).result(LIMIT)
        assert engine.memory[:4096] == local.view[:4096]
        assert history(agent, engine.endpoint) == [("", "ready")]


@pytest.mark.parametrize("n", [0, 1, 7, 8, 9, 100, 4103])
def test_cut_answers(importer, n):
    """Answers that end after n bytes: a READ is carried out over another connection."""
    agent = importer()
    with Fake(agent, MIB) as engine, Local(agent, engine.endpoint, 4096) as local:
        engine.memory[:4096] = noise(4096, n)

        def cut(sock, op, address, length):
            engine.serve = engine.serve_request
            sock.sendall((struct.pack("<Q", rig.OK) + engine.memory[:4096])[:n])
            raise OSError

        engine.serve = cut
        local.read([(0, engine.base, 4096)]).result(LIMIT)
        assert local.view == engine.memory[:4096] and len(engine.requests) == 2
        engine.serve = cut
        if n >= 8:
            local.write([(0, engine.base, 4096)]).result(LIMIT)
        else:
            with pytest.raises(errors.PeerLost):
                local.write([(0, engine.base, 4096)]).result(LIMIT)


@pytest.mark.parametrize("version", [1, 2])
def test_slow_answer(importer, version):
    """Bytes of an answer that come too slowly for an event of the socket are progress all the same; a silent engine is not waited for."""
    agent = importer(transfer__slice_timeout="1s")
    content, step = noise(MIB, 5), 200 << 10
    silent = threading.Event()
    with Fake(agent, MIB, version) as engine, Local(agent, engine.endpoint, MIB) as local:
        engine.memory[:] = content

        def slow(sock, op, address, length):
            engine.serve = engine.serve_request
            if version == 2:
                sock.sendall(struct.pack("<Q", rig.OK))
            for at in range(0, length, step):
                until(lambda: counter(agent, "read_bytes_total") == at, "the bytes so far")
                sock.sendall(content[at:at + step])

        def stop(sock, op, address, length):
            engine.serve = engine.serve_request
            sock.sendall((struct.pack("<Q", rig.OK) if version == 2 else b"") + content[:step])
            silent.wait()

        engine.serve = slow
        local.read([(0, engine.base, MIB)]).result(LIMIT)
        assert local.view == content and len(engine.requests) == 1
        local.view[:] = bytes(MIB)
        engine.serve = stop
        local.read([(0, engine.base, MIB)]).result(LIMIT)
        assert local.view == content and len(engine.requests) == 3
        # the marks of large answers do not outlast them
        for at in range(0, 64 << 10, 4096):
            local.write([(0, engine.base + at, 4096)]).result(LIMIT)
            local.read([(MIB // 2, engine.base + at, 4096)]).result(LIMIT)
            assert local.view[MIB // 2:MIB // 2 + 4096] == content[:4096]
        silent.set()


@pytest.mark.parametrize("status", [0, 1, 0x4D435456, 0x5643544D << 32, (1 << 64) - 1])
def test_wrong_status(importer, status):
    """What is no status ends the connection, and that transfer with an error."""
    agent = importer()
    with Fake(agent, MIB) as engine, Local(agent, engine.endpoint, 4096) as local:
        def wrong(sock, op, address, length):
            engine.serve = engine.serve_request
            if op & 0x7F == rig.WRITE:
                exactly(sock, length)
            sock.sendall(struct.pack("<Q", status) + bytes(length))
            sock.recv(1)

        for start, error in (local.read, errors.Protocol), (local.write, errors.PeerLost):
            engine.serve = wrong
            with pytest.raises(error):
                start([(0, engine.base, 4096)]).result(LIMIT)
            start([(0, engine.base, 4096)]).result(LIMIT)


def test_unknown_status(importer):
    """A status with another code than those known is a refusal."""
    agent = importer()
    with Fake(agent, MIB) as engine, Local(agent, engine.endpoint, 4096) as local:
        engine.serve = lambda sock, op, address, length: sock.sendall(struct.pack("<Q", 0x4D435456 << 32 | 77))
        with pytest.raises(errors.Revoked):
            local.read([(0, engine.base, 4096)]).result(LIMIT)


# --- handshakes of strangers ----------------------------------------------------------------------

def described(**change):
    shown = {"name": "127.0.0.1:1", "protocol": "tcp", "tcp_data_port": 1, "tcp_proto_version": 2, "buffers": [{"name": "a", "addr": 4096, "length": 4096}]}
    shown.update(change)
    return rig.frame(rig.METADATA, json.dumps({k: v for k, v in shown.items() if v is not ...}).encode())


@pytest.mark.parametrize("answer, error, match", [
    (b"", errors.PeerLost, "before its answer"),
    (b"\0" * 9, errors.Protocol, "no handshake"),
    (b"\xff" * 9, errors.Protocol, "no handshake"),
    (struct.pack("<QB", (1 << 20) + 1, 1), errors.Protocol, "no handshake"),
    (struct.pack("<QB", 1 << 63, 1), errors.Protocol, "no handshake"),
    (struct.pack("<QB", 1, 1), errors.Protocol, "no handshake"),
    (struct.pack("<QB", 3, 2) + b"{}", errors.Protocol, "no handshake"),
    (b"HTTP/1.1 400 Bad Request\r\n\r\n", errors.Protocol, "no handshake"),
    (struct.pack("<QB", 100, 1) + b"{", errors.PeerLost, "before its answer"),
    (rig.frame(1, b"{"), errors.Protocol, "is not JSON"),
    (rig.frame(1, b"[" * 100000), errors.Protocol, "is not JSON"),
    (rig.frame(1, b'{"a":"\xff"}'), errors.Protocol, "is not JSON"),
    (rig.frame(1, b"null\n"), errors.NotFound, "no segment yet"),
    (rig.frame(1, b"[]"), errors.Protocol, "no protocol"),
    (rig.frame(1, b"7"), errors.Protocol, "no protocol"),
    (described(protocol=7), errors.Protocol, "no protocol"),
    (described(protocol="efa"), errors.Unsupported, "efa"),
    (described(protocol="rdma"), errors.Protocol, "no device"),
    (described(protocol="rdma", devices=[{"name": "m0", "lid": 0, "gid": "00"}]), errors.Protocol, "impossible name, GID"),
    (described(protocol="rdma", devices=[DEVICE]), errors.NotFound, "no registered memory"),
    (described(protocol="rdma", devices=[DEVICE], buffers=[{"addr": 1, "length": 1, "rkey": ["x"]}]), errors.Protocol, "a key for each device"),
    (described(protocol="rdma", devices=[DEVICE, DEVICE], buffers=[{"addr": 1, "length": 1, "rkey": [1]}]), errors.Protocol, "a key for each device"),
    (described(protocol="rdma", devices=[DEVICE], buffers=[{"addr": 1, "length": 1, "rkey": [1 << 32]}]), errors.Protocol, "a key for each device"),
    (described(protocol="rdma", devices=[DEVICE], buffers=[{"addr": 1, "length": 1, "rkey": [1]}], name="a\"b:1"), errors.Protocol, "no host"),
    (described(protocol="rdma", devices=[{**DEVICE, "gid": DEVICE["gid"].replace("7f", "0a")}], buffers=[{"addr": 1, "length": 1, "rkey": [1]}]),
     errors.Denied, "GID of Mooncake's device m0"),
    (described(protocol="rdma", devices=[DEVICE], buffers=[{"addr": 1, "length": 1, "rkey": [1]}]), errors.PeerUnreachable, "no RDMA device"),
    (described(protocol=["tcp", "rdma"]), errors.Protocol, "no protocol"),
    (described(tcp_data_port=...), errors.Protocol, "no port"),
    (described(tcp_data_port=65536), errors.Protocol, "no port"),
    (described(tcp_data_port="80"), errors.Protocol, "no port"),
    (described(tcp_proto_version="2"), errors.Protocol, "version"),
    (described(name=...), errors.Protocol, "no name"),
    (described(name=5), errors.Protocol, "no name"),
    (described(name="a b:1"), errors.Protocol, "no host"),
    (described(name="x" * 300 + ":1"), errors.Protocol, "too long"),
    (described(name="0.0.0.0:1"), errors.PeerUnreachable, "cannot reach"),
    (described(name="10.1.2.3:1"), errors.Denied, "mooncake.allow"),
    (described(buffers=...), errors.Protocol, "no list"),
    (described(buffers={}), errors.Protocol, "no list"),
    (described(buffers=[]), errors.NotFound, "no registered memory"),
    (described(buffers=[7]), errors.Protocol, "impossible address"),
    (described(buffers=[{"addr": 0, "length": 1}]), errors.Protocol, "impossible address"),
    (described(buffers=[{"addr": 1, "length": 0}]), errors.Protocol, "impossible address"),
    (described(buffers=[{"addr": -1, "length": 1}]), errors.Protocol, "impossible address"),
    (described(buffers=[{"addr": 1.5, "length": 1}]), errors.Protocol, "impossible address"),
    (described(buffers=[{"addr": (1 << 63) - 1, "length": 1}]), errors.Protocol, "impossible address"),
    pytest.param(described(buffers=[{"addr": 1 + i, "length": 1} for i in range(8193)]), errors.TooLarge, "at most 8192", id="too many"),
    (described(protocol="\x1b[31m"), errors.Unsupported, "uses the protocol"),
    (described(buffers=[{"addr": 1 << 64, "length": 1}]), errors.Protocol, "is not JSON"),
])
def test_hostile_descriptions(importer, answer, error, match):
    """Whatever an engine answers, the import ends with an error that says what is wrong, and the next one works."""
    agent = importer()
    with Fake(agent, descriptor=answer) as engine, Local(agent, None, 4096) as local:
        with pytest.raises(error, match=match):
            local.client.import_token(f"mooncake://{engine.endpoint}", timeout=LIMIT)
        engine.descriptor = None
        local.remote = local.client.import_token(f"mooncake://{engine.endpoint}")
        local.write([(0, engine.base, 4096)]).result(LIMIT)


def test_slow_handshake(importer):
    """An engine that never answers, or one byte at a time, ends the import when its time is over."""
    agent = importer()
    release = threading.Event()
    with Fake(agent) as engine, Local(agent, None, 4096) as local:
        def slow(sock):
            for byte in rig.frame(rig.METADATA, json.dumps(engine.describe()).encode()):
                if release.wait(0.05):
                    return
                sock.sendall(bytes([byte]))

        for engine.shake in lambda sock: release.wait(LIMIT), slow:
            with pytest.raises(errors.Timeout, match="did not answer in time"):
                local.client.import_token(f"mooncake://{engine.endpoint}", timeout=0.5)
        release.set()
        engine.shake = engine.handshake
        local.remote = local.client.import_token(f"mooncake://{engine.endpoint}")
        assert counter(agent, "imports_failed_total") == 2


def test_shares(new_agent):
    """Imports under way are bounded by the limit of open files, and an owner has at most half of what others leave: others go on."""
    agent = new_agent("importer", settings={"mooncake.import": "true", "mooncake.allow": "127.0.0.0/8"}, start=False,
                      wrap=["prlimit", "--nofile=256:256"])
    agent.settings["data.tenants"] = f"other:{agent.directory}/other.sock"
    agent.start()
    release = threading.Event()
    with Fake(agent) as silent, Fake(agent) as engine, agent.client() as greedy, dray.Client(agent.directory / "other.sock", timeout=LIMIT) as other:
        silent.shake = lambda sock: release.wait(LIMIT)
        pending = [greedy.import_token(f"mooncake://{silent.endpoint}", timeout=LIMIT, wait=False) for _ in range(16)]
        with pytest.raises(errors.Quota, match="16 of them of this owner"):
            greedy.import_token(f"mooncake://{engine.endpoint}")
        assert other.import_token(f"mooncake://{engine.endpoint}").length
        release.set()
        for one in pending:
            with pytest.raises((errors.PeerLost, errors.PeerUnreachable)):
                one.result(LIMIT)
        assert greedy.import_token(f"mooncake://{engine.endpoint}").length


def test_remotes_share_buffers(importer):
    """Remotes of an engine that describes itself alike share its buffers, and one of them can be released."""
    # a sanitizer keeps freed memory
    agent = importer(env={"ASAN_OPTIONS": f"{os.environ.get('ASAN_OPTIONS', '')}:quarantine_size_mb=0:thread_local_quarantine_size_kb=0"})
    with Fake(agent, buffers=[((1 << 40) + k * 8192, 4096) for k in range(8192)]) as engine, \
            Local(agent, engine.endpoint, 4096, noise(4096, 1)) as local:
        held = agent.rss_anon()
        remotes = [local.client.import_token(f"mooncake://{engine.endpoint}") for _ in range(64)]
        assert agent.rss_anon() < held + 8 * MIB
        local.remote.release()
        local.remote = remotes[-1]
        local.write([(0, engine.base, 4096)]).result(LIMIT)
        assert engine.memory[:4096] == local.view[:4096]
        with pytest.raises(errors.Range):
            local.write([(0, engine.base + 4095, 2)]).result(LIMIT)


def test_buffers_of_an_owner(importer):
    """The remotes of an owner have at most its share of limits.engine_buffers, and a release gives it back."""
    agent = importer(limits__engine_buffers=16)
    with Fake(agent, buffers=[((1 << 40) + k * 8192, 4096) for k in range(4)]) as engine, agent.client() as client:
        first, _ = (client.import_token(f"mooncake://{engine.endpoint}") for _ in range(2))
        with pytest.raises(errors.Quota, match="limits.engine_buffers"):
            client.import_token(f"mooncake://{engine.endpoint}")
        first.release()
        assert client.import_token(f"mooncake://{engine.endpoint}").length


def test_answers_under_way(new_agent):
    """Large answers that do not end take memory within bounds, of which an owner has at most half of what others leave."""
    agent = new_agent("importer", settings={"mooncake.import": "true", "mooncake.allow": "127.0.0.0/8"}, start=False)
    agent.settings["data.tenants"] = f"other:{agent.directory}/other.sock"
    agent.start()
    release = threading.Event()
    with Fake(agent) as large, Fake(agent) as engine, agent.client() as greedy, dray.Client(agent.directory / "other.sock", timeout=LIMIT) as other:
        def stall(sock):
            sock.sendall(struct.pack("<QB", MIB, rig.METADATA) + bytes(MIB - 2))
            release.wait(LIMIT)

        large.shake = stall
        pending = [greedy.import_token(f"mooncake://{large.endpoint}", timeout=LIMIT, wait=False) for _ in range(24)]
        until(lambda: sum(one.done() for one in pending) >= 16, "refused imports")
        refused = [one for one in pending if one.done()]
        assert other.import_token(f"mooncake://{engine.endpoint}").length
        release.set()
        for one in pending:
            with pytest.raises(errors.Quota if one in refused else (errors.PeerLost, errors.PeerUnreachable, errors.Quota)):
                one.result(LIMIT)
        assert greedy.import_token(f"mooncake://{engine.endpoint}").length


@pytest.mark.parametrize("name", ["", "a", "host:0", "host:99999", ":1", "127.0.0.1", "a b:1", "x" * 250 + ":1", "[::1]:x", "127.0.0.1:1/x"])
def test_wrong_names(importer, name):
    """A token that names no HOST:PORT is refused."""
    agent = importer()
    with agent.client() as client, pytest.raises((errors.TokenInvalid, errors.PeerUnreachable)):
        client.import_token(f"mooncake://{name}")


def test_allow(lab, new_agent):
    """Only engines of mooncake.allow are connected to; a reload ends the remotes of others."""
    file = lab.write("import.conf", 'mooncake: { allow = ["127.0.0.2"]; };\n')
    agent = new_agent("importer", settings={"mooncake.import": "true"}, args=["--config", file])
    with Fake(agent) as engine, Local(agent, None, 4096) as local:
        with pytest.raises(errors.Denied, match="mooncake.allow does not have"):
            local.client.import_token(f"mooncake://{engine.endpoint}")
        assert not engine.asked
        file.write_text('mooncake: { allow = ["127.0.0.0/8"]; };\n')
        agent.ctl("reload")
        local.remote = local.client.import_token(f"mooncake://{engine.endpoint}")
        local.write([(0, engine.base, 4096)]).result(LIMIT)
        file.write_text('mooncake: { allow = ["10.0.0.0/8"]; };\n')
        agent.ctl("reload")
        until(lambda: not counter(agent, "engines"), "the end of the engine")
        with pytest.raises(errors.Error):
            local.write([(0, engine.base, 4096)]).result(LIMIT)


# --- Mooncake -------------------------------------------------------------------------------------

@pytest.fixture
def mooncake(lab):
    return mooncake_python()


def test_mooncake(importer, mooncake):
    """Mooncake 0.3.13 as target: reads and writes of all sizes, many at once; the engine has what was written."""
    agent = importer()
    size = 64 * MIB
    with Engine(agent, size) as engine, Local(agent, engine.endpoint, size, noise(size, 1)) as local:
        local.write([(0, engine.base, size)]).result()
        assert engine("digest", 0, size) == digest(local.view)
        want = bytes(local.view)
        local.view[:] = bytes(size)
        local.read([(0, engine.base, size)]).result()
        assert digest(local.view) == digest(want)
        pages = list(range(0, size, 4096))
        random.Random(1).shuffle(pages)
        batches = [local.write([(i * 4096, engine.base + page, 4096) for i, page in list(enumerate(pages))[k::16]]) for k in range(16)]
        for transfer in batches:
            transfer.result()
        moved = bytearray(size)
        for i, page in enumerate(pages):
            moved[page:page + 4096] = want[i * 4096:(i + 1) * 4096]
        assert engine("digest", 0, size) == digest(moved)


def test_mooncake_sizes(importer, mooncake):
    """Single operations of sizes around those of Mooncake's own chunks, and both classes at once."""
    agent = importer()
    size = 4 * MIB
    with Engine(agent, size) as engine, Local(agent, engine.endpoint, size, noise(size, 2)) as local:
        for n in 1, 23, 24, 4095, 65535, 65536, 65537, MIB + 1:
            for klass in "bulk", "latency":
                local.write([(5, engine.base + 7, n)], klass=klass).result(LIMIT)
                assert engine("digest", 7, n) == digest(local.view[5:5 + n])
                want = bytes(local.view[5:5 + n])
                local.view[5:5 + n] = bytes(n)
                local.read([(5, engine.base + 7, n)], klass=klass).result(LIMIT)
                assert digest(local.view[5:5 + n]) == digest(want)


def test_mooncake_unregistered(importer, mooncake):
    """Memory that the engine has unregistered since the import is refused; another import shows it."""
    agent = importer()
    with Engine(agent, 4 * MIB) as engine, Local(agent, engine.endpoint, MIB, noise(MIB, 3)) as local:
        local.write([(0, engine.base, MIB)]).result(LIMIT)
        assert engine("unregister", 0) == 0 and engine("register", 0, 2 * MIB) == 0
        with pytest.raises((errors.Revoked, errors.PeerLost)):
            local.write([(0, engine.base + 2 * MIB, MIB)]).result(LIMIT)
        local.write([(0, engine.base + MIB, MIB)]).result(LIMIT)
        assert engine("digest", MIB, MIB) == digest(local.view)
        local.remote.release()
        local.remote = local.client.import_token(f"mooncake://{engine.endpoint}")
        assert local.remote.length == engine.base + 2 * MIB


@pytest.mark.parametrize("direction", ["write", "read"])
def test_mooncake_killed(importer, mooncake, direction):
    """Mooncake killed in mid-transfer: the transfer ends with peer_lost, and the remote is lost."""
    agent = importer(peer__connect_timeout="500ms")
    size = 256 * MIB
    with Engine(agent, size) as engine, Local(agent, engine.endpoint, size) as local:
        moved = "written_bytes_total" if direction == "write" else "read_bytes_total"
        transfers = [local.client.transfer(direction, local.region, local.remote, [(0, engine.base, size)], deadline=LIMIT) for _ in range(8)]
        until(lambda: counter(agent, moved), "the first bytes")
        engine.process.kill()
        failed = 0
        for transfer in transfers:
            try:
                transfer.result(2 * LIMIT)
            except errors.PeerLost:
                failed += 1
        assert failed
        if direction == "write":  # whose loss alone shows nothing about the next attempt
            with pytest.raises(errors.PeerLost):
                local.write([(0, engine.base, 1)], deadline=LIMIT).result(2 * LIMIT)
        until(lambda: not counter(agent, "engines"), "the end of the engine")


@pytest.mark.parametrize("direction", ["write", "read"])
def test_mooncake_stopped(importer, mooncake, direction):
    """Mooncake stopped (SIGSTOP) in mid-transfer: the transfer ends with its deadline; when it goes on, so do transfers."""
    agent = importer()
    size = 256 * MIB
    with Engine(agent, size) as engine, Local(agent, engine.endpoint, size, noise(MIB, 4)) as local:
        engine.process.send_signal(signal.SIGSTOP)
        transfer = local.client.transfer(direction, local.region, local.remote, [(0, engine.base, size)], deadline=1.0)
        with pytest.raises((errors.Deadline, errors.Unconfirmed)):
            transfer.result(LIMIT)
        with pytest.raises(errors.Timeout):
            local.client.import_token(f"mooncake://{engine.endpoint}", timeout=0.5)
        until(lambda: not agent.ctl("transfers", "--json")["transfers"], "no transfers")
        engine.process.send_signal(signal.SIGCONT)
        local.write([(0, engine.base, MIB)], deadline=LIMIT).result(2 * LIMIT)
        assert engine("digest", 0, MIB) == digest(local.view[:MIB])


@pytest.mark.parametrize("direction", ["write", "read"])
def test_mooncake_cut_off(lab, importer, mooncake, direction):
    """The network to Mooncake is cut in mid-transfer: transfers end by their deadline, and their memory is not touched afterwards; then others go on."""
    near, far = lab.hosts
    agent = importer(allow="10.0.0.0/8", peer__connect_timeout="500ms", transfer__slice_timeout="500ms")
    size = 256 * MIB
    with Engine(SimpleNamespace(host=far), size, far.v4) as engine, Local(agent, engine.endpoint, size) as local:
        moved = "written_bytes_total" if direction == "write" else "read_bytes_total"
        engine("repeat", 0, 0xa5, size)  # so that bytes which come late are seen
        transfers = [local.client.transfer(direction, local.region, local.remote, [(0, engine.base, size)], deadline=4.0) for _ in range(8)]
        until(lambda: counter(agent, moved), "the first bytes")
        near.link(False)
        try:
            failed = [e for e in (transfer.exception(2 * LIMIT) for transfer in transfers) if e]
            assert failed and all(isinstance(e, (errors.Deadline, errors.PeerLost, errors.PeerUnreachable, errors.Unconfirmed)) for e in failed)
            until(lambda: not agent.ctl("transfers", "--json")["transfers"], "no transfers")
            local.view[:] = bytes(size)
        finally:
            near.link(True)
        with Local(agent, engine.endpoint, MIB, noise(MIB, 7)) as other:
            other.write([(0, engine.base, MIB)], deadline=LIMIT).result(2 * LIMIT)
            assert engine("digest", 0, MIB) == digest(other.view)
        assert not any(local.view[::4096])


def test_mooncake_bench(importer, mooncake):
    """Mooncake's own benchmark as target: what is written to its buffer is read back."""
    bench = next(mooncake.parents[1].glob("lib/python*/site-packages/mooncake/transfer_engine_bench"))
    agent = importer()
    size = 32 * MIB
    target = subprocess.Popen(
        agent.host.command("setpriv", "--pdeathsig=KILL", bench, "--mode=target", "--metadata_server=P2PHANDSHAKE", "--protocol=tcp",
                           f"--local_server_name={LOOPBACK}", f"--buffer_size={size}"),
        env={**os.environ, "LD_LIBRARY_PATH": str(bench.parent)}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        said = []
        while not (found := re.search(r"listening on (127\.0\.0\.1:\d+)", said[-1] if said else "")):
            said.append(target.stdout.readline())
            assert said[-1], said
        threading.Thread(target=target.stdout.read, daemon=True).start()
        with Local(agent, None, size, noise(size, 5)) as local:
            until(lambda: imported(local, found[1]), "the benchmark's buffer")
            base = local.remote.length - size
            local.write([(at, base + at, 65536) for at in range(0, size, 65536)]).result(LIMIT)
            want = digest(local.view)
            local.view[:] = bytes(size)
            local.read([(0, base, size)]).result(LIMIT)
            assert digest(local.view) == want
    finally:
        target.kill()
        target.wait()


def imported(local, endpoint):
    with contextlib.suppress(errors.NotFound, errors.PeerUnreachable):
        local.remote = local.client.import_token(f"mooncake://{endpoint}")
    return local.remote
