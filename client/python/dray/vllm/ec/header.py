# SPDX-License-Identifier: Apache-2.0
"""The header before each output in a pool: it proves that the bytes behind it are complete, and whose they are.

The engine that reads an output compares all fields with what it was told about the output, and with the bytes.
"""

from __future__ import annotations

import os
import struct
from hashlib import blake2s
from typing import TYPE_CHECKING, NamedTuple

from ... import errors
from ..._checksum import checksum
from ..._checksums import Checksums

if TYPE_CHECKING:
    from .pool import Item
    from .protocol import Place

__all__ = ["DIGEST", "HEADER", "HEADER_BYTES", "MAGIC", "NONCE", "OTHER_BYTES", "clear", "digest", "number", "of_another", "pack", "read", "seal", "sealed", "unpack", "verify"]

HEADER = 256  # bytes; keeps the embeddings aligned
NONCE, DIGEST = 16, 32
_FIELDS = struct.Struct("<8s16s32sQQ")  # magic, nonce, digest of the identifier, bytes, their checksum
_CHECK = struct.Struct("<Q")  # behind the fields in the header of a piece: their checksum, because it is read while it is written
HEADER_BYTES = _FIELDS.size + _CHECK.size  # of the header of a piece
MAGIC = b"DrayEC03"  # names the form of the header
OTHER_BYTES = "the bytes of the output are not those that the other engine has stored"


class Header(NamedTuple):
    """Of a piece (pieces.py). piece: which one, in the place of an output's size. number: checksum of its bytes.

    whole: all of it was written when it was read.
    """

    magic: bytes
    nonce: bytes
    digest: bytes
    piece: int
    number: int
    whole: bool


def pack(nonce: bytes, key: bytes, piece: int, number: int) -> bytes:
    """The header of a piece."""
    fields = _FIELDS.pack(MAGIC, nonce, key, piece, number & (1 << 64) - 1)
    return fields + _CHECK.pack(checksum(fields))


def unpack(data: bytes | memoryview) -> Header:
    """What starts with the header of a piece."""
    magic, nonce, key, piece, number = _FIELDS.unpack_from(data)
    (check,) = _CHECK.unpack_from(data, _FIELDS.size)
    return Header(magic, nonce, key, piece, number, check == checksum(data[:_FIELDS.size]))


def digest(identifier: str, salt: str | None) -> bytes:
    """What an output is found by. salt: of the request's tenant (cache_salt); outputs of two tenants are never the same."""
    text = f"{len(identifier)} {identifier} {salt or ''}"
    return blake2s(text.encode(errors="surrogatepass")).digest()  # Python's own code: less of it than OpenSSL's, and no lock


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
    _FIELDS.pack_into(memory, offset, MAGIC, nonce, key, size, checksum(memory[start:start + size]))


def clear(memory: memoryview, offset: int) -> None:
    """Nobody finds the output at `offset` any more."""
    memory[offset:offset + len(MAGIC)] = bytes(len(MAGIC))


def sealed(memory: memoryview, item: Item | Place) -> bool:
    """True if the header of this output has been written."""
    magic, nonce, *_ = _FIELDS.unpack_from(memory, item.offset)
    return bool(magic == MAGIC and nonce == item.nonce)


def number(memory: memoryview, item: Item) -> int:
    """The checksum in the header of an output that is complete."""
    return int(_FIELDS.unpack_from(memory, item.offset)[-1])


def of_another() -> errors.Denied:
    """An output has another digest than the one that was asked for."""
    return errors.Denied("the output belongs to another identifier, or to a request with another cache_salt",
                         fix="Send both engines the same image with the same cache_salt.")


def verify(memory: memoryview, item: Item, checksums: Checksums) -> None:
    """errors.NotFound, errors.Denied, errors.Io: the bytes of an output are not what its header says, or it is another one.

    Any nonce is right for an item without one. checksums: of that memory.
    """
    magic, nonce, key, size, stored = _FIELDS.unpack_from(memory, item.offset)
    shape = item.shape
    if magic != MAGIC or item.nonce not in (b"", nonce):
        raise errors.NotFound("the other engine has not stored this output, or no longer")
    if key != shape.digest:
        raise of_another()
    if size != shape.size or stored != checksums(item.offset + HEADER, size):
        raise errors.Io(OTHER_BYTES)
