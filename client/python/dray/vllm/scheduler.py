# SPDX-License-Identifier: Apache-2.0
"""The connector's scheduler side: which blocks are loaded from where, and when a request's blocks are free.

At P a request gives out a right to read its blocks when its last chunk is scheduled, so that the token
is there when the request has finished. The blocks stay allocated until all rights have ended. At D a
request acquires these rights when it is seen first; its load goes to the workers when both its blocks
are allocated and the rights are there.

A load of D is in one of these states. The engine is told exactly once that a load has ended.

    MATCHED    not allocated: to end it, only the rights are released
    ALLOCATED  waits for the rights: the workers have not heard of it
    STARTED    the workers report its end
    DONE       ended; the request computes whatever is missing
"""

from __future__ import annotations

import enum
import logging
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .. import errors
from ..client import Client
from ..events import Disconnected
from ..handles import Region
from . import layout as layouts
from .grants import AGENT_LOST, EXPIRED, PEER_LOST, Grant, Grants, Hold
from .kept import Kept
from .layout import EngineLayout
from .options import Options
from .protocol import (DELIVERED, Load, Offer, StepMetadata, WorkerMetadata, offer_params, offered_tokens, read_offer, wants_decode,
                       wants_prefill)
from .ranks import Peers, Ranks
from .rest import Rest
from .siblings import Member
from .slots import Blocks, Saved

if TYPE_CHECKING:
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request

__all__ = ["SchedulerSide"]

_logger = logging.getLogger("vllm.dray")
_USED_MAX = 1024


class _State(enum.Enum):
    MATCHED = enum.auto()
    ALLOCATED = enum.auto()
    STARTED = enum.auto()
    DONE = enum.auto()


class _Rights:
    """The rights of an offer at D, for all requests that come with it. A right has one holder, and vLLM makes a request for each of `n` samples,
    all with the same parameters.

    offer, holds: None and empty if the offer was refused; error says why. users: requests that may still load. first: the load that was allocated
    first, for which the others wait, because they find its whole blocks in the engine's cache. failed: that load has failed.
    """

    __slots__ = ("error", "failed", "first", "holds", "offer", "users")

    def __init__(self) -> None:
        self.offer: Offer | None = None
        self.holds: dict[int, Hold] = {}  # by rank of P
        self.error: errors.Error | None = None
        self.users: set[str] = set()
        self.first: _Load | None = None
        self.failed = False


class _Load:
    """A request of D. tokens: of its rights."""

    __slots__ = ("allocated", "blocks", "end", "ends", "first", "losses", "over", "request_id", "rights", "state", "tokens")

    def __init__(self, request_id: str, tokens: tuple[str, ...], rights: _Rights) -> None:
        self.request_id, self.tokens, self.rights, self.state = request_id, tokens, rights, _State.MATCHED
        self.blocks: tuple[tuple[int, ...], ...] = ()
        self.allocated: KVCacheBlocks | None = None  # the engine's objects of the blocks
        self.first = self.end = 0
        self.ends = 0.0
        self.losses = 0  # of the session, before
        self.over = False  # the request has ended

    @property
    def moving(self) -> bool:
        return self.state in (_State.ALLOCATED, _State.STARTED)

    def keep(self, now: float) -> None:
        """Renews the rights of a load that waits."""
        for hold in self.rights.holds.values():
            hold.keep(now)

    def asks(self) -> bool:
        """True while the other engine's agent has not answered."""
        return any(hold.remote is None and hold.error is None for hold in self.rights.holds.values())


class _Send:
    """A request of P. grants: a right for each rank, from the last chunk on.

    slots: where its blocks are read, if they leave through a bounce buffer. blocks: of the whole prompt, if the engine gives up some of them
    before the request has finished, which this side keeps then. losses: of the session, before.
    """

    __slots__ = ("blocks", "grants", "losses", "request", "slots")

    def __init__(self, request: Request, losses: int) -> None:
        self.request, self.losses = request, losses
        self.grants: list[Grant] = []
        self.slots: Blocks | None = None
        self.blocks: Blocks | None = None


