# SPDX-License-Identifier: Apache-2.0
"""A session with the agent: its regions, remotes and transfers."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterable, Iterator
from ctypes import (ArgumentError, byref, c_char_p, c_int, c_uint64, c_void_p, cast)
from typing import Any, Literal, overload

from . import _arguments as arguments
from . import _library as lib
from . import _schema as s
from . import cuda, errors
from ._operations import pointer
from .handles import ACCESS, Region, Remote, Token, check_pair
from .mailbox import Mailboxes
from .memory import Memory, failure, populate
from .pending import Pending, Transfer, next_key
from .placement import Placement
from .session import Session
from .store import Stores

_CLASSES = {name: value for value, name in s.CLASS_NAMES.items()}
_DIRECTIONS = {name: value for value, name in s.DIRECTION_NAMES.items()}
_READ, _WRITE = s.DIRECTION_READ, s.DIRECTION_WRITE
_BUSY = -errors.Busy.code
_submit = lib.held.dray_submit

Word = tuple[Region, int, int]


class _Call:
    """Structs for one submission, used again and again by transfers without further arguments."""

    __slots__ = ("id", "id_ref", "t", "t_ref")

    def __init__(self, direction: int) -> None:
        self.t, self.id = lib.Transfer(direction=direction), c_uint64()
        self.t_ref, self.id_ref = byref(self.t), byref(self.id)


class Client(Session, Placement, Mailboxes, Stores):
    """A session with the agent behind `socket` (default: $DRAY_SOCKET, then /run/dray/dray.sock).

    group: sessions of one uid that name the same group share regions, transfers and notifications.
    name: shown by drayctl. Both have up to 64 bytes. notifications: this session gets the group's
    notifications, as events. segments: it gets changes of segments, as events SegmentChanged; if the
    agent is too old, it gets none and the attribute segments is False. timeout: limit in seconds of
    every call that waits and has no limit of its own; None: no limit. ring_entries: transfers that
    can be queued at the agent, a power of two up to 4096. arena_bytes: memory for lists of operations
    in flight, up to 16 MiB. gpu: UUID (GPU-...) or PCI address of the GPU on which this client will have regions; the
    agent starts it when the session opens, so that the first region does not wait for that.

    wait: waits until the session is open. An agent that is not there is reported at once
    (errors.PeerUnreachable), or after `patience` seconds. With wait=False the client connects in the
    background, and reports by an event Connected or Disconnected; requests other than transfers wait
    for the session.

    When the session is lost, requests in flight end with errors.AgentRestarted,
    errors.SessionClosed or errors.Unconfirmed, and the client connects again in the background of any
    call that waits or calls process(). Regions are registered and mailboxes opened again by themselves;
    tokens and remotes are void. Transfers are refused meanwhile, and other requests wait: until an attempt to connect
    fails and the session has been away for `patience` seconds.

    events: what was reported and not taken yet, the oldest first. When it has 16,384, the oldest 1,024 of the kind that has the
    most are dropped, and an event Dropped has their place: take events now and then, unless all of them may be lost. error: why the session ended for good, or None.

    Any thread may use a client. A forked child cannot: every call raises errors.OutOfOrder there, and
    the parent's session is not disturbed. A client that is open when the interpreter exits is closed.
    """

    def __init__(self, socket: str | os.PathLike[str] | None = None, *, group: str = "", name: str = "",
                 notifications: bool = False, segments: bool = False, timeout: float | None = None,
                 patience: float = 0.0, ring_entries: int = 256, arena_bytes: int = 4 << 20,
                 wait: bool = True, gpu: str = "") -> None:
        # before the session is opened, which may run callbacks
        self._reads: list[_Call] = []
        self._writes: list[_Call] = []
        super().__init__(socket, group=group, name=name, notifications=notifications, segments=segments, timeout=timeout,
                         patience=patience, ring_entries=ring_entries, arena_bytes=arena_bytes, wait=wait, gpu=gpu)

    # --- regions and remotes ------------------------------------------------------------------------

    @overload
    def region(self, extents: Memory | cuda.Extents | Iterable[tuple[Memory | int, int, int]], *,
               access: str | int = "rw", name: str = "", wait: Literal[True] = True) -> Region: ...

    @overload
    def region(self, extents: Memory | cuda.Extents | Iterable[tuple[Memory | int, int, int]], *,
               access: str | int = "rw", name: str = "", wait: Literal[False]) -> Pending[Region]: ...

    def region(self, extents: Memory | cuda.Extents | Iterable[tuple[Memory | int, int, int]], *,
               access: str | int = "rw", name: str = "", wait: bool = True) -> Region | Pending[Region]:
        """Contributes memory, as a Region: a Memory, or extents in the order of their offsets.

        An extent is (Memory or memfd, offset, length). Memory of a GPU comes as cuda.Extents. access:
        "r" allows transfers to read the memory, "w" to write it. Pages of a memfd that were never
        touched are touched first, which blocks for 0.3 s for each GiB. The memory stays the caller's;
        the descriptors can be closed afterwards.

        With wait=False the agent opens memory of a GPU in the background. The Pending ends before that: a transfer
        waits for the allocations that it touches, and an export for all of them. If one cannot be opened, transfers
        fail, and an event RegionLost has the reason.
        """
        self._handle()
        bits = arguments.choice("access", ACCESS, access)
        spec = lib.RegionSpec(name=arguments.text("name", name), access=bits,
                              flags=lib.REGION_NO_POPULATE | (lib.REGION_WAIT if wait else 0))
        if isinstance(extents, cuda.Extents):
            spec.device = extents.device.encode()
            entries = extents._records()
        else:
            entries = _extents([(extents, 0, extents.size)] if isinstance(extents, Memory) else extents)
        spec.extents = (lib.Extent * len(entries))(*entries)
        spec.extents_n = len(entries)
        return self._add(spec, name, bits, sum(e.length for e in entries), extents, wait)

    def _add(self, spec: Any, name: str, access: int, length: int, kept: object,
             wait: bool) -> Region | Pending[Region]:
        def adopt(c: Any) -> Region:
            region = self._regions[c.region] = Region(self, name, access, c.region, length, kept)
            if spec.pool_bytes:
                try:
                    region.memory, region.length = self._map(c.region)
                except errors.Error:
                    with contextlib.suppress(errors.Error):  # it lasts until the client is closed
                        region.remove(wait=False)
                    raise
            return region

        pending: Pending[Region] = Pending(self, adopt, lambda region: region.handle and region.remove(wait=False))
        return self._start(pending, wait, lib.held.dray_region_add_start, byref(spec))

    def _map(self, handle: int) -> tuple[Memory, int]:
        """A mapping of a pool that outlives the library's. Touches its pages."""
        address, length, fd = c_void_p(), c_uint64(), c_int()
        self._check(lib.held.dray_region_map, handle, byref(address), byref(length), byref(fd))
        try:
            own = os.dup(fd.value)
        except OSError as e:
            raise failure(f"a descriptor for a pool of {length.value} bytes", e) from None
        return Memory(length.value, fd=own), length.value

    @overload
    def pool(self, size: int, *, huge: bool = False, access: str | int = "rw", name: str = "",
             wait: Literal[True] = True) -> Region: ...

    @overload
    def pool(self, size: int, *, huge: bool = False, access: str | int = "rw", name: str = "",
             wait: Literal[False]) -> Pending[Region]: ...

    def pool(self, size: int, *, huge: bool = False, access: str | int = "rw", name: str = "",
             wait: bool = True) -> Region | Pending[Region]:
        """Memory owned by the agent, `size` bytes rounded up to pages, and mapped here as region.memory.

        huge: of huge pages. After a restart of the agent the memory belongs to the client, which
        registers it again.
        """
        bits = arguments.choice("access", ACCESS, access)
        spec = lib.RegionSpec(name=arguments.text("name", name), access=bits,
                              flags=lib.REGION_HUGE if huge else 0,
                              pool_bytes=arguments.number("size", size))
        if not size:
            raise errors.Invalid("the size of the pool is 0", fix="Pass a number of bytes above 0.")
        return self._add(spec, name, bits, size, None, wait)

    @overload
    def import_token(self, token: str | bytes | Token, *, timeout: float | None = None,
                     wait: Literal[True] = True) -> Remote: ...

    @overload
    def import_token(self, token: str | bytes | Token, *, timeout: float | None = None,
                     wait: Literal[False]) -> Pending[Remote]: ...

    def import_token(self, token: str | bytes | Token, *, timeout: float | None = None,
                     wait: bool = True) -> Remote | Pending[Remote]:
        """Makes the range behind a token usable here, as a Remote.

        timeout: limit in seconds of the agent's attempts to reach the owner; None: its default. Waits
        for the answer, or with wait=False returns a Pending.
        """
        return self._use_token(lib.held.dray_remote_import_start, token, timeout, wait)

    @overload
    def acquire(self, token: str | bytes | Token, *, label: str = "", timeout: float | None = None,
                wait: Literal[True] = True) -> Remote: ...

    @overload
    def acquire(self, token: str | bytes | Token, *, label: str = "", timeout: float | None = None,
                wait: Literal[False]) -> Pending[Remote]: ...

    def acquire(self, token: str | bytes | Token, *, label: str = "", timeout: float | None = None,
                wait: bool = True) -> Remote | Pending[Remote]:
        """Acquires the lease behind a token, as a Remote with the offsets of the owner's region.

        Acquisitions from one agent that are started together share one message. Operations outside of the
        lease's ranges end with errors.Range. release() tells the owner that this holder has used the lease,
        and renew() renews it. When it ends otherwise, transfers end with errors.Revoked, and an event
        RemoteLost comes. label: what the lease is for, up to 64 bytes; `drayctl transfers` and the agent's log
        show it with transfers of the remote. timeout and wait as for import_token().
        """
        return self._use_token(lib.held.dray_lease_acquire_start, token, timeout, wait, arguments.text("label", label))

    def _use_token(self, function: Any, token: str | bytes | Token, timeout: float | None,
                   wait: bool, label: bytes | None = None) -> Remote | Pending[Remote]:
        raw = Token(token)._raw if not isinstance(token, Token) else token._raw

        def adopt(c: Any) -> Remote:
            expiry = c.expiry_ms / 1000 if c.request == lib.REQUEST_LEASE_ACQUIRE else None
            remote = self._remotes[c.remote] = Remote(self, c.remote, expiry)
            return remote

        pending: Pending[Remote] = Pending(self, adopt, lambda remote: remote.handle and remote.release(wait=False))
        limit = arguments.milliseconds("timeout", timeout)
        # no call with *, after which a signal's handler may run
        if label is None:
            return self._start(pending, wait, function, byref(raw), limit)
        return self._start(pending, wait, function, byref(raw), label, limit)

    def borrow_region(self, agent_handle: int, length: int, access: str | int = "rw") -> Region:
        """A region that another session of the group has registered, by its agent_handle.

        remove() ends only the loan, as does a restart of the agent.
        """
        handle = c_uint64()
        self._check(lib.held.dray_region_borrow, arguments.number("agent_handle", agent_handle), byref(handle))
        region = Region(self, "borrowed", arguments.choice("access", ACCESS, access), handle.value, length)
        self._regions[handle.value] = region
        return region

    def borrow_remote(self, agent_handle: int) -> Remote:
        """A remote that another session of the group has imported, by its agent_handle."""
        handle = c_uint64()
        self._check(lib.held.dray_remote_borrow, arguments.number("agent_handle", agent_handle), byref(handle))
        remote = self._remotes[handle.value] = Remote(self, handle.value)
        return remote

    # --- transfers ----------------------------------------------------------------------------------

    def read(self, local: Region, remote: Remote, ops: Any, *, notify: tuple[int, bytes] | None = None,
             wait_word: Word | None = None, set_word: Word | None = None, deadline: float | None = None,
             klass: str = "bulk") -> Transfer:
        """Remote to local region. See transfer()."""
        return self._transfer(_READ, local, remote, ops, notify, wait_word, set_word, deadline, klass)

    def write(self, local: Region, remote: Remote, ops: Any, *, notify: tuple[int, bytes] | None = None,
              wait_word: Word | None = None, set_word: Word | None = None, deadline: float | None = None,
              klass: str = "bulk") -> Transfer:
        """Local region to remote. See transfer()."""
        return self._transfer(_WRITE, local, remote, ops, notify, wait_word, set_word, deadline, klass)

    def transfer(self, direction: str | int, local: Region, remote: Remote, ops: Any, *,
                 notify: tuple[int, bytes] | None = None, wait_word: Word | None = None,
                 set_word: Word | None = None, deadline: float | None = None,
                 klass: str = "bulk") -> Transfer:
        """Starts a transfer and returns its handle, which ends when the memory may be used again.

        direction: "read" or "write". ops: (local offset, remote offset, length), in bytes: a list of
        tuples; or a contiguous array of 64-bit integers of shape (n, 3), such as of numpy or PyTorch;
        or those packed as bytes, each as three little-endian words of 64 bits. The list is copied
        before this returns. A list of any length is allowed.

        notify: (tag, payload), delivered to the group that owns the remote, after the bytes. wait_word:
        (region, offset, value): the transfer starts when the 32-bit word has the value. set_word: the
        word is stored when all bytes are in place. deadline: seconds until the transfer is stopped with
        errors.Deadline; None: the agent's default. klass: "bulk", or "latency" for transfers that
        overtake those.

        Does not block. errors.Busy: nothing was started, because too much is in flight; wait for a
        transfer to end, then start again. errors.SessionClosed: not connected.
        """
        return self._transfer(arguments.choice("direction", _DIRECTIONS, direction), local, remote, ops,
                              notify, wait_word, set_word, deadline, klass)

    def _transfer(self, direction: int, local: Region, remote: Remote, ops: Any,
                  notify: tuple[int, bytes] | None, wait_word: Word | None, set_word: Word | None,
                  deadline: float | None, klass: str) -> Transfer:
        if type(local) is not Region or type(remote) is not Remote:
            raise check_pair(local, remote)
        if local.client is not self or remote.client is not self:
            raise self._foreign(local if local.client is not self else remote)
        calls = self._reads if direction == _READ else self._writes
        plain = notify is None and wait_word is None and set_word is None and deadline is None and klass == "bulk"
        if plain and calls:
            try:
                call = calls.pop()
            except IndexError:  # another thread took it
                call = _Call(direction)
        else:
            call = _Call(direction)
        t, keep = call.t, None
        t.local = local.handle if local.error is None and local.handle else local._use()
        t.remote = remote.handle if remote.lost is None and remote.handle else remote._use()
        t.ops, t.count, keep = pointer(ops)
        if not plain:
            keep = keep, self._extras(t, notify, wait_word, set_word)
            t.priority = arguments.choice("klass", _CLASSES, klass)
            t.deadline_ms = arguments.milliseconds("deadline", deadline)
        transfer = Transfer(self, local, remote, wait_word is not None)
        transfer._key = t.arg = key = next_key()
        if self._batches and (batch := self._batches.get(threading.get_ident())):
            batch._add(transfer, t, keep)
            return transfer
        self._pending[key] = transfer
        t_ref, id_ref = call.t_ref, call.id_ref
        try:
            code = _submit(self._d, t_ref, id_ref)
        except ArgumentError:
            self._pending.pop(key, None)
            self._handle()
            raise
        if code < 0:
            self._pending.pop(key, None)
            raise self._refusal(code, transfer)
        transfer._id = call.id.value
        if plain:
            calls.append(call)
        return transfer

    def _extras(self, t: Any, notify: tuple[int, bytes] | None, wait_word: Word | None,
                set_word: Word | None) -> Any:
        """Fills the words and the notification; returns what must live until the submission."""
        t.wait_region, t.wait_offset, t.wait_value = self._word("wait_word", wait_word)
        t.set_region, t.set_offset, t.set_value = self._word("set_word", set_word)
        t.notify = notify is not None
        t.payload_length = 0
        if notify is None:
            return None
        try:
            tag, payload = notify
        except (TypeError, ValueError):
            raise errors.Invalid(f"notify is {notify!r:.60}", fix="Pass (tag, payload).") from None
        data = arguments.data("the payload of notify", payload)
        copy = c_char_p(data)
        t.tag = arguments.number("the tag of notify", tag)
        t.payload, t.payload_length = cast(copy, c_void_p).value, len(data)
        return copy

    def _word(self, what: str, word: Word | None) -> tuple[int, int, int]:
        if word is None:
            return 0, 0, 0
        try:
            region, offset, value = word
        except (TypeError, ValueError):
            raise errors.Invalid(f"{what} is {word!r:.60}", fix="Pass (region, offset, value).") from None
        if not isinstance(region, Region):
            raise errors.Invalid(f"{what} is in {region!r:.60}, not in a Region",
                                 fix="Pass (region, offset, value).")
        if region.client is not self:
            raise self._foreign(region)
        return (region._use(), arguments.number(f"the offset of {what}", offset),
                arguments.number(f"the value of {what}", value, (1 << 32) - 1))

    def _foreign(self, what: Region | Remote) -> errors.Invalid:
        return errors.Invalid(f"{what!r} belongs to {what.client!r}, not to {self!r}", handle=what.handle,
                              fix="Use regions and remotes with the client that made them.")

    def _refusal(self, code: int, transfer: Transfer) -> errors.Error:
        """The error of a transfer that was not started."""
        error = self._last(code)
        if code == _BUSY:
            error.fix = "Wait for transfers to end, then start this one again."
        return error

    @contextlib.contextmanager
    def batch(self) -> Iterator[Client]:
        """Transfers that this thread starts inside `with client.batch():` share one doorbell.

        They are submitted at the end of the block, or when this thread waits for one of them. If the
        agent takes only some of them (errors.Busy), the others end with that error.
        """
        me = threading.get_ident()
        outer = self._batches.get(me)
        if outer is not None:
            yield self
            return
        batch = self._batches[me] = _Batch(self)
        try:
            yield self
        finally:
            del self._batches[me]
            try:
                batch._submit()
            except BaseException:  # one of a signal's handler may have come before anything was done
                batch._submit()
                raise


