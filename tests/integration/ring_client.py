# SPDX-License-Identifier: Apache-2.0
"""A client with a ring that speaks the protocol itself, valid or not."""

import fcntl
import mmap
import os

from harness import MIB, Raw, s, until

NEVER = 60_000  # a deadline, ms, that no test reaches
ARENA = 1 << 17
READ, WRITE = 2, 1


def memory(size, fill=b""):
    """A populated memfd as a client registers it, and its mapping."""
    fd = os.memfd_create("rules", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    mapped = mmap.mmap(fd, size)
    mapped[:] = fill.ljust(size, b"\0")
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    return fd, mapped


class Client(Raw):
    """A session with a region, a remote that reaches that region, and a ring."""

    def __init__(self, agent, entries=16, arena=ARENA, group=""):
        super().__init__(agent, hello=False)
        self.hello = self.ask(s.pack_hello, major_min=1, major_max=1, group=group)
        self.fd, self.memory = memory(MIB, b"0123456789" * 1000)
        self.region = self.ask(s.pack_region_add, [self.fd], access=3,
                               extents=[(1, 0, 0, 0, MIB)]).region
        token = self.ask(s.pack_region_export, region=self.region, length=MIB, access=3).token
        self.remote = self.ask(s.pack_remote_import, token=token).remote
        m = self.ask(s.pack_ring_open, sq_entries=entries, arena_bytes=arena)
        self.sq_entries, self.cq_entries, self.arena_bytes = m.sq_entries, m.cq_entries, m.arena_bytes
        arena_fd, ring_fd, self.doorbell, self.bell = self.fds
        self.arena = memoryview(mmap.mmap(arena_fd, m.arena_bytes))
        self.ring = memoryview(mmap.mmap(ring_fd, m.ring_bytes))
        self.words = self.ring.cast("I")
        os.close(arena_fd)
        os.close(ring_fd)
        self.sq_offset, self.cq_offset = self.word(s.RING_SQ_OFFSET), self.word(s.RING_CQ_OFFSET)
        self.base = dict(direction=READ, local=self.region, remote=self.remote, deadline_ms=NEVER)

    def close(self):
        super().close()
        for fd in (self.fd, self.doorbell, self.bell):
            os.close(fd)

    def word(self, offset):
        return self.words[offset // 4]

    def store(self, offset, value):
        self.words[offset // 4] = value & 0xffffffff

    def put(self, user_data, **fields):
        """Writes and publishes an entry, without the doorbell."""
        tail = self.word(s.RING_SQ_TAIL)
        at = self.sq_offset + (tail & (self.sq_entries - 1)) * s.SQE.size
        fields = {**self.base, **fields}
        self.ring[at:at + s.SQE.size] = s.SQE.pack(user_data, *(fields.get(name, 0) for name in s.Sqe._fields[1:]))
        self.store(s.RING_SQ_TAIL, tail + 1)

    def submit(self, user_data, **fields):
        self.put(user_data, **{"op_count": 1, "op_length": 10, **fields})
        os.eventfd_write(self.doorbell, 1)

    def completions(self):
        """Takes all completions: (user_data, name of the status)."""
        got = []
        while (head := self.word(s.RING_CQ_HEAD)) != self.word(s.RING_CQ_TAIL):
            at = self.cq_offset + (head & (self.cq_entries - 1)) * s.CQE.size
            user_data, status, *_ = s.CQE.unpack_from(self.ring, at)
            got.append((user_data, s.error_name(status) if status else "ok"))
            self.store(s.RING_CQ_HEAD, head + 1)
        return got

    def completion(self):
        """Waits for one completion."""
        got = []
        until(lambda: got.extend(self.completions()) or got, "a completion")
        assert len(got) == 1, got
        return got[0]

    def waiting(self, at=0, region=None):
        """Fields of a transfer that waits until the word at this offset is 1."""
        return dict(flags=s.TRANSFER_FLAG_WAIT, wait_region=region or self.region, wait_offset=at, wait_value=1)

    def message(self, request_id=None, ops=((4096, 0, 10),), **fields):
        """Sends TRANSFER; returns its id."""
        if request_id is None:
            self.last_id += 1
            request_id = self.last_id
        self.send(s.pack_transfer(request_id, **{**self.base, "ops": list(ops), **fields}))
        return request_id

    def answers(self):
        """Messages until the end: (type, request id, name of the status)."""
        got = []
        while answer := self.receive():
            header, m, _ = answer
            code = m.status if header.type == s.MSG_TRANSFER_DONE else getattr(m, "code", 0)
            got.append((s.TYPE_NAMES[header.type], header.request_id, s.error_name(code) if code else "ok"))
        return got
