#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The store of one agent against memcpy of the same bytes, and beside redis where redis-server is installed: PUT, GET, reads in place and
EXISTS; and its disk tier against fio on the same file system."""

import contextlib
import json
import socket
import statistics
import subprocess
import tempfile

import common as c

SIZE = 2 * c.MIB
OBJECTS = 64  # of bench_store.c
ROUNDS = 12  # of writes to the disk tier; memory holds five


class Redis:
    """A server on a socket in a temporary folder, with one object of SIZE bytes."""

    def __init__(self, stack):
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        path = f"{folder}/redis.sock"
        server = subprocess.Popen(["redis-server", "--port", "0", "--unixsocket", path, "--save", "", "--dir", folder], stdout=subprocess.PIPE, text=True)
        stack.callback(server.stdout.close)
        stack.callback(server.wait)
        stack.callback(server.kill)
        while "Ready to accept" not in (line := server.stdout.readline()) and "ready to accept" not in line:
            if not line:
                raise c.CannotRun("redis-server does not start")
        self.socket = stack.enter_context(socket.socket(socket.AF_UNIX))
        self.socket.connect(path)
        self.value = bytes(SIZE)
        self.answer = bytearray(SIZE + 64)
        self.put()

    def ask(self, words, length):
        """Sends a command and reads an answer of `length` bytes."""
        self.socket.sendall(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in words))
        view = memoryview(self.answer)
        at = 0
        while at < length:
            at += self.socket.recv_into(view[at:])

    def put(self):
        self.ask((b"SET", b"key", self.value), len(b"+OK\r\n"))

    def get(self):
        self.ask((b"GET", b"key"), len(b"$%d\r\n" % SIZE) + SIZE + 2)

    def rate(self, what, n):
        began = c.now()
        for _ in range(n):
            what()
        return n * SIZE / (c.now() - began)


def against_memcpy(records, store, word, name, target):
    n = c.sized(store, 16, word)
    copies = n * (OBJECTS if word == "batch" else 1)
    ours, bare, ratio, spread = c.pairs(lambda: c.rate(store.ask("copy", copies)), lambda: c.rate(store.ask(word, n)))
    records.add(name, ours / 1e9, "GB/s", ceiling_name="memcpy", ceiling=bare / 1e9, ratio=ratio, target=(">=", target), spread=spread)


def times(records, store, word, name, limit):
    n = c.sized(store, 64, word)
    values = []
    for _ in range(c.PAIRS):
        answer = store.ask(word, n)
        values.append(answer["seconds"] / answer["n"] * 1e6)
    records.add(name, statistics.median(values), "us", target=("<=", limit) if limit else None, spread=values)
    return statistics.median(values)


def beside_redis(records, store):
    if not c.which("redis-server"):
        print("  redis: skipped, redis-server is not installed")
        return
    with contextlib.ExitStack() as stack:
        redis = Redis(stack)
        for word, what in (("get", redis.get), ("put", redis.put)):
            n = c.sized(store, 16, word)
            ours, theirs, ratio, spread = c.pairs(lambda: redis.rate(what, 32), lambda: c.rate(store.ask(word, n)))
            records.add(f"{word} 2 MiB, beside redis", ours / 1e9, "GB/s", ceiling_name="redis", ceiling=theirs / 1e9, ratio=ratio, spread=spread)


def memory(records, lab):
    agent, = c.agents(lab, 1, **{"limits.store_bytes": "1GiB", "limits.store_bytes_per_owner": "1GiB"})
    with c.Tool("bench_store", "--socket", agent.socket, "--size", SIZE, first=True) as store:
        against_memcpy(records, store, "get", "GET 2 MiB, one at a time", 0.9)
        against_memcpy(records, store, "put", "PUT 2 MiB, one at a time", 0.85)
        against_memcpy(records, store, "batch", "GET 64 x 2 MiB in one batch", 0.9)
        times(records, store, "read", "READ 2 MiB in place", 5)
        times(records, store, "release", "READ and release", None)
        times(records, store, "exists64", "EXISTS of 64 keys", 30)
        us = times(records, store, "exists512", "EXISTS of 512 keys", None)
        records.add("EXISTS of 512 keys, rate", 512 / us, "M/s", target=(">=", 2))
        beside_redis(records, store)
    agent.stop()


# --- disk -----------------------------------------------------------------------------------------

def fio(folder, what, n):
    """Bytes a second of n x SIZE, by as many threads as the tier has."""
    done = subprocess.run(["fio", "--name=x", f"--directory={folder}", f"--rw={what}", f"--bs={SIZE}", f"--size={n * SIZE // 4}", "--ioengine=psync",
                           "--direct=1", "--end_fsync=1", "--numjobs=4", "--group_reporting", "--output-format=json"], stdout=subprocess.PIPE, check=True)
    job, = json.loads(done.stdout)["jobs"]
    return job["read" if what == "read" else "write"]["bw_bytes"]


class Disk:
    """Objects that memory does not hold: each round of writes has new keys, and each GET comes from disk."""

    def __init__(self, agent):
        self.agent, self.client = agent, agent.client()
        self.memory = c.dray.Memory(OBJECTS * SIZE)
        self.region, self.store, self.round = self.client.region(self.memory), self.client.store(), 0
        self.reads = 0

    def keys(self, number):
        return [(b"%d %d" % (number, i), [(i * SIZE, SIZE)]) for i in range(OBJECTS)]

    def counters(self):
        return self.agent.ctl("status", "--json")["counters"]

    def write(self):
        self.round += 1
        wanted = self.counters()["dray_store_disk_writes_total"] + OBJECTS
        began = c.now()
        for item in self.keys(self.round):
            self.store.put(self.region, [item])
        while (at := self.counters())["dray_store_disk_writes_total"] < wanted:
            if at["dray_store_disk_skipped_total"]:
                raise c.CannotRun("objects were not written to disk")
        return OBJECTS * SIZE / (c.now() - began)

    def read(self):
        """The rounds in turn, of which memory holds less than half."""
        before = self.counters()["dray_store_disk_hits_total"]
        began = c.now()
        results = self.store.get(self.region, self.keys(self.reads % ROUNDS + 1))
        self.reads += 1
        rate = sum(r.length for r in results if r.status == 0) / (c.now() - began)
        if self.counters()["dray_store_disk_hits_total"] - before < OBJECTS / 2:
            raise c.CannotRun("the objects were in memory")
        return rate


def disk(records, lab):
    if not c.which("fio"):
        print("  disk: skipped, fio is not installed")
        return
    with tempfile.TemporaryDirectory(dir=c.ROOT / "build") as folder:
        agent, = c.agents(lab, 1, **{"limits.store_bytes": "640MiB", "limits.store_bytes_per_owner": "640MiB", "store.policy": "lru",
                                     "store.disk_dir": folder, "limits.store_disk_bytes": "8GiB", "limits.store_disk_bytes_per_owner": "8GiB"})
        tier = Disk(agent)
        for _ in range(ROUNDS):
            tier.write()
        for name, what, ours in (("PUT until on disk", "write", tier.write), ("GET from disk", "read", tier.read)):
            rate, bare, ratio, spread = c.pairs(lambda: fio(folder, what, OBJECTS), ours, 7)
            records.add(f"{name}, 64 x 2 MiB", rate / 1e6, "MB/s", ceiling_name="fio", ceiling=bare / 1e6, ratio=ratio, target=(">=", 0.9), spread=spread)
        agent.stop()


with c.bench("store") as (lab, records):
    c.need_memory(3 * c.GIB)
    memory(records, lab)
    disk(records, lab)
