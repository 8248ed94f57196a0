# SPDX-License-Identifier: Apache-2.0
"""The pieces of a call, as columns of 64-bit words: most of the work on thousands of pieces is done by few calls of the interpreter."""

from __future__ import annotations

import functools
import operator
from array import array
from collections.abc import Sequence

from .. import errors
from ._slots import Op

__all__ = ["Batch", "words"]


def words(values: Sequence[int]) -> array[int]:
    """Unsigned numbers of 64 bits. TypeError: something else, as with Mooncake."""
    try:
        return array("Q", values if isinstance(values, (list, tuple)) else iter(values))
    except OverflowError:
        raise TypeError("an address or length is negative, or has more than 64 bits") from None


class Batch:
    """Local address, the peer's address and length of each piece."""

    def __init__(self, here: array[int], there: array[int], lengths: array[int]) -> None:
        if not len(here) == len(there) == len(lengths):
            raise errors.Invalid(f"{len(here)} buffers, {len(there)} addresses of the peer and {len(lengths)} lengths",
                                 fix="Pass as many of each.")
        shortest = min(lengths, default=0)
        if lengths and not shortest:
            ops = [op for op in zip(here, there, lengths) if op[2]]
            here, there, lengths = (array("Q", column) for column in zip(*ops)) if ops else (array("Q"),) * 3
        self.here, self.there, self.lengths = here, there, lengths
        self._length = shortest if shortest == max(lengths, default=0) else None  # of all of them

    def __len__(self) -> int:
        return len(self.lengths)

    def ops(self) -> list[Op]:
        """One by one."""
        return list(zip(self.here, self.there, self.lengths))

    def local(self) -> list[tuple[int, int]]:
        """(local address, length) of each."""
        return list(zip(self.here, self.lengths))

    @functools.cached_property
    def span(self) -> tuple[int, int]:
        """(address, length) around all local pieces, of which there must be one."""
        return self._span(self.here)

    @functools.cached_property
    def peer_span(self) -> tuple[int, int]:
        """(address, length) around all pieces of the peer, of which there must be one."""
        return self._span(self.there)

    def _span(self, addresses: array[int]) -> tuple[int, int]:
        first = min(addresses)
        if self._length is not None:
            return first, max(addresses) + self._length - first
        return first, max(map(operator.add, addresses, self.lengths)) - first

    def placed(self, here: int, there: int) -> array[int]:
        """Triples for a transfer between memory at these addresses."""
        triples = array("Q", bytes(24 * len(self)))
        triples[0::3] = array("Q", map((-here).__add__, self.here))
        triples[1::3] = array("Q", map((-there).__add__, self.there))
        triples[2::3] = self.lengths
        return triples
