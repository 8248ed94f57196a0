#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Letters from a client of one agent to a mailbox at another one, over TCP on loopback: from post() to the receiver's event,
beside a bare round trip over a socket. A letter passes three processes: client, agent, agent, client, with TLS between the agents."""

import common as c

TRIPS = 2000
SIZES = 64, 4096

with c.bench("post") as (lab, records):
    a, b = c.agents(lab, 2)
    for size in SIZES:
        with c.Tool("ceiling_ping", "--size", size) as bare, \
                c.Tool("bench_post", "--from", a.socket, "--to", b.socket, "--size", size, first=True) as post:
            bare.ask("trip", TRIPS // 10)
            post.ask("trip", TRIPS // 10)
            tail = []

            def trips(post=post, tail=tail):
                answer = post.ask("trip", TRIPS)
                tail.append(answer["p99"] / 1e3)
                return answer["ns"] / 1e3

            ours, ceiling, ratio, spread = c.pairs(lambda bare=bare: bare.ask("trip", TRIPS)["ns"] / 1e3, trips)
        name = f"letter of {size} B"
        records.add(f"{name}, post() to event", ours, "us", ceiling_name="bare TCP round trip", ceiling=ceiling, ratio=ratio,
                    spread=spread)
        records.add(f"{name}, post() to event, 99 %", sorted(tail)[len(tail) // 2], "us")
        with c.Tool("bench_post", "--from", a.socket, "--to", a.socket, "--size", size, first=True) as post:
            post.ask("trip", TRIPS // 10)
            times = sorted(post.ask("trip", TRIPS)["ns"] / 1e3 for _ in range(7))
        records.add(f"{name} within one agent, post() to event", times[3], "us")
