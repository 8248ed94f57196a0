# SPDX-License-Identifier: Apache-2.0
"""The scheduler side of an engine that uses outputs which encoders offer: it acquires their rights, and pulls the outputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ... import errors
from ...client import Client
from ...handles import Region
from ...memory import Memory
from ..grants import Grants, Hold
from ..options import Options
from ..rest import Rest
from .header import digest
from .load import Load
from .pool import Item, Pool, Shape
from .protocol import Offer, Offered, offered_tokens, read_offers
from .reader import Reader, Want, Wanted
from .secret import Secret

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from vllm.v1.request import Request

__all__ = ["ConsumerSide"]


class _Source:
    """An offer of a request. used: its right belongs to a load now, or was released."""

    __slots__ = ("hold", "offer", "used")

    def __init__(self, offer: Offer, hold: Hold) -> None:
        self.offer, self.hold, self.used = offer, hold, False

    @property
    def spent(self) -> bool:
        return self.used

    @property
    def lost(self) -> errors.Error | None:
        return self.hold.lost

    @property
    def ready(self) -> bool:
        return self.hold.remote is not None

    def keep(self, now: float) -> None:
        self.hold.keep(now)

    def release(self) -> None:
        if not self.used:
            self.used = True
            self.hold.release()


class ConsumerSide(Reader):
    """One for each engine. widths: numbers that an embedding may have. itemsize: bytes of each. secret: that encoders have to prove;
    None: every offer is taken."""

    def __init__(self, options: Options, client: Client, region: Region, memory: Memory, pool: Pool, model: dict[str, str],
                 rest: Rest, *, widths: Collection[int], itemsize: int, can_encode: Callable[[Any], bool],
                 secret: Secret | None) -> None:
        super().__init__(client, region, memory, pool, rest, deadline=options.deadline, can_encode=can_encode)
        self._options, self._model, self._widths, self._itemsize, self._secret = options, model, widths, itemsize, secret
        self._grants = Grants(client)
        self._grants.on_event = self._on_event

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
        hold = self._trust(offer, want) or self._acquire(offer.token, want)
        source = None
        if isinstance(hold, Hold):
            source = _Source(offer, hold)
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
            want.missing[identifier] = want.wanted[identifier] = Wanted(shape, source, offered.offset, offered.nonce)

    def _shape(self, identifier: str, rows: int, offer: Offer, offered: Offered, salt: str | None) -> Shape:
        """What an offered output has to be. errors.Unsupported, errors.TooLarge: this engine cannot use it."""
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
        self._fit(shape)
        return shape

    def finished(self, request: Request) -> dict[str, Any] | None:
        if request.request_id not in self._wants and request.ec_transfer_params:
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
            load.add(item, wanted.place)
        return list(loads.values())

    def _poll(self, rest: float, awaited: bool) -> None:
        self._grants.poll(rest, awaited)

    def _asks(self) -> bool:
        return self._grants.busy
