#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""make demo: a KV cache moves between two engines by way of two agents on two hosts, verified byte by byte.

The hosts are network namespaces joined by a veth pair, or this machine's loopback if namespaces are not allowed. The agents
authenticate with a pre-shared key that is made for the run. One engine (prefill) has a cache full of blocks. The other (decode)
pulls scattered blocks of it; then prefill pushes more blocks, with a notification. Both compute digests of their own memory.
"""

import contextlib
import json
import os
import pathlib
import random
import signal
import statistics
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "bench"), str(HERE)]

import common as c  # noqa: E402
import engine as kv  # noqa: E402

PULLED, PUSHED = 125, 32  # blocks of each of the 32 layers: 4,000 and 1,024
REPEATS = 5
STREAMS = 2
NEEDS = 3.5 * c.GIB  # two caches, their mappings in other processes, and the rest


class Failed(Exception):
    """The demo did not show what it should."""


class Engine:
    """engine.py in a process of its own; engine.pull(...) sends the command and waits for the answer."""

    def __init__(self, agent, name):
        self.process = subprocess.Popen([sys.executable, str(HERE / "engine.py"), str(agent.socket), name],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                        start_new_session=True)  # ^C reaches only the demo, which then ends the engines
        self.name = name

    def tell(self, verb, *args):
        self.process.stdin.write(json.dumps([verb, args]) + "\n")
        self.process.stdin.flush()

    def hear(self):
        line = self.process.stdout.readline()
        if not line:
            raise Failed(f"the {self.name} engine ended with status {self.process.wait()}")
        return json.loads(line)

    def __getattr__(self, verb):
        def ask(*args):
            self.tell(verb, *args)
            return self.hear()
        return ask

    def end(self):
        self.process.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()


class Opened:
    """An engine's memory, opened by this process for the bare copy."""

    def __init__(self, pid, fd):
        self.fd, self.size = os.open(f"/proc/{pid}/fd/{fd}", os.O_RDWR | os.O_CLOEXEC), kv.LAYER


@contextlib.contextmanager
def stage():
    """Starts the agents on their hosts and an engine beside each. Ends all of them, also after an error."""
    lab, engines = c.harness.Lab(), []
    try:
        agents = c.agents(lab, hosts=lab.hosts)
        for agent, name in zip(agents, ("prefill", "decode")):
            engines.append(Engine(agent, name))
        for one in engines:
            one.hear()
        yield lab, agents, engines
    finally:
        for one in engines:
            one.end()
        lab.close()


def describe(lab):
    print(f"cache     Llama-3.1-8B shape: {kv.LAYERS} layers as {kv.LAYERS} memfds, {kv.KV_HEADS} KV heads of {kv.HEAD_SIZE}, "
          f"bf16,\n          {kv.TOKENS} tokens a block: {kv.BLOCK // c.KIB} KiB a block and layer, {kv.BLOCKS} blocks, "
          f"{kv.LAYERS * kv.LAYER / c.GIB:g} GiB")
    if lab.namespaces:
        print(f"hosts     two network namespaces{' in a user namespace' if lab.userns else ''}, joined by a veth pair")
    else:
        print(f"hosts     this machine's LOOPBACK: network namespaces are not allowed here ({lab.why_not})")
    print("agents    one on each, TLS 1.3 with a pre-shared key made for this run", flush=True)


def beside_bare(lab, source, target, column, ops, count, move):
    """Alternates move() with a bare socket copy of the same blocks between the same memfds and hosts; returns the medians."""
    memory = [[Opened(m["pid"], fd) for fd in m["fds"]] for m in (source.memory(), target.memory())]
    ops_fd = c.ops_fd(ops)
    moved = []

    def dray():
        moved.append(move())
        return c.rate(moved[-1])

    try:
        with c.socket_loop(*memory, ops_fd, streams=STREAMS, batch=16, source_column=column, hosts=lab.hosts) as loop:
            loop.ask("run", count)
            rate, _, share, _ = c.pairs(lambda: c.rate(loop.ask("run", count)), dray, REPEATS)
    finally:
        for one in (*memory[0], *memory[1]):
            os.close(one.fd)
        os.close(ops_fd)
    return {**moved[0], "seconds": statistics.median(m["seconds"] for m in moved), "rate": rate, "share": share}


