# SPDX-License-Identifier: Apache-2.0
"""An operator's changes to a running agent, and the record of them: reload, levels, cancel, close, events, drain."""

import contextlib
import fcntl
import json
import os
import pty
import re
import resource
import select
import shutil
import signal
import subprocess
import termios
import threading
import time

import dray
import pytest
from harness import DRAYCTL, LIMIT, MIB, Side, expect, noise, until
from test_ctl import conform, ctl, schema_of
from test_http import stopped_worker
from test_lifecycle import waiting_transfer

pytestmark = pytest.mark.skipif(not DRAYCTL.exists(), reason=f"{DRAYCTL} does not exist: build it first")


@contextlib.contextmanager
def held(agent, **how):
    """Yields both sides, the remote, and a transfer that waits for a word."""
    with Side(agent, MIB, wire=True, name="reader") as here, Side(agent, MIB, noise(MIB)) as there:
        remote = here.reach(there)
        waiting = here.client.read(here.region, remote, [(0, 0, 4096)], wait_word=(here.region, 0, 1), **how)
        until(lambda: agent.ctl("transfers", "--json")["transfers"])
        yield here, there, remote, waiting


def events(agent, kind=None):
    found = agent.ctl("events", "--json")
    conform(found, schema_of("events"))
    return [e for e in found["events"] if kind in (None, e["kind"])]


def lines(stream):
    """Yields lines as they come; fails if none comes in time."""
    text = b""
    while True:
        assert select.select([stream], [], [], LIMIT)[0], f"nothing more came after {text}"
        got = os.read(stream.fileno(), 65536)
        if not got:
            return
        *whole, text = (text + got).split(b"\n")
        yield from (line.decode() for line in whole)


# --- transfers --------------------------------------------------------------------------------------

def test_list_of_ended_transfers(pair):
    a, b = pair
    with Side(a, 4 * MIB, wire=True) as here, Side(b, 4 * MIB, noise(4 * MIB), notifications=True) as there:
        remote = here.reach(there)
        here.client.read(here.region, remote, [(0, 0, 4 * MIB)]).result(LIMIT)
        here.client.write(here.region, remote, [(0, 0, 10), (100, 100, 10)], notify=(1, b"x")).result(LIMIT)
        stopped = here.client.read(here.region, remote, [(0, 0, 1)], wait_word=(here.region, 0, 0xfeedface), deadline=0.2)
        expect("deadline", stopped.result, LIMIT)
        out = a.ctl("transfers", "--recent", "--json")
        conform(out, schema_of("ended_transfers"))
        session = next(s["session"] for s in a.ctl("sessions", "--json")["sessions"])
        read, write, late = [t for t in out["ended_transfers"] if t["session"] == session]
        assert (read["status"], read["direction"], read["transport"]) == ("ok", "read", "tcp")
        assert read["bytes"] == read["bytes_done"] == 4 * MIB and read["slices"] >= 4 and read["resent"] == 0
        assert read["segment"] == b.ctl("status", "--json")["segment"]
        assert write["operations"] == 2 and write["notified_ns"] > 0 and write["direction"] == "write"
        assert (late["status"], late["transport"], late["slices"], late["bytes_done"]) == ("deadline", "none", 0, 0)
        assert late["waited_ns"] == late["duration_ns"] >= 0.2e9
        for t in (read, write, late):
            assert t["duration_ns"] == sum(t[k] for k in ("waited_ns", "queued_ns", "moved_ns", "notified_ns"))
        assert "deadline" in a.ctl("transfers", "--recent")
        # the list has the last 1,000 transfers, in order
        for i in range(3):
            done = [here.client.read(here.region, remote, [(0, 0, 1)]) for _ in range(400)]
            for t in done:
                t.result(LIMIT)
        rows = a.ctl("transfers", "--recent", "--json")["ended_transfers"]
        assert len(rows) == 1000 and {t.request_id for t in done} <= {r["request"] for r in rows[-600:]}
        assert [r["ago_ns"] for r in rows] == sorted((r["ago_ns"] for r in rows), reverse=True)


def test_slow_transfers_are_logged(new_agent):
    agent = new_agent(settings={"transfer.slow": "1ms", "log.transfers": "false"})
    with Side(agent, 64 * MIB, wire=True) as here, Side(agent, 64 * MIB) as there:
        remote = here.reach(there)
        here.client.read(here.region, remote, [(0, 0, 1)]).result(LIMIT)
        here.client.read(here.region, remote, [(0, 0, 64 * MIB)] * 4).result(LIMIT)
        line = until(lambda: next((x for x in agent.text().splitlines() if "slow: read took" in x and "of 268435456 bytes" in x), None))
        for word in ("queued", "moved", "notified", "slices", "ok", "transport=local", "class=bulk", "session="):
            assert word in line, line
        # the wait for the wait word does not count
        words = here.memory.words()
        waiting = here.client.read(here.region, remote, [(64, 0, 1)], wait_word=(here.region, 0, 7))
        until(lambda: agent.ctl("transfers", "--json")["transfers"])
        words[0] = 7
        words.release()
        waiting.result(LIMIT)
        assert f"request={waiting.request_id}" not in agent.text()


