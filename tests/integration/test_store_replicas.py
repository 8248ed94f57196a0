# SPDX-License-Identifier: Apache-2.0
"""PUTs with replicas = 2: which agents have the objects then, and what the client sees when the other agent refuses, stops or dies."""

import contextlib
import os
import random
import signal

import pytest
from dray import Status, errors
from harness import LIMIT, MIB, until
from test_store import User, counters

UID = os.getuid()
# Sanitizers on a busy machine are slow: only tests that wait for this time have a short one.
STORE = {"limits.store_bytes": "32MiB", "limits.store_bytes_per_owner": "32MiB", "store.segment_size": "2MiB",
         "store.spaces": f"kv=default:{UID}", "store.lend": "true", "store.peer_timeout": "10s"}
SIZE = 300_000


def value_of(key, size=SIZE):
    return random.Random(key).randbytes(size)


def connected(agent, n):
    until(lambda: sum(p["state"] == "ready" for p in agent.ctl("peers", "--json")["peers"]) >= n, f"the connections of {agent.name}")


@pytest.fixture
def group(new_agent):
    """Agents with these settings. asks: {agent: whom it has in store.peers}; else the first one has all others.

    Of two that list each other, one knows the other only a moment after they are connected.
    """
    def make(*settings, asks=None):
        agents = [new_agent(f"agent{i}", start=False, settings=STORE | dict(own), args=["--allow-insecure"]) for i, own in enumerate(settings)]
        asks = asks or {0: range(1, len(agents))}
        for i, others in asks.items():
            agents[i].settings["store.peers"] = ",".join(agents[k].listen[0] for k in others)
        for agent in reversed(agents):
            agent.start()
        for i, others in asks.items():
            connected(agents[i], len(others))
        return agents
    return make


def put(user, *keys, size=SIZE, replicas=2, wait=True, **how):
    """The values of the keys, one after the other."""
    for i, key in enumerate(keys):
        user.view[i * size:(i + 1) * size] = value_of(key, size)
    return user.store.put(user.region, [(key, [(i * size, size)]) for i, key in enumerate(keys)], replicas=replicas, wait=wait, **how)


def placed(user, *keys, **how):
    """The statuses of a PUT, once all keys have a copy. On a busy machine it takes several: an agent that does not send for a second is too slow."""
    first = put(user, *keys, **how)
    results = [first]
    until(lambda: all(r.copies == 2 for r in results[-1]) or results.append(put(user, *keys, **how)), "a copy of each object")
    return [(r.status, 2) for r in first]


def ends(results):
    return [(r.status, r.copies) for r in results]


def kept(agent):
    return counters(agent)["dray_store_kept_total"]


def idle(*agents):
    """Nothing is lent, and nothing is read or written."""
    for agent in agents:
        until(lambda agent=agent: counters(agent)["dray_store_lent_bytes"] == 0 and counters(agent)["dray_transfers_in_flight"] == 0,
              f"the end of all that {agent.name} does")


@contextlib.contextmanager
def stopped(agent):
    agent.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        agent.signal(signal.SIGCONT)


@pytest.mark.parametrize("size", [100, SIZE, 5 * MIB], ids=["small", "middle", "large"])
def test_copy(group, size):
    """Small objects come with the answer to the lookup, large ones take more than one segment."""
    a, b = group((), ())
    with User(a, space="kv") as here, User(b, space="kv") as there:
        assert placed(here, b"key", size=size) == [(Status.OK, 2)]
        assert there.has(b"key") == [True]
        assert kept(b) == 1 and counters(b)["dray_store_kept_bytes_total"] == size
        assert counters(a)["dray_store_replicas_total"] == 1
        space, = [s for s in b.ctl("store", "--json")["store_spaces"] if s["space"] == "kv"]
        assert space["kept"] == 1 and space["puts"] == 0 and space["remote_hits"] == 0
        idle(a, b)
        here.store.remove([b"key"])
        assert there.get(b"key") == value_of(b"key", size)


