# SPDX-License-Identifier: Apache-2.0
"""DrayEncoderCacheManager beside vLLM's own manager and in vLLM's scheduler, with and without a host tier."""

import os
import random
import sys
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from dray import errors
from dray.vllm.ec.allocator import Allocator
from dray.vllm.ec.cache_stats import Stats, new, sentence, summary
from dray.vllm.ec.cost import EncoderCost
from dray.vllm.ec.header import HEADER
from dray.vllm.ec.host import HostTier
from dray.vllm.ec.manager import DrayEncoderCacheManager
from dray.vllm.ec.manager_options import Options
from dray.vllm.ec.policy import Entry, Lru, Merit, Score, Value
from ec_bare import NO_PIXELS, WIDTH, embeddings
from ec_cache_bare import CacheBare, arguments
from ec_world import World
from harness import ROOT
from test_ec_orders import one_order as one_order_of_two
from vllm.config.ec_manager_config import EncoderCacheManagerConfig
from vllm.distributed.ec_transfer.ec_connector.base import ECConnectorRole
from vllm.distributed.ec_transfer.ec_connector.factory import ECConnectorFactory
from vllm.v1.core.encoder_cache_manager import EncoderCacheManager

ORDERS = int(os.environ.get("DRAY_ORDERS", 1000 if "DRAY_LONG" in os.environ else 20))
EVERYTHING = {"device_hits", "promoted", "passed", "encoded", "device_evictions", "host_evictions", "aborted", "preempted", "reset"}
COST = EncoderCost(SimpleNamespace())
HOST = 256 * 512 + 4096


class Asks:
    """A request as managers see it."""

    def __init__(self, name, *items):
        self.request_id = name
        self.mm_features = [SimpleNamespace(identifier=identifier) for identifier, _ in items]
        self.rows = [rows for _, rows in items]

    def get_num_encoder_embeds(self, index):
        return self.rows[index]


def manager(size, **options):
    return DrayEncoderCacheManager(size, Options.parse(options), COST)


def place(one, request, index=0, only_ask=False):
    """What the scheduler does for an item; True: the request has it."""
    if one.check_and_update_cache(request, index):
        return True
    if not one.can_allocate(request, index, 1 << 20, 0) or only_ask:
        return False
    one.allocate(request, index)
    return True


# --- beside vLLM's own manager ----------------------------------------------------------------------

def test_lru_is_what_vllm_does():
    """The same answers, evictions and counts for the same calls in the order of the scheduler."""
    for seed in range(ORDERS * 2):
        chance = random.Random(seed)
        size = chance.choice((8, 40, 100))
        ours, theirs, live, sizes = manager(size, policy="lru"), EncoderCacheManager(size), [], {}
        for step in range(60):
            for _ in range(chance.randrange(3)):
                names = [f"i{chance.randrange(12)}" for _ in range(chance.randrange(1, 4))]
                live.append(Asks(f"{step}-{len(live)}", *[(n, sizes.setdefault(n, chance.randrange(1, size))) for n in names]))
            for request in live:
                scheduled, total, budget = [], 0, chance.choice((size, 2 * size))
                for index, feature in enumerate(request.mm_features):
                    if feature.identifier in [request.mm_features[i].identifier for i in scheduled]:
                        continue
                    answers = [m.check_and_update_cache(request, index) or m.can_allocate(request, index, budget, total)
                               for m in (ours, theirs)]
                    assert answers[0] == answers[1], (seed, step)
                    assert ours.get_cached_num_encoder_embeds(request, index) == theirs.get_cached_num_encoder_embeds(request, index)
                    if not answers[0]:
                        break
                    if index not in theirs.get_cached_input_ids(request):
                        scheduled.append(index)
                        total += request.rows[index]
                        budget -= request.rows[index]
                for index in scheduled:
                    ours.allocate(request, index)
                    theirs.allocate(request, index)
            assert ours.get_freed_mm_hashes() == theirs.get_freed_mm_hashes(), (seed, step)
            for request in list(live):
                assert ours.get_cached_input_ids(request) == theirs.get_cached_input_ids(request)
                what = chance.random()
                if what < 0.3:
                    live.remove(request)
                    for one in (ours, theirs):
                        one.free(request)
                elif what < 0.6:
                    for index in sorted(ours.get_cached_input_ids(request)):
                        for one in (ours, theirs):
                            one.free_encoder_input(request, index)
            if chance.random() < 0.01:
                live.clear()
                ours.reset()
                theirs.reset()
            assert (ours.num_free_slots, ours.num_freeable_slots) == (theirs.num_free_slots, theirs.num_freeable_slots), (seed, step)
            assert set(ours._outputs) == set(theirs.cached)


