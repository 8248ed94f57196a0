# SPDX-License-Identifier: Apache-2.0
"""drayctl and the control socket in detail: output, permissions, and calls to an agent that does not answer."""

import contextlib
import json
import os
import pty
import re
import select
import shutil
import signal
import socket
import subprocess
import time

import pytest
import yaml
from wire import codec as s
from harness import BUILD, DRAYCTL, GOLDEN, LIMIT, MIB, ROOT, Side, expect, golden, noise, until

pytestmark = pytest.mark.skipif(not DRAYCTL.exists(), reason=f"{DRAYCTL} does not exist: build it first")

SCHEMAS = ROOT / "schema/ctl"
LISTS = ("sessions", "regions", "mailboxes", "quotas", "peers", "transfers")
NOBODY = 65534


@pytest.fixture(autouse=True)
def checked(monkeypatch):
    """Each command of drayctl with the sanitizer, also a repeated one."""
    monkeypatch.setattr("harness.PLAIN_DRAYCTL", DRAYCTL)


def schema_of(name):
    return json.loads((SCHEMAS / f"{name}.json").read_text())


TYPES = {"object": dict, "array": list, "string": str, "boolean": bool, "integer": int, "number": (int, float),
         "null": type(None)}


def conform(value, schema, where="$"):
    """Checks the part of JSON Schema that schema/ctl uses."""
    known = {"$schema", "$comment", "title", "description", "type", "required", "properties", "additionalProperties",
             "items", "enum", "pattern", "minimum", "maximum"}
    assert set(schema) <= known, f"{where}: this test does not know {set(schema) - known}"
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    assert any(isinstance(value, TYPES[k]) and (k == "boolean" or not isinstance(value, bool)) for k in kinds), \
        f"{where}: {value!r} is not of type {schema['type']}"
    assert value in schema.get("enum", [value]), f"{where}: {value!r}"
    if isinstance(value, str):
        assert re.search(schema.get("pattern", ""), value), f"{where}: {value!r}"
    if isinstance(value, (int, float)):
        assert schema.get("minimum", value) <= value <= schema.get("maximum", value), f"{where}: {value!r}"
    if isinstance(value, list):
        for i, item in enumerate(value):
            conform(item, schema["items"], f"{where}[{i}]")
    if isinstance(value, dict):
        properties = schema.get("properties", {})
        assert set(schema["required"]) <= set(value), f"{where}: no {set(schema['required']) - set(value)}"
        for key, item in value.items():
            rest = schema.get("additionalProperties")
            assert key in properties or rest, f"{where}: {key} is not in the schema"
            conform(item, properties.get(key, rest), f"{where}.{key}")


def ctl(control, *argv, **how):
    return subprocess.run([DRAYCTL, "--control", control, *map(str, argv)], text=True, timeout=LIMIT,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, **how)


@contextlib.contextmanager
def busy(a, b):
    """Gives agent a one record of each list: a session, a region, a mailbox, a peer, a transfer that waits for a word."""
    with Side(a, MIB, wire=True, group="engine", name="reader") as here, Side(b, MIB, noise(MIB), name="owner") as there:
        remote = here.reach(there)
        here.client.read(here.region, remote, [(0, 0, MIB)]).result(LIMIT)
        waiting = here.client.read(here.region, remote, [(0, 0, 4096)], wait_word=(here.region, 0, 0xfeedface))
        here.client.request(s.pack_mailbox_open, capacity=16, name="engine-0")
        yield here, there, waiting
        waiting.cancel()


@pytest.mark.parametrize(("verb", "list_verb"), [
    (("close", "1"), "sessions"), (("cancel", "1", "1"), "sessions"), (("rails", "--disable", "none0"), "rails"),
    (("store", "--evict", "1", "--space", "none"), "store"), (("store", "--evict", "1", "--owner", "default:12345"), "store")])
def test_what_is_not_there_is_listed_by_a_verb(new_agent, verb, list_verb):
    done = new_agent(settings={"limits.store_bytes": "1MiB"}).ctl(*verb, check=False)
    assert done.returncode == 1 and f"; drayctl {list_verb} lists the" in done.stderr, done.stderr


@pytest.mark.parametrize("verb", [(), ("--keys", "1", "--owner", "default:0"), ("--warm", "1", "--owner", "default:0"),
                                  ("--evict", "1", "--space", "kv"), ("--trace", "/dev/null")])
def test_an_agent_without_a_store_says_so(new_agent, verb):
    done = new_agent().ctl("store", *verb, check=False)
    assert "this agent has no store; set limits.store_bytes" in (done.stderr if verb else done.stdout)
    assert done.returncode == bool(verb)


def test_data_socket_as_control_socket(agent):
    done = ctl(agent.socket, "status")
    assert done.returncode == 3 and f"{agent.socket} is not a control socket; name the agent's control socket" in done.stderr


def test_objects_without_masters(new_agent):
    """What the agent lacks is no wrong use of the command line."""
    done = new_agent().ctl("segments", "--object", "k", check=False)
    assert done.returncode == 1 and "set mooncake.masters" in done.stderr


