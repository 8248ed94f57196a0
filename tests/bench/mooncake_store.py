# SPDX-License-Identifier: Apache-2.0
"""One process of a Mooncake Store for bench_store.py, with the Python of scripts/mooncake-env: `node` keeps objects, `client` gets them, and `shared`
gets them through the client process of its node, by shared memory. ADDRESS is that of the master, or of the client process.

A client takes lines from its standard input, "SIZE COUNT TIMES", and answers with the seconds that TIMES batches of COUNT objects took.
"""

import ctypes
import mmap
import sys
import time

from mooncake.store import MooncakeDistributedStore

BYTES = 128 << 20

role, address = sys.argv[1:]
store = MooncakeDistributedStore()
if role == "shared":
    failed = store.setup_dummy(2 * BYTES, BYTES, address)
else:
    failed = store.setup("127.0.0.1", "P2PHANDSHAKE", 2 * BYTES if role == "node" else 0, BYTES, "tcp", "", address)
if failed:
    sys.exit("Mooncake's setup() failed")
print("ready", flush=True)
if role == "shared":
    at = store.alloc_from_mem_pool(BYTES)
else:
    memory = mmap.mmap(-1, BYTES)
    at = ctypes.addressof(ctypes.c_char.from_buffer(memory))
if role != "node" and store.register_buffer(at, BYTES):
    sys.exit("Mooncake's register_buffer() failed")
there = set()
for line in sys.stdin:
    size, count, times = map(int, line.split())
    keys = [f"{size}-{i}" for i in range(count)]
    places, sizes = [at + i * size for i in range(count)], [size] * count
    if new := [i for i in range(count) if keys[i] not in there]:
        if any(store.batch_put_from([keys[i] for i in new], [places[i] for i in new], [size] * len(new))):
            sys.exit("Mooncake's batch_put_from() failed")
        there.update(keys)
    began = time.monotonic()
    for _ in range(times):
        got = [store.get_into(keys[0], places[0], size)] if count == 1 else store.batch_get_into(keys, places, sizes)
        if got != sizes:
            sys.exit(f"Mooncake's get returned {got}")
    print(time.monotonic() - began, flush=True)
