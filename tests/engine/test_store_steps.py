# SPDX-License-Identifier: Apache-2.0
"""DrayStoreConnector without a model: vLLM's real scheduler and a real agent. Blocks that are loaded hold what belongs there."""

import os
import signal
from types import SimpleNamespace

import pytest
from bare import BLOCK, CONTENT, HEADS, LAYERS, dray, kept, multi, prompt
from dray import Client, errors
from harness import until
from host_offloading import CONFIG as OFFLOADING
from vllm.config.kv_events import KVEventsConfig
from vllm.distributed.kv_events import MEDIUM_GPU, MEDIUM_STORAGE, BlockRemoved, BlockStored

STORE = {"limits.store_bytes": "16MiB", "limits.store_bytes_per_owner": "16MiB", "store.segment_size": "2MiB",
         "limits.store_disk_bytes": "64MiB", "limits.store_disk_bytes_per_owner": "64MiB"}
BLOCK_BYTES = BLOCK * LAYERS * HEADS * CONTENT * 2


@pytest.fixture(scope="module")
def agent(lab):
    started = lab.agent("agent-store", settings=STORE | {"store.disk_dir": lab.directory("disk")}).start()
    yield started
    started.stop()


def store_of(connector):
    """The DrayStoreConnector of an engine, alone or as a child."""
    return next(one for one in getattr(connector, "_connectors", [connector]) if type(one).__name__ == "DrayStoreConnector")


def side(engine):
    return store_of(engine.scheduler.connector)._scheduler


def served(engine, tokens, count=2, reason="LENGTH"):
    """Runs a request to its end. Returns what the engine has counted meanwhile, when nothing is left of it."""
    before = engine.counts()
    assert engine.run(engine.add(tokens, tokens=count))[0] == reason
    ended(engine)
    after = engine.counts()
    return {name: value - before[name] if isinstance(value, int) else value for name, value in after.items()}


def ended(engine):
    engine.idle()
    until(lambda: engine.step() or side(engine).idle and store_of(engine.worker)._worker.idle, f"nothing left at {engine.name}")


def fresh(engine):
    """The engine forgets what its own cache has."""
    assert engine.scheduler.reset_prefix_cache()


def test_engines_share_blocks(bare, agent):
    first, second = bare("first", kept(agent.socket)), bare("second", kept(agent.socket))
    text = prompt(5 * BLOCK + 7, 1)
    counts = served(first, text)
    assert (counts["asked_tokens"], counts["hit_tokens"]) == (5 * BLOCK, 0)
    assert (counts["saved_blocks"], counts["saved_bytes"]) == (5, 5 * BLOCK_BYTES)
    counts = served(second, text)
    assert (counts["hit_tokens"], counts["loaded_tokens"], counts["loaded_bytes"]) == (5 * BLOCK, 5 * BLOCK, 5 * BLOCK_BYTES)
    assert counts["saved_blocks"] == counts["existing_blocks"] == 0, "what was loaded is not saved again"

    # a part of the prompt, in whole blocks, behind what the engine has itself
    other = [*text[:3 * BLOCK + 5], *prompt(2 * BLOCK, 2)]
    fresh(second)
    counts = served(second, other)
    assert (counts["asked_tokens"], counts["hit_tokens"], counts["saved_blocks"]) == (5 * BLOCK, 3 * BLOCK, 2)
    counts = served(second, text)
    assert (counts["asked_tokens"], counts["hit_tokens"]) == (2 * BLOCK, 2 * BLOCK)

    # a whole prompt; and what was generated
    fresh(second)
    assert served(second, text[:4 * BLOCK])["hit_tokens"] == 4 * BLOCK
    counts = served(first, prompt(BLOCK, 3), count=2 * BLOCK)
    assert counts["saved_blocks"] == 2
    assert served(second, [*prompt(BLOCK, 3), *[7] * BLOCK, 1])["hit_tokens"] == 2 * BLOCK

    # another epoch finds nothing, and is not found
    side(second).reset()
    fresh(second)
    assert served(second, text)["hit_tokens"] == 0
    assert served(second, prompt(2 * BLOCK, 4))["saved_blocks"] == 2
    assert served(first, prompt(2 * BLOCK, 4))["hit_tokens"] == 0


