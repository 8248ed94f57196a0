# SPDX-License-Identifier: Apache-2.0
"""What crosses process borders: kv_transfer_params between engines, and metadata between scheduler and workers.

kv_transfer_params follow the convention of vLLM's own connectors, so that a router copies the dictionary
from P's answer into D's request. What only dray understands is below the key "dray".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .. import errors
from .layout import EngineLayout, Group, RankLayout

__all__ = ["Load", "Offer", "RankInfo", "StepMetadata", "WorkerMetadata", "offer_params", "offered_tokens",
           "read_offer", "wants_decode", "wants_prefill"]

VERSION = 1
_FIX = "Let the router copy kv_transfer_params from P's answer into D's request unchanged."


@dataclass(frozen=True)
class RankInfo:
    """A worker rank, for the scheduler side. agent_region: the agent's number of the rank's region."""

    layout: RankLayout
    groups: tuple[Group, ...]
    model: dict[str, str]
    agent_id: bytes
    incarnation: int
    agent_region: int


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


@dataclass
class StepMetadata:
    """From the scheduler side to the workers, for one step.

    loads: to be started. stops: loads to be cancelled. failed: requests whose load cannot be started,
    with the reason. dropped: requests that ended before their load was started. sent: requests whose
    blocks nobody reads any more. can_lend: a failed load may be reported although the agent can still
    write its blocks, because the scheduler side keeps them allocated.
    """

    loads: list[Load] = field(default_factory=list)
    stops: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    dropped: list[str] = field(default_factory=list)
    sent: list[str] = field(default_factory=list)
    can_lend: bool = False


@dataclass
class WorkerMetadata:
    """From the workers to the scheduler side. ranks: what changed, by rank.

    lent: failed loads whose blocks the agent may still write, with the number of ranks; returned: those
    that are free now.
    """

    ranks: dict[int, RankInfo] = field(default_factory=dict)
    lent: dict[str, int] = field(default_factory=dict)
    returned: dict[str, int] = field(default_factory=dict)

    def aggregate(self, other: WorkerMetadata) -> WorkerMetadata:
        """Joins what two workers report for the same step."""
        self.ranks.update(other.ranks)
        for mine, theirs in ((self.lent, other.lent), (self.returned, other.returned)):
            for request_id, n in theirs.items():
                mine[request_id] = mine.get(request_id, 0) + n
        return self


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
    if dray.get("version") != VERSION:
        raise errors.Version(f"the other engine's kv_transfer_params have version {dray.get('version')!r}, "
                             f"this one reads {VERSION}",
                             fix="Use the same version of dray-client at both engines.")
    layout, ranks = check(dray.get("layout"))
    try:
        blocks = tuple(_blocks(group) for group in params["remote_block_ids"])
        tokens = tuple(str(token) for token in dray["tokens"])
        num_tokens = dray["num_tokens"]
        if type(num_tokens) is not int or num_tokens < 1 or len(blocks) != len(layout.groups) \
                or len(tokens) != len(layout.ranks):
            raise ValueError(f"{num_tokens!r} tokens, {len(blocks)} groups, {len(tokens)} rights")
    except (KeyError, TypeError, ValueError) as e:
        raise errors.Invalid(f"kv_transfer_params are damaged ({e!r})", fix=_FIX) from None
    return Offer(str(params.get("remote_request_id", "")), str(params.get("remote_engine_id", "")), layout, blocks, num_tokens,
                 tokens), ranks


def offered_tokens(params: Mapping[str, Any]) -> list[str]:
    """The rights of an offer, even if the rest of it was refused."""
    dray = params.get("dray")
    tokens = dray.get("tokens") if isinstance(dray, Mapping) else None
    return [token for token in tokens if isinstance(token, str)] if isinstance(tokens, list) else []


def _blocks(group: Sequence[Any]) -> tuple[int, ...]:
    if isinstance(group, (str, bytes)) or not all(type(block) is int and 0 <= block < 1 << 40 for block in group):
        raise ValueError("a list of block numbers is expected")
    return tuple(group)
