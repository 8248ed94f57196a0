# SPDX-License-Identifier: Apache-2.0
"""The worker side of P in mode 'push': writes the chunks of requests that the engine has computed to D's blocks.

The scheduler side hands chunks over for the step that computes them; they are submitted when that step's
forward pass is over, or on a GPU when its stream has come to the mark behind the pass. Each chunk is reported
exactly once, when the agent does not read its blocks any more. Every transfer notifies D, and the last one of a pair of ranks says so: D counts them, because
transfers may overtake each other. Nothing here waits for the agent.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from .. import errors
from ..client import Client
from ..handles import Region, Remote
from ..pending import Pending, Transfer
from . import layout as layouts
from .grants import give_back
from .layout import Plan
from .protocol import Arrival, Push, PushTarget, WorkerMetadata

__all__ = ["Mark", "PushWorker"]

_PAUSE = 0.01  # seconds until a notification is sent again that the other engine has had no room for
_NOTHING = np.empty((0, 3), dtype=np.uint64)  # operations
Mark = Callable[[], Callable[[], bool]]


class _Target:
    """Where the chunks of one request go. over: no other chunk is taken. stopped: nothing more is written. error: to be reported."""

    def __init__(self, target: PushTarget, plan: Plan, ends: float) -> None:
        self.target, self.plan, self.ends = target, plan, ends
        self.sent = dict.fromkeys(plan.ranks, 0)  # notifications, by rank of D
        self.remotes: dict[int, Remote] = {}  # borrowed, by rank of D
        self.over = self.stopped = False
        self.error: errors.Error | None = None
        self.chunks: list[_Chunk] = []  # that have not ended


class _Chunk:
    """computed: says whether its blocks are. queue: what has not been accepted by the agent: rank of D, operations, notification; not before `pause`.
    started: with the rank and the notification of each."""

    def __init__(self, push: Push, computed: Callable[[], bool]) -> None:
        self.push, self.computed = push, computed
        self.queue: list[tuple[int, Any, Arrival]] = []
        self.started: list[tuple[Transfer | Pending[None], int, Arrival]] = []
        self.pause = 0.0

    def ended(self) -> bool:
        """True if the agent does not read the blocks any more, and will not."""
        return not self.queue and all(one.done() and not (isinstance(one, Transfer) and one.lent()) for one, _, _ in self.started)

    def failed(self) -> errors.Error | None:
        """The error of what has ended with one. Bytes whose notification was refused are in place."""
        found = (error for one, _, _ in self.started if one.done() and (error := one.error()) and not isinstance(error, errors.NotifyRefused))
        return next(found, None)

    def notify_again(self, now: float) -> None:
        """D counts notifications, and reads them in its steps."""
        refused = [entry for entry in self.started if entry[0].done() and isinstance(entry[0].error(), errors.NotifyRefused)]
        if refused:
            self.started = [entry for entry in self.started if entry not in refused]
            self.queue += [(rank, _NOTHING, arrival) for _, rank, arrival in refused]
            self.pause = now + _PAUSE


def _is_computed() -> bool:
    return True


class PushWorker:
    """One for each rank. mark: puts a mark behind all that the engine has started, and returns a function that says whether the
    device has come to it; None: a forward pass is computed when it returns."""

    def __init__(self, client: Client, region: Region, rank: int, mark: Mark | None = None) -> None:
        self._client, self._region, self._rank, self._mark = client, region, rank, mark
        self._computed: list[Push] = []  # in this step
        self._targets: dict[int, _Target] = {}
        self._plans: dict[tuple[Any, Any], Plan] = {}

    def take(self, pushes: list[Push], stops: list[int]) -> None:
        """What the scheduler side has decided for a step."""
        for key in stops:
            if target := self._targets.get(key):
                self._stop(target, None)
        self._computed += pushes

    def computed(self, metadata: WorkerMetadata) -> None:
        """The step's forward pass is over: submits its chunks."""
        pushes, self._computed = self._computed, []
        computed = self._mark() if self._mark is not None and pushes else _is_computed
        for push in pushes:
            if push.target is not None:
                self._open(push.key, push.target, metadata)
            target = self._targets.get(push.key)
            if target is None or target.over:
                metadata.pushed[push.key, push.number] = 1
                continue
            chunk = _Chunk(push, computed)
            target.chunks.append(chunk)
            try:
                self._fill(chunk, target)
            except errors.Error as e:
                self._stop(target, e)
                continue
            self._submit(chunk, target)

    def _open(self, key: int, target: PushTarget, metadata: WorkerMetadata) -> None:
        try:
            self._targets[key] = _Target(target, self._plan(target), time.monotonic() + target.seconds)
        except errors.Error as e:
            metadata.push_errors[key] = str(e)

    def _plan(self, target: PushTarget) -> Plan:
        key = target.local, target.remote
        plan = self._plans.get(key)
        if plan is None:
            while len(self._plans) >= layouts.PLANS_MAX:
                self._plans.pop(next(iter(self._plans)))
            plan = self._plans[key] = layouts.make_push_plan(self._rank, target.local, target.remote)
        return plan

    def _fill(self, chunk: _Chunk, target: _Target) -> None:
        push, of = chunk.push, target.target
        for rank in target.plan.ranks:
            ops = layouts.operations(target.plan, rank, push.blocks, of.blocks, push.first, push.end)
            if len(ops) or push.last:
                chunk.queue.append((rank, ops, Arrival(self._rank, rank, of.pairs, target.sent[rank], push.last, int(ops[:, 2].sum()))))
                target.sent[rank] += 1

    def _submit(self, chunk: _Chunk, target: _Target) -> None:
        """Starts the transfers of a computed chunk that the agent has room for; the others follow in later steps."""
        if not chunk.queue or not chunk.computed() or time.monotonic() < chunk.pause:
            return
        while chunk.queue:
            rank, ops, arrival = chunk.queue[0]
            left = target.ends - time.monotonic()
            if left <= 0:
                self._stop(target, errors.Deadline("the agent has had no room for the transfer until the deadline"))
                return
            try:
                if rank not in target.remotes:
                    target.remotes[rank] = self._client.borrow_remote(target.target.remotes[rank])
                remote = target.remotes[rank]
                if len(ops):
                    started: Transfer | Pending[None] = self._client.write(
                        self._region, remote, ops, notify=(target.target.tag, arrival.pack()), deadline=left)
                else:  # D has all of it, and waits for the notification
                    started = remote.notify(target.target.tag, arrival.pack(), wait=False)
                chunk.started.append((started, rank, arrival))
            except errors.Busy:
                return
            except errors.Error as e:
                self._stop(target, e)
                return
            chunk.queue.pop(0)

    def _stop(self, target: _Target, error: errors.Error | None) -> None:
        if not target.stopped:
            target.over, target.stopped, target.error = True, True, error
        for chunk in target.chunks:
            chunk.queue.clear()
            chunk.started = [entry for entry in chunk.started if isinstance(entry[0], Transfer)]  # others touch no block
            for one, _, _ in chunk.started:
                if isinstance(one, Transfer) and not one.done():
                    try:
                        one.cancel(wait=False)
                    except errors.Error:
                        pass  # it has ended

    def poll(self, metadata: WorkerMetadata) -> None:
        """Looks which chunks have ended, and reports them."""
        for key, target in list(self._targets.items()):
            for chunk in list(target.chunks):
                if not target.stopped:
                    chunk.notify_again(time.monotonic())
                self._submit(chunk, target)
                failed = chunk.failed()
                if failed is not None:
                    self._stop(target, failed)
                if chunk.ended():
                    target.chunks.remove(chunk)
                    metadata.pushed[key, chunk.push.number] = 1
                    target.over = target.over or chunk.push.last
            if target.error is not None:
                metadata.push_errors[key] = str(target.error)
                target.error = None
            if target.over and not target.chunks:
                give_back(target.remotes)
                del self._targets[key]

    @property
    def idle(self) -> bool:
        """True if no chunk is kept; for tests."""
        return not (self._targets or self._computed)
