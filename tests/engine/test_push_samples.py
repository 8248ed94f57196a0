# SPDX-License-Identifier: Apache-2.0
"""vLLM makes a request at D for each of `n` samples, all with the same parameters: P writes once, and all requests use it."""

import model
import pytest
from dray.vllm import push_receiver
from dray.vllm.letters import Announcement, mailbox_name, write
from harness import ROOT
from test_push_steps import FOR_D, FOR_P, STEP, TRANSFER, Calm, agents, log, nothing_left, prompt, turns  # noqa: F401 (a fixture)
from world import BLOCK, RANKS, Side, World

TOKENS = 2 * BLOCK + 9
NAMES = [f"{i}_r" for i in range(3)]


@pytest.fixture(params=["recompute", "fail"])
def world(request, monkeypatch):
    return World(monkeypatch, str(model.make(ROOT / "build/engine-model")), request.param, Calm(), "push")


@pytest.fixture
def computed(monkeypatch):
    """Tokens that D computes in each step of a request, in order."""
    found, compute = [], Side.compute

    def counted(side, request, n):
        if side.name == "d":
            found.append(n)
        compute(side, request, n)

    monkeypatch.setattr(Side, "compute", counted)
    return found


@pytest.fixture
def announced(monkeypatch):
    """Announcements that P reads."""
    found, post = [], push_receiver.letters.write

    def counted(message):
        if isinstance(message, Announcement):
            found.append(message)
        return post(message)

    monkeypatch.setattr(push_receiver.letters, "write", counted)
    return found


def add(world, names=NAMES, tokens=TOKENS):
    for name in names:
        world.d.add(name, prompt(tokens), 1, FOR_D)


def end(world, names=NAMES, reasons=("LENGTH",)):
    """All requests end in the same way."""
    turns(world, world.p, world.d, n=12)
    found = {world.d.answers[name][0] for name in names}
    assert found <= set(reasons) and len(found) == bool(names)
    nothing_left(world)


def side_by_side(world, steps):
    """So many steps of each engine."""
    for _ in range(steps):
        turns(world, world.d)
        world.p.step()


def ended_once(world, names=NAMES):
    assert world.seen["d finished LENGTH"] + world.seen["d finished ERROR"] + world.seen["d finished ABORT"] == len(names)


@pytest.mark.parametrize("p_first", [True, False])
def test_p_writes_once(world, computed, announced, p_first):
    """The other requests find the whole blocks in the engine's cache, and compute what is behind them."""
    if p_first:
        world.p.add("r", prompt(TOKENS), 1, FOR_P)
        turns(world, world.p, n=4)
    add(world)
    turns(world, world.d, n=3)
    if not p_first:
        world.p.add("r", prompt(TOKENS), 1, FOR_P)
    end(world)
    assert len(announced) == 1 and computed == [1, TOKENS % BLOCK, TOKENS % BLOCK]
    ended_once(world)


def test_a_request_that_comes_during_the_load(world, computed, announced):
    add(world, NAMES[:1])
    turns(world, world.d, n=3)
    add(world, NAMES[1:])
    world.p.add("r", prompt(TOKENS), 1, FOR_P)
    end(world)
    assert len(announced) == 1 and computed == [1, TOKENS % BLOCK, TOKENS % BLOCK]


def test_a_request_that_comes_after_the_load(world, computed, announced):
    world.p.add("r", prompt(TOKENS), 1, FOR_P)
    for name in NAMES:
        add(world, [name])
        end(world, [name])
    assert len(announced) == 1 and computed == [1, TOKENS % BLOCK, TOKENS % BLOCK]


def test_others_wait_until_the_engine_knows_of_the_load(world):
    """An engine that schedules its next step before it has the results of the last one has not put the blocks into its cache yet."""
    add(world)
    world.p.add("r", prompt(TOKENS), 1, FOR_P)
    turns(world, world.d, n=3)
    turns(world, world.p, n=4)
    output = world.d.scheduler.schedule()
    assert NAMES[0] in output.kv_connector_metadata.loaded
    assert world.d.side.match(world.d.scheduler.requests[NAMES[1]], 0) == (None, False)


@pytest.mark.parametrize("steps", range(7))
def test_the_request_that_loads_is_aborted(world, steps):
    """In the last cases it has ended before."""
    add(world)
    world.p.add("r", prompt(3 * STEP), 1, FOR_P)
    side_by_side(world, steps)
    world.d.abort(NAMES[0])
    world.check()
    end(world, NAMES[1:])
    ended_once(world, [name for name in NAMES if name in world.d.answers])


@pytest.mark.parametrize("steps", range(7))
def test_a_request_that_waits_is_aborted(world, announced, steps):
    """If the scheduler has not looked at any yet, it is the last one that this side knows, and the others are computed."""
    add(world)
    world.p.add("r", prompt(TOKENS), 1, FOR_P)
    side_by_side(world, steps)
    world.d.abort(NAMES[1])
    end(world, [NAMES[0], NAMES[2]])
    assert len(announced) == bool(steps)


