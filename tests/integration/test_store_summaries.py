# SPDX-License-Identifier: Apache-2.0
"""Summaries of stores: agents ask only those that may have a key, with real agents that come, change and go."""

import os

import pytest
from dray import Status, Tier
from harness import until
from test_store import User, counters
from test_store_peers import PATIENT, STORE, load, look, value_of

UID = os.getuid()
SUMMARIES = {"store.summaries": "true"}


@pytest.fixture
def three(new_agent):
    """Two owners of objects, and a reader that asks both; with or without summaries."""
    def make(owners=(SUMMARIES, SUMMARIES), reader=SUMMARIES):
        owners = [new_agent(name, settings=STORE | {"store.lend": "true"} | more, args=["--allow-insecure"])
                  for name, more in zip(("one", "two"), owners)]
        reader = new_agent("reader", settings=STORE | PATIENT | {"store.peers": ",".join(a.listen[0] for a in owners)} | reader,
                           args=["--allow-insecure"])
        connected(reader)
        return *owners, reader
    return make


def connected(reader, n=2):
    until(lambda: sum(p["state"] == "ready" for p in reader.ctl("peers", "--json")["peers"]) == n, "the connections")


def summaries(user, n):
    """The reader has so many; it asks for them when it asks for a key."""
    until(lambda: user.get(b"nobody has it") == Status.NOT_FOUND and counters(user.agent)["dray_store_summaries"] == n, f"{n} summaries")


def skipped(reader):
    return counters(reader)["dray_store_summaries_skipped_total"]


class Reader(User):
    def __init__(self, agent):
        super().__init__(agent, space="kv")
        self.agent = agent


def test_only_those_are_asked_that_may_have_it(three):
    one, two, reader = three()
    with User(one, space="kv") as first, User(two, space="kv") as second, Reader(reader) as here:
        assert first.put(b"1", value_of(b"1")) == Status.OK and second.put(b"2", value_of(b"2")) == Status.OK
        summaries(here, 2)
        assert counters(reader)["dray_store_summaries_bytes"] == 2 * 8192
        # the summaries have come before the GETs that asked for them, or later with what was put
        until(lambda: here.get(b"1") == value_of(b"1"), "the first agent's object")
        until(lambda: look(here, b"2")[0].tier == Tier.AGENT, "the second agent's object")
        before = skipped(reader)
        assert here.get(b"nobody") == Status.NOT_FOUND
        assert skipped(reader) == before + 2
        # one that comes later
        assert second.put(b"later", value_of(b"later")) == Status.OK
        until(lambda: here.get(b"later") == value_of(b"later"), "the object that has come")


def test_summary_alone_is_no_hit(three):
    """What has gone is in the summary still, and is asked for in vain."""
    one, _, reader = three()
    with User(one, space="kv") as there, Reader(reader) as here:
        assert there.put(b"key", value_of(b"key")) == Status.OK
        summaries(here, 2)
        until(lambda: look(here, b"key")[0].status == Status.OK, "the object")
        here.store.unpin([b"key"])
        assert there.store.remove([b"key"])[0].status == Status.OK
        assert look(here, b"key")[0].status == Status.NOT_FOUND
        assert load(here, b"key") == Status.NOT_FOUND


def test_agent_that_makes_none_is_asked_for_all(three):
    one, two, reader = three(owners=({}, SUMMARIES))
    with User(one, space="kv") as first, User(two, space="kv") as second, Reader(reader) as here:
        summaries(here, 1)
        before = skipped(reader)
        assert first.put(b"1", value_of(b"1")) == Status.OK and second.put(b"2", value_of(b"2")) == Status.OK
        until(lambda: here.get(b"1") == value_of(b"1"), "the object of the agent without a summary")
        until(lambda: here.get(b"2") == value_of(b"2"), "the object of the other one")
        assert skipped(reader) > before


def test_reader_without_summaries_asks_all(three):
    one, _, reader = three(reader={})
    with User(one, space="kv") as there, Reader(reader) as here:
        assert there.put(b"key", value_of(b"key")) == Status.OK
        until(lambda: here.get(b"key") == value_of(b"key"), "the object")
        assert counters(reader)["dray_store_summaries"] == skipped(reader) == 0
        assert counters(one)["dray_store_summaries_bytes"] == 0


def test_owner_is_started_again(three):
    """Its summary goes with the connection, and comes again: without what is gone, and with what has come."""
    one, two, reader = three()
    with User(two, space="kv") as there, Reader(reader) as here:
        with User(one, space="kv") as before:
            assert before.put(b"old", value_of(b"old")) == Status.OK
        assert there.put(b"other", value_of(b"other")) == Status.OK
        summaries(here, 2)
        one.kill()
        until(lambda: counters(reader)["dray_store_summaries"] == 1, "the loss of a summary")
        until(lambda: here.get(b"other") == value_of(b"other"), "the object of the other agent")
        one.start()
        connected(reader)
        with User(one, space="kv") as after:
            assert after.put(b"new", value_of(b"new")) == Status.OK
            summaries(here, 2)
            until(lambda: here.get(b"new") == value_of(b"new"), "the new object")
            assert here.get(b"old") == Status.NOT_FOUND


def test_objects_on_disk(three, lab):
    """A summary has them after a restart of the agent, before anybody has asked for them."""
    disk = {"store.disk_dir": lab.directory("disk"), "limits.store_disk_bytes": "64MiB", "limits.store_disk_bytes_per_owner": "64MiB"}
    one, _, reader = three(owners=(SUMMARIES | disk, SUMMARIES))
    with Reader(reader) as here:
        with User(one, space="kv") as there:
            keys = [b"%d" % i for i in range(5)]
            for key in keys:
                assert there.put(key, value_of(key)) == Status.OK
            until(lambda: counters(one)["dray_store_disk_objects"] == 5, "all on disk")
        one.restart()
        connected(reader)
        summaries(here, 2)
        for key in keys:
            until(lambda key=key: load(here, key) == value_of(key), "the object")


def test_many_objects(three):
    """More than one part, and keys whose filter has no room for more."""
    one, _, reader = three()
    with User(one, space="kv") as there, Reader(reader) as here:
        summaries(here, 2)
        for at in range(0, 10_000, 1_000):
            got = there.store.put(there.region, [(b"%d" % i, [(0, 64)]) for i in range(at, at + 1000)])
            assert {r.status for r in got} == {Status.OK}
        # 10,000 objects want 262,144 bits; the filter was made for none
        until(lambda: counters(reader)["dray_store_summaries_bytes"] == 8192 + 32768 and counters(reader)["dray_store_summaries"] == 2,
              "the larger summary")
        got = look(here, *[b"%d" % i for i in range(0, 10_000, 20)])
        assert {r.status for r in got} == {Status.OK}
        before = skipped(reader)
        got = look(here, *[b"none %d" % i for i in range(500)])
        assert {r.status for r in got} == {Status.NOT_FOUND}
        # at both agents, without the few that are in a summary though nobody has them
        assert skipped(reader) > before + 900
