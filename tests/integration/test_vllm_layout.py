# SPDX-License-Identifier: Apache-2.0
"""dray.vllm.layout: which bytes a request's blocks are, and copying them between caches of different form.

Each test builds the caches of two engines in plain memory, fills those of P, carries the operations out,
and looks at what D has for each layer, head and token.
"""

import itertools
import json
import re
from dataclasses import dataclass, replace

import numpy as np
import pytest

from dray import errors
from dray.vllm import layout as lay

ROW = 8  # bytes of one head of one token
PARTS = {"P": 2}


@dataclass
class Form:
    """How an engine keeps its cache."""

    order: str = "BHNC"
    tokens: int = 16  # of a block of the engine
    ratio: int = 1  # blocks of the tensor in one of the engine
    tp: int = 1
    pp: int = 1
    blocks: int = 12
    padding: int = 0  # bytes behind each block
    itemsize: int = 2


class Cache:
    """The memory of one rank, and views of it by layer, part, head and token."""

    def __init__(self, form, rank, layers, heads, kinds):
        self.form, self.memory, self.tensors, self.views = form, None, [], {}
        tp, stage = rank % form.tp, rank // form.tp
        mine = np.array_split(np.arange(len(layers)), form.pp)[stage]
        held = max(1, heads // form.tp)
        first_head = tp * heads // form.tp if heads >= form.tp else tp // (form.tp // heads)
        strides_of, offset = [], 0
        size = {"B": form.blocks * form.ratio, "N": form.tokens // form.ratio, "H": held, "P": 2, "C": ROW}
        shape = [size[letter] for letter in form.order]
        for index in mine:
            strides, step = [0] * len(shape), 1
            for i in reversed(range(len(shape))):
                strides[i] = step
                step *= shape[i]
                if form.order[i + 1:i + 2] and form.order[i] == "B":
                    pass
                if i and form.order[i - 1] == "B":
                    step += form.padding
            strides_of.append((index, offset, strides))
            offset += step
        self.memory = np.zeros(offset, dtype=np.uint8)
        for index, base, strides in strides_of:
            name, group = layers[index]
            assert ROW % form.itemsize == 0
            in_items = tuple(n // form.itemsize if letter != "C" else 1 for letter, n in zip(form.order, strides))
            in_shape = tuple(n // form.itemsize if letter == "C" else n for letter, n in zip(form.order, shape))
            self.tensors.append(lay.Tensor(name, group, base, in_shape, in_items, form.itemsize, held, first_head, heads))
            view = np.lib.stride_tricks.as_strided(self.memory[base:], shape, strides)
            view = np.moveaxis(view, [form.order.index(c) for c in "BHNC" if c in form.order], range(-len(
                [c for c in "BHNC" if c in form.order]), 0))
            if "H" not in form.order:
                view = np.expand_dims(view, -3)
            self.views[name] = view if "P" in form.order else view[None]
        self.first_head, self.held = first_head, held
        self.layout = lay.describe(self.tensors, kinds, rank=rank, blocks=form.blocks, length=offset)


class Engine:
    def __init__(self, form, layers, heads, groups=(("full",),)):
        self.form = form
        self.groups = tuple(lay.Group(kind, form.tokens) for kind, in groups)
        self.ranks = [Cache(form, rank, layers, heads, self.groups) for rank in range(form.tp * form.pp)]
        described = lay.EngineLayout({"model": "m"}, self.groups, tuple(r.layout for r in self.ranks))
        self.layout = lay.EngineLayout.from_json(json.loads(json.dumps(described.to_json())))
        assert self.layout == described

    def places(self, blocks, token):
        """(block of the tensor, token in it) of a token of a request."""
        kernel = self.form.tokens // self.form.ratio
        block = blocks[token // self.form.tokens] * self.form.ratio + token % self.form.tokens // kernel
        return block, token % kernel

    def write(self, blocks, tokens):
        for cache, (name, view) in ((c, item) for c in self.ranks for item in c.views.items()):
            for part, head, token in itertools.product(range(view.shape[0]), range(cache.held), range(tokens)):
                block, place = self.places(blocks[0], token)
                view[part, block, head, place] = content(name, part, cache.first_head + head, token)


def content(name, part, head, token):
    seed = (int(re.search(r"\d+", name)[0]) * 31 + part * 17 + head * 7 + token * 3) % 251
    return (np.arange(ROW) + seed) % 251 + 1


def carry_out(p, d, p_blocks, d_blocks, first, end):
    """Does what the agents do; returns the number of operations. Checks that P would write what D reads."""
    n, read = 0, []
    for cache in d.ranks:
        plan = lay.make_plan(cache.layout, d.groups, p.layout)
        for rank in plan.ranks:
            ops = lay.operations(plan, rank, d_blocks, p_blocks, first, end)
            assert ops.dtype == np.uint64 and ops.flags.c_contiguous
            allowed = lay.ranges(p.ranks[rank].layout, p.groups, p_blocks)
            assert_inside(ops, allowed)
            for ours, theirs, length in ops.astype(np.int64).tolist():
                cache.memory[ours:ours + length] = p.ranks[rank].memory[theirs:theirs + length]
                read.append((rank, cache.layout.rank, theirs, ours, length))
            n += len(ops)
    assert sorted(pushed(p, d, p_blocks, d_blocks, first, end)) == sorted(read)
    return n


def pushed(p, d, p_blocks, d_blocks, first, end):
    """(rank of P, rank of D, offset at P, offset at D, length) of what P writes."""
    for cache in p.ranks:
        plan = lay.make_push_plan(cache.layout.rank, p.layout, d.layout)
        for rank in plan.ranks:
            for op in lay.operations(plan, rank, p_blocks, d_blocks, first, end).astype(np.int64).tolist():
                yield (cache.layout.rank, rank, *op)


@pytest.mark.parametrize("tokens", [8, 16, 32])
def test_chunks_of_a_push(tokens):
    """Chunks that end with a block of P give the same as all at once, whatever the blocks of D."""
    p, d = Engine(Form(), LAYERS, 4), Engine(Form(tokens=tokens), LAYERS, 4)
    d_blocks = [[9, 10, 1, 2, 5, 6, 3, 4][:64 // tokens]]
    p.write(P_BLOCKS, 64)
    for first, end in ((0, 16), (16, 48), (48, 50)):
        for from_rank, to_rank, theirs, ours, length in pushed(p, d, P_BLOCKS, d_blocks, first, end):
            d.ranks[to_rank].memory[ours:ours + length] = p.ranks[from_rank].memory[theirs:theirs + length]
    check(d, d_blocks, 0, 50)


def assert_inside(ops, allowed):
    """Each operation must lie in the ranges of a lease."""
    pieces = sorted((int(o + i * s), int(o + i * s + n)) for o, n, s, c in allowed.astype(np.int64).tolist() for i in range(c))
    joined = []
    for start, end in pieces:
        if joined and start <= joined[-1][1]:
            joined[-1][1] = max(end, joined[-1][1])
        else:
            joined.append([start, end])
    for _, theirs, length in ops.astype(np.int64).tolist():
        assert any(start <= theirs and theirs + length <= end for start, end in joined)


def check(d, blocks, first, end):
    """Tokens from `first` are there, and nothing else was written."""
    for cache, (name, view) in ((c, item) for c in d.ranks for item in c.views.items()):
        for part, head, token in itertools.product(range(view.shape[0]), range(cache.held), range(first, end)):
            block, place = d.places(blocks[0], token)
            assert (view[part, block, head, place] == content(name, part, cache.first_head + head, token)).all(), \
                (name, part, head, token)
        written = {d.places(blocks[0], token)[0] for token in range(len(blocks[0]) * d.form.tokens)}
        rest = [b for b in range(view.shape[1]) if b not in written]
        assert not view[:, rest].any()


LAYERS = [(f"model.layers.{i}.self_attn.attn", 0) for i in range(4)]
P_BLOCKS, D_BLOCKS = [[3, 4, 7, 5]], [[9, 10, 1, 2]]


@pytest.mark.parametrize("order", ["BHNC", "BNHC", "PBNHC", "PBHNC", "BPNHC", "BPHNC"])
@pytest.mark.parametrize("itemsize", [1, 2], ids=["fp8", "bf16"])
def test_one_form(order, itemsize):
    p, d = (Engine(Form(order, itemsize=itemsize), LAYERS, 4) for _ in "pd")
    p.write(P_BLOCKS, 50)
    n = carry_out(p, d, P_BLOCKS, D_BLOCKS, 0, 50)
    check(d, D_BLOCKS, 0, 50)
    apart = 2 if order.startswith("P") else 1
    # blocks 3 and 4 go to 9 and 10, which is one piece; so are the two parts inside a block
    assert n == len(LAYERS) * apart * 3


def test_only_the_tokens_that_are_asked_for():
    p, d = (Engine(Form(), LAYERS, 4) for _ in "pd")
    p.write(P_BLOCKS, 64)
    carry_out(p, d, P_BLOCKS, D_BLOCKS, 32, 64)
    check(d, D_BLOCKS, 32, 64)
    for view in d.ranks[0].views.values():
        assert not view[:, D_BLOCKS[0][:2]].any()


@pytest.mark.parametrize("order", ["BHNC", "BNHC", "PBNHC"])
@pytest.mark.parametrize(("p_tp", "d_tp"), [(1, 2), (2, 1), (4, 2), (2, 4), (8, 1), (1, 8), (8, 2)])
def test_different_tensor_parallel_sizes(order, p_tp, d_tp):
    """4 heads: with 8 ranks each head is at two of them."""
    p, d = Engine(Form(order, tp=p_tp), LAYERS, 4), Engine(Form(order, tp=d_tp), LAYERS, 4)
    p.write(P_BLOCKS, 50)
    carry_out(p, d, P_BLOCKS, D_BLOCKS, 0, 50)
    check(d, D_BLOCKS, 0, 50)


def test_heads_of_several_ranks_are_taken_from_all_of_them():
    p, d = Engine(Form(tp=8), LAYERS, 1), Engine(Form(tp=4), LAYERS, 1)
    used = [lay.make_plan(cache.layout, d.groups, p.layout).ranks for cache in d.ranks]
    assert used == [(0,), (1,), (2,), (3,)]


@pytest.mark.parametrize(("p_order", "d_order"), [("BHNC", "BNHC"), ("BNHC", "BHNC"), ("PBNHC", "BPHNC")])
def test_different_orders(p_order, d_order):
    p, d = Engine(Form(p_order), LAYERS, 4), Engine(Form(d_order), LAYERS, 4)
    p.write(P_BLOCKS, 50)
    carry_out(p, d, P_BLOCKS, D_BLOCKS, 0, 50)
    check(d, D_BLOCKS, 0, 50)


@pytest.mark.parametrize("order", ["BHNC", "BNHC"])
@pytest.mark.parametrize("tp", [1, 2])
def test_different_block_sizes(order, tp):
    p, d = Engine(Form(order, tokens=8, tp=tp), LAYERS, 4), Engine(Form(order, tokens=32), LAYERS, 4)
    p_blocks, d_blocks = [[5, 6, 7, 8, 2, 3, 11]], [[4, 9]]
    p.write(p_blocks, 50)
    carry_out(p, d, p_blocks, d_blocks, 0, 50)
    check(d, d_blocks, 0, 50)
    back = Engine(Form(order, tokens=8, tp=tp), LAYERS, 4)
    carry_out(d, back, d_blocks, p_blocks, 0, 50)
    check(back, p_blocks, 0, 50)


@pytest.mark.parametrize(("p_ratio", "d_ratio"), [(1, 2), (4, 1), (2, 2)])
def test_blocks_of_the_kernel_are_smaller(p_ratio, d_ratio):
    p, d = Engine(Form(ratio=p_ratio), LAYERS, 4), Engine(Form(ratio=d_ratio), LAYERS, 4)
    p.write(P_BLOCKS, 50)
    carry_out(p, d, P_BLOCKS, D_BLOCKS, 0, 50)
    check(d, D_BLOCKS, 0, 50)


@pytest.mark.parametrize(("p_tp", "d_tp"), [(1, 1), (4, 2), (1, 4)])
def test_mla(p_tp, d_tp):
    """The latent content has no heads, and each rank has all of it."""
    p, d = Engine(Form("BNC", tp=p_tp), LAYERS, 1), Engine(Form("BNC", tp=d_tp), LAYERS, 1)
    p.write(P_BLOCKS, 50)
    carry_out(p, d, P_BLOCKS, D_BLOCKS, 0, 50)
    check(d, D_BLOCKS, 0, 50)


def test_padded_blocks():
    p, d = Engine(Form(padding=16), LAYERS, 4), Engine(Form(padding=48), LAYERS, 4)
    p.write(P_BLOCKS, 50)
    assert carry_out(p, d, P_BLOCKS, D_BLOCKS, 0, 50) == 4 * len(LAYERS)
    check(d, D_BLOCKS, 0, 50)


@pytest.mark.parametrize(("p_pp", "d_pp"), [(2, 1), (1, 2), (2, 4)])
def test_pipeline_parallel(p_pp, d_pp):
    p, d = Engine(Form(pp=p_pp), LAYERS, 4), Engine(Form(pp=d_pp), LAYERS, 4)
    p.write(P_BLOCKS, 50)
    carry_out(p, d, P_BLOCKS, D_BLOCKS, 0, 50)
    check(d, D_BLOCKS, 0, 50)


def test_groups_and_blocks_that_hold_nothing():
    """A sliding window has let go of its first blocks at P; D has block 0 in the place of others."""
    layers = [(f"model.layers.{i}.attn", i % 2) for i in range(4)]
    p, d = (Engine(Form(), layers, 4, (("full",), ("window",))) for _ in "pd")
    for i, cache in enumerate((p.ranks[0], d.ranks[0])):
        for tensor in cache.tensors:
            cache.views[tensor.name][:] = 0 if i else tensor.group + 1
    carry_out(p, d, [[3, 4, 7], [0, 0, 8]], [[1, 2, 3], [4, 0, 6]], 0, 48)
    for tensor in d.ranks[0].tensors:
        full = {b for b in range(12) if d.ranks[0].views[tensor.name][0, b].any()}
        assert full == ({6} if tensor.group else {1, 2, 3})


@pytest.mark.parametrize(("p_tokens", "d_tokens", "theirs", "mine", "fits"), [
    (16, 16, [[0, 3, 4]], [[0, 1, 2]], True),
    (16, 16, [[0, 0, 4]], [[0, 1, 2]], False),
    (16, 16, [[3, 0, 4]], [[1, 2, 5]], False),
    (16, 16, [[0, 0, 0]], [[0, 0, 1]], False),
    (16, 32, [[0, 3, 4, 5]], [[1, 2]], True),  # the window begins in the middle of D's block
    (16, 32, [[0, 0, 4, 5]], [[1, 2]], False),
    (16, 32, [[3, 0, 4, 5]], [[1, 2]], False),
    (32, 16, [[3, 4]], [[0, 1, 2, 5]], True),
    (32, 16, [[0, 4]], [[0, 1, 2, 5]], False)])
def test_blocks_that_the_other_engine_does_not_have(p_tokens, d_tokens, theirs, mine, fits):
    p, d = Engine(Form(tokens=p_tokens), LAYERS, 4), Engine(Form(tokens=d_tokens), LAYERS, 4)
    plan = lay.make_plan(d.ranks[0].layout, d.groups, p.layout)
    end = len(mine[0]) * d_tokens
    if fits:
        assert len(lay.operations(plan, 0, mine, theirs, 0, end, reads=True))
        return
    with pytest.raises(errors.Invalid, match="lists no block of layer model.layers.0"):
        lay.operations(plan, 0, mine, theirs, 0, end, reads=True)


def test_ranges_are_few():
    """32 layers and 4,096 blocks in one run are one range."""
    layers = [(f"layers.{i}", 0) for i in range(32)]
    tensors = [lay.Tensor(name, 0, i * 4200 * 4096, (4200, 8, 32, 8), (2048, 256, 8, 1), 2, 8, 0, 8)
               for i, (name, _) in enumerate(layers)]
    groups = (lay.Group("full", 32),)
    layout = lay.describe(tensors, groups, rank=0, blocks=4200, length=32 * 4200 * 4096)
    assert lay.ranges(layout, groups, [range(1, 4097)]).tolist() == [[4096, 4096 * 4096, 4200 * 4096, 32]]
    assert len(lay.ranges(layout, groups, [[5, 6, 9, 2]])) == 3
    text = json.dumps(lay.EngineLayout({}, groups, (layout,)).to_json())
    assert len(text) < 300


def block_layout(layers=4, gap=0, ratio=1, blocks=20):
    """A cache in which the layers of a block lie side by side, with `gap` elements behind each."""
    tokens = 32 // ratio
    each = 8 * tokens * 8 + gap
    tensors = [lay.Tensor(f"layers.{i}", 0, i * each * 2, (blocks * ratio, 8, tokens, 8), (layers * each, tokens * 8, 8, 1), 2, 8, 0, 8)
               for i in range(layers)]
    groups = (lay.Group("full", 32),)
    return lay.describe(tensors, groups, rank=0, blocks=blocks, length=blocks * ratio * layers * each * 2), groups


def test_ranges_of_layers_inside_a_block():
    layout, groups = block_layout()
    assert lay.ranges(layout, groups, [[3, 4]]).tolist() == [[3 * 16384, 2 * 16384, 0, 1]]
    layout, groups = block_layout(gap=16)
    assert lay.ranges(layout, groups, [[3, 4]]).tolist() == [[3 * 16512 + i * 4128, 4096, 16512, 2] for i in range(4)]


@pytest.mark.parametrize(("here", "there", "scattered", "run"), [
    ({}, {}, 3, 1),  # a block is one piece at both sides, and a run of blocks as well
    ({"ratio": 2}, {"ratio": 2}, 3, 1),
    ({"gap": 16}, {}, 12, 12),  # layers are apart at one side
    ({}, {"gap": 16}, 12, 12)])
def test_operations_of_layers_inside_a_block(here, there, scattered, run):
    """How many operations three blocks of four layers take; each lies inside what P allows."""
    (ours, groups), (theirs, _) = block_layout(**here), block_layout(**there)
    plan = lay.make_plan(ours, groups, lay.EngineLayout({}, groups, (theirs,)))
    for blocks, count in (([3, 9, 5], scattered), ([3, 4, 5], run)):
        ops = lay.operations(plan, 0, [[7, 8, 9] if count == run else [1, 8, 4]], [blocks], 0, 96)
        assert len(ops) == count and ops[:, 2].sum() == 3 * 4 * 4096
        assert_inside(ops, lay.ranges(theirs, groups, [blocks]))


# --- what is refused -----------------------------------------------------------------------------------

@pytest.mark.parametrize(("p_form", "d_form", "heads", "words"), [
    (Form(tokens=16), Form(tokens=24), (4, 4), ["24", "16", "block"]),
    (Form(), Form(), (8, 4), ["8", "4", "heads"]),
    (Form("BHNC"), Form("BNC"), (4, 1), ["4", "1", "heads"]),
], ids=["block sizes", "heads", "heads and MLA"])
def test_refused_with_both_values(p_form, d_form, heads, words):
    p, d = Engine(p_form, LAYERS, heads[0]), Engine(d_form, LAYERS, heads[1])
    with pytest.raises(errors.Unsupported) as e:
        lay.make_plan(d.ranks[0].layout, d.groups, p.layout)
    assert all(word in str(e.value) for word in words), e.value


def test_a_layer_that_the_other_engine_lacks():
    p, d = Engine(Form(), LAYERS[:2], 4), Engine(Form(), LAYERS, 4)
    with pytest.raises(errors.Unsupported, match=r"model\.layers\.2\.self_attn\.attn.*has 2"):
        lay.make_plan(d.ranks[0].layout, d.groups, p.layout)


def test_another_kind_of_attention():
    p = Engine(Form(), LAYERS, 4)
    d = Engine(Form(), LAYERS, 4, (("window 512",),))
    with pytest.raises(errors.Unsupported, match="window 512 here, full at the other engine"):
        lay.make_plan(d.ranks[0].layout, d.groups, p.layout)


def packed(engine, how):
    return replace(engine.layout, model={**engine.layout.model, **({lay.PACKING: how} if how else {})})


def test_blocks_that_kernels_pack():
    """Kernels of other processors read a block otherwise, and those of CPUs only whole blocks. An older engine does not say what it has."""
    large, small = Engine(Form(tokens=64), LAYERS, 4), Engine(Form(tokens=32), LAYERS, 4)
    with pytest.raises(errors.Unsupported, match="arrangement of blocks: cpu amx here, cpu vec at the other engine"):
        packed(large, "cpu amx").check(packed(large, "cpu vec"))
    for other in ("cpu vec", None):
        with pytest.raises(errors.Unsupported, match=r"tokens of a block of layer model\S+: 64 here, 32 at the other engine.*--block-size"):
            packed(large, "cpu vec").check(packed(small, other))
        packed(large, "cpu vec").check(packed(large, other))
    packed(large, "cuda").check(packed(small, "cuda"))
    packed(large, None).check(packed(small, "cuda"))


def test_another_model():
    one = lay.EngineLayout({"dtype": "bfloat16", "model": "x"}, (), ())
    with pytest.raises(errors.Unsupported, match="dtype: bfloat16 here, float16 at the other engine"):
        one.check(lay.EngineLayout({"dtype": "float16", "model": "x"}, (), ()))
    with pytest.raises(errors.Unsupported, match=r"cache: \(none\) here, fp8 at the other engine"):
        one.check(lay.EngineLayout({"dtype": "bfloat16", "model": "x", "cache": "fp8"}, (), ()))
    one.check(lay.EngineLayout({"model": "x", "dtype": "bfloat16"}, (), ()))


def test_lists_of_blocks_that_do_not_fit():
    p, d = (Engine(Form(), LAYERS, 4) for _ in "pd")
    plan = lay.make_plan(d.ranks[0].layout, d.groups, p.layout)
    for mine, theirs, words in (([[1]], [[1, 2]], "this engine has 1 blocks"), ([[1, 2]], [[1]], "the other engine has 1 blocks"),
                                ([[1, 2]], [[1, 12]], "the other engine lists block 12"), ([[1, 2]], [[1, -1]], "lists block"),
                                ([[1, 2]], [], "lists blocks of 0 groups")):
        with pytest.raises(errors.Invalid, match=words):
            lay.operations(plan, 0, mine, theirs, 0, 32)


def test_a_tensor_without_blocks():
    with pytest.raises(errors.Unsupported, match=r"shape \(7, 5\)"):
        lay.dimension_order((7, 5), blocks=12, tokens=16, heads=1)
    with pytest.raises(errors.Unsupported, match="stride of 4 bytes"):
        lay.describe([lay.Tensor("l", 0, 0, (12, 16, 8), (256, 16, 2), 2, 1, 0, 1)], [lay.Group("mla", 16)], rank=0,
                     blocks=12, length=1 << 20)
    with pytest.raises(errors.Range, match="ends at byte 6144"):
        lay.describe([lay.Tensor("l", 0, 0, (12, 16, 16), (256, 16, 1), 2, 1, 0, 1)], [lay.Group("mla", 16)], rank=0,
                     blocks=12, length=6000)


def test_dimensions_of_equal_size():
    assert lay.dimension_order((12, 16, 16, 64), blocks=12, tokens=16, heads=16) == ("BHNC", 1)
    assert lay.dimension_order((12, 16, 16, 64), blocks=12, tokens=16, heads=16, hint="BNHC") == ("BNHC", 1)
    assert lay.dimension_order((48, 4, 16, 64), blocks=12, tokens=16, heads=16, hint="BNHC") == ("BNHC", 4)
    assert lay.dimension_order((2, 12, 16, 8, 64), blocks=12, tokens=16, heads=8) == ("PBNHC", 1)


def damaged():
    good = Engine(Form(), LAYERS, 4).layout.to_json()
    for path, value in (("version", 2), ("groups", None), ("shapes", [[]]), ("ranks", [[0]]), ("model", 3)):
        yield {**good, path: value}
    yield {**good, "ranks": 2 * good["ranks"]}
    for place, value in ((0, [["a", 0, 1 << 40, ""]]), (0, [["a", 0, 4096, ""]] * 2), (1, [[0, 0, 1]]), (1, [[-1, 0, 4]]),
                         (1, [[0, 0, 1 << 40], [0, 0, 4 - (1 << 40)]]), (1, [[0, 0, 4.0]]), (2, 5), (3, 0), (4, 7), (7, 1 << 70)):
        bad = json.loads(json.dumps(good))
        bad["shapes"][0][0][place] = value
        yield bad
    yield "dray"
    yield None


@pytest.mark.parametrize("form", damaged())
def test_damaged_descriptions(form):
    with pytest.raises((errors.Invalid, errors.Version)):
        lay.EngineLayout.from_json(form)


def test_ranges_of_many_runs_are_joined():
    tensors = [lay.Tensor(f"layers.{i}", 0, i * 4096 * 1000, (1000, 8, 32, 8), (2048, 256, 8, 1), 2, 8, 0, 8) for i in range(4)]
    groups = (lay.Group("full", 32),)
    layout = lay.describe(tensors, groups, rank=0, blocks=1000, length=4 * 4096 * 1000)
    blocks = [1, 2, 4, 9, 11, 500, 502]
    exact = lay.ranges(layout, groups, [blocks])
    assert len(exact) == 6
    few = lay.ranges(layout, groups, [blocks], most=3)
    assert few.tolist() == [[4096 * at, 4096 * n, 4096 * 1000, 4] for at, n in ((1, 4), (9, 3), (500, 3))]
    assert len(lay.ranges(layout, groups, [list(range(1, 1000, 2))], most=16)) == 16
    assert lay.ranges(layout, groups, [blocks], most=1).tolist() == [[4096, 4096 * 502, 4096 * 1000, 4]]
