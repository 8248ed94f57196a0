# SPDX-License-Identifier: Apache-2.0
"""One engine without its model, with DrayStoreConnector's real sides, over an agent that is played.

As in world.py, what the agent does is an action, and the test chooses which one happens next. The memory of each rank holds a number
for each token, which stands for the token and all before it; an object has those of its block. So a block of other tokens is
noticed when a request computes with it. After each step, no block that the agent may read or write is free.
"""

from collections import Counter, deque
from types import SimpleNamespace

import numpy as np
import torch
import world
from dray import errors, events
from dray.store import Status, StoreResult, Tier
from dray.vllm.layout import Group, Tensor, describe
from dray.vllm.store import connector, lookup, saves, scheduler, worker
from dray.vllm.store.objects import Objects
from dray.vllm.store.worker import WorkerSide
from vllm.distributed.kv_transfer.kv_connector.utils import KVOutputAggregator
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.engine.arg_utils import EngineArgs
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.structured_output import StructuredOutputManager
from world import BLOCK, BLOCK_BYTES, BLOCKS, GARBAGE, LAYERS, RANKS, blocks_of, places

AGENT_ID = b"a" * 16
HEADS = 2  # of a rank; each has a half of the bytes of a block


class Pending:
    """A batch. access: ("get" or "put", rank, items) of its blocks."""

    def __init__(self, store, what, items):
        self.store, self.what, self.items = store, what, items
        self.ended, self.value, self.failure, self.unproven = False, None, None, False

    def done(self):
        return self.ended

    def lent(self):
        return self.unproven or not self.ended

    def error(self):
        return self.failure

    def result(self, timeout):
        assert self.ended and not self.failure
        return self.value

    def end(self, value=None, error=None):
        self.ended, self.value, self.failure = True, value, error

    def blocks(self):
        ranges = [one for item in self.items for one in item[1]] if self.what in ("get", "put") else []
        return blocks_of(places([at for at, _ in ranges], [n for _, n in ranges]))


def with_pieces(items):
    """Items with the pieces of their blocks."""
    return [(key, layout.block(block), cost) for key, layout, cost, block in items]


class Store:
    """As dray.Store, of one session. rank: None at the scheduler side."""

    def __init__(self, world, rank):
        self.world, self.rank, self.space = world, rank, ""

    def _start(self, what, items):
        if self.world.chance() < 0.03:
            raise errors.Busy("full")
        pending = Pending(self, what, items)
        self.world.pending.append(pending)
        return pending

    def pin(self, keys, *, wait):
        return self._start("pin", list(keys))

    def exists(self, keys, *, lease, wait):
        assert lease > 0
        return self._start("exists", list(keys))

    def unpin(self, keys, *, wait):
        return self._start("unpin", list(keys))

    def get(self, region, items, *, deadline, wait):
        return self._start("get", with_pieces(items))

    def put(self, region, items, *, deadline, wait):
        return self._start("put", with_pieces(items))


class Client:
    agent_id, path = AGENT_ID, "/run/dray.sock"
    borrowed = ()  # objects of the store have no remotes

    def __init__(self):
        self.events = deque()

    def process(self, timeout=0):
        pass

    def close(self):
        pass


class Side(world.Side):
    """The engine. Steps, requests and checks of computed tokens are those of world.Side."""

    def __init__(self, played, model, policy, parts, options):
        self.memory = np.zeros((RANKS, LAYERS, BLOCKS * BLOCK), dtype=np.int64)
        self.world, self.name, self.answers = played, "engine", {}
        config = EngineArgs(
            model=model, skip_tokenizer_init=True, dtype="bfloat16", max_model_len=BLOCK * 8, max_num_batched_tokens=BLOCK * 3 // 2,
            max_num_seqs=8, block_size=BLOCK, enforce_eager=True, kv_transfer_config={
                "kv_connector": "DrayStoreConnector", "kv_connector_module_path": "dray.vllm", "kv_role": "kv_both", "engine_id": "engine",
                "kv_load_failure_policy": policy, "kv_connector_extra_config": {"weights": "w", "parts": parts, **options}}).create_engine_config()
        config.cache_config.num_gpu_blocks = BLOCKS
        config.parallel_config.world_size = config.parallel_config.tensor_parallel_size = RANKS
        names = [f"model.layers.{i}.attn" for i in range(LAYERS)]
        spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=32, dtype=torch.bfloat16)
        cache = KVCacheConfig(num_blocks=BLOCKS, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(names, spec)])
        self.clients = {i: Client() for i in range(RANKS + 1)}
        played.making = self.clients[RANKS], Store(played, None)
        self.scheduler = Scheduler(config, cache, StructuredOutputManager(config), BLOCK)
        self.side = self.scheduler.connector._scheduler
        groups = (Group("attention", BLOCK),)
        self.workers = []
        for rank in range(RANKS):
            layout = describe(
                [Tensor(n, 0, i * BLOCKS * BLOCK_BYTES, (BLOCKS, HEADS, BLOCK, 32), (2048, 1024, 32, 1), 2, HEADS, HEADS * rank, HEADS * RANKS)
                 for i, n in enumerate(names)], groups, rank=rank, blocks=BLOCKS, length=LAYERS * BLOCKS * BLOCK_BYTES)
            one = connector.DrayStoreConnector(config, KVConnectorRole.WORKER, cache)
            one._worker = WorkerSide(self.clients[rank], SimpleNamespace(rank=rank), Store(played, rank), Objects(layout, groups, ["cpu"], parts), rank, 30.0)
            self.workers.append(one)
        self.aggregator = KVOutputAggregator.from_connector(self.scheduler.connector, RANKS)
        self.scheduler.connector.set_xfer_handshake_metadata_pp_aware(
            {(0, rank): one.get_handshake_metadata() for rank, one in enumerate(self.workers)})
        self.hasher = get_request_block_hasher(BLOCK, sha256)


