# SPDX-License-Identifier: Apache-2.0
"""An engine without its model: vLLM's real scheduler, connectors and aggregator, real KV tensors, and a real agent.

What a model would compute is a pattern: each layer's content of a token depends on the layer and on all tokens up to it. So a
block of another request, layer, position or engine is noticed. A step goes through the same hooks as in a real engine.
"""

import contextlib
import copy
import itertools
import json
import random
import zlib

import model
import torch
from dray.vllm.store import stats as store_stats
from harness import LIMIT, ROOT, until
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.utils import KVOutputAggregator
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.engine.arg_utils import EngineArgs
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheTensor,
    SlidingWindowSpec,
)
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

BLOCK, BLOCKS, LAYERS, HEADS, HEAD = 32, 40, 3, 2, 16
CONTENT = 2 * HEAD  # keys and values side by side
PREFILL = {"do_remote_decode": True, "do_remote_prefill": False}
BYTES_A_TOKEN = LAYERS * HEADS * CONTENT * 2


def dray(socket, role="kv_both", **options):
    """kv_transfer_config of a DrayConnector. What D does not ask for is free after the time of the lease."""
    options.setdefault("lease", 2)
    return {"kv_connector": "DrayConnector", "kv_connector_module_path": "dray.vllm", "kv_role": role,
            "kv_connector_extra_config": {"socket": str(socket), **options}}


def kept(socket, role="kv_both", **options):
    """kv_transfer_config of a DrayStoreConnector. No time of a slow machine lets a request give up its question."""
    options = {"lookup": LIMIT, "weights": "those of the test", **options}
    return {"kv_connector": "DrayStoreConnector", "kv_connector_module_path": "dray.vllm", "kv_role": role,
            "kv_connector_extra_config": {"socket": str(socket), **options}}


def multi(*children):
    """kv_transfer_config of a MultiConnector."""
    return {"kv_connector": "MultiConnector", "kv_role": "kv_both", "kv_connector_extra_config": {"connectors": list(children)}}


def prompt(length, seed):
    chance = random.Random(seed)
    return [chance.randrange(3, 1000) for _ in range(length)]


def expected(tokens, layer):
    """(tokens, CONTENT) that a layer holds for a prompt."""
    rows, state = [], layer
    for token in tokens:
        state = zlib.crc32(token.to_bytes(4, "little"), state)
        rows.append([(state >> shift) % 251 for shift in range(CONTENT)])
    return torch.tensor(rows, dtype=torch.bfloat16).reshape(len(tokens), CONTENT)


