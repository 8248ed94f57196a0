# SPDX-License-Identifier: Apache-2.0
"""A session with the agent, over libdray: opening and closing, requests, events."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import stat
import threading
import time
import weakref
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from ctypes import ArgumentError, byref, c_size_t, c_uint64, c_void_p, create_string_buffer, string_at
from types import TracebackType
from typing import Any, Literal, NamedTuple, TypeVar, overload

from . import _arguments as arguments
from . import _library as lib
from . import errors, events
from ._waiting import SESSION_CODES, Waiting
from .handles import Region, Remote
from .lease import OUTCOME_NAMES, Lease
from .mailbox import Mailbox, to_letter
from .memory import failure
from .pending import Lending, Pending, Transfer, next_key
from .placement import to_event

T = TypeVar("T")
E = TypeVar("E")
S = TypeVar("S", bound="Session")

DEFAULT_SOCKET = "/run/dray/dray.sock"
_CONNECT_MS = 5000
_EVENTS_MAX = 16384  # that a client keeps for a program which does not take them
_EVENTS_DROPPED = 1024  # at once, when there are more


class Info(NamedTuple):
    """The session and the agent; while not connected, the last ones."""

    connected: bool
    session: int
    incarnation: int
    agent_id: bytes
    segment: str
    version: str
    ring_entries: int
    arena_bytes: int
    in_flight: int
    segments: bool
    losses: int  # of the session, and failed attempts to open one
    no_ring: str  # why the session has no ring; empty: it has one


class _EventWait(Pending[Any]):
    """Waits for the next event of a kind."""

    __slots__ = ("kind", "looked")

    ends_quietly = True

    def __init__(self, client: Session, kind: Any) -> None:
        super().__init__(client)
        self.kind = kind
        self.looked = False  # through the whole queue: only a new event can be for it

    def cancel(self) -> bool:
        return self._client._cancel_event(self)

    def _give_up(self) -> None:
        if not self.cancel() and self._value is not None:
            # it came, but the task that was to get it was cancelled first
            self._client._give_back(self._value)

    def _miss(self) -> None:
        value, self._value = self._value, None
        if value is not None:
            self._client._give_back(value)


_SessionWait = Pending[None]


class Session(Waiting):
    """What a Client can do about its session: describe it, open it again, close it, report events."""

    def __init__(self, socket: str | os.PathLike[str] | None = None, *, group: str = "", name: str = "",
                 notifications: bool = False, segments: bool = False, timeout: float | None = None,
                 patience: float = 0.0, ring_entries: int = 256, arena_bytes: int = 4 << 20,
                 wait: bool = True, gpu: str = "") -> None:
        where = socket if socket is not None else os.environ.get("DRAY_SOCKET") or DEFAULT_SOCKET
        super().__init__(os.fsdecode(arguments.path("socket", where)))
        self.group, self.name = group, name
        self.timeout, self.patience = arguments.timeout(timeout), patience
        self.events: deque[Any] = deque()
        self._regions: dict[int, Region] = {}
        self._removing: set[Region] = set()  # of which it is not proven that the agent uses them no more
        self._remotes: weakref.WeakValueDictionary[int, Remote] = weakref.WeakValueDictionary()
        self._leases: dict[int, Lease] = {}
        self._mailboxes: dict[int, Mailbox] = {}
        self._unconfirmed: dict[int, Lending[Any]] = {}
        self._given_up: set[int] = set()  # keys of batches of the store that the caller has cancelled, and the agent has not answered
        self._event_waits: list[_EventWait] = []
        self._session_waits: list[_SessionWait] = []
        self._failed: list[Region] = []
        self._rest: c_size_t | None = None  # the library's handle, when close() has begun
        self._closing = threading.RLock()  # held meanwhile
        self._blocking = threading.Lock()  # held during calls of the library that release the interpreter lock

        flags = (lib.OPTION_NOTIFICATIONS if notifications else 0) | \
            (lib.OPTION_SEGMENTS if segments else 0) | (lib.OPTION_WAIT if patience else 0) | \
            (lib.OPTION_GPU if gpu else 0)
        limit = arguments.milliseconds("timeout", timeout) or _CONNECT_MS
        options = lib.Options(
            socket=self.path.encode("utf-8", "surrogateescape"), group=arguments.text("group", group),
            name=arguments.text("name", name), flags=flags, connect_ms=limit,
            patience_ms=arguments.milliseconds("patience", patience) if patience else 1,
            ring_entries=arguments.number("ring_entries", ring_entries, (1 << 32) - 1),
            arena_bytes=arguments.number("arena_bytes", arena_bytes), gpu=arguments.text("gpu", gpu))
        self._open(options, wait, max(limit / 1000, patience))

    def _open(self, options: Any, wait: bool, limit: float) -> None:
        try:
            self._wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as e:
            raise failure("a pipe for the client", e) from None
        handle, why = c_void_p(), create_string_buffer(lib.WHY_SIZE)
        code = lib.held.dray_connect_start(byref(options), byref(handle), why, len(why))
        if code:
            self._give_up_handle()
            raise errors.make(code, lib.text(why.value), path=self.path)
        self._d = c_size_t(handle.value or 0)
        self._views = _views[self._d.value] = {}
        self._mappings: dict[int, lib.Mapping] = {}  # of memory that was read in place, by their first bytes
        _clients.add(self)
        self._quiet = wait
        if not wait:
            self._progress()
            return
        opened = _SessionWait(self)
        self._session_waits.append(opened)
        try:
            # longer than the library's limit, whose error has a better message
            opened.result(limit + 0.5)
        except BaseException:
            self._shut(errors.SessionClosed("the client could not connect", path=self.path))
            raise

    # --- session ------------------------------------------------------------------------------------

    def info(self) -> Info:
        """Describes the session and the agent. Does not wait."""
        i = lib.Info()
        self._check(lib.held.dray_get_info, byref(i))
        return Info(bool(i.connected), i.session, i.incarnation, bytes(i.agent_id), lib.text(i.segment),
                    lib.text(i.version), i.ring_entries, i.arena_bytes, i.in_flight, bool(i.segments), i.losses,
                    lib.text(i.no_ring))

    @property
    def connected(self) -> bool:
        """True while the session is open and its regions are registered. Does not wait."""
        if self._d is None and self._gone is None:
            return False
        self._progress()
        return self._d is not None and self.info().connected

    @property
    def agent_id(self) -> bytes:
        """16 bytes that name the agent, for the audience of tokens."""
        return self.info().agent_id

    @property
    def incarnation(self) -> int:
        """Number of the agent's start; another one after each restart."""
        return self.info().incarnation

    @property
    def segment(self) -> str:
        """Address (host:port) of the agent for other agents."""
        return self.info().segment

    @property
    def version(self) -> str:
        """Version of the agent."""
        return self.info().version

    @property
    def segments(self) -> bool:
        """True if the agent delivers changes of segments to this session."""
        return self.info().segments

    @overload
    def reconnect(self, timeout: float | None = None, *, wait: Literal[True] = True) -> None: ...

    @overload
    def reconnect(self, timeout: float | None = None, *, wait: Literal[False]) -> Pending[None]: ...

    def reconnect(self, timeout: float | None = None, *, wait: bool = True) -> None | Pending[None]:
        """Waits until there is a session, up to `timeout` seconds (default: that of the client).

        With wait=False returns a Pending. The regions are registered again then; those that the agent
        refused raise their error when they are used. Tokens and remotes of an earlier session are void.
        """
        pending = _SessionWait(self)
        self._handle()
        self._session_waits.append(pending)  # before it looks: another thread may take the event just now
        self._progress()
        self._serve()
        if not wait:
            return pending
        try:
            pending.result(self.timeout if timeout is None else timeout)
        except errors.Timeout:
            raise errors.SessionClosed(
                f"there is no session with the agent at {self.path}: "
                f"{lib.text(self._call(lib.held.dray_last_error))}", path=self.path,
                fix="Start drayd, or wait longer.") from None
        return None

    def close(self, timeout: float | None = 5.0) -> None:
        """Ends the session. Waits up to `timeout` seconds until its regions are removed.

        After that only the caller uses the memory that was registered. If the agent has not removed a region
        within `timeout`, or has refused to, it stops its work on the memory when it sees the end of the session,
        which is not waited for. The client keeps each Memory until it has ended the session. Requests in flight end
        with errors.SessionClosed. May be called twice, and in any thread.
        """
        error = self._closed()
        try:
            if timeout and self._d is not None:
                self._remove_regions(timeout)
            self._shut(error)
        except BaseException:  # also one of a signal's handler
            self._shut(error)
            raise

    def _remove_regions(self, timeout: float) -> None:
        if self._leader == threading.get_ident():
            return  # called from a callback, where nothing can be waited for
        ends = time.monotonic() + timeout
        with contextlib.suppress(errors.Error):
            self._progress()
            if self.info().connected:
                removals = [p for r in list(self._regions.values()) if r.handle
                            for p in [r.remove(wait=False)] if p is not None]
                for p in removals:
                    p.exception(max(0.0, ends - time.monotonic()))

    def _shut(self, error: errors.Error) -> None:
        """Ends everything that is pending, then the library's handle. Called again, it does what an exception of a signal handler has left."""
        if self._gone:
            return
        self.error = self.error or error
        own = self._leader == threading.get_ident()
        lead: Any = contextlib.nullcontext() if own else self._lead
        try:
            if not self._closing.acquire(False):
                return
            if self._d is not None:
                self._rest, self._d = self._d, None
            self._end_all(error)
            with self._waking:
                self._close_wake(1)
            with lead:  # the polling thread has left
                with self._blocking:
                    self._disconnect()
                    self._close_wake(0)
            self._free_memory()
            _clients.discard(self)
        finally:
            try:
                self._closing.release()
            except RuntimeError:
                pass  # another thread closes the client

    def _close_wake(self, end: int) -> None:
        fd, close = self._wake[end], os.close
        self._wake = (self._wake[0], -1) if end else (-1, self._wake[1])
        if fd >= 0:
            close(fd)

    def _disconnect(self) -> None:
        """Ends the library's handle. What was read in place cannot be used any more; what a program still has of it stays mapped."""
        if self._rest is None:
            return
        for view in list(_views.get(self._rest.value, {}).values()):
            if (data := view()) is not None:
                with contextlib.suppress(BufferError):
                    data.release()
        _views.pop(self._rest.value, None)
        disconnect = lib.held.dray_disconnect
        d, mappings = self._rest, self._mappings  # the mappings may be unmapped after the end of the handle
        self._rest, self._mappings = None, {}
        disconnect(d)
        del mappings

    def _end_all(self, error: errors.Error) -> None:
        while self._pending:
            for key, pending in list(self._pending.items()):
                pending._end(None, error)
                pending._run_callbacks()
                self._pending.pop(key, None)
        self._unconfirmed.clear()
        self._end_waits(self._session_waits, error)
        self._end_waits(self._event_waits, None)
        self._led = None
        for lock in list(self._sleeping):
            self._rouse(lock)
        for region in list(self._regions.values()):
            region.handle = 0
        for remote in list(self._remotes.values()):
            remote.handle = 0
        for box in list(self._mailboxes.values()):
            box.handle = 0

    def _free_memory(self) -> None:
        """After the end of the session, with which the agent ends all work."""
        for region in [*self._regions.values(), *self._removing]:
            region._forget()
        self._regions.clear()
        self._removing.clear()

    def _forked(self) -> None:
        """In a forked child: gives up the copy of the parent's session."""
        self._gone = _after_fork
        self._lead, self._leader, self._waking = threading.RLock(), 0, threading.RLock()
        self._closing = threading.RLock()
        self._give_up_handle()

    def __enter__(self: S) -> S:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 traceback: TracebackType | None) -> None:
        self.close()

    async def __aenter__(self: S) -> S:
        await self.reconnect(wait=False)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None,
                        traceback: TracebackType | None) -> None:
        await self.aclose()

    async def aclose(self, timeout: float | None = 5.0) -> None:
        """close() for asyncio: the loop runs meanwhile."""
        if self._d is not None:
            await asyncio.get_running_loop().run_in_executor(None, self.close, timeout)

    def __del__(self) -> None:
        if hasattr(self, "_rest"):
            self._give_up_handle()

    def _give_up_handle(self) -> None:
        if self._d is not None:
            self._rest, self._d = self._d, None
        self._disconnect()
        self._close_wake(1)
        self._close_wake(0)

    def __repr__(self) -> str:
        name = f" {self.name!r}" if self.name else ""
        return f"<Client{name} of {self.path}{'' if self._d else ', closed'}>"

    # --- requests -----------------------------------------------------------------------------------

    def _request(self, pending: Pending[Any], function: Any, *fields: Any) -> None:
        """Starts a request by a function of the library that ends in _start. After an exception it has a number if it was started."""
        pending._key = key = next_key()
        number = c_uint64()
        self._pending[key] = pending
        try:
            code = function(self._d, *fields, key, byref(number))
            if code < 0:
                raise self._last(code)
            pending._id = number.value
        except ArgumentError:
            self._pending.pop(key, None)
            self._handle()
            raise
        except BaseException:
            pending._id = number.value
            if not pending._id:
                self._pending.pop(key, None)
            raise

    def _start(self, pending: Pending[T], wait: bool, function: Any, *fields: Any) -> T | Pending[T]:
        """Starts a request; its result, or with wait=False the request."""
        try:
            self._request(pending, function, *fields)
            return pending.result(self.timeout) if wait else pending
        except BaseException:
            self._leave(pending)
            raise

    @overload
    def _settle(self, pending: Pending[T], wait: Literal[True]) -> T: ...

    @overload
    def _settle(self, pending: Pending[T], wait: bool) -> T | Pending[T]: ...

    def _settle(self, pending: Pending[T], wait: bool) -> T | Pending[T]:
        """The result of a request, or with wait=False the request."""
        if not wait:
            return pending
        try:
            return pending.result(self.timeout)
        except BaseException:
            self._leave(pending)
            raise

    def _leave(self, pending: Pending[Any]) -> None:
        """After its own error; or a limit, or what a signal's handler has raised: nobody will see the result."""
        if pending._ended:
            if pending._error is None:
                pending._drop(pending._value)
        elif pending._id:
            pending._give_up()

    def _abandon(self, pending: Pending[Any]) -> None:
        try:
            pending._end(None, errors.Cancelled(f"{pending!r} was given up", handle=pending._id))
            self._took()  # another thread may wait for it
        except BaseException:
            self._recover(pending)
            raise

    def _failure(self, c: Any) -> errors.Error:
        """The error of a completion."""
        path = self.path if -c.status in SESSION_CODES else None
        return errors.make(c.status, lib.text(c.message), handle=c.region or c.remote or c.mailbox or c.id, path=path)

    def _free_remote(self, handle: int) -> None:
        """Gives the handle of a lost remote back to the library."""
        self._remotes.pop(handle, None)
        if handle and self._d is not None:
            self._call(lib.held.dray_remote_release_start, handle, 0, None)

    def _transfer_failure(self, transfer: Transfer, c: Any) -> errors.Error:
        """The error of a transfer that failed, with the objects that it is about."""
        error = self._failure(c)
        error.handle = c.id
        if isinstance(error, errors.Range):
            what = "of" if transfer._remote.expiry is None else "is outside of the ranges of the lease"
            error.message = f"an operation is empty, passes the end of {transfer._local!r} or {what} {transfer._remote!r}"
        return self._remembered(transfer, error, c)

    def _remembered(self, request: Lending[Any], error: errors.Error, c: Any) -> errors.Error:
        """The error with which a request ends. The event of its true end names the request."""
        if isinstance(error, errors.Unconfirmed):
            self._unconfirmed[c.id] = request
        return error

    def _cancel(self, transfer: Transfer) -> None:
        if not transfer._id and self._batches:
            self._flush_batches(transfer)
        if not transfer._ended:
            self._progress()
        if transfer._ended:
            raise errors.NotFound(f"{transfer!r} has ended", handle=transfer._id, fix="Nothing is left to cancel.")
        self._check(lib.held.dray_cancel, transfer._id)

    def _is_lent(self, request: Lending[Any]) -> bool:
        self._progress()
        return self._check(lib.held.dray_lent, request._id) == 1

    # --- events -------------------------------------------------------------------------------------

    @overload
    def next_event(self, kind: type[E], timeout: float | None = None) -> E | None: ...

    @overload
    def next_event(self, kind: None = None, timeout: float | None = None) -> Any: ...

    def next_event(self, kind: Any = None, timeout: float | None = None) -> Any:
        """Waits for the next event of a kind (events.Notification, ...; None: any) and takes it.

        None: `timeout` seconds have passed (None: no limit), or the session ended for good.
        """
        wait = None
        try:
            wait = self.event(kind)
            try:
                return wait.result(timeout)
            except errors.Timeout:
                wait.cancel()
                return wait._value
        except BaseException:  # of a signal's handler
            if wait is not None:
                wait._give_up()
            raise

    def next_notification(self, timeout: float | None = None) -> events.Notification | None:
        """next_event() for notifications."""
        return self.next_event(events.Notification, timeout)

    @overload
    def event(self, kind: type[E]) -> Pending[E | None]: ...

    @overload
    def event(self, kind: None = None) -> Pending[Any]: ...

    def event(self, kind: Any = None) -> Pending[Any]:
        """The next event of a kind, to be awaited. To cancel it loses no event. See next_event()."""
        self._handle()
        wait = _EventWait(self, kind or object)
        try:
            self._event_waits.append(wait)  # before it looks: another thread may take the event just now
            self._progress()
            self._serve_event_wait(wait)
        except BaseException:  # of a signal's handler
            wait._give_up()
            raise
        return wait

    def notification(self) -> Pending[events.Notification | None]:
        """The next notification, to be awaited: `await client.notification()`."""
        return self.event(events.Notification)

    async def stream_events(self, kind: Any = None) -> AsyncIterator[Any]:
        """`async for event in client.stream_events():` until the session ends for good."""
        while self._d is not None or self._gone:
            event = await self.event(kind)
            if event is None:
                return
            yield event

    def _cancel_event(self, wait: _EventWait) -> bool:
        if wait._ended:
            return False
        wait._ended = True
        try:
            wait._run_callbacks()
            with contextlib.suppress(ValueError):
                self._event_waits.remove(wait)
            self._took()
        except BaseException:
            self._recover(wait)
            raise
        return True

    def _on_event(self, e: Any) -> None:
        _EVENTS.get(e.type, Session._on_unknown)(self, e)
        e.type = 0

    def _report(self, event: Any, e: Any = None, table: dict[int, Any] | None = None, key: int = 0) -> None:
        """Puts an event into the queue, from where waits take it. With it are done: e, of which it is; and an entry of a table."""
        queue = self.events
        if len(queue) >= _EVENTS_MAX:
            self._serve_events(self._drop_events(queue))
        queue += (event,)
        if e is not None:
            e.type = 0
        if table is not None and key in table:
            del table[key]
        if self._event_waits:
            self._serve_events(event)

    def _give_back(self, event: Any) -> None:
        """The next one that waits for an event of this kind gets this one."""
        self.events.appendleft(event)
        self._serve_events(event)

    def _serve(self) -> None:
        self._serve_events()
        with contextlib.suppress(errors.Error):  # another thread has closed the client
            if self._session_waits and (self.error is not None or self.info().connected):
                self._end_waits(self._session_waits, self.error)

    def _serve_events(self, newest: Any = None) -> None:
        """Gives events of the queue to those who wait for them. newest: no other one has come. None: after an exception nobody knows."""
        for wait in list(self._event_waits):
            self._serve_event_wait(wait, newest)
            if newest is not None and wait._value is newest:
                return

    def _serve_event_wait(self, wait: _EventWait, newest: Any = None) -> None:
        if not wait._ended:
            if newest is None or not wait.looked or self.error is not None:
                self._find_event(wait)
            elif isinstance(newest, wait.kind):
                self._find_event(wait, newest)
        if not wait._ended and self.error is not None:
            wait._end(None, None)
        if wait._ended:
            wait._run_callbacks()
            with contextlib.suppress(ValueError):
                self._event_waits.remove(wait)

    def _find_event(self, wait: _EventWait, newest: Any = None) -> None:
        """Gives it the oldest event of its kind, if there is one in the queue; or newest, if it is still there."""
        if newest is not None:
            self._take_event(wait, newest, -1)
        changed = True
        while changed and not wait._ended:
            changed = False
            for i, event in enumerate(list(self.events)):
                if isinstance(event, wait.kind) if newest is None else event is newest:
                    self._take_event(wait, event, i)
                    changed = True  # unless the wait has ended
                    break
        if newest is None:
            wait.looked = True

    def _take_event(self, wait: _EventWait, event: Any, i: int) -> None:
        """Gives it the event, if that is at place i of the queue."""
        queue = self.events
        with contextlib.suppress(IndexError):
            if queue[i] is event and not wait._ended:
                del queue[i]
                wait._value, wait._ended = event, True

    def _drop_events(self, queue: deque[Any]) -> events.Dropped | None:
        """Makes room in the queue; returns the event that says so. Kinds that are rare, and say what has ended, are not lost for those that nobody takes."""
        of = Counter(map(type, list(queue)))
        del of[events.Dropped]
        if not of:  # the program has taken them meanwhile
            return None
        kind, n = of.most_common(1)[0]
        left, at, i = min(n, _EVENTS_DROPPED), -1, 0
        said = events.Dropped(kind, 0)
        with contextlib.suppress(IndexError):  # the program takes some meanwhile
            while left:
                event = queue[i]
                if at < 0 and type(event) is events.Dropped and event.kind is kind:
                    at, said = i, event
                elif type(event) is kind:
                    more = events.Dropped(kind, said.number + 1)
                    if queue[i] is not event or at >= 0 and queue[at] is not said:
                        return said
                    # in one step
                    if at < 0:
                        at = i
                    else:
                        del queue[i]
                        i -= 1
                    queue[at], said, left = more, more, left - 1
                i += 1
        return said

    def _text_of(self, e: Any) -> errors.Error:
        return errors.make(e.code, lib.text(e.message), handle=e.region or e.remote or e.mailbox or e.id,
                           path=self.path)

    def _on_notification(self, e: Any) -> None:
        payload = string_at(e.payload, e.length) if e.length else b""
        self._report(events.Notification(e.tag, payload, self._regions.get(e.region), e.agent_region,
                                         bytes(e.agent_id), e.incarnation, e.id), e)

    def _on_remote_lost(self, e: Any) -> None:
        remote, text = self._remotes.get(e.remote), lib.text(e.message)
        if remote is not None:
            remote._lose(errors.make(e.code, text, handle=e.remote))
        else:
            self._free_remote(e.remote)
        self._report(events.RemoteLost(remote, -e.code, text), e)

    def _on_draining(self, e: Any) -> None:
        self._report(events.Draining(e.deadline_ms), e)

    def _on_lost(self, e: Any) -> None:
        error = self._text_of(e)
        for remote in list(self._remotes.values()):
            remote._lose(errors.AgentRestarted(
                f"{remote!r} belongs to an earlier session", handle=remote.handle,
                fix="Import a new token of its owner."))
        self._failed = []
        self._report(events.Disconnected(error, False), e)

    def _on_restored(self, e: Any) -> None:
        live = [r for r in list(self._regions.values()) if r.error is None and r.handle]
        self._report(events.Reconnected(self.incarnation, bool(e.restarted), len(live), self._failed), e)
        self._serve()

    def _on_connected(self, e: Any) -> None:
        if not self._quiet:
            self._report(events.Connected(self.incarnation), e)
        self._serve()

    @staticmethod
    def _end_waits(waits: list[Any], error: errors.Error | None) -> None:
        for wait in list(waits):
            wait._end(None, error)
            wait._run_callbacks()
            with contextlib.suppress(ValueError):
                waits.remove(wait)

    def _on_region_lost(self, e: Any) -> None:
        region, error = self._regions.get(e.region), self._text_of(e)
        if region is not None:
            region.error = error
            if region not in self._failed:
                self._failed.append(region)
        self._report(events.RegionLost(region, error), e)

    def _on_closed(self, e: Any) -> None:
        error = self._unreachable(self._text_of(e))
        self.error = error
        self._report(events.Disconnected(error, True), e)
        self._serve()

    def _on_segment(self, e: Any) -> None:
        self._report(to_event(e), e)

    def _on_letter(self, e: Any) -> None:
        self._report(to_letter(e, self._mailboxes), e)

    def _on_mailbox_lost(self, e: Any) -> None:
        box, error = self._mailboxes.get(e.mailbox), self._text_of(e)
        if box is not None:
            box.error = error
        self._report(events.MailboxLost(box, error), e)

    def _on_confirmed(self, e: Any) -> None:
        request = self._unconfirmed.get(e.id)
        if request is not None:
            error = errors.make(e.code, lib.text(e.message), handle=e.id) if e.code else None
            self._report(events.Confirmed(request, error), e, self._unconfirmed, e.id)

    def _on_lease_ended(self, e: Any) -> None:
        lease = self._leases.get(e.lease)
        if lease is not None:
            lease.how = OUTCOME_NAMES.get(e.outcome, str(e.outcome))
            self._report(events.LeaseEnded(lease, lease.how, e.acquired), e, self._leases, e.lease)

    def _on_dropped(self, e: Any) -> None:
        self._report(events.Dropped(_KINDS.get(e.tag, object), e.id), e)

    def _on_unknown(self, e: Any) -> None:
        pass  # of a newer library

    def _unreachable(self, error: errors.Error) -> errors.Error:
        """Adds what is wrong with the path of the socket, and what to do."""
        if isinstance(error, (errors.PeerUnreachable, errors.Denied)):
            error.message, error.fix = _what_is_wrong(self.path, error)
        return error


