# SPDX-License-Identifier: Apache-2.0
"""The scheduler side of an engine that encodes for the store: its outputs are put there, before their requests end.

vLLM answers a request as soon as request_finished() returns, so that this call waits for the store, for a limited time. It puts
all outputs at once that the worker has stored by then, whichever request they belong to: those that finish in the same step
wait for one batch.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from ... import errors
from ...events import Disconnected, Reconnected
from ...pending import Lending
from ...store import Status, Store, StoreItem
from ..ec.cost import EncoderCost
from ..ec.header import HEADER
from ..ec.hooks import Parts
from ..ec.pool import Item, Shape
from ..ec.writer import Send, State, Writer
from ..looks import Looks
from ..protocol import DELIVERED
from .batch import Batch
from .keys import Keys
from .options import Options

if TYPE_CHECKING:
    from collections.abc import Callable

    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.request import Request

__all__ = ["StoreProducer"]

_logger = logging.getLogger("vllm.dray")


class _Put:
    """Outputs that are put to the store together, and whose places the agent may read. late: nobody waits for it any more."""

    def __init__(self, items: list[Item], batch: Batch) -> None:
        self.items, self.batch, self.late = items, batch, False

    def error_of(self, item: Item) -> errors.Error | None:
        """Why an output is not in the store; None: it is."""
        result = self.batch.results.get(item)
        if result is None:
            return self.batch.errors.get(item) or errors.Deadline("the store has not answered in time", fix="See `drayctl store`.")
        if result.status in (Status.OK, Status.EXISTS):
            return None
        if result.status == Status.TOO_LARGE:
            return errors.TooLarge(f"it has {HEADER + item.shape.size} bytes, which are more than the store has for this engine",
                                   fix="Raise limits.store_bytes and limits.store_bytes_per_owner of the agent.")
        return errors.Io(f"the store has not taken it: {result.status.name.lower()}")


class _Send(Send):
    """A request. puts: which the outputs that were put belong to."""

    __slots__ = ("puts",)

    def __init__(self, request_id: str, shapes: dict[str, Shape], now: float) -> None:
        super().__init__(request_id, shapes, now)
        self.puts: dict[Item, _Put] = {}


class StoreProducer(Writer[_Send]):
    """One for each engine."""

    def __init__(self, options: Options, store: Store, parts: Parts, keys: Keys, cost: EncoderCost, *, width: Callable[[str], int]) -> None:
        super().__init__(parts.client, parts.region, parts.memory, parts.pool, parts.rest, width=width, itemsize=parts.itemsize)
        self._options, self._store, self._keys, self._cost = options, store, keys, cost
        self._keys_limit = time.monotonic() + options.deadline  # until which requests wait for the digest of the weights
        self._puts: list[_Put] = []
        self._away = False
        self._looks = Looks()

    def _begin(self, request: Request, shapes: dict[str, Shape], now: float) -> _Send:
        return _Send(request.request_id, shapes, now)

    def _advance(self, send: _Send, now: float) -> None:
        if not send.shapes:
            send.state = State.OPEN
        elif not self._keys.known and now < self._keys_limit:
            return
        elif self._keys.error is not None or self._silent or self._away:
            self._open_without(send, self._keys.error or errors.SessionClosed(f"the agent at {self._client.path} does not answer"))
        elif self._enter(send, now):
            send.state = State.OPEN
        elif now >= send.since + self._options.deadline:
            self._open_without(send, errors.Deadline("no room in the pool has become free"))

    def _open_without(self, send: _Send, error: errors.Error) -> None:
        """The request is encoded, and its outputs are not saved."""
        self._line.leave(send)
        send.error, send.state = error, State.OPEN

    @property
    def _silent(self) -> bool:
        """The agent owes an answer for longer than a request waits."""
        return any(put.late for put in self._puts)

    def finished(self, request: Request) -> dict[str, Any] | None:
        """The end of a request. Waits until its outputs are in the store, for a limited time."""
        send = self._sends.pop(request.request_id, None)
        if send is None:
            return None
        self._line.leave(send)
        if request.status.name in DELIVERED and send.shapes:
            error = send.error or self._save(send)
            if error is not None:
                _logger.warning("dray: request %s: an output is not in the store: %s", send.request_id, error)
        self._leave(send)
        return None

    def _save(self, send: _Send) -> errors.Error | None:
        """Why an output of the request is not in the store; None: all are."""
        if self._silent or self._away:
            return errors.SessionClosed(f"the agent at {self._client.path} does not answer")
        self._put_all(send)
        until = time.monotonic() + self._options.save_wait
        for put in set(send.puts.values()):
            put.batch.wait(until, self._process, time.monotonic)
            if put.batch.lent():
                put.late = True
            elif not put.batch.over:
                put.batch.give_up(errors.Busy("the store has no room for it", fix="Raise limits.store_bytes of the agent."))
            self._check(put)
        if not self._stored(send):
            return errors.Unsupported("the worker has not stored it, because it is not of the measured shape and dtype")
        return next((error for item, put in send.puts.items() if (error := put.error_of(item)) is not None), None)

    def _put_all(self, finished: _Send) -> None:
        """Starts to put what the worker has stored: of this request, and of those that have not ended."""
        new: dict[Item, None] = {}
        running = {item: put for put in self._puts for item in put.items}
        sends = [finished, *(send for send in self._sends.values() if send.items)]
        for send in sends:
            for item in send.items:
                item.ready = item.ready or self._memory.sealed(item)
                if item in running:
                    send.puts.setdefault(item, running[item])
                elif item.ready and item not in send.puts:
                    new[item] = None
        if not new:
            return
        what = [(item, self._keys.of(item.shape), self._cost.seconds(item.shape.rows)) for item in new]
        batch = Batch(what, self._start, time.monotonic() + self._options.deadline)
        put = _Put(list(new), batch)
        self._puts.append(put)
        for item in new:
            self._pool.use(item, put)
        for send in sends:
            send.puts.update((item, put) for item in send.items if item in new)

    def _start(self, asked: list[StoreItem], seconds: float) -> Lending[Any]:
        pending: Lending[Any] = self._store.put(self._region, asked, deadline=seconds, wait=False)
        return pending

    def _check(self, put: _Put) -> None:
        """Frees the places of outputs that the agent does not read any more."""
        if put in self._puts and put.batch.over and not put.batch.lent():
            self._puts.remove(put)
            for item in put.items:
                self._pool.leave(item, put)

    # --- steps --------------------------------------------------------------------------------------

    def _poll(self, output: SchedulerOutput) -> None:
        waiting = sum(send.state is State.ROOM for send in self._sends.values())
        if self._looks.due(bool(self._puts)):
            self._process(self._rest.seconds(output.total_num_scheduled_tokens, waiting or len(self._puts)))
        now = time.monotonic()
        for put in list(self._puts):
            put.batch.advance(now)
            self._check(put)

    def _process(self, seconds: float) -> None:
        """Takes what the agent has sent, or sends within so many seconds."""
        self._client.process(seconds)
        events = self._client.events
        while events:
            event = events.popleft()
            self._looks.event(event)
            if isinstance(event, (Disconnected, Reconnected)):
                self._away = isinstance(event, Disconnected)
                _logger.warning("dray: the session with the agent at %s %s", self._client.path,
                                f"was lost: {event.error}" if isinstance(event, Disconnected) else "is there again")

    @property
    def busy(self) -> bool:
        """True while the engine has to go on stepping, although no request needs it."""
        return bool(self._puts)

    @property
    def idle(self) -> bool:
        """True if nothing is kept for any request; for tests."""
        return not (self._sends or self._puts or len(self._line) or self._pool.used)
