# SPDX-License-Identifier: Apache-2.0
"""Two engines without their models: vLLM's real scheduler and the connector's real sides, over agents that are played.

What an agent does, such as answering, delivering a letter, ending a transfer or a right, is an action. The
test chooses which action happens next, so that every order of messages can occur. The world checks after
each step that no block is used by somebody else while it can still be read or written. The memory of each
rank holds a number for each token, which stands for the token and all before it: so the world notices
when a request computes with the blocks of another one.
"""

import contextlib
import itertools
import json
from collections import Counter, deque
from types import SimpleNamespace

import numpy as np
from dray import errors, events
from dray.vllm import agent, connector, push_receiver, push_scheduler, push_sender, push_worker, ranks, scheduler, sessions, worker
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
TOKEN_BYTES = 128  # of a token in one layer of one rank
BLOCK_BYTES = BLOCK * TOKEN_BYTES
GARBAGE = -1  # what a transfer that failed leaves behind


def places(offsets, lengths):
    """[(layer, first token, end)] in a rank's memory."""
    return [(int(at) // (BLOCKS * BLOCK_BYTES), int(at) % (BLOCKS * BLOCK_BYTES) // TOKEN_BYTES,
             int(at) % (BLOCKS * BLOCK_BYTES) // TOKEN_BYTES + int(n) // TOKEN_BYTES) for at, n in zip(offsets, lengths)]


def blocks_of(found):
    """The numbers of the blocks in which such places lie."""
    return {block for _, first, end in found for block in range(first // BLOCK, -(-end // BLOCK))}


def prefixes(tokens):
    """A number for each token, which stands for it and all tokens before it."""
    value, out = 0, []
    for token in tokens:
        value = hash((value, token))
        out.append(value)
    return np.array(out, dtype=np.int64)


class Pending:
    def __init__(self):
        self.failure = None
        self.ended = False

    def done(self):
        return self.ended

    def error(self):
        return self.failure

    def end(self, error=None):
        self.ended, self.failure = True, error


class Grant:
    """As dray.vllm.grants.Grant. owner: the Grants of the side that has given it."""

    numbers = itertools.count(1)

    def __init__(self, owner, label, rank, ranges, access):
        self.owner, self.label, self.rank, self.number, self.access = owner, label, rank, next(self.numbers), access
        self.blocks = set()
        for offset, length, stride, count in ranges.tolist():
            self.blocks |= blocks_of(places([offset + i * stride for i in range(count)], [length] * count))
        self.token = self.how = self.error = self.limit = None
        self.ending = None
        self.holds = []


class Hold:
    def __init__(self, world, grant):
        self.world, self.grant = world, grant
        self.remote = self.error = self.limit = None
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

    def notify(self, tag, payload, *, wait):
        if self.lost:
            raise self.lost
        pending = Pending()
        self.hold.world.act(self.hold.world.notified, self, tag, payload, pending)
        return pending


class Borrowed:
    """A remote in the session of a worker."""

    def __init__(self, remote, client):
        self.remote, self.client = remote, client
        client.borrowed.add(self)

    def __getattr__(self, name):
        return getattr(self.remote, name)

    def release(self, *, wait):
        self.client.borrowed.remove(self)


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

    def give(self, label, region, ranges, expiry, access="r", audience=None, load=None):
        assert ranges is not None and len(ranges)
        grant = Grant(self, label, region.rank, ranges, access)
        grant.audience = audience
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

    def acquire(self, token, request_id, load=None):
        hold = Hold(self.world, self.world.tokens.get(token))
        self.world.act(self.world.acquired, self.side, hold)
        return hold

    def poll(self, rest=0.0, awaited=True):
        client = self.side.clients["scheduler"]
        while client.events:
            self.on_event(client.events.popleft())
        ended = list(self.ended)
        self.ended.clear()
        return ended


class Transfer:
    """reads, writes: (side, rank, places) of the memory. notify: as in Client.write()."""

    def __init__(self, world, side, remote, reads, writes, notify=None):
        self.world, self.side, self.remote, self.reads, self.writes, self.notify = world, side, remote, reads, writes, notify
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
            if not lent:
                self.land(None if isinstance(error, errors.NotifyRefused) else error)

    def land(self, error):
        """The bytes arrive; of a transfer that failed, anything."""
        (source, from_rank, these), (target, to_rank, those) = self.reads, self.writes
        for (layer, first, end), (other_layer, other_first, other_end) in zip(these, those, strict=True):
            target.memory[to_rank, other_layer, other_first:other_end] = \
                source.memory[from_rank, layer, first:end] if error is None else GARBAGE


class Client:
    """As dray.Client, as far as the two sides use it."""

    def __init__(self, world, side, name):
        self.world, self.side, self.name, self.events, self.borrowed = world, side, name, deque(), set()
        self.path, self.segment = "/run/dray.sock", f"{side.name}:1"
        side.clients[name] = self

    @property
    def agent_id(self):
        return self.side.agent_id

    @property
    def incarnation(self):
        return self.side.incarnation

    def info(self):
        if not self.side.up and self.world.random.random() < 0.1:
            self.side.losses += 1  # an attempt fails
        return SimpleNamespace(connected=self.side.up, losses=self.side.losses, agent_id=self.agent_id, incarnation=self.incarnation)

    def process(self, timeout=0):
        pass

    def borrow_region(self, number, length):
        if not self.side.up or self.world.random.random() < 0.02:
            raise errors.SessionClosed("lost just now")
        return SimpleNamespace(rank=number % 100, length=length)

    def borrow_remote(self, number):
        return Borrowed(self.side.remotes[number], self)

    def _start(self, region, remote):
        if not self.side.up:
            raise errors.SessionClosed("not connected")
        if region.error:
            raise region.error
        if self.world.random.random() < 0.1:
            raise errors.Busy("full")
        if remote.lost:
            raise remote.lost

    def read(self, region, remote, ops, *, deadline):
        self._start(region, remote)
        grant = remote.hold.grant
        return Transfer(self.world, self.side, remote.remote, (grant.owner.side, grant.rank, places(ops[:, 1], ops[:, 2])),
                        (self.side, region.rank, places(ops[:, 0], ops[:, 2])))

    def write(self, region, remote, ops, *, notify, deadline):
        self._start(region, remote)
        grant = remote.hold.grant
        assert grant.access == "w" and blocks_of(places(ops[:, 1], ops[:, 2])) <= grant.blocks, "outside of the right"
        return Transfer(self.world, self.side, remote.remote, (self.side, region.rank, places(ops[:, 0], ops[:, 2])),
                        (grant.owner.side, grant.rank, places(ops[:, 1], ops[:, 2])), notify)

    def open_mailbox(self, name):
        self.world.mailboxes[self.segment, name] = self

    def post(self, segment, mailbox, payload, *, wait):
        if self.world.random.random() < 0.02:
            raise errors.Busy("full")
        pending = Pending()
        self.world.act(self.world.delivered, self, segment, mailbox, payload, pending)
        return pending

    def close(self):
        pass


class Side:
    """One engine: its scheduler, with the connector's scheduler side, and the worker sides of its ranks."""

    def __init__(self, world, name, model, policy, mode):
        self.memory = np.zeros((RANKS, LAYERS, BLOCKS * BLOCK), dtype=np.int64)
        self.world, self.name, self.clients, self.remotes = world, name, {}, {}
        self.agent_id, self.incarnation, self.up = name.encode() * 16, 1, True
        self.grants, self.losses = None, 0
        config = EngineArgs(
            model=model, skip_tokenizer_init=True, dtype="bfloat16", max_model_len=BLOCK * 8, max_num_batched_tokens=BLOCK * 3 // 2,
            max_num_seqs=8, block_size=BLOCK, enforce_eager=True, kv_transfer_config={
                "kv_connector": "DrayConnector", "kv_connector_module_path": "dray.vllm", "kv_role": "kv_both",
                "engine_id": name, "kv_load_failure_policy": policy,
                "kv_connector_extra_config": {"mode": mode}}).create_engine_config()
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
                [Tensor(n, 0, i * BLOCKS * BLOCK_BYTES, (BLOCKS, 1, BLOCK, 64), (2048, 2048, 64, 1), 2, 1, rank, RANKS)
                 for i, n in enumerate(names)], groups, rank=rank, blocks=BLOCKS, length=LAYERS * BLOCKS * BLOCK_BYTES)
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
        for request_id, n in output.num_scheduled_tokens.items():
            self.compute(self.scheduler.requests[request_id], n)
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

    def compute(self, request, n):
        """The forward pass of a request's next n tokens, with the blocks of those before."""
        ids, = self.scheduler.kv_cache_manager.get_block_ids(request.request_id)
        end = request.num_computed_tokens  # of this step, as the scheduler counts
        tokens = np.arange(end)
        at = np.array(ids)[tokens // BLOCK] * BLOCK + tokens % BLOCK
        right = prefixes(request.all_token_ids[:end])
        wrong = np.flatnonzero((self.memory[:, :, at[:end - n]] != right[:end - n]).any(axis=(0, 1)))
        assert not wrong.size, f"{self.name}: {request.request_id} computes with other blocks than its own from token {wrong[0]}"
        self.memory[:, :, at[end - n:]] = right[end - n:]

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
        if any(client.borrowed for client in self.clients.values()):
            left.append("a borrowed remote")
        return left


class World:
    def __init__(self, monkeypatch, model, policy, random, mode="pull"):
        self.random, self.actions, self.tokens, self.transfers = random, [], {}, []
        self.mode, self.mailboxes, self.now = mode, {}, 1000.0
        self.numbers, self.making = itertools.count(1), None
        self.seen = Counter()  # what has happened, so that the test can tell whether everything has
        monkeypatch.setattr(connector, "find", lambda options, engine_id: agent.Found("/run/dray.sock"))
        monkeypatch.setattr(sessions, "Client", lambda *args, **how: Client(self, self.making, "scheduler"))
        for module in (scheduler, push_scheduler):
            monkeypatch.setattr(module, "Grants", Grants)
        for module in (ranks, scheduler, worker, push_sender, push_receiver, push_worker):
            monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(push_worker, "Transfer", Transfer)
        init_none_hash(sha256)
        self.p, self.d = Side(self, "p", model, policy, mode), Side(self, "d", model, policy, mode)

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
        if not side.up and self.random.random() >= 0.5:  # it had not been sent
            self.act(self.acquired, side, hold)
            return
        hold.answered = True
        grant = hold.grant
        if not side.up:
            hold.error = errors.SessionClosed("the agent has ended")
        elif grant is None or grant.how is not None or grant.ending is not None or grant.holds:
            hold.error = errors.TokenInvalid("there is no such right")
        elif grant.audience not in (None, side.agent_id):
            hold.error = errors.TokenAudience("the token is for another agent")
        else:
            hold.remote = Remote(hold, next(self.numbers))
            side.remotes[hold.remote.number] = hold.remote
            grant.holds.append(hold)

    def released(self, hold):
        if not hold.answered:
            self.act(self.released, hold)  # after the answer
        elif hold.remote is not None and not hold.lost:
            self.lose(hold, errors.NotFound("released"))
            hold.grant.owner.over(hold.grant, USED)

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
            assert transfer.remote.hold.grant.how is None, "blocks were moved without a right"
            kind = self.random.random()
            if kind < 0.1:
                error = errors.PeerLost("the other agent does not answer")
            elif kind < 0.2:
                transfer.end(errors.Unconfirmed("the agent does not answer"), lent=True)
                self.act(self.confirmed, transfer)
                return
            elif transfer.notify and kind < 0.22:
                error = errors.NotifyRefused("no session reads notifications")
        if error is None and transfer.notify:
            transfer.land(None)
            self.notify(transfer.remote, *transfer.notify)
            if self.random.random() < 0.03:  # the answer is lost
                transfer.ended, transfer.is_lent, transfer.failure = True, False, errors.PeerLost("the other agent does not answer")
                return
        transfer.end(error)

    def confirmed(self, transfer):
        if transfer.is_lent:
            transfer.land(transfer.failure)
        transfer.is_lent = False

    def notify(self, remote, tag, payload):
        side = remote.hold.grant.owner.side
        self.seen["notified"] += 1
        side.clients["scheduler"].events.append(events.Notification(tag, payload, None, 0, remote.hold.world.other(side).agent_id, 1, 1))

    def notified(self, remote, tag, payload, pending):
        if remote.lost:
            pending.end(remote.lost)
        else:
            self.notify(remote, tag, payload)
            pending.end()

    def other(self, side):
        return self.d if side is self.p else self.p

    def delivered(self, sender, segment, mailbox, payload, pending):
        owner = self.mailboxes.get((segment, mailbox))
        chance = self.random.random()
        if owner is None:
            pending.end(errors.NotFound(f"no mailbox {mailbox} is open at this agent"))
        elif not sender.side.up or not owner.side.up or chance < 0.02:
            pending.end(errors.PeerLost("the other agent does not answer"))
        elif chance < 0.07:
            pending.end(errors.MailboxFull("full"))
        else:
            owner.events.append(events.Letter(None, payload, sender.agent_id, 0, 0, 1))
            pending.end()

    # --- events -------------------------------------------------------------------------------------

    def expire(self):
        for side in (self.p, self.d):
            for grant in list(side.grants.open):
                if self.random.random() < 0.5:
                    side.grants.end(grant, EXPIRED)

    def kill_agent(self, side):
        """The agent of a side dies and is started again."""
        side.up = False
        side.losses += 1
        error = errors.AgentRestarted("the agent was restarted")
        for grant in list(side.grants.open):
            side.grants.over(grant, AGENT_LOST)
        for remote in side.remotes.values():
            if remote.lost is None:
                self.lose(remote.hold, error)
                remote.hold.grant.owner.over(remote.hold.grant, PEER_LOST)
        for transfer in self.transfers:
            if side in (transfer.side, transfer.writes[0]):  # a dead agent writes nothing, and nothing is written through it
                transfer.end(error)
                self.confirmed(transfer)
        for client in side.clients.values():
            client.events.append(events.Disconnected(error, False))
        self.act(self.restart_agent, side)

    def restart_agent(self, side):
        side.up = True
        side.incarnation += 1
        for one in side.workers:
            one._worker._region.error = errors.Quota("no room") if self.random.random() < 0.03 else None
        for client in side.clients.values():
            client.events.append(events.Reconnected(side.incarnation, True, 1, []))

    # --- invariants ---------------------------------------------------------------------------------

    def check(self):
        """No block that an agent may write, or that another engine may read, is free."""
        references = {side: side.references() for side in (self.p, self.d)}
        for transfer in self.transfers:
            if not transfer.ended or transfer.is_lent:
                # the owner of the remote blocks has them back when the right has ended, which is after a fence
                for side, _, found in (transfer.reads, transfer.writes):
                    if side is transfer.side or not transfer.ended:
                        free = [b for b in blocks_of(found) if b and not references[side][b]]
                        assert not free, f"blocks {free} of {side.name} are free while a transfer may use them"
        for side in (self.p, self.d):
            for grant in side.grants.open:
                if any(hold.remote and not hold.lost for hold in grant.holds):
                    free = [b for b in grant.blocks if b and not references[side][b]]
                    assert not free, f"blocks {free} of {side.name} are free while the other engine has a right on them"
        self.transfers = [t for t in self.transfers if not t.ended or t.is_lent]

    def settle(self, limit=400):
        """Lets everything end: all actions happen, rights that nobody asked for expire, and deadlines pass."""
        for turn in range(limit):
            if not (self.actions or self.p.left() or self.d.left()):
                return
            while self.actions and self.random.random() < 0.8:
                self.happen(self.random.randrange(len(self.actions)))
            if turn > limit // 4:
                self.expire()
                self.now += 1
            self.p.step()
            self.d.step()
            self.check()
        raise AssertionError(f"left: P {self.p.left()}, D {self.d.left()}, actions {self.actions}")
