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

The driver that the engine has loaded is asked, by ctypes. Nothing here makes a CUDA context or
changes which one is current.
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
# Tried in this order for each allocation. Memory that is shared as dmabuf is reached by RDMA alone:
# name that kind where it is wanted.
KINDS = (VMM, IPC)
_KIND = {VMM: s.KIND_CUDA_VMM, IPC: s.KIND_CUDA_IPC, DMABUF: s.KIND_DMABUF}

# What is shared of one allocation. index: of its descriptor or handle. continues: it is memory of
# cuMemCreate(), and what follows it in a range may be another allocation.
_Share = namedtuple("_Share", "base size kind index continues")


class Extents:
    """GPU memory as others can open it, for Client.region().

    device: UUID of the GPU. extents: (kind, index, offset, length), with the index of a descriptor
    in fds or of an IPC handle in handles; offsets count from the base of an allocation.
    allocations: of kind cuda_vmm, how many bytes the allocation behind each of fds has; 0, or left
    out: the agent finds out, which takes longer. The descriptors are this object's until close(),
    and keep the memory allocated.
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
    """The allocation at one address, on its way to be shared."""

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
        """Both ends are of this allocation."""
        if not base <= self.at < base + size:
            return False
        for end in base, base + size - 1:
            with self.driver.allocation(end) as allocation:
                if allocation != self.allocation:
                    return False
        return True

    def mapping(self):
        """(base, bytes). The allocation begins where its mapping does.

        Drivers differ in which question they answer for the mapping and which for all that is
        mapped side by side: so the answers are looked at.
        """
        base = self.driver.attribute(cu.ATTRIBUTE_MAPPING_BASE, self.at)
        size = self.driver.attribute(cu.ATTRIBUTE_MAPPING_SIZE, self.at)
        if base is not None and size and self._is_mapping(base, size):
            return base, size
        with contextlib.suppress(errors.Io):
            base, size = self.driver.address_range(self.at)
            if self._is_mapping(base, size):
                return base, size
        raise self.refusal("is mapped, but the driver does not tell from where to where")


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
                "take expandable_segments out of PYTORCH_CUDA_ALLOC_CONF, or keep "
                "/dev/nvidia-caps-imex-channels out of the container")
        raise found.refusal(
            "was made to be exported by no handle: make it with "
            "CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR; PyTorch: set "
            "TORCH_CUDA_EXPANDABLE_SEGMENTS_IPC=1, or take expandable_segments out of "
            "PYTORCH_CUDA_ALLOC_CONF")
    return base, size, _descriptor(driver, "cuMemExportToShareableHandle", found.allocation,
                                   cu.HANDLE_POSIX_FD, 0)


def _share_ipc(found):
    driver, handle = found.driver, cu.IpcHandle()
    if driver.attribute(cu.ATTRIBUTE_IS_LEGACY_IPC_CAPABLE, found.at, c_int) == 0:
        raise found.refusal(
            "cannot be shared by a legacy IPC handle, as that of a stream-ordered pool "
            "(cudaMallocAsync) cannot; use cudaMalloc() or cuMemCreate()")
    base, size = driver.address_range(found.at)
    driver.call("cuIpcGetMemHandle", byref(handle), base)
    return base, size, bytes(handle.data)


def _share_dmabuf(found):
    """The driver wants whole pages: what is exported may begin before the allocation does."""
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
    """From ranges to extents."""

    def __init__(self, kinds):
        self.driver, self.kinds = cu.driver(), kinds
        self.device = None
        self.shares, self.result = [], Extents("")

    def _keep(self, kind, size, what):
        """Index of a descriptor or handle."""
        result = self.result
        if kind == IPC:
            result.handles.append(what)
            if len(result.handles) > HANDLES_MAX:
                raise errors.TooLarge(f"it takes more than {HANDLES_MAX} handles, one for each "
                                      "allocation; make several regions of it")
            return len(result.handles) - 1
        result.fds.append(what)
        if kind == VMM:
            result.allocations.append(size)
        if len(result.fds) > s.FDS_MAX:
            raise errors.FdLimit(
                f"it takes more than {s.FDS_MAX} descriptors, one for each allocation; make "
                "several regions of it, or larger allocations")
        return len(result.fds) - 1

    def _share_by(self, found):
        """By the first kind that does.

        If none does: what was wrong with the first of those that are for such memory, else that
        none of them is.
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
        raise first or found.refusal("is of cuMemCreate(): use kind cuda_vmm" if found.allocation
                                     else "is not of cuMemCreate(): use kind cuda_ipc")

    def _share_new(self, at, end, before):
        found = _Found(self.driver, at, end)
        with self.driver.allocation(at) as found.allocation:
            if before and found.allocation is None:
                raise errors.Invalid(f"the allocations behind the range end at {at:#x}")
            if self.device not in (None, found.device):
                raise errors.GpuDevice(
                    f"memory at {at:#x} is on device {found.device}, what comes before it on "
                    f"{self.device}: make a region for each")
            with self.driver.context_for(found.context, found.device):
                share = self._share_by(found)
        self.device = found.device
        self.shares.append(share)
        return share

    def range(self, at, length):
        end, share = at + length, None
        if length <= 0 or end >> 64:
            raise errors.Invalid(f"the range at {at:#x} has no length, or too much")
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
                f"{dmabufs} of {len(self.shares)} allocations can be shared as dmabuf alone, which "
                "one region does not mix with other kinds: make several")
        self.result.device = self.driver.uuid(self.device)
        return self.result


