# SPDX-License-Identifier: Apache-2.0
"""Checksums of memory whose address is known."""

from __future__ import annotations

from . import errors
from ._library import held, released
from ._operations import View

__all__ = ["Checksums", "checksum_at"]

_SHORT = 256 << 10  # bytes whose checksum takes less time than another thread may keep the interpreter lock for


def checksum_at(address: int, length: int, before: int = 0) -> int:
    """As checksum(), of memory at an address."""
    return int((held if length <= _SHORT else released).dray_checksum(before, address, length))


class Checksums:
    """Checksums of parts of one memory, as of checksum() with less around it. The memory cannot move while the object lives. address: where it starts."""

    __slots__ = ("_length", "_view", "address")

    def __init__(self, memory: object) -> None:
        self._view = View(memory)
        self.address, self._length = int(self._view.buffer.buf), self._view.buffer.len

    def __call__(self, offset: int, length: int) -> int:
        """Of `length` bytes from `offset` on, which lie in the memory."""
        if not 0 <= offset <= offset + length <= self._length:
            raise errors.Invalid(f"{length} bytes at {offset} of a memory of {self._length}")
        return checksum_at(self.address + offset, length)