# --- output --------------------------------------------------------------------------------

@pytest.mark.parametrize("verb", ["status", "trace"])
def test_closed_standard_streams(agent, verb):
    """No other file gets the number of a stream that the parent has closed."""
    done = subprocess.run(["sh", "-c", '"$@" <&- >&-', "sh", DRAYCTL, "--control", agent.control, verb], stderr=subprocess.PIPE,
                          text=True, timeout=LIMIT)
    assert done.returncode == 1 and "Bad file descriptor" in done.stderr, done.stderr


def test_an_agent_without_standard_streams(new_agent):
    """Its log goes to standard error, which the test reads."""
    agent = new_agent(wrap=["sh", "-c", 'exec "$@" <&- >&-', "sh"])
    for fd in (0, 1):
        assert os.readlink(f"/proc/{agent.pid}/fd/{fd}") == "/dev/null"

def test_schemas_agree_with_the_interface():
    """schema/ctl is written by hand and must match the D-Bus records."""
    kinds = {"s": "string", "b": "boolean", "u": "integer", "t": "integer", "i": "integer"}
    records = yaml.safe_load((ROOT / "schema/dbus.yaml").read_text())["records"]
    for record in records:
        if record["name"] == "check_step":  # drayctl makes findings of them
            continue
        if record["name"] == "transfer_time":  # drayctl top shows what they grow by
            assert schema_of("top")["properties"]["transfer_times"]["items"]["required"] == [f["name"] for f in record["fields"]]
            continue
        plural = record["name"] + ("es" if record["name"].endswith("x") else "s")
        verb = "health" if record["name"] == "condition" else plural
        item = schema_of(verb)["properties"][plural]["items"]
        assert [(f["name"], kinds[f["type"]]) for f in record["fields"]] == \
            [(name, p["type"]) for name, p in item["properties"].items()]
        assert item["required"] == list(item["properties"])
    metrics = yaml.safe_load((ROOT / "schema/metrics.yaml").read_text())
    names = [m["name"] for m in (metrics["metrics"] if isinstance(metrics, dict) else metrics)]
    assert schema_of("status")["properties"]["counters"]["required"] == names


def test_golden_json_is_complete():
    """Each kind of JSON output has an example in tests/data, written by tests/unit/test_ctl_json.c and the tests here."""
    names = {path.stem for path in SCHEMAS.glob("*.json")}
    assert names == {path.stem for path in (GOLDEN / "json").iterdir()}
    for name in names:
        conform(json.loads((GOLDEN / f"json/{name}.json").read_text()), schema_of(name))


def test_json_conforms(pair):
    a, b = pair
    conform(a.ctl("status", "--json"), schema_of("status"))
    for verb in LISTS:
        conform(a.ctl(verb, "--json"), schema_of(verb))
    with busy(a, b) as (here, there, waiting):
        for verb in LISTS:
            out = a.ctl(verb, "--json")
            conform(out, schema_of(verb))
            assert out[verb], f"nothing in {verb}"
        session, = a.ctl("sessions", "--json")["sessions"]
        assert session["name"] == "reader" and session["group"] == "engine"
        assert session["uid"] == (0 if a.lab.userns else os.getuid())
        assert session["pid"] == os.getpid() and session["regions"] == 1 and session["remotes"] == 1
        region, = a.ctl("regions", "--json")["regions"]
        assert region["region"] == here.region.handle and region["length"] == MIB and region["session"] == session["session"]
        region, = b.ctl("regions", "--json")["regions"]
        assert region["tokens"] == 1 and region["grants"] == 1
        peer = next(p for p in a.ctl("peers", "--json")["peers"] if p["agent_id"] == there.client.agent_id.hex())
        assert peer["state"] == "ready" and peer["imports"] == 1 and peer["transport"] == "tcp"
        transfer, = a.ctl("transfers", "--json")["transfers"]
        assert transfer["state"] == "waiting" and transfer["request"] == waiting.request_id
        assert transfer["bytes"] == 4096 and transfer["bytes_done"] == 0
    version = a.ctl("version", "--json")
    conform(version, schema_of("version"))
    assert version["drayd"] == version["drayctl"]


def test_plain_has_the_values_of_json(pair):
    a, b = pair
    with busy(a, b):
        for verb in ("sessions", "regions", "peers"):
            # Ages increase between the two calls.
            ages = {"age_ns", "since_ns", "heartbeat_age_ns"}
            rows = a.ctl(verb, "--json")[verb]
            lines = [line.split("\t") for line in a.ctl(verb, "--plain").splitlines()]
            assert len(rows) == len(lines)
            for row, line in zip(rows, lines):
                assert len(row) == len(line)
                for (key, value), text in zip(row.items(), line):
                    assert key in ages or text == str(int(value) if isinstance(value, bool) else value)
    plain = dict(line.split("\t") for line in a.ctl("status", "--plain").splitlines())
    status = a.ctl("status", "--json")
    assert plain["agent_id"] == status["agent_id"] and int(plain["pid"]) == status["pid"]
    assert set(status["counters"]) <= set(plain)


