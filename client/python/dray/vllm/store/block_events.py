# SPDX-License-Identifier: Apache-2.0
"""vLLM's KV-cache events of the blocks in the store: for routers that send a request to an engine that need not compute it.

A block is stored when this engine has put it, or has found it there when it was to put it. It is removed when a question or a load
does not find it any more: the store does not tell what it evicts, so that this may be long after.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_events import MEDIUM_STORAGE, BlockRemoved, BlockStored, KVCacheEvent
from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash

from ..layout import Group

if TYPE_CHECKING:
    from vllm.v1.request import Request

__all__ = ["BlockEvents"]

_OWNER = "dray"


class BlockEvents:
    """Of one engine. hash_of: of a request, for each block of a group; see hashing.py. most: blocks that are about to be saved."""

    def __init__(self, groups: Sequence[Group], hash_of: Callable[[Request, int, int], bytes | None], most: int) -> None:
        self._groups, self._hash_of, self._most = groups, hash_of, most
        self._described: dict[tuple[int, bytes], BlockStored] = {}  # in order
        self._events: list[KVCacheEvent] = []

    def describe(self, request: Request, group: int, index: int, block_hash: bytes) -> None:
        """A block of a request is going to be saved."""
        tokens = self._groups[group].tokens
        before = self._hash_of(request, group, index - 1) if index else None
        if len(self._described) >= self._most:
            del self._described[next(iter(self._described))]
        self._described[group, block_hash] = BlockStored(
            block_hashes=[_converted(block_hash)], parent_block_hash=None if before is None else _converted(before),
            token_ids=list(request.all_token_ids[index * tokens:(index + 1) * tokens]), block_size=tokens, lora_id=None, lora_name=None,
            medium=MEDIUM_STORAGE, group_idx=group, ownership=_OWNER)

    def stored(self, group: int, block_hash: bytes) -> None:
        """The store has the block."""
        event = self._described.pop((group, block_hash), None)
        if event is not None:
            self._events.append(event)

    def removed(self, group: int, block_hash: bytes) -> None:
        """The store does not have it any more."""
        self._events.append(BlockRemoved(block_hashes=[_converted(block_hash)], medium=MEDIUM_STORAGE, group_idx=group, ownership=_OWNER))

    def take(self) -> list[KVCacheEvent]:
        """The events since the last call."""
        events, self._events = self._events, []
        return events


def _converted(block_hash: bytes) -> Any:
    """As in the events of the engine's own cache."""
    return maybe_convert_block_hash(block_hash)
