# SPDX-License-Identifier: Apache-2.0
"""vLLM's real schedulers step by step: the agent of an idle engine is restarted, and then the engine gets a request."""

import model
import pytest
from harness import ROOT
from test_push_steps import FOR_D, FOR_P, Calm, agents, nothing_left, prompt, turns
from world import World

TOKENS = 40


@pytest.fixture(params=["pull", "push"])
def world(request, monkeypatch):
    return World(monkeypatch, str(model.make(ROOT / "build/engine-model")), "fail", Calm(), request.param)


def start(world):
    """A request of D whose agent is away. Nobody has stepped D since the agent was killed."""
    quiet, world.elapse = world.elapse, lambda: agents(world)  # P's agent answers within a step
    world.p.add("r", prompt(TOKENS), 1, FOR_P)
    turns(world, world.p, n=2)
    world.elapse = quiet
    world.kill_agent(world.d)
    world.d.add("r", prompt(TOKENS), 1, world.p.answers["r"][1] if world.mode == "pull" else FOR_D)
    for _ in range(3):
        world.d.step()


def test_a_request_waits_for_the_attempt_to_reconnect(world):
    start(world)
    assert "r" not in world.d.answers
    agents(world)  # starts the agent, too
    turns(world, world.d, world.p, n=6)
    assert world.d.answers["r"][0] == "LENGTH"
    assert world.seen["transfer done"] == 2, "the blocks were computed, or loaded twice"
    nothing_left(world)


def test_a_request_ends_when_the_attempt_fails(world):
    start(world)
    world.d.losses += 1
    world.d.step()
    world.d.step()
    assert world.d.answers["r"][0] == "ERROR"
    agents(world)
    turns(world, world.d, world.p, n=6)
    nothing_left(world)
