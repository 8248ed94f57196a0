# SPDX-License-Identifier: Apache-2.0
"""For vLLM's OffloadingConnector on a machine without a GPU: its own manager, and a worker that copies in host memory."""

import torch
from vllm.v1.kv_offload.base import OffloadingWorker, TransferResult
from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec

CONFIG = {"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": {
    "cpu_bytes_to_use": 1 << 24, "spec_name": "HostOffloadingSpec", "spec_module_path": "host_offloading"}}


class _Worker(OffloadingWorker):
    def __init__(self, caches, chunks):
        self.engine = [one.tensor for one in caches.tensors]
        self.host = [torch.zeros((chunks, one.shape[1]), dtype=one.dtype) for one in self.engine]
        self.ended = []

    def _copy(self, job_id, source, from_blocks, target, to_blocks):
        for one, other in zip(source, target):
            other[to_blocks.tolist()] = one[from_blocks.tolist()]
        self.ended.append(TransferResult(job_id, True))
        return True

    def submit_store(self, job_id, src_spec, dst_spec):
        return self._copy(job_id, self.engine, src_spec.block_ids, self.host, dst_spec.block_ids)

    def submit_load(self, job_id, src_spec, dst_spec):
        return self._copy(job_id, self.host, src_spec.block_ids, self.engine, dst_spec.block_ids)

    def get_finished(self):
        ended, self.ended = self.ended, []
        return ended

    def wait(self, job_ids):
        pass


class HostOffloadingSpec(CPUOffloadingSpec):
    def get_worker(self, kv_caches):
        self._worker = self._worker or _Worker(kv_caches, self.num_chunks)
        return self._worker
