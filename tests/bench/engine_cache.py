# SPDX-License-Identifier: Apache-2.0
"""The part "cache" of bench_vllm.py: DrayEncoderCacheManager beside vLLM's own manager, on the same requests."""

import statistics
import time

import common as c
import vision
from ec_cache_engines import OUTPUT, Caching, requests
from harness import LIMIT, ROOT

# Its encoder takes a part of a request that is worth saving, as those of real models do.
LARGE = {"depth": 12, "embed_dim": 256, "num_heads": 8}
SIZES = [(448, 448), (448, 224), (224, 224)]
WARM, COUNT, POPULAR, AT_ONCE, HOST = 8, 60, 30, 2, 24
ENGINES = (("own", None, 0), ("device", {}, 0), ("two tiers", {}, HOST * OUTPUT))


def serve(engine, asked):
    """Seconds until the first token of each request, `AT_ONCE` of which run at a time, and until all have ended."""
    began, waits, first = time.monotonic(), [], []
    asked = list(asked)
    while asked or waits:
        while asked and len(waits) < AT_ONCE:
            prompt, images = asked.pop(0)
            waits.append(engine.start(prompt, 4, images=images))
        answer = waits.pop(0).get(timeout=4 * LIMIT)
        if "error" in answer:
            raise c.CannotRun(f"a request has failed: {answer}\n{engine.tail(15)}")
        first.append(answer["first"])
    return first, time.monotonic() - began


def cache(lab, records, rounds):
    vision.CONFIG["vision_config"].update(LARGE)
    model = vision.with_weights(ROOT / "build/engine-vision-large")
    made = [(name, Caching(lab.tmp, name.replace(" ", "-"), manager, host, model=model)) for name, manager, host in ENGINES]
    try:
        for _, engine in made:
            engine.ready()
            serve(engine, requests(999, WARM, WARM, SIZES))
        found = {name: {"encoder": [], "first": [], "rate": []} for name, _ in made}
        for turn in c.turns(rounds):
            trace = list(requests(turn + 1, COUNT, POPULAR, SIZES))
            for name, engine in made if turn % 2 else reversed(made):
                before = len(engine.encoded)
                first, seconds = serve(engine, trace)
                found[name]["encoder"].append(sum(engine.encoded[before:]))
                found[name]["first"].append(statistics.median(first) * 1e3)
                found[name]["rate"].append(COUNT / seconds)
    finally:
        for _, engine in made:
            engine.stop()
    own = {what: statistics.median(values) for what, values in found["own"].items()}
    for name, what, unit, target in (("time of the encoder", "encoder", "s", "<="), ("to the first token, median", "first", "ms", "<="),
                                     ("requests", "rate", "/s", ">=")):
        for which in ("device", "two tiers"):
            value = statistics.median(found[which][what])
            records.add(f"{name}, {which}", value, unit, ceiling_name="vLLM's own", ceiling=own[what], ratio=value / own[what],
                        target=(target, 1.0), spread=[a / b for a, b in zip(found[which][what], found["own"][what])])
