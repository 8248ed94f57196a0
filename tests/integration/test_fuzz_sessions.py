# SPDX-License-Identifier: Apache-2.0
"""Random sessions and random peers with fixed seeds; tests/fuzz/sessions.py and peers.py search for longer."""

import contextlib
import pathlib
import sys

import pytest
from harness import Lab

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "fuzz"))

import peers  # noqa: E402
import sessions  # noqa: E402

ROUNDS = 60
PEER_ROUNDS = 12


def limited(n):
    """A function that is true n times."""
    rounds = iter(range(n))
    return lambda: next(rounds, None) is not None


@pytest.mark.parametrize("seed", range(3))
def test_random_sessions(new_agent, seed):
    agent = new_agent(settings=sessions.SETTINGS)
    n, sent = sessions.run(agent, seed, limited(ROUNDS))
    assert n == ROUNDS and sent


def test_random_peers():
    """Two agents, and between them a proxy with their key that changes messages and frames."""
    with contextlib.closing(Lab(alone=True)) as lab:
        world = peers.World(lab, 1)
        try:
            assert peers.run(world, limited(PEER_ROUNDS)) == PEER_ROUNDS
            assert world.proxy.mutator.passed and world.proxy.mutator.changed
            for agent in world.agents:
                agent.stop()
        finally:
            world.close()
