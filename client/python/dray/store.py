# SPDX-License-Identifier: Apache-2.0
"""The store of this node's agent: objects by key, in batches."""

from __future__ import annotations

import contextlib
import ctypes
import enum
import struct
from array import array
from collections.abc import Iterable, Sequence
from ctypes import byref, c_char, c_char_p, c_uint64, c_void_p, string_at
from functools import partial
from itertools import accumulate, chain
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from weakref import ref

from . import _arguments as arguments
from . import _library as lib
from . import _operations as operations
from . import errors
from .handles import Region
from .pending import HELD_STORE, Lending, Pending

if TYPE_CHECKING:
    from .client import Client

__all__ = ["BlockLayout", "Status", "Store", "StoreItem", "StoreResult", "StoreView", "Stores", "Tier"]

_KEY_MAX, _KEYS_MAX, _COST_MAX = 255, 1024, (1 << 32) - 1
_RESULT = struct.Struct("=IIQQQII")  # lib.StoreResult
_RESULTS, _RESULTS_AT = struct.Struct("=QQ"), lib.Completion.store.offset  # lib.StoreResults
_Result, _Results = c_char * _RESULT.size, c_char * _RESULTS.size
_ADDRESS = struct.Struct("=Q")
_WORDS = ctypes.sizeof(lib.StoreItem) // 8  # of an item: each of its fields begins a word of 64 bits
_PIECE = struct.Struct("=QQQ")  # lib.StoreRange
_ONE = struct.Struct("=QQIIQQI4xQ QQQQI4xQ QQQ")  # lib.StoreBatch, an item and a piece of it
_ITEM_AT, _PIECE_AT = ctypes.sizeof(lib.StoreBatch), _ONE.size - _PIECE.size


class Status(enum.IntEnum):
    """What became of a key of a batch."""

    OK = 0
    EXISTS = 1  # put: there is an object with this key, which stays as it is
    NOT_FOUND = 2
    BUSY = 3  # there is no room now: try again after `wait` seconds
    TOO_LARGE = 4  # larger than the store, the client's shares of it, or the ranges of get
    CORRUPT = 5
    LOST = 6
    NOT_TRIED = 7  # the batch ended before this key
    # put at another agent:
    UNREACHABLE = 8  # it is not connected, or silent; it may have the object
    DENIED = 9  # it may not be asked, has no store, or refuses this user
    UNSUPPORTED = 10  # it is too old


class Tier(enum.IntEnum):
    """Where an object was found."""

    NONE = 0  # nowhere, or it is not known
    MEMORY = 1  # in the memory of the agent
    DISK = 2  # on its disk
    AGENT = 3  # at another agent


class BlockLayout:
    """Where the blocks of a cache lie in a region, for values that are blocks: each piece of a block as (offset of that of block 0, length,
    step from a block's to the next one's), in order, in bytes. Does not change; any thread may use it."""

    __slots__ = ("_address", "_keep", "_n")

    def __init__(self, pieces: Any) -> None:
        """pieces: a list, or an array of shape (n, 3) of 64-bit integers that is contiguous in memory and then must not change.

        errors.Invalid, errors.Range: they are something else.
        """
        words, self._n, self._keep = operations.pointer(pieces, operations.PIECES_OF_BLOCKS)
        if isinstance(words, bytes):
            self._keep = ctypes.create_string_buffer(words, len(words))
            words = ctypes.addressof(self._keep)
        self._address = words

    def block(self, number: int) -> list[tuple[int, int]]:
        """(offset, length) of the pieces of a block."""
        words = ctypes.string_at(self._address, self._n * _PIECE.size)
        return [(offset + number * step, length) for offset, length, step in _PIECE.iter_unpack(words)]

    def __len__(self) -> int:
        return self._n

    def __repr__(self) -> str:
        return f"<BlockLayout of {self._n} pieces>"


class StoreItem(NamedTuple):
    """A key of put or get, and where its value lies in the region: (offset, length) of each piece, in order; or the layout of blocks, of
    which `block` is one. A batch has one or the other.

    cost: seconds that it takes to compute the value again, for the eviction by value; 0: unknown.
    """

    key: bytes
    ranges: Sequence[tuple[int, int]] | BlockLayout
    cost: float = 0.0
    block: int = 0


