# SPDX-License-Identifier: Apache-2.0
"""dray.vllm.grants: a right on a region is acquired, used, released, ended and lost; the owner hears once how it ended."""

import signal
import time

import dray
import pytest
from dray import errors
from dray.vllm import grants
from dray.vllm.grants import AGENT_LOST, ENDED, EXPIRED, PEER_LOST, USED, Grants
from harness import MIB, noise, until


RANGES = [(4096, 65536, 131072, 2)]


class Party:
    """An engine's scheduler side, as far as rights are concerned."""

    def __init__(self, agent, name):
        self.agent = agent
        self.client = agent.client(group=name, notifications=True)
        self.grants = Grants(self.client)
        self.memory = dray.Memory(MIB)
        self.region = self.client.region(self.memory)
        self.ended = []

    def poll(self):
        self.ended += self.grants.poll()
        return self.ended

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.client.close()


@pytest.fixture
def parties(agent):
    with Party(agent, "p") as p, Party(agent, "d") as d:
        p.memory.view[:] = noise(MIB)
        yield p, d


def given(p, expiry=30.0):
    grant = p.grants.give("request", p.region, RANGES, expiry)
    until(lambda: p.poll() is not None and grant.token, "the token")
    return grant


def acquired(d, token):
    hold = d.grants.acquire(token, "a request")
    until(lambda: d.poll() is not None and (hold.remote or hold.error), "the answer")
    return hold


def test_used(parties):
    p, d = parties
    grant = given(p)
    hold = acquired(d, grant.token)
    d.client.read(d.region, hold.remote, [(0, 4096, 65536)]).result()
    assert d.memory.view[:65536] == p.memory.view[4096:4096 + 65536]
    assert grant.how is None and not p.poll()
    hold.release()
    hold.release()
    until(lambda: p.poll(), "the end")
    assert p.ended == [grant] and grant.how == USED and not len(p.grants)
    assert not p.grants.poll()


def test_released_before_it_is_acquired(parties):
    p, d = parties
    grant = given(p)
    d.grants.acquire(grant.token, "a request").release()
    assert d.grants.busy  # until poll() has taken the answer
    until(lambda: d.poll() is not None and not d.grants.busy, "the answer")
    until(lambda: p.poll(), "the end")
    assert grant.how == USED


def test_ended_by_the_owner(parties):
    p, d = parties
    grant = given(p)
    hold = acquired(d, grant.token)
    p.grants.end(grant)
    p.grants.end(grant)
    until(lambda: p.poll(), "the end")
    assert [g.how for g in p.ended] == [ENDED]
    until(lambda: d.poll() is not None and hold.lost, "the loss")
    assert isinstance(hold.lost, dray.errors.Revoked)
    hold.release()


def test_ended_before_the_agent_has_answered(parties):
    p, _ = parties
    grant = p.grants.give("request", p.region, RANGES, 30.0)
    p.grants.end(grant)
    assert p.grants.busy
    until(lambda: p.poll(), "the end")
    assert p.ended == [grant] and grant.how == ENDED and not p.grants.busy


def test_expired(parties):
    p, d = parties
    grant = given(p, 0.2)
    hold = acquired(d, grant.token)
    until(lambda: p.poll(), "the end")
    assert grant.how == EXPIRED
    until(lambda: d.poll() is not None and hold.lost, "the loss")


def test_a_token_that_is_not_valid_any_more(parties):
    p, d = parties
    grant = given(p)
    p.grants.end(grant)
    until(lambda: p.poll(), "the end")
    hold = acquired(d, grant.token)
    assert hold.error is not None and hold.lost is hold.error
    hold.release()


def test_the_owners_agent_dies(new_agent):
    alone = new_agent("alone")
    with Party(alone, "p") as owner:
        grants = [given(owner) for _ in range(3)]
        alone.kill()
        until(lambda: len(owner.poll()) == 3, "the ends")
        assert {g.how for g in grants} == {AGENT_LOST}
        alone.start()


def test_the_holders_agent_dies(new_pair):
    a, b = new_pair()
    with Party(a, "p") as p, Party(b, "d") as d:
        grant = given(p)
        acquired(d, grant.token)
        b.kill()
        until(lambda: p.poll(), "the end")
        assert grant.how == PEER_LOST
        b.start()


def test_renewed_while_it_is_kept(parties):
    p, d = parties
    grant = given(p, 0.5)
    hold = acquired(d, grant.token)
    renewals = set()

    def renewed():
        d.poll()
        hold.keep(time.monotonic())
        renewals.add(hold._renewed)
        assert not p.poll() and not hold.lost
        return len(renewals) == 6  # 1.25 s after the start

    until(renewed, "the renewals")
    until(lambda: p.poll(), "the end")
    assert grant.how == EXPIRED