def test_log_of_all_transfers(new_agent):
    agent = new_agent(settings={"log.transfers": "true"})
    with Side(agent, MIB, wire=True) as here, Side(agent, MIB) as there:
        done = here.client.read(here.region, here.reach(there), [(0, 0, 4096)] * 3)
        done.result(LIMIT)
        until(lambda: re.search(rf"info.*read took .* 12288 of 12288 bytes.* ok .*request={done.request_id} ", agent.text()))
        assert "slow:" not in agent.text()


def test_cancel(agent):
    with held(agent) as (here, there, remote, waiting):
        transfer, = agent.ctl("transfers", "--json")["transfers"]
        out = agent.ctl("cancel", str(transfer["session"]), str(transfer["request"]), "--json")
        conform(out, schema_of("cancel"))
        assert out == {"result": "cancelled"}
        error = expect("cancelled", waiting.result, LIMIT)
        assert "operator" in str(error)
        done = ctl(agent.control, "cancel", transfer["session"], transfer["request"])
        assert done.returncode == 1 and "no such transfer" in done.stderr
        done = ctl(agent.control, "cancel", 99, 1)
        assert done.returncode == 1 and "no session 99" in done.stderr
        here.client.read(here.region, remote, [(0, 0, MIB)]).result(LIMIT)  # the session still works


def test_cancel_while_bytes_move(pair):
    """cancel returns when no byte of the transfer moves any more, whether it was cancelled or ended before."""
    a, b = pair
    with Side(a, 64 * MIB, wire=True) as here, Side(b, 64 * MIB) as there:
        remote = here.reach(there)
        for _ in range(5):
            moving = here.client.write(here.region, remote, [(0, 0, 64 * MIB)] * 64)  # it takes longer than drayctl's start
            session = until(lambda: next((t["session"] for t in a.ctl("transfers", "--json")["transfers"]), None))
            result = a.ctl("cancel", str(session), str(moving.request_id)).strip()
            assert result in ("cancelled", "ok")
            assert not a.ctl("transfers", "--json")["transfers"]
            if result == "cancelled":
                expect("cancelled", moving.result, LIMIT)
            else:
                moving.result(LIMIT)


def test_close(agent):
    with held(agent) as (here, there, _, waiting):
        session = next(s["session"] for s in agent.ctl("sessions", "--json")["sessions"] if s["name"] == "reader")
        out = agent.ctl("close", str(session), "wrong model", "--json")
        conform(out, schema_of("close"))
        assert out == {"closed": str(session)}
        expect(("session_closed", "agent_restarted"), waiting.result, LIMIT)
        last = until(lambda: next((e for e in events(agent, "session") if "wrong model" in e["reason"]), None))
        assert last["subject"] == f"{session} reader" and (last["old"], last["new"]) == ("open", "closed")
        region = agent.ctl("regions", "--json")["regions"][0]["region"]
        for argv in (("close", region), ("close", f"{region:#x}"), ("cancel", region, 1)):
            done = ctl(agent.control, *argv)
            assert done.returncode == 2 and f"{region:#x} is a region, not a session" in done.stderr
        done = ctl(agent.control, "close", session)
        assert done.returncode == 1 and f"no session {session}" in done.stderr
    for argv, text in ((["close"], "needs SESSION"), (["close", "x"], "is not a number"), (["close", "0x"], "is not a number"), (["cancel", "1"], "needs SESSION and REQUEST"),
                       (["cancel", "1", "-"], "is not a number"), (["close", "1", "2", "3"], "takes two arguments"),
                       (["transfers", "--count", "3"], "without --watch"), (["rails", "--enable", "a", "--disable", "b"], "exclude"),
                       (["drain", "--force", "--timeout", "1s"], "exclude"), (["rails", "--enable", "x/0"], "DEVICE/PORT")):
        done = ctl(agent.control, *argv)
        assert done.returncode == 2 and text in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr


def test_unknown_rails(agent):
    for verb in ("--enable", "--disable"):
        done = ctl(agent.control, "rails", verb, "mlx9_9/2")
        assert done.returncode == 1 and "mlx9_9/2" in done.stderr and "drayctl rails" in done.stderr


