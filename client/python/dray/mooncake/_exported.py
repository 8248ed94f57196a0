# SPDX-License-Identifier: Apache-2.0
"""The token of a region, made when it is first needed, and again after each loss of the session, which voids tokens."""

from __future__ import annotations

import contextlib
import threading

from .. import errors
from ..handles import Region, Token

__all__ = ["Exported"]


class Exported:
    """Any thread may use it. mooncake: the address of the region for engines that have Mooncake linked in; None: it is not for them.

    offset, length: of the range in the region; None: all of it.
    """

    def __init__(self, region: Region, mooncake: int | None = None, offset: int = 0, length: int | None = None) -> None:
        self.region, self._mooncake = region, mooncake
        self._offset, self._length = offset, length
        self._lock = threading.Lock()
        self._token: Token | None = None
        self._losses, self._closed = 0, False

    def token(self) -> str:
        """Waits for the agent the first time."""
        with self._lock:
            if self._closed:
                raise errors.NotFound("the memory was unregistered", fix="Register it again.")
            losses = self.region.client.info().losses
            if self._token is None or losses != self._losses:
                self._token = self.region.export(self._offset, self._length, mooncake=self._mooncake)
                self._losses = losses
            return str(self._token)

    def close(self) -> None:
        """After this, nobody uses the range by the token, while others go on with the region. Waits for the agent."""
        with self._lock:
            token, self._token, self._closed = self._token, None, True
            if token is not None and self._losses == self.region.client.info().losses and self.region.error is None:
                with contextlib.suppress(errors.NotFound, errors.GpuLost, errors.AgentRestarted):  # it has ended with its region, or its session
                    self.region.revoke(token)

    @property
    def is_valid(self) -> bool:
        """There is a token of the session that is open now. Does not wait."""
        return self._token is not None and self._losses == self.region.client.info().losses
