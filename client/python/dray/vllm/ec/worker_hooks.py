# SPDX-License-Identifier: Apache-2.0
"""The hooks of vLLM's workers that connectors of encoder outputs have in common: they pass them on to the worker side."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any

from vllm.distributed.ec_transfer.ec_connector.base import ECConnectorBase, ECConnectorRole

from .protocol import StepMetadata, WorkerMetadata
from .worker import WorkerSide

if TYPE_CHECKING:
    from torch import Tensor
    from vllm.config import VllmConfig

__all__ = ["WorkerHooks"]


class WorkerHooks(ECConnectorBase):
    """At the scheduler side they do nothing."""

    def __init__(self, vllm_config: VllmConfig, role: ECConnectorRole) -> None:
        super().__init__(vllm_config, role)
        self._worker: WorkerSide | None = None
        if role is ECConnectorRole.WORKER:
            self._worker = WorkerSide(vllm_config.model_config.dtype, vllm_config.device_config.device_type,
                                      saves=vllm_config.parallel_config.rank == 0)

    def bind_connector_metadata(self, connector_metadata: Any) -> None:
        super().bind_connector_metadata(connector_metadata)
        if self._worker is not None and isinstance(connector_metadata, StepMetadata):
            self._worker.step(connector_metadata)

    def clear_connector_metadata(self) -> None:
        super().clear_connector_metadata()
        if self._worker is not None:
            self._worker.end()

    def start_save_caches(self, **kwargs: Any) -> None:
        """An output that was evicted and allocated again in one schedule() is still there, and model runner V2 does not compute it anew."""
        if self._worker is not None and self.is_producer:
            self._worker.save_known(kwargs.get("encoder_cache") or {})

    def save_caches(self, encoder_cache: MutableMapping[str, Tensor], mm_hash: str, **kwargs: Any) -> None:
        if self._worker is not None and self.is_producer:
            self._worker.save(encoder_cache, mm_hash)

    def start_load_caches(self, encoder_cache: MutableMapping[str, Tensor], **kwargs: Any) -> None:
        if self._worker is not None and self.is_consumer:
            self._worker.load(encoder_cache)

    def build_connector_worker_meta(self) -> WorkerMetadata | None:
        return self._worker.take_metadata() if self._worker is not None else None

    def shutdown(self) -> None:
        if self._worker is not None:
            self._worker.close()