def test_batch(group):
    """More keys than one message has; some are there already, at either agent or both."""
    a, b = group((), ())
    keys = [b"%d" % i + b"x" * 100 for i in range(1000)]
    with User(a, space="kv") as here, User(b, space="kv") as there:
        assert placed(here, *keys[:2], size=64) == [(Status.OK, 2)] * 2
        assert ends(put(here, keys[2], size=64, replicas=1)) == [(Status.OK, 1)]
        assert ends(put(there, keys[3], size=64, replicas=1)) == [(Status.OK, 1)]
        before = kept(b)
        assert placed(here, *keys, size=64) == [(Status.EXISTS, 2)] * 3 + [(Status.OK, 2)] * 997
        assert kept(b) == before + 997
        assert there.has(*keys) == [True] * 1000
        idle(a, b)


def test_second_put(group):
    """Both objects stay as they are, and count."""
    a, b = group((), ())
    with User(a, space="kv") as here:
        assert placed(here, b"key") == [(Status.OK, 2)]
        assert placed(here, b"key") == [(Status.EXISTS, 2)]
        assert kept(b) == 1


def test_put_after_remove(group):
    """The copy of an object that was removed here gives way to that of the next one, which has as many bytes."""
    a, b = group((), ())
    with User(a, space="kv") as here, User(b, space="kv") as there:
        assert placed(here, b"key") == [(Status.OK, 2)]
        idle(a, b)
        here.store.remove([b"key"])
        assert there.get(b"key") == value_of(b"key")
        here.view[:SIZE] = value_of(b"other")
        results = [here.store.put(here.region, [(b"key", [(0, SIZE)])], replicas=2)]
        until(lambda: results[-1][0].copies == 2 or results.append(put(here, b"key")), "a copy")
        assert results[0][0].status == Status.OK
        assert here.get(b"key") == there.get(b"key") == value_of(b"other")


def test_other_object_at_the_other_agent(group):
    """What a client put there stays, and is no copy."""
    a, b = group((), ())
    with User(a, space="kv") as here, User(b, space="kv") as there:
        assert ends(put(there, b"key", size=100, replicas=1)) == [(Status.OK, 1)]
        assert ends(put(here, b"key")) == [(Status.OK, 1)]
        assert there.get(b"key") == value_of(b"key", 100) and here.get(b"key") == value_of(b"key")


def test_copy_of_a_get_becomes_one_that_stays(group, lab):
    """What another agent has read before is written to its disk only when it is to keep it."""
    disk = {"store.disk_dir": lab.directory("disk"), "limits.store_disk_bytes": "64MiB", "limits.store_disk_bytes_per_owner": "64MiB"}
    a, b = group((), disk, asks={0: [1], 1: [0]})
    with User(a, space="kv") as here, User(b, space="kv") as there:
        assert ends(put(here, b"key", replicas=1)) == [(Status.OK, 1)]
        until(lambda: there.get(b"key") == value_of(b"key"), "the object")
        assert there.has(b"key") == [True] and counters(b)["dray_store_disk_objects"] == 0
        until(lambda: ends(put(here, b"key")) == [(Status.EXISTS, 2)], "a copy")
        until(lambda: counters(b)["dray_store_disk_objects"] == 1, "the copy on disk")
        assert kept(b) == 0


def test_without_others(group):
    """An agent alone, and a name space that no other agent may read."""
    a, b = group((), ())
    alone, = group(())
    with User(alone, space="kv") as here, User(a) as own:
        assert ends(put(here, b"key")) == [(Status.OK, 1)]
        assert ends(put(own, b"key")) == [(Status.OK, 1)]
        assert counters(alone)["dray_store_replicas_failed_total"] == 1
        assert kept(b) == 0


def test_default_of_the_agent(group):
    """A PUT that does not say how many agents are to have its objects; name spaces without a name have no others."""
    a, b = group({"store.replicas": 2}, ())
    with User(a, space="kv") as here, User(a) as own:
        assert ends(put(here, b"one", replicas=1)) == [(Status.OK, 1)]
        assert ends(put(own, b"key", replicas=0)) == [(Status.OK, 1)]
        assert kept(b) == 0 and counters(a)["dray_store_replicas_failed_total"] == 0
        assert placed(here, b"key", replicas=0) == [(Status.OK, 2)]
        assert kept(b) == 1


