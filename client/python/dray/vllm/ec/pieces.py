# SPDX-License-Identifier: Apache-2.0
"""An output that is larger than a pool moves in pieces.

The encoder's worker keeps the output, outside the pool, and copies pieces of it into a window of the pool: a ring of SLOTS slots,
each with a header (header.py) that has the piece's number. The consumer reads the header of the next piece until it is the right one,
then the piece, in as many reads as its own window asks for, and assembles the output outside its pool. With the first read of each
header it tells the encoder, by a notification, how many pieces it has: the slot of a piece that all consumers have is filled anew. If the
output fits into the encoder's pool and only the consumer's is too small, nothing but the consumer's window is needed.

All ends as it does for other outputs: with the right, the request or the agent. A pool has one such output at a time, so
that an engine keeps one output outside its pool, and others have the rest of it.
"""

from __future__ import annotations

import secrets
import struct
from typing import TYPE_CHECKING, NamedTuple

from ... import errors
from . import header
from .allocator import GRANULE
from .header import HEADER, NONCE
from .pool_memory import same_number

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .pool import Item
    from .pool_memory import PoolMemory
    from .protocol import Offered

__all__ = ["SLOTS", "TAG", "Handout", "Pieces", "Progress", "consumer_window", "encoder_window", "piece_of", "slot"]

SLOTS = 2  # one is filled while another one is read
TAG = 0x6563  # of notifications: "ec"
_PROGRESS = struct.Struct(f"<{NONCE}s8sQ")


def _slot_size(pool: int) -> int:
    """Bytes of a slot, with its header: a quarter of the pool, so that other outputs have at least half of it."""
    return max(pool // 4 // GRANULE * GRANULE, 2 * GRANULE)


def encoder_window(pool: int) -> int:
    """Bytes of an encoder's window."""
    return SLOTS * _slot_size(pool)


def consumer_window(pool: int) -> int:
    """Bytes of a consumer's window: one slot."""
    return _slot_size(pool)


def piece_of(window: int) -> int:
    """Bytes of an output in each piece of an encoder's window."""
    return window // SLOTS - HEADER


def slot(offset: int, piece: int, index: int) -> int:
    """Where the header of a piece is, in a window at `offset`."""
    return offset + index % SLOTS * (HEADER + piece)


class Progress(NamedTuple):
    """A notification: a consumer has so many pieces. reader: a random name of the consumer's load."""

    nonce: bytes
    reader: bytes
    pieces: int

    def pack(self) -> bytes:
        return _PROGRESS.pack(*self)

    @classmethod
    def read(cls, payload: bytes) -> Progress | None:
        """None: it is something else."""
        return cls(*_PROGRESS.unpack(payload)) if len(payload) == _PROGRESS.size else None


class Handout:
    """At the scheduler side of the encoder: which pieces of an output are in its window. consumers: how many engines read it."""

    def __init__(self, item: Item, consumers: int) -> None:
        self.item = item
        piece = piece_of(item.shape.window)
        self._count, self._consumers = -(-item.shape.size // piece), consumers
        self._filled = min(SLOTS, self._count)  # the worker does that when it has the output
        self._read: dict[bytes, int] = {}  # pieces, by reader

    def take(self, progress: Progress) -> None:
        """A consumer says how many pieces it has."""
        if progress.reader in self._read or len(self._read) < self._consumers:
            self._read[progress.reader] = min(progress.pieces, self._filled)

    def next(self) -> Iterable[int]:
        """Pieces that the worker has to copy into the window now."""
        passed = min(self._read.values()) if len(self._read) == self._consumers else 0
        first, self._filled = self._filled, max(self._filled, min(passed + SLOTS, self._count))
        return range(first, self._filled)


class Pieces:
    """At the scheduler side of the consumer: one output, from read to read. offered: by the encoder, whose pool is on `device`."""

    def __init__(self, item: Item, offered: Offered, device: str, memory: PoolMemory) -> None:
        self._item, self._offered, self._device, self._memory = item, offered, device, memory
        self._piece = offered.piece or item.shape.size
        self._reader = secrets.token_bytes(8)
        self._at = 0  # bytes that have been assembled
        self._told = -1  # pieces of which the encoder knows
        self._number: int | None = None  # checksum of the current piece, when it is known to be there
        if not offered.piece:
            assert item.seal is not None
            self._number = item.seal.number
        self._length = 0  # of the read that is under way

    @property
    def over(self) -> bool:
        return self._at == self._item.shape.size

    def operation(self) -> tuple[tuple[int, int, int], tuple[int, bytes] | None]:
        """The next read, with what the encoder is told by it. errors.NoMemory: for the whole output. errors.Denied."""
        if self._item.assembled is None:
            assert self._item.seal is not None
            if self._item.seal.digest != self._item.shape.digest:
                raise header.of_another()
            self._item.assembled = self._memory.assemble(self._item)
        index, inside = divmod(self._at, self._piece)
        if self._number is None:
            self._length = 0
            said = (TAG, Progress(self._offered.nonce, self._reader, index).pack()) if index > self._told else None
            return (self._item.offset, slot(self._offered.offset, self._piece, index), HEADER), said
        end = min((index + 1) * self._piece, self._item.shape.size)
        self._length = min(end - self._at, self._item.shape.window - HEADER)
        if self._offered.piece:
            at = slot(self._offered.offset, self._piece, index) + HEADER
        else:
            at = self._offered.offset + (HEADER if self._device == "cpu" else 0)
        return (self._item.offset + HEADER, at + inside, self._length), None

    def take(self, told: bool = True) -> bool:
        """What was read last has arrived. told: so has the notification. False: the encoder has not copied the next piece yet, or not all of its header.

        errors.NotFound, errors.Denied, errors.Io: it is something else.
        """
        if not self._length:
            if told:
                self._told = self._at // self._piece
            return self._take_header()
        start = self._at // self._piece * self._piece
        self._memory.append(self._item, self._at, self._length)
        self._at += self._length
        if self._at == min(start + self._piece, self._item.shape.size):
            assert self._number is not None
            if not same_number(self._memory.number_of(self._item, start, self._at - start, self._device), self._number):
                raise errors.Io(header.OTHER_BYTES)
            self._number = None
        return True

    def _take_header(self) -> bool:
        found = header.unpack(self._memory.peek(self._item.offset, HEADER))
        if found.magic != header.MAGIC or found.nonce != self._offered.nonce:
            raise errors.NotFound("the other engine does not hand out this output, or no longer")
        if found.digest != self._item.shape.digest:
            raise header.of_another()
        index = self._at // self._piece
        if not found.whole or found.piece < index:
            return False
        if found.piece > index:
            raise errors.NotFound("the other engine has handed out later pieces already")
        self._number = found.number
        return True