def test_blocks_in_parts(bare, agent):
    """Each part is an object, and each block counts once."""
    first, second, whole = (bare(name, kept(agent.socket, parts=parts)) for name, parts in (("first", HEADS), ("second", HEADS), ("whole", 0)))
    text = prompt(5 * BLOCK, 5)
    counts = served(first, text)
    assert (counts["saved_blocks"], counts["saved_bytes"], counts["existing_blocks"]) == (5, 5 * BLOCK_BYTES, 0)
    found = served(second, text)
    assert (found["hit_tokens"], found["loaded_blocks"], found["loaded_bytes"]) == (5 * BLOCK, 5, 5 * BLOCK_BYTES)
    assert served(whole, text)["hit_tokens"] == 0, "other objects"

    # a part that is gone is saved again with its block, whose other part is there
    fresh(second)
    request_id = second.add(text)
    assert until(lambda: side(second).match(second.scheduler.requests[request_id], 0)[0], "the answer") == 5 * BLOCK
    with Client(agent.socket) as client:
        client.store().remove(side(second)._loads[request_id].lookup.keys()[:1])
    assert second.run(request_id)[0] == "ERROR"
    ended(second)
    counts = served(second, text)
    assert (counts["hit_tokens"], counts["saved_blocks"], counts["saved_bytes"], counts["existing_blocks"]) == (0, 1, BLOCK_BYTES // HEADS, 0)


@pytest.mark.parametrize(("reach", "found"), [({"window": BLOCK}, 4 * BLOCK), ({"window": BLOCK + 1}, 3 * BLOCK), ({"chunk": 2 * BLOCK}, BLOCK)])
def test_what_the_last_token_of_the_prompt_looks_at(bare, agent, reach, found):
    """The engine computes that token in any case, and it looks further back than the one behind it."""
    first, second = bare("first", kept(agent.socket), **reach), bare("second", kept(agent.socket), **reach)
    text = prompt(4 * BLOCK, 5)
    served(first, text[:3 * BLOCK + 1])
    served(first, text)
    assert served(second, text)["hit_tokens"] == found


def test_objects_that_are_gone(bare, agent):
    """A load that fails ends its request, or lets it compute, as vLLM's policy says."""
    first, failing = bare("first", kept(agent.socket)), bare("failing", kept(agent.socket))
    computing = bare("computing", kept(agent.socket), policy="recompute")
    with Client(agent.socket) as client:
        for engine, reason, seed in ((failing, "ERROR", 10), (computing, "LENGTH", 11)):
            text = prompt(4 * BLOCK, seed)
            served(first, text)
            request_id = engine.add(text)
            request = engine.scheduler.requests[request_id]
            assert until(lambda: side(engine).match(request, 0)[0], "the answer") == 4 * BLOCK
            client.store().remove(side(engine)._loads[request_id].lookup.keys()[1:2])
            assert engine.run(request_id)[0] == reason
            ended(engine)
            assert engine.counts()["load_failures"] == {"not_found": 1}
    counts = computing.counts()
    assert (counts["saved_blocks"], counts["existing_blocks"]) == (1, 3)


def test_matched_blocks_are_not_evicted(bare, agent):
    first, second = bare("first", kept(agent.socket)), bare("second", kept(agent.socket))
    text = prompt(4 * BLOCK, 20)
    served(first, text)
    request_id = second.add(text)
    request = second.scheduler.requests[request_id]
    assert until(lambda: side(second).match(request, 0)[0], "the answer") == 4 * BLOCK
    with Client(agent.socket) as client:
        store = client.store()
        agent.ctl("store", "--evict", "16MiB", "--owner", "default:0")
        keys = side(second)._loads[request_id].lookup.keys()
        assert store.exists(keys) and agent.ctl("status", "--json")["counters"]["dray_store_held_bytes"] >= 4 * BLOCK_BYTES
    assert second.run(request_id)[0] == "LENGTH"
    ended(second)
    assert second.counts()["loaded_tokens"] == 4 * BLOCK
    until(lambda: not agent.ctl("status", "--json")["counters"]["dray_store_held_bytes"], "the end of the pins")


def test_agent_that_is_stopped_and_killed(bare, agent):
    """No request waits for it longer than the option allows, saves are dropped, and everything goes on when it is back."""
    engine = bare("engine", kept(agent.socket, lookup=0.2), policy="recompute")
    text = prompt(3 * BLOCK, 30)
    served(engine, text)
    fresh(engine)
    agent.signal(signal.SIGSTOP)
    try:
        for seed in (30, 31, 32):
            assert engine.run(engine.add(prompt(3 * BLOCK, seed)))[0] == "LENGTH"
        assert engine.counts()["hit_tokens"] == 0
    finally:
        agent.signal(signal.SIGCONT)
    ended(engine)
    until(lambda: agent.ctl("status", "--json")["counters"]["dray_store_disk_pending_bytes"] == 0, "the disk")
    agent.kill()
    assert engine.run(engine.add(prompt(3 * BLOCK, 33)))[0] == "LENGTH"
    agent.start()
    assert engine.run(engine.add(prompt(3 * BLOCK, 34)))[0] == "LENGTH"
    ended(engine)
    assert sum(engine.counts()["dropped_blocks"].values()) >= 3
    until(lambda: fresh(engine) or served(engine, text)["hit_tokens"] == 3 * BLOCK, "a hit from the disk")
    assert served(engine, prompt(3 * BLOCK, 35))["saved_blocks"] == 3


@pytest.mark.parametrize("how", ["alone", "a child"])
def test_blocks_that_the_engine_loses(bare, agent, how):
    """With the policy 'eviction' a block is saved before the engine's own cache loses it, and not earlier."""
    saving = kept(agent.socket, save="eviction")
    first = bare("first", saving if how == "alone" else multi(dray(agent.socket), saving))
    texts = [prompt(5 * BLOCK + 7, f"{how} {i}") for i in range(9)]
    for text in texts[:4]:
        assert served(first, text)["saved_blocks"] == 0, "the engine has more free blocks than a step takes"
    for text in texts[4:]:
        served(first, text)
    counts = first.counts()
    assert 20 <= counts["saved_blocks"] < 45 and not counts["dropped_blocks"]
    counts = served(first, texts[0])
    assert counts["loaded_tokens"] == counts["asked_tokens"] >= 4 * BLOCK, "all that the engine does not have itself"
    assert served(bare("second", kept(agent.socket)), texts[1])["hit_tokens"] == 5 * BLOCK


def test_loads_leave_no_hole_in_what_the_engine_loses(bare, agent):
    """A load takes many blocks at once. What they hold is saved before."""
    text = prompt(24 * BLOCK + 1, 60)
    served(bare("source", kept(agent.socket)), text)
    first, second = bare("first", kept(agent.socket, save="eviction")), bare("second", kept(agent.socket))
    others = [prompt(12 * BLOCK, f"lost {i}") for i in range(3)]
    for one in others:
        served(first, one)
    counts = served(first, text)
    assert counts["loaded_tokens"] == 24 * BLOCK and not first.counts()["dropped_blocks"]
    for one in others:
        counts = served(first, one)
        assert counts["loaded_tokens"] == counts["asked_tokens"], "what the engine has lost is in the store"
    assert served(second, others[0])["hit_tokens"] == 12 * BLOCK and not first.counts()["dropped_blocks"]


def publishing(bare, agent, name):
    """An engine, and the events that it publishes."""
    engine = bare(name, kept(agent.socket), policy="recompute", kv_events_config=KVEventsConfig(enable_kv_cache_events=True, publisher="null"))
    events = []
    engine.scheduler.kv_event_publisher = SimpleNamespace(publish=lambda batch: events.extend(batch.events), shutdown=lambda: None)
    return engine, events


def in_store(events, kind):
    """The hashes of the store's blocks that events name."""
    return [one_hash for one in events if isinstance(one, kind) and one.medium == MEDIUM_STORAGE for one_hash in one.block_hashes]


def matched(engine, text):
    """A request that has a hit. Returns its id, and the keys of its blocks."""
    request_id = engine.add(text)
    assert until(lambda: side(engine).match(engine.scheduler.requests[request_id], 0)[0], "the answer")
    return request_id, side(engine)._loads[request_id].lookup.keys()


def test_events_of_what_a_load_does_not_find(bare, agent):
    """A block is removed if the store says that it is gone, and not because the load has failed for another one."""
    engine, events = publishing(bare, agent, "engine")
    text = prompt(4 * BLOCK + 5, 71)
    served(engine, text)
    stored = in_store(events, BlockStored)
    assert len(stored) == 4
    fresh(engine)
    request_id, keys = matched(engine, text)
    with Client(agent.socket) as client:
        client.store().remove(keys[1:2])
    events.clear()
    assert engine.run(request_id)[0] == "LENGTH"
    ended(engine)
    assert engine.counts()["load_failures"] == {"not_found": 1}
    assert in_store(events, BlockRemoved) == stored[1:2] == in_store(events, BlockStored), "it is saved again"


def test_events_of_what_a_question_finds(bare, agent):
    """What another engine has saved is announced, and what lies behind a gap stays announced."""
    (first, _), (second, events) = publishing(bare, agent, "first"), publishing(bare, agent, "second")
    text = prompt(4 * BLOCK + 5, 72)
    served(first, text)
    served(second, text)
    stored = [one for one in events if isinstance(one, BlockStored) and one.medium == MEDIUM_STORAGE]
    own = [one for one in events if isinstance(one, BlockStored) and one.medium == MEDIUM_GPU]
    hashes = [one_hash for one in own for one_hash in one.block_hashes]
    assert [one.block_hashes[0] for one in stored] == hashes and len(hashes) == 4
    assert [one.parent_block_hash for one in stored] == [None, *hashes[:3]] and [t for one in stored for t in one.token_ids] == text[:4 * BLOCK]
    request_id, keys = matched(first, [*text[:4 * BLOCK], 5])
    first.abort(request_id)
    ended(first)
    with Client(agent.socket) as client:
        client.store().remove(keys[1:2])
    fresh(second)
    events.clear()
    assert served(second, text)["hit_tokens"] == BLOCK
    assert in_store(events, BlockRemoved) == hashes[1:2] == in_store(events, BlockStored)


def test_no_events_of_a_load_that_is_late(bare, agent):
    engine, events = publishing(bare, agent, "engine")
    text = prompt(3 * BLOCK + 5, 73)
    served(engine, text)
    fresh(engine)
    events.clear()
    request_id, _ = matched(engine, text)
    worker = store_of(engine.worker)._worker
    worker._get = lambda items, deadline: (_ for _ in ()).throw(errors.Deadline("too late"))
    assert engine.run(request_id)[0] == "LENGTH"
    ended(engine)
    assert engine.counts()["load_failures"] == {"deadline": 1} and not in_store(events, BlockRemoved)


def test_events(bare, agent):
    """What the store has, and what it does not have any more, in the terms of the engine's own events."""
    engine, events = publishing(bare, agent, "engine")
    text = prompt(2 * BLOCK + 5, 70)
    served(engine, text)
    stored = [one for one in events if isinstance(one, BlockStored) and one.medium == MEDIUM_STORAGE]
    own = [one_hash for one in events if isinstance(one, BlockStored) and one.medium == MEDIUM_GPU for one_hash in one.block_hashes]
    assert [one.block_hashes for one in stored] == [[own[0]], [own[1]]]
    assert [one.parent_block_hash for one in stored] == [None, own[0]]
    assert [token for one in stored for token in one.token_ids] == text[:2 * BLOCK] and stored[0].block_size == BLOCK

    fresh(engine)
    request_id = engine.add(text)
    assert until(lambda: side(engine).match(engine.scheduler.requests[request_id], 0)[0], "the answer") == 2 * BLOCK
    with Client(agent.socket) as client:
        client.store().remove(side(engine)._loads[request_id].lookup.keys())
    events.clear()
    assert engine.run(request_id)[0] == "LENGTH"
    ended(engine)
    assert [one.block_hashes for one in events if isinstance(one, BlockRemoved) and one.medium == MEDIUM_STORAGE] == [[own[0]], [own[1]]]
    assert len([one for one in events if isinstance(one, BlockStored) and one.medium == MEDIUM_STORAGE]) == 2, "they are saved again"


def test_beside_drayconnector(bare, agent):
    """P loads a prefix from the store, and D gets all of the request from P."""
    both = multi(dray(agent.socket), kept(agent.socket))
    first, p, d = bare("first", both), bare("p", both), bare("d", both)
    text = prompt(4 * BLOCK + 3, 40)
    assert served(first, text)["saved_blocks"] == 4
    params = p.offer(text)
    assert p.counts()["loaded_tokens"] == 4 * BLOCK and not p.loaded()
    assert d.run(d.add(text, tokens=3, params=params))[0] == "LENGTH"
    assert d.loaded() == len(text) and not d.counts()["loaded_tokens"]
    ended(p)
    ended(d)


@pytest.mark.parametrize("first", [True, False])
def test_beside_offloading(bare, agent, first):
    children = [kept(agent.socket), OFFLOADING]
    config = multi(*(children if first else reversed(children)))
    one, other = bare("one", config), bare("other", config)
    text = prompt(4 * BLOCK + 3, 50 + first)
    assert served(one, text)["saved_blocks"] == 4
    assert served(other, text)["loaded_tokens"] == 4 * BLOCK
    fresh(one)
    assert served(one, text)["loaded_tokens"] == (4 * BLOCK if first else 0), "the first child that has blocks loads them"


def test_evictions_of_no_cache_are_refused(bare, agent):
    with pytest.raises(errors.Unsupported, match="none without prefix caching"):
        bare("engine", kept(agent.socket, save="eviction"), enable_prefix_caching=False)


@pytest.mark.parametrize("settings, options, error, message", [
    ({}, {}, errors.Unsupported, "limits.store_bytes"), (STORE, {"space": "other"}, errors.Denied, "store.spaces")])
def test_refused_at_the_start(bare, lab, settings, options, error, message):
    agent = lab.agent("agent-refuses", settings=settings).start()
    try:
        with pytest.raises(error, match=message):
            bare("engine", kept(agent.socket, **options))
    finally:
        agent.stop()


# --- other agents -------------------------------------------------------------------------------------

@pytest.fixture
def neighbours(lab):
    """An agent with objects, and one that asks it."""
    common = STORE | {"store.spaces": f"kv=default:{os.getuid()}"}
    common = {key: value for key, value in common.items() if "disk" not in key}
    far = lab.agent("far", settings=common | {"store.lend": "true"}, args=["--allow-insecure"]).start()
    # an agent that gets no processor is silent, too, and a request finds nothing there then
    near = lab.agent("near", settings=common | {"store.peers": far.listen[0], "store.peer_timeout": "10s"}, args=["--allow-insecure"]).start()
    until(lambda: any(p["state"] == "ready" for p in near.ctl("peers", "--json")["peers"]), "the connection")
    yield far, near
    for agent in (near, far):
        agent.stop()


def lent(agent):
    return agent.ctl("status", "--json")["counters"]["dray_store_lent_bytes"]


def test_blocks_of_another_agent(bare, neighbours):
    """What the other agent has is promised, and stays there until it is loaded."""
    far, near = neighbours
    first, second = bare("first", kept(far.socket, space="kv")), bare("second", kept(near.socket, space="kv"))
    text = prompt(5 * BLOCK + 7, 40)
    served(first, text)
    request_id = second.add(text)
    request = second.scheduler.requests[request_id]
    assert until(lambda: side(second).match(request, 0)[0], "the answer") == 5 * BLOCK
    assert lent(far) >= 5 * BLOCK_BYTES
    far.ctl("store", "--evict", "16MiB", "--space", "kv")
    assert second.run(request_id)[0] == "LENGTH"
    ended(second)
    counts = second.counts()
    assert (counts["hit_tokens"], counts["loaded_tokens"], counts["saved_blocks"]) == (5 * BLOCK, 5 * BLOCK, 0)
    until(lambda: lent(far) == 0, "the end of the leases")
    # a part that is here now, and a part that is there
    longer = [*text[:5 * BLOCK], *prompt(2 * BLOCK, 41)]
    served(first, longer)
    fresh(second)
    assert served(second, longer)["hit_tokens"] == 7 * BLOCK
    until(lambda: lent(far) == 0, "the end of the leases")


def test_requests_that_end_before_the_load_of_another_agents_blocks(bare, neighbours):
    far, near = neighbours
    first, second = bare("first", kept(far.socket, space="kv")), bare("second", kept(near.socket, space="kv"))
    text = prompt(3 * BLOCK + 1, 42)
    served(first, text)
    request_id = second.add(text)
    request = second.scheduler.requests[request_id]
    assert until(lambda: side(second).match(request, 0)[0], "the answer") == 3 * BLOCK
    assert lent(far) >= 3 * BLOCK_BYTES
    second.abort(request_id)
    ended(second)
    until(lambda: lent(far) == 0, "the end of the leases")


def test_another_agent_is_lost_before_the_load(bare, neighbours):
    """The engine computes what was promised."""
    far, near = neighbours
    first = bare("first", kept(far.socket, space="kv"))
    second = bare("second", kept(near.socket, space="kv"), policy="recompute")
    text = prompt(4 * BLOCK + 1, 43)
    served(first, text)
    request_id = second.add(text)
    request = second.scheduler.requests[request_id]
    assert until(lambda: side(second).match(request, 0)[0], "the answer") == 4 * BLOCK
    far.kill()
    assert second.run(request_id)[0] == "LENGTH"
    ended(second)
    counts = second.counts()
    assert sum(counts["load_failures"].values()) == 1 and counts["saved_blocks"] == 4
    far.restart()
