# SPDX-License-Identifier: Apache-2.0
"""A set that forgets what was not used for longest."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable

__all__ = ["Recent"]


class Recent:
    """At most `most` things."""

    def __init__(self, most: int = 1 << 16) -> None:
        self._most = most
        self._things: OrderedDict[Hashable, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._things)

    def __contains__(self, thing: Hashable) -> bool:
        return thing in self._things

    def add(self, thing: Hashable) -> bool:
        """Puts a thing in, or to the end; True if it is new."""
        things = self._things
        if thing in things:
            things.move_to_end(thing)
            return False
        if len(things) >= self._most:
            things.popitem(last=False)
        things[thing] = None
        return True

    def update(self, things: Iterable[Hashable]) -> None:
        """add() for each of them."""
        for thing in things:
            self.add(thing)

    def discard(self, thing: Hashable) -> None:
        self._things.pop(thing, None)

    def clear(self) -> None:
        self._things.clear()
