#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Blocks in numpy arrays over registered memory, and the list of operations computed by numpy.

    arrays.py SOCKET

PyTorch tensors work alike: torch.frombuffer(memory.view, dtype=...) for the memory, and a contiguous int64 tensor of shape
(n, 3) for the operations. Memory of a GPU is described by dray.cuda.describe_tensors(tensors), and registered by region().
"""

import sys

import dray
import numpy as np

LAYERS, BLOCKS, ELEMENTS = 4, 128, 4096  # a block has float16 elements


def main(socket: str) -> None:
    with dray.Client(socket, group="owner") as owner, dray.Client(socket, group="reader") as reader:
        shape = (LAYERS, BLOCKS, ELEMENTS)
        size = int(np.prod(shape)) * 2
        theirs, ours = dray.Memory(size), dray.Memory(size)
        # The arrays are views of the memory that the agent moves: nothing is copied in between.
        source = np.frombuffer(theirs.view, np.float16, LAYERS * BLOCKS * ELEMENTS).reshape(shape)
        target = np.frombuffer(ours.view, np.float16, LAYERS * BLOCKS * ELEMENTS).reshape(shape)
        source[:] = np.arange(LAYERS * BLOCKS, dtype=np.float16).reshape(LAYERS, BLOCKS, 1)

        remote = reader.import_token(owner.region(theirs).export())
        region = reader.region(ours)
        wanted = np.random.default_rng(1).permutation(BLOCKS)[:32]
        block = ELEMENTS * 2
        ops = np.empty((LAYERS, len(wanted), 3), np.uint64)
        first = (np.arange(LAYERS, dtype=np.uint64) * np.uint64(BLOCKS * block))[:, None]
        ops[:, :, 0] = first + np.arange(len(wanted), dtype=np.uint64) * np.uint64(block)
        ops[:, :, 1] = first + wanted.astype(np.uint64) * np.uint64(block)
        ops[:, :, 2] = block
        # The library reads the array in place, and copies it once into memory that it shares with the agent.
        done = reader.read(region, remote, ops.reshape(-1, 3)).result(timeout=60)
        assert np.array_equal(target[:, :len(wanted)], source[:, wanted])
        print(f"{done.bytes} bytes")
        del source, target  # they hold the memory
    print("copied")


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    main(sys.argv[1])
