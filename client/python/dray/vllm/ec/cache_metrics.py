# SPDX-License-Identifier: Apache-2.0
"""The counts of the encoder cache in the forms that vLLM asks for: a log line, and Prometheus."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from vllm.distributed.ec_transfer.ec_connector.metrics import ECConnectorPromMetrics, ECConnectorStats

from .. import counted
from . import cache_stats

if TYPE_CHECKING:
    from vllm.config import VllmConfig

__all__ = ["DrayECCachePromMetrics", "DrayECCacheStats"]


@dataclass
class DrayECCacheStats(counted.Counted, ECConnectorStats):
    """What has happened in an interval."""

    counts: ClassVar[Any] = cache_stats


class DrayECCachePromMetrics(counted.PerEngine, ECConnectorPromMetrics):
    """A counter for each count."""

    def __init__(self, vllm_config: VllmConfig, metric_types: dict[Any, Any], labelnames: list[str],
                 per_engine_labelvalues: dict[int, list[object]]) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._labels = per_engine_labelvalues
        self._counts = {name: self._for_engines(self._counter_cls(
            name=f"vllm:dray_ec_cache_{name}", documentation=text, labelnames=labelnames)) for name, text in cache_stats.TEXTS.items()}

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        """Adds the counts of an interval."""
        for name, metric in self._counts.items():
            metric[engine_idx].inc(transfer_stats_data.get(name, 0))
