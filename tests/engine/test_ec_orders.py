# SPDX-License-Identifier: Apache-2.0
"""Encoder outputs in random orders of what can happen: every request ends, with its own outputs, and nothing is left."""

import os
import random

import pytest
from ec_bare import NO_PIXELS, PIXELS
from ec_world import World

ORDERS = int(os.environ.get("DRAY_ORDERS", 2000 if "DRAY_LONG" in os.environ else 30))
EVERYTHING = {
    "right used", "right expired", "right ended", "right peer_lost", "right agent_lost", "transfer done", "transfer revoked",
    "transfer peer_lost", "transfer unconfirmed", "transfer agent_restarted", "transfer cancelled", "e aborted", "pd aborted",
    "preempted", "pd ERROR", "pd LENGTH", "not offered", "evicted at e", "evicted at pd", "encoded at pd", "loaded",
    "read in place", "kept while it is read", "read early"}


IN_PLACE = {"read in place", "kept while it is read"}
LARGE, SMALL = 256 * 512 + 4096, 64 << 10  # bytes of a pool: all outputs fit, or some move in pieces
WORLDS = [("cpu", LARGE, "cpu", LARGE), ("cuda", LARGE, "cuda", LARGE), ("cpu", LARGE, "cuda", LARGE), ("cuda", LARGE, "cpu", LARGE),
          ("cpu", SMALL, "cpu", SMALL), ("cpu", LARGE, "cpu", SMALL), ("cpu", SMALL, "cpu", LARGE), ("cuda", SMALL, "cuda", SMALL)]


@pytest.fixture(params=WORLDS, ids=lambda which: "-".join(map(str, which)))
def world(monkeypatch, request):
    """By the pools of E and PD: device and size."""
    device_e, e, device_pd, pd = request.param
    made = World(monkeypatch, random.Random(), e, pd, (device_e, device_pd))
    yield made
    made.e.close()
    made.pd.close()


def wanted_images(chance, seed, known):
    """Up to four images of a request, some of which others have, too."""
    made = []
    for i in range(chance.randrange(0, 4)):
        if known and chance.random() < 0.4:
            made.append(chance.choice(known))
        else:
            made.append((f"{seed}-{len(known)}", chance.choice((4, 20, 60, 200))))
            known.append(made[-1])
    return made


def one_order(world, seed):
    """Some requests through E and PD, with everything that can happen in between."""
    chance = world.random = random.Random(seed)
    e, pd, known, wanted, sent, aborted = world.e, world.pd, [], {}, {}, set()
    for engine in (e, pd):
        engine.answers.clear()
        engine.encoded.clear()
    world.forget_rights()
    pd.side.in_place = chance.random() < 0.5
    e.v2 = pd.v2 = seed % 2 == 0
    starts = [f"{seed}-{i}" for i in range(chance.randrange(1, 7))]
    rough = chance.random() < 0.5  # otherwise no agent dies, and no time passes
    evicted = e.side._pool.evicted, pd.side._pool.evicted
    for _ in range(chance.randrange(10, 120)):
        what = chance.random() if rough else chance.random() * 0.88
        if what < 0.25:
            e.step()
        elif what < 0.4:
            pd.step()
        elif what < 0.5:
            step = pd._schedule()
            for _ in range(chance.randrange(3)):
                e.step()
            if world.actions:
                world.happen(chance.randrange(len(world.actions)))
            world.check()
            pd._work(*step)
        elif what < 0.82:
            if world.actions:
                world.happen(chance.randrange(len(world.actions)))
        elif what < 0.83 and wanted:
            aborted.add(name := chance.choice(list(wanted)))
            e.abort(name)
            world.seen["e aborted"] += 1
        elif what < 0.85 and sent:
            aborted.add(name := chance.choice(list(sent)))
            pd.abort(name)
            world.seen["pd aborted"] += 1
        elif what < 0.88:
            pd.preempt()
            world.seen["preempted"] += 1
        elif what < 0.91:
            world.expire()
        elif what < 0.93:
            world.kill_agent(chance.choice(world.agents))
        elif what < 0.94:
            world.now += chance.choice((1, 40))
        if starts and chance.random() < 0.5:
            name = starts.pop()
            wanted[name] = wanted_images(chance, seed, known)
            e.add(name, wanted[name], params={"consumers": 2} if chance.random() < 0.1 else None)
        for name, (_, params) in list(e.answers.items()):
            if name not in sent and chance.random() < 0.5:
                sent[name] = PIXELS if params is None or chance.random() < 0.6 else NO_PIXELS
                world.seen["not offered"] += params is None and bool(wanted[name])
                if chance.random() < 0.9:  # otherwise the router never sends it
                    pd.add(name, wanted[name], params, sent[name], tokens=chance.randrange(1, 4))
                    if chance.random() < 0.1:
                        pd.add(name + "-again", wanted[name], params, PIXELS)
        world.check()
    world.settle()
    assert not e.worker._worker._kept and not getattr(pd.side._memory, "_assembled", ()), "an output is kept that nobody needs"
    for name, (reason, _) in pd.answers.items():
        world.seen[f"pd {reason}"] += 1
        assert reason == "LENGTH" or sent[name] is NO_PIXELS or name in aborted, (name, reason)
    world.seen["encoded at pd"] += len(pd.encoded)
    world.seen["evicted at e"] += e.side._pool.evicted - evicted[0]
    world.seen["evicted at pd"] += pd.side._pool.evicted - evicted[1]
    world.seen["loaded in pieces"] += world.in_pieces
    world.in_pieces = 0
    world.seen["loaded"] += sum(pd.side.stats._minute["blocks"])
    pd.side.stats._minute["blocks"].clear()


def test_orders(world):
    for seed in range(ORDERS):
        try:
            one_order(world, seed)
        except BaseException as e:
            raise AssertionError(f"seed {seed}") from e
    print(dict(world.seen))
    if ORDERS >= 2000:
        expected = EVERYTHING if world.e.side._memory.device == "cpu" else EVERYTHING - IN_PLACE
        if SMALL in (world.e.side._pool.size, world.pd.side._pool.size):
            expected = expected | {"loaded in pieces"}
        assert not (missing := [what for what in expected if not world.seen[what]]), f"never seen: {missing}; seen: {world.seen}"
