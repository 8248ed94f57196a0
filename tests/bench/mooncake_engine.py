# SPDX-License-Identifier: Apache-2.0
"""An engine for bench_mooncake.py, of Mooncake or of dray, as `mooncake` is resolved. Reads lines of JSON, and answers each.

    python mooncake_engine.py SIZE      -> {"session": "HOST:PORT", "managed": ADDRESS, "private": ADDRESS}

    {"run": "read"|"write", "session", "here": ADDRESS, "there": ADDRESS, "length", "count", "calls", "seed"}
        `calls` transfers of `count` pieces of `length` bytes each, at random places
                                                -> {"seconds", "bytes", "cpu", "here": [...], "there": [...]}
        `here`, `there`: where the first pieces of the last transfer lie, at most 64
    {"fill": ADDRESS, "seed"}                   -> {}                  random bytes in all of the memory
    {"sums": [ADDRESS, ...], "length"}          -> {"sums": [...]}     digests of pieces
"""

import ctypes
import hashlib
import json
import mmap
import os
import random
import sys
import time

from mooncake.engine import TransferEngine

SIZE = int(sys.argv[1])
engine = TransferEngine()
assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # Mooncake prints to its output


def say(**what):
    answers.write(json.dumps(what) + "\n")
    answers.flush()


def places(rng, length, count):
    """Random places of pieces that do not overlap."""
    return [i * length for i in rng.sample(range(SIZE // length), count)]


def run(r):
    rng, calls = random.Random(r["seed"]), []
    for _ in range(min(r["calls"], 8)):  # lists are made beforehand, as a connector makes them from its blocks
        calls.append(([r["here"] + at for at in places(rng, r["length"], r["count"])],
                      [r["there"] + at for at in places(rng, r["length"], r["count"])], [r["length"]] * r["count"]))
    start = engine.batch_transfer_sync_read if r["run"] == "read" else engine.batch_transfer_sync_write
    began, cpu = time.monotonic(), time.process_time()
    for i in range(r["calls"]):
        code = start(r["session"], *calls[i % len(calls)])
        assert code == 0, f"a transfer failed: {code}"
    seconds, cpu = time.monotonic() - began, time.process_time() - cpu
    here, there, _ = calls[(r["calls"] - 1) % len(calls)]
    say(seconds=seconds, bytes=r["calls"] * r["count"] * r["length"], cpu=cpu, here=here[:64], there=there[:64])


def handle(r):
    if "run" in r:
        run(r)
    elif "fill" in r:
        ctypes.memmove(r["fill"], random.Random(r["seed"]).randbytes(SIZE), SIZE)
        say()
    else:
        say(sums=[hashlib.sha256(ctypes.string_at(at, r["length"])).hexdigest() for at in r["sums"]])


def main():
    private = mmap.mmap(-1, SIZE)
    at = ctypes.addressof(ctypes.c_char.from_buffer(private))
    ctypes.memset(at, 1, SIZE)
    assert engine.register_memory(at, SIZE) == 0
    managed = engine.allocate_managed_buffer(SIZE)
    assert managed, "no memory"
    ctypes.memset(managed, 1, SIZE)
    say(session=f"127.0.0.1:{engine.get_rpc_port()}", private=at, managed=managed)
    for line in sys.stdin:
        handle(json.loads(line))


main()
