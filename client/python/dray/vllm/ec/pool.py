# SPDX-License-Identifier: Apache-2.0
"""Outputs in a pool: where each one lies, who uses it, and which ones are evicted for others."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ... import errors
from .allocator import Allocator
from .header import HEADER

if TYPE_CHECKING:
    from .inplace import Opened
    from .pool_memory import Assembled, Seal

__all__ = ["Item", "Pool", "Shape"]


class Shape(NamedTuple):
    """What is known of an output before it exists. digest: of its identifier; size: bytes of its embeddings.

    window: bytes of the pool for an output that moves in pieces (pieces.py); 0: it lies in the pool.
    """

    digest: bytes
    rows: int
    width: int
    size: int
    window: int = 0


class Item:
    """An output in the pool. offset: of its header. ready: its bytes are complete. error: why they never will be.

    It stays where it is while it has users. Without users it is a cache, which is evicted when others need its room.
    opened: it lies in another engine's pool instead, at that offset, as long as it has users. seal: what its encoder says of it;
    None: its header does. assembled: where it lies outside the pool, if it moves in pieces and is used here. moved: it needs its
    window no longer.
    """

    __slots__ = ("assembled", "error", "moved", "nonce", "offset", "opened", "ready", "seal", "shape", "users")

    def __init__(self, shape: Shape, offset: int, nonce: bytes, opened: Opened | None = None) -> None:
        self.shape, self.offset, self.nonce, self.opened = shape, offset, nonce, opened
        self.users: set[Hashable] = set()
        self.ready = self.moved = False
        self.seal: Seal | None = None
        self.assembled: Assembled | None = None
        self.error: errors.Error | None = None


class Pool:
    """The places of one pool of `size` bytes.

    before: bytes between the start of a place and its output. vacate: says whether the place of an output may be used again, which
    nobody finds here any more. As long as it may not, the place counts as used.
    """

    def __init__(self, size: int, vacate: Callable[[Item], bool] = lambda item: True, before: int = HEADER) -> None:
        self.vacate, self._before = vacate, before
        self._places = Allocator(size)
        self._read: list[Item] = []  # whose places wait to be vacated
        self._items: dict[bytes, Item] = {}  # by digest
        self._idle: OrderedDict[Item, None] = OrderedDict()  # without users, the least recently used first
        self._idle_bytes = 0
        self._in_pieces: Item | None = None
        self.evicted = 0

    @property
    def size(self) -> int:
        return self._places.size

    @property
    def used(self) -> int:
        """Bytes of outputs that somebody uses."""
        return self.size - self._places.free - self._idle_bytes

    def room(self, shape: Shape) -> int:
        """Bytes that the place of an output takes."""
        return shape.window or Allocator.room(self._before + shape.size)

    def fits(self, shapes: Iterable[Shape]) -> bool:
        """True if the pool can hold all of these outputs at once when it holds nothing else: one of them in pieces."""
        shapes = list(shapes)
        return sum(map(self.room, shapes)) <= self.size and sum(bool(shape.window) for shape in shapes) <= 1

    def taken(self, shapes: Iterable[Shape]) -> bool:
        """True if one of these outputs moves in pieces, and another one does already."""
        return self._in_pieces is not None and any(shape.window for shape in shapes)

    def find(self, shape: Shape) -> Item | None:
        """The output, if it is here, or on its way. One with another shape is not the same output."""
        item = self._items.get(shape.digest)
        return item if item is not None and item.shape == shape else None

    def enter(self, shapes: Sequence[Shape], user: Hashable, nonces: Sequence[bytes]) -> list[Item] | None:
        """Places for outputs that are not here, with their first user: for all of them, or None. nonces: one for each."""
        self.look()
        need = sum(map(self.room, shapes))
        if need > self._places.free + self._idle_bytes or self.taken(shapes):
            return None
        made: list[Item] = []
        for shape, nonce in zip(shapes, nonces, strict=True):
            offset = self._take(self.room(shape))
            if offset is None:
                for item in made:
                    self.forget(item)
                    self.leave(item, user)
                return None
            item = Item(shape, offset, nonce)
            item.users.add(user)
            made.append(item)
            if shape.window:  # find() does not return it, because its window never holds all of it
                self._in_pieces = item
                continue
            old = self._items.get(shape.digest)
            if old is not None:
                self.forget(old)
            self._items[shape.digest] = item
        return made

    def _take(self, room: int) -> int | None:
        while True:
            offset = self._places.take(room)
            if offset is not None or not self._idle:
                return offset
            self.forget(next(iter(self._idle)))
            self.evicted += 1

    def clear(self) -> None:
        """Evicts all outputs without users. If nothing is in use, whatever fits() has room afterwards."""
        while self._idle:
            self.forget(next(iter(self._idle)))
            self.evicted += 1

    def use(self, item: Item, user: Hashable) -> None:
        """Another user of an output that is here."""
        if not item.users and item in self._idle:
            del self._idle[item]
            self._idle_bytes -= self.room(item.shape)
        item.users.add(user)

    def leave(self, item: Item, user: Hashable) -> None:
        """A user does not need the output any more. Nothing happens if it is none."""
        if user not in item.users:
            return
        item.users.remove(user)
        if item.users:
            return
        if item.assembled is not None:
            item.assembled.close()
        if item.opened is not None:
            item.opened.close()
        elif self._items.get(item.shape.digest) is item:
            self._idle[item] = None
            self._idle_bytes += self.room(item.shape)
        elif not item.moved:
            self._free(item)

    def give_window(self, item: Item) -> None:
        """An output in pieces that has users has moved: its window is free, and the next such output may move."""
        if item.users and not item.moved:
            item.moved = True
            self._free(item)

    def forget(self, item: Item) -> None:
        """Nobody finds the output any more. Its place is free as soon as it has no users."""
        if self._items.get(item.shape.digest) is not item:
            return
        del self._items[item.shape.digest]
        if not item.users:
            del self._idle[item]
            self._idle_bytes -= self.room(item.shape)
            self._free(item)

    def _free(self, item: Item) -> None:
        if self.vacate(item):
            self._places.give(item.offset)
            if item is self._in_pieces:
                self._in_pieces = None
        else:
            self._read.append(item)

    def look(self) -> None:
        """Frees places that nobody reads in place any more."""
        if self._read:
            waiting, self._read = self._read, []
            for item in waiting:
                self._free(item)
