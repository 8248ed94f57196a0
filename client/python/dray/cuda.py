# SPDX-License-Identifier: Apache-2.0
"""Memory of NVIDIA GPUs for regions, and words between streams and transfers.

    extents = dray.cuda.describe_tensors(kv_layers)  # PyTorch's, or whatever has data_ptr()
    with extents:
        region = client.region(extents, name="kv")

    words = dray.cuda.StreamWords(client, 2)
    ready, sent = words
    ready.write(torch.cuda.current_stream(), n)      # once the kernels before it are done
    client.write(region, remote, ops, wait_word=ready.at(n), set_word=sent.at(n))
    sent.wait(torch.cuda.current_stream(), n)        # kernels after it may overwrite the blocks

libdray calls the driver that the engine has loaded. Nothing here makes a CUDA context or changes the
current one. Errors of the driver are errors.GpuLost, errors.NoMemory and errors.Io.
"""

from __future__ import annotations

import contextlib
import ctypes
import weakref
from collections.abc import Iterable, Iterator
from ctypes import byref, c_int, c_uint32, c_uint64, c_void_p, create_string_buffer
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

from . import _arguments as arguments
from . import _library as lib
from . import _schema as s
from . import errors
from .handles import Region

if TYPE_CHECKING:
    from .client import Client

__all__ = ["DMABUF", "IPC", "KINDS", "VMM", "Allocation", "Extents", "StreamWord", "StreamWords", "allocate",
           "describe", "describe_ranges", "describe_tensor", "describe_tensors", "find_allocation", "free",
           "tensor_range", "torch_allocator"]

VMM, IPC, DMABUF = "cuda_vmm", "cuda_ipc", "dmabuf"
# Tried in this order for each allocation. Only RDMA reaches memory that is shared as dmabuf, so that
# kind has to be requested by name.
KINDS = (VMM, IPC)
_KIND = {VMM: s.KIND_CUDA_VMM, IPC: s.KIND_CUDA_IPC, DMABUF: s.KIND_DMABUF}


class Extents:
    """GPU memory in a form that other processes can open, for Client.region().

    device: UUID of the GPU. extents: (kind, index, offset, length), with the index of a descriptor
    in fds or of an IPC handle in handles; offsets in bytes from the base of an allocation.
    allocations: for kind cuda_vmm the size in bytes of the allocation of each descriptor; if it is 0,
    the agent determines it, which takes longer. This object owns the descriptors until close(); they
    keep the memory allocated. A region of it stays after close().
    """

    def __init__(self, raw: Any) -> None:
        self._raw: Any = raw
        self.device: str = lib.text(raw.device)
        self.extents: list[tuple[int, int, int, int]] = []
        self.fds: list[int] = []
        self.handles: list[bytes] = []
        self.allocations: list[int] = []
        handle_at: dict[int, int] = {}
        for e in self._records():
            if e.handle:
                if e.handle not in handle_at:
                    handle_at[e.handle] = len(self.handles)
                    self.handles.append(ctypes.string_at(e.handle, lib.IPC_BYTES))
                index = handle_at[e.handle]
            else:
                if e.fd not in self.fds:
                    self.fds.append(e.fd)
                    if e.kind == s.KIND_CUDA_VMM:
                        self.allocations.append(e.allocation)
                index = self.fds.index(e.fd)
            self.extents.append((e.kind, index, e.offset, e.length))

    def _records(self) -> list[Any]:
        """For Client.region(): the library's records."""
        if self._raw is None:
            raise errors.Invalid("the description of GPU memory is closed",
                                 fix="Make the region inside the `with` block.")
        return self._raw.extents[:self._raw.extents_n]  # type: ignore[no-any-return]

    @property
    def length(self) -> int:
        """Bytes of all extents."""
        return sum(extent[3] for extent in self.extents)

    def close(self) -> None:
        """Closes the descriptors. May be called twice."""
        raw, self._raw = getattr(self, "_raw", None), None
        if raw is not None:
            lib.held.dray_cuda_extents_free(byref(raw))
            self.fds.clear()

    def __enter__(self) -> Extents:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 traceback: TracebackType | None) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


class Allocation(NamedTuple):
    """An allocation on a GPU. id: the driver's number, which no other allocation of this process gets; 0: unknown."""

    address: int
    length: int
    id: int


