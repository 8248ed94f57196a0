# SPDX-License-Identifier: Apache-2.0
"""A further mapping of shared memory, at an address by chance.

Engines that have Mooncake linked in name memory by its address, and all buffers of an agent's segment for them share one space of
addresses. The kernel puts the mappings of all processes into a terabyte or less, where large ones would often overlap.
"""

from __future__ import annotations

import ctypes
import mmap
import secrets
import weakref

from .. import errors
from ..memory import Memory

__all__ = ["Placed"]

_FIRST, _END, _STEP = 1 << 42, 1 << 46, 2 << 20  # of processes with 47 bits of addresses; huge pages stay possible
_NOREPLACE = 0x100000  # MAP_FIXED_NOREPLACE
_TRIES = 64
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


class Placed:
    """address: where the bytes of the memory are, too, until close(), or until nothing refers to this object, as with Memory."""

    def __init__(self, memory: Memory) -> None:
        self.size, room = memory.size, _END - _FIRST - memory.size
        for _ in range(_TRIES if room > 0 else 0):
            wanted = _FIRST + secrets.randbelow(room) // _STEP * _STEP
            found = _libc.mmap(wanted, self.size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED | _NOREPLACE, memory.fd, 0)
            if found == wanted:
                self.address = wanted
                self._end = weakref.finalize(self, _libc.munmap, wanted, self.size)
                self._end.atexit = False
                return
            if found is not None and found != ctypes.c_void_p(-1).value:
                _libc.munmap(found, self.size)
        raise errors.NoMemory(f"no address for {self.size} bytes that engines with Mooncake linked in can use",
                              fix="Pass a smaller size, or raise the limit of this process's addresses.")

    def close(self) -> None:
        self._end()
