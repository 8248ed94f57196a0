# SPDX-License-Identifier: Apache-2.0
"""What the store has for one request, asked in a batch that also keeps what is found from being evicted.

Long prompts take several batches. The next one is asked when all of the last one was found, so that no step of the engine handles
more than one of them for a request, and a prompt that the store does not have costs one. Keys that the store has no room for now,
as when many objects are pinned or come from the disk, are asked for again after the time that it names.

Other agents may have what this one does not, if the name space has a name: they are asked in a second batch, and what they have is
leased there, so that it is not evicted until the request has loaded it. Letting a key go ends its lease as it ends a pin.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from ... import errors
from ...pending import Pending
from ...store import Status, Store, StoreResult, Tier
from ..layout import Group
from .hits import first_needed, hit
from .pins import Pins

__all__ = ["Lookup"]

_KEYS_MAX = 1024  # of a batch
_PAUSE = 0.01  # seconds, at least, before a busy store is asked again
_FAR = 1 << 40
_LEASE = 10.0  # seconds, at most, of what other agents have; the agent may allow less


class Lookup:
    """The question for blocks behind the tokens that the engine has. first, end: tokens of the question.

    keys_of: the keys of a block of a group at all ranks, with the sizes of the objects; None: behind the last block.
    """

    def __init__(self, store: Store, pins: Pins, groups: Sequence[Group], keys_of: Callable[[int, int], dict[bytes, int] | None],
                 first: int, end: int) -> None:
        """errors.Error: it could not be asked."""
        self.first, self.end, self.began = first, end, time.monotonic()
        self._store, self._pins, self._groups, self._keys_of = store, pins, groups, keys_of
        self._session = pins.session
        self._whole = [not first_needed(group, _FAR) for group in groups]  # they need each block from the first token on
        self._left = sorted(((block + 1) * group.tokens, number, block) for number, group in enumerate(groups)
                            for block in range(first // group.tokens, end // group.tokens))
        self._left.reverse()
        self._blocks: dict[tuple[int, int], dict[bytes, int]] = {}  # that were asked
        self._have: set[tuple[int, int]] = set()
        self._lacks: set[tuple[int, int]] = set()
        self._part: list[tuple[int, int]] = []
        self.results: list[StoreResult] = []  # of all keys that were asked, as often as they were
        self._missing: dict[bytes, int] = {}  # keys of this part that were not found yet, with the sizes of their objects
        self.again = 0.0  # when the keys that were busy are asked again; 0: there are none
        self._ended = False
        self._asked: list[bytes] = []
        self._agents = bool(store.space)
        self._absent: list[bytes] = []  # which other agents are to be asked for
        self._busy: list[bytes] = []  # of this part
        self._pending: Pending[Any] | None = None
        self._pinned = True  # the pending answer is of this agent
        self.error: errors.Error | None = None
        self._ask()

    def _ask(self) -> None:
        """Asks for the next blocks."""
        keys: dict[bytes, int] = {}
        self._part, self._missing = [], keys
        while self._left and len(keys) < _KEYS_MAX:
            _, number, block = self._left[-1]
            found = self._keys_of(number, block)
            if found is None or len(keys) + len(found) > _KEYS_MAX:
                break
            self._left.pop()
            self._blocks[number, block] = found
            self._part.append((number, block))
            keys.update(found)
        if not keys:
            self._left.clear()
            return
        asked = list(keys)
        self._pins.take(key for one in self._part for key in self._blocks[one])
        try:
            self._pin(asked)
        except BaseException:
            self._let_go(self._part)
            raise

    def answered(self, patient: bool = True) -> bool:
        """True if nothing more will be learned. patient: False: nothing more is asked. Does not wait."""
        while not self._ended:
            if self._pending is not None:
                if not self._pending.done():
                    return False
                self._take()
            if self._ended:
                break
            if self._absent and patient:
                self._ask_more(self._ask_agents)
            elif self.again and patient:
                if time.monotonic() < self.again:
                    return False
                self._ask_more(self._ask_again)
            elif patient and self._goes_on():
                self._ask_more(self._ask)
            else:
                self._ended = True
        return True

    def _lost(self) -> bool:
        """True if the session in which was asked is lost: its pins and leases have ended with it, so nothing counts as found."""
        if self._pins.session == self._session:
            return False
        self._have.clear()
        self._ended = True
        return True

    def _ask_more(self, ask: Callable[[], None]) -> None:
        if self._lost():
            return
        try:
            ask()
        except errors.Error as e:
            self.error, self._ended = e, True

    def _take(self) -> None:
        """Takes an answer."""
        assert self._pending is not None
        pending, self._pending = self._pending, None
        self.error = pending.error()
        if self.error is not None:
            self._ended = True
            return
        if self._lost():  # it came together with the loss
            return
        absent, results, missing, ok = set(), pending.result(0), self._missing, Status.OK
        self.results += results
        for key, result in zip(self._asked, results, strict=True):
            status = result.status
            if status == ok and not self._pinned and result.tier != Tier.AGENT:
                self._busy.append(key)  # it came here meanwhile, and nothing keeps it
                self.again = max(self.again, time.monotonic())
            elif status == ok:
                if missing.get(key) == result.length:
                    del missing[key]
            elif status == Status.BUSY:
                self._busy.append(key)
                self.again = max(self.again, time.monotonic() + max(_PAUSE, result.wait))
            elif status == Status.NOT_FOUND:
                absent.add(key)
        self._have.update(one for one in self._part if missing.keys().isdisjoint(self._blocks[one]))
        if self._agents and self._pinned:
            self._absent = [key for key in self._asked if key in absent]
        elif absent:
            self._lacks.update(one for one in self._part if not absent.isdisjoint(self._blocks[one]))

    def _goes_on(self) -> bool:
        """True if there is another part to be asked for."""
        return bool(self._left) and not any(self._whole[one[0]] and one not in self._have for one in self._part)

    def _ask_again(self) -> None:
        """Asks for the keys that were busy. The others of this part are pinned."""
        self.again, busy, self._busy = 0.0, self._busy, []
        self._pin(busy)

    def _pin(self, keys: list[bytes]) -> None:
        self._pending, self._asked, self._pinned = self._store.pin(keys, wait=False), keys, True

    def _ask_agents(self) -> None:
        """Asks for what this agent does not have."""
        keys, self._absent = self._absent, []
        self._pending, self._asked, self._pinned = self._store.exists(keys, lease=_LEASE, wait=False), keys, False

    def found(self) -> int:
        """How many tokens all groups can have. Lets everything else go. Once, after answered()."""
        end = hit(self._groups, self.first, self.end, lambda group, block: (group, block) in self._have)
        if end < self.end:
            self._let_go([one for one in self._blocks if one[1] * self._groups[one[0]].tokens >= end])
        return end

    def knows(self, group: int, block: int) -> bool | None:
        """Whether the store has all objects of a block, as it has answered; None: it has not said so, or they are of another size."""
        return True if (group, block) in self._have else False if (group, block) in self._lacks else None

    def keys(self) -> list[bytes]:
        """Those that are kept."""
        return [key for found in self._blocks.values() for key in found]

    def release(self) -> None:
        """The request does not need anything any more. After answered()."""
        self._let_go(list(self._blocks))

    def _let_go(self, blocks: list[tuple[int, int]]) -> None:
        self._pins.give([key for one in blocks for key in self._blocks.pop(one)], self._session)