def test_a_renewal_that_finds_no_room(parties):
    """The caller does not see that, and the next call renews the right."""
    p, d = parties
    hold = acquired(d, given(p).token)
    began = hold._renewed
    agent = p.agent
    agent.signal(signal.SIGSTOP)
    try:
        with pytest.raises(errors.Busy):
            while True:
                d.client.hint("x", wait=False)
        hold.keep(began + 16)
        assert hold._renewal is None
    finally:
        agent.signal(signal.SIGCONT)

    def renewed():
        d.poll()
        hold.keep(began + 16)
        return hold._renewal is not None and hold._renewal.done()

    until(renewed, "the renewal")
    assert hold._renewal.result(0) and not hold.lost


def test_other_bytes_of_the_region(parties):
    p, d = parties
    hold = acquired(d, given(p).token)
    with pytest.raises(dray.errors.Range):
        d.client.read(d.region, hold.remote, [(0, 65536, 65536)]).result()
    hold.release()


def test_no_right_without_ranges(parties):
    p, _ = parties
    grant = p.grants.give("request", p.region, [(MIB, 1, 1, 1)], 30.0)
    until(lambda: p.poll(), "the refusal")
    assert grant.token is None and isinstance(grant.error, dray.errors.Range) and not len(p.grants)


def test_the_owners_agent_is_dead(new_pair):
    """An address that refuses connections ends the request at once, although no limit was given."""
    a, b = new_pair()
    with Party(a, "p") as p, Party(b, "d") as d:
        token = given(p).token
        a.kill()
        hold = acquired(d, token)
        assert isinstance(hold.error, (dray.errors.PeerUnreachable, dray.errors.PeerLost)), hold.error
        a.start()


def test_a_right_to_write_that_is_granted_at_once(parties):
    p, d = parties
    grant = d.grants.give("request", d.region, RANGES, 30.0, "w", p.client.agent_id)
    until(lambda: d.poll() is not None and grant.token, "the token")
    hold = acquired(p, grant.token)
    p.client.write(p.region, hold.remote, [(0, 4096, 65536)]).result()
    assert d.memory.view[4096:4096 + 65536] == p.memory.view[:65536]
    with pytest.raises(errors.Error):
        p.client.read(p.region, hold.remote, [(0, 4096, 65536)]).result()
    hold.release()
    until(lambda: d.poll(), "the end")
    assert grant.how == USED


def test_a_right_for_another_agent(parties):
    p, d = parties
    grant = d.grants.give("request", d.region, RANGES, 30.0, "w", b"\1" * 16)
    until(lambda: d.poll() is not None and grant.token, "the token")
    assert isinstance(acquired(p, grant.token).error, errors.TokenAudience)
    d.grants.end(grant)
    until(lambda: d.poll(), "the end")


class Few:
    """The rights of a session that may have two at a time. kind: "remotes", which it acquires, or "leases", which it gives."""

    def __init__(self, kind, p, d):
        self.kind, self.p, self.d = kind, p, d

    def ask(self, load, count):
        if self.kind == "leases":
            return [self.d.grants.give("a request", self.d.region, RANGES, 30.0, load=load) for _ in range(count)]
        return [self.d.grants.acquire(given(self.p).token, "a request", load) for _ in range(count)]

    def end(self, *rights):
        for right in rights:
            right.release() if self.kind == "remotes" else self.d.grants.end(right)

    def remotes(self):
        """Of the agent's sessions, which learn nothing of this."""
        return [session["remotes"] for session in self.d.agent.ctl("sessions", "--json")["sessions"]]

    def has(self, *rights):
        self.d.poll()
        return all(right.remote if self.kind == "remotes" else right.token for right in rights)


@pytest.fixture(params=["remotes", "leases"])
def few(request, new_agent):
    agent = new_agent("few", settings={f"limits.{request.param}_per_session": 2})
    with Party(new_agent("other") if request.param == "leases" else agent, "p") as p, Party(agent, "d") as d:
        yield Few(request.param, p, d)


def test_a_load_that_waits_goes_before_one_that_comes_later(few):
    """Otherwise each would have one right, and would wait for the one that the other has."""
    first, = few.ask("first", 1)
    until(lambda: few.has(first), "a right")
    waiting = few.ask("waiting", 2)
    until(lambda: few.d.poll() is not None and waiting[1].limit, "the limit")
    few.end(first)
    later = few.ask("later", 2)
    until(lambda: few.has(*waiting), "both rights of the load that waits")
    assert not any(few.has(right) for right in later)
    few.end(*waiting)
    until(lambda: few.has(*later), "both rights of the later load")
    few.end(*later)


