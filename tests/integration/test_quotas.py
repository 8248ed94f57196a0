# SPDX-License-Identifier: Apache-2.0
"""Every limit of the configuration: at the limit a request gets a typed error that names it; after a release requests succeed again."""

import contextlib

import dray
import pytest
from harness import LIMIT, MIB, Raw, Side, expect, noise, unreachable_token, until, wait_for_release
from wire import codec as s


def names(error, key):
    assert key in str(error), f"the message does not name {key}: {error}"


def region(client, size=4096, n=1):
    memory = dray.Memory(size * n)
    try:
        return client.region([(memory, i * size, size) for i in range(n)])
    finally:
        memory.close()


def test_sessions(new_agent):
    agent = new_agent(settings={"limits.sessions": 3, "limits.sessions_per_owner": 3})
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(agent.client()) for _ in range(3)]
        names(expect("quota", agent.client), "limits.sessions")
        clients.pop().close()
        until(lambda: not isinstance(try_client(agent, stack), dray.Error), "room for a session")


def try_client(agent, stack):
    try:
        return stack.enter_context(agent.client())
    except dray.Error as e:
        assert e.name == "quota"
        return e


def test_sessions_per_owner(new_agent):
    agent = new_agent(settings={"limits.sessions_per_owner": 2})
    with agent.client(), agent.client():
        names(expect("quota", agent.client), "limits.sessions_per_owner")


@pytest.mark.parametrize("key", ["limits.regions", "limits.regions_per_group", "limits.regions_per_session"])
def test_regions(new_agent, key):
    agent = new_agent(settings={"limits.regions_per_owner": 4, key: 3})
    with agent.client(group="g") as client, agent.client(group="g") as mate, agent.client() as other:
        mine = [region(client) for _ in range(2)]
        theirs = region(client if key.endswith("session") else mate if key.endswith("group") else other)
        names(expect("quota", region, client), key)
        mine.pop().remove()
        region(client)
        expect("quota", region, client)
        theirs.remove()
        region(client)


def test_extents(new_agent):
    agent = new_agent(settings={"limits.extents_per_session": 10})
    with agent.client() as client:
        first = region(client, n=8)
        names(expect("quota", region, client, n=3), "limits.extents_per_session")
        region(client, n=2)
        first.remove()
        region(client, n=8)


@pytest.mark.parametrize("key", ["limits.bytes_per_session", "limits.bytes_per_group"])
def test_bytes(new_agent, key):
    agent = new_agent(settings={key: "1MiB"})
    with agent.client(group="g") as client, agent.client(group="g") as mate:
        first = region(client if key.endswith("session") else mate, MIB - 8192)
        names(expect("quota", region, client, 8193), key)
        region(client, 8192)
        first.remove()
        region(client, MIB - 8192)


def test_pool_bytes(new_agent):
    agent = new_agent(settings={"limits.pool_bytes": "1MiB", "limits.pool_bytes_per_owner": "1MiB"})
    with agent.client() as client:
        names(expect("quota", client.pool, MIB + 4096), "limits.pool_bytes")
        pool = client.pool(MIB)
        expect("quota", client.pool, 4096)
        pool.remove()
        pool.memory.close()
        client.pool(MIB).memory.close()
        expect({"quota", "range", "no_memory"}, client.pool, 1 << 62)


def test_ring_bytes(new_agent):
    """The memory of rings is the agent's, and the end of a session gives it back."""
    agent = new_agent(settings={"limits.ring_bytes": "1MiB", "limits.ring_bytes_per_owner": "800KiB"})
    with agent.client(ring_entries=4096) as client, agent.wire() as other:
        names(expect("quota", other.open_ring, 256, 4096), "limits.ring_bytes_per_owner")
        other.open_ring(0, 4096)  # an arena alone
        with agent.client() as third:  # goes on by messages and its arena, and says why
            assert third.info().ring_entries == 0
            assert "limits.ring_bytes_per_owner = " in third.info().no_ring
            assert third.info().arena_bytes
            remote = third.import_token(region(third, 16384).export())
            third.write(region(third, 16384), remote, [(i, i, 1) for i in range(0, 16384, 2)]).result(LIMIT)
        assert client.info().no_ring == ""
        rows = [q for q in agent.ctl("quotas", "--json")["quotas"] if q["resource"] == "ring_bytes"]
        assert max(q["used"] for q in rows) == 772 << 10 and max(q["refused"] for q in rows) == 2
        client.close()
    wait_for_release(agent, "ring_bytes")
    agent.client(ring_entries=4096).close()


def test_no_pools(new_agent):
    agent = new_agent(settings={"limits.pool_bytes": "0"})
    with agent.client() as client:
        expect({"quota", "unsupported"}, client.pool, 4096)


def test_tokens_and_remotes(new_agent):
    agent = new_agent(settings={"limits.tokens_per_session": 3, "limits.remotes_per_session": 2})
    with Side(agent, MIB) as here, Side(agent, MIB, noise(MIB)) as there:
        tokens = [there.region.export() for _ in range(3)]
        names(expect("quota", there.region.export), "limits.tokens_per_session")
        remotes = [here.client.import_token(token) for token in tokens[:2]]
        names(expect("quota", here.client.import_token, tokens[2]), "limits.remotes_per_session")
        remotes.pop().release()
        here.client.import_token(tokens[2])
        there.region.revoke(tokens[0])
        there.region.export()