def test_tables(pair):
    a, b = pair
    for verb in LISTS[:2]:
        assert a.ctl(verb) == f"no {verb}\n"
    with busy(a, b):
        for verb in LISTS:
            head, *rows = a.ctl(verb).splitlines()
            assert head == head.upper() and rows
            assert all(line == line.rstrip() for line in rows)
            # Every column begins or ends with its title.
            for title in re.finditer(r"\S+", head):
                assert all(line[title.start():title.end()].strip() for line in rows), (head, rows)
        for argv in ((), ("status",)):
            assert f"pid {a.pid}" in a.ctl(*argv)


def test_control_characters_in_names_are_escaped(agent):
    with agent.client(name="caf\u00e9 \\ \"x\"", group="\u65e5\u672c"):
        head, row = agent.ctl("sessions").splitlines()
        assert "caf\u00e9 \\\\ \"x\"" in row and "\u65e5\u672c" in row
        line, = agent.ctl("sessions", "--plain").splitlines()
        assert line.split("\t")[1:3] == ["caf\u00e9 \\\\ \"x\"", "\u65e5\u672c"]
        session, = agent.ctl("sessions", "--json")["sessions"]
        assert session["name"] == "caf\u00e9 \\ \"x\"" and session["group"] == "\u65e5\u672c"


def test_colour_only_on_terminals(agent):
    def on_terminal(*argv, **environment):
        ours, theirs = pty.openpty()
        with subprocess.Popen([DRAYCTL, "--control", agent.control, *argv], stdout=theirs, stderr=theirs,
                              env={**os.environ, "TERM": "xterm", **environment}) as process:
            os.close(theirs)
            text = b""
            with contextlib.suppress(OSError):  # At its end, a terminal gives EIO.
                while more := os.read(ours, 4096):
                    text += more
            os.close(ours)
        assert process.returncode == 0
        return text.decode()

    assert "\033[32mrunning\033[0m" in on_terminal("status")
    for text in (on_terminal("status", "--no-color"), on_terminal("status", NO_COLOR="1"),
                 on_terminal("status", TERM="dumb"), on_terminal("status", "--json"), agent.ctl("status")):
        assert "\033" not in text


# --- permissions ----------------------------------------------------------------------------------------

def as_nobody(groups=()):
    """Prefix of a command that runs as a user other than root, with these groups."""
    return {"user": NOBODY, "group": NOBODY, "extra_groups": list(groups)}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change its user id")
def test_permission_to_drain(new_agent, lab):
    shutil.copy(DRAYCTL, lab.tmp / "drayctl")  # The other user may have no access to the source tree.
    (lab.tmp / "drayctl").chmod(0o755)

    def run(agent, *argv, groups=()):
        return subprocess.run([lab.tmp / "drayctl", "--control", agent.control, *argv], text=True, timeout=LIMIT,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd="/", **as_nobody(groups))

    agent = new_agent(settings={"control.mode": "0666", "control.group": "54321"})
    assert os.stat(agent.control).st_mode & 0o777 == 0o666 and os.stat(agent.control).st_gid == 54321
    for verb in ("status", *LISTS):
        assert run(agent, verb).returncode == 0
    done = run(agent, "drain")
    assert done.returncode == 4 and f"uid {NOBODY}" in done.stderr and len(done.stderr.splitlines()) == 1
    for argv in (("resume",), ("drain", "--force"), ("reload",), ("log-level", "debug"), ("cancel", "1", "1"), ("close", "1"),
                 ("rails", "--disable", "rxe0"), ("rails", "--enable", "rxe0"), ("store", "--evict", "1", "--space", "kv"),
                 ("store", "--keys", "1", "--space", "kv"), ("store", "--warm", "1", "--space", "kv"),
                 ("store", "--verify", "--space", "kv"), ("store", "--trace", "/dev/null"),
                 ("doctor", "--peer", "127.0.0.1:9")):
        refused = run(agent, *argv)
        assert refused.returncode == 4 and "is for root" in refused.stderr, (argv, refused)
    for verb in ("events", "config", "health", "paths", "rails", "gpus", "log-level"):
        assert run(agent, verb).returncode == 0
    assert run(agent, "log-level", "notice", groups=[54321]).returncode == 0
    assert agent.ctl("status", "--json")["state"] == "running"
    if shutil.which("busctl"):
        done = subprocess.run(["busctl", f"--address=unix:path={agent.control}", "call", "dev.dray.Agent1", "/dev/dray/Agent",
                               "dev.dray.Agent1", "Drain", "ub", "0", "false"], stderr=subprocess.PIPE, text=True,
                              timeout=LIMIT, cwd="/", **as_nobody())
        assert done.returncode != 0 and "denied" in done.stderr
    done = run(agent, "drain", "--wait", groups=[11111, 54321])
    assert done.returncode == 0, done.stderr
    assert agent.wait() == 0

    agent = new_agent(settings={"control.mode": "0600"})
    done = run(agent, "status")
    assert done.returncode == 4 and "permission denied" in done.stderr


