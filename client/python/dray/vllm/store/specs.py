# SPDX-License-Identifier: Apache-2.0
"""The engine's KV-cache groups, as far as their blocks can be found by the tokens that they hold."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from ... import errors
from .. import compat
from ..layout import Group

__all__ = ["groups"]

_FIX = "Run this model without DrayStoreConnector."


def groups(kv_cache_config: Any) -> tuple[Group, ...]:
    """The groups, in the engine's order. errors.Unsupported: a block depends on more than the tokens up to its end."""
    found = []
    for one, group in zip(kv_cache_config.kv_cache_groups, compat.groups(kv_cache_config), strict=True):
        specs = list(_each(one.kv_cache_spec))
        if any(getattr(spec, "non_causal", False) for spec in specs):
            raise errors.Unsupported("attention of this model is not causal, so that blocks depend on tokens behind them", fix=_FIX)
        more = max(getattr(spec, "extra_retained_tokens", 0) for spec in specs)
        found.append(dataclasses.replace(group, kind=f"{group.kind} and {more} more") if more else group)
    return tuple(found)


def _each(spec: Any) -> Iterable[Any]:
    """The specs of a group's layers; of all together if they are equal."""
    specs: Iterable[Any] = getattr(spec, "kv_cache_specs", {"": spec}).values()
    return specs
