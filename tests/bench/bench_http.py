#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A scrape of a busy agent, beside the smallest page of the same server, which costs a round trip and a turn of the loop."""

import contextlib
import http.client
import statistics
import time

import common as c

SESSIONS = 1000
SCRAPES = 101
LIMIT_MS = 20


def page(connection, path):
    """Returns the milliseconds from the request to the last byte, and the size of the page."""
    since = time.monotonic_ns()
    connection.request("GET", path)
    answer = connection.getresponse()
    body = answer.read()
    if answer.status != 200:
        raise c.CannotRun(f"{path} is answered with {answer.status}")
    return (time.monotonic_ns() - since) / 1e6, len(body)


def scrape(records, agent, name):
    host, port = c.harness.parse_segment(agent.settings["http.listen"])
    connection = http.client.HTTPConnection(host, port, timeout=10)
    sizes = {page(connection, "/metrics")[1] for _ in range(3)}
    ours, bare, ratio, spread = c.pairs(lambda: page(connection, "/readyz")[0], lambda: page(connection, "/metrics")[0], SCRAPES)
    records.add(f"scrape, {name}", ours, "ms", ceiling_name="/readyz", ceiling=bare, target=("<=", LIMIT_MS))
    values = [page(connection, "/metrics")[0] for _ in range(SCRAPES)]
    records.add(f"scrape, {name}, the slowest", max(values), "ms", target=("<=", LIMIT_MS), spread=values)
    records.add(f"scrape, {name}, size", statistics.median(sizes) / c.KIB, "KiB")
    connection.close()


def under_load(records, agent):
    """Transfers during scrapes, beside transfers alone."""
    near, far = c.dray.Memory(64 * c.MIB), c.dray.Memory(64 * c.MIB)
    host, port = c.harness.parse_segment(agent.settings["http.listen"])
    with c.client(agent, agent, [near], [far], c.ops_fd(c.scattered(64 * c.KIB, 64 * c.MIB)), "--batch", 64, "--depth",
                  8) as engine:
        n = c.sized(engine, 1024)

        def scraped():
            engine.tell("run", n)
            connection = http.client.HTTPConnection(host, port, timeout=10)
            end = time.monotonic() + c.ROUND / 2
            while time.monotonic() < end:
                page(connection, "/metrics")
                time.sleep(0.01)  # a hundred a second
            connection.close()
            return c.rate(engine.hear())

        ours, bare, ratio, spread = c.pairs(lambda: c.rate(engine.ask("run", n)), scraped)
        records.add("transfers while scraped 100 times a second", ours / 1e9, "GB/s", ceiling_name="not scraped",
                    ceiling=bare / 1e9, ratio=ratio, target=(">=", 0.95), spread=spread)


with c.bench("http") as (lab, records):
    agent = lab.agent("agent", c.harness.Host("host"), listen=("127.0.0.1",), key=lab.key,
                      settings={"agent.workers": 0, "log.level": "warning", "limits.sessions_per_owner": 2000,
                                "limits.sessions": 2000})
    agent.settings["http.listen"] = agent._segment("127.0.0.1")
    agent.start()
    scrape(records, agent, "idle")
    under_load(records, agent)
    with contextlib.ExitStack() as stack:
        memory = c.dray.Memory(c.MIB)
        for _ in range(SESSIONS):
            client = stack.enter_context(agent.client())
            for _ in range(2):
                client.region(memory)
        scrape(records, agent, "1,000 sessions, 2,000 regions")
    agent.stop()
