# SPDX-License-Identifier: Apache-2.0
"""The directory of the stores of several agents in redis: who is asked, entries that come and go, and every way in which it fails."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import threading

import pytest
from dray import Status
from harness import LIMIT, until
from redis_server import Error, Redis, name_of
from test_store import User, counters
from test_store_peers import STORE, value_of

KNOWN = ("SET", "dray:since", "1")  # the directory has had its entries for long


@pytest.fixture
def new_redis(lab):
    made = []

    def make(complete=True, **how):
        made.append(Redis(lab, **how))
        if complete:
            made[-1].command(*KNOWN)
        return made[-1]
    yield make
    for redis in made:
        redis.kill()


@pytest.fixture
def agents(new_agent):
    """Agents that lend, of which each asks the others, with one directory."""
    def make(url, *names, wait="ok", **settings):
        settings = {k.replace("__", "."): v for k, v in settings.items()}
        made = [new_agent(name, start=False, args=["--allow-insecure"],
                          settings=STORE | {"store.lend": "true", "store.directory": url, "store.directory_timeout": "10s"} | settings) for name in names]
        for agent in made:
            agent.settings["store.peers"] = ",".join(other.listen[0] for other in made if other is not agent)
        for agent in made:
            agent.start()
        for agent in made:
            until(lambda a=agent: [p["state"] for p in a.ctl("peers", "--json")["peers"]].count("ready") == len(made) - 1, "connections")
            if wait:
                state(agent, wait)
        return made
    return make


def state(agent, wanted):
    """Waits for a state of the directory. A name space is needed to show it."""
    down = 0 if wanted == "ok" else 1
    until(lambda: counters(agent)["dray_store_directory_down"] == down, f"the directory's state {wanted}")
    if spaces := agent.ctl("store", "--json")["store_spaces"]:
        until(lambda: {s["directory_state"] for s in agent.ctl("store", "--json")["store_spaces"]} == {wanted}, f"the state {wanted}: {spaces}")


def entered(redis, key, *agents, **how):
    wanted = sorted(a.listen[0] for a in agents)
    until(lambda: redis.owners(key, **how) == wanted, f"the entries {wanted} of {key}")


def finds(user, **objects):
    """Other agents have these objects. One that is busy may not answer in time, and is asked again."""
    for key, value in objects.items():
        until(lambda k=key.encode(), v=value: user.get(k) == v, f"object {key}")


def test_it_says_who_is_asked(new_redis, agents):
    """A key that it knows nobody for is not found, although an agent of store.peers has it; one that it knows is."""
    redis = new_redis()
    a, b, c = agents(redis.url, "a", "b", "c")
    with User(a, space="kv") as at_a, User(b, space="kv") as at_b, User(c, space="kv") as here:
        assert at_a.put(b"one", value_of("one")) == Status.OK
        assert at_b.put(b"two", value_of("two")) == Status.OK and at_b.put(b"hidden", b"value") == Status.OK
        for key, agent in ((b"one", a), (b"two", b), (b"hidden", b)):
            entered(redis, key, agent)
        redis.command("DEL", name_of(b"hidden"))
        assert here.get(b"hidden") == Status.NOT_FOUND
        finds(here, one=value_of("one"), two=value_of("two"))
        assert here.has(b"none") == [False]
        after = counters(c)
        assert after["dray_store_directory_named_total"] >= 2
        assert after["dray_store_directory_asked_total"] == after["dray_store_directory_named_total"] + 1
        assert after["dray_store_directory_unknown_total"] == 0 and after["dray_store_directory_wait_total"] > 0
        assert after["dray_store_directory_stale_total"] == 0
        # a copy is an object that others may ask for
        entered(redis, b"one", a, c)
        redis.command("ZADD", name_of(b"hidden"), 1 << 50, b.listen[0])
        finds(here, hidden=b"value")
        assert here.store.exists([b"none"], lease=1.0)[0].status == Status.NOT_FOUND


def test_entries_come_and_go(new_redis, agents):
    """With PUT, REMOVE and eviction; neither key nor name space can be read there."""
    redis = new_redis()
    a, _ = agents(redis.url, "a", "b", store__directory_prefix="some:where", store__directory_expiry="10min", store__policy="lru")
    with User(a, space="kv") as user, User(a, space="apart") as apart, User(a) as own:
        assert user.put(b"key", b"value") == Status.OK and apart.put(b"key", b"value") == Status.OK and own.put(b"key", b"value") == Status.OK
        entered(redis, b"key", a, prefix="some:where")
        entered(redis, b"key", a, space="apart", prefix="some:where")
        assert sorted(redis.command("KEYS", "some:where:*")) == sorted(
            [name_of(b"key", s, "some:where") for s in ("kv", "apart")] + ["some:where:since"])
        assert 500_000 < redis.command("PTTL", name_of(b"key", prefix="some:where")) <= 600_000
        user.store.remove([b"key"])
        entered(redis, b"key", prefix="some:where")
        entered(redis, b"key", a, space="apart", prefix="some:where")
        for i in range(20):
            assert user.put(b"%d" % i, value_of(i, 1_000_000)) == Status.OK
        kept = [i for i in range(20) if user.has(b"%d" % i)[0]]
        assert 0 < len(kept) < 20
        for i in range(20):
            entered(redis, b"%d" % i, *([a] if i in kept else []), prefix="some:where")


def test_entries_are_renewed(new_redis, agents):
    """While the agent runs; those of an agent that is killed end by themselves."""
    redis = new_redis()
    a, b = agents(redis.url, "a", "b", store__directory_expiry="2s")
    with User(a, space="kv") as there, User(b, space="kv") as here:
        assert there.put(b"one", b"value") == Status.OK
        entered(redis, b"one", a)
        first = redis.command("ZSCORE", name_of(b"one"), a.listen[0])
        until(lambda: float(redis.command("ZSCORE", name_of(b"one"), a.listen[0])) > float(first) + 2500, "two renewals")
        finds(here, one=b"value")
        entered(redis, b"one", a, b)
        a.kill()
        entered(redis, b"one", b)
    b.stop()
    entered(redis, b"one")
    a.start()


def test_stale_entry(new_redis, agents):
    """It costs a lookup in vain, and is removed. Another agent's entry of the same key stays."""
    redis = new_redis()
    a, b, c = agents(redis.url, "a", "b", "c")
    with User(a, space="kv"), User(b, space="kv") as at_b, User(c, space="kv") as here:
        redis.command("ZADD", name_of(b"gone"), 1 << 50, a.listen[0])
        until(lambda: here.get(b"gone") == Status.NOT_FOUND and redis.owners(b"gone") == [], "the removal of the entry")
        assert counters(c)["dray_store_directory_stale_total"] == 1
        assert at_b.put(b"moved", b"value") == Status.OK
        entered(redis, b"moved", b)
        redis.command("ZADD", name_of(b"moved"), 1 << 50, a.listen[0])
        finds(here, moved=b"value")
        # an entry whose time is over is not looked at
        redis.command("ZADD", name_of(b"late"), 1, a.listen[0])
        assert here.get(b"late") == Status.NOT_FOUND and redis.owners(b"late") == [a.listen[0]]


