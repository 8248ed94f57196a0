# SPDX-License-Identifier: Apache-2.0
"""Prefill at one engine, which writes the blocks to another one as soon as they are computed.

Tokens equal those of a single engine, blocks are loaded, not computed, and each block at D holds the bytes that P has computed.
"""

import pytest
import recording
from harness import LIMIT, ROOT, until
from rig import (BLOCK, PREFILL, TOKENS, Engine, blocks_free, labels, letters, nothing_left, prompts, push, push_params, same_tokens,
                 sure, transfers, until_sure, with_references)

CHUNK = 500  # tokens that P computes in a step; not a multiple of the block size
pytestmark = pytest.mark.long
LOADED = "vllm:dray_loaded_tokens"


@pytest.fixture(scope="module")
def two(lab):
    """P and D with an agent each, over TCP. D never sees a prompt before its request comes from the router."""
    agents = [lab.agent(name, key=lab.key).start() for name in ("agent-p", "agent-d")]
    (lab.tmp / "record").mkdir()
    options = {"mode": "push", "deadline": 4 * LIMIT}  # P computes slowly on a machine that builds beside the test
    environment = {"RECORD": str(lab.tmp / "record"), "PYTHONPATH": f"{ROOT}/client/python:{ROOT}/tests/engine"}

    def engine(name, role, agent, **arguments):
        return Engine(lab.tmp, name, variables=environment, **arguments, connector={
            "kv_connector": "RecordingConnector", "kv_connector_module_path": "recording", "kv_role": role, "engine_id": name,
            "kv_load_failure_policy": "fail", "kv_connector_extra_config": {"socket": str(agent.socket), **options}})

    p = engine("p", "kv_producer", agents[0], max_num_batched_tokens=CHUNK)
    d = engine("d", "kv_consumer", agents[1])
    try:
        yield p.ready(), d.ready(), agents
    finally:
        p.stop()
        d.stop()


@pytest.fixture(autouse=True)
def same_bytes(two, lab):
    """After each test: D has what P has computed."""
    yield
    print("loads whose bytes are equal:", recording.check(lab.tmp / "record"))


class Loaded:
    """Counts the tokens that D loads inside of the context."""

    def __init__(self, d):
        self.d, self.tokens = d, None

    def __enter__(self):
        self.before = self.d.metrics().get(LOADED, 0)
        return self

    def __exit__(self, *_):
        self.tokens = self.d.metrics().get(LOADED, 0) - self.before


def run(p, d, agent, asked, tokens=TOKENS):
    """Sends prompts to both engines at once; returns the answers of P and D to each."""
    return [[waits.get(timeout=4 * LIMIT) for waits in both] for both in [push(p, d, agent, prompt, tokens) for prompt in asked]]


def as_alone(p, asked, answers):
    """The tokens are those of P alone, which is asked afterwards, because it would have the blocks otherwise. Returns its answers."""
    references = [waits.get(timeout=4 * LIMIT) for waits in [p.start(prompt, TOKENS, logprobs=2) for prompt in asked]]
    for reference, answer in zip(references, answers):
        same_tokens(reference, answer)
    return references


@pytest.mark.parametrize("length", [20, 64, 512, 2048])
def test_tokens_of_a_single_engine(two, length):
    p, d, agents = two

    def one_round(seed):
        asked = prompts(3 if length < 2048 else 1, length, seed=f"{length} {seed}")
        with Loaded(d) as loaded:
            answers = run(p, d, agents[0], asked)
        references = as_alone(p, asked, [answer for _, answer in answers])
        assert loaded.tokens == len(asked) * length
        for reference, (first, answer) in zip(references, answers):
            # P computed the prompt in chunks, which round in another way
            assert first["tokens"] == answer["tokens"][:1] or not sure(reference)
            assert answer["cached"] >= length - BLOCK
            assert any(label.startswith(first["id"]) for label in labels(agents[0]))  # the engine adds to it
        return references

    until_sure(one_round)
    nothing_left(*agents)


def test_tokens_depend_on_the_blocks(two):
    """The check of this file would notice other blocks: those of another prompt give other tokens."""
    p, d, agents = two
    (prompt, reference), = with_references(p, prompts(40, 96, seed=5), 1)
    for_p, for_d = push_params(p, agents[0])
    waits = d.start(prompt, TOKENS, for_d)
    p.run(prompts(1, 96, seed=6)[0], 1, for_p)
    assert waits.get(timeout=4 * LIMIT)["tokens"] != reference["tokens"]
    nothing_left(*agents)


def test_chunks_are_written_before_the_last_is_computed(two):
    p, d, agents = two
    before = transfers(agents[0])
    run(p, d, agents[0], prompts(1, 5 * CHUNK, seed=7), 1)
    assert transfers(agents[0]) - before >= 2, "everything was written at once"
    nothing_left(*agents)


def test_parameters_of_the_answer(two):
    """A router that knows nothing of push copies them from P's answer into D's request."""
    p, d, agents = two

    def one_round(seed):
        asked = prompts(3, 300, seed=f"answer {seed}")
        with Loaded(d) as loaded:
            firsts = [p.run(prompt, 1, PREFILL) for prompt in asked]
            assert all(first["params"]["transfer_id"] and first["params"]["remote_engine_id"] == "p" for first in firsts)
            answers = [d.run(prompt, TOKENS, first["params"]) for prompt, first in zip(asked, firsts)]
        assert loaded.tokens == 3 * 300
        return as_alone(p, asked, answers)

    until_sure(one_round)
    nothing_left(*agents)


def test_announced_before_the_request(two):
    p, d, agents = two
    prompt, = prompts(1, 300, seed=9)
    for_p, for_d = push_params(p, agents[0])
    before = letters(agents[0])
    with Loaded(d) as loaded:
        waits = d.start(prompt, 1, for_d)
        until(lambda: letters(agents[0]) > before, "the announcement")
        first = p.run(prompt, 1, for_p)
        assert waits.get(timeout=4 * LIMIT)["tokens"] == first["tokens"]
    assert loaded.tokens == 300
    nothing_left(*agents)


def test_prefix_that_d_has(two):
    p, d, agents = two

    def one_round(seed):
        asked = prompts(3, 400, seed=f"prefix {seed}")
        for prompt in asked:
            d.run(prompt[:4 * BLOCK + 5], 1)
        with Loaded(d) as loaded:
            answers = run(p, d, agents[0], asked)
        assert loaded.tokens == 3 * (400 - 4 * BLOCK)
        return as_alone(p, asked, [answer for _, answer in answers])

    until_sure(one_round)
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

    def one_round(seed):
        asked = prompts(4, 300, seed=f"shared {seed}", shared=128) + prompts(4, 700, seed=f"other {seed}")
        return as_alone(p, asked, [answer for _, answer in run(p, d, agents[0], asked)])

    until_sure(one_round)
    nothing_left(*agents)
    for engine in (p, d):
        blocks_free(engine)
