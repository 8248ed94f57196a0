# SPDX-License-Identifier: Apache-2.0
"""The rates of the disk tier: learned from what is read and written, remembered, configured; and batches that take turns by them."""

import os
import pathlib
import re

import harness
import pytest
from dray import Status
from harness import LIMIT, MIB, until
from test_http import with_http
from test_store import User
from test_store_faults import OWNER, PLAIN, PRELOAD, Faults, samples_of, value_of

SIZE = 64 << 10
LOG = {"store.log": "batch", "limits.log_lines_per_session": 1000, "limits.log_lines_per_owner": 1000}
SETTINGS = {"limits.store_bytes": "8MiB", "limits.store_bytes_per_owner": "8MiB", "store.segment_size": "2MiB", "limits.store_disk_bytes": "256MiB",
            "limits.store_disk_bytes_per_owner": "256MiB", "store.disk_threads": 1} | LOG
KEYS = [b"key %d" % i for i in range(24)]


def has_direct_io(folder):
    try:
        os.close(os.open(folder / "probe", os.O_CREAT | os.O_RDWR | os.O_DIRECT))
    except OSError:
        return False
    (folder / "probe").unlink()
    return True


@pytest.fixture
def new_store(lab, new_agent, monkeypatch):
    if not PRELOAD.exists():
        pytest.skip(f"{PRELOAD} is not built")
    monkeypatch.setattr(harness, "DRAYD", PLAIN / "drayd")

    def make(**settings):
        folder = pathlib.Path(os.path.realpath(lab.directory("disk")))
        if not has_direct_io(folder):
            pytest.skip("the file system has no O_DIRECT, so that reads do not measure its disk")
        agent = with_http(new_agent, lab, settings=SETTINGS | {"store.disk_dir": folder} | {k.replace("__", "."): v for k, v in settings.items()},
                          start=False)
        agent.faults = Faults(lab.directory("faults") / "control", folder)
        agent.env |= agent.faults.environment
        agent.start()
        return agent
    return make


def fill(agent, user):
    for key in KEYS:
        assert user.put(key, value_of(key)[:SIZE]) == Status.OK
    until(lambda: samples_of(agent)["dray_store_disk_objects"] == len(KEYS), "the objects on disk")


def evict(agent):
    agent.ctl("store", "--evict", "1GiB", *OWNER)


def get(user, keys, **options):
    return user.store.get(user.region, [(key, [(i * SIZE, SIZE)]) for i, key in enumerate(keys)], **options)


def rate(agent, what):
    return samples_of(agent)[f"dray_store_disk_{what}_rate_bytes"]


def read_all(agent, user):
    evict(agent)
    assert [r.status for r in get(user, KEYS)] == [Status.OK] * len(KEYS)


def test_learned_and_remembered(new_store):
    """Each call of the disk takes 20 ms, so that its two threads cannot read more than this; an idle agent remembers it over a restart."""
    agent = new_store()
    with User(agent) as user:
        assert rate(agent, "read") == rate(agent, "write") == 0
        fill(agent, user)
        agent.faults.set(delay_ms=20)
        until(lambda: read_all(agent, user) or rate(agent, "read"), "the rate of the disk")
        learned = rate(agent, "read")
        assert 0 < learned <= 2 * SIZE / 0.020
        row, = agent.ctl("store", "--json")["store_spaces"]
        assert row["disk_read_rate"] == learned
        agent.faults.set()
    agent.stop()
    agent.start()
    assert rate(agent, "read") == learned
    agent.stop()
    agent.settings["store.disk_read_rate"] = "3MiB"
    agent.start()
    assert rate(agent, "read") == 3 * MIB


def test_writes_are_measured_until_they_are_durable(new_store):
    agent = new_store()
    with User(agent) as user:
        agent.faults.set(delay_ms=20)
        fill(agent, user)
        assert 0 < rate(agent, "write") <= 2 * SIZE / 0.020


