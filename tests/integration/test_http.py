# SPDX-License-Identifier: Apache-2.0
"""/metrics, /healthz and /readyz with curl and promtool, and with hostile clients."""

import contextlib
import ctypes
import json
import os
import pathlib
import re
import select
import shutil
import socket
import subprocess

import pytest
import yaml
from conftest import PAIR_SETTINGS, serves
from harness import LIMIT, MIB, ROOT, Side, expect, parse_segment, until

SCHEMA = yaml.safe_load((ROOT / "schema/metrics.yaml").read_text())
ADDRESS = "127.0.0.1"


def started(pid):
    """When a process was started, in seconds since 1970, as the kernel says it."""
    boot, = [int(line.split()[1]) for line in pathlib.Path("/proc/stat").read_text().splitlines() if line.startswith("btime ")]
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return boot + int(fields[19]) / os.sysconf("SC_CLK_TCK")


def serve_http(agent):
    """The agent serves HTTP from its next start on; agent.http is the address."""
    agent.http = agent._segment(ADDRESS)
    agent.settings["http.listen"] = agent.http
    return agent


def with_http(new_agent, lab, name="agent", probes=False, start=True, settings=(), **how):
    """Makes an agent that serves HTTP; agent.probes is the address of the probes."""
    agent = serve_http(new_agent(name, start=False, settings={"health.worker_limit": "300ms", **dict(settings)}, **how))
    if probes:
        agent.probes = agent._segment(ADDRESS)
        agent.settings["http.probe_listen"] = agent.probes
    return agent.start() if start else agent


def connect(agent, where=None):
    return agent.host.connect(where or agent.http)


def answer_of(sock):
    """Reads until the end of the connection; returns (status, headers, body)."""
    data = b""
    with contextlib.suppress(ConnectionResetError):
        while more := sock.recv(1 << 16):
            data += more
    if not data:
        return None
    head, _, body = data.partition(b"\r\n\r\n")
    status, *lines = head.decode().split("\r\n")
    return int(status.split()[1]), {k.lower(): v for k, v in (line.split(": ", 1) for line in lines)}, body.decode()


def ask(agent, path, method="GET", where=None, extra="", body=""):
    with connect(agent, where) as sock:
        sock.sendall(f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{extra}\r\n{body}".encode())
        return answer_of(sock)


def samples(text):
    """Values by name with labels, as in the text."""
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in text.splitlines() if line[0] != "#")}


def conditions(body):
    return {c["name"]: c for c in json.loads(body)["conditions"]}


EPOLL_WAITS = ("232", "281", "441") if os.uname().machine == "x86_64" else ("22", "441")  # and pwait, pwait2


@contextlib.contextmanager
def stopped_worker(agent, index=0):
    """Stops one worker as a debugger does; yields its thread id. If the thread dies, this process must wait for it."""
    libc = ctypes.CDLL(None, use_errno=True)
    seize, interrupt, detach = 0x4206, 0x4207, 17
    tasks = pathlib.Path(f"/proc/{agent.pid}/task")
    tid = next(int(t.name) for t in tasks.iterdir() if (t / "comm").read_text() == f"dray-worker-{index}\n")

    def ptrace(request):
        if libc.ptrace(ctypes.c_long(request), ctypes.c_long(tid), None, None) < 0:
            raise OSError(ctypes.get_errno(), "ptrace")

    def waits():
        """True if the worker is in epoll_wait, where it holds no lock. A lock of the allocator would block the whole agent."""
        return (tasks / str(tid) / "syscall").read_text().split()[0] in EPOLL_WAITS

    def stopped():
        until(waits, "a worker that waits")
        try:
            ptrace(seize)
        except PermissionError:
            pytest.skip("ptrace is not allowed here")
        ptrace(interrupt)
        os.waitpid(tid, 0x40000000)  # __WALL
        return waits() or ptrace(detach)

    until(stopped, "a stopped worker")
    try:
        yield tid
    finally:
        with contextlib.suppress(ProcessLookupError):
            ptrace(detach)


def readable(sock):
    return select.select([sock], [], [], 0)[0]