def test_data_socket_refuses_control_calls(agent):
    done = ctl(agent.socket, "status")
    assert done.returncode == 3 and len(done.stderr.splitlines()) == 1


# --- genkey -----------------------------------------------------------------------------------------

def test_genkey(new_agent, tmp_path):
    """Two agents with such a key reach each other. Only the owner can read the file, and a second run does not replace it."""
    file = tmp_path / "key"
    made = subprocess.run([DRAYCTL, "genkey", file], capture_output=True, text=True)
    assert (made.returncode, made.stdout, made.stderr) == (0, "", "")
    key = file.read_text()
    assert re.fullmatch("[0-9a-f]{64}\n", key) and file.stat().st_mode & 0o7777 == 0o400
    printed = [subprocess.run([DRAYCTL, "genkey"], capture_output=True, text=True, check=True).stdout for _ in range(2)]
    assert len({key, *printed}) == 3 and all(re.fullmatch("[0-9a-f]{64}\n", p) for p in printed)
    again = subprocess.run([DRAYCTL, "genkey", file], capture_output=True, text=True)
    assert again.returncode == 1 and "exists and may be in use" in again.stderr and file.read_text() == key
    lost = subprocess.run([DRAYCTL, "genkey", tmp_path / "no/key"], capture_output=True, text=True)
    assert lost.returncode == 1 and "cannot create" in lost.stderr and "No such file" in lost.stderr
    with Side(new_agent(settings={"peer.key_file": str(file)}), MIB) as here, Side(new_agent(settings={"peer.key_file": str(file)}), MIB) as there:
        here.client.read(here.region, here.reach(there), [(0, 0, MIB)]).result(LIMIT)


# --- drain ------------------------------------------------------------------------------------------

def test_drain_with_wait_and_stay(new_agent):
    agent = new_agent()
    with Side(agent, MIB) as here, Side(agent, MIB) as there:
        remote = here.reach(there)
        waiting = here.client.read(here.region, remote, [(0, 0, 4096)], wait_word=(here.region, 0, 1))
        done = agent.ctl("drain", "--json")
        conform(done, schema_of("drain"))
        assert done == {"state": "draining", "already": False}
        done = agent.ctl("drain", "--json")
        assert done == {"state": "draining", "already": True}
        assert "already" in agent.ctl("drain")
        waiting.cancel()
    assert agent.wait() == 0

    agent = new_agent()
    with Side(agent, MIB) as here, Side(agent, MIB) as there:
        remote = here.reach(there)
        waiting = here.client.read(here.region, remote, [(0, 0, 4096)], wait_word=(here.region, 0, 1))
        began = time.monotonic()
        assert agent.ctl("drain", "--wait", "--stay", "--timeout", "300ms") == "drained\n"
        assert time.monotonic() - began >= 0.3
        expect("deadline", waiting.result, LIMIT)
    assert agent.ctl("status", "--json")["state"] == "drained"
    assert agent.ctl("drain", "--wait", "--stay", "--json") == {"state": "drained", "already": True}
    done = ctl(agent.control, "bench", "--socket", agent.socket)
    assert done.returncode == 4 and "draining" in done.stderr


@pytest.mark.parametrize("when", ["draining", "drained"])
def test_drain_keeps_an_earlier_stay(new_agent, when):
    """A second drain without --stay, as a preStop hook sends it, does not end an agent that stays; --force does."""
    agent = new_agent(settings={"agent.drain_timeout": "1h"})
    with Side(agent, MIB) as here, Side(agent, MIB) as there:
        remote = here.reach(there)
        if when == "draining":
            waiting = here.client.read(here.region, remote, [(0, 0, 4096)], wait_word=(here.region, 0, 1))
            here.client.read(here.region, remote, [(8192, 0, 1)]).result(LIMIT)  # It follows the waiting transfer, so that one was accepted.
        agent.ctl("drain", "--stay")
        until(lambda: agent.ctl("status", "--json")["state"] == when)
        assert "--stay" in agent.ctl("drain")
        if when == "draining":
            waiting.cancel()
        agent.ctl("wait", "--for", "drained")
        assert agent.ctl("resume") == "running\n"
        here.client.read(here.region, remote, [(0, 0, 1)]).result(LIMIT)
        agent.ctl("drain", "--wait", "--stay")
        agent.ctl("drain", "--force")
    assert agent.wait() == 0


