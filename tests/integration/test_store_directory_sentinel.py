# SPDX-License-Identifier: Apache-2.0
"""The directory of stores behind sentinels: they name the server, and another one when it is lost."""

import contextlib
import re
import socket
import threading

import pytest
from dray import Status
from harness import PORTS, until
from redis_server import Redis, Sentinel
from test_store import User
from test_store_directory import KNOWN, agents, entered, finds, state  # noqa: F401


@pytest.fixture
def service(lab):
    """A primary, its replica, and a sentinel that knows both."""
    primary = Redis(lab)
    primary.command(*KNOWN)
    replica = Redis(lab, options=["replicaof", f"127.0.0.1 {primary.port}", "repl-diskless-sync-delay", "0"])
    until(lambda: "master_link_status:up" in replica.command("INFO", "replication"), "the replica's data")
    sentinel = Sentinel(lab, primary)
    until(lambda: len(sentinel.command("SENTINEL", "REPLICAS", "mymaster")) == 1, "the replica at the sentinel")
    yield primary, replica, sentinel
    for server in (sentinel, primary, replica):
        server.kill()


def is_primary(server):
    # a sentinel disconnects all clients of the server that it makes the primary
    with contextlib.suppress(ConnectionError):
        return "role:master" in server.command("INFO", "replication")


def test_primary_is_lost(service, agents):  # noqa: F811
    """The first sentinel does not answer. The second one names the primary, and later its replica."""
    primary, replica, sentinel = service
    a, b = agents(f"redis-sentinel://127.0.0.1:{next(PORTS)},127.0.0.1:{sentinel.port}#mymaster", "a", "b")
    with User(a, space="kv") as there, User(b, space="kv") as here:
        assert there.put(b"before", b"value") == Status.OK
        entered(primary, b"before", a)
        finds(here, before=b"value")
        primary.kill()
        state(a, "down")
        finds(here, before=b"value")
        until(lambda: is_primary(replica), "the new primary")
        state(a, "ok")
        state(b, "ok")
        assert f"127.0.0.1:{replica.port}" in a.text()
        assert there.put(b"after", b"value") == Status.OK
        entered(replica, b"after", a)
        finds(here, after=b"value")


@pytest.mark.parametrize("service_name, words", [("other", "does not know the service"), ("mymaster", "")])
def test_names(service, agents, service_name, words):  # noqa: F811
    primary, _, sentinel = service
    a, b = agents(f"valkey-sentinel://127.0.0.1:{sentinel.port}#{service_name}", "a", "b", wait="" if words else "ok")
    with User(a, space="kv") as there, User(b, space="kv") as here:
        assert there.put(b"key", b"value") == Status.OK
        if words:
            until(lambda: words in a.text(), "the reason")
            state(a, "down")
        else:
            entered(primary, b"key", a)
        finds(here, key=b"value")


def test_no_sentinel(service, agents):  # noqa: F811
    """A server that is none answers PING, but names nobody."""
    primary, _, _ = service
    a, b = agents(f"redis-sentinel://127.0.0.1:{primary.port}#mymaster", "a", "b", wait="")
    with User(a, space="kv") as there, User(b, space="kv") as here:
        until(lambda: "the sentinel 127.0.0.1" in a.text(), "the reason")
        assert there.put(b"key", b"value") == Status.OK
        finds(here, key=b"value")


@pytest.mark.parametrize("answer", [b"*-1\r\n", b"-ERR no such thing\r\n", b":1\r\n", b"*2\r\n$9\r\n127.0.0.1\r\n$1\r\n1\r\n"],
                         ids=["unknown", "error", "nonsense", "former"])
def test_sentinel_that_is_wrong(lab, service, agents, answer):  # noqa: F811
    """The next one is asked after one that answers, but names no primary, or one that is not there any more."""
    primary, _, sentinel = service
    with lab.hosts[0].socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()

        def serve():
            with contextlib.suppress(OSError):
                while True:
                    with listener.accept()[0] as s:
                        while data := s.recv(1 << 20):
                            s.sendall(b"+PONG\r\n" if b"PING" in data else answer)

        threading.Thread(target=serve, daemon=True).start()
        a, = agents(f"redis-sentinel://127.0.0.1:{listener.getsockname()[1]},127.0.0.1:{sentinel.port}#mymaster", "a")
        with User(a, space="kv") as user:
            assert user.put(b"key", b"value") == Status.OK
            entered(primary, b"key", a)
        a.stop()
        listener.shutdown(socket.SHUT_RDWR)


def test_a_primary_that_redirects(lab, agents):  # noqa: F811
    """It says MOVED, as a server of a cluster does. The agent refuses that, and takes no map of a cluster, also when another primary follows."""
    words = [[], [], []]  # that the sentinel and both primaries have got
    named = [1]
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(lab.hosts[0].socket()) for _ in words]
        for server in servers:
            server.bind(("127.0.0.1", 0))
            server.listen()
            stack.callback(server.shutdown, socket.SHUT_RDWR)
        ports = [server.getsockname()[1] for server in servers]
        talks = [[], [], []]

        def answer(i, word):
            name = b"%d" % ports[named[0]]
            return {b"PING": b"+PONG\r\n", b"SENTINEL": b"*2\r\n$9\r\n127.0.0.1\r\n$%d\r\n%s\r\n" % (len(name), name),
                    b"TIME": b"*2\r\n$10\r\n1795000000\r\n$1\r\n0\r\n"}.get(word, b"-MOVED 0 127.0.0.1:%d\r\n" % ports[i])

        def talk(i, s):
            with contextlib.suppress(OSError), s:
                while data := s.recv(1 << 20):
                    for word in re.findall(rb"\*\d+\r\n\$\d+\r\n(\w+)\r\n", data):
                        words[i].append(word)
                        s.sendall(answer(i, word))

        def serve(i):
            with contextlib.suppress(OSError):
                while True:
                    talks[i].append(servers[i].accept()[0])
                    threading.Thread(target=talk, args=(i, talks[i][-1]), daemon=True).start()

        for i in range(3):
            threading.Thread(target=serve, args=(i,), daemon=True).start()
        a, = agents(f"redis-sentinel://127.0.0.1:{ports[0]}#mymaster", "a", wait="")
        with User(a, space="kv") as user:
            for i in (1, 2):
                assert user.put(b"key %d" % i, b"value") == Status.OK
                until(lambda i=i: b"ZADD" in words[i], "an entry")
                until(lambda: "it is part of a cluster" in a.text(), "the reason")
                named[0] = 2
                for s in talks[1]:
                    with contextlib.suppress(OSError):
                        s.shutdown(socket.SHUT_RDWR)
        assert b"CLUSTER" not in words[1] + words[2]
