# SPDX-License-Identifier: Apache-2.0
"""How a block of the KV cache becomes an object of the store: which bytes of the rank's region, in which order.

The object of a block has the layers of one KV-cache group, one after the other, each as it lies in memory. So engines whose
layers lie in different places, or in different orders of layers and blocks, have equal objects. What would make their bytes
differ is in the form, which is a part of the key.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

from ... import errors
from ..layout import Family, Group, RankLayout

__all__ = ["Objects"]

RANGES_MAX = 4096  # of a batch of the store

_PAIR = struct.Struct("<2Q")

Piece = tuple[int, int, int]  # offset in the region for block 0, bytes to the next block's, length


class Objects:
    """Of one rank. forms: a text for each group that tells what its objects hold; sizes: their bytes."""

    def __init__(self, layout: RankLayout, groups: Sequence[Group], arrangements: Sequence[str]) -> None:
        """arrangements: of the bytes of each group's blocks; see kernels.py. errors.Unsupported: a block lies in more pieces than a batch can have."""
        self._pieces: list[list[Piece]] = []
        forms = []
        for number, group in enumerate(groups):
            families = [family for family in layout.families if family.group == number]
            self._pieces.append(_merged([piece for family in families for piece in _pieces(family, group)]))
            forms.append(f"{group.kind}, {group.tokens} tokens, {arrangements[number]}: " + "; ".join(_form(family, group) for family in families))
        self.forms = tuple(forms)
        self.sizes = tuple(sum(length for _, _, length in pieces) for pieces in self._pieces)
        self.counts = tuple(map(len, self._pieces))
        # Of block 0, and what each further block adds. All words of a block are one number, because no sum passes 64 bits: a load is
        # started in few steps of an engine, each time with cold caches, in which numpy takes ten times as long as it does otherwise.
        self._first = [_number((offset, length) for offset, _, length in pieces) for pieces in self._pieces]
        self._step = [_number((step, 0) for _, step, _ in pieces) for pieces in self._pieces]
        if max(self.counts) > RANGES_MAX:
            raise errors.Unsupported(f"a block of the KV cache lies in {max(self.counts)} pieces, and the store takes {RANGES_MAX}",
                                     fix="Use an attention backend that keeps the tokens of a block together.")

    def ranges(self, group: int, blocks: Sequence[int]) -> bytearray:
        """(offset, length) of the pieces of blocks, each in the order of its object, as pairs of words of 64 bits."""
        first, step, size = self._first[group], self._step[group], self.counts[group] * _PAIR.size
        return bytearray().join([(first + number * step).to_bytes(size, "little") for number in blocks])


def _number(pairs: Iterable[tuple[int, int]]) -> int:
    """Words of 64 bits as one number, whose bytes they are."""
    return int.from_bytes(b"".join([_PAIR.pack(*pair) for pair in pairs]), "little")


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
    return [(base + offset, step, length) for base in family.bases for offset in offsets]


def _merged(pieces: list[Piece]) -> list[Piece]:
    """Joins pieces that follow each other in memory for each block."""
    out: list[Piece] = []
    for offset, step, length in pieces:
        if out and out[-1][1] == step and out[-1][0] + out[-1][2] == offset:
            out[-1] = (out[-1][0], step, out[-1][2] + length)
        else:
            out.append((offset, step, length))
    return out
