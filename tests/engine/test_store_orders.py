# SPDX-License-Identifier: Apache-2.0
"""vLLM's real scheduler, DrayStoreConnector, and random orders of hits, misses, aborts, preemptions, evictions and agents that die.

Everything ends, exactly once, nothing is left, and no request computes with other blocks than its own. The scheduler asserts by itself
that no end is reported for a request that it does not know.
"""

import os
import random

import model
import pytest
from dray.store import Status, StoreResult
from dray.vllm.store import lookup, scheduler
from harness import ROOT
from store_world import HEADS, World
from test_orders import prompts
from world import BLOCK, BLOCKS, RANKS

ORDERS = int(os.environ.get("DRAY_ORDERS", 2500 if "DRAY_LONG" in os.environ else 12))  # for each policy


@pytest.fixture(params=["recompute-always", "fail-always", "recompute-second_use", "fail-eviction", "recompute-always-parts"])
def world(request, monkeypatch):
    policy, save, *parts = request.param.split("-")
    monkeypatch.setattr(lookup, "_KEYS_MAX", 5 if parts else 3)  # of a batch, so that most questions have several
    made = World(monkeypatch, str(model.make(ROOT / "build/engine-model")), policy, random.Random(), HEADS if parts else 1, save=save)
    if save == "eviction":
        made.side.side._saves._evictions._ahead = BLOCKS  # so that what is free is saved at once
    return made


def one_order(world, seed):
    chance = world.random = random.Random(seed)
    engine = world.side
    engine.answers.clear()
    engine.side._store.space = chance.choice(("", "kv"))  # with a name other agents are asked, too
    wanted = prompts(chance, [f"{seed}-{i}" for i in range(chance.randrange(1, 7))])
    # the same prompts again, for which the store may have something
    starts = [(name, text) for name, text in wanted.items()] + [(f"{name}-again", text) for name, text in wanted.items()
                                                                if chance.random() < 0.8]
    started = []
    rough = chance.random() < 0.5  # otherwise the agent does not die, and no time passes
    for _ in range(chance.randrange(10, 120)):
        what = chance.random() if rough else chance.random() * 0.9
        if what < 0.4:
            engine.step()
        elif what < 0.7 and world.pending:
            world.happen(chance.randrange(len(world.pending)))
        elif what < 0.74 and started:
            engine.abort(chance.choice(started))
        elif what < 0.8:
            world.evict()
        elif what < 0.84:
            engine.preempt()
        elif what < 0.88:
            world.seen["own cache lost"] += engine.scheduler.reset_prefix_cache()
        elif what < 0.9:
            world.seen["epochs"] += engine.scheduler.connector.reset_cache()
        elif what < 0.93 and world.up:
            world.kill_agent()
        elif what < 0.97 and not world.up:
            world.restart_agent()
        elif what < 0.99:
            world.now += chance.choice((0.3, 1, 40))
        if starts and chance.random() < 0.4:
            name, text = starts.pop(0)
            started.append(name)
            engine.add(name, text, chance.randrange(1, 40), None)
        world.check()
    world.settle()
    assert all(name in engine.answers or name not in engine.scheduler.requests for name in started)


EVERYTHING = {
    "OK", "EXISTS", "NOT_FOUND", "BUSY", "leased", "fetched", "leases lost", "CORRUPT", "LOST", "evicted", "killed", "broken", "own cache lost", "epochs", "engine aborted WAITING",
    "engine aborted WAITING_FOR_REMOTE_KVS", "engine aborted RUNNING", "engine finished LENGTH", "engine preempted"}


def test_orders(world):
    for seed in range(ORDERS):
        try:
            one_order(world, seed)
        except BaseException as e:
            raise AssertionError(f"seed {seed}") from e
    if ORDERS >= 1000:
        rare = {"CORRUPT", "LOST", "leased", "fetched", "leases lost"} if world.side.side._options.save == "eviction" else set()  # what is saved so is seldom loaded again here
        missing = [what for what in EVERYTHING - rare if not world.seen[what]]
        assert not missing, f"never seen: {missing}; seen: {world.seen}"


# --- one order ----------------------------------------------------------------------------------------

@pytest.fixture
def calm(monkeypatch):
    """Nothing fails by chance."""
    world = World(monkeypatch, str(model.make(ROOT / "build/engine-model")), "recompute", random.Random(1))
    world.chance, world.elapse = lambda: 0.5, lambda: None
    return world


def until_pending(world, what):
    """Steps until something is in flight, and lets everything else end."""
    for _ in range(50):
        if any(one.what == what for one in world.pending):
            return
        while world.pending:
            world.happen(0)
        world.side.step()
    raise AssertionError(f"no {what}")


def test_loads_of_another_epoch_are_not_saved(calm):
    text = list(range(3, 3 + 3 * BLOCK))
    calm.side.add("a", text, 2, None)
    calm.settle()
    kept = set(calm.objects)
    assert len(kept) == 3 * RANKS and calm.side.scheduler.reset_prefix_cache()
    calm.side.add("b", text + [5] * BLOCK, 2, None)
    until_pending(calm, "get")
    calm.side.scheduler.connector.reset_cache()
    calm.settle()
    assert set(calm.objects) == kept, "blocks of the old weights got the key of the new epoch"


def matched(world):
    """A request that has a hit and waits for blocks."""
    text = list(range(3, 3 + 3 * BLOCK))
    world.side.add("a", text, 2, None)
    world.settle()
    assert world.side.scheduler.reset_prefix_cache()
    world.side.add("b", text + [5], 2, None)
    until_pending(world, "pin")
    while world.pending:
        world.happen(0)
    return world.side.scheduler.requests["b"]


