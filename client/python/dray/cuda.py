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

The module calls, by ctypes, the driver that the engine has loaded. Nothing here makes a CUDA context
or changes the current one.
"""

import contextlib
import os
from collections import namedtuple
from ctypes import byref, c_int, c_uint64, c_void_p

from . import _cuda_driver as cu
from . import _schema as s
from . import errors
from .memory import PAGE, Memory

IPC_BYTES = 64
HANDLES_MAX = 16384 // IPC_BYTES

VMM, IPC, DMABUF = "cuda_vmm", "cuda_ipc", "dmabuf"
# Tried in this order for each allocation. Only RDMA reaches memory that is shared as dmabuf, so that
# kind has to be requested by name.
KINDS = (VMM, IPC)
_KIND = {VMM: s.KIND_CUDA_VMM, IPC: s.KIND_CUDA_IPC, DMABUF: s.KIND_DMABUF}

# The shared part of one allocation. index: of its descriptor or handle. continues: the memory is from
# cuMemCreate(), so the bytes after it in a range may belong to another allocation.
_Share = namedtuple("_Share", "base size kind index continues")


class Extents:
    """GPU memory in a form that other processes can open, for Client.region().

    device: UUID of the GPU. extents: (kind, index, offset, length), with the index of a descriptor
    in fds or of an IPC handle in handles; offsets count from the base of an allocation.
    allocations: for kind cuda_vmm the size in bytes of the allocation of each descriptor; if it is 0
    or missing, the agent determines it, which takes longer. This object owns the descriptors until
    close(); they keep the memory allocated.
    """

    def __init__(self, device, extents=(), fds=(), handles=(), allocations=()):
        self.device = device
        self.extents, self.fds, self.handles = list(extents), list(fds), list(handles)
        self.allocations = list(allocations)

    @property
    def length(self):
        return sum(extent[3] for extent in self.extents)

    def close(self):
        while self.fds:
            os.close(self.fds.pop())

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()

    def __del__(self):
        self.close()


class _Found:
    """The allocation at one address, which is to be shared."""

    def __init__(self, driver, at, end):
        self.driver, self.at, self.end = driver, at, end
        if driver.attribute(cu.ATTRIBUTE_MEMORY_TYPE, at) != cu.MEMORY_DEVICE:
            raise errors.Invalid(f"there is no memory of a GPU at {at:#x}")
        self.device = driver.attribute(cu.ATTRIBUTE_DEVICE_ORDINAL, at, c_int)
        if self.device is None:
            raise errors.Invalid(f"there is no memory of a GPU at {at:#x}")
        if driver.attribute(cu.ATTRIBUTE_IS_MANAGED, at):
            raise self.refusal(
                "is managed memory, which cannot be shared; use cudaMalloc() or cuMemCreate()")
        self.context = driver.attribute(cu.ATTRIBUTE_CONTEXT, at, c_void_p) or 0
        self.allocation = None

    def refusal(self, why):
        return errors.Unsupported(f"memory at {self.at:#x} {why}")

    def _is_mapping(self, base, size):
        """True if the first and the last byte belong to this allocation."""
        if not base <= self.at < base + size:
            return False
        for end in base, base + size - 1:
            with self.driver.allocation(end) as allocation:
                if allocation != self.allocation:
                    return False
        return True

    def mapping(self):
        """(base, bytes) of the mapping, which begins where the allocation begins.

        Drivers differ: some answer a query for this mapping, others for all adjacent mappings. So
        each answer is checked before it is used.
        """
        base = self.driver.attribute(cu.ATTRIBUTE_MAPPING_BASE, self.at)
        size = self.driver.attribute(cu.ATTRIBUTE_MAPPING_SIZE, self.at)
        if base is not None and size and self._is_mapping(base, size):
            return base, size
        with contextlib.suppress(errors.Io):
            base, size = self.driver.address_range(self.at)
            if self._is_mapping(base, size):
                return base, size
        raise self.refusal("is mapped, but the driver does not report the bounds of the mapping")


def _descriptor(driver, function, *arguments):
    fd = c_int(-1)
    driver.call(function, byref(fd), *arguments)
    os.set_inheritable(fd.value, False)
    return fd.value


def _share_vmm(found):
    driver, prop = found.driver, cu.AllocationProp()
    base, size = found.mapping()
    driver.call("cuMemGetAllocationPropertiesFromHandle", byref(prop), found.allocation)
    if not prop.handle_types & cu.HANDLE_POSIX_FD:
        if prop.handle_types & cu.HANDLE_FABRIC:
            raise found.refusal(
                "exports fabric handles only: make it with a POSIX descriptor handle; PyTorch: "
                "remove expandable_segments from PYTORCH_CUDA_ALLOC_CONF, or keep "
                "/dev/nvidia-caps-imex-channels out of the container")
        raise found.refusal(
            "was allocated without an export handle: make it with "
            "CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR; PyTorch: set "
            "TORCH_CUDA_EXPANDABLE_SEGMENTS_IPC=1, or remove expandable_segments from "
            "PYTORCH_CUDA_ALLOC_CONF")
    return base, size, _descriptor(driver, "cuMemExportToShareableHandle", found.allocation,
                                   cu.HANDLE_POSIX_FD, 0)


def _share_ipc(found):
    driver, handle = found.driver, cu.IpcHandle()
    if driver.attribute(cu.ATTRIBUTE_IS_LEGACY_IPC_CAPABLE, found.at, c_int) == 0:
        raise found.refusal(
            "cannot be shared by a legacy IPC handle; memory of a stream-ordered pool "
            "(cudaMallocAsync) never can; use cudaMalloc() or cuMemCreate()")
    base, size = driver.address_range(found.at)
    driver.call("cuIpcGetMemHandle", byref(handle), base)
    return base, size, bytes(handle.data)


def _share_dmabuf(found):
    """Exports whole pages, as the driver requires; they may begin before the allocation does."""
    driver, supported = found.driver, c_int()
    if not driver.has("cuMemGetHandleForAddressRange") or driver.raw(
            "cuDeviceGetAttribute", byref(supported), cu.DEVICE_DMABUF_SUPPORTED,
            found.device) or not supported.value:
        raise found.refusal("cannot be shared as DMA-BUF by this GPU and driver")
    base, end = found.at, found.end
    if found.allocation is None:
        base, size = driver.address_range(found.at)
        end = base + size
    base -= base % PAGE
    end += -end % PAGE
    return base, end - base, _descriptor(driver, "cuMemGetHandleForAddressRange", base, end - base,
                                         cu.RANGE_DMABUF, 0)


_SHARE = {VMM: _share_vmm, IPC: _share_ipc, DMABUF: _share_dmabuf}


class _Walk:
    """Converts ranges to extents."""

    def __init__(self, kinds):
        self.driver, self.kinds = cu.driver(), kinds
        self.device = None
        self.shares, self.result = [], Extents("")

    def _keep(self, kind, size, what):
        """Stores a descriptor or handle; returns its index."""
        result = self.result
        if kind == IPC:
            result.handles.append(what)
            if len(result.handles) > HANDLES_MAX:
                raise errors.TooLarge(f"the memory needs more than {HANDLES_MAX} handles, one for each "
                                      "allocation; make several regions of it")
            return len(result.handles) - 1
        result.fds.append(what)
        if kind == VMM:
            result.allocations.append(size)
        if len(result.fds) > s.FDS_MAX:
            raise errors.FdLimit(
                f"the memory needs more than {s.FDS_MAX} descriptors, one for each allocation; make "
                "several regions of it, or larger allocations")
        return len(result.fds) - 1

    def _share_by(self, found):
        """Shares an allocation by the first of the kinds that works.

        If none works, raises the error of the first kind that is for such memory, or an error that
        none of the kinds is.
        """
        first = None
        for kind in self.kinds:
            if kind != DMABUF and (kind == VMM) != (found.allocation is not None):
                continue
            try:
                base, size, what = _SHARE[kind](found)
            except errors.DrayError as e:
                first = first or e
                continue
            return _Share(base, size, kind, self._keep(kind, size, what), found.allocation is not None)
        raise first or found.refusal("is from cuMemCreate(): use kind cuda_vmm" if found.allocation
                                     else "is not from cuMemCreate(): use kind cuda_ipc")

    def _share_new(self, at, end, before):
        found = _Found(self.driver, at, end)
        with self.driver.allocation(at) as found.allocation:
            if before and found.allocation is None:
                raise errors.Invalid(f"the allocations behind the range end at {at:#x}")
            if self.device not in (None, found.device):
                raise errors.GpuDevice(
                    f"memory at {at:#x} is on device {found.device}, the memory before it on "
                    f"device {self.device}: make a region for each")
            with self.driver.context_for(found.context, found.device):
                share = self._share_by(found)
        self.device = found.device
        self.shares.append(share)
        return share

    def range(self, at, length):
        end, share = at + length, None
        if length <= 0 or end >> 64:
            raise errors.Invalid(f"the range at {at:#x} is empty or too long")
        while at < end:
            before = share
            if before and not before.continues:
                raise errors.Invalid(f"the allocation behind the range ends at {at:#x}")
            share = next((x for x in reversed(self.shares) if x.base <= at < x.base + x.size),
                         None) or self._share_new(at, end, before)
            n = min(end, share.base + share.size) - at
            self.result.extents.append((_KIND[share.kind], share.index, at - share.base, n))
            if len(self.result.extents) > s.EXTENTS_MAX:
                raise errors.TooLarge(f"more than {s.EXTENTS_MAX} extents")
            at += n

    def end(self):
        dmabufs = sum(share.kind == DMABUF for share in self.shares)
        if dmabufs not in (0, len(self.shares)):
            raise errors.Unsupported(
                f"{dmabufs} of {len(self.shares)} allocations can be shared only as dmabuf, which a "
                "region cannot mix with other kinds: make a region for each kind")
        self.result.device = self.driver.uuid(self.device)
        return self.result


def describe_ranges(ranges, kinds=None):
    """Extents of ranges of device memory, (address, bytes) each, in order; all on one GPU.

    kinds: the kinds to try for each allocation, in order (default: KINDS), or one kind.
    """
    kinds = (kinds,) if isinstance(kinds, str) else tuple(kinds or KINDS)
    for kind in kinds:
        if kind not in _SHARE:
            raise errors.Invalid(f"{kind} is not a kind of GPU memory; the kinds are {', '.join(_KIND)}")
    ranges = list(ranges)
    if not ranges:
        raise errors.Invalid("no range")
    walk = _Walk(kinds)
    try:
        for at, length in ranges:
            walk.range(at, length)
        return walk.end()
    except BaseException:
        walk.result.close()
        raise


def describe(pointer, nbytes, kinds=None):
    """Extents of nbytes at a device pointer. See describe_ranges()."""
    return describe_ranges([(pointer, nbytes)], kinds)


def tensor_range(tensor):
    """(address, bytes) of a PyTorch tensor, from its first element to its last."""
    if not getattr(tensor, "is_cuda", True):
        raise errors.Invalid(f"the tensor is on {tensor.device}, not on a GPU")
    if not tensor.numel():
        raise errors.Invalid("the tensor has no elements")
    last = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), (last + 1) * tensor.element_size()


def describe_tensors(tensors, kinds=None):
    """Extents of PyTorch tensors, in order; all on one GPU.

    A tensor that is not contiguous is included from its first element to its last, with the bytes
    between. Both of PyTorch's allocators work. Expandable segments become several extents, one for
    each 20 MiB; a region can have 250 of them.
    """
    return describe_ranges([tensor_range(tensor) for tensor in tensors], kinds)


def describe_tensor(tensor, kinds=None):
    """Extents of one PyTorch tensor. See describe_tensors()."""
    return describe_tensors([tensor], kinds)


def _stream(stream):
    """The CUstream of a number, or of an object that has one, such as torch.cuda.Stream."""
    return getattr(stream, "cuda_stream", stream) or None


class StreamWord:
    """A 32-bit word that transfers and GPU streams wait for and set; an item of StreamWords."""

    def __init__(self, words, index):
        self.words, self.index = words, index

    def at(self, value):
        """The argument wait_word or set_word of a transfer."""
        return self.words.region, self.index * 4, value

    @property
    def value(self):
        """Value that the CPU sees. Set it if a transfer failed that a stream waits for."""
        return self.words.view[self.index]

    @value.setter
    def value(self, value):
        self.words.view[self.index] = value

    def write(self, stream, value):
        """Makes the stream write the word when all earlier work is done and visible."""
        self.words.enqueue("cuStreamWriteValue32_v2", stream, self.index, value, 0)

    def wait(self, stream, value, *, equal=False):
        """Makes later work of the stream wait until the word has reached the value.

        equal: until the word equals the value. The agent sets a word when the bytes of the transfer
        are visible to the GPU.
        """
        self.words.enqueue("cuStreamWaitValue32_v2", stream, self.index, value, int(equal))


class StreamWords:
    """`count` words, all 0, in a region of host memory that the GPUs of this process reach.

    A CUDA context must be current on this thread. PyTorch makes one current at its first CUDA call
    of the thread.
    """

    def __init__(self, client, count=1):
        self.driver = driver = cu.driver()
        self.region = self._address = self._keep = None
        if not driver.has("cuStreamWriteValue32_v2") or not driver.has("cuStreamWaitValue32_v2"):
            raise errors.Unsupported(
                "the driver is too old for words of streams: they need CUDA 11.7")
        self._context, _ = driver.current()
        if not self._context:
            raise errors.Invalid("no CUDA context is current on this thread")
        self.memory = Memory(count * 4, name="dray words")
        try:
            self.view = self.memory.words()[:count]
            address, self._keep = cu.address_of(self.memory.map)
            driver.call("cuMemHostRegister_v2", address, self.memory.size,
                        cu.REGISTER_PORTABLE | cu.REGISTER_DEVICEMAP)
            self._address = address
            pointer = c_uint64()
            driver.call("cuMemHostGetDevicePointer_v2", byref(pointer), address, 0)
            self.pointer = pointer.value
            self.region = client.region(self.memory, name="words")
        except BaseException:
            self._free()
            raise

    def __len__(self):
        return len(self.view)

    def __getitem__(self, index):
        if not 0 <= index < len(self):
            raise IndexError(f"word {index} of {len(self)}")
        return StreamWord(self, index)

    def enqueue(self, function, stream, index, value, flags):
        """For StreamWord: calls the function with the stream's context current."""
        stream, context = _stream(stream), c_void_p()
        if stream:
            self.driver.call("cuStreamGetCtx", stream, byref(context))
        with self.driver.pushed(context.value):
            self.driver.call(function, stream, self.pointer + index * 4, value, flags)

    def _free(self):
        if self._address:
            with contextlib.suppress(errors.DrayError), self.driver.pushed(self._context):
                self.driver.raw("cuMemHostUnregister", self._address)
            self._address = None
        if hasattr(self, "view"):
            self.view.release()
        self._keep = None
        self.memory.close()

    def close(self):
        """Removes the region and frees the words. No stream may use them any more."""
        region, self.region = self.region, None
        try:
            if region and region.generation:
                with contextlib.suppress(errors.SessionClosed, errors.AgentRestarted):
                    region.remove()
        finally:
            self._free()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()
