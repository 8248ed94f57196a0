# SPDX-License-Identifier: Apache-2.0
"""Leases: what holders may access, how leases end, and what the owner hears of it, within an agent and between two."""

import json
import random
import signal

import dray
import pytest
from dray import errors, events
from harness import LIMIT, MIB, Side, concerns, expect, noise, until

BLOCK = 4096
LAYERS = 8
LAYER = MIB // LAYERS
HOUR = 3600.0


def blocks(*numbers):
    """A piece of each block in every layer."""
    return [(n * BLOCK, BLOCK, LAYER, LAYERS) for n in numbers]


def pieces(n, at=0):
    """Operations that read the pieces of block n to consecutive places."""
    return [(at + layer * BLOCK, layer * LAYER + n * BLOCK, BLOCK) for layer in range(LAYERS)]


def content(side, n):
    return b"".join(bytes(side.view[layer * LAYER + n * BLOCK:][:BLOCK]) for layer in range(LAYERS))


def ended(side):
    event = side.client.next_event(events.LeaseEnded, LIMIT)
    assert event, "the lease has not ended"
    return event


def lost(side, remote):
    """The holder hears that the lease has ended."""
    assert concerns(side.client.next_event(events.RemoteLost, LIMIT), remote)
    return remote.lost.name


@pytest.fixture(params=["local", "tcp"])
def agents(request):
    """The agent of the holder and that of the owner: one agent, or two."""
    return (request.getfixturevalue("agent"),) * 2 if request.param == "local" else request.getfixturevalue("pair")


@pytest.fixture
def two(agents):
    with Side(agents[0], MIB) as here, Side(agents[1], MIB, noise(MIB)) as there:
        yield here, there


def test_only_its_ranges(two):
    here, there = two
    lease = there.region.lease(blocks(3, 7, 8), access="r")
    remote = here.client.acquire(str(lease.token), timeout=LIMIT)
    assert remote.length == MIB and remote.access == 1 and 0 < remote.expiry <= 30
    here.client.read(here.region, remote, pieces(7)).result(LIMIT)
    assert bytes(here.view[:LAYERS * BLOCK]) == content(there, 7)
    # neighbours are one piece
    here.client.read(here.region, remote, [(0, 7 * BLOCK, 2 * BLOCK)]).result(LIMIT)
    for op in [(0, 3 * BLOCK - 1, 2), (0, 4 * BLOCK - 1, 2), (0, 0, 1), (0, 3 * BLOCK, MIB - 3 * BLOCK),
               (0, MIB - 1, 1), (0, 6 * BLOCK, 3 * BLOCK)]:
        expect("range", here.client.read(here.region, remote, [*pieces(3), op]).result, LIMIT)
    # long lists are checked, too
    expect("range", here.client.read(here.region, remote, [*pieces(3) * 300, (0, 2 * BLOCK, 1)]).result, LIMIT)
    expect("denied", here.client.write(here.region, remote, pieces(3)).result, LIMIT)
    remote.release()
    event = ended(there)
    assert (event.lease, event.how, event.acquired, lease.how) == (lease, "used", 1, "used")


def test_write(two):
    here, there = two
    before = bytes(there.view)
    here.view[:] = noise(MIB, 5)
    lease = there.region.lease(blocks(2), access="w")
    remote = here.client.acquire(lease.token, timeout=LIMIT)
    here.client.write(here.region, remote, pieces(2)).result(LIMIT)
    expect("range", here.client.write(here.region, remote, pieces(3)).result, LIMIT)
    expect("denied", here.client.read(here.region, remote, pieces(2)).result, LIMIT)
    assert content(there, 2) == bytes(here.view[:LAYERS * BLOCK])
    assert content(there, 3) == b"".join(before[layer * LAYER + 3 * BLOCK:][:BLOCK] for layer in range(LAYERS))
    lease.end()
    assert ended(there).how == "ended"


