# SPDX-License-Identifier: Apache-2.0
"""GPU memory moved by an agent, beside the bare copy kernel, copies by the driver, and the same transfers in host memory.

Called by run --bench. Each result is the median of rounds; if the same processes measure the ceiling, rounds of both
alternate.
"""

import contextlib
import json
import os
import pathlib
import select
import shutil
import statistics
import subprocess
import sys
import tempfile

import bench_busy
import common as c
import harness
from suite import GIB, KIB, MIB, ROOT, Side, Skip, scattered

ROUNDS = 9
# ceiling_gpu's names of the routes, by direction.
WITHIN = {"read": "within", "write": "within"}
# the destination's GPU copies in both directions
PEER = {"read": "peer_read", "write": "peer_read"}
HOST = {"read": "from_host", "write": "to_host"}
PAGES = 2 * GIB  # of a side
CEILING_LIMIT = 90  # seconds


class Bench:
    def __init__(self, t):
        self.t, self.rows = t, []
        self.bytes = 64 * MIB if t.fake else PAGES

    def records(self, name):
        return c.Records(name)

    def ceilings(self):
        """The plug-in without an agent: rows of ceiling_gpu."""
        tool = harness.BUILD / "tests/gpu/ceiling_gpu"
        if self.t.fake or not tool.exists():
            self.t.say(f"{tool} is not built: the figures have no ceilings")
            return
        done = subprocess.run([str(tool)], stdout=subprocess.PIPE, text=True, timeout=CEILING_LIMIT)
        for line in done.stdout.splitlines():
            self.t.say(line)
            with contextlib.suppress(ValueError):
                self.rows.append(json.loads(line))

    def ceiling(self, unit, **what):
        """The figure of the first row with all values in `what`; None if there is none."""
        for row in self.rows:
            if all(row.get(k) == v for k, v in what.items()) and unit in row:
                return row[unit]
        return None


def rounds(ask, n=ROUNDS):
    return [ask() for _ in range(n)]


def sides(t, agents, near, far, size):
    """Makes two engines and a remote: (here, there, remote)."""
    here, there = (Side(t.engine(agent), kind, size, device) for agent, (kind, device) in zip(agents, (near, far)))
    return here, there, here.reach(there)[0]


def runner(t, here, remote, direction, ops, batch, depth):
    """Returns a function that runs a number of operations."""
    path = t.ops(ops)
    return lambda n: here.engine.ask("run", here.region, remote, direction, path, n, batch, depth)


def sized(run, once):
    """Returns the number of operations that take about a round."""
    run(once)  # the first use of memory, such as pinning, must not be part of a round
    n = once
    while True:
        seconds = run(n)["seconds"]
        if seconds > c.ROUND / 3:
            return max(1, int(n * c.ROUND / seconds))
        n = int(n * min(16, max(2, c.ROUND / max(seconds, 1e-9))))


def add_rate(records, name, answers, ceiling_name=None, ceiling=None, target=None):
    """Ceilings in GB/s."""
    rates = [c.rate(a) / 1e9 for a in answers]
    value = statistics.median(rates)
    ratio = value / ceiling if ceiling else None
    records.add(name, value, "GB/s", ceiling_name=ceiling_name if ceiling else None, ceiling=ceiling, ratio=ratio,
                target=target if ceiling else None, spread=rates)
    return value


def pages(b, records, label, near, far, way, shapes, target=None):
    """Random pages between two engines of one agent, with the default number of workers."""
    t = b.t
    agent = t.agent(**{"agent.workers": 0})
    for size, batch, depth in shapes:
        here, there, remote = sides(t, (agent, agent), near, far, b.bytes)
        for direction in ("read", "write"):
            run = runner(t, here, remote, direction, scattered(size, b.bytes), batch, depth)
            n = sized(run, batch)
            cpu = c.cpu_seconds(agent.pid)
            answers = rounds(lambda: run(n))
            cpu = c.cpu_seconds(agent.pid) - cpu
            name = f"{label}, {size // KIB} KiB pages, {batch:,} a transfer, {direction}"
            add_rate(records, name, answers, "the copy kernel alone",
                     b.ceiling("GBps", route=way[direction], page=size),
                     (">=", target or WITHIN_TARGET[size]))
            used, ops = sum(a["seconds"] for a in answers), n * len(answers)
            records.add(f"{name}: processor time of the agent for each page", cpu / ops * 1e9, "ns")
            records.add(f"{name}: processors used by the agent", cpu / used, "")
        t.close_engines()
    t.drop(agent)


