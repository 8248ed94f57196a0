# SPDX-License-Identifier: Apache-2.0
"""Which blocks are saved, and when: those of requests whose tokens are computed, within the limits.

A block is saved when the engine has processed the step that filled it, so that its bytes are in place on any device. Until all
ranks have put it, the connector holds a reference of its own to it: whatever becomes of the request, nobody else gets the block.
What the limits do not allow now is tried again in later steps of the request, and dropped with its end. With the policy "eviction"
a block is not saved then, but when the engine's own cache is about to lose it; see evictions.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from ..kept import Kept
from ..layout import Group
from .cost import Cost
from .evictions import Evictions
from .keys import Root
from .protocol import Block, Save
from .recent import Recent
from .room import Room
from .stats import Stats

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.request import Request

    from .block_events import BlockEvents

__all__ = ["Saves"]

_FAILED = "FINISHED_ERROR"
_NEVER = 1 << 62
_STUCK = 1.0  # seconds after which a save that has not ended holds up further ones


class _Followed:
    """A request whose blocks are saved.

    next: the first block of each group that was not looked at. due: computed tokens with which there is something to look at.
    active: it has been scheduled since it got its blocks. sure: computed tokens with which the blocks hold what they should:
    one more than when it was scheduled first, because another connector may have loaded the others in that step.
    """

    __slots__ = ("active", "due", "next", "request", "root", "sure")

    def __init__(self, request: Request, root: Root, groups: int) -> None:
        self.request, self.root, self.next = request, root, [0] * groups
        self.active, self.due, self.sure = False, 0, 0


class _InFlight:
    """A save that the ranks have not reported. blocks: with the block's hash, to be forgotten if it fails."""

    __slots__ = ("began", "hashes", "left", "number_of_blocks", "unsaved")

    def __init__(self, began: float, hashes: list[tuple[int, bytes]], ranks: int) -> None:
        self.began, self.hashes, self.left, self.number_of_blocks, self.unsaved = began, hashes, ranks, len(hashes), False