def test_all_blocks_of_all_layers(two):
    """32 layers of 4,096 blocks are 4,096 ranges, or one."""
    here, there = two
    ranges = [(n * 8, 8, 4096 * 8, 32) for n in range(4096)]
    random.Random(1).shuffle(ranges)
    odd = [r for r in ranges if r[0] // 8 % 2]
    remote = here.client.acquire(there.region.lease(odd).token, timeout=LIMIT)
    here.client.read(here.region, remote, [(i * 8, (layer * 4096 + n) * 8, 8) for i, (n, layer) in enumerate(
        (n, layer) for layer in range(32) for n in range(1, 4096, 2))]).result(LIMIT)
    expected = b"".join(bytes(there.view[i * 8:i * 8 + 8]) for i in range(1, 32 * 4096, 2))
    assert bytes(here.view[:len(expected)]) == expected
    expect("range", here.client.read(here.region, remote, [(0, 8, 9)]).result, LIMIT)
    whole = here.client.acquire(there.region.lease(ranges).token, timeout=LIMIT)
    here.client.read(here.region, whole, [(0, 0, MIB)]).result(LIMIT)
    assert here.view == there.view


def test_holders(two):
    """The lease is used when every holder has released it, and no other can acquire it."""
    here, there = two
    lease = there.region.lease(blocks(1), holders=2)
    first = here.client.acquire(lease.token, timeout=LIMIT)
    second = here.client.acquire(lease.token, timeout=LIMIT)
    expect("token_used", here.client.acquire, lease.token, timeout=LIMIT)
    first.release()
    here.client.read(here.region, second, pieces(1)).result(LIMIT)
    assert lease.how is None
    second.release()
    assert (ended(there).how, lease.how) == ("used", "used")
    expect("token_used", here.client.acquire, lease.token, timeout=LIMIT)
    lease.end()  # nothing is left to end


def test_expired(two):
    here, there = two
    nobody, held = there.region.lease(blocks(1), expiry=0.05), there.region.lease(blocks(2), expiry=0.5)
    remote = here.client.acquire(held.token, timeout=LIMIT)
    assert ended(there)[:2] == (nobody, "expired")
    expect("token_expired", here.client.acquire, nobody.token, timeout=LIMIT)
    assert ended(there)[:2] == (held, "expired")
    assert lost(here, remote) == "revoked"
    expect("revoked", here.client.read, here.region, remote, pieces(2))
    expect("revoked", remote.renew)


def test_renewed(two):
    here, there = two
    lease = there.region.lease(blocks(1), expiry=HOUR)
    remote = here.client.acquire(lease.token, timeout=LIMIT)
    assert HOUR / 2 < remote.renew(1.0) <= HOUR
    assert HOUR / 2 < remote.renew(9 * HOUR) <= HOUR
    assert remote.renew() == remote.expiry
    short = there.region.lease(blocks(2), expiry=0.4)
    renewed = here.client.acquire(short.token, timeout=LIMIT)
    for _ in range(20):
        assert 0 < renewed.renew() <= 0.4
    assert ended(there)[:2] == (short, "expired")
    assert not lease.how
    plain = here.client.import_token(there.region.export(), timeout=LIMIT)
    expect("invalid", plain.renew)


def test_ended_under_traffic(two):
    """After the end no read returns bytes that the owner wrote then."""
    here, there = two
    for n in range(10):
        there.view[:] = bytes([n]) * MIB
        here.view[:] = bytes([n]) * MIB
        lease = there.region.lease([(0, MIB, 0, 1)])
        remote = here.client.acquire(lease.token, timeout=LIMIT)
        reads = [here.client.read(here.region, remote, [(0, 0, MIB)]) for _ in range(20)]
        reads[n].result(LIMIT)
        lease.end()
        there.view[:] = b"\xff" * MIB
        assert {r.exception(LIMIT).name for r in reads if r.exception(LIMIT)} <= {"revoked"}
        assert bytes(here.view) == bytes([n]) * MIB
        assert ended(there).how == "ended"
        assert lost(here, remote) == "revoked"


def test_end_before_it_is_acquired(two):
    here, there = two
    lease = there.region.lease(blocks(1))
    pending = lease.end(wait=False)
    pending.result(LIMIT)
    assert (ended(there).acquired, lease.how) == (0, "ended")
    expect("revoked", here.client.acquire, lease.token, timeout=LIMIT)


def test_ends_with_its_region(two):
    here, there = two
    lease, other = there.region.lease(blocks(1)), there.region.lease(blocks(2))
    remote = here.client.acquire(lease.token, timeout=LIMIT)
    there.region.remove()
    assert {ended(there).lease, ended(there).lease} == {lease, other}
    assert {lease.how, other.how} == {"ended"}
    assert lost(here, remote) == "revoked"


def test_session_of_the_holder_is_lost(agents, two):
    here, there = two
    lease = there.region.lease(blocks(1), holders=2)
    with Side(agents[0], MIB) as holder:
        remote = here.client.acquire(lease.token, timeout=LIMIT)
        holder.client.acquire(lease.token, timeout=LIMIT)
    assert ended(there)[:2] == (lease, "peer_lost")
    # the request of all holders has failed
    assert lost(here, remote) == "revoked"


def test_session_of_the_owner_ends(agents, two):
    here, _ = two
    with Side(agents[1], MIB) as owner:
        remote = here.client.acquire(owner.region.lease(blocks(1)).token, timeout=LIMIT)
    assert lost(here, remote) == "revoked"


def test_lease_of_a_region_of_the_group(agents):
    with Side(agents[1], MIB, noise(MIB), group="g") as owner, agents[1].client(group="g") as member, \
            Side(agents[0], MIB) as here:
        region = member.borrow_region(owner.region.agent_handle, MIB)
        lease = region.lease(blocks(1), access="r")
        remote = here.client.acquire(lease.token, timeout=LIMIT)
        here.client.read(here.region, remote, pieces(1)).result(LIMIT)
        other = region.lease(blocks(2), access="w")
        again = here.client.acquire(other.token, timeout=LIMIT)
        lease.end()
        assert member.next_event(events.LeaseEnded, LIMIT).how == "ended"
        member.close()
        # its leases end with it, the region does not
        assert lost(here, remote) == "revoked"
        assert lost(here, again) == "revoked"
        here.reach(owner)


def test_kinds_of_tokens(two):
    here, there = two
    lease, token = there.region.lease(blocks(1)), there.region.export()
    expect("token_invalid", here.client.import_token, lease.token, timeout=LIMIT)
    expect("token_invalid", here.client.acquire, token, timeout=LIMIT)
    raw = bytearray(lease.token.data)
    raw[-5 - len(there.client.segment)] ^= 1  # the last byte of the capability
    expect("token_invalid", here.client.acquire, bytes(raw), timeout=LIMIT)
    here.client.acquire(lease.token, timeout=LIMIT)


def test_refused(two):
    _, there = two
    region = there.region
    expect("range", region.lease, [(0, BLOCK, MIB, 2)])
    expect("invalid", region.lease, [])
    expect("invalid", region.lease, [(0, 0, 0, 1)])
    expect("invalid", region.lease, [(0, 100, 50, 2)])
    expect("invalid", region.lease, [(i, 1, 100 + i, 2) for i in range(17)])
    expect("invalid", region.lease, [(0, 1, 2)])
    expect("invalid", region.lease, blocks(1), holders=0)
    expect("invalid", region.lease, blocks(1), holders=5000)
    expect("invalid", region.lease, blocks(1), grant=True)
    expect("too_large", region.lease, [(i, 1, 0, 1) for i in range(5000)])
    expect("range", region.lease, [(-1, 1, 0, 1)])


def test_limits(new_agent):
    agent = new_agent(settings={"limits.leases_per_session": 3, "limits.lease_ranges_per_session": 10})
    with Side(agent, MIB) as side, agent.client() as holder:
        leases = [side.region.lease(blocks(1)) for _ in range(3)]
        assert "limits.leases_per_session" in str(expect("quota", side.region.lease, blocks(1)))
        holder.acquire(leases[0].token).release()
        assert ended(side).how == "used"
        assert "lease_ranges_per_session" in str(expect("quota", side.region.lease, blocks(*range(1, 30, 2))))
        side.region.lease(blocks(*range(1, 16, 2)))


def test_many_at_once(two):
    """Acquisitions that are started together share messages; each gets its own lease."""
    here, there = two
    leases = [there.region.lease(blocks(n), wait=False) for n in range(1, 31)]
    tokens = [lease.result(LIMIT).token for lease in leases]
    remotes = [p.result(LIMIT) for p in [here.client.acquire(t, wait=False, timeout=LIMIT) for t in tokens]]
    for n, remote in enumerate(remotes, 1):
        here.client.read(here.region, remote, pieces(n)).result(LIMIT)
        assert bytes(here.view[:LAYERS * BLOCK]) == content(there, n)
        expect("range", here.client.read(here.region, remote, pieces(n % 30 + 1)).result, LIMIT)
    for p in [r.release(wait=False) for r in remotes]:
        p.result(LIMIT)
    assert {ended(there).how for _ in leases} == {"used"}


def test_given_up_acquisition(pair):
    """A holder that gave up does not count, whenever its answer comes."""
    with Side(pair[0], MIB) as here, Side(pair[1], MIB, noise(MIB)) as there:
        lease = there.region.lease(blocks(1))
        with pair[0].client() as gone:
            gone.acquire(lease.token, wait=False)
        until(lambda: not pair[0].ctl("sessions", "--json")["sessions"][1:], "the end of the session")
        if not lease.how:
            until(lambda: lease.how or taken(here, lease), "the lease to be free again")
        assert lease.how in (None, "peer_lost")


def taken(side, lease):
    side.client.process(0)
    try:
        return side.client.acquire(lease.token, timeout=LIMIT)
    except errors.TokenUsed:
        return False
    except errors.Revoked:
        return True


def test_granted_at_once(new_pair):
    """A lease that was granted is acquired without its owner's agent."""
    a, b = new_pair()
    with Side(a, MIB) as here, Side(b, MIB, noise(MIB)) as there:
        audience = here.client.agent_id
        early = there.region.lease(blocks(1), audience=audience, grant=True)
        assert early.granted == 0  # the agents are not connected yet
        remote = here.client.acquire(early.token, timeout=LIMIT)
        remote.release()
        assert ended(there).how == "used"

        lease = there.region.lease(blocks(*range(1, 30, 2)), audience=audience, grant=True, holders=2)
        assert lease.granted == 2
        until(lambda: a.ctl("peers", "--json")["peers"][0]["imports"] == 2, "the grants")
        b.signal(signal.SIGSTOP)
        first = here.client.acquire(lease.token, timeout=LIMIT)
        second = here.client.acquire(lease.token, timeout=LIMIT)
        expect("range", here.client.read(here.region, first, pieces(2)).result, LIMIT)
        b.signal(signal.SIGCONT)
        here.client.read(here.region, first, pieces(3)).result(LIMIT)
        assert bytes(here.view[:LAYERS * BLOCK]) == content(there, 3)
        first.release()
        second.release()
        assert ended(there).how == "used"

        # requests that cross the grants on their way
        for _ in range(50):
            lease = there.region.lease(blocks(1), audience=audience, grant=True)
            here.client.acquire(lease.token, timeout=LIMIT).release()
            assert ended(there)[:2] == (lease, "used")

        # nobody comes for it
        assert there.region.lease(blocks(1), audience=audience, grant=True, expiry=0.05).granted == 1
        assert ended(there).how == "expired"
        lease = there.region.lease(blocks(1), audience=audience, grant=True)
        lease.end()
        assert ended(there).how == "ended"
        expect("revoked", here.client.acquire, lease.token, timeout=LIMIT)


def test_granted_to_another_agent(pair):
    with Side(pair[0], MIB) as here, Side(pair[1], MIB) as there, pair[1].client() as neighbour:
        here.reach(there)
        lease = there.region.lease(blocks(1), audience=here.client.agent_id, grant=True)
        expect("token_audience", neighbour.acquire, lease.token, timeout=LIMIT)
        forged = bytearray(lease.token.data)
        at = bytes(forged).index(here.client.agent_id) + 16  # the capability follows the audience
        forged[at] ^= 1
        expect("token_invalid", here.client.acquire, bytes(forged), timeout=LIMIT)
        here.client.acquire(lease.token, timeout=LIMIT)


def test_agent_of_the_holder_is_killed(new_pair):
    a, b = new_pair()
    with Side(b, MIB, noise(MIB)) as there:
        with Side(a, MIB) as here:
            lease = there.region.lease(blocks(1))
            here.client.acquire(lease.token, timeout=LIMIT)
            a.kill()
            assert ended(there)[:2] == (lease, "peer_lost")
        a.start()
        with Side(a, MIB) as here:
            lease = there.region.lease(blocks(1))
            here.client.acquire(lease.token, timeout=LIMIT).release()
            assert ended(there)[:2] == (lease, "used")


@pytest.mark.parametrize("how", ["expired", "ended"])
def test_agent_of_the_holder_stops(short_limits_pair, how):
    """An agent that does not acknowledge the fence is lost, and what it finds later is not the lease."""
    a, b = short_limits_pair(peer__heartbeat_limit="15s")
    with Side(a, MIB) as here, Side(b, MIB, noise(MIB)) as there:
        lease = there.region.lease(blocks(1), expiry=0.5 if how == "expired" else HOUR)
        remote = here.client.acquire(lease.token, timeout=LIMIT)
        here.client.read(here.region, remote, pieces(1)).result(LIMIT)
        a.signal(signal.SIGSTOP)
        other = there.region.lease(blocks(9), expiry=HOUR)
        if how == "ended":
            lease.end()
        assert ended(there)[:2] == (lease, how)
        # a lease that the stopped agent does not hold needs no fence
        other.end()
        assert ended(there)[:2] == (other, "ended")
        there.view[:] = b"\xff" * MIB
        a.signal(signal.SIGCONT)
        assert lost(here, remote) in ("peer_lost", "revoked")
        assert here.view[0] != 0xff


def test_own_agent_is_killed(new_pair):
    a, b = new_pair()
    with Side(a, MIB) as here, Side(b, MIB, noise(MIB)) as there:
        lease = there.region.lease(blocks(1))
        remote = here.client.acquire(lease.token, timeout=LIMIT)
        b.kill()
        assert ended(there)[:2] == (lease, "agent_lost")
        assert lost(here, remote) == "peer_lost"
        b.start()
        there.client.reconnect(LIMIT)
        expect("incarnation", here.client.acquire, lease.token, timeout=LIMIT)
        lease.end()
        again = there.region.lease(blocks(1))
        here.client.acquire(again.token, timeout=LIMIT).release()
        assert ended(there)[:2] == (again, "used")


def test_own_agent_stops(new_pair):
    """What a stopped agent cannot confirm stays lent; the owner hears of the end when the agent goes on."""
    a, b = new_pair()
    with Side(a, MIB) as here, Side(b, MIB, noise(MIB)) as there:
        lease = there.region.lease(blocks(1))
        here.client.acquire(lease.token, timeout=LIMIT)
        b.signal(signal.SIGSTOP)
        end = lease.end(wait=False)
        with pytest.raises(errors.Timeout):
            end.result(0.1)
        assert lease.how is None
        b.signal(signal.SIGCONT)
        end.result(LIMIT)
        assert ended(there)[:2] == (lease, "ended")


def test_network_is_cut(lab, short_limits_pair):
    lab.need_namespaces()
    a, b = short_limits_pair()
    with Side(a, MIB) as here, Side(b, MIB, noise(MIB)) as there:
        lease = there.region.lease(blocks(1), expiry=HOUR)
        remote = here.client.acquire(lease.token, timeout=LIMIT)
        lab.hosts[0].link(False)
        try:
            assert ended(there)[:2] == (lease, "peer_lost")
            assert lost(here, remote) == "peer_lost"
        finally:
            lab.hosts[0].link(True)


@pytest.mark.parametrize("which", ["owner", "holder"])
def test_drain(new_pair, which):
    a, b = new_pair()
    with Side(a, MIB) as here, Side(b, MIB, noise(MIB)) as there:
        lease = there.region.lease(blocks(1))
        remote = here.client.acquire(lease.token, timeout=LIMIT)
        if which == "owner":
            there.region.lease(blocks(2), audience=here.client.agent_id, grant=True)  # nobody comes for it
            b.ctl("drain", "--stay")
            assert ended(there)[:2] == (lease, "ended")
            assert lost(here, remote) == "draining"
            expect("draining", there.region.lease, blocks(1))
            b.ctl("resume")
        else:
            a.ctl("drain", "--stay")
            expect("draining", here.client.acquire, lease.token, timeout=LIMIT)
            assert not lease.how
            a.ctl("resume")
            remote.release()
            assert ended(there)[:2] == (lease, "used")


def test_seen_by_operators(pair):
    with Side(pair[0], MIB) as here, Side(pair[1], MIB, noise(MIB)) as there:
        before = pair[1].ctl("status", "--json")["counters"]
        lease = there.region.lease(blocks(1, 2, 5), access="r", holders=2)
        record, = pair[1].ctl("leases", "--json")["leases"]
        assert (record["state"], record["ranges"], record["pieces"], record["bytes"]) == (
            "waiting", 2, 2 * LAYERS, 3 * LAYERS * BLOCK)
        assert 0 < record["left_ns"] <= 30e9
        remotes = [here.client.acquire(lease.token, timeout=LIMIT) for _ in range(2)]
        record, = pair[1].ctl("leases", "--json")["leases"]
        assert (record["state"], record["acquired"], record["access"]) == ("held", 2, "r")
        assert "held" in pair[1].ctl("leases")
        remotes[0].renew()
        now = pair[1].ctl("status", "--json")["counters"]
        assert (now["dray_leases"], now["dray_lease_holders"]) == (1, 2)
        assert now["dray_leases_made_total"] == before["dray_leases_made_total"] + 1
        assert now["dray_lease_renewals_total"] == before["dray_lease_renewals_total"] + 1
        for remote in remotes:
            remote.release()
        assert ended(there).how == "used"
        assert pair[1].ctl("leases", "--json")["leases"] == []


def test_forms_of_ranges(two):
    """Arrays and bytes, as for operations."""
    import array
    import struct
    here, there = two
    words = [n for r in blocks(1, 3) for n in r]
    for form in (array.array("Q", words), struct.pack(f"<{len(words)}Q", *words),
                 memoryview(array.array("Q", words)), tuple(blocks(1, 3))):
        lease = there.region.lease(form)
        remote = here.client.acquire(lease.token, timeout=LIMIT)
        here.client.read(here.region, remote, pieces(3)).result(LIMIT)
        expect("range", here.client.read(here.region, remote, pieces(2)).result, LIMIT)
        remote.release()
    assert isinstance(lease, dray.Lease)


# --- labels -----------------------------------------------------------------------------------------

def test_label_of_transfers(agents, two):
    """Transfers in flight and those that have ended carry what the holder said when it acquired the lease."""
    here, there = two
    label = "chatcmpl-7, " + "ü" * 26
    assert len(label.encode()) == 64
    labels = label, ""
    remotes = [here.client.acquire(there.region.lease(blocks(3)).token, label=text, timeout=LIMIT) for text in labels]
    waiting = [here.client.read(here.region, remote, pieces(3), wait_word=(here.region, 0, 0xfeedface)) for remote in remotes]
    shown = until(lambda: found if len(found := agents[0].ctl("transfers", "--json")["transfers"]) == 2 else None)
    assert {t["label"] for t in shown} == set(labels)
    for w in waiting:
        w.cancel()
        expect("cancelled", w.result, LIMIT)
    for remote in remotes:
        here.client.read(here.region, remote, pieces(3)).result(LIMIT)
    *_, first, second = agents[0].ctl("transfers", "--recent", "--json")["ended_transfers"]
    assert (first["label"], second["label"]) == labels
    assert label in agents[0].ctl("transfers", "--recent")
    traced = [e["args"]["label"] for e in json.loads(agents[0].ctl("trace"))["traceEvents"] if "args" in e]
    assert traced[-2:] == list(labels)


def test_label_that_is_refused(two):
    here, there = two
    token = there.region.lease(blocks(3)).token
    for label, error in (("x" * 65, "too_large"), ("a\nb", "invalid"), ("a\x1b[0m", "invalid")):
        expect(error, here.client.acquire, token, label=label, timeout=LIMIT)
    here.client.acquire(token, label="x" * 64, timeout=LIMIT).release()  # nothing was taken, and the session goes on
    assert ended(there).how == "used"


def test_label_in_the_log(new_agent):
    agent = new_agent(settings={"log.transfers": "true"})
    with Side(agent, MIB) as here, Side(agent, MIB) as there:
        remote = here.client.acquire(there.region.lease(blocks(3)).token, label="chatcmpl-7", timeout=LIMIT)
        here.client.read(here.region, remote, pieces(3)).result(LIMIT)
        line = until(lambda: next((line for line in agent.text().splitlines() if "read took" in line), None))
        assert line.endswith(" label=chatcmpl-7"), line


def test_label_forges_no_fields(new_agent):
    """A label and names with spaces are one word each in a line of the log; lists have the label as it is."""
    agent = new_agent(settings={"log.transfers": "true", "log.format": "json"})
    how = {"name": "engine code=7", "group": "request 7"}
    label = "x session=1 uid=0"
    with Side(agent, MIB, **how) as here, Side(agent, MIB) as there:
        remote = here.client.acquire(there.region.lease(blocks(3)).token, label=label, timeout=LIMIT)
        here.client.read(here.region, remote, pieces(3)).result(LIMIT)
        line = until(lambda: next((line for line in agent.text().splitlines() if "read took" in line), None))
        transfer, = agent.ctl("transfers", "--recent", "--json")["ended_transfers"]
    fields = json.loads(line)
    assert fields["label"] == "x_session_1_uid_0"
    assert fields["session"] == str(transfer["session"]) and "uid" not in fields
    assert transfer["label"] == label
    opened = json.loads(next(line for line in agent.text().splitlines() if "opened by engine" in line))
    assert opened["msg"] == "opened by engine_code_7"
    assert opened["group"] == "request_7" and opened["session"] == fields["session"] and "code" not in opened
