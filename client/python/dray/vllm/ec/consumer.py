# SPDX-License-Identifier: Apache-2.0
"""The scheduler side of an engine that uses outputs which encoders offer: it acquires their rights, and pulls the outputs."""

from __future__ import annotations

import contextlib
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from ... import errors
from ...client import Client
from ...events import Disconnected
from ...handles import Region, Remote
from ..grants import Grants, Hold
from ..options import Options
from ..rest import ANSWER, Rest
from .door import Doors
from .header import digest, verify
from .inplace import Opened, open_named
from .load import Load
from .pieces import Pieces, consumer_window
from .pool import Item, Pool, Shape
from .pool_memory import PoolMemory, Seal
from .pool_rights import Early, PoolRemotes, introduce
from .protocol import Offer, Offered, StepMetadata, offered_tokens, read_offers
from .reader import Loading, Reader, Want, Wanted
from .secret import Secret

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.request import Request

__all__ = ["ConsumerSide"]

_SOON = 0.5  # seconds after which a request that still waits for its outputs keeps their places by the right
_NO_EXPORT = errors.Revoked, errors.NotFound, errors.Cancelled  # of a transfer, when an export has ended


class _Source:
    """An offer of a request.

    hold: the right; None: it was not asked for. used: it belongs to a load, or was released, or is not needed, because outputs are read in place.
    error: why it cannot be asked for. pool: of the encoder, from which outputs can be loaded without the right; early: they are.
    reading: how many outputs are read in place. shapes: of those, which were opened in `seconds`, until they are counted. since: when the request came.
    """

    __slots__ = ("_side", "early", "error", "hold", "offer", "pool", "reading", "request_id", "seconds", "shapes", "since", "used")

    def __init__(self, side: ConsumerSide, offer: Offer, request_id: str, pool: Remote | None = None) -> None:
        self._side, self.offer, self.request_id, self.pool = side, offer, request_id, pool
        self.hold: Hold | None = None
        self.error: errors.Error | None = None
        self.used, self.early, self.reading = False, False, 0
        self.shapes: list[Shape] = []
        self.seconds = 0.0
        self.since = time.monotonic()

    def acquire(self) -> None:
        """Asks for the right, by which outputs are loaded then."""
        self.pool = None
        try:
            self.hold = self._side.acquire(self)
        except errors.Error as e:
            self.error = e

    @property
    def spent(self) -> bool:
        return self.used

    @property
    def lost(self) -> errors.Error | None:
        if self.hold is not None:
            return self.hold.lost
        lost = self.pool.lost if self.pool is not None else None
        return self.error if isinstance(lost, _NO_EXPORT) else self.error or lost

    @property
    def remote(self) -> Remote | None:
        """By which a load can be started now."""
        if self.hold is not None:
            return self.hold.remote
        return self.pool if self.pool is not None and self.pool.lost is None else None

    @property
    def ready(self) -> bool:
        return self.remote is not None

    def keep(self, now: float) -> None:
        if self.hold is not None:
            self.hold.keep(now)
        elif self.lost is None and (now >= self.since + _SOON if self.remote is not None else not self.early):
            self.acquire()  # which keeps the right from expiring

    def use(self) -> None:
        """A load was started. After an early one that fails, another one may be."""
        self.used, self.early = self.hold is not None, self.hold is None

    def release(self) -> None:
        if not self.used:
            self.used = True
            if self.hold is not None:
                self.hold.release()
            elif self.lost is None:
                self._side.has_loaded(self)


