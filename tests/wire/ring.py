# SPDX-License-Identifier: Apache-2.0
"""A session's arena and its submission and completion rings.

Python has no atomics. The code needs these properties of CPython and x86-64:

- A ring word is read and written through a memoryview of format "I" on a mapping. CPython copies one aligned word with
  one 4-byte move (struct.pack_into would store byte by byte), so a word is never seen half written.
- x86-64 keeps stores in order, and loads in order: the entry is in place before the tail that announces it, and a
  completion is read after the tail that announced it.
- x86-64 does not keep a store before a later load, which "store the tail, then check whether the agent sleeps" would need.
  So the client does not check: it rings the doorbell after every submission.
- In the other direction client_sleeping stays 1, so each completion rings the client's doorbell. The client stores the word
  again before each read of the completion tail, in case an agent cleared it. Taking a lock in between executes a locked
  instruction, which keeps the store before the load.
"""

import mmap
import os
import threading

from . import codec as s
from .errors import Error


class Arena:
    """Memory shared with the agent. Allocates first fit, in units of 64 bytes, and merges freed neighbours."""

    def __init__(self, fd, size):
        self.map = mmap.mmap(fd, size)
        os.close(fd)
        self.view = memoryview(self.map)
        self.size = size
        self.free = [(0, size)]  # (offset, size), in the order of offsets

    def put(self, data):
        """Copies the data; returns (offset, size) for give_back()."""
        need = max(-(-len(data) // 64), 1) * 64
        for i, (start, size) in enumerate(self.free):
            if size >= need:
                break
        else:
            raise Error("busy", "the arena is full")
        self.free[i:i + 1] = [(start + need, size - need)] if size > need else []
        self.view[start:start + len(data)] = data
        return start, need

    def give_back(self, piece):
        merged = []
        for start, size in sorted([*self.free, piece]):
            if merged and sum(merged[-1]) == start:
                merged[-1] = (merged[-1][0], merged[-1][1] + size)
            else:
                merged.append((start, size))
        self.free = merged

    def close(self):
        self.view.release()
        self.map.close()


class Ring:
    """Submission and completion rings. tail and head are the client's indices."""

    def __init__(self, reply, ring_fd, doorbell_fd, completion_fd):
        self.doorbell, self.completion = doorbell_fd, completion_fd
        self.fence = threading.Lock()
        self.map = mmap.mmap(ring_fd, reply.ring_bytes)
        os.close(ring_fd)
        self.bytes = memoryview(self.map)
        self.words = self.bytes[:s.RING_SIZE].cast("I")
        self.sq_entries, self.cq_entries = reply.sq_entries, reply.cq_entries
        self.sq_offset, self.cq_offset = self.word(s.RING_SQ_OFFSET), self.word(s.RING_CQ_OFFSET)
        if self.word(s.RING_MAGIC) != s.MAGIC_RING:
            raise Error("protocol", "the agent's ring does not start with its magic number")
        self.tail = self.word(s.RING_SQ_TAIL)
        self.head = self.word(s.RING_CQ_HEAD)
        self.store(s.RING_CLIENT_SLEEPING, 1)

    def word(self, offset):
        return self.words[offset >> 2]

    def store(self, offset, value):
        self.words[offset >> 2] = value & 0xffffffff

    def put(self, **fields):
        """Fills the next submission entry, and does not announce it."""
        if (self.tail - self.word(s.RING_SQ_HEAD)) & 0xffffffff >= self.sq_entries:
            raise Error("busy", "the submission ring is full")
        at = self.sq_offset + (self.tail & (self.sq_entries - 1)) * s.SQE.size
        self.bytes[at:at + s.SQE.size] = s.SQE.pack(*(fields.get(name, 0) for name in s.Sqe._fields))
        self.tail = (self.tail + 1) & 0xffffffff

    def push(self, **fields):
        """Fills the next submission entry; the agent reads it after ring_doorbell() at the latest."""
        self.put(**fields)
        self.store(s.RING_SQ_TAIL, self.tail)

    def ring_doorbell(self):
        os.eventfd_write(self.doorbell, 1)

    def completions(self):
        """Yields the completions that are in the ring, and takes them out."""
        self.store(s.RING_CLIENT_SLEEPING, 1)
        with self.fence:
            pass
        tail = self.word(s.RING_CQ_TAIL)
        if (tail - self.head) & 0xffffffff > self.cq_entries:
            raise Error("protocol", "the agent's completion tail is out of the ring")
        while self.head != tail:
            at = self.cq_offset + (self.head & (self.cq_entries - 1)) * s.CQE.size
            entry = s.Cqe._make(s.CQE.unpack_from(self.bytes, at))
            self.head = (self.head + 1) & 0xffffffff
            self.store(s.RING_CQ_HEAD, self.head)
            yield entry

    def nudge(self):
        """After completions were taken: makes the agent look again at entries it had no room for."""
        if self.word(s.RING_SQ_HEAD) != self.tail:
            self.ring_doorbell()

    def close(self):
        self.words.release()
        self.bytes.release()
        self.map.close()
        os.close(self.completion)
        os.close(self.doorbell)
