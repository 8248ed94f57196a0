# SPDX-License-Identifier: Apache-2.0
"""Ranges of varying size in one piece of memory: the smallest free range that fits, and neighbours joined when they are free."""

from __future__ import annotations

from bisect import bisect_left, insort

__all__ = ["GRANULE", "Allocator"]

GRANULE = 256  # bytes; also the alignment of each range


class Allocator:
    """Hands out ranges of [0, size). Each call takes a time that grows with the logarithm of the number of free ranges,
    apart from moving the entries of a sorted list."""

    def __init__(self, size: int) -> None:
        self.size = size // GRANULE * GRANULE
        self._by_size: list[tuple[int, int]] = []  # free ranges as (length, offset), sorted
        self._free: dict[int, int] = {}  # length by offset
        self._ends: dict[int, int] = {}  # offset by end
        self._used: dict[int, int] = {}  # length by offset
        self.free = 0  # bytes in all free ranges
        if self.size:
            self._add(0, self.size)

    @staticmethod
    def room(size: int) -> int:
        """Bytes that a range of `size` bytes takes."""
        return -(-size // GRANULE) * GRANULE

    @property
    def largest(self) -> int:
        """Bytes of the largest free range."""
        return self._by_size[-1][0] if self._by_size else 0

    def take(self, size: int) -> int | None:
        """The offset of a new range; None if no free range is large enough."""
        room = self.room(size)
        at = bisect_left(self._by_size, (room, -1))
        if not room or at == len(self._by_size):
            return None
        length, offset = self._by_size[at]
        self._remove(offset, length)
        if length > room:
            self._add(offset + room, length - room)
        self._used[offset] = room
        return offset

    def give(self, offset: int) -> None:
        """Frees a range that take() has returned."""
        length = self._used.pop(offset)
        end = offset + length
        after = self._free.get(end)
        if after is not None:
            self._remove(end, after)
            length += after
        before = self._ends.get(offset)
        if before is not None:
            self._remove(before, offset - before)
            length += offset - before
            offset = before
        self._add(offset, length)

    def _add(self, offset: int, length: int) -> None:
        insort(self._by_size, (length, offset))
        self._free[offset] = length
        self._ends[offset + length] = offset
        self.free += length

    def _remove(self, offset: int, length: int) -> None:
        del self._by_size[bisect_left(self._by_size, (length, offset))]
        del self._free[offset]
        del self._ends[offset + length]
        self.free -= length
