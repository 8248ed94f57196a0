# SPDX-License-Identifier: Apache-2.0
"""Segments of a node: sources, probes, history and preference, with real listeners, a master's pages and an owner's handshake."""

import contextlib
import http.server
import json
import os
import resource
import select
import signal
import socket
import socketserver
import struct
import subprocess
import threading

import pytest
from harness import DRAYCTL, LIMIT, Side, expect, until
from test_ctl import conform, schema_of

pytestmark = pytest.mark.skipif(not DRAYCTL.exists(), reason=f"{DRAYCTL} is not there")

QUICK_PROBES = {"probe.interval": "200ms", "probe.backoff_min": "20ms", "probe.backoff_max": "200ms", "probe.timeout": "500ms",
         "segment.listen_interval": "50ms", "mooncake.interval": "100ms", "mooncake.timeout": "2s"}


# --- other processes of a node ----------------------------------------------------------------------

def listen(host, address="", port=0, family=socket.AF_INET):
    sock = host.socket(family)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind((address, port))
    sock.listen(64)
    return sock


def port_of(sock):
    return sock.getsockname()[1]


class Owner:
    """A thread that serves connections on a listener by serve(connection); a context manager."""

    def __init__(self, sock, serve):
        self.sock, self.serve, self.held = sock, serve, []
        self.served = 0
        self.wake = socket.socketpair()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self):
        while True:
            ready, _, _ = select.select([self.sock, self.wake[0]], [], [])
            if self.wake[0] in ready:
                return
            conn, _ = self.sock.accept()
            conn.settimeout(LIMIT)
            with contextlib.suppress(OSError):
                if not self.serve(conn):
                    conn.close()
                else:
                    self.held.append(conn)
            self.served += 1

    def close(self):
        self.wake[1].send(b".")
        self.thread.join(LIMIT)
        for sock in (*self.held, self.sock, *self.wake):
            sock.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def exactly(conn, n):
    data = b""
    while len(data) < n:
        got = conn.recv(n - len(data))
        if not got:
            raise OSError("end of file")
        data += got
    return data


def handshake_daemon(answer):
    """Serves the metadata handshake: u64 length, type 1, JSON; then waits until the other side closes, as Mooncake's daemon does."""
    def serve(conn):
        length, = struct.unpack("<Q", exactly(conn, 8))
        body = exactly(conn, length)
        assert body[0] == 1, f"type {body[0]}"
        json.loads(body[1:])
        text = b"\x01" + json.dumps(answer).encode() + b"\n"
        conn.sendall(struct.pack("<Q", len(text)) + text)
        conn.shutdown(socket.SHUT_WR)
        assert conn.recv(1) == b""
    return serve


def descriptor(name):
    return {"buffers": [{"addr": 140115212083200, "length": 1 << 20, "name": name}], "name": name, "protocol": "tcp",
            "tcp_data_port": 16498, "tcp_proto_version": 2, "timestamp": "2026-11-20 21:58:47.324326"}


class Pages:
    """An HTTP server on a host, whose pages a test sets: path -> (status, body)."""

    def __init__(self, host, address=None):
        self.pages, self.asked = {}, 0
        pages = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                pages.asked += 1
                status, body = pages.pages.get(self.path, (404, b"not found"))
                body = body() if callable(body) else body
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self.server = socketserver.ThreadingTCPServer(("", 0), Handler, bind_and_activate=False)
        self.server.daemon_threads = True
        self.server.socket.close()
        self.server.socket = listen(host, address or host.v4)
        self.server.socket.settimeout(None)
        self.url = f"http://{address or host.v4}:{port_of(self.server.socket)}"
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()

    def detail(self, *segments):
        rows = [{"segment_name": name, "segment_id": "1-2", "client_id": "3-4", "base_address": "0x7f0000000000",
                 "size_bytes": 4 << 30, "size_human": "4 GB", "te_endpoint": endpoint, "protocol": "tcp", "status": status,
                 "allocator_used_bytes": 1 << 30, "allocator_capacity_bytes": 4 << 30, "allocator_usage_percent": 25.0}
                for name, endpoint, status in segments]
        self.pages["/get_segments_detail"] = 200, json.dumps({"total_segments": len(rows), "segments": rows}).encode()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()


def rows(agent):
    out = agent.ctl("segments", "--json")
    conform(out, schema_of("segments"))
    return {s["segment"]: s for s in out["segments"]}


def candidates(agent, *args):
    out = agent.ctl("segments", "--explain", "--json", *args)
    conform(out, schema_of("candidates"))
    return out["candidates"]


def preferred(agent, scope=""):
    with agent.client() as c:
        return c.preferred_segment(scope)


def state(agent, segment, wanted):
    return until(lambda: (row := rows(agent).get(segment)) and row["state"] == wanted and row, f"{segment} {wanted}")


# --- listeners ----------------------------------------------------------------------------------------

