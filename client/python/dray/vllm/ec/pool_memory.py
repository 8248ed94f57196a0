# SPDX-License-Identifier: Apache-2.0
"""The memory of a pool: where its bytes lie, and what proves that they are complete and whose they are."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, NamedTuple, Protocol

from ... import errors
from ..._checksum import checksum
from ..._checksums import Checksums
from ...memory import Memory
from ..free_memory import free_memory
from . import header
from .header import HEADER
from .inplace import Vacate

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...client import Client
    from ...handles import Region
    from .pool import Item
    from .protocol import Place

__all__ = ["DEVICES", "Assembled", "HostPool", "PoolMemory", "Seal", "check_seal", "same_number"]

# of pools. Bytes in host memory are proved by their CRC-32C, those in a GPU's memory by their total (total.py).
DEVICES = ("cpu", "cuda")


class Seal(NamedTuple):
    """What an encoder says of an output in an offer. device: of its pool, which says how `number` was computed.

    digest: of the identifier and the tenant's salt.
    """

    device: str
    digest: bytes
    number: int


class Assembled(Protocol):
    """An output outside the pool, that a consumer puts together of pieces. path: by which the engine's workers open it, HEADER bytes before it; empty:
    they find it by its nonce."""

    @property
    def path(self) -> str: ...
    def close(self) -> None: ...


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

    # of outputs that move in pieces (pieces.py), to a window in the pool at the item's offset

    @abstractmethod
    def peek(self, offset: int, length: int) -> bytes | memoryview:
        """Some bytes of the pool."""

    @abstractmethod
    def assemble(self, item: Item) -> Assembled:
        """Memory outside the pool for an output. errors.NoMemory."""

    @abstractmethod
    def append(self, item: Item, at: int, length: int) -> None:
        """Copies what lies behind the header in the window to the output, at `at`."""

    @abstractmethod
    def number_of(self, item: Item, start: int, length: int, device: str) -> int:
        """The checksum of a part of the output, as an encoder with a pool on `device` computes it."""

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

    def peek(self, offset: int, length: int) -> memoryview:
        return self.memory.view[offset:offset + length]

    def assemble(self, item: Item) -> Assembled:
        free = free_memory()
        if free is not None and item.shape.size > free:
            raise errors.NoMemory(f"the output takes {item.shape.size} bytes outside the pool, and {free} are available")
        return _OwnFile(item.shape.size)

    def append(self, item: Item, at: int, length: int) -> None:
        start = item.offset + HEADER
        _file(item).view[at:at + length] = self.memory.view[start:start + length]

    def number_of(self, item: Item, start: int, length: int, device: str) -> int:
        data = _file(item).view[start:start + length]
        if device == "cpu":
            return checksum(data)
        from .total import total_of_bytes

        return total_of_bytes(data)

    def close(self) -> None:
        del self._checksums
        self.memory.close()


class _OwnFile:
    """An output in a memfd of its own."""

    def __init__(self, size: int) -> None:
        self._memory = Memory(HEADER + size, name="dray-ec-output")
        self.view = self._memory.view[HEADER:]

    @property
    def path(self) -> str:
        return f"/proc/{os.getpid()}/fd/{self._memory.fd}"

    def close(self) -> None:
        self.view.release()
        self._memory.close()


def _file(item: Item) -> _OwnFile:
    assert isinstance(item.assembled, _OwnFile)
    return item.assembled


def same_number(a: int, b: int) -> bool:
    """Checksums of 64 bits, with a sign or without one, are the same."""
    return (a - b) % (1 << 64) == 0


def check_seal(item: Item, number: Callable[[], int]) -> None:
    """errors.Denied, errors.Io: an output is not the one that its encoder has offered. number: of its bytes, in the way of the encoder."""
    seal = item.seal
    assert seal is not None
    if seal.digest != item.shape.digest:
        raise header.of_another()
    if seal.number != number():
        raise errors.Io(header.OTHER_BYTES)
