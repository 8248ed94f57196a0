# SPDX-License-Identifier: Apache-2.0
"""How many tokens of a request can be loaded, by the blocks that the store has."""

from __future__ import annotations

import math
import re
from functools import cache
from collections.abc import Callable, Sequence

from ..layout import Group

__all__ = ["first_needed", "hit", "unit"]

# In the kinds of specs.groups(): of groups whose blocks in front of a window or chunk are not kept.
_WINDOW = re.compile(r", window (\d+)(?: and (\d+) more)?$")
_CHUNKS = re.compile(r", chunks of (\d+)$")


def first_needed(group: Group, end: int) -> int:
    """The first block of a group that a request with `end` computed tokens reads."""
    window, chunk = _reach(group.kind)
    if window:
        return max(0, end - window + 1) // group.tokens
    return end // chunk * chunk // group.tokens if chunk else 0


@cache
def _reach(kind: str) -> tuple[int, int]:
    """(tokens of the window with those that are kept besides, tokens of a chunk) of groups of this kind; 0: there is none."""
    if window := _WINDOW.search(kind):
        return int(window[1]) + int(window[2] or 0), 0
    chunk = _CHUNKS.search(kind)
    return 0, int(chunk[1]) if chunk else 0


def unit(groups: Sequence[Group]) -> int:
    """A hit is a multiple of so many tokens: of whole blocks of each group."""
    return math.lcm(*(group.tokens for group in groups))


def hit(groups: Sequence[Group], first: int, end: int, has: Callable[[int, int], bool]) -> int:
    """The largest number of tokens up to `end` that all groups have what they need for; `first` if there are not more.

    first: tokens that the engine has. has: whether a block of a group can be loaded.
    """
    step = unit(groups)
    end, complete = end // step * step, set()
    for number, group in enumerate(groups):
        if first_needed(group, end):
            continue  # it needs a part only, which is looked at below
        block = first // group.tokens
        while block * group.tokens < end and has(number, block):
            block += 1
        end = min(end, block * group.tokens) // step * step
        complete.add(number)
    while end > first:
        missing = None
        for number, group in enumerate(groups):
            if number in complete:
                continue
            low = max(first_needed(group, end), first // group.tokens)
            missing = next((i for i in range(end // group.tokens - 1, low - 1, -1) if not has(number, i)), None)
            if missing is not None:
                end = min(end - step, missing * group.tokens if not first_needed(group, end) else end - step) // step * step
                break
        if missing is None:
            return end
    return first
