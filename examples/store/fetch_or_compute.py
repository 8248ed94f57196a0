#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Keeps computed blocks in the store of this node's agent: computes those that it lacks, and fetches the others.

The agent needs a store: drayd --set limits.store_bytes=1GiB. Usage: fetch_or_compute.py [SOCKET]
"""

import sys

import dray

BLOCK, BLOCKS = 1 << 20, 8


def compute(view, number):
    """Stands for a prefill; returns the seconds that it took."""
    view[:] = bytes([number]) * len(view)
    return 0.02


def main():
    with dray.Client(*sys.argv[1:2]) as client, dray.Memory(BLOCK * BLOCKS) as memory:
        region, store = client.region(memory), client.store()
        places = {b"model/block-%d" % i: (i * BLOCK, BLOCK) for i in range(BLOCKS)}

        got = store.get(region, [(key, [place]) for key, place in places.items()])
        missing = [key for key, result in zip(places, got) if result.status != dray.Status.OK]
        costs = {}
        for key in missing:
            offset, length = places[key]
            costs[key] = compute(memory.view[offset:offset + length], offset // BLOCK)
        if missing:
            put = store.put(region, [(key, [places[key]], costs[key]) for key in missing])
            print(f"computed {len(missing)} blocks, stored {sum(r.status == dray.Status.OK for r in put)}")
        print(f"fetched {BLOCKS - len(missing)} blocks")

        # without a copy: a block as the agent has it
        view, = store.read([b"model/block-3"])
        with view:
            if view.data is None:  # such as BUSY: there was no room for it
                sys.exit(f"a block cannot be read: {view.status.name}")
            assert view.data[0] == 3
        print("read a block in place")


if __name__ == "__main__":
    if sys.argv[1:2] in (["-h"], ["--help"]):
        sys.exit(__doc__)
    main()
