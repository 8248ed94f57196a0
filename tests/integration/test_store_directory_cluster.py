# SPDX-License-Identifier: Apache-2.0
"""The directory of stores in a cluster of redis-servers: slots of several servers, redirections, and servers that are lost."""

import signal

import pytest
from dray import Status
from redis_server import Cluster, name_of
from harness import until
from test_store import User, counters
from test_store_directory import agents, entered, finds, state  # noqa: F401
from test_store_directory_doctor import finding

KEYS = [b"%d" % i for i in range(200)]


@pytest.fixture
def new_cluster(lab):
    made = []

    def make(prefix="dray", **how):
        made.append(Cluster(lab, **how))
        made[-1].of(f"{prefix}:since")[0].command("SET", f"{prefix}:since", "1")
        return made[-1]
    yield make
    for cluster in made:
        cluster.kill()


def named(agent):
    return counters(agent)["dray_store_directory_named_total"]


def unknown(agent):
    return counters(agent)["dray_store_directory_unknown_total"]


def knows_all(agent, user):
    """No key of a new batch is unknown to it, wherever it is entered."""
    before = unknown(agent)
    assert not any(r.status == Status.OK for r in user.store.exists([b"none%d" % i for i in range(50)], lease=1.0))
    return unknown(agent) == before


def test_each_key_at_its_server(new_cluster, agents):  # noqa: F811
    """The agents are told of one server, and find the others."""
    cluster = new_cluster()
    a, b = agents(cluster.nodes[0].url, "a", "b")
    with User(a, space="kv") as there, User(b, space="kv") as here:
        for key in KEYS:
            assert there.put(key, b"value") == Status.OK
        until(lambda: all(cluster.owners(key) == [a.listen[0]] for key in KEYS), "all entries")
        assert all(node.command("DBSIZE") > 20 for node in cluster.primaries)
        until(lambda: knows_all(b, here), "all servers")
        before = named(b), unknown(b)
        finds(here, **{key.decode(): b"value" for key in KEYS})
        assert named(b) >= before[0] + len(KEYS) and unknown(b) == before[1]
        there.store.remove(KEYS)
        here.store.remove(KEYS)
        until(lambda: not any(cluster.owners(key) for key in KEYS), "the removal of all entries")


def test_slot_that_moves(new_cluster, agents):  # noqa: F811
    """While it moves, its keys are at either server (ASK); then at the other one (MOVED)."""
    prefix = "{one}slot"
    cluster = new_cluster(prefix=prefix)
    source, slot = cluster.of(prefix)
    target = next(n for n in cluster.primaries if n is not source)
    a, b = agents(target.url, "a", "b", store__directory_prefix=prefix)
    with User(a, space="kv") as there, User(b, space="kv") as here:
        assert there.put(b"before", b"value") == Status.OK
        entered(source, b"before", a, prefix=prefix)
        until(lambda: here.get(b"before") == b"value", "the object")
        entered(source, b"before", a, b, prefix=prefix)
        ids = {node: node.command("CLUSTER", "MYID") for node in (source, target)}
        target.command("CLUSTER", "SETSLOT", slot, "IMPORTING", ids[source])
        source.command("CLUSTER", "SETSLOT", slot, "MIGRATING", ids[target])
        assert there.put(b"during", b"value") == Status.OK
        until(lambda: target_has(target, name_of(b"during", prefix=prefix)), "the entry at the other server")
        asked, before = unknown(b), named(b)
        finds(here, during=b"value")
        assert named(b) > before and unknown(b) == asked
        for key in source.command("CLUSTER", "GETKEYSINSLOT", slot, 100):
            source.command("MIGRATE", "127.0.0.1", target.port, key, 0, 5000)
        for node in (target, source, *(n for n in cluster.primaries if n not in (source, target))):
            node.command("CLUSTER", "SETSLOT", slot, "NODE", ids[target])
        assert there.put(b"after", b"value") == Status.OK
        entered(target, b"after", a, prefix=prefix)
        before = named(b)
        finds(here, after=b"value")
        assert named(b) > before