def test_drain_when_unused(new_agent):
    """The drain begins when the last session has ended. Until then clients work as before, also with new sessions."""
    agent = new_agent()
    with subprocess.Popen([DRAYCTL, "--control", agent.control, "drain", "--when-unused", "--wait", "--stay"], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True) as waiter:
        assert waiter.wait(LIMIT) == 0 and waiter.stdout.read() == "drained\n", "there was no session"
    agent.ctl("resume")
    with Side(agent, MIB) as here:
        with subprocess.Popen([DRAYCTL, "--control", agent.control, "drain", "--when-unused", "--wait"], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True) as waiter:
            assert waiter.stderr.readline() == "waiting: 1 session left\n"
            with Side(agent, MIB) as there:
                here.client.read(here.region, here.reach(there), [(0, 0, MIB)]).result(LIMIT)
            assert agent.ctl("status", "--json")["state"] == "running"
            here.client.close()
            out, _ = waiter.communicate(timeout=LIMIT)
            assert waiter.returncode == 0 and out == "drained\n"
    assert agent.wait() == 0


def test_resume(new_agent):
    """After and during a drain: old sessions continue, and new ones are accepted."""
    agent = new_agent(settings={"agent.drain_timeout": "1h"})
    assert agent.ctl("resume") == "running already\n"
    with Side(agent, MIB) as here, Side(agent, MIB) as there:
        remote, words = here.reach(there), here.memory.words()
        agent.ctl("drain", "--wait", "--stay")
        expect("draining", here.client.read(here.region, remote, [(0, 0, 1)]).result, LIMIT)
        done = agent.ctl("resume", "--json")
        conform(done, schema_of("resume"))
        assert done == {"state": "running", "already": False}
        here.client.read(here.region, remote, [(0, 0, 1)]).result(LIMIT)
        with Side(agent, MIB) as new:
            new.client.read(new.region, new.reach(there), [(0, 0, MIB)]).result(LIMIT)
        waiting = here.client.read(here.region, remote, [(0, 0, 4096)], wait_word=(here.region, 0, 1))
        here.client.read(here.region, remote, [(8192, 0, 1)]).result(LIMIT)  # It follows the waiting transfer, so that one was accepted.
        assert agent.ctl("drain", "--json")["state"] == "draining"
        assert agent.ctl("resume", "--plain") == "running\n"
        words[0] = 1
        words.release()
        waiting.result(LIMIT)
        assert agent.ctl("status", "--json")["state"] == "running"
    agent.ctl("drain", "--wait")
    assert agent.wait() == 0


def test_no_resume_after_sigterm(new_agent):
    agent = new_agent(settings={"agent.drain_timeout": "1h"})
    with Side(agent, MIB) as here, Side(agent, MIB) as there:
        remote = here.reach(there)
        waiting = here.client.read(here.region, remote, [(0, 0, 4096)], wait_word=(here.region, 0, 1))
        here.client.read(here.region, remote, [(8192, 0, 1)]).result(LIMIT)  # It follows the waiting transfer, so that one was accepted.
        agent.signal(signal.SIGTERM)
        until(lambda: agent.ctl("status", "--json")["state"] == "draining")
        done = ctl(agent.control, "resume")
        assert done.returncode == 4 and done.stderr == "drayctl: the agent is draining and will exit\n"
        waiting.cancel()
    assert agent.wait() == 0


def test_drain_fails_if_the_agent_dies(new_agent):
    agent = new_agent()
    with Side(agent, MIB) as here, Side(agent, MIB) as there:
        remote = here.reach(there)
        here.client.read(here.region, remote, [(0, 0, 4096)], wait_word=(here.region, 0, 1))
        with subprocess.Popen([DRAYCTL, "--control", agent.control, "drain", "--wait"], stderr=subprocess.PIPE,
                              text=True) as waiter:
            until(lambda: agent.ctl("status", "--json")["state"] == "draining")
            agent.kill()
            _, err = waiter.communicate(timeout=LIMIT)
        assert waiter.returncode == 1 and "before it reported that it was drained" in err
    agent.process = None


# --- an agent that does not answer --------------------------------------------------------------------

@pytest.mark.parametrize("verb", [["status"], ["transfers"], ["drain"], ["drain", "--wait"], ["bench"]])
def test_nothing_hangs_on_a_stopped_agent(agent, verb):
    agent.signal(signal.SIGSTOP)
    try:
        done = ctl(agent.control, "--timeout", "300ms", *verb, env={**os.environ, "DRAY_SOCKET": str(agent.socket)})
        assert done.returncode == 3 and len(done.stderr.splitlines()) == 1, done.stderr
        # A full queue of connections gives the same error.
        with contextlib.ExitStack() as stack:
            if verb[0] != "bench":
                for _ in range(200):
                    sock = stack.enter_context(socket.socket(socket.AF_UNIX))
                    sock.setblocking(False)
                    if sock.connect_ex(str(agent.control)):
                        break
                assert ctl(agent.control, "--timeout", "300ms", *verb).returncode == 3
    finally:
        agent.signal(signal.SIGCONT)
    # A drain whose caller timed out must not be carried out later.
    assert agent.ctl("status", "--json")["state"] == "running"


def test_too_many_connections(agent):
    """The limit is reported, and later connections work."""
    socks = []
    try:
        for _ in range(270):
            socks.append(socket.socket(socket.AF_UNIX))
            socks[-1].connect(str(agent.control))
        done = until(lambda: (d := ctl(agent.control, "status")).returncode and d)
        assert done.returncode == 3 and "too many" in done.stderr
    finally:
        for sock in socks:
            sock.close()
    until(lambda: ctl(agent.control, "status").returncode == 0)


