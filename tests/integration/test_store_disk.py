# SPDX-License-Identifier: Apache-2.0
"""The disk tier of the store: what is evicted from memory, restarts, kill -9, damaged bytes, and a disk that fails."""

import json
import os
import pathlib
import random
import re
import signal
import subprocess
import threading
import time

import pytest
from dray import Status, Tier, errors
from harness import DRAYCTL, LIMIT, MIB, until
from test_http import ask, samples, serve_http, with_http
from test_store import User, tenants

LONG = "DRAY_LONG" in os.environ
KILLS = 1000 if LONG else 3
DISK = {"limits.store_bytes": "8MiB", "limits.store_bytes_per_owner": "8MiB", "store.segment_size": "2MiB",
        "limits.store_disk_bytes": "256MiB", "limits.store_disk_bytes_per_owner": "256MiB"}
SIZE = 300_000


@pytest.fixture
def new_store(new_agent, lab):
    def make(**settings):
        folder = lab.directory("disk")
        agent = with_http(new_agent, lab, settings=DISK | {"store.disk_dir": folder} | {k.replace("__", "."): v for k, v in settings.items()})
        agent.disk = folder
        return agent
    return make


def counters(agent):
    """Over HTTP, which costs less than a run of drayctl."""
    return samples(ask(agent, "/metrics")[2])


def value_of(key, size=SIZE):
    return random.Random(key).randbytes(size)


def settled(agent):
    """All that waits for the disk is there, or was given up."""
    until(lambda: counters(agent)["dray_store_disk_pending_bytes"] == 0, "the writes to the disk tier")
    return counters(agent)


def fill(agent, user, keys, size=SIZE):
    """Puts the objects, a few at a time after those before are on disk."""
    for i, key in enumerate(keys):
        assert user.put(key, value_of(key, size)) == Status.OK
        if i % 5 == 4:
            settled(agent)
    settled(agent)


def load(user, key):
    """The object, once there is room in memory for it."""
    seen = []
    until(lambda: seen.append(user.get(key)) or seen[-1] != Status.BUSY, "room in memory")
    return seen[-1]


def names(n):
    return [b"key %d" % i for i in range(n)]


@pytest.mark.parametrize("write", ["through", "back"])
def test_what_leaves_memory_is_on_disk(new_store, write):
    """50 objects, of which memory holds about 27."""
    agent, keys = new_store(store__disk_write=write), names(50)
    with User(agent) as user:
        fill(agent, user, keys)
        after = counters(agent)
        assert after["dray_store_bytes"] <= 8 * MIB < after["dray_store_disk_bytes"] + after["dray_store_bytes"]
        assert after["dray_store_objects"] == 50 and after["dray_store_evictions_total"] > 10
        assert user.has(*keys) == [True] * 50
        for key in keys:
            assert load(user, key) == value_of(key)
            assert user.put(key, b"other") == Status.EXISTS
        row, = agent.ctl("store", "--json")["store_spaces"]
        assert row["objects"] == 50 and row["disk_objects"] >= 23 and row["disk_state"] == "ok"
        now = counters(agent)
        assert 0 < now["dray_store_disk_hits_total"] <= 50
        own = f'space="",tenant="{row["tenant"]}",uid="{row["uid"]}"'
        hits = {tier: now[f'dray_store_space_hits_total{{{own},tier="{tier}"}}'] for tier in ("memory", "disk")}
        assert hits["disk"] >= now["dray_store_disk_hits_total"] and sum(hits.values()) == row["hits"]
        assert now[f'dray_store_space_misses_total{{{own}}}'] == row["misses"] == 0
        assert now[f'dray_store_space_evictions_total{{{own},tier="memory"}}'] == now["dray_store_evictions_total"]
        removed = user.store.remove(keys)
        assert [r.status for r in removed] == [Status.OK] * 50
        assert user.has(*keys) == [False] * 50
        until(lambda: counters(agent)["dray_store_disk_bytes"] == 0, "the removal from disk")
        until(lambda: not any(f.stat().st_blocks for f in agent.disk.glob("segment-*")), "the blocks of the file system")


