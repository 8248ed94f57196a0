# SPDX-License-Identifier: Apache-2.0
"""What crosses process borders: ec_transfer_params between engines, and metadata between scheduler and workers.

A router copies ec_transfer_params from E's answer into PD's request. If several engines have encoded parts of a request, it
joins their lists "offers". Each offer is a text, because vLLM copies the parameters several times on their way, part by part. It has two lines
of JSON: what all offers of the encoder have in common, which is decoded once, and the rest.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

from ... import errors
from .allocator import GRANULE
from .header import DIGEST, NONCE
from .pool import Item
from .pool_memory import DEVICES

__all__ = ["VERSION", "Offer", "Offered", "Place", "PoolName", "StepMetadata", "WorkerMetadata", "consumers", "offer_params", "offered_tokens", "read_offers"]

VERSION = 6
_OFFERS_MAX = 64
_ITEMS_MAX = 4096
_EXPORTS_MAX = 64
_OFFER_TEXT = 8 << 10  # characters of an offer without its outputs: tokens for sixteen agents (pool_rights.py), and 2 KiB for the rest
_ITEM_TEXT = 384  # characters of an output: seven fields with at most 180, and its identifier
_TEXTS_MAX = _OFFERS_MAX * _OFFER_TEXT + _ITEMS_MAX * _ITEM_TEXT  # 2 MiB, because the scheduler's thread decodes them
_CONSUMERS_MAX = 1024
_ORIGINS = 256  # first lines that are kept decoded
_MOST = (1 << 40) - 1
_decode, _encode = json.JSONDecoder().raw_decode, json.JSONEncoder(separators=(",", ":")).encode
_DOOR, _DIGITS = 64, "0123456789abcdef"  # as door.py makes them
_FIX = "Let the router copy ec_transfer_params from E's answer into PD's request unchanged."


class Place(NamedTuple):
    """Where an output lies in an engine's own pool, for its workers; or, with a path, in the pool of another engine, which workers can keep
    if it has a door (door.py), or in a file of its own. window: of an output that moves in pieces (pieces.py)."""

    offset: int
    rows: int
    width: int
    size: int
    nonce: bytes
    digest: bytes
    path: str = ""
    door: str = ""
    window: int = 0

    @classmethod
    def of(cls, item: Item) -> Place:
        shape, opened = item.shape, item.opened
        if item.assembled is not None and item.assembled.path:
            return cls(0, shape.rows, shape.width, shape.size, item.nonce, shape.digest, item.assembled.path)
        if opened is None:
            return cls(item.offset, shape.rows, shape.width, shape.size, item.nonce, shape.digest, window=shape.window)
        return cls(item.offset, shape.rows, shape.width, shape.size, item.nonce, shape.digest, opened.path, opened.pool.door)


@dataclass
class StepMetadata:
    """From the scheduler side to the workers, for one step.

    number: of the step. pool: by which the workers find the pool (PoolMemory.name). saves: outputs of this step that are to be stored, by identifier;
    more than one if tenants have the same image. loads: outputs that this step uses, by identifier. pieces: of outputs that the worker keeps, to be
    copied into their windows, with the number of each. done: nonces of such outputs that are not needed any more.
    """

    number: int
    pool: tuple[str, int]
    saves: dict[str, list[Place]] = field(default_factory=dict)
    loads: dict[str, Place] = field(default_factory=dict)
    pieces: list[tuple[Place, int]] = field(default_factory=list)
    done: list[bytes] = field(default_factory=list)

    def __reduce__(self) -> Any:
        """Each step pickles it, which takes less time for what pickle knows."""
        if self.pieces or self.done:
            return StepMetadata, (self.number, self.pool, self.saves, self.loads, self.pieces, self.done)
        saves = {name: [tuple(place) for place in places] for name, places in self.saves.items()}
        return _step_metadata, (self.number, self.pool, saves, {name: tuple(place) for name, place in self.loads.items()})


def _step_metadata(number: int, pool: tuple[str, int], saves: dict[str, list[Any]], loads: dict[str, Any]) -> StepMetadata:
    return StepMetadata(number, pool, {name: [Place(*place) for place in places] for name, places in saves.items()},
                        {name: Place(*place) for name, place in loads.items()})


@dataclass
class WorkerMetadata:
    """From the workers to the scheduler side. step: the last one whose loads have been copied out of the pool."""

    step: int

    def __reduce__(self) -> Any:
        """As StepMetadata.__reduce__()."""
        return WorkerMetadata, (self.step,)

    def aggregate(self, other: WorkerMetadata) -> WorkerMetadata:
        """All ranks report the same step."""
        return WorkerMetadata(min(self.step, other.step))


class Offered(NamedTuple):
    """One output of an offer. offset: of its place in E's pool. digest, number: of its identifier, and of its bytes. piece: bytes in each piece
    of an output that moves in pieces (pieces.py)."""

    offset: int
    rows: int
    width: int
    nonce: bytes
    digest: bytes
    number: int
    piece: int = 0


class PoolName(NamedTuple):
    """By which other processes of the host find an engine's pool: descriptor `fd` of a process, and a door (door.py); empty: it has none."""

    process: int
    fd: int
    door: str = ""


