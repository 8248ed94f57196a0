# SPDX-License-Identifier: Apache-2.0
"""dray.vllm.grants: a right on a region is acquired, used, released, ended and lost; the owner hears once how it ended."""

import time

import dray
import pytest
from dray.vllm.grants import ENDED, EXPIRED, LOST, USED, Grants
from harness import MIB, noise, until


class Party:
    """An engine's scheduler side, as far as rights are concerned."""

    def __init__(self, agent, name):
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
    grant = p.grants.give("request", p.region, None, expiry)
    until(lambda: p.poll() is not None and grant.token, "the token")
    return grant


def acquired(d, token):
    hold = d.grants.acquire(token, 10)
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
    d.grants.acquire(grant.token, 10).release()
    until(lambda: d.poll() is not None and p.poll(), "the end")
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
    grant = p.grants.give("request", p.region, None, 30.0)
    p.grants.end(grant)
    until(lambda: p.poll(), "the end")
    assert p.ended == [grant] and grant.how == ENDED


def test_expired(parties):
    p, d = parties
    began = time.monotonic()
    grant = given(p, 0.2)
    hold = acquired(d, grant.token)
    until(lambda: p.poll(), "the end")
    assert grant.how == EXPIRED and time.monotonic() >= began + 0.2
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
        assert {g.how for g in grants} == {LOST}
        alone.start()


def test_another_ones_notification_ends_nothing(parties):
    p, d = parties
    grant = given(p)
    hold = acquired(d, grant.token)
    hold.remote.notify(int.from_bytes(b"dray-kv0", "big"), b"0123456789abcdef")
    hold.remote.notify(7, b"")
    p.client.wait_until(lambda: bool(p.client.events), 5)
    assert not p.poll() and grant.how is None
