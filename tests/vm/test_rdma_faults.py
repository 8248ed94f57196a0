# SPDX-License-Identifier: Apache-2.0
"""Failures with Soft-RoCE: rails, peers, clients, memory registration; and no leaks."""

import json
import os
import signal
import subprocess
import threading
import time
from functools import partial

import dray
import pytest
import test_faults
from conftest import Pair, listed, registered, run, sides_of, up
from harness import LIMIT, MIB, Actor, Side, concerns, expect, noise, same, transport, until
from test_faults import CLIENT, SIZE, moving, names, pattern, start, untouched, wipe

from test_faults import test_peer_killed, test_peer_stopped, test_revocation_spares_other_transfers, test_revoked_during_transfers  # noqa: F401 isort: skip

# the emulator moves some tens of MB a second
test_faults.N = 2
SHORT_LIMITS = {"peer__heartbeat": "200ms", "peer__heartbeat_limit": "4s", "peer__fence_timeout": "4s",
          "transfer__slice_timeout": "4s"}


def resources(*agents):
    """Number of the kernel's objects of each kind that these agents own: queue pairs, memory regions, completion queues."""
    threads = {int(task) for agent in agents for task in os.listdir(f"/proc/{agent.pid}/task")}

    def rows(kind):
        return json.loads(run("rdma", "-j", "resource", "show", kind) or "[]")

    return {kind: len([r for r in rows(kind) if r.get("pid") in threads]) for kind in ("qp", "mr", "cq", "pd")}


def path_of(agent, rail, side=0):
    """Counters of a rail, summed over its paths."""
    name = rail.device[side]
    mine = [p for p in listed(agent, "paths") if p["device"] == name]
    return {key: sum(p[key] for p in mine) for key in ("queue_pairs", "sent_bytes", "received_bytes", "slices", "retries", "failovers")}


def counters(agent):
    return agent.ctl("status", "--json")["counters"]


def whole(here, there, remote, size=None):
    """Writes all bytes, or the first `size`; checks them, and returns the transport."""
    size = size or len(here.memory)
    done = here.client.write(here.region, remote, [(0, 0, size)]).result(LIMIT)
    assert same(there.view[:size], here.view[:size])
    return transport(done)


@pytest.fixture
def sides(pair2):
    yield from sides_of(pair2)


@pytest.fixture
def new_pair(rdma_lab):
    """Makes two agents for one test, on one rail or more."""
    made = []

    def make(rails=1, **settings):
        made.append(Pair(rdma_lab, rails, **settings))
        return made[-1].agents

    yield make
    for pair in made:
        pair.stop()


@pytest.fixture
def short_limits_pair(new_pair):
    """Makes pairs with short limits, for tests in which only silence shows that a peer is lost."""
    return partial(new_pair, **SHORT_LIMITS)


def stream(here, there, remote, done, errors):
    """Writes without pause until `done` is set, and checks all bytes of each write."""
    while not done.is_set():
        try:
            here.client.write(here.region, remote, [(0, 0, 2 * MIB)], deadline=60).result(LIMIT)
        except Exception as e:  # noqa: BLE001 the test's own thread reports it
            errors.append(e)
            return


class Load:
    """A client in a thread that writes all the time; every transfer must succeed."""

    def __init__(self, agents, data):
        self.here, self.there = Side(agents[0], 2 * MIB, data), Side(agents[1], 2 * MIB)
        until(lambda: all(registered(a, len(up(a))) for a in agents), "registration")
        remote = self.here.reach(self.there)
        self.done, self.errors = threading.Event(), []
        self.thread = threading.Thread(target=stream, args=(self.here, self.there, remote, self.done, self.errors))

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *exc):
        self.done.set()
        self.thread.join(LIMIT)
        assert not self.errors, self.errors
        assert same(self.there.view, self.here.view)
        self.here.close()
        self.there.close()


# --- rails ------------------------------------------------------------------------------------------------------

def test_both_rails_carry_traffic(pair2, sides):
    here, there = sides(16 * MIB, None, noise(16 * MIB))
    a = pair2.agents[0]
    remote = here.reach(there)
    assert whole(here, there, remote, 4096) == "rdma"
    until(lambda: all(path_of(a, rail)["queue_pairs"] == 3 for rail in pair2.rails), "the queue pairs of both")
    before = [path_of(a, rail)["sent_bytes"] for rail in pair2.rails]
    assert whole(here, there, remote, 16 * MIB) == "rdma"
    after = [path_of(a, rail)["sent_bytes"] for rail in pair2.rails]
    moved = [x - y for x, y in zip(after, before)]
    assert sum(moved) == 16 * MIB and min(moved) >= 2 * MIB, moved
    assert [r["rail_state"] for r in listed(a, "rails")] == ["up", "up"]
    assert all(p["gid"] == r.address[0] and p["to_gid"] == r.address[1] and p["mtu"] == 4096 and "same subnet" in p["reason"]
               for p, r in zip(sorted(listed(a, "paths"), key=lambda p: p["device"]), pair2.rails))
    peer, = listed(a, "peers")
    assert peer["transport"] == "rdma" and peer["rails"] == 2 and peer["queue_pairs"] == 6


