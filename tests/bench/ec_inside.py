# SPDX-License-Identifier: Apache-2.0
"""The part "ec-inside" of bench_vllm.py: what it costs to have an output of the encoder from another engine, with engines each of which is one thread
(inside.py), so that the time of a request varies less, and can be divided.

Every request has a new prompt. One that is remote has a new image, which E has just encoded; one that is cached has the last image that PD has used, and E has just
encoded another one, too. A request of each kind makes a couple, and a draw decides which comes first. What is compared are medians of the differences within couples.
"""

import contextlib
import functools
import itertools
import os
import pathlib
import statistics

import common as c
import engine_ec as ec
import rig
import serving
import vision
from vision_engine import VisionEngine

BEFORE = os.environ.get("DRAY_BENCH_BEFORE")  # folder of another version of the repository, whose client is measured as well
COUPLES = 8  # of a pair of engines before the next pair has its turn
# Parts of a request's time from the end of E's step to PD's first token, in milliseconds. The first three are sums of the others.
PARTS = {
    "": lambda t: t["answering"] + t["asking"] + t["processed"] + t["scheduling"] + t["loading"] + t["computing"],
    ", without the image's processing and the model": lambda t: t["answering"] + t["asking"] + t["scheduling"] + t["loading"],
    ", from PD's scheduler to its model": lambda t: t["scheduling"] + t["loading"],
    ", E's answer": lambda t: t["answering"],
    ", until PD's scheduler has it": lambda t: t["asking"],
    ", until it is scheduled": lambda t: t["scheduling"],
    ", until the model has its inputs": lambda t: t["loading"],
    ", the model": lambda t: t["computing"],
    ", the image's processing": lambda t: t["processed"],
}
COMPARED = list(PARTS)[:3]


