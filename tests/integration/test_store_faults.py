# SPDX-License-Identifier: Apache-2.0
"""What clients of a store see when its disk, its agent, or the agent that lends fails.

Each test breaks something, and sees how three requests end that are made then: a GET of what is in memory here, a GET of what is
only on disk or only at another agent, and a PUT. The table in docs/store.md has a row for each test, which is compared with what
has happened, apart from the times. The times are printed at the end (pytest -s).
"""

import contextlib
import errno
import math
import os
import pathlib
import random
import signal
import struct
import threading
import time

import harness
import pytest
from dray import Status, errors
from harness import BUILD, DRAYD, LIMIT, MIB, ROOT, fault_words, sanitized, until
from test_http import ask, samples, with_http
from test_store import User

# A sanitizer wants to be the first library.
PLAIN = ROOT / "build/gcc" if DRAYD.exists() and sanitized(DRAYD) else BUILD
PRELOAD = PLAIN / "tests/faults/disk.so"
UID, SIZE = os.getuid(), 300_000
STORE = {"limits.store_bytes": "16MiB", "limits.store_bytes_per_owner": "16MiB", "store.segment_size": "2MiB",
         "store.spaces": f"kv=default:{UID}"}
DISK = {"limits.store_disk_bytes": "256MiB", "limits.store_disk_bytes_per_owner": "256MiB", "agent.drain_timeout": "100ms"}
OWNER = ("--owner", f"default:{UID}")
LEASE = 10.0
HEAD = "| what fails | GET from memory here | GET from disk or elsewhere | PUT | after | serves again after |"


def documented():
    """{what: (GET, GET, PUT)} of the table in docs/store.md."""
    lines = (ROOT / "docs/store.md").read_text().splitlines()
    rows = {}
    for line in lines[lines.index(HEAD) + 2:]:
        if not line.startswith("|"):
            break
        what, *cells = [cell.strip() for cell in line.strip("|").split("|")]
        rows[what] = tuple(cells[:3])
    return rows


ROWS = documented()


def value_of(key, size=SIZE):
    return random.Random(key).randbytes(size)


def samples_of(agent):
    return samples(ask(agent, "/metrics")[2])


@pytest.fixture(scope="module")
def table():
    """{what: (results, seconds, seconds until it serves again)}"""
    seen = {}
    yield seen
    for what, (results, seconds, again) in seen.items():
        cells = [f"{s:.3f} s" for s in seconds]
        print(f"\n| {what} | {' | '.join(results)} | {', '.join(cells)} | {again:.2f} s |", end="")


def test_each_row_of_the_table_has_a_test():
    source = pathlib.Path(__file__).read_text()
    assert ROWS and not [what for what in ROWS if f'"{what}"' not in source]


class Waiting(threading.Thread):
    """Waits for the end of a request: `word` is its result or the name of its error, `seconds` when it came."""

    def __init__(self, pending, right=lambda: True):
        super().__init__(daemon=True)
        self.pending, self.right, self.began = pending, right, time.monotonic()
        self.word = self.seconds = None
        self.start()

    def run(self):
        try:
            result, = self.pending.result(LIMIT)
            word = result.status.name.lower()
        except errors.Error as e:
            word = e.name
        self.seconds = time.monotonic() - self.began
        self.word = "wrong bytes" if word == "ok" and not self.right() else word


class Three:
    """The three requests of a client, each with its own part of the region. The second GET has the deadline."""

    def __init__(self, user, near, far, new, deadline=None):
        user.view[:3 * MIB] = bytes(3 * MIB)
        user.view[2 * MIB:2 * MIB + SIZE] = value_of(new)
        self.waits = []
        for i, (key, limit) in enumerate(((near, None), (far, deadline))):
            def right(key=key, at=i * MIB):
                return user.view[at:at + SIZE] == value_of(key)
            self.waits.append(Waiting(user.store.get(user.region, [(key, [(i * MIB, SIZE)])], deadline=limit, wait=False), right))
        self.waits.append(Waiting(user.store.put(user.region, [(new, [(2 * MIB, SIZE)])], wait=False)))

    def ends(self):
        for wait in self.waits:
            wait.join(LIMIT)
            assert wait.word, "a request that does not end"
        return [f"`{w.word}`" for w in self.waits], [w.seconds for w in self.waits]


def check(table, what, three, again, ends=math.inf):
    """The row of the table; again() waits until all is as before, and how long that takes is measured. ends: of a lease."""
    results, seconds = three.ends()
    if time.monotonic() > ends and tuple(results) != ROWS[what]:
        again()
        pytest.skip("this machine is too slow for the lease of an object")
    began = time.monotonic()
    again()
    table[what] = results, seconds, time.monotonic() - began
    assert tuple(results) == ROWS[what], (what, results)


