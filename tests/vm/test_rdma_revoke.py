# SPDX-License-Identifier: Apache-2.0
"""A right that was revoked has ended at the device too, whatever its former holder does with the keys that it has seen."""

import json
import pathlib
import subprocess
import threading
from types import SimpleNamespace

import pytest
from conftest import Pair, listed, registered, run, up
from harness import LIMIT, MIB, Side, expect, noise, transport, until

HERE = pathlib.Path(__file__).resolve().parent


@pytest.fixture(scope="module")
def rogue(tmp_path_factory):
    """A program that writes eight bytes into an owner's memory with a key of its choice; see rogue.c."""
    program = tmp_path_factory.mktemp("rogue") / "rogue"
    run("gcc", "-O1", "-Wall", "-Werror", "-o", program, HERE / "rogue.c", "-libverbs")
    return program


@pytest.fixture
def new_three(rdma_lab):
    """Makes an owner, and two agents that import its tokens, for one test."""
    made = []

    def make(**settings):
        pair = Pair(rdma_lab, 1, **settings)
        honest = rdma_lab.agent(0, pair.rails, **settings)
        made.extend([honest, pair])
        until(lambda: len(up(honest)) == 1, "the rail")
        return SimpleNamespace(former=pair.agents[0], owner=pair.agents[1], honest=honest, rail=pair.rails[0])

    yield make
    for each in made:
        each.stop()


@pytest.fixture
def three(new_three):
    return new_three()


def owned(agent, kind):
    """The kernel's objects of one kind that the agent has."""
    rows = json.loads(run("rdma", "-j", "-dd", "resource", "show", kind) or "[]")
    tasks = {int(t.name) for t in pathlib.Path(f"/proc/{agent.pid}/task").iterdir()}
    return [r for r in rows if r.get("pid") in tasks]


def keys(owner, length):
    """The keys of registrations of this length."""
    return [int(str(m["rkey"]), 16) for m in owned(owner, "mr") if m["mrlen"] == length]


def mapping(owner, length):
    """Where the owner's agent has mapped a client's memory of this length."""
    for line in pathlib.Path(f"/proc/{owner.pid}/maps").read_text().splitlines():
        ends = [int(x, 16) for x in line.split()[0].split("-")]
        if "/memfd:" in line and ends[1] - ends[0] == length:
            return ends[0]
    raise AssertionError("the region is not mapped")


def work_requests(agent):
    return agent.ctl("status", "--json")["counters"]["dray_rdma_work_requests_total"]


def serving(t):
    """The owner's queue pairs that serve the agent of the former holder, and only receive."""
    theirs = {q["lqpn"] for q in owned(t.former, "qp") if q["type"] == "RC"}
    return [q for q in owned(t.owner, "qp") if q["type"] == "RC" and q["rqpn"] in theirs and q["state"] == "RTR"]


class Writer:
    """Writes through one remote without pause, in a thread; every write must succeed."""

    def __init__(self, side, remote):
        self.side, self.remote, self.errors, self.seen = side, remote, [], []
        self.done = threading.Event()
        self.thread = threading.Thread(target=self.work)

    def work(self):
        while not self.done.is_set():
            try:
                self.seen.append(transport(self.side.client.write(self.side.region, self.remote, [(0, 0, 65536)]).result(LIMIT)))
            except Exception as e:  # noqa: BLE001 the test's own thread reports it
                self.errors.append(e)
                return

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *exc):
        self.done.set()
        self.thread.join(LIMIT)
        assert not self.errors, self.errors


