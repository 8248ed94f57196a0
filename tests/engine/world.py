# SPDX-License-Identifier: Apache-2.0
"""Two engines without their models: vLLM's real scheduler and the connector's real sides, over agents that are played.

What an agent does, such as answering, ending a transfer or a right, is an action. The test chooses which
action happens next, so that every order of messages can occur. The world checks after each step that no
block is used by somebody else while it can still be read or written.
"""

import contextlib
import itertools
import json
from collections import Counter, deque
from types import SimpleNamespace

from dray import errors, events
from dray.vllm import agent, connector, scheduler
from dray.vllm.grants import AGENT_LOST, ENDED, EXPIRED, PEER_LOST, USED
from dray.vllm.layout import Group, Tensor, describe
from dray.vllm.worker import WorkerSide
from vllm.distributed.kv_transfer.kv_connector.utils import KVOutputAggregator
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.engine.arg_utils import EngineArgs
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, KVCacheTensor
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

BLOCK, BLOCKS, RANKS, LAYERS = 32, 24, 2, 2


class Pending:
    def __init__(self):
        self.value = None
        self.failure = None
        self.ended = False


class Grant:
    """As dray.vllm.grants.Grant."""

    numbers = itertools.count(1)

    def __init__(self, label, rank):
        self.label, self.rank, self.number = label, rank, next(self.numbers)
        self.token = self.how = self.error = None
        self.ending = None
        self.holds = []


class Hold:
    def __init__(self, world, grant):
        self.world, self.grant = world, grant
        self.remote = self.error = None
        self.answered = self.released = False

    @property
    def lost(self):
        return self.error or (self.remote.lost if self.remote else None)

    def keep(self, now):
        pass

    def release(self):
        if not self.released:
            self.released = True
            self.world.act(self.world.released, self)


class Remote:
    def __init__(self, hold, number):
        self.hold, self.number, self.lost, self.transport = hold, number, None, "tcp"

    @property
    def agent_handle(self):
        if self.hold.world.random.random() < 0.02:
            raise errors.NotFound("lost just now")
        return self.number


class Region:
    """A rank's region. error: why the agent has not taken it after its restart."""

    def __init__(self, side, rank):
        self.side, self.rank, self.error = side, rank, None

    @property
    def agent_handle(self):
        if self.error:
            raise self.error
        return self.side.incarnation * 100 + self.rank


class Grants:
    """As dray.vllm.grants.Grants, for the engine whose client it gets."""

    def __init__(self, client):
        self.world, self.side = client.world, client.side
        client.side.grants = self
        self.open, self.ended = set(), deque()
        self.on_event = lambda event: None

    def __len__(self):
        return len(self.open)

    busy = False

    def give(self, label, region, ranges, expiry):
        assert ranges is not None and len(ranges)
        grant = Grant(label, region.rank)
        self.open.add(grant)
        self.world.act(self.world.given, self, grant)
        return grant

    def end(self, grant, why=ENDED):
        if grant.how is None and grant.ending is None:
            grant.ending = why
            self.world.act(self.world.fenced, self, grant, why)

    def over(self, grant, how):
        if grant.how is not None:
            return
        grant.how = how
        self.world.seen[f"right {how}"] += 1
        self.open.discard(grant)
        self.ended.append(grant)
        for hold in grant.holds:
            self.world.lose(hold, errors.Revoked("the right has ended"))

    def acquire(self, token):
        hold = Hold(self.world, self.world.tokens.get(token))
        self.world.act(self.world.acquired, self.side, hold)
        return hold

    def poll(self):
        client = self.side.clients["scheduler"]
        while client.events:
            self.on_event(client.events.popleft())
        ended = list(self.ended)
        self.ended.clear()
        return ended


class Transfer:
    def __init__(self, world, side, request_id, remote, blocks):
        self.world, self.side, self.remote, self.blocks = world, side, remote, blocks
        self.request_id = request_id
        self.failure, self.ended, self.is_lent = None, False, True
        world.transfers.append(self)
        world.act(world.transferred, self)

    def done(self):
        return self.ended

    def error(self):
        return self.failure

    def lent(self):
        return self.is_lent

    def cancel(self, *, wait):
        if not self.ended:
            self.world.end_transfer(self, errors.Cancelled("cancelled"))

    def end(self, error, lent=False):
        if not self.ended:
            self.ended, self.failure, self.is_lent = True, error, lent
            self.world.seen[f"transfer {error.name if error else 'done'}"] += 1


