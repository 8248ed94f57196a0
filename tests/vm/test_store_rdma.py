# SPDX-License-Identifier: Apache-2.0
"""The stores of agents over Soft-RoCE: objects of another agent come by RDMA, and no right to read outlives its lease."""

import contextlib
import os
import random
import signal
import threading

import pytest
from conftest import listed, up
from dray import Status, errors
from harness import LIMIT, MIB, noise, same, until
from test_rdma_faults import resources
from test_store import User, counters

UID = os.getuid()
STORE = {"store.spaces": f"kv=default:{UID}", "store.segment_size": "16MiB", "limits.store_bytes": "96MiB",
         "limits.store_bytes_per_owner": "96MiB"}
SHORT = {"peer.heartbeat": "200ms", "peer.heartbeat_limit": "6s", "peer.fence_timeout": "6s"}
# a GET gives an agent so little time that a busy emulator needs many tries for the largest one
SIZES = [1, 63, 4097, 100_001, 5 * MIB + 3, (64 if "DRAY_LONG" in os.environ else 16) * MIB]


class Stores:
    """Owners of objects on side 0, and readers on side 1. The emulator is slow, so what comes too late is asked for again."""

    def __init__(self, lab, rails=1, owner=(), reader=(), owners=1, readers=1):
        self.rails = lab.make(rails)
        self.owners = [self.agent(lab, f"owner{n}", 0, STORE | {"store.lend": "true"} | dict(owner)) for n in range(owners)]
        asks = {"store.peers": ",".join(owner.listen[0] for owner in self.owners)}
        self.readers = [self.agent(lab, f"reader{n}", 1, STORE | asks | dict(reader)) for n in range(readers)]
        self.owner, self.reader = self.owners[0], self.readers[0]
        for agent in self.readers:
            until(lambda agent=agent: sum(p["state"] == "ready" for p in listed(agent, "peers")) == owners, "the connections")

    def agent(self, lab, name, side, settings):
        how = {"rdma.devices": ",".join(r.device[side] for r in self.rails), "agent.workers": 1, "transfer.slice_timeout": "20s",
               "peer.heartbeat_limit": "20s", "peer.fence_timeout": "20s", "rdma.timeout": "2s", **settings}
        agent = lab.lab.agent(name, settings=how, args=["--allow-insecure"]).start()
        if how.get("rdma.enable") != "false":
            until(lambda: len(up(agent)) == len(self.rails), "the rails")
        return agent

    def users(self, size=48 * MIB):
        return User(self.owner, size, "kv"), User(self.reader, size, "kv")

    def stop(self):
        for agent in (*self.readers, *self.owners):
            agent.stop()


@pytest.fixture
def stores(rdma_lab):
    made = []

    def make(**how):
        made.append(Stores(rdma_lab, **how))
        return made[-1]
    yield make
    for each in made:
        each.stop()


def value_of(key, size=300_000):
    return random.Random(key).randbytes(size)


def moved(agent):
    """{transport: bytes} of the transfers from other agents that have ended."""
    sums = {}
    for one in agent.ctl("transfers", "--recent", "--json")["ended_transfers"]:
        if one["transport"] not in ("local", "none"):
            sums[one["transport"]] = sums.get(one["transport"], 0) + one["bytes"]
    return sums


def load(user, key, room=None):
    """The object, once the answer is neither busy nor that of an agent that was too slow."""
    seen = []
    until(lambda: seen.append(user.get(key, room)) or seen[-1] not in (Status.BUSY, Status.NOT_FOUND, Status.LOST), "the object")
    return seen[-1]


def warm(stores, there, here):
    """Fetches objects until one comes by RDMA: both have registered their memory, and their queue pairs are up."""
    def fetched():
        key = b"warm %d" % next(warm.numbers)
        assert there.put(key, value_of(key)) == Status.OK
        before = moved(stores.reader).get("rdma", 0)
        assert load(here, key, 300_000) == value_of(key)
        return moved(stores.reader).get("rdma", 0) >= before + 300_000
    until(fetched, "an object by RDMA")


