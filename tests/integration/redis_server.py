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
        with socket.socket(socket.AF_UNIX) as s:
            s.settimeout(30)
            s.connect(str(self.directory / "s"))
            with s.makefile("rwb") as f:
                if self.password:
                    _ask(f, "AUTH", self.password)
                return _ask(f, *words)

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