class ConsumerSide(Reader):
    """One for each engine. widths: numbers that an embedding may have. itemsize: bytes of each. secret: that encoders have to prove;
    None: every offer is taken."""

    def __init__(self, options: Options, client: Client, region: Region, memory: PoolMemory, pool: Pool, model: dict[str, str],
                 rest: Rest, *, widths: Collection[int], itemsize: int, can_encode: Callable[[Any], bool],
                 secret: Secret | None) -> None:
        super().__init__(client, region, memory, pool, rest, deadline=options.deadline, can_encode=can_encode)
        self._options, self._model, self._widths, self._itemsize, self._secret = options, model, widths, itemsize, secret
        self._grants = Grants(client)
        self._grants.on_event = self._on_event
        self.in_place = options.transport in ("auto", "local")
        self._doors = Doors()
        self._pools = PoolRemotes(client)
        self._sources: dict[Loading, _Source] = {}
        self._loaded: list[tuple[int, _Source]] = []  # without their rights, for that step, which is being scheduled or computed
        self._read: list[_Source] = []  # whose encoders are to be told that nothing is read any more

    def _learn(self, want: Want, needed: Mapping[str, int]) -> None:
        for offer in self._read_offers(want, needed):
            self._take_offer(want, offer, needed)

    def _read_offers(self, want: Want, needed: Mapping[str, int]) -> list[Offer]:
        params = want.request.ec_transfer_params
        if not params or not isinstance(params, dict):
            return []
        try:
            return read_offers(params)
        except errors.Error as e:
            # A right that is not used is released, so that E gets the room back at once, unless it may be nobody's.
            for token in offered_tokens(params) if self._secret is None else ():
                with contextlib.suppress(errors.Error):
                    self._grants.acquire(token, want.request.request_id).release()
            for identifier in needed:
                self._give_up(want, identifier, e)
            return []

    def acquire(self, source: _Source) -> Hold:
        """Asks for the right of an offer. errors.TokenInvalid, errors.SessionClosed."""
        return self._grants.acquire(source.offer.token, source.request_id)

    def _trust(self, offer: Offer, want: Want) -> errors.Error | None:
        """Why the offer is not to be trusted. An address that it names is not even asked then."""
        if self._secret is not None:
            try:
                self._secret.check(offer, want.request.cache_salt)
            except errors.Error as e:
                return e
        return None

    def _take_offer(self, want: Want, offer: Offer, needed: Mapping[str, int]) -> None:
        error, source = self._trust(offer, want), None
        if error is None and self._read_in_place(want, offer, needed):
            return
        if error is None:
            source = _Source(self, offer, want.request.request_id, self._pool_of(offer))
            source.keep(0.0)
            error = source.error
        if source is not None and error is None:
            want.sources.append(source)
        for identifier, offered in offer.items.items():
            if identifier not in needed or identifier in want.missing or want.refused:
                continue
            try:
                if error is not None:
                    raise error
                shape = self._shape(identifier, needed[identifier], offer, offered, want.request.cache_salt)
            except errors.Error as e:
                self._give_up(want, identifier, e)
                continue
            assert source is not None
            if offered.piece or self._pool.room(shape) > self._pool.size:
                shape = shape._replace(window=consumer_window(self._pool.size))
            if shape.window and source.hold is None:
                source.acquire()  # a window is filled anew as long as somebody has the right
            want.missing[identifier] = want.wanted[identifier] = Wanted(
                shape, source, offered.offset, offered.nonce, Seal(offer.device, offered.digest, offered.number))

    def _pool_of(self, offer: Offer) -> Remote | None:
        """All of the encoder's pool, if it can be read by a path that is wanted."""
        pool = self._pools.find(offer.exports)
        return pool if pool is not None and self._options.path_error(pool.transport, "the encoder") is None else None

    # --- in place -----------------------------------------------------------------------------------

    def _read_in_place(self, want: Want, offer: Offer, needed: Mapping[str, int]) -> bool:
        """Opens all outputs of an offer that the request needs, if the encoder's pool is on this host and none of them is here."""
        if offer.pool is None or not self.in_place or want.refused:
            return False
        began = time.monotonic()
        source, items = _Source(self, offer, want.request.request_id), {}
        source.used = True
        for identifier, offered in offer.items.items():
            if identifier not in needed or identifier in want.missing or identifier in want.items:
                continue
            if offered.piece:
                break
            try:
                shape = self._shape(identifier, needed[identifier], offer, offered, want.request.cache_salt)
            except errors.Error:
                break
            wanted = Wanted(shape, source, offered.offset, offered.nonce)
            item = self._open(wanted) if self._pool.find(shape) is None else None
            if item is None:
                break
            items[identifier] = wanted, item
        else:
            for identifier, (wanted, item) in items.items():
                self._begin_reading(source, item)
                self._pool.use(item, want)
                want.wanted[identifier], want.items[identifier] = wanted, item
            if items:
                want.sources.append(source)
                source.shapes = [wanted.shape for wanted, _ in items.values()]
                source.seconds = time.monotonic() - began
            return bool(items)
        for _, item in items.values():
            assert item.opened is not None
            item.opened.close()
        return False

    def _open(self, wanted: Wanted) -> Item | None:
        """An output in the encoder's pool, if it is there."""
        name = wanted.source.offer.pool
        kept = self._doors.find(name.door)
        pool = kept or open_named(name)
        opened = Opened.open(pool, wanted.place, wanted.shape.size) if pool is not None else None
        if kept is None:
            if pool is not None:
                pool.give_up()  # it is for this output only
            self._doors.knock(name.door)
        if opened is not None:
            item = Item(wanted.shape, wanted.place, wanted.nonce, opened)
            try:
                verify(opened.pool.view, item, opened.pool.checksums)
                item.ready = True
                return item
            except errors.Error:
                opened.close()
        return None

    def _begin_reading(self, source: _Source, item: Item) -> None:
        assert item.opened is not None
        source.reading += 1
        item.opened.on_close(partial(self._has_read, source))

    def _has_read(self, source: _Source) -> None:
        """The request does not use an output of the encoder's pool any more. After the last one the encoder is told, once this step is over."""
        source.reading -= 1
        if not source.reading and source.hold is None:
            self._read.append(source)

    def _tell(self) -> None:
        """Tells encoders by their rights that nothing is read any more, and counts what was read in place: no first token waits for that."""
        told, self._read = self._read, []
        for source in told:
            if source.shapes:
                n = len(source.shapes)
                self.stats.loaded(sum(shape.size for shape in source.shapes), n, n, sum(shape.rows for shape in source.shapes), source.seconds)
                source.shapes = []
            if source.hold is not None or source.reading:
                continue
            with contextlib.suppress(errors.Error):  # otherwise the right will expire
                source.hold = self.acquire(source)
                source.hold.release()

    def _again(self, wanted: Wanted) -> Item | None:
        found = super()._again(wanted)
        if found is None and self.in_place and wanted.source.offer.pool is not None:
            found = self._open(wanted)
            if found is not None:
                self._begin_reading(wanted.source, found)
        return found

    # --- offers -------------------------------------------------------------------------------------

    def _shape(self, identifier: str, rows: int, offer: Offer, offered: Offered, salt: str | None) -> Shape:
        """What an offered output has to be. errors.Unsupported: this engine cannot use it."""
        if offer.model != self._model:
            for name, value in self._model.items():
                if offer.model.get(name) != value:
                    raise errors.Unsupported(f"the engines differ: {name} is {value!r} here, {offer.model.get(name)!r:.80} at the encoder",
                                             fix="Start both engines with the same model and dtype.")
        if offered.rows != rows:
            raise errors.Unsupported(f"the request has {rows} embeddings for this item, the encoder's output has {offered.rows}",
                                     fix="Send both engines the same image with the same --mm-processor-kwargs.")
        if offered.width not in self._widths:
            raise errors.Unsupported(f"an embedding has {' or '.join(map(str, sorted(self._widths)))} numbers here, and the encoder's "
                                     f"output has rows of {offered.width}", fix="Start both engines with the same model.")
        return Shape(digest(identifier, salt), rows, offered.width, rows * offered.width * self._itemsize)

    def finished(self, request: Request) -> dict[str, Any] | None:
        if request.mm_features and request.request_id not in self._wants and request.ec_transfer_params:
            self._first_sight(request, 0)  # it ended before the scheduler looked at it: E shall get its room back
        return super().finished(request)

    def _path_error(self, source: Any) -> errors.Error | None:
        return self._options.path_error(source.remote.transport, "the encoder")

    def _loads_of(self, want: Want, items: Mapping[str, Item]) -> list[Load]:
        """One for each right."""
        loads: dict[int, Load] = {}
        for identifier, item in items.items():
            wanted = want.missing[identifier]
            source, offer = wanted.source, wanted.source.offer
            load = loads.get(id(source))
            if load is None:
                load = loads[id(source)] = Load(source.hold or Early(source.pool), want.request.request_id, want.ends)
                self._sources[load] = source
            if item.shape.window:
                load.add_pieces(item, Pieces(item, offer.items[identifier], offer.device, self._memory))
            else:
                load.add(item, self._memory.operation(item, offer.device, wanted.place))
        return list(loads.values())

    def _end(self, load: Loading, now: float) -> None:
        source, error = self._sources.pop(load), load.error_of(load.items[0])
        hold, remote, exports = source.hold, source.remote, source.offer.exports
        if remote is not None and (self._pools.is_stranger(exports) or self._pools.is_silent(exports, now)):
            introduce(remote)
        super()._end(load, now)
        source.early = False
        if hold is None and error is not None and not isinstance(error, _NO_EXPORT):
            source.used = True  # the right is of no more use
            self._read.append(source)
        elif hold is None and not all(item.ready for item in load.items):
            source.pool = None  # the right may be good

    def has_loaded(self, source: _Source) -> None:
        """A request has the outputs of an offer without its right, which is used up when the step that uses them is over."""
        self._loaded.append((self._step, source))

    def build(self, output: SchedulerOutput, metadata: StepMetadata) -> None:
        if not output.num_scheduled_tokens:
            self._steps_are_over(metadata.number, metadata.number)  # those before it may be computed now, and have tokens
        super().build(output, metadata)

    def _leave_copied(self, last: int) -> None:
        super()._leave_copied(last)
        if self._loaded:
            self._steps_are_over(0, last)

    def _steps_are_over(self, first: int, last: int) -> None:
        """Encoders are told of what was loaded without their rights for these steps."""
        self._read += [source for step, source in self._loaded if first <= step <= last]
        self._loaded = [one for one in self._loaded if not first <= one[0] <= last]

    def _poll(self, rest: float, awaited: bool) -> None:
        tells = bool(self._read) and self._current is None  # otherwise a request waits for its outputs before this step is scheduled
        if tells:
            self._tell()
            if self._rest.allowed and not self._computed:
                rest = max(rest, ANSWER)
        if tells or awaited or self._grants.busy or not self._engine_sends:
            self._grants.poll(rest, awaited or tells)

    def _on_event(self, event: Any) -> None:
        if isinstance(event, Disconnected):
            self._pools.lost()
        super()._on_event(event)

    def close(self) -> None:
        super().close()
        self._doors.close()

    def _asks(self) -> bool:
        return self._grants.busy or bool(self._read or self._loaded)
