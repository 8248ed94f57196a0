# SPDX-License-Identifier: Apache-2.0
"""The total of bytes: a checksum that a GPU computes where the bytes lie, by reductions that PyTorch has for every device.

The bytes are a table of 64-bit numbers, with zeros behind the last one. The sums of its rows are each multiplied by an odd number,
those of its columns by an even one, and all are added, modulo 2^64. A change of one number is always found, because the sum of
an odd number and an even one is odd; any other change, also of places, is found with all probability. Integers are added, so
that the order of a GPU's threads does not matter.
"""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["total", "total_of_bytes"]

_ROW = 2048  # numbers of 64 bits
_BYTES = 8 * _ROW
_ROWS, _COLUMNS = 0x9E3779B97F4A7C15 - (1 << 64), 2 * 0x2545F4914F6CDD1D  # odd, even


def total(data: Any) -> Any:
    """Of a contiguous tensor of torch.uint8 of one dimension, aligned to 8 bytes: a number of 64 bits on its device. Does not wait for it."""
    whole = data.numel() // _BYTES * _BYTES
    table = data[:whole].view(torch.int64).view(-1, _ROW)
    rest: Any = torch.nn.functional.pad(data[whole:], (0, _BYTES - (data.numel() - whole))).view(torch.int64)
    rows = torch.cat((table.sum(1), rest.sum(0, keepdim=True)))
    columns = table.sum(0) + rest
    return (rows * _factors(rows, _ROWS)).sum() + (columns * _factors(columns, _COLUMNS)).sum()


def _factors(like: Any, factor: int) -> Any:
    """A multiple of `factor` for each number, by an odd one."""
    return torch.arange(1, 2 * like.numel(), 2, dtype=torch.int64, device=like.device) * factor


def total_of_bytes(data: memoryview) -> int:
    """Of bytes in host memory."""
    return int(total(torch.frombuffer(data, dtype=torch.uint8)))
