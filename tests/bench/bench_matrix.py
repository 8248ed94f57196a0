#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""drayctl bench --ceiling over transports, sizes, operations a transfer, sessions and ways to wait.

By default it measures only the most useful combinations (cuts()); with DRAY_BENCH_FULL=1 all of them, which takes hours. report.py
chooses the results that docs/benchmarks.md shows.
"""

import itertools
import json
import os
import subprocess
import sys

import common as c
import matrix

FULL = bool(os.environ.get("DRAY_BENCH_FULL"))
SIZES = [64 << 2 * i for i in range(11)]  # to 64 MiB
OPS = (1, 16, 256, 4096, 65536)
SESSIONS = (1, 8, 64)
WAITS = ("adaptive", "spin", "sleep")
TRANSFER_MAX = 256 * c.MIB  # bytes of one
IN_FLIGHT = 8  # transfers of a session, if all together are no larger than:
IN_FLIGHT_MAX = 256 * c.MIB
DURATION, ROUNDS = ("1100ms", 11) if FULL else ("700ms", 7)


def full():
    for size, ops, sessions, wait in itertools.product(SIZES, OPS, SESSIONS, WAITS):
        if size * ops <= TRANSFER_MAX:
            yield size, ops, None, sessions, wait
            if ops == 1 and sessions == 1:
                yield size, 1, 1, 1, wait


def cuts():
    """(size, operations, transfers in flight, sessions, wait)"""
    for ops in (1, 256, 4096):
        yield from ((size, ops, None, 1, "adaptive") for size in SIZES if size * ops <= TRANSFER_MAX)
    for sessions in SESSIONS[1:]:
        yield from ((size, ops, None, sessions, "adaptive") for size, ops in ((4 * c.KIB, 256), (c.MIB, 1)))
    for size in (64, 4 * c.KIB, 64 * c.KIB):
        yield from ((size, 1, 1, 1, wait) for wait in WAITS)


def run(near, far, size, ops, batch, sessions, wait):
    """The result of drayctl, or None if there is not enough memory."""
    batch = batch or max(1, min(IN_FLIGHT, IN_FLIGHT_MAX // (size * ops)))
    if 2 * max(256 * c.MIB, size * ops * batch * sessions) > available() // 2:
        return None
    done = subprocess.run([c.harness.DRAYCTL, "bench", "--json", "--ceiling", "--rounds", str(ROUNDS), "--duration", DURATION,
                           "--direction", "write", "--size", str(size), "--ops", str(ops), "--batch", str(batch),
                           "--sessions", str(sessions), "--wait", wait, "--socket", near.socket, "--owner", far.socket],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        raise c.CannotRun(done.stderr.strip())
    return json.loads(done.stdout)


def available():
    return next(int(line.split()[1]) << 10 for line in open("/proc/meminfo") if line.startswith("MemAvailable"))


def shape(out):
    return (f"{out['transport']:6} {matrix.size(out['size']):>7} x {out['ops']:<5} {out['batch']} in flight, "
            f"{out['sessions']:2} sessions, {out['wait']:8}")


def tell(out):
    for ceiling in out["ceilings"]:
        unit, times = ("us", 1e-3) if ceiling["of"] == "latency_ns" else ("GB/s", 1e-9)
        print(f"  {shape(out)} {c.show(ceiling['dray'] * times):>7} {unit:4} {ceiling['name']:12} "
              f"{c.show(ceiling['ceiling'] * times):>7} {unit:4} {ceiling['dray'] / ceiling['ceiling']:8.3g}", flush=True)


def measure(near, far, transport, runs):
    for one in full() if FULL else cuts():
        out = run(near, far, *one)
        if out is None:
            print(f"  {transport}: {one}: not enough memory, left out", file=sys.stderr)
            continue
        if out["transport"] != transport:
            raise c.CannotRun(f"the agents chose {out['transport']}")
        tell(out)
        runs.append(out)


def main():
    with c.lab("matrix") as lab:
        c.need_memory(3 * c.GIB)
        near, far = c.agents(lab)
        runs = []
        print("matrix")
        measure(near, near, "local", runs)
        measure(near, far, "tcp", runs)
        c.save("matrix", runs)


main()
