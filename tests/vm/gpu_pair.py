# SPDX-License-Identifier: Apache-2.0
"""Agents with fake GPUs at the ends of one rail, and the checks of staging that hold for either side."""

from conftest import Pair
from fake_gpu import PLUGIN, FakeGpus
from harness import LIMIT, MIB, Actor, same, transport

SIZE = MIB


class GpuPair(Pair):
    """A pair whose agents on the given sides have GPUs."""

    def __init__(self, lab, sides=(0, 1), **settings):
        self.gpus = {side: FakeGpus(lab.lab.directory(f"gpus{side}")) for side in sides}
        super().__init__(lab, 1, env=[self.gpus[side].env if side in sides else None for side in (0, 1)],
                         **{"transfer__slice_size": "64KiB", "gpu__staging": "4MiB", "gpu__plugin": PLUGIN, **settings})
        self.rail, = self.rails

    def stop(self):
        super().stop()
        for gpus in self.gpus.values():
            gpus.over()


def scattered_both_ways(client, region, near, remote, far, back_class="bulk"):
    """Many transfers of many pieces at once, more than fit into staging memory; each byte must arrive at its place."""
    piece, n, half = 5003, 96, SIZE // 2
    want_far, want_near = bytearray(far.view), bytearray(near.view)
    moved = []
    for turn in range(4):
        out = [(i * piece + turn, half + (n - i) * piece + turn, 1200) for i in range(turn, n, 4)]
        back = [(half + (n - i) * piece + turn, i * piece + turn, 1200) for i in range(turn, n, 4)]
        for here, there, size in out:
            want_far[there:there + size] = near.view[here:here + size]
        for here, there, size in back:
            want_near[here:here + size] = far.view[there:there + size]
        moved += [client.write(region, remote, out), client.read(region, remote, back, klass=back_class)]
    assert {transport(t.result(LIMIT)) for t in moved} == {"rdma"}
    assert same(far.view, want_far)
    assert same(near.view, want_near)


ENGINE = """
import wire
from fake_gpu import GpuMemory, add_vmm
client = wire.Client(args["socket"])
with GpuMemory(args["size"]) as memory:
    region = add_vmm(client, memory)
    remote = client.import_token(args["token"])
    for _ in range(4):
        client.write(region, remote, [(0, 0, args["size"])])
        client.read(region, remote, [(0, 0, args["size"])])
    tell()
    hear()
"""


def engine_killed(pair, token):
    """An engine of side 0 is killed during its transfers: the agent must close all its memory."""
    actor = Actor(ENGINE, socket=str(pair.agents[0].socket), token=token, size=SIZE)
    actor.hear()
    actor.kill()
    pair.gpus[0].idle()
