# SPDX-License-Identifier: Apache-2.0
"""The agent as the target of engines that have Mooncake linked in, over Soft-RoCE: Mooncake's engine at one end of a rail, the agent at the other."""

import hashlib
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
from types import SimpleNamespace

import mooncake_rig as rig
import pytest
from conftest import up
from harness import LIMIT, MIB, noise, same, until
from mooncake_rig import Initiator, Owner, counter, segment
from test_mooncake_metadata import keys_of, real

CONNECTION = 0
# where a metadata server runs
LOCAL_HOST = SimpleNamespace(command=lambda *argv: [str(word) for word in argv], socket=socket.socket,
                             connect=lambda endpoint: socket.create_connection(rig.parse_segment(endpoint)))
GID = "00:00:00:00:00:00:00:00:00:00:ff:ff:0a:5a:00:01"


def on_rail(rdma_lab, settings):
    """For a fixture: makes agents on side 1 of a rail, for peers on side 0; keyword arguments are settings. settings: of the rail."""
    made = []

    def make(args=(), **more):
        rail, = rdma_lab.make(1)
        how = {"rdma.timeout": "500ms", **settings(rail)}
        if not args:
            how["mooncake.allow"] = "10.90.0.0/16"
        agent = rdma_lab.agent(1, [rail], args=args, **{**how, **more})
        made.append(agent)
        until(lambda: len(up(agent)) == 1, "the rail")
        return SimpleNamespace(agent=agent, rail=rail)

    yield make
    for agent in made:
        agent.stop()
        agent.check_log()


@pytest.fixture
def target(rdma_lab):
    """Agents for engines that begin transfers."""
    yield from on_rail(rdma_lab, lambda rail: {"mooncake.listen": f"{rail.address[1]}:0", "mooncake.protocol": "rdma",
                                               "mooncake.probe_interval": "1s"})


def engine_of(t, size, **env):
    return Initiator(t.agent, size, t.rail.address[0], ("rdma", t.rail.device[0]), MC_GID_INDEX=str(t.rail.gid_index(0)), **env)


# For transfers that must fail: Mooncake tries each nine times by default, and its threads do not sleep meanwhile.
FEW_TRIES = {"MC_RETRY_CNT": "1"}


def packets(t):
    return int(pathlib.Path(f"/sys/class/infiniband/{t.rail.device[1]}/ports/1/hw_counters/rcvd_pkts").read_text())


def digest(owner):
    return hashlib.sha256(owner.view).hexdigest()


def request(t, **how):
    device, name = t.rail.device[1], segment(t.agent)[0]
    return json.dumps({"local_nic_path": "10.90.0.1:15999@fake", "peer_nic_path": f"{name}@{device}", "local_lid": 0, "local_gid": GID,
                       "qp_num": [17, 18], "ready_ack": False, "reply_msg": "", **how}).encode()


def ask(t, body, kind=CONNECTION):
    return rig.ask(t.agent, kind, body, bind=t.rail.address[0])


def test_descriptor(target):
    """The handshake tells the device, its GID, and a key of the device for each buffer."""
    t = target()
    with Owner(t.agent, MIB) as owner:
        owner.region.export(4096, 8192, mooncake=1 << 40, access="r")
        shown = ask(t, b"{}", rig.METADATA)
        assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{6}", shown.pop("timestamp"))
        first, second = shown.pop("buffers")
        device = t.rail.device[1]
        assert shown == {"name": segment(t.agent)[0], "protocol": "rdma", "tcp_data_port": 0, "tcp_proto_version": 1,
                         "devices": [{"gid": GID[:-1] + "2", "lid": 0, "name": device}], "priority_matrix": {"cpu:0": [[device], []]}}
        assert [(b["addr"], b["length"], b["name"], b["lkey"]) for b in (first, second)] == \
            [(owner.address, MIB, "cpu:0", [0]), (1 << 40, 8192, "cpu:0", [0])]
        assert len({*first["rkey"], *second["rkey"]}) == 2, "two exports share a key"
    until(lambda: not ask(t, b"{}", rig.METADATA)["buffers"], "the end of the buffers")


