#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The sending end of bench_tcp_options.py in the virtual machine: trials as JSON in, a line of JSON for each out."""

import contextlib
import json
import pathlib
import statistics
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import bench_tcp_options as b  # noqa: E402
import common as c  # noqa: E402

ROUND = 1.0  # seconds: processor time is counted in clock ticks, so a round must last many of them
PAIRS = 5


def busy():
    """Busy seconds of all processors of this machine: most of the sending happens outside of any process."""
    fields = [int(x) for x in pathlib.Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    return (sum(fields) - fields[3] - fields[4]) / 100


def open_side(stack, memory, job, port, options):
    ops = c.ops_fd(c.scattered(job["size"], b.MEMORY))
    tool = stack.enter_context(c.Tool("ceiling_tcp", "send", "--connect", f"{b.GUEST_NET}.1:{port}", "--memory", c.name_memory(memory),
                                      "--column", "local", "--ops", ops, "--streams", b.STREAMS, "--buffer", b.BUFFER, *options,
                                      fds=[ops, memory.fd]))
    return b.Side(tool, 0, busy)


for command in ("link set eth0 up", f"addr add {b.GUEST_NET}.2/24 dev eth0"):
    subprocess.run(["ip", *command.split()], check=True)
memory = c.dray.Memory(b.MEMORY)
for job in json.loads(sys.argv[1]):
    with contextlib.ExitStack() as stack:
        base, tried = (open_side(stack, memory, job, port, options) for port, options in zip(job["ports"], ((), job["options"])))
        answer = base.loop.ask("run", 4 * c.MIB // job["size"])
        tried.loop.ask("run", 4 * c.MIB // job["size"])
        base.rounds = tried.rounds = max(8, int(c.rate(answer) * ROUND / job["size"]))
        bare, ours = [], []
        for i in range(PAIRS):
            for side, into in ((base, bare), (tried, ours))[:: 1 if i % 2 else -1]:
                into.append(side.run())
    print(json.dumps({"name": job["name"], "size": job["size"], "base": [statistics.median(bare), base.a_gigabyte()],
                      "ours": [statistics.median(ours), tried.a_gigabyte(), statistics.median(o / r for o, r in zip(ours, bare)),
                               tried.lent, tried.copied]}), flush=True)
