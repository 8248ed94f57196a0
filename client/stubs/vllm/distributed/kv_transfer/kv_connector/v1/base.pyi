# SPDX-License-Identifier: Apache-2.0
import enum
from typing import Any
from vllm.config import VllmConfig
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.kv_cache_interface import KVCacheConfig

class KVConnectorRole(enum.Enum):
    SCHEDULER = 0
    WORKER = 1

class SupportsHMA: ...

class KVConnectorTransferResults:
    finished_sending: set[str]
    finished_recving: set[str]
    failed_recving: set[str]

class KVConnectorBase_V1:
    def __init__(self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig) -> None: ...
    def bind_kv_cache_manager(self, kv_cache_manager: KVCacheManager) -> None: ...
    def _get_connector_metadata(self) -> Any: ...
