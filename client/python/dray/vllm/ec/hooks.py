# SPDX-License-Identifier: Apache-2.0
"""The hooks of vLLM that connectors of encoder outputs have in common: they pass them on to the side that the role asks for."""

from __future__ import annotations

import contextlib
import logging
from abc import abstractmethod
from typing import TYPE_CHECKING, Any

from vllm.distributed.ec_transfer.ec_connector.base import ECConnectorRole

from ... import errors
from ...client import Client
from ...handles import Region
from ...memory import Memory
from .. import compat
from ..rest import Rest
from . import budget
from .budget import Budget
from .gpu_pool import GpuPool, TorchBytes
from .inplace import POOL
from .pool import Pool
from .pool_memory import HostPool, PoolMemory
from .protocol import StepMetadata, WorkerMetadata
from .reader import Reader
from .worker_hooks import WorkerHooks
from .writer import Writer

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.distributed.ec_transfer.ec_connector.metrics import ECConnectorPromMetrics, ECConnectorStats
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.outputs import ECConnectorOutput
    from vllm.v1.request import Request

__all__ = ["EncoderConnector", "Parts", "model_fields"]

_logger = logging.getLogger("vllm.dray")
_DEVICES = ("cpu", "cuda")
_MODEL_FIELDS = ("model architecture", "model configuration", "dtype")


class Parts:
    """What the scheduler side of either role is made of."""

    def __init__(self, client: Client, region: Region, memory: PoolMemory, pool: Pool, rest: Rest, itemsize: int) -> None:
        self.client, self.region, self.memory, self.pool, self.rest, self.itemsize = client, region, memory, pool, rest, itemsize


class EncoderConnector(WorkerHooks):
    """Hooks of vLLM that are not here do what the base class does. A subclass has parsed its options before it calls __init__()."""

    _in_pieces = False  # outputs that are larger than the pool move in pieces

    def __init__(self, vllm_config: VllmConfig, role: ECConnectorRole) -> None:
        super().__init__(vllm_config, role)
        _refuse(vllm_config, type(self).__name__)
        self._config = vllm_config
        self._engine_id = str(vllm_config.ec_transfer_config.engine_id)
        self._scheduler: Reader | Writer[Any] | None = None
        self._step = 0
        if role is ECConnectorRole.WORKER:
            return
        client = None
        try:
            client = self._connect()
            self._scheduler = self._start(client)
        except BaseException:
            if client is not None:
                client.close()
            self._end()
            raise

    @abstractmethod
    def _connect(self) -> Client:
        """A session with the agent."""

    @abstractmethod
    def _make(self, parts: Parts) -> Reader | Writer[Any]:
        """The scheduler side."""

    def _end(self) -> None:
        """Ends what _connect() has started, apart from the session."""

    def _start(self, client: Client) -> Reader | Writer[Any]:
        config = self._config
        self._memory, region, size = self._share(client)
        _logger.info("dray: %s: the pool holds %s, %s; it is shared with the agent at %s (%s)",
                     "encoder" if self.is_producer else "consumer of encoder outputs", size,
                     "in the memory of the GPU" if self._memory.device == "cuda" else "in host memory", client.path, client.segment)
        return self._make(Parts(client, region, self._memory, Pool(size.size, before=self._memory.before),
                                Rest(compat.waits_for_each_step(config)), int(config.model_config.dtype.itemsize)))

    # --- the pool's memory --------------------------------------------------------------------------

    def _pool_device(self) -> str:
        """Where the user wants the pool: "auto", "cpu" or "cuda"."""
        return "cpu"

    def _share(self, client: Client) -> tuple[PoolMemory, Region, Budget]:
        """Makes the pool, and registers it with the agent."""
        wanted, why = self._pool_device(), _no_gpu_pool(self._config)
        if wanted == "cuda" and why is not None:
            raise errors.Unsupported(f"option 'pool_device' is 'cuda', and {why}", fix="Set it to 'cpu' or 'auto'.")
        if wanted == "auto" and why is not None and self._config.device_config.device_type == "cuda":
            _logger.info("dray: the pool of encoder outputs lies in host memory, because %s", why)
        if wanted != "cpu" and why is None:
            memory = None
            try:
                memory = self._gpu_pool()
                return memory, memory.region(client), memory.budget
            except errors.Error as e:
                if memory is not None:
                    memory.close()
                if wanted == "cuda":
                    raise
                _logger.warning("dray: the pool of encoder outputs lies in host memory, because the GPU's cannot be shared with the agent: %s", e)
        size = budget.of_engine(self._config, self._in_pieces)
        budget.check_memory(size.size)
        host = HostPool(Memory(size.size, name=POOL))
        return host, host.region(client), size

    def _gpu_pool(self) -> GpuPool:
        """The pool in the memory of this process' GPU. A consumer has made it before vLLM divided the rest of the memory."""
        name = f"gpu {self._engine_id}"
        pool = GpuPool.find(name)
        if pool is None:
            size = budget.of_engine(self._config, self._in_pieces)
            pool = GpuPool(name, size, TorchBytes(size.size))
        return pool

    def start_worker_services(self) -> None:
        """The model is on the GPU, and the KV cache is not yet."""
        if self._worker is not None and self.is_consumer and self._pool_device() != "cpu" and _no_gpu_pool(self._config) is None:
            with contextlib.suppress(errors.Error):  # the scheduler side, which comes later, says why
                self._gpu_pool()

    def _width(self, modality: str) -> int:
        """Numbers in an output of a producer's encoder. ValueError: vLLM has not measured that modality."""
        from vllm.distributed.ec_transfer.ec_connector.encoder_output_width import get_encoder_output_width

        return int(get_encoder_output_width(self._config, modality))

    # --- scheduler side -----------------------------------------------------------------------------

    def has_cache_item(self, identifier: str) -> bool:
        assert self._scheduler is not None
        return self._scheduler.has(identifier)

    def ensure_cache_available(self, request: Request, num_computed_tokens: int) -> bool:
        assert self._scheduler is not None
        return not request.mm_features or self._scheduler.available(request, num_computed_tokens)

    def update_state_after_alloc(self, request: Request, index: int) -> None:
        assert self._scheduler is not None
        self._scheduler.allocated(request, index)

    def update_state_after_free(self, request: Request, index: int) -> None:
        assert self._scheduler is not None
        self._scheduler.freed(request, index)

    def take_unavailable_requests(self) -> set[str]:
        assert self._scheduler is not None
        return self._scheduler.take_unavailable()

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> StepMetadata:
        assert self._scheduler is not None
        metadata = StepMetadata(self._step, self._memory.name)
        self._step += 1
        self._scheduler.build(scheduler_output, metadata)
        return metadata

    def update_connector_output(self, connector_output: ECConnectorOutput) -> None:
        metadata = connector_output.ec_connector_worker_meta
        if self._scheduler is not None and isinstance(metadata, WorkerMetadata):
            self._scheduler.take_output(metadata.step)

    def request_finished(self, request: Request) -> tuple[bool, dict[str, Any] | None]:
        assert self._scheduler is not None
        return False, self._scheduler.finished(request)

    def has_pending_push_work(self) -> bool:
        return self._scheduler is not None and self._scheduler.busy

    # --- statistics, end ----------------------------------------------------------------------------

    def get_ec_connector_stats(self) -> ECConnectorStats | None:
        data = self._scheduler.take_stats() if self._scheduler is not None else None
        return type(self).build_ec_connector_stats(data) if data is not None else None

    @classmethod
    def build_ec_connector_stats(cls, data: dict[str, Any] | None = None) -> ECConnectorStats | None:
        from .metrics import DrayECStats

        return DrayECStats(data=data) if data is not None else DrayECStats()

    @classmethod
    def build_prom_metrics(cls, vllm_config: VllmConfig, metric_types: dict[Any, Any], labelnames: list[str],
                           per_engine_labelvalues: dict[int, list[object]]) -> ECConnectorPromMetrics | None:
        from .metrics import DrayECPromMetrics

        return DrayECPromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    def shutdown(self) -> None:
        super().shutdown()
        if self._scheduler is not None:
            self._scheduler.close()
            self._scheduler = None
            self._memory.close()
            self._end()


