# SPDX-License-Identifier: Apache-2.0
"""The right of another engine to read or write a request's blocks: given out, acquired, ended, and how it ended.

The owner's side leases a request's ranges of one rank's region, and hears exactly once how the lease
ended. The holder's side acquires it, uses its remote, renews it while it waits, and releases it.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from .. import _schema as s
from .. import errors, events
from ..client import Client
from ..handles import Region, Remote
from ..lease import Lease
from ..pending import Pending
from .looks import Looks

__all__ = ["AGENT_LOST", "ENDED", "EXPIRED", "PEER_LOST", "USED", "Grant", "Grants", "Hold", "give_back"]

# how a right ended
USED, EXPIRED, ENDED, PEER_LOST, AGENT_LOST = "used", "expired", "ended", "peer_lost", "agent_lost"

_AGAIN = 0.05  # seconds until a right that an agent's limit did not allow is asked for again


def _label(request_id: str) -> str:
    """A request's id as the agent shows it with transfers: its first bytes if it is too long."""
    text = "".join(c if c.isprintable() else "?" for c in request_id)
    return text.encode()[:s.LABEL_MAX].decode(errors="ignore")


class Grant:
    """The owner's side of one right. how: one of the constants once it has ended, None before.

    While `how` is None, the holder may use the blocks. label: the request. error: why there is no right. limit: why it is asked for again.
    """

    __slots__ = ("_lease", "_unwanted", "error", "how", "label", "limit")

    def __init__(self, label: str) -> None:
        self.label = label
        self.how: str | None = None
        self.error: errors.Error | None = None
        self.limit: errors.Error | None = None
        self._lease: Lease | None = None
        self._unwanted = False  # to be ended as soon as the agent has answered

    @property
    def token(self) -> str | None:
        """Text for the holder; None until the agent has answered."""
        return str(self._lease.token) if self._lease is not None else None


class Hold:
    """The holder's side of one right. remote: None until the owner's agent has answered. error: why there is none. limit: why it is asked for again."""

    __slots__ = ("_ask", "_leaving", "_pending", "_postpone", "_released", "_renewal", "_renewed", "error", "limit", "remote")

    def __init__(self, ask: Callable[[], Pending[Remote]], leaving: set[Hold], postpone: Callable[[Callable[[], None]], None] | None) -> None:
        """postpone: of what is called later; None: a limit is an error."""
        self._ask, self._leaving, self._postpone = ask, leaving, postpone
        self._released = False
        self.error: errors.Error | None = None
        self.limit: errors.Error | None = None
        self._renewed = 0.0
        self._renewal: Pending[float] | None = None
        self.remote: Remote | None = None
        self._begin()

    def _begin(self) -> None:
        self._pending = self._ask()
        self._pending.add_done_callback(self._answered)

    def _again(self) -> None:
        if not self._released:
            try:
                self._begin()
            except errors.Error as e:
                self.error = e

    def _answered(self, pending: Pending[Remote]) -> None:
        error = pending.error()
        if isinstance(error, errors.Quota) and self._postpone is not None:
            self.limit = error
            self._postpone(self._again)
            return
        self.error = error
        if error is None:
            self.remote = pending.result(0)
            self._renewed = time.monotonic()

    @property
    def lost(self) -> errors.Error | None:
        """The error, if the right can no longer be used."""
        return self.error or (self.remote.lost if self.remote is not None else None)

    def keep(self, now: float) -> None:
        """Renews the right when half of its time has passed. Does not wait."""
        remote = self.remote
        if remote is None or remote.lost is not None or now < self._renewed + (remote.expiry or 0.0) / 2:
            return
        if self._renewal is None or self._renewal.done():
            try:
                self._renewal = remote.renew(wait=False)
            except errors.Error:
                return  # too many requests wait, so the next call tries again; or lost just now, which ends the right as well
            self._renewed = now

    def release(self) -> None:
        """Says to the owner that the blocks will not be touched any more. Does not wait; may be called early, and twice."""
        if not self._released:
            self._released = True
            self._leaving.add(self)
            self._pending.add_done_callback(lambda _: self._finish())

    def _finish(self) -> None:
        self._leaving.discard(self)
        remote, self.remote = self.remote, None
        if remote is not None and remote.lost is None:
            try:
                remote.release(wait=False)
            except errors.Error:
                pass  # lost just now, which ends the right as well


