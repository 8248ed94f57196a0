# SPDX-License-Identifier: Apache-2.0
"""Counts of the encoder cache: for the engine's statistics, Prometheus, and a log line each minute."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from ..counted import Tally

__all__ = ["TEXTS", "Stats", "add", "is_empty", "new", "sentence", "summary"]

TEXTS = {
    "device_hits": "Outputs that a request found in the device's cache.",
    "promoted": "Outputs that were loaded from the host tier, and stay in the device's cache.",
    "passed": "Outputs that were loaded from the host tier, and leave the device's cache before others.",
    "encoded": "Outputs that the encoder had to compute.",
    "device_evictions": "Outputs that were evicted from the device's cache.",
    "host_evictions": "Outputs that were evicted from the host tier.",
    "host_refused": "New outputs for which the host tier had no room.",
    "host_unsaved": "New outputs that the workers did not copy to the host tier.",
    "saved_seconds": "Time of the encoder that hits have saved, by a nominal speed.",
    "encoded_seconds": "Time of the encoder for outputs that were computed, by the same speed.",
}


class Stats(Tally):
    """What has happened since the last take()."""

    def __init__(self, report: Callable[[dict[str, Any]], None] = lambda data: None) -> None:
        super().__init__(sys.modules[__name__], report)

    def count(self, **more: float) -> None:
        """Adds to counts."""
        for data in (self._data, self._minute):
            for name, n in more.items():
                data[name] += n


def new() -> dict[str, Any]:
    """Counts of nothing."""
    return dict.fromkeys(TEXTS, 0)


def is_empty(data: dict[str, Any]) -> bool:
    """True if nothing has happened."""
    return not any(data.get(name) for name in TEXTS)


def add(total: dict[str, Any], more: dict[str, Any]) -> None:
    """Adds counts to others."""
    for name in TEXTS:
        total[name] = total.get(name, 0) + more.get(name, 0)


def summary(data: dict[str, Any]) -> dict[str, int | float]:
    """One number for each thing that a person wants to know."""
    counts: dict[str, int | float] = {name.replace("_", " "): data.get(name, 0) for name in TEXTS if not name.endswith("seconds")}
    seconds = data.get("saved_seconds", 0) + data.get("encoded_seconds", 0)
    counts["saved %"] = round(100 * data.get("saved_seconds", 0) / seconds, 1) if seconds else 0
    return counts


def sentence(data: dict[str, Any]) -> str:
    """The same as a part of a log line."""
    counts = summary(data)
    return (f"{counts['device hits']} hits on the device, {counts['promoted']} promoted and {counts['passed']} passed from the host tier, "
            f"{counts['encoded']} encoded ({counts['saved %']} % of the encoder's time saved); evicted: {counts['device evictions']} from the "
            f"device, {counts['host evictions']} from the host tier; not copied to the host tier: "
            f"{counts['host refused'] + counts['host unsaved']}")
