# SPDX-License-Identifier: Apache-2.0
"""Where the bytes of a KV cache lie in a region, and the operations that copy blocks between two engines.

A rank's cache is a set of families. A family is a group of layers whose tensors differ only in their
place: the same number of blocks, tokens, heads and bytes, and the same strides. One engine describes
its ranks to the other as JSON (EngineLayout). A Plan says which heads of which layers come from which
rank; operations() turns it and two lists of block numbers into one array, without a loop over blocks.

Block numbers here are the engine's (logical) ones. A kernel may divide a block: then a tensor has
`ratio` times more blocks, of fewer tokens, and block b consists of the tensor's blocks b * ratio to
b * ratio + ratio - 1.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import errors

__all__ = ["PACKING", "EngineLayout", "Family", "Group", "Part", "Plan", "RankLayout", "Tensor", "describe",
           "dimension_order", "make_plan", "make_push_plan", "operations", "ranges", "runs"]

VERSION = 1  # of the JSON form
PACKING = "arrangement of blocks"  # a field of the model: what kernels.packing() says. Engines with an older dray-client do not have it.
PLANS_MAX = 64  # other engines whose plans a rank remembers
NULL_BLOCK = 0  # the engine's number of the block that holds nothing
_LAYERS_MAX = 4096  # of one form
_ORDERS = ("BHNC", "BNHC", "BNC", "PBNHC", "PBHNC", "BPNHC", "BPHNC", "PBNC", "BPNC")


@dataclass(frozen=True)
class Group:
    """A KV-cache group of the engine. kind: of its attention. tokens: of one logical block."""

    kind: str
    tokens: int

    @property
    def looks_back_partly(self) -> bool:
        """True if the engine gives up the blocks in front of what the next token looks at."""
        return ", window " in self.kind or ", chunks of " in self.kind


@dataclass(frozen=True)
class Tensor:
    """One layer's cache in the region. offset: in bytes; strides: in elements; heads: of this rank.

    first_head, total_heads: this rank has heads [first_head, first_head + heads) of total_heads.
    order: a letter for each dimension of the shape (see dimension_order()); None: detected.
    """

    name: str
    group: int
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int
    heads: int
    first_head: int
    total_heads: int
    order: str | None = None


@dataclass(frozen=True)
class Family:
    """Layers with tensors of one form. All sizes and strides are in bytes, except counts.

    names: of the layers; "#1" is appended for the second part of a tensor that keeps keys and values
    apart. bases: the place of each in the region. blocks, tokens: of the tensor. row: contiguous bytes
    of one head of one token.
    """

    names: tuple[str, ...]
    bases: tuple[int, ...]
    group: int
    blocks: int
    tokens: int
    heads: int
    first_head: int
    total_heads: int
    row: int
    block_stride: int
    head_stride: int
    token_stride: int

    @property
    def extent(self) -> int:
        """Bytes from the first to the last byte of a block."""
        return (self.heads - 1) * self.head_stride + (self.tokens - 1) * self.token_stride + self.row

    @property
    def end(self) -> int:
        """The first byte behind the last block of the last layer."""
        return max(self.bases) + (self.blocks - 1) * self.block_stride + self.extent


@dataclass(frozen=True)
class RankLayout:
    """The cache of one rank. length: of its region, in bytes."""

    rank: int
    length: int
    families: tuple[Family, ...]


@dataclass(frozen=True)
class EngineLayout:
    """What another engine has to know of this engine's caches. model: fields that must be equal."""

    model: dict[str, str]
    groups: tuple[Group, ...]
    ranks: tuple[RankLayout, ...]

    def __hash__(self) -> int:
        return hash((tuple(sorted(self.model.items())), self.groups, self.ranks))

    def to_json(self) -> dict[str, Any]:
        """A dictionary for JSON. Families that several ranks have in common are written once."""
        shapes: list[list[Any]] = []
        ranks = []
        for rank in self.ranks:
            families = [_pack_family(family) for family in rank.families]
            if families not in shapes:
                shapes.append(families)
            ranks.append([rank.rank, rank.length, shapes.index(families),
                          [family.first_head for family in rank.families]])
        return {"version": VERSION, "model": self.model, "groups": [[g.kind, g.tokens] for g in self.groups],
                "shapes": shapes, "ranks": ranks}

    @classmethod
    def from_json(cls, form: Any) -> EngineLayout:
        """Checks and reads what to_json() made at the other engine. errors.Invalid, errors.Version."""
        try:
            if form["version"] != VERSION:
                raise errors.Version(
                    f"the other engine describes its KV cache in version {form['version']!r}, this one in {VERSION}",
                    fix="Use the same version of dray-client at both engines.")
            groups = tuple(Group(str(kind), _count(tokens)) for kind, tokens in form["groups"])
            shapes = form["shapes"]
            ranks = tuple(
                RankLayout(_number(rank), _count(length), tuple(
                    _unpack_family(family, _number(head), _count(length), groups)
                    for family, head in zip(shapes[_number(shape)], heads, strict=True)))
                for rank, length, shape, heads in form["ranks"])
            if len({rank.rank for rank in ranks}) < len(ranks):
                raise ValueError("a rank is described twice")
            model = {str(name): str(value) for name, value in form["model"].items()}
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as e:
            raise errors.Invalid(f"the other engine's description of its KV cache is damaged ({e!r})",
                                 fix="Pass kv_transfer_params from one engine to the other unchanged.") from None
        return cls(model, groups, ranks)

    def check(self, other: EngineLayout) -> None:
        """errors.Unsupported, with both values, if a block of the other engine means something else here."""
        for name in sorted(self.model.keys() | other.model.keys()):
            here, there = self.model.get(name, "(none)"), other.model.get(name, "(none)")
            if here != there and not (name == PACKING and "(none)" in (here, there)):
                raise errors.Unsupported(
                    f"the two engines differ in {name}: {here} here, {there} at the other engine",
                    fix=f"Start both engines with the same {name}." if name != PACKING else "Run both engines on processors of the same kind.")
        if self.model.get(PACKING, "").startswith("cpu"):
            self._check_whole_blocks(other)

    def _check_whole_blocks(self, other: EngineLayout) -> None:
        """Kernels of CPUs keep all keys of a block before its values, so that the tokens of a block cannot be told apart."""
        here, there = self._block_tokens(), other._block_tokens()
        for name in sorted(here.keys() & there.keys()):
            if here[name] != there[name]:
                raise errors.Unsupported(
                    f"the two engines differ in the tokens of a block of layer {name}: {here[name]} here, {there[name]} at the other engine",
                    fix="On CPUs, start both engines with the same --block-size.")

    def _block_tokens(self) -> dict[str, int]:
        """By layer: the tokens of a block of its tensor."""
        return {name: family.tokens for rank in self.ranks for family in rank.families for name in family.names}


