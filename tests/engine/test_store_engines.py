# SPDX-License-Identifier: Apache-2.0
"""Real engines whose blocks are in the store: others start with their prefixes, and give the tokens of an engine without any cache."""

import contextlib
import itertools
import os

import pytest
from bare import kept
from harness import LIMIT, Lab, counters, until
from rig import BLOCK, CLEAR, KV_BYTES, TOKENS, Engine, prompts, same_tokens, with_references

pytestmark = pytest.mark.long
LENGTHS = (320, 1024)
STORE = {"limits.store_bytes": "1GiB", "limits.store_bytes_per_owner": "1GiB", "limits.store_disk_bytes": "2GiB",
         "limits.store_disk_bytes_per_owner": "2GiB"}
ITS = "vllm:dray_store_"
# Ranks add up parts of each layer, which is rounded otherwise than at one rank.
RANKS_CLEAR = 1.5


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


def engine(lab, agent, name, kv_bytes=KV_BYTES, tensor_parallel_size=1, **options):
    connector = {"engine_id": name, "kv_load_failure_policy": "recompute", **kept(agent.socket, **{"weights": None, **options})}
    connector["kv_connector_extra_config"] = {k: v for k, v in connector["kv_connector_extra_config"].items() if v is not None}
    return Engine(lab.tmp, name, connector=connector, kv_cache_memory_bytes=kv_bytes, tensor_parallel_size=tensor_parallel_size)


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


def served(one, references, clear=CLEAR, ranks=1):
    """All prompts are loaded from the store, and their tokens are right."""
    before = one.metrics(ITS)
    answers = [one.run(prompt, TOKENS, logprobs=2) for prompt, _ in references]
    for (prompt, reference), answer in zip(references, answers):
        same_tokens(reference, answer, clear)
        assert answer["cached"] >= whole(prompt) - BLOCK
    after = one.metrics(ITS)
    wanted = sum(whole(prompt) for prompt, _ in references)
    assert after[f"{ITS}loaded_tokens"] - before.get(f"{ITS}loaded_tokens", 0) == wanted * ranks
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


def test_engines_of_other_tensor_parallel_sizes(lab, agent):
    """What an engine of one rank has saved is loaded by one of two, and the other way round."""
    made = [engine(lab, agent, "one-rank", parts=2), engine(lab, agent, "two-ranks", KV_BYTES // 2, parts=2, tensor_parallel_size=2)]
    try:
        for one in made:
            ready(one)
        for (first, ranks), (second, others) in itertools.permutations(zip(made, (1, 2))):
            before = first.metrics(ITS)
            pairs = with_references(first, prompts(80, 320, seed=7 + ranks), 2, RANKS_CLEAR)
            blocks = (first.metrics(ITS)[f"{ITS}asked_tokens"] - before.get(f"{ITS}asked_tokens", 0)) // BLOCK
            saved(first, before.get(f"{ITS}saved_blocks", 0) + blocks * ranks)
            served(second, pairs, RANKS_CLEAR, others)
    finally:
        for one in made:
            one.stop()


def test_from_an_agent_in_another_network_namespace(references):
    lab = Lab()
    try:
        lab.need_namespaces()
        common = STORE | {"store.spaces": f"kv=default:{os.getuid()}"}
        far, near = (lab.agent(name, host, key=lab.key, listen=(host.v4,), settings=common) for name, host in zip(("far", "near"), lab.hosts))
        far.settings["store.lend"] = "true"
        near.settings |= {"store.peers": far.listen[0], "store.peer_timeout": "10s"}
        far.start()
        near.start()
        with contextlib.ExitStack() as stack:
            first, second = (engine(lab, agent, agent.name, space="kv") for agent in (far, near))
            for one in (first, second):
                stack.callback(one.stop)
            ready(first)
            for prompt, reference in references:
                same_tokens(reference, first.run(prompt, TOKENS, logprobs=2))
            blocks = sum(len(prompt) // BLOCK for prompt, _ in references)
            saved(first, blocks)
            served(ready(second), references)
            assert counters(near)["dray_store_remote_hits_total"] == blocks
    finally:
        lab.close("DRAY_KEEP" in os.environ)


# --- more than memory has room for ----------------------------------------------------------------

CONVERSATIONS, TURNS, ENGINES = 12, 3, 4
BUSY_CLEAR = 2.0  # with so many requests in a step, an engine without the store has differed where a token was as clear as 1.19
SPILL = {"limits.store_bytes": "192MiB", "limits.store_bytes_per_owner": "192MiB", "limits.store_disk_bytes": "4GiB",
         "limits.store_disk_bytes_per_owner": "4GiB", "store.segment_size": "16MiB"}


@pytest.fixture(scope="module")
def conversations(lab):
    """[[(prompt, answer)] of a conversation]: each turn goes on from the answer before."""
    plain = Engine(lab.tmp, "plain-conversations", enable_prefix_caching=False)
    try:
        plain.ready()
        found = []
        for number in range(CONVERSATIONS):
            turns, before = [], []
            for turn in range(TURNS):
                asked = [before + more for more in prompts(40, 6 * BLOCK, seed=1000 * number + turn)]
                turns += with_references(plain, asked, 1, BUSY_CLEAR)
                before = [*turns[-1][0], *turns[-1][1]["tokens"]]
            found.append(turns)
        return found
    finally:
        plain.stop()


def test_conversations_of_four_engines_on_one_agent(lab, conversations):
    """The tier of memory has room for a part of them, and the engines' own caches for less. The turns of a conversation go to different
    engines, and all conversations take a turn at once."""
    agent = lab.agent("agent-spill", settings={**SPILL, "store.disk_dir": lab.directory("spill")}).start()
    with contextlib.ExitStack() as stack:
        stack.callback(agent.stop)
        made = [engine(lab, agent, f"engine-{n}", kv_bytes=128 << 20) for n in range(ENGINES)]
        for one in made:
            stack.callback(one.stop)
        for one in made:
            ready(one)
        for turn in range(TURNS):
            waits = [made[(number + turn) % ENGINES].start(turns[turn][0], TOKENS, logprobs=2) for number, turns in enumerate(conversations)]
            for turns, wait in zip(conversations, waits):
                same_tokens(turns[turn][1], wait.get(timeout=8 * LIMIT), BUSY_CLEAR)
            until(lambda: not counters(agent)["dray_store_disk_pending_bytes"], "the disk", 2 * LIMIT)
        after = [one.metrics(ITS) for one in made]
        found = counters(agent)
    assert found["dray_store_disk_hits_total"] > 0, "nothing came from the disk"
    assert not found["dray_store_disk_corrupt_total"] and not found["dray_store_disk_errors_total"]
    assert not any(metrics.get(f"{ITS}load_failures", 0) for metrics in after), after
    loaded = sum(metrics.get(f"{ITS}loaded_tokens", 0) for metrics in after)
    asked = sum(len(turns[turn][0]) // BLOCK * BLOCK for turns in conversations for turn in range(TURNS - 1))
    assert loaded > asked // 4, f"{loaded} tokens were loaded, of {asked} that could be"