class Bare:
    """One engine. order: of the dimensions layer, block, head, token and content in memory. window: tokens that its layers look at;
    chunk: of the chunks within which they look."""

    def __init__(self, name, connector, policy="fail", order="LBHNC", allocation=contextlib.nullcontext, window=None, chunk=None, **arguments):
        init_none_hash(sha256)
        transfer = {"engine_id": name, "kv_load_failure_policy": policy, **connector}
        self.name, self.config = name, EngineArgs(
            model=str(model.make(ROOT / "build/engine-model")), skip_tokenizer_init=True, dtype="bfloat16", max_model_len=BLOCK * 32,
            max_num_batched_tokens=BLOCK * 16, max_num_seqs=8, block_size=BLOCK, enforce_eager=True,
            kv_transfer_config=transfer, **arguments).create_engine_config()
        self.config.cache_config.num_gpu_blocks = BLOCKS
        self.names = [f"model.layers.{i}.attn" for i in range(LAYERS)]
        sizes = {"block_size": BLOCK, "num_kv_heads": HEADS, "head_size": HEAD, "dtype": torch.bfloat16}
        self.window, self.chunk = window, chunk
        spec = SlidingWindowSpec(**sizes, sliding_window=window) if window else \
            ChunkedLocalAttentionSpec(**sizes, attention_chunk_size=chunk) if chunk else FullAttentionSpec(**sizes)
        size = BLOCKS * BLOCK * BYTES_A_TOKEN
        page = BLOCK * BYTES_A_TOKEN // LAYERS
        strides = (page * BLOCKS, page) if order[0] == "L" else (page, page * LAYERS)
        cache = KVCacheConfig(num_blocks=BLOCKS, kv_cache_tensors=[KVCacheTensor(size, self.names, *strides)],
                              kv_cache_groups=[KVCacheGroupSpec(self.names, spec)])
        self.config.model_config.get_total_num_kv_heads = lambda: HEADS
        self.scheduler = Scheduler(self.config, cache, StructuredOutputManager(self.config), BLOCK)
        self.worker = KVConnectorFactory.create_connector(self.config, KVConnectorRole.WORKER, cache)
        with self.worker.get_mem_pool_context() or allocation():
            raw = torch.zeros(size, dtype=torch.int8)
        counts = {"L": LAYERS, "B": BLOCKS, "H": HEADS, "N": BLOCK, "C": CONTENT}
        whole = raw.view(torch.bfloat16).view([counts[letter] for letter in order]).permute([order.index(c) for c in "LBHNC"])
        self.layers = list(whole)
        self.worker.register_kv_caches(dict(zip(self.names, self.layers)))
        self.scheduler.connector.set_xfer_handshake_metadata_pp_aware({(0, 0): self.worker.get_handshake_metadata()})
        self.aggregator = KVOutputAggregator.from_connector(self.scheduler.connector, 1)
        self.hasher = get_request_block_hasher(BLOCK, sha256)
        self.numbers, self.answers, self.stats = itertools.count(), {}, []
        self._keep_stats(self.scheduler.connector)
        while self.scheduler.has_requests():  # as the engine core does at its start
            self.step()

    def add(self, prompt, tokens=1, params=None):
        """Starts a request; returns its id."""
        request_id = f"{self.name}-{next(self.numbers)}"
        sampling = SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True,
                                  extra_args={"kv_transfer_params": params} if params else None)
        self.scheduler.add_request(Request(request_id, prompt, sampling, None, block_hasher=self.hasher))
        return request_id

    def abort(self, request_id):
        self.scheduler.finish_requests(request_id, RequestStatus.FINISHED_ABORTED)

    def _rows(self, request_id, count):
        """(block, token in it) of the first tokens of a request, as an index of a layer's tensor."""
        blocks, = self.scheduler.kv_cache_manager.get_block_ids(request_id)
        at = torch.arange(count)
        return torch.tensor(blocks)[at // BLOCK], at % BLOCK

    def _compute(self, request_id, first, end):
        """What a model would do: fills the blocks of tokens [first, end)."""
        tokens = list(self.scheduler.requests[request_id].all_token_ids)[:end]
        blocks, places = (index[first:] for index in self._rows(request_id, end))
        for number, layer in enumerate(self.layers):
            layer[blocks, :, places] = expected(tokens, number)[first:, None].expand(-1, HEADS, -1)

    def _keep_stats(self, connector):
        """Keeps what the scheduler takes of its connector's counts. It adds them to those of the worker."""
        take = connector.get_kv_connector_stats

        def taken():
            stats = take()
            if stats:
                self.stats.append(copy.deepcopy(stats))
            return stats

        connector.get_kv_connector_stats = taken

    def check(self, request_id, count):
        """The blocks of a request hold what belongs to its first tokens, as far as the next one looks back; before that there may be none."""
        tokens = list(self.scheduler.requests[request_id].all_token_ids)[:count]
        blocks, places = self._rows(request_id, count)
        kept = blocks != 0
        seen = max(0, count + 1 - self.window) if self.window else count // self.chunk * self.chunk if self.chunk else 0
        assert kept[seen:].all(), f"{self.name}: {request_id} has no blocks for all of its tokens {seen} to {count}"
        for number, layer in enumerate(self.layers):
            wanted = expected(tokens, number)[:, None].expand(-1, HEADS, -1)
            assert torch.equal(layer[blocks, :, places][kept], wanted[kept]), f"{self.name}: layer {number} of {request_id} holds other bytes"

    def step(self):
        output = self.scheduler.schedule()
        self.worker.handle_preemptions(output.kv_connector_metadata)
        self.worker.bind_connector_metadata(output.kv_connector_metadata)
        self.worker.start_load_kv(None)
        for request_id, n in output.num_scheduled_tokens.items():
            end = self.scheduler.requests[request_id].num_computed_tokens
            if end - n:
                self.check(request_id, end - n)  # whatever was loaded before
            self._compute(request_id, end - n, end)
        self.worker.wait_for_save()
        got = self.worker.get_transfer_results(output.finished_req_ids)
        stats = self.worker.get_kv_connector_stats()
        result = ModelRunnerOutput([], {}, kv_connector_output=KVConnectorOutput(
            finished_sending=got.finished_sending, finished_recving=got.finished_recving, failed_recving=got.failed_recving,
            invalid_block_ids=self.worker.get_block_ids_with_load_errors(), kv_connector_stats=stats,
            kv_connector_worker_meta=self.worker.build_connector_worker_meta()))
        self.worker.clear_connector_metadata()
        if stats:
            self.stats.append(copy.deepcopy(stats))
        joined = self.aggregator.aggregate([result], 0)
        ids = list(output.num_scheduled_tokens)
        sampled = [[7] if self.scheduler.requests[r].num_computed_tokens >= self.scheduler.requests[r].num_tokens else []
                   for r in ids]
        done = ModelRunnerOutput(ids, {r: i for i, r in enumerate(ids)}, sampled, kv_connector_output=joined.kv_connector_output)
        for outputs in self.scheduler.update_from_output(output, done).values():
            for one in outputs.outputs:
                if one.finish_reason is not None:
                    self.answers[one.request_id] = (one.finish_reason.name, json.loads(json.dumps(one.kv_transfer_params)))

    def run(self, request_id, limit=LIMIT):
        """Steps until a request has ended; returns why, and its kv_transfer_params."""
        def ended():
            self.step()
            return self.answers.get(request_id)
        return until(ended, f"{request_id} at {self.name}", limit)

    def offer(self, prompt, parts=("dray",)):
        """kv_transfer_params of P's answer; P computes again if its agent was slower than its step.

        parts: the connectors that have to offer the blocks.
        """
        def offered():
            reason, params = self.run(self.add(prompt, params=PREFILL))
            assert reason == "LENGTH"
            return params if params and all(part in params for part in parts) else None
        return until(offered, f"the blocks of {self.name}")

    def idle(self):
        """Steps until nothing is left of any request."""
        def left():
            self.step()
            used = [b for b in self.scheduler.kv_cache_manager.block_pool.blocks if b.ref_cnt and not b.is_null]
            return not (used or self.scheduler.requests or self.scheduler.has_requests())
        until(left, f"nothing left at {self.name}: {self.scheduler.requests}")

    def loaded(self):
        """Tokens that have been loaded since the start, by the statistics of all children."""
        total = 0
        for stats in self.stats:
            for one in stats.data.values() if "DrayConnector" in stats.data else [stats]:
                total += sum(getattr(one, "data", {}).get("tokens", []))
        return total

    def counts(self):
        """What a DrayStoreConnector has counted since the start, alone or as a child."""
        total = store_stats.new()
        for stats in self.stats:
            one = stats.data.get("DrayStoreConnector", stats) if hasattr(stats, "data") else stats
            if "asked_tokens" in one.data:
                store_stats.add(total, one.data)
        return total

    def close(self):
        self.worker.shutdown()
        self.scheduler.connector.shutdown()