warm.numbers = iter(range(1 << 30))


def released(owner):
    until(lambda: counters(owner)["dray_store_lent_bytes"] == 0, "the release of the lease")


def test_sizes(stores):
    """Each size comes by RDMA, with the right bytes."""
    large = {"limits.store_bytes": "320MiB", "limits.store_bytes_per_owner": "320MiB"}
    s = stores(owner=large, reader=large | {"store.keep_copies": "false"})
    there, here = s.users(64 * MIB)
    with there, here:
        warm(s, there, here)
        for size in SIZES:
            key, value = b"of %d" % size, noise(size)
            assert there.put(key, value) == Status.OK

            def by_rdma(key=key, value=value):
                # without a lease, few bytes come with the answer to a lookup
                until(lambda: len(value) > 16 * 1024 or here.store.exists([key], lease=10.0)[0].status == Status.OK, "the lease")
                before = moved(s.reader)
                got = load(here, key, len(value))
                assert same(got, value)
                after = moved(s.reader)
                # a large object has segments of its own, which are registered in the background
                return after.get("rdma", 0) >= before.get("rdma", 0) + len(value) and after.get("tcp", 0) == before.get("tcp", 0)
            until(by_rdma, f"{size} bytes by RDMA")
        assert counters(s.reader)["dray_rdma_received_bytes_total"] >= sum(SIZES)
        released(s.owner)


def test_batches_of_two_readers(stores):
    """Many objects of one lookup, at two readers at once."""
    s = stores(readers=2, reader={"store.keep_copies": "false"})
    there, here = s.users(16 * MIB)
    with there, here, User(s.readers[1], 16 * MIB, "kv") as other:
        warm(s, there, here)
        keys = [b"key %d" % i for i in range(64)]
        sizes = [1 + 3001 * i for i in range(64)]
        for key, size in zip(keys, sizes):
            assert there.put(key, value_of(key, size)) == Status.OK
        items = [(key, [(i * 256 * 1024, size)]) for i, (key, size) in enumerate(zip(keys, sizes))]

        def all_of(user):
            def complete():
                return {r.status for r in user.store.get(user.region, items)} == {Status.OK}
            until(complete, "all objects")
            for i, (key, size) in enumerate(zip(keys, sizes)):
                assert bytes(user.view[i * 256 * 1024:i * 256 * 1024 + size]) == value_of(key, size)

        def all_by_rdma():
            before = moved(s.reader)
            both = [threading.Thread(target=all_of, args=(user,)) for user in (here, other)]
            for one in both:
                one.start()
            for one in both:
                one.join(LIMIT)
            # what the emulator does not bring in time comes by TCP
            return moved(s.reader)["rdma"] >= before["rdma"] + sum(sizes)

        until(all_by_rdma, "all objects by RDMA")
        all_of(here)
        all_of(other)
        released(s.owner)


@pytest.mark.parametrize("side", ["owner", "reader"])
def test_one_side_without_rails(stores, side):
    """Objects come by TCP, as from an agent of an earlier release; and behind an answer, if there is no more room than for them."""
    how = {"owner": {}, "reader": {"store.keep_copies": "false"}}
    how[side]["rdma.enable"] = "false"
    s = stores(**how)
    there, here = s.users(4 * MIB)
    with there, here:
        for n in range(3):
            assert there.put(b"%d" % n, value_of(b"%d" % n)) == Status.OK
            assert load(here, b"%d" % n) == value_of(b"%d" % n)
        until(lambda: load(here, b"0", 300_000) == value_of(b"0") and counters(s.reader)["dray_store_remote_found_total"], "an object behind its answer")
        assert set(moved(s.reader)) == {"tcp"}
        released(s.owner)


