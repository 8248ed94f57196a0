# SPDX-License-Identifier: Apache-2.0
"""The connector's worker side: the rank's region, the transfers of its loads, and how they ended.

Chunks that the rank writes to another engine are in push_worker.py.

Each request of the scheduler side is answered exactly once, whatever happens in between: a load that
was handed over (loads), could not be started (failed) or was given up before (dropped) by
finished_recving, and blocks that are free at P (sent) by finished_sending. Work is only submitted and
polled here; no method waits for the agent, except at the start of the engine.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .. import errors
from ..client import Client
from ..events import Confirmed, Disconnected, Reconnected
from ..handles import Region, Remote
from ..pending import Transfer
from . import layout as layouts
from .grants import give_back
from .layout import EngineLayout, Group, Plan, RankLayout
from .looks import Looks
from .options import DEFAULT_NAME
from .protocol import Load, RankInfo, StepMetadata, WorkerMetadata
from .push_worker import Mark, PushWorker
from .slots import Blocks, Piece
from .stats import Stats, sentence

if TYPE_CHECKING:
    from .bounce import Bounce  # which needs torch

__all__ = ["Results", "WorkerSide"]

_logger = logging.getLogger("vllm.dray")
_MARGIN = 0.25  # seconds that the agent gets to stop a transfer before the deadline of its load


@dataclass
class Results:
    """What has ended since the last step. failed: also in received, because their blocks are not to be used."""

    sent: set[str] = field(default_factory=set)
    received: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)


class _Running:
    """A load that was handed over.

    pieces: what has not been read yet; the first one is being read. queue: ranks of P whose transfer of
    that piece has not been accepted yet. remotes: borrowed, by the agent's number.
    """

    __slots__ = ("began", "bytes", "ends", "error", "load", "operations", "pieces", "plan", "queue", "remotes", "transfers")

    def __init__(self, load: Load, now: float) -> None:
        self.load, self.began, self.ends = load, now, now + load.seconds
        self.plan: Plan | None = None
        self.pieces: list[Piece] = []
        self.queue: list[tuple[int, Any]] = []
        self.remotes: dict[int, Remote] = {}
        self.transfers: list[Transfer] = []
        self.error: errors.Error | None = None
        self.bytes = self.operations = 0


class WorkerSide:
    """One for each rank. Its methods are the hooks that the engine's model runner calls."""

    def __init__(self, client: Client, region: Region, rank: RankLayout, groups: tuple[Group, ...],
                 model: dict[str, str], name: str = DEFAULT_NAME, bounce: Bounce | None = None, mark: Mark | None = None) -> None:
        """region, rank: of the buffer, if blocks are copied through one (bounce). mark: of PushWorker."""
        self._client, self._region, self._name, self._bounce = client, region, name, bounce
        self._layout, self._groups, self._model = rank, groups, model
        self._plans: dict[EngineLayout, Plan] = {}
        self._running: dict[str, _Running] = {}
        self._lent: dict[str, _Running] = {}  # loads that were reported as failed
        self._saves: dict[str, tuple[Blocks, Blocks]] = {}  # blocks and slots, when this step has computed them
        self._results = Results()
        self._metadata = WorkerMetadata(ranks={rank.rank: self.info()})
        self._can_lend = False
        self._rest = 0.0
        self._looks = Looks()
        self._pushes = PushWorker(client, region, rank.rank, mark)
        self.stats = Stats(lambda data: _logger.info("dray: rank %d, last minute: %s", rank.rank, sentence(data)))

    def info(self) -> RankInfo:
        """What the scheduler side has to know of this rank."""
        return RankInfo(self._layout, self._groups, self._model, self._client.agent_id, self._client.incarnation,
                        self._region.agent_handle, self._name, self._bounce.outgoing if self._bounce is not None else None)

    # --- steps --------------------------------------------------------------------------------------

    def step(self, metadata: StepMetadata) -> None:
        """Starts and stops what the scheduler side has decided for this step."""
        self._can_lend, self._rest = metadata.can_lend, metadata.rest
        for request_id in metadata.stops:
            running = self._running.get(request_id)
            if running is not None:  # otherwise its end has been reported
                self._stop(running, errors.Cancelled("the request was aborted"))
        self._results.received.update(metadata.dropped)
        self._results.sent.update(metadata.sent)
        for request_id, reason in metadata.failed.items():
            self._fail(request_id, reason, reason.partition(":")[0])
        for request_id, done in metadata.loaded.items():
            self._results.received.add(request_id)
            self.stats.loaded(done.bytes.get(self._layout.rank, 0), self._blocks(done.tokens), 0, done.tokens, done.seconds)
        self._pushes.take(metadata.pushes, metadata.push_stops)
        self._saves = metadata.saves
        now = time.monotonic()
        for load in metadata.loads:
            self._start(load, now)

    def computed(self) -> None:
        """The step's forward pass is over: its blocks can leave, through the buffer or directly."""
        if self._bounce is not None:
            for blocks, slots in self._saves.values():
                self._bounce.save(blocks, slots)
        self._saves = {}
        self._pushes.computed(self._metadata)

    def _start(self, load: Load, now: float) -> None:
        running = self._running[load.request_id] = _Running(load, now)
        try:
            running.plan = self._plan(load.layout)
            running.pieces = [Piece(load.first, load.end, load.local_blocks)] if self._bounce is None else \
                self._bounce.pieces(load.local_blocks, load.first, load.end)
        except errors.Error as e:
            running.error = e
            return
        self._submit(running, now)

    def _plan_piece(self, running: _Running) -> bool:
        """Fills the queue with what the next piece needs; False if the buffer has no room for it now."""
        piece, load, plan = running.pieces[0], running.load, running.plan
        assert plan is not None
        if self._bounce is not None and not self._bounce.enter(piece):
            return False
        found = ((rank, layouts.operations(plan, rank, piece.slots or piece.blocks, load.remote_blocks, piece.first, piece.end,
                                           reads=True)) for rank in plan.ranks)
        running.queue = [(load.remotes[rank], ops) for rank, ops in found if len(ops)]
        running.bytes += sum(int(ops[:, 2].sum()) for _, ops in running.queue)
        running.operations += sum(len(ops) for _, ops in running.queue)
        return True

    def _plan(self, other: EngineLayout) -> Plan:
        plan = self._plans.get(other)
        if plan is None:
            while len(self._plans) >= layouts.PLANS_MAX:
                self._plans.pop(next(iter(self._plans)))
            plan = self._plans[other] = layouts.make_plan(self._layout, self._groups, other)
        return plan

    def _submit(self, running: _Running, now: float) -> None:
        """Starts the transfers that the agent has room for; the others follow in later steps."""
        while running.pieces and (running.queue or not running.transfers):
            if now >= running.ends:
                self._stop(running, errors.Deadline("there was no room for the transfer until the deadline, in the agent "
                                                    "or in the bounce buffer"))
                return
            try:
                if not running.queue and not self._plan_piece(running):
                    return
                if not running.queue:  # no layer needs anything of this piece, such as before the window of all
                    self._end_piece(running, copy=False)
                    continue
                handle, ops = running.queue[0]
                if handle not in running.remotes:
                    running.remotes[handle] = self._client.borrow_remote(handle)
                running.transfers.append(self._client.read(
                    self._region, running.remotes[handle], ops, deadline=max(0.001, running.ends - now - _MARGIN)))
            except errors.Busy:
                return
            except errors.Error as e:
                self._stop(running, e)
                return
            running.queue.pop(0)

    def _stop(self, running: _Running, error: errors.Error) -> None:
        """Ends a load without success. It is reported when no transfer of it is in flight any more."""
        running.error = running.error or error
        running.queue.clear()
        del running.pieces[1:]
        for transfer in running.transfers:
            if not transfer.done():
                try:
                    transfer.cancel(wait=False)
                except errors.Error:
                    pass  # it has ended

    def poll(self) -> Results:
        """Takes what has ended; each request once."""
        moving = bool(self._running or self._lent or not self._pushes.idle)
        if self._looks.due(moving):
            self._client.process(self._rest if moving and not (self._results.received or self._results.sent) else 0.0)
        self._rest = 0.0
        while self._client.events:
            self._take_event(self._client.events.popleft())
        if self._running:
            now = time.monotonic()
            for running in list(self._running.values()):
                self._check(running, now)
        if self._lent:
            self._check_lent()
        self._pushes.poll(self._metadata)
        results, self._results = self._results, Results()
        return results

    def _take_event(self, event: Any) -> None:
        self._looks.event(event)
        if isinstance(event, Reconnected):
            try:
                self._metadata.ranks[self._layout.rank] = self.info()
            except errors.Error as e:  # loads fail with it, too
                _logger.error("dray: rank %d: the agent at %s does not take its KV cache: %s", self._layout.rank,
                              self._client.path, e)
                return
            _logger.info("dray: rank %d has a session with the agent at %s again", self._layout.rank, self._client.path)
        elif isinstance(event, Disconnected):
            _logger.warning("dray: rank %d has lost the session with the agent at %s: %s", self._layout.rank,
                            self._client.path, event.error)
        elif not isinstance(event, Confirmed):
            _logger.debug("dray: rank %d: %s", self._layout.rank, event)

    def _check(self, running: _Running, now: float) -> None:
        if running.error is None:
            self._submit(running, now)
        if running.error is None and (running.queue or running.pieces and not running.transfers) or \
                not all(transfer.done() for transfer in running.transfers):
            return
        for transfer in running.transfers:
            error = transfer.error()
            if error is not None and running.error is None:
                running.error = error
        request_id = running.load.request_id
        if running.error is None:
            self._end_piece(running, copy=True)
            if running.pieces:
                self._submit(running, now)
                return
            del self._running[request_id]
            give_back(running.remotes)
            self._results.received.add(request_id)
            tokens = running.load.end - running.load.first
            self.stats.loaded(running.bytes, self._blocks(tokens), running.operations, tokens, now - running.began)
            return
        lent = any(transfer.lent() for transfer in running.transfers)
        if lent and not self._can_lend:
            return  # reported when the agent has confirmed the end
        del self._running[request_id]
        if lent:
            self._lent[request_id] = running
            self._metadata.lent[request_id] = 1
        else:
            self._leave(running)
        self._fail(request_id, str(running.error), running.error.name)

    def _end_piece(self, running: _Running, copy: bool) -> None:
        """No transfer of the first piece is in flight any more. copy: its bytes are complete."""
        if running.pieces:
            piece = running.pieces.pop(0)
            if self._bounce is not None:
                self._bounce.leave(piece, copy)
        running.transfers.clear()

    def _leave(self, running: _Running) -> None:
        """No transfer of a load that has failed is in flight any more."""
        self._end_piece(running, copy=False)
        give_back(running.remotes)

    def _check_lent(self) -> None:
        for request_id, running in list(self._lent.items()):
            if not any(transfer.lent() for transfer in running.transfers):
                del self._lent[request_id]
                self._leave(running)
                self._metadata.returned[request_id] = 1

    def _fail(self, request_id: str, reason: str, name: str) -> None:
        self._results.received.add(request_id)
        self._results.failed.add(request_id)
        self.stats.failed(name)
        _logger.warning("dray: request %s: its blocks were not loaded: %s", request_id, reason)

    def take_metadata(self) -> WorkerMetadata | None:
        """What the scheduler side has to know after this step; None: nothing."""
        metadata = self._metadata
        if not metadata:
            return None
        self._metadata = WorkerMetadata()
        return metadata

    @property
    def idle(self) -> bool:
        """True if no load is kept; for tests."""
        return self._pushes.idle and not (self._running or self._lent or self._results.sent or self._results.received)

    def _blocks(self, tokens: int) -> int:
        """Blocks of all groups that hold so many tokens."""
        return sum(-(-tokens // group.tokens) for group in self._groups)

    def waiting(self) -> int:
        """Loads that have not ended."""
        return len(self._running)

    def close(self) -> None:
        """Removes the region, and ends the session."""
        self.stats.flush()
        self._client.close()


def layout_of(config: Any, kv_cache_config: Any, offsets: Mapping[str, int], tensors: Mapping[str, Any], *, rank: int,
              tp_rank: int, length: int) -> tuple[RankLayout, tuple[Group, ...]]:
    """Describes the tensors that the engine has registered. errors.Unsupported: what dray cannot copy."""
    from . import compat  # which is about the engine's configuration

    groups = compat.groups(kv_cache_config)
    parallel = config.parallel_config
    total = config.model_config.get_total_num_kv_heads()
    described: list[layouts.Tensor] = []
    for index, group in enumerate(kv_cache_config.kv_cache_groups):
        places = set()
        for name in group.layer_names:
            tensor = tensors.get(name)
            if tensor is None:
                raise errors.Unsupported(f"layer {name} of KV-cache group {index} has no tensor of its own",
                                         fix="Run this model without DrayConnector.")
            if offsets[name] in places:
                continue  # a layer that uses the cache of another one
            places.add(offsets[name])
            spec = getattr(group.kv_cache_spec, "kv_cache_specs", {}).get(name, group.kv_cache_spec)
            heads = spec.num_kv_heads
            if groups[index].kind.startswith("mla"):
                first, of = 0, heads
            else:
                first, held = compat.kv_heads(total, parallel.tensor_parallel_size, tp_rank)
                of = total
                if held != heads:  # of a layer that has other heads than the model says
                    first, of = tp_rank * heads, heads * parallel.tensor_parallel_size
            described.append(layouts.Tensor(name, index, offsets[name], tuple(tensor.shape), tuple(tensor.stride()),
                                            tensor.element_size(), heads, first, of))
    blocks = kv_cache_config.num_blocks
    return layouts.describe(described, groups, rank=rank, blocks=blocks, length=length), groups
