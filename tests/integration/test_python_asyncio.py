# SPDX-License-Identifier: Apache-2.0
"""The Python package in asyncio: transfers, requests and events are awaited, and awaiting tasks are cancelled."""

import asyncio
import gc
import os
import threading

import dray
import pytest
from dray import errors, events
from harness import LIMIT, MIB, Side, noise, until


@pytest.fixture
def two(agent):
    """Two sides of one agent, and a remote of the second for the first."""
    with Side(agent, MIB, group="one") as here, Side(agent, MIB, noise(MIB), group="two", notifications=True) as there:
        here.remote, here.there = here.reach(there), there
        yield here


def run(main):
    return asyncio.run(asyncio.wait_for(main, LIMIT))


def waiting(side, word):
    return side.client.read(side.region, side.remote, [(4096 + word, word, 1)], wait_word=(side.region, 4 * word, 1))


def test_transfers(two):
    async def main():
        step = MIB // 64
        done = await asyncio.gather(*(one(i * step, step) for i in range(64)))
        assert sum(d.bytes for d in done) == MIB

    async def one(at, n):
        return await two.client.read(two.region, two.remote, [(at, at, n)])

    run(main())
    assert two.view == two.there.view
    assert not two.client._loops, "the loop still watches the session"


def test_ended_transfer(two):
    """A transfer that has ended can be awaited, more than once, and by several tasks."""
    async def main():
        transfer = two.client.read(two.region, two.remote, [(0, 0, 64)])
        transfer.result(LIMIT)
        assert (await transfer).bytes == (await transfer).bytes == 64
        pending = waiting(two, 0)

        async def wait():
            return (await pending).bytes

        tasks = [asyncio.create_task(wait()) for _ in range(3)]
        await asyncio.sleep(0)
        two.memory.words()[0] = 1
        assert await asyncio.gather(*tasks) == [1, 1, 1]

    run(main())


def test_requests(two):
    """Exports, imports, releases and revocations are awaited."""
    async def main():
        token = await two.there.region.export(wait=False)
        remote = await two.client.import_token(token, wait=False)
        assert remote.length == MIB
        await two.client.read(two.region, remote, [(0, 0, MIB)])
        await remote.release(wait=False)
        assert await two.there.region.revoke(token, wait=False) == 1
        with pytest.raises(errors.Revoked):
            await two.client.import_token(token, wait=False)
        memory = dray.Memory(4096)
        region = await two.client.region(memory, wait=False)
        await region.remove(wait=False)

    run(main())
    assert two.view == two.there.view


def test_failure(two):
    async def main():
        with pytest.raises(errors.Range) as caught:
            await two.client.read(two.region, two.remote, [(0, MIB, 1)])
        assert caught.value.done.status == errors.Range.code

    run(main())


def test_notifications(two):
    async def main():
        near, far = two.client, two.there.client
        waiter = asyncio.create_task(wait(far))
        await asyncio.sleep(0)
        await near.write(two.region, two.remote, [(0, 0, 64)], notify=(7, b"seven"))
        await two.remote.notify(8, b"eight", wait=False)
        assert await waiter == [(7, b"seven"), (8, b"eight")]

    async def wait(far):
        got = []
        for _ in range(2):
            event = await far.notification()
            assert event.region is two.there.region
            got.append((event.tag, event.payload))
        return got

    run(main())


def test_stream_of_events(two):
    """A stream gives every event in order, and ends with the client."""
    async def main():
        far, got = two.there.client, []

        async def read():
            async for event in far.stream_events():
                got.append(event.tag)
                if len(got) == 20:
                    await far.aclose()

        reader = asyncio.create_task(read())
        for i in range(20):
            await two.remote.notify(i, wait=False)
        await reader
        assert got == list(range(20))

    run(main())


def test_cancelled_wait_for_an_event_loses_none(two):
    async def main():
        far = two.there.client
        for i in range(20):
            waiter = asyncio.create_task(wait(far))
            await asyncio.sleep(0)
            await two.remote.notify(i, wait=False)
            waiter.cancel()
            got = []
            try:
                got.append(await waiter)
            except asyncio.CancelledError:
                got.append(await far.notification())
            assert [e.tag for e in got] == [i]

    async def wait(far):
        return await far.notification()

    run(main())


def test_loop_that_is_closed_while_a_task_waits(two):
    """Such a task gets no event, and nothing of it is left after the next one."""
    async def main(far):
        tasks.append(asyncio.ensure_future(wait(far)))
        while not far._loops:
            await asyncio.sleep(0)

    async def wait(far):
        return await far.notification()

    far, tasks = two.there.client, []
    for _ in range(2):
        loop = asyncio.new_event_loop()
        loop.run_until_complete(main(far))
        loop.close()
        for task in tasks:
            task._log_destroy_pending = False
        tasks.clear()
        del loop, task
    two.remote.notify(7)
    assert far.next_event(timeout=LIMIT).tag == 7
    gc.collect()
    assert not far._loops and not far._event_waits