def _what_is_wrong(path: str, error: errors.Error) -> tuple[str, str]:
    """(message, fix) for a socket that cannot be connected to."""
    try:
        mode = os.stat(path).st_mode
    except PermissionError:
        return (f"uid {os.getuid()} may not search the folder of the socket {path}",
                "Run as a user or in a group that may use the agent, such as the group of the folder.")
    except OSError as e:
        return (f"there is no socket at {path} ({e.strerror})",
                "Start drayd, or name its socket by the argument socket= or by DRAY_SOCKET.")
    if not stat.S_ISSOCK(mode):
        kind = "folder" if stat.S_ISDIR(mode) else "file"
        return (f"{path} is a {kind}, not a socket",
                "Name the socket of drayd by the argument socket= or by DRAY_SOCKET.")
    if not os.access(path, os.W_OK):
        return (f"uid {os.getuid()} may not connect to the socket {path}",
                "Run as a user or in a group that may use the agent, such as the group of the socket.")
    if isinstance(error, errors.Denied):  # by the agent
        return error.message, error.fix
    return (f"no agent listens at the socket {path}", "Start drayd, or wait for it with patience=.")


def _after_fork() -> errors.Error:
    return errors.OutOfOrder("this client belongs to the parent of this forked process",
                             fix="Make a Client in the child.")


