# SPDX-License-Identifier: Apache-2.0
from typing import Any

class KVCacheConfig:
    num_blocks: int
    kv_cache_groups: list[Any]
