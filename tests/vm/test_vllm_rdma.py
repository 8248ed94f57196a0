# SPDX-License-Identifier: Apache-2.0
"""The worker sides of two engines without their models over Soft-RoCE: blocks arrive, and nothing arrives after a right has ended."""

import hashlib

import dray
import pytest
from conftest import Pair
from dray.vllm import layout as layouts
from dray.vllm.grants import ENDED, USED
from dray.vllm.layout import Group, Tensor
from harness import noise, until
from worker_sides import WorkerEngine, load, push

LAYERS, BLOCKS, BLOCK = 8, 64, 32
BLOCK_BYTES = 32 * 64 * 2  # in one layer
GROUPS = (Group("attention", BLOCK),)
SIZE = LAYERS * BLOCKS * BLOCK_BYTES
RANK = layouts.describe(
    [Tensor(f"model.layers.{i}.attn", 0, i * BLOCKS * BLOCK_BYTES, (BLOCKS, 1, BLOCK, 64), (2048, 2048, 64, 1), 2, 1, 0, 1)
     for i in range(LAYERS)], GROUPS, rank=0, blocks=BLOCKS, length=SIZE)
OURS, THEIRS = tuple(range(1, 49)), tuple(range(60, 12, -1))  # blocks of the request at D and at P
TOKENS = len(OURS) * BLOCK
LOADS = 6  # at once


class Engine(WorkerEngine):
    def __init__(self, agent, name):
        self.agent, self.memory = agent, dray.Memory(SIZE)
        super().__init__(agent.socket, name, lambda client: client.region(self.memory), RANK, GROUPS)

    def digest(self, blocks):
        view = memoryview(self.memory.view)
        return hashlib.sha256(b"".join(
            view[(layer * BLOCKS + block) * BLOCK_BYTES:][:BLOCK_BYTES] for block in blocks for layer in range(LAYERS))).hexdigest()


@pytest.fixture
def engines(pair: Pair):
    p, d = (Engine(agent, name) for agent, name in zip(pair.agents, "pd"))
    p.memory.view[:] = noise(SIZE)
    yield p, d
    p.close()
    d.close()


def only_rdma(agent, before):
    """The transfers that have ended since then moved over RDMA."""
    ended = agent.ctl("transfers", "--recent", "--json")["ended_transfers"][before:]
    assert ended and {one["transport"] for one in ended} == {"rdma"}


def count(agent):
    return len(agent.ctl("transfers", "--recent", "--json")["ended_transfers"])


def test_pull(engines):
    p, d = engines
    before = count(d.agent)
    grant = p.lend(THEIRS, "r")
    hold = d.acquire(grant, "rdma")
    d.step(loads=[load(p, hold, OURS, THEIRS)])
    until(lambda: d.poll() or d.received, "the load")
    assert d.received == ["r"] and not d.failed and d.digest(OURS) == p.digest(THEIRS)
    only_rdma(d.agent, before)
    hold.release()
    p.ends(grant, USED)
    assert d.worker.idle


def test_pull_whose_lease_ends(engines):
    """P gives the blocks to another request when its lease has ended; a load under way fails, or has P's bytes of before."""
    p, d = engines
    right = p.digest(THEIRS)
    grant = p.lend(THEIRS, "r")
    hold = d.acquire(grant, "rdma")
    d.step(loads=[load(p, hold, OURS, THEIRS, f"r{i}") for i in range(LOADS)])
    p.grants.end(grant)
    p.ends(grant, ENDED)
    p.memory.view[:] = b"\xff" * SIZE
    until(lambda: d.poll() or len(d.received) == LOADS, "the ends of the loads")
    assert sorted(d.received) == [f"r{i}" for i in range(LOADS)]
    if len(d.failed) < LOADS:
        assert d.digest(OURS) == right
    hold.release()
    assert d.worker.idle


def test_push(engines):
    p, d = engines
    before = count(p.agent)
    grant = d.lend(OURS, "w")
    hold = p.acquire(grant, "rdma")
    p.step(pushes=[push(p, d, hold, OURS, THEIRS, 0, 0, 16 * BLOCK, False)])
    p.step(pushes=[push(p, d, hold, OURS, THEIRS, 1, 16 * BLOCK, TOKENS, True)])
    until(lambda: p.poll() or d.poll() or len(d.arrived) == 2 and p.pushed == 2, "the chunks")
    assert not p.errors and d.digest(OURS) == p.digest(THEIRS)
    assert sum(one.size for one in d.arrived) == len(OURS) * LAYERS * BLOCK_BYTES and sorted(one.last for one in d.arrived) == [False, True]
    only_rdma(p.agent, before)
    hold.release()
    d.ends(grant, USED)
    assert p.worker.idle


def test_push_whose_lease_ends(engines):
    """D uses the blocks for another request when the lease has ended; nothing that P writes arrives after that."""
    p, d = engines
    grant = d.lend(OURS, "w")
    hold = p.acquire(grant, "rdma")
    chunks = 2 * LOADS
    size = TOKENS // chunks
    p.step(pushes=[push(p, d, hold, OURS, THEIRS, i, i * size, (i + 1) * size, i == chunks - 1) for i in range(chunks)])
    d.grants.end(grant)
    d.ends(grant, ENDED)
    d.memory.view[:] = bytes(SIZE)
    until(lambda: p.poll() or p.pushed == chunks, "the ends of the chunks")
    assert not any(d.memory.view)
    hold.release()
    assert p.worker.idle
