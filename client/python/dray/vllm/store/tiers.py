# SPDX-License-Identifier: Apache-2.0
"""Where the store had the objects of a batch, for a log line."""

from __future__ import annotations

from collections.abc import Iterable

from ...store import Status, StoreResult, Tier

__all__ = ["sentence"]

_TEXTS = {Tier.MEMORY: "from memory", Tier.DISK: "from disk", Tier.AGENT: "from other agents", Tier.NONE: "from an unknown tier"}


def sentence(results: Iterable[StoreResult]) -> str:
    """Such as "3 of 6144 bytes from memory, 1 of 2048 bytes from disk". What was not found is left out."""
    objects, nbytes = dict.fromkeys(_TEXTS, 0), dict.fromkeys(_TEXTS, 0)
    for one in results:
        if one.status == Status.OK:
            objects[one.tier] += 1
            nbytes[one.tier] += one.length
    parts = [f"{n} of {nbytes[tier]} bytes {_TEXTS[tier]}" for tier, n in objects.items() if n]
    return ", ".join(parts) or "none"