def test_stale_entry_that_ends_with_another_one(new_redis, agents):
    """Of the entries of a key, an agent uses four. The fourth one, which is stale, and the fifth one end at the same time, and both stay."""
    redis = new_redis()
    a, c = agents(redis.url, "a", "c")
    fifth = "1.1.1.1:5"  # sorts before agent a
    with User(a, space="kv"), User(c, space="kv") as here:
        for i in range(3):
            redis.command("ZADD", name_of(b"tied"), (1 << 50) + 1 + i, f"1.1.1.1:{i + 1}")
        for agent in a.listen[0], fifth:
            redis.command("ZADD", name_of(b"tied"), 1 << 50, agent)
        assert here.get(b"tied") == Status.NOT_FOUND
        assert counters(c)["dray_store_directory_stale_total"] == 1
        # behind a removal, on the same connection
        assert here.has(b"none") == [False]
        assert {fifth, a.listen[0]} <= set(redis.owners(b"tied"))
        # without the fifth one it can be removed by its time
        redis.command("ZREM", name_of(b"tied"), fifth)
        until(lambda: here.get(b"tied") == Status.NOT_FOUND and a.listen[0] not in redis.owners(b"tied"), "the removal of the entry")


def test_an_entry_that_is_made_anew(new_redis, agents):
    """An entry that was stale, and that its agent has made again before it is removed, stays."""
    redis = new_redis()
    a, c = agents(redis.url, "a", "c", store__peer_timeout="10s", peer__heartbeat_limit="20s")
    with User(a, space="kv"), User(c, space="kv") as here:
        redis.command("ZADD", name_of(b"again"), 1 << 50, a.listen[0])
        a.process.send_signal(signal.SIGSTOP)
        try:
            get = threading.Thread(target=here.get, args=(b"again",))
            get.start()
            until(lambda: counters(c)["dray_store_directory_named_total"] == 1, "the question to the agent")
            redis.command("ZADD", name_of(b"again"), (1 << 50) + 1, a.listen[0])
        finally:
            a.process.send_signal(signal.SIGCONT)
        get.join()
        assert counters(c)["dray_store_directory_stale_total"] == 1
        # behind the removal, on the same connection
        assert here.has(b"none") == [False]
        assert redis.owners(b"again") == [a.listen[0]]


