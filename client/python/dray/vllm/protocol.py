# SPDX-License-Identifier: Apache-2.0
"""What crosses process borders: kv_transfer_params between engines, and metadata between scheduler and workers.

kv_transfer_params follow the convention of vLLM's own connectors, so that a router copies the dictionary
from P's answer into D's request. What only dray understands is below the key "dray".
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from .. import errors
from .layout import EngineLayout, Group, RankLayout
from .options import DEFAULT_NAME
from .slots import Blocks

__all__ = ["DELIVERED", "Arrival", "Load", "Loaded", "Offer", "Push", "PushTarget", "RankInfo", "StepMetadata", "Target", "WorkerMetadata",
           "offer_params", "offered_tokens", "push_params", "read_offer", "read_target", "wants_decode", "wants_prefill"]

VERSION = 1
DELIVERED = ("FINISHED_LENGTH_CAPPED", "FINISHED_STOPPED", "FINISHED_REPETITION")  # states in which P's blocks are complete
_ARRIVAL = struct.Struct("<IIII?Q")
_FIX = "Let the router copy kv_transfer_params from P's answer into D's request unchanged."


@dataclass(frozen=True)
class RankInfo:
    """A worker rank, for the scheduler side of the connector `name`. agent_region: the agent's number of the rank's region.

    slots: if blocks leave through a bounce buffer, how many it has for them; None: they are read in place.
    """

    layout: RankLayout
    groups: tuple[Group, ...]
    model: dict[str, str]
    agent_id: bytes
    incarnation: int
    agent_region: int
    name: str = DEFAULT_NAME
    slots: int | None = None


@dataclass(frozen=True)
class Offer:
    """A request's blocks at P, as D reads them from the request. tokens: a right for each rank of P."""

    request_id: str
    engine_id: str
    layout: EngineLayout
    blocks: tuple[tuple[int, ...], ...]
    num_tokens: int
    tokens: tuple[str, ...]


@dataclass(frozen=True)
class Load:
    """For a worker: read tokens [first, end) of a request. remotes: the agent's numbers, by rank of P.

    Blocks are those of the whole request, for each group. seconds: until the load has to have ended.
    """

    request_id: str
    layout: EngineLayout
    local_blocks: tuple[tuple[int, ...], ...]
    remote_blocks: tuple[tuple[int, ...], ...]
    first: int
    end: int
    remotes: dict[int, int]
    seconds: float


@dataclass(frozen=True)
class PushTarget:
    """For a worker of P: where the blocks of a request go. remotes: the agent's numbers, by rank of D.

    blocks: D's blocks of the whole request, for each group. tag: of the notifications. pairs: how many
    pairs of a rank of P and a rank of D there are. seconds: until D gives up.
    """

    request_id: str
    local: EngineLayout
    remote: EngineLayout
    blocks: tuple[tuple[int, ...], ...]
    remotes: dict[int, int]
    tag: int
    pairs: int
    seconds: float


@dataclass(frozen=True)
class Push:
    """For a worker of P: write tokens [first, end) of a request, which are complete after this step.

    key, number: of the request's transfer, and of this chunk in it. blocks: P's, of the whole request,
    for each group. target: with the first chunk. last: D may use its blocks after this chunk.
    """

    key: int
    number: int
    blocks: tuple[tuple[int, ...], ...]
    first: int
    end: int
    last: bool
    target: PushTarget | None


class Arrival(NamedTuple):
    """A notification of P to D: bytes of one rank of P are in place at one rank of D.

    pairs: as in PushTarget. number: of the notification, in those of this pair. last: no other one
    follows for this pair. size: bytes that came with it.
    """

    from_rank: int
    to_rank: int
    pairs: int
    number: int
    last: bool
    size: int

    def pack(self) -> bytes:
        return _ARRIVAL.pack(*self)

    @classmethod
    def unpack(cls, data: bytes) -> Arrival | None:
        """None: it is no such notification."""
        return cls(*_ARRIVAL.unpack(data)) if len(data) == _ARRIVAL.size else None


@dataclass(frozen=True)
class Loaded:
    """A load that P has written. bytes: by rank of D. seconds: from the announcement to the end."""

    bytes: dict[int, int]
    tokens: int
    seconds: float


