# SPDX-License-Identifier: Apache-2.0
"""Options of DrayStoreConnector: kv_connector_extra_config of the engine, read once into a typed object."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ... import errors
from .. import checks

__all__ = ["Options", "space", "weights"]

SAVES = ("always", "second_use", "eviction")
LAYOUTS = ("block", "engine")


@dataclass(frozen=True)
class Options:
    """What the user has chosen.

    socket: of the agent; None: $DRAY_SOCKET, then the default place. space: name space of the store; empty: the one of the
    engine's own user. save: which blocks are saved: "always"; of those that are not there, the ones that a "second_use"
    proves useful; or at the "eviction" from the engine's own cache. save_limit: bytes that the engine saves in a second; 0: no limit. weights: a name for the content of the
    weights, in place of a digest of their files. parts: of the KV heads of all ranks, each kept as an object; 0: one for each
    rank. lookup: seconds that a request waits for the answer of what the store has.
    deadline: seconds after which a load has ended, and after which a start gives up waiting for the agent. pool: False if
    another child of MultiConnector allocates the KV cache. layout: "block": ask the engine for blocks that are contiguous
    over all layers; "engine": take its own layout. log: a line for each batch.
    """

    socket: str | None = None
    space: str = ""
    save: str = "always"
    save_limit: int = 0
    weights: str | None = None
    parts: int = 0
    lookup: float = 0.5
    deadline: float = 30.0
    pool: bool = True
    layout: str = "block"
    log: bool = False

    @classmethod
    def parse(cls, config: Mapping[str, Any]) -> Options:
        """Checks the options. errors.Invalid names the option, its value and what is allowed."""
        return cls(**checks.read(config, _CHECKS, "DrayStoreConnector"))


def space(name: str, value: Any) -> str:
    if not isinstance(value, str) or "\0" in value or len(value.encode()) > 64:
        raise checks.invalid(name, value, "it to a name of up to 64 bytes that store.spaces of the agent has, or leave it out")
    return value


def weights(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise checks.invalid(name, value, "it to a text that no other weights have, such as \"llama-3.1-8b, 2026-11-02\", or leave it out")
    return value


def _limit(name: str, value: Any) -> int:
    if value == 0 and not isinstance(value, bool):
        return 0
    try:
        return checks.size(name, value)
    except errors.Invalid:
        raise checks.invalid(name, value, "it to a number of bytes a second, or to 0 for no limit") from None


def _parts(name: str, value: Any) -> int:
    if type(value) is not int or not 0 <= value <= 1024:
        raise checks.invalid(name, value, "it to a divisor of the number of KV heads, or to 0 for an object for each rank")
    return value


_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "socket": checks.path, "space": space, "save": checks.one_of(*SAVES), "save_limit": _limit, "weights": weights, "parts": _parts,
    "lookup": checks.seconds, "deadline": checks.seconds, "pool": checks.flag, "layout": checks.one_of(*LAYOUTS), "log": checks.flag}