# --- policies ---------------------------------------------------------------------------------------

def test_value_keeps_what_is_used_twice_and_lru_what_was_used_last():
    for policy, kept in (("value", {"a", "c"}), ("lru", {"b", "c"})):
        one = manager(30, policy=policy)
        for name in ("a", "a", "b", "c"):
            request = Asks(f"{name}-{len(one._outputs)}-{one._step}", (name, 10))
            assert place(one, request)
            one.get_freed_mm_hashes()
            one.free(request)
        newest = Asks("d", ("d", 10))
        assert place(one, newest) and one.get_freed_mm_hashes() == [({"a", "b", "c"} - kept).pop()]
        assert kept <= set(one._outputs)


@pytest.mark.parametrize("policy", [Lru, Merit, Score, Value])
def test_a_policy_names_each_output_without_users_once(policy):
    """Random uses; the victims are exactly the outputs that may be evicted."""
    chance, one = random.Random(5), policy(500)
    entries = {}
    for turn in range(2000):
        name = f"i{chance.randrange(60)}"
        entry = entries.get(name)
        if entry is None:
            entry = entries[name] = Entry(name, chance.randrange(1, 20), chance.random())
            one.add(entry)
        else:
            one.leave(entry)
        one.used(entry)
        one.enter(entry)
        if chance.random() < 0.3:
            victim = one.victim()
            one.remove(victim, chance.random() < 0.9)
            del entries[victim.identifier]
    while entries:
        victim = one.victim()
        one.remove(victim, True)
        del entries[victim.identifier]
    assert one.victim() is None


@pytest.mark.parametrize("trace, two, least", [("popular and half once", False, 1.5), ("popular and half once", True, 1.3), ("conversations", True, 0.9)])
def test_value_saves_more_time_of_the_encoder_than_lru(trace, two, least):
    """On traces of seeds by which no constant was chosen; `make ec-sim` has all of them."""
    sys.path.append(str(ROOT / "tests/bench"))
    import ec_sim
    import ec_traces

    requests = ec_traces.trace(trace, ec_traces.CHECKING[0], 2500, ec_sim.LARGEST)
    saved = [ec_sim.run(requests, 16384, 131072 if two else 0, {"policy": policy, "host_policy": policy})[0] for policy in ("value", "lru")]
    assert saved[0] > least * saved[1], saved


def test_cost_grows_faster_than_the_image():
    cost = EncoderCost(SimpleNamespace(vision_config=SimpleNamespace(depth=32, embed_dim=1280, mlp_ratio=4, spatial_merge_size=2)))
    assert cost.seconds(16) / 16 > cost.seconds(256) / 256 < cost.seconds(16384) / 16384
    assert EncoderCost(SimpleNamespace(vision_config=None)).seconds(1) > 0


@pytest.mark.parametrize("options, words", [
    ({"polcy": "lru"}, ["'polcy'", "'policy'"]), ({"policy": "best"}, ["'policy'", "'best'"]), ({"watermark": 1.5}, ["'watermark'", "1.5"]),
    ({"watermark": True}, ["'watermark'"]), ({"promote_percentile": float("nan")}, ["'promote_percentile'"]),
    ({"policy": "score", "clock_max": -1}, ["'clock_max'", "-1"]), ({"policy": "score", "clock_decay_every": 0}, ["'clock_decay_every'"]),
    ({"clock_max": 3}, ["'clock_max'", "'score'"]), ({"host_policy": 5}, ["'host_policy'"]),
    ({"host_policy": "score"}, ["'host_policy'", "'lru'"])])
