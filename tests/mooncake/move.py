# SPDX-License-Identifier: Apache-2.0
"""A program for mooncake.engine, of prefill or decode, for the test of moving from Mooncake to dray: it does what each line of JSON on its
input says, and answers with a line. It does not know which of the two it runs on.

    python move.py HOST SIZE managed|private    -> {"session": "HOST:PORT", "address": ADDRESS}

    ["push"|"pull", SESSION, [[offset here, address there, length], ...]]    -> code of the transfer that writes there, or reads
    ["fill", seed]                                                    -> null     random bytes in all of its memory
    ["digest", [[offset, length], ...]]                               -> digest of these bytes
"""

import ctypes
import hashlib
import json
import mmap
import os
import random
import sys

from mooncake.engine import TransferEngine

out = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # Mooncake's log lines must not mix with the answers
host, size, kind = sys.argv[1], int(sys.argv[2]), sys.argv[3]
engine = TransferEngine()
assert engine.initialize(host, "P2PHANDSHAKE", "tcp", "") == 0
if kind == "managed":
    base = engine.allocate_managed_buffer(size)
    assert base
else:
    memory = mmap.mmap(-1, size)
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    assert engine.register_memory(base, size) == 0


def push(session, pieces):
    return engine.batch_transfer_sync_write(session, [base + p[0] for p in pieces], [p[1] for p in pieces], [p[2] for p in pieces])


def pull(session, pieces):
    return engine.batch_transfer_sync_read(session, [base + p[0] for p in pieces], [p[1] for p in pieces], [p[2] for p in pieces])


def fill(seed):
    ctypes.memmove(base, random.Random(seed).randbytes(size), size)


def digest(pieces):
    return hashlib.sha256(b"".join(ctypes.string_at(base + offset, n) for offset, n in pieces)).hexdigest()


CALLS = {"push": push, "pull": pull, "fill": fill, "digest": digest}
print(json.dumps({"session": f"{host}:{engine.get_rpc_port()}", "address": base}), file=out, flush=True)
for line in sys.stdin:
    name, *args = json.loads(line)
    print(json.dumps(CALLS[name](*args)), file=out, flush=True)