def find_allocation(pointer: int) -> Allocation | None:
    """The allocation on a GPU that has the byte at an address; None: the address is not memory of a GPU.

    Managed memory and pinned memory of the host are not, because CPUs reach them. Loads no driver. Takes
    some microseconds; any thread. errors.Unsupported: the driver does not report the bounds.
    """
    raw, why = lib.CudaAllocation(), create_string_buffer(lib.WHY_SIZE)
    code = lib.released.dray_cuda_find(arguments.number("the address", pointer), byref(raw), why, len(why))
    if code == -errors.NotFound.code:
        return None
    if code:
        raise errors.make(code, lib.text(why.value))
    return Allocation(raw.address, raw.length, raw.id)


def describe_ranges(ranges: Iterable[tuple[int, int]], kinds: str | Iterable[str] | None = None) -> Extents:
    """Extents of ranges of device memory, (address, bytes) each, in order; all on one GPU.

    kinds: the kinds to try for each allocation, in order (default: KINDS), or one kind. Takes some
    microseconds for each allocation; any thread. errors.Invalid: not GPU memory, or a range passes the
    end of its memory. errors.Unsupported: the memory cannot be shared; the message names the setting
    that helps. errors.GpuDevice: on several GPUs. errors.FdLimit, errors.TooLarge: more allocations
    than a region can have.
    """
    wanted = [arguments.choice("a kind of GPU memory", _KIND, kind)
              for kind in ((kinds,) if isinstance(kinds, str) else tuple(kinds or KINDS))]
    pairs = list(ranges)
    if not pairs:
        raise errors.Invalid("there is no range to describe", fix="Pass (address, bytes) at least once.")
    array = (lib.CudaRange * len(pairs))()
    for entry, (at, length) in zip(array, pairs, strict=True):
        if not 0 < length < 1 << 64 or not 0 <= at < 1 << 64:
            raise errors.Invalid(f"the range at {at:#x} is empty or too long")
        entry.address, entry.length = at, length
    raw, why = lib.CudaExtents(), create_string_buffer(lib.WHY_SIZE)
    code = lib.released.dray_cuda_describe(array, len(array), (c_int * len(wanted))(*wanted), len(wanted),
                                           byref(raw), why, len(why))
    if code:
        raise errors.make(code, lib.text(why.value))
    return Extents(raw)


def describe(pointer: int, nbytes: int, kinds: str | Iterable[str] | None = None) -> Extents:
    """Extents of nbytes at a device pointer. See describe_ranges()."""
    return describe_ranges([(pointer, nbytes)], kinds)


def tensor_range(tensor: Any) -> tuple[int, int]:
    """(address, bytes) of a PyTorch tensor, from its first element to its last."""
    if not getattr(tensor, "is_cuda", True):
        raise errors.Invalid(f"the tensor is on {tensor.device}, not on a GPU", fix="Pass a tensor on a GPU.")
    try:
        if not tensor.numel():
            raise errors.Invalid("the tensor has no elements", fix="Pass a tensor with memory.")
        last = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
        return tensor.data_ptr(), (last + 1) * tensor.element_size()
    except AttributeError:
        raise errors.Invalid(f"a {type(tensor).__name__} is not a tensor",
                             fix="Pass an object with data_ptr(), numel(), stride() and element_size().") from None


def describe_tensors(tensors: Iterable[Any], kinds: str | Iterable[str] | None = None) -> Extents:
    """Extents of PyTorch tensors, in order; all on one GPU.

    A tensor that is not contiguous is included from its first element to its last, with the bytes
    between. Both of PyTorch's allocators work. Expandable segments become several extents, one for
    each 20 MiB; a region can have 250 of them.
    """
    return describe_ranges([tensor_range(tensor) for tensor in tensors], kinds)


def describe_tensor(tensor: Any, kinds: str | Iterable[str] | None = None) -> Extents:
    """Extents of one PyTorch tensor. See describe_tensors()."""
    return describe_tensors([tensor], kinds)


def allocate(nbytes: int, device: int = 0) -> int:
    """Address of new memory on a GPU that can be shared as VMM and that RDMA devices reach.

    device: number of the GPU in this process. The caller frees the memory with free(). Blocks for some
    milliseconds for each GiB; any thread. errors.Unsupported: the GPU or its driver cannot do this.
    """
    address, why = c_uint64(), create_string_buffer(lib.WHY_SIZE)
    code = lib.released.dray_cuda_alloc(arguments.number("the size of the memory", nbytes, (1 << 62) - 1), device,
                                        byref(address), why, len(why))
    if code:
        raise errors.make(code, lib.text(why.value))
    return address.value


def free(address: int, nbytes: int, device: int = 0) -> None:
    """Frees memory of allocate(). Waits for the work of the current context."""
    lib.released.dray_cuda_free(address, nbytes, device)


