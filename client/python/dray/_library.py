# SPDX-License-Identifier: Apache-2.0
"""libdray by ctypes: its structs and functions, as client/dray.h declares them.

The library is loaded twice:

- `held` keeps the interpreter lock during a call. It is for functions that do not block, because
  taking the lock again can cost 5 ms beside a thread that computes. All calls that touch the state
  of a handle go through it. So two Python threads are never inside one handle at the same time, and
  no thread waits for the handle's mutex with the interpreter lock held.
- `released` gives the interpreter lock up. It is for functions that block or take long.

Handles of regions, remotes and mailboxes are structs of one 64-bit number, which the ABIs of x86-64 and aarch64
pass as that number. Here they are numbers.
"""

from __future__ import annotations

import ctypes
import os
import pathlib
from ctypes import (POINTER, Structure, c_char, c_char_p, c_int, c_size_t, c_ubyte, c_uint,
                    c_uint32, c_uint64, c_void_p)
from typing import Any

from . import errors

SONAME = "libdray.so.0"
WHY_SIZE = 512
TOKEN_MAX, TOKEN_TEXT_MAX, IPC_BYTES = 256, 352, 64

OPTION_NOTIFICATIONS, OPTION_NO_RING, OPTION_NO_RECONNECT, OPTION_WAIT = 1, 2, 4, 8
OPTION_NO_SPIN, OPTION_SEGMENTS, OPTION_GPU = 16, 32, 64
REGION_HUGE, REGION_NO_POPULATE, REGION_WAIT = 1, 2, 4

REQUEST_TRANSFER, REQUEST_REGION_ADD, REQUEST_REGION_REMOVE, REQUEST_EXPORT = 1, 2, 3, 4
REQUEST_REVOKE, REQUEST_IMPORT, REQUEST_RELEASE, REQUEST_NOTIFY = 5, 6, 7, 8
REQUEST_HINT_GET, REQUEST_HINT_PUT, REQUEST_SEGMENT_GET, REQUEST_ENV_GET = 9, 10, 11, 12
REQUEST_LEASE, REQUEST_LEASE_ACQUIRE, REQUEST_LEASE_RENEW, REQUEST_LEASE_END = 13, 14, 15, 16
REQUEST_MAILBOX_OPEN, REQUEST_MAILBOX_CLOSE, REQUEST_POST = 17, 18, 19
REQUEST_STORE, REQUEST_STORE_RELEASE = 20, 21
STORE_PUT, STORE_GET, STORE_EXISTS, STORE_REMOVE, STORE_PIN, STORE_UNPIN, STORE_READ = 1, 2, 3, 4, 5, 6, 7

EVENT_NOTIFICATION, EVENT_REMOTE_LOST, EVENT_DRAINING, EVENT_LOST, EVENT_RESTORED = 1, 2, 3, 4, 5
EVENT_REGION_LOST, EVENT_CLOSED, EVENT_SEGMENT, EVENT_CONNECTED, EVENT_CONFIRMED = 6, 7, 8, 9, 10
EVENT_LEASE_ENDED, EVENT_LETTER, EVENT_MAILBOX_LOST, EVENT_DROPPED = 11, 12, 13, 14
LEASE_AGENT_LOST = 5  # an outcome of the library's own


class Options(Structure):
    _fields_ = [
        ("socket", c_char_p), ("group", c_char_p), ("name", c_char_p), ("flags", c_uint),
        ("ring_entries", c_uint), ("arena_bytes", c_uint64), ("spin_us", c_uint),
        ("connect_ms", c_uint), ("request_ms", c_uint), ("reconnect_min_ms", c_uint),
        ("reconnect_max_ms", c_uint), ("reconnect_for_ms", c_uint), ("events_max", c_uint),
        ("confirm_ms", c_uint), ("patience_ms", c_uint), ("gpu", c_char_p)]


