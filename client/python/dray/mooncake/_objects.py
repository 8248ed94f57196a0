# SPDX-License-Identifier: Apache-2.0
"""Objects of the agent's store by way of slots, for memory that only this process has."""

from __future__ import annotations

import hashlib
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from .. import errors
from ..client import Client
from ..store import Status, StoreResult
from ._copy import Piece, copy_in, copy_out, peek
from ._slots import DATA_MAX, Slot, Slots

__all__ = ["Objects", "key_of"]

_SLOTS = 4
_SMALL = 4096
_KEYS_MAX = 1024  # of a batch
_EPOCH, _EPOCH_SIZE, _EPOCH_COST = b"mooncake epoch", 8, 3600.0
_KEY_MAX = 255 - _EPOCH_SIZE
_TRIES = 20  # of a batch whose answer is "busy": a full store needs a moment to make room

_BUSY = StoreResult(Status.BUSY, 0, 0.0)
_ABSENT = StoreResult(Status.NOT_FOUND, 0, 0.0)

Item = tuple[bytes, Sequence[Piece]]  # a key, and the memory of its value
Place = tuple[int, int]  # offset in a slot, and length


def key_of(key: str) -> bytes:
    """A key that the agent's store takes behind an epoch; longer ones are hashed."""
    data = key.encode()
    return data if len(data) <= _KEY_MAX else b"sha256 " + hashlib.sha256(data).hexdigest().encode()


