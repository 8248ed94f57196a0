# SPDX-License-Identifier: Apache-2.0
"""The agent as a target of Mooncake's engines: its listeners, an owner with buffers, bare connections, and Mooncake itself."""

import contextlib
import ctypes
import functools
import hashlib
import json
import os
import pathlib
import select
import socket
import struct
import subprocess
import tempfile
import threading

import dray
import pytest
from harness import LIMIT, MIB, PORTS, ROOT, counters, parse_segment, until

MAX_FRAME = 1 << 20
OK, REFUSED = (0x4D435456 << 32 | code for code in (0, 1))
LOOPBACK = "127.0.0.1"
LAST_LINES = 20  # of a program that has ended
READ, WRITE, V2 = 0, 1, 0x80
METADATA, NOTIFY, PROBE = 1, 2, 3
# of an engine over RDMA; its GID is of the loopback
DEVICE = {"name": "m0", "lid": 0, "gid": "00:00:00:00:00:00:00:00:00:00:ff:ff:7f:00:00:01"}


def settings(host, allow="127.0.0.0/8", **more):
    return {"mooncake.listen": f"{host}:0", "mooncake.allow": allow, **{k.replace("__", "."): v for k, v in more.items()}}


def segment(agent):
    """(name of the agent's Mooncake segment, port of its data connections)"""
    words = [line for line in agent.text().splitlines() if "may use this segment" in line][-1].split()
    fields = dict(word.split("=", 1) for word in words if "=" in word)
    return fields["segment"], int(fields["data_port"])


def assert_refused(new_agent, settings, error, key="mooncake."):
    """An agent with these settings does not start, and says which of them is wrong, and why."""
    agent = new_agent(settings=settings, start=False)
    agent.start(ready=False)
    assert agent.wait() != 0
    assert error in agent.text() and key in agent.text()
    agent.kill()
    agent.process = None


def counter(agent, name):
    return counters(agent)[f"dray_mooncake_{name}"]


def digest(content):
    """Of bytes; what differs is too long to show."""
    return hashlib.sha256(content).hexdigest()


class Client:
    """A client with a region, whose memory begins with `fill`."""

    def __init__(self, agent, size, fill=None):
        self.client = agent.client()
        self.memory = dray.Memory(size)
        self.view = self.memory.view
        if fill is not None:
            self.view[:len(fill)] = fill
        self.region = self.client.region(self.memory)

    def close(self):
        self.view = None
        self.client.close()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()


class Owner(Client):
    """Its memory is a buffer for Mooncake's engines, at its own address."""

    def __init__(self, agent, size, fill=None, **export):
        super().__init__(agent, size, fill)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory.map))
        self.token = self.region.export(mooncake=self.address, **export)


class Local(Client):
    """It has a remote of a segment of Mooncake."""

    def __init__(self, agent, endpoint, size, fill=None, **how):
        super().__init__(agent, size, fill)
        self.remote = self.client.import_token(f"mooncake://{endpoint}", **how) if endpoint else None

    def write(self, ops, **how):
        return self.client.write(self.region, self.remote, ops, **how)

    def read(self, ops, **how):
        return self.client.read(self.region, self.remote, ops, **how)


# --- bare connections -----------------------------------------------------------------------------

def exactly(sock, n):
    """n bytes, or fewer before the end of the connection."""
    got = bytearray()
    with contextlib.suppress(ConnectionResetError):
        while len(got) < n and (part := sock.recv(min(n - len(got), MIB))):
            got += part
    return bytes(got)


def ended(sock):
    """The agent closes the connection, without another byte."""
    try:
        return sock.recv(1) == b""
    except ConnectionResetError:
        return True


def frame(kind, body=b"{}"):
    return struct.pack("<QB", len(body) + 1, kind) + body


def connect(agent, endpoint, bind=None):
    """bind: address of this end."""
    if not bind:
        return agent.host.connect(endpoint)
    sock = agent.host.socket()
    sock.bind((bind, 0))
    sock.connect(parse_segment(endpoint))
    return sock