class Info(Structure):
    _fields_ = [
        ("connected", c_int), ("session", c_uint64), ("incarnation", c_uint64),
        ("agent_id", c_ubyte * 16), ("segment", c_char_p), ("version", c_char_p),
        ("ring_entries", c_uint), ("arena_bytes", c_uint64), ("in_flight", c_size_t),
        ("completions", c_size_t), ("events", c_size_t), ("segments", c_int),
        ("spin_ns", c_uint64), ("waits_spun", c_uint64), ("waits_slept", c_uint64), ("losses", c_uint64),
        ("no_ring", c_char_p)]


class Token(Structure):
    _fields_ = [
        ("id", c_uint64), ("epoch", c_uint64), ("length", c_uint32),
        ("data", c_ubyte * TOKEN_MAX), ("text", c_char * TOKEN_TEXT_MAX)]


class Hint(Structure):
    _fields_ = [
        ("segment", c_char_p), ("source", c_uint), ("state", c_uint), ("flags", c_uint),
        ("score", c_uint32), ("left_ms", c_uint64)]


class Segment(Structure):
    _fields_ = [
        ("segment", c_char_p), ("preference", c_uint), ("state", c_uint), ("flags", c_uint),
        ("capacity", c_uint64), ("allocated", c_uint64), ("reason", c_char_p)]


class Env(Structure):
    # pointers, not c_char_p, which would end at a 0
    _fields_ = [
        ("variables", c_void_p), ("variables_length", c_size_t), ("notes", c_void_p),
        ("notes_length", c_size_t)]


class StoreRange(Structure):
    _fields_ = [("offset", c_uint64), ("length", c_uint64), ("step", c_uint64)]


class StoreItem(Structure):
    _fields_ = [
        ("key", c_char_p), ("key_length", c_size_t), ("ranges", POINTER(StoreRange)), ("ranges_n", c_size_t),
        ("cost_us", c_uint32), ("block", c_uint64)]


class StoreBatch(Structure):
    # `items` takes an address
    _fields_ = [
        ("space", c_char_p), ("region", c_uint64), ("deadline_ms", c_uint), ("lease_ms", c_uint),
        ("items", c_void_p), ("items_n", c_size_t), ("replicas", c_uint), ("at", c_char_p)]


class StoreResult(Structure):
    _fields_ = [
        ("status", c_uint), ("wait_ms", c_uint), ("length", c_uint64), ("data", c_void_p), ("lease", c_uint64),
        ("tier", c_uint), ("copies", c_uint)]


class StoreResults(Structure):
    _fields_ = [("n", c_size_t), ("v", POINTER(StoreResult))]


class Completion(Structure):
    _fields_ = [
        ("id", c_uint64), ("arg", c_size_t), ("request", c_int), ("status", c_int),
        ("transport", c_uint), ("bytes", c_uint64), ("duration_ns", c_uint64),
        ("region", c_uint64), ("remote", c_uint64), ("lease", c_uint64), ("expiry_ms", c_uint),
        ("message", c_char_p), ("token", POINTER(Token)), ("hint", POINTER(Hint)), ("segment", POINTER(Segment)),
        ("env", POINTER(Env)), ("mailbox", c_uint64), ("store", POINTER(StoreResults))]


class Event(Structure):
    _fields_ = [
        ("type", c_int), ("code", c_int), ("restarted", c_int), ("deadline_ms", c_uint),
        ("region", c_uint64), ("remote", c_uint64), ("lease", c_uint64), ("outcome", c_uint),
        ("acquired", c_uint), ("agent_region", c_uint64),
        ("tag", c_uint64), ("agent_id", c_ubyte * 16), ("incarnation", c_uint64),
        ("id", c_uint64), ("payload", c_void_p), ("length", c_size_t), ("message", c_char_p),
        ("segment", c_char_p), ("segment_old", c_uint), ("segment_state", c_uint),
        ("segment_flags", c_uint), ("mailbox", c_uint64), ("uid", c_uint32), ("gid", c_uint32)]


