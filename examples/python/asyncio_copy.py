#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""An engine on asyncio: transfers, requests and notifications are awaited, and a task that is cancelled stops its transfer.

    asyncio_copy.py SOCKET
"""

import asyncio
import sys

import dray

BLOCK, BLOCKS = 64 << 10, 64


async def send(client: dray.Client, region: dray.Region, remote: dray.Remote, block: int) -> None:
    """Writes one block and tells its number."""
    await client.write(region, remote, [(block * BLOCK, block * BLOCK, BLOCK)], notify=(block, b""))


async def receive(client: dray.Client) -> set[int]:
    """The numbers of all blocks, in the order of their arrival."""
    arrived = set()
    async for note in client.stream_events(dray.Notification):
        arrived.add(note.tag)
        if len(arrived) == BLOCKS:
            break
    return arrived


async def main(socket: str) -> None:
    async with dray.Client(socket, group="target", notifications=True, wait=False) as target, \
            dray.Client(socket, group="source", wait=False) as source:
        there, here = dray.Memory(BLOCK * BLOCKS), dray.Memory(BLOCK * BLOCKS)
        here.view[:] = b"\x5a" * len(here)
        region = await target.region(there, wait=False)
        token = await region.export(access="w", wait=False)
        mine = await source.region(here, wait=False)
        remote = await source.import_token(token, wait=False)

        receiver = asyncio.create_task(receive(target))
        await asyncio.gather(*(send(source, mine, remote, i) for i in range(BLOCKS)))
        assert await receiver == set(range(BLOCKS))
        assert there.view == here.view

        # This transfer would wait until a word of the memory is 1. The timeout cancels it.
        try:
            await asyncio.wait_for(stuck(source, mine, remote), 0.1)
        except TimeoutError:
            print("the transfer was cancelled")
    print("copied")


async def stuck(client: dray.Client, region: dray.Region, remote: dray.Remote) -> None:
    await client.write(region, remote, [(0, 0, BLOCK)], wait_word=(region, 0, 1))


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    asyncio.run(main(sys.argv[1]))
