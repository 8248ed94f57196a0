# SPDX-License-Identifier: Apache-2.0
"""The scheduler side: what the store has for a request, which blocks are loaded, and which are saved.

A request of this side is in one of these states. The engine is told exactly once that a load has ended.

    ASKED      the store has not answered
    MATCHED    the store keeps what it has for the request
    ALLOCATED  the blocks are there, and the workers get the load with the next step
    STARTED    the workers report its end
    DONE       the request computes whatever is missing
"""

from __future__ import annotations

import enum
import logging
import secrets
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from ... import errors
from ...client import Client
from ...events import Disconnected, Reconnected
from ...store import Store
from ..kept import Kept
from ..layout import Group
from ..looks import Looks
from ..rest import Rest
from .directory import Directory
from .hashing import Hashes
from .hits import first_needed, unit
from .keys import Root, make_root
from .lookup import Lookup
from .options import Options
from .pins import Pins
from .protocol import Block, Load, StepMetadata, StoreRank, WorkerMetadata
from .saves import Saves
from .stats import Stats, sentence
from .tiers import sentence as tiers
from .weights import Weights

if TYPE_CHECKING:
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request

    from .block_events import BlockEvents
    from .cost import Cost

__all__ = ["SchedulerSide"]

_logger = logging.getLogger("vllm.dray")
_OPEN_MAX = 64  # requests that are asked for, or have a hit and wait for blocks, before another one is asked for
_BLOCKS_A_STEP = 512  # of questions, after which the next one waits for the next step
_UNPIN_LEFT_MAX = 8  # steps in a row that start loads and leave pins to the next one
_LOADING = "WAITING_FOR_REMOTE_KVS"
_new = tuple.__new__  # a NamedTuple's own takes twice as long


class _State(enum.Enum):
    ASKED = enum.auto()
    MATCHED = enum.auto()
    ALLOCATED = enum.auto()
    STARTED = enum.auto()
    DONE = enum.auto()


# Python 3.11 looks a member up by a function
_ASKED, _MATCHED, _ALLOCATED, _STARTED, _DONE = _State.ASKED, _State.MATCHED, _State.ALLOCATED, _State.STARTED, _State.DONE


class _Load:
    """What is loaded for a request: tokens [first, end)."""

    __slots__ = ("allocated", "end", "ends", "first", "held_up", "lookup", "over", "preemptions", "request", "root", "size", "state")

    def __init__(self, request: Request, root: Root, lookup: Lookup) -> None:
        self.request, self.root, self.lookup, self.state = request, root, lookup, _ASKED
        self.first, self.end, self.ends = lookup.first, lookup.first, 0.0
        self.size = 0  # blocks, at most; of a load that is MATCHED or further
        self.allocated: KVCacheBlocks | None = None  # the engine's objects of the blocks
        self.over = False  # the request has ended
        self.held_up = 0.0  # since when it waits for other loads, or for saves, to end; 0: it does not
        self.preemptions = request.num_preemptions


