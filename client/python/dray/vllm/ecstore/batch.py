# SPDX-License-Identifier: Apache-2.0
"""Outputs that are put to the store, or got from it, together. What the store has no room for now is tried again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ... import errors
from ...pending import Lending
from ...store import Status, StoreItem, StoreResult
from ..ec.header import HEADER
from ..ec.pool import Item

__all__ = ["Batch"]

_KEYS_MAX = 1024
_PAUSE = 0.002  # seconds before the agent is asked again, at least


class Batch:
    """errors: why an item was not copied, by item; of the others, `left` are not done yet. results: of those that are done.

    copy: starts a batch of the store, for a number of seconds.
    """

    def __init__(self, items: list[tuple[Item, bytes, float]], copy: Callable[[list[StoreItem], float], Lending[Any]], ends: float) -> None:
        """items: with the key and the cost of each. ends: when all of it has to have ended."""
        self._copy, self._ends = copy, ends
        self._left = items
        self._asked: list[tuple[Item, bytes, float]] = []
        self._pending: Lending[list[StoreResult]] | None = None
        self._again = 0.0  # before which the agent is not asked
        self.errors: dict[Item, errors.Error] = {}
        self.results: dict[Item, StoreResult] = {}

    @property
    def over(self) -> bool:
        """True if nothing more will be started. The agent may still use the places of the items, see lent()."""
        return not self._left

    def lent(self) -> bool:
        """True while the agent may use the places of the items, also after the batch has failed because it did not answer (unconfirmed)."""
        return self._pending is not None and self._pending.lent()

    def advance(self, now: float) -> None:
        """Takes results, and starts what can be started. Does not wait."""
        pending = self._pending
        if pending is not None and pending.done():
            if not pending.lent():
                self._pending = None
            self._take(pending, now)
        if self._left and now >= self._ends:
            self.give_up(errors.Deadline("the agent has not copied the output in time"))
        elif self._left and self._pending is None and now >= self._again:
            self._start(now)

    def _start(self, now: float) -> None:
        self._asked = self._left[:_KEYS_MAX]
        what = [StoreItem(key, [(item.offset, HEADER + item.shape.size)], cost) for item, key, cost in self._asked]
        try:
            self._pending = self._copy(what, self._ends - now)
        except errors.Busy:
            self._again = now + _PAUSE
        except errors.Error as e:
            self.give_up(e)

    def _take(self, pending: Lending[list[StoreResult]], now: float) -> None:
        error = pending.error()
        if error is not None:
            self.give_up(error)
        if not self._left:
            return  # it was given up, and what the agent has done meanwhile does not count
        busy, wait = [], 0.0
        for one, result in zip(self._asked, pending.result(0), strict=True):
            if result.status == Status.BUSY:
                busy.append(one)
                wait = max(wait, result.wait, _PAUSE)
            else:
                self.results[one[0]] = result
        self._left = busy + self._left[len(self._asked):]
        self._again = now + wait

    def give_up(self, error: errors.Error) -> None:
        """What is not done will not be."""
        for item, _, _ in self._left:
            self.errors[item] = error
        self._left = []

    def wait(self, until: float, process: Callable[[float], object], clock: Callable[[], float]) -> None:
        """Waits until all of it has ended, or it is late. process: takes what the agent sends within a number of seconds."""
        now = clock()
        self.advance(now)
        while not self.over and now < until:
            if self._pending is None:
                process(min(until - now, max(_PAUSE, self._again - now)))
            elif not self._pending.done():  # which may have come with the answer to another request
                process(until - now)
            now = clock()
            self.advance(now)
