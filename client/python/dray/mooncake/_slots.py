# SPDX-License-Identifier: Apache-2.0
"""Slots: shared memory through which private memory is bounced."""

from __future__ import annotations

import contextlib
import queue
import struct
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from .. import errors
from ..handles import Remote
from ..memory import Memory
from ._exported import Exported
from ._remotes import give_back

if TYPE_CHECKING:
    from ..client import Client

__all__ = ["DATA_MAX", "HEAD", "OPS_MAX", "Op", "Slot", "Slots", "chunks"]

Op = tuple[int, int, int]  # two addresses or offsets, and a length

OPS_MAX = 2048  # in one slot
ENTRY = struct.Struct("<QQQ")
HEAD = OPS_MAX * ENTRY.size  # bytes at the start of a slot, for a list of operations
DATA_MAX = 4 << 20


class Slot:
    """A piece of shared memory: a list of operations, and room for their bytes."""

    def __init__(self, client: Client, size: int = HEAD + DATA_MAX) -> None:
        self.memory = Memory(size, name="dray-mooncake-slot")
        self.region = client.region(self.memory, name="mooncake slot")
        self.exported = Exported(self.region)
        self._own: Remote | None = None

    def own(self, seconds: float) -> Remote:
        """The slot as the other side of a transfer with a region of this process. Waits for the agent the first time."""
        if self._own is None or self._own.lost is not None:
            self._own = self.region.client.import_token(self.exported.token(), timeout=seconds)
        return self._own

    def close(self) -> None:
        """Ends every access of others, then the memory."""
        with contextlib.suppress(errors.Error):
            self.region.remove()
        give_back(self._own)
        self.memory.close()


class Slots:
    """Up to `most` slots of `size` bytes, made when they are needed."""

    def __init__(self, client: Client, most: int, size: int = HEAD + DATA_MAX) -> None:
        self._client, self._size = client, size
        self._free: queue.LifoQueue[Slot | None] = queue.LifoQueue()
        for _ in range(most):
            self._free.put(None)

    @contextlib.contextmanager
    def take(self, seconds: float) -> Iterator[Slot]:
        """A slot for the block. After an error it is closed, because somebody may still use it. errors.Deadline."""
        try:
            slot = self._free.get(timeout=max(0.0, seconds))
        except queue.Empty:
            raise errors.Deadline("all buffers for private memory were in use until the deadline",
                                  fix="Use memory of allocate_managed_buffer(), or start fewer transfers at once.") from None
        try:
            if slot is None:
                slot = Slot(self._client, self._size)
            yield slot
        except BaseException:
            if slot is not None:
                slot.close()
            slot = None
            raise
        finally:
            self._free.put(slot)


def chunks(ops: Sequence[Op]) -> Iterator[list[Op]]:
    """Operations in parts that fit a slot; a longer one is cut."""
    part: list[Op] = []
    room = DATA_MAX
    for here, there, length in ops:
        while length:
            if not room or len(part) == OPS_MAX:
                yield part
                part, room = [], DATA_MAX
            n = min(length, room)
            part.append((here, there, n))
            here, there, length, room = here + n, there + n, length - n, room - n
    if part:
        yield part
