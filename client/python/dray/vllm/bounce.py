# SPDX-License-Identifier: Apache-2.0
"""A buffer in host memory through which blocks are copied, for a KV cache that cannot be shared with the agent.

The buffer is a small KV cache of its own: it has the families of the real one, with slots in place of
blocks, and the other engine sees only its layout. Outgoing blocks are copied into slots in the step that
completes them; incoming ones are copied out of slots when the agent has written them. Slot 0 is not used,
because its number means a block that holds nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from .. import errors
from ..memory import Memory
from .layout import NULL_BLOCK, Group, RankLayout
from .slots import Blocks, Piece, Slots

__all__ = ["Bounce"]


class Bounce:
    """The buffer of one rank. layout: of the slots. outgoing: how many of them, from number 1, are for blocks that are read here."""

    def __init__(self, cache: RankLayout, groups: Sequence[Group], tensors: Mapping[str, Any], offsets: Mapping[str, int],
                 size: int, *, producer: bool, consumer: bool) -> None:
        """cache: layout of the tensors. size: of the buffer in bytes. errors.Invalid: it is too small."""
        self._groups = groups
        each = sum(len(f.bases) * _ratio(f, groups) * f.heads * f.tokens * f.row for f in cache.families)
        count = size // each
        if count < 3:
            raise errors.Invalid(f"option 'bounce_size' is {size} bytes, and a block of this model needs {each}",
                                 fix=f"Set it to at least {3 * each}, better to the size of some whole requests.")
        incoming = 0 if not consumer else count // 2 if producer else count - 1
        self.outgoing = count - 1 - incoming
        self._slots = Slots(range(count - incoming, count))
        self.memory = Memory(count * each, name="dray-bounce")
        bytes_of_it = torch.frombuffer(self.memory.view, dtype=torch.uint8)
        self._pairs: list[tuple[int, int, Any, Any]] = []  # group, ratio, and the same layer in the cache and in the buffer
        families, base = [], 0
        for family in cache.families:
            ratio = _ratio(family, groups)
            heads_outside = family.head_stride > family.token_stride
            slot = replace(
                family, blocks=count * ratio, block_stride=family.heads * family.tokens * family.row,
                head_stride=family.row * (family.tokens if heads_outside else 1),
                token_stride=family.row * (1 if heads_outside else family.heads), bases=())
            bases = []
            for name, at in zip(family.names, family.bases, strict=True):
                layer = tensors[name.partition("#")[0]]
                inside = at - offsets[name.partition("#")[0]]
                bases.append(base)
                flat = bytes_of_it[base:base + slot.blocks * slot.block_stride].view(layer.dtype)
                self._pairs.append((family.group, ratio, _view(layer, family, inside), _view(flat, slot, 0)))
                base += slot.blocks * slot.block_stride
            families.append(replace(slot, bases=tuple(bases)))
        self.layout = RankLayout(cache.rank, self.memory.size, tuple(families))
        device = next(iter(tensors.values())).device
        if device.type == "cuda":  # a copy of pageable memory is slower, and works as well
            torch.cuda.cudart().cudaHostRegister(bytes_of_it.data_ptr(), self.memory.size, 0)

    # --- outgoing -----------------------------------------------------------------------------------

    def save(self, blocks: Blocks, slots: Blocks) -> None:
        """Copies blocks into slots. Waits for the kernels that compute them."""
        self._copy(blocks, slots, out=False)

    # --- incoming -----------------------------------------------------------------------------------

    def pieces(self, blocks: Blocks, first: int, end: int) -> list[Piece]:
        """Divides a load into pieces that fit into the buffer. errors.TooLarge: not even one block of each group fits."""
        step = max(group.tokens for group in self._groups)
        each = sum(step // group.tokens for group in self._groups)
        most = len(self._slots) // each * step
        if not most:
            raise errors.TooLarge(f"a block of each group takes {each} slots of the buffer, which has {len(self._slots)}",
                                  fix="Set the option 'bounce_size' to more.")
        start = first // step * step
        cuts = [first, *range(start + most, end, most), end]
        return [Piece(a, b, blocks) for a, b in zip(cuts, cuts[1:], strict=False)]

    def enter(self, piece: Piece) -> bool:
        """Takes slots for a piece; False if there are too few now."""
        used = self._blocks_of(piece)
        slots = self._slots.take(used)
        if slots is None:
            return False
        if any(piece.first % group.tokens for group in self._groups):
            self._copy(used, slots, out=False)  # the first tokens of the block stay as they are
        piece.slots = slots
        return True

    def leave(self, piece: Piece, copy: bool) -> None:
        """Gives the slots of a piece back, after copying them into its blocks if that is wanted."""
        if piece.slots is None:
            return
        if copy:
            self._copy(self._blocks_of(piece), piece.slots, out=True)
        self._slots.give(piece.slots)
        piece.slots = None

    def _blocks_of(self, piece: Piece) -> Blocks:
        """The blocks that a piece touches; NULL_BLOCK in place of the others."""
        out = []
        for group, blocks in zip(self._groups, piece.blocks, strict=True):
            low, high = piece.first // group.tokens, -(-piece.end // group.tokens)
            out.append(tuple(block if low <= i < high else NULL_BLOCK for i, block in enumerate(blocks)))
        return tuple(out)

    def _copy(self, blocks: Blocks, slots: Blocks, *, out: bool) -> None:
        for group, ratio, cache, buffer in self._pairs:
            pairs = [(b, s) for b, s in zip(blocks[group], slots[group], strict=True) if b != NULL_BLOCK and s != NULL_BLOCK]
            if not pairs:
                continue
            ours, theirs = _expand((b for b, _ in pairs), ratio), _expand((s for _, s in pairs), ratio)
            if out:
                cache.index_copy_(0, ours.to(cache.device), buffer.index_select(0, theirs).to(cache.device))
            else:
                buffer.index_copy_(0, theirs, cache.index_select(0, ours.to(cache.device)).cpu())


def _ratio(family: Any, groups: Sequence[Group]) -> int:
    return int(groups[family.group].tokens // family.tokens)


def _expand(numbers: Iterable[int], ratio: int) -> Any:
    """The tensor's blocks of the engine's blocks."""
    return torch.tensor([n * ratio + i for n in numbers for i in range(ratio)], dtype=torch.int64)


def _view(tensor: Any, family: Any, inside: int) -> Any:
    """(blocks, heads, tokens, row) of a layer, whose first block is `inside` bytes behind the tensor's first byte."""
    size = tensor.element_size()
    strides = (family.block_stride, family.head_stride, family.token_stride)
    return tensor.as_strided((family.blocks, family.heads, family.tokens, family.row // size), (*(n // size for n in strides), 1),
                             tensor.storage_offset() + inside // size)
