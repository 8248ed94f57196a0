# SPDX-License-Identifier: Apache-2.0
"""The right of another engine to read or write a request's blocks: given out, acquired, ended, and how it ended.

The owner's side leases a request's ranges of one rank's region, and hears exactly once how the lease
ended. The holder's side acquires it, uses its remote, renews it while it waits, and releases it.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable
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
_RELEASE = 60.0  # seconds for which a right is asked for only to release it; a lease that nobody renews mostly ends before
_STUCK = 5.0  # seconds in which the loads of other sessions are expected to free what loads of this one wait for


def _label(request_id: str) -> str:
    """A request's id as the agent shows it with transfers: its first bytes if it is too long."""
    text = "".join(c if c.isprintable() else "?" for c in request_id)
    return text.encode()[:s.LABEL_MAX].decode(errors="ignore")


class _Right:
    """What both sides of a right have in common. load: what waits for limits of the agent until it has all of its rights; None: a limit is an error.

    error: why there is no right. limit: why it is asked for again.
    """

    __slots__ = ("_start", "_until", "_unwanted", "error", "limit", "load")

    def __init__(self, load: Hashable | None, start: Callable[[], Pending[Any]]) -> None:
        """start: asks the agent."""
        self.load, self._start = load, start
        self.error: errors.Error | None = None
        self.limit: errors.Error | None = None
        self._unwanted = False  # to be ended as soon as the agent has answered
        self._until = 0.0  # time until which an unwanted one is asked for all the same

    def _answered(self, error: errors.Error | None, pending: Pending[Any] | None) -> None:
        """Takes the agent's answer, or why there is none."""
        raise NotImplementedError


class Grant(_Right):
    """The owner's side of one right. how: one of the constants once it has ended, None before.

    While `how` is None, the holder may use the blocks. label: the request.
    """

    __slots__ = ("_grants", "_lease", "how", "label")

    def __init__(self, grants: Grants, label: str, load: Hashable | None, start: Callable[[], Pending[Lease]]) -> None:
        super().__init__(load, start)
        self._grants, self.label = grants, label
        self.how: str | None = None
        self._lease: Lease | None = None

    @property
    def token(self) -> str | None:
        """Text for the holder; None until the agent has answered."""
        return str(self._lease.token) if self._lease is not None else None

    def _answered(self, error: errors.Error | None, pending: Pending[Lease] | None) -> None:
        self._grants._asked.discard(self)
        if pending is None or error is not None:
            self.error, self.how = error, AGENT_LOST
            self._grants._ended.append(self)
            return
        self._lease = pending.result(0)
        self._grants._given[self._lease.handle] = self
        if self._unwanted:
            self._grants.end(self)


