# SPDX-License-Identifier: Apache-2.0
"""Leases in random orders of acquisition, use, release, renewal, end, expiry and death of holders: each ends once, nothing is left."""

import os
import random

import pytest
from dray import errors, events
from harness import LIMIT, MIB, Side, noise, until

STEPS = int(os.environ.get("DRAY_STEPS", "250"))
BLOCK = 4096
BLOCKS = MIB // BLOCK


class Lent:
    """A lease, and what its owner may assume about it."""

    def __init__(self, lease, block, stamp, holders):
        self.lease, self.block, self.stamp, self.holders = lease, block, stamp, holders
        self.remotes = []
        self.doomed = False  # it has an outcome other than `used`, whatever comes


class Run:
    def __init__(self, seed, here, there, holder_agent):
        self.random = random.Random(seed)
        self.here, self.there, self.agent = here, there, holder_agent
        self.free = list(range(BLOCKS))
        self.lent, self.ended = {}, []
        self.others = []  # further sessions of holders
        self.stamp = 0

    def block(self, side, n):
        return side.view[n * BLOCK:(n + 1) * BLOCK]

    def make(self):
        if not self.free:
            return
        n = self.free.pop(self.random.randrange(len(self.free)))
        self.stamp = self.stamp % 250 + 1
        self.block(self.there, n)[:] = bytes([self.stamp]) * BLOCK
        short = self.random.random() < 0.2
        holders = self.random.choice((1, 1, 2))
        lease = self.there.region.lease(
            [(n * BLOCK, BLOCK, 0, 1)], expiry=0.02 if short else 60.0, holders=holders,
            **({"audience": self.here.client.agent_id, "grant": True} if self.random.random() < 0.5 else {}))
        self.lent[lease.handle] = Lent(lease, n, self.stamp, holders)

    def any(self):
        return self.random.choice(list(self.lent.values())) if self.lent else None

    def acquire(self):
        lent = self.any()
        if not lent:
            return
        client = self.random.choice([self.here.client, *(o.client for o in self.others)])
        try:
            remote = client.acquire(lent.lease.token, timeout=LIMIT)
            lent.remotes.append((client, remote))
        except (errors.TokenUsed, errors.TokenExpired, errors.Revoked):
            pass

    def held(self):
        all_held = [(lent, *h) for lent in self.lent.values() for h in lent.remotes]
        return self.random.choice(all_held) if all_held else (None, None, None)

    def read(self):
        """A read returns the bytes of its own lease, or fails."""
        lent, client, remote = self.held()
        if not lent:
            return
        side = self.here if client is self.here.client else next(o for o in self.others if o.client is client)
        try:
            side.client.read(side.region, remote, [(0, lent.block * BLOCK, BLOCK)]).result(LIMIT)
            assert set(side.view[:BLOCK]) == {lent.stamp}, "bytes of another lease"
        except (errors.Revoked, errors.NotFound, errors.Cancelled):
            pass
        try:
            side.client.read(side.region, remote, [(0, (lent.block + 1) % BLOCKS * BLOCK, 1)]).result(LIMIT)
            raise AssertionError("a read outside of the lease")
        except (errors.Range, errors.Revoked, errors.NotFound):
            pass

    def renew(self):
        lent, _, remote = self.held()
        try:
            if lent:
                remote.renew()
        except (errors.Revoked, errors.NotFound):
            pass

    def release(self):
        lent, client, remote = self.held()
        if lent:
            lent.remotes.remove((client, remote))
            remote.release(wait=self.random.random() < 0.5)

    def end(self):
        lent = self.any()
        if lent:
            lent.doomed = True
            lent.lease.end(wait=self.random.random() < 0.5)

    def join(self):
        if len(self.others) < 3:
            self.others.append(Side(self.agent, MIB))

    def die(self):
        if self.others:
            side = self.others.pop(self.random.randrange(len(self.others)))
            for lent in self.lent.values():
                lent.remotes = [h for h in lent.remotes if h[0] is not side.client]
            side.close()

    def hear(self, limit=0.0):
        while (event := self.there.client.next_event(events.LeaseEnded, limit)) is not None:
            lent = self.lent.pop(event.lease.handle)  # once for each
            self.ended.append(event.how)
            # the block is the owner's again: nobody may see what it writes now
            self.block(self.there, lent.block)[:] = b"\xff" * BLOCK
            self.free.append(lent.block)
            if not self.lent and limit:
                return

    def go(self):
        steps = [self.make] * 6 + [self.acquire] * 6 + [self.read] * 5 + [self.release] * 4 + \
            [self.renew, self.end, self.end, self.join, self.die]
        for _ in range(STEPS):
            self.random.choice(steps)()
            self.hear()
        for lent in list(self.lent.values()):
            lent.lease.end()
        self.hear(LIMIT)
        assert not self.lent
        for side in self.others:
            side.close()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("path", ["local", "tcp"])
def test_random_order(request, path, seed):
    a, b = (request.getfixturevalue("agent"),) * 2 if path == "local" else request.getfixturevalue("pair")
    with Side(a, MIB) as here, Side(b, MIB, noise(MIB)) as there:
        run = Run(seed, here, there, a)
        run.go()
        assert run.ended  # which of them expire in time depends on the machine
        assert b.ctl("leases", "--json")["leases"] == []
        counters = b.ctl("status", "--json")["counters"]
        assert counters["dray_leases"] == counters["dray_lease_holders"] == 0
        if path == "tcp":
            until(lambda: b.ctl("peers", "--json")["peers"][0]["grants"] == 0, "the grants' end")
            until(lambda: a.ctl("peers", "--json")["peers"][0]["imports"] == 0, "the imports' end")
