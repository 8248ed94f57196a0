# SPDX-License-Identifier: Apache-2.0
"""Copies of scattered pieces beside engines that compute on the GPUs, without MPS: the rate of the copies, and what they cost the
engines. The cost is the engine's time lost for each GB moved: (slow-down - 1) / slow-down x duration / GB.

Where NIXL's wheel (nixl-cu13) can be imported, it moves the same pieces between GPUs in turn with the agent.

DRAY_BENCH_BEFORE names the build of another version. Two agents of the same build differ by more than 5 %, as long as they run. So
in each round both agents and their engines start anew, measure in turns, and give one ratio, of their medians.
"""

import contextlib
import importlib.util
import json
import os
import pathlib
import re
import select
import statistics
import subprocess
import sys

import common as c
import harness
from suite import GIB, KIB, MIB, Side, in_a_row, scattered

ROUNDS = int(os.environ.get("DRAY_BENCH_BUSY_ROUNDS", "7"))
SHAPE = os.environ.get("DRAY_BENCH_BUSY_SHAPE", "")  # only labels in which this regular expression is found
LOAD = os.environ.get("DRAY_BENCH_BUSY_LOAD", "")  # likewise, with the load's name
BEFORE, NIXL = " (before)", " (NIXL)"
HERE = pathlib.Path(__file__).resolve().parent
TURNS = 3  # of each agent in a round, when two versions are compared
# Label, memory of destination and source of a read, size of a piece, pieces of a transfer, transfers in flight.
SHAPES = (("between GPUs, 32 KiB pieces", ("cuda_vmm", 1), ("cuda_vmm", 0), 32 * KIB, 65536, 1),
          ("between GPUs, 32 KiB pieces, two in flight", ("cuda_vmm", 1), ("cuda_vmm", 0), 32 * KIB, 65536, 2),
          ("between GPUs, 32 KiB pieces, cuda_ipc", ("cuda_ipc", 1), ("cuda_ipc", 0), 32 * KIB, 65536, 1),
          ("between GPUs, 32 KiB pieces into a row", ("cuda_vmm", 1), ("cuda_vmm", 0), 32 * KIB, 65536, 1),
          ("between GPUs, 64 pieces of 32 KiB", ("cuda_vmm", 1), ("cuda_vmm", 0), 32 * KIB, 64, 1),
          ("within a GPU, 16 KiB pieces", ("cuda_vmm", 0), ("cuda_vmm", 0), 16 * KIB, 32768, 2),
          ("to host, 16 KiB pieces", ("memfd", 0), ("cuda_vmm", 0), 16 * KIB, 32768, 2),
          ("to host, 16 KiB pieces, half of them", ("memfd", 0), ("cuda_vmm", 0), 16 * KIB, 16384, 2),
          ("to host, 16 KiB pieces into a row", ("memfd", 0), ("cuda_vmm", 0), 16 * KIB, 32768, 2),
          ("to host, 256 KiB pieces", ("memfd", 0), ("cuda_vmm", 0), 256 * KIB, 2048, 2),
          ("to host, 64 pieces of 32 KiB", ("memfd", 0), ("cuda_vmm", 0), 32 * KIB, 64, 1),
          ("from host, 16 KiB pieces", ("cuda_vmm", 0), ("memfd", 0), 16 * KIB, 32768, 2),
          ("from host, 16 KiB pieces, half of them", ("cuda_vmm", 0), ("memfd", 0), 16 * KIB, 16384, 2),
          ("from host, 16 KiB pieces from a row", ("cuda_vmm", 0), ("memfd", 0), 16 * KIB, 32768, 2),
          ("from host, 256 KiB pieces", ("cuda_vmm", 0), ("memfd", 0), 256 * KIB, 2048, 2),
          ("from host, 64 pieces of 32 KiB", ("cuda_vmm", 0), ("memfd", 0), 32 * KIB, 64, 1),
          ("over TCP, 16 KiB pieces", ("cuda_vmm", 1), ("cuda_vmm", 0), 16 * KIB, 1024, 8))
# Which GPUs compute: of the pair, 1 is the destination.
LOADS = {"idle": (), "source busy": (0,), "target busy": (1,), "both busy": (0, 1), "busy": (0,)}


@contextlib.contextmanager
def drayd_of(build):
    """Agents that start inside are of that build."""
    kept = harness.DRAYD
    harness.DRAYD = build / "drayd"
    try:
        yield
    finally:
        harness.DRAYD = kept


def versions():
    before = os.environ.get("DRAY_BENCH_BEFORE")
    return {"": harness.BUILD, **({BEFORE: pathlib.Path(before).resolve()} if before else {})}


