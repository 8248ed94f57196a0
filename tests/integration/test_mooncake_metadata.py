# SPDX-License-Identifier: Apache-2.0
"""The metadata server over HTTP of engines that have Mooncake linked in: the agent keeps its segment there, and finds others by name."""

import contextlib
import http.client
import http.server
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.parse
from types import SimpleNamespace

import mooncake_rig as rig
import pytest
from dray import errors
from dray.mooncake import _metadata
from dray.mooncake._metadata import Metadata
from harness import LIMIT, MIB, PORTS, ROOT, noise, until
from mooncake_rig import DEVICE, LOOPBACK, Engine, Fake, Local, Owner, counter, digest, mooncake_python, segment


def quoted(key):
    return urllib.parse.quote(key, safe="")


class Keys:
    """The keys of a metadata server, as a client of it sees them. close(): ends the server."""

    def __init__(self, host, port, close=lambda: None):
        self.host, self.port, self.close = host, port, close
        self.url = f"http://{LOOPBACK}:{port}/metadata"

    def ask(self, method, key, value=None):
        call = http.client.HTTPConnection(LOOPBACK, self.port)
        call.sock = self.host.connect(f"{LOOPBACK}:{self.port}")
        with contextlib.closing(call):
            call.request(method, f"/metadata?key={quoted(key)}", value)
            answer = call.getresponse()
            return answer.status, answer.read()

    def __getitem__(self, key):
        """The value of a key; None: there is none."""
        status, value = self.ask("GET", key)
        assert status in (200, 404), (status, value)
        return json.loads(value) if status == 200 else None

    def __setitem__(self, key, value):
        value = value if isinstance(value, bytes) else json.dumps(value).encode()
        assert self.ask("PUT", key, value)[0] == 200

    def __delitem__(self, key):
        assert self.ask("DELETE", key)[0] == 200


class Server(Keys):
    """A metadata server in this process, which does what the one in Python does, unless a test says otherwise."""

    def __init__(self, host, port=0):
        self.values, self.log = {}, []
        self.answer = self.usual
        listener = host.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((LOOPBACK, port))
        listener.listen(64)
        listener.settimeout(None)
        self.sockets, self.listener = [], listener
        super().__init__(host, listener.getsockname()[1], self.end)
        threading.Thread(target=self.accept, daemon=True).start()

    def usual(self, method, key, value):
        if method == "GET":
            return (200, self.values[key]) if key in self.values else (404, b"metadata not found")
        if method == "DELETE":
            return (200, b"metadata deleted") if self.values.pop(key, None) is not None else (404, b"metadata not found")
        if "rpc_meta" in key and key in self.values:
            return 400, b"Duplicate rpc_meta key not allowed"
        self.values[key] = value
        return 200, b"metadata updated"

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                sock, where = self.listener.accept()
                self.sockets.append(sock)
                threading.Thread(target=self.serve, args=(sock, where), daemon=True).start()

    def serve(self, sock, where):
        server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def handle_any(self):
                key = dict(urllib.parse.parse_qsl(urllib.parse.urlparse(self.path).query))["key"]
                value = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                server.log.append((self.command, key))
                answer = server.answer(self.command, key, value)
                if isinstance(answer, bytes):
                    self.wfile.write(answer)
                elif not isinstance(answer, tuple):
                    for part in answer:
                        self.wfile.write(part)
                else:
                    self.send_response(answer[0])
                    self.send_header("Content-Length", str(len(answer[1])))
                    self.end_headers()
                    self.wfile.write(answer[1])

            do_GET = do_PUT = do_DELETE = handle_any

            def log_message(self, *args):
                pass

        with contextlib.suppress(OSError), sock:
            Handler(sock, where, None)

    def end(self):
        for sock in [self.listener, *self.sockets]:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()