class Saves:
    """For one scheduler side. hashes: of a request, for each block of a group; see hashing.py."""

    def __init__(self, groups: Sequence[Group], hash_of: Callable[[Request, int, int], bytes | None], cost: Cost, stats: Stats, *,
                 policy: str, limit: int, blocks: int, ahead: int = 1) -> None:
        """limit: bytes a second, 0: none. blocks: that the engine has. ahead: blocks that one of its steps may take for what it computes."""
        self._groups, self._hash_of, self._cost, self._stats = groups, hash_of, cost, stats
        self._second_use = policy == "second_use"
        self._evictions = Evictions(ahead) if policy == "eviction" else None
        self._limit, self._allowance, self._counted = limit, float(limit), time.monotonic()
        self.room = Room(blocks)
        self._kept = Kept()
        self._followed: dict[str, _Followed] = {}
        self._in_flight: dict[int, _InFlight] = {}
        self._next_number = 1
        self._new: list[Save] = []
        self.stored, self._used = Recent(), Recent()
        self.sizes: tuple[int, ...] | None = None  # of a block of each group, at all ranks together; None: unknown yet
        self.ranks = 1
        self.events: BlockEvents | None = None  # None: nobody asks for them

    def bind(self, kv_cache_manager: Any) -> None:
        """Gives this object the engine's bookkeeping of blocks, without which nothing is saved."""
        if self._evictions is not None:
            self._evictions.check(kv_cache_manager.block_pool)
        self._kept.kv_cache_manager = kv_cache_manager

    def step(self, output: SchedulerOutput, requests: Callable[[str], Request | None], root: Root | None, wanted: int = 0) -> list[Save]:
        """The saves of this step. root: of new requests; None: nothing can be saved now. wanted: blocks for which loads wait."""
        self.room.turn()
        for request_id in output.preempted_req_ids or ():
            if followed := self._followed.get(request_id):
                followed.active = False
                if self._evictions is not None and followed.due != _NEVER:
                    followed.next, followed.due = [0] * len(self._groups), 0  # it gets other blocks, of which nothing is known
        if self._kept.kv_cache_manager is not None:
            if self._evictions is not None:
                self._evict(self._evictions, output, wanted)
            for request_id in output.num_scheduled_tokens:
                followed = self._followed.get(request_id)
                if followed is None:
                    request = requests(request_id)
                    if root is None or request is None:
                        continue
                    followed = self._followed[request_id] = _Followed(request, root, len(self._groups))
                if not followed.active:
                    followed.active, followed.sure = True, followed.request.num_computed_tokens + 1
                elif _processed(followed.request) >= max(followed.due, followed.sure):
                    self._look(followed)
        self.room.over()
        new, self._new = self._new, []
        return new

    def finished(self, request: Request) -> None:
        """The request has ended, and still has its blocks."""
        followed = self._followed.pop(request.request_id, None)
        computed = _processed(request)
        if followed is None or not followed.active or computed < followed.sure or request.status.name == _FAILED:
            return
        self._look(followed)
        if self._evictions is not None:
            return
        left = sum(max(0, computed // group.tokens - at) for group, at in zip(self._groups, followed.next, strict=True))
        self._stats.dropped("limit", left)

    def _look(self, followed: _Followed) -> None:
        """Takes the request's complete blocks, as far as the limits allow."""
        request, computed = followed.request, _processed(followed.request)
        held = self._kept.kv_cache_manager.get_blocks(request.request_id).blocks
        chosen: list[Block] = []
        objects: list[Any] = []
        for number, group in enumerate(self._groups):
            while (followed.next[number] + 1) * group.tokens <= computed:
                index = followed.next[number]
                block = held[number][index] if index < len(held[number]) else None
                block_hash = self._hash_of(request, number, index)
                if block is None or block_hash is None:
                    break
                one = Block(number, block.block_id, block_hash, self._cost.seconds(index * group.tokens, group.tokens))
                if self._evictions is not None:
                    if not block.is_null:
                        self._evictions.add(block, followed.root, one)
                        self._describe(request, index, one)
                elif not block.is_null and self._wanted(number, block_hash):
                    if not self._room(number, len(chosen)):
                        break
                    chosen.append(one)
                    objects.append(block)
                    self.stored.add((number, block_hash))
                    self._describe(request, index, one)
                followed.next[number] += 1
        followed.due = min((at + 1) * group.tokens for at, group in zip(followed.next, self._groups, strict=True))
        if chosen:
            self._start(followed.root, chosen, objects)

    def _describe(self, request: Request, index: int, one: Block) -> None:
        if self.events is not None:
            self.events.describe(request, one.group, index, one.hash)

    def holds_up(self, count: int) -> bool:
        """True if `count` blocks that the engine takes now would be lost, and are safe to lose when saves have ended.

        The engine takes them from the front of its free blocks, to which those that are being saved come back. Behind these lie the
        first blocks of the prompts whose last ones are being saved, so that losing those unsaved would make the others useless.
        """
        if self._evictions is None or self._kept.kv_cache_manager is None:
            return False
        pool = self._kept.kv_cache_manager.block_pool
        now = time.monotonic()
        if count > pool.get_num_free_blocks() or self._stuck(now) or not (self._in_flight or self._ready(now) and self.room.left(0)):
            return False
        return any((one.group, one.hash) not in self.stored for _, _, one in self._evictions.front(pool, count))

    def _evict(self, evictions: Evictions, output: SchedulerOutput, wanted: int) -> None:
        """Saves what the engine's own cache is about to lose, as far as the limits allow."""
        pool = self._kept.kv_cache_manager.block_pool
        taken = [new.block_ids for new in output.scheduled_new_reqs] + [more or () for more in output.scheduled_cached_reqs.new_block_ids]
        lost = [one for groups in taken for numbers in groups for one in evictions.taken(pool, numbers)]
        self._stats.dropped("limit", sum((one.group, one.hash) not in self.stored for one in lost))
        chosen: dict[Root, tuple[list[Block], list[Any]]] = {}
        count, most = 0, pool.get_num_free_blocks() // 2  # the engine needs the others in its next step
        for block, root, one in evictions.due(pool, max(0, wanted - self.room.held)):  # what is being saved comes back to the front
            if (one.group, one.hash) in self.stored:
                continue
            if count >= most or not self._room(one.group, count):
                break
            blocks, objects = chosen.setdefault(root, ([], []))
            blocks.append(one)
            objects.append(block)
            self.stored.add((one.group, one.hash))
            count += 1
        for root, (blocks, objects) in chosen.items():
            self._start(root, blocks, objects)

    def _wanted(self, group: int, block_hash: bytes) -> bool:
        if (group, block_hash) in self.stored:
            return False
        return not self._second_use or not self._used.add((group, block_hash))

    def _room(self, group: int, chosen: int) -> bool:
        """Takes the room for one more block from the limits; False: there is none now."""
        if not self._ready(time.monotonic()) or not self.room.for_save(chosen):
            return False
        assert self.sizes is not None
        self._allowance -= self.sizes[group]  # may become less than nothing, so that any block fits at some time
        return True

    def _ready(self, now: float) -> bool:
        """True if a block can be saved, and the limit of bytes allows it."""
        if self.sizes is None or self._stuck(now):
            return False
        if not self._limit:
            return True
        self._allowance = min(self._limit, self._allowance + (now - self._counted) * self._limit)
        self._counted = now
        return self._allowance > 0

    def _stuck(self, now: float) -> bool:
        oldest = next(iter(self._in_flight.values()), None)
        return oldest is not None and now > oldest.began + _STUCK

    @property
    def stuck(self) -> bool:
        """True if the agent has not ended a save for long."""
        return self._stuck(time.monotonic())

    @property
    def frees_blocks(self) -> bool:
        """True if a block that nothing but a save holds will soon be free: preempting requests would not free it sooner."""
        return bool(self._in_flight) and not self._stuck(time.monotonic()) and self._kept.alone

    def _start(self, root: Root, blocks: list[Block], objects: list[Any]) -> None:
        number, self._next_number = self._next_number, self._next_number + 1
        self._kept.keep(number, objects)
        self.room.held += len(objects)
        self._in_flight[number] = _InFlight(time.monotonic(), [(block.group, block.hash) for block in blocks], self.ranks)
        self._new.append(Save(number, root, tuple(blocks)))

    def ended(self, saved: dict[int, int], unsaved: set[int]) -> None:
        """What the ranks have reported: numbers with ranks, and numbers of saves that were not complete."""
        freed: list[tuple[list[Any], bool]] = []
        for number, ranks in saved.items():
            save = self._in_flight[number]
            save.left -= ranks
            save.unsaved |= number in unsaved
            if save.left:
                continue
            del self._in_flight[number]
            self.room.held -= save.number_of_blocks
            freed.append((self._kept.free(number), save.unsaved))
            for one in save.hashes:
                if save.unsaved:
                    self.stored.discard(one)
                elif self.events is not None:
                    self.events.stored(*one)
        if self._evictions is not None:
            for blocks, failed in reversed(freed):  # so that the oldest are in front
                self._evictions.back(self._kept.kv_cache_manager.block_pool, blocks, failed)

    def missing(self, group: int, block_hash: bytes) -> None:
        """The store says that it does not have a block: it is saved when a request has it."""
        self.stored.discard((group, block_hash))
        if self.events is not None:
            self.events.removed(group, block_hash)

    def there(self, request: Request, group: int, blocks: Sequence[tuple[int, bytes]]) -> None:
        """The store says that it has blocks (index, hash) of a request: they need not be saved."""
        self.stored.update((group, block_hash) for _, block_hash in blocks)
        if self.events is not None:
            for index, block_hash in blocks:
                self.events.found(request, group, index, block_hash)

    def reset(self, begun: Iterable[Request]) -> None:
        """Another epoch: requests that have computed something before are not saved. begun: those that have, or load something."""
        for request in begun:
            self._followed.setdefault(request.request_id, _Followed(request, b"", len(self._groups)))
        for followed in self._followed.values():
            followed.next, followed.due = [_NEVER] * len(self._groups), _NEVER
        self.stored.clear()
        self._used.clear()
        if self.events is not None:
            self.events.forget()
        if self._evictions is not None:
            self._evictions.clear()

    @property
    def busy(self) -> bool:
        """True while the engine has to go on stepping for saves."""
        return bool(self._in_flight or self._new)

    @property
    def count(self) -> int:
        """Saves that have not ended."""
        return len(self._in_flight)

    @property
    def idle(self) -> bool:
        """True if nothing is kept; for tests."""
        return not (self._followed or self._in_flight or self._new or len(self._kept) or self.room.held)


def _processed(request: Request) -> int:
    """Tokens whose blocks are in place: computed by steps whose results the engine has."""
    return max(0, min(request.num_computed_tokens - request.num_in_flight_tokens, request.num_tokens))
