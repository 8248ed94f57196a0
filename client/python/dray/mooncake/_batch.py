# SPDX-License-Identifier: Apache-2.0
"""The pieces of a call, as columns of 64-bit words: most of the work on thousands of pieces is done by few calls of the interpreter."""

from __future__ import annotations

import functools
import operator
from array import array
from collections.abc import Callable, Sequence

from .. import errors
from ._slots import Op

__all__ = ["Batch", "Column", "words"]

_WORD = 8  # bytes


def words(values: Sequence[int]) -> array[int]:
    """Unsigned numbers of 64 bits. TypeError: something else, as with Mooncake."""
    try:
        return array("Q", values if isinstance(values, (list, tuple)) else iter(values))
    except OverflowError:
        raise TypeError("an address or length is negative, or has more than 64 bits") from None


class Column:
    """Addresses or lengths of pieces, as they were when this was made. TypeError: they are no unsigned numbers of 64 bits."""

    def __init__(self, values: Sequence[int]) -> None:
        values = tuple(values)
        self.words = words(values)
        # comparing the caller's objects is faster than making new ones of words, unless they are no plain numbers
        self._numbers: Sequence[int] = values if values and type(values[0]) is int else self.words

    def __len__(self) -> int:
        return len(self.words)

    def _chosen(self, choose: Callable[[Sequence[int]], int]) -> int:
        try:
            return int(choose(self._numbers))
        except TypeError:  # among plain numbers are others, which cannot be compared with them
            return choose(self.words)

    @functools.cached_property
    def least(self) -> int:
        """Of one or more."""
        return self._chosen(min)

    @functools.cached_property
    def most(self) -> int:
        """Of one or more."""
        return self._chosen(max)

    @functools.cached_property
    def same(self) -> bool:
        """All are equal."""
        return self.words.tobytes() == self.words[:1].tobytes() * len(self)

    def behind(self, start: int) -> array[int]:
        """Each one less `start`. errors.Invalid: one lies before it.

        All at once, as one long number each: no word borrows from the next one.
        """
        if len(self) and self.least < start:
            raise errors.Invalid(f"the piece at {self.least:#x} lies before {start:#x}")
        size = _WORD * len(self)
        starts = start.to_bytes(_WORD, "little") * len(self)
        less = int.from_bytes(self.words.tobytes(), "little") - int.from_bytes(starts, "little")
        return array("Q", less.to_bytes(size, "little"))


class Batch:
    """Local address, the peer's address and length of each piece."""

    def __init__(self, here: Column, there: Column, lengths: Column) -> None:
        if not len(here) == len(there) == len(lengths):
            raise errors.Invalid(f"{len(here)} buffers, {len(there)} addresses of the peer and {len(lengths)} lengths",
                                 fix="Pass as many of each.")
        if len(lengths) and not (lengths.words[0] if lengths.same else lengths.least):
            ops = [op for op in zip(here.words, there.words, lengths.words) if op[2]]
            here, there, lengths = map(Column, zip(*ops)) if ops else (Column(()),) * 3
        self._here, self._there, self._lengths = here, there, lengths

    def __len__(self) -> int:
        return len(self._lengths)

    def ops(self) -> list[Op]:
        """One by one."""
        return list(zip(self._here.words, self._there.words, self._lengths.words))

    def local(self) -> list[tuple[int, int]]:
        """(local address, length) of each."""
        return list(zip(self._here.words, self._lengths.words))

    @functools.cached_property
    def span(self) -> tuple[int, int]:
        """(address, length) around all local pieces, of which there must be one."""
        return self._span(self._here)

    @functools.cached_property
    def peer_span(self) -> tuple[int, int]:
        """(address, length) around all pieces of the peer, of which there must be one."""
        return self._span(self._there)

    def _span(self, addresses: Column) -> tuple[int, int]:
        first = addresses.least
        if self._lengths.same:
            return first, addresses.most + self._lengths.words[0] - first
        return first, max(map(operator.add, addresses.words, self._lengths.words)) - first

    def placed(self, here: int, there: int) -> array[int]:
        """Triples for a transfer between memory at these addresses, behind which all pieces lie."""
        triples = array("Q", bytes(3 * _WORD * len(self)))
        triples[0::3], triples[1::3], triples[2::3] = self._here.behind(here), self._there.behind(there), self._lengths.words
        return triples