def test_results_of_other_requests(group):
    """Without replicas nobody is asked; a wrong number is refused."""
    a, b = group((), ())
    with User(a, space="kv") as here:
        assert ends(put(here, b"key", replicas=1)) == [(Status.OK, 1)]
        assert ends(put(here, b"key", replicas=0)) == [(Status.EXISTS, 1)]
        assert [r.copies for r in here.store.exists([b"key"])] == [0]
        with pytest.raises(errors.Invalid):
            put(here, b"key", replicas=3)
        assert kept(b) == 0


@pytest.mark.parametrize("settings", [{"store.lend": "false"}, {"store.spaces": f"kv=default:{UID + 1}"}, {"store.spaces": f"other=default:{UID}"}],
                         ids=["lends-nothing", "other-owner", "other-space"])
def test_other_agent_may_not(group, settings):
    a, b = group((), settings)
    with User(a, space="kv") as here:
        assert ends(put(here, b"key")) == [(Status.OK, 1)]
        assert here.get(b"key") == value_of(b"key")
        assert counters(b)["dray_store_objects"] == 0 and kept(b) == 0
        assert counters(a)["dray_store_replicas_failed_total"] == 1


def test_agent_that_lends_nothing_asks_nobody(group):
    a, b = group({"store.lend": "false"}, ())
    with User(a, space="kv") as here:
        assert ends(put(here, b"key")) == [(Status.OK, 1)]
        assert counters(b)["dray_store_objects"] == 0


@pytest.mark.parametrize("settings", [{"limits.store_bytes_per_owner": "4MiB"}, {"store.full": "busy"}], ids=["too-large", "busy"])
def test_other_agent_is_full(group, settings):
    a, b = group((), settings)
    with User(a, space="kv", size=32 * MIB) as here, User(b, space="kv", size=32 * MIB) as there:
        if "store.full" in settings:
            assert there.put(b"own", bytes(24 * MIB)) == Status.OK
            size = 7 * MIB
            assert there.put(b"more", bytes(6 * MIB)) == Status.OK
        else:
            size = 5 * MIB
        objects = counters(b)["dray_store_objects"]
        assert ends(put(here, b"key", size=size)) == [(Status.OK, 1)]
        assert counters(b)["dray_store_objects"] == objects and kept(b) == 0
        assert "store.full" in settings or placed(here, b"small") == [(Status.OK, 2)]
        idle(a, b)


def test_next_agent_is_asked(group):
    """Each key has an agent of its own that is asked first; the other one has what that refuses."""
    a, b, c = group((), (), {"store.lend": "false"})
    keys = [b"%d" % i for i in range(20)]
    with User(a, space="kv") as here, User(b, space="kv") as there:
        assert placed(here, *keys) == [(Status.OK, 2)] * 20
        assert there.has(*keys) == [True] * 20
        assert counters(c)["dray_store_objects"] == 0


def test_many_at_once(group):
    """More than the other agent looks up at once: they wait there."""
    a, b = group((), ())
    with User(a, space="kv") as here, User(b, space="kv") as there:
        keys = [b"%d" % i for i in range(60)]
        pending = [put(here, key, size=64, wait=False) for key in keys]
        assert [ends(one.result(LIMIT)) for one in pending] == [[(Status.OK, 2)]] * len(keys)
        assert there.has(*keys) == [True] * len(keys)
        idle(a, b)


def test_copies_spread(group):
    a, b, c = group((), (), ())
    keys = [b"%d" % i for i in range(64)]
    with User(a, space="kv") as here:
        assert placed(here, *keys, size=1000) == [(Status.OK, 2)] * 64
        first = kept(b), kept(c)
        assert sum(first) == 64 and min(first) > 0
        here.store.remove(keys)
        assert placed(here, *keys, size=1000) == [(Status.OK, 2)] * 64
        assert (kept(b), kept(c)) == first, "each finds the copy that was there"


def test_owner_dies_afterwards(group):
    """A third agent reads the copy."""
    a, b, c = group((), (), (), asks={0: [1], 2: [0, 1]})
    with User(a, space="kv") as here, User(c, space="kv") as third:
        keys = [b"%d" % i for i in range(8)]
        assert placed(here, *keys) == [(Status.OK, 2)] * 8
        a.kill()
        until(lambda: third.get(keys[0]) == value_of(keys[0]), "a copy at the third agent")
        assert [third.get(key) == value_of(key) for key in keys] == [True] * 8
    a.restart()


