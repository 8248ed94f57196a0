# SPDX-License-Identifier: Apache-2.0
"""vLLM's real schedulers step by step: the agent of an idle engine is restarted, and then the engine gets a request."""

import model
import pytest
from dray import errors
from dray.vllm import layout
from dray.vllm.letters import mailbox_name
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


# --- the idle engine is P -------------------------------------------------------------------------

@pytest.fixture
def pulled(monkeypatch):
    made = World(monkeypatch, str(model.make(ROOT / "build/engine-model")), "fail", Calm(), "pull")
    made.kill_agent(made.p)
    made.p.add("r", prompt(TOKENS), 1, FOR_P)
    for _ in range(3):
        made.p.step()
    return made


def test_p_waits_for_the_attempt_to_reconnect(pulled):
    assert "r" not in pulled.p.answers
    pulled.elapse = lambda: agents(pulled)  # starts the agent, too
    turns(pulled, pulled.p, n=6)
    pulled.d.add("r", prompt(TOKENS), 1, pulled.p.answers["r"][1])
    turns(pulled, pulled.d, pulled.p, n=6)
    assert pulled.d.answers["r"][0] == "LENGTH"
    assert pulled.seen["transfer done"] == 2, "the blocks were computed"
    nothing_left(pulled)


def test_p_goes_on_when_the_attempt_fails(pulled):
    pulled.p.losses += 1
    turns(pulled, pulled.p, n=3)
    assert pulled.p.answers["r"] == ("LENGTH", None)
    nothing_left(pulled)


def test_blocks_that_cannot_be_described_are_not_offered(pulled, monkeypatch):
    """D computes that request, and P's engine goes on."""
    def refuse(*_):
        raise errors.Unsupported("the KV caches of two layers overlap")

    monkeypatch.setattr(layout, "ranges", refuse)
    pulled.elapse = lambda: agents(pulled)  # starts the agent, too
    turns(pulled, pulled.p, n=6)
    assert pulled.p.answers["r"] == ("LENGTH", None)
    nothing_left(pulled)


def test_p_waits_again_after_another_loss(pulled):
    """A request of an hour ago went on without the agent; the engine has been idle since, and the agent dies again."""
    pulled.p.losses += 1
    turns(pulled, pulled.p, n=3)
    assert pulled.p.answers["r"] == ("LENGTH", None)
    pulled.now += 3600
    pulled.kill_agent(pulled.p)
    pulled.p.add("s", prompt(TOKENS), 1, FOR_P)
    for _ in range(3):
        pulled.p.step()
    assert "s" not in pulled.p.answers, "it was computed without waiting"
    pulled.elapse = lambda: agents(pulled)  # starts the agent, too
    turns(pulled, pulled.p, n=6)
    assert pulled.p.answers["s"][1], "its blocks are not offered"


def test_p_goes_on_when_its_blocks_cannot_be_shared_any_more(pulled):
    pulled.happen(len(pulled.actions) - 1)  # starts the agent
    for one in pulled.p.workers:
        one._worker._region.error = errors.Quota("no room")
    turns(pulled, pulled.p, n=3)
    assert "r" not in pulled.p.answers
    pulled.now += 31
    turns(pulled, pulled.p, n=3)
    assert pulled.p.answers["r"] == ("LENGTH", None)
    pulled.p.add("s", prompt(TOKENS), 1, FOR_P)  # which does not wait as long again
    turns(pulled, pulled.p, n=3)
    assert pulled.p.answers["s"] == ("LENGTH", None)


@pytest.fixture
def pushing(monkeypatch):
    """Both engines have the request; P's agent, and with it the mailbox, is away."""
    made = World(monkeypatch, str(model.make(ROOT / "build/engine-model")), "fail", Calm(), "push")
    made.box = made.mailboxes.pop(("p:1", mailbox_name("p")))
    made.kill_agent(made.p)
    made.p.add("r", prompt(TOKENS), 1, FOR_P)
    made.d.add("r", prompt(TOKENS), 1, FOR_D)
    for _ in range(3):
        made.p.step()
    return made


def test_p_waits_in_push(pushing):
    assert "r" not in pushing.p.answers, "it was computed, so that nothing steps the engine until its mailbox is open"
    turns(pushing, pushing.d, n=3)  # P's agent is back; the announcement meets no mailbox
    assert "r" not in pushing.d.answers and not pushing.seen["transfer done"]
    pushing.mailboxes["p:1", mailbox_name("p")] = pushing.box
    pushing.now += 0.2
    turns(pushing, pushing.d, pushing.p, n=6)
    assert pushing.d.answers["r"][0] == "LENGTH" and pushing.p.answers["r"][0] == "LENGTH"
    assert pushing.seen["transfer done"] == 2, "the blocks were computed"
    nothing_left(pushing)


def test_p_goes_on_in_push_when_the_attempt_fails(pushing):
    pushing.p.losses += 1
    for _ in range(3):
        pushing.p.step()
    assert pushing.p.answers["r"][0] == "LENGTH"
