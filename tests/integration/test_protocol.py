# SPDX-License-Identifier: Apache-2.0
"""Malformed messages on the data socket: each gets a typed error, and the agent continues to serve other clients."""

import contextlib
import errno
import os
import pathlib
import random
import select
import signal
import socket
import struct
import sys

import dray
import pytest
import wire
from wire import codec as s
from harness import LIMIT, MIB, Raw, Side, expect, noise, nothing_leaked, unreachable_token, wait_exit

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "schema"))

from generator.model import Schema  # noqa: E402


def head(type_=s.MSG_NOTIFY, request_id=1, magic=s.MAGIC, major=1, minor=0, flags=0, length=0):
    return s.HEADER.pack(magic, major, minor, type_, flags, length, request_id)


BROKEN = {
    "four bytes": (head()[:4], "truncated"),
    "half a header": (head()[:13], "truncated"),
    "wrong magic": (head(magic=0x20544547), "bad_magic"),
    "one byte": (b"G", {"bad_magic", "truncated"}),
    "later major version": (head(major=2), "version"),
    "version 0": (head(major=0), "version"),
    "unknown header flag": (head(flags=1), "unsupported"),
    "length beyond the packet": (head(length=100) + bytes(50), "truncated"),
    "length short of the packet": (head(length=4) + bytes(50), "invalid"),
    "length beyond the limit": (head(length=s.MESSAGE_MAX), "too_large"),
    "length of 4 GiB": (head(length=0xffffffff), "too_large"),
    "unknown type": (head(0x0fff), "unknown_type"),
    "type 0": (head(0), "unknown_type"),
    "an answer": (s.pack_region_add_reply(1), {"unknown_type", "out_of_order", "invalid"}),
    "an event": (s.pack_draining(1), {"unknown_type", "out_of_order", "invalid"}),
}


@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.parametrize("hello", [True, False], ids=["in session", "first"])
def test_broken_message(agent, name, hello):
    packet, error = BROKEN[name]
    allowed = {error} if isinstance(error, str) else set(error)
    if not hello:
        allowed |= {"out_of_order"}  # also correct
    with Raw(agent, hello) as raw:
        raw.send(packet)
        assert raw.error() in allowed


def test_longest_message(agent):
    """A message of message_max bytes is accepted, one of message_max + 1 bytes is not."""
    tail = bytes(s.MESSAGE_MAX - len(s.pack_region_remove(1)))
    with Raw(agent, sndbuf=2 * s.MESSAGE_MAX) as raw:
        packet = s.build(s.MSG_REGION_REMOVE, 1, struct.pack("<Q", 77), tail)
        assert len(packet) == s.MESSAGE_MAX
        raw.send(packet)
        assert raw.error(1) == "not_found"
        try:
            raw.send(s.build(s.MSG_REGION_REMOVE, 2, struct.pack("<Q", 77), tail, b"x"))
        except OSError:
            pytest.skip("net.core.wmem_max does not allow longer messages")
        assert raw.error() == "too_large"


def test_empty_packet(agent):
    """The agent treats an empty packet as the end of the connection."""
    with Raw(agent) as raw:
        raw.send(b"")
        assert raw.ended()


def test_longer_body_is_accepted(agent):
    """The tail of a body from a newer minor version is ignored."""
    with Raw(agent, False) as raw:
        body = s.pack_hello(5, major_min=1, major_max=1, name="newer")[s.HEADER.size:]
        raw.send(s.HEADER.pack(s.MAGIC, 1, 9, s.MSG_HELLO, 0, len(body) + 40, 5) + body + os.urandom(40))
        header, message, _ = raw.receive()
        assert header.type == s.MSG_HELLO_REPLY and header.request_id == 5
        assert message.major == 1 and message.ops_inline_max == s.OPS_INLINE_MAX
        assert len(message.agent_id) == 16 and message.incarnation


def test_features_unknown_are_ignored(agent):
    with Raw(agent, False) as raw:
        assert raw.ask(s.pack_hello, major_min=1, major_max=3, features=1 << 63, schema_hash=1).major == 1