class World:
    """parts: 1 or HEADS objects of a block at each rank."""

    def __init__(self, monkeypatch, model, policy, random, parts=1, **options):
        self.random, self.now, self.up = random, 1000.0, True
        self.objects, self.pins, self.pending = {}, set(), []
        self.elsewhere, self.leases = {}, set()  # objects that another agent has, and keys that it has leased to this one
        self.lent = []  # batches of lost sessions of which the agent goes on with one or the other
        self.truth = {}  # what each key stands for, whenever it was put
        self.seen = Counter()
        self.making = None
        monkeypatch.setattr(connector.DrayStoreConnector, "_connect", lambda connector, what: self.making)
        for module in (lookup, saves, scheduler, worker):
            monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.now))
        init_none_hash(sha256)
        self.size = LAYERS * BLOCK_BYTES // parts
        self.side = Side(self, model, policy, RANKS * parts if parts > 1 else 0, options)

    def chance(self):
        return self.random.random()

    # --- actions of the agent -----------------------------------------------------------------------

    def happen(self, index):
        pending = self.pending[index]
        kind = self.chance()
        if not self.up:
            if kind < 0.5:  # otherwise it waits for the next session
                self.pending.pop(index)
                pending.end(error=errors.SessionClosed("there is no session"))
            return
        # requests of one session that are not copies are carried out in their order
        if pending.what in ("pin", "unpin"):
            index = next(i for i, one in enumerate(self.pending) if one.what in ("pin", "unpin"))
            pending = self.pending[index]
        self.pending.pop(index)
        if kind < 0.03 and pending.what in ("get", "put"):
            self.spoil(pending)
            pending.end(error=errors.Deadline("too late"))
        else:
            pending.end([getattr(self, pending.what)(pending, item) for item in pending.items])

    def result(self, status, length=0, tier=Tier.NONE):
        self.seen[f"{status.name}"] += 1
        return StoreResult(status, length, 0.0, tier)

    def pin(self, pending, key):
        if key not in self.objects:
            return self.result(Status.NOT_FOUND)
        if self.chance() < 0.05:
            return self.result(Status.BUSY)
        self.pins.add(key)
        return self.result(Status.OK, self.size)

    def exists(self, pending, key):
        if key not in self.objects and key not in self.elsewhere:
            return self.result(Status.NOT_FOUND)
        if self.chance() < 0.05:
            return self.result(Status.BUSY)
        if key in self.objects:
            return self.result(Status.OK, self.size, Tier.MEMORY)  # and may be evicted
        self.leases.add(key)
        self.seen["leased"] += 1
        return self.result(Status.OK, self.size, Tier.AGENT)

    def unpin(self, pending, key):
        self.pins.discard(key)
        self.leases.discard(key)
        return self.result(Status.OK)

    def put(self, pending, item):
        key, ranges, cost = item
        assert cost > 0
        if self.chance() < 0.05:
            return self.result(Status.BUSY)
        memory = self.side.memory[pending.store.rank]
        value = [memory[layer, first:end].copy() for layer, first, end in places(*zip(*ranges))]
        right = self.truth.setdefault(key, value)
        assert all(np.array_equal(a, b) for a, b in zip(right, value, strict=True)), "a key stands for other bytes than before"
        if key in self.objects:
            return self.result(Status.EXISTS, self.size)
        self.objects[key] = value
        return self.result(Status.OK, self.size)

    def get(self, pending, item):
        key, ranges, _ = item
        kind = self.chance()
        if key not in self.objects and key in self.elsewhere:
            self.objects[key] = self.elsewhere[key]  # the copy stays
            self.seen["fetched"] += 1
        if key not in self.objects:
            return self.result(Status.NOT_FOUND)
        if kind < 0.03:
            self.spoil(pending)
            if self.chance() < 0.5:
                del self.objects[key]
                return self.result(Status.CORRUPT)
            return self.result(self.random.choice((Status.LOST, Status.BUSY)))
        memory = self.side.memory[pending.store.rank]
        for (layer, first, end), value in zip(places(*zip(*ranges)), self.objects[key], strict=True):
            memory[layer, first:end] = value
        return self.result(Status.OK, self.size)

    def spoil(self, pending):
        """A batch that failed leaves anything behind."""
        if pending.what == "get":
            for _, ranges, _ in pending.items:
                for layer, first, end in places(*zip(*ranges)):
                    self.side.memory[pending.store.rank, layer, first:end] = GARBAGE

    def prove(self, index):
        """A batch of a lost session has an end."""
        pending = self.lent.pop(index)
        if pending.what == "put":
            for item in pending.items:
                self.put(pending, item)
        self.spoil(pending)
        pending.unproven = False

    def elapse(self):
        """The time of a step, in which the agent mostly answers."""
        if self.lent and self.chance() < 0.2:
            self.prove(self.random.randrange(len(self.lent)))
        for _ in range(self.random.randrange(6)):
            if self.pending and self.chance() < 0.8:
                self.happen(self.random.randrange(len(self.pending)))

    def evict(self):
        for key in list(self.objects):
            if key not in self.pins and self.chance() < 0.5:
                self.elsewhere[key] = self.objects.pop(key)
                self.seen["evicted"] += 1
        for key in list(self.elsewhere):
            if key not in self.leases and self.chance() < 0.05:
                del self.elsewhere[key]
        if self.leases and self.chance() < 0.5:  # the other agent is lost, or its leases have ended
            self.leases.clear()
            self.elsewhere.clear()
            self.seen["leases lost"] += 1

    def kill_agent(self):
        self.up = False
        self.seen["killed"] += 1
        self.pins.clear()
        self.leases.clear()
        if self.chance() < 0.5:
            self.objects.clear()
        lost, self.pending = self.pending, []
        broken = self.chance() < 0.3  # by the client: the agent lives
        self.seen["broken"] += broken
        for pending in lost:
            if broken and pending.what in ("get", "put"):
                pending.unproven = True
                self.lent.append(pending)
                pending.end(error=errors.Unconfirmed("the agent may go on"))
                continue
            if pending.what in ("pin", "exists", "unpin") and self.chance() < 0.3:  # it had not been sent
                self.pending.append(pending)
                continue
            self.spoil(pending)
            pending.end(error=errors.AgentRestarted("the agent was restarted"))
        for client in self.side.clients.values():
            client.events.append(events.Disconnected(errors.AgentRestarted("the agent was restarted"), False))

    def restart_agent(self):
        self.up = True
        for client in self.side.clients.values():
            client.events.append(events.Reconnected(1, True, 1, []))

    # --- invariants ---------------------------------------------------------------------------------

    def check(self):
        """No block that the agent may read or write is free, and there are not more of them than half of the engine's."""
        references = self.side.references()
        touched = {block for pending in self.pending + self.lent for block in pending.blocks()}
        assert len(touched) <= BLOCKS // 2, f"the agent keeps {len(touched)} of {BLOCKS} blocks from the engine"
        for pending in self.pending + self.lent:
            free = [b for b in pending.blocks() if b and not references[b]]
            assert not free, f"blocks {free} are free while the agent may {pending.what} them"

    def settle(self, limit=300):
        """Lets everything end."""
        for _ in range(limit):
            if not (self.pending or self.lent or self.side.left() or not self.up):
                assert not self.pins and not self.leases, "objects are kept for nobody"
                return
            if not self.up:
                self.restart_agent()
            while self.pending and self.chance() < 0.8:
                self.happen(self.random.randrange(len(self.pending)))
            if self.lent and self.chance() < 0.6:
                self.prove(0)
            self.now += 0.02  # keys that were busy are asked again
            self.side.step()
            self.check()
        raise AssertionError(f"left: {self.side.left()}, {[one.what for one in self.pending]}")
