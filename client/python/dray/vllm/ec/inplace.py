# SPDX-License-Identifier: Apache-2.0
"""Outputs that are read in the pool of another engine on the same host, where nothing is moved and no agent is asked.

An offer names the encoder's process and the descriptor of its pool, a sealed memfd. The reading engine opens that anew, which the
kernel allows to processes of the same user, or gets it by a door (door.py) and keeps it as long as the encoder lives. It locks the
output's range of the file for reading. Then it compares the header with the offer. The encoder locks a range for writing and clears
its header, before it uses the place again. So each of the two sees what the other one has done, in either order. The lock belongs to
the reading engine's open file: it ends when that engine releases the output, or with its process, and never by time.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import mmap
import os
import stat
import struct
import threading
import time
from typing import TYPE_CHECKING, Any

from ..._checksums import Checksums
from ...memory import Memory
from .header import HEADER, clear

if TYPE_CHECKING:
    from collections.abc import Callable

    from .pool import Item
    from .protocol import PoolName

__all__ = ["POOL", "Opened", "PoolFile", "Vacate", "open_named"]

POOL = "dray-ec"  # name of the memfd of a pool
_LOCK = struct.Struct("hhqqi4x")  # struct flock
_POPULATE_READ = 22  # MADV_POPULATE_READ
_STRETCH = 2 << 20  # bytes of a mapping that are populated at once: other threads of Python stand still meanwhile
_PAUSE = 0.001  # seconds between two of them


def _lock(fd: int, kind: int, start: int, length: int) -> bool:
    """False if another open file has a lock on the range that excludes this one."""
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _LOCK.pack(kind, os.SEEK_SET, start, length, 0))
    except OSError:
        return False
    return True


class PoolFile:
    """Another engine's pool, mapped for reading. It is closed when it has been given up and none of its ranges is held.

    door: by which all processes of this engine can keep it; empty: it is for one output. Any thread may use it.
    """

    def __init__(self, fd: int, door: str = "") -> None:
        """Owns the descriptor from now on. OSError: it is not that of a pool."""
        self.fd, self.door = fd, door
        try:
            size = os.fstat(fd).st_size
            if not _is_pool(fd):
                raise OSError("the file is not the pool of an engine")
            self._map = mmap.mmap(fd, size, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
        except (OSError, ValueError) as e:
            os.close(fd)
            raise OSError(str(e)) from None
        self.view = memoryview(self._map)
        self.checksums = Checksums(self.view)
        self._held: dict[int, list[int]] = {}  # [length, how often], by start
        self._given_up = False
        self._tensor: Any = None  # over all of it, in the process of a worker
        self._busy = threading.Lock()

    def populate(self) -> None:
        """Fills the page tables of the mapping, so that nobody who reads an output waits for that. Blocks."""
        for at in range(0, len(self._map), _STRETCH):
            with self._busy:
                if self._given_up:
                    return
                try:
                    self._map.madvise(_POPULATE_READ, at, min(_STRETCH, len(self._map) - at))
                except OSError:
                    return  # an older kernel
            time.sleep(_PAUSE)

    def hold(self, start: int, length: int) -> bool:
        """Locks a range, which may be held already; False if the owner uses it anew, or it crosses one that is held."""
        with self._busy:
            if self._given_up:
                return False
            known = self._held.get(start)
            if known is not None and known[0] == length:
                known[1] += 1
                return True
            end = start + length
            if end > len(self._map) or self._held and any(at < end and start < at + n for at, (n, _) in self._held.items()) or \
                    not _lock(self.fd, fcntl.F_RDLCK, start, length):
                return False
            self._held[start] = [length, 1]
            return True

    def release(self, start: int) -> None:
        """Ends what one call of hold() has begun."""
        with self._busy:
            known = self._held[start]
            known[1] -= 1
            if not known[1]:
                del self._held[start]
                _lock(self.fd, fcntl.F_UNLCK, start, known[0])
                self._close_unless_used()

    def read(self, start: int, length: int) -> bytearray | None:
        """A copy of a range that another process of this engine holds; None: the pool was given up."""
        with self._busy:
            return bytearray(self.view[start:start + length]) if self.fd >= 0 else None

    def tensor(self, dtype: Any, shape: tuple[int, int], start: int) -> Any:
        """A range that is held, as a tensor, which keeps the memory mapped. Nobody must write to it. dtype: the same in all calls."""
        import torch  # not at the top: the process of a scheduler needs none

        if self._tensor is None:
            # PyTorch warns of read-only memory, so that it is given an object that says nothing of that
            memory: Any = (ctypes.c_char * len(self._map)).from_address(self.checksums.address)
            memory.mapped = self.view[:]
            self._tensor = torch.frombuffer(memory, dtype=dtype)
        return self._tensor.as_strided(shape, (shape[1], 1), start // dtype.itemsize)

    def give_up(self) -> None:
        """Nothing more will be held."""
        with self._busy:
            self._given_up = True
            self._close_unless_used()

    def _close_unless_used(self) -> None:
        if self._given_up and not self._held and self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
            self._tensor = None
            del self.checksums  # which has the view
            with contextlib.suppress(BufferError):  # unmapped with the last view
                self.view.release()
                self._map.close()


class Opened:
    """An output in another engine's pool, which keeps its place until close().

    closed: called once, at the end.
    """

    __slots__ = ("_closed", "_open", "length", "pool", "start")

    def __init__(self, pool: PoolFile, start: int, length: int) -> None:
        self.pool, self.start, self.length = pool, start, length
        self._open = True
        self._closed: Callable[[], None] = lambda: None

    @classmethod
    def open(cls, pool: PoolFile, offset: int, size: int) -> Opened | None:
        """Takes hold of `size` bytes and their header in a pool; None: the pool's owner uses the place anew."""
        return cls(pool, offset, HEADER + size) if pool.hold(offset, HEADER + size) else None

    @property
    def path(self) -> str:
        """By which other processes of this engine open the pool, as long as the output is not closed."""
        return f"/proc/{os.getpid()}/fd/{self.pool.fd}"

    def on_close(self, closed: Callable[[], None]) -> None:
        """closed() is called at the end."""
        self._closed = closed

    def close(self) -> None:
        """The owner may use the place again."""
        if self._open:
            self._open = False
            self.pool.release(self.start)
            self._closed()


def open_named(pool: PoolName) -> PoolFile | None:
    """A pool by the number of its process; None: that pool is not on this host, or of another user."""
    path = f"/proc/{pool.process}/fd/{pool.fd}"
    try:
        # Opening a device may have effects, so that the name is looked at first.
        if os.readlink(path).startswith(f"/memfd:{POOL} "):
            return PoolFile(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK))
    except OSError:
        pass  # no such process here, or one of another user, or the file is something else
    return None


def _is_pool(fd: int) -> bool:
    """True if a file is a memfd that cannot become shorter."""
    return stat.S_ISREG(os.fstat(fd).st_mode) and bool(fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK)


class Vacate:
    """For the owner of a pool: ends that others begin to read an output in place, if nobody reads it now."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory

    def __call__(self, item: Item) -> bool:
        """False while somebody reads the output."""
        length = item.shape.window or HEADER + item.shape.size
        if not _lock(self._memory.fd, fcntl.F_WRLCK, item.offset, length):
            return False
        clear(self._memory.view, item.offset)
        _lock(self._memory.fd, fcntl.F_UNLCK, item.offset, length)
        return True
