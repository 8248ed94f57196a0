# SPDX-License-Identifier: Apache-2.0
"""DrayEncoderCacheManager in real engines: tokens of vLLM's own manager, with fewer runs of the encoder."""

from functools import partial

import pytest
import rig
from ec_cache_engines import OUTPUT, TEXT, Caching, requests
from harness import LIMIT, until

pytestmark = pytest.mark.long
TOKENS, COUNT, POPULAR = 6, 90, 24
CLEAR = 0.5  # as in test_ec_engines.py: outputs come back bit by bit as they were
SIZES = [(448, 448), (448, 224), (224, 224)]
COUNTS = ("device_hits", "promoted", "passed", "encoded", "device_evictions", "host_evictions")


@pytest.fixture(scope="module")
def engines(lab):
    made = [Caching(lab.tmp, "own"), Caching(lab.tmp, "tiers", {"promote_percentile": 0.8}, 18 * OUTPUT)]
    try:
        yield [engine.ready() for engine in made]
    finally:
        for engine in made:
            engine.stop()


def counts(engine):
    found = engine.metrics("vllm:dray_ec_cache")
    return {name: found.get(f"vllm:dray_ec_cache_{name}", found.get(f"vllm:dray_ec_cache_{name}_total", 0)) for name in COUNTS}


def test_tokens_and_hits_on_a_trace_with_repeats(engines):
    own, tiers = engines
    checked, ran = 0, {engine: len(engine.encoded) for engine in engines}
    for prompt, images in requests(1, COUNT, POPULAR, SIZES):
        reference = own.run(prompt, TOKENS, images=images, logprobs=2)
        assert "error" not in reference, (reference, own.tail())
        answer = tiers.run(prompt, TOKENS, images=images, logprobs=2)
        assert "error" not in answer, (answer, tiers.tail())
        rig.same_tokens(reference, answer, CLEAR)
        checked += rig.sure(reference, CLEAR) > 0
    ran = {engine.name: len(engine.encoded) - ran[engine] for engine in engines}
    until(lambda: sum(counts(tiers)[name] for name in COUNTS[:4]) == COUNT, "the counts of the last request")
    print(ran, counts(tiers), f"{checked} requests compared")
    assert checked and ran["tiers"] == counts(tiers)["encoded"] < ran["own"]
    assert all(counts(tiers).values()), counts(tiers)


def test_eight_at_once(engines):
    """Hits of requests that run together, and of one image twice in a prompt."""
    own, tiers = engines
    asked = [(prompt + prompt[TEXT:], images * 2) for prompt, images in requests(2, 16, 6, SIZES, once=0.2)]
    answers = {}
    for engine in engines:
        waits = [engine.start(prompt, TOKENS, images=images, logprobs=2) for prompt, images in asked]
        answers[engine] = [w.get(timeout=4 * LIMIT) for w in waits]
    for reference, answer in zip(answers[own], answers[tiers]):
        assert "error" not in answer, (answer, tiers.tail())
        rig.same_tokens(reference, answer, CLEAR)


def test_a_wrong_option_ends_the_start(lab):
    engine = Caching(lab.tmp, "wrong", {"watermrk": 0.1})
    try:
        assert "ready" not in engine.answers.get(timeout=rig.START_LIMIT)
        assert "unknown option 'watermrk'; did you mean 'watermark'?" in engine.log.read_text(errors="replace")
    finally:
        engine.stop()
