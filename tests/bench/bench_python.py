#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the Python package adds to libdray: one transfer at a time, from C and from Python in turn, and several Python threads.

A longer trip meets more of what interrupts the processors. So each round also has bare loops on two processors, as long as the
median trips from C and from Python of that round (ceiling_spin): the difference of their 99th percentiles is the machine's part
of what Python adds there.
"""

import contextlib
import statistics
import threading
import time
from array import array

import common as c

SIZE = 32 * c.KIB
TOTAL = 16 * c.MIB
ROUNDS = max(7, c.PAIRS // 2)
THREADS = 4
# operations of a transfer, trips of a round, most microseconds above C, whether they come as arrays or as lists of tuples
CASES = ((64, 300, 25, True), (64, 300, None, False), (1, 3000, 5, False))
TURN_NS = 2_000_000  # well within the 5 ms after which the interpreter takes the lock away


@contextlib.contextmanager
def computing():
    """A Python thread that never stops computing."""
    ends = threading.Event()

    def compute():
        n = 0
        while not ends.is_set():
            n += 1

    thread = threading.Thread(target=compute)
    thread.start()
    try:
        yield
    finally:
        ends.set()
        thread.join()


def trips(client, region, remote, lists, n, give_way):
    """n transfers, one at a time: (median, 99th percentile) in microseconds.

    give_way: every 2 ms this thread gives the interpreter lock to the busy one between two transfers, waits 5 ms for it, and
    wakes the agent by a transfer that does not count. Otherwise the interpreter takes the lock away every 5 ms, and the
    transfer during which it does so takes 5 ms more.
    """
    clock, samples, since = time.perf_counter_ns, [], 0
    for i in range(n):
        ops = lists[i % len(lists)]
        if give_way and clock() - since > TURN_NS:
            time.sleep(0)
            since = clock()
            client.write(region, remote, ops).result()
        began = clock()
        client.write(region, remote, ops).result()
        samples.append(clock() - began)
    samples.sort()
    return samples[n // 2] / 1e3, samples[n * 99 // 100] / 1e3


class Case:
    """Transfers of `count` operations. Each round has sessions of its own: a session's worker, and the processors of both,
    change the time of a transfer by more than what is measured here."""

    def __init__(self, agent, near, far, every, count, n, arrays):
        self.agent, self.near, self.far, self.count, self.n = agent, near, far, count, n
        self.fd = c.ops_fd(every)
        lists = [every[i:i + count] for i in range(0, len(every) - count + 1, count)]
        self.lists = [array("Q", [word for op in ops for word in op]) for ops in lists] if arrays else lists

    def from_c(self, give_way=False):
        """give_way: with the same rests, in which caches and processors cool down."""
        with c.client(self.agent, self.agent, [self.near], [self.far], self.fd, "--write", "--batch", self.count,
                      *["--rest"] * give_way) as tool:
            tool.ask("trip", self.n // 4)
            answer = tool.ask("trip", self.n)
        return answer["ns"] / 1e3, answer["p99"] / 1e3

    def from_python(self, give_way):
        with self.agent.client() as client, self.agent.client() as owner:
            region, remote = client.region(self.near), client.import_token(owner.region(self.far).export())
            trips(client, region, remote, self.lists, self.n // 4, give_way)
            return trips(client, region, remote, self.lists, self.n, give_way)


def bare(spin, pair, n):
    """Bare loops as long as the medians of a pair: (median, 99th percentile) in microseconds for each."""
    figures = []
    for median, _ in pair:
        spin.ask("length", round(median * 1e3))
        answer = spin.ask("trip", n)
        figures.append((answer["ns"] / 1e3, answer["p99"] / 1e3))
    return figures


def compare(records, name, rounds, python, native, spin, n, limit):
    """Rounds of C, of Python and of bare loops in turn; records what Python adds, beside what the longer bare loop adds."""
    seen, loops = [], []
    for i in range(rounds):
        pair = (native(), python()) if i % 2 else (python(), native())[::-1]
        seen.append(pair)
        loops.append(bare(spin, pair, n))
    for at, what in enumerate(("median", "99 %")):
        ours, theirs = ([pair[side][at] for pair in seen] for side in (1, 0))
        more = [b[at] - a[at] for a, b in seen]
        floor = [b[at] - a[at] for a, b in loops]
        records.add(f"{name}, {what}", statistics.median(ours), "us", ceiling_name="the same from C",
                    ceiling=statistics.median(theirs), ratio=statistics.median(ours) / statistics.median(theirs))
        records.add(f"{name}, {what}, above C", statistics.median(more), "us", ceiling=statistics.median(floor),
                    ceiling_name="what a bare loop as long as Python's trip takes more than one as long as C's",
                    target=("<=", limit) if limit else None, spread=more)
    records.add(f"{name}, 99 %, above C and the bare loops", statistics.median(a - b for a, b in zip(more, floor)), "us")


def sum_of_threads(client, region, remote, lists, threads):
    """Transfers a second of several threads together."""
    n, failures = 6000 // threads, []
    barrier = threading.Barrier(threads + 1)

    def move(at):
        try:
            barrier.wait()
            for i in range(n):
                client.write(region, remote, lists[(at + i) % len(lists)]).result()
        except BaseException as e:
            failures.append(e)

    each = [threading.Thread(target=move, args=(k * 7,)) for k in range(threads)]
    for thread in each:
        thread.start()
    barrier.wait()
    began = time.perf_counter()
    for thread in each:
        thread.join()
    if failures:
        raise failures[0]
    return n * threads / (time.perf_counter() - began)


with c.bench("python") as (lab, records), c.Tool("ceiling_spin") as spin:
    agent, = c.agents(lab, 1)
    near, far = c.dray.Memory(TOTAL), c.dray.Memory(TOTAL)
    every = c.scattered(SIZE, TOTAL)
    client, owner = agent.client(), agent.client()
    region = client.region(near)
    remote = client.import_token(owner.region(far).export())
    for count, n, limit, arrays in CASES:
        case = Case(agent, near, far, every, count, n, arrays)
        name = f"{count} x 32 KiB" + " as an array" * arrays
        case.from_c()
        compare(records, name, ROUNDS, lambda: case.from_python(False), case.from_c, spin, n, limit)
        with computing():
            compare(records, f"{name}, beside a busy thread", ROUNDS, lambda: case.from_python(True),
                    lambda: case.from_c(True), spin, n, limit)
        with computing():
            compare(records, f"{name}, beside it, with the lock's changes", ROUNDS, lambda: case.from_python(False), case.from_c,
                    spin, n, None)
    lists = [[op] for op in every]
    ours, one, ratio, spread = c.pairs(lambda: sum_of_threads(client, region, remote, lists, 1),
                                       lambda: sum_of_threads(client, region, remote, lists, THREADS), ROUNDS)
    records.add(f"1 x 32 KiB, {THREADS} threads of one session", ours, "1/s", ceiling_name="one thread", ceiling=one, ratio=ratio,
                target=(">=", 1), spread=spread)
    client.close()
    owner.close()