class Mover:
    """An agent with two engines, one of which reads pieces from the other; over TCP each engine has an agent."""

    def __init__(self, t, build, shape, size):
        label, self.near, self.far, piece, self.batch, self.depth = shape
        self.t, self.size, self.measures = t, size, build == harness.BUILD and not t.fake
        with drayd_of(build):
            self.agents = [t.agent(f"agent-{build.name}-{i}") for i in range(2 if label.startswith("over TCP") else 1)]
        self.connect()
        self.wait_for_rates()
        ops = scattered(piece, size)
        if self.batch == 64 or label.endswith("half of them"):
            ops = ops[:self.batch]
        self.ops = t.ops(in_a_row(ops, "memfd" in self.far) if label.endswith("a row") else ops)

    def connect(self):
        ends = (self.agents[0], self.near), (self.agents[-1], self.far)
        self.here, self.there = (Side(self.t.engine(agent), kind, self.size, device) for agent, (kind, device) in ends)
        self.remote, _ = self.here.reach(self.there)

    def restart(self):
        """The agent keeps its measured rates, and nothing else."""
        for side in (self.here, self.there):
            self.t.engines.remove(side.engine)
            side.engine.close()
        for agent in self.agents:
            agent.stop()
            agent.start()
        self.connect()

    def wait_for_rates(self):
        """Copies would keep the agent from measuring. Earlier versions have none, and under MPS the agent does not ask for them."""
        def started():
            return [gpu for agent in self.agents for gpu in agent.ctl("gpus", "--json")["gpus"] if gpu["state"] == "ready"]

        if not self.measures or "CUDA_MPS_PIPE_DIRECTORY" in os.environ:
            return
        harness.until(lambda: (now := started()) and all(gpu["rates"] != "built_in" for gpu in now), "rates are measured")
        for gpu in started():
            self.t.say(f"{gpu['name']} {gpu['uuid']}: rates {gpu['rates']}; {gpu['kernel_rates']}")

    def words(self, n):
        return ("run", self.here.region, self.remote, "read", self.ops, n, self.batch, self.depth)

    def run(self, transfers):
        return self.here.engine.ask(*self.words(transfers * self.batch))

    def beside(self, loads):
        """Moves until the loads have computed: (the engine's answer, seconds of each load)."""
        self.here.engine.tell(*self.words(0))
        for load in loads:
            load.start()
        seconds = [load.end() for load in loads]
        self.here.engine.tell("stop")
        answer = self.here.engine.hear()
        self.here.engine.hear()
        return answer, seconds


