# SPDX-License-Identifier: Apache-2.0
"""A session with the agent, over libdray.

Any thread may use a client and its objects. All calls into the library that touch the
session keep the interpreter lock, and do not block. A thread that waits does so in three steps:

1. It waits inside the library for up to 1 ms with the interpreter lock held. Most transfers end
   within that time, and to take the lock again costs up to 5 ms beside a thread that computes. The
   step is left out for transfers that are evidently long: those with a wait word, and while recent
   waits of this client took longer. Other Python threads stand still meanwhile.
2. If no other thread polls the session's descriptor, this one does, without the interpreter lock. It
   delivers the completions of all requests.
3. Otherwise it sleeps on a lock of its own, which is released when its request ends. The polling
   thread hands over to one of the sleeping threads when its own request has ended.

A client that waits in asyncio has a reader for the session's descriptor in that loop.
"""

# close() frees the library's handle while other threads may be about to use it. So the handle is read as
# `self._d` in the expression of the call itself, after all other arguments are at hand: the interpreter
# does not switch threads there. A closed client has None in its place, which ctypes refuses before the
# call.

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import select
import stat
import threading
import time
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from ctypes import (ArgumentError, byref, c_char_p, c_int, c_size_t, c_uint64, c_void_p, cast,
                    create_string_buffer, string_at)
from itertools import count
from types import TracebackType
from typing import Any, Literal, NamedTuple, TypeVar, overload

from . import _arguments as arguments
from . import _library as lib
from . import _schema as s
from . import cuda, errors, events
from ._operations import pointer
from .handles import ACCESS, Region, Remote, Token, check_pair
from .memory import Memory, populate
from .pending import Done, Pending, Transfer
from .placement import Placement, to_event

T = TypeVar("T")
E = TypeVar("E")

DEFAULT_SOCKET = "/run/dray/dray.sock"
_CLASSES = {name: value for value, name in s.CLASS_NAMES.items()}
_DIRECTIONS = {name: value for value, name in s.DIRECTION_NAMES.items()}
_HOLD_MS = 1  # longest wait with the interpreter lock held
_HOLDERS_MAX = 8  # with more waiting threads, none waits with the interpreter lock held
_MISSES_MAX = 8  # waits in a row that took longer than step 1, after which it is left out 63 times
_CONNECT_MS = 5000

_keys = count(1).__next__
_submit, _wait, _process = lib.held.dray_submit, lib.held.dray_wait, lib.held.dray_process
_next_completion, _next_event = lib.held.dray_next_completion, lib.held.dray_next_event
_READ, _WRITE = s.DIRECTION_READ, s.DIRECTION_WRITE
_TIMEOUT, _BUSY = -errors.Timeout.code, -errors.Busy.code

Word = tuple[Region, int, int]


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


class _Call:
    """Structs for one submission, used again and again by transfers without further arguments."""

    __slots__ = ("id", "id_ref", "t", "t_ref")

    def __init__(self, direction: int) -> None:
        self.t, self.id = lib.Transfer(direction=direction), c_uint64()
        self.t_ref, self.id_ref = byref(self.t), byref(self.id)


class _Result:
    """A struct for completions, used again and again."""

    __slots__ = ("c", "ref")

    def __init__(self) -> None:
        self.c = lib.Completion()
        self.ref = byref(self.c)


class _Loop:
    """An asyncio loop in which requests are awaited."""

    __slots__ = ("fd", "waiting")

    def __init__(self, fd: int) -> None:
        self.fd, self.waiting = fd, 0


class _EventWait(Pending[Any]):
    """Waits for the next event of a kind."""

    __slots__ = ("kind",)

    def __init__(self, client: Client, kind: Any) -> None:
        super().__init__(client)
        self.kind = kind

    def cancel(self) -> bool:
        return self._client._cancel_event(self)

    def _give_up(self) -> None:
        if not self.cancel() and self._value is not None:
            # it came, but the task that was to get it was cancelled first
            self._client._report(self._value, first=True)


_SessionWait = Pending[None]