def test_owner_starts_and_ends(lab, new_agent):
    host = lab.hosts[0]
    first = listen(host)
    port = port_of(first)
    first.close()
    agent = new_agent(settings={**QUICK_PROBES, "segment.ports": f"{port}"}, listen=[host.v4], key=lab.key)
    assert preferred(agent).segment == ""
    for _ in range(2):
        with agent.client(segments=True) as c, contextlib.closing(listen(host, port=port)):
            name = f"{host.v4}:{port}"
            # the second time the segment is known already, and a probe may be earlier than the listener
            row = until(lambda: (r := state(agent, name, "ready")) and r["sources"] == "listener" and r, "the listener")
            assert row["local"] and row["latency_ns"] > 0
            seen = []
            until(lambda: seen.append(c.next_event(timeout=LIMIT)) or seen[-1].segment == name and seen[-1].preferred, "the event")
            assert preferred(agent).segment == name
            win, = [r for r in candidates(agent) if r["chosen"]]
            assert (win["segment"], win["preference"]) == (name, "detected")
        row = state(agent, name, "lost")
        assert "refused" in row["reason"]
        until(lambda: preferred(agent).segment == "")
    kinds = [(e["kind"], e["subject"], e["new"]) for e in agent.ctl("events", "--json")["events"]]
    assert kinds.count(("segment", name, "ready")) == kinds.count(("segment", name, "lost")) == 2
    assert ("preferred", name, name) in kinds
    assert f"{name} ready -> lost: " in agent.text()