class Extent(Structure):
    _fields_ = [
        ("kind", c_int), ("fd", c_int), ("offset", c_uint64), ("length", c_uint64),
        ("handle", c_void_p), ("allocation", c_uint64)]


class RegionSpec(Structure):
    _fields_ = [
        ("name", c_char_p), ("access", c_uint), ("flags", c_uint), ("extents", POINTER(Extent)),
        ("extents_n", c_size_t), ("pool_bytes", c_uint64), ("device", c_char_p)]


class RegionInfo(Structure):
    _fields_ = [
        ("length", c_uint64), ("access", c_uint), ("lost", c_int), ("agent_region", c_uint64)]


class Export(Structure):
    _fields_ = [
        ("offset", c_uint64), ("length", c_uint64), ("access", c_uint), ("single_use", c_int),
        ("ttl_ms", c_uint), ("audience", c_ubyte * 16)]


class LeaseSpec(Structure):
    # `ranges` takes an address or bytes: four words of 64 bits each
    _fields_ = [
        ("ranges", c_char_p), ("ranges_n", c_size_t), ("access", c_uint), ("holders", c_uint),
        ("expiry_ms", c_uint), ("audience", c_ubyte * 16), ("grant", c_int)]


class RemoteInfo(Structure):
    _fields_ = [
        ("length", c_uint64), ("access", c_uint), ("transport", c_uint), ("lost", c_int),
        ("agent_remote", c_uint64)]


class Word(Structure):
    _fields_ = [("region", c_uint64), ("offset", c_uint64), ("value", c_uint32)]


class Transfer(Structure):
    # The words are flat, because each access to a nested struct makes an object. `ops` takes an address or bytes.
    _fields_ = [
        ("local", c_uint64), ("remote", c_uint64), ("direction", c_int), ("priority", c_int),
        ("ops", c_char_p), ("count", c_size_t), ("deadline_ms", c_uint),
        ("wait_region", c_uint64), ("wait_offset", c_uint64), ("wait_value", c_uint32),
        ("_wait_end", c_uint32),
        ("set_region", c_uint64), ("set_offset", c_uint64), ("set_value", c_uint32),
        ("_set_end", c_uint32),
        ("notify", c_int), ("tag", c_uint64), ("payload", c_void_p),
        ("payload_length", c_size_t), ("arg", c_size_t), ("done", c_void_p)]


class CudaRange(Structure):
    _fields_ = [("address", c_uint64), ("length", c_uint64)]


class CudaExtents(Structure):
    _fields_ = [
        ("device", c_char * 48), ("extents", POINTER(Extent)), ("extents_n", c_size_t),
        ("own", c_void_p)]


class CudaAllocation(Structure):
    _fields_ = [("address", c_uint64), ("length", c_uint64), ("id", c_uint64)]


# The structs by their names in dray.h, for a test that compares them with the compiler's layout.
STRUCTS: dict[str, type[Structure]] = {
    "dray_options": Options, "dray_info": Info, "dray_token": Token, "dray_hint": Hint,
    "dray_segment": Segment, "dray_env": Env, "dray_completion": Completion, "dray_event": Event,
    "dray_extent": Extent, "dray_region_spec": RegionSpec, "dray_region_info": RegionInfo, "dray_export": Export,
    "dray_lease_spec": LeaseSpec, "dray_remote_info": RemoteInfo, "dray_word": Word, "dray_transfer": Transfer,
    "dray_store_range": StoreRange, "dray_store_item": StoreItem, "dray_store_batch": StoreBatch,
    "dray_store_result": StoreResult, "dray_store_results": StoreResults,
    "dray_cuda_range": CudaRange, "dray_cuda_allocation": CudaAllocation, "dray_cuda_extents": CudaExtents}

# A number, because ctypes refuses None for it: that is the handle of a closed client.
_d = c_size_t
_id, _arg = POINTER(c_uint64), c_size_t

