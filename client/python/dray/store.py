# SPDX-License-Identifier: Apache-2.0
"""The store of this node's agent: objects by key, in batches."""

from __future__ import annotations

import ctypes
import enum
import struct
from collections.abc import Callable, Iterable, Sequence
from ctypes import byref, c_char, c_uint64
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any, NamedTuple

from . import _arguments as arguments
from . import _library as lib
from . import _operations as operations
from . import errors
from .pending import Lending, Pending

if TYPE_CHECKING:
    from .client import Client
    from .handles import Region

__all__ = ["Status", "Store", "StoreItem", "StoreResult", "StoreView", "Stores", "Tier"]

_KEY_MAX, _KEYS_MAX, _COST_MAX = 255, 1024, (1 << 32) - 1
_ITEM, _RESULT = struct.Struct("=QQQQI4x"), struct.Struct("=IIQQQII")  # lib.StoreItem, lib.StoreResult


class Status(enum.IntEnum):
    """What became of a key of a batch."""

    OK = 0
    EXISTS = 1  # put: there is an object with this key, which stays as it is
    NOT_FOUND = 2
    BUSY = 3  # there is no room now: try again after `wait` seconds
    TOO_LARGE = 4  # larger than the store, the client's share of it, or the ranges of get
    CORRUPT = 5
    LOST = 6
    NOT_TRIED = 7  # the batch ended before this key


class Tier(enum.IntEnum):
    """Where an object was found."""

    NONE = 0  # nowhere, or it is not known
    MEMORY = 1  # in the memory of the agent
    DISK = 2  # on its disk
    AGENT = 3  # at another agent


class StoreItem(NamedTuple):
    """A key of put or get, and where its value lies in the region: (offset, length) of each piece, in order; or how many there are, if
    the pieces of all items are passed as one array.

    cost: seconds that it takes to compute the value again, for the eviction by value; 0: unknown.
    """

    key: bytes
    ranges: Sequence[tuple[int, int]] | int
    cost: float = 0.0


class StoreResult(NamedTuple):
    """What became of one key.

    length: bytes of the object, if it is known. wait: seconds, of Status.BUSY. tier: of get, exists and pin, where it was found.
    copies: of put, how many agents have the object, as far as this one knows.
    """

    status: Status
    length: int
    wait: float
    tier: Tier = Tier.NONE
    copies: int = 0


class StoreView:
    """An object that is read in place, without a copy: data is a read-only memoryview.

    The agent keeps the object until release(), which also ends data, or until the session ends. Use it
    as a context manager. status: as in StoreResult; data is None unless it is Status.OK.
    """

    __slots__ = ("_client", "_lease", "data", "status", "wait")

    def __init__(self, client: Client, status: Status, wait: float, data: memoryview | None, lease: int) -> None:
        self._client, self._lease = client, lease
        self.status, self.wait, self.data = status, wait, data

    def release(self) -> None:
        """Ends the lease. Does not wait. Views of `data` that are left, such as arrays, must not be used any more."""
        lease, self._lease = self._lease, 0
        if self.data is not None:
            self.data = None
        if lease and self._client._d:
            _release(self._client, [lease])

    def __enter__(self) -> StoreView:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def __repr__(self) -> str:
        return f"<StoreView {self.status.name} {len(self.data) if self.data is not None else 0} bytes>"


