# SPDX-License-Identifier: Apache-2.0
"""In which steps a session with the agent is looked at. A look takes some microseconds of the step."""

from __future__ import annotations

from typing import Any

from ..events import Disconnected, Reconnected

__all__ = ["Looks"]

_SELDOM = 4  # steps without a look after which a session is looked at on which nothing is awaited


class Looks:
    """For one session."""

    def __init__(self) -> None:
        self._steps = 0  # since the last look
        self._away = False  # the session is lost; each look takes a step of its return

    def due(self, awaited: bool) -> bool:
        """True if this step looks at the session. awaited: something is expected besides the end of the session."""
        self._steps += 1
        if not (awaited or self._away) and self._steps < _SELDOM:
            return False
        self._steps = 0
        return True

    def event(self, event: Any) -> None:
        """An event of the session."""
        if isinstance(event, (Disconnected, Reconnected)):
            self._away = isinstance(event, Disconnected)
