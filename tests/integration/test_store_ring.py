# SPDX-License-Identifier: Apache-2.0
"""Requests to the store through the ring: the answers are those of the socket, whatever a client writes to the memory that it shares."""

import asyncio
import mmap
import os
import random
import signal
import threading

import dray
import pytest
from dray import Status
from harness import LIMIT, MIB, Raw, s, until
from ring_client import ARENA, Client
from test_store import STORE, User

KEYS = b"\x01k\x05block"


@pytest.fixture
def agent(new_agent):
    return new_agent(settings=STORE)


class Ringer(Client):
    """Puts messages into the ring."""

    def entry(self, user_data, flags=s.ENTRY_FLAG_MESSAGE, **fields):
        tail = self.word(s.RING_SQ_TAIL)
        at = self.sq_offset + (tail & (self.sq_entries - 1)) * s.SQE.size
        fields = {"user_data": user_data, "flags": flags, **fields}
        self.ring[at:at + s.SQE.size] = s.SQE_MESSAGE.pack(*(fields.get(n, 0) for n in s.SqeMessage._fields)).ljust(s.SQE.size, b"\xff")
        self.store(s.RING_SQ_TAIL, tail + 1)

    def entries(self):
        """Takes all completions."""
        got = []
        while (head := self.word(s.RING_CQ_HEAD)) != self.word(s.RING_CQ_TAIL):
            at = self.cq_offset + (head & (self.cq_entries - 1)) * s.CQE.size
            got.append(s.Cqe._make(s.CQE.unpack_from(self.ring, at)))
            self.store(s.RING_CQ_HEAD, head + 1)
        return got

    def entry_done(self):
        got = []
        until(lambda: got.extend(self.entries()) or got, "a completion")
        assert len(got) == 1, got
        return got[0]

    def write(self, packet, offset=0):
        self.arena[offset:offset + len(packet)] = packet

    def by_ring(self, pack, user_data=None, offset=0, room=4096, packet=None, **fields):
        """The completion, and the message in the arena; None: there is none."""
        if user_data is None:
            self.last_id += 1
            user_data = self.last_id
        packet = packet or pack(user_data, **fields)
        self.write(packet, offset)
        self.entry(user_data, length=len(packet), room=room, offset=offset)
        os.eventfd_write(self.doorbell, 1)
        done = self.entry_done()
        assert done.user_data == user_data
        return done, s.unpack(bytes(self.arena[offset:offset + done.bytes]))[1] if done.bytes else None


@pytest.fixture
def client(agent):
    with Ringer(agent) as c:
        yield c


def test_feature(agent):
    """It is in force only if both sides know it."""
    for features, wanted in ((0, 0), (s.FEATURE_STORE_RING, s.FEATURE_STORE_RING), (~0 & (1 << 64) - 1, s.FEATURE_ALL)):
        with Raw(agent, hello=False) as raw:
            assert raw.ask(s.pack_hello, major_min=1, major_max=1, features=features).features == wanted


def test_all_requests(client):
    """Each has the answer in the ring that it has on the socket."""
    copy = {"region": client.region, "keys": KEYS, "items": [(1, 0), (2, 0)], "ranges": [(0, 100), (200, 50), (300, 50)]}

    def both(pack, **fields):
        done, by_ring = client.by_ring(pack, **fields)
        assert done.status == 0
        by_socket = client.ask(pack, **fields)
        assert type(by_ring) is type(by_socket)
        return by_ring, by_socket

    def statuses(message):
        return [r.status for r in message.results]

    put, again = both(s.pack_store_put, **copy)
    assert (statuses(put), statuses(again)) == ([s.STORE_STATUS_OK] * 2, [s.STORE_STATUS_EXISTS] * 2)
    bytes_of = bytes(client.memory[:400])
    client.memory[:400] = bytes(400)
    got, again = both(s.pack_store_get, **copy)
    assert got == again and statuses(got) == [s.STORE_STATUS_OK] * 2
    assert client.memory[:100] == bytes_of[:100] and client.memory[200:250] == bytes_of[200:250] and client.memory[300:350] == bytes_of[300:350]
    there, again = both(s.pack_store_exists, keys=KEYS + b"\x01x")
    assert there == again and statuses(there) == [s.STORE_STATUS_OK] * 2 + [s.STORE_STATUS_NOT_FOUND]
    assert statuses(both(s.pack_store_pin, keys=KEYS)[0]) == [s.STORE_STATUS_OK] * 2
    assert statuses(client.by_ring(s.pack_store_unpin, keys=KEYS)[1]) == [s.STORE_STATUS_OK] * 2

    # the first answer has a descriptor: the completion announces it, and the socket brings it
    done, message = client.by_ring(s.pack_store_read, keys=KEYS)
    assert (done.status, done.bytes, message) == (0, 0, None)
    header, first, fds = client.receive()
    assert header.request_id == done.user_data and len(fds) == 1
    place = first.places[0]
    with mmap.mmap(fds[0], place.file_bytes, prot=mmap.PROT_READ) as seen:
        assert seen[place.offset:place.offset + place.length] == bytes_of[:100]
    os.close(fds[0])
    _, second = client.by_ring(s.pack_store_read, keys=KEYS)
    assert [p.offset for p in second.places] == [p.offset for p in first.places]
    leases = [(p.lease,) for p in (*first.places, *second.places)]
    assert client.by_ring(s.pack_store_release, leases=leases)[1].count == 4
    assert statuses(client.by_ring(s.pack_store_remove, keys=KEYS)[1]) == [s.STORE_STATUS_OK] * 2
    assert statuses(client.ask(s.pack_store_exists, keys=KEYS)) == [s.STORE_STATUS_NOT_FOUND] * 2


