# SPDX-License-Identifier: Apache-2.0
"""PUTs at another agent: where the objects are then, and what the client sees when that agent refuses, is full, stops or dies."""

import random

import pytest
from dray import Status, Tier, errors
from harness import LIMIT, MIB, until
from test_store import User, counters
from test_store_replicas import SIZE, STORE, UID, group, idle, stopped, value_of  # noqa: F401

SPACE = "kv"


def put(user, *keys, at, size=SIZE, wait=True, **how):
    """The values of the keys, one after the other."""
    for i, key in enumerate(keys):
        user.view[i * size:(i + 1) * size] = value_of(key, size)
    return user.store.put(user.region, [(key, [(i * size, size)]) for i, key in enumerate(keys)], at=at, wait=wait, **how)


def ends(results):
    return [(r.status, r.tier) for r in results]


def there(user, *keys, **how):
    """The results of a PUT, once it has ended with an answer of the other agent: one that gets no processor may be too slow."""
    results = [put(user, *keys, **how)]
    until(lambda: all(r.status in (Status.OK, Status.EXISTS) for r in results[-1]) or results.append(put(user, *keys, **how)), "an answer")
    return ends(results[-1])


def nothing_is_here(agent):
    """What has gone to the other agent, or to none, has left no object and no charge."""
    idle(agent)
    until(lambda: counters(agent)["dray_store_objects"] == 0, "an empty store")
    assert counters(agent)["dray_store_bytes"] == 0
    assert {q["used"] for q in agent.ctl("quotas", "--json")["quotas"] if q["resource"] == "store_bytes"} <= {0}


AT = [(Status.OK, Tier.AGENT)]


@pytest.mark.parametrize("size", [100, SIZE, 5 * MIB], ids=["small", "middle", "large"])
def test_put(group, size):
    """The object is there, is charged there, and can be read here."""
    a, b = group((), (), asks={0: [1]})
    with User(a, space=SPACE) as here, User(b, space=SPACE) as other:
        assert there(here, b"key", at=b.listen[0], size=size) == AT
        nothing_is_here(a)
        assert other.has(b"key") == [True]
        assert other.get(b"key") == value_of(b"key", size)
        assert counters(a)["dray_store_forwarded_total"] >= 1 and counters(a)["dray_store_puts_total"] == 0
        assert counters(b)["dray_store_kept_total"] == 1
        space, = [s for s in a.ctl("store", "--json")["store_spaces"] if s["space"] == SPACE]
        assert space["forwarded"] >= 1 and space["puts"] == 0
        until(lambda: here.get(b"key") == value_of(b"key", size), "the object at the other agent")
        here.store.remove([b"key"])
        assert other.has(b"key") == [True]


def test_second_put(group):
    """An object that is there, or here, stays as it is."""
    a, b = group((), ())
    at = b.listen[0]
    with User(a, space=SPACE) as here, User(b, space=SPACE) as other:
        assert there(here, b"key", at=at) == AT
        assert there(here, b"key", at=at) == [(Status.EXISTS, Tier.AGENT)]
        assert put(here, b"own", at="local")[0].status == Status.OK
        assert ends(put(here, b"own", at=at)) == [(Status.EXISTS, Tier.NONE)]
        assert other.has(b"own") == [False] and here.has(b"own") == [True]


def test_batch(group):
    """More keys than one message has; some are there or here already, and one is too large."""
    a, b = group((), {"limits.store_bytes_per_owner": "4MiB"})
    at = b.listen[0]
    keys = [b"%d" % i + b"x" * 100 for i in range(1000)]
    with User(a, space=SPACE, size=32 * MIB) as here, User(b, space=SPACE) as other:
        assert put(here, keys[0], at="local", size=64)[0].status == Status.OK
        assert there(other, keys[1], at="", size=64) == [(Status.OK, Tier.NONE)]
        results = [put(here, *keys, at=at, size=64)]
        until(lambda: not any(r.status == Status.BUSY for r in results[-1]) or results.append(put(here, *keys, at=at, size=64)), "all answers")
        assert ends(results[0])[0] == (Status.EXISTS, Tier.NONE)
        assert {r.status for r in results[-1]} <= {Status.OK, Status.EXISTS}
        assert other.has(*keys) == [False] + [True] * 999
        idle(a, b)
        assert counters(a)["dray_store_objects"] == 1
        assert [r.status for r in put(here, b"large", at=at, size=5 * MIB)] == [Status.TOO_LARGE]
        assert counters(a)["dray_store_objects"] == 1


def test_clients_own_choice(group):
    """client.store() can be told once; put() has the last word. This agent can be named, too."""
    a, b = group((), ())
    with User(a, space=SPACE) as here, User(b, space=SPACE) as other:
        here.store = here.client.store(SPACE, at=b.listen[0])
        assert there(here, b"key", at=None) == AT
        assert ends(put(here, b"own", at="local")) == [(Status.OK, Tier.NONE)]
        assert ends(put(here, b"named", at=a.listen[0])) == [(Status.OK, Tier.NONE)]
        assert here.has(b"own", b"named") == [True, True] and other.has(b"key", b"own", b"named") == [True, False, False]
        assert counters(a)["dray_store_puts_total"] == 2 and counters(a)["dray_store_forward_failed_total"] == 0


