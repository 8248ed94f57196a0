# SPDX-License-Identifier: Apache-2.0
"""Connectors for vLLM. The engine loads them by

    --kv-transfer-config '{"kv_connector": "DrayConnector", "kv_connector_module_path": "dray.vllm", "kv_role": "kv_both"}'

Importing this package needs nothing; its modules need numpy, and those that the engine loads need torch and vllm.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .connector import DrayConnector

__all__ = ["DrayConnector"]


def __getattr__(name: str) -> Any:
    if name == "DrayConnector":
        from .connector import DrayConnector

        return DrayConnector
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
