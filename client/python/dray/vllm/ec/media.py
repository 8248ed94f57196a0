# SPDX-License-Identifier: Apache-2.0
"""Whether an engine can encode an item of a request itself."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vllm.config import VllmConfig

__all__ = ["Media"]

_logger = logging.getLogger("vllm.dray")


class Media:
    """For one engine. A router may send an item without its image: as the numbers from which the engine lays out the prompt, and
    others that stay in host memory."""

    def __init__(self, config: VllmConfig) -> None:
        self._config = config
        self._fields: dict[str, frozenset[str]] = {}

    def can_encode(self, feature: Any) -> bool:
        """True if the item has more than these, and the engine has an encoder."""
        multimodal = getattr(self._config.model_config, "multimodal_config", None)
        if feature.data is None or getattr(multimodal, "language_model_only", False):
            return False
        layout = self._layout_fields(feature.modality)
        return any(name not in layout and not getattr(getattr(element, "field", None), "keep_on_cpu", False)
                   for name, element in feature.data.items())

    def _layout_fields(self, modality: str) -> frozenset[str]:
        known = self._fields.get(modality)
        if known is None:
            try:
                from vllm.multimodal import MULTIMODAL_REGISTRY

                info = MULTIMODAL_REGISTRY.create_processor(self._config.model_config).info
                known = frozenset(info.data_parser.placeholder_metadata_fields(modality))
            except Exception as e:  # of the model's own code, which may raise anything
                _logger.warning("dray: the fields of %s without media are not known: %r", modality, e)
                known = frozenset()
            self._fields[modality] = known
        return known
