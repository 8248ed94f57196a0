#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One read over TCP at a time, beside a bare chain of the same wake-ups and beside redis: everybody asleep, with processors that
other processes keep awake, and beside processes that compute; bulk beside those."""

import contextlib
import os
import socket
import statistics
import subprocess
import tempfile

import common as c

TRIPS = 2000
CPUS = len(os.sched_getaffinity(0))
# Agents and clients that sleep as soon as they have no work, or with their defaults.
ASLEEP, DEFAULTS = ({"agent.poll_time": "0us"}, ["--no-spin"]), ({}, [])
SINGLE_64K = 0.32e9  # bytes a second of single reads of 64 KiB before the wake-ups were counted
YIELD = "import os\nwhile True: os.sched_yield()"
COMPUTE = "while True: pass"
# Processors of the client, of the process that it wakes, and of the owner. Where the kernel puts threads that wake each other changes from round
# to round, for both ways by itself, and a wake-up of another processor takes several times as long.
PLACES = {"all on one processor": (0, 0, 0), "the middle one on another processor": (0, 1, 0)}


@contextlib.contextmanager
def beside(program, n):
    """n processes that run a Python program without end."""
    processes = [subprocess.Popen([c.sys.executable, "-c", program]) for _ in range(n)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


@contextlib.contextmanager
def redis():
    """The options that name a redis server on loopback; none without redis-server."""
    if not c.which("redis-server"):
        yield []
        return
    with socket.socket() as probe, tempfile.TemporaryDirectory() as folder:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        server = subprocess.Popen(["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", folder],
                                  stdout=subprocess.PIPE, text=True)
        try:
            while "Ready to accept" not in (line := server.stdout.readline()):
                if not line:
                    raise c.CannotRun("redis-server does not start")
            yield ["--get", port]
        finally:
            server.kill()
            server.wait()
            server.stdout.close()


class Lone:
    """Reads of `size` bytes, one at a time, and the chain for as many bytes."""

    def __init__(self, stack, agents, size, port, *args, place=None):
        near, far = c.dray.Memory(4 * c.MIB), c.dray.Memory(4 * c.MIB)
        ops = c.ops_fd(c.scattered(size, near.size))
        self.chain = stack.enter_context(c.Tool("ceiling_chain", "--size", size, "--memory", near.size, *port))
        self.engine = stack.enter_context(c.client(*agents, [near], [far], ops, *args))
        if self.engine.first["transport"] != "tcp":
            raise c.CannotRun(f"the agents chose {self.engine.first['transport']}")
        if place:
            for pids in (self.engine.pid, *(a.process.pid for a in agents)), (self.chain.pid, *c.children(self.chain.pid)):
                for pid, cpu in zip(pids, place):
                    c.bind(pid, {sorted(os.sched_getaffinity(0))[cpu]})
        self.ways = [(self.engine, "trip"), (self.chain, "trip"), *[(self.chain, "get")] * bool(port)]

    def rounds(self, trips=TRIPS, pairs=None):
        """A list of rounds for each way: (median, 99th percentile) in microseconds."""
        seen = [[] for _ in self.ways]
        for i in range((pairs or c.PAIRS) + 1):
            order = list(range(len(self.ways)))
            for k in order[i % len(order):] + order[:i % len(order)]:
                tool, word = self.ways[k]
                answer = tool.ask(word, trips)
                if i:  # the first round warms up
                    seen[k].append((answer["ns"] / 1e3, answer["p99"] / 1e3))
        return seen


def against(records, name, seen, at, ceiling_name, limit, *, show=True):
    """Records one figure of the reads beside the same figure of another way."""
    ours, theirs = ([r[at] for r in way] for way in seen)
    ratios = [a / b for a, b in zip(ours, theirs)]
    records.add(name, statistics.median(ours), "us", ceiling_name=ceiling_name, ceiling=statistics.median(theirs),
                ratio=statistics.median(ratios), target=("<=", limit) if limit else None, spread=ratios if show else None)


def measure(records, lab, port, name, mode, size, limit, *, program=None, busy=0, at=0, absolute=None, place=None):
    """One situation: reads of `size` bytes by sleeping or default agents, beside `busy` other processes; with `place`, on these processors."""
    settings, args = mode
    what = f"{name}{', 99 %' if at else ''}"
    with contextlib.ExitStack() as stack:
        agents = c.agents(lab, 2, **settings)
        lone = Lone(stack, agents, size, port, *args, place=place)
        if busy:
            stack.enter_context(beside(program, busy))
        seen = lone.rounds()
        against(records, what, seen[:2], at, "bare chain", limit)
        if port:
            against(records, what, (seen[0], seen[2]), at, "redis GET", 1 if mode is ASLEEP and not busy else None)
        ours = statistics.median(r[at] for r in seen[0])
    for agent in agents:
        agent.stop()
    if absolute:
        records.add(f"{what}, time", ours, "us", target=("<=", absolute))
    return ours


def bulk(records, lab):
    """Reads of 1 MiB, 64 in flight, and the bare loop, both beside processes that compute. A session has one thread at each agent.
    Beside such processes, a loop with a thread for each stream gets a larger part of the processors."""
    near, far = c.dray.Memory(256 * c.MIB), c.dray.Memory(256 * c.MIB)
    ops = c.ops_fd(c.scattered(c.MIB, near.size))
    agents = c.agents(lab)
    for threads, what, limit in ((1, "bare socket loop, 2 streams, one thread", (">=", 0.9)), (2, "the same, a thread for each stream", None)):
        with c.socket_loop([far], [near], ops, streams=2, batch=1, threads=threads, source_column="remote") as loop, \
                c.client(*agents, [near], [far], ops, "--batch", 16, "--depth", 4) as engine, beside(COMPUTE, 2 * CPUS):
            n = c.sized(loop, 64)
            engine.ask("run", n)
            ours, bare, ratio, spread = c.pairs(lambda: c.rate(loop.ask("run", n)), lambda: c.rate(engine.ask("run", n)))
        records.add("1 MiB, bulk, two that compute for each processor", ours / 1e9, "GB/s", ceiling_name=what,
                    ceiling=bare / 1e9, ratio=ratio, target=limit, spread=spread)


if __name__ == "__main__":
    with c.bench("lone") as (lab, records), redis() as port:
        measure(records, lab, port, "4 KiB, everybody asleep", ASLEEP, 4 * c.KIB, 1.3)
        for where, place in PLACES.items():
            if max(place) < CPUS:
                measure(records, lab, [], f"4 KiB, everybody asleep, {where}", ASLEEP, 4 * c.KIB, 1.3, place=place)
        measure(records, lab, port, "4 KiB, defaults", DEFAULTS, 4 * c.KIB, None)
        measure(records, lab, [], "4 KiB, processors kept awake", ASLEEP, 4 * c.KIB, None, program=YIELD, busy=CPUS, absolute=25)
        us = measure(records, lab, port, "64 KiB, defaults", DEFAULTS, 64 * c.KIB, None)
        records.add("64 KiB, defaults, rate", 64 * c.KIB / us / 1e3, "GB/s", target=(">=", 2.5 * SINGLE_64K / 1e9))
        measure(records, lab, [], "4 KiB, two that compute for each processor", DEFAULTS, 4 * c.KIB, 1.3, program=COMPUTE,
                busy=2 * CPUS, at=1)
        bulk(records, lab)
