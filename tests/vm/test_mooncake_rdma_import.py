# SPDX-License-Identifier: Apache-2.0
"""The agent as the initiator towards engines that have Mooncake linked in, over Soft-RoCE: Mooncake's engine at one end of a rail, the agent at
the other."""

import contextlib
import json
import os
import random
import re
import signal
import socket
import struct
import subprocess
import threading

import mooncake_rig as rig
import pytest
from conftest import up
from dray import errors
from harness import LIMIT, MIB, noise, until
from mooncake_rig import Local, Owner, counter, digest, segment
from test_mooncake_import import history, imported
from test_mooncake_metadata import real
from test_mooncake_rdma import CONNECTION, GID, LOCAL_HOST, on_rail, packets

RDMA = 3  # of DRAY_TRANSPORT_*


@pytest.fixture
def importer(rdma_lab):
    """Agents that import from engines."""
    yield from on_rail(rdma_lab, lambda rail: {"mooncake.import": "true"})


def engine_of(t, size, name=None, metadata="P2PHANDSHAKE", **env):
    return rig.Engine(t.agent, size, name or t.rail.address[0], metadata, how=("rdma", t.rail.device[0]), MC_GID_INDEX=str(t.rail.gid_index(0)), **env)


def round_trip(local, base, engine=None):
    """What is written is there, and is read back."""
    n = len(local.view)
    local.write([(0, base, n)]).result(LIMIT)
    want = digest(local.view)
    assert engine is None or engine("digest", 0, n) == want
    local.view[:] = bytes(n)
    done = local.read([(0, base, n)]).result(LIMIT)
    assert digest(local.view) == want and done.transport == RDMA


def test_import_transfers(importer):
    """Reads and writes of all sizes and both classes, whole and scattered: the bytes arrive, over queue pairs alone."""
    t = importer()
    size = 8 * MIB
    with engine_of(t, size) as engine, Local(t.agent, engine.endpoint, size, noise(size, 1)) as local:
        before = packets(t)
        round_trip(local, engine.base, engine)
        assert packets(t) - before > size // 4096
        for n in 1, 4095, 65537, 3 * MIB + 5:
            for klass in "bulk", "latency":
                local.write([(5, engine.base + 7, n)], klass=klass).result(LIMIT)
                assert engine("digest", 7, n) == digest(local.view[5:5 + n])
                want = digest(local.view[5:5 + n])
                local.view[5:5 + n] = bytes(n)
                local.read([(5, engine.base + 7, n)], klass=klass).result(LIMIT)
                assert digest(local.view[5:5 + n]) == want
        pages = list(range(0, size, 4096))
        random.Random(1).shuffle(pages)
        want = bytearray(size)
        for transfer in [local.write([(i * 4096, engine.base + page, 4096) for i, page in list(enumerate(pages))[k::8]]) for k in range(8)]:
            transfer.result(LIMIT)
        for i, page in enumerate(pages):
            want[page:page + 4096] = local.view[i * 4096:(i + 1) * 4096]
        assert engine("digest", 0, size) == digest(want)
        for bad in engine.base - 1, engine.base + size:
            with pytest.raises(errors.Range):
                local.write([(0, bad, 1)]).result(LIMIT)
        shown, = t.agent.ctl("peers", "--json")["peers"]
        assert (shown["segment"], shown["state"], shown["transport"]) == (engine.endpoint, "ready", "rdma")
        assert shown["queue_pairs"] and shown["sent_bytes"] and shown["received_bytes"]
        local.remote.release()
        until(lambda: not counter(t.agent, "engines"), "the end of the engine")
    assert history(t.agent, engine.endpoint) == [("", "ready"), ("ready", "closed")]


def test_import_again(importer):
    """Imports of one engine one after the other, each with queue pairs of its own; a region that is added later is used at once."""
    t = importer()
    with engine_of(t, MIB) as engine:
        for i in range(6):
            with Local(t.agent, engine.endpoint, MIB, noise(MIB, i)) as local:
                round_trip(local, engine.base, engine)
            until(lambda: not counter(t.agent, "engines"), "the end of the engine")