@pytest.mark.parametrize("entry", ["203.0.113.7:7411", "example.com:7411", "", "x" * 5000, "10.0.0.1:0", "\r\n*1\r\n", b"\xff\x00\x01"])
def test_entries_of_strangers(new_redis, agents, entry):
    """An address is used only if it is that of an agent in store.peers."""
    redis = new_redis()
    a, b = agents(redis.url, "a", "b")
    with User(a, space="kv") as there, User(b, space="kv") as here:
        redis.command("ZADD", name_of(b"key"), 1 << 50, entry)
        assert here.get(b"key") == Status.NOT_FOUND
        assert there.put(b"key", b"value") == Status.OK
        until(lambda: here.get(b"key") == b"value", "the object")
        assert b.ctl("store", "--json")["store_spaces"][0]["directory_state"] == "ok"


def test_agents_that_are_allowed(new_redis, new_agent):
    """An agent that is in no list of peers is connected to when the directory names it, if its network is allowed."""
    redis = new_redis()
    common = STORE | {"store.lend": "true", "store.directory": redis.url, "store.directory_timeout": "10s"}
    a = new_agent("a", settings=common, args=["--allow-insecure"])
    b = new_agent("b", settings=common | {"store.directory_agents": "10.0.0.0/8,127.0.0.0/8"}, args=["--allow-insecure"])
    c = new_agent("c", settings=common | {"store.directory_agents": "10.0.0.0/8"}, args=["--allow-insecure"])
    with User(a, space="kv") as there, User(b, space="kv") as here, User(c, space="kv") as apart:
        assert there.put(b"key", b"value") == Status.OK
        entered(redis, b"key", a)
        redis.command("ZADD", name_of(b"key"), 1 << 50, "192.0.2.1:1")
        until(lambda: here.get(b"key") == b"value", "the object, once its agent is connected")
        assert [p["segment"] for p in b.ctl("peers", "--json")["peers"]] == [a.listen[0]]
        assert apart.get(b"key") == Status.NOT_FOUND and not c.ctl("peers", "--json")["peers"]
        # without the directory, those that it has named are asked
        redis.command("ZREM", name_of(b"key"), "192.0.2.1:1")
        entered(redis, b"key", a, b)
        redis.kill()
        state(b, "down")
        assert there.put(b"more", b"value") == Status.OK
        finds(here, more=b"value")


def test_another_type_under_the_key(new_redis, agents):
    """Such a key is asked for everywhere, and others are as before."""
    redis = new_redis()
    a, b = agents(redis.url, "a", "b")
    with User(a, space="kv") as there, User(b, space="kv") as here:
        for kind in (("SET", name_of(b"key"), "text"), ("HSET", name_of(b"hash"), "f", "v")):
            redis.command(*kind)
        for key in (b"key", b"hash", b"other"):
            assert there.put(key, key) == Status.OK
        entered(redis, b"other", a)
        finds(here, key=b"key", hash=b"hash", other=b"other")
        assert redis.command("GET", name_of(b"key")) == "text"
        assert counters(b)["dray_store_directory_unknown_total"] >= 2
        assert counters(a)["dray_store_directory_errors_total"] >= 2
        state(a, "ok")
        state(b, "ok")


