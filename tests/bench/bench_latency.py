#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""64 bytes between two sessions of one agent, one transfer at a time, from request to completion."""

import common as c

TRIPS = 20000
WAYS = (
    # name, how the client is told, what it stands against, and at most how many times that
    ("data socket", ["--no-ring", "--no-spin"], ["seqpacket", "--size", "64"], "bare SOCK_SEQPACKET echo", 1.5),
    ("ring, both sides awake", ["--poll"], ["memory"], "shared-memory ping-pong", 6),
    ("ring, client sleeps", ["--no-spin"], ["eventfd"], "eventfd ping-pong", None),
    ("ring, client spins before it sleeps", [], ["eventfd"], "eventfd ping-pong", None),
)

with c.bench("latency") as (lab, records):
    agent, = c.agents(lab, 1)
    near, far = c.dray.Memory(c.MIB), c.dray.Memory(c.MIB)
    ops = c.ops_fd([(at, at, 64) for at in range(0, c.MIB, 4096)])
    for name, args, echo, echo_name, target in WAYS:
        with c.Tool("ceiling_echo", *echo) as bare, c.client(agent, agent, [near], [far], ops, *args) as engine:
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