class InsideEngine(VisionEngine):
    """root: of the repository whose client it uses."""

    program = pathlib.Path(__file__).with_name("inside.py")

    def __init__(self, folder, name, variables=(), root=ec.ROOT, **more):
        variables = {"PYTHONPATH": f"{root}/client/python", **dict(variables), "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
        variables["PYTHONPATH"] += f":{pathlib.Path(vision.__file__).parent}"  # for inside.py
        super().__init__(folder, name, variables=variables, **more)


class Couples(ec.Pair):
    """An encoder, and an engine that uses its outputs."""

    def __init__(self, *args, **how):
        super().__init__(*args, **how)
        self.known = {}  # the last images that PD has used, by size
        self.saved, self.answering, self.encoded = {}, {}, 0

    def encode(self, size, wanted=True):
        images, to_pd = super().encode(size, wanted)
        times = self.last["times"]
        self.saved.setdefault(size, []).append(1e3 * self.last["saved"])
        self.answering.setdefault(size, []).append(1e3 * (times["answered"] - times["computed"]))
        return images, to_pd, self.answering[size][-1]

    def ask(self, images, ec_params=None):
        answer = ec.good(self.pd.run(vision.prompt(ec.chance), 1, images=images, ec=ec_params), self.pd)
        self.encoded = answer["encoded"]
        t = answer["times"]
        return {"asking": 1e3 * (t["added"] - t["received"] - answer["processed"]), "processed": 1e3 * answer["processed"],
                "scheduling": 1e3 * (t["scheduled"] - t["added"]), "loading": 1e3 * (t["inputs"] - t["scheduled"]),
                "computing": 1e3 * (t["first"] - t["inputs"])}

    def remote(self, size):
        images, params, answering = self.encode(size)
        taken = self.ask(images, params)
        self.known[size] = images
        return {**taken, "answering": answering}

    def cached(self, size):
        wanted = self.how != "mooncake"  # which would push it while PD computes
        images, params, answering = self.encode(size, wanted)
        taken = self.ask(self.known[size])
        if wanted:  # so that E keeps nothing
            self.ask(images, params)
            self.known[size] = images
        return {**taken, "answering": answering}

    def couple(self, size):
        """What the remote request takes more than the cached one: of each of PARTS, in milliseconds."""
        kinds = ec.chance.sample((self.remote, self.cached), 2)
        taken = {kind.__name__: kind(size) for kind in kinds}
        return [part(taken["remote"]) - part(taken["cached"]) for part in PARTS.values()]

    def burst(self, size, engines):
        with contextlib.ExitStack() as stack:
            for engine in engines - {self.e, self.pd}:
                stack.enter_context(engine.stopped())
            self.remote(size)  # images of other sizes may have driven out the last one of this size
            self.couple(size)  # brings both engines back
            return [self.couple(size) for _ in range(COUPLES)]


def inside(lab, records, rounds, beside_mooncake=True):
    agents = c.agents(lab, 2)
    with contextlib.ExitStack() as stack:
        with c.under("DRAY_BENCH_BUSY"):
            e, pd = ec.dray(lab, "e", "ec_producer", agents[0], InsideEngine), ec.dray(lab, "pd", "ec_consumer", agents[1], InsideEngine)
            pairs = [Couples("local", "local", e, pd, "ECExampleConnector"),
                     Couples("ECExampleConnector", "files", *(ec.files(lab, name, role, InsideEngine) for name, role in (
                         ("e-files", "ec_producer"), ("pd-files", "ec_consumer"))))]
            if BEFORE:
                kind = functools.partial(InsideEngine, root=BEFORE)
                pairs.append(Couples("local before", "local", ec.dray(lab, "e-before", "ec_producer", agents[0], kind),
                                     ec.dray(lab, "pd-before", "ec_consumer", agents[1], kind), "ECExampleConnector"))
            if beside_mooncake:
                port = serving.free_port()
                pairs += [Couples("tcp", "tcp", e, pd, "ECMooncakeConnector"),
                          Couples("ECMooncakeConnector", "mooncake", *(ec.mooncake(lab, name, role, port, InsideEngine) for name, role in (
                              ("e-mooncake", "ec_producer"), ("pd-mooncake", "ec_consumer"))), port=port)]
            engines = {engine for pair in pairs for engine in (pair.e, pair.pd)}
            stack.enter_context(ec.running(*engines))
            # The engines' first steps of a size take longer.
            pairs = [pair for pair in pairs if ec.as_far(pair, lambda pair=pair: [pair.burst(size, set()) for size in ec.WANTED], records)]
        stack.enter_context(c.under("DRAY_BENCH_QUIET"))
        for pair in pairs:
            pair.saved.clear()
            pair.answering.clear()
        found, moved, loads = {(pair.name, size): [] for pair in pairs for size in ec.WANTED}, rig.transfers(agents[1]), 0
        for _ in c.turns(rounds * 10000, c.now()):
            for size in ec.WANTED:
                for pair in ec.chance.sample(pairs, len(pairs)):
                    values = ec.as_far(pair, lambda pair=pair, size=size: pair.burst(size, engines), records)
                    if values is None:
                        pairs.remove(pair)
                        continue
                    found[pair.name, size].append(values)
                    loads += (2 * COUPLES + 3) * (pair.how == "tcp")
        if (n := rig.transfers(agents[1]) - moved) != loads:
            raise c.CannotRun(f"the agent has moved {n} outputs, and {loads} are those of tcp")
        for pair in pairs:
            if pair.how != "mooncake" and pair.encoded:
                raise c.CannotRun(f"{pair.pd.name} has encoded {pair.encoded} images itself")
    for agent in agents:
        agent.stop()
    records.add(f"turns of {COUPLES} couples", min(len(found[pair.name, size]) for pair in pairs for size in ec.WANTED), "")
    for size, pair in itertools.product(ec.WANTED, pairs):
        for what, values in (("E saves the output", pair.saved[size]), ("from the end of E's step to its answer", pair.answering[size])):
            records.add(f"{size} embeddings, {pair.name}, {what}", statistics.median(values), "ms", spread=statistics.quantiles(values, n=20))
    for (at, what), size, pair in itertools.product(enumerate(PARTS), ec.WANTED, pairs):
        turns = {name: [[value[at] for value in burst] for burst in found.get((name, size), ())] for name in (pair.name, pair.beside)}
        ours, others = turns[pair.name], turns[pair.beside]
        beside = {"ceiling_name": pair.beside, **ec.compared(ours, others, ("<=", 0.5) if what in COMPARED else None)} if others else {
            "interval": ec.drawn(ec.median_of, ours)}
        records.add(f"{size} embeddings, {pair.name}{what}", ec.median_of(ours), "ms", **beside)
