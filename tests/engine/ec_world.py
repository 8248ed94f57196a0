# SPDX-License-Identifier: Apache-2.0
"""An engine that encodes and one that uses its outputs, over agents that are played.

What an agent does, such as answering or ending a transfer, is an action, and the test chooses which one happens next. Bytes really
move between the two pools, so that ec_bare.py notices when a request computes with other outputs than its own.
"""

import itertools
from collections import Counter, deque
from types import SimpleNamespace

from dray import errors, events
from dray.vllm import sessions
from dray.vllm.ec import consumer, producer, reader, writer
from dray.vllm.ec.header import HEADER
from dray.vllm.grants import AGENT_LOST, ENDED, EXPIRED, PEER_LOST, USED, Hold as RealHold
from ec_bare import Bare
from ec_gpu import HostBytes, use


class Grant:
    def __init__(self, owner, ranges, holders):
        self.owner, self.left, self.holds = owner, holders, []
        self.ranges = [(at, at + n) for at, n, _, _ in ranges]
        self.token = self.how = self.error = self.ending = None


class Hold(RealHold):
    """As dray.vllm.grants.Hold."""

    def __init__(self, world, grant):
        self.world, self.grant, self.remote, self.error, self.released, self.answered = world, grant, None, None, False, False

    @property
    def lost(self):
        return self.error or (self.remote.lost if self.remote else None)

    def keep(self, now):
        pass

    def release(self):
        if not self.released:
            self.released = True
            self.world.act(self.world.released, self)


class Pending:
    """As dray.pending.Pending, of an export or an import."""

    def __init__(self):
        self.ended, self.value, self.failure, self.callbacks = False, None, None, []

    def done(self):
        return self.ended

    def error(self):
        return self.failure

    def result(self, timeout):
        return self.value

    def add_done_callback(self, callback):
        if self.ended:
            callback(self)
        else:
            self.callbacks.append(callback)

    def end(self, value, failure=None):
        if not self.ended:
            self.ended, self.value, self.failure = True, value, failure
            for callback in self.callbacks:
                callback(self)


class Exported:
    """The pool of an engine, as another agent has imported it. hold: none is behind it."""

    hold, transport = None, "tcp"

    def __init__(self, owner, reader):
        self.owner, self.reader, self.lost = owner, reader, None


class Transfer:
    def __init__(self, world, side, remote, ops, notify):
        self.world, self.side, self.remote, self.hold, self.ops, self.notify = world, side, remote, remote.hold, ops, notify
        self.owner = self.hold.grant.owner if self.hold is not None else remote.owner
        self.ended, self.failure, self.is_lent = False, None, True
        world.transfers.append(self)
        world.act(world.transferred, self)

    def done(self):
        return self.ended

    def error(self):
        return self.failure

    def lent(self):
        return self.is_lent

    def cancel(self, *, wait):
        self.end(errors.Cancelled("cancelled"))

    def end(self, error, lent=False):
        if not self.ended:
            self.ended, self.failure, self.is_lent = True, error, lent
            self.world.seen[f"transfer {error.name if error else 'done'}"] += 1
            if error is None and self.notify is not None:
                self.world.act(self.world.notified, self.owner, self.side, *self.notify)
            if not lent:
                self.land()

    def land(self):
        """The bytes arrive; of a transfer that failed, anything."""
        source, target = self.owner.memory.view, self.side.memory.view
        there = self.failure is None or isinstance(self.failure, errors.NotifyRefused)
        for local, remote, n in self.ops:
            target[local:local + n] = source[remote:remote + n] if there else self.world.random.randbytes(n)


class Grants:
    """As dray.vllm.grants.Grants."""

    busy = False

    def __init__(self, client):
        self.side, self.world = client.side, client.world
        self.side.grants = self
        self.open, self.ended, self.on_event = set(), deque(), lambda event: None

    def __len__(self):
        return len(self.open)

    def give(self, label, region, ranges, expiry, access, holders):
        if not self.side.up or self.world.random.random() < 0.02:
            raise errors.SessionClosed("lost just now")
        grant = Grant(self.side, ranges, holders)
        self.open.add(grant)
        self.world.act(self.world.given, grant)
        return grant

    def end(self, grant, why=ENDED):
        if grant.how is None and grant.ending is None:
            grant.ending = why
            self.world.act(self.over, grant, why)

    def over(self, grant, how):
        if grant.how is None:
            grant.how = how
            self.world.seen[f"right {how}"] += 1
            self.open.discard(grant)
            self.ended.append(grant)
            for hold in grant.holds:
                self.world.lose(hold, errors.Revoked("the right has ended"))

    def acquire(self, token, request_id):
        hold = Hold(self.world, self.world.tokens.get(token))
        self.world.act(self.world.acquired, self.side, hold)
        return hold

    def poll(self, rest=0.0, awaited=True):
        while self.side.events:
            self.on_event(self.side.events.popleft())
        ended, self.ended = list(self.ended), deque()
        return ended