def test_requests(target):
    """Queue pairs are made and counted, and destroyed when their peer does not acknowledge; requests that make no sense are answered with the reason."""
    t = target(**{"mooncake.queue_pairs": 8})
    name, device = segment(t.agent)[0], t.rail.device[1]
    for how, why in ({"peer_nic_path": f"{name}@none"}, "does not use the device"), ({"peer_nic_path": "other:1@x"}, "no device of this segment"), \
            ({"local_gid": ""}, "no GID"), ({"local_gid": GID[:-1] + "g"}, "no GID"), ({"local_nic_path": "a\"b"}, "no name"), ({"local_nic_path": 5}, "no name"), \
            ({"qp_num": []}, "qp_num"), ({"qp_num": [-1]}, "qp_num"), ({"qp_num": ["x"]}, "qp_num"), ({"qp_num": [1 << 24]}, "qp_num"), \
            ({"qp_num": 5}, "qp_num"), ({"local_lid": -1}, "LID"), ({"qp_num": [1] * 9}, "too many"), \
            ({"local_gid": GID.replace("0a:5a", "0a:5b")}, "mooncake.allow"), ({"local_gid": GID.replace("ff:ff", "00:01")}, "mooncake.allow"):
        answer = ask(t, request(t, **how))
        assert why in answer["reply_msg"] and answer["qp_num"] == [] and answer["local_nic_path"] == "", (how, answer)
    for body in b"[1]", b"", b"\xff" * 100, b"[" * 8000:
        assert ask(t, body)["reply_msg"]
    with rig.connect(t.agent, name, t.rail.address[0]) as sock:
        sock.sendall(rig.frame(CONNECTION, b" " * 9000))
        assert rig.ended(sock)
    assert counter(t.agent, "queue_pairs") == 0
    first = ask(t, request(t))
    assert first.pop("qp_num") and first == {"local_gid": GID[:-1] + "2", "local_lid": 0, "local_nic_path": f"{name}@{device}", "payload": "",
                                             "peer_nic_path": "10.90.0.1:15999@fake", "reply_msg": ""}
    lost = counter(t.agent, "queue_pairs_lost_total")
    until(lambda: counter(t.agent, "queue_pairs") == 0, "the end of queue pairs without a peer")
    assert counter(t.agent, "queue_pairs_lost_total") == lost + 2
    assert counter(t.agent, "queue_pairs_refused_total") == 2  # an unknown device, too many; the others are malformed


@pytest.mark.parametrize("how", ["drain", "reload"])
def test_ends(target, rdma_lab, how):
    """A drain, and a reload that no longer allows the peer, destroy its queue pairs."""
    file = rdma_lab.lab.write("drayd.conf", 'mooncake: { allow = ["10.90.0.0/16"]; };\n')
    t = target(["--config", file], **{"mooncake.probe_interval": "10min"})
    ask(t, request(t))
    assert counter(t.agent, "queue_pairs") == 2
    if how == "drain":
        t.agent.ctl("drain")
        until(lambda: "2 queue pairs of a guest end: the agent is draining" in t.agent.text(), "the end of the queue pairs")
    else:
        file.write_text('mooncake: { allow = ["10.99.0.0/16"]; };\n')
        t.agent.ctl("reload")
        until(lambda: counter(t.agent, "queue_pairs") == 0, "the end of the queue pairs")