def test_a_batch_of_both_tiers(new_store):
    """One GET has objects from memory, from disk, and unknown ones; a removal in between takes none away."""
    agent, keys = new_store(store__log="batch", limits__log_lines_per_session=1000, limits__log_lines_per_owner=1000), names(40)
    with User(agent) as user:
        fill(agent, user, keys)
        few = keys[:4] + keys[-4:] + [b"none"]
        where = {r.tier for r in user.store.exists(keys)}
        assert where == {Tier.MEMORY, Tier.DISK} and user.store.exists([b"none"])[0].tier == Tier.NONE
        got = user.store.get(user.region, [(key, [(i * SIZE, SIZE)]) for i, key in enumerate(few)], wait=False)
        user.store.remove(keys[:2])
        results = got.result(LIMIT)
        assert [r.status for r in results] == [Status.OK] * 8 + [Status.NOT_FOUND]
        for i, key in enumerate(few[:-1]):
            assert user.view[i * SIZE:(i + 1) * SIZE] == value_of(key)
        assert user.has(*keys[:3]) == [False, False, True]
        tiers = [r.tier for r in results]
        assert Tier.DISK in tiers and tiers[-1] == Tier.NONE and set(tiers[:-1]) <= {Tier.MEMORY, Tier.DISK}
        line = until(lambda: re.search(r"GET of 9 keys took .*", agent.text())).group()
        disk = tiers.count(Tier.DISK)
        assert re.search(rf" {SIZE * 8} bytes, 0 existed, 1 unknown, 0 failed with 0 bytes; ok .* memory={8 - disk} "
                         rf"memory_bytes={SIZE * (8 - disk)} .* disk={disk} disk_bytes={SIZE * disk} .* agents=0 agents_bytes=0 ", line), line
        assert counters(agent)["dray_store_disk_read_bytes_total"] == disk * SIZE


def test_a_range_that_is_too_small_for_what_is_on_disk(new_store):
    """The batch ends when the other objects are in memory."""
    agent, keys = new_store(), names(40)
    with User(agent) as user:
        fill(agent, user, keys)
        got = user.store.get(user.region, [(keys[0], [(0, 100)]), (keys[1], [(SIZE, SIZE)]), (keys[2], [(0, 100)])])
        assert [r.status for r in got] == [Status.TOO_LARGE, Status.OK, Status.TOO_LARGE]
        assert user.view[SIZE:2 * SIZE] == value_of(keys[1])


def test_pins_and_reads_of_what_is_on_disk(new_store):
    agent, keys = new_store(), names(40)
    with User(agent) as user:
        fill(agent, user, keys)
        assert user.store.pin([keys[0]])[0].status == Status.OK
        views = []

        def read():
            views.append(user.store.read([keys[1]])[0])
            return views[-1].status == Status.OK
        until(read, "the object in memory")
        assert views[-1].data == value_of(keys[1]) and all(v.status == Status.BUSY for v in views[:-1])
        until(lambda: user.store.read([keys[0]])[0].status == Status.OK, "the pinned object")
        views[-1].release()


def test_restart(new_store):
    agent, keys = new_store(), names(20)
    with User(agent) as user:
        fill(agent, user, keys)
        agent.stop()
        agent.start()
        until(lambda: user.has(*keys) == [True] * 20, "the new session")
        assert counters(agent)["dray_store_disk_objects"] == 20 and counters(agent)["dray_store_bytes"] == 0
        for key in keys:
            assert load(user, key) == value_of(key)
        assert counters(agent)["dray_store_disk_hits_total"] == 20
        owner = f"default:{os.geteuid()}"
        assert agent.ctl("store", "--evict", "1GiB", "--owner", owner, "--json") == {"objects": 20, "bytes": 20 * SIZE}
        assert counters(agent)["dray_store_bytes"] == 0 and user.has(*keys) == [True] * 20
        with pytest.raises(AssertionError, match="no name space"):
            agent.ctl("store", "--evict", "1", "--space", "kv")


OWNER = ("--owner", f"default:{os.geteuid()}")


