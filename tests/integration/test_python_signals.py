# SPDX-License-Identifier: Apache-2.0
"""The Python package under handlers of signals that raise, at each place where CPython can run one."""

import asyncio
import contextlib
import threading
import weakref

import dray
import pytest
from dray import errors, pending
from fake_agent import FakeAgent
from harness import LIMIT, MIB, Side, noise, until
from interrupts import places
from wire import codec as s

STORE = {"limits.store_bytes": "64MiB", "limits.store_bytes_per_owner": "64MiB", "store.segment_size": "4MiB"}


@pytest.fixture
def two(agent):
    """Two sides of one agent, and a remote of the second for the first."""
    with Side(agent, MIB) as here, Side(agent, MIB, noise(MIB)) as there:
        here.remote = here.reach(there)
        yield here


@pytest.fixture
def store_agent(new_agent):
    return new_agent(settings=STORE)


class Thread(threading.Thread):
    """Runs a function; result() waits for its end."""

    def __init__(self, function):
        super().__init__(daemon=True)
        self.function, self.value, self.error = function, None, None
        self.start()

    def run(self):
        try:
            self.value = self.function()
        except BaseException as e:
            self.error = e

    def result(self, place=""):
        self.join(LIMIT)
        assert not self.is_alive(), f"a thread has not ended\n{place}"
        if self.error:
            raise self.error
        return self.value


