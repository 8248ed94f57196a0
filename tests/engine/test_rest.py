# SPDX-License-Identifier: Apache-2.0
"""How long a step that computes nothing waits for the agent, and which side of the connector waits."""

from types import SimpleNamespace

import pytest

from dray.vllm import rest, scheduler
from dray.vllm.layout import Group, Tensor, describe
from dray.vllm.protocol import StepMetadata
from dray.vllm.worker import WorkerSide


@pytest.fixture
def clock(monkeypatch):
    made = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(rest, "time", SimpleNamespace(monotonic=lambda: made.now))
    return made


def after(clock, made, seconds, **how):
    """The rest of a step so many seconds after the last change."""
    made.seconds(0, 1, **how)
    clock.now += seconds
    return made.seconds(0, 1, **how)


def test_a_part_of_the_time_that_has_passed(clock):
    assert after(clock, rest.Rest(True), 0.010) == 0.0
    assert after(clock, rest.Rest(True), 0.020) == pytest.approx(0.0025)
    assert after(clock, rest.Rest(True), 10.0) == 0.006


def test_a_change_counts_from_the_start(clock):
    made = rest.Rest(True)
    assert after(clock, made, 1.0) == 0.006
    assert made.seconds(0, 2) == 0.0
    clock.now += 1.0
    assert made.seconds(0, 2) == 0.006


def test_an_answer_of_an_agent(clock):
    assert rest.Rest(True).seconds(0, 1, answers=True) == 0.001


def test_no_rest(clock):
    made = rest.Rest(True)
    assert after(clock, made, 1.0)
    assert made.seconds(0, 0, answers=True) == 0.0  # nothing is moved
    assert made.seconds(0, 1) == 0.0  # a new load
    clock.now += 1.0
    assert made.seconds(5, 1, answers=True) == 0.0  # it computes tokens
    assert made.seconds(0, 1) == 0.0
    assert after(clock, rest.Rest(False), 1.0, answers=True) == 0.0


def test_a_session_that_reports_the_end(clock):
    made = rest.Rest(True)
    assert made.seconds(0, 1, session_reports_end=True) == 0.0  # it may be about to start
    assert made.seconds(0, 1, session_reports_end=True) == 0.006
    assert made.seconds(0, 1, answers=True, session_reports_end=True) == 0.001
    assert made.seconds(5, 1, session_reports_end=True) == made.seconds(0, 0, session_reports_end=True) == rest.Rest(False).seconds(0, 1, session_reports_end=True) == 0.0


class Client:
    """Of a session, which notes how long it has been asked to wait."""

    path, segment, agent_id, incarnation = "/agent", "agent:1", b"a", 1

    def __init__(self):
        self.events, self.waited = [], []

    def process(self, timeout=0):
        self.waited.append(timeout)

    def info(self):
        return SimpleNamespace(connected=True, losses=0)


@pytest.fixture
def side():
    """A scheduler side without requests."""
    client = Client()
    made = scheduler.SchedulerSide(SimpleNamespace(name="dray"), client, "engine", SimpleNamespace(), rest.Rest(True), tp_size=1, world_size=1)
    made.client = client
    return made


def step(side, tokens=0):
    """The metadata of a step with so many tokens, and how long the scheduler side has waited in it. It is not the first one."""
    side._rest._waiting = 1
    del side.client.waited[:]
    metadata = side.build_metadata(SimpleNamespace(total_num_scheduled_tokens=tokens, preempted_req_ids=None, num_scheduled_tokens={}))
    return metadata, sum(side.client.waited)


def load(side, state, remote):
    made = side._loads["r"] = scheduler._Load("r", (), scheduler._Rights())
    made.state, made.ends, made.losses = state, float("inf"), 0
    made.rights.holds[0] = SimpleNamespace(remote=remote, error=None, lost=None, keep=lambda now: None)
    if state is scheduler._State.ALLOCATED:
        side._allocated["r"] = made


def test_a_load_is_awaited_by_the_workers(side):
    load(side, scheduler._State.STARTED, object())
    metadata, waited = step(side)
    assert (metadata.rest, waited) == (0.006, 0)
    metadata, waited = step(side, tokens=1)
    assert (metadata.rest, waited) == (0.0, 0)


def test_a_right_is_awaited_by_the_scheduler(side):
    load(side, scheduler._State.ALLOCATED, None)
    metadata, waited = step(side)
    assert (metadata.rest, waited) == (0.0, 0.001)


def test_a_load_that_can_start_is_not_kept_up(side):
    load(side, scheduler._State.ALLOCATED, object())
    assert step(side)[1] == 0


def test_blocks_that_are_lent_are_awaited_by_the_scheduler(side):
    side._held["r"] = object()
    metadata, waited = step(side)
    assert (metadata.rest, waited) == (0.0, 0.006)


@pytest.fixture
def worker():
    groups = (Group("attention", 16),)
    rank = describe([Tensor("l", 0, 0, (4, 1, 16, 8), (128, 128, 8, 1), 2, 1, 0, 1)], groups, rank=0, blocks=4, length=4 * 256)
    client = Client()
    made = WorkerSide(client, SimpleNamespace(agent_handle=1), rank, groups, {})
    made.client = client
    return made


def test_the_worker_waits_while_it_moves(worker):
    worker._running["r"] = SimpleNamespace(error=None, pieces=[], queue=[], transfers=[SimpleNamespace(done=lambda: False)], ends=float("inf"))
    for given, waited in ((0.006, 0.006), (0.0, 0.0)):
        worker.step(StepMetadata(rest=given))
        worker.poll()
        assert worker.client.waited.pop() == waited
    worker.step(StepMetadata(rest=0.006, dropped=["other"]))
    worker.poll()
    assert worker.client.waited.pop() == 0.0  # the engine is to hear of it at once


def test_the_worker_does_not_wait_for_nothing(worker):
    for _ in range(8):
        worker.step(StepMetadata(rest=0.006))
        worker.poll()
    assert not any(worker.client.waited)
