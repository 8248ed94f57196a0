#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Leases over TCP on loopback: from the start of a lease at its owner to the holder's remote, for one request and for 64 at once,
beside a bare round trip over a socket. A lease is made by one round trip between client and agent, and acquired by one between
client and agent and one between the agents."""

import common as c

ROUNDS = {"one": 500, "many": 20}
NAMES = {"one": "lease and acquisition", "many": "64 leases and acquisitions at once"}
RANGES = 16, 128

with c.bench("lease") as (lab, records):
    a, b = c.agents(lab, 2)
    for n in RANGES:
        for how in ((), ("--grant",)):
            with c.Tool("ceiling_ping", "--size", 64) as bare, \
                    c.Tool("bench_lease", "--owner", b.socket, "--holder", a.socket, "--ranges", n, *how, first=True) as lease:
                for which, rounds in ROUNDS.items():
                    bare.ask("trip", 200)
                    lease.ask(which, rounds // 10)
                    ours, ceiling, ratio, spread = c.pairs(lambda bare=bare: bare.ask("trip", 2000)["ns"] / 1e3,
                                                           lambda lease=lease, which=which, rounds=rounds: lease.ask(which, rounds)["ns"] / 1e3)
                    granted = ", granted when made" if how else ""
                    records.add(f"{NAMES[which]}, {n} ranges of 32 pieces{granted}", ours, "us", ceiling_name="bare TCP round trip",
                                ceiling=ceiling, ratio=ratio, spread=spread)
