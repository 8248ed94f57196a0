# SPDX-License-Identifier: Apache-2.0
"""The scheduler side of an engine that uses outputs: it has them brought into its pool, before it schedules their request.

A request waits until each of its outputs is in the pool, or has been given up. An output that cannot be had is encoded here if
the request brings its image; otherwise the request fails. Outputs stay in the pool as a cache. All loads are started and
polled here, in the process of the scheduler, so that they go on in steps in which no worker runs. Where outputs come from is the
matter of subclasses.
"""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections import deque
from typing import TYPE_CHECKING, Any, Protocol

from ... import errors
from ...client import Client
from ...events import Disconnected, Reconnected
from ...handles import Region
from ..protocol import DELIVERED
from ..rest import Rest
from ..stats import Stats
from .line import Line
from .pool import Item, Pool, Shape
from .pool_memory import PoolMemory, Seal
from .protocol import Place, StepMetadata

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.request import Request

__all__ = ["Loading", "Reader", "Source", "Want", "Wanted"]

_logger = logging.getLogger("vllm.dray")
_POLLS = 8  # in a step, for a short read that began in it
_WAIT = 0.001  # seconds that a step waits for short reads before it schedules, if nothing is computed
_SHORT = 0.01  # seconds after which the read of a request is not a short one any more
_AGENT_SECONDS = 2.0  # for which a request waits for its own agent after the session was lost


class Source(Protocol):
    """Where a request may have outputs from. used: no other load of the request from there is started.

    spent: none can be started any more. lost: why there is nothing to be had from there. ready: a load can be started.
    """

    used: bool

    @property
    def spent(self) -> bool: ...
    @property
    def lost(self) -> errors.Error | None: ...
    @property
    def ready(self) -> bool: ...
    def keep(self, now: float) -> None: ...
    def use(self) -> None: ...
    def release(self) -> None: ...


class Loading(Protocol):
    """Outputs that are loaded together. over: nothing more will happen, apart from lent(). session_reports_end: nothing is to be done for the load
    before the session reports that it has ended."""

    items: list[Item]
    over: bool
    began: float

    @property
    def session_reports_end(self) -> bool: ...
    def __hash__(self) -> int: ...
    def start(self, client: Client, region: Region, now: float) -> None: ...
    def poll(self, client: Client, region: Region, now: float) -> None: ...
    def error_of(self, item: Item) -> errors.Error | None: ...
    def stop(self) -> None: ...
    def lent(self) -> bool: ...
    def release(self) -> None: ...


class Wanted:
    """An output that is neither here nor on its way. place: where it is at its source, in the terms of that.

    seal: what its encoder says of it.
    """

    __slots__ = ("nonce", "place", "seal", "shape", "source")

    def __init__(self, shape: Shape, source: Any, place: Any, nonce: bytes = b"", seal: Seal | None = None) -> None:
        self.shape, self.source, self.place, self.nonce, self.seal = shape, source, place, nonce, seal


class Want:
    """A request. wanted: the outputs that it may have, by identifier. items: those that are here or on their way.

    missing: the others, as long as they may come. over: the engine may schedule it. refused: it has to fail, and
    waits for the engine to end it. passed: tokens up to the end of the last item that was released.
    """

    __slots__ = ("began", "ends", "items", "missing", "over", "passed", "refused", "request", "sources", "wanted")

    def __init__(self, request: Request, now: float, ends: float) -> None:
        self.request, self.began, self.ends, self.passed = request, now, ends, 0
        self.sources: list[Any] = []
        self.wanted: dict[str, Wanted] = {}
        self.items: dict[str, Item] = {}
        self.missing: dict[str, Wanted] = {}
        self.over = self.refused = False


