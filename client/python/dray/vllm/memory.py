# SPDX-License-Identifier: Apache-2.0
"""The memory of a KV cache that the agent can reach.

On the CPU the engine allocates the whole cache by one call of torch.zeros(). Inside the context of
SharedMemory that call is answered with a tensor over a memfd. On a GPU, gpu.Pool is such a context, and any
other memory that the driver can share is used as well. Nothing depends on the engine's version except
these calls: both kinds of memory prove for each tensor that the agent can reach it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode

from .. import errors
from ..memory import Memory

if TYPE_CHECKING:
    from ..client import Client
    from ..handles import Region
    from .push_worker import Mark

__all__ = ["Shared", "SharedMemory", "make_pool", "marker", "share", "span", "spread"]

_BYTES = (torch.int8, torch.uint8)


@dataclass(frozen=True)
class Shared:
    """Tensors in memory that the agent can reach. offsets: of each in the region, of `length` bytes. add: makes the region."""

    offsets: dict[str, int]
    length: int
    add: Callable[[Client], Region]


class SharedMemory(TorchFunctionMode):
    """A context in which allocations of bytes come from memfds; then the region of these.

    The object owns the memory and lives as long as the tensors.
    """

    def __init__(self) -> None:
        super().__init__()
        self._memories: list[tuple[int, Memory]] = []  # with the address of each

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is not torch.zeros or kwargs.get("dtype") not in _BYTES or \
                torch.device(kwargs.get("device") or "cpu").type != "cpu":
            return func(*args, **kwargs)
        size = args[0] if args else kwargs.get("size")
        n = size if isinstance(size, int) else size[0] if len(size) == 1 else 0
        if len(args) > 1 or not n:
            return func(*args, **kwargs)
        memory = Memory(n, name="dray-kv")
        self._memories.append((ctypes.addressof(ctypes.c_char.from_buffer(memory.view)), memory))
        return torch.frombuffer(memory.view, dtype=kwargs["dtype"], count=n)

    @property
    def length(self) -> int:
        """Bytes of the region."""
        return sum(memory.size for _, memory in self._memories)

    def locate(self, tensors: Mapping[str, Any]) -> dict[str, int]:
        """The offset of each tensor in the region. errors.Unsupported: one lies elsewhere."""
        return {name: self._offset(name, tensor) for name, tensor in tensors.items()}

    def _offset(self, name: str, tensor: Any) -> int:
        start, length = span(tensor)
        end = start + length
        place = 0
        for address, memory in self._memories:
            if address <= start and end <= address + memory.size:
                return place + start - address
            place += memory.size
        raise errors.Unsupported(
            f"the KV cache of layer {name} is not in memory that the connector has made",
            fix="Set bounce to true to copy blocks; or let this connector allocate the KV cache (option 'pool', and no other "
                "child of MultiConnector with a pool), with a version of vLLM that docs/vllm.md names.")

    def region(self, client: Client) -> Region:
        """Registers the memory. Blocks; for the start of the engine."""
        extents: Iterable[tuple[Memory, int, int]] = [(memory, 0, memory.size) for _, memory in self._memories]
        return client.region(extents, name="kv")


def make_pool(device: str) -> Any:
    """A context for the engine's allocation of the KV cache on a kind of device."""
    if device == "cpu":
        return SharedMemory()
    from .gpu import Pool

    return Pool()


def marker(device: str) -> Mark | None:
    """Of PushWorker, for a kind of device."""
    if device == "cpu":
        return None
    from .gpu import mark

    return mark


def share(tensors: Mapping[str, Any], pool: Any) -> Shared:
    """Proves that the agent can reach tensors. pool: of make_pool(), or None. errors.Unsupported: why it cannot."""
    if next(iter(tensors.values())).device.type == "cpu":
        memory = pool if pool is not None else SharedMemory()
        return Shared(memory.locate(tensors), memory.length, memory.region)
    from .gpu import GpuMemory

    gpu = GpuMemory(tensors)
    return Shared(gpu.offsets, gpu.length, gpu.region)


def span(tensor: Any) -> tuple[int, int]:
    """(address, bytes) of a tensor, from its first element to its last."""
    last = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    return int(tensor.data_ptr()), (last + 1) * tensor.element_size()


def spread(tensors: Mapping[str, Any]) -> tuple[dict[str, int], list[tuple[int, int]]]:
    """(offsets, ranges): the memory that tensors cover, as (address, bytes), and the place of each in these ranges together."""
    ranges: list[list[int]] = []
    for start, length in sorted(span(tensor) for tensor in tensors.values()):
        if ranges and start <= ranges[-1][1]:
            ranges[-1][1] = max(ranges[-1][1], start + length)
        else:
            ranges.append([start, start + length])
    offsets = {}
    for name, tensor in tensors.items():
        start, before = span(tensor)[0], 0
        for first, end in ranges:
            if first <= start < end:
                offsets[name] = before + start - first
                break
            before += end - first
    return offsets, [(first, end - first) for first, end in ranges]