# Functions that do not block: result, parameters.
_HELD: dict[str, tuple[Any, ...]] = {
    "dray_checksum": (c_uint32, c_uint32, c_void_p, c_size_t),
    "dray_connect_start": (c_int, POINTER(Options), POINTER(c_void_p), c_char_p, c_size_t),
    "dray_disconnect": (None, _d),
    "dray_last_error": (c_char_p, _d),
    "dray_get_info": (c_int, _d, POINTER(Info)),
    "dray_fd": (c_int, _d),
    "dray_process": (c_int, _d, c_int),
    "dray_wait": (c_int, _d, c_uint64, c_int, POINTER(Completion)),
    "dray_next_completion": (c_int, _d, POINTER(Completion)),
    "dray_next_event": (c_int, _d, POINTER(Event)),
    "dray_submit": (c_int, _d, POINTER(Transfer), _id),
    "dray_submit_many": (c_int, _d, POINTER(Transfer), c_size_t, _id),
    "dray_cancel": (c_int, _d, c_uint64),
    "dray_lent": (c_int, _d, c_uint64),
    "dray_region_add_start": (c_int, _d, POINTER(RegionSpec), _arg, _id),
    "dray_region_remove_start": (c_int, _d, c_uint64, _arg, _id),
    "dray_region_export_start": (c_int, _d, c_uint64, POINTER(Export), _arg, _id),
    "dray_region_export_mooncake_start": (c_int, _d, c_uint64, POINTER(Export), c_uint64, _arg, _id),
    "dray_region_revoke_start": (c_int, _d, c_uint64, POINTER(Token), _arg, _id),
    "dray_region_map": (c_int, _d, c_uint64, POINTER(c_void_p), POINTER(c_uint64), POINTER(c_int)),
    "dray_region_get_info": (c_int, _d, c_uint64, POINTER(RegionInfo)),
    "dray_region_borrow": (c_int, _d, c_uint64, POINTER(c_uint64)),
    "dray_remote_import_start": (c_int, _d, POINTER(Token), c_uint, _arg, _id),
    "dray_remote_release_start": (c_int, _d, c_uint64, _arg, _id),
    "dray_region_lease_start": (c_int, _d, c_uint64, POINTER(LeaseSpec), _arg, _id),
    "dray_lease_end_start": (c_int, _d, c_uint64, _arg, _id),
    "dray_lease_acquire_start": (c_int, _d, POINTER(Token), c_char_p, c_uint, _arg, _id),
    "dray_lease_renew_start": (c_int, _d, c_uint64, c_uint, _arg, _id),
    "dray_remote_get_info": (c_int, _d, c_uint64, POINTER(RemoteInfo)),
    "dray_remote_borrow": (c_int, _d, c_uint64, POINTER(c_uint64)),
    "dray_notify_start": (c_int, _d, c_uint64, c_uint64, c_char_p, c_size_t, _arg, _id),
    "dray_mailbox_open_start": (c_int, _d, c_char_p, c_uint, _arg, _id),
    "dray_mailbox_close_start": (c_int, _d, c_uint64, _arg, _id),
    "dray_post_start": (c_int, _d, c_char_p, c_char_p, c_char_p, c_size_t, c_uint, _arg, _id),
    "dray_store_start": (c_int, _d, c_int, POINTER(StoreBatch), _arg, _id),
    "dray_store_release_start": (c_int, _d, POINTER(c_uint64), c_size_t, _arg, _id),
    "dray_store_keep": (c_int, _d, c_void_p, POINTER(c_void_p), POINTER(c_uint64)),
    "dray_token_parse": (c_int, c_char_p, POINTER(Token)),
    "dray_token_from_bytes": (c_int, c_char_p, c_size_t, POINTER(Token)),
    "dray_hint_get_start": (c_int, _d, c_char_p, _arg, _id),
    "dray_hint_put_start": (c_int, _d, c_char_p, c_char_p, c_uint32, c_uint64, _arg, _id),
    "dray_segment_get_start": (c_int, _d, c_char_p, _arg, _id),
    "dray_env_get_start": (c_int, _d, c_char_p, _arg, _id),
    "dray_cuda_extents_free": (None, POINTER(CudaExtents)),
    "dray_cuda_word": (Word, c_void_p, c_uint, c_uint32),
    "dray_cuda_words_memory": (c_void_p, c_void_p),
    "dray_cuda_stream_write": (c_int, c_void_p, c_void_p, c_uint, c_uint32, c_char_p, c_size_t),
    "dray_cuda_stream_wait": (c_int, c_void_p, c_void_p, c_uint, c_uint32, c_int, c_char_p,
                              c_size_t),
}