def test_link_down_and_up_under_load(pair2):
    a = pair2.agents[0]
    rail = pair2.rails[1]
    with Load(pair2.agents, noise(2 * MIB)):
        until(lambda: path_of(a, rail)["slices"] > 2, "traffic on the rail")
        failed = counters(a)["dray_rdma_queue_pairs_lost_total"]
        rail.link(False)
        until(lambda: len(up(a)) == 1, "the rail's end")
        until(lambda: counters(a)["dray_rdma_queue_pairs_lost_total"] >= failed + 3, "its queue pairs' end")
        old = path_of(a, pair2.rails[0])["slices"]
        until(lambda: path_of(a, pair2.rails[0])["slices"] > old + 4, "traffic on the other")
        rail.link(True)
        until(lambda: len(up(a)) == 2 and len(up(pair2.agents[1])) == 2, "the rail's return")
        old = path_of(a, rail)["slices"]
        until(lambda: path_of(a, rail)["slices"] > old + 4, "traffic on it again")
    assert counters(a)["dray_rails_lost_total"] >= 1


def test_disabled_by_an_operator_under_load(pair2):
    """A disabled rail loses its queue pairs but no bytes, and stays down until it is enabled."""
    a, rail = pair2.agents[0], pair2.rails[1]
    device = rail.device[0]
    with Load(pair2.agents, noise(2 * MIB)):
        until(lambda: path_of(a, rail)["slices"] > 2, "traffic on the rail")
        assert a.ctl("rails", "--disable", device, "--json") == {"disabled": device}
        found, = [r for r in a.ctl("rails", "--json")["rails"] if r["device"] == device]
        assert found["rail_state"] == "down" and "by an operator" in found["rail_reason"]
        until(lambda: not path_of(a, rail)["queue_pairs"], "its queue pairs' end")
        old = path_of(a, pair2.rails[0])["slices"]
        until(lambda: path_of(a, pair2.rails[0])["slices"] > old + 4, "traffic on the other")
        assert len(up(a)) == 1
        a.ctl("rails", "--enable", device + "/1")
        until(lambda: len(up(a)) == 2, "the rail's return")
        old = path_of(a, rail)["slices"]
        until(lambda: path_of(a, rail)["slices"] > old + 4, "traffic on it again")
    changes = [(e["old"], e["new"]) for e in a.ctl("events", "--json")["events"] if e["subject"] == device + "/1"]
    assert ("up", "down") in changes and changes[-1] == ("down", "up")


def test_late_packets_change_nothing(pair2, sides):
    """Delayed packets of a lost rail arrive after the other rail has written their slices, and must not change memory."""
    here, there = sides(2 * MIB, None, noise(2 * MIB))
    a, rail = pair2.agents[0], pair2.rails[0]
    remote = here.reach(there)
    assert whole(here, there, remote, 2 * MIB) == "rdma"
    there.view[:] = bytes(2 * MIB)
    failovers = counters(a)["dray_rdma_failovers_total"]
    rail.netem("delay", "3000ms", "limit", "100000")
    try:
        transfer = here.client.write(here.region, remote, [(0, 0, 2 * MIB)])
        until(lambda: there.view[MIB - 1] or there.view[2 * MIB - 1], "the half that the other rail carries")
        # the packets stay delayed, but the rail loses its GID and so its queue pairs
        run("ip", "address", "del", f"{rail.address[0]}/24", "dev", rail.netdev[0])
        run("ip", "address", "add", "10.91.0.1/24", "dev", rail.netdev[0])
        transfer.result(LIMIT)
        assert same(there.view, here.view)
        assert counters(a)["dray_rdma_failovers_total"] > failovers
        there.view[:] = bytes(2 * MIB)
        time.sleep(4)  # the test is that nothing happens in this time
        assert not any(there.view), "bytes landed after the transfer was done"
    finally:
        rail.calm()
        subprocess.run(["ip", "address", "del", "10.91.0.1/24", "dev", rail.netdev[0]], check=False)
        rail.add_address(0)
    until(lambda: len(up(a)) == 2 and {r["gid"] for r in up(a)} == {r.address[0] for r in pair2.rails}, "the rail with its GID")
    until(lambda: whole(here, there, remote) == "rdma" and path_of(a, rail)["queue_pairs"] >= 3, "its queue pairs")