def ask(agent, kind=METADATA, body=b"{}", bind=None):
    """The answer to a handshake."""
    return ask_at(agent, segment(agent)[0], kind, body, bind)


def ask_at(agent, endpoint, kind=METADATA, body=b"{}", bind=None):
    """The same of another port on the agent's host."""
    with connect(agent, endpoint, bind) as sock:
        sock.sendall(frame(kind, body))
        n, got = struct.unpack("<QB", exactly(sock, 9))
        assert got == kind and 1 < n <= MAX_FRAME
        answer = exactly(sock, n - 1)
        assert len(answer) == n - 1 and ended(sock)
    return json.loads(answer)


def head(op, address, length, padding=b"\0" * 7):
    return struct.pack("<QQB", length, address, op) + padding


def data(agent, bind=None):
    """A data connection."""
    name, port = segment(agent)
    return connect(agent, f"{name.rsplit(':', 1)[0]}:{port}", bind)


def refused(agent, endpoint, bind=None, limit=LIMIT):
    """A connection to the endpoint is closed before a byte of it is read, within seconds."""
    with agent.host.socket() as sock:
        if bind:
            sock.bind((bind, 0))
        try:
            sock.connect(parse_segment(endpoint))
        except ConnectionResetError:
            return True
        sock.settimeout(limit)
        try:
            return ended(sock)
        except TimeoutError:
            return False


def status(sock):
    return struct.unpack("<Q", exactly(sock, 8))[0]


def read(sock, address, n, version=2):
    sock.sendall(head(READ | (V2 if version == 2 else 0), address, n))
    if version == 2:
        assert status(sock) == OK
    return exactly(sock, n)


def write(sock, address, content, version=2):
    sock.sendall(head(WRITE | (V2 if version == 2 else 0), address, len(content)) + content)
    if version == 2:
        assert status(sock) == OK


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
        self.serve, self.shake = self.serve_request, self.handshake
        self.sockets = []
        for of, run in (self.listener, lambda sock: self.shake(sock)), (self.data, self.connection):
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
        assert kind == METADATA and json.loads(exactly(sock, n - 1)) == {}
        self.asked += 1
        answer = self.descriptor if self.descriptor is not None else frame(METADATA, json.dumps(self.describe()).encode() + b"\n")
        sock.sendall(answer)
        sock.shutdown(socket.SHUT_WR)
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
        assert bool(op & V2) == (self.version > 1)
        if not any(a <= address and address + n <= a + length for a, length in self.buffers):
            if op & V2:
                sock.sendall(struct.pack("<Q", REFUSED))
            raise OSError
        status = struct.pack("<Q", OK) if op & V2 else b""
        if op & 0x7F == WRITE:
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


# --- Mooncake -------------------------------------------------------------------------------------

@functools.cache
def made(version):
    """How scripts/mooncake-env ends. version: DRAY_MOONCAKE_VERSION, which it reads itself."""
    how = [] if "DRAY_LONG" in os.environ else ["--made"]
    return subprocess.run([ROOT / "scripts/mooncake-env", *how], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)


def mooncake_python():
    """The interpreter of an environment with Mooncake. `make check` downloads none, so it skips the test if there is none yet."""
    done = made(os.environ.get("DRAY_MOONCAKE_VERSION"))
    if done.returncode == 3:
        pytest.skip("Mooncake is not in this machine's package registry" if "DRAY_LONG" in os.environ else
                    "Mooncake is not installed: scripts/mooncake-env installs it")
    return pathlib.Path(done.stdout.strip())


def mooncake_environment(**more):
    """Of a process of that interpreter, which finds the bytecode that was installed with its packages."""
    return {k: v for k, v in {**os.environ, **more}.items() if k != "PYTHONPYCACHEPREFIX"}


