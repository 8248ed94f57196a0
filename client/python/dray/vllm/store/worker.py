# SPDX-License-Identifier: Apache-2.0
"""The worker side: gets and puts the objects of blocks between the rank's region and the store, and says how that ended.

Each load that the scheduler side hands over, or gave up before (dropped), is answered exactly once by finished_recving; each save
by its number. Work is only started and looked at here; no method waits for the agent, except at the start of the engine. A batch
that the agent has taken is never given up, because only its end says that the agent does not touch its blocks any more.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from itertools import groupby
from operator import itemgetter
from typing import Any

from ... import errors
from ...client import Client
from ...events import Confirmed, Disconnected, Reconnected
from ...handles import Region
from ...pending import Lending
from ...store import Status, Store
from ..looks import Looks
from ..worker import Results
from .batches import Batch, Batches
from .objects import Objects
from .protocol import Load, Save, StepMetadata, StoreRank, WorkerMetadata
from .stats import Stats, sentence
from .tiers import sentence as tiers

__all__ = ["WorkerSide"]

_logger = logging.getLogger("vllm.dray")
_MARGIN = 0.25  # seconds that the agent gets to stop a batch before the deadline of its load
_LEAST = 0.05
_AWAY = 1.0  # seconds that a load waits for the session
_FIX = "The request is computed, or ends with an error, as kv_load_failure_policy says."


def _end(statuses: Iterable[Status]) -> Status:
    """What became of a block that was put as several objects: it is saved when each of them is there."""
    return max(statuses, key=lambda status: (status not in (Status.OK, Status.EXISTS), status == Status.OK))


class _Running:
    """A load or a save. what: Load or Save."""

    __slots__ = ("batches", "began", "ends", "error", "what")

    def __init__(self, what: Any, batches: Batches, now: float, seconds: float) -> None:
        self.what, self.batches, self.began, self.ends = what, batches, now, now + seconds
        self.error: errors.Error | None = None


class WorkerSide:
    """One for each rank. Its methods are the hooks that the engine's model runner calls."""

    def __init__(self, client: Client, region: Region, store: Store, objects: Objects, rank: int, deadline: float, log: bool = False) -> None:
        self._client, self._region, self._store, self._objects, self._rank = client, region, store, objects, rank
        self._deadline, self._log = deadline, log
        self._loads: dict[str, _Running] = {}
        self._lent: dict[str, _Running] = {}  # loads that were reported as failed
        self._saves: dict[int, _Running] = {}
        self._results = Results()
        self._metadata = WorkerMetadata(ranks={rank: self.info()})
        self._looks = Looks()
        self._away = False  # the session is lost, as far as is known here
        self.stats = Stats(lambda data: _logger.info("dray: rank %d, store, last minute: %s", rank, sentence(data)))

    def info(self) -> StoreRank:
        """What the scheduler side has to know of this rank."""
        return StoreRank(self._rank, self._objects.forms, self._objects.sizes, self._client.agent_id)

    # --- steps --------------------------------------------------------------------------------------

    def step(self, metadata: StepMetadata) -> None:
        """Starts what the scheduler side has decided for this step."""
        self._results.received.update(metadata.dropped)
        if metadata.saves or metadata.loads:
            self._look()
        now = time.monotonic()
        for load in metadata.loads:
            running = self._loads[load.request_id] = _Running(load, Batches(self._objects, load.root, load.blocks), now, load.seconds)
            self._start_load(running, now)
        for save in metadata.saves:
            running = self._saves[save.number] = _Running(save, Batches(self._objects, save.root, save.blocks), now, self._deadline)
            self._start_save(running, now)

    def _start_load(self, running: _Running, now: float) -> None:
        """It fails if a session that was lost does not come back soon. That of the scheduler side may be back before this one."""
        if self._away and not running.batches.busy and not running.batches.ended:
            if now < running.began + _AWAY:
                return
            running.batches.error = errors.SessionClosed(f"there is no session with the agent at {self._client.path}")
        deadline = max(_LEAST, running.ends - now - _MARGIN)
        running.batches.start(lambda batch: self._get(batch, deadline))

    def _get(self, batch: Batch, deadline: float) -> Lending[Any]:
        pending: Lending[Any] = self._store.get(self._region, batch.items, deadline=deadline, wait=False)
        return pending

    def _put(self, batch: Batch, deadline: float) -> Lending[Any]:
        pending: Lending[Any] = self._store.put(self._region, batch.items, deadline=deadline, wait=False)
        return pending

    def _start_save(self, running: _Running, now: float) -> None:
        """Without a session it ends at once: its blocks are wanted back."""
        if self._away and running.batches.error is None:
            running.batches.error = errors.SessionClosed(f"there is no session with the agent at {self._client.path}")
        deadline = max(_LEAST, running.ends - now)
        running.batches.start(lambda batch: self._put(batch, deadline))

    def poll(self) -> Results:
        """Takes what has ended; each request once."""
        if self._looks.due(bool(self._loads or self._lent or self._saves)):
            self._look()
        now = time.monotonic()
        for running in list(self._loads.values()):
            self._check_load(running, now)
        for request_id, running in list(self._lent.items()):
            running.batches.poll()
            if not running.batches.busy:
                del self._lent[request_id]
                self._metadata.returned[request_id] = 1
        for running in list(self._saves.values()):
            self._check_save(running, now)
        results, self._results = self._results, Results()
        return results

    def _look(self) -> None:
        """Takes what the agent has sent."""
        self._client.process()
        while self._client.events:
            event = self._client.events.popleft()
            self._looks.event(event)
            if isinstance(event, Disconnected):
                self._away = True
                _logger.warning("dray: rank %d has lost the session with the agent at %s: %s", self._rank, self._client.path, event.error)
            elif isinstance(event, Reconnected):
                self._away = False
                _logger.info("dray: rank %d has a session with the agent at %s again", self._rank, self._client.path)
            elif not isinstance(event, Confirmed):
                _logger.debug("dray: rank %d: %s", self._rank, event)

    # --- loads --------------------------------------------------------------------------------------

    def _check_load(self, running: _Running, now: float) -> None:
        load: Load = running.what
        running.batches.poll()
        self._start_load(running, now)
        if not running.batches.ended and not running.batches.lost:
            if now < running.ends:
                return
            running.error = errors.Deadline(f"the agent has not answered within {load.seconds:g} s")
        del self._loads[load.request_id]
        error = running.error or running.batches.error or self._missing(running.batches)
        if error is None:
            nbytes = sum(one.length for _, one in running.batches.results)
            self._results.received.add(load.request_id)
            self.stats.loaded(load.tokens, len(load.blocks), nbytes, now - running.began)
            if self._log:
                _logger.info("dray: request %s: loaded %d tokens, %d blocks, %d bytes in %.1f ms; objects: %s", load.request_id, load.tokens,
                             len(load.blocks), nbytes, (now - running.began) * 1e3, tiers(one for _, one in running.batches.results))
            return
        if running.batches.busy:
            self._lent[load.request_id] = running
            self._metadata.lent[load.request_id] = 1
        self._results.received.add(load.request_id)
        self._results.failed.add(load.request_id)
        if absent := {(block.group, block.hash): None for block, one in running.batches.results if one.status == Status.NOT_FOUND}:
            self._metadata.absent[load.request_id] = list(absent)
        self.stats.failed(error.name)
        _logger.warning("dray: request %s: its blocks were not loaded from the store: %s", load.request_id, error)

    def _missing(self, batches: Batches) -> errors.Error | None:
        """Why the results of batches are not all objects of the expected size."""
        ok = Status.OK
        for block, one in batches.results:
            if one.status != ok:
                return errors.NotFound(f"the store does not give an object that it had: {one.status.name.lower()}", fix=_FIX)
            size = self._objects.sizes[block.group]
            if one.length != size:
                return errors.Invalid(f"an object of the store has {one.length} bytes, where {size} are expected", fix=_FIX)
        return None

    # --- saves --------------------------------------------------------------------------------------

    def _check_save(self, running: _Running, now: float) -> None:
        save: Save = running.what
        running.batches.poll()
        self._start_save(running, now)
        if now >= running.ends and running.batches.error is None:
            running.batches.error = errors.Deadline(f"the agent had no room within {self._deadline:g} s")
        if not running.batches.ended:
            return
        del self._saves[save.number]
        results = running.batches.results
        nbytes = sum(self._objects.sizes[block.group] for block, one in results if one.status == Status.OK)
        ends = [_end(one.status for _, one in objects) for _, objects in groupby(results, itemgetter(0))]
        stored, existing = ends.count(Status.OK), ends.count(Status.EXISTS)
        self._metadata.saved[save.number] = 1
        self.stats.saved(stored, nbytes, existing, now - running.began)
        if len(save.blocks) > stored + existing:
            self._metadata.unsaved.add(save.number)
            self._count_left(running, ends)
        if self._log:
            _logger.info("dray: saved %d of %d blocks, %d bytes in %.1f ms; the store had %d", stored, len(save.blocks), nbytes,
                         (now - running.began) * 1e3, existing)

    def _count_left(self, running: _Running, ends: list[Status]) -> None:
        """Counts the blocks that are not saved. ends: of those whose batches have ended."""
        for status in ends:
            if status not in (Status.OK, Status.EXISTS):
                self.stats.dropped(status.name.lower(), 1)
        error = running.batches.error
        self.stats.dropped(error.name if error is not None else "not_tried", len(running.what.blocks) - len(ends))

    # --- rest ---------------------------------------------------------------------------------------

    def take_metadata(self) -> WorkerMetadata | None:
        """What the scheduler side has to know after this step; None: nothing."""
        metadata = self._metadata
        if not metadata:
            return None
        self._metadata = WorkerMetadata()
        return metadata

    @property
    def idle(self) -> bool:
        """True if nothing is kept; for tests."""
        return not (self._loads or self._lent or self._saves or self._results.received)

    def close(self) -> None:
        """Removes the region, and ends the session."""
        self.stats.flush()
        self._client.close()
