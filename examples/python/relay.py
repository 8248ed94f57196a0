#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Store and forward: a relay copies blocks from a producer into memory of its own, and a consumer fetches them later, also after
the producer is gone.

    relay.py SOCKET
"""

import sys
import threading
from concurrent import futures

import dray

BLOCK, BLOCKS = 64 << 10, 32


class Relay:
    """Copies what producers offer, and offers it to consumers."""

    def __init__(self, socket: str) -> None:
        self.client = dray.Client(socket, group="relay", notifications=True)
        # A pool belongs to the agent, and stays when a producer goes.
        self.pool = self.client.pool(BLOCK * BLOCKS, name="store")
        self.stored: dict[int, str] = {}
        self.changed = threading.Condition()

    def store(self, token: str, block: int) -> None:
        """Reads one block that a producer exports, and exports the copy."""
        at = block * BLOCK
        remote = self.client.import_token(token)
        try:
            self.client.read(self.pool, remote, [(at, 0, BLOCK)]).result(timeout=60)
        finally:
            remote.release()
        copy = str(self.pool.export(at, BLOCK, access="r", ttl=600))
        with self.changed:
            self.stored[block] = copy
            self.changed.notify_all()

    def token(self, block: int) -> str:
        """The token of a block, once it is stored."""
        with self.changed:
            if not self.changed.wait_for(lambda: block in self.stored, timeout=60):
                raise dray.errors.NotFound(f"block {block} was not stored")
            return self.stored[block]


def produce(socket: str, relay: Relay) -> None:
    with dray.Client(socket, group="producer") as client, dray.Memory(BLOCK * BLOCKS) as memory:
        region = client.region(memory, access="r")
        for i in range(BLOCKS):
            memory.view[i * BLOCK:(i + 1) * BLOCK] = bytes([i + 1]) * BLOCK
            relay.store(str(region.export(i * BLOCK, BLOCK, access="r", single_use=True)), i)
        region.remove()  # nothing reads the memory any more, and it can be reused


def consume(socket: str, relay: Relay) -> None:
    with dray.Client(socket, group="consumer") as client, dray.Memory(BLOCK * BLOCKS) as memory:
        region = client.region(memory)
        remotes = [client.import_token(relay.token(i)) for i in range(BLOCKS)]
        with client.batch():
            transfers = [client.read(region, remote, [(i * BLOCK, 0, BLOCK)]) for i, remote in enumerate(remotes)]
        for transfer in transfers:
            transfer.result(timeout=60)
        assert all(memory.view[i * BLOCK] == i + 1 for i in range(BLOCKS))
        region.remove()


def main(socket: str) -> None:
    relay = Relay(socket)
    with relay.client, futures.ThreadPoolExecutor() as threads:
        consumer = threads.submit(consume, socket, relay)
        produce(socket, relay)
        consumer.result()
    print("copied")


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    main(sys.argv[1])