def test_gid_index_moves(pair2, sides):
    """The address is removed and added again after another one: its GID gets another index, and the rail is used again."""
    here, there = sides(4 * MIB, None, noise(4 * MIB))
    a, rail = pair2.agents[0], pair2.rails[1]
    remote = here.reach(there)
    assert whole(here, there, remote) == "rdma"
    index = next(r["gid_index"] for r in listed(a, "rails") if r["device"] == rail.device[0])
    dev = rail.netdev[0]
    run("ip", "address", "del", f"{rail.address[0]}/24", "dev", dev)
    until(lambda: next(r["gid"] for r in listed(a, "rails") if r["device"] == rail.device[0]) != rail.address[0], "another GID, or none")
    run("ip", "address", "add", "10.92.0.1/24", "dev", dev)
    rail.add_address(0)
    run("ip", "address", "del", "10.92.0.1/24", "dev", dev)
    until(lambda: [r["gid"] for r in up(a) if r["device"] == rail.device[0]] == [rail.address[0]], "the rail's return")
    assert next(r["gid_index"] for r in listed(a, "rails") if r["device"] == rail.device[0]) != index
    until(lambda: whole(here, there, remote) == "rdma" and path_of(a, rail)["queue_pairs"] == 3, "traffic on it")


def test_all_rails_down(pair2, sides):
    """Without rails, transfers use the next transport, also those in flight, and the log reports it; later they use rdma again."""
    here, there = sides(16 * MIB, None, noise(16 * MIB))
    a = pair2.agents[0]
    remote = here.reach(there)
    assert whole(here, there, remote) == "rdma"
    fallbacks = counters(a)["dray_fallbacks_total"]
    under_way = [here.client.write(here.region, remote, [(0, 0, 16 * MIB)]) for _ in range(3)]
    for rail in pair2.rails:
        rail.link(False)
    for transfer in under_way:
        transfer.result(LIMIT)
    assert same(there.view, here.view)
    until(lambda: not up(a), "the end of both")
    assert whole(here, there, remote) == "tcp"
    assert counters(a)["dray_fallbacks_total"] > fallbacks
    assert "transfers use the next transport" in a.text()
    for rail in pair2.rails:
        rail.link(True)
    until(lambda: len(up(a)) == 2 and len(up(pair2.agents[1])) == 2, "their return")
    until(lambda: whole(here, there, remote) == "rdma", "rdma again")


@pytest.mark.parametrize("how", [("loss", "1%"), ("delay", "4ms", "reorder", "99%")], ids=["loss", "reordering"])
def test_bad_wire(rdma_lab, new_pair, how):
    """One packet in a hundred is lost or reordered."""
    a, b = new_pair(rdma__timeout="60ms")
    rail = rdma_lab.rails[0]
    with Side(a, MIB, noise(MIB)) as here, Side(b, MIB) as there:
        until(lambda: registered(a) and registered(b), "registration")
        remote = here.reach(there)
        for side in (0, 1):
            rail.netem(*how, "limit", "100000", side=side)
        try:
            assert whole(here, there, remote) == "rdma"
            here.view[:] = bytes(MIB)
            here.client.read(here.region, remote, [(0, 0, MIB)]).result(LIMIT)
            assert same(here.view, there.view)
        finally:
            for side in (0, 1):
                rail.calm(side)


def test_device_deleted_under_load(rdma_lab, short_limits_pair):
    """The removal of a device waits until all users have closed it: the agent closes it, and the rail comes back later."""
    a, b = short_limits_pair(2)
    rail = rdma_lab.rails[1]
    with Load((a, b), noise(2 * MIB)):
        until(lambda: path_of(a, rail)["slices"] > 2, "traffic on the rail")
        run("rdma", "link", "delete", rail.device[0])
        until(lambda: len(up(a)) == 1, "the rail's end")
        rail.add_device(0)
        until(lambda: len(up(a)) == 2, "the rail's return")
        until(lambda: path_of(a, rail)["queue_pairs"] >= 2, "its queue pairs")
        run("ip", "link", "delete", rail.netdev[0])  # both ends
        until(lambda: len(up(a)) == 1 and len(up(b)) == 1, "its end on both sides")
    rail.remove()
    rail.make()
    until(lambda: len(up(a)) == 2 and len(up(b)) == 2, "the rail's return")


