# SPDX-License-Identifier: Apache-2.0
"""Prefill at one engine, which writes the blocks to another one as soon as they are computed.

Tokens equal those of a single engine, and blocks are loaded, not computed.
"""

import pytest
from harness import LIMIT, until
from rig import (BLOCK, PREFILL, TOKENS, Engine, nothing_left, prompts, push, push_params, same_tokens, with_references)

CHUNK = 500  # tokens that P computes in a step; not a multiple of the block size
LOADED = "vllm:dray_loaded_tokens"


@pytest.fixture(scope="module")
def two(lab):
    """P and D with an agent each, over TCP. D never sees a prompt before its request comes from the router."""
    agents = [lab.agent(name, key=lab.key).start() for name in ("agent-p", "agent-d")]
    p = Engine(lab.tmp, "p", agents[0].socket, "kv_producer", {"mode": "push"}, max_num_batched_tokens=CHUNK)
    d = Engine(lab.tmp, "d", agents[1].socket, "kv_consumer", {"mode": "push"})
    try:
        yield p.ready(), d.ready(), agents
    finally:
        p.stop()
        d.stop()


class Loaded:
    """Counts the tokens that D loads inside of the context."""

    def __init__(self, d):
        self.d, self.tokens = d, None

    def __enter__(self):
        self.before = self.d.metrics().get(LOADED, 0)
        return self

    def __exit__(self, *_):
        self.tokens = self.d.metrics().get(LOADED, 0) - self.before


def transfers(agent):
    return agent.ctl("status", "--json")["counters"]["dray_transfers_accepted_total"]


def letters(agent):
    return sum(box["delivered"] for box in agent.ctl("mailboxes", "--json")["mailboxes"])


@pytest.mark.parametrize("length", [20, 64, 512, 2048])
def test_tokens_of_a_single_engine(two, length):
    p, d, agents = two
    (prompt, reference), = with_references(p, prompts(3, length, seed=length), 1)
    p_answers, d_answers = push(p, d, agents[0], prompts(1, length, seed=length + 1)[0], 1)  # the engines meet
    assert d_answers.get(timeout=4 * LIMIT)["tokens"] == p_answers.get(timeout=LIMIT)["tokens"]
    with Loaded(d) as loaded:
        p_answers, d_answers = push(p, d, agents[0], prompt, TOKENS)
        first, answer = p_answers.get(timeout=4 * LIMIT), d_answers.get(timeout=4 * LIMIT)
    same_tokens(reference, answer)
    assert first["tokens"] == reference["tokens"][:1]
    assert loaded.tokens == length
    assert answer["cached"] >= length - BLOCK
    nothing_left(*agents)


def test_chunks_are_written_before_the_last_is_computed(two):
    p, d, agents = two
    length = 5 * CHUNK
    before = transfers(agents[0])
    p_answers, d_answers = push(p, d, agents[0], prompts(1, length, seed=7)[0], 1)
    assert d_answers.get(timeout=4 * LIMIT)["tokens"] == p_answers.get(timeout=LIMIT)["tokens"]
    assert transfers(agents[0]) - before >= 2, "everything was written at once"
    nothing_left(*agents)


def test_parameters_of_the_answer(two):
    """A router that knows nothing of push copies them from P's answer into D's request."""
    p, d, agents = two
    (prompt, reference), = with_references(p, prompts(3, 300, seed=8), 1)
    first = p.run(prompt, 1, PREFILL)
    assert first["params"]["transfer_id"] and first["params"]["remote_engine_id"] == "p"
    with Loaded(d) as loaded:
        same_tokens(reference, d.run(prompt, TOKENS, first["params"]))
    assert loaded.tokens == 300
    nothing_left(*agents)


def test_announced_before_the_request(two):
    p, d, agents = two
    (prompt, reference), = with_references(p, prompts(3, 300, seed=9), 1)
    for_p, for_d = push_params(p, agents[0])
    before = letters(agents[0])
    with Loaded(d) as loaded:
        waits = d.start(prompt, TOKENS, for_d)
        until(lambda: letters(agents[0]) > before, "the announcement")
        p.run(prompt, 1, for_p)
        same_tokens(reference, waits.get(timeout=4 * LIMIT))
    assert loaded.tokens == 300
    nothing_left(*agents)


def test_prefix_that_d_has(two):
    p, d, agents = two
    (prompt, reference), = with_references(p, prompts(3, 400, seed=10), 1)
    d.run(prompt[:4 * BLOCK + 5], 1)
    with Loaded(d) as loaded:
        _, waits = push(p, d, agents[0], prompt, TOKENS)
        same_tokens(reference, waits.get(timeout=4 * LIMIT))
    assert loaded.tokens == 400 - 4 * BLOCK
    nothing_left(*agents)


def test_everything_that_d_has(two):
    """D wants nothing, and P keeps nothing."""
    p, d, agents = two
    prompt, = prompts(1, 4 * BLOCK, seed=11)
    assert d.run(prompt + [5], 1)
    with Loaded(d) as loaded:
        p_answers, waits = push(p, d, agents[0], prompt, 1)
        assert waits.get(timeout=4 * LIMIT)["tokens"] == p_answers.get(timeout=4 * LIMIT)["tokens"]
    assert loaded.tokens in (0, BLOCK)
    nothing_left(*agents)
    blocks_free(p)


def test_eight_at_once_with_a_shared_prefix(two):
    p, d, agents = two
    asked = with_references(p, prompts(12, 300, seed=1, shared=128), 4) + \
        with_references(p, prompts(12, 700, seed=2), 4)
    waits = [push(p, d, agents[0], prompt, TOKENS) for prompt, _ in asked]
    for (_, reference), (p_answers, d_answers) in zip(asked, waits):
        assert p_answers.get(timeout=4 * LIMIT)["tokens"] == reference["tokens"][:1]
        same_tokens(reference, d_answers.get(timeout=4 * LIMIT))
    nothing_left(*agents)
    for engine in (p, d):
        blocks_free(engine)


def blocks_free(engine):
    """The engine counts its blocks when it has ended a request, so that it gets one each time."""
    until(lambda: engine.run(prompts(1, 40)[0], 1) and not engine.metrics().get("vllm:kv_cache_usage_perc"),
          f"the blocks of {engine.name}", 2 * LIMIT)
