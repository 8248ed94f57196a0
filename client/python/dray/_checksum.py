# SPDX-License-Identifier: Apache-2.0
"""Checksums of bytes by libdray."""

from __future__ import annotations

from . import _arguments, errors
from ._checksums import checksum_at
from ._operations import View

__all__ = ["checksum"]


def checksum(data: object, before: int = 0) -> int:
    """The CRC-32C (Castagnoli, as in RFC 3720) of bytes, computed by the fastest way that the processor has.

    data: an object with the buffer protocol whose memory is contiguous, such as bytes, memoryview or an array of numpy; it is not
    copied. before: the checksum of the bytes before these, if they come in several parts.

        whole = dray.checksum(body, dray.checksum(header))
    """
    before = _arguments.number("before", before, (1 << 32) - 1)
    try:
        view = View(data)
    except (TypeError, BufferError) as e:
        raise errors.Invalid(f"data is no contiguous memory with the buffer protocol ({e})",
                             fix="Pass bytes, a contiguous memoryview, or a contiguous array.") from None
    return checksum_at(view.buffer.buf, view.buffer.len, before)