def test_hits_end_with_the_session(calm):
    request, side = matched(calm), calm.side.side
    assert side.match(request, 0) == (3 * BLOCK, True)
    calm.kill_agent()
    side._look(1.0, True)
    assert side.match(request, 0) == (0, False) and not len(side._pins)
    calm.settle()
    assert calm.side.answers["b"][0] == "LENGTH"


def test_load_without_a_session_fails_soon(calm):
    matched(calm)
    calm.kill_agent()
    calm.side.step()
    assert not calm.pending and not all(one._worker.idle for one in calm.side.workers), "it may come back"
    calm.now += 1.1
    calm.side.step()
    assert not any(one.what == "get" for one in calm.pending) and all(one._worker.idle for one in calm.side.workers)
    calm.settle()
    assert calm.side.answers["b"][0] == "LENGTH"


@pytest.mark.parametrize("what", ["get", "put"])
def test_blocks_that_the_agent_of_a_lost_session_may_touch(calm, what):
    """The request is computed at once, and the blocks stay allocated until there is proof."""
    if what == "get":
        matched(calm)
    else:
        calm.side.add("b", list(range(3, 3 + 3 * BLOCK)), 2, None)
    until_pending(calm, what)
    calm.chance = lambda: 0.2  # the client breaks the session, and the agent lives
    calm.kill_agent()
    calm.chance = lambda: 0.5
    count = len(calm.lent)
    calm.restart_agent()
    for _ in range(100):
        while calm.pending:
            calm.happen(0)
        calm.side.step()
        calm.check()
    assert calm.side.answers["b"][0] == "LENGTH" and len(calm.lent) == count > 0 and calm.side.side.busy
    calm.settle()


def another(world):
    """A second request that has a hit."""
    text = list(range(500, 500 + 3 * BLOCK))
    world.side.add("c", text, 2, None)
    world.settle()
    assert world.side.scheduler.reset_prefix_cache()
    request = matched(world)
    world.side.side._saves.room.most = 5
    world.side.add("d", [*text, 5], 2, None)
    until_pending(world, "get")
    while any(one.what == "pin" for one in world.pending):
        world.happen(next(i for i, one in enumerate(world.pending) if one.what == "pin"))
        world.side.step()
    return request, world.side.scheduler.requests["d"]


def test_loads_have_a_part_of_the_blocks(calm):
    """One that finds no room waits for others to end, and is computed if they do not."""
    _, second = another(calm)
    side = calm.side.side
    assert side._saves.room.loading == 3 and side.match(second, 0) == (None, False)
    calm.now += 0.6
    assert side.match(second, 0) == (0, False)
    calm.settle()
    assert [calm.side.answers[name][0] for name in "bd"] == ["LENGTH"] * 2


def test_loads_and_saves_together_have_a_part_of_the_blocks(calm):
    """A load waits for saves to end if both together would keep more."""
    text = list(range(3, 3 + 4 * BLOCK))
    calm.side.add("a", text, 2, None)
    calm.settle()
    assert calm.side.scheduler.reset_prefix_cache()
    for i in range(2):
        calm.side.add(f"saved {i}", list(range(1000 * i + 500, 1000 * i + 500 + 7 * BLOCK)), 2, None)
    calm.side.add("b", [*text, 5], 2, None)
    for _ in range(20):
        for one in [one for one in calm.pending if one.what == "pin"]:
            calm.happen(calm.pending.index(one))
        calm.side.step()
        calm.check()
    assert sum(one.what == "put" for one in calm.pending) and not any(one.what == "get" for one in calm.pending)
    until_pending(calm, "get")
    calm.settle()
    assert calm.side.answers["b"][0] == "LENGTH" and calm.seen["EXISTS"] == 0


def test_a_store_that_has_no_room_for_long(calm):
    """A request waits for room only if there may be some in time."""
    matched(calm)
    calm.settle()
    assert calm.side.scheduler.reset_prefix_cache()
    calm.pin = lambda pending, key: StoreResult(Status.BUSY, 0, 5.0)
    calm.side.add("c", list(range(3, 3 + 3 * BLOCK)), 2, None)
    for _ in range(20):
        calm.side.step()
        while calm.pending:
            calm.happen(0)
    assert calm.side.answers["c"][0] == "LENGTH"


def test_loads_that_wait_for_others(calm):
    another(calm)
    assert len([one for one in calm.pending if one.what == "get"]) == RANKS
    while calm.pending:
        calm.happen(0)
    until_pending(calm, "get")  # of the second one
    calm.settle()
    assert calm.side.answers["d"][0] == "LENGTH"


def test_nothing_waits_for_blocks_that_are_lent(calm):
    _, second = another(calm)
    calm.now += 40  # the deadline of the first load
    calm.side.step()
    side = calm.side.side
    assert side._lent.blocks == 3 and side.match(second, 0) == (0, False)
    calm.settle()
    assert [calm.side.answers[name][0] for name in "bd"] == ["LENGTH"] * 2


def test_questions_of_a_step(calm, monkeypatch):
    """A burst is asked for in several steps, and each request gets its answer."""
    monkeypatch.setattr(scheduler, "_OPEN_MAX", 3)
    monkeypatch.setattr(scheduler, "_BLOCKS_A_STEP", 2)
    for i in range(6):
        calm.side.add(f"{i}", [i] * 2 * BLOCK, 2, None)
    for asked in (1, 2, 3, 3):
        calm.side.step()
        assert sum(one.what == "pin" for one in calm.pending) == asked
    calm.settle()
    assert [calm.side.answers[f"{i}"][0] for i in range(6)] == ["LENGTH"] * 6
