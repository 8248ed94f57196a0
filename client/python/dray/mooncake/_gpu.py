# SPDX-License-Identifier: Apache-2.0
"""Memory of GPUs: regions of whole allocations, which registrations in the same allocations share.

Another process can open an allocation only as a whole. So a region has all of it, and what peers may use is in its tokens.
"""

from __future__ import annotations

import contextlib
import threading

from .. import cuda, errors
from ..client import Client
from ..handles import Region

__all__ = ["GpuRegion", "GpuRegions"]


class GpuRegion:
    """A region of adjacent allocations. address: where it begins."""

    def __init__(self, region: Region, allocations: tuple[cuda.Allocation, ...]) -> None:
        self.region, self.allocations = region, allocations
        self.address = allocations[0].address
        self.users = 1  # registrations

    def has(self, allocations: tuple[cuda.Allocation, ...]) -> bool:
        """It is of these allocations, too. An allocation that was freed is another one than its successor at the address."""
        n = len(allocations)
        if any(not one.id for one in allocations):  # unknown ones may be others
            return False
        return any(self.allocations[i:i + n] == allocations for i in range(len(self.allocations) - n + 1))

    def is_alive(self) -> bool:
        """The agent has it: with the loss of the GPU it ends, which no event says. Waits for the agent."""
        if self.region.error is not None:
            return False
        try:
            self.region.revoke(self.region.export(0, 1))
        except (errors.NotFound, errors.GpuLost):
            return False
        return True


class GpuRegions:
    """The regions of a client. Any thread may use it."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._regions: list[GpuRegion] = []
        self._lock = threading.Lock()

    def take(self, address: int, length: int) -> GpuRegion | None:
        """A region that has this memory, until give(); None: it is not of a GPU. Waits for the agent, which starts the GPU the first time.

        errors.Range: the memory of the GPU is shorter. errors.Unsupported: it cannot be shared, or the agent cannot use it; the error
        says why.
        """
        allocations = _allocations(address, length)
        if not allocations:
            return None
        with self._lock:
            for found in self._regions:
                if found.has(allocations) and found.is_alive():
                    found.users += 1
                    return found
            begin, last = allocations[0].address, allocations[-1]
            with cuda.describe(begin, last.address + last.length - begin) as extents:
                made = GpuRegion(self._client.region(extents, name="mooncake gpu"), allocations)
            self._regions.append(made)
            return made

    def give(self, taken: GpuRegion) -> None:
        """Ends the region if nobody else has it."""
        with self._lock:
            taken.users -= 1
            if taken.users:
                return
            self._regions.remove(taken)
        with contextlib.suppress(errors.NotFound):
            taken.region.remove()


def _allocations(address: int, length: int) -> tuple[cuda.Allocation, ...]:
    """Those that the range lies in; none: it does not begin in memory of a GPU."""
    found: list[cuda.Allocation] = []
    at, end = address, address + length
    while at < end:
        one = cuda.find_allocation(at)
        if one is None:
            if not found:
                return ()
            raise errors.Range(f"the memory of the GPU at {address:#x} ends after {at - address} of {length} bytes",
                               fix="Pass the length of the allocation, or less.")
        found.append(one)
        at = one.address + one.length
    return tuple(found)