def test_killed_and_empty(new_redis, agents):
    """Without it all agents are asked; when it is back, it gets all entries again, and is not believed until it has them."""
    redis = new_redis()
    a, b = agents(redis.url, "a", "b")
    with User(a, space="kv") as there, User(b, space="kv") as here:
        for i in range(500):
            assert there.put(b"%d" % i, b"value") == Status.OK
        entered(redis, b"499", a)
        redis.kill()
        state(a, "down")
        state(b, "down")
        finds(here, **{"1": b"value"})
        assert here.get(b"none") == Status.NOT_FOUND
        assert re.search(r"the directory is not used: 127\.0\.0\.1:\d+: .*; all of store\.peers are asked", b.text())
        assert there.put(b"meanwhile", b"value") == Status.OK
        there.store.remove([b"0"])
        redis.start()
        state(a, "ok")
        state(b, "ok")
        # the entry may not be there yet
        finds(here, **{"2": b"value"})
        for key in (b"meanwhile", b"5", b"499"):
            entered(redis, key, a)
        assert redis.owners(b"0") == []
        until(lambda: len(redis.command("KEYS", "dray:*")) >= 501, "all entries")
        events = [e for e in b.ctl("events", "--json")["events"] if e["subject"] == "directory"]
        assert {(e["old"], e["new"]) for e in events} >= {("down", "ok"), ("ok", "down")}
        assert "  directory     not used" not in b.ctl("status")


def test_since_is_in_the_future(new_redis, agents):
    """Another agent's clock was ahead, or the server's has been set back: after a while the directory is believed all the same."""
    redis = new_redis(complete=False)
    redis.command("SET", "dray:since", 1 << 50)
    a, b = agents(redis.url, "a", "b")
    with User(a, space="kv") as there, User(b, space="kv") as here:
        assert there.put(b"hidden", b"value") == Status.OK
        entered(redis, b"hidden", a)
        redis.command("DEL", name_of(b"hidden"))
        until(lambda: here.store.exists([b"hidden"], lease=0.1)[0].status == Status.NOT_FOUND, "the directory is believed")


def test_stopped(new_redis, agents):
    """A server that does not answer delays no GET for longer than the limit, and is given up after a while."""
    redis = new_redis()
    a, b = agents(redis.url, "a", "b", store__directory_timeout="20ms")
    with User(a, space="kv") as there, User(b, space="kv") as here:
        for i in range(40):
            assert there.put(b"%d" % i, b"value") == Status.OK
        entered(redis, b"39", a)
        redis.signal(signal.SIGSTOP)
        finds(here, **{str(i): b"value" for i in range(40)})
        assert counters(b)["dray_store_directory_unknown_total"] > 0
        state(b, "down")
        assert "it has not answered for 2s" in b.text()
        assert "directory     not used" in b.ctl("status")
        redis.signal(signal.SIGCONT)
        state(b, "ok")


def test_full(new_redis, agents):
    """A server without memory takes no entries, so all agents are asked, until it does again."""
    redis = new_redis(options=("maxmemory-policy", "noeviction"))
    a, b = agents(redis.url, "a", "b")
    with User(a, space="kv") as there, User(b, space="kv") as here:
        assert there.put(b"before", b"value") == Status.OK
        entered(redis, b"before", a)
        redis.command("CONFIG", "SET", "maxmemory", "1")
        assert there.put(b"one", b"value") == Status.OK and here.put(b"two", b"value") == Status.OK
        state(a, "refusing")
        state(b, "refusing")
        assert "give it more memory" in a.text()
        assert redis.owners(b"one") == []
        finds(here, one=b"value")
        finds(there, two=b"value")
        redis.command("CONFIG", "SET", "maxmemory", "0")
        state(a, "ok")
        state(b, "ok")
        entered(redis, b"one", a, b)
        entered(redis, b"two", a, b)


def test_full_from_the_start(new_redis, agents):
    """The agents cannot learn since when it has entries. They ask for that again, so that it is believed when it has memory."""
    redis = new_redis(complete=False, options=("maxmemory-policy", "noeviction", "maxmemory", "1"))
    a, b = agents(redis.url, "a", "b")
    with User(a, space="kv"), User(b, space="kv") as here:
        def unknown():
            before = counters(b)["dray_store_directory_unknown_total"]
            assert here.get(b"none") == Status.NOT_FOUND
            return counters(b)["dray_store_directory_unknown_total"] > before

        assert unknown()
        redis.command("CONFIG", "SET", "maxmemory", "0")
        redis.command(*KNOWN)
        until(lambda: not unknown(), "the directory is believed")


