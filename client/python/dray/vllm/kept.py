# SPDX-License-Identifier: Apache-2.0
"""Blocks that stay allocated although no request of the engine has them any more, because an agent may still touch them."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any

from .. import errors

__all__ = ["Kept"]


class Kept:
    """References of the connector's own to blocks of the engine's pool, by a key for each use."""

    def __init__(self) -> None:
        self._blocks: dict[Hashable, list[Any]] = {}
        self.kv_cache_manager: Any = None  # the engine's, once it has given it to the connector

    def __len__(self) -> int:
        return len(self._blocks)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._blocks

    @property
    def blocks(self) -> int:
        """References that are kept."""
        return sum(map(len, self._blocks.values()))

    @property
    def alone(self) -> bool:
        """True if a block becomes free with the end of a reference."""
        return any(block.ref_cnt == 1 for blocks in self._blocks.values() for block in blocks)

    def check(self) -> None:
        """errors.Unsupported: the engine has not given its bookkeeping to the connector."""
        if self.kv_cache_manager is None:
            raise errors.Unsupported("this version of vLLM has not given the connector its bookkeeping of blocks",
                                     fix="Use a version of vLLM that docs/vllm.md names, or the mode 'pull'.")

    def keep(self, key: Hashable, blocks: Iterable[Any]) -> None:
        """Takes a reference to each of the engine's block objects. The key must be new."""
        assert key not in self._blocks
        kept = [block for block in blocks if not block.is_null]
        self.kv_cache_manager.block_pool.touch(kept)
        self._blocks[key] = kept

    def free(self, key: Hashable) -> list[Any]:
        """Gives the references of a key back; nothing happens if there are none. Returns the blocks."""
        blocks = self._blocks.pop(key, [])
        if blocks:
            self.kv_cache_manager.block_pool.free_blocks(reversed(blocks))
        return blocks