def waiting(side, word):
    """A read of one byte that starts when a word of the memory is 1."""
    return side.client.read(side.region, side.remote, [(MIB // 2 + word, word, 1)], wait_word=(side.region, 4 * word, 1))


def answered(client):
    """Takes all answers."""
    until(lambda: client.process() or not client._pending, "the answers")


@pytest.mark.parametrize("held", [True, False])
def test_wait(two, held):
    """The transfer ends all the same, its callback is called, and other threads can wait."""
    at = {}

    def begin():
        two.client._skip[pending.HELD_TRANSFER] = not held
        transfer, called = two.client.read(two.region, two.remote, [(65536, 0, 64)]), []
        transfer.add_done_callback(called.append)
        at.update(transfer=transfer, called=called)
        return lambda: transfer.result(LIMIT)

    for place in places(begin):
        assert Thread(lambda: at["transfer"].exception(LIMIT)).result(place) is None, place
        assert at["transfer"].result(LIMIT).bytes == 64 and at["called"] == [at["transfer"]], place
        assert not two.client._pending and not two.client._sleeping, place


def test_wait_beside_a_thread(two):
    """A thread that waits meanwhile, for the same transfer or for another one, is woken."""
    at, words, numbers = {}, two.memory.words(), iter(range(1, 1 << 20))

    def begin():
        one, two_, over = next(numbers), next(numbers), threading.Event()
        mine, theirs = waiting(two, one), waiting(two, two_)

        def drive():
            until(lambda: over.is_set() or two.client._leader and len(two.client._sleeping) == 2, "the sleep")
            words[one] = 1

        at.update(over=over, word=two_, threads=[Thread(lambda: mine.result(LIMIT)), Thread(lambda: theirs.result(LIMIT)), Thread(drive)])
        return lambda: mine.result(LIMIT)

    for place in places(begin):
        at["over"].set()
        at["threads"][2].result()
        at["threads"][0].result(place)
        words[at["word"]] = 1
        at["threads"][1].result(place)
        assert not two.client._sleeping and not two.client._pending, place


def test_process_beside_a_thread(two):
    """What process() takes for a thread that polls wakes that thread."""
    at, words, numbers = {}, two.memory.words(), iter(range(1, 1 << 20))

    def begin():
        word = next(numbers)
        transfer = waiting(two, word)
        thread = Thread(lambda: transfer.result(LIMIT))
        until(lambda: two.client._leader, "the thread that polls")
        at.update(thread=thread, transfer=transfer)
        words[word] = 1
        return lambda: two.client.wait_until(transfer.done, LIMIT)

    for place in places(begin):
        at["thread"].result(place)
        assert not two.client._pending, place


def test_batch(two):
    """Its transfers end, with or without an error."""
    started = []

    def begin():
        started.clear()

        def call():
            with two.client.batch():
                for _ in range(2):
                    started.append(two.client.read(two.region, two.remote, [(65536, 0, 64)]))
        return call

    for place in places(begin):
        for transfer in started:
            assert type(Thread(lambda t=transfer: t.exception(LIMIT)).result(place)) in (type(None), errors.Busy), place
        answered(two.client)
        assert not two.client._batches, place


@pytest.mark.parametrize("arrives", [False, True])
def test_event(tmp_path, arrives):
    """It is had, or still there; its wait has ended."""
    with FakeAgent(tmp_path / "dray.sock", None) as fake, fake.client() as client:
        got, numbers = [], iter(range(1, 1 << 20))

        def begin():
            got.clear()
            n = next(numbers)
            fake.sock.send(s.pack_notification(0, region=1, tag=n, agent_id=bytes(16), incarnation=1, id=n, payload=b"x"))
            if not arrives:
                until(lambda: client.process() or client.events, "the notification")
            return lambda: got.append((n, client.next_event(dray.Notification, LIMIT)))

        for place in places(begin):
            n = next(numbers) - 1
            if not got:
                got.append((n, client.next_event(dray.Notification, LIMIT)))
            assert got[0][1].tag == got[0][0] == n, place
            assert not client.events and not client._event_waits, place


def test_event_wait_that_is_given_up(agent):
    """A thread that waits for it ends, and no event is lost."""
    with agent.client() as client:
        at = {}

        def begin():
            wait = client.event(dray.Draining)
            thread = Thread(lambda: wait.result(LIMIT))
            until(lambda: client._leader, "the thread that polls")
            at.update(wait=wait, thread=thread)
            return wait.cancel

        for place in places(begin):
            at["wait"].cancel()
            assert at["thread"].result(place) is None and not client._event_waits, place

        def begin_with_limit():
            return lambda: client.next_event(dray.Draining, 0)

        for place in places(begin_with_limit):
            assert not client._event_waits, place


def test_many_events(agent, monkeypatch):
    """The number of those that were dropped is right."""
    monkeypatch.setattr(dray.session, "_EVENTS_MAX", 16)
    monkeypatch.setattr(dray.session, "_EVENTS_DROPPED", 4)
    with agent.client() as client:
        def begin():
            client.events.clear()
            client.events.extend([dray.Draining(7), *(dray.Connected(i) for i in range(15))])
            return lambda: client._report(dray.Connected(15))

        for place in places(begin):
            dropped = sum(e.number for e in client.events if isinstance(e, dray.Dropped))
            kept = [e.incarnation for e in client.events if isinstance(e, dray.Connected)]
            assert client.events[0] == dray.Draining(7) and kept[0] == dropped, place
            assert kept in (list(range(dropped, 15)), list(range(dropped, 16))), place


def test_session_that_cannot_be_opened(tmp_path):
    """reconnect() says so, and the event is there."""
    at = []

    def begin():
        at[:] = [dray.Client(tmp_path / "none", wait=False)]

        def call():
            with contextlib.suppress(errors.PeerUnreachable):
                at[0].reconnect(LIMIT)
        return call

    for place in places(begin):
        client, = at
        with pytest.raises(errors.PeerUnreachable):
            client.reconnect(LIMIT)
        assert client.next_event(dray.Disconnected, LIMIT).final and client.next_event(timeout=LIMIT) is None, place
        assert not client._session_waits and not client._event_waits, place
        client.close()


def test_session_that_is_opened(agent):
    at = []

    def begin():
        at[:] = [agent.client(wait=False)]
        return lambda: at[0].reconnect(LIMIT)

    for place in places(begin):
        client, = at
        client.reconnect(LIMIT)
        assert client.next_event(dray.Connected, LIMIT) and not client.events and not client._session_waits, place
        client.close()


class Requests:
    """What can be made at an agent."""

    def __init__(self, side):
        self.side, self.client = side, side.client
        self.token = side.there.region.export()
        self.before = [[side.region], [], [], [side.remote]]

    def pool(self):
        return self.client.pool(4096)

    def mailbox(self):
        return self.client.open_mailbox("x")

    def lease(self):
        return self.side.region.lease([(0, 64, 64, 1)])

    def remote(self):
        return self.client.import_token(self.token)

    def left(self):
        client = self.client
        return [list(made.values()) for made in (client._regions, client._mailboxes, client._leases, client._remotes)] != self.before


@pytest.mark.parametrize(("make", "end"), [("pool", "remove"), ("mailbox", "close"), ("lease", "end"), ("remote", "release")])
def test_request(agent, make, end):
    """What it makes is not left behind; to end it may be tried again."""
    with Side(agent, MIB) as here, Side(agent, MIB) as there:
        here.there, here.remote = there, here.reach(there)
        requests, made = Requests(here), []

        def finish(place=""):
            while made:
                with contextlib.suppress(errors.NotFound):
                    getattr(made.pop(), end)()
            until(lambda: here.client.process() or not here.client._pending and not requests.left(), f"the end of what was made\n{place}")
            assert not here.client._removing, place

        def begin():
            finish()
            return lambda: made.append(getattr(requests, make)())

        for place in places(begin):
            finish(place)

        def begin_end():
            finish()
            made.append(getattr(requests, make)())
            return getattr(made[0], end)

        for place in places(begin_end):
            finish(place)


def test_token(two):
    """One that nobody has seen is revoked."""
    got = []

    def begin():
        got.clear()
        return lambda: got.append(two.region.export())

    for place in places(begin):
        answered(two.client)
        assert two.region.revoke() == len(got), place


@pytest.mark.parametrize("held", [True, False])
def test_store(store_agent, held):
    """A result is not lost; a batch that has no result for anyone ends."""
    with Side(store_agent, MIB, noise(MIB)) as here:
        client, store, at = here.client, here.client.store(), {}
        store.put(here.region, [(b"key", [(0, 4096)])])

        def begin():
            client._skip[pending.HELD_STORE] = not held
            at["pending"] = one = store.get(here.region, [(b"key", [(8192, 4096)])], wait=False)
            return lambda: one.result(LIMIT)

        for place in places(begin):
            result, = at["pending"].result(LIMIT)
            assert (result.status, result.length) == (dray.Status.OK, 4096), place
            assert not client._pending, place

        def begin_whole():
            client._skip[pending.HELD_STORE] = not held
            return lambda: store.get(here.region, [(b"key", [(8192, 4096)])])

        for place in places(begin_whole):
            answered(client)
            assert not client._given_up, place

        def begin_read():
            client._skip[pending.HELD_STORE] = not held
            at["pending"] = one = store.read([b"key"], wait=False)
            return lambda: one.result(LIMIT)

        for place in places(begin_read):
            with at["pending"].result(LIMIT)[0] as view:
                assert view.data == here.view[:4096], place


class Kept(dray.Memory):
    pass


def test_close(store_agent):
    """Closing it again closes it. All waits end."""
    at = {}

    def begin():
        side = Side(store_agent, MIB, name="closes")
        client, memory = side.client, Kept(4096)
        side.store = client.store()
        side.store.put(side.region, [(b"key", [(0, 4096)])])
        at.update(client=client, memory=weakref.ref(memory), region=client.region(memory), view=side.store.read([b"key"])[0],
                  thread=Thread(lambda: client.next_event(dray.Draining, LIMIT)))
        until(lambda: client._event_waits and client._leader, "the wait")
        return client.close

    for place in places(begin):
        client = at["client"]
        client.close()
        assert at["thread"].result(place) is None, place
        with pytest.raises(errors.SessionClosed):
            client.info()
        with pytest.raises(ValueError, match="released"):
            len(at["view"].data)
        assert client._rest is None and client._wake == (-1, -1) and not at["memory"](), place
        assert not client._mappings, place
    until(lambda: "closes" not in [one["name"] for one in store_agent.ctl("sessions", "--json")["sessions"]], "the end of the sessions")


@pytest.mark.filterwarnings("ignore:coroutine.*was never awaited")
def test_task(two):
    """A task that awaits a transfer ends, and the loop does not go on looking at the client."""
    at, words, numbers = {}, two.memory.words(), iter(range(1, 1 << 20))
    loop = asyncio.new_event_loop()

    def begin():
        word = next(numbers)
        at["transfer"] = transfer = waiting(two, word)

        async def wait():
            await transfer

        async def main():
            task = asyncio.ensure_future(wait())
            while not two.client._loops and not task.done():
                await asyncio.sleep(0)
            words[word] = 1
            await asyncio.wait_for(task, LIMIT)

        return lambda: loop.run_until_complete(main())

    with contextlib.closing(loop):
        loop.set_exception_handler(lambda *_: None)  # for what a handler raises in a callback of the loop
        for place in places(begin):
            transfer, = at.values()
            assert transfer.exception(LIMIT) is None or isinstance(transfer.error(), errors.Cancelled), place
            assert not two.client._pending and not two.client._loops and len(loop._selector.get_map()) == 1, place
