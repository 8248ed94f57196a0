# SPDX-License-Identifier: Apache-2.0
"""vLLM's own Mooncake connectors on dray.mooncake, without a model: real schedulers and workers, real agents, and bytes that are compared."""

import json
import os
import secrets
import socket

import ec_bare
import pytest
import torch
import vision
from bare import BLOCK, BYTES_A_TOKEN, dray, multi, prompt
from harness import LIMIT, ROOT, until
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.distributed import parallel_state
from vllm.distributed.ec_transfer.ec_connector.base import ECConnectorRole
from vllm.distributed.ec_transfer.ec_connector.factory import ECConnectorFactory
from vllm.engine.arg_utils import EngineArgs
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ECConnectorOutput, ModelRunnerOutput
from vllm.v1.structured_output import StructuredOutputManager

pytestmark = pytest.mark.long
AGENT_SETTINGS = {"limits.store_bytes": "256MiB", "limits.store_bytes_per_owner": "256MiB"}


class Event:
    """Of CUDA, on a machine without it."""

    def record(self, *_):
        pass

    synchronize = record


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as one:
        return one.getsockname()[1]


@pytest.fixture(scope="module")
def alone():
    """A distributed world of one process, as a worker has it."""
    with set_current_vllm_config(VllmConfig()):
        parallel_state.init_distributed_environment(1, 0, f"tcp://127.0.0.1:{free_port()}", 0, "gloo")
        parallel_state.initialize_model_parallel()
        yield
        parallel_state.cleanup_dist_env_and_memory()


@pytest.fixture
def engine(alone, bare, monkeypatch, tmp_path):
    """Makes engines whose `mooncake` is that of dray, beside an agent."""
    config = tmp_path / "mooncake.json"
    config.write_text(json.dumps({"metadata_server": "P2PHANDSHAKE", "master_server_address": "127.0.0.1:1", "protocol": "tcp"}))
    monkeypatch.syspath_prepend(str(ROOT / "client/python/dray/mooncake/shim"))
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 0)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setenv("VLLM_HOST_IP", "127.0.0.1")
    monkeypatch.setenv("MOONCAKE_CONFIG_PATH", str(config))
    monkeypatch.setenv("VLLM_MOONCAKE_BOOTSTRAP_PORT", str(free_port()))

    def make(name, agent, connector):
        monkeypatch.setenv("DRAY_SOCKET", str(agent.socket))
        return bare(name, connector)

    return make


def pushed(role):
    return {"kv_connector": "MooncakeConnector", "kv_role": role, "kv_connector_extra_config": {"mooncake_protocol": "tcp"}}


def stored(name):
    return {"kv_connector": "MooncakeStoreConnector", "kv_role": "kv_both", "kv_connector_extra_config": {"lookup_rpc_port": name}}


def both(first, second, request_id):
    """Steps two engines until the second one has ended a request; returns its answer."""
    def ended():
        first.step()
        second.step()
        return second.answers.get(request_id)
    return until(ended, f"{request_id} at {second.name}", 4 * LIMIT)


def test_mooncake_connector(engine, agents):
    """P writes the blocks of each request from its private memory into D's, over two agents."""
    p, d = engine("p", agents[0], pushed("kv_producer")), engine("d", agents[1], pushed("kv_consumer"))
    for length, seed in ((5, 1), (BLOCK * 3, 2), (BLOCK * 5 + 7, 3)):
        transfer = secrets.token_hex(8)
        text = prompt(length, seed)
        p.add(text, params={"do_remote_decode": True, "do_remote_prefill": False, "transfer_id": transfer})
        request = d.add(text, tokens=3, params={
            "do_remote_prefill": True, "do_remote_decode": False, "transfer_id": transfer, "remote_engine_id": "p",
            "remote_bootstrap_addr": f"http://127.0.0.1:{os.environ['VLLM_MOONCAKE_BOOTSTRAP_PORT']}"})
        before = counter(agents[1], "dray_transfers_accepted_total")
        assert both(p, d, request)[0] == "LENGTH"  # a step compares the blocks that it computes with
        assert counter(agents[1], "dray_transfers_accepted_total") > before
    p.idle()
    d.idle()


def counter(agent, name):
    return agent.ctl("status", "--json")["counters"][name]


def kept(p, agent, objects):
    """Steps until so many objects have been stored."""
    def enough():
        p.step()
        return counter(agent, "dray_store_puts_total") >= objects
    until(enough, f"{objects} objects")


def test_mooncake_store_connector(engine, agents):
    """One engine keeps blocks in the store, another one of the same agent loads them; after a reset they are not found any more."""
    p, d = engine("p", agents[0], stored("p")), engine("d", agents[0], stored("d"))
    text, whole = prompt(BLOCK * 5 + 7, 11), 5 * BLOCK * BYTES_A_TOKEN
    puts = counter(agents[0], "dray_store_puts_total")
    assert p.run(p.add(text))[0] == "LENGTH"
    kept(p, agents[0], puts + 5)
    p.idle()

    def read():
        before = counter(agents[0], "dray_store_read_bytes_total")
        assert d.run(d.add(text, tokens=3))[0] == "LENGTH"
        d.idle()
        return counter(agents[0], "dray_store_read_bytes_total") - before

    assert read() >= whole
    assert d.scheduler.reset_prefix_cache(reset_connector=True)
    assert read() < whole


