#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Resources of an idle agent, size of the program, and time from start to ready."""

import pathlib
import re
import statistics
import subprocess
import tempfile
import time

import common as c

SESSIONS, PEERS = 100, 10
IDLE_SECONDS = 10


def start_to_ready(lab, records):
    values = []
    for i in range(15):
        agent = lab.agent(f"start{i}", c.harness.Host("start"), listen=("127.0.0.1",), key=lab.key,
                          settings={"agent.workers": 0, "http.listen": "127.0.0.1:0"})
        since = c.now()
        agent.start()
        values.append((c.now() - since) * 1e3)
        agent.stop()
    records.add("start to ready", statistics.median(values), "ms", target=("<=", 50), spread=values)


def stripped_size(records):
    with tempfile.TemporaryDirectory() as where:
        stripped = pathlib.Path(where, "drayd")
        subprocess.run(["strip", "-o", stripped, c.harness.DRAYD], check=True)
        records.add("drayd, stripped", stripped.stat().st_size / c.MIB, "MiB", target=("<=", 1))


def resident(pid, kind):
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(re.search(rf"{kind}:\s+(\d+)", status)[1]) / 1024


def idle(lab, records):
    agent, *peers = c.agents(lab, 1 + PEERS)
    near = c.dray.Memory(c.MIB)
    sessions, owners = [], []
    for i in range(SESSIONS):
        session = agent.wire(group=f"engine-{i}", ring_entries=256, arena_bytes=4 * c.MIB)
        session.open_ring()
        sessions.append((session, session.region([(near, 0, near.size)])))
    for i, peer in enumerate(peers):
        far = c.dray.Memory(c.MIB)
        owner = peer.client()
        session, region = sessions[i]
        remote = session.import_token(str(owner.region(far).export()))
        session.read(region, remote, [(0, 0, c.MIB)]).result(30)
        owners.append((owner, far, remote))
    time.sleep(5)  # until the workers sleep again after the set-up, and the peers rest
    before, since = c.cpu_ns(agent.pid), c.now()
    time.sleep(IDLE_SECONDS)
    share = (c.cpu_ns(agent.pid) - before) / 1e9 / (c.now() - since) * 100
    what = f"idle, {SESSIONS} sessions, {PEERS} peers"
    records.add(f"{what}: processor", share, "%", target=("<=", 0.2))
    records.add(f"{what}: RssAnon", resident(agent.pid, "RssAnon"), "MiB", target=("<=", 6))
    records.add(f"{what}: RssFile", resident(agent.pid, "RssFile"), "MiB", target=("<=", 14))
    records.add(f"{what}: RssShmem", resident(agent.pid, "RssShmem"), "MiB")
    for session, _ in sessions:
        session.close()
    for owner, _, _ in owners:
        owner.close()


with c.bench("footprint") as (lab, records):
    stripped_size(records)
    start_to_ready(lab, records)
    idle(lab, records)
