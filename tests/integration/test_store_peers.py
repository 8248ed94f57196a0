# SPDX-License-Identifier: Apache-2.0
"""The stores of several agents: GETs and EXISTS of what another one has, its loss, name spaces, damaged bytes, and leases beside eviction."""

import contextlib
import os
import pathlib
import random
import re
import signal
import time

import pytest
from dray import Status, Tier, errors
from harness import LIMIT, MIB, until
from test_store import User, counters

UID = os.getuid()
STORE = {"limits.store_bytes": "16MiB", "limits.store_bytes_per_owner": "16MiB", "store.segment_size": "2MiB",
         "store.spaces": f"kv=default:{UID},apart=default:{UID}"}


# An agent that gets no processor is silent, too. So only tests of silence have the usual time, which is short.
PATIENT, IMPATIENT = {"store.peer_timeout": "10s"}, {"store.peer_timeout": "300ms"}


@pytest.fixture
def pair(new_agent):
    """An owner of objects, and a reader that asks it."""
    def make(owner=(), reader=()):
        a = new_agent("owner", settings=STORE | {"store.lend": "true"} | dict(owner), args=["--allow-insecure"])
        b = new_agent("reader", settings=STORE | PATIENT | {"store.peers": a.listen[0]} | dict(reader), args=["--allow-insecure"])
        until(lambda: any(p["state"] == "ready" for p in b.ctl("peers", "--json")["peers"]), "the reader's connection")
        return a, b
    return make


def value_of(key, size=300_000):
    return random.Random(key).randbytes(size)


def load(user, key):
    """The object, once the answer is not busy."""
    seen = []
    until(lambda: seen.append(user.get(key)) or seen[-1] != Status.BUSY, "another answer than busy")
    return seen[-1]


def released(owner):
    until(lambda: counters(owner)["dray_store_lent_bytes"] == 0, "the release of the lease")


@pytest.mark.parametrize("keep", ["true", "false"])
def test_get_from_another_agent(pair, keep):
    """One batch with keys from here, from there and from nowhere, and too little room for one."""
    owner, reader = pair(reader={"store.keep_copies": keep, "store.log": "batch"})
    with User(owner, space="kv") as there, User(reader, space="kv") as here:
        for key in (b"one", b"two", b"wide"):
            assert there.put(key, value_of(key)) == Status.OK
        assert here.put(b"own", value_of(b"own")) == Status.OK
        room = [(b"one", [(0, 100_000), (MIB, 200_000)]), (b"own", [(2 * MIB, 300_000)]), (b"none", [(3 * MIB, 10)]),
                (b"two", [(4 * MIB, 300_000)]), (b"wide", [(5 * MIB, 299_999)])]
        got = here.store.get(here.region, room)
        assert [r.status for r in got] == [Status.OK, Status.OK, Status.NOT_FOUND, Status.OK, Status.TOO_LARGE]
        assert [r.length for r in got] == [300_000, 300_000, 0, 300_000, 300_000]
        assert [r.tier for r in got] == [Tier.AGENT, Tier.MEMORY, Tier.NONE, Tier.AGENT, Tier.AGENT]
        line = until(lambda: re.search(r"GET of 5 keys took .*", reader.text())).group()
        assert "3 ok with 900000 bytes, 0 existed, 1 unknown, 1 failed with 300000 bytes; ok session=" in line
        assert " space=kv memory=1 memory_bytes=300000 " in line and " disk=0 disk_bytes=0 disk_ms=0.000 agents=2 agents_bytes=600000 " in line
        assert bytes(here.view[:100_000]) + bytes(here.view[MIB:MIB + 200_000]) == value_of(b"one")
        assert bytes(here.view[2 * MIB:2 * MIB + 300_000]) == value_of(b"own")
        assert bytes(here.view[4 * MIB:4 * MIB + 300_000]) == value_of(b"two")
        released(owner)
        after = counters(reader)
        assert after["dray_store_remote_hits_total"] == 2 and after["dray_store_remote_bytes_total"] == 600_000
        assert after["dray_store_remote_misses_total"] == 1 and after["dray_store_remote_lost_total"] == 0
        assert here.has(b"one", b"two", b"none") == [keep == "true"] * 2 + [False]
        assert here.get(b"one") == value_of(b"one")
        assert counters(reader)["dray_store_remote_hits_total"] == (2 if keep == "true" else 3)
        kv, = [s for s in reader.ctl("store", "--json")["store_spaces"] if s["space"] == "kv"]
        assert kv["remote_hits"] == (2 if keep == "true" else 3)


