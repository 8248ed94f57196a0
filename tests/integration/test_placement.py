# SPDX-License-Identifier: Apache-2.0
"""Hints, the preferred segment and the environment over the data socket, with valid and invalid clients and agents."""

import contextlib
import os
import sqlite3
import struct

import dray
import pytest
from wire import codec as s
from fake_agent import FakeAgent
from harness import LIMIT, MIB, Raw, Side, expect, noise, until

SCOPE_MAX = 256
REQUESTS = {
    "hint_get": s.pack_hint_get(1, scope="model"),
    "hint_put": s.pack_hint_put(1, scope="model", segment="10.0.0.9:50053"),
    "segment_get": s.pack_segment_get(1, scope="model"),
    "env_get": s.pack_env_get(1, profiles="vllm"),
}
TYPES = {"hint_get": s.MSG_HINT_GET, "segment_get": s.MSG_SEGMENT_GET, "env_get": s.MSG_ENV_GET}


def text(data, n=None):
    return struct.pack("<I", len(data) if n is None else n) + data


# --- real agents ----------------------------------------------------------------------------------------

def test_no_hint(agent):
    with agent.client() as client:
        e = expect("not_found", client.hint, f"scope {os.getpid()}")
        assert e.message
        expect("not_found", client.forget_hint, f"scope {os.getpid()}")