def test_one_agent_for_each_socket(new_agent):
    first = new_agent()
    second = new_agent("second", start=False)
    second.control = first.control
    second.start(ready=False)
    assert second.wait() == 1
    assert str(first.control) in second.text() and "served by another" in second.text()
    second.kill()
    second.process = None
    assert first.ctl("status")
    first.restart()  # The socket file of the killed agent still exists.
    assert first.ctl("status")


# --- bench ------------------------------------------------------------------------------------------

def test_bench_within_an_agent(agent):
    for argv in (["--count", 20], ["--size", "64KiB", "--ops", 16, "--count", 20, "--direction", "write"],
                 ["--size", 64, "--batch", 1, "--count", 100, "--class", "latency"], ["--size", 4097, "--ops", 3,
                                                                                      "--duration", "50ms"]):
        done = ctl(agent.control, "bench", "--json", "--memory", "32MiB", "--socket", agent.socket, *argv)
        assert done.returncode == 0, done.stderr
        out = json.loads(done.stdout)
        conform(out, schema_of("bench"))
        assert out["transport"] == "local" and out["transfers"] > 0
        assert out["bytes"] == out["transfers"] * out["ops"] * out["size"]
        latency = out["latency_ns"]
        assert 0 < latency["min"] <= latency["p50"] <= latency["p99"] <= latency["p999"] <= latency["max"]
    done = ctl(agent.control, "bench", "--count", 5, "--memory", "32MiB", "--socket", agent.socket)
    assert "local, read, bulk" in done.stdout and "p99.9" in done.stdout
    done = ctl(agent.control, "bench", "--plain", "--count", 5, "--memory", "32MiB", "--socket", agent.socket)
    assert done.stdout.split("\t")[:7] == ["local", "read", "bulk", str(MIB), "1", "8", "5"]


