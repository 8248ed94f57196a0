# SPDX-License-Identifier: Apache-2.0
"""The scheduler side of P in mode 'push': which chunks are written to D, and when a request's blocks are free.

The router gives one transfer id to P's request and to D's. An announcement of D counts only with the id
of a request that P has, and once. It may come before the request, while it is computed, or after it has
finished. From then on each step's complete blocks go to the workers. All blocks that the agent may still
read, or that D has not announced yet, stay allocated by references of the connector's own: so neither
the end, an abort nor a preemption of the request gives them to another one too early.
"""

from __future__ import annotations

import itertools
import logging
import math
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from .. import errors
from ..client import Client
from ..pending import Pending
from . import layout as layouts
from . import letters
from .grants import Grants, Hold
from .kept import Kept
from .layout import EngineLayout, Group
from .letters import Announcement, Refusal, Withdrawal
from .options import Options
from .protocol import DELIVERED, Push, PushTarget, StepMetadata, push_params
from .ranks import Peers, Ranks

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.request import Request

__all__ = ["Sender"]

_logger = logging.getLogger("vllm.dray")
_ID_MIN, _ID_MAX = 16, 256  # characters of a transfer id
_USED_MAX = 4096  # transfer ids that are remembered after their transfer
_EARLY_MAX = 1024  # announcements that came before their request


class _Send:
    """A request of P. announced: D's announcement, with the time at which D gives up.

    pushed: tokens before this one were given to the workers. chunks: reports of ranks that are missing, by
    number. blocks: of a computed prompt, as numbers and as the engine's objects, which are kept. expires: of
    a finished request without an announcement. over: no further chunk is given to the workers. failed: D has
    been told so. losses: of the session, before the request came.
    """

    def __init__(self, key: int, request: Request, transfer_id: str, losses: int) -> None:
        self.key, self.request, self.transfer_id, self.losses = key, request, transfer_id, losses
        self.announced: Announcement | None = None
        self.layout: EngineLayout | None = None
        self.pairs = 0
        self.holds: dict[int, Hold] = {}  # by rank of D
        self.ends = self.expires = math.inf
        self.pushed = self.numbers = 0
        self.chunks: dict[int, int] = {}
        self.blocks: tuple[Sequence[Sequence[int]], Sequence[Sequence[Any]]] | None = None
        self.finished = self.over = self.failed = False

    def release(self) -> None:
        for hold in self.holds.values():
            hold.release()
        self.holds.clear()


