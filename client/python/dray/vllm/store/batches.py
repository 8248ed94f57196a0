# SPDX-License-Identifier: Apache-2.0
"""Blocks as batches of the store: how many keys and ranges a batch takes, and its results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

from ... import errors
from ...pending import Lending
from ...store import BlockLayout
from .keys import Root, prefix
from .objects import RANGES_MAX, Objects
from .protocol import Block

__all__ = ["Batch", "Batches"]

_KEYS_MAX = 1024
_group_of = attrgetter("group")


class Batch(NamedTuple):
    """items: (key, layout, cost, number of the block) of each object. blocks: of each item."""

    items: list[tuple[bytes, BlockLayout, float, int]]
    blocks: Sequence[Block]


class Batches:
    """Blocks of one load or save. The store's batches of them are started as far as the agent has room, and end one by one.

    results: of each object of the batches that have ended, with its block. error: of a batch that failed, or None.
    lost: the session was lost, and the agent may go on with a batch until there is proof that it does not.
    """

    def __init__(self, objects: Objects, root: Root, blocks: Sequence[Block]) -> None:
        self._waiting = _cut(objects, root, blocks)
        self._running: list[tuple[Sequence[Block], Lending[Any]]] = []
        self.results: list[tuple[Block, Any]] = []
        self.error: errors.Error | None = None
        self.lost = False

    def start(self, put_or_get: Callable[[Batch], Lending[Any]]) -> None:
        """Starts batches that wait, until the agent is busy. After an error no further one is started."""
        while self._waiting and self.error is None:
            batch = self._waiting[0]
            try:
                self._running.append((batch.blocks, put_or_get(batch)))
            except errors.Busy:
                return
            except errors.Error as e:
                self.error = e
                return
            self._waiting.pop(0)

    def poll(self) -> None:
        """Takes the results of batches that have ended. Does not wait."""
        running, self._running, self.lost = self._running, [], False
        for blocks, pending in running:
            if not pending.done():
                self._running.append((blocks, pending))
                continue
            error: Any = pending.error()
            if error is None:
                self.results += zip(blocks, pending.result(0), strict=True)
                continue
            self.error = self.error or error
            if pending.lent():
                self.lost = True
                self._running.append((blocks, pending))

    @property
    def busy(self) -> bool:
        """True while the agent may touch blocks."""
        return bool(self._running)

    @property
    def ended(self) -> bool:
        """True if nothing is in flight, and nothing will be."""
        return not self._running and (not self._waiting or self.error is not None)


def _cut(objects: Objects, root: Root, blocks: Sequence[Block]) -> list[Batch]:
    """Batches that the store takes."""
    if 0 < len(blocks) <= min(_KEYS_MAX // objects.most, RANGES_MAX // max(objects.pieces)):
        return [_batch(objects, root, blocks)]
    out: list[Batch] = []
    first = pieces = keys = 0
    for number, block in enumerate(blocks):
        more, n = len(objects.layouts[block.group]), objects.pieces[block.group]
        if number > first and (pieces + n > RANGES_MAX or keys + more > _KEYS_MAX):
            out.append(_batch(objects, root, blocks[first:number]))
            first, pieces, keys = number, 0, 0
        pieces, keys = pieces + n, keys + more
    return [*out, _batch(objects, root, blocks[first:])] if blocks else out


def _batch(objects: Objects, root: Root, blocks: Sequence[Block]) -> Batch:
    items: list[tuple[bytes, BlockLayout, float, int]] = []
    each: list[Block] = []
    for group, run in groupby(blocks, _group_of):
        parts = [(prefix(root, form), layout) for form, layout in zip(objects.forms[group], objects.layouts[group], strict=True)]
        same, n = list(run), len(parts)
        items += [(begin + text, layout, cost / n, number) for _, number, text, cost in same for begin, layout in parts]
        each += same if n == 1 else [block for block in same for _ in parts]
    return Batch(items, each)
