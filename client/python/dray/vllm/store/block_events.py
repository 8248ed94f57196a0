# SPDX-License-Identifier: Apache-2.0
"""vLLM's KV-cache events of the blocks in the store: for routers that send a request to an engine that need not compute it.

A block is stored when this engine has put it, or the store has said that it has it, and was not stored before. It is removed when
the store says to a question or a load that it does not have it any more: it does not tell what it evicts, so that this may be long
after. A load that fails for another reason tells nothing of its blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_events import MEDIUM_STORAGE, BlockRemoved, BlockStored, KVCacheEvent
from vllm.v1.core import kv_cache_utils
from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash

from ..layout import Group
from .recent import Recent

if TYPE_CHECKING:
    from vllm.v1.request import Request

__all__ = ["BlockEvents"]

_OWNER = "dray"
# The engine's own functions for what is hashed besides tokens; None: this version of vLLM does not have them.
_extra_keys_of = getattr(kv_cache_utils, "generate_block_hash_extra_keys", None)
_to_event = getattr(kv_cache_utils, "to_event_extra_keys", list)
_ANNOUNCED = 1 << 18  # blocks, at most, of which it is known that they were stored; others may be stored again


class BlockEvents:
    """Of one engine. hash_of: of a request, for each block of a group; see hashing.py. most: blocks that are about to be saved."""

    def __init__(self, groups: Sequence[Group], hash_of: Callable[[Request, int, int], bytes | None], most: int) -> None:
        self._groups, self._hash_of, self._most = groups, hash_of, most
        self._described: dict[tuple[int, bytes], BlockStored] = {}  # in order
        self._announced = Recent(_ANNOUNCED)
        self._events: list[KVCacheEvent] = []

    def describe(self, request: Request, group: int, index: int, block_hash: bytes) -> None:
        """A block of a request is going to be saved."""
        self._described.pop((group, block_hash), None)  # it is the newest again
        if len(self._described) >= self._most:
            del self._described[next(iter(self._described))]
        self._described[group, block_hash] = self._event(request, group, index, block_hash)

    def _event(self, request: Request, group: int, index: int, block_hash: bytes) -> BlockStored:
        tokens = self._groups[group].tokens
        before = self._hash_of(request, group, index - 1) if index else None
        lora = request.lora_request
        return BlockStored(
            block_hashes=[_converted(block_hash)], parent_block_hash=None if before is None else _converted(before),
            token_ids=list(request.all_token_ids[index * tokens:(index + 1) * tokens]), block_size=tokens,
            lora_id=lora.adapter_id if lora else None, lora_name=lora.name if lora else None,
            medium=MEDIUM_STORAGE, group_idx=group, ownership=_OWNER, **_extra_keys(request, index * tokens, tokens))

    def stored(self, group: int, block_hash: bytes) -> None:
        """The store has a block that was described."""
        event = self._described.pop((group, block_hash), None)
        if event is not None and self._announced.add((group, block_hash)):
            self._events.append(event)

    def found(self, request: Request, group: int, index: int, block_hash: bytes) -> None:
        """The store has a block of a request."""
        if self._announced.add((group, block_hash)):
            self._events.append(self._event(request, group, index, block_hash))

    def removed(self, group: int, block_hash: bytes) -> None:
        """The store does not have a block any more."""
        if (group, block_hash) not in self._announced:
            return
        self._announced.discard((group, block_hash))
        self._events.append(BlockRemoved(block_hashes=[_converted(block_hash)], medium=MEDIUM_STORAGE, group_idx=group, ownership=_OWNER))

    def forget(self) -> None:
        """Another epoch: blocks of the one before are not found any more, nor asked for."""
        self._announced.clear()
        self._described.clear()

    def take(self) -> list[KVCacheEvent]:
        """The events since the last call."""
        events, self._events = self._events, []
        return events


def _extra_keys(request: Request, first: int, tokens: int) -> dict[str, Any]:
    """What the hash of a block has besides its tokens, as in the events of the engine's own cache: images, salt, adapter, embeddings."""
    if _extra_keys_of is None:
        return {}
    keys, _ = _extra_keys_of(request, first, first + tokens, 0)
    return {"extra_keys": _to_event([keys])}


def _converted(block_hash: bytes) -> Any:
    """As in the events of the engine's own cache."""
    return maybe_convert_block_hash(block_hash)
