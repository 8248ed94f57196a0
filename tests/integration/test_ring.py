# SPDX-License-Identifier: Apache-2.0
"""Rings and arenas of a client that breaks the rules: invalid indices, entries that change while the agent reads them."""

import ctypes
import fcntl
import os
import random
import select
import threading

import dray
import pytest
import wire
from harness import LIMIT, MIB, Side, expect, noise, nothing_leaked, until
from wire import codec as s


@pytest.fixture
def ringed(agent):
    """Two sides of one agent; the first has a ring of 16 entries."""
    with Side(agent, MIB, wire=True, ring_entries=16, arena_bytes=1 << 18) as here, Side(agent, MIB, noise(MIB)) as there:
        here.client.open_ring()
        here.remote = here.reach(there)
        here.there = there
        yield here


def ended(client, *names):
    """Waits until the session ends, and checks its error."""
    until(lambda: client.process() or not client.connected, "the end of the session")
    assert client.error is not None and client.error.name in names, client.error


@pytest.mark.parametrize("entries, arena, error", [
    (3, 4096, "invalid"), (17, 4096, "invalid"), (8192, 4096, "invalid"), (1 << 31, 4096, "invalid"),
    (16, 0, "invalid"), (16, s.ARENA_MAX + 1, "invalid"), (16, 1 << 63, "invalid")])
def test_bad_sizes(agent, entries, arena, error):
    with agent.wire() as client:
        if arena == 0:  # the protocol does not say whether a ring may have no arena
            client.request(s.pack_ring_open, wait=False, sq_entries=entries, arena_bytes=arena).exception(LIMIT)
        else:
            expect(error, client.request, s.pack_ring_open, sq_entries=entries, arena_bytes=arena)


def test_once(ringed):
    expect("exists", ringed.client.request, s.pack_ring_open, sq_entries=16, arena_bytes=4096)


def test_shape(ringed):
    ring = ringed.client.ring
    assert ring.sq_entries == 16 and ring.cq_entries == 32
    assert ring.sq_offset >= s.RING_SIZE or ring.sq_offset >= s.RING_CLIENT_SLEEPING + 4
    assert ringed.client.arena.size >= 1 << 18


@pytest.mark.parametrize("lead", [17, 18, 1000, 0x7fffffff, 0xffffffff])
def test_invalid_submission_tail(ringed, lead):
    """A tail that is further ahead than the ring has entries ends the session."""
    ring = ringed.client.ring
    ring.store(s.RING_SQ_TAIL, (ring.tail + lead) & 0xffffffff)
    ring.ring_doorbell()
    ended(ringed.client, "protocol")


@pytest.mark.parametrize("lead", [1, 33, 0x80000000])
def test_invalid_completion_head(ringed, lead):
    """A completion head beyond the tail ends the session at the next submission at the latest."""
    client, ring = ringed.client, ringed.client.ring
    client.read(ringed.region, ringed.remote, [(0, 0, 1)], via="ring").result(LIMIT)
    ring.store(s.RING_CQ_HEAD, (ring.head + lead) & 0xffffffff)
    pending = client.read(ringed.region, ringed.remote, [(0, 0, 1)], via="ring")
    until(lambda: client.process() or pending.done() or not client.connected, "an answer or the end")
    if client.connected:  # the agent may check the head only when it needs room
        client.region(ringed.memory)
    else:
        ended(client, "protocol")


@pytest.mark.parametrize("word", [s.RING_MAGIC, s.RING_SQ_ENTRIES, s.RING_CQ_ENTRIES, s.RING_SQ_OFFSET, s.RING_CQ_OFFSET,
                                  s.RING_SQ_HEAD, s.RING_CQ_TAIL, s.RING_AGENT_SLEEPING])