@pytest.mark.parametrize("keep", ["true", "false"])
def test_packets_of_rdma_are_lost(stores, keep):
    """Objects come by TCP while queue pairs are up, but their packets are lost without a word. Those that write to a client's memory are given up."""
    s = stores(reader={"rdma.timeout": "8s", "transfer.slice_timeout": "60s", "store.keep_copies": keep})
    there, here = s.users(16 * MIB)
    with there, here:
        warm(s, there, here)
        assert there.put(b"key", value_of(b"key", MIB)) == Status.OK
        before, at_first = moved(s.reader), counters(s.reader)
        for side in (0, 1):
            s.rails[0].netem("loss", "100%", side=side)
        try:
            assert load(here, b"key", MIB) == value_of(b"key", MIB)
            assert moved(s.reader)["tcp"] >= before.get("tcp", 0) + MIB
            now = counters(s.reader)
            # an emulator that is slow may have let the lookup fail, and nothing was read by RDMA
            lost = keep == "false" and now["dray_rdma_work_requests_total"] > at_first["dray_rdma_work_requests_total"]
            assert (now["dray_rdma_queue_pairs_lost_total"] > at_first["dray_rdma_queue_pairs_lost_total"]) == lost
        finally:
            for side in (0, 1):
                s.rails[0].calm(side=side)
        released(s.owner)


# an agent is too slow after a second; devices then have five
HELD = {"store.keep_copies": "false", "store.peer_timeout": "10s", "peer.fence_timeout": "10s", "rdma.timeout": "8s",
        "transfer.slice_timeout": "60s", "agent.drain_timeout": "2s"}


@contextlib.contextmanager
def reads_held(s, user, key, deadline=None):
    """A GET to the first MiB of a region, whose reads devices hold: all their packets are lost."""
    before = counters(s.reader)["dray_rdma_work_requests_total"]
    for side in (0, 1):
        s.rails[0].netem("loss", "100%", side=side)
    try:
        pending = user.store.get(user.region, [(key, [(0, MIB)])], deadline=deadline, wait=False)
        until(lambda: counters(s.reader)["dray_rdma_work_requests_total"] > before, "the reads")
        yield pending
    finally:
        for side in (0, 1):
            s.rails[0].calm(side=side)


def cancel(s, *states):
    """An operator cancels the GET when its transfer has one of these states."""
    found = []
    until(lambda: found.extend(t for t in s.reader.ctl("transfers", "--json")["transfers"] if t["state"] in states) or found, f"a state of {states}")
    s.reader.ctl("cancel", str(found[0]["session"]), str(found[0]["request"]))


@pytest.mark.parametrize("how", ["cancel", "late cancel", "deadline", "drain", "close", "owner stopped", "owner killed"])
def test_ends_while_devices_hold_its_reads(stores, how):
    """A GET straight to the client's memory ends once, as the first that stops all of it says; its memory is not written afterwards."""
    s = stores(owner={"peer.fence_timeout": "10s"}, reader=HELD | {"owner stopped": {"store.peer_timeout": "1s"}, "late cancel": {"peer.fence_timeout": "20s"}}.get(how, {}))
    there, here = s.users(2 * MIB)
    with there, here, User(s.reader, 2 * MIB, "kv") as other:
        warm(s, there, here)
        assert there.put(b"key", value_of(b"key", MIB)) == Status.OK
        lost = counters(s.reader)["dray_rdma_queue_pairs_lost_total"]
        if how == "close":
            with User(s.reader, 2 * MIB, "kv") as closing:
                warm(s, there, closing)
                with reads_held(s, closing, b"key"):
                    closing.client.close()
        else:
            # the deadline, and that of the drain, come after the source was given up
            with reads_held(s, here, b"key", 2.0 if how == "deadline" else None) as pending:
                if "cancel" in how:
                    # late: its source is given up, and devices are waited for
                    cancel(s, "stopping", *(["running"] if how == "cancel" else []))
                elif how == "drain":
                    s.reader.signal(signal.SIGTERM)
                elif how == "owner stopped":
                    s.owner.signal(signal.SIGSTOP)
                elif how == "owner killed":
                    s.owner.kill()
                expected = {"cancel": errors.Cancelled, "late cancel": errors.Cancelled, "deadline": errors.Deadline, "drain": errors.Deadline}
                with pytest.raises(expected[how]) if how in expected else contextlib.nullcontext():
                    got, = pending.result(LIMIT)
                    assert got.status in (Status.LOST, Status.NOT_FOUND, Status.BUSY)
                here.view[:MIB] = b"z" * MIB
            if how == "drain":
                assert s.reader.wait() == 0
                s.reader.check_log()
                s.reader.start()
            elif how == "owner stopped":
                s.owner.signal(signal.SIGCONT)
            elif how == "owner killed":
                s.owner.start()
            else:
                until(lambda: counters(s.reader)["dray_rdma_queue_pairs_lost_total"] > lost, "the loss of the queue pair")
        if how not in ("drain", "owner killed"):
            assert load(other, b"key", MIB) == value_of(b"key", MIB)
            warm(s, there, other)
            released(s.owner)
        assert how == "close" or bytes(here.view[:MIB]) == b"z" * MIB