def test_small_batch_overtakes_a_large_one(new_store):
    """A turn has three objects. Both batches are asked for while the disk hangs, so that nothing depends on time."""
    agent = new_store(store__disk_read_rate=f"{20 * (3 * SIZE + 1000)}")
    with User(agent) as user:
        fill(agent, user)
        evict(agent)
        before = samples_of(agent)
        agent.faults.set(hangs=1)
        large = get(user, KEYS[:20], wait=False)
        until(agent.faults.waiting, "the first read")
        small = get(user, KEYS[20:21], wait=False)
        until(lambda: samples_of(agent)["dray_store_disk_batches_total"] - before["dray_store_disk_batches_total"] == 2, "both batches")
        agent.faults.set()
        assert [r.status for r in large.result(LIMIT)] == [Status.OK] * 20
        assert [r.status for r in small.result(LIMIT)] == [Status.OK]
        lines = until(lambda: (found := re.findall(r"GET of (\d+) keys took.* disk_turns=(\d+)", agent.text())) and len(found) == 2 and found, "both lines")
        assert lines == [("1", "1"), ("20", "7")]
        assert samples_of(agent)["dray_store_disk_turns_total"] - before["dray_store_disk_turns_total"] == 8


def test_configured_rate_of_reads_is_a_limit(new_store):
    """
    The second of three objects is due 64 s after the first, which is copied before that. A write that comes later is done before it, by the
    disk's only thread.
    """
    agent = new_store(store__disk_read_rate="1KiB")
    with User(agent) as user:
        fill(agent, user)
        evict(agent)
        user.view[:SIZE] = bytes(SIZE)
        waiting = get(user, KEYS[:3], wait=False)
        until(lambda: user.view[:SIZE] == value_of(KEYS[0])[:SIZE], "the bytes of the first object")
        assert user.view[SIZE:3 * SIZE] == bytes(2 * SIZE)
        until(lambda: samples_of(agent)["dray_store_disk_reads_total"] == 1, "the first object")
        assert user.put(b"later", value_of(b"later")[:SIZE]) == Status.OK
        until(lambda: samples_of(agent)["dray_store_disk_objects"] == len(KEYS) + 1, "the write")
        assert samples_of(agent)["dray_store_disk_reads_total"] == 1
        assert not waiting.done()
        waiting.cancel()
    assert rate(agent, "read") == 1 << 10


def test_configured_rate_of_writes_is_a_limit(new_store):
    """The second of three objects is due 64 s after the first. Reads go on meanwhile, and a drain waits for it until its deadline."""
    agent = new_store(store__disk_write_rate="1KiB", agent__drain_timeout="1s")
    with User(agent) as user:
        for key in KEYS[:3]:
            assert user.put(key, value_of(key)[:SIZE]) == Status.OK
        until(lambda: samples_of(agent)["dray_store_disk_objects"] == 1, "the first object")
        evict(agent)
        assert [r.status for r in get(user, KEYS[:3])] == [Status.OK] * 3
        assert samples_of(agent)["dray_store_disk_reads_total"] == 1
        assert samples_of(agent)["dray_store_disk_objects"] == 1
        assert rate(agent, "write") == 1 << 10
    agent.stop()
    agent.start()
    assert samples_of(agent)["dray_store_disk_objects"] == 1


def test_without_a_disk_nothing_is_split(new_agent, lab):
    agent = with_http(new_agent, lab, settings={"limits.store_bytes": "8MiB", "limits.store_bytes_per_owner": "8MiB"} | LOG)
    with User(agent) as user:
        for key in KEYS:
            assert user.put(key, value_of(key)[:SIZE]) == Status.OK
        assert [r.status for r in get(user, KEYS)] == [Status.OK] * len(KEYS)
        assert samples_of(agent)["dray_store_disk_turns_total"] == samples_of(agent)["dray_store_disk_batches_total"] == 0
        until(lambda: re.search(r"GET of 24 keys took.* disk_turns=0", agent.text()), "the line")
