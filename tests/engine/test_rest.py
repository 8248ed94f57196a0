# SPDX-License-Identifier: Apache-2.0
"""How long a step that computes nothing waits for the agent."""

from types import SimpleNamespace

import pytest

from dray.vllm import rest


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
    assert after(clock, rest.Rest(True), 10.0) == 0.003


def test_a_change_counts_from_the_start(clock):
    made = rest.Rest(True)
    assert after(clock, made, 1.0) == 0.003
    assert made.seconds(0, 2) == 0.0
    clock.now += 1.0
    assert made.seconds(0, 2) == 0.003


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
