#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The honest client's time for a small transfer, 99 %, beside each attack, and beside the same attack on a second agent that nobody
else uses. So the ceiling has the attacker's load on the machine, and not what the attack does to the agent."""

import os
import select

import common as c
from attacks import ATTACKS, SETTINGS, attack

TRIPS = 2000
ROUNDS = 5
ATTACK_ROUNDS = 3  # of the attack, before a measurement begins


def p99(engine, agent, name):
    """The honest client's 99 % while the attack runs on the agent, us."""
    with attack(agent, name) as attacker:
        while attacker.rounds() < ATTACK_ROUNDS:
            select.select([], [], [], 0.001)
        answer = engine.ask("trip", TRIPS)
        attacker.rounds()
        return answer["p99"] / 1e3


with c.bench("isolation") as (lab, records):
    if os.geteuid():
        raise c.CannotRun("only root can attack with another uid")
    near, far = c.dray.Memory(c.MIB), c.dray.Memory(c.MIB)
    ops = c.ops_fd([(at, at, 4096) for at in range(0, c.MIB, 8192)])
    agent, other = c.agents(lab, 2, **{**SETTINGS, "agent.workers": 1})
    with c.client(agent, agent, [near], [far], ops, "--write") as engine:
        engine.ask("trip", TRIPS)
        alone = engine.ask("trip", TRIPS)["p99"] / 1e3
        records.add("4 KiB, 99 %, no attack", alone, "us")
        for name in ATTACKS:
            ours, ceiling, ratio, spread = c.pairs(lambda: p99(engine, other, name), lambda: p99(engine, agent, name), ROUNDS)
            records.add(f"4 KiB, 99 %, beside {name}", ours, "us", ceiling_name="the same attack on another agent", ceiling=ceiling,
                        ratio=ratio, target=("<=", 3), spread=spread)