@pytest.mark.parametrize("keep", ["true", "false"])
def test_few_bytes_come_with_the_answer(pair, keep):
    """Nothing is leased or read; what is larger is."""
    owner, reader = pair(reader={"store.keep_copies": keep})
    with User(owner, space="kv") as there, User(reader, space="kv") as here:
        few, more = {b"one": 1, b"two": 16_000}, {b"large": 16 * 1024 + 1}
        for key, size in (few | more).items():
            assert there.put(key, value_of(key, size)) == Status.OK
        got = here.store.get(here.region, [(b"one", [(0, 1)]), (b"none", [(1, 10)]), (b"two", [(100, 7_000), (MIB, 9_000)])])
        assert [r.status for r in got] == [Status.OK, Status.NOT_FOUND, Status.OK]
        assert [r.length for r in got] == [1, 0, 16_000] and [r.tier for r in got] == [Tier.AGENT, Tier.NONE, Tier.AGENT]
        assert bytes(here.view[:1]) == value_of(b"one", 1) and here.view[1] == here.view[99] == 0
        assert bytes(here.view[100:7_100]) + bytes(here.view[MIB:MIB + 9_000]) == value_of(b"two", 16_000)
        assert counters(owner)["dray_store_lent_objects_total"] == 2 and counters(owner)["dray_store_lent_bytes"] == 0
        after = counters(reader)
        assert after["dray_store_remote_answered_total"] == after["dray_store_remote_hits_total"] == 2
        assert after["dray_store_remote_bytes_total"] == 16_001
        assert here.has(b"one", b"two") == [keep == "true"] * 2
        assert here.get(b"large") == value_of(b"large", 16 * 1024 + 1)
        after = counters(reader)
        assert after["dray_store_remote_answered_total"] == 2 and after["dray_store_remote_hits_total"] == 3
        released(owner)


def test_each_asks_the_other(new_agent):
    """Agents that list each other keep one connection, and both find over it what the other one has."""
    agents = [new_agent(name, start=False, settings=STORE | {"store.lend": "true"}, args=["--allow-insecure"]) for name in ("one", "two")]
    for agent, other in zip(agents, reversed(agents)):
        agent.settings["store.peers"] = other.listen[0]
    for agent in agents:
        agent.start()
    for agent, other in zip(agents, reversed(agents)):
        with User(agent, space="kv") as there, User(other, space="kv") as here:
            key = agent.name.encode()
            assert there.put(key, value_of(key)) == Status.OK
            until(lambda: here.get(key) == value_of(key), f"the object of {agent.name} at {other.name}")


def test_name_spaces_are_apart(pair):
    """Neither another name space nor that of the owner without a name is seen."""
    owner, reader = pair(reader={"store.spaces": f"kv=default:{UID},apart=default:{UID},more=default:{UID}"})
    with User(owner, space="kv") as there, User(owner) as private:
        assert there.put(b"key", b"value") == Status.OK and private.put(b"key", b"private") == Status.OK
        for space in ("apart", "more", ""):
            with User(reader, space=space) as here:
                assert here.get(b"key") == Status.NOT_FOUND
        with User(reader, space="kv") as here:
            assert here.get(b"key") == b"value"


@pytest.mark.parametrize("keep", ["true", "false"])
def test_owner_is_lost(pair, keep):
    """A copy of another agent would be read; there is none, and each GET has its answer within a second or so."""
    owner, reader = pair(reader={"store.keep_copies": keep})
    with User(owner, space="kv") as there, User(reader, space="kv", size=32 * MIB) as here:
        keys = [b"%d" % i for i in range(8)]
        for key in keys:
            assert there.put(key, value_of(key, MIB)) == Status.OK
        pending = here.store.get(here.region, [(key, [(i * MIB, MIB)]) for i, key in enumerate(keys)], wait=False)
        owner.kill()
        got = pending.result()
        for i, (key, r) in enumerate(zip(keys, got)):
            assert r.status in (Status.OK, Status.LOST, Status.NOT_FOUND, Status.BUSY)
            assert r.status != Status.OK or bytes(here.view[i * MIB:(i + 1) * MIB]) == value_of(key, MIB)
        assert here.get(b"other") == Status.NOT_FOUND
        assert here.put(b"mine", b"value") == Status.OK and here.get(b"mine") == b"value"
    owner.restart()


