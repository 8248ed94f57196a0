# SPDX-License-Identifier: Apache-2.0
"""The worker sides of two engines without their models over Soft-RoCE: blocks arrive, and nothing arrives after a right has ended."""

import hashlib

import dray
import pytest
from conftest import Pair
from dray.events import Notification
from dray.vllm import layout as layouts
from dray.vllm.grants import ENDED, USED, Grants
from dray.vllm.layout import EngineLayout, Group, Tensor
from dray.vllm.protocol import Arrival, Load, Push, PushTarget, StepMetadata
from dray.vllm.worker import WorkerSide
from harness import LIMIT, noise, until

LAYERS, BLOCKS, BLOCK = 8, 64, 32
BLOCK_BYTES = 32 * 64 * 2  # in one layer
GROUPS = (Group("attention", BLOCK),)
SIZE = LAYERS * BLOCKS * BLOCK_BYTES
RANK = layouts.describe(
    [Tensor(f"model.layers.{i}.attn", 0, i * BLOCKS * BLOCK_BYTES, (BLOCKS, 1, BLOCK, 64), (2048, 2048, 64, 1), 2, 1, 0, 1)
     for i in range(LAYERS)], GROUPS, rank=0, blocks=BLOCKS, length=SIZE)
ENGINE = EngineLayout({"model": "m"}, GROUPS, (RANK,))
OURS, THEIRS = tuple(range(1, 49)), tuple(range(60, 12, -1))  # blocks of the request at D and at P
TOKENS = len(OURS) * BLOCK
LOADS = 6  # at once


class Engine:
    """The sessions of an engine, with the worker side of its one rank."""

    def __init__(self, agent, name):
        self.agent, self.arrived = agent, []
        self.client, worker = agent.client(group=name, notifications=True), agent.client(group=name)
        self.grants = Grants(self.client)
        self.grants.on_event = self.take
        self.memory = dray.Memory(SIZE)
        region = worker.region(self.memory)
        self.worker = WorkerSide(worker, region, RANK, GROUPS, {"model": "m"})
        self.region = self.client.borrow_region(region.agent_handle, SIZE)
        self.received, self.failed, self.pushed, self.errors = [], [], 0, []

    def take(self, event):
        if isinstance(event, Notification):
            self.arrived.append(Arrival.unpack(event.payload))

    def step(self, **what):
        self.worker.step(StepMetadata(**what))
        self.worker.computed()
        self.poll()

    def poll(self):
        """Of the worker side; and takes what the scheduler side would."""
        results = self.worker.poll()
        self.received += results.received
        self.failed += results.failed
        metadata = self.worker.take_metadata()
        if metadata is not None:
            self.pushed += len(metadata.pushed)
            self.errors += metadata.push_errors.values()
        self.grants.poll()

    def lend(self, blocks, access, audience=None):
        grant = self.grants.give("r", self.region, layouts.ranges(RANK, GROUPS, (blocks,)), LIMIT, access, audience)
        until(lambda: self.grants.poll() or grant.token or grant.error, "the lease")
        assert grant.token, grant.error
        return grant

    def acquire(self, grant):
        hold = self.grants.acquire(grant.token, "a request")
        until(lambda: self.grants.poll() or hold.remote or hold.error, "the right")
        assert hold.error is None and hold.remote.transport == "rdma"
        return hold

    def ends(self, grant, how):
        until(lambda: self.grants.poll() or grant.how, "the end of the lease")
        assert grant.how == how

    def digest(self, blocks):
        view = memoryview(self.memory.view)
        return hashlib.sha256(b"".join(
            view[(layer * BLOCKS + block) * BLOCK_BYTES:][:BLOCK_BYTES] for block in blocks for layer in range(LAYERS))).hexdigest()

    def close(self):
        self.worker.close()
        self.client.close()


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


def load(hold, name="r"):
    return Load(name, ENGINE, (OURS,), (THEIRS,), 0, TOKENS, {0: hold.remote.agent_handle}, float(LIMIT))


def push(key, number, hold, of, first, end, last):
    target = PushTarget("r", ENGINE, ENGINE, (OURS,), {0: hold.remote.agent_handle}, of, 1, float(LIMIT)) if number == 0 else None
    return Push(key, number, (THEIRS,), first, end, last, target)


def test_pull(engines):
    p, d = engines
    before = count(d.agent)
    grant = p.lend(THEIRS, "r")
    hold = d.acquire(grant)
    d.step(loads=[load(hold)])
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
    hold = d.acquire(grant)
    d.step(loads=[load(hold, f"r{i}") for i in range(LOADS)])
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
    hold = p.acquire(grant)
    p.step(pushes=[push(1, 0, hold, 7, 0, 16 * BLOCK, False)])
    p.step(pushes=[push(1, 1, hold, 7, 16 * BLOCK, TOKENS, True)])
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
    hold = p.acquire(grant)
    chunks = 2 * LOADS
    size = TOKENS // chunks
    p.step(pushes=[push(1, i, hold, 7, i * size, (i + 1) * size, i == chunks - 1) for i in range(chunks)])
    d.grants.end(grant)
    d.ends(grant, ENDED)
    d.memory.view[:] = bytes(SIZE)
    until(lambda: p.poll() or p.pushed == chunks, "the ends of the chunks")
    assert not any(d.memory.view)
    hold.release()
    assert p.worker.idle