class Client:
    """As dray.Client, as far as the connector uses it."""

    def __init__(self, world, side):
        self.world, self.side, self.path, self.segment = world, side, "/run/dray.sock", "host:1"

    @property
    def agent_id(self):
        if not self.side.up:
            raise errors.SessionClosed("not connected")
        return self.side.name

    def region(self, memory, name):
        self.side.memory = memory
        return SimpleNamespace(memory=memory, export=self._export)

    def _export(self, *, access, audience, wait):
        assert access == "r" and not wait
        return self._start(self.world.exported, audience)

    def import_token(self, token, *, wait):
        assert not wait
        return self._start(self.world.imported, token)

    def _start(self, function, what):
        if not self.side.up:
            raise errors.SessionClosed("not connected")
        pending = Pending()
        self.side.asked.append(pending)
        self.world.act(function, self.side, what, pending)
        return pending

    def read(self, region, remote, ops, *, notify, deadline):
        if not self.side.up:
            raise errors.SessionClosed("not connected")
        if self.world.random.random() < 0.1:
            raise errors.Busy("full")
        if remote.lost:
            raise remote.lost
        for _, at, n in ops:
            assert remote.hold is None or any(a <= at and at + n <= b for a, b in remote.hold.grant.ranges), "outside of the right"
        self.world.seen["read early"] += remote.hold is None
        return Transfer(self.world, self.side, remote, list(ops), notify)

    def close(self):
        pass


class Agent:
    """The agent's part of one engine. asked: exports and imports. pools: that it has imported."""

    def __init__(self, name):
        self.name, self.up, self.memory, self.grants, self.events = name.encode().ljust(16), True, None, None, deque()
        self.asked, self.pools = [], []


