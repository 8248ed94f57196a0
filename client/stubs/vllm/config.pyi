# SPDX-License-Identifier: Apache-2.0
from typing import Any

class ParallelConfig:
    rank: int
    distributed_executor_backend: str | None
    world_size: int
    data_parallel_size: int
    tensor_parallel_size: int
    pipeline_parallel_size: int

class SchedulerConfig:
    async_scheduling: bool | None
    max_num_batched_tokens: int

class KVEventsConfig:
    enable_kv_cache_events: bool

class KVTransferConfig:
    engine_id: str | None
    kv_connector_extra_config: dict[str, Any]
    is_kv_producer: bool
    is_kv_consumer: bool

class ECTransferConfig:
    engine_id: str | None
    ec_buffer_size: float
    ec_connector_extra_config: dict[str, Any]
    ec_role: str | None
    is_ec_producer: bool
    is_ec_consumer: bool
    mm_encoder_output_widths: dict[str, int]

class EncoderCacheManagerConfig:
    encoder_cache_manager_cls: str | None
    manager_config: dict[str, Any]

class DeviceConfig:
    device_type: str

class VllmConfig:
    model_config: Any
    cache_config: Any
    parallel_config: ParallelConfig
    scheduler_config: SchedulerConfig
    kv_transfer_config: KVTransferConfig
    kv_events_config: KVEventsConfig | None
    ec_transfer_config: ECTransferConfig
    ec_manager_config: EncoderCacheManagerConfig
    device_config: DeviceConfig
    load_config: Any
