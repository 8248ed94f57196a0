# SPDX-License-Identifier: Apache-2.0
"""How a block of the KV cache becomes an object of the store: which bytes of the rank's region, in which order.

The object of a block has the layers of one KV-cache group, one after the other, each as it lies in memory. So engines whose
layers lie in different places, or in different orders of layers and blocks, have equal objects. What would make their bytes
differ is in the form, which is a part of the key.

Or the KV heads of all ranks are divided into parts, and each part of a block is an object. A rank has one or several whole parts.
So engines of different tensor-parallel sizes have equal objects, because a part does not tell which rank has it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from ... import errors
from ...store import BlockLayout
from ..layout import Family, Group, RankLayout

__all__ = ["Objects"]

RANGES_MAX = 4096  # of a batch of the store

Piece = tuple[int, int, int]  # offset in the region for block 0, length, bytes to the next block's


class Objects:
    """Of one rank. Of a block of each group: forms: a text for each of its objects that tells what it holds; layouts: where each of
    them lies; sizes: bytes of one of them; pieces: of the block. most: objects of a block of any group."""

    def __init__(self, layout: RankLayout, groups: Sequence[Group], arrangements: Sequence[str], parts: int = 0) -> None:
        """arrangements: of the bytes of each group's blocks; see kernels.py. parts: of the heads of all ranks; 0: a block is one object.

        errors.Unsupported: a block lies in more pieces than a batch can have, or this rank does not have whole parts.
        """
        forms, layouts, sizes, pieces = [], [], [], []
        for number, group in enumerate(groups):
            objects = _parted([family for family in layout.families if family.group == number], parts)
            found = [_merged([piece for family in families for piece in _pieces(family, group)]) for families in objects]
            forms.append(tuple(f"{group.kind}, {group.tokens} tokens, {arrangements[number]}: " + "; ".join(_form(family, group) for family in families)
                               for families in objects))
            layouts.append(tuple(map(BlockLayout, found)))
            sizes.append(sum(length for _, length, _ in found[0]))
            pieces.append(sum(map(len, found)))
        self.forms, self.layouts, self.sizes, self.pieces = tuple(forms), tuple(layouts), tuple(sizes), tuple(pieces)
        self.most = max(map(len, layouts))
        if max(self.pieces) > RANGES_MAX:
            raise errors.Unsupported(f"a block of the KV cache lies in {max(self.pieces)} pieces, and the store takes {RANGES_MAX}",
                                     fix="Use an attention backend that keeps the tokens of a block together, or fewer parts.")


def _parted(families: list[Family], parts: int) -> list[list[Family]]:
    """What each object of a block has. Of a block with one head, which all ranks have, there is one object."""
    if not parts or all(family.total_heads == 1 for family in families):
        return [families]
    objects: list[list[Family]] = []
    for family in families:
        heads, rest = divmod(family.total_heads, parts)
        if rest or not heads or family.first_head % heads or family.heads % heads:
            raise errors.Unsupported(
                f"the option parts is {parts}, and this rank has the heads {family.first_head} to {family.first_head + family.heads - 1} of "
                f"{family.total_heads} of layer {family.names[0]}, which are no whole parts",
                fix="Set parts to a divisor of the number of KV heads that is a multiple of each engine's tensor-parallel size, "
                    "to the number itself if an engine has more ranks than heads, or leave it out.")
        objects = objects or [[] for _ in range(family.heads // heads)]
        for one, first in zip(objects, range(0, family.heads, heads), strict=True):
            places = tuple(base + first * family.head_stride for base in family.bases)
            one.append(dataclasses.replace(family, bases=places, heads=heads, first_head=family.first_head + first))
    return objects


def _dimensions(family: Family, group: Group) -> list[tuple[str, int, int]]:
    """(letter, count, stride) inside of an engine's block, from the innermost to the outermost."""
    ratio = group.tokens // family.tokens
    found = [("R", ratio, family.block_stride), ("H", family.heads, family.head_stride), ("N", family.tokens, family.token_stride)]
    return sorted((one for one in found if one[1] > 1), key=lambda one: one[2])


def _form(family: Family, group: Group) -> str:
    inside = " ".join(f"{letter}{count}" for letter, count, _ in reversed(_dimensions(family, group)))
    return f"{inside} C{family.row}, heads {family.first_head}+{family.heads} of {family.total_heads}, {', '.join(family.names)}"


def _pieces(family: Family, group: Group) -> list[Piece]:
    """The contiguous pieces of a block in all layers of a family."""
    length, offsets = family.row, [0]
    for _, count, stride in _dimensions(family, group):
        if stride == length and len(offsets) == 1:
            length *= count
        else:
            offsets = [stride * i + inner for i in range(count) for inner in offsets]
    step = group.tokens // family.tokens * family.block_stride
    return [(base + offset, length, step) for base in family.bases for offset in offsets]


def _merged(pieces: list[Piece]) -> list[Piece]:
    """Joins pieces that follow each other in memory for each block."""
    out: list[Piece] = []
    for offset, length, step in pieces:
        if out and out[-1][2] == step and out[-1][0] + out[-1][1] == offset:
            out[-1] = (out[-1][0], out[-1][1] + length, step)
        else:
            out.append((offset, length, step))
    return out
