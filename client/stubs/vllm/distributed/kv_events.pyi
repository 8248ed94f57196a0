# SPDX-License-Identifier: Apache-2.0
from typing import Any

MEDIUM_STORAGE: str

class KVCacheEvent: ...

class BlockStored(KVCacheEvent):
    def __init__(self, *, block_hashes: list[Any], parent_block_hash: Any, token_ids: list[int], block_size: int, lora_id: int | None,
                 medium: str | None, lora_name: str | None, group_idx: int | None = None, ownership: str | None = None) -> None: ...

class BlockRemoved(KVCacheEvent):
    def __init__(self, *, block_hashes: list[Any], medium: str | None, group_idx: int | None = None, ownership: str | None = None) -> None: ...
