# SPDX-License-Identifier: Apache-2.0
"""The connector's counts in the forms that vLLM asks for: a log line, and Prometheus."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats

from . import stats
from .counted import Counted, PerEngine

if TYPE_CHECKING:
    from vllm.config import VllmConfig

__all__ = ["SECONDS", "DrayPromMetrics", "DrayStats"]

SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30)
_COUNTS = tuple(float(4 ** n) for n in range(10))
_BYTES = tuple(float(1 << n) for n in range(20, 37, 2))


@dataclass
class DrayStats(Counted, KVConnectorStats):
    """Loads that ended in an interval."""

    counts: ClassVar[Any] = stats


class DrayPromMetrics(PerEngine, KVConnectorPromMetrics):
    """Histograms of loads, and counts of failures by the name of the error."""

    def __init__(self, vllm_config: VllmConfig, metric_types: dict[Any, Any], labelnames: list[str],
                 per_engine_labelvalues: dict[int, list[object]]) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._labels = per_engine_labelvalues
        self._histograms = {
            name: self._for_engines(self._histogram_cls(
                name=f"vllm:dray_load_{name}", documentation=text, buckets=buckets, labelnames=labelnames))
            for name, text, buckets in (
                ("seconds", "Time of a load of KV blocks, from its start to its end.", SECONDS),
                ("bytes", "Bytes of a load of KV blocks.", _BYTES),
                ("blocks", "Blocks of a load, of all KV-cache groups.", _COUNTS),
                ("operations", "Pieces in which this engine's agent read a load.", _COUNTS))}
        self._tokens = self._for_engines(self._counter_cls(
            name="vllm:dray_loaded_tokens", documentation="Tokens whose KV blocks were loaded.", labelnames=labelnames))
        self._waiting = self._for_engines(self._gauge_cls(
            name="vllm:dray_loads_waiting", documentation="Loads that have not ended.", labelnames=labelnames,
            multiprocess_mode="mostrecent"))
        self._failures = self._counter_cls(
            name="vllm:dray_load_failures", documentation="Loads that failed, by the name of the error.",
            labelnames=[*labelnames, "error"])

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        """Adds the counts of an interval."""
        for name, metric in self._histograms.items():
            for value in transfer_stats_data.get(name, []):
                metric[engine_idx].observe(value)
        self._tokens[engine_idx].inc(sum(transfer_stats_data.get("tokens", [])))
        self._waiting[engine_idx].set(transfer_stats_data.get("waiting", 0))
        for error, n in transfer_stats_data.get("failures", {}).items():
            self._failures.labels(*self._labels[engine_idx], error).inc(n)