def test_mooncake_transfers(target):
    """Mooncake's engine writes and reads buffers, whole and scattered: the bytes arrive, by queue pairs alone."""
    t = target()
    size = 8 * MIB
    with Owner(t.agent, size, bytes(size)) as owner, engine_of(t, size) as engine:
        before = packets(t)
        for i, n in enumerate([1, 4096, 65537, MIB, 3 * MIB + 5]):
            content = bytes([0xA0 + i]) * n
            offset = i * 1234
            engine("repeat", 0, 0xA0 + i, n)
            assert engine("write_one", engine.target, owner.address + offset, 0, n) == 0
            assert owner.view[offset:offset + n] == content
            assert engine("read_one", engine.target, owner.address + offset, size // 2, n) == 0
            assert engine("digest", size // 2, n) == hashlib.sha256(content).hexdigest()
        content = noise(MIB, 7)
        engine("fill", 0, content.hex())
        pieces = [(i * 4096, size - (i + 1) * 8192, 4096) for i in range(256)]
        assert engine("write", engine.target, owner.address, pieces) == 0
        for mine, at, n in pieces:
            assert owner.view[at:at + n] == content[mine:mine + n]
        engine("repeat", 0, 0, MIB)
        assert engine("read", engine.target, owner.address, pieces) == 0
        assert engine("digest", 0, MIB) == hashlib.sha256(content).hexdigest()
        assert packets(t) - before > 5 * MIB // 4096
        assert counter(t.agent, "queue_pairs") == 2
        assert "2 queue pairs" in t.agent.ctl("status")
    assert not any(counter(t.agent, name) for name in ("received_bytes_total", "sent_bytes_total", "connections", "queue_pairs_refused_total"))


def test_mooncake_metadata(target):
    """The same by a metadata server over HTTP, where the agent has devices, keys and addresses, and by a name of the engine's own."""
    keys = real(LOCAL_HOST, "python")
    try:
        t = target(**{"mooncake.metadata": keys.url, "mooncake.interval": "500ms"})
        size = 4 * MIB
        with Owner(t.agent, size, noise(size, 3)) as owner:
            ram, rpc = keys_of(segment(t.agent)[0])
            until(lambda: (keys[ram] or {}).get("buffers") and keys[rpc], "the buffer")
            assert keys[ram]["devices"] and keys[ram]["protocol"] == "rdma"
            before = packets(t)
            with rig.Engine(t.agent, size, "initiator", keys.url, how=("rdma", t.rail.device[0]), MC_GID_INDEX=str(t.rail.gid_index(0)),
                            MC_TCP_BIND_ADDRESS=t.rail.address[0]) as engine:
                name = segment(t.agent)[0]
                assert engine("read_one", name, owner.address, 0, size) == 0 and engine("digest", 0, size) == digest(owner)
                engine("repeat", 0, 7, MIB)
                assert engine("write_one", name, owner.address, 0, MIB) == 0 and owner.view[:MIB] == b"\x07" * MIB
            assert packets(t) > before
        until(lambda: not keys[ram]["buffers"], "the end of the buffer")
    finally:
        keys.close()


def test_mooncake_access(target):
    """A buffer that was exported for reading is not written, a range that was not exported is reached by no key, and the engine goes on afterwards."""
    t = target()
    with Owner(t.agent, MIB, noise(MIB), access="r") as owner, Owner(t.agent, MIB, bytes(MIB)) as other, engine_of(t, MIB, **FEW_TRIES) as engine:
        before = digest(owner)
        engine("repeat", 0, 0x55, MIB)
        assert engine("write_one", engine.target, owner.address, 0, 4096) != 0
        assert engine("write_one", engine.target, owner.address + MIB, 0, 4096) != 0
        assert digest(owner) == before
        assert engine("read_one", engine.target, owner.address, 0, MIB) == 0
        assert engine("digest", 0, MIB) == before
        assert engine("write_one", engine.target, other.address, 0, MIB) == 0
        assert digest(other) == before


def test_mooncake_killed(target):
    """Mooncake is killed in the middle of a transfer: its queue pairs end, and the owner's memory can be given back."""
    t = target()
    size = 64 * MIB
    with Owner(t.agent, size, bytes(size)) as owner, engine_of(t, size) as engine:
        engine("repeat", 0, 0x77, size)
        engine.tell("write", engine.target, owner.address, [(0, 0, size)])
        until(lambda: owner.view[MIB] == 0x77, "some bytes")
        engine.process.kill()
        until(lambda: counter(t.agent, "queue_pairs") == 0, "the end of the queue pairs")
        assert counter(t.agent, "queue_pairs_lost_total") == 2
        owner.region.remove()
    assert counter(t.agent, "buffers") == 0


def test_mooncake_cut_off(target):
    """The network is cut in the middle of a transfer: the queue pairs end, the owner gets its memory back, and the transfer fails."""
    t = target()
    size = 64 * MIB
    with Owner(t.agent, size, bytes(size)) as owner, engine_of(t, size) as engine:
        engine("repeat", 0, 0x77, size)
        t.rail.netem("rate", "100mbit")  # some seconds
        engine.tell("write", engine.target, owner.address, [(0, 0, size)])
        until(lambda: owner.view[MIB] == 0x77, "some bytes")
        for side in 0, 1:
            t.rail.netem("loss", "100%", side=side)
        try:
            until(lambda: counter(t.agent, "queue_pairs") == 0, "the end of the queue pairs")
            assert counter(t.agent, "queue_pairs_lost_total") == 2
            owner.region.remove()
            before = bytes(owner.view)
            assert owner.view[size - 1] == 0, "the transfer had ended before the cut"
        finally:
            for side in 0, 1:
                t.rail.calm(side)
        assert engine.hear(4 * LIMIT) != 0
        assert same(owner.view, before)


@pytest.mark.parametrize("how", ["revoke", "remove", "stopped"])
def test_mooncake_owner_gone(target, how):
    """An owner takes a buffer back in the middle of a transfer, also while the engine stands still: afterwards its bytes do not change, the transfer
    fails, and the engine reaches another buffer."""
    t = target()
    size = 64 * MIB
    with Owner(t.agent, size, bytes(size)) as owner, Owner(t.agent, MIB, bytes(MIB)) as other, engine_of(t, size, **FEW_TRIES) as engine:
        engine("repeat", 0, 0x77, size)
        t.rail.netem("rate", "100mbit")  # some seconds
        engine.tell("write", engine.target, owner.address, [(0, 0, size)])
        until(lambda: owner.view[MIB] == 0x77, "some bytes")
        if how == "stopped":
            engine.process.send_signal(signal.SIGSTOP)
        if how == "revoke":
            owner.region.revoke(owner.token)
        else:
            owner.region.remove()
        before = bytes(owner.view)
        t.rail.calm()
        if how == "stopped":
            engine.process.send_signal(signal.SIGCONT)
        assert engine.hear(4 * LIMIT) != 0
        assert same(owner.view, before)
        assert engine("write_one", engine.target, owner.address, 0, 4096) != 0
        assert engine("write_one", engine.target, other.address, 0, MIB) == 0
        assert other.view == b"\x77" * MIB and same(owner.view, before)


def test_mooncake_bench(target):
    """Mooncake's own benchmark writes and reads, with a buffer of the agent as its target."""
    t = target()
    bench = next(rig.mooncake_python().parents[1].glob("lib/python*/site-packages/mooncake/transfer_engine_bench"))
    with Owner(t.agent, 64 * MIB, bytes(64 * MIB)) as owner:
        for operation in "write", "read":
            before = packets(t)
            done = subprocess.run(
                [bench, "--mode=initiator", "--metadata_server=P2PHANDSHAKE", "--protocol=rdma", f"--device_name={t.rail.device[0]}",
                 f"--local_server_name={t.rail.address[0]}", f"--segment_id={segment(t.agent)[0]}", f"--operation={operation}", "--duration=2",
                 "--threads=1", "--batch_size=4", "--block_size=65536", "--buffer_size=33554432"],
                env={**os.environ, "LD_LIBRARY_PATH": str(bench.parent), "MC_GID_INDEX": str(t.rail.gid_index(0))}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                text=True, timeout=4 * LIMIT)
            assert done.returncode == 0, done.stdout
            batches = int(re.search(r"batch count (\d+)", done.stdout).group(1))
            print(operation, re.findall(r"batch count.*", done.stdout), file=sys.stderr)
            # how many there are depends on the machine; each has four requests
            assert batches and packets(t) - before >= 4 * batches
        assert owner.address