def attack(t, rogue, key, address, text, qp):
    """Uses the key through this queue pair of the owner, which expects the next packet from its peer."""
    done = subprocess.run([rogue, t.rail.device[0], t.rail.address[0], t.rail.address[1], str(qp["lqpn"]), str(qp["rq-psn"]), hex(address),
                           hex(key), text], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("shared", ["one region", "two regions"])
def test_former_holder_writes(three, rogue, shared):
    """One of two tokens over one registration is revoked. Its holder's key fails; the other holder continues without an error."""
    t = three
    with Side(t.former, MIB) as former, Side(t.honest, MIB, noise(MIB)) as honest, Side(t.owner, MIB) as there:
        region = there.region if shared == "one region" else there.client.region(there.memory)
        until(lambda: registered(t.owner), "registration")
        token, other = there.region.export(), region.export()
        remote, kept = (side.client.import_token(str(it), timeout=LIMIT) for side, it in ((former, token), (honest, other)))
        for side, target in ((former, remote), (honest, kept)):
            assert transport(side.client.write(side.region, target, [(0, 0, 4096)]).result(LIMIT)) == "rdma"
        key, = keys(t.owner, MIB)
        at = mapping(t.owner, MIB) + MIB - 8
        qps = serving(t)
        assert len(qps) >= 2, "the attack changes the sequence numbers of a queue pair"
        attack(t, rogue, key, at, "allowed!", qps[0])
        until(lambda: bytes(there.view[MIB - 8:]) == b"allowed!", "the bytes of a holder")
        with Writer(honest, kept) as writer:
            until(lambda: len(writer.seen) > 3, "traffic")
            there.region.revoke(token)
            expect({"revoked"}, lambda: former.client.write(former.region, remote, [(0, 0, 1)]).result(LIMIT))
            attack(t, rogue, key, at, "refused!", serving(t)[-1])
            until(lambda: len(serving(t)) < len(qps) or bytes(there.view[MIB - 8:]) != b"allowed!", "the end of the attack's queue pair")
            assert bytes(there.view[MIB - 8:]) == b"allowed!", "a former holder has written"
            assert key not in keys(t.owner, MIB)
            seen = len(writer.seen)
            until(lambda: "rdma" in writer.seen[seen:], "RDMA with the new key")
        again = former.client.import_token(there.export(), timeout=LIMIT)
        former.client.write(former.region, again, [(0, 0, 4096)]).result(LIMIT)


def test_revocations_at_once(three):
    """Two tokens are revoked under traffic, one while the other's fence is pending: no queue pair is lost, also not that of the third holder."""
    t = three
    with Side(t.former, MIB) as former, Side(t.honest, MIB, noise(MIB)) as honest, Side(t.owner, MIB) as there:
        until(lambda: all(registered(a) for a in (t.owner, t.former, t.honest)), "registration")
        tokens = [there.region.export() for _ in range(2)]
        remotes = [former.client.import_token(str(token), timeout=LIMIT) for token in tokens]
        kept = honest.client.import_token(there.export(), timeout=LIMIT)
        with Writer(honest, kept) as writer:
            until(lambda: "rdma" in writer.seen, "traffic")
            flying = [former.client.write(former.region, remote, [(0, 0, MIB)]) for _ in range(4) for remote in remotes]
            for pending in [there.region.revoke(token, wait=False) for token in tokens]:
                assert pending.result(LIMIT) == 1
            assert {getattr(f.exception(LIMIT), "name", "ok") for f in flying} <= {"ok", "revoked"}
            seen = len(writer.seen)
            until(lambda: "rdma" in writer.seen[seen:], "RDMA with the new key")
        assert not any(p["failovers"] for agent in (t.former, t.honest) for p in listed(agent, "paths"))


def test_revoked_beside_a_silent_device(new_three):
    """
    The device of another holder does not end a write whose key is withdrawn. The owner is answered when nothing uses the key any more:
    the queue pair is lost for that, long before transfer.slice_timeout, and the holder keeps its connection.
    """
    t = new_three(peer__fence_timeout="6s")
    with Side(t.former, MIB) as former, Side(t.honest, MIB, noise(MIB)) as honest, Side(t.owner, MIB) as there:
        until(lambda: all(registered(a) for a in (t.owner, t.former, t.honest)), "registration")
        token, other = there.region.export(), there.region.export()
        remote, kept = (side.client.import_token(str(it), timeout=LIMIT) for side, it in ((former, token), (honest, other)))
        for side, target in ((former, remote), (honest, kept)):
            assert transport(side.client.write(side.region, target, [(0, 0, 4096)]).result(LIMIT)) == "rdma"
        posted = work_requests(t.honest)
        t.rail.netem("loss", "100%", side=0)
        try:
            flying = honest.client.write(honest.region, kept, [(0, 0, 65536)])
            until(lambda: work_requests(t.honest) > posted, "the work request")
            assert not flying.done()
            there.region.revoke(token)
            assert sum(p["failovers"] for p in listed(t.honest, "paths")) == 1
        finally:
            t.rail.calm(side=0)
        flying.result(LIMIT)
        assert bytes(there.view[:65536]) == bytes(honest.view[:65536])