def test_refusals(client):
    """By name, with the sentence of the socket's ERROR where the entry has room for it; nothing is done."""
    exists = s.pack_store_exists(1, keys=KEYS)
    copy = {"region": client.region, "keys": b"\x01k", "items": [(1, 0)], "ranges": [(0, 100)]}
    size = len(exists)
    room = 64 + 2 * 64
    header = s.HEADER.size
    cases = [
        (exists, dict(length=s.MESSAGE_MAX + 1), "too_large"), (exists, dict(length=0xffffffff), "too_large"),
        (exists, dict(offset=ARENA - size + 1), "range"), (exists, dict(offset=(1 << 64) - 8), "range"), (exists, dict(room=ARENA + 1), "range"),
        (exists, dict(room=0xffffffff), "range"), (exists, dict(room=room - 1), "invalid"), (exists, dict(room=0), "invalid"),
        (exists, dict(length=0), "truncated"), (exists, dict(length=header - 1), "truncated"), (exists, dict(length=size - 1), "truncated"),
        (exists, dict(user_data=2), "invalid"), (s.pack_store_exists(0, keys=KEYS), dict(user_data=0), "invalid"),
        (exists, dict(flags=s.ENTRY_FLAG_MESSAGE | 1), "unsupported"), (b"\0" * size, {}, "bad_magic"),
        (s.pack_region_remove(1, region=client.region), {}, "unsupported"), (s.pack_transfer(1), {}, "unsupported"),
        (s.pack_hello(1, major_min=1, major_max=1), {}, "unsupported"), (s.pack_store_exists(1, keys=b"\x05a"), {}, "invalid"),
        (s.pack_store_exists(1, space="x", keys=KEYS), {}, "denied"), (s.pack_store_exists(1, keys=b"\x01k" * 1025), {}, "too_large"),
        (s.pack_store_put(1, **(copy | {"ranges": [(0, MIB + 1)]})), {}, "range"), (s.pack_store_put(1, **(copy | {"region": 0})), {}, "not_found"),
        (s.pack_store_release(1, leases=[(1,)]), dict(room=64), "invalid"),
    ]
    for packet, fields, name in cases:
        fields = {"user_data": 1, "length": len(packet), "room": 4096, "offset": 0} | fields
        client.write(packet)
        client.entry(**fields)
        os.eventfd_write(client.doorbell, 1)
        done = client.entry_done()
        assert (done.user_data, s.error_name(done.status)) == (fields["user_data"], name), (packet[:40], fields)
        if name in ("too_large", "range") and not done.bytes or fields["room"] < 256:
            continue
        error = s.unpack(bytes(client.arena[:done.bytes]))[1]
        assert (error.code, bool(error.message)) == (done.status, True)
    assert [r.status for r in client.ask(s.pack_store_exists, keys=b"\x01k").results] == [s.STORE_STATUS_NOT_FOUND]


def test_numbers_are_shared(client):
    """A request whose number a transfer has is refused, and the transfer goes on."""
    client.submit(50, **client.waiting(at=4096))
    assert s.error_name(client.by_ring(s.pack_store_exists, user_data=50, keys=KEYS)[0].status) == "duplicate_id"
    client.memory[4096:4100] = (1).to_bytes(4, "little")
    assert client.completion() == (50, "ok")