@pytest.mark.parametrize("family, address", [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"), (socket.AF_INET6, "v6")])
def test_listeners_by_address(lab, new_agent, family, address):
    lab.need_namespaces()
    host = lab.hosts[0]
    address = host.v6 if address == "v6" else address
    with contextlib.closing(listen(host, address, family=family)) as sock:
        agent = new_agent(settings={**QUICK_PROBES, "segment.ports": f"{port_of(sock)}"}, listen=[host.v4], key=lab.key)
        name = f"[{address}]:{port_of(sock)}" if ":" in address else f"{address}:{port_of(sock)}"
        assert state(agent, name, "ready")["local"]
        assert preferred(agent).segment == name


def test_listener_in_place_of_another(lab, new_agent):
    """As many sockets listen as before, so their number says nothing."""
    lab.need_namespaces()
    host = lab.hosts[0]
    with contextlib.closing(listen(host)) as first, contextlib.closing(host.socket(socket.AF_INET)) as second:
        second.bind(("", 0))
        agent = new_agent(settings={**QUICK_PROBES, "segment.ports": f"{port_of(first)},{port_of(second)}"}, listen=[host.v4], key=lab.key)
        former = f"{host.v4}:{port_of(first)}"
        state(agent, former, "ready")
        os.kill(agent.pid, signal.SIGSTOP)
        first.close()
        second.listen(64)
        os.kill(agent.pid, signal.SIGCONT)
        state(agent, f"{host.v4}:{port_of(second)}", "ready")
        state(agent, former, "lost")


def test_segment_port_differs_from_the_listener(lab, new_agent):
    host = lab.hosts[0]
    with contextlib.closing(listen(host)) as sock:
        agent = new_agent(settings={**QUICK_PROBES, "segment.ports": f"{port_of(sock)}:50053 tcp"}, listen=[host.v4], key=lab.key)
        row = state(agent, f"{host.v4}:50053", "ready")
        assert row["target"] == f"tcp://127.0.0.1:{port_of(sock)}"


def test_segment_with_a_nat_address(lab, new_agent):
    """A master lists this node's owner by an address behind NAT; the listener on this node is that owner."""
    host = lab.hosts[0]
    with contextlib.closing(listen(host)) as sock, Pages(host) as master:
        name = f"203.0.113.7:{port_of(sock)}"
        master.detail((name, name, "OK"), (f"203.0.113.8:{port_of(sock)}", "", "OK"))
        agent = new_agent(settings={**QUICK_PROBES, "segment.ports": f"{port_of(sock)}", "segment.local": "203.0.113.7",
                                    "mooncake.masters": master.url}, listen=[host.v4], key=lab.key)
        until(lambda: "listener" in rows(agent).get(name, {"sources": ""})["sources"])
        row = state(agent, name, "ready")
        assert row["local"] and row["sources"] == "listener,master" and row["capacity"] == 4 << 30
        until(lambda: preferred(agent).segment == name)
        other = rows(agent)[f"203.0.113.8:{port_of(sock)}"]
        assert other["state"] == "unknown" and not other["local"] and other["probe"] == ""


def test_addresses_of_the_node(lab, new_agent):
    """In a pod, the owner has an address of the node, which is not in this network namespace."""
    host = lab.hosts[0]
    with Pages(host) as master:
        master.detail(("192.0.2.9:50053", "192.0.2.9:50053", "OK"), ("192.0.2.10:50053", "192.0.2.10:50053", "OK"))
        agent = new_agent(settings={**QUICK_PROBES, "node.addresses": "192.0.2.9", "mooncake.masters": master.url})
        row = state(agent, "192.0.2.9:50053", "ready")
        assert row["local"] and row["probe"] == "master" and row["allocated"] == 1 << 30
        until(lambda: preferred(agent).segment == "192.0.2.9:50053")
        lost = [r for r in candidates(agent) if not r["chosen"]]
        assert not any(r["segment"] == "192.0.2.10:50053" for r in lost)  # only the master's page names it
        # the segment drains, then the master no longer lists it
        master.detail(("192.0.2.9:50053", "192.0.2.9:50053", "DRAINING"))
        assert "DRAINING" in state(agent, "192.0.2.9:50053", "lost")["reason"]
        assert preferred(agent).segment == ""
        master.detail()
        until(lambda: "no master lists it" in rows(agent)["192.0.2.9:50053"]["reason"])


# --- masters --------------------------------------------------------------------------------------------

def test_segment_with_another_handshake_port(lab, new_agent):
    """In P2PHANDSHAKE mode the handshake port differs from the port in the name; the master's page has both."""
    host = lab.hosts[0]
    name = f"{host.v4}:50053"
    with Pages(host) as master, Owner(listen(host), handshake_daemon(descriptor("x:1"))) as owner:
        endpoint = f"{host.v4}:{port_of(owner.sock)}"
        master.detail((name, endpoint, "OK"))
        agent = new_agent(settings={**QUICK_PROBES, "mooncake.masters": f"{master.url}/metrics"}, listen=[host.v4], key=lab.key)
        row = state(agent, name, "ready")
        assert row["target"] == f"mooncake://{endpoint}" and row["probe"] == "mooncake"
        assert preferred(agent).capacity == 4 << 30


def test_invalid_pages(lab, new_agent):
    host = lab.hosts[0]
    name = f"{host.v4}:50053"
    with Pages(host) as master:
        agent = new_agent(settings={**QUICK_PROBES, "mooncake.masters": master.url, "probe.fall": 3}, listen=[host.v4], key=lab.key)
        master.detail((name, name, "OK"))
        state(agent, name, "ready")
        for page in ((503, b'{"success":false}'), (200, b"["), (200, b'{"segments":[{"segment_name":5}]}'), (200, b"")):
            asked = master.asked
            master.pages["/get_segments_detail"] = page
            until(lambda: master.asked > asked + 1)
            until(lambda: master.url in agent.new_text())
            master.detail((name, name, "OK"))
            until(lambda: "answers again" in agent.new_text())
            state(agent, name, "ready")
        # a master older than 0.3.12 has only the metrics page
        del master.pages["/get_segments_detail"]
        master.pages["/metrics"] = 200, (
            "# HELP segment_total_capacity_bytes Total memory capacity of the mounted segment\n"
            "# TYPE segment_total_capacity_bytes gauge\n"
            f'segment_total_capacity_bytes{{segment="{name}"}} 4294967296\n'
            f'segment_total_capacity_bytes{{segment="{host.v4}:50054"}} 42\n'
            f'segment_allocated_bytes{{segment="{name}"}} -4096\n').encode()
        assert state(agent, f"{host.v4}:50054", "ready")["capacity"] == 42
        assert rows(agent)[name]["allocated"] == 0
        # the content of a master that fails for long is dropped
        master.pages["/metrics"] = 500, b"no"
        assert "500" in state(agent, name, "lost")["reason"]


def test_five_thousand_segments(lab, new_agent):
    host = lab.hosts[0]
    with Pages(host) as master:
        master.detail(*[(f"10.{n >> 8}.{n & 255}.1:50053", "", "OK") for n in range(4999)], (f"{host.v4}:50053", "", "OK"))
        agent = new_agent(settings={**QUICK_PROBES, "mooncake.masters": master.url}, listen=[host.v4], key=lab.key)
        state(agent, f"{host.v4}:50053", "ready")
        assert len(rows(agent)) >= 5000
        with agent.client() as c:
            assert c.preferred_segment().segment == f"{host.v4}:50053"
        changes = agent.ctl("status", "--json")["counters"]
        assert changes["dray_segments"] >= 5000 and changes["dray_segment_changes_total"] < 10


def test_more_segments_than_the_limit(lab, new_agent):
    host = lab.hosts[0]
    with Pages(host) as master:
        master.detail(*[(f"10.{n >> 8}.{n & 255}.1:50053", "", "OK") for n in range(500)])
        agent = new_agent(settings={**QUICK_PROBES, "mooncake.masters": master.url, "limits.segments": 16, "segment.expiry": "1s"})
        until(lambda: len(rows(agent)) == 16)
        assert "limits.segments = 16" in agent.text()
        master.detail()
        until(lambda: not rows(agent) or all(r["sources"] == "" for r in rows(agent).values()), "the end of the expired segments")
        assert agent.ctl("status", "--json")["counters"]["dray_segments_expired_total"] >= 15


# --- probes -----------------------------------------------------------------------------------------------

def test_probes_of_each_kind(lab, new_agent):
    host = lab.hosts[0]
    other = new_agent("other", settings=QUICK_PROBES, listen=[host.v4], key=lab.key)
    garbage = lambda conn: conn.sendall(os.urandom(4096))  # noqa: E731
    silent = lambda conn: True  # noqa: E731

    def reset(conn):
        conn.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    with contextlib.ExitStack() as stack:
        def owner(serve):
            return f"{host.v4}:{port_of(stack.enter_context(Owner(listen(host), serve)).sock)}"
        pages = stack.enter_context(Pages(host))
        pages.pages = {"/ok": (200, b"OK"), "/ready": (200, b'{"status":"ok","service_ready":true}'),
                       "/standby": (200, b'{"status":"ok","service_ready":false}'), "/down": (503, b"no")}
        segment = other.ctl("status", "--json")["segment"]
        good = {owner(handshake_daemon(descriptor("a:1"))): "mooncake", owner(silent): "tcp", segment: "dray",
                "h1:1": f"{pages.url}/ok", "h2:1": f"{pages.url}/ready"}
        bad = {owner(garbage): "mooncake", owner(silent): "mooncake", owner(reset): "mooncake", owner(garbage): "dray",
               owner(silent): "dray", owner(handshake_daemon(None)): "mooncake", owner(handshake_daemon([1])): "mooncake",
               "h3:1": f"{pages.url}/standby", "h4:1": f"{pages.url}/down", "h5:1": "http://127.0.0.1:1/"}
        known = ",".join(f"{name} {how}" for name, how in {**good, **bad}.items())
        agent = new_agent(settings=QUICK_PROBES, listen=[host.v4], key=lab.key, env={"DRAY_SEGMENT_KNOWN": known})
        for name in good:
            state(agent, name, "ready")
        for name, how in bad.items():
            row = until(lambda name=name: (r := rows(agent)[name])["failures"] > 3 and r, f"{name} {how}")
            assert row["state"] == "probing" and row["reason"], row
        # a probe does not make a peer
        assert other.ctl("peers", "--json")["peers"] == []
        assert other.ctl("status", "--json")["counters"]["dray_peers_lost_total"] == 0
        # a draining agent is not ready
        other.signal(signal.SIGTERM)
        other.wait()
        state(agent, segment, "lost")


def test_hysteresis(lab, new_agent):
    """A single failure does not make a segment lost; after a loss a single success does not make it ready."""
    host = lab.hosts[0]
    with Pages(host) as pages:
        pages.pages["/health"] = 200, b"OK"
        agent = new_agent(settings={**QUICK_PROBES, "probe.fall": 3, "probe.rise": 3},
                          env={"DRAY_SEGMENT_KNOWN": f"a:1 {pages.url}/health"})
        state(agent, "a:1", "ready")
        before = rows(agent)["a:1"]["failures"]
        answers = iter([b"1", b"1"])
        pages.pages["/health"] = 200, lambda: b'{"status":"no"}' if next(answers, None) else b"OK"
        until(lambda: rows(agent)["a:1"]["failures"] == before + 2)
        until(lambda: rows(agent)["a:1"]["probes"] > before + 6)
        assert not [e for e in agent.ctl("events", "--json")["events"] if e["new"] == "lost"]
        pages.pages["/health"] = 503, b""
        assert "503" in state(agent, "a:1", "lost")["reason"]
        pages.pages["/health"] = 200, b"OK"
        state(agent, "a:1", "ready")


def test_want_of_descriptors_loses_no_segment(lab, new_agent):
    """Probes and masters that the agent has no descriptor for say nothing of segments."""
    host = lab.hosts[0]
    with Pages(host) as pages, Owner(listen(host), lambda conn: True) as owner:
        plain, listed = f"{host.v4}:{port_of(owner.sock)}", f"{host.v4}:50053"
        pages.pages["/health"] = 200, b"OK"
        pages.detail((listed, "", "OK"))
        agent = new_agent(settings={**QUICK_PROBES, "probe.fall": 2, "mooncake.masters": pages.url},
                          env={"DRAY_SEGMENT_KNOWN": f"{plain} tcp,a:1 {pages.url}/health"})
        for name in (plain, listed, "a:1"):
            state(agent, name, "ready")
        agent.new_text()
        before = resource.prlimit(agent.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(agent.pid, resource.RLIMIT_NOFILE, (3, before[1]))
        log = []

        def tried():
            log.append(agent.new_text())
            lines = "".join(log).splitlines()
            return sum(pages.url in line and "Too many open files" in line for line in lines) >= 4 or any("-> lost" in line for line in lines)
        until(tried)
        resource.prlimit(agent.pid, resource.RLIMIT_NOFILE, before)
        asked = pages.asked
        until(lambda: pages.asked > asked + 6)
        assert not [e for e in agent.ctl("events", "--json")["events"] if e["new"] == "lost"], "".join(log)
        assert all(row["state"] == "ready" for row in rows(agent).values())


# --- the preferred segment ----------------------------------------------------------------------------------

def test_precedence(lab, new_agent):
    host = lab.hosts[0]
    with contextlib.closing(listen(host)) as sock:
        port = port_of(sock)
        name = f"{host.v4}:{port}"
        conf = lab.write("conf", "")
        agent = new_agent(settings={**QUICK_PROBES, "segment.ports": f"{port}"}, listen=[host.v4], key=lab.key,
                          args=["--config", conf], env={"MOONCAKE_PREFERRED_SEGMENT": "env.example:1"})
        state(agent, name, "ready")
        p = preferred(agent)
        assert (p.segment, p.preference) == ("env.example:1", "environment") and p.unverified
        agent.ctl("hints", "--set", f"={name}")
        assert preferred(agent).preference == "environment"
        conf.write_text('segment: { preferred = "local"; };\n')
        agent.ctl("reload")
        p = preferred(agent)
        assert (p.segment, p.preference, p.state) == (name, "explicit", "ready")
        reasons = [c["reason"] for c in candidates(agent)]
        assert "segment.preferred is local" in reasons[0] and "MOONCAKE_PREFERRED_SEGMENT" in reasons[1]
        assert agent.ctl("status", "--json")["preferred_segment"] == name


@pytest.mark.parametrize("how, words", [
    ({"args": ["--set", "segment.preferred="]}, "segment.preferred: it is blank"),
    ({"args": ["--set", "segment.preferred=10.0.0.5"]}, '"10.0.0.5" is not a segment'),
    ({"args": ["--set", "segment.known=10.0.0.5"]}, "segment.known"),
    ({"args": ["--set", "segment.ports=70000"]}, "segment.ports"),
    ({"args": ["--set", "segment.local=a b"]}, "segment.local"),
    ({"args": ["--set", "mooncake.masters=https://x"]}, "mooncake.masters"),
    ({"args": ["--set", "env.profiles=dray,nope"]}, "vllm-mooncake"),
    ({"args": ["--set", "probe.backoff_min=10s"]}, "probe.backoff_min"),
])
def test_invalid_settings_are_refused(lab, how, words):
    agent = lab.agent("wrong", **how)
    agent.start(ready=False)
    assert agent.wait() == 1
    agent.kill()
    assert words in agent.text(), agent.text()


@pytest.mark.parametrize("value", ["", "  ", "10.0.0.5"])
def test_wrong_environment_counts_as_unset(lab, new_agent, value):
    """Malformed variables of other programs do not stop the agent: it logs a warning and detects its segment."""
    host = lab.hosts[0]
    with contextlib.closing(listen(host)) as sock:
        agent = new_agent(settings={**QUICK_PROBES, "segment.ports": f"{port_of(sock)}"}, listen=[host.v4], key=lab.key,
                          env={"MOONCAKE_PREFERRED_SEGMENT": value, "MOONCAKE_MASTER_METRICS_URL": "ftp://x"})
        text = agent.text()
        assert f'environment MOONCAKE_PREFERRED_SEGMENT="{value}" is ignored' in text and "HOST:PORT" in text, text
        assert 'environment MOONCAKE_MASTER_METRICS_URL="ftp://x" is ignored' in text, text
        until(lambda: preferred(agent).segment == f"{host.v4}:{port_of(sock)}")
        assert preferred(agent).preference == "detected"


def test_failed_detection_gives_no_preference(new_agent):
    agent = new_agent(settings={**QUICK_PROBES, "mooncake.masters": "http://no-such-host.invalid:9003"}, listen=["none"])
    until(lambda: "no-such-host.invalid" in agent.text())
    p = preferred(agent)
    assert p.segment == "" and p.preference == "none" and p.reason


# --- restarts -------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("address", ["", "127.0.0.1"])
def test_preferred_segment_after_a_restart(lab, new_agent, address):
    host = lab.hosts[0]
    sock = listen(host, address)
    name = f"{address or host.v4}:{port_of(sock)}"
    agent = new_agent(settings={**QUICK_PROBES, "segment.ports": f"{port_of(sock)}"}, listen=[host.v4], key=lab.key)
    state(agent, name, "ready")
    until(lambda: agent.ctl("hints", "--json")["hints"])
    agent.ctl("hints", "--set", f"llama={name}", "--ttl", "1h", "--score", "7")
    until(lambda: agent.ctl("status", "--json")["counters"]["dray_state_writes_total"] and (agent.state_dir / "state.db").exists())
    until(lambda: "llama" in json.dumps(agent.ctl("hints", "--json")))
    agent.stop()
    # the agent answers before its first probe; later the probes find that the owner has ended
    sock.close()
    agent.start()
    p = preferred(agent)
    assert p.segment == name or rows(agent)[name]["state"] == "lost"
    state(agent, name, "lost")
    until(lambda: preferred(agent).segment == "")
    hint, = [h for h in agent.ctl("hints", "--json")["hints"] if h["scope"] == "llama"]
    assert (hint["segment"], hint["source"], hint["score"]) == (name, "explicit", 7) and 0 < hint["left_ns"] <= 3600e9


def test_preferred_segment_after_kill_is_unverified(lab, new_agent):
    """After kill -9 and a start, the preferred segment is unverified as long as its probe hangs."""
    host = lab.hosts[0]
    with Owner(listen(host), handshake_daemon(descriptor("a:1"))) as owner:
        name = f"{host.v4}:{port_of(owner.sock)}"
        agent = new_agent(settings={**QUICK_PROBES, "segment.ports": f"{port_of(owner.sock)} mooncake"}, listen=[host.v4], key=lab.key)
        state(agent, name, "ready")
        until(lambda: preferred(agent).segment == name)
        until(lambda: agent.ctl("hints", "--json")["hints"] and agent.ctl("status", "--json")["counters"]["dray_state_writes_total"])
        agent.kill()
        owner.serve = lambda conn: True  # accepts, and never answers
        agent.settings["probe.timeout"] = "60s"
        agent.start()
        p = preferred(agent)
        assert (p.segment, p.preference) == (name, "detected") and p.unverified
        row = rows(agent)[name]
        assert not row["verified"]


def test_hints_of_clients(lab, new_agent):
    agent = new_agent(settings=QUICK_PROBES)
    with agent.client() as c, agent.client() as d:
        c.put_hint("model/a", "10.9.9.9:1", score=1)
        d.put_hint("model/a", "10.9.9.8:1", score=2, ttl=60)  # the same uid: replaces the earlier hint
        hint = c.hint("model/a")
        assert (hint.segment, hint.source, hint.score) == ("10.9.9.8:1", "client", 2) and 0 < hint.left <= 60
        assert c.preferred_segment("model/a").segment == "10.9.9.8:1"
        assert c.preferred_segment("model/b").segment == ""
        agent.ctl("hints", "--set", "model/a=10.9.9.7:1")  # an administrator's hint is stronger
        assert c.hint("model/a").segment == "10.9.9.7:1"
        assert {"10.9.9.7:1", "10.9.9.8:1"} <= set(rows(agent))  # hinted segments are probed
        agent.ctl("hints", "--forget", "model/a")
        expect("not_found", c.hint, "model/a")
        expect("invalid", c.put_hint, "x", "no segment")
    agent.stop()
    with agent.start().client() as c:
        expect("not_found", c.hint, "model/a")


# --- reload --------------------------------------------------------------------------------------------------------

def test_reload(lab, new_agent):
    host = lab.hosts[0]
    with contextlib.closing(listen(host)) as one, contextlib.closing(listen(host)) as two, Pages(host) as master:
        a, b = f"{host.v4}:{port_of(one)}", f"{host.v4}:{port_of(two)}"
        conf = lab.write("conf", f'segment: {{ known = ["{a}"]; expiry = "1s"; }};\n')
        agent = new_agent(settings=QUICK_PROBES, args=["--config", conf])
        state(agent, a, "ready")
        master.detail(("192.0.2.77:1", "", "OK"))
        conf.write_text(f'segment: {{ known = ["{b} tcp"]; expiry = "1s"; local = ["192.0.2.77"]; }};\n'
                        f'mooncake: {{ masters = ["{master.url}"]; }};\n')
        changed = agent.ctl("reload", "--json")
        assert {"segment.known", "segment.local", "mooncake.masters"} <= set(changed["applied"])
        state(agent, b, "ready")
        state(agent, "192.0.2.77:1", "ready")
        assert rows(agent)[b]["sources"] == "config" and "config" not in rows(agent)[a]["sources"]
        conf.write_text('segment: { known = ["oops"]; };\n')
        assert "oops" in agent.ctl("reload", check=False).stderr
        assert rows(agent)[b]["sources"] == "config"


# --- conflicting sources -------------------------------------------------------------------------------------------

def test_segments_of_a_master_after_a_restart(lab, new_agent):
    """Neither the agent's stop nor a master that has not been read yet makes a segment lost."""
    host = lab.hosts[0]
    with Pages(host) as master:
        name = f"{host.v4}:50053"
        master.detail((name, name, "OK"))
        agent = new_agent(settings={**QUICK_PROBES, "mooncake.masters": master.url, "segment.ports": "none"}, listen=[host.v4], key=lab.key)
        until(lambda: [h["segment"] for h in agent.ctl("hints", "--json")["hints"]] == [name])
        agent.stop()
        assert "ready -> lost" not in agent.new_text()
        gate = threading.Event()
        page = master.pages["/get_segments_detail"]
        master.pages["/get_segments_detail"] = 200, lambda: gate.wait(LIMIT) and page[1]
        agent.settings["mooncake.timeout"] = "60s"
        agent.start()
        asked = master.asked
        until(lambda: master.asked > asked or master.asked)
        p = preferred(agent)
        assert p.segment == name and p.unverified, p
        gate.set()
        until(lambda: not preferred(agent).unverified)
        assert preferred(agent).segment == name
        assert "ready -> lost" not in agent.new_text()


def test_many_hints_do_not_displace_other_sources(lab, new_agent):
    host = lab.hosts[0]
    with contextlib.closing(listen(host)) as sock:
        agent = new_agent(settings={**QUICK_PROBES, "limits.segments": 16, "segment.ports": "none"}, listen=[host.v4], key=lab.key)
        with agent.client() as c:
            for n in range(40):
                c.put_hint(f"scope{n}", f"192.0.2.{n + 1}:1")
        assert len(rows(agent)) <= 16 + 1
        agent.stop()
        agent.settings["segment.ports"] = f"{port_of(sock)}"
        agent.env["MOONCAKE_PREFERRED_SEGMENT"] = "10.9.9.9:5"
        agent.env["DRAY_SEGMENT_KNOWN"] = "10.8.8.8:5"
        agent.start()
        state(agent, f"{host.v4}:{port_of(sock)}", "ready")
        assert {"10.9.9.9:5", "10.8.8.8:5"} <= set(rows(agent))


def test_names_in_hints_are_not_used(lab, new_agent):
    """The name of a listener's segment does not come from a client's hint."""
    host = lab.hosts[0]
    with contextlib.closing(listen(host)) as sock, contextlib.closing(listen(host)) as other:
        name = f"{host.v4}:{port_of(sock)}"
        agent = new_agent(settings={**QUICK_PROBES, "segment.ports": f"{port_of(sock)}"}, listen=[host.v4], key=lab.key)
        until(lambda: preferred(agent).segment == name)
        with agent.client() as c:
            c.put_hint("scope", f"127.0.0.1:{port_of(sock)}")
        state(agent, f"127.0.0.1:{port_of(sock)}", "ready")
        other.close()  # triggers another search for listeners
        with contextlib.closing(listen(host)):
            until(lambda: rows(agent)[name]["probes"] > 3)
        assert preferred(agent).segment == name and "has another name now" not in agent.text()


def test_loopback_names_of_other_nodes(lab, new_agent):
    host = lab.hosts[0]
    with Pages(host) as master:
        master.detail(("localhost:40053", "", "OK"), ("127.0.0.1:40054", "", "OK"), (f"{host.v4}:40055", "", "OK"))
        agent = new_agent(settings={**QUICK_PROBES, "mooncake.masters": master.url}, listen=[host.v4], key=lab.key)
        until(lambda: preferred(agent).segment == f"{host.v4}:40055")
        master.detail(("localhost:40053", "", "OK"), ("127.0.0.1:40054", "", "OK"))
        until(lambda: preferred(agent).segment == "")
        assert any("calls it loopback" in c["reason"] for c in candidates(agent))


def test_draining_segment_is_not_preferred(lab, new_agent):
    host = lab.hosts[0]
    name = f"{host.v4}:50053"
    with Pages(host) as master, Owner(listen(host), handshake_daemon(descriptor("x:1"))) as owner:
        endpoint = f"{host.v4}:{port_of(owner.sock)}"
        master.detail((name, endpoint, "OK"))
        agent = new_agent(settings={**QUICK_PROBES, "mooncake.masters": master.url}, listen=[host.v4], key=lab.key)
        until(lambda: preferred(agent).segment == name)
        master.detail((name, endpoint, "DRAINING"))
        until(lambda: preferred(agent).segment == "")
        assert "DRAINING" in next(c["reason"] for c in candidates(agent) if c["segment"] == name)
        master.detail((name, endpoint, "OK"))
        until(lambda: preferred(agent).segment == name)


def test_masters_that_agree_and_disagree(lab, new_agent):
    host = lab.hosts[0]
    name = f"{host.v4}:50053"
    with Pages(host) as one, Pages(host) as two:
        one.detail((name, "", "OK"))
        two.detail((name, "", "DRAINING"))
        agent = new_agent(settings={**QUICK_PROBES, "mooncake.masters": f"{one.url},{two.url}"}, listen=[host.v4], key=lab.key)
        until(lambda: preferred(agent).segment == name and one.asked > 3 and two.asked > 3)
        assert "lost" not in {e["new"] for e in agent.ctl("events", "--json")["events"]}
        # the content of a failed master is dropped; that of the other one counts
        one.pages.clear()
        one.pages["/get_segments_detail"] = 503, b""
        assert "DRAINING" in state(agent, name, "lost")["reason"]
        two.pages["/get_segments_detail"] = 503, b""
        until(lambda: "master" not in rows(agent)[name]["sources"])


def test_changed_url_of_a_master_loses_nothing(lab, new_agent):
    host = lab.hosts[0]
    name = f"{host.v4}:50053"
    with Pages(host) as one, Pages(host) as two:
        one.detail((name, "", "OK"))
        two.detail((name, "", "OK"))
        conf = lab.write("conf", f'mooncake: {{ masters = ["{one.url}"]; }};\n')
        agent = new_agent(settings=QUICK_PROBES, args=["--config", conf], listen=[host.v4], key=lab.key)
        until(lambda: preferred(agent).segment == name)
        conf.write_text(f'mooncake: {{ masters = ["{two.url}/"]; }};\n')
        agent.ctl("reload")
        until(lambda: two.asked > 2)
        assert "lost" not in {e["new"] for e in agent.ctl("events", "--json")["events"]}
        assert two.url in rows(agent)[name]["reason"]


def test_segment_without_a_source_expires(lab, new_agent):
    host = lab.hosts[0]
    with contextlib.closing(listen(host, host.v4)) as sock:
        name = f"{host.v4}:{port_of(sock)}"
        conf = lab.write("conf", f'segment: {{ known = ["{name} tcp"]; expiry = "1s"; }};\n')
        agent = new_agent(settings=QUICK_PROBES, args=["--config", conf], listen=[host.v4], key=lab.key)
        until(lambda: preferred(agent).segment == name)
        conf.write_text('segment: { known = []; expiry = "1s"; };\n')
        agent.ctl("reload")
        until(lambda: preferred(agent).segment == "")
        until(lambda: name not in rows(agent))


def test_hint_to_a_dead_segment_is_ignored(lab, new_agent):
    host = lab.hosts[0]
    with contextlib.closing(listen(host)) as sock:
        name = f"{host.v4}:{port_of(sock)}"
        agent = new_agent(settings={**QUICK_PROBES, "segment.ports": f"{port_of(sock)}"}, listen=[host.v4], key=lab.key)
        until(lambda: preferred(agent).segment == name)
        with agent.client(segments=True) as c:
            c.put_hint("", f"{host.v4}:1")  # refuses connections
            until(lambda: rows(agent)[f"{host.v4}:1"]["failures"] >= 3)
            until(lambda: preferred(agent).segment == name)
            # a hint to a live segment is effective until it is forgotten
            with contextlib.closing(listen(host, host.v4)) as living:
                alive = f"{host.v4}:{port_of(living)}"
                c.put_hint("", alive)
                until(lambda: agent.ctl("status", "--json")["preferred_segment"] == alive)
                c.forget_hint("")
            until(lambda: agent.ctl("status", "--json")["preferred_segment"] == name)


def test_peers_as_segments(lab, new_pair):
    """A peer is a segment that is ready while it is connected; later it is probed as an agent. It is never preferred."""
    a, b = new_pair(**{"probe__backoff_min": "20ms", "probe__backoff_max": "200ms", "segment__ports": "none"})
    name = b.ctl("status", "--json")["segment"]
    with Side(a, 4096) as here, Side(b, 4096, bytes(4096)) as there:
        here.reach(there)
        row = state(a, name, "ready")
        assert row["probe"] == "peer" and row["sources"] == "peer" and not row["preferred"]
    b.kill()
    row = state(a, name, "lost")
    assert row["target"] == f"dray://{name}" and row["sources"] == "state" and row["reason"]
    b.start()
    assert state(a, name, "ready")["probe"] == "dray"
    own = a.ctl("status", "--json")["segment"]
    assert own not in rows(a) or not rows(a)[own]["preferred"]


def test_waiting_for_a_segment(lab, new_agent):
    host = lab.hosts[0]
    with contextlib.closing(listen(host)) as sock:
        port = port_of(sock)
    agent = new_agent(settings={**QUICK_PROBES, "segment.ports": f"{port}"}, listen=[host.v4], key=lab.key)
    name = f"{host.v4}:{port}"
    waits = [subprocess.Popen([DRAYCTL, "--control", agent.control, "wait", f"segment={which}", "--timeout", f"{int(LIMIT)}s"],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE) for which in (name, "local", "preferred")]
    with contextlib.closing(listen(host, port=port)):
        for wait in waits:
            out, err = wait.communicate(timeout=LIMIT)
            assert wait.returncode == 0, err
    lost = agent.ctl("wait", f"segment={name}", "state=lost", "--timeout", f"{int(LIMIT)}s", check=False)
    assert lost.returncode == 0, lost.stderr
