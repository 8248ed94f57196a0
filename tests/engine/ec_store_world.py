# SPDX-License-Identifier: Apache-2.0
"""An engine that encodes and one that uses outputs, with DrayECStoreConnector, over the store of an agent that is played.

As in ec_world.py, what the agent does is an action, and the test chooses which one happens next. Bytes really move between the
pools and the store, so that ec_bare.py notices when a request computes with other outputs than its own.
"""

from collections import Counter, deque
from types import SimpleNamespace

from dray import errors, events
from dray.store import Status, StoreResult
from dray.vllm.ec import reader, writer
from dray.vllm.ecstore import connector, consumer, producer
from ec_bare import BareStore


class Pending:
    """A batch of an engine. memory: its pool."""

    def __init__(self, client, put, items):
        self.client, self.put, self.items = client, put, items
        self.ended, self.value, self.failure, self.unproven = False, None, None, False

    def done(self):
        return self.ended

    def lent(self):
        return self.unproven or not self.ended

    def error(self):
        return self.failure

    def result(self, timeout):
        assert self.ended and not self.failure
        return self.value

    def end(self, value=None, error=None):
        self.ended, self.value, self.failure = True, value, error


class Client:
    """As dray.Client, as far as the connector uses it. Its store is this object, too."""

    path, segment = "/run/dray.sock", "host:1"

    def __init__(self, world):
        self.world, self.events, self.memory = world, deque(), None
        world.clients.append(self)

    def region(self, memory, name):
        self.memory = memory.view
        return SimpleNamespace()

    def store(self, space):
        return self

    def put(self, region, items, *, deadline, wait):
        return self._start(True, items)

    def get(self, region, items, *, deadline, wait):
        return self._start(False, items)

    def _start(self, put, items):
        chance = self.world.random.random()
        if chance < 0.03:
            raise errors.Busy("full")
        if chance < 0.05:
            raise errors.SessionClosed("lost just now")
        self.world.pending.append(Pending(self, put, items))
        return self.world.pending[-1]

    def process(self, seconds=0.0):
        """Time in which the agent mostly answers."""
        if seconds:
            while self.world.random.random() < 0.6:
                self.world.happen()
            self.world.now += seconds if self.world.random.random() < 0.5 else seconds * self.world.random.random()

    def close(self):
        pass


class World:
    """e, pd: engines, each with a pool of so many bytes."""

    def __init__(self, monkeypatch, random, e=256 * 512 + 4096, pd=256 * 512 + 4096):
        self.random, self.now, self.up, self.frozen = random, 1000.0, True, False
        self.objects, self.pending, self.lent, self.clients, self.seen = {}, [], [], [], Counter()
        monkeypatch.setattr(connector, "connect_store", lambda *args, **how: Client(self))
        for module in (consumer, producer, reader, writer):
            monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.now))
        self.e, self.pd = (BareStore(name, "/run/dray.sock", role, size=size, budget=96)
                           for name, role, size in (("e", "ec_producer", e), ("pd", "ec_consumer", pd)))

    # --- actions of the agent -----------------------------------------------------------------------

    def happen(self):
        """One batch ends."""
        if self.frozen or not self.pending:
            return
        pending = self.pending[self.random.randrange(len(self.pending))]
        chance = self.random.random()
        if not self.up:
            if chance < 0.3:  # otherwise it waits for the next session
                self.end(pending, errors.SessionClosed("there is no session"))
        elif chance < 0.04:
            self.end(pending, errors.Deadline("too late"))
        else:
            self.pending.remove(pending)
            pending.end([self.one(pending, *item[:3]) for item in pending.items])

    def end(self, pending, error):
        """A batch fails; its ranges have anything."""
        self.pending.remove(pending)
        self.spoil(pending)
        self.seen[f"batch {error.name}"] += 1
        pending.end(error=error)

    def spoil(self, pending):
        if not pending.put:
            for _, ranges, *_ in pending.items:
                for at, n in ranges:
                    pending.client.memory[at:at + n] = self.random.randbytes(n)

    def prove(self):
        """The agent of a session that was lost does not touch what was lent to it any more."""
        for pending in self.lent:
            self.spoil(pending)
            pending.unproven = False
            pending.client.events.append(events.Confirmed(pending, None))
        self.lent.clear()

    def one(self, pending, key, ranges, cost):
        (at, n), = ranges
        chance, memory = self.random.random(), pending.client.memory
        if chance < 0.1:
            return self.result(pending, Status.BUSY, wait=0.01)
        if pending.put:
            assert cost > 0
            if key in self.objects:
                return self.result(pending, Status.EXISTS, len(self.objects[key]))
            if chance < 0.13:
                return self.result(pending, Status.TOO_LARGE)
            self.objects[key] = bytes(memory[at:at + n])
            return self.result(pending, Status.OK, n)
        if key not in self.objects:
            return self.result(pending, Status.NOT_FOUND)
        if chance < 0.15:
            memory[at:at + n] = bytes(n)
            if chance < 0.13:
                del self.objects[key]
            return self.result(pending, Status.CORRUPT if chance < 0.13 else Status.LOST)
        memory[at:at + n] = self.objects[key]
        return self.result(pending, Status.OK, n)

    def result(self, pending, status, length=0, wait=0.0):
        self.seen[f"{'put' if pending.put else 'get'} {status.name}"] += 1
        return StoreResult(status, length, wait)

    def evict(self):
        for key in list(self.objects):
            if self.random.random() < 0.3:
                del self.objects[key]

    def kill_agent(self, broken=None):
        """broken: the client has ended the session, and the agent lives; None: as it happens."""
        if not self.up:
            return
        self.up = self.frozen = False
        error = errors.AgentRestarted("the agent was restarted")
        if self.random.random() < 0.5:
            self.objects.clear()
        broken = self.random.random() < 0.3 if broken is None else broken
        for pending in list(self.pending):
            if broken:
                pending.unproven = True
                self.lent.append(pending)
                self.end(pending, errors.Unconfirmed("the agent may go on"))
            elif self.random.random() < 0.7:  # otherwise it had not been sent
                self.end(pending, error)
        for client in self.clients:
            client.events.append(events.Disconnected(error, False))

    def restart_agent(self):
        if not self.up:
            self.up = True
            for client in self.clients:
                client.events.append(events.Reconnected(1, True, 1, []))

    # --- invariants ---------------------------------------------------------------------------------

    def check(self):
        """No place that the agent may use is free."""
        for pending in self.pending + self.lent:
            side = (self.e if pending.put else self.pd).side
            for _, ranges, *_ in pending.items:
                for at, n in ranges:
                    assert side._pool._places._used.get(at, 0) >= n, "a place is free while the agent may use it"

    def settle(self, limit=400):
        """Lets everything end."""
        self.frozen = False
        self.restart_agent()
        for turn in range(limit):
            if turn == 20:
                self.prove()
            if not (self.pending or self.lent or self.e.left() or self.pd.left()):
                return
            while self.pending and self.random.random() < 0.8:
                self.happen()
            self.now += 0.02 if turn < limit // 2 else 1
            self.e.step()
            self.pd.step()
            self.check()
        raise AssertionError(f"left: E {self.e.left()}, PD {self.pd.left()}, {len(self.pending)} + {len(self.lent)} batches")