# --- metrics ----------------------------------------------------------------------------------------

@pytest.mark.skipif(not shutil.which("promtool") or not shutil.which("curl"), reason="promtool or curl is not installed")
def test_curl_and_promtool(new_agent, lab):
    agent = with_http(new_agent, lab)

    def curl(*argv):
        return subprocess.run(agent.host.command("curl", "-sS", "--max-time", int(LIMIT), *argv), stdout=subprocess.PIPE,
                              text=True, check=True).stdout

    text = curl(f"http://{agent.http}/metrics")
    done = subprocess.run(["promtool", "check", "metrics"], input=text, text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT)
    assert done.returncode == 0 and not done.stdout, done.stdout
    # both requests use one connection, which stays open
    codes = curl("-o", "/dev/null", "-o", "/dev/null", "-w", "%{http_code} %{num_connects}\n", f"http://{agent.http}/healthz",
                 f"http://{agent.http}/readyz")
    assert codes == "200 1\n200 0\n"
    assert "HTTP/1.1 200" in curl("-I", f"http://{agent.http}/healthz")


def test_all_metrics_are_shown(new_agent, lab):
    agent = with_http(new_agent, lab)
    status, headers, text = ask(agent, "/metrics")
    assert status == 200 and headers["content-type"].startswith("text/plain; version=0.0.4")
    fresh = samples(text)
    for m in SCHEMA["metrics"]:
        assert m["name"] in fresh
        assert m["type"] == "gauge" or fresh[m["name"]] == 0, m["name"]
    for m in SCHEMA["metrics"] + SCHEMA["families"]:
        of_none = {"device", "peer", "space"} & set(m.get("labels", []))  # there are no rails, no peers and no store
        assert f"# HELP {m['name']} {m['doc']}\n# TYPE {m['name']} {m['type']}\n{'' if of_none else m['name']}" in text
    with Side(agent, MIB) as here, Side(agent, MIB) as there:
        here.client.read(here.region, here.reach(there), [(0, 0, MIB)]).result(LIMIT)
        # the agent counts a transfer after it has posted its completion
        now = until(lambda: (of := samples(ask(agent, "/metrics")[2]))["dray_transfers_done_total"] and of, "the count of the transfer")
        assert now["dray_sessions"] == 2 and now["dray_local_bytes_total"] == MIB and now["dray_transfers_done_total"] == 1
        of = [f'{{transport="local",class="bulk",phase="{phase}"}}' for phase in ("queue", "move", "completion")]
        assert [now["dray_transfer_phase_seconds_count" + labels] for labels in of] == [1, 1, 1]
        assert sum(now["dray_transfer_phase_seconds_sum" + labels] for labels in of) == \
            pytest.approx(now['dray_transfer_duration_seconds_sum{transport="local"}'], abs=1e-8)
    assert now['dray_state{state="running"}'] == 1 and now['dray_state{state="draining"}'] == 0
    assert now['dray_peers_by_state{state="ready"}'] == 0 and now['dray_ready_condition{condition="listener"}'] == 1
    version = agent.ctl("version", "--json")["drayd"]
    assert now[f'dray_build_info{{version="{version}"}}'] == 1
    assert now["process_start_time_seconds"] == pytest.approx(started(agent.pid), abs=2)
    assert now["process_resident_memory_bytes"] > MIB and now["process_cpu_seconds_total"] > 0
    assert now["process_open_fds"] >= len(os.listdir(f"/proc/{agent.pid}/fd")) - 4 and now["process_max_fds"] > 100
    counters = agent.ctl("status", "--json")["counters"]
    assert set(counters) == {m["name"] for m in SCHEMA["metrics"]}


