# SPDX-License-Identifier: Apache-2.0
"""Encoding engines and engines that use outputs, without their models: vLLM's real scheduler, a connector and a real agent.

What an encoder would compute is a pattern that depends on the identifier of the image. An engine that would compute with other
bytes fails the test. A step goes through the hooks in the order of vLLM's model runner V1, which calls no worker of a consumer in a step
without tokens, and gives a producer's scheduler nothing back; or of model runner V2, which does both.
"""

import contextlib
import json
import random
import zlib
from types import SimpleNamespace

import torch
import vision
from harness import LIMIT, ROOT, until
from vllm.distributed.ec_transfer.ec_connector.base import ECConnectorRole
from vllm.distributed.ec_transfer.ec_connector.factory import ECConnectorFactory
from vllm.engine.arg_utils import EngineArgs
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import EMPTY_MODEL_RUNNER_OUTPUT, ECConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

BLOCK, WIDTH = 32, vision.HIDDEN
FIELD, KEPT = (SimpleNamespace(field=SimpleNamespace(keep_on_cpu=kept)) for kept in (False, True))
NO_PIXELS = {"image_grid_thw": KEPT, "timestamps": KEPT}  # what an item has without its image
PIXELS = {"pixel_values": FIELD, **NO_PIXELS}
# An encoder as a process of its own, which can be killed.
ENCODER = """import json, os, sys
from ec_bare import Bare
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
e = Bare("e", sys.argv[1], "ec_producer")
_, params = e.run(e.add("request", json.loads(sys.argv[2]), params={"consumers": 2}))
print(json.dumps(params), file=answers, flush=True)
sys.stdin.read()"""


@contextlib.contextmanager
def offered(params):
    """The first offer of ec_transfer_params, which may be changed inside."""
    texts = params["dray"]["offers"]
    lines = list(map(json.loads, texts[0].split("\n")))
    offer = {**lines[0], **lines[1]}
    yield offer
    texts[0] = "\n".join(json.dumps({name: offer[name] for name in line if name in offer}) for line in lines)


def embeddings(identifier, rows):
    """What the encoder makes of an image."""
    seed = zlib.crc32(identifier.encode())
    return torch.randn(rows, WIDTH, generator=torch.Generator().manual_seed(seed)).to(torch.bfloat16)


