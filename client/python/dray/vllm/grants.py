# SPDX-License-Identifier: Apache-2.0
"""The right of another engine to read a request's blocks: given out, acquired, ended, and how it ended.

The owner's side gives a right on a region for one request and one rank, and hears exactly once how it
ended. The holder's side acquires it, reads through its remote, and releases it.
"""

from __future__ import annotations

import hashlib
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from .. import errors, events
from ..client import Client
from ..handles import Region, Remote, Token
from ..pending import Pending

__all__ = ["ENDED", "EXPIRED", "LOST", "USED", "Grant", "Grants", "Hold"]

USED, EXPIRED, ENDED, LOST = "used", "expired", "ended", "lost"  # how a right ended
_TAG = int.from_bytes(b"dray-kv0", "big")  # of the notification by which a holder says that it has finished
_MARK = 16  # bytes of its payload, which only who has the token can make
_SPARE = 5.0  # seconds that a token outlives the owner's own timer


class Grant:
    """The owner's side of one right. how: one of the constants once it has ended, None before.

    While `how` is None, the holder may read the blocks.
    """

    __slots__ = ("_export", "_pending", "_region", "_revoke", "expires", "how", "label", "why")

    def __init__(self, label: str, region: Region, expires: float, pending: Pending[Token]) -> None:
        self.label, self.expires = label, expires
        self.how: str | None = None
        self._region, self._pending = region, pending
        self._export: Token | None = None
        self._revoke: Pending[int] | None = None
        self.why = USED  # how it will have ended when the fence is done

    @property
    def token(self) -> str | None:
        """Text for the holder; None until the agent has answered."""
        return str(self._export) if self._export is not None else None


class Hold:
    """The holder's side of one right. remote: None until the owner's agent has answered. error: why it cannot be used."""

    __slots__ = ("_mark", "_pending", "_released", "error", "remote")

    def __init__(self, token: Token, pending: Pending[Remote]) -> None:
        self._mark = _mark(token)
        self._pending = pending
        self._released = False
        self.remote: Remote | None = None
        self.error: errors.Error | None = None

    @property
    def lost(self) -> errors.Error | None:
        """The error, if the right can no longer be used."""
        return self.error or (self.remote.lost if self.remote is not None else None)

    def release(self) -> None:
        """Says to the owner that the blocks will not be read any more. Does not wait; may be called early, and twice."""
        if self._released:
            return
        self._released = True
        self._pending.add_done_callback(lambda _: self._finish())

    def _finish(self) -> None:
        remote, self.remote = self.remote, None
        if remote is None or remote.lost is not None:
            return
        try:
            remote.notify(_TAG, self._mark, wait=False)
            remote.release(wait=False)
        except errors.Error:
            pass  # lost just now, which ends the right as well


class Grants:
    """Both sides for one session with the agent. Nothing here waits, except in poll() for nothing at all."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._given: dict[bytes, Grant] = {}  # by the mark of the token
        self._open: set[Grant] = set()
        self._ended: deque[Grant] = deque()
        self.on_event: Callable[[Any], None] = lambda event: None

    def __len__(self) -> int:
        """Rights that have been given and have not ended."""
        return len(self._open)

    def give(self, label: str, region: Region, ranges: Any, expiry: float) -> Grant:
        """Starts to give a right to read `ranges` of a region, which ends after `expiry` seconds. label: for logs."""
        pending = region.export(0, region.length, access="r", ttl=expiry + _SPARE, wait=False)
        grant = Grant(label, region, time.monotonic() + expiry, pending)
        self._open.add(grant)
        pending.add_done_callback(lambda p: self._exported(grant, p))
        return grant

    def _exported(self, grant: Grant, pending: Pending[Token]) -> None:
        if pending.error() is not None:
            self._end(grant, LOST)
            return
        grant._export = pending.result(0)
        self._given[_mark(grant._export)] = grant
        if grant._revoke is None and grant.why != USED:
            self.end(grant, grant.why)

    def end(self, grant: Grant, why: str = ENDED) -> None:
        """Ends a right: after the fence nobody reads the blocks any more, and poll() reports it."""
        if grant.how is not None or grant._revoke is not None:
            return
        grant.why = why
        if grant._export is None:
            return  # _exported() comes back
        try:
            grant._revoke = grant._region.revoke(grant._export, wait=False)
        except errors.Error:
            self._end(grant, LOST)
            return
        grant._revoke.add_done_callback(
            lambda p: self._end(grant, why if p.error() is None or p.error().name == "not_found" else LOST))

    def _end(self, grant: Grant, how: str) -> None:
        if grant.how is not None:
            return
        grant.how = how
        self._open.discard(grant)
        if grant._export is not None:
            self._given.pop(_mark(grant._export), None)
        self._ended.append(grant)

    def acquire(self, token: str, timeout: float) -> Hold:
        """Starts to acquire a right. errors.TokenInvalid."""
        parsed = Token(token)
        pending = self._client.import_token(parsed, timeout=timeout, wait=False)
        hold = Hold(parsed, pending)

        def adopt(p: Pending[Remote]) -> None:
            hold.error = p.error()
            if hold.error is None:
                hold.remote = p.result(0)

        pending.add_done_callback(adopt)
        return hold

    def poll(self) -> list[Grant]:
        """Handles what the agent has sent; returns the rights that have ended, each once."""
        self._client.process()
        taken = self._client.events
        while taken:
            event = taken.popleft()
            if isinstance(event, events.Notification):
                self._notified(event)
            elif isinstance(event, events.Disconnected):
                for grant in list(self._open):  # the agent has ended: it reads nothing any more, and holders lose the right
                    self._end(grant, LOST)
            self.on_event(event)
        if self._open:
            now = time.monotonic()
            for grant in list(self._open):
                if now >= grant.expires and grant.why == USED:
                    self.end(grant, EXPIRED)
        if not self._ended:
            return []
        ended = list(self._ended)
        self._ended.clear()
        return ended

    def _notified(self, event: events.Notification) -> None:
        if event.tag != _TAG:
            return
        grant = self._given.get(event.payload)
        if grant is not None:
            self.end(grant, USED)


def _mark(token: Token) -> bytes:
    return hashlib.sha256(token.data).digest()[:_MARK]
