# SPDX-License-Identifier: Apache-2.0
"""DrayECCacheConnector: the host tier of DrayEncoderCacheManager. It moves outputs within one engine, and talks to no agent.

vLLM lets a connector put outputs into the workers' cache, and tells it about each one that is computed. A manager can do neither.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from vllm.distributed.ec_transfer.ec_connector.base import ECConnectorRole

from ... import errors
from ...memory import Memory
from .. import checks
from . import budget, tiers
from .cache_stats import Stats
from .cost import EncoderCost
from .header import sealed
from .host import HostTier
from .media import Media
from .policy import Policy
from .protocol import StepMetadata, WorkerMetadata
from .worker_hooks import WorkerHooks

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.distributed.ec_transfer.ec_connector.metrics import ECConnectorPromMetrics, ECConnectorStats
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.outputs import ECConnectorOutput
    from vllm.v1.request import Request

__all__ = ["DrayECCacheConnector"]

_logger = logging.getLogger("vllm.dray")
MANAGER = "dray.vllm.DrayEncoderCacheManager"
_DEVICES = ("cpu", "cuda")


class DrayECCacheConnector(WorkerHooks):
    """For engines that encode and use their own outputs: ec_role "ec_both". Hooks that are not here do what the base class does."""

    def __init__(self, vllm_config: VllmConfig, role: ECConnectorRole) -> None:
        super().__init__(vllm_config, role)
        checks.read(vllm_config.ec_transfer_config.ec_connector_extra_config, {}, "DrayECCacheConnector", "ec_connector_extra_config")
        _refuse(vllm_config)
        self._side: _Scheduler | None = None
        if role is ECConnectorRole.SCHEDULER:
            self._side = _Scheduler(vllm_config)
            tiers.offer(vllm_config, self._side.make_tier)

    # --- scheduler side -----------------------------------------------------------------------------

    def has_cache_item(self, identifier: str) -> bool:
        assert self._side is not None
        return self._side.tier.promise(identifier)

    def ensure_cache_available(self, request: Request, num_computed_tokens: int) -> bool:
        assert self._side is not None
        return not request.mm_features or self._side.can_run(request)

    def update_state_after_alloc(self, request: Request, index: int) -> None:
        assert self._side is not None
        self._side.allocated(request, index)

    def take_unavailable_requests(self) -> set[str]:
        assert self._side is not None
        taken, self._side.refused = self._side.refused, set()
        return taken

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> StepMetadata:
        assert self._side is not None
        return self._side.build()

    def update_connector_output(self, connector_output: ECConnectorOutput) -> None:
        metadata = connector_output.ec_connector_worker_meta
        if self._side is not None and isinstance(metadata, WorkerMetadata):
            self._side.tier.done(metadata.step)

    def request_finished(self, request: Request) -> tuple[bool, dict[str, Any] | None]:
        assert self._side is not None
        self._side.seen.pop(request.request_id, None)
        return False, None

    # --- statistics, end ----------------------------------------------------------------------------

    def get_ec_connector_stats(self) -> ECConnectorStats | None:
        data = self._side.stats.take() if self._side is not None and self._side.stats is not None else None
        return type(self).build_ec_connector_stats(data) if data is not None else None

    @classmethod
    def build_ec_connector_stats(cls, data: dict[str, Any] | None = None) -> ECConnectorStats | None:
        from .cache_metrics import DrayECCacheStats

        return DrayECCacheStats(data=data) if data is not None else DrayECCacheStats()

    @classmethod
    def build_prom_metrics(cls, vllm_config: VllmConfig, metric_types: dict[Any, Any], labelnames: list[str],
                           per_engine_labelvalues: dict[int, list[object]]) -> ECConnectorPromMetrics | None:
        from .cache_metrics import DrayECCachePromMetrics

        return DrayECCachePromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    def shutdown(self) -> None:
        super().shutdown()
        if self._side is not None:
            self._side.close()
            self._side = None


class _Scheduler:
    """seen: whether the engine can encode all items of a request, by request. refused: requests that have to fail."""

    def __init__(self, config: VllmConfig) -> None:
        self._config, self._itemsize = config, int(config.model_config.dtype.itemsize)
        self._can_encode = Media(config).can_encode
        self._row = budget.row_bytes(config)
        self.size = budget.of_engine(config)
        budget.check_memory(self.size.size)
        self._memory = Memory(self.size.size, name="dray-ec-cache")
        _logger.info("dray: the host tier of the encoder cache holds %s", self.size)
        self._tier: HostTier | None = None
        self.stats: Stats | None = None
        self.seen: dict[str, bool] = {}
        self.refused: set[str] = set()
        self._step = 0

    def make_tier(self, policy: Callable[[int], Policy], cost: EncoderCost, stats: Stats) -> HostTier:
        self.stats = stats
        self._tier = HostTier(self._memory.size, self._row, policy, cost, lambda item: sealed(self._memory.view, item), stats)
        return self._tier

    @property
    def tier(self) -> HostTier:
        assert self._tier is not None, "the manager has not asked for the host tier"
        return self._tier

    def can_run(self, request: Request) -> bool:
        """False for a request without its image: vLLM takes those from clients of an engine with this role, and nobody sends an output."""
        known = self.seen.get(request.request_id)
        if known is None:
            known = self.seen[request.request_id] = all(map(self._can_encode, request.mm_features))
            if not known:
                self.refused.add(request.request_id)
                _logger.error("dray: request %s fails, because it has an item without an image to encode", request.request_id)
        return known

    def allocated(self, request: Request, index: int) -> None:
        """An output comes to the device in this step."""
        feature, rows = request.mm_features[index], request.get_num_encoder_embeds(index)
        if feature.modality == "prompt_embeds":  # the client has sent the embeddings, and there is no encoder to save
            return
        if self.tier.find(feature.identifier, rows) is not None:
            self.tier.load(feature.identifier)
        elif not self.tier.save(feature.identifier, rows, self._width(feature.modality), self._itemsize) and self.stats is not None:
            self.stats.count(host_refused=1)

    def _width(self, modality: str) -> int:
        widths = self._config.ec_transfer_config.mm_encoder_output_widths
        return int(widths.get(modality) or self._row // self._itemsize)

    def build(self) -> StepMetadata:
        metadata = StepMetadata(self._step, (f"/proc/{os.getpid()}/fd/{self._memory.fd}", self._memory.size))
        saves, metadata.loads = self.tier.take_step(self._step)
        metadata.saves = {identifier: [place] for identifier, place in saves.items()}
        self._step += 1
        return metadata

    def close(self) -> None:
        if self.stats is not None:
            self.stats.flush()
        self._memory.close()


def _refuse(config: VllmConfig) -> None:
    transfer, parallel, model = config.ec_transfer_config, config.parallel_config, config.model_config
    device, manager = config.device_config.device_type, config.ec_manager_config.encoder_cache_manager_cls
    if manager != MANAGER:
        raise errors.Invalid(f"DrayECCacheConnector is the host tier of {MANAGER}, and encoder_cache_manager_cls is {manager!r}",
                             fix=f"Set encoder_cache_manager_cls of --ec-manager-config to {MANAGER!r}.")
    if not (transfer.is_ec_producer and transfer.is_ec_consumer):
        raise errors.Invalid(f"ec_role is {transfer.ec_role!r}, and DrayECCacheConnector is for an engine that uses its own outputs",
                             fix="Set ec_role to 'ec_both'.")
    if device not in _DEVICES:
        raise errors.Unsupported(f"the engine runs on {device!r}, and DrayECCacheConnector serves {', '.join(_DEVICES)}",
                                 fix="Use the manager without a host tier on this device.")
    if getattr(parallel, "nnodes", 1) > 1 or getattr(parallel, "distributed_executor_backend", None) == "ray":
        raise errors.Unsupported("the ranks of the engine run on several hosts, and the host tier is shared on one",
                                 fix="Run all ranks of the engine on one host, without Ray, or use the manager without a host tier.")
    if not getattr(config, "use_v2_model_runner", False) and \
            (parallel.pipeline_parallel_size > 1 or getattr(model, "runner_type", "") == "pooling"):
        raise errors.Unsupported("vLLM's model runner V1 does not report what its workers have saved, with pipeline stages or for pooling",
                                 fix="Use one pipeline stage and a generative model, or the manager without a host tier.")
