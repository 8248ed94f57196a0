# SPDX-License-Identifier: Apache-2.0
"""Which objects this session keeps from being evicted, for which there may be several requests at once.

A session has one pin for each key. So requests are counted here, and the last one that lets a key go ends its pin.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ... import errors
from ...store import Store

__all__ = ["Pins"]

_BATCH = 1024


class Pins:
    """session: changes with each loss of the session, which ends all pins."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._counts: dict[bytes, int] = {}
        self._unpin: dict[bytes, None] = {}  # in order
        self.session = 0

    def __len__(self) -> int:
        return len(self._counts)

    @property
    def pending(self) -> bool:
        """True if flush() has something to do."""
        return bool(self._unpin)

    def take(self, keys: Iterable[bytes]) -> None:
        """A request is about to pin keys."""
        for key in keys:
            self._counts[key] = self._counts.get(key, 0) + 1
            self._unpin.pop(key, None)

    def give(self, keys: Sequence[bytes], session: int) -> None:
        """A request does not need keys any more. session: in which it took them.

        A request that was queued when that session was lost pins them in the next one, so that their pins are ended there, too.
        """
        if session != self.session:
            self.take(keys)
        for key in keys:
            left = self._counts[key] - 1
            if left:
                self._counts[key] = left
            else:
                del self._counts[key]
                self._unpin[key] = None

    def flush(self) -> None:
        """Ends the pins of keys that nobody needs. Does not wait."""
        keys = list(self._unpin)
        self._unpin.clear()
        for at in range(0, len(keys), _BATCH):
            try:
                self._store.unpin(keys[at:at + _BATCH], wait=False)
            except errors.Busy:
                self._unpin.update(dict.fromkeys(keys[at:]))
                return
            except errors.Error:
                return  # there is no session, and so there are no pins

    def lose(self) -> None:
        """The session was lost."""
        self._counts.clear()
        self._unpin.clear()
        self.session += 1