# --- the disk -------------------------------------------------------------------------------------

class Faults:
    """The words of tests/faults/disk.c."""

    def __init__(self, path, folder):
        self.words = fault_words(path)
        self.environment = {"LD_PRELOAD": str(PRELOAD), "DISK_FAULT_FILE": str(path), "DISK_FAULT_DIR": str(folder)}

    def set(self, read=0, write=0, delay_ms=0, hangs=0):
        self.words[:16] = struct.pack("=4i", read, write, delay_ms, hangs)

    def waiting(self):
        return struct.unpack("=i", self.words[16:20])[0]


@pytest.fixture
def rig(lab, new_agent, monkeypatch):
    """An agent whose disk can fail, with an object that is in memory, and one that is only on disk."""
    if not PRELOAD.exists():
        pytest.skip(f"{PRELOAD} is not built")
    monkeypatch.setattr(harness, "DRAYD", PLAIN / "drayd")
    agent = with_http(new_agent, lab, settings=STORE | DISK, start=False)
    agent.disk = pathlib.Path(os.path.realpath(lab.directory("disk")))
    agent.settings["store.disk_dir"] = agent.disk
    agent.faults = Faults(lab.directory("faults") / "control", agent.disk)
    agent.env |= agent.faults.environment
    agent.start()
    with User(agent) as user:
        agent.user = user
        for key in (b"far", b"near"):
            assert user.put(key, value_of(key)) == Status.OK
            until(lambda: samples_of(agent)["dray_store_disk_pending_bytes"] == 0, "the object on disk")
        apart(agent)
        yield agent
        agent.faults.set()


def apart(agent):
    """Only one of the objects is in memory."""
    agent.ctl("store", "--evict", "1GiB", *OWNER)
    until(lambda: agent.user.get(b"near") == value_of(b"near"), "the object in memory")


def serves(agent, *keys):
    """The tier is written, and its objects are read."""
    until(lambda: samples_of(agent)["dray_store_disk_down"] == 0, "the tier")
    for key in keys or (b"far", b"near", b"new"):
        until(lambda key=key: agent.user.get(key) == value_of(key), "the object")
    until(lambda: samples_of(agent)["dray_store_disk_objects"] >= 2, "the objects on disk")


def down(agent, state):
    """The tier is marked: with this state, and in the log."""
    until(lambda: agent.ctl("store", "--json")["store_spaces"][0]["disk_state"] == state, f"the state {state}")


@pytest.mark.parametrize(("what", "error", "state"), [
    ("the disk is full", errno.ENOSPC, "full"), ("the disk is read-only", errno.EROFS, "read-only"),
    ("the disk reports errors of writing", errno.EIO, "failing")], ids=["full", "read-only", "errors"])
def test_disk_that_is_not_written(rig, table, what, error, state):
    rig.faults.set(write=error)
    three = Three(rig.user, b"near", b"far", b"new")
    three.ends()
    down(rig, state)

    def again():
        rig.faults.set()
        serves(rig)
    check(table, what, three, again)


def test_nothing_fails(rig, table):
    check(table, "nothing", Three(rig.user, b"near", b"far", b"new"), lambda: serves(rig))


def test_disk_that_is_not_read(rig, table):
    rig.faults.set(read=errno.EIO)
    three = Three(rig.user, b"near", b"far", b"new")
    three.ends()
    assert rig.user.has(b"far") == [True]

    def again():
        rig.faults.set()
        serves(rig)
    check(table, "the disk reports errors of reading", three, again)


def test_slow_disk(rig, table):
    rig.faults.set(delay_ms=100)
    three = Three(rig.user, b"near", b"far", b"new")
    three.ends()

    def again():
        rig.faults.set()
        serves(rig)
    check(table, "the disk is slow: 0.1 s for each call", three, again)


def test_disk_that_hangs(rig, table):
    """A GET that waits for it ends at its deadline, which is one second here; nobody else waits."""
    rig.faults.set(hangs=1)
    three = Three(rig.user, b"near", b"far", b"new", deadline=1.0)
    three.ends()
    assert rig.faults.waiting()

    def again():
        rig.faults.set()
        serves(rig)
    check(table, "the disk hangs", three, again)


