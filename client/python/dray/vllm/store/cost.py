# SPDX-License-Identifier: Apache-2.0
"""What it costs to compute a block again, which is its value to the store's eviction.

The time of the engine's device is not known here, and only the proportions of one name space count. So the operations are
counted, and divided by a nominal speed. Attention to all tokens before makes a block dearer the later it comes.
"""

from __future__ import annotations

from typing import Any

__all__ = ["Cost"]

_SPEED = 1e14  # operations a second


class Cost:
    """Of one model."""

    def __init__(self, config: Any) -> None:
        """config: of the text part of the model, in the terms of Hugging Face."""
        layers, hidden = _number(config, "num_hidden_layers", 1), _number(config, "hidden_size", 1)
        heads = _number(config, "num_attention_heads", 1)
        width = heads * _number(config, "head_dim", hidden // heads or 1)
        inner = _number(config, "intermediate_size", 4 * hidden)
        self._each = 2.0 * layers * (4 * hidden * width + 3 * hidden * inner)
        self._pair = 4.0 * layers * width

    def seconds(self, first: int, tokens: int) -> float:
        """Of a block with so many tokens, from the token `first` on."""
        return tokens * (self._each + self._pair * (first + tokens / 2)) / _SPEED


def _number(config: Any, name: str, default: int) -> int:
    value = getattr(config, name, None)
    return value if isinstance(value, int) and value > 0 else default
