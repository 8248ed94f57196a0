# SPDX-License-Identifier: Apache-2.0
"""Memory that an agent can reach: sealed memfds, mapped here and populated."""

import contextlib
import errno
import fcntl
import mmap
import os

_MADV_POPULATE_WRITE = 23  # Linux 5.14; the mmap module of Python 3.11 has no name for it

PAGE = mmap.PAGESIZE


class Memory:
    """A mapped memfd. `view` is its bytes, writable; `fd` is what the agent gets."""

    def __init__(self, size, *, huge=False, name="dray", fd=None, populate=True):
        """Makes a memfd of `size` bytes, rounded up to pages and sealed against shrinking.

        With `fd`, maps that memfd unchanged, and owns it. The kernel charges a page to the memory
        limit of the process that touches it first, and the agent refuses memory with holes. So all
        pages are touched here (populate), before the memory is registered.
        """
        self.map = None
        self.fd = -1
        if fd is None:
            step = 2 << 20 if huge else PAGE
            flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING | (os.MFD_HUGETLB if huge else 0)
            self.size = -(-size // step) * step
            self.fd = os.memfd_create(name, flags)
        else:
            self.size = size
            self.fd = fd
        try:
            if fd is None:
                os.ftruncate(self.fd, self.size)
                fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
            self.map = mmap.mmap(self.fd, self.size, flags=mmap.MAP_SHARED)
            with contextlib.suppress(OSError):  # kernels without huge pages refuse this, which is harmless
                self.map.madvise(mmap.MADV_HUGEPAGE)
            if populate:
                self.populate()
        except BaseException:
            self.close()
            raise
        self.view = memoryview(self.map)

    def populate(self, start=0, length=None):
        """Touches every page, so that the file has no holes. Does not change the contents."""
        end = self.size if length is None else start + length
        start -= start % PAGE
        try:
            self.map.madvise(_MADV_POPULATE_WRITE, start, end - start)
        except OSError as e:
            if e.errno != errno.EINVAL:
                raise
            for at in range(start, end, PAGE):  # an older kernel
                self.map[at] = self.map[at]

    def words(self):
        """The memory as 32-bit words, for wait and set words."""
        return self.view.cast("I")

    def __len__(self):
        return self.size

    def close(self):
        """Closes the descriptor, and unmaps the memory unless a view still exists."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
        if self.map is not None:
            if hasattr(self, "view"):
                self.view.release()
            try:
                self.map.close()
            except BufferError:
                pass  # unmapped with the last view
            self.map = None

    def __del__(self):
        if self.fd >= 0:
            os.close(self.fd)  # the memory is unmapped with its last view

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()
