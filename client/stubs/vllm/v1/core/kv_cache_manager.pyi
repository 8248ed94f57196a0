# SPDX-License-Identifier: Apache-2.0
from typing import Any

class KVCacheBlocks:
    blocks: tuple[Any, ...]
    def get_block_ids(self) -> tuple[list[int], ...]: ...

class KVCacheManager:
    block_pool: Any
    def get_block_ids(self, request_id: str) -> tuple[list[int], ...]: ...
    def get_blocks(self, request_id: str) -> KVCacheBlocks: ...