# --- description --------------------------------------------------------------------------------------

def dimension_order(shape: Sequence[int], *, blocks: int, tokens: int, heads: int,
                    hint: str | None = None) -> tuple[str, int]:
    """(order, ratio): a letter for each dimension, and how many blocks of the tensor make one of the engine.

    Letters: B blocks, H heads, N tokens, C content, P parts (keys, values). blocks, tokens: the
    engine's number of blocks, and tokens in each. hint: the order to prefer where sizes are equal.
    """
    found: list[tuple[int, int, str]] = []
    orders = [hint, *_ORDERS] if hint else list(_ORDERS)
    for place, order in enumerate(orders):
        if len(order) != len(shape):
            continue
        size = dict(zip(order, shape, strict=True))
        ratio, rest = divmod(size["B"], blocks)
        if rest or not ratio or tokens != size["N"] * ratio or size.get("H", 1) != heads or size.get("P", 2) != 2:
            continue
        found.append((ratio, place, order))
    if not found:
        raise errors.Unsupported(
            f"a KV-cache tensor has shape {tuple(shape)}, in which {blocks} blocks of {tokens} tokens and {heads} heads "
            "cannot be found", fix="Use an attention backend that keeps blocks, tokens and heads as dimensions.")
    ratio, _, order = min(found)
    return order, ratio


