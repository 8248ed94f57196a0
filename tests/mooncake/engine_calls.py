# SPDX-License-Identifier: Apache-2.0
"""A program for mooncake.engine: two engines of a process. It prints what the calls return and what the memory holds.

It runs unmodified with Mooncake and with `python -m dray.mooncake`.
"""

import ctypes
import mmap

from mooncake.engine import TransferEngine, TransferNotify, TransferOpcode

SIZE = 12 << 20


def show(what, *values):
    print(what, *values, flush=True)


def private(size):
    """(address, bytes) of memory that only this process has."""
    memory = mmap.mmap(-1, size)
    return ctypes.addressof(ctypes.c_char.from_buffer(memory)), memory


def until_ended(engine, number):
    while not (state := engine.transfer_check_status(number)):
        pass
    return state


a, b = TransferEngine(), TransferEngine()
show("initialize", a.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", ""), b.initialize("127.0.0.1:1", "P2PHANDSHAKE", "tcp", ""))
show("ports", 15000 <= a.get_rpc_port() <= 17000, a.get_rpc_port() != b.get_rpc_port())
show("opcodes", TransferEngine.TransferOpcode is TransferOpcode, str(TransferEngine.TransferOpcode.Read))
peer = f"127.0.0.1:{b.get_rpc_port()}"
show("probe", a.send_probe(peer), a.send_probe("127.0.0.1:1"))

here, local = private(SIZE)
there, remote = private(SIZE)
show("register", a.register_memory(here, SIZE), b.register_memory(there, SIZE // 2))
show("register again", b.register_memory(there, SIZE // 2), b.register_memory(there + 4096, 4096), b.register_memory(there, 0))
show("unregister unknown", b.unregister_memory(there + 4096), b.batch_unregister_memory([there + 4096]))
show("batch register", b.batch_register_memory([there + SIZE // 2, there + SIZE // 2 + 65536], [65536, 65536]))
show("batch unregister", b.batch_unregister_memory([there + SIZE // 2 + 65536]))
show("first", a.get_first_buffer_address(peer) == there)

local[:SIZE] = bytes(i % 251 for i in range(4096)) * (SIZE // 4096)
show("write", a.transfer_sync_write(peer, here, there, 16), remote[:16] == local[:16])
show("keywords", a.transfer_sync_write(target_hostname=peer, buffer=here, peer_buffer_address=there + 1, length=7), remote[1:8] == local[:7])
show("read", a.transfer_sync_read(peer, here + SIZE - 16, there, 16), local[-16:] == remote[:16])
show("nothing", a.transfer_sync_write(peer, here, there, 0), a.batch_transfer_sync_write(peer, [], [], []))
show("large", a.transfer_sync_write(peer, here + 5, there + 3, SIZE // 2 - 3), remote[3:SIZE // 2] == local[5:SIZE // 2 + 2])
show("behind the end", remote[SIZE // 2:SIZE // 2 + 8])

n = 500
ours, theirs = [here + 1024 * i for i in range(n)], [there + 1024 * (n - 1 - i) for i in range(n)]
show("batch write", a.batch_transfer_sync_write(peer, ours, theirs, [777] * n),
     all(remote[1024 * (n - 1 - i):][:777] == local[1024 * i:][:777] for i in range(0, n, 17)))
remote[:4096] = bytes(range(256)) * 16
show("batch read", a.batch_transfer_sync_read(peer, [here, here + 9000], [there, there + 100], [100, 200]),
     local[:100] == remote[:100], local[9000:9200] == remote[100:300])

show("notify", a.transfer_sync(peer, here, there, 8, TransferOpcode.Write, TransferNotify("from a", "done")),
     a.transfer_sync(peer, here, there, 8, TransferOpcode.Read))
notifies = b.get_notifies()
while not notifies:
    notifies = b.get_notifies()
show("notified", [(n.name, n.msg) for n in notifies], b.get_notifies())

numbers = [a.batch_transfer_async_write(peer, [here], [there + 5000 * i], [4096]) for i in range(5)]
show("async", all(numbers), a.get_batch_transfer_status(numbers), remote[20000:24096] == local[:4096])
number = a.batch_transfer_async_read(peer, [here + 50000], [there], [64])
show("async read", number != 0, a.get_batch_transfer_status([number]), local[50000:50064] == remote[:64])
show("status of nothing", a.get_batch_transfer_status([]))
number = a.transfer_submit_write(peer, here, there + 64, 32)
show("submit", number != 0, until_ended(a, number), remote[64:96] == local[:32])

buffer = a.allocate_managed_buffer(100000)
show("managed", buffer != 0, a.write_bytes_to_buffer(buffer, "hello", 5), a.read_bytes_from_buffer(buffer, 5))
show("managed write", a.transfer_sync_write(peer, buffer, there, 5), remote[:5])
show("managed read", a.transfer_sync_read(peer, buffer + 50, there + 64, 8), a.read_bytes_from_buffer(buffer + 50, 8) == remote[64:72])
target = b.allocate_managed_buffer(100000)
show("to managed", a.transfer_sync_write(peer, here, target, 50000), b.read_bytes_from_buffer(target, 50000) == local[:50000])
show("both managed", a.transfer_sync_write(peer, buffer, target + 60000, 5), b.read_bytes_from_buffer(target + 60000, 5))

show("not registered", a.transfer_sync_write(peer, here, there + SIZE - 4096, 16))
show("past a buffer", a.transfer_sync_write(peer, here, there + SIZE // 2 - 8, 16), remote[SIZE // 2:SIZE // 2 + 8] == bytes(8))
show("lengths", a.batch_transfer_sync_write(peer, [here], [there, there], [4]), a.batch_transfer_async_write(peer, [here], [there, there], [4]))
show("no such peer", a.transfer_sync_write("127.0.0.1:1", here, there, 16), a.batch_transfer_async_read("127.0.0.1:1", [here], [there], [16]))
for wrong in (-1, "text", 1 << 64):
    try:
        show("accepted", a.transfer_sync_write(peer, here, there, wrong))
    except TypeError:
        show("TypeError")
show("free", a.free_managed_buffer(buffer, 100000), b.free_managed_buffer(target, 100000))
show("unregister", a.unregister_memory(here), b.unregister_memory(there), b.unregister_memory(there))