def same(what, source, target):
    if source != target:
        raise Failed(f"{what}: the digest of the destination, {target}, is not that of the source, {source}")


def play(lab, prefill, decode):
    """The pull and the push, each with its figures. Blocks lie at random places on both sides, as in a paged cache."""
    rng = random.Random()
    prefill.fill()
    cached, free = (rng.sample(range(kv.BLOCKS), PULLED + PUSHED) for _ in range(2))
    describe(lab)

    # Prefill gives a token and the numbers of blocks; decode reads them into free blocks of its own.
    token, there, here = prefill.export("r"), cached[:PULLED], free[:PULLED]

    def pull():
        return decode.pull(token, here, there)

    pull()
    same("pull", prefill.digest(there), decode.digest(here))
    pulled = beside_bare(lab, prefill, decode, "remote", kv.operations(here, there), kv.LAYERS * PULLED, pull)

    # Decode gives a token for free blocks; prefill writes into them and sends a notification.
    token, mine, theirs = decode.export("w"), cached[PULLED:], free[PULLED:]
    text = f"request 7: {PUSHED} more blocks of each layer"

    def push():
        done = prefill.push(token, mine, theirs, 7, text)
        told = decode.notified()
        if told != {"tag": 7, "text": text}:
            raise Failed(f"the notification of the push came as {told}")
        return done

    push()
    same("push", prefill.digest(mine), decode.digest(theirs))
    same("what was pulled, after the push", prefill.digest(there), decode.digest(here))
    pushed = beside_bare(lab, prefill, decode, "local", kv.operations(mine, theirs), kv.LAYERS * PUSHED, push)
    return pulled, pushed


def table(pulled, pushed):
    def row(*cells):
        print("{:34} {:>8} {:>8} {:>10}  {:5} {:>19}  {}".format(*cells))

    print()
    row("what moved", "size", "time", "rate", "path", "of bare socket copy", "digests")
    for what, blocks, done in (("pull of {:,} blocks", PULLED, pulled), ("push of {:,} blocks, notified", PUSHED, pushed)):
        row(what.format(kv.LAYERS * blocks), f"{done['bytes'] / c.MIB:.0f} MiB", f"{done['seconds'] * 1e3:.0f} ms",
            f"{done['rate'] / 1e9:.2f} GB/s", done["path"], f"{done['share']:.2f}", "equal")
    print(f"\nmedians of {REPEATS}, in turn with the bare copy: the same blocks, memfds, hosts, {STREAMS} streams")


def drain(agents):
    """SIGTERM to both: they must drain and end with status 0."""
    times = []
    for agent in agents:
        begun = time.monotonic()
        agent.stop()
        times.append(f"{(time.monotonic() - begun) * 1e3:.0f} ms")
    print(f"agents    drained by SIGTERM in {' and '.join(times)}, both ended with status 0")


def main():
    begun = time.monotonic()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("demo: terminated"))  # so that the clean-up runs
    if not c.harness.DRAYD.exists() or not (c.TOOLS / "ceiling_tcp").exists():
        sys.exit("demo: drayd or its tools are not built; make demo builds them")
    try:
        c.need_memory(NEEDS)
        with stage() as (lab, agents, (prefill, decode)):
            table(*play(lab, prefill, decode))
            for one in (prefill, decode):
                one.close()
            drain(agents)
        print(f"demo      done in {time.monotonic() - begun:.0f} s; two caches of {kv.LAYERS * kv.LAYER / c.GIB:g} GiB in memory")
    except (c.CannotRun, Failed, AssertionError, OSError) as e:
        sys.exit(f"demo: {e}")
    except KeyboardInterrupt:
        sys.exit("demo: interrupted")


if __name__ == "__main__":
    main()