class Client(Placement):
    """A session with the agent behind `socket` (default: $DRAY_SOCKET, then /run/dray/dray.sock).

    group: sessions of one uid that name the same group share regions, transfers and notifications.
    name: shown by drayctl. Both have up to 64 bytes. notifications: this session gets the group's
    notifications, as events. segments: it gets changes of segments, as events SegmentChanged; if the
    agent is too old, it gets none and the attribute segments is False. timeout: limit in seconds of
    every call that waits and has no limit of its own; None: no limit. ring_entries: transfers that
    can be queued at the agent, a power of two up to 4096. arena_bytes: memory for lists of operations
    in flight, up to 16 MiB.

    wait: waits until the session is open. An agent that is not there is reported at once
    (errors.PeerUnreachable), or after `patience` seconds. With wait=False the client connects in the
    background, and reports by an event Connected or Disconnected; requests other than transfers wait
    for the session.

    When the session is lost, requests in flight end with errors.AgentRestarted,
    errors.SessionClosed or errors.Unconfirmed, and the client connects again in the background of any
    call that waits or calls process(). Regions are registered again by themselves; tokens and remotes
    are void. Transfers are refused meanwhile, and other requests wait: until an attempt to connect
    fails and the session has been away for `patience` seconds.

    events: what was reported and not taken yet. error: why the session ended for good, or None.

    Any thread may use a client. A forked child cannot: every call raises errors.OutOfOrder there, and
    the parent's session is not disturbed. A client that is open when the interpreter exits is closed.
    """

    def __init__(self, socket: str | os.PathLike[str] | None = None, *, group: str = "", name: str = "",
                 notifications: bool = False, segments: bool = False, timeout: float | None = None,
                 patience: float = 0.0, ring_entries: int = 256, arena_bytes: int = 4 << 20,
                 wait: bool = True) -> None:
        self._d: c_size_t | None = None
        self._gone: Callable[[], errors.Error] | None = None
        where = socket if socket is not None else os.environ.get("DRAY_SOCKET") or DEFAULT_SOCKET
        self.path = os.fsdecode(arguments.path("socket", where))
        self.group, self.name = group, name
        self.timeout, self.patience = arguments.timeout(timeout), patience
        self.events: deque[Any] = deque()
        self.error: errors.Error | None = None

        self._reads: list[_Call] = []
        self._writes: list[_Call] = []
        self._results: list[_Result] = []
        self._pending: dict[int, Pending[Any]] = {}
        self._regions: dict[int, Region] = {}
        self._remotes: weakref.WeakValueDictionary[int, Remote] = weakref.WeakValueDictionary()
        self._unconfirmed: dict[int, Transfer] = {}
        self._event_waits: list[_EventWait] = []
        self._session_waits: list[_SessionWait] = []
        self._failed: list[Region] = []
        self._batches: dict[int, _Batch] = {}

        self._skip = self._misses = 0
        self._lead = threading.Lock()  # held by the thread that polls the descriptor
        self._leader = 0
        self._blocking = threading.Lock()  # held during calls of the library that release the interpreter lock
        self._sleeping: dict[Any, bool] = {}  # locks of waiting threads
        self._poller: Any = None
        self._loops: dict[asyncio.AbstractEventLoop, _Loop] = {}

        flags = (lib.OPTION_NOTIFICATIONS if notifications else 0) | \
            (lib.OPTION_SEGMENTS if segments else 0) | (lib.OPTION_WAIT if patience else 0)
        limit = arguments.milliseconds("timeout", timeout) or _CONNECT_MS
        options = lib.Options(
            socket=self.path.encode("utf-8", "surrogateescape"), group=arguments.text("group", group),
            name=arguments.text("name", name), flags=flags, connect_ms=limit,
            patience_ms=arguments.milliseconds("patience", patience) or 1,
            ring_entries=arguments.number("ring_entries", ring_entries, (1 << 32) - 1),
            arena_bytes=arguments.number("arena_bytes", arena_bytes))
        self._open(options, wait, max(limit / 1000, patience))

    def _open(self, options: Any, wait: bool, limit: float) -> None:
        handle, why = c_void_p(), create_string_buffer(lib.WHY_SIZE)
        code = lib.held.dray_connect_start(byref(options), byref(handle), why, len(why))
        if code:
            raise errors.make(code, lib.text(why.value), path=self.path)
        self._d = c_size_t(handle.value or 0)
        # the polling thread wakes when the second descriptor is closed
        self._wake: tuple[int, int] = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
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

    def _handle(self) -> None:
        """Raises the error of a client that is closed, or of another process."""
        if self._d is None:
            raise self._gone() if self._gone else self._closed()

    def _closed(self) -> errors.Error:
        return errors.SessionClosed(f"the client of {self.path} is closed", fix="Make a new Client.",
                                    path=self.path)

    def _call(self, function: Any, *arguments: Any) -> Any:
        """Calls a function of the library with the handle."""
        try:
            return function(self._d, *arguments)
        except ArgumentError:
            self._handle()
            raise

    def _last(self, code: int, handle: int = 0) -> errors.Error:
        """The error of the last failed call of this thread."""
        text = lib.text(self._call(lib.held.dray_last_error))
        path = self.path if -code in _SESSION_CODES else None
        return errors.make(code, text, handle=handle, path=path)

    def _check(self, function: Any, *arguments: Any) -> int:
        """Calls a function of the library with the handle; raises its error."""
        code = int(self._call(function, *arguments))
        if code < 0:
            raise self._last(code)
        return code

    def info(self) -> Info:
        """Describes the session and the agent. Does not wait."""
        i = lib.Info()
        self._check(lib.held.dray_get_info, byref(i))
        return Info(bool(i.connected), i.session, i.incarnation, bytes(i.agent_id), lib.text(i.segment),
                    lib.text(i.version), i.ring_entries, i.arena_bytes, i.in_flight, bool(i.segments))

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
        self._progress()
        if self.info().connected:
            pending._end(None, None)
        elif self.error:
            pending._end(None, self.error)
        else:
            self._session_waits.append(pending)
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

        After that only the caller uses the memory that was registered. Requests in flight end with
        errors.SessionClosed. May be called twice, and in any thread.
        """
        if self._d is None:
            return
        if timeout:
            self._remove_regions(timeout)
        self._shut(self._closed())

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
        """Ends everything that is pending, then the library's handle."""
        self.error = self.error or error
        d, self._d = self._d, None
        if d is None:
            return
        self._end_all(error)
        os.close(self._wake[1])
        own = self._leader == threading.get_ident()
        if not own:
            self._lead.acquire()  # the polling thread has left
        try:
            with self._blocking:
                lib.held.dray_disconnect(d)
                os.close(self._wake[0])
        finally:
            if not own:
                self._lead.release()
        _clients.discard(self)

    def _end_all(self, error: errors.Error) -> None:
        while self._pending:
            with contextlib.suppress(KeyError):
                self._pending.popitem()[1]._end(None, error)
        self._unconfirmed.clear()
        while self._session_waits:
            self._session_waits.pop()._end(None, error)
        while self._event_waits:
            self._event_waits.pop()._end(None, None)
        for lock in list(self._sleeping):
            self._rouse(lock)
        for region in list(self._regions.values()):
            region.handle = 0
        for remote in list(self._remotes.values()):
            remote.handle = 0

    def _forked(self) -> None:
        """In a forked child: gives up the copy of the parent's session."""
        d, self._d = self._d, None
        self._gone = _after_fork
        self._lead, self._leader = threading.Lock(), 0
        if d is not None:
            lib.held.dray_disconnect(d)
            for fd in self._wake:
                os.close(fd)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 traceback: TracebackType | None) -> None:
        self.close()

    async def __aenter__(self) -> Client:
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
        d, self._d = getattr(self, "_d", None), None
        if d is not None:
            lib.held.dray_disconnect(d)
            for fd in self._wake:
                os.close(fd)

    def __repr__(self) -> str:
        name = f" {self.name!r}" if self.name else ""
        return f"<Client{name} of {self.path}{'' if self._d else ', closed'}>"

    # --- waiting ------------------------------------------------------------------------------------

    def fileno(self) -> int:
        """A descriptor that is readable when process() has something to do. It belongs to the client."""
        return self._check(lib.held.dray_fd)

    def process(self, timeout: float | None = 0) -> None:
        """Handles what the agent has sent; runs callbacks.

        Waits up to `timeout` seconds for something (None: without limit), or until the session ends
        for good; 0 does not wait.
        """
        if timeout is not None and timeout <= 0:
            self._progress()
            return
        limit = arguments.timeout(timeout)
        ends = None if limit is None else time.monotonic() + limit
        try:
            while not self._progress() and self._d is not None and self.error is None:
                left = None if ends is None else ends - time.monotonic()
                if left is not None and left <= 0:
                    return
                with self._leading() as leads:
                    if leads:
                        self._poll(left)
                if not leads:
                    self._sleep(left)
                    return
        finally:
            self._hand_over()

    def _progress(self) -> int:
        """Takes everything that can be taken without waiting. Returns the number of things."""
        try:
            n = int(_process(self._d, 0))
        except ArgumentError:
            self._handle()
            raise
        if n > 0:
            self._deliver()
        return max(n, 0)

    def _deliver(self) -> None:
        try:
            result = self._results.pop()
        except IndexError:
            result = _Result()
        c, ref = result.c, result.ref
        with contextlib.suppress(ArgumentError):  # a callback, or another thread, has closed the client
            while _next_completion(self._d, ref) == 1:
                pending = self._pending.pop(c.arg, None)
                if pending is not None:
                    pending._complete(c)
            e = lib.Event()
            event_ref = byref(e)
            while _next_event(self._d, event_ref) == 1:
                _EVENTS.get(e.type, Client._on_unknown)(self, e)
        self._results.append(result)

    def _wait(self, pending: Pending[Any], timeout: float | None) -> None:
        """Waits until it has ended; raises errors.Timeout."""
        if timeout is not None:
            timeout = arguments.timeout(timeout)
        if self._batches and not pending._id:
            self._flush_batches(pending)
        if type(pending) is Transfer:
            if self._skip:
                self._skip -= 1
            elif not pending._is_long and (timeout is None or timeout >= 0.001) and \
                    len(self._sleeping) <= _HOLDERS_MAX and self._hold(pending):
                return
        ends = None if timeout is None else time.monotonic() + timeout
        if not self._until(pending, ends):
            raise errors.Timeout(f"{pending!r} has not ended in {timeout} s", handle=pending._id,
                                 fix="Wait again, or cancel it.")

    def _hold(self, transfer: Transfer) -> bool:
        """Step 1: waits a short time with the interpreter lock held. True if the transfer has ended."""
        try:
            result = self._results.pop()
        except IndexError:
            result = _Result()
        number, ref = transfer._id, result.ref
        try:
            code = _wait(self._d, number, _HOLD_MS, ref)
        except ArgumentError:
            self._handle()
            raise
        if code == 0:
            self._misses = 0
            self._pending.pop(transfer._key, None)
            transfer._complete(result.c)
        elif code == _TIMEOUT:
            # one that takes long may be chance; several in a row are not
            self._misses = min(self._misses + 1, _MISSES_MAX)
            self._skip = (1 << max(self._misses - 2, 0)) - 1
        self._results.append(result)
        return transfer._ended

    def _until(self, pending: Pending[Any], ends: float | None) -> bool:
        """Steps 2 and 3: waits without the interpreter lock until the request has ended."""
        try:
            while not pending._ended:
                left = None if ends is None else ends - time.monotonic()
                with self._leading() as leads:
                    if leads:
                        return self._lead_until(pending, ends)
                if left is not None and left <= 0:
                    return False
                self._sleep(left, pending)
            return True
        finally:
            self._hand_over()

    def _lead_until(self, pending: Pending[Any], ends: float | None) -> bool:
        """For the polling thread."""
        while self._d is not None:
            with contextlib.suppress(errors.SessionClosed):  # closed by another thread just now
                self._progress()
            left = None if ends is None else ends - time.monotonic()
            if pending._ended or left is not None and left <= 0:
                return pending._ended
            if self._d is not None:
                self._poll(left)
        if not pending._ended:
            self._finish(pending)
        return True

    def _finish(self, pending: Pending[Any]) -> None:
        """Ends a request of a client that is closed."""
        if self._gone:
            raise self._gone()
        pending._end(None, None if isinstance(pending, _EventWait) else self._closed())

    @contextlib.contextmanager
    def _leading(self) -> Iterator[bool]:
        """True inside if this thread became the one that polls. Afterwards it is to hand over."""
        if not self._lead.acquire(False):
            yield False
            return
        self._leader = threading.get_ident()
        try:
            yield True
        finally:
            self._leader = 0
            self._lead.release()

    def _poll(self, seconds: float | None) -> None:
        """Sleeps until the descriptor is readable or the client is closed."""
        if self._poller is None:
            poller = select.poll()
            poller.register(self._wake[0], 0)
            poller.register(self.fileno(), select.POLLIN)
            self._poller = poller
        self._poller.poll(None if seconds is None else seconds * 1000 + 1)

    def _sleep(self, seconds: float | None, pending: Pending[Any] | None = None) -> None:
        """Sleeps until the request ends, or this thread is to poll."""
        lock = threading.Lock()
        lock.acquire()

        def on_end(_: Any) -> None:
            self._rouse(lock)

        self._sleeping[lock] = True
        try:
            if pending is not None:
                pending.add_done_callback(on_end)
            # the polling thread may have left before it could see this one
            if self._lead.locked():
                lock.acquire(timeout=-1 if seconds is None else min(seconds, threading.TIMEOUT_MAX))
        finally:
            self._sleeping.pop(lock, None)
            if pending is not None:
                with contextlib.suppress(ValueError):
                    pending._callbacks.remove(on_end)

    def _rouse(self, lock: Any) -> None:
        with contextlib.suppress(RuntimeError):  # it was woken already
            lock.release()

    def _hand_over(self) -> None:
        """At the end of a wait: if no thread polls, wakes one that sleeps, which then does."""
        if not self._sleeping or self._lead.locked():
            return
        with contextlib.suppress(KeyError, RuntimeError, StopIteration):
            lock = next(iter(self._sleeping))
            if self._sleeping.pop(lock, None):
                self._rouse(lock)

    def wait_until(self, condition: Callable[[], bool], timeout: float | None = None) -> bool:
        """Handles what the agent sends until condition() holds. False after `timeout` seconds."""
        ends = None if timeout is None else time.monotonic() + timeout
        while not condition():
            left = None if ends is None else ends - time.monotonic()
            if self._d is None or left is not None and left <= 0:
                return condition()
            self.process(left)
        return True

    # --- asyncio ------------------------------------------------------------------------------------

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """The loop handles what the agent sends, until _unwatch()."""
        watch = self._loops.get(loop)
        if watch is None:
            # a descriptor of its own, which close() in another thread does not invalidate
            watch = self._loops[loop] = _Loop(os.dup(self.fileno()))
            loop.add_reader(watch.fd, self._readable)
        watch.waiting += 1

    def _unwatch(self, loop: asyncio.AbstractEventLoop) -> None:
        watch = self._loops[loop]
        watch.waiting -= 1
        if not watch.waiting:
            del self._loops[loop]
            loop.remove_reader(watch.fd)
            os.close(watch.fd)

    def _readable(self) -> None:
        if self._d is not None:
            self._progress()

    # --- requests -----------------------------------------------------------------------------------

    def _request(self, pending: Pending[Any], function: Any, *fields: Any) -> None:
        """Starts a request by a function of the library that ends in _start."""
        self._handle()
        pending._key = key = _keys()
        number = c_uint64()
        self._pending[key] = pending
        code = self._call(function, *fields, key, byref(number))
        if code < 0:
            self._pending.pop(key, None)
            raise self._last(code)
        pending._id = number.value

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
        except errors.Timeout:
            self._abandon(pending)
            raise

    def _abandon(self, pending: Pending[Any]) -> None:
        pending._end(None, errors.Cancelled(f"{pending!r} was given up", handle=pending._id))

    def _failure(self, c: Any) -> errors.Error:
        """The error of a completion."""
        path = self.path if -c.status in _SESSION_CODES else None
        return errors.make(c.status, lib.text(c.message), handle=c.region or c.remote or c.id, path=path)

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
        """
        self._handle()
        bits = arguments.choice("access", ACCESS, access)
        spec = lib.RegionSpec(name=arguments.text("name", name), access=bits, flags=lib.REGION_NO_POPULATE)
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
            region = Region(self, name, access, c.region, length, kept)
            if spec.pool_bytes:
                region.memory, region.length = self._map(c.region)
            self._regions[c.region] = region
            return region

        pending: Pending[Region] = Pending(self, adopt, lambda region: region.remove(wait=False))
        self._request(pending, lib.held.dray_region_add_start, byref(spec))
        return self._settle(pending, wait)

    def _map(self, handle: int) -> tuple[Memory, int]:
        """A mapping of a pool that outlives the library's. Touches its pages."""
        address, length, fd = c_void_p(), c_uint64(), c_int()
        self._check(lib.held.dray_region_map, handle, byref(address), byref(length), byref(fd))
        return Memory(length.value, fd=os.dup(fd.value)), length.value

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
        raw = Token(token)._raw if not isinstance(token, Token) else token._raw

        def adopt(c: Any) -> Remote:
            remote = self._remotes[c.remote] = Remote(self, c.remote)
            return remote

        pending: Pending[Remote] = Pending(self, adopt, lambda remote: remote.release(wait=False))
        self._request(pending, lib.held.dray_remote_import_start, byref(raw),
                      arguments.milliseconds("timeout", timeout))
        return self._settle(pending, wait)

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

    def _free_remote(self, handle: int) -> None:
        """Gives the handle of a lost remote back to the library."""
        self._remotes.pop(handle, None)
        if handle and self._d is not None:
            self._call(lib.held.dray_remote_release_start, handle, 0, None)

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
        transfer._key = t.arg = key = _keys()
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

    def _transfer_failure(self, transfer: Transfer, c: Any) -> errors.Error:
        """The error of a transfer that failed, with the objects that it is about."""
        error = self._failure(c)
        error.handle = c.id
        if isinstance(error, errors.Range):
            error.message = f"an operation passes the end of {transfer._local!r} or of {transfer._remote!r}"
        if isinstance(error, errors.Unconfirmed):
            self._unconfirmed[c.id] = transfer
        return error

    def _cancel(self, transfer: Transfer) -> None:
        if not transfer._id and self._batches:
            self._flush_batches(transfer)
        if not transfer._ended:
            self._progress()
        if transfer._ended:
            raise errors.NotFound(f"{transfer!r} has ended", handle=transfer._id, fix="Nothing is left to cancel.")
        self._check(lib.held.dray_cancel, transfer._id)

    def _is_lent(self, transfer: Transfer) -> bool:
        self._progress()
        return self._check(lib.held.dray_lent, transfer._id) == 1

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
            batch._submit()

    def _flush_batches(self, pending: Pending[Any]) -> None:
        for batch in list(self._batches.values()):
            if pending in batch.transfers:
                batch._submit()

    # --- events -------------------------------------------------------------------------------------

    @overload
    def next_event(self, kind: type[E], timeout: float | None = None) -> E | None: ...

    @overload
    def next_event(self, kind: None = None, timeout: float | None = None) -> Any: ...

    def next_event(self, kind: Any = None, timeout: float | None = None) -> Any:
        """Waits for the next event of a kind (events.Notification, ...; None: any) and takes it.

        None: `timeout` seconds have passed (None: no limit), or the session ended for good.
        """
        pending = self.event(kind)
        try:
            return pending.result(timeout)
        except errors.Timeout:
            pending.cancel()
            return pending._value

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
        self._progress()
        for _ in range(len(self.events)):
            try:
                event = next(e for e in self.events if isinstance(e, wait.kind))
                self.events.remove(event)
            except (StopIteration, ValueError, RuntimeError):
                continue  # another thread took it, or changed the queue
            wait._end(event, None)
            return wait
        if self.error is not None:
            wait._end(None, None)
        else:
            self._event_waits.append(wait)
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
        with contextlib.suppress(ValueError):
            self._event_waits.remove(wait)
        if wait._ended:
            return False
        wait._end(None, None)
        return True

    def _report(self, event: Any, *, first: bool = False) -> None:
        for wait in self._event_waits:
            if isinstance(event, wait.kind):
                try:
                    self._event_waits.remove(wait)
                except ValueError:
                    continue
                wait._end(event, None)
                return
        if first:
            self.events.appendleft(event)
        else:
            self.events.append(event)

    def _text_of(self, e: Any) -> errors.Error:
        return errors.make(e.code, lib.text(e.message), handle=e.region or e.remote or e.id, path=self.path)

    def _on_notification(self, e: Any) -> None:
        payload = string_at(e.payload, e.length) if e.length else b""
        self._report(events.Notification(e.tag, payload, self._regions.get(e.region), e.agent_region,
                                         bytes(e.agent_id), e.incarnation, e.id))

    def _on_remote_lost(self, e: Any) -> None:
        remote, text = self._remotes.get(e.remote), lib.text(e.message)
        if remote is not None:
            remote._lose(errors.make(e.code, text, handle=e.remote))
        else:
            self._free_remote(e.remote)
        self._report(events.RemoteLost(remote, -e.code, text))

    def _on_draining(self, e: Any) -> None:
        self._report(events.Draining(e.deadline_ms))

    def _on_lost(self, e: Any) -> None:
        error = self._text_of(e)
        for remote in list(self._remotes.values()):
            remote._lose(errors.AgentRestarted(
                f"{remote!r} belongs to an earlier session", handle=remote.handle,
                fix="Import a new token of its owner."))
        self._failed = []
        self._report(events.Disconnected(error, False))

    def _on_restored(self, e: Any) -> None:
        live = [r for r in list(self._regions.values()) if r.error is None and r.handle]
        self._report(events.Reconnected(self.incarnation, bool(e.restarted), len(live), self._failed))
        self._on_connected(e)

    def _on_connected(self, e: Any) -> None:
        if e.type == lib.EVENT_CONNECTED and not self._quiet:
            self._report(events.Connected(self.incarnation))
        while self._session_waits:
            self._session_waits.pop()._end(None, None)

    def _on_region_lost(self, e: Any) -> None:
        region, error = self._regions.get(e.region), self._text_of(e)
        if region is not None:
            region.error = error
            self._failed.append(region)
        self._report(events.RegionLost(region, error))

    def _on_closed(self, e: Any) -> None:
        self.error = error = self._unreachable(self._text_of(e))
        self._report(events.Disconnected(error, True))
        while self._session_waits:
            self._session_waits.pop()._end(None, error)
        while self._event_waits:
            self._event_waits.pop()._end(None, None)

    def _on_segment(self, e: Any) -> None:
        self._report(to_event(e))

    def _on_confirmed(self, e: Any) -> None:
        transfer = self._unconfirmed.pop(e.id, None)
        if transfer is not None:
            error = errors.make(e.code, lib.text(e.message), handle=e.id) if e.code else None
            self._report(events.Confirmed(transfer, error))

    def _on_unknown(self, e: Any) -> None:
        pass  # of a newer library

    def _unreachable(self, error: errors.Error) -> errors.Error:
        """Adds what is wrong with the path of the socket, and what to do."""
        if isinstance(error, (errors.PeerUnreachable, errors.Denied)):
            error.message, error.fix = _what_is_wrong(self.path, error)
        return error


