# SPDX-License-Identifier: Apache-2.0
"""Numbers of the slots of a bounce buffer: which are in use, and for what."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

from .layout import NULL_BLOCK

__all__ = ["Blocks", "Piece", "Saved", "Slots"]

Blocks = tuple[tuple[int, ...], ...]  # numbers of blocks or slots, for each group


@dataclass
class Piece:
    """Tokens [first, end) of a load that are read at once. blocks: of the engine, for each group; slots: while it is read."""

    first: int
    end: int
    blocks: Blocks
    slots: Blocks | None = None


class Slots:
    """A set of slots."""

    def __init__(self, numbers: Iterable[int]) -> None:
        self._free = deque(numbers)
        self._count = len(self._free)

    def __len__(self) -> int:
        """All slots, in use or not."""
        return self._count

    @property
    def unused(self) -> int:
        return len(self._free)

    def take(self, blocks: Sequence[Sequence[int]]) -> Blocks | None:
        """A slot for each block that holds something; None if there are too few."""
        if sum(block != NULL_BLOCK for group in blocks for block in group) > len(self._free):
            return None
        return tuple(tuple(NULL_BLOCK if block == NULL_BLOCK else self._free.popleft() for block in group) for group in blocks)

    def give(self, slots: Blocks) -> None:
        """Gives slots back."""
        self._free.extend(slot for group in slots for slot in group if slot != NULL_BLOCK)


class Saved:
    """Outgoing slots of an engine, which stay in use until all rights to read them have ended."""

    def __init__(self, count: int) -> None:
        self._slots = Slots(range(1, count + 1))
        self._uses: dict[Hashable, tuple[set[Hashable], Blocks]] = {}  # by right

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def idle(self) -> bool:
        return not self._uses

    def take(self, blocks: Sequence[Sequence[int]]) -> Blocks | None:
        return self._slots.take(blocks)

    def keep(self, slots: Blocks, rights: Iterable[Hashable]) -> None:
        """The slots are in use until ended() was called for each of these; at once if there are none."""
        use = set(rights), slots
        for right in use[0]:
            self._uses[right] = use
        if not use[0]:
            self._slots.give(slots)

    def ended(self, right: Hashable) -> None:
        """A right has ended."""
        use = self._uses.pop(right, None)
        if use is not None:
            use[0].discard(right)
            if not use[0]:
                self._slots.give(use[1])
