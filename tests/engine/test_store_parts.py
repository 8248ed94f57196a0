# SPDX-License-Identifier: Apache-2.0
"""The parts of DrayStoreConnector that need no engine: objects, keys, hits, pins, weights, limits of saves, options."""

import platform
import random
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from asked import Asked
from dray import errors
from dray.store import Status, StoreResult, Tier
from dray.vllm.layout import Family, Group, RankLayout
from dray.vllm import kernels
from dray.vllm.store import batches, block_events, connector, lookup, specs, stats, tiers, weights, worker
from dray.vllm.store import saves as saving
from dray.vllm.store.cost import Cost
from dray.vllm.store.hashing import Hashes
from dray.vllm.store.hits import first_needed, hit
from dray.vllm.store.keys import key, make_root
from dray.vllm.store.objects import Objects
from dray.vllm.store.options import Options
from dray.vllm.store.pins import Pins
from dray.vllm.store.protocol import Block
from dray.vllm.store.recent import Recent
from dray.vllm.store.room import Room
from dray.vllm.store.saves import Saves
from dray.vllm.store.stats import Stats
from vllm.config.quantization import QuantizationConfigArgs
from vllm.lora.request import LoRARequest
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.single_type_kv_cache_manager import ChunkedLocalAttentionManager, SlidingWindowManager
from vllm.v1.kv_cache_interface import (ChunkedLocalAttentionSpec, CircularBufferSpec, FullAttentionSpec, KVCacheGroupSpec,
                                        SlidingWindowSpec, UniformTypeKVCacheSpecs)
from vllm.v1.request import Request

SPEC = {"block_size": 32, "num_kv_heads": 2, "head_size": 16, "dtype": torch.bfloat16}

# --- objects ------------------------------------------------------------------------------------------

FULL = Group("attention", 32)
CPU = ["cpu CPU_ATTN vec"]


def layout(order, *, layers=3, blocks=4, heads=2, tokens=32, row=64, group=0, first_head=0):
    """One family whose tensors have the dimensions layer, block, head, token in this order in memory."""
    sizes = {"L": layers, "B": blocks, "H": heads, "N": tokens}
    stride, at = {}, row
    for letter in reversed(order):
        stride[letter], at = at, at * sizes[letter]
    return RankLayout(0, at, (Family(tuple(f"layer {i}" for i in range(layers)), tuple(i * stride["L"] for i in range(layers)), group,
                                     blocks, tokens, heads, first_head, 4, row, stride["B"], stride["H"], stride["N"]),))


def content(order, block, parts=0, **sizes):
    """What the objects of a block have if each byte of memory holds its layer, head of all ranks, and token."""
    one = layout(order, **sizes)
    family, = one.families
    memory = {}
    for i, base in enumerate(family.bases):
        for b in range(family.blocks):
            for h in range(family.heads):
                for n in range(family.tokens):
                    memory[base + b * family.block_stride + h * family.head_stride + n * family.token_stride] = (i, b, family.first_head + h, n)
    objects = Objects(one, [FULL], CPU, parts)
    found = []
    for offset, length in (piece for one in objects.layouts[0] for piece in one.block(block)):
        assert offset % 64 == length % 64 == 0
        found += [memory[at] for at in range(offset, offset + length, 64)]
    return objects, found


def test_equal_objects_of_layouts_that_differ_in_places():
    one, of_one = content("LBHN", 2)
    other, of_other = content("BLHN", 2)
    assert of_one == of_other == [(i, 2, h, n) for i in range(3) for h in range(2) for n in range(32)]
    assert one.forms == other.forms and one.sizes == other.sizes == (3 * 2 * 32 * 64,)
    assert [list(map(len, each.layouts[0])) for each in (one, other)] == [[3], [1]], "a block that is contiguous over all layers is one range"


