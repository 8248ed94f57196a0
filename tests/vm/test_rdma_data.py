# SPDX-License-Identifier: Apache-2.0
"""The tests of tests/integration/test_data.py over Soft-RoCE, and tests with several rails."""

import os

import pytest
from conftest import Pair, listed, registered
from harness import LIMIT, MIB, noise, same, transport, until
from test_data import (test_both_directions_and_sessions, test_cancel, test_cancel_in_flight, test_deadline_in_flight,  # noqa: F401
                       test_extents, test_merging, test_notification_after_the_bytes, test_notify_without_transfer,
                       test_one_memfd_many_extents, test_operations, test_remove_in_flight, test_ring_batch,
                       test_sizes_and_alignments, test_socket_arena_and_ring_give_the_same_result,
                       test_source_and_destination_overlap, test_token_of_a_range, test_wait_and_set_words)
from test_regions import test_hole_in_the_source  # noqa: F401


LARGEST = int(os.environ.get("DRAY_LARGEST", "32"))  # MiB


@pytest.fixture(scope="module")
def pair4(rdma_lab):
    made = Pair(rdma_lab, 4, rdma__timeout="10s")  # the rails share one emulator
    yield made
    made.stop()


def moved(agent, way):
    return {p["device"]: p[way] for p in listed(agent, "paths")}


@pytest.mark.parametrize("direction", ["read", "write"])
def test_large(pair, direction):
    """One operation. Soft-RoCE moves some 30 MB/s in an emulated machine: DRAY_LARGEST=256 takes a while."""
    size = LARGEST * MIB
    block = noise(MIB + 4096)
    data = block * LARGEST
    here, there = pair.sides(size + 4096, *((data[:size], None) if direction == "read" else (None, data[:size])))
    dst, src = (here, there) if direction == "read" else (there, here)
    with here, there:
        op = (1, 0, size) if direction == "read" else (0, 1, size)
        done = here.client.transfer(direction, here.region, here.reach(there), [op]).result(2 * LIMIT)
        assert transport(done) == "rdma"
        assert same(dst.view[1:size + 1], src.view[:size], data[:size])


def test_four_rails(pair4):
    """Every rail carries a share, first of reads and then of writes: in Soft-RoCE, reads delay writes."""
    size = 16 * MIB
    far, near = noise(size), noise(size, 2)
    here, there = pair4.sides(size, far, near)
    half = size // 2
    with here, there:
        remote = here.reach(there)
        here.client.read(here.region, remote, [(0, 0, 4096)]).result(LIMIT)
        until(lambda: all(p["queue_pairs"] == 3 for p in listed(pair4.agents[0], "paths")), "the queue pairs of all")
        before = {way: moved(pair4.agents[0], way) for way in ("sent_bytes", "received_bytes")}
        for done in (here.client.read(here.region, remote, [(0, 0, half)]).result(LIMIT),
                     here.client.write(here.region, remote, [(half, half, half)]).result(LIMIT)):
            assert transport(done) == "rdma"
        assert same(there.view[half:], near[half:])
        assert same(here.view[:half], far[:half])
    for way, old in before.items():
        each = {device: n - old[device] for device, n in moved(pair4.agents[0], way).items()}
        assert len(each) == 4 and sum(each.values()) == half and min(each.values()) >= MIB, each


def test_sixteen_sessions_on_four_rails(pair4):
    """All sessions write and read at the same time, through the same queue pairs."""
    size = 128 << 10
    pairs = [pair4.sides(size, noise(size, 2 * i), noise(size, 2 * i + 1)) for i in range(16)]
    want, transfers = [], []
    half = size // 2
    for here, there in pairs:
        want.append((bytes(there.view[:half]), bytes(here.view[:half])))
        for at in range(0, half, 16384):
            remote = here.reach(there)
            transfers.append(here.client.read(here.region, remote, [(half + at, at, 16384)]))
            transfers.append(here.client.write(here.region, remote, [(at, half + at, 16384)]))
    for transfer in transfers:
        transfer.result(LIMIT)
    for (here, there), (down, up) in zip(pairs, want):
        assert same(here.view[half:], down) and same(there.view[half:], up)
        here.close()
        there.close()
    until(lambda: not any(listed(agent, "regions") for agent in pair4.agents), "the regions' end")


def test_pools(pair):
    """A client writes the pages of its pool while the agent already registers it."""
    size = 8 * MIB
    near, far = (agent.client() for agent in pair.agents)
    with near, far:
        here, there = near.pool(size), far.pool(size)
        until(lambda: all(registered(agent) for agent in pair.agents), "registration")
        there.memory.view[:size] = data = noise(size)
        done = near.read(here, near.import_token(str(there.export())), [(0, 0, size)]).result(LIMIT)
        assert transport(done) == "rdma"
        assert same(here.memory.view[:size], data)