class Offer(NamedTuple):
    """Outputs of one engine. token: the right to read them. model: fields that both engines must have in common.

    proof: that the engine has the secret of the reading one (secret.py); empty: it has none. device: of its pool, which says whether
    headers are in the pool, and how checksums are computed. pool: for engines on the same host, which may read in place; None: they may not.
    exports: tokens of the pool, by the agent that may import each (pool_rights.py).
    """

    engine_id: str
    token: str
    model: dict[str, str]
    items: dict[str, Offered]  # by identifier
    proof: str = ""
    device: str = "cpu"
    pool: PoolName | None = None
    exports: Mapping[str, str] = {}


class _Origin(NamedTuple):
    """The fields of an Offer that all offers of an encoder have in common, until its exports change."""

    engine_id: str
    model: dict[str, str]
    device: str
    pool: PoolName | None
    exports: Mapping[str, str]


def offer_params(offers: Sequence[Offer], segment: str) -> dict[str, Any]:
    """ec_transfer_params of E's answer."""
    return {"dray": {"version": VERSION, "offers": [_text(offer, segment) for offer in offers]}}


def read_offers(params: Mapping[str, Any]) -> list[Offer]:
    """The offers of a request at PD. errors.Invalid, errors.Version: what is wrong with them."""
    dray = params.get("dray")
    if not isinstance(dray, dict):
        raise errors.Invalid(f"ec_transfer_params have no key 'dray', but {sorted(map(str, params))[:8]}",
                             fix="Run DrayECConnector at both engines. " + _FIX)
    if dray.get("version") != VERSION:
        raise errors.Version(f"the other engine's ec_transfer_params have version {dray.get('version')!r:.40}, this one reads {VERSION}",
                             fix="Use the same version of dray-client at both engines.")
    try:
        texts = dray["offers"]
        if not isinstance(texts, list) or len(texts) > _OFFERS_MAX:
            raise ValueError(f"a list of up to {_OFFERS_MAX} offers is expected")
        if sum(map(len, texts)) > _TEXTS_MAX:
            raise ValueError(f"offers with up to {_TEXTS_MAX} characters together are expected")
        forms = [_lines(text) for text in texts]
        if sum(len(form["items"]) for _, form in forms) > _ITEMS_MAX:
            raise ValueError(f"offers with up to {_ITEMS_MAX} outputs together are expected")
        return [_offer(origin, form) for origin, form in forms]
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as e:
        raise errors.Invalid(f"ec_transfer_params are damaged ({e!r:.200})", fix=_FIX) from None


def offered_tokens(params: Mapping[str, Any]) -> list[str]:
    """The rights of offers, even if the rest of them was refused. Version 4 has mappings in place of texts, and texts of version 5 have one line."""
    dray = params.get("dray")
    offers = dray.get("offers") if isinstance(dray, Mapping) else None
    offers = offers[:_OFFERS_MAX] if isinstance(offers, list) else []
    if sum(len(offer) for offer in offers if isinstance(offer, str)) > _TEXTS_MAX:
        return []
    tokens = []
    for offer in offers:
        with contextlib.suppress(KeyError, TypeError, ValueError, AttributeError, RecursionError):
            form = offer if isinstance(offer, Mapping) else _lines(offer)[1]
            tokens.append(form["token"])
    return [token for token in tokens if isinstance(token, str)]


