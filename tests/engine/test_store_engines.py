# SPDX-License-Identifier: Apache-2.0
"""Real engines whose blocks are in the store: others start with their prefixes, and give the tokens of an engine without any cache."""

import pytest
from bare import kept
from harness import LIMIT, until
from rig import BLOCK, TOKENS, Engine, prompts, same_tokens, with_references

pytestmark = pytest.mark.long
LENGTHS = (320, 1024)
STORE = {"limits.store_bytes": "1GiB", "limits.store_bytes_per_owner": "1GiB", "limits.store_disk_bytes": "2GiB",
         "limits.store_disk_bytes_per_owner": "2GiB"}
ITS = "vllm:dray_store_"


@pytest.fixture(scope="module")
def agent(lab):
    started = lab.agent("agent-store", settings={**STORE, "store.disk_dir": lab.directory("disk")}).start()
    yield started
    started.stop()


@pytest.fixture(scope="module")
def references(lab):
    """[(prompt, answer)] of an engine that keeps nothing, not even in its own cache."""
    plain = Engine(lab.tmp, "plain", enable_prefix_caching=False)
    try:
        plain.ready()
        return [pair for length in LENGTHS for pair in with_references(plain, prompts(40, length, seed=length), 2)]
    finally:
        plain.stop()


def engine(lab, agent, name, **options):
    connector = {"engine_id": name, "kv_load_failure_policy": "recompute", **kept(agent.socket, **{"weights": None, **options})}
    connector["kv_connector_extra_config"] = {k: v for k, v in connector["kv_connector_extra_config"].items() if v is not None}
    return Engine(lab.tmp, name, connector=connector)


def ready(one):
    """The engine serves, and knows the digest of its weights: before that it asks for nothing, and saves nothing."""
    one.ready()
    until(lambda: "the weights are sha256" in one.log.read_text(errors="replace"), "the digest of the weights")
    return one


def whole(prompt):
    """Tokens of a prompt in whole blocks."""
    return len(prompt) // BLOCK * BLOCK


def saved(one, blocks):
    def enough():
        metrics = one.metrics(ITS)
        # a step that follows takes the end of the saves
        return metrics.get(f"{ITS}saved_blocks", 0) >= blocks or one.run(prompts(1, 20)[0], 1) and False
    until(enough, f"{blocks} saved blocks", 2 * LIMIT)


def served(one, references):
    """All prompts are loaded from the store, and their tokens are right."""
    before = one.metrics(ITS)
    answers = [one.run(prompt, TOKENS, logprobs=2) for prompt, _ in references]
    for (prompt, reference), answer in zip(references, answers):
        same_tokens(reference, answer)
        assert answer["cached"] >= whole(prompt) - BLOCK
    after = one.metrics(ITS)
    wanted = sum(whole(prompt) for prompt, _ in references)
    assert after[f"{ITS}loaded_tokens"] - before.get(f"{ITS}loaded_tokens", 0) == wanted
    assert not after.get(f"{ITS}load_failures", 0)


def test_from_memory_and_from_disk(lab, agent, references):
    first = engine(lab, agent, "first")
    second = engine(lab, agent, "second")
    try:
        ready(first)
        for prompt, reference in references:
            same_tokens(reference, first.run(prompt, TOKENS, logprobs=2))
        saved(first, sum(len(prompt) // BLOCK for prompt, _ in references))
        served(ready(second), references)
    finally:
        first.stop()
        second.stop()
    agent.stop()
    agent.start()
    third = engine(lab, agent, "third")
    try:
        served(ready(third), references)
    finally:
        third.stop()
    assert agent.ctl("status", "--json")["counters"]["dray_store_disk_hits_total"] >= len(references)
