# SPDX-License-Identifier: Apache-2.0
"""The host tier: copies of outputs in a pool of host memory, which outlive their place in the device's cache.

A new output is copied into the pool in the step that computes it, by the workers (worker.py), and the scheduler side here knows
where it lies. It may be loaded when the workers have reported that step. A place is not used again while a worker may still
write or read it, so that a step which is under way never meets the bytes of another output.
"""

from __future__ import annotations

import math
import secrets
from collections import deque
from collections.abc import Callable

from .allocator import Allocator
from .cache_stats import Stats
from .cost import EncoderCost
from .header import HEADER, NONCE, digest
from .policy import Entry, Policy
from .pool import Item, Shape
from .protocol import Place

__all__ = ["HostTier"]


class _Copy:
    """An output in the pool. ready: it may be loaded. gone: nobody finds it any more. steps: in which workers use its place."""

    __slots__ = ("entry", "gone", "item", "ready", "steps")

    def __init__(self, entry: Entry, item: Item) -> None:
        self.entry, self.item = entry, item
        self.ready = self.gone = False
        self.steps = 0

    @property
    def room(self) -> int:
        """Bytes of the pool that it takes."""
        return Allocator.room(HEADER + self.item.shape.size)

    @property
    def end(self) -> int:
        return self.item.offset + self.room

    @property
    def seconds(self) -> float:
        """Of the encoder, that its uses were worth."""
        return self.entry.uses * self.entry.cost


