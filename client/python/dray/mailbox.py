# SPDX-License-Identifier: Apache-2.0
"""Mailboxes: names at an agent, to which clients of other agents send letters without a token."""

from __future__ import annotations

from ctypes import string_at
from typing import TYPE_CHECKING, Any, Literal, overload

from . import _arguments as arguments
from . import _library as lib
from . import errors
from .events import Letter
from .pending import Pending

if TYPE_CHECKING:
    from .client import Client

__all__ = ["Mailbox", "Mailboxes"]

_NAME_MAX, _SEGMENT_MAX = 128, 256


class Mailbox:
    """A name at this client's agent. Letters for it come as events Letter. Made by open_mailbox().

    handle: number of the mailbox at this client. error: why it could not be opened again after the
    session was lost; or None. The mailbox stays open until close() or the end of the client, whether
    or not this object lives on; after a loss of the session it is opened again by itself. Any thread
    may use it.
    """

    __slots__ = ("__weakref__", "client", "error", "handle", "name")

    def __init__(self, client: Client, name: str, handle: int) -> None:
        self.client, self.name, self.handle = client, name, handle
        self.error: errors.Error | None = None

    @overload
    def close(self, *, wait: Literal[True] = True) -> None: ...

    @overload
    def close(self, *, wait: Literal[False]) -> Pending[None]: ...

    def close(self, *, wait: bool = True) -> None | Pending[None]:
        """Closes the mailbox. Its name is free at once; letters that it had taken still come as events.

        After the answer no further letter comes. The object cannot be used from the call on.
        """
        self.client._handle()
        if not self.handle:
            raise errors.NotFound(f"{self!r} was closed", fix="Open a new one with client.open_mailbox().")
        handle, boxes = self.handle, self.client._mailboxes

        def forget(_: Any) -> None:  # letters that come before the answer name this mailbox
            boxes.pop(handle, None)
            self.handle = 0

        pending: Pending[None] = Pending(self.client, forget)
        self.client._request(pending, lib.held.dray_mailbox_close_start, handle)
        self.handle = 0
        return self.client._settle(pending, wait)

    def __repr__(self) -> str:
        state = f"lost: {self.error.name}" if self.error else f"handle {self.handle:#x}" if self.handle else "closed"
        return f"<Mailbox {self.name!r}, {state}>"


class Mailboxes:
    """What a client can do with mailboxes."""

    _mailboxes: dict[int, Mailbox]

    @overload
    def open_mailbox(self, name: str, *, capacity: int = 0, wait: Literal[True] = True) -> Mailbox: ...

    @overload
    def open_mailbox(self, name: str, *, capacity: int = 0, wait: Literal[False]) -> Pending[Mailbox]: ...

    def open_mailbox(self, name: str, *, capacity: int = 0, wait: bool = True) -> Mailbox | Pending[Mailbox]:
        """Opens a mailbox: a name at this client's agent, of 1 to 128 bytes of UTF-8.

        Clients of this agent, and of agents that hold the same key, can post to it: post(). Each letter
        is an event Letter. capacity: letters that wait at the agent until this client reads them; 0:
        the agent's limit. A sender alone fills a third of it, so that others get through.

        errors.Exists: another session has the name, or it is reserved for another user; the message
        says who. The name of a session that died is free for its user at once. Waits for the answer,
        or with wait=False returns a Pending.
        """
        client: Any = self

        def adopt(c: Any) -> Mailbox:
            box = client._mailboxes[c.mailbox] = Mailbox(client, name, c.mailbox)
            return box

        pending: Pending[Mailbox] = Pending(client, adopt, lambda box: box.handle and box.close(wait=False))
        return client._start(pending, wait, lib.held.dray_mailbox_open_start, _text("the name", name, _NAME_MAX),  # type: ignore[no-any-return]
                             arguments.number("capacity", capacity, (1 << 32) - 1))

    @overload
    def post(self, segment: str, name: str, payload: Any = b"", *, timeout: float | None = None,
             wait: Literal[True] = True) -> None: ...

    @overload
    def post(self, segment: str, name: str, payload: Any = b"", *, timeout: float | None = None,
             wait: Literal[False]) -> Pending[None]: ...

    def post(self, segment: str, name: str, payload: Any = b"", *, timeout: float | None = None,
             wait: bool = True) -> None | Pending[None]:
        """Sends a letter of up to 4096 bytes to the mailbox `name` at the agent of a segment.

        segment: host:port of that agent, its segment or another address of its listener; "": this
        client's own agent. timeout: seconds for reaching the agent and its answer; None: 10 s, but an
        address that refuses the connection fails at once. It ends when the letter is in the queue of
        the session that owns the mailbox, or with an error. After errors.Timeout, errors.PeerLost and
        errors.AgentRestarted the letter may have been delivered; after any other error it was not.

        errors.NotFound: no such mailbox is open there. errors.MailboxFull: post again later.
        errors.Denied: that agent has no key. errors.Busy: too many posts to that agent are in flight.
        errors.PeerUnreachable, errors.PeerDenied, errors.Draining. Waits, or with wait=False returns a
        Pending.
        """
        client: Any = self
        data = arguments.data("payload", payload)
        pending: Pending[None] = Pending(client)
        return client._start(pending, wait, lib.held.dray_post_start, _text("the segment", segment, _SEGMENT_MAX),  # type: ignore[no-any-return]
                             _text("the name", name, _NAME_MAX), data, len(data), arguments.milliseconds("timeout", timeout))


def to_letter(e: Any, boxes: dict[int, Mailbox]) -> Letter:
    """For the client: an event of the library."""
    payload = string_at(e.payload, e.length) if e.length else b""
    return Letter(boxes.get(e.mailbox), payload, bytes(e.agent_id), e.uid, e.gid, e.incarnation)


def _text(what: str, value: Any, most: int) -> bytes:
    data = arguments.text(what, value)
    if len(data) > most:
        raise errors.TooLarge(f"{what} has {len(data)} bytes, the limit is {most}", fix="Pass a shorter text.")
    return data
