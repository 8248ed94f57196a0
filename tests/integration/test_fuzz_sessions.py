# SPDX-License-Identifier: Apache-2.0
"""Random sessions with fixed seeds; tests/fuzz/sessions.py searches for longer."""

import pathlib
import sys

import pytest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "fuzz"))

import sessions  # noqa: E402

ROUNDS = 60


@pytest.mark.parametrize("seed", range(3))
def test_random_sessions(new_agent, seed):
    agent = new_agent(settings=sessions.SETTINGS)
    rounds = iter(range(ROUNDS))
    n, sent = sessions.run(agent, seed, lambda: next(rounds, None) is not None)
    assert n == ROUNDS and sent
