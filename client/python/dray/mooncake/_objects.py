# SPDX-License-Identifier: Apache-2.0
"""Objects of the agent's store: by way of slots for memory that only this process has, and directly for memory of GPUs."""

from __future__ import annotations

import contextlib
import hashlib
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from .. import errors
from ..client import Client
from ..handles import Region
from ..store import Status, StoreResult
from ._copy import Piece, peek
from ._gpu import GpuRegions
from ._local import Local
from ._registered import Registered, Taken
from ._slots import DATA_MAX, Slot, Slots

__all__ = ["Objects", "key_of"]

_SLOTS = 4
_SMALL = 4096
_KEYS_MAX, _PLACES_MAX = 1024, 4096  # of a batch
_EPOCH, _EPOCH_SIZE, _EPOCH_COST = b"mooncake epoch", 8, 3600.0
_KEY_MAX = 255 - _EPOCH_SIZE
_TRIES = 20  # of a batch whose answer is "busy": a full store needs a moment to make room

_BUSY = StoreResult(Status.BUSY, 0, 0.0)
_ABSENT = StoreResult(Status.NOT_FOUND, 0, 0.0)

Item = tuple[bytes, Sequence[Piece]]  # a key, and the memory of its value
Place = tuple[int, int]  # offset in a slot or region, and length


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
        self._registered = Registered(GpuRegions(client))  # of GPUs
        self._local = Local(client)

    def register(self, address: int, length: int) -> None:
        """Makes memory usable. Waits for the agent if it is on a GPU; for other memory, nothing is to do. Errors: GpuRegions.take()"""
        self._registered.register_gpu(address, length)

    def unregister(self, address: int) -> None:
        """Ends register(), after batches that use the memory."""
        if self._registered.find(address, 1) is not None:
            self._registered.unregister(address)

    def _ends(self) -> float:
        return time.monotonic() + self._seconds

    def _epoch(self, ends: float) -> bytes | None:
        """None: there are no objects."""
        with self._small.take(ends - time.monotonic()) as slot:
            result, = self._retry([(_EPOCH, ())], [[(0, _EPOCH_SIZE)]], ends,
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
                self._retry([(_EPOCH, ())], [[(0, _EPOCH_SIZE)]], ends,
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
        taken: Taken

        def store(region: Region, part: Sequence[Item], places: list[list[Place]], ends: float) -> list[StoreResult]:
            if replace:  # what could go wrong with the values has gone well
                self._store.remove([key for key, _ in part])
            return self._retry(part, places, ends, lambda some, deadline: self._store.put(region, some, deadline=deadline))

        def copy(slot: Slot, part: Sequence[Item], places: list[Place], ends: float) -> list[StoreResult]:
            self._local.copy_in(slot, [(at, pieces) for (_, pieces), (at, _) in zip(part, places)], taken, ends)
            return store(slot.region, part, [[place] for place in places], ends)

        ends = self._ends()
        with self._using(items) as taken:
            for _, pieces in items:
                _expect_mapped(pieces, taken)
            epoch = self._begin(ends)
            return self._sorted([(epoch + key, pieces) for key, pieces in items], taken, ends, store,
                                lambda some: self._in_parts(some, ends, copy))

    def get(self, items: Sequence[Item]) -> list[StoreResult]:
        """Copies the objects to the memory of their items, from its start. Status.TOO_LARGE: it is too small."""
        taken: Taken

        def load(region: Region, part: Sequence[Item], places: list[list[Place]], ends: float) -> list[StoreResult]:
            return self._retry(part, places, ends, lambda some, deadline: self._store.get(region, some, deadline=deadline))

        def copy(slot: Slot, part: Sequence[Item], places: list[Place], ends: float) -> list[StoreResult]:
            results = load(slot.region, part, [[place] for place in places], ends)
            found = [(at, list(_first(pieces, result.length))) for (_, pieces), (at, _), result in zip(part, places, results)
                     if result.status is Status.OK]
            self._local.copy_out(slot, found, taken, ends)
            return results

        ends = self._ends()
        with self._using(items) as taken:
            epoch = self._epoch(ends)
            if epoch is None:
                return [_ABSENT] * len(items)
            return self._sorted([(epoch + key, pieces) for key, pieces in items], taken, ends, load,
                                lambda some: self._in_parts(self._cut(some), ends, copy))

    @contextlib.contextmanager
    def _using(self, items: Sequence[Item]) -> Iterator[Taken]:
        """Keeps memory of GPUs registered meanwhile."""
        taken = self._registered.take([piece for _, pieces in items for piece in pieces] if self._registered.has_gpu else [])
        try:
            yield taken
        finally:
            self._registered.give(taken)

    def _sorted(self, items: Sequence[Item], taken: Taken, ends: float, direct: Callable[..., list[StoreResult]],
                by_slots: Callable[[Sequence[Item]], list[StoreResult]]) -> list[StoreResult]:
        """Items in one region of a GPU go between that and the store, and all others by way of slots."""
        results = [_ABSENT] * len(items)
        others: list[int] = []
        regions: dict[Region, list[tuple[int, list[Place]]]] = {}
        for i, (_, pieces) in enumerate(items):
            found = _on_gpu(pieces, taken)
            if found is None:
                others.append(i)
            else:
                regions.setdefault(found[0], []).append((i, found[1]))
        for region, placed in regions.items():
            for part in _batches(placed):
                done = direct(region, [items[i] for i, _ in part], [places for _, places in part], ends)
                for (i, _), result in zip(part, done):
                    results[i] = result
        for i, result in zip(others, by_slots([items[i] for i in others])):
            results[i] = result
        return results

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

    def _retry(self, part: Sequence[Item], places: list[list[Place]], ends: float,
               start: Callable[[list[Any], float], Any]) -> list[StoreResult]:
        """Results of a batch, in which those that were busy have been tried again."""
        results, waiting = [_BUSY] * len(part), list(range(len(part)))
        for _ in range(_TRIES):
            some = [(part[i][0], [place for place in places[i] if place[1]]) for i in waiting]
            for i, result in zip(waiting, start(some, max(0.001, ends - time.monotonic()))):
                results[i] = result
            waiting = [i for i in waiting if results[i].status is Status.BUSY]
            pause = min((results[i].wait for i in waiting), default=0.0)
            if not waiting or time.monotonic() + pause >= ends:
                break
            time.sleep(min(pause, 0.1))
        return results


def _expect_mapped(pieces: Sequence[Piece], taken: Taken) -> None:
    """errors.Range: pieces of a large value do not begin or end in mapped memory, so that no slot is made for it."""
    if _length(pieces) > DATA_MAX:
        for address, length in pieces:
            if taken.find_gpu(address, length) is None:
                peek(address, 1)
                peek(address + length - 1, 1)


def _on_gpu(pieces: Sequence[Piece], taken: Taken) -> tuple[Region, list[Place]] | None:
    """Where pieces lie that are in one region of memory on a GPU; None: elsewhere, or they are too many."""
    if not taken.has_gpu or len(pieces) > _PLACES_MAX:
        return None
    region, places = None, list[Place]()
    for address, length in pieces:
        buffer = taken.find_gpu(address, length)
        if buffer is None or region not in (None, buffer.region):
            return None
        region = buffer.region
        places.append((address - buffer.start, length))
    return (region, places) if region is not None else None


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


def _batches(placed: Sequence[tuple[int, list[Place]]]) -> Iterator[Sequence[tuple[int, list[Place]]]]:
    """Parts that fit a batch."""
    begin, n = 0, 0
    for i, (_, places) in enumerate(placed):
        if i > begin and (n + len(places) > _PLACES_MAX or i - begin == _KEYS_MAX):
            yield placed[begin:i]
            begin, n = i, 0
        n += len(places)
    if placed:
        yield placed[begin:]


def _length(pieces: Sequence[Piece]) -> int:
    return sum(n for _, n in pieces)


def _first(pieces: Sequence[Piece], n: int) -> Iterator[Piece]:
    """The first n bytes of pieces."""
    for address, length in pieces:
        if n <= 0:
            return
        yield address, min(n, length)
        n -= length
