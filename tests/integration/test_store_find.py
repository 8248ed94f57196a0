# SPDX-License-Identifier: Apache-2.0
"""Objects of other agents that workers ask for on their own data streams, and what is left to the connection of the agents."""

import signal

import pytest
from dray import Status, Tier, errors
from harness import LIMIT, MIB, until
from test_store import User, counters
from test_store_peers import IMPATIENT, UID, agents_that_lend, pair, released, value_of  # noqa: F401 (a fixture)

ONCE = {"store.keep_copies": "false"}
ROOMY = {"limits.store_bytes": "64MiB", "limits.store_bytes_per_owner": "64MiB"}
SIZES = (1, 4096, 16 * 1024 + 1, 64 * 1024, 64 * 1024 + 1, 300000, MIB, MIB + 1, 4 * MIB)


def found(agent):
    return counters(agent)["dray_store_remote_found_total"]


def found_so(reader, here, key, value):
    """The object comes on a data stream, at the latest when there is one, and neither agent waits for a processor."""
    before = found(reader)
    until(lambda: here.get(key, len(value)) == value and found(reader) > before, "the object on a data stream")


def get_in_a_row(here, keys, size):
    """GETs objects of this size side by side, whole and right."""
    here.view[:len(keys) * size] = bytes(len(keys) * size)
    got = here.store.get(here.region, [(key, [(i * size, size)]) for i, key in enumerate(keys)])
    assert [r.status for r in got] == [Status.OK] * len(keys)
    assert all(bytes(here.view[i * size:(i + 1) * size]) == value_of(key, size) for i, key in enumerate(keys))


def found_in_a_row(reader, here, keys, size):
    """How many of them have come on a data stream."""
    before = found(reader)
    get_in_a_row(here, keys, size)
    return found(reader) - before


def all_found(reader, here, keys, size):
    """As found_so(), for objects side by side."""
    until(lambda: found_in_a_row(reader, here, keys, size) == len(keys), "all objects on a data stream")


@pytest.mark.parametrize("keep", ["true", "false"])
def test_small_objects(pair, keep):  # noqa: F811
    owner, reader = pair(reader={"store.keep_copies": keep})
    with User(owner, space="kv") as there, User(reader, space="kv") as here:
        for i in range(200):
            assert there.put(b"try %d" % i, b"value") == Status.OK
        for size in SIZES:
            assert there.put(b"%d" % size, value_of(size, size)) == Status.OK
        tries = iter(range(200))
        until(lambda: here.get(b"try %d" % next(tries), 5) == b"value" and found(reader), "an object on a data stream")
        for size in SIZES:
            # leases of those before count, too, and beyond its share a reader is told that the owner is busy
            released(owner)
            if keep == "true":
                assert here.get(b"%d" % size, size) == value_of(size, size)
            else:
                found_so(reader, here, b"%d" % size, value_of(size, size))
            assert here.has(b"%d" % size) == [keep == "true"]
        assert counters(owner)["dray_store_lent_objects_total"] >= len(SIZES) + 1
        released(owner)


def test_batch(pair):  # noqa: F811
    """Keys from here, from there and from nowhere, and room that is too small."""
    owner, reader = pair(reader=ONCE)
    with User(owner, space="kv") as there, User(reader, space="kv") as here:
        for key in (b"one", b"two", b"wide"):
            assert there.put(key, value_of(key, 9000)) == Status.OK
        assert here.put(b"own", value_of(b"own", 100)) == Status.OK
        found_so(reader, here, b"one", value_of(b"one", 9000))
        for _ in range(3):
            got = here.store.get(here.region, [(b"one", [(0, 5000), (MIB, 4000)]), (b"own", [(2 * MIB, 100)]), (b"none", [(3 * MIB, 10)]),
                                               (b"two", [(4 * MIB, 9000)]), (b"wide", [(5 * MIB, 8999)])])
            assert [r.status for r in got] == [Status.OK, Status.OK, Status.NOT_FOUND, Status.OK, Status.TOO_LARGE]
            assert [r.length for r in got] == [9000, 100, 0, 9000, 9000]
            assert [r.tier for r in got] == [Tier.AGENT, Tier.MEMORY, Tier.NONE, Tier.AGENT, Tier.AGENT]
            assert bytes(here.view[:5000]) + bytes(here.view[MIB:MIB + 4000]) == value_of(b"one", 9000)
            assert bytes(here.view[4 * MIB:4 * MIB + 9000]) == value_of(b"two", 9000)


