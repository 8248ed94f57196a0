# SPDX-License-Identifier: Apache-2.0
"""Transfers that succeed: every byte arrives at its place, and no other byte changes."""

import random

import dray
import pytest
import wire
from harness import LIMIT, MIB, Side, expect, noise, same, transport, until


def model(dst, src, ops, direction):
    """Applies the operations to dst, as a transfer must; offsets count from the start of each side."""
    for local, remote, length in ops:
        to, frm = (local, remote) if direction == "read" else (remote, local)
        dst[to:to + length] = src[frm:frm + length]


def run(here, there, remote, ops, direction="read", **how):
    """Runs a transfer and compares the destination with the model byte by byte."""
    dst, src = (here, there) if direction == "read" else (there, here)
    want = bytearray(dst.view)
    model(want, src.view, ops, direction)
    ended = here.client.transfer(direction, here.region, remote, ops, **how).result(LIMIT)
    assert ended.bytes == sum(op[2] for op in ops)
    assert same(dst.view, want), "the destination differs from the model"
    return ended


@pytest.mark.parametrize("direction", ["read", "write"])
def test_sizes_and_alignments(sides, direction):
    """1 byte to 64 KiB with many pairs of alignments, in many transfers at once."""
    size = 4 * MIB
    here, there = sides(size, noise(size), noise(size, 2))
    remote = here.reach(there)
    assert remote.transport == sides.transport
    src, dst = (there, here) if direction == "read" else (here, there)
    want = bytearray(dst.view)
    lengths = [1, 2, 3, 7, 8, 9, 63, 64, 65, 511, 4095, 4096, 4097, 65535, 65536, 65537]
    transfers, at, rng = [], 0, random.Random(3)
    for length in lengths:
        for to, frm in [(a, b) for a in (0, 1, 3, 7) for b in (0, 1, 4, 5)] if length < 60000 else [(0, 1), (5, 0)]:
            at = -(-at // 8) * 8 + to
            source = rng.randrange(0, size - length - 64) // 8 * 8 + frm
            op = (at, source, length) if direction == "read" else (source, at, length)
            at += length
            transfers.append(here.client.transfer(direction, here.region, remote, [op]))
            model(want, src.view, [op], direction)
    assert at <= size
    for transfer in transfers:
        transfer.result(LIMIT)
    assert same(dst.view, want)


@pytest.mark.parametrize("direction", ["read", "write"])
def test_64_mib(sides, direction):
    size = 64 * MIB + 4096
    block = noise(MIB + 13)
    data = (block * 65)[:size]
    here, there = sides(size, data if direction == "read" else None, data if direction == "write" else None)
    remote = here.reach(there)
    ended = run(here, there, remote, [(1, 3, 64 * MIB)], direction)
    assert transport(ended) == sides.transport
    assert ended.duration_ns > 0


@pytest.mark.parametrize("via", ["inline", "ring"])
def test_duration_of_small_transfers(sides, via):
    """A transfer that the worker carries out in the turn of its request has a duration too."""
    here, there = sides(MIB, noise(MIB), wire=True)
    remote = here.reach(there)
    took = {length: run(here, there, remote, [(0, 0, length)], via=via).duration_ns for length in (1, 4096, 65536, MIB)}
    assert all(took.values()), took


@pytest.mark.parametrize("count, via", [(1, "inline"), (2, "inline"), (255, "inline"), (257, "inline"), (4096, "inline"),
                                        (4097, "arena"), (65536, "arena"), (65536, "ring"), (1, "arena"), (1, "ring")])
def test_operations(sides, count, via):
    """1 to 65,536 scattered operations, in the message, the arena and the ring."""
    length = 61
    size = count * 64 + 4096
    here, there = sides(size, noise(size), noise(size, 2), wire=True)
    remote = here.reach(there)
    slots = list(range(count))
    random.Random(count).shuffle(slots)
    ops = [(slot * 64 + i % 3, i * 64 + slot % 3, length) for i, slot in enumerate(slots)]
    for direction in ("read", "write"):
        run(here, there, remote, ops, direction, via=via)


def test_merging(sides):
    """Merging of adjacent operations does not change the result."""
    here, there = sides(MIB, noise(MIB))
    remote = here.reach(there)
    run(here, there, remote, [(i * 128, i * 128, 128) for i in range(4096)])
    run(here, there, remote, [(i * 128 + 1, i * 128, 127 + i % 2) for i in range(4096)])


def test_socket_arena_and_ring_give_the_same_result(sides):
    """The same transfer by socket, arena and ring gives the same bytes and the same completion."""
    here, there = sides(MIB, noise(MIB), wire=True)
    remote = here.reach(there)
    ops = [(i * 4000, i * 3001 + 1, 2999) for i in range(200)]
    seen = []
    for via in ("inline", "arena", "ring"):
        here.view[:] = bytes(len(here.memory))
        ended = run(here, there, remote, ops, via=via)
        seen.append((bytes(here.view), ended.status, ended.transport, ended.bytes))
    assert seen[0] == seen[1] == seen[2]
    for via in ("inline", "arena", "ring"):
        expect("range", here.client.read(here.region, remote, [(0, MIB, 1)], via=via).result, LIMIT)


def test_ring_batch(sides):
    """Batches of submissions with one doorbell each; all together are more than the ring has entries."""
    size = 2 * MIB
    here, there = sides(size, noise(size), wire=True, ring_entries=64)
    remote = here.reach(there)
    want = bytearray(here.view)
    rng = random.Random(5)
    at = 0
    for _ in range(8):
        transfers = []
        for _ in range(64):
            length = rng.randrange(1, 4000)
            op = (at, rng.randrange(size - length), length)
            at += length
            transfers.append(here.client.read(here.region, remote, [op], via="ring", doorbell=False))
            model(want, there.view, [op], "read")
        here.client.ring.ring_doorbell()
        for transfer in transfers:
            transfer.result(LIMIT)
    assert same(here.view, want)


def extents_region(client, rng, total, fill):
    """Adds a region of 32 extents in 32 memfds, at odd offsets; returns the region and the pieces."""
    pieces, at = [], 0
    for i in range(32):
        length = total - at if i == 31 else rng.randrange(1, 2 * (total - at) // (32 - i))
        offset = rng.randrange(0, 9000)
        memory = dray.Memory(offset + length)
        memory.view[offset:offset + length] = fill[at:at + length]
        pieces.append((memory, offset, length))
        at += length
    return client.region(pieces, name="32 layers"), pieces


def extents_bytes(pieces):
    return b"".join(memory.view[offset:offset + length] for memory, offset, length in pieces)


@pytest.mark.parametrize("direction", ["read", "write"])
def test_extents(sides, direction):
    """Regions of 32 extents on both sides, and operations across the borders of extents."""
    total = MIB + 777
    here, there = sides(4096)
    rng = random.Random(11)
    near, near_pieces = extents_region(here.client, rng, total, noise(total, 21))
    far, far_pieces = extents_region(there.client, rng, total, noise(total, 22))
    remote = here.client.import_token(far.export())
    assert remote.length == near.length == total
    ops, at = [], 0
    while at < total - 1:
        length = min(rng.choice([1, 100, 5000, 90000]), total - at)
        ops.append((at, rng.randrange(total - length + 1), length) if direction == "read" else
                   (rng.randrange(total - length + 1), at, length))
        at += length + rng.randrange(3)
    src, dst = (far_pieces, near_pieces) if direction == "read" else (near_pieces, far_pieces)
    want = bytearray(extents_bytes(dst))
    model(want, extents_bytes(src), ops, direction)
    here.client.transfer(direction, near, remote, ops).result(LIMIT)
    assert extents_bytes(dst) == want


def test_one_memfd_many_extents(sides):
    """Extents in one memfd, in reverse order, with gaps of a few bytes."""
    here, there = sides(MIB, noise(MIB))
    memory = dray.Memory(MIB)
    pieces = [(memory, i * 10007 + 3, 10001) for i in reversed(range(32))]
    region = here.client.region(pieces)
    remote = here.reach(there)
    here.client.read(region, remote, [(0, 17, region.length)]).result(LIMIT)
    assert extents_bytes(pieces) == there.view[17:17 + region.length]
    assert memory.view[10004:10010] == bytes(6), "bytes between the extents changed"


def test_token_of_a_range(sides):
    """Offsets in a remote count from the start of the exported range, and cannot pass its end."""
    here, there = sides(MIB, noise(MIB))
    remote = here.client.import_token(str(there.region.export(1001, 5000, access="r")))
    assert remote.length == 5000
    here.client.read(here.region, remote, [(7, 0, 5000)]).result(LIMIT)
    assert here.view[7:5007] == there.view[1001:6001]
    expect("range", here.client.read(here.region, remote, [(0, 4999, 2)]).result, LIMIT)
    expect("denied", here.client.write(here.region, remote, [(0, 0, 1)]).result, LIMIT)


def test_source_and_destination_overlap(sides):
    """A transfer from a region to itself succeeds, although the bytes of overlapping operations are undefined."""
    here, _ = sides(MIB, None, noise(MIB))
    remote = here.reach(here)
    for ops in ([(0, 100, 500000)], [(100, 0, 500000)], [(7, 7, 500000)], [(i, i * 3, 4096) for i in range(1000)]):
        for direction in ("read", "write"):
            here.client.transfer(direction, here.region, remote, ops).result(LIMIT)
    here.view[:1000] = noise(1000)
    run(here, here, remote, [(5000, 0, 1000)])


def test_both_directions_and_sessions(sides):
    """Four sessions on each side read and write at the same time, in both classes."""
    size, n = 2 * MIB, 4
    pairs = [sides(size, noise(size, i), noise(size, 50 + i)) for i in range(n)]
    transfers, want = [], []
    for here, there in pairs:
        remote, back = here.reach(there), there.reach(here)
        half = size // 2
        # Each side reads from the other's lower half into its upper half, and writes into the other's upper half.
        plan = [(here, remote, "read", half, 0), (there, back, "write", half // 2, half + half // 2),
                (there, back, "read", half, 0), (here, remote, "write", half // 2, half + half // 2)]
        for i, (side, far, direction, local, other) in enumerate(plan):
            far_view = (there if side is here else here).view
            length = half // 2
            for at in range(0, length, 65536):
                op = (local + at, other + at, 65536)
                transfers.append(side.client.transfer(direction, side.region, far, [op],
                                                      klass="latency" if i % 2 else "bulk"))
            want.append((side.view, local, far_view, other, length))
    for transfer in transfers:
        transfer.result(LIMIT)
    for near, local, far, other, length in want:
        assert near[local:local + length] == far[other:other + length]


def test_random_transfers(sides):
    """Random transfers by socket, arena and ring, up to 40 in flight, compared with the model."""
    size, step = 4 * MIB, 32768
    here, there = sides(size, noise(size), noise(size, 2), wire=True)
    remote, rng = here.reach(there), random.Random(99)
    half = size // 2  # the upper halves are the destinations
    want = {"read": bytearray(here.view), "write": bytearray(there.view)}
    flying = []
    for slot in range(half // step):
        direction = rng.choice(["read", "write"])
        ops, used = [], 0
        while used < step - 4096:
            length = rng.choice([1, 17, 512, 4096]) if rng.random() < 0.9 else rng.randrange(1, step - used)
            frm, to = rng.randrange(half - length), half + slot * step + used
            ops.append((to, frm, length) if direction == "read" else (frm, to, length))
            used += length + rng.randrange(5)
        model(want[direction], (there if direction == "read" else here).view, ops, direction)
        flying.append(here.client.transfer(direction, here.region, remote, ops, via=rng.choice(["inline", "arena", "ring"]),
                                           klass=rng.choice(["bulk", "latency"])))
        while len(flying) > 40:
            flying.pop(rng.randrange(len(flying))).result(LIMIT)
    for transfer in flying:
        transfer.result(LIMIT)
    assert same(here.view, want["read"])
    assert same(there.view, want["write"])


# --- words, deadlines, cancel -----------------------------------------------------------------------

@pytest.mark.parametrize("via", ["inline", "arena", "ring"])
def test_wait_and_set_words(sides, via):
    """A transfer starts when its wait word holds the value, and stores its set word when all bytes are in place."""
    here, there = sides(MIB, noise(MIB), wire=True)
    remote = here.reach(there)
    words = here.memory.words()
    transfer = here.client.read(here.region, remote, [(4096, 0, 500000)], via=via,
                                wait_word=(here.region, 64, 7), set_word=(here.region, 128, 9))
    here.client.read(here.region, remote, [(4000, 0, 1)]).result(LIMIT)  # overtakes the waiting transfer
    assert not transfer.done() and words[32] == 0
    words[16] = 6
    here.client.read(here.region, remote, [(4000, 0, 1)]).result(LIMIT)
    assert not transfer.done()
    words[16] = 7
    until(lambda: words[32] == 9, "the set word")
    assert here.view[4096:504096] == there.view[:500000], "the set word came before the bytes"
    transfer.result(LIMIT)
    words.release()


@pytest.mark.parametrize("offset, name", [(2, "invalid"), (MIB - 2, {"invalid", "range"}), (MIB, "range"), (1 << 63, "range")])
def test_bad_words(agent, offset, name):
    with Side(agent, MIB) as here, Side(agent, MIB) as there:
        remote = here.reach(there)
        for word in ("wait_word", "set_word"):
            expect(name, here.client.read(here.region, remote, [(0, 0, 1)], **{word: (here.region, offset, 1)}).result, LIMIT)


@pytest.mark.parametrize("via", ["inline", "arena", "ring"])
def test_deadline(sides, via):
    here, there = sides(MIB, noise(MIB), wire=True)
    remote = here.reach(there)
    words = here.memory.words()
    transfer = here.client.read(here.region, remote, [(4096, 0, 4096)], via=via, deadline=0.05,
                                wait_word=(here.region, 0, 1), set_word=(here.region, 4, 1))
    error = expect("deadline", transfer.result, LIMIT)
    assert error.done.bytes == 0
    words[0] = 1
    here.client.read(here.region, remote, [(8192, 0, 1)]).result(LIMIT)
    assert here.view[4096:8192] == bytes(4096) and words[1] == 0, "the transfer moved bytes after its end"
    words.release()


def test_deadline_in_flight(sides):
    """A transfer in flight ends at its deadline, and after that no byte of the destination changes."""
    size = 64 * MIB
    here, there = sides(size, (noise(MIB) * 64), wire=True)
    remote = here.reach(there)
    transfers = [here.client.read(here.region, remote, [(0, 0, size)], deadline=0.02) for _ in range(20)]
    ended = [t.exception(LIMIT) for t in transfers]
    assert {e.name for e in ended if e} == {"deadline"}
    for at in range(0, size, 4096):
        here.view[at] = 0
    assert not any(here.view[0:size:4096]), "bytes landed after the deadline was reported"


@pytest.mark.parametrize("via", ["inline", "ring"])
def test_cancel(sides, via):
    here, there = sides(MIB, noise(MIB), wire=True)
    remote = here.reach(there)
    transfer = here.client.read(here.region, remote, [(4096, 0, 4096)], via=via, wait_word=(here.region, 0, 1))
    transfer.cancel()
    assert transfer.done(), "CANCEL was answered before the transfer ended"
    expect("cancelled", transfer.result)
    expect("not_found", transfer.cancel)
    ended = here.client.read(here.region, remote, [(0, 0, 1)], via=via)
    ended.result(LIMIT)
    expect("not_found", ended.cancel)


def test_cancel_in_flight(sides):
    """CANCEL is answered only when no byte can arrive any more."""
    size = 64 * MIB
    here, there = sides(size, (noise(MIB) * 64), wire=True)
    remote = here.reach(there)
    transfers = [here.client.read(here.region, remote, [(0, 0, size)]) for _ in range(10)]
    until(lambda: here.view[0] or any(t.done() for t in transfers) or here.client.process(), "the first byte")
    answers = [t.cancel(wait=False) for t in transfers]
    for answer in answers:
        answer.exception(LIMIT)  # not_found if the transfer ended before
    assert all(t.done() for t in transfers)
    assert {e.name for t in transfers if (e := t.exception())} <= {"cancelled"}
    for at in range(0, size, 4096):
        here.view[at] = 0
    here.client.read(here.region, remote, [(1, 1, 1)]).result(LIMIT)
    assert not any(here.view[0:size:4096]), "bytes landed after CANCEL was answered"


def test_remove_in_flight(sides):
    """REGION_REMOVE cancels the transfers of the region; after the answer only the client changes the memory."""
    size = 64 * MIB
    here, there = sides(size, (noise(MIB) * 64))
    remote = here.reach(there)
    transfers = [here.client.read(here.region, remote, [(0, 0, size)]) for _ in range(10)]
    waiting = here.client.read(here.region, remote, [(0, 0, 1)], wait_word=(here.region, 8, 12345))
    until(lambda: here.view[0] or any(t.done() for t in transfers) or here.client.process(), "the first byte")
    here.region.remove()
    for at in range(0, size, 4096):
        here.view[at] = 0
    for t in [*transfers, waiting]:
        error = t.exception(LIMIT)
        assert error is None or error.name == "cancelled"
    assert waiting.exception() is not None
    assert not any(here.view[0:size:4096]), "bytes landed after REGION_REMOVE was answered"


# --- groups and notifications -----------------------------------------------------------------------

def test_group_shares_regions(agent):
    with Side(agent, MIB, noise(MIB), wire=True, group="engine") as one, Side(agent, MIB) as other:
        with agent.wire(group="engine") as mate:
            memory = dray.Memory(MIB)
            mine = mate.region(memory)
            remote = mate.import_token(str(one.region.export()))
            mate.read(mine, remote, [(0, 0, 1000)]).result(LIMIT)
            assert memory.view[:1000] == one.view[:1000]
            # the region of another member of the group as the local side
            theirs = wire.Region(mate, one.region.handle, MIB)
            far = mate.import_token(other.export())
            mate.write(theirs, far, [(0, 0, 1000)]).result(LIMIT)
            assert other.view[:1000] == one.view[:1000]
        # a session of another group cannot use the region
        with agent.wire(group="another") as stranger:
            far = stranger.import_token(other.export())
            theirs = wire.Region(stranger, one.region.handle, MIB)
            expect("not_found", stranger.write(theirs, far, [(0, 0, 1000)]).result, LIMIT)
            expect("not_found", theirs.export)
            expect("not_found", theirs.revoke)


def test_notification_after_the_bytes(sides):
    """Every notification comes exactly once, after all bytes of its transfer are in place."""
    size = 4 * MIB
    here, there = sides(size, None, noise(size), wire=True, notifications=True)
    remote = here.reach(there)
    step = 65536
    transfers = [here.client.write(here.region, remote, [(i * step, i * step, step)], notify=(i, b"block %d" % i),
                                   via=("inline", "arena", "ring")[i % 3]) for i in range(size // step)]
    seen = set()
    for _ in transfers:
        event = there.client.next_notification(LIMIT)
        assert event is not None, f"only {len(seen)} notifications came"
        assert event.tag not in seen
        seen.add(event.tag)
        assert event.payload == b"block %d" % event.tag
        assert event.region == there.region.handle
        assert event.agent_id == here.client.agent_id
        at = event.tag * step
        assert there.view[at:at + step] == here.view[at:at + step], "the notification overtook the bytes"
    for transfer in transfers:
        transfer.result(LIMIT)
    there.client.process()
    assert not there.client.events and seen == set(range(size // step))


def test_notify_without_transfer(sides):
    here, there = sides(4096, notifications=True)
    remote = here.reach(there)
    for payload in (b"", b"x", bytes(range(256)) * 16):
        remote.notify(42, payload)
        event = there.client.next_notification(LIMIT)
        assert (event.tag, event.payload) == (42, payload)
    before = (event.agent_id, event.incarnation, event.id)
    remote.notify(43)
    event = there.client.next_notification(LIMIT)
    assert before != (event.agent_id, event.incarnation, event.id)


def test_notification_reaches_the_group(agent):
    """Each member of the group that reads notifications gets it; members of other groups do not."""
    with Side(agent, 4096, group="g", notifications=True) as owner, Side(agent, 4096, notifications=True) as here, \
            agent.client(group="g", notifications=True) as mate, agent.client(group="g") as deaf:
        here.reach(owner).notify(5, b"hello")
        for client in (owner.client, mate):
            assert client.next_notification(LIMIT).payload == b"hello"
        for client in (here.client, deaf):
            client.region(dray.Memory(4096))  # a round trip
            assert not client.events


def test_notify_without_reader(sides):
    """Without a reader the notification is refused, and the error reports that the bytes are in place."""
    here, there = sides(4096, None, noise(4096))
    remote = here.reach(there)
    expect("notify_refused", remote.notify, 1, b"x")
    error = expect("notify_refused", here.client.write(here.region, remote, [(0, 0, 4096)], notify=(1, b"")).result, LIMIT)
    assert error.done.bytes == 4096 and there.view == here.view


# --- pools and huge pages -----------------------------------------------------------------------------

def test_pool(agent):
    """Memory of the agent, mapped by the client."""
    with agent.client() as client, Side(agent, MIB, noise(MIB)) as there:
        pool = client.pool(MIB + 5, name="pool")
        assert len(pool.memory) >= MIB + 5
        remote = client.import_token(there.export())
        client.read(pool, remote, [(3, 0, MIB)]).result(LIMIT)
        assert pool.memory.view[3:MIB + 3] == there.view
        token = str(pool.export())
        far = there.client.import_token(token)
        there.client.read(there.region, far, [(0, 4, 100)]).result(LIMIT)
        assert there.view[:100] == pool.memory.view[4:104]
        pool.remove()
        pool.memory.view[0] = 1  # the client's mapping stays
        expect({"revoked", "not_found"}, there.client.read(there.region, far, [(0, 0, 1)]).result, LIMIT)
        pool.memory.close()


def free_huge_pages():
    with open("/proc/meminfo") as info:
        return int(next(line.split()[1] for line in info if line.startswith("HugePages_Free")))


def test_huge_pool(agent):
    with agent.client() as client:
        if free_huge_pages() >= 2:
            with client.pool(4 * MIB, huge=True).memory as memory:
                memory.view[4 * MIB - 1] = 1
        else:
            expect({"no_memory", "unsupported", "no_space"}, client.pool, 4 * MIB, huge=True)


@pytest.fixture
def huge_pages():
    """Reserves huge pages, or skips the test."""
    path = "/proc/sys/vm/nr_hugepages"
    try:
        with open(path) as f:
            old = f.read()
        with open(path, "w") as f:
            f.write("8")
    except OSError as e:
        pytest.skip(f"huge pages cannot be reserved here: {e.strerror}")
    if free_huge_pages() < 4:
        with open(path, "w") as f:
            f.write(old)
        pytest.skip("the kernel gave no huge pages")
    yield
    with open(path, "w") as f:
        f.write(old)


def test_huge_pages(huge_pages, agent):
    """A region of huge pages, and a pool of them."""
    with Side(agent, 2 * MIB, noise(2 * MIB)) as there, agent.client() as client:
        with dray.Memory(2 * MIB, huge=True) as memory:
            region = client.region(memory)
            client.read(region, client.import_token(there.export()), [(1, 0, 2 * MIB - 1)]).result(LIMIT)
            assert same(memory.view[1:2 * MIB], there.view[:2 * MIB - 1])
            region.remove()
        pool = client.pool(2 * MIB, huge=True)
        client.read(pool, client.import_token(there.export()), [(0, 0, 2 * MIB)]).result(LIMIT)
        assert same(pool.memory.view, there.view)
        pool.remove()
        pool.memory.close()
