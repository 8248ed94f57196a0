# SPDX-License-Identifier: Apache-2.0
"""How an engine reads outputs of an encoder without waiting for the right on them.

The right of an offer keeps its outputs in their places. To acquire it takes a message to the encoder's agent and back, before which
nothing could be read by it. So a consumer that has loaded outputs of an encoder introduces itself, and the encoder exports its pool for reading
to the consumer's agent, and to no other one. Its offers have these exports from then on. The consumer reads by the export of its agent, and
uses the right up afterwards, as one does that reads in place. If the right had ended before, the bytes may be those of another output: the
nonce of the place and the checksum say so, and the consumer acquires the right then, and reads by it. It also acquires the right of a request that has
to wait, for room or for a long transfer, and renews it.
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
_LEAST = 60.0  # seconds for which it stays exported to an agent that is not heard of, however many agents there are
_AGAIN = 15.0  # seconds after which a consumer that reads introduces itself again
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
        self._tokens: OrderedDict[bytes, Token | None] = OrderedDict()  # by agent, the one last heard of at the end; None: the own agent has not answered
        self._heard: dict[bytes, float] = {}  # when, by agent
        self._session = object()
        self.offered: dict[str, str] = {}  # for offers: tokens by agent, as text

    def introduced(self, agent: bytes) -> None:
        """A consumer of that agent has loaded outputs. Does not wait."""
        now = time.monotonic()
        if agent in self._tokens:
            self._tokens.move_to_end(agent)
            self._heard[agent] = now
            return
        if len(self._tokens) == _MOST and not self._end_first(now):
            return
        try:
            pending = self._region.export(access="r", audience=agent, wait=False)
        except errors.Error:
            return  # it introduces itself again
        self._tokens[agent], self._heard[agent] = None, now
        session = self._session
        pending.add_done_callback(lambda pending: self._exported(agent, session, pending))

    def _exported(self, agent: bytes, session: object, pending: Pending[Token]) -> None:
        if session is not self._session:
            return  # it was lost
        if pending.error() is not None:
            del self._tokens[agent], self._heard[agent]
            return
        token = self._tokens[agent] = pending.result(0)
        self.offered[agent.hex()] = str(token)

    def _end_first(self, now: float) -> bool:
        """Makes room for another agent, if one has not been heard of for long."""
        agent, token = next(iter(self._tokens.items()))
        if token is None or now < self._heard[agent] + _LEAST:
            return False
        del self._tokens[agent], self._heard[agent], self.offered[agent.hex()]
        try:
            self._region.revoke(token, wait=False)
        except errors.Error:
            pass  # without a session there is no export
        return True

    def lost(self) -> None:
        """The session has ended, and with it all exports."""
        self._session = object()
        self._tokens.clear()
        self._heard.clear()
        self.offered.clear()


class PoolRemotes:
    """At a consumer: pools of encoders that it may read."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._agent = ""  # empty: not known in this session yet
        self._known: OrderedDict[str, Pending[Remote]] = OrderedDict()  # by token
        self._said: dict[str, float] = {}  # when this consumer has introduced itself last, by token

    def is_stranger(self, exports: Mapping[str, str]) -> bool:
        """True if the own agent has no export of an encoder's pool."""
        return self._agent not in exports

    def is_silent(self, exports: Mapping[str, str], now: float) -> bool:
        """True if the encoder, whose pool is read by its export, is to hear of this consumer again. It does then."""
        token = exports.get(self._agent)
        if token is None or token not in self._known or now < self._said[token] + _AGAIN:
            return False
        self._said[token] = now
        return True

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
            del self._known[token], self._said[token]  # imported again with the next offer
            return None
        self._known.move_to_end(token)
        return remote

    def _begin(self, token: str) -> None:
        self._known[token], self._said[token] = self._client.import_token(token, wait=False), time.monotonic()
        if len(self._known) > _REMOTES:
            first, oldest = self._known.popitem(last=False)
            del self._said[first]
            oldest.add_done_callback(_release)

    def lost(self) -> None:
        """The session has ended."""
        self._agent = ""
        self._known.clear()
        self._said.clear()


def _release(pending: Pending[Remote]) -> None:
    if pending.error() is None:
        remote = pending.result(0)
        if remote.lost is None:
            try:
                remote.release(wait=False)
            except errors.Error:
                pass  # lost just now