class HostTier:
    """Of one engine. sealed: whether the workers have completed the copy in a place. row: bytes of an embedding of the model."""

    def __init__(self, size: int, row: int, policy: Callable[[int], Policy], cost: EncoderCost, sealed: Callable[[Item], bool],
                 stats: Stats) -> None:
        self._places = Allocator(size)
        self._row, self._make_policy, self._cost, self._sealed, self._stats = row, policy, cost, sealed, stats
        self._policy = policy(size // row)
        self._copies: dict[str, _Copy] = {}
        self._asked: tuple[str, _Copy | None] = "", None  # what find() was asked last
        self._promised: list[_Copy] = []  # of the step that is being scheduled
        self._saves: dict[str, _Copy] = {}
        self._loads: dict[str, _Copy] = {}
        self._steps: deque[tuple[int, list[_Copy]]] = deque()

    @property
    def embeddings(self) -> int:
        """How many of them the pool holds."""
        return self._places.size // self._row

    @property
    def used(self) -> int:
        """Bytes of the pool that have an output."""
        return self._places.size - self._places.free

    @property
    def idle(self) -> bool:
        """True if no worker uses the pool."""
        return not (self._promised or self._saves or self._loads or self._steps)

    def find(self, identifier: str, rows: int) -> Entry | None:
        """The output, if it can be loaded in this step. One with another number of embeddings is not the same output."""
        copy = self._copies.get(identifier)
        if copy is not None and not (copy.ready and copy.entry.rows == rows):
            copy = None
        self._asked = identifier, copy
        return copy.entry if copy is not None else None

    def promise(self, identifier: str) -> bool:
        """True if the last find() has returned this output. Then it stays until the end of schedule(), whatever is saved meanwhile."""
        asked, copy = self._asked
        if asked != identifier or copy is None or copy.gone:
            return False
        self._hold(copy)
        self._promised.append(copy)
        return True

    def used_by_request(self, identifier: str) -> None:
        """Another request uses the output, from whichever tier."""
        copy = self._copies.get(identifier)
        if copy is None:
            return
        if not copy.steps:
            self._policy.leave(copy.entry)
        self._policy.used(copy.entry)
        if not copy.steps:
            self._policy.enter(copy.entry)

    def save(self, identifier: str, rows: int, width: int, itemsize: int) -> bool:
        """A new output of the device gets a place, if there is one, and is copied there in this step."""
        self.retract(identifier)
        old = self._copies.get(identifier)
        if old is not None:
            self._forget(old, evicted=False)
        size = rows * width * itemsize
        offset = self._take(Allocator.room(HEADER + size))
        if offset is None:
            return False
        item = Item(Shape(digest(identifier, None), rows, width, size), offset, secrets.token_bytes(NONCE))
        copy = _Copy(Entry(identifier, rows, self._cost.seconds(rows)), item)
        self._policy.add(copy.entry)
        self._policy.used(copy.entry)
        copy.steps = 1
        self._copies[identifier] = self._saves[identifier] = copy
        return True

    def _take(self, room: int) -> int | None:
        """A place, for which other outputs go. None if steps use so much that there would be none: then nothing goes.

        What the policy evicts lies anywhere, and may leave small gaps only. When as much as is needed has gone in vain, neighbours go.
        """
        if not self._may_fit(room):
            return None
        gone = 0
        while (offset := self._places.take(room)) is None:
            victim = self._policy.victim()
            assert victim is not None, "without outputs that may be evicted there is room between the others"
            for copy in [self._copies[victim.identifier]] if gone < room else self._cheapest_neighbours(room):
                gone += copy.room
                self._forget(copy, evicted=True)
                self._stats.count(host_evictions=1)
        return offset

    def _busy(self) -> list[_Copy]:
        """Whose places workers use, or will in this step, by offset."""
        steps = [copy for _, copies in self._steps for copy in copies]
        busy = {*self._promised, *self._saves.values(), *self._loads.values(), *steps}
        return sorted(busy, key=lambda copy: copy.item.offset)

    def _may_fit(self, room: int) -> bool:
        start = 0
        for copy in self._busy():
            if copy.item.offset - start >= room:
                return True
            start = copy.end
        return self._places.size - start >= room

    def _cheapest_neighbours(self, room: int) -> list[_Copy]:
        """Those whose encoding costs least, of the outputs that make a place of `room` bytes when all of them go."""
        copies = sorted({*self._busy(), *self._copies.values()}, key=lambda copy: copy.item.offset)
        best, least = (0, 0), math.inf
        first, start, cost = 0, 0, 0.0  # of the neighbours before the current copy
        for at, copy in enumerate([*copies, None]):
            end = copy.item.offset if copy is not None else self._places.size
            while first < at and end - copies[first].end >= room:
                start, cost = copies[first].end, cost - copies[first].seconds
                first += 1
            if end - start >= room and cost < least:
                best, least = (first, at), cost
            if copy is not None and copy.steps:
                first, start, cost = at + 1, copy.end, 0.0
            elif copy is not None:
                cost += copy.seconds
        return copies[best[0]:best[1]]

    def load(self, identifier: str) -> None:
        """The workers give the output to the model in this step. find() has returned it."""
        copy = self._copies[identifier]
        if identifier not in self._loads:
            self._hold(copy)
            self._loads[identifier] = copy

    def retract(self, identifier: str) -> None:
        """The workers neither save nor load the output in this step after all."""
        for copies in (self._saves, self._loads):
            copy = copies.pop(identifier, None)
            if copy is not None:
                self._leave(copy)

    def _hold(self, copy: _Copy) -> None:
        if not copy.steps:
            self._policy.leave(copy.entry)
        copy.steps += 1

    def _forget(self, copy: _Copy, evicted: bool) -> None:
        """Nobody finds the output any more. Its place is free when no worker uses it."""
        if copy.gone:
            return
        copy.gone = True
        del self._copies[copy.entry.identifier]
        if copy.steps:
            self._policy.enter(copy.entry)  # a policy removes only what has no users
        self._policy.remove(copy.entry, evicted)
        if not copy.steps:
            self._places.give(copy.item.offset)

    def take_step(self, number: int) -> tuple[dict[str, Place], dict[str, Place]]:
        """What the workers save and load in this step."""
        saves, self._saves = self._saves, {}
        loads, self._loads = self._loads, {}
        promised, self._promised = self._promised, []
        for copy in promised:
            self._leave(copy)
        self._asked = "", None
        if saves or loads:
            self._steps.append((number, [*saves.values(), *loads.values()]))
        return {name: Place.of(copy.item) for name, copy in saves.items()}, {name: Place.of(copy.item) for name, copy in loads.items()}

    def done(self, step: int) -> None:
        """The workers have ended the steps up to this one."""
        while self._steps and self._steps[0][0] <= step:
            for copy in self._steps.popleft()[1]:
                self._leave(copy)

    def _leave(self, copy: _Copy) -> None:
        copy.steps -= 1
        if copy.steps:
            return
        if copy.gone:
            self._places.give(copy.item.offset)
            return
        self._policy.enter(copy.entry)
        copy.ready = copy.ready or self._sealed(copy.item)
        if not copy.ready:  # the request was preempted in its step, or the output has another shape
            self._stats.count(host_unsaved=1)
            self._forget(copy, evicted=False)

    def reset(self) -> None:
        """No output is found any more, because the weights have changed."""
        for copy in list(self._copies.values()):
            self._forget(copy, evicted=False)
        self._policy = self._make_policy(self.embeddings)