def test_no_preferred_segment(agent):
    """To have no preferred segment is not an error, and the answer has a reason."""
    with agent.client() as client:
        for scope in ("", "model", "é" * (SCOPE_MAX // 2)):
            found = client.preferred_segment(scope)
            assert found.preference == "none" and found.segment == "" and found.reason
            assert not found.unverified and not found.node_local and not found.capacity


def test_environment(agent):
    with agent.client() as client:
        for profiles in (None, "", "nccl", ["nccl", "ucx"]):
            environment = client.environment(profiles)
            assert isinstance(environment, dict) and isinstance(environment.notes, dict)
            assert all("\n" not in value for value in environment.values())


def test_hint_round_trip(agent):
    scope = f"scope {os.getpid()}"
    with agent.client() as client, agent.client() as other:
        try:
            client.put_hint(scope, "10.9.8.7:50053", score=3, ttl=60)
        except dray.errors.Unsupported as e:
            pytest.skip(f"this agent keeps no hints: {e}")
        hint = other.hint(scope)
        assert (hint.segment, hint.source, hint.score) == ("10.9.8.7:50053", "client", 3)
        assert 0 < hint.left <= 60
        client.put_hint(scope, "10.9.8.6:50053")
        assert other.hint(scope).segment == "10.9.8.6:50053"
        found = other.preferred_segment(scope)
        assert (found.segment, found.preference) == ("10.9.8.6:50053", "hint")
        expect("invalid", client.put_hint, scope, "no segment")
        client.forget_hint(scope)
        expect("not_found", other.hint, scope)
        expect("not_found", client.forget_hint, scope)


def test_pipelined(agent):
    """Requests without waiting return handles; answers come in any order, with transfers in between."""
    with Side(agent, MIB) as here, Side(agent, MIB, noise(MIB)) as there:
        remote = here.reach(there)
        client = here.client
        asked = [client.preferred_segment(f"scope {i}", wait=False) for i in range(20)]
        asked.append(client.pool(4096, wait=False))
        moved = client.read(here.region, remote, [(0, 0, MIB)])
        asked += [client.environment("nccl", wait=False), client.hint("nobody's", wait=False)]
        assert isinstance(asked[-1].exception(LIMIT), dray.errors.NotFound)
        assert all(isinstance(p.result(LIMIT), dray.Segment) for p in asked[:20])
        pool = asked[20].result(LIMIT)
        assert len(pool.memory.view) == 4096  # descriptors came with some answers
        pool.remove()
        moved.result(LIMIT)
        assert here.view == there.view


def test_while_draining(new_agent):
    """Placement requests work while the agent drains, when clients look for another segment."""
    agent = new_agent(settings={"agent.drain_timeout": "60s"})
    with Side(agent, MIB, segments=True) as here, Side(agent, MIB) as there:
        remote = here.reach(there)
        words = here.memory.words()
        held = here.client.read(here.region, remote, [(64, 64, 64)], wait_word=(here.region, 0, 1))
        here.client.preferred_segment()  # answered after the agent has accepted the read
        agent.process.terminate()
        assert here.client.next_event(dray.Draining, LIMIT)
        assert here.client.preferred_segment().preference == "none"
        expect("not_found", here.client.hint, "nobody's")
        assert isinstance(here.client.environment(), dray.Environment)
        words[0] = 1
        words.release()
        held.result(LIMIT)
    assert agent.wait() == 0


def test_after_a_restart(new_agent):
    """A request reconnects, and the reconnect requests changes of segments again."""
    agent = new_agent()
    with agent.client(segments=True) as client:
        assert client.segments
        agent.kill()
        agent.start()
        before = client.incarnation
        assert client.preferred_segment().preference == "none"
        assert client.incarnation != before and client.segments


def test_a_database_that_is_locked_at_the_start(new_agent):
    """Another process has it open: its hints are restored when that ends, and what is forgotten before or then stays forgotten."""
    agent = new_agent()

    def scopes():
        return sorted(hint["scope"] for hint in agent.ctl("hints", "--json")["hints"])

    for scope in "abce":
        agent.ctl("hints", "--set", f"{scope}=10.9.8.7:50053")
    with agent.client() as client:
        client.put_hint("f", "10.9.8.7:50053")
    agent.stop()
    with contextlib.closing(sqlite3.connect(agent.state_dir / "state.db", isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        agent.start()
        assert scopes() == []
        agent.ctl("hints", "--set", "d=10.9.8.7:50053")
        assert agent.ctl("hints", "--forget", "e", "--json") == {"forgotten": 0, "unread": True}
        with agent.client() as client:
            client.forget_hint("f")  # the agent does not know that it has none
    until(lambda: scopes() == ["a", "b", "c", "d"])
    assert agent.ctl("hints", "--forget", "b", "--json") == {"forgotten": 1, "unread": False}
    with agent.client() as client:
        expect("not_found", client.forget_hint, "f")
    agent.stop()
    agent.start()
    assert scopes() == ["a", "c", "d"]


# --- the client's own checks ----------------------------------------------------------------------------

def test_bad_arguments(agent):
    with agent.client() as client:
        long = "x" * (SCOPE_MAX + 1)
        for ask in (client.hint, client.preferred_segment, client.environment, client.forget_hint):
            expect("too_large", ask, long)
            expect("invalid", ask, "a\nb")
            expect("invalid", ask, "\ud800")
        expect("too_large", client.put_hint, long, "a:1")
        expect("too_large", client.put_hint, "x", long)
        expect("invalid", client.put_hint, "x", "")
        expect("invalid", client.put_hint, "x", "a:1", score=-1)
        expect("invalid", client.put_hint, "x", "a:1", score=1 << 32)
        expect("invalid", client.put_hint, "x", "a:1", ttl=1e300)
        expect("invalid", client.put_hint, "x", "a:1", ttl=float("inf"))
        assert client.preferred_segment("x" * SCOPE_MAX).reason


# --- wrong bytes ----------------------------------------------------------------------------------------

BAD_TEXT = {
    "not UTF-8": (text(b"\xff\xfe"), "invalid"),
    "half a character": (text(b"a\xc3"), "invalid"),
    "a surrogate": (text(b"\xed\xa0\x80"), "invalid"),
    "a newline": (text(b"a\nb"), "invalid"),
    "a NUL": (text(b"a\0b"), "invalid"),
    "over the limit": (text(b"a" * (SCOPE_MAX + 1)), "too_large"),
    "longer than the body": (text(b"abc", 200), "truncated"),
    "of 4 GiB": (text(b"abc", 0xffffffff), "too_large"),
    "nothing at all": (b"", "truncated"),
    "half a length": (b"\0\0", "truncated"),
}


@pytest.mark.parametrize("name", BAD_TEXT)
def test_bad_text(agent, name):
    body, error = BAD_TEXT[name]
    with Raw(agent) as raw:
        for type_ in TYPES.values():
            raw.send(s.build(type_, 7, body))
            assert raw.error(7) == error
        head = struct.pack("<IIQ", 0, 0, 0)
        raw.send(s.build(s.MSG_HINT_PUT, 8, head, body))
        assert raw.error(8) == error
        raw.send(s.build(s.MSG_HINT_PUT, 9, head, text(b"model"), body))
        assert raw.error(9) == error
        assert raw.ask(s.pack_segment_get).reason  # the session still works


@pytest.mark.parametrize("name", REQUESTS)
def test_truncated(agent, name):
    packet = REQUESTS[name]
    body = packet[s.HEADER.size:]
    with Raw(agent) as raw:
        for cut in range(len(body)):
            raw.send(s.HEADER.pack(s.MAGIC, 1, 1, TYPES.get(name, s.MSG_HINT_PUT), 0, cut, 100 + cut) + body[:cut])
            assert raw.error(100 + cut) == "truncated"


@pytest.mark.parametrize("name", REQUESTS)
def test_out_of_place(agent, name):
    """Requests before HELLO, with descriptors, or as replies are refused; a longer body is accepted."""
    packet = REQUESTS[name]
    with Raw(agent, False) as raw:
        raw.send(packet)
        assert raw.error() == "out_of_order"
    fd = os.open("/dev/null", os.O_RDONLY)
    with Raw(agent) as raw:
        raw.send(packet, [fd])
        assert raw.error(1) == "fd_count"
        raw.send(s.pack_hint_get_reply(3, segment="a:1"))
        assert raw.error(3) == "unknown_type"
        raw.send(s.pack_segment_changed(4, segment="a:1"))
        assert raw.error(4) == "unknown_type"
        body = packet[s.HEADER.size:]
        raw.send(s.HEADER.pack(s.MAGIC, 1, 9, s.HEADER.unpack(packet[:24])[3], 0, len(body) + 16, 5) + body + bytes(16))
        header, message, _ = raw.receive()
        assert header.request_id == 5
        assert header.type & 0x8000 and (header.type != s.MSG_ERROR or
                                         s.error_name(message.code) in ("not_found", "unsupported"))
    os.close(fd)


def test_minor_0_client(agent):
    """A client of minor version 0 works, and gets no events about segments."""
    with Raw(agent, False) as raw:
        packet = bytearray(s.pack_hello(1, major_min=1, major_max=1, flags=s.HELLO_FLAG_NOTIFICATIONS))
        packet[5] = 0
        raw.send(packet)
        header, message, _ = raw.receive()
        assert header.type == s.MSG_HELLO_REPLY and message.major == 1 and message.minor == s.MINOR
        raw.send(s.HEADER.pack(s.MAGIC, 1, 0, s.MSG_REGION_REMOVE, 0, 8, 2) + struct.pack("<Q", 9))
        assert raw.error(2) == "not_found"


def test_segments_flag(agent):
    with Raw(agent, False) as raw:
        assert raw.ask(s.pack_hello, major_min=1, major_max=1, flags=s.HELLO_FLAG_SEGMENTS).minor >= 1
        assert raw.ask(s.pack_segment_get).reason
    with Raw(agent, False) as raw:
        raw.send(s.build(s.MSG_HELLO, 1, struct.pack("<BBHQQII", 1, 1, s.HELLO_FLAG_ALL + 1, 0, 0, 0, 0)))
        assert raw.error(1) == "unsupported"


def test_never_reading(agent):
    """A client that sends requests and never reads the answers does not starve others."""
    with Raw(agent) as raw:
        raw.sock.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            for i in range(1, 100000):
                raw.send(s.pack_segment_get(i, scope="x" * SCOPE_MAX))
        with agent.client() as client:
            assert client.preferred_segment().reason


# --- fake agents ----------------------------------------------------------------------------------------

def nothing(request_id, type_, message):
    raise AssertionError(f"{s.TYPE_NAMES[type_]} was sent")


def test_old_agent(tmp_path):
    """The client connects to an agent of data protocol 1.0, and refuses requests that it lacks without sending them."""
    with FakeAgent(tmp_path / "sock", nothing, minor=0) as fake:
        with fake.client(segments=True) as client:
            assert fake.flags == [s.HELLO_FLAG_SEGMENTS, 0]
            assert client.connected and not client.segments
            assert not client.events
            for ask in (client.hint, client.preferred_segment, client.environment, client.forget_hint):
                assert "too old" in expect("unsupported", ask).message
            expect("unsupported", client.put_hint, "x", "a:1")
        with fake.client() as client:
            assert set(fake.flags[2:]) == {0} and not client.segments


def test_answers(tmp_path):
    """The client converts answers, including values of a later version."""
    long = b"A=" + b"x" * 65533 + b"\n"

    def answer(request_id, type_, message):
        if type_ == s.MSG_HINT_GET:
            yield s.pack_segment_changed(0, old=2, new=3, flags=6, segment="a:1", reason="refused")
            yield s.pack_segment_changed(0, old=0, new=99, flags=4, reason="none is")
            yield s.pack_hint_get_reply(request_id, source=4, state=77, score=5, left_ms=1500, flags=1, segment="a:1")
        elif type_ == s.MSG_SEGMENT_GET:
            yield s.pack_segment_get_reply(request_id, preference=9, state=2, flags=2, capacity=1 << 40, allocated=7,
                                           segment="[fd00::1]:1", reason="because")
        elif type_ == s.MSG_HINT_PUT:
            asked.append(message)
            yield s.pack_hint_put_reply(request_id)
        else:
            asked.append(message)
            yield s.pack_env_get_reply(request_id, variables=b"B=1=2\nC=\nD=\xff\n" if message.profiles else long,
                                       notes=b"E: no GPU: none\n")

    asked = []
    with FakeAgent(tmp_path / "sock", answer) as fake, fake.client(segments=True) as client:
        assert client.segments
        assert client.hint("x") == dray.Hint("a:1", "client", "77", 5, 1.5, True, False)
        assert client.next_event(dray.SegmentChanged, LIMIT) == (
            "a:1", "ready", "lost", True, False, True, "refused")
        assert client.next_event(dray.SegmentChanged, LIMIT) == (
            "", "unknown", "99", True, False, False, "none is")
        assert client.preferred_segment() == dray.Segment(
            "[fd00::1]:1", "9", "ready", 1 << 40, 7, False, True, "because")
        client.put_hint("x", "a:1", score=7, ttl=0.25)
        client.put_hint("x", "a:1")
        client.forget_hint("x")
        assert asked == [(7, 250, "x", "a:1"), (0, 0, "x", "a:1"), (0, 0, "x", "")]
        environment = client.environment(["vllm", "ucx"])
        assert environment == {"B": "1=2", "C": "", "D": os.fsdecode(b"\xff")}
        assert environment.notes == {"E": "no GPU: none"}
        assert asked[-1].profiles == "vllm,ucx"
        assert client.environment() == {"A": "x" * 65533}


@pytest.mark.parametrize("variables", [b"A=1", b"A=\0\n", b"A\n", b"=1\n", b"\n"])
def test_malformed_environment(tmp_path, variables):
    def answer(request_id, type_, message):
        yield s.pack_env_get_reply(request_id, variables=variables)

    with FakeAgent(tmp_path / "sock", answer) as fake, fake.client() as client:
        expect("protocol", client.environment)