def describe_ranges(ranges, kinds=None):
    """Extents of device memory, (address, bytes) each, one after the other; all on one GPU.

    kinds: those to try for each allocation, in order (default: KINDS), or one.
    """
    kinds = (kinds,) if isinstance(kinds, str) else tuple(kinds or KINDS)
    for kind in kinds:
        if kind not in _SHARE:
            raise errors.Invalid(f"kind {kind} is none of GPU memory")
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
    """(address, bytes) of a tensor of PyTorch: from its first element to its last."""
    if not getattr(tensor, "is_cuda", True):
        raise errors.Invalid(f"the tensor is on {tensor.device}, not on a GPU")
    if not tensor.numel():
        raise errors.Invalid("the tensor has no elements")
    last = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), (last + 1) * tensor.element_size()


def describe_tensors(tensors, kinds=None):
    """Extents of tensors of PyTorch, one after the other; all on one GPU.

    Of a tensor that is not contiguous all from its first element to its last is included. Both of
    PyTorch's ways to allocate are known: expandable segments become several extents, one for each
    20 MiB, of which a region takes 250.
    """
    return describe_ranges([tensor_range(tensor) for tensor in tensors], kinds)


def describe_tensor(tensor, kinds=None):
    """Extents of one tensor of PyTorch. See describe_tensors()."""
    return describe_tensors([tensor], kinds)


def _stream(stream):
    """CUstream of a number or of what has one, as torch.cuda.Stream does."""
    return getattr(stream, "cuda_stream", stream) or None


class StreamWord:
    """A 32-bit word that transfers and streams of a GPU wait for and set; one of StreamWords."""

    def __init__(self, words, index):
        self.words, self.index = words, index

    def at(self, value):
        """For wait_word and set_word of a transfer."""
        return self.words.region, self.index * 4, value

    @property
    def value(self):
        """As the CPU sees it. To be set where a transfer failed that a stream waits for."""
        return self.words.view[self.index]

    @value.setter
    def value(self, value):
        self.words.view[self.index] = value

    def write(self, stream, value):
        """The stream writes the word once all work before it is done, and is visible."""
        self.words.enqueue("cuStreamWriteValue32_v2", stream, self.index, value, 0)

    def wait(self, stream, value, *, equal=False):
        """Work after it waits until the word has reached the value; equal: until it holds it.

        The agent sets a word when the bytes of the transfer are visible to the GPU.
        """
        self.words.enqueue("cuStreamWaitValue32_v2", stream, self.index, value, int(equal))


class StreamWords:
    """`count` words, all 0: a region of host memory that the GPUs of this process reach.

    A CUDA context must be current on this thread: with PyTorch, after it was first used there.
    """

    def __init__(self, client, count=1):
        self.driver = driver = cu.driver()
        self.region = self._address = self._keep = None
        if not driver.has("cuStreamWriteValue32_v2") or not driver.has("cuStreamWaitValue32_v2"):
            raise errors.Unsupported(
                "the driver is too old for words of streams: CUDA 11.7 has them")
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
        """For StreamWord. The stream's context is current for it."""
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
        """Removes the region and frees the words. No stream uses them any more."""
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
