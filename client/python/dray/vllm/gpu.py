# SPDX-License-Identifier: Apache-2.0
"""The memory of a KV cache on an NVIDIA GPU: a pool of memory that can be shared, and the region of tensors wherever they lie."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from .. import cuda, errors
from .memory import span, spread

if TYPE_CHECKING:
    from ..client import Client
    from ..handles import Region

__all__ = ["GpuMemory", "Pool", "mark"]


class Pool:
    """A context in which PyTorch allocates GPU memory by libdray: virtual memory with descriptors, which RDMA devices reach.

    The object owns the pool, and lives as long as the tensors. errors.Unsupported: this GPU or its driver
    has no such memory.
    """

    def __init__(self) -> None:
        import torch

        device = torch.cuda.current_device()
        cuda.free(cuda.allocate(1, device), 1, device)  # PyTorch would report any failure as out of memory
        allocator = self._allocator = torch.cuda.memory.CUDAPluggableAllocator(*cuda.torch_allocator())
        self._pool = torch.cuda.memory.MemPool(allocator.allocator())
        self._context: Any = None

    def __enter__(self) -> Pool:
        import torch

        self._context = torch.cuda.use_mem_pool(self._pool)
        self._context.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        context, self._context = self._context, None
        context.__exit__(kind, error, traceback)


class GpuMemory:
    """The memory that tensors of one GPU cover. Which allocator it came from does not matter, if the driver can share it.

    length: of the region in bytes. offsets: of each tensor in the region. errors.Unsupported: memory that
    cannot be shared, with the reason and the setting that helps.
    """

    def __init__(self, tensors: Mapping[str, Any]) -> None:
        self.offsets, ranges = spread(tensors)
        self.length = sum(length for _, length in ranges)
        try:
            self._extents = cuda.describe_ranges(ranges)
        except errors.Error as e:
            refusals = filter(None, (_refusal(name, tensor) for name, tensor in tensors.items()))
            why = next(refusals, f"the KV cache cannot be shared: {e.message}")
            raise errors.Unsupported(
                why, fix="Let this connector allocate the KV cache (option 'pool'), or set bounce to true to copy blocks.") from None

    def region(self, client: Client) -> Region:
        """Registers the memory. Blocks; for the start of the engine. Once."""
        with self._extents as extents:
            return client.region(extents, name="kv")


def mark() -> Callable[[], bool]:
    """Marks the end of what was started on the current stream; the function returned says whether the GPU has come to it."""
    import torch

    event = torch.cuda.Event()
    event.record()
    return lambda: bool(event.query())


def _refusal(name: str, tensor: Any) -> str | None:
    """Why a tensor by itself cannot be shared; None if it can."""
    try:
        cuda.describe_ranges([span(tensor)]).close()
    except errors.Error as e:
        return f"the KV cache of layer {name} cannot be shared: {e.message}"
    return None