def get_all(here, keys):
    """A GET of objects of 2 MiB, one after the other in the region, that has not ended."""
    return here.store.get(here.region, [(key, [(i * 2 * MIB, 2 * MIB)]) for i, key in enumerate(keys)], wait=False)


def right_or_absent(here, keys, pending):
    """Each key of get_all() has its bytes or a status."""
    for i, (key, r) in enumerate(zip(keys, pending.result(LIMIT))):
        assert r.status in (Status.OK, Status.LOST, Status.NOT_FOUND, Status.BUSY)
        assert r.status != Status.OK or bytes(here.view[i * 2 * MIB:(i + 1) * 2 * MIB]) == value_of(key, 2 * MIB)


@pytest.mark.parametrize("keep", ["true", "false"])
def test_owner_is_killed(stores, keep):
    """Each key has its bytes or a status; nothing waits for the dead agent."""
    s = stores(reader={"store.keep_copies": keep})
    there, here = s.users(32 * MIB)
    with there, here:
        warm(s, there, here)
        keys = [b"%d" % i for i in range(8)]
        for key in keys:
            assert there.put(key, value_of(key, 2 * MIB)) == Status.OK
        pending = get_all(here, keys)
        s.owner.kill()
        right_or_absent(here, keys, pending)
        assert here.put(b"mine", b"value") == Status.OK and here.get(b"mine") == b"value"
        s.owner.start()
        until(lambda: len(up(s.owner)) == 1 and any(p["state"] == "ready" for p in listed(s.reader, "peers")), "the owner")


def test_another_owner_has_a_copy(stores):
    """The same GET reads from one agent what another one, which was killed, has not sent."""
    s = stores(owners=2)
    there, here = s.users(32 * MIB)
    with there, here, User(s.owners[1], 32 * MIB, "kv") as other:
        warm(s, there, here)
        keys = [b"%d" % i for i in range(8)]
        for key in keys:
            assert there.put(key, value_of(key, 2 * MIB)) == Status.OK
            assert other.put(key, value_of(key, 2 * MIB)) == Status.OK
        pending = get_all(here, keys)
        s.owner.kill()
        # an emulator may be too slow for the second lookup
        right_or_absent(here, keys, pending)
        for key in keys:
            assert load(here, key, 2 * MIB) == value_of(key, 2 * MIB)
        released(s.owners[1])
    s.owner.start()