class Store:
    """A name space of the store of this node's agent. Made by client.store().

    Every method takes a batch of at most 1,024 keys, of 1 to 255 bytes each, and returns one result for
    each, in order; with wait=False a Pending, which can be awaited. Errors of whole batches are raised:
    errors.Unsupported (the agent has no store), errors.Denied, errors.Invalid, errors.Range and so on. Any
    thread may use it.
    """

    __slots__ = ("client", "space")

    def __init__(self, client: Client, space: str = "") -> None:
        self.client, self.space = client, space

    def put(self, region: Region, items: Iterable[StoreItem | tuple[Any, ...]], *, pieces: Any = None, replicas: int = 1,
            deadline: float | None = None, wait: bool = True) -> Any:
        """Stores the bytes of each item: [(key, [(offset, length), ...], cost), ...]; the cost may be left out.

        pieces: (offset, length) of all items, one after the other, as an array of shape (n, 2) of 64-bit integers that is contiguous in
        memory; then an item has the number of its pieces instead of a list. A batch of many pieces starts several times as fast so.
        An object appears when all its bytes are in place. One with the key that is there stays as it is
        (Status.EXISTS). The ranges belong to the agent until the batch ends; after errors.Unconfirmed
        until the event Confirmed, see lent() of the Pending. deadline: seconds.
        replicas: 2: one of the agents in store.peers is to have the objects, too. Then the batch ends when it has them, or will not:
        copies of a result says how many agents have the object. The status is that of the object here.
        """
        return self._copy(lib.STORE_PUT, region, items, pieces, deadline, wait, replicas)

    def get(self, region: Region, items: Iterable[StoreItem | tuple[Any, ...]], *, pieces: Any = None, deadline: float | None = None,
            wait: bool = True) -> Any:
        """Copies each object to the ranges of its item, from their start. length is the object's.

        pieces, and whose the ranges are: as in put().
        """
        return self._copy(lib.STORE_GET, region, items, pieces, deadline, wait)

    def exists(self, keys: Iterable[bytes], *, lease: float = 0.0, wait: bool = True) -> Any:
        """Whether there are objects, and their lengths. It does not count as a use.

        lease: seconds; the agents of store.peers are asked for what is not here, and what they have (Tier.AGENT) stays there so long,
        or store.lookup_lease if that is less: until get() or unpin() of its key by this client, or the end of the session.
        """
        return self._keys(lib.STORE_EXISTS, keys, wait, lease)

    def remove(self, keys: Iterable[bytes], *, wait: bool = True) -> Any:
        """Removes objects. Who reads one in place keeps its bytes."""
        return self._keys(lib.STORE_REMOVE, keys, wait)

    def pin(self, keys: Iterable[bytes], *, wait: bool = True) -> Any:
        """Keeps objects from being evicted, until unpin() or the end of the session."""
        return self._keys(lib.STORE_PIN, keys, wait)

    def unpin(self, keys: Iterable[bytes], *, wait: bool = True) -> Any:
        """Ends pins of this session, and leases of exists(); Status.NOT_FOUND: it has not pinned or leased the key."""
        return self._keys(lib.STORE_UNPIN, keys, wait)

    def read(self, keys: Iterable[bytes], *, wait: bool = True) -> Any:
        """Leases objects to be read in place; returns a StoreView for each key. Release each of them."""
        client = self.client
        return self._start(lib.STORE_READ, _batch(list(keys)), wait, lambda results: [_view(client, one) for one in results.v[:results.n]],
                           lambda views: [view.release() for view in views])

    def _copy(self, operation: int, region: Region, items: Iterable[Any], pieces: Any, deadline: float | None, wait: bool,
              replicas: int = 1) -> Any:
        batch = _copied(list(items), pieces)
        batch.region = region.handle
        batch.replicas = arguments.number("replicas", replicas, 2)
        batch.deadline_ms = arguments.milliseconds("deadline", deadline)
        return self._start(operation, batch, wait, _results)

    def _keys(self, operation: int, keys: Iterable[bytes], wait: bool, lease: float = 0.0) -> Any:
        batch = _batch(list(keys))
        batch.lease_ms = arguments.milliseconds("lease", lease or None)
        return self._start(operation, batch, wait, _results)

    def _start(self, operation: int, batch: lib.StoreBatch, wait: bool, convert: Callable[[lib.StoreResults], Any],
               undo: Callable[[Any], object] | None = None) -> Any:
        client = self.client
        batch.space = arguments.text("the name space", self.space)
        pending: Pending[Any] = _Batch(client, lambda c: convert(c.store.contents), undo)
        client._request(pending, lib.held.dray_store_start, operation, byref(batch))
        return client._settle(pending, wait)

    def __repr__(self) -> str:
        return f"<Store {self.space!r} of {self.client!r}>"


class _Batch(Lending[Any]):
    """An error of the copy has the results, too: error.results."""

    __slots__ = ()

    def _complete(self, c: Any) -> None:
        if not c.status:
            super()._complete(c)
            return
        results = _results(c.store.contents) if c.store else []
        error: Any = self._client._remembered(self, self._client._failure(c), c)
        error.results = results
        self._end(None, error)