def describe(tensors: Iterable[Tensor], groups: Sequence[Group], *, rank: int, blocks: int,
             length: int) -> RankLayout:
    """The layout of one rank: finds the families and their strides.

    blocks: the engine's number of blocks. length: of the region. errors.Unsupported: a tensor is not
    made of blocks.
    """
    found: dict[tuple[int, ...], list[tuple[int, str, int]]] = {}
    for t in tensors:
        order, ratio = dimension_order(t.shape, blocks=blocks, tokens=groups[t.group].tokens, heads=t.heads,
                                       hint=t.order)
        size = dict(zip(order, t.shape, strict=True))
        stride = {letter: n * t.itemsize for letter, n in zip(order, t.strides, strict=True)}
        row = size["C"] * t.itemsize
        if stride["C"] != t.itemsize:
            raise errors.Unsupported(
                f"the KV cache of layer {t.name} has a stride of {stride['C']} bytes between elements of {t.itemsize}",
                fix="Use an attention backend that keeps the content of a token contiguous.")
        form = (t.group, blocks * ratio, size["N"], t.heads, t.first_head, t.total_heads, row,
                stride["B"], stride.get("H", row), stride["N"])
        for part in range(size.get("P", 1)):
            name = f"{t.name}#{part}" if part else t.name
            found.setdefault(form, []).append((part, name, t.offset + part * stride.get("P", 0)))
    families = []
    for shared, members in found.items():
        members.sort(key=lambda member: member[0])  # stable: the first parts of all layers, then the second ones
        family = Family(tuple(name for _, name, _ in members), tuple(base for _, _, base in members), *shared)
        if family.end > length or min(family.bases) < 0:
            raise errors.Range(f"the KV cache of layer {family.names[0]} ends at byte {family.end}, behind the region's {length}",
                               fix="Report this as a defect of dray.")
        families.append(family)
    return RankLayout(rank, length, tuple(families))


def _count(value: Any) -> int:
    """A positive number of the JSON form."""
    number = _number(value)
    if not number:
        raise ValueError("0 where a positive number is expected")
    return number


