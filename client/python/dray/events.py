# SPDX-License-Identifier: Apache-2.0
"""What a client reports without being asked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from . import errors
    from .handles import Region, Remote
    from .lease import Lease
    from .mailbox import Mailbox
    from .pending import Lending

__all__ = ["Confirmed", "Connected", "Disconnected", "Draining", "Dropped", "LeaseEnded", "Letter", "MailboxLost", "Notification",
           "Reconnected", "RegionLost", "RemoteLost", "SegmentChanged"]


class Notification(NamedTuple):
    """Another engine has notified this group.

    region: the region that the sender's remote belongs to; None if another session of the group has
    registered it. agent_region: the agent's number of it. agent_id, incarnation: of the sending agent.
    id: of the notification at that agent.
    """

    tag: int
    payload: bytes
    region: Region | None
    agent_region: int
    agent_id: bytes
    incarnation: int
    id: int


class Letter(NamedTuple):
    """A letter for a mailbox of this client.

    mailbox: None for one that was closed meanwhile. agent: id of the sender's agent, which holds the
    same key, or is this client's own agent. owner, group: user id and group id of the sender, as the
    kernel told its agent. incarnation: of that agent.
    """

    mailbox: Mailbox | None
    payload: bytes
    agent: bytes
    owner: int
    group: int
    incarnation: int


class MailboxLost(NamedTuple):
    """A mailbox could not be opened again with a new session: close it."""

    mailbox: Mailbox | None
    error: errors.Error


class RemoteLost(NamedTuple):
    """A remote cannot be used any more; code and message say why. It is released by itself."""

    remote: Remote | None
    code: int
    message: str


class LeaseEnded(NamedTuple):
    """A lease of this client has ended, once for each: its ranges are the owner's alone again.

    how: "used" (every holder has released it), "expired", "ended" (by end(), with its region, or because the
    agent drains), "peer_lost" (a holder, or its agent or host, is lost), or "agent_lost" (this client's own
    session or agent is lost). acquired: holders that had acquired it; 0 with "agent_lost".
    """

    lease: Lease
    how: str
    acquired: int


class RegionLost(NamedTuple):
    """A region could not be registered again with a new session, or memory of a GPU not be opened: remove it."""

    region: Region | None
    error: errors.Error


class Draining(NamedTuple):
    """The agent takes no new work. Work in flight is stopped after deadline_ms milliseconds."""

    deadline_ms: int


class Connected(NamedTuple):
    """The first session of a client that was made with wait=False is open."""

    incarnation: int


class Disconnected(NamedTuple):
    """The session was lost. Requests in flight have ended with the error, and remotes and tokens are void.

    The client connects again, unless `final`.
    """

    error: errors.Error
    final: bool


class Reconnected(NamedTuple):
    """There is a new session. regions: registered again; failed: those that could not be.

    restarted: the agent was restarted. Export and import tokens again.
    """

    incarnation: int
    restarted: bool
    regions: int
    failed: list[Region]


class Confirmed(NamedTuple):
    """A request that had ended with errors.Unconfirmed has really ended: its memory is free.

    transfer: the request, which is a transfer, or a put or get of the store. error: how; None: with success.
    """

    transfer: Lending[Any]
    error: errors.Error | None


class Dropped(NamedTuple):
    """Events of a kind were dropped, because the program did not take them: the `number` oldest ones. It is in their place."""

    kind: type
    number: int


class SegmentChanged(NamedTuple):
    """The state of a segment, or the preferred segment, changed.

    An empty segment with preferred: there is no preferred segment any more. For a slow reader only
    the last change of each segment comes.
    """

    segment: str
    old: str
    new: str
    preferred: bool
    unverified: bool
    node_local: bool
    reason: str
