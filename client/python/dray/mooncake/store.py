# SPDX-License-Identifier: Apache-2.0
"""mooncake.store.MooncakeDistributedStore over the store of this node's agent.

Arguments, return codes and blocking are Mooncake's: 0 or a number of bytes for success, otherwise a negative number. The
log "dray.mooncake" has the error of each failed call. docs/mooncake.md lists what differs.
"""

from __future__ import annotations

import enum
import logging
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from .. import errors
from ..client import Client
from ..store import Status, StoreResult
from ._copy import Piece, address_of_bytes
from ._objects import Item, Objects, key_of
from ._options import Options

__all__ = ["BufferHandle", "MooncakeDistributedStore", "ObjectDataType", "ReplicaDescriptor", "ReplicaStatus", "ReplicateConfig",
           "SoftPinAction"]

_logger = logging.getLogger("dray.mooncake")

_NO_ROOM, _INVALID, _NOT_FOUND, _TRANSFER, _AGENT = -200, -600, -704, -800, -900
_PUT_CODES = {Status.OK: 0, Status.EXISTS: 0, Status.BUSY: _NO_ROOM, Status.TOO_LARGE: _NO_ROOM}
_GET_CODES = {Status.NOT_FOUND: _NOT_FOUND, Status.BUSY: _NO_ROOM, Status.TOO_LARGE: _INVALID, Status.CORRUPT: _NOT_FOUND}


class ObjectDataType(enum.Enum):
    """What an object is; kept in a ReplicateConfig, without effect."""

    UNKNOWN = 0
    KVCACHE = 1
    TENSOR = 2
    WEIGHT = 3
    SAMPLE = 4
    ACTIVATION = 5
    GRADIENT = 6
    OPTIMIZER_STATE = 7
    METADATA = 8
    GENERAL = 9


class SoftPinAction(enum.Enum):
    """Kept in a ReplicateConfig, without effect."""

    PRESERVE = 0
    ENABLE = 1
    DISABLE = 2


class ReplicateConfig:
    """How an object is kept. with_hard_pin: it is not evicted while this store is open. The rest has no effect.

    The agent has one copy of each object, and decides by itself what is evicted.
    """

    def __init__(self) -> None:
        self.replica_num, self.nof_replica_num, self.dfs_replica_num = 1, 0, 0
        self.with_hard_pin = False
        self.soft_pin_action, self.soft_pin_ttl_ms = SoftPinAction.PRESERVE, None
        self.preferred_segment, self.preferred_segments, self.preferred_nof_segments = "", list[str](), list[str]()
        self.prefer_alloc_in_same_node = False
        self.data_type = ObjectDataType.UNKNOWN
        self.group_ids: list[str] | None = None


class ReplicaStatus(enum.Enum):
    """Of a ReplicaDescriptor: COMPLETE."""

    UNDEFINED = 0
    INITIALIZED = 1
    PROCESSING = 2
    COMPLETE = 3
    REMOVED = 4
    FAILED = 5


class ReplicaDescriptor:
    """That the agent has an object; in which of its tiers is not known."""

    status = ReplicaStatus.COMPLETE

    def is_memory_replica(self) -> bool:
        return False

    def is_disk_replica(self) -> bool:
        return False

    def is_local_disk_replica(self) -> bool:
        return False


class BufferHandle(bytearray):
    """A copy of an object."""

    def ptr(self) -> int:
        """The address of its bytes, while this object lives."""
        return address_of_bytes(self)

    def size(self) -> int:
        """Its bytes."""
        return len(self)