class StoreResult(NamedTuple):
    """What became of one key.

    length: bytes of the object, if it is known. wait: seconds, of Status.BUSY. tier: of get, exists and pin, where it was found; of put,
    Tier.AGENT if it is at another agent.
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
    as a context manager. status: as in StoreResult; data is None unless it is Status.OK. The end of the client ends data, too: it raises
    ValueError then, unless something uses its buffer. What was made of it, such as an array or a slice, has bytes of any object after that.
    """

    __slots__ = ("_client", "_lease", "data", "status", "wait")

    def __init__(self, client: Client, status: Status, wait: float, data: memoryview | None, lease: int) -> None:
        self._client, self._lease = client, lease
        self.status, self.wait, self.data = status, wait, data

    def release(self) -> None:
        """Ends the lease. Does not wait. Views of `data` that are left, such as arrays, must not be used any more.

        errors.Busy: too many requests wait. The lease lasts then; try again after process().
        """
        data, self.data = self.data, None
        if data is not None:
            with contextlib.suppress(BufferError):  # an array still uses it
                data.release()
        _release(self._client, [self])

    def __enter__(self) -> StoreView:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def __repr__(self) -> str:
        try:
            length = len(self.data) if self.data is not None else 0
        except ValueError:  # the client was closed
            length = 0
        return f"<StoreView {self.status.name} {length} bytes>"


class Store:
    """A name space of the store of this node's agent. Made by client.store().

    Every method takes a batch of at most 1,024 keys, of 1 to 255 bytes each, and returns one result for
    each, in order; with wait=False a Pending, which can be awaited. Errors of whole batches are raised:
    errors.Unsupported (the agent has no store), errors.Denied, errors.Invalid, errors.Range and so on. Any
    thread may use it.
    """

    __slots__ = ("_at", "_ones", "_text", "_text_at", "at", "client", "space")

    def __init__(self, client: Client, space: str = "", at: str = "") -> None:
        self.client, self.space, self._text = client, space, arguments.text("the name space", space)
        self.at, self._at = at, arguments.text("the agent", at)
        self._text_at = ctypes.cast(c_char_p(self._text), c_void_p).value or 0
        self._ones: list[_One] = []

    def put(self, region: Region, items: Iterable[StoreItem | tuple[Any, ...]], *, replicas: int = 0, at: str | None = None,
            deadline: float | None = None, wait: bool = True) -> Any:
        """Stores the bytes of each item: [(key, [(offset, length), ...], cost), ...], or [(key, layout, cost, block), ...] with a
        BlockLayout. The cost, and the block, may be left out. A batch of many pieces starts several times as fast with a layout.
        An object appears when all its bytes are in place. One with the key that is there stays as it is
        (Status.EXISTS). The ranges belong to the agent until the batch ends; after errors.Unconfirmed
        until the event Confirmed, and after cancel() until the agent has answered, see lent() of the Pending. After errors.Timeout
        (the client's timeout) they do so as well: remove the region to be sure. deadline: seconds.
        replicas: 2: one of the agents in store.peers is to have the objects, too. Then the batch ends when it has them, or will not:
        copies of a result says how many agents have the object. The status is that of the object here. 1: this agent alone; 0: what
        store.replicas of the agent says.
        at: "HOST:PORT" of one of the agents in store.peers: the objects go there, and not to this node's agent. The batch ends when they are
        there (Tier.AGENT), or will not be; then no agent keeps them. A key that is here already is Status.EXISTS, and stays here. "local":
        this node's agent. None: what client.store() was told. Not with replicas = 2.
        """
        where = self._at if at is None else arguments.text("the agent", at)
        return self._copy(lib.STORE_PUT, region, items, deadline, wait, replicas, where)

    def get(self, region: Region, items: Iterable[StoreItem | tuple[Any, ...]], *, deadline: float | None = None, wait: bool = True) -> Any:
        """Copies each object to the ranges of its item, from their start. length is the object's.

        What an item is, and whose the ranges are: as in put().
        """
        return self._copy(lib.STORE_GET, region, items, deadline, wait)

    def exists(self, keys: Iterable[bytes], *, lease: float = 0.0, wait: bool = True) -> Any:
        """Whether there are objects, and their lengths. It does not count as a use.

        lease: seconds; the agents of store.peers are asked for what is not here, and what they have (Tier.AGENT) stays there so long,
        or store.lookup_lease if that is less: until get() or unpin() of its key by this client, or the end of the session.
        """
        return self._keys(lib.STORE_EXISTS, keys, wait, lease)

    def remove(self, keys: Iterable[bytes], *, wait: bool = True) -> Any:
        """Removes objects. Who reads one in place keeps its bytes."""
        return self._keys(lib.STORE_REMOVE, keys, wait)

    def pin(self, keys: Iterable[bytes], *, deadline: float | None = None, wait: bool = True) -> Any:
        """Keeps objects from being evicted, until unpin() or the end of the session.

        deadline: seconds in which objects that are only on disk get room in memory; Status.BUSY: it has none. None: the agent's default
        for transfers.
        """
        return self._keys(lib.STORE_PIN, keys, wait, deadline=deadline)

    def unpin(self, keys: Iterable[bytes], *, wait: bool = True) -> Any:
        """Ends pins of this session, and leases of exists(); Status.NOT_FOUND: it has not pinned or leased the key."""
        return self._keys(lib.STORE_UNPIN, keys, wait)

    def read(self, keys: Iterable[bytes], *, deadline: float | None = None, wait: bool = True) -> Any:
        """Leases objects to be read in place; returns a StoreView for each key. Release each of them.

        deadline: as in pin().
        """
        return self._keys(lib.STORE_READ, keys, wait, deadline=deadline)

    def _copy(self, operation: int, region: Region, items: Iterable[Any], deadline: float | None, wait: bool, replicas: int = 0,
              at: bytes = b"") -> Any:
        if not isinstance(region, Region):
            raise errors.Invalid(f"the region is a {type(region).__name__}, not a Region", fix="Pass the Region that has the ranges.")
        if region.client is not self.client:
            raise self.client._foreign(region)
        if type(items) is not list:
            items = list(items)
        handle = region.handle if region.error is None and region.handle else region._use()
        limit = 0 if deadline is None else arguments.milliseconds("deadline", deadline)
        copies = arguments.number("replicas", replicas, 2) if replicas else 0
        if len(items) == 1 and not at and (one := self._one(items[0], handle, limit, 0, copies)):
            return self._start(operation, one.ref, wait, one)
        batch = _copied(items)
        batch.space, batch.region, batch.deadline_ms, batch.replicas, batch.at = self._text, handle, limit, copies, at
        return self._start(operation, byref(batch), wait)

    def _keys(self, operation: int, keys: Iterable[bytes], wait: bool, lease: float = 0.0, deadline: float | None = None) -> Any:
        keys, lease_ms = list(keys), arguments.milliseconds("lease", lease) if lease else 0
        limit = 0 if deadline is None else arguments.milliseconds("deadline", deadline)
        if len(keys) == 1 and (one := self._one((keys[0], ()), 0, limit, lease_ms, 0)):
            return self._start(operation, one.ref, wait, one)
        batch = _batch(keys)
        batch.space, batch.deadline_ms, batch.lease_ms = self._text, limit, lease_ms
        return self._start(operation, byref(batch), wait)

    def _one(self, item: Any, region: int, deadline_ms: int, lease_ms: int, replicas: int) -> _One | None:
        """A batch of one item; None: it takes one of _batch()."""
        try:
            one = self._ones.pop()
        except IndexError:
            one = _One()
        if one.pack(item, self._text_at, region, deadline_ms, lease_ms, replicas):
            return one
        self._ones.append(one)
        return None

    def _start(self, operation: int, batch: Any, wait: bool, one: _One | None = None) -> Any:
        pending = (_Reading if operation == lib.STORE_READ else _Batch)(self.client)
        result = self.client._start(pending, wait, lib.held.dray_store_start, operation, batch)
        if one is not None:
            ones = self._ones
            ones += (one,)  # by no call, after which a signal's handler may run
        return result

    def __repr__(self) -> str:
        return f"<Store {self.space!r} of {self.client!r}>"


