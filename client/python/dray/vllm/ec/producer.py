# SPDX-License-Identifier: Apache-2.0
"""The scheduler side of an engine that encodes: each request gets places for its outputs and a right on them, before it is scheduled.

A request is in one of these states.

    ROOM     waits for room in the pool, or for the agent's answer about its right. The engine does not schedule it yet.
    OPEN     may be scheduled; its worker stores outputs in their places when they are computed
    HELD     finished, and its outputs may be read; until the right has ended
    CLOSING  ended without an offer; until the right has ended

Outputs stay in the pool when their rights have ended, so that the next request with the same image needs no copy. They are
evicted when others need the room.
"""

from __future__ import annotations

import logging
import os
import time
from typing import TYPE_CHECKING, Any

from ... import errors
from ...client import Client
from ...events import Disconnected, Notification
from ...handles import Region
from ..grants import AGENT_LOST, EXPIRED, PEER_LOST, Grant, Grants
from ..options import Options
from ..protocol import DELIVERED
from ..rest import Rest
from .door import Door
from .pieces import TAG, Handout, Progress, encoder_window, piece_of
from .pool import Item, Pool, Shape
from .pool_memory import PoolMemory
from .pool_rights import TAG as INTRODUCTION, PoolExports
from .protocol import Offer, Offered, Place, PoolName, StepMetadata, consumers, offer_params
from .secret import Secret
from .writer import Send, State, Writer

if TYPE_CHECKING:
    from collections.abc import Callable

    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.request import Request

__all__ = ["ProducerSide"]

_logger = logging.getLogger("vllm.dray")
_AGENT_SECONDS = 1.0  # for which a request waits for an agent that is not there, or does not answer


class _Send(Send):
    """A request.

    silent: the agent has not answered in time about its right, which is ended as soon as it answers.
    """

    __slots__ = ("asked", "consumers", "grant", "lost", "silent")

    def __init__(self, request_id: str, shapes: dict[str, Shape], wanted: int, now: float) -> None:
        super().__init__(request_id, shapes, now)
        self.consumers = wanted
        self.grant: Grant | None = None
        self.asked = 0.0
        self.lost = 0.0  # since when the agent has not been there
        self.silent = False


