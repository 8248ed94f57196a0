# SPDX-License-Identifier: Apache-2.0
"""Blocks that are saved when the engine's own cache is about to lose them.

The engine keeps blocks of ended requests in a queue of free blocks, from whose front it takes the memory for new ones. A block
that comes near the front is saved, if a request has computed it, and goes back to the front then: it is safe to lose, and those
behind it stay where they are. So little is saved that the engine itself keeps, and a block is read from its memory before
somebody else gets it. A block that could not be saved is not tried again until a request has it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from ... import errors
from .keys import Root
from .protocol import Block

__all__ = ["Evictions"]


class Evictions:
    """Of one engine. ahead: how many blocks one step may take from the queue for what it computes."""

    def __init__(self, ahead: int) -> None:
        self._ahead = ahead
        self._known: dict[int, tuple[Any, Root, Block]] = {}  # by number; with the engine's own hash

    @staticmethod
    def check(pool: Any) -> None:
        """errors.Unsupported: the engine's bookkeeping is not what due() and back() use."""
        if not all(hasattr(pool, name) for name in ("free_block_queue", "cached_block_hash_to_block", "get_num_free_blocks")) or \
                not all(hasattr(pool.free_block_queue, name) for name in ("fake_free_list_head", "remove", "prepend_n")):
            raise errors.Unsupported("this version of vLLM keeps its free blocks in another way than save 'eviction' knows",
                                     fix="Use a version of vLLM that docs/vllm.md names, or save 'always' or 'second_use'.")

    def add(self, block: Any, root: Root, one: Block) -> None:
        """A block of the engine holds what it should. one: what it is saved as."""
        if block.block_hash is not None:
            self._known[block.block_id] = block.block_hash, root, one

    def taken(self, pool: Any, numbers: Iterable[int]) -> list[Block]:
        """Blocks that a request has got: what is in them is known again when it has computed. Returns those that the cache has lost."""
        lost = []
        for number in numbers:
            known = self._known.pop(number, None)
            if known is not None and known[0] != pool.blocks[number].block_hash:
                lost.append(known[2])
        return lost

    def due(self, pool: Any, loaded: int = 0) -> Iterator[tuple[Any, Root, Block]]:
        """(the engine's block, its root, what it is saved as) of those that one of the next steps may take.

        loaded: blocks that loads will take, besides those of a step that computes.
        """
        return self.front(pool, self._ahead + loaded)

    def front(self, pool: Any, count: int) -> Iterator[tuple[Any, Root, Block]]:
        """The same of the first `count` blocks of the queue."""
        if not self._known or pool.get_num_free_blocks() - len(pool.cached_block_hash_to_block) >= count:
            return  # there are enough free blocks with nothing in them, which are in front
        block = pool.free_block_queue.fake_free_list_head.next_free_block
        front: list[Any] = []
        while block is not None and block.next_free_block is not None and len(front) < count:
            front.append(block)
            block = block.next_free_block
        for block in front:  # what is saved leaves the queue
            known = self._known.get(block.block_id)
            if known is not None and known[0] == block.block_hash:
                yield block, known[1], known[2]

    def back(self, pool: Any, blocks: Iterable[Any], failed: bool) -> None:
        """The save of blocks, in the order of the queue, has ended, and the engine's pool has its references back."""
        free = [block for block in blocks if block.ref_cnt == 0]
        for block in free:
            pool.free_block_queue.remove(block)
            if failed:
                self._known.pop(block.block_id, None)
        pool.free_block_queue.prepend_n(free)

    def clear(self) -> None:
        """Nothing that was added may be saved any more."""
        self._known.clear()