def torch_allocator() -> tuple[str, str, str]:
    """Arguments of torch.cuda.memory.CUDAPluggableAllocator, whose memory then comes from allocate()."""
    return lib.path(), "dray_cuda_torch_alloc", "dray_cuda_torch_free"


def _stream(stream: Any) -> int | None:
    """The CUstream of a number, or of an object that has one, such as torch.cuda.Stream."""
    return getattr(stream, "cuda_stream", stream) or None


class StreamWord:
    """A 32-bit word that transfers and GPU streams wait for and set; an item of StreamWords."""

    __slots__ = ("index", "words")

    def __init__(self, words: StreamWords, index: int) -> None:
        self.words, self.index = words, index

    def at(self, value: int) -> tuple[Region, int, int]:
        """The argument wait_word or set_word of a transfer."""
        return self.words.region, self.index * 4, value

    @property
    def value(self) -> int:
        """Value that the CPU sees. Set it if a transfer failed that a stream waits for."""
        self.words._in_use()
        return int(self.words.view[self.index])

    @value.setter
    def value(self, value: int) -> None:
        self.words._in_use()
        self.words.view[self.index] = arguments.number("the value of a word", value, (1 << 32) - 1)

    def write(self, stream: Any, value: int) -> None:
        """Makes the stream write the word when all earlier work is done and visible. Does not block."""
        self.words._enqueue(lib.held.dray_cuda_stream_write, stream, self.index, value)

    def wait(self, stream: Any, value: int, *, equal: bool = False) -> None:
        """Makes later work of the stream wait until the word has reached the value.

        equal: until the word equals the value. The agent sets a word when the bytes of the transfer
        are visible to the GPU. Does not block.
        """
        self.words._enqueue(lib.held.dray_cuda_stream_wait, stream, self.index, value, int(equal))


class StreamWords:
    """`count` words, all 0, in a region of host memory that the GPUs of this process reach.

    A CUDA context must be current on this thread. PyTorch makes one current at its first CUDA call
    of the thread. Blocks until the region is registered. region: their Region. view: the words as a
    memoryview of 32-bit numbers. The memory is freed by close(), or with the last array or slice made
    of the view.
    """

    def __init__(self, client: Client, count: int = 1) -> None:
        self._words: c_void_p | None = None
        self._client = client
        words = c_void_p()
        with client._blocking:
            client._check(lib.released.dray_cuda_words_new, arguments.number("count", count, (1 << 32) - 1),
                          byref(words))
        self._words = words
        handle = lib.held.dray_cuda_word(words, 0, 0).region
        self.region: Region = Region(client, "words", 3, handle, count * 4, self)
        client._regions[handle] = self.region
        self._memory: Any = (c_uint32 * count).from_address(lib.held.dray_cuda_words_memory(words))
        self.view: memoryview = memoryview(self._memory).cast("B").cast("I")

    def __len__(self) -> int:
        return self.region.length // 4

    def __getitem__(self, index: int) -> StreamWord:
        if not 0 <= index < len(self):
            raise IndexError(f"word {index} of {len(self)}")
        return StreamWord(self, index)

    def __iter__(self) -> Iterator[StreamWord]:
        return (StreamWord(self, i) for i in range(len(self)))

    def _in_use(self) -> c_void_p:
        """The library's words."""
        if self._words is None:
            raise errors.Invalid("the words are closed", fix="Make new StreamWords.")
        return self._words

    def _enqueue(self, function: Any, stream: Any, index: int, value: int, *how: int) -> None:
        why = create_string_buffer(lib.WHY_SIZE)
        code = function(self._in_use(), _stream(stream), index,
                        arguments.number("the value of a word", value, (1 << 32) - 1), *how, why, len(why))
        if code:
            raise errors.make(code, lib.text(why.value))

    def close(self) -> None:
        """Removes the region, which blocks, and frees the words. May be called twice.

        No stream may use the words any more. An array or a slice made of the view keeps the memory.
        """
        words, self._words = self._words, None
        if words is None:
            return
        client = self._client
        with client._blocking:
            if client._d and self.region.handle:
                lib.released.dray_region_remove(client._d, self.region.handle)
        self.region._withdraw()
        # without a session the library frees only the memory
        weakref.finalize(self._memory, lib.released.dray_cuda_words_free, 0, words).atexit = False
        self._memory = None
        with contextlib.suppress(BufferError):  # an array uses the view
            self.view.release()

    def __enter__(self) -> StreamWords:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 traceback: TracebackType | None) -> None:
        self.close()
