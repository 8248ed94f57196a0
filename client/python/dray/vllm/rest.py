# SPDX-License-Identifier: Apache-2.0
"""How long a step waits for the agent if it computes nothing.

While blocks are moved and no request is computed, vLLM repeats its step every few milliseconds. Its processes use most of two
processors for that, which the agents need for the transfer. So such a step rests: it ends early when the agent has sent
something to the side that rests. Where the agent reports the end of a transfer to another side, a rest is a small part of the
time that has passed without a change, so that it does not make a short transfer longer.
"""

from __future__ import annotations

import time

__all__ = ["ANSWER", "Rest"]

ANSWER = 0.001  # seconds in which an agent, also another engine's, mostly answers
_PART = 1 / 8  # of the time that has passed
_SHORTEST, _LONGEST = 0.002, 0.006  # seconds


class Rest:
    """For one scheduler side. allowed: a step without tokens is one in which the engine has nothing to compute."""

    def __init__(self, allowed: bool) -> None:
        self.allowed = allowed
        self._waiting = 0
        self._since = 0.0

    def seconds(self, tokens: int, waiting: int, answers: bool = False, session_reports_end: bool = False) -> float:
        """Seconds that a step with so many tokens may wait.

        waiting: how many transfers it waits for. answers: an agent was asked something that has to be known before they start.
        session_reports_end: the session of the side that rests reports their end, and all else that it waits for. There is no rest in the
        step in which their number has changed, because one of them may be about to start.
        """
        if not waiting or tokens or not self.allowed:
            self._waiting = 0
            return 0.0
        now = time.monotonic()
        changed = waiting != self._waiting
        if changed:
            self._waiting, self._since = waiting, now
        if answers:
            return ANSWER
        if session_reports_end:
            return 0.0 if changed else _LONGEST
        rest = (now - self._since) * _PART
        return min(rest, _LONGEST) if rest >= _SHORTEST else 0.0