def test_the_most_valuable_objects_are_listed(new_store):
    agent = new_store()
    with User(agent) as user:
        for i in range(8):
            assert user.put(b"key %d" % i, value_of(i, 1000), cost=(i + 1) / 1000) == Status.OK
        assert user.put(b"\0\\ff/", value_of(9, 1000), cost=1.0) == Status.OK
        settled(agent)
        got = agent.ctl("store", "--keys", "4", *OWNER, "--json")["store_objects"]
        assert [row["key"] for row in got] == ["\\x00\\x5cff/", "key\\x207", "key\\x206", "key\\x205"]
        assert got[1] == {"key": "key\\x207", "bytes": 1000, "cost_ns": 8_000_000, "uses": 1, "worth": 8000 * 2**20 // 1000,
                          "memory": True, "disk": True, "held": False}
        # who uses an object makes it worth more
        for _ in range(8):
            user.get(b"key 0")
        user.store.pin([b"key 0"])
        first = agent.ctl("store", "--keys", "2", *OWNER, "--json")["store_objects"][1]
        assert first["key"] == "key\\x200" and first["uses"] > 1 and first["held"]
        text = agent.ctl("store", "--keys", "1000", *OWNER)
        assert len(text.splitlines()) == 10 and "WORTH" in text
        for wrong, why in ((("--keys", "4"), "needs --space NAME or --owner"), (("--keys", "4", "--space", "kv"), "no name space \"kv\"; drayctl store lists the others"),
                           (("--keys", "0", *OWNER), "--keys"), (("--keys", "1", "--warm", "1MiB", *OWNER), "give one of them"),
                           (OWNER, "have no effect without --keys, --warm, --verify or --evict")):
            with pytest.raises(AssertionError, match=why):
                agent.ctl("store", *wrong)


def test_warming_reads_the_most_valuable_objects(new_store):
    """After a restart; without evicting what is in memory then."""
    agent, keys = new_store(), names(40)
    with User(agent) as user:
        for i, key in enumerate(keys):
            assert user.put(key, value_of(key), cost=(i + 1) / 1000) == Status.OK
            settled(agent)
        agent.restart()
        until(lambda: user.has(*keys) == [True] * 40, "the new session")
        assert load(user, keys[0]) == value_of(keys[0])  # the least valuable one
        got = agent.ctl("store", "--warm", f"{5 * SIZE}B", *OWNER, "--json")
        assert got == {"objects": 5, "bytes": 5 * SIZE, "full": False}

        def in_memory():
            return {key for key, r in zip(keys, user.store.exists(keys)) if r.tier == Tier.MEMORY}

        until(lambda: in_memory() == {keys[0], *keys[-5:]}, "the objects in memory")
        got = agent.ctl("store", "--warm", "1GiB", *OWNER, "--json")
        assert got["full"] and got["objects"] > 10
        until(lambda: in_memory() == {keys[0], *keys[-5 - got["objects"]:]}, "memory full of the most valuable objects")
        assert counters(agent)["dray_store_evictions_total"] == 0
        for key in in_memory():
            assert user.get(key) == value_of(key)
        assert agent.ctl("store", "--warm", "1GiB", *OWNER, "--json") == {"objects": 0, "bytes": 0, "full": True}


def test_warming_ends_where_objects_never_fit(new_store):
    """More of the most valuable objects than one call reads are larger than their owner's share is now."""
    agent, keys = new_store(), names(300)
    with User(agent) as user:
        fill(agent, user, keys, 20_000)
        agent.stop()
        agent.settings["limits.store_bytes_per_owner"] = "16KiB"
        agent.start()
        until(lambda: user.has(keys[0]) == [True], "the new session")
        assert agent.ctl("store", "--warm", "1GiB", *OWNER, "--json") == {"objects": 0, "bytes": 0, "full": True}


def test_warming_beside_an_owner_without_room(new_agent, lab):
    """What one owner of a shared name space may not have does not keep the others' objects on disk."""
    agent, (left, right) = tenants(new_agent, "left", "right", **DISK | {
        "limits.store_bytes": "64MiB", "limits.store_bytes_per_owner": "2MiB", "store.disk_dir": lab.directory("disk"),
        "store.spaces": "kv=left:*,kv=right:*"})
    agent.kill()
    serve_http(agent).start()
    with User(left, space="kv") as a, User(right, space="kv") as b:
        fill(agent, a, [b"left %d" % i for i in range(12)])
        fill(agent, b, [b"right %d" % i for i in range(5)])
        agent.restart()
        until(lambda: b.has(b"right 0") == [True], "the new session")
        got = agent.ctl("store", "--warm", "1GiB", "--space", "kv", "--json")
        assert got == {"objects": 6 + 5, "bytes": 11 * SIZE, "full": True}
        until(lambda: [r.tier for r in b.store.exists([b"right %d" % i for i in range(5)])] == [Tier.MEMORY] * 5, "the objects in memory")