class NixlSide:
    """nixl_engine.py on a GPU."""

    LIMIT = 90  # seconds

    def __init__(self, gpu, size):
        self.process = subprocess.Popen(["setpriv", "--pdeathsig=KILL", sys.executable, str(HERE / "nixl_engine.py"), str(gpu), str(size)],
                                        text=True, bufsize=1, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def tell(self, **what):
        self.process.stdin.write(json.dumps(what) + "\n")

    def hear(self):
        if not select.select([self.process.stdout], [], [], self.LIMIT)[0]:
            raise AssertionError(f"NIXL has not answered in {self.LIMIT} s")
        line = self.process.stdout.readline()
        if not line:
            raise AssertionError(f"NIXL ended with {self.process.wait()}")
        return json.loads(line)

    def ask(self, **what):
        self.tell(**what)
        return self.hear()

    def close(self):
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


class NixlMover:
    """Two engines with NIXL, one of which reads pieces from the other."""

    def __init__(self, shape, size):
        label, near, far, piece, self.batch, _ = shape
        ops = scattered(piece, size)[:self.batch]
        if label.endswith("a row"):
            ops = in_a_row(ops, 0)
        self.here, self.there = (NixlSide(gpu, size) for _, gpu in (near, far))
        self.here.ask(do="reach", other=self.there.ask(do="describe"), pieces=[op[:2] for op in ops], size=piece)

    @staticmethod
    def can(t, shape):
        """Between GPUs, in memory of cudaMalloc() and of cuMemCreate() alike: NIXL has no choice of the kind."""
        return not t.fake and shape[1][1] != shape[2][1] and "cuda_ipc" not in shape[0] and "TCP" not in shape[0] and importlib.util.find_spec("nixl_cu13")

    def run(self, transfers):
        return self.here.ask(do="run", n=transfers)

    def beside(self, loads):
        self.here.tell(do="run", n=0)
        for load in loads:
            load.start()
        seconds = [load.end() for load in loads]
        self.here.tell(do="stop")
        return self.here.hear(), seconds

    def close(self):
        for side in (self.here, self.there):
            side.close()


def begin(movers, loads):
    """Lets the agents see the load."""
    for mover in movers.values():
        for _ in range(2):
            mover.beside(loads) if loads else mover.run(16)


def turns(movers, loads, n):
    """What each version got, in n turns."""
    got = {name: [] for name in movers}
    for _ in range(n):
        for name, mover in movers.items():
            got[name].append(mover.beside(loads) if loads else (mover.run(200 if mover.batch == 64 else 10), []))
    return got


def rounds_of_two(records, title, movers, loads):
    """In each round both agents are new ones, and the other one is first."""
    got, ratios = {name: [] for name in movers}, []
    for i in range(ROUNDS):
        ordered = dict(list(movers.items())[::-1 if i % 2 else 1])
        for mover in ordered.values():
            mover.restart()
        begin(ordered, loads)
        for name, answers in turns(ordered, loads, TURNS).items():
            got[name] += answers
        ours, before = (statistics.median(c.rate(answer) for answer, _ in v[-TURNS:]) for v in got.values())
        ratios.append(ours / before)
    compare(records, title, sorted(ratios))
    return got


def measure(records, label, load_name, movers, loads):
    begin(movers, loads)
    alone = [statistics.median(load.run() for _ in range(3)) for load in loads]
    if BEFORE in movers:
        got = rounds_of_two(records, f"{label}, {load_name}", movers, loads)
    else:
        got = turns(movers, loads, ROUNDS)
    for name, rounds in got.items():
        title = f"{label}, {load_name}{name}"
        rate = statistics.median(c.rate(a) / 1e9 for a, _ in rounds)
        if next(iter(movers.values())).batch == 64:
            records.add(f"{title}: a transfer", statistics.median(a["seconds"] / (a["bytes"] / (2 * MIB)) for a, _ in rounds) * 1e6, "us")
        else:
            records.add(title, rate, "GB/s")
        for i, bare in enumerate(alone):
            slow = statistics.median(s[i] / bare for _, s in rounds)
            lost = statistics.median((s[i] - bare) / (a["bytes"] / 1e9 * s[i] / a["seconds"]) for a, s in rounds) * 1e3
            which = f"GPU {i}" if len(alone) > 1 else "engine"
            records.add(f"{title}: {which} slowed down by", slow, "")
            records.add(f"{title}: {which} loses for each GB", lost, "ms")


def compare(records, title, ratios):
    """The rate relative to the other version's, in order, with the lower bound of the 95 % interval of its median."""
    rank = max(0, int((len(ratios) - 1.96 * len(ratios) ** 0.5) / 2))
    records.add(f"{title}: rate relative to the version before", statistics.median(ratios), "", spread=ratios)
    records.add(f"{title}: the lower bound of its 95 % interval", ratios[rank], "", target=(">=", 0.95))


class Loads:
    """Processes that compute, one for each GPU and only when told; kept, since they take seconds to start."""

    def __init__(self, new_load, decode):
        self.new_load, self.decode, self.made = new_load, decode, {}

    def on(self, device):
        if device not in self.made:
            self.made[device] = self.new_load(device, self.decode)
        return self.made[device]

    def close(self):
        for load in self.made.values():
            load.close()


def one_shape(b, records, shape, loads, how):
    t = b.t
    label, near, far, piece = shape[:4]
    pair = near[1] != far[1]
    if pair and len(t.gpus) < 2 or loads.decode and piece > 32 * KIB:
        return
    size = min(2 * GIB, b.bytes)
    total = size if pair or t.fake else GIB // 2
    movers = {name: Mover(t, build, shape, total) for name, build in versions().items()}
    if not how and len(movers) == 1 and NixlMover.can(t, shape):
        movers[NIXL] = NixlMover(shape, total)
    names = ("idle", "source busy", "target busy", "both busy") if pair else ("idle", "busy")
    if loads.decode or how:
        names = names[2 if pair else 1:]
    for name in names:
        if not re.search(LOAD, name + how):
            continue
        measure(records, label, name + (", decode steps" if loads.decode else "") + how, movers, [loads.on(d) for d in LOADS[name]])
    if NIXL in movers:
        movers.pop(NIXL).close()
    t.close_engines()
    for mover in movers.values():
        for agent in mover.agents:
            t.drop(agent)


def busy(b, records, new_load, decode=False, how=""):
    """decode: beside decode steps, and only where small pieces move. how: added to the names, and only loads."""
    loads = Loads(new_load, decode)
    try:
        for shape in SHAPES:
            if re.search(SHAPE, shape[0]):
                one_shape(b, records, shape, loads, how)
    finally:
        loads.close()