class _Batch:
    """Transfers that wait for their common submission."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.transfers: list[Transfer] = []
        self.structs: list[Any] = []
        self.kept: list[Any] = []

    def _add(self, transfer: Transfer, t: Any, keep: Any) -> None:
        self.transfers.append(transfer)
        self.structs.append(t)  # which keeps packed operations
        self.kept.append(keep)

    def _submit(self) -> None:
        client, transfers, structs = self.client, self.transfers, self.structs
        self.transfers, self.structs = [], []
        n, ids = len(transfers), (c_uint64 * len(transfers))()
        if not n:
            return
        for transfer in transfers:
            client._pending[transfer._key] = transfer
        done = client._call(lib.held.dray_submit_many, (lib.Transfer * n)(*structs), n, ids)
        for transfer, number in zip(transfers[:max(done, 0)], ids, strict=False):
            transfer._id = number
        self.kept.clear()
        for transfer in transfers[max(done, 0):]:
            client._pending.pop(transfer._key, None)
            transfer._end(None, client._refusal(done if done < 0 else _BUSY, transfer))


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


_SESSION_CODES = frozenset(e.code for e in (
    errors.PeerUnreachable, errors.SessionClosed, errors.AgentRestarted, errors.Version, errors.Protocol,
    errors.Draining))

_EVENTS: dict[int, Callable[[Client, Any], None]] = {
    lib.EVENT_NOTIFICATION: Client._on_notification, lib.EVENT_REMOTE_LOST: Client._on_remote_lost,
    lib.EVENT_DRAINING: Client._on_draining, lib.EVENT_LOST: Client._on_lost,
    lib.EVENT_RESTORED: Client._on_restored, lib.EVENT_REGION_LOST: Client._on_region_lost,
    lib.EVENT_CLOSED: Client._on_closed, lib.EVENT_SEGMENT: Client._on_segment,
    lib.EVENT_CONNECTED: Client._on_connected, lib.EVENT_CONFIRMED: Client._on_confirmed}

_clients: weakref.WeakSet[Client] = weakref.WeakSet()


def _in_child() -> None:
    for client in list(_clients):
        client._forked()
    _clients.clear()


def _at_exit() -> None:
    for client in list(_clients):
        client._shut(errors.SessionClosed("the interpreter exits", path=client.path))


os.register_at_fork(after_in_child=_in_child)
atexit.register(_at_exit)