class _Release(Pending[None]):
    """A lease whose client is closed has ended."""

    __slots__ = ()
    ends_quietly = True


class Stores:
    """What a client can do with the store."""

    def store(self, space: str = "") -> Store:
        """The name space of this name; empty: the one of the client's own user."""
        client: Any = self
        return Store(client, space)


_new = tuple.__new__  # a NamedTuple's own takes twice as long
_STATUSES, _TIERS = {int(one): one for one in Status}, {int(one): one for one in Tier}
_LOST, _NOWHERE = Status.LOST, Tier.NONE  # Python 3.11 looks a member up by a function


def _results(results: lib.StoreResults) -> list[StoreResult]:
    """What a newer agent says, and this client does not know, is a loss."""
    return [_new(StoreResult, (_STATUSES.get(status, _LOST), length, wait / 1000, _TIERS.get(tier, _NOWHERE), copies))
            for status, wait, length, _, _, tier, copies in _RESULT.iter_unpack(ctypes.string_at(results.v, results.n * _RESULT.size))]


def _view(client: Client, r: Any) -> StoreView:
    data = None
    if not r.status:
        data = memoryview((c_char * r.length).from_address(r.data)).cast("B").toreadonly()
    return StoreView(client, _STATUSES.get(r.status, Status.LOST), r.wait_ms / 1000, data, r.lease)


def _release(client: Client, leases: list[int]) -> None:
    pending = _Release(client)
    client._request(pending, lib.held.dray_store_release_start, (c_uint64 * len(leases))(*leases), len(leases))


def _copied(items: list[Any], pieces: Any) -> lib.StoreBatch:
    """The batch of put or get."""
    try:
        if pieces is None:
            counts = [len(item[1]) for item in items]
            pieces = list(chain.from_iterable(item[1] for item in items))
        else:
            counts = [item[1] for item in items]
        costs = [item[2] if len(item) > 2 else 0 for item in items]
        costs = [min(int(cost * 1e6), _COST_MAX) for cost in costs] if costs.count(0) < len(costs) else []
        return _batch([item[0] for item in items], counts, costs, pieces)
    except (TypeError, IndexError, struct.error) as e:
        raise errors.Invalid(f"the items are not (key, [(offset, length), ...]): {e}",
                             fix="Pass items such as (b'key', [(0, 4096)]), or (b'key', 1) with an array of all pieces.") from None


def _batch(keys: list[bytes], counts: Sequence[int] = (), costs: Sequence[int] = (), pieces: Any = ()) -> lib.StoreBatch:
    """counts: pieces of each key; none: of no key."""
    n = len(keys)
    if not 0 < n <= _KEYS_MAX:
        raise errors.Invalid(f"{n} keys", fix=f"Pass 1 to {_KEYS_MAX} keys.")
    wrong = [key for key in keys if not isinstance(key, bytes) or not 0 < len(key) <= _KEY_MAX]
    if wrong:
        raise errors.Invalid(f"the key {wrong[0]!r} is not 1 to {_KEY_MAX} bytes", fix="Pass bytes.")
    words, there, keep = operations.pointer(pieces, operations.PIECES)
    if sum(counts) != there or min(counts, default=0) < 0:
        raise errors.Invalid(f"the items have {sum(counts)} pieces, and the array {there}", fix="Pass as many pieces as the items say.")
    # the items, their pieces unless these lie in memory of the caller, and the keys
    own, size = words if isinstance(words, bytes) else b"", n * _ITEM.size
    memory = bytearray().join((bytes(size), own, *keys))
    kept = c_char.from_buffer(memory)
    start, lengths, counts = ctypes.addressof(kept), list(map(len, keys)), counts or [0] * n
    names = accumulate(lengths, initial=start + size + len(own))
    places = accumulate([count * operations.PIECES.size for count in counts], initial=start + size if isinstance(words, bytes) else words)
    memory[:size] = b"".join(map(_ITEM.pack, names, lengths, places, counts, costs or [0] * n))
    batch = lib.StoreBatch(items=start, items_n=n)
    batch._keep = (kept, keep)
    return batch