def test_bit_rot(rig, table):
    mark = value_of(b"far")[1000:1016]
    path, at = next((path, data.index(mark)) for path in rig.disk.glob("segment-*") for data in [path.read_bytes()] if mark in data)
    with path.open("r+b") as file:
        file.seek(at)
        file.write(bytes([mark[0] ^ 1]))
        file.flush()
        os.fsync(file.fileno())
    three = Three(rig.user, b"near", b"far", b"new")
    three.ends()
    assert rig.user.get(b"far") == Status.NOT_FOUND

    def again():
        assert rig.user.put(b"far", value_of(b"far")) == Status.OK
        serves(rig)
    check(table, "bits on disk are damaged", three, again)


def test_agent_is_killed(rig, table):
    """Before it has taken the requests. What was on disk is there again."""
    rig.signal(signal.SIGSTOP)
    three = Three(rig.user, b"near", b"far", b"new")
    rig.kill()
    three.ends()  # an agent that runs again when the client notices the end would get the requests
    rig.start()
    check(table, "the agent is killed", three, lambda: serves(rig, b"near", b"far"))


# --- another agent ----------------------------------------------------------------------------------

@pytest.fixture
def lent(lab, new_agent, request):
    """A reader, with further settings, and an owner on another host, which has one of the objects and leases it to the reader's client."""
    lab.need_namespaces()
    owner, reader = (new_agent(name, host, settings=STORE | more, args=["--allow-insecure"], listen=(lab.hosts[host].v4,), start=False)
                     for name, host, more in (("owner", 1, {"store.lend": "true"}),
                                         ("reader", 0, {"store.lookup_lease": f"{LEASE:.0f}s"} | getattr(request, "param", {}))))
    owner.start()
    reader.settings["store.peers"] = owner.listen[0]
    reader.start()
    reader.owner = owner
    connected(reader)
    with User(owner, space="kv") as there, User(reader, space="kv") as here:
        assert there.put(b"far", value_of(b"far")) == Status.OK and here.put(b"near", value_of(b"near")) == Status.OK
        reader.user, reader.there = here, there
        yield reader


def connected(reader):
    until(lambda: any(p["state"] == "ready" for p in reader.ctl("peers", "--json")["peers"]), "the reader's connection")


def promised(reader):
    """The session has a lease of the object. Returns when that may end."""
    began = []
    until(lambda: began.append(time.monotonic()) or reader.user.store.exists([b"far"], lease=LEASE)[0].status == Status.OK, "the lease")
    return began[-1] + LEASE / 2


def found(reader):
    """The object is read from the other agent, and not kept for the next test of it."""
    until(lambda: reader.user.get(b"far") == value_of(b"far"), "the object of the other agent")


def test_lending_agent_is_killed(lent, table):
    ends = promised(lent)
    lent.owner.kill()
    three = Three(lent.user, b"near", b"far", b"new")
    three.ends()

    def again():
        lent.owner.start()
        until(lambda: lent.there.put(b"far", value_of(b"far")) == Status.OK, "the new session")
        found(lent)
    check(table, "the lending agent is killed", three, again, ends)


@pytest.mark.parametrize(("what", "asked"), [
    ("the lending agent is stopped", True), ("the lending agent is stopped, and has promised nothing", False)], ids=["promised", "unasked"])
def test_lending_agent_is_stopped(lent, table, what, asked):
    ends = promised(lent) if asked else math.inf
    lent.owner.signal(signal.SIGSTOP)
    three = Three(lent.user, b"near", b"far", b"new")
    try:
        three.ends()
    finally:
        lent.owner.signal(signal.SIGCONT)
    check(table, what, three, lambda: found(lent), ends)


def test_lending_agent_is_cut_off(lab, lent, table):
    ends = promised(lent)
    link = lab.hosts[1].link
    link(False)
    try:
        three = Three(lent.user, b"near", b"far", b"new")
        three.ends()
    finally:
        link(True)
    check(table, "the lending agent is cut off", three, lambda: found(lent), ends)


@pytest.mark.parametrize("lent", [{"store.peer_timeout": "1s"}], indirect=True, ids=["patient"])
def test_lending_agent_is_slow(lab, lent, table):
    """
    1 Mbit/s: the object takes 2.4 s, which is longer than a second, and slower than 32 MiB/s. The reader takes an agent that has no
    processor for a while, on a busy machine, for a slow one, too.
    """
    host = lab.hosts[1]
    ends = promised(lent)
    try:
        host.run("tc", "qdisc", "add", "dev", "dray0", "root", "tbf", "rate", "1mbit", "burst", "16kb", "latency", "5s")
    except OSError as e:
        pytest.skip(f"links cannot be made slow here: {e}")
    try:
        three = Three(lent.user, b"near", b"far", b"new")
        three.ends()
    finally:
        with contextlib.suppress(OSError):
            host.run("tc", "qdisc", "del", "dev", "dray0", "root")
    check(table, "the lending agent is slow", three, lambda: found(lent), ends)
