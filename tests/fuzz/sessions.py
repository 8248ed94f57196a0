#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Random sessions against a real agent: valid-looking messages in any order, with descriptors of every kind, rings whose words and
entries change while transfers run, and clients that end at any point.

    make VARIANT=asan all && DRAY_BUILD=build/asan PYTHONPATH=client/python tests/fuzz/sessions.py SECONDS [SEED]

A seed determines what is sent, not how the agent's threads take turns. The agent must serve an honest client after each session, release
everything, and log no report of a sanitizer. The last line has the numbers of sessions and messages.
"""

import contextlib
import inspect
import mmap
import os
import pathlib
import random
import select
import socket
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / p) for p in ("tests/integration", "tests", "client/python")]

import dray  # noqa: E402
from harness import LIMIT, Lab, Raw, nothing_leaked, s, until  # noqa: E402
from ring_client import memory  # noqa: E402

PACKS = {name: fn for name, fn in inspect.getmembers(s, inspect.isfunction) if name.startswith("pack_")}
REQUESTS = sorted(name for name in PACKS if not name.endswith("_reply") and name not in ("pack_error", "pack_transfer_done"))
# requests on which others depend
COMMON = ["pack_region_add", "pack_region_export", "pack_remote_import", "pack_transfer", "pack_transfer", "pack_ring_open", "pack_lease",
          "pack_lease_acquire", "pack_transfer_cancel", "pack_notify"]
SIZE = 1 << 16
NUMBERS = (0, 1, 2, 3, 4, 7, 8, 63, 64, 100, 255, 256, 4095, 4096, 4097, SIZE - 1, SIZE, SIZE + 1, 1 << 20, (1 << 31) - 1, 1 << 31, (1 << 32) - 1,
           1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)
STEPS = 60
WARM = 30


class Descriptors:
    """One of each kind that a client may pass."""

    def __init__(self):
        self.sealed, self.mapped = memory(SIZE, b"0123456789" * 1000)
        self.unsealed = os.memfd_create("unsealed")
        os.ftruncate(self.unsealed, SIZE)
        self.read_only = os.open(f"/proc/self/fd/{self.unsealed}", os.O_RDONLY)
        self.file = tempfile.TemporaryFile()
        self.file.truncate(SIZE)
        self.pipe = os.pipe()
        self.pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        socket.send_fds(self.pair[0], [b"."], [self.sealed, self.pipe[0]])
        self.epoll = select.epoll()
        self.others = [os.eventfd(0), os.pidfd_open(os.getpid()), os.open("/", os.O_PATH), os.open("/dev/zero", os.O_RDWR),
                       os.open("/dev/null", os.O_WRONLY), os.open("/proc/self/maps", os.O_RDONLY), os.memfd_create("empty", os.MFD_ALLOW_SEALING)]
        self.all = [self.sealed, self.unsealed, self.read_only, self.file.fileno(), *self.pipe, *(sock.fileno() for sock in self.pair),
                    self.epoll.fileno(), *self.others]


class Session:
    """One client; what it learned from answers goes into the next requests."""

    def __init__(self, rng, agent, descriptors, tokens):
        self.rng, self.fds, self.tokens = rng, descriptors, tokens
        self.raw = Raw(agent, hello=False)
        self.raw.sock.setblocking(False)
        self.handles = {"region": [], "remote": [], "lease": [], "mailbox": [], "request": [1]}
        self.ring = None
        self.sent = 0
        if rng.random() < 0.95:
            self.send("pack_hello", major_min=1, major_max=1, flags=0, group=rng.choice(["", "g"]))

    # --- values ---

    def number(self):
        rng = self.rng
        return rng.choice(NUMBERS) if rng.random() < 0.5 else rng.getrandbits(rng.choice((3, 8, 16, 32, 64)))

    def handle(self, kind):
        known = self.handles.get(kind)
        return self.rng.choice(known) if known and self.rng.random() < 0.9 else self.number()

    def blob(self, most=64):
        return self.rng.randbytes(self.rng.choice((0, 1, 8, most)))

    def token(self):
        if not self.tokens or self.rng.random() < 0.05:
            return self.blob(200)
        token = bytearray(self.rng.choice(self.tokens))
        if self.rng.random() < 0.2:
            token[self.rng.randrange(len(token))] ^= 1 << self.rng.randrange(8)
        return bytes(token)

    def vector(self, name):
        rng, n = self.rng, self.rng.choice((0, 1, 1, 2, 5))
        if name == "ops":
            return [(rng.randrange(SIZE), rng.randrange(SIZE), rng.choice((1, 64, 4096))) if rng.random() < 0.9 else
                    (self.number(), self.number(), self.number()) for _ in range(n)]
        if name == "extents":
            return [(rng.randrange(6), rng.randrange(2), 0, 0, SIZE) if rng.random() < 0.8 else
                    (self.number() & 0xffff, self.number() & 0xffff, self.number() & 0xffffffff, self.number(), self.number()) for _ in range(n)]
        if name == "ranges":
            return [(rng.randrange(SIZE), 64, 128, rng.choice((1, 4))) for _ in range(n)]
        return b""

    def value(self, name, default):
        if name == "token" or name == "tokens":
            return self.token()
        if name in ("ops", "extents", "ranges", "allocations"):
            return self.vector(name)
        if isinstance(default, bytes):
            return self.blob()
        if isinstance(default, str):
            return self.rng.choice(("", "g", "a", "x" * 63, "10.0.0.1:50053", "vllm"))
        for kind in ("region", "remote", "lease", "mailbox", "request"):
            if name == kind or name.endswith("_" + kind):
                return self.handle(kind)
        if name == "local":
            return self.handle("region")
        if name in ("access", "direction", "flags", "class_"):
            return self.rng.choice((0, 1, 2, 3, 3, 3)) if self.rng.random() < 0.95 else self.number()
        if name == "length":
            return self.rng.choice((SIZE, 4096, self.number()))
        if name.endswith("_ms"):
            return self.rng.choice((0, 1, 50, 60000))
        if name in ("sq_entries", "arena_bytes"):
            return self.rng.choice((16, 4096, self.number()))
        return self.number() if self.rng.random() < 0.5 else 0

    # --- steps ---

    def send(self, name, fds=(), /, **given):
        fields = {p.name: given.get(p.name, self.value(p.name, p.default) if not given else p.default)
                  for p in list(inspect.signature(PACKS[name]).parameters.values())[1:]}
        self.sent += 1
        request = self.sent if self.rng.random() < 0.97 else self.number()
        # values that no field holds end here; each narrower one is tried in turn
        for mask in (~0, 0xffffffff, 0xffff, 0xff, 1):
            with contextlib.suppress(Exception):
                packet = PACKS[name](request, **{k: v & mask if isinstance(v, int) else v for k, v in fields.items()})
                return self.put(packet, fds)
        return None

    def put(self, packet, fds):
        packet = bytearray(packet)
        if self.rng.random() < 0.05 and packet:
            packet[self.rng.randrange(len(packet))] ^= 1 << self.rng.randrange(8)
        if self.rng.random() < 0.01:
            packet = packet[:self.rng.randrange(len(packet) + 1)]
        with contextlib.suppress(OSError):
            socket.send_fds(self.raw.sock, [packet], fds, socket.MSG_NOSIGNAL)

    def likely(self):
        """A request that the agent probably accepts."""
        rng, handles = self.rng, self.handles
        region = rng.choice(handles["region"]) if handles["region"] else 0
        choice = rng.randrange(5)
        if not region or choice == 0:
            return self.send("pack_region_add", [self.fds.sealed], access=3, extents=[(1, 0, 0, 0, SIZE)])
        if choice == 1:
            return self.send("pack_region_export", region=region, length=SIZE, access=3)
        if choice == 2 or not handles["remote"]:
            return self.send("pack_remote_import", token=rng.choice(self.tokens) if self.tokens else b"")
        return self.send("pack_transfer", direction=rng.choice((1, 2)), local=region, remote=rng.choice(handles["remote"]),
                         deadline_ms=rng.choice((0, 1, 1000)), ops=[(rng.randrange(SIZE // 2), rng.randrange(SIZE // 2), rng.choice((1, 64, SIZE // 2)))
                                                                  for _ in range(rng.choice((1, 3, 50)))],
                         **rng.choice(({}, {}, {"flags": s.TRANSFER_FLAG_WAIT, "wait_region": region, "wait_value": rng.choice((0, 1))},
                                       {"flags": s.TRANSFER_FLAG_SET, "set_region": region, "set_value": rng.choice((0, 1))},
                                       {"flags": s.TRANSFER_FLAG_NOTIFY, "notify": b"note"})))

    def message(self):
        if self.rng.random() < 0.4:
            return self.likely()
        name = self.rng.choice(COMMON if self.rng.random() < 0.7 else REQUESTS)
        fds = []
        if name == "pack_region_add" and self.rng.random() < 0.8:
            fds = [self.fds.sealed] * self.rng.choice((1, 1, 2))
            if self.rng.random() < 0.7:
                return self.send(name, fds, access=3, extents=[(1, 0, 0, 0, SIZE)])
        elif name == "pack_ring_open" and self.rng.random() < 0.7:
            return self.send(name, sq_entries=16, arena_bytes=4096)
        elif self.rng.random() < 0.1:
            fds = self.rng.choices(self.fds.all, k=self.rng.choice((1, 2, 10, 100)))
        return self.send(name, fds)

    def answers(self):
        for _ in range(100):
            try:
                packet, fds, _, _ = socket.recv_fds(self.raw.sock, 1 << 16, 16, socket.MSG_CMSG_CLOEXEC)
            except OSError:
                return
            if not packet:
                return
            self.learn(s.unpack(packet)[1], fds)

    def learn(self, message, fds):
        for kind, known in self.handles.items():
            if value := getattr(message, kind, 0):
                known.append(value)
        if token := getattr(message, "token", b""):
            self.tokens.append(token)
            del self.tokens[:-50]
        if isinstance(message, s.RingOpenReply) and len(fds) == 4 and not self.ring:
            self.ring = mmap.mmap(fds[1], message.ring_bytes)
            self.arena, self.bell = mmap.mmap(fds[0], message.arena_bytes), os.dup(fds[2])
            self.entries = message.sq_entries
        for fd in fds:
            os.close(fd)

    def ask_store(self, number, at):
        """A request to the store in the entry at this place, sometimes with changes."""
        rng, key = self.rng, b"\x01" + self.rng.choice((b"a", b"b", b"c"))
        copy = {"region": self.handle("region"), "keys": key, "items": [(1, 0)], "ranges": [(rng.randrange(SIZE // 2), rng.choice((1, 64, 4096)))]}
        name = rng.choice([n for n in REQUESTS if n.startswith("pack_store_")])
        fields = copy if name in ("pack_store_put", "pack_store_get") else {"leases": [(1,)]} if name == "pack_store_release" else {"keys": key}
        with contextlib.suppress(Exception):
            packet = bytearray(PACKS[name](number, **fields))
            if rng.random() < 0.1:
                packet[rng.randrange(len(packet))] ^= 1 << rng.randrange(8)
            offset = rng.randrange(len(self.arena) - len(packet))
            self.arena[offset:offset + len(packet)] = bytes(packet)
            entry = [number, s.ENTRY_FLAG_MESSAGE, len(packet), rng.choice((64, 128, 512)), offset]
            if rng.random() < 0.1:
                entry[rng.randrange(len(entry))] = self.number() & 0xffff
            self.ring[at:at + s.SQE_MESSAGE.size] = s.SQE_MESSAGE.pack(*entry)

    def scribble(self):
        """Submissions, some of them changed after they were published, and random words anywhere."""
        rng = self.rng
        words = memoryview(self.ring).cast("I")
        try:
            for _ in range(rng.choice((1, 4, 16))):
                tail = words[s.RING_SQ_TAIL // 4]
                at = words[s.RING_SQ_OFFSET // 4] + tail % self.entries * s.SQE.size
                fields = {n: self.value(n, 0) for n in s.Sqe._fields}
                fields |= {"direction": rng.choice((1, 2)), "op_count": 1, "op_length": rng.choice((1, 64, 4096)), "deadline_ms": 1000,
                           "flags": rng.choice((0, 0, 0, self.number()))}
                for mask in (~0, 0xffffffff, 0xffff, 0xff):
                    with contextlib.suppress(Exception):
                        if at + s.SQE.size <= len(self.ring):
                            self.ring[at:at + s.SQE.size] = s.SQE.pack(*(fields[n] & mask for n in s.Sqe._fields))
                        break
                if rng.random() < 0.3:
                    self.ask_store(tail, at)
                words[s.RING_SQ_TAIL // 4] = tail + 1 & 0xffffffff
            words[s.RING_CQ_HEAD // 4] = words[s.RING_CQ_TAIL // 4]
            if rng.random() < 0.3:
                words[rng.randrange(len(words))] = self.number() & 0xffffffff
            if rng.random() < 0.3:
                self.arena[:64] = rng.randbytes(64)
        finally:
            words.release()
        os.eventfd_write(self.bell, 1)

    def step(self):
        if self.ring and self.rng.random() < 0.3:
            self.scribble()
        else:
            self.message()
        if self.rng.random() < 0.7:
            self.answers()

    def close(self):
        self.raw.close()
        if self.ring:
            os.close(self.bell)
            self.ring.close()
            self.arena.close()


def play(rng, make):
    """A few sessions at once, each of make(). Returns the number of messages."""
    sessions = [make() for _ in range(rng.choice((1, 2, 3)))]
    for _ in range(rng.randrange(STEPS) * len(sessions)):
        rng.choice(sessions).step()
    for session in sessions:
        session.close()
    return sum(session.sent for session in sessions)


def serves(agent):
    with agent.client(timeout=LIMIT) as client, dray.Memory(SIZE) as area:
        region = client.region(area)
        client.read(region, client.import_token(region.export()), [(0, SIZE // 2, 4096)]).result(LIMIT)


# Without GPUs, whose threads start with the first region of their kind and stay.
SETTINGS = {"gpu.enable": "false", "limits.log_lines_per_owner": 5, "limits.unproved_segments_per_owner": 5, "peer.connect_timeout": "100ms"}


def run(agent, seed, more):
    """Plays while more() is true. Returns the numbers of rounds and messages."""
    descriptors, tokens, n, sent = Descriptors(), [], 0, 0

    def round(name):
        # those of clients that have ended are rarely valid
        del tokens[:-1]
        rng = random.Random(name)
        return play(rng, lambda: Session(rng, agent, descriptors, tokens))

    # the first use of some requests starts threads that stay
    for i in range(WARM):
        round(f"warm {i}")
    serves(agent)
    until(lambda: agent.resources().mappings == 0, "the unmapping of the clients' memory")
    with nothing_leaked(agent):
        while more():
            sent += round(f"{seed} {n}")
            n += 1
            if n % 50 == 0:
                serves(agent)
            assert agent.running, f"the agent died in round {n} of seed {seed}:\n{agent.tail()}"
        agent.check_log()
    return n, sent


def main():
    seconds, seed = int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else str(time.time_ns())
    lab, ends = Lab(alone=True), time.monotonic() + seconds
    agent = lab.agent(settings=SETTINGS).start()
    try:
        print(f"seed {seed}", flush=True)
        print("{} rounds of sessions, {} messages".format(*run(agent, seed, lambda: time.monotonic() < ends)))
        agent.stop()
    finally:
        lab.close()


if __name__ == "__main__":
    main()