@contextlib.contextmanager
def served(agent, *argv):
    """Starts a bench --serve."""
    with subprocess.Popen([DRAYCTL, "bench", "--serve", "--socket", agent.socket, "--memory", "16MiB", *argv], bufsize=0,
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            yield process
            process.stdin.close()
            assert process.wait(LIMIT) == 0
        finally:
            process.kill()


def line_of(process):
    assert select.select([process.stdout], [], [], LIMIT)[0], "nothing was printed"
    return process.stdout.readline().decode().strip()


def test_bench_between_agents(pair):
    a, b = pair
    with served(b) as server:
        token = line_of(server)
        for direction in ("read", "write"):
            for given, text in ((token, ""), ("-", token + "\n")):
                done = ctl(a.control, "bench", "--json", "--socket", a.socket, "--direction", direction, "--count", 10,
                           "--token", given, input=text)
                assert done.returncode == 0, done.stderr
                out = json.loads(done.stdout)
                conform(out, schema_of("bench"))
                assert out["transport"] == "tcp" and out["transfers"] == 10
        done = ctl(a.control, "bench", "--socket", a.socket, "--batch", 64, "--token", token)
        assert done.returncode == 1 and "16.0 MiB" in done.stderr
    done = ctl(a.control, "bench", "--socket", a.socket, "--token", token, "--timeout", "2s")
    assert done.returncode == 4, done.stderr


def test_bench_serves_after_a_restart(new_agent):
    agent = new_agent()
    with served(agent, "--json") as server:
        def take():
            text = ""
            while not text.endswith("}"):
                text += line_of(server)
            out = json.loads(text)
            conform(out, schema_of("bench_serve"))
            return out["token"]

        first = take()
        agent.restart()
        second = take()
        assert first != second
        done = ctl(agent.control, "bench", "--socket", agent.socket, "--token", second, "--count", 3)
        assert done.returncode == 0, done.stderr
        done = ctl(agent.control, "bench", "--socket", agent.socket, "--token", first, "--count", 3)
        assert done.returncode == 4 and "incarnation" in done.stderr


def test_bench_serve_matches_golden(agent):
    with served(agent, "--json") as server:
        text = "".join(server.stdout.readline().decode() for _ in range(4))
        golden("json/bench_serve.json", text.replace(json.loads(text)["token"], "dray1:x"))


def bench(agent, *argv):
    """The output of drayctl bench --json, checked against its schema."""
    done = ctl(agent.control, "bench", "--json", "--socket", agent.socket, *argv)
    assert done.returncode == 0, done.stderr
    out = json.loads(done.stdout)
    conform(out, schema_of("bench"))
    assert out["bytes"] == out["transfers"] * out["ops"] * out["size"]
    for ceiling in out["ceilings"]:
        assert ceiling["dray"] > 0 and ceiling["ceiling"] > 0
        assert ceiling["ratio_min"] <= ceiling["ratio"] <= ceiling["ratio_max"]
    return out, done.stderr


@pytest.mark.parametrize("wait", ["adaptive", "spin", "sleep"])
@pytest.mark.parametrize("sessions", [1, 5])
def test_bench_waits_and_sessions(agent, wait, sessions):
    out, _ = bench(agent, "--wait", wait, "--sessions", sessions, "--size", "4KiB", "--ops", 7, "--batch", 3, "--count", 500,
                   "--memory", "1MiB")
    assert (out["wait"], out["sessions"], out["transfers"]) == (wait, sessions, 500)
    assert 1 / sessions <= out["fairness"] <= 1 and (sessions > 1 or out["fairness"] == 1)
    assert out["rounds"] == 0 and out["ceilings"] == []
    until(lambda: agent.ctl("sessions", "--json")["sessions"] == [])


def test_bench_sessions_have_separate_memory(agent):
    """The largest number of sessions, whose lists of operations fill the arena: all bytes must arrive at their places."""
    out, _ = bench(agent, "--sessions", 64, "--size", 1, "--count", 200, "--direction", "write", "--memory", "4KiB")
    assert out["sessions"] == 64 and out["transfers"] == 200
    out, _ = bench(agent, "--size", 3, "--ops", 65536, "--batch", 10, "--count", 12)
    assert out["operations"] == 12 * 65536


@pytest.mark.parametrize("argv, names", [
    (["--size", "64KiB", "--ops", 4], ["memcpy"]),
    (["--size", 64, "--batch", 1, "--wait", "sleep", "--direction", "write"], ["memcpy", "eventfd_echo"]),
    (["--size", 64, "--batch", 1, "--sessions", 2], ["memcpy"]),
    (["--size", 64, "--batch", 1, "--ops", 2, "--wait", "spin"], ["memcpy"]),
])
def test_bench_with_ceilings(agent, argv, names):
    out, _ = bench(agent, "--ceiling", "--rounds", 3, "--count", 31, *argv)
    assert [c["name"] for c in out["ceilings"]] == names
    assert out["rounds"] == 3 and out["transfers"] == 31


def test_bench_latency_ceilings(agent):
    """With a single processor, bench measures no ceiling that spins."""
    alone = ["memcpy", "eventfd_echo"]
    out, _ = bench(agent, "--ceiling", "--rounds", 2, "--duration", "40ms", "--size", 8, "--batch", 1)
    assert [c["name"] for c in out["ceilings"]] in (["memcpy", "memory_echo", "eventfd_echo"], alone)
    out, _ = bench(agent, "--ceiling", "--rounds", 2, "--duration", "40ms", "--size", 8, "--batch", 1, "--wait", "spin")
    assert [c["name"] for c in out["ceilings"]] in (["memcpy", "memory_echo"], alone)
    done = ctl(agent.control, "bench", "--socket", agent.socket, "--ceiling", "--count", 20, "--batch", 1, "--size", 64,
               preexec_fn=lambda: os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}))
    assert done.returncode == 0 and "eventfd ping-pong" in done.stdout and "shared-memory" not in done.stdout, done.stderr
    assert "medians of 11 rounds" in done.stdout
    done = ctl(agent.control, "bench", "--socket", agent.socket, "--ceiling", "--count", 20, "--plain", "--sessions", 2)
    row = done.stdout.rstrip("\n").split("\t")
    assert row[12:14] == ["2", "adaptive"] and row[15] == "memcpy" and len(row) == 19


def test_bench_to_an_owner(pair):
    a, b = pair
    for argv, names in ((["--direction", "write"], ["socket_loop"]), (["--sessions", 3, "--ops", 3], ["socket_loop"]),
                        (["--batch", 1, "--size", 100], ["socket_loop", "tcp_echo"]),
                        (["--class", "latency", "--size", "4KiB"], ["socket_loop"])):
        out, _ = bench(a, "--owner", b.socket, "--memory", "32MiB", "--ceiling", "--rounds", 3, "--count", 30, *argv)
        assert out["transport"] == "tcp" and out["transfers"] == 30
        assert [c["name"] for c in out["ceilings"]] == names
    out, _ = bench(a, "--owner", a.socket, "--count", 3)
    assert out["transport"] == "local"
    done = ctl(a.control, "bench", "--socket", a.socket, "--owner", "/nowhere/dray.sock")
    assert done.returncode == 3 and "/nowhere/dray.sock" in done.stderr, done.stderr


def test_bench_refuses_too_much_memory(agent):
    done = ctl(agent.control, "bench", "--socket", agent.socket, "--size", "1TiB", "--batch", 1)
    assert done.returncode == 1 and "this needs 2.0 TiB of memory" in done.stderr, done.stderr


@contextlib.contextmanager
def endless_bench(agent, *argv):
    """Starts a bench of one hour, and waits until it moves bytes."""
    def done():
        return agent.ctl("status", "--json")["counters"]["dray_transfers_done_total"]

    before = done()
    with subprocess.Popen([DRAYCTL, "bench", "--socket", agent.socket, "--duration", "1h", "--memory", "16MiB", *map(str, argv)],
                          stderr=subprocess.PIPE, text=True) as process:
        try:
            until(lambda: done() > before + 40)
            yield process
        finally:
            process.kill()