@pytest.mark.parametrize("key", ["limits.transfers_per_session", "limits.transfers_per_group", "limits.transfers"])
@pytest.mark.parametrize("via", ["inline", "ring"])
def test_transfers(new_agent, key, via):
    agent = new_agent(settings={"limits.transfers_per_owner": 4, key: 4})
    with Side(agent, MIB, wire=True, group="g") as here, Side(agent, MIB, noise(MIB)) as there:
        remote, words = here.reach(there), here.memory.words()
        waiting = [here.client.read(here.region, remote, [(4096 * i + 64, 0, 1000)], via=via, wait_word=(here.region, 0, 1))
                   for i in range(4)]
        error = expect("busy", here.client.read(here.region, remote, [(0, 0, 1)], via=via).result, LIMIT)
        if via == "inline":
            names(error, key)
        waiting.pop().cancel()
        here.client.read(here.region, remote, [(60000, 0, 1)], via=via).result(LIMIT)
        words[0] = 1
        for transfer in waiting:
            transfer.result(LIMIT)
        words.release()


def test_operations(new_agent):
    agent = new_agent(settings={"limits.ops_per_session": 4096})
    with Side(agent, MIB, wire=True) as here, Side(agent, MIB, noise(MIB)) as there:
        remote = here.reach(there)
        waiting = here.client.read(here.region, remote, [(i * 20, 0, 10) for i in range(4000)], wait_word=(here.region, 8, 77))
        error = expect("busy", here.client.read(here.region, remote, [(i, 0, 1) for i in range(97)]).result, LIMIT)
        names(error, "limits.ops_per_session")
        here.client.read(here.region, remote, [(i * 3, 0, 1) for i in range(96)]).result(LIMIT)
        expect("busy", here.client.read(here.region, remote, [(i * 2, 0, 1) for i in range(5000)], via="arena").result, LIMIT)
        waiting.cancel()
        here.client.read(here.region, remote, [(i * 3, 0, 1) for i in range(4096)]).result(LIMIT)


def test_arena(new_agent):
    agent = new_agent(settings={"limits.arena_bytes": "64KiB"})
    with agent.wire() as client:
        names(expect("quota", client.open_ring, 16, 65537), "limits.arena_bytes")
        client.open_ring(16, 65536)


def test_requests(new_agent, lab):
    """The limit on requests that wait for an answer from another agent."""
    agent = new_agent(settings={"limits.requests_per_session": 4}, key=lab.key)
    token = unreachable_token(agent.host)
    with agent.wire() as client:
        pending = [client.import_token(token, timeout=20, wait=False) for _ in range(4)]
        client.process()
        if any(p.done() for p in pending):
            pytest.skip("this host reports at once that the address cannot be reached")
        names(expect({"busy", "quota"}, client.import_token, token, timeout=5), "limits.requests_per_session")


def notify_until_refused(remote):
    for sent in range(10000):
        try:
            remote.notify(sent, bytes(4096))
        except dray.errors.NotifyRefused:
            return sent
    raise AssertionError("no limit")


def test_notifications(new_agent):
    """When the queue of a client that does not read is full, senders get notify_refused."""
    agent = new_agent(settings={"limits.notifications_per_session": 4})
    with Side(agent, MIB) as here, Side(agent, MIB, notifications=True) as there:
        remote = here.reach(there)
        sent = notify_until_refused(remote)
        assert sent >= 4
        for i in range(sent):
            assert there.client.next_notification(LIMIT).tag == i
        until(lambda: not isinstance(try_notify(remote), dray.Error), "room for a notification")
        assert there.client.next_notification(LIMIT).tag == 4242


def test_notifications_of_a_session_that_ends(new_agent):
    """Those that it has not read count no longer."""
    agent = new_agent(settings={"limits.notifications": 8})
    with Side(agent, MIB) as here, Side(agent, MIB, group="g") as there:
        reader = Raw(agent, hello=False)
        reader.ask(s.pack_hello, major_min=1, major_max=1, group="g", flags=s.HELLO_FLAG_NOTIFICATIONS)
        notify_until_refused(here.reach(there))
        reader.sock.close()
        wait_for_release(agent, "notifications")


def try_notify(remote):
    try:
        return remote.notify(4242)
    except dray.errors.NotifyRefused as e:
        return e


def test_grants(new_pair):
    a, b = new_pair(limits__grants_per_peer=4)  # half of it for one owner
    with Side(a, MIB) as here, Side(b, MIB, noise(MIB)) as there:
        remotes = [here.reach(there) for _ in range(2)]
        names(expect("quota", here.reach, there), "limits.grants_per_peer")
        remotes.pop().release()
        until(lambda: not isinstance(try_reach(here, there), dray.Error), "room for a grant")


def try_reach(here, there):
    try:
        return here.reach(there)
    except dray.errors.Quota as e:
        return e


def test_peers(new_agent, lab):
    """With limits.peers = 1, a second peer is refused."""
    one = new_agent("one", key=lab.key, settings={"limits.peers": 1})
    with Side(new_agent("two", key=lab.key), MIB) as two, Side(new_agent("three", key=lab.key), MIB) as three, \
            Side(one, MIB) as here:
        here.reach(two)
        names(expect("quota", here.client.import_token, three.export(), timeout=LIMIT), "limits.peers")
        here.reach(two)


def test_uid_and_gid_lists(new_agent):
    """The kernel's uid and gid of a client decide whether it may open a session."""
    refused = new_agent("refused", settings={"data.allow_uids": "4242,4243"})
    expect("denied", refused.client)
    expect("denied", new_agent("gids", settings={"data.allow_gids": "4242"}).client)
    import os
    uid = "0" if refused.lab.userns else str(os.getuid())
    with new_agent("allowed", settings={"data.allow_uids": f"4242,{uid}"}).client():
        pass


def test_socket_mode(new_agent):
    agent = new_agent(settings={"data.mode": "0600", "control.mode": "0640"})
    assert agent.socket.stat().st_mode & 0o777 == 0o600
    assert agent.control.stat().st_mode & 0o777 == 0o640
