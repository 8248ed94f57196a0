#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""dray.mooncake with memory of GPUs: two engines of this process, each with memory of every kind, and a store.

    check_mooncake.py SOCKET_A SOCKET_B DEVICE_A DEVICE_B [SECONDS]

SOCKET: of the agents, the first one with a store. DEVICE: numbers of GPUs. Every byte is compared. Prints a line for each check; exit
status 1 if one failed. With SECONDS it also measures each transfer for so long.
"""

import ctypes
import io
import itertools
import logging
import mmap
import os
import sys
import time

from check_client import MIB, Gpu
from harness import noise
from dray import cuda
from dray.mooncake.engine import TransferEngine
from dray.mooncake.store import MooncakeDistributedStore

KIB, SIZE = 1 << 10, 8 * MIB
KINDS = ("malloc", "chunks", "private", "managed")
# offset here, offset there, length
PIECES = ((0, 1, 4096), (4099, 70001, 100_000), (200_003, 5000, 3), (2 * MIB - 5, 3 * MIB + 7, 4 * MIB + 11))
failed = 0
log = io.StringIO()


def said():
    text = log.getvalue()
    log.seek(0)
    log.truncate()
    return text


def say(ok, what):
    global failed
    failed += not ok
    print(f"{'ok' if ok else 'not ok'} - {what}", flush=True)
    if not ok:
        print(said())


class Side:
    """An engine, and memory of each kind: address by kind."""

    def __init__(self, socket, device):
        os.environ["DRAY_SOCKET"] = socket
        self.gpu, self.engine = Gpu(device), TransferEngine()
        assert self.engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0, said()
        self.session = f"127.0.0.1:{self.engine.get_rpc_port()}"
        self.host = mmap.mmap(-1, SIZE)
        self.at = {"malloc": self.gpu.malloc(SIZE), "chunks": self.gpu.chunks(4, 2 * MIB),
                   "private": ctypes.addressof(ctypes.c_char.from_buffer(self.host))}
        at = list(self.at.values())
        assert self.engine.batch_register_memory(at, [SIZE] * len(at)) == 0, said()
        self.at["managed"] = self.engine.allocate_managed_buffer(SIZE)

    def fill(self, kind, data):
        self.gpu.use()
        if kind in ("malloc", "chunks"):
            self.gpu.write(self.at[kind], data)
        else:
            ctypes.memmove(self.at[kind], data, len(data))

    def bytes(self, kind):
        self.gpu.use()
        return self.gpu.read(self.at[kind], SIZE) if kind in ("malloc", "chunks") else ctypes.string_at(self.at[kind], SIZE)


def pairs(a, b):
    for near, far in itertools.product(KINDS, KINDS):
        for write in (True, False):
            source, target = noise(SIZE, 1), noise(SIZE, 2)
            a.fill(near, source if write else target)
            b.fill(far, target if write else source)
            lists = [a.at[near] + p[0] for p in PIECES], [b.at[far] + p[1] for p in PIECES], [p[2] for p in PIECES]
            code = (a.engine.batch_transfer_sync_write if write else a.engine.batch_transfer_sync_read)(b.session, *lists)
            for p, q, n in PIECES:
                p, q = (p, q) if write else (q, p)
                target = target[:q] + source[p:p + n] + target[q + n:]
            say(code == 0 and (b.bytes(far) if write else a.bytes(near)) == target, f"{near} {'to' if write else 'from'} {far}")


def registrations(a, b):
    for kind in ("malloc", "chunks"):
        found = [cuda.find_allocation(b.at[kind] + i * 2 * MIB) for i in range(4)]
        say(all(found) and len({f.id for f in found}) == len({f.address for f in found}) and all(f.id for f in found),
            f"allocations of {kind}: {[(f.address - b.at[kind], f.length, f.id) if f else None for f in found]}")
    pinned = b.at["private"]
    say(cuda.find_allocation(pinned) is None, "memory of the host is not of a GPU")
    other, loose = b.gpu.malloc(4 * MIB), a.gpu.malloc(MIB)
    say(b.engine.batch_register_memory([other, other + 2 * MIB], [MIB, MIB]) == 0, "two registrations in one allocation")
    own = a.at["managed"]
    say(a.engine.transfer_sync_write(b.session, own, other + 2 * MIB, MIB) == 0 and
        a.engine.transfer_sync_write(b.session, own, other + MIB, 1) == -1, "only what is registered can be reached")
    say(b.engine.unregister_memory(other) == 0 and a.engine.transfer_sync_write(b.session, own, other, 1) == -1 and
        a.engine.transfer_sync_write(b.session, own, other + 2 * MIB, MIB) == 0, "one registration ended")
    said()
    say([a.engine.transfer_sync_write(b.session, loose, b.at[kind], KIB) for kind in ("malloc", "private")] == [-1, -1] and
        "register the memory if it is on a GPU" in said(), "memory that is not registered is refused")
    b.gpu.use()
    b.gpu.call("cuMemFree_v2", ctypes.c_uint64(other))
    say(b.engine.unregister_memory(other + 2 * MIB) == 0, "memory that was freed is unregistered")
    again = b.gpu.malloc(4 * MIB)
    b.gpu.write(again, bytes(MIB))
    a.fill("managed", noise(SIZE, 3))
    b.gpu.use()
    say(b.engine.register_memory(again, MIB) == 0 and a.engine.transfer_sync_write(b.session, own, again, MIB) == 0 and
        b.gpu.read(again, MIB) == noise(SIZE, 3)[:MIB], f"memory that is new {'at this address' if again == other else 'elsewhere'}")


def store(socket, side):
    os.environ["DRAY_SOCKET"] = socket
    s = MooncakeDistributedStore()
    say(s.setup("127.0.0.1") == 0, "store")
    for kind in ("malloc", "chunks"):
        at, data = side.at[kind], noise(SIZE, 4)
        side.fill(kind, data)
        say(s.register_buffer(at, SIZE) == 0 and s.put_from(kind, at, 3 * MIB + 1) == 0 and s.get_into(kind, at + 4 * MIB, 4 * MIB) == 3 * MIB + 1 and
            side.bytes(kind)[4 * MIB:7 * MIB + 1] == data[:3 * MIB + 1], f"object from and to {kind}")
        mixed = [[at + 3, side.at["private"] + 1, at + MIB]]
        sizes = [[1000, 999, 5000]]
        side.fill("private", data)
        say(s.batch_put_from_multi_buffers(["mixed " + kind], mixed, sizes) == [0] and s.get_into("mixed " + kind, at + 7 * MIB, MIB) == 6999,
            f"object of the host and {kind}")
        expected = side.bytes(kind)[3:1003] + data[1:1000] + side.bytes(kind)[MIB:MIB + 5000]
        say(side.bytes(kind)[7 * MIB:7 * MIB + 6999] == expected, "its bytes")
    s.close()


def rates(a, b, seconds):
    for near, far in (("malloc", "malloc"), ("chunks", "chunks"), ("malloc", "managed"), ("malloc", "private"), ("private", "malloc"),
                      ("managed", "managed")):
        for n, length in ((1, MIB), (4, MIB), (1000, 4 * KIB)):
            places = [i * (SIZE // n // KIB * KIB) for i in range(n)]
            lists = [a.at[near] + i for i in places], [b.at[far] + i for i in reversed(places)], [length] * n
            calls, began = 0, time.monotonic()
            while time.monotonic() < began + seconds or calls < 3:
                assert a.engine.batch_transfer_sync_write(b.session, *lists) == 0, said()
                calls += 1
            rate = calls * n * length / (time.monotonic() - began)
            print(f"write, {n} x {length // KIB} KiB, {near} to {far}: {rate / 1e9:.2f} GB/s", flush=True)


def main():
    logging.getLogger("dray.mooncake").addHandler(logging.StreamHandler(log))
    sockets, devices = sys.argv[1:3], [int(d) for d in sys.argv[3:5]]
    a, b = map(Side, sockets, devices)
    pairs(a, b)
    registrations(a, b)
    store(sockets[0], a)
    if len(sys.argv) > 5:
        rates(a, b, float(sys.argv[5]))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
