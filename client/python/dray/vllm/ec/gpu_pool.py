# SPDX-License-Identifier: Apache-2.0
"""A pool in the memory of an engine's GPU: the agent moves outputs from GPU to GPU, and no byte of them comes to the host.

The scheduler side and the worker of the engine are one process, which has the pool's memory and what proves the outputs in it: a
seal for each place, beside the pool. The worker copies an output into its place and has its total (total.py) computed behind
that, in the order of the GPU's stream, and writes the seal when both have been done. The seal travels in the offer, so that a
consumer reads nothing but the bytes of the output.
"""

from __future__ import annotations

import contextlib
import logging
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import torch

from ... import cuda, errors
from ..._checksum import checksum
from ..gpu import Pool as TorchPool
from . import header
from .header import HEADER
from .pool_memory import PoolMemory, check_seal
from .total import total

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...client import Client
    from ...handles import Region
    from .budget import Budget
    from .pool import Item
    from .protocol import Place

__all__ = ["GpuBytes", "GpuPool", "Stored", "TorchBytes"]

_logger = logging.getLogger("vllm.dray")
_pools: dict[str, GpuPool] = {}  # by name, of the engines in this process


class Stored(Protocol):
    """Outputs that were stored in one step."""

    def totals(self) -> list[int]:
        """Waits until they are complete."""


class GpuBytes(Protocol):
    """Memory of a GPU. Offsets are in bytes, and multiples of 256."""

    def extents(self) -> cuda.Extents: ...
    def store(self, offset: int, output: Any) -> Any:
        """Copies a tensor there, and computes its total, behind what the GPU has to do before. Does not wait."""
    def totals(self, stored: list[Any]) -> list[int]:
        """Of what store() has returned. Waits until they are complete."""
    def load(self, offset: int, size: int) -> Any:
        """A copy, as bytes. Waits for the copy, and not for kernels of the model."""
    def total(self, offset: int, size: int) -> int: ...
    def crc(self, offset: int, size: int) -> int: ...
    def peek(self, offset: int, length: int) -> bytes: ...
    def poke(self, offset: int, data: bytes) -> None:
        """Writes some bytes, behind what the GPU has to do before. Waits until they are there."""
    def empty(self, size: int) -> Any:
        """Other memory of the GPU, as bytes. errors.NoMemory."""
    def copy(self, to: Any, offset: int) -> None:
        """Copies bytes to such memory. Waits for the copy."""
    def number_of(self, data: Any, device: str) -> int:
        """The checksum of such memory, as an encoder with a pool on `device` computes it."""
    def lend(self, data: Any) -> None:
        """The model uses such memory: when it is given up, it is not used anew before the model's kernels have ended."""
    def close(self) -> None: ...


class TorchBytes:
    """GpuBytes of the current GPU, as a tensor of PyTorch."""

    def __init__(self, size: int) -> None:
        """errors.NoMemory."""
        free, _ = torch.cuda.mem_get_info()
        if size > free:
            raise errors.NoMemory(f"the pool of encoder outputs takes {size} bytes of the GPU's memory, and {free} are free",
                                  fix="Set ec_buffer_size to less, or the option 'pool_device' to 'cpu'.")
        pool: Any = contextlib.nullcontext()
        try:
            pool = TorchPool()
        except errors.Unsupported as e:
            _logger.info("dray: the pool of encoder outputs is memory of PyTorch, which RDMA devices may not reach: %s", e.message)
        try:
            with pool:
                self._tensor = torch.empty(size, dtype=torch.uint8, device="cuda")
        except torch.OutOfMemoryError as e:
            raise errors.NoMemory(f"the GPU has no memory for the pool of encoder outputs: {e}",
                                  fix="Set ec_buffer_size to less, or the option 'pool_device' to 'cpu'.") from None
        self._pool = pool  # lives as long as the tensor
        # What is loaded or checked is in the pool already, and does not wait for the model's kernels.
        self._stream = torch.cuda.Stream(priority=-1)

    def extents(self) -> cuda.Extents:
        return cuda.describe_tensor(self._tensor)

    def store(self, offset: int, output: Any) -> Any:
        data = output.contiguous().view(-1).view(torch.uint8)
        place = self._tensor[offset:offset + data.numel()]
        place.copy_(data)
        event = torch.cuda.Event()
        number = total(place)
        event.record()
        return number, event

    def totals(self, stored: list[Any]) -> list[int]:
        with torch.cuda.stream(self._stream):
            for _, event in stored:
                self._stream.wait_event(event)
            return [int(number) for number in torch.stack([number for number, _ in stored]).tolist()]

    def load(self, offset: int, size: int) -> Any:
        current = torch.cuda.current_stream()
        with torch.cuda.stream(self._stream):
            output = self._tensor[offset:offset + size].clone()
        output.record_stream(current)
        self._stream.synchronize()
        return output

    def total(self, offset: int, size: int) -> int:
        with torch.cuda.stream(self._stream):
            return int(total(self._tensor[offset:offset + size]))

    def crc(self, offset: int, size: int) -> int:
        with torch.cuda.stream(self._stream):
            return checksum(self._tensor[offset:offset + size].cpu().numpy())

    def peek(self, offset: int, length: int) -> bytes:
        with torch.cuda.stream(self._stream):
            return bytes(self._tensor[offset:offset + length].cpu().numpy())

    def poke(self, offset: int, data: bytes) -> None:
        with torch.cuda.stream(self._stream):
            self._tensor[offset:offset + len(data)].copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
        self._stream.synchronize()

    def empty(self, size: int) -> Any:
        try:
            # Of that stream, which does not wait for kernels that may still use memory of other ones.
            with torch.cuda.stream(self._stream):
                return torch.empty(size, dtype=torch.uint8, device=self._tensor.device)
        except torch.OutOfMemoryError as e:
            raise errors.NoMemory(f"the GPU has no memory for an output of {size} bytes: {e}") from None

    def copy(self, to: Any, offset: int) -> None:
        with torch.cuda.stream(self._stream):
            to.copy_(self._tensor[offset:offset + to.numel()])
        self._stream.synchronize()

    def number_of(self, data: Any, device: str) -> int:
        with torch.cuda.stream(self._stream):
            return int(total(data)) if device == "cuda" else checksum(data.cpu().numpy())

    def lend(self, data: Any) -> None:
        data.record_stream(torch.cuda.current_stream())

    def close(self) -> None:
        del self._tensor


