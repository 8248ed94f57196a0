# SPDX-License-Identifier: Apache-2.0
"""Tokens give exactly their range and access, until they expire or are revoked."""

import os
import time

import dray
import pytest
import wire
from wire import codec as s
from harness import LIMIT, MIB, Side, concerns, expect, noise, until


def parse(token):
    raw = wire.token_bytes(token)
    fields = s.PeerToken._make(s.PEER_TOKEN.unpack_from(raw))
    return raw, fields


def change(token, **fields):
    """Returns the token with changed fields in its fixed part."""
    raw, old = parse(token)
    return s.PEER_TOKEN.pack(*old._replace(**fields)) + raw[s.PEER_TOKEN.size:]


@pytest.fixture(params=["local", "tcp"])
def agents(request):
    """The agent of a side that imports and that of one that exports: one agent, or two."""
    return (request.getfixturevalue("agent"),) * 2 if request.param == "local" else request.getfixturevalue("pair")


@pytest.fixture
def two(agents):
    """A side that imports and one that exports; tests/wire sends their tokens to the agents unread."""
    with Side(agents[0], MIB, wire=True) as here, Side(agents[1], MIB, noise(MIB), wire=True) as there:
        yield here, there


@pytest.fixture
def two_engines(agents):
    """The same with clients of the package."""
    with Side(agents[0], MIB) as here, Side(agents[1], MIB, noise(MIB)) as there:
        yield here, there


def test_text_form(agents, two_engines):
    here, there = two_engines
    token = there.region.export()
    assert str(token).startswith("dray1:") and "=" not in str(token)
    assert dray.token_to_bytes(str(token)) == token.data and len(token.data) <= s.TOKEN_MAX
    fields = parse(token)[1]
    with agents[1].wire() as client:
        assert (fields.agent_id, fields.incarnation) == (client.agent_id, client.hello.incarnation)
    for bad in ("", "dray1:", "dray2:" + str(token)[6:], "dray1:***", "dray1:" + "A" * 400, str(token)[:-8]):
        expect("token_invalid", here.client.import_token, bad, timeout=5)


def test_forged(two):
    """Changes of any bit of the capability and of other fields are refused."""
    here, there = two
    token = there.region.export(0, 4096)
    capability = parse(token)[1].capability
    for bit in (0, 7, 64, 127):
        forged = (int.from_bytes(capability, "big") ^ 1 << bit).to_bytes(16, "big")
        expect("token_invalid", here.client.import_token, change(token, capability=forged), timeout=LIMIT)
    expect("token_invalid", here.client.import_token, change(token, capability=bytes(16)), timeout=LIMIT)
    fields = parse(token)[1]
    expect("token_invalid", here.client.import_token, change(token, token_id=fields.token_id + (1 << 32)), timeout=LIMIT)
    expect({"token_invalid", "revoked"}, here.client.import_token, change(token, region=fields.region + 1), timeout=LIMIT)


def test_larger_claims_gain_nothing(two):
    """A token that was changed to a longer range or more access gives at most what was exported."""
    here, there = two
    token = there.region.export(4096, 100, access="r")
    claim = change(token, offset=0, length=MIB, access=3)
    try:
        remote = here.client.import_token(claim, timeout=LIMIT)
    except wire.Error as e:
        assert e.name == "token_invalid"
        return
    assert remote.length == 100
    expect("range", here.client.read(here.region, remote, [(0, 100, 1)]).result, LIMIT)
    expect("denied", here.client.write(here.region, remote, [(0, 0, 1)]).result, LIMIT)
    here.client.read(here.region, remote, [(0, 0, 100)]).result(LIMIT)
    assert here.view[:100] == there.view[4096:4196]


def test_garbage(two):
    here, there = two
    raw = there.region.export().data
    for bad in (b"", b"x", os.urandom(104), os.urandom(256), raw[:50], raw[:-1], raw + bytes(10),
                change(raw, version=2)):
        expect("token_invalid", here.client.import_token, bad[:256], timeout=5)


def test_expired(two):
    here, there = two
    token = there.region.export(ttl=0.05)
    expiry = parse(token)[1].expiry_ms
    assert 0 < expiry < (time.time() + 60) * 1000
    until(lambda: time.time() * 1000 > expiry + 1, "the token's end")
    expect("token_expired", here.client.import_token, token, timeout=LIMIT)
    # changing the expiry in the token has no effect
    expect({"token_expired", "token_invalid"}, here.client.import_token, change(token, expiry_ms=0), timeout=LIMIT)
    here.client.import_token(there.region.export(ttl=3600), timeout=LIMIT)


def test_revoked(two):
    here, there = two
    token, other = there.region.export(), there.region.export()
    remote = here.client.import_token(token, timeout=LIMIT)
    assert there.region.revoke(token) == 1
    expect({"revoked", "token_invalid"}, here.client.import_token, token, timeout=LIMIT)
    expect({"revoked", "not_found"}, here.client.read(here.region, remote, [(0, 0, 1)]).result, LIMIT)
    event = here.client.next_event(s.RemoteLost, LIMIT)
    assert event.remote == remote.handle and s.error_name(event.code) == "revoked"
    again = here.client.import_token(other, timeout=LIMIT)
    here.client.read(here.region, again, [(0, 0, 100)]).result(LIMIT)
    there.region.export()
    assert there.region.revoke() == 2
    expect("not_found", there.region.revoke, token)
    expect({"revoked", "not_found"}, here.client.read(here.region, again, [(0, 0, 1)]).result, LIMIT)
    for dead in (remote, again):
        dead.release()