def test_agents_words_overwritten(agent, word, value=0x40000001):
    """The agent keeps its indices and the ring's sizes in private memory, and does not read them back from the ring."""
    with Side(agent, MIB, wire=True, ring_entries=16) as here, Side(agent, MIB, noise(MIB)) as there:
        here.client.open_ring()
        remote = here.reach(there)
        client, ring = here.client, here.client.ring
        fields = dict(direction=2, op_count=1, local=here.region.handle, remote=remote.handle, op_local=3, op_remote=5, op_length=1000)
        at = ring.sq_offset + (ring.tail & 15) * s.SQE.size
        ring.bytes[at:at + s.SQE.size] = s.SQE.pack(1 << 40, *(fields.get(name, 0) for name in s.Sqe._fields[1:]))
        ring.store(word, value)
        ring.store(s.RING_SQ_TAIL, (ring.tail + 1) & 0xffffffff)
        ring.ring_doorbell()
        until(lambda: here.view[3:1003] == there.view[5:1005], "the bytes")
        # the socket still works, without the ring
        raw, client.ring = ring, None
        client.read(here.region, remote, [(5000, 5, 1000)]).result(LIMIT)
        client.ring = raw
        ring.completions = lambda: ()


BAD_ENTRIES = [
    ({"direction": 0}, "invalid"), ({"direction": 255}, "invalid"), ({"class_": 7}, "invalid"),
    ({"flags": 0x4000}, "unsupported"), ({"flags": 0x10}, "unsupported"),
    ({"op_count": 0}, "invalid"), ({"op_count": 2}, "invalid"), ({"op_count": 0xffffffff}, "invalid"),
    ({"flags": 8, "op_count": 0}, "invalid"), ({"flags": 8, "op_count": 65537}, "too_large"),
    ({"flags": 8, "op_count": 0xffffffff}, "too_large"),
    ({"flags": 8, "arena_offset": (1 << 64) - 24}, "range"), ({"flags": 8, "arena_offset": 1 << 18}, "range"),
    ({"flags": 8, "arena_offset": (1 << 18) - 23}, "range"),
    ({"flags": 1, "notify_length": 4097}, "too_large"), ({"flags": 1, "notify_length": 0xffffffff}, "too_large"),
    ({"flags": 1, "notify_length": 10, "notify_offset": (1 << 64) - 5}, "range"),
    ({"flags": 1, "notify_length": 10, "notify_offset": (1 << 18) - 9}, "range"),
    ({"local": 0}, "not_found"), ({"remote": 0}, "not_found"), ({"local": (1 << 64) - 1}, "not_found"),
    ({"op_length": 0}, "range"), ({"op_local": MIB}, "range"), ({"op_remote": (1 << 64) - 1}, "range"),
    ({"flags": 2, "wait_region": 0}, "not_found"), ({"flags": 2, "wait_offset": 1}, "invalid"),
    ({"flags": 4, "set_offset": MIB}, "range")
]


def test_bad_entries(ringed):
    """Each invalid entry gets a completion with an error, and the ring continues to work."""
    client, handle = ringed.client, ringed.region.handle
    good = dict(direction=2, op_count=1, local=handle, remote=ringed.remote.handle, op_length=1000, wait_region=handle,
                set_region=handle)
    for fields, error in BAD_ENTRIES:
        for change, name in ((fields, error), ({}, None)):
            pending = wire.Transfer(client)
            client.ring.push(user_data=client.number(pending), **{**good, **change})
            client.ring.ring_doorbell()
            if name:
                expect(name, pending.result, LIMIT)
            else:
                pending.result(LIMIT)


def test_handles_of_another_kind(ringed):
    """A region in the place of a remote and the reverse: no byte moves."""
    client, region, remote = ringed.client, ringed.region.handle, ringed.remote.handle
    before = bytes(ringed.there.view)
    good = dict(direction=1, op_count=1, local=region, remote=remote, op_length=1000, wait_region=region, set_region=region)
    for change in ({"local": remote}, {"remote": region}, {"local": remote, "remote": region}, {"flags": 2, "wait_region": remote},
                   {"flags": 4, "set_region": remote}):
        refused = wire.Transfer(client)
        client.ring.push(user_data=client.number(refused), **{**good, **change})
        client.ring.ring_doorbell()
        expect("invalid", refused.result, LIMIT)
    assert bytes(ringed.there.view) == before


def test_duplicate_user_data(ringed):
    client, words = ringed.client, ringed.memory.words()
    first = client.read(ringed.region, ringed.remote, [(64, 0, 100)], via="ring", wait_word=(ringed.region, 0, 1))
    second = wire.Transfer(client)
    client.pending[first.request_id] = second
    client.ring.push(user_data=first.request_id, direction=2, op_count=1, local=ringed.region.handle,
                     remote=ringed.remote.handle, op_length=1)
    client.ring.ring_doorbell()
    expect("duplicate_id", second.result, LIMIT)
    client.pending[first.request_id] = first
    words[0] = 1
    first.result(LIMIT)
    words.release()


