# SPDX-License-Identifier: Apache-2.0
"""The engine's hashes of blocks, and what decides about them."""

from __future__ import annotations

import hashlib
import importlib
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ... import errors
from ..layout import Group

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.request import Request

__all__ = ["Hashes"]

_logger = logging.getLogger("vllm.dray")


class Hashes:
    """For one engine. The engine hashes every `tokens` tokens; a block of a group consists of one such piece, or of several."""

    def __init__(self, config: VllmConfig, kv_cache_config: Any, groups: Sequence[Group]) -> None:
        """errors.Unsupported: blocks whose ends have no hash."""
        cache = config.cache_config
        self._groups = groups
        self._tokens = int(getattr(kv_cache_config, "hash_block_size", None) or cache.block_size)
        self._algorithm = str(cache.prefix_caching_hash_algo)
        odd = next((group.tokens for group in groups if group.tokens % self._tokens), None)
        if odd is not None:
            raise errors.Unsupported(f"a KV-cache group has blocks of {odd} tokens, and vLLM hashes every {self._tokens} tokens",
                                     fix="Choose block sizes of which each is a multiple of vLLM's unit of hashing (--prefix-match-unit).")
        if not self._algorithm.startswith("sha256"):
            _logger.warning("dray: hashes of %r collide more easily than those of sha256, and differ between processes unless "
                            "PYTHONHASHSEED is set: use sha256 (--prefix-caching-hash-algo) to share blocks", self._algorithm)

    def fields(self) -> dict[str, str]:
        """What decides about the hashes, besides the tokens. Once the engine has chosen its seed."""
        seed = importlib.import_module("vllm.v1.core.kv_cache_utils").get_none_hash_seed()
        return {"hash algorithm": self._algorithm, "hash seed": hashlib.sha256(seed.encode()).hexdigest(), "hashed tokens": str(self._tokens)}

    def among(self, request: Request, group: int, blocks: range) -> Sequence[bytes]:
        """The hashes of a request's blocks, as of() tells them. Those of blocks that are not full are left out."""
        each = self._groups[group].tokens // self._tokens
        hashes: Sequence[bytes] = request.block_hashes
        return hashes[(blocks.start + 1) * each - 1:blocks.stop * each:each]

    def of(self, request: Request, group: int, block: int) -> bytes | None:
        """The hash of a block of a request and all before it; None if it is not full."""
        index = (block + 1) * self._groups[group].tokens // self._tokens - 1
        hashes = request.block_hashes
        return hashes[index] if index < len(hashes) else None