class _Batch(Lending[Any]):
    """An error of the copy has the results, too: error.results."""

    __slots__ = ()
    _holds = HELD_STORE

    def cancel(self) -> bool:
        """Gives the batch up; False if it has ended. Does not wait.

        It ends here with errors.Cancelled. The agent is asked to stop the copy of a PUT or GET, and may use its ranges until it answers: see
        lent().
        """
        client = self._client
        if self._ended:
            return False
        client._given_up.add(self._key)  # before it has ended for the caller, who may ask then
        if not super().cancel():
            client._given_up.discard(self._key)
            return False
        with contextlib.suppress(errors.Error):  # it has just ended, or copies nothing
            client._check(lib.held.dray_cancel, self._id)
        return True

    def lent(self) -> bool:
        if self._key in self._client._given_up:
            self._client._progress()
            if self._key in self._client._given_up:
                return True
        return super().lent()

    def _outcome(self, c: Any) -> tuple[Any, errors.Error | None]:
        value: Any = _results(c)
        error: Any = None
        if c.status:
            error = self._client._remembered(self, self._client._failure(c), c)
            error.results, value = value, None
        if self._client._given_up:
            self._client._given_up.discard(self._key)
        return value, error


class _Reading(_Batch):
    """Its results are views."""

    __slots__ = ()

    def __init__(self, client: Client) -> None:
        super().__init__(client, undo=lambda views: _release(client, views))

    def _outcome(self, c: Any) -> tuple[Any, errors.Error | None]:
        value, error = super()._outcome(c)
        if error is None:
            results, client = c.store.contents, cast("Client", self._client)
            value = [_view(client, one) for one in results.v[:results.n]]
        return value, error