def test_request_is_wrong(group):
    a, b = group((), ())
    alone, = group({"store.lend": "true"})
    lends_not, c = group({"store.lend": "false"}, ())
    with User(a, space=SPACE) as here, User(a) as own, User(alone, space=SPACE) as single, User(lends_not, space=SPACE) as quiet:
        for at in ("nonsense", "host", "10.0.0.1:0", "x" * 256):
            with pytest.raises(errors.Invalid):
                put(here, b"key", at=at)
        with pytest.raises(errors.TooLarge):
            put(here, b"key", at="x" * 257)
        with pytest.raises(errors.Invalid):
            put(here, b"key", at=b.listen[0], replicas=2)
        with pytest.raises(errors.Denied):
            put(own, b"key", at=b.listen[0])
        with pytest.raises(errors.Unsupported):
            put(single, b"key", at=b.listen[0])
        with pytest.raises(errors.Unsupported):
            put(quiet, b"key", at=c.listen[0])
        assert put(own, b"key", at="local")[0].status == Status.OK
    assert counters(b)["dray_store_objects"] == 0


@pytest.mark.parametrize("settings", [{"store.lend": "false"}, {"store.spaces": f"kv=default:{UID + 1}"}, {"store.spaces": f"other=default:{UID}"},
                                      {"limits.store_bytes": "0", "limits.store_bytes_per_owner": "0", "store.lend": "false", "store.spaces": ""}],
                         ids=["lends-nothing", "other-owner", "other-space", "no-store"])
def test_other_agent_may_not(group, settings):
    a, b = group((), settings)
    with User(a, space=SPACE) as here:
        assert ends(put(here, b"key", at=b.listen[0])) == [(Status.DENIED, Tier.NONE)]
        assert counters(a)["dray_store_forward_failed_total"] == 1
        assert here.has(b"key") == [False]
        nothing_is_here(a)


def test_agent_that_is_none_of_the_peers(group):
    """A client cannot make the agent connect to any address."""
    a, b, c = group((), (), (), asks={0: [1]})
    with User(a, space=SPACE) as here:
        assert ends(put(here, b"key", at=c.listen[0])) == [(Status.DENIED, Tier.NONE)]
        nothing_is_here(a)
    assert counters(c)["dray_store_objects"] == 0


def test_other_agent_is_full(group):
    a, b = group((), {"store.full": "busy"})
    with User(a, space=SPACE, size=32 * MIB) as here, User(b, space=SPACE, size=32 * MIB) as other:
        assert other.put(b"own", bytes(24 * MIB)) == Status.OK
        assert other.put(b"more", bytes(6 * MIB)) == Status.OK
        result, = put(here, b"key", at=b.listen[0], size=7 * MIB)
        assert result.status == Status.BUSY and result.wait > 0
        nothing_is_here(a)


def test_killed_agent(group):
    a, b = group((), ())
    with User(a, space=SPACE) as here:
        b.kill()
        until(lambda: all(p["state"] != "ready" for p in a.ctl("peers", "--json")["peers"]), "the loss of the agent")
        assert ends(put(here, b"key", at=b.listen[0])) == [(Status.UNREACHABLE, Tier.NONE)]
        nothing_is_here(a)
        b.start()
        assert there(here, b"key", at=b.listen[0]) == AT


def test_killed_meanwhile(group):
    a, b = group((), ())
    with User(a, space=SPACE, size=32 * MIB) as here:
        with stopped(b):
            pending = put(here, b"key", at=b.listen[0], size=8 * MIB, wait=False)
            until(lambda: counters(a)["dray_store_objects"] == 1, "the object")
            b.kill()
        assert ends(pending.result(LIMIT)) == [(Status.UNREACHABLE, Tier.NONE)]
        nothing_is_here(a)
    b.start()


def test_stopped_agent(group):
    """It has the time of store.peer_timeout, and the next PUT here is not kept waiting by it."""
    a, b = group({"store.peer_timeout": "0.3s"}, ())
    with User(a, space=SPACE) as here:
        with stopped(b):
            assert ends(put(here, b"key", at=b.listen[0])) == [(Status.UNREACHABLE, Tier.NONE)]
            assert ends(put(here, b"own", at="local")) == [(Status.OK, Tier.NONE)]
        assert here.has(b"key") == [False]
        until(lambda: put(here, b"key", at=b.listen[0])[0].status in (Status.OK, Status.EXISTS), "the agent that goes on")


def test_second_put_meanwhile(group):
    """A PUT of a key that is on its way to the other agent is busy, so that the object does not stay here."""
    a, b = group((), ())
    with User(a, space=SPACE) as here, User(a, space=SPACE) as second:
        with stopped(b):
            pending = put(here, b"key", at=b.listen[0], wait=False)
            until(lambda: counters(a)["dray_store_objects"] == 1, "the object")
            result, = put(second, b"key", at=b.listen[0])
            assert result.status == Status.BUSY and result.wait > 0
        assert pending.result(LIMIT)[0].status == Status.OK
        nothing_is_here(a)
        assert ends(put(second, b"key", at=b.listen[0])) == [(Status.EXISTS, Tier.AGENT)]
        twice = put(here, b"twice", b"twice", at=b.listen[0])
        assert sorted(r.status for r in twice) == sorted([Status.OK, Status.BUSY])
        nothing_is_here(a)