WITHIN_TARGET = {16 * KIB: 0.94, 4 * KIB: 0.9}
SHAPES = ((16 * KIB, 65536, 4), (16 * KIB, 4096, 16), (4 * KIB, 65536, 6), (4 * KIB, 4096, 16))


def within(b, records):
    pages(b, records, "one GPU", ("cuda_vmm", 0), ("cuda_vmm", 0), WITHIN, SHAPES)
    pages(b, records, "one GPU, cuda_ipc", ("cuda_ipc", 0), ("cuda_ipc", 0), WITHIN, SHAPES[:1])


def peer(b, records):
    b.t.device(1)
    pages(b, records, "two GPUs", ("cuda_vmm", 0), ("cuda_vmm", 1), PEER, (SHAPES[0], SHAPES[2]), 0.97)


def host(b, records):
    pages(b, records, "GPU and host", ("cuda_vmm", 0), ("memfd", 0), HOST,
          (SHAPES[1], SHAPES[3]), 0.95)


def tcp(b, records):
    """Two agents over loopback, staged, beside the same transfers between host memory."""
    t = b.t
    total = min(512 * MIB, b.bytes)
    agents = t.agent("a", **{"agent.workers": 0}), t.agent("b", **{"agent.workers": 0})
    gpu, memory = (sides(t, agents, (kind, 0), (kind, 0), total) for kind in ("cuda_vmm", "memfd"))
    for size, batch, depth in ((MIB, 16, 8), (16 * KIB, 1024, 8)):
        for direction in ("read", "write"):
            ops = scattered(size, total)
            staged, plain = (runner(t, s[0], s[2], direction, ops, batch, depth) for s in (gpu, memory))
            n, m = sized(staged, batch), sized(plain, batch)
            ours, ceiling, ratio, spread = c.pairs(lambda: c.rate(plain(m)), lambda: c.rate(staged(n)), ROUNDS)
            records.add(f"GPU to GPU over loopback, {size // KIB} KiB pieces, {direction}", ours / 1e9, "GB/s",
                        ceiling_name="the same between host memory", ceiling=ceiling / 1e9, ratio=ratio,
                        target=(">=", 0.9), spread=spread)
    t.close_engines()
    for agent in agents:
        t.drop(agent)


def latency(b, records):
    t = b.t
    agent = t.agent()
    for label, near, far in (("one GPU", ("cuda_vmm", 0), ("cuda_vmm", 0)), ("GPU and host", ("cuda_vmm", 0), ("memfd", 0))):
        here, there, remote = sides(t, (agent, agent), near, far, 64 * MIB)
        path = t.ops(scattered(16 * KIB, 64 * MIB))
        ask = ("trip", here.region, remote, "read", path, 2000, "latency")
        here.engine.ask(*ask)
        got = rounds(lambda: here.engine.ask(*ask))
        value = statistics.median(a["ns"] for a in got) / 1e3
        bare = b.ceiling("p50_us", latency="launch and cuStreamSynchronize") if label == "one GPU" else None
        records.add(f"{label}, one 16 KiB page, request to completion", value, "us", ceiling_name=bare and "launch and synchronise",
                    ceiling=bare, ratio=bare and value / bare)
        if bare:
            records.add(f"{label}, one 16 KiB page, beyond launch and synchronise", value - bare, "us", target=("<=", 3))
        records.add(f"{label}, one 16 KiB page, 99 %", statistics.median(a["p99"] for a in got) / 1e3, "us")
        t.close_engines()
    t.drop(agent)


class Matmul:
    """matmul.py, as the model that computes."""

    def __init__(self, device=0, decode=False):
        self.process = subprocess.Popen([sys.executable, str(ROOT / "tests/gpu/matmul.py"), str(device), *["decode"] * decode], text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=1)
        self.products = self.hear().get("products")

    def hear(self):
        if not select.select([self.process.stdout], [], [], 90)[0]:
            raise Skip("PyTorch does not answer")
        line = self.process.stdout.readline()
        if not line:
            raise Skip("PyTorch does not work here")
        return json.loads(line)

    def start(self, n=0):
        self.process.stdin.write(f"{n or self.products}\n")

    def end(self):
        return self.hear()["seconds"]

    def run(self, n=0):
        self.start(n)
        return self.end()

    def close(self):
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


