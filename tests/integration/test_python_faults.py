# SPDX-License-Identifier: Apache-2.0
"""Agents that die, stop, drain and restart under waiting threads and tasks of the Python package."""

import asyncio
import contextlib
import signal
import threading
from collections import Counter

import dray
import pytest
from dray import errors, events
from harness import LIMIT, MIB, Side, noise, until

N = 60  # waiting threads, and as many tasks


def waiting(side, word, **how):
    return side.client.read(side.region, side.remote, [(65536 + word, word, 1)], wait_word=(side.region, 4 * word, 1), **how)


@contextlib.contextmanager
def sides(agent, **how):
    with Side(agent, MIB, ring_entries=256, **how) as here, Side(agent, MIB, noise(MIB)) as there:
        here.remote, here.there = here.reach(there), there
        yield here


class Waiters:
    """Threads and asyncio tasks that wait for transfers of one session."""

    def __init__(self, side, n=N):
        self.side, self.n = side, n
        self.ended, self.transfers = [], [waiting(side, i) for i in range(2 * n)]
        self.threads = [threading.Thread(target=self._wait, args=(t,)) for t in self.transfers[:n]]
        self.threads.append(threading.Thread(target=asyncio.run, args=(self._tasks(),)))
        for thread in self.threads:
            thread.start()
        until(lambda: side.client._leader and len(side.client._sleeping) == n - 1 and side.client._loops, "all waiters")

    def _end(self, wait):
        try:
            wait()
            self.ended.append("ok")
        except errors.Error as e:
            self.ended.append(e.name)

    def _wait(self, transfer):
        self._end(lambda: transfer.result(LIMIT))

    async def _tasks(self):
        async def one(transfer):
            try:
                await transfer
                self.ended.append("ok")
            except errors.Error as e:
                self.ended.append(e.name)

        await asyncio.wait_for(asyncio.gather(*(one(t) for t in self.transfers[self.n:])), LIMIT)

    def join(self):
        for thread in self.threads:
            thread.join(LIMIT)
            assert not thread.is_alive(), "a waiter has not ended"
        assert len(self.ended) == 2 * self.n
        return Counter(self.ended)


def test_killed(new_agent):
    """All waiters end when the agent dies; the session, its regions and new imports come back by themselves."""
    agent = new_agent()
    with sides(agent) as here:
        waiters = Waiters(here)
        agent.kill()
        assert set(waiters.join()) <= {"agent_restarted"}
        assert not any(t.lent() for t in waiters.transfers)
        assert isinstance(here.client.next_event(events.Disconnected, LIMIT).error, errors.AgentRestarted)
        with pytest.raises(errors.AgentRestarted, match="Import a new token"):
            here.client.read(here.region, here.remote, [(0, 0, 1)])
        assert here.remote.lost
        agent.start()
        here.client.reconnect(LIMIT)
        here.there.client.reconnect(LIMIT)
        event = here.client.next_event(events.Reconnected, LIMIT)
        assert (event.restarted, event.regions, event.failed) == (True, 1, [])
        here.reach(here.there).client.read(here.region, here.reach(here.there), [(0, 0, MIB)]).result(LIMIT)
        assert here.view == here.there.view


def test_drained(new_agent):
    """Work in flight when the agent drains is stopped at the deadline, and waiters learn of it."""
    agent = new_agent(settings={"agent.drain_timeout": "300ms"})
    with sides(agent) as here:
        waiters = Waiters(here)
        agent.process.terminate()
        assert here.client.next_event(dray.Draining, LIMIT).deadline_ms <= 300
        assert set(waiters.join()) <= {"deadline", "cancelled", "draining", "session_closed", "agent_restarted"}
        assert agent.wait() == 0


def test_stopped(new_agent):
    """A transfer whose deadline passes while the agent is stopped ends as unconfirmed: its memory is still lent."""
    agent = new_agent()
    with sides(agent) as here:
        transfer = waiting(here, 0, deadline=0.05)
        agent.signal(signal.SIGSTOP)
        with pytest.raises(errors.Unconfirmed) as caught:
            transfer.result(LIMIT)
        assert caught.value.done.status == errors.Unconfirmed.code
        assert transfer.lent() and transfer.done()
        agent.signal(signal.SIGCONT)
        event = here.client.next_event(events.Confirmed, LIMIT)
        assert event.transfer is transfer and isinstance(event.error, errors.Deadline)
        assert not transfer.lent()
        assert isinstance(transfer.error(), errors.Unconfirmed), "the result does not change"
        here.client.read(here.region, here.remote, [(0, 0, 64)]).result(LIMIT)