def test_options_are_refused_by_name(options, words):
    with pytest.raises(errors.Invalid) as refused:
        Options.parse(options)
    assert "manager_config" in str(refused.value) or "option" in str(refused.value)
    for word in words:
        assert word in str(refused.value)


@pytest.mark.parametrize("name, value", [("host_policy", "lru"), ("watermark", 0.1), ("promote_percentile", 0.2)])
def test_options_of_the_host_tier_are_refused_without_one(name, value):
    with pytest.raises(errors.Invalid, match=f"'{name}'"):
        DrayEncoderCacheManager.create_manager(cache_size=8, vllm_config=arguments(0, {name: value}).create_engine_config())


# --- the host tier alone ----------------------------------------------------------------------------

class Tier:
    """A host tier of `rows` embeddings of 512 bytes, whose workers save what they are told to."""

    def __init__(self, rows, policy=Value):
        self.stats, self.step = Stats(), 0
        self.host = HostTier(rows * 512, 512, policy, COST, lambda item: True, self.stats)

    def end(self):
        self.host.take_step(self.step)
        self.host.done(self.step)
        self.step += 1

    def save(self, name, rows, uses=0):
        saved = self.host.save(name, rows, 256, 2)
        self.end()
        for _ in range(uses):
            self.host.used_by_request(name)
        return saved


@pytest.mark.parametrize("policy", [Lru, Value])
def test_a_large_output_leaves_most_others(policy):
    """What a policy evicts lies anywhere."""
    chance, tier = random.Random(3), Tier(4000, policy)
    names = [f"i{i}" for i in range(890)]
    for name in names:
        assert tier.save(name, 4, chance.randrange(3))
    for name in chance.sample(names, len(names)):
        tier.host.used_by_request(name)
    size = tier.host._places.size
    assert tier.host.used > 0.98 * size
    assert tier.save("large", 130) and tier.host.find("large", 130)
    assert tier.host.used > 0.92 * size


def test_nothing_goes_for_an_output_that_has_no_room():
    """Because a copy in the middle is loaded in this step."""
    tier = Tier(310)
    for name in "abc":
        assert tier.save(name, 100)
    assert tier.host.find("b", 100) and tier.host.promise("b")
    assert not tier.host.save("large", 150, 256, 2)
    assert all(tier.host.find(name, 100) for name in "abc") and tier.stats.take() is None
    assert tier.host.save("d", 100, 256, 2)
    tier.end()
    assert tier.host.save("large", 150, 256, 2)


def test_the_neighbours_that_go_are_the_cheapest():
    """All others that would make the place are worth as much or more."""
    for seed in range(100):
        chance, tier = random.Random(seed), Tier(60)
        host = tier.host
        for i in range(20):
            tier.save(f"{i}", chance.randrange(1, 8), chance.randrange(5))
        held = chance.choice(list(host._copies.values()))
        assert host.find(held.entry.identifier, held.entry.rows) and host.promise(held.entry.identifier)
        room = Allocator.room(chance.randrange(host._places.largest + 1, 20 * 512))
        if not host._may_fit(room):
            continue
        copies = sorted(host._copies.values(), key=lambda copy: copy.item.offset)
        edges = [0, *(copy.end for copy in copies)], [*(copy.item.offset for copy in copies), host._places.size]
        costs = [sum(copy.seconds for copy in copies[i:j]) for i in range(len(copies)) for j in range(i + 1, len(copies) + 1)
                 if held not in copies[i:j] and edges[1][j] - edges[0][i] >= room]
        going = host._cheapest_neighbours(room)
        assert held not in going and sum(copy.seconds for copy in going) == pytest.approx(min(costs))
        for copy in going:
            host._forget(copy, evicted=True)
        assert host._places.take(room) is not None


def test_outputs_that_pass_do_not_age_the_others():
    tier = Tier(400)
    one = DrayEncoderCacheManager(20, Options(promote_percentile=1.0), COST, tier.host, tier.stats)
    for name in "xy":
        tier.save(name, 10)
    for number, name in enumerate("gggggnxy"):
        request = Asks(str(number), (name, 10))
        assert place(one, request)
        one.get_freed_mm_hashes()
        one.free(request)
        tier.end()
    assert set(one._outputs) == {"g", "y"} and tier.stats.take()["passed"] == 2
    assert one._policy.score(Entry("new", 10, 1.0)) == 0


