# SPDX-License-Identifier: Apache-2.0
"""Attacks on an agent, each in a process of its own, as a client of another uid than the honest one.

with attack(agent, "descriptors") as attacker: attacker.rounds() says how often it has done its worst until now. At the end of the
block the process is killed: it tidies up nothing.
"""

import contextlib
import mmap
import os
import socket
import struct
import subprocess
import sys
import threading
from types import SimpleNamespace

from harness import MIB, Raw, s
from ring_client import Client
from test_hostile import OTHER, OVERFLOW, Blockers, HeldInode, sparse_memfd, uid

OPS = 65536
OP = struct.Struct("<QQQ")


def connect(agent, number=OTHER, **how):
    with uid(number):
        return Raw(agent, **how)


def ring_client(agent, **how):
    with uid(OTHER):
        return Client(agent, **how)


# --- the attacks: generators that yield after each round ---------------------------------------------

def closing(agent):
    """Point 1: sockets whose close waits for their other end."""
    held = []
    while True:
        held.append(Blockers(10))
        with contextlib.suppress(OSError), connect(agent) as raw:
            for fd in held[-1].filenos():
                raw.send(s.pack_env_get(9, profiles=""), [fd])
            # waits if the agent has closed its own already
            threading.Thread(target=held[-1].hand_over, daemon=True).start()
        if len(held) > 3:
            held.pop(0).release()
        yield


def leaking(agent):
    """Point 2: messages without bytes that carry descriptors, and with more than their type takes."""
    ends = list(os.pipe())
    while True:
        for packet in (b"", s.pack_env_get(5, profiles=""), s.pack_region_add(5, access=3, extents=[(1, 0, 0, 0, 1)])):
            with connect(agent) as raw:
                raw.send(packet, ends * 20)
        yield


def held_file(agent):
    """Point 3: regions of a file whose inode this process locks."""
    while True:
        with HeldInode() as held, connect(agent) as raw:
            for _ in range(8):
                raw.request(s.pack_region_add, [held.fd], access=3, extents=[(1, 0, 0, 0, MIB)])
            yield


def descriptors(agent):
    """Points 1 and 4: as many descriptors as the sockets take, to the data socket and to the control socket."""
    ends = list(os.pipe())
    while True:
        with connect(agent) as raw, socket.socket(socket.AF_UNIX) as control:
            with uid(OTHER):
                control.connect(str(agent.control))
            for sock, packet in ((raw.sock, s.pack_env_get(9, profiles="")), (control, b"\0")):
                sock.setblocking(False)
                with contextlib.suppress(OSError):
                    for _ in range(100):
                        socket.send_fds(sock, [packet], ends * 20, socket.MSG_NOSIGNAL)
        yield


def addresses(agent):
    """Point 5: sparse files of many TiB, mapped and unmapped."""
    fd = sparse_memfd(8 << 40)
    while True:
        with connect(agent) as raw:
            for _ in range(6):
                raw.request(s.pack_region_add, [fd], access=s.ACCESS_READ, extents=[(s.KIND_MEMFD, 0, 0, 0, 4096)])
                raw.receive()
        yield


def refused_work(agent):
    """Point 6: a ring that is always full of the longest lists, each refused for its last operation, and cancellations."""
    client = ring_client(agent, entries=1024, arena=OPS * OP.size)
    client.arena[:] = b"".join(OP.pack(16 * i, 16 * i, 16) for i in range(OPS - 1)) + OP.pack(0, 0, 1 << 40)
    for i in range(client.sq_entries):
        client.put(1 << 40, flags=s.TRANSFER_FLAG_ARENA, op_count=OPS)
    client.sock.setblocking(False)
    while True:
        before = client.word(s.RING_SQ_HEAD)
        client.store(s.RING_CQ_HEAD, client.word(s.RING_CQ_TAIL))
        client.store(s.RING_SQ_TAIL, before + client.sq_entries)
        os.eventfd_write(client.doorbell, 1)
        with contextlib.suppress(BlockingIOError):
            client.request(s.pack_transfer_cancel, request=5000)
        with contextlib.suppress(BlockingIOError):
            client.receive()
        while client.word(s.RING_SQ_HEAD) == before:
            os.sched_yield()
        yield


def everything(agent):
    """Point 7: as many sessions, regions, tokens, remotes and hints as the quotas allow, and a few more; then their end at once."""
    while True:
        with contextlib.ExitStack() as stack:
            raws = [stack.enter_context(connect(agent)) for _ in range(16)]
            raw, fd = raws[0], sparse_memfd(4096)
            extents = [(s.KIND_MEMFD, 0, 0, 0, 4096)]
            regions = [raw.ask(s.pack_region_add, [fd], access=3, extents=extents).region for _ in range(64)]
            os.close(fd)
            for i in range(256):
                token = raw.ask(s.pack_region_export, region=regions[i % 64], length=4096, access=3).token
                raw.ask(s.pack_remote_import, token=token)
            for i in range(64):
                raw.ask(s.pack_hint_put, scope=f"scope-{i}", segment="10.0.0.1:50053")
        yield


