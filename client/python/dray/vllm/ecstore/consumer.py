# SPDX-License-Identifier: Apache-2.0
"""The scheduler side of an engine that uses outputs which are in the store."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from ... import errors
from ...client import Client
from ...handles import Region
from ...pending import Lending
from ...store import Status, Store, StoreItem
from ..ec.header import HEADER, digest
from ..ec.hooks import Parts
from ..ec.pool import Item, Shape
from ..ec.reader import Reader, Want, Wanted
from ..looks import Looks
from .batch import Batch
from .keys import Keys
from .options import Options

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from vllm.v1.request import Request

__all__ = ["StoreConsumer"]

_AGENT_SECONDS = 2.0  # for which a load waits for the session
_MARGIN = 0.25  # seconds that the agent gets to stop a copy before the deadline
_LEAST = 0.05


class _Source:
    """The store, for one request, which may ask it again. silent: the agent owes an answer for longer than the deadline."""

    spent, ready = False, True

    def __init__(self, silent: Callable[[], bool]) -> None:
        self._silent = silent
        self.used = False

    @property
    def lost(self) -> errors.Error | None:
        return errors.Deadline("the agent does not answer") if self._silent() else None

    def keep(self, now: float) -> None:
        """Nothing expires."""

    def use(self) -> None:
        """A load from there was started."""
        self.used = True

    def release(self) -> None:
        self.used = True


class _Load:
    """Outputs of one request that are got from the store, until `ends`."""

    def __init__(self, batch: Batch, items: list[Item], ends: float, away: Callable[[float], bool]) -> None:
        self._batch, self._away, self.items, self.ends = batch, away, items, ends
        self.began, self.over = 0.0, False

    def start(self, client: Client, region: Region, now: float) -> None:
        self.began = now
        self.poll(client, region, now)

    def poll(self, client: Client, region: Region, now: float) -> None:
        self._batch.advance(now)
        if not self._batch.over and self._away(now):
            self._batch.give_up(errors.SessionClosed(f"there is no session with the agent at {client.path}"))
        self.over = self._batch.over

    def error_of(self, item: Item) -> errors.Error | None:
        result = self._batch.results.get(item)
        if result is None:
            return self._batch.errors[item]
        size = HEADER + item.shape.size
        if result.status == Status.NOT_FOUND:
            return errors.NotFound("the output is not in the store")
        if result.status == Status.TOO_LARGE or result.status == Status.OK and result.length != size:
            return errors.Invalid(f"the output has {result.length} bytes in the store, and {size} are expected")
        if result.status != Status.OK:
            return errors.Io(f"the store does not give the output: {result.status.name.lower()}")
        return None

    def stop(self) -> None:
        """What has been started ends by itself, and nothing else is."""
        self._batch.give_up(errors.Cancelled("no request needs the outputs any more"))

    @property
    def session_reports_end(self) -> bool:
        return self._batch.lent()

    def lent(self) -> bool:
        return self._batch.lent()

    def release(self) -> None:
        """There is no right that another engine waits for."""


class StoreConsumer(Reader):
    """One for each engine. width: numbers in an embedding of a modality."""

    def __init__(self, options: Options, store: Store, parts: Parts, keys: Keys, *, width: Callable[[str], int],
                 can_encode: Callable[[Any], bool]) -> None:
        super().__init__(parts.client, parts.region, parts.memory, parts.pool, parts.rest, deadline=options.deadline, can_encode=can_encode)
        self._store, self._keys, self._width, self._itemsize = store, keys, width, parts.itemsize
        self._running: list[_Load] = []
        self._looks = Looks()
        self._keys_limit = time.monotonic() + options.deadline  # until which requests wait for the digest of the weights

    def _may_begin(self, request: Request) -> bool:
        return self._keys.known or time.monotonic() >= self._keys_limit

    def _learn(self, want: Want, needed: Mapping[str, int]) -> None:
        source = _Source(self._silent)
        want.sources.append(source)
        for feature in want.request.mm_features:
            identifier = feature.identifier
            rows = needed.get(identifier, 0)
            if not rows or identifier in want.wanted or want.refused:
                continue
            width = self._width(feature.modality)
            shape = Shape(digest(identifier, want.request.cache_salt), rows, width, rows * width * self._itemsize)
            try:
                if self._keys.error is not None:
                    raise self._keys.error
                self._fit(shape)
            except errors.Error as e:
                self._give_up(want, identifier, e)
                continue
            want.missing[identifier] = want.wanted[identifier] = Wanted(shape, source, self._keys.of(shape))

    def _path_error(self, source: Any) -> errors.Error | None:
        return None

    def _loads_of(self, want: Want, items: Mapping[str, Item]) -> list[_Load]:
        """One batch for all of them."""
        what = [(item, want.missing[identifier].place, 0.0) for identifier, item in items.items()]
        batch = Batch(what, self._start, want.ends)
        load = _Load(batch, list(items.values()), want.ends, self._gone)
        self._running.append(load)
        return [load]

    def _start(self, asked: list[StoreItem], seconds: float) -> Lending[Any]:
        pending: Lending[Any] = self._store.get(self._region, asked, deadline=max(_LEAST, seconds - _MARGIN), wait=False)
        return pending

    def _silent(self) -> bool:
        """True while the agent owes an answer for longer than a request waits."""
        self._running = [load for load in self._running if not load.over or load.lent()]
        return any(load.ends <= time.monotonic() and load.lent() for load in self._running)

    def _gone(self, now: float) -> bool:
        """True if the session has been lost for so long that a load does not wait for it any more."""
        return self._away is not None and now >= self._away + _AGENT_SECONDS

    def _poll(self, rest: float, awaited: bool) -> None:
        if self._looks.due(awaited):
            self._client.process(rest)
        events = self._client.events
        while events:
            event = events.popleft()
            self._looks.event(event)
            self._on_event(event)

    def _asks(self) -> bool:
        return False