class _OwnTensor:
    """An output in memory of the GPU of its own. Workers give it to the model as it is."""

    path = ""

    def __init__(self, data: Any, gone: Callable[[], object]) -> None:
        self.data, self._gone = data, gone

    def close(self) -> None:
        self._gone()


class GpuPool(PoolMemory):
    """One for each engine, in the process of its scheduler and its worker. budget: its size. Owns `data`."""

    device, before, memory = "cuda", 0, None

    def __init__(self, name: str, budget: Budget, data: GpuBytes) -> None:
        self.budget, self._data = budget, data
        self.name = name, budget.size
        self._seals: dict[int, tuple[bytes, int]] = {}  # nonce and total, by offset
        self._stored: list[tuple[Place, Any]] = []  # in the step that is computed
        self._pieces: list[tuple[Place, int, int, Any]] = []  # the same, with number and place of each
        self._assembled: dict[bytes, _OwnTensor] = {}  # by nonce
        _pools[name] = self

    @staticmethod
    def find(name: str) -> GpuPool | None:
        """The pool of an engine of this process."""
        return _pools.get(name)

    def region(self, client: Client) -> Region:
        with self._data.extents() as extents:
            return client.region(extents, name="ec")

    # --- worker -------------------------------------------------------------------------------------

    def store(self, place: Place, output: Any) -> None:
        """Copies an output to its place, which is sealed by complete()."""
        if not any(place.offset == other.offset for other, _ in self._stored):
            self._stored.append((place, self._data.store(place.offset, output)))

    def complete(self) -> None:
        """The end of a step that has computed outputs. Waits until they are stored."""
        if self._stored:
            stored, self._stored = self._stored, []
            for (place, _), number in zip(stored, self._data.totals([one for _, one in stored]), strict=True):
                self._seals[place.offset] = place.nonce, number
        if self._pieces:
            pieces, self._pieces = self._pieces, []
            for (place, index, at, _), number in zip(pieces, self._data.totals([one for *_, one in pieces]), strict=True):
                self._data.poke(at, header.pack(place.nonce, place.digest, index, number))
                self._seals[place.offset] = place.nonce, 0

    def store_piece(self, place: Place, index: int, at: int, part: Any) -> None:
        """Copies a piece behind its header at `at`, which complete() writes."""
        self._pieces.append((place, index, at, self._data.store(at + HEADER, part)))

    def load(self, place: Place, dtype: Any) -> Any:
        """(rows, width): a copy of an output; or, if it was put together of pieces, the output itself."""
        if place.window:
            data = self._assembled[place.nonce].data
            self._data.lend(data)
        else:
            data = self._data.load(place.offset, place.size)
        return data.view(dtype).view(place.rows, place.width)

    # --- scheduler side -----------------------------------------------------------------------------

    def sealed(self, item: Item | Place) -> bool:
        return self._seals.get(item.offset, (b"", 0))[0] == item.nonce

    def number(self, item: Item) -> int:
        return self._seals[item.offset][1]

    def verify(self, item: Item) -> None:
        assert item.seal is not None
        number = self._data.total if item.seal.device == "cuda" else self._data.crc
        check_seal(item, lambda: number(item.offset, item.shape.size))

    def vacate(self, item: Item) -> bool:
        self._seals.pop(item.offset, None)
        return True

    def peek(self, offset: int, length: int) -> bytes:
        return self._data.peek(offset, length)

    def assemble(self, item: Item) -> _OwnTensor:
        made = self._assembled[item.nonce] = _OwnTensor(self._data.empty(item.shape.size), partial(self._assembled.pop, item.nonce, None))
        return made

    def append(self, item: Item, at: int, length: int) -> None:
        self._data.copy(self._assembled[item.nonce].data[at:at + length], item.offset + HEADER)

    def number_of(self, item: Item, start: int, length: int, device: str) -> int:
        return self._data.number_of(self._assembled[item.nonce].data[start:start + length], device)

    def close(self) -> None:
        _pools.pop(self.name[0], None)
        self._data.close()