BODIES = {
    "name too long": (s.MSG_HELLO, struct.pack("<BBHQQI", 1, 1, 0, 0, 0, 65) + b"a" * 65 + bytes(4), "too_large"),
    "name not UTF-8": (s.MSG_HELLO, struct.pack("<BBHQQI", 1, 1, 0, 0, 0, 2) + b"\xff\xfe" + bytes(4), "invalid"),
    "name with a newline": (s.MSG_HELLO, struct.pack("<BBHQQI", 1, 1, 0, 0, 0, 2) + b"a\n" + bytes(4), "invalid"),
    "name longer than the body": (s.MSG_HELLO, struct.pack("<BBHQQI", 1, 1, 0, 0, 0, 60) + b"abc", "truncated"),
    "unknown hello flag": (s.MSG_HELLO, struct.pack("<BBHQQII", 1, 1, 0x8000, 0, 0, 0, 0), "unsupported"),
    "no common version": (s.MSG_HELLO, struct.pack("<BBHQQII", 2, 3, 0, 0, 0, 0, 0), "version"),
    "versions upside down": (s.MSG_HELLO, struct.pack("<BBHQQII", 3, 0, 0, 0, 0, 0, 0), {"version", "invalid"}),
}


@pytest.mark.parametrize("name", BODIES)
def test_broken_hello(agent, name):
    type_, body, error = BODIES[name]
    with Raw(agent, False) as raw:
        raw.send(s.build(type_, 9, body))
        assert raw.error(9) in ({error} if isinstance(error, str) else error)


def each_request():
    """A well-formed packet of every request."""
    return {
        "region_add": s.pack_region_add(1, access=3, extents=[(s.KIND_POOL, 65535, 0, 0, 4096)]),
        "region_remove": s.pack_region_remove(1, region=1),
        "region_export": s.pack_region_export(1, region=1, length=1, access=1),
        "region_revoke": s.pack_region_revoke(1, region=1),
        "remote_import": s.pack_remote_import(1, token=b"x" * 120),
        "remote_release": s.pack_remote_release(1, remote=1),
        "transfer": s.pack_transfer(1, direction=1, local=1, remote=1, ops=[(0, 0, 1)]),
        "transfer_cancel": s.pack_transfer_cancel(1, request=1),
        "notify": s.pack_notify(1, remote=1),
        "ring_open": s.pack_ring_open(1, sq_entries=4, arena_bytes=4096),
    }


@pytest.mark.parametrize("name", each_request())
def test_request_before_hello(agent, name):
    with Raw(agent, False) as raw:
        raw.send(each_request()[name])
        assert raw.error() == "out_of_order"


def handles(raw):
    """One handle of each kind that the agent hands out to a client."""
    region = raw.ask(s.pack_region_add, access=3, extents=[(s.KIND_POOL, 65535, 0, 0, 4096)]).region
    for fd in raw.fds:
        os.close(fd)
    exported = raw.ask(s.pack_region_export, region=region, length=4096, access=3)
    remote = raw.ask(s.pack_remote_import, token=exported.token).remote
    return {"region": region, "remote": remote, "token": exported.token_id, "session": raw.hello.session}


# request, field with a handle, kind that the field wants
TAKES_HANDLE = [("region_remove", "region", "region"), ("region_export", "region", "region"), ("region_revoke", "region", "region"),
                ("region_revoke", "token_id", "token"), ("remote_release", "remote", "remote"), ("notify", "remote", "remote"),
                ("transfer", "local", "region"), ("transfer", "remote", "remote"), ("transfer", "wait_region", "region"),
                ("transfer", "set_region", "region")]


