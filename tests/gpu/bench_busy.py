# SPDX-License-Identifier: Apache-2.0
"""Copies of scattered pieces beside engines that compute on the GPUs, without MPS: the rate of the copies, and what they cost the
engines. The cost is the engine's time lost for each GB moved: (slow-down - 1) / slow-down x duration / GB.

DRAY_BENCH_BEFORE names the build of another version, whose rounds alternate with those of this one.
"""

import contextlib
import os
import pathlib
import statistics

import common as c
import harness
from suite import GIB, KIB, MIB, Side, in_a_row, scattered

ROUNDS = int(os.environ.get("DRAY_BENCH_BUSY_ROUNDS", "7"))
SHAPE = os.environ.get("DRAY_BENCH_BUSY_SHAPE", "")  # only labels that contain it
LOAD = os.environ.get("DRAY_BENCH_BUSY_LOAD", "")  # likewise, of the load
# Label, memory of destination and source of a read, size of a piece, pieces of a transfer, transfers in flight.
SHAPES = (("between GPUs, 32 KiB pieces", ("cuda_vmm", 1), ("cuda_vmm", 0), 32 * KIB, 65536, 1),
          ("between GPUs, 64 pieces of 32 KiB", ("cuda_vmm", 1), ("cuda_vmm", 0), 32 * KIB, 64, 1),
          ("to host, 16 KiB pieces", ("memfd", 0), ("cuda_vmm", 0), 16 * KIB, 32768, 2),
          ("to host, 16 KiB pieces into a row", ("memfd", 0), ("cuda_vmm", 0), 16 * KIB, 32768, 2),
          ("to host, 256 KiB pieces", ("memfd", 0), ("cuda_vmm", 0), 256 * KIB, 2048, 2),
          ("to host, 64 pieces of 32 KiB", ("memfd", 0), ("cuda_vmm", 0), 32 * KIB, 64, 1),
          ("from host, 16 KiB pieces", ("cuda_vmm", 0), ("memfd", 0), 16 * KIB, 32768, 2),
          ("from host, 16 KiB pieces from a row", ("cuda_vmm", 0), ("memfd", 0), 16 * KIB, 32768, 2),
          ("from host, 256 KiB pieces", ("cuda_vmm", 0), ("memfd", 0), 256 * KIB, 2048, 2),
          ("from host, 64 pieces of 32 KiB", ("cuda_vmm", 0), ("memfd", 0), 32 * KIB, 64, 1))
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
    return {"": harness.BUILD, **({" (before)": pathlib.Path(before).resolve()} if before else {})}


class Mover:
    """An agent with two engines, one of which reads pieces from the other."""

    def __init__(self, t, build, shape, size):
        label, near, far, piece, self.batch, self.depth = shape
        with drayd_of(build):
            self.agent = t.agent(f"agent-{build.name}")
        self.here, self.there = (Side(t.engine(self.agent), kind, size, device) for kind, device in (near, far))
        self.remote, _ = self.here.reach(self.there)
        ops = scattered(piece, size)[:self.batch] if self.batch == 64 else scattered(piece, size)
        self.ops = t.ops(in_a_row(ops, "memfd" in far) if label.endswith("a row") else ops)

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


def measure(records, label, load_name, movers, loads):
    """Alternates rounds of all versions."""
    got = {name: [] for name in movers}
    for mover in movers.values():  # lets the agent see the load
        for _ in range(2):
            mover.beside(loads) if loads else mover.run(16)
    alone = [statistics.median(load.run() for _ in range(3)) for load in loads]
    for _ in range(ROUNDS):
        for name, mover in movers.items():
            got[name].append(mover.beside(loads) if loads else (mover.run(200 if mover.batch == 64 else 10), []))
    if len(got) == 2:
        compare(records, f"{label}, {load_name}", got)
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


def compare(records, title, got):
    """The rate relative to the other version's in the round beside it, with the 95 % interval of its median."""
    ours, before = ([c.rate(a) for a, _ in rounds] for rounds in got.values())
    ratios = sorted(a / b for a, b in zip(ours, before))
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
    names = ("idle", "source busy", "target busy", "both busy") if pair else ("idle", "busy")
    if loads.decode or how:
        names = names[2 if pair else 1:]
    for name in names:
        if LOAD not in name + how:
            continue
        measure(records, label, name + (", decode steps" if loads.decode else "") + how, movers, [loads.on(d) for d in LOADS[name]])
    t.close_engines()
    for mover in movers.values():
        t.drop(mover.agent)


def busy(b, records, new_load, decode=False, how=""):
    """decode: beside decode steps, and only where small pieces move. how: added to the names, and only loads."""
    loads = Loads(new_load, decode)
    try:
        for shape in SHAPES:
            if SHAPE in shape[0]:
                one_shape(b, records, shape, loads, how)
    finally:
        loads.close()
