# SPDX-License-Identifier: Apache-2.0
"""Options of DrayEncoderCacheManager: manager_config of ec_manager_config, read once into a typed object."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from ... import errors
from .. import checks
from .policy import CLOCK_EVERY, CLOCK_MAX, Lru, Policy, Score, Value

__all__ = ["WHERE", "Options"]

WHERE = "manager_config"
_POLICIES = ("value", "score", "lru")
_HOST_POLICIES = ("value", "lru")  # "score" looks at all outputs for each one that it evicts, and the host tier has thousands
_OF_HOST_TIER = ("host_policy", "watermark", "promote_percentile")
_COUNT_MAX = 1 << 30


@dataclass(frozen=True)
class Options:
    """What the user has chosen.

    policy: of the device's cache; host_policy: of the host tier. watermark: part of the device's cache that a promotion leaves free.
    promote_percentile: an output of the host tier is promoted if it is worth as much as the one at this place of those that may be
    evicted, from the cheapest one; 0: always; 1: only if it is worth most. clock_max, clock_decay_every: of the policy "score".
    """

    policy: str = "value"
    host_policy: str = "value"
    watermark: float = 0.0
    promote_percentile: float = 0.2
    clock_max: int = CLOCK_MAX
    clock_decay_every: int = CLOCK_EVERY

    @classmethod
    def parse(cls, config: Mapping[str, Any]) -> Options:
        """Checks the options. errors.Invalid names the option, its value and what is allowed."""
        options = cls(**checks.read(config, _CHECKS, "DrayEncoderCacheManager", WHERE))
        if options.policy != "score":
            for name in ("clock_max", "clock_decay_every"):
                if name in config:
                    raise errors.Invalid(f"{WHERE} sets {name!r}, which only the policy 'score' has",
                                         fix=f"Set 'policy' to 'score', or leave {name!r} out.")
        return options

    @staticmethod
    def refuse_host_tier(config: Mapping[str, Any]) -> None:
        """errors.Invalid: an option says something about the host tier, which the engine does not have."""
        for name in _OF_HOST_TIER:
            if name in config:
                raise errors.Invalid(f"{WHERE} sets {name!r}, which is about the host tier, and the engine has none",
                                     fix=f"Set ec_connector of --ec-transfer-config to 'DrayECCacheConnector', or leave {name!r} out.")

    def make(self, policy: str) -> Callable[[int], Policy]:
        """Makes a policy for a tier of so many embeddings."""
        if policy == "score":
            return partial(Score, clock_max=self.clock_max, clock_every=self.clock_decay_every)
        if policy == "lru":
            return Lru
        return Value


def _part(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or math.isnan(value) or not 0 <= value <= 1:
        raise checks.invalid(name, value, "it to a number from 0 to 1")
    return float(value)


def _count(least: int) -> Callable[[str, Any], int]:
    def check(name: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= _COUNT_MAX:
            raise checks.invalid(name, value, f"it to a whole number from {least} to {_COUNT_MAX}")
        return value

    return check


_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "policy": checks.one_of(*_POLICIES), "host_policy": checks.one_of(*_HOST_POLICIES), "watermark": _part, "promote_percentile": _part,
    "clock_max": _count(0), "clock_decay_every": _count(1)}
