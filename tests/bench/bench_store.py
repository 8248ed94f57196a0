#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The store of one agent against memcpy of the same bytes, beside redis where redis-server is installed, and beside Mooncake's client by shared
memory: PUT, GET, reads in place and EXISTS; its disk tier against fio on the same file system; and GETs from another agent against dray's own
transfers of the same bytes, both by bench_remote, beside redis, and beside Mooncake Store, with processor times, and bare programs for both; and what
it saves to prefer the node's own store for PUTs and GETs. `bench_store.py [PART...]` runs some parts: memory, index, disk, preference, remote, mooncake."""

import contextlib
import http.client
import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile
import time

import common as c
import harness

SIZE = 2 * c.MIB
OBJECTS = 64  # of bench_store.c
ROUNDS = 12  # of writes to the disk tier; memory holds five


def serve(stack, options):
    """Starts redis-server."""
    server = subprocess.Popen(["redis-server", *options], stdout=subprocess.PIPE, text=True)
    stack.callback(server.stdout.close)
    stack.callback(server.wait)
    stack.callback(server.kill)
    while "Ready to accept" not in (line := server.stdout.readline()) and "ready to accept" not in line:
        if not line:
            raise c.CannotRun("redis-server does not start")


class Redis:
    """A server on a socket in a temporary folder, with one object of SIZE bytes."""

    def __init__(self, stack):
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        path = f"{folder}/redis.sock"
        serve(stack, ["--port", "0", "--unixsocket", path, "--save", "", "--dir", folder])
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


def beside_shared_memory(records, store):
    """Mooncake's client that has its objects by the shared memory of a client process."""
    with contextlib.ExitStack() as stack:
        try:
            theirs = Mooncake(stack, shared=True)
        except c.CannotRun as e:
            print(f"  Mooncake: skipped, {e}")
            return
        for word, name, count in (("get", "GET 2 MiB", 1), ("batch", "GET 64 x 2 MiB in one batch", OBJECTS)):
            n = c.sized(store, 16, word)
            m = max(1, int(c.ROUND / (theirs.get(SIZE, count, 3) / 3)))
            ours, other, ratio, spread = c.pairs(lambda: m * SIZE * count / theirs.get(SIZE, count, m), lambda: c.rate(store.ask(word, n)))
            records.add(f"{name}, beside Mooncake", ours / 1e9, "GB/s", ceiling_name="Mooncake's client by shared memory", ceiling=other / 1e9, ratio=ratio,
                        target=(">=", 1) if count > 1 else None, spread=spread)


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
        beside_shared_memory(records, store)
    agent.stop()


# --- index ----------------------------------------------------------------------------------------

FILL_KEY = 16  # of bench_store.c