class MooncakeDistributedStore:
    """Objects by key at the agent of this node."""

    def __init__(self) -> None:
        self._objects: Objects | None = None
        self._close: Any = None
        self._hostname = ""
        self._buffers: dict[int, int] = {}  # registered: address and length

    # --- the store ----------------------------------------------------------------------------------

    def setup(self, local_hostname: str | dict[str, Any] = "", metadata_server: str = "", global_segment_size: int = 0,
              local_buffer_size: int = 0, protocol: str = "tcp", rdma_devices: str = "", master_server_addr: str = "",
              engine: object = None, enable_ssd_offload: bool = False, ssd_offload_path: str = "", tenant_id: str = "default",
              enable_client_http_server: bool = False, client_http_port: int = 9300) -> int:
        """Connects to the agent ($DRAY_SOCKET). Sizes, servers, protocol and devices have no effect: the agent has its own.

        tenant_id: name space of the agent's store; "default": that of this user. A dictionary has the same as keys.
        """
        options = local_hostname if isinstance(local_hostname, dict) else {"local_hostname": local_hostname, "tenant_id": tenant_id}
        hostname, tenant = str(options.get("local_hostname", "")), str(options.get("tenant_id", "default"))

        def work() -> int:
            client, seconds = None, Options.of_environment().seconds
            try:
                client = Client(name="mooncake store", timeout=seconds)
                objects = Objects(client, "" if tenant == "default" else tenant, seconds)
                objects.exists([b"mooncake"])  # is there a store, and may this user use the name space?
                for address, size in list(self._buffers.items()):
                    objects.register(address, size)
            except BaseException:
                if client is not None:
                    client.close()
                raise
            self.close()
            self._objects, self._hostname = objects, hostname
            self._close = weakref.finalize(self, client.close)
            self._close.atexit = False  # the client ends at exit by itself
            return 0

        return _code("setup()", work, -1)

    def init_all(self, protocol: str, device_name: str, mount_segment_size: int) -> int:
        """-600, as with Mooncake after setup(), which is the call to use."""
        return _INVALID

    def close(self) -> int:
        """Ends the session with the agent. The objects stay."""
        self._objects = None
        if self._close is not None:
            self._close()
        return 0

    def health_check(self) -> int:
        """0: the agent answers. 1: before setup() or after close(). 2: it does not answer."""
        if self._objects is None:
            return 1
        return _code("health_check()", lambda: len(self._use().exists([b"mooncake"])) - 1, 2)

    def get_hostname(self) -> str:
        """The host that setup() was given."""
        return self._hostname

    def _use(self) -> Objects:
        if self._objects is None:
            raise errors.OutOfOrder("the store is not set up", fix="Call setup() first.")
        return self._objects

    # --- memory -------------------------------------------------------------------------------------

    def register_buffer(self, buffer_ptr: int, size: int) -> int:
        """Notes memory for put_from() and get_into(). They take other memory of the host, too, but none of a GPU that is not registered."""
        def work() -> int:
            if self._objects is not None:
                self._objects.register(buffer_ptr, size)
            self._buffers[buffer_ptr] = size
            return 0

        if not 0 < buffer_ptr < 1 << 64 or not 0 < size <= (1 << 64) - buffer_ptr or buffer_ptr in self._buffers:
            return _INVALID
        return _code("register_buffer()", work, _INVALID)

    def unregister_buffer(self, buffer_ptr: int) -> int:
        """Ends register_buffer(), after calls that use the memory. Call it before you free memory of a GPU."""
        def work() -> int:
            if self._objects is not None:
                self._objects.unregister(buffer_ptr)
            return 0

        if self._buffers.pop(buffer_ptr, None) is None:
            return _INVALID
        return _code("unregister_buffer()", work)

    # --- values -------------------------------------------------------------------------------------

    def put(self, key: str, value: Any, config: ReplicateConfig | None = None) -> int:
        """Stores a bytes-like object. 0 also if there is one with this key, which stays as it is."""
        return self.put_batch([key], [value], config)

    def put_batch(self, keys: Sequence[str], values: Sequence[Any], config: ReplicateConfig | None = None) -> int:
        """put() for each; returns the first error."""
        return self._put_values(keys, values, config)

    def _put_values(self, keys: Sequence[str], values: Sequence[Any], config: ReplicateConfig | None, replace: bool = False) -> int:
        data = [_bytes(value) for value in values]
        codes = self._put("put", keys, [[(address_of_bytes(d), len(d))] for d in data], config, replace=replace)
        return next((code for code in codes if code), 0)

    def put_parts(self, key: str, *values: Any, config: ReplicateConfig | None = None) -> int:
        """Stores bytes-like objects, one behind the other, as one object. 0 also if they are all empty, and nothing is stored."""
        return self._put_parts("put_parts()", key, values, config)

    def _put_parts(self, what: str, key: str, parts: Sequence[Any], config: ReplicateConfig | None, replace: bool = False) -> int:
        value = b"".join(_bytes(part) for part in parts)
        return self._put(what, [key], [[(address_of_bytes(value), len(value))]], config, replace=replace)[0] if value else 0

    def upsert(self, key: str, value: Any, config: ReplicateConfig | None = None) -> int:
        """put() in place of an object with this key. A reader may find none in between."""
        return self.upsert_batch([key], [value], config)

    def upsert_batch(self, keys: Sequence[str], values: Sequence[Any], config: ReplicateConfig | None = None) -> int:
        """upsert() for each; returns the first error."""
        return self._put_values(keys, values, config, replace=True)

    def upsert_parts(self, key: str, *values: Any, config: ReplicateConfig | None = None) -> int:
        """put_parts() in place of an object with this key. A reader may find none in between."""
        return self._put_parts("upsert_parts()", key, values, config, replace=True)

    def get(self, key: str) -> bytes:
        """The bytes of an object; b"" if there is none."""
        found = self.get_buffer(key)
        return bytes(found) if found is not None else b""

    def get_batch(self, keys: Sequence[str]) -> list[bytes]:
        """get() for each."""
        return [bytes(found) if found is not None else b"" for found in self.batch_get_buffer(keys)]

    def get_buffer(self, key: str) -> BufferHandle | None:
        """A copy of an object; None if there is none."""
        return self.batch_get_buffer([key])[0]

    def batch_get_buffer(self, keys: Sequence[str]) -> list[BufferHandle | None]:
        """get_buffer() for each."""
        lengths = self._on_keys("batch_get_buffer()", keys, lambda o, k: o.exists(k), lambda r: r.length * (r.status is Status.OK), 0)
        found = [BufferHandle(max(n, 0)) for n in lengths]
        codes = self.batch_get_into(keys, [b.ptr() if b else 0 for b in found], list(map(len, found)))
        return [b if code == b.size() > 0 else None for b, code in zip(found, codes)]

    # --- memory of the caller -----------------------------------------------------------------------

    def put_from(self, key: str, buffer_ptr: int, size: int, config: ReplicateConfig | None = None) -> int:
        """Stores bytes of this process's memory."""
        return self.batch_put_from([key], [buffer_ptr], [size], config)[0]

    def upsert_from(self, key: str, buffer_ptr: int, size: int, config: ReplicateConfig | None = None) -> int:
        """put_from() in place of an object with this key. A reader may find none in between."""
        return self._put("upsert_from()", [key], [[(buffer_ptr, size)]], config, empty=0, replace=True)[0]

    def put_from_with_metadata(self, key: str, buffer_ptr: int, metadata_buffer_ptr: int, size: int, metadata_size: int,
                               config: ReplicateConfig | None = None) -> int:
        """Stores metadata, and behind it data, as one object. 0 also if size is 0, and nothing is stored."""
        pieces = [(metadata_buffer_ptr, metadata_size), (buffer_ptr, size)]
        return self._put("put_from_with_metadata()", [key], [pieces if size else []], config, empty=_INVALID if size else 0)[0]

    def get_into(self, key: str, buffer_ptr: int, size: int) -> int:
        """Copies an object to memory of this process; returns its length. -704: there is none. -600: it is larger."""
        return self.batch_get_into([key], [buffer_ptr], [size])[0]

    def batch_put_from(self, keys: Sequence[str], buffer_ptrs: Sequence[int], sizes: Sequence[int],
                       config: ReplicateConfig | None = None) -> list[int]:
        """put_from() for each."""
        if not len(keys) == len(buffer_ptrs) == len(sizes):
            return [_INVALID] * len(keys)
        return self._put("batch_put_from()", keys, [[piece] for piece in zip(buffer_ptrs, sizes)], config, empty=0)

    def batch_upsert_from(self, keys: Sequence[str], buffer_ptrs: Sequence[int], sizes: Sequence[int],
                          config: ReplicateConfig | None = None) -> list[int]:
        """upsert_from() for each; -600 for an object without bytes."""
        if not len(keys) == len(buffer_ptrs) == len(sizes):
            return [_INVALID] * len(keys)
        return self._put("batch_upsert_from()", keys, [[piece] for piece in zip(buffer_ptrs, sizes)], config, replace=True)

    def batch_get_into(self, keys: Sequence[str], buffer_ptrs: Sequence[int], sizes: Sequence[int]) -> list[int]:
        """get_into() for each."""
        if not len(keys) == len(buffer_ptrs) == len(sizes):
            return [_INVALID] * len(keys)
        return self._get("batch_get_into()", keys, [[piece] for piece in zip(buffer_ptrs, sizes)])

    def batch_put_from_multi_buffers(self, keys: Sequence[str], all_buffer_ptrs: Sequence[Sequence[int]],
                                     all_sizes: Sequence[Sequence[int]], config: ReplicateConfig | None = None) -> list[int]:
        """Stores objects whose bytes lie in several places, one behind the other."""
        pieces = _pieces(keys, all_buffer_ptrs, all_sizes)
        if pieces is None:
            return [_INVALID] * len(keys)
        return self._put("batch_put_from_multi_buffers()", keys, pieces, config)

    def batch_get_into_multi_buffers(self, keys: Sequence[str], all_buffer_ptrs: Sequence[Sequence[int]],
                                     all_sizes: Sequence[Sequence[int]], prefer_alloc_in_same_node: bool = False) -> list[int]:
        """Copies objects to several places, which are filled one after the other."""
        pieces = _pieces(keys, all_buffer_ptrs, all_sizes)
        if pieces is None:
            return [_INVALID] * len(keys)
        return self._get("batch_get_into_multi_buffers()", keys, pieces)

    def alloc_from_mem_pool(self, size: int) -> int:
        """0: there is no pool, as with Mooncake after setup()."""
        if size < 0:
            raise TypeError("the size is negative")
        return 0

    # --- keys ---------------------------------------------------------------------------------------

    def is_exist(self, key: str) -> int:
        """1: there is an object. 0: there is none. Negative: an error."""
        return self.batch_is_exist([key])[0]

    def batch_is_exist(self, keys: Sequence[str]) -> list[int]:
        """is_exist() for each."""
        return self._on_keys("batch_is_exist()", keys, lambda o, k: o.exists(k), lambda r: int(r.status is Status.OK), empty=0)

    def get_size(self, key: str) -> int:
        """Bytes of an object. -704: there is none."""
        return self._on_keys("get_size()", [key], lambda o, k: o.exists(k),
                             lambda r: r.length if r.status is Status.OK else _NOT_FOUND, empty=_NOT_FOUND)[0]

    def remove(self, key: str, force: bool = False) -> int:
        """Removes an object. -704: there is none."""
        return self.batch_remove([key], force)[0]

    def batch_remove(self, keys: Sequence[str], force: bool = False) -> list[int]:
        """remove() for each."""
        return self._on_keys("batch_remove()", keys, lambda o, k: o.remove(k),
                             lambda r: 0 if r.status is Status.OK else _GET_CODES.get(r.status, _TRANSFER), empty=_NOT_FOUND)

    def remove_all(self, force: bool = False) -> int:
        """Removes all objects of the name space, of all clients. 0, because the agent does not count them."""
        def work() -> int:
            self._use().remove_all()
            return 0

        return _code("remove_all()", work)

    def batch_replica_clear(self, keys: Sequence[str], segment_name: str = "") -> list[str]:
        """Removes objects; returns the keys of those that were there. segment_name: that of get_hostname(), or "" for all.

        Other segments have no objects.
        """
        if segment_name not in ("", self._hostname):
            return []
        return [key for key, code in zip(keys, self.batch_remove(keys)) if code == 0]

    def remove_by_regex(self, regex_pattern: str, force: bool = False) -> int:
        """Is refused: the agent's store has no list of keys."""
        return _code("remove_by_regex()", _no_list)

    def get_replica_desc(self, key: str) -> list[ReplicaDescriptor]:
        """One descriptor of an object that is there."""
        return [ReplicaDescriptor()] if self.is_exist(key) == 1 else []

    def batch_get_replica_desc(self, keys: Sequence[str]) -> dict[str, list[ReplicaDescriptor]]:
        """One descriptor for each object that is there."""
        return {key: [ReplicaDescriptor()] for key, code in zip(keys, self.batch_is_exist(keys)) if code == 1}

    # --- batches ------------------------------------------------------------------------------------

    def _put(self, what: str, keys: Sequence[str], pieces: Sequence[Sequence[Piece]], config: ReplicateConfig | None,
             empty: int = _INVALID, replace: bool = False) -> list[int]:
        """Codes of the keys. empty: that of an object without bytes, which is not stored."""
        if len(keys) != len(pieces):
            return [_INVALID] * max(len(keys), 1)
        items = _items(keys, pieces)

        def work(objects: Objects, some: list[Item]) -> list[StoreResult]:
            results = objects.put(some, replace)
            if config is not None and config.with_hard_pin:
                objects.pin([key for (key, _), r in zip(some, results) if r.status in (Status.OK, Status.EXISTS)])
            return results

        return self._batch(what, items, work, lambda r: _PUT_CODES.get(r.status, _TRANSFER), empty)

    def _get(self, what: str, keys: Sequence[str], pieces: Sequence[Sequence[Piece]]) -> list[int]:
        return self._batch(what, _items(keys, pieces), lambda objects, some: objects.get(some),
                           lambda r: r.length if r.status is Status.OK else _GET_CODES.get(r.status, _TRANSFER), _NOT_FOUND)

    def _on_keys(self, what: str, keys: Sequence[str], work: Callable[[Objects, list[bytes]], list[StoreResult]],
                 code: Callable[[StoreResult], int], empty: int) -> list[int]:
        return self._batch(what, [(key_of(key), [(1, 1)]) for key in keys],
                           lambda objects, some: work(objects, [key for key, _ in some]), code, empty)

    def _batch(self, what: str, items: list[Item], work: Callable[[Objects, list[Item]], list[StoreResult]],
               code: Callable[[StoreResult], int], empty: int) -> list[int]:
        """The codes of a batch; keys and values without bytes get `empty`, and an error goes to all others."""
        some = [(key, pieces) for key, pieces in items if key and sum(n for _, n in pieces)]
        failed = 0
        results: list[StoreResult] = []

        def run() -> int:
            if some:
                results.extend(work(self._use(), some))
            return 0

        failed = _code(what, run)
        codes = iter([code(r) for r in results])
        return [(failed or next(codes)) if key and sum(n for _, n in pieces) else empty for key, pieces in items]


