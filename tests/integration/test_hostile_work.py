# SPDX-License-Identifier: Apache-2.0
"""Clients that make a worker read, refuse, cancel and wait for nothing, beside clients of another uid."""

import contextlib
import os
import struct
import threading

import dray
from harness import LIMIT, MIB, s, until
from ring_client import Client
from test_hostile import OTHER, as_root, serves, uid

OPS = 65536
OP = struct.Struct("<QQQ")


def one_worker(new_agent, **settings):
    """All sessions share one worker."""
    return new_agent(settings={"data.mode": "0666", "agent.workers": 1, **settings})


@contextlib.contextmanager
def refused_lists(agent):
    """A client whose ring always has lists of the largest length, each refused for its last operation."""
    with uid(OTHER):
        client = Client(agent, entries=4096, arena=OPS * OP.size)
    client.arena[:] = b"".join(OP.pack(16 * i, 16 * i, 16) for i in range(OPS - 1)) + OP.pack(0, 0, 1 << 40)
    for i in range(client.sq_entries):
        client.put(1 << 40, flags=s.TRANSFER_FLAG_ARENA, op_count=OPS)
    stop = threading.Event()

    def refill():
        while not stop.wait(0.001):
            client.store(s.RING_CQ_HEAD, client.word(s.RING_CQ_TAIL))
            client.store(s.RING_SQ_TAIL, client.word(s.RING_SQ_HEAD) + client.sq_entries)

    thread = threading.Thread(target=refill)
    thread.start()
    try:
        os.eventfd_write(client.doorbell, 1)
        yield client
    finally:
        stop.set()
        thread.join()
        client.close()


@as_root
def test_refused_lists(new_agent):
    agent = one_worker(new_agent)
    with refused_lists(agent) as client:
        before = client.word(s.RING_SQ_HEAD)
        for _ in range(20):
            serves(agent)
        until(lambda: client.word(s.RING_SQ_HEAD) != before, "the end of a list")


@as_root
def test_cancel_behind_refused_lists(new_agent):
    """The worker does not take the entries before the one that might be meant: it marks the cancellation."""
    agent = one_worker(new_agent)
    with refused_lists(agent) as client:
        for i in range(16):
            client.request(s.pack_transfer_cancel, request=i + 5000)
        for _ in range(5):
            serves(agent)


@as_root
def test_a_crowd_that_waits(new_agent):
    """Tens of thousands of transfers wait for a word: others are served, and all end when it is set."""
    agent = one_worker(new_agent, **{"limits.waiting_transfers_per_owner": 1 << 15, "limits.waiting_transfers": 1 << 16})
    with contextlib.ExitStack() as stack:
        with uid(OTHER):
            crowd = [stack.enter_context(Client(agent, entries=4096)) for _ in range(4)]
        for client in crowd:
            for i in range(client.sq_entries):
                client.put(i, op_count=1, op_remote=64, op_length=8, **client.waiting(32))
            os.eventfd_write(client.doorbell, 1)
        for client in crowd:
            until(lambda: client.word(s.RING_SQ_HEAD) == client.word(s.RING_SQ_TAIL), "the transfers' acceptance")
        for _ in range(20):
            serves(agent)
        for client in crowd:
            client.memory[32:36] = struct.pack("<I", 1)
        for client in crowd:
            ended = []
            until(lambda: ended.extend(client.completions()) or len(ended) == client.sq_entries, "the end of the transfers")
            assert {status for _, status in ended} == {"ok"}


@as_root
def test_operations_that_wait(new_agent):
    """Operations in flight take memory: an owner has its share of them, however many sessions it opens, and others theirs."""
    agent = one_worker(new_agent, **{"limits.ops": 4 * OPS})
    with contextlib.ExitStack() as stack:
        with uid(OTHER):
            crowd = [stack.enter_context(Client(agent, entries=64, arena=OPS * OP.size)) for _ in range(3)]
        for client in crowd:
            client.arena[: OPS * OP.size] = b"".join(OP.pack(4096 + 16 * (i % 1000), 16 * (i % 1000), 8) for i in range(OPS))
            client.put(0, op_count=OPS, **{**client.waiting(32), "flags": s.TRANSFER_FLAG_WAIT | s.TRANSFER_FLAG_ARENA})
            os.eventfd_write(client.doorbell, 1)
            until(lambda: client.word(s.RING_SQ_HEAD) == client.word(s.RING_SQ_TAIL), "the transfer's acceptance")
        refused = []
        until(lambda: refused.extend(crowd[2].completions()) or refused, "the end of the third one")
        assert [status for _, status in refused] == ["busy"]
        with agent.client() as client, dray.Memory(MIB) as memory:
            region = client.region(memory)
            remote = client.import_token(region.export())
            client.read(region, remote, [(8 * i, MIB // 2 + 8 * i, 4) for i in range(4096)]).result(LIMIT)
        for client in crowd[:2]:
            client.memory[32:36] = struct.pack("<I", 1)
            ended = []
            until(lambda: ended.extend(client.completions()) or ended, "the end of the transfer")
            assert [status for _, status in ended] == ["ok"]
        rows = [row for row in agent.ctl("quotas", "--json")["quotas"] if row["resource"] == "ops"]
        assert rows and not any(row["used"] for row in rows), rows
