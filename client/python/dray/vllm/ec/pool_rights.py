# SPDX-License-Identifier: Apache-2.0
"""How an engine reads outputs of an encoder without waiting for the right on them.

The right of an offer keeps its outputs in their places. To acquire it takes a message to the encoder's agent and back, before which
nothing could be read by it. So a consumer that has loaded outputs of an encoder introduces itself, and the encoder exports its pool for reading
to the consumer's agent, and to no other one. Its offers have these exports from then on. The consumer reads by the export of its agent, and
uses the right up afterwards, as one does that reads in place. If the right had ended before, the bytes may be those of another output: the
nonce of the place and the checksum say so, and the consumer acquires the right then, and reads by it.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import TYPE_CHECKING

from ... import errors

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ...client import Client
    from ...handles import Region, Remote, Token
    from ...pending import Pending

__all__ = ["TAG", "Early", "PoolExports", "PoolRemotes", "introduce"]

TAG = 0x6563706C  # of the notification by which a consumer introduces itself: "ecpl"
_MOST = 16  # agents to which a pool is exported
_LEAST = 60.0  # seconds for which it stays exported, however many agents there are
_REMOTES = 256  # pools that a consumer keeps


def introduce(remote: Remote) -> None:
    """A consumer that has read outputs says so to their encoder. Does not wait."""
    try:
        remote.notify(TAG, wait=False)
    except errors.Error:
        pass  # it introduces itself again


class Early:
    """In the place of a right (grants.Hold), for a load by an export."""

    __slots__ = ("remote",)

    def __init__(self, remote: Remote) -> None:
        self.remote: Remote | None = remote

    @property
    def lost(self) -> errors.Error | None:
        return self.remote.lost if self.remote is not None else None

    def keep(self, now: float) -> None:
        """It does not expire."""

    def release(self) -> None:
        """The right is used up when the request has its outputs."""


class PoolExports:
    """At an encoder: the agents to which its pool is exported."""

    def __init__(self, region: Region) -> None:
        self._region = region
        self._tokens: OrderedDict[bytes, tuple[float, Token | None]] = OrderedDict()  # by agent; None: the own agent has not answered
        self.offered: dict[str, str] = {}  # for offers: tokens by agent, as text

    def introduced(self, agent: bytes) -> None:
        """A consumer of that agent has loaded outputs. Does not wait."""
        now = time.monotonic()
        if agent in self._tokens or len(self._tokens) == _MOST and not self._end_first(now):
            return
        try:
            pending = self._region.export(access="r", audience=agent, wait=False)
        except errors.Error:
            return  # it introduces itself again
        self._tokens[agent] = now, None
        pending.add_done_callback(lambda pending: self._exported(agent, now, pending))

    def _exported(self, agent: bytes, since: float, pending: Pending[Token]) -> None:
        if self._tokens.get(agent) != (since, None):
            return  # of a session that was lost
        if pending.error() is not None:
            del self._tokens[agent]
            return
        token = pending.result(0)
        self._tokens[agent] = since, token
        self.offered[agent.hex()] = str(token)

    def _end_first(self, now: float) -> bool:
        """Makes room for another agent, if the first one has had its time."""
        agent, (since, token) = next(iter(self._tokens.items()))
        if token is None or now < since + _LEAST:
            return False
        del self._tokens[agent], self.offered[agent.hex()]
        try:
            self._region.revoke(token, wait=False)
        except errors.Error:
            pass  # without a session there is no export
        return True

    def lost(self) -> None:
        """The session has ended, and with it all exports."""
        self._tokens.clear()
        self.offered.clear()


class PoolRemotes:
    """At a consumer: pools of encoders that it may read."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._agent = ""  # empty: not known in this session yet
        self._known: OrderedDict[str, Pending[Remote]] = OrderedDict()  # by token

    def is_stranger(self, exports: Mapping[str, str]) -> bool:
        """True if the own agent has no export of an encoder's pool."""
        return self._agent not in exports

    def find(self, exports: Mapping[str, str]) -> Remote | None:
        """The encoder's pool; None: it cannot be read by an export, or not yet. Does not wait."""
        try:
            self._agent = self._agent or self._client.agent_id.hex()
            token = exports.get(self._agent)
            if token is None:
                return None
            pending = self._known.get(token)
            if pending is None:
                self._begin(token)
                return None
        except errors.Error:
            return None
        if not pending.done():
            return None
        remote = pending.result(0) if pending.error() is None else None
        if remote is None or remote.lost is not None:
            del self._known[token]  # imported again with the next offer
            return None
        self._known.move_to_end(token)
        return remote

    def _begin(self, token: str) -> None:
        self._known[token] = self._client.import_token(token, wait=False)
        if len(self._known) > _REMOTES:
            _, oldest = self._known.popitem(last=False)
            oldest.add_done_callback(_release)

    def lost(self) -> None:
        """The session has ended."""
        self._agent = ""
        self._known.clear()


def _release(pending: Pending[Remote]) -> None:
    if pending.error() is None:
        remote = pending.result(0)
        if remote.lost is None:
            try:
                remote.release(wait=False)
            except errors.Error:
                pass  # lost just now
