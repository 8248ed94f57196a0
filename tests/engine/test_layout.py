# SPDX-License-Identifier: Apache-2.0
"""The layout that the connector asks for, what it is worth, the groups that are refused, and the metrics of loads."""

import copy

import pytest
import torch
from bare import BLOCK, HEADS, LAYERS, dray, multi, prompt
from dray import Client, errors
from dray.vllm import DrayConnector, compat, connector
from dray.vllm.store import connector as store_connector
from harness import LIMIT, until
from prometheus_client import REGISTRY, Counter, Gauge, Histogram
from vllm.v1.kv_cache_interface import (
    CircularBufferSpec,
    CrossAttentionSpec,
    FullAttentionSpec,
    HiSparseHotSpec,
    HiSparseResidentSpec,
    MambaSpec,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
)


def moved(p, d, length, seed=1):
    params = p.offer(prompt(length, seed))
    assert d.run(d.add(prompt(length, seed), tokens=2, params=params))[0] == "LENGTH"
    p.idle()
    d.idle()
    return [one.data for one in d.stats if one.data["seconds"]][-1]


@pytest.mark.parametrize(("at_p", "at_d", "operations"), [
    ("BLHNC", "BLHNC", 1), ("LBHNC", "LBHNC", LAYERS), ("BLHNC", "LBHNC", LAYERS), ("BLNHC", "BLHNC", LAYERS * HEADS * BLOCK)])
def test_operations_for_each_block(bare, sockets, at_p, at_d, operations):
    """One operation a block instead of one for each layer, if a block is contiguous over all layers at both engines."""
    p, d = bare("p", dray(sockets[0]), order=at_p), bare("d", dray(sockets[1]), order=at_d)
    counts = moved(p, d, BLOCK)
    assert counts["blocks"] == [1] and counts["operations"] == [operations]


@pytest.mark.parametrize(("device", "options", "layout"), [
    ("cuda", {}, "BLHNC"), ("cuda", {"layout": "engine"}, None), ("cpu", {}, None)])
def test_layout_is_requested(bare, sockets, device, options, layout):
    engine = bare("p", dray(sockets[0], **options))
    config = copy.copy(engine.config)
    config.device_config = type("Device", (), {"device_type": device})
    assert DrayConnector.get_required_kvcache_layout(config) == layout


def test_groups_that_are_refused():
    mamba = MambaSpec(block_size=BLOCK, shapes=((4, 4),), dtypes=(torch.float32,))
    with pytest.raises(errors.Unsupported, match="a KV-cache group is a MambaSpec, not attention"):
        compat.group_kind(mamba)
    cross = CrossAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=16, dtype=torch.bfloat16)
    with pytest.raises(errors.Unsupported, match="cross-attention"):
        compat.group_kind(cross)
    sizes = {"block_size": BLOCK, "num_kv_heads": HEADS, "head_size": 16, "dtype": torch.bfloat16}
    ring, full = CircularBufferSpec(**sizes), FullAttentionSpec(**sizes)
    mixed = UniformTypeKVCacheSpecs(block_size=BLOCK, kv_cache_specs={"a": full, "b": ring})
    replayed = SlidingWindowMLASpec(**sizes, sliding_window=64, bounded_replay=True)
    for spec in (ring, mixed, replayed):
        with pytest.raises(errors.Unsupported, match="blocks are not kept for the tokens"):
            compat.group_kind(spec)
    for spec in (HiSparseHotSpec(block_size=BLOCK, page_size=64, blocks_per_request=1), HiSparseResidentSpec(block_size=BLOCK, page_size=64)):
        with pytest.raises(errors.Unsupported, match="not attention"):  # of groups that vLLM does not transfer
            compat.group_kind(spec)


def test_another_window_at_first_contact(bare, sockets, caplog):
    """Groups of a hybrid model that differ: both values are in the log, and P's blocks are free at once."""
    p, d = bare("p", dray(sockets[0], lease=60)), bare("d", dray(sockets[1]), policy="recompute")
    params = p.offer(prompt(100, 1))
    spec = {"block_size": BLOCK, "num_kv_heads": HEADS, "head_size": 16, "dtype": torch.bfloat16}
    window, full = compat.group_kind(SlidingWindowSpec(**spec, sliding_window=512)), compat.group_kind(FullAttentionSpec(**spec))
    params["dray"]["layout"]["groups"][0][0] = window
    assert d.run(d.add(prompt(100, 1), params=params))[0] == "LENGTH"
    assert f"has attention: {full} here, {window} at the other engine" in caplog.text
    assert not d.loaded()
    d.idle()  # its right may be acquired only now
    p.idle()


@pytest.mark.parametrize("mode", ["pull", "push"])
@pytest.mark.parametrize(("reach", "length"), [
    ({"window": BLOCK}, 4 * BLOCK - 1), ({"window": BLOCK}, 4 * BLOCK), ({"window": BLOCK + 5}, 3 * BLOCK + 4),
    ({"chunk": 2 * BLOCK}, 4 * BLOCK), ({"chunk": 2 * BLOCK}, 4 * BLOCK + 9)])
def test_what_the_last_token_of_the_prompt_looks_at(bare, sockets, mode, reach, length):
    """D computes that token once more, and it looks further back than the token behind it, for which the engines keep blocks."""
    p, d = bare("p", dray(sockets[0], mode=mode, lease=LIMIT), **reach), bare("d", dray(sockets[1], mode=mode), **reach)
    text = prompt(length, 1)
    request = d.add(text, tokens=2, params=p.offer(text))
    until(lambda: (d.step(), p.step(), d.answers.get(request))[2], "the end of D's request")
    here = (length - 1) // reach["chunk"] * reach["chunk"] if "chunk" in reach else 0  # no token looks at what lies before the chunk
    assert d.answers[request][0] == "LENGTH" and d.loaded() == length - 1 - here
    p.idle()
    d.idle()