# --- preemption -------------------------------------------------------------------------------------

def test_by_priority_a_request_waits_for_an_output_of_this_step():
    """The request that is to encode it may be preempted in the same step, and then nobody encodes it."""
    one = DrayEncoderCacheManager(30, Options(), COST, waits=True)
    first, second = Asks("a", ("x", 10), ("x", 10)), Asks("b", ("x", 10))
    assert place(one, first) and one.check_and_update_cache(first, 1)
    assert not one.check_and_update_cache(second, 0) and not one.can_allocate(second, 0, 1 << 20, 0)
    one.free(first)
    assert not one._outputs and one.can_allocate(second, 0, 1 << 20, 0)
    assert place(one, first)
    one.get_freed_mm_hashes()
    assert one.check_and_update_cache(second, 0)


def test_an_output_that_is_not_encoded_after_all_is_not_kept():
    """Its request is preempted in the step that was to encode it. Another request in that step keeps it, as vLLM's manager does."""
    one = manager(30)
    first, second = Asks("a", ("x", 10)), Asks("b", ("x", 10))
    assert place(one, first)
    one.free(first)
    assert not one._outputs and one.num_free_slots == one.num_freeable_slots == 30 and one._policy.victim() is None
    assert place(one, first) and place(one, second)
    one.free(first)
    assert set(one._outputs) == {"x"}
    one.get_freed_mm_hashes()
    one.free(second)
    assert set(one._outputs) == {"x"} and one.num_freeable_slots == 30


def test_what_was_to_be_saved_or_loaded_for_it_is_not():
    sealed, stats = set(), Stats()
    host = HostTier(40 * 512, 512, Value, COST, lambda item: item.offset in sealed, stats)
    one = DrayEncoderCacheManager(30, Options(), COST, host, stats)
    first = Asks("a", ("x", 10))

    def come():
        found = not place(one, first, only_ask=True) and host.promise("x")
        one.allocate(first, 0)
        return host.load("x") if found else host.save("x", 10, 256, 2)

    come()
    one.free(first)
    assert not one._outputs and not host._copies and host.used == 0
    come()
    saves, _ = host.take_step(1)
    sealed.add(saves["x"].offset)
    one.get_freed_mm_hashes()
    one.free(first)
    host.done(1)
    assert one.can_allocate(Asks("b", ("y", 30)), 0, 99, 0) and one.get_freed_mm_hashes() == ["x"]
    come()
    one.free(first)
    assert not one._outputs and host.take_step(2) == ({}, {}) and host.idle and host.find("x", 10)
    come()
    come_again = Asks("c", ("x", 10))
    one.free(first)
    assert place(one, come_again, only_ask=True) is False and host.promise("x")
    assert stats.take()["host_unsaved"] == 1


def test_counts_as_people_read_them():
    data = {**new(), "device_hits": 3, "encoded": 1, "saved_seconds": 0.3, "encoded_seconds": 0.1, "host_refused": 2}
    assert summary(data)["saved %"] == 75.0 and "3 hits on the device" in sentence(data) and sentence(data).endswith("host tier: 2")
    assert summary(new())["saved %"] == 0


def test_a_request_that_is_asked_about_again_counts_once():
    one = manager(30)
    first, second = Asks("a", ("x", 10)), Asks("b", ("x", 10))
    assert place(one, first)
    one.get_freed_mm_hashes()
    for _ in range(5):
        assert one.check_and_update_cache(second, 0)
        one.free(second)
    assert one.stats.take()["device_hits"] == 1 and one._outputs["x"].entry.uses == 2


# --- in vLLM's scheduler ----------------------------------------------------------------------------

@pytest.fixture
def engine():
    made = []

    def make(*args, **how):
        made.append(CacheBare(*args, **how))
        return made[-1]

    yield make
    for one in made:
        one.close()


def counts(engine):
    data = engine.manager.stats._minute
    return {name: data[name] for name in ("device_hits", "promoted", "passed", "encoded", "device_evictions", "host_evictions")}