def test_other_agent_dies_before_it_answers(group):
    """It has the question, and its connection ends."""
    a, b = group((), ())
    with User(a, space="kv") as here:
        with stopped(b):
            pending = put(here, b"key", wait=False)
            until(lambda: here.has(b"key") == [True], "the object here")
            b.kill()
        assert ends(pending.result(LIMIT)) == [(Status.OK, 1)]
        assert here.get(b"key") == value_of(b"key")
        idle(a)
        b.restart()
        connected(a, 1)
        assert placed(here, b"key") == [(Status.EXISTS, 2)]


def test_owner_dies_while_it_is_read(group):
    """Nothing of it stays at the other agent."""
    a, b = group((), ())
    keys = [b"%d" % i for i in range(8)]
    with User(a, space="kv", size=32 * MIB) as here:
        pending = put(here, *keys, size=MIB, wait=False)
        a.kill()
        with contextlib.suppress(errors.Error):
            pending.result(LIMIT)
    idle(b)
    with User(b, space="kv") as there:
        found = [key for key, has in zip(keys, there.has(*keys)) if has]
        assert all(there.get(key) == value_of(key, MIB) for key in found)
        assert counters(b)["dray_store_objects"] == len(found)
    a.restart()


def test_other_agent_is_stopped(group):
    """The PUT ends by store.peer_timeout, the next one does not wait for it, and later it keeps copies again."""
    a, b = group({"store.peer_timeout": "100ms"}, ())
    with User(a, space="kv") as here:
        with stopped(b):
            assert ends(put(here, b"first")) == [(Status.OK, 1)]
            assert ends(put(here, b"second")) == [(Status.OK, 1)]
        tries = []
        until(lambda: tries.append(ends(put(here, b"%d" % len(tries), size=1000))) or tries[-1] == [(Status.OK, 2)], "a copy")
        idle(a, b)


def test_put_ends_by_its_deadline(group):
    a, b = group((), ())
    with User(a, space="kv") as here, stopped(b):
        assert ends(put(here, b"key", deadline=0.3)) == [(Status.OK, 1)]
        assert here.get(b"key") == value_of(b"key")


def test_session_ends_while_it_waits(group):
    a, b = group((), ())
    with stopped(b):
        with User(a, space="kv") as here, User(a, space="kv") as other:
            put(here, b"key", wait=False)
            until(lambda: other.has(b"key") == [True], "the object")
        until(lambda: not a.ctl("sessions", "--json")["sessions"], "the end of the sessions")
    with User(a, space="kv") as here:
        tries = []
        until(lambda: tries.append(put(here, b"%d" % len(tries), size=1000)[0].copies) or tries[-1] == 2, "a copy")
    idle(a, b)


def test_drains(group):
    """An agent that drains keeps nothing; an agent that waits for a copy can drain."""
    a, b = group((), ())
    with User(a, space="kv") as here, User(b, space="kv"):
        b.ctl("drain")
        assert ends(put(here, b"key")) == [(Status.OK, 1)]
        b.wait()
        b.restart()
        connected(a, 1)
        with stopped(b):
            pending = put(here, b"other", wait=False)
            until(lambda: here.has(b"other") == [True], "the object here")
            a.ctl("drain")
            with contextlib.suppress(errors.Error):
                assert ends(pending.result(LIMIT)) == [(Status.OK, 1)]
            a.wait()
    a.restart()


def test_copy_is_on_the_other_agents_disk(group, lab):
    """Both are killed: the next agent has it there."""
    disk = {"store.disk_dir": lab.directory("disk"), "limits.store_disk_bytes": "64MiB", "limits.store_disk_bytes_per_owner": "64MiB"}
    a, b = group((), disk)
    with User(a, space="kv") as here:
        assert placed(here, b"key") == [(Status.OK, 2)]
        until(lambda: counters(b)["dray_store_disk_objects"] == 1, "the copy on disk")
        a.kill()
    b.kill()
    b.restart()
    with User(b, space="kv") as there:
        assert there.get(b"key") == value_of(b"key")
    a.restart()