class SchedulerSide:
    """One for each engine. Its methods are the hooks that the engine's scheduler calls; none of them waits,
    except for the rest of a step without tokens (Rest)."""

    def __init__(self, options: Options, client: Client, engine_id: str, member: Member, rest: Rest, *, tp_size: int,
                 world_size: int) -> None:
        self._options, self._client, self._engine_id = options, client, engine_id
        self._member, self._rest, self._tp_size = member, rest, tp_size
        self._grants = Grants(client)
        self._grants.on_event = self._on_event
        self._peers = Peers(self._readable)
        self.ranks = Ranks(client, world_size, self._peers.forget, options.name)
        self._loads: dict[str, _Load] = {}
        self._rights: dict[tuple[str, ...], _Rights] = {}  # of loads, by their tokens
        self._used: dict[tuple[str, ...], None] = {}  # the last ones that were used and released
        self._allocated: dict[str, _Load] = {}
        self._dropped: list[str] = []
        self._stops: list[str] = []
        self._prefills: dict[str, _Send] = {}  # running at P
        self._held: dict[str, _Send] = {}  # finished at P, with blocks that may be read
        self._by_grant: dict[Grant, str] = {}  # of _held
        self._sent: list[str] = []
        self._saves: dict[str, tuple[Blocks, Blocks]] = {}
        self._saved: Saved | None = None  # if blocks leave through a bounce buffer
        self._manager: Any = None
        self._lent = Kept()  # blocks of ended loads that D's agent may still write, by request
        self._read = Kept()  # blocks of requests of P, of which the engine gives up some that D reads
        self._returns: dict[str, int] = {}

    def bind(self, kv_cache_manager: Any) -> None:
        """Gives this side the engine's bookkeeping of blocks."""
        self._manager = self._lent.kv_cache_manager = self._read.kv_cache_manager = kv_cache_manager

    def _readable(self, other: EngineLayout) -> tuple[int, ...]:
        """The ranks of another engine from which this engine reads. errors.Unsupported."""
        local = self.ranks.layout
        local.check(other)
        return tuple(sorted({rank for own in local.ranks for rank in layouts.make_plan(own, local.groups, other).ranks}))

    def _on_event(self, event: Any) -> None:
        if isinstance(event, Disconnected):
            self.ranks.lose()
            _logger.warning("dray: the session with the agent at %s was lost: %s", self._client.path, event.error)

    # --- requests of D ------------------------------------------------------------------------------

    def match(self, request: Request, num_computed_tokens: int) -> tuple[int | None, bool]:
        """How many tokens behind the computed ones can be loaded; None: the engine asks again in the next step.

        A request of P waits for the agent of an idle engine that was restarted: its blocks could not be offered.
        """
        params = self._member.own(request.kv_transfer_params)
        if wants_decode(params):
            self.expect(request)
            send = self._prefills.get(request.request_id)
            waits = send is not None and self.ranks.awaited(send.losses, self._options.deadline)
            return (None if waits else 0), False
        if not wants_prefill(params):
            return 0, False
        load = self._loads.get(request.request_id)
        if load is None:
            load = self._loads[request.request_id] = self._first_sight(request)
            error = load.rights.error
            if error is not None and self._member.others_have(request.kv_transfer_params):
                _logger.warning("dray: request %s: its blocks are left to another connector: %s", load.request_id, error)
                self._end(load)
        if load.state is not _State.MATCHED:
            return 0, False
        first = load.rights.first
        if first is not None and first.moving:
            return None, False
        count = load.end - num_computed_tokens
        load.first = num_computed_tokens
        return (count, True) if count > 0 else (0, False)

    def _first_sight(self, request: Request) -> _Load:
        params = self._member.own(request.kv_transfer_params) or {}
        tokens = tuple(offered_tokens(params))
        rights = self._rights.get(tokens)
        load = _Load(request.request_id, tokens, rights or _Rights())
        load.end = self.ranks.wanted(request.num_prompt_tokens)
        load.losses = self.ranks.losses()
        if tokens in self._used:  # a right has one holder; another request has had them, and may have left whole blocks in the engine's cache
            load.state = _State.DONE
            return load
        if rights is None:
            self._acquire(load.rights, params, tokens, request.request_id)
            if tokens:
                self._rights[tokens] = load.rights
        load.rights.users.add(load.request_id)
        if load.rights.offer is not None:
            load.end = min(load.end, load.rights.offer.num_tokens)
        return load

    def _acquire(self, rights: _Rights, params: Mapping[str, Any], tokens: Sequence[str], request_id: str) -> None:
        wanted: tuple[int, ...] = ()
        try:
            rights.offer, wanted = read_offer(params, self._peers.check)
        except errors.Error as e:
            rights.error = e
        # Rights that are not used are released, so that P gets its blocks back at once.
        for index, token in enumerate(tokens):
            try:
                hold = self._grants.acquire(token, request_id, load=rights)
            except errors.Error as e:
                rights.error = rights.error or e
                continue
            rank = rights.offer.layout.ranks[index].rank if rights.offer is not None and rights.error is None else None
            if rank is not None and rank in wanted:
                rights.holds[rank] = hold
            else:
                hold.release()

    def _end(self, load: _Load) -> None:
        """Nothing is loaded for a request any more. The last request of its rights releases them."""
        load.state = _State.DONE
        rights = load.rights
        if load.request_id not in rights.users:
            return
        rights.users.remove(load.request_id)
        if rights.users:
            return
        for hold in rights.holds.values():
            hold.release()
        self._rights.pop(load.tokens, None)
        if load.tokens and rights.error is None:
            while len(self._used) >= _USED_MAX:
                self._used.pop(next(iter(self._used)))
            self._used[load.tokens] = None

    def allocated(self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int) -> None:
        """The engine has decided how many tokens are loaded, and into which blocks."""
        load = self._loads.get(request.request_id)
        if load is None or load.state is not _State.MATCHED:
            return
        rights = load.rights
        if num_external_tokens <= 0:
            self._end(load)
            return
        load.state = _State.ALLOCATED
        load.blocks = tuple(tuple(group) for group in blocks.get_block_ids())
        load.allocated = blocks
        load.end = load.first + num_external_tokens
        load.ends = time.monotonic() + self._options.deadline
        if rights.first is None:
            rights.first = load
        elif rights.failed:  # so that a request that has waited for the first load is not held up for another deadline
            load.ends = min(load.ends, rights.first.ends)
        self._allocated[load.request_id] = load

    def _start(self, load: _Load, now: float, metadata: StepMetadata) -> bool:
        """Hands a load to the workers, or its failure; False while it has to wait."""
        offer, holds = load.rights.offer, load.rights.holds
        error = load.rights.error or next((hold.lost for hold in holds.values() if hold.lost), None)
        error = error or self.ranks.missing(load.losses)
        if error is None and now >= load.ends:
            error = next((hold.limit for hold in holds.values() if hold.limit and not hold.remote), None) or \
                errors.Deadline(f"the other engine's agent has not answered within {self._options.deadline:g} s")
        remotes: dict[int, int] = {}
        if error is None:
            if not self.ranks.present or not all(hold.remote for hold in holds.values()):
                return False
            error = self._transport_error(load)
            try:
                remotes = {rank: hold.remote.agent_handle for rank, hold in holds.items() if hold.remote is not None}
            except errors.Error as e:  # lost just now
                error = e
        load.state = _State.STARTED
        if error is not None:
            metadata.failed[load.request_id] = str(error)
            return True
        assert offer is not None
        metadata.loads.append(Load(
            load.request_id, offer.layout, load.blocks, offer.blocks, load.first, load.end,
            remotes, load.ends - now))
        return True

    def _transport_error(self, load: _Load) -> errors.Error | None:
        refused = (self._options.path_error(hold.remote.transport, f"rank {rank} of the other engine")
                   for rank, hold in load.rights.holds.items() if hold.remote is not None)
        return next(filter(None, refused), None)

    # --- requests of P ------------------------------------------------------------------------------

    def expect(self, request: Request) -> None:
        """A new request; those of P are followed until they finish."""
        request_id = request.request_id
        if wants_decode(request.kv_transfer_params) and request_id not in self._held and request_id not in self._prefills:
            self._prefills[request_id] = _Send(request, self.ranks.losses())

    def _give(self, send: _Send) -> None:
        """Gives out the rights on the blocks of a request whose last chunk is scheduled."""
        request_id = send.request.request_id
        regions = {rank: self.ranks.region(rank) for rank in range(len(self.ranks))}
        held = self._manager.get_blocks(request_id)
        blocks = held.get_block_ids()
        if self.ranks.slots is not None:
            if self._saved is None:
                self._saved = Saved(self.ranks.slots)
            send.slots = self._saved.take(blocks)
            if send.slots is None:
                _logger.warning("dray: request %s: its blocks are not offered: the bounce buffer has %d slots, and too few are "
                                "free", request_id, len(self._saved))
                return
            self._saves[request_id] = tuple(map(tuple, blocks)), send.slots
            blocks = send.slots
        self._give_ranks(send, regions, blocks)
        if self._saved is not None and send.slots is not None:
            self._saved.keep(send.slots, send.grants)
            if not send.grants:
                del self._saves[request_id]
        elif send.grants and self.ranks.look_back_partly:
            send.blocks = tuple(map(tuple, blocks))
            self._read.keep(request_id, (block for group in held.blocks for block in group))

    def _give_ranks(self, send: _Send, regions: Mapping[int, Region | None], blocks: Sequence[Sequence[int]]) -> None:
        request_id = send.request.request_id
        for rank, region in regions.items():
            if region is None:
                return  # without an agent D has to compute
            info = self.ranks.info(rank)
            try:
                ranges = layouts.ranges(info.layout, info.groups, blocks)
                send.grants.append(self._grants.give(request_id, region, ranges, self._options.lease))
            except errors.Error as e:
                _logger.warning("dray: request %s: its blocks cannot be offered: %s", request_id, e)
                return

    def _take_back(self, send: _Send) -> None:
        for grant in send.grants:
            self._grants.end(grant)
        send.grants = []
        send.slots = send.blocks = None
        self._read.free(send.request.request_id)
        self._saves.pop(send.request.request_id, None)

    def finished(self, request: Request, blocks: Sequence[Sequence[int]]) -> tuple[bool, dict[str, Any] | None]:
        """The end of a request: (True if its blocks stay allocated, kv_transfer_params of the answer)."""
        if wants_prefill(request.kv_transfer_params) and request.request_id not in self._loads:
            # It ended before the scheduler looked at it: P shall get its blocks back.
            self._loads[request.request_id] = self._first_sight(request)
        self._end_load(request.request_id)
        send = self._prefills.pop(request.request_id, None)
        if send is None:
            return False, None
        if request.status.name in DELIVERED:
            if not all(grant.token for grant in send.grants):
                self._poll()
            if len(send.grants) == len(self.ranks) and all(grant.token and grant.how is None for grant in send.grants):
                return True, self._member.answer(request, self._offer(send, request, send.slots or send.blocks or blocks))
            why = next((str(grant.error) for grant in send.grants if grant.error), "its agent has not answered")
            _logger.warning("dray: request %s: its blocks are not offered, and D computes them: %s", request.request_id, why)
        self._take_back(send)
        return False, None

    def _offer(self, send: _Send, request: Request, blocks: Sequence[Sequence[int]]) -> dict[str, Any]:
        self._held[request.request_id] = send
        self._by_grant.update(dict.fromkeys(send.grants, request.request_id))
        offer = Offer(request.request_id, self._engine_id, self.ranks.layout, tuple(tuple(group) for group in blocks),
                      min(request.num_computed_tokens, request.num_prompt_tokens),
                      tuple(grant.token or "" for grant in send.grants))
        return offer_params(offer, self._client.segment, self._tp_size)

    def _end_load(self, request_id: str) -> None:
        """The request has ended, and nothing will be loaded for it any more."""
        load = self._loads.pop(request_id, None)
        if load is None:
            return
        if load.state is _State.ALLOCATED:
            del self._allocated[request_id]
            self._dropped.append(request_id)
        elif load.state is _State.STARTED:
            self._stops.append(request_id)
            self._loads[request_id] = load  # until the workers have reported its end
            load.over = True
            return
        self._end(load)

    # --- steps --------------------------------------------------------------------------------------

    def _poll(self, rest: float = 0.0, awaited: bool = True) -> None:
        for grant in self._grants.poll(rest, awaited):
            if self._saved is not None:
                self._saved.ended(grant)
            request_id = self._by_grant.pop(grant, None)
            if request_id is None:
                continue
            if grant.how in (EXPIRED, PEER_LOST, AGENT_LOST):
                _logger.warning("dray: request %s: the right to read its blocks has ended: %s", request_id, grant.how)
            send = self._held[request_id]
            if all(other.how is not None for other in send.grants):
                self._read.free(request_id)
                self._sent.append(request_id)

    def build_metadata(self, output: SchedulerOutput) -> StepMetadata:
        """What the workers have to do in this step."""
        active = [load for load in self._loads.values() if load.state is not _State.DONE]
        moved = len(active) + len(self._held) + len(self._lent)
        asks = any(load.asks() for load in self._allocated.values())
        rest = self._rest.seconds(output.total_num_scheduled_tokens, moved, asks, session_reports_end=True)
        by_workers = not asks and any(load.moving for load in active)
        self._poll(0.0 if by_workers else rest, moved > 0)
        metadata = StepMetadata(can_lend=self._manager is not None, rest=rest if by_workers else 0.0)
        if self._prefills:
            self._follow(output)
        if active:
            now = time.monotonic()
            for load in active:
                load.keep(now)
            for load in list(self._allocated.values()):
                if self._start(load, now, metadata):
                    del self._allocated[load.request_id]
        metadata.stops, self._stops = self._stops, []
        metadata.dropped, self._dropped = self._dropped, []
        metadata.sent, self._sent = self._sent, []
        metadata.saves, self._saves = self._saves, {}
        return metadata

    def _follow(self, output: SchedulerOutput) -> None:
        for request_id in output.preempted_req_ids or ():
            if request_id in self._prefills:
                self._take_back(self._prefills[request_id])
        for request_id, n in output.num_scheduled_tokens.items():
            send = self._prefills.get(request_id)
            if send is not None and not send.grants and send.request.num_computed_tokens + n >= send.request.num_prompt_tokens:
                self._give(send)

    def take_output(self, output: KVConnectorOutput) -> None:
        """What the workers have reported, before the engine acts on it."""
        metadata = output.kv_connector_worker_meta
        if isinstance(metadata, WorkerMetadata):
            if metadata.ranks:
                self.ranks.add(metadata.ranks.values())
            self._take_lent(metadata.lent, metadata.returned)
        for request_id in output.finished_recving or ():
            load = self._loads.get(request_id)
            if load is not None:
                if load is load.rights.first:
                    load.rights.failed = request_id in (output.failed_recving or ())
                self._end(load)
                if load.over:
                    del self._loads[request_id]
        for request_id in output.finished_sending or ():
            self._held.pop(request_id, None)

    def _take_lent(self, lent: Mapping[str, int], returned: Mapping[str, int]) -> None:
        """Keeps blocks allocated that D's agent may still write, although their request goes on without them."""
        for request_id, n in lent.items():
            self._returns[request_id] = self._returns.get(request_id, 0) + n
            load = self._loads.get(request_id)
            if load is None or request_id in self._lent:
                continue
            assert load.allocated is not None
            self._lent.keep(request_id, (block for group in load.allocated.blocks for block in group))
        for request_id, n in returned.items():
            left = self._returns.get(request_id, 0) - n
            if left > 0:
                self._returns[request_id] = left
                continue
            self._returns.pop(request_id, None)
            self._lent.free(request_id)

    @property
    def busy(self) -> bool:
        """True while the engine has to go on stepping, although no request needs it."""
        return len(self._lent) > 0 or self._grants.busy or not self.ranks.complete

    @property
    def idle(self) -> bool:
        """True if nothing is kept for any request; for tests."""
        return not (self._loads or self._rights or self._allocated or self._prefills or self._held or self._by_grant or self._returns
                    or len(self._lent) or len(self._read) or len(self._grants)
                    or self._saved is not None and not self._saved.idle)

    def close(self) -> None:
        """Ends the session, and with it all rights."""
        self._client.close()
