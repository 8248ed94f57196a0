#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Transport tcp between two agents over loopback, beside a bare loop over the same two memfds."""

import json
import os
import socket
import statistics
import subprocess

import common as c

STREAMS = 2  # tcp.streams
ANSWERS_ROUNDS = 7
# name, bytes of an operation, operations a transfer, transfers at a time, pieces a call of the loop, target
SHAPES = (
    ("1 MiB", c.MIB, 16, 4, 1, 0.97),
    ("64 KiB scattered", 64 * c.KIB, 64, 8, 16, 0.97),
    ("4 KiB, batches of 256", 4 * c.KIB, 256, 16, 256, 0.75),
)
# A lone READ that several workers of the agent receive, beside a loop with a stream and a thread for each of them.
LONE = (
    ("2 MiB, one at a time", 2 * c.MIB, 1, 1, 1, None),
    ("16 MiB, one at a time", 16 * c.MIB, 1, 1, 1, None),
)
# The same for transfers of one operation, 8 at a time, which are independent of each other. The loop has no answers to wait for, so it
# is also compared with bare requests and answers, of which as many are in flight.
SINGLE = (
    ("4 KiB, 8 single ones in flight", 4 * c.KIB, 1, 8, 8, 0.5),
    ("64 KiB, 8 single ones in flight", 64 * c.KIB, 1, 8, 8, 0.9),
    ("256 KiB, 8 single ones in flight", 256 * c.KIB, 1, 8, 8, 0.95),
)


def iperf3():
    """Bytes per second of as many streams, for one second."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    server = subprocess.Popen(["iperf3", "-s", "-1", "-p", port, "-B", "127.0.0.1", "--forceflush"], stdout=subprocess.PIPE, text=True)
    try:
        while "listening" not in (line := server.stdout.readline()):
            if not line:
                raise c.CannotRun("iperf3 does not listen")
        done = subprocess.run(["iperf3", "-c", "127.0.0.1", "-p", port, "-P", str(STREAMS), "-t", "1", "-J"],
                              stdout=subprocess.PIPE, text=True, timeout=30)
        return json.loads(done.stdout)["end"]["sum_received"]["bits_per_second"] / 8
    finally:
        server.kill()
        server.wait()
        server.stdout.close()


class Used:
    """Processor time of one party of the comparison: both agents and the engine, or both ends of the loop."""

    def __init__(self, pids):
        self.pids, self.bytes, self.since = pids, 0, c.cpu_seconds(*pids)

    def rate(self, answer):
        self.bytes += answer["bytes"]
        return c.rate(answer)

    def a_gigabyte(self):
        return (c.cpu_seconds(*self.pids) - self.since) / (self.bytes / 1e9)


def answers(records, loop, n_loop, engine, near, far, ops, name, shape, args):
    """Bare requests and answers beside the loop, whose rounds have n_loop operations, and beside the agents."""
    depth = shape[3]
    spin = ["--spin"] * (len(os.sched_getaffinity(0)) >= 4 * STREAMS)  # a processor for each thread of both sides, and some to spare
    for threads in 1, STREAMS:
        with c.Tool("ceiling_answers", "--local", c.name_memory(near), "--remote", c.name_memory(far), "--ops", ops, "--depth", depth,
                    "--streams", threads, *args, *spin, fds=[ops, near.fd, far.fd]) as bare:
            what = f"bare requests and answers, {threads} connection{'s' * (threads > 1)}, a thread for each"
            n = c.sized(bare, 64)
            value, ceiling, ratio, spread = c.pairs(lambda: c.rate(loop.ask("run", n_loop)), lambda: c.rate(bare.ask("run", n)), ANSWERS_ROUNDS)
            records.add(f"{name}: {what}", value / 1e9, "GB/s", ceiling_name=f"bare socket loop, {STREAMS} streams", ceiling=ceiling / 1e9,
                        ratio=ratio, spread=spread)
            value, ceiling, ratio, spread = c.pairs(lambda: c.rate(bare.ask("run", n)), lambda: c.rate(engine.ask("run", n)), ANSWERS_ROUNDS)
            records.add(f"{name}, beside these", value / 1e9, "GB/s", ceiling_name=what, ceiling=ceiling / 1e9, ratio=ratio, spread=spread)


def measure(records, agents, near, far, direction, shape, streams=STREAMS, note=""):
    name, size, batch, depth, pieces, target = shape
    name += note
    write = direction == "write"
    ops = c.ops_fd(c.scattered(size, near.size))
    source, target_memory, column = (near, far, "local") if write else (far, near, "remote")
    with c.socket_loop([source], [target_memory], ops, streams=streams, batch=pieces, source_column=column) as loop, \
            c.client(*agents, [near], [far], ops, "--batch", batch, "--depth", depth, *["--write"] * write) as engine:
        if engine.first["transport"] != "tcp":
            raise c.CannotRun(f"the agents chose {engine.first['transport']}")
        n = c.sized(loop, 64)
        engine.ask("run", n)
        used = Used(loop.pids), Used((engine.pid, *(a.pid for a in agents)))
        ours, bare, ratio, spread = c.pairs(lambda: used[0].rate(loop.ask("run", n)),
                                            lambda: used[1].rate(engine.ask("run", n)))
        records.add(f"{direction} {name}", ours / 1e9, "GB/s", ceiling_name=f"bare socket loop, {streams} streams",
                    ceiling=bare / 1e9, ratio=ratio, target=target and (">=", target), spread=spread)
        if size < 64 * c.KIB:
            records.add(f"{direction} {name}, operations", ours / size / 1e3, "k/s",
                        ceiling_name=f"bare socket loop, {STREAMS} streams", ceiling=bare / size / 1e3, ratio=ratio)
        bare, ours = (u.a_gigabyte() for u in used)
        records.add(f"{direction} {name}, processor time", ours, "s/GB", ceiling_name="both ends of the loop", ceiling=bare,
                    ratio=ours / bare)
        if shape in SINGLE:
            answers(records, loop, n, engine, near, far, ops, f"{direction} {name}", shape, ["--write"] * write)


def several_workers(lab, records, near, far):
    """With one worker, and with as many as the agent has by default, but two at least."""
    cpus = len(os.sched_getaffinity(0))
    if cpus < 2:
        print("  several workers: skipped, this machine has one CPU")
        return
    for workers in 1, max(2, cpus // 4):
        agents = c.agents(lab, **{"agent.workers": workers})
        for shape in LONE:
            measure(records, agents, near, far, "read", shape, workers, f", {workers} worker{'s' * (workers > 1)}")
        for agent in agents:
            agent.stop()


if __name__ == "__main__":
    with c.bench("tcp") as (lab, records):
        c.need_memory(3 * c.GIB)
        near, far = c.dray.Memory(c.GIB), c.dray.Memory(c.GIB)
        agents = c.agents(lab)
        for shape in SHAPES + SINGLE:
            for direction in ("read", "write"):
                measure(records, agents, near, far, direction, shape)
        several_workers(lab, records, near, far)
        if c.which("iperf3"):
            records.add(f"iperf3, {STREAMS} streams, for comparison", statistics.median(iperf3() for _ in range(3)) / 1e9, "GB/s")
