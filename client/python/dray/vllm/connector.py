# SPDX-License-Identifier: Apache-2.0
"""DrayConnector: the class that vLLM loads. It makes the side that its role asks for, and passes the hooks on."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.base import (KVConnectorBase_V1, KVConnectorRole,
                                                               KVConnectorTransferResults, SupportsHMA)

from .. import errors
from ..client import Client
from . import compat, kernels
from .agent import find
from .layout import PACKING
from .options import Options
from .protocol import RankInfo, StepMetadata, WorkerMetadata
from .push_scheduler import PushSide
from .rest import Rest
from .scheduler import SchedulerSide
from .sessions import connect
from .siblings import Member, join, shared_pool
from .worker import WorkerSide, layout_of

if TYPE_CHECKING:
    from torch import Tensor
    from vllm.config import VllmConfig
    from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks, KVCacheManager
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request

    from ..handles import Region
    from .bounce import Bounce
    from .layout import Group, RankLayout

__all__ = ["DrayConnector"]

_logger = logging.getLogger("vllm.dray")
_DEVICES = ("cpu", "cuda")


class DrayConnector(KVConnectorBase_V1, SupportsHMA):
    """Moves the KV caches of requests between engines through dray's agents.

    Hooks of vLLM that are not here do what the base class does.
    """

    def __init__(self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self._config, self._cache_config = vllm_config, kv_cache_config
        transfer = vllm_config.kv_transfer_config
        self._options = Options.parse(transfer.kv_connector_extra_config)
        _refuse(vllm_config)
        compat.groups(kv_cache_config)  # refuses what cannot be copied, before any memory is allocated
        self._engine_id = str(transfer.engine_id)
        self._member: Member | None = None
        if role is KVConnectorRole.SCHEDULER:
            self._member = join(vllm_config, self._options)
        self._agent = find(self._options, self._engine_id)
        self._scheduler: SchedulerSide | PushSide | None = None
        self._worker: WorkerSide | None = None
        self._pool: Any = None  # which the KV cache is allocated from, if not by the engine
        parallel = vllm_config.parallel_config
        if self._member is not None:
            client = self._connect("scheduler", notifications=True)
            size = {"tp_size": parallel.tensor_parallel_size, "world_size": parallel.world_size}
            rest = Rest(compat.waits_for_each_step(vllm_config))
            self._scheduler = PushSide(self._options, client, self._engine_id, rest, **size) if self._options.mode == "push" else \
                SchedulerSide(self._options, client, self._engine_id, self._member, rest, **size)

    def _connect(self, what: str, notifications: bool = False) -> Client:
        return connect(self._agent.socket, self._engine_id, what, self._options.deadline, notifications)

    @classmethod
    def get_required_kvcache_layout(cls, vllm_config: VllmConfig) -> str | None:
        """On a GPU, a block that is contiguous over all layers: one operation a block. CPU backends have one layout only."""
        transfer = vllm_config.kv_transfer_config
        wanted = Options.parse(transfer.kv_connector_extra_config).layout == "block"
        return "BLHNC" if wanted and vllm_config.device_config.device_type == "cuda" else None

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
        self._scheduler.ranks.add(info for info in infos if isinstance(info, RankInfo))

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
        return self._scheduler.finished(request, block_ids)

    def has_pending_push_work(self) -> bool:
        return self._scheduler is not None and self._scheduler.busy

    # --- worker side --------------------------------------------------------------------------------

    def get_mem_pool_context(self) -> AbstractContextManager[Any] | None:
        from .memory import make_pool  # which needs torch

        if self._pool is None and self._options.pool:
            device = self._config.device_config.device_type
            self._pool, first = shared_pool(self._config, lambda: make_pool(device))
            if not first:
                return None  # another DrayConnector has returned it, and MultiConnector takes one
        pool: AbstractContextManager[Any] | None = self._pool
        return pool

    def register_kv_caches(self, kv_caches: dict[str, Tensor]) -> None:
        from .memory import share

        try:
            shared = share(kv_caches, self._pool)
        except errors.Unsupported as e:
            if not self._options.bounce:
                raise
            _logger.warning("dray: rank %d copies its blocks through host memory: %s", self._config.parallel_config.rank, e.message)
            self._register_bounce(kv_caches)
            return
        layout, groups = self._layout(kv_caches, shared.offsets, shared.length)
        client = self._connect(f"rank {layout.rank}")
        self._start_worker(client, shared.add(client), layout, groups)

    def _register_bounce(self, kv_caches: dict[str, Tensor]) -> None:
        from .bounce import Bounce
        from .memory import spread

        offsets, ranges = spread(kv_caches)
        layout, groups = self._layout(kv_caches, offsets, sum(length for _, length in ranges))
        transfer = self._config.kv_transfer_config
        bounce = Bounce(layout, groups, kv_caches, offsets, self._options.bounce_size, producer=transfer.is_kv_producer,
                        consumer=transfer.is_kv_consumer)
        client = self._connect(f"rank {layout.rank}")
        self._start_worker(client, client.region(bounce.memory, name="kv"), bounce.layout, groups, bounce)

    def _layout(self, kv_caches: dict[str, Tensor], offsets: dict[str, int], length: int) -> tuple[RankLayout, tuple[Group, ...]]:
        from vllm.distributed.parallel_state import get_tensor_model_parallel_rank

        return layout_of(self._config, self._cache_config, offsets, kv_caches, rank=self._config.parallel_config.rank,
                         tp_rank=get_tensor_model_parallel_rank(), length=length)

    def _start_worker(self, client: Client, region: Region, layout: RankLayout, groups: tuple[Group, ...],
                      bounce: Bounce | None = None) -> None:
        from .memory import marker

        fields = {**compat.model_fields(self._config), PACKING: kernels.packing(self._config, self._cache_config)}
        self._worker = WorkerSide(client, region, layout, groups, fields, self._options.name, bounce,
                                  marker(self._config.device_config.device_type))
        _logger.info("dray: rank %d: %d MB of %s are shared with the agent at %s (%s)", layout.rank, region.length // 10**6,
                     "KV cache" if bounce is None else "a bounce buffer", client.path, client.segment)

    def get_handshake_metadata(self) -> Any:
        return self._worker.info() if self._worker is not None else None

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        metadata = self._get_connector_metadata()
        if self._worker is not None and isinstance(metadata, StepMetadata):
            self._worker.step(metadata)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Loads end before their request is scheduled."""

    def save_kv_layer(self, layer_name: str, kv_layer: Tensor, attn_metadata: Any, **kwargs: Any) -> None:
        """Blocks are moved when all layers are computed."""

    def wait_for_save(self) -> None:
        """The forward pass is over."""
        if self._worker is not None:
            self._worker.computed()

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        results = KVConnectorTransferResults()
        if self._worker is not None:
            ended = self._worker.poll()
            results.finished_sending.update(ended.sent)
            results.finished_recving.update(ended.received)
            results.failed_recving.update(ended.failed)
        return results

    def build_connector_worker_meta(self) -> WorkerMetadata | None:
        return self._worker.take_metadata() if self._worker is not None else None

    # --- statistics, end ----------------------------------------------------------------------------

    def get_kv_connector_stats(self) -> KVConnectorStats | None:
        if self._worker is None:
            return None
        data = self._worker.stats.take(self._worker.waiting())
        return type(self).build_kv_connector_stats(data) if data is not None else None

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> KVConnectorStats | None:
        from .metrics import DrayStats

        return DrayStats(data=data) if data is not None else DrayStats()

    @classmethod
    def build_prom_metrics(cls, vllm_config: VllmConfig, metric_types: dict[Any, Any], labelnames: list[str],
                           per_engine_labelvalues: dict[int, list[object]]) -> KVConnectorPromMetrics | None:
        from .metrics import DrayPromMetrics

        return DrayPromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    def shutdown(self) -> None:
        for side in (self._scheduler, self._worker):
            if side is not None:
                side.close()
        if self._member is not None:
            self._member.leave()
        self._agent.close()


def _register() -> None:
    """MultiConnector finds the class of a child's statistics by its name alone."""
    with contextlib.suppress(ValueError):  # it has been done
        KVConnectorFactory.register_connector("DrayConnector", "dray.vllm", "DrayConnector")


_register()


def _refuse(config: VllmConfig) -> None:
    device = config.device_config.device_type
    if device not in _DEVICES:
        raise errors.Unsupported(f"the engine runs on {device!r}, and DrayConnector serves KV caches on {', '.join(_DEVICES)}",
                                 fix="Use another connector for this device.")
    if getattr(config.model_config, "enable_sleep_mode", False):
        raise errors.Unsupported("enable_sleep_mode replaces the memory of the KV cache while the agent uses it",
                                 fix="Start the engine without sleep mode, or without DrayConnector.")
    compat.refuse_context_parallelism(config, "DrayConnector")
