#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""64 bytes written between two sessions of one agent, one transfer at a time, from request to completion."""

import os

import common as c

TRIPS = 20000
# An agent that does not poll after work, so that a client that does not spin finds it asleep.
ASLEEP = {"agent.poll_time": "0us"}
CPUS = os.sched_getaffinity(0)
FREE_CORES = 4  # for client and agent, with a reserve for other processes
WAYS = (
    # name, options of the client, the ceiling's options, its name, highest ratio to it
    ("data socket", ["--no-ring", "--no-spin"], ["seqpacket", "--size", "64"], "bare SOCK_SEQPACKET echo", 1.5),
    ("ring, both sides awake", ["--poll"], ["memory"], "shared-memory ping-pong", 4),
    ("ring, client sleeps, agent polls", ["--no-spin"], ["eventfd"], "eventfd ping-pong", None),
    ("ring, client spins before it sleeps", [], ["eventfd"], "eventfd ping-pong", None),
)
WAYS_ASLEEP = (("ring, both sides asleep", ["--no-spin"], ["eventfd"], "eventfd ping-pong", 1.5),)
WAYS_ONE_CPU = (
    ("one processor, ring, client sleeps", ["--no-spin"], ["eventfd"], "eventfd ping-pong, one processor", None),
    ("one processor, ring, client with defaults", [], ["eventfd"], "eventfd ping-pong, one processor", None),
)


def measure(records, agent, near, far, ops, way, prefix=()):
    name, args, echo, echo_name, target = way
    with c.Tool("ceiling_echo", *echo, prefix=prefix) as bare, \
            c.client(agent, agent, [near], [far], ops, "--write", *args, prefix=prefix) as engine:
        bare.ask("run", TRIPS // 10)
        engine.ask("trip", TRIPS // 10)
        tail = []

        def trips():
            answer = engine.ask("trip", TRIPS)
            tail.append(answer["p99"])
            return answer["ns"] / 1e3

        ours, ceiling, ratio, spread = c.pairs(lambda: bare.ask("run", TRIPS)["ns"] / 1e3, trips)
    records.add(f"64 B, {name}", ours, "us", ceiling_name=echo_name, ceiling=ceiling, ratio=ratio,
                target=("<=", target) if target else None, spread=spread)
    records.add(f"64 B, {name}, 99 %", sorted(tail)[len(tail) // 2] / 1e3, "us")
    return ours


with c.bench("latency") as (lab, records):
    near, far = c.dray.Memory(c.MIB), c.dray.Memory(c.MIB)
    # few addresses, as ib_write_lat has one: other benches measure memory that is in no cache
    ops = c.ops_fd([(at, at, 64) for at in range(0, 16 * c.KIB, 128)])
    agent, = c.agents(lab, 1)
    for way in WAYS:
        ours = measure(records, agent, near, far, ops, way)
        if "--poll" in way[1]:
            records.add(f"64 B, {way[0]}, with {len(CPUS)} processors", ours, "us",
                        target=("<=", 1.5) if len(CPUS) >= FREE_CORES else None)
    agent.stop()
    agent, = c.agents(lab, 1, **ASLEEP)
    for way in WAYS_ASLEEP:
        measure(records, agent, near, far, ops, way)
    agent.stop()
    # an agent counts its processors at its start
    host = c.harness.Host("pinned")
    host.prefix = ["taskset", "-c", str(max(CPUS))]
    agent, = c.agents(lab, 1, hosts=[host])
    for way in WAYS_ONE_CPU:
        measure(records, agent, near, far, ops, way, prefix=host.prefix)