@pytest.mark.parametrize("lend", ["true", "false"])
def test_replica(new_redis, agents, lend):
    """It is not used, whether the agent has something to enter or not."""
    redis = new_redis(complete=False, options=("replicaof", "127.0.0.1 1"))
    a, = agents(redis.url, "a", wait="", store__lend=lend)
    with User(a, space="kv") as user:
        assert user.put(b"key", b"value") == Status.OK
        until(lambda: counters(a)["dray_store_directory_errors_total"] > 4, "several attempts")
        state(a, "down")
        assert "the server is a replica" in a.text()
        assert not [e for e in a.ctl("events", "--json")["events"] if e["subject"] == "directory" and e["new"] == "ok"]
        redis.command("REPLICAOF", "NO", "ONE")
        state(a, "ok")


def test_script_that_does_not_end(new_redis, agents):
    """What the server has refused meanwhile is entered, and removed, when it answers again."""
    redis = new_redis(options=("busy-reply-threshold", "1"))
    a, _ = agents(redis.url, "a", "b")
    with User(a, space="kv") as user:
        assert user.put(b"old", b"value") == Status.OK
        entered(redis, b"old", a)
        script = threading.Thread(target=lambda: pytest.raises(Error, redis.command, "EVAL", "while true do end", "0"))
        script.start()

        def is_busy():
            try:
                return redis.command("PING") != "PONG"
            except Error as e:
                return "BUSY" in str(e)
        try:
            until(is_busy, "the script")
            errors = counters(a)["dray_store_directory_errors_total"]
            user.store.remove([b"old"])
            until(lambda: counters(a)["dray_store_directory_errors_total"] > errors, "the refusal of a removal")
            assert user.put(b"new", b"value") == Status.OK
            until(lambda: counters(a)["dray_store_directory_errors_total"] >= errors + 3, "further refusals")
        finally:
            redis.command("SCRIPT", "KILL")
            script.join(LIMIT)
        entered(redis, b"new", a)
        entered(redis, b"old")
        assert "a script keeps the server busy" in a.text()


def test_removed_while_it_stopped(new_redis, agents):
    """More removals than may wait for an answer: those that nobody has told it are told by the next connection, which has nothing to enter."""
    redis = new_redis()
    a, _ = agents(redis.url, "a", "b", store__directory_timeout="20ms")
    keys = [b"%d" % i for i in range(1500)]
    with User(a, space="kv") as user:
        for key in keys:
            assert user.put(key, b"value") == Status.OK
        until(lambda: len(redis.command("KEYS", "dray:*")) == len(keys) + 1, "all entries")
        redis.signal(signal.SIGSTOP)
        for i in range(0, len(keys), 500):
            user.store.remove(keys[i:i + 500])
        state(a, "down")
        redis.signal(signal.SIGCONT)
        until(lambda: counters(a)["dray_store_directory_removed_total"] == len(keys), "all removals")
        until(lambda: redis.owners(keys[-1]) == [], "the last one")


def test_removed_while_it_is_lost(new_redis, agents):
    """Of removals without an answer, and of those while the server is away, it learns when it is back with its former entries."""
    redis = new_redis()
    a, _ = agents(redis.url, "a", "b")
    with User(a, space="kv") as user:
        for key in (b"one", b"two", b"kept", b"again"):
            assert user.put(key, b"value") == Status.OK
            entered(redis, key, a)
        redis.command("SAVE")
        redis.signal(signal.SIGSTOP)
        user.store.remove([b"one", b"again"])
        until(lambda: counters(a)["dray_store_directory_removed_total"] == 2, "removals that are sent")
        redis.process.kill()
        redis.process.wait()
        state(a, "down")
        user.store.remove([b"two"])
        assert user.put(b"again", b"value") == Status.OK
        redis.start()
        state(a, "ok")
        entered(redis, b"one")
        entered(redis, b"two")
        until(lambda: counters(a)["dray_store_directory_entered_total"] >= 4 + 2, "a listing")
        entered(redis, b"kept", a)
        entered(redis, b"again", a)


