# SPDX-License-Identifier: Apache-2.0
"""GPU memory over Soft-RoCE, with the fake plug-in: no device registers that memory, so the importing agent stages it."""

import contextlib

import dray
import pytest
from conftest import listed
from fake_gpu import GpuMemory, add_vmm
from gpu_pair import SIZE, GpuPair, engine_killed, scattered_both_ways
from harness import LIMIT, noise, same, transport, until


@pytest.fixture(scope="module")
def gpu_pair(rdma_lab):
    made = GpuPair(rdma_lab, sides=(0,))
    yield made
    made.stop()


def registered(agent):
    return all(": registered" in r["rdma"] for r in listed(agent, "regions"))


@contextlib.contextmanager
def ends(gpu_pair):
    """Here a client with GPU memory and its region, there host memory, and a remote for it. Transfers use rdma."""
    here, there = gpu_pair.agents
    with here.wire() as client, there.wire() as owner, GpuMemory(SIZE, 0, noise(SIZE)) as memory, \
            dray.Memory(SIZE) as far:
        far.view[:] = noise(SIZE, 2)
        exported = owner.region(far)
        until(lambda: registered(there), "registration at the owner")
        region = add_vmm(client, memory)
        remote = client.import_token(str(exported.export()), timeout=LIMIT)
        # writes 64 bytes until the transport is rdma: then the staging memory is registered
        until(lambda: transport(client.write(region, remote, [(SIZE - 64, SIZE - 64, 64)]).result(LIMIT)) == "rdma",
              "registration of staging memory")
        assert not any(": registered" in r["rdma"] for r in listed(here, "regions"))
        yield client, region, memory, remote, far


@pytest.mark.parametrize("direction", ["write", "read"])
def test_one_operation(gpu_pair, direction):
    with ends(gpu_pair) as (client, region, memory, remote, far):
        src, dst = (memory, far) if direction == "write" else (far, memory)
        size = SIZE - 12345
        op = (1, 3, size) if direction == "write" else (3, 1, size)
        done = client.transfer(direction, region, remote, [op]).result(LIMIT)
        assert transport(done) == "rdma"
        assert same(dst.view[3:3 + size], src.view[1:1 + size])
        rows = gpu_pair.agents[0].ctl("transfers", "--recent", "--json")["ended_transfers"]
        assert [(r["transport"], r["gpu_path"]) for r in rows if r["bytes"] == size][-1:] == [("rdma", "staged")], rows


def test_scattered_both_ways(gpu_pair):
    with ends(gpu_pair) as (client, region, memory, remote, far):
        scattered_both_ways(client, region, memory, remote, far)


def test_engine_killed_during_transfers(gpu_pair):
    """The agent closes all memory of a dead engine, and other transfers use its staging buffers."""
    there = gpu_pair.agents[1]
    with there.wire() as owner, dray.Memory(SIZE) as far:
        token = str(owner.region(far).export())
        until(lambda: registered(there), "registration at the owner")
        for _ in range(2):
            engine_killed(gpu_pair, token)
    test_one_operation(gpu_pair, "write")