def test_import_unregistered(importer):
    """Memory that the engine has unregistered since the import is refused, other transfers go on, and another import shows what there is."""
    t = importer()
    with engine_of(t, 4 * MIB) as engine, Local(t.agent, engine.endpoint, MIB, noise(MIB, 3)) as local:
        local.write([(0, engine.base, MIB)]).result(LIMIT)
        assert engine("unregister", 0) == 0 and engine("register", 0, 2 * MIB) == 0
        for start in local.write, local.read:
            with pytest.raises(errors.Revoked):
                start([(0, engine.base, MIB)]).result(LIMIT)
        with Local(t.agent, engine.endpoint, MIB, noise(MIB, 4)) as other:
            assert other.remote.length == engine.base + 2 * MIB
            mixed = [start([(at, engine.base + at, 4096)]) for at in range(0, MIB, 65536) for start in (other.write, local.write)]
            for i, transfer in enumerate(mixed):
                if i % 2:
                    with pytest.raises(errors.Revoked):
                        transfer.result(LIMIT)
                else:
                    transfer.result(LIMIT)
            for at in range(0, MIB, 65536):
                assert engine("digest", at, 4096) == digest(other.view[at:at + 4096])


def slowed(t, local, engine, direction, size, **how):
    """A transfer of some seconds, which has begun."""
    t.rail.netem("rate", "100mbit", side=1)
    t.rail.netem("rate", "100mbit", side=0)
    before = packets(t)
    transfer = local.client.transfer(direction, local.region, local.remote, [(0, engine.base, size)], **how)
    until(lambda: packets(t) - before > 10, "some packets")
    return transfer


@pytest.mark.parametrize("direction", ["write", "read"])
def test_import_killed(importer, direction):
    """Mooncake is killed in the middle of a transfer: it ends with peer_lost, the remote is lost, and the memory can be given back."""
    t = importer()
    size = 64 * MIB
    with engine_of(t, size) as engine, Local(t.agent, engine.endpoint, size, noise(MIB, 5)) as local:
        local.write([(0, engine.base, 1)]).result(LIMIT)
        transfer = slowed(t, local, engine, direction, size, deadline=LIMIT)
        engine.process.kill()
        with pytest.raises(errors.PeerLost):
            transfer.result(2 * LIMIT)
        if direction == "write":  # whose loss alone shows nothing about the next attempt
            with pytest.raises(errors.PeerLost):
                local.write([(0, engine.base, 1)], deadline=LIMIT).result(2 * LIMIT)
        until(lambda: not counter(t.agent, "engines"), "the end of the engine")
        assert history(t.agent, engine.endpoint) == [("", "ready"), ("ready", "lost"), ("lost", "closed")]
        local.region.remove()
    for side in 0, 1:
        t.rail.calm(side)


@pytest.mark.parametrize("direction", ["write", "read"])
def test_import_cut_off(importer, direction):
    """The network is cut in the middle of a transfer: it ends by its deadline, and its memory is not touched when the network is back."""
    t = importer()
    size = 64 * MIB
    with engine_of(t, size) as engine, Local(t.agent, engine.endpoint, size, noise(MIB, 6)) as local:
        local.write([(0, engine.base, 1)]).result(LIMIT)
        transfer = slowed(t, local, engine, direction, size, deadline=5.0)
        for side in 0, 1:
            t.rail.netem("loss", "100%", side=side)
        try:
            with pytest.raises((errors.Deadline, errors.PeerLost, errors.Unconfirmed)):
                transfer.result(LIMIT)
            until(lambda: not t.agent.ctl("transfers", "--json")["transfers"], "no transfers")
            local.view[:] = bytes(size)
        finally:
            for side in 0, 1:
                t.rail.calm(side)
        with Local(t.agent, engine.endpoint, MIB, noise(MIB, 7)) as other:
            round_trip(other, engine.base, engine)
        assert not any(local.view[::4096])


@pytest.mark.parametrize("how", ["cancel", "release", "remove", "close"])
@pytest.mark.parametrize("direction", ["write", "read"])
def test_import_ends(importer, direction, how):
    """A cancel, and the end of the remote, region or session, end a transfer in its middle; others go on."""
    t = importer()
    size = 64 * MIB
    with engine_of(t, size) as engine, Local(t.agent, engine.endpoint, size, noise(MIB, 8)) as local, \
            Local(t.agent, engine.endpoint, 4096, noise(4096, 9)) as beside:
        local.write([(0, engine.base, 1)]).result(LIMIT)
        transfer = slowed(t, local, engine, direction, size, deadline=LIMIT)
        if how == "close":
            local.client.close()
            until(lambda: len(t.agent.ctl("sessions", "--json")["sessions"]) == 1, "the end of the session")
        else:
            {"cancel": transfer.cancel, "release": local.remote.release, "remove": local.region.remove}[how]()
            with pytest.raises(errors.Error):
                transfer.result(LIMIT)
        for side in 0, 1:
            t.rail.calm(side)
        round_trip(beside, engine.base)
        until(lambda: not t.agent.ctl("transfers", "--json")["transfers"], "no transfers")