@pytest.mark.skipif("DRAY_LONG" not in os.environ, reason="make check-long waits for a renewal")
def test_refused_while_others_are_renewed(new_redis, agents):
    """What the server has not taken is entered when it takes entries again, not only after those that are being renewed."""
    redis = new_redis(options=("maxmemory-policy", "noeviction"))
    a, _ = agents(redis.url, "a", "b", store__directory_expiry="130s")
    with User(a, space="kv") as user:
        for i in range(1000):
            assert user.put(b"%d" % i, b"value") == Status.OK
        entered(redis, b"999", a)
        begin = counters(a)["dray_store_directory_entered_total"]
        until(lambda: counters(a)["dray_store_directory_entered_total"] > begin, "a renewal", limit=60)
        redis.command("CONFIG", "SET", "maxmemory", "1")
        for i in range(1000, 1050):
            assert user.put(b"%d" % i, b"value") == Status.OK
        state(a, "refusing")
        redis.command("CONFIG", "SET", "maxmemory", "0")
        until(lambda: all(redis.owners(b"%d" % i) for i in range(1000, 1050)), "the entries that it has refused")


def test_restarts_under_load(new_redis, agents):
    """Killed and restarted while objects are put and read: each GET has the right bytes or says that there is none."""
    redis = new_redis(complete=False)
    a, b = agents(redis.url, "a", "b", store__directory_timeout="50ms")
    wrong, ends = [], threading.Event()

    def load(agent, other):
        with User(agent, space="kv") as user:
            for i in range(100_000):
                if ends.is_set():
                    return
                mine, theirs = f"{agent.name}{i}".encode(), f"{other.name}{i}".encode()
                put, got = user.put(mine, value_of(mine, 3000)), user.get(theirs)
                if put not in (Status.OK, Status.BUSY) or got not in (Status.NOT_FOUND, Status.BUSY, value_of(theirs, 3000)):
                    wrong.append((mine, put, got))

    threads = [threading.Thread(target=load, args=pair) for pair in ((a, b), (b, a))]
    for t in threads:
        t.start()
    try:
        for _ in range(4):
            redis.restart()
            state(a, "ok")
            redis.signal(signal.SIGSTOP)
            until(lambda: counters(a)["dray_store_directory_unknown_total"] and counters(b)["dray_store_directory_unknown_total"])
            redis.signal(signal.SIGCONT)
            state(b, "ok")
    finally:
        ends.set()
        for t in threads:
            t.join(LIMIT)
    assert not wrong, wrong[:5]
    assert counters(a)["dray_store_remote_hits_total"] + counters(b)["dray_store_remote_hits_total"] > 0
    with User(a, space="kv") as there:
        assert there.put(b"last", b"value") == Status.OK
        entered(redis, b"last", a)


@pytest.mark.parametrize("given, words", [("", "wants a password"), ("wrong\n", "refuses this agent"), ("right\n", "")])
def test_password(new_redis, agents, lab, given, words):
    """From a file; without the right one the reason and the remedy are in the log, and the password is not."""
    redis = new_redis(password="right")
    settings = {"store__directory_password_file": lab.write("password", given, 0o600)} if given else {}
    a, b = agents(redis.url, "a", "b", wait="", **settings)
    with User(a, space="kv") as there, User(b, space="kv") as here:
        assert there.put(b"key", b"value") == Status.OK
        if words:
            until(lambda: words in a.text(), "the reason")
            assert "store.directory_password_file" in a.text() and "down" in a.ctl("store")
            assert "wrong" not in a.text()
        else:
            entered(redis, b"key", a)
        finds(here, key=b"value")


def test_user_and_database(new_redis, agents, lab):
    """A user with the rights that docs/store.md names is enough."""
    redis = new_redis(complete=False)
    redis.command("ACL", "SETUSER", "agent", "on", ">pass", "~dray:*", "-@all", "+time", "+select", "+set", "+get", "+zadd", "+zrem", "+zrevrangebyscore",
                  "+zremrangebyscore", "+pexpire")
    url = redis.url.replace("//", "//agent@") + "/3"
    a, b = agents(url, "a", "b", store__directory_password_file=lab.write("password", "pass", 0o600))
    with User(a, space="kv") as there, User(b, space="kv") as here:
        assert there.put(b"key", b"value") == Status.OK
        until(lambda: "db3:keys=2" in redis.command("INFO", "keyspace"), "the entry")
        finds(here, key=b"value")
        redis.command("ACL", "SETUSER", "agent", "-zadd")
        assert there.put(b"more", b"value") == Status.OK and here.put(b"other", b"value") == Status.OK
        state(a, "refusing")
        state(b, "refusing")
        assert "ZADD" in a.text()
        finds(here, more=b"value")


