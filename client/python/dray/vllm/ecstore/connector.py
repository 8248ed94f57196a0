# SPDX-License-Identifier: Apache-2.0
"""DrayECStoreConnector: the class that vLLM loads."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ... import errors
from ...client import Client
from ...session import DEFAULT_SOCKET
from ..ec import budget
from ..ec.cost import EncoderCost
from ..ec.hooks import EncoderConnector, Parts, model_fields
from ..ec.media import Media
from ..sessions import connect_store
from ..store import weights
from .consumer import StoreConsumer
from .keys import Keys
from .options import Options
from .producer import StoreProducer

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.distributed.ec_transfer.ec_connector.base import ECConnectorRole

__all__ = ["DrayECStoreConnector"]


class DrayECStoreConnector(EncoderConnector):
    """Keeps outputs of encoders in the store of the agent."""

    def __init__(self, vllm_config: VllmConfig, role: ECConnectorRole) -> None:
        self._options = Options.parse(vllm_config.ec_transfer_config.ec_connector_extra_config)
        _refuse(vllm_config)
        super().__init__(vllm_config, role)

    def _connect(self) -> Client:
        self._weights = weights.of_engine(self._config, self._options.weights)
        socket = self._options.socket or os.environ.get("DRAY_SOCKET") or DEFAULT_SOCKET
        return connect_store(socket, self._engine_id, "encoder outputs", self._options.deadline, self._options.space, family="vllm-ec")

    def _make(self, parts: Parts) -> StoreProducer | StoreConsumer:
        store = parts.client.store(self._options.space)
        config = self._config
        fields = model_fields(config)
        if getattr(config.model_config, "quantization", None):
            fields["quantization"] = str(config.model_config.quantization)
        keys = Keys(fields, self._weights)
        if self.is_producer:
            return StoreProducer(self._options, store, parts, keys, EncoderCost(config.model_config.hf_config), width=self._width)
        return StoreConsumer(self._options, store, parts, keys, width=lambda modality: budget.width_of(config, modality),
                             can_encode=Media(config).can_encode)


def _refuse(config: VllmConfig) -> None:
    media = getattr(config.model_config, "multimodal_config", None)
    if media is not None and media.mm_processor_cache_gb == 0 and not config.cache_config.enable_prefix_caching:
        raise errors.Unsupported("vLLM does not hash the content of images without prefix caching and with mm_processor_cache_gb 0, "
                                 "so that outputs of different images look the same",
                                 fix="Set --mm-processor-cache-gb to more than 0. An engine that encodes alone has no prefix caching.")
    lora = getattr(config, "lora_config", None)
    if lora is not None and getattr(lora, "enable_tower_connector_lora", False):
        raise errors.Unsupported("adapters of the encoder (enable_tower_connector_lora) are known by their names alone, which may be given "
                                 "to others later", fix="Run such an engine without DrayECStoreConnector.")