def test_deadline_and_cancel(group):
    """A PUT that waits for the other agent ends with its deadline, or is cancelled."""
    a, b = group((), ())
    with User(a, space=SPACE) as here, stopped(b):
        with pytest.raises(errors.Deadline) as late:
            put(here, b"key", at=b.listen[0], deadline=0.2)
        assert [r.status for r in late.value.results] == [Status.NOT_TRIED]
        pending = put(here, b"key", at=b.listen[0], wait=False)
        until(lambda: counters(a)["dray_store_objects"] == 1, "the object")
        pending.cancel()
        with pytest.raises(errors.Cancelled):
            pending.result(LIMIT)
        nothing_is_here(a)


def test_session_ends_meanwhile(group):
    a, b = group((), ())
    with stopped(b):
        with User(a, space=SPACE) as here:
            pending = put(here, b"key", at=b.listen[0], wait=False)
            until(lambda: counters(a)["dray_store_objects"] == 1, "the object")
        with pytest.raises(errors.Error):
            pending.result(LIMIT)
        nothing_is_here(a)


def test_object_that_waits_can_be_used(group):
    """While an object is on its way, clients here may read it; what one of them has put or pinned stays here."""
    a, b = group((), ())
    with User(a, space=SPACE) as here, User(a, space=SPACE) as second:
        with stopped(b):
            pending = put(here, b"read", b"put", b"gone", at=b.listen[0], wait=False)
            until(lambda: counters(a)["dray_store_objects"] == 3, "the objects")
            assert second.get(b"read") == value_of(b"read")
            assert ends(put(second, b"put", at="local")) == [(Status.EXISTS, Tier.NONE)]
            second.store.remove([b"gone"])
        read, own, gone = pending.result(LIMIT)
        assert read.status == own.status == Status.OK and gone.status == Status.BUSY
        assert here.has(b"put") == [True]
        until(lambda: counters(a)["dray_store_objects"] == 1, "the end of the others")


def test_full_here(group):
    """What is on its way is charged here meanwhile, is not evicted, and leaves its room."""
    a, b = group({"limits.store_bytes": "16MiB", "limits.store_bytes_per_owner": "16MiB"}, {"limits.store_bytes": "64MiB", "limits.store_bytes_per_owner": "64MiB"})
    with User(a, space=SPACE, size=32 * MIB) as here, User(b, space=SPACE) as other:
        done = set()
        for _ in range(3):
            for i in range(12):
                key = b"%d" % i
                if key not in done and put(here, key, at=b.listen[0], size=2 * MIB)[0].status in (Status.OK, Status.EXISTS):
                    done.add(key)
        assert done and other.has(*sorted(done)) == [True] * len(done)
        nothing_is_here(a)


def test_disk_here_is_not_written(group, lab):
    disk = {"store.disk_dir": lab.directory("disk"), "limits.store_disk_bytes": "64MiB", "limits.store_disk_bytes_per_owner": "64MiB"}
    a, b = group(disk, ())
    with User(a, space=SPACE) as here:
        assert there(here, b"key", at=b.listen[0]) == AT
        assert counters(a)["dray_store_disk_writes_total"] == 0 and counters(a)["dray_store_disk_missing_objects"] == 0
        assert put(here, b"own", at=a.listen[0])[0].status == Status.OK
        until(lambda: counters(a)["dray_store_disk_objects"] == 1, "the object on disk")


def test_drain_waits(group):
    """A drain waits for PUTs; the other agent gets nothing any more."""
    a, b = group({"agent.drain_timeout": "5s"}, ())
    with User(a, space=SPACE) as here:
        with stopped(b):
            pending = put(here, b"key", at=b.listen[0], wait=False)
            until(lambda: counters(a)["dray_store_objects"] == 1, "the object")
            a.ctl("drain")
        try:
            assert pending.result(LIMIT)[0].status in (Status.OK, Status.BUSY)
        except errors.Error:
            pass


def test_rounds_of_kills(group):
    """The other agent dies at any moment of many PUTs: each has an answer, and nothing stays here."""
    a, b = group((), ())
    with User(a, space=SPACE, size=32 * MIB) as here:
        for round_ in range(4):
            keys = [b"%d-%d" % (round_, i) for i in range(6)]
            pending = [put(here, key, at=b.listen[0], size=random.Random(key).choice([1000, SIZE, 2 * MIB]), wait=False) for key in keys]
            b.kill()
            for one in pending:
                assert one.result(LIMIT)[0].status in (Status.OK, Status.UNREACHABLE, Status.BUSY)
            nothing_is_here(a)
            b.start()
            until(lambda: there(here, b"after-%d" % round_, at=b.listen[0]), "the next agent")  # noqa: B023