GARBAGE = [b"\0", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"+OK\r\n" * 100, b"*2147483647\r\n", b"$100000000\r\n" + b"x" * 200_000, b"*1\r\n*1\r\n*1\r\n",
           b"*2\r\n$10\r\n9999999999\r\n:0\r\n", b"-ERR " + b"y" * 100_000, b":1\r\n", b"-LOADING Redis is loading\r\n", b"",
           b"*2\r\n$10\r\n1795000000\r\n$1\r\n0\r\n" + b"+OK\r\n" * 10 + b"*1\r\n$3\r\nabc\r\n" * 1000,
           b"*2\r\n$10\r\n1795000000\r\n$1\r\n0\r\n" + b"".join(b"-%s %d 127.0.0.1:%d\r\n" % (w, i, 1 + i) for i in range(200) for w in (b"MOVED", b"ASK")),
           b"*2\r\n$10\r\n1795000000\r\n$1\r\n0\r\n-MOVED 1 127.0.0.1:1\r\n+OK\r\n$60000\r\n" + b"a 127.0.0.1:2@1 m - 0 0 1 c 0-16383\n" * 1000]


@pytest.mark.parametrize("answer", GARBAGE, ids=range(len(GARBAGE)))
def test_garbage(lab, agents, answer):
    """A program that sends nonsense: the agents say so, keep their memory, and ask all others."""
    ends = threading.Event()
    with lab.hosts[0].socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()

        def serve():
            while not ends.is_set():
                with contextlib.suppress(OSError), server.accept()[0] as s:
                    s.settimeout(LIMIT)
                    s.recv(100)
                    s.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            a, b = agents(f"redis://127.0.0.1:{server.getsockname()[1]}", "a", "b", wait="")
            with User(a, space="kv") as there, User(b, space="kv") as here:
                until(lambda: counters(b)["dray_store_directory_errors_total"] > 2, "several attempts")
                assert there.put(b"key", b"value") == Status.OK
                finds(here, key=b"value")
                assert here.get(b"none") == Status.NOT_FOUND
                assert "the directory is not used: 127.0.0.1:" in b.text()
                for agent in (a, b):
                    assert agent.rss_anon() < 400 << 20
        finally:
            ends.set()
            server.shutdown(socket.SHUT_RDWR)
            thread.join(LIMIT)


def test_refusals_with_different_words(lab, agents):
    """A server that refuses each entry in other words fills no log."""
    ends, refused = threading.Event(), [0]
    with lab.hosts[0].socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()

        def talk(s):
            with s:
                while data := s.recv(1 << 20):
                    for word in re.findall(rb"\*\d+\r\n\$\d+\r\n(\w+)\r\n", data):
                        refused[0] += word == b"ZADD"
                        s.sendall(b"*2\r\n$10\r\n1795000000\r\n$1\r\n0\r\n" if word == b"TIME" else b"-OOM number %d\r\n" % refused[0])

        def serve():
            while not ends.is_set():
                with contextlib.suppress(OSError):
                    threading.Thread(target=talk, args=server.accept()[:1], daemon=True).start()

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            a, _ = agents(f"redis://127.0.0.1:{server.getsockname()[1]}", "a", "b", wait="")
            with User(a, space="kv") as user:
                for i in range(100):
                    assert user.put(b"%d" % i, b"value") == Status.OK
                state(a, "refusing")
                until(lambda: counters(a)["dray_store_directory_errors_total"] >= 100, "refusals")
                assert a.text().count("takes no entries") == 1
        finally:
            ends.set()
            server.shutdown(socket.SHUT_RDWR)
            thread.join(LIMIT)


def certificates(folder):
    """A CA, a certificate of 127.0.0.1, and another CA that has signed nothing."""
    def run(*argv):
        subprocess.run(["openssl", *map(str, argv)], check=True, capture_output=True, cwd=folder)
    for ca in ("ca", "other"):
        run("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", f"{ca}.key", "-out", f"{ca}.pem", "-subj", f"/CN={ca}", "-days", 30)
    run("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", "server.key", "-out", "server.csr", "-subj", "/CN=server")
    (folder / "ext").write_text("subjectAltName=IP:127.0.0.1\n")
    run("x509", "-req", "-in", "server.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-out", "server.pem", "-days", 30, "-extfile", "ext")
    run("pkey", "-in", "server.key", "-aes128", "-passout", "pass:secret", "-out", "encrypted.key")
    for file in folder.iterdir():
        file.chmod(0o600 if file.suffix == ".key" else 0o644)
    return folder