def test_lost_remote(two_engines):
    """The package has an event for a lost remote, and the remote has the reason."""
    here, there = two_engines
    remote = here.reach(there)
    assert remote.lost is None
    there.region.revoke()
    assert concerns(here.client.next_event(dray.RemoteLost, LIMIT), remote)
    assert remote.lost.name == "revoked"


def test_region_removed(two):
    here, there = two
    token = there.region.export()
    remote = here.client.import_token(token, timeout=LIMIT)
    there.region.remove()
    expect({"revoked", "token_invalid"}, here.client.import_token, token, timeout=LIMIT)
    expect({"revoked", "not_found"}, here.client.read(here.region, remote, [(0, 0, 1)]).result, LIMIT)


def test_used_twice(two):
    here, there = two
    token = there.region.export(single_use=True)
    remote = here.client.import_token(token, timeout=LIMIT)
    expect("token_used", here.client.import_token, token, timeout=LIMIT)
    here.client.read(here.region, remote, [(0, 0, 100)]).result(LIMIT)
    remote.release()
    expect("token_used", here.client.import_token, token, timeout=LIMIT)
    # clearing the flag in the token has no effect
    token = there.region.export(single_use=True)
    try:
        here.client.import_token(change(token, flags=0), timeout=LIMIT)
    except wire.Error as e:
        assert e.name == "token_invalid"
        return
    expect("token_used", here.client.import_token, change(token, flags=0), timeout=LIMIT)


def test_audience(two):
    here, there = two
    other = bytes(range(16))
    expect("token_audience", here.client.import_token, there.region.export(audience=other), timeout=LIMIT)
    expect({"token_audience", "token_invalid"}, here.client.import_token,
           change(there.region.export(audience=other), audience=here.client.agent_id), timeout=LIMIT)
    here.client.import_token(there.region.export(audience=here.client.agent_id), timeout=LIMIT)


def test_other_agent(two):
    """A token that names another agent than the one at its segment is refused."""
    here, there = two
    token = change(there.region.export(), agent_id=os.urandom(16))
    expect({"token_invalid", "identity", "peer_unreachable", "peer_denied"}, here.client.import_token, token, timeout=5)
    again = there.reach(here)  # a valid token still works
    there.client.write(there.region, again, [(0, 0, 100)]).result(LIMIT)


def test_earlier_incarnation_claimed(two):
    here, there = two
    fields = parse(there.region.export())[1]
    token = change(there.region.export(), incarnation=fields.incarnation - 1)
    expect("incarnation", here.client.import_token, token, timeout=LIMIT)
    here.reach(there)


@pytest.mark.parametrize("local", [True, False], ids=["local", "tcp"])
def test_earlier_incarnation(new_pair, local):
    """After a restart of the owner its old tokens are refused with incarnation."""
    a, b = new_pair()
    with Side(b, MIB, noise(MIB)) as there:
        token = there.region.export()
        b.restart()
        with Side(b if local else a, MIB) as here:
            expect("incarnation", here.client.import_token, str(token), timeout=LIMIT)
            there.client.reconnect()
            remote = here.reach(there)
            here.client.read(here.region, remote, [(0, 0, MIB)]).result(LIMIT)
            assert here.view == there.view


def test_unreachable_segment(two):
    """Importing from a segment without a listener fails with peer_unreachable within the timeout."""
    here, there = two
    fields = parse(there.region.export())[1]
    for segment in (b"127.0.0.1:1", b"[::1]:1", b"203.0.113.7:7411", b"nobody.invalid:7411"):
        fixed = s.PEER_TOKEN.pack(*fields._replace(agent_id=os.urandom(16)))
        expect({"peer_unreachable", "timeout", "token_invalid", "peer_denied"}, here.client.import_token,
               fixed + len(segment).to_bytes(4, "little") + segment, timeout=0.5)


def test_refused_connection(new_pair):
    """Without a timeout an import fails at the first refused connection; with one it waits for the owner."""
    a, b = new_pair()
    with Side(b, MIB) as there, Side(a, MIB, wire=True) as here:
        token = str(there.region.export())
        b.kill()
        waiting = here.client.import_token(token, timeout=LIMIT, wait=False)
        before = here.client.import_token(token, timeout=5, wait=False)  # less than the default limit
        for _ in range(3):
            error = expect("peer_unreachable", here.client.import_token, token)
            assert b.listen[0] in str(error)
            here.client.process()
            assert not before.done() and not waiting.done()
        b.start()
        expect("incarnation", waiting.result, LIMIT)


def test_released(two):
    here, there = two
    remote = here.reach(there)
    remote.release()
    expect("not_found", here.client.request, s.pack_remote_release, remote=remote.handle)
    expect("not_found", here.client.read(here.region, remote, [(0, 0, 1)]).result, LIMIT)


def test_export_checks(two):
    here, there = two
    for offset, length in [(0, MIB + 1), (MIB, 1), (1, MIB), ((1 << 64) - 1, 2), (0, 1 << 63)]:
        expect("range", there.region.export, offset, length)
    expect({"invalid", "range"}, there.region.export, 0, 0)
    expect("invalid", there.region.export, access=0)
    expect("unsupported", there.client.request, s.pack_region_export, region=there.region.handle, length=1, access=4)
    expect("unsupported", there.client.request, s.pack_region_export, region=there.region.handle, length=1, access=1, flags=4)
    expect("not_found", there.client.request, s.pack_region_export, region=there.region.handle + (1 << 32), length=1, access=1)