def test_owner_hangs(pair):
    """GETs have their answers beside an agent that hangs, and find its objects again when it goes on."""
    owner, reader = pair(reader=IMPATIENT)
    with User(owner, space="kv") as there, User(reader, space="kv") as here:
        assert there.put(b"key", value_of(b"key")) == Status.OK
        owner.process.send_signal(signal.SIGSTOP)
        try:
            assert [here.get(b"other") for _ in range(3)] == [Status.NOT_FOUND] * 3
        finally:
            owner.process.send_signal(signal.SIGCONT)
        until(lambda: here.get(b"key") == value_of(b"key"), "the object, from an agent that answers again")
        released(owner)


def test_damaged_on_the_owners_disk(pair, lab):
    """The owner finds the damage when it reads the object for the lookup."""
    folder = lab.directory("disk")
    owner, reader = pair(owner={"store.disk_dir": folder, "limits.store_disk_bytes": "64MiB",
                                "limits.store_disk_bytes_per_owner": "64MiB"})
    with User(owner, space="kv") as there, User(reader, space="kv") as here:
        assert there.put(b"good", value_of(b"good")) == Status.OK and there.put(b"bad", value_of(b"bad")) == Status.OK
        until(lambda: counters(owner)["dray_store_disk_objects"] == 2, "both on disk")
        owner.ctl("store", "--evict", "16MiB", "--space", "kv")
        mark = value_of(b"bad")[1000:1016]
        for path in pathlib.Path(folder).rglob("*"):
            data = path.read_bytes() if path.is_file() else b""
            if mark in data:
                with open(path, "r+b") as f:
                    f.seek(data.index(mark))
                    f.write(b"\0" * 16)
        assert load(here, b"bad") == Status.CORRUPT
        assert load(here, b"good") == value_of(b"good")
        assert here.get(b"bad") == Status.NOT_FOUND


def test_lookups_are_refused_without_lend(pair):
    owner, reader = pair(owner={"store.lend": "false"})
    with User(owner, space="kv") as there, User(reader, space="kv") as here:
        assert there.put(b"key", b"value") == Status.OK
        assert here.get(b"key") == Status.NOT_FOUND
        assert counters(owner)["dray_store_lent_objects_total"] == 0


def test_agent_without_a_store_is_asked(new_agent):
    """It refuses, and goes on."""
    other = new_agent("other", args=["--allow-insecure"])
    reader = new_agent("reader", settings=STORE | {"store.peers": other.listen[0]}, args=["--allow-insecure"])
    until(lambda: any(p["state"] == "ready" for p in reader.ctl("peers", "--json")["peers"]), "the reader's connection")
    with User(reader, space="kv") as here:
        assert here.get(b"key") == Status.NOT_FOUND
        assert look(here, b"key")[0].status == Status.NOT_FOUND
    assert other.process.poll() is None
    assert [p["state"] for p in reader.ctl("peers", "--json")["peers"]] == ["ready"]


def test_many_keys(pair):
    """More than one lookup, over several turns, beside evictions at the owner."""
    owner, reader = pair()
    with User(owner, space="kv") as there, User(reader, space="kv") as here:
        keys = [b"%d" % i + b"x" * 120 for i in range(1000)]
        there.store.put(there.region, [(key, [(i * 64, 64)]) for i, key in enumerate(keys)])
        there.view[:64000] = random.Random(1).randbytes(64000)
        there.store.remove(keys)
        assert {r.status for r in there.store.put(there.region, [(key, [(i * 64, 64)]) for i, key in enumerate(keys)])} == {Status.OK}
        got = here.store.get(here.region, [(key, [(i * 64, 64)]) for i, key in enumerate(keys)])
        assert {r.status for r in got} == {Status.OK}
        assert bytes(here.view[:64000]) == bytes(there.view[:64000])
        released(owner)


