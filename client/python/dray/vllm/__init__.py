# SPDX-License-Identifier: Apache-2.0
"""Connectors for vLLM. The engine loads them by

    --kv-transfer-config '{"kv_connector": "DrayConnector", "kv_connector_module_path": "dray.vllm", "kv_role": "kv_both"}'
    --ec-transfer-config '{"ec_connector": "DrayECConnector", "ec_connector_module_path": "dray.vllm", "ec_role": "ec_producer"}'
    --ec-manager-config '{"encoder_cache_manager_cls": "dray.vllm.DrayEncoderCacheManager"}'

Importing this package needs nothing; its modules need numpy, and those that the engine loads need torch and vllm.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .connector import DrayConnector
    from .ec.cache_connector import DrayECCacheConnector
    from .ec.connector import DrayECConnector
    from .ec.manager import DrayEncoderCacheManager
    from .ecstore.connector import DrayECStoreConnector
    from .store.connector import DrayStoreConnector

__all__ = ["DrayConnector", "DrayECCacheConnector", "DrayECConnector", "DrayECStoreConnector", "DrayEncoderCacheManager", "DrayStoreConnector"]


def __getattr__(name: str) -> Any:
    if name == "DrayConnector":
        from .connector import DrayConnector

        return DrayConnector
    if name == "DrayECCacheConnector":
        from .ec.cache_connector import DrayECCacheConnector

        return DrayECCacheConnector
    if name == "DrayEncoderCacheManager":
        from .ec.manager import DrayEncoderCacheManager

        return DrayEncoderCacheManager
    if name == "DrayECConnector":
        from .ec.connector import DrayECConnector

        return DrayECConnector
    if name == "DrayECStoreConnector":
        from .ecstore.connector import DrayECStoreConnector

        return DrayECStoreConnector
    if name == "DrayStoreConnector":
        from .store.connector import DrayStoreConnector

        return DrayStoreConnector
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