@pytest.mark.parametrize("keep", ["true", "false"])
def test_owner_is_stopped(stores, keep):
    """A device answers for an agent that stands still; what is not read by then is busy or lost, and found again later."""
    s = stores(owner=SHORT, reader=SHORT | {"store.keep_copies": keep})
    there, here = s.users(32 * MIB)
    with there, here:
        warm(s, there, here)
        keys = [b"%d" % i for i in range(8)]
        for key in keys:
            assert there.put(key, value_of(key, 2 * MIB)) == Status.OK
        pending = get_all(here, keys)
        s.owner.signal(signal.SIGSTOP)
        try:
            right_or_absent(here, keys, pending)
        finally:
            s.owner.signal(signal.SIGCONT)
        for key in keys:
            assert load(here, key, 2 * MIB) == value_of(key, 2 * MIB)
        released(s.owner)


def test_reader_is_stopped_with_a_lease(stores):
    """The owner evicts what a stopped reader holds only when the reader's queue pairs are gone; and the reader never sees other bytes."""
    s = stores(owner=SHORT | {"store.lookup_lease": "10s"}, reader=SHORT | {"store.lookup_lease": "10s"})
    there, here = s.users(16 * MIB)
    with there, here:
        warm(s, there, here)
        assert there.put(b"key", value_of(b"key", MIB)) == Status.OK
        until(lambda: here.store.exists([b"key"], lease=10.0)[0].status == Status.OK, "the lease")
        assert counters(s.owner)["dray_rdma_serving_queue_pairs"] and counters(s.owner)["dray_store_lent_bytes"]
        s.reader.signal(signal.SIGSTOP)
        try:
            released(s.owner)
            assert not counters(s.owner)["dray_rdma_serving_queue_pairs"]
            assert there.store.remove([b"key"])[0].status == Status.OK
            for n in range(16):
                there.put(b"more %d" % n, value_of(b"more %d" % n, 8 * MIB))
        finally:
            s.reader.signal(signal.SIGCONT)
        assert here.get(b"key") in (Status.LOST, Status.NOT_FOUND, Status.BUSY)
        assert load(here, b"more 15", 8 * MIB) == value_of(b"more 15", 8 * MIB)


def test_evictions_under_traffic(stores):
    """Memory is lent, given back and used again all the time at both agents: what comes is never another object."""
    small = {"limits.store_bytes": "8MiB", "limits.store_bytes_per_owner": "8MiB", "limits.store_held_bytes": "6MiB",
             "store.segment_size": "2MiB"}
    s = stores(owner=small, reader=small)
    there, here = s.users(4 * MIB)
    keys = [b"key %d" % i for i in range(40)]
    with there, here, User(s.reader, 4 * MIB, "kv") as other:
        warm(s, there, here)
        done, wrong, right = threading.Event(), [], [0, 0]

        def read(n, user):
            chosen = random.Random(n)
            while not done.is_set():
                key = chosen.choice(keys)
                got = user.get(key, 300_000)
                if isinstance(got, bytes):
                    right[n] += 1
                    if got != value_of(key):
                        wrong.append(key)

        threads = [threading.Thread(target=read, args=(n, user)) for n, user in enumerate((here, other))]
        for one in threads:
            one.start()
        rounds = 0

        def put_more():
            nonlocal rounds
            rounds += 1
            for key in keys:
                there.put(key, value_of(key))
            there.store.remove(keys[rounds % 2::2])
            return min(right) >= 25 or wrong

        try:
            until(put_more, "objects at both")
        finally:
            done.set()
            for one in threads:
                one.join(LIMIT)
        assert not wrong
        assert moved(s.reader)["rdma"]
        released(s.owner)


@pytest.mark.parametrize("side", ["owner", "reader"])
def test_drain(stores, side):
    """An agent that drains ends in good order while objects are read: the reader with all of them, the owner with what it has lent by then."""
    s = stores()
    there, here = s.users(16 * MIB)
    with there, here:
        warm(s, there, here)
        keys = [b"%d" % i for i in range(8)]
        for key in keys:
            assert there.put(key, value_of(key, MIB)) == Status.OK
        items = [(key, [(i * MIB, MIB)]) for i, key in enumerate(keys)]
        pending = here.store.get(here.region, items, wait=False)
        agent = s.owner if side == "owner" else s.reader
        agent.signal(signal.SIGTERM)
        try:
            got = pending.result(LIMIT)
        except errors.Draining:  # it was told before the GET
            got = []
        for i, (key, r) in enumerate(zip(keys, got)):
            assert r.status in (Status.OK, Status.LOST, Status.NOT_FOUND, Status.BUSY)
            assert r.status != Status.OK or bytes(here.view[i * MIB:(i + 1) * MIB]) == value_of(key, MIB)
        assert agent.wait() == 0
        agent.check_log()
        agent.start()