def test_bytes_time_and_errors_by_label(new_agent, lab):
    """Both ends count the payload of one read under the segment of the other one; a transfer that fails counts under its error."""
    a, b = (with_http(new_agent, lab, name, key=lab.key) for name in "ab")
    with Side(a, MIB) as here, Side(b, MIB, b"x" * MIB) as there:
        remote = here.reach(there)
        here.client.read(here.region, remote, [(0, 0, MIB)]).result(LIMIT)
        waits = here.client.read(here.region, remote, [(4096, 0, 4096)], deadline=0.05, wait_word=(here.region, 0, 1))
        expect("deadline", waits.result, LIMIT)
        at_a, at_b = (samples(ask(agent, "/metrics")[2]) for agent in (a, b))
    assert at_a[f'dray_peer_received_bytes_total{{peer="{b.listen[0]}",transport="tcp"}}'] == MIB
    assert at_b[f'dray_peer_sent_bytes_total{{peer="{a.listen[0]}",transport="tcp"}}'] == MIB
    assert at_a[f'dray_peer_sent_bytes_total{{peer="{b.listen[0]}",transport="rdma"}}'] == 0
    assert 0 < at_a[f'dray_peer_moving_seconds_total{{peer="{b.listen[0]}"}}'] < LIMIT
    assert {name: n for name, n in at_a.items() if "_errors_total{" in name and n} == {'dray_transfer_errors_total{error="deadline"}': 1}


# --- requests ---------------------------------------------------------------------------------------

