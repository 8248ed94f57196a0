# SPDX-License-Identifier: Apache-2.0
"""Transfers of an engine: between memory that the agents reach directly, and otherwise by slots."""

from __future__ import annotations

import time
from array import array
from typing import TYPE_CHECKING

from .. import errors
from ..handles import Region, Remote
from ..pending import Transfer
from ._batch import Batch
from ._letters import Carried, Carry
from ._peer import Peer, Target
from ._registered import Buffer, Taken
from ._running import finish, start
from ._slots import ENTRY, HEAD, Op, Slot, chunks

if TYPE_CHECKING:
    from ._core import Core

__all__ = ["move"]

_GONE = (errors.Revoked, errors.NotFound, errors.PeerLost, errors.AgentRestarted, errors.PeerUnreachable)
_LEAD = 0.5  # seconds between the end of a request at a peer, which begins later, and that of the call here


def move(core: Core, session: str, write: bool, batch: Batch, taken: Taken, ends: float) -> None:
    """Moves the pieces of a batch until `ends`. Raises the first error, when all has ended. taken: its registered memory here.

    What was known about a peer may be out of date, because it was started again or has registered other
    memory: after such an error the peer is asked once more.
    """
    known = core.peers.knows(session)
    try:
        _try(core, session, write, batch, taken, ends)
    except _GONE:
        if not known or time.monotonic() >= ends:
            raise
        _try(core, session, write, batch, taken, ends)


def _try(core: Core, session: str, write: bool, batch: Batch, taken: Taken, ends: float) -> None:
    with core.peers.use(session, ends) as peer:
        try:
            if not _move_together(core, peer, write, batch, taken, ends):
                _move(core, peer, write, batch.ops(), taken, ends)
        except _GONE as e:
            if not isinstance(e, errors.Revoked):
                core.peers.forget(peer)
            raise


def _move_together(core: Core, peer: Peer, write: bool, batch: Batch, taken: Taken, ends: float) -> bool:
    """False: not all pieces lie in one piece of memory here that the agent reaches, and in one that is known of the peer."""
    if not len(batch):
        return False
    buffer, target = taken.find(*batch.span), peer.find(*batch.peer_span)
    if buffer is None or buffer.region is None or target is None or target.remote is None:
        return False
    triples = batch.placed(buffer.start, target.address)
    _finish(peer, [_start(core, [], write, buffer.region, target.remote, triples, ends)], ends)
    return True


def _move(core: Core, peer: Peer, write: bool, ops: list[Op], taken: Taken, ends: float) -> None:
    plan = _Plan(taken, ops, peer.locate(core, [(there, n) for _, there, n in ops], ends))
    transfers: list[Transfer] = []
    try:
        for (region, remote), direct in plan.direct.items():
            transfers.append(_start(core, transfers, write, region, remote, direct, ends))
        for to, bounced in plan.bounced.items():
            for part in chunks(bounced):
                with peer.slot(core.slots, ends) as slot:
                    _bounce(core, peer, slot, write, to, part, taken, ends)
        for part in chunks(plan.carried):
            with peer.slot(core.slots, ends) as slot:
                _carry(core, peer, slot, write, part, taken, ends)
    finally:
        _finish(peer, transfers, ends)


class _Plan:
    """Operations by the way that they take.

    direct: memory that the agents reach, at both sides. bounced: private memory here, by the peer's remote. carried:
    private memory of the peer.
    """

    def __init__(self, taken: Taken, ops: list[Op], targets: list[Target]) -> None:
        self.direct: dict[tuple[Region, Remote], list[Op]] = {}
        self.bounced: dict[Remote, list[Op]] = {}
        self.carried: list[Op] = []
        buffer: Buffer | None = None  # of the operation before, which is often that of the next one, too
        for (here, there, n), target in zip(ops, targets):
            if target.remote is None:
                self.carried.append((here, there, n))
                continue
            at = there - target.address
            if buffer is None or not buffer.has(here, n):
                buffer = taken.find(here, n)
            if buffer is not None and buffer.region is not None:
                self.direct.setdefault((buffer.region, target.remote), []).append((here - buffer.start, at, n))
            else:
                self.bounced.setdefault(target.remote, []).append((here, at, n))


def _start(core: Core, own: list[Transfer], write: bool, region: Region, remote: Remote, ops: list[Op] | array[int],
           ends: float) -> Transfer:
    return start(core.client, own, write, region, remote, ops, ends)


def _finish(peer: Peer, transfers: list[Transfer], ends: float) -> None:
    def failed(transfer: Transfer, error: Exception) -> None:
        if isinstance(error, _GONE):
            peer.drop(transfer._remote)

    finish(transfers, ends, failed)


def _bounce(core: Core, peer: Peer, slot: Slot, write: bool, remote: Remote, ops: list[Op], taken: Taken,
            ends: float) -> None:
    """Private memory here, in one slot."""
    pieces = [(here, n) for here, _, n in ops]
    placed, at = [], HEAD
    for _, there, n in ops:
        placed.append((at, there, n))
        at += n
    if write:
        core.local.copy_in(slot, [(HEAD, pieces)], taken, ends)
    _finish(peer, [_start(core, [], write, slot.region, remote, placed, ends)], ends)
    if not write:
        core.local.copy_out(slot, [(HEAD, pieces)], taken, ends)


def _lead(left: float) -> float:
    return max(left - _LEAD, left / 2)


def _carry(core: Core, peer: Peer, slot: Slot, write: bool, ops: list[Op], taken: Taken, ends: float) -> None:
    """The peer moves between its private memory and a slot of ours."""
    pieces = [(here, n) for here, _, n in ops]
    at = HEAD
    for i, (_, there, n) in enumerate(ops):
        ENTRY.pack_into(slot.memory.view, i * ENTRY.size, there, at, n)
        at += n
    if write:
        core.local.copy_in(slot, [(HEAD, pieces)], taken, ends)
    answer = core.request(peer, lambda number: Carry(number, core.segment, core.mailbox, slot.exported.token(), len(ops),
                                                     write, _lead(core.left(ends))), ends)
    if not isinstance(answer, Carried):
        raise errors.Protocol(f"the engine of {peer.session} answered a request to move with {type(answer).__name__}")
    if not write:
        core.local.copy_out(slot, [(HEAD, pieces)], taken, ends)
