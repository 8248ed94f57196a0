#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""dray.mooncake with itself, over two agents and at one, and Mooncake with dray, beside Mooncake with itself: the same program for
`mooncake.engine`, the same sizes and batches, over TCP except at one agent. From Mooncake to dray, an engine with Mooncake linked in begins, and an agent serves the other one's managed buffer; from dray to
Mooncake, a client of dray reaches such an engine by its agent."""

import contextlib
import hashlib
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import time

import common as c
import dray

SIZE = 64 * c.MIB
PIECES = 1000  # Mooncake's TCP takes 1,024 at once
PROGRAM = pathlib.Path(__file__).with_name("mooncake_engine.py")
# bare loops: streams, pieces of a system call, bytes of socket buffers (0: the kernel's choice)
LOOPS = ((2, PIECES, 0), (2, PIECES, 256 * c.KIB), (2, 64, 256 * c.KIB), (1, PIECES, 256 * c.KIB), (1, 64, 256 * c.KIB))
# what, bytes of a piece, pieces of a call, how many times Mooncake (the pair of both: not slower than it)
CASES = (("1 MiB", c.MIB, 1, 1.3), ("16 x 1 MiB", c.MIB, 16, 1.3), (f"{PIECES} x 4 KiB, scattered", 4 * c.KIB, PIECES, 40))


def mooncake_python():
    made = subprocess.run([c.ROOT / "scripts/mooncake-env"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    if made.returncode:
        sys.exit(0)  # it has said why
    return made.stdout.strip()


class Engine:
    """A process of mooncake_engine.py."""

    def __init__(self, command, **variables):
        self.process = subprocess.Popen([*command, str(PROGRAM), str(SIZE)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                        stderr=subprocess.DEVNULL, env={**os.environ, **variables})
        self.first = self.hear()

    def hear(self):
        line = self.process.stdout.readline()
        if not line:
            raise c.CannotRun(f"an engine ended with status {self.process.wait()}")
        return json.loads(line)

    def ask(self, **what):
        self.process.stdin.write(json.dumps(what) + "\n")
        self.process.stdin.flush()
        return self.hear()

    def close(self):
        self.process.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Client:
    """The same for a client of dray that reaches an engine of Mooncake by its agent. It has no address: places in its memory are offsets."""

    def __init__(self, agent):
        self.client, self.memory, self.remotes = dray.Client(agent.socket), dray.Memory(SIZE), {}
        self.region, self.first = self.client.region(self.memory), {"managed": 0}

    def ask(self, **r):
        if "fill" in r:
            self.memory.view[:] = random.Random(r["seed"]).randbytes(SIZE)
            return {}
        if "sums" in r:
            return {"sums": [hashlib.sha256(self.memory.view[at:at + r["length"]]).hexdigest() for at in r["sums"]]}
        if r["session"] not in self.remotes:
            self.remotes[r["session"]] = self.client.import_token(f"mooncake://{r['session']}")
        rng, pieces = random.Random(r["seed"]), range(SIZE // r["length"])
        calls = []
        for _ in range(min(r["calls"], 8)):
            places = [[i * r["length"] for i in rng.sample(pieces, r["count"])] for _ in range(2)]
            calls.append([(here, r["there"] + there, r["length"]) for here, there in zip(*places)])
        start, began = getattr(self.client, r["run"]), time.monotonic()
        for i in range(r["calls"]):
            start(self.region, self.remotes[r["session"]], calls[i % len(calls)]).result()
        last = calls[(r["calls"] - 1) % len(calls)][:64]
        return {"seconds": time.monotonic() - began, "bytes": r["calls"] * r["count"] * r["length"], "here": [op[0] for op in last],
                "there": [op[1] for op in last]}

    def close(self):
        self.client.close()


class Pair:
    """Two engines, of which the first one begins."""

    def __init__(self, stack, *engines):
        self.near, self.far = engines
        for engine in engines:
            stack.callback(engine.close)
        self.seed = 0

    def run(self, what, memory, length, count, calls):
        self.seed += 1
        return self.near.ask(run=what, session=self.far.first["session"], here=self.near.first[memory], there=self.far.first[memory],
                             length=length, count=count, calls=calls, seed=self.seed)

    def calls(self, *case):
        """How many calls take about a round."""
        calls = 1
        while True:
            seconds = self.run(*case, calls)["seconds"]
            if seconds > c.ROUND / 4:
                return max(1, int(calls * c.ROUND / seconds))
            calls *= 4

    def verify(self, what, memory, length, count):
        """Moves other bytes, and compares them at both ends."""
        for engine, seed in ((self.near, 1), (self.far, 2)):
            engine.ask(fill=engine.first[memory], seed=seed)
        moved = self.run(what, memory, length, count, 1)
        sums = [engine.ask(sums=moved[side], length=length)["sums"] for engine, side in ((self.near, "here"), (self.far, "there"))]
        if sums[0] != sums[1]:
            raise c.CannotRun(f"{what} of {count} x {length} bytes: the bytes differ")


def measure(records, pair, theirs, label, what, memory, name, length, count, limit):
    case = (what, memory, length, count)
    pair.verify(*case)
    mine, others = pair.calls(*case), theirs.calls(*case)
    rate, other, ratio, spread = c.pairs(lambda: c.rate(theirs.run(*case, others)), lambda: c.rate(pair.run(*case, mine)))
    records.add(f"{label}{what}, {name}, {memory}", rate / 1e9, "GB/s", ceiling_name="Mooncake 0.3.13", ceiling=other / 1e9, ratio=ratio,
                target=(">=", limit) if memory == "managed" else None, spread=spread)


def possible(records, theirs, what, name, length, count):
    """What a bare loop of send and recv makes of the same pieces, for limits over TCP: of several ways to do it, the best one of a few rounds
    in turn."""
    case, near, far = (what, "managed", length, count), c.dray.Memory(SIZE), c.dray.Memory(SIZE)
    ops, sides = c.ops_fd(c.scattered(length, SIZE)), ([far], [near]) if what == "read" else ([near], [far])
    with contextlib.ExitStack() as stack:
        loops = [stack.enter_context(c.socket_loop(*sides, ops, streams=streams, batch=batch, buffer=buffer,
                                                   source_column="remote" if what == "read" else "local")) for streams, batch, buffer in LOOPS]
        sizes = [c.sized(loop, count) for loop in loops]
        rounds = [[c.rate(loop.ask("run", n)) for loop, n in zip(loops, sizes)] for _ in range(5)]
        best = max(range(len(LOOPS)), key=lambda i: statistics.median(rates[i] for rates in rounds))
        others = theirs.calls(*case)
        rate, other, ratio, spread = c.pairs(lambda: c.rate(theirs.run(*case, others)), lambda: c.rate(loops[best].ask("run", sizes[best])))
    streams, batch, buffer = LOOPS[best]
    how = f"{streams} streams, {batch} pieces a call, " + (f"buffers of {buffer // c.KIB} KiB" if buffer else "the kernel's buffers")
    records.add(f"bare socket loop, best of {len(LOOPS)}: {what}, {name}", rate / 1e9, "GB/s", ceiling_name="Mooncake 0.3.13",
                ceiling=other / 1e9, ratio=ratio, spread=spread)
    print(f"    the best one: {how}", flush=True)


if __name__ == "__main__":
    real = mooncake_python()
    with c.bench("mooncake") as (lab, records), contextlib.ExitStack() as stack:
        agents = c.agents(lab, **{"mooncake.listen": "127.0.0.1:0", "mooncake.allow": "127.0.0.0/8", "mooncake.import": "true"})
        program = [sys.executable, "-m", "dray.mooncake"]

        def engine(agent, **variables):
            return Engine(program, DRAY_SOCKET=str(agent.socket), PYTHONPATH=str(c.ROOT / "client/python"), **variables)

        ours, theirs = Pair(stack, *map(engine, agents)), Pair(stack, *(Engine([real]) for _ in range(2)))
        mixed = Pair(stack, Engine([real]), engine(agents[1], DRAY_MOONCAKE_SEGMENT=agents[1].ctl("status", "--json")["mooncake_segment"]))
        back = Pair(stack, Client(agents[0]), theirs.far)
        one = Pair(stack, *(engine(agents[0]) for _ in range(2)))
        for case in CASES:
            for what in ("write", "read"):
                theirs.verify(what, "managed", *case[1:3])
        for memory in ("managed", "private"):
            for case in CASES:
                for what in ("write", "read"):
                    measure(records, ours, theirs, "", what, memory, *case)
                    if memory == "managed":
                        measure(records, one, theirs, "at one agent: ", what, memory, *case)
                        measure(records, mixed, theirs, "Mooncake to dray: ", what, memory, *case[:-1], 1)
                        measure(records, back, theirs, "dray to Mooncake: ", what, memory, *case[:-1], 1)
                        if case is CASES[-1]:
                            possible(records, theirs, what, *case[:-1])
