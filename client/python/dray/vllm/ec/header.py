# SPDX-License-Identifier: Apache-2.0
"""The header before each output in a pool: it proves that the bytes behind it are complete, and whose they are.

The engine that reads an output compares all fields with what it was told about the output, and with the bytes.
"""

from __future__ import annotations

import hashlib
import os
import struct
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

from ... import errors

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from .pool import Item
    from .protocol import Place

__all__ = ["HEADER", "NONCE", "FileVerifier", "clear", "digest", "read", "seal", "sealed", "verify"]

HEADER = 256  # bytes; keeps the embeddings aligned
NONCE = 16
_FIELDS = struct.Struct("<8s16s32sQQ")  # magic, nonce, digest of the identifier, bytes, check
_MAGIC = b"DrayEC01"
_ROW = 2048  # bytes that are added up before their sum enters the check
_PART = 128 * _ROW  # bytes of a file that are read at once: they stay in the processor's cache


def digest(identifier: str, salt: str | None) -> bytes:
    """What an output is found by. salt: of the request's tenant (cache_salt); outputs of two tenants are never the same."""
    text = f"{len(identifier)} {identifier} {salt or ''}"
    return hashlib.sha256(text.encode(errors="surrogatepass")).digest()


def check(parts: Iterable[memoryview]) -> int:
    """CRC-32 of the sums of each 2 KiB as 64-bit words. So it runs at the speed of memory, and sees bytes that are wrong or misplaced.

    parts: of the bytes, in order; all but the last one of whole 2 KiB.
    """
    crc = 0
    for data in parts:
        whole = len(data) // _ROW * _ROW
        words: Any = np.frombuffer(data[:whole], dtype="<u8").reshape(-1, _ROW // 8)
        crc = zlib.crc32(data[whole:], zlib.crc32(np.add.reduce(words, axis=1, dtype=np.uint64).tobytes(), crc))
    return crc


def read(fd: int, to: memoryview, offset: int) -> None:
    """Fills `to` from a file. OSError: the file ends before."""
    while to:
        n = os.preadv(fd, [to], offset)
        if not n:
            raise OSError("the file is shorter than what is read from it")
        to, offset = to[n:], offset + n


def seal(memory: memoryview, offset: int, nonce: bytes, key: bytes, size: int) -> None:
    """Writes the header at `offset`, when the bytes behind it are complete."""
    start = offset + HEADER
    _FIELDS.pack_into(memory, offset, _MAGIC, nonce, key, size, check([memory[start:start + size]]))


def clear(memory: memoryview, offset: int) -> None:
    """Nobody finds the output at `offset` any more."""
    memory[offset:offset + len(_MAGIC)] = bytes(len(_MAGIC))


def sealed(memory: memoryview, item: Item | Place) -> bool:
    """True if the header of this output has been written."""
    magic, nonce, *_ = _FIELDS.unpack_from(memory, item.offset)
    return bool(magic == _MAGIC and nonce == item.nonce)


def verify(memory: memoryview, item: Item) -> None:
    """errors.NotFound, errors.Denied, errors.Io: the bytes of an output are not what its header says, or it is another one.

    An item without a nonce is one of which it is not known.
    """
    start = item.offset + HEADER
    _compare(memory[item.offset:start], [memory[start:start + item.shape.size]], item)


class FileVerifier:
    """For one thread: its buffer is used again, so that it stays in the processor's cache."""

    def __init__(self) -> None:
        self._buffer = memoryview(bytearray(HEADER + _PART))

    def verify(self, fd: int, item: Item) -> None:
        """As verify(), of an output in a file."""
        first = self._buffer[:HEADER + min(item.shape.size, _PART)]
        try:
            read(fd, first, item.offset)
            _compare(first[:HEADER], self._parts(fd, first[HEADER:], item), item)
        except OSError as e:
            raise errors.Io(f"the other engine's pool cannot be read: {e}") from None

    def _parts(self, fd: int, first: memoryview, item: Item) -> Iterator[memoryview]:
        yield first
        size, start = item.shape.size, item.offset + HEADER
        for at in range(_PART, size, _PART):
            part = first[:size - at]
            read(fd, part, start + at)
            yield part


def _compare(header: memoryview, parts: Iterable[memoryview], item: Item) -> None:
    magic, nonce, key, size, number = _FIELDS.unpack_from(header)
    shape = item.shape
    if magic != _MAGIC or item.nonce not in (b"", nonce):
        raise errors.NotFound("the other engine has not stored this output, or no longer")
    if key != shape.digest:
        raise errors.Denied("the output belongs to another identifier, or to a request with another cache_salt",
                            fix="Send both engines the same image with the same cache_salt.")
    if size != shape.size or number != check(parts):
        raise errors.Io("the bytes of the output are not those that the other engine has stored")
