# SPDX-License-Identifier: Apache-2.0
"""DrayStoreConnector: the class that vLLM loads. It makes the side that its role asks for, and passes the hooks on."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.base import (KVConnectorBase_V1, KVConnectorRole,
                                                               KVConnectorTransferResults, SupportsHMA)

from ... import errors
from ...client import Client
from ...session import DEFAULT_SOCKET
from ...store import Store
from .. import compat, kernels
from ..rest import Rest
from ..sessions import connect_store
from ..siblings import shared_pool
from ..worker import layout_of
from . import specs, weights
from .cost import Cost
from .hashing import Hashes
from .objects import Objects
from .options import Options
from .protocol import StepMetadata, StoreRank, WorkerMetadata
from .scheduler import SchedulerSide
from .worker import WorkerSide

if TYPE_CHECKING:
    from torch import Tensor
    from vllm.config import VllmConfig
    from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks, KVCacheManager
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request

__all__ = ["DrayStoreConnector"]

_logger = logging.getLogger("vllm.dray")
_DEVICES = ("cpu", "cuda")


class DrayStoreConnector(KVConnectorBase_V1, SupportsHMA):
    """Keeps KV blocks in the store of the agent, and loads them from there instead of computing them.

    Hooks of vLLM that are not here do what the base class does.
    """

    def __init__(self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self._config, self._cache_config = vllm_config, kv_cache_config
        self._options = Options.parse(vllm_config.kv_transfer_config.kv_connector_extra_config)
        _refuse(vllm_config)
        self._groups = specs.groups(kv_cache_config)  # refuses what cannot be copied, before any memory is allocated
        self._scheduler: SchedulerSide | None = None
        self._worker: WorkerSide | None = None
        self._pool: Any = None  # which the KV cache is allocated from, if not by the engine
        if role is KVConnectorRole.SCHEDULER:
            self._scheduler = self._start_scheduler()

    def _connect(self, what: str) -> tuple[Client, Store]:
        """A session with the agent, which has a store that this engine may use."""
        options = self._options
        client = connect_store(options.socket or os.environ.get("DRAY_SOCKET") or DEFAULT_SOCKET,
                               str(self._config.kv_transfer_config.engine_id), what, options.deadline, options.space)
        return client, client.store(options.space)

    def _start_scheduler(self) -> SchedulerSide:
        config, transfer = self._config, self._config.kv_transfer_config
        if self._options.save == "eviction" and not config.cache_config.enable_prefix_caching:
            raise errors.Unsupported("save 'eviction' saves what the engine's own cache loses, and it has none without prefix caching",
                                     fix="Leave prefix caching on (--enable-prefix-caching), or set the option 'save' to 'always'.")
        hashes = Hashes(config, self._cache_config, self._groups)
        identity = weights.of_engine(config, self._options.weights)
        client, store = self._connect("scheduler")
        if getattr(transfer, "kv_load_failure_policy", "recompute") == "fail":
            _logger.warning("dray: kv_load_failure_policy is 'fail': a load that fails ends its request with an error. "
                            "Set it to 'recompute' to compute such a request instead")
        text_config = getattr(config.model_config, "hf_text_config", None) or config.model_config.hf_config
        side = SchedulerSide(
            self._options, client, store, self._groups, hashes, identity, Cost(text_config), Rest(compat.waits_for_each_step(config)),
            fields_of(config), world_size=config.parallel_config.world_size, blocks=self._cache_config.num_blocks,
            step_tokens=config.scheduler_config.max_num_batched_tokens,
            loads=transfer.is_kv_consumer, saves=transfer.is_kv_producer)
        if config.kv_events_config is not None and config.kv_events_config.enable_kv_cache_events:
            from .block_events import BlockEvents

            side.send_events(BlockEvents(self._groups, hashes.of, self._cache_config.num_blocks))
        return side

    @classmethod
    def get_required_kvcache_layout(cls, vllm_config: VllmConfig) -> str | None:
        """On a GPU, a block that is contiguous over all layers: one range an object. CPU backends have one layout only."""
        wanted = Options.parse(vllm_config.kv_transfer_config.kv_connector_extra_config).layout == "block"
        return "BLHNC" if wanted and vllm_config.device_config.device_type == "cuda" else None

    @property
    def requires_kv_delivery(self) -> bool:
        """A save that is dropped costs a later hit, and nothing else."""
        return False

    # --- scheduler side -----------------------------------------------------------------------------

    def bind_kv_cache_manager(self, kv_cache_manager: KVCacheManager) -> None:
        super().bind_kv_cache_manager(kv_cache_manager)
        if self._scheduler is not None:
            self._scheduler.bind(kv_cache_manager)

    def set_xfer_handshake_metadata(self, metadata: dict[int, Any]) -> None:
        self._add_ranks(metadata.values())

    def set_xfer_handshake_metadata_pp_aware(self, metadata: dict[tuple[int, int], Any]) -> None:
        self._add_ranks(metadata.values())

    def _add_ranks(self, infos: Iterable[Any]) -> None:
        assert self._scheduler is not None
        # MultiConnector passes what the workers of one child say to all children
        self._scheduler.add_ranks(info for info in infos if isinstance(info, StoreRank))

    def on_new_request(self, request: Request) -> None:
        assert self._scheduler is not None
        self._scheduler.expect(request)

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int | None, bool]:
        assert self._scheduler is not None
        return self._scheduler.match(request, num_computed_tokens)

    def update_state_after_alloc(self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int) -> None:
        assert self._scheduler is not None
        self._scheduler.allocated(request, blocks, num_external_tokens)

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> StepMetadata:
        assert self._scheduler is not None
        return self._scheduler.build_metadata(scheduler_output)

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        assert self._scheduler is not None
        self._scheduler.take_output(connector_output)

    def request_finished(self, request: Request, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        return self.request_finished_all_groups(request, (block_ids,))

    def request_finished_all_groups(self, request: Request,
                                    block_ids: Sequence[list[int]]) -> tuple[bool, dict[str, Any] | None]:
        assert self._scheduler is not None
        self._scheduler.finished(request)
        return False, None

    def reset_cache(self) -> bool | None:
        return self._scheduler.reset() if self._scheduler is not None else None

    def take_events(self) -> Iterable[Any]:
        return self._scheduler.take_events() if self._scheduler is not None else ()

    def has_pending_block_frees(self) -> bool:
        return self._scheduler is not None and self._scheduler.frees_blocks

    def has_pending_push_work(self) -> bool:
        return self._scheduler is not None and self._scheduler.busy

    # --- worker side --------------------------------------------------------------------------------

    def get_mem_pool_context(self) -> AbstractContextManager[Any] | None:
        from ..memory import make_pool  # which needs torch

        if self._pool is None and self._options.pool:
            device = self._config.device_config.device_type
            self._pool, first = shared_pool(self._config, lambda: make_pool(device))
            if not first:
                return None  # a DrayConnector has returned it, and MultiConnector takes one
        pool: AbstractContextManager[Any] | None = self._pool
        return pool

    def register_kv_caches(self, kv_caches: dict[str, Tensor]) -> None:
        from vllm.distributed.parallel_state import get_tensor_model_parallel_rank

        from ..memory import share

        shared = share(kv_caches, self._pool)
        layout, groups = layout_of(self._config, self._cache_config, shared.offsets, kv_caches, rank=self._config.parallel_config.rank,
                                   tp_rank=get_tensor_model_parallel_rank(), length=shared.length)
        client, store = self._connect(f"rank {layout.rank}")
        self._worker = WorkerSide(client, shared.add(client), store,
                                  Objects(layout, groups, kernels.arrangements(self._config, self._cache_config), self._options.parts), layout.rank,
                                  self._options.deadline, self._options.log)
        _logger.info("dray: rank %d: %d MB of KV cache are shared with the agent at %s, whose store keeps its blocks", layout.rank,
                     shared.length // 10**6, client.path)

    def get_handshake_metadata(self) -> Any:
        return self._worker.info() if self._worker is not None else None

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        metadata = self._get_connector_metadata()
        if self._worker is not None and isinstance(metadata, StepMetadata):
            self._worker.step(metadata)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Loads end before their request is scheduled."""

    def save_kv_layer(self, layer_name: str, kv_layer: Tensor, attn_metadata: Any, **kwargs: Any) -> None:
        """Blocks are saved when the engine has processed the step that filled them."""

    def wait_for_save(self) -> None:
        """No step waits for a save: its blocks stay as they are until it has ended."""

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        results = KVConnectorTransferResults()
        if self._worker is not None:
            ended = self._worker.poll()
            results.finished_recving.update(ended.received)
            results.failed_recving.update(ended.failed)
        return results

    def build_connector_worker_meta(self) -> WorkerMetadata | None:
        return self._worker.take_metadata() if self._worker is not None else None

    # --- statistics, end ----------------------------------------------------------------------------

    def get_kv_connector_stats(self) -> KVConnectorStats | None:
        side = self._scheduler or self._worker
        data = side.stats.take() if side is not None else None
        return type(self).build_kv_connector_stats(data) if data is not None else None

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> KVConnectorStats | None:
        from .metrics import StoreStats

        return StoreStats(data=data) if data is not None else StoreStats()

    @classmethod
    def build_prom_metrics(cls, vllm_config: VllmConfig, metric_types: dict[Any, Any], labelnames: list[str],
                           per_engine_labelvalues: dict[int, list[object]]) -> KVConnectorPromMetrics | None:
        from .metrics import StorePromMetrics

        return StorePromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    def shutdown(self) -> None:
        for side in (self._scheduler, self._worker):
            if side is not None:
                side.close()


