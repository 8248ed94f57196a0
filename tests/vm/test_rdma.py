# SPDX-License-Identifier: Apache-2.0
"""Transfers over Soft-RoCE."""

import pytest
from conftest import listed, registered, up
from harness import LIMIT, MIB, Side, noise, until


@pytest.fixture(scope="module")
def one(rdma_lab):
    rails = rdma_lab.make(1)
    agents = [rdma_lab.agent(side, rails) for side in (0, 1)]
    for agent in agents:
        until(lambda agent=agent: len(up(agent)) == 1, "the rail")
    yield agents
    for agent in agents:
        agent.stop()


def test_write(one):
    a, b = one
    data = noise(4 * MIB)
    with Side(a, 4 * MIB, data) as here, Side(b, 4 * MIB) as there:
        until(lambda: registered(a) and registered(b), "registration")
        remote = here.reach(there)
        done = here.client.write(here.region, remote, [(0, 0, 4 * MIB)]).result(LIMIT)
        print(done, listed(a, "paths"), listed(a, "peers"))
        assert done.transport == "rdma"
        assert there.view[:] == data