@pytest.mark.parametrize("order", ["LBHN", "BLHN", "LBNH", "BHLN"])
def test_parts_are_equal_at_any_number_of_ranks(order):
    """Engines with one, two and four ranks have the same objects, if the heads of all ranks are four parts."""
    one, of_one = content(order, 2, 4, heads=4)
    assert len(set(one.forms[0])) == 4 and one.sizes == (3 * 32 * 64,)
    for ranks in (2, 4):
        made = [content(order, 2, 4, heads=4 // ranks, first_head=first) for first in range(0, 4, 4 // ranks)]
        assert one.forms[0] == sum((rank.forms[0] for rank, _ in made), ()) and {rank.sizes for rank, _ in made} == {one.sizes}
        assert of_one == sum((of_rank for _, of_rank in made), [])
    halves, _ = content(order, 2, 2, heads=4)
    assert halves.forms[0] == sum((content(order, 2, heads=2, first_head=first)[0].forms[0] for first in (0, 2)), ()), "a rank of two is a part"


@pytest.mark.parametrize("parts, sizes", [(3, {"heads": 4}), (8, {"heads": 4}), (2, {"heads": 1}), (1, {"heads": 2}), (2, {"heads": 2, "first_head": 1})])
def test_ranks_without_whole_parts_are_refused(parts, sizes):
    with pytest.raises(errors.Unsupported, match=f"parts is {parts}, and this rank has the heads .* of 4 of layer layer 0") as refused:
        Objects(layout("LBHN", **sizes), [FULL], CPU, parts)
    assert "divisor of the number of KV heads" in str(refused.value.fix)


def test_one_head_of_all_ranks_is_one_object():
    family, = layout("LBHN", heads=1).families
    one = RankLayout(0, 1 << 20, (replace(family, total_heads=1),))
    assert Objects(one, [FULL], CPU, 4).forms == Objects(one, [FULL], CPU).forms


def test_other_orders_inside_of_a_block_are_other_objects():
    one, of_one = content("LBHN", 1)
    other, of_other = content("LBNH", 1)
    assert of_one != of_other and one.forms != other.forms


@pytest.mark.parametrize("how", [{"heads": 1}, {"first_head": 2}, {"row": 128}, {"layers": 2}])
def test_other_contents_are_other_forms(how):
    assert Objects(layout("LBHN"), [FULL], CPU).forms != Objects(layout("LBHN", **how), [FULL], CPU).forms


def test_other_arrangements_are_other_forms():
    assert Objects(layout("LBHN"), [FULL], ["cpu CPU_ATTN amx"]).forms != Objects(layout("LBHN"), [FULL], CPU).forms


def test_arrangements(monkeypatch):
    """Those of a CPU name the instructions for which its kernels pack keys."""
    spec = FullAttentionSpec(**SPEC)
    config = SimpleNamespace(model_config=SimpleNamespace(dtype=torch.bfloat16), cache_config=SimpleNamespace(cache_dtype="auto"))
    for chosen in ("amx", "vec"):
        monkeypatch.setattr("vllm.v1.attention.backends.cpu_attn._get_attn_isa", lambda *_, chosen=chosen: chosen)
        assert kernels.arrangement("cpu", ["CPU_ATTN"], config, spec) == f"cpu CPU_ATTN {chosen}"
    assert kernels.arrangement("cuda", ["FLASH_ATTN"], config, spec) == "cuda FLASH_ATTN"
    groups = SimpleNamespace(kv_cache_groups=[KVCacheGroupSpec(["a"], spec), KVCacheGroupSpec(["b"], spec)])
    assert kernels.packing(config, groups) == "cpu vec"
    monkeypatch.delattr("vllm.v1.attention.backends.cpu_attn._get_attn_isa")
    assert kernels.arrangement("cpu", [], config, spec) == f"cpu of {platform.node()}"


def test_blocks_of_several_kernel_blocks():
    whole = Objects(layout("LBHN", blocks=8, tokens=16), [FULL], CPU)
    assert whole.sizes == (3 * 2 * 32 * 64,) and [len(each) for each in whole.layouts[0]] == [3]
    assert whole.forms != Objects(layout("LBHN"), [FULL], CPU).forms


def test_too_many_pieces(monkeypatch):
    monkeypatch.setattr("dray.vllm.store.objects.RANGES_MAX", 100)
    with pytest.raises(errors.Unsupported, match="lies in 192 pieces"):
        Objects(layout("HNLB"), [FULL], CPU)


# --- keys ---------------------------------------------------------------------------------------------

def test_keys_differ_by_everything():
    fields = {"weights": "a", "dtype": "bfloat16"}
    roots = [make_root(fields, ""), make_root(fields, "epoch"), make_root({**fields, "weights": "b"}, "")]
    keys = {key(root, form, block) for root in roots for form in ("x", "y") for block in (b"1" * 32, b"2" * 32)}
    assert len(keys) == 12 and all(len(one) <= 255 for one in keys)
    assert len(key(roots[0], "x", b"1" * 64)) <= 255


def model_config(**fields):
    hf_config = SimpleNamespace(to_dict=dict, architectures=["LlamaForCausalLM"])
    return SimpleNamespace(model_config=SimpleNamespace(hf_config=hf_config, dtype="torch.bfloat16", quantization="online", **fields),
                           cache_config=SimpleNamespace(cache_dtype="auto"))


def test_quantization_at_the_start_is_in_the_key():
    given = [None, {}, {"ignore": ["lm_head"]}, QuantizationConfigArgs(linear="fp8_per_tensor_static"),
             QuantizationConfigArgs(linear="int8_per_channel_static"), QuantizationConfigArgs(targets={"a": "mxfp8", "b": "mxfp4"}),
             QuantizationConfigArgs(targets={"b": "mxfp4", "a": "mxfp8"})]
    roots = [make_root(connector.fields_of(model_config(quantization_config=one)), "") for one in given]
    assert len(set(roots)) == len(given)


# --- what is refused --------------------------------------------------------------------------------------

def test_images_without_a_hash_are_refused():
    for cache, prefixes, refused in ((0, False, True), (4, False, False), (0, True, False)):
        config = SimpleNamespace(
            device_config=SimpleNamespace(device_type="cpu"), cache_config=SimpleNamespace(enable_prefix_caching=prefixes),
            parallel_config=SimpleNamespace(),
            model_config=SimpleNamespace(multimodal_config=SimpleNamespace(mm_processor_cache_gb=cache)))
        with pytest.raises(errors.Unsupported, match="does not hash .*images.*--enable-prefix-caching") if refused else nullcontext():
            connector._refuse(config)


def of_specs(*given):
    return specs.groups(SimpleNamespace(kv_cache_groups=[KVCacheGroupSpec(["a", "b"], one) for one in given]))


def test_blocks_that_depend_on_other_tokens_are_refused():
    prefix = FullAttentionSpec(**SPEC, non_causal=True)
    both = UniformTypeKVCacheSpecs(block_size=32, kv_cache_specs={"a": FullAttentionSpec(**SPEC), "b": prefix})
    for one in (prefix, both):
        with pytest.raises(errors.Unsupported, match="not causal"):
            of_specs(FullAttentionSpec(**SPEC), one)
    with pytest.raises(errors.Unsupported, match="not kept for the tokens"):
        of_specs(CircularBufferSpec(**SPEC))


# --- batches ------------------------------------------------------------------------------------------

@pytest.mark.parametrize("keys, ranges, parts, count", [(1024, 4096, 0, 1), (3, 4096, 0, 3), (1024, 7, 0, 4), (1024, 4096, 4, 1), (5, 4096, 4, 4), (1024, 13, 4, 4)])
def test_blocks_as_batches(monkeypatch, keys, ranges, parts, count):
    """Batches of any length have the same keys, and the same pieces for each key, as a batch for each block."""
    monkeypatch.setattr(batches, "_KEYS_MAX", keys)
    monkeypatch.setattr(batches, "RANGES_MAX", ranges)
    families = [*layout("LBHN").families, *layout("LBHN", layers=2, group=1).families]
    objects = Objects(RankLayout(0, 1 << 20, tuple(families)), [FULL, Group("attention, window 48", 32)], CPU * 2, parts)
    blocks = [Block(group, number, b"%d.%d" % (group, number), cost) for group in (0, 1) for number, cost in ((3, 0.0), (0, 0.5), (2, 0.0), (1, 2.0))]
    cut = batches._cut(objects, b"root", blocks)
    assert all(0 < len(one.items) <= keys and sum(len(layout) for _, layout, _, _ in one.items) <= ranges for one in cut) and len(cut) == count
    each = [(b, form, layout) for b in blocks for form, layout in zip(objects.forms[b.group], objects.layouts[b.group], strict=True)]
    assert len(each) == len(blocks) * (2 if parts else 1) and [block for one in cut for block in one.blocks] == [b for b, _, _ in each]
    assert [item for one in cut for item in one.items] == [
        (key(b"root", form, b.hash), layout, b.cost * len(blocks) / len(each), b.number) for b, form, layout in each]
    assert not batches._cut(objects, b"root", [])


@pytest.mark.parametrize("statuses, end", [
    ("OK", "OK"), ("EXISTS", "EXISTS"), ("OK EXISTS", "OK"), ("EXISTS OK", "OK"), ("OK BUSY", "BUSY"), ("TOO_LARGE EXISTS", "TOO_LARGE")])
def test_a_block_is_saved_when_all_its_objects_are_there(statuses, end):
    assert worker._end(Status[one] for one in statuses.split()) is Status[end]


@pytest.mark.parametrize("tokens", [32, 64, 96])
def test_hashes_of_ranges_of_blocks(tokens):
    config = SimpleNamespace(cache_config=SimpleNamespace(block_size=32, prefix_caching_hash_algo="sha256"))
    hashes = Hashes(config, None, [Group("attention", tokens)])
    request = SimpleNamespace(block_hashes=[b"%d" % i for i in range(10)])
    for first in range(6):
        for end in range(first, 14):
            wanted = [hashes.of(request, 0, block) for block in range(first, end)]
            assert hashes.among(request, 0, range(first, end)) == [one for one in wanted if one is not None]


# --- hits ---------------------------------------------------------------------------------------------

def brute(groups, first, end, has):
    step = max(group.tokens for group in groups)
    for tokens in range(end // step * step, first, -step):
        if all(has(number, block) for number, group in enumerate(groups)
               for block in range(max(first_needed(group, tokens), first // group.tokens), tokens // group.tokens)):
            return tokens
    return first


@pytest.mark.parametrize("spec, manager", [
    (FullAttentionSpec(**SPEC), None), (FullAttentionSpec(**SPEC, sliding_window=100), None),
    (FullAttentionSpec(**SPEC, attention_chunk_size=64), None), (SlidingWindowSpec(**SPEC, sliding_window=100), SlidingWindowManager),
    (SlidingWindowSpec(**SPEC, sliding_window=100, extra_retained_tokens=3), SlidingWindowManager),
    (ChunkedLocalAttentionSpec(**SPEC, attention_chunk_size=64), ChunkedLocalAttentionManager)])
def test_blocks_that_the_engine_reads(spec, manager):
    """All of a group whose blocks the engine keeps, also if some of its layers see a window or a chunk only."""
    group, = of_specs(spec)
    known = SimpleNamespace(**{name: getattr(spec, name, None) for name in ("sliding_window", "extra_retained_tokens", "attention_chunk_size")})
    for end in range(0, 400):
        assert first_needed(group, end) == (manager.get_num_skipped_tokens(known, end) // 32 if manager else 0)


def test_hits_are_the_longest():
    chance = random.Random(27)
    kinds = [[FULL], [FULL, Group("attention, window 48", 32)], [Group("attention", 64), Group("attention, window 20", 32)],
             [Group("attention, window 100", 32)], [FULL, Group("attention, chunks of 64", 32)]]
    for _ in range(2000):
        groups = chance.choice(kinds)
        missing = {(chance.randrange(2), chance.randrange(10)) for _ in range(chance.randrange(4))}
        first, end = 64 * chance.randrange(3), 32 * chance.randrange(12)

        def has(group, block, missing=missing):
            return (group, block) not in missing

        assert hit(groups, first, end, has) == brute(groups, first, end, has), (groups, first, end, missing)


# --- pins ---------------------------------------------------------------------------------------------

class FakeStore:
    space = ""

    def __init__(self):
        self.ended, self.error = [], None

    def unpin(self, keys, *, wait):
        if self.error:
            raise self.error
        self.ended += keys


def test_a_key_is_let_go_by_its_last_request():
    pins = Pins(store := FakeStore())
    pins.take([b"a", b"b"])
    pins.take([b"b"])
    pins.give([b"a", b"b"], pins.session)
    pins.flush()
    assert store.ended == [b"a"] and len(pins) == 1
    pins.give([b"b"], pins.session)
    pins.take([b"b"])  # before the message
    pins.flush()
    assert store.ended == [b"a"]
    pins.give([b"b"], pins.session)
    store.error = errors.Busy("full")
    pins.flush()
    assert pins.pending
    store.error = None
    pins.flush()
    assert store.ended == [b"a", b"b"] and not pins.pending and not len(pins)


def test_pins_end_with_the_session():
    pins = Pins(store := FakeStore())
    pins.take([b"a", b"b"])
    before = pins.session
    pins.lose()
    pins.take([b"b"])
    pins.give([b"a", b"b"], before)  # asked before the loss, perhaps pinned after it
    pins.flush()
    assert store.ended == [b"a"], "b is another request's"


# --- lookups ------------------------------------------------------------------------------------------

class AskedStore(FakeStore):
    def __init__(self):
        super().__init__()
        self.asked = []

    def pin(self, keys, *, wait):
        self.asked.append(Asked(list(keys)))
        return self.asked[-1]

    def exists(self, keys, *, lease, wait):
        assert lease > 0
        self.asked.append(Asked(("elsewhere", *keys)))
        return self.asked[-1]

    def answer(self, missing=(), length=5, busy=(), here=()):
        """here: keys of which this agent has the objects, although it was other agents that were asked for."""
        one = self.asked[-1]
        elsewhere = one.what[0] == "elsewhere"
        one.value = [StoreResult(Status.NOT_FOUND if key in missing else Status.BUSY if key in busy else Status.OK, length, 0.2,
                                 Tier.AGENT if elsewhere and key not in here else Tier.MEMORY)
                     for key in one.what if key != "elsewhere"]


def ask(monkeypatch, blocks, ranks=2, groups=(FULL,), space=""):
    monkeypatch.setattr(lookup, "_KEYS_MAX", 6)
    store = AskedStore()
    store.space = space
    pins = Pins(store)

    def keys_of(group, block):
        return {b"%d.%d.%d" % (rank, group, block): 5 for rank in range(ranks)} if block < blocks else None
    return store, pins, lookup.Lookup(store, pins, groups, keys_of, 32, 32 * blocks)


def test_long_prompts_are_asked_in_parts(monkeypatch):
    store, pins, question = ask(monkeypatch, 9)
    assert store.asked[0].what == [b"0.0.1", b"1.0.1", b"0.0.2", b"1.0.2", b"0.0.3", b"1.0.3"] and not question.answered()
    store.answer()
    assert not question.answered() and len(store.asked) == 2
    store.answer({b"1.0.5"})
    assert question.answered() and question.found() == 5 * 32 and len(store.asked) == 2, "nothing behind a gap is asked"
    assert question.keys() == [b"%d.0.%d" % (rank, block) for block in range(1, 5) for rank in range(2)]
    pins.flush()
    assert sorted(store.ended) == [b"0.0.5", b"0.0.6", b"1.0.5", b"1.0.6"]
    question.release()
    pins.flush()
    assert not len(pins) and len(store.ended) == 12


def test_gaps_of_a_window_are_no_end(monkeypatch):
    store, _, question = ask(monkeypatch, 9, 1, [FULL, Group("attention, window 33", 32)])
    store.answer({b"0.1.1", b"0.1.2"})
    assert not question.answered()
    store.answer({b"0.1.4", b"0.1.5"})
    assert not question.answered()
    store.answer()
    while not question.answered():
        store.answer()
    assert question.found() == 9 * 32


def test_objects_of_another_size_are_not_found(monkeypatch):
    store, _, question = ask(monkeypatch, 3)
    store.answer(length=4)
    assert question.answered() and question.found() == 32 and not question.keys()


def test_a_question_that_fails(monkeypatch):
    store, pins, question = ask(monkeypatch, 9)
    store.answer()
    question.answered()
    store.asked[-1].failure = errors.AgentRestarted("the agent was restarted")
    assert question.answered() and question.error.name == "agent_restarted"
    assert question.found() == 4 * 32
    question.release()
    assert not len(pins)


@pytest.fixture
def clock(monkeypatch):
    now = SimpleNamespace(value=1000.0)
    monkeypatch.setattr(lookup, "time", SimpleNamespace(monotonic=lambda: now.value))
    return now


def test_keys_that_are_busy_are_asked_again(monkeypatch, clock):
    store, pins, question = ask(monkeypatch, 6)
    store.answer(busy={b"0.0.2", b"1.0.2"})
    assert not question.answered() and len(store.asked) == 1, "the store has said when it has room"
    clock.value += 0.21
    assert not question.answered() and store.asked[1].what == [b"0.0.2", b"1.0.2"]
    store.answer(busy={b"1.0.2"})
    assert not question.answered() and len(store.asked) == 2
    clock.value += 0.21
    assert not question.answered() and store.asked[2].what == [b"1.0.2"]
    store.answer()
    assert not question.answered() and store.asked[3].what == [b"0.0.4", b"1.0.4", b"0.0.5", b"1.0.5"]
    store.answer()
    assert question.answered() and question.found() == 6 * 32
    question.release()
    pins.flush()
    assert not len(pins) and len(store.ended) == 10 == len(set(store.ended))


def test_keys_that_stay_busy(monkeypatch, clock):
    """When its time is over, a request takes what the store had room for."""
    store, pins, question = ask(monkeypatch, 6)
    store.answer(busy={b"0.0.2"})
    assert not question.answered() and question.answered(patient=False)
    assert question.found() == 2 * 32 and question.answered() and len(store.asked) == 1
    question.release()
    assert not len(pins)


def test_session_that_is_lost_before_keys_are_asked_again(monkeypatch, clock):
    store, pins, question = ask(monkeypatch, 3)
    store.answer(busy={b"0.0.2"})
    assert not question.answered()
    pins.lose()
    clock.value += 0.21
    assert question.answered() and len(store.asked) == 1 and question.found() == 32
    question.release()
    assert not len(pins)


def test_other_agents_are_asked_for_the_rest(monkeypatch, clock):
    """Of each part, in one batch; keys that are busy are asked for again at both."""
    store, pins, question = ask(monkeypatch, 6, 1, space="kv")
    store.answer(missing={b"0.0.2", b"0.0.3", b"0.0.4"}, busy={b"0.0.5"})
    assert not question.answered() and store.asked[1].what == ("elsewhere", b"0.0.2", b"0.0.3", b"0.0.4")
    store.answer(missing={b"0.0.4"}, busy={b"0.0.3"})
    assert not question.answered() and len(store.asked) == 2
    assert question.knows(0, 2) is True and question.knows(0, 4) is False and question.knows(0, 5) is None
    clock.value += 0.21
    assert not question.answered() and sorted(store.asked[2].what) == [b"0.0.3", b"0.0.5"]
    store.answer(missing={b"0.0.3"})
    assert not question.answered() and store.asked[3].what == ("elsewhere", b"0.0.3")
    store.answer()
    assert question.answered() and question.found() == 4 * 32 and question.keys() == [b"0.0.1", b"0.0.2", b"0.0.3"]
    question.release()
    pins.flush()
    assert not len(pins) and sorted(store.ended) == [b"0.0.%d" % i for i in range(1, 6)]


def test_objects_that_come_meanwhile_are_pinned(monkeypatch, clock):
    """What this agent has when others are asked is not kept by that question, so it does not count before it is pinned."""
    store, pins, question = ask(monkeypatch, 4, 1, space="kv")
    store.answer(missing={b"0.0.2", b"0.0.3"})
    assert not question.answered()
    store.answer(here={b"0.0.3"})
    assert not question.answered() and store.asked[2].what == [b"0.0.3"]
    assert question.knows(0, 2) is True and question.knows(0, 3) is None
    store.answer()
    assert question.answered() and question.found() == 4 * 32 and len(store.asked) == 3
    question.release()
    assert not len(pins)


def test_other_agents_are_not_waited_for(monkeypatch, clock):
    """What they might have is not known when the time of the request is over, or the session is lost."""
    store, pins, question = ask(monkeypatch, 3, 1, space="kv")
    store.answer(missing={b"0.0.2"})
    assert question.answered(patient=False) and len(store.asked) == 1
    assert question.knows(0, 2) is None and question.found() == 2 * 32
    question.release()
    store, pins, question = ask(monkeypatch, 3, 1, space="kv")
    store.answer(missing={b"0.0.2"})
    pins.lose()
    assert question.answered() and len(store.asked) == 1 and question.found() == 32
    question.release()
    assert not len(pins)


@pytest.mark.parametrize("blocks", [9, 3], ids=["between parts", "with the last answer"])
def test_session_that_is_lost_with_an_answer(monkeypatch, blocks):
    store, pins, question = ask(monkeypatch, blocks)
    store.answer()
    pins.lose()
    assert question.answered() and len(store.asked) == 1
    assert question.found() == 32
    question.release()
    assert not len(pins)


# --- weights ------------------------------------------------------------------------------------------

def engine_config(folder, load_format="auto"):
    model = SimpleNamespace(model=str(folder), seed=7)
    return SimpleNamespace(model_config=model, load_config=SimpleNamespace(load_format=load_format), speculative_config=None)


def test_weights_are_told_apart_by_their_content(tmp_path, monkeypatch):
    monkeypatch.setattr(weights, "_PART", 1000)
    a, b = tmp_path / "a", tmp_path / "b"
    for folder, byte in ((a, 0), (b, 1)):
        folder.mkdir()
        (folder / "config.json").write_text("{}")
        for i in range(2):
            (folder / f"model-{i}.safetensors").write_bytes(bytes(2500 + i))
        with (folder / "model-1.safetensors").open("r+b") as file:  # one byte, of equal size
            file.seek(2345)
            file.write(bytes([byte]))
    of_a, of_b = (weights.digest(weights.find_files(engine_config(folder)), 2) for folder in (a, b))
    assert of_a != of_b
    (a / "model-0.safetensors").rename(a / "renamed.safetensors")
    assert weights.digest(weights.find_files(engine_config(a)), 1) == of_a


def test_files_of_the_cache_are_not_read(tmp_path):
    blobs, model = tmp_path / "blobs", tmp_path / "snapshots/1"
    blobs.mkdir()
    model.mkdir(parents=True)
    (blobs / ("ab" * 32)).write_bytes(b"not read")
    (model / "model.safetensors").symlink_to(blobs / ("ab" * 32))
    before = weights.digest(weights.find_files(engine_config(model)), 1)
    (blobs / ("ab" * 32)).write_bytes(b"changed")
    assert weights.digest(weights.find_files(engine_config(model)), 1) == before


@pytest.mark.parametrize("load_format, name, why", [("runai_streamer", "", "load format 'runai_streamer'"), ("auto", "", "no weight files"),
                                                    ("auto", "no/such-model", "cannot be found")])
def test_weights_that_are_unknown(tmp_path, load_format, name, why):
    config = engine_config(name or tmp_path, load_format)
    with pytest.raises(errors.Unsupported, match=f"{why}.*option 'weights'"):
        weights.of_engine(config, None)
    assert weights.of_engine(config, "mine").text == "named mine"


def test_dummy_weights(tmp_path):
    assert weights.of_engine(engine_config(tmp_path, "dummy"), None).text == "dummy 7"


# --- cost ---------------------------------------------------------------------------------------------

def test_cost_grows_with_the_position():
    cost = Cost(SimpleNamespace(num_hidden_layers=32, hidden_size=4096, num_attention_heads=32, intermediate_size=14336))
    values = [cost.seconds(first, 32) for first in (0, 1024, 32768)]
    assert values == sorted(values) and values[2] > 1.5 * values[0] and 1e-4 < values[0] < 1e-1


# --- saves --------------------------------------------------------------------------------------------

class Pool:
    def touch(self, blocks):
        for block in blocks:
            block.ref_cnt += 1

    def free_blocks(self, blocks):
        for block in blocks:
            block.ref_cnt -= 1


class Engine:
    """Requests whose blocks are all computed. Their numbers are hundreds of the request's, and their hashes those of the tokens."""

    def __init__(self, monkeypatch, pool=None, **how):
        self.now, self.block_pool = 1000.0, pool or Pool()
        self.requests, self.blocks, self.later = {}, {}, {}
        monkeypatch.setattr(saving, "time", SimpleNamespace(monotonic=lambda: self.now))
        self.stats = Stats()
        cost = SimpleNamespace(seconds=lambda first, tokens: 1.0)
        self.saves = Saves([FULL], lambda request, group, block: request.hashes[block] if block < len(request.hashes) else None, cost,
                           self.stats, **{"policy": "always", "limit": 0, "blocks": 1000, **how})
        self.saves.bind(self)
        self.saves.sizes = (10,)

    def get_blocks(self, name):
        return SimpleNamespace(blocks=(self.blocks[name],))

    def add(self, name, hashes, computed=None):
        self.requests[name] = SimpleNamespace(request_id=name, hashes=hashes, num_in_flight_tokens=0, num_tokens=32 * len(hashes),
                                              num_computed_tokens=0,
                                              status=SimpleNamespace(name="RUNNING"))
        self.later[name] = 32 * len(hashes) if computed is None else computed
        self.blocks[name] = [SimpleNamespace(block_id=i, ref_cnt=1, is_null=False) for i in range(len(hashes))]
        return self.requests[name]

    def step(self, *names, preempted=(), root=b"root", wanted=0):
        for name in names:
            if name in self.later:  # it begins in the step before
                self._step([name], (), root)
                self.requests[name].num_computed_tokens = self.later.pop(name)
        return self._step(names, preempted, root, wanted)

    def _step(self, names, preempted, root, wanted=0):
        output = SimpleNamespace(num_scheduled_tokens=dict.fromkeys(names, 1), preempted_req_ids=set(preempted), scheduled_new_reqs=(),
                                 scheduled_cached_reqs=SimpleNamespace(new_block_ids=()))
        return [(block.hash, save.number) for save in self.saves.step(output, self.requests.get, root, wanted) for block in save.blocks]

    def finish(self, name):
        self.saves.finished(self.requests[name])

    def dropped(self):
        return (self.stats.take() or {}).get("dropped_blocks", {})


def test_blocks_are_kept_until_all_ranks_have_saved_them(monkeypatch):
    engine = Engine(monkeypatch)
    engine.saves.ranks = 2
    engine.add("a", [b"1", b"2"], computed=63)
    assert [h for h, _ in engine.step("a")] == [b"1"]
    engine.requests["a"].num_computed_tokens = 96
    engine.requests["a"].num_in_flight_tokens = 33
    assert not engine.step("a"), "what is in flight is not in place"
    engine.requests["a"].num_in_flight_tokens = 32
    (_, number), = engine.step("a")
    engine.finish("a")
    assert [block.ref_cnt for block in engine.blocks["a"]] == [2, 2] and engine.saves.busy
    engine.saves.ended({1: 1, number: 2}, set())
    assert [block.ref_cnt for block in engine.blocks["a"]] == [2, 1]
    engine.saves.ended({1: 1}, set())
    assert engine.saves.idle and [block.ref_cnt for block in engine.blocks["a"]] == [1, 1]


def test_blocks_are_saved_once(monkeypatch):
    engine = Engine(monkeypatch)
    engine.add("a", [b"1", b"2"])
    engine.add("b", [b"1", b"3"])
    assert [h for h, _ in engine.step("a", "b")] == [b"1", b"2", b"3"]
    engine.saves.ended({1: 1}, {1})  # the store was busy
    engine.add("c", [b"1", b"3"])
    assert [h for h, _ in engine.step("c")] == [b"1"]


def test_second_use(monkeypatch):
    engine = Engine(monkeypatch, policy="second_use")
    engine.add("a", [b"1", b"2"])
    assert not engine.step("a") and not engine.step("a")
    engine.add("b", [b"1", b"3"])
    assert [h for h, _ in engine.step("b")] == [b"1"]


def test_blocks_of_an_earlier_life_are_not_saved(monkeypatch):
    """A request that ends while another connector loads for it has blocks with anything in them."""
    engine = Engine(monkeypatch)
    engine.add("never scheduled", [b"1"])
    engine.finish("never scheduled")
    engine.add("a", [b"1", b"2", b"3"], computed=32)
    engine.step("a")
    engine.step(preempted=["a"])
    engine.requests["a"].num_computed_tokens = 96  # which the other connector has promised
    engine.finish("a")
    assert not engine.step() and engine.saves.count == 1


def test_blocks_that_another_connector_loads_in_the_step(monkeypatch):
    """They are counted as computed in the step that loads them, and hold what they should after it."""
    engine = Engine(monkeypatch)
    request = engine.add("a", [b"1", b"2", b"3"], computed=65)
    request.num_computed_tokens = 64
    assert [h for h, _ in engine.step("a")] == [b"1", b"2"], "in the step after"
    request = engine.add("b", [b"4", b"5"])
    engine.later.clear()
    request.num_computed_tokens = 64
    assert not engine.step("b")
    engine.finish("b")
    assert not engine.step() and engine.saves.count == 1
    engine.add("c", [b"6"])
    engine.step()
    engine.later.clear()
    engine.step("c")
    engine.requests["c"].num_computed_tokens = 32
    engine.requests["c"].status.name = "FINISHED_ERROR"
    engine.finish("c")
    assert not engine.step(), "the blocks of a request that failed"


def test_limit_of_blocks(monkeypatch):
    engine = Engine(monkeypatch, blocks=6)
    engine.add("a", [b"%d" % i for i in range(5)])
    assert len(engine.step("a")) == 3
    assert not engine.step("a")
    engine.saves.ended({1: 1}, set())
    assert len(engine.step("a")) == 2, "what was put off is saved later"
    engine.add("b", [b"b%d" % i for i in range(5)])
    assert len(engine.step("b")) == 1
    engine.finish("b")
    assert engine.dropped() == {"limit": 4}


def test_blocks_of_loads_count_in_the_limit(monkeypatch):
    """Those that loads have, or are lent to loads that failed. Each side has a part that the other one cannot take."""
    engine = Engine(monkeypatch, blocks=24)
    engine.saves.room.loading = 5
    engine.add("a", [b"%d" % i for i in range(20)])
    assert len(engine.step("a")) == 7
    engine.saves.ended({1: 1}, set())
    engine.saves.room.loading = 0
    assert len(engine.step("a")) == 9
    engine.saves.room.loading = 12
    engine.saves.ended({2: 1}, set())
    assert not engine.step("a")
    engine.saves.room.loading = 9
    assert len(engine.step("a")) == 3


def test_rooms_of_loads():
    room = Room(24)
    assert room.for_load(9) and not room.for_save(9) and room.for_save(8)
    room.held = 4
    assert room.for_load(8) and not room.for_load(9), "half of the blocks for both"
    room.loading, room.held = 3, 9
    assert not room.for_load(1)
    room.held = 0
    assert room.for_load(6) and not room.for_load(7), "a part is left to saves"


def test_large_loads_and_saves_take_turns():
    room = Room(24)

    def step(wants_to_save):
        room.turn()
        if wants_to_save and room.for_save(0):
            room.held += 1
        room.over()

    step(True)
    assert room.held == 1 and not room.for_load(10)
    step(True)
    assert room.held == 1 and not room.for_save(0), "saves pause while it waits for them"
    room.held = 0
    assert room.for_load(10)
    room.loading = 20
    step(True)
    step(True)
    assert room.held == 0 and not room.for_load(1)
    room.loading = 0
    assert not room.for_load(10), "saves have waited, too"
    step(True)
    assert room.held == 1
    room.held = 0
    assert room.for_load(10)
    room.loading = 20
    step(False)
    room.loading = 0
    assert room.for_load(10), "there is nothing to save"


def test_blocks_that_become_free_without_a_preemption(monkeypatch):
    """The engine waits for those that nothing but a save holds, unless the agent is stuck."""
    engine = Engine(monkeypatch)
    engine.add("a", [b"1"])
    engine.step("a")
    assert not engine.saves.frees_blocks, "the request has it, too"
    block, = engine.blocks["a"]
    block.ref_cnt -= 1
    assert engine.saves.frees_blocks
    engine.now += 2
    assert not engine.saves.frees_blocks
    engine.now -= 2
    engine.saves.ended({1: 1}, set())
    assert not engine.saves.frees_blocks


class Evicting(Engine):
    """With vLLM's own pool of blocks, all of which are full of what requests have computed."""

    def __init__(self, monkeypatch, blocks, ahead):
        super().__init__(monkeypatch, BlockPool(blocks + 1, True, 32), policy="eviction", ahead=ahead)

    def add(self, name, hashes, computed=None):
        request = super().add(name, hashes, computed)
        request.block_hashes = hashes
        self.blocks[name] = self.block_pool.get_new_blocks(len(hashes))
        self.block_pool.cache_full_blocks(request, self.blocks[name], 0, len(hashes), 32, 0)
        return request

    def free(self, name):
        self.block_pool.free_blocks(reversed(self.blocks[name]))

    def queue(self):
        return [block.block_hash[:1] for block in self.block_pool.free_block_queue.get_all_free_blocks()]


def test_saved_blocks_are_lost_first(monkeypatch):
    """A block that was saved keeps its place in the engine's queue, so that nothing behind it is saved before its time."""
    engine = Evicting(monkeypatch, 8, 2)
    names = ("1234", "5678")
    for name in names:
        engine.add(name, [one.encode() for one in name])
    engine.step(*names)
    for name in names:
        engine.finish(name)
        engine.free(name)
    order = engine.queue()
    assert order == [b"4", b"3", b"2", b"1", b"8", b"7", b"6", b"5"]
    saves = engine.step()
    assert [one for one, _ in saves] == [b"4", b"3"]
    more = engine.step()
    assert [one for one, _ in more] == [b"2", b"1"], "the first ones cannot be taken now"
    engine.saves.ended({1: 1, 2: 1}, set())
    assert engine.queue() == order and not engine.step() and engine.saves.idle


def test_blocks_that_cannot_be_saved_at_their_eviction(monkeypatch):
    """An engine with nothing else to do does not try them for ever."""
    engine = Evicting(monkeypatch, 4, 2)
    engine.add("1234", [b"1", b"2", b"3", b"4"])
    engine.step("1234")
    engine.finish("1234")
    engine.free("1234")
    order = engine.queue()
    assert len(engine.step()) == 2
    engine.saves.ended({1: 1}, {1})
    assert engine.queue() == order and not engine.step()


def test_blocks_of_a_preempted_request_at_their_eviction(monkeypatch):
    """When it goes on with other blocks, those are saved from the first one on."""
    engine = Evicting(monkeypatch, 4, 4)
    request = engine.add("a", [b"1", b"2", b"3", b"4"], computed=64)
    engine.step("a")
    assert engine.saves._followed["a"].next == [2]
    engine.free("a")
    assert [engine.block_pool._maybe_evict_cached_block(block) for block in engine.blocks["a"]] == [True] * 4
    request.num_computed_tokens = 0
    engine.step(preempted=["a"])
    engine.add("a", [b"1", b"2", b"3", b"4"])
    engine.requests["a"] = request
    engine.step("a")
    engine.finish("a")
    engine.free("a")
    assert [one for one, _ in engine.step()] == [b"4", b"3"] and [one for one, _ in engine.step()] == [b"2"]


def test_blocks_that_a_load_takes_are_saved_before(monkeypatch):
    """A load takes more blocks than a step that computes. It waits until those are safe to lose, and no more are saved for it."""
    engine = Evicting(monkeypatch, 12, 2)
    names = ("1234", "5678", "abcd")
    for name in names:
        engine.add(name, [one.encode() for one in name])
    engine.step(*names)
    for name in names:
        engine.finish(name)
        engine.free(name)
    order = engine.queue()
    assert order[:5] == [b"4", b"3", b"2", b"1", b"8"]
    assert engine.saves.holds_up(3)
    first = engine.step(wanted=3)
    assert [one for one, _ in first] == [b"4", b"3", b"2", b"1", b"8"], "the load's, and those of the step after it"
    assert engine.saves.holds_up(3), "they are not free, and the load would take others"
    more = engine.step(wanted=3)
    assert [one for one, _ in more] == [b"7", b"6"], "what is being saved comes back to the front"
    engine.saves.ended({1: 1, 2: 1}, set())
    assert engine.queue() == order and not engine.saves.holds_up(3) and not engine.step(wanted=3)
    assert not engine.saves.holds_up(7) and engine.saves.holds_up(8)
    assert not engine.saves.holds_up(13), "the engine cannot give it so many"


def test_loads_do_not_wait_for_what_cannot_be_saved(monkeypatch):
    engine = Evicting(monkeypatch, 4, 1)
    engine.add("1234", [b"1", b"2", b"3", b"4"])
    engine.step("1234")
    engine.finish("1234")
    engine.free("1234")
    assert engine.saves.holds_up(2)
    engine.saves.room.loading = 500
    assert not engine.saves.holds_up(2), "there is no room for saves, and none is in flight"
    engine.saves.room.loading = 0
    assert len(engine.step(wanted=2)) == 2 and engine.saves.holds_up(2)
    engine.now += 2
    assert not engine.saves.holds_up(2), "the agent does not answer"
    engine.now -= 2
    engine.saves.ended({1: 1}, {1})
    assert not engine.saves.holds_up(2) and engine.saves.holds_up(3), "what could not be saved is lost"
    limited = Evicting(monkeypatch, 4, 1)
    limited.saves._limit, limited.saves._allowance = 10, 0.0
    limited.add("1234", [b"1", b"2", b"3", b"4"])
    limited.step("1234")
    limited.finish("1234")
    limited.free("1234")
    assert not limited.saves.holds_up(2), "the limit of bytes does not allow it"


def test_limit_of_bytes(monkeypatch):
    engine = Engine(monkeypatch, limit=25)
    engine.add("a", [b"%d" % i for i in range(9)])
    assert len(engine.step("a")) == 3
    assert not engine.step("a")
    engine.now += 1
    engine.saves.ended({1: 1}, set())
    assert len(engine.step("a")) == 2, "the first second had more than its part"


def test_an_agent_that_does_not_answer_gets_no_more(monkeypatch):
    engine = Engine(monkeypatch)
    engine.add("a", [b"1"])
    engine.step("a")
    engine.now += 2
    engine.add("b", [b"2"])
    assert not engine.step("b")
    engine.saves.ended({1: 1}, set())
    assert engine.step("b")


def test_another_epoch(monkeypatch):
    engine = Engine(monkeypatch)
    engine.add("a", [b"1", b"2"], computed=32)
    engine.step("a")
    engine.saves.reset([])
    engine.requests["a"].num_computed_tokens = 64
    assert not engine.step("a"), "its first block has another epoch"
    engine.finish("a")
    assert not engine.dropped()
    engine.add("b", [b"1"])
    assert engine.step("b", root=b"other")


def test_recent():
    recent = Recent(2)
    assert recent.add(1) and recent.add(2) and not recent.add(1) and recent.add(3)
    assert 1 in recent and 2 not in recent and len(recent) == 2
    recent.update([1, 4])
    assert 1 in recent and 4 in recent and 3 not in recent and len(recent) == 2


# --- statistics ---------------------------------------------------------------------------------------

def test_counts_are_added():
    """What only one of both has is kept, and what this version does not know is left out."""
    total = stats.new()
    stats.add(total, {"load_seconds": [1.0], "loaded_blocks": 2, "load_failures": {"deadline": 1}, "of a newer version": 7})
    more = {"load_seconds": [2.0], "load_failures": {"deadline": 2, "not_found": 1}}
    stats.add(total, more)
    assert total == {**stats.new(), "load_seconds": [1.0, 2.0], "loaded_blocks": 2, "load_failures": {"deadline": 3, "not_found": 1}}
    stats.add(total, more)
    assert more == {"load_seconds": [2.0], "load_failures": {"deadline": 2, "not_found": 1}}, "what is added stays as it is"
    data = {}
    stats.add(data, more)
    assert data == more and data["load_seconds"] is not more["load_seconds"]


# --- events -------------------------------------------------------------------------------------------

def asking(tokens=160, **how):
    """A request of real hashes."""
    init_none_hash(sha256)
    return Request("a", list(range(tokens)), SamplingParams(max_tokens=1), None, block_hasher=get_request_block_hasher(32, sha256), **how)


IMAGES = [MultiModalFeatureSpec(None, "image", name, PlaceholderRange(offset, length))
          for name, offset, length in (("one", 5, 20), ("two", 30, 70), ("three", 110, 3))]


@pytest.mark.parametrize("tokens", [32, 64])
@pytest.mark.parametrize("how", [
    {}, {"cache_salt": "mine"}, {"mm_features": IMAGES}, {"mm_features": IMAGES, "cache_salt": "mine"},
    {"prompt_embeds": torch.arange(160 * 4, dtype=torch.float32).reshape(160, 4)},
    {"lora_request": LoRARequest("adapter", 7, "/adapters/7"), "mm_features": IMAGES}], ids=lambda how: "-".join(how) or "tokens")
def test_events_are_those_of_the_engine(how, tokens):
    """A subscriber makes the same hashes of them: they name the same images, salts and adapters for each block."""
    request, count = asking(**how), 160 // tokens
    pool = BlockPool(9, True, 32, enable_kv_cache_events=True)
    pool.cache_full_blocks(request, pool.get_new_blocks(count), 0, count, tokens, 0)
    own, = pool.take_events()
    events = block_events.BlockEvents([Group("attention", tokens)], lambda request, group, block: request.block_hashes[(block + 1) * tokens // 32 - 1], 99)
    for index in range(count):
        one_hash = request.block_hashes[(index + 1) * tokens // 32 - 1]
        if index % 2:
            events.found(request, 0, index, one_hash)
        else:
            events.describe(request, 0, index, one_hash)
            events.stored(0, one_hash)
    found = events.take()
    assert [one.block_hashes for one in found] == [[one] for one in own.block_hashes]
    assert [one.extra_keys for one in found] == [None if own.extra_keys is None else [one] for one in own.extra_keys or [None] * count]
    assert [token for one in found for token in one.token_ids] == own.token_ids
    assert {(one.lora_id, one.lora_name, one.block_size) for one in found} == {(own.lora_id, own.lora_name, tokens)}


def test_events_keep_what_is_described_again():
    """Room is made by the block that was described longest ago, and a block that is described again is a new one."""
    request = asking()
    hashes = request.block_hashes
    events = block_events.BlockEvents([FULL], lambda request, group, block: request.block_hashes[block], 3)
    for index in (0, 1, 0, 2, 3):
        events.describe(request, 0, index, hashes[index])
    for index in range(4):
        events.stored(0, hashes[index])
    assert [one.token_ids for one in events.take()] == [list(request.all_token_ids[index * 32:(index + 1) * 32]) for index in (0, 2, 3)]


def test_events_of_a_version_that_has_no_keys(monkeypatch):
    monkeypatch.setattr(block_events, "_extra_keys_of", None)
    events = block_events.BlockEvents([FULL], lambda request, group, block: request.block_hashes[block], 99)
    request = asking(cache_salt="mine")
    events.found(request, 0, 0, request.block_hashes[0])
    assert events.take()[0].extra_keys is None


# --- options ------------------------------------------------------------------------------------------

@pytest.mark.parametrize("config, message", [
    ({"sokcet": "x"}, "unknown option 'sokcet'; did you mean 'socket'\\?.*Options of DrayStoreConnector: deadline"),
    ({"save": "sometimes"}, "option 'save' .* is 'sometimes'.*'always', 'second_use'"), ({"save_limit": -1}, "save_limit"),
    ({"save_limit": True}, "save_limit"), ({"space": "x" * 65}, "space.*64 bytes"), ({"space": 1}, "space"), ({"weights": ""}, "weights"),
    ({"parts": -1}, "parts.*divisor of the number of KV heads"), ({"parts": True}, "parts"), ({"parts": "2"}, "parts"),
    ({"lookup": 0}, "lookup"), ({"log": "yes"}, "log")])
def test_refused_options(config, message):
    with pytest.raises(errors.Invalid, match=message):
        Options.parse(config)


def test_options():
    assert Options.parse({"save_limit": 0, "space": "kv"}) == Options(space="kv")


def test_objects_by_tier():
    ok = [StoreResult(Status.OK, 100, 0.0, tier) for tier in (Tier.MEMORY, Tier.DISK, Tier.MEMORY, Tier.AGENT)]
    assert tiers.sentence([*ok, StoreResult(Status.NOT_FOUND, 0, 0.0), StoreResult(Status.LOST, 7, 0.0, Tier.AGENT)]) \
        == "2 of 200 bytes from memory, 1 of 100 bytes from disk, 1 of 100 bytes from other agents"
    assert tiers.sentence([]) == "none"