def test_top_and_watch(agent):
    with Side(agent, MIB) as there, Side(agent, MIB, name="mover") as here:
        remote = here.reach(there)
        stop = threading.Event()

        def move():
            while not stop.is_set():
                here.client.read(here.region, remote, [(0, 0, MIB)]).result(LIMIT)

        mover = threading.Thread(target=move)
        mover.start()
        try:
            def samples():
                """Two samples of top; None if no byte moved between them."""
                out = ctl(agent.control, "top", "--json", "--interval", "200ms", "--count", 2).stdout
                first, at = json.JSONDecoder().raw_decode(out)
                second, _ = json.JSONDecoder().raw_decode(out[at:].lstrip())
                return (first, second) if second["per_second"]["local_bytes"] > 0 else None

            first, second = until(samples, "bytes that move between two samples")
            for sample in (first, second):
                conform(sample, schema_of("top"))
            assert first["interval_ns"] == 0 and first["per_second"]["local_bytes"] == 0
            assert second["interval_ns"] >= 0.2e9
            moved = {s["name"]: s["bytes"] for s in second["sessions"]}
            assert moved["mover"] > 0 and moved[""] == 0
            times, = second["transfer_times"]
            assert (times["transport"], times["class"]) == ("local", "bulk") and times["transfers"] > 0
            assert 0 < times["moved_ns"] < LIMIT * 1e9 and times["queued_ns"] < LIMIT * 1e9
            text = ctl(agent.control, "top", "--interval", "200ms", "--count", 2).stdout
            assert "mover" in text and "B/s" in text and "\033" not in text
            plain = [line.split("\t") for line in ctl(agent.control, "top", "--plain", "--count", 1).stdout.splitlines()]
            assert ["total", "local_bytes", "0.000"] in plain and {p[0] for p in plain} == {"total", "session", "transport"}

            def sessions(order):
                """Names of the sessions and their bytes a second, as top lists them."""
                out = ctl(agent.control, "top", "--json", "--sort", order, "--interval", "200ms", "--count", 2).stdout
                _, at = json.JSONDecoder().raw_decode(out)
                rows = json.loads(out[at:])["sessions"]
                return [row["name"] for row in rows], [row["bytes"] for row in rows]

            listed = [one["name"] for one in json.loads(ctl(agent.control, "sessions", "--json").stdout)["sessions"]]
            assert sessions("none")[0] == listed and len(listed) == 2

            def sorted_by_bytes():
                names, rates = sessions("bytes")
                return names[0] == "mover" and rates[0] > rates[1]

            assert until(sorted_by_bytes, "the session that moves bytes first")
            out = ctl(agent.control, "transfers", "--watch", "--interval", "100ms", "--count", 3, "--plain")
            assert out.returncode == 0
        finally:
            stop.set()
            mover.join()


def test_top_on_a_terminal(new_agent):
    """It fills the terminal, and goes on when the agent was away."""
    agent = new_agent()
    ours, its = pty.openpty()
    termios.tcsetwinsize(its, (6, 30))
    with subprocess.Popen([DRAYCTL, "--control", agent.control, "--no-color", "top", "--interval", "100ms"], stdout=its,
                          stderr=its, stdin=subprocess.DEVNULL) as process:
        os.close(its)
        seen = b""

        def screen(word):
            """The next whole screen with this word."""
            nonlocal seen
            end = time.monotonic() + LIMIT
            while time.monotonic() < end:
                assert select.select([ours], [], [], LIMIT)[0], seen
                seen += os.read(ours, 1 << 16)
                *whole, seen = seen.split(b"\033[H\033[2J")
                if found := [s for s in whole if word in s]:
                    return found[0].decode().splitlines()
            raise AssertionError(f"no screen has {word}")

        try:
            lines = screen(b"running")
            assert len(lines) == 5 and max(map(len, lines)) == 30 and lines[1] == "local  0.0 B/s"
            agent.kill()
            assert len(screen(b"drayctl: ")[0]) == 30
            agent.start()
            assert screen(b"running")[1] == "local  0.0 B/s"
            process.send_signal(signal.SIGINT)
            assert process.wait(LIMIT) in (0, -signal.SIGINT)
        finally:
            process.kill()
            os.close(ours)


def on_terminal():
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # a shell without job control starts what it runs in the background with this signal ignored
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)