def test_import_stopped(importer):
    """Mooncake stands still: imports end with their time, and transfers that need queue pairs by their deadline. Those that have some go on,
    because the device answers. When Mooncake goes on, all do."""
    t = importer()
    with engine_of(t, MIB) as engine, Local(t.agent, engine.endpoint, MIB, noise(MIB, 1)) as local:
        engine.process.send_signal(signal.SIGSTOP)
        with pytest.raises((errors.Deadline, errors.Unconfirmed)):
            local.write([(0, engine.base, MIB)], deadline=1.0).result(LIMIT)
        engine.process.send_signal(signal.SIGCONT)
        with Local(t.agent, None, MIB, noise(MIB, 2)) as again:
            until(lambda: imported(again, engine.endpoint), "an import")
            round_trip(again, engine.base, engine)
            engine.process.send_signal(signal.SIGSTOP)
            with pytest.raises(errors.Timeout):
                local.client.import_token(f"mooncake://{engine.endpoint}", timeout=0.5)
            again.view[:] = bytes(MIB)
            again.read([(0, engine.base, MIB)]).result(LIMIT)
            assert digest(again.view) == digest(noise(MIB, 2))
            engine.process.send_signal(signal.SIGCONT)


def test_import_bench(importer):
    """Mooncake's own benchmark as target: what is written to its buffer is read back."""
    t = importer()
    bench = next(rig.mooncake_python().parents[1].glob("lib/python*/site-packages/mooncake/transfer_engine_bench"))
    size = 32 * MIB
    target = subprocess.Popen(
        ["setpriv", "--pdeathsig=KILL", bench, "--mode=target", "--metadata_server=P2PHANDSHAKE", "--protocol=rdma",
         f"--device_name={t.rail.device[0]}", f"--local_server_name={t.rail.address[0]}", f"--buffer_size={size}"],
        env={**os.environ, "LD_LIBRARY_PATH": str(bench.parent), "MC_GID_INDEX": str(t.rail.gid_index(0))}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True)
    try:
        said = []
        while not (found := re.search(rf"listening on ({re.escape(t.rail.address[0])}:\d+)", said[-1] if said else "")):
            said.append(target.stdout.readline())
            assert said[-1], said
        threading.Thread(target=target.stdout.read, daemon=True).start()
        with Local(t.agent, None, size, noise(size, 5)) as local:
            until(lambda: imported(local, found[1]), "the benchmark's buffer")
            round_trip(local, local.remote.length - size)
    finally:
        target.kill()
        target.wait()


def test_import_metadata(importer):
    """The same by a metadata server over HTTP, with a name of the engine's own."""
    keys = real(LOCAL_HOST, "python")
    try:
        t = importer(**{"mooncake.metadata": keys.url})
        with engine_of(t, MIB, "some-engine", keys.url, MC_TCP_BIND_ADDRESS=t.rail.address[0]) as engine, \
                Local(t.agent, "some-engine", MIB, noise(MIB, 4)) as local:
            round_trip(local, engine.base, engine)
    finally:
        keys.close()


def test_import_between_agents(importer, rdma_lab):
    """An agent is an engine for another one, over RDMA; a buffer that its owner takes back is refused."""
    t = importer()
    target = rdma_lab.agent(0, [t.rail], **{"mooncake.listen": f"{t.rail.address[0]}:0", "mooncake.protocol": "rdma", "mooncake.allow": "10.90.0.0/16"})
    try:
        until(lambda: len(up(target)) == 1, "the rail of the target")
        with Owner(target, 4 * MIB, bytes(4 * MIB)) as owner, Local(t.agent, segment(target)[0], 4 * MIB, noise(4 * MIB, 2)) as local:
            round_trip(local, owner.address)
            assert digest(owner.view) == digest(local.view)
            owner.region.revoke(owner.token)
            for start in local.write, local.read:
                with pytest.raises((errors.Revoked, errors.PeerLost)):
                    start([(0, owner.address, 4096)], deadline=LIMIT).result(2 * LIMIT)
    finally:
        target.stop()
        target.check_log()


