# SPDX-License-Identifier: Apache-2.0
"""Counts of loads: for the engine's statistics, Prometheus, and a log line each minute."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

__all__ = ["Stats", "add", "is_empty", "new", "sentence", "summary"]

_LISTS = ("seconds", "bytes", "blocks", "operations", "tokens")
_MINUTE = 60.0


class Stats:
    """What has ended since the last take(). Each load is one entry of each list.

    report: gets the counts of a minute, on a thread of its own, if something has ended in it.
    """

    def __init__(self, report: Callable[[dict[str, Any]], None] = lambda data: None,
                 timer: Callable[[float, Callable[[], None]], Any] = threading.Timer) -> None:
        self._data, self._minute = new(), new()
        self._report, self._make_timer = report, timer
        self._waiting = 0  # as it was reported last
        self._timer: Any = None
        self._lock = threading.Lock()

    def loaded(self, nbytes: int, blocks: int, operations: int, tokens: int, seconds: float) -> None:
        """A load that succeeded. operations: of this engine's agent; 0: the other engine has written the blocks."""
        with self._lock:
            for data in (self._data, self._minute):
                for name, value in zip(_LISTS, (seconds, nbytes, blocks, operations, tokens), strict=True):
                    data[name].append(value)
            self._begin()

    def failed(self, name: str) -> None:
        """A load that failed. name: of the error."""
        with self._lock:
            for data in (self._data, self._minute):
                data["failures"][name] = data["failures"].get(name, 0) + 1
            self._begin()

    def _begin(self) -> None:
        """A report is due a minute after the first count."""
        if self._timer is None:
            self._timer = self._make_timer(_MINUTE, self.flush)
            self._timer.daemon = True
            self._timer.start()

    def flush(self) -> None:
        """Reports what has ended since the last report, if anything has."""
        with self._lock:
            timer, self._timer = self._timer, None
            data, self._minute = self._minute, new()
            data["waiting"] = self._waiting
        if timer is not None:
            timer.cancel()
            self._report(data)

    def take(self, waiting: int = 0) -> dict[str, Any] | None:
        """The counts since the last call, as a dictionary for JSON; None if nothing has changed.

        waiting: loads that have not ended.
        """
        if waiting == self._waiting and is_empty(self._data):
            return None  # only the caller adds to it, so that no lock is needed
        with self._lock:
            data, self._data = self._data, new()
            data["waiting"] = self._waiting = waiting
            return data


def new() -> dict[str, Any]:
    """Counts of nothing."""
    return {**{name: [] for name in _LISTS}, "failures": {}, "waiting": 0}


def is_empty(data: dict[str, Any]) -> bool:
    """True if nothing has ended."""
    return not (data["seconds"] or data["failures"])


def add(total: dict[str, Any], more: dict[str, Any]) -> None:
    """Adds counts to others: of another rank in the same step, or of a later one. Loads that wait count once for all ranks."""
    for name in _LISTS:
        total.setdefault(name, []).extend(more.get(name, []))
    failures = total.setdefault("failures", {})
    for name, n in more.get("failures", {}).items():
        failures[name] = failures.get(name, 0) + n
    total["waiting"] = more.get("waiting", total.get("waiting", 0))


def summary(data: dict[str, Any]) -> dict[str, int | float]:
    """One number for each thing that a person wants to know."""
    seconds = sorted(data.get("seconds", []))
    return {
        "loads": len(seconds), "MB": round(sum(data.get("bytes", [])) / 1e6, 1), "blocks": sum(data.get("blocks", [])),
        "operations": sum(data.get("operations", [])), "tokens": sum(data.get("tokens", [])),
        "median ms": round(seconds[len(seconds) // 2] * 1e3, 1) if seconds else 0,
        "longest ms": round(seconds[-1] * 1e3, 1) if seconds else 0,
        "failures": sum(data.get("failures", {}).values()), "waiting": data.get("waiting", 0),
    }


def sentence(data: dict[str, Any]) -> str:
    """The same as a part of a log line, with the names of errors."""
    counts = summary(data)
    failures = ", ".join(f"{name} {n}" for name, n in sorted(data["failures"].items()))
    return (f"{counts['loads']} loads of {counts['tokens']} tokens ({counts['blocks']} blocks, {counts['MB']} MB) in a median of "
            f"{counts['median ms']} ms, at most {counts['longest ms']} ms; {counts['waiting']} waiting; "
            f"failures: {failures or 'none'}")