@dataclass(frozen=True)
class Target:
    """Where D announces its blocks: a transfer of P. agent: id of P's agent; None if it is not known yet."""

    transfer_id: str
    engine_id: str
    segment: str
    agent: bytes | None


@dataclass
class StepMetadata:
    """From the scheduler side to the workers, for one step.

    loads: to be started. stops: loads to be cancelled. failed: requests whose load cannot be started,
    with the reason. dropped: requests that ended before their load was started. sent: requests whose
    blocks nobody reads any more. saves: blocks that this step completes, and the slots of the bounce buffer
    that they are copied into, by request. can_lend: a failed load may be reported although the agent can still
    write its blocks, because the scheduler side keeps them allocated. loaded: requests of D whose blocks
    were written by P. pushes: chunks of P, to be written when they are computed. push_stops: keys of
    transfers whose chunks are to be cancelled. rest: seconds that the workers may wait for the end of a transfer.
    """

    loads: list[Load] = field(default_factory=list)
    stops: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    dropped: list[str] = field(default_factory=list)
    sent: list[str] = field(default_factory=list)
    saves: dict[str, tuple[Blocks, Blocks]] = field(default_factory=dict)
    can_lend: bool = False
    loaded: dict[str, Loaded] = field(default_factory=dict)
    pushes: list[Push] = field(default_factory=list)
    push_stops: list[int] = field(default_factory=list)
    rest: float = 0.0


@dataclass
class WorkerMetadata:
    """From the workers to the scheduler side. ranks: what changed, by rank.

    lent: failed loads whose blocks the agent may still write, with the number of ranks; returned: those
    that are free now. pushed: key and number of chunks that the agent does not read any more, with the
    number of ranks. push_errors: the first error of a transfer, by its key.
    """

    ranks: dict[int, RankInfo] = field(default_factory=dict)
    lent: dict[str, int] = field(default_factory=dict)
    returned: dict[str, int] = field(default_factory=dict)
    pushed: dict[tuple[int, int], int] = field(default_factory=dict)
    push_errors: dict[int, str] = field(default_factory=dict)

    def aggregate(self, other: WorkerMetadata) -> WorkerMetadata:
        """Joins what two workers report for the same step."""
        self.ranks.update(other.ranks)
        _add(self.lent, other.lent)
        _add(self.returned, other.returned)
        _add(self.pushed, other.pushed)
        self.push_errors = {**other.push_errors, **self.push_errors}
        return self

    def __bool__(self) -> bool:
        return bool(self.ranks or self.lent or self.returned or self.pushed or self.push_errors)


def _add(mine: dict[Any, int], theirs: Mapping[Any, int]) -> None:
    for key, n in theirs.items():
        mine[key] = mine.get(key, 0) + n


def wants_decode(params: Mapping[str, Any] | None) -> bool:
    """True for a request at P, whose blocks another engine will read."""
    return params is not None and bool(params.get("do_remote_decode")) and not params.get("do_remote_prefill")


def wants_prefill(params: Mapping[str, Any] | None) -> bool:
    """True for a request at D, whose blocks another engine has computed."""
    return params is not None and bool(params.get("do_remote_prefill"))


def offer_params(offer: Offer, segment: str, tp_size: int) -> dict[str, Any]:
    """kv_transfer_params of P's answer."""
    host, _, port = segment.rpartition(":")
    return {
        "do_remote_prefill": True, "do_remote_decode": False,
        "remote_engine_id": offer.engine_id, "remote_request_id": offer.request_id,
        "remote_host": host, "remote_port": int(port or 0), "tp_size": tp_size,
        "remote_block_ids": [list(blocks) for blocks in offer.blocks],
        "dray": {"version": VERSION, "tokens": list(offer.tokens), "num_tokens": offer.num_tokens,
                 "layout": offer.layout.to_json()},
    }


