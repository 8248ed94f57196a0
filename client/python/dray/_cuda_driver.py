# SPDX-License-Identifier: Apache-2.0
"""The CUDA driver of this process, by ctypes: the functions of libcuda.so.1 that dray.cuda uses."""

import contextlib
import ctypes
import functools
from ctypes import (POINTER, Structure, byref, c_char, c_char_p, c_int, c_size_t, c_ubyte, c_uint,
                    c_uint64, c_ulonglong, c_void_p)

from . import errors

LIBRARY = "libcuda.so.1"

ATTRIBUTE_CONTEXT, ATTRIBUTE_MEMORY_TYPE = 1, 2
ATTRIBUTE_IS_MANAGED, ATTRIBUTE_DEVICE_ORDINAL, ATTRIBUTE_IS_LEGACY_IPC_CAPABLE = 8, 9, 10
ATTRIBUTE_MAPPING_SIZE, ATTRIBUTE_MAPPING_BASE = 18, 19
MEMORY_DEVICE = 2
HANDLE_POSIX_FD, HANDLE_FABRIC = 1, 8
RANGE_DMABUF = 1
DEVICE_DMABUF_SUPPORTED = 124
REGISTER_PORTABLE, REGISTER_DEVICEMAP = 1, 2

OUT_OF_MEMORY = 2
# After these errors the device, or this process's context on it, cannot be used any more.
_LOST = frozenset((46, 214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721))


class IpcHandle(Structure):
    _fields_ = [("data", c_ubyte * 64)]


class Uuid(Structure):
    _fields_ = [("data", c_ubyte * 16)]


class AllocationProp(Structure):
    _fields_ = [("type", c_int), ("handle_types", c_int), ("location_type", c_int),
                ("location", c_int), ("unused", c_void_p), ("flags", c_ubyte * 8)]


_FUNCTIONS = {
    "cuGetErrorName": (c_int, POINTER(c_char_p)),
    "cuPointerGetAttribute": (c_void_p, c_int, c_uint64),
    "cuDeviceGetAttribute": (POINTER(c_int), c_int, c_int),
    "cuDeviceGetUuid": (POINTER(Uuid), c_int),
    "cuCtxGetCurrent": (POINTER(c_void_p),),
    "cuCtxGetDevice": (POINTER(c_int),),
    "cuCtxPushCurrent_v2": (c_void_p,),
    "cuCtxPopCurrent_v2": (POINTER(c_void_p),),
    "cuDevicePrimaryCtxGetState": (c_int, POINTER(c_uint), POINTER(c_int)),
    "cuDevicePrimaryCtxRetain": (POINTER(c_void_p), c_int),
    "cuDevicePrimaryCtxRelease_v2": (c_int,),
    "cuMemGetAddressRange_v2": (POINTER(c_uint64), POINTER(c_size_t), c_uint64),
    "cuIpcGetMemHandle": (POINTER(IpcHandle), c_uint64),
    "cuMemRetainAllocationHandle": (POINTER(c_uint64), c_void_p),
    "cuMemRelease": (c_uint64,),
    "cuMemGetAllocationPropertiesFromHandle": (POINTER(AllocationProp), c_uint64),
    "cuMemExportToShareableHandle": (c_void_p, c_uint64, c_int, c_ulonglong),
    "cuMemHostRegister_v2": (c_void_p, c_size_t, c_uint),
    "cuMemHostUnregister": (c_void_p,),
    "cuMemHostGetDevicePointer_v2": (POINTER(c_uint64), c_void_p, c_uint),
    "cuStreamGetCtx": (c_void_p, POINTER(c_void_p)),
}

# Since CUDA 11.7; an older driver lacks them.
_NEWER = {
    "cuMemGetHandleForAddressRange": (c_void_p, c_uint64, c_size_t, c_int, c_ulonglong),
    "cuStreamWriteValue32_v2": (c_void_p, c_uint64, c_uint, c_uint),
    "cuStreamWaitValue32_v2": (c_void_p, c_uint64, c_uint, c_uint),
}


