# SPDX-License-Identifier: Apache-2.0
"""The part "ec" of bench_vllm.py: what it costs to have an output of the encoder from another engine, beside vLLM's connector by files."""

import contextlib
import itertools
import random
import statistics
import time

import common as c
import vision
from harness import ROOT
from vision_engine import VisionEngine

SIZES = {64: (224, 224), 256: (448, 448), 1024: (896, 896)}  # pixels, by embeddings
BURST = 5  # requests of a pair of engines before the next pair has its turn
REST = 1.2  # seconds, after which the workers of engines that have answered do not poll any more
POOL = 64 << 20
numbers = itertools.count(1)
chance = random.Random(28)


def model():
    """The tiny model for images of up to 1,024 embeddings."""
    most = 28 * 28 * max(SIZES)
    vision.PROCESSOR.update(max_pixels=most, size={**vision.PROCESSOR["size"], "longest_edge": most})
    return str(vision.with_weights(ROOT / "build/engine-vision-wide"))


# At engines that use outputs, vLLM's cache of processed images is off: otherwise the second request with an image would save its processing,
# too, and the difference to the first one would not be that of the connectors. At E it is on, because E has no prefix cache: without
# either of them, vLLM's identifiers are unique to a request.
UNCACHED = {"mm_processor_cache_gb": 0}


def how(role):
    return {} if role == "ec_producer" else UNCACHED


def dray(lab, name, role, agent, **options):
    return VisionEngine(lab.tmp, name, model=model(), **how(role), ec_transfer_config={
        "ec_connector": "DrayECConnector", "ec_connector_module_path": "dray.vllm", "ec_role": role, "engine_id": name,
        "ec_buffer_size": POOL, "ec_connector_extra_config": {"socket": str(agent.socket), **options}})


def files(lab, name, role):
    folder = lab.tmp / "outputs"
    folder.mkdir(exist_ok=True)
    return VisionEngine(lab.tmp, name, model=model(), **how(role), ec_transfer_config={
        "ec_connector": "ECExampleConnector", "ec_role": role, "engine_id": name, "ec_connector_extra_config": {"shared_storage_path": str(folder)}})


def good(answer, engine):
    if "error" in answer or answer["reason"] == "error":
        raise c.CannotRun(f"a request of {engine.name} has failed: {answer}\n{engine.tail(15)}")
    return answer


class Pair:
    """An encoder, and an engine that uses its outputs. ours: with DrayECConnector."""

    def __init__(self, name, ours, e, pd):
        self.name, self.ours, self.e, self.pd = name, ours, e, pd

    def cost(self, size):
        """Seconds from E's answer to PD's first token, minus the same with the output in PD's own cache."""
        images = [[*SIZES[size], next(numbers)]]
        prompt, again = vision.prompt(chance), vision.prompt(chance)
        encoded = good(self.e.run(prompt, 1, images=images), self.e)
        offer = encoded["ec"] if self.ours else None
        remote = good(self.pd.run(prompt, 1, images=images, ec=offer), self.pd)["first"]
        cached = good(self.pd.run(again, 1, images=images), self.pd)["first"]
        return remote - cached

    def burst(self, size):
        time.sleep(REST)
        self.cost(size)  # brings both engines back
        return [self.cost(size) for _ in range(BURST)]


@contextlib.contextmanager
def running(*engines):
    try:
        for engine in engines:
            engine.ready()
        yield
    finally:
        for engine in engines:
            engine.stop()


def ec(lab, records, rounds):
    agents = c.agents(lab, 2)
    e = dray(lab, "e", "ec_producer", agents[0])
    pairs = [Pair("local", True, e, dray(lab, "pd-local", "ec_consumer", agents[0], transport="local")),
             Pair("tcp", True, e, dray(lab, "pd-tcp", "ec_consumer", agents[1], transport="tcp")),
             Pair("ECExampleConnector", False, files(lab, "e-files", "ec_producer"), files(lab, "pd-files", "ec_consumer"))]
    with running(*dict.fromkeys(engine for pair in pairs for engine in (pair.e, pair.pd))):
        found = {(pair.name, size): [] for pair in pairs for size in SIZES}
        for pair in pairs:
            for size in SIZES:  # the engines' first steps of a size take longer
                pair.cost(size)
        for turn in range(rounds):
            for size in SIZES:
                for pair in pairs if turn % 2 else pairs[::-1]:
                    found[pair.name, size] += [1e3 * value for value in pair.burst(size)]
        for pair in pairs:
            if pair.pd.encoded:
                raise c.CannotRun(f"{pair.pd.name} has encoded {len(pair.pd.encoded)} images itself")
    for agent in agents:
        agent.stop()
    middle = {key: statistics.median(values) for key, values in found.items()}
    for size in SIZES:
        theirs = middle[pairs[-1].name, size]
        for pair in pairs[:-1]:
            ours = middle[pair.name, size]
            records.add(f"{size} embeddings, {pair.name}", ours, "ms", ceiling_name=pairs[-1].name, ceiling=theirs, ratio=ours / theirs,
                        target=("<=", 0.5), spread=[value / theirs for value in found[pair.name, size]])