def _number(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 62:
        raise ValueError(f"{value!r} is not a number of the allowed size")
    return value


def runs(values: Sequence[int]) -> list[list[int]]:
    """[start, step, count] of arithmetic progressions, in order."""
    out: list[list[int]] = []
    for value in values:
        if out and (out[-1][2] == 1 or out[-1][0] + out[-1][1] * out[-1][2] == value):
            last = out[-1]
            if last[2] == 1:
                last[1] = value - last[0]
            last[2] += 1
        else:
            out.append([value, 0, 1])
    return out


def _pack_names(names: Sequence[str]) -> list[list[Any]]:
    """[prefix, first number, count, suffix] of names that differ by a number that counts up."""
    out: list[list[Any]] = []
    for name in names:
        match = re.match(r"(\D*)(0|[1-9]\d*)(.*)$", name, re.S)
        if not match:
            out.append([name, 0, 0, ""])
            continue
        prefix, number, suffix = match[1], int(match[2]), match[3]
        if out and out[-1][2] and out[-1][0] == prefix and out[-1][3] == suffix and out[-1][1] + out[-1][2] == number:
            out[-1][2] += 1
        else:
            out.append([prefix, number, 1, suffix])
    return out


def _unpack_names(runs: Any) -> list[str]:
    names: list[str] = []
    for prefix, first, count, suffix in runs:
        if len(names) + _number(count) > _LAYERS_MAX:
            raise ValueError(f"more than {_LAYERS_MAX} layers")
        names += [f"{prefix}{number}{suffix}" for number in range(first, first + count)] if count else [str(prefix)]
    return names


def _pack_family(family: Family) -> list[Any]:
    return [_pack_names(family.names), runs(family.bases), family.group, family.blocks, family.tokens, family.heads,
            family.total_heads, family.row, family.block_stride, family.head_stride, family.token_stride]


def _unpack_family(form: Any, first_head: int, length: int, groups: Sequence[Group]) -> Family:
    packed, runs, group, *numbers = form
    names = _unpack_names(packed)
    if sum(_count(count) for _, _, count in runs) != len(names):
        raise ValueError("as many places as layers are expected")
    bases = [start + step * i for start, step, count in runs for i in range(count)]
    blocks, tokens, heads, total, row, *strides = (_count(number) for number in numbers)
    block_stride, head_stride, token_stride = strides
    family = Family(tuple(names), tuple(_number(base) for base in bases), _number(group), blocks, tokens, heads, first_head,
                    total, row, block_stride, head_stride, token_stride)
    if first_head + heads > total or family.end > length or groups[family.group].tokens % tokens:
        raise ValueError(f"layer {names[0]} does not fit")
    return family


# --- plan ---------------------------------------------------------------------------------------------

@dataclass(frozen=True)
class Part:
    """Layers of which the same heads lie in the same form at both sides.

    local_bases, remote_bases: of each layer, with the place of the first head included. heads: copied.
    """

    rank: int  # of the other engine
    local: Family
    remote: Family
    local_bases: Any
    remote_bases: Any
    heads: int


@dataclass(frozen=True)
class Plan:
    """What a rank of this engine copies from or to which ranks of the other engine."""

    parts: tuple[Part, ...]
    local_groups: tuple[Group, ...]
    remote_groups: tuple[Group, ...]

    @property
    def ranks(self) -> tuple[int, ...]:
        """Ranks of the other engine, in order."""
        return tuple(sorted({part.rank for part in self.parts}))


def make_plan(local: RankLayout, groups: Sequence[Group], remote: EngineLayout) -> Plan:
    """Finds all layers and heads of a rank at the other engine. errors.Unsupported, with both values, if it cannot.

    Heads that several ranks of the other engine have are taken from different ones by different ranks
    of this engine.
    """
    holders: dict[str, list[tuple[int, Family, int]]] = {}
    for rank in remote.ranks:
        for family in rank.families:
            for index, name in enumerate(family.names):
                holders.setdefault(name, []).append((rank.rank, family, index))
    bunches: dict[tuple[int, int, int, int, int], list[tuple[int, int]]] = {}
    known: dict[tuple[int, int], tuple[int, Family]] = {}
    for family_index, family in enumerate(local.families):
        for index, name in enumerate(family.names):
            at = holders.get(name)
            if not at:
                raise errors.Unsupported(
                    f"layer {name} has a KV cache here and none at the other engine, which has {len(holders)}, such as "
                    f"{next(iter(holders), '(none)')}", fix="Run the same model at both engines.")
            for head, count, (rank_number, other, other_index) in _cover(local.rank, family, name, at):
                _check_pair(family, groups, other, remote.groups, name)
                key = (family_index, rank_number, id(other), head, count)
                known[rank_number, id(other)] = (rank_number, other)
                bunches.setdefault(key, []).append((family.bases[index], other.bases[other_index]))
    parts = []
    for (family_index, rank_number, other_id, head, count), pairs in bunches.items():
        family, other = local.families[family_index], known[rank_number, other_id][1]
        bases = np.array(pairs, dtype=np.int64)
        parts.append(Part(rank_number, family, other,
                          bases[:, 0] + (head - family.first_head) * family.head_stride,
                          bases[:, 1] + (head - other.first_head) * other.head_stride, count))
    return Plan(tuple(parts), tuple(groups), remote.groups)


def make_push_plan(rank: int, local: EngineLayout, remote: EngineLayout) -> Plan:
    """What a rank of this engine writes to which ranks of the other engine: exactly what those would read from it.

    errors.Unsupported: from the view of the other engine.
    """
    parts = [Part(other.rank, part.remote, part.local, part.remote_bases, part.local_bases, part.heads)
             for other in remote.ranks for part in make_plan(other, remote.groups, local).parts if part.rank == rank]
    return Plan(tuple(parts), local.groups, remote.groups)


def _cover(rank: int, family: Family, name: str,
           at: Sequence[tuple[int, Family, int]]) -> list[tuple[int, int, tuple[int, Family, int]]]:
    """(first head, heads, holder) for all heads of a layer."""
    out: list[tuple[int, int, tuple[int, Family, int]]] = []
    head, end = family.first_head, family.first_head + family.heads
    while head < end:
        having = [h for h in at if h[1].first_head <= head < h[1].first_head + h[1].heads]
        if not having:
            raise errors.Unsupported(
                f"layer {name} has {family.total_heads} heads here, of which head {head} is at no rank of the other engine; "
                f"that one has {at[0][1].total_heads} heads on {len(at)} ranks", fix="Run the same model at both engines.")
        holder = having[rank % len(having)]
        count = min(end, holder[1].first_head + holder[1].heads) - head
        out.append((head, count, holder))
        head += count
    return out


def _check_pair(local: Family, groups: Sequence[Group], remote: Family, remote_groups: Sequence[Group], name: str) -> None:
    here, there = groups[local.group], remote_groups[remote.group]
    for what, ours, theirs in (
            ("heads", local.total_heads, remote.total_heads), ("bytes for each token and head", local.row, remote.row),
            ("attention", here.kind, there.kind)):
        if ours != theirs:
            raise errors.Unsupported(f"layer {name} has {what}: {ours} here, {theirs} at the other engine",
                                     fix="Run the same model with the same cache type and attention backend at both engines.")
    small, large = sorted((local.tokens, remote.tokens))
    if large % small:
        raise errors.Unsupported(
            f"layer {name} has blocks of {local.tokens} tokens here, {remote.tokens} at the other engine, and neither is a "
            "multiple of the other", fix="Choose block sizes (--block-size) of which one divides the other.")


# --- operations ---------------------------------------------------------------------------------------

def operations(plan: Plan, rank: int, local_blocks: Sequence[Sequence[int]], remote_blocks: Sequence[Sequence[int]],
               first: int, end: int, reads: bool = False) -> Any:
    """Operations for tokens [first, end) of a request, as an array (n, 3): local offset, remote offset, length.

    rank: of the other engine. local_blocks, remote_blocks: for each group all blocks of the request,
    from its first token. Blocks that hold nothing at either side are left out. errors.Invalid: a list
    is too short, or has a number that no block has. reads: this engine reads; errors.Invalid also if the other one has no block for a token
    for which this one has one.
    """
    found = [_part_operations(part, plan, local_blocks, remote_blocks, first, end, reads)
             for part in plan.parts if part.rank == rank]
    return np.concatenate(found) if found else np.empty((0, 3), dtype=np.uint64)


def _part_operations(part: Part, plan: Plan, local_blocks: Sequence[Sequence[int]],
                     remote_blocks: Sequence[Sequence[int]], first: int, end: int, reads: bool) -> Any:
    local, remote = part.local, part.remote
    step = min(local.tokens, remote.tokens)
    units = np.arange(first // step, -(-end // step), dtype=np.int64)
    ours, our_token = _places(local, plan.local_groups[local.group], local_blocks, units * step, "this engine")
    theirs, their_token = _places(remote, plan.remote_groups[remote.group], remote_blocks, units * step, "the other engine")
    used = (ours >= 0) & (theirs >= 0)
    if reads and not used.all():
        _check_complete(part, plan.local_groups[local.group], units * step, ours, theirs)
    our_unit = (ours * local.block_stride + our_token * local.token_stride)[used]
    their_unit = (theirs * remote.block_stride + their_token * remote.token_stride)[used]
    length, inner = _contiguous(part, step)
    our_bases, their_bases = part.local_bases, part.remote_bases
    if inner.shape[0] == 1:
        our_bases, their_bases, length = _merge_layers(our_bases, their_bases, length)
        our_unit, their_unit, lengths = _merge(our_unit, their_unit, length)
    else:
        lengths = np.full(our_unit.shape, length, dtype=np.int64)
    shape = (len(our_bases), our_unit.shape[0], inner.shape[0])
    out = np.empty((*shape, 3), dtype=np.uint64)
    out[..., 0] = our_bases[:, None, None] + our_unit[None, :, None] + inner[None, None, :, 0]
    out[..., 1] = their_bases[:, None, None] + their_unit[None, :, None] + inner[None, None, :, 1]
    out[..., 2] = lengths[None, :, None]
    return out.reshape(-1, 3)


def _check_complete(part: Part, group: Group, tokens: Any, ours: Any, theirs: Any) -> None:
    """errors.Invalid: the other engine has no block for tokens that this engine looks at.

    The first block that this engine looks at may begin before its window, where the other engine's smaller blocks are missing.
    """
    missing, blocks = (ours >= 0) & (theirs < 0), tokens // group.tokens
    first = int(np.argmax((ours >= 0) & (theirs >= 0)))
    missing &= (np.arange(tokens.size) >= first) | (blocks != blocks[first])
    if missing.any():
        raise errors.Invalid(
            f"the other engine lists no block of layer {part.local.names[0]} ({group.kind}) for token {int(tokens[np.argmax(missing)])}, "
            "which this engine looks at", fix="Use the same version of dray-client at both engines, and the same prompt in both requests.")


def _places(family: Family, group: Group, blocks: Sequence[Sequence[int]], tokens: Any, whose: str) -> tuple[Any, Any]:
    """The tensor's block of each token, -1 where the request has none, and the token's place in the block."""
    try:
        ids = np.asarray(blocks[family.group], dtype=np.int64)
    except IndexError:
        raise errors.Invalid(f"{whose} lists blocks of {len(blocks)} groups, not of group {family.group}") from None
    index = tokens // group.tokens
    if index.size and index[-1] >= ids.size:
        raise errors.Invalid(f"{whose} has {ids.size} blocks of {group.tokens} tokens, too few for token {int(tokens[-1])}")
    ratio = group.tokens // family.tokens
    if ids.size and (ids.min() < 0 or ids.max() >= family.blocks // ratio):
        raise errors.Invalid(f"{whose} lists block {int(ids.max())}, and has {family.blocks // ratio} blocks")
    chosen = ids[index]
    place = chosen * ratio + tokens % group.tokens // family.tokens
    return np.where(chosen == NULL_BLOCK, -1, place), tokens % family.tokens


def _contiguous(part: Part, step: int) -> tuple[int, Any]:
    """(length, inner): the longest piece that is contiguous at both sides, and the offsets of such pieces in a unit."""
    local, remote = part.local, part.remote
    dims = [(part.heads, local.head_stride, remote.head_stride), (step, local.token_stride, remote.token_stride)]
    length = local.row
    while True:
        joined = next((d for d in dims if d[0] == 1 or d[1] == d[2] == length), None)
        if joined is None:
            break
        dims.remove(joined)
        length *= joined[0]
    inner = np.zeros((1, 2), dtype=np.int64)
    for count, ours, theirs in dims:
        offsets = np.arange(count, dtype=np.int64)[:, None] * np.array([[ours, theirs]], dtype=np.int64)
        inner = (inner[:, None, :] + offsets[None, :, :]).reshape(-1, 2)
    return length, inner


def _merge_layers(ours: Any, theirs: Any, length: int) -> tuple[Any, Any, int]:
    """Joins layers that follow each other in a block at both sides: fewer places, of more bytes each."""
    order = np.argsort(ours, kind="stable")
    ours, theirs = ours[order], theirs[order]
    starts = _starts(ours, theirs, length)
    counts = np.diff(np.append(starts, ours.size))
    if (counts != counts[0]).any():
        return ours, theirs, length
    return ours[starts], theirs[starts], length * int(counts[0])


def _starts(ours: Any, theirs: Any, length: int) -> Any:
    """Where pieces of `length` bytes do not continue the one before at both sides."""
    return np.flatnonzero(np.concatenate(([True], (np.diff(ours) != length) | (np.diff(theirs) != length))))


def _merge(ours: Any, theirs: Any, length: int) -> tuple[Any, Any, Any]:
    """Joins units that follow each other at both sides."""
    if not ours.size:
        return ours, theirs, ours
    starts = _starts(ours, theirs, length)
    counts = np.diff(np.append(starts, ours.size))
    return ours[starts], theirs[starts], counts * length


def ranges(layout: RankLayout, groups: Sequence[Group], blocks: Sequence[Sequence[int]], most: int = 4096) -> Any:
    """The bytes of a request's blocks in a rank's region, as an array (n, 4): offset, length, stride, count.

    One range covers a run of blocks in all layers that have equal distances. If there would be more than
    `most`, runs are joined over the smallest gaps, with the blocks between them.
    """
    used = [(family, ids) for family in layout.families
            if (ids := np.unique(np.asarray(blocks[family.group], dtype=np.int64))).any()]
    share = most // max(1, sum(len(runs(sorted(family.bases))) for family, _ in used))
    out = []
    for family, ids in used:
        ids = ids[ids != NULL_BLOCK]
        ratio = groups[family.group].tokens // family.tokens
        for base, step, layers in runs(sorted(family.bases)):
            # Layers that lie inside one block get a range each.
            inside = layers > 1 and step < family.block_stride * ratio
            extent = family.extent
            if inside and step == extent and layers * extent <= family.block_stride:  # they are one piece of the block
                extent, step, layers, inside = extent * layers, 0, 1, False
            firsts, counts = _joined(ids, max(1, share // layers if inside else share))
            offsets, counts = firsts * ratio * family.block_stride + base, counts * ratio
            if not inside and layers > 1 and step < int(counts.max()) * family.block_stride:
                raise errors.Unsupported(f"the KV caches of layers {family.names[0]} and {family.names[1]} overlap",
                                         fix="Run this model without DrayConnector.")
            for layer in range(layers if inside else 1):
                out.append(np.stack([
                    offsets + layer * step, np.full_like(counts, extent) if inside else
                    (counts - 1) * family.block_stride + extent,
                    np.full_like(counts, family.block_stride if inside else step), counts if inside else
                    np.full_like(counts, layers)], axis=1))
    return np.concatenate(out).astype(np.uint64) if out else np.empty((0, 4), dtype=np.uint64)


def _joined(ids: Any, most: int) -> tuple[Any, Any]:
    """(first, count) of runs of numbers in ascending order, at most `most` of them."""
    gaps = np.diff(ids)
    cuts = np.flatnonzero(gaps != 1)
    if cuts.size >= most:
        cuts = np.sort(cuts[np.argsort(gaps[cuts], kind="stable")[cuts.size - most + 1:]])
    firsts, lasts = ids[np.append(0, cuts + 1)], ids[np.append(cuts, ids.size - 1)]
    return firsts, lasts - firsts + 1