def test_ended_by_the_client(stores):
    """GETs end by cancel, at their deadline and with their session, and a device may go on with them: what follows them is right."""
    s = stores(reader={"store.keep_copies": "false", "store.segment_size": "2MiB", "limits.store_bytes": "24MiB", "limits.store_bytes_per_owner": "24MiB"})
    there, here = s.users(16 * MIB)
    # a request that is given up may use its memory for a while
    with there, here, User(s.reader, MIB, "kv") as other:
        warm(s, there, here)
        keys = [b"%d" % i for i in range(8)]
        for key in keys:
            assert there.put(key, value_of(key, MIB)) == Status.OK
        items = [(key, [(i * MIB, MIB)]) for i, key in enumerate(keys)]
        for n in range(9):
            if n % 3 == 0:
                with User(s.reader, 8 * MIB, "kv") as user:
                    user.store.get(user.region, items, wait=False)
            else:
                pending = here.store.get(here.region, items, deadline=0.05 if n % 3 == 1 else None, wait=False)
                if n % 3 == 2:
                    pending.cancel()
                with contextlib.suppress(errors.Cancelled, errors.Deadline):
                    pending.result(LIMIT)
            key = keys[n % 8]
            assert load(other, key, MIB) == value_of(key, MIB)
        released(s.owner)


def test_rail_is_lost(stores):
    """With the link down objects come by TCP, and by RDMA again afterwards."""
    s = stores(owner={"rdma.timeout": "67ms", "transfer.slice_timeout": "4s"}, reader={"rdma.timeout": "67ms", "transfer.slice_timeout": "4s"})
    there, here = s.users(16 * MIB)
    with there, here:
        warm(s, there, here)
        keys = [b"%d" % i for i in range(6)]
        for key in keys:
            assert there.put(key, value_of(key, 2 * MIB)) == Status.OK
        pending = get_all(here, keys)
        s.rails[0].link(False)
        try:
            for i, (key, r) in enumerate(zip(keys, pending.result(LIMIT))):
                assert r.status != Status.OK or bytes(here.view[i * 2 * MIB:(i + 1) * 2 * MIB]) == value_of(key, 2 * MIB)
            for key in keys:
                assert load(here, key, 2 * MIB) == value_of(key, 2 * MIB)
        finally:
            s.rails[0].link(True)
        until(lambda: len(up(s.reader)) == 1 and len(up(s.owner)) == 1, "the rails")
        warm(s, there, here)


def test_memory_goes_back(stores):
    """A segment without objects is deregistered before it is given back."""
    s = stores(owner={"store.segment_size": "2MiB"}, reader={"store.segment_size": "2MiB"})
    there, here = s.users(4 * MIB)
    with there, here:
        until(lambda: counters(s.owner)["dray_memory_regions"] == 1, "the client's region")
        for n in range(8):
            assert there.put(b"%d" % n, value_of(b"%d" % n, MIB)) == Status.OK
        until(lambda: counters(s.owner)["dray_memory_regions"] == 1 + counters(s.owner)["dray_store_memory_bytes"] // (2 * MIB), "the registration")
        assert resources(s.owner)["mr"] >= 5
        there.store.remove([b"%d" % n for n in range(8)])
    # name spaces without objects and users give their memory back
    until(lambda: counters(s.owner)["dray_store_memory_bytes"] == 0, "the memory")
    until(lambda: counters(s.owner)["dray_memory_regions"] == 0, "the deregistration")
