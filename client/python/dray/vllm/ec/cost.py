# SPDX-License-Identifier: Apache-2.0
"""What it costs to encode an output again, which is its value in a cache.

The time of the engine's device is not known here, and only proportions count. So the operations of the encoder are counted, and
divided by a nominal speed. Attention makes large images cost more for each embedding, and what a layer takes at least makes very
small ones do so, too. Attention is counted over the whole item: the videos of models that attend to single frames cost less.
"""

from __future__ import annotations

from typing import Any

__all__ = ["EncoderCost"]

_SPEED = 1e14  # operations a second
_LAYER = 5e-5  # seconds that a layer takes at least


class EncoderCost:
    """Of one model. config: of the whole model, in the terms of Hugging Face."""

    def __init__(self, config: Any) -> None:
        thinker = getattr(config, "thinker_config", config)
        encoder = next((found for name in ("vision_config", "audio_config") if (found := getattr(thinker, name, None)) is not None), None)
        self._layers = _number(encoder, ("depth", "num_hidden_layers", "encoder_layers"), 24)
        hidden = _number(encoder, ("embed_dim", "hidden_size", "d_model"), 1024)
        ratio: Any = getattr(encoder, "mlp_ratio", None)
        inner = _number(encoder, ("intermediate_size", "encoder_ffn_dim"), int(hidden * (ratio if _positive(ratio) else 4)))
        self._patches = _number(encoder, ("spatial_merge_size",), 1) ** 2  # that become one embedding
        self._each = 2.0 * self._layers * (4 * hidden * hidden + 2 * hidden * inner)
        self._pair = 4.0 * self._layers * hidden

    def seconds(self, rows: int) -> float:
        """Of an output of so many embeddings."""
        patches = rows * self._patches
        return self._layers * _LAYER + patches * (self._each + self._pair * patches) / _SPEED


def _positive(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0


def _number(config: Any, names: tuple[str, ...], default: int) -> int:
    """The first of these fields that is a number."""
    found = (getattr(config, name, None) for name in names)
    return next((value for value in found if isinstance(value, int) and _positive(value)), default)
