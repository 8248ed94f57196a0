# SPDX-License-Identifier: Apache-2.0
"""An engine without its model whose encoder cache is managed by DrayEncoderCacheManager, over a host tier or not; see ec_bare.py."""

from collections import deque

import torch
import vision
from dray.vllm.ec.header import HEADER
from dray.vllm.ec.host import HostTier
from dray.vllm.ec.protocol import StepMetadata
from ec_bare import BLOCK, WIDTH, Bare
from harness import ROOT
from vllm.distributed.ec_transfer.ec_connector.base import ECConnectorRole
from vllm.distributed.ec_transfer.ec_connector.factory import ECConnectorFactory
from vllm.engine.arg_utils import EngineArgs
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.structured_output import StructuredOutputManager

MANAGER = "dray.vllm.DrayEncoderCacheManager"
DEVICE = 256  # embeddings of the device's cache, which vLLM would make larger than these tests need


class NoTier:
    """In place of the host tier and of the connector's workers."""

    idle = True
    is_producer = False

    def __getattr__(self, name):
        return lambda *_, **__: None


def arguments(host, options, budget=96, transfer=(), **more):
    """Of an engine. host: bytes of the host tier; 0: none."""
    ec = {"ec_connector": "DrayECCacheConnector", "ec_connector_module_path": "dray.vllm", "ec_role": "ec_both", "ec_buffer_size": host,
          **dict(transfer)}
    return EngineArgs(
        model=str(vision.make(ROOT / "build/engine-vision")), dtype="bfloat16", max_model_len=2048, max_num_batched_tokens=budget,
        max_num_seqs=8, block_size=BLOCK, enforce_eager=True, limit_mm_per_prompt={"image": 8, "video": 0},
        ec_transfer_config=ec if host else None, ec_manager_config={"encoder_cache_manager_cls": MANAGER, "manager_config": options}, **more)


class CacheBare(Bare):
    """options: of the manager. blocks: of the KV cache. late: a step is scheduled before the workers have done the one before it."""

    late = False

    def __init__(self, host=0, blocks=400, **options):
        init_none_hash(sha256)
        self.name, self.producer = "both", False
        self.config = config = arguments(host, options).create_engine_config()
        spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=64, dtype=torch.bfloat16)
        config.cache_config.num_gpu_blocks = blocks
        cache = KVCacheConfig(num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)])
        if host:
            config.ec_transfer_config.mm_encoder_output_widths = {"image": WIDTH}
        self.worker = ECConnectorFactory.create_connector(config, ECConnectorRole.WORKER) if host else NoTier()
        self.scheduler = Scheduler(config, cache, StructuredOutputManager(config), BLOCK)
        self.side = self.scheduler.ec_connector._side.tier if host else NoTier()
        self.manager = self.scheduler.encoder_cache_manager
        self.manager.cache_size = DEVICE
        self.manager._begin()
        self.under_way = deque()  # steps that the workers have not done
        self.cache, self.answers, self.encoded, self.steps = {}, {}, [], 0
        self.hasher = get_request_block_hasher(BLOCK, sha256)

    def step(self):
        scheduled = self._schedule()
        self._keep_apart(scheduled[0].ec_connector_metadata)
        self.under_way.append(scheduled)
        while len(self.under_way) > self.late:
            self._work(*self.under_way.popleft())

    def _keep_apart(self, metadata):
        """Ranks do not run in step: what one of them may still read or write is not written, and what may not be complete is not read."""
        before = [output.ec_connector_metadata for output, _ in self.under_way]
        if not isinstance(metadata, StepMetadata):
            return
        saves = [place for one in before for places in one.saves.values() for place in places]
        used = saves + [place for one in before for place in one.loads.values()]
        for place in (place for places in metadata.saves.values() for place in places):
            assert all(place.offset + HEADER + place.size <= other.offset or other.offset + HEADER + other.size <= place.offset for other in used)
        assert not {place.nonce for place in metadata.loads.values()} & {place.nonce for place in saves}

    def finish(self):
        """The workers do what was scheduled."""
        while self.under_way:
            self._work(*self.under_way.popleft())

    def _will_have(self):
        """The workers' cache after the steps that are under way."""
        names = set(self.cache)
        for output, requests in self.under_way:
            names -= set(output.free_encoder_mm_hashes)
            for name, indices in output.scheduled_encoder_inputs.items():
                names |= {requests[name][0].mm_features[index].identifier for index in indices}
            names |= set(getattr(output.ec_connector_metadata, "loads", ()))
        return names

    def check(self):
        """What the manager says is true of the workers' cache, and its sums are right."""
        manager = self.manager
        outputs = manager._outputs
        assert sum(o.entry.rows for o in outputs.values()) + manager.num_free_slots == manager.cache_size and manager.num_free_slots >= 0
        assert sum(o.entry.rows for o in outputs.values() if not o.users) + manager.num_free_slots == manager.num_freeable_slots
        assert {r for o in outputs.values() for r in o.users} == set(manager._inputs) <= set(self.scheduler.requests)
        evicted, cache = set(manager._evicted), self._will_have()
        assert set(outputs) <= cache | evicted and cache - evicted <= set(outputs)
        if isinstance(self.side, HostTier) and self.side.idle:
            assert self.side.used == sum(copy.room for copy in self.side._copies.values())

    def close(self):
        if self.scheduler.ec_connector is not None:
            super().close()
