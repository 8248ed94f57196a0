# SPDX-License-Identifier: Apache-2.0
"""The worker sides of two engines of DrayStoreConnector without their models: one saves blocks at its agent, the other loads them over Soft-RoCE."""

import hashlib

import dray
import pytest
from dray.vllm import layout as layouts
from dray.vllm.layout import Group, Tensor
from dray.vllm.store.directory import Directory
from dray.vllm.store.keys import make_root
from dray.vllm.store.lookup import Lookup
from dray.vllm.store.objects import Objects
from dray.vllm.store.pins import Pins
from dray.vllm.store.protocol import Block, Load, Save, StepMetadata
from dray.vllm.store.worker import WorkerSide
from harness import LIMIT, MIB, noise, until
from test_store_rdma import moved, released, stores, warm  # noqa: F401

LAYERS, BLOCKS, BLOCK = 8, 64, 32
BLOCK_BYTES = 32 * 64 * 2  # in one layer
GROUPS = (Group("attention", BLOCK),)
SIZE = LAYERS * BLOCKS * BLOCK_BYTES
RANK = layouts.describe(
    [Tensor(f"model.layers.{i}.attn", 0, i * BLOCKS * BLOCK_BYTES, (BLOCKS, 1, BLOCK, 64), (2048, 2048, 64, 1), 2, 1, 0, 1)
     for i in range(LAYERS)], GROUPS, rank=0, blocks=BLOCKS, length=SIZE)
ROOT = make_root({"model": "m"}, "")
OURS, THEIRS = range(1, 49), range(60, 12, -1)  # blocks of the prompt at the engine that loads, and at the one that saves
HASHES = [hashlib.sha256(b"%d" % n).digest() for n in range(len(OURS))]
TOKENS = len(OURS) * BLOCK
BYTES = len(OURS) * LAYERS * BLOCK_BYTES


class Engine:
    """The worker side of the only rank, and what its scheduler side asks the store for, in a session of its own."""

    def __init__(self, agent):
        self.memory, self.client, self.asking = dray.Memory(SIZE), agent.client(timeout=LIMIT), agent.client(timeout=LIMIT)
        self.worker = WorkerSide(self.client, self.client.region(self.memory), self.client.store("kv"), Objects(RANK, GROUPS, ["cpu"]), 0, LIMIT)
        self.directory = Directory(self.asking.agent_id, 1)
        self.directory.add([self.worker.info()])
        self.worker.take_metadata()
        self.pins = Pins(self.asking.store("kv"))

    def save(self, numbers):
        self.worker.step(StepMetadata(saves=[Save(1, ROOT, tuple(map(Block, [0] * len(numbers), numbers, HASHES)))]))

        def saved():
            self.worker.poll()
            return self.worker.take_metadata()
        metadata = until(saved, "the save")
        assert metadata.saved == {1: 1} and not metadata.unsaved

    def ask(self):
        """What the store has for the prompt, which is kept until release()."""
        def keys_of(group, block):
            return self.directory.keys(ROOT, group, HASHES[block])
        question = Lookup(self.asking.store("kv"), self.pins, GROUPS, keys_of, 0, TOKENS)
        until(lambda: self.asking.process() or question.answered(), "the answer")
        return question

    def release(self, question):
        question.release()
        self.pins.flush()

    def start(self, numbers):
        self.worker.step(StepMetadata(loads=[Load("r", ROOT, tuple(map(Block, [0] * len(numbers), numbers, HASHES)), TOKENS, LIMIT)]))

    def ended(self):
        """True if the load has its blocks."""
        seen = []
        until(lambda: seen.append(self.worker.poll()) or seen[-1].received, "the end of the load")
        assert seen[-1].received == {"r"}
        return not seen[-1].failed

    def digest(self, numbers):
        view = memoryview(self.memory.view)
        return hashlib.sha256(b"".join(
            view[(layer * BLOCKS + block) * BLOCK_BYTES:][:BLOCK_BYTES] for block in numbers for layer in range(LAYERS))).hexdigest()

    def settled(self):
        """Nothing is kept for a request that has ended."""
        until(lambda: self.worker.poll() and self.worker.idle, f"the end of everything: {vars(self.worker)}")
        assert not len(self.pins)

    def close(self):
        self.worker.close()
        self.asking.close()


@pytest.fixture
def two(stores):  # noqa: F811
    """(the stores, the engine that saves, the engine that loads), which have moved an object by RDMA."""
    s = stores(reader={"store.keep_copies": "false"})
    there, here = s.users(MIB)
    with there, here:
        warm(s, there, here)
    engines = Engine(s.owner), Engine(s.reader)
    engines[0].memory.view[:] = noise(SIZE)
    engines[0].save(THEIRS)
    yield s, *engines
    for engine in engines:
        engine.close()


def test_blocks_come_by_rdma(two):
    """All bytes of a load come by RDMA, are those that were saved, and neither agent keeps anything for it."""
    s, first, second = two
    loads = 0

    def by_rdma():
        nonlocal loads
        question = second.ask()
        if question.found() < TOKENS:  # the emulator was too slow for the lease
            second.release(question)
            return False
        second.memory.view[:] = bytes(SIZE)
        before = moved(s.reader)
        second.start(OURS)
        complete = second.ended()
        second.release(question)
        after = moved(s.reader)
        if not complete:
            return False
        loads += 1
        assert second.digest(OURS) == first.digest(THEIRS)
        return after.get("rdma", 0) >= before.get("rdma", 0) + BYTES and after.get("tcp", 0) == before.get("tcp", 0)

    until(by_rdma, "a load by RDMA")
    data = second.worker.stats.take()
    assert data["loaded_blocks"] == loads * len(OURS) and data["loaded_bytes"] == loads * BYTES and data["loaded_tokens"] == loads * TOKENS
    for engine in (first, second):
        engine.settled()
    released(s.owner)


def test_the_other_agent_is_killed(two):
    """A load ends with its blocks, or fails once; nothing writes into its blocks after that."""
    s, first, second = two
    right = first.digest(THEIRS)
    question = second.ask()
    second.start(OURS)
    s.owner.kill()
    if second.ended():
        assert second.digest(OURS) == right
    second.release(question)
    second.settled()
    second.memory.view[:] = bytes(SIZE)
    question = second.ask()
    assert not question.found(), "the blocks are gone with their agent"
    second.release(question)
    assert not any(second.memory.view)
    s.owner.start()