def test_a_cancelled_request_is_answered_once(client):
    """TRANSFER_CANCEL finds an entry without a doorbell. The completion comes before its answer, whichever of the two was faster."""
    for i in range(20):
        packet = s.pack_store_put(100 + i, region=client.region, keys=b"\x02c" + bytes([i]), items=[(1, 0)], ranges=[(0, MIB)])
        client.write(packet)
        client.entry(100 + i, length=len(packet), room=4096)
        answer = client.ask(s.pack_transfer_cancel, request=100 + i)
        done, = client.entries()
        assert done.user_data == 100 + i
        message = s.unpack(bytes(client.arena[:done.bytes]))[1]
        if isinstance(answer, s.Error):
            assert s.error_name(answer.code) == "not_found" and message.status == 0
        else:
            assert s.error_name(message.status) == "cancelled" and message.results[0].status != s.STORE_STATUS_OK


def test_drain(agent):
    """PUT and GET are refused as on the socket; the others are answered."""
    with Ringer(agent) as client:
        client.submit(50, **client.waiting(at=4096))
        until(lambda: agent.ctl("transfers", "--json")["transfers"], "the transfer")
        agent.signal(signal.SIGTERM)
        header, *_ = client.receive()
        assert header.type == s.MSG_DRAINING
        copy = {"region": client.region, "keys": b"\x01k", "items": [(1, 0)], "ranges": [(0, 4096)]}
        for pack in (s.pack_store_put, s.pack_store_get):
            assert s.error_name(client.by_ring(pack, **copy)[0].status) == "draining"
        assert client.by_ring(s.pack_store_exists, keys=KEYS)[0].status == 0
        client.memory[4096:4100] = (1).to_bytes(4, "little")
        assert client.completion() == (50, "ok")
    agent.wait()


def test_messages_changed_while_read(agent, client):
    """Every entry gets one completion, and the agent serves others."""
    rng, stop = random.Random(7), threading.Event()

    def scribble():
        while not stop.is_set():
            at = rng.randrange(512)
            client.arena[at] = rng.randrange(256)

    thread = threading.Thread(target=scribble)
    thread.start()
    try:
        packs = [lambda i: s.pack_store_exists(i, keys=KEYS), lambda i: s.pack_store_read(i, keys=KEYS), lambda i: s.pack_store_pin(i, keys=KEYS),
                 lambda i: s.pack_store_put(i, region=client.region, keys=b"\x01k", items=[(1, 0)], ranges=[(0, 4096)]),
                 lambda i: s.pack_store_get(i, region=client.region, keys=b"\x01k", items=[(1, 0)], ranges=[(0, 4096)])]
        for i in range(1, 2000):
            packet = rng.choice(packs)(i)
            client.write(packet)
            client.entry(i, length=len(packet), room=4096)
            os.eventfd_write(client.doorbell, 1)
            assert client.entry_done().user_data == i
    finally:
        stop.set()
        thread.join()
    with User(agent) as user:
        assert user.put(b"key", b"value") == Status.OK and user.get(b"key", 100) == b"value"


def test_arena_pages_removed(agent):
    """The session ends as it does for operations of a transfer."""
    with Ringer(agent) as client:
        packet = s.pack_store_exists(1, keys=KEYS)
        client.write(packet)
        client.arena.obj.madvise(mmap.MADV_REMOVE, 0, mmap.PAGESIZE)
        client.entry(1, length=len(packet), room=4096)
        os.eventfd_write(client.doorbell, 1)
        assert client.error(0) == "region_fault"
        assert client.ended()


# --- libdray --------------------------------------------------------------------------------------

@pytest.mark.parametrize("how", [dict(ring_entries=2), dict(arena_bytes=4096), dict(ring_entries=1, arena_bytes=4096), {}])
def test_more_requests_than_room(agent, how):
    """A full ring or arena is no error: what finds no room goes by the socket."""
    with User(agent, **how) as user:
        async def all_of_them():
            await asyncio.gather(*(user.store.put(user.region, [(b"%d" % i, [(i * 64, 64)])], wait=False) for i in range(200)))
            return await asyncio.gather(*(user.store.exists([b"%d" % (i + k) for k in range(100)], wait=False) for i in range(100)))
        for i in range(200):
            user.view[i * 64:i * 64 + 64] = bytes([i]) * 64
        for results in asyncio.run(all_of_them()):
            assert {r.status for r in results} == {Status.OK}
        for i in range(200):
            assert user.get(b"%d" % i, 64) == bytes([i]) * 64


def test_transfers_that_fill_the_ring(agent):
    """Requests to the store do not wait for them."""
    with User(agent, ring_entries=2) as user:
        remote = user.client.import_token(user.region.export())
        waiting = [user.client.read(user.region, remote, [(0, 64, 8)], wait_word=(user.region, 4096, 1)) for _ in range(2)]
        assert user.put(b"key", b"value") == Status.OK and user.has(b"key") == [True]
        user.view[4096:4100] = (1).to_bytes(4, "little")
        for transfer in waiting:
            transfer.result(LIMIT)
