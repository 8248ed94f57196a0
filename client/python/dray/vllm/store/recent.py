# SPDX-License-Identifier: Apache-2.0
"""A set that forgets what was not used for longest."""

from __future__ import annotations

from collections.abc import Hashable

__all__ = ["Recent"]


class Recent:
    """At most `most` things."""

    def __init__(self, most: int = 1 << 16) -> None:
        self._most = most
        self._things: dict[Hashable, None] = {}

    def __len__(self) -> int:
        return len(self._things)

    def __contains__(self, thing: Hashable) -> bool:
        return thing in self._things

    def add(self, thing: Hashable) -> bool:
        """Puts a thing in, or to the end; True if it is new."""
        new = thing not in self._things
        if not new:
            del self._things[thing]
        elif len(self._things) >= self._most:
            del self._things[next(iter(self._things))]
        self._things[thing] = None
        return new

    def discard(self, thing: Hashable) -> None:
        self._things.pop(thing, None)

    def clear(self) -> None:
        self._things.clear()
