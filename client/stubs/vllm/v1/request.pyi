# SPDX-License-Identifier: Apache-2.0
import enum
from typing import Any

class RequestStatus(enum.IntEnum): ...

class Request:
    request_id: str
    status: RequestStatus
    num_prompt_tokens: int
    num_computed_tokens: int
    kv_transfer_params: dict[str, Any] | None
    ec_transfer_params: dict[str, Any] | None
    mm_features: list[Any]
    cache_salt: str | None
    def get_num_encoder_embeds(self, input_id: int) -> int: ...
    num_tokens: int
    num_in_flight_tokens: int
    num_preemptions: int
    block_hashes: list[bytes]
    all_token_ids: Any
    lora_request: Any
    skip_reading_prefix_cache: bool | None