def test_beside_dray(engine, agents):
    """MultiConnector of DrayConnector, which moves the blocks, and MooncakeStoreConnector, which keeps them."""
    p, d = (engine(name, agents[0], multi(dray(agents[0].socket), stored(name))) for name in "pd")
    puts = counter(agents[0], "dray_store_puts_total")
    params = p.offer(prompt(BLOCK * 5 + 7, 21))
    assert d.run(d.add(prompt(BLOCK * 5 + 7, 21), tokens=3, params=params))[0] == "LENGTH"
    assert d.loaded() == BLOCK * 5 + 7
    kept(p, agents[0], puts + 5)
    p.idle()
    d.idle()


class Media(dict):
    """Data of an image, of which nothing is published."""

    def get_data(self):
        return {}


class Encoding(ec_bare.Bare):
    """An engine with an ECMooncakeConnector, whose worker is called in each step. vLLM's V1 runner does not call that of a consumer in steps without tokens."""

    def __init__(self, name, role, port):
        init_none_hash(sha256)
        self.name, self.producer = name, role == "ec_producer"
        self.config = config = EngineArgs(
            model=str(vision.make(ROOT / "build/engine-vision")), dtype="bfloat16", max_model_len=2048, max_num_batched_tokens=1024,
            max_num_seqs=8, block_size=BLOCK, enforce_eager=True, limit_mm_per_prompt={"image": 8, "video": 0}, ec_transfer_config={
                "ec_connector": "ECMooncakeConnector", "ec_role": role, "engine_id": name, "ec_ip": "127.0.0.1", "ec_port": port,
                "ec_buffer_size": 4 << 20, "ec_buffer_device": "cpu",
                "ec_connector_extra_config": {"mooncake_protocol": "tcp", "push_wait_timeout_s": LIMIT}}).create_engine_config()
        spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=64, dtype=torch.bfloat16)
        config.cache_config.num_gpu_blocks = blocks = 1 if self.producer else 400
        config.ec_transfer_config.mm_encoder_output_widths = {"image": ec_bare.WIDTH} if self.producer else {}
        groups = [] if self.producer else [KVCacheGroupSpec(["layer"], spec)]
        self.worker = ECConnectorFactory.create_connector(config, ECConnectorRole.WORKER)
        self.worker.start_worker_services()
        self.scheduler = Scheduler(config, KVCacheConfig(num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=groups),
                                   StructuredOutputManager(config), BLOCK)
        self.cache, self.answers, self.encoded = {}, {}, []
        self.hasher = get_request_block_hasher(BLOCK, sha256)

    def add(self, request_id, *arguments, **how):
        super().add(request_id, *arguments, **how)
        for feature in self.scheduler.requests[request_id].mm_features:
            feature.data = Media(feature.data)
        return request_id

    def step(self):
        output = self.scheduler.schedule()
        for identifier in output.free_encoder_mm_hashes:
            self.cache.pop(identifier, None)
        ids = list(output.num_scheduled_tokens)
        self.worker.bind_connector_metadata(output.ec_connector_metadata)
        if self.producer:
            self.worker.start_save_caches(encoder_cache=self.cache)
        else:
            self.worker.start_load_caches(self.cache)
        self._encode(output)
        if not self.producer:
            self._gather(output)
        sending, receiving = self.worker.get_finished(output.finished_req_ids)
        ec = ECConnectorOutput(finished_sending=sending, finished_recving=receiving,
                               ec_connector_worker_meta=self.worker.build_connector_worker_meta())
        self.worker.clear_connector_metadata()
        requests = self.scheduler.requests
        sampled = [[] if self.producer else [7] if requests[r].num_computed_tokens >= requests[r].num_tokens else [] for r in ids]
        result = ModelRunnerOutput(ids, {r: i for i, r in enumerate(ids)}, sampled, pooler_output=[None] * len(ids) if self.producer else None,
                                   ec_connector_output=ec)
        for outputs in self.scheduler.update_from_output(output, result).values():
            for one in outputs.outputs:
                if one.finish_reason is not None:
                    self.answers[one.request_id] = one.finish_reason.name


def test_mooncake_ec_connector(engine, agents, monkeypatch):
    """E writes outputs of its encoder into the pool of PD, which encodes nothing."""
    port, made = free_port(), []
    try:
        for agent, name in zip(agents, ("producer", "consumer")):
            monkeypatch.setenv("DRAY_SOCKET", str(agent.socket))
            made.append(Encoding(name, f"ec_{name}", port))
        e, pd = made
        for seed in range(4):
            images = ec_bare.images(1 + seed % 3, seed)
            items = [{"transfer_id": secrets.token_hex(8)} for _ in images]
            before = counter(agents[1], "dray_transfers_accepted_total")
            e.add(f"e{seed}", images, {"consumer_zmq": f"tcp://127.0.0.1:{port}", "ec_items": items})
            assert both(e, pd, pd.add(f"pd{seed}", images, {"ec_items": items}, tokens=3)) == "LENGTH"
            assert counter(agents[1], "dray_transfers_accepted_total") > before
        assert len(e.encoded) == 7 and not pd.encoded
    finally:
        for one in made:
            one.close()