# Functions that block or take long.
_RELEASED: dict[str, tuple[Any, ...]] = {
    "dray_checksum": (c_uint32, c_uint32, c_void_p, c_size_t),
    "dray_memory_populate": (c_int, c_int, c_uint64, c_uint64, c_char_p, c_size_t),
    "dray_cuda_describe": (c_int, POINTER(CudaRange), c_size_t, POINTER(c_int), c_size_t,
                           POINTER(CudaExtents), c_char_p, c_size_t),
    "dray_cuda_find": (c_int, c_uint64, POINTER(CudaAllocation), c_char_p, c_size_t),
    "dray_cuda_alloc": (c_int, c_uint64, c_int, POINTER(c_uint64), c_char_p, c_size_t),
    "dray_cuda_free": (None, c_uint64, c_uint64, c_int),
    "dray_cuda_words_new": (c_int, _d, c_uint, POINTER(c_void_p)),
    "dray_cuda_words_free": (None, _d, c_void_p),
    "dray_region_remove": (c_int, _d, c_uint64),
}


def _path() -> str:
    """The library beside the package, else $DRAY_LIBRARY, else that of the build tree, else soname."""
    here = pathlib.Path(__file__).resolve()
    beside = here.with_name(SONAME)
    if beside.exists():
        return str(beside)
    if named := os.environ.get("DRAY_LIBRARY"):
        return named
    for root in here.parents[3:4]:
        if (root / "client/dray.h").exists():
            for build in (root / "build" / SONAME, root / "build/gcc" / SONAME):
                if build.exists():
                    return str(build)
    return SONAME


def _declare(library: ctypes.CDLL, prototypes: dict[str, tuple[Any, ...]], path: str) -> Any:
    for name, (result, *parameters) in prototypes.items():
        try:
            function = getattr(library, name)
        except AttributeError:
            raise errors.Version(
                f"{path} has no function {name}: it is older than this package",
                fix="Install libdray of the same version, or unset DRAY_LIBRARY.",
                path=path) from None
        function.restype, function.argtypes = result, parameters
    return library


def _load() -> tuple[Any, Any]:
    path = _path()
    try:
        return (_declare(ctypes.PyDLL(path), _HELD, path),
                _declare(ctypes.CDLL(path), _RELEASED, path))
    except OSError as e:
        raise errors.Unsupported(
            f"libdray cannot be loaded: {e}", path=path,
            fix="Install the package dray-client, or name the library by DRAY_LIBRARY.") from None


held, released = _load()


_munmap = ctypes.CDLL(None).munmap
_munmap.argtypes = [c_void_p, c_size_t]


class Mapping:
    """Memory of the store that is read in place, mapped until neither its client nor an array refers to it.

    A collector of garbage ends the objects of a cycle in any order, and clears weak references to them before. It does not see this one,
    which refers to no other, and so ends after all of them: one that looks at its array when it ends finds it mapped.
    """

    __slots__ = ("base", "length")

    def __init__(self, base: int) -> None:
        self.base, self.length = base, 0  # of which nothing is unmapped
        ctypes.pythonapi.PyObject_GC_UnTrack(ctypes.py_object(self))

    def __del__(self, unmap: Any = _munmap) -> None:
        unmap(self.base, self.length)


def path() -> str:
    """The file of the library that is loaded."""
    return str(held._name)


def text(value: bytes | None) -> str:
    """A string of the library, which may hold bytes of a file name."""
    return os.fsdecode(value or b"")
