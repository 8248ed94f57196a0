# SPDX-License-Identifier: Apache-2.0
"""The order in which requests get room in a pool, so that neither small nor large ones wait for ever."""

from __future__ import annotations

from typing import Generic, TypeVar

__all__ = ["Line"]

_PATIENCE = 0.5  # seconds for which later requests may pass the first one that waits

Who = TypeVar("Who")


class Line(Generic[Who]):
    """Those that wait for room, in the order in which they came.

    A small request may pass a large one that waits at the head, because room for the small one is often there. When the head has
    waited for some time, nobody passes it any more. So it gets all room that becomes free.
    """

    def __init__(self) -> None:
        self._since: dict[Who, float] = {}

    def __len__(self) -> int:
        return len(self._since)

    def may_enter(self, who: Who, now: float) -> bool:
        """True if `who` may take room if it is there."""
        head = next(iter(self._since), who)
        return head is who or now < self._since[head] + _PATIENCE

    def wait(self, who: Who, now: float) -> None:
        """There was no room for `who`."""
        self._since.setdefault(who, now)

    def leave(self, who: Who) -> None:
        """`who` has room, or needs none any more."""
        self._since.pop(who, None)
