# SPDX-License-Identifier: Apache-2.0
from typing import Any

class ParallelConfig:
    rank: int
    world_size: int
    data_parallel_size: int
    tensor_parallel_size: int
    pipeline_parallel_size: int

class SchedulerConfig:
    async_scheduling: bool | None

class KVTransferConfig:
    engine_id: str | None
    kv_connector_extra_config: dict[str, Any]
    is_kv_producer: bool
    is_kv_consumer: bool

class DeviceConfig:
    device_type: str

class VllmConfig:
    model_config: Any
    cache_config: Any
    parallel_config: ParallelConfig
    scheduler_config: SchedulerConfig
    kv_transfer_config: KVTransferConfig
    device_config: DeviceConfig