def _register() -> None:
    """MultiConnector finds the class of a child's statistics by its name alone."""
    with contextlib.suppress(ValueError):  # it has been done
        KVConnectorFactory.register_connector("DrayStoreConnector", "dray.vllm", "DrayStoreConnector")


_register()


def fields_of(config: VllmConfig) -> dict[str, str]:
    """What decides about the bytes of blocks: what DrayConnector's engines have in common, and how weights are quantized at the start."""
    fields = compat.model_fields(config)
    given = getattr(config.model_config, "quantization_config", None)
    return fields if given is None else {**fields, "quantization arguments": _described(given)}


def _described(given: Any) -> str:
    """A text of the arguments, the same in all processes."""
    plain = dataclasses.asdict(given) if dataclasses.is_dataclass(given) and not isinstance(given, type) else given
    return json.dumps(plain, default=str)


def _refuse(config: VllmConfig) -> None:
    device = config.device_config.device_type
    if device not in _DEVICES:
        raise errors.Unsupported(f"the engine runs on {device!r}, and DrayStoreConnector serves KV caches on {', '.join(_DEVICES)}",
                                 fix="Use another connector for this device.")
    if getattr(config.cache_config, "calculate_kv_scales", False):
        raise errors.Unsupported("calculate_kv_scales makes the bytes of blocks depend on the first request of each engine",
                                 fix="Take the scales from the checkpoint, or run without DrayStoreConnector.")
    media = getattr(config.model_config, "multimodal_config", None)
    if media is not None and media.mm_processor_cache_gb == 0 and not config.cache_config.enable_prefix_caching:
        raise errors.Unsupported("vLLM does not hash the content of images without prefix caching and with mm_processor_cache_gb 0, "
                                 "so that blocks of different images look the same",
                                 fix="Leave prefix caching on (--enable-prefix-caching), or set --mm-processor-cache-gb to more than 0.")
    if getattr(config.model_config, "enable_sleep_mode", False):
        raise errors.Unsupported("enable_sleep_mode replaces the memory of the KV cache while the agent uses it",
                                 fix="Start the engine without sleep mode, or without DrayStoreConnector.")
    compat.refuse_context_parallelism(config, "DrayStoreConnector")