class Client:
    """As dray.Client, as far as the two sides use it."""

    def __init__(self, world, side, name):
        self.world, self.side, self.name, self.events = world, side, name, deque()
        self.path, self.segment = "/run/dray.sock", "127.0.0.1:1"
        side.clients[name] = self

    @property
    def agent_id(self):
        return self.side.agent_id

    @property
    def incarnation(self):
        return self.side.incarnation

    @property
    def connected(self):
        return self.side.up

    def process(self):
        pass

    def borrow_region(self, number, length):
        if not self.side.up or self.world.random.random() < 0.02:
            raise errors.SessionClosed("lost just now")
        return SimpleNamespace(rank=number % 100, length=length)

    def borrow_remote(self, number):
        return self.side.remotes[number]

    def read(self, region, remote, ops, *, deadline):
        if not self.side.up:
            raise errors.SessionClosed("not connected")
        if region.error:
            raise region.error
        if self.world.random.random() < 0.1:
            raise errors.Busy("full")
        if remote.lost:
            raise remote.lost
        # the numbers of the blocks that the operations write; a block of a layer has 4096 bytes in this world
        blocks = {int(at) % (BLOCKS * 4096) // 4096 + i for at, _, n in ops.tolist() for i in range(-(-int(n) // 4096))}
        return Transfer(self.world, self.side, None, remote, blocks)

    def close(self):
        pass


class Side:
    """One engine: its scheduler, with the connector's scheduler side, and the worker sides of its ranks."""

    def __init__(self, world, name, model, policy):
        self.world, self.name, self.clients, self.remotes = world, name, {}, {}
        self.agent_id, self.incarnation, self.up = name.encode() * 16, 1, True
        self.grants = None
        config = EngineArgs(
            model=model, skip_tokenizer_init=True, dtype="bfloat16", max_model_len=BLOCK * 8, max_num_batched_tokens=BLOCK * 4,
            max_num_seqs=8, block_size=BLOCK, enforce_eager=True, kv_transfer_config={
                "kv_connector": "DrayConnector", "kv_connector_module_path": "dray.vllm", "kv_role": "kv_both",
                "engine_id": name, "kv_load_failure_policy": policy, "kv_connector_extra_config": {}}).create_engine_config()
        config.cache_config.num_gpu_blocks = BLOCKS
        config.parallel_config.world_size = config.parallel_config.tensor_parallel_size = RANKS
        names = [f"model.layers.{i}.attn" for i in range(LAYERS)]
        import torch
        spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=32, dtype=torch.bfloat16)
        cache = KVCacheConfig(num_blocks=BLOCKS, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(names, spec)])
        world.making = self
        self.scheduler = Scheduler(config, cache, StructuredOutputManager(config), BLOCK)
        self.side = self.scheduler.connector._scheduler
        groups = (Group("attention", BLOCK),)
        self.workers, connectors = [], []
        for rank in range(RANKS):
            layout = describe(
                [Tensor(n, 0, i * BLOCKS * 4096, (BLOCKS, 1, BLOCK, 64), (2048, 2048, 64, 1), 2, 1, rank, RANKS)
                 for i, n in enumerate(names)], groups, rank=rank, blocks=BLOCKS, length=LAYERS * BLOCKS * 4096)
            one = connector.DrayConnector(config, KVConnectorRole.WORKER, cache)
            one._worker = WorkerSide(Client(world, self, rank), Region(self, rank), layout, groups, {"model": "m"})
            connectors.append(one)
            self.workers.append(one)
        self.aggregator = KVOutputAggregator.from_connector(self.scheduler.connector, RANKS)
        self.scheduler.connector.set_xfer_handshake_metadata_pp_aware(
            {(0, rank): one.get_handshake_metadata() for rank, one in enumerate(self.workers)})
        self.answers = {}
        self.hasher = get_request_block_hasher(BLOCK, sha256)

    def add(self, request_id, prompt, tokens, params):
        sampling = SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True,
                                  extra_args={"kv_transfer_params": params} if params else None)
        request = Request(request_id, prompt, sampling, None, block_hasher=self.hasher)
        self.scheduler.add_request(request)

    def abort(self, request_id):
        request = self.scheduler.requests.get(request_id)
        if request is not None:
            self.world.seen[f"{self.name} aborted {request.status.name}"] += 1
        self.scheduler.finish_requests(request_id, RequestStatus.FINISHED_ABORTED)

    def preempt(self):
        """Preempts all running requests. Blocks that are held make the reset itself fail, after that."""
        self.world.seen[f"{self.name} preempted"] += len(self.scheduler.running)
        with contextlib.suppress(RuntimeError):
            self.scheduler.reset_prefix_cache(reset_running_requests=True)

    def step(self):
        """One step of the engine: schedule, run, update."""
        output = self.scheduler.schedule()
        self.world.seen[f"{self.name} preempted"] += len(output.preempted_req_ids or ())
        metadata = output.kv_connector_metadata
        results = []
        for one in self.workers:
            one.bind_connector_metadata(metadata)
            one.start_load_kv(None)
            one.wait_for_save()
            got = one.get_transfer_results(output.finished_req_ids)
            results.append(ModelRunnerOutput([], {}, kv_connector_output=KVConnectorOutput(
                finished_sending=got.finished_sending, finished_recving=got.finished_recving, failed_recving=got.failed_recving,
                invalid_block_ids=one.get_block_ids_with_load_errors(), kv_connector_stats=one.get_kv_connector_stats(),
                kv_connector_worker_meta=one.build_connector_worker_meta())))
            one.clear_connector_metadata()
        self.world.elapse()
        joined = self.aggregator.aggregate(results, 0)
        ids = list(output.num_scheduled_tokens)
        sampled = []
        for request_id in ids:
            request = self.scheduler.requests[request_id]
            sampled.append([7] if request.num_computed_tokens >= request.num_tokens else [])
        done = ModelRunnerOutput(ids, {r: i for i, r in enumerate(ids)}, sampled,
                                 kv_connector_output=joined.kv_connector_output if joined else None)
        for outputs in self.scheduler.update_from_output(output, done).values():
            for one in outputs.outputs:
                if one.finish_reason is not None:
                    self.world.seen[f"{self.name} finished {one.finish_reason.name}"] += 1
                    params = json.loads(json.dumps(one.kv_transfer_params))  # as it comes through a router
                    self.answers[one.request_id] = (one.finish_reason.name, params)

    def references(self):
        return {block.block_id: block.ref_cnt for block in self.scheduler.kv_cache_manager.block_pool.blocks if not block.is_null}

    def left(self):
        """What is kept for any request; empty if nothing."""
        left = []
        if self.scheduler.requests or self.scheduler.has_unfinished_requests():
            left.append(f"requests {list(self.scheduler.requests)}")
        if used := [b for b, n in self.references().items() if n]:
            left.append(f"blocks {used}")
        if not self.side.idle:
            left.append("the scheduler side")
        if not all(one._worker.idle for one in self.workers):
            left.append("a worker side")
        return left