@pytest.mark.parametrize("few", ["remotes"], indirect=True)
def test_loads_that_wait_for_each_other(few, monkeypatch):
    """A right becomes free while both are asked for theirs. The younger load is given up, so that the other one goes on."""
    monkeypatch.setattr(grants, "_STUCK", 0.1)
    first, = few.ask("first", 1)
    until(lambda: few.has(first), "a right")
    tokens = [given(few.p).token for _ in range(4)]
    older = [few.d.grants.acquire(token, "a request", "older") for token in tokens[:2]]
    until(lambda: 2 in few.remotes(), "the limit")
    few.end(first)
    until(lambda: 2 not in few.remotes(), "a right that is free")
    younger = [few.d.grants.acquire(token, "a request", "younger") for token in tokens[2:]]
    until(lambda: few.d.poll() is not None and younger[1].lost, "the end of the younger load")
    assert isinstance(younger[1].error, errors.Quota) and younger[0].remote and not younger[0].lost
    few.end(*younger)
    until(lambda: few.has(*older), "both rights of the older load")
    few.end(*older)


@pytest.mark.parametrize("few", ["remotes"], indirect=True)
def test_released_before_it_is_asked_for(few):
    """It stands behind a load that waits for a limit. The owner hears that it is not wanted, so that its blocks are free again."""
    waiting = few.ask("waiting", 3)
    until(lambda: few.d.poll() is not None and waiting[2].limit, "the limit")
    grant = given(few.p)
    few.d.grants.acquire(grant.token, "a request", "unwanted").release()
    few.end(*waiting)
    until(lambda: few.d.poll() is not None and few.p.poll() is not None and grant.how, "the end of the right")
    assert grant.how == USED
    until(lambda: few.d.poll() is not None and not few.d.grants.busy, "the end of all rights")


def test_the_other_kind_does_not_wait(few, monkeypatch):
    """Rights that a session gives and those that it acquires have limits of their own."""
    waiting = few.ask("waiting", 3)
    monkeypatch.setattr(grants, "_AGAIN", 3600.0)
    until(lambda: few.d.poll() is not None and waiting[2].limit, "the limit")
    other = Few({"leases": "remotes", "remotes": "leases"}[few.kind], few.p, few.d)
    rights = other.ask("other", 2)
    until(lambda: other.has(*rights), "rights of the other kind")
    other.end(*rights)
    monkeypatch.undo()
    few.end(*waiting)


@pytest.fixture
def beyond(few):
    """Two rights of D, and a third one that waits for the limit, with P's side of it."""
    rights = few.ask("a load", 2)
    until(lambda: few.has(*rights), "two rights")
    grant = given(few.p)
    hold = few.d.grants.acquire(grant.token, "a request", "another load")
    until(lambda: few.d.poll() is not None and hold.limit, "the limit")
    yield rights, hold, grant
    few.end(*rights)


@pytest.mark.parametrize("few", ["remotes"], indirect=True)
def test_released_while_it_waits_for_a_limit(few, beyond):
    """The owner hears of it as soon as the limit allows, so that its blocks are free before the lease has expired."""
    rights, hold, grant = beyond
    hold.release()
    few.end(rights[0])
    until(lambda: few.d.poll() is not None and few.p.poll() is not None and grant.how, "the end of the right")
    assert grant.how == USED
    until(lambda: few.d.poll() is not None and not few.d.grants.busy, "the end of the release")


@pytest.mark.parametrize("few", ["remotes"], indirect=True)
def test_a_limit_that_stands_for_longer_than_a_lease(few, beyond, monkeypatch):
    """The right is not asked for any more."""
    monkeypatch.setattr(grants, "_RELEASE", 0.0)
    _, hold, grant = beyond
    hold.release()
    until(lambda: few.d.poll() is not None and not few.d.grants.busy, "the end of the release")
    assert isinstance(hold.error, errors.Quota) and grant.how is None


def test_a_load_that_needs_more_than_a_limit_allows(few):
    """It waits, because other sessions may have what it needs. Its end leaves nothing behind."""
    rights, limits = few.ask("load", 3), []

    def limited():
        few.has()
        limits.extend(right.limit for right in rights if right.limit and right.limit not in limits)
        return len(limits) > 3

    until(limited, "the refusals")
    assert few.has(*rights[:2]) and not any(right.error for right in rights)
    few.end(*rights)
    until(lambda: few.d.poll() is not None and not (few.d.grants.busy or len(few.d.grants)), "the end of all rights")
