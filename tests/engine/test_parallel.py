# SPDX-License-Identifier: Apache-2.0
"""Engines of different tensor-parallel sizes: heads are gathered or split on the way, and tokens equal those of P alone."""

import pytest
from rig import KV_BYTES, TOKENS, Engine, nothing_left, prompts, route, same_tokens, with_references

# Ranks add up parts of each layer, which is rounded otherwise than at one rank: the tokens of D have differed from those of P alone where
# the difference of log probabilities was 0.63.
CLEAR = 1.5
pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def engines(lab):
    """Engines of two ranks and of one, with an agent each, over TCP."""
    agents = [lab.agent(name, key=lab.key).start() for name in ("agent-two", "agent-one")]
    made = [Engine(lab.tmp, "two", agents[0].socket, tensor_parallel_size=2, kv_cache_memory_bytes=KV_BYTES // 2),
            Engine(lab.tmp, "one", agents[1].socket)]
    try:
        yield [engine.ready() for engine in made], agents
    finally:
        for engine in made:
            engine.stop()


@pytest.mark.parametrize("length", [64, 500])
@pytest.mark.parametrize("way", ["two to one", "one to two"])
def test_tokens_of_a_single_engine(engines, way, length):
    (two, one), agents = engines
    p, d, ranks = (two, one, 1) if way == "two to one" else (one, two, 2)
    for prompt, reference in with_references(p, prompts(80, length, seed=length + ranks), 3, CLEAR):
        before = d.metrics()
        _, answer = route(p, d, prompt, TOKENS)
        same_tokens(reference, answer, CLEAR)
        loaded = "vllm:dray_loaded_tokens"  # of all ranks
        assert d.metrics().get(loaded, 0) - before.get(loaded, 0) == length * ranks
    nothing_left(*agents)
