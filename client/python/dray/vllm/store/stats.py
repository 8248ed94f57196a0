# SPDX-License-Identifier: Apache-2.0
"""Counts of lookups, loads and saves: for the engine's statistics, Prometheus, and a log line each minute."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from ..counted import Tally

__all__ = ["Stats", "add", "is_empty", "new", "sentence", "summary"]

TIMES = ("lookup_seconds", "load_seconds", "save_seconds")
COUNTS = ("asked_tokens", "hit_tokens", "loaded_tokens", "loaded_blocks", "loaded_bytes", "saved_blocks", "saved_bytes", "existing_blocks")
NAMED = ("load_failures", "dropped_blocks")


class Stats(Tally):
    """What has ended since the last take()."""

    def __init__(self, report: Callable[[dict[str, Any]], None] = lambda data: None) -> None:
        super().__init__(sys.modules[__name__], report)

    def lookup(self, asked: int, found: int, seconds: float) -> None:
        """A request's question, of so many tokens."""
        self._count({"lookup_seconds": [seconds], "asked_tokens": asked, "hit_tokens": found})

    def loaded(self, tokens: int, blocks: int, nbytes: int, seconds: float) -> None:
        """A load that succeeded."""
        self._count({"load_seconds": [seconds], "loaded_tokens": tokens, "loaded_blocks": blocks, "loaded_bytes": nbytes})

    def failed(self, name: str) -> None:
        """A load that failed. name: of the error."""
        self._count({"load_failures": {name: 1}})

    def saved(self, blocks: int, nbytes: int, existing: int, seconds: float) -> None:
        """A save that has ended. existing: blocks that the store had already."""
        self._count({"save_seconds": [seconds], "saved_blocks": blocks, "saved_bytes": nbytes, "existing_blocks": existing})

    def dropped(self, why: str, blocks: int) -> None:
        """Blocks that were to be saved, and were not."""
        if blocks:
            self._count({"dropped_blocks": {why: blocks}})

    def _count(self, one: dict[str, Any]) -> None:
        add(self._data, one)
        add(self._minute, one)

    def take(self) -> dict[str, Any] | None:
        self.look()
        return super().take()


def new() -> dict[str, Any]:
    """Counts of nothing."""
    return {**{name: [] for name in TIMES}, **{name: 0 for name in COUNTS}, **{name: {} for name in NAMED}}


def is_empty(data: dict[str, Any]) -> bool:
    """True if nothing has ended."""
    return not any(data.get(name) for name in (*TIMES, *NAMED))


def add(total: dict[str, Any], more: dict[str, Any]) -> None:
    """Adds counts to others. What is in both is changed in place."""
    for name, value in more.items():
        if name in COUNTS:
            total[name] = total.get(name, 0) + value
        elif name in TIMES:
            total.setdefault(name, []).extend(value)
        elif name in NAMED:
            sums = total.setdefault(name, {})
            for key, n in value.items():
                sums[key] = sums.get(key, 0) + n


def summary(data: dict[str, Any]) -> dict[str, int | float]:
    """One number for each thing that a person wants to know."""
    seconds = sorted(data.get("load_seconds", []))
    return {
        "lookups": len(data.get("lookup_seconds", [])), "asked tokens": data.get("asked_tokens", 0), "hit tokens": data.get("hit_tokens", 0),
        "loads": len(seconds), "loaded MB": round(data.get("loaded_bytes", 0) / 1e6, 1),
        "median ms": round(seconds[len(seconds) // 2] * 1e3, 1) if seconds else 0,
        "longest ms": round(seconds[-1] * 1e3, 1) if seconds else 0,
        "saved blocks": data.get("saved_blocks", 0), "saved MB": round(data.get("saved_bytes", 0) / 1e6, 1),
        "failures": sum(data.get("load_failures", {}).values()), "dropped blocks": sum(data.get("dropped_blocks", {}).values()),
    }


def sentence(data: dict[str, Any]) -> str:
    """The same as a part of a log line, with the names of errors."""
    named = [", ".join(f"{key} {n}" for key, n in sorted(data[name].items())) or "none" for name in NAMED]
    counts = ", ".join(f"{name} {n}" for name, n in summary(data).items() if name not in ("failures", "dropped blocks"))
    return f"{counts}; failed loads: {named[0]}; dropped blocks: {named[1]}"
