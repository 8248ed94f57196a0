# SPDX-License-Identifier: Apache-2.0
"""An honest client beside each attack of attacks.py: nothing fails, no turn is long, and nothing of the attack stays."""

import os
import pathlib

import dray
import pytest
from attacks import ATTACKS, SETTINGS, attack
from harness import DRAYD, MIB, nothing_leaked, sanitized, until
from test_hostile import ALIVE, as_root
from test_http import ask, samples, with_http

ROUNDS = 20 if "DRAY_LONG" in os.environ else 5  # of the attack
TRANSFERS = 200  # at least, of the honest client
# Seconds of processor time that a turn of the control thread or a worker may use. A sanitizer makes code several times slower.
TURN_MAX = "0.1" if sanitized(DRAYD) else "0.01"
# A sanitizer keeps freed memory for a while. Little of that lets the test see what the agent keeps.
SMALL_QUARANTINE = {"ASAN_OPTIONS": ":".join((os.environ.get("ASAN_OPTIONS", ""), "quarantine_size_mb=1",
                                              "thread_local_quarantine_size_kb=16")).lstrip(":")}
# What the agent's allocator and caches may keep.
MEMORY_SLACK, MAPPINGS_SLACK = (16 if sanitized(DRAYD) else 4) * MIB, 16


class Honest:
    """A client that makes small transfers all the time, and now and then uses each of the other requests that engines make."""

    def __init__(self, agent):
        self.client = agent.client(timeout=ALIVE, name="honest")
        self.memory = dray.Memory(MIB)
        self.region = self.client.region(self.memory)
        self.remote = self.client.import_token(self.region.export())
        self.transfers = 0

    def step(self):
        for i in range(20):
            self.client.read(self.region, self.remote, [(64 * i, MIB // 2, 64)]).result(ALIVE)
        self.client.read(self.region, self.remote, [(0, MIB // 2, MIB // 2)]).result(ALIVE)
        self.transfers += 21
        region = self.client.region(self.memory)
        remote = self.client.import_token(region.export())
        self.client.read(self.region, remote, [(0, 64, 64)]).result(ALIVE)
        remote.release()
        region.remove()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.client.close()
        self.memory.close()


def beside(agent, name, rounds):
    """The honest client works until the attack has done its rounds."""
    with Honest(agent) as honest:
        with attack(agent, name) as attacker:
            while attacker.rounds() < rounds or honest.transfers < TRANSFERS:
                honest.step()
        honest.step()


def long_turns(agent):
    """How many turns of each thread took longer than TURN_MAX."""
    got = samples(ask(agent, "/metrics")[2])
    return {thread: got[f'dray_turn_cpu_seconds_count{{thread="{thread}"}}'] - got[f'dray_turn_cpu_seconds_bucket{{thread="{thread}",le="{TURN_MAX}"}}']
            for thread in ("control", "worker")}


def mappings(agent):
    return len(pathlib.Path(f"/proc/{agent.pid}/maps").read_text().splitlines())


def no_more(now, before):
    return not now.fds - before.fds and now.threads <= before.threads and now.mappings <= before.mappings


@as_root
@pytest.mark.parametrize("name", ATTACKS)
def test_beside(new_agent, lab, name):
    agent = with_http(new_agent, lab, settings={**SETTINGS, "agent.workers": 1}, env=SMALL_QUARANTINE)
    fresh = agent.resources()
    fresh.fds["anon_inode:[userfaultfd]"] += 1  # of the worker, which opens it for its first transfer
    beside(agent, name, 2)
    until(lambda: no_more(agent.resources(), fresh), f"resources: {fresh} before")  # a closing session holds some for a while
    before, memory, maps = long_turns(agent), agent.rss_anon(), mappings(agent)
    with nothing_leaked(agent):
        beside(agent, name, ROUNDS)
    assert long_turns(agent) == before, samples(ask(agent, "/metrics")[2])
    until(lambda: agent.rss_anon() <= memory + MEMORY_SLACK, f"memory: {memory} bytes before")
    until(lambda: mappings(agent) <= maps + MAPPINGS_SLACK, f"mappings: {maps} before")