@pytest.mark.parametrize("name, field, wanted", TAKES_HANDLE)
def test_handle_of_another_kind(agent, name, field, wanted):
    """It is refused by what it is, whatever exists; then the right handle is taken."""
    with Raw(agent) as raw:
        have = handles(raw)
        assert len({handle >> 48 for handle in have.values()}) == len(have)
        assert max(have.values()) < 1 << 53
        fields = {"region_export": dict(region=have["region"], length=4096, access=3),
                  "region_revoke": dict(region=have["region"], token_id=have["token"]),
                  "transfer": dict(direction=2, local=have["region"], remote=have["remote"], ops=[(0, 0, 1)],
                                   flags=s.TRANSFER_FLAG_WAIT if field == "wait_region" else s.TRANSFER_FLAG_SET,
                                   wait_region=have["region"], set_region=have["region"])}.get(name, {})
        pack = getattr(s, f"pack_{name}")
        for kind, handle in have.items():
            if kind == wanted:
                continue
            message = raw.ask(pack, **{**fields, field: handle})
            assert s.error_name(message.code) == "invalid"
            assert f"{handle:#x} is a {kind}, not a {wanted}" in message.message
        number = raw.request(pack, **{**fields, field: have[wanted]})
        answer = next(message for header, message, _ in iter(raw.receive, None) if header.request_id == number)
        if name == "notify":
            assert s.error_name(answer.code) == "notify_refused"  # nobody reads it
        else:
            assert not isinstance(answer, s.Error)


def older_ends(name, length):
    """Lengths of the body in older minor versions, for bodies whose later fields are empty."""
    message, = (m for m in Schema(ROOT / "schema").data.messages if m.name == name)
    ends, at = set(), length
    for field in reversed(message.fields):
        if not field.since:
            break
        at -= field.size
        ends.add((field.since, at))
    return {min(at for since, at in ends if since == one) for one in {since for since, _ in ends}}


@pytest.mark.parametrize("name", each_request())
def test_truncated_body(agent, name):
    """Every request is cut at every length, in one session as long as it stays open."""
    packet = each_request()[name]
    whole = older_ends(name, len(packet) - s.HEADER.size)
    body = packet[s.HEADER.size:]
    raw = Raw(agent)
    for cut in range(len(body)):
        if not raw.send(s.HEADER.pack(s.MAGIC, 1, 0, s.HEADER.unpack(packet[:24])[3], 0, cut, 100 + cut) + body[:cut]):
            raw.close()
            raw = Raw(agent)
            continue
        answer = raw.receive()
        if answer is None:
            raw.close()
            raw = Raw(agent)
            continue
        header, message, fds = answer
        for fd in fds:
            os.close(fd)
        if cut in whole:
            assert header.type != s.MSG_ERROR or s.error_name(message.code) != "truncated", (cut, message)
        else:
            assert header.type == s.MSG_ERROR and s.error_name(message.code) == "truncated", (cut, message)
    raw.close()


def test_later_fields():
    """Some body in test_truncated_body is cut where an older version ends."""
    body = each_request()["region_add"][s.HEADER.size:]
    assert older_ends("region_add", len(body)) == {len(body) - 12}
    assert not older_ends("notify", 100)


def test_lease_acquire_of_an_older_client(agent):
    """The label of a lease's holder came later; without it, it is empty."""
    with Raw(agent) as raw:
        region = raw.ask(s.pack_region_add, access=3, extents=[(s.KIND_POOL, 65535, 0, 0, 4096)]).region
        for fd in raw.fds:
            os.close(fd)
        lease = raw.ask(s.pack_lease, region=region, access=3, holders=1, expiry_ms=60000, ranges=[(0, 4096, 4096, 1)])
        body = s.pack_lease_acquire(2, token=lease.token, timeout_ms=1000)[s.HEADER.size:-4]
        raw.send(s.build(s.MSG_LEASE_ACQUIRE, 9, body))
        header, message, _ = raw.receive()
        assert (header.type, header.request_id) == (s.MSG_LEASE_ACQUIRE_REPLY, 9), message


def test_second_hello(agent):
    with Raw(agent) as raw:
        raw.request(s.pack_hello, major_min=1, major_max=1)
        assert raw.error() == "out_of_order"


def test_wrong_counts(agent):
    """Arrays whose count exceeds the limit or the records in the message."""
    with Raw(agent) as raw:
        raw.send(s.build(s.MSG_REGION_ADD, 11, struct.pack("<HH4xII", 3, 0, 0, 1025), bytes(24 * 1025)))
        assert raw.error(11) == "too_large"
    with Raw(agent) as raw:
        raw.send(s.build(s.MSG_REGION_ADD, 12, struct.pack("<HH4xII", 3, 0, 0, 1000), bytes(24)))
        assert raw.error(12) == "truncated"
    with Raw(agent) as raw:
        raw.send(s.build(s.MSG_REGION_ADD, 13, struct.pack("<HH4xII", 3, 0, 0, 0xffffffff), bytes(24)))
        assert raw.error(13) in ("too_large", "truncated")
    transfer = s.pack_transfer(14, direction=1)[s.HEADER.size:-4]
    with Raw(agent, sndbuf=2 * s.MESSAGE_MAX) as raw:
        raw.send(s.build(s.MSG_TRANSFER, 14, transfer, struct.pack("<I", 4097), bytes(24 * 4097)))
        assert raw.error(14) == "too_large"
    with Raw(agent) as raw:
        raw.send(s.build(s.MSG_TRANSFER, 15, transfer, struct.pack("<I", 4096), bytes(24)))
        assert raw.error(15) == "truncated"