def read_offer(params: Mapping[str, Any],
               check: Callable[[Any], tuple[EngineLayout, tuple[int, ...]]]) -> tuple[Offer, tuple[int, ...]]:
    """(offer, ranks of P to read from) of kv_transfer_params of a request at D.

    check: for the layout. errors.Invalid, errors.Version, errors.Unsupported: what is wrong with them.
    """
    dray = params.get("dray")
    if not isinstance(dray, Mapping):
        raise errors.Invalid(f"kv_transfer_params with do_remote_prefill have no key 'dray', but {sorted(params)}",
                             fix="Run DrayConnector at both engines. " + _FIX)
    if "agent" in dray:
        raise _other_mode("pull", "push")
    if dray.get("version") != VERSION:
        raise errors.Version(f"the other engine's kv_transfer_params have version {dray.get('version')!r}, "
                             f"this one reads {VERSION}",
                             fix="Use the same version of dray-client at both engines.")
    layout, ranks = check(dray.get("layout"))
    try:
        blocks = tuple(_blocks(group) for group in params["remote_block_ids"])
        tokens, num_tokens = tuple(offered_tokens(params)), dray["num_tokens"]
        if type(num_tokens) is not int or num_tokens < 1 or len(blocks) != len(layout.groups) \
                or not len(tokens) == len(dray["tokens"]) == len(layout.ranks):
            raise ValueError(f"{num_tokens!r} tokens, {len(blocks)} groups, {len(tokens)} rights")
    except (KeyError, TypeError, ValueError) as e:
        raise errors.Invalid(f"kv_transfer_params are damaged ({e!r})", fix=_FIX) from None
    return Offer(str(params.get("remote_request_id", "")), str(params.get("remote_engine_id", "")), layout, blocks, num_tokens,
                 tokens), ranks


def push_params(engine_id: str, request_id: str, transfer_id: str, segment: str, agent: bytes, tp_size: int) -> dict[str, Any]:
    """kv_transfer_params of P's answer in mode 'push': where D announces its blocks."""
    host, _, port = segment.rpartition(":")
    return {
        "do_remote_prefill": True, "do_remote_decode": False, "transfer_id": transfer_id,
        "remote_engine_id": engine_id, "remote_request_id": request_id, "remote_host": host, "remote_port": int(port or 0),
        "tp_size": tp_size, "dray": {"version": VERSION, "agent": agent.hex()},
    }


def read_target(params: Mapping[str, Any]) -> Target:
    """Where D announces its blocks, by kv_transfer_params of a request at D in mode 'push'.

    They come from P's answer, or from a router that started both engines. errors.Invalid,
    errors.Unsupported: what is wrong with them.
    """
    if offered_tokens(params):
        raise _other_mode("push", "pull")
    dray = params.get("dray") or {}
    try:
        texts = [params[name] for name in ("transfer_id", "remote_engine_id", "remote_host")]
        port, agent = params["remote_port"], dray.get("agent")
        if not all(isinstance(text, str) and text for text in texts) or not 0 < int(port) < 65536:
            raise ValueError(f"{texts!r:.200}, port {port!r:.20}")
        transfer_id, engine_id, host = texts
        if ":" in host and not host.startswith("["):
            host = f"[{host}]"
        return Target(transfer_id, engine_id, f"{host}:{int(port)}", bytes.fromhex(agent) if agent else None)
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as e:
        raise errors.Invalid(
            f"kv_transfer_params with do_remote_prefill do not say where blocks are announced ({e!r})",
            fix="Pass transfer_id, remote_engine_id, remote_host and remote_port, or copy kv_transfer_params from P's answer.",
        ) from None


def _other_mode(here: str, there: str) -> errors.Unsupported:
    return errors.Unsupported(f"option 'mode' is {here!r} here, {there!r} at the other engine",
                              fix="Set the option 'mode' to the same value at both engines.")


def offered_tokens(params: Mapping[str, Any]) -> list[str]:
    """The rights of an offer, even if the rest of it was refused."""
    dray = params.get("dray")
    tokens = dray.get("tokens") if isinstance(dray, Mapping) else None
    return [token for token in tokens if isinstance(token, str)] if isinstance(tokens, list) else []


def _blocks(group: Sequence[Any]) -> tuple[int, ...]:
    if isinstance(group, (str, bytes)) or not all(type(block) is int and 0 <= block < 1 << 40 for block in group):
        raise ValueError("a list of block numbers is expected")
    return tuple(group)
