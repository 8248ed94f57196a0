# SPDX-License-Identifier: Apache-2.0
import os
import pathlib
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent / "integration")]

from claims import pytest_collection, pytest_runtestloop  # noqa: E402, F401
from harness import Lab  # noqa: E402


def pytest_configure(config):
    config.addinivalue_line("markers", "long: starts engines with a model, which takes minutes")


def pytest_collection_modifyitems(items):
    """Leaves out what takes long; `make check-long` has the time."""
    if "DRAY_LONG" not in os.environ:
        items[:] = [item for item in items if not item.get_closest_marker("long")]


@pytest.fixture(scope="module")
def lab():
    made = Lab(alone=True)
    yield made
    made.close("DRAY_KEEP" in os.environ)


@pytest.fixture(scope="module")
def agents(lab, request):
    """One for each host: two, or as many as the module's AGENTS says, with its AGENT_SETTINGS."""
    number, settings = (getattr(request.module, name, default) for name, default in (("AGENTS", 2), ("AGENT_SETTINGS", {})))
    started = [lab.agent(f"agent-{i}", key=lab.key, settings=settings).start() for i in range(number)]
    yield started
    for agent in started:
        if agent.process.poll() is None:
            agent.stop()


@pytest.fixture(scope="module")
def sockets(agents):
    return [agent.socket for agent in agents]


@pytest.fixture
def bare(monkeypatch):
    """Makes engines without their models, and ends them; see bare.py."""
    from bare import Bare

    monkeypatch.setattr("vllm.distributed.parallel_state.get_tensor_model_parallel_rank", lambda: 0)
    engines = []

    def make(name, connector, **how):
        engines.append(Bare(name, connector, **how))
        return engines[-1]

    yield make
    for engine in engines:
        engine.close()