class _Batch:
    """Transfers that wait for their common submission."""

    def __init__(self, client: Client) -> None:
        self.client = client
        # (transfer, struct, what it points to) each: another thread that waits for one of them takes the list at any time
        self.entries: list[tuple[Transfer, Any, Any]] = []

    def _add(self, transfer: Transfer, t: Any, keep: Any) -> None:
        self.entries.append((transfer, t, keep))  # t keeps packed operations

    def _has(self, transfer: Transfer) -> bool:
        return any(entry[0] is transfer for entry in self.entries.copy())

    def _submit(self) -> None:
        entries, self.entries = self.entries, []
        if not entries:
            return
        client, n, code = self.client, len(entries), _BUSY
        ids: Any = [0] * n
        try:
            structs, ids = (lib.Transfer * n)(*[entry[1] for entry in entries]), (c_uint64 * n)()
            for transfer, _, _ in entries:
                client._pending[transfer._key] = transfer
            code = client._call(lib.held.dray_submit_many, structs, n, ids)
            self._started(entries, ids, code)
        except BaseException:  # the client was closed; or of a signal's handler
            self._started(entries, ids, code)
            raise

    def _started(self, entries: list[tuple[Transfer, Any, Any]], ids: Iterable[int], code: int) -> None:
        """Ends the transfers that have no number: they were not started."""
        client = self.client
        for (transfer, _, _), number in zip(entries, ids, strict=True):
            transfer._id = number
            if not number:
                client._pending.pop(transfer._key, None)
                transfer._end(None, client._refusal(min(code, 0) or _BUSY, transfer))


def _extents(extents: Any) -> list[Any]:
    """Records of memfds; touches the pages of those that are not a Memory."""
    entries = []
    fix = "Pass a Memory, cuda.Extents, or a list of (Memory or descriptor, offset, length)."
    try:
        extents = list(extents)
    except TypeError:
        raise errors.Invalid(f"the memory of the region is a {type(extents).__name__}", fix=fix) from None
    for extent in extents:
        try:
            what, offset, length = extent
        except (TypeError, ValueError):
            raise errors.Invalid(f"an extent is {extent!r:.60}", fix=fix) from None
        if isinstance(what, Memory) and what.fd < 0:
            raise errors.Invalid(f"{what!r} is closed", fix="Register memory before it is closed.")
        fd = arguments.number("the descriptor of an extent", what.fd if isinstance(what, Memory) else what,
                              (1 << 31) - 1)
        offset = arguments.number("the offset of an extent", offset)
        length = arguments.number("the length of an extent", length)
        if not (isinstance(what, Memory) and what._populated and offset + length <= what.size):
            populate(fd, offset, length)
        entries.append(lib.Extent(s.KIND_MEMFD, fd, offset, length, None, 0))
    return entries