def one_line_of(process):
    _, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 1 and len(err.splitlines()) == 1, err
    return err


@pytest.mark.parametrize("argv", [[], ["--wait", "spin"], ["--wait", "sleep"], ["--sessions", 4],
                                  ["--sessions", 4, "--wait", "spin", "--size", 64], ["--sessions", 4, "--wait", "sleep"],
                                  ["--ceiling", "--rounds", 1]])
def test_bench_reports_the_agents_death(new_agent, argv):
    agent = new_agent()
    with endless_bench(agent, *argv) as process:
        agent.kill()
        said = one_line_of(process)
    agent.process = None
    # what was in flight ends with agent_restarted; between two rounds, the next submission is refused
    assert "agent_restarted" in said or "the agent is gone (session_closed)" in said


def test_bench_reports_the_owners_death(new_pair):
    a, b = new_pair()
    with endless_bench(a, "--owner", b.socket, "--sessions", 2) as process:
        b.kill()
        assert "peer_lost" in one_line_of(process)
    b.process = None


def test_bench_leaves_no_process(agent):
    """The ceilings' processes end when bench is killed: they inherit its pipe, which then has no writer."""
    process = subprocess.Popen([DRAYCTL, "bench", "--socket", agent.socket, "--ceiling", "--batch", "1", "--size", "64",
                                "--duration", "1h", "--rounds", "1000"], stdout=subprocess.PIPE)
    with process:
        children = f"/proc/{process.pid}/task/{process.pid}/children"
        until(lambda: open(children).read().split())
        process.kill()
        assert select.select([process.stdout], [], [], LIMIT)[0] and process.stdout.read() == b""


# --- manuals ----------------------------------------------------------------------------------------

def plain_roff(path):
    text = re.sub(r"\\f[BIR]", "", path.read_text())
    return re.sub(r"\\(-|e|\(\w\w)", lambda m: {"e": "\\", "(aq": "'", "(ha": "^", "(ti": "~", "(ga": "`"}.get(m[1], "-"), text)


def test_drayctl_manual_is_complete():
    """The manual is generated from the tables of the help, and must contain all their texts."""
    text = plain_roff(BUILD / "drayctl.1")

    def said(*argv):
        return subprocess.check_output([DRAYCTL, *argv], text=True)

    verbs = re.findall(r"^  ([a-z-]+) +(.*)", said("--help").split("Verbs:")[1].split("Options:")[0], re.M)
    pages = re.split(r"^\.S[HS] ", text, flags=re.M)
    everywhere = next(page for page in pages if page.startswith("OPTIONS"))
    for verb, short in verbs:
        page = next(page for page in pages if re.match(rf'"{verb}[ "]', page))
        usage, _, rest = said(verb, "--help").partition("\n")
        assert page.splitlines()[0].strip('"') == usage.removeprefix("Usage: drayctl [OPTION]... ")
        assert short[1:] in page and rest.rpartition("Example: ")[2].strip() in page
        long = rest.split("\n\n", 1)[1].split("Options of ")[0]
        assert " ".join(long.split()) in " ".join(re.sub(r"^\.\w\w.*$|\\&", "", page, flags=re.M).split())
        own, _, general = rest.partition("Options of every verb:")
        for where, options in ((page, own), (everywhere, general)):
            for option, what in re.findall(r"^  (--[^ ]+(?: [^ ]+)?) +(.*)", options, re.M):
                assert re.search(rf"^\.TP\n{re.escape(option)}\n.*{re.escape(what[1:])}", where, re.M), option
    for title in ("EXIT STATUS", "ENVIRONMENT", "FILES", "EXAMPLES", "SEE ALSO"):
        assert any(page.startswith(title + "\n") for page in pages)


def test_drayd_manual_is_complete():
    text = plain_roff(ROOT / "agent/man/drayd.8")
    keys = yaml.safe_load((ROOT / "schema/config.yaml").read_text())
    keys = keys["keys"] if isinstance(keys, dict) else keys
    for key in keys:
        if key.get("flag"):
            assert key["flag"] in text and key["key"] in text, f"{key['flag']} is not in drayd(8)"
    for option in ("--config", "--set", "--check-config", "--help", "--version"):
        assert option in text


@pytest.mark.skipif(not shutil.which("man"), reason="man is not there")
@pytest.mark.parametrize("page", [BUILD / "drayctl.1", *sorted((ROOT / "agent/man").iterdir())], ids=lambda page: page.name)
def test_manuals_have_no_warnings(page):
    done = subprocess.run(["man", "--warnings", "-E", "UTF-8", "-l", str(page)], stdout=subprocess.DEVNULL,
                          stderr=subprocess.PIPE, text=True, env={**os.environ, "LC_ALL": "C.UTF-8", "MANWIDTH": "90"})
    assert done.returncode == 0 and not done.stderr, done.stderr