def ask(engine, *images):
    """A request of its own for these images, to its end."""
    name = f"r{engine.steps}"
    assert engine.run(engine.add(name, images))[0] == "LENGTH"
    engine.check()


def test_hits_on_both_tiers(engine):
    """Hits on the device, promoted ones and ones that pass, release, and eviction on both tiers. Each token gets its own embeddings."""
    one = engine(310 * 512 + 4096)
    ask(one, ("a", 100))
    ask(one, ("a", 100))
    assert counts(one) == {"device_hits": 1, "promoted": 0, "passed": 0, "encoded": 1, "device_evictions": 0, "host_evictions": 0}
    ask(one, ("b", 100))
    ask(one, ("c", 100))  # the device has 256
    assert set(one.manager._outputs) == {"a", "c"} and counts(one)["device_evictions"] == 1
    one.step()
    assert set(one.cache) == {"a", "c"}
    ask(one, ("b", 100))  # worth more than c, which was used once
    assert counts(one)["promoted"] == 1 and set(one.manager._outputs) == {"a", "b"} and one.encoded == ["a", "b", "c"]
    for name in ("a", "b", "a"):
        ask(one, (name, 100))
    ask(one, ("c", 100))  # worth less than both
    assert counts(one)["passed"] == 1 and len(one.encoded) == 3 and set(one.manager._outputs) == {"a", "c"}
    ask(one, ("b", 100))  # displaces c, although that was used later than a
    assert set(one.manager._outputs) == {"a", "b"} and counts(one)["promoted"] == 2 and not counts(one)["host_evictions"]
    ask(one, ("d", 60), ("e", 60))
    assert counts(one)["host_evictions"] and counts(one)["encoded"] == 5
    assert not any(o.users for o in one.manager._outputs.values()) and one.manager.num_freeable_slots == 256
    one.idle()


def test_without_a_host_tier(engine):
    one = engine(policy="score", clock_max=3)
    for _ in range(2):
        ask(one, ("a", 200))
        ask(one, ("b", 200))
    assert counts(one)["encoded"] == 4 and counts(one)["device_evictions"] == 3 and not one.left()


def test_an_item_without_its_image_fails_alone(engine):
    one = engine(HOST)
    assert one.run(one.add("none", [("x", 20)], data=NO_PIXELS))[0] == "ERROR"
    ask(one, ("x", 20))
    one.idle()
    assert not one.scheduler.ec_connector._side.seen


def test_another_output_with_the_same_name_is_not_loaded(engine):
    """A client's uuid for two images of different sizes: the second is encoded, when the device has dropped the first."""
    one = engine(HOST)
    ask(one, ("same", 30))
    ask(one, ("large", 256))
    one.step()
    assert "same" not in one.cache
    ask(one, ("same", 31))
    assert one.encoded == ["same", "large", "same"]


def test_new_weights_empty_both_tiers(engine):
    one = engine(HOST)
    ask(one, ("a", 50))
    one.scheduler.reset_encoder_cache()
    one.cache.clear()
    ask(one, ("a", 50))
    assert one.encoded == ["a", "a"] and one.side.used == Allocator.room(HEADER + 50 * 512)


def test_an_output_that_the_workers_still_have_is_saved_once(engine):
    """It was evicted and allocated again in one schedule(), and model runner V2 does not compute it anew. Each worker sees in the pool
    what is stored."""
    one = engine(HOST)
    connector = one.scheduler.ec_connector
    assert one.side.save("x", 4, WIDTH, 2)
    metadata = connector.build_connector_meta(None)
    for output in (embeddings("x", 4), embeddings("other", 4)):
        worker = ECConnectorFactory.create_connector(one.config, ECConnectorRole.WORKER)
        worker.bind_connector_metadata(metadata)
        worker.start_save_caches(encoder_cache={"x": output})
    one.side.done(metadata.number)
    assert one.side.find("x", 4) and one.side.promise("x")
    one.side.load("x")
    cache = {}
    worker.bind_connector_metadata(connector.build_connector_meta(None))
    worker.start_load_caches(cache)
    assert torch.equal(cache["x"], embeddings("x", 4))
    one.side.done(metadata.number + 1)


