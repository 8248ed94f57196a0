# SPDX-License-Identifier: Apache-2.0
"""Engines on CPUs with blocks of different sizes. Their kernels keep all keys of a block before all of its values, so that a half of a block is not a block."""

import pytest
from rig import TOKENS, Engine, nothing_left, prompts, route, same_tokens, with_references

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def engines(lab):
    """P with blocks of 32 tokens, D with blocks of 64."""
    agents = [lab.agent(name, key=lab.key).start() for name in ("agent-32", "agent-64")]
    made = [Engine(lab.tmp, f"blocks-{tokens}", agent.socket, policy="recompute", block_size=tokens)
            for tokens, agent in zip((32, 64), agents, strict=True)]
    try:
        yield [engine.ready() for engine in made], agents
    finally:
        for engine in made:
            engine.stop()


def test_tokens_are_those_of_one_engine(engines):
    (p, d), agents = engines
    for prompt, reference in with_references(p, prompts(40, 200, seed=3), 3):
        _, answer = route(p, d, prompt, TOKENS)
        same_tokens(reference, answer)
    assert not d.metrics().get("vllm:dray_loaded_tokens")
    assert "differ in the tokens of a block of layer model.layers.0.self_attn.attn: 64 here, 32 at the other engine" in d.tail(400)
    nothing_left(*agents)
