# SPDX-License-Identifier: Apache-2.0
from typing import Any
from vllm.config import VllmConfig

class MultiModalBudget:
    mm_max_toks_per_item: dict[str, int]
    def __init__(self, vllm_config: VllmConfig, mm_registry: Any, *, enable_cache: bool = ...) -> None: ...