def test_pages_methods_and_limits(new_agent, lab):
    agent = with_http(new_agent, lab, probes=True)
    for path in ("/metrics", "/healthz", "/readyz"):
        status, headers, body = ask(agent, path)
        assert status == 200 and body and int(headers["content-length"]) == len(body)
        status, headers, body = ask(agent, path, "HEAD")
        assert status == 200 and not body and int(headers["content-length"]) > 0
        for method in ("POST", "PUT", "DELETE", "OPTIONS", "BREW"):
            status, headers, _ = ask(agent, path, method)
            assert status == 405 and headers["allow"] == "GET, HEAD"
        assert ask(agent, path, extra="Content-Length: 3\r\n", body="abc")[0] == 413
        assert ask(agent, path, extra="Transfer-Encoding: chunked\r\n", body="0\r\n\r\n")[0] == 413
        assert ask(agent, path, extra="Content-Length: 0\r\n")[0] == 200
        assert ask(agent, path, extra="X: " + 20000 * "a" + "\r\n")[0] == 431
    for path in ("/", "/metric", "/healthz/", "/../metrics", "/%00"):
        status, _, body = ask(agent, path)
        assert status == 404 and "/metrics, /healthz and /readyz" in body
    assert ask(agent, "/" + 20000 * "a")[0] == 414
    assert ask(agent, "/healthz")[2] == "alive\n"
    # the address for probes
    assert ask(agent, "/healthz", where=agent.probes)[0] == 200
    assert ask(agent, "/readyz", where=agent.probes)[0] == 200
    status, _, body = ask(agent, "/metrics", where=agent.probes)
    assert status == 404 and body == "not found; this address serves /healthz and /readyz\n"
    # several requests in one packet
    with connect(agent) as sock:
        sock.sendall(3 * b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n" + b"GET /readyz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        data = b""
        while more := sock.recv(1 << 16):
            data += more
    assert data.count(b"HTTP/1.1 200 OK") == 4 and data.count(b"\r\n\r\nalive\n") == 3
    for junk in (b"GET\r\n\r\n", b"GET /healthz HTTP/9.9\r\n\r\n", b"GET /healthz HTTP/1.1\r\n\r\n"):
        with connect(agent) as sock:
            sock.sendall(junk)
            answer = answer_of(sock)
            assert not answer or answer[0] >= 400
    for rest in (b"", b"\0" * 100, b"\x16\x03\x01\x02\0", b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"):
        with connect(agent) as sock:  # closes without waiting for an answer
            sock.sendall(rest)
    serves(agent)


# --- hostile clients --------------------------------------------------------------------------------

def test_slow_connections_are_closed(new_agent, lab):
    agent = with_http(new_agent, lab, settings={"http.connections": 20, "http.timeout": "700ms"})
    slow = [connect(agent) for _ in range(20)]
    for sock in slow:
        sock.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-A")
    until(lambda: ask_or_none(agent) is None, "the last connection taken")
    # other clients are served
    assert agent.ctl("health", "--json")["alive"]
    serves(agent)
    for sock in slow:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            while not select.select([sock], [], [], 0.005)[0]:
                sock.send(b"a")  # bytes that arrive slowly do not extend the time
        sock.close()
    assert until(lambda: ask_or_none(agent))[0] == 200


def ask_or_none(agent):
    try:
        return ask(agent, "/healthz")
    except (BrokenPipeError, ConnectionResetError):
        return None


def test_a_thousand_connections(new_agent, lab):
    agent = with_http(new_agent, lab, settings={"http.connections": 64}, probes=True)
    serves(agent)  # the agent keeps some descriptors after the first region
    before = agent.resources().fds
    with contextlib.ExitStack() as stack:
        for _ in range(1000):
            stack.enter_context(connect(agent)).send(b"GET /metr")
        until(lambda: agent.resources().fds["socket"] >= 64)
        assert agent.resources().fds["socket"] <= before["socket"] + 64 + 8
        # connections of probes are counted separately
        assert ask(agent, "/healthz", where=agent.probes)[0] == 200
        assert agent.ctl("health", "--json")["ready"]
        serves(agent)
    until(lambda: not agent.resources().fds - before, "the end of the connections")
    assert until(lambda: ask_or_none(agent))[0] == 200


# --- health -----------------------------------------------------------------------------------------

def test_agent_with_a_stopped_worker_is_not_alive(new_agent, lab):
    agent = with_http(new_agent, lab, env={"WATCHDOG_USEC": "200000"})
    assert agent.wait_notify("WATCHDOG=1")
    with stopped_worker(agent, 1):
        status, _, body = ask(agent, "/healthz")
        assert status == 503 and re.fullmatch(r"not alive: worker 1 has not answered for \d+\.\d s\n", body), body
        assert ask(agent, "/readyz")[0] == 200
        assert ask(agent, "/metrics")[0] == 200
        out = agent.ctl("health", "--json", check=False)
        assert out.returncode == 1 and "worker 1" in json.loads(out.stdout)["reason"]
        for argv, status in (("--live", 1), ("--ready", 0)):
            assert agent.ctl("health", argv, check=False).returncode == status
        until(lambda: "the watchdog is not notified: worker 1" in agent.text())
        # reads earlier notifications; after that none may come
        while readable(agent.notify):
            agent.notify.recv(4096)
        for _ in range(3):
            assert ask(agent, "/healthz")[0] == 503
        assert not readable(agent.notify), "the watchdog was notified"
        # requests that wait for the worker do not accumulate memory
        held = agent.rss_anon()
        for _ in range(20):
            with connect(agent) as sock:
                sock.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert ask(agent, "/healthz")[0] == 503
        assert agent.rss_anon() < held + 2 * MIB
    assert until(lambda: ask(agent, "/healthz")[0] == 200)
    assert agent.wait_notify("WATCHDOG=1")
    assert agent.ctl("health").startswith("alive\nready\n")


# --- readiness --------------------------------------------------------------------------------------

def test_ready_follows_drain(new_agent, lab):
    agent = with_http(new_agent, lab)
    status, headers, body = ask(agent, "/readyz")
    assert status == 200 and headers["content-type"] == "application/json" and json.loads(body)["ready"]
    assert conditions(body)["running"] == {"name": "running", "ok": True, "required": True, "reason": "the agent is running"}
    with Side(agent, MIB) as here, Side(agent, MIB) as there:
        remote = here.reach(there)
        waiting = here.client.read(here.region, remote, [(0, 0, 4096)], wait_word=(here.region, 0, 1))
        agent.ctl("drain", "--stay")
        status, _, body = ask(agent, "/readyz")
        assert status == 503 and conditions(body)["running"]["reason"] == "the agent is draining"
        assert ask(agent, "/healthz")[0] == 200
        waiting.cancel()
    agent.ctl("drain", "--stay", "--wait")
    assert ask(agent, "/readyz")[0] == 503 and ask(agent, "/healthz")[0] == 200
    assert samples(ask(agent, "/metrics")[2])['dray_state{state="drained"}'] == 1
    done = agent.ctl("health", check=False)
    assert done.returncode == 1 and "not ready" in done.stdout and "no   running: the agent is drained" in done.stdout
    assert agent.ctl("health", "--live")
    agent.ctl("resume")
    assert ask(agent, "/readyz")[0] == 200


def test_required_conditions(new_agent, lab):
    agent = with_http(new_agent, lab, settings={"ready.require": "rdma,tcp", "rdma.enable": "false"})
    status, _, body = ask(agent, "/readyz")
    assert status == 503 and conditions(body)["rdma"]["required"] and not conditions(body)["rdma"]["ok"]
    assert conditions(body)["rdma"]["reason"] == "rdma.enable is false" and conditions(body)["tcp"]["ok"]
    lonely = with_http(new_agent, lab, "lonely", listen=["none"])
    status, _, body = ask(lonely, "/readyz")
    assert status == 200 and not conditions(body)["listener"]["ok"] and not conditions(body)["listener"]["required"]
    for words, why in (("gpu", "rdma, tcp, segment:HOST:PORT"), ("segment:peer:7411", "names are not resolved"),
                       ("segment:1.2.3.4", "no address and port"), ("tcp,tcp", "twice")):
        bad = with_http(new_agent, lab, "bad", start=False, settings={"ready.require": words})
        bad.start(ready=False)
        assert bad.wait() == 1 and "ready.require" in bad.text() and why in bad.text(), bad.text()
        bad.process = None


def test_required_segment(new_agent, lab):
    """The agent connects to a required segment by itself, and again after a loss; also if the other side requires this one."""
    there = new_agent("there", start=False, host=1, listen=[lab.hosts[1].v4], key=lab.key, settings=PAIR_SETTINGS)
    segment = there.listen[0]
    here = with_http(new_agent, lab, "here", listen=[lab.hosts[0].v4], key=lab.key,
                     settings={**PAIR_SETTINGS, "ready.require": f"segment:{segment}", "peer.idle_timeout": "1s"})
    there.settings["ready.require"] = f"segment:{here.listen[0]}"
    name = f"segment:{segment}"

    def state():
        status, _, body = ask(here, "/readyz")
        c = conditions(body)[name]
        assert c["required"] and c["ok"] == (status == 200) and c["reason"]
        return c["ok"]

    assert not state()
    there.start()
    until(state, "the connection")
    until(lambda: there.ctl("health", "--ready", check=False).returncode == 0)
    peer, = here.ctl("peers", "--json")["peers"]
    assert peer["state"] == "ready"
    serves(here, there)
    there.kill()
    until(lambda: not state(), "the loss")
    there.start()
    until(state, "the connection after the loss")
    there.ctl("drain", "--stay", "--wait")
    until(lambda: not state(), "the peer's drain")
    assert "draining" in conditions(ask(here, "/readyz")[2])[name]["reason"]
    assert samples(ask(here, "/metrics")[2])["dray_peers_ready"] == 0
    there.ctl("resume")
    until(state, "the peer's resume")
    assert samples(ask(here, "/metrics")[2])["dray_peers_ready"] == 1
    there.stop()
    until(lambda: not state())


# --- start ------------------------------------------------------------------------------------------

def test_addresses(new_agent, lab):
    agent = with_http(new_agent, lab)
    bad = new_agent("bad", start=False, settings={"http.listen": agent.http})
    bad.start(ready=False)
    assert bad.wait() == 1 and f"http.listen: {agent.http}: " in bad.text() and "choose another port" in bad.text()
    bad.process = None
    bad = new_agent("bad", start=False, settings={"http.probe_listen": "192.0.2.1:7413"})
    bad.start(ready=False)
    assert bad.wait() == 1 and "http.probe_listen: 192.0.2.1:7413: " in bad.text() and "not an address of this host" in bad.text()
    bad.process = None
    free = new_agent("free", settings={"http.listen": "127.0.0.1:0,[::1]:0"})
    where = re.findall(r"metrics and probes on (\S+)", free.text())
    assert len(where) == 2 and all(parse_segment(w)[1] for w in where)
    for address in where:
        free.http = address
        assert ask(free, "/healthz")[0] == 200
    none = new_agent("none", settings={"http.listen": "none"})
    assert "metrics and probes" not in none.text()