class World:
    def __init__(self, monkeypatch, model, policy, random):
        self.random, self.actions, self.tokens, self.transfers = random, [], {}, []
        self.numbers, self.making = itertools.count(1), None
        self.seen = Counter()  # what has happened, so that the test can tell whether everything has
        monkeypatch.setattr(connector, "find", lambda options, engine_id: agent.Found("/run/dray.sock"))
        monkeypatch.setattr(connector, "Client", lambda *args, **how: Client(self, self.making, "scheduler"))
        monkeypatch.setattr(scheduler, "Grants", Grants)
        init_none_hash(sha256)
        self.p, self.d = Side(self, "p", model, policy), Side(self, "d", model, policy)

    # --- actions of agents --------------------------------------------------------------------------

    def act(self, function, *arguments):
        self.actions.append((function, arguments))

    def happen(self, index):
        function, arguments = self.actions.pop(index)
        function(*arguments)

    def elapse(self):
        """The time of a step, in which agents mostly answer each other."""
        for _ in range(self.random.randrange(2 * RANKS)):
            if self.actions and self.random.random() < 0.9:
                self.happen(self.random.randrange(len(self.actions)))

    def given(self, grants, grant):
        if grant.how is None:
            grant.token = f"token-{grant.number}"
            self.tokens[grant.token] = grant

    def fenced(self, grants, grant, why):
        grants.over(grant, why)

    def acquired(self, side, hold):
        hold.answered = True
        grant = hold.grant
        if not side.up:
            hold.error = errors.SessionClosed("the agent has ended")
        elif grant is None or grant.how is not None or grant.ending is not None or grant.holds:
            hold.error = errors.TokenInvalid("there is no such right")
        else:
            hold.remote = Remote(hold, next(self.numbers))
            side.remotes[hold.remote.number] = hold.remote
            grant.holds.append(hold)

    def released(self, hold):
        if not hold.answered:
            self.act(self.released, hold)  # after the answer
        elif hold.remote is not None and not hold.lost:
            self.lose(hold, errors.NotFound("released"))
            self.p.grants.over(hold.grant, USED)

    def lose(self, hold, error):
        if hold.remote is not None and hold.remote.lost is None:
            hold.remote.lost = error
            for transfer in self.transfers:
                if transfer.remote is hold.remote:
                    transfer.end(error)

    def transferred(self, transfer):
        self.end_transfer(transfer, None)

    def end_transfer(self, transfer, error):
        if transfer.ended:
            return
        if error is None:
            assert transfer.remote.hold.grant.how is None, "blocks were read without a right"
            kind = self.random.random()
            if kind < 0.1:
                error = errors.PeerLost("the other agent does not answer")
            elif kind < 0.2:
                transfer.end(errors.Unconfirmed("the agent does not answer"), lent=True)
                self.act(self.confirmed, transfer)
                return
        transfer.end(error)

    def confirmed(self, transfer):
        transfer.is_lent = False

    # --- events -------------------------------------------------------------------------------------

    def expire(self):
        for grant in list(self.p.grants.open):
            if self.random.random() < 0.5:
                self.p.grants.end(grant, EXPIRED)

    def kill_agent(self, side):
        """The agent of a side dies and is started again."""
        other = self.d if side is self.p else self.p
        side.up = False
        error = errors.AgentRestarted("the agent was restarted")
        for grant in list(side.grants.open):
            side.grants.over(grant, AGENT_LOST)
        for remote in side.remotes.values():
            if remote.lost is None:
                self.lose(remote.hold, error)
                other.grants.over(remote.hold.grant, PEER_LOST)
        for transfer in self.transfers:
            if transfer.side is side:
                transfer.end(error)
                transfer.is_lent = False
        for client in side.clients.values():
            client.events.append(events.Disconnected(error, False))
        self.act(self.restart_agent, side)

    def restart_agent(self, side):
        side.up = True
        side.incarnation += 1
        for one in side.workers:
            one._worker._region.error = errors.Quota("no room") if self.random.random() < 0.1 else None
        for client in side.clients.values():
            client.events.append(events.Reconnected(side.incarnation, True, 1, []))

    # --- invariants ---------------------------------------------------------------------------------

    def check(self):
        """No block that an agent may write, or that another engine may read, is free."""
        references = self.d.references()
        for transfer in self.transfers:
            if not transfer.ended or transfer.is_lent:
                free = [b for b in transfer.blocks if b and not references[b]]
                assert not free, f"blocks {free} are free while a transfer may write them"
        for grant in self.p.grants.open:
            if any(hold.remote and not hold.lost for hold in grant.holds):
                assert grant.label in self.p.scheduler.requests, f"{grant.label} is gone while D may read its blocks"
        self.transfers = [t for t in self.transfers if not t.ended or t.is_lent]

    def settle(self, limit=400):
        """Lets everything end: all actions happen, rights that D never asked for expire."""
        for turn in range(limit):
            if not (self.actions or self.p.left() or self.d.left()):
                return
            while self.actions and self.random.random() < 0.8:
                self.happen(self.random.randrange(len(self.actions)))
            if turn > limit // 4:
                self.expire()
            self.p.step()
            self.d.step()
            self.check()
        raise AssertionError(f"left: P {self.p.left()}, D {self.d.left()}, actions {self.actions}")