def model_fields(config: VllmConfig) -> dict[str, str]:
    """The fields that the model of an encoder and of a consumer must have in common."""
    fields = compat.model_fields(config)
    return {name: fields[name] for name in _MODEL_FIELDS}


def _no_gpu_pool(config: VllmConfig) -> str | None:
    """Why the pool cannot lie in the memory of a GPU; None: it can."""
    parallel = config.parallel_config
    if config.device_config.device_type != "cuda":
        return f"the engine runs on {config.device_config.device_type!r}"
    if parallel.world_size > 1:
        return f"the engine has {parallel.world_size} ranks, whose GPUs have no memory in common"
    if parallel.distributed_executor_backend not in (None, "uni"):
        return f"the engine's worker is a process of its own (--distributed-executor-backend {parallel.distributed_executor_backend})"
    return None


def _refuse(config: VllmConfig, connector: str) -> None:
    transfer, parallel = config.ec_transfer_config, config.parallel_config
    device = config.device_config.device_type
    if device not in _DEVICES:
        raise errors.Unsupported(f"the engine runs on {device!r}, and {connector} serves {', '.join(_DEVICES)}",
                                 fix="Use another connector for this device.")
    if transfer.is_ec_producer and transfer.is_ec_consumer:
        raise errors.Unsupported(f"ec_role is 'ec_both', and {connector} is for engines that either encode or use outputs",
                                 fix="Set ec_role to 'ec_producer' or 'ec_consumer'.")
    model = config.model_config
    if getattr(model, "is_encoder_decoder", False):
        raise errors.Unsupported("the model is an encoder-decoder model, for which vLLM calls no connector of encoder outputs",
                                 fix=f"Run this model without {connector}.")
    if transfer.is_ec_consumer and not getattr(config, "use_v2_model_runner", False) and \
            (parallel.pipeline_parallel_size > 1 or getattr(model, "runner_type", "") == "pooling"):
        raise errors.Unsupported("vLLM's model runner V1 does not report what its workers have loaded, with pipeline stages or for pooling",
                                 fix="Use one pipeline stage and a generative model, or vLLM's model runner V2.")
    if getattr(parallel, "nnodes", 1) > 1 or getattr(parallel, "distributed_executor_backend", None) == "ray":
        raise errors.Unsupported("the ranks of the engine run on several hosts, and the pool of encoder outputs is shared on one",
                                 fix="Run all ranks of the engine on one host, without Ray.")