_EVENTS: dict[int, Callable[[Session, Any], None]] = {
    lib.EVENT_NOTIFICATION: Session._on_notification, lib.EVENT_REMOTE_LOST: Session._on_remote_lost,
    lib.EVENT_DRAINING: Session._on_draining, lib.EVENT_LOST: Session._on_lost,
    lib.EVENT_RESTORED: Session._on_restored, lib.EVENT_REGION_LOST: Session._on_region_lost,
    lib.EVENT_CLOSED: Session._on_closed, lib.EVENT_SEGMENT: Session._on_segment,
    lib.EVENT_CONNECTED: Session._on_connected, lib.EVENT_CONFIRMED: Session._on_confirmed,
    lib.EVENT_LEASE_ENDED: Session._on_lease_ended,
    lib.EVENT_LETTER: Session._on_letter, lib.EVENT_MAILBOX_LOST: Session._on_mailbox_lost,
    lib.EVENT_DROPPED: Session._on_dropped}
_KINDS: dict[int, type] = {
    lib.EVENT_NOTIFICATION: events.Notification, lib.EVENT_REMOTE_LOST: events.RemoteLost, lib.EVENT_DRAINING: events.Draining,
    lib.EVENT_LOST: events.Disconnected, lib.EVENT_RESTORED: events.Reconnected, lib.EVENT_REGION_LOST: events.RegionLost,
    lib.EVENT_CLOSED: events.Disconnected, lib.EVENT_SEGMENT: events.SegmentChanged, lib.EVENT_CONNECTED: events.Connected,
    lib.EVENT_CONFIRMED: events.Confirmed, lib.EVENT_LEASE_ENDED: events.LeaseEnded, lib.EVENT_LETTER: events.Letter,
    lib.EVENT_MAILBOX_LOST: events.MailboxLost}

# Of each handle, the views of what was read in place, by id. Not in the client: a collector of garbage that finds the client clears weak
# references that are part of it before it ends the client.
_views: dict[int, dict[int, weakref.ref[memoryview]]] = {}
_clients: weakref.WeakSet[Session] = weakref.WeakSet()


def _in_child() -> None:
    for client in list(_clients):
        client._forked()
    _clients.clear()


def _at_exit() -> None:
    for client in list(_clients):
        client._shut(errors.SessionClosed("the interpreter exits", path=client.path))


os.register_at_fork(after_in_child=_in_child)
atexit.register(_at_exit)
