# SPDX-License-Identifier: Apache-2.0
"""Transfers that the agent carries out: their start and their end."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable

from .. import errors
from ..client import Client
from ..handles import Region, Remote
from ..pending import Transfer
from ._slots import Op

__all__ = ["finish", "left", "start"]

_SLACK = 5.0  # seconds after its deadline in which the agent ends a transfer


def left(ends: float) -> float:
    """Seconds until a deadline; at least a millisecond, because 0 means a default."""
    return max(0.001, ends - time.monotonic())


def start(client: Client, own: list[Transfer], write: bool, region: Region, remote: Remote, ops: list[Op] | array[int],
          ends: float) -> Transfer:
    """Submits a transfer; while the agent takes no more, waits for one of these, or a moment."""
    submit = client.write if write else client.read
    while True:
        try:
            return submit(region, remote, ops, deadline=left(ends))
        except errors.Busy:
            if time.monotonic() >= ends:
                raise
            running = next((t for t in own if not t.done()), None)
            if running is not None:
                running.exception(left(ends))
            else:
                time.sleep(0.001)


def finish(transfers: list[Transfer], ends: float, failed: Callable[[Transfer, Exception], None] | None = None) -> None:
    """Waits for all of them; the agent stops those that pass their deadline. Raises the first error. failed: is called with each one."""
    first: BaseException | None = None
    for transfer in transfers:
        try:
            error = transfer.exception(max(0.0, ends - time.monotonic()) + _SLACK)
        except errors.Timeout as e:
            error = e
        if error is not None and failed is not None:
            failed(transfer, error)
        first = first or error
    if first is not None:
        raise first