# --- EXISTS ------------------------------------------------------------------------------------------------------


LEASE = 10.0
LONG = {"store.lookup_lease": "10s"}


def look(user, *keys, lease=LEASE):
    """Results of an EXISTS that asks the other agents, once none is busy."""
    seen = []
    until(lambda: seen.append(user.store.exists(list(keys), lease=lease)) or all(r.status != Status.BUSY for r in seen[-1]),
          "an answer that is not busy")
    return seen[-1]


def leased(user, *keys, lease=LEASE):
    """The same, once all are found: on a slow machine an agent may miss the time for its answer. Returns when these leases may end."""
    began = []
    until(lambda: began.append(time.monotonic()) or all(r.status == Status.OK for r in look(user, *keys, lease=lease)), "the objects")
    return began[-1] + lease / 2


def lent(owner):
    return counters(owner)["dray_store_lent_bytes"]


def test_exists_leases_what_get_reads(pair):
    """What is found elsewhere stays there; the GET reads it without another lookup, and the lease ends."""
    owner, reader = pair(reader=LONG)
    with User(owner, space="kv") as there, User(reader, space="kv") as here:
        assert here.put(b"own", value_of(b"own")) == Status.OK
        assert there.put(b"far", value_of(b"far")) == Status.OK
        assert [r.status for r in here.store.exists([b"own", b"far"])] == [Status.OK, Status.NOT_FOUND]
        assert lent(owner) == 0
        leased(here, b"far")
        got = look(here, b"own", b"far", b"none")
        assert [r.status for r in got] == [Status.OK, Status.OK, Status.NOT_FOUND]
        assert [r.tier for r in got] == [Tier.MEMORY, Tier.AGENT, Tier.NONE] and got[1].length == 300_000
        ends = leased(here, b"far")
        assert lent(owner) >= 300_000
        objects = counters(owner)["dray_store_lent_objects_total"]
        # the owner would evict it for these
        for i in range(5):
            there.store.put(there.region, [(b"more%d.%d" % (i, k), [(0, 290_000)]) for k in range(20)])
        assert counters(owner)["dray_store_evictions_total"]
        assert there.has(b"far") == [True] or time.monotonic() > ends
        assert here.get(b"far") == value_of(b"far")
        assert counters(owner)["dray_store_lent_objects_total"] == objects or time.monotonic() > ends
        released(owner)


def test_another_session_reads_what_is_leased(pair):
    """As an engine's worker process does with what its scheduler holds: nobody is asked again, and the lease stays."""
    owner, reader = pair(reader=LONG | {"store.keep_copies": "false"})
    with User(owner, space="kv") as there, User(reader, space="kv") as scheduler, User(reader, space="kv") as worker:
        for key in (b"1", b"2"):
            assert there.put(key, value_of(key)) == Status.OK
        ends = leased(scheduler, b"1", b"2")
        objects = counters(owner)["dray_store_lent_objects_total"]
        for key in (b"1", b"2", b"1"):
            assert worker.get(key) == value_of(key)
        assert counters(owner)["dray_store_lent_objects_total"] == objects or time.monotonic() > ends
        assert lent(owner) >= 600_000 or time.monotonic() > ends
        # one of them is held here; the other one is asked for
        scheduler.store.unpin([b"1"])
        assert worker.get(b"1") == value_of(b"1") and worker.get(b"2") == value_of(b"2")
        pending = worker.store.get(worker.region, [(b"2", [(0, 300_000)])], wait=False)
        scheduler.client.close()
        got, = pending.result(LIMIT)
        assert got.status == Status.OK and bytes(worker.view[:300_000]) == value_of(b"2")
        released(owner)


def test_a_lease_is_renewed(pair):
    """By an EXISTS of the session that has it: after half of its time another lookup leases the object anew."""
    owner, reader = pair(reader=LONG)
    with User(owner, space="kv") as there, User(reader, space="kv") as here:
        assert there.put(b"key", value_of(b"key")) == Status.OK
        leased(here, b"key", lease=1.0)
        before = counters(owner)["dray_store_lent_objects_total"]
        until(lambda: look(here, b"key", lease=1.0) and counters(owner)["dray_store_lent_objects_total"] > before + 1, "two more leases")
        leased(here, b"key", lease=1.0)
        here.store.unpin([b"key"])
        released(owner)


