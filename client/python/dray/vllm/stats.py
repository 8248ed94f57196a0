# SPDX-License-Identifier: Apache-2.0
"""Counts of loads: for the engine's statistics, Prometheus, and a log line each minute."""

from __future__ import annotations

from typing import Any

__all__ = ["Stats", "add", "summary"]

_LISTS = ("seconds", "bytes", "tokens")


class Stats:
    """What has ended since the last take(). Each load is one entry of the lists seconds, bytes and tokens."""

    def __init__(self) -> None:
        self._data = new()

    def loaded(self, nbytes: int, tokens: int, seconds: float) -> None:
        """A load that succeeded."""
        for name, value in (("bytes", nbytes), ("tokens", tokens), ("seconds", seconds)):
            self._data[name].append(value)

    def failed(self, name: str) -> None:
        """A load that failed. name: of the error."""
        self._data["failures"][name] = self._data["failures"].get(name, 0) + 1

    def take(self, waiting: int = 0) -> dict[str, Any] | None:
        """The counts since the last call, as a dictionary for JSON; None if nothing has ended."""
        if not (self._data["seconds"] or self._data["failures"]):
            return None
        data, self._data = self._data, new()
        data["waiting"] = waiting
        return data


def new() -> dict[str, Any]:
    """Counts of nothing."""
    return {"seconds": [], "bytes": [], "tokens": [], "failures": {}, "waiting": 0}


def add(total: dict[str, Any], more: dict[str, Any]) -> None:
    """Adds counts to others."""
    for name in _LISTS:
        total[name] = total.get(name, []) + more.get(name, [])
    failures = total.setdefault("failures", {})
    for name, n in more.get("failures", {}).items():
        failures[name] = failures.get(name, 0) + n
    total["waiting"] = max(total.get("waiting", 0), more.get("waiting", 0))


def summary(data: dict[str, Any]) -> dict[str, int | float]:
    """One number for each thing that a person wants to know."""
    seconds, nbytes = sorted(data.get("seconds", [])), sum(data.get("bytes", []))
    return {
        "loads": len(seconds), "MB": round(nbytes / 1e6, 1), "tokens": sum(data.get("tokens", [])),
        "median ms": round(seconds[len(seconds) // 2] * 1e3, 1) if seconds else 0,
        "longest ms": round(seconds[-1] * 1e3, 1) if seconds else 0,
        "failures": sum(data.get("failures", {}).values()), "waiting": data.get("waiting", 0),
    }
