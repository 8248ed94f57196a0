# SPDX-License-Identifier: Apache-2.0
"""Failure, silence and revocation during transfers: typed errors, memory that does not change afterwards, no leaks."""

import contextlib
import os
import random
import shutil
import signal
from collections import Counter

import dray
import pytest
import wire
from harness import LIMIT, MIB, STREAMS, Actor, Side, concerns, counters, expect, noise, nothing_leaked, same, until

SIZE = (8 if "DRAY_VM" in os.environ else 32) * MIB  # less in an emulated machine, which is slower
N = 16


def pattern():
    """SIZE bytes, not zero at the start of each page."""
    block = bytearray(noise(MIB))
    block[::4096] = b"\x55" * (MIB // 4096)
    return bytes(block) * (SIZE // MIB)


def start(side, remote, direction, n=N, forever=True):
    """Starts n transfers of the whole memory, and one that waits for its wait word, so that one is certainly in flight."""
    transfers = [side.client.transfer(direction, side.region, remote, [(0, 0, SIZE)], deadline=120) for _ in range(n)]
    if forever:
        transfers.append(side.client.transfer(direction, side.region, remote, [(0, 0, 1)], deadline=120,
                                              wait_word=(side.region, 8, 0x5eedfeed)))
    return transfers


def moving(side, view):
    """Waits until the first bytes arrive in view, which was filled with zeros."""
    until(lambda: view[0] or view[SIZE // 2] or side.client.process(), "the first byte")


def names(transfers):
    """The results of the transfers: names of errors, or ok."""
    ended = [t.exception(LIMIT) for t in transfers]
    return {e.name if e else "ok" for e in ended}


def wipe(view):
    for at in range(0, SIZE, 4096):
        view[at] = 0


def untouched(view):
    return not any(view[0:SIZE:4096])


# --- revocation ------------------------------------------------------------------------------------

@pytest.mark.parametrize("direction", ["read", "write"])
@pytest.mark.parametrize("how", ["revoke", "revoke all", "remove"])
def test_revoked_during_transfers(sides, direction, how):
    """After the answer to REVOKE or REMOVE no byte of the region is written or read any more."""
    here, there = sides(SIZE, pattern() if direction == "read" else None, pattern() if direction == "write" else None)
    token = there.region.export()
    remote = here.client.import_token(token, timeout=LIMIT)
    transfers = start(here, remote, direction)
    moving(here, (here if direction == "read" else there).view)
    if how == "remove":
        there.region.remove()
    else:
        assert there.region.revoke(token if how == "revoke" else None) == 1
    if direction == "write":
        wipe(there.view)
    assert names(transfers) <= {"ok", "revoked", "not_found"}  # not_found: the agent had not read the transfer yet
    assert "revoked" in names(transfers)
    if direction == "write":
        assert untouched(there.view), "bytes landed after the revocation was answered"
    assert concerns(here.client.next_event(dray.RemoteLost, LIMIT), remote)
    expect({"revoked", "not_found"}, lambda: here.client.read(here.region, remote, [(0, 0, 1)]).result(LIMIT))
    remote.release()


def test_released_during_transfers(sides):
    """REMOTE_RELEASE cancels the remote's transfers first; after the answer the local memory does not change."""
    here, there = sides(SIZE, pattern())
    remote = here.reach(there)
    transfers = start(here, remote, "read")
    moving(here, here.view)
    remote.release()
    wipe(here.view)
    assert names(transfers) <= {"ok", "cancelled"}
    assert "cancelled" in names(transfers)
    assert untouched(here.view), "bytes landed after the release was answered"


def test_revocation_spares_other_transfers(sides):
    """A revocation does not affect other transfers between the same two agents."""
    here, there = sides(SIZE, pattern())
    other_here, other_there = sides(SIZE, pattern())
    remote, other = here.reach(there), other_here.reach(other_there)
    transfers, others = start(here, remote, "read"), start(other_here, other, "read", 4, forever=False)
    moving(here, here.view)
    there.region.revoke()
    assert names(others) == {"ok"}
    assert same(other_here.view, other_there.view)
    assert "revoked" in names(transfers)


# --- clients that die ---------------------------------------------------------------------------------

CLIENT = """
import wire
client = wire.Client(args["socket"])
memory = dray.Memory(args["size"])
memory.view[::4096] = b"\\x55" * (args["size"] // 4096)
region = client.region(memory)
remote = client.import_token(args["token"])
tell(str(region.export()))
if hear() == "fork" and os.fork() == 0:
    time.sleep(1000)  # keeps socket, doorbells and memory open, and sends nothing
transfers = [client.transfer(args["direction"], region, remote, [(0, 0, args["size"])]) for _ in range(30)]
if args["ring"]:
    transfers += [client.transfer(args["direction"], region, remote, [(0, 0, args["size"])], via="ring") for _ in range(30)]
transfers[0].result(30)
tell("moving")
hear()
"""


@pytest.mark.parametrize("ring", [0, 1], ids=["socket", "ring"])
@pytest.mark.parametrize("direction", ["read", "write"])
@pytest.mark.parametrize("way", ["killed", "forked"])
@pytest.mark.parametrize("path", ["local", "tcp"])
def test_client_dies_during_transfers(request, path, way, direction, ring):
    """The agent releases everything of a dead client at once, even if a child process still holds the socket."""
    agents = (request.getfixturevalue("agent"),) * 2 if path == "local" else request.getfixturevalue("pair")
    size = 16 * MIB
    with Side(agents[1], size) as there, nothing_leaked(*agents, streams=STREAMS):
        mappings = agents[0].resources().mappings
        with Actor(CLIENT, socket=agents[0].socket, size=size, token=there.export(), direction=direction, ring=ring) as actor:
            remote = there.client.import_token(actor.hear(), timeout=LIMIT)
            back = there.client.read(there.region, remote, [(0, 0, 1)])
            assert back.exception(LIMIT) is None
            actor.tell("fork" if way == "forked" else "go")
            assert actor.hear() == "moving"
            group = os.getpgid(actor.pid)
            children = children_of(actor.pid)
            assert len(children) == (way == "forked")
            actor.process.kill()
            try:
                # importers lose its exported ranges at once
                assert concerns(there.client.next_event(dray.RemoteLost, LIMIT), remote)
                remote.release()
                until(lambda: agents[0].resources().mappings == mappings, "its memory's unmapping")
                if direction == "write":
                    # what was in the sockets before may arrive until the right on its target is revoked
                    sent = sent_bytes(agents[0])
                    there.region.revoke()
                    there.view[:] = bytes(size)
                    agents[0].client().close()
                    assert same(there.view, bytes(size)), "bytes of a dead client still arrive"
                    assert sent_bytes(agents[0]) == sent, "bytes of a dead client are still sent"
            finally:
                for child in children:
                    os.kill(child, signal.SIGKILL)
            del group


def sent_bytes(agent):
    return counters(agent)["dray_tcp_sent_bytes_total"]


def children_of(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as f:
        return [int(child) for child in f.read().split()]


def test_many_clients_die(agent):
    """Six clients die at the same time."""
    with Side(agent, MIB, noise(MIB)) as there, nothing_leaked(agent), contextlib.ExitStack() as stack:
        actors = [stack.enter_context(Actor(CLIENT, socket=agent.socket, size=MIB, token=there.export(), direction="read", ring=1))
                  for _ in range(6)]
        for actor in actors:
            actor.hear()
            actor.tell("go")
        for actor in actors:
            actor.hear()
        for actor in actors:
            actor.process.kill()


# --- peers that die or fall silent ------------------------------------------------------------------------

def lost(agents, here, there, remote, direction, harm, mend, allowed=("peer_lost",)):
    """harm() disturbs the peer during transfers, which must end with peer_lost; mend() undoes that."""
    transfers = start(here, remote, direction)
    moving(here, (here if direction == "read" else there).view)
    harm()
    ended = names(transfers)
    assert ended <= {"ok", *allowed}, ended
    assert transfers[-1].exception().name in allowed
    if direction == "read":
        wipe(here.view)
    assert concerns(here.client.next_event(dray.RemoteLost, LIMIT), remote)
    expect({"peer_lost", "not_found", "revoked"}, lambda: here.client.read(here.region, remote, [(0, 0, 1)]).result(LIMIT))
    with Side(agents[0], MIB) as one, Side(agents[0], MIB, noise(MIB)) as two:  # other sessions are served meanwhile
        one.client.read(one.region, one.reach(two), [(0, 0, MIB)]).result(LIMIT)
        assert same(one.view, two.view)
    mend()
    if direction == "read":
        assert untouched(here.view), "bytes landed after the peer was reported lost"
    remote.release()


@pytest.mark.parametrize("direction", ["read", "write"])
def test_peer_killed(new_pair, direction):
    a, b = new_pair()
    with Side(a, SIZE, pattern() if direction == "write" else None) as here:
        there = Side(b, SIZE, pattern() if direction == "read" else None)
        lost((a, b), here, there, here.reach(there), direction, b.kill, b.start)
        there.client.reconnect()
        remote = here.reach(there)
        here.client.transfer(direction, here.region, remote, [(0, 0, MIB)]).result(LIMIT)
        assert same(here.view[:MIB], there.view[:MIB])
        there.close()


@pytest.mark.parametrize("direction", ["read", "write"])
def test_peer_stopped(short_limits_pair, direction):
    """A peer stopped by SIGSTOP is lost by its silence. After SIGCONT it notices the lost connection and accepts a new one."""
    a, b = short_limits_pair()
    with Side(a, SIZE, pattern() if direction == "write" else None) as here, \
            Side(b, SIZE, pattern() if direction == "read" else None) as there:
        lost((a, b), here, there, here.reach(there), direction, lambda: b.signal(signal.SIGSTOP),
             lambda: b.signal(signal.SIGCONT))
        remote = here.reach(there)
        here.client.transfer(direction, here.region, remote, [(0, 0, SIZE)]).result(LIMIT)
        assert same(here.view, there.view)


@pytest.mark.parametrize("user", ["near", "far"])
def test_resting_peer_stopped(short_limits_pair, user):
    """Resting peers send few heartbeats. As soon as one of them has work, a stopped peer is lost within the usual limit."""
    a, b = short_limits_pair(peer__rest_heartbeat="60s")
    with Side(a, MIB) as here, Side(b, MIB) as there:
        sides = {"near": (here, there), "far": (there, here)}
        remotes = {name: mine.reach(other) for name, (mine, other) in sides.items()}

        def read(name):
            return sides[name][0].client.read(sides[name][0].region, remotes[name], [(0, 0, MIB)])

        def silence_ns():
            (peer,) = a.ctl("peers", "--json")["peers"]
            assert peer["state"] == "ready", peer
            return peer["heartbeat_age_ns"]

        read("near").result(LIMIT)
        until(lambda: silence_ns() > 1.2e9, "silence longer than the usual limit, without a loss")
        read(user).result(LIMIT)
        b.signal(signal.SIGSTOP)
        try:
            expect("peer_lost", read("near").result, LIMIT)
        finally:
            b.signal(signal.SIGCONT)
        here.reach(there)


@pytest.mark.parametrize("direction", ["read", "write"])
def test_link_cut(lab, short_limits_pair, direction):
    """After a link is cut, both ends lose the other in time."""
    lab.need_namespaces()
    a, b = short_limits_pair()
    link = lab.hosts[1].link
    try:
        with Side(a, SIZE, pattern() if direction == "write" else None) as here, \
                Side(b, SIZE, pattern() if direction == "read" else None) as there:
            back = there.reach(here)
            remote = here.reach(there)
            lost((a, b), here, there, remote, direction, lambda: link(False), lambda: None)
            assert concerns(there.client.next_event(dray.RemoteLost, LIMIT), back)  # the other end has lost the peer, too
            if direction == "write":  # packets that were in flight must not arrive later
                wipe(there.view)
            link(True)
            remote = here.reach(there)
            here.client.transfer(direction, here.region, remote, [(1, 1, MIB)]).result(LIMIT)
            assert same(here.view[1:MIB + 1], there.view[1:MIB + 1])
            if direction == "write":
                assert not any(there.view[2 * MIB:SIZE:4096]), "bytes landed after the link came back"
    finally:
        link(True)


def test_region_removed_while_the_importer_is_cut_off(lab, new_pair):
    """REGION_REMOVE ends at the fence's timeout if the importer cannot answer."""
    lab.need_namespaces()
    a, b = new_pair(peer__fence_timeout="500ms")
    try:
        with Side(a, MIB) as here, Side(b, MIB, noise(MIB)) as there:
            here.reach(there)
            lab.hosts[1].link(False)
            there.region.remove()
    finally:
        lab.hosts[1].link(True)


def test_notifications_across_a_lost_peer(lab, short_limits_pair):
    """When a peer is lost, each notification comes at most once, and every notification reported as ok has come."""
    a, b = short_limits_pair()
    with Side(a, MIB) as here, Side(b, MIB, noise(MIB), notifications=True) as there:
        remote = here.reach(there)
        transfers = [here.client.write(here.region, remote, [(0, 0, MIB)], notify=(i, b"")) for i in range(200)]
        transfers[20].exception(LIMIT)
        b.signal(signal.SIGSTOP)
        ended = [t.exception(LIMIT) for t in transfers]
        b.signal(signal.SIGCONT)
        assert {e.name for e in ended if e} <= {"peer_lost"}
        here.reach(there)  # both ends have connected again
        there.client.process()
        tags = [e.tag for e in there.client.events if isinstance(e, dray.Notification)]
        assert len(tags) == len(set(tags)), "a notification came twice"
        assert {i for i, e in enumerate(ended) if not e} <= set(tags), "a notification reported as delivered is missing"


def test_peer_restarted_at_once(new_pair):
    """The remotes of the old incarnation are void, even if the peer restarts faster than its loss is noticed."""
    a, b = new_pair()
    with Side(a, MIB) as here, Side(b, MIB, noise(MIB)) as there:
        remote = here.reach(there)
        here.client.read(here.region, remote, [(0, 0, 1)]).result(LIMIT)
        b.restart()
        expect({"peer_lost", "incarnation", "not_found"}, lambda: here.client.read(here.region, remote, [(0, 0, 1)]).result(LIMIT))
        there.client.reconnect()
        again = here.reach(there)
        here.client.read(here.region, again, [(0, 0, MIB)]).result(LIMIT)
        assert same(here.view, there.view)


def test_same_id_twice(lab, new_agent):
    """Two agents that use the same id at the same time (a copied state directory): the second is refused with identity."""
    how = {"key": lab.key}
    one, b = new_agent("one", **how), new_agent("b", **how)
    twin = new_agent("twin", start=False, **how)
    twin.state_dir.mkdir(mode=0o700)
    shutil.copy(one.state_dir / "agent_id", twin.state_dir / "agent_id")
    twin.start()
    with Side(b, MIB) as here, Side(one, MIB) as first, Side(twin, MIB) as second:
        assert first.client.agent_id == second.client.agent_id
        remote = here.reach(first)
        expect("identity", here.client.import_token, second.export(), timeout=5)
        here.client.read(here.region, remote, [(0, 0, 1)]).result(LIMIT)
        assert "identity" in b.text() or first.client.agent_id.hex() in b.text()


def test_token_of_the_first_of_two_with_one_id(lab, new_agent):
    """With the second agent of an id connected, a token of the first, which runs too, is refused with identity, not as of before a restart."""
    how = {"key": lab.key}
    one, b = new_agent("one", **how), new_agent("b", **how)
    twin = new_agent("twin", start=False, **how)
    shutil.copytree(one.state_dir, twin.state_dir)
    twin.start()
    with Side(b, MIB) as here, Side(one, MIB) as first, Side(twin, MIB) as second:
        remote = here.reach(second)
        error = expect("identity", here.client.import_token, first.export(), timeout=5)
        assert "restarted" not in str(error)
        here.client.read(here.region, remote, [(0, 0, 1)]).result(LIMIT)
        assert "state directory" in b.text()
        # a client of one agent gets a token of the other
        error = expect("identity", first.client.import_token, second.export(), timeout=5)
        assert "state directory" in str(error)
        # nobody answers at the segment any more: then the owner was restarted, as far as anyone can know
        token = first.export()
        one.stop()
        expect("incarnation", here.client.import_token, token, timeout=5)


# --- restart of the client's own agent -----------------------------------------------------------------------

def test_agent_restarted(new_agent):
    """Transfers in flight end with agent_restarted; after the reconnect regions work again, and pools belong to the client."""
    agent = new_agent()
    with Side(agent, MIB) as here, Side(agent, MIB, noise(MIB)) as there:
        remote = here.reach(there)
        pool = here.client.pool(MIB)
        pool.memory.view[:5] = b"alive"
        flying = [here.client.read(here.region, remote, ops, wait_word=(here.region, 8, 1))
                  for ops in ([(0, 0, 1)], [(0, 0, 1), (2, 2, 1)])]
        old = here.client.incarnation
        agent.restart()
        assert names(flying) == {"agent_restarted"}
        there.client.reconnect()
        expect("agent_restarted", here.client.read, here.region, remote, [(0, 0, 1)])
        here.client.reconnect()
        assert here.client.incarnation > old
        remote = here.reach(there)
        for region, view in ((here.region, here.view), (pool, pool.memory.view)):
            for ops in ([(0, 0, MIB)], [(1, 1, MIB - 1), (0, 0, 1)]):
                view[:] = bytes(len(view))
                here.client.read(region, remote, ops).result(LIMIT)
                assert same(view, there.view)
        kinds = [type(e).__name__ for e in here.client.events]
        assert kinds == ["Disconnected", "Reconnected"]
        assert here.client.events[1].regions == 2 and not here.client.events[1].failed
        pool.memory.close()


def test_agent_restarted_event_driven(new_agent):
    """The same for a client with an event loop of its own."""
    import select
    agent = new_agent()
    with agent.client() as client, dray.Memory(MIB) as memory:
        client.region(memory)
        agent.restart()
        while len(client.events) < 2:  # the loss, and then the new session
            ready, _, _ = select.select([client], [], [], LIMIT)
            assert ready
            client.process()
        assert [type(event) for event in client.events] == [dray.Disconnected, dray.Reconnected]
        assert client.connected and client.events[1].regions == 1


def test_agent_stays_away(new_agent):
    """Without an agent, a request fails after the client's patience, and names the socket."""
    agent = new_agent()
    client = agent.client(patience=0.2)
    memory = dray.Memory(4096)
    agent.stop()
    assert str(agent.socket) in str(expect("peer_unreachable", client.region, memory))
    client.close()
    expect("session_closed", client.region, memory)
    expect("peer_unreachable", agent.client)
    memory.close()


# --- random sequences -----------------------------------------------------------------------------

class Chaos:
    """Sessions on both agents with random actions; everything must end, with an expected error or ok."""

    SIZE = 256 * 1024
    UNEXPECTED = {"internal", "protocol", "io", "agent_restarted", "unknown", "region_fault", "timeout"}

    def __init__(self, agents, seed):
        self.agents, self.rng = agents, random.Random(seed)
        self.sides, self.remotes, self.flying, self.answers, self.ended = [], [], [], [], Counter()

    def open(self):
        if len(self.sides) < 8:
            side = Side(self.rng.choice(self.agents), self.SIZE, noise(self.SIZE), wire=True, notifications=self.rng.random() < 0.5,
                        group=self.rng.choice(["", "g", "h"]), ring_entries=16, arena_bytes=1 << 16)
            self.sides.append(side)

    def close(self):
        if len(self.sides) > 3:
            side = self.sides.pop(self.rng.randrange(len(self.sides)))
            self.remotes = [r for r in self.remotes if r[0] is not side]
            side.client.close(timeout=self.rng.choice([0, 5]))
            side.memory.close()

    def pick(self):
        return self.rng.choice(self.sides) if self.sides else self.open() or self.sides[0]

    def reach(self):
        near, far = self.pick(), self.pick()
        try:
            token = far.region.export(single_use=self.rng.random() < 0.2, ttl=self.rng.choice([None, 0.01, 30]))
            self.remotes.append((near, near.client.import_token(token, timeout=LIMIT)))
        except wire.Error as e:
            self.count(e)

    def transfer(self):
        if not self.remotes:
            return self.reach()
        near, remote = self.rng.choice(self.remotes)
        how = {"klass": self.rng.choice(["bulk", "latency"]), "deadline": self.rng.choice([None, 0.005, 0.5]),
               "via": self.rng.choice(["inline", "arena", "ring"])}
        if self.rng.random() < 0.3:
            how["notify"] = (self.rng.randrange(100), bytes(self.rng.randrange(200)))
        if self.rng.random() < 0.1:
            how.update(wait_word=(near.region, 64, 0x12345), deadline=0.2)
        if self.rng.random() < 0.2:
            how["set_word"] = (near.region, 128, self.rng.randrange(1 << 32))
        ops = []
        for _ in range(self.rng.choice([1, 3, 50])):
            length = self.rng.choice([1, 100, 4096, 100000])
            ops.append((self.rng.randrange(self.SIZE - length), self.rng.randrange(self.SIZE - length), length))
        try:
            self.flying.append(near.client.transfer(self.rng.choice(["read", "write"]), near.region, remote, ops, **how))
        except wire.Error as e:
            self.count(e)

    def cancel(self):
        if self.flying:
            transfer = self.rng.choice(self.flying)
            if not transfer.done():
                self.ask(transfer.cancel)

    def revoke(self):
        self.ask(self.pick().region.revoke)

    def remove(self):
        side = self.pick()
        self.ask(side.region.remove)
        side.region = side.client.region(side.memory)

    def release(self):
        if self.remotes:
            near, remote = self.remotes.pop(self.rng.randrange(len(self.remotes)))
            self.ask(remote.release)

    def ask(self, fn):
        try:
            self.answers.append(fn(wait=False))
        except wire.Error as e:
            self.count(e)

    def count(self, error):
        name = error.name if error else "ok"
        assert name not in self.UNEXPECTED, error
        self.ended[name] += 1

    def settle(self, most):
        while len(self.flying) > most:
            self.count(self.flying.pop(self.rng.randrange(len(self.flying))).exception(LIMIT))
        while len(self.answers) > most:
            self.count(self.answers.pop(0).exception(LIMIT))

    def run(self, steps):
        actions = [self.open] * 2 + [self.close] * 2 + [self.reach] * 5 + [self.transfer] * 40 + [self.cancel] * 4 + \
            [self.revoke, self.remove, self.release] * 2
        for _ in range(steps):
            self.rng.choice(actions)()
            self.settle(100)
        self.settle(0)
        for side in self.sides:
            side.close()


@pytest.mark.parametrize("seed", range(3))
def test_chaos(pair, seed):
    chaos = Chaos(pair, seed)
    chaos.run(1500)
    assert chaos.ended["ok"] > 100, chaos.ended
