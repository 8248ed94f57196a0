# SPDX-License-Identifier: Apache-2.0
"""Counts of loads of encoder outputs in the forms that vLLM asks for: a log line, and Prometheus."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from vllm.distributed.ec_transfer.ec_connector.metrics import ECConnectorPromMetrics, ECConnectorStats

from .. import stats
from ..counted import Counted, PerEngine
from ..metrics import SECONDS

if TYPE_CHECKING:
    from vllm.config import VllmConfig

__all__ = ["DrayECPromMetrics", "DrayECStats", "summary"]

_BYTES = tuple(float(1 << n) for n in range(10, 29, 2))


def summary(data: dict[str, Any]) -> dict[str, int | float]:
    """One number for each thing that a person wants to know."""
    counts = stats.summary(data)
    return {"loads": counts["loads"], "outputs": counts["blocks"], "embeddings": counts["tokens"], "MB": counts["MB"],
            "median ms": counts["median ms"], "longest ms": counts["longest ms"], "failures": counts["failures"],
            "waiting": counts["waiting"]}


@dataclass
class DrayECStats(Counted, ECConnectorStats):
    """Loads that ended in an interval. An output counts as a block, and an embedding as a token."""

    counts: ClassVar[Any] = stats

    def reduce(self) -> dict[str, int | float]:
        return summary(self.data)


class DrayECPromMetrics(PerEngine, ECConnectorPromMetrics):
    """Histograms of loads, and counts of failures by the name of the error."""

    def __init__(self, vllm_config: VllmConfig, metric_types: dict[Any, Any], labelnames: list[str],
                 per_engine_labelvalues: dict[int, list[object]]) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._labels = per_engine_labelvalues
        self._histograms = {
            name: self._for_engines(self._histogram_cls(
                name=f"vllm:dray_ec_load_{name}", documentation=text, buckets=buckets, labelnames=labelnames))
            for name, text, buckets in (
                ("seconds", "Time of a load of encoder outputs, from its start to its end.", SECONDS),
                ("bytes", "Bytes of a load of encoder outputs.", _BYTES))}
        self._counts = {
            name: self._for_engines(self._counter_cls(
                name=f"vllm:dray_ec_loaded_{called}", documentation=text, labelnames=labelnames))
            for name, called, text in (
                ("blocks", "outputs", "Encoder outputs that were loaded."),
                ("tokens", "embeddings", "Embeddings of encoder outputs that were loaded."))}
        self._waiting = self._for_engines(self._gauge_cls(
            name="vllm:dray_ec_requests_waiting", documentation="Requests that wait for encoder outputs.", labelnames=labelnames,
            multiprocess_mode="mostrecent"))
        self._failures = self._counter_cls(
            name="vllm:dray_ec_failures", documentation="Encoder outputs that could not be loaded, by the name of the error.",
            labelnames=[*labelnames, "error"])

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        """Adds the counts of an interval."""
        for name, metric in self._histograms.items():
            for value in transfer_stats_data.get(name, []):
                metric[engine_idx].observe(value)
        for name, metric in self._counts.items():
            metric[engine_idx].inc(sum(transfer_stats_data.get(name, [])))
        self._waiting[engine_idx].set(transfer_stats_data.get("waiting", 0))
        for error, n in transfer_stats_data.get("failures", {}).items():
            self._failures.labels(*self._labels[engine_idx], error).inc(n)