def test_a_name_that_is_cut_inside_a_character(new_store):
    agent = new_store()
    for option in (("--keys", "1"), ("--warm", "1"), ("--evict", "1"), ("--verify",)):
        with pytest.raises(AssertionError, match="no name space"):
            agent.ctl("store", *option, "--space", 59 * "a" + "é")


def test_warming_what_is_in_memory_already(new_store):
    agent = new_store()
    with User(agent) as user:
        fill(agent, user, names(3))
        assert agent.ctl("store", "--warm", "1GiB", *OWNER) == "0 objects read from disk, 0 bytes\n"


def test_owners_keep_their_objects(new_agent, lab):
    agent, (left, right) = tenants(new_agent, "left", "right", **DISK, **{
        "store.disk_dir": lab.directory("disk"), "store.spaces": "kv=left:*,kv=right:*"})
    agent.kill()
    serve_http(agent).start()
    with User(left) as a, User(right) as b, User(left, space="kv") as c:
        fill(agent, a, [b"key"])
        assert b.put(b"key", b"other") == c.put(b"key", b"shared") == Status.OK
        settled(agent)
        agent.restart()
        until(lambda: a.has(b"key") == b.has(b"key") == c.has(b"key") == [True], "the new sessions")
        assert (load(a, b"key"), load(b, b"key"), load(c, b"key")) == (value_of(b"key"), b"other", b"shared")
        rows = {(r["tenant"], r["resource"]): r["used"] for r in agent.ctl("quotas", "--json")["quotas"]}
        assert rows["left", "store_disk_bytes"] == (SIZE + 4095) // 4096 * 4096 + 4096 and rows["right", "store_disk_bytes"] == 4096


def test_the_disk_tier_is_full(new_store):
    """The least valuable of what is only on disk goes."""
    agent, keys = new_store(limits__store_disk_bytes="10MiB", limits__store_disk_bytes_per_owner="10MiB", store__policy="lru"), names(80)
    with User(agent) as user:
        fill(agent, user, keys)
        after = counters(agent)
        assert after["dray_store_disk_bytes"] <= 10 * MIB and after["dray_store_disk_evictions_total"] > 0
        left = [key for key, has in zip(keys, user.has(*keys)) if has]
        assert keys[-1] in left and keys[0] not in left
        for key in left:
            assert load(user, key) == value_of(key)


# --- kill -9 --------------------------------------------------------------------------------------

class Writer(threading.Thread):
    """Puts objects until it is stopped, or the agent is gone."""

    def __init__(self, user, name):
        super().__init__()
        self.user, self.keys, self.go_on = user, [], True
        self.next = lambda: b"%s %d" % (name, len(self.keys))
        self.start()

    def run(self):
        try:
            while self.go_on:
                if self.user.put(self.next(), value_of(self.next(), 20_000)) == Status.OK:
                    self.keys.append(self.next())
        except errors.Error:
            pass

    def stop(self):
        self.go_on = False
        self.join()


def present(user, keys):
    """Those of the keys that are there."""
    keys = sorted(keys)
    return {key for at in range(0, len(keys), 1000) for key, has in zip(keys[at:], user.has(*keys[at:at + 1000])) if has}


def test_kill(new_store):
    """What was on disk is there, and whole, after each kill at a random moment, and so is each other object that is there."""
    agent, rng, certain, checked = new_store(), random.Random(3), set(), 0
    for i in range(KILLS):
        with User(agent) as user, User(agent) as watcher:
            least = rng.randrange(3, 30)
            before = Writer(user, b"before %d" % i)
            until(lambda: len(before.keys) >= least, "some objects")
            before.stop()
            if settled(agent)["dray_store_disk_skipped_total"] == 0:
                certain |= set(before.keys)
            writer = Writer(user, b"%d" % i)
            until(lambda: len(writer.keys) >= least, "some objects")
            time.sleep(rng.uniform(0, 0.02))
            agent.kill()
            writer.stop()
            agent.start()
            until(lambda: watcher.has(b"none") == [False], "the new session")
            there = present(watcher, certain | set(before.keys) | set(writer.keys) | {writer.next()})
            assert certain <= there, "an object that was on disk is lost"
            checked += len(certain)
            assert verify(agent, "--rate", "1TiB") | {"good": 0, "good_bytes": 0, "complete": True} == verified(0)
            for key in there - certain | set(rng.sample(sorted(there), min(len(there), 20))):
                assert load(watcher, key) == value_of(key, 20_000)
            certain = there
            if len(certain) > 2000:  # far less than the tier has room for
                for key in sorted(certain):
                    watcher.store.remove([key])
                certain = set()
    assert checked
    agent.check_log()


