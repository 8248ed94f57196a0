# SPDX-License-Identifier: Apache-2.0
"""Tests of tests/integration/test_leases.py over Soft-RoCE, and what is different there: keys, registrations, queue pairs."""

import signal

import pytest
from conftest import Pair, listed, registered
from harness import LIMIT, MIB, noise, transport, until
from test_leases import (BLOCK, HOUR, LAYERS, blocks, content, ended, lost, pieces, test_ended_under_traffic,  # noqa: F401
                         test_holders, test_many_at_once, test_only_its_ranges, test_write)
from test_rdma_faults import owned


@pytest.fixture
def two(pair):
    here, there = pair.sides(MIB, noise(MIB))
    with here, there:
        yield here, there


@pytest.fixture
def new_two(rdma_lab):
    """Sides of two agents for one test."""
    made = []

    def make(**settings):
        made.append(Pair(rdma_lab, 1, **settings))
        return (*made[-1].sides(MIB, noise(MIB)), *made[-1].agents)

    yield make
    for pair in made:
        pair.stop()


def test_registers_nothing(pair, two):
    """A lease uses the registration of its region, before, during and after; and its transfers use the queue pairs."""
    here, there = two
    before = [owned(agent) for agent in pair.agents]
    for n in range(1, 4):
        lease = there.region.lease(blocks(n))
        remote = here.client.acquire(lease.token, timeout=LIMIT)
        assert remote.transport == "rdma"
        done = here.client.read(here.region, remote, pieces(n)).result(LIMIT)
        assert transport(done) == "rdma"
        assert bytes(here.view[:LAYERS * BLOCK]) == content(there, n)
        if n % 2:
            lease.end()
            assert lost(here, remote) == "revoked"
        else:
            remote.release()
        assert ended(there).how == ("ended" if n % 2 else "used")
    assert [owned(agent) for agent in pair.agents] == before


def test_granted_at_once(pair, two):
    """The keys come with the grant, so no message of the owner's agent is needed."""
    here, there = two
    lease = there.region.lease(blocks(1), audience=here.client.agent_id, grant=True)
    if not lease.granted:  # the agents were not connected
        here.client.acquire(lease.token, timeout=LIMIT).release()
        assert ended(there).how == "used"
        lease = there.region.lease(blocks(1), audience=here.client.agent_id, grant=True)
    assert lease.granted == 1
    remote = here.client.acquire(lease.token, timeout=LIMIT)
    assert transport(here.client.read(here.region, remote, pieces(1)).result(LIMIT)) == "rdma"
    remote.release()
    assert ended(there).how == "used"


def test_holder_that_never_acknowledges(new_two):
    """The owner destroys the queue pairs of a stopped agent before it says that the lease has ended; no late byte arrives."""
    here, there, a, b = new_two(peer__fence_timeout="2s", peer__heartbeat_limit="20s")
    with here, there:
        lease = there.region.lease([(0, MIB, 0, 1)], access="w", expiry=HOUR)
        remote = here.client.acquire(lease.token, timeout=LIMIT)
        here.view[:] = b"\x11" * MIB
        assert transport(here.client.write(here.region, remote, [(0, 0, MIB)]).result(LIMIT)) == "rdma"
        serving = "dray_rdma_serving_queue_pairs"
        assert b.ctl("status", "--json")["counters"][serving]
        writes = [here.client.write(here.region, remote, [(0, 0, MIB)]) for _ in range(20)]
        a.signal(signal.SIGSTOP)
        lease.end()
        assert ended(there).how == "ended"
        assert not b.ctl("status", "--json")["counters"][serving]
        there.view[:] = bytes(MIB)
        a.signal(signal.SIGCONT)
        for write in writes:
            write.exception(LIMIT)
        assert not any(there.view)
        assert lost(here, remote) in ("peer_lost", "revoked")


def test_agent_of_the_holder_is_killed(new_two):
    here, there, a, b = new_two()
    with here, there:
        lease = there.region.lease([(0, MIB, 0, 1)], access="w")
        remote = here.client.acquire(lease.token, timeout=LIMIT)
        here.client.write(here.region, remote, [(0, 0, MIB)]).result(LIMIT)
        for _ in range(10):
            here.client.write(here.region, remote, [(0, 0, MIB)])
        a.kill()
        assert ended(there)[:2] == (lease, "peer_lost")
        there.view[:] = bytes(MIB)
        assert not any(there.view)
        a.start()
        until(lambda: registered(b) and listed(b, "regions"), "the owner's registration")
