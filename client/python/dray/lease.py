# SPDX-License-Identifier: Apache-2.0
"""Leases of this engine's memory to other engines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, overload

from . import _library as lib
from . import _schema as s
from .pending import Pending

if TYPE_CHECKING:
    from .handles import Token
    from .session import Session

OUTCOME_NAMES = {**s.LEASE_OUTCOME_NAMES, lib.LEASE_AGENT_LOST: "agent_lost"}


class Lease:
    """Ranges of a region that holders of the token may use until the lease ends. Made by Region.lease().

    handle: number of the lease at this client. token: for the holders, as str(lease.token). granted: holders
    that the lease was granted to when it was made. how: how it ended, as in events.LeaseEnded; None before.
    """

    __slots__ = ("__weakref__", "client", "granted", "handle", "how", "token")

    def __init__(self, client: Session, handle: int, token: Token, granted: int) -> None:
        self.client, self.handle, self.token, self.granted = client, handle, token, granted
        self.how: str | None = None

    @overload
    def end(self, *, wait: Literal[True] = True) -> None: ...

    @overload
    def end(self, *, wait: Literal[False]) -> Pending[None]: ...

    def end(self, *, wait: bool = True) -> None | Pending[None]:
        """Ends the lease. After the answer no holder accesses its ranges.

        The event LeaseEnded comes before. Nothing happens if the lease has ended.
        """
        pending: Pending[None] = Pending(self.client)
        self.client._handle()
        if self.how is not None or self.handle not in self.client._leases:
            pending._end(None, None)
        else:
            self.client._request(pending, lib.held.dray_lease_end_start, self.handle)
        return self.client._settle(pending, wait)

    def __repr__(self) -> str:
        return f"<Lease {self.handle:#x}, {self.how or 'live'}>"
