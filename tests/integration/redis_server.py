# SPDX-License-Identifier: Apache-2.0
"""Debian's redis-server for tests of the store's directory: on a port of a host, with its files in a folder of its own."""

import contextlib
import hashlib
import shutil
import signal
import socket
import subprocess

import pytest
from harness import PORTS, until

PROGRAM = shutil.which("redis-server")


class Error(Exception):
    """The server has answered a command with an error."""


def name_of(key, space="kv", prefix="dray"):
    """The key under which agents enter an object."""
    return f"{prefix}:{hashlib.sha256(space.encode() + bytes(1) + key).hexdigest()[:40]}"


class Redis:
    """A server. options: of its command line, without dashes. tls: arguments that make its port one with TLS."""

    def __init__(self, lab, host=0, password="", tls=(), options=()):
        if not PROGRAM:
            pytest.skip("redis-server is not installed: make deps")
        self.host, self.password, self.tls = lab.hosts[host], password, list(tls)
        self.directory = lab.directory("redis")
        self.port = next(PORTS)
        self.options = [*options, *(["requirepass", password] if password else [])]
        self.process = None
        self.start()

    @property
    def url(self):
        return f"{'rediss' if self.tls else 'redis'}://127.0.0.1:{self.port}"

    def start(self):
        """Starts it without data, and waits until it answers."""
        ports = ["port", "0", "tls-port", self.port, *self.tls] if self.tls else ["port", self.port]
        words = ["bind", "127.0.0.1", "dir", self.directory, "save", "", "appendonly", "no", "unixsocket", self.directory / "s",
                 "logfile", self.directory / "log", *ports, *self.options]
        argv, value = [PROGRAM], False
        for word in map(str, words):
            argv.append(word if value else f"--{word}")
            value = not value
        self.process = subprocess.Popen(self.host.command("setpriv", "--pdeathsig=KILL", *argv), stdin=subprocess.DEVNULL,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until(self._answers, "an answer of redis-server")
        return self

    def _answers(self):
        assert self.process.poll() is None, (self.directory / "log").read_text()
        with contextlib.suppress(OSError):
            return self.command("PING") == "PONG"

    def command(self, *words):
        """Sends a command by the Unix socket, and returns its answer."""
        return self.commands(words)[0]

    def commands(self, *commands):
        """The same for several commands of one connection."""
        with socket.socket(socket.AF_UNIX) as s:
            s.settimeout(30)
            s.connect(str(self.directory / "s"))
            with s.makefile("rwb") as f:
                if self.password:
                    _ask(f, "AUTH", self.password)
                return [_ask(f, *words) for words in commands]

    def owners(self, key, space="kv", prefix="dray"):
        """The agents that are entered for an object."""
        return sorted(self.command("ZRANGE", name_of(key, space, prefix), "0", "-1"))

    def signal(self, number):
        self.process.send_signal(number)

    def kill(self):
        if self.process and self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
        if self.process:
            self.process.wait()

    def restart(self):
        self.kill()
        return self.start()


def _ask(f, *words):
    words = [w if isinstance(w, bytes) else str(w).encode() for w in words]
    f.write(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in words))
    f.flush()
    return _answer(f)


def _answer(f):
    line = f.readline()
    if not line:
        raise ConnectionError("the server has closed the connection")
    kind, rest = line[:1], line[1:].strip()
    if kind == b"-":
        raise Error(rest.decode())
    if kind == b"+":
        return rest.decode()
    if kind == b":":
        return int(rest)
    if kind == b"$":
        return None if rest == b"-1" else f.read(int(rest) + 2)[:-2].decode()
    assert kind == b"*", line
    return [_answer(f) for _ in range(int(rest))]


class Cluster:
    """Primaries that share the slots, and a replica of the first one if `replica`."""

    def __init__(self, lab, primaries=3, replica=False, **how):
        options = ["cluster-enabled", "yes", "cluster-node-timeout", "1000", "cluster-require-full-coverage", "no", "repl-diskless-sync-delay", "0"]
        # the port of a node's bus is its port plus 10000 otherwise, which may be another agent's
        buses = [next(PORTS) for _ in range(primaries + replica)]
        self.nodes = [Redis(lab, options=[*options, "cluster-port", bus], **how) for bus in buses]
        self.primaries = self.nodes[:primaries]
        for i, node in enumerate(self.primaries):
            node.command("CLUSTER", "ADDSLOTSRANGE", 16384 * i // primaries, 16384 * (i + 1) // primaries - 1)
            node.command("CLUSTER", "SET-CONFIG-EPOCH", i + 1)
        first = self.nodes[0]
        for node, bus in zip(self.nodes[1:], buses[1:]):
            first.command("CLUSTER", "MEET", "127.0.0.1", node.port, bus)
        until(lambda: all(len(n.command("CLUSTER", "NODES").split("\n")) > len(self.nodes) for n in self.nodes), "all nodes")
        if replica:
            until(lambda: self._replicate(self.nodes[-1], first), "the replica")
            until(lambda: "master_link_status:up" in self.nodes[-1].command("INFO", "replication"), "the replica's data")
        until(lambda: all("cluster_state:ok" in n.command("CLUSTER", "INFO") and n.command("CLUSTER", "INFO").count("slots_ok:16384") for n in self.nodes), "the cluster")

    @staticmethod
    def _replicate(node, primary):
        with contextlib.suppress(Error):
            return node.command("CLUSTER", "REPLICATE", primary.command("CLUSTER", "MYID")) == "OK"

    def of(self, name):
        """The primary that has the key at first, and its slot."""
        slot = self.nodes[0].command("CLUSTER", "KEYSLOT", name)
        return self.primaries[next(i for i in range(len(self.primaries)) if slot < 16384 * (i + 1) // len(self.primaries))], slot

    def owners(self, key, **how):
        return self.of(name_of(key, **how))[0].owners(key, **how)

    def kill(self):
        for node in self.nodes:
            node.kill()


class Sentinel:
    """A sentinel that watches the service `mymaster` alone."""

    def __init__(self, lab, primary):
        self.host, self.directory, self.port = lab.hosts[0], lab.directory("sentinel"), next(PORTS)
        file = self.directory / "conf"
        file.write_text(f"port {self.port}\nbind 127.0.0.1\ndir {self.directory}\nlogfile {self.directory}/log\nunixsocket {self.directory}/s\n"
                        f"sentinel monitor mymaster 127.0.0.1 {primary.port} 1\nsentinel down-after-milliseconds mymaster 1000\n"
                        "sentinel failover-timeout mymaster 2000\n")
        self.process = subprocess.Popen(self.host.command("setpriv", "--pdeathsig=KILL", PROGRAM, file, "--sentinel"), stdin=subprocess.DEVNULL,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until(self._answers, "an answer of the sentinel")

    def _answers(self):
        assert self.process.poll() is None, (self.directory / "log").read_text()
        with contextlib.suppress(OSError):
            return self.command("PING") == "PONG"

    def command(self, *words):
        with self.host.connect(f"127.0.0.1:{self.port}") as s, s.makefile("rwb") as f:
            return _ask(f, *words)

    def kill(self):
        self.process.kill()
        self.process.wait()