def test_more_in_flight_than_completions(ringed):
    """If a client does not reap, submissions wait for room in the completion ring, and none is lost."""
    client, words = ringed.client, ringed.memory.words()
    waiting = []
    for i in range(100):
        while True:
            try:
                waiting.append(client.read(ringed.region, ringed.remote, [(4096 + i, i, 1)], via="ring",
                                           wait_word=(ringed.region, 0, 1)))
                break
            except wire.Error as e:
                assert e.name == "busy"
                words[0] = 1  # the ring is full: the waiting transfers start
                client.process(LIMIT)
    words[0] = 1
    for transfer in waiting:
        transfer.result(LIMIT)
    assert ringed.view[4096:4196] == ringed.there.view[:100]
    words.release()


def test_doorbell_never_answered(ringed):
    """The agent works if no thread waits at the completion doorbell."""
    client, ring = ringed.client, ringed.client.ring
    seen = 0
    for _ in range(2000):
        ring.push(user_data=1 << 40, direction=2, op_count=1, local=ringed.region.handle, remote=ringed.remote.handle, op_length=1)
        ring.ring_doorbell()
        until(lambda: ring.word(s.RING_CQ_TAIL) != ring.head, "a completion")
        ring.head = (ring.head + 1) & 0xffffffff
        ring.store(s.RING_CQ_HEAD, ring.head)
        seen += 1
    client.read(ringed.region, ringed.remote, [(0, 0, 100)], via="ring").result(LIMIT)


def test_doorbell_descriptors_abused(ringed):
    """The worker does not block if the client makes the eventfd blocking, fills and empties it, adds the epoll instance to itself, and
    closes the descriptors."""
    client, ring = ringed.client, ringed.client.ring
    flags = fcntl.fcntl(ring.doorbell, fcntl.F_GETFL)
    fcntl.fcntl(ring.doorbell, fcntl.F_SETFL, flags & ~os.O_NONBLOCK)
    client.read(ringed.region, ringed.remote, [(0, 0, 1)], via="ring").result(LIMIT)
    os.eventfd_write(ring.doorbell, (1 << 64) - 2 - 1000)
    client.read(ringed.region, ringed.remote, [(0, 0, 1)], via="ring").result(LIMIT)
    os.eventfd_read(ring.doorbell)
    client.read(ringed.region, ringed.remote, [(0, 0, 1)], via="ring").result(LIMIT)
    watch = select.epoll.fromfd(os.dup(ring.completion))
    crowd = [os.eventfd(1, os.EFD_CLOEXEC) for _ in range(100)]
    for fd in crowd:
        watch.register(fd, select.EPOLLIN)
    onlookers = [select.epoll() for _ in range(100)]
    for onlooker in onlookers:
        onlooker.register(watch.fileno(), select.EPOLLIN)
    client.read(ringed.region, ringed.remote, [(0, 0, 1)], via="ring").result(LIMIT)
    for each in (watch, *onlookers):
        each.close()
    for fd in crowd:
        os.close(fd)
    client.epoll.unregister(ring.completion)
    nowhere, ring.completion = ring.completion, os.eventfd(0, os.EFD_CLOEXEC)
    client.epoll.register(ring.completion, select.EPOLLIN)
    os.close(nowhere)
    client.read(ringed.region, ringed.remote, [(0, 0, 1)]).result(LIMIT)


def punch(fd, offset, length):
    libc = ctypes.CDLL(None)
    return libc.fallocate(fd, 3, ctypes.c_long(offset), ctypes.c_long(length))


