# SPDX-License-Identifier: Apache-2.0
"""The agent as the initiator towards engines that have Mooncake linked in, over TCP: mooncake://HOST:PORT as a remote."""

import contextlib
import ctypes
import hashlib
import json
import os
import random
import re
import signal
import socket
import struct
import subprocess
import threading

import dray
import mooncake_rig as rig
import pytest
from dray import errors
from harness import LIMIT, MIB, ROOT, noise, until
from mooncake_rig import Initiator, Owner, counter, exactly, mooncake_python, segment

LOOPBACK = "127.0.0.1"
MOONCAKE = 5  # of DRAY_TRANSPORT_*


@pytest.fixture
def importer(new_agent):
    """An agent that may import; keyword arguments are settings."""
    def make(allow="127.0.0.0/8", name="importer", **more):
        return new_agent(name, settings={"mooncake.import": "true", "mooncake.allow": allow, **{k.replace("__", "."): v for k, v in more.items()}})

    return make


def digest(content):
    """Of bytes; what differs is too long to show."""
    return hashlib.sha256(content).hexdigest()


class Local:
    """A client with a region, and a remote of a segment of Mooncake."""

    def __init__(self, agent, endpoint, size, fill=None, **how):
        self.client = agent.client()
        self.memory = dray.Memory(size)
        self.view = self.memory.view
        if fill is not None:
            self.view[:len(fill)] = fill
        self.region = self.client.region(self.memory)
        self.remote = self.client.import_token(f"mooncake://{endpoint}", **how) if endpoint else None

    def write(self, ops, **how):
        return self.client.write(self.region, self.remote, ops, **how)

    def read(self, ops, **how):
        return self.client.read(self.region, self.remote, ops, **how)

    def close(self):
        self.view = None
        self.client.close()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()


# --- an engine of bare sockets --------------------------------------------------------------------

class Fake:
    """An engine that behaves as a test says. version 1: it closes each connection after one request."""

    def __init__(self, agent, size=MIB, version=2, buffers=None, descriptor=None):
        self.base = 1 << 40
        self.memory = bytearray(size)
        self.version = version
        self.requests, self.asked = [], 0
        self.listener, self.data = agent.host.socket(), agent.host.socket()
        for sock in self.listener, self.data:
            sock.settimeout(None)
            sock.bind((LOOPBACK, 0))
            sock.listen(64)
        self.endpoint = f"{LOOPBACK}:{self.listener.getsockname()[1]}"
        self.buffers = [(self.base, size)] if buffers is None else buffers
        self.descriptor = descriptor
        self.serve = self.serve_request
        self.sockets = []
        for of, run in (self.listener, self.handshake), (self.data, self.connection):
            threading.Thread(target=self.accept, args=(of, run), daemon=True).start()

    def describe(self):
        shown = {"name": self.endpoint, "protocol": "tcp", "tcp_data_port": self.data.getsockname()[1],
                 "buffers": [{"name": self.endpoint, "addr": a, "length": n} for a, n in self.buffers]}
        return shown if self.version == 1 else {**shown, "tcp_proto_version": self.version}

    def accept(self, listener, run):
        with contextlib.suppress(OSError):
            while True:
                sock, _ = listener.accept()
                self.sockets.append(sock)
                threading.Thread(target=self.run, args=(run, sock), daemon=True).start()

    @staticmethod
    def run(run, sock):
        with contextlib.suppress(OSError, struct.error), sock:
            run(sock)

    def handshake(self, sock):
        n, kind = struct.unpack("<QB", exactly(sock, 9))
        assert kind == rig.METADATA and json.loads(exactly(sock, n - 1)) == {}
        self.asked += 1
        answer = self.descriptor if self.descriptor is not None else rig.frame(rig.METADATA, json.dumps(self.describe()).encode() + b"\n")
        sock.sendall(answer)
        sock.recv(1)

    def connection(self, sock):
        while len(head := exactly(sock, 24)) == 24:
            n, address, op = struct.unpack("<QQB7x", head)
            self.requests.append((op, address, n))
            self.serve(sock, op, address, n)
            if self.version == 1:
                return

    def serve_request(self, sock, op, address, n):
        at = address - self.base
        assert bool(op & rig.V2) == (self.version > 1)
        if not any(a <= address and address + n <= a + length for a, length in self.buffers):
            if op & rig.V2:
                sock.sendall(struct.pack("<Q", rig.REFUSED))
            raise OSError
        status = struct.pack("<Q", rig.OK) if op & rig.V2 else b""
        if op & 0x7F == rig.WRITE:
            content = exactly(sock, n)
            assert len(content) == n
            self.memory[at:at + n] = content
            sock.sendall(status)
        else:
            sock.sendall(status + self.memory[at:at + n])

    def close(self):
        for sock in [self.listener, self.data, *self.sockets]:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()


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


# --- Mooncake -------------------------------------------------------------------------------------

class Engine(Initiator):
    """Mooncake's own engine on the agent's host as target, with `size` bytes of memory."""

    def __init__(self, agent, size, **env):
        command = [mooncake_python(), ROOT / "tests/mooncake/wire_initiator.py", LOOPBACK, str(size)]
        self.process = subprocess.Popen(
            agent.host.command("setpriv", "--pdeathsig=KILL", *command), text=True, env={**os.environ, **env},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert self.hear() == "ready"
        port, self.base = self("where")
        self.endpoint = f"{LOOPBACK}:{port}"


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
