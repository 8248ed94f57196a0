# SPDX-License-Identifier: Apache-2.0
"""Memory that an agent can reach: sealed memfds, mapped here and populated."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
from types import TracebackType

from . import _arguments as arguments
from . import _library as lib
from . import errors

PAGE = mmap.PAGESIZE
_CODES = {errno.ENOMEM: errors.NoMemory, errno.EMFILE: errors.NoFds, errno.ENFILE: errors.NoFds,
          errno.ENOSPC: errors.NoSpace, errno.EACCES: errors.Denied, errno.EPERM: errors.Denied,
          errno.EINVAL: errors.Invalid, errno.EBADF: errors.Invalid, errno.EFBIG: errors.TooLarge}


def failure(what: str, e: OSError, huge: bool = False) -> errors.Error:
    """The error for one of the system, in this process."""
    made = _CODES.get(e.errno or 0, errors.Io)
    fix = "Raise the limit of open files: ulimit -n." if made is errors.NoFds else None
    if made is errors.NoMemory:
        fix = "Reserve huge pages: sysctl vm.nr_hugepages." if huge else "Free memory, or raise this process's limit."
    return made(f"{what}: {e.strerror or e}", fix=fix)


def populate(fd: int, offset: int, length: int) -> None:
    """Touches every page of a range of a memfd. Blocks, about 0.3 s for each GiB; any thread."""
    why = ctypes.create_string_buffer(lib.WHY_SIZE)
    code = lib.released.dray_memory_populate(fd, offset, length, why, len(why))
    if code:
        raise errors.make(code, lib.text(why.value))


class Memory:
    """A mapped memfd. `view` is its bytes, writable; `fd` is what the agent gets; `size` in bytes.

    The object owns the memory and the descriptor until close(). A region of the memory stays usable
    for the agent after close(): remove the region first. Any thread may use it.
    """

    def __init__(self, size: int, *, huge: bool = False, name: str = "dray", fd: int | None = None,
                 populate: bool = True) -> None:
        """Makes a memfd of `size` bytes, rounded up to pages and sealed against shrinking.

        With `fd`, maps that memfd unchanged, and owns it. The kernel charges a page to the memory
        limit of the process that touches it first, and the agent refuses memory with holes. So all
        pages are touched here (populate), before the memory is registered. That blocks, about 0.3 s
        for each GiB, without the interpreter lock. errors.NoMemory, errors.NoFds, errors.Invalid.
        """
        self.map: mmap.mmap | None = None
        self.fd = -1
        self._populated = populate and fd is None  # and nobody has punched holes
        size = arguments.number("the size of the memory", size, (1 << 62) - 1)
        if not size:
            raise errors.Invalid("the size of the memory is 0", fix="Pass a number of bytes above 0.")
        if fd is None:
            step = 2 << 20 if huge else PAGE
            self.size = -(-size // step) * step
        else:
            self.size = size
        try:
            if fd is None:
                flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING | (os.MFD_HUGETLB if huge else 0)
                self.fd = os.memfd_create(arguments.text("name", name).decode(), flags)
                os.ftruncate(self.fd, self.size)
                fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
            else:
                self.fd = fd
            self.map = mmap.mmap(self.fd, self.size, flags=mmap.MAP_SHARED)
            with contextlib.suppress(OSError):  # kernels without huge pages refuse this, which is harmless
                self.map.madvise(mmap.MADV_HUGEPAGE)
            if populate:
                self.populate()
        except OSError as e:
            self.close()
            what = f"memory of {self.size} bytes{' in huge pages' * huge}"
            raise failure(what, e, huge) from None
        except ValueError as e:
            self.close()
            raise errors.Invalid(f"memory of {self.size} bytes in descriptor {fd}: {e}") from None
        except BaseException:
            self.close()
            raise
        self.view = memoryview(self.map)

    def populate(self, start: int = 0, length: int | None = None) -> None:
        """Touches every page of a range, so that the file has no holes. Does not change the contents."""
        populate(self.fd, start, self.size - start if length is None else length)

    def words(self) -> memoryview:
        """The memory as 32-bit words, for wait and set words."""
        return self.view.cast("I")

    def __len__(self) -> int:
        return self.size

    def close(self) -> None:
        """Closes the descriptor, and unmaps the memory unless a view still exists."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
        if self.map is not None:
            if hasattr(self, "view"):
                with contextlib.suppress(BufferError):
                    self.view.release()
            with contextlib.suppress(BufferError):  # unmapped with the last view
                self.map.close()
            self.map = None

    def __del__(self) -> None:
        if getattr(self, "fd", -1) >= 0:
            os.close(self.fd)  # the memory is unmapped with its last view

    def __enter__(self) -> Memory:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 traceback: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Memory of {self.size} bytes, descriptor {self.fd}>"
