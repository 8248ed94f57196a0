# SPDX-License-Identifier: Apache-2.0
"""Encoder outputs through a store, in random orders of what can happen: every request ends, with its own outputs, and nothing is left."""

import os
import random

import pytest
from ec_bare import NO_PIXELS, PIXELS
from ec_store_world import World
from harness import until
from test_ec_orders import wanted_images

ORDERS = int(os.environ.get("DRAY_ORDERS", 2000 if "DRAY_LONG" in os.environ else 10))
EVERYTHING = {
    "put OK", "put EXISTS", "put BUSY", "put TOO_LARGE", "get OK", "get NOT_FOUND", "get BUSY", "get CORRUPT", "get LOST", "batch deadline",
    "batch session_closed", "batch agent_restarted", "batch unconfirmed", "proven", "killed", "frozen", "e aborted", "pd aborted", "preempted", "pd ERROR", "pd LENGTH",
    "evicted at e", "evicted at pd", "encoded at pd", "loaded"}


@pytest.fixture
def world(monkeypatch):
    made = World(monkeypatch, random.Random())
    yield made
    made.e.close()
    made.pd.close()


def one_order(world, seed):
    """Some requests through E and PD, with everything that can happen in between."""
    chance = world.random = random.Random(seed)
    e, pd, known, wanted, sent, aborted = world.e, world.pd, [], {}, {}, set()
    for engine in (e, pd):
        engine.answers.clear()
        engine.encoded.clear()
    starts = [f"{seed}-{i}" for i in range(chance.randrange(1, 7))]
    rough = chance.random() < 0.5  # otherwise the agent serves all the time
    evicted = e.side._pool.evicted, pd.side._pool.evicted
    for _ in range(chance.randrange(10, 120)):
        what = chance.random() if rough else chance.random() * 0.88
        if what < 0.25:
            e.step()
        elif what < 0.5:
            pd.step()
        elif what < 0.82:
            world.happen()
        elif what < 0.83 and wanted:
            aborted.add(name := chance.choice(list(wanted)))
            e.abort(name)
            world.seen["e aborted"] += 1
        elif what < 0.85 and sent:
            aborted.add(name := chance.choice(list(sent)))
            pd.abort(name)
            world.seen["pd aborted"] += 1
        elif what < 0.87:
            pd.preempt()
            world.seen["preempted"] += 1
        elif what < 0.88:
            world.evict()
        elif what < 0.9:
            world.kill_agent()
            world.seen["killed"] += 1
        elif what < 0.94:
            world.restart_agent()
        elif what < 0.97:
            world.frozen = not world.frozen
            world.seen["frozen"] += 1
        elif what < 0.98 and world.lent:
            world.prove()
            world.seen["proven"] += 1
        else:
            world.now += chance.choice((1, 40))
        if starts and chance.random() < 0.5:
            name = starts.pop()
            wanted[name] = wanted_images(chance, seed, known)
            e.add(name, wanted[name])
        for name in list(e.answers):
            if name not in sent and chance.random() < 0.5:
                sent[name] = PIXELS if chance.random() < 0.6 else NO_PIXELS
                pd.add(name, wanted[name], None, sent[name], tokens=chance.randrange(1, 4))
        world.check()
    world.settle()
    assert all(reason == "STOP" or name in aborted for name, (reason, _) in e.answers.items())
    for name, (reason, _) in pd.answers.items():
        world.seen[f"pd {reason}"] += 1
        assert reason == "LENGTH" or sent[name] is NO_PIXELS or name in aborted, (name, reason)
    world.seen["encoded at pd"] += len(pd.encoded)
    world.seen["evicted at e"] += e.side._pool.evicted - evicted[0]
    world.seen["evicted at pd"] += pd.side._pool.evicted - evicted[1]
    world.seen["loaded"] += sum(pd.side.stats._minute["blocks"])
    pd.side.stats._minute["blocks"].clear()


@pytest.mark.parametrize("put", [True, False], ids=["put", "get"])
def test_places_that_the_agent_of_a_lost_session_may_use(world, put):
    """The request ends, and the places stay in use until there is proof."""
    world.random = random.Random(1)
    wanted = [("image", 9)]
    world.e.add("a", wanted)
    if not put:
        until(lambda: world.e.step() or "a" in world.e.answers and world.objects, "an object in the store")
        world.pd.add("a", wanted)
    engine, world.frozen = world.e if put else world.pd, True
    until(lambda: engine.step() or world.pending, "a batch")
    world.kill_agent(broken=True)
    assert world.lent
    world.restart_agent()
    until(lambda: engine.step() or world.check() or "a" in engine.answers, "the end of the request")
    assert engine.left()
    world.prove()
    world.settle()


def test_orders(world):
    for seed in range(ORDERS):
        try:
            one_order(world, seed)
        except BaseException as e:
            raise AssertionError(f"seed {seed}") from e
    print(dict(world.seen))
    if ORDERS >= 2000:
        assert not (missing := [what for what in EVERYTHING if not world.seen[what]]), f"never seen: {missing}; seen: {world.seen}"