def _no_list() -> int:
    raise errors.Unsupported("the agent's store has no list of keys", fix="Remove objects by their keys.")


def _code(what: str, work: Callable[[], int], failed: int = 0) -> int:
    """The result of a call, or the code of its error, which the log has. failed: that code; 0: by the error."""
    try:
        return work()
    except errors.Error as e:
        _logger.warning("%s failed: %s", what, e)
        return failed or (_INVALID if isinstance(e, (errors.Range, errors.Invalid, errors.Unsupported)) else
                          _NO_ROOM if isinstance(e, (errors.Quota, errors.Busy, errors.NoMemory)) else _AGENT)


def _bytes(value: Any) -> bytes:
    """TypeError: not bytes-like."""
    return value if isinstance(value, bytes) else memoryview(value).tobytes()


def _items(keys: Sequence[str], pieces: Sequence[Sequence[Piece]]) -> list[Item]:
    for some in pieces:
        if any(address < 0 or length < 0 for address, length in some):
            raise TypeError("an address or length is negative")
    return [(key_of(key), [p for p in some if p[1]]) for key, some in zip(keys, pieces)]


def _pieces(keys: Sequence[str], addresses: Sequence[Sequence[int]], sizes: Sequence[Sequence[int]]) -> list[list[Piece]] | None:
    """None: the lists do not fit."""
    if not len(keys) == len(addresses) == len(sizes) or any(len(a) != len(n) for a, n in zip(addresses, sizes)):
        return None
    return [list(zip(a, n)) for a, n in zip(addresses, sizes)]
