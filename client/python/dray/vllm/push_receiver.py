# SPDX-License-Identifier: Apache-2.0
"""The scheduler side of D in mode 'push': lends blocks to P, announces them, and learns that they are written.

When the engine has allocated a request's blocks, D leases them for writing and posts an announcement to
the mailbox of P's engine. P's transfers notify D. A request is in one of these states:

    MATCHED    not allocated: D has lent nothing
    LENDING    the agent is away, or has not answered with all rights yet
    ANNOUNCED  P may write
    DONE       the engine has been told, exactly once, how the load ended

At the end of a load the rights are ended, whatever happened. The blocks stay allocated, by references of
the connector's own, until the agent has said that nobody can write them any more.
"""

from __future__ import annotations

import enum
import logging
import secrets
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from .. import errors
from ..client import Client
from ..events import Notification
from ..pending import Pending
from . import layout as layouts
from . import letters
from .grants import AGENT_LOST, USED, Grant, Grants
from .kept import Kept
from .letters import Announcement, Refusal, Withdrawal
from .options import Options
from .protocol import Arrival, Loaded, StepMetadata, Target, offered_tokens, read_target, wants_prefill
from .ranks import Ranks

if TYPE_CHECKING:
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.request import Request

__all__ = ["Receiver"]

_logger = logging.getLogger("vllm.dray")
_AGENTS_MAX = 256  # ids of other engines' agents that are remembered
_USED_MAX = 1024  # transfers that are remembered after their requests
_OPENING = 3.0  # seconds until an engine whose agent was restarted has opened its mailbox again, after its own request has come
_PAUSE = 0.1  # seconds until a letter is posted again that met no mailbox
_MARGIN = 5.0  # seconds that a right outlives the deadline, at which this side ends it


class _State(enum.Enum):
    MATCHED = enum.auto()
    LENDING = enum.auto()
    ANNOUNCED = enum.auto()
    DONE = enum.auto()


class _Transfer:
    """A transfer of P, for all requests that come with it: P writes once, and vLLM makes a request for each of `n` samples, all with the same parameters.

    users: requests that may still load. loader: the one that does; the others wait for it, because they find its whole blocks in the engine's cache.
    used: P writes for no other request. error: why the load has failed, and those of the others fail.
    """

    __slots__ = ("error", "loader", "used", "users")

    def __init__(self) -> None:
        self.users: set[str] = set()
        self.loader: _Load | None = None
        self.used = False
        self.error: errors.Error | None = None


class _Load:
    """A request of D. target: None if its parameters were refused; error says why."""

    def __init__(self, request_id: str) -> None:
        self.request_id, self.state = request_id, _State.MATCHED
        self.transfer = _Transfer()
        self.target: Target | None = None
        self.error: errors.Error | None = None
        self.first = self.end = 0
        self.began = self.ends = 0.0
        self.opening = 0.0  # until then P's mailbox may be missing
        self.losses = 0  # of the session, before
        self.blocks: KVCacheBlocks | None = None
        self.tag = 0  # of the announcement
        self.grants: list[Grant] = []  # in the order of the ranks
        self.left = 0  # of these, which have to end before the blocks are free
        self.unposted: list[bytes] = []
        self.posts: list[tuple[bytes, Pending[None]]] = []
        self.pause = 0.0  # time before which nothing is posted
        self.arrived: dict[tuple[int, int], list[Arrival]] = {}  # by ranks of P and D

    def complete(self) -> bool:
        """True if all bytes are in place."""
        pairs = next(iter(self.arrived.values()))[0].pairs if self.arrived else 0
        return 0 < pairs == sum(_whole(pair) for pair in self.arrived.values())

    def bytes(self) -> dict[int, int]:
        """What came, by rank of D."""
        out: dict[int, int] = {}
        for (_, rank), pair in self.arrived.items():
            out[rank] = out.get(rank, 0) + sum(one.size for one in pair)
        return out


def _whole(pair: list[Arrival]) -> bool:
    """True if all notifications of a pair of ranks have come."""
    return any(one.last and one.number + 1 == len(pair) for one in pair)


