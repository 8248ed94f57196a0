# SPDX-License-Identifier: Apache-2.0
"""The store: objects by key in the agent's memory. Batches, name spaces and their owners, eviction, reading in place, and faults."""

import array
import asyncio
import mmap
import os
import random
import resource
import signal
import subprocess
import sys
from ctypes import byref, c_uint64, string_at

import dray
import pytest
from dray import Status, Tier, _library as lib, errors, store
from harness import LIBRARY, LIMIT, MIB, ROOT, Raw, counters, until
from wire import codec as s

TRIES = 20 if "DRAY_LONG" in os.environ else 4  # of what depends on timing
STORE = {"limits.store_bytes": "64MiB", "limits.store_bytes_per_owner": "64MiB", "store.segment_size": "4MiB"}


@pytest.fixture
def agent(new_agent):
    return new_agent(settings=STORE)


class User:
    """A client with a region and the default name space."""

    def __init__(self, agent, size=8 * MIB, space="", **how):
        self.client = agent.client(**how)
        self.memory = dray.Memory(size)
        self.view = self.memory.view
        self.region = self.client.region(self.memory)
        self.store = self.client.store(space)

    def put(self, key, value, cost=0.0):
        self.view[:len(value)] = value
        return self.store.put(self.region, [(key, [(0, len(value))], cost)])[0].status

    def get(self, key, room=None):
        """The bytes of the object; a Status if there is none."""
        room = room or len(self.view)
        self.view[:room] = bytes(room)
        got, = self.store.get(self.region, [(key, [(0, room)])])
        return bytes(self.view[:got.length]) if got.status == Status.OK else got.status

    def has(self, *keys):
        return [r.status == Status.OK for r in self.store.exists(keys)]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.client.close()
        self.view.release()
        self.memory.close()


def tenants(new_agent, *names, **settings):
    agent = new_agent(start=False, settings=STORE | {"limits.store_bytes_per_owner": "32MiB"} | settings)
    agent.settings["data.tenants"] = ",".join(f"{name}:{agent.directory}/{name}.sock" for name in names)
    agent.start()

    class Door:
        def __init__(self, name):
            self.path = agent.directory / f"{name}.sock"

        def client(self, **how):
            return dray.Client(self.path, timeout=LIMIT, **how)
    return agent, [Door(name) for name in names]


@pytest.mark.parametrize("size", [1, 63, 64, 65, 4096, 4097, 100_001, 5 * MIB + 3])
def test_what_is_put_is_got(agent, size):
    """Also values that are larger than a segment."""
    value = random.Random(size).randbytes(size)
    with User(agent) as user, User(agent) as other:
        assert user.put(b"key", value) == Status.OK
        assert user.get(b"key") == value
        assert other.get(b"key") == value, "another session of the same owner"
        assert other.put(b"key", b"other") == Status.EXISTS
        assert user.get(b"key") == value
        assert user.get(b"key", 1) == (value if size == 1 else Status.TOO_LARGE)
        assert user.store.remove([b"key", b"key"]) == [(Status.OK, size, 0, 0, 0), (Status.NOT_FOUND, 0, 0, 0, 0)]
        assert other.get(b"key") == Status.NOT_FOUND


def test_a_batch_has_a_result_for_every_key(agent):
    """Values in pieces, keys of every length, keys that are there and keys that are not."""
    keys = [bytes([65 + n % 26]) * n for n in (1, 2, 8, 9, 254, 255)]
    with User(agent) as user:
        user.view[:600] = bytes(range(200)) * 3
        put = user.store.put(user.region, [(key, [(i * 100, 50), (i * 100 + 50, 50)]) for i, key in enumerate(keys)]
                             + [(keys[0], [(0, 5)])])
        assert [r.status for r in put] == [Status.OK] * 6 + [Status.EXISTS]
        got = user.store.get(user.region, [(key, [(1000 + i * 100, 1), (2000 + i * 100, 99)]) for i, key in enumerate(keys)]
                             + [(b"none", [(0, 5)])])
        assert [r.status for r in got] == [Status.OK] * 6 + [Status.NOT_FOUND]
        for i in range(6):
            assert user.view[1000 + i * 100:1001 + i * 100].tobytes() + user.view[2000 + i * 100:2099 + i * 100].tobytes() \
                == user.view[i * 100:i * 100 + 100].tobytes()
        found = user.store.exists([*keys, b"none"])
        assert [(r.status, r.length, r.tier) for r in found] == [(Status.OK, 100, Tier.MEMORY)] * 6 + [(Status.NOT_FOUND, 0, Tier.NONE)]
        after = counters(agent)
        assert after["dray_store_objects"] == 6 and after["dray_store_bytes"] == 600
        assert after["dray_store_hits_total"] == 6 and after["dray_store_misses_total"] == 1


