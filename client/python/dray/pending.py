# SPDX-License-Identifier: Apache-2.0
"""Requests in flight: futures for threads and for asyncio."""

from __future__ import annotations

import asyncio
import itertools
import logging
import struct
import threading
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from . import _library as lib
from . import errors

if TYPE_CHECKING:
    from .session import Session
    from .handles import Region, Remote

T = TypeVar("T")
_logger = logging.getLogger("dray")


class Done(NamedTuple):
    """How a transfer ended. status: 0 or an error code. transport: a key of TRANSPORT_NAMES.

    bytes: moved. duration_ns: from the acceptance to the end, by the agent's clock.
    """

    status: int
    transport: int
    bytes: int
    duration_ns: int
    message: str


next_key = itertools.count(1).__next__  # of requests, which their completions repeat
_new = tuple.__new__
# How a transfer ended, read by one call: each access to a field of a struct takes as long.
_outcome = struct.Struct("=iI4xQQ").unpack_from
_OUTCOME_AT = lib.Completion.status.offset
# What has a short first step of a wait (_waiting.py). Which waits are short is learned for each of them.
HELD_TRANSFER, HELD_STORE = HELD = range(2)


class Waker:
    """A callback of this package. It may be called twice: after an exception of a signal's handler nobody knows whether it has done its work."""

    __slots__ = ("wake",)

    def __init__(self, wake: Callable[[], object]) -> None:
        self.wake = wake


class Pending(Generic[T]):
    """A request that a client has started. It ends once, with a result or an error.

    Any thread may use it, and any asyncio loop may await it. To cancel the awaiting task cancels the
    request.
    """

    __slots__ = ("__weakref__", "_callbacks", "_client", "_convert", "_ended", "_error", "_id", "_key",
                 "_undo", "_value")

    ends_quietly = False  # without an error when the client is closed
    _holds: int | None = None  # one of HELD; None: a wait has no such step

    def __init__(self, client: Session, convert: Callable[[Any], T] | None = None,
                 undo: Callable[[T], object] | None = None) -> None:
        self._client = client
        self._convert, self._undo = convert, undo
        self._id = self._key = 0
        self._ended = False
        self._value: Any = None
        self._error: errors.Error | None = None
        self._callbacks: list[Any] = []

    @property
    def id(self) -> int:
        """Number of the request at the library; 0 before it is submitted."""
        return self._id

    def done(self) -> bool:
        """True if the request has ended. Takes what the agent has sent, and does not wait."""
        if not self._ended:
            self._client._progress()
        return self._ended

    def error(self) -> errors.Error | None:
        """The error of a request that has ended with one; otherwise None. Does not wait."""
        if not self._ended:
            self._client._progress()
        return self._error

    def result(self, timeout: float | None = None) -> T:
        """Waits for the end, up to `timeout` seconds (None: no limit); returns the result.

        Raises the error of a request that failed. After errors.Timeout the request is still pending.
        """
        if not self._ended:
            self._client._wait(self, timeout)
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[no-any-return]

    def exception(self, timeout: float | None = None) -> errors.Error | None:
        """Waits as result(); returns the error, or None."""
        if not self._ended:
            self._client._wait(self, timeout)
        return self._error

    def add_done_callback(self, fn: Callable[[Any], object] | Waker) -> None:
        """Calls fn(self) once when the request ends, or now if it has ended.

        The call comes from the thread that takes the completion: one that waits, calls process() or
        done(), or runs an asyncio loop. It must not block. An exception is logged.
        """
        self._callbacks.append(fn)
        if self._ended:  # the end may have come before or after the append
            self._run_callbacks()

    def cancel(self) -> bool:
        """Gives the request up; False if it has ended. Does not wait.

        It ends here with errors.Cancelled. If the agent carries it out, the result is undone: an
        imported remote is released, and a new region removed.
        """
        if self._ended:
            return False
        self._client._abandon(self)
        return True

    def __await__(self) -> Generator[Any, None, T]:
        if not self._id and self._client._batches:
            self._client._flush_batches(self)
        if not self.done():
            yield from self._sleep().__await__()
        return self.result(0)

    async def _sleep(self) -> None:
        """Waits for the end in the running loop."""
        loop, home = asyncio.get_running_loop(), threading.get_ident()
        ended: asyncio.Future[None] = loop.create_future()

        def wake() -> None:
            if not ended.done():
                ended.set_result(None)

        def on_end() -> None:
            try:
                if threading.get_ident() == home:
                    wake()
                else:
                    loop.call_soon_threadsafe(wake)
            except RuntimeError:  # the loop was closed meanwhile, and the task will not go on
                self._miss()

        try:
            self._client._watch(loop, ended)
            self.add_done_callback(Waker(on_end))
            await ended
            self._client._unwatch(loop, ended)
        except BaseException:  # CancelledError; GeneratorExit, of a task that nobody has any more; or the loop cannot watch the client
            self._client._unwatch(loop, ended)
            self._give_up()
            raise

    def _give_up(self) -> None:
        """The awaiting task was cancelled, or the waiting thread interrupted."""
        self.cancel()

    def _miss(self) -> None:
        """It has ended, and the loop of the awaiting task was closed before."""

    def _complete(self, c: Any) -> None:
        """Ends the request as the library's completion says. Until it is not pending any more, this may be called again."""
        value: Any = self._value
        error: errors.Error | None = None
        raised: BaseException | None = None
        if value is None:
            try:
                value, error = self._outcome(c)
            except BaseException as e:
                value, error, raised = self._outcome_after(e, c)
        if self._ended:  # it was given up
            self._value = value
            self._drop(value)
            self._value = None
        else:
            self._value, self._error, self._ended = value, error, True
        pending, key = self._client._pending, self._key
        if key in pending:
            del pending[key]
        if raised is not None:
            raise raised
        if self._callbacks:
            self._run_callbacks()

    def _outcome(self, c: Any) -> tuple[Any, errors.Error | None]:
        """The result, or the error. It may be asked for twice."""
        if c.status:
            return None, self._client._failure(c)
        try:
            return self._convert(c) if self._convert else None, None
        except errors.Error as e:
            return None, e

    def _outcome_after(self, e: BaseException, c: Any) -> tuple[Any, errors.Error | None, BaseException | None]:
        """_outcome() after an exception, and what is to be raised: a signal's handler has raised it, unless the next attempt fails as well."""
        try:
            return *self._outcome(c), e
        except BaseException:
            error = errors.Internal(f"the result of {self!r} cannot be taken: {e!r}")
            error.__cause__ = e
            if not isinstance(e, Exception):
                return None, error, e
            # this thread may wait for another request, and another one for this one
            _logger.error("%s", error, exc_info=e)
            return None, error, None

    def _drop(self, value: Any) -> None:
        """Undoes a result that nobody will see."""
        if self._undo and value is not None:
            try:
                self._undo(value)
            except errors.Error:  # nobody waits for it: the thread that takes this completion waits for another request
                _logger.exception("the result of %r, which was given up, lasts until the end of the session", self)

    def _end(self, value: Any, error: errors.Error | None) -> None:
        if self._ended:
            return
        self._value, self._error = value, error
        self._ended = True
        if self._callbacks:
            self._run_callbacks()

    def _run_callbacks(self) -> None:
        callbacks = self._callbacks
        while True:
            if not callbacks:
                return
            fn = callbacks[0]
            if fn.__class__ is Waker:
                fn.wake()
                if callbacks and callbacks[0] is fn:
                    del callbacks[0]
                continue
            del callbacks[0]
            try:
                fn(self)
            except Exception:
                _logger.exception("a callback of %r failed", self)

    def _state(self) -> str:
        if not self._ended:
            return "pending"
        return f"failed: {self._error.name}" if self._error else "ended"

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._id:#x} {self._state()}>"