class Driver:
    """Functions of the driver by their names."""

    def __init__(self):
        try:
            # by soname, so that a library that the engine has loaded already is used
            self.library = ctypes.CDLL(LIBRARY)
        except OSError as e:
            raise errors.Unsupported(
                f"{LIBRARY} cannot be loaded: no CUDA driver is installed here ({e})") from e
        self._functions = {}
        for name, arguments in (*_FUNCTIONS.items(), *_NEWER.items()):
            function = getattr(self.library, name, None)
            if function is not None:
                function.argtypes, function.restype = arguments, c_int
                self._functions[name] = function
            elif name in _FUNCTIONS:
                raise errors.Unsupported(f"{LIBRARY} lacks {name}: the driver is too old")

    def has(self, name):
        return name in self._functions

    def raw(self, name, *arguments):
        """Calls a function and returns its result code."""
        return self._functions[name](*arguments)

    def call(self, name, *arguments):
        """Calls a function; raises an error if it fails."""
        error = self.raw(name, *arguments)
        if error:
            text = c_char_p()
            known = not self.raw("cuGetErrorName", error, byref(text)) and text.value
            message = f"{name.removesuffix('_v2')}: " \
                      f"{text.value.decode() if known else 'an unknown error'} ({error})"
            if error in _LOST:
                raise errors.GpuLost(message)
            raise (errors.NoMemory if error == OUT_OF_MEMORY else errors.Io)(message)

    def attribute(self, which, pointer, kind=c_uint64):
        """An attribute of a pointer; None if the driver does not know it."""
        value = kind()
        failed = self.raw("cuPointerGetAttribute", byref(value), which, pointer)
        return None if failed else value.value or 0

    def address_range(self, pointer):
        """(base, bytes) of the range that contains the pointer."""
        base, size = c_uint64(), c_size_t()
        self.call("cuMemGetAddressRange_v2", byref(base), byref(size), pointer)
        return base.value, size.value

    @contextlib.contextmanager
    def allocation(self, pointer):
        """The allocation of cuMemCreate() that is mapped at the pointer, or None."""
        allocation = c_uint64()
        if self.raw("cuMemRetainAllocationHandle", byref(allocation), pointer):
            yield None
            return
        try:
            yield allocation.value
        finally:
            self.raw("cuMemRelease", allocation)

    @contextlib.contextmanager
    def pushed(self, context):
        """Makes the context current inside the block; 0: changes nothing."""
        if context:
            self.call("cuCtxPushCurrent_v2", context)
        try:
            yield
        finally:
            if context:
                self.raw("cuCtxPopCurrent_v2", byref(c_void_p()))

    def current(self):
        """(context, device) that is current on this thread; (0, None) for none."""
        context, device = c_void_p(), c_int()
        self.call("cuCtxGetCurrent", byref(context))
        if context.value and not self.raw("cuCtxGetDevice", byref(device)):
            return context.value, device.value
        return context.value or 0, None

    @contextlib.contextmanager
    def context_for(self, context, device):
        """Makes `context` current inside the block, or, if it is 0, an existing one of the device.

        If the device has no context, nothing is changed, and calls that need one fail.
        """
        current, current_device = self.current()
        if context in (0, current) and current and current_device == device:
            yield
            return
        retained = c_void_p()
        if not context:
            flags, active = c_uint(), c_int()
            if not self.raw("cuDevicePrimaryCtxGetState", device, byref(flags), byref(active)) \
                    and active.value:
                self.call("cuDevicePrimaryCtxRetain", byref(retained), device)
        try:
            with self.pushed(context or retained.value):
                yield
        finally:
            if retained:
                self.raw("cuDevicePrimaryCtxRelease_v2", device)

    def uuid(self, device):
        """UUID of a device, in the form of the agent and of nvidia-smi."""
        uuid = Uuid()
        self.call("cuDeviceGetUuid", byref(uuid), device)
        text = bytes(uuid.data).hex()
        return f"GPU-{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


@functools.cache
def driver():
    return Driver()


def address_of(buffer):
    """Address of a writable buffer, and an object that keeps the buffer in place."""
    view = c_char.from_buffer(buffer)
    return ctypes.addressof(view), view
