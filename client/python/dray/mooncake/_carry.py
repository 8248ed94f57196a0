# SPDX-License-Identifier: Apache-2.0
"""Moves bytes between this process's private memory and a slot of another engine, at that engine's request."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from typing import TYPE_CHECKING

from .. import errors
from ..handles import Remote
from ..pending import Pending
from ._letters import Carry
from ._registered import Taken
from ._remotes import give_back_later
from ._slots import DATA_MAX, ENTRY, HEAD, OPS_MAX, Op, Slot

if TYPE_CHECKING:
    from ._core import Core

__all__ = ["Carrier"]

_IMPORT_SECONDS = 5.0  # to reach the owner of a slot, which may have died
_REMOTES_MAX = 64  # slots of other engines that stay imported


class Carrier:
    """Carries out requests of other engines. Any thread may use it; each request takes one of the core's slots."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._remotes: OrderedDict[str, Pending[Remote]] = OrderedDict()
        self._lock = threading.Lock()

    def carry(self, letter: Carry, ends: float) -> None:
        """Moves the bytes. Raises the error of what cannot be done; then nothing or a part was moved."""
        core = self._core
        if not 0 < letter.count <= OPS_MAX:
            raise errors.Invalid(f"{letter.count} operations are not in a slot")
        if ends <= time.monotonic():
            raise errors.Deadline("the time for the request was over before it began")
        with core.carry_slots.take(core.left(ends)) as slot:
            remote = self._remote(letter.token, ends)
            size = letter.count * ENTRY.size
            core.client.read(slot.region, remote, [(0, 0, size)], deadline=core.left(ends)).result()
            ops: list[Op] = [(a, o, n) for a, o, n in ENTRY.iter_unpack(bytes(slot.memory.view[:size]))]
            total = _check(ops)
            with core.registered.using([(address, length) for address, _, length in ops]) as taken:
                self._move(slot, remote, ops, taken, total, letter.write, ends)

    def _move(self, slot: Slot, remote: Remote, ops: list[Op], taken: Taken, total: int, write: bool, ends: float) -> None:
        core, pieces = self._core, [(address, length) for address, _, length in ops]
        if not write:
            core.local.copy_in(slot, [(HEAD, pieces)], taken, ends)
        start = core.client.read if write else core.client.write
        start(slot.region, remote, [(HEAD, HEAD, total)], deadline=core.left(ends)).result()
        if write:
            _expect_wanted(core, remote, ends)
            core.local.copy_out(slot, [(HEAD, pieces)], taken, ends)

    def _remote(self, token: str, ends: float) -> Remote:
        """The slot of another engine; those that were used last stay imported."""
        seconds = min(self._core.left(ends), _IMPORT_SECONDS)
        with self._lock:  # which is not held while the agent reaches the owner
            pending = self._remotes.pop(token, None)
            if pending is None or pending.done() and (pending.error() is not None or pending.result().lost is not None):
                pending = self._core.client.import_token(token, timeout=seconds, wait=False)
            self._remotes[token] = pending
            old = [self._remotes.popitem(last=False)[1] for _ in range(len(self._remotes) - _REMOTES_MAX)]
        for p in old:
            give_back_later(p)
        try:
            return pending.result(seconds + 1)
        except errors.Error as e:
            if isinstance(e, errors.Timeout):
                pending.cancel()
            with self._lock:
                if self._remotes.get(token) is pending:
                    del self._remotes[token]
            raise


def _expect_wanted(core: Core, remote: Remote, ends: float) -> None:
    """This thread may have stood still since it read the bytes. If the sender has given up, others may have written newer ones."""
    core.client.process()
    if remote.lost is not None:
        raise remote.lost
    if ends <= time.monotonic():
        raise errors.Deadline("the time for the request was over before its bytes could be stored")


def _check(ops: list[Op]) -> int:
    """The length of all operations, which lie one behind the other in the slot."""
    at = HEAD
    for _, offset, length in ops:
        if offset != at or not 0 < length <= HEAD + DATA_MAX - at:
            raise errors.Invalid(f"an operation of {length} bytes at offset {offset} is not the next one in a slot")
        at += length
    return at - HEAD
