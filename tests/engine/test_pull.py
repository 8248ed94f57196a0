# SPDX-License-Identifier: Apache-2.0
"""Prefill at one engine, decode at another: tokens equal those of a single engine, and blocks are loaded, not computed."""

import pytest
from harness import LIMIT
from rig import BLOCK, PREFILL, TOKENS, Engine, labels, nothing_left, prefill, prompts, route, same_tokens, with_references

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def two(lab):
    """P and D with an agent each, over TCP. D never sees a prompt before its request comes from P."""
    agents = [lab.agent(name, key=lab.key).start() for name in ("agent-p", "agent-d")]
    p = Engine(lab.tmp, "p", agents[0].socket, "kv_producer")
    d = Engine(lab.tmp, "d", agents[1].socket, "kv_consumer")
    try:
        yield p.ready(), d.ready(), agents
    finally:
        p.stop()
        d.stop()


@pytest.mark.parametrize("length", [64, 512, 2048])
def test_tokens_of_a_single_engine(two, length):
    p, d, agents = two
    (prompt, reference), = with_references(p, prompts(40, length, seed=length), 1)
    before = d.metrics()
    first, answer = route(p, d, prompt, TOKENS)
    same_tokens(reference, answer)
    assert first["tokens"] == reference["tokens"][:1]
    after = d.metrics()
    loaded = "vllm:dray_loaded_tokens"
    assert after.get(loaded, 0) - before.get(loaded, 0) == length
    assert answer["cached"] >= length - BLOCK
    assert labels(agents[1])[-1].startswith(answer["id"])  # the engine adds to it
    nothing_left(*agents)


def test_tokens_depend_on_the_blocks(two):
    """The check of this file would notice other blocks: those of another prompt give other tokens."""
    p, d, agents = two
    (prompt, reference), = with_references(p, prompts(40, 96, seed=5), 1)
    other, = prompts(1, 96, seed=6)
    first = prefill(p, other)
    answer = d.run(prompt, TOKENS, first["params"])
    assert answer["tokens"] != reference["tokens"]
    nothing_left(*agents)


def test_eight_at_once_with_a_shared_prefix(two):
    p, d, agents = two
    asked = with_references(p, prompts(80, 300, seed=1, shared=128), 4) + \
        with_references(p, prompts(80, 700, seed=2), 4)
    firsts = [w.get(timeout=LIMIT * 4) for w in [p.start(prompt, 1, PREFILL) for prompt, _ in asked]]
    firsts = [first if first["params"] else prefill(p, prompt) for (prompt, _), first in zip(asked, firsts)]
    answers = [w.get(timeout=LIMIT * 4) for w in [d.start(prompt, TOKENS, first["params"])
                                                  for (prompt, _), first in zip(asked, firsts)]]
    for (_, reference), answer in zip(asked, answers):
        same_tokens(reference, answer)
    nothing_left(*agents)