def test_embeddings_of_a_client_are_not_saved(engine):
    one = engine(HOST)
    request = Asks("r", ("x", 4))
    request.mm_features[0].modality = "prompt_embeds"
    one.scheduler.ec_connector.update_state_after_alloc(request, 0)
    assert one.side.used == 0 and one.side.idle


def test_the_connector_is_refused_without_its_manager_and_for_other_roles(monkeypatch):
    from dray.vllm.ec.cache_connector import DrayECCacheConnector

    def refused(change, words, **how):
        config = arguments(HOST, {}, **how).create_engine_config()
        change(config)
        with pytest.raises(errors.Error) as error:
            DrayECCacheConnector(config, ECConnectorRole.SCHEDULER)
        assert words in str(error.value)

    refused(lambda c: setattr(c.ec_manager_config, "encoder_cache_manager_cls", None), "encoder_cache_manager_cls is None")
    refused(lambda c: None, "ec_role is 'ec_consumer'", transfer={"ec_role": "ec_consumer"})
    refused(lambda c: None, "'size'", transfer={"ec_connector_extra_config": {"size": 1}})


def one_order(one, seed, seen):
    """Requests with images that others have, too, aborted, preempted and reset at any time."""
    chance = random.Random(seed)
    one.answers.clear()
    known = [(f"{seed}-{i}", chance.choice((4, 20, 60, 120))) for i in range(10)]
    starts = [f"{seed}/{i}" for i in range(chance.randrange(2, 14))]
    started = []
    manager = one.manager
    manager._options = replace(manager._options, watermark=chance.choice((0, 0.2)), promote_percentile=chance.choice((0, 0.2, 1)))
    manager._watermark = int(manager._options.watermark * manager.cache_size)
    for _ in range(chance.randrange(10, 50)):
        what = chance.random()
        if starts and what < 0.4:
            started.append(name := starts.pop())
            one.add(name, [known[min(chance.randrange(10), chance.randrange(10))] for _ in range(chance.randrange(1, 5))],
                    tokens=chance.randrange(1, 4))
        elif what < 0.44 and started:
            one.abort(chance.choice(started))
            seen["aborted"] += 1
        elif what < 0.47:
            one.preempt()
            seen["preempted"] += 1
        elif what < 0.48 and not one.scheduler.requests:
            one.finish()
            one.scheduler.reset_encoder_cache()
            one.cache.clear()
            seen["reset"] += 1
        else:
            one.step()
        one.check()
    one.idle()
    one.finish()
    one.check()
    assert not manager._inputs and manager.num_freeable_slots == manager.cache_size


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("host, blocks, options", [(HOST, 400, {}), (HOST, 40, {"policy": "score", "host_policy": "lru"}), (0, 40, {})])
def test_orders(engine, host, blocks, options, late):
    """No request loses an output that it uses, no token gets another's embeddings, no capacity is exceeded, and nothing is left."""
    one, seen = engine(host, blocks, **options), Counter()
    one.late = late
    count = one.manager.stats.count

    def counted(**more):
        seen.update(more)
        count(**more)

    one.manager.stats.count = counted
    for seed in range(ORDERS):
        try:
            one_order(one, seed, seen)
        except BaseException as e:
            raise AssertionError(f"seed {seed}") from e
    print(dict(seen))
    if ORDERS >= 1000:
        missing = {what for what in EVERYTHING if not seen[what]} - (set() if host else {"promoted", "passed", "host_evictions"})
        assert not missing, f"never seen: {missing}; seen: {seen}"


def test_beside_drayecconnector(monkeypatch):
    """The manager at E and at PD, in the random orders of test_ec_orders.py."""
    monkeypatch.setattr(EncoderCacheManagerConfig, "get_encoder_cache_manager_obj", lambda self: DrayEncoderCacheManager)
    world = World(monkeypatch, random.Random())
    assert all(isinstance(one.scheduler.encoder_cache_manager, DrayEncoderCacheManager) for one in (world.e, world.pd))
    for seed in range(max(10, ORDERS // 2)):
        one_order_of_two(world, seed)
    assert world.pd.scheduler.encoder_cache_manager.stats.take()["device_hits"]
    world.e.close()
    world.pd.close()