@pytest.mark.parametrize("size", [100, 3000, 64 * 1024])
def test_number_of_keys(pair, size):  # noqa: F811
    """More than 64 keys, or 4 MiB, come by a lease. In the answer, or behind it, they are the same."""
    owner, reader = pair(owner=ROOMY, reader=ROOMY | ONCE)
    with User(owner, space="kv") as there, User(reader, space="kv") as here:
        keys = [b"%d" % i for i in range(65)]
        for key in keys:
            assert there.put(key, value_of(key, size)) == Status.OK
        for n in (1, 2, 16, 17, 64):
            all_found(reader, here, keys[:n], size)
        assert found_in_a_row(reader, here, keys, size) == 0
        released(owner)


@pytest.mark.parametrize("keep", ["true", "false"])
def test_many_keys(pair, keep):  # noqa: F811
    """Some have several ranges, some are not there, or too large, or here already; places are in another order than bytes."""
    owner, reader = pair(reader={"store.keep_copies": keep})
    turns = iter(range(100))
    with User(owner, space="kv") as there, User(reader, space="kv") as here:
        def get_all():
            turn = next(turns)
            sizes = {b"%d %d" % (turn, i): (1, 4096, 65536, 99_999, 20_001, 300, 65_537, 16_385)[i % 8] for i in range(64)}
            missing, wide, own = list(sizes)[5::20][:3]
            for key, size in sizes.items():
                if key != missing:
                    assert (here if key == own else there).put(key, value_of(key, size)) == Status.OK
            starts = {key: MIB * 7 - i * 110_000 for i, key in enumerate(sizes)}
            items = [(key, [(starts[key], size - size // 3), (starts[key] + 70_000, size // 3 - (key == wide))] if size > 1000 else [(starts[key], size)])
                     for key, size in sizes.items()]
            before = found(reader)
            got = dict(zip(sizes, here.store.get(here.region, items)))
            count = found(reader) - before
            assert got.pop(missing).status == Status.NOT_FOUND and got.pop(wide).status == Status.TOO_LARGE
            assert got.pop(own).tier == Tier.MEMORY
            assert {(r.status, r.tier) for r in got.values()} == {(Status.OK, Tier.AGENT)}
            for key, ranges in items:
                assert key not in got or b"".join(bytes(here.view[at:at + n]) for at, n in ranges) == value_of(key, sizes[key])
            released(owner)
            return count == len(got)

        until(get_all, "all objects on a data stream")


def test_batch_with_a_key_on_disk(pair, lab):  # noqa: F811
    """All of the batch is read by a lease, after its owner has read that one."""
    owner, reader = pair(owner={"store.disk_dir": lab.directory("disk"), "limits.store_disk_bytes": "64MiB",
                                "limits.store_disk_bytes_per_owner": "64MiB"}, reader=ONCE)
    keys = [b"%d" % i for i in range(20)]
    with User(owner, space="kv") as there, User(reader, space="kv") as here:
        assert there.put(keys[7], value_of(keys[7], 5000)) == Status.OK
        until(lambda: counters(owner)["dray_store_disk_objects"] == 1, "it is on disk")
        owner.ctl("store", "--evict", "16MiB", "--space", "kv")
        for key in keys:
            assert there.put(key, value_of(key, 5000)) == (Status.EXISTS if key == keys[7] else Status.OK)
        get_in_a_row(here, keys, 5000)
        # it is in memory now
        all_found(reader, here, keys, 5000)


def spoil(agent, mark):
    """Writes zeros over these bytes in the memory of the store."""
    with open(f"/proc/{agent.pid}/maps") as maps, open(f"/proc/{agent.pid}/mem", "r+b", buffering=0) as memory:
        for line in maps:
            begin, end = (int(x, 16) for x in line.split()[0].split("-"))
            if "dray-store" not in line:
                continue
            memory.seek(begin)
            at = memory.read(end - begin).find(mark)
            if at >= 0:
                memory.seek(begin + at)
                memory.write(bytes(len(mark)))
                return
    raise AssertionError("the bytes are not in the memory of the store")


def test_wrong_bytes_of_one_key(pair):  # noqa: F811
    """That key alone is corrupt, and the client's range for it is zero."""
    owner, reader = pair(reader=ONCE)
    size, keys = 20_000, [b"%d" % i for i in range(64)]
    with User(owner, space="kv") as there, User(reader, space="kv") as here:
        for key in keys:
            assert there.put(key, value_of(key, size)) == Status.OK
        # after which the owner knows the checksums
        all_found(reader, here, keys, size)
        spoil(owner, value_of(keys[5], size)[1000:1064])
        got = here.store.get(here.region, [(key, [(i * size, size)]) for i, key in enumerate(keys)])
        assert [r.status for r in got] == [Status.CORRUPT if key == keys[5] else Status.OK for key in keys]
        assert all(bytes(here.view[i * size:(i + 1) * size]) == (value_of(key, size) if key != keys[5] else bytes(size)) for i, key in enumerate(keys))
        released(owner)


def test_without_polling(pair):  # noqa: F811
    """The reader's worker sleeps after each turn, but not while the copy of what it has found waits for one."""
    owner, reader = pair(reader=ONCE | {"agent.poll_time": "0us", "transfer.slice_timeout": "5min"})
    with User(owner, space="kv") as there, User(reader, space="kv") as here:
        assert there.put(b"key", value_of(b"key", 16 * 1024)) == Status.OK
        found_so(reader, here, b"key", value_of(b"key", 16 * 1024))
        for _ in range(50):
            assert here.get(b"key", 16 * 1024) == value_of(b"key", 16 * 1024)


def test_more_room_asks_for_a_lease(pair):  # noqa: F811
    """Whether an object is small is not known before: the room for it decides."""
    owner, reader = pair(reader=ONCE)
    with User(owner, space="kv") as there, User(reader, space="kv") as here:
        assert there.put(b"key", value_of(b"key", 4096)) == Status.OK
        found_so(reader, here, b"key", value_of(b"key", 4096))
        before = found(reader)
        for _ in range(3):
            assert here.get(b"key", 4 * MIB + 1) == value_of(b"key", 4096)
        assert found(reader) == before


def test_object_in_pieces(pair):  # noqa: F811
    """What follows the answer goes to many ranges, also to more than one transfer's slice has."""
    owner, reader = pair(reader=ONCE)
    value = value_of(b"key", 600000)
    with User(owner, space="kv") as there, User(reader, space="kv") as here:
        assert there.put(b"key", value) == Status.OK
        found_so(reader, here, b"key", value)
        ranges = [(i * 2000, 1000) for i in range(600)]
        before = found(reader)
        got, = here.store.get(here.region, [(b"key", ranges)])
        assert got.status == Status.OK and got.length == len(value) and found(reader) == before + 1
        assert b"".join(bytes(here.view[at:at + n]) for at, n in ranges) == value


def test_object_that_is_larger_than_the_room(pair):  # noqa: F811
    owner, reader = pair(reader=ONCE)
    with User(owner, space="kv") as there, User(reader, space="kv") as here:
        for size in (300000, 2 * MIB):
            assert there.put(b"%d" % size, value_of(b"key", size)) == Status.OK
        found_so(reader, here, b"300000", value_of(b"key", 300000))
        for room in (100, 70000, 299999, MIB):
            key = b"300000" if room < 300000 else b"%d" % (2 * MIB)
            got, = here.store.get(here.region, [(key, [(0, room)])])
            assert got.status == Status.TOO_LARGE and got.length == int(key)


@pytest.mark.parametrize("count", [1, 64])
@pytest.mark.parametrize("how", ["cancel", "deadline", "close"])
def test_get_ends_while_its_bytes_come(pair, how, count):  # noqa: F811
    """Whatever the moment is, nothing is leased afterwards, and the next one is whole."""
    owner, reader = pair(reader=ONCE)
    size = 4 * MIB // count
    keys = [b"%d" % i for i in range(count)]
    items = [(key, [(i * size, size)]) for i, key in enumerate(keys)]
    with User(owner, space="kv") as there, User(reader, space="kv") as here:
        for key in keys:
            assert there.put(key, value_of(key, size)) == Status.OK
        all_found(reader, here, keys, size)
        for _ in range(20):
            if how == "close":
                with User(reader, space="kv") as other:
                    other.store.get(other.region, items, wait=False)
                continue
            one = here.store.get(here.region, items, wait=False, deadline=0.001 if how == "deadline" else None)
            if how == "cancel":
                one.cancel()
            else:
                assert one.exception() is None or isinstance(one.exception(), errors.Deadline)
        released(owner)
        all_found(reader, here, keys, size)


def test_many_at_once(pair):  # noqa: F811
    """More than the streams have room for: each has its bytes, whichever way they come."""
    owner, reader = pair(owner={"limits.store_bytes": "128MiB", "limits.store_bytes_per_owner": "128MiB"}, reader=ONCE)
    with User(owner, 16 * MIB, space="kv") as there, User(reader, 16 * MIB, space="kv") as here:
        for i in range(16):
            assert there.put(b"%d" % i, value_of(i, MIB - i)) == Status.OK
        found_so(reader, here, b"0", value_of(0, MIB))
        for _ in range(4):
            pending = [here.store.get(here.region, [(b"%d" % i, [(i * MIB, MIB)])], wait=False) for i in range(16)]
            assert {one.result(LIMIT)[0].status for one in pending} == {Status.OK}
            assert all(bytes(here.view[i * MIB:(i + 1) * MIB - i]) == value_of(i, MIB - i) for i in range(16))
            released(owner)


@pytest.mark.parametrize("count", [1, 64])
@pytest.mark.parametrize("who", ["owner", "reader"])
def test_an_agent_is_killed_while_bytes_come(pair, who, count):  # noqa: F811
    """The owner holds nothing for a reader that is gone; what an owner has not sent is lost, or not found."""
    owner, reader = pair(reader=ONCE)
    keys, size = [b"%d" % i for i in range(count)], MIB // count
    with User(owner, space="kv") as there, User(reader, space="kv") as here:
        for key in keys:
            assert there.put(key, value_of(key, size)) == Status.OK
        all_found(reader, here, keys, size)
        pending = [here.store.get(here.region, [(key, [(i * MIB + k * size, size)]) for k, key in enumerate(keys)], wait=False) for i in range(4)]
        (owner if who == "owner" else reader).kill()
        if who == "owner":
            for i, one in enumerate(pending):
                for k, got in enumerate(one.result(LIMIT)):
                    assert got.status in (Status.OK, Status.LOST, Status.NOT_FOUND, Status.BUSY)
                    at = i * MIB + k * size
                    assert got.status != Status.OK or bytes(here.view[at:at + size]) == value_of(keys[k], size)
        else:
            released(owner)
            assert all(there.get(key) == value_of(key, size) for key in keys)
    (owner if who == "owner" else reader).restart()


def test_a_drain_waits_for_what_is_sent(pair):  # noqa: F811
    """What the reader has not taken yet counts as lent, and the drain does not cut it off."""
    narrow = {"tcp.buffer": "64KiB"}
    owner, reader = pair(owner=narrow | {"peer.heartbeat_limit": "1min"}, reader=ONCE | narrow | {"peer.heartbeat_limit": "1min"})
    value = value_of(b"key", MIB)
    with User(owner, space="kv") as there, User(reader, space="kv") as here:
        assert there.put(b"key", value) == Status.OK
        found_so(reader, here, b"key", value)
        released(owner)
        owner.signal(signal.SIGSTOP)
        pending = here.store.get(here.region, [(b"key", [(0, MIB)])], wait=False)
        # later requests have their answers, so the question has been sent
        for i in range(3):
            assert here.put(b"own %d" % i, b"value") == Status.OK
        reader.signal(signal.SIGSTOP)
        owner.process.send_signal(signal.SIGCONT)
        try:
            until(lambda: counters(owner)["dray_store_lent_bytes"] == MIB, "bytes on their way")
            owner.ctl("drain", "--stay", "--timeout", "1min")
            assert [owner.ctl("status", "--json")["state"] for _ in range(10)] == ["draining"] * 10
        finally:
            reader.process.send_signal(signal.SIGCONT)
        got, = pending.result(LIMIT)
        # if all this took long, the reader has asked again, and a draining owner lends nothing
        assert got.status in (Status.OK, Status.NOT_FOUND) and (got.status != Status.OK or bytes(here.view[:MIB]) == value)
        until(lambda: owner.ctl("status", "--json")["state"] == "drained", "the end of the drain")
        assert counters(owner)["dray_store_lent_bytes"] == 0


def test_more_than_may_be_lent(pair):  # noqa: F811
    """Others hold at most half of the owner's 8 MiB: the rest is busy, or comes later, and nothing stays held."""
    owner, reader = pair(owner={"limits.store_bytes": "8MiB", "limits.store_bytes_per_owner": "8MiB"}, reader=ONCE)
    value = value_of(b"key", MIB)
    with User(owner, space="kv") as there, User(reader, 16 * MIB, space="kv") as here:
        assert there.put(b"key", value) == Status.OK
        found_so(reader, here, b"key", value)
        pending = [here.store.get(here.region, [(b"key", [(i * MIB, MIB)])], wait=False) for i in range(8)]
        for i, one in enumerate(pending):
            got, = one.result(LIMIT)
            assert got.status in (Status.OK, Status.BUSY)
            assert got.status != Status.OK or bytes(here.view[i * MIB:(i + 1) * MIB]) == value
        found_so(reader, here, b"key", value)
        keys = [b"%d" % i for i in range(6)]
        for key in keys:
            assert there.put(key, value_of(key, MIB // 2)) == Status.OK
        got = here.store.get(here.region, [(key, [(i * MIB, MIB // 2)]) for i, key in enumerate(keys)])
        assert {r.status for r in got} <= {Status.OK, Status.BUSY}
        for i, (key, r) in enumerate(zip(keys, got)):
            assert r.status != Status.OK or bytes(here.view[i * MIB:][:MIB // 2]) == value_of(key, MIB // 2)
        released(owner)


def test_on_disk(pair, lab):  # noqa: F811
    """What is not in the memory of its owner is read as before."""
    owner, reader = pair(owner={"store.disk_dir": lab.directory("disk"), "limits.store_disk_bytes": "64MiB",
                                "limits.store_disk_bytes_per_owner": "64MiB"}, reader=ONCE)
    with User(owner, space="kv") as there, User(reader, space="kv") as here:
        assert there.put(b"key", value_of(b"key", 4096)) == Status.OK
        found_so(reader, here, b"key", value_of(b"key", 4096))
        until(lambda: counters(owner)["dray_store_disk_objects"] == 1, "it is on disk")
        owner.ctl("store", "--evict", "16MiB", "--space", "kv")
        until(lambda: here.get(b"key", 4096) == value_of(b"key", 4096), "the object from disk")


def test_name_spaces_are_apart(pair):  # noqa: F811
    """The owner decides who may use a name space."""
    owner, reader = pair(reader=ONCE | {"store.spaces": f"kv=default:{UID},apart=default:{UID},more=default:{UID}"})
    with User(owner, space="kv") as there, User(reader, space="kv") as here:
        assert there.put(b"key", b"value") == Status.OK
        found_so(reader, here, b"key", b"value")
        for space in ("apart", "more"):
            with User(reader, space=space) as other:
                assert [other.get(b"key", 5) for _ in range(3)] == [Status.NOT_FOUND] * 3
        found_so(reader, here, b"key", b"value")


def test_two_owners(new_agent):
    """Each has a part, and one of them goes."""
    agents, reader = agents_that_lend(new_agent, ONCE)
    with User(agents[0], space="kv") as one, User(agents[1], space="kv") as two, User(reader, space="kv") as here:
        for user, keys in ((one, (b"1", b"both")), (two, (b"2", b"both"))):
            for key in keys:
                assert user.put(key, value_of(key, 500)) == Status.OK
        for key in (b"1", b"2", b"both"):
            found_so(reader, here, key, value_of(key, 500))
        agents[0].kill()
        assert here.get(b"1", 500) in (Status.NOT_FOUND, Status.LOST)
        for key in (b"2", b"both"):
            found_so(reader, here, key, value_of(key, 500))
    agents[0].restart()


def test_owner_hangs(pair):  # noqa: F811
    """Requests end by their deadlines, with their session, or without the object, and are found again when it goes on."""
    owner, reader = pair(reader=ONCE | IMPATIENT)
    with User(owner, space="kv") as there, User(reader, space="kv") as here:
        assert there.put(b"key", b"value") == Status.OK
        found_so(reader, here, b"key", b"value")
        owner.signal(signal.SIGSTOP)
        try:
            gone = User(reader, space="kv")
            gone.store.get(gone.region, [(b"key", [(0, 5)])], wait=False)
            with pytest.raises(errors.Deadline):
                here.store.get(here.region, [(b"key", [(0, 5)])], deadline=0.02)
            cancelled = here.store.get(here.region, [(b"key", [(0, 5)])], wait=False)
            cancelled.cancel()
            gone.client.close()
            assert [here.get(b"key", 5) for _ in range(3)] == [Status.NOT_FOUND] * 3
        finally:
            owner.process.send_signal(signal.SIGCONT)
        found_so(reader, here, b"key", b"value")


def test_owner_drains(pair):  # noqa: F811
    """It lends nothing then, and does again when the drain is undone."""
    owner, reader = pair(reader=ONCE)
    with User(owner, space="kv") as there, User(reader, space="kv") as here:
        assert there.put(b"key", b"value") == Status.OK
        found_so(reader, here, b"key", b"value")
        owner.ctl("drain", "--wait", "--stay", "--timeout", "5s")
        until(lambda: here.get(b"key", 5) == Status.NOT_FOUND, "a draining owner lends nothing")
        owner.ctl("resume")
        until(lambda: here.get(b"key", 5) == b"value", "the object")


def test_places_that_take_several_turns(pair):  # noqa: F811
    """Bytes that follow an answer do not wait for their place. They are read by a lease when it is there."""
    owner, reader = pair(owner=ROOMY)
    with User(owner, space="kv") as there, User(reader, space="kv") as here:
        for i in range(200):
            assert there.put(b"try %d" % i, value_of(i, 20000)) == Status.OK
        for i in range(8):
            assert there.put(b"%d" % i, value_of(i, 2 * MIB)) == Status.OK
        for i in range(0, 8192, 512):
            here.store.put(here.region, [(b"own %d" % k, [(0, 4096)]) for k in range(i, i + 512)])
        for i in range(8):
            tries = iter(range(i * 25, i * 25 + 25))
            before = found(reader)
            until(lambda: here.get(b"try %d" % next(tries), 20000) and found(reader) > before, "an object on a data stream")
            assert here.get(b"%d" % i, 2 * MIB) == value_of(i, 2 * MIB)
        assert counters(reader)["dray_transfers_failed_total"] == 0
        released(owner)