def test_awaiting(agent):
    async def work(user):
        put = [user.store.put(user.region, [(b"%d" % i, [(i * 4096, 4096)])], wait=False) for i in range(64)]
        return [r[0].status for r in await asyncio.gather(*put)], await user.store.exists([b"0", b"63", b"64"], wait=False)

    with User(agent) as user:
        put, found = asyncio.run(work(user))
        assert put == [Status.OK] * 64
        assert [r.status for r in found] == [Status.OK, Status.OK, Status.NOT_FOUND]


def test_a_short_request_is_awaited_by_the_library(agent):
    """Not by polling its descriptor, for which the agent wakes the client each time."""
    with User(agent) as user:
        user.put(b"key", b"value")

        def waits():
            info = lib.Info()
            assert lib.held.dray_get_info(user.client._d, byref(info)) == 0
            return info.waits_spun + info.waits_slept
        before = waits()
        until(lambda: user.get(b"key") == b"value" and waits() > before, "such a wait")


def test_two_clients_put_the_same_keys_at_once(agent):
    """Each key is stored once, whole, as one of the two wrote it."""
    keys = [b"%d" % i for i in range(64)]
    with User(agent) as a, User(agent) as b:
        a.view[:], b.view[:] = b"a" * len(a.view), b"b" * len(b.view)
        size = 100_000
        pending = [user.store.put(user.region, [(key, [(i * size, size)]) for i, key in enumerate(keys)], wait=False)
                   for user in (a, b)]
        first, second = ([r.status for r in p.result(LIMIT)] for p in pending)
        for one, two in zip(first, second):
            assert sorted((one, two)) == [Status.OK, Status.EXISTS]
        for key, one in zip(keys, first):
            assert a.get(key) == (b"a" if one == Status.OK else b"b") * size


# --- owners ---------------------------------------------------------------------------------------

def test_owners_see_nothing_of_each_other(new_agent):
    agent, (left, right) = tenants(new_agent, "left", "right")
    with User(left) as a, User(right) as b:
        assert a.put(b"key", b"secret") == Status.OK
        assert b.get(b"key") == Status.NOT_FOUND and b.has(b"key") == [False]
        assert b.store.remove([b"key"])[0].status == Status.NOT_FOUND
        assert b.store.read([b"key"])[0].status == Status.NOT_FOUND
        assert b.put(b"key", b"other") == Status.OK
        assert (a.get(b"key"), b.get(b"key")) == (b"secret", b"other")
        with pytest.raises(errors.Denied, match="may not use name space \"shared\"; add shared=right:.* to store.spaces"):
            b.client.store("shared").exists([b"key"])


def test_a_name_space_of_several_owners(new_agent):
    agent, (left, right, third) = tenants(new_agent, "left", "right", "third", **{"store.spaces": "kv=left:*,kv=right:*"})
    with User(left, space="kv") as a, User(right, space="kv") as b, User(third) as c:
        assert a.put(b"key", b"shared") == Status.OK
        assert b.get(b"key") == b"shared"
        assert a.client.store().exists([b"key"])[0].status == Status.NOT_FOUND, "the owner's own is another one"
        with pytest.raises(errors.Denied):
            c.client.store("kv").exists([b"key"])


