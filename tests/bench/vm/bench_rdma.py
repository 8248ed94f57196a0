#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Transport rdma over Soft-RoCE, beside perftest over the same rails. Runs in the virtual machine: make bench-vm.

Arguments: the parts to run (PARTS, at the end); without any, all.
"""

import contextlib
import os
import pathlib
import re
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import common as c  # noqa: E402

sys.path.insert(0, str(HERE.parents[1] / "vm"))  # before the integration tests', which have a conftest too

import conftest as vm  # noqa: E402
import harness  # noqa: E402
from harness import MIB, until  # noqa: E402

# figures of an emulated machine vary by a factor of two and more between rounds, so more rounds are needed
PAIRS = max(5, int(os.environ.get("DRAY_BENCH_PAIRS", "9")))
QPS = 2  # for bulk, of each rail
MESSAGES_MIN = 5  # of a queue pair: perftest's least number
TRIES = 5
# the emulator needs more time for a window of packets than a network
TIMEOUT = 19  # of queue pairs: 4.096 us * 2^19, about two seconds
port = 18515


def perftest(program, rails, *args):
    """Runs both ends of the program on each rail, all at the same time. Returns their outputs."""
    global port
    servers, clients = [], []
    for rail in rails:
        port += 1
        common = [program, "-F", "-p", str(port), "-u", str(TIMEOUT), "-x", "1", *map(str, args)]
        servers.append(subprocess.Popen([*common, "-d", rail.device[1]], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
        until(lambda: f":{port:04X} " in pathlib.Path("/proc/net/tcp").read_text() + pathlib.Path("/proc/net/tcp6").read_text(), program)
        clients.append([*common, "-d", rail.device[0], "127.0.0.1"])
    running = [subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for argv in clients]
    out = [p.communicate(timeout=120)[0] for p in running]
    for p in servers:
        p.communicate(timeout=30)
    if any(p.returncode for p in running):
        raise c.CannotRun(f"{program}: {out}")
    return out


def last_numbers(text):
    row = [line for line in text.splitlines() if re.match(r"\s*\d+\s+\d+\s", line)][-1]
    return [float(x) for x in row.split()]


def bandwidth(program, rails, size, n):
    """Bytes per second, summed over all rails. Each queue pair moves n messages."""
    for _ in range(TRIES):
        out = perftest(program, rails, "-s", size, "-q", QPS, "-n", n)
        rates = [last_numbers(text)[3] for text in out]
        # perftest measures the frequency of its clock itself, and reports 0 when that fails
        if all(rates):
            return sum(rates) * MIB
    raise c.CannotRun(f"{program} reports no rate {TRIES} times: {out}")


class Agents:
    """
    An agent on each side of n rails, with a worker and a session for each rail, because a Soft-RoCE device uses the processor of
    the thread that posts, and perftest has a process for each rail.
    """

    def __init__(self, rdma, rails, **settings):
        self.rails = rdma.make(rails)
        self.qps = QPS // rails
        self.pair = [rdma.agent(side, self.rails, log__level="warning", agent__workers=rails, rdma__queue_pairs=self.qps, **settings)
                     for side in (0, 1)]
        for agent in self.pair:
            until(lambda agent=agent: len(vm.up(agent)) == rails, "rails")

    @contextlib.contextmanager
    def clients(self, size, batch, depth, *args, memory=32 * MIB):
        n = len(self.rails)
        with contextlib.ExitStack() as stack:
            tools = []
            for _ in range(n):
                near, far = c.dray.Memory(memory), c.dray.Memory(memory)
                ops = c.ops_fd(c.scattered(size, memory))
                tools.append(stack.enter_context(c.client(*self.pair, [near], [far], ops, "--batch", batch, "--depth", depth, *args)))
            for agent in self.pair:
                until(lambda agent=agent: vm.registered(agent, n), "registration")
            for tool in tools:
                tool.ask("run", batch)
            # for each worker and rail: the bulk queue pairs, and one of the latency class
            want = n * n * (self.qps + 1)
            until(lambda: sum(p["queue_pairs"] for p in vm.listed(self.pair[0], "paths")) == want, "queue pairs")
            if vm.listed(self.pair[0], "peers")[0]["transport"] != "rdma":
                raise c.CannotRun("the agents did not choose rdma")
            yield tools

    def stop(self):
        for agent in self.pair:
            agent.stop()


def compare(records, agents, way, name, size, batch, depth, total, target):
    """perftest moves as many bytes on each rail as dray."""
    program = f"ib_{way}_bw"
    rails = len(agents.rails)
    n = max(MESSAGES_MIN, total // size // QPS // rails)

    def run(tools):
        for tool in tools:
            tool.tell("run", n * QPS)
        return sum(c.rate(tool.hear()) for tool in tools)

    with agents.clients(size, batch, depth, "--no-spin", *["--write"] * (way == "write")) as tools:
        ours, bare, ratio, spread = c.pairs(lambda: bandwidth(program, agents.rails, size, n), lambda: run(tools), PAIRS)
    records.add(f"{way} {name}, {rails} rail{'s' * (rails > 1)}", ours / 1e6, "MB/s", ceiling_name=f"{program} -s {size} -q {QPS}",
                ceiling=bare / 1e6, ratio=ratio, target=target and (">=", target), spread=spread)


def latency(records, agents, size):
    """
    One transfer at a time, with both sides asleep: the worker wakes up for the request, and the client for the completion. In perftest's
    event mode a process wakes up in each direction, and it measures half of a round trip. Without events it spins, so nobody wakes up.
    """
    def bare(program, *args):
        return last_numbers(perftest(program, agents.rails[:1], "-s", size, "-n", 300, *args)[0])[4]

    with agents.clients(size, 1, 1, "--write", "--latency-class", "--no-spin") as (tool,):
        for name, args, target in (("ib_send_lat", ["-e"], ("<=", 3)), ("ib_write_lat", [], None)):
            ours, ceiling, ratio, spread = c.pairs(lambda name=name, args=args: bare(name, *args), lambda: tool.ask("trip", 100)["ns"] / 1e3, PAIRS)
            records.add(f"write {size} B to completion, asleep", ours, "us", ceiling_name=" ".join([name, *args, "typical"]), ceiling=ceiling,
                        ratio=ratio, target=target, spread=spread)


def crowd(rdma, rails, peers):
    """An agent with n peers, each connected by all queue pairs."""
    made = rdma.make(rails)
    # completion queues of Soft-RoCE end at 32,767 entries
    how = {"log__level": "warning", "rdma__queue_depth": 128}
    first = rdma.agent(0, made, **how)
    others = [rdma.agent(1, made, **how) for _ in range(peers)]
    here = harness.Side(first, MIB)
    sides = []
    for other in others:
        sides.append(harness.Side(other, 65536))
        until(lambda other=other: vm.registered(other, rails) and vm.registered(first, rails), "registration")
        here.client.write(here.region, here.reach(sides[-1]), [(0, 0, 65536)]).result(harness.LIMIT)
    until(lambda: sum(p["queue_pairs"] for p in vm.listed(first, "paths")) == (QPS + 1) * rails * peers, "queue pairs", 4 * harness.LIMIT)
    return first, others, [here, *sides]


def memory_kib(agent):
    return int(re.search(r"RssAnon:\s+(\d+)", pathlib.Path(f"/proc/{agent.pid}/status").read_text())[1])


def dismiss(first, others, sides):
    for side in sides:
        side.close()
    for agent in (first, *others):
        agent.kill()


def idle(records, rdma):
    first, others, sides = crowd(rdma, 4, 8)
    time.sleep(10)  # three heartbeats without work, after which the workers sleep
    used, since = c.cpu_ns(first.pid), time.monotonic()
    time.sleep(30)  # two heartbeats at rest
    share = (c.cpu_ns(first.pid) - used) / 1e9 / (time.monotonic() - since)
    records.add("idle, 4 rails and 8 peers", share * 100, "%", target=("<=", 0.2))
    dismiss(first, others, sides)


def cost(records, rdma):
    figures = {}
    for peers in (1, 8, 64):
        first, others, sides = crowd(rdma, 1, peers)
        figures[peers] = memory_kib(first)
        qps = sum(p["queue_pairs"] for p in vm.listed(first, "paths"))
        records.add(f"memory of an agent with {peers} peer{'s' * (peers > 1)}, {qps} queue pairs", figures[peers], "KiB")
        dismiss(first, others, sides)
    slopes = (figures[8] - figures[1]) / 7, (figures[64] - figures[8]) / 56
    records.add("memory for each further peer, 1 to 8", slopes[0], "KiB")
    records.add("memory for each further peer, 8 to 64", slopes[1], "KiB")


COUNTERS = ("posts", "work_requests", "completions", "polls", "arms", "inlined")


def counts(records, rdma):
    """Requests to the device for each operation, which do not depend on the emulator."""
    agents = Agents(rdma, 1)

    def now():
        counters = agents.pair[0].ctl("status", "--json")["counters"]
        return [counters[f"dray_rdma_{name}_total"] for name in COUNTERS]

    for way in ("write", "read"):
        for size, batches in ((64, (1, 16, 256, 1024, 4096)), (4096, (1, 16, 256, 1024, 4096)), (MIB, (1,))):
            for batch in batches:
                with agents.clients(size, batch, 1, *["--write"] * (way == "write"), memory=max(MIB, 2 * size * batch)) as (tool,):
                    before = now()
                    n = tool.ask("run", max(4 * batch, 16))["bytes"] / size
                    posts, *others = [(b - a) / n for a, b in zip(before, now())]
                # with Soft-RoCE, reads are posted one list at a time, and a further read confirms them
                target = ("<=", 1 / min(batch, 64)) if way == "write" else None
                records.add(f"{way} {c.show(size)} B, batches of {batch:,}: doorbells for each operation", posts, "", target=target,
                            ceiling_name=", ".join(f"{c.show(v)} {name.replace('_', ' ')}" for v, name in zip(others, COUNTERS[1:])))
    agents.stop()


def bandwidths(records, agents):
    for way in ("write", "read"):
        compare(records, agents, way, "64 KiB", 64 << 10, 16, 8, 16 * MIB, 0.95)
        compare(records, agents, way, "1 MiB", MIB, 8, 6, 48 * MIB, 0.95)


def one_rail(records, rdma):
    agents = Agents(rdma, 1)
    bandwidths(records, agents)
    compare(records, agents, "write", "16 MiB", 16 * MIB, 1, 2, 32 * MIB, None)
    compare(records, agents, "write", "4 KiB scattered, batches of 1,024", 4096, 1024, 4, 8 * MIB, 0.9)
    agents.stop()


def two_rails(records, rdma):
    agents = Agents(rdma, 2)
    bandwidths(records, agents)
    agents.stop()


def latencies(records, rdma):
    agents = Agents(rdma, 1)
    latency(records, agents, 64)
    latency(records, agents, 4096)
    agents.stop()


class Stores:
    """bench_remote between two agents: GETs of what the store of the other one has, and transfers of the same bytes."""

    def __init__(self, rdma, stack):
        rails = rdma.make(1)
        settings = {"args": ["--allow-insecure"], "log__level": "warning", "store__spaces": f"bench=default:{os.getuid()}",
                    "limits__store_bytes": "192MiB", "limits__store_bytes_per_owner": "192MiB", "store__segment_size": "64MiB"}
        self.owner = rdma.agent(0, rails, store__lend="true", **settings)
        self.reader = rdma.agent(1, rails, store__peers=self.owner.listen[0], store__keep_copies="false", **settings)
        for agent in (self.owner, self.reader):
            stack.callback(agent.stop)
            until(lambda agent=agent: len(vm.up(agent)) == 1, "rails")
        until(lambda: any(p["state"] == "ready" for p in vm.listed(self.reader, "peers")), "the connection of the agents")
        self.tool = stack.enter_context(c.Tool("bench_remote", "--socket", self.reader.socket, "--owner", self.owner.socket, "--space", "bench",
                                               "--bytes", 16 * MIB, first=True))

    def put(self, size, count):
        self.tool.tell("size", size)
        self.tool.ask("put", count)
        # until both agents have registered their segments
        for word in ("get", "read"):
            until(lambda word=word: self.tool.ask(word, 1) and self.transport() == "rdma", f"{word} by RDMA")

    def transport(self):
        """Of the last transfer between the agents."""
        ended = self.reader.ctl("transfers", "--recent", "--json")["ended_transfers"]
        return [one["transport"] for one in ended if one["transport"] not in ("local", "none")][-1:] == ["rdma"] and "rdma"


def store(records, rdma):
    """The smallest is larger than what workers answer on their TCP streams."""
    with contextlib.ExitStack() as stack:
        stores = Stores(rdma, stack)
        for name, size, count in (("128 KiB", 128 << 10, 1), ("1 MiB", MIB, 1), ("16 x 1 MiB in one batch", MIB, 16)):
            stores.put(size, count)
            c.against_transfer(records, stores.tool, name, ("MB/s", 1e6), PAIRS)
            if stores.transport() != "rdma":
                raise c.CannotRun("the objects did not come by RDMA")


PARTS = {"rdma_store": store, "rdma": one_rail, "rdma_counts": counts, "rdma_rails": two_rails, "rdma_latency": latencies, "rdma_idle": idle, "rdma_peers": cost}
parts = sys.argv[1:] or PARTS
if unknown := set(parts) - PARTS.keys():
    sys.exit(f"unknown parts: {', '.join(unknown)}; the parts are {', '.join(PARTS)}")
rdma = vm.Rdma(harness.Lab(alone=True))
try:
    for part in parts:
        with c.bench(part) as (lab, records):
            PARTS[part](records, rdma)
finally:
    rdma.close()