@pytest.mark.parametrize("steps", range(6))
def test_all_are_aborted(world, steps):
    """P has its blocks back at once, whenever that is."""
    add(world)
    world.p.add("r", prompt(3 * STEP), 1, FOR_P)
    side_by_side(world, steps)
    for name in NAMES:
        world.d.abort(name)
    world.check()
    end(world, [])


def test_all_are_aborted_before_one_is_scheduled(world):
    world.p.add("r", prompt(STEP), 1, FOR_P)
    turns(world, world.p, n=3)
    add(world, tokens=STEP)
    for name in NAMES:
        world.d.abort(name)
    agents(world)
    turns(world, world.d, world.p, n=3)
    nothing_left(world)


def test_a_prefix_that_d_has(world, computed, announced):
    world.d.add("before", prompt(BLOCK + 1), 1, None)
    turns(world, world.d, n=4)
    computed.clear()
    add(world)
    world.p.add("r", prompt(TOKENS), 1, FOR_P)
    end(world)
    assert [one.first for one in announced] == [BLOCK] and computed == [1, TOKENS % BLOCK, TOKENS % BLOCK]


def test_preempted_at_p(world, announced):
    add(world, tokens=3 * STEP)
    turns(world, world.d, n=3)
    world.p.add("r", prompt(3 * STEP), 1, FOR_P)
    turns(world, world.p, n=2)
    world.p.preempt()
    end(world)
    assert world.seen["p preempted"] and len(announced) == 1


def test_preempted_at_d(world, announced):
    """A request that has loaded computes what the cache does not have any more, as the others do."""
    add(world)
    world.p.add("r", prompt(TOKENS), 1, FOR_P)
    for _ in range(8):
        turns(world, world.d, world.p)
        world.d.preempt()
    end(world)
    assert len(announced) == 1


def test_p_cannot_write(world, announced, caplog):
    """All end as one request would, by the policy."""
    add(world)
    turns(world, world.d, n=3)
    world.p.add("r", prompt(3 * STEP), 1, FOR_P)
    turns(world, world.p)
    world.p.abort("r")
    end(world, reasons=("LENGTH", "ERROR"))
    assert len(announced) == 1 and {world.d.answers[name][0] for name in NAMES} == {"LENGTH" if recomputes(world) else "ERROR"}
    ended_once(world)


def recomputes(world):
    return world.d.scheduler.recompute_kv_load_failures


def test_a_request_that_comes_after_a_failure(world, announced):
    """It could not be told from one that has waited."""
    add(world, NAMES[:1])
    turns(world, world.d, n=3)
    world.p.add("r", prompt(3 * STEP), 1, FOR_P)
    turns(world, world.p)
    world.p.abort("r")
    turns(world, world.p, world.d, n=12)
    add(world, NAMES[1:], 3 * STEP)
    end(world, reasons=("LENGTH", "ERROR"))
    assert len(announced) == 1


def test_one_deadline_for_all(world, announced):
    add(world)
    turns(world, world.d, n=3)
    world.now += 31
    turns(world, world.d, n=12)
    assert set(world.d.answers) == set(NAMES)
    end(world, reasons=("LENGTH", "ERROR"))
    assert len(announced) == 1


def test_parameters_that_are_refused(world):
    world.d.answers.clear()
    for name in NAMES:
        world.d.add(name, prompt(TOKENS), 1, {**FOR_D, "remote_port": 0})
    end(world, reasons=("LENGTH", "ERROR"))


def test_another_d_with_the_same_transfer_id(world, announced, caplog):
    """P writes to the first one alone, while it does and afterwards."""
    add(world)
    turns(world, world.d, n=3)
    world.p.add("r", prompt(TOKENS), 1, FOR_P)
    world.p.step()
    for tag in (7, 8):
        other = Announcement(**{**vars(announced[0]), "tag": tag})
        world.d.clients["scheduler"].post("p:1", mailbox_name("p"), write(other)[0], wait=False)
        end(world)
        assert caplog.text.count("is refused: token_used") == tag - 6
    assert world.seen["notified"] == RANKS


def test_a_transfer_id_that_d_has_forgotten(world, announced, monkeypatch, caplog):
    """As after a restart of D: P refuses it, and the load fails."""
    monkeypatch.setattr(push_receiver, "_USED_MAX", 1)
    for name in ("r", "other"):
        world.d.add(name, prompt(TOKENS), 1, {**FOR_D, "transfer_id": TRANSFER + name})
        world.p.add(name, prompt(TOKENS), 1, {**FOR_P, "transfer_id": TRANSFER + name})
        end(world, [name])
    world.d.add("again", prompt(TOKENS, 5), 1, {**FOR_D, "transfer_id": TRANSFER + "r"})
    turns(world, world.d, world.p, n=5)
    end(world, ["again"], ("LENGTH", "ERROR"))
    assert "has been used, or has expired" in caplog.text and len(announced) == 3
