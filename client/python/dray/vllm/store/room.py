# SPDX-License-Identifier: Apache-2.0
"""How many of the engine's blocks loads and saves may keep from it, together.

An agent that stands still keeps all of them, so that the others have to be enough for the engine's requests. Each side has a part
that the other one cannot take. A load that is larger than what loads may have begins alone, beside no save: saves pause while it
waits for them to end, and it waits while saves have had no turn.
"""

from __future__ import annotations

__all__ = ["Room"]

_PART = 0.5  # of the engine's blocks
_LEFT = 4  # one of so many parts of it is left to loads, and as much to saves


class Room:
    """Of one engine. loading: blocks that loads have, and that are lent to loads which have failed. held: by saves."""

    def __init__(self, blocks: int) -> None:
        """blocks: that the engine has."""
        self.most = max(1, int(blocks * _PART))
        self.loading = self.held = 0
        self._refused = False  # since the last step, a save found no room because of loads
        self._waits = self._paused = False  # since the last step, or before it, a large load waited for saves

    def for_load(self, size: int) -> bool:
        """True if a load of so many blocks may begin."""
        if self.loading + size <= self.most - max(self.held, self.most // _LEFT):
            return True
        if self.loading or self._refused:
            return False
        self._waits = self.held > 0
        return not self._waits

    def left(self, chosen: int) -> bool:
        """True if saves may hold one more block, besides those that were chosen."""
        return not (self._waits or self._paused) and self.held + chosen < self.most - max(self.loading, self.most // _LEFT)

    def for_save(self, chosen: int) -> bool:
        """As left(), for a block that is to be saved."""
        if self.left(chosen):
            return True
        self._refused |= self.loading > self.most // _LEFT
        return False

    def turn(self) -> None:
        """Saves have their turn in this step."""
        self._refused = False

    def over(self) -> None:
        """They have had it."""
        self._paused, self._waits = self._waits, False
