# SPDX-License-Identifier: Apache-2.0
"""The token of a region, made when it is first needed, and again after each loss of the session, which voids tokens."""

from __future__ import annotations

import threading

from ..handles import Region

__all__ = ["Exported"]


class Exported:
    """Any thread may use it. mooncake: the address of the region for engines that have Mooncake linked in; None: it is not for them."""

    def __init__(self, region: Region, mooncake: int | None = None) -> None:
        self.region, self._mooncake = region, mooncake
        self._lock = threading.Lock()
        self._token, self._losses = "", 0

    def token(self) -> str:
        """Waits for the agent the first time."""
        with self._lock:
            losses = self.region.client.info().losses
            if not self._token or losses != self._losses:
                self._token, self._losses = str(self.region.export(mooncake=self._mooncake)), losses
            return self._token

    @property
    def is_valid(self) -> bool:
        """There is a token of the session that is open now. Does not wait."""
        return bool(self._token) and self._losses == self.region.client.info().losses