def test_stopped_then_killed(new_agent):
    """The memory is free when the agent's process is proven dead."""
    agent = new_agent()
    with sides(agent) as here:
        transfer = waiting(here, 0, deadline=0.05)
        agent.signal(signal.SIGSTOP)
        assert isinstance(transfer.exception(LIMIT), errors.Unconfirmed)
        assert transfer.lent()
        agent.kill()
        event = here.client.next_event(events.Confirmed, LIMIT)
        assert event.transfer is transfer and event.error
        assert not transfer.lent()
        agent.start()


def test_unconfirmed_in_asyncio(new_agent):
    agent = new_agent()

    async def main(side):
        with pytest.raises(errors.Unconfirmed):
            await waiting(side, 0, deadline=0.05)
        agent.signal(signal.SIGCONT)
        event = await side.client.event(events.Confirmed)
        assert not event.transfer.lent()

    with sides(agent) as here:
        agent.signal(signal.SIGSTOP)
        asyncio.run(asyncio.wait_for(main(here), LIMIT))


def test_no_agent_is_reported_at_once(new_agent):
    """A request without an agent fails at the first refused attempt, and works when the agent is back."""
    agent = new_agent()
    with agent.client() as client, agent.client() as other:
        token = other.pool(4096).export()
        for _ in range(3):
            agent.kill()
            for ask in (lambda: client.import_token(token), lambda: client.pool(4096), client.preferred_segment):
                with pytest.raises((errors.PeerUnreachable, errors.AgentRestarted, errors.SessionClosed)) as caught:
                    ask()
                assert caught.value.path == str(agent.socket)
            agent.start()
            client.pool(4096).remove()


def test_patience(new_agent):
    """With patience, a request waits for an agent that is being restarted."""
    agent = new_agent()
    with agent.client(patience=LIMIT) as client:
        agent.kill()
        pending = client.pool(4096, wait=False)
        until(lambda: client.process() or not client.connected, "the loss of the session")
        assert not pending.done()
        agent.start()
        pending.result(LIMIT)


def test_patience_at_the_start(new_agent):
    """With patience, a client waits for an agent that is not there yet."""
    agent = new_agent()
    agent.kill()
    client = dray.Client(agent.socket, wait=False, patience=LIMIT)
    opened = client.reconnect(wait=False)
    assert not opened.done()
    agent.start()
    opened.result(LIMIT)
    assert client.connected
    client.close()


def test_no_agent_in_the_background(tmp_path):
    """A client that connects in the background reports that there is no agent."""
    client = dray.Client(tmp_path / "none", wait=False)
    event = client.next_event(events.Disconnected, LIMIT)
    assert event.final and isinstance(event.error, errors.PeerUnreachable) and "Start drayd" in str(event.error)
    assert client.error is event.error
    with pytest.raises(errors.PeerUnreachable):
        client.reconnect(LIMIT)
    assert client.next_event(timeout=LIMIT) is None
    looks = iter([False] * 8)
    assert not client.wait_until(lambda: next(looks)), "it looks again and again without an end"
    client.close()


def test_agent_dies_under_threads_that_move(new_agent):
    """Threads that read, import and export while the agent is killed and restarted, again and again."""
    agent = new_agent()
    stop, failures, moved = threading.Event(), [], Counter()

    def work(here, there, name):
        try:
            while not stop.is_set():
                try:
                    remote = here.client.import_token(there.region.export(), timeout=5)
                    while not stop.is_set():
                        here.client.read(here.region, remote, [(0, 0, 4096)]).result(LIMIT)
                        moved[name] += 1
                except errors.Error as e:
                    assert not isinstance(e, errors.Timeout), e
        except BaseException as e:
            failures.append(e)

    with Side(agent, MIB, patience=LIMIT) as here, Side(agent, MIB, noise(MIB), patience=LIMIT) as there:
        threads = [threading.Thread(target=work, args=(here, there, i)) for i in range(4)]
        for thread in threads:
            thread.start()
        for _ in range(5):
            before = Counter(moved)
            until(lambda: failures or all(moved[i] > before[i] for i in range(4)), "transfers of all threads")
            agent.kill()
            agent.start()
        stop.set()
        for thread in threads:
            thread.join(LIMIT)
            assert not thread.is_alive()
        assert not failures, failures
        assert here.view[:4096] == there.view[:4096]


def test_waits_beside_a_computing_thread(agent):
    """A thread that computes does not keep another one from its results."""
    stop = threading.Event()

    def compute():
        while not stop.is_set():
            pass

    with sides(agent) as here:
        thread = threading.Thread(target=compute)
        thread.start()
        try:
            for i in range(100):
                here.client.read(here.region, here.remote, [(i, i, 1)]).result(LIMIT)
            transfer = waiting(here, 20000)
            with pytest.raises(errors.Timeout):
                transfer.result(0.02)
            here.memory.words()[20000] = 1
            transfer.result(LIMIT)
        finally:
            stop.set()
            thread.join()
