#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Transport local: two sessions of one agent, against memcpy between the same two memfds in the same order, by as many threads as
the agent has workers."""

import os

import common as c


def measure(records, agent, near, far, name, size, batch, depth, target, threads=1):
    ops = c.ops_fd(c.scattered(size, near.size))
    fds = [ops, near.fd, far.fd]
    with c.Tool("ceiling_copy", "--local", c.name_memory(near), "--remote", c.name_memory(far), "--ops", ops,
                "--threads", threads, fds=fds) as copy, \
            c.client(agent, agent, [near], [far], ops, "--batch", batch, "--depth", depth) as engine:
        if engine.first["transport"] != "local":
            raise c.CannotRun(f"the agent chose {engine.first['transport']}")
        once = max(near.size // size, 1)
        n = max(c.sized(copy, once), once)
        first = engine.ask("run", once)
        ours, bare, ratio, spread = c.pairs(lambda: c.rate(copy.ask("run", n)), lambda: c.rate(engine.ask("run", n)))
        ceiling = "memcpy, one thread" if threads == 1 else f"memcpy, {threads} threads"
        records.add(name, ours / 1e9, "GB/s", ceiling_name=ceiling, ceiling=bare / 1e9, ratio=ratio,
                    target=(">=", target) if target else None, spread=spread)
        return first["seconds"], engine.first["populate"]


def one_worker(records, agent):
    # Not populated here, because the client library does that, and its time is measured.
    near, far = (c.dray.Memory(c.GIB, populate=False) for _ in range(2))
    first, populate = measure(records, agent, near, far, "1 GiB", c.GIB, 1, 1, 0.95)
    records.add("populating and registering 2 GiB", populate, "s")
    records.add("1 GiB, the first after registering", first, "s")
    measure(records, agent, near, far, "64 KiB scattered", 64 * c.KIB, 64, 8, None)
    measure(records, agent, near, far, "4 KiB, batches of 256", 4 * c.KIB, 256, 16, None)
    measure(records, agent, near, far, "4 KiB, batches of 4,096", 4 * c.KIB, 4096, 2, 0.9)
    near, far = (c.dray.Memory(64 * c.MIB) for _ in range(2))
    measure(records, agent, near, far, "64 B, batches of 4,096", 64, 4096, 2, None)


def two_workers(lab, records):
    if len(os.sched_getaffinity(0)) < 2:
        print("  two workers: skipped, this machine has one CPU")
        return
    agent, = c.agents(lab, 1, **{"agent.workers": 2})
    near, far = (c.dray.Memory(c.GIB, populate=False) for _ in range(2))
    measure(records, agent, near, far, "1 GiB, two workers", c.GIB, 1, 1, 0.9, threads=2)


def huge_pages(records, agent):
    """The same copies in memfds of huge pages, if this machine has free huge pages."""
    try:
        near, far = (c.dray.Memory(512 * c.MIB, huge=True) for _ in range(2))
    except c.dray.Error as e:
        print(f"  huge pages: skipped: {e}")
        return
    measure(records, agent, near, far, "4 KiB, batches of 4,096, huge pages", 4 * c.KIB, 4096, 2, None)


with c.bench("local") as (lab, records):
    c.need_memory(3 * c.GIB)
    agent, = c.agents(lab, 1, **{"agent.workers": 1})
    one_worker(records, agent)
    two_workers(lab, records)
    huge_pages(records, agent)
