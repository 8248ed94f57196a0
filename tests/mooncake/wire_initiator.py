# SPDX-License-Identifier: Apache-2.0
"""An engine with Mooncake linked in, for tests of the agent as its target and as its initiator: it does what each line of JSON on its
input says, and answers with a line."""

import ctypes
import hashlib
import json
import mmap
import os
import sys

from mooncake.engine import TransferEngine

out = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # Mooncake's log lines must not mix with the answers
name, size, metadata = sys.argv[1], int(sys.argv[2]), sys.argv[3]
engine = TransferEngine()
protocol, device = sys.argv[4:] or ("tcp", "")
assert engine.initialize(name, metadata, protocol, device) == 0
memory = mmap.mmap(-1, size)
base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
assert engine.register_memory(base, size) == 0


def pieces(call, target, remote, ops):
    """ops: (offset in this memory, offset in the remote buffer, bytes)"""
    return call(target, [base + op[0] for op in ops], [remote + op[1] for op in ops], [op[2] for op in ops])


CALLS = {
    "fill": lambda offset, text: memory.__setitem__(slice(offset, offset + len(text) // 2), bytes.fromhex(text)),
    "repeat": lambda offset, byte, n: memory.__setitem__(slice(offset, offset + n), bytes([byte]) * n),
    "digest": lambda offset, n: hashlib.sha256(memory[offset:offset + n]).hexdigest(),
    "write": lambda *args: pieces(engine.batch_transfer_sync_write, *args),
    "read": lambda *args: pieces(engine.batch_transfer_sync_read, *args),
    "write_one": lambda target, remote, offset, n: engine.transfer_sync_write(target, base + offset, remote, n),
    "read_one": lambda target, remote, offset, n: engine.transfer_sync_read(target, base + offset, remote, n),
    "probe": lambda target: engine.send_probe(target),
    "where": lambda: [engine.get_rpc_port(), base],
    "register": lambda offset, n: engine.register_memory(base + offset, n),
    "unregister": lambda offset: engine.unregister_memory(base + offset),
}
print(json.dumps("ready"), file=out, flush=True)
for line in sys.stdin:
    name, *args = json.loads(line)
    print(json.dumps(CALLS[name](*args)), file=out, flush=True)
