# SPDX-License-Identifier: Apache-2.0
from dataclasses import dataclass
from typing import Any
from vllm.config import VllmConfig

@dataclass
class ECConnectorStats:
    data: dict[str, Any] = ...

class ECConnectorPromMetrics:
    _gauge_cls: Any
    _counter_cls: Any
    _histogram_cls: Any
    def __init__(self, vllm_config: VllmConfig, metric_types: dict[Any, Any], labelnames: list[str],
                 per_engine_labelvalues: dict[int, list[object]]) -> None: ...