# --- revocation ---------------------------------------------------------------------------------------------------

def owned(agent):
    """Memory regions of the agent's process, by number."""
    rows = json.loads(run("rdma", "-j", "resource", "show", "mr") or "[]")
    threads = {int(name) for name in os.listdir(f"/proc/{agent.pid}/task")}  # the kernel lists the registering thread as pid
    return {(r["ifname"], r["mrn"]) for r in rows if r.get("pid") in threads}


def test_revoked_registration_is_dropped(pair2, sides):
    """After all tokens are revoked the memory is registered with new keys, so the keys that importers have seen are invalid."""
    here, there = sides(MIB, None, noise(MIB))
    b = pair2.agents[1]
    assert whole(here, there, here.reach(there), MIB) == "rdma"
    old = owned(b)
    there.region.revoke()
    until(lambda: len(owned(b) - old) == len(old - owned(b)) == 2, "new memory regions on both devices")
    until(lambda: registered(b, 2), "registration")
    assert whole(here, there, here.reach(there), MIB) == "rdma"


def test_fence_without_answer(short_limits_pair):
    """The owner destroys the queue pairs of an importer that never acknowledges a fence; no late byte arrives."""
    a, b = short_limits_pair(peer__heartbeat_limit="60s")
    with Side(a, SIZE, pattern()) as here, Side(b, SIZE) as there:
        until(lambda: registered(a) and registered(b), "registration")
        remote = here.reach(there)
        transfers = start(here, remote, "write", 2)
        moving(here, there.view)
        a.signal(signal.SIGSTOP)
        try:
            there.region.revoke()
            wipe(there.view)
            assert not any(r["serving"] for r in listed(b, "rails"))
        finally:
            a.signal(signal.SIGCONT)
        assert names(transfers) <= {"ok", "peer_lost", "revoked"}  # revoked: the importer reads the fence before BYE
        assert untouched(there.view), "bytes landed after the revocation was answered"


# --- killed processes --------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("direction", ["read", "write"])
def test_client_killed(new_pair, direction):
    """The agent releases the memory of a killed client; other clients are not affected."""
    a, b = new_pair()
    size = 8 * MIB
    with Side(b, size) as there:
        mrs = resources(a, b)["mr"]
        with Actor(CLIENT, socket=a.socket, size=size, token=there.export(), direction=direction, ring=0) as actor:
            remote = there.client.import_token(actor.hear(), timeout=LIMIT)
            actor.tell("go")
            assert actor.hear() == "moving"
            actor.process.kill()
            assert concerns(there.client.next_event(dray.RemoteLost, LIMIT), remote)
            remote.release()
        until(lambda: a.resources().mappings == 0, "its memory's unmapping")
        until(lambda: resources(a, b)["mr"] == mrs, "its memory regions' end")
        if direction == "write":
            there.view[:] = bytes(size)
            a.client().close()
            assert same(there.view, bytes(size)), "bytes of a dead client still arrive"
        with Side(a, MIB, noise(MIB)) as other:
            until(lambda: registered(a), "registration")
            assert whole(other, there, other.reach(there), MIB) == "rdma"


def test_client_stopped(new_pair):
    """The transfers of a stopped client are carried out, and it finds their completions when it continues."""
    a, b = new_pair()
    size = MIB
    with Side(b, size) as there:
        with Actor(CLIENT, socket=a.socket, size=size, token=there.export(), direction="write", ring=1) as actor:
            actor.hear()
            actor.tell("go")
            assert actor.hear() == "moving"
            actor.process.send_signal(signal.SIGSTOP)
            until(lambda: not listed(a, "transfers"), "the end of all transfers")
            assert all(there.view[at] == 0x55 for at in range(0, size, 4096))
            with Side(a, MIB, noise(MIB)) as other:
                until(lambda: registered(a), "registration")
                assert whole(other, there, other.reach(there), MIB) == "rdma"
            actor.process.send_signal(signal.SIGCONT)
            actor.tell("end")
            assert actor.process.wait(LIMIT) == 0


