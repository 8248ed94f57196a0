#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The time after a failure until everything that depends on it has ended: the median and the maximum of several failures."""

import statistics
import time

import common as c

HEARTBEAT_LIMIT_MS = 3000  # the default of peer.heartbeat_limit


def moving(engine, mebibytes=64):
    """Waits until transfers move bytes."""
    engine.tell("hold", mebibytes * c.MIB)
    engine.hear()


def failed(engine, since_ns):
    """Milliseconds from since_ns until the last transfer had failed."""
    answer = engine.hear()
    if not answer["failed"]:
        raise c.CannotRun("no transfer failed")
    if answer["why"] != "peer_lost":
        raise c.CannotRun(f"transfers failed with {answer['why']} instead of peer_lost")
    return (answer["last_ns"] - since_ns) / 1e6


def add(records, name, values, target):
    records.add(name, statistics.median(values), "ms", target=("<=", target), spread=values)
    records.add(f"{name}, the slowest", max(values), "ms")


def peer_killed(lab, records, memory, ops):
    agent, other = c.agents(lab)
    values = []
    for _ in range(c.DEATHS):
        with c.client(agent, other, memory[:1], memory[1:], ops, "--batch", 16, "--depth", 64) as engine:
            moving(engine)
            since = time.monotonic_ns()
            other.process.kill()
            values.append(failed(engine, since))
        other.kill()
        other.start()
    add(records, "peer killed: all transfers failed", values, 100)
    for one in (agent, other):
        one.stop()


def link_cut(lab, records, memory, ops):
    if not lab.namespaces:
        print(f"  link cut: left out, network namespaces are not allowed here ({lab.why_not})")
        return
    agent, other = c.agents(lab, hosts=lab.hosts)
    values = []
    for _ in range(3):  # each takes the whole limit, with little variation
        with c.client(agent, other, memory[:1], memory[1:], ops, "--batch", 16, "--depth", 64) as engine:
            moving(engine)
            since = time.monotonic_ns()
            lab.hosts[1].link(False)
            values.append(failed(engine, since))
            lab.hosts[1].link(True)
    add(records, "link cut: all transfers failed", values, HEARTBEAT_LIMIT_MS)
    for one in (agent, other):
        one.stop()


def client_killed(lab, records, memory, ops):
    agents = c.agents(lab)

    def start():
        return c.client(*agents, memory[:1], memory[1:], ops, "--batch", 16, "--depth", 64)

    with start() as engine:  # connects the two agents
        engine.ask("run", 64)
    c.harness.until(lambda: not any(a.resources().mappings for a in agents))
    before = [a.resources() for a in agents]

    def gone():
        """True if the agents hold no more descriptors, memory and sessions than before."""
        now = [a.resources() for a in agents]
        return all(not new.fds - old.fds and new.mappings <= old.mappings for new, old in zip(now, before))

    values = []
    for _ in range(c.DEATHS):
        engine = start()
        moving(engine)
        since = time.monotonic_ns()
        engine.process.kill()
        while not gone():
            if time.monotonic_ns() - since > 30e9:
                raise c.CannotRun("resources of the killed client are still held after 30 s")
        values.append((time.monotonic_ns() - since) / 1e6)
        engine.close()
    add(records, "client killed: all its resources released", values, 100)
    for agent in agents:
        agent.stop()


with c.bench("faults") as (lab, records):
    c.need_memory(3 * c.GIB)
    memory = [c.dray.Memory(c.GIB), c.dray.Memory(c.GIB)]
    ops = c.ops_fd(c.scattered(c.MIB, c.GIB))
    for part in (peer_killed, link_cut, client_killed):
        part(lab, records, memory, ops)