@pytest.mark.parametrize("fields, error", [
    ({"direction": 0}, "invalid"), ({"direction": 3}, "invalid"), ({"class_": 2}, "invalid"),
    ({"flags": 0x10}, "unsupported"), ({"flags": 0x8000}, "unsupported")])
def test_unknown_values(agent, fields, error):
    with Raw(agent) as raw:
        raw.send(s.pack_transfer(3, **{"direction": 1, "local": 1, "remote": 1, "ops": [(0, 0, 1)], **fields}))
        assert raw.error(3) == error


@pytest.mark.parametrize("via", ["inline", "arena", "ring"])
def test_ranges(agent, via):
    """Offsets and lengths that overflow or pass the end are refused, and no byte of the other operations moves."""
    top = 1 << 64
    with Side(agent, MIB, wire=True) as here, Side(agent, MIB, noise(MIB)) as there:
        remote = here.reach(there)
        for ops in ([(MIB, 0, 1)], [(0, MIB, 1)], [(0, 0, MIB + 1)], [(MIB - 1, 0, 2)], [(0, MIB - 1, 2)], [(top >> 1, 0, 1)],
                    [(top - 1, 0, 1)], [(0, top - 1, 1)], [(top - 8, 0, 16)], [(0, top - 8, 16)], [(0, 0, top - 1)],
                    [(1, 1, top - 1)], [(8, 8, top >> 1)], [(0, 0, 0)], [(0, 0, 1), (0, 0, MIB), (0, 1, MIB)]):
            expect({"range", "invalid"}, here.client.read(here.region, remote, [(5, 0, 5), *ops], via=via).result, LIMIT)
            assert here.view[:64] == bytes(64)


def test_no_operations(agent):
    with Side(agent, MIB, wire=True) as here, Side(agent, MIB) as there:
        remote = here.reach(there)
        for via in ("inline", "arena", "ring"):
            expect("invalid", here.client.read(here.region, remote, [], via=via).result, LIMIT)


