# SPDX-License-Identifier: Apache-2.0
"""Rules of docs/rings.md, by a client that speaks the protocol itself: statuses, order of answers, ownership, who may do what."""

import ctypes
import os
import select
import signal
import threading

import pytest
from harness import LIMIT, MIB, s, until
from ring_client import ARENA, WRITE, Client


@pytest.fixture
def client(agent):
    with Client(agent) as one:
        yield one


# --- the end of a session ------------------------------------------------------------------------------

def in_flight(client):
    """One transfer by message and one by the ring, which both wait."""
    message = client.message(**client.waiting())
    client.submit(1 << 40, **client.waiting())
    until(lambda: client.word(s.RING_SQ_HEAD) == client.word(s.RING_SQ_TAIL), "the entry's turn")
    return message


def break_by_index(client):
    client.store(s.RING_SQ_TAIL, client.word(s.RING_SQ_TAIL) + 1000)
    os.eventfd_write(client.doorbell, 1)
    return "protocol"


def break_by_message(client):
    client.send(b"not a message, but long enough to have a header")
    return "bad_magic"


@pytest.mark.parametrize("end", [break_by_index, break_by_message])
def test_one_error_answers_all_that_the_end_of_a_session_stops(client, end):
    """ERROR with request id 0, then the end of the socket. A transfer that was stopped has no answer of its own."""
    in_flight(client)
    error = end(client)
    assert client.answers() == [("error", 0, error)]
    assert client.completions() == []


def test_a_missing_page_ends_its_transfers_and_then_the_session(client):
    """Transfers that meet the page are answered; the error that ends the session is the last message."""
    message = in_flight(client)
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.fallocate(client.fd, 3, ctypes.c_long(0), ctypes.c_long(4096)) == 0
    assert client.answers() == [("transfer_done", message, "region_fault"), ("error", 0, "region_fault")]
    assert client.completions() == [(1 << 40, "region_fault")]


def test_drain_stops_transfers_at_its_deadline(new_agent):
    """DRAINING, then new work is refused, then `deadline` for what is in flight, then ERROR and the end."""
    agent = new_agent(settings={"agent.drain_timeout": "300ms"})
    with Client(agent) as client:
        message = in_flight(client)
        agent.signal(signal.SIGTERM)
        header, m, _ = client.receive()
        assert s.TYPE_NAMES[header.type] == "draining" and header.request_id == 0
        refused = client.message()
        client.submit(7)
        assert client.completion() == (7, "draining")
        assert client.answers() == [("error", refused, "draining"), ("transfer_done", message, "deadline"),
                                    ("error", 0, "session_closed")]
        assert client.completions() == [(1 << 40, "deadline")]
        agent.wait()


def test_transfers_finish_during_a_drain(new_agent):
    agent = new_agent()
    with Client(agent) as client:
        message = in_flight(client)
        agent.signal(signal.SIGTERM)
        assert s.TYPE_NAMES[client.receive()[0].type] == "draining"
        client.memory[:4] = b"\1\0\0\0"
        assert client.completion() == (1 << 40, "ok")
        assert client.answers() == [("transfer_done", message, "ok"), ("error", 0, "session_closed")]
        agent.wait()


def test_errors_of_a_request_leave_the_session(client):
    """A refused transfer, an unknown type, a message too long: one answer, and the session goes on."""
    refused = client.message(local=client.remote)
    assert client.error(refused) == "invalid"
    client.send(s.build(0x3fff, 99, b""))
    assert client.error(99) == "unknown_type"
    client.submit(5, local=client.remote)
    assert client.completion() == (5, "invalid")
    client.submit(6)
    assert client.completion() == (6, "ok")


# --- statuses --------------------------------------------------------------------------------------------