class Fake:
    """An engine of bare sockets, without a device: it answers a request for a queue pair as a test says."""

    def __init__(self, t):
        self.host, self.answer, self.asked = t.rail.address[0], None, []
        self.listener = socket.create_server((self.host, 0))
        self.endpoint = f"{self.host}:{self.listener.getsockname()[1]}"
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                sock, _ = self.listener.accept()
                threading.Thread(target=self.serve, args=(sock,), daemon=True).start()

    def serve(self, sock):
        with contextlib.suppress(OSError), sock:
            n, kind = struct.unpack("<QB", rig.exactly(sock, 9))
            request = json.loads(rig.exactly(sock, n - 1))
            if kind == rig.METADATA:
                answer = rig.frame(kind, json.dumps({
                    "name": self.endpoint, "protocol": "rdma", "devices": [{"name": "fake", "lid": 0, "gid": GID}],
                    "buffers": [{"name": "cpu:0", "addr": 1 << 40, "length": MIB, "rkey": [1], "lkey": [1]}]}).encode())
            else:
                self.asked.append(request)
                answer = self.answer(request)
            if answer is not None:
                sock.sendall(answer)
                sock.shutdown(socket.SHUT_WR)
            sock.recv(1)

    def close(self):
        self.listener.close()


def given(request, **change):
    """An answer to the request that has a queue pair."""
    return rig.frame(CONNECTION, json.dumps({
        "local_nic_path": request["peer_nic_path"], "peer_nic_path": request["local_nic_path"], "local_gid": GID, "local_lid": 0,
        "qp_num": [77] * len(request["qp_num"]), "reply_msg": "", **change}).encode())


def test_import_wrong_answers(importer):
    """Whatever an engine answers to a request for a queue pair, or if it does not, transfers end with an error, and their memory is given back."""
    t = importer(**{"rdma.queue_pairs": 1, "rdma.latency_queue_pairs": 1})
    for answer, error in [
            (lambda r: given(r, reply_msg="no\x07room", qp_num=[]), errors.PeerUnreachable), (lambda r: given(r, qp_num=[]), errors.PeerUnreachable),
            (lambda r: given(r, qp_num=["7"]), errors.PeerUnreachable), (lambda r: given(r, local_gid=""), errors.PeerUnreachable),
            (lambda r: given(r, local_gid=GID.replace("0a:5a", "0a:5b")), errors.PeerUnreachable),
            (lambda r: given(r, peer_nic_path="other@x"), errors.PeerUnreachable), (lambda r: rig.frame(CONNECTION, b"[" * 8000), errors.PeerUnreachable),
            (lambda r: rig.frame(CONNECTION, b"null"), errors.PeerUnreachable), (lambda r: rig.frame(CONNECTION, b"{"), errors.PeerUnreachable),
            (lambda r: rig.frame(rig.PROBE, b"{}"), errors.PeerLost),
            (lambda r: b"\xff" * 9, errors.PeerLost), (lambda r: b"", errors.PeerLost), (lambda r: None, errors.PeerLost)]:
        fake = Fake(t)
        fake.answer = answer
        with Local(t.agent, fake.endpoint, 4096) as local:
            for klass in "bulk", "latency":
                with pytest.raises((error, errors.PeerLost)):
                    local.write([(0, 1 << 40, 4096)], klass=klass).result(LIMIT)
            local.region.remove()
        fake.close()
        until(lambda: not counter(t.agent, "engines"), "the end of the engine")
        for refusal, shown in (b"room", "no?room"), (b"null", "does not say why"):
            if refusal in (answer(fake.asked[0]) or b""):
                assert {len(r["qp_num"]) for r in fake.asked} == {1, 2}
                assert shown in t.agent.text()


def test_import_dead_queue_pair(importer):
    """An engine whose device has no such queue pair: a transfer ends by its deadline, and others of the agent go on."""
    t = importer()
    fake = Fake(t)
    fake.answer = given
    with engine_of(t, MIB) as engine, Local(t.agent, engine.endpoint, MIB, noise(MIB, 1)) as good, Local(t.agent, fake.endpoint, 4096) as bad:
        stuck = bad.write([(0, 1 << 40, 4096)], deadline=3.0)
        round_trip(good, engine.base, engine)
        with pytest.raises((errors.Deadline, errors.Unconfirmed, errors.PeerLost)):
            stuck.result(LIMIT)
        bad.region.remove()
        round_trip(good, engine.base, engine)
    fake.close()
