#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Many peers of one agent: memory for each, what they cost while idle, and storms of connects, disconnects and a drain.

One process plays the peers (bench_peers.c). Other peers, which never rest, are connected before each storm: the agent sends them a
heartbeat every second, and none of them may be lost.
"""

import os
import pathlib
import re

import common as c

PEERS = (0, 250, 500, 1000)
OTHERS = 20
IDLE = 15  # seconds: peer.rest_heartbeat, in which each peer gets one heartbeat


def private_kib(pid):
    text = pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text()
    return int(re.search(r"^Pss_Anon:\s+(\d+)", text, re.M)[1])


def slab_kib():
    return int(re.search(r"^Slab:\s+(\d+)", pathlib.Path("/proc/meminfo").read_text(), re.M)[1])


def switches(pid):
    return sum(int(n) for task in pathlib.Path(f"/proc/{pid}/task").iterdir()
               for n in re.findall(r"^voluntary_ctxt_switches:\s+(\d+)", (task / "status").read_text(), re.M))


def descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


@c.contextlib.contextmanager
def played(lab, name):
    agent = lab.agent(name, c.harness.Host(name), settings={"agent.workers": 0, "log.level": "error"}).start()
    with c.Tool("bench_peers", "--connect", agent.listen[0]) as peers:
        yield agent, peers


def idle(agent, peers):
    peers.ask("wait", 5000)  # until the peers rest
    before, woken, since = c.cpu_ns(agent.pid), switches(agent.pid), c.now()
    peers.ask("wait", IDLE * 1000)
    took = c.now() - since
    return (c.cpu_ns(agent.pid) - before) / 1e9 / took * 100, (switches(agent.pid) - woken) / took


def sizes(lab, records):
    with played(lab, "idle") as (agent, peers):
        first = None
        for before, n in zip((0, *PEERS), PEERS):
            if n:
                peers.ask("join", n - before)
            share, woken = idle(agent, peers)
            memory, kernel = private_kib(agent.pid), slab_kib()
            first = first or (memory, kernel)
            records.add(f"{n} peers, idle: processor", share, "%", target=("<=", 1) if n == PEERS[-1] else None)
            records.add(f"{n} peers, idle: wake-ups", woken, "/s")
            if n:
                records.add(f"{n} peers: memory of the agent", (memory - first[0]) / n, "KiB each", target=("<=", 64))
        records.add(f"{n} peers: kernel, both ends", (kernel - first[1]) / n, "KiB each")


def storms(lab, records):
    with played(lab, "storm") as (agent, peers):
        peers.ask("busy", OTHERS)
        n, base = PEERS[-1], descriptors(agent.pid)
        for word, what in (("join", "connect"), ("leave", "disconnect")):
            since, before = c.now(), c.cpu_ns(agent.pid)
            storm = peers.ask(word, n)
            c.harness.until(lambda: descriptors(agent.pid) == base + (n if word == "join" else 0))
            took, used = c.now() - since, c.cpu_ns(agent.pid) - before
            after = peers.ask("wait", 3500)  # longer than peer.heartbeat_limit
            records.add(f"{n} {what} at once", took, "s")
            records.add(f"{n} {what} at once: processor", used / 1e9, "s")
            records.add(f"{n} {what} at once: other peers lost", storm["lost"] + after["lost"], "", target=("<=", 0))
            records.add(f"{n} {what} at once: longest silence", max(storm["gap"], after["gap"]), "s")
            if word == "join":
                records.add(f"{n} connect at once: attempts repeated", storm["refused"], "")


def drain(lab, records):
    with played(lab, "drain") as (agent, peers):
        peers.ask("join", PEERS[-1])
        since = c.now()
        agent.process.terminate()
        peers.ask("ended")
        agent.wait()
        records.add(f"drain with {PEERS[-1]} peers, until exit", c.now() - since, "s")


with c.bench("peers") as (lab, records):
    sizes(lab, records)
    storms(lab, records)
    drain(lab, records)