def test_cancelled_task_cancels_its_transfer(two):
    """The transfer keeps its region and remote until it has ended, also if nobody refers to it."""
    async def main():
        task = asyncio.create_task(wait())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        gc.collect()
        held = list(two.client._pending.values())
        assert len(held) <= 1 and all(t._local is two.region and t._remote is two.remote for t in held)
        del held
        # the session works, and the cancelled transfer ends
        await two.client.read(two.region, two.remote, [(0, 0, 64)])
        while two.client._pending:
            await asyncio.sleep(0)
            two.client.process()

    async def wait():
        await waiting(two, 0)

    run(main())
    two.memory.words()[0] = 1
    two.client.read(two.region, two.remote, [(1, 1, 1)]).result(LIMIT)
    assert two.view[4096] == 0, "the cancelled transfer was carried out"


def test_timeout(two):
    async def main():
        transfer = waiting(two, 0)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(await_it(transfer), 0.02)
        with pytest.raises(errors.Cancelled):
            await transfer

    async def await_it(transfer):
        return await transfer

    run(main())


def test_loops_and_threads_at_once(two):
    """Several loops in several threads, and threads that wait without one, share a session."""
    failures, n = [], 50

    async def main(i):
        for k in range(n):
            at = (i * n + k) * 64
            await two.client.read(two.region, two.remote, [(at, at, 64)])

    def plain(i):
        for k in range(n):
            at = (i * n + k) * 64
            two.client.read(two.region, two.remote, [(at, at, 64)]).result(LIMIT)

    def guard(function, i):
        try:
            function(i)
        except BaseException as e:
            failures.append(e)

    threads = [threading.Thread(target=guard, args=(lambda i: run(main(i)), i)) for i in range(4)] + \
        [threading.Thread(target=guard, args=(plain, i)) for i in range(4, 8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
        assert not thread.is_alive()
    assert not failures
    assert two.view[:8 * n * 64] == two.there.view[:8 * n * 64]


def test_connects_in_the_background(new_agent):
    """Without waiting, a client is made before its agent answers; requests wait for the session."""
    agent = new_agent()

    async def main():
        async with agent.client(wait=False) as client:
            assert client.info().connected
            assert isinstance(await client.event(events.Connected), events.Connected)
        client = agent.client(wait=False)
        pool = client.pool(4096, wait=False)
        assert len((await pool).memory) == 4096
        await client.aclose()
        with pytest.raises(errors.SessionClosed):
            client.pool(4096)

    run(main())


def test_closed_while_tasks_wait(two):
    async def main():
        transfers = [waiting(two, i) for i in range(5)]
        tasks = [asyncio.create_task(wait(t)) for t in transfers]
        events_ = asyncio.create_task(next_event())
        await asyncio.sleep(0)
        await two.client.aclose()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(e, (errors.SessionClosed, errors.Cancelled)) for e in ended), ended
        assert await events_ is None

    async def wait(transfer):
        return await transfer

    async def next_event():
        return await two.client.event()

    run(main())
    assert not two.client._loops


def test_loop_that_cannot_watch_the_client(two):
    """The request ends with the error of the loop, and the next one is awaited as ever."""
    async def main():
        loop, client = asyncio.get_running_loop(), two.client
        add = loop.add_reader

        def refuse(*_):
            loop.add_reader = add
            raise OSError("not now")

        loop.add_reader, transfer = refuse, waiting(two, 0)
        with pytest.raises(OSError, match="not now"):
            await transfer
        assert not client._loops
        with pytest.raises(errors.Cancelled):
            await transfer
        last = waiting(two, 1)
        loop.call_later(0.01, two.memory.words().__setitem__, 1, 1)
        assert (await last).bytes == 1

    run(main())


def test_loop_that_cannot_watch_anything(two):
    """No descriptor is left behind."""
    async def main():
        loop, refused = asyncio.get_running_loop(), []

        def refuse(fd, *_):
            refused.append(fd)
            raise NotImplementedError

        loop.add_reader = loop.remove_reader = refuse
        with pytest.raises(NotImplementedError):
            await waiting(two, 0)
        del loop.add_reader, loop.remove_reader
        assert len(refused) == 2 and not two.client._loops
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(refused[0])

    run(main())


def test_loop_of_the_program(two):
    """A program with an event loop of its own watches fileno() and calls process()."""
    import select
    transfer = waiting(two, 0)
    poll = select.poll()
    poll.register(two.client.fileno(), select.POLLIN)
    two.memory.words()[0] = 1
    while not transfer._ended:
        assert poll.poll(LIMIT * 1000)
        two.client.process()
    assert transfer.result().bytes == 1
    until(lambda: two.client.process() or not poll.poll(0), "the end of the work")