def test_ring_memory_punched(agent):
    """If the client punches holes into ring and arena, the agent reads zeros, which are invalid entries, or ends the session."""
    with Side(agent, MIB, wire=True) as here, Side(agent, MIB, noise(MIB)) as there:
        remote = here.reach(there)
        got = []

        def adopt(m, fds):
            got.extend([m, *fds])

        here.client.request(s.pack_ring_open, convert=adopt, sq_entries=16, arena_bytes=65536)
        m, arena, ring, doorbell, completion = got
        punch(arena, 0, 65536)
        punch(ring, 0, m.ring_bytes)
        pending = here.client.request(s.pack_transfer, wait=False, direction=2, flags=8, local=here.region.handle,
                                      remote=remote.handle, arena_ops=4)
        assert pending.exception(LIMIT).name in ("range", "invalid", "region_fault")
        os.eventfd_write(doorbell, 1)
        expect({"not_found", "protocol", "region_fault"}, here.client.request, s.pack_region_remove, region=77)
        for fd in (arena, ring, doorbell, completion):
            os.close(fd)


def flip(memory, values, stop):
    """Writes the values in turn, as fast as possible."""
    while not stop.is_set():
        for at, word in values:
            memory[at] = word


@pytest.mark.parametrize("via", ["arena", "ring"])
def test_operations_changed_while_read(agent, via):
    """A thread switches operations between valid and out of range. Each transfer succeeds or is refused, and no byte outside changes."""
    with Side(agent, MIB, wire=True, arena_bytes=1 << 18) as here, Side(agent, MIB, noise(MIB)) as there:
        guard = dray.Memory(MIB)  # another region of this client, which no transfer uses
        here.client.region(guard)
        here.client.open_ring()
        remote, n = here.reach(there), 2000
        ops = b"".join([s.OP.pack(i * 512, i * 512, 300) for i in range(n)])
        piece, size = here.client.arena.put(ops)
        words = here.client.arena.view.cast("Q")
        stop = threading.Event()
        last = piece // 8 + (n - 1) * 3
        flips = [(last, 1 << 63), (last + 2, (1 << 64) - 1), (last, (n - 1) * 512), (last + 2, 300), (last + 1, MIB),
                 (last + 1, (n - 1) * 512)]
        thread = threading.Thread(target=flip, args=(words, flips, stop))
        thread.start()
        outcomes = set()
        try:
            for i in range(100):
                transfer = wire.Transfer(here.client)
                if via == "arena":
                    here.client.submit(transfer, s.pack_transfer, direction=2, flags=8, local=here.region.handle,
                                        remote=remote.handle, arena_offset=piece, arena_ops=n)
                else:
                    here.client.ring.push(user_data=here.client.number(transfer), direction=2, flags=8, op_count=n,
                                          local=here.region.handle, remote=remote.handle, arena_offset=piece)
                    here.client.ring.ring_doorbell()
                error = transfer.exception(LIMIT)
                outcomes.add(error.name if error else "ok")
        finally:
            stop.set()
            thread.join()
            words.release()
        assert outcomes <= {"ok", "range", "invalid"}, outcomes
        assert guard.view == bytes(MIB), "bytes moved outside of the region"


def test_entries_changed_while_read(ringed):
    """The same with submission entries, which a thread overwrites all the time."""
    client, ring = ringed.client, ringed.client.ring
    words = ring.bytes[ring.sq_offset:ring.sq_offset + 16 * s.SQE.size].cast("Q")
    rng, stop = random.Random(8), threading.Event()
    flips = [(e * 16 + rng.choice([1, 2, 3, 4, 13, 14, 15]), rng.choice([0, 1, 1 << 63, (1 << 64) - 1, ringed.region.handle, 2 << 16 | 1 << 32]))
             for e in range(16) for _ in range(8)]
    thread = threading.Thread(target=flip, args=(words, flips, stop))
    thread.start()
    try:
        for i in range(400):
            if not client.connected:
                break
            ring.push(user_data=(1 << 41) + i, direction=2, op_count=1, local=ringed.region.handle,
                      remote=ringed.remote.handle, op_length=4096, deadline_ms=2000)
            ring.ring_doorbell()
            until(lambda: client.process() or not client.connected or ring.word(s.RING_SQ_HEAD) == ring.tail, "the agent's look")
    finally:
        stop.set()
        thread.join()
        words.release()


def test_many_rings(agent):
    """Sixty sessions with rings open and close."""
    with nothing_leaked(agent):
        clients = [agent.wire() for _ in range(60)]
        for client in clients:
            client.open_ring(64, 65536)
        for client in clients:
            client.close()