class Objects:
    """A name space of the agent's store. Any thread may use it. All calls wait, until `seconds` at most.

    The agent has no list of keys. So each key begins with the epoch, a random number that an object has, and which all
    clients read at the start of a batch. Without that object there are no others: remove_all() removes it.
    """

    def __init__(self, client: Client, space: str, seconds: float) -> None:
        self._client, self._seconds = client, seconds
        self._store = client.store(space)
        self._slots, self._small = Slots(client, _SLOTS), Slots(client, _SLOTS, _SMALL)
        self._large = threading.Lock()

    def _ends(self) -> float:
        return time.monotonic() + self._seconds

    def _epoch(self, ends: float) -> bytes | None:
        """None: there are no objects."""
        with self._small.take(ends - time.monotonic()) as slot:
            result, = self._retry([(_EPOCH, ())], [(0, _EPOCH_SIZE)], ends,
                                  lambda some, deadline: self._store.get(slot.region, some, deadline=deadline))
            if result.status is Status.OK:
                return bytes(slot.memory.view[:result.length])
        if result.status in (Status.NOT_FOUND, Status.CORRUPT):
            return None
        raise errors.Busy("the agent's store cannot be read now", fix="Try again.")

    def _begin(self, ends: float) -> bytes:
        """The epoch; a new one if there is none. Of several that begin one at once, the first one counts."""
        epoch = self._epoch(ends)
        if epoch is None:
            with self._small.take(ends - time.monotonic()) as slot:
                slot.memory.view[:_EPOCH_SIZE] = secrets.token_bytes(_EPOCH_SIZE)
                self._retry([(_EPOCH, ())], [(0, _EPOCH_SIZE)], ends,
                            lambda some, deadline: self._store.put(slot.region, [(*some[0], _EPOCH_COST)], deadline=deadline))
            epoch = self._epoch(ends)
        if epoch is None:
            raise errors.Busy("the agent's store has no room now", fix="Try again.")
        return epoch

    def remove_all(self) -> None:
        """Objects that there are cannot be found any more. The agent evicts them when it needs their room."""
        self._store.remove([_EPOCH])

    def put(self, items: Sequence[Item], replace: bool = False) -> list[StoreResult]:
        """Stores the values. Status.EXISTS: there was an object with this key, which stays, unless `replace` removes it."""
        for _, pieces in items:
            _expect_mapped(pieces)

        def copy(slot: Slot, part: Sequence[Item], places: list[Place], ends: float) -> list[StoreResult]:
            for (_, pieces), (at, _) in zip(part, places):
                copy_in(slot.memory.fd, at, pieces)
            if replace:  # what could go wrong with the values has gone well
                self._store.remove([key for key, _ in part])
            return self._retry(part, places, ends,
                               lambda some, deadline: self._store.put(slot.region, some, deadline=deadline))

        ends = self._ends()
        epoch = self._begin(ends)
        return self._in_parts([(epoch + key, pieces) for key, pieces in items], ends, copy)

    def get(self, items: Sequence[Item]) -> list[StoreResult]:
        """Copies the objects to the memory of their items, from its start. Status.TOO_LARGE: it is too small."""
        def copy(slot: Slot, part: Sequence[Item], places: list[Place], ends: float) -> list[StoreResult]:
            results = self._retry(part, places, ends,
                                  lambda some, deadline: self._store.get(slot.region, some, deadline=deadline))
            for (_, pieces), (at, _), result in zip(part, places, results):
                if result.status is Status.OK:
                    copy_out(slot.memory.fd, at, list(_first(pieces, result.length)))
            return results

        ends = self._ends()
        epoch = self._epoch(ends)
        if epoch is None:
            return [_ABSENT] * len(items)
        return self._in_parts(self._cut([(epoch + key, pieces) for key, pieces in items]), ends, copy)

    def _cut(self, items: Sequence[Item]) -> Sequence[Item]:
        """Places that need a large slot are cut to the object, or to a byte if there is none or it is larger."""
        large = [i for i, (_, pieces) in enumerate(items) if _length(pieces) > DATA_MAX]
        cut = list(items)
        for i, result in zip(large, self._on_keys([items[i][0] for i in large], self._store.exists)):
            key, pieces = items[i]
            fits = result.status is Status.OK and result.length <= _length(pieces)
            cut[i] = key, list(_first(pieces, result.length if fits else 1))
        return cut

    def exists(self, keys: Sequence[bytes]) -> list[StoreResult]:
        """Whether there are objects, and their lengths."""
        return self._of_epoch(keys, self._store.exists)

    def remove(self, keys: Sequence[bytes]) -> list[StoreResult]:
        """Removes objects."""
        return self._of_epoch(keys, self._store.remove)

    def pin(self, keys: Sequence[bytes]) -> None:
        """Keeps objects from being evicted, until the session ends."""
        self._of_epoch(keys, self._store.pin)

    def _of_epoch(self, keys: Sequence[bytes], work: Callable[[Sequence[bytes]], list[StoreResult]]) -> list[StoreResult]:
        epoch = self._epoch(self._ends())
        return [_ABSENT] * len(keys) if epoch is None else self._on_keys([epoch + key for key in keys], work)

    def _on_keys(self, keys: Sequence[bytes], work: Callable[[Sequence[bytes]], list[StoreResult]]) -> list[StoreResult]:
        return [r for part in _parts(keys) for r in work(part)]

    def _in_parts(self, items: Sequence[Item], ends: float, copy: Callable[..., list[StoreResult]]) -> list[StoreResult]:
        results: list[StoreResult] = []
        for part, places, size in _fill(items):
            left = max(0.001, ends - time.monotonic())
            if size <= DATA_MAX:
                with self._slots.take(left) as slot:
                    results += copy(slot, part, places, ends)
            else:
                results += self._by_large_slot(size, left, lambda slot: copy(slot, part, places, ends))
        return results

    def _by_large_slot(self, size: int, seconds: float, copy: Callable[[Slot], list[StoreResult]]) -> list[StoreResult]:
        """By a slot of its own; one at a time."""
        if not self._large.acquire(timeout=seconds):
            raise errors.Deadline("other large objects were copied until the deadline", fix="Use fewer threads for them.")
        try:
            slot = Slot(self._client, size)
            try:
                return copy(slot)
            finally:
                slot.close()
        finally:
            self._large.release()

    def _retry(self, part: Sequence[Item], places: list[Place], ends: float,
               start: Callable[[list[Any], float], Any]) -> list[StoreResult]:
        """Results of a batch, in which those that were busy have been tried again."""
        results, waiting = [_BUSY] * len(part), list(range(len(part)))
        for _ in range(_TRIES):
            some = [(part[i][0], [places[i]] if places[i][1] else []) for i in waiting]
            for i, result in zip(waiting, start(some, max(0.001, ends - time.monotonic()))):
                results[i] = result
            waiting = [i for i in waiting if results[i].status is Status.BUSY]
            pause = min((results[i].wait for i in waiting), default=0.0)
            if not waiting or time.monotonic() + pause >= ends:
                break
            time.sleep(min(pause, 0.1))
        return results


def _parts(keys: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    for i in range(0, len(keys), _KEYS_MAX):
        yield keys[i:i + _KEYS_MAX]


def _fill(items: Sequence[Item]) -> Iterator[tuple[Sequence[Item], list[Place], int]]:
    """(items, (offset, length) of each in a slot, bytes): as many as fit a slot, or one that is larger."""
    begin, at = 0, 0
    places: list[Place] = []
    for i, (_, pieces) in enumerate(items):
        length = _length(pieces)
        if i > begin and (at + length > DATA_MAX or i - begin == _KEYS_MAX):
            yield items[begin:i], places, at
            begin, at, places = i, 0, []
        places.append((at, length))
        at += length
    if places:
        yield items[begin:], places, at


def _length(pieces: Sequence[Piece]) -> int:
    return sum(n for _, n in pieces)


def _expect_mapped(pieces: Sequence[Piece]) -> None:
    """errors.Range: pieces of a large value do not begin or end in mapped memory, so that no slot is made for it."""
    if _length(pieces) > DATA_MAX:
        for address, length in pieces:
            peek(address, 1)
            peek(address + length - 1, 1)


def _first(pieces: Sequence[Piece], n: int) -> Iterator[Piece]:
    """The first n bytes of pieces."""
    for address, length in pieces:
        if n <= 0:
            return
        yield address, min(n, length)
        n -= length
