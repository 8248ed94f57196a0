# SPDX-License-Identifier: Apache-2.0
"""DrayECConnector: the class that vLLM loads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...client import Client
from ..agent import find
from ..options import Options
from ..sessions import connect
from . import budget
from .consumer import ConsumerSide
from .hooks import EncoderConnector, Parts, model_fields
from .media import Media
from .producer import ProducerSide
from .secret import Secret

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.distributed.ec_transfer.ec_connector.base import ECConnectorRole

__all__ = ["DrayECConnector"]

_OPTIONS = ("agent", "deadline", "devices", "key_file", "lease", "pool_device", "secret_file", "socket", "transport")


class DrayECConnector(EncoderConnector):
    """Moves outputs of encoders between engines through dray's agents."""

    _in_pieces = True

    def __init__(self, vllm_config: VllmConfig, role: ECConnectorRole) -> None:
        self._options = Options.parse(vllm_config.ec_transfer_config.ec_connector_extra_config, "ec_connector_extra_config",
                                      "DrayECConnector", _OPTIONS)
        self._secret = Secret.read(self._options.secret_file) if self._options.secret_file else None
        super().__init__(vllm_config, role)

    def _connect(self) -> Client:
        self._agent = find(self._options, self._engine_id)
        return connect(self._agent.socket, self._engine_id, "encoder outputs", self._options.deadline, notifications=self.is_producer, family="vllm-ec")

    def _pool_device(self) -> str:
        return self._options.pool_device

    def _end(self) -> None:
        if hasattr(self, "_agent"):
            self._agent.close()

    def _make(self, parts: Parts) -> ProducerSide | ConsumerSide:
        model = model_fields(self._config)
        if self.is_producer:
            return ProducerSide(self._options, parts.client, parts.region, parts.memory, parts.pool, self._engine_id, model, parts.rest,
                                width=self._width, itemsize=parts.itemsize, secret=self._secret)
        return ConsumerSide(self._options, parts.client, parts.region, parts.memory, parts.pool, model, parts.rest,
                            widths=budget.widths(self._config), itemsize=parts.itemsize,
                            can_encode=Media(self._config).can_encode, secret=self._secret)