# --- wrong bytes ----------------------------------------------------------------------------------

def test_damaged_bytes(new_store):
    agent, keys = new_store(), names(6)
    with User(agent) as user:
        fill(agent, user, keys)
        agent.kill()
        segment, = agent.disk.glob("segment-*")
        with segment.open("r+b") as file:
            for i in range(3):
                file.seek(i * ((SIZE + 4095) // 4096 * 4096) + 77_777 * i)
                byte = file.read(1)[0]
                file.seek(-1, 1)
                file.write(bytes([byte ^ 1 << i]))
        agent.start()
        until(lambda: user.has(*keys) == [True] * 6, "the new session")
        user.view[:SIZE] = b"\xff" * SIZE
        got = user.store.get(user.region, [(key, [(i * SIZE, SIZE)]) for i, key in enumerate(keys)])
        assert [r.status for r in got] == [Status.CORRUPT] * 3 + [Status.OK] * 3
        for i in range(6):
            assert user.view[i * SIZE:(i + 1) * SIZE] == (bytes(SIZE) if i < 3 else value_of(keys[i]))
        assert user.has(*keys) == [False] * 3 + [True] * 3
        assert counters(agent)["dray_store_disk_corrupt_total"] == 3
        assert user.put(keys[0], b"again") == Status.OK
        settled(agent)
        agent.restart()
        until(lambda: user.has(*keys) == [True] + [False] * 2 + [True] * 3, "the new session")
        assert load(user, keys[0]) == b"again"


def damage(agent, *offsets):
    """One bit at each offset of the first segment."""
    segment, *_ = sorted(agent.disk.glob("segment-*"))
    with segment.open("r+b") as file:
        for offset in offsets:
            file.seek(offset)
            byte = file.read(1)[0]
            file.seek(-1, 1)
            file.write(bytes([byte ^ 16]))
        file.flush()
        os.fsync(file.fileno())


def verify(agent, *argv, status=0):
    """What drayctl store --verify prints; checked against its exit status."""
    done = agent.ctl("store", "--verify", *argv, "--json", check=False)
    assert done.returncode == status, done
    return json.loads(done.stdout)


def verified(n, size=SIZE):
    """What it prints if n objects are good."""
    return {"good": n, "good_bytes": n * size, "damaged": 0, "damaged_bytes": 0, "unreadable": 0, "unreadable_bytes": 0, "complete": True}


def test_verify(new_store):
    """Damaged objects are found before a client asks for them; those that are in memory, too, are written again."""
    agent, keys, block = new_store(store__disk_write="through"), names(6), (SIZE + 4095) // 4096 * 4096
    with User(agent) as user:
        for key in keys:  # one by one, so that this is their order on disk
            fill(agent, user, [key])
        good = verified(6)
        assert verify(agent) == verify(agent, *OWNER) == good
        assert agent.ctl("store", "--verify") == (f"6 objects with {6 * SIZE} bytes are good, 0 objects with 0 bytes are damaged, "
                                                  "0 objects with 0 bytes are unreadable\n")
        damage(agent, 0)
        assert verify(agent, status=1) == good | {"good": 5, "good_bytes": 5 * SIZE, "damaged": 1, "damaged_bytes": SIZE}
        until(lambda: counters(agent)["dray_store_disk_objects"] == 6, "the object to be written again")
        assert verify(agent) == good and user.has(*keys) == [True] * 6
        agent.restart()
        until(lambda: user.has(*keys) == [True] * 6, "the new session")
        damage(agent, block, 4 * block + SIZE - 1)
        assert verify(agent, status=1) == good | {"good": 4, "good_bytes": 4 * SIZE, "damaged": 2, "damaged_bytes": 2 * SIZE}
        assert user.has(*keys) == [True, False, True, True, False, True]
        for key in keys:
            assert load(user, key) == (value_of(key) if user.has(key)[0] else Status.NOT_FOUND)
        assert counters(agent)["dray_store_disk_corrupt_total"] == 2
        assert "VerifyStore: 4 objects are good, 2 damaged, 0 unreadable" in agent.text()


def test_verify_all_name_spaces(new_agent, lab):
    agent, (left, right) = tenants(new_agent, "left", "right", **DISK, **{
        "store.disk_dir": lab.directory("disk"), "store.spaces": "kv=left:*"})
    agent.kill()
    serve_http(agent).start()
    assert verify(agent)["good"] == 0
    with User(left) as a, User(right) as b, User(left, space="kv") as c:
        fill(agent, a, [b"1", b"2"])
        fill(agent, b, [b"1"])
        fill(agent, c, [b"1", b"2", b"3"])
        assert verify(agent)["good"] == 6
        assert verify(agent, "--space", "kv")["good"] == 3
        assert verify(agent, "--owner", f"right:{os.geteuid()}")["good"] == 1


def test_verify_without_a_disk_tier(new_agent):
    for settings, why in (({"limits.store_bytes": "8MiB"}, "has no disk tier"), ({}, "has no disk tier")):
        agent = new_agent(settings=settings)
        with pytest.raises(AssertionError, match=why):
            agent.ctl("store", "--verify")


def test_verify_is_interrupted(new_store):
    """It says what has been verified, and the agent does not go on."""
    agent = new_store()
    with User(agent) as user:
        fill(agent, user, names(3), 200_000)
        with subprocess.Popen([DRAYCTL, "--control", agent.control, "store", "--verify", "--rate", "64KiB", "--json"], stdout=subprocess.PIPE, text=True) as run:
            until(lambda: "VerifyStore begins" in agent.text(), "the verification")
            with pytest.raises(AssertionError, match="another verification runs"):
                agent.ctl("store", "--verify", *OWNER)
            run.send_signal(signal.SIGINT)
            out = run.communicate(timeout=LIMIT)[0]
        got = json.loads(out)
        assert run.returncode == 1 and got["complete"] is False and got["good"] < 3
        until(lambda: agent.ctl("store", "--verify", check=False).stdout.startswith("3 objects"), "the end of the first verification")


# --- a disk that fails ----------------------------------------------------------------------------

def mounted_store(lab, new_agent, options):
    mount = lab.directory("mount")
    prefix = ["unshare", *(["--user", "--map-root-user"] if os.geteuid() and not lab.namespaces else []), "--mount", "sh", "-c",
              f"mount -t tmpfs -o {options} none {mount} && exec \"$@\"", "sh"]
    # an agent that ends waits so long for room on its disk
    agent = new_agent(start=False, wrap=prefix, settings=DISK | {"store.disk_dir": mount, "agent.drain_timeout": "100ms"})
    try:
        agent.host.run(*prefix, "true")
    except OSError as e:
        agent.process = None
        pytest.skip(f"file systems cannot be mounted here: {e}")
    serve_http(agent).start()
    return agent, pathlib.Path(f"/proc/{agent.pid}/root{mount}")


def test_the_file_system_is_full(lab, new_agent):
    """Memory keeps serving, the tier is marked, what is on disk is read, and the tier returns when there is room again."""
    agent, inside = mounted_store(lab, new_agent, "size=6m")
    with User(agent) as user:
        fill(agent, user, [b"first"])
        other = inside / "other"
        with other.open("wb") as file:
            free = os.statvfs(inside)
            file.write(bytes(free.f_bavail * free.f_frsize - 256 * 1024))
        assert user.put(b"second", value_of(b"second")) == Status.OK
        until(lambda: counters(agent)["dray_store_disk_down"] == 1, "the mark")
        row, = agent.ctl("store", "--json")["store_spaces"]
        assert row["disk_state"] == "full" and row["disk_objects"] == 1
        assert "the disk tier is not written" in agent.new_text()
        assert "disk tier" in agent.ctl("status")
        for i in range(40):  # memory goes on, and evicts the first one
            assert user.put(b"%d" % i, bytes(SIZE)) == Status.OK
        assert load(user, b"first") == value_of(b"first")
        other.unlink()
        until(lambda: counters(agent)["dray_store_disk_down"] == 0, "the return of the tier")
        fill(agent, user, [b"third"])
        assert counters(agent)["dray_store_disk_objects"] >= 2
        assert "the disk tier can be written again" in agent.new_text()


def test_the_tier_has_filled_its_file_system(lab, new_agent):
    """It evicts from disk, and returns, and again, without room from elsewhere."""
    agent, inside = mounted_store(lab, new_agent, "size=6m")
    keys = iter(names(1000))
    with User(agent) as user:
        for _ in range(2):
            def fills():
                assert user.put(next(keys), bytes(SIZE)) == Status.OK
                return settled(agent)["dray_store_disk_down"] == 1
            until(fills, "a full file system")
            for _ in range(30):  # so that what is on disk is not in memory any more
                assert user.put(next(keys), bytes(SIZE)) == Status.OK
            until(lambda: counters(agent)["dray_store_disk_down"] == 0, "the return of the tier")
        assert counters(agent)["dray_store_disk_evictions_total"] > 0
        # what memory evicts is written, too, so that the tier may be full once more
        until(lambda: user.put(next(keys), bytes(SIZE)) == Status.OK and settled(agent)["dray_store_disk_objects"] > 0, "an object on disk")
        until(lambda: (inside / "reserve").stat().st_size == MIB, "the reserve")


def test_a_wrong_configuration(new_agent, lab):
    agent = new_agent(start=False, settings=DISK | {"store.disk_dir": lab.directory("disk"), "limits.store_disk_bytes": "0"})
    agent.start(ready=False)
    assert agent.wait() != 0
    assert "limits.store_disk_bytes is 0" in agent.text()
    agent.signal = lambda number: None
    agent.process = None


def test_a_folder_that_the_agent_may_not_write(new_agent, lab):
    """The agent has given its capabilities up when it opens the tier, also as root."""
    folder = lab.directory("disk")
    folder.chmod(0o500)
    agent = new_agent(settings=DISK | {"store.disk_dir": folder})
    assert "Permission denied; let the agent write there, or set store.disk_dir" in agent.text()


def test_a_folder_that_cannot_be_used_at_the_start(new_store, lab):
    """Memory serves, the tier is marked, and comes with its objects when the folder does."""
    agent, keys = new_store(), names(20)
    with User(agent) as user:
        fill(agent, user, keys)
        agent.stop()
        away = agent.disk.rename(agent.disk.with_suffix(".away"))
        agent.start()
        assert "No such file or directory; make the folder" in agent.new_text()
        until(lambda: user.has(b"none") == [False], "the new session")
        assert counters(agent)["dray_store_disk_down"] == 1
        assert user.put(b"new", value_of(b"new")) == Status.OK and user.get(b"new") == value_of(b"new")
        assert user.put(keys[0], b"newer") == Status.OK
        row, = agent.ctl("store", "--json")["store_spaces"]
        assert row["disk_state"] == "absent" and row["disk_objects"] == 0
        assert counters(agent)["dray_store_disk_missing_objects"] == 2
        agent.ctl("drain", "--wait", "--stay")
        text = agent.new_text()
        assert "2 objects with 300005 bytes are only in memory, and are lost when the agent ends; disk tier: absent: " in text
        assert "nothing is in flight; 2 objects of the store are not on its disk" in text
        agent.ctl("resume")
        away.rename(agent.disk)
        until(lambda: counters(agent)["dray_store_disk_down"] == 0, "the tier")
        assert user.has(*keys) == [True] * 20
        assert load(user, keys[0]) == b"newer"
        for key in keys[1:]:
            assert load(user, key) == value_of(key)


@pytest.mark.parametrize("write", ["through", "back"])
def test_stop_writes_what_is_only_in_memory(new_store, write):
    agent, keys = new_store(store__disk_write=write), names(20)
    with User(agent) as user:
        for key in keys:
            assert user.put(key, value_of(key)) == Status.OK
        agent.stop()
        agent.start()
        until(lambda: user.store.exists(keys) and True, "the new session")
        assert user.has(*keys) == [True] * 20
        for key in keys:
            assert load(user, key) == value_of(key)


def test_stop_while_objects_wait(new_store):
    """The agent ends at once, with works of the tier in every state, and without a leak."""
    agent = new_store()
    with User(agent) as user:
        for key in names(20):
            user.put(key, value_of(key))
        agent.stop()
        agent.start()
        until(lambda: user.store.exists(names(20)) and True, "the new session")
        for key, has in zip(names(20), user.has(*names(20))):
            if has:
                assert load(user, key) == value_of(key)
        pending = user.store.get(user.region, [(key, [(0, SIZE)]) for key in names(20)], wait=False)
        agent.signal(signal.SIGTERM)
        pending.exception(LIMIT)
        assert agent.wait() == 0
        agent.check_log()
        agent.start()