class Reader(ABC):
    """One for each engine. deadline: seconds that a request waits. can_encode: whether this engine has what it needs to encode an
    item of a request itself."""

    def __init__(self, client: Client, region: Region, memory: PoolMemory, pool: Pool, rest: Rest, *, deadline: float,
                 can_encode: Callable[[Any], bool]) -> None:
        self._client, self._region, self._memory, self._pool = client, region, memory, pool
        self._rest, self._deadline, self._can_encode = rest, deadline, can_encode
        self._line: Line[Want] = Line()
        self._wants: dict[str, Want] = {}
        self._active: dict[str, Want] = {}  # those that are not over
        self._current: Want | None = None
        self._loads: list[Loading] = []
        self._to_copy: dict[str, Item] = {}  # by the workers, in the step that is being scheduled
        self._copying: deque[tuple[int, list[Item]]] = deque()  # by the workers, by step
        self._copied = -1  # the last step whose outputs the workers have copied
        self._copied_at_build = -1  # _copied, as it was in the last build()
        self._step = 0
        self._unavailable: set[str] = set()
        self._computed: set[str] = set()  # requests that were scheduled in the last step
        self._waited = 0.0  # seconds, in the step that is being scheduled
        self._away: float | None = None  # since when the session with the own agent is lost
        self.stats = Stats(lambda data: _logger.info("dray: encoder outputs, last minute: %s", sentence(data)))

    def _on_event(self, event: Any) -> None:
        if isinstance(event, Reconnected):
            self._away = None
        elif isinstance(event, Disconnected):
            self._away = time.monotonic()
            _logger.warning("dray: the session with the agent at %s was lost: %s", self._client.path, event.error)

    # --- requests -----------------------------------------------------------------------------------

    def available(self, request: Request, num_computed_tokens: int) -> bool:
        """True if the request may be scheduled. The engine calls this just before it schedules the request's items."""
        self._current = self._wants.get(request.request_id)
        if self._current is None and not self._may_begin(request):
            return False
        if self._current is None:
            self._current = self._first_sight(request, num_computed_tokens)
        elif num_computed_tokens < self._current.passed:
            self._come_back(self._current, num_computed_tokens)
        if not self._current.over and not self._current.refused and not self._computed and self._rest.allowed:
            self._wait(self._current)
        return self._current.over and not self._current.refused

    def has(self, identifier: str) -> bool:
        """True if an item of the request that is being scheduled is in the pool."""
        item = self._current.items.get(identifier) if self._current is not None else None
        return item is not None and item.ready

    def allocated(self, request: Request, index: int) -> None:
        """The engine has room for an item, which it takes from the pool or encodes."""
        want, identifier = self._wants.get(request.request_id), request.mm_features[index].identifier
        item = want.items.get(identifier) if want is not None else None
        if item is not None and item.ready and identifier not in self._to_copy:
            self._to_copy[identifier] = item
            self._pool.use(item, self._step)

    def freed(self, request: Request, index: int) -> None:
        """The request has passed an item, which stays here until others need the room."""
        want, feature = self._wants.get(request.request_id), request.mm_features[index]
        if want is None or feature.identifier not in want.items or \
                any(later.identifier == feature.identifier for later in request.mm_features[index + 1:]):
            return
        if want.items[feature.identifier].assembled is not None and not self._encodes(want, feature.identifier):
            return  # the request may be preempted, and there is no other way to the output then
        self._pool.leave(want.items.pop(feature.identifier), want)
        want.passed = max(want.passed, feature.mm_position.offset + feature.mm_position.length)

    def _come_back(self, want: Want, num_computed_tokens: int) -> None:
        """The request was preempted, and needs items again that it had passed."""
        want.passed = 0
        for feature in want.request.mm_features:
            identifier = feature.identifier
            if identifier in want.items or feature.mm_position.offset + feature.mm_position.length <= num_computed_tokens:
                continue
            wanted = want.wanted.get(identifier)
            found = self._again(wanted) if wanted is not None else None
            if found is not None:  # maybe on its way, by the load of another request
                self._pool.use(found, want)
                want.items[identifier] = found
            elif wanted is not None and not wanted.source.spent:
                want.missing[identifier] = wanted
            elif wanted is not None and not want.refused:
                self._give_up(want, identifier, errors.NotFound("the output was evicted before the preempted request came back"))
        if not want.refused and (want.missing or not all(item.ready for item in want.items.values())):
            now = time.monotonic()
            want.over, want.began, want.ends = False, now, now + self._deadline
            self._active[want.request.request_id] = want
            self._advance(want, now)

    def _first_sight(self, request: Request, num_computed_tokens: int) -> Want:
        now = time.monotonic()
        want = self._wants[request.request_id] = self._active[request.request_id] = Want(request, now, now + self._deadline)
        needed = {}
        for index, feature in enumerate(request.mm_features):
            computed = feature.mm_position.offset + feature.mm_position.length <= num_computed_tokens
            if not computed or not self._can_encode(feature):
                needed[feature.identifier] = request.get_num_encoder_embeds(index)
        self._learn(want, needed)
        for source in want.sources:
            if not source.used and not any(wanted.source is source for wanted in want.missing.values()):
                source.release()
        for index, feature in enumerate(request.mm_features):
            if feature.identifier in needed and feature.identifier not in want.missing and feature.identifier not in want.items and \
                    not want.refused and not self._can_encode(feature):
                self._give_up(want, feature.identifier, errors.NotFound(f"no engine offers the output of item {index}"))
        self._advance(want, now)
        return want

    def _may_begin(self, request: Request) -> bool:
        """False if it is not known yet how the outputs of a request are asked for."""
        return True

    @abstractmethod
    def _learn(self, want: Want, needed: Mapping[str, int]) -> None:
        """Finds where a request may have the outputs that it needs: adds its sources, what is wanted, and what is missing, or gives
        outputs up. needed: embeddings, by identifier."""

    def _again(self, wanted: Wanted) -> Item | None:
        """An output that a request had before, if it is still there."""
        return self._pool.find(wanted.shape)

    @abstractmethod
    def _path_error(self, source: Any) -> errors.Error | None:
        """Why nothing may be loaded from a source that is ready; None: it may."""

    @abstractmethod
    def _loads_of(self, want: Want, items: Mapping[str, Item]) -> Sequence[Loading]:
        """Loads that bring the outputs that are missing to their places."""

    @abstractmethod
    def _poll(self, rest: float, awaited: bool) -> None:
        """Takes what the agent has sent, or sends within `rest` seconds."""

    @abstractmethod
    def _asks(self) -> bool:
        """True while an answer has to be taken that no request waits for."""

    def _fit(self, shape: Shape) -> None:
        """errors.TooLarge: the output does not fit into the pool."""
        if self._pool.room(shape) > self._pool.size:
            raise errors.TooLarge(f"the output takes {self._pool.room(shape)} bytes, and the pool has {self._pool.size}",
                                  fix="Set ec_buffer_size to more.")

    def finished(self, request: Request) -> dict[str, Any] | None:
        """The end of a request, however it came."""
        want = self._wants.pop(request.request_id, None)
        self._computed.discard(request.request_id)
        if request.status.name not in DELIVERED:
            self._leave_copied(self._copied)  # no token is about to be delivered
        if want is not None:
            self._drop(want)
            self._active.pop(request.request_id, None)
            self._unavailable.discard(request.request_id)
            if self._current is want:
                self._current = None
        return None

    def _drop(self, want: Want) -> None:
        """Nothing is loaded for the request any more."""
        self._line.leave(want)
        want.missing.clear()
        for source in want.sources:
            source.release()
        for item in want.items.values():
            self._pool.leave(item, want)
        want.items.clear()

    def take_unavailable(self) -> set[str]:
        """Requests that have to fail; each once."""
        taken, self._unavailable = self._unavailable, set()
        return taken

    # --- outputs ------------------------------------------------------------------------------------

    def _advance(self, want: Want, now: float) -> None:
        """Does what can be done for a request that waits."""
        if want.refused:
            return
        self._look(want, now)
        if want.missing and not want.refused:
            self._enter(want, now)
        waits = [identifier for identifier, item in want.items.items() if not item.ready] + list(want.missing)
        if waits and now >= want.ends:
            error = errors.Deadline(f"the output has not arrived within {self._deadline:g} s")
            for identifier in waits:
                late = want.items.pop(identifier, None)
                if late is not None:
                    self._pool.leave(late, want)
                if not want.refused:
                    self._give_up(want, identifier, error)
        elif waits:
            return
        if not want.refused:
            want.over = True
            self._active.pop(want.request.request_id, None)
            self._line.leave(want)
            for source in want.sources:
                source.release()

    def _look(self, want: Want, now: float) -> None:
        """Takes what others have loaded meanwhile, and gives up what failed."""
        for identifier, wanted in list(want.wanted.items()):
            if want.refused:
                return
            item = want.items.get(identifier)
            if item is not None and item.error is not None:
                self._pool.leave(want.items.pop(identifier), want)
                if wanted.source.used:
                    self._give_up(want, identifier, item.error)
                else:  # the load of another request failed, and this one has a source of its own
                    want.missing[identifier] = wanted
            if identifier not in want.missing:
                continue
            found = self._pool.find(wanted.shape)
            if found is not None:
                self._pool.use(found, want)
                want.items[identifier] = found
                del want.missing[identifier]
            elif wanted.source.spent:
                self._give_up(want, identifier, errors.NotFound("the output was evicted, and the right to read it has been used"))
            elif wanted.source.lost is not None:
                self._give_up(want, identifier, wanted.source.lost)
            elif self._away is not None and now >= max(self._away, want.began) + _AGENT_SECONDS:
                self._give_up(want, identifier, errors.SessionClosed(f"there is no session with the agent at {self._client.path}"))

    def _enter(self, want: Want, now: float) -> None:
        """Gets places for all outputs that are missing, or none, and starts their loads."""
        sources = {id(wanted.source): wanted.source for wanted in want.missing.values()}
        if not all(source.ready for source in sources.values()) or not self._line.may_enter(want, now):
            return
        for source in sources.values():
            error = self._path_error(source)
            if error is not None:
                for identifier in [name for name, wanted in want.missing.items() if wanted.source is source]:
                    self._give_up(want, identifier, error)
                return
        shapes = [wanted.shape for wanted in want.missing.values()]
        kept = [item.shape for item in want.items.values() if not item.moved]
        if not self._pool.fits(kept + shapes):
            identifier = next(reversed(want.missing))
            self._give_up(want, identifier, errors.TooLarge(
                f"the outputs of the request take {sum(map(self._pool.room, kept + shapes))} bytes, and the pool has {self._pool.size}",
                fix="Set ec_buffer_size to more."))
            return
        if self._pool.taken(shapes):
            return  # until the other one has moved, and those that come later pass this request
        self._leave_copied(self._copied)
        made = self._pool.enter(shapes, want, [wanted.nonce for wanted in want.missing.values()])
        if made is None:
            # What is here is not kept while the request waits for the rest, because two requests might wait for each other.
            for identifier, item in list(want.items.items()):
                if not item.moved:
                    self._pool.leave(want.items.pop(identifier), want)
                    want.missing[identifier] = want.wanted[identifier]
            self._line.wait(want, now)
            if not self._pool.used:
                self._pool.clear()  # an output of this request that is here divides the room for the others
            return
        self._line.leave(want)
        items = dict(zip(want.missing, made, strict=True))
        for identifier, item in items.items():
            item.seal = want.missing[identifier].seal
        loads = self._loads_of(want, items)
        for source in sources.values():
            source.use()
        for load in loads:
            for item in load.items:
                self._pool.use(item, load)
            self._loads.append(load)
            load.start(self._client, self._region, now)
            if load.over:  # it cannot even be started
                self._end(load, now)
        want.items.update(items)
        want.missing.clear()

    def _give_up(self, want: Want, identifier: str, error: errors.Error) -> None:
        """An output of a request will not come."""
        want.missing.pop(identifier, None)
        self.stats.failed(error.name)
        request = want.request
        if self._encodes(want, identifier):
            _logger.warning("dray: request %s: an output was not loaded, and is encoded here: %s", request.request_id, error)
            return
        if not want.refused:
            want.refused = True
            self._unavailable.add(request.request_id)
            _logger.error("dray: request %s fails, because an output was not loaded, and the request has no image to encode here: %s",
                          request.request_id, error)
            self._drop(want)

    def _encodes(self, want: Want, identifier: str) -> bool:
        """True if this engine can encode an output of a request."""
        return all(self._can_encode(feature) for feature in want.request.mm_features if feature.identifier == identifier)

    # --- steps --------------------------------------------------------------------------------------

    def build(self, output: SchedulerOutput, metadata: StepMetadata) -> None:
        """What the workers copy out of the pool in this step; and everything that has happened meanwhile."""
        metadata.loads = {identifier: Place.of(item) for identifier, item in self._to_copy.items()}
        if self._to_copy:
            self._copying.append((self._step, list(self._to_copy.values())))
            self._to_copy = {}
        self._step = metadata.number + 1
        copied_before, self._copied_at_build = self._copied_at_build, self._copied
        self._current = None
        waiting = len(self._active) or len(self._loads)
        asks = any(not source.ready and not source.used for want in self._active.values() for source in want.sources)
        reported = not any(want.missing for want in self._active.values()) and all(load.session_reports_end for load in self._loads)
        rest = self._rest.seconds(output.total_num_scheduled_tokens, waiting, asks, session_reports_end=reported) - self._waited
        self._computed, self._waited = set(output.num_scheduled_tokens), 0.0
        self._leave_copied(copied_before)
        self._poll(max(0.0, rest), bool(waiting))
        self._go_on()

    def _wait(self, want: Want) -> None:
        """Waits for the outputs of a request, which come sooner than the next step if they are small."""
        began = now = time.monotonic()
        ends = min(began + _WAIT - self._waited, want.began + _SHORT)
        for _ in range(_POLLS):
            if now >= ends or want.over or want.refused:
                break
            self._poll(ends - now, True)
            self._go_on()
            now = time.monotonic()
        self._waited += now - began

    def _go_on(self) -> None:
        """Looks after all loads, and does what can be done for the requests that wait."""
        if self._loads or self._active:
            now = time.monotonic()
            for load in list(self._loads):
                self._check(load, now)
            for want in list(self._active.values()):
                self._advance(want, now)
                for source in want.sources:
                    if not source.used:
                        source.keep(now)

    def _check(self, load: Loading, now: float) -> None:
        if not load.over:
            if not any(item.users - {load} for item in load.items):
                load.stop()
            load.poll(self._client, self._region, now)
            if not load.over:
                return
            self._end(load, now)
        if not load.lent():
            self._loads.remove(load)
            for item in load.items:
                self._pool.leave(item, load)
                if item.shape.window:
                    self._pool.give_window(item)

    def _end(self, load: Loading, now: float) -> None:
        """A load is over, in either way."""
        for item in load.items:
            error = load.error_of(item)
            if error is None:
                try:
                    if not item.shape.window:  # otherwise each piece was verified
                        self._memory.verify(item)
                except errors.Error as e:
                    error = e
            item.error = error
            item.ready = error is None
            if error is not None:
                self._pool.forget(item)
        load.release()
        good = [item for item in load.items if item.ready]
        if good:
            self.stats.loaded(sum(item.shape.size for item in good), len(good), len(load.items), sum(item.shape.rows for item in good),
                              now - load.began)

    def take_output(self, step: int) -> None:
        """The workers have copied what the steps up to this one use. The engine is about to deliver the tokens of the step, and its thread that does so needs the
        interpreter lock. So the rest is not done in the next step, but in the one after it, before which the engine pauses if it has nothing to compute."""
        self._copied = step

    @property
    def _engine_sends(self) -> bool:
        """True in the build() after the workers have copied outputs: the engine may be sending the tokens of the step that uses them."""
        return self._has_copied(self._copied)

    def _has_copied(self, last: int) -> bool:
        return bool(self._copying) and self._copying[0][0] <= last

    def _leave_copied(self, last: int) -> None:
        """Nobody uses what the workers have copied in the steps up to `last`."""
        while self._has_copied(last):
            number, items = self._copying.popleft()
            for item in items:
                self._pool.leave(item, number)

    @property
    def busy(self) -> bool:
        """True while the engine has to go on stepping, although no request needs it."""
        return bool(self._loads) or self._has_copied(self._copied) or self._asks()

    @property
    def idle(self) -> bool:
        """True if nothing is kept for any request; for tests."""
        return not (self.busy or self._wants or self._active or self._copying or self._to_copy or len(self._line) or self._pool.used)

    def take_stats(self) -> dict[str, Any] | None:
        """The counts since the last call; None if nothing has changed."""
        return self.stats.take(len(self._active))

    def close(self) -> None:
        """Ends the session, and with it all rights."""
        self.stats.flush()
        self._client.close()


def sentence(data: dict[str, Any]) -> str:
    """Counts as a part of a log line."""
    from .metrics import summary

    counts = summary(data)
    failures = ", ".join(f"{name} {n}" for name, n in sorted(data["failures"].items()))
    return (f"{counts['outputs']} outputs of {counts['embeddings']} embeddings ({counts['MB']} MB) in {counts['loads']} loads, in a median "
            f"of {counts['median ms']} ms, at most {counts['longest ms']} ms; {counts['waiting']} requests waiting; "
            f"failures: {failures or 'none'}")
