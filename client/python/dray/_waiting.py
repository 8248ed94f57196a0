# SPDX-License-Identifier: Apache-2.0
"""Calls into the library, and waiting for what they start.

Any thread may use a client and its objects. All calls into the library that touch the
session keep the interpreter lock, and do not block, but for the first step of a wait. A thread that
waits does so in three steps:

1. It waits inside the library for up to 1 ms with the interpreter lock held. Most transfers, and most
   requests to the store, end within that time, and to take the lock again costs up to 5 ms beside a
   thread that computes. The step is left out for what is evidently long: transfers with a wait word,
   and while recent waits of this client for the same kind of request took longer. Other Python
   threads stand still meanwhile.
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
import contextlib
import os
import select
import threading
import time
from collections.abc import Callable
from ctypes import ArgumentError, byref, c_size_t
from typing import Any

from . import _arguments as arguments
from . import _library as lib
from . import errors
from .memory import failure
from .pending import HELD, Pending, Waker, next_key

_POLL_MS_MAX = (1 << 31) - 1
_HOLD_MS = 1  # longest wait with the interpreter lock held
_HOLDERS_MAX = 8  # with more waiting threads, none waits with the interpreter lock held
_MISSES_MAX = 8  # waits in a row that took longer than step 1, after which it is left out 63 times

_wait, _process = lib.held.dray_wait, lib.held.dray_process
_next_completion, _next_event = lib.held.dray_next_completion, lib.held.dray_next_event
_TIMEOUT = -errors.Timeout.code
SESSION_CODES = frozenset(e.code for e in (
    errors.PeerUnreachable, errors.SessionClosed, errors.AgentRestarted, errors.Version, errors.Protocol,
    errors.Draining))


class _Result:
    """Structs for completions and events, used again and again."""

    __slots__ = ("c", "event", "event_ref", "ref")

    def __init__(self) -> None:
        self.c, self.event = lib.Completion(), lib.Event()
        self.ref, self.event_ref = byref(self.c), byref(self.event)


class _Loop:
    """An asyncio loop in which requests are awaited."""

    __slots__ = ("fd", "waiting")

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.waiting: dict[object, bool] = {}  # what is awaited


# A signal's handler may raise, such as KeyboardInterrupt, at the entry of each function in Python, after each call, and at the end of each turn of
# a loop, and nowhere else: statements without a call are one step. So a completion, an event or a request is dealt with in one step, after all
# work that may be done twice, and is found again until then. After an exception _recover() does again what may have been left undone. It
# reckons with one exception. A lock that a thread does not wait for is an RLock, which only its owner can release: after an exception nobody
# knows whether acquire() has got it, and release() tells.


class Waiting:
    """A program with an event loop of its own watches a client by fileno(), and calls process()."""

    # Each transfer uses several of these. An object with more than 30 attributes in its dictionary has slower access to all of them, and to its methods.
    __slots__ = ("_batches", "_curious", "_d", "_gone", "_lead", "_leader", "_led", "_loops", "_misses", "_pending", "_poller", "_results", "_skip",
                 "_sleeping", "_taken", "_wake", "_waking", "error", "path")

    def __init__(self, path: str) -> None:
        self.path = path
        self.error: errors.Error | None = None
        self._d: c_size_t | None = None
        self._gone: Callable[[], errors.Error] | None = None
        self._wake: tuple[int, int] = (-1, -1)  # the polling thread wakes when the second one is written or closed
        self._waking = threading.RLock()  # held while it is
        self._results: list[_Result] = []
        self._pending: dict[int, Pending[Any]] = {}
        self._batches: dict[int, Any] = {}  # by thread
        self._skip, self._misses = [0] * len(HELD), [0] * len(HELD)
        self._lead = threading.RLock()  # held by the thread that polls the descriptor
        self._leader = 0
        self._led: Pending[Any] | None = None  # what the polling thread waits for; None: anything
        self._sleeping: dict[Any, bool] = {}  # locks of waiting threads
        self._curious: dict[Any, bool] = {}  # those of them that wait for anything
        self._taken = 0  # another number after each time that a thread has taken something
        self._poller: Any = None
        self._loops: dict[asyncio.AbstractEventLoop, _Loop] = {}

    def _on_event(self, e: Any) -> None:
        """For Session: an event of the library. Sets its type to 0 when it is dealt with; before, it may come again."""
        raise NotImplementedError

    def _serve(self) -> None:
        """For Session: ends the waits for events that are there, and for a session."""
        raise NotImplementedError

    # --- calls --------------------------------------------------------------------------------------

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
        path = self.path if -code in SESSION_CODES else None
        return errors.make(code, text, handle=handle, path=path)

    def _check(self, function: Any, *arguments: Any) -> int:
        """Calls a function of the library with the handle; raises its error."""
        code = int(self._call(function, *arguments))
        if code < 0:
            raise self._last(code)
        return code

    # --- waiting ------------------------------------------------------------------------------------

    def fileno(self) -> int:
        """A descriptor that is readable when process() has something to do. It belongs to the client."""
        return self._check(lib.held.dray_fd)

    def process(self, timeout: float | None = 0) -> None:
        """Handles what the agent has sent; runs callbacks.

        Waits up to `timeout` seconds for something (None: without limit), or until the session ends
        for good; 0 does not wait.
        """
        self._process(self._taken, timeout)

    def _process(self, taken: int, timeout: float | None) -> None:
        """process(), which also ends if `taken` is not the present number: another thread has taken something."""
        if timeout is not None and timeout <= 0:
            self._progress()
            return
        limit = arguments.timeout(timeout)
        ends = None if limit is None else time.monotonic() + limit
        try:
            while not self._progress() and self._taken == taken and self._d is not None and self.error is None:
                left = None if ends is None else ends - time.monotonic()
                if left is not None and left <= 0:
                    break
                if self._as_leader(None, self._poll_unless, taken, left) is None:
                    self._sleep(left, taken=taken)
                    break
            self._hand_over()
        except BaseException:
            self._recover()
            raise

    def _progress(self) -> int:
        """Takes everything that can be taken without waiting. Returns the number of things."""
        try:
            n = int(_process(self._d, 0))
            if n > 0:
                self._deliver()
                self._took()
        except ArgumentError:
            self._handle()
            raise
        except BaseException:
            self._recover()
            raise
        return max(n, 0)

    def _took(self) -> None:
        """Wakes threads that wait for what this one has taken or ended: the descriptor does not show it any more."""
        self._taken = next_key()
        if self._leader or self._curious:
            self._tell_others()

    def _tell_others(self) -> None:
        """For _took(), if there may be such threads."""
        for lock in list(self._curious):
            self._rouse(lock)
        led = self._led
        if self._leader in (0, threading.get_ident()) or led is not None and not led._ended:
            return
        with contextlib.suppress(BlockingIOError), self._waking:
            if self._d is not None:
                os.write(self._wake[1], b"\0")

    def _deliver(self) -> None:
        """Takes all completions and events that the library has."""
        try:
            result = self._results.pop()
        except IndexError:
            result = _Result()
        c, ref, event, event_ref = result.c, result.ref, result.event, result.event_ref
        pending = None
        try:
            while _next_completion(self._d, ref) == 1:
                pending = self._pending.get(c.arg)
                if pending is not None:
                    pending._complete(c)
            while _next_event(self._d, event_ref) == 1:
                self._on_event(event)
        except ArgumentError:
            pass  # a callback, or another thread, has closed the client
        except BaseException:
            self._finish_taken(result, pending)
            raise
        self._results.append(result)

    def _finish_taken(self, result: _Result, last: Pending[Any] | None) -> None:
        """After an exception: deals with the completion or the event that may have been taken. last: whose completion was taken last."""
        pending = self._pending.get(result.c.arg)
        if pending is not None:
            pending._complete(result.c)
        if last is not None and last._ended:
            last._run_callbacks()
        if result.event.type:
            self._on_event(result.event)

    def _recover(self, pending: Pending[Any] | None = None) -> None:
        """After an exception, perhaps of a signal's handler: does what may have been left undone. pending: one that the caller was ending."""
        if pending is not None and pending._ended:
            pending._run_callbacks()
        self._deliver()
        self._serve()
        self._took()
        self._hand_over()

    def _wait(self, pending: Pending[Any], timeout: float | None) -> None:
        """Waits until it has ended; raises errors.Timeout."""
        if timeout is not None:
            timeout = arguments.timeout(timeout)
        if self._batches and not pending._id:
            self._flush_batches(pending)
        holds = pending._holds
        if holds is not None:
            if self._skip[holds]:
                self._skip[holds] -= 1
            elif (timeout is None or timeout >= 0.001) and \
                    len(self._sleeping) <= _HOLDERS_MAX and self._hold(pending, holds):
                return
        ends = None if timeout is None else time.monotonic() + timeout
        if not self._until(pending, ends):
            raise errors.Timeout(f"{pending!r} has not ended in {timeout} s", handle=pending._id,
                                 fix="Wait again, or cancel it.")

    def _hold(self, pending: Pending[Any], holds: int) -> bool:
        """Step 1: waits a short time with the interpreter lock held. True if the request has ended."""
        try:
            result = self._results.pop()
        except IndexError:
            result = _Result()
        number, ref = pending._id, result.ref
        try:
            code = _wait(self._d, number, _HOLD_MS, ref)
            if code == 0:
                pending._complete(result.c)
                self._misses[holds] = 0
                # as _took(), without the call
                self._taken = pending._key
                if self._leader or self._curious:
                    self._tell_others()
            elif code == _TIMEOUT:
                # one that takes long may be chance; several in a row are not
                misses = self._misses[holds] = min(self._misses[holds] + 1, _MISSES_MAX)
                self._skip[holds] = (1 << max(misses - 2, 0)) - 1
        except ArgumentError:
            self._handle()
            raise
        except BaseException:
            self._finish_taken(result, pending)
            self._recover()
            raise
        self._results.append(result)
        return pending._ended

    def _until(self, pending: Pending[Any], ends: float | None) -> bool:
        """Steps 2 and 3: waits without the interpreter lock until the request has ended."""
        try:
            while not pending._ended:
                left = None if ends is None else ends - time.monotonic()
                if self._as_leader(pending, self._lead_until, pending, ends) is not None or left is not None and left <= 0:
                    break
                self._sleep(left, pending)
            self._hand_over()
        except BaseException:
            self._recover(pending)
            raise
        return pending._ended

    def _lead_until(self, pending: Pending[Any], ends: float | None) -> bool:
        """For the polling thread."""
        while self._d is not None:
            try:
                self._progress()
            except errors.SessionClosed:
                pass  # closed by another thread just now
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
        pending._end(None, None if pending.ends_quietly else self._closed())

    def _as_leader(self, led: Pending[Any] | None, work: Callable[..., bool], *arguments: Any) -> bool | None:
        """Calls work as the thread that polls. None: another thread does, or a callback waits. The caller is to hand over then."""
        me = threading.get_ident()
        if self._leader == me:
            return None
        try:
            if not self._lead.acquire(False):
                return None
            self._led, self._leader = led, me
            return work(*arguments)
        finally:
            if self._leader == me:
                self._leader = 0
            try:
                self._lead.release()
            except RuntimeError:
                pass  # another thread has it

    def _poll_unless(self, taken: int, seconds: float | None) -> bool:
        """_poll(), unless another thread has taken something before this one led, which does not wake it."""
        if self._taken == taken:
            self._poll(seconds)
        return True

    def _poll(self, seconds: float | None) -> None:
        """Sleeps until the descriptor is readable or the client is closed."""
        if self._poller is None:
            poller = select.poll()
            poller.register(self._wake[0], select.POLLIN)
            poller.register(self.fileno(), select.POLLIN)
            self._poller = poller
        # rounded up to milliseconds
        for fd, ready in self._poller.poll(None if seconds is None else min(seconds * 1000, _POLL_MS_MAX)):
            if fd == self._wake[0] and ready & select.POLLIN:
                os.read(fd, 64)

    def _sleep(self, seconds: float | None, pending: Pending[Any] | None = None, taken: int = 0) -> None:
        """Sleeps until the request ends, or this thread is to poll; without a request, until something is taken after `taken`."""
        lock = threading.Lock()
        lock.acquire()
        waker = Waker(lambda: self._rouse(lock))
        self._sleeping[lock] = True
        try:
            if pending is not None:
                pending.add_done_callback(waker)
            else:
                self._curious[lock] = True
                if self._taken != taken:
                    return
            # the polling thread may have left before it could see this one
            if self._leader:
                lock.acquire(timeout=-1 if seconds is None else min(seconds, threading.TIMEOUT_MAX))
        finally:
            if lock in self._sleeping:
                del self._sleeping[lock]
            if lock in self._curious:
                del self._curious[lock]
            if pending is not None:
                with contextlib.suppress(ValueError):
                    pending._callbacks.remove(waker)

    def _rouse(self, lock: Any) -> None:
        with contextlib.suppress(RuntimeError):  # it was woken already
            lock.release()

    def _hand_over(self) -> None:
        """At the end of a wait: if no thread polls, wakes one that sleeps, which then does."""
        if not self._sleeping or self._leader:
            return
        with contextlib.suppress(KeyError, RuntimeError, StopIteration):
            lock = next(iter(self._sleeping))
            self._rouse(lock)
            del self._sleeping[lock]

    def wait_until(self, condition: Callable[[], bool], timeout: float | None = None) -> bool:
        """Handles what the agent sends until condition() holds. False after `timeout` seconds, or if the session has ended for good."""
        ends = None if timeout is None else time.monotonic() + timeout
        while True:
            taken = self._taken
            if condition():
                return True
            left = None if ends is None else ends - time.monotonic()
            if self._d is None or self.error is not None or left is not None and left <= 0:
                return condition()
            self._process(taken, left)

    def _flush_batches(self, pending: Pending[Any]) -> None:
        for batch in list(self._batches.values()):
            if batch._has(pending):
                batch._submit()

    # --- asyncio ------------------------------------------------------------------------------------

    def _watch(self, loop: asyncio.AbstractEventLoop, awaited: object) -> None:
        """The loop handles what the agent sends, until _unwatch()."""
        watch = self._loops.get(loop)
        if watch is None:
            # a descriptor of its own, which close() in another thread does not invalidate
            fd = self.fileno()
            try:
                fd = os.dup(fd)
            except OSError as e:
                raise failure("a descriptor for the event loop", e) from None
            try:
                loop.add_reader(fd, self._readable)
                watch = _Loop(fd)
            except BaseException:
                try:
                    loop.remove_reader(fd)
                finally:
                    os.close(fd)
                raise
            self._loops[loop] = watch
        watch.waiting[awaited] = True

    def _unwatch(self, loop: asyncio.AbstractEventLoop, awaited: object) -> None:
        """May be called again, after an exception."""
        watch = self._loops.get(loop)
        if watch is None:
            return
        watch.waiting.pop(awaited, None)
        if not watch.waiting:
            loop.remove_reader(watch.fd)
            close = os.close
            del self._loops[loop]
            close(watch.fd)

    def _readable(self) -> None:
        if self._d is not None:
            self._progress()
