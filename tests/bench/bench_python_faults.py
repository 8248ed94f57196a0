#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""An agent is killed, stopped, drained or restarted under 1,000 calls of the Python package that wait: half in threads, half in
asyncio. How each call ends, and how long after the event."""

import asyncio
import signal
import statistics
import threading
import time
from collections import Counter

import common as c

N = 500  # threads, and as many tasks
DEADLINE = 1.0  # of the transfers under an agent that is stopped
CONFIRM = 0.08  # after the deadline the library waits that long for the agent's answer: confirm_ms
TARGET_MS = 100  # from the agent's death, or from the end of that time, to the end of every call


class Waiters:
    """Calls that wait for transfers whose wait word is never set."""

    def __init__(self, client, region, remote, deadline):
        self.ended, self.client = [], client
        self.transfers = [client.read(region, remote, [(4096 + i, i, 1)], wait_word=(region, 0, 1), deadline=deadline)
                          for i in range(2 * N)]
        self.began = time.monotonic()
        self.threads = [threading.Thread(target=self._wait, args=(t,)) for t in self.transfers[:N]]
        self.threads.append(threading.Thread(target=asyncio.run, args=(self._tasks(),)))
        for thread in self.threads:
            thread.start()
        c.harness.until(lambda: client._leader and len(client._sleeping) == N - 1 and client._loops, "all waiters")

    def _note(self, error):
        self.ended.append((error.name if error else "ok", time.monotonic()))

    def _wait(self, transfer):
        self._note(transfer.exception(60))

    async def _tasks(self):
        async def one(transfer):
            try:
                await transfer
                self._note(None)
            except c.dray.Error as e:
                self._note(e)

        await asyncio.gather(*(one(t) for t in self.transfers[N:]))

    def join(self):
        for thread in self.threads:
            thread.join()


def measure(lab, records, way):
    agent, = c.agents(lab, 1, **{"agent.drain_timeout": "500ms"})
    client = agent.client(ring_entries=4096)
    memory = c.dray.Memory(c.MIB)
    region = client.region(memory)
    remote = client.import_token(region.export())
    waiters = Waiters(client, region, remote, DEADLINE if way == "stopped" else 60)
    at = time.monotonic()
    if way == "stopped":
        agent.signal(signal.SIGSTOP)
        at = waiters.began + DEADLINE + CONFIRM
    elif way == "drained":
        agent.process.terminate()
        agent.wait()
        at = time.monotonic()  # its end
    else:
        agent.kill()
        if way == "restarted":
            agent.start()
    waiters.join()
    after = [1e3 * (when - at) for _, when in waiters.ended]
    ends = ", ".join(f"{n} {name}" for name, n in Counter(name for name, _ in waiters.ended).most_common())
    records.add(f"{way}, last of {2 * N} calls: {ends}", max(after), "ms", target=("<=", TARGET_MS) if way != "drained" else None)
    records.add(f"{way}, median", statistics.median(after), "ms")
    if way == "stopped":
        agent.signal(signal.SIGCONT)
        free = 0
        while free < len(waiters.transfers):
            event = client.next_event(c.dray.Confirmed, 60)
            free += event is not None and not event.transfer.lent()
        records.add(f"{way}, memory free after it was continued", free, "calls")
    client.close()
    if agent.running:
        agent.stop()


with c.bench("python_faults") as (lab, records):
    for way in ("killed", "restarted", "stopped", "drained"):
        measure(lab, records, way)