@pytest.mark.parametrize("end", ["q", "signal", "quit"])
def test_top_reads_keys(new_agent, end):
    """Keys choose the order at once and end it, a new size prints the last output again, and the terminal is left as it was."""
    agent = new_agent()
    ours, its = pty.openpty()
    termios.tcsetwinsize(its, (40, 100))
    before = termios.tcgetattr(its)
    seen = b""

    def screen(test):
        """The next whole screen for which this is true."""
        nonlocal seen
        end = time.monotonic() + LIMIT
        while time.monotonic() < end:
            # with an interval of an hour, none is followed by another
            for shown in seen.split(b"\033[H\033[2J")[1:]:
                if shown.endswith(b"\n") and test(lines := shown.decode().splitlines()):
                    seen = b""
                    return lines
            assert select.select([ours], [], [], LIMIT)[0], seen
            seen += os.read(ours, 1 << 16)
        raise AssertionError(seen)

    with subprocess.Popen([DRAYCTL, "--control", agent.control, "--no-color", "top", "--interval", "1h"], stdin=its, stdout=its,
                          stderr=its, start_new_session=True, preexec_fn=on_terminal) as process:
        try:
            def order(word):
                return lambda lines: len(lines) > 5 and lines[1].startswith(f"sorted by {word} (keys: n none, b bytes, ")

            screen(order("none"))
            os.write(ours, b"b")
            screen(order("bytes"))
            os.write(ours, b"xt")  # x stands for nothing
            screen(order("transfers"))
            termios.tcsetwinsize(ours, (4, 20))
            screen(lambda lines: len(lines) == 3 and max(map(len, lines)) == 20)
            if end == "q":
                os.write(ours, b"q")
            else:
                until(lambda: not termios.tcgetattr(its)[3] & termios.ECHO)
                if end == "quit":
                    os.write(ours, b"\x1c")
                else:
                    process.terminate()
            assert process.wait(LIMIT) == (-signal.SIGQUIT if end == "quit" else 0)
            assert termios.tcgetattr(its) == before
        finally:
            process.kill()
            os.close(its)
            os.close(ours)