class Master:
    """Mooncake's own master on a host, which listens at `address` for clients and has its pages at `url`. options: further arguments."""

    def __init__(self, host, *options):
        folder = next(mooncake_python().parents[1].glob("lib/python*/site-packages/mooncake"))
        rpc, pages = (next(PORTS) for _ in range(2))
        self.host, self.address, self.url = host, f"{LOOPBACK}:{rpc}", f"http://{LOOPBACK}:{pages}"
        self.process = subprocess.Popen(
            host.command("setpriv", "--pdeathsig=KILL", folder / "mooncake_master", f"--rpc_port={rpc}", f"--metrics_port={pages}", *options),
            env={**os.environ, "LD_LIBRARY_PATH": str(folder)}, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until(lambda: listens(host, self.address, self.process), "the master to listen")

    def kill(self):
        self.process.kill()
        self.process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()


def listens(host, address, process):
    """Somebody listens at HOST:PORT there; it is this process, which lives."""
    assert process.poll() is None, f"it has ended with {process.returncode}"
    with contextlib.suppress(OSError), host.connect(address):
        return True


class EngineProgram:
    """A program with an engine, `process`, which is told and answers by lines. What it writes to standard error goes to a file."""

    def start(self, agent, *command, env):
        self.errors = tempfile.TemporaryFile("a+", errors="replace")  # appends, while last_lines() reads
        self.process = subprocess.Popen(agent.host.command("setpriv", "--pdeathsig=KILL", *command), text=True, env=env,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors)

    def said(self, limit=0):
        return bool(select.select([self.process.stdout], [], [], limit)[0])

    def line(self, limit=2 * LIMIT):
        """The next line of its standard output. Its last lines on standard error are shown if it says nothing, or has ended."""
        line = self.process.stdout.readline() if self.said(limit) else None
        if not line:
            what = f"has said nothing in {limit} s" if line is None else f"ended with {self.process.wait()}"
            raise AssertionError(f"the program {what}; its last lines:\n{self.last_lines()}")
        return line

    def last_lines(self):
        """Of its standard error."""
        self.errors.seek(0)
        return "".join(self.errors.readlines()[-LAST_LINES:])

    def close(self):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()
        self.errors.close()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()


class Engine(EngineProgram):
    """Mooncake's own engine on the agent's host, with `size` bytes of memory. name: HOST, or with a metadata server any. how: protocol and
    device, if not TCP."""

    def __init__(self, agent, size, name=LOOPBACK, metadata="P2PHANDSHAKE", how=(), **env):
        self.start(agent, mooncake_python(), ROOT / "tests/mooncake/wire_initiator.py", name, str(size), metadata, *how, env=mooncake_environment(**env))
        assert self.hear() == "ready"
        port, self.base = self("where")
        self.endpoint = f"{name}:{port}" if metadata == "P2PHANDSHAKE" else name

    def tell(self, name, *args):
        self.process.stdin.write(json.dumps([name, *args]) + "\n")
        self.process.stdin.flush()

    def hear(self, limit=2 * LIMIT):
        return json.loads(self.line(limit))

    def __call__(self, name, *args):
        self.tell(name, *args)
        return self.hear()


class Initiator(Engine):
    """An engine whose target is the agent's segment."""

    def __init__(self, agent, size, host=None, how=(), **env):
        self.target = segment(agent)[0]
        super().__init__(agent, size, host or agent.host.v4, how=how, **env)


def connections(agent, n):
    until(lambda: counter(agent, "connections") == n, f"{n} data connections")


__all__ = ["DEVICE", "LIMIT", "METADATA", "MIB", "NOTIFY", "OK", "PROBE", "READ", "REFUSED", "V2", "WRITE", "Engine", "Fake", "Initiator", "Local", "Owner", "ask",
           "connections", "counter", "data", "digest", "ended", "exactly", "frame", "head", "mooncake_environment", "mooncake_python", "parse_segment", "read", "segment",
           "settings", "socket", "status", "until", "write"]