def waiting(agent):
    """Point 8: transfers that wait for a word, as many as the quota allows, and the removal of the objects that they use."""
    while True:
        crowd = [ring_client(agent, entries=4096) for _ in range(2)]
        for client in crowd:
            # some remotes of the crowd, and many that no transfer uses, are released while they wait
            token = client.ask(s.pack_region_export, region=client.region, length=MIB, access=3).token
            remotes = [client.ask(s.pack_remote_import, token=token).remote for _ in range(560)]
            for i in range(client.sq_entries):
                client.put(1 << 32 | i, op_count=1, op_remote=64, op_length=8, **{**client.waiting(32), "remote": remotes[i % 64]})
            os.eventfd_write(client.doorbell, 1)
            while client.word(s.RING_SQ_HEAD) != client.word(s.RING_SQ_TAIL):
                os.sched_yield()
            for part in (remotes[64:312], remotes[312:], remotes[:64]):
                for remote in part:
                    client.request(s.pack_remote_release, remote=remote)
                while (answer := client.receive()[0]).request_id != client.last_id:
                    assert answer.type != s.MSG_ERROR
        yield
        for client in crowd:
            client.close()


def revoking(agent):
    """Point 9: tokens that are exported, imported and revoked without end."""
    client = ring_client(agent)
    while True:
        for _ in range(16):
            reply = client.ask(s.pack_region_export, region=client.region, length=MIB, access=3)
            client.ask(s.pack_remote_import, token=reply.token)
            client.request(s.pack_region_revoke, region=client.region, token_id=reply.token_id)
            while client.receive()[0].request_id != client.last_id:
                pass
        yield


def bad_messages(agent):
    """Point 10: each message is an error and wants a line in the log."""
    while True:
        with connect(agent) as raw:
            raw.send(b"?" * 64)
            raw.ended()
        yield


def unmapped_user(agent):
    """Point 11: the overflow uid connects again and again."""
    while True:
        with connect(agent, OVERFLOW, hello=False) as raw:
            raw.request(s.pack_hello, major_min=1, major_max=1)
            raw.ended()
        yield


def port_scan(agent):
    """Point 12: forged tokens of agents at closed ports."""
    client = connect(agent)
    client.sock.settimeout(None)
    port = 0
    while True:
        port = port % 1000 + 1
        segment = f"127.0.0.1:{port}".encode()
        token = s.PEER_TOKEN.pack(1, 0, 3, os.urandom(16), 1, 1, 1, 0, 4096, 0, bytes(16), os.urandom(16)) + \
            len(segment).to_bytes(4, "little") + segment
        client.request(s.pack_remote_import, token=token, timeout_ms=50)
        client.receive()
        yield


def bad_ring(agent):
    """Point 12: indices of a ring that no client can have."""
    while True:
        client = ring_client(agent)
        client.submit(1)
        for offset in (s.RING_CQ_HEAD, s.RING_SQ_TAIL):
            client.store(offset, int.from_bytes(os.urandom(4), "little"))
        os.eventfd_write(client.doorbell, 1)
        client.ended()
        client.close()
        yield


ATTACKS = {f.__name__: f for f in (closing, leaking, held_file, descriptors, addresses, refused_work, everything, waiting, revoking,
                                   bad_messages, unmapped_user, port_scan, bad_ring)}
# what agents must allow so that all attacks reach them
SETTINGS = {"data.mode": "0666", "control.mode": "0666"}


# --- their process ------------------------------------------------------------------------------------

class Attacker:
    def __init__(self, agent, name):
        self.fd = os.memfd_create("rounds")
        os.ftruncate(self.fd, 8)
        self.counter = mmap.mmap(self.fd, 8)
        self.process = subprocess.Popen(["setpriv", "--pdeathsig=KILL", sys.executable, __file__, name, str(self.fd), agent.socket,
                                         agent.control], pass_fds=[self.fd],
                                        env={**os.environ, "PYTHONPATH": ":".join(p for p in sys.path if p)})

    def rounds(self):
        assert self.process.poll() is None, f"the attacker ended with {self.process.returncode}"
        return int.from_bytes(self.counter[:], sys.byteorder)


@contextlib.contextmanager
def attack(agent, name):
    attacker = Attacker(agent, name)
    try:
        yield attacker
    finally:
        attacker.process.kill()
        attacker.process.wait()
        attacker.counter.close()
        os.close(attacker.fd)


def main():
    name, fd, data, control = sys.argv[1:]
    counter = mmap.mmap(int(fd), 8)
    for n, _ in enumerate(ATTACKS[name](SimpleNamespace(socket=data, control=control)), 1):
        counter[:] = n.to_bytes(8, sys.byteorder)


if __name__ == "__main__":
    main()