def test_operations_outside_the_arena(agent):
    """Transfers with operations in the arena: in a session without an arena, and beyond the end of an arena."""
    with Raw(agent) as raw:
        raw.send(s.pack_transfer(3, direction=1, flags=s.TRANSFER_FLAG_ARENA, local=1, remote=1, arena_ops=4))
        assert raw.error(3) in ("invalid", "range", "not_found")
    with Side(agent, MIB, wire=True) as here, Side(agent, MIB) as there:
        remote = here.reach(there)
        here.client.open_ring(0, 4096)
        size = here.client.arena.size
        base = dict(direction=1, flags=s.TRANSFER_FLAG_ARENA, local=here.region.handle, remote=remote.handle)
        for offset, n in [(size, 1), (size - 23, 1), ((1 << 64) - 24, 1), ((1 << 64) - 24, 2), (0, size // 24 + 1)]:
            expect({"range", "invalid"}, here.client.request, s.pack_transfer, arena_offset=offset, arena_ops=n, **base)
        expect("too_large", here.client.request, s.pack_transfer, arena_ops=65537, **base)
        expect("invalid", here.client.request, s.pack_transfer, arena_ops=0, **base)
        expect("invalid", here.client.request, s.pack_transfer, arena_ops=1, ops=[(0, 0, 1)], **base)


def test_duplicate_id(agent):
    """A request id in use is refused; the first request continues."""
    with Side(agent, MIB, wire=True) as here, Side(agent, MIB, noise(MIB)) as there:
        remote = here.reach(there)
        words = here.memory.words()
        fields = dict(direction=s.DIRECTION_READ, local=here.region.handle, remote=remote.handle, ops=[(4096, 0, 4096)])
        first = here.client.read(here.region, remote, [(4096, 0, 4096)], wait_word=(here.region, 0, 1))
        duplicate = wire.Pending(here.client)
        here.client.pending[first.request_id] = duplicate
        here.client.send(s.pack_transfer(first.request_id, **fields))
        expect("duplicate_id", duplicate.result, LIMIT)
        here.client.pending[first.request_id] = first
        words[0] = 1
        first.result(LIMIT)
        assert here.view[4096:8192] == there.view[:4096]
        words.release()


def test_duplicate_id_of_requests(new_agent, lab):
    """The same for requests that wait for a peer."""
    agent = new_agent(key=lab.key)
    token = unreachable_token(agent.host)
    with Raw(agent) as raw:
        for _ in range(2):
            raw.send(s.pack_remote_import(6, token=token, timeout_ms=60000))
        error = raw.error(6)
        if error == "peer_unreachable":
            pytest.skip("this host reports at once that the address cannot be reached")
        assert error == "duplicate_id"


def test_reordered(agent):
    """Requests in a senseless order are answered independently of each other."""
    with Raw(agent) as raw:
        for order, (pack, fields) in enumerate([
                (s.pack_transfer_cancel, {"request": 99}), (s.pack_transfer, {"direction": 1, "local": 5, "remote": 6,
                                                                            "ops": [(0, 0, 1)]}),
                (s.pack_remote_release, {"remote": 6}), (s.pack_region_revoke, {"region": 5}),
                (s.pack_region_export, {"region": 5, "length": 1, "access": 1}), (s.pack_region_remove, {"region": 5}),
                (s.pack_notify, {"remote": 6})], 50):
            raw.send(pack(order, **fields))
        answers = {}
        for _ in range(7):
            header, message, _ = raw.receive()
            code = message.status if header.type == s.MSG_TRANSFER_DONE else message.code
            answers[header.request_id] = s.error_name(code)
        assert answers == dict.fromkeys(range(50, 57), "not_found")


def test_pipelined_without_reading(agent):
    """Hundreds of requests are sent before the first answer is read."""
    with Raw(agent) as raw:
        raw.sock.setblocking(False)
        sent = 0
        try:
            for i in range(1, 200):
                raw.send(s.pack_region_remove(1000 + i, region=i))
                sent += 1
        except BlockingIOError:
            pass
        raw.sock.settimeout(LIMIT)
        seen = {raw.receive()[0].request_id for _ in range(sent)}
        assert seen == set(range(1001, 1001 + sent))


def test_never_reading(agent):
    """A client that only sends is stopped by its own full socket, and does not starve other clients."""
    with Raw(agent) as raw:
        raw.sock.setblocking(False)
        for i in range(100000):
            try:
                raw.send(s.pack_region_remove(1000 + i, region=1))
            except BlockingIOError:
                break
        with Side(agent, MIB) as here, Side(agent, MIB, noise(MIB)) as there:
            here.client.read(here.region, here.reach(there), [(0, 0, MIB)]).result(LIMIT)
        raw.sock.settimeout(LIMIT)


def test_random_mutations(agent):
    """Valid packets with changed bytes get an error or an answer."""
    rng = random.Random(1234)
    packets = list(each_request().values())
    with Raw(agent):
        raw = Raw(agent)
        for i in range(600):
            packet = bytearray(rng.choice(packets))
            for _ in range(rng.choice([1, 1, 2, 5])):
                packet[rng.randrange(len(packet))] ^= 1 << rng.randrange(8)
            if rng.random() < 0.2:
                packet = packet[:rng.randrange(1, len(packet))]
            raw.send(packet)
            answer = raw.receive()
            if answer is None or answer[0].request_id == 0:
                raw.close()
                raw = Raw(agent)
            else:
                for fd in answer[2]:
                    os.close(fd)
        raw.close()


def test_silent_connections(agent):
    """Silent connections stay open or are closed; other clients are served."""
    silent = [Raw(agent, False) for _ in range(50)]
    with Side(agent, MIB) as here, Side(agent, MIB) as there:
        here.reach(there)
    for raw in silent:
        raw.close()


# --- a stock kernel's buffers ---------------------------------------------------------------------------

@pytest.fixture
def stock_wmem():
    """Sets net.core.wmem_max and wmem_default to the values of a stock kernel, and restores them afterwards."""
    paths = ["/proc/sys/net/core/wmem_max", "/proc/sys/net/core/wmem_default"]
    old = []
    try:
        for path in paths:
            with open(path) as f:
                value = f.read().strip()
            with open(path, "w") as f:
                f.write("212992")
            old.append((path, value))
    except OSError:
        pass
    yield len(old) == len(paths)
    for path, value in old:
        with open(path, "w") as f:
            f.write(value)


def test_stock_wmem(stock_wmem, new_pair):
    """The largest inline transfer, the arena and tcp work with the socket buffers of a stock kernel.

    If the limits cannot be set, the test sets the client's own buffer, which bounds a message.
    """
    pair = new_pair()
    data = noise(MIB)
    with Side(pair[0], MIB, wire=True) as here, Side(pair[1], MIB, data, wire=True, notifications=True) as there:
        for side in (here, there):
            side.client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 212992 // 2)
            assert side.client.sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == 212992
        remote = here.reach(there)
        ops = [(i * 256, i * 256, 255) for i in range(4096)]
        here.client.write(here.region, remote, ops, notify=(1, bytes(4096)), via="inline").result(LIMIT)
        assert len(there.client.next_notification(LIMIT).payload) == 4096
        here.client.read(here.region, remote, [(0, 0, MIB)]).result(LIMIT)
        here.client.read(here.region, remote, [(i * 16, i * 16, 15) for i in range(65536)], via="arena").result(LIMIT)
        assert here.view == there.view
        if stock_wmem:
            with Raw(pair[0]) as raw:  # with the kernel's default
                raw.send(s.build(s.MSG_REGION_REMOVE, 1, struct.pack("<Q", 77),
                                 bytes(s.MESSAGE_MAX - len(s.pack_region_remove(1)))))
                assert raw.error(1) == "not_found"


# --- descriptors that come with messages ----------------------------------------------------------------

def test_unexpected_fds(agent):
    fds = list(os.pipe())
    with Raw(agent) as raw:
        for name in ("region_remove", "region_export", "transfer", "notify", "ring_open"):
            raw.send(each_request()[name], fds)
            assert raw.error() == "fd_count"
            raw.close()
            raw.__init__(agent)
    for fd in fds:
        os.close(fd)


@pytest.mark.parametrize("pidfd, fds, error", [(True, 0, "fd_count"), (True, 2, "fd_count"), (False, 1, "fd_count")])
def test_hello_fd_count(agent, pidfd, fds, error):
    mine = [os.pidfd_open(os.getpid()) for _ in range(fds)]
    with Raw(agent, False) as raw:
        raw.send(s.pack_hello(1, major_min=1, major_max=1, flags=s.HELLO_FLAG_PIDFD if pidfd else 0), mine)
        assert raw.error(1) == error
    for fd in mine:
        os.close(fd)


@pytest.mark.parametrize("make", [lambda: os.pipe()[0], lambda: os.open("/dev/null", os.O_RDONLY), lambda: os.eventfd(0)],
                         ids=["pipe", "null", "eventfd"])
def test_hello_with_no_pidfd(agent, make):
    fd = make()
    with Raw(agent, False) as raw:
        raw.send(s.pack_hello(1, major_min=1, major_max=1, flags=s.HELLO_FLAG_PIDFD), [fd])
        assert raw.error(1) in ("invalid", "region_kind", "fd_count")
    os.close(fd)


def test_unknown_flag_tells_the_version(agent):
    """A client leaves out the flags that are newer than the minor version in the header of the ERROR."""
    with Raw(agent, False) as raw:
        raw.send(s.build(s.MSG_HELLO, 9, struct.pack("<BBHQQII", 1, 1, 0x8000, 0, 0, 0, 0)))
        header, message, _ = raw.receive()
        assert (header.type, header.minor, s.error_name(message.code)) == (s.MSG_ERROR, s.MINOR, "unsupported")
        assert raw.ended()


def wants_pidfd(raw):
    """Sends a HELLO that asks for the agent's pidfd; returns the descriptors of its answer."""
    raw.send(s.pack_hello(1, major_min=1, major_max=1, flags=s.HELLO_FLAG_AGENT_PIDFD))
    header, message, fds = raw.receive()
    assert header.type == s.MSG_HELLO_REPLY
    assert message.flags == (s.HELLO_REPLY_FLAG_PIDFD if fds else 0)
    return fds


def test_pidfd_of_the_agent(new_agent):
    """The pidfd is of the agent's process, which ends after its socket."""
    agent = new_agent()
    with Raw(agent, False) as raw:
        fd, = wants_pidfd(raw)
        assert not wait_exit(fd, 0)
        agent.signal(signal.SIGKILL)
        assert raw.ended()
        assert wait_exit(fd)
    os.close(fd)
    agent.restart()


def test_pidfds_are_files_of_their_own(agent):
    """The kernel limits the number of nested epoll instances that one file is in (500). A client that exhausts it with its
    pidfd leaves others able to poll theirs."""
    with contextlib.ExitStack() as stack, Raw(agent, False) as hostile:
        fd, = wants_pidfd(hostile)
        with pytest.raises(OSError, match=os.strerror(errno.EINVAL)):
            for _ in range(2000):
                inner, outer = (stack.enter_context(select.epoll()) for _ in range(2))
                inner.register(fd, select.EPOLLIN)
                outer.register(inner.fileno(), select.EPOLLIN)
        with agent.client() as client:
            client.region(dray.Memory(MIB))
            assert client.fileno() >= 0
        os.close(fd)


# installs a filter that answers ENOSYS to pidfd_open (434 on every architecture), then runs the command
NO_PIDFD = """
import ctypes, os, struct, sys
code = struct.pack("<" + "HBBI" * 4, 0x20, 0, 0, 0, 0x15, 0, 1, 434, 6, 0, 0, 0x50026, 6, 0, 0, 0x7fff0000)
program = struct.pack("@HP", 4, ctypes.addressof(keep := ctypes.create_string_buffer(code, len(code))))
prctl = ctypes.CDLL(None, use_errno=True).prctl
assert prctl(38, 1, 0, 0, 0) == 0 and prctl(22, 2, program, 0, 0) == 0, ctypes.get_errno()
os.execvp(sys.argv[1], sys.argv[1:])
"""


def test_no_pidfd_of_the_agent(new_agent):
    agent = new_agent(wrap=[sys.executable, "-c", NO_PIDFD])
    assert "pidfd_open: Function not implemented" in agent.text()
    with Raw(agent, False) as raw:
        assert wants_pidfd(raw) == []


@pytest.mark.parametrize("hello", [True, False], ids=["in session", "first"])
def test_fd_flood(agent, hello):
    """Valid and malformed messages with many descriptors: the agent keeps none of them, and refuses more than the limit."""
    fd = os.open("/dev/null", os.O_RDONLY)
    with nothing_leaked(agent):
        for n in (1, s.FDS_MAX, 253):
            for packet in (each_request()["region_remove"], b"garbage", s.pack_hello(1, major_min=1, major_max=1)):
                with Raw(agent, hello) as raw:
                    raw.send(packet, [fd] * n)
                    error = raw.error()
                    assert error in ("fd_limit", "fd_count", "bad_magic", "truncated", "out_of_order")
        for _ in range(20):
            with Raw(agent) as raw:
                raw.sock.setblocking(False)
                try:
                    for _ in range(40):
                        raw.send(s.pack_region_add(1, access=3, extents=[(s.KIND_MEMFD, 0, 0, 0, 4096)]), [fd] * s.FDS_MAX)
                except OSError:
                    pass  # the socket is full, or the kernel's limit on descriptors in flight is reached
    os.close(fd)


def test_fd_limit(agent):
    """A well-formed message with more descriptors than the limit."""
    fd = os.open("/dev/null", os.O_RDONLY)
    with Raw(agent) as raw:
        raw.send(s.pack_region_add(1, access=3, extents=[(s.KIND_MEMFD, 0, 0, 0, 4096)]), [fd] * 253)
        assert raw.error() == "fd_limit"
    os.close(fd)