def test_exists_and_get_of_some(pair):
    """One GET takes over what is held, and asks for the rest, also twice for one key."""
    owner, reader = pair(reader=LONG)
    with User(owner, space="kv") as there, User(reader, space="kv") as here:
        keys = [b"a", b"b", b"c", b"d"]
        for key in keys:
            assert there.put(key, value_of(key)) == Status.OK
        ends = leased(here, b"b", b"d")
        wanted = [b"a", b"b", b"b", b"c", b"none"]
        items = [(key, [(i * MIB, 300_000)]) for i, key in enumerate(wanted)]
        until(lambda: [r.status for r in here.store.get(here.region, items)] == [Status.OK] * 4 + [Status.NOT_FOUND], "all that there is")
        for i, key in enumerate(wanted[:4]):
            assert bytes(here.view[i * MIB:i * MIB + 300_000]) == value_of(key)
        # d is held still, with b, which the same lookup has found
        assert lent(owner) >= 600_000 or time.monotonic() > ends
        got = [r.status for r in here.store.unpin([b"d", b"b"])]
        assert got == [Status.OK, Status.NOT_FOUND] or time.monotonic() > ends
        released(owner)


def test_refused_get_leaves_what_is_held(pair):
    """A session that has too many requests keeps its leases: the next GET, also of the client library itself, uses them."""
    owner, reader = pair(reader=LONG | {"limits.requests_per_session": "1"})
    with User(owner, space="kv") as there, User(reader, space="kv") as here:
        for i in range(20):
            key = b"key %d" % i
            assert there.put(key, value_of(key)) == Status.OK
            ends = leased(here, key)
            objects = counters(owner)["dray_store_lent_objects_total"]
            waits = here.store.get(here.region, [(b"none", [(0, 1)])], wait=False)
            second = here.store.get(here.region, [(key, [(0, 300_000)])], wait=False)
            waits.result(LIMIT)
            with contextlib.suppress(errors.Busy):
                second.result(LIMIT)
            assert here.get(key) == value_of(key)
            assert counters(owner)["dray_store_lent_objects_total"] == objects or time.monotonic() > ends


@pytest.mark.parametrize("how", ["unpin", "session", "time"])
def test_exists_ends(pair, how):
    owner, reader = pair()
    with User(owner, space="kv") as there, User(reader, space="kv") as here:
        assert there.put(b"key", value_of(b"key")) == Status.OK
        with User(reader, space="kv") as user:
            ends = leased(user, b"key", lease=0.2 if how == "time" else LEASE)
            if how == "unpin":
                assert user.store.unpin([b"key"])[0].status == Status.OK or time.monotonic() > ends
            if how != "session":
                released(owner)
        released(owner)
        until(lambda: here.get(b"key") == value_of(b"key"), "the object")


def test_exists_of_an_owner_that_is_lost(pair):
    """Its object was promised, and is lost."""
    owner, reader = pair(reader=LONG)
    with User(owner, space="kv") as there, User(reader, space="kv") as here:
        assert there.put(b"key", value_of(b"key")) == Status.OK
        ends = leased(here, b"key")
        owner.kill()
        assert here.get(b"key") == Status.LOST or time.monotonic() > ends
        assert here.get(b"key") == Status.NOT_FOUND
        assert look(here, b"key")[0].status == Status.NOT_FOUND
    owner.restart()


def test_exists_of_an_owner_that_hangs(pair):
    """An answer that does not come costs the hit."""
    owner, reader = pair(reader=IMPATIENT)
    with User(owner, space="kv") as there, User(reader, space="kv") as here:
        assert there.put(b"key", value_of(b"key")) == Status.OK
        owner.process.send_signal(signal.SIGSTOP)
        try:
            assert look(here, b"key")[0].status == Status.NOT_FOUND
        finally:
            owner.process.send_signal(signal.SIGCONT)
        leased(here, b"key")
        until(lambda: here.get(b"key") == value_of(b"key"), "the object, from an agent that answers again")