class ProducerSide(Writer[_Send]):
    """secret: by which offers are proved to consumers; None: they are not."""

    def __init__(self, options: Options, client: Client, region: Region, memory: PoolMemory, pool: Pool, engine_id: str,
                 model: dict[str, str], rest: Rest, *, width: Callable[[str], int], itemsize: int, secret: Secret | None) -> None:
        super().__init__(client, region, memory, pool, rest, width=width, itemsize=itemsize)
        self._options, self._engine_id, self._model, self._secret = options, engine_id, model, secret
        self._silent = 0  # rights about which the agent has not answered in time
        self._grants = Grants(client)
        self._grants.on_event = self._on_event
        self._by_grant: dict[Grant, _Send] = {}
        self._handouts: dict[bytes, Handout] = {}  # of outputs that move in pieces, by nonce
        self._done: list[bytes] = []  # of these that the worker is to give up
        pool.vacate = memory.vacate
        self._door = Door(memory.memory) if memory.memory is not None else None
        self._exports = PoolExports(region)

    def _begin(self, request: Request, shapes: dict[str, Shape], now: float) -> _Send:
        return _Send(request.request_id, shapes, consumers(request.ec_transfer_params), now)

    def _advance(self, send: _Send, now: float) -> None:
        if not send.shapes:
            send.state = State.OPEN
        elif not send.items and not self._enter_and_give(send, now):
            # Rights that were given before the request came have expired by then, unless the agent does not say so.
            if self._silent or now >= send.since + self._options.lease + _AGENT_SECONDS:
                self._line.leave(send)
                send.error = errors.Deadline("no room in the pool has become free")
                send.state = State.OPEN
        elif send.grant is None:
            self._give(send, now)
        elif send.grant.token is not None:
            send.state = State.OPEN
        elif self._silent or now >= send.asked + _AGENT_SECONDS:
            send.silent, send.state = True, State.OPEN
            send.error = errors.Deadline(f"the agent at {self._client.path} does not answer")
            self._silent += 1
            self._grants.end(send.grant)

    def _enter_and_give(self, send: _Send, now: float) -> bool:
        entered = self._enter(send, now)
        if entered:
            self._give(send, now)
        return entered

    def _give(self, send: _Send, now: float) -> None:
        """Asks the agent for the right. Without an agent the request is encoded, and nothing is offered."""
        sizes = [item.shape.window or self._memory.before + item.shape.size for item in send.items]
        ranges = [(item.offset, size, size, 1) for item, size in zip(send.items, sizes, strict=True)]
        try:
            send.grant = self._grants.give(send.request_id, self._region, ranges, self._options.lease, "r", holders=send.consumers)
            self._by_grant[send.grant] = send
            send.asked = now
        except errors.Error as e:
            self._refused(send, e, now)

    def _refused(self, send: _Send, error: errors.Error, now: float) -> None:
        send.error = error
        send.lost = send.lost or now
        if not isinstance(error, (errors.SessionClosed, errors.AgentRestarted, errors.Busy, errors.Quota)) or \
                now >= send.lost + _AGENT_SECONDS:
            send.state = State.OPEN

    def finished(self, request: Request) -> dict[str, Any] | None:
        """The end of a request: ec_transfer_params of the answer."""
        send = self._sends.pop(request.request_id, None)
        if send is None:
            return None
        self._line.leave(send)
        if request.status.name in DELIVERED:
            stored = self._stored(send)
            if not stored:
                send.error = errors.Unsupported("the worker has not stored an output, because it is not of the measured shape and dtype")
            grant = send.grant
            if grant is not None and grant.token is not None and grant.how is None and not send.silent and stored:
                send.state = State.HELD
                items = {name: self._offered(item, send)
                         for name, item in zip(send.shapes, send.items, strict=True)}
                offer = Offer(self._engine_id, grant.token, self._model, items, device=self._memory.device, pool=self._pool_name(),
                              exports=self._exports.offered)
                if self._secret is not None:
                    offer = offer._replace(proof=self._secret.sign(offer, request.cache_salt))
                return offer_params([offer], self._client.segment)
            if send.shapes:
                _logger.warning("dray: request %s: its outputs are not offered: %s", send.request_id,
                                send.error or "the right to read them has ended")
        send.state = State.CLOSING
        if send.grant is not None and send.grant.how is None:
            self._grants.end(send.grant)
        else:
            self._leave(send)
        return None

    def _offered(self, item: Item, send: _Send) -> Offered:
        shape = item.shape
        if not shape.window:
            return Offered(item.offset, shape.rows, shape.width, item.nonce, shape.digest, self._memory.number(item))
        self._handouts[item.nonce] = Handout(item, send.consumers)
        return Offered(item.offset, shape.rows, shape.width, item.nonce, shape.digest, 0, piece_of(shape.window))

    def _on_event(self, event: Any) -> None:
        if isinstance(event, Disconnected):
            self._exports.lost()
        elif isinstance(event, Notification) and event.tag == INTRODUCTION:
            self._exports.introduced(event.agent_id)
        progress = Progress.read(event.payload) if isinstance(event, Notification) and event.tag == TAG else None
        handout = self._handouts.get(progress.nonce) if progress is not None else None
        if handout is not None and progress is not None:
            handout.take(progress)

    def _leave(self, send: _Send) -> None:
        for item in send.items:
            if item.shape.window:
                self._handouts.pop(item.nonce, None)
                self._done.append(item.nonce)
        super()._leave(send)

    def build(self, output: SchedulerOutput, metadata: StepMetadata) -> None:
        super().build(output, metadata)
        metadata.done, self._done = self._done, []
        for handout in self._handouts.values():
            metadata.pieces += [(Place.of(handout.item), index) for index in handout.next()]

    @property
    def _window(self) -> int:
        return encoder_window(self._pool.size)

    def _pool_name(self) -> PoolName | None:
        """None: nobody reads in place what lies in the memory of a GPU."""
        if self._memory.memory is None or self._door is None:
            return None
        return PoolName(os.getpid(), self._memory.memory.fd, self._door.name)

    def _poll(self, output: SchedulerOutput) -> None:
        self._pool.look()
        waiting = sum(send.state is State.ROOM for send in self._sends.values())
        rest = self._rest.seconds(output.total_num_scheduled_tokens, waiting + len(self._handouts), bool(waiting and not len(self._line)),
                                  session_reports_end=not waiting)
        for grant in self._grants.poll(rest, bool(self._by_grant)):
            send = self._by_grant.pop(grant, None)
            if send is None:
                continue
            self._silent -= send.silent
            send.silent = False
            if send.state is State.HELD and grant.how in (EXPIRED, PEER_LOST, AGENT_LOST):
                _logger.warning("dray: request %s: the right to read its outputs has ended: %s", send.request_id, grant.how)
            if send.state in (State.HELD, State.CLOSING):
                self._leave(send)
            elif send.state is State.ROOM:
                send.grant = None
                self._refused(send, grant.error or errors.AgentRestarted("the right has ended"), time.monotonic())

    def close(self) -> None:
        super().close()
        if self._door is not None:
            self._door.close()

    @property
    def busy(self) -> bool:
        """True while the engine has to go on stepping, although no request needs it."""
        return self._grants.busy or bool(self._handouts or self._done)

    @property
    def idle(self) -> bool:
        """True if nothing is kept for any request; for tests."""
        return not (self._sends or self._by_grant or self._handouts or self._done or len(self._line) or self._pool.used or len(self._grants))