class Lending(Pending[T]):
    """A request that lends memory to the agent until it ends.

    One that ends with errors.Unconfirmed has its memory still lent: the agent did not answer in time,
    and may go on reading or writing; see lent().
    """

    __slots__ = ()

    def lent(self) -> bool:
        """True while the agent may still read or write the memory of this request.

        That is so until the request ends; and after errors.Unconfirmed until the agent answers, or
        its process is proven dead. An event Confirmed tells when. A batch of the store that was given up by
        cancel(), or with its task, lends its memory until the agent has answered. Does not wait.
        """
        if not self._ended:
            self._client._progress()
            return not self._ended
        unconfirmed = isinstance(self._error, errors.Unconfirmed) or self._id in self._client._unconfirmed
        return unconfirmed and self._client._is_lent(self)


class Transfer(Lending[Done]):
    """A transfer; result() returns a Done. While it is in flight, it keeps its region and its remote alive."""

    __slots__ = ("_holds", "_local", "_remote")

    def __init__(self, client: Session, local: Region, remote: Remote, is_long: bool) -> None:
        # as Pending.__init__(), without the call, and without what _complete() here does not use
        self._client = client
        self._id = self._key = 0
        self._ended = False
        self._value: Any = None
        self._error: errors.Error | None = None
        self._callbacks: list[Any] = []
        self._local, self._remote, self._holds = local, remote, None if is_long else HELD_TRANSFER

    def cancel(self, *, wait: bool = True) -> bool:
        """Stops the transfer, which then ends with errors.Cancelled, or as it ended before.

        Waits until it has ended, up to the client's timeout; with wait=False returns at once.
        errors.NotFound: it had ended before.
        """
        self._client._cancel(self)
        if wait:
            self._client._wait(self, self._client.timeout)
        return True

    def _give_up(self) -> None:
        try:
            self._client._cancel(self)
        except errors.Error:
            pass  # it has ended, or its session has

    def _complete(self, c: Any) -> None:
        status, transport, n, duration_ns = _outcome(c, _OUTCOME_AT)
        if status or self._ended:
            super()._complete(c)
            return
        value = _new(Done, (0, transport, n, duration_ns, ""))
        pending, key = self._client._pending, self._key
        self._value, self._ended = value, True
        if key in pending:
            del pending[key]
        if self._callbacks:
            self._run_callbacks()

    def _drop(self, value: Any) -> None:
        """The bytes were moved."""

    def _outcome(self, c: Any) -> tuple[Any, errors.Error | None]:
        status, transport, n, duration_ns = _outcome(c, _OUTCOME_AT)
        if not status:
            return Done(0, transport, n, duration_ns, ""), None
        error = self._client._transfer_failure(self, c)
        error.done = Done(-status, transport, n, duration_ns, error.message)
        return None, error

    def __repr__(self) -> str:
        return f"<Transfer {self._id:#x} of {self._local!r} and {self._remote!r}, {self._state()}>"