def test_top_prints_as_often_as_it_was_asked(new_agent):
    """The times at which the agent is away do not count."""
    agent = new_agent()
    count = 20
    with subprocess.Popen([DRAYCTL, "--control", agent.control, "--json", "top", "--interval", "100ms", "--count", str(count)],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        first = process.stdout.readline()
        process.send_signal(signal.SIGSTOP)
        agent.kill()
        process.send_signal(signal.SIGCONT)
        assert "waiting for it" in process.stderr.readline()
        agent.start()
        rest = process.stdout.read()
        assert process.wait(LIMIT) == 0
    assert (first + rest).count('"per_second"') == count


def test_end_of_watching(agent):
    """A watching drayctl ends at a signal, and when its output is closed."""
    agent.ctl("log-level", "notice")
    agent.ctl("log-level", "info")
    for argv in (["top"], ["events", "--watch"], ["transfers", "--watch"]):
        with subprocess.Popen([DRAYCTL, "--control", agent.control, "--json", *argv], stdout=subprocess.PIPE) as process:
            assert process.stdout.readline()
            process.send_signal(signal.SIGTERM)
            assert process.wait(LIMIT) in (0, -signal.SIGTERM)  # -SIGTERM: the signal came while it wrote
    with subprocess.Popen([DRAYCTL, "--control", agent.control, "top", "--interval", "100ms"], stdout=subprocess.PIPE) as process:
        assert process.stdout.readline()
        process.stdout.close()
        process.wait(LIMIT)


# --- events -------------------------------------------------------------------------------------------

def test_events(new_pair):
    a, b = new_pair()
    with subprocess.Popen([DRAYCTL, "--control", a.control, "events", "--watch"], stdout=subprocess.PIPE) as watch:
        with Side(a, MIB, name="reader") as here, Side(b, MIB) as there:
            here.client.read(here.region, here.reach(there), [(0, 0, MIB)]).result(LIMIT)
            b.kill()
            b.process = None
            until(lambda: [e for e in events(a, "peer") if e["old"] == "ready"])
        a.ctl("log-level", "debug")
        a.ctl("drain", "--wait", "--stay")
        a.ctl("resume")
        told = []
        for line in lines(watch.stdout):
            told.append(line)
            if "resumed" in line:
                break
        watch.terminate()
    found = events(a)
    while found[-1]["new"] != "running":  # later events, such as that of the segment's probe
        found.pop()
    assert [e["number"] for e in found] == list(range(1, len(found) + 1))
    assert [e["time_ns"] for e in found] == sorted(e["time_ns"] for e in found)
    assert len(told) == len(found)
    kinds = [(e["kind"], e["old"], e["new"]) for e in found]
    for change in (("session", "open", "closed"), ("log-level", "info", "debug"), ("state", "running", "draining"),
                   ("state", "draining", "drained"), ("state", "drained", "running")):
        assert change in kinds
    peer = [e for e in found if e["kind"] == "peer"]
    assert peer[0]["new"] == "ready" and peer[1]["old"] == "ready" and peer[1]["reason"]
    assert peer[0]["subject"] == peer[1]["subject"] != ""
    assert a.ctl("events").splitlines()[0].split() == ["TIME", "KIND", "SUBJECT", "FROM", "TO", "REASON"]


@pytest.mark.skipif(not shutil.which("busctl"), reason="busctl is not installed")
def test_signals(new_pair):
    a, b = new_pair()
    with subprocess.Popen(["busctl", f"--address=unix:path={a.control}", "--json=short", "monitor"], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE) as monitor:
        assert b"Monitoring" in monitor.stderr.readline()
        with Side(a, MIB, name="reader") as here, Side(b, MIB) as there:
            here.client.read(here.region, here.reach(there), [(0, 0, 1)]).result(LIMIT)
        a.ctl("drain", "--wait", "--stay")
        seen = {}
        for line in lines(monitor.stdout):
            message = json.loads(line)
            if message["type"] == "signal":
                seen.setdefault(message["member"], message["payload"]["data"])
            if "StateChanged" in seen and "SessionClosed" in seen:
                break
        monitor.terminate()
    assert seen["StateChanged"] == ["running", "draining"]
    assert seen["SessionClosed"][1:] == ["reader", "the client closed"]
    peer, segment, old, new, reason = seen["PeerChanged"]
    assert new == "ready" and segment == b.ctl("status", "--json")["segment"] and peer and old and reason
    assert seen["EventAdded"] == [1]


# --- configuration -----------------------------------------------------------------------------------

def with_file(lab, new_agent, text, **how):
    file = lab.write("dray.conf", text)
    agent = new_agent(args=["--config", str(file)], **how)
    return agent, file


GOOD = 'log: { level = "notice"; };\ntransfer: { deadline = "30s"; };\ntcp: { streams = 3; };\n'

# the text of a file, and a text that the error must contain besides the name of the file
BAD = [
    ("log: { level = \"loud\"; };\n", "log.level"),
    ("log: { level = 3; };\n", "log.level"),
    ("log: { levle = \"info\"; };\n", "log.level"),
    ("logg: { level = \"info\"; };\n", "logg"),
    ("log = \"info\";\n", "log"),
    ("log: { level = [\"info\", \"debug\"]; };\n", "log.level"),
    ("log: { transfers = \"perhaps\"; };\n", "log.transfers"),
    ("transfer: { deadline = \"never\"; };\n", "transfer.deadline"),
    ("transfer: { deadline = \"0s\"; };\n", "transfer.deadline"),
    ("transfer: { deadline = 5; };\n", "transfer.deadline"),
    ("transfer: { slow = \"25h\"; };\n", "transfer.slow"),
    ("data: { allow_uids = [\"root\"]; };\n", "data.allow_uids"),
    ("data: { allow_uids = [\"-1\"]; };\n", "data.allow_uids"),
    ("limits: { pool_bytes = 4294967296; };\n", "limits.pool_bytes"),
    ("limits: { remotes_per_session = 0; };\n", "limits.remotes_per_session"),
    ("limits: { remotes_per_session = 99999999999; };\n", "limits.remotes_per_session"),
    ("agent: { drain_timeout = \"10\"; };\n", "agent.drain_timeout"),
    ("log: { level = \"info\"; \n", ""),
    ("log: { level = \"info; };\n", ""),
    ("log: { level = \"info\"; level = \"debug\"; };\n", ""),
    ("peer: { heartbeat = \"10s\"; heartbeat_limit = \"1s\"; };\n", "peer.heartbeat_limit"),
    ("@include \"nowhere.conf\"\n", "nowhere.conf"),
    ("\x00\x01\x02", ""),
]


def test_bad_files_change_nothing(lab, new_agent):
    agent, file = with_file(lab, new_agent, GOOD)
    before = agent.ctl("config", "--json")
    with agent.client() as client:
        client.region(dray.Memory(MIB))
        for text, says in BAD:
            file.write_text("# one line\n" + text)
            done = ctl(agent.control, "reload")
            assert done.returncode == 1 and len(done.stderr.splitlines()) == 1, (text, done)
            assert says in done.stderr and str(file) in done.stderr or "nowhere" in done.stderr, (text, done.stderr)
            assert agent.ctl("config", "--json") == before, text
        assert len(events(agent, "config")) == len(BAD) >= 20
        file.unlink()
        done = ctl(agent.control, "reload")
        assert done.returncode == 1 and str(file) in done.stderr
        assert agent.ctl("config", "--json") == before
        session, = agent.ctl("sessions", "--json")["sessions"]
        assert session["regions"] == 1  # the session was not affected


def test_reload(lab, new_agent):
    agent, file = with_file(lab, new_agent, GOOD)
    config = agent.ctl("config", "--json")
    conform(config, schema_of("settings"))
    values = {s["key"]: s for s in config["settings"]}
    assert values["log.level"]["value"] == "notice" and values["log.level"]["origin"] == f"{file}:1"
    assert values["tcp.streams"]["value"] == "3" and not values["tcp.streams"]["reload"]
    assert values["agent.state_dir"]["origin"] == "command line" and values["limits.peers"]["origin"] == "default"
    assert f"{file}:2" in agent.ctl("config", "--origin") and str(file) not in agent.ctl("config")
    with held(agent) as (here, there, remote, waiting):
        assert agent.ctl("reload") == "no key has changed\n"
        file.write_text('log: { level = "debug"; transfers = true; };\ntransfer: { deadline = "300ms"; };\n'
                  'tcp: { streams = 5; };\nlimits: { remotes_per_session = 1; };\n')
        out = agent.ctl("reload", "--json")
        conform(out, schema_of("reload"))
        assert out == {"applied": ["log.level", "log.transfers", "transfer.deadline", "limits.remotes_per_session"],
                       "restart": ["tcp.streams"]}
        values = {s["key"]: s for s in agent.ctl("config", "--json")["settings"]}
        assert values["log.level"]["value"] == "debug" and values["tcp.streams"]["value"] == "3"
        assert values["tcp.streams"]["origin"] == f"{file}:3"
        # the new values are effective in existing sessions
        assert agent.ctl("log-level", "--plain") == "debug\n"
        late = here.client.read(here.region, remote, [(0, 0, 1)], wait_word=(here.region, 0, 1))
        expect("deadline", late.result, LIMIT)
        until(lambda: f"request={late.request_id}" in agent.text())
        expect("quota", here.reach, there)
        # transfers that were accepted before keep their deadline
        words = here.memory.words()
        words[0] = 1
        words.release()
        waiting.result(LIMIT)
    assert "need a restart: tcp.streams" in agent.text()


def test_sighup_reloads(lab, new_agent):
    agent, file = with_file(lab, new_agent, 'log: { level = "notice"; };\n')
    file.write_text('log: { level = "info"; };\ndata: { allow_uids = ["4242"]; };\n')
    agent.signal(signal.SIGHUP)
    assert agent.wait_notify("RELOADING=1") and agent.wait_notify("READY=1")
    assert agent.ctl("log-level", "--json") == {"log_level": "info"}
    expect("denied", agent.client)
    file.write_text("data: { allow_uids = [\"x\"]; };\n")
    agent.signal(signal.SIGHUP)
    until(lambda: "reload refused" in agent.text())
    expect("denied", agent.client)
    file.write_text("")
    agent.signal(signal.SIGHUP)
    until(lambda: len(events(agent, "config")) == 3)
    agent.client().close()


def test_reload_keeps_other_settings(new_pair):
    """A reload does not move the values of other keys, such as the key's identity and patterns that other threads read."""
    a, b = new_pair(peer__exclude_interfaces="nothing*", rdma__exclude="nothing*")
    for agent in (a, b):
        assert agent.ctl("reload") == "no key has changed\n"
    with Side(a, MIB) as here, Side(b, MIB, noise(MIB)) as there:
        here.client.read(here.region, here.reach(there), [(0, 0, MIB)]).result(LIMIT)
        assert here.view == there.view


def test_lowered_limit(lab, new_agent):
    agent, file = with_file(lab, new_agent, 'limits: { pool_bytes = "8MiB"; };\n')
    with agent.client() as client:
        client.pool(4 * MIB)
        file.write_text('limits: { pool_bytes = "1MiB"; };\n')
        agent.ctl("reload")
        expect("quota", client.pool, 4096)


def test_log_level(agent):
    before = agent.ctl("log-level").strip()
    out = agent.ctl("log-level", "debug", "--json")
    conform(out, schema_of("log_level"))
    assert agent.ctl("log-level") == "debug\n"
    agent.client().close()
    until(lambda: " debug" in agent.text().lower())
    done = ctl(agent.control, "log-level", "loud")
    assert done.returncode == 2 and "error, warning, notice, info, debug" in done.stderr
    agent.ctl("log-level", before)


# --- drain --------------------------------------------------------------------------------------------

def test_drain_shows_progress(new_agent):
    agent = new_agent(settings={"agent.drain_timeout": "1h"})
    with held(agent) as (_, _, _, waiting):
        with subprocess.Popen([DRAYCTL, "--control", agent.control, "drain", "--wait", "--stay"], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True) as drain:
            status = until(lambda: (s := agent.ctl("status", "--json"))["transfers_left"] and s)
            conform(status, schema_of("status"))
            assert (status["state"], status["transfers_left"], status["bytes_left"]) == ("draining", 1, 4096)
            assert 0 < status["deadline_ns"] <= 3600e9
            assert "1 transfer with 4.0 KiB left" in agent.ctl("status")
            assert "draining: 1 transfer with 4.0 KiB left" in drain.stderr.readline()
            # a second drain that is due at once
            assert agent.ctl("drain", "--force", "--stay", "--wait") == "drained\n"
            expect("deadline", waiting.result, LIMIT)
            assert drain.wait(LIMIT) == 0 and drain.stdout.read() == "drained\n"
        assert agent.ctl("status", "--json")["transfers_left"] == 0
    agent.ctl("drain", "--force")
    assert agent.wait() == 0


def test_resume_ends_a_waiting_drain(new_agent):
    agent = new_agent(settings={"agent.drain_timeout": "1h"})
    with held(agent) as (_, _, _, waiting):
        with subprocess.Popen([DRAYCTL, "--control", agent.control, "drain", "--wait"], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True) as drain:
            until(lambda: agent.ctl("status", "--json")["transfers_left"])
            agent.ctl("resume")
            assert drain.wait(LIMIT) == 1 and "a resume ended the drain" in drain.stderr.read()
        waiting.cancel()


def test_drain_without_stay_after_drain_with_stay(new_agent):
    agent = new_agent()
    agent.ctl("drain", "--wait", "--stay")
    assert agent.ctl("drain", "--stay", "--json") == {"state": "drained", "already": True}
    assert agent.ctl("drain", "--wait", "--json") == {"state": "drained", "already": True}
    agent.ctl("drain", "--force")
    assert agent.wait() == 0


def test_sigterm_takes_over_a_drain(new_agent):
    """After `drain --stay`, a first SIGTERM lets transfers finish and then ends the agent."""
    agent = new_agent(settings={"agent.drain_timeout": "1h"})
    with held(agent) as (here, _, _, waiting):
        agent.ctl("drain", "--stay")
        agent.signal(signal.SIGTERM)
        until(lambda: "draining already; the agent will exit when drained" in agent.text())
        assert ctl(agent.control, "resume").returncode == 4
        words = here.memory.words()
        words[0] = 1
        words.release()
        waiting.result(LIMIT)
    assert agent.wait() == 0


def test_drain_under_load_loses_nothing(new_pair):
    """Transfers in both directions during a drain either succeed with all bytes or fail with a reason."""
    a, b = new_pair(agent__drain_timeout="30s")
    size = 256 << 10
    with contextlib.ExitStack() as stack:
        sides = [(stack.enter_context(Side(x, 4 * MIB)), stack.enter_context(Side(y, 4 * MIB, noise(4 * MIB, n))))
                 for n, (x, y) in enumerate(((a, b), (b, a)) * 2)]
        remotes = [here.reach(there) for here, there in sides]
        ended = [[] for _ in sides]
        started = threading.Barrier(len(sides) + 1)

        def load(i):
            here, there = sides[i]
            for n in range(100000):
                if n == 20:
                    started.wait(LIMIT)
                offset = n % 16 * size
                try:
                    transfer = here.client.read(here.region, remotes[i], [(offset, offset, size)])
                    transfer.result(LIMIT)
                    assert here.view[offset:offset + size] == there.view[offset:offset + size]
                    ended[i].append("ok")
                except dray.Error as e:
                    ended[i].append(e.name)
                    return

        threads = [threading.Thread(target=load, args=(i,)) for i in range(len(sides))]
        for t in threads:
            t.start()
        started.wait(LIMIT)
        assert a.ctl("drain", "--wait", "--stay") == "drained\n"
        for i, t in enumerate(threads):
            t.join(LIMIT)
            assert not t.is_alive() and len(ended[i]) > 20
            # no transfer may end by a timeout, because there was enough time
            assert ended[i][-1] in ("draining", "revoked", "peer_lost", "not_found"), ended[i][-1]
            assert set(ended[i][:-1]) == {"ok"}
        for agent in (a, b):
            counters = agent.ctl("status", "--json")["counters"]
            assert counters["dray_transfers_in_flight"] == 0
            ends = sum(counters[f"dray_transfers_{how}_total"] for how in ("done", "failed", "cancelled"))
            assert counters["dray_transfers_accepted_total"] == ends
    a.ctl("resume")


def test_service_manager_does_not_read(new_agent):
    """When the service manager's queue is full, after about ten messages, the agent continues, and sends the last state later."""
    agent = new_agent()
    for _ in range(20):
        agent.ctl("drain", "--wait", "--stay")
        agent.ctl("resume")
    agent.ctl("drain", "--wait", "--stay")
    assert agent.wait_notify("STATUS=drained")
    while select.select([agent.notify], [], [], 0)[0]:
        agent.notified.append(agent.notify.recv(4096).decode())
    until(lambda: "STATUS=drained" in agent.notified[-1] or agent.wait_notify("STATUS=drained", 0.2))


# --- many clients -------------------------------------------------------------------------------------

def test_two_hundred_clients_at_once(agent):
    """Two hundred control clients are served while transfers continue."""
    verbs = ("status", "sessions", "transfers", "events", "config", "regions")
    with Side(agent, MIB) as here, Side(agent, MIB) as there:
        remote = here.reach(there)
        with contextlib.ExitStack() as stack:
            watchers = [stack.enter_context(subprocess.Popen([DRAYCTL, "--control", agent.control, "--timeout", f"{LIMIT:.0f}s", "events",
                                                              "--watch"], stdout=subprocess.PIPE)) for _ in range(200)]
            for i in range(30):
                assert ctl(agent.control, verbs[i % len(verbs)], "--json").returncode == 0
                here.client.read(here.region, remote, [(0, 0, MIB)]).result(LIMIT)
            level = agent.ctl("log-level").strip()
            agent.ctl("log-level", "error" if level != "error" else "info")
            agent.ctl("log-level", level)
            for w in watchers:
                while b"log.level" not in (line := w.stdout.readline()):
                    assert line
                w.terminate()


# --- waiting, and a worker that does not end -----------------------------------------------------------

def test_wait(lab, new_agent):
    """wait works before the agent starts, and for ready, drained and gone; at its limit it names what is missing."""
    agent, file = with_file(lab, new_agent, 'ready: { require = ["rdma"]; };\n', start=False)
    done = ctl(agent.control, "wait", "--timeout", "200ms")
    assert done.returncode == 1 and str(agent.control) in done.stderr and not done.stdout
    with subprocess.Popen([DRAYCTL, "--control", agent.control, "wait", "--for", "live"], stdout=subprocess.PIPE) as live, \
            subprocess.Popen([DRAYCTL, "--control", agent.control, "wait"], stdout=subprocess.PIPE) as ready:
        agent.start()
        assert live.wait(LIMIT) == 0 and live.stdout.read() == b"live\n"
        done = ctl(agent.control, "wait", "--for", "ready", "--timeout", "2s")
        assert done.returncode == 1 and "rdma: no rail is up" in done.stderr and len(done.stderr.splitlines()) == 1
        assert ready.poll() is None
        file.write_text("")
        assert agent.ctl("reload") == "applied: ready.require\n"
        assert ready.wait(LIMIT) == 0 and ready.stdout.read() == b"ready\n"
    out = agent.ctl("wait", "--json")
    conform(out, schema_of("wait"))
    assert out == {"reached": "ready"}
    with subprocess.Popen([DRAYCTL, "--control", agent.control, "wait", "--for", "drained"], stderr=subprocess.PIPE) as waiter:
        until(lambda: "SigBlk:\t0000000000004002" in open(f"/proc/{waiter.pid}/status").read())  # waits between two requests
        waiter.send_signal(signal.SIGTERM)
        assert waiter.wait(LIMIT) == 1 and b"interrupted: the agent is running" in waiter.stderr.read()
    with subprocess.Popen([DRAYCTL, "--control", agent.control, "wait", "--for", "drained"], stdout=subprocess.PIPE) as drained:
        until(lambda: "SigBlk:\t0000000000004002" in open(f"/proc/{drained.pid}/status").read())
        agent.ctl("drain", "--wait")  # the agent is drained only for a moment
        assert drained.wait(LIMIT) == 0 and drained.stdout.read() == b"drained\n"
    assert agent.wait() == 0
    agent.start()
    done = ctl(agent.control, "wait", "--for", "gone", "--timeout", "100ms")
    assert done.returncode == 1 and "still there" in done.stderr
    agent.signal(signal.SIGSTOP)  # an agent that does not answer is not gone
    done = ctl(agent.control, "wait", "--timeout", "300ms")
    assert done.returncode == 1 and "did not answer" in done.stderr
    assert ctl(agent.control, "wait", "--for", "gone", "--timeout", "300ms").returncode == 1
    agent.signal(signal.SIGCONT)
    with subprocess.Popen([DRAYCTL, "--control", agent.control, "wait", "--for", "gone"], stdout=subprocess.PIPE) as gone:
        agent.ctl("drain", "--force")
        assert gone.wait(LIMIT) == 0
    assert agent.wait() == 0


def test_stopped_worker_does_not_delay_the_exit(new_agent):
    """If a debugger holds a worker, the agent exits, and logs that the worker does not end."""
    agent = new_agent()
    with stopped_worker(agent) as tid:
        agent.signal(signal.SIGINT)
        os.waitpid(tid, 0x40000000)  # __WALL: a dead thread stays until its tracer waits for it
        assert agent.wait() == 1
    assert "a worker does not end" in agent.text()
    agent.check_log()
    agent.process = None


def test_drain_ends_although_a_worker_is_stopped(new_agent):
    """It has no answer of the worker to wait for, stops the transfers of the other one at its deadline, and exits some time later."""
    agent = new_agent(settings={"agent.workers": 2, "agent.drain_timeout": "100ms", "transfer.slice_timeout": "100ms",
                                "peer.heartbeat_limit": "300ms", "peer.heartbeat": "50ms", "peer.rest_heartbeat": "100ms"})
    with Side(agent, MIB) as here, Side(agent, MIB) as there:
        transfer = waiting_transfer(here, here.reach(there))
        own = next(x["worker"] for x in agent.ctl("sessions", "--json")["sessions"] if x["session"] == here.client.info().session)
        with stopped_worker(agent, 1 - own) as tid:
            agent.signal(signal.SIGTERM)
            error = transfer.exception(LIMIT)
            until(lambda: os.waitpid(tid, 0x40000000 | os.WNOHANG)[0], "the end of the process")  # __WALL
            assert agent.wait() == 1 and error.name == "deadline"
    assert "the drain does not end, because a worker does not answer" in agent.text()
    agent.check_log()
    agent.process = None
