# SPDX-License-Identifier: Apache-2.0
"""Outputs that are read in the pool of another engine on the same host, where nothing is moved and no agent is asked.

An offer names the encoder's process and the descriptor of its pool, a sealed memfd. The reading engine opens that anew, which the
kernel allows to processes of the same user, or gets it by a door (door.py), and locks the output's range of the file for reading. Then it compares the header with
the offer. The encoder locks a range for writing and clears its header, before it uses the place again. So each of the two sees what
the other one has done, in either order. The lock belongs to the reading engine's open file: it ends when that engine releases the
output, or with its process, and never by time.
"""

from __future__ import annotations

import fcntl
import os
import stat
import struct
from typing import TYPE_CHECKING

from ...memory import Memory
from .header import HEADER, clear

if TYPE_CHECKING:
    from collections.abc import Callable

    from .pool import Item
    from .protocol import PoolName

__all__ = ["POOL", "Opened", "Vacate", "is_pool", "open_named"]

POOL = "dray-ec"  # name of the memfd of a pool
_LOCK = struct.Struct("hhqqi4x")  # struct flock


def _lock(fd: int, kind: int, start: int, length: int) -> bool:
    """False if another open file has a lock on the range that excludes this one."""
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _LOCK.pack(kind, os.SEEK_SET, start, length, 0))
    except OSError:
        return False
    return True


class Opened:
    """An output in another engine's pool, which keeps its place until close().

    closed: called once, at the end.
    """

    __slots__ = ("_closed", "_fd", "length", "start")

    def __init__(self, fd: int, start: int, length: int) -> None:
        self._fd, self.start, self.length = fd, start, length
        self._closed: Callable[[], None] = lambda: None

    @classmethod
    def open(cls, fd: int, offset: int, size: int) -> Opened | None:
        """Takes hold of `size` bytes and their header in a pool, and owns its descriptor; None: the pool's owner uses the place anew."""
        length = HEADER + size
        try:
            if is_pool(fd, offset + length) and _lock(fd, fcntl.F_RDLCK, offset, length):
                return cls(fd, offset, length)
        except OSError:
            pass  # it is not a pool
        os.close(fd)
        return None

    @property
    def fd(self) -> int:
        """The pool, open for reading, until close()."""
        return self._fd

    @property
    def path(self) -> str:
        """By which other processes of this engine open the pool, as long as the output is not closed."""
        return f"/proc/{os.getpid()}/fd/{self._fd}"

    def on_close(self, closed: Callable[[], None]) -> None:
        """closed() is called at the end."""
        self._closed = closed

    def close(self) -> None:
        """The owner may use the place again."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            self._closed()


def open_named(pool: PoolName) -> int:
    """A new descriptor of a pool by the number of its process; -1: that pool is not on this host, or of another user."""
    path = f"/proc/{pool.process}/fd/{pool.fd}"
    try:
        # Opening a device may have effects, so that the name is looked at first.
        if os.readlink(path).startswith(f"/memfd:{POOL} "):
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        pass  # no such process here, or one of another user
    return -1


def is_pool(fd: int, end: int) -> bool:
    """True if a file is a memfd that cannot become shorter, with that many bytes."""
    status = os.fstat(fd)
    return stat.S_ISREG(status.st_mode) and status.st_size >= end and bool(fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK)


class Vacate:
    """For the owner of a pool: ends that others begin to read an output in place, if nobody reads it now."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory

    def __call__(self, item: Item) -> bool:
        """False while somebody reads the output."""
        length = HEADER + item.shape.size
        if not _lock(self._memory.fd, fcntl.F_WRLCK, item.offset, length):
            return False
        clear(self._memory.view, item.offset)
        _lock(self._memory.fd, fcntl.F_UNLCK, item.offset, length)
        return True