def consumers(params: Mapping[str, Any] | None) -> int:
    """How many engines will read the outputs of a request at E (ec_transfer_params {"consumers": n}; 1 if it is not said)."""
    wanted = params.get("consumers", 1) if isinstance(params, dict) else 1
    return wanted if type(wanted) is int and 0 < wanted <= _CONSUMERS_MAX else 1


def _text(offer: Offer, segment: str) -> str:
    origin: dict[str, Any] = {"engine_id": offer.engine_id, "segment": segment, "model": offer.model, "device": offer.device}
    if offer.pool is not None:
        origin["pool"] = [offer.pool.process, offer.pool.fd, offer.pool.door]
    if offer.exports:
        origin["exports"] = dict(offer.exports)
    items = {name: [one.offset, one.rows, one.width, one.nonce.hex(), one.digest.hex(), one.number, one.piece] for name, one in offer.items.items()}
    return _encode(origin) + "\n" + _encode({"token": offer.token, "proof": offer.proof, "items": items})


def _lines(text: str) -> tuple[str, Any]:
    """The first line of an offer, and the content of the second one. TypeError, ValueError, AttributeError, RecursionError."""
    origin, _, rest = text.rpartition("\n")
    return origin, _form(rest)


def _form(text: str) -> Any:
    """TypeError, ValueError, RecursionError."""
    form, end = _decode(text)  # no white space is around it, which json.loads() would look for
    if end != len(text):
        raise ValueError(f"{text[end:]!r:.40} behind an offer")
    return form


def _offer(first: str, form: Mapping[str, Any]) -> Offer:
    if len(first) > _OFFER_TEXT:  # because it is kept
        raise ValueError(f"an offer with {len(first)} characters without its outputs")
    origin, token, proof = _origin(first), form["token"], form["proof"]
    if not type(token) is type(proof) is str:
        raise ValueError(f"{token!r:.40} or {proof!r:.40} is not a text")
    return Offer(origin.engine_id, token, origin.model, {name: _offered(*one) for name, one in form["items"].items()}, proof,
                 origin.device, origin.pool, origin.exports)


@lru_cache(_ORIGINS)
def _origin(text: str) -> _Origin:
    form = _form(text)
    model, exports = dict(form["model"].items()), dict(form.get("exports", {}).items())
    origin = _Origin(form["engine_id"], model, form["device"], _pool(*form["pool"]) if "pool" in form else None, exports)
    if origin.device not in DEVICES:
        raise ValueError(f"a pool on the device {origin.device!r:.40}")
    if len(exports) > _EXPORTS_MAX:
        raise ValueError(f"exports to {len(exports)} agents")
    for value in (origin.engine_id, *model.values(), *exports.values()):  # keys are texts in JSON
        if type(value) is not str:
            raise ValueError(f"{value!r:.40} is not a text")
    return origin


def _pool(process: Any, fd: Any, door: Any = "") -> PoolName:
    if not type(process) is type(fd) is int or not (0 <= process < 1 << 31 and 0 <= fd < 1 << 31):
        raise ValueError(f"descriptor {fd!r:.20} of process {process!r:.20}")
    if type(door) is not str or door and (len(door) != _DOOR or door.strip(_DIGITS)):
        raise ValueError("a door is not one")
    return PoolName(process, fd, door)


def _offered(offset: Any, rows: Any, width: Any, nonce: Any, digest: Any, number: Any, piece: Any) -> Offered:
    if not type(offset) is type(rows) is type(width) is type(number) is type(piece) is int or \
            not (0 <= offset <= _MOST and 0 < rows <= _MOST and 0 < width <= _MOST and -1 << 63 <= number < 1 << 63 and 0 <= piece <= _MOST) or \
            offset % GRANULE or piece % GRANULE:
        raise ValueError(f"{offset!r:.20}, {rows!r:.20} rows of {width!r:.20}, checksum {number!r:.20}, pieces of {piece!r:.20}")
    raw, key = bytes.fromhex(nonce), bytes.fromhex(digest)
    if len(raw) != NONCE or len(key) != DIGEST:
        raise ValueError(f"a nonce of {len(raw)} bytes, a digest of {len(key)}")
    return Offered(offset, rows, width, raw, key, number, piece)
