#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Options that transport tcp does not use, measured on the bare socket loop: rounds with and without the option, interleaved.

Paths: loopback, two network namespaces, and a virtual machine that sends over a virtio card. Only the last path does not copy
memory of MSG_ZEROCOPY: the kernel keeps it until it is sent. To repeat the measurement over a real network, start
`ceiling_tcp receive` on one machine and `ceiling_tcp send` on the other; the head of ceiling_tcp.c says how.
"""

import contextlib
import functools
import json
import subprocess
import sys

import common as c

STREAMS = 2
PAIRS = 9
BUFFER = 4 * c.MIB  # tcp.buffer
MEMORY = 256 * c.MIB
SIZES = (16 * c.KIB, 64 * c.KIB, 256 * c.KIB, c.MIB)  # a call
# name, options of the loop, the buffer with it, sizes
TRIALS = (
    ("MSG_ZEROCOPY", ("--zerocopy",), BUFFER, SIZES),
    ("io_uring", ("--uring",), BUFFER, SIZES),
    ("io_uring, zero copy", ("--uring", "--zerocopy"), BUFFER, SIZES),
    ("autotuned buffers", (), 0, SIZES[1::2]),
    ("TCP_NOTSENT_LOWAT 128 KiB", ("--unsent", 128 * c.KIB), BUFFER, SIZES[1::2]),
    ("SO_BUSY_POLL 50 us", ("--busy-poll", 50), BUFFER, SIZES[1::2]),
)
GUEST_TRIALS = (("MSG_ZEROCOPY", ("--zerocopy",)), ("io_uring", ("--uring",)))
GUEST_SIZES = SIZES[::3]
GUEST_NET = "10.98.76"


def row(records, path, size, trial, base, ours):
    """base, ours: (bytes per second, processor seconds per GB); ours also has the throughput ratio and the calls that lent and copied."""
    lent = f"; {ours[4] / ours[3]:.0%} copied after all" if ours[3] else ""
    records.add(f"{path}, {c.show(size / c.KIB)} KiB, {trial}: processor time", ours[1], "s/GB",
                ceiling_name=f"plain calls; throughput {ours[2]:.2f} of theirs{lent}", ceiling=base[1], ratio=ours[1] / base[1])


class Side:
    """One of the two loops, and the time it has used. cpu: returns a running total of processor seconds."""

    def __init__(self, loop, rounds, cpu):
        self.loop, self.rounds, self.seconds = loop, rounds, cpu
        self.bytes = self.cpu = self.lent = self.copied = 0

    def run(self):
        since = self.seconds()
        answer = self.loop.ask("run", self.rounds)
        self.cpu += self.seconds() - since
        self.bytes += answer["bytes"]
        self.lent += answer["zerocopies"]
        self.copied += answer["copied"]
        return c.rate(answer)

    def a_gigabyte(self):
        return self.cpu / (self.bytes / 1e9)


def here(records, path, hosts, memories):
    """Both ends on this machine."""
    near, far = memories
    for name, options, buffer, sizes in TRIALS:
        for size in sizes:
            ops = c.ops_fd(c.scattered(size, MEMORY))
            with contextlib.ExitStack() as stack:
                plain, other = (stack.enter_context(c.socket_loop([near], [far], ops, streams=STREAMS, batch=1, hosts=hosts,
                                                                  buffer=b, options=o)) for b, o in ((BUFFER, ()), (buffer, options)))
                least = 64 * c.MIB // size  # processor time is counted in clock ticks, so a round must last many of them
                other.ask("run", least)
                n = max(least, c.sized(plain, least))
                base, tried = (Side(loop, n, functools.partial(c.cpu_seconds, *loop.pids)) for loop in (plain, other))
                ours, bare, ratio, _ = c.pairs(base.run, tried.run, PAIRS)
            row(records, path, size, name, (bare, base.a_gigabyte()), (ours, tried.a_gigabyte(), ratio, tried.lent, tried.copied))


def guest(records, host, far):
    """A virtual machine sends, a host receives. Starts a pair of receivers for each trial and passes their ports to the machine."""
    why_not = subprocess.run([str(c.ROOT / "tests/vm/run"), "--check"], stdout=subprocess.PIPE, text=True).stdout.strip()
    if why_not:
        print(f"  virtual machine: left out: {why_not}")
        return
    host.run("ip", "tuntap", "add", "drayvm", "mode", "tap")
    host.run("ip", "addr", "add", f"{GUEST_NET}.1/24", "dev", "drayvm")
    host.run("ip", "link", "set", "drayvm", "up")
    with contextlib.ExitStack() as stack:
        jobs = []
        for name, options in GUEST_TRIALS:
            for size in GUEST_SIZES:
                ops = c.ops_fd(c.scattered(size, MEMORY))
                receivers = [stack.enter_context(c.Tool("ceiling_tcp", "receive", "--listen", f"{GUEST_NET}.1", "--memory", c.name_memory(far),
                                                        "--column", "remote", "--ops", ops, "--streams", STREAMS, "--buffer", BUFFER,
                                                        fds=[ops, far.fd], prefix=host.prefix, first=True)) for _ in range(2)]
                jobs.append({"name": name, "size": size, "options": options, "ports": [r.first["port"] for r in receivers]})
        done = subprocess.run([*host.prefix, str(c.ROOT / "tests/vm/run"), "--tap=drayvm", "--timeout=400", f"--env=DRAY_BUILD={c.harness.BUILD}", "--", sys.executable,
                               str(c.ROOT / "tests/bench/vm/tcp_guest.py"), json.dumps(jobs)], stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise c.CannotRun(f"the virtual machine ended with status {done.returncode}: {done.stdout}")
    for line in done.stdout.splitlines():
        got = json.loads(line)
        row(records, "virtual machine", got["size"], got["name"], got["base"], got["ours"])


def main():
    with c.bench("tcp_options") as (lab, records):
        c.need_memory(3 * MEMORY)
        memories = c.dray.Memory(MEMORY), c.dray.Memory(MEMORY)
        here(records, "loopback", None, memories)
        if lab.hosts[0].real:
            here(records, "veth", (lab.hosts[1], lab.hosts[0]), memories)
            guest(records, lab.hosts[0], memories[1])
        else:
            print(f"  veth and virtual machine: left out, network namespaces are not allowed here ({lab.why_not})")


if __name__ == "__main__":
    main()
