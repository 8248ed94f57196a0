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