def test_importing_agent_killed(new_pair):
    """The owner destroys the queue pairs that served a killed agent; after that no byte arrives in the owner's memory."""
    a, b = new_pair()
    with Side(a, SIZE, pattern()) as here, Side(b, SIZE) as there:
        until(lambda: registered(a) and registered(b), "registration")
        transfers = start(here, here.reach(there), "write", 2)
        moving(here, there.view)
        a.kill()
        until(lambda: not listed(b, "peers"), "the peer's end")
        until(lambda: not any(r["serving"] for r in listed(b, "rails")), "the queue pairs' end")
        wipe(there.view)
        there.region.revoke()
        a.start()
        here.client.reconnect()
        assert names(transfers) <= {"ok", "agent_restarted"}
        until(lambda: len(up(a)) == 1 and registered(a), "registration")
        assert untouched(there.view), "bytes of a dead agent still arrive"
        assert whole(here, there, here.reach(there), MIB) == "rdma"


# --- memory that no device registers -----------------------------------------------------------------------------------

def test_memlock(rdma_lab):
    """If RLIMIT_MEMLOCK is too low, the region's state names the limit and the requested size, and transfers use tcp."""
    rails = rdma_lab.make(1)
    a = rdma_lab.lab.agent("poor", settings={"rdma.devices": rails[0].device[0]},
                           wrap=["prlimit", "--memlock=1048576", "setpriv", "--bounding-set=-ipc_lock", "--inh-caps=-ipc_lock"]).start()
    b = rdma_lab.agent(1, rails)
    try:
        until(lambda: len(up(a)) == 1 and len(up(b)) == 1, "the rails")
        with Side(a, 8 * MIB, noise(8 * MIB)) as here, Side(b, 8 * MIB) as there:
            until(lambda: "limit of 1024 KiB" in listed(a, "regions")[0]["rdma"], "the refusal")
            text = listed(a, "regions")[0]["rdma"]
            assert "8192 KiB, added to" in text and "LimitMEMLOCK" in text
            assert whole(here, there, here.reach(there)) == "tcp"
            assert counters(a)["dray_registration_failures_total"] >= 1
            assert "are not registered" in a.text()
        with Side(a, MIB // 4, noise(MIB // 4)) as here, Side(b, MIB) as there:
            until(lambda: registered(a) and registered(b), "registration of what fits")
            assert whole(here, there, here.reach(there), MIB // 4) == "rdma"
    finally:
        a.stop()
        b.stop()


def test_read_only_memory(pair2):
    """This kernel cannot register memory that is mapped read-only: the region's state says so, and transfers use tcp."""
    a, b = pair2.agents
    with Side(a, MIB) as here, b.client() as client:
        memory = dray.Memory(MIB)
        memory.view[:] = noise(MIB)
        region = client.region(memory, access="r")
        until(lambda: "reading only" in listed(b, "regions")[0]["rdma"], "the refusal")
        remote = here.client.import_token(str(region.export()), timeout=LIMIT)
        done = here.client.read(here.region, remote, [(0, 0, MIB)]).result(LIMIT)
        assert transport(done) == "tcp"
        assert same(here.view, memory.view)
        memory.close()


# --- leaks -----------------------------------------------------------------------------------------------------------------

ROUNDS = 300 if "DRAY_LONG" in os.environ else 4


def rounds(a, b, n):
    """Opens two sessions, and n times a connection between their agents with queue pairs and an import."""
    with Side(a, 65536, noise(65536)) as here, Side(b, 65536) as there:
        until(lambda: registered(a) and registered(b), "registration")
        port = there.client.segment.rsplit(":", 1)[1]
        for _ in range(n):
            remote = here.reach(there)
            assert whole(here, there, remote, 65536) == "rdma"
            there.view[:] = bytes(65536)
            run("ss", "-K", "dst", "127.0.0.1", "dport", "=", port)
            assert concerns(here.client.next_event(dray.RemoteLost, LIMIT), remote)
            remote.release()
    until(lambda: not listed(a, "peers") and not listed(b, "peers"), "the end of the connection")


def test_reconnects_leak_nothing(new_pair):
    """After many reconnects and sessions the kernel has as many objects as before."""
    a, b = new_pair()
    rounds(a, b, 1)
    until(lambda: resources(a, b)["qp"] == 0, "the end of the queue pairs")
    until(lambda: not listed(a, "regions") and not listed(b, "regions"), "the end of the regions")
    before, fds = resources(a, b), [x.resources().fds for x in (a, b)]
    for done in range(0, ROUNDS, 10):
        rounds(a, b, min(10, ROUNDS - done))
    assert before["mr"] and before["cq"] and before["pd"]
    until(lambda: resources(a, b) == before, f"as many objects as before: {before}")
    until(lambda: [x.resources().fds for x in (a, b)] == fds, "as many descriptors as before")
    assert not any(r["queue_pairs"] or r["serving"] for x in (a, b) for r in listed(x, "rails"))