def resident(agent):
    """Bytes of the agent's own memory: that of objects is shared."""
    status = pathlib.Path(f"/proc/{agent.pid}/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0]) * 1024


def index(records, lab):
    """What each further object takes beside its bytes and its key, and the lookups among a million of them."""
    first, n = 48_000, 1_000_000  # as many as there is memory for
    for policy in ("lru", "s3fifo", "gdsf", "value"):
        options = {"limits.store_bytes": "64MiB", "limits.store_bytes_per_owner": "64MiB", "store.segment_size": "64MiB", "store.policy": policy}
        agent, = c.agents(lab, 1, **options)
        with c.Tool("bench_store", "--socket", agent.socket, "--size", 512, first=True) as store:
            store.ask("fill", first)
            before = resident(agent)
            store.ask("fill", n)
            records.add(f"{n:,} objects, {policy}: memory of the agent for each beside its bytes and key", (resident(agent) - before) / n - FILL_KEY, "B", target=("<=", 128))
            times(records, store, "seek", f"{n:,} objects, {policy}: EXISTS of 512 keys at random", None)
            # all are used, so that none is evicted at the end of the queue of new ones: they are ordered by value
            store.ask("use", first + n)
            store.ask("fill", first)
            records.add(f"{n:,} objects, {policy}: the same memory after use and evictions", (resident(agent) - before) / n - FILL_KEY, "B", target=("<=", 128))
        agent.stop()


# --- disk -----------------------------------------------------------------------------------------

def fio(folder, what, n, allocate="native", huge=False):
    """
    Bytes a second of n x SIZE, by as many threads as the tier has, until they are durable. Writes go to new files, as those of the tier: blocks
    that were written before need no change of the file system. allocate: fio's option; native: it allocates all blocks before its clock starts;
    none: as it writes. huge: its buffers are on huge pages. It has one buffer for each thread, so that they stay in the processor's caches, where
    dray moves each object to or from memory of its own.
    """
    if what == "write":
        for file in pathlib.Path(folder).glob("x.*"):
            file.unlink()
    env = {**os.environ, "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"} if huge else None
    done = subprocess.run(["fio", "--name=x", f"--directory={folder}", f"--rw={what}", f"--bs={SIZE}", f"--size={n * SIZE // 4}", "--ioengine=psync",
                           "--direct=1", "--end_fsync=1", "--numjobs=4", "--group_reporting", f"--fallocate={allocate}",
                           *(["--iomem_align=2M"] if huge else []), "--output-format=json"], stdout=subprocess.PIPE, check=True, env=env)
    job, = json.loads(done.stdout)["jobs"]
    return job["read" if what == "read" else "write"]["bw_bytes"]


class Disk:
    """Objects that memory does not hold: each round of writes has new keys, and each GET comes from disk."""

    def __init__(self, agent, address):
        """address: where the agent serves metrics."""
        self.address, self.client = address, agent.client()
        self.memory = c.dray.Memory(OBJECTS * SIZE)
        self.region, self.store, self.round = self.client.region(self.memory), self.client.store(), 0
        self.reads = 0

    def keys(self, number):
        return [(b"%d %d" % (number, i), [(i * SIZE, SIZE)]) for i in range(OBJECTS)]

    def counters(self):
        """Over HTTP: drayctl takes 4 ms of a processor, in which the disk writes 10 MB."""
        connection = http.client.HTTPConnection(self.address, timeout=10)
        with contextlib.closing(connection):
            connection.request("GET", "/metrics")
            lines = connection.getresponse().read().decode().splitlines()
        return {name: int(float(value)) for name, _, value in (line.partition(" ") for line in lines if line.startswith("dray_store_disk_"))
                if "{" not in name}

    def write(self):
        self.round += 1
        wanted = self.counters()["dray_store_disk_writes_total"] + OBJECTS
        began = c.now()
        for item in self.keys(self.round):
            self.store.put(self.region, [item])
        while (at := self.counters())["dray_store_disk_writes_total"] < wanted:
            if at["dray_store_disk_skipped_total"]:
                raise c.CannotRun("objects were not written to disk")
            time.sleep(0.001)
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
        address = f"127.0.0.1:{next(harness.PORTS)}"
        agent, = c.agents(lab, 1, **{"limits.store_bytes": "640MiB", "limits.store_bytes_per_owner": "640MiB", "store.policy": "lru", "http.listen": address,
                                     "store.disk_dir": folder, "limits.store_disk_bytes": "8GiB", "limits.store_disk_bytes_per_owner": "8GiB"})
        tier = Disk(agent, address)
        for _ in range(ROUNDS):
            tier.write()
        for name, what, ours in (("PUT until on disk", "write", tier.write), ("GET from disk", "read", tier.read)):
            ways = {"dray": ours, "fio": lambda: fio(folder, what, OBJECTS), "huge": lambda: fio(folder, what, OBJECTS, huge=True)}
            if what == "write":
                ways["none"] = lambda: fio(folder, what, OBJECTS, "none")
            done = [{way: rate / 1e6 for way, rate in values.items()} for values in c.rounds(ways, 15)]
            c.add_beside(records, done, f"{name}, 64 x 2 MiB", "dray", "MB/s", "fio", "fio", (">=", 0.9))
            c.add_beside(records, done, "the same, beside fio on huge pages", "dray", "MB/s", "huge", "fio with buffers on huge pages")
            if what == "write":
                c.add_beside(records, done, "the same, beside fio without blocks ahead", "dray", "MB/s", "none", "fio --fallocate=none")
        agent.stop()


# --- other agents ---------------------------------------------------------------------------------

# name, bytes of an object, objects in a batch
REMOTE = (("64 KiB", 64 * c.KIB, 1), ("256 KiB", 256 * c.KIB, 1), ("1 MiB", c.MIB, 1), ("2 MiB", SIZE, 1), ("4 MiB", 4 * c.MIB, 1),
          ("16 MiB", 16 * c.MIB, 1), ("64 x 64 KiB in one batch", 64 * c.KIB, 64), ("64 x 2 MiB in one batch", SIZE, 64))
SMALL = 4 * c.KIB


class Remote:
    """GETs of what the other agent has, which stays there alone."""

    def __init__(self, lab, stack, lend="false"):
        settings = {"agent.workers": 0, "log.level": "warning", "limits.store_bytes": "1280MiB", "limits.store_bytes_per_owner": "1280MiB",
                    "store.spaces": f"bench=default:{os.getuid()}", "store.keep_copies": "false"}
        host = harness.Host("store")
        owner = lab.agent("owner", host, listen=(host.v4,), key=lab.key, settings=settings | {"store.lend": "true"}).start()
        reader = lab.agent("reader", host, listen=(host.v4,), key=lab.key, settings=settings | {"store.peers": owner.listen[0], "store.lend": lend}).start()
        harness.until(lambda: any(p["state"] == "ready" for p in reader.ctl("peers", "--json")["peers"]), "the connection of the agents")
        self.owner, self.reader = owner, reader
        there, here = (stack.enter_context(a.client()) for a in (owner, reader))
        memories = [stack.enter_context(c.dray.Memory(OBJECTS * SIZE)) for _ in range(2)]
        self.far, self.region = there.region(memories[0]), here.region(memories[1])
        self.puts, self.store, self.client = there.store("bench"), here.store("bench"), here
        self.segments = {"there": owner.listen[0], "here": reader.listen[0]}

    def put(self, size, count):
        self.items = [(b"%d-%d" % (size, i), [(i * size, size)]) for i in range(count)]
        if {r.status for r in self.puts.put(self.far, self.items)} - {c.dray.Status.OK, c.dray.Status.EXISTS}:
            raise c.CannotRun("the owner did not take the objects")

    def get(self):
        got = self.store.get(self.region, self.items)
        if any(r.status != c.dray.Status.OK for r in got):
            raise c.CannotRun(f"a GET from the other agent is {got[0].status.name}")


class Mooncake:
    """A master of Mooncake Store, a node and a client over TCP; shared: a client by shared memory, whose node is its client process."""

    def __init__(self, stack, shared=False):
        made = subprocess.run([c.ROOT / "scripts/mooncake-env"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        if made.returncode:
            raise c.CannotRun("Mooncake is not installed")
        python = pathlib.Path(made.stdout.strip())
        folder = next(python.parents[1].glob("lib/python*/site-packages/mooncake"))
        ports = []
        for probe in [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]:
            ports.append(probe.getsockname()[1])
            probe.close()
        env = {**os.environ, "LD_LIBRARY_PATH": str(folder)}
        master, node = (f"127.0.0.1:{port}" for port in ports[:2])
        self.processes = []
        self.start(stack, [folder / "mooncake_master", f"--rpc_port={ports[0]}", f"--metrics_port={ports[2]}"], env=env)
        self.listens(ports[0])
        if shared:
            self.start(stack, [folder / "mooncake_client", "--host=127.0.0.1", f"--port={ports[1]}", f"--master_server_address={master}", "--protocol=tcp",
                               "--metadata_server=P2PHANDSHAKE", "--global_segment_size=512MB", "--local_buffer_size=256MB", "--threads=4"], env=env)
            self.listens(ports[1])
        for role in ("shared",) if shared else ("node", "client"):
            self.client = self.start(stack, [python, c.ROOT / "tests/bench/mooncake_store.py", role, node if shared else master])
            while "ready" not in (line := self.client.stdout.readline()):
                if not line:
                    raise c.CannotRun("Mooncake Store does not start")
        self.pids = [p.pid for p in self.processes]

    @staticmethod
    def listens(port):
        harness.until(lambda: not socket.socket().connect_ex(("127.0.0.1", port)), "Mooncake to listen")

    def start(self, stack, command, env=None):
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=env, text=True)
        for end in (process.stdin.close, process.stdout.close, process.wait, process.kill):
            stack.callback(end)
        self.processes.append(process)
        return process

    def get(self, size, count, times):
        """Seconds."""
        self.client.stdin.write(f"{size} {count} {times}\n")
        self.client.stdin.flush()
        line = self.client.stdout.readline()
        while line and not line[0].isdigit():
            line = self.client.stdout.readline()
        if not line:
            raise c.CannotRun("Mooncake's client ended")
        return float(line)


class Gets:
    """bench_remote between the two agents of a Remote, beside redis where it is installed."""

    def __init__(self, stack, ours):
        self.redis = c.which("redis-server") is not None
        port = next(harness.PORTS)
        if self.redis:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            serve(stack, ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", folder])
        self.tool = stack.enter_context(c.Tool("bench_remote", "--socket", ours.reader.socket, "--owner", ours.owner.socket, "--space", "bench",
                                               "--bytes", OBJECTS * SIZE, *(["--redis", port] if self.redis else []), first=True))

    def put(self, size, count):
        self.tool.tell("size", size)
        self.tool.ask("put", count)

    def times(self, word, n):
        """Seconds for each."""
        answer = self.tool.ask(word, n)
        return answer["seconds"] / answer["n"]


def seconds(what, n):
    began = c.now()
    for _ in range(n):
        what()
    return c.now() - began


class Bare:
    """
    Programs without agents that ask for the objects over TCP and receive them straight into their places: two processes, with a thread for each
    connection on both sides; and three, as with agents, of which the one in the middle is woken up by the client, and wakes it up.
    """
    WAYS = (("2 bare processes", "ceiling_answers", 1, ()), ("2 bare processes, CRC-32C", "ceiling_answers", 1, ("--check",)),
            ("2 bare processes, CRC-32C, 2 connections", "ceiling_answers", 2, ("--check",)),
            ("3 bare processes, CRC-32C", "ceiling_chain", 1, ("--check",)))

    def __init__(self, stack):
        self.near, self.far = (stack.enter_context(c.dray.Memory(OBJECTS * SIZE)) for _ in range(2))
        self.far.view[:] = os.urandom(SIZE) * OBJECTS

    def ways(self, stack, size, count):
        """For each its processes, how often it gets the objects in a round, and a function that returns the seconds which that took."""
        return {name: getattr(self, program)(stack, size, count, parts, args) for name, program, parts, args in self.WAYS}

    def ceiling_answers(self, stack, size, count, connections, args):
        """A single object comes in a part for each connection."""
        pieces = max(count, connections)
        length = size * count // pieces
        ops = c.ops_fd([(i * length, i * length, length) for i in range(pieces)])
        tool = stack.enter_context(c.Tool("ceiling_answers", "--local", c.name_memory(self.near), "--remote", c.name_memory(self.far), "--ops", ops,
                                          "--depth", pieces, "--streams", connections, "--batch", *args, fds=[ops, self.near.fd, self.far.fd]))
        os.close(ops)
        n = max(1, c.sized(tool, 16 * pieces) // pieces)
        return [tool.pid, *c.children(tool.pid)], n, lambda: tool.ask("run", n * pieces)["seconds"]

    @staticmethod
    def ceiling_chain(stack, size, count, _, args):
        tool = stack.enter_context(c.Tool("ceiling_chain", "--size", size * count, *args))
        n = max(1, int(c.ROUND / (seconds(lambda: tool.ask("trip", 3), 2) / 6)))
        return [tool.pid, *c.children(tool.pid)], n, lambda: seconds(lambda: tool.ask("trip", n), 1)


def beside_mooncake(records, ours, gets, theirs, bare, name, size, count):
    """
    By Python, as Mooncake's client, and by C; dray's transfer of these bytes by C, which no GET is faster than; and bare programs. The processor
    time is that of all processes of a side: of both agents and the client, and of master, node and client.
    """
    gets.put(size, count)
    ours.put(size, count)
    n = max(1, int(0.2 / (seconds(ours.get, 3) / 3)))
    m = max(1, int(0.2 / (theirs.get(size, count, 3) / 3)))
    k = c.sized(gets.tool, 16, "get")
    agents = [ours.owner.process.pid, ours.reader.process.pid]
    by_dray = {"by Python": ([*agents, os.getpid()], n, lambda: seconds(ours.get, n)),
               "by C": ([*agents, gets.tool.pid], k, lambda: gets.times("get", k) * k),
               "dray's transfer": ([*agents, gets.tool.pid], k, lambda: gets.times("read", k) * k)}
    used, moved = {}, {}

    def measured(way, pids, times, run):
        gigabytes, before = times * size * count / 1e9, c.cpu_seconds(*pids)
        rate = gigabytes / run()
        used[way] = used.get(way, 0) + c.cpu_seconds(*pids) - before
        moved[way] = moved.get(way, 0) + gigabytes
        return rate

    with contextlib.ExitStack() as stack:
        by_bare = bare.ways(stack, size, count)
        ways = {"Mooncake Store": (theirs.pids, m, lambda: theirs.get(size, count, m)), **by_dray, **by_bare}
        done = c.rounds({way: lambda way=way: measured(way, *ways[way]) for way in ways})
    own = {way: used[way] / moved[way] for way in ways}
    asked = ("by Python", "by C")
    for way in (*by_dray, *by_bare):
        c.add_beside(records, done, f"{name}, {way}, beside Mooncake", way, "GB/s", "Mooncake Store", "Mooncake Store",
                     (">=", 2 if count > 1 else 3) if way in asked else None)
    for way in by_bare:
        c.add_beside(records, done, f"{name}, by C, beside {way}", "by C", "GB/s", way, way)
    for way in (*by_dray, *by_bare):
        records.add(f"{name}, {way}, processor time", own[way], "s/GB", ceiling_name="Mooncake Store", ceiling=own["Mooncake Store"],
                    ratio=own[way] / own["Mooncake Store"], target=("<=", 1 / 3) if way in asked else None)


def lone(records, gets):
    """
    Four wake-ups are necessary: of the reader's agent, of the owner's, of the former by the answer, and of the client. The bare chain has these
    between three processes, with the same bytes over one connection; redis has two.
    """
    gets.put(SMALL, 1)
    n = c.sized(gets.tool, 64, "get")
    with c.Tool("ceiling_chain", "--size", SMALL) as chain:
        ways = {word: lambda word=word: gets.times(word, n) * 1e6 for word in ("get", "read", *["redis"] * gets.redis)}
        ways["chain"] = lambda: seconds(lambda: chain.ask("trip", n), 1) / n * 1e6
        done = c.rounds(ways)
    c.add_beside(records, done, "GET from another agent, lone 4 KiB", "get", "us", "read", "dray's transfer of these bytes")
    c.add_beside(records, done, "the same, beside a bare chain of its wake-ups", "get", "us", "chain", "bare chain")
    if gets.redis:
        c.add_beside(records, done, "the same, beside redis", "get", "us", "redis", "redis over TCP", ("<=", 1))
        c.add_beside(records, done, "a bare chain of the wake-ups, beside redis", "chain", "us", "redis", "redis over TCP")


def get_preferred(records, ours, name, size, count):
    """GETs of the same bytes at the agent of the node, and at another agent."""
    ours.put(size, count)
    far = ours.items
    near = [(b"near-" + key, ranges) for key, ranges in far]
    if {r.status for r in ours.store.put(ours.region, near)} - {c.dray.Status.OK, c.dray.Status.EXISTS}:
        raise c.CannotRun("the agent did not take the objects")

    def rate(items):
        ours.items = items
        n = max(1, int(0.2 / (seconds(ours.get, 3) / 3)))
        return n * size * count / seconds(ours.get, n)

    here, there, ratio, spread = c.pairs(lambda: rate(far), lambda: rate(near))
    records.add(f"GET with the node's own store preferred, {name}", here / 1e9, "GB/s", ceiling_name="from another agent", ceiling=there / 1e9, ratio=ratio, spread=spread)


def put_new(ours, size, count, n, preferred):
    """Seconds of n PUTs of new objects. preferred: who is, by a hint; None: there is no hint. Nothing stays at either agent."""
    if preferred:
        ours.client.put_hint("store:bench", ours.segments[preferred])
    batches = [[(b"put-%d-%d" % (i, k), [(k * size, size)]) for k in range(count)] for i in range(n)]
    began = c.now()
    results = [ours.store.put(ours.region, batch) for batch in batches]
    took = c.now() - began
    tier = c.dray.Tier.AGENT if preferred == "there" else c.dray.Tier.NONE
    if any(r.status != c.dray.Status.OK or r.tier != tier for batch in results for r in batch):
        raise c.CannotRun("objects have not gone where they were to go")
    for batch in batches:
        (ours.puts if preferred == "there" else ours.store).remove([key for key, _ in batch])
    if preferred:
        ours.client.forget_hint("store:bench")
    return took


def put_preferred(records, ours, name, size, count):
    """The same of PUTs; and what it takes to find out that the agent of the node is preferred."""
    n = max(1, min(256 * c.MIB // (size * count), int(0.2 / (put_new(ours, size, count, 3, "there") / 3))))
    total = n * size * count
    near, far, ratio, spread = c.pairs(lambda: total / put_new(ours, size, count, n, "there"), lambda: total / put_new(ours, size, count, n, None))
    records.add(f"PUT with the node's own store preferred, {name}", near / 1e9, "GB/s", ceiling_name="at another agent", ceiling=far / 1e9,
                ratio=ratio, spread=spread)
    if size > SMALL:
        return
    asked, bare, ratio, spread = c.pairs(lambda: put_new(ours, size, count, n, None) / n * 1e6, lambda: put_new(ours, size, count, n, "here") / n * 1e6)
    records.add(f"PUT with a hint that names the node's own store, {name}", asked, "us", ceiling_name="without a hint", ceiling=bare, ratio=ratio, spread=spread)


def preference(records, lab):
    with contextlib.ExitStack() as stack:
        ours = Remote(lab, stack, lend="true")
        for shape in (("4 KiB", SMALL, 1), *REMOTE):
            get_preferred(records, ours, *shape)
            put_preferred(records, ours, *shape)


def remote(records, lab):
    with contextlib.ExitStack() as stack:
        gets = Gets(stack, Remote(lab, stack))
        lone(records, gets)
        for shape in REMOTE:
            name, *objects = shape
            gets.put(*objects)
            c.against_transfer(records, gets.tool, name)


def mooncake(records, lab):
    with contextlib.ExitStack() as stack:
        try:
            theirs = Mooncake(stack)
        except c.CannotRun as e:
            print(f"  Mooncake: skipped, {e}")
            return
        ours = Remote(lab, stack)
        gets, bare = Gets(stack, ours), Bare(stack)
        for shape in REMOTE:
            beside_mooncake(records, ours, gets, theirs, bare, *shape)


PARTS = {"memory": memory, "index": index, "disk": disk, "preference": preference, "remote": remote, "mooncake": mooncake}

with c.bench("store") as (lab, records):
    c.need_memory(3 * c.GIB)
    for part in sys.argv[1:] or PARTS:
        PARTS[part](records, lab)