def test_refusals_by_message_and_by_ring(client):
    """What ERROR says about a message, the completion says about an entry."""
    token = client.ask(s.pack_region_export, region=client.region, length=MIB, access=s.ACCESS_READ).token
    read_only = client.ask(s.pack_remote_import, token=token).remote
    word = {**client.waiting(), "wait_value": 0}
    cases = [
        (dict(direction=WRITE, remote=read_only), "denied"), (dict(local=client.remote), "invalid"),
        ({**word, "wait_offset": 2}, "invalid"), ({**word, "wait_offset": MIB}, "range"), ({**word, "wait_region": client.region + 99}, "not_found"),
        (dict(direction=9), "invalid"), (dict(flags=0x4000), "unsupported"), (dict(local=client.region + 99), "not_found"),
        (dict(flags=s.TRANSFER_FLAG_ARENA, op_count=s.OPS_MAX + 1), "too_large"),
        (dict(flags=s.TRANSFER_FLAG_ARENA, op_count=0xffffffff), "too_large"),
        (dict(flags=s.TRANSFER_FLAG_ARENA, op_count=0), "invalid"),
        (dict(flags=s.TRANSFER_FLAG_ARENA, op_count=ARENA // s.OP.size + 1), "range"),
        (dict(flags=s.TRANSFER_FLAG_ARENA, op_count=1, arena_offset=ARENA - s.OP.size + 1), "range"),
        (dict(flags=s.TRANSFER_FLAG_ARENA, op_count=1, arena_offset=(1 << 64) - 8), "range"),
        (dict(op_length=MIB + 1), "range"), (dict(op_length=0), "range"), (dict(op_local=MIB), "range"),
    ]
    for i, (fields, name) in enumerate(cases):
        client.submit(1000 + i, **fields)
        assert client.completion() == (1000 + i, name), fields
        fields = dict(fields)
        count = fields.pop("op_count", None)
        op = [(fields.pop("op_local", 0), 0, fields.pop("op_length", 10))]
        request = client.message(ops=op if count is None else [], **fields, **({} if count is None else {"arena_ops": count}))
        assert client.error(request) == name, fields
    client.submit(2000, flags=s.TRANSFER_FLAG_NOTIFY, notify_length=s.NOTIFY_MAX + 1)
    assert client.completion() == (2000, "too_large")
    client.submit(2001, flags=s.TRANSFER_FLAG_NOTIFY, notify_length=8, notify_offset=ARENA - 7)
    assert client.completion() == (2001, "range")


def test_an_accepted_transfer_is_answered_once(client):
    """After acceptance a failure is the status of TRANSFER_DONE or of the completion, not an ERROR."""
    message = client.message(deadline_ms=1, **client.waiting())
    header, m, _ = client.receive()
    assert (header.type, header.request_id, s.error_name(m.status)) == (s.MSG_TRANSFER_DONE, message, "deadline")
    assert m.message and m.bytes == 0
    client.submit(3, **{**client.waiting(), "deadline_ms": 1})
    assert client.completion() == (3, "deadline")


def test_numbers_of_requests_are_shared(client):
    """user_data and request ids are one space; a number is free again when its answer is there; 0 is a number."""
    message = client.message(**client.waiting())
    # The socket's requests are taken in order; the ring's may overtake them.
    assert client.error(client.request(s.pack_transfer_cancel, request=1 << 51)) == "not_found"
    client.submit(message)
    assert client.completion() == (message, "duplicate_id")
    client.submit(1 << 50, **client.waiting(8))
    until(lambda: client.word(s.RING_SQ_HEAD) == client.word(s.RING_SQ_TAIL), "the entry's turn")
    client.message(1 << 50)
    assert client.error(1 << 50) == "duplicate_id"
    client.memory[8:12] = b"\1\0\0\0"
    assert client.completion() == (1 << 50, "ok")
    for _ in range(3):
        client.submit(0)
        assert client.completion() == (0, "ok")


# --- cancel ---------------------------------------------------------------------------------------------

def test_cancel_finds_an_entry_that_was_published_before(client):
    """The agent takes the entries of the ring before it looks for the transfer, even without a doorbell."""
    for i in range(100):
        client.put(1 << 33 | i, op_count=1, op_length=10, **client.waiting())
        cancel = client.request(s.pack_transfer_cancel, request=1 << 33 | i)
        header, _, _ = client.receive()
        assert (header.type, header.request_id) == (s.MSG_TRANSFER_CANCEL_REPLY, cancel)
        # the completion is there before the reply
        assert client.completions() == [(1 << 33 | i, "cancelled")]


def test_cancel_of_an_ended_transfer(client):
    client.submit(8)
    assert client.completion() == (8, "ok")
    cancel = client.request(s.pack_transfer_cancel, request=8)
    assert client.error(cancel) == "not_found"


def test_cancel_answers_after_transfer_done(client):
    message = client.message(**client.waiting())
    cancel = client.request(s.pack_transfer_cancel, request=message)
    got = [client.receive()[0] for _ in range(2)]
    assert [(h.type, h.request_id) for h in got] == [(s.MSG_TRANSFER_DONE, message), (s.MSG_TRANSFER_CANCEL_REPLY, cancel)]


def test_a_second_cancel_of_a_transfer_in_flight(new_pair):
    """The first one waits until the peer has acknowledged what was sent; the second one is refused at once."""
    here, there = new_pair()
    with Client(here) as client, Client(there) as owner:
        token = owner.ask(s.pack_region_export, region=owner.region, length=MIB, access=3).token
        client.base["remote"] = client.ask(s.pack_remote_import, token=token).remote
        client.submit(1)
        assert client.completion() == (1, "ok")  # the streams exist
        there.signal(signal.SIGSTOP)
        try:
            client.submit(2, direction=WRITE, op_length=MIB)
            until(lambda: [t["slices"] for t in here.ctl("--json", "transfers")["transfers"]] > [0], "a slice in flight")
            first = client.request(s.pack_transfer_cancel, request=2)
            second = client.request(s.pack_transfer_cancel, request=2)
            assert client.error(second) == "exists" and not client.completions()
        finally:
            there.signal(signal.SIGCONT)
        header, _, _ = client.receive()
        assert (header.type, header.request_id) == (s.MSG_TRANSFER_CANCEL_REPLY, first)
        assert client.completions() == [(2, "cancelled")]


# --- ownership -------------------------------------------------------------------------------------------

def test_ownership_within_a_group(agent):
    """Regions and remotes serve all members of a group; a transfer belongs to the session that submitted it."""
    with Client(agent, group="ours") as one, Client(agent, group="ours") as two, Client(agent, group="theirs") as stranger:
        two.submit(1, local=one.region, remote=one.remote, op_local=4096)
        assert two.completion() == (1, "ok")
        assert one.memory[4096:4106] == one.memory[:10] and one.completions() == []
        stranger.submit(1, local=one.region)
        assert stranger.completion() == (1, "not_found")
        stranger.submit(2, remote=one.remote)
        assert stranger.completion() == (2, "not_found")
        one.submit(7, **one.waiting())
        until(lambda: one.word(s.RING_SQ_HEAD) == one.word(s.RING_SQ_TAIL), "the entry's turn")
        assert two.error(two.request(s.pack_transfer_cancel, request=7)) == "not_found"
        # the same number in another session is another transfer
        two.submit(7)
        assert two.completion() == (7, "ok")
        one.memory[:4] = b"\1\0\0\0"
        assert one.completion() == (7, "ok")


def test_members_transfers_end_with_the_owner_of_the_region(agent):
    with Client(agent, group="ours") as two:
        with Client(agent, group="ours") as one:
            two.submit(9, local=one.region, **two.waiting())
            until(lambda: two.word(s.RING_SQ_HEAD) == two.word(s.RING_SQ_TAIL), "the entry's turn")
        assert two.completion() == (9, "session_closed")


# --- memory ------------------------------------------------------------------------------------------------

def test_an_entry_is_free_once_the_head_has_passed_it(client):
    """The agent has copied the entry: overwriting it does not change the transfer."""
    client.submit(11, op_local=8192, **client.waiting())
    until(lambda: client.word(s.RING_SQ_HEAD) == client.word(s.RING_SQ_TAIL), "the entry's turn")
    client.ring[client.sq_offset:client.sq_offset + 16 * s.SQE.size] = b"\xff" * (16 * s.SQE.size)
    client.memory[:4] = b"\1\0\0\0"
    assert client.completion() == (11, "ok")
    assert client.memory[8196:8202] == client.memory[4:10]


def test_indices_wrap_around(client):
    """Indices count freely; the entry is the index modulo the entries."""
    for i in range(5 * client.cq_entries):
        client.submit(i)
        assert client.completion() == (i, "ok")
    assert client.word(s.RING_SQ_TAIL) == client.word(s.RING_CQ_TAIL) == client.word(s.RING_CQ_HEAD)


def test_shape_of_the_memory(client):
    """Sizes, seals, alignment; entries lie behind the words and do not overlap."""
    assert client.word(s.RING_MAGIC) == s.MAGIC_RING
    assert client.word(s.RING_SQ_ENTRIES) == client.sq_entries == 16 and client.word(s.RING_CQ_ENTRIES) == client.cq_entries == 32
    assert client.sq_offset % 64 == client.cq_offset % 64 == 0
    assert client.sq_offset >= s.RING_CLIENT_SLEEPING + 64
    assert client.cq_offset >= client.sq_offset + client.sq_entries * s.SQE.size
    assert len(client.ring) >= client.cq_offset + client.cq_entries * s.CQE.size


# --- sleeping and waking -----------------------------------------------------------------------------------

def test_the_client_is_woken_only_while_it_asks(client):
    """Without client_sleeping no doorbell rings; with it, each batch of completions rings, and the word stays set."""
    watch = select.epoll()
    watch.register(client.bell, select.EPOLLIN | select.EPOLLET)
    watch.poll(0)
    client.store(s.RING_CLIENT_SLEEPING, 0)
    client.submit(1)
    assert client.completion() == (1, "ok")
    client.store(s.RING_CLIENT_SLEEPING, 1)
    for i in range(3):
        client.submit(2 + i)
        assert watch.poll(LIMIT), "no doorbell"
        assert client.completion() == (2 + i, "ok")
        assert client.word(s.RING_CLIENT_SLEEPING) == 1
    watch.close()


def test_the_agent_needs_a_doorbell_only_while_it_sleeps(client):
    """An entry without a doorbell waits while agent_sleeping is set; the doorbell wakes the agent, which then clears the word."""
    until(lambda: client.word(s.RING_AGENT_SLEEPING), "the agent to sleep")
    client.submit(1)
    assert client.completion() == (1, "ok")
    until(lambda: client.word(s.RING_AGENT_SLEEPING), "the agent to sleep again")
    client.store(s.RING_AGENT_SLEEPING, 0)  # a client that rings may clear it
    client.submit(2)
    assert client.completion() == (2, "ok")
    until(lambda: client.word(s.RING_AGENT_SLEEPING), "the agent to sleep again")


# --- threads and processes -------------------------------------------------------------------------------

def test_any_thread_and_process_may_use_the_mapping(client):
    """The agent sees memory and descriptors, not who uses them: one at a time, ordered by the client."""
    for i in range(20):
        thread = threading.Thread(target=client.submit, args=(i,))
        thread.start()
        thread.join()
        assert client.completion() == (i, "ok")
        child = os.fork()
        if not child:
            client.submit(100 + i)
            os._exit(0)
        os.waitpid(child, 0)
        assert client.completion() == (100 + i, "ok")


def test_the_session_ends_with_its_last_socket(agent):
    """The ring's descriptors do not keep a session: after the end of the socket its entries are no longer taken."""
    with Client(agent) as other:
        client = Client(agent, group="gone")
        client.sock.close()
        until(lambda: not any(each["group"] == "gone" for each in agent.ctl("--json", "sessions")["sessions"]), "the end of the session")
        client.put(1, op_count=1, op_length=10)
        os.eventfd_write(client.doorbell, 1)
        other.submit(1)
        assert other.completion() == (1, "ok")
        assert client.word(s.RING_SQ_HEAD) + 1 == client.word(s.RING_SQ_TAIL) and client.completions() == []


def test_completion_head_that_goes_back(client):
    """Entries that the client had returned are reserved again: taking more submissions would overfill the completion ring."""
    n = client.sq_entries
    for i in range(n):
        client.submit(1 + i)
    done = []
    until(lambda: done.extend(client.completions()) or len(done) == n, "the completions")
    for i in range(2 * n):
        client.submit(100 + i, **client.waiting())
        until(lambda: client.word(s.RING_SQ_HEAD) == client.word(s.RING_SQ_TAIL), "the agent takes it")
    client.store(s.RING_CQ_HEAD, client.word(s.RING_CQ_HEAD) - client.cq_entries)
    client.submit(999)
    assert client.error(0) == "protocol"
    assert client.word(s.RING_CQ_TAIL) == n
