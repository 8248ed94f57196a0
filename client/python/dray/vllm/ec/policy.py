# SPDX-License-Identifier: Apache-2.0
"""Which output a tier evicts next. A policy knows the size, the cost and the uses of outputs, and orders those without users.

A caller counts each use by used(), and says by enter() and leave() which outputs may be evicted. `make ec-sim` compares the policies.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterable
from typing import Protocol

__all__ = ["CLOCK_EVERY", "CLOCK_MAX", "Entry", "Lru", "Merit", "Policy", "Score", "Value"]

CLOCK_MAX = 15
CLOCK_EVERY = 64  # look-ups
_NEW_SHARE = 10  # a part of the tier is for outputs that were used once
_GHOSTS = 4  # remembered uses, for each output of the tier
_LEAD = 1.005  # a policy leads when it has saved so much more than the other one
_WINDOW = 1024  # look-ups until what was saved counts for half


class Entry:
    """An output in a tier. rows: embeddings. cost: seconds that the encoder needs for it. uses: by different requests."""

    __slots__ = ("cost", "identifier", "rows", "seen", "uses")

    def __init__(self, identifier: str, rows: int, cost: float) -> None:
        self.identifier, self.rows, self.cost = identifier, rows, cost
        self.uses = 0
        self.seen = 0  # look-ups of the tier until the last use

    @property
    def worth(self) -> float:
        """Seconds that the uses were worth, for each embedding."""
        return self.uses * self.cost / max(1, self.rows)


class Policy(Protocol):
    """What a tier asks of a policy."""

    def add(self, entry: Entry) -> None:
        """A new output of the tier, whose first use used() counts afterwards."""

    def used(self, entry: Entry) -> None:
        """A request uses the output."""

    def enter(self, entry: Entry) -> None:
        """The output has no users, and may be evicted."""

    def leave(self, entry: Entry) -> None:
        """The output has users again."""

    def victim(self) -> Entry | None:
        """The output to evict next; it stays where it is."""

    def remove(self, entry: Entry, evicted: bool) -> None:
        """An output without users leaves the tier."""

    def score(self, entry: Entry) -> float:
        """What the promotion of an output is decided by."""

    def scores(self) -> Iterable[float]:
        """The same of all outputs that may be evicted."""


class _Heap:
    """Entries by key, the least first. Old places of an entry are skipped when they come up."""

    def __init__(self) -> None:
        self._places: list[tuple[float, int, Entry]] = []
        self._now: dict[Entry, tuple[float, int]] = {}
        self._number = 0

    def __len__(self) -> int:
        return len(self._now)

    def __contains__(self, entry: Entry) -> bool:
        return entry in self._now

    def set(self, entry: Entry, key: float) -> None:
        self._number += 1
        self._now[entry] = key, self._number
        heapq.heappush(self._places, (key, self._number, entry))
        if len(self._places) > 2 * len(self._now) + 64:
            self._places = [(key, number, one) for one, (key, number) in self._now.items()]
            heapq.heapify(self._places)

    def drop(self, entry: Entry) -> float:
        return self._now.pop(entry)[0]

    def first(self) -> Entry | None:
        places = self._places
        while places and self._now.get(places[0][2]) != places[0][:2]:
            heapq.heappop(places)
        return places[0][2] if places else None

    def entries(self) -> Iterable[Entry]:
        return self._now


class Lru:
    """The output that has been without users for the longest time."""

    def __init__(self, capacity: int) -> None:
        self._idle: OrderedDict[Entry, None] = OrderedDict()

    def add(self, entry: Entry) -> None:
        pass

    def used(self, entry: Entry) -> None:
        entry.uses += 1

    def enter(self, entry: Entry) -> None:
        self._idle[entry] = None

    def leave(self, entry: Entry) -> None:
        del self._idle[entry]

    def victim(self) -> Entry | None:
        return next(iter(self._idle), None)

    def remove(self, entry: Entry, evicted: bool) -> None:
        del self._idle[entry]

    def score(self, entry: Entry) -> float:
        return 0.0

    def scores(self) -> Iterable[float]:
        return [0.0] * len(self._idle)


class Score:
    """(uses + clock) x cost / embeddings. The clock is clock_max at a use, and falls by one with each clock_every look-ups."""

    def __init__(self, capacity: int, clock_max: int = CLOCK_MAX, clock_every: int = CLOCK_EVERY) -> None:
        self._max, self._every = clock_max, clock_every
        self._looks = 0
        self._idle: dict[Entry, None] = {}

    def add(self, entry: Entry) -> None:
        pass

    def used(self, entry: Entry) -> None:
        self._looks += 1
        entry.uses += 1
        entry.seen = self._looks

    def enter(self, entry: Entry) -> None:
        self._idle[entry] = None

    def leave(self, entry: Entry) -> None:
        del self._idle[entry]

    def _score(self, entry: Entry) -> float:
        clock = max(0, self._max - (self._looks // self._every - entry.seen // self._every))
        return (entry.uses + clock) * entry.cost / max(1, entry.rows)

    def victim(self) -> Entry | None:
        return min(self._idle, key=self._score) if self._idle else None

    def remove(self, entry: Entry, evicted: bool) -> None:
        del self._idle[entry]

    def score(self, entry: Entry) -> float:
        return entry.worth

    def scores(self) -> Iterable[float]:
        return map(self._score, self._idle)


class Merit:
    """Uses x cost / embeddings for outputs that were used twice. Others have a tenth of the tier, which the oldest of them leaves first.

    Most images are sent once. Uses of evicted outputs are remembered, so that one that comes back is not new. What the dearest
    victim was worth is added at each use, so that outputs age that are not used.
    """

    def __init__(self, capacity: int) -> None:
        self._new: OrderedDict[Entry, None] = OrderedDict()
        self._new_most, self._new_rows = capacity // _NEW_SHARE, 0
        self._proved = _Heap()
        self._floor = 0.0
        self._ghosts: OrderedDict[str, int] = OrderedDict()
        self._entries = 0

    def add(self, entry: Entry) -> None:
        self._entries += 1
        entry.uses = self._ghosts.pop(entry.identifier, 0)

    def used(self, entry: Entry) -> None:
        entry.uses += 1

    def enter(self, entry: Entry) -> None:
        if entry.uses > 1:
            self._proved.set(entry, self._floor + entry.worth)
        else:
            self._new[entry] = None
            self._new_rows += entry.rows

    def leave(self, entry: Entry) -> None:
        self._take(entry)

    def _take(self, entry: Entry) -> float | None:
        if entry in self._proved:
            return self._proved.drop(entry)
        del self._new[entry]
        self._new_rows -= entry.rows
        return None

    def victim(self) -> Entry | None:
        proved = self._proved.first()
        if proved is None or self._new_rows > self._new_most:
            return next(iter(self._new), proved)
        return proved

    def remove(self, entry: Entry, evicted: bool) -> None:
        key = self._take(entry)
        self._entries -= 1
        if not evicted:
            return
        if key is not None:
            self._floor = max(self._floor, key)
        self._ghosts[entry.identifier] = entry.uses
        while len(self._ghosts) > _GHOSTS * (self._entries + 1):
            self._ghosts.popitem(last=False)

    def score(self, entry: Entry) -> float:
        return self._floor + entry.worth

    def scores(self) -> Iterable[float]:
        return [self._floor + entry.worth for entries in (self._new, self._proved.entries()) for entry in entries]


class _Party:
    """A policy that decides about identifiers and sizes alone. saved: seconds, of which older ones count less."""

    def __init__(self, policy: Policy, capacity: int) -> None:
        self._policy, self._free = policy, capacity
        self._entries: dict[str, Entry] = {}
        self.saved = 0.0

    def request(self, identifier: str, rows: int, cost: float) -> None:
        entry = self._entries.get(identifier)
        if entry is not None:
            self.saved += cost
            self._policy.leave(entry)
        else:
            entry = Entry(identifier, rows, cost)
            while rows > self._free and (victim := self._policy.victim()) is not None:
                self._policy.remove(victim, True)
                del self._entries[victim.identifier]
                self._free += victim.rows
            if rows > self._free:
                return
            self._free -= rows
            self._entries[identifier] = entry
            self._policy.add(entry)
        self._policy.used(entry)
        self._policy.enter(entry)


class Value:
    """As Merit, except while Lru would save more: on requests for what was used last, counting uses is of no use.

    Both decide about the same requests in tiers that exist on paper only, and the one that saves more decides about this one.
    """

    def __init__(self, capacity: int) -> None:
        self._merit, self._lru = Merit(capacity), Lru(capacity)
        self._parties = _Party(Merit(capacity), capacity), _Party(Lru(capacity), capacity)
        self._by_lru = False
        self._looks = 0

    def add(self, entry: Entry) -> None:
        self._merit.add(entry)

    def used(self, entry: Entry) -> None:
        self._merit.used(entry)
        merit, lru = self._parties
        for party in self._parties:
            party.request(entry.identifier, entry.rows, entry.cost)
        leader, other = (lru, merit) if self._by_lru else (merit, lru)
        if other.saved > leader.saved * _LEAD:
            self._by_lru = not self._by_lru
        self._looks += 1
        if self._looks >= _WINDOW:
            self._looks = 0
            for party in self._parties:
                party.saved /= 2

    def enter(self, entry: Entry) -> None:
        self._merit.enter(entry)
        self._lru.enter(entry)

    def leave(self, entry: Entry) -> None:
        self._merit.leave(entry)
        self._lru.leave(entry)

    def victim(self) -> Entry | None:
        return self._lru.victim() if self._by_lru else self._merit.victim()

    def remove(self, entry: Entry, evicted: bool) -> None:
        self._merit.remove(entry, evicted)
        self._lru.remove(entry, evicted)

    def score(self, entry: Entry) -> float:
        return self._merit.score(entry)

    def scores(self) -> Iterable[float]:
        return self._merit.scores()