class World:
    """e, pd: bytes of the pools of both engines. devices: on which they lie."""

    def __init__(self, monkeypatch, random, e=256 * 512 + 4096, pd=256 * 512 + 4096, devices=("cpu", "cpu")):
        use(monkeypatch, HostBytes)
        self.random, self.actions, self.tokens, self.transfers = random, [], {}, []
        self.now, self.numbers, self.seen = 1000.0, itertools.count(), Counter()
        monkeypatch.setattr(sessions, "Client", lambda *args, **how: Client(self, self.making))
        for module in (producer, consumer):
            monkeypatch.setattr(module, "Grants", Grants)
        for module in (producer, reader, writer):
            monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(consumer, "Hold", Hold)
        self.agents = []
        self.e, self.pd = self._make("e", "ec_producer", e, devices[0]), self._make("pd", "ec_consumer", pd, devices[1])
        self.trouble = 0.1 if min(e, pd) > 64 << 10 else 0.01  # the chance that a transfer fails; a load in pieces has some 20 of them
        self.read, self.in_pieces = [], 0  # outputs that were opened in place, or loaded in pieces
        end = self.pd.side._end
        self.pd.side._end = lambda load, now: self._end(end, load, now)
        vacate, begin = self.e.side._pool.vacate, self.pd.side._begin_reading
        self.e.side._pool.vacate = lambda item: self._vacate(vacate, item)
        self.pd.side._begin_reading = lambda source, item: self._begin(begin, source, item)

    def _make(self, name, role, size, device):
        self.making = Agent(name)
        self.agents.append(self.making)
        return Bare(name, "/run/dray.sock", role, size=size, budget=96, pool_device=device)

    def _vacate(self, vacate, item):
        vacated = vacate(item)
        self.seen["kept while it is read"] += not vacated
        return vacated

    def _end(self, end, load, now):
        end(load, now)
        self.in_pieces += sum(item.ready and bool(item.shape.window) for item in load.items)

    def _begin(self, begin, source, item):
        begin(source, item)
        self.seen["read in place"] += 1
        self.read.append(item)

    # --- actions of agents --------------------------------------------------------------------------

    def act(self, function, *arguments):
        self.actions.append((function, arguments))

    def happen(self, index):
        function, arguments = self.actions.pop(index)
        function(*arguments)

    def given(self, grant):
        if grant.how is None:
            grant.token = f"token-{next(self.numbers)}"
            self.tokens[grant.token] = grant

    def acquired(self, agent, hold):
        hold.answered = True
        grant = hold.grant
        if not agent.up:
            hold.error = errors.SessionClosed("the agent has ended")
        elif grant is None or grant.how or grant.ending or not grant.left:
            hold.error = errors.TokenInvalid("there is no such right")
        else:
            grant.left -= 1
            hold.remote = SimpleNamespace(hold=hold, lost=None, transport="tcp", notify=lambda tag, wait: self.act(
                self.notified, grant.owner, self.agents[1], tag, b""))
            grant.holds.append(hold)

    def released(self, hold):
        if not hold.answered:
            self.act(self.released, hold)  # after the answer
        elif hold.remote is not None and hold.lost is None:
            self.lose(hold, errors.NotFound("released"))
            if not hold.grant.left and all(other.lost for other in hold.grant.holds):
                hold.grant.owner.grants.over(hold.grant, USED)

    def lose(self, hold, error):
        if hold.remote is not None and hold.remote.lost is None:
            hold.remote.lost = error
            for transfer in self.transfers:
                if transfer.hold is hold:
                    transfer.end(error)

    def notified(self, agent, sender, tag, payload):
        if agent.up:
            agent.events.append(events.Notification(tag, payload, None, 0, sender.name, 0, 0))

    def forget_rights(self):
        """Rights of former orders. Exports of pools stay."""
        self.tokens = {token: what for token, what in self.tokens.items() if isinstance(what, tuple)}

    def exported(self, agent, audience, pending):
        if not pending.ended:
            token = f"pool-{next(self.numbers)}"
            self.tokens[token] = agent, audience
            pending.end(token)

    def imported(self, agent, token, pending):
        owner, audience = self.tokens.get(token, (None, None))
        if pending.ended:
            return
        if owner is None or not owner.up:
            pending.end(None, errors.TokenInvalid("there is no such export"))
            return
        assert audience == agent.name
        pool = Exported(owner, agent)
        agent.pools.append(pool)
        pending.end(pool)

    def transferred(self, transfer):
        if transfer.ended:
            return
        assert transfer.hold is None or transfer.hold.grant.how is None, "outputs were moved without a right"
        chance = self.random.random()
        if chance < self.trouble:
            transfer.end(errors.PeerLost("the other agent does not answer"))
        elif chance < 2 * self.trouble:
            transfer.end(errors.Unconfirmed("the agent does not answer"), lent=True)
            self.act(self.confirmed, transfer)
        elif transfer.notify is not None and chance < 0.15:
            transfer.end(errors.NotifyRefused("the queue is full"))
        else:
            transfer.end(None)

    def confirmed(self, transfer):
        if transfer.is_lent:
            transfer.land()
            transfer.is_lent = False

    def expire(self):
        for grant in list(self.agents[0].grants.open):
            if self.random.random() < 0.5:
                self.agents[0].grants.end(grant, EXPIRED)

    def kill_agent(self, agent):
        """An agent dies, and is started again."""
        agent.up = False
        error = errors.AgentRestarted("the agent was restarted")
        for grant in list(self.agents[0].grants.open):
            if agent is self.agents[0]:
                self.agents[0].grants.over(grant, AGENT_LOST)
            elif any(hold.remote and not hold.lost for hold in grant.holds):
                for hold in grant.holds:
                    self.lose(hold, error)
                self.agents[0].grants.over(grant, PEER_LOST)
        for token in [token for token, what in self.tokens.items() if isinstance(what, tuple) and what[0] is agent]:
            del self.tokens[token]
        for pool in [pool for one in self.agents for pool in one.pools]:
            pool.lost = pool.lost or error
        for pending in agent.asked:
            pending.end(None, error)
        agent.asked.clear()
        for transfer in self.transfers:
            transfer.end(error)
            self.confirmed(transfer)
        agent.events.append(events.Disconnected(error, False))
        self.act(setattr, agent, "up", True)

    # --- invariants ---------------------------------------------------------------------------------

    def check(self):
        """No place that an agent may write, or that the other engine may read, is free."""
        self.transfers = [t for t in self.transfers if not t.ended or t.is_lent]
        used = self.pd.side._pool._places._used
        for transfer in self.transfers:
            for local, _, n in transfer.ops:
                local, n = (local, n) if local in used else (local - HEADER, n + HEADER)  # no header comes with it
                assert used.get(local, 0) >= n, "a place is free while an agent may write it"
        self.read = [item for item in self.read if item.users]
        for item in self.read:
            assert self.e.side._pool._places._used.get(item.offset, 0) >= item.shape.size, "a place is free while it is read in place"
        for grant in self.agents[0].grants.open:
            for at, end in grant.ranges:
                assert self.e.side._pool._places._used.get(at, 0) >= end - at, "a place is free while the other engine may read it"

    def settle(self, limit=600):
        """Lets everything end: all actions happen, rights that nobody asked for expire, and deadlines pass."""
        for turn in range(limit):
            if not (self.actions or self.e.left() or self.pd.left()):
                return
            while self.actions and self.random.random() < 0.8:
                self.happen(self.random.randrange(len(self.actions)))
            if turn > limit // 4:
                self.expire()
                self.now += 1
            self.e.step()
            self.pd.step()
            self.check()
        raise AssertionError(f"left: E {self.e.left()}, PD {self.pd.left()}, actions {self.actions}")
