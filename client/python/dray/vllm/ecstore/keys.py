# SPDX-License-Identifier: Apache-2.0
"""Keys of encoder outputs in the store: all that decides about the bytes of an object, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping

from ... import errors
from ..ec.header import MAGIC
from ..ec.pool import Shape
from ..store.keys import Root, key, make_root
from ..store.weights import Weights

__all__ = ["Keys"]


class Keys:
    """For one engine. fields: of its model. weights: whose identity is known some time after the engine's start."""

    def __init__(self, fields: Mapping[str, str], weights: Weights) -> None:
        self._fields, self._weights = fields, weights
        self._root: Root | None = None

    @property
    def known(self) -> bool:
        """True when keys can be made, or never will be."""
        return self._weights.text is not None or self._weights.error is not None

    @property
    def error(self) -> errors.Error | None:
        """Why no key can be made now."""
        if self._weights.text is not None:
            return None
        return errors.NotFound(self._weights.error or "the digest of the weights is not known yet",
                               fix="Set the option 'weights' to a text that no other weights have.")

    def of(self, shape: Shape) -> bytes:
        """The key of an output. Without error()."""
        if self._root is None:
            self._root = make_root({**self._fields, "object": f"encoder output {MAGIC.decode()}", "weights": str(self._weights.text)}, "")
        return key(self._root, f"{shape.rows} x {shape.width}", shape.digest)
