# SPDX-License-Identifier: Apache-2.0
"""The scheduler side of an engine that uses outputs which encoders offer: it acquires their rights, and pulls the outputs."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

from ... import errors
from ...client import Client
from ...handles import Region
from ..grants import Grants, Hold
from ..options import Options
from ..rest import Rest
from .door import Doors
from .header import digest, verify
from .inplace import Opened, open_named
from .load import Load
from .pieces import Pieces, consumer_window
from .pool import Item, Pool, Shape
from .pool_memory import PoolMemory, Seal
from .protocol import Offer, Offered, offered_tokens, read_offers
from .reader import Reader, Want, Wanted
from .secret import Secret

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from vllm.v1.request import Request

__all__ = ["ConsumerSide"]

_DELIVERY = 0.001  # seconds that the engine gets to deliver the tokens of a request, before its encoder is told that its outputs were read


class _Source:
    """An offer of a request. used: its right belongs to a load now, or was released, or is not needed, because its outputs are
    read in place. hold: the right; None: it was not asked for. reading: outputs that are read in place. shapes: of all of them, which
    were opened in `seconds`."""

    __slots__ = ("hold", "offer", "reading", "request_id", "seconds", "shapes", "used")

    def __init__(self, offer: Offer, request_id: str, hold: Hold | None = None) -> None:
        self.offer, self.request_id, self.hold, self.used, self.reading = offer, request_id, hold, hold is None, 0
        self.shapes: list[Shape] = []
        self.seconds = 0.0

    @property
    def spent(self) -> bool:
        return self.used

    @property
    def lost(self) -> errors.Error | None:
        return self.hold.lost if self.hold is not None else None

    @property
    def ready(self) -> bool:
        return self.hold is not None and self.hold.remote is not None

    def keep(self, now: float) -> None:
        if self.hold is not None:
            self.hold.keep(now)

    def release(self) -> None:
        if not self.used and self.hold is not None:
            self.used = True
            self.hold.release()


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
        self._read: list[_Source] = []  # whose encoders are to be told that nothing is read in place any more

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
                hold = self._acquire(token, want)
                if isinstance(hold, Hold):
                    hold.release()
            for identifier in needed:
                self._give_up(want, identifier, e)
            return []

    def _acquire(self, token: str, want: Want) -> Hold | errors.Error:
        try:
            return self._grants.acquire(token, want.request.request_id)
        except errors.Error as e:
            return e

    def _trust(self, offer: Offer, want: Want) -> errors.Error | None:
        """Why the offer is not to be trusted. An address that it names is not even asked then."""
        if self._secret is not None:
            try:
                self._secret.check(offer, want.request.cache_salt)
            except errors.Error as e:
                return e
        return None

    def _take_offer(self, want: Want, offer: Offer, needed: Mapping[str, int]) -> None:
        hold: Hold | errors.Error | None = self._trust(offer, want)
        if hold is None and self._read_in_place(want, offer, needed):
            return
        hold = hold or self._acquire(offer.token, want)
        source = None
        if isinstance(hold, Hold):
            source = _Source(offer, want.request.request_id, hold)
            want.sources.append(source)
        for identifier, offered in offer.items.items():
            if identifier not in needed or identifier in want.missing or want.refused:
                continue
            try:
                if source is None:
                    assert isinstance(hold, errors.Error)
                    raise hold
                shape = self._shape(identifier, needed[identifier], offer, offered, want.request.cache_salt)
            except errors.Error as e:
                self._give_up(want, identifier, e)
                continue
            want.missing[identifier] = want.wanted[identifier] = Wanted(
                shape, source, offered.offset, offered.nonce, Seal(offer.device, offered.digest, offered.number))

    # --- in place -----------------------------------------------------------------------------------

    def _read_in_place(self, want: Want, offer: Offer, needed: Mapping[str, int]) -> bool:
        """Opens all outputs of an offer that the request needs, if the encoder's pool is on this host and none of them is here."""
        if offer.pool is None or not self.in_place or want.refused:
            return False
        began = time.monotonic()
        source, items = _Source(offer, want.request.request_id), {}
        for identifier, offered in offer.items.items():
            if identifier not in needed or identifier in want.missing or identifier in want.items:
                continue
            try:
                shape = self._shape(identifier, needed[identifier], offer, offered, want.request.cache_salt)
            except errors.Error:
                break
            if offered.piece:
                break
            shape = shape._replace(window=0)  # the own pool is not needed
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
        """Tells encoders by their rights that nothing is read in place any more, and counts what was read: no first token waits for that."""
        told, self._read = self._read, []
        for source in told:
            if source.shapes:
                n = len(source.shapes)
                self.stats.loaded(sum(shape.size for shape in source.shapes), n, n, sum(shape.rows for shape in source.shapes), source.seconds)
                source.shapes = []
            if source.hold is not None or source.reading:
                continue
            try:
                source.hold = self._grants.acquire(source.offer.token, source.request_id)
                source.hold.release()
            except errors.Error:
                pass  # the right will expire

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
        shape = Shape(digest(identifier, salt), rows, offered.width, rows * offered.width * self._itemsize)
        in_pieces = offered.piece or self._pool.room(shape) > self._pool.size
        return shape._replace(window=consumer_window(self._pool.size)) if in_pieces else shape

    def finished(self, request: Request) -> dict[str, Any] | None:
        if request.mm_features and request.request_id not in self._wants and request.ec_transfer_params:
            self._first_sight(request, 0)  # it ended before the scheduler looked at it: E shall get its room back
        return super().finished(request)

    def _path_error(self, source: Any) -> errors.Error | None:
        return self._options.path_error(source.hold.remote.transport, "the encoder")

    def _loads_of(self, want: Want, items: Mapping[str, Item]) -> list[Load]:
        """One for each right."""
        loads: dict[int, Load] = {}
        for identifier, item in items.items():
            wanted = want.missing[identifier]
            load = loads.setdefault(id(wanted.source), Load(wanted.source.hold, want.request.request_id, want.ends))
            offer = wanted.source.offer
            if item.shape.window:
                load.add_pieces(item, Pieces(item, offer.items[identifier], offer.device, self._memory))
            else:
                load.add(item, self._memory.operation(item, offer.device, wanted.place))
        return list(loads.values())

    def _poll(self, rest: float, awaited: bool) -> None:
        tells = bool(self._read) and self._current is None  # otherwise a request waits for its outputs before this step is scheduled
        if tells and self._rest.allowed and not self._computed:
            rest = max(rest, _DELIVERY)
        self._grants.poll(rest, awaited or tells)
        if tells:
            self._tell()

    def close(self) -> None:
        super().close()
        self._doors.close()

    def _asks(self) -> bool:
        return self._grants.busy or bool(self._read)