def give_back(borrowed: dict[int, Remote]) -> None:
    """Ends the loan of remotes that another session of the group has acquired; otherwise the client keeps each until its session ends. Does not wait."""
    for remote in borrowed.values():
        with contextlib.suppress(errors.Error):  # the session was lost just now, which ends the loan as well
            remote.release(wait=False)
    borrowed.clear()


class Grants:
    """Both sides for one session with the agent. Nothing here waits, except a poll that is given time for it."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._given: dict[int, Grant] = {}  # by the lease's handle
        self._asked: set[Grant] = set()  # for which the agent has not answered
        self._ended: deque[Grant] = deque()
        self._leaving: set[Hold] = set()  # released before the owner's agent has answered
        self._later: deque[tuple[float, Callable[[], None]]] = deque()  # when it is called
        self._looks = Looks()
        self.on_event: Callable[[Any], None] = lambda event: None

    def __len__(self) -> int:
        """Rights that have been given and have not ended."""
        return len(self._given) + len(self._asked)

    @property
    def busy(self) -> bool:
        """True while a right that nobody wants any more waits for an answer, which poll() has to take."""
        return bool(self._leaving) or any(grant._unwanted for grant in self._asked)

    def give(self, label: str, region: Region, ranges: Any, expiry: float, access: str = "r",
             audience: bytes | None = None, holders: int = 1, patient: bool = False) -> Grant:
        """Starts to give a right on `ranges` of a region, which ends after `expiry` seconds unless it is renewed.

        access: "r" to read them, "w" to write them. holders: how many engines use it. audience: id of the holder's agent, which gets the right
        at once; None: any agent, which asks for it. patient: a limit of the agent is waited for, until end().
        """
        grant = Grant(label)

        def ask() -> None:
            pending = region.lease(ranges, access=access, expiry=expiry, holders=holders, audience=audience,
                                   grant=audience is not None, wait=False)
            self._asked.add(grant)
            pending.add_done_callback(lambda p: self._answered(grant, p, again if patient else None))

        def again() -> None:
            try:
                if grant._unwanted:
                    raise grant.limit or errors.Cancelled()
                ask()
            except errors.Error as e:
                self._refused(grant, e)

        ask()
        return grant

    def _postpone(self, call: Callable[[], None]) -> None:
        self._later.append((time.monotonic() + _AGAIN, call))

    def _refused(self, grant: Grant, error: errors.Error) -> None:
        self._asked.discard(grant)
        grant.error, grant.how = error, AGENT_LOST
        self._ended.append(grant)

    def _answered(self, grant: Grant, pending: Pending[Lease], again: Callable[[], None] | None) -> None:
        error = pending.error()
        if isinstance(error, errors.Quota) and again is not None:
            grant.limit = error
            self._postpone(again)
            return
        if error is not None:
            self._refused(grant, error)
            return
        self._asked.discard(grant)
        lease = grant._lease = pending.result(0)
        self._given[lease.handle] = grant
        if grant._unwanted:
            self.end(grant)

    def end(self, grant: Grant) -> None:
        """Ends a right: after the fence the holder does not touch the blocks any more, and poll() reports it."""
        grant._unwanted = True
        if grant._lease is not None and grant.how is None:
            try:
                grant._lease.end(wait=False)
            except errors.Error:
                pass  # without a session the lease ends by itself

    def acquire(self, token: str, request_id: str, patient: bool = False) -> Hold:
        """Starts to acquire a right for a request. patient: a limit of the agent is waited for, until release(). errors.TokenInvalid."""
        # Without a limit of ours an address that refuses ends the request at once.
        return Hold(lambda: self._client.acquire(token, label=_label(request_id), wait=False), self._leaving, self._postpone if patient else None)

    def poll(self, rest: float = 0.0, awaited: bool = True) -> list[Grant]:
        """Handles what the agent has sent, or sends within `rest` seconds; returns the rights that have ended, each once.

        awaited: false if nothing is expected but the end of the session.
        """
        if self._looks.due(awaited or bool(self._given or self._asked or self._leaving)):
            self._client.process(rest)
        now = time.monotonic() if self._later else 0.0
        while self._later and self._later[0][0] <= now:
            self._later.popleft()[1]()
        taken = self._client.events
        while taken:
            event = taken.popleft()
            if isinstance(event, events.LeaseEnded):
                self._over(event)
            else:
                self._looks.event(event)
                self.on_event(event)
        ended = list(self._ended)
        self._ended.clear()
        return ended

    def _over(self, event: events.LeaseEnded) -> None:
        grant = self._given.pop(event.lease.handle, None)
        if grant is not None:
            grant.how = event.how
            self._ended.append(grant)
