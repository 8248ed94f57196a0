# SPDX-License-Identifier: Apache-2.0
"""Agent and engine share a cgroup with one CPU, by a quota or by a cpuset: neither spins, and both notice changed limits."""

import contextlib
import pathlib

import harness
import pytest
from harness import LIMIT, Waiter, until

ROOT = pathlib.Path("/sys/fs/cgroup")


class Cgroup:
    def __init__(self, name):
        (ROOT / "cgroup.subtree_control").write_text("+cpu +cpuset")
        self.path = ROOT / name
        self.path.mkdir()

    def set(self, file, text):
        (self.path / file).write_text(text)

    def enter(self):
        """Prefix of a command that runs it in this cgroup."""
        return ["sh", "-c", f'echo $$ >{self.path}/cgroup.procs && exec "$@"', "sh"]

    def remove(self):
        def gone():
            with contextlib.suppress(OSError):
                self.path.rmdir()
            return not self.path.exists()

        until(gone, "the cgroup's end")


@pytest.fixture
def cgroup():
    one = Cgroup("pod")
    yield one
    one.remove()


@pytest.fixture
def agents(cgroup):
    """Makes agents for the test, and stops them before the cgroup is removed."""
    lab = harness.Lab(alone=True)

    def make(**how):
        return lab.agent(**how).start()

    yield make
    for agent in lab.agents:
        agent.stop()
    lab.close()


@pytest.mark.parametrize("file, text, why", [("cpu.max", "100000 100000", "a CPU limit of 1.000"),
                                             ("cpuset.cpus", "0", "1 CPU allowed")])
def test_one_cpu_for_both(cgroup, agents, file, text, why):
    cgroup.set(file, text)
    agent = agents(wrap=cgroup.enter(), settings={"agent.workers": 1})
    assert agent.polling() == (0, why)
    with Waiter(agent, wrap=cgroup.enter()) as waiter:
        # if the kernel runs the worker as soon as its doorbell rings, a transfer ends before the client can sleep
        got = waiter.trips(200)
        assert got["spin_ns"] == 0 and got["spun"] == 0
        got = waiter.sleeping_trip(agent)
        assert got["spun"] == 0 and got["slept"] == 1


def test_limits_change(cgroup, agents):
    """The limit changes while the agent runs, as with an in-place resize of the pod."""
    agent = agents(wrap=cgroup.enter(), settings={"agent.workers": 1, "segment.listen_interval": "200ms"})
    assert agent.polling() == (30000, "")
    for text, expected in (("50000 100000", (0, "a CPU limit of 0.500")), ("200000 100000", (30000, "")),
                           ("150000 100000", (0, "a CPU limit of 1.500")), ("max 100000", (30000, ""))):
        cgroup.set("cpu.max", text)
        until(lambda: agent.polling() == expected, f"{expected}", limit=2 * LIMIT)
    cgroup.set("cpuset.cpus", "1")
    until(lambda: agent.polling() == (0, "1 CPU allowed"), "the cpuset", limit=2 * LIMIT)
    with Waiter(agent, wrap=cgroup.enter()) as waiter:
        assert waiter.trips(20)["spun"] == 0