def real(host, kind):
    """A metadata server of Mooncake 0.3.13: the program in Python, or the one within a master."""
    port = next(PORTS)
    if kind == "master":
        master = rig.Master(host, "--enable_http_metadata_server=true", f"--http_metadata_server_port={port}")
        process, end = master.process, master.kill
    else:
        program = mooncake_python().parent / "mooncake_http_metadata_server"
        process = subprocess.Popen(host.command("setpriv", "--pdeathsig=KILL", program, f"--port={port}", f"--host={LOOPBACK}"),
                                   env=rig.mooncake_environment(), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

        def end():
            process.kill()
            process.wait()

    until(lambda: rig.listens(host, f"{LOOPBACK}:{port}", process), "the metadata server")
    return Keys(host, port, end)


@pytest.fixture
def server(lab):
    """Makes metadata servers."""
    def make(kind="fake", port=0):
        made = Server(lab.hosts[0], port) if kind == "fake" else real(lab.hosts[0], kind)
        servers.append(made)
        return made

    servers = []
    yield make
    for made in servers:
        made.close()


@pytest.fixture
def member(server, new_agent):
    """An agent with a segment that may also import; keyword arguments are settings. It ends before the servers."""
    def make(url, name="member", start=True, **more):
        return new_agent(name, start=start, settings={
            **rig.settings(LOOPBACK), "mooncake.import": "true", "mooncake.metadata": url, "mooncake.interval": "200ms",
            **{k.replace("__", "."): v for k, v in more.items()}})

    return make


KINDS = pytest.mark.parametrize("kind", ["fake", "python", "master"])
REAL = pytest.mark.parametrize("kind", ["python", "master"])


def keys_of(name):
    return f"mooncake/ram/{name}", f"mooncake/rpc_meta/{name}"


def published(agent):
    until(lambda: counter(agent, "metadata_published") == 1, "the keys")


# --- the agent's own segment ----------------------------------------------------------------------

@KINDS
def test_published(member, server, kind):
    """The keys are those of an engine, follow the exports, and go with a drain and with the agent."""
    keys = server(kind)
    agent = member(keys.url)
    name, port = segment(agent)
    ram, rpc = keys_of(name)
    published(agent)
    assert keys[rpc] == {"ip_or_host_name": LOOPBACK, "rpc_port": int(name.rpartition(":")[2])}
    shown = keys[ram]
    assert shown.pop("timestamp") and shown == {"name": name, "protocol": "tcp", "tcp_data_port": port, "tcp_proto_version": 2, "buffers": []}
    assert keys.ask("GET", ram)[1][-1:] == b"}"
    with Owner(agent, MIB) as owner:
        until(lambda: keys[ram]["buffers"] == [{"addr": owner.address, "length": MIB, "name": name}], "the buffer")
        owner.region.revoke(owner.token)
        until(lambda: not keys[ram]["buffers"], "the end of the buffer")
        owner.region.export(mooncake=owner.address)
        until(lambda: keys[ram]["buffers"], "the buffer")
    until(lambda: not keys[ram]["buffers"], "the end of the buffer")
    agent.ctl("drain", "--stay")
    until(lambda: keys[ram] is None and keys[rpc] is None, "the removal")
    # a server removes a key before the agent has its answer
    until(lambda: counter(agent, "metadata_published") == 0, "the answer")
    agent.ctl("resume")
    published(agent)
    assert keys[ram]["name"] == name and keys[rpc]
    agent.stop()
    assert keys[ram] is None and keys[rpc] is None
    assert "removed from the metadata server" in agent.text()


def test_events(member, server):
    """The history has what the server has of the segment: its begin, its first and last buffer, failures with their reason, and its end."""
    keys = server()
    agent = member(keys.url)
    name = segment(agent)[0]
    told = [("absent", "empty")]

    def have(*more):
        told.extend(more)
        until(lambda: [(e["old"], e["new"]) for e in events(agent, name)] == told, f"the events {told}")

    have()
    with Owner(agent, MIB) as owner:
        have(("empty", "published"))
        owner.region.export(0, 4096, mooncake=1 << 40)
        until(lambda: len(json.loads(keys.values[keys_of(name)[0]])["buffers"]) == 2, "the second buffer")
        keys.answer = lambda *request: (500, b"no")
        have(("published", "failing"))
        assert "500" in events(agent, name)[-1]["reason"]
        keys.answer = keys.usual
        have(("failing", "published"))
    have(("published", "empty"))
    agent.ctl("drain", "--stay")
    have(("empty", "absent"))
    agent.ctl("resume")
    have(("absent", "empty"))
    assert all(e["reason"] for e in events(agent, name))


def events(agent, name):
    return [e for e in agent.ctl("events", "--json")["events"] if (e["kind"], e["subject"]) == ("mooncake", name)]


@KINDS
def test_left_behind(member, server, kind):
    """An agent that was killed leaves its keys. The next one with its name replaces them, though servers keep the old address."""
    keys = server(kind)
    agent = member(keys.url)
    published(agent)
    name = segment(agent)[0]
    ram, rpc = keys_of(name)
    agent.kill()
    assert keys[ram] and keys[rpc]
    del keys[rpc]
    keys[rpc] = {"ip_or_host_name": "10.9.9.9", "rpc_port": 1}
    agent.settings["mooncake.listen"] = name
    agent.start()
    published(agent)
    assert keys[rpc] == {"ip_or_host_name": LOOPBACK, "rpc_port": int(name.rpartition(":")[2])}
    assert "what an earlier engine has left" in agent.text()


def test_lost(member, server):
    """A server that has lost its keys, as after a restart, gets them again, and one that is away is waited for."""
    keys = server()
    agent = member(keys.url)
    ram, rpc = keys_of(segment(agent)[0])
    published(agent)
    with Owner(agent, MIB) as owner:
        until(lambda: keys[ram]["buffers"], "the buffer")
        keys.values.clear()
        until(lambda: keys[rpc] and keys[ram], "the keys")
        assert keys[ram]["buffers"][0]["addr"] == owner.address
        keys.close()
        until(lambda: counter(agent, "metadata_failures_total"), "a failure")
        assert counter(agent, "metadata_published") == 0
        assert "the segment is not at the metadata server" in agent.text()
        again = server(port=keys.port)
        until(lambda: again[rpc] and again[ram], "the keys")
        assert again[ram]["buffers"] and "answers again" in agent.text()


def test_lost_during_changes(member, server):
    """Exports that come and go all the time do not keep the agent from finding that the server has lost the address."""
    keys = server()
    agent = member(keys.url, mooncake__interval="2s")
    ram, rpc = keys_of(segment(agent)[0])
    published(agent)
    with Owner(agent, MIB) as owner:
        more = []

        def change():
            done = keys.log.count(("PUT", ram))
            if more:
                owner.region.revoke(more.pop())
            else:
                more.append(owner.region.export(0, 4096, mooncake=1 << 40))
            until(lambda: keys.log.count(("PUT", ram)) > done, "the change")
            time.sleep(0.05)  # nothing is left to do between the changes
            return rpc in keys.values

        change()
        keys.values.clear()
        until(change, "the address")


def test_replaced(member, server):
    """Another engine of this name is told by the log, and the keys are set again."""
    keys = server()
    agent = member(keys.url)
    ram, rpc = keys_of(segment(agent)[0])
    published(agent)
    keys[ram] = {"name": "another"}
    until(lambda: (keys[ram] or {}).get("tcp_data_port"), "the descriptor")
    assert "another engine has replaced this segment" in agent.text() and "mooncake.advertise" in agent.text()


def test_many_changes(member, server):
    """Whatever is exported and revoked meanwhile, what the server has at last is what there is."""
    keys = server()
    agent = member(keys.url)
    ram, _ = keys_of(segment(agent)[0])
    rng = random.Random(1)
    with Owner(agent, 256 * 4096) as owner:
        owner.region.revoke(owner.token)
        live = {}
        for _ in range(300):
            k = rng.randrange(256)
            if k in live:
                owner.region.revoke(live.pop(k))
            else:
                live[k] = owner.region.export(k * 4096, 4096, mooncake=owner.address + k * 4096)
        want = sorted(owner.address + k * 4096 for k in live)
        until(lambda: sorted(b["addr"] for b in (keys[ram] or {"buffers": ()})["buffers"]) == want, "the buffers")
        assert len([1 for method, key in keys.log if (method, key) == ("PUT", ram)]) < 300


@pytest.mark.parametrize("answer", [(500, b"no"), (200, b"no JSON"), (302, b""), (400, b"\xff\x1b[31m"), b"SSH-2.0-x\r\n", b""], ids=range(6))
def test_wrong_server(member, server, answer):
    """What answers wrongly is told with its status, and tried again. The agent works without it, and ends."""
    keys = server()
    keys.answer = lambda method, key, value: answer
    agent = member(keys.url)
    if answer == (200, b"no JSON"):  # each value is replaced
        until(lambda: ("PUT", keys_of(segment(agent)[0])[0]) in keys.log, "a descriptor")
    else:
        until(lambda: counter(agent, "metadata_failures_total") >= 2, "failures")
        assert "not at the metadata server" in agent.text() and "\x1b" not in agent.text()
    assert rig.ask(agent)["name"] == segment(agent)[0]
    keys.answer = keys.usual
    published(agent)


def test_slow_server(member, server):
    """A server that does not answer holds up neither the agent nor its end."""
    keys = server()
    release = threading.Event()

    def wait(*request):
        release.wait(2 * LIMIT)
        return b""

    keys.answer = wait
    agent = member(keys.url, mooncake__timeout="300ms")
    with Owner(agent, MIB) as owner:
        assert rig.ask(agent)["buffers"][0]["addr"] == owner.address
    until(lambda: counter(agent, "metadata_failures_total") >= 2, "failures")
    assert "no response to the request within 300ms" in agent.text()
    keys.answer = keys.usual
    published(agent)
    keys.answer = wait
    agent.stop()
    assert "did not remove this segment in time" in agent.text() or "still at the metadata server" in agent.text()
    release.set()


def test_sigterm_while_the_agent_ends(member, server):
    """A first SIGTERM does not cut off the end of an agent that was drained by a request."""
    keys = server()
    agent = member(keys.url)
    published(agent)
    removing, release = threading.Event(), threading.Event()

    def wait(*request):
        removing.set()
        release.wait(2 * LIMIT)
        return keys.usual(*request)

    keys.answer = wait
    agent.ctl("drain")
    assert removing.wait(LIMIT)
    agent.signal(signal.SIGTERM)
    release.set()
    assert agent.wait() == 0
    assert "stopping at once" not in agent.text()


def test_cluster(member, server):
    """The cluster's id is part of the keys."""
    keys = server()
    agent = member(keys.url, mooncake__metadata_cluster="blue/1")
    published(agent)
    name = segment(agent)[0]
    assert sorted(keys.values) == [f"mooncake/blue/1/ram/{name}", f"mooncake/blue/1/rpc_meta/{name}"]
    with Owner(agent, 4096, b"hello") as owner:
        until(lambda: keys[f"mooncake/blue/1/ram/{name}"]["buffers"], "the buffer")
        with Local(agent, name, 4096) as local:
            local.read([(0, owner.address, 5)]).result(LIMIT)
            assert local.view[:5] == b"hello"


@pytest.mark.parametrize("settings, error", [
    ({"mooncake.metadata": "https://127.0.0.1/metadata"}, "TLS"),
    ({"mooncake.metadata": "127.0.0.1:8080"}, "write http://"),
    ({"mooncake.metadata": "etcd://127.0.0.1:2379"}, "write http://"),
    ({"mooncake.metadata": "http://127.0.0.1/metadata?key=a"}, "no query"),
    ({"mooncake.metadata": "http://127.0.0.1/" + "a" * 201}, "at most 200"),
    ({"mooncake.metadata_cluster": "a b"}, "without blanks"),
    ({"mooncake.metadata_cluster": "a" * 65}, "at most 64"),
], ids=range(7))
def test_wrong_settings(new_agent, settings, error):
    """What is no metadata server is refused at the start, in words."""
    rig.assert_refused(new_agent, settings, error, "mooncake.metadata")


def test_without_effect(new_agent):
    """A metadata server that nothing here uses is told."""
    assert "has no effect without mooncake.listen" in new_agent(settings={"mooncake.metadata": "http://127.0.0.1:1/metadata"}).text()


# --- segments of others ---------------------------------------------------------------------------

def told(keys, engine, name, address=None, **change):
    """Puts an engine of bare sockets into the server, under any name."""
    keys[f"mooncake/ram/{name}"] = {**engine.describe(), "name": name, **change}
    keys[f"mooncake/rpc_meta/{name}"] = address or {"ip_or_host_name": LOOPBACK, "rpc_port": 1}


@pytest.mark.parametrize("name", ["worker-0", "10.0.0.9:17000", "[2001:db8::1]:9", "a&b=c%2F+#?;", "x" * 240], ids=range(5))
def test_by_name(member, server, name):
    """A segment of any name is found, and its memory written and read at the address that the server has."""
    keys = server()
    agent = member(keys.url)
    with Fake(agent, MIB) as engine:
        told(keys, engine, name)
        with Local(agent, name, MIB, noise(MIB, 1)) as local:
            local.write([(0, engine.base, MIB)]).result(LIMIT)
            assert digest(engine.memory) == digest(local.view) and not engine.asked
            local.read([(0, engine.base + 5, 100)]).result(LIMIT)
            assert local.view[:100] == engine.memory[5:105]
            assert [p["segment"] for p in agent.ctl("peers", "--json")["peers"]] == [name]


def test_between_agents(member, server):
    """Agents find each other by the server. What the owner exports later is there for the next import."""
    keys = server()
    one, two = member(keys.url, "one"), member(keys.url, "two")
    published(two)
    name = segment(two)[0]
    with Owner(two, MIB, noise(MIB, 2)) as owner:
        until(lambda: keys[keys_of(name)[0]]["buffers"], "the buffer")
        with Local(one, name, MIB) as local:
            local.read([(0, owner.address, MIB)]).result(LIMIT)
            assert digest(local.view) == digest(owner.view)
            assert ("GET", f"mooncake/rpc_meta/{name}") in keys.log


def test_unknown(member, server):
    """What the server does not have is asked for at HOST:PORT itself; another name is an error that says what to do."""
    keys = server()
    agent = member(keys.url)
    with Fake(agent) as engine, Local(agent, engine.endpoint, 4096) as local:
        local.write([(0, engine.base, 4096)]).result(LIMIT)
        assert engine.asked == 1
        with pytest.raises(errors.NotFound, match="has no segment of this name; start its engine with http://"):
            local.client.import_token("mooncake://worker-1")
        for name in "a b", "a\tb", "\x7f", "ä":
            with pytest.raises(errors.TokenInvalid):
                local.client.import_token(f"mooncake://{name}")


GOOD = {"name": "w", "protocol": "tcp", "tcp_data_port": 1, "tcp_proto_version": 2, "buffers": [{"name": "w", "addr": 4096, "length": 4096}]}
RDMA = {"name": "w", "protocol": "rdma", "devices": [DEVICE], "buffers": [{"name": "cpu:0", "addr": 4096, "length": 4096, "rkey": [1], "lkey": [1]}]}
WHERE = {"ip_or_host_name": LOOPBACK, "rpc_port": 1}


@pytest.mark.parametrize("ram, rpc, error, match", [
    (b"", WHERE, errors.Protocol, "is not JSON"),
    (b"[" * 100000, WHERE, errors.Protocol, "is not JSON"),
    (b"null", WHERE, errors.NotFound, "no segment yet"),
    ({**GOOD, "name": "x"}, WHERE, errors.Protocol, "another segment, \"x\""),
    ({**GOOD, "name": "\x1b[31m"}, WHERE, errors.Protocol, "another segment"),
    ({**GOOD, "name": 7}, WHERE, errors.Protocol, "no name"),
    ({**GOOD, "name": "w" * 5000}, WHERE, errors.Protocol, "no name"),
    ({**GOOD, "protocol": "efa"}, WHERE, errors.Unsupported, "efa"),
    (RDMA, {"ip_or_host_name": LOOPBACK}, errors.Protocol, "lacks the port"),
    (RDMA, {"ip_or_host_name": "10.1.2.3", "rpc_port": 1}, errors.Denied, "10.1.2.3 for its handshake"),
    (RDMA, WHERE, errors.PeerUnreachable, "no RDMA device"),
    ({**GOOD, "buffers": []}, WHERE, errors.NotFound, "no registered memory"),
    (b'{"a":"' + b"x" * (1 << 20) + b'"}', WHERE, errors.TooLarge, "more than"),
    (GOOD, b"", errors.Protocol, "address"),
    (GOOD, b"7", errors.Protocol, "address"),
    (GOOD, [], errors.Protocol, "address"),
    (GOOD, {}, errors.Protocol, "address"),
    (GOOD, {"ip_or_host_name": 7}, errors.Protocol, "address"),
    (GOOD, {"ip_or_host_name": "x" * 5000}, errors.TooLarge, "more than"),
    (GOOD, {"ip_or_host_name": "x" * 300}, errors.Protocol, "address"),
    (GOOD, {"ip_or_host_name": "a b"}, errors.Protocol, "no host"),
    (GOOD, {"ip_or_host_name": ""}, errors.Protocol, "no host"),
    (GOOD, {"ip_or_host_name": "0.0.0.0"}, errors.PeerUnreachable, "cannot reach"),
    (GOOD, {"ip_or_host_name": "::"}, errors.PeerUnreachable, "cannot reach"),
    (GOOD, {"ip_or_host_name": "10.1.2.3"}, errors.Denied, "mooncake.allow"),
    (GOOD, None, errors.NotFound, "not the address of its engine"),
], ids=range(26))
def test_lies(member, server, ram, rpc, error, match):
    """Whatever the server has under the keys, the import ends with an error that says what is wrong, and the next one works."""
    keys = server()
    agent = member(keys.url)
    keys["mooncake/ram/w"] = ram
    if rpc is not None:
        keys["mooncake/rpc_meta/w"] = rpc
    with Fake(agent) as engine, Local(agent, None, 4096) as local:
        with pytest.raises(error, match=match):
            local.client.import_token("mooncake://w", timeout=LIMIT)
        keys.values.pop("mooncake/rpc_meta/w", None)
        told(keys, engine, "w")
        local.remote = local.client.import_token("mooncake://w")
        local.write([(0, engine.base, 4096)]).result(LIMIT)


@pytest.mark.parametrize("answer, error", [
    ((500, b"no"), errors.Protocol), ((301, b""), errors.Protocol), (b"SSH-2.0-x\r\n", errors.Protocol), (b"", errors.PeerLost),
    (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{", errors.PeerLost), (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 20000, errors.TooLarge)], ids=range(6))
def test_import_from_wrong_server(member, server, answer, error):
    """What is no metadata server ends the import with an error that says so."""
    keys = server()
    agent = member(keys.url)
    published(agent)
    keys.answer = lambda method, key, value: answer
    with agent.client() as client:
        with pytest.raises(error, match="metadata server|metadata answers"):
            client.import_token("mooncake://w", timeout=LIMIT)
        assert counter(agent, "imports_failed_total") == 1
    keys.answer = keys.usual


def test_import_without_server(member, server):
    """A server that is away, or does not answer, ends imports within their time; others go on meanwhile."""
    port = next(PORTS)
    agent = member(f"http://{LOOPBACK}:{port}/metadata")
    with agent.client() as client:
        with pytest.raises(errors.PeerUnreachable, match="the metadata server"):
            client.import_token("mooncake://w", timeout=LIMIT)
    keys = server(port=port)
    release = threading.Event()

    def wait(method, key, value):
        if key.endswith("/slow"):
            release.wait(LIMIT)
            return b""
        return keys.usual(method, key, value)

    keys.answer = wait
    with Fake(agent) as engine, Local(agent, None, 4096) as local, agent.client() as other:
        told(keys, engine, "w")
        pending = other.import_token("mooncake://slow", timeout=1.0, wait=False)
        local.remote = local.client.import_token("mooncake://w")
        local.write([(0, engine.base, 4096)]).result(LIMIT)
        with pytest.raises(errors.Timeout):
            pending.result(LIMIT)
        other.import_token("mooncake://slow", timeout=LIMIT, wait=False)  # it ends with its session
    until(lambda: not agent.ctl("sessions", "--json")["sessions"], "the end of the sessions")
    release.set()


# --- Mooncake -------------------------------------------------------------------------------------

@REAL
def test_mooncake_initiator(member, server, kind):
    """Mooncake 0.3.13 finds the agent's segment by the real server, writes to it and reads from it."""
    keys = server(kind)
    agent = member(keys.url)
    size = 4 * MIB
    with Owner(agent, size, noise(size, 1)) as owner:
        name = segment(agent)[0]
        until(lambda: (keys[keys_of(name)[0]] or {}).get("buffers") and keys[keys_of(name)[1]], "the buffer")
        with Engine(agent, size, "initiator", keys.url, MC_TCP_BIND_ADDRESS=LOOPBACK) as engine:
            assert engine("read_one", name, owner.address, 0, size) == 0
            assert engine("digest", 0, size) == digest(owner.view)
            assert engine("repeat", 0, 7, MIB) is None and engine("write_one", name, owner.address + MIB, 0, MIB) == 0
            until(lambda: owner.view[MIB:2 * MIB] == b"\x07" * MIB, "the write")
            ops = [(i * 4096, (size // 4096 - 1 - i) * 4096, 4096) for i in range(256)]
            assert engine("read", name, owner.address, ops) == 0
            for at, of, n in ops:
                assert engine("digest", at, n) == digest(owner.view[of:of + n])


@REAL
def test_mooncake_target(member, server, kind):
    """The agent finds Mooncake 0.3.13 by the real server, by any name, and its memory is written and read; unregistered memory is refused."""
    keys = server(kind)
    agent = member(keys.url)
    size = 4 * MIB
    with Engine(agent, size, "worker-0", keys.url, MC_TCP_BIND_ADDRESS=LOOPBACK) as engine, \
            Local(agent, "worker-0", size, noise(size, 3)) as local:
        local.write([(0, engine.base, size)]).result(LIMIT)
        assert engine("digest", 0, size) == digest(local.view)
        want = digest(local.view)
        local.view[:] = bytes(size)
        local.read([(at, engine.base + at, 65536) for at in range(0, size, 65536)]).result(LIMIT)
        assert digest(local.view) == want
        assert engine("unregister", 0) == 0
        with pytest.raises((errors.Revoked, errors.PeerLost)):
            local.write([(0, engine.base, 4096)]).result(LIMIT)
        with pytest.raises(errors.NotFound, match="no registered memory"):
            local.client.import_token("mooncake://worker-0")


@REAL
def test_mooncake_bench(member, server, kind):
    """Mooncake's own benchmark as initiator, through the real server: all that it reads is what the owner has."""
    keys = server(kind)
    agent = member(keys.url)
    bench = next(mooncake_python().parents[1].glob("lib/python*/site-packages/mooncake/transfer_engine_bench"))
    size = 16 * MIB
    with Owner(agent, size, noise(size, 4)) as owner:
        name = segment(agent)[0]
        until(lambda: (keys[keys_of(name)[0]] or {}).get("buffers"), "the buffer")
        before = digest(owner.view)
        done = subprocess.run(
            agent.host.command(bench, "--mode=initiator", f"--metadata_server={keys.url}", "--protocol=tcp", f"--segment_id={name}",
                               "--local_server_name=bench", "--operation=read", "--duration=1", "--threads=1", "--batch_size=4",
                               "--block_size=65536", f"--buffer_size={size}"),
            env={**os.environ, "LD_LIBRARY_PATH": str(bench.parent), "MC_TCP_BIND_ADDRESS": LOOPBACK}, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=2 * LIMIT)
        assert done.returncode == 0, done.stdout
        assert counter(agent, "sent_bytes_total") >= 4 * 65536 and digest(owner.view) == before


# --- engines of dray.mooncake ---------------------------------------------------------------------

PROGRAM = ROOT / "tests/mooncake/metadata_calls.py"


def run_program(agent, keys, *command, **env):
    done = subprocess.run(agent.host.command(*command, PROGRAM), env={**os.environ, "DRAY_SOCKET": str(agent.socket), "METADATA_URL": keys.url, **env}, text=True,
                          timeout=4 * LIMIT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert done.returncode == 0, done.stderr
    return done.stdout


@KINDS
def test_program(server, agent, kind):
    """Engines of dray.mooncake find each other by a metadata server; what the calls return is what Mooncake's return. They take their keys back."""
    keys = server(kind)
    package = os.pathsep.join(filter(None, [str(ROOT / "client/python"), os.environ.get("PYTHONPATH")]))
    keys["mooncake/rpc_meta/some-engine"] = {"ip_or_host_name": LOOPBACK, "rpc_port": 1}  # of an engine that was killed
    assert run_program(agent, keys, sys.executable, "-m", "dray.mooncake", PYTHONPATH=package) == PROGRAM.with_suffix(".expected").read_text()
    assert keys["mooncake/rpc_meta/some-engine"] is None and keys["mooncake/rpc_meta/127.0.0.1:17001"] is None


@REAL
def test_program_of_mooncake(server, agent, kind):
    """The same program, with Mooncake itself."""
    assert run_program(agent, server(kind), mooncake_python()) == PROGRAM.with_suffix(".expected").read_text()


@pytest.fixture
def own(server):
    """A metadata server in this process's network, and dray.mooncake's side of it."""
    made = Server(SimpleNamespace(socket=socket.socket, connect=lambda endpoint: socket.create_connection(rig.parse_segment(endpoint))))
    yield made, Metadata(made.url, "id")
    made.close()


def test_addresses(own):
    """A name has the address that was put last, and only that engine removes it."""
    keys, metadata = own
    for host, shown in ("10.0.0.1", "10.0.0.1:7"), ("2001:db8::1", "[2001:db8::1]:7"):
        metadata.put("a b/ü", host, 7)
        assert metadata.find("a b/ü") == shown
    assert list(keys.values) == ["mooncake/id/rpc_meta/a b/ü"]
    metadata.remove("a b/ü", "10.0.0.1", 7)
    assert keys.values
    metadata.remove("a b/ü", "2001:db8::1", 7)
    metadata.remove("a b/ü", "2001:db8::1", 7)
    assert not keys.values


@pytest.mark.parametrize("answer, error", [
    ((404, b""), errors.PeerUnreachable), ((500, b"no"), errors.PeerUnreachable), ((301, b""), errors.PeerUnreachable),
    (b"SSH-2.0-x\r\n", errors.PeerUnreachable), (b"", errors.PeerUnreachable), ((200, b"x" * (1 << 21)), errors.PeerUnreachable),
    ((200, b""), errors.Protocol), ((200, b"[" * 100_000), errors.Protocol), ((200, b"7"), errors.Protocol), ((200, b"{}"), errors.Protocol),
    ((200, b'{"ip_or_host_name":"","rpc_port":1}'), errors.Protocol), ((200, b'{"ip_or_host_name":"a","rpc_port":"1"}'), errors.Protocol),
    ((200, b'{"ip_or_host_name":"a","rpc_port":65536}'), errors.Protocol), ((200, b"\xff"), errors.Protocol)], ids=range(14))
def test_lies_to_engines(own, answer, error):
    """Whatever the server answers, a call ends with an error, and the removal at the end of an engine without one."""
    keys, metadata = own
    keys.answer = lambda *request: answer
    with pytest.raises(error):
        metadata.find("a")
    if error is errors.PeerUnreachable:
        with pytest.raises(error):
            metadata.put("a", "10.0.0.1", 7)
    metadata.remove("a", "10.0.0.1", 7)


@pytest.mark.parametrize("begin", [b"", b"HTTP/1.1 200 OK\r\nX: ", b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n"], ids=range(3))
def test_trickling_server(own, begin, monkeypatch):
    """A server that sends a byte now and then holds up no call for longer than one that sends nothing."""
    keys, metadata = own
    left = []

    def trickle(*request):
        yield begin
        left.append(LIMIT / 0.02)
        while left[-1] > 0:
            time.sleep(0.02)
            yield b"x"
            left[-1] -= 1

    keys.answer = trickle
    monkeypatch.setattr(_metadata, "_SECONDS", 0.2)
    with pytest.raises(errors.PeerUnreachable, match="timed out"):
        metadata.find("a")
    with pytest.raises(errors.PeerUnreachable, match="timed out"):
        metadata.put("a", "10.0.0.1", 7)
    # on a busy machine a call can end before the server has begun its answer
    assert all(n > 0 for n in left)


@pytest.mark.parametrize("url", ["http://", "http://:8080/metadata", "http://a b/metadata", "http://h:99999/metadata", "http://h/metadata?x=1", "https://h/m"])
def test_wrong_urls(url):
    """What is no URL of a metadata server is refused."""
    with pytest.raises(errors.Invalid, match="no URL"):
        Metadata(url)