def target_has(node, name):
    with_asking = node.commands(("ASKING",), ("EXISTS", name))
    return with_asking[1] == 1


def test_lost_server(new_cluster, agents):  # noqa: F811
    """Keys of its slots are asked for everywhere, those of the others are not."""
    cluster = new_cluster()
    a, b = agents(cluster.nodes[0].url, "a", "b")
    with User(a, space="kv") as there, User(b, space="kv") as here:
        for key in KEYS:
            assert there.put(key, b"value") == Status.OK
        until(lambda: all(cluster.owners(key) == [a.listen[0]] for key in KEYS), "all entries")
        assert here.get(b"none") == Status.NOT_FOUND
        cluster.nodes[2].kill()
        finds(here, **{key.decode(): b"value" for key in KEYS})
        assert named(b) > 50 and unknown(b) > 20
        state(b, "ok")
        until(lambda: finding(b.control)["severity"] == "warning" and "is not connected" in finding(b.control)["text"], "the doctor's warning")
        cluster.nodes[0].kill()
        cluster.nodes[1].kill()
        state(b, "down")
        assert there.put(b"more", b"value") == Status.OK
        finds(here, more=b"value")


def test_one_server_in_place_of_the_cluster(new_cluster, agents):  # noqa: F811
    """It has all keys then."""
    cluster = new_cluster()
    server = cluster.nodes[0]
    a, _ = agents(server.url, "a", "b")
    with User(a, space="kv") as user:
        for key in KEYS:
            assert user.put(key, b"value") == Status.OK
        until(lambda: all(cluster.owners(key) == [a.listen[0]] for key in KEYS), "all entries")
        cluster.kill()
        state(a, "down")
        server.options = []
        server.start()
        until(lambda: all(server.owners(key) == [a.listen[0]] for key in KEYS), "all entries at the server")
        state(a, "ok")


def test_server_is_lost_while_entries_wait(new_cluster, agents):  # noqa: F811
    """Entries for it were all that might wait for an answer. Those of the other servers go on when it is lost."""
    cluster = new_cluster()
    a, _ = agents(cluster.nodes[1].url, "a", "b")
    lost, other = cluster.nodes[:2]
    keys = [(key, cluster.of(name_of(key))[0]) for key in (b"of %d" % i for i in range(2000))]
    with User(a, space="kv") as user:
        for key in KEYS:
            assert user.put(key, b"value") == Status.OK
        until(lambda: all(cluster.owners(key) == [a.listen[0]] for key in KEYS), "all servers")
        lost.signal(signal.SIGSTOP)
        for key, server in keys:
            if server is lost:
                assert user.put(key, b"value") == Status.OK
        key = next(key for key, server in keys if server is other)
        assert user.put(key, b"value") == Status.OK
        until(lambda: counters(a)["dray_store_directory_entered_total"] >= len(KEYS) + 512, "as many as may wait")
        lost.kill()
        entered(other, key, a)


def test_replica_takes_over(new_cluster, agents):  # noqa: F811
    """The entries of its slots are used again, and new ones get there."""
    cluster = new_cluster(replica=True)
    a, b = agents(cluster.nodes[1].url, "a", "b")
    replica = cluster.nodes[-1]
    mine = [key for key in KEYS if cluster.of(name_of(key))[0] is cluster.nodes[0]]
    with User(a, space="kv") as there, User(b, space="kv") as here:
        assert there.put(mine[0], b"value") == Status.OK
        entered(cluster.nodes[0], mine[0], a)
        until(lambda: replica.command("DBSIZE") >= 1, "the replica's data")
        cluster.nodes[0].kill()
        until(lambda: "role:master" in replica.command("INFO", "replication"), "the new primary")
        assert there.put(mine[1], b"value") == Status.OK
        entered(replica, mine[1], a)
        until(lambda: here.get(mine[0]) == b"value" and here.get(mine[1]) == b"value", "the objects")

        def seen():
            here.store.remove([mine[1]])
            before = named(b)
            return here.get(mine[1]) == b"value" and named(b) == before + 1
        until(seen, "an entry of the new primary")