class Hold(_Right):
    """The holder's side of one right. remote: None until the owner's agent has answered."""

    __slots__ = ("_grants", "_renewal", "_renewed", "_settled", "remote")

    def __init__(self, grants: Grants, load: Hashable | None, start: Callable[[], Pending[Remote]]) -> None:
        super().__init__(load, start)
        self._grants = grants
        self._settled = False
        self._renewed = 0.0
        self._renewal: Pending[float] | None = None
        self.remote: Remote | None = None

    def _answered(self, error: errors.Error | None, pending: Pending[Remote] | None) -> None:
        self.error, self._settled = error, True
        if pending is not None and error is None:
            self.remote = pending.result(0)
            self._renewed = time.monotonic()
            self._grants._held.add(self)
        if self._unwanted:
            self._finish()

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
        if not self._unwanted:
            self._unwanted, self._until = True, time.monotonic() + _RELEASE
            self._grants._leaving.add(self)
            if self._settled:
                self._finish()

    def _finish(self) -> None:
        held = self._grants._held
        self._grants._leaving.discard(self)
        remote, self.remote = self.remote, None
        try:
            if remote is not None and remote.lost is None:
                remote.release(wait=False).add_done_callback(lambda _: held.discard(self))
                return
        except errors.Error:
            pass  # lost just now, which ends the right as well
        held.discard(self)


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
        self._held: set[Hold] = set()  # of which the agent has a remote
        self._ended: deque[Grant] = deque()
        self._leaving: set[Hold] = set()  # released before the owner's agent has answered
        self._waiting: dict[_Right, bool] = {}  # rights of loads that are not there, the oldest first; whether the agent is asked for them now
        self._limited: set[type[_Right]] = set()  # kinds of which some wait for a limit
        self._again = 0.0  # when they are asked for again
        self._stuck: dict[type[_Right], tuple[set[_Right], float]] = {}  # all rights, if only loads that wait have some, and since when
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
             audience: bytes | None = None, holders: int = 1, load: Hashable | None = None) -> Grant:
        """Starts to give a right on `ranges` of a region, which ends after `expiry` seconds unless it is renewed.

        access: "r" to read them, "w" to write them. holders: how many engines use it. audience: id of the holder's agent, which gets the right
        at once; None: any agent, which asks for it. load: waits for a limit of the agent, until end().
        """
        grant = Grant(self, label, load, lambda: region.lease(
            ranges, access=access, expiry=expiry, holders=holders, audience=audience, grant=audience is not None, wait=False))
        self._asked.add(grant)
        try:
            self._ask(grant)
        except errors.Error:
            self._asked.discard(grant)
            raise
        return grant

    def end(self, grant: Grant) -> None:
        """Ends a right: after the fence the holder does not touch the blocks any more, and poll() reports it."""
        grant._unwanted = True
        if grant._lease is not None and grant.how is None:
            try:
                grant._lease.end(wait=False)
            except errors.Error:
                pass  # without a session the lease ends by itself

    def acquire(self, token: str, request_id: str, load: Hashable | None = None) -> Hold:
        """Starts to acquire a right for a request. load: waits for a limit of the agent, also to be released. errors.TokenInvalid."""
        # Without a limit of ours an address that refuses ends the request at once.
        hold = Hold(self, load, lambda: self._client.acquire(token, label=_label(request_id), wait=False))
        self._ask(hold)
        return hold

    # --- limits of the agent ------------------------------------------------------------------------

    def _ask(self, right: _Right) -> None:
        """Asks for a right. While older loads wait for a limit of its kind it is only asked for behind theirs: it could be one of those that they need."""
        if right.load is None:
            self._begin(right)
            return
        self._waiting[right] = type(right) not in self._limited
        if self._waiting[right]:
            try:
                self._begin(right)
            except errors.Error:
                del self._waiting[right]
                raise

    def _begin(self, right: _Right) -> None:
        right._start().add_done_callback(lambda pending: self._take(right, pending))

    def _take(self, right: _Right, pending: Pending[Any]) -> None:
        error = pending.error()
        if isinstance(error, errors.Quota) and right.load is not None:
            right.limit, self._waiting[right] = error, False
            self._limited.add(type(right))
            self._again = time.monotonic() + _AGAIN
        else:
            self._settle(right, error, pending)

    def _settle(self, right: _Right, error: errors.Error | None, pending: Pending[Any] | None = None) -> None:
        self._waiting.pop(right, None)
        right._answered(error, pending)

    def _ask_again(self) -> None:
        now = time.monotonic()
        for right, asked in list(self._waiting.items()):
            # The owner hears that a right is not wanted only when it has been acquired.
            if right._unwanted and not asked and now >= right._until:
                self._settle(right, right.limit or errors.Cancelled())
        self._part(Grant, self._given.values())
        self._part(Hold, (hold for hold in self._held if not hold.lost))
        self._limited = {type(right) for right in self._waiting if right.limit}
        self._again = now + _AGAIN
        for right in [right for right, asked in self._waiting.items() if not asked]:
            self._waiting[right] = True
            try:
                self._begin(right)
            except errors.Error as e:
                self._settle(right, e)

    def _part(self, kind: type[_Right], present: Iterable[_Right]) -> None:
        """Gives up the youngest load if several have rights and wait for a limit, no other load has any, and that does not change."""
        limited = [right for right in self._waiting if right.limit and isinstance(right, kind)]
        rights, loads = set(present), dict.fromkeys(right.load for right in limited)
        having = {right.load for right in rights}
        if len(having) < 2 or not having <= loads.keys():
            self._stuck.pop(kind, None)
            return
        stuck, since = self._stuck.get(kind, (None, 0.0))
        if rights != stuck:
            self._stuck[kind] = rights, time.monotonic()
        elif time.monotonic() - since >= _STUCK and not any(self._waiting[right] for right in limited):
            youngest = [load for load in loads if load in having][-1]
            for right in limited:
                if right.load == youngest:
                    self._settle(right, right.limit)

    def poll(self, rest: float = 0.0, awaited: bool = True) -> list[Grant]:
        """Handles what the agent has sent, or sends within `rest` seconds; returns the rights that have ended, each once.

        awaited: false if nothing is expected but the end of the session.
        """
        if self._looks.due(awaited or bool(self._given or self._asked or self._leaving)):
            self._client.process(rest)
        if self._limited and time.monotonic() >= self._again:
            self._ask_again()
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