def test_lease_that_has_ended_beside_eviction(pair):
    """The owner has evicted it meanwhile: GET asks again, and does not find it."""
    owner, reader = pair()
    with User(owner, space="kv") as there, User(reader, space="kv") as here:
        assert there.put(b"key", value_of(b"key")) == Status.OK
        leased(here, b"key", lease=0.1)
        released(owner)
        assert there.store.remove([b"key"])[0].status == Status.OK
        assert here.get(b"key") == Status.NOT_FOUND


def test_removed_at_the_owner(pair):
    """What is leased can be read after its removal."""
    owner, reader = pair(reader=LONG)
    with User(owner, space="kv") as there, User(reader, space="kv") as here:
        assert there.put(b"key", value_of(b"key")) == Status.OK
        ends = leased(here, b"key")
        assert there.store.remove([b"key"])[0].status == Status.OK
        assert here.get(b"key") == value_of(b"key") or time.monotonic() > ends
        released(owner)


def agents_that_lend(new_agent, settings):
    """(two agents that lend objects, a third one that asks both)"""
    agents = [new_agent(name, settings=STORE | {"store.lend": "true"}, args=["--allow-insecure"]) for name in ("one", "two")]
    reader = new_agent("reader", settings=STORE | PATIENT | settings | {"store.peers": ",".join(a.listen[0] for a in agents)}, args=["--allow-insecure"])
    until(lambda: sum(p["state"] == "ready" for p in reader.ctl("peers", "--json")["peers"]) == 2, "both connections")
    return agents, reader


def test_exists_with_three_agents(new_agent):
    """Each of two owners has a part; one of them is killed between EXISTS and GET, and the other one has a copy of one object."""
    agents, reader = agents_that_lend(new_agent, LONG)
    with User(agents[0], space="kv") as one, User(agents[1], space="kv") as two, User(reader, space="kv") as here:
        for user, keys in ((one, (b"1", b"both")), (two, (b"2", b"both"))):
            for key in keys:
                assert user.put(key, value_of(key)) == Status.OK
        ends = leased(here, b"1", b"2", b"both")
        agents[0].kill()
        got = here.store.get(here.region, [(key, [(i * MIB, 300_000)]) for i, key in enumerate((b"1", b"2", b"both"))])
        if [r.status for r in got] != [Status.LOST, Status.OK, Status.OK]:
            assert time.monotonic() > ends, got
            return
        assert bytes(here.view[MIB:MIB + 300_000]) == value_of(b"2")
        assert bytes(here.view[2 * MIB:2 * MIB + 300_000]) == value_of(b"both")
        released(agents[1])
    agents[0].restart()


def test_exists_limits(pair):
    """Leases of a session are bounded: beyond that keys are busy, and a GET still has them."""
    owner, reader = pair(reader={"limits.store_leases_per_session": "2"})
    with User(owner, space="kv") as there, User(reader, space="kv") as here:
        keys = [b"a", b"b", b"c"]
        for key in keys:
            assert there.put(key, value_of(key)) == Status.OK
        until(lambda: [r.status for r in here.store.exists(keys, lease=LEASE)] == [Status.OK, Status.OK, Status.BUSY], "two leases")
        for key in (b"c", b"a"):
            until(lambda key=key: here.get(key) == value_of(key), "the object")
        until(lambda: look(here, *keys)[1].tier == Tier.AGENT, "the other one")
        here.store.unpin([b"b"])
        released(owner)


def test_exists_waits_for_no_disk(pair, lab):
    """What is on the owner's disk is busy while it is read, and then leased."""
    owner, reader = pair(owner={"store.disk_dir": lab.directory("disk"), "limits.store_disk_bytes": "64MiB",
                                "limits.store_disk_bytes_per_owner": "64MiB"})
    with User(owner, space="kv") as there, User(reader, space="kv") as here:
        assert there.put(b"key", value_of(b"key")) == Status.OK
        until(lambda: counters(owner)["dray_store_disk_objects"] == 1, "it is on disk")
        owner.ctl("store", "--evict", "16MiB", "--space", "kv")
        # the answers of a slow machine may come too late, when the first one has been read meanwhile
        statuses = []
        until(lambda: statuses.append(here.store.exists([b"key"], lease=LEASE)[0].status) or statuses[-1] == Status.OK, "the object")
        assert Status.BUSY in statuses or Status.NOT_FOUND in statuses
        assert here.get(b"key") == value_of(b"key")
        released(owner)
