# SPDX-License-Identifier: Apache-2.0
"""What a person meets in the first hour: an agent that is still starting, the next step, and the keys of the configuration."""

import json
import os
import re
import subprocess

import pytest
import yaml
from harness import DRAYCTL, LIMIT, MIB, ROOT, Side, until
from test_ctl import conform, schema_of


def ctl(*argv, **how):
    clean = {k: v for k, v in os.environ.items() if not k.startswith("DRAY_")}
    return subprocess.run([DRAYCTL, *map(str, argv)], text=True, timeout=LIMIT, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          env=clean, **how)


def test_status_waits_for_an_agent_that_starts(agent, lab):
    """The socket appears after drayctl has looked for it in vain."""
    link = lab.directory("late") / "control.sock"
    status = subprocess.Popen([DRAYCTL, "--control", link, "--timeout", f"{LIMIT:.0f}s", "status"], stdout=subprocess.PIPE, text=True)
    try:
        until(lambda: "poll" in open(f"/proc/{status.pid}/wchan").read() or status.poll() is not None, "a vain look")
        assert status.poll() is None
        link.symlink_to(agent.control)
        assert "running" in status.communicate(timeout=LIMIT)[0] and status.returncode == 0
    finally:
        status.kill()
        status.wait()


def test_status_names_the_next_step(new_agent, monkeypatch):
    agent = new_agent()
    assert f"next          drayctl bench --socket {agent.socket} moves first bytes" in agent.ctl("status")
    monkeypatch.setenv("DRAY_SOCKET", str(agent.socket))
    assert "next          drayctl bench moves first bytes" in agent.ctl("status")
    with Side(agent, MIB):
        assert "next" not in agent.ctl("status")
    agent.ctl("drain", "--stay", "--wait")
    assert "next          drayctl resume" in agent.ctl("status")


def test_config_shows_what_changed(new_agent):
    agent = new_agent(settings={"log.transfers": "true"})
    rows = {row["key"]: row for row in agent.ctl("config", "show", "--changed", "--json")["settings"]}
    assert rows["log.transfers"]["origin"] == "command line" and "peer.heartbeat" not in rows
    assert "default" not in agent.ctl("config", "--changed", "--origin")
    assert set(rows) < {row["key"] for row in agent.ctl("config", "--json")["settings"]}


@pytest.mark.parametrize("key", ["log.level", "peer.heartbeat", "data.mode", "peer.listen", "rdma.enable"])
def test_config_explains_a_key(agent, key):
    raw = yaml.safe_load((ROOT / "schema/config.yaml").read_text())
    meant = next(k for k in (raw["keys"] if isinstance(raw, dict) else raw) if k["key"] == key)
    got = agent.ctl("config", "explain", key, "--json")
    conform(got, schema_of("config_explain"))
    setting = next(s for s in agent.ctl("config", "--json")["settings"] if s["key"] == key)
    assert got["value"] == setting["value"] and got["origin"] == setting["origin"] and got["reload"] == setting["reload"]
    text = agent.ctl("config", "explain", key)
    for part in (meant["doc"], got["allowed"], got["environment"], got["option"] or f"--set {key}="):
        assert part in text


def test_config_explains_without_an_agent(lab):
    done = ctl("--control", lab.tmp / "nobody", "config", "explain", "peer.heartbeat")
    assert done.returncode == 0 and "no agent answers" in done.stdout and "DRAY_PEER_HEARTBEAT" in done.stdout
    got = json.loads(ctl("--control", lab.tmp / "nobody", "--json", "config", "explain", "peer.heartbeat").stdout)
    conform(got, schema_of("config_explain"))
    assert got["value"] is None and got["origin"] is None


def test_config_check(lab):
    """Each error is named with file and line; no agent is needed."""
    good, bad = lab.write("good.conf", 'log: { level = "debug"; };\n'), lab.write("bad.conf", 'log: {\n level = "loud"; };\nagents: { };\n')
    done = ctl("config", "check", good)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{good} is valid\n", "")
    done = ctl("config", "check", bad)
    assert done.returncode == 1 and done.stdout == ""
    assert f"{bad}:2: log.level" in done.stderr and f"{bad}:3: " in done.stderr and "is not valid" in done.stderr.splitlines()[-1]
    assert "there is no such file" in ctl("config", "check", lab.tmp / "missing").stderr


def test_lines_of_the_readme(lab):
    """The lines of the README, from the agents on, on a host of their own."""
    section = (ROOT / "README.md").read_text().split("## The first transfer")[1].split("\n## ")[0]
    blocks = re.findall(r"(?:^    .*\n)+", section, re.M)
    lines = [line.strip() for line in blocks[0].splitlines()]
    assert len(lines) <= 10 and "make" in lines[0]
    text = "\n".join(lines[1:]).replace("/tmp/", f"{lab.directory('readme')}/").replace("build/dray", f"{DRAYCTL.parent}/dray")
    done = subprocess.run(lab.hosts[0].command("sh", "-euc", text + "\nwait\n"), text=True, timeout=2 * LIMIT, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, env={k: v for k, v in os.environ.items() if not k.startswith("DRAY_")})
    assert done.returncode == 0, done.stderr
    for line in blocks[1].splitlines():
        shape = re.sub(r"[\d.,]+( \w+/s| [mu]?s)?", "…", line.strip())
        assert re.search(".*?".join(map(re.escape, shape.split("…"))), done.stdout), (shape, done.stdout)
    assert "running" in done.stdout and "next " in done.stdout and "127.0.0.1:7421" in done.stdout


def test_trace(pair):
    """Each transfer that ended is a span with its request and bytes, and its stages lie within it."""
    a, b = pair
    with Side(a, MIB) as here, Side(b, MIB) as there:
        remote = here.reach(there)
        for _ in range(3):
            here.client.read(here.region, remote, [(0, 0, MIB)]).result(LIMIT)
        rows = {(row["session"], row["request"]): row for row in a.ctl("transfers", "--recent", "--json")["ended_transfers"]}
        trace = json.loads(a.ctl("trace"))
    spans = {}
    for event in trace["traceEvents"]:
        assert event["cat"] == "transfer" and event["ph"] in "be" and event["pid"] == event["tid"]
        spans.setdefault((event["pid"], event["id"]), []).append(event)
    requests = set()
    for events in spans.values():
        first, last = events[0], events[-1]
        assert (first["ph"], last["ph"], first["name"]) == ("b", "e", last["name"])
        request = (first["pid"], first["args"]["request"])
        row = rows[request]
        requests.add(request)
        assert first["args"]["bytes"] == row["bytes"] and row["status"] in first["name"] and row["transport"] in first["name"]
        # A double has a resolution of a quarter of a microsecond here.
        assert abs((last["ts"] - first["ts"]) * 1000 - row["duration_ns"]) <= 1000
        assert all(first["ts"] - 1 <= event["ts"] <= last["ts"] + 1 for event in events)
        open_ones = [event["name"] for event in events[1:-1] if event["ph"] == "b"]
        assert open_ones == [event["name"] for event in events[1:-1] if event["ph"] == "e"] and "moved" in open_ones
    assert requests == set(rows) and len(requests) >= 3
