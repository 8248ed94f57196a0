# SPDX-License-Identifier: Apache-2.0
"""GPU memory over Soft-RoCE, with the plug-in that has no GPU: no device takes that memory, so it is staged here."""

import contextlib
import hashlib

import dray
import pytest
from conftest import listed, up
from dray import _schema as s
from fake_gpu import FakeGpus, GpuMemory, add_vmm
from harness import LIMIT, MIB, Actor, noise, until

SIZE = MIB


class GpuPair:
    """An agent on each side of one rail; the first has GPUs."""

    def __init__(self, lab):
        self.gpus = FakeGpus(lab.lab.directory("gpus"))
        self.rail, = rails = lab.make(1)
        how = {"transfer__slice_size": "64KiB", "gpu__staging": "4MiB", "gpu__plugin": self.gpus.settings["gpu.plugin"]}
        self.agents = [lab.agent(side, rails, env=self.gpus.env if side == 0 else None, **how) for side in (0, 1)]
        for agent in self.agents:
            until(lambda agent=agent: len(up(agent)) == 1, "the rail")

    def stop(self):
        for agent in self.agents:
            agent.stop()
            agent.check_log()


@pytest.fixture(scope="module")
def gpu_pair(rdma_lab):
    made = GpuPair(rdma_lab)
    yield made
    made.stop()
    left = made.gpus.status
    assert left.plugins + left.started + left.imports + left.queues + left.pins + left.host_allocs == 0, left
    assert not left.illegal


def registered(agent):
    return all(": registered" in r["rdma"] for r in listed(agent, "regions"))


def transport(done):
    return s.TRANSPORT_NAMES[done.transport]


@contextlib.contextmanager
def ends(gpu_pair):
    """Client, GPU memory and its region here; host memory there and a remote for it. Transfers go by rdma."""
    here, there = gpu_pair.agents
    with here.client() as client, there.client() as owner, GpuMemory(SIZE, 0, noise(SIZE)) as memory, \
            dray.Memory(SIZE) as far:
        far.view[:] = noise(SIZE, 2)
        exported = owner.region(far)
        until(lambda: registered(there), "registration at the owner")
        region = add_vmm(client, memory)
        remote = client.import_token(str(exported.export()), timeout=LIMIT)
        # its first bytes, as they are
        until(lambda: transport(client.write(region, remote, [(SIZE - 64, SIZE - 64, 64)]).result(LIMIT)) == "rdma",
              "registration of staging memory")
        assert not any(": registered" in r["rdma"] for r in listed(here, "regions"))
        yield client, region, memory, remote, far


def digest(view):
    return hashlib.sha256(view).digest()


@pytest.mark.parametrize("direction", ["write", "read"])
def test_one_operation(gpu_pair, direction):
    with ends(gpu_pair) as (client, region, memory, remote, far):
        src, dst = (memory, far) if direction == "write" else (far, memory)
        size = SIZE - 12345
        op = (1, 3, size) if direction == "write" else (3, 1, size)
        done = client.transfer(direction, region, remote, [op]).result(LIMIT)
        assert transport(done) == "rdma"
        assert digest(dst.view[3:3 + size]) == digest(src.view[1:1 + size])
        rows = gpu_pair.agents[0].ctl("transfers", "--recent", "--json")["ended_transfers"]
        assert [(r["transport"], r["gpu_path"]) for r in rows if r["bytes"] == size][-1:] == [("rdma", "staged")], rows


def test_scattered_both_ways(gpu_pair):
    """Many transfers of many pieces at once, more than staging memory takes; each byte ends where it belongs."""
    piece, n = 5003, 96
    with ends(gpu_pair) as (client, region, memory, remote, far):
        want_far, want_here = bytearray(far.view), bytearray(memory.view)
        half = SIZE // 2
        moved = []
        for turn in range(4):
            out = [(i * piece + turn, half + (n - i) * piece + turn, 1200) for i in range(turn, n, 4)]
            back = [(half + (n - i) * piece + turn, i * piece + turn, 1200) for i in range(turn, n, 4)]
            for local, there, size in out:
                want_far[there:there + size] = memory.view[local:local + size]
            for local, there, size in back:
                want_here[local:local + size] = far.view[there:there + size]
            moved += [client.write(region, remote, out), client.read(region, remote, back)]
        assert {transport(t.result(LIMIT)) for t in moved} == {"rdma"}
        assert digest(far.view) == digest(want_far)
        assert digest(memory.view) == digest(want_here)


ENGINE = """
from fake_gpu import GpuMemory, add_vmm
client = dray.Client(args["socket"])
with GpuMemory(args["size"]) as memory:
    region = add_vmm(client, memory)
    remote = client.import_token(args["token"], timeout=30)
    for _ in range(4):
        client.write(region, remote, [(0, 0, args["size"])])
        client.read(region, remote, [(0, 0, args["size"])])
    tell()
    hear()
"""


def test_killed_in_the_middle(gpu_pair):
    """Nothing of a dead engine's memory stays open, and its staging buffers serve others."""
    here, there = gpu_pair.agents
    with there.client() as owner, dray.Memory(SIZE) as far:
        token = str(owner.region(far).export())
        until(lambda: registered(there), "registration at the owner")
        for _ in range(2):
            actor = Actor(ENGINE, socket=str(here.socket), token=token, size=SIZE)
            actor.hear()
            actor.kill()
            gpu_pair.gpus.idle()
    test_one_operation(gpu_pair, "write")
