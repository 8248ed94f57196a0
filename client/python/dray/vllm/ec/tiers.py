# SPDX-License-Identifier: Apache-2.0
"""How DrayEncoderCacheManager finds the host tier of its engine: the connector is made before it, in the same process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from vllm.config import VllmConfig

    from .cache_stats import Stats
    from .cost import EncoderCost
    from .host import HostTier
    from .policy import Policy

__all__ = ["Maker", "offer", "take"]


class Maker(Protocol):
    """Makes the host tier when the manager has parsed its options."""

    def __call__(self, policy: Callable[[int], Policy], cost: EncoderCost, stats: Stats) -> HostTier: ...


_offered: dict[str, Maker] = {}  # by the engine's id


def offer(config: VllmConfig, maker: Maker) -> None:
    """The connector of this engine has a host tier."""
    _offered[str(config.ec_transfer_config.engine_id)] = maker


def take(config: VllmConfig) -> Maker | None:
    """What the connector of this engine has offered."""
    transfer = getattr(config, "ec_transfer_config", None)
    return _offered.pop(str(transfer.engine_id), None) if transfer is not None else None