@pytest.mark.parametrize("ca, cert, words", [("ca", True, ""), ("other", True, "store.directory_ca_file"), ("ca", False, "")], ids=["right", "other", "bare"])
def test_tls(new_redis, agents, lab, ca, cert, words):
    """With a certificate of the agent, which redis wants by default; with a CA that has not signed the server's; without a certificate."""
    folder = certificates(lab.directory("tls"))
    redis = new_redis(tls=["tls-cert-file", folder / "server.pem", "tls-key-file", folder / "server.key", "tls-ca-cert-file", folder / "ca.pem"])
    settings = {"store__directory_ca_file": folder / f"{ca}.pem"}
    if cert:
        settings |= {"store__directory_cert_file": folder / "server.pem", "store__directory_key_file": folder / "server.key"}
    good = cert and not words
    a, b = agents(redis.url, "a", "b", wait="ok" if good else "", **settings)
    with User(a, space="kv") as there, User(b, space="kv") as here:
        assert there.put(b"key", value_of("key")) == Status.OK
        if good:
            entered(redis, b"key", a)
        else:
            until(lambda: "the directory is not used" in a.text() and words in a.text(), "the reason")
            state(a, "down")
        finds(here, key=value_of("key"))


@pytest.mark.parametrize("url, words", [
    ("redis://:secret@10.0.0.1", "store.directory_password_file"), ("http://10.0.0.1", "write redis://"), ("redis://10.0.0.1/x", "number of a database"),
])
def test_wrong_url(new_agent, url, words):
    """The agent does not start, and says what to write, without a password in it."""
    agent = new_agent(start=False, settings=STORE | {"store.directory": url})
    with pytest.raises(AssertionError):
        agent.start()
    assert words in agent.text() and "secret" not in agent.text()
    agent.process = None


def test_file_of_the_password(new_agent, lab):
    """It must not be readable by others; the agent says how to mend it."""
    agent = new_agent(start=False, settings=STORE | {"store.directory": "redis://127.0.0.1:1",
                                                    "store.directory_password_file": lab.write("password", "secret", 0o644)})
    with pytest.raises(AssertionError):
        agent.start()
    assert "chmod 600" in agent.text() and "store.directory_password_file" in agent.text()
    agent.process = None


@pytest.mark.parametrize("cert, key, mode, words", [
    ("server.pem", "server.key", 0o644, "chmod 600"), ("server.pem", "encrypted.key", 0o600, "has a passphrase"), ("server.pem", "ca.key", 0o600, "mismatch"),
    ("server.pem", "server.pem", 0o600, "store.directory_key_file"), ("server.pem", None, 0o600, "needs store.directory_key_file"),
    (None, "server.key", 0o600, "needs store.directory_cert_file"),
], ids=["mode", "passphrase", "other", "no key", "alone", "without"])
def test_file_of_the_key(new_agent, lab, cert, key, mode, words):
    """It must not be readable by others, and must be that of the certificate; neither is of use without the other. The agent does not start, and says why."""
    folder = certificates(lab.directory("tls"))
    settings = {"store.directory": "rediss://127.0.0.1:1", "store.directory_ca_file": folder / "ca.pem"}
    if cert:
        settings["store.directory_cert_file"] = folder / cert
    if key:
        (folder / key).chmod(mode)
        settings["store.directory_key_file"] = folder / key
    agent = new_agent(start=False, settings=STORE | settings)
    with pytest.raises(AssertionError):
        agent.start()
    assert words in agent.text() and "store.directory_" in agent.text()
    agent.process = None


def test_it_needs_no_directory_to_start_and_end(new_agent):
    """Nobody listens there."""
    agent = new_agent(settings=STORE | {"store.lend": "true", "store.directory": "redis://127.0.0.1:1"}, args=["--allow-insecure"])
    with User(agent, space="kv") as user:
        assert user.put(b"key", b"value") == Status.OK and user.get(b"key") == b"value"
    until(lambda: "connecting to 127.0.0.1:1" in agent.text(), "the reason")
    assert os.path.exists(agent.control)