class Bare:
    """One engine. role: "ec_producer" or "ec_consumer". v2: its workers are those of model runner V2."""

    connector, options, v2 = "DrayECConnector", {"lease": 5}, False

    def __init__(self, name, socket, role, size=4 << 20, budget=1024, **options):
        init_none_hash(sha256)
        self.name, self.producer = name, role == "ec_producer"
        self.config = config = EngineArgs(
            model=str(vision.make(ROOT / "build/engine-vision")), dtype="bfloat16", max_model_len=2048, max_num_batched_tokens=budget,
            max_num_seqs=8, block_size=BLOCK, enforce_eager=True, limit_mm_per_prompt={"image": 8, "video": 0}, ec_transfer_config={
                "ec_connector": self.connector, "ec_connector_module_path": "dray.vllm", "ec_role": role, "engine_id": name,
                "ec_buffer_size": size, "ec_connector_extra_config": {"socket": str(socket), **self.options, **options}}).create_engine_config()
        spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=64, dtype=torch.bfloat16)
        groups = [] if self.producer else [KVCacheGroupSpec(["layer"], spec)]
        config.cache_config.num_gpu_blocks = blocks = 1 if self.producer else 400
        config.ec_transfer_config.mm_encoder_output_widths = {"image": WIDTH} if self.producer else {}
        cache = KVCacheConfig(num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=groups)
        self.worker = ECConnectorFactory.create_connector(config, ECConnectorRole.WORKER)
        self.scheduler = Scheduler(config, cache, StructuredOutputManager(config), BLOCK)
        self.side = getattr(self.scheduler.ec_connector, "_scheduler", None)  # None: of a connector of vLLM's
        self.cache, self.answers, self.encoded, self.steps = {}, {}, [], 0
        self.hasher = get_request_block_hasher(BLOCK, sha256)

    def add(self, request_id, images, params=None, data=PIXELS, salt=None, tokens=1):
        """Starts a request. images: (identifier, embeddings) of each; text lies between them."""
        prompt, features = [1] * 5, []
        for identifier, rows in images:
            features.append(MultiModalFeatureSpec(dict(data) if data else None, "image", identifier, PlaceholderRange(len(prompt), rows)))
            prompt += [vision.PAD] * rows + [2] * 3
        sampling = SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True,
                                  extra_args={"ec_transfer_params": params} if params else None)
        self.scheduler.add_request(Request(request_id, prompt, sampling, None, mm_features=features, cache_salt=salt,
                                           block_hasher=self.hasher))
        return request_id

    def abort(self, request_id):
        self.scheduler.finish_requests(request_id, RequestStatus.FINISHED_ABORTED)

    def _encode(self, output, requests):
        for request_id, indices in output.scheduled_encoder_inputs.items():
            for index in indices:
                feature = requests[request_id][0].mm_features[index]
                if self.producer or feature.identifier not in self.cache:
                    assert "pixel_values" in (feature.data or ()), f"{self.name}: {request_id} has no image to encode"
                    self.cache[feature.identifier] = embeddings(feature.identifier, feature.mm_position.length)
                    self.encoded.append(feature.identifier)
                    self.worker.save_caches(self.cache, feature.identifier)

    def _gather(self, output, requests):
        """The embeddings of the tokens of this step are there, and are the right ones."""
        for request_id, n in output.num_scheduled_tokens.items():
            request, end, _ = requests[request_id]
            first = end - n
            for feature in request.mm_features:
                start, rows = feature.mm_position.offset, feature.mm_position.length
                if start < end and first < start + rows:
                    assert torch.equal(self.cache[feature.identifier], embeddings(feature.identifier, rows)), \
                        f"{self.name}: {request_id} computes with other embeddings than its own"

    def step(self):
        """One step of the engine: schedule, run, update."""
        self._work(*self._schedule())

    def _schedule(self):
        """What the workers have to do, and for each request of it: the request, its tokens after that, and whether those are all."""
        self.steps += 1
        output = self.scheduler.schedule()
        requests = {name: self.scheduler.requests[name] for name in output.num_scheduled_tokens}
        return output, {name: (one, one.num_computed_tokens, one.num_computed_tokens >= one.num_tokens) for name, one in requests.items()}

    def _work(self, output, requests):
        """The workers' part, and the scheduler hears of it."""
        for identifier in output.free_encoder_mm_hashes:
            self.cache.pop(identifier, None)
        ids = list(output.num_scheduled_tokens)
        result = EMPTY_MODEL_RUNNER_OUTPUT
        if self.producer or ids or self.v2:
            self.worker.bind_connector_metadata(output.ec_connector_metadata)
            if self.producer:
                self.worker.start_save_caches(encoder_cache=self.cache)
            else:
                self.worker.start_load_caches(self.cache)
            self._encode(output, requests)
            if not self.producer:
                self._gather(output, requests)
            self.worker.get_finished(output.finished_req_ids)
            metadata = self.worker.build_connector_worker_meta()
            self.worker.clear_connector_metadata()
            reported = ECConnectorOutput(ec_connector_worker_meta=metadata) if self.v2 or not self.producer else None
            result = ModelRunnerOutput.with_ec_conn_output_only(reported)
            if ids:
                sampled = [[7] if requests[r][2] and not self.producer else [] for r in ids]
                result = ModelRunnerOutput(ids, {r: i for i, r in enumerate(ids)}, sampled,
                                           pooler_output=[None] * len(ids) if self.producer else None, ec_connector_output=reported)
        for outputs in self.scheduler.update_from_output(output, result).values():
            for one in outputs.outputs:
                if one.finish_reason is not None:
                    self.answers[one.request_id] = (one.finish_reason.name, json.loads(json.dumps(one.ec_transfer_params)))

    def run(self, request_id, limit=LIMIT):
        """Steps until a request has ended; returns why, and its ec_transfer_params."""
        def ended():
            self.step()
            return self.answers.get(request_id)
        return until(ended, f"{request_id} at {self.name}", limit)

    def idle(self):
        """Steps until nothing is left of any request."""
        def left():
            self.step()
            return self.side.idle and not self.scheduler.requests
        until(left, f"nothing left at {self.name}: {self.scheduler.requests}")

    def preempt(self):
        """Preempts all running requests. Blocks that are held make the reset itself fail, after that."""
        with contextlib.suppress(RuntimeError):
            self.scheduler.reset_prefix_cache(reset_running_requests=True)

    def left(self):
        """What is kept for any request; empty if nothing."""
        left = [f"requests {list(self.scheduler.requests)}"] if self.scheduler.requests or self.scheduler.has_unfinished_requests() else []
        return left + ([] if self.side.idle else ["the scheduler side"])

    def close(self):
        self.worker.shutdown()
        self.scheduler.ec_connector.shutdown()


class BareStore(Bare):
    """The same with DrayECStoreConnector."""

    connector, options = "DrayECStoreConnector", {"weights": "of these tests"}


def images(count, seed, most=40):
    """Identifiers and sizes of images."""
    chance = random.Random(seed)
    return [(f"image-{seed}-{i}", chance.randrange(4, most)) for i in range(count)]


@contextlib.contextmanager
def making(agents):
    """Makes engines, and ends them: make(name, role, at, ...), where `at` says which agent is theirs."""
    made = []

    def make(name, role, at=0, **how):
        made.append(Bare(name, agents[at].socket, role, **how))
        return made[-1]

    yield make
    for one in made:
        one.close()


def encode(e, name, wanted, **how):
    """What an encoder offers of a request."""
    reason, params = e.run(e.add(name, wanted, **how))
    assert reason == "STOP" and params, (reason, params)
    return params
