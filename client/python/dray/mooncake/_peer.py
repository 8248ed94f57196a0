# SPDX-License-Identifier: Apache-2.0
"""Another engine, as this one knows it: its mailbox, and the remotes of its registered memory."""

from __future__ import annotations

import bisect
import contextlib
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from .. import errors
from ..handles import Remote
from ._handshake import Contact
from ._letters import FIND_MAX, Find, Found
from ._remotes import give_back, give_back_later
from ._slots import Slot, Slots

if TYPE_CHECKING:
    from ._core import Core

__all__ = ["Peer", "Target"]

_TURNS = 4  # slots that transfers with one peer may have at once, so that one that hangs leaves some to others


class Target(NamedTuple):
    """A registered buffer of a peer. remote: None for private memory."""

    address: int
    length: int
    remote: Remote | None


class Peer:
    """What is known about the engine of a session. Any thread may use it."""

    def __init__(self, session: str, contact: Contact) -> None:
        self.session, self.contact = session, contact
        self.life: Remote | None = None  # lost when the engine ends
        self.users, self.forgotten = 0, False  # of Peers
        self.turns = threading.BoundedSemaphore(_TURNS)
        self._targets: list[Target] = []
        self._lock = threading.Lock()
        self._asking = threading.Lock()  # so that threads import a buffer once

    def lost(self) -> errors.Error | None:
        return self.life.lost if self.life is not None else None

    def is_valid(self) -> bool:
        return not self.forgotten and self.lost() is None

    @contextlib.contextmanager
    def slot(self, slots: Slots, ends: float) -> Iterator[Slot]:
        """A slot for the block. errors.Deadline: other transfers with this peer, or all peers, have them."""
        if not self.turns.acquire(timeout=max(0.0, ends - time.monotonic())):
            raise errors.Deadline(f"other transfers with {self.session} had its buffers for private memory until the deadline",
                                  fix="Look whether that engine still runs, or start fewer transfers at once.")
        try:
            with slots.take(ends - time.monotonic()) as slot:
                yield slot
        finally:
            self.turns.release()

    def find(self, address: int, length: int) -> Target | None:
        """The known buffer that holds the whole range."""
        with self._lock:
            at = bisect.bisect_right(self._targets, address, key=lambda t: t.address)
            target = self._targets[at - 1] if at else None
        if target is None or address + length > target.address + target.length:
            return None
        return target if target.remote is None or target.remote.lost is None else None

    def locate(self, core: Core, ranges: list[tuple[int, int]], ends: float) -> list[Target]:
        """The buffers of these ranges; asks the peer for those that are not known. errors.Range: not registered."""
        targets, unknown = self._known(ranges)
        if unknown:
            self._learn(core, unknown, ends)
            targets, unknown = self._known(ranges)
        if unknown:
            address, length = unknown[0]
            raise errors.Range(f"{length} bytes at {address:#x} are not in registered memory of {self.session}",
                               fix="Register the memory at its engine first.")
        return targets

    def _known(self, ranges: list[tuple[int, int]]) -> tuple[list[Target], list[tuple[int, int]]]:
        """(the buffers of the known ranges, the other ranges)"""
        targets: list[Target] = []
        unknown = []
        last: Target | None = None  # of the range before, which is often that of the next one, too
        for address, length in ranges:
            if last is None or not last.address <= address <= address + length <= last.address + last.length:
                last = self.find(address, length)
            if last is None:
                unknown.append((address, length))
            else:
                targets.append(last)
        return targets, unknown

    def _learn(self, core: Core, ranges: list[tuple[int, int]], ends: float) -> None:
        if not self._asking.acquire(timeout=core.left(ends)):
            raise errors.Deadline(f"{self.session} did not say in time where its memory is",
                                  fix="Look whether that engine still runs.")
        try:
            missing = [r for r in dict.fromkeys(ranges) if self.find(*r) is None]
            while missing:
                self._ask(core, missing[:FIND_MAX], ends)
                missing = [r for r in missing[FIND_MAX:] if self.find(*r) is None]
        finally:
            self._asking.release()

    def first(self, core: Core, ends: float) -> int:
        """The address of the buffer that the peer has registered first; 0: none."""
        found = self._question(core, [[0, 0]], ends)
        return int(found.buffers[0][0]) if found.buffers else 0

    def _question(self, core: Core, ranges: list[list[int]], ends: float) -> Found:
        answer = core.request(self, lambda number: Find(number, core.segment, core.mailbox, ranges), ends)
        if not isinstance(answer, Found):
            raise errors.Protocol(f"the engine of {self.session} answered a question for memory with {type(answer).__name__}")
        return answer

    def _ask(self, core: Core, ranges: list[tuple[int, int]], ends: float) -> None:
        found = self._question(core, [list(r) for r in ranges], ends)
        tokens = {(a, n): t for a, n, t in found.buffers}
        if self.life is None:
            self.life = core.client.import_token(found.life, timeout=core.left(ends))
        pending = {key: core.client.import_token(token, timeout=core.left(ends), wait=False)
                   for key, token in tokens.items() if token}
        for (address, length), token in tokens.items():
            if not token:
                self._put(Target(address, length, None))
                continue
            try:
                remote = pending[address, length].result(core.left(ends))
            except (errors.Revoked, errors.NotFound):  # unregistered meanwhile
                del pending[address, length]
                continue
            except errors.Error:
                for p in pending.values():
                    give_back_later(p)
                raise
            del pending[address, length]
            self._put(Target(address, length, remote))

    def _put(self, target: Target) -> None:
        """In place of what is known about this memory."""
        ends = target.address + target.length
        with self._lock:
            old = [t for t in self._targets if t.address < ends and t.address + t.length > target.address]
            self._targets = [t for t in self._targets if t not in old]
            bisect.insort(self._targets, target, key=lambda t: t.address)
        for t in old:
            give_back(t.remote)

    def drop(self, remote: Remote) -> None:
        """Forgets a buffer whose remote cannot be used any more."""
        with self._lock:
            self._targets = [t for t in self._targets if t.remote is not remote]
        give_back(remote)

    def release(self) -> None:
        """Gives all remotes back. Nobody may use the peer any more."""
        with self._lock:
            targets, self._targets = self._targets, []
        for remote in (*(t.remote for t in targets), self.life):
            give_back(remote)