def test_memory_moves_to_the_name_space_that_has_little(new_agent):
    """All segments belong to one name space, and each of them has an object."""
    agent, (left, right) = tenants(new_agent, "left", "right", **{"limits.store_bytes_per_owner": "60MiB"})
    keys = [b"%d" % i for i in range(64)]
    with User(left) as a, User(right) as b:
        for key in keys:
            assert a.put(key, key * (900 * 1024 // len(key))) == Status.OK
        a.store.remove([key for i, key in enumerate(keys) if i % 4])
        assert counters(agent)["dray_store_memory_bytes"] == 64 * MIB
        until(lambda: b.put(b"key", b"b" * MIB) == Status.OK, "a segment of the other name space")
        assert b.get(b"key") == b"b" * MIB
        left = [key for key in keys if a.has(key) == [True]]
        assert len(left) == 15, "the objects of one segment were evicted"
        for key in left:
            assert a.get(key) == key * (900 * 1024 // len(key))
    until(lambda: agent.ctl("status", "--json")["counters"]["dray_sessions"] == 0, "the ends of the sessions")


def test_without_a_store(new_agent):
    agent = new_agent()
    with User(agent) as user, pytest.raises(errors.Unsupported, match="limits.store_bytes"):
        user.has(b"key")


# --- room -----------------------------------------------------------------------------------------

@pytest.mark.parametrize("policy", ["lru", "s3fifo", "gdsf", "score", "value"])
def test_full_evicts(new_agent, policy):
    """What is left is whole, and the bytes stay within the limit."""
    agent = new_agent(settings=STORE | {"store.policy": policy, "store.segment_size": "2MiB", "limits.store_bytes_per_owner": "4MiB"})
    rng = random.Random(5)
    with User(agent, MIB) as user:
        values = {b"%d" % i: bytes([rng.randrange(256)]) * rng.randrange(1, MIB // 2) for i in range(100)}
        for key, value in values.items():
            assert user.put(key, value, rng.random()) == Status.OK
        left = [key for key in values if user.has(key) == [True]]
        assert 0 < len(left) < 100
        for key in left:
            assert user.get(key) == values[key]
        after = counters(agent)
        assert after["dray_store_bytes"] <= 4 * MIB and after["dray_store_evictions_total"] == 100 - len(left)


def test_the_one_used_longest_ago_goes_first(new_agent):
    agent = new_agent(settings=STORE | {"store.policy": "lru", "limits.store_bytes_per_owner": "4MiB"})
    with User(agent) as user:
        for i in range(4):
            assert user.put(b"%d" % i, bytes(MIB)) == Status.OK
        user.get(b"0")
        assert user.put(b"4", bytes(MIB)) == Status.OK
        assert user.has(b"0", b"1", b"2", b"3", b"4") == [True, False, True, True, True]


def test_full_is_busy_where_nothing_may_be_evicted(new_agent):
    agent = new_agent(settings=STORE | {"store.full": "busy", "limits.store_bytes_per_owner": "4MiB"})
    with User(agent) as user:
        for i in range(4):
            assert user.put(b"%d" % i, bytes(MIB)) == Status.OK
        result, = user.store.put(user.region, [(b"4", [(0, MIB)])])
        assert result.status == Status.BUSY and result.wait == 0.05
        assert user.put(b"5", bytes(5 * MIB)) == Status.TOO_LARGE
        user.store.remove([b"0"])
        assert user.put(b"4", bytes(MIB)) == Status.OK
        assert counters(agent)["dray_store_busy_total"] == 1


def test_pins_are_not_evicted(new_agent):
    agent = new_agent(settings=STORE | {"limits.store_bytes_per_owner": "4MiB", "limits.store_held_bytes_per_owner": "2MiB"})
    with User(agent) as user:
        for i in range(4):
            user.put(b"%d" % i, bytes([i]) * MIB)
        assert [r.status for r in user.store.pin([b"0", b"1", b"1", b"2", b"none"])] == [
            Status.OK, Status.OK, Status.OK, Status.BUSY, Status.NOT_FOUND]
        for i in range(4, 20):
            assert user.put(b"%d" % i, bytes(MIB)) == Status.OK
        assert user.has(b"0", b"1") == [True, True]
        assert [r.status for r in user.store.unpin([b"0", b"2"])] == [Status.OK, Status.NOT_FOUND]
        assert counters(agent)["dray_store_held_bytes"] == MIB
        with User(agent) as second:  # a pin ends with its session
            second.store.pin([b"0"])
        until(lambda: counters(agent)["dray_store_held_bytes"] == MIB, "the end of the pin")


# --- in place -------------------------------------------------------------------------------------

def test_reading_in_place(new_agent):
    agent = new_agent(settings=STORE | {"limits.store_bytes_per_owner": "4MiB"})
    with User(agent) as user, User(agent) as reader:
        user.put(b"key", b"x" * MIB)
        missing, view = reader.store.read([b"none", b"key"])
        assert missing.status == Status.NOT_FOUND and missing.data is None
        assert view.data == b"x" * MIB and view.data.readonly
        for i in range(12):  # the leased object stays, whatever comes
            assert user.put(b"%d" % i, b"y" * MIB) == Status.OK
        assert user.store.remove([b"key"])[0].status == Status.OK
        assert user.put(b"key", b"z" * MIB) == Status.OK
        assert view.data == b"x" * MIB, "it was removed, and its bytes stay until the release"
        view.release()
        until(lambda: counters(agent)["dray_store_held_bytes"] == 0, "the release")
        with reader.store.read([b"key"])[0] as again:
            assert again.data == b"z" * MIB


LEFT = """
import dray, gc, os, sys
import numpy
user = dray.Client(sys.argv[1])
memory = dray.Memory(1 << 20)
memory.view[:] = b"x" * len(memory)
region = user.region(memory)
store = user.store()
store.put(region, [(b"a", [(0, 4096)]), (b"b", [(0, 8192)])])
one, two, three = store.read([b"a", b"b", b"b"])
array, part, alone = numpy.frombuffer(two.data, numpy.uint8), three.data[:9], store.read([b"a"])[0].data
three.release()
assert len(user._views) == 3
if not (child := os.fork()):
    os._exit(array[8191] + part[8] != 2 * ord("x"))
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
if len(sys.argv) > 2:
    del user, store, region, one, two, three
    gc.collect()
else:
    user.close()
    for view in one.data, alone:
        try:
            view[0]
        except ValueError:
            pass
        else:
            sys.exit(f"{view} can be read")
    print(one, two)
    one.release()
    one = two = None
maps = lambda: sum("dray-store" in line for line in open("/proc/self/maps"))
assert maps()
assert array[8191] == part[8] == ord("x")
array = None
assert maps(), "part refers to it"
part = alone = None
assert not maps()
"""


@pytest.mark.parametrize("how", [[], ["dropped"]])
def test_data_that_is_left_when_its_client_ends(agent, how):
    """A view is void; what was made of it keeps the memory mapped."""
    subprocess.run([sys.executable, "-c", LEFT, str(agent.socket), *how], check=True, timeout=LIMIT)


CYCLE = """
import dray, gc, sys
class Last:
    def __del__(self):
        read.append(bytes(self.part))
        kept.append(self.part)
user = dray.Client(sys.argv[1])
memory = dray.Memory(4096)
memory.view[:] = b"x" * len(memory)
region = user.region(memory)
user.store().put(region, [(b"a", [(0, 4096)])])
read, kept, last = [], [], Last()
view, = user.store().read([b"a"])
user.last, last.user, last.view, last.part = last, user, view, view.data[:9]
del user, memory, region, view, last
gc.collect()
assert read == [b"x" * 9]
maps = lambda: sum("dray-store" in line for line in open("/proc/self/maps"))
assert maps() and kept.pop() == b"x" * 9
gc.collect()
assert not maps()
"""


def test_data_that_is_garbage_with_its_client(agent):
    """An object that ends later reads it, and may even keep it."""
    done = subprocess.run([sys.executable, "-c", CYCLE, str(agent.socket)], check=True, timeout=LIMIT, stderr=subprocess.PIPE, text=True)
    assert not done.stderr


CLOSED = """
import sys, threading, time
import dray
from dray import store
user = dray.Client(sys.argv[1])
region = user.region(dray.Memory(8192))
user.store().put(region, [(b"a", [(0, 8192)])])
view, made = store._view, []
def closing(client, result):
    thread = threading.Thread(target=client.close)
    thread.start()
    thread.join()
    made.append(view(client, result))
    return made[0]
store._view = closing
pending = user.store().read([b"a"], wait=False)
while not pending.done():  # close() awaits a thread that waits
    time.sleep(0.001)
assert isinstance(pending.error(), dray.errors.SessionClosed)
try:
    made[0].data[0]
except ValueError:
    sys.exit(0)
sys.exit("it can be read")
"""


def test_client_is_closed_while_another_thread_makes_a_view(agent):
    subprocess.run([sys.executable, "-c", CLOSED, str(agent.socket)], check=True, timeout=LIMIT)


def read_raw(raw, key):
    answer = raw.ask(s.pack_store_read, space="", keys=bytes([len(key)]) + key)
    return answer.places[0], raw.fds


def test_nothing_writes_to_memory_that_is_read_in_place(agent):
    with User(agent) as user:
        user.put(b"key", b"x" * 5000)
        raw = Raw(agent)
        place, (fd,) = read_raw(raw, b"key")
        assert place.length == 5000 and place.fd_index == 0
        for attempt in (lambda: mmap.mmap(fd, place.file_bytes, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE),
                        lambda: os.pwrite(fd, b"y", place.offset), lambda: os.ftruncate(fd, 0),
                        lambda: open(f"/proc/self/fd/{fd}", "r+b", buffering=0).write(b"y")):
            with pytest.raises(OSError):
                attempt()
        memory = mmap.mmap(fd, place.file_bytes, mmap.MAP_SHARED, mmap.PROT_READ)
        assert memory[place.offset:place.offset + 5000] == b"x" * 5000
        again, fds = read_raw(raw, b"key")
        assert not fds and again.fd_index == 65535 and again.file == place.file
        os.close(fd)
        assert raw.ask(s.pack_store_release, leases=[(place.lease,), (again.lease,), (123,)]).count == 2


def test_leases_end_with_the_reader(agent):
    with User(agent) as user:
        user.put(b"key", bytes(MIB))
        reader = User(agent)
        assert reader.store.read([b"key"])[0].status == Status.OK
        assert counters(agent)["dray_store_held_bytes"] == MIB
        reader.client.close()
        until(lambda: counters(agent)["dray_store_held_bytes"] == 0, "the end of the lease")


def test_leases_of_a_former_session_end_no_others(agent):
    """The agent of the next session numbers its leases otherwise."""
    with User(agent) as user:
        user.put(b"key", b"value")
        former, = user.store.read([b"key"])
        agent.kill()
        agent.start()
        user.client.reconnect(LIMIT)
        assert user.put(b"key", b"later") == Status.OK
        view, = user.store.read([b"key"])
        former.release()
        assert user.has(b"key") == [True] and counters(agent)["dray_store_held_bytes"] > 0
        view.release()
        until(lambda: user.client.process() or counters(agent)["dray_store_held_bytes"] == 0, "the end of the lease")


def test_memory_of_lost_agents_is_unmapped(agent):
    """That of objects that are released."""
    def mapped():
        with open("/proc/self/maps") as maps:
            return sum("dray-store" in line for line in maps)

    before = mapped()
    with User(agent) as user:
        for _ in range(3):
            user.put(b"key", b"value")
            with user.store.read([b"key"])[0] as view:
                assert view.data == b"value" and mapped() == before + 1
            agent.kill()
            agent.start()
            user.client.reconnect(LIMIT)


def test_release_that_finds_no_room(agent):
    """More releases than may wait for an agent that stands still: those that are refused can be made again."""
    with User(agent) as user:
        user.put(b"key", b"value")
        views = [view for _ in range(5) for view in user.store.read([b"key"] * 1024)]
        agent.signal(signal.SIGSTOP)
        refused = []
        for view in views:
            try:
                view.release()
            except errors.Busy:
                refused.append(view)
        agent.signal(signal.SIGCONT)
        assert refused and not any(view.data for view in views)
        for view in refused:
            def released(view=view):
                try:
                    view.release()
                except errors.Busy:
                    user.client.process()
                    return False
                return True
            until(released, "room for the release")
        until(lambda: user.client.process() or counters(agent)["dray_store_held_bytes"] == 0, "the end of all leases")


def test_leases_of_a_read_that_is_given_up_end(agent):
    with User(agent) as user:
        user.put(b"key", b"value")
        agent.signal(signal.SIGSTOP)
        pending = user.store.read([b"key"] * 1024, wait=False)
        pending.cancel()
        agent.signal(signal.SIGCONT)
        until(lambda: user.get(b"key", 5) == b"value", "a later answer")
        until(lambda: user.client.process() or counters(agent)["dray_store_held_bytes"] == 0, "the end of all leases")


def test_a_descriptor_that_is_lost_comes_again(agent):
    with User(agent) as user:
        user.put(b"key", b"value")
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        free = os.dup(0)  # the lowest number
        os.close(free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (free, limits[1]))
        try:
            with pytest.raises(errors.NoFds):
                user.store.read([b"key"])
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        until(lambda: user.client.process() or counters(agent)["dray_store_held_bytes"] == 0, "the end of the lease")
        for _ in range(2):
            with user.store.read([b"key"])[0] as view:
                assert bytes(view.data) == b"value"


def test_what_cannot_be_undone_is_logged(agent, caplog):
    """The answer to a READ that was given up comes to a thread that did not ask for it."""
    def no_room(views):
        raise errors.Busy("no room")

    with User(agent) as user:
        user.put(b"key", b"value")
        pending = user.store.read([b"key"], wait=False)
        pending._undo = no_room
        pending.cancel()
        until(lambda: user.client.process() or "no room" in caplog.text, "the line of the log")


# --- faults ---------------------------------------------------------------------------------------

def test_region_removed_in_mid_put(agent):
    """The object is there whole, or not at all; and nothing of its room is lost."""
    with User(agent, 32 * MIB) as user:
        user.view[:] = b"\x5a" * len(user.view)
        for i in range(TRIES):
            memory = dray.Memory(32 * MIB)
            memory.view[:] = b"\xa5" * (32 * MIB)
            region = user.client.region(memory)
            pending = user.store.put(region, [(b"%d" % i, [(0, 24 * MIB)])], wait=False)
            region.remove(wait=False)
            try:
                status = pending.result(LIMIT)[0].status
            except errors.Error as e:
                assert [r.status for r in getattr(e, "results", [])] in ([], [Status.NOT_TRIED])
                status = None
            got = user.get(b"%d" % i)
            assert got == (b"\xa5" * (24 * MIB) if status == Status.OK else Status.NOT_FOUND)
            user.store.remove([b"%d" % i])
        until(lambda: counters(agent)["dray_store_bytes"] == 0, "no object")
        assert user.put(b"last", b"\x11" * (30 * MIB)) == Status.OK, "all room is free again"


def test_a_client_dies_in_mid_put(agent):
    with User(agent) as user:
        for i in range(TRIES):
            writer = User(agent, 32 * MIB)
            writer.store.put(writer.region, [(b"%d" % i, [(0, 24 * MIB)])], wait=False)
            writer.client.close()
        until(lambda: agent.ctl("status", "--json")["counters"]["dray_sessions"] == 1, "the ends of the sessions")
        assert user.put(b"key", bytes(8 * MIB)) == Status.OK
        assert user.get(b"key") == bytes(8 * MIB)


def test_agent_killed_in_mid_put(new_agent):
    agent = new_agent(settings=STORE)
    with User(agent, 32 * MIB) as user:
        user.put(b"before", b"x")
        pending = [user.store.put(user.region, [(b"%d" % i, [(0, 16 * MIB)])], wait=False) for i in range(4)]
        agent.signal(signal.SIGKILL)
        agent.process.wait()
        for p in pending:
            error = p.exception(LIMIT)
            assert error is None or error.name in ("agent_restarted", "session_closed", "peer_unreachable")
        agent.start()
        until(lambda: user.has(b"before") == [False], "the new session, whose store is empty")
        assert user.put(b"after", b"y") == Status.OK and user.get(b"after", 10) == b"y"


def test_blocks_of_a_layout(agent):
    """Values are blocks, and the layout tells where the pieces of each block lie."""
    keys, pieces = [b"one", b"two", b"three"], [(0, 10, 100), (1000, 30, 50), (2000, 1, 0)]
    words = array.array("Q", [word for piece in pieces for word in piece])
    with User(agent) as user:
        user.view[:4000] = bytes(i * i // 7 % 256 for i in range(4000))
        value = [bytes(user.view[100 * n:100 * n + 10]) + bytes(user.view[1000 + 50 * n:1030 + 50 * n]) + bytes(user.view[2000:2001]) for n in (4, 0, 7)]
        moved = dray.BlockLayout([(10000 + offset, length, step + 1) for offset, length, step in pieces])
        other = dray.BlockLayout([(20000, 41, 41)])
        for layout in map(dray.BlockLayout, (pieces, words, memoryview(words), words.tobytes())):
            assert len(layout) == 3
            put = user.store.put(user.region, zip(keys, [layout] * 3, (0.5, 0.0, 1.0), (4, 0, 7)))
            assert [r.status for r in put] == [Status.OK] * 3
            user.view[10000:30000] = bytes(20000)
            got = user.store.get(user.region, list(zip(keys, (moved, other, moved), (0, 0, 0), (2, 3, 5))))
            assert [(r.status, r.length) for r in got] == [(Status.OK, 41)] * 3
            for n, one in ((2, value[0]), (5, value[2])):
                assert moved.block(n) == [(10000 + offset + n * (step + 1), length) for offset, length, step in pieces]
                assert b"".join(bytes(user.view[offset:offset + length]) for offset, length in moved.block(n)) == one
            assert bytes(user.view[20000 + 3 * 41:20000 + 4 * 41]) == value[1]
            assert [r.status for r in user.store.remove(keys)] == [Status.OK] * 3
        assert user.store.put(user.region, [(b"one", layout)])[0].status == Status.OK and user.get(b"one", 41) == value[1], "block 0 unless it is named"
        assert user.store.remove([b"one"])[0].status == Status.OK
        for wrong in ([(0, 1)], [(0, 1, 2, 3)], [("0", 1, 2)], array.array("I", [0, 10, 1]), words[:4], 5):
            with pytest.raises(errors.Invalid):
                dray.BlockLayout(wrong)
        for block, error in ((-1, errors.Invalid), ("1", errors.Invalid), (1 << 64, errors.Invalid), (1 << 60, errors.Range), (1 << 30, errors.Range)):
            with pytest.raises(error):
                user.store.put(user.region, [(b"one", layout, 0.0, block)])
        with pytest.raises(errors.Invalid):
            user.store.put(user.region, [(b"one", layout), (b"two", [(0, 1)])])
        assert user.has(*keys) == [False] * 3


def test_items_that_are_none(agent):
    with User(agent) as user:
        for items in ([b"one"], [(b"one",)], [(b"one", 1)], [("one", [(0, 1)])], [(b"", [(0, 1)])], [(b"one", [(0,)])], [(b"one", [(0, 1)], "x")],
                      [(b"one", [(0, 1)], 0.0, 0, 0)], [(b"one", [(0, 1)], float("nan"))], [(b"one", [(0, 1)], -1.0)], [(b"two", [(0, 1)]), (b"one",)], [1], []):
            with pytest.raises(errors.Invalid):
                user.store.put(user.region, items)
        for offset in (-1, 1 << 64):
            with pytest.raises(errors.Range):
                user.store.put(user.region, [(b"one", [(offset, 1)])])
        assert user.has(b"one", b"two") == [False] * 2
        put = user.store.put(user.region, [(b"one", [(0, 1)]), (b"two", [(1, 2), (5, 1)], 0.5)])
        assert [r.status for r in put] == [Status.OK] * 2, "some have a cost"


def test_batch_of_one_item():
    """It is packed as a batch of many is."""
    def parts(batch):
        words = (c_uint64 * 6).from_address(batch.items)
        return string_at(words[0], words[1]), string_at(words[2], 24 * words[3]), words[4], words[5]

    layout, one = dray.BlockLayout([(0, 10, 100), (1000, 30, 50)]), store._One()
    for item in ((b"key", [(5, 6)]), (b"k" * 255, ((5, 6),), 0.25), (b"key", layout, 1e9, 7), (b"key", layout), (b"key", []),
                 (b"key", [(5, 6)], 0.0), (b"key", layout, 0.0, 0), dray.StoreItem(b"key", [(5, 6)]), dray.StoreItem(b"key", layout, block=7)):
        assert one.pack(item, 0, 3, 4, 5, 2)
        batch = lib.StoreBatch.from_buffer(one.memory)
        assert (batch.region, batch.deadline_ms, batch.lease_ms, batch.replicas, batch.items_n) == (3, 4, 5, 2, 1)
        assert parts(batch) == parts(store._copied([item]))
    for item in ((b"key", [(5, 6), (7, 8)]), (b"k" * 256, [(5, 6)]), (b"key", [(-1, 6)]), (bytearray(b"key"), [(5, 6)]), (b"key", None)):
        assert not one.pack(item, 0, 3, 4, 5, 2)


def test_memory_of_a_batch_of_one_item(agent):
    """It is used again, also after an item that it cannot be used for."""
    with User(agent) as user:
        user.store.put(user.region, [dray.StoreItem(b"one", [(0, 4096)])])
        one, = user.store._ones
        assert user.store.get(user.region, [(b"one", [(0, 1024), (1024, 3072)])])[0].status == Status.OK
        assert user.store._ones == [one]


def test_region_of_another_client(agent):
    """Handles are numbers of each client: the first region of both has the same."""
    with User(agent) as user, User(agent) as other:
        user.view[:4], other.view[:4] = b"mine", b"hers"
        assert user.put(b"key", b"mine") == Status.OK
        gone = user.client.region(user.memory)
        gone.remove()
        for region, error, words in ((other.region, errors.Invalid, "belongs to"), (user.memory, errors.Invalid, "a Memory, not a Region"),
                                     (None, errors.Invalid, "a NoneType, not a Region"), (gone, errors.NotFound, "was removed")):
            for call in (user.store.put, user.store.get):
                with pytest.raises(error, match=words):
                    call(region, [(b"key" if call == user.store.get else b"new", [(4, 4)])])
        assert user.has(b"new") == [False]
        assert user.view[:8] == b"mine" + bytes(4) and other.view[:8] == b"hers" + bytes(4)


def test_outside_of_the_region(agent):
    with User(agent) as user:
        assert user.store.put(user.region, [(b"key", [(0, 1 << 62)])])[0].status == Status.TOO_LARGE
        for offset, length in ((8 * MIB, 1), (0, 8 * MIB + 1), ((1 << 64) - 1, 2)):
            with pytest.raises(errors.Range):
                user.store.put(user.region, [(b"key", [(offset, length)])])
        with pytest.raises(errors.Invalid):
            user.store.put(user.region, [(b"key", [])])
        assert user.has(b"key") == [False]
        read_only = user.client.region(user.memory, access="r")
        assert user.put(b"key", b"x") == Status.OK
        with pytest.raises(errors.Denied):
            user.store.get(read_only, [(b"key", [(0, 1)])])
        assert user.store.remove([b"key"])[0].status == Status.OK, "nothing holds it"


def test_hostile_requests(agent):
    """Each is refused by name, and leaves nothing behind."""
    raw = Raw(agent)
    copy = {"region": 0, "deadline_ms": 0, "flags": 0, "space": "", "keys": b"\x01k", "items": [(1, 0)], "ranges": [(0, 1)]}
    for pack in (s.pack_store_put, s.pack_store_get):
        for change, name in (({"keys": b""}, "invalid"), ({"keys": b"\x00"}, "invalid"), ({"keys": b"\x05abc"}, "invalid"),
                             ({"items": []}, "invalid"), ({"items": [(0, 0)]}, "invalid"), ({"items": [(2, 0)]}, "invalid"),
                             ({"items": [(0xffffffff, 0)]}, "invalid"), ({"ranges": [(0, 0)]}, "range"),
                             ({"ranges": [(0, 1), (0, 1)]}, "invalid"), ({"space": "x"}, "denied"),
                             ({"keys": b"\x01k\x01l", "items": [(2, 0), (0, 0)], "ranges": [(0, 1 << 63), (0, 1 << 63)]}, "range"),
                             ({"keys": b"\x01k" * 1025, "items": [(1, 0)]}, "too_large")):
            raw.request(pack, **(copy | change))
            assert raw.error(raw.last_id) == name, change
    raw.request(s.pack_store_put, **copy)
    assert raw.error(raw.last_id) in ("not_found", "invalid"), "the region is unknown"
    with User(agent) as user:
        assert user.has(b"k") == [False]
        assert counters(agent)["dray_store_bytes"] == 0


# --- examples -------------------------------------------------------------------------------------

def test_examples(agent, tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "client/python"), "LD_LIBRARY_PATH": str(LIBRARY.parent)}

    def run(*command):
        return subprocess.run([str(c) for c in command], env=environment, text=True, timeout=LIMIT, check=True, stdout=subprocess.PIPE).stdout
    assert "fetched 0 blocks" in run(sys.executable, ROOT / "examples/store/fetch_or_compute.py", agent.socket)
    assert "fetched 8 blocks" in run(sys.executable, ROOT / "examples/store/fetch_or_compute.py", agent.socket)
    program = tmp_path / "put_get"
    (tmp_path / "dray").symlink_to(ROOT / "client")
    run("cc", "-Wall", "-Werror", "-I", tmp_path, "-o", program, ROOT / "examples/store/put_get.c", LIBRARY)
    assert run(program, agent.socket) == "put: stored\ngot 65536 bytes\nin place: x\n"
    assert run(program, agent.socket).startswith("put: it was there")
