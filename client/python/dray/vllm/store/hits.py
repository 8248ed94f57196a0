# SPDX-License-Identifier: Apache-2.0
"""How many tokens of a request can be loaded, by the blocks that the store has."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence

from ..layout import Group

__all__ = ["first_needed", "hit", "unit"]

# In the kinds of specs.groups(): of groups whose blocks in front of a window or chunk are not kept.
_WINDOW = re.compile(r", window (\d+)(?: and (\d+) more)?$")
_CHUNKS = re.compile(r", chunks of (\d+)$")


def first_needed(group: Group, end: int) -> int:
    """The first block of a group that a request with `end` computed tokens reads."""
    if window := _WINDOW.search(group.kind):
        return max(0, end - int(window[1]) + 1 - int(window[2] or 0)) // group.tokens
    if chunk := _CHUNKS.search(group.kind):
        return end // int(chunk[1]) * int(chunk[1]) // group.tokens
    return 0


def unit(groups: Sequence[Group]) -> int:
    """A hit is a multiple of so many tokens: of whole blocks of each group."""
    return math.lcm(*(group.tokens for group in groups))


def hit(groups: Sequence[Group], first: int, end: int, has: Callable[[int, int], bool]) -> int:
    """The largest number of tokens up to `end` that all groups have what they need for; `first` if there are not more.

    first: tokens that the engine has. has: whether a block of a group can be loaded.
    """
    step = unit(groups)
    end = end // step * step
    for number, group in enumerate(groups):
        if first_needed(group, end):
            continue  # it needs a part only, which is looked at below
        block = first // group.tokens
        while block * group.tokens < end and has(number, block):
            block += 1
        end = min(end, block * group.tokens) // step * step
    while end > first:
        missing = None
        for number, group in enumerate(groups):
            low = max(first_needed(group, end), first // group.tokens)
            missing = next((i for i in range(end // group.tokens - 1, low - 1, -1) if not has(number, i)), None)
            if missing is not None:
                end = min(end - step, missing * group.tokens if not first_needed(group, end) else end - step) // step * step
                break
        if missing is None:
            return end
    return first
