# SPDX-License-Identifier: Apache-2.0
"""The token of a region, made when it is first needed, and again after each loss of the session, which voids tokens."""

from __future__ import annotations

import threading

from ..handles import Region

__all__ = ["Exported"]


class Exported:
    """Any thread may use it."""

    def __init__(self, region: Region) -> None:
        self.region = region
        self._lock = threading.Lock()
        self._token, self._losses = "", 0

    def token(self) -> str:
        """Waits for the agent the first time."""
        with self._lock:
            losses = self.region.client.info().losses
            if not self._token or losses != self._losses:
                self._token, self._losses = str(self.region.export()), losses
            return self._token
