#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Transport local: two sessions of one agent, against one thread's memcpy between the same two memfds."""

import common as c


def measure(records, agent, near, far, name, size, batch, depth, target):
    ops = c.ops_fd(c.scattered(size, near.size))
    fds = [ops, near.fd, far.fd]
    with c.Tool("ceiling_copy", "--local", c.name_memory(near), "--remote", c.name_memory(far), "--ops", ops, fds=fds) as copy, \
            c.client(agent, agent, [near], [far], ops, "--batch", batch, "--depth", depth) as engine:
        if engine.first["transport"] != "local":
            raise c.CannotRun(f"the agent chose {engine.first['transport']}")
        n = max(c.sized(copy, c.GIB // size), c.GIB // size)
        first = engine.ask("run", c.GIB // size)
        ours, bare, ratio, spread = c.pairs(lambda: c.rate(copy.ask("run", n)), lambda: c.rate(engine.ask("run", n)))
        records.add(name, ours / 1e9, "GB/s", ceiling_name="memcpy, one thread", ceiling=bare / 1e9, ratio=ratio,
                    target=(">=", target) if target else None, spread=spread)
        return first["seconds"], engine.first["populate"]


with c.bench("local") as (lab, records):
    c.need_memory(3 * c.GIB)
    agent, = c.agents(lab, 1, **{"agent.workers": 1})
    # Not populated here: that is the client library's task, and its time is measured.
    near, far = (c.dray.Memory(c.GIB, populate=False) for _ in range(2))
    first, populate = measure(records, agent, near, far, "1 GiB", c.GIB, 1, 1, 0.95)
    records.add("populating and registering 2 GiB", populate, "s")
    records.add("1 GiB, the first after registering", first, "s")
    measure(records, agent, near, far, "64 KiB scattered", 64 * c.KIB, 64, 8, None)
    measure(records, agent, near, far, "4 KiB, batches of 256", 4 * c.KIB, 256, 16, None)
