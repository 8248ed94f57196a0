#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Two engines copy blocks of a KV cache: one owns them, the other reads them.

    copy_blocks.py SOCKET [SOCKET OF THE SECOND ENGINE'S AGENT]
"""

import sys

import dray

BLOCK, BLOCKS = 64 << 10, 256


def main(here: str, there: str) -> None:
    # Each engine has a session with the agent of its node. A group is the engine's name for its own processes.
    with dray.Client(there, group="owner", notifications=True) as owner, dray.Client(here, group="reader") as reader:
        cache = dray.Memory(BLOCK * BLOCKS)
        for i in range(BLOCKS):
            cache.view[i * BLOCK:(i + 1) * BLOCK] = bytes([i]) * BLOCK
        region = owner.region(cache, access="r", name="kv")
        # The token is a secret text. An engine sends it to the other one in the metadata of a request.
        token = str(region.export(access="r", ttl=60))

        copy = dray.Memory(BLOCK * BLOCKS)
        mine = reader.region(copy)
        remote = reader.import_token(token)
        # The blocks 0, 2, 4, ... of the owner into the blocks 0, 1, 2, ... here, in one transfer.
        ops = [(i * BLOCK, 2 * i * BLOCK, BLOCK) for i in range(BLOCKS // 2)]
        done = reader.read(mine, remote, ops).result(timeout=60)
        assert all(copy.view[i * BLOCK] == 2 * i for i in range(BLOCKS // 2))
        print(f"{done.bytes} bytes in {done.duration_ns / 1e6:.1f} ms by {dray.TRANSPORT_NAMES[done.transport]}")

        # The owner learns that its blocks can be reused.
        remote.notify(7, b"read")
        note = owner.next_notification(timeout=60)
        assert note is not None and note.payload == b"read"
        # After the removal nothing but this engine accesses the memory.
        region.remove()
    print("copied")


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[-1])