class Receiver:
    """D's part of a scheduler side. post: to another engine's mailbox."""

    def __init__(self, options: Options, client: Client, grants: Grants, ranks: Ranks, mailbox: str,
                 post: Callable[[str, str, bytes], Pending[None]]) -> None:
        self._options, self._client, self._grants, self._ranks = options, client, grants, ranks
        self._mailbox, self._post = mailbox, post
        self._loads: dict[str, _Load] = {}
        self._waiting: dict[str, _Load] = {}  # LENDING and ANNOUNCED
        self._by_tag: dict[int, _Load] = {}
        self._ending: dict[Grant, _Load] = {}  # rights whose end the agent has not confirmed
        self._dropped: list[str] = []
        self._agents: dict[tuple[str, str], bytes] = {}  # of other engines, by segment and engine id
        self._transfers: dict[Target, _Transfer] = {}  # of requests that may still load
        self._used: dict[Target, _Transfer] = {}  # the last other ones
        self.kept = Kept()

    # --- hooks --------------------------------------------------------------------------------------

    def match(self, request: Request, num_computed_tokens: int) -> tuple[int | None, bool]:
        """How many tokens behind the computed ones P is asked for; None: the engine asks again in the next step."""
        load = self._loads.get(request.request_id)
        if load is None:
            load = self._loads[request.request_id] = self._first_sight(request)
        transfer = load.transfer
        if load.state is _State.MATCHED and transfer.loader is not None:
            return None, False
        if load.state is not _State.MATCHED or transfer.used and transfer.error is None:
            return 0, False
        load.first, load.end = num_computed_tokens, self._ranks.wanted(request.num_prompt_tokens)
        count = load.end - load.first
        return (count, True) if count > 0 else (0, False)

    def _first_sight(self, request: Request) -> _Load:
        load, params = _Load(request.request_id), request.kv_transfer_params or {}
        load.losses = self._ranks.losses()
        try:
            load.target = read_target(params)
        except errors.Error as e:
            load.error = e
        else:
            load.transfer = self._transfers.get(load.target) or self._used.pop(load.target, None) or load.transfer
            self._transfers[load.target] = load.transfer
            load.transfer.users.add(load.request_id)
        for token in offered_tokens(params):  # of a P in mode 'pull', which gets its blocks back
            try:
                self._grants.acquire(token, request.request_id).release()
            except errors.Error:
                pass  # it is no right
        return load

    def allocated(self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int) -> None:
        """The engine has decided how many tokens are loaded, and into which blocks."""
        load = self._loads.get(request.request_id)
        if load is None or load.state is not _State.MATCHED:
            return
        if num_external_tokens <= 0:
            self._leave(load)
            return
        transfer = load.transfer
        if not transfer.used:
            transfer.used, transfer.loader = True, load
        load.error = load.error or transfer.error
        load.state, load.blocks = _State.LENDING, blocks
        load.end = load.first + num_external_tokens
        load.began = time.monotonic()
        load.ends = load.began + self._options.deadline
        self._waiting[load.request_id] = load
        self._lend(load)

    def _lend(self, load: _Load) -> None:
        """Lends what P is to write, the blocks behind those that are cached here, as soon as the agent is there."""
        load.error = load.error or self._ranks.missing(load.losses)
        if load.error is not None or load.grants or not self._ranks.present:
            return
        try:
            self._start_to_lend(load)
        except errors.Error as e:
            load.error = e

    def _start_to_lend(self, load: _Load) -> None:
        assert load.target is not None and load.blocks is not None
        self.kept.check()
        agent = load.target.agent or self._agents.get((load.target.segment, load.target.engine_id))
        ids = load.blocks.get_block_ids()
        for rank in range(len(self._ranks)):
            region = self._ranks.region(rank)
            if region is None:
                raise errors.SessionClosed(f"the agent at {self._client.path} does not have the KV cache of rank {rank}")
            info = self._ranks.info(rank)
            wanted = [group[load.first // of.tokens:] for group, of in zip(ids, info.groups, strict=True)]
            ranges = layouts.ranges(info.layout, info.groups, wanted)
            load.grants.append(self._grants.give(load.request_id, region, ranges, self._options.deadline + _MARGIN, "w", agent, load=load))

    def finished(self, request: Request) -> None:
        """The request has ended; nothing is loaded for it any more."""
        load = self._loads.pop(request.request_id, None)
        if load is None:
            if not wants_prefill(request.kv_transfer_params):
                return
            load = self._first_sight(request)  # it ended before the scheduler looked at it
        elif load.request_id in self._waiting:
            self._end(load)
            self._withdraw(load)
            self._dropped.append(load.request_id)
        self._leave(load)

    def received(self, request_ids: Iterable[str]) -> None:
        """The engine hears how these loads have ended."""
        for request_id in request_ids:
            if load := self._loads.get(request_id):
                self._leave(load)

    def step(self, metadata: StepMetadata) -> None:
        """Goes on with all loads that wait; tells the workers which have ended."""
        now = time.monotonic()
        for load in list(self._waiting.values()):
            if load.state is _State.LENDING:
                self._lend(load)
            error = load.error or self._broken(load, now)
            if error is None and load.complete():
                self._end(load)
                metadata.loaded[load.request_id] = Loaded(load.bytes(), load.end - load.first, now - load.began)
                continue
            if error is None:
                error = self._announce(load, now)
            if error is not None:
                metadata.failed[load.request_id] = str(error)
                load.transfer.error = error.with_traceback(None)
                self._end(load)
                if load.transfer.loader is load:
                    self._withdraw(load)
        metadata.dropped += self._dropped
        self._dropped.clear()

    # --- a load -------------------------------------------------------------------------------------

    def _broken(self, load: _Load, now: float) -> errors.Error | None:
        for grant in load.grants:
            if grant.error is not None:
                return grant.error
            if grant.how == AGENT_LOST:
                return errors.SessionClosed(f"the session with the agent at {self._client.path} was lost")
            if grant.how is not None and not load.complete():
                return errors.PeerLost("the other engine has given the transfer up" if grant.how == USED else
                                       f"the other engine's right to write the blocks has ended: {grant.how}")
        if now >= load.ends:
            return next((grant.limit for grant in load.grants if grant.limit and not grant.token), None) or \
                errors.Deadline(f"the other engine has not written the blocks within {self._options.deadline:g} s")
        return None

    def _announce(self, load: _Load, now: float) -> errors.Error | None:
        """Posts the announcement, as far as the other agent takes it. Returns why that failed for good."""
        assert load.target is not None
        if load.state is _State.LENDING:
            if not load.grants or not all(grant.token for grant in load.grants):
                return None
            load.state = _State.ANNOUNCED
            load.opening = now + _OPENING
            try:
                load.unposted = letters.write(self._announcement(load, load.target, now))
            except errors.Error as e:
                return e
        for letter, post in load.posts:
            if post.done() and (error := post.error()) is not None:
                if isinstance(error, errors.NotFound) and now < load.opening:
                    load.pause = now + _PAUSE
                elif not isinstance(error, (errors.MailboxFull, errors.Busy)):
                    return self._explained(load.target, error)
                load.unposted.append(letter)
        load.posts = [(letter, post) for letter, post in load.posts if not post.done()]
        while load.unposted and now >= load.pause:
            try:
                load.posts.append((load.unposted[-1], self._post(
                    load.target.segment, letters.mailbox_name(load.target.engine_id), load.unposted[-1])))
            except errors.Busy:
                return None
            except errors.Error as e:
                return e
            load.unposted.pop()
        return None

    def _announcement(self, load: _Load, target: Target, now: float) -> Announcement:
        assert load.blocks is not None
        load.tag = secrets.randbits(63)
        self._by_tag[load.tag] = load
        return Announcement(
            target.transfer_id, self._client.segment, self._mailbox, load.tag, tuple(grant.token or "" for grant in load.grants),
            self._ranks.layout.to_json(), tuple(tuple(group) for group in load.blocks.get_block_ids()), load.first, load.end,
            load.ends - now, self._options.transport)

    @staticmethod
    def _explained(target: Target, error: errors.Error) -> errors.Error:
        if isinstance(error, errors.NotFound):
            return errors.NotFound(
                f"the agent at {target.segment} has had no mailbox of engine {target.engine_id!r} for {_OPENING:g} s: either this "
                "engine does not run in mode 'push' there, or it has had no request since its agent was restarted",
                fix="Set the option 'mode' to the same value at both engines, let the router send P's request at the same time as "
                    "D's, and see `drayctl mailboxes` there.")
        if isinstance(error, errors.Denied):
            return errors.Denied(f"the agent at {target.segment} has no key, and takes no announcements of other agents",
                                 fix="Give both agents the same key (option 'key_file', or peer.key_file of drayd).")
        return error

    def _end(self, load: _Load) -> None:
        """Ends a load and its rights; the blocks stay allocated until nobody can write them."""
        load.state = _State.DONE
        del self._waiting[load.request_id]
        self._by_tag.pop(load.tag, None)
        load.unposted, load.posts = [], []
        load.left = sum(grant.how is None for grant in load.grants)
        if load.left and load.blocks is not None:
            self.kept.keep(load, (block for group in load.blocks.blocks for block in group))
            for grant in load.grants:
                if grant.how is None:
                    self._ending[grant] = load
                    self._grants.end(grant)
        load.blocks = None

    def _leave(self, load: _Load) -> None:
        """Nothing is loaded for a request, or no longer. The last request of a transfer that none has loaded withdraws it."""
        load.state, transfer, target = _State.DONE, load.transfer, load.target
        if load.request_id not in transfer.users:
            return
        transfer.users.remove(load.request_id)
        if transfer.loader is load:
            transfer.loader = None
        if transfer.users or target is None:
            return
        if not transfer.used:
            transfer.used = True
            self._withdraw(load)
        while len(self._used) >= _USED_MAX:
            self._used.pop(next(iter(self._used)))
        self._used[target] = self._transfers.pop(target)

    def _withdraw(self, load: _Load) -> None:
        """Tells P that it keeps blocks for nobody. If the letter is lost, P finds out by the rights, or when they expire."""
        if load.target is None:
            return
        try:
            for letter in letters.write(Withdrawal(load.target.transfer_id, load.tag)):
                self._post(load.target.segment, letters.mailbox_name(load.target.engine_id), letter)
        except errors.Error as e:
            _logger.debug("dray: request %s: %s", load.request_id, e)

    # --- what comes from elsewhere ------------------------------------------------------------------

    def ended(self, grant: Grant) -> None:
        """A right has ended."""
        load = self._ending.pop(grant, None)
        if load is not None:
            load.left -= 1
            if not load.left:
                self.kept.free(load)

    def notified(self, event: Notification) -> None:
        """P has written something."""
        load, arrival = self._by_tag.get(event.tag), Arrival.unpack(event.payload)
        if load is None or arrival is None:
            return
        load.arrived.setdefault((arrival.from_rank, arrival.to_rank), []).append(arrival)
        if load.target is not None and arrival.last:
            while len(self._agents) >= _AGENTS_MAX:
                self._agents.pop(next(iter(self._agents)))
            self._agents[load.target.segment, load.target.engine_id] = event.agent_id

    def refused(self, refusal: Refusal) -> None:
        """P does not write."""
        load = self._by_tag.get(refusal.tag)
        if load is not None and load.target is not None:
            self._agents.pop((load.target.segment, load.target.engine_id), None)
            load.error = load.error or errors.BY_NAME.get(refusal.error, errors.Error)(
                f"the other engine does not write the blocks: {refusal.message}", fix="")

    @property
    def waiting(self) -> int:
        """Loads that have not ended, and rights whose end the agent has not confirmed."""
        return len(self._waiting) + len(self._ending)

    @property
    def busy(self) -> bool:
        """True while answers are to be taken, although no request needs them."""
        return bool(self._ending)

    @property
    def idle(self) -> bool:
        """True if nothing is kept for any request; for tests."""
        return not (self._loads or self._transfers or self._waiting or self._by_tag or self._ending or self._dropped or len(self.kept))