@pytest.mark.parametrize(("reach", "length"), [({"window": BLOCK}, 4 * BLOCK - 1), ({"chunk": 2 * BLOCK}, 4 * BLOCK)])
def test_an_older_engine_that_has_given_up_what_the_last_token_looks_at(bare, sockets, monkeypatch, caplog, reach, length):
    """D reads nothing, and computes the prompt."""
    p, d = bare("p", dray(sockets[0], lease=LIMIT), **reach), bare("d", dray(sockets[1]), policy="recompute", **reach)
    older = p.scheduler.connector._scheduler.ranks
    monkeypatch.setattr(older, "__class__", type("Older", (type(older),), {"look_back_partly": False}))
    text = prompt(length, 1)
    assert d.run(d.add(text, tokens=2, params=p.offer(text)))[0] == "LENGTH"
    assert not d.loaded() and "its blocks were not loaded: invalid: the other engine lists no block of layer" in caplog.text
    p.idle()
    d.idle()


@pytest.mark.parametrize("mode", ["pull", "push"])
def test_remotes_of_workers_are_given_back(bare, sockets, monkeypatch, mode):
    """The scheduler side's session has acquired them. A session that only borrows them is not told of their end."""
    borrowed, borrow = [], Client.borrow_remote
    monkeypatch.setattr(Client, "borrow_remote", lambda client, number: borrowed.append(borrow(client, number)) or borrowed[-1])
    p, d = bare("p", dray(sockets[0], mode=mode, lease=LIMIT)), bare("d", dray(sockets[1], mode=mode))
    for seed in range(2):
        text = prompt(3 * BLOCK, seed)
        request = d.add(text, params=p.offer(text))
        until(lambda request=request: (d.step(), p.step(), d.answers.get(request))[2], "the end of D's request")
        d.idle()
        p.idle()
    assert len(borrowed) == 2 and not any(remote.handle for remote in borrowed)


def test_engine_at_sleep_mode_is_refused(bare, sockets):
    config = copy.copy(bare("p", dray(sockets[0])).config)
    config.model_config = type("Model", (), {"enable_sleep_mode": True})
    with pytest.raises(errors.Unsupported, match="enable_sleep_mode replaces the memory"):
        connector._refuse(config)


@pytest.mark.parametrize("connector", [connector, store_connector])
def test_tokens_of_a_block_on_several_ranks_are_refused(bare, sockets, connector):
    """With decode context parallelism, a block of a rank has every second token or fewer."""
    config = copy.copy(bare("p", dray(sockets[0])).config)
    config.parallel_config = copy.copy(config.parallel_config)
    config.parallel_config.decode_context_parallel_size = 2
    with pytest.raises(errors.Unsupported, match="decode_context_parallel_size is 2"):
        connector._refuse(config)


def metrics_of(config, data):
    """What Prometheus has after an interval: {name: value}, with the label of failures appended."""
    transfer = config.kv_transfer_config
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    found = KVConnectorFactory.get_connector_class(transfer)
    prom = found.build_prom_metrics(config, {Gauge: Gauge, Counter: Counter, Histogram: Histogram}, ["engine"], {0: ["e"]})
    prom.observe(found.build_kv_connector_stats(data).to_dict(), 0)
    values = {}
    for family in REGISTRY.collect():
        for sample in family.samples:
            if sample.name.startswith("vllm:dray") and not sample.name.endswith(("_bucket", "_created")):
                values[" ".join([sample.name, *filter(None, [sample.labels.get("error")])])] = sample.value
    return values


@pytest.mark.parametrize("in_multi", [False, True])
def test_metrics(bare, sockets, monkeypatch, in_multi):
    """Bytes, blocks, seconds, waiting loads and failures by name, also as a child of MultiConnector."""
    for collector in list(REGISTRY._collector_to_names):
        if any(name.startswith("vllm:dray") for name in REGISTRY._collector_to_names[collector]):
            REGISTRY.unregister(collector)
    monkeypatch.setattr("prometheus_client.Gauge.__init__", without_mode(Gauge.__init__))
    engine = bare("p", multi(dray(sockets[0])) if in_multi else dray(sockets[0]))
    data = {"seconds": [0.5, 0.25], "bytes": [100, 50], "blocks": [4, 2], "operations": [8, 4], "tokens": [96, 32],
            "failures": {"deadline": 2, "peer_lost": 1}, "waiting": 3}
    values = metrics_of(engine.config, {"DrayConnector": data} if in_multi else data)
    assert values == {
        "vllm:dray_load_seconds_count": 2, "vllm:dray_load_seconds_sum": 0.75, "vllm:dray_load_bytes_count": 2,
        "vllm:dray_load_bytes_sum": 150, "vllm:dray_load_blocks_count": 2, "vllm:dray_load_blocks_sum": 6,
        "vllm:dray_load_operations_count": 2, "vllm:dray_load_operations_sum": 12, "vllm:dray_loaded_tokens_total": 128,
        "vllm:dray_loads_waiting": 3, "vllm:dray_load_failures_total deadline": 2, "vllm:dray_load_failures_total peer_lost": 1}


def without_mode(init):
    """As vLLM's class of gauges, which takes a mode for several processes also without them."""
    return lambda self, *args, multiprocess_mode="all", **kwargs: init(self, *args, multiprocess_mode=multiprocess_mode, **kwargs)
