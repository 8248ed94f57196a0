# SPDX-License-Identifier: Apache-2.0
"""The worker side: copies outputs between the model runner's cache and the pool. It has no session with an agent."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, MutableMapping
from typing import Any

import torch

from ... import errors
from ..._checksum import checksum
from ...memory import Memory
from .door import Doors
from .gpu_pool import GpuPool
from .header import HEADER, HEADER_BYTES, pack, read, seal, sealed
from .mapped import MappedOutputs
from .pieces import SLOTS, piece_of, slot
from .protocol import Place, StepMetadata, WorkerMetadata

__all__ = ["WorkerSide"]

_logger = logging.getLogger("vllm.dray")
_COPIED = 128 << 10  # bytes of an output that are copied sooner than they are mapped


class WorkerSide:
    """One for each rank. dtype: of the outputs. saves: this rank stores outputs, which all ranks have; one is enough."""

    def __init__(self, dtype: Any, device: str, saves: bool) -> None:
        self._dtype, self._device, self._saves = dtype, device, saves
        self._memory: Memory | None = None
        self._tensor: Any = None  # tensor over the pool
        self._gpu: GpuPool | None = None  # the pool, if it lies in the memory of the GPU
        self._metadata: StepMetadata | None = None
        self._kept: dict[bytes, Any] = {}  # bytes of outputs that move in pieces, by nonce
        self._copied: int | None = None  # the step whose loads are complete
        self._doors = Doors()
        self._mapped = MappedOutputs(dtype)

    def step(self, metadata: StepMetadata) -> None:
        """What the scheduler side has decided for this step."""
        self._metadata = metadata
        self._mapped.step()
        if self._memory is None and self._gpu is None and (metadata.saves or metadata.pieces or not all(place.path for place in metadata.loads.values())):
            self._gpu = GpuPool.find(metadata.pool[0])
            if self._gpu is None:
                self._map(*metadata.pool)
        for nonce in metadata.done:
            self._kept.pop(nonce, None)
        for place, index in metadata.pieces:
            if place.nonce in self._kept:
                self._store_piece(place, index)

    @property
    def idle(self) -> bool:
        """True if no place in another engine's pool is held; for tests."""
        return self._mapped.idle

    def end(self) -> None:
        if self._gpu is not None:
            self._gpu.complete()
        self._mapped.end()
        self._metadata = None

    def _map(self, path: str, size: int) -> None:
        """Maps the pool, which the scheduler's process owns."""
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as e:
            raise errors.Io(f"the pool of encoder outputs at {path} cannot be opened: {e.strerror}",
                            fix="Run all processes of the engine on one host, with the same uid.") from None
        self._memory = Memory(size, fd=descriptor, populate=False)
        self._tensor = torch.frombuffer(self._memory.view, dtype=torch.uint8)
        if self._device == "cuda":  # a copy of pageable memory is slower, and works as well
            torch.cuda.cudart().cudaHostRegister(self._tensor.data_ptr(), size, 0)

    # --- stores -------------------------------------------------------------------------------------

    def save_known(self, cache: Mapping[str, Any]) -> None:
        """Stores outputs that were computed in earlier steps."""
        if self._metadata is not None:
            for identifier in self._metadata.saves:
                if identifier in cache:
                    self.save(cache, identifier)

    def save(self, cache: Mapping[str, Any], identifier: str) -> None:
        """Stores an output that the model runner has computed. Nobody reads it before the request has ended."""
        if self._metadata is None or not self._saves:
            return
        for place in self._metadata.saves.get(identifier, ()):
            if place.nonce not in self._kept and not self._sealed(place):
                self._store(cache[identifier], place)

    def _sealed(self, place: Place) -> bool:
        if self._gpu is not None:
            return self._gpu.sealed(place)
        assert self._memory is not None
        return sealed(self._memory.view, place)

    def _store(self, output: Any, place: Place) -> None:
        if output.dtype != self._dtype or tuple(output.shape) != (place.rows, place.width):
            _logger.error("dray: an output of %s in %s was computed, and room was made for %s in %s; it is not stored",
                          tuple(output.shape), output.dtype, (place.rows, place.width), self._dtype)
            return
        if place.window:
            self._keep(output, place)
            return
        if self._gpu is not None:
            self._gpu.store(place, output)
            return
        assert self._memory is not None
        start = place.offset + HEADER
        if self._device == "cpu":
            # PyTorch's own copies use all of its threads, which wait for each other on busy processors.
            self._memory.view[start:start + place.size] = memoryview(output.contiguous().view(torch.uint8).numpy()).cast("B")
        else:
            self._view(place).copy_(output)
        seal(self._memory.view, place.offset, place.nonce, place.digest, place.size)

    def _keep(self, output: Any, place: Place) -> None:
        """Keeps an output that is larger than the pool, until the scheduler side says that it is not needed any more."""
        if output.untyped_storage().nbytes() > place.size:
            output = output.clone()  # the rest of its batch is not kept
        self._kept[place.nonce] = output.contiguous().view(-1).view(torch.uint8)
        for index in range(min(SLOTS, -(-place.size // piece_of(place.window)))):
            self._store_piece(place, index)

    def _store_piece(self, place: Place, index: int) -> None:
        """Copies a piece of an output to its slot."""
        piece = piece_of(place.window)
        part = self._kept[place.nonce][index * piece:(index + 1) * piece]
        at = slot(place.offset, piece, index)
        if self._gpu is not None:
            self._gpu.store_piece(place, index, at, part)
            return
        assert self._memory is not None
        start = at + HEADER
        data = self._memory.view[start:start + part.numel()]
        self._tensor[start:start + part.numel()].copy_(part)
        self._memory.view[at:at + HEADER_BYTES] = pack(place.nonce, place.digest, index, checksum(data))

    def _view(self, place: Place) -> Any:
        """(rows, width) of a place in the pool."""
        start = place.offset + HEADER
        return self._tensor[start:start + place.size].view(self._dtype).view(place.rows, place.width)

    # --- loads --------------------------------------------------------------------------------------

    def load(self, cache: MutableMapping[str, Any]) -> None:
        """Gives the model runner the outputs of this step. They are copied, some of them later, so that their places can be used again."""
        if self._metadata is None:
            return
        for identifier, place in self._metadata.loads.items():
            if identifier not in cache and not self._map_output(cache, identifier, place):
                cache[identifier] = self._copy(place)
        self._copied = self._metadata.number

    def _map_output(self, cache: MutableMapping[str, Any], identifier: str, place: Place) -> bool:
        """False if the output is to be copied in this step."""
        pool = self._doors.find(place.door) if self._device == "cpu" and place.size > _COPIED else None
        return pool is not None and self._mapped.load(cache, identifier, pool, place)

    def _copy(self, place: Place) -> Any:
        """The output in a place, on the device."""
        if not place.path and self._gpu is not None:
            return self._gpu.load(place, self._dtype)
        if not place.path and self._device != "cpu":
            return self._view(place).to(self._device, copy=True)
        output = torch.frombuffer(self._read(place), dtype=self._dtype).view(place.rows, place.width)
        return output if self._device == "cpu" else output.to(self._device)

    def _read(self, place: Place) -> bytearray:
        """A copy of the output in a place, which the scheduler's process keeps until this step is over, and whose bytes it has verified."""
        start = place.offset + HEADER
        if not place.path:
            assert self._memory is not None
            return bytearray(self._memory.view[start:start + place.size])
        pool = self._doors.find(place.door)
        output = pool.read(start, place.size) if pool is not None else None
        if output is None:
            self._doors.knock(place.door)
            output = bytearray(place.size)
            fd = os.open(place.path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                read(fd, memoryview(output), start)
            finally:
                os.close(fd)
        return output

    def close(self) -> None:
        """Gives up the pools of other engines."""
        self._mapped.close()
        self._doors.close()

    def take_metadata(self) -> WorkerMetadata | None:
        """What the scheduler side has to know after this step."""
        copied, self._copied = self._copied, None
        return WorkerMetadata(copied) if copied is not None else None