BESIDE = (("pages within the GPU", ("cuda_vmm", 0), 100), ("pages within the GPU, gpu.multiprocessors = 25", ("cuda_vmm", 0), 25),
          ("pages to the host", ("memfd", 0), 100))


def beside(b, records, how=""):
    """A matrix product of another process, alone and while pages move: records the slowdown of both."""
    t = b.t
    model = Matmul()
    try:
        for label, far, share in BESIDE:
            agent = t.agent(**{"gpu.multiprocessors": share})
            here, there, remote = sides(t, (agent, agent), ("cuda_vmm", 0), far, b.bytes)
            pages = scattered(16 * KIB, b.bytes)
            path = t.ops(pages)
            run = runner(t, here, remote, "write", pages, 4096, 16)
            n = sized(run, 4096)
            bare = statistics.median(c.rate(run(n)) for _ in range(3))
            slow, rates = [], []
            for _ in range(ROUNDS):
                alone = model.run()
                here.engine.tell("run", here.region, remote, "write", path, 0, 4096, 16)
                busy = model.run()
                here.engine.tell("stop")
                rates.append(c.rate(here.engine.hear()))
                here.engine.hear()
                slow.append(busy / alone)
            rate = statistics.median(rates)
            label += how
            records.add(f"matrix product beside {label}: duration, relative to the product alone", statistics.median(slow), "", spread=slow)
            records.add(f"{label} beside a matrix product", rate / 1e9, "GB/s", ceiling_name="alone", ceiling=bare / 1e9,
                        ratio=rate / bare)
            if far[0] != "memfd":
                records.add(f"{label}: bandwidth of GPU memory used", 2 * rate / 1e9, "GB/s")
            t.close_engines()
            t.drop(agent)
    finally:
        model.close()


@contextlib.contextmanager
def shared_gpu():
    """NVIDIA's MPS: contexts of several processes on the GPU at the same time, instead of by time slices."""
    control = shutil.which("nvidia-cuda-mps-control") or "/usr/local/nvidia/bin/nvidia-cuda-mps-control"
    if not pathlib.Path(control).exists():
        raise Skip("there is no nvidia-cuda-mps-control")
    with tempfile.TemporaryDirectory() as folder:
        places = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        os.environ.update(places)
        try:
            subprocess.run([control, "-d"], check=True, timeout=30)
            yield
        finally:
            subprocess.run([control], input="quit\n", text=True, stdout=subprocess.DEVNULL, timeout=60)
            for name in places:
                del os.environ[name]


def beside_shared(b, records):
    with shared_gpu():
        beside(b, records, ", under MPS")


def busy_products(b, records):
    bench_busy.busy(b, records, Matmul)


def busy_decode(b, records):
    bench_busy.busy(b, records, Matmul, True)


def busy_shared(b, records):
    with shared_gpu():
        bench_busy.busy(b, records, Matmul, how=", under MPS")


def cost(b, records):
    """GPU memory of a context, seen from another process, and the agent's own figure."""
    t = b.t
    watcher = t.engine()
    watcher.ask("memory", 0)
    engine_agent = t.agent(**{"gpu.idle_time": "100ms"})
    before = watcher.ask("memory", 0)["free"]
    engine = t.engine(engine_agent)
    memory = engine.alloc("cuda_vmm", 2 * MIB)
    of_engine = before - watcher.ask("memory", 0)["free"]
    engine.region((memory, 0, MIB))
    both = before - watcher.ask("memory", 0)["free"]
    records.add("GPU memory of the agent's context", (both - of_engine) / MIB, "MiB", ceiling_name="an engine's own",
                ceiling=(of_engine - 2 * MIB) / MIB, ratio=(both - of_engine) / (of_engine - 2 * MIB))
    engine.close()
    t.engines.remove(engine)
    back = watcher.ask("watch", 0, before - 16 * MIB, 5000)
    records.add("GPU memory of the agent after it has been unused for gpu.idle_time (0.1 s)", (before - back["free"]) / MIB, "MiB")
    t.close_engines()
    t.drop(engine_agent)


TENSORS = 32


