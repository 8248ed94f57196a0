# SPDX-License-Identifier: Apache-2.0
"""dray.vllm.stats: counts of loads, their sum over ranks and steps, and the line of a minute."""

from dray.vllm import stats


class Timer:
    """A minute that ends when the test says so."""

    def __init__(self, seconds, function):
        self.seconds, self.function, self.state = seconds, function, "new"
        timers.append(self)

    def start(self):
        self.state = "running"

    def cancel(self):
        self.state = "cancelled"


timers: list[Timer] = []


def counting():
    timers.clear()
    reports: list[dict] = []
    return stats.Stats(reports.append, Timer), reports


def test_a_line_only_when_something_happened():
    counts, reports = counting()
    assert not timers
    counts.flush()
    assert not reports
    counts.loaded(1000, 2, 4, 64, 0.25)
    counts.failed("deadline")
    counts.failed("deadline")
    timer, = timers
    assert timer.seconds == 60 and timer.state == "running" and timer.daemon
    timer.function()
    assert len(reports) == 1 and reports[0]["failures"] == {"deadline": 2}
    counts.flush()
    assert len(reports) == 1
    counts.loaded(5, 1, 1, 32, 0.5)  # in the next minute
    assert len(timers) == 2
    counts.flush()  # at the end
    assert reports[1]["seconds"] == [0.5] and timers[1].state == "cancelled"


def test_sentence():
    counts, reports = counting()
    counts.loaded(3_000_000, 2, 4, 64, 0.25)
    counts.loaded(1_000_000, 1, 2, 32, 0.002)
    counts.failed("peer_lost")
    counts.failed("deadline")
    counts.take(waiting=3)
    counts.flush()
    assert stats.sentence(reports[0]) == (
        "2 loads of 96 tokens (3 blocks, 4.0 MB) in a median of 250.0 ms, at most 250.0 ms; 3 waiting; "
        "failures: deadline 1, peer_lost 1")
    assert stats.sentence(stats.new()).endswith("failures: none")


def test_taken_when_it_has_changed():
    counts, _ = counting()
    assert counts.take(0) is None
    assert counts.take(2) == {**stats.new(), "waiting": 2}
    assert counts.take(2) is None
    counts.loaded(10, 1, 2, 32, 0.1)
    taken = counts.take(1)
    assert taken is not None and (taken["bytes"], taken["blocks"], taken["operations"], taken["waiting"]) == ([10], [1], [2], 1)
    assert counts.take(1) is None
    assert counts.take(0) == stats.new()


def test_sum():
    total, one, two = stats.new(), stats.new(), stats.new()
    one.update(bytes=[1], seconds=[0.1], failures={"io": 1}, waiting=2)
    two.update(bytes=[2, 3], seconds=[0.2, 0.3], failures={"io": 2, "busy": 1}, waiting=1)
    for more in (one, two):
        stats.add(total, more)
    assert total["bytes"] == [1, 2, 3] and total["failures"] == {"io": 3, "busy": 1} and total["waiting"] == 1
    assert stats.summary(total)["failures"] == 4 and stats.summary(total)["median ms"] == 200.0
    assert one["bytes"] == [1]