class _Release(Pending[None]):
    """A lease whose client is closed has ended."""

    __slots__ = ()
    ends_quietly = True


class Stores:
    """What a client can do with the store."""

    def store(self, space: str = "", at: str = "") -> Store:
        """The name space of this name; empty: the one of the client's own user. at: where put() puts objects that it is not told for."""
        client: Any = self
        return Store(client, space, at)


_FIELDS, _KEY_TYPES, _LAYOUTS = {2, 3, 4}, {bytes}, {BlockLayout}
_address_of, _pieces_of = attrgetter("_address"), attrgetter("_n")
_new = tuple.__new__  # a NamedTuple's own takes twice as long
_STATUSES, _TIERS = {int(one): one for one in Status}, {int(one): one for one in Tier}
_LOST, _NOWHERE = Status.LOST, Tier.NONE  # Python 3.11 looks a member up by a function


def _results(c: lib.Completion) -> list[StoreResult]:
    """What a newer agent says, and this client does not know, is a loss."""
    address, = _ADDRESS.unpack_from(c, _RESULTS_AT)
    if not address:
        return []
    n, v = _RESULTS.unpack(_Results.from_address(address))
    records: Any = _Result.from_address(v) if n == 1 else string_at(v, n * _RESULT.size)
    return [_new(StoreResult, (_STATUSES.get(status, _LOST), length, wait / 1000, _TIERS.get(tier, _NOWHERE), copies))
            for status, wait, length, _, _, tier, copies in _RESULT.iter_unpack(records)]


def _view(client: Client, r: Any) -> StoreView:
    data = None
    if not r.status:
        memory: Any = (c_char * r.length).from_address(r.data)
        memory._mapping = _mapping(client, r.data)
        data = memoryview(memory).cast("B").toreadonly()
        views, key = client._views, id(data)
        views[key] = ref(data, partial(views.pop, key))
        if client._d is None:  # another thread has closed it, perhaps before it could find this one
            data.release()
    return StoreView(client, _STATUSES.get(r.status, Status.LOST), r.wait_ms / 1000, data, r.lease)


def _mapping(client: Client, address: int) -> lib.Mapping | None:
    """Of memory of the store. None: another thread has closed the client."""
    for mapping in list(client._mappings.values()):
        if 0 <= address - mapping.base < mapping.length:
            return mapping
    base, length = c_void_p(), c_uint64()
    try:
        _forget_mappings(client)
        lib.held.dray_store_keep(client._d, address, byref(base), byref(length))
    except ctypes.ArgumentError:
        return None
    mapping, mappings = lib.Mapping(base.value or 0), client._mappings
    if mapping.base in mappings:  # another thread has found it meanwhile
        return mappings[mapping.base]
    mapping.length, mappings[mapping.base] = length.value, mapping
    return mapping


def _forget_mappings(client: Client) -> None:
    """Those that the library does not use any more: their sessions have ended, and no view has a lease."""
    for first in list(client._mappings):
        if lib.held.dray_store_keep(client._d, first, byref(c_void_p()), byref(c_uint64())):
            client._mappings.pop(first, None)


def _release(client: Client, views: list[StoreView]) -> None:
    """Ends the leases that these views have, at most those of a batch."""
    leased = [(view, view._lease) for view in views if view._lease]
    try:
        for view, _ in leased:  # first: another thread may release it, too
            view._lease = 0
        if not leased or not client._d:
            return
        leases = (c_uint64 * len(leased))(*[lease for _, lease in leased])
        client._request(_Release(client), lib.held.dray_store_release_start, leases, len(leases))
    except BaseException:  # also one of a signal's handler; a lease that has ended may be released again
        for view, lease in leased:
            view._lease = lease
        raise


