# SPDX-License-Identifier: Apache-2.0
"""The memory of a KV cache that the agent can reach.

On the CPU the engine allocates the whole cache by one call of torch.zeros(). Inside the context of
SharedMemory that call is answered with a tensor over a memfd. Nothing else is changed, and nothing
depends on the engine's version except that call: locate() proves for each tensor that it lies inside.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode

from .. import errors
from ..memory import Memory

if TYPE_CHECKING:
    from ..client import Client
    from ..handles import Region

__all__ = ["SharedMemory"]

_BYTES = (torch.int8, torch.uint8)


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
        if tensor.device.type != "cpu":
            raise errors.Unsupported(f"the KV cache of layer {name} is on {tensor.device}, which dray does not serve",
                                     fix="Run the engine on a CPU, or without DrayConnector.")
        start = int(tensor.data_ptr())
        end = start + sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True)) \
            * tensor.element_size() + tensor.element_size()
        place = 0
        for address, memory in self._memories:
            if address <= start and end <= address + memory.size:
                return place + start - address
            place += memory.size
        raise errors.Unsupported(
            f"the KV cache of layer {name} is not in memory that the connector has made",
            fix="Let no other connector of MultiConnector allocate the KV cache, and use a version of vLLM that "
                "docs/vllm.md names.")

    def region(self, client: Client) -> Region:
        """Registers the memory. Blocks; for the start of the engine."""
        extents: Iterable[tuple[Memory, int, int]] = [(memory, 0, memory.size) for _, memory in self._memories]
        return client.region(extents, name="kv")
