# SPDX-License-Identifier: Apache-2.0
from typing import Any

def maybe_convert_block_hash(hash_bytes: bytes) -> Any: ...
