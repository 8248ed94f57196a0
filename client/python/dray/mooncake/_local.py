# SPDX-License-Identifier: Apache-2.0
"""Copies between memory of this process and slots. The agent moves that of GPUs, which this process cannot access."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..client import Client
from ..pending import Transfer
from ._copy import Piece, copy_in, copy_out
from ._registered import Buffer, Taken
from ._running import finish, left, start
from ._slots import Op, Slot

__all__ = ["Local"]


Part = tuple[int, Sequence[Piece]]  # offset in a slot, and memory that lies there one piece behind the other


class Local:
    """Any thread may use it. taken: of the memory, what is registered."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def copy_in(self, slot: Slot, parts: Sequence[Part], taken: Taken, ends: float) -> None:
        """Copies memory to the slot. errors.Range: memory that is not mapped, or of a GPU and not registered."""
        self._copy(slot, parts, taken, ends, copy_in, write=True)

    def copy_out(self, slot: Slot, parts: Sequence[Part], taken: Taken, ends: float) -> None:
        """Copies from the slot to memory. errors.Range: as above."""
        self._copy(slot, parts, taken, ends, copy_out, write=False)

    def _copy(self, slot: Slot, parts: Sequence[Part], taken: Taken, ends: float, copy: Callable[[int, int, Sequence[Piece]], None],
              write: bool) -> None:
        on_gpus, on_host = _sort(parts, taken) if taken.has_gpu else ({}, parts)
        running: list[Transfer] = []
        try:
            for buffer, ops in on_gpus.items():
                assert buffer.region is not None
                running.append(start(self._client, running, write, buffer.region, slot.own(left(ends)), ops, ends))
            for at, some in on_host:
                copy(slot.memory.fd, at, some)
        finally:
            finish(running, ends)


def _sort(parts: Sequence[Part], taken: Taken) -> tuple[dict[Buffer, list[Op]], list[Part]]:
    """(operations by the buffer on a GPU, parts of other memory)"""
    on_gpus: dict[Buffer, list[Op]] = {}
    on_host: list[Part] = []
    for offset, pieces in parts:
        run: list[Piece] = []  # on the host, before `offset`
        begin = offset
        for address, n in pieces:
            buffer = taken.find_gpu(address, n)
            if buffer is None:
                run.append((address, n))
            else:
                on_host.append((begin, run))
                on_gpus.setdefault(buffer, []).append((address - buffer.start, offset, n))
                run, begin = [], offset + n
            offset += n
        on_host.append((begin, run))
    return on_gpus, on_host