class Sender:
    """P's part of a scheduler side. post: to another engine's mailbox."""

    def __init__(self, options: Options, client: Client, grants: Grants, ranks: Ranks, engine_id: str, tp_size: int,
                 post: Callable[[str, str, bytes], Pending[None]]) -> None:
        self._options, self._client, self._grants, self._ranks = options, client, grants, ranks
        self._engine_id, self._tp_size, self._post = engine_id, tp_size, post
        self._peers = Peers(self._pairs)
        self._keys = itertools.count(1)
        self._sends: dict[int, _Send] = {}
        self._running: dict[str, _Send] = {}  # of requests that have not finished
        self._by_transfer: dict[str, _Send] = {}
        self._used: OrderedDict[str, None] = OrderedDict()
        self._early: dict[str, tuple[Announcement, float]] = {}  # with the time at which D gives up
        self._stops: list[int] = []
        self.kept = Kept()

    def forget_peers(self) -> None:
        """This engine's own layout has changed."""
        self._peers.forget()

    def _pairs(self, other: EngineLayout) -> int:
        """How many pairs of a rank here and a rank of another engine have something to write. errors.Unsupported."""
        local = self._ranks.layout
        other.check(local)  # from D's view, because D reports it
        return sum(len(layouts.make_push_plan(rank.rank, local, other).ranks) for rank in local.ranks)

    # --- requests -----------------------------------------------------------------------------------

    def expect(self, request: Request) -> None:
        """A new request whose blocks another engine wants."""
        if request.request_id in self._running:
            return
        losses = self._ranks.losses()  # first, because it reads letters, which may use up transfer ids
        try:
            self.kept.check()
            transfer_id = self._transfer_id((request.kv_transfer_params or {}).get("transfer_id"))
        except errors.Error as e:
            _logger.warning("dray: request %s: its blocks are not sent, and D computes them: %s", request.request_id, e)
            return
        send = _Send(next(self._keys), request, transfer_id, losses)
        self._sends[send.key] = self._running[request.request_id] = self._by_transfer[transfer_id] = send
        early = self._early.pop(transfer_id, None)
        if early is not None:
            self._accept(send, *early)

    def waits(self, request_id: str) -> bool:
        """True while a request waits for the agent of an idle engine that was restarted.

        Without the agent D cannot reach the mailbox, and an engine that has computed all its requests does not go on stepping
        until the mailbox is open.
        """
        send = self._running.get(request_id)
        return send is not None and not send.over and self._ranks.awaited(send.losses, self._options.deadline)

    def _transfer_id(self, given: Any) -> str:
        """The transfer id of a new request; a fresh one if the router has given none."""
        if given is None:
            return secrets.token_hex(16)
        if not isinstance(given, str) or not _ID_MIN <= len(given) <= _ID_MAX:
            raise errors.Invalid(
                f"transfer_id is {given!r:.40}, and others could guess it" if isinstance(given, str) and len(given) < _ID_MIN else
                f"transfer_id is a {type(given).__name__}, or longer than {_ID_MAX} characters",
                fix=f"Let the router make a random text of {_ID_MIN} characters or more for each request.")
        if given in self._by_transfer or given in self._used:
            raise errors.TokenUsed("another request has used its transfer_id", fix="Let the router make a new one for each request.")
        return given

    def finished(self, request: Request, blocks: Sequence[Sequence[int]]) -> dict[str, Any] | None:
        """The end of a request; kv_transfer_params of the answer."""
        send = self._running.pop(request.request_id, None)
        if send is None:
            return None
        if request.status.name not in DELIVERED:
            self._give_up(send, errors.Cancelled("the request has ended before its prompt was computed"))
            self._tidy(send)
            return None
        if not send.over:
            send.finished = True
            send.expires = time.monotonic() + self._options.lease
            if send.blocks is None:
                self._keep(send, blocks, self._objects(send))
        self._tidy(send)
        return push_params(self._engine_id, request.request_id, send.transfer_id, self._client.segment, self._client.agent_id,
                           self._tp_size)

    def _keep(self, send: _Send, blocks: Sequence[Sequence[int]], objects: Sequence[Sequence[Any]]) -> None:
        send.blocks = blocks, objects
        self.kept.keep(send.key, (block for _, block in self._part(objects, send.pushed, self._end(send))))

    def _objects(self, send: _Send) -> Sequence[Sequence[Any]]:
        """The engine's objects of the blocks that a request has."""
        found: Sequence[Sequence[Any]] = self.kept.kv_cache_manager.get_blocks(send.request.request_id).blocks
        return found

    @staticmethod
    def _end(send: _Send) -> int:
        """The token behind the last one that is written."""
        return send.announced.end if send.announced is not None else send.request.num_prompt_tokens

    def _part(self, blocks: Sequence[Sequence[Any]], first: int, end: int) -> Iterator[tuple[Group, Any]]:
        """Those blocks of each group that hold tokens [first, end)."""
        for group, of in zip(self._ranks.layout.groups, blocks, strict=True):
            for block in of[first // group.tokens:-(-end // group.tokens)]:
                yield group, block

    # --- announcements ------------------------------------------------------------------------------

    def announced(self, announcement: Announcement) -> None:
        """D has announced blocks."""
        ends = time.monotonic() + announcement.seconds
        send = self._by_transfer.get(announcement.transfer_id)
        if announcement.transfer_id in self._used or announcement.transfer_id in self._early or \
                send is not None and send.announced is not None:
            self._refuse(announcement, errors.TokenUsed("its transfer_id has been used, or has expired", fix="Let the router make a new one."))
        elif send is not None:
            self._accept(send, announcement, ends)
        elif len(self._early) >= _EARLY_MAX:
            self._refuse(announcement, errors.Busy(f"{_EARLY_MAX} announcements wait for their requests"))
        else:
            self._early[announcement.transfer_id] = announcement, ends

    def _accept(self, send: _Send, announcement: Announcement, ends: float) -> None:
        send.announced, send.ends = announcement, ends
        send.pushed = announcement.first
        try:
            send.layout, send.pairs = self._peers.check(announcement.layout)
            if announcement.end > send.request.num_prompt_tokens or len(announcement.blocks) != len(send.layout.groups) or \
                    len(announcement.tokens) != len(send.layout.ranks):
                raise errors.Invalid(
                    f"{announcement.end} tokens are wanted of a prompt of {send.request.num_prompt_tokens}, with "
                    f"{len(announcement.blocks)} groups of blocks and {len(announcement.tokens)} rights",
                    fix="Let the router send the same prompt to both engines.")
            for rank, token in zip(send.layout.ranks, announcement.tokens, strict=True):
                send.holds[rank.rank] = self._grants.acquire(token, send.request.request_id, load=send)
        except errors.Error as e:
            self._give_up(send, e)
            self._tidy(send)

    def withdrawn(self, withdrawal: Withdrawal) -> None:
        """D does not want the blocks."""
        send = self._by_transfer.get(withdrawal.transfer_id)
        early = self._early.get(withdrawal.transfer_id)
        known = send.announced if send is not None else early[0] if early is not None else None
        if known is not None and known.tag != withdrawal.tag:
            return  # another request with the same id, which was refused
        self._early.pop(withdrawal.transfer_id, None)
        if send is None:
            self._use_up(withdrawal.transfer_id)
        else:
            self._give_up(send, None)
            self._tidy(send)

    def lost(self) -> None:
        """The session with the agent was lost: announcements of blocks that are kept have failed, or will."""
        for send in list(self._sends.values()):
            if send.finished and not send.over:
                self._give_up(send, errors.SessionClosed("the session with the agent was lost"))
                self._tidy(send)

    def _refuse(self, announcement: Announcement, error: errors.Error) -> None:
        _logger.warning("dray: an announcement of blocks by %s is refused: %s", announcement.mailbox, error)
        try:
            for letter in letters.write(Refusal(announcement.tag, error.name, str(error).partition(": ")[2])):
                self._post(announcement.segment, announcement.mailbox, letter)
        except errors.Error as e:
            _logger.debug("dray: %s cannot be told: %s", announcement.mailbox, e)

    # --- steps --------------------------------------------------------------------------------------

    def step(self, output: SchedulerOutput, metadata: StepMetadata) -> None:
        """Gives the workers what is complete after this step."""
        now = time.monotonic() if self._sends or self._early else 0.0
        for send in list(self._sends.values()):
            if not send.over:
                error = self._broken(send, now)
                scheduled = output.num_scheduled_tokens.get(send.request.request_id, 0)
                if error is not None:
                    self._give_up(send, error)
                elif send.announced is not None:
                    self._push(send, scheduled, now, metadata)
                if self._ranks.look_back_partly and not send.over and not send.finished:
                    self._follow(send, scheduled, output.preempted_req_ids or ())
            self._tidy(send)
        for transfer_id in [known for known, (_, ends) in self._early.items() if now >= ends]:
            del self._early[transfer_id]
        metadata.push_stops += self._stops
        self._stops.clear()

    def _follow(self, send: _Send, scheduled: int, preempted: Collection[str]) -> None:
        """Keeps the blocks of a prompt that this step completes, because the engine gives up some of them that D needs before the request has finished."""
        request = send.request
        if send.blocks is not None and (request.request_id in preempted or request.status.name != "RUNNING"):
            send.blocks = None
            self.kept.free(send.key)
        if send.blocks is None and request.status.name == "RUNNING" and request.num_computed_tokens + scheduled >= request.num_prompt_tokens:
            held = self.kept.kv_cache_manager.get_blocks(request.request_id)
            self._keep(send, held.get_block_ids(), [list(group) for group in held.blocks])

    def _broken(self, send: _Send, now: float) -> errors.Error | None:
        for hold in send.holds.values():
            if hold.lost is not None:
                return hold.lost
        if send.announced is None:
            if now >= send.expires:
                return errors.TokenExpired(f"no engine has asked for its blocks within {self._options.lease:g} s")
        elif now >= send.ends:
            return errors.Deadline("the other engine does not wait for the blocks any longer")
        return None

    def _push(self, send: _Send, scheduled: int, now: float, metadata: StepMetadata) -> None:
        assert send.announced is not None and send.layout is not None
        if send.blocks is None and send.request.status.name != "RUNNING":
            return  # its blocks are not computed, or were given to others
        end, last = self._complete(send, scheduled)
        if end <= send.pushed and not last or not self._ranks.present or not all(hold.remote for hold in send.holds.values()):
            return
        target = None
        if not send.numbers:
            try:
                self._check_transport(send)
                remotes = {rank: hold.remote.agent_handle for rank, hold in send.holds.items() if hold.remote is not None}
            except errors.Error as e:
                self._give_up(send, e)
                return
            target = PushTarget(send.request.request_id, self._ranks.layout, send.layout, send.announced.blocks, remotes,
                                send.announced.tag, send.pairs, send.ends - now)
        ids, objects = send.blocks or (self.kept.kv_cache_manager.get_block_ids(send.request.request_id), self._objects(send))
        self.kept.keep((send.key, send.numbers), (block for _, block in self._part(objects, send.pushed, end)))
        metadata.pushes.append(Push(send.key, send.numbers, tuple(tuple(group) for group in ids), send.pushed, end, last, target))
        send.chunks[send.numbers] = len(self._ranks)
        send.numbers += 1
        send.pushed, send.over = end, last

    def _complete(self, send: _Send, scheduled: int) -> tuple[int, bool]:
        """(the token behind the last one that can be written after this step, whether that is the end)."""
        end = self._end(send)
        computed = end if send.blocks is not None else send.request.num_computed_tokens + scheduled
        if computed >= end:
            return end, True
        unit = math.lcm(*(group.tokens for group in self._ranks.layout.groups))
        return computed // unit * unit, False

    def _check_transport(self, send: _Send) -> None:
        assert send.announced is not None
        for where, wanted in (("here", self._options.transport), ("at the other engine", send.announced.transport)):
            for rank, hold in send.holds.items():
                if wanted != "auto" and hold.remote is not None and hold.remote.transport != wanted:
                    raise errors.Unsupported(
                        f"option 'transport' is {wanted!r} {where}, and rank {rank} of D is reached over {hold.remote.transport}",
                        fix="Set transport to 'auto', or see `drayctl rails` and `drayctl peers` at both agents.")

    def reported(self, key: int, number: int, ranks: int) -> None:
        """The agents of some ranks do not read the blocks of a chunk any more."""
        send = self._sends.get(key)
        if send is None or number not in send.chunks:
            return
        send.chunks[number] -= ranks
        if send.chunks[number] <= 0:
            del send.chunks[number]
            self.kept.free((key, number))
            self._tidy(send)

    def failed(self, key: int, reason: str) -> None:
        """A rank could not write."""
        send = self._sends.get(key)
        if send is not None:
            name, _, message = reason.partition(": ")
            self._give_up(send, errors.BY_NAME.get(name, errors.Error)(message, fix=""))
            self._tidy(send)

    def _give_up(self, send: _Send, error: errors.Error | None) -> None:
        """Nothing more is written. error: why, for D; None: D knows."""
        if send.failed:
            return
        send.over = send.failed = True
        if send.numbers:
            self._stops.append(send.key)
        if error is not None and send.announced is not None:
            self._refuse(send.announced, error)
        elif error is not None:
            _logger.warning("dray: request %s: its blocks are not sent: %s", send.request.request_id, error)

    def _tidy(self, send: _Send) -> None:
        """Lets go of what a transfer does not need any more."""
        if not send.over or send.key not in self._sends:
            return
        self.kept.free(send.key)
        if send.chunks:
            return
        send.release()
        if self._by_transfer.get(send.transfer_id) is send:
            del self._by_transfer[send.transfer_id]
            self._use_up(send.transfer_id)
        if send.request.request_id not in self._running:
            del self._sends[send.key]

    def _use_up(self, transfer_id: str) -> None:
        while len(self._used) >= _USED_MAX:
            self._used.popitem(last=False)
        self._used[transfer_id] = None

    @property
    def kept_requests(self) -> int:
        """Finished requests whose blocks are kept."""
        return len(self._sends) - len(self._running)

    @property
    def writing(self) -> bool:
        """True while the workers have chunks whose end they have not reported."""
        return any(send.chunks for send in self._sends.values())

    @property
    def busy(self) -> bool:
        """True while blocks of finished requests are kept."""
        return self.kept_requests > 0

    @property
    def idle(self) -> bool:
        """True if nothing is kept for any request; for tests."""
        return not (self._sends or self._running or self._by_transfer or self._early or self._stops or len(self.kept))