class _One:
    """Memory for a batch of one key with one piece, or a layout, used again and again. To pack it takes an eighth of the time of _batch()."""

    __slots__ = ("at", "memory", "ref")

    def __init__(self) -> None:
        self.memory = bytearray(_ONE.size + _KEY_MAX)
        batch = lib.StoreBatch.from_buffer(self.memory)
        self.at, self.ref = ctypes.addressof(batch), byref(batch)

    def pack(self, item: Any, space_at: int, region: int, deadline_ms: int, lease_ms: int, replicas: int) -> bool:
        """False: it has more pieces, or is wrong."""
        at = self.at
        try:
            fields = len(item)
            key, pieces = item[0], item[1]
            cost, block = item[2] if fields > 2 else 0, item[3] if fields > 3 else 0
            size = len(key)
            if type(key) is not bytes or not 0 < size <= _KEY_MAX or fields > 4:
                return False
            offset = length = 0
            if type(pieces) is BlockLayout:
                address, count = pieces._address, pieces._n
            else:
                address, count = at + _PIECE_AT, len(pieces)
                if count == 1:
                    (offset, length), = pieces
                elif count:
                    return False
            cost = min(int(cost * 1e6), _COST_MAX) if cost else 0  # 0.0 is none for struct
            _ONE.pack_into(self.memory, 0, space_at, region, deadline_ms, lease_ms, at + _ITEM_AT, 1, replicas, 0,
                           at + _ONE.size, size, address, count, cost, block, offset, length, 0)
        except (TypeError, ValueError, OverflowError, LookupError, struct.error):
            return False
        self.memory[_ONE.size:_ONE.size + size] = key
        return True


def _copied(items: list[Any]) -> lib.StoreBatch:
    """The batch of put or get."""
    try:
        fields = set(map(len, items))
        if not fields <= _FIELDS:
            raise TypeError("an item has 2 to 4 fields")
        if len(fields) > 1:
            items = [(*item, 0, 0)[:4] for item in items]
        keys, ranges, *rest = zip(*items, strict=True) if items else ((), ())
        costs: Sequence[Any] = rest[0] if rest and any(rest[0]) else ()
        return _batch(keys, ranges, [min(int(cost * 1e6), _COST_MAX) for cost in costs], rest[1] if len(rest) > 1 else ())
    except (TypeError, ValueError, OverflowError, struct.error) as e:
        raise errors.Invalid(f"the items are not (key, [(offset, length), ...]): {e}",
                             fix="Pass items such as (b'key', [(0, 4096)]), or (b'key', layout, 0.0, block).") from None


def _batch(keys: Sequence[bytes], ranges: Sequence[Any] = (), costs: Sequence[int] = (), blocks: Sequence[int] = ()) -> lib.StoreBatch:
    """ranges, costs, blocks: of each key; none: of no key."""
    n = len(keys)
    if not 0 < n <= _KEYS_MAX:
        raise errors.Invalid(f"{n} keys", fix=f"Pass 1 to {_KEYS_MAX} keys.")
    wrong = [] if set(map(type, keys)) == _KEY_TYPES else [key for key in keys if not isinstance(key, bytes)]
    lengths = [] if wrong else list(map(len, keys))
    if wrong or not min(lengths) or max(lengths) > _KEY_MAX:
        wrong = wrong or [key for key in keys if not 0 < len(key) <= _KEY_MAX]
        raise errors.Invalid(f"the key {wrong[0]!r} is not 1 to {_KEY_MAX} bytes", fix="Pass bytes.")
    # the items, the pieces of those without a layout, and the keys
    size, own, kinds = n * _WORDS * 8, b"", set(map(type, ranges))
    if ranges and kinds != _LAYOUTS:
        own = operations.packed(list(chain.from_iterable(ranges)), operations.PIECES)
    memory = bytearray().join((bytes(size), own, *keys))
    kept = c_char.from_buffer(memory)
    start = ctypes.addressof(kept)
    words = memoryview(memory)[:size].cast("Q")
    # a column at a time takes half as long as an item at a time
    words[0::_WORDS] = array("Q", accumulate(lengths[:-1], initial=start + size + len(own)))
    words[1::_WORDS] = array("Q", lengths)
    if kinds == _LAYOUTS:
        same = len(set(ranges)) == 1
        words[2::_WORDS] = array("Q", (ranges[0]._address,)) * n if same else array("Q", map(_address_of, ranges))
        words[3::_WORDS] = array("Q", (ranges[0]._n,)) * n if same else array("Q", map(_pieces_of, ranges))
    elif ranges:
        counts = list(map(len, ranges))
        words[2::_WORDS] = array("Q", accumulate([count * _PIECE.size for count in counts[:-1]], initial=start + size))
        words[3::_WORDS] = array("Q", counts)
    if costs:
        # cost_us has 32 bits: its half of the word comes first on little-endian processors
        words[4::_WORDS] = array("Q", costs)
    if blocks:
        words[5::_WORDS] = array("Q", blocks)
    batch = lib.StoreBatch(items=start, items_n=n)
    batch._keep = (kept, ranges)
    return batch
