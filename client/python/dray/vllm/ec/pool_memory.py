# SPDX-License-Identifier: Apache-2.0
"""The memory of a pool: where its bytes lie, and what proves that they are complete and whose they are."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, NamedTuple

from ... import errors
from ..._checksums import Checksums
from . import header
from .header import HEADER
from .inplace import Vacate

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...client import Client
    from ...handles import Region
    from ...memory import Memory
    from .pool import Item
    from .protocol import Place

__all__ = ["DEVICES", "HostPool", "PoolMemory", "Seal", "check_seal"]

# of pools. Bytes in host memory are proved by their CRC-32C, those in a GPU's memory by their total (total.py).
DEVICES = ("cpu", "cuda")


class Seal(NamedTuple):
    """What an encoder says of an output in an offer. device: of its pool, which says how `number` was computed.

    digest: of the identifier and the tenant's salt.
    """

    device: str
    digest: bytes
    number: int


class PoolMemory(ABC):
    """device: "cpu" or "cuda". before: bytes between the start of a place and its output.

    memory: host memory that other processes can open; None: there is none. name: by which the engine's workers find the pool, and its bytes.
    """

    device: str
    before: int
    memory: Memory | None
    name: tuple[str, int]

    @abstractmethod
    def region(self, client: Client) -> Region:
        """Registers the memory with the agent. Blocks; for the start of the engine. Once."""

    @abstractmethod
    def sealed(self, item: Item | Place) -> bool:
        """True if a worker has completed the output in a place."""

    @abstractmethod
    def number(self, item: Item) -> int:
        """The checksum of a complete output."""

    @abstractmethod
    def verify(self, item: Item) -> None:
        """errors.NotFound, errors.Denied, errors.Io: the bytes of an output are not what its source says, or it is another one."""

    @abstractmethod
    def vacate(self, item: Item) -> bool:
        """Nobody finds the output any more; false while another process reads it."""

    @abstractmethod
    def close(self) -> None:
        """Gives the memory up. After the session has ended."""

    def operation(self, item: Item, source: str, offset: int) -> tuple[int, int, int]:
        """(own offset, other offset, bytes) of what is read of an output that lies at `offset` of a pool on another engine's device."""
        before = HEADER if source == "cpu" else 0
        if before == self.before:
            return item.offset, offset, before + item.shape.size
        return item.offset + self.before, offset + before, item.shape.size


class HostPool(PoolMemory):
    """A memfd that all processes of the engine map. Each output lies behind its header (header.py). Owns `memory`."""

    device, before = "cpu", HEADER

    def __init__(self, memory: Memory) -> None:
        self.memory: Memory = memory
        self.name = f"/proc/{os.getpid()}/fd/{memory.fd}", memory.size
        self._vacate = Vacate(memory)
        self._checksums = Checksums(memory.view)

    def region(self, client: Client) -> Region:
        return client.region(self.memory, name="ec")

    def sealed(self, item: Item | Place) -> bool:
        return header.sealed(self.memory.view, item)

    def number(self, item: Item) -> int:
        return header.number(self.memory.view, item)

    def verify(self, item: Item) -> None:
        if item.seal is None or item.seal.device == "cpu":
            header.verify(self.memory.view, item, self._checksums)
            return
        from .total import total_of_bytes

        start = item.offset + HEADER
        check_seal(item, lambda: total_of_bytes(self.memory.view[start:start + item.shape.size]))

    def vacate(self, item: Item) -> bool:
        return self._vacate(item)

    def close(self) -> None:
        del self._checksums
        self.memory.close()


def check_seal(item: Item, number: Callable[[], int]) -> None:
    """errors.Denied, errors.Io: an output is not the one that its encoder has offered. number: of its bytes, in the way of the encoder."""
    seal = item.seal
    assert seal is not None
    if seal.digest != item.shape.digest:
        raise header.of_another()
    if seal.number != number():
        raise errors.Io(header.OTHER_BYTES)