def registration(b, records):
    """REGION_ADD of 32 allocations: before the agent has a context, and with one, beside the same calls of the driver without an agent."""
    t = b.t
    each = (MIB if t.fake else 8 * GIB // TENSORS)
    owner, bare = t.engine(), t.engine()
    memories = [owner.alloc("cuda_ipc", each) for _ in range(TENSORS)]
    handles = owner.ask("handles", *memories)["handles"]
    extents = [f"{m}:0:{each}" for m in memories]
    title = f"REGION_ADD of {TENSORS} tensors, {TENSORS * each / 1e9:.1f} GB"

    agent = t.agent()
    owner.ask("connect", agent.socket)
    first = owner.ask("early", *extents)
    records.add(f"{title}: the first one on the GPU, answered", first["ns"] / 1e6, "ms", target=("<=", 5))
    reader = t.engine(agent)
    here = Side(reader, "cuda_vmm", 2 * MIB)
    path = t.ops([(0, 0, 64 * KIB)])
    reader.ask("import", owner.ask("export", first["region"])["token"])  # waits until it is open
    region, adds, answers, removes, bytes_after, opens, closes = first["region"], [], [], [], [], [], []
    bare.ask("bare", 0, *handles)  # makes its context
    for _ in range(ROUNDS):
        removes.append(owner.ask("remove", region)["ns"])
        alone = bare.ask("bare", 0, *handles)
        opens.append(alone["open_ns"])
        closes.append(alone["close_ns"])
        added = owner.ask("region", *extents)
        adds.append(added["ns"])
        owner.ask("remove", added["region"])
        added = owner.ask("early", *extents)
        region = added["region"]
        answers.append(added["ns"])
        remote = reader.ask("import", owner.ask("export", region)["token"])["remote"]
        bytes_after.append(reader.ask("trip", here.region, remote, "read", path, 1)["ns"])
        reader.ask("release", remote)
    value, ceiling = statistics.median(adds) / 1e6, statistics.median(opens) / 1e6
    records.add(f"{title}: later ones, all of it open", value, "ms", ceiling_name="cuIpcOpenMemHandle alone", ceiling=ceiling, ratio=value / ceiling,
                target=("<=", 1), spread=[a / 1e6 for a in adds])
    records.add(f"{title}: later ones, answered", statistics.median(answers) / 1e6, "ms", target=("<=", 5))
    records.add(f"{title}: the first transfer of 64 KiB after it", statistics.median(bytes_after) / 1e6, "ms", target=("<=", 15))
    value, ceiling = statistics.median(removes) / 1e6, statistics.median(closes) / 1e6
    records.add(f"{title}: its removal", value, "ms", ceiling_name="cuIpcCloseMemHandle alone", ceiling=ceiling, ratio=value / ceiling)
    for engine in (owner, bare, reader):
        t.engines.remove(engine)
        engine.close()
    t.drop(agent)

    agent = t.agent()
    owner = t.engine()
    memories = [owner.alloc("cuda_ipc", each) for _ in range(TENSORS)]
    owner.ask("connect", agent.socket, t.gpus[0]["uuid"])
    harness.until(lambda: "ready" in [gpu["state"] for gpu in agent.ctl("gpus", "--json")["gpus"]], "the start of the announced GPU")
    first = owner.ask("region", *(f"{m}:0:{each}" for m in memories))
    records.add(f"{title}: the first one on a GPU that the session has announced, all of it open", first["ns"] / 1e6, "ms")
    t.close_engines()
    t.drop(agent)


# Name of the records, functions that measure.
PARTS = (("gpu_pages", (within, peer)), ("gpu_host", (host,)), ("gpu_latency", (latency,)), ("gpu_tcp", (tcp,)),
         ("gpu_beside", (beside, beside_shared)), ("gpu_busy", (busy_products, busy_decode, busy_shared)), ("gpu_cost", (cost, registration)))


WITH_CEILINGS = ("gpu_pages", "gpu_host", "gpu_latency")


def main(t):
    b = Bench(t)
    if any(t.wanted(f"bench: {name}, {part.__name__}") for name, parts in PARTS for part in parts if name in WITH_CEILINGS):
        with t.case("bench: ceilings"):
            b.ceilings()
    for name, parts in PARTS:
        parts = [part for part in parts if t.wanted(f"bench: {name}, {part.__name__}")]
        if not parts:
            continue
        records = b.records(name)
        for part in parts:
            with t.case(f"bench: {name}, {part.__name__}"):
                part(b, records)
            t.clear()
        if records.records:
            records.save()
    if c.OUT.exists():
        gpus = ", ".join(sorted({f"{[g['name'] for g in t.gpus].count(gpu['name'])} {gpu['name']}" for gpu in t.gpus}))
        file = c.OUT / "machine.txt"
        file.write_text(f"{gpus}, {file.read_text()}")
