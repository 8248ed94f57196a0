# SPDX-License-Identifier: Apache-2.0
"""vLLM's own Mooncake connectors on dray.mooncake: real engines, whose tokens are those of an engine without any connector."""

import json
import pathlib
import random
import secrets
import socket

import pytest
import vision
from harness import LIMIT, ROOT, until
from rig import BLOCK, TOKENS, Engine, prompts, same_tokens, sure, with_references
from vision_engine import ARGUMENTS, tiny

pytestmark = pytest.mark.long
LENGTHS = (70, 513, 2049)
SHIM = ROOT / "client/python/dray/mooncake/shim"


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as one:
        return one.getsockname()[1]


def engine(lab, agent, name, variables=(), **how):
    """An engine whose `mooncake` is that of dray."""
    folders = (SHIM, ROOT / "client/python", pathlib.Path(__file__).with_name("mooncake_cpu"))
    return Engine(lab.tmp, name, variables={"DRAY_SOCKET": str(agent.socket), "PYTHONPATH": ":".join(map(str, folders)), **dict(variables)}, **how)


@pytest.fixture(scope="module")
def references(lab):
    """[(prompt, answer)] of an engine that keeps nothing."""
    plain = Engine(lab.tmp, "plain", enable_prefix_caching=False)
    try:
        plain.ready()
        return [pair for length in LENGTHS for pair in with_references(plain, prompts(40, length, seed=length), 1)]
    finally:
        plain.stop()


def test_mooncake_connector(lab, references):
    """P pushes its blocks into D's, from private memory to private memory, over two agents."""
    agents = [lab.agent(f"agent-mooncake-{i}", key=lab.key).start() for i in range(2)]
    port = free_port()

    def make(name, agent, role):
        return engine(lab, agent, name, variables={"VLLM_MOONCAKE_BOOTSTRAP_PORT": str(port)}, connector={
            "kv_connector": "MooncakeConnector", "kv_role": role, "engine_id": name, "kv_load_failure_policy": "fail",
            "kv_connector_extra_config": {"mooncake_protocol": "tcp"}})

    p, d = make("p-mooncake", agents[0], "kv_producer"), make("d-mooncake", agents[1], "kv_consumer")
    try:
        p.ready()
        d.ready()
        for prompt, reference in references:
            transfer = secrets.token_hex(8)
            first = p.start(prompt, 1, {"do_remote_decode": True, "do_remote_prefill": False, "transfer_id": transfer})
            answer = d.run(prompt, TOKENS, {
                "do_remote_prefill": True, "do_remote_decode": False, "transfer_id": transfer, "remote_engine_id": p.name,
                "remote_bootstrap_addr": f"http://127.0.0.1:{port}"}, logprobs=2)
            assert "error" not in answer, (answer, d.tail(), p.tail())
            assert "error" not in first.get(timeout=LIMIT)
            same_tokens(reference, answer)
            assert answer["cached"] >= len(prompt) - 1, answer
        assert "dray.mooncake" not in d.log.read_text(errors="replace")  # no call has failed
    finally:
        p.stop()
        d.stop()
        for agent in agents:
            agent.stop()


STORE = {"limits.store_bytes": "1GiB", "limits.store_bytes_per_owner": "1GiB"}


def test_mooncake_store_connector(lab, references):
    """One engine keeps its blocks in the agent's store, another one of the same agent loads them."""
    agent = lab.agent("agent-mooncake-store", settings=STORE).start()
    config = pathlib.Path(lab.tmp) / "mooncake.json"
    config.write_text(json.dumps({"metadata_server": "P2PHANDSHAKE", "master_server_address": "127.0.0.1:1", "protocol": "tcp"}))

    def make(name):
        return engine(lab, agent, name, variables={"MOONCAKE_CONFIG_PATH": str(config), "VLLM_MOONCAKE_STORE_TIER_LOG": "1"}, connector={
            "kv_connector": "MooncakeStoreConnector", "kv_role": "kv_both", "engine_id": name,
            "kv_connector_extra_config": {"lookup_rpc_port": name}})

    first, second = make("store-first"), make("store-second")
    try:
        first.ready()
        for prompt, reference in references:
            same_tokens(reference, first.run(prompt, TOKENS, logprobs=2))

        def objects():
            return agent.ctl("status", "--json")["counters"]["dray_store_puts_total"]

        wanted = sum(len(prompt) // BLOCK for prompt, _ in references)
        until(lambda: objects() >= wanted or first.run(prompts(1, 20)[0], 1) and False, f"{wanted} objects", 2 * LIMIT)
        second.ready()
        for prompt, reference in references:
            answer = second.run(prompt, TOKENS, logprobs=2)
            assert "error" not in answer, (answer, second.tail())
            same_tokens(reference, answer)
            assert answer["cached"] >= len(prompt) // BLOCK * BLOCK - BLOCK, answer
        assert "Mooncake load tier summary" in second.log.read_text(errors="replace")
    finally:
        first.stop()
        second.stop()
        agent.stop()


def test_mooncake_ec_connector(lab):
    """E pushes outputs of its encoder into PD's pool."""
    agents = [lab.agent(f"agent-mooncake-ec-{i}", key=lab.key).start() for i in range(2)]
    port = free_port()
    how = {"model": tiny(), **ARGUMENTS}

    def make(name, agent, role):
        return engine(lab, agent, name, **how, ec_transfer_config={
            "ec_connector": "ECMooncakeConnector", "ec_role": role, "engine_id": name, "ec_ip": "127.0.0.1", "ec_port": port,
            "ec_buffer_size": 16 << 20, "ec_buffer_device": "cpu",
            "ec_connector_extra_config": {"mooncake_protocol": "tcp", "push_wait_timeout_s": LIMIT}})

    one = Engine(lab.tmp, "one-mooncake", **how)
    e, pd = make("e-mooncake", agents[0], "ec_producer"), make("pd-mooncake", agents[1], "ec_consumer")
    try:
        for each in (one, e, pd):
            each.ready()
        checked = 0
        for seed in range(1, 7):
            prompt, images = vision.prompt(random.Random(seed)), [[112 * seed, 112, seed]]
            reference = one.run(prompt, TOKENS, images=images, logprobs=2)
            items = [{"transfer_id": secrets.token_hex(8)}]
            first = e.start(prompt, 1, images=images, ec={"consumer_zmq": f"tcp://127.0.0.1:{port}", "ec_items": items})
            answer = pd.run(prompt, TOKENS, images=images, ec={"ec_items": items}, logprobs=2)
            assert "error" not in answer, (answer, pd.tail(), e.tail())
            assert "error" not in first.get(timeout=LIMIT)
            same_tokens(reference, answer, clear=0.5)
            checked += sure(reference, 0.5) > 0
        assert checked
    finally:
        for each in (one, e, pd):
            each.stop()
        for agent in agents:
            agent.stop()
