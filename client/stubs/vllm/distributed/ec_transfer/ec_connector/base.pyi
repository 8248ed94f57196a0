# SPDX-License-Identifier: Apache-2.0
import enum
from typing import Any
from vllm.config import VllmConfig

class ECConnectorRole(enum.Enum):
    SCHEDULER = 0
    WORKER = 1

class ECConnectorBase:
    is_producer: bool
    is_consumer: bool
    def __init__(self, vllm_config: VllmConfig, role: ECConnectorRole) -> None: ...
    def bind_connector_metadata(self, connector_metadata: Any) -> None: ...
    def clear_connector_metadata(self) -> None: ...