class SchedulerSide:
    """One for each engine. Its methods are the hooks that the engine's scheduler calls; none of them waits, except for the rest
    of a step without tokens (Rest)."""

    def __init__(self, options: Options, client: Client, store: Store, groups: Sequence[Group], hashes: Hashes, weights: Weights,
                 cost: Cost, rest: Rest, fields: dict[str, str], *, world_size: int, blocks: int, step_tokens: int = 0,
                 loads: bool, saves: bool) -> None:
        """fields: of the model. blocks: that the engine has. step_tokens: of its longest step. loads, saves: what its role allows."""
        self._options, self._client, self._store, self._groups, self._hashes = options, client, store, groups, hashes
        self._weights, self._rest, self._fields = weights, rest, fields
        self._tokens = [group.tokens for group in groups]
        self._look_back_partly = any(group.looks_back_partly for group in groups)
        self._loads_allowed, self._saves_allowed = loads, saves
        self._directory = Directory(client.agent_id, world_size)
        self.stats = Stats(lambda data: _logger.info("dray: store, last minute: %s", sentence(data)))
        self._pins = Pins(store)
        self._saves = Saves(groups, hashes.of, cost, self.stats, policy=options.save, limit=options.save_limit, blocks=blocks,
                            ahead=sum(step_tokens // group.tokens + 1 for group in groups))
        self._saves.ranks = world_size
        self._epoch = ""
        self._root: Root | None = None
        self._requests: dict[str, Request] = {}
        self._loads: dict[str, _Load] = {}
        self._allocated: dict[str, _Load] = {}
        self._orphans: list[Lookup] = []  # of requests that do not wait for the answer any more
        self._dropped: list[str] = []
        self._lent = Kept()  # blocks of ended loads that the agent may still write, by request
        self._returns: dict[str, int] = {}
        self._looks = Looks()
        self._open = 0  # requests whose question or hit is open; counted in each step
        self._asked_blocks = 0  # in this step
        self._room = self._saves.room
        self._wanted = 0  # blocks of loads that wait for saves; in this step
        self._unpin_left = 0  # steps in a row that have left pins to the next one

    def bind(self, kv_cache_manager: Any) -> None:
        """Gives this side the engine's bookkeeping of blocks."""
        self._lent.kv_cache_manager = kv_cache_manager
        self._saves.bind(kv_cache_manager)

    def add_ranks(self, ranks: Iterable[StoreRank]) -> None:
        """Takes what the workers say of their objects."""
        self._directory.add(ranks)
        self._saves.sizes = self._directory.sizes if self._directory.complete else None

    def _known_root(self) -> Root | None:
        """What the keys have in common; None: it is not known yet, or the ranks are not."""
        if self._root is None and self._weights.text is not None:
            self._root = make_root({**self._fields, **self._hashes.fields(), "weights": self._weights.text}, self._epoch)
        return self._root if self._directory.complete else None

    # --- requests -----------------------------------------------------------------------------------

    def expect(self, request: Request) -> None:
        """A new request. Those with an adapter are left out: the name of an adapter does not tell its weights."""
        if request.lora_request is None:
            self._requests[request.request_id] = request

    def match(self, request: Request, num_computed_tokens: int) -> tuple[int | None, bool]:
        """How many tokens behind the computed ones can be loaded; None: the engine asks again in the next step."""
        load = self._loads.get(request.request_id)
        if load is not None and self._outdated(load, num_computed_tokens):
            self._forget(load)
            load = None
        if load is None:
            root = self._askable(request, num_computed_tokens)
            if root is not None and (self._open >= _OPEN_MAX or self._asked_blocks >= _BLOCKS_A_STEP):
                return None, False
            load = self._ask(request, num_computed_tokens, root) if root is not None else None
            if load is None:
                return 0, False
        if load.state is _ASKED and not self._take_answer(load):
            return None, False
        count = load.end - num_computed_tokens if load.state is _MATCHED else 0
        if count <= 0:
            return 0, False
        load.first = num_computed_tokens
        load.size = self._size(load)
        if not self._room.for_load(load.size):
            return self._hold_up(load)
        if self._waits_for_saves(load):
            return None, False
        return count, True

    def _waits_for_saves(self, load: _Load) -> bool:
        """True while what the engine would lose for the load's blocks is saved. Saves that take longer are not waited for."""
        size = load.size
        if not self._wanted and not self._saves.holds_up(size):
            return False
        now = time.monotonic()
        load.held_up = load.held_up or now
        if now >= load.held_up + self._options.lookup:
            return False
        self._wanted = min(self._wanted + size, max(self._wanted, size, self._room.most))  # those behind it wait, too, within the part of loads
        return True

    def _size(self, load: _Load) -> int:
        """Blocks that are loaded, at most."""
        return sum(-(-load.end // tokens) - load.first // tokens for tokens in self._tokens)

    @staticmethod
    def _range(load: _Load, group: Group) -> range:
        """The blocks of a group that hold what is loaded."""
        return range(load.first // group.tokens, -(-load.end // group.tokens))

    def _hold_up(self, load: _Load) -> tuple[int | None, bool]:
        """Other loads, or saves, are about to end. One that takes longer is not waited for, and the request is computed."""
        now = time.monotonic()
        load.held_up = load.held_up or now
        if not (self._lent.blocks or self._saves.stuck) and now < load.held_up + self._options.lookup:
            return None, False
        load.state = _DONE
        load.lookup.release()
        return 0, False

    def _outdated(self, load: _Load, num_computed_tokens: int) -> bool:
        """True if the engine has lost blocks since the question: its own ones, or all of a request that is preempted."""
        if load.state is _DONE:
            return load.request.num_preemptions > load.preemptions and load.request.request_id not in self._returns
        return load.state is _MATCHED and num_computed_tokens < load.first

    def _askable(self, request: Request, first: int) -> Root | None:
        """What the keys of a request have in common; None: there is nothing to ask, or nobody who answers."""
        if not self._loads_allowed or self._asked_end(request) <= first or request.request_id not in self._requests \
                or request.skip_reading_prefix_cache or self._late():
            return None
        return self._known_root()

    def _asked_end(self, request: Request) -> int:
        """The tokens of a request that can be loaded, in whole blocks of all groups.

        The last token is computed in any case. If it looks at a block that the one behind it does not look at, the engine would not keep that block
        for a request that is loaded as a whole.
        """
        step, end = unit(self._groups), request.num_tokens
        if self._look_back_partly and any(first_needed(group, end - 1) < first_needed(group, end) for group in self._groups):
            end -= 1
        return end // step * step

    def _ask(self, request: Request, first: int, root: Root) -> _Load | None:
        """The question for a request; None: it could not be asked."""
        end = self._asked_end(request)

        def keys_of(group: int, block: int) -> dict[bytes, int] | None:
            block_hash = self._hashes.of(request, group, block)
            return None if block_hash is None else self._directory.keys(root, group, block_hash)

        try:
            lookup = Lookup(self._store, self._pins, self._groups, keys_of, first, end)
        except errors.Error:
            return None
        load = self._loads[request.request_id] = _Load(request, root, lookup)
        self._open += 1
        self._asked_blocks += sum((end - first) // group.tokens for group in self._groups)
        return load

    def _late(self) -> bool:
        """True while the agent owes an answer that is overdue: then no other request waits for one."""
        self._orphans = [lookup for lookup in self._orphans if not self._over(lookup)]
        return bool(self._orphans) and time.monotonic() >= self._orphans[0].began + self._options.lookup

    def _over(self, lookup: Lookup) -> bool:
        if not lookup.answered(patient=False):
            return False
        lookup.release()
        return True

    def _take_answer(self, load: _Load) -> bool:
        """False while the request waits for the answer."""
        now, lookup = time.monotonic(), load.lookup
        ends = lookup.began + self._options.lookup
        if not lookup.answered(patient=now < ends and lookup.again < ends):
            if now < ends:
                return False
            load.state = _DONE
            self._orphans.append(lookup)
            self.stats.lookup(lookup.end - lookup.first, 0, now - lookup.began)
            _logger.warning("dray: request %s: the agent has not said within %g s what the store has", load.request.request_id, self._options.lookup)
            return True
        load.end = lookup.found()
        load.state = _MATCHED if load.root == self._root and load.end > load.first else _DONE
        self.stats.lookup(lookup.end - lookup.first, load.end - load.first, now - lookup.began)
        if self._options.log:
            _logger.info("dray: request %s: the store has %d of %d tokens, asked in %.1f ms; objects: %s", load.request.request_id,
                         load.end - load.first, lookup.end - lookup.first, (now - lookup.began) * 1e3, tiers(lookup.results))
        if lookup.error is not None:
            _logger.warning("dray: request %s: the store was asked in vain: %s", load.request.request_id, lookup.error)
        if load.root == self._root:
            self._remember(load)
        if load.state is _DONE:
            lookup.release()
        return True

    def _remember(self, load: _Load) -> None:
        """What the store has need not be saved. What it may not have is saved when a request has it."""
        for number, group in enumerate(self._groups):
            blocks = range(load.first // group.tokens, load.lookup.end // group.tokens)
            there = []
            for block, block_hash in zip(blocks, self._hashes.among(load.request, number, blocks), strict=False):
                known = load.lookup.knows(number, block)
                if known:
                    there.append((block, block_hash))
                elif known is False:
                    self._saves.missing(number, block_hash)
                elif block * group.tokens >= load.end:
                    self._saves.stored.discard((number, block_hash))
            self._saves.there(load.request, number, there)

    def _forget(self, load: _Load) -> None:
        """The request's load does not exist any more."""
        del self._loads[load.request.request_id]
        if load.state is _ASKED:
            self._orphans.append(load.lookup)  # what it asked for is kept when the answer comes
        elif load.lookup not in self._orphans:
            load.lookup.release()

    def allocated(self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int) -> None:
        """The engine has decided how many tokens are loaded, and into which blocks."""
        load = self._loads.get(request.request_id)
        if load is None or load.state is not _MATCHED:
            return
        if num_external_tokens <= 0:
            load.state = _DONE
            load.lookup.release()
            return
        load.state, load.allocated = _ALLOCATED, blocks
        if load.end != load.first + num_external_tokens:
            load.end = load.first + num_external_tokens
            load.size = self._size(load)
        load.ends = time.monotonic() + self._options.deadline
        self._room.loading += load.size
        self._allocated[request.request_id] = load

    def _start(self, load: _Load) -> Load:
        """What the workers get of a load."""
        load.state = _STARTED
        return Load(load.request.request_id, load.root, self._blocks(load), load.end - load.first, load.ends - time.monotonic())

    def _blocks(self, load: _Load) -> tuple[Block, ...]:
        """What is loaded, and where to."""
        assert load.allocated is not None
        chosen: list[Block] = []
        for number, (group, blocks) in enumerate(zip(self._groups, load.allocated.blocks, strict=True)):
            wanted = self._range(load, group)[max(0, first_needed(group, load.end) - load.first // group.tokens):]
            hashes = self._hashes.among(load.request, number, wanted)
            chosen += [_new(Block, (number, block.block_id, block_hash, 0.0))
                       for block, block_hash in zip(blocks[wanted.start:wanted.stop], hashes, strict=True) if not block.is_null]
        return tuple(chosen)

    def finished(self, request: Request) -> None:
        """The end of a request. Its blocks are free as far as this connector is concerned: what is saved has references of its own."""
        if self._requests.pop(request.request_id, None) is not None:
            self._saves.finished(request)
        load = self._loads.get(request.request_id)
        if load is None:
            return
        if load.state is _STARTED:
            load.over = True  # until the workers have reported its end
            return
        if load.state is _ALLOCATED:
            del self._allocated[request.request_id]
            self._dropped.append(request.request_id)
        self._forget(load)

    def reset(self) -> bool:
        """Nothing that was saved until now is found any more, by this engine or with its new weights."""
        self._epoch = secrets.token_hex(8)
        self._root = None
        self._saves.reset(request for request in self._requests.values()
                          if request.num_computed_tokens or request.status.name == _LOADING)
        for load in self._loads.values():
            if load.state is _MATCHED:
                load.state = _DONE
                load.lookup.release()
        return True

    # --- steps --------------------------------------------------------------------------------------

    def _look(self, rest: float, awaited: bool) -> None:
        """Takes what the agent has sent. rest: seconds that this may take."""
        if not rest and not self._looks.due(awaited):
            return
        self._client.process(rest)
        while self._client.events:
            event = self._client.events.popleft()
            self._looks.event(event)
            if isinstance(event, Disconnected):
                self._lose()
                _logger.warning("dray: the session with the agent at %s was lost: %s", self._client.path, event.error)
            elif isinstance(event, Reconnected):
                _logger.info("dray: the session with the agent at %s is open again", self._client.path)

    def _lose(self) -> None:
        """The session was lost, and with it the pins: what was found may go, or has gone, and is computed."""
        self._pins.lose()
        for load in self._loads.values():
            if load.state is _MATCHED:
                load.state = _DONE
                load.lookup.release()

    def build_metadata(self, output: SchedulerOutput) -> StepMetadata:
        """What the workers have to do in this step."""
        active = [load for load in self._loads.values() if load.state is not _DONE]
        asked = any(load.state is _ASKED for load in active)
        self._open, self._asked_blocks = sum(load.state in (_ASKED, _MATCHED) for load in active), 0
        self._room.loading = sum(load.size for load in active if load.allocated is not None) + self._lent.blocks
        moved = len(active) + len(self._lent) + self._saves.count
        self._look(self._rest.seconds(output.total_num_scheduled_tokens, moved, asked), asked or bool(self._orphans))
        if self._orphans:
            self._late()
        metadata = StepMetadata()
        if self._allocated:
            metadata.loads = [self._start(load) for load in self._allocated.values()]
            self._allocated.clear()
        metadata.dropped, self._dropped = self._dropped, []
        if self._saves_allowed:
            metadata.saves = self._saves.step(output, self._requests.get, self._known_root(), self._wanted)
        self._wanted = 0
        if self._pins.pending:
            self._unpin(bool(metadata.loads))
        return metadata

    def _unpin(self, starts: bool) -> None:
        """Ends pins that nobody needs. A step that starts loads leaves that to one of the next ones."""
        if starts and self._unpin_left < _UNPIN_LEFT_MAX:
            self._unpin_left += 1
            return
        self._unpin_left = 0
        self._pins.flush()

    def take_output(self, output: KVConnectorOutput) -> None:
        """What the workers have reported, before the engine acts on it."""
        metadata = output.kv_connector_worker_meta
        if isinstance(metadata, WorkerMetadata):
            if metadata.ranks:
                self.add_ranks(metadata.ranks.values())
            if metadata.saved:
                self._saves.ended(metadata.saved, metadata.unsaved)
            self._take_lent(metadata)
            for request_id, blocks in metadata.absent.items():
                load = self._loads.get(request_id)
                for group, block_hash in blocks if load is not None and load.root == self._root else ():
                    self._saves.missing(group, block_hash)
        for request_id in output.finished_recving or ():
            load = self._loads.get(request_id)
            if load is not None and load.state is _STARTED:
                self._end(load, request_id in (output.failed_recving or ()))
                if load.over:
                    del self._loads[request_id]
        # the next step may start the load, and is the longest one
        for load in self._loads.values():
            if load.state is _ASKED:
                self._take_answer(load)

    def _end(self, load: _Load, failed: bool) -> None:
        """The workers have reported the end of a load."""
        load.state = _DONE
        load.lookup.release()
        for block in self._blocks(load) if failed else ():
            self._saves.stored.discard((block.group, block.hash))  # perhaps the store has lost it

    def _take_lent(self, metadata: WorkerMetadata) -> None:
        """Keeps blocks allocated that the agent may still write, although their request goes on without them."""
        for request_id, n in metadata.lent.items():
            self._returns[request_id] = self._returns.get(request_id, 0) + n
            load = self._loads.get(request_id)
            if load is not None and load.allocated is not None and request_id not in self._lent:
                self._lent.keep(request_id, (blocks[i] for group, blocks in zip(self._groups, load.allocated.blocks, strict=True)
                                             for i in self._range(load, group)))
        for request_id, n in metadata.returned.items():
            left = self._returns.get(request_id, 0) - n
            if left > 0:
                self._returns[request_id] = left
                continue
            self._returns.pop(request_id, None)
            self._lent.free(request_id)

    def send_events(self, events: BlockEvents) -> None:
        """From now on, take_events() tells what the store has."""
        self._saves.events = events

    def take_events(self) -> Iterable[Any]:
        """vLLM's events of blocks since the last call."""
        return self._saves.events.take() if self._saves.events is not None else ()

    @property
    def frees_blocks(self) -> bool:
        """True if the end of a save, which is near, gives a block back to the engine."""
        return self._saves.frees_blocks

    @property
    def busy(self) -> bool:
        """True while the engine has to go on stepping, although no request needs it."""
        return self._saves.busy or len(self._lent) > 0 or not self._directory.complete or self._pins.pending

    @property
    def idle(self) -> bool:
        """True if nothing is kept for any request; for tests."""
        return not (self._requests or self._loads or self._allocated or self._dropped or self._orphans or self._returns or len(self._lent)
                    or len(self._pins) or self._pins.pending) and self._saves.idle

    def close(self) -> None:
        """Ends the session, and with it all pins."""
        self.stats.flush()
        self._client.close()
