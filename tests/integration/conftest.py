# SPDX-License-Identifier: Apache-2.0
"""Fixtures: agents that run for a file of tests, agents for one test, and the checks on all of them."""

import os
import signal
import sys
from functools import partial

import pytest

sys.path.insert(0, os.path.dirname(__file__))
sys.path.insert(1, os.path.join(os.path.dirname(__file__), "../../client/python"))
sys.path.append(os.path.join(os.path.dirname(__file__), ".."))

import harness  # noqa: E402
from claims import pytest_collection, pytest_runtestloop  # noqa: E402, F401
from harness import MIB, STREAMS, Side, noise, nothing_leaked, until  # noqa: E402

# A shell ignores SIGINT for a background job, and child processes would inherit that.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

LAB = None


def lab_get():
    global LAB
    LAB = LAB or harness.Lab()
    return LAB


def pytest_report_header(config):
    lab = lab_get()
    kind = ("namespaces of root" if not lab.userns else "namespaces in a user namespace") if lab.namespaces else \
        f"LOOPBACK ONLY, tests that need a link are skipped ({lab.why_not})"
    return f"dray: {harness.DRAYD}; two hosts: {kind}"


def pytest_unconfigure(config):
    if LAB:
        keep = "DRAY_KEEP" in os.environ
        LAB.close(keep)
        if keep:
            print(f"logs are in {LAB.tmp}")


def pytest_collection_modifyitems(config, items):
    agent_tests = [item for item in items if "lab" in getattr(item, "fixturenames", ())]
    if agent_tests and not harness.DRAYD.exists():
        for item in agent_tests:
            item.add_marker(pytest.mark.skip(reason=f"{harness.DRAYD} does not exist: build it first"))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    """Adds the agents' logs of a failed test to its report."""
    report = (yield).get_result()
    for agent in LAB.agents if LAB else ():
        text = agent.new_text()
        if report.failed and text:
            lines = text.splitlines()
            report.sections.append((f"log of {agent.name} in {agent.directory}", "\n".join(lines[-60:])))


@pytest.fixture(scope="session")
def lab():
    return lab_get()


def _stopped(agents):
    """Stops all agents, then raises the first error."""
    errors = []
    for agent in agents:
        try:
            agent.stop()
        except AssertionError as e:
            errors.append(e)
    if errors:
        raise errors[0]


# Settings of agents for one test. A machine that pauses for seconds must not make a peer look dead.
PAIR_SETTINGS = {"peer.heartbeat": "100ms", "peer.rest_heartbeat": "300ms", "peer.heartbeat_limit": "15s", "peer.connect_timeout": "5s",
         "peer.backoff_max": "200ms", "peer.fence_timeout": "15s", "transfer.slice_timeout": "15s"}
SHORT_LIMITS = {"peer__heartbeat_limit": "1s", "peer__fence_timeout": "2s", "transfer__slice_timeout": "2s"}


@pytest.fixture
def new_agent(lab):
    """Makes agents for one test; each must stop with status 0 and a clean log."""
    agents = []

    def make(name="agent", host=0, start=True, **how):
        agent = lab.agent(name, lab.hosts[host], **how)
        agents.append(agent)
        return agent.start() if start else agent

    yield make
    _stopped(agents)


def peer_settings(lab, host, family=4, **settings):
    return {"host": lab.hosts[host], "key": lab.key, "listen": [lab.hosts[host].address(family)],
            "settings": {**PAIR_SETTINGS, **{k.replace("__", "."): v for k, v in settings.items()}}}


@pytest.fixture
def new_pair(lab):
    """Makes two agents on two hosts for one test; each must stop with status 0 and a clean log."""
    agents = []

    def make(family=4, **settings):
        pair = [lab.agent(name, **peer_settings(lab, n, family, **settings)) for n, name in enumerate("ab")]
        agents.extend(pair)
        return [agent.start() for agent in pair]

    yield make
    _stopped(agents)


@pytest.fixture
def short_limits_pair(new_pair):
    """Makes pairs with short limits, for tests in which only silence shows that a peer is lost."""
    return partial(new_pair, **SHORT_LIMITS)


class Standing:
    """Agents that serve a whole file of tests. If one dies, its test fails, and it is started again for the next test."""

    def __init__(self, *agents):
        self.agents = agents

    def up(self):
        for agent in self.agents:
            if not agent.running:
                agent.kill()
                agent.start()
                serves(agent)  # the agent keeps some descriptors after the first region
        return self.agents


@pytest.fixture(scope="module")
def standing_agent(lab):
    standing = Standing(lab.agent("agent"))
    yield standing
    _stopped(standing.agents)


@pytest.fixture(scope="module")
def standing_pair(lab):
    standing = Standing(*(lab.agent(name, **peer_settings(lab, n)) for n, name in enumerate("ab")))
    yield standing
    _stopped(standing.agents)


def serves(*agents):
    """Checks that the agents work: a transfer between two new clients."""
    data = noise(70000, 7)
    with Side(agents[0], len(data)) as here, Side(agents[-1], len(data), data) as there:
        remote = here.reach(there)
        here.client.read(here.region, remote, [(1, 0, 69999)]).result(harness.LIMIT)
        assert here.view[1:70000] == data[:69999]
    for agent in agents:  # a test may compare with what they map now
        until(lambda agent=agent: agent.resources().mappings == 0, "the unmapping of the clients' memory")


@pytest.fixture
def agent(standing_agent):
    """An agent without peers that must survive the test, serve others after it, and release all its resources."""
    agent, = standing_agent.up()
    with nothing_leaked(agent):
        yield agent
        assert agent.running, f"the agent died:\n{agent.tail()}"
        serves(agent)
        agent.check_log()


@pytest.fixture
def pair(standing_pair):
    """Two agents that reach each other, with the same checks."""
    a, b = standing_pair.up()
    serves(a, b)  # the streams that this opens stay open
    serves(b, a)
    with nothing_leaked(a, b, streams=STREAMS):
        yield a, b
        for agent in (a, b):
            assert agent.running, f"agent {agent.name} died:\n{agent.tail()}"
            agent.check_log()
        serves(a, b)


@pytest.fixture(params=["local", "tcp", "tcp6"])
def sides(request, lab):
    """Two sides of a path: sides(size, fill) returns here (zeros) and there (fill)."""
    if request.param == "local":
        agent, = request.getfixturevalue("standing_agent").up()
        agents = agent, agent
    else:
        agents = request.getfixturevalue("standing_pair" if request.param == "tcp" else "standing_pair6").up()
    made = []

    def make(size=MIB, fill=None, here=None, **how):
        made.extend([Side(agents[0], size, here, **how), Side(agents[1], size, fill, **how)])
        return made[-2:]

    make.transport = "local" if request.param == "local" else "tcp"
    yield make
    for side in made:
        side.close()
    for agent in agents:
        assert agent.running, f"agent {agent.name} died:\n{agent.tail()}"


@pytest.fixture(scope="module")
def standing_pair6(lab):
    standing = Standing(*(lab.agent(name, **peer_settings(lab, n, 6)) for n, name in enumerate("ab")))
    yield standing
    _stopped(standing.agents)
