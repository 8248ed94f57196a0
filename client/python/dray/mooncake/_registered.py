# SPDX-License-Identifier: Apache-2.0
"""The memory that an engine has registered: buffers by address."""

from __future__ import annotations

import bisect
import contextlib
import operator
import threading
from collections.abc import Iterable, Iterator

from .. import errors
from ..handles import Region
from ..memory import Memory
from ._exported import Exported
from ._gpu import GpuRegion, GpuRegions
from ._placed import Placed

__all__ = ["Buffer", "Registered", "Taken"]


class Buffer:
    """Registered memory. region: of memory that the agent reaches; None: private memory, which only this process can move.

    start: address where the region begins. placed: the mapping of shared memory here. gpu: what has the region of memory on a GPU.
    """

    def __init__(self, address: int, length: int, region: Region | None = None, memory: Memory | None = None,
                 placed: Placed | None = None, gpu: GpuRegion | None = None) -> None:
        self.address, self.length, self.start = address, length, address
        self.region, self.memory, self.placed, self.gpu = region, memory, placed, gpu
        self._exported = Exported(region) if region is not None else None
        self.served = Exported(region, address) if region is not None else None  # for engines that have Mooncake linked in
        if gpu is not None:
            self.region, self.start = gpu.region, gpu.address
            self._exported = Exported(gpu.region, offset=address - gpu.address, length=length)
        self.users = 0  # that copy to or from it
        self.removed = False

    def has(self, address: int, length: int) -> bool:
        """The whole range."""
        return self.address <= address and address + length <= self.address + self.length

    def token(self) -> str:
        """For peers; "" of private memory."""
        return self._exported.token() if self._exported is not None else ""

    def revoke(self) -> None:
        """Nobody else uses the memory by the token any more, nor gets another one."""
        if self._exported is not None:
            self._exported.close()


class Taken:
    """The buffers that a call uses: they stay what they are until Registered.give(), also when they are unregistered meanwhile."""

    def __init__(self, buffers: Iterable[Buffer]) -> None:
        """They do not overlap."""
        self.buffers = sorted(buffers, key=_address)
        self._starts = [buffer.address for buffer in self.buffers]
        self.has_gpu = any(buffer.gpu is not None for buffer in self.buffers)

    def find(self, address: int, length: int) -> Buffer | None:
        """The buffer that holds the whole range."""
        at = bisect.bisect_right(self._starts, address)
        buffer = self.buffers[at - 1] if at else None
        return buffer if buffer is not None and buffer.has(address, length) else None

    def find_gpu(self, address: int, length: int) -> Buffer | None:
        """As find(), of memory on a GPU."""
        found = self.find(address, length) if self.has_gpu else None
        return found if found is not None and found.gpu is not None else None


_address = operator.attrgetter("address")


class Registered:
    """Buffers that do not overlap. Any thread may use it."""

    def __init__(self, gpu: GpuRegions) -> None:
        self._gpu = gpu
        self._gpu_buffers = 0
        self._starts: list[int] = []
        self._buffers: dict[int, Buffer] = {}  # in the order of registration
        self._changed = threading.Condition(threading.RLock())

    def add(self, buffer: Buffer) -> None:
        """errors.Exists: it overlaps with another one."""
        with self._changed:
            at = bisect.bisect_right(self._starts, buffer.address)
            before = self._buffers[self._starts[at - 1]] if at else None
            if before and before.address + before.length > buffer.address or \
                    at < len(self._starts) and self._starts[at] < buffer.address + buffer.length:
                raise errors.Exists(f"memory at {buffer.address:#x} of {buffer.length} bytes overlaps with registered memory",
                                    fix="Unregister the other memory first.")
            self._starts.insert(at, buffer.address)
            self._buffers[buffer.address] = buffer
            self._gpu_buffers += buffer.gpu is not None

    def register(self, address: int, length: int) -> None:
        """Adds memory that stays the caller's. Waits for the agent if it is on a GPU. Errors: add(), GpuRegions.take()"""
        gpu = self._gpu.take(address, length)
        if gpu is None:
            self.add(Buffer(address, length))
        else:
            self._add_gpu(address, length, gpu)

    def _add_gpu(self, address: int, length: int, gpu: GpuRegion) -> None:
        try:
            self.add(Buffer(address, length, gpu=gpu))
        except BaseException:
            self._gpu.give(gpu)
            raise

    def register_gpu(self, address: int, length: int) -> None:
        """register() for memory on a GPU alone."""
        gpu = self._gpu.take(address, length)
        if gpu is not None:
            self._add_gpu(address, length, gpu)

    def unregister(self, address: int) -> None:
        """Ends the registration, as remove() does; then nobody else uses the memory. Memory of the agent's own is freed."""
        buffer = self.remove(address)
        try:
            if buffer.gpu is not None:
                buffer.revoke()
        finally:
            if buffer.gpu is not None:
                self._gpu.give(buffer.gpu)
            elif buffer.region is not None:
                buffer.region.remove()
            if buffer.placed is not None:
                buffer.placed.close()
            if buffer.memory is not None:
                buffer.memory.close()

    def shared(self) -> list[Buffer]:
        """Those that the agent can reach itself."""
        with self._changed:
            return [buffer for buffer in self._buffers.values() if buffer.region is not None]

    def first(self) -> Buffer | None:
        with self._changed:
            return next(iter(self._buffers.values()), None)

    def find(self, address: int, length: int) -> Buffer | None:
        """The buffer that holds the whole range."""
        with self._changed:
            at = bisect.bisect_right(self._starts, address)
            buffer = self._buffers[self._starts[at - 1]] if at else None
            return buffer if buffer is not None and buffer.has(address, length) else None

    @property
    def has_gpu(self) -> bool:
        """There is memory on a GPU."""
        return self._gpu_buffers > 0

    def take(self, ranges: list[tuple[int, int]]) -> Taken:
        """Keeps the registered ones of these ranges until give(): remove() waits."""
        taken: dict[int, Buffer] = {}
        with self._changed:
            last: Buffer | None = None  # of the range before, which is often that of the next one, too
            for address, length in ranges:
                if last is None or not last.has(address, length):
                    last = self.find(address, length)
                if last is not None:
                    taken[last.address] = last
            for buffer in taken.values():
                buffer.users += 1
        return Taken(taken.values())

    def give(self, taken: Taken) -> None:
        """After take()."""
        with self._changed:
            for buffer in taken.buffers:
                buffer.users -= 1
            self._changed.notify_all()

    @contextlib.contextmanager
    def using(self, ranges: list[tuple[int, int]]) -> Iterator[Taken]:
        """Keeps the buffers of these ranges registered meanwhile. errors.Range: one is not registered."""
        with self._changed:
            for address, length in ranges:
                if self.find(address, length) is None:
                    raise errors.Range(f"{length} bytes at {address:#x} are not in registered memory",
                                       fix="Register the memory at its engine first.")
            taken = self.take(ranges)
        try:
            yield taken
        finally:
            self.give(taken)

    def remove(self, address: int) -> Buffer:
        """Takes a buffer out, and waits until nobody uses it: what uses it has a deadline. errors.NotFound."""
        with self._changed:
            buffer = self._buffers.pop(address, None)
            if buffer is None:
                raise errors.NotFound(f"no memory is registered at {address:#x}",
                                      fix="Pass the address that was registered.")
            self._starts.remove(address)
            self._gpu_buffers -= buffer.gpu is not None
            buffer.removed = True
            while buffer.users:
                self._changed.wait()
            return buffer
