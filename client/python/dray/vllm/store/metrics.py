# SPDX-License-Identifier: Apache-2.0
"""The counts of DrayStoreConnector in the forms that vLLM asks for: a log line, and Prometheus."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats

from ..counted import Counted, PerEngine
from . import stats

if TYPE_CHECKING:
    from vllm.config import VllmConfig

__all__ = ["StorePromMetrics", "StoreStats"]

_SECONDS = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30)
_TEXTS = {
    "lookup_seconds": "Time in which a request learns what the store has for it.",
    "load_seconds": "Time of a load from the store, from its start to its end.",
    "save_seconds": "Time of a save to the store, from its start to its end.",
    "asked_tokens": "Tokens behind the engine's own cache that the store was asked for.",
    "hit_tokens": "Tokens of these that the store has.",
    "loaded_tokens": "Tokens whose blocks were loaded, counted at each rank.",
    "loaded_blocks": "Blocks that were loaded.",
    "loaded_bytes": "Bytes that were loaded.",
    "saved_blocks": "Blocks that were saved.",
    "saved_bytes": "Bytes that were saved.",
    "existing_blocks": "Blocks that were to be saved, and that the store had already.",
    "load_failures": "Loads that failed, by the name of the error.",
    "dropped_blocks": "Blocks that were to be saved, and were not, by the reason.",
}


@dataclass
class StoreStats(Counted, KVConnectorStats):
    """What has ended in an interval."""

    counts: ClassVar[Any] = stats


class StorePromMetrics(PerEngine, KVConnectorPromMetrics):
    """Histograms of times, and counters of everything else."""

    def __init__(self, vllm_config: VllmConfig, metric_types: dict[Any, Any], labelnames: list[str],
                 per_engine_labelvalues: dict[int, list[object]]) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._labels = per_engine_labelvalues
        self._times = {name: self._for_engines(self._histogram_cls(
            name=f"vllm:dray_store_{name}", documentation=_TEXTS[name], buckets=_SECONDS, labelnames=labelnames)) for name in stats.TIMES}
        self._counts = {name: self._for_engines(self._counter_cls(
            name=f"vllm:dray_store_{name}", documentation=_TEXTS[name], labelnames=labelnames)) for name in stats.COUNTS}
        self._named = {name: self._counter_cls(name=f"vllm:dray_store_{name}", documentation=_TEXTS[name], labelnames=[*labelnames, label])
                       for name, label in zip(stats.NAMED, ("error", "reason"), strict=True)}

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        """Adds the counts of an interval."""
        for name, metric in self._times.items():
            for value in transfer_stats_data.get(name, []):
                metric[engine_idx].observe(value)
        for name, metric in self._counts.items():
            metric[engine_idx].inc(transfer_stats_data.get(name, 0))
        for name, of_name in self._named.items():
            for key, n in transfer_stats_data.get(name, {}).items():
                of_name.labels(*self._labels[engine_idx], key).inc(n)
