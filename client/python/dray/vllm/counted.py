# SPDX-License-Identifier: Apache-2.0
"""What the forms of counts have in common that vLLM asks connectors for: a log line, and Prometheus."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, ClassVar

__all__ = ["Counted", "PerEngine", "Tally"]

_MINUTE = 60.0


class Counted:
    """The methods of vLLM's statistics. counts: the module with new(), add(), summary() and is_empty() of the data."""

    counts: ClassVar[Any]
    data: dict[str, Any]

    def __post_init__(self) -> None:
        if not self.data:
            self.reset()

    def reset(self) -> None:
        self.data = self.counts.new()

    def aggregate(self, other: Any) -> Any:
        self.counts.add(self.data, other.data)
        return self

    def reduce(self) -> dict[str, int | float]:
        numbers: dict[str, int | float] = self.counts.summary(self.data)
        return numbers

    def is_empty(self) -> bool:
        empty: bool = self.counts.is_empty(self.data)
        return empty


class PerEngine:
    """Metrics that have one series for each engine. _labels: values of the labels, by the engine's number."""

    _labels: dict[int, list[object]]

    def _for_engines(self, metric: Any) -> dict[int, Any]:
        """The metric of each engine, by its number."""
        return {engine: metric.labels(*values) for engine, values in self._labels.items()}


class Tally:
    """What has happened since the last take(), and since the last report.

    counts: as of Counted. report: gets the counts of about a minute, if something has happened in it.
    """

    def __init__(self, counts: Any, report: Callable[[dict[str, Any]], None] = lambda data: None) -> None:
        self._counts, self._report = counts, report
        self._data: dict[str, Any] = counts.new()
        self._minute: dict[str, Any] = counts.new()
        self._since = time.monotonic()

    def look(self) -> None:
        """Reports what has happened if a minute has passed."""
        now = time.monotonic()
        if now > self._since + _MINUTE:
            self._since = now
            self.flush()

    def take(self) -> dict[str, Any] | None:
        """The counts since the last call, as a dictionary for JSON; None: nothing has happened."""
        if self._counts.is_empty(self._data):
            return None
        data, self._data = self._data, self._counts.new()
        return data

    def flush(self) -> None:
        """Reports what has happened since the last report, if anything has."""
        data, self._minute = self._minute, self._counts.new()
        if not self._counts.is_empty(data):
            self._report(data)
