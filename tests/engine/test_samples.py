# SPDX-License-Identifier: Apache-2.0
"""vLLM makes a request for each of `n` samples, all with the parameters of one answer of P: its rights are acquired once, and all requests use them."""

import model
import pytest
from dray.vllm.grants import EXPIRED
from harness import ROOT
from test_push_steps import Calm, agents, nothing_left, prompt, turns
from world import BLOCK, World

TOKENS = 2 * BLOCK + 9
PREFILL = {"do_remote_decode": True, "do_remote_prefill": False}
NAMES = [f"{i}_r" for i in range(3)]


@pytest.fixture(params=["recompute", "fail"])
def world(request, monkeypatch):
    return World(monkeypatch, str(model.make(ROOT / "build/engine-model")), request.param, Calm())


def offered(world):
    """P's answer."""
    quiet, world.elapse = world.elapse, lambda: agents(world)  # P's agent answers within a step
    world.p.add("r", prompt(TOKENS), 1, PREFILL)
    turns(world, world.p, n=2)
    world.elapse = quiet
    return world.p.answers["r"][1]


def add(world, params, names=NAMES):
    for name in names:
        world.d.add(name, prompt(TOKENS), 2, params)


def end(world, names=NAMES, reasons=("LENGTH",)):
    turns(world, world.d, world.p, n=12)
    assert {world.d.answers[name][0] for name in names} <= set(reasons)
    nothing_left(world)


@pytest.fixture
def read(world, monkeypatch):
    """Tokens of the blocks of each transfer of D's first rank, in one layer."""
    found, land = [], type(world).transferred

    def transferred(world, transfer):
        if transfer.writes[1] == 0:
            found.append(sum(end - first for layer, first, end in transfer.writes[2] if layer == 0))
        land(world, transfer)

    monkeypatch.setattr(World, "transferred", transferred)
    return found


def test_whole_blocks_are_loaded_once(world, read):
    """The others find these in the engine's cache, and load what is behind them."""
    add(world, offered(world))
    end(world)
    assert read == [3 * BLOCK, BLOCK, BLOCK]


def test_a_request_that_comes_during_the_load(world, read):
    params = offered(world)
    add(world, params, NAMES[:1])
    world.d.step()
    add(world, params, NAMES[1:])
    end(world)
    assert read == [3 * BLOCK, BLOCK, BLOCK]


def test_a_request_that_comes_after_the_load_is_computed(world, read):
    params = offered(world)
    for name in NAMES:
        add(world, params, [name])
        end(world, [name])
    assert read == [3 * BLOCK]


@pytest.mark.parametrize("steps", range(4))
def test_the_request_that_loads_is_aborted(world, read, steps):
    add(world, offered(world))
    for _ in range(steps):
        world.d.step()
    world.d.abort(NAMES[0])
    end(world, NAMES[1:])


def test_all_are_aborted_while_one_loads(world):
    add(world, offered(world))
    turns(world, world.d)
    world.d.step()
    for name in NAMES:
        world.d.abort(name)
    end(world, [])


def test_the_right_has_expired(world):
    """All end as one request would, by the policy."""
    params = offered(world)
    for grant in list(world.p.grants.open):
        world.p.grants.end(grant, EXPIRED)
    agents(world)
    turns(world, world.p, n=2)
    add(world, params)
    end(world, NAMES, ("LENGTH", "ERROR"))
    assert len({world.d.answers[name][0] for name in NAMES}) == 1


def test_an_agent_that_does_not_answer(world, caplog):
    """All requests end with one deadline, not with one for each."""
    add(world, offered(world))
    for _ in range(3):
        world.d.step()
    world.now += 31
    for _ in range(12):
        world.d.step()
    assert set(world.d.answers) == set(NAMES)
    end(world, NAMES, ("LENGTH", "ERROR"))
